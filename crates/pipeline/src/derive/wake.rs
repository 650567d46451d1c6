//! What wakes a worker: a new raw head, or an upstream's checkpoint that moved in this process. A wake-up that is lost costs one poll.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_store::HeadRow;
use tokio::sync::{Notify, watch};

use super::context::Context;
use super::error::DeriveError;
use super::worker::ends_all;

/// How many polls pass between two looks at the head where changes of it are hinted.
const HINTED_POLLS: u32 = 5;

/// The newest raw head, and a counter that grows whenever something may be there to do.
#[derive(Debug, Clone)]
pub(super) struct Wake {
    head: Arc<watch::Sender<Option<HeadRow>>>,
    ticks: Arc<Ticks>,
}

/// Wakes in the order in which listeners began to wait; a watch channel wakes in a random one, and a seed's run would not be the same twice.
#[derive(Debug, Default)]
struct Ticks {
    count: AtomicU64,
    changed: Notify,
}

impl Default for Wake {
    fn default() -> Self {
        Wake { head: Arc::new(watch::Sender::new(None)), ticks: Arc::default() }
    }
}

impl Wake {
    /// The raw head as last seen.
    pub fn head(&self) -> Option<HeadRow> {
        self.head.borrow().clone()
    }

    /// Something changed.
    pub fn tick(&self) {
        self.ticks.count.fetch_add(1, Ordering::SeqCst);
        self.ticks.changed.notify_waiters();
    }

    /// Begin to listen: changes from now on are seen by [`Listener::wait`].
    pub fn listen(&self) -> Listener {
        Listener { seen: self.ticks.count.load(Ordering::SeqCst), ticks: self.ticks.clone() }
    }

    /// Follows the raw store's head until told to stop. `hint` wakes it before the poll.
    pub async fn follow(
        &self,
        context: &Context,
        poll: Duration,
        mut hint: Option<watch::Receiver<u64>>,
    ) -> Result<(), DeriveError> {
        let stop = &context.stop;
        while !stop.is_cancelled() {
            match context.raw.head().await.map_err(DeriveError::from) {
                Ok(head) => {
                    context.beside("follow", Ok::<_, DeriveError>(()));
                    let head = Some(head);
                    let changed = self.head.send_if_modified(|known| {
                        let changed = *known != head;
                        if changed {
                            *known = head;
                        }
                        changed
                    });
                    if changed {
                        self.tick();
                    }
                }
                Err(error) if ends_all(&error) => return Err(error),
                // Not initialised yet, or away for now; derived work waits for it.
                Err(error) => {
                    context.beside("follow", Err::<(), _>(error));
                }
            }
            // Whoever hints says each change of the head; the poll is for a hint that was lost.
            let pause = if hint.is_some() { poll * HINTED_POLLS } else { poll };
            let hinted = async {
                let heard = match &mut hint {
                    Some(hint) => hint.changed().await.is_ok(),
                    None => false,
                };
                // Nobody hints any more: only the poll is left.
                if !heard {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
                () = hinted => {}
            }
        }
        Ok(())
    }
}

/// Waits for changes.
#[derive(Debug)]
pub(super) struct Listener {
    ticks: Arc<Ticks>,
    seen: u64,
}

impl Listener {
    /// Until something changed since the last call, or `at_most` has passed.
    pub async fn wait(&mut self, at_most: Duration) {
        let mut changed = pin!(self.ticks.changed.notified());
        // From here on no tick is missed.
        changed.as_mut().enable();
        if self.ticks.count.load(Ordering::SeqCst) == self.seen {
            // Either end is as good; what was seen is read afterwards.
            let _ = tokio::time::timeout(at_most, changed).await;
        }
        self.seen = self.ticks.count.load(Ordering::SeqCst);
    }
}
