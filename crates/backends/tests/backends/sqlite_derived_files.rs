//! The app store's file: who may open it, which definitions are taken, what people can ask of it in SQL, and what its limits are.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use cairn_backends::sqlite::{
    APP_LOCK_NAME, SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore,
};
use cairn_core::{BlockId, BlockRef, ErrorKind, Height, HeightRange, SystemClock};
use cairn_store::derived::{
    ApplyProgress, BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, Column, ColumnType, Coordinator,
    DerivedDump, DerivedMaintenance, DerivedReader, DerivedWriter, ErrorLog, FoldedAt, IndexDef, Key,
    LAST_HEIGHT, LeaseEnd, Merge, NewError, ReadMark, RebuildRequest, ReorgApplier, Row, Scan, Severity,
    StateRow, StateRows, TableClass, TableDef, TableRows, U256, Value, WorkerLease, column,
};
use cairn_store::{OrphanRef, ReorgEntry, ReorgMark, Result, StoreError};
use rusqlite::Connection;

const LOG_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("transaction_id", ColumnType::Bytes),
    column("address", ColumnType::Bytes),
    column("topic0", ColumnType::Bytes).nullable(),
    column("topic1", ColumnType::Bytes).nullable(),
    column("topic2", ColumnType::Bytes).nullable(),
    column("topic3", ColumnType::Bytes).nullable(),
    column("data", ColumnType::Bytes),
    column("timestamp", ColumnType::Int),
    column("amount", ColumnType::Amount),
    column("removed", ColumnType::Bool),
];
const LOGS: TableDef = TableDef {
    name: "logs",
    service: "evm_worker",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: LOG_COLUMNS,
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[
        IndexDef { name: "address", columns: &["address", "timestamp"] },
        IndexDef { name: "time", columns: &["timestamp"] },
    ],
};
const BALANCES: TableDef = TableDef {
    name: "balances",
    service: "folder",
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address"],
    indexes: &[IndexDef { name: "balance", columns: &["balance"] }],
};

fn leaked(def: TableDef) -> &'static TableDef {
    Box::leak(Box::new(def))
}

fn catalog() -> Catalog {
    Catalog::new([leaked(LOGS), leaked(BALANCES)]).expect("right")
}

async fn open_with(options: SqliteDerivedOptions, catalog: Catalog) -> Result<SqliteDerived> {
    SqliteDerived::open(options, catalog, Arc::new(SystemClock)).await
}

async fn open(dir: &Path) -> Result<SqliteDerived> {
    open_with(SqliteDerivedOptions::new(dir), catalog()).await
}

async fn open_read_only(dir: &Path) -> Result<SqliteDerived> {
    open_with(SqliteDerivedOptions::read_only(dir), catalog()).await
}

fn id(height: u64) -> BlockId {
    let mut id = [5; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

/// A store that follows a raw store, with both services registered at height 0.
async fn adopted(dir: &Path) -> SqliteDerived {
    let store = open(dir).await.expect("opens");
    store.adopt([1; 16], ReorgMark::default()).await.expect("adopts");
    for service in [LOGS.service, BALANCES.service] {
        store.register(service, Height(0)).await.expect("registers");
    }
    store
}

fn request(service: &str, range_heights: u64) -> ClaimRequest {
    ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights,
        first: Height(0),
        limit_exclusive: Height(u64::MAX),
        stop_exclusive: None,
        in_order: false,
    }
}

async fn claim(store: &SqliteDerived, service: &str, range_heights: u64) -> WorkerLease {
    store.claim(&request(service, range_heights)).await.expect("claims").expect("there is something to do")
}

fn chunk(from: u64, to: u64) -> ChunkCommit {
    ChunkCommit {
        chunk: HeightRange::new(Height(from), Height(to)),
        parent_id: Some(id(from.wrapping_sub(1))),
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

fn log(height: u64, index: u64, timestamp: u64) -> Row {
    Row(vec![
        Value::uint(height),
        Value::uint(index),
        Value::bytes(&[1; 32]),
        Value::bytes(&[2; 20]),
        Value::bytes(&[3; 32]),
        Value::Null,
        Value::Null,
        Value::Null,
        Value::bytes(&[4; 40]),
        Value::uint(timestamp),
        Value::Amount(U256::MAX),
        Value::Bool(false),
    ])
}

fn logs(rows: Vec<Row>) -> Vec<TableRows> {
    vec![TableRows { table: LOGS.name, rows }]
}

fn sql(dir: &Path, file: &str, statements: &str) -> rusqlite::Result<()> {
    Connection::open(dir.join(file)).expect("opens").execute_batch(statements)
}

#[tokio::test]
async fn one_process_writes_and_others_read_beside_it() {
    let dir = tempfile::tempdir().expect("dir");
    assert!(matches!(open_read_only(dir.path()).await, Err(StoreError::Invalid(_))), "there is no store yet");
    assert!(std::fs::read_dir(dir.path()).expect("reads").next().is_none(), "reading made something");

    let store = adopted(dir.path()).await;
    match open(dir.path()).await {
        Err(StoreError::Locked { what, holder }) => {
            assert!(what.ends_with(APP_LOCK_NAME), "{what}");
            assert_eq!(holder, Some(std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    let reader = open_read_only(dir.path()).await.expect("opens beside the writer");
    let old = reader.snapshot().await.expect("reads");
    let lease = claim(&store, LOGS.service, 10).await;
    let commit = ChunkCommit { rows: logs(vec![log(3, 0, 7)]), ..chunk(0, 10) };
    store.commit_chunk(&lease, commit).await.expect("commits");
    let key = [Key(vec![Value::Int(3), Value::Int(0)])];
    assert_eq!(old.rows(LOGS.name, &key).await.expect("reads"), [None], "a snapshot stays as it is");
    let new = reader.snapshot().await.expect("reads");
    assert_eq!(new.rows(LOGS.name, &key).await.expect("reads"), [Some(log(3, 0, 7))]);
    assert_eq!(new.sizes().await.expect("reads")[0].1, 1);
    assert!(matches!(reader.release_all().await, Err(StoreError::Invalid(_))), "a reader must not write");
    assert_eq!(reader.dump().await.expect("dumps"), store.dump().await.expect("dumps"));

    // The raw store has a lock of its own.
    let raw = SqliteStore::open(SqliteOptions::new(dir.path()), Arc::new(SystemClock)).await;
    raw.expect("both stores live in one directory");
    drop((store, old, new, reader));
    open(dir.path()).await.expect("the lock is free again");
}

#[tokio::test]
async fn a_changed_definition_is_refused_by_name_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("dir");
    drop(adopted(dir.path()).await);
    let other_type: &'static [Column] = Box::leak(
        LOG_COLUMNS
            .iter()
            .map(|c| if c.name == "timestamp" { Column { ty: ColumnType::Text, ..*c } } else { *c })
            .collect(),
    );
    let more_columns: &'static [Column] =
        Box::leak([LOG_COLUMNS, &[column("new", ColumnType::Int).nullable()]].concat().into());
    let reindexed: &'static [IndexDef] = &[IndexDef { name: "address", columns: &["address", "topic0"] }];
    let changed = [
        (TableDef { columns: other_type, ..LOGS }, "timestamp"),
        (TableDef { columns: more_columns, ..LOGS }, "column new"),
        (TableDef { key: &[BLOCK_HEIGHT, "transaction_id", "log_index"], ..LOGS }, "key"),
        (TableDef { service: "another_worker", ..LOGS }, "another_worker"),
        (TableDef { indexes: reindexed, ..LOGS }, "index address"),
    ];
    for (def, what) in changed {
        let catalog = Catalog::new([leaked(def), leaked(BALANCES)]).expect("right");
        for options in [SqliteDerivedOptions::new(dir.path()), SqliteDerivedOptions::read_only(dir.path())] {
            let error = open_with(options, catalog.clone()).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Halt);
            let message = error.to_string();
            assert!(message.contains("logs") && message.contains(what), "{message}");
        }
    }
    // A table that the program doesn't know would be out of every reorg's reach.
    let less = Catalog::new([leaked(LOGS)]).expect("right");
    let error = open_with(SqliteDerivedOptions::new(dir.path()), less).await.expect_err("refused");
    assert!(error.to_string().contains("balances"), "{error}");
    open(dir.path()).await.expect("nothing was changed");
}

#[tokio::test]
async fn new_tables_and_indexes_are_made_over_what_is_there() {
    let dir = tempfile::tempdir().expect("dir");
    let bare = Catalog::new([leaked(TableDef { indexes: &[], ..LOGS })]).expect("right");
    let store = open_with(SqliteDerivedOptions::new(dir.path()), bare).await.expect("opens");
    store.adopt([1; 16], ReorgMark::default()).await.expect("adopts");
    store.register(LOGS.service, Height(0)).await.expect("registers");
    let lease = claim(&store, LOGS.service, 10).await;
    let rows = (0..10).map(|height| log(height, 0, 100 - height)).collect();
    store.commit_chunk(&lease, ChunkCommit { rows: logs(rows), ..chunk(0, 10) }).await.expect("commits");
    drop(store);

    assert!(matches!(open_read_only(dir.path()).await, Err(StoreError::Invalid(_))), "readers make nothing");
    let store = open(dir.path()).await.expect("adds what is new");
    let scan = Scan { index: Some("time"), ..Scan::new(LOGS.name, 3) };
    let page = store.snapshot().await.expect("reads").scan(&scan).await.expect("reads");
    assert_eq!(page.rows, [log(9, 0, 91), log(8, 0, 92), log(7, 0, 93)]);
    drop(store);
    let conn = Connection::open(dir.path().join("app.sqlite")).expect("opens");
    let names: Vec<String> = conn
        .prepare(
            "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'logs' AND sql IS NOT NULL",
        )
        .and_then(|mut statement| statement.query_map([], |row| row.get(0))?.collect())
        .expect("reads");
    assert_eq!(names, ["logs_address", "logs_time"]);
    let strict: i64 = conn
        .query_row(
            "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict \
             AND name NOT LIKE 'sqlite_%'",
            [],
            |row| row.get(0),
        )
        .expect("reads");
    assert_eq!(strict, 0, "every table is strict");
}

#[tokio::test]
async fn files_of_others_and_newer_ones_are_refused() {
    let dir = tempfile::tempdir().expect("dir");
    sql(dir.path(), "app.sqlite", "CREATE TABLE notes (text TEXT)").expect("runs");
    assert!(matches!(open(dir.path()).await, Err(StoreError::Database(_))));

    let dir = tempfile::tempdir().expect("dir");
    drop(adopted(dir.path()).await);
    sql(dir.path(), "app.sqlite", "PRAGMA user_version = 99").expect("runs");
    for result in [open(dir.path()).await, open_read_only(dir.path()).await] {
        assert!(matches!(result, Err(StoreError::UnknownSchema { found: 99, .. })));
    }
    std::fs::rename(dir.path().join("app.sqlite"), dir.path().join("raw.sqlite")).expect("renames");
    let raw = SqliteStore::open(SqliteOptions::new(dir.path()), Arc::new(SystemClock)).await;
    assert!(matches!(raw, Err(StoreError::Database(_))), "an app store is no raw store");

    let named = Catalog::new([leaked(TableDef { name: "worker_leases", ..LOGS })]).expect("right");
    let dir = tempfile::tempdir().expect("dir");
    let refused = open_with(SqliteDerivedOptions::new(dir.path()), named).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))));
}

#[tokio::test]
async fn the_schema_itself_keeps_leases_apart() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    claim(&store, LOGS.service, 10).await;
    claim(&store, LOGS.service, 10).await;
    drop(store);
    let insert = |service: &str, kind: &str, from: u64, to: u64| {
        let statement = format!(
            "INSERT INTO worker_leases (worker_type, kind, from_height, to_height, status, leased_by, fence, \
             lease_expires_at, next_try_at, attempt, done_to, claimed_done_to, version, last_error) \
             VALUES ('{service}', '{kind}', {from}, {to}, 'ACTIVE', '', 9, 0, 0, 0, {from}, {from}, 1, '')"
        );
        sql(dir.path(), "app.sqlite", &statement)
    };
    for (from, to) in [(0, 10), (5, 6), (9, 11), (19, 30), (0, 100), (10, 20), (7, 15)] {
        let error = insert(LOGS.service, "index", from, to).expect_err("overlaps");
        assert!(error.to_string().contains("must not overlap"), "{error}");
    }
    insert(LOGS.service, "reindex", 5, 15).expect("another kind may");
    insert(BALANCES.service, "index", 5, 15).expect("another service may");
    insert(LOGS.service, "index", 30, 40).expect("a gap is no overlap");
    insert(LOGS.service, "index", 20, 30).expect("it fits");
    let moved =
        sql(dir.path(), "app.sqlite", "UPDATE worker_leases SET to_height = 12 WHERE from_height = 0");
    assert!(moved.expect_err("stays").to_string().contains("keeps its service"));
}

/// The reliability document's §8, as it stands there.
const VERIFICATION: [&str; 5] = [
    "SELECT worker_type, status, COUNT(*) FROM app.worker_leases GROUP BY 1, 2 ORDER BY 1;",
    "SELECT COUNT(*) FROM raw.indexing_errors;",
    "SELECT * FROM app.indexing_checkpoints ORDER BY service_name;",
    "SELECT * FROM app.worker_leases WHERE status = 'FAILED' AND attempt >= 20;",
    "SELECT worker_type, from_height, to_height\nFROM app.worker_leases\nWHERE status != 'COMPLETED'\nORDER BY worker_type, from_height;",
];

#[tokio::test]
async fn the_verification_queries_run_as_they_stand() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let raw = SqliteStore::open(SqliteOptions::new(dir.path()), Arc::new(SystemClock)).await.expect("opens");
    let lease = claim(&store, LOGS.service, 10).await;
    store.commit_chunk(&lease, chunk(0, 10)).await.expect("commits");
    claim(&store, LOGS.service, 10).await;
    for _ in 0..20 {
        let lease = claim(&store, BALANCES.service, 10).await;
        let end = LeaseEnd::Bad { message: "it can't be done".into(), retry_in_ms: 0 };
        store.end(&lease, end).await.expect("ends");
    }
    let error = NewError {
        service: LOGS.service.into(),
        height: Height(4),
        block_id: id(4),
        transaction_id: String::new(),
        severity: Severity::Warn,
        message: "a log that says nothing".into(),
        raw_data: vec![1, 2],
        raw_ref: None,
    };
    assert_eq!(raw.record(&[error.clone(), error.clone()]).await.expect("records"), 1);
    assert_eq!(raw.record(&[error]).await.expect("records"), 0, "once is enough");

    // As a person would do it in a shell, beside the running process.
    let conn = Connection::open_in_memory().expect("opens");
    for name in ["app", "raw"] {
        let file = dir.path().join(format!("{name}.sqlite"));
        conn.execute(&format!("ATTACH '{}' AS {name}", file.display()), []).expect("attaches");
    }
    let ask = |query: &str| -> Vec<Vec<(String, String)>> {
        let mut statement = conn.prepare(query).expect("is understood");
        let names: Vec<String> = statement.column_names().map(ToOwned::to_owned).collect();
        let row = |row: &rusqlite::Row<'_>| {
            let field = |at: usize| {
                let value = row.get_ref(at)?;
                Ok((
                    names[at].clone(),
                    match value {
                        rusqlite::types::ValueRef::Integer(n) => n.to_string(),
                        rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        other => format!("{other:?}"),
                    },
                ))
            };
            (0..names.len()).map(field).collect::<rusqlite::Result<Vec<_>>>()
        };
        statement.query_map([], row).and_then(|rows| rows.collect()).expect("answers")
    };
    let values = |query: &str| -> Vec<Vec<String>> {
        ask(query).into_iter().map(|row| row.into_iter().map(|(_, value)| value).collect()).collect()
    };
    assert_eq!(
        values(VERIFICATION[0]),
        [
            vec!["evm_worker", "ACTIVE", "1"],
            vec!["evm_worker", "COMPLETED", "1"],
            vec!["folder", "FAILED", "1"]
        ]
    );
    assert_eq!(values(VERIFICATION[1]), [["1"]]);
    let checkpoints = ask(VERIFICATION[2]);
    assert_eq!(checkpoints.len(), 2);
    let field =
        |name: &str| checkpoints[0].iter().find(|(column, _)| column == name).map(|(_, v)| v.as_str());
    assert_eq!((field("service_name"), field("last_height")), (Some("evm_worker"), Some("9")));
    let dead = ask(VERIFICATION[3]);
    assert_eq!(dead.len(), 1);
    assert!(dead[0].contains(&("attempt".into(), "20".into())), "{dead:?}");
    assert_eq!(values(VERIFICATION[4]), [["evm_worker", "10", "20"], ["folder", "0", "10"]]);
}

#[tokio::test]
async fn p03_twenty_thousand_rows_of_twelve_columns_in_one_block() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let rows: Vec<Row> = (0..20_000).map(|index| log(0, index, index)).collect();
    let lease = claim(&store, LOGS.service, 10).await;
    let commit = ChunkCommit { rows: logs(rows.clone()), ..chunk(0, 1) };
    store.commit_chunk(&lease, commit).await.expect("commits");
    let snapshot = store.snapshot().await.expect("reads");
    let keys: Vec<Key> = (0..20_000).map(|n| Key(vec![Value::Int(0), Value::Int(n)])).collect();
    let found = snapshot.rows(LOGS.name, &keys).await.expect("reads");
    assert_eq!(found, rows.iter().cloned().map(Some).collect::<Vec<_>>());
    let (events, next) = snapshot.events(LOGS.name, Height(0), Height(1), usize::MAX).await.expect("reads");
    assert_eq!((events, next), (rows, Height(1)));
}

/// Seven rows with one timestamp in two blocks, three at a time.
#[tokio::test]
async fn a01_pages_through_rows_with_one_timestamp() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let lease = claim(&store, LOGS.service, 10).await;
    let rows: Vec<Row> =
        [(4, 0), (4, 1), (4, 2), (4, 3), (5, 0), (5, 1), (5, 2)].map(|(h, i)| log(h, i, 77)).into();
    store
        .commit_chunk(&lease, ChunkCommit { rows: logs(rows.clone()), ..chunk(0, 10) })
        .await
        .expect("commits");
    for (index, prefix) in [
        (Some("time"), vec![Value::Int(77)]),
        (Some("address"), vec![Value::bytes(&[2; 20])]),
        (None, vec![]),
    ] {
        for descending in [false, true] {
            let mut scan = Scan { index, prefix: prefix.clone(), descending, ..Scan::new(LOGS.name, 3) };
            let (mut seen, mut sizes) = (Vec::new(), Vec::new());
            loop {
                let page = store.snapshot().await.expect("reads").scan(&scan).await.expect("reads");
                sizes.push(page.rows.len());
                seen.extend(page.rows);
                match page.more {
                    Some(more) if descending => scan.upper = Bound::Excluded(more),
                    Some(more) => scan.lower = Bound::Excluded(more),
                    None => break,
                }
            }
            if descending {
                seen.reverse();
            }
            assert_eq!((seen, sizes), (rows.clone(), vec![3, 3, 1]), "{index:?} {descending}");
        }
    }
}

/// Ranges that were done out of order stay unseen until the one below them is there.
#[tokio::test]
async fn a04_rows_that_come_late_are_not_passed_by_a_cursor() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let first = claim(&store, LOGS.service, 6).await;
    let second = claim(&store, LOGS.service, 6).await;
    let rows = |heights: std::ops::Range<u64>| logs(heights.map(|height| log(height, 0, height)).collect());
    let lease = store
        .commit_chunk(&first, ChunkCommit { rows: rows(1..5), ..chunk(0, 5) })
        .await
        .expect("commits")
        .lease;
    store.commit_chunk(&second, ChunkCommit { rows: rows(6..9), ..chunk(6, 12) }).await.expect("commits");
    let mut scan = Scan { index: Some("time"), ..Scan::new(LOGS.name, 3) };
    let mut seen = Vec::new();
    let mut read_on = async |store: &SqliteDerived| {
        loop {
            let page = store.snapshot().await.expect("reads").scan(&scan).await.expect("reads");
            if page.rows.is_empty() && page.more.is_none() {
                return seen.clone();
            }
            for row in page.rows {
                scan.lower = Bound::Excluded(vec![row.0[9].clone(), row.0[0].clone(), row.0[1].clone()]);
                seen.push(row.0[0].as_int().expect("a height"));
            }
            if page.more.is_none() {
                return seen.clone();
            }
        }
    };
    assert_eq!(read_on(&store).await, [1, 2, 3, 4], "the list ends at the watermark");
    store.commit_chunk(&lease, ChunkCommit { rows: rows(5..6), ..chunk(5, 6) }).await.expect("commits");
    store.repair_checkpoints().await.expect("repairs");
    assert_eq!(read_on(&store).await, [1, 2, 3, 4, 5, 6, 7, 8], "the old cursor goes on");
}

fn balance(n: u8, amount: u64, height: u64) -> Row {
    Row(vec![Value::bytes(&[n]), Value::sum(U256::from(amount)), Value::uint(height)])
}

/// One folder's chunk in which one row was changed, from `before` to `after`.
fn folded(from: u64, to: u64, before: Option<Row>, after: Row) -> ChunkCommit {
    let undo = vec![(after.0[2].as_height().expect("a height"), before)];
    let states = vec![StateRows { table: BALANCES.name, rows: vec![StateRow { row: after, undo }] }];
    ChunkCommit { folded_at: Some(FoldedAt::applied(0)), states, ..chunk(from, to) }
}

fn entry(common: u64, tip: u64) -> ReorgEntry {
    let orphan =
        |height| OrphanRef { block: BlockRef { height: Height(height), id: id(height) }, timestamp_ms: 0 };
    let common = BlockRef { height: Height(common), id: id(common) };
    let orphans = (common.height.get() + 1..=tip).map(orphan).collect();
    ReorgEntry::chain(1, &[0; 32], [1; 16], common, orphans, 0)
}

/// What is final in a raw snapshot that knows of a reorg may still have to be undone by who has not applied it.
#[tokio::test]
async fn undo_rows_outlive_finality_until_the_reorg_that_was_read_is_applied() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    store.register("slow folder", Height(0)).await.expect("registers");
    let lease = claim(&store, BALANCES.service, 100).await;
    let lease =
        store.commit_chunk(&lease, folded(0, 5, None, balance(1, 10, 4))).await.expect("commits").lease;
    let change = folded(5, 10, Some(balance(1, 10, 4)), balance(1, 30, 9));
    store.commit_chunk(&lease, change).await.expect("commits");

    // Another service reads a raw store in which height 6 to 9 were replaced, and 12 is final by now.
    let other = claim(&store, LOGS.service, 100).await;
    let mut far = ChunkCommit { finalized: Height(12), ..chunk(0, 3) };
    far.read.reorg_id = 1;
    let entry = entry(5, 9);
    far.read.newer = vec![cairn_store::derived::ForkMark { id: 1, first_orphan: entry.first_orphan() }];
    store.commit_chunk(&other, far).await.expect("it lies below the reorg");

    store.begin_apply(&entry).await.expect("begins");
    let snapshot = store.snapshot().await.expect("reads");
    let key = [Key(vec![Value::bytes(&[1])])];
    assert_eq!(snapshot.rows(BALANCES.name, &key).await.expect("reads"), [Some(balance(1, 10, 4))]);
    assert_eq!(store.prune_undo(Height(12), 100).await.expect("prunes"), 1, "only what lies below the reorg");
    while store.apply_step(1, 10).await.expect("applies") != ApplyProgress::Done {}
    store.finish_apply(1).await.expect("finishes");
    let snapshot = store.snapshot().await.expect("reads");
    assert_eq!(snapshot.rows(BALANCES.name, &key).await.expect("reads"), [Some(balance(1, 10, 4))]);
}

#[tokio::test]
async fn a_reorg_below_what_was_pruned_is_damage_and_not_a_guess() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let lease = claim(&store, BALANCES.service, 100).await;
    let lease =
        store.commit_chunk(&lease, folded(0, 5, None, balance(1, 10, 4))).await.expect("commits").lease;
    let lease = store
        .commit_chunk(&lease, folded(5, 8, Some(balance(1, 10, 4)), balance(1, 30, 7)))
        .await
        .expect("commits")
        .lease;
    let change = folded(8, 10, Some(balance(1, 30, 7)), balance(1, 50, 9));
    store.commit_chunk(&lease, change).await.expect("commits");
    assert_eq!(store.prune_undo(Height(8), 100).await.expect("prunes"), 2);
    // The undo row at 9 is there, but what it says is the state after 7, which goes as well.
    store.begin_apply(&entry(5, 9)).await.expect("begins");
    match store.apply_step(1, 10).await {
        Err(StoreError::Corrupt { place, .. }) => assert!(place.contains("balances"), "{place}"),
        other => panic!("{other:?}"),
    }
    let request = RebuildRequest { anew: vec![BALANCES.service.into()], ..RebuildRequest::default() };
    store.begin_rebuild(&request).await.expect("begins");
    assert!(!store.reset_step(BALANCES.service, 1_000).await.expect("resets"), "one step is enough");
    while store.apply_step(1, 10).await.expect("nothing is lost any more") != ApplyProgress::Done {}
    store.finish_apply(1).await.expect("finishes");
}

#[tokio::test]
async fn the_height_guard_is_a_second_line() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let lease = claim(&store, BALANCES.service, 100).await;
    let lease =
        store.commit_chunk(&lease, folded(0, 5, None, balance(1, 10, 4))).await.expect("commits").lease;
    // By hand, what no folder does: a row from above the chunk that comes next.
    drop(store);
    sql(dir.path(), "app.sqlite", "UPDATE balances SET last_height = 50").expect("runs");
    let store = open(dir.path()).await.expect("opens");
    match store.commit_chunk(&lease, folded(5, 10, None, balance(1, 30, 9))).await {
        Err(StoreError::Corrupt { what, .. }) => assert!(what.contains("height guard"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(store.lease(lease.id).await.expect("reads").expect("there").done_to, Height(5));
    drop(store);
    let conn = Connection::open(dir.path().join("app.sqlite")).expect("opens");
    let is = |sql: &str, expected: i64| {
        let found: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("reads");
        assert_eq!(found, expected, "{sql}");
    };
    is("SELECT last_height FROM balances", 50);
    is("SELECT last_height FROM indexing_checkpoints WHERE service_name = 'folder'", 4);
    is("SELECT count(*) FROM state_undo WHERE height >= 5", 0);
}

#[tokio::test]
async fn old_snapshots_end() {
    let dir = tempfile::tempdir().expect("dir");
    drop(adopted(dir.path()).await);
    let options = SqliteDerivedOptions {
        snapshot_max_ms: Some(100),
        max_readers: 1,
        ..SqliteDerivedOptions::new(dir.path())
    };
    let store = open_with(options, catalog()).await.expect("opens");
    let old = store.snapshot().await.expect("reads");
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    let scanned = old.scan(&Scan::new(LOGS.name, 1)).await;
    assert!(matches!(scanned, Err(StoreError::Busy(_))), "too old");
    let new = store.snapshot().await.expect("the old one was ended");
    assert!(new.scan(&Scan::new(LOGS.name, 1)).await.expect("reads").rows.is_empty());
}

#[tokio::test]
async fn damage_is_named() {
    let dir = tempfile::tempdir().expect("dir");
    let store = adopted(dir.path()).await;
    let lease = claim(&store, LOGS.service, 10).await;
    let commit = ChunkCommit { rows: logs(vec![log(3, 0, 7)]), ..chunk(0, 10) };
    store.commit_chunk(&lease, commit).await.expect("commits");
    drop(store);
    sql(dir.path(), "app.sqlite", "UPDATE logs SET amount = x'01'").expect("runs");
    let store = open(dir.path()).await.expect("opens");
    let snapshot = store.snapshot().await.expect("reads");
    match snapshot.scan(&Scan::new(LOGS.name, 1)).await {
        Err(StoreError::Corrupt { place, what }) => {
            assert!(place.contains("app.sqlite") && what.contains("amount"), "{place}: {what}");
        }
        other => panic!("{other:?}"),
    }
}
