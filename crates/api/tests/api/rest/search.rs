//! Search by names: who has many words in a name hides nobody.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use bytes::Bytes;
use cairn_api::rest::RestLimits;
use cairn_core::{BlockId, BlockRef, Height, HeightRange};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_explorer::processors::evm::token_metadata::SERVICE;
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_pipeline::derive::processor::{AskError, Processor};
use cairn_store::derived::{Coordinator, DerivedReader, Key, Scan, Value as Cell};
use serde_json::Value;

use super::endpoints::Document;
use super::world::{World, abi_text, limits, transfer};
use crate::support::{append, made};

/// The token whose name comes after all others.
const LAST: Address = Address::repeat_byte(0xee);
/// A name that is found by eight terms, all of them before the last one's.
const WORDS: &str = "ca cb cc cd ce cf cg ch";

/// Only says names. The last one's is another from this block on.
struct Names {
    renamed_at: u64,
}

#[async_trait]
impl ContractNode for Names {
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<CallAnswer, AskError> {
        let name = match to == LAST {
            true if at.height.get() >= self.renamed_at => "cube",
            true => "czar",
            false => WORDS,
        };
        match input.get(..4) {
            Some([0x06, 0xfd, 0xde, 0x03]) => Ok(CallAnswer::Returned(abi_text(name))),
            _ => Ok(CallAnswer::Reverted),
        }
    }

    async fn code(&self, _: Address, _: BlockRef) -> Result<Bytes, AskError> {
        Ok(Bytes::from_static(&[0x60, 0x00]))
    }
}

/// So many tokens of many words, and the last one.
async fn world(crowd: u8, limits: RestLimits) -> World {
    let tokens = (1..=crowd).map(Address::repeat_byte).chain([LAST]);
    let (from, to) = (Address::ZERO, Address::repeat_byte(0xaa));
    let logs: Vec<_> = tokens.map(|token| transfer(token, from, to, U256::from(1))).collect();
    let world = World::with(made::chain(0, 2, BlockId::default(), 0, |_| vec![logs.clone()]), limits).await;
    world.derive_by(processors(u64::MAX)).await;
    world
}

fn processors(renamed_at: u64) -> Vec<Processor> {
    let node: Arc<dyn ContractNode> = Arc::new(Names { renamed_at });
    evm_processors(&Settings { node: Some(node), ..Settings::default() })
}

/// How many are found, whether the last one is among them, and whether there may be more.
async fn found(world: &World, text: &str) -> (usize, bool, bool) {
    let path = format!("/v1/search?q={text}");
    let reply = world.get(&path).await;
    Document::read(world).await.check(&path, &reply);
    let data = reply.json["data"].as_array().expect("a list");
    let has_last = data.iter().any(|one| one["name"] == "czar");
    let mut addresses: Vec<&Value> = data.iter().map(|one| &one["address"]).collect();
    addresses.dedup();
    assert_eq!(addresses.len(), data.len(), "each once: {data:?}");
    (data.len(), has_last, reply.json["page"]["has_more"].as_bool().expect("is said"))
}

#[tokio::test(start_paused = true)]
async fn tokens_with_many_words_hide_no_other() {
    let world = world(12, limits()).await;
    // Twelve tokens have 96 rows before the last one's.
    assert_eq!(found(&world, "c").await, (13, true, false));
    assert_eq!(found(&world, "cz").await, (1, true, false));
    assert_eq!(found(&world, "czz").await, (0, false, false));
}

#[tokio::test(start_paused = true)]
async fn a_search_says_whether_there_may_be_more() {
    let many = world(25, limits()).await;
    assert_eq!(found(&many, "c").await, (20, false, true));
    assert_eq!(found(&many, "cza").await, (1, true, false));
    // Exactly as many as are named.
    assert_eq!(found(&world(19, limits()).await, "c").await, (20, true, false));
    // What may be examined ends before the last one.
    let few = world(12, RestLimits { max_examined_rows: 40, ..limits() }).await;
    assert_eq!(found(&few, "c").await, (12, false, true));
}

/// Asks about all tokens once more, at a block that is final now.
async fn ask_again(world: &World, renamed_at: u64) {
    let tip = made::tip(&world.store).await;
    let blocks = made::chain(tip.height.get() + 1, 2, tip.id, 0, |_| vec![]);
    let settled = blocks.last().expect("two").block_ref();
    append(&world.store, blocks, Some(settled)).await;
    world.derive_by(processors(renamed_at)).await;
    let range = HeightRange::inclusive(Height(0), tip.height);
    world.app.request_reindex(SERVICE.name, SERVICE.version, range, 1_000).await.expect("asks");
    let is_answered = async || {
        let snapshot = world.app.snapshot().await.expect("opens");
        let key = Key(vec![Cell::Bytes(LAST.to_vec().into()), Cell::text("")]);
        let rows = snapshot.rows("tokens", &[key]).await.expect("reads");
        rows[0].as_ref().is_some_and(|row| row.0.last() == Some(&Cell::height(settled.height)))
    };
    assert!(!is_answered().await);
    world.derive_until(processors(renamed_at), is_answered).await;
    assert!(is_answered().await);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_renamed_is_found_by_its_new_name_alone() {
    let world = world(3, limits()).await;
    // What the last one is called where it is found.
    let called = async |text: &str| {
        let path = format!("/v1/search?q={text}");
        let reply = world.get(&path).await;
        Document::read(&world).await.check(&path, &reply);
        let address = format!("0x{}", hex::encode(LAST));
        let data = reply.json["data"].as_array().expect("a list").iter();
        let last = data.filter(|one| one["address"] == address);
        last.map(|one| one["name"].as_str().expect("a name")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!((called("czar").await, called("cube").await), ("czar".into(), String::new()));
    ask_again(&world, 3).await;
    // The row of the old term is still there.
    let snapshot = world.app.snapshot().await.expect("opens");
    let scan = Scan { prefix: vec![Cell::text("czar")], ..Scan::new("search_index", 10) };
    assert_eq!(snapshot.scan(&scan).await.expect("reads").rows.len(), 1);
    assert_eq!((called("czar").await, called("cube").await), (String::new(), "cube".into()));
    // By a beginning of both it is found once. Who was asked again and kept the name is found as before.
    assert_eq!(called("c").await, "cube");
    assert_eq!(found(&world, "ca").await, (3, false, false));
}
