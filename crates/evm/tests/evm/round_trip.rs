//! JSON in, JSON out: whatever a node says is served back, and for an ordinary node nothing is kept beside the consensus bytes.

use cairn_core::RawBlock;
use cairn_evm::overlay::Overlay;
use cairn_evm::{
    Beside, BlockView, ChainProfile, Checks, EvmError, ForkSchedule, check_block, from_consensus, from_rpc,
    from_rpc_with, genesis_block, linked_ref_from_rpc,
};
use proptest::prelude::*;
use serde_json::{Map, Value};

use crate::support::{assert_same, cases, chain, suite};

/// A block as a node of the suite's chain gives it.
struct NodeBlock {
    block: Value,
    receipts: Vec<Value>,
    ommers: Vec<Value>,
    consensus: RawBlock,
}

fn node_blocks() -> Option<(Vec<NodeBlock>, ForkSchedule)> {
    let folder = suite()?;
    let genesis = std::fs::read(folder.join("genesis.json")).unwrap();
    let schedule = ForkSchedule::from_genesis_json(&genesis).unwrap();
    let mut blocks = vec![genesis_block(&genesis).unwrap()];
    blocks.extend(chain(&folder));
    let node = |block| {
        let consensus = from_consensus(&block).unwrap();
        let view = BlockView::decode((&consensus).into(), Some(&schedule)).unwrap();
        let ommers =
            (0..view.ommer_count().unwrap()).map(|at| view.ommer_json(at).unwrap().unwrap().0).collect();
        NodeBlock {
            block: view.block_json(true).unwrap().0,
            receipts: view.receipts_json().unwrap().into_iter().map(|receipt| receipt.0).collect(),
            ommers,
            consensus,
        }
    };
    Some((blocks.into_iter().map(node).collect(), schedule))
}

impl NodeBlock {
    fn read(&self, profile: &ChainProfile) -> RawBlock {
        let mut receipts = self.receipts.clone();
        receipts.reverse();
        let beside = Beside { ommers: self.ommers.clone(), ..Default::default() };
        from_rpc_with(self.block.clone(), receipts, beside, profile).unwrap()
    }
}

#[test]
fn a_nodes_json_gives_the_consensus_block() {
    let Some((blocks, schedule)) = node_blocks() else { return };
    for node in blocks {
        let mut raw = node.read(&ChainProfile::default());
        assert_eq!(check_block(&raw, &ChainProfile::default()), Ok(Checks::empty()));
        let view = BlockView::decode((&raw).into(), None).unwrap();
        assert_same("block", &view.block_json(true).unwrap(), &node.block);
        assert!(view.receipts_json().unwrap() == node.receipts);
        let view = BlockView::decode((&raw).into(), Some(&schedule)).unwrap();
        assert!(view.receipts_json().unwrap() == node.receipts);
        for (at, ommer) in node.ommers.iter().enumerate() {
            assert_same("ommer", &view.ommer_json(at).unwrap().unwrap(), ommer);
        }
        // Only the price of blobs needs the fork schedule and stays beside the bytes.
        let overlay = Overlay::decode(raw.facts.height, &raw.extras).unwrap();
        assert!(
            overlay
                .receipts
                .values()
                .all(|patch| patch.unset.is_empty() && patch.set.keys().eq(["blobGasPrice"]))
        );
        assert_eq!(Overlay { receipts: Default::default(), ..overlay }, Overlay::default());
        raw.extras = Default::default();
        assert!(raw == node.consensus, "block {}", raw.facts.height);
    }
}

#[test]
fn a_header_is_believed_only_with_its_own_hash() {
    let Some((blocks, _)) = node_blocks() else { return };
    for node in &blocks {
        let linked = linked_ref_from_rpc(&node.block, &ChainProfile::default()).unwrap();
        assert_eq!(linked, node.consensus.facts.linked_ref());
        let mut lie = node.block.clone();
        lie["parentHash"] = lie["hash"].clone();
        let error = linked_ref_from_rpc(&lie, &ChainProfile::default()).unwrap_err();
        assert!(error.to_string().contains("header-hash"), "{error}");
        let relaxed = ChainProfile::relaxing(Checks::HEADER_HASH);
        assert_eq!(linked_ref_from_rpc(&lie, &relaxed).unwrap().parent_id, node.consensus.facts.id);
    }
    for nothing in [Value::Null, serde_json::json!([]), serde_json::json!({"number": "0x1", "hash": null})] {
        assert!(linked_ref_from_rpc(&nothing, &ChainProfile::default()).is_err());
    }
}

#[test]
fn the_suites_own_json_is_served_back() {
    let Some(folder) = suite() else { return };
    let receipts = cases(&folder, "eth_getBlockReceipts");
    let mut compared = 0;
    for method in ["eth_getBlockByNumber", "eth_getBlockByHash"] {
        for case in cases(&folder, method) {
            let Some(block) = case.result.filter(|block| block.is_object() && case.params[1] == true) else {
                continue;
            };
            let of_block = |case: &&crate::support::Case| {
                [&block["number"], &block["hash"]].contains(&&case.params[0])
                    || (case.params[0] == "latest" && block["number"] == "0x36")
            };
            let receipts = receipts.iter().find(of_block).and_then(|case| case.result.clone());
            let receipts: Vec<Value> = match receipts {
                Some(receipts) => serde_json::from_value(receipts).unwrap(),
                None => continue,
            };
            let raw = from_rpc(block.clone(), receipts.clone(), &ChainProfile::default()).unwrap();
            assert_eq!(check_block(&raw, &ChainProfile::default()), Ok(Checks::empty()));
            assert!(raw.extras.is_empty());
            let view = BlockView::decode((&raw).into(), None).unwrap();
            assert_same(&case.name, &view.block_json(true).unwrap(), &block);
            assert!(view.receipts_json().unwrap() == receipts);
            compared += 1;
        }
    }
    assert!(compared >= 3, "{compared}");
}

/// Some JSON that no node would say, and some that it would.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<u32>().prop_map(Value::from),
        "0x[0-9a-f]{0,6}".prop_map(Value::String),
        "[a-z \"\\\\é]{0,4}".prop_map(Value::String),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Fields that don't enter the canonical bytes and are served as the node says: they may be anything.
const FREE: [(&str, &[&str]); 4] = [
    ("block", &["size", "totalDifficulty", "x"]),
    ("tx", &["gasPrice", "x", "y"]),
    ("receipt", &["gasUsed", "contractAddress", "logsBloom", "l1Fee", "x"]),
    ("log", &["x", "y"]),
];

#[derive(Debug, Clone)]
struct Change {
    kind: usize,
    at: prop::sample::Index,
    field: prop::sample::Index,
    value: Option<Value>,
}

fn any_change() -> impl Strategy<Value = Change> {
    (0..4usize, any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::option::of(any_json()))
        .prop_map(|(kind, at, field, value)| Change { kind, at, field, value })
}

fn apply(block: &mut Value, receipts: &mut [Value], change: &Change) {
    let (kind, fields) = FREE[change.kind];
    // A dynamic-fee transaction's price is a free field; a legacy one's is part of its bytes.
    let mut places: Vec<&mut Value> = match kind {
        "block" => vec![block],
        "tx" => {
            let txs = block["transactions"].as_array_mut().unwrap();
            txs.iter_mut().filter(|tx| tx.get("maxFeePerGas").is_some()).collect()
        }
        "receipt" => receipts.iter_mut().collect(),
        _ => receipts.iter_mut().flat_map(|receipt| receipt["logs"].as_array_mut().unwrap()).collect(),
    };
    if places.is_empty() {
        return;
    }
    let at = change.at.index(places.len());
    let object = places[at].as_object_mut().unwrap();
    let name = fields[change.field.index(fields.len())];
    match &change.value {
        Some(value) => {
            object.insert(name.to_owned(), value.clone());
        }
        None => {
            object.shift_remove(name);
        }
    }
}

#[test]
fn whatever_a_node_says_beyond_consensus_is_served_back() {
    let Some((blocks, _)) = node_blocks() else { return };
    let blocks: Vec<NodeBlock> = blocks
        .into_iter()
        .filter(|node| [0x1b, 0x2a, 0x2d, 0x36].contains(&node.consensus.facts.height.get()))
        .collect();
    let config = ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(at in 0..blocks.len(), changes in prop::collection::vec(any_change(), 0..12))| {
        let node = &blocks[at];
        let (mut block, mut receipts) = (node.block.clone(), node.receipts.clone());
        for change in &changes {
            apply(&mut block, &mut receipts, change);
        }
        let raw = from_rpc(block.clone(), receipts.clone(), &ChainProfile::default()).unwrap();
        prop_assert_eq!(check_block(&raw, &ChainProfile::default()), Ok(Checks::empty()));
        prop_assert_eq!((&raw.header, &raw.body, &raw.receipts), (&node.consensus.header, &node.consensus.body, &node.consensus.receipts));
        let view = BlockView::decode((&raw).into(), None).unwrap();
        assert_same("block", &view.block_json(true).unwrap(), &block);
        let served = view.receipts_json().unwrap();
        for (ours, theirs) in served.iter().zip(&receipts) {
            assert_same("receipt", ours, theirs);
        }
        let logs: Vec<Value> = view.logs(&Default::default(), false).unwrap().iter().map(|log| serde_json::from_str(log.get()).unwrap()).collect();
        let expected: Vec<Value> = receipts.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap().clone()).collect();
        prop_assert_eq!(logs, expected);
    });
}

/// Damage anywhere is an error or another block, never a panic.
#[test]
fn damaged_json_never_panics() {
    let Some((blocks, _)) = node_blocks() else { return };
    let node = blocks.iter().find(|node| node.consensus.facts.height.get() == 0x2d).unwrap();
    let config = ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() };
    let lenient = ChainProfile::relaxing(Checks::all());
    proptest!(config, |(seeds in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..4))| {
        let mut whole = Value::Array(vec![node.block.clone(), Value::Array(node.receipts.clone())]);
        for (seed, value) in &seeds {
            let count = count_leaves(&whole);
            *leaf(&mut whole, &mut seed.index(count)).unwrap() = value.clone();
        }
        let Value::Array(mut parts) = whole else { return Ok(()) };
        let receipts = match parts.pop() { Some(Value::Array(receipts)) => receipts, _ => vec![] };
        let block = parts.pop().unwrap_or(Value::Null);
        for profile in [ChainProfile::default(), lenient] {
            let Ok(raw) = from_rpc(block.clone(), receipts.clone(), &profile) else { continue };
            let _either_way = check_block(&raw, &profile);
            let view = BlockView::decode((&raw).into(), None).unwrap();
            view.block_json(true).unwrap();
            for read in [view.receipts_json().map(drop), view.logs(&Default::default(), false).map(drop)] {
                match read {
                    Ok(()) => {}
                    // A receipt that the node did not give is named, where the profile lets it be missing.
                    Err(EvmError::ReceiptMissing { .. }) if profile.relaxes(Checks::MISSING_RECEIPTS) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
}

fn count_leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count_leaves).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count_leaves).sum::<usize>(),
        _ => 1,
    }
}

fn leaf<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| leaf(item, left)),
        Value::Object(map) => map.values_mut().find_map(|item| leaf(item, left)),
        _ => None,
    }
}
