//! What ingestion tells the error log: why blocks are not stored, and that they are.
//!
//! Ingestion waits for nobody (law 1): reports go through a bounded queue to whoever writes them. One for which there is no room is in the process's log alone.
//!
//! Entries are closed once their heights are stored, those of earlier processes too.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::{BlockId, BlockRef, Height};
use cairn_store::StoreError;
use cairn_store::derived::{ErrorFilter, ErrorLog, LoggedError, NewError, Severity};
use tokio::sync::mpsc;

/// The name under which ingestion reports.
pub const RAW_SERVICE: &str = "raw";
/// Reports that may wait to be written.
const QUEUE: usize = 64;
/// How often one is tried.
const TRIES: u32 = 5;
/// The pause between two tries.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Reported heights that are remembered until they are stored: the lowest ones. Others are closed by the next process.
const MAX_OPEN: usize = 64;
/// Entries that are read at once to be closed.
const PAGE: usize = 100;

/// Takes reports; clones are of the same queue. The default one takes none.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    queue: Option<Queue>,
}

#[derive(Debug, Clone)]
struct Queue {
    sender: mpsc::Sender<Report>,
    open: Arc<Open>,
}

/// Reported heights that are not stored yet.
#[derive(Debug, Default)]
struct Open {
    heights: Mutex<BTreeSet<Height>>,
    /// What earlier processes reported was looked for.
    is_looked_for: AtomicBool,
}

impl Open {
    fn heights(&self) -> MutexGuard<'_, BTreeSet<Height>> {
        self.heights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, height: Height) {
        let mut heights = self.heights();
        heights.insert(height);
        if heights.len() > MAX_OPEN {
            heights.pop_last();
        }
    }

    /// Closes the entries at heights up to `tip`, and remembers the heights of those above it.
    async fn close(&self, log: &dyn ErrorLog, tip: Height) -> Result<(), StoreError> {
        let mut filter =
            ErrorFilter { service: Some(RAW_SERVICE.into()), limit: PAGE, ..ErrorFilter::default() };
        loop {
            let page = log.list(&filter).await?;
            let Some(last) = page.last() else { return Ok(()) };
            filter.after_id = last.id;
            let (stored, missing): (Vec<&LoggedError>, Vec<_>) =
                page.iter().partition(|logged| logged.error.height <= tip);
            missing.into_iter().for_each(|logged| self.add(logged.error.height));
            if !stored.is_empty() {
                log.resolve(&stored.into_iter().map(|logged| logged.id).collect::<Vec<_>>()).await?;
            }
        }
    }
}

/// Writes them.
#[derive(Debug)]
pub struct ReportWriter {
    receiver: mpsc::Receiver<Report>,
    open: Arc<Open>,
}

#[derive(Debug)]
enum Report {
    /// Something is not stored.
    Missing(NewError),
    /// All heights up to this one are.
    Stored(Height),
}

impl Reports {
    /// A queue: its two ends.
    pub fn new() -> (Reports, ReportWriter) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let open = Arc::new(Open::default());
        (Reports { queue: Some(Queue { sender, open: open.clone() }) }, ReportWriter { receiver, open })
    }

    /// Something at this height is not stored, and why. The block isn't known: it isn't there.
    pub fn fatal(&self, height: Height, message: String) {
        let Some(queue) = &self.queue else { return };
        let error = NewError {
            service: RAW_SERVICE.into(),
            height,
            block_id: BlockId::default(),
            transaction_id: String::new(),
            severity: Severity::Fatal,
            message,
            raw_data: Vec::new(),
            raw_ref: None,
        };
        match queue.sender.try_send(Report::Missing(error)) {
            Ok(()) => queue.open.add(height),
            Err(error) => tracing::warn!(%height, %error, "there is no room in the error log's queue"),
        }
    }

    /// Everything up to the tip is stored, and ingestion goes on.
    pub fn stored(&self, tip: Option<BlockRef>) {
        let (Some(queue), Some(tip)) = (&self.queue, tip) else { return };
        let mut heights = queue.open.heights();
        let is_closing = heights.first().is_some_and(|lowest| *lowest <= tip.height)
            || !queue.open.is_looked_for.load(Ordering::Relaxed);
        if is_closing && queue.sender.try_send(Report::Stored(tip.height)).is_ok() {
            *heights = heights.split_off(&tip.height.next());
            queue.open.is_looked_for.store(true, Ordering::Relaxed);
        }
    }
}

impl ReportWriter {
    /// Writes reports until nobody can make one any more.
    pub async fn write(mut self, log: Arc<dyn ErrorLog>) {
        while let Some(report) = self.receiver.recv().await {
            for tries in 1..=TRIES {
                let written = match &report {
                    Report::Missing(error) => log.record(std::slice::from_ref(error)).await.map(|_| ()),
                    Report::Stored(tip) => self.open.close(&*log, *tip).await,
                };
                match written {
                    Ok(()) => break,
                    Err(error) if tries == TRIES || !error.kind().is_retryable() => {
                        tracing::warn!(?report, %error, "the error log could not be written");
                        break;
                    }
                    Err(_) => tokio::time::sleep(TRY_EVERY).await,
                }
            }
        }
    }
}
