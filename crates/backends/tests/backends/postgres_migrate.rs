//! Tables made anew in place, stopped between any two steps; what is in their way; exports.

use crate::support::pg;

use std::time::{Duration, Instant};

use cairn_backends::postgres::migrate_table::{Moved, export_csv};
use cairn_backends::postgres::raw::PartitionSizes;
use cairn_backends::postgres::{
    Behind, Dropped, PgDerived, PgDerivedOptions, PgOptions, PgRawOptions, PgRawStore,
};
use cairn_core::{ChainId, Height, HeightRange};
use cairn_store::derived::{
    BLOCK_HEIGHT, Catalog, Column, ColumnType, IndexDef, LAST_HEIGHT, Merge, TableClass, TableDef, column,
};
use cairn_store::suite::blocks::chain;
use cairn_store::{AppendBatch, RawDump, RawReader, RawWriter, StoreError, StoreInfo};

fn raw_options(db: &pg::TestDb, heights: u64) -> PgRawOptions {
    PgRawOptions { partitions: PartitionSizes::all(heights), ..PgRawOptions::with(db.options()) }
}

async fn number(db: &pg::TestDb, query: &str) -> i64 {
    let pool = db.pool();
    let conn = pool.get().await.expect("connects");
    conn.query_one(query, &[]).await.expect("runs").get(0)
}

const PARTITIONS: &str = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'raw.transactions'::regclass";

#[tokio::test]
async fn a_raw_table_gets_partitions_of_another_size_and_goes_on_after_each_step() {
    let Some(db) = pg::database().await else { return };
    let blocks = chain(0, 130, 0);
    let store = PgRawStore::open(raw_options(&db, 50), None).await.expect("opens");
    store
        .init(StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() })
        .await
        .expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store
        .append(fence, AppendBatch { blocks: blocks[..120].to_vec(), ..AppendBatch::default() })
        .await
        .expect("appends");
    let (before, rows) =
        (store.dump().await.expect("dumps"), number(&db, "SELECT count(*) FROM raw.transactions").await);
    assert!(rows > 60, "{rows} rows");
    assert_eq!(number(&db, PARTITIONS).await, 5);
    drop(store);

    for table in ["transactions", "blocks", "events"] {
        let mut steps = Vec::new();
        loop {
            // Each step is a call of its own: as if the process had been killed after every one.
            let mut last = None;
            PgRawStore::rebuild(raw_options(&db, 30), table, 25, |moved| {
                last = Some(moved.clone());
                false
            })
            .await
            .expect("a step");
            let last = last.expect("a step was told");
            steps.push(last.clone());
            if last == Moved::Dropped {
                break;
            }
            let refused = PgRawStore::open(raw_options(&db, 30), None).await.expect_err("isn't finished");
            assert!(refused.to_string().contains("--in-place raw."), "{refused}");
            let refused =
                PgRawStore::open(PgRawOptions { read_only: true, ..raw_options(&db, 30) }, None).await;
            assert!(refused.is_err(), "nor for reading");
        }
        assert!(matches!(&steps[0], Moved::Renamed { left_behind } if left_behind.is_empty()), "{steps:?}");
        let copies = steps.iter().filter(|step| matches!(step, Moved::Copied(_))).count() as i64;
        if table == "transactions" {
            assert_eq!(copies, (rows + 24) / 25, "{rows} rows: {steps:?}");
            assert!(
                steps.contains(&Moved::CopiedAll(rows as u64)) && steps.contains(&Moved::Same(rows as u64)),
                "{steps:?}"
            );
        }
    }
    assert_eq!(number(&db, PARTITIONS).await, 6, "0 to 119 by 30, and two ahead");
    let leftovers = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname = 'raw' AND c.relname LIKE '%\\_old'";
    assert_eq!(number(&db, leftovers).await, 0);
    let keys = "SELECT count(*) FROM pg_constraint WHERE conname = 'transactions_pkey' AND conrelid = 'raw.transactions'::regclass";
    assert_eq!(number(&db, keys).await, 1);
    assert_eq!(
        number(
            &db,
            "SELECT count(*) FROM pg_class WHERE relname IN ('blocks_with_events', 'transactions_payload')"
        )
        .await,
        2
    );

    let store = PgRawStore::open(raw_options(&db, 30), None).await.expect("opens");
    assert_eq!(store.dump().await.expect("dumps").first_difference(&before), None);
    let fence = store.acquire().await.expect("acquire").fence;
    store
        .append(fence, AppendBatch { blocks: blocks[120..].to_vec(), ..AppendBatch::default() })
        .await
        .expect("goes on");
    let range = HeightRange::new(Height(0), Height(130));
    let read = store.snapshot().await.expect("reads").blocks(range, cairn_core::Parts::all(), u64::MAX).await;
    assert_eq!(read.expect("reads").blocks.len(), 130);
}

/// What versions after 2 brought, taken away.
const TO_VERSION_2: &str = "
    ALTER TABLE raw.blocks DROP COLUMN body_payload_ref, DROP COLUMN receipts_payload_ref, DROP COLUMN extras_payload_ref, DROP COLUMN traces_payload_ref;
    ALTER TABLE raw.orphan_blocks DROP COLUMN body_payload_ref, DROP COLUMN receipts_payload_ref, DROP COLUMN extras_payload_ref, DROP COLUMN traces_payload_ref;
    ALTER TABLE raw.transactions DROP COLUMN result_payload_ref;
    ALTER TABLE raw.orphan_transactions DROP COLUMN result_payload_ref;
    ALTER TABLE raw.leases DROP COLUMN last_error;
    ALTER TABLE raw.checkpoints DROP COLUMN updated_at;
    DELETE FROM raw.schema_migrations WHERE version > 2";

#[tokio::test]
async fn a_migration_indexes_a_large_table_by_partition_while_blocks_go_on() {
    let Some(db) = pg::database().await else { return };
    let blocks = chain(0, 130, 0);
    let store = PgRawStore::open(raw_options(&db, 30), None).await.expect("opens");
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let some = |range: std::ops::Range<usize>| AppendBatch {
        blocks: blocks[range].to_vec(),
        ..AppendBatch::default()
    };
    store.append(fence, some(0..100)).await.expect("appends");
    drop(store);
    const INDEXES: &str = "SELECT count(*) FROM pg_index x JOIN pg_class c ON c.oid = x.indexrelid \
         WHERE c.relname LIKE ANY (ARRAY['blocks\\_%\\_payload', 'transactions\\_result\\_payload']) AND c.relkind = 'I' AND x.indisvalid";
    const OF_PARTITIONS: &str = "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent \
         WHERE c.relname LIKE ANY (ARRAY['blocks\\_%\\_payload', 'transactions\\_result\\_payload']) AND c.relkind = 'I'";
    let (whole, of_partitions) = (number(&db, INDEXES).await, number(&db, OF_PARTITIONS).await);
    assert!(whole == 5 && of_partitions >= 5 * 4, "{whole} {of_partitions}");
    db.sql(TO_VERSION_2).await;

    let store = PgRawStore::open(raw_options(&db, 30), None).await.expect("migrates");
    assert_eq!(number(&db, INDEXES).await, 0, "none is valid yet");
    assert_eq!(number(&db, OF_PARTITIONS).await, 0, "no partition was read");
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, some(100..110)).await.expect("goes on at once");
    // One step builds one index of one partition.
    let mut steps = 0;
    while store.maintain_partitions().await.expect("a step") {
        steps += 1;
        if steps == 7 {
            store.append(fence, some(110..130)).await.expect("goes on between");
        }
        assert!(steps < 200, "it doesn't end");
    }
    assert_eq!(number(&db, INDEXES).await, whole);
    assert!(number(&db, OF_PARTITIONS).await >= of_partitions);
    drop(store);
    let store = PgRawStore::open(raw_options(&db, 30), None).await.expect("opens");
    store.acquire().await.expect("acquire");
    assert!(!store.maintain_partitions().await.expect("nothing is left"));
}

#[tokio::test]
async fn rows_that_differ_stop_a_move_before_anything_is_dropped() {
    let Some(db) = pg::database().await else { return };
    let store = PgRawStore::open(raw_options(&db, 50), None).await.expect("opens");
    store
        .init(StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() })
        .await
        .expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    store
        .append(fence, AppendBatch { blocks: chain(0, 60, 0), ..AppendBatch::default() })
        .await
        .expect("appends");
    drop(store);
    PgRawStore::rebuild(raw_options(&db, 30), "blocks", 1_000, |moved| !matches!(moved, Moved::CopiedAll(_)))
        .await
        .expect("copies");
    db.sql("UPDATE raw.blocks SET timestamp_ms = timestamp_ms + 1 WHERE height = 3").await;
    let refused =
        PgRawStore::rebuild(raw_options(&db, 30), "blocks", 1_000, |_| true).await.expect_err("differs");
    assert!(matches!(&refused, StoreError::Corrupt { what, .. } if what.contains("60 rows")), "{refused}");
    assert_eq!(number(&db, "SELECT count(*) FROM raw.blocks_old").await, 60);
    db.sql("UPDATE raw.blocks SET timestamp_ms = timestamp_ms - 1 WHERE height = 3").await;
    PgRawStore::rebuild(raw_options(&db, 30), "blocks", 1_000, |_| true).await.expect("the same now");
    PgRawStore::open(raw_options(&db, 30), None).await.expect("opens");
    let unknown =
        PgRawStore::rebuild(raw_options(&db, 30), "head", 1_000, |_| true).await.expect_err("no partitions");
    assert!(unknown.to_string().contains("transactions"), "{unknown}");
}

#[tokio::test]
async fn nothing_moves_while_a_cairn_is_connected() {
    let Some(db) = pg::database().await else { return };
    let running = PgRawOptions::with(PgOptions { application_name: "cairn raw".into(), ..db.options() });
    let store = PgRawStore::open(running, None).await.expect("opens");
    let refused =
        PgRawStore::rebuild(raw_options(&db, 30), "blocks", 10, |_| true).await.expect_err("is in the way");
    assert!(refused.to_string().contains("stop them all"), "{refused}");
    drop(store);
    let mut tries = 0;
    while let Err(error) = PgRawStore::rebuild(raw_options(&db, 30), "blocks", 10, |_| true).await {
        tries += 1;
        assert!(tries < 100, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

const COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("token", ColumnType::Bytes),
    column("note", ColumnType::Text).nullable(),
];
const OTHER_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("amount", ColumnType::Amount).nullable(),
    column("token", ColumnType::Bytes),
];
const STRICT_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("amount", ColumnType::Amount),
];
const BY_TOKEN: IndexDef = IndexDef { name: "by_token", columns: &["token"] };
static OLD: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: COLUMNS,
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[BY_TOKEN],
};
static NEW: TableDef = TableDef {
    class: TableClass::Events { partition_heights: 300 },
    columns: OTHER_COLUMNS,
    name: "transfers",
    service: "mapper",
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[BY_TOKEN],
};
static STRICT: TableDef = TableDef {
    class: TableClass::Events { partition_heights: 300 },
    columns: STRICT_COLUMNS,
    name: "transfers",
    service: "mapper",
    key: &[BLOCK_HEIGHT, "log_index"],
    indexes: &[],
};
static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: "folder",
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address"],
    indexes: &[],
};

fn app_options(db: &pg::TestDb) -> PgDerivedOptions {
    PgDerivedOptions { write: db.options(), read: db.options(), ..PgDerivedOptions::new(&db.url) }
}

fn catalog(table: &'static TableDef) -> Catalog {
    Catalog::new([table, &HOLDINGS]).expect("is right")
}

#[tokio::test]
async fn a_derived_table_whose_definition_changed_keeps_its_rows() {
    let Some(db) = pg::database().await else { return };
    let store = PgDerived::open(app_options(&db), catalog(&OLD), None).await.expect("opens");
    store.ensure_partitions(HeightRange::new(Height(0), Height(2_000))).await.expect("makes partitions");
    drop(store);
    db.sql(
        "INSERT INTO app.transfers (block_height, log_index, token, note) \
           SELECT h, n, decode(md5(h::text), 'hex'), 'x' FROM generate_series(0, 1999) h, generate_series(0, 1) n",
    )
    .await;
    let refused =
        PgDerived::open(app_options(&db), catalog(&NEW), None).await.expect_err("was made otherwise");
    assert!(refused.to_string().contains("was made as"), "{refused}");
    // A column that needs a value can't come from nowhere; nothing is changed.
    // On a busy machine connections of before take a while to close, and a server may be too busy to answer.
    let begun = Instant::now();
    let refused = loop {
        let rebuilt = PgDerived::rebuild(app_options(&db), catalog(&STRICT), "transfers", 700, |_| true);
        let refused = rebuilt.await.expect_err("no values");
        let passes = refused.kind().is_retryable() || refused.to_string().contains("stop them all");
        if !passes || begun.elapsed() > Duration::from_secs(60) {
            break refused.to_string();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(refused.contains("amount"), "{refused}");
    PgDerived::open(app_options(&db), catalog(&OLD), None).await.expect("is as it was");

    let mut left = Vec::new();
    for step in 0.. {
        assert!(step < 50, "it never ends");
        let mut last = None;
        PgDerived::rebuild(app_options(&db), catalog(&NEW), "transfers", 700, |moved| {
            last = Some(moved.clone());
            false
        })
        .await
        .expect("a step");
        match last.expect("told") {
            Moved::Renamed { left_behind } => left = left_behind,
            Moved::Same(rows) => assert_eq!(rows, 4_000),
            Moved::Dropped => break,
            Moved::Copied(_) | Moved::CopiedAll(_) => {}
        }
        let refused =
            PgDerived::open(app_options(&db), catalog(&NEW), None).await.expect_err("isn't finished");
        assert!(refused.to_string().contains("--in-place app.transfers"), "{refused}");
    }
    assert_eq!(left, ["note"]);
    PgDerived::open(app_options(&db), catalog(&NEW), None).await.expect("is as it ought to be");
    assert_eq!(number(&db, "SELECT count(*) FROM app.transfers WHERE amount IS NULL").await, 4_000);
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.transfers'::regclass";
    assert!(number(&db, partitions).await >= 8, "0 to 1999 by 300, and ahead");
    // A table without partitions goes the same way.
    db.sql("INSERT INTO app.holdings SELECT decode(md5(n::text), 'hex'), n FROM generate_series(1, 100) n")
        .await;
    PgDerived::rebuild(app_options(&db), catalog(&NEW), "holdings", 7, |_| true).await.expect("works");
    assert_eq!(number(&db, "SELECT count(*) FROM app.holdings").await, 100);
}

#[tokio::test]
async fn tables_are_exported_in_order_and_dropped_with_what_is_known_of_their_worker() {
    let Some(db) = pg::database().await else { return };
    let store = PgDerived::open(app_options(&db), catalog(&OLD), None).await.expect("opens");
    store.ensure_partitions(HeightRange::new(Height(0), Height(10))).await.expect("makes partitions");
    drop(store);
    db.sql(
        "INSERT INTO app.transfers VALUES (2, 0, '\\x02', 'two, \"quoted\"'), (1, 1, '\\x01', NULL), (1, 0, '\\x00ff', ''); \
         INSERT INTO app.holdings VALUES ('\\x01', 1); \
         INSERT INTO app.quarantined_blocks VALUES ('mapper', 7), ('another', 7)",
    )
    .await;
    let mut text = Vec::new();
    let pool = db.pool();
    let rows = export_csv(&pool, "app.\"transfers\"", |piece| {
        text.extend_from_slice(piece);
        Ok(())
    });
    assert_eq!(rows.await.expect("is exported"), 3);
    let text = String::from_utf8(text).expect("text");
    let expected = "block_height,log_index,token,note\n1,0,\\x00ff,\"\"\n1,1,\\x01,\n2,0,\\x02,\"two, \"\"quoted\"\"\"\n";
    assert_eq!(text, expected);
    let tables =
        PgDerived::tables_beside(&app_options(&db), &catalog(&NEW), "transfers").await.expect("asks");
    assert_eq!(tables, ["transfers"]);
    assert!(PgDerived::tables_beside(&app_options(&db), &catalog(&NEW), "nothing").await.is_err());
    let dropped = PgDerived::drop_tables(app_options(&db), catalog(&NEW), &tables, &Behind::default())
        .await
        .expect("drops");
    assert_eq!(dropped, Dropped::default(), "the mapper never ran");
    PgDerived::open(app_options(&db), catalog(&NEW), None).await.expect("makes it by the new definition");
    assert_eq!(number(&db, "SELECT count(*) FROM app.transfers").await, 0);
    assert_eq!(number(&db, "SELECT count(*) FROM app.holdings").await, 1);
    assert_eq!(number(&db, "SELECT count(*) FROM app.quarantined_blocks").await, 1);
}

const LONG_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("what_was_transferred", ColumnType::Bytes),
    column("who_has_transferred_it", ColumnType::Bytes),
];
static LONG: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: LONG_COLUMNS,
    key: &[BLOCK_HEIGHT, "log_index"],
    // PostgreSQL names the partitions' indexes by these columns, and cuts the names off where they are longer than it takes.
    indexes: &[
        IndexDef {
            name: "by_what",
            columns: &["what_was_transferred", "who_has_transferred_it", BLOCK_HEIGHT],
        },
        IndexDef {
            name: "by_what_and_log",
            columns: &["what_was_transferred", "who_has_transferred_it", "log_index", BLOCK_HEIGHT],
        },
    ],
};

#[tokio::test]
async fn indexes_with_the_longest_of_names_are_no_obstacle() {
    let Some(db) = pg::database().await else { return };
    let store = PgDerived::open(app_options(&db), catalog(&LONG), None).await.expect("opens");
    store.ensure_partitions(HeightRange::new(Height(0), Height(3_000))).await.expect("makes partitions");
    drop(store);
    let longest = "SELECT max(length(c.relname))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                   WHERE n.nspname = 'app'";
    assert!(number(&db, longest).await > 59, "no name is too long for `_old`: the test shows nothing");
    db.sql(
        "INSERT INTO app.transfers SELECT h, 0, decode(md5(h::text), 'hex'), '\\x01' FROM generate_series(0, 2999) h",
    )
    .await;
    let indexes = "SELECT count(*) FROM pg_indexes WHERE schemaname = 'app' AND tablename LIKE 'transfers%'";
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app.transfers'::regclass";
    for _ in 0..2 {
        PgDerived::rebuild(app_options(&db), catalog(&LONG), "transfers", 1_000, |_| true)
            .await
            .expect("is moved");
        PgDerived::open(app_options(&db), catalog(&LONG), None).await.expect("is as it ought to be");
        assert_eq!(number(&db, "SELECT count(*) FROM app.transfers").await, 3_000);
        assert_eq!(number(&db, indexes).await, 3 * (1 + number(&db, partitions).await));
    }
}
