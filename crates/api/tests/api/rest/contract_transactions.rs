//! The transactions of a contract are those that name it among the contracts that they touched.

use std::collections::BTreeMap;

use cairn_api::rest::WorkerUse;
use serde_json::{Value, json};

use super::world::{World, synthetic};

/// Of each contract: transaction and tags, oldest first, as the transactions themselves say.
async fn touched(world: &World) -> BTreeMap<String, Vec<(String, Value)>> {
    let mut touched: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    let (transactions, _) = world.pages("/v1/transactions?order=asc&limit=50").await;
    for transaction in transactions {
        let id = transaction["id"].as_str().expect("an id").to_owned();
        let one = world.ok(&format!("/v1/transactions/{id}")).await;
        for contract in one["data"]["contracts"].as_array().expect("contracts") {
            let address = contract["address"].as_str().expect("an address").to_owned();
            touched.entry(address).or_default().push((id.clone(), contract["tags"].clone()));
        }
    }
    touched
}

fn shown(rows: &[Value]) -> Vec<(String, Value)> {
    let id = |row: &Value| row["transaction_id"].as_str().expect("an id").to_owned();
    rows.iter().map(|row| (id(row), row["tags"].clone())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_contracts_transactions_are_those_that_say_that_they_touched_it() {
    let world = World::new(synthetic(20)).await;
    world.derive().await;
    let touched = touched(&world).await;
    assert!(touched.len() > 3, "{touched:?}");
    for (address, mut expected) in touched {
        let path = format!("/v1/contracts/{address}/transactions");
        let (rows, _) = world.pages(&format!("{path}?order=asc&limit=3")).await;
        assert_eq!(shown(&rows), expected, "{address}");
        for row in &rows {
            assert_eq!(row["transaction"]["id"], row["transaction_id"]);
            assert_eq!(row["transaction"]["block_height"], row["block_height"]);
        }
        let (rows, _) = world.pages(&format!("{path}?limit=7")).await;
        expected.reverse();
        assert_eq!(shown(&rows), expected, "{address}");
    }
    let nobody = world.ok("/v1/contracts/0x00000000000000000000000000000000000000aa/transactions").await;
    assert_eq!(nobody["data"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn without_the_worker_beside_there_is_no_transaction_and_the_list_is_whole() {
    let world = World::new(synthetic(20)).await;
    world.derive().await;
    let (address, expected) = touched(&world).await.pop_last().expect("a contract");
    let process = world.with_uses(&[("evm_worker", WorkerUse::Disabled)]);
    let (rows, _) = process.pages(&format!("/v1/contracts/{address}/transactions?order=asc")).await;
    assert_eq!(shown(&rows), expected);
    assert!(rows.iter().all(|row| row["transaction"].is_null()));
}
