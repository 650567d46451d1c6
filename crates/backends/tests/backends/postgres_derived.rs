//! What is PostgreSQL's own about the derived store: its schema, partitions, gate, pools, and what happens when somebody else was at
//! the tables.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_backends::postgres::{Isolation, PgDerived, PgDerivedOptions, PgOptions, PgPool};
use cairn_core::{BlockId, BlockRef, Clock, ErrorKind, Height, HeightRange, SystemClock};
use cairn_store::derived::{
    ASKED_AT_HEIGHT, ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, Column, ColumnType,
    Committed, Coordinator, DerivedDump, DerivedMaintenance, DerivedReader, DerivedWriter, FoldedAt,
    IndexDef, Key, LAST_HEIGHT, LeaseFilter, LeaseStatus, Merge, ReadMark, ReorgApplier, Row, Scan, StateRow,
    StateRows, Sum, TableClass, TableDef, TableRows, U256, Value, WorkerLease, column,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark, Result, StoreError};

use crate::support::pg;

const TRANSFER_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("token", ColumnType::Bytes),
    column("from", ColumnType::Bytes),
    column("to", ColumnType::Bytes),
    column("amount", ColumnType::Amount),
];
const BY_FROM: IndexDef = IndexDef { name: "by_from", columns: &["from", BLOCK_HEIGHT] };
static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: TRANSFER_COLUMNS,
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[BY_FROM],
};
const HOLDING_COLUMNS: &[Column] = &[
    column("address", ColumnType::Bytes),
    column("balance", ColumnType::Sum).merged(Merge::Sum),
    column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
];
static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: "folder",
    class: TableClass::State,
    columns: HOLDING_COLUMNS,
    key: &["address"],
    indexes: &[IndexDef { name: "by_balance", columns: &["balance"] }],
};
static NAMES: TableDef = TableDef {
    name: "names",
    service: "asker",
    class: TableClass::Answers,
    columns: &[column("address", ColumnType::Bytes), column(ASKED_AT_HEIGHT, ColumnType::Int)],
    key: &["address"],
    indexes: &[],
};

const RAW: [u8; 16] = [7; 16];

fn catalog() -> Catalog {
    Catalog::new([&TRANSFERS, &HOLDINGS, &NAMES]).expect("works")
}

fn id(height: u64) -> BlockId {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

fn transfer(height: u64, log_index: u64, from: u8) -> Row {
    Row(vec![
        Value::uint(height),
        Value::uint(log_index),
        Value::bytes(&[9; 20]),
        Value::bytes(&[from; 20]),
        Value::bytes(&[3; 20]),
        Value::Amount(U256::MAX),
    ])
}

fn holding(address: u64, balance: Sum, last_height: u64) -> Row {
    Row(vec![Value::bytes(&address.to_be_bytes()), Value::Sum(Box::new(balance)), Value::uint(last_height)])
}

struct World {
    store: PgDerived,
    db: pg::TestDb,
}

impl World {
    /// An adopted store with its services at height 0; `None` where there is no server.
    async fn new(change: impl FnOnce(&mut PgDerivedOptions)) -> Option<World> {
        Some(World::over(pg::database().await?, change).await)
    }

    /// The same over a database that is there.
    async fn over(db: pg::TestDb, change: impl FnOnce(&mut PgDerivedOptions)) -> World {
        let store = open(&db, catalog(), change).await.expect("works");
        store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await.expect("works");
        for service in ["mapper", "folder", "asker"] {
            store.register(service, Height(0)).await.expect("works");
        }
        World { store, db }
    }

    async fn claim(&self, service: &str, range_heights: u64) -> WorkerLease {
        self.store.claim(&request(service, range_heights)).await.expect("works").expect("works")
    }

    async fn commit(&self, lease: &WorkerLease, to: u64, rows: Vec<Row>) -> Result<Committed> {
        let rows = vec![TableRows { table: "transfers", rows }];
        self.store.commit_chunk(lease, ChunkCommit { rows, ..chunk(lease, to) }).await
    }

    async fn fold(&self, lease: &WorkerLease, to: u64, rows: Vec<StateRow>) -> Result<Committed> {
        let states = vec![StateRows { table: "holdings", rows }];
        let applied = self.store.forks().await.expect("works").expect("works").applied.id;
        let folded_at = Some(FoldedAt::applied(applied));
        self.store.commit_chunk(lease, ChunkCommit { states, folded_at, ..chunk(lease, to) }).await
    }

    async fn count(&self, sql: &str) -> i64 {
        let conn = self.db.pool().get().await.expect("works");
        conn.query_one(sql, &[]).await.expect("works").get(0)
    }
}

async fn open(
    db: &pg::TestDb,
    catalog: Catalog,
    change: impl FnOnce(&mut PgDerivedOptions),
) -> Result<PgDerived> {
    let mut options =
        PgDerivedOptions { write: db.options(), read: db.options(), ..PgDerivedOptions::new(&db.url) };
    change(&mut options);
    PgDerived::open(options, catalog, None).await
}

fn request(service: &str, range_heights: u64) -> ClaimRequest {
    ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights,
        first: Height(0),
        limit_exclusive: Height(i64::MAX as u64),
        stop_exclusive: None,
        in_order: false,
    }
}

/// A chunk of nothing from where the lease stands.
fn chunk(lease: &WorkerLease, to: u64) -> ChunkCommit {
    let start = lease.done_to;
    ChunkCommit {
        chunk: HeightRange::new(start, Height(to)),
        parent_id: Some(start.prev().map_or(BlockId::default(), |height| id(height.get()))),
        last_id: Some(id(to - 1)),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    }
}

async fn all(store: &PgDerived, table: &'static str) -> Vec<Row> {
    store.snapshot().await.expect("works").scan(&Scan::new(table, 10_000)).await.expect("works").rows
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verification_queries_run_as_they_stand() {
    let Some(world) = World::new(|_| {}).await else { return };
    let lease = world.claim("mapper", 10).await;
    world.commit(&lease, 10, vec![transfer(3, 0, 1)]).await.unwrap();
    world.claim("mapper", 10).await;
    let conn = world.db.pool().get().await.unwrap();
    let sql = "SELECT worker_type, status, COUNT(*) FROM app.worker_leases GROUP BY 1, 2 ORDER BY 1;";
    let mut states: Vec<(String, String, i64)> =
        conn.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    states.sort();
    assert_eq!(states, [("mapper".into(), "ACTIVE".into(), 1), ("mapper".into(), "COMPLETED".into(), 1)]);
    let sql = "SELECT * FROM app.indexing_checkpoints ORDER BY service_name;";
    let rows = conn.query(sql, &[]).await.unwrap();
    let checkpoints: Vec<(&str, i64)> =
        rows.iter().map(|row| (row.get("service_name"), row.get("last_height"))).collect();
    assert_eq!(checkpoints, [("asker", -1), ("folder", -1), ("mapper", 9)]);
    let sql = "SELECT * FROM app.worker_leases WHERE status = 'FAILED' AND attempt >= 20;";
    assert!(conn.query(sql, &[]).await.unwrap().is_empty());
    let sql = "SELECT worker_type, from_height, to_height
FROM app.worker_leases
WHERE status != 'COMPLETED'
ORDER BY worker_type, from_height;";
    let open = conn.query(sql, &[]).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!((open[0].get::<_, i64>(1), open[0].get::<_, i64>(2)), (10, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_forbids_leases_that_overlap() {
    for use_extensions in [true, false] {
        let Some(world) = World::new(|options| options.use_extensions = use_extensions).await else { return };
        world.claim("mapper", 10).await;
        let conn = world.db.pool().get().await.unwrap();
        let insert = |service: &str, kind: &str, from: u32| {
            format!(
                "INSERT INTO app.worker_leases (worker_type, kind, from_height, to_height, status, leased_by, fence, lease_expires_at,
                     next_try_at, attempt, done_to, claimed_done_to, version, last_error, created_at, updated_at)
                 VALUES ('{service}', '{kind}', {from}, {from} + 5, 'FAILED', '', 1, now(), now(), 0, {from}, {from}, 1, '', now(), now())"
            )
        };
        let refused = conn.batch(&insert("mapper", "index", 7)).await.unwrap_err();
        assert!(refused.to_string().contains("worker_leases_apart"), "{refused}");
        conn.batch(&insert("mapper", "reindex", 7)).await.unwrap();
        conn.batch(&insert("folder", "index", 7)).await.unwrap();
        conn.batch(&insert("mapper", "index", 10)).await.unwrap();
        let is_constraint =
            world.count("SELECT count(*) FROM pg_constraint WHERE conname = 'worker_leases_apart'").await
                == 1;
        assert_eq!(is_constraint, use_extensions);
        // Opened again, by whoever: nothing is made twice.
        open(&world.db, catalog(), |options| options.use_extensions = !use_extensions).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_open_and_claim_at_once_get_in_nobodys_way() {
    let Some(db) = pg::database().await else { return };
    let db = Arc::new(db);
    let opened = futures::future::join_all((0..4).map(|_| open(&db, catalog(), |_| {}))).await;
    let stores: Vec<PgDerived> = opened.into_iter().map(Result::unwrap).collect();
    stores[0].adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await.unwrap();
    stores[0].register("mapper", Height(0)).await.unwrap();
    let claims = (0..24).map(|n| {
        let store = stores[n % 4].clone();
        tokio::spawn(async move { store.claim(&request("mapper", 10)).await.unwrap().unwrap() })
    });
    let mut leases: Vec<WorkerLease> =
        futures::future::join_all(claims).await.into_iter().map(|lease| lease.unwrap()).collect();
    leases.sort_by_key(|lease| lease.range.start());
    let begins: Vec<u64> = leases.iter().map(|lease| lease.range.start().get()).collect();
    assert_eq!(begins, (0..24).map(|n| n * 10).collect::<Vec<_>>());
    let mut fences: Vec<u64> = leases.iter().map(|lease| lease.fence.0).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), 24);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_definition_is_refused_and_an_addition_made() {
    static OTHER: TableDef = TableDef { columns: OTHER_COLUMNS, indexes: &[], ..transfers() };
    const OTHER_COLUMNS: &[Column] = &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("log_index", ColumnType::Int),
        column("token", ColumnType::Text),
    ];
    const fn transfers() -> TableDef {
        TableDef {
            name: "transfers",
            service: "mapper",
            class: TableClass::Events { partition_heights: 1_000 },
            columns: TRANSFER_COLUMNS,
            key: &[BLOCK_HEIGHT, "log_index"],
            indexes: &[],
        }
    }
    static MORE_INDEXES: TableDef = TableDef {
        indexes: &[BY_FROM, IndexDef { name: "by_to", columns: &["to", BLOCK_HEIGHT] }],
        ..transfers()
    };
    static EVEN_MORE: TableDef = TableDef {
        indexes: &[BY_FROM, IndexDef { name: "by_token", columns: &["token", BLOCK_HEIGHT] }],
        ..transfers()
    };
    static OTHER_INDEX: TableDef =
        TableDef { indexes: &[IndexDef { name: "by_from", columns: &["to"] }], ..transfers() };

    let Some(db) = pg::database().await else { return };
    open(&db, Catalog::new([&TRANSFERS]).unwrap(), |_| {}).await.unwrap();
    for (wrong, word) in [(&OTHER, "transfers"), (&OTHER_INDEX, "by_from")] {
        let refused = open(&db, Catalog::new([wrong]).unwrap(), |_| {}).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(what) if what.contains(word)), "{refused}");
    }
    open(&db, Catalog::new([&MORE_INDEXES, &HOLDINGS]).unwrap(), |_| {}).await.unwrap();
    // With partitions there, an index is built one by one (`postgres_derived_indexes.rs`); until then it is as if it were there, only slower.
    let store = open(&db, Catalog::new([&MORE_INDEXES, &HOLDINGS]).unwrap(), |_| {}).await.unwrap();
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await.unwrap();
    store.register("mapper", Height(0)).await.unwrap();
    let lease = store.claim(&request("mapper", 10)).await.unwrap().unwrap();
    let rows = vec![TableRows { table: "transfers", rows: vec![transfer(3, 0, 1), transfer(4, 0, 1)] }];
    store.commit_chunk(&lease, ChunkCommit { rows, ..chunk(&lease, 10) }).await.unwrap();
    let store = open(&db, Catalog::new([&EVEN_MORE, &HOLDINGS]).unwrap(), |_| {}).await.unwrap();
    let scan =
        Scan { index: Some("by_token"), prefix: vec![Value::bytes(&[9; 20])], ..Scan::new("transfers", 10) };
    assert_eq!(store.snapshot().await.unwrap().scan(&scan).await.unwrap().rows.len(), 2);
    assert!(!store.explain(&scan).await.unwrap().contains("token_block_height"));
    while store.build_indexes(Height(0)).await.unwrap() {}
    assert!(store.explain(&scan).await.unwrap().contains("by_token"));
    // A program that doesn't know a table can't apply reorgs to it.
    let refused = open(&db, Catalog::new([&TRANSFERS]).unwrap(), |_| {}).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Invalid(what) if what.contains("holdings")), "{refused}");
    db.sql("INSERT INTO app.schema_migrations (version, name) VALUES (99, 'the future')").await;
    let refused = open(&db, catalog(), |_| {}).await.unwrap_err();
    assert!(matches!(refused, StoreError::UnknownSchema { found: 99, .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_have_the_size_that_was_asked_for_and_another_one_is_refused_by_name() {
    let Some(db) = pg::database().await else { return };
    let sized = |heights| {
        let sizes = [("transfers".to_owned(), heights)].into();
        Catalog::new([&TRANSFERS, &HOLDINGS]).unwrap().with_partitions(None, &sizes).unwrap()
    };
    let store = open(&db, sized(20), |_| {}).await.unwrap();
    store.adopt(RAW, ReorgMark { id: 0, digest: [0; 32] }).await.unwrap();
    store.register("mapper", Height(0)).await.unwrap();
    let lease = store.claim(&request("mapper", 50)).await.unwrap().unwrap();
    let rows = vec![TableRows { table: "transfers", rows: vec![transfer(3, 0, 1), transfer(44, 0, 1)] }];
    store.commit_chunk(&lease, ChunkCommit { rows, ..chunk(&lease, 50) }).await.unwrap();
    let bounds =
        "SELECT string_agg(pg_get_expr(c.relpartbound, c.oid), ' ' ORDER BY c.relname) FROM pg_inherits i
         JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'app.transfers'::regclass";
    let row = db.pool().get().await.unwrap().query_one(bounds, &[]).await.unwrap();
    let bounds: String = row.try_get(0).unwrap();
    assert!(bounds.contains("FROM ('0') TO ('20')") && bounds.contains("FROM ('40') TO ('60')"), "{bounds}");
    drop(store);
    for catalog in [sized(30), Catalog::new([&TRANSFERS, &HOLDINGS]).unwrap()] {
        let refused = open(&db, catalog, |_| {}).await.unwrap_err();
        let StoreError::Invalid(what) = refused else { panic!("{refused}") };
        assert!(what.contains("table transfers was made with partitions of 20 heights"), "{what}");
        assert!(what.contains("cairn migrate --in-place app.transfers"), "{what}");
    }
    open(&db, sized(20), |_| {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn p03_no_statement_grows_with_its_rows() {
    let Some(world) = World::new(|options| options.statement_bytes = 64 << 10).await else { return };
    let lease = world.claim("mapper", 1_000).await;
    let rows: Vec<Row> = (0..30_000).map(|n| transfer(n / 100, n, (n % 7) as u8)).collect();
    world.commit(&lease, 300, rows.clone()).await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM app.transfers").await, 30_000);
    // The careful way too: every row is there already.
    let again = world.claim("mapper", 1_000).await;
    world
        .db
        .sql("UPDATE app.worker_leases SET done_to = from_height, last_id = NULL, first_parent = NULL")
        .await;
    drop(again);
    let lease = world.store.lease(lease.id).await.unwrap().unwrap();
    world.commit(&lease, 300, rows).await.unwrap();
    let folder = world.claim("folder", 1_000).await;
    let states = (0..20_000).map(|n| StateRow {
        row: holding(n, Sum::from(U256::MAX) + Sum::from(U256::MAX), 299),
        undo: vec![(Height(299), None)],
    });
    world.fold(&folder, 300, states.collect()).await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM app.holdings").await, 20_000);
    assert_eq!(world.count("SELECT count(*) FROM app.state_undo").await, 20_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn p06_no_counter_has_32_bits() {
    let Some(world) = World::new(|_| {}).await else { return };
    let small = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'app' AND data_type IN ('integer', 'smallint')";
    assert_eq!(world.count(small).await, 0);
    let sequences =
        "SELECT count(*) FROM pg_sequences WHERE schemaname = 'app' AND max_value < 9223372036854775807";
    assert_eq!(world.count(sequences).await, 0);
    let near = (1_u64 << 31) - 3;
    world
        .db
        .sql(&format!(
            "SELECT setval('app.fences', {near}), setval(pg_get_serial_sequence('app.worker_leases', 'id'), {near})"
        ))
        .await;
    for n in 1..=6 {
        let lease = world.claim("mapper", 10).await;
        assert_eq!((lease.id, lease.fence.0), (near + n, near + n));
        world.commit(&lease, n * 10, vec![transfer(n * 10 - 1, near + n, 1)]).await.unwrap();
    }
}

/// A worker makes rows from 0 on while another one is at 20 million: nothing is made between the two.
#[tokio::test(flavor = "multi_thread")]
async fn p07_rows_at_0_and_at_20_million_have_partitions_of_their_own_and_none_between() {
    const HIGH: u64 = 20_000_000;
    let Some(world) = World::new(|_| {}).await else { return };
    let (below, above) = (world.claim("mapper", HIGH).await, world.claim("mapper", HIGH).await);
    assert_eq!((below.range.start(), above.range.start()), (Height(0), Height(HIGH)));
    world.commit(&above, HIGH + 60, vec![transfer(HIGH + 59, 0, 1)]).await.unwrap();
    world.commit(&below, 60, vec![transfer(0, 0, 1), transfer(59, 0, 1)]).await.unwrap();
    let of = |from: u64, to: u64| {
        format!("SELECT count(*) FROM app.transfers WHERE block_height BETWEEN {from} AND {to}")
    };
    assert_eq!((world.count(&of(0, 59)).await, world.count(&of(HIGH, HIGH + 59)).await), (2, 1));
    // Each with those ahead of it that a commit makes.
    let names = "SELECT string_agg(c.relname, ' ' ORDER BY length(c.relname), c.relname) FROM pg_inherits i \
                 JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'app.transfers'::regclass";
    let conn = world.db.pool().get().await.unwrap();
    let names: String = conn.query_one(names, &[]).await.unwrap().get(0);
    assert_eq!(
        names,
        "transfers_p0 transfers_p1 transfers_p2 transfers_p20000 transfers_p20001 transfers_p20002"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn p07_partitions_are_there_before_their_rows() {
    let Some(world) = World::new(|_| {}).await else { return };
    // Far above, while nothing is there below.
    let live = world.claim("mapper", 1_000).await;
    world.commit(&live, 900, vec![transfer(899, 0, 1)]).await.unwrap();
    world.store.maintain(Height(20_000_000)).await.unwrap();
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.transfers'::regclass";
    assert_eq!(world.count(partitions).await, 6);
    // Four processes need the same new ones at once.
    let mut stores = Vec::new();
    for _ in 0..4 {
        stores.push(open(&world.db, catalog(), |_| {}).await.unwrap());
    }
    let heights = HeightRange::new(Height(5_500), Height(8_500));
    let made = futures::future::join_all(stores.iter().map(|store| store.ensure_partitions(heights))).await;
    made.into_iter().for_each(|made| made.unwrap());
    assert_eq!(world.count(partitions).await, 12);
    // One goes away behind our back.
    let next = world.store.lease(live.id).await.unwrap().unwrap();
    world.db.sql("DROP TABLE app.transfers_p0").await;
    world.commit(&next, 1_000, vec![transfer(950, 0, 1)]).await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM app.transfers").await, 1);
    // A height out of all proportion makes nothing.
    let absurd = HeightRange::new(Height(0), Height(1 << 62));
    let refused = world.store.ensure_partitions(absurd).await.unwrap_err();
    assert!(matches!(refused, StoreError::Invalid(_)), "{refused}");
    world.store.ensure_partitions(HeightRange::one(Height(i64::MAX as u64 - 1))).await.unwrap();
    assert_eq!(world.count(partitions).await, 13);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_somebody_put_there_are_compared() {
    let Some(world) = World::new(|_| {}).await else { return };
    let lease = world.claim("mapper", 100).await;
    let lease = world.commit(&lease, 10, vec![transfer(9, 0, 1)]).await.unwrap().lease;
    let insert = "INSERT INTO app.transfers SELECT 12, 0, decode(repeat('09', 20), 'hex'), decode(repeat('01', 20), 'hex'),
         decode(repeat('03', 20), 'hex'), 2::numeric ^ 256 - 1";
    world.db.sql(insert).await;
    let rows = vec![transfer(11, 0, 1), transfer(12, 0, 1)];
    let lease = world.commit(&lease, 20, rows.clone()).await.unwrap().lease;
    assert_eq!(all(&world.store, "transfers").await[1..], rows);
    world.db.sql("INSERT INTO app.transfers SELECT 25, 0, token, \"from\", \"to\", 5 FROM app.transfers WHERE block_height = 12").await;
    let before = world.store.dump().await.unwrap();
    let refused = world.commit(&lease, 30, vec![transfer(24, 0, 1), transfer(25, 0, 1)]).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Corrupt { place, .. } if place.contains("transfers")),
        "{refused}"
    );
    assert_eq!(world.store.dump().await.unwrap(), before);
    assert_eq!(world.store.lease(lease.id).await.unwrap().unwrap().done_to, Height(20));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_height_guard_is_a_second_line() {
    let Some(world) = World::new(|_| {}).await else { return };
    let lease = world.claim("folder", 100).await;
    let state = |n, last| StateRow { row: holding(n, Sum::ZERO, last), undo: vec![(Height(last), None)] };
    let lease = world.fold(&lease, 10, vec![state(1, 5), state(2, 6)]).await.unwrap().lease;
    world.db.sql("UPDATE app.holdings SET last_height = 50 WHERE last_height = 5").await;
    let refused = world.fold(&lease, 20, vec![state(1, 15), state(2, 16)]).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Corrupt { what, .. } if what.contains("height guard")),
        "{refused}"
    );
    assert_eq!(refused.kind(), ErrorKind::Halt);
    assert_eq!(world.count("SELECT count(*) FROM app.holdings WHERE last_height > 10").await, 1);
    assert_eq!(
        world.count("SELECT last_height FROM app.indexing_checkpoints WHERE service_name = 'folder'").await,
        9
    );
}

/// Applies a reorg; how many steps it took.
async fn apply(store: &PgDerived, entry: &ReorgEntry, max_rows: usize) -> u32 {
    store.begin_apply(entry).await.expect("works");
    let mut steps = 1;
    while store.apply_step(entry.id, max_rows).await.expect("works") == ApplyProgress::More {
        steps += 1;
    }
    store.finish_apply(entry.id).await.expect("works");
    steps
}

fn reorg(common: u64, orphans: u64) -> ReorgEntry {
    let orphans = (common + 1..=common + orphans).map(|height| OrphanRef {
        block: BlockRef { height: Height(height), id: id(height) },
        timestamp_ms: height,
    });
    let common = BlockRef { height: Height(common), id: id(common) };
    ReorgEntry::chain(1, &[0; 32], RAW, common, orphans.collect(), 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_a_holder_in_every_block_is_restored_in_bounded_steps() {
    let Some(world) = World::new(|_| {}).await else { return };
    let (mapper, folder) = (world.claim("mapper", 1_000).await, world.claim("folder", 1_000).await);
    let rows = (0..400).flat_map(|height| (0..5).map(move |n| transfer(height, n, n as u8)));
    world.commit(&mapper, 400, rows.collect()).await.unwrap();
    // One row that every block changes, and one that each block makes.
    let amount = |height: u64| Sum::from(U256::from(height)) + -Sum::from(U256::MAX);
    let before = |height: u64| height.checked_sub(1).map(|below| holding(1 << 40, amount(below), below));
    let undo = (0..400).map(|height| (Height(height), before(height))).collect();
    let mut states = vec![StateRow { row: holding(1 << 40, amount(399), 399), undo }];
    states.extend((0..400).map(|height| StateRow {
        row: holding(height, amount(height), height),
        undo: vec![(Height(height), None)],
    }));
    world.fold(&folder, 400, states).await.unwrap();

    let steps = apply(&world.store, &reorg(99, 300), 500).await;
    assert!((4..=12).contains(&steps), "{steps} steps");
    let holdings = all(&world.store, "holdings").await;
    assert_eq!(holdings.len(), 101);
    assert_eq!(holdings[100], holding(1 << 40, amount(99), 99));
    assert_eq!(all(&world.store, "transfers").await.len(), 500);
    assert_eq!(world.count("SELECT count(*) FROM app.state_undo").await, 200);
    assert_eq!(world.count("SELECT count(*) FROM app.reorgs_applied WHERE finished").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn r09_three_blocks_of_a_large_table_are_undone_without_reading_the_rest() {
    const HEIGHTS: u64 = 600;
    const PER_BLOCK: u64 = 50;
    let Some(world) = World::new(|_| {}).await else { return };
    let mapper = world.claim("mapper", 1_000).await;
    let rows = (0..HEIGHTS).flat_map(|height| (0..PER_BLOCK).map(move |n| transfer(height, n, n as u8)));
    let rows: Vec<Row> = rows.collect();
    world.commit(&mapper, HEIGHTS, rows).await.unwrap();
    world.db.pool().get().await.unwrap().batch("ANALYZE").await.unwrap();
    // What was read of the tables in the place of rows, by scans of whole tables and by indexes.
    const READ: &str = "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint FROM pg_stat_user_tables \
                        WHERE schemaname = 'app' AND relname LIKE 'transfers%'";
    const DELETED: &str = "SELECT coalesce(sum(n_tup_del), 0)::bigint FROM pg_stat_user_tables \
                           WHERE schemaname = 'app' AND relname LIKE 'transfers%'";
    // Statistics are told some time after a transaction.
    let told = async |sql: &'static str, least: i64| {
        for _ in 0..100 {
            let now = world.count(sql).await;
            if now >= least {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{sql}: never {least}");
    };
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = world.count(READ).await;
    apply(&world.store, &reorg(HEIGHTS - 4, 3), 10_000).await;
    let undone = 3 * PER_BLOCK as i64;
    assert_eq!(told(DELETED, undone).await, undone);
    let read = world.count(READ).await - before;
    assert!(read <= 4 * undone, "{read} of {} rows were read to delete {undone}", HEIGHTS * PER_BLOCK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_know_a_table_applies_no_reorg() {
    let Some(world) = World::new(|_| {}).await else { return };
    static LATER: TableDef = TableDef {
        name: "later",
        service: "later",
        class: TableClass::Content,
        columns: &[column("hash", ColumnType::Bytes)],
        key: &["hash"],
        indexes: &[],
    };
    world.store.begin_apply(&reorg(10, 5)).await.unwrap();
    open(&world.db, Catalog::new([&TRANSFERS, &HOLDINGS, &NAMES, &LATER]).unwrap(), |_| {}).await.unwrap();
    let refused = world.store.apply_step(1, 100).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Invalid(what) if what.contains("newer program")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_keeps_commits_and_reorgs_apart() {
    let Some(world) = World::new(|_| {}).await else { return };
    let lease = world.claim("mapper", 100).await;
    // Whoever applies a reorg holds the gate; the key is the name's FNV-1a.
    let mut applier = world.db.pool().get().await.unwrap();
    applier.begin(Isolation::ReadCommitted).await.unwrap();
    applier.lock_until_end("cairn.app.gate").await.unwrap();
    let commit = world.commit(&lease, 10, vec![transfer(3, 0, 1)]);
    tokio::pin!(commit);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut commit).await.is_err());
    applier.rollback().await.unwrap();
    commit.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn l03_only_the_servers_clock_counts() {
    // A process whose clock is ten minutes behind the server's, and one whose clock is ten minutes ahead.
    for (skew, seconds) in [("10 minutes", 600_i64), ("-10 minutes", -600)] {
        let Some(db) = pg::database().await else { return };
        db.skew_clock(skew).await;
        let world = World::over(db, |_| {}).await;
        let short = ClaimRequest { ttl_ms: 3_000, ..request("mapper", 10) };
        let lease = world.store.claim(&short).await.unwrap().unwrap();
        let ahead_ms = lease.expires_at_ms as i64 - SystemClock.now_ms() as i64;
        assert!((ahead_ms - seconds * 1_000).abs() < 60_000, "the clocks differ by {skew}: {ahead_ms} ms");
        // While it lasts nobody else has the range, and nobody reaps it, however late it is here or there.
        assert!(world.store.reap(10).await.unwrap().is_empty(), "{skew}");
        let other =
            world.store.claim(&ClaimRequest { owner: "other".into(), ..short.clone() }).await.unwrap();
        assert_ne!(other.map(|lease| lease.range), Some(lease.range), "{skew}");
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        world.store.renew(&lease, 3_000).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert!(world.store.reap(10).await.unwrap().iter().all(|reaped| reaped.id != lease.id), "{skew}");
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let reaped = world.store.reap(10).await.unwrap();
        assert!(
            reaped.iter().any(|reaped| reaped.id == lease.id && reaped.attempt == 1),
            "{skew}: {reaped:?}"
        );
        let taken = world.store.claim(&short).await.unwrap().unwrap();
        assert!(taken.id == lease.id && taken.fence > lease.fence, "{skew}: {taken:?}");
        // The zombie wakes up (L01).
        let refused = world.commit(&lease, 10, vec![transfer(3, 0, 1)]).await.unwrap_err();
        assert!(matches!(refused, StoreError::Fenced { .. }), "{skew}: {refused}");
        assert_eq!(world.count("SELECT count(*) FROM app.transfers").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l06_reaping_waits_for_nobody() {
    let Some(world) = World::new(|_| {}).await else { return };
    for _ in 0..5 {
        world.store.claim(&ClaimRequest { ttl_ms: 0, ..request("mapper", 10) }).await.unwrap();
        world
            .db
            .sql("UPDATE app.worker_leases SET lease_expires_at = 'infinity' WHERE lease_expires_at < now()")
            .await;
    }
    world.db.sql("UPDATE app.worker_leases SET lease_expires_at = now() - interval '1 day'").await;
    // Two of them are being committed right now.
    let mut busy = world.db.pool().get().await.unwrap();
    busy.begin(Isolation::ReadCommitted).await.unwrap();
    busy.batch("SELECT 1 FROM app.worker_leases WHERE from_height < 20 FOR UPDATE").await.unwrap();
    let reaped = world.store.reap(2).await.unwrap();
    let begins: Vec<u64> = reaped.iter().map(|lease| lease.range.start().get()).collect();
    assert_eq!(begins, [20, 30]);
    assert!(reaped.iter().all(|lease| lease.status == LeaseStatus::Failed && lease.attempt == 1));
    let claimed = world.claim("mapper", 10).await;
    assert_eq!(claimed.range.start(), Height(20));
    busy.rollback().await.unwrap();
    assert_eq!(world.store.reap(10).await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn l06_a_hundred_thousand_expired_leases_are_reaped_in_bounded_statements() {
    const LEASES: usize = 100_000;
    let Some(world) = World::new(|_| {}).await else { return };
    world
        .db
        .sql(&format!(
            "INSERT INTO app.worker_leases (worker_type, kind, from_height, to_height, status, leased_by, lease_expires_at, next_try_at,
                 attempt, fence, done_to, claimed_done_to, version, last_error, created_at, updated_at)
             SELECT 'mapper', 'index', 10 * n, 10 * n + 10, 'ACTIVE', 'gone', now() - interval '1 day', now(), 0,
                 nextval('app.fences'), 10 * n, 10 * n, 1, '', now(), now()
             FROM generate_series(0, {LEASES} - 1) n"
        ))
        .await;
    // The committer's own number.
    let step = 500;
    let mut reaped = 0;
    loop {
        // Each ends well within the pool's statement timeout, else it is an error.
        let now = world.store.reap(step).await.unwrap();
        assert!(now.len() <= step);
        if now.is_empty() {
            break;
        }
        reaped += now.len();
    }
    assert_eq!(reaped, LEASES);
}

#[tokio::test(flavor = "multi_thread")]
async fn p08_readers_cannot_starve_writers() {
    let Some(world) = World::new(|options| {
        options.read = PgOptions { max_open_conns: 2, pool_wait_ms: 200, ..options.read.clone() };
        options.snapshot_max_ms = Some(1_000);
    })
    .await
    else {
        return;
    };
    let held = [world.store.snapshot().await.unwrap(), world.store.snapshot().await.unwrap()];
    let refused = world.store.snapshot().await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry);
    let started = Instant::now();
    let lease = world.claim("mapper", 100).await;
    world.commit(&lease, 10, vec![transfer(3, 0, 1)]).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    // What is held sees nothing of it, and ends by itself.
    assert!(held[0].scan(&Scan::new("transfers", 10)).await.unwrap().rows.is_empty());
    tokio::time::sleep(Duration::from_millis(1_300)).await;
    let ended = held[0].leases(&LeaseFilter::default()).await.unwrap_err();
    assert!(matches!(&ended, StoreError::Busy(what) if what.contains("1000 ms")), "{ended}");
    assert_eq!(all(&world.store, "transfers").await.len(), 1);
    drop(held);
}

/// What takes too long is broken off by the server, as something that passes: of the pool that writes, and of that which reads.
#[tokio::test]
async fn a_statement_that_takes_too_long_is_broken_off_and_a_write_after_it_is_well() {
    let Some(db) = pg::database().await else { return };
    let world = World::over(db, |_| {}).await;
    let hasty = |options: &mut PgDerivedOptions| {
        options.write.statement_timeout_ms = 500;
        options.read.statement_timeout_ms = 500;
    };
    let store = open(&world.db, catalog(), hasty).await.expect("works");
    let mut holder = world.db.pool().get().await.expect("works");
    holder.begin(Isolation::ReadCommitted).await.expect("works");
    holder.batch("LOCK TABLE app.reorg_state, app.worker_leases").await.expect("works");
    // Without it they would wait for ten seconds, and then say that it was for a lock.
    for error in [
        store.claim(&request("mapper", 10)).await.map(drop).expect_err("it waits too long"),
        store.snapshot().await.map(drop).expect_err("it waits too long"),
    ] {
        assert!(matches!(&error, StoreError::Busy(why) if why.contains("statement timeout")), "{error}");
    }
    holder.rollback().await.expect("works");
    let lease = store.claim(&request("mapper", 10)).await.expect("works").expect("works");
    store.commit_chunk(&lease, chunk(&lease, 10)).await.expect("works");
    store.snapshot().await.expect("works");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drops_every_connection_is_met_again() {
    let Some(world) = World::new(|_| {}).await else { return };
    let lease = world.claim("mapper", 100).await;
    assert!(all(&world.store, "transfers").await.is_empty());
    let admin = PgPool::new(PgOptions { max_idle_conns: 0, ..PgOptions::new(&world.db.url) }).unwrap();
    let conn = admin.get().await.unwrap();
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid()";
    conn.query_one(kill, &[]).await.unwrap();
    drop(conn);
    // A connection whose end was just told may still be met: that passes, and is never more than the idle ones.
    let mut tries = 0;
    while let Err(error) = world.commit(&lease, 10, vec![transfer(3, 0, 1)]).await {
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        tries += 1;
        assert!(tries <= 4, "{error}");
    }
    let mut snapshot = world.store.snapshot().await;
    for _ in 0..4 {
        if snapshot.is_err() {
            snapshot = world.store.snapshot().await;
        }
    }
    assert_eq!(snapshot.unwrap().scan(&Scan::new("transfers", 10)).await.unwrap().rows.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_addresses_are_bytes() {
    let Some(world) = World::new(|_| {}).await else { return };
    let text = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'app' AND column_name IN ('from', 'to', 'address', 'token')
         AND data_type <> 'bytea'";
    assert_eq!(world.count(text).await, 0);
    let amounts = "SELECT numeric_precision::bigint FROM information_schema.columns
         WHERE table_schema = 'app' AND table_name = 'transfers' AND column_name = 'amount'";
    assert_eq!(world.count(amounts).await, 78);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_far_down_cost_what_the_first_one_costs() {
    let Some(world) = World::new(|_| {}).await else { return };
    // One sender is in nearly every row of the lower half, and in none of the upper: what misleads a planner.
    let mut lease = world.claim("mapper", 1_000).await;
    for part in 0..4_u64 {
        let rows = (part * 250..(part + 1) * 250).flat_map(|height| {
            (0..40).map(move |n| transfer(height, n, if height < 500 { 1 } else { (n % 5) as u8 + 2 }))
        });
        lease = world.commit(&lease, (part + 1) * 250, rows.collect()).await.unwrap().lease;
    }
    world.db.sql("ANALYZE").await;
    let sender = vec![Value::bytes(&[1; 20])];
    let page = |before: Option<u64>| Scan {
        index: Some("by_from"),
        prefix: sender.clone(),
        upper: before
            .map_or(Bound::Unbounded, |height| Bound::Excluded(vec![Value::uint(height), Value::uint(20)])),
        descending: true,
        ..Scan::new("transfers", 25)
    };
    let pages_touched = |plan: &str| -> u64 {
        let line = plan.lines().find(|line| line.contains("Buffers:")).unwrap_or_else(|| panic!("{plan}"));
        line.split(&['=', ' '][..]).filter_map(|word| word.parse::<u64>().ok()).sum()
    };
    let mut touched = Vec::new();
    for scan in [page(None), page(Some(20))] {
        let snapshot = world.store.snapshot().await.unwrap();
        let found = snapshot.scan(&scan).await.unwrap();
        assert_eq!(found.rows.len(), 25);
        drop(snapshot);
        let plan = world.store.explain(&scan).await.unwrap();
        assert!(plan.contains("Index") && !plan.contains("Sort") && !plan.contains("Seq Scan"), "{plan}");
        assert!(!plan.contains("Rows Removed by Filter"), "{plan}");
        touched.push(pages_touched(&plan));
    }
    assert!(touched.iter().all(|pages| *pages < 60), "{touched:?}");
    assert!(touched[0].abs_diff(touched[1]) <= 10, "{touched:?}");
    // By key, through all of it, page by page: nothing is left out and nothing comes twice.
    let (mut scan, mut rows) = (Scan::new("transfers", 777), Vec::new());
    loop {
        let page = world.store.snapshot().await.unwrap().scan(&scan).await.unwrap();
        rows.extend(page.rows);
        let Some(more) = page.more else { break };
        scan.lower = Bound::Excluded(more);
    }
    assert_eq!(rows.len(), 40_000);
    assert!(rows.is_sorted());
    let keys = [Key(vec![Value::uint(7), Value::uint(3)]), Key(vec![Value::uint(7), Value::uint(99)])];
    let found = world.store.snapshot().await.unwrap().rows("transfers", &keys).await.unwrap();
    assert_eq!(found, [Some(transfer(7, 3, 1)), None]);
}

#[tokio::test]
async fn the_lookahead_moves_with_the_tip_and_not_only_with_what_is_written() {
    let Some(world) = World::new(|_| {}).await else { return };
    let count = async || {
        let pool = world.db.pool();
        let conn = pool.get().await.expect("connects");
        let sql = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.transfers'::regclass";
        conn.query_one(sql, &[]).await.expect("counts").get::<_, i64>(0)
    };
    for (tip, partitions) in [(5, 3), (999, 3), (1_000, 4), (1_500, 4), (2_000, 5)] {
        world.store.maintain(Height(tip)).await.expect("works");
        assert_eq!(count().await, partitions, "tip {tip}");
    }
}

#[tokio::test]
async fn who_only_reads_makes_neither_schema_nor_tables() {
    let Some(db) = pg::database().await else { return };
    let refused =
        open(&db, catalog(), |options| options.read_only = true).await.expect_err("nothing is there");
    assert!(refused.to_string().contains("cairn migrate"), "{refused}");
    let conn = db.pool().get().await.expect("connects");
    let row = conn.query_one("SELECT to_regnamespace('app') IS NULL", &[]).await.expect("asks");
    assert!(row.get::<_, bool>(0), "no schema was made");
    drop(conn);
    let fewer = Catalog::new([&TRANSFERS, &HOLDINGS]).expect("works");
    open(&db, fewer, |_| {}).await.expect("makes them");
    let refused = open(&db, catalog(), |options| options.read_only = true).await.expect_err("one is missing");
    assert!(refused.to_string().contains("no table names yet"), "{refused}");
    open(&db, catalog(), |_| {}).await.expect("makes it");
    open(&db, catalog(), |options| options.read_only = true).await.expect("all is there");
}

#[tokio::test]
async fn l12_a_process_that_restarts_alone_takes_its_leases_back_at_once() {
    let Some(db) = pg::database().await else { return };
    let world = World::over(db, |_| {}).await;
    let first = world.store.enter().await.unwrap();
    assert_eq!(first.released, 0);
    let lease = world.claim("mapper", 10).await;
    // Another one beside it takes nothing away.
    let second = open(&world.db, catalog(), |_| {}).await.unwrap();
    let beside = second.enter().await.unwrap();
    assert_eq!(beside.released, 0);
    world.store.renew(&lease, 60_000).await.unwrap();
    // Both are killed: nothing is given back, and their sessions end.
    drop((first, beside));
    let third = open(&world.db, catalog(), |_| {}).await.unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'cairn app presence'";
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.count(sessions).await > 0 {
        assert!(Instant::now() < deadline, "a session stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let restarted = third.enter().await.unwrap();
    assert_eq!(restarted.released, 1);
    let again = third.claim(&request("mapper", 10)).await.unwrap().expect("the range");
    assert_eq!((again.id, again.attempt), (lease.id, 1), "it did nothing of it, which counts");
    let late = world.store.renew(&lease, 60_000).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
    // One whose session broke off is seen again.
    world
        .db
        .sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'cairn app presence'",
        )
        .await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while world.count(sessions).await == 0 {
        assert!(Instant::now() < deadline, "nobody sees that it derives");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(world.store.enter().await.unwrap().released, 0);
    third.renew(&again, 60_000).await.unwrap();
}
