//! The part `derived` of `./dev bench postgres`: what writing derived rows costs, and which part of it is each index's.
//!
//! Commits of 10,000 rows of a table of transfers with a key and three indexes (fence, gate and checkpoint included), each time in a new database:
//! with all indexes, without each one, and without any, three times in turn. `derived_without_…` is the time without an index by the time
//! with all. Then a bare binary COPY of the same rows, and the same rows from a temporary table by a plain INSERT and by one with
//! ON CONFLICT into empty tables with their keys and indexes: event rows, which the store writes so only where some are there already, and
//! state, which it always does. Then `evm_logs` as the catalog of an EVM chain makes it, with as many made-up logs: what each of its indexes costs
//! ([`crate::bench_postgres_costs`]). Medians.

use std::time::{Duration, Instant};

use anyhow::Result;
use cairn_backends::postgres::{PgConn, PgDerived, PgDerivedOptions};
use cairn_core::{Height, HeightRange};
use cairn_explorer::processors::evm_catalog;
use cairn_explorer::tables::evm::EVM_LOGS;
use cairn_store::ReorgMark;
use cairn_store::derived::{ChunkCommit, Coordinator, DerivedWriter, LAST_HEIGHT, ReorgApplier, TableRows};

use crate::bench::median;
use crate::bench_derived::{self as made, HOLDINGS, OTHERS, PER_BLOCK};
use crate::bench_pg::{Database, copied, copy_into};
use crate::bench_postgres_costs::{Copied, copies, each_index};
use crate::report::figure;

const CHUNK_HEIGHTS: u64 = 100;
const CHUNK_ROWS: u64 = CHUNK_HEIGHTS * PER_BLOCK;
const ROUNDS: usize = 3;

/// Runs it on a server, with about so many rows of each table.
pub async fn run(server: &str, rows: u64) -> Result<()> {
    let chunks = rows.div_ceil(CHUNK_ROWS);
    let indexes: Vec<&str> = OTHERS.indexes.iter().map(|index| index.name).collect();
    let (mut with_all, mut with_none) = (Vec::new(), Vec::new());
    let mut without = vec![Vec::new(); indexes.len()];
    for _ in 0..ROUNDS {
        with_all.push(written(server, chunks, &[]).await?);
        for (index, seconds) in indexes.iter().zip(&mut without) {
            seconds.push(written(server, chunks, &[*index]).await?);
        }
        with_none.push(written(server, chunks, &indexes).await?);
    }
    let took = median(with_all);
    let bare = beside_the_store(server, chunks).await?;
    let rows = (chunks * CHUNK_ROWS) as f64;
    figure("derived_rows_per_s", format!("{:.0}", rows / took), "rows/s");
    figure("derived_bare_copy_rows_per_s", format!("{:.0}", rows / bare), "rows/s");
    figure("derived_vs_copy", format!("{:.2}", bare / took), "ratio");
    for (index, seconds) in indexes.iter().zip(without) {
        figure(&format!("derived_without_{index}"), format!("{:.2}", median(seconds) / took), "ratio");
    }
    figure("derived_without_indexes", format!("{:.2}", median(with_none) / took), "ratio");
    logs(server, chunks * CHUNK_ROWS).await
}

/// What each index of `evm_logs` costs, with the table as a store makes it by the catalog of an EVM chain.
async fn logs(server: &str, rows: u64) -> Result<()> {
    let db = Database::make(server, "derived").await?;
    let table = EVM_LOGS.name;
    drop(PgDerived::open(PgDerivedOptions::new(&db.url), evm_catalog()?, None).await?);
    let pool = db.pool()?;
    let conn = pool.get().await?;
    let address = |n: &str| format!("substr(sha256(int8send({n})), 1, 20)");
    // 200 logs a block and 4 a transaction, of 5,000 contracts; seven of ten are transfers between some of many holders; a few have a third indexed argument.
    conn.batch(&format!(
        "CREATE SCHEMA bare; CREATE TABLE bare.{table} (LIKE app.{table});
         INSERT INTO bare.{table} SELECT n / 200, sha256(int8send(n / 4)), n % 200, n % 200 / 4, 1700000000000 + n / 200 * 12000,
             {contract}, CASE WHEN n % 10 < 7 THEN sha256('Transfer') ELSE sha256(int8send(n % 50)) END,
             decode(repeat('00', 12), 'hex') || {from}, decode(repeat('00', 12), 'hex') || {to},
             CASE WHEN n % 5 = 0 THEN sha256(int8send(n)) END, sha256(int8send(-n)), 32, NULL, NULL
           FROM generate_series(0, {rows}::bigint - 1) AS g(n)",
        contract = address("n * 7919 % 5000"),
        from = address("n * 31 % 100003"),
        to = address("n * 37 % 70001"),
    ))
    .await?;
    let rows = copied(&conn, &format!("SELECT * FROM bare.{table}")).await?;
    let mut of = Copied { schema: "app", table, target: table.to_owned(), rows: &rows, plain_s: 0.0 };
    of.plain_s = copies(&conn, &of).await?;
    each_index(&conn, "derived_index_", &of, &[]).await?;
    drop(conn);
    drop(pool);
    db.drop().await
}

/// A store in a new database, with its services.
pub async fn open(db: &Database) -> Result<PgDerived> {
    let options = PgDerivedOptions { snapshot_max_ms: None, ..PgDerivedOptions::new(&db.url) };
    let store = PgDerived::open(options, made::catalog()?, None).await?;
    store.adopt(made::RAW, ReorgMark { id: 0, digest: [0; 32] }).await?;
    for service in made::SERVICES {
        store.register(service, Height(0)).await?;
    }
    Ok(store)
}

/// Writes everything in a database of its own that lacks some indexes; how long the commits took, in seconds.
async fn written(server: &str, chunks: u64, dropped: &[&str]) -> Result<f64> {
    let db = Database::make(server, "derived").await?;
    let took = commits(&db, chunks, dropped).await?;
    db.drop().await?;
    Ok(took)
}

async fn commits(db: &Database, chunks: u64, dropped: &[&str]) -> Result<f64> {
    let store = open(db).await?;
    store.ensure_partitions(HeightRange::new(Height(0), Height(chunks * CHUNK_HEIGHTS))).await?;
    let pool = db.pool()?;
    let conn = pool.get().await?;
    for index in dropped {
        conn.batch(&format!("DROP INDEX app.{}_{index}", OTHERS.name)).await?;
    }
    drop(conn);
    let mut lease = made::claim(&store, OTHERS.service).await?;
    let mut took = Duration::ZERO;
    for part in 0..chunks {
        let (from, to) = (part * CHUNK_HEIGHTS, (part + 1) * CHUNK_HEIGHTS);
        let rows = vec![TableRows { table: OTHERS.name, rows: made::transfers(from, to) }];
        let commit = ChunkCommit { rows, ..made::chunk(&lease, to, 0) };
        let begun = Instant::now();
        lease = store.commit_chunk(&lease, commit).await?.lease;
        took += begun.elapsed();
    }
    Ok(took.as_secs_f64())
}

/// The same rows without the store: prints what ON CONFLICT costs, and answers how long the bare COPY takes, in seconds.
async fn beside_the_store(server: &str, chunks: u64) -> Result<f64> {
    let db = Database::make(server, "derived").await?;
    commits(&db, chunks, &[]).await?;
    let pool = db.pool()?;
    let conn = pool.get().await?;
    let rows = copied(&conn, &format!("SELECT * FROM app.{}", OTHERS.name)).await?;
    conn.batch(&format!("CREATE TABLE bare (LIKE app.{})", OTHERS.name)).await?;
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        conn.batch("TRUNCATE bare").await?;
        bare.push(copy_into(&conn, "bare", &rows).await?.as_secs_f64());
    }
    conn.batch(&format!("CREATE TEMP TABLE arrived_{0} AS SELECT * FROM app.{0}", OTHERS.name)).await?;
    on_conflict(&conn, OTHERS.name, "DO NOTHING").await?;
    conn.batch(&format!(
        "CREATE TEMP TABLE arrived_{} AS SELECT '\\x02'::bytea, substr(sha256(int8send(n)), 1, 20), n::numeric, 0::bigint, n / {PER_BLOCK}
           FROM generate_series(0, {}::bigint - 1) AS g(n)",
        HOLDINGS.name,
        chunks * CHUNK_ROWS
    ))
    .await?;
    let sets = HOLDINGS.columns.iter().filter(|column| !HOLDINGS.key.contains(&column.name));
    let sets: Vec<String> = sets.map(|column| format!("{0} = EXCLUDED.{0}", column.name)).collect();
    let update = format!(
        "({}) DO UPDATE SET {} WHERE EXCLUDED.{LAST_HEIGHT} >= t.{LAST_HEIGHT}",
        HOLDINGS.key.join(", "),
        sets.join(", ")
    );
    on_conflict(&conn, HOLDINGS.name, &update).await?;
    drop(conn);
    drop(pool);
    db.drop().await?;
    Ok(median(bare))
}

/// Rows that have arrived, into their empty table, plainly and with this clause in turn.
async fn on_conflict(conn: &PgConn, table: &str, clause: &str) -> Result<()> {
    let plain = format!("INSERT INTO app.{table} AS t SELECT * FROM arrived_{table}");
    let (mut plainly, mut carefully) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (sql, seconds) in
            [(plain.clone(), &mut plainly), (format!("{plain} ON CONFLICT {clause}"), &mut carefully)]
        {
            conn.batch(&format!("TRUNCATE app.{table}")).await?;
            let begun = Instant::now();
            conn.batch(&sql).await?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
    }
    let ratio = median(carefully) / median(plainly);
    figure(&format!("derived_on_conflict_{table}"), format!("{ratio:.2}"), "times_plain_insert");
    Ok(())
}
