//! The raw store on PostgreSQL beyond the suite: partitions, the schema, several processes, pools, crashes between any two statements, errors.

use crate::support::pg;

mod blocks;
mod events;
mod partitions;
mod pools;
mod processes;
mod repair;
mod stale_lookups;

use std::sync::Arc;

use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{PgPool, PgRawOptions, PgRawStore};
use cairn_core::{
    BlockLayout, ChainId, EventSlice, RawBlock, Slices, SystemClock, TxFacts, TxId, TxSlice, TxStatus,
};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, Dump, RawDump, RawWriter, StoreInfo};

fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() }
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

fn options(db: &pg::TestDb) -> PgRawOptions {
    PgRawOptions {
        partitions: PartitionSizes::all(50),
        lookahead_partitions: 1,
        ..PgRawOptions::with(db.options())
    }
}

async fn open(db: &pg::TestDb) -> PgRawStore {
    PgRawStore::open(options(db), None).await.expect("opens")
}

/// An initialised store, acquired.
async fn begun(db: &pg::TestDb) -> (PgRawStore, cairn_core::Fence) {
    let store = open(db).await;
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    (store, fence)
}

async fn clean_dump(blocks: &[RawBlock]) -> Dump {
    let store = MemoryStore::new(Arc::new(SystemClock));
    store.init(info()).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    if !blocks.is_empty() {
        store.append(fence, batch(blocks)).await.expect("appends");
    }
    store.dump().await.expect("dumps")
}

async fn assert_is_clean(store: &PgRawStore, blocks: &[RawBlock]) {
    let (found, expected) = (store.dump().await.expect("dumps"), clean_dump(blocks).await);
    assert_eq!(found.first_difference(&expected), None);
}

/// The same, whatever is final.
async fn assert_holds(store: &PgRawStore, blocks: &[RawBlock]) {
    let (mut found, mut expected) = (store.dump().await.expect("dumps"), clean_dump(blocks).await);
    for dump in [&mut found, &mut expected] {
        dump.lines.retain(|line| !line.starts_with("head/finalized"));
    }
    assert_eq!(found.first_difference(&expected), None);
}

async fn number(pool: &PgPool, query: &str) -> i64 {
    let conn = pool.get().await.expect("connects");
    conn.query_one(query, &[]).await.expect("runs").get(0)
}

/// Cuts a body into as many equal pieces as there are transactions, and the receipts into one piece for each of so many events.
#[derive(Debug)]
struct EvenLayout {
    events: usize,
}

impl BlockLayout for EvenLayout {
    fn slices(&self, block: &RawBlock) -> Option<Slices> {
        let txs = block.transactions.len();
        let (body, receipt) = (block.body.len().checked_div(txs)?, block.receipts.len().checked_div(txs)?);
        let mut slices = Slices::default();
        for index in 0..txs {
            let start = index * receipt;
            slices
                .transactions
                .push(TxSlice { body: index * body..(index + 1) * body, receipt: start..start + receipt });
            for event in 0..self.events {
                let at = start + event * (receipt / self.events);
                let event_index = slices.events.len() as u32;
                let range = at + 1..at + 3;
                slices.events.push(EventSlice { tx_index: index as u32, index: event_index, range });
            }
        }
        Some(slices)
    }
}

fn tx(n: u64) -> TxFacts {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    TxFacts { id: TxId(id), sender: vec![1; 20].into(), status: TxStatus::Ok }
}
