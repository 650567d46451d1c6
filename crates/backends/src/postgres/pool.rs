//! A bounded pool of connections, each configured on connect, with its prepared statements.
//!
//! **Back-pressure.** [`PgPool::get`] waits at most `pool_wait_ms` for one of `max_open_conns` and is then [`StoreError::Busy`]. No
//! connection is held across anything but the database's own answers: callers do their other I/O before they ask for one.
//!
//! **Shutdown and cancellation.** A [`PgConn`] that is dropped inside a transaction is rolled back in the background and goes back to the
//! pool afterwards; one that can't be rolled back, or not in time, is closed, which rolls it back on the server. Dropping the last handle of
//! a pool closes its idle connections.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, Bytes};
use cairn_store::{Result, StoreError};
use futures::{SinkExt, TryStreamExt, pin_mut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, CopyInSink, NoTls, Row, RowStream, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::copy::CopyBuf;
use super::error::{Failure, classify, db, text};
use super::tls;

/// A parameter of a statement.
pub type Param<'a> = &'a (dyn ToSql + Sync);

/// How a server is reached and how much of it is used. Times are milliseconds; 0 turns a server-side timeout off.
///
/// The sum of `max_open_conns` over all pools of all processes has to stay below the server's `max_connections`.
#[derive(Clone)]
pub struct PgOptions {
    /// `postgres://user:password@host:port/database?sslmode=...`. `sslmode`: `disable` (also without the parameter) no TLS, `prefer` TLS where
    /// the server has it, `require`, `verify-ca` and `verify-full` TLS. Where there is TLS, the server's certificate and name are always
    /// checked against the system's roots, or those of `SSL_CERT_FILE` in their place.
    pub url: String,
    /// The most connections at a time.
    pub max_open_conns: usize,
    /// The most connections that are kept while nobody uses them.
    pub max_idle_conns: usize,
    /// How long [`PgPool::get`] waits for a free connection.
    pub pool_wait_ms: u64,
    /// How long connecting may take.
    pub connect_timeout_ms: u64,
    /// How long one statement may run.
    pub statement_timeout_ms: u64,
    /// How long a statement waits for a lock.
    pub lock_timeout_ms: u64,
    /// How long a transaction may be open between two statements.
    pub idle_in_transaction_timeout_ms: u64,
    /// What the server shows this program as.
    pub application_name: String,
    /// Whether a connection has to lead to a server that takes writes, also where it is only read from: what a server says that follows another one is older than what was
    /// committed there. Of a URL with several hosts the one is taken that does.
    pub is_primary: bool,
}

impl PgOptions {
    /// The defaults, for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        PgOptions {
            url: url.into(),
            max_open_conns: 8,
            max_idle_conns: 4,
            pool_wait_ms: 5_000,
            connect_timeout_ms: 5_000,
            statement_timeout_ms: 30_000,
            lock_timeout_ms: 10_000,
            idle_in_transaction_timeout_ms: 30_000,
            application_name: "cairn".into(),
            is_primary: false,
        }
    }
}

impl std::fmt::Debug for PgOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("PgOptions")
            .field("application_name", &self.application_name)
            .field("max_open_conns", &self.max_open_conns)
            .finish_non_exhaustive()
    }
}

/// How isolated a transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Each statement sees what was committed before it.
    ReadCommitted,
    /// All statements see what was committed before the first one; reads only.
    Snapshot,
    /// All statements see what was committed before the first one.
    RepeatableRead,
}

impl Isolation {
    const fn begin(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
            Isolation::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            Isolation::RepeatableRead => "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
        }
    }
}

/// A bounded pool. Clones are handles on the same pool.
#[derive(Clone)]
pub struct PgPool {
    inner: Arc<Inner>,
}

struct Inner {
    options: PgOptions,
    config: Config,
    tls: MakeRustlsConnect,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
    /// Counts how often all connections so far were given up, those of pools beside it too.
    generation: Arc<AtomicU64>,
}

/// A connection and the statements that were prepared on it.
struct Session {
    client: Client,
    /// What runs its protocol; stopping it closes the connection, whatever is still to be answered.
    driver: AbortHandle,
    /// The pool's when it was made.
    generation: u64,
    statements: Mutex<HashMap<String, Statement>>,
}

impl std::fmt::Debug for PgPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgPool").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl PgPool {
    /// Reads the URL and prepares TLS. Connects at the first [`PgPool::get`].
    pub fn new(options: PgOptions) -> Result<PgPool> {
        PgPool::with(options, Arc::default())
    }

    /// Another pool to the same database: where one of the two has to give up its connections, the other one does too.
    pub fn beside(&self, options: PgOptions) -> Result<PgPool> {
        PgPool::with(options, self.inner.generation.clone())
    }

    fn with(options: PgOptions, generation: Arc<AtomicU64>) -> Result<PgPool> {
        let mut config = tls::parse_url(&options.url)?;
        config.application_name(&options.application_name);
        config.connect_timeout(Duration::from_millis(options.connect_timeout_ms));
        if options.is_primary && config.get_hosts().len() > 1 {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = tls::connector(config.get_ssl_mode())?;
        let permits = Arc::new(Semaphore::new(options.max_open_conns.max(1)));
        let idle = Mutex::default();
        Ok(PgPool { inner: Arc::new(Inner { options, config, tls, permits, idle, generation }) })
    }

    /// How it was made.
    pub fn options(&self) -> &PgOptions {
        &self.inner.options
    }

    /// Uses no connection of those that there are again, once it is given back, in this pool and in those [beside](PgPool::beside) it: the server that they lead to was replaced by another.
    pub fn give_up_connections(&self) {
        self.inner.give_up_connections();
    }

    /// The database's name, for messages.
    pub fn database(&self) -> &str {
        self.inner.config.get_dbname().unwrap_or("(default)")
    }

    /// A connection outside of any transaction. [`StoreError::Busy`] where none got free in time, or the server can't be reached.
    pub async fn get(&self) -> Result<PgConn> {
        let inner = &self.inner;
        let wait = Duration::from_millis(inner.options.pool_wait_ms);
        let permit = match tokio::time::timeout(wait, inner.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Err(StoreError::Busy("the pool is closed".into())),
            Err(_) => {
                return Err(StoreError::Busy(format!(
                    "none of {} connections of {} got free within {} ms",
                    inner.options.max_open_conns, inner.options.application_name, inner.options.pool_wait_ms
                )));
            }
        };
        let idle = loop {
            let session = inner.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match session {
                Some(session) if session.client.is_closed() => inner.lost(&session),
                Some(session) if !inner.is_of_now(&session) => {}
                session => break session,
            }
        };
        let session = match idle {
            Some(session) => session,
            None => inner.connect().await?,
        };
        Ok(PgConn {
            session: Some(session),
            pool: self.inner.clone(),
            permit: Some(permit),
            in_transaction: false,
            is_apart: false,
            failure: Mutex::default(),
        })
    }

    /// A connection with a transaction begun.
    pub async fn begin(&self, isolation: Isolation) -> Result<PgConn> {
        let mut conn = self.get().await?;
        match conn.begin(isolation).await {
            // An idle connection may have died unnoticed: a new one tells.
            Err(StoreError::Busy(_)) if conn.is_closed() => {
                drop(conn);
                let mut conn = self.get().await?;
                conn.begin(isolation).await?;
                Ok(conn)
            }
            Err(error) => Err(error),
            Ok(()) => Ok(conn),
        }
    }
}

impl Inner {
    async fn connect(&self) -> Result<Session> {
        let generation = self.generation.load(Ordering::Acquire);
        let timeout = Duration::from_millis(self.options.connect_timeout_ms.max(1));
        let connecting = async {
            if self.config.get_ssl_mode() == SslMode::Disable {
                let (client, connection) = self.config.connect(NoTls).await?;
                Ok((client, tokio::spawn(drive(connection)).abort_handle()))
            } else {
                let (client, connection) = self.config.connect(self.tls.clone()).await?;
                Ok((client, tokio::spawn(drive(connection)).abort_handle()))
            }
        };
        let (client, driver) = match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected.map_err(db)?,
            Err(_) => {
                return Err(StoreError::Busy(format!(
                    "PostgreSQL was not reached within {} ms",
                    self.options.connect_timeout_ms
                )));
            }
        };
        let options = &self.options;
        let settings = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
             SET client_min_messages = warning; SET timezone = 'UTC'; SET jit = off",
            options.statement_timeout_ms, options.lock_timeout_ms, options.idle_in_transaction_timeout_ms
        );
        if self.options.is_primary {
            self.demand_primary(&client, &settings).await?;
        } else {
            client.batch_execute(&settings).await.map_err(db)?;
        }
        Ok(Session { client, driver, generation, statements: Mutex::default() })
    }

    /// Makes the settings, and refuses a server that follows another one.
    async fn demand_primary(&self, client: &Client, settings: &str) -> Result<()> {
        let asked = format!("{settings}; SELECT pg_is_in_recovery()");
        let said = client.simple_query(&asked).await.map_err(db)?;
        let is_following = said.iter().any(
            |message| matches!(message, SimpleQueryMessage::Row(row) if row.try_get(0).ok().flatten() == Some("t")),
        );
        if is_following {
            return Err(StoreError::Busy(format!(
                "the server of database {} follows another one, and what it says may be old; waiting for one that takes writes",
                self.config.get_dbname().unwrap_or("(default)")
            )));
        }
        Ok(())
    }

    fn is_of_now(&self, session: &Session) -> bool {
        session.generation == self.generation.load(Ordering::Acquire)
    }

    /// A connection ended by itself, or answers no more. Another server may be in the place of the one that it led to, and those to the former one, which may be cut off from the others and not know it, say
    /// what was true once.
    fn lost(&self, session: &Session) {
        // Several that end together count once.
        if self.options.is_primary && self.is_of_now(session) {
            self.give_up_connections();
        }
    }

    /// Ends a transaction that nobody waits for any more. A statement of it may still run: one that takes long is cancelled, so that who hangs up leaves no work to the
    /// server, and whoever answers then is well. `None` for one that says nothing after that either.
    async fn roll_back(&self, client: &Client) -> Option<std::result::Result<(), tokio_postgres::Error>> {
        let wait = Duration::from_millis(self.options.connect_timeout_ms.max(1));
        let rollback = client.batch_execute("ROLLBACK");
        tokio::pin!(rollback);
        if let Ok(answer) = tokio::time::timeout(wait, &mut rollback).await {
            return Some(answer);
        }
        let cancelled = async {
            let token = client.cancel_token();
            let asked = match self.config.get_ssl_mode() {
                SslMode::Disable => token.cancel_query(NoTls).await,
                _ => token.cancel_query(self.tls.clone()).await,
            };
            if let Err(error) = asked {
                tracing::debug!(error = %text(&error), "a statement that nobody waits for can't be cancelled");
            }
            rollback.await
        };
        tokio::time::timeout(wait, cancelled).await.ok()
    }

    fn give_up_connections(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::AcqRel);
        idle.clear();
    }

    fn put_back(&self, session: Session) {
        if session.client.is_closed() {
            return self.lost(&session);
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_of_now(&session) && idle.len() < self.options.max_idle_conns {
            idle.push(session);
        }
    }
}

/// Runs a connection's protocol until it ends. What went wrong is also told to whoever waits for an answer.
async fn drive<S, T>(connection: tokio_postgres::Connection<S, T>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    if let Err(error) = connection.await {
        tracing::debug!(error = %text(&error), "a PostgreSQL connection ended");
    }
}

/// A connection out of a pool. Statements are prepared once per connection and remembered by their text, so texts must come from a
/// bounded set.
pub struct PgConn {
    /// `None` only while it is dropped.
    session: Option<Session>,
    pool: Arc<Inner>,
    permit: Option<OwnedSemaphorePermit>,
    in_transaction: bool,
    /// Whether the connection is closed afterwards, and given to nobody else.
    is_apart: bool,
    failure: Mutex<Option<Failure>>,
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
        self.session.as_ref().is_none_or(|session| session.client.is_closed())
    }

    fn failed(&self, error: tokio_postgres::Error) -> StoreError {
        let failure = classify(&error);
        if failure == Failure::ReadOnly {
            self.pool.give_up_connections();
        }
        self.set_failure(Some(failure));
        db(error)
    }

    fn set_failure(&self, failure: Option<Failure>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// What the last statement failed with since the transaction began.
    pub fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a transaction.
    pub async fn begin(&mut self, isolation: Isolation) -> Result<()> {
        self.set_failure(None);
        self.begin_by(isolation.begin()).await
    }

    async fn begin_by(&mut self, statements: &str) -> Result<()> {
        self.in_transaction = true;
        self.session()?.client.batch_execute(statements).await.map_err(|error| {
            // In this way a server that follows another one refuses the words READ WRITE.
            if error.code() != Some(&SqlState::FEATURE_NOT_SUPPORTED) {
                return self.failed(error);
            }
            self.pool.give_up_connections();
            self.set_failure(Some(Failure::ReadOnly));
            StoreError::Busy(text(&error))
        })
    }

    /// Begins a transaction and runs `settings`, statements of our own such as `SET LOCAL …`, in the same round trip.
    pub(crate) async fn begin_with(&mut self, isolation: Isolation, settings: &str) -> Result<()> {
        self.begin_by(&format!("{}; {settings}", isolation.begin())).await
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
        self.session()?.client.batch_execute(sql).await.map_err(|error| self.failed(error))
    }

    /// The prepared statement of this text.
    pub async fn prepare(&self, sql: &str) -> Result<Statement> {
        let session = self.session()?;
        let known = session.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = session.client.prepare(sql).await.map_err(|error| self.failed(error))?;
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
        Ok(self.session()?.client.execute(&statement, params).await)
    }

    /// All rows of a query.
    pub async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql).await?;
        self.session()?.client.query(&statement, params).await.map_err(|error| self.failed(error))
    }

    /// The row of a query that has at most one.
    pub async fn query_opt(&self, sql: &str, params: &[Param<'_>]) -> Result<Option<Row>> {
        let statement = self.prepare(sql).await?;
        self.session()?.client.query_opt(&statement, params).await.map_err(|error| self.failed(error))
    }

    /// The row of a query that has exactly one.
    pub async fn query_one(&self, sql: &str, params: &[Param<'_>]) -> Result<Row> {
        let statement = self.prepare(sql).await?;
        self.session()?.client.query_one(&statement, params).await.map_err(|error| self.failed(error))
    }

    /// The rows of a query one after the other, for results that don't fit in memory.
    pub async fn query_stream(&self, sql: &str, params: &[Param<'_>]) -> Result<RowStream> {
        let statement = self.prepare(sql).await?;
        self.session()?
            .client
            .query_raw(&statement, params.iter().copied())
            .await
            .map_err(|error| self.failed(error))
    }

    /// Runs a query whose statement isn't kept: for texts that come from an unbounded set. `types` are the parameters'.
    pub async fn query_once(&self, sql: &str, params: &[(Param<'_>, Type)]) -> Result<Vec<Row>> {
        self.session()?.client.query_typed(sql, params).await.map_err(|error| self.failed(error))
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
        let sink = self.session()?.client.copy_in(&statement).await.map_err(|error| self.failed(error))?;
        Ok(CopyIn { conn: self, sink: Box::pin(sink) })
    }

    /// The bytes of `COPY (query) TO STDOUT`, handed to `take` piece by piece.
    pub async fn copy_out(&self, sql: &str, mut take: impl FnMut(&[u8]) -> Result<()> + Send) -> Result<()> {
        let statement = self.prepare(sql).await?;
        let stream = self.session()?.client.copy_out(&statement).await.map_err(|error| self.failed(error))?;
        pin_mut!(stream);
        while let Some(piece) = stream.try_next().await.map_err(|error| self.failed(error))? {
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
        self.sink.feed(piece).await.map_err(|error| self.conn.failed(error))
    }

    /// Ends the statement; the number of rows taken.
    pub async fn finish(mut self) -> Result<u64> {
        self.sink.as_mut().finish().await.map_err(|error| self.conn.failed(error))
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
    fn a_password_is_not_shown() {
        let options = PgOptions::new("postgres://u:secret@h/d");
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn lock_keys_never_change() {
        assert_eq!(lock_key("cairn.migrate.raw"), lock_key("cairn.migrate.raw"));
        assert_eq!(lock_key(""), 0xcbf2_9ce4_8422_2325_u64 as i64);
    }
}
