//! Flow's processors as the pipeline runs them, over stores in memory.

use std::ops::Bound;
use std::sync::Arc;

use cairn_core::{ChainId, Height, HeightRange, RawBlock, SystemClock};
use cairn_explorer::processors::{Settings, flow_catalog, flow_processors};
use cairn_pipeline::derive::processor::Processor;
use cairn_pipeline::derive::{Compute, DeriveOptions, Deriver};
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::{
    Coordinator, DerivedDump, DerivedReader, ErrorFilter, ErrorLog, LeaseFilter, LeaseKind, LeaseStatus, Row,
    Scan,
};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, PurgeProgress, RawReader, RawWriter, Rollback, StoreInfo};
use tokio_util::sync::CancellationToken;

use super::flow::settings;

/// A raw store, an app store, and what happens to them.
pub struct World {
    pub raw: MemoryStore,
    pub app: MemoryDerived,
    pub errors: Arc<MemoryErrorLog>,
    settings: Settings,
}

impl World {
    pub async fn new(blocks: Vec<RawBlock>) -> World {
        World::with(blocks, settings()).await
    }

    pub async fn with(blocks: Vec<RawBlock>, settings: Settings) -> World {
        let clock = Arc::new(SystemClock);
        let raw = MemoryStore::new(clock.clone());
        let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() };
        raw.init(info).await.unwrap();
        raw.acquire().await.unwrap();
        let world = World {
            raw,
            app: MemoryDerived::new(flow_catalog().unwrap(), clock.clone()),
            errors: Arc::new(MemoryErrorLog::new(clock)),
            settings,
        };
        world.append(blocks).await;
        world
    }

    async fn fence(&self) -> cairn_core::Fence {
        self.raw.snapshot().await.unwrap().head().fence
    }

    pub async fn append(&self, blocks: Vec<RawBlock>) {
        let batch = AppendBatch { blocks, finalized: None, safe: None };
        self.raw.append(self.fence().await, batch).await.unwrap();
    }

    pub async fn roll_back(&self, common: &RawBlock) {
        let rollback = Rollback { common: common.block_ref(), max_depth: 1_000, decided_at_ms: 1 };
        self.raw.rollback(self.fence().await, rollback).await.unwrap();
        while self.raw.purge_step(self.fence().await, 2).await.unwrap() != PurgeProgress::Done {}
    }

    /// Runs every processor up to the tip, and the reorgs in between.
    pub async fn derive(&self) {
        self.derive_by(3).await;
    }

    /// The same in chunks of at most so many heights.
    pub async fn derive_by(&self, chunk_heights: u64) {
        let options = DeriveOptions {
            exit_when_caught_up: true,
            compute: Compute::Inline,
            poll_ms: 2,
            range_heights: 7,
            chunk_heights,
            apply_rows: 7,
            ..DeriveOptions::new("test")
        };
        let (raw, app) = (Arc::new(self.raw.clone()), Arc::new(self.app.clone()));
        let catalog = flow_catalog().unwrap();
        let deriver =
            Deriver::new(raw, app, self.errors.clone(), catalog, flow_processors(&self.settings), options);
        deriver.unwrap().run(CancellationToken::new()).await.unwrap();
    }

    /// Makes a range of every mapper again.
    pub async fn make_again(&self, range: HeightRange) {
        for processor in flow_processors(&self.settings) {
            if let Processor::Mapper(mapper) = processor {
                let service = mapper.service();
                self.app.request_reindex(service.name, service.version, range, 5).await.unwrap();
            }
        }
        self.derive().await;
    }

    pub async fn rows(&self, table: &'static str) -> Vec<Row> {
        let snapshot = self.app.snapshot().await.unwrap();
        let mut scan = Scan::new(table, 10_000);
        let mut rows = Vec::new();
        loop {
            let page = snapshot.scan(&scan).await.unwrap();
            rows.extend(page.rows);
            match page.more {
                Some(place) => scan.lower = Bound::Excluded(place),
                None => return rows,
            }
        }
    }

    pub async fn dump(&self) -> Vec<String> {
        self.app.dump().await.unwrap().lines
    }

    /// Nothing was malformed, and every lease but those at the tip is completed.
    pub async fn check_leases(&self, tip: u64) {
        let filter = ErrorFilter { limit: 10, ..ErrorFilter::default() };
        assert_eq!(self.errors.list(&filter).await.unwrap(), []);
        let filter = LeaseFilter { limit: 10_000, ..LeaseFilter::default() };
        for lease in self.app.snapshot().await.unwrap().leases(&filter).await.unwrap() {
            // What is made again after a reorg may still be due.
            let is_whole = lease.kind == LeaseKind::Index && lease.range.end() <= Height(tip + 1);
            assert!(!is_whole || lease.status == LeaseStatus::Completed, "{lease:?}");
        }
    }
}

/// Runs a future to its end.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
