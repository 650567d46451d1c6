//! A writing transaction: every statement of a verb, between the commit hook's two calls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cairn_core::HeightRange;
use cairn_store::memory::CommitHook;
use cairn_store::{Result, StoreError};
use tokio::sync::MutexGuard;
use tokio_postgres::Row;

use super::lanes::Lanes;
use super::{Shared, schema, stale};
use crate::postgres::error::Failure;
use crate::postgres::pool::{CopyIn, Param};
use crate::postgres::{CopyBuf, Isolation, Partitions, PgConn, StatementHook};

/// How often a verb is run again at once where it lost against another writer.
const MAX_RUNS: u32 = 8;

/// The verb of ranges ahead of the head.
pub(super) const FILL: &str = "fill";

/// One transaction of a verb.
pub(super) struct Tx {
    conn: PgConn,
    hook: Option<Arc<dyn StatementHook>>,
    partitions: Partitions,
    /// Of who fills ranges.
    lanes: Option<Arc<Lanes>>,
    /// Whether a partition that this process knows was not there.
    partition_gone: AtomicBool,
    /// Whether a lookup's key refused a row in the run before.
    refused_by_lookup: bool,
    stale_lookups: stale::Removed,
}

pub(super) type Work<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl Tx {
    fn step(&self) -> Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook.before_statement())
    }

    /// The connection, for reading.
    pub(super) fn conn(&self) -> &PgConn {
        &self.conn
    }

    /// Whether the run before this one was refused by a lookup's key; see [`stale`].
    pub(super) fn was_refused_by_lookup(&self) -> bool {
        self.refused_by_lookup
    }

    pub(super) fn stale_lookups(&self) -> &stale::Removed {
        &self.stale_lookups
    }

    pub(super) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.step()?;
        self.conn.execute(sql, params).await
    }

    pub(super) async fn batch(&self, sql: &str) -> Result<()> {
        self.step()?;
        self.conn.batch(sql).await
    }

    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.step()?;
        self.conn.query(sql, params).await
    }

    pub(super) async fn query_opt(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        self.step()?;
        self.conn.query_opt(sql, params).await
    }

    pub(super) async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        self.step()?;
        self.conn.query_one(sql, params).await
    }

    /// Sends rows, where there are any.
    pub(super) async fn copy_in(&self, sql: &str, rows: CopyBuf) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.step()?;
        let (expected, taken) = (rows.rows(), self.conn.copy_in(sql, rows).await?);
        if taken == expected {
            Ok(())
        } else {
            Err(StoreError::Database(format!("{taken} of {expected} rows were taken: {sql}")))
        }
    }

    /// Begins to send rows of `heights` to a table: straight to the partition where one holds all of them, which saves the server from looking for
    /// the partition of each row.
    pub(super) async fn begin_copy_heights(
        &self,
        table: &'static str,
        columns: &'static str,
        heights: HeightRange,
    ) -> Result<HeightsCopy<'_>> {
        self.step()?;
        let lane = match &self.lanes {
            Some(lanes) => lanes.enter(table).await,
            None => None,
        };
        let partition = self.partitions.holding(table, heights);
        let name = partition.as_deref().unwrap_or(table);
        let sql = format!("COPY {}.{name} ({columns}) FROM STDIN (FORMAT binary)", schema::SCHEMA);
        let begun = self.conn.begin_copy(&sql).await;
        if begun.is_err() && partition.is_some() && self.conn.failure() == Some(Failure::NoTable) {
            self.partition_gone.store(true, Ordering::Relaxed);
        }
        Ok(HeightsCopy { table, copy: begun?, _lane: lane })
    }
}

/// Rows on their way to a table.
pub(super) struct HeightsCopy<'a> {
    table: &'static str,
    copy: CopyIn<'a>,
    _lane: Option<MutexGuard<'a, ()>>,
}

impl HeightsCopy<'_> {
    pub(super) async fn send(&mut self, piece: Bytes) -> Result<()> {
        self.copy.send(piece).await
    }

    /// Ends it; it must have taken so many rows.
    pub(super) async fn finish(self, rows: u64) -> Result<()> {
        let taken = self.copy.finish().await?;
        if taken == rows {
            return Ok(());
        }
        Err(StoreError::Database(format!("{taken} of {rows} rows of {} were taken", self.table)))
    }
}

impl Shared {
    /// One transaction, between the hook's two calls. An error from `work` leaves everything as it was. Where the transaction lost against
    /// another writer (a deadlock, or the other one wrote the same key first) it is run again whole; the next run knows whether that key was a lookup's.
    pub(super) async fn commit<T>(
        &self,
        verb: &'static str,
        work: impl for<'a> Fn(&'a Tx) -> Work<'a, T>,
    ) -> Result<T> {
        self.demand_writable()?;
        let (hook, statement_hook) = self.hooks();
        let (mut runs, mut refused_by_lookup) = (0, false);
        loop {
            runs += 1;
            let conn = self.pool.begin(Isolation::ReadCommitted).await?;
            let mut tx = Tx {
                conn,
                hook: statement_hook.clone(),
                partitions: self.partitions.clone(),
                lanes: (verb == FILL).then(|| self.lanes.clone()),
                partition_gone: AtomicBool::new(false),
                refused_by_lookup,
                stale_lookups: stale::Removed::default(),
            };
            let done = match work(&tx).await {
                Ok(answer) => Ok(answer),
                Err(error) => Err((error, tx.conn.failure())),
            };
            match done {
                Ok(answer) => {
                    before(&hook, verb)?;
                    tx.step()?;
                    tx.conn.commit().await?;
                    tx.stale_lookups.tell(verb);
                    if let Some(hook) = &hook {
                        hook.after(verb)?;
                    }
                    return Ok(answer);
                }
                Err((_, Some(failure @ (Failure::Again | Failure::Unique(_))))) if runs < MAX_RUNS => {
                    if let Failure::Unique(constraint) = &failure {
                        refused_by_lookup |= stale::is_lookup_key(constraint);
                    }
                    tx.conn.rollback().await?;
                }
                Err((error, failure)) => {
                    if failure == Some(Failure::NoPartition) || tx.partition_gone.load(Ordering::Relaxed) {
                        // Somebody dropped a partition that this process knows; the next try makes it again.
                        self.partitions.forget();
                        return Err(StoreError::Busy(error.to_string()));
                    }
                    // Where the connection is well, nothing is left open behind the caller's back.
                    if !matches!(error, StoreError::Busy(_))
                        && let Err(rollback) = tx.conn.rollback().await
                    {
                        tracing::debug!(%rollback, verb, "a rollback failed; the connection is closed");
                    }
                    return Err(error);
                }
            }
        }
    }
}

fn before(hook: &Option<Arc<dyn CommitHook>>, verb: &'static str) -> Result<()> {
    hook.as_ref().map_or(Ok(()), |hook| hook.before(verb))
}
