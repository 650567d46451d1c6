//! What the tests share: the public suite's chain in a memory store, and small made-up chains.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cairn_api::{EthApi, RpcLimits};
use cairn_core::{BlockRef, ChainId, RawBlock, SystemClock};
use cairn_evm::{ConsensusBlock, chain_config_json, from_consensus, genesis_block};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, RawReader, RawWriter, StoreInfo};
use serde_json::Value;
use serde_json::value::RawValue;

pub mod http;
pub mod made;
pub mod slow;

/// The folder of the public suite. `None`: it isn't there, and the test can't run; in CI that is a failure.
pub fn suite_dir() -> Option<PathBuf> {
    let shared = std::env::var_os("CAIRN_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from("../../../shared"));
    let dir = shared.join("conformance/execution-apis");
    if dir.join("chain.rlp").is_file() {
        return Some(dir);
    }
    let what = format!(
        "the public RPC test suite is not at {}: it is the `tests` folder of github.com/ethereum/execution-apis; set CAIRN_SHARED",
        dir.display()
    );
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{what}");
    println!("{what}");
    None
}

/// The suite's 55 blocks, genesis first, and the chain's configuration.
pub fn suite_chain(dir: &std::path::Path) -> (Vec<RawBlock>, Bytes) {
    let genesis = std::fs::read(dir.join("genesis.json")).expect("genesis.json");
    let mut gunzipped = String::new();
    flate2::read::GzDecoder::new(
        std::fs::File::open(dir.join("receipts.json.gz")).expect("receipts.json.gz"),
    )
    .read_to_string(&mut gunzipped)
    .expect("gzip");
    let receipts: Vec<Value> = serde_json::from_str(&gunzipped).expect("receipts");
    let receipts_of = |height: u64| {
        let entry = receipts.iter().find(|entry| {
            entry["number"].as_u64() == Some(height) || entry["number"] == format!("0x{height:x}")
        });
        let list = entry.unwrap_or_else(|| panic!("no receipts of block {height}"))["receipts"]
            .as_array()
            .expect("a list");
        list.iter()
            .map(|receipt| {
                Bytes::from(
                    hex::decode(receipt.as_str().expect("hex").trim_start_matches("0x")).expect("hex"),
                )
            })
            .collect::<Vec<_>>()
    };
    let mut blocks = vec![from_consensus(&genesis_block(&genesis).expect("genesis")).expect("genesis")];
    let chain = Bytes::from(std::fs::read(dir.join("chain.rlp")).expect("chain.rlp"));
    let mut rest = &chain[..];
    while !rest.is_empty() {
        let mut after = rest;
        let header = alloy_rlp::Header::decode(&mut after).expect("a list");
        let whole = rest.len() - after.len() + header.payload_length;
        let block = ConsensusBlock::from_block_rlp(
            &chain.slice_ref(&rest[..whole]),
            receipts_of(blocks.len() as u64),
        );
        blocks.push(from_consensus(&block.expect("a block")).expect("a block"));
        rest = &rest[whole..];
    }
    (blocks, chain_config_json(&genesis).expect("a configuration"))
}

/// A new store for `chain_id`.
pub async fn empty_store(chain_id: u64, chain_config: Bytes) -> MemoryStore {
    let store = MemoryStore::new(Arc::new(SystemClock));
    store.init(StoreInfo { uuid: [7; 16], chain_id: ChainId(chain_id), chain_config }).await.expect("init");
    store.acquire().await.expect("acquire");
    store
}

/// Appends blocks under the fence in force.
pub async fn append(store: &MemoryStore, blocks: Vec<RawBlock>, finalized: Option<BlockRef>) {
    let fence = store.snapshot().await.expect("snapshot").head().fence;
    let batch = AppendBatch { blocks, finalized, safe: finalized };
    store.append(fence, batch).await.expect("append");
}

/// The suite's chain in a store; head = safe = finalized.
pub async fn suite_store(dir: &std::path::Path) -> MemoryStore {
    let (blocks, config) = suite_chain(dir);
    let store = empty_store(3_503_995_874_084_926, config).await;
    let tip = blocks.last().expect("blocks").block_ref();
    append(&store, blocks, Some(tip)).await;
    store
}

/// The methods over a store.
pub fn api(store: &MemoryStore, limits: RpcLimits) -> EthApi {
    EthApi::new(Arc::new(store.clone()), limits)
}

/// Asks and returns the result.
pub async fn ask(api: &EthApi, method: &str, params: Value) -> Result<Value, cairn_api::RpcError> {
    let params: Box<RawValue> = RawValue::from_string(params.to_string()).expect("json");
    let response = api.call(method, Some(&params)).await?;
    Ok(serde_json::from_slice(response.json()).expect("a result is JSON"))
}
