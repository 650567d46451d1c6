//! Enrichers against nodes that say anything.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use alloy_primitives::{Address, U256, keccak256};
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Height};
use cairn_explorer::decode::evm::calls;
use cairn_explorer::names;
use cairn_explorer::processors::evm::contract_code::MAX_CODE_BYTES;
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_explorer::processors::evm::token_metadata::{search_term, search_terms};
use cairn_explorer::processors::{Settings, evm_catalog, evm_processors};
use cairn_pipeline::derive::processor::{AskError, AskFailure, Asked, Enricher, Processor};
use cairn_store::derived::{Key, Row, Value};

use crate::support;
use support::get;

const TOKEN: Address = Address::repeat_byte(0xcc);
const AT: BlockRef = BlockRef { height: Height(77), id: BlockId([1; 32]) };

/// A node that answers calls by the first bytes of their input.
#[derive(Default)]
struct Node {
    answers: BTreeMap<Vec<u8>, Vec<u8>>,
    code: Vec<u8>,
    is_away: bool,
    /// So many of the next calls are answered from a state in which there is nothing.
    emptied: AtomicUsize,
}

#[async_trait]
impl ContractNode for Node {
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<CallAnswer, AskError> {
        assert_eq!((to, at), (TOKEN, AT));
        if self.is_away {
            return Err(AskError::transient("away"));
        }
        if self.emptied.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Ok(CallAnswer::Returned(Bytes::new()));
        }
        let answer = self.answers.iter().find(|(start, _)| input.starts_with(start));
        Ok(answer.map_or(CallAnswer::Reverted, |(_, answer)| CallAnswer::Returned(answer.clone().into())))
    }

    async fn code(&self, _address: Address, _at: BlockRef) -> Result<Bytes, AskError> {
        Ok(self.code.clone().into())
    }
}

fn enricher(name: &str, node: Node) -> Arc<dyn Enricher> {
    let settings = Settings { node: Some(Arc::new(node)), ..Settings::default() };
    let all = evm_processors(&settings);
    match all.into_iter().find(|processor| processor.service().name == name) {
        Some(Processor::Enricher(enricher)) => enricher,
        _ => panic!("{name}"),
    }
}

/// Runs a future that never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// The rows that an enricher learnt, each checked.
fn ask(enricher: &dyn Enricher, key: &Key) -> BTreeMap<&'static str, Vec<Row>> {
    let Asked::Rows(rows) = now(enricher.ask(key, AT)).unwrap() else { panic!() };
    checked(enricher, rows)
}

fn checked(enricher: &dyn Enricher, rows: Vec<(&'static str, Row)>) -> BTreeMap<&'static str, Vec<Row>> {
    let catalog = evm_catalog().unwrap();
    let mut tables: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
    for (name, row) in rows {
        let table = catalog.table(name).unwrap();
        table.check(&row).unwrap();
        assert_eq!(table.def().service, enricher.service().name);
        tables.entry(name).or_default().push(row);
    }
    tables
}

fn string(text: &[u8]) -> Vec<u8> {
    let mut data = [U256::from(32), U256::from(text.len())].map(|n| n.to_be_bytes::<32>()).concat();
    data.extend(text);
    data
}

fn word(n: u64) -> Vec<u8> {
    U256::from(n).to_be_bytes::<32>().to_vec()
}

fn subject(family: &str) -> Key {
    Key(vec![Value::bytes(TOKEN.as_slice()), Value::text(""), Value::text(family)])
}

fn node(answers: &[([u8; 4], Vec<u8>)]) -> Node {
    let answers = answers.iter().map(|(selector, answer)| (selector.to_vec(), answer.clone())).collect();
    Node { answers, ..Node::default() }
}

#[test]
fn without_a_node_there_are_no_enrichers() {
    let all = evm_processors(&Settings::default());
    assert!(all.iter().all(|processor| !matches!(processor, Processor::Enricher(_))));
}

#[test]
fn a_token_says_what_it_is_and_is_found_by_it() {
    let node = node(&[
        (calls::NAME, string("USD  Coin\0\u{202e}".as_bytes())),
        (calls::SYMBOL, string(b"USDC")),
        (calls::DECIMALS, word(6)),
        (calls::TOTAL_SUPPLY, U256::MAX.to_be_bytes::<32>().to_vec()),
    ]);
    let enricher = enricher(names::TOKEN_METADATA_WORKER, node);
    let rows = ask(&*enricher, &subject("ft"));
    let token = &rows["tokens"][0];
    assert_eq!(get("tokens", token, "name"), &Value::text("USD Coin"));
    assert_eq!(get("tokens", token, "symbol"), &Value::text("USDC"));
    assert_eq!(get("tokens", token, "decimals"), &Value::Int(6));
    assert_eq!(get("tokens", token, "total_supply"), &Value::Amount(U256::MAX));
    assert_eq!(get("tokens", token, "status"), &Value::text("ok"));
    assert_eq!(get("tokens", token, "asked_at_height"), &Value::Int(77));
    let terms = support::column("search_index", &rows["search_index"], "term");
    assert_eq!(terms, ["\"coin\"", "\"usd coin\"", "\"usdc\""]);
    let known = &rows["token_contracts"][0];
    assert_eq!(evm_catalog().unwrap().table("token_contracts").unwrap().key_of(known), subject("ft"));
}

#[test]
fn what_is_not_shown_as_it_was_answered_is_kept() {
    let word = U256::MAX.to_be_bytes::<32>().to_vec();
    let node = node(&[
        (calls::NAME, string("US\u{200b}D".as_bytes())),
        (calls::SYMBOL, string(b"USD")),
        (calls::DECIMALS, word.clone()),
        (calls::TOTAL_SUPPLY, vec![7]),
    ]);
    let enricher = enricher(names::TOKEN_METADATA_WORKER, node);
    let rows = ask(&*enricher, &subject("ft"));
    let token = &rows["tokens"][0];
    assert_eq!(get("tokens", token, "name"), &Value::text("USD"));
    assert!(get("tokens", token, "decimals").is_null() && get("tokens", token, "total_supply").is_null());
    // Everything was answered, readable or not.
    assert_eq!(get("tokens", token, "status"), &Value::text("ok"));
    let [bytes] = &rows["token_answer_bytes"][..] else { panic!("one row") };
    let bytes = |column| get("token_answer_bytes", bytes, column).as_bytes().map(|bytes| bytes.to_vec());
    assert_eq!(bytes("name"), Some("US\u{200b}D".as_bytes().to_vec()));
    assert_eq!(bytes("symbol"), None);
    assert_eq!((bytes("decimals"), bytes("total_supply")), (Some(word), Some(vec![7])));

    let item = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text(""), Value::Amount(U256::from(10))]);
    for (answer, uri, status) in
        [(string(b"ipfs://a\0b"), Some("ipfs://ab"), "ok"), (vec![1, 2], None, "partial")]
    {
        let node = self::node(&[(calls::TOKEN_URI, answer.clone())]);
        let rows = ask(&*self::enricher(names::NFT_METADATA_WORKER, node), &item);
        assert_eq!(get("nft_metadata", &rows["nft_metadata"][0], "token_uri").as_text(), uri);
        assert_eq!(get("nft_metadata", &rows["nft_metadata"][0], "status"), &Value::text(status));
        let kept = get("nft_uri_bytes", &rows["nft_uri_bytes"][0], "token_uri").as_bytes().unwrap();
        assert!(answer.windows(kept.len()).any(|part| part == &kept[..]));
    }
}

#[test]
fn hostile_answers_are_no_names_and_found_by_none() {
    let hostile: [(Vec<u8>, &str); 5] = [
        (vec![0xff; 64], "partial"),
        (vec![1], "partial"),
        (vec![0; 200_000], "partial"),
        (vec![], "silent"),
        (string(&[0; 100]), "partial"),
    ];
    for (answer, status) in hostile {
        let answers = [calls::NAME, calls::SYMBOL, calls::DECIMALS].map(|call| (call, answer.clone()));
        let node = Node { code: vec![0x60], ..node(&answers) };
        let enricher = enricher(names::TOKEN_METADATA_WORKER, node);
        let rows = ask(&*enricher, &subject("ft"));
        let token = &rows["tokens"][0];
        assert!(get("tokens", token, "name").is_null());
        assert_eq!(get("tokens", token, "status"), &Value::text(status), "{} bytes", answer.len());
        assert!(!rows.contains_key("search_index"));
    }
}

/// What an enricher says isn't there.
fn absent(enricher: &dyn Enricher, key: &Key) -> BTreeMap<&'static str, Vec<Row>> {
    let Asked::Absent(rows) = now(enricher.ask(key, AT)).unwrap() else { panic!("it is there") };
    checked(enricher, rows)
}

#[test]
fn e03_who_returns_nothing_is_silent_where_there_is_code_and_else_not_there() {
    let item = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text(""), Value::Amount(U256::from(10))]);
    for (worker, key, tables) in [
        (names::TOKEN_METADATA_WORKER, subject("ft"), vec!["token_contracts", "tokens"]),
        (names::TOKEN_METADATA_WORKER, subject("nft"), vec!["nft_collections", "token_contracts"]),
        (names::NFT_METADATA_WORKER, item, vec!["nft_metadata"]),
    ] {
        let nothing = |code: &[u8]| Node {
            emptied: AtomicUsize::new(usize::MAX),
            code: code.to_vec(),
            ..Node::default()
        };
        for (rows, status) in [
            (ask(&*enricher(worker, nothing(&[0x60])), &key), "silent"),
            (absent(&*enricher(worker, nothing(&[])), &key), "no-code"),
        ] {
            assert_eq!(rows.keys().copied().collect::<Vec<_>>(), tables);
            for (table, rows) in rows {
                assert_eq!(get(table, &rows[0], "status"), &Value::text(status), "{table}");
            }
        }
        // Who refuses a call is there.
        let rows = ask(&*enricher(worker, Node::default()), &key);
        assert!(rows.iter().all(|(table, rows)| get(table, &rows[0], "status") == &Value::text("silent")));
    }
    let key = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text("")]);
    let rows = absent(&*enricher(names::CONTRACT_CODE_WORKER, Node::default()), &key);
    assert_eq!(
        get("contract_code_hashes", &rows["contract_code_hashes"][0], "status"),
        &Value::text("empty")
    );
}

#[test]
fn e03_a_call_that_another_state_answered_is_made_again() {
    let answers = [(calls::NAME, string(b"Cats")), (calls::TOKEN_URI, string(b"ipfs://cat"))];
    let node = |emptied| Node { code: vec![0x60], emptied: AtomicUsize::new(emptied), ..node(&answers) };
    let rows = ask(&*enricher(names::TOKEN_METADATA_WORKER, node(1)), &subject("ft"));
    assert_eq!(get("tokens", &rows["tokens"][0], "name"), &Value::text("Cats"));
    assert_eq!(get("tokens", &rows["tokens"][0], "status"), &Value::text("partial"));
    let item = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text(""), Value::Amount(U256::from(10))]);
    let rows = ask(&*enricher(names::NFT_METADATA_WORKER, node(1)), &item);
    assert_eq!(get("nft_metadata", &rows["nft_metadata"][0], "status"), &Value::text("ok"));
}

#[test]
fn collections_say_their_standard() {
    for (interface, standard, status) in [
        (calls::INTERFACE_ERC721, "\"erc721\"", "\"partial\""),
        (calls::INTERFACE_ERC1155, "\"erc1155\"", "\"ok\""),
        ([1, 2, 3, 4], "null", "\"partial\""),
    ] {
        let mut node = node(&[(calls::NAME, string(b"Cats"))]);
        node.answers.insert(calls::supports_interface(interface), word(1));
        let rows = ask(&*enricher(names::TOKEN_METADATA_WORKER, node), &subject("nft"));
        let rows = &rows["nft_collections"];
        assert_eq!(support::column("nft_collections", rows, "standard"), [standard]);
        assert_eq!(support::column("nft_collections", rows, "status"), [status]);
    }
}

#[test]
fn a_node_that_is_away_is_an_error_and_giving_up_is_a_row() {
    let enricher = enricher(names::TOKEN_METADATA_WORKER, Node { is_away: true, ..Node::default() });
    assert!(now(enricher.ask(&subject("ft"), AT)).unwrap_err().failure == AskFailure::Transient);
    let rows = checked(&*enricher, enricher.given_up(&subject("nft"), AT, "no\0thing"));
    assert_eq!(get("token_contracts", &rows["token_contracts"][0], "status"), &Value::text("failed"));
    assert_eq!(get("token_contracts", &rows["token_contracts"][0], "message"), &Value::text("nothing"));
    assert_eq!(get("nft_collections", &rows["nft_collections"][0], "status"), &Value::text("failed"));
}

#[test]
fn an_item_has_the_uri_of_its_standard() {
    let id = Value::Amount(U256::from(10));
    let key = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text(""), id]);
    let template = string(b"ipfs://x/{id}.json");
    let filled = format!("ipfs://x/{}a.json", "0".repeat(63));
    for (selector, answer, uri) in [
        (calls::TOKEN_URI, string(b"ipfs://x/1\n2"), Some("ipfs://x/1 2")),
        (calls::URI, template, Some(filled.as_str())),
        (calls::NAME, vec![], None),
    ] {
        let enricher = enricher(names::NFT_METADATA_WORKER, node(&[(selector, answer)]));
        let rows = ask(&*enricher, &key);
        let row = &rows["nft_metadata"][0];
        assert_eq!(get("nft_metadata", row, "token_uri").as_text(), uri);
        let status = if uri.is_some() { "ok" } else { "silent" };
        assert_eq!(get("nft_metadata", row, "status"), &Value::text(status));
    }
}

#[test]
fn code_is_kept_by_its_hash() {
    let key = Key(vec![Value::bytes(TOKEN.as_slice()), Value::text("")]);
    for (code, status) in
        [(vec![0x60, 1], "ok"), (vec![], "empty"), (vec![0; MAX_CODE_BYTES + 1], "too-large")]
    {
        let enricher = enricher(names::CONTRACT_CODE_WORKER, Node { code: code.clone(), ..Node::default() });
        let rows = if code.is_empty() { absent(&*enricher, &key) } else { ask(&*enricher, &key) };
        let row = &rows["contract_code_hashes"][0];
        assert_eq!(get("contract_code_hashes", row, "status"), &Value::text(status));
        assert_eq!(get("contract_code_hashes", row, "code_length_bytes"), &Value::Int(code.len() as i64));
        let hash = Value::bytes(keccak256(&code).as_slice());
        assert_eq!(
            get("contract_code_hashes", row, "code_hash"),
            if code.is_empty() { &Value::Null } else { &hash }
        );
        let content = rows.get("contract_code").map(|rows| rows[0].clone());
        assert_eq!(content, (status == "ok").then(|| Row(vec![hash, Value::bytes(&code)])));
    }
}

#[test]
fn what_is_wanted_is_what_rows_name() {
    use support::{Log, Tx, block, map_all, with_logs};
    let word = |n: u64| alloy_primitives::B256::from(U256::from(n));
    use cairn_explorer::decode::evm::transfers::{TRANSFER, TRANSFER_SINGLE};
    let nft = |from: u64, to: u64| Log {
        address: TOKEN,
        topics: vec![TRANSFER, word(from), word(to), word(7)],
        data: vec![],
    };
    // Of items that many hold; anybody may send nothing of any id, so that names no item (E27).
    let some_of = |id: u64, amount: u64| Log {
        address: TOKEN,
        topics: vec![TRANSFER_SINGLE, word(0), word(1), word(2)],
        data: [word(id), word(amount)].concat(),
    };
    let create = Tx { to: None, contract: Some(TOKEN), ..Tx::default() };
    let logs = vec![nft(0, 1), nft(1, 0), some_of(8, 0), some_of(9, 2)];
    let tables = map_all(&Settings::default(), &block(7, 1, &[with_logs(logs), create]));
    let wanted = |name: &str| {
        let enricher = enricher(name, Node::default());
        let catalog = evm_catalog().unwrap();
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
    assert_eq!(wanted(names::TOKEN_METADATA_WORKER), [subject("nft")]);
    let token = || Value::bytes(TOKEN.as_slice());
    let item = |id: u64| Key(vec![token(), Value::text(""), Value::Amount(U256::from(id))]);
    assert_eq!(wanted(names::NFT_METADATA_WORKER), [item(7), item(9)]);
    assert_eq!(wanted(names::CONTRACT_CODE_WORKER), [Key(vec![token(), Value::text("")])]);
}

#[test]
fn terms_are_bounded_and_found_as_they_are_typed() {
    let long = vec!["Word"; 1000].join(" ");
    let terms = search_terms(Some(&long), Some("İ"));
    assert!(terms.len() <= 8 && terms.iter().all(|term| term.len() <= 256));
    assert_eq!(search_term("  USD\tCOIN "), "usd coin");
    assert!(search_terms(Some("Wrapped Ether"), None).contains(&search_term("ETHER")));
    assert!(search_terms(None, Some("")).is_empty());
}
