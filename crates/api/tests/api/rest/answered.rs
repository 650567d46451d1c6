//! What contracts answer of themselves that can't be shown as it is: flagged, with the bytes.

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_pipeline::derive::processor::AskError;
use serde_json::{Value, json};
use std::sync::Arc;

use super::endpoints::Document;
use super::world::{TOKEN, World, abi_text, moved, transfer};
use crate::support::made;

/// A token whose answers are as they should be.
const HONEST: Address = Address::repeat_byte(0x71);
const NAME: &str = "US\u{202e}D";

struct Node;

#[async_trait]
impl ContractNode for Node {
    async fn call(&self, to: Address, input: Vec<u8>, _: BlockRef) -> Result<CallAnswer, AskError> {
        let is_honest = to == HONEST;
        let answer: Bytes = match input.get(..4) {
            Some([0x06, 0xfd, 0xde, 0x03]) => abi_text(if is_honest { "USD" } else { NAME }),
            Some([0x95, 0xd8, 0x9b, 0x41]) => abi_text(&"S".repeat(if is_honest { 3 } else { 300 })),
            Some([0x31, 0x3c, 0xe5, 0x67]) if is_honest => U256::from(6).to_be_bytes_vec().into(),
            Some([0x31, 0x3c, 0xe5, 0x67] | [0x18, 0x16, 0x0d, 0xdd]) => U256::MAX.to_be_bytes_vec().into(),
            _ => return Ok(CallAnswer::Reverted),
        };
        Ok(CallAnswer::Returned(answer))
    }

    async fn code(&self, _: Address, _: BlockRef) -> Result<Bytes, AskError> {
        Ok(Bytes::from_static(&[0x60, 0x00]))
    }
}

fn hex(bytes: &[u8]) -> Value {
    json!(format!("0x{}", hex::encode(bytes)))
}

#[tokio::test(start_paused = true)]
async fn sanitised_names_and_decimals_out_of_range_are_flagged_with_what_was_answered() {
    let holder = Address::repeat_byte(1);
    let blocks = made::chain(0, 3, BlockId::default(), 0, |height| match height {
        1 => vec![vec![moved(0, 1, 7), transfer(HONEST, Address::ZERO, holder, U256::from(9))]],
        _ => Vec::new(),
    });
    let world = World::new(blocks).await;
    let node: Arc<dyn ContractNode> = Arc::new(Node);
    world.derive_by(evm_processors(&Settings { node: Some(node), ..Settings::default() })).await;
    let document = Document::read(&world).await;

    let holdings = format!("/v1/accounts/0x{}/holdings", hex::encode(holder));
    let mut found: Vec<Value> = Vec::new();
    for (path, token) in [
        (format!("/v1/tokens/{TOKEN}"), "/data/token"),
        ("/v1/tokens?sort=address".to_owned(), "/data/0/token"),
        (holdings, "/data/0/token"),
    ] {
        let reply = world.get(&path).await;
        document.check(&path, &reply);
        found.push(reply.json.pointer(token).expect("it was asked").clone());
    }
    for token in found {
        assert_eq!([&token["name"], &token["name_sanitised"]], [&json!("USD"), &json!(true)]);
        assert_eq!([&token["symbol"], &token["symbol_sanitised"]], [&json!("S".repeat(64)), &json!(true)]);
        assert_eq!([&token["decimals"], &token["decimals_out_of_range"]], [&Value::Null, &json!(true)]);
        // It answered everything.
        assert_eq!(token["status"], "ok");
        assert_eq!(token["answered"]["name"], hex(NAME.as_bytes()));
        assert_eq!(token["answered"]["symbol"], hex(&[b'S'; 256]), "the first 256 bytes");
        assert_eq!(token["answered"]["decimals"], hex(&[0xff; 32]));
        assert_eq!(token["answered"]["total_supply"], Value::Null, "it is shown as it was answered");
        assert_eq!(token["total_supply"], U256::MAX.to_string());
    }
    let honest = world.ok(&format!("/v1/tokens/{HONEST}")).await["data"]["token"].clone();
    assert_eq!(honest["decimals"], 6);
    for flag in ["name_sanitised", "symbol_sanitised", "decimals_out_of_range"] {
        assert_eq!(honest[flag], false, "{flag}");
    }
    assert_eq!(honest["answered"], Value::Null);
    // Both are found by the name that is shown, and told apart.
    let path = "/v1/search?q=usd";
    let reply = world.get(path).await;
    document.check(path, &reply);
    let mut flags: Vec<(String, Value)> = reply.json["data"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["identifier"].as_str().expect("text").to_owned(), row["is_sanitised"].clone()))
        .collect();
    flags.sort_by(|a, b| a.0.cmp(&b.0));
    let name = |address: Address| format!("0x{}", hex::encode(address));
    assert_eq!(flags, [(name(TOKEN), json!(true)), (name(HONEST), json!(false))]);
}
