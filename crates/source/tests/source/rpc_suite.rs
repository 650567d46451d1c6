//! The public suite's chain over JSON-RPC: every kind of block there is, ommers and a block of 20 MB of receipts included.

use crate::support;

use std::path::PathBuf;

use cairn_core::{Height, HeightRange, RawBlock};
use cairn_evm::{BlockView, SendersAre};
use cairn_source::ChainSource;
use cairn_source::evm::file::{ChainFile, FileSourceOptions};
use cairn_source::evm::rpc::RpcSource;
use cairn_source::evm::synthetic::to_rpc_json;
use cairn_source::verify::{Verified, VerifyOptions};
use serde_json::{Value, json};
use support::{CallIn, CallOut, MockNode, chain, config};

/// The suite's folder; `None`, with a word on where to get it, where it is not there.
fn suite() -> Option<PathBuf> {
    let shared =
        std::env::var_os("CAIRN_SHARED").map_or_else(|| PathBuf::from("../../../shared"), PathBuf::from);
    let folder = shared.join("conformance/execution-apis");
    if folder.join("chain.rlp").is_file() {
        return Some(folder);
    }
    let message = format!(
        "the public RPC test suite is not at {}: it is the `tests` folder of github.com/ethereum/execution-apis; set CAIRN_SHARED",
        folder.display()
    );
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{message}");
    println!("{message}");
    None
}

struct Block {
    id: String,
    json: Value,
    receipts: Vec<Value>,
    ommers: Vec<Value>,
}

fn as_node(block: &RawBlock) -> Block {
    let (json, receipts) = to_rpc_json(block).unwrap();
    let view = BlockView::decode(block.into(), None).unwrap();
    let ommers = (0..view.ommer_count().unwrap()).map(|at| view.ommer_json(at).unwrap().unwrap().0).collect();
    Block { id: block.facts.id.to_string(), json, receipts, ommers }
}

/// Answers as a node that has these blocks, from height 1.
fn answer(blocks: &[Block], call: &CallIn) -> Option<CallOut> {
    let find = |param: &Value| {
        let text = param.as_str()?;
        match call.height(0).filter(|_| text.len() < 66) {
            Some(height) => blocks.get(usize::try_from(height).ok()?.checked_sub(1)?),
            None => blocks.iter().find(|block| block.id == text),
        }
    };
    let block = find(call.params.first()?);
    let result = match call.method.as_str() {
        "eth_getBlockByNumber" => block.map(|block| block.json.clone()),
        "eth_getBlockReceipts" => block.map(|block| json!(block.receipts)),
        "eth_getUncleByBlockHashAndIndex" => {
            block.map(|block| block.ommers[call.height(1).unwrap() as usize].clone())
        }
        _ => return None,
    };
    Some(CallOut::Result(result.unwrap_or_default()))
}

#[tokio::test]
async fn every_block_of_the_suite_comes_through_and_holds() {
    let Some(folder) = suite() else { return };
    let mut options = FileSourceOptions::new(folder.join("chain.rlp"));
    options.receipts = Some(folder.join("receipts.json.gz"));
    options.genesis = Some(folder.join("genesis.json"));
    let file = ChainFile::open(options).await.unwrap();
    let mut truth: Vec<RawBlock> = Vec::new();
    while (truth.len() as u64) < 54 {
        let range = HeightRange::new(Height(1 + truth.len() as u64), Height(55));
        truth.extend(file.blocks(range).await.unwrap());
    }
    let blocks: Vec<Block> = truth.iter().map(as_node).collect();
    assert!(blocks.iter().any(|block| !block.ommers.is_empty()));
    let node = MockNode::start(chain(1), 60).await;
    node.on_call(move |call| answer(&blocks, call));
    let mut config = config(&[&node]);
    config.limits.request_timeout_ms = 60_000;
    config.limits.idle_timeout_ms = 30_000;
    let options = VerifyOptions { senders: SendersAre::Claimed, ..VerifyOptions::default() };
    let source = Verified::new(RpcSource::connect(config).await.unwrap(), options);
    let mut found: Vec<RawBlock> = Vec::new();
    while (found.len() as u64) < 54 {
        let more = source.blocks(HeightRange::new(Height(1 + found.len() as u64), Height(55))).await.unwrap();
        assert!(!more.is_empty());
        found.extend(more);
    }
    for (found, truth) in found.iter().zip(&truth) {
        assert_eq!(found.facts, truth.facts);
        assert!(found == truth, "block {}", truth.facts.height);
    }
}
