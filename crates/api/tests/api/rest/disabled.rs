//! Workers that stand still below the others: what doesn't rest on them is answered up to its own end, and what does is not said to come.

use alloy_primitives::{Address, Log};
use cairn_api::rest::WorkerUse::Disabled;
use cairn_core::{BlockId, Height, Parts};
use cairn_store::RawReader;
use cairn_store::derived::{Coordinator, DerivedMaintenance, RebuildRequest};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{TOKEN, World, all_but, moved};
use crate::support::made;

fn one_transfer(height: u64) -> Vec<Vec<Log>> {
    vec![vec![moved(1, 2, height)]]
}

/// Blocks 0 to 9, of which these workers and those that read from them have only done 0 to 4.
async fn world(behind: &[&str]) -> World {
    let world = World::new(made::chain(0, 5, BlockId::default(), 0, one_transfer)).await;
    world.derive_by(all_but(&[])).await;
    world.grow(5, 0, one_transfer).await;
    world.derive_by(all_but(behind)).await;
    world
}

async fn checked(world: &World, path: &str) -> Value {
    let reply = world.get(path).await;
    assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.text);
    Document::read(world).await.check(path, &reply);
    reply.json
}

/// Heights of an account's transactions, and at which of them the transaction is there.
async fn transactions(world: &World) -> (Vec<u64>, Vec<u64>) {
    let path = format!("/v1/accounts/{}/transactions?order=asc&limit=3", Address::repeat_byte(1));
    checked(world, &path).await;
    let (rows, _) = world.pages(&path).await;
    let height = |row: &Value| row["block_height"].as_str().expect("text").parse::<u64>().expect("a number");
    let there: Vec<&Value> = rows.iter().filter(|row| !row["transaction"].is_null()).collect();
    assert!(there.iter().all(|row| row["transaction"]["id"] == row["transaction_id"]));
    (rows.iter().map(height).collect(), there.into_iter().map(height).collect())
}

async fn meta(world: &World) -> Value {
    let path = format!("/v1/accounts/{}/transactions", Address::repeat_byte(1));
    world.ok(&path).await["meta"].take()
}

#[tokio::test(start_paused = true)]
async fn an_accounts_transactions_do_not_end_where_the_worker_beside_stands() {
    let world = world(&["evm_worker"]).await;
    let all: Vec<u64> = (0..10).collect();
    // It runs, and is behind or paused.
    assert_eq!(transactions(&world).await, (all.clone(), (0..5).collect()));
    let said = meta(&world).await;
    assert_eq!(said["data_watermark"]["height"], "9");
    assert_eq!(said["required_workers"], json!(["accounts_worker"]));
    assert_eq!(said["beside"], json!([{ "worker": "evm_worker", "height": "4" }]));
    // It doesn't run.
    let process = world.with_uses(&[("evm_worker", Disabled)]);
    assert_eq!(transactions(&process).await, (all, Vec::new()));
    let said = meta(&process).await;
    assert_eq!(said["data_watermark"]["height"], "9");
    assert_eq!((&said["required_workers"], &said["beside"]), (&json!(["accounts_worker"]), &json!([])));

    // Reorgs above where it stands, and below.
    for (common, salt, has) in [(6, 1, 0..5), (2, 2, 0..3)] {
        let common = made::at(&world.store, common).await;
        made::roll_back(&world.store, common).await;
        world.grow(3, salt, one_transfer).await;
        let path = format!("/v1/accounts/{}/transactions", Address::repeat_byte(1));
        world.problem(&path, 409, "forks-disagree").await;
        world.derive_by(all_but(&["evm_worker"])).await;
        let last = common.height.get() + 3;
        assert_eq!(transactions(&world).await, ((0..=last).collect(), has.clone().collect()));
        let said = meta(&world).await;
        assert_eq!(said["data_watermark"]["height"], last.to_string());
        assert_eq!(said["beside"][0]["height"], (has.end - 1).to_string());
    }
    // Once it runs again all of them are there.
    world.derive_by(all_but(&[])).await;
    assert_eq!(transactions(&world).await, ((0..6).collect(), (0..6).collect()));
    assert_eq!(meta(&world).await["beside"][0]["height"], "5");
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_that_does_not_run_never_made_is_not_said_to_come() {
    let world = world(&[
        "evm_worker",
        "token_worker",
        "ft_holdings_worker",
        "nft_ownership_worker",
        "tx_contracts_worker",
    ])
    .await;
    let raw = world.store.snapshot().await.expect("opens");
    let block = raw.block(Height(7), Parts::TRANSACTIONS).await.expect("reads").expect("a block");
    let id = block.transactions[0].id;
    let document = Document::read(&world).await;
    let process = world.with_uses(&[("evm_worker", Disabled), ("token_worker", Disabled)]);
    for (path, worker) in [
        ("/v1/blocks/7/transactions".to_owned(), "evm_worker"),
        (format!("/v1/logs?address={TOKEN}&to=7"), "evm_worker"),
        (format!("/v1/logs?address={TOKEN}&from=7"), "evm_worker"),
        (format!("/v1/transactions/{id}/transfers"), "token_worker"),
    ] {
        let not_yet = world.problem(&path, 503, "not-yet").await;
        assert_eq!((&not_yet["worker"], &not_yet["retry_after_s"]), (&json!(worker), &json!(1)), "{path}");
        let reply = process.get(&path).await;
        document.check(&path, &reply);
        assert_eq!((reply.status.as_u16(), reply.code()), (501, "worker-not-enabled"), "{path}");
        assert_eq!((&reply.json["worker"], &reply.json["watermark_height"]), (&json!(worker), &json!("4")));
        assert!(reply.headers.get("retry-after").is_none(), "{path}");
    }
    // What it made before is there.
    for path in ["/v1/blocks/4/transactions".to_owned(), format!("/v1/logs?address={TOKEN}&to=4")] {
        assert!(!checked(&process, &path).await["data"].as_array().expect("rows").is_empty(), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_run_and_has_nothing_yet_is_not_said_to_come() {
    let world = world(&[]).await;
    let holders = format!("/v1/tokens/{TOKEN}/holders");
    let process = world.with_uses(&[("ft_holdings_worker", Disabled)]);
    process.ok(&holders).await;
    let anew = RebuildRequest { anew: vec!["ft_holdings_worker".into()], ..RebuildRequest::default() };
    world.app.begin_rebuild(&anew).await.expect("begins");
    world.problem(&holders, 503, "being-rebuilt").await;
    assert_eq!(process.problem(&holders, 501, "worker-not-enabled").await["worker"], "ft_holdings_worker");

    let code = format!("/v1/contracts/{TOKEN}/code");
    world.app.register("contract_code_worker", Height(0)).await.expect("registers");
    world.problem(&code, 503, "not-yet").await;
    let process = world.with_uses(&[("contract_code_worker", Disabled)]);
    assert_eq!(process.problem(&code, 501, "worker-not-enabled").await["worker"], "contract_code_worker");
}

#[tokio::test(start_paused = true)]
async fn what_a_worker_that_does_not_run_lacks_is_not_known_and_what_it_has_is() {
    let world = world(&["meta_worker", "stats_worker", "tx_contracts_worker"]).await;
    let process = world.with_uses(&[("meta_worker", Disabled), ("tx_contracts_worker", Disabled)]);
    let found = checked(&process, &format!("/v1/search?q={TOKEN}")).await;
    let it = &found["data"][0];
    assert_eq!((&it["is_contract"], &it["is_token"]), (&Value::Null, &json!(true)), "{found}");
    assert_eq!(found["meta"]["data_watermark"]["height"], "9");
    // An answer about one block counts in who has done that one.
    let raw = world.store.snapshot().await.expect("opens");
    for height in [2, 7] {
        let block = raw.block(Height(height), Parts::TRANSACTIONS).await.expect("reads").expect("a block");
        let one = checked(&process, &format!("/v1/transactions/{}", block.transactions[0].id)).await;
        assert_eq!(one["data"]["contracts"].is_array(), height == 2, "{one}");
    }
}
