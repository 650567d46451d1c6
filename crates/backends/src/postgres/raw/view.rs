//! A read transaction that ends when it has grown old.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_store::{Result, StoreError};
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::postgres::{Isolation, PgConn, PgPool};

/// One REPEATABLE READ, read-only transaction on a pooled connection. It ends when it is dropped, or at its deadline: the connection then goes
/// back whether anybody still holds the view or not (law 9).
pub(super) struct View {
    /// `None` once it has ended.
    conn: RwLock<Option<PgConn>>,
    deadline: Option<Instant>,
    timer: Mutex<Option<AbortHandle>>,
}

impl View {
    /// Begins one that lives at most `max_ms`.
    pub(super) async fn begin(pool: &PgPool, max_ms: Option<u64>) -> Result<Arc<View>> {
        let deadline = max_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        let conn = pool.begin(Isolation::Snapshot).await?;
        if max_ms.is_none() {
            // Tools that run alone take as long as they take.
            conn.batch("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
                .await?;
        }
        let view = Arc::new(View { conn: RwLock::new(Some(conn)), deadline, timer: Mutex::default() });
        if let Some(deadline) = deadline {
            let weak = Arc::downgrade(&view);
            let timer = tokio::spawn(async move {
                tokio::time::sleep_until(deadline).await;
                if let Some(view) = weak.upgrade() {
                    // Waits for the statement that runs, which has its own timeout.
                    drop(view.conn.write().await.take());
                }
            });
            *view.timer.lock().unwrap_or_else(PoisonError::into_inner) = Some(timer.abort_handle());
        }
        Ok(view)
    }

    /// The connection; [`StoreError::Busy`] where the view has ended.
    pub(super) async fn conn(&self) -> Result<RwLockReadGuard<'_, PgConn>> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(ended());
        }
        RwLockReadGuard::try_map(self.conn.read().await, Option::as_ref).map_err(|_| ended())
    }

    /// Whether its time is over: a long walk stops in its middle.
    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

fn ended() -> StoreError {
    StoreError::Busy("the snapshot is too old and was ended; ask again, or for less at once".into())
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.get_mut().unwrap_or_else(PoisonError::into_inner) {
            timer.abort();
        }
    }
}
