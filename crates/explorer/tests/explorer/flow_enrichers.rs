//! Enrichers of Flow against nodes that say anything.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use cairn_core::{BlockId, BlockRef, Height};
use cairn_explorer::names;
use cairn_explorer::processors::flow::contract_code::MAX_CODE_BYTES;
use cairn_explorer::processors::flow::node::{MAX_ANSWER_BYTES, ScriptAnswer, ScriptNode};
use cairn_explorer::processors::{Settings, flow_catalog, flow_processors};
use cairn_flow::FlowAddress;
use cairn_flow::cdc::CdcValue;
use cairn_flow::proto::Account;
use cairn_pipeline::derive::processor::{AskError, AskFailure, Asked, Enricher, Processor};
use cairn_store::derived::{Key, Row, U256, Value};
use serde_json::{Value as Json, json};
use sha3::{Digest, Sha3_256};

use crate::support;
use support::flow::{
    self, CATS, COIN, account, contract_set, deposited, fixed, flow_block, get, item_deposited,
    item_destroyed, item_withdrawn, map_all, value, with,
};

const AT: BlockRef = BlockRef { height: Height(77), id: BlockId([1; 32]) };

/// A node that answers every script alike, and notes what it was asked.
#[derive(Default)]
struct Node {
    answer: Mutex<Option<Result<ScriptAnswer, AskError>>>,
    contracts: BTreeMap<String, Vec<u8>>,
    asked: Mutex<Vec<(String, Vec<CdcValue>)>>,
}

#[async_trait]
impl ScriptNode for Node {
    async fn execute(
        &self,
        script: &str,
        arguments: Vec<Vec<u8>>,
        at: BlockRef,
    ) -> Result<ScriptAnswer, AskError> {
        assert_eq!(at, AT);
        let arguments = arguments.iter().map(|argument| CdcValue::parse(argument).unwrap()).collect();
        self.asked.lock().unwrap().push((script.to_owned(), arguments));
        self.answer.lock().unwrap().clone().unwrap_or(Ok(ScriptAnswer::Failed("no such contract".into())))
    }

    async fn account(&self, address: FlowAddress, _at: BlockRef) -> Result<Option<Account>, AskError> {
        let contracts = self.contracts.clone();
        Ok((address == account(9)).then(|| Account { contracts, ..Account::default() }))
    }
}

fn answering(answer: Json) -> Arc<Node> {
    let node = Node::default();
    *node.answer.lock().unwrap() = Some(Ok(ScriptAnswer::Returned(answer.to_string().into())));
    Arc::new(node)
}

/// A dictionary as JSON-CDC.
fn found(entries: &[(&str, Json)]) -> Json {
    let entry = |(key, of): &(&str, Json)| json!({"key": value("String", *key), "value": of});
    value("Dictionary", entries.iter().map(entry).collect::<Vec<_>>())
}

fn enricher(name: &str, node: &Arc<Node>) -> Arc<dyn Enricher> {
    let settings = Settings { scripts: Some(node.clone()), ..flow::settings() };
    match flow_processors(&settings).into_iter().find(|processor| processor.service().name == name) {
        Some(Processor::Enricher(enricher)) => enricher,
        _ => panic!("{name}"),
    }
}

/// Runs a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

fn checked(enricher: &dyn Enricher, rows: Vec<(&'static str, Row)>) -> BTreeMap<&'static str, Vec<Row>> {
    let catalog = flow_catalog().unwrap();
    let mut tables: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
    for (name, row) in rows {
        let table = catalog.table(name).unwrap();
        table.check(&row).unwrap();
        assert_eq!(table.def().service, enricher.service().name);
        tables.entry(name).or_default().push(row);
    }
    tables
}

fn ask(enricher: &dyn Enricher, key: &Key) -> BTreeMap<&'static str, Vec<Row>> {
    let Asked::Rows(rows) = now(enricher.ask(key, AT)).unwrap() else { panic!() };
    checked(enricher, rows)
}

fn subject(name: &str, family: &str) -> Key {
    Key(vec![Value::bytes(&account(9).0), Value::text(name), Value::text(family)])
}

#[test]
fn without_a_node_or_a_network_there_are_no_enrichers() {
    let with_scripts = Settings { scripts: Some(Arc::new(Node::default())), ..Settings::default() };
    for settings in [flow::settings(), with_scripts] {
        let all = flow_processors(&settings);
        assert!(all.iter().all(|processor| !matches!(processor, Processor::Enricher(_))));
    }
}

#[test]
fn a_token_says_what_it_is_and_is_found_by_it() {
    let node = answering(found(&[
        ("name", value("String", "Flow  Coin\u{202e}\u{0}")),
        ("symbol", value("String", "COIN")),
        ("supply", value("UFix64", fixed(u64::MAX))),
    ]));
    let enricher = enricher(names::TOKEN_METADATA_WORKER, &node);
    let rows = ask(&*enricher, &subject("Coin", "ft"));
    let token = &rows["tokens"][0];
    assert_eq!(get("tokens", token, "name"), &Value::text("Flow Coin"));
    assert_eq!(get("tokens", token, "symbol"), &Value::text("COIN"));
    assert_eq!(get("tokens", token, "decimals"), &Value::Int(8));
    assert_eq!(get("tokens", token, "total_supply"), &Value::Amount(U256::from(u64::MAX)), "F07: exact");
    assert_eq!(get("tokens", token, "status"), &Value::text("ok"));
    assert_eq!(flow::column("search_index", &rows["search_index"], "term"), ["coin", "flow coin"]);
    let known = &rows["token_contracts"][0];
    assert_eq!(
        flow_catalog().unwrap().table("token_contracts").unwrap().key_of(known),
        subject("Coin", "ft")
    );

    let asked = node.asked.lock().unwrap();
    assert_eq!(asked.len(), 1, "one script for everything");
    let (script, arguments) = &asked[0];
    assert!(script.starts_with("import FungibleToken from 0xee82856bf20e2aa6\n"), "{script}");
    assert_eq!(arguments, &[CdcValue::Address(account(9)), CdcValue::String("Coin".into())]);
}

#[test]
fn another_type_of_a_contract_is_asked_about_as_itself() {
    let kind = |name: &str| CdcValue::String(format!("A.0000000000000009.{name}"));
    let named = |name: &str| CdcValue::String(name.into());
    let node = answering(found(&[("name", value("String", "Gold"))]));
    let asker = enricher(names::TOKEN_METADATA_WORKER, &node);
    let rows = ask(&*asker, &subject("Coin.Gold", "ft"));
    assert_eq!(get("tokens", &rows["tokens"][0], "contract_name"), &Value::text("Coin.Gold"));
    ask(&*asker, &subject("Cats.Kitten", "nft"));
    let item = Key(vec![
        Value::bytes(&account(9).0),
        Value::text("Cats.Kitten"),
        Value::Amount(U256::from(7)),
        Value::bytes(&account(2).0),
    ]);
    ask(&*enricher(names::NFT_METADATA_WORKER, &node), &item);
    let asked = node.asked.lock().unwrap();
    for ((script, arguments), (contract, of)) in
        asked.iter().zip([("Coin", "Coin.Gold"), ("Cats", "Cats.Kitten"), ("Cats", "Cats.Kitten")])
    {
        assert!(script.contains(", kind: String)") && !script.contains("nil"), "{script}");
        assert!(script.contains("resourceType: CompositeType(kind)"), "{script}");
        assert_eq!(arguments[..2], [CdcValue::Address(account(9)), named(contract)]);
        assert_eq!(arguments.last(), Some(&kind(of)));
    }
    assert_eq!(asked.iter().map(|(_, arguments)| arguments.len()).collect::<Vec<_>>(), [3, 3, 5]);
}

#[test]
fn a_collection_says_what_it_is() {
    let node = answering(found(&[("name", value("String", "Cats")), ("standard", value("Bool", true))]));
    let rows = ask(&*enricher(names::TOKEN_METADATA_WORKER, &node), &subject("Cats", "nft"));
    let row = &rows["nft_collections"][0];
    assert_eq!(get("nft_collections", row, "name"), &Value::text("Cats"));
    assert_eq!(get("nft_collections", row, "standard"), &Value::text("cadence-nft"));
    assert_eq!(get("nft_collections", row, "status"), &Value::text("ok"));
}

#[test]
fn hostile_answers_are_as_good_as_none() {
    let long = "x".repeat(MAX_ANSWER_BYTES);
    let answers = [
        (json!("not a value"), "silent"),
        (value("String", "no dictionary"), "silent"),
        (value("Dictionary", vec![json!({"key": value("Int", "1")})]), "silent"),
        (found(&[("name", value("String", long))]), "silent"),
        (found(&[("name", value("Int", "1")), ("symbol", value("String", "\u{202e}"))]), "partial"),
        (found(&[("name", value("Optional", Json::Null)), ("supply", value("UFix64", "1.0"))]), "partial"),
    ];
    for (answer, status) in answers {
        let node = answering(answer);
        let rows = ask(&*enricher(names::TOKEN_METADATA_WORKER, &node), &subject("Coin", "ft"));
        let token = &rows["tokens"][0];
        assert!(get("tokens", token, "name").is_null());
        assert_eq!(get("tokens", token, "status"), &Value::text(status));
        assert!(!rows.contains_key("search_index"));
    }
    let node = answering(json!("not a value"));
    ask(&*enricher(names::TOKEN_METADATA_WORKER, &node), &subject("Co\"in\n", "ft"));
    assert_eq!(
        node.asked.lock().unwrap()[0].1[1],
        CdcValue::String("Co\"in\n".into()),
        "any name is an argument"
    );
}

#[test]
fn of_a_script_that_failed_nothing_is_known_and_its_words_are_kept() {
    let item = Key(vec![
        Value::bytes(&account(9).0),
        Value::text("Cats"),
        Value::Amount(U256::from(7)),
        Value::bytes(&account(2).0),
    ]);
    let said =
        format!("[Error Code: 1101] cadence runtime error: panic: \u{202e}no\0 {}", "x".repeat(100_000));
    for (worker, key, tables) in [
        (names::TOKEN_METADATA_WORKER, subject("Coin", "ft"), ["token_contracts", "tokens"]),
        (names::TOKEN_METADATA_WORKER, subject("Cats", "nft"), ["token_contracts", "nft_collections"]),
        (names::NFT_METADATA_WORKER, item, ["nft_asks", "nft_asks"]),
    ] {
        let node = Arc::new(Node::default());
        *node.answer.lock().unwrap() = Some(Ok(ScriptAnswer::Failed(said.clone())));
        let enricher = enricher(worker, &node);
        let error = now(enricher.ask(&key, AT)).unwrap_err();
        assert_eq!(error.failure, AskFailure::Final, "it is not asked again");
        let rows = checked(&*enricher, enricher.given_up(&key, AT, &error.message));
        for table in tables {
            assert_eq!(get(table, &rows[table][0], "status"), &Value::text("failed"), "{table}");
        }
        let message = get(tables[0], &rows[tables[0]][0], "message").as_text().unwrap();
        assert!(message.starts_with("[Error Code: 1101] cadence runtime error: panic: no x"), "{message}");
        assert!(message.len() <= 1_000);
        assert!(!rows.contains_key("nft_metadata"), "what an earlier owner's said stays");
    }
}

/// A node of mainnet.
fn mainnet_enricher(name: &str, node: &Arc<Node>) -> Arc<dyn Enricher> {
    let network = Some(cairn_flow::Network::Mainnet);
    let settings = Settings { scripts: Some(node.clone()), network, ..flow::settings() };
    match flow_processors(&settings).into_iter().find(|processor| processor.service().name == name) {
        Some(Processor::Enricher(enricher)) => enricher,
        _ => panic!("{name}"),
    }
}

#[test]
fn no_script_is_sent_at_a_block_of_before_cadence_1() {
    let node = answering(found(&[]));
    let enricher = mainnet_enricher(names::TOKEN_METADATA_WORKER, &node);
    let error = now(enricher.ask(&subject("Coin", "ft"), AT)).unwrap_err();
    assert_eq!(error.failure, AskFailure::Transient, "it waits for a later block");
    assert!(error.message.contains("85981135"), "{}", error.message);
    assert!(node.asked.lock().unwrap().is_empty());
    let code = mainnet_enricher(names::CONTRACT_CODE_WORKER, &node);
    let key = Key(vec![Value::bytes(&account(9).0), Value::text("Gone"), Value::bytes(&[1; 32])]);
    assert!(matches!(now(code.ask(&key, AT)), Ok(Asked::Rows(_))), "accounts have no syntax");
}

#[test]
fn a_node_that_is_away_is_an_error_and_giving_up_is_a_row() {
    let node = Arc::new(Node::default());
    *node.answer.lock().unwrap() = Some(Err(AskError::transient("away")));
    let enricher = enricher(names::TOKEN_METADATA_WORKER, &node);
    assert!(now(enricher.ask(&subject("Coin", "ft"), AT)).unwrap_err().failure == AskFailure::Transient);
    let rows = checked(&*enricher, enricher.given_up(&subject("Coin", "nft"), AT, "no\0thing"));
    assert_eq!(get("token_contracts", &rows["token_contracts"][0], "status"), &Value::text("failed"));
    assert_eq!(get("token_contracts", &rows["token_contracts"][0], "message"), &Value::text("nothing"));
    // Neither a contract of Cadence nor one of the EVM side has such an address.
    let foreign = Key(vec![Value::bytes(&[1; 21]), Value::text(""), Value::text("ft")]);
    assert_eq!(now(enricher.ask(&foreign, AT)), Ok(Asked::Nothing));
}

#[test]
fn an_item_is_asked_where_it_lies() {
    let key = Key(vec![
        Value::bytes(&account(9).0),
        Value::text("Cats"),
        Value::Amount(U256::from(7)),
        Value::bytes(&account(2).0),
    ]);
    for (answer, status, uri) in [
        (
            found(&[("held", value("Bool", true)), ("uri", value("String", "ipfs://x\n"))]),
            "ok",
            Some("ipfs://x"),
        ),
        (found(&[("held", value("Bool", true))]), "silent", None),
        (found(&[]), "not-held", None),
    ] {
        let node = answering(answer);
        let rows = ask(&*enricher(names::NFT_METADATA_WORKER, &node), &key);
        assert_eq!(get("nft_asks", &rows["nft_asks"][0], "status"), &Value::text(status));
        match rows.get("nft_metadata") {
            Some(rows) => assert_eq!(get("nft_metadata", &rows[0], "token_uri").as_text(), uri),
            None => assert_eq!(status, "not-held", "what an earlier owner's said stays"),
        }
        let arguments = &node.asked.lock().unwrap()[0].1;
        assert_eq!(arguments[3], CdcValue::Address(account(2)));
    }
}

#[test]
fn code_is_kept_by_the_hash_that_events_name() {
    let code = b"access(all) contract Cats {}".to_vec();
    let hash = Sha3_256::digest(&code).to_vec();
    let key = |hash: &[u8], name: &str| {
        Key(vec![Value::bytes(&account(9).0), Value::text(name), Value::bytes(hash)])
    };
    let large = vec![b' '; MAX_CODE_BYTES + 1];
    let large_hash = Sha3_256::digest(&large).to_vec();
    let contracts = BTreeMap::from([("Cats".to_owned(), code.clone()), ("Large".to_owned(), large)]);
    let node = Arc::new(Node { contracts, ..Node::default() });
    let enricher = enricher(names::CONTRACT_CODE_WORKER, &node);
    for (key, status, of_contract, has_code) in [
        (key(&hash, "Cats"), "ok", "ok", true),
        (key(&[1; 32], "Cats"), "superseded", "ok", true),
        (key(&large_hash, "Large"), "too-large", "too-large", false),
        (key(&hash, "Gone"), "empty", "empty", false),
    ] {
        let rows = ask(&*enricher, &key);
        let version = &rows["contract_version_code"][0];
        assert_eq!(get("contract_version_code", version, "status"), &Value::text(status));
        let contract = &rows["contract_code_hashes"][0];
        assert_eq!(get("contract_code_hashes", contract, "status"), &Value::text(of_contract));
        let content = rows.get("contract_code").map(|rows| rows[0].clone());
        let want = Row(vec![Value::bytes(&hash), Value::bytes(&code)]);
        assert_eq!(content, has_code.then_some(want), "{status}");
    }
}

#[test]
fn what_is_wanted_is_what_rows_name() {
    let tables = map_all(&flow_block(
        5,
        &[with(vec![
            deposited(COIN, 7, Some(3), 30, 31),
            item_deposited(CATS, 1, Some(1)),
            item_withdrawn(CATS, 1, Some(1)),
            item_destroyed(support::flow::NFT, CATS, 1),
            contract_set("Added", 9, "Cats", [1; 32]),
            contract_set("Updated", 9, "Cats", [2; 32]),
            contract_set("Removed", 9, "Cats", [2; 32]),
        ])],
    ));
    let node = Arc::new(Node::default());
    let wanted = |name: &str| {
        let enricher = enricher(name, &node);
        let catalog = flow_catalog().unwrap();
        let known = catalog.table(enricher.known_in().name).unwrap();
        let mut wanted = Vec::new();
        for (at, def) in enricher.reads().iter().enumerate() {
            for row in tables.get(def.name).into_iter().flatten() {
                enricher.wanted(at, row, &mut wanted);
            }
        }
        for key in &wanted {
            assert_eq!(key.0.len(), known.key_columns().len());
            for (value, column) in key.0.iter().zip(known.key_columns()) {
                assert!(!value.is_null() && value.is_of(known.def().columns[*column].ty));
            }
        }
        wanted.sort();
        wanted.dedup();
        wanted
    };
    assert_eq!(wanted(names::TOKEN_METADATA_WORKER), [subject("Cats", "nft"), subject("Coin", "ft")]);
    assert_eq!(wanted(names::NFT_METADATA_WORKER).len(), 1, "who burns it doesn't have it");
    assert_eq!(wanted(names::CONTRACT_CODE_WORKER).len(), 2, "each code that it was given");
}
