//! A bounded pool of connections, each configured on connect, with its prepared statements.
//!
//! **Back-pressure.** [`PgPool::get`] waits at most `pool_wait_ms` for one of `max_open_conns` and is then [`StoreError::Busy`]. No
//! connection is held across anything but the database's own answers: callers do their other I/O before they ask for one.
//!
//! **Shutdown and cancellation.** A [`PgConn`] that is dropped inside a transaction is rolled back in the background and goes back to the
//! pool afterwards; one that can't be rolled back, or not in time, is closed, which rolls it back on the server. Dropping the last handle of
//! a pool closes its idle connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_store::{Result, StoreError};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row, SimpleQueryMessage, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use super::conn::{CopyIn, PgConn, lock_key};
use super::error::{db, text};
use super::tls;

/// How long a peer may leave what was sent without an acknowledgement, and how long nothing may be sent before it is asked whether it is there.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is asked then.
const PEER_PROBE_EVERY: Duration = Duration::from_secs(10);
/// How often in vain before it counts as gone.
const PEER_PROBES: u32 = 3;

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
    /// How long further ones are kept: what needs them comes with each block.
    pub surplus_kept_ms: u64,
    /// How long [`PgPool::get`] waits for a free connection.
    pub pool_wait_ms: u64,
    /// How long connecting may take.
    pub connect_timeout_ms: u64,
    /// How long one statement may run.
    pub statement_timeout_ms: u64,
    /// How long a statement waits for a lock.
    pub lock_timeout_ms: u64,
    /// How much longer than a statement may run its answer is waited for. A connection that says nothing by then is closed: what lies between may forward nothing any more, and the server, which would have ended the
    /// statement, may never have heard of it.
    pub answer_grace_ms: u64,
    /// How long a transaction may be open between two statements.
    pub idle_in_transaction_timeout_ms: u64,
    /// What the server shows this program as.
    pub application_name: String,
    /// Whether a connection has to lead to a server that takes writes, also where it is only read from: what a server says that follows another one is older than what was
    /// committed there. Of a URL with several hosts the one is taken that does.
    pub is_primary: bool,
    /// Settings of each session beside those above: `SET` statements, separated by semicolons.
    pub settings: String,
}

impl PgOptions {
    /// The defaults, for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        PgOptions {
            url: url.into(),
            max_open_conns: 8,
            max_idle_conns: 4,
            surplus_kept_ms: 60_000,
            pool_wait_ms: 5_000,
            connect_timeout_ms: 5_000,
            statement_timeout_ms: 30_000,
            lock_timeout_ms: 10_000,
            answer_grace_ms: 5_000,
            idle_in_transaction_timeout_ms: 30_000,
            application_name: "cairn".into(),
            is_primary: false,
            settings: String::new(),
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
    pub(super) const fn begin(self) -> &'static str {
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

pub(super) struct Inner {
    pub(super) options: PgOptions,
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    pub(super) permits: Arc<Semaphore>,
    pub(super) idle: Mutex<Vec<Session>>,
    /// Counts how often all connections so far were given up, those of pools beside it too.
    pub(super) generation: Arc<AtomicU64>,
}

/// A connection and the statements that were prepared on it.
pub(super) struct Session {
    pub(super) client: Client,
    /// What runs its protocol; stopping it closes the connection, whatever is still to be answered.
    pub(super) driver: AbortHandle,
    /// The pool's when it was made.
    pub(super) generation: u64,
    pub(super) statements: Mutex<HashMap<String, Statement>>,
    /// When it was used last.
    pub(super) used_at: Instant,
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
        // A peer that vanished is noticed within a minute, unless the URL says otherwise. Where this limit is set, Linux ignores the number of
        // probes. So the limit leaves time for all probes, and for a server that is slow to read a statement.
        if !options.url.contains("tcp_user_timeout") {
            let answer_ms = options.statement_timeout_ms.saturating_add(options.answer_grace_ms);
            let probes = PEER_TIMEOUT + PEER_PROBE_EVERY * PEER_PROBES;
            config.tcp_user_timeout(probes.max(Duration::from_millis(answer_ms)));
        }
        if !options.url.contains("keepalives") {
            config
                .keepalives_idle(PEER_TIMEOUT)
                .keepalives_interval(PEER_PROBE_EVERY)
                .keepalives_retries(PEER_PROBES);
        }
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
            is_patient: AtomicBool::new(false),
            is_quick: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        })
    }

    /// Asks what the server answers at once. Where an idle connection had died unnoticed, it asks once more on another.
    pub(crate) async fn ask_quickly(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let mut has_tried = false;
        loop {
            let conn = self.get().await?;
            conn.is_quick.store(true, Ordering::Relaxed);
            match conn.query(sql, params).await {
                Err(StoreError::Busy(_)) if conn.is_closed() && !has_tried => has_tried = true,
                answer => return answer,
            }
        }
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
        let options = &self.options;
        let settings = format!(
            "SET statement_timeout = {}; SET lock_timeout = {}; SET idle_in_transaction_session_timeout = {}; \
             SET client_min_messages = warning; SET timezone = 'UTC'; SET jit = off; {}",
            options.statement_timeout_ms,
            options.lock_timeout_ms,
            options.idle_in_transaction_timeout_ms,
            options.settings
        );
        let connecting = async {
            let (client, driver) = self.reach().await.map_err(db)?;
            // Where nobody waits any more, nothing of it stays.
            let mut driver = EndsUnlessKept { task: driver, is_kept: false };
            if self.options.is_primary {
                self.demand_primary(&client, &settings).await?;
            } else {
                client.batch_execute(&settings).await.map_err(db)?;
            }
            driver.is_kept = true;
            Ok::<_, StoreError>((client, driver.task.clone()))
        };
        let (client, driver) = match tokio::time::timeout(timeout, connecting).await {
            Ok(connected) => connected?,
            Err(_) => {
                return Err(StoreError::Busy(format!(
                    "PostgreSQL was not reached within {} ms",
                    self.options.connect_timeout_ms
                )));
            }
        };
        Ok(Session { client, driver, generation, statements: Mutex::default(), used_at: Instant::now() })
    }

    async fn reach(&self) -> std::result::Result<(Client, AbortHandle), tokio_postgres::Error> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            let (client, connection) = self.config.connect(NoTls).await?;
            Ok((client, tokio::spawn(drive(connection)).abort_handle()))
        } else {
            let (client, connection) = self.config.connect(self.tls.clone()).await?;
            Ok((client, tokio::spawn(drive(connection)).abort_handle()))
        }
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
    pub(super) fn lost(&self, session: &Session) {
        // Several that end together count once.
        if self.options.is_primary && self.is_of_now(session) {
            self.give_up_connections();
        }
    }

    /// Ends a transaction that nobody waits for any more. A statement of it may still run: one that takes long is cancelled, so that who hangs up leaves no work to the
    /// server, and whoever answers then is well. `None` for one that says nothing after that either.
    pub(super) async fn roll_back(
        &self,
        client: &Client,
    ) -> Option<std::result::Result<(), tokio_postgres::Error>> {
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

    pub(super) fn give_up_connections(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.generation.fetch_add(1, Ordering::AcqRel);
        idle.clear();
    }

    pub(super) fn put_back(&self, session: Session) {
        if session.client.is_closed() {
            return self.lost(&session);
        }
        if !self.is_of_now(&session) || self.options.max_idle_conns == 0 {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(Session { used_at: Instant::now(), ..session });
        // The last one that was given back is used first, so the oldest come first.
        let surplus = idle.len().saturating_sub(self.options.max_idle_conns);
        let kept = Duration::from_millis(self.options.surplus_kept_ms);
        let old = idle[..surplus].iter().take_while(|session| session.used_at.elapsed() >= kept).count();
        idle.drain(..old);
    }
}

/// Ends the task of a connection that nobody uses, unless it is kept.
struct EndsUnlessKept {
    task: AbortHandle,
    is_kept: bool,
}

impl Drop for EndsUnlessKept {
    fn drop(&mut self) {
        if !self.is_kept {
            self.task.abort();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let options = PgOptions::new("postgres://u:secret@h/d");
        assert!(!format!("{options:?}").contains("secret"));
    }
}
