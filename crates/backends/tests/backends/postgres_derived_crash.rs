//! Workers, folders and an applier that die between any two statements: who comes after them ends as if nothing had happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_backends::postgres::{PgDerived, PgDerivedOptions, StatementHook};
use cairn_core::{BlockId, BlockRef, Height, HeightRange, SystemClock};
use cairn_store::derived::memory::MemoryDerived;
use cairn_store::derived::{
    ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, ColumnType, Coordinator, DerivedDump,
    DerivedStore, FoldedAt, LAST_HEIGHT, LeaseEnd, Merge, ReadMark, ReorgApplier, Row, Scan, StateRow,
    StateRows, Sum, TableClass, TableDef, TableRows, U256, Value, WorkerLease, column,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark, Result, StoreError};

use crate::support::pg;

static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("log_index", ColumnType::Int),
        column("amount", ColumnType::Amount),
    ],
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[],
};
static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: "folder",
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address"],
    indexes: &[],
};
const SERVICES: [&str; 2] = ["mapper", "folder"];
const RAW: [u8; 16] = [7; 16];
const NEVER: ReorgMark = ReorgMark { id: 0, digest: [0; 32] };

/// The fork leaves the chain above this height.
const COMMON: u64 = 3;
/// Where the first fork ended, and where the second one does.
const ENDS: [u64; 2] = [7, 8];

fn catalog() -> Catalog {
    Catalog::new([&TRANSFERS, &HOLDINGS]).expect("works")
}

/// What is at a height of the first fork or the second.
fn amount(height: u64, fork: u64) -> U256 {
    U256::from(if height > COMMON { 1_000 * fork + height } else { height })
}

fn id(height: u64, fork: u64) -> BlockId {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    id[8] = if height > COMMON { fork as u8 } else { 0 };
    BlockId(id)
}

fn reorg() -> ReorgEntry {
    let orphans = (COMMON + 1..ENDS[0]).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height, 0) },
        timestamp_ms: height,
    });
    let common = BlockRef { height: Height(COMMON), id: id(COMMON, 0) };
    ReorgEntry::chain(1, &[0; 32], RAW, common, orphans.collect(), 0)
}

fn address(height: u64) -> Vec<u8> {
    vec![(height % 3) as u8; 20]
}

/// The state after a chunk, from what it was.
async fn folded(store: &impl DerivedStore, chunk: HeightRange, fork: u64) -> Result<Vec<StateRow>> {
    let mut before: BTreeMap<Vec<u8>, Row> = BTreeMap::new();
    for row in store.snapshot().await?.scan(&Scan::new("holdings", 100)).await?.rows {
        if let Some(Value::Bytes(address)) = row.0.first() {
            before.insert(address.to_vec(), row.clone());
        }
    }
    let mut states: BTreeMap<Vec<u8>, StateRow> = BTreeMap::new();
    for height in chunk.iter() {
        let address = address(height.get());
        let old =
            states.get(&address).map(|state| state.row.clone()).or_else(|| before.get(&address).cloned());
        let balance = match old.as_ref().and_then(|row| row.0.get(1)) {
            Some(Value::Sum(balance)) => **balance,
            _ => Sum::ZERO,
        };
        let balance = balance + Sum::from(amount(height.get(), fork));
        let row = Row(vec![Value::bytes(&address), Value::Sum(Box::new(balance)), Value::uint(height.get())]);
        let state = states.entry(address).or_insert(StateRow { row: row.clone(), undo: Vec::new() });
        state.row = row;
        state.undo.push((height, old));
    }
    Ok(states.into_values().collect())
}

async fn commit(store: &impl DerivedStore, lease: &WorkerLease, fork: u64) -> Result<WorkerLease> {
    let end = lease.done_to.get() + 2;
    let chunk =
        HeightRange::new(lease.done_to, Height(end.min(lease.range.end().get()).min(ENDS[fork as usize])));
    let last = chunk.last().unwrap_or_default();
    let mut commit = ChunkCommit {
        chunk,
        parent_id: Some(chunk.start().prev().map_or(BlockId::default(), |below| id(below.get(), fork))),
        last_id: Some(id(last.get(), fork)),
        read: ReadMark { reorg_id: fork, known_to: fork, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    };
    if lease.service == "folder" {
        commit.folded_at = Some(FoldedAt::applied(fork));
        commit.states = vec![StateRows { table: "holdings", rows: folded(store, chunk, fork).await? }];
    } else {
        let transfers = chunk.iter().map(|height| {
            let amount = Value::Amount(amount(height.get(), fork));
            Row(vec![Value::uint(height.get()), Value::uint(0), amount])
        });
        commit.rows = vec![TableRows { table: "transfers", rows: transfers.collect() }];
    }
    Ok(store.commit_chunk(lease, commit).await?.lease)
}

/// Both services up to the end of a fork: claims, renewals, chunks, and leases that are given back.
async fn derive(store: &impl DerivedStore, fork: u64) -> Result<()> {
    let end = Height(ENDS[fork as usize]);
    for service in SERVICES {
        loop {
            let checkpoint = store.snapshot().await?.checkpoint(service).map(|checkpoint| checkpoint.next);
            if checkpoint == Some(end) {
                break;
            }
            let request = ClaimRequest {
                service: service.into(),
                version: 1,
                owner: "test".into(),
                ttl_ms: 60_000,
                range_heights: 3,
                first: Height(0),
                limit_exclusive: Height(1_000),
                stop_exclusive: None,
                in_order: false,
            };
            let claimed = store.claim(&request).await?;
            let mut lease = claimed.ok_or_else(|| StoreError::Invalid("there is nothing to do".into()))?;
            lease = store.renew(&lease, 90_000).await?;
            while lease.done_to < lease.range.end().min(end) {
                lease = commit(store, &lease, fork).await?;
            }
            if lease.done_to < lease.range.end() {
                store.end(&lease, LeaseEnd::Released).await?;
            }
        }
    }
    Ok(())
}

/// A process's whole life, from wherever the one before it came to.
async fn live(store: &impl DerivedStore) -> Result<()> {
    let forks = match store.forks().await? {
        Some(forks) => forks,
        None => store.adopt(RAW, NEVER).await?,
    };
    for service in SERVICES {
        store.register(service, Height(0)).await?;
    }
    store.release_all().await?;
    if forks.begun.id == 0 {
        derive(store, 0).await?;
    }
    if forks.applied.id == 0 {
        store.begin_apply(&reorg()).await?;
        while store.apply_step(1, 2).await? == ApplyProgress::More {}
        store.finish_apply(1).await?;
    }
    derive(store, 1).await
}

/// Breaks the statement with this number.
struct BreakAt {
    left: AtomicU64,
}

impl StatementHook for BreakAt {
    fn before_statement(&self) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(StoreError::Database("crash".into())),
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_a_crash_between_any_two_statements_of_derived_work_ends_as_a_clean_run() {
    let Some(db) = pg::database().await else { return };
    // The second fork alone, on an empty store (law 7).
    let clean = MemoryDerived::new(catalog(), Arc::new(SystemClock));
    clean.adopt(RAW, ReorgMark { id: 1, digest: reorg().digest }).await.expect("adopts");
    for service in SERVICES {
        clean.register(service, Height(0)).await.expect("registers");
    }
    derive(&clean, 1).await.expect("derives");
    let clean = clean.dump().await.expect("dumps");
    let options =
        PgDerivedOptions { write: db.options(), read: db.options(), ..PgDerivedOptions::new(&db.url) };
    let open = async || PgDerived::open(options.clone(), catalog(), None).await.expect("opens");
    // Two processes that share nothing but the database.
    let (dying, next) = (open().await, open().await);
    let mut statements = 0;
    for crash_at in 0.. {
        // A TRUNCATE would make every table and index anew, and every statement's plan with them.
        db.sql(
            "DELETE FROM app.reorg_state; DELETE FROM app.reorgs_applied; DELETE FROM app.indexing_checkpoints; DELETE FROM app.worker_leases; \
             DELETE FROM app.state_undo; DELETE FROM app.quarantined_blocks; DELETE FROM app.rebuilds; DELETE FROM app.transfers; \
             DELETE FROM app.holdings",
        )
        .await;
        dying.set_statement_hook(Some(Arc::new(BreakAt { left: AtomicU64::new(crash_at) })));
        let crashed = match live(&dying).await {
            Ok(()) => false,
            Err(StoreError::Database(error)) if error == "crash" => true,
            Err(error) => panic!("crash at {crash_at}: {error}"),
        };
        live(&next).await.unwrap_or_else(|error| panic!("after a crash at {crash_at}: {error}"));
        let dump = next.dump().await.expect("dumps");
        assert_eq!(dump.first_difference(&clean), None, "crash at {crash_at}");
        if !crashed {
            statements = crash_at;
            break;
        }
    }
    assert!(statements > 150, "{statements} statements");
}
