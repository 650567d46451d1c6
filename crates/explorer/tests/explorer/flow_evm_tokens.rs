//! Tokens of Flow's EVM side: read by the decoders of EVM chains, into the tables that both sides share.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use alloy_primitives::{Address, B256, U256, keccak256};
use async_trait::async_trait;
use cairn_core::{BlockId, BlockRef, Height, StoredBlock};
use cairn_explorer::decode::evm::calls;
use cairn_explorer::decode::evm::transfers::{
    CONSECUTIVE_TRANSFER, DEPOSIT, MAX_BLOCK_CONSECUTIVE_IDS, TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE,
};
use cairn_explorer::decode::evm::wrapped::WrappedTokens;
use cairn_explorer::names;
use cairn_explorer::processors::flow::node::{ScriptAnswer, ScriptNode};
use cairn_explorer::processors::{Settings, flow_catalog, flow_processors};
use cairn_flow::cdc::CdcValue;
use cairn_flow::proto::Account;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor};
use cairn_store::derived::Value;
use serde_json::{Value as Json, json};

use crate::support;
use support::flow::*;
use support::{Tables, map_by};

type Log = (Address, Vec<B256>, Vec<u8>);

const TOKEN: Address = Address::repeat_byte(0xc0);
const ITEMS: Address = Address::repeat_byte(0xc1);
const MANY: Address = Address::repeat_byte(0xc2);

fn word(n: u64) -> B256 {
    U256::from(n).into()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|n| word(*n).0).collect()
}

fn who(n: u8) -> B256 {
    Address::repeat_byte(n).into_word()
}

fn coins(from: u8, to: u8, amount: u64) -> Log {
    (TOKEN, vec![TRANSFER, who(from), who(to)], words(&[amount]))
}

fn item(from: u8, to: u8, id: u64) -> Log {
    (ITEMS, vec![TRANSFER, who(from), who(to), word(id)], Vec::new())
}

fn some(from: u8, to: u8, id: u64, amount: u64) -> Log {
    (MANY, vec![TRANSFER_SINGLE, who(9), who(from), who(to)], words(&[id, amount]))
}

fn batch(from: u8, to: u8) -> Log {
    (MANY, vec![TRANSFER_BATCH, who(9), who(from), who(to)], words(&[64, 160, 2, 7, 8, 2, 3, 4]))
}

fn executed(index: u16, logs: &[Log]) -> (String, String) {
    evm_executed(8, index, &Direct::call(index.into()), logs, 0)
}

fn shown(address: u8) -> String {
    hex::encode(Address::repeat_byte(address))
}

/// The column of a table of a mapper's, in the order of its key.
fn of(tables: &Tables, table: &'static str, name: &str) -> Vec<String> {
    let catalog = flow_catalog().unwrap();
    let table_of = catalog.table(table).unwrap();
    let mut rows = tables.get(table).cloned().unwrap_or_default();
    rows.sort_by_key(|row| table_of.key_of(row));
    column(table, &rows, name)
}

#[test]
fn token_events_of_the_evm_side_are_transfers_at_their_place_in_the_flow_transaction() {
    let events = vec![
        old(COIN, "TokensWithdrawn", 5, Some(("from", Some(1)))),
        old(COIN, "TokensDeposited", 5, Some(("to", Some(2)))),
        executed(0, &[item(0, 1, 7), coins(0, 1, 100), batch(0, 1), coins(1, 2, 40)]),
        executed(1, &[coins(2, 0, 1)]),
    ];
    let block = flow_block(5, &[with(vec![]), with(events), system(vec![evm_closed(8, 2)])]);
    let tables = map_all(&block);
    let ft = |name| of(&tables, "ft_transfers", name);
    assert_eq!(ft("event_index"), ["1", "2", "2", "3"]);
    // Counted through the EVM transaction, so that each movement has a place of its own.
    assert_eq!(ft("sub_index"), ["0", "1", "4", "0"]);
    assert_eq!(ft("kind"), ["cadence-ft", "erc20", "erc20", "erc20"]);
    assert_eq!(ft("transaction_index"), ["1"; 4]);
    assert_eq!(ft("token_contract_address")[1..], vec![hex::encode(TOKEN); 3]);
    assert_eq!(ft("contract_name"), ["Coin", "", "", ""]);
    assert_eq!(ft("from_address")[1..], [shown(0), shown(1), shown(2)]);
    assert_eq!(ft("to_address")[1..], [shown(1), shown(2), shown(0)]);
    assert_eq!(ft("amount"), ["5", "100", "40", "1"]);
    assert_eq!(ft("is_mint"), ["false", "true", "false", "false"]);
    assert_eq!(ft("is_burn"), ["false", "false", "false", "true"]);
    let nft = |name| of(&tables, "nft_transfers", name);
    assert_eq!(nft("event_index"), ["2"; 3]);
    assert_eq!(nft("sub_index"), ["0", "2", "3"]);
    assert_eq!(nft("kind"), ["erc721", "erc1155", "erc1155"]);
    assert_eq!(nft("token_id"), ["7", "7", "8"]);
    assert_eq!(nft("amount"), ["1", "3", "4"]);
    // They stand under the Flow transaction's id, as the others do.
    let ids = of(&tables, "ft_transfers", "transaction_id");
    assert!(ids.iter().chain(&of(&tables, "nft_transfers", "transaction_id")).all(|id| *id == ids[0]));

    // What else is made of them: parties, touched contracts, counts, tags.
    let parties = tables["address_transactions"].iter().filter(|row| {
        get("address_transactions", row, "is_transfer_party").as_bool().unwrap()
            && get("address_transactions", row, "address").as_bytes().unwrap().len() == 20
    });
    let parties: Vec<_> = parties.cloned().collect();
    let mut parties = column("address_transactions", &parties, "address");
    parties.sort();
    assert_eq!(parties, [shown(1), shown(2)], "never the zero address (E27)");
    let contracts = of(&tables, "tx_contracts", "contract_address");
    let tags = of(&tables, "tx_contracts", "tags");
    let tags_of = |contract: Address| {
        contracts
            .iter()
            .zip(&tags)
            .find(|(of, _)| **of == hex::encode(contract))
            .map(|(_, tags)| tags.as_str())
    };
    assert_eq!(
        [tags_of(TOKEN), tags_of(ITEMS), tags_of(MANY)],
        [Some("log,ft"), Some("log,nft"), Some("log,nft")]
    );
    assert_eq!(tags_of(Address::repeat_byte(0xbb)), Some("call"), "whom the EVM transactions call");
    assert_eq!(of(&tables, "tx_metrics", "ft_transfer_count").iter().filter(|n| *n == "4").count(), 1);
    assert_eq!(of(&tables, "tx_metrics", "nft_transfer_count").iter().filter(|n| *n == "3").count(), 1);
    let kinds = of(&tables, "tx_tags", "tag");
    assert!(kinds.contains(&"ft".to_owned()) && kinds.contains(&"nft".to_owned()));
}

/// A node whose scripts call one contract: it is a token with a name and, as a collection, has no URI of its items.
struct Node;

#[async_trait]
impl ScriptNode for Node {
    async fn execute(
        &self,
        script: &str,
        arguments: Vec<Vec<u8>>,
        _: BlockRef,
    ) -> Result<ScriptAnswer, AskError> {
        let argument = |at: usize| match CdcValue::parse(&arguments[at]).unwrap() {
            CdcValue::String(text) => hex::decode(text).unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(script.starts_with("import EVM from 0xf8d6e0586b0a20c7\n"), "{script}");
        let entry = |name: &str, of: Json| json!({"key": value("String", name), "value": of});
        let found = if script.contains("EVM.dryCall(") {
            let returned = match argument(1)[..4].try_into().unwrap() {
                calls::NAME => Some(abi_text("US\u{200b}D")),
                calls::DECIMALS => Some(U256::MAX.to_be_bytes_vec()),
                // What has no code returns nothing.
                _ if argument(0) == ITEMS.as_slice() => Some(Vec::new()),
                _ => None,
            };
            let data = value("String", hex::encode(returned.clone().unwrap_or_default()));
            vec![entry("successful", value("Bool", returned.is_some())), entry("data", data)]
        } else {
            vec![entry("code", value("String", ""))]
        };
        Ok(ScriptAnswer::Returned(value("Dictionary", found).to_string().into()))
    }

    async fn account(&self, _: FlowAddress, _: BlockRef) -> Result<Option<Account>, AskError> {
        Err(AskError::transient("nobody asks"))
    }
}

fn abi_text(text: &str) -> Vec<u8> {
    [words(&[32, text.len() as u64]), text.as_bytes().to_vec()].concat()
}

fn enricher(name: &str) -> Arc<dyn Enricher> {
    let settings = Settings { scripts: Some(Arc::new(Node)), ..settings() };
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

#[test]
fn contracts_of_the_evm_side_are_asked_by_scripts_what_those_of_evm_chains_are() {
    let at = BlockRef { height: Height(77), id: BlockId([1; 32]) };
    let tables = map_all(&flow_block(
        5,
        &[with(vec![executed(0, &[coins(0, 1, 100), item(0, 1, 7), item(1, 0, 8)])])],
    ));
    let wanted = |enricher: &dyn Enricher| {
        let mut wanted = Vec::new();
        for (at, def) in enricher.reads().iter().enumerate() {
            for row in tables.get(def.name).into_iter().flatten() {
                enricher.wanted(at, row, &mut wanted);
            }
        }
        wanted.sort();
        wanted.dedup();
        wanted
    };
    let rows_of = |asked: Asked| match asked {
        Asked::Rows(rows) | Asked::Absent(rows) => rows,
        Asked::Nothing => panic!("it was asked"),
    };
    let catalog = flow_catalog().unwrap();
    let names = enricher(names::TOKEN_METADATA_WORKER);
    let keys = wanted(&*names);
    assert_eq!(keys.len(), 2, "a token and a collection: {keys:?}");
    let rows = rows_of(now(names.ask(&keys[0], at)).unwrap());
    rows.iter().for_each(|(table, row)| catalog.table(table).unwrap().check(row).unwrap());
    let of = |wanted: &str| rows.iter().find(|(table, _)| *table == wanted).map(|(_, row)| row).unwrap();
    assert_eq!(get("tokens", of("tokens"), "name"), &Value::text("USD"));
    assert!(get("tokens", of("tokens"), "decimals").is_null());
    assert_eq!(
        get("tokens", of("tokens"), "status"),
        &Value::text("partial"),
        "it has neither symbol nor supply"
    );
    let bytes = of("token_answer_bytes");
    assert_eq!(get("token_answer_bytes", bytes, "decimals"), &Value::bytes(&[0xff; 32]));

    let uris = enricher(names::NFT_METADATA_WORKER);
    let keys = wanted(&*uris);
    assert_eq!(keys.len(), 1, "one item, whoever has it; of what is burnt nobody asks: {keys:?}");
    assert!(matches!(now(uris.ask(&keys[0], at)).unwrap(), Asked::Absent(_)), "it has no code");
    let rows = rows_of(now(uris.ask(&keys[0], at)).unwrap());
    rows.iter().for_each(|(table, row)| catalog.table(table).unwrap().check(row).unwrap());
    let tables: Vec<&str> = rows.iter().map(|(table, _)| *table).collect();
    assert_eq!(tables, ["nft_metadata", "nft_asks"]);
    assert!(rows.iter().all(|(table, row)| get(table, row, "status") == &Value::text("no-code")));
    let known = catalog.table("nft_asks").unwrap();
    assert_eq!(known.key_of(&rows[1].1), keys[0], "it isn't asked again");
}

#[test]
fn a_contract_that_an_evm_transaction_created_is_known() {
    let created = Address::repeat_byte(0xdd);
    let deploy = Direct { sub_type: 4, to: Address::ZERO, input: vec![0x60, 0x80], ..Direct::call(3) };
    let with_address = |error| {
        let (name, payload) = evm_executed(8, 0, &deploy, &[], error);
        let none = "\"name\":\"contractAddress\",\"value\":{\"type\":\"String\",\"value\":\"\"";
        assert!(payload.contains(none));
        let there = none.replace("\"value\":\"\"", &format!("\"value\":\"{created}\""));
        (name, payload.replace(none, &there))
    };
    let tables = map_all(&flow_block(5, &[with(vec![with_address(0)]), system(vec![evm_closed(8, 1)])]));
    let column = |name| of(&tables, "smart_contracts", name);
    assert_eq!(column("address"), [hex::encode(created)]);
    assert_eq!(column("contract_name"), [""]);
    assert_eq!(column("creator_address"), [shown(0xaa)]);
    assert_eq!(column("init_code_hash"), [hex::encode(keccak256([0x60, 0x80]))]);
    assert_eq!([column("is_internal"), column("is_confirmed")], [["false"], ["true"]]);
    // One that failed made none (E09).
    let tables = map_all(&flow_block(5, &[with(vec![with_address(306)]), system(vec![evm_closed(8, 1)])]));
    assert!(!tables.contains_key("smart_contracts"));
}

#[test]
fn balances_and_items_of_both_sides_are_folded_side_by_side() {
    let block = |height: u64, logs: &[Log]| -> StoredBlock {
        let cats = vec![
            item_withdrawn(CATS, height, None),
            item_deposited(CATS, height, Some(1)),
            evm_executed(height, 0, &Direct::call(height), logs, 0),
        ];
        flow_block(height, &[with(cats), system(vec![evm_closed(height, 1)])])
    };
    let blocks = [
        block(5, &[coins(0, 1, 100), item(0, 1, 7), some(0, 1, 9, 10), some(0, 2, 8, 0)]),
        block(6, &[coins(1, 2, 30), coins(3, 2, 4), item(1, 2, 7), some(1, 2, 9, 4)]),
        block(7, &[coins(2, 0, 5), item(2, 0, 7), some(2, 0, 9, 4)]),
    ];
    let state = folded(names::FT_HOLDINGS_WORKER, &blocks, 2);
    let rows = state.table("ft_holdings");
    let evm: Vec<_> = rows
        .iter()
        .filter(|row| get("ft_holdings", row, "contract_name").as_text() == Some(""))
        .cloned()
        .collect();
    assert_eq!(column("ft_holdings", &evm, "address"), [shown(1), shown(2), shown(3)]);
    assert_eq!(column("ft_holdings", &evm, "balance"), ["70", "29", "-4"]);
    assert_eq!(column("ft_holdings", &evm, "is_held"), ["true"; 3], "what is owed is shown too");
    let stats = state.table("token_stats");
    let at = column("token_stats", &stats, "contract_address")
        .iter()
        .position(|of| *of == hex::encode(TOKEN))
        .unwrap();
    let of_token = |name| column("token_stats", &stats, name)[at].clone();
    assert_eq!(
        [of_token("net_minted"), of_token("holder_count"), of_token("transfer_count")],
        ["95", "2", "4"]
    );

    let state = folded(names::NFT_OWNERSHIP_WORKER, &blocks, 2);
    let items = state.table("nft_ownership");
    let of_kind = |kind: &str| -> Vec<_> {
        items
            .iter()
            .filter(|row| get("nft_ownership", row, "kind").as_text() == Some(kind))
            .cloned()
            .collect()
    };
    assert_eq!(column("nft_ownership", &of_kind("cadence-nft"), "nft_id"), ["5", "6", "7"]);
    let single = of_kind("erc721");
    assert_eq!(column("nft_ownership", &single, "owner"), ["null"]);
    assert_eq!(column("nft_ownership", &single, "is_burned"), ["true"]);
    let many = of_kind("erc1155");
    assert_eq!(column("nft_ownership", &many, "nft_id"), ["9"], "nothing of 8 ever moved (E27)");
    assert_eq!(column("nft_ownership", &many, "net_minted"), ["6"]);
    assert_eq!(column("nft_ownership", &many, "is_burned"), ["false"]);
    let collections = state.table("nft_collection_stats");
    let names = column("nft_collection_stats", &collections, "contract_address");
    let counts = |contract: Address| {
        let at = names.iter().position(|of| *of == hex::encode(contract)).unwrap();
        ["item_count", "owner_count", "transfer_count"]
            .map(|name| column("nft_collection_stats", &collections, name)[at].clone())
    };
    assert_eq!(counts(ITEMS), ["0", "0", "3"]);
    assert_eq!(counts(MANY), ["1", "1", "4"]);
}

#[test]
fn e24_a_malformed_token_event_is_reported_and_the_rest_is_derived() {
    let short = (TOKEN, vec![TRANSFER, who(1), who(2)], vec![1, 2, 3]);
    let block =
        flow_block(5, &[with(vec![executed(0, &[short, coins(1, 2, 3)])]), system(vec![evm_closed(8, 1)])]);
    let (tables, malformed) = map(names::TOKEN_WORKER, &block);
    assert_eq!(told(&tables, "ft_transfers", "amount"), ["3"]);
    let [fault] = &malformed[..] else { panic!("{malformed:?}") };
    assert_eq!((fault.event_index, fault.labels.reason), (Some(0), "short-data"));
    assert_eq!(fault.labels.contract, TOKEN.to_string().to_lowercase());
}

#[test]
fn e25_wrapped_flow_counts_where_it_is_known() {
    let deposit = (TOKEN, vec![DEPOSIT, who(1)], words(&[50]));
    let block = flow_block(5, &[with(vec![executed(0, &[deposit])]), system(vec![evm_closed(8, 1)])]);
    for (wrapped, amounts) in
        [(WrappedTokens::Listed([TOKEN].into()), vec!["50"]), (WrappedTokens::Off, vec![])]
    {
        let settings = Settings { wrapped, network: Some(Network::Emulator), ..Settings::default() };
        let catalog = flow_catalog().unwrap();
        let (tables, _) = map_by(&flow_processors(&settings), &catalog, names::TOKEN_WORKER, &block);
        assert_eq!(told(&tables, "ft_transfers", "amount"), amounts);
    }
}

#[test]
fn ranges_of_ids_of_one_flow_block_are_bounded_over_all_its_transactions() {
    let range = |first: u64| {
        let topics = vec![CONSECUTIVE_TRANSFER, word(first), who(0), who(1)];
        (ITEMS, topics, words(&[first + 9_999]))
    };
    let txs: Vec<FlowTx> =
        (0..6u16).map(|index| with(vec![executed(index, &[range(u64::from(index) * 10_000)])])).collect();
    let (tables, malformed) = map(names::TOKEN_WORKER, &flow_block(5, &txs));
    assert_eq!(tables["nft_transfers"].len(), MAX_BLOCK_CONSECUTIVE_IDS as usize);
    assert_eq!(malformed.len(), 1);
    assert_eq!(malformed[0].labels.reason, "range-too-long");
}
