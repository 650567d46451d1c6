//! Items that several hold: who holds how many of one.

use alloy_primitives::{Address, B256, Log, LogData, U256, keccak256};
use cairn_core::BlockId;
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{World, all_but};
use crate::support::{append, made};

/// A collection whose items have several owners.
const MANY: Address = Address::repeat_byte(0x55);
/// One whose items have one.
const SINGLE: Address = Address::repeat_byte(0x21);

fn who(byte: u8) -> B256 {
    Address::repeat_byte(byte).into_word()
}

/// So many of an item of `MANY`.
fn some(from: u8, to: u8, item: u64, amount: u64) -> Log {
    let name = keccak256("TransferSingle(address,address,address,uint256,uint256)");
    let data = [U256::from(item), U256::from(amount)].map(|word| word.to_be_bytes::<32>()).concat();
    let topics = vec![name, who(9), who(from), who(to)];
    Log { address: MANY, data: LogData::new_unchecked(topics, data.into()) }
}

/// An item of `SINGLE`.
fn one(from: u8, to: u8, item: u64) -> Log {
    let topics = vec![
        keccak256("Transfer(address,address,uint256)"),
        who(from),
        who(to),
        B256::from(U256::from(item)),
    ];
    Log { address: SINGLE, data: LogData::new_unchecked(topics, Vec::new().into()) }
}

async fn world() -> World {
    // Of item 7 five have some: 1 and 5 give all away, and 9 burns the rest of its own.
    let given = [(1, 2, 2), (1, 3, 3), (1, 4, 5), (1, 5, 1), (5, 6, 1), (1, 9, 4), (9, 0, 4), (2, 8, 1)];
    let mut logs = vec![some(0, 1, 7, 15), some(0, 1, 8, 6), some(1, 2, 8, 1)];
    logs.extend(given.map(|(from, to, amount)| some(from, to, 7, amount)));
    logs.extend([one(0, 1, 7), one(1, 3, 7), one(0, 1, 8), one(1, 0, 8)]);
    let world = World::new(made::chain(0, 2, BlockId::default(), 0, |height| match height {
        0 => vec![logs.clone()],
        _ => vec![],
    }))
    .await;
    world.derive_by(all_but(&[])).await;
    world
}

/// The owners of an item, page by page, and how many each page had.
async fn owners(world: &World, collection: Address, item: u64) -> (Vec<(String, String)>, Vec<usize>) {
    let path = format!("/v1/nft-collections/{collection}/items/{item}/owners?limit=2");
    Document::read(world).await.check(&path, &world.get(&path).await);
    let (rows, sizes) = world.pages(&path).await;
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    (rows.iter().map(|row| (text(row, "address"), text(row, "balance"))).collect(), sizes)
}

fn pairs(of: &[(u8, &str)]) -> Vec<(String, String)> {
    let name = |byte: u8| format!("0x{}", hex::encode(Address::repeat_byte(byte)));
    of.iter().map(|(byte, balance)| (name(*byte), (*balance).to_owned())).collect()
}

#[tokio::test(start_paused = true)]
async fn the_owners_of_an_item_are_listed_with_how_many_each_has() {
    let world = world().await;
    let of_seven = pairs(&[(2, "1"), (3, "3"), (4, "5"), (6, "1"), (8, "1")]);
    assert_eq!(owners(&world, MANY, 7).await, (of_seven, vec![2, 2, 1]));
    assert_eq!(owners(&world, MANY, 8).await, (pairs(&[(1, "5"), (2, "1")]), vec![2]));
    assert_eq!(owners(&world, SINGLE, 7).await.0, pairs(&[(3, "1")]));
    // Burnt, and never there.
    assert_eq!(owners(&world, SINGLE, 8).await.0, pairs(&[]));
    assert_eq!(owners(&world, MANY, 9).await.0, pairs(&[]));
    let list = format!("/v1/nft-collections/{MANY}/items/7/owners");
    let page = world.ok(&format!("{list}?limit=2")).await;
    assert_eq!(page["meta"]["required_workers"], json!(["nft_ownership_worker"]));
    // A cursor is of one item.
    let next = page["page"]["next"].as_str().expect("more");
    let other = format!("/v1/nft-collections/{MANY}/items/8/owners?cursor={next}");
    world.problem(&other, 400, "invalid-cursor").await;
    for path in [
        "/v1/nft-collections/x/items/7/owners".to_owned(),
        format!("/v1/nft-collections/{MANY}/items/x/owners"),
    ] {
        world.problem(&path, 400, "invalid-parameter").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reorg_between_two_pages_of_owners_is_said() {
    let world = world().await;
    let list = format!("/v1/nft-collections/{MANY}/items/7/owners?limit=2");
    // Of block 1: 3 gives one to 4, which then has six.
    let common = made::at(&world.store, 0).await;
    let with = |logs: Vec<Log>, salt| made::chain(1, 1, common.id, salt, move |_| vec![logs.clone()]);
    for (salt, logs, third) in [(1, vec![some(3, 4, 7, 1)], "6"), (2, vec![], "5")] {
        let before = world.ok(&list).await;
        made::roll_back(&world.store, common).await;
        append(&world.store, with(logs, salt), None).await;
        world.derive_by(all_but(&[])).await;
        let now = owners(&world, MANY, 7).await.0;
        assert_eq!((now.len(), now[2].1.as_str()), (5, third));
        let next = before["page"]["next"].as_str().expect("more");
        let reply = world.get(&format!("{list}&cursor={next}")).await;
        match salt {
            // Nothing that was shown is gone.
            1 => assert_eq!(reply.json["data"][0]["balance"], "6"),
            _ => assert_eq!((reply.status.as_u16(), reply.code()), (409, "reorged"), "{}", reply.text),
        }
    }
}
