//! Real blocks of awkward chains: each is built from its node's answers, checked with the relaxations that `docs/reference/chains.md` names for its
//! chain, and served back without a difference.
#![allow(clippy::type_complexity, reason = "tables of cases")]

use std::path::{Path, PathBuf};

use cairn_evm::{BlockView, ChainProfile, Checks, DecodedBlock, LogFilter, check_block, from_rpc, json};
use serde_json::{Map, Value};

/// A chain's folder, what is relaxed for it, and what its blocks are marked with beside that.
const CHAINS: [(&str, &str, &[(&str, &str)]); 8] = [
    ("ethereum", "", &[]),
    ("polygon", "extra-receipts", &[]),
    ("arbitrum", "", &[]),
    ("hyperliquid", "extra-receipts", &[]),
    (
        "cronos",
        "header-hash,transactions-root,receipts-root,bloom,missing-receipts",
        &[("6541", "missing-receipts"), ("11446765", "positions")],
    ),
    (
        "stable-testnet",
        "header-hash",
        &[("42767022", "positions"), ("59083166", "transactions-root,unknown-tx-type,unsigned-tx")],
    ),
    ("tempo-mainnet", "header-hash", &[("17708868", "transactions-root,unknown-tx-type,unsigned-tx")]),
    ("tempoModerato", "header-hash", &[("6541", "unsigned-tx")]),
];

fn shared(name: &str, origin: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let folder = shared.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", folder.display());
    println!("not run: {} is not there; {origin}", folder.display());
    None
}

/// The result in a file, which may be a whole answer.
fn result(path: &Path) -> Value {
    let mut answer = json::parse(&std::fs::read(path).unwrap()).unwrap();
    match answer.get_mut("result") {
        Some(result) => result.take(),
        None => answer,
    }
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.is_dir());
    found.sort();
    found
}

#[test]
fn real_blocks_are_archived_and_served_back_without_a_difference() {
    let origin = "its blocks are from evm/evm-rpc/test/fixtures of github.com/subsquid/squid-sdk";
    let Some(fixtures) = shared("fixtures/evm-real", origin) else { return };
    let mut wrong = Vec::new();
    for chain in folders(&fixtures) {
        let name = chain.file_name().unwrap().to_str().unwrap().to_owned();
        let (_, relaxed, marks) = CHAINS.iter().find(|(chain, ..)| *chain == name).expect(&name);
        let profile = ChainProfile::relaxing(ChainProfile::parse_relaxations(relaxed).unwrap());
        for folder in folders(&chain) {
            let height = folder.file_name().unwrap().to_str().unwrap();
            let mark = marks.iter().find(|(at, _)| *at == height).map_or("", |(_, mark)| mark);
            if let Err(error) = one(&folder, profile, mark) {
                wrong.push(format!("{name}/{height}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of each example of the codec's kinds: what is relaxed beside its own arguments, and the marks of its last block.
const ODD_NODES: [(&str, &str, &str); 10] = [
    ("01-log-index-per-transaction", "", "positions"),
    ("03-injected-transaction-log-index-from-0", "", "positions"),
    ("09-transaction-without-receipt", "missing-receipts", ""),
    ("12-unsigned-system-transaction", "", "unsigned-tx"),
    ("14-legacy-transaction-v-0", "", ""),
    ("16-injected-transaction-first", "", ""),
    ("17-empty-withdrawals-before-shanghai", "", ""),
    ("18-json-number-beyond-2-64", "", ""),
    ("25-transactions-null", "", ""),
    ("26-log-data-empty-text", "", ""),
];

#[test]
fn the_odd_but_honest_nodes_examples_are_archived_and_served_back() {
    let Some(folder) = shared("cases/odd-nodes", "the examples are the project's own") else { return };
    for (name, relaxed, marks) in ODD_NODES {
        let example = json::parse(&std::fs::read(folder.join(format!("{name}.json"))).unwrap()).unwrap();
        let mut names = vec![relaxed.to_owned()];
        for arg in example["args"].as_array().unwrap() {
            match arg.as_str().unwrap() {
                "--relax" => {}
                "--extra-receipts" => names.push("extra-receipts".into()),
                checks => names.push(checks.into()),
            }
        }
        let profile = ChainProfile::relaxing(ChainProfile::parse_relaxations(&names.join(",")).unwrap());
        let blocks = example["blocks"].as_array().unwrap();
        for (at, block) in blocks.iter().enumerate() {
            let receipts = block["receipts"].as_array().unwrap();
            // The marks are those of the last block; what the others are marked with is compared elsewhere.
            let is_last = at + 1 == blocks.len();
            let marks = if is_last { Some(marks) } else { None };
            served_back(&block["block"], receipts, profile, marks)
                .unwrap_or_else(|error| panic!("{name}, block {at}: {error}"));
        }
    }
}

fn one(folder: &Path, profile: ChainProfile, marks: &str) -> Result<(), String> {
    let block = result(&folder.join("block.json"));
    let Value::Array(mut receipts) = result(&folder.join("receipts.json")) else { panic!("a list") };
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().ends_with("-receipt.json") {
            receipts.push(result(&path));
        }
    }
    served_back(&block, &receipts, profile, Some(marks))
}

/// Builds a block, checks it, and compares what is served with what was given.
fn served_back(
    block: &Value,
    receipts: &[Value],
    profile: ChainProfile,
    marks: Option<&str>,
) -> Result<(), String> {
    let mut raw = from_rpc(block.clone(), receipts.to_vec(), &profile).map_err(|e| e.to_string())?;
    let unverified = check_block(&raw, &profile).map_err(|e| e.to_string())?;
    let beside =
        (unverified - (profile.relaxed - Checks::MISSING_RECEIPTS)).names().collect::<Vec<_>>().join(",");
    if marks.is_some_and(|marks| beside != marks) {
        return Err(format!("marked {beside:?}, expected {marks:?}"));
    }
    raw.facts.unverified = unverified.bits();

    let view = BlockView::decode((&raw).into(), None).map_err(|e| e.to_string())?;
    let served = view.block_json(true).map_err(|e| e.to_string())?;
    compare("block", block, &served)?;
    let transactions = block["transactions"].as_array().map_or(&[][..], |list| list);
    let mut logs = Vec::new();
    for (index, tx) in transactions.iter().enumerate() {
        let given = receipts.iter().find(|receipt| receipt["transactionHash"] == tx["hash"]);
        let served = view.receipt_json(index).map_err(|e| e.to_string())?;
        match (given, served) {
            (Some(given), Some(served)) => {
                compare(&format!("receipt {index}"), given, &served)?;
                logs.extend(served["logs"].as_array().unwrap().clone());
            }
            (None, None) => {
                let error = view.receipts_json().unwrap_err().to_string();
                assert!(error.contains(tx["hash"].as_str().unwrap()), "{error}");
                assert!(view.logs(&LogFilter::default(), false).is_err());
            }
            (given, served) => return Err(format!("receipt {index}: {given:?}, served {served:?}")),
        }
    }
    let whole = view.receipts_json().is_ok();
    if whole {
        let found = view.logs(&LogFilter::default(), false).map_err(|e| e.to_string())?;
        let found: Vec<Value> = found.iter().map(|log| serde_json::from_str(log.get()).unwrap()).collect();
        assert_eq!(found, logs, "eth_getLogs and the receipts");
        let positions: Vec<String> =
            logs.iter().map(|log| log["logIndex"].as_str().unwrap().into()).collect();
        let counted: Vec<String> = (0..logs.len()).map(|index| format!("{index:#x}")).collect();
        assert_eq!(positions, counted, "positions are counted across the block");
    }
    let decoded = DecodedBlock::decode(&(&raw).into()).map_err(|e| e.to_string())?;
    assert_eq!(decoded.transactions.iter().any(|tx| tx.receipt.is_missing), !whole);
    Ok(())
}

/// What is served where a node doesn't give it: see the module `rpc_block`.
const FILLED_IN: [&str; 3] = ["blockTimestamp", "effectiveGasPrice", "removed"];

/// What the node gave is served, and nothing else but what is filled in. Where the node counts logs otherwise, its number is served beside ours.
fn compare(place: &str, given: &Value, served: &Value) -> Result<(), String> {
    match (given, served) {
        (Value::Object(given), Value::Object(served)) => objects(place, given, served),
        (Value::Array(given), Value::Array(served)) if given.len() == served.len() => given
            .iter()
            .zip(served)
            .enumerate()
            .try_for_each(|(at, (given, served))| compare(&format!("{place}[{at}]"), given, served)),
        _ if given == served => Ok(()),
        // Lists of nothing, and what says that a transaction creates a contract, are served in one form.
        (Value::Null, Value::Array(served)) if served.is_empty() => Ok(()),
        _ => Err(format!("{place}: given {given}, served {served}")),
    }
}

fn objects(place: &str, given: &Map<String, Value>, served: &Map<String, Value>) -> Result<(), String> {
    for (name, given) in given {
        let beside = if name == "logIndex" { served.get("nodeLogIndex") } else { None };
        let served = beside.or(served.get(name)).unwrap_or(&Value::Null);
        compare(&format!("{place}.{name}"), given, served)?;
    }
    let added = served.keys().find(|name| {
        !given.contains_key(*name) && !FILLED_IN.contains(&name.as_str()) && *name != "nodeLogIndex"
    });
    added.map_or(Ok(()), |name| Err(format!("{place}.{name}: served, not given")))
}
