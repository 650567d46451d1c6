//! Which processes derive: each holds an advisory lock, shared, on a session of its own, for as long as it works.
//!
//! A process that starts tries to get the lock for itself alone. Where it does, nobody else derives, and whatever lease is ACTIVE was left by a process that is gone. The lock goes with the session, at
//! once where a process is killed, so one that restarts need not wait for its own leases to expire.
//!
//! It decides nothing but when leases are freed (law 5). Where a session breaks off while its process works, or a program of an earlier version works beside, a process that starts frees leases that are
//! worked on: their holders' next commits are refused, and they claim again.

use std::sync::Arc;
use std::time::Duration;

use cairn_store::Result;
use cairn_store::derived::{Coordinator, Entered};
use tokio::task::JoinHandle;

use super::PgDerived;
use crate::postgres::error::db;
use crate::postgres::{PgConn, PgOptions, PgPool};

/// Held by every process that derives.
const LOCK: &str = "cairn.app.workers";
/// How often it is looked whether the session is still there.
const LOOK_MS: u64 = 1_000;
/// After a restart of the server all processes come back within this time: a process that starts looks once more before it frees leases.
const COMING_BACK_MS: u64 = 3_000;

/// Ends with what it is of.
struct Presence(JoinHandle<()>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn enter(store: &PgDerived) -> Result<Entered> {
    let write = &store.shared.write;
    let options = PgOptions {
        max_open_conns: 1,
        max_idle_conns: 0,
        application_name: "cairn app presence".into(),
        ..write.options().clone()
    };
    let pool = write.beside(options)?;
    let mut conn = pool.get().await?;
    conn.keep_apart();
    let mut is_alone = conn.try_lock_of_session(LOCK).await?;
    if is_alone && has_active_leases(&conn).await? {
        conn.unlock_of_session(LOCK).await?;
        tokio::time::sleep(Duration::from_millis(COMING_BACK_MS)).await;
        is_alone = conn.try_lock_of_session(LOCK).await?;
    }
    let released = if is_alone { store.release_all().await? } else { 0 };
    // Waits, where another process starts at this moment, until that one has freed what it found.
    conn.share_lock_of_session(LOCK).await?;
    if is_alone {
        conn.unlock_of_session(LOCK).await?;
    }
    let presence = Presence(tokio::spawn(stay(pool, conn)));
    Ok(Entered { released, presence: Arc::new(presence) })
}

async fn has_active_leases(conn: &PgConn) -> Result<bool> {
    let sql = "SELECT EXISTS (SELECT FROM app.worker_leases WHERE status = 'ACTIVE')";
    conn.query_one(sql, &[]).await?.try_get(0).map_err(db)
}

/// Holds the lock, on another session where one is gone.
async fn stay(pool: PgPool, conn: PgConn) {
    let mut held = Some(conn);
    loop {
        tokio::time::sleep(Duration::from_millis(LOOK_MS)).await;
        if held.as_ref().is_some_and(|conn| !conn.is_closed()) {
            continue;
        }
        // Its place in the pool is free only then.
        held = None;
        match again(&pool).await {
            Ok(conn) => held = Some(conn),
            Err(error) => {
                tracing::debug!(%error, "other processes can't be told now that this one derives; it is tried again");
            }
        }
    }
}

async fn again(pool: &PgPool) -> Result<PgConn> {
    let mut conn = pool.get().await?;
    conn.keep_apart();
    conn.share_lock_of_session(LOCK).await?;
    Ok(conn)
}
