//! The public Ethereum RPC test suite: every block decodes and passes every check, and every answer that needs no state comes out as the
//! suite has it.

use std::collections::HashMap;

use cairn_core::RawBlock;
use cairn_evm::{
    BlockView, ChainProfile, Checks, ForkSchedule, SendersAre, check_block, check_block_with, from_consensus,
    genesis_block,
};
use serde_json::Value;

use crate::support::{Case, assert_same, cases, chain, suite};

struct Suite {
    folder: std::path::PathBuf,
    views: Vec<BlockView>,
}

impl Suite {
    fn load() -> Option<Self> {
        let folder = suite()?;
        let genesis = std::fs::read(folder.join("genesis.json")).unwrap();
        let schedule = ForkSchedule::from_genesis_json(&genesis).unwrap();
        let mut blocks = vec![genesis_block(&genesis).unwrap()];
        blocks.extend(chain(&folder));
        let view =
            |block| BlockView::decode(from_consensus(&block).unwrap().into(), Some(&schedule)).unwrap();
        Some(Suite { folder, views: blocks.into_iter().map(view).collect() })
    }

    fn cases(&self, method: &str) -> Vec<Case> {
        cases(&self.folder, method)
    }

    fn block(&self, selector: &Value) -> Option<&BlockView> {
        match selector.as_str().unwrap() {
            "latest" | "safe" | "finalized" => self.views.last(),
            "earliest" => self.views.first(),
            text if text.len() == 66 => {
                self.views.iter().find(|view| view.stored().facts.id.to_string() == text)
            }
            text => self.views.get(usize::from_str_radix(text.strip_prefix("0x")?, 16).unwrap()),
        }
    }

    fn transaction(&self, hash: &Value) -> Option<(&BlockView, usize)> {
        self.views.iter().find_map(|view| {
            let at = view
                .stored()
                .transactions
                .iter()
                .position(|tx| tx.id.to_string() == hash.as_str().unwrap())?;
            Some((view, at))
        })
    }
}

/// Compares each case that has a result; returns how many did.
fn compare(cases: Vec<Case>, answer: impl Fn(&[Value]) -> Value) -> usize {
    let mut compared = 0;
    for case in cases {
        if let Some(result) = case.result {
            assert_same(&case.name, &answer(&case.params), &result);
            compared += 1;
        }
    }
    compared
}

#[test]
fn every_block_of_the_suite_passes_every_check() {
    let Some(folder) = suite() else { return };
    let blocks = chain(&folder);
    assert_eq!(blocks.len(), 54);
    let mut parent = None;
    let (mut transactions, mut logs) = (0, 0);
    for block in &blocks {
        let block = from_consensus(block).unwrap();
        assert_eq!(check_block(&block, &ChainProfile::default()), Ok(Checks::empty()));
        let profile = ChainProfile::default();
        assert_eq!(check_block_with(&block, &profile, SendersAre::RecoveredHere), Ok(Checks::empty()));
        assert!(parent.is_none_or(|parent| parent == block.facts.parent_id));
        parent = Some(block.facts.id);
        transactions += block.facts.tx_count;
        logs += block.facts.log_count;
        assert_eq!(block.log_terms, cairn_evm::log_terms_of_receipts(&block.receipts).unwrap());
        assert!(block.log_terms.is_sorted_by(|a, b| a < b));
    }
    assert_eq!((transactions, logs), (249, 383));
}

#[test]
fn blocks_are_answered_as_the_suite_demands() {
    let Some(suite) = Suite::load() else { return };
    for method in ["eth_getBlockByNumber", "eth_getBlockByHash"] {
        let compared = compare(suite.cases(method), |params| {
            let Some(view) = suite.block(&params[0]) else { return Value::Null };
            view.block_json(params[1].as_bool().unwrap()).unwrap().0
        });
        assert!(compared >= 3);
    }
}

#[test]
fn transactions_are_answered_as_the_suite_demands() {
    let Some(suite) = Suite::load() else { return };
    let compared = compare(suite.cases("eth_getTransactionByHash"), |params| {
        suite.transaction(&params[0]).map_or(Value::Null, |(view, at)| view.tx_json(at).unwrap().0)
    });
    assert_eq!(compared, 9);
    for method in ["eth_getTransactionByBlockHashAndIndex", "eth_getTransactionByBlockNumberAndIndex"] {
        compare(suite.cases(method), |params| {
            let at = usize::from_str_radix(&params[1].as_str().unwrap()[2..], 16).unwrap();
            suite.block(&params[0]).unwrap().tx_json(at).unwrap().0
        });
    }
    for method in ["eth_getBlockTransactionCountByHash", "eth_getBlockTransactionCountByNumber"] {
        compare(suite.cases(method), |params| {
            format!("{:#x}", suite.block(&params[0]).unwrap().listed_tx_count().unwrap()).into()
        });
    }
}

#[test]
fn receipts_are_answered_as_the_suite_demands() {
    let Some(suite) = Suite::load() else { return };
    let compared = compare(suite.cases("eth_getTransactionReceipt"), |params| {
        suite
            .transaction(&params[0])
            .map_or(Value::Null, |(view, at)| view.receipt_json(at).unwrap().unwrap().0)
    });
    assert_eq!(compared, 9);
    let compared = compare(suite.cases("eth_getBlockReceipts"), |params| {
        suite
            .block(&params[0])
            .map_or(Value::Null, |view| serde_json::to_value(view.receipts_json().unwrap()).unwrap())
    });
    assert_eq!(compared, 8);
}

#[test]
fn raw_bytes_are_answered_as_the_suite_demands() {
    let Some(suite) = Suite::load() else { return };
    let hex = |bytes: &[u8]| Value::String(format!("0x{}", hex::encode(bytes)));
    compare(suite.cases("debug_getRawBlock"), |p| hex(&suite.block(&p[0]).unwrap().raw_block().unwrap()));
    compare(suite.cases("debug_getRawHeader"), |p| hex(&suite.block(&p[0]).unwrap().raw_header().unwrap()));
    compare(suite.cases("debug_getRawReceipts"), |p| {
        suite.block(&p[0]).unwrap().raw_receipts().unwrap().iter().map(|bytes| hex(bytes)).collect()
    });
    compare(suite.cases("debug_getRawTransaction"), |p| {
        suite.transaction(&p[0]).map(|(view, at)| hex(&view.raw_transaction(at).unwrap())).unwrap()
    });
}

#[test]
fn logs_are_answered_as_the_suite_demands() {
    let Some(suite) = Suite::load() else { return };
    let compared = compare(suite.cases("eth_getLogs"), |params| {
        let (selector, filter) = cairn_evm::parse_filter(&params[0], &Default::default()).unwrap();
        let views: Vec<&BlockView> = match selector {
            cairn_evm::BlockSelector::Hash(hash) => {
                suite.views.iter().filter(|view| view.stored().facts.id.0 == hash.0).collect()
            }
            cairn_evm::BlockSelector::Range { from, to } => {
                let heights =
                    cairn_evm::TagHeights { latest: 54, safe: Some(54), finalized: Some(54), earliest: 0 };
                let (from, to) = cairn_evm::resolve_range(from, to, &heights).unwrap();
                suite.views[from as usize..=to as usize].iter().collect()
            }
        };
        let mut logs = Vec::new();
        for view in views {
            let found = view.logs(&filter, false).unwrap();
            assert_eq!(found.len(), view.count_logs(&filter).unwrap());
            logs.extend(found.iter().map(|log| serde_json::from_str::<Value>(log.get()).unwrap()));
        }
        Value::Array(logs)
    });
    assert!(compared >= 6);
}

#[test]
fn the_logs_of_a_block_are_those_of_its_receipts() {
    let Some(suite) = Suite::load() else { return };
    for view in &suite.views {
        let logs = view.logs(&Default::default(), false).unwrap();
        let logs: Vec<Value> = logs.iter().map(|log| serde_json::from_str(log.get()).unwrap()).collect();
        let receipts = view.receipts_json().unwrap();
        let of_receipts: Vec<Value> =
            receipts.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap().clone()).collect();
        assert!(logs == of_receipts, "block {}", view.stored().facts.height);
        for (at, receipt) in receipts.iter().enumerate() {
            assert!(view.receipt_json(at).unwrap().unwrap() == *receipt);
        }
        let removed = view.logs(&Default::default(), true).unwrap();
        assert!(removed.iter().all(|log| log.get().contains("\"removed\":true")));
    }
}

#[test]
fn ommers_are_blocks_without_transactions() {
    let Some(suite) = Suite::load() else { return };
    let with: Vec<_> = suite.views.iter().filter(|view| view.ommer_count().unwrap() > 0).collect();
    assert!(!with.is_empty());
    for view in with {
        let block = view.block_json(false).unwrap();
        let ommer = view.ommer_json(0).unwrap().unwrap();
        assert_eq!(ommer["hash"], block["uncles"][0]);
        assert_eq!(ommer["uncles"], serde_json::json!([]));
        assert!(ommer.get("transactions").is_none() && ommer.get("size").is_some());
        assert!(view.ommer_json(9).unwrap().is_none());
    }
}

/// Every way to damage a block is found by the check that it belongs to.
#[test]
fn a_damaged_block_fails_the_check_that_it_belongs_to() {
    let Some(folder) = suite() else { return };
    let consensus = chain(&folder);
    let blocks: HashMap<u64, RawBlock> = consensus
        .iter()
        .map(|block| from_consensus(block).unwrap())
        .map(|block| (block.facts.height.get(), block))
        .collect();
    let good = &blocks[&0x2d];
    let other = &blocks[&0x2e];
    let fails = |check: Checks, part: &str, change: &dyn Fn(&mut RawBlock)| {
        let mut block = good.clone();
        change(&mut block);
        let failure = check_block(&block, &ChainProfile::default()).unwrap_err();
        assert_eq!(failure.check, check, "{failure}");
        assert_eq!(failure.height.get(), 0x2d);
        assert!(failure.message.contains(part), "{failure}");
        assert_eq!(failure.is_bloom_only(), check == Checks::BLOOM);
    };
    fails(Checks::HEADER_HASH, "hashes to", &|block| block.facts.id.0[0] ^= 1);
    fails(Checks::HEADER_HASH, "parentHash", &|block| block.facts.parent_id.0[0] ^= 1);
    fails(Checks::HEADER_HASH, "timestamp", &|block| block.facts.timestamp_ms += 1);
    fails(Checks::HEADER_HASH, "header is malformed", &|block| block.header = block.header.slice(..20));
    fails(Checks::TRANSACTIONS_ROOT, "body is malformed", &|block| block.body = block.body.slice(..20));
    fails(Checks::TRANSACTIONS_ROOT, "tx_count", &|block| block.facts.tx_count += 1);
    fails(Checks::TRANSACTIONS_ROOT, "transaction 1 has id", &|block| block.transactions[1].id.0[0] ^= 1);
    fails(Checks::SENDERS, "transaction 1", &|block| {
        block.transactions[1].sender = block.transactions[1].sender.slice(..19)
    });
    fails(Checks::RECEIPTS_ROOT, "receipts list is malformed", &|block| {
        block.receipts = block.receipts.slice(..20)
    });
    fails(Checks::RECEIPTS_ROOT, "log_count", &|block| block.facts.log_count += 1);
    fails(Checks::RECEIPTS_ROOT, "status", &|block| {
        block.transactions[0].status = cairn_core::TxStatus::Unknown
    });
    fails(Checks::RECEIPTS_ROOT, "0 receipts", &|block| block.receipts = vec![0xc0].into());
    // A whole answer of another fork: transactions, then receipts.
    fails(Checks::TRANSACTIONS_ROOT, "transactionsRoot in the header is", &|block| {
        block.body = other.body.clone();
        block.transactions = other.transactions.clone();
        block.facts.tx_count = other.facts.tx_count;
        block.receipts = other.receipts.clone();
    });
    let relaxed = |relaxed: Checks, change: &dyn Fn(&mut RawBlock)| {
        let mut block = good.clone();
        change(&mut block);
        assert_eq!(check_block(&block, &ChainProfile::relaxing(relaxed)), Ok(relaxed));
    };
    relaxed(Checks::HEADER_HASH, &|block| block.facts.id.0[0] ^= 1);
    relaxed(Checks::TRANSACTIONS_ROOT, &|block| block.transactions[1].id.0[0] ^= 1);
    relaxed(Checks::SENDERS, &|block| block.transactions[1].sender = Default::default());
    relaxed(Checks::BLOOM | Checks::WITHDRAWALS_ROOT | Checks::OMMERS_HASH, &|_| {});
}
