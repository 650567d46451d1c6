//! One transaction behind the gate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_core::Fence;
use cairn_store::Result;
use futures::future::BoxFuture;
use futures::{SinkExt, pin_mut};
use tokio_postgres::Row as PgRow;

use super::fault::Fault;
use super::{Shared, int_of};
use crate::postgres::copy::PgTimestamp;
use crate::postgres::error::corrupt;
use crate::postgres::pool::{Param, lock_key};
use crate::postgres::{Isolation, PgConn, StatementHook};

/// How the gate is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// For commits, claims, reclaims and reaping.
    Shared,
    /// For whoever applies a reorg, and the committer.
    Exclusive,
}

/// The lock's name; locks are per database, and the schema's name is always the same.
const GATE: &str = "cairn.app.gate";

/// A transaction that holds the gate. Dropped without [`Tx::commit`] it is rolled back, a moment later.
pub(super) struct Tx<'a> {
    pub(super) shared: &'a Shared,
    pub(super) conn: PgConn,
    hook: Option<Arc<dyn StatementHook>>,
    /// When it got the gate, by the store's clock, in milliseconds since 1970.
    pub(super) now_ms: u64,
}

impl Shared {
    pub(super) async fn begin(&self, gate: Gate) -> std::result::Result<Tx<'_>, Fault> {
        let hook = self.statement_hook();
        let conn = self.write.begin(Isolation::ReadCommitted).await?;
        before(&hook)?;
        let lock = match gate {
            Gate::Shared => "SELECT pg_advisory_xact_lock_shared($1), clock_timestamp()",
            Gate::Exclusive => "SELECT pg_advisory_xact_lock($1), clock_timestamp()",
        };
        let lock = conn.prepare(lock).await?;
        let key = lock_key(GATE);
        let now_ms = {
            let client = conn.client()?;
            let params: [Param<'_>; 1] = [&key];
            let locked = conn.answer(client.query_one(&lock, &params)).await??;
            match &self.clock {
                Some(clock) => clock.now_ms(),
                // The time after the lock: columns are computed in their order.
                None => locked.try_get::<_, PgTimestamp>(1)?.0,
            }
        };
        Ok(Tx { shared: self, conn, hook, now_ms })
    }

    /// Runs a transaction, again where the server broke it off, at most `max_retries` times.
    pub(super) async fn rerun<'a, T>(
        &'a self,
        mut run: impl FnMut() -> BoxFuture<'a, std::result::Result<T, Fault>> + Send,
    ) -> Result<T> {
        let mut runs = 0;
        loop {
            match run().await {
                Err(fault) if fault.is_rerun() && runs < self.options.max_retries => {
                    runs += 1;
                    tokio::time::sleep(Duration::from_millis(2 << runs.min(7))).await;
                }
                Err(fault) => {
                    if fault.is_read_only() {
                        self.write.give_up_connections();
                    }
                    return Err(fault.into_store());
                }
                Ok(answer) => return Ok(answer),
            }
        }
    }
}

fn before(hook: &Option<Arc<dyn StatementHook>>) -> std::result::Result<(), Fault> {
    Ok(hook.as_ref().map_or(Ok(()), |hook| hook.before_statement())?)
}

impl Tx<'_> {
    /// Goes before each statement, and before several that are sent together.
    pub(super) fn step(&self) -> std::result::Result<(), Fault> {
        before(&self.hook)
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<PgRow>, Fault> {
        self.step()?;
        let statement = self.conn.prepare(sql).await?;
        Ok(self.conn.answer(self.conn.client()?.query(&statement, params)).await??)
    }

    pub(super) async fn query_opt(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Option<PgRow>, Fault> {
        self.step()?;
        let statement = self.conn.prepare(sql).await?;
        Ok(self.conn.answer(self.conn.client()?.query_opt(&statement, params)).await??)
    }

    pub(super) async fn execute(&self, sql: &str, params: &[Param<'_>]) -> std::result::Result<u64, Fault> {
        self.step()?;
        let statement = self.conn.prepare(sql).await?;
        Ok(self.conn.answer(self.conn.client()?.execute(&statement, params)).await??)
    }

    /// Sends pieces of COPY data.
    pub(super) async fn copy_in(&self, sql: &str, pieces: &[Bytes]) -> std::result::Result<u64, Fault> {
        self.step()?;
        let statement = self.conn.prepare(sql).await?;
        let sink = self.conn.answer(self.conn.client()?.copy_in::<_, Bytes>(&statement)).await??;
        pin_mut!(sink);
        for piece in pieces {
            self.conn.answer(sink.feed(piece.clone())).await??;
        }
        Ok(self.conn.answer(sink.finish()).await??)
    }

    /// A new fence, above every one before.
    pub(super) async fn next_fence(&self) -> std::result::Result<Fence, Fault> {
        let row = self.query_opt("SELECT nextval('app.fences')", &[]).await?;
        let fence: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
        let fence = fence.and_then(|fence| u64::try_from(fence).ok());
        fence.map(Fence).ok_or_else(|| corrupt("app.fences", "the counter is below zero").into())
    }

    /// The newest fence that was given.
    pub(super) async fn newest_fence(&self) -> std::result::Result<Fence, Fault> {
        let row = self.query_opt("SELECT last_value FROM app.fences", &[]).await?;
        let fence: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
        Ok(Fence(fence.and_then(|fence| u64::try_from(fence).ok()).unwrap_or(0)))
    }

    pub(super) fn now(&self) -> PgTimestamp {
        PgTimestamp(self.now_ms)
    }

    /// Now and so many milliseconds.
    pub(super) fn after(&self, ms: u64) -> u64 {
        self.now_ms.saturating_add(ms).min(int_of(u64::MAX) as u64)
    }

    /// Rolls back at once: when its caller hears of a refusal, the lease is free. A claim passes over leases that are locked, and would begin a new range.
    pub(super) async fn undo(mut self) {
        if let Err(error) = self.conn.rollback().await {
            tracing::debug!(%error, "a rollback failed; the server does it when the connection is closed");
        }
    }

    /// Commits, between the hook's two calls.
    pub(super) async fn commit(mut self, verb: &'static str) -> std::result::Result<(), Fault> {
        let hook = self.shared.hook();
        if let Some(hook) = &hook {
            hook.before(verb)?;
        }
        self.step()?;
        self.conn.commit().await?;
        if let Some(hook) = &hook {
            hook.after(verb)?;
        }
        Ok(())
    }
}
