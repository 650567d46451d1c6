//! A connection out of a pool, and what is asked on it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use cairn_store::{Result, StoreError};
use futures::{SinkExt, TryStreamExt, pin_mut};
use tokio::sync::OwnedSemaphorePermit;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, CopyInSink, Row, RowStream, Statement};

use super::copy::CopyBuf;
use super::error::{Failure, classify, db, text};
use super::pool::{Inner, Isolation, Param, Session};

/// A connection out of a pool. Statements are prepared once per connection and remembered by their text, so texts must come from a
/// bounded set.
pub struct PgConn {
    /// `None` only while it is dropped.
    pub(super) session: Option<Session>,
    pub(super) pool: Arc<Inner>,
    pub(super) permit: Option<OwnedSemaphorePermit>,
    pub(super) in_transaction: bool,
    /// Whether the connection is closed afterwards, and given to nobody else.
    pub(super) is_apart: bool,
    pub(super) failure: Mutex<Option<Failure>>,
    /// Whether statements may run as long as they take.
    pub(super) is_patient: AtomicBool,
    /// Whether each answer has to come as quickly as a connection is made.
    pub(super) is_quick: AtomicBool,
    /// Whether it said nothing for too long. Its task ends a moment later.
    pub(super) is_silent: AtomicBool,
}

impl std::fmt::Debug for PgConn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgConn").field("in_transaction", &self.in_transaction).finish_non_exhaustive()
    }
}

impl PgConn {
    fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| StoreError::Database("the connection was given back".into()))
    }

    /// Whether the connection is gone.
    pub fn is_closed(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
            || self.session.as_ref().is_none_or(|session| session.client.is_closed())
    }

    fn failed(&self, error: tokio_postgres::Error) -> StoreError {
        let failure = classify(&error);
        if failure == Failure::ReadOnly {
            self.pool.give_up_connections();
        }
        // A statement in a transaction that failed says nothing of why it did.
        let is_later = error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION);
        if !is_later || self.failure().is_none() {
            self.set_failure(Some(failure));
        }
        db(error)
    }

    /// Awaits the server's answer for as long as a statement may run, and a little. A connection that says nothing by then is closed, and so are the pool's idle ones: what doesn't forward this one's bytes forwards
    /// theirs neither.
    pub(crate) async fn answer<T, E>(
        &self,
        answer: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<std::result::Result<T, E>> {
        let options = &self.pool.options;
        if options.statement_timeout_ms == 0 || self.is_patient.load(Ordering::Relaxed) {
            return Ok(answer.await);
        }
        let limit_ms = match self.is_quick.load(Ordering::Relaxed) {
            true => options.connect_timeout_ms.max(1),
            false => options.statement_timeout_ms.saturating_add(options.answer_grace_ms),
        };
        self.answer_within(limit_ms, answer).await
    }

    async fn answer_within<T, E>(
        &self,
        limit_ms: u64,
        answer: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<std::result::Result<T, E>> {
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(limit_ms), answer).await {
            return Ok(answer);
        }
        if let Some(session) = &self.session {
            session.driver.abort();
        }
        self.is_silent.store(true, Ordering::Relaxed);
        self.pool.give_up_connections();
        self.set_failure(Some(Failure::Busy));
        Err(StoreError::Busy(format!(
            "PostgreSQL said nothing for {limit_ms} ms (database {}, {}); the connection is closed. Where this goes on, look at the server, and at the proxy or firewall before it",
            self.pool.config.get_dbname().unwrap_or("(default)"),
            self.pool.options.application_name
        )))
    }

    fn set_failure(&self, failure: Option<Failure>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// What a statement failed with since the transaction began: the last one that failed by itself.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a transaction.
    pub async fn begin(&mut self, isolation: Isolation) -> Result<()> {
        self.set_failure(None);
        let statements = isolation.begin();
        self.in_transaction = true;
        self.watch_limits(statements);
        // It needs no work, so it is answered at once.
        let begun = self.session()?.client.batch_execute(statements);
        self.answer_within(self.pool.options.connect_timeout_ms.max(1), begun).await?.map_err(|error| {
            // In this way a server that follows another one refuses the words READ WRITE.
            if error.code() != Some(&SqlState::FEATURE_NOT_SUPPORTED) {
                return self.failed(error);
            }
            self.pool.give_up_connections();
            self.set_failure(Some(Failure::ReadOnly));
            StoreError::Busy(text(&error))
        })
    }

    /// The client itself, for callers that send several statements at once or act on the server's error.
    pub(crate) fn client(&self) -> Result<&Client> {
        Ok(&self.session()?.client)
    }

    /// Runs a statement that can be in no transaction and takes as long as it takes. The connection is closed afterwards, and where the caller goes away.
    pub(crate) async fn run_last(mut self, statement: &str) -> Result<()> {
        let Some(session) = self.session.take() else {
            return Err(StoreError::Database("the connection was given back".into()));
        };
        session.client.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await.map_err(db)?;
        session.client.batch_execute(statement).await.map_err(db)
    }

    /// Keeps the connection from going back to its pool: it is closed when this is dropped, and what the server keeps for a session goes with it, such as settings and locks. A statement
    /// that runs then is run to its end first, also where the caller, or the whole process, goes away.
    pub(crate) fn keep_apart(&mut self) {
        self.is_apart = true;
    }

    /// Tries to get an advisory lock by name, held as long as the session is there. Only on a connection that is [kept apart](PgConn::keep_apart): another user of it would hold the lock too.
    pub(crate) async fn try_lock_of_session(&self, name: &str) -> Result<bool> {
        let row = self.query_one("SELECT pg_try_advisory_lock($1)", &[&lock_key(name)]).await?;
        row.try_get(0).map_err(db)
    }

    /// Waits for an advisory lock by name that others hold too, likewise.
    #[cfg(feature = "postgres")]
    pub(crate) async fn share_lock_of_session(&self, name: &str) -> Result<()> {
        self.execute("SELECT pg_advisory_lock_shared($1)", &[&lock_key(name)]).await.map(drop)
    }

    /// Gives back a lock of [`PgConn::try_lock_of_session`].
    #[cfg(feature = "postgres")]
    pub(crate) async fn unlock_of_session(&self, name: &str) -> Result<()> {
        self.execute("SELECT pg_advisory_unlock($1)", &[&lock_key(name)]).await.map(drop)
    }

    /// Commits the transaction.
    pub async fn commit(&mut self) -> Result<()> {
        self.batch("COMMIT").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Rolls the transaction back.
    pub async fn rollback(&mut self) -> Result<()> {
        self.batch("ROLLBACK").await?;
        self.in_transaction = false;
        Ok(())
    }

    /// Waits for an advisory lock by name (hashed to 64 bits) and holds it to the end of the transaction.
    pub async fn lock_until_end(&self, name: &str) -> Result<()> {
        self.execute("SELECT pg_advisory_xact_lock($1)", &[&lock_key(name)]).await?;
        Ok(())
    }

    /// Runs statements without parameters, separated by semicolons.
    pub async fn batch(&self, sql: &str) -> Result<()> {
        self.watch_limits(sql);
        let answer = self.session()?.client.batch_execute(sql);
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// Whoever lets statements run as long as they take waits as long for their answers.
    fn watch_limits(&self, sql: &str) {
        if sql.contains("statement_timeout = 0") {
            self.is_patient.store(true, Ordering::Relaxed);
        }
    }

    /// The prepared statement of this text.
    pub async fn prepare(&self, sql: &str) -> Result<Statement> {
        let session = self.session()?;
        let known = session.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement =
            self.answer(session.client.prepare(sql)).await?.map_err(|error| self.failed(error))?;
        let mut statements = session.statements.lock().unwrap_or_else(PoisonError::into_inner);
        statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement; the number of rows that it touched.
    pub async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64> {
        self.try_execute(sql, params).await?.map_err(|error| self.failed(error))
    }

    /// Runs a statement and leaves the server's refusal to the caller, see [`super::error::classify`].
    pub async fn try_execute(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<std::result::Result<u64, tokio_postgres::Error>> {
        let statement = self.prepare(sql).await?;
        self.answer(self.session()?.client.execute(&statement, params)).await
    }

    /// All rows of a query.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.query(&statement, params);
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// The row of a query that has at most one.
    pub async fn query_opt(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.query_opt(&statement, params);
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// The row of a query that has exactly one.
    pub async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.query_one(&statement, params);
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// The rows of a query one after the other, for results that don't fit in memory.
    pub async fn query_stream(&self, sql: &str, params: &[Param<'_>]) -> Result<RowStream> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.query_raw(&statement, params.iter().copied());
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// The next row of a stream.
    pub async fn next_row(&self, rows: &mut Pin<&mut RowStream>) -> Result<Option<Row>> {
        self.answer(rows.try_next()).await?.map_err(|error| self.failed(error))
    }

    /// Runs a query whose statement isn't kept: for texts that come from an unbounded set. `types` are the parameters'.
    pub async fn query_once(&self, sql: &str, params: &[(Param<'_>, Type)]) -> Result<Vec<Row>> {
        let answer = self.session()?.client.query_typed(sql, params);
        self.answer(answer).await?.map_err(|error| self.failed(error))
    }

    /// Sends rows by binary COPY; the number of rows taken. `sql` is `COPY table (columns) FROM STDIN (FORMAT binary)`.
    pub async fn copy_in(&self, sql: &str, rows: CopyBuf) -> Result<u64> {
        let mut copy = self.begin_copy(sql).await?;
        for piece in rows.finish() {
            copy.send(piece).await?;
        }
        copy.finish().await
    }

    /// Begins a binary COPY whose bytes come piece by piece. One that is dropped before its end fails, and the transaction with it.
    pub async fn begin_copy(&self, sql: &str) -> Result<CopyIn<'_>> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.copy_in(&statement);
        let sink = self.answer(answer).await?.map_err(|error| self.failed(error))?;
        Ok(CopyIn { conn: self, sink: Box::pin(sink) })
    }

    /// The bytes of `COPY (query) TO STDOUT`, handed to `take` piece by piece.
    pub async fn copy_out(&self, sql: &str, mut take: impl FnMut(&[u8]) -> Result<()> + Send) -> Result<()> {
        let statement = self.prepare(sql).await?;
        let answer = self.session()?.client.copy_out(&statement);
        let stream = self.answer(answer).await?.map_err(|error| self.failed(error))?;
        pin_mut!(stream);
        while let Some(piece) = self.answer(stream.try_next()).await?.map_err(|error| self.failed(error))? {
            take(piece.chunk())?;
        }
        Ok(())
    }
}

/// A binary COPY that goes on.
pub struct CopyIn<'a> {
    conn: &'a PgConn,
    sink: Pin<Box<CopyInSink<Bytes>>>,
}

impl CopyIn<'_> {
    /// Sends a piece of the bytes.
    pub async fn send(&mut self, piece: Bytes) -> Result<()> {
        self.conn.answer(self.sink.feed(piece)).await?.map_err(|error| self.conn.failed(error))
    }

    /// Ends the statement; the number of rows taken.
    pub async fn finish(mut self) -> Result<u64> {
        self.conn.answer(self.sink.as_mut().finish()).await?.map_err(|error| self.conn.failed(error))
    }
}

impl Drop for PgConn {
    fn drop(&mut self) {
        let (Some(session), pool, permit) = (self.session.take(), self.pool.clone(), self.permit.take())
        else {
            return;
        };
        if self.is_apart {
            return;
        }
        if !self.in_transaction || session.client.is_closed() {
            pool.put_back(session);
            return;
        }
        // Without a runtime the connection is closed, which rolls back too.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            match pool.roll_back(&session.client).await {
                Some(Ok(())) => pool.put_back(session),
                Some(Err(error)) => {
                    tracing::debug!(error = %text(&error), "a rollback failed; connection closed");
                    if session.client.is_closed() {
                        pool.lost(&session);
                    }
                }
                None => {
                    tracing::debug!("a rollback took too long; connection closed");
                    // Whoever answers nothing may not be there any more; without this the connection would wait for its answers.
                    session.driver.abort();
                    pool.lost(&session);
                }
            }
            drop(permit);
        });
    }
}

/// The key of a named advisory lock: FNV-1a, which never changes.
pub fn lock_key(name: &str) -> i64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_keys_never_change() {
        assert_eq!(lock_key("cairn.migrate.raw"), lock_key("cairn.migrate.raw"));
        assert_eq!(lock_key(""), 0xcbf2_9ce4_8422_2325_u64 as i64);
    }
}
