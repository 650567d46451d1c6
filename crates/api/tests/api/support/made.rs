//! Made-up blocks: transactions of an unknown type (their bytes are their identity), with logs as wanted.

use std::sync::Arc;

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bloom, Log, LogData};
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Height, RawBlock};
use cairn_evm::{ConsensusBlock, from_consensus};
use cairn_store::memory::MemoryStore;
use cairn_store::{PurgeProgress, RawReader, RawWriter, Rollback};

/// The type of the made-up transactions.
pub const TX_TYPE: u8 = 0x6b;

/// A log of the contract `0xNN…NN` with topics `0xNN…NN`.
pub fn log(address: u8, topics: &[u8], data_bytes: usize) -> Log {
    Log {
        address: Address::repeat_byte(address),
        data: LogData::new_unchecked(
            topics.iter().map(|topic| B256::repeat_byte(*topic)).collect(),
            vec![address; data_bytes].into(),
        ),
    }
}

/// A block at `height` on `parent`; each of `transactions` is its logs. `salt` tells forks apart.
pub fn block(height: u64, parent: BlockId, salt: u8, transactions: &[Vec<Log>]) -> RawBlock {
    block_at(height, height * 12, parent, salt, transactions)
}

/// The same at a time of its own, in seconds since 1970.
pub fn block_at(
    height: u64,
    timestamp_s: u64,
    parent: BlockId,
    salt: u8,
    transactions: &[Vec<Log>],
) -> RawBlock {
    let header = Header {
        number: height,
        parent_hash: B256::new(parent.0),
        timestamp: timestamp_s,
        gas_limit: 30_000_000,
        gas_used: 21_000 * transactions.len() as u64,
        base_fee_per_gas: Some(7),
        extra_data: vec![salt].into(),
        ..Header::default()
    };
    let mut list = Vec::new();
    let mut receipts = Vec::new();
    for (index, logs) in transactions.iter().enumerate() {
        let tx = [&[TX_TYPE, salt][..], &height.to_be_bytes(), &(index as u64).to_be_bytes()].concat();
        list.push(alloy_primitives::Bytes::from(tx));
        let gas = 21_000 * (index as u64 + 1);
        let mut fields = Vec::new();
        for field in [
            alloy_rlp::encode(true),
            alloy_rlp::encode(gas),
            alloy_rlp::encode(Bloom::ZERO),
            alloy_rlp::encode(logs),
        ] {
            fields.extend_from_slice(&field);
        }
        let mut receipt = vec![TX_TYPE];
        alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut receipt);
        receipt.extend_from_slice(&fields);
        receipts.push(Bytes::from(receipt));
    }
    let mut payload = alloy_rlp::encode(&list);
    payload.push(0xc0);
    let mut body = Vec::new();
    alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut body);
    body.extend_from_slice(&payload);
    let block = ConsensusBlock { header: alloy_rlp::encode(&header).into(), body: body.into(), receipts };
    from_consensus(&block).expect("a made-up block")
}

/// Blocks `first..first + count` on `parent`; `transactions` says what each holds.
pub fn chain(
    first: u64,
    count: u64,
    parent: BlockId,
    salt: u8,
    mut transactions: impl FnMut(u64) -> Vec<Vec<Log>>,
) -> Vec<RawBlock> {
    let mut blocks = Vec::with_capacity(count as usize);
    let mut parent = parent;
    for height in first..first + count {
        let block = block(height, parent, salt, &transactions(height));
        parent = block.facts.id;
        blocks.push(block);
    }
    blocks
}

/// A store with these blocks.
pub async fn store(blocks: Vec<RawBlock>, finalized: Option<BlockRef>) -> MemoryStore {
    let store = super::empty_store(1337, Bytes::new()).await;
    super::append(&store, blocks, finalized).await;
    store
}

/// Lowers the head to `common` and moves the orphans away.
pub async fn roll_back(store: &MemoryStore, common: BlockRef) {
    let fence = store.snapshot().await.expect("snapshot").head().fence;
    store.rollback(fence, Rollback { common, max_depth: 1000, decided_at_ms: 0 }).await.expect("rollback");
    while store.purge_step(fence, 10).await.expect("purge") != PurgeProgress::Done {}
}

/// The tip.
pub async fn tip(store: &MemoryStore) -> BlockRef {
    store.snapshot().await.expect("snapshot").head().tip.expect("a tip")
}

/// The canonical block's reference at `height`.
pub async fn at(store: &MemoryStore, height: u64) -> BlockRef {
    let snapshot = store.snapshot().await.expect("snapshot");
    snapshot.linked_ref(Height(height)).await.expect("read").expect("a block").block
}

/// A reader of a store.
pub fn reader(store: &MemoryStore) -> Arc<dyn RawReader> {
    Arc::new(store.clone())
}
