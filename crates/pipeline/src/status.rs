//! What the ingester says of itself while it runs.

use std::fmt;
use std::sync::Arc;

use cairn_core::{BlockRef, Clock, Height};
use cairn_store::HeadRow;
use tokio::sync::watch;

use crate::IngestError;

/// Why something stopped for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// The service, where it is about one.
    pub service: Option<&'static str>,
    /// The height that it stands at, where it is known.
    pub height: Option<Height>,
    /// Why, in a word for programs.
    pub code: &'static str,
    /// Why, and what to do, for people.
    pub message: String,
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The code of an obstacle that is a block which checks refuse.
pub const BLOCK_REFUSED: &str = "block-refused";
/// The code of an obstacle that is a node which refuses what it is asked.
pub const SOURCE_REFUSED: &str = "source-refused";

/// The code of an obstacle that is a database which refuses what is written.
pub const STORE_REFUSED: &str = "store-refused";
/// The code of an obstacle that is a node which fails or can't be reached.
pub const SOURCE: &str = "source";
/// The code of an obstacle that is a fork which too few nodes confirm.
pub const HEAD_QUORUM: &str = "head-quorum";

/// A block is refused so often in a row before it counts as refused: other nodes had their turn by then.
pub const LASTING_TRIES: u32 = 5;

/// What the ingester can't get past. It tries again with growing pauses, and goes on by itself once it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Why, in a word for programs: see [`IngestError::code`].
    pub code: &'static str,
    /// The height of the block that can't be stored, where it is known.
    pub height: Option<Height>,
    /// The check that refused the block, by its configured name.
    pub check: Option<String>,
    /// Who said what, for people.
    pub message: String,
    /// What an operator can do beside waiting.
    pub remedy: Option<String>,
    /// When the first try failed, by the clock. Tries with other errors count too, as long as nothing was stored in between.
    pub since_ms: u64,
    /// How many tries in a row have failed.
    pub tries: u32,
}

impl Obstacle {
    /// Whether it is named at once: a node that refuses; a block that checks refuse, or a fork that is not confirmed, again and again. Any other obstacle may pass before
    /// anybody misses a block, and shows as a tip that stands still.
    pub fn is_lasting(&self) -> bool {
        match self.code {
            SOURCE_REFUSED => true,
            BLOCK_REFUSED | HEAD_QUORUM => self.tries >= LASTING_TRIES,
            _ => false,
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (failed tries in a row: {})", self.message, self.tries)?;
        match &self.remedy {
            Some(remedy) if !self.message.contains(remedy) => write!(f, ". {remedy}"),
            _ => Ok(()),
        }
    }
}

/// What the ingester is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IngestState {
    /// Opening the store, asking the source who it is.
    Starting,
    /// Far below the source's head.
    Backfilling,
    /// At the source's head, waiting for the next block.
    Following,
    /// Something failed that may pass; the text says what.
    Waiting(String),
    /// Stopped for good; the text says why and what to do.
    Halted(String),
    /// Stopped because it was asked to, or because its work is done.
    Stopped,
}

/// A snapshot of the ingester's progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestStatus {
    /// What it is doing.
    pub state: IngestState,
    /// The first stored height.
    pub first: Option<Height>,
    /// The checkpoint.
    pub tip: Option<BlockRef>,
    /// The finalised block.
    pub finalized: Option<BlockRef>,
    /// The source's newest height as last seen.
    pub source_head: Option<Height>,
    /// When the source's head was last seen to change, by the clock.
    pub source_head_changed_at_ms: u64,
    /// When the tip last moved, by the clock.
    pub progress_at_ms: u64,
    /// When the source last answered, by the clock.
    pub source_answered_at_ms: u64,
    /// Blocks committed since the start of this process.
    pub blocks: u64,
    /// Transactions committed since the start of this process.
    pub transactions: u64,
    /// Uncompressed bytes committed since the start of this process.
    pub bytes: u64,
    /// Reorgs handled since the start of this process.
    pub reorgs: u64,
    /// Why it stopped for good, where its state says that it did.
    pub halt: Option<Halt>,
    /// What it can't get past, from the first try that failed until it goes on.
    pub obstacle: Option<Obstacle>,
    /// The height that it works towards.
    pub target: Option<Height>,
    /// What bounds the speed now, in the source's words.
    pub bound_by: String,
}

impl IngestStatus {
    /// How many heights the tip is behind what is worked towards: the source's head, or the last height that is to be stored.
    pub fn lag_heights(&self) -> Option<u64> {
        match (self.target, self.tip) {
            (Some(target), Some(tip)) => Some(target.since(tip.height)),
            (Some(target), None) => Some(target.get() + 1),
            _ => None,
        }
    }
}

/// The ingester's end of the status; readers subscribe.
#[derive(Debug, Clone)]
pub struct StatusBoard {
    sender: Arc<watch::Sender<IngestStatus>>,
    clock: Arc<dyn Clock>,
}

impl StatusBoard {
    /// A board that says "starting".
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let now_ms = clock.now_ms();
        let status = IngestStatus {
            state: IngestState::Starting,
            first: None,
            tip: None,
            finalized: None,
            source_head: None,
            source_head_changed_at_ms: now_ms,
            progress_at_ms: now_ms,
            source_answered_at_ms: now_ms,
            blocks: 0,
            transactions: 0,
            bytes: 0,
            reorgs: 0,
            halt: None,
            obstacle: None,
            target: None,
            bound_by: String::new(),
        };
        StatusBoard { sender: Arc::new(watch::Sender::new(status)), clock }
    }

    /// Follows the status.
    pub fn subscribe(&self) -> watch::Receiver<IngestStatus> {
        self.sender.subscribe()
    }

    /// The status now.
    pub fn get(&self) -> IngestStatus {
        self.sender.borrow().clone()
    }

    /// Sets the state.
    pub fn state(&self, state: IngestState) {
        self.sender.send_if_modified(|status| {
            let changed = status.state != state;
            status.state = state;
            changed
        });
    }

    /// A try failed with an error that may pass. What is known of it from now on.
    pub fn met(&self, error: &IngestError) -> Obstacle {
        let now_ms = self.clock.now_ms();
        let before = self.sender.borrow().obstacle.clone();
        let mut obstacle = Obstacle {
            code: error.code(),
            height: error.height(),
            check: error.check().map(str::to_owned),
            message: error.to_string(),
            remedy: error.remedy(),
            since_ms: before.as_ref().map_or(now_ms, |before| before.since_ms),
            tries: before.as_ref().map_or(1, |before| before.tries.saturating_add(1)),
        };
        // A node that refused and is left alone for a while, or is out of reach now, still refuses as far as anybody knows.
        let is_named =
            |before: &&Obstacle| matches!(before.code, BLOCK_REFUSED | SOURCE_REFUSED | HEAD_QUORUM);
        if obstacle.code == SOURCE
            && let Some(before) = before.as_ref().filter(is_named)
        {
            obstacle.code = before.code;
            obstacle.height = obstacle.height.or(before.height);
            obstacle.check = before.check.clone();
            obstacle.remedy = before.remedy.clone();
        }
        if let Some(before) = before.filter(|before| before.code != obstacle.code) {
            metrics::gauge!("cairn_ingest_obstacle", "code" => before.code).set(0.0);
        }
        metrics::gauge!("cairn_ingest_obstacle", "code" => obstacle.code).set(1.0);
        self.sender.send_modify(|status| {
            status.state = IngestState::Waiting(obstacle.message.clone());
            status.obstacle = Some(obstacle.clone());
        });
        obstacle
    }

    /// It goes on: what it could not get past, where there was anything.
    pub fn passed(&self) -> Option<Obstacle> {
        self.sender.borrow().obstacle.as_ref()?;
        let mut passed = None;
        self.sender.send_modify(|status| passed = status.obstacle.take());
        if let Some(passed) = &passed {
            metrics::gauge!("cairn_ingest_obstacle", "code" => passed.code).set(0.0);
        }
        passed
    }

    /// The stored tip.
    pub fn tip(&self) -> Option<BlockRef> {
        self.sender.borrow().tip
    }

    /// It stopped for good. Where the error names no height it stands at the one after the tip.
    pub fn halted(&self, error: &IngestError) {
        let message = error.to_string();
        self.passed();
        self.sender.send_modify(|status| {
            let next = status.tip.map(|tip| tip.height.next());
            status.halt = Some(Halt {
                service: None,
                height: error.height().or(next),
                code: error.code(),
                message: message.clone(),
            });
            status.state = IngestState::Halted(message);
        });
    }

    /// Takes over the head row's marks.
    pub fn head(&self, head: &HeadRow) {
        let now_ms = self.clock.now_ms();
        self.sender.send_modify(|status| {
            if status.tip != head.tip {
                status.progress_at_ms = now_ms;
            }
            status.first = head.first;
            status.tip = head.tip;
            status.finalized = head.finalized;
        });
        if let Some(tip) = head.tip {
            metrics::gauge!("cairn_ingest_tip_height").set(tip.height.get() as f64);
        }
        if let Some(finalized) = head.finalized {
            metrics::gauge!("cairn_ingest_finalized_height").set(finalized.height.get() as f64);
        }
    }

    /// The source answered with its head.
    pub fn source_head(&self, height: Height, target: Height) {
        let now_ms = self.clock.now_ms();
        self.sender.send_modify(|status| {
            if status.source_head != Some(height) {
                status.source_head_changed_at_ms = now_ms;
            }
            status.source_head = Some(height);
            status.source_answered_at_ms = now_ms;
            status.target = Some(target);
        });
        metrics::gauge!("cairn_source_head_height").set(height.get() as f64);
    }

    /// Blocks were committed.
    pub fn committed(&self, blocks: u64, transactions: u64, bytes: u64, bound_by: String) {
        self.sender.send_modify(|status| {
            status.blocks += blocks;
            status.transactions += transactions;
            status.bytes += bytes;
            status.bound_by = bound_by;
        });
        metrics::counter!("cairn_ingest_blocks_total").increment(blocks);
        metrics::counter!("cairn_ingest_transactions_total").increment(transactions);
        metrics::counter!("cairn_ingest_bytes_total").increment(bytes);
    }

    /// A reorg was handled.
    pub fn reorged(&self, depth: u64) {
        self.sender.send_modify(|status| status.reorgs += 1);
        metrics::counter!("cairn_ingest_reorgs_total").increment(1);
        metrics::histogram!("cairn_ingest_reorg_depth_blocks").record(depth as f64);
    }
}
