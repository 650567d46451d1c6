//! What the benchmarks on PostgreSQL share: a database of one's own, and a word on the server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use cairn_backends::postgres::{CopyBuf, PgConn, PgOptions, PgPool};

/// A database on the server, for one benchmark.
pub struct Database {
    admin: PgPool,
    name: String,
    /// Where it is.
    pub url: String,
}

impl Database {
    /// Makes an empty one. One that a benchmark left behind when it was stopped keeps its name: `cairn_bench_…`.
    pub async fn make(server: &str, label: &str) -> Result<Database> {
        let admin =
            PgPool::new(PgOptions { statement_timeout_ms: 0, max_idle_conns: 0, ..PgOptions::new(server) })?;
        let name = format!("cairn_bench_{label}_{}_{}", std::process::id(), rand::random::<u32>());
        admin.get().await?.batch(&format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
        let (before, query) = server.split_once('?').unwrap_or((server, ""));
        let base = before.rsplit_once('/').map_or(before, |(base, _)| base);
        let separator = if query.is_empty() { "" } else { "?" };
        Ok(Database { admin, url: format!("{base}/{name}{separator}{query}"), name })
    }

    /// A pool of connections whose statements may take as long as they take.
    pub fn pool(&self) -> Result<PgPool> {
        Ok(PgPool::new(PgOptions { statement_timeout_ms: 0, ..PgOptions::new(&self.url) })?)
    }

    /// Drops it, whoever is connected.
    pub async fn drop(self) -> Result<()> {
        let connection = self.admin.get().await?;
        Ok(connection.batch(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await?)
    }
}

/// Prints the server's version and the settings that decide what writing costs.
pub async fn describe(server: &str) -> Result<()> {
    let pool = PgPool::new(PgOptions { max_idle_conns: 0, ..PgOptions::new(server) })?;
    let row = pool
        .get()
        .await?
        .query_one(
            "SELECT current_setting('server_version'), (SELECT string_agg(name || '=' || current_setting(name), ' ' \
             ORDER BY name) FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', \
             'shared_buffers', 'max_wal_size', 'checkpoint_timeout', 'wal_level', 'huge_pages'))",
            &[],
        )
        .await?;
    println!("PostgreSQL {}, {}", row.try_get::<_, String>(0)?, row.try_get::<_, String>(1)?);
    Ok(())
}

/// A query's rows in the binary COPY format, as they would be sent to the server.
pub async fn copied(conn: &PgConn, query: &str) -> Result<Bytes> {
    let mut bytes = Vec::new();
    conn.copy_out(&format!("COPY ({query}) TO STDOUT (FORMAT binary)"), |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .await?;
    Ok(bytes.into())
}

/// Copies rows into a table in one statement; how long that took.
pub async fn copy_into(conn: &PgConn, table: &str, rows: &Bytes) -> Result<Duration> {
    let statement = format!("COPY {table} FROM STDIN (FORMAT binary)");
    conn.prepare(&statement).await?;
    let begun = Instant::now();
    conn.copy_in(&statement, CopyBuf::encoded(rows.clone())).await.with_context(|| table.to_owned())?;
    Ok(begun.elapsed())
}
