//! What ingestion tells the error log: why blocks are not stored.
//!
//! Ingestion waits for nobody (law 1): reports go through a bounded queue to whoever writes them. One for which there is no room is in the process's log alone.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockId, Height};
use cairn_store::derived::{ErrorLog, NewError, Severity};
use tokio::sync::mpsc;

/// The name under which ingestion reports.
pub const RAW_SERVICE: &str = "raw";
/// Reports that may wait to be written.
const QUEUE: usize = 64;
/// How often one is tried.
const TRIES: u32 = 5;
/// The pause between two tries.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// Takes reports; clones are of the same queue. The default one takes none.
#[derive(Debug, Clone, Default)]
pub struct Reports {
    sender: Option<mpsc::Sender<NewError>>,
}

/// Writes them.
#[derive(Debug)]
pub struct ReportWriter {
    receiver: mpsc::Receiver<NewError>,
}

impl Reports {
    /// A queue: its two ends.
    pub fn new() -> (Reports, ReportWriter) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Reports { sender: Some(sender) }, ReportWriter { receiver })
    }

    /// Something at this height is not stored, and why. The block isn't known: it isn't there.
    pub fn fatal(&self, height: Height, message: String) {
        let Some(sender) = &self.sender else { return };
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
        if let Err(error) = sender.try_send(error) {
            tracing::warn!(%height, %error, "there is no room in the error log's queue");
        }
    }
}

impl ReportWriter {
    /// Writes reports until nobody can make one any more.
    pub async fn write(mut self, log: Arc<dyn ErrorLog>) {
        while let Some(report) = self.receiver.recv().await {
            for tries in 1..=TRIES {
                match log.record(std::slice::from_ref(&report)).await {
                    Ok(_) => break,
                    Err(error) if tries == TRIES || !error.kind().is_retryable() => {
                        tracing::warn!(height = %report.height, message = report.message, %error, "the error log could not be written");
                        break;
                    }
                    Err(_) => tokio::time::sleep(TRY_EVERY).await,
                }
            }
        }
    }
}
