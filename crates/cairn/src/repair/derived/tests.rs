//! What is compared, and what is asked for of a table that is lost whole.

use cairn_core::{BlockFacts, BlockId, Parts, SystemClock};
use cairn_explorer::tables::transfers::FT_TRANSFERS;
use cairn_pipeline::derive::processor::{Output, ProcessError, ServiceInfo};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain, SyntheticOptions};
use cairn_store::derived::{
    BLOCK_HEIGHT, ChunkCommit, ClaimRequest, ColumnType, LeaseFilter, LeaseKind, ReadMark, TableClass,
    TableDef, Value, column,
};
use cairn_store::memory::MemoryStore;
use cairn_store::{AppendBatch, RawWriter, ReorgMark, StoreInfo};

use super::super::{MAX_NAMED, Outcome};
use super::*;
use crate::derive;

static ROWS: TableDef = TableDef {
    name: "rows",
    service: "row_worker",
    class: TableClass::Events { partition_heights: 16 },
    columns: &[column(BLOCK_HEIGHT, ColumnType::Int)],
    key: &[BLOCK_HEIGHT],
    indexes: &[],
};
static SERVICE: ServiceInfo =
    ServiceInfo { name: "row_worker", version: 1, upstreams: &[], tables: &[&ROWS] };

/// Can't process height 2, and panics at height 3.
struct Rows;

impl Mapper for Rows {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        Parts::empty()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let at = block.facts.block_ref();
        out.row(&ROWS, Row(vec![Value::height(at.height)]));
        match at.height.get() {
            2 => Err(ProcessError { block: at, message: "not this one".into() }),
            3 => panic!("nor this one"),
            _ => Ok(()),
        }
    }
}

fn block(height: u64) -> StoredBlock {
    let facts = BlockFacts {
        height: Height(height),
        id: BlockId([7; 32]),
        parent_id: BlockId([6; 32]),
        timestamp_ms: 0,
        tx_count: 0,
        log_count: 0,
        unverified: 0,
    };
    StoredBlock {
        facts,
        transactions: Vec::new(),
        header: Default::default(),
        body: Default::default(),
        receipts: Default::default(),
        extras: Default::default(),
        traces: None,
    }
}

#[test]
fn e24_a_block_that_can_not_be_mapped_keeps_no_other_from_being_compared() {
    let (made, failed) = map(&Rows, &(1..=4).map(block).collect::<Vec<_>>());
    let heights: Vec<_> = made["rows"].iter().map(|row| row.0[0].as_height()).collect();
    assert_eq!(heights, [Some(Height(1)), Some(Height(4))]);
    assert_eq!(failed.keys().copied().collect::<Vec<_>>(), [Height(2), Height(3)]);
    assert!(failed[&Height(2)].contains("not this one") && failed[&Height(3)].contains("nor this one"));
}

/// How many heights the archive has.
const HEIGHTS: u64 = 1_000;

/// A row of each block in a table that has none; or a block that nobody can process.
struct Transfers {
    fails: bool,
}

static TRANSFERS: ServiceInfo =
    ServiceInfo { name: "token_worker", version: 1_000, upstreams: &[], tables: &[&FT_TRANSFERS] };

impl Mapper for Transfers {
    fn service(&self) -> &'static ServiceInfo {
        &TRANSFERS
    }

    fn parts(&self) -> Parts {
        Parts::empty()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let at = block.facts.block_ref();
        if self.fails {
            return Err(ProcessError { block: at, message: "no decoder".into() });
        }
        // Nobody stores it: only its key counts.
        let mut values = vec![Value::Null; FT_TRANSFERS.columns.len()];
        values[0] = Value::height(at.height);
        out.row(&FT_TRANSFERS, Row(values));
        Ok(())
    }
}

async fn archive() -> Arc<dyn RawReader> {
    let chain = SyntheticChain::with_traffic(SyntheticOptions::tiny(1), SyntheticChain::tiny_traffic());
    let store = MemoryStore::new(Arc::new(SystemClock));
    let info = StoreInfo { uuid: [7; 16], chain_id: chain.chain_id(), chain_config: Default::default() };
    store.init(info).await.expect("is made");
    store.acquire().await.expect("is free");
    let fence = store.snapshot().await.expect("reads").head().fence;
    let heights = HeightRange::new(Height(0), Height(HEIGHTS));
    let blocks = heights.iter().map(|height| (*chain.block(ForkId::MAIN, height)).clone()).collect();
    store.append(fence, AppendBatch { blocks, finalized: None, safe: None }).await.expect("appends");
    Arc::new(store)
}

/// Lets the worker have done all heights, without rows, of the archive with this uuid.
async fn all_done(app: &dyn AppStore, uuid: [u8; 16]) {
    app.adopt(uuid, ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
    app.register(TRANSFERS.name, Height(0)).await.expect("registers");
    let request = ClaimRequest {
        service: TRANSFERS.name.into(),
        version: TRANSFERS.version,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights: HEIGHTS,
        first: Height(0),
        limit_exclusive: Height(HEIGHTS),
        stop_exclusive: None,
        in_order: false,
    };
    let lease = app.claim(&request).await.expect("claims").expect("a range");
    let commit = ChunkCommit {
        chunk: lease.range,
        parent_id: Some(BlockId([1; 32])),
        last_id: Some(BlockId([2; 32])),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    };
    app.commit_chunk(&lease, commit).await.expect("commits");
}

#[tokio::test]
async fn a_lost_table_is_asked_for_in_pieces_and_told_in_few_lines() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { data_dir: dir.path().into(), ..Config::default() };
    let (raw, app) = (archive().await, derive::open_for_command(&config).await.expect("opens"));
    all_done(&*app, [7; 16]).await;
    let catalog = derive::catalog(&config).expect("tables");
    let whole = HeightRange::new(Height(0), Height(HEIGHTS));
    let repair = async |fails: bool, range: HeightRange| {
        let processors = [Processor::Mapper(Arc::new(Transfers { fails }))];
        let derived = Derived {
            raw: &raw,
            app: &*app,
            catalog: &catalog,
            processors: &processors,
            config: &config,
            refold: false,
            ask_after: 300,
        };
        derived.repair(range).await
    };

    // Where no block can be processed a line each would be as long as the chain.
    let broken = repair(true, whole).await;
    assert_eq!((broken.unmended.count(), broken.unmended.kept().len()), (HEIGHTS, MAX_NAMED));
    assert_eq!((broken.rows_damaged, broken.outcome()), (0, Outcome::Unmended));
    assert!(broken.to_string().contains("not mended: … and 800 more like these"), "{broken}");

    // Pieces of 200 heights: more than 300 have differences after every second one.
    let lost = repair(false, whole).await;
    assert_eq!((lost.rows_damaged, lost.rows_requested, lost.outcome()), (HEIGHTS, HEIGHTS, Outcome::Mended));
    assert_eq!((lost.named.len(), lost.notes.count()), (MAX_NAMED, 0), "{lost}");
    let filter = LeaseFilter { limit: 1_000, ..LeaseFilter::default() };
    let leases = app.snapshot().await.expect("reads").leases(&filter).await.expect("reads");
    let mut again: Vec<HeightRange> =
        leases.iter().filter(|lease| lease.kind == LeaseKind::Reindex).map(|lease| lease.range).collect();
    again.sort_by_key(|range| range.start());
    let range = |from, to| HeightRange::new(Height(from), Height(to));
    assert_eq!(again, [range(0, 400), range(400, 800), range(800, HEIGHTS)]);

    // Once more before anybody did it: nothing is asked for twice.
    let waiting = repair(false, whole).await;
    assert_eq!((waiting.rows_damaged, waiting.rows_requested), (HEIGHTS, 0));
    assert_eq!((waiting.notes.count(), waiting.unmended.count()), (3, 0), "{waiting}");
    let leases = app.snapshot().await.expect("reads").leases(&filter).await.expect("reads");
    assert_eq!(leases.iter().filter(|lease| lease.kind == LeaseKind::Reindex).count(), 3);
}

#[tokio::test]
async fn blocks_that_are_not_those_of_the_rows_leave_a_repair_incomplete() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = Config { data_dir: dir.path().into(), ..Config::default() };
    let (raw, app) = (archive().await, derive::open_for_command(&config).await.expect("opens"));
    // The rows were made of another archive.
    all_done(&*app, [9; 16]).await;
    let catalog = derive::catalog(&config).expect("tables");
    let processors = [Processor::Mapper(Arc::new(Transfers { fails: false }))];
    let derived = Derived {
        raw: &raw,
        app: &*app,
        catalog: &catalog,
        processors: &processors,
        config: &config,
        refold: false,
        ask_after: ASK_AFTER,
    };
    let report = derived.repair(HeightRange::new(Height(0), Height(HEIGHTS + 50))).await;
    assert_eq!((report.outcome(), report.found()), (Outcome::Incomplete, 0), "{report}");
    let text = report.to_string();
    for part in [
        "not compared: token_worker: heights [0, 1000): a restored database was in the way",
        "note: token_worker: heights [1000, 1050) are not derived yet",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
