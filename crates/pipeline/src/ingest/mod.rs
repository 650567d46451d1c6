//! The ingester: takes every block of a chain once and in order into a raw store, and follows the chain's forks.
//!
//! It works in turns. Each turn reads the head row, finishes a purge that is pending, asks the source for its head, and then does one
//! thing: appends what is missing, decides about a fork ([`fork`]), moves the finalised mark, or waits. Nothing is remembered
//! between turns that matters for correctness: a process killed anywhere goes on from the head row.
//!
//! Atomicity: blocks, lookups and the head commit together in the store's verbs. Back-pressure: [`fetch`] keeps within a byte
//! budget. Shutdown: the commit in progress is finished, fetches are dropped ([`stop`]). Raw first (law 1): nothing here waits for a
//! reader or a worker.

mod fetch;
mod fill;
mod finality;
mod fork;
mod options;
mod reports;
mod stop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockRef, Clock, ErrorKind, Fence, Height, HeightRange, LinkedRef, RawBlock};
use cairn_source::{ChainSource, Heads, SourceError};
use cairn_store::{
    AppendBatch, HeadRow, Maintained, PurgeProgress, RawFiller, RawMaintenance, RawReader, RawWriter,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::fetch::{Piece, PieceEnd, fetch_in_order};
use self::fill::FillTurn;
use self::fork::Suspicion;
pub use self::options::{FillOptions, IngestOptions};
pub use self::reports::{RAW_SERVICE, ReportWriter, Reports};
use self::stop::UntilStopped;
use crate::IngestError;
use crate::backoff::Backoff;
use crate::budget::ByteBudget;
use crate::status::{IngestState, StatusBoard};

/// How many blocks one step of a purge moves.
const PURGE_STEP_BLOCKS: u64 = 128;
/// How many orphaned blocks one turn at the head prunes.
const PRUNE_STEP_BLOCKS: u64 = 64;
/// How much one step of maintenance handles, in bytes.
const MAINTAIN_STEP_BYTES: u64 = 8 << 20;
/// How long maintenance rests when there is nothing to do.
const MAINTAIN_REST: Duration = Duration::from_millis(500);
/// A block that checks refuse so often in a row is reported: other nodes had their turn by then.
const REPORTED_AFTER: u32 = 5;
/// How many of them are counted at a time.
const MAX_REFUSED: usize = 64;
/// Backfilling is what we call being at least this far behind.
const BACKFILL_HEIGHTS: u64 = 16;

/// All that the ingester needs of a store.
pub trait IngestStore: RawReader + RawWriter + RawFiller + RawMaintenance {}
impl<T: RawReader + RawWriter + RawFiller + RawMaintenance> IngestStore for T {}

/// Why an ingester ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finished {
    /// It was asked to stop.
    Stopped,
    /// The configured last height is stored.
    ReachedStop,
    /// The source's head is stored, and `exit_after_head` is set.
    ReachedHead,
}

/// One chain's ingester.
#[derive(Clone)]
pub struct Ingester {
    source: Arc<dyn ChainSource>,
    store: Arc<dyn IngestStore>,
    clock: Arc<dyn Clock>,
    status: StatusBoard,
    options: IngestOptions,
    budget: ByteBudget,
    reports: Reports,
}

/// What one process knows while it holds the head.
struct Session {
    fence: Fence,
    suspicion: Option<Suspicion>,
    seam_attempts: u32,
}

/// What a turn did.
enum Turn {
    /// Something moved: go on at once.
    Moved,
    /// Nothing to do until the source has more.
    AtHead,
    /// The source contradicts itself or something needs another look: ask again after a pause.
    Unsettled(String),
    /// The work is done.
    Finished(Finished),
}

impl Ingester {
    /// An ingester from `source` into `store`.
    pub fn new(
        source: Arc<dyn ChainSource>,
        store: Arc<dyn IngestStore>,
        clock: Arc<dyn Clock>,
        status: StatusBoard,
        options: IngestOptions,
    ) -> Self {
        let budget = ByteBudget::new(options.budget_bytes);
        Ingester { source, store, clock, status, options, budget, reports: Reports::default() }
    }

    /// The same, which tells these why blocks are not stored.
    pub fn with_reports(mut self, reports: Reports) -> Self {
        self.reports = reports;
        self
    }

    /// Runs until it is told to stop, its work is done, or it must halt. The status board says what it is doing, also at the end.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<Finished, IngestError> {
        let stop = shutdown.child_token();
        let source = Arc::new(UntilStopped::new(self.source.clone(), stop.clone()));
        let stoppable = Ingester { source, ..self.clone() };
        let mut driving = std::pin::pin!(stoppable.drive(&stop));
        let result = tokio::select! {
            biased;
            result = &mut driving => result,
            error = self.maintain() => {
                // It gives back what it has claimed, so that nobody counts a bad end.
                stop.cancel();
                if let Err(also) = driving.await {
                    tracing::debug!(error = %also, "ingestion ended as maintenance did");
                }
                Err(error)
            }
        };
        match &result {
            Ok(_) => self.status.state(IngestState::Stopped),
            Err(error) => {
                tracing::error!(%error, "ingestion halted");
                self.status.halted(error);
                // Where another ingester has taken over, nothing is wrong with blocks.
                if error.kind() != ErrorKind::Fenced {
                    let at = self.status.get().halt.and_then(|halt| halt.height);
                    self.reports
                        .fatal(at.unwrap_or(self.options.start), format!("ingestion halted: {error}"));
                }
            }
        }
        result
    }

    async fn drive(&self, shutdown: &CancellationToken) -> Result<Finished, IngestError> {
        let mut backoff = Backoff::new(250, 30_000, self.options.seed);
        let mut session: Option<Session> = None;
        let mut refused = Refused::default();
        while !shutdown.is_cancelled() {
            let turn = match &mut session {
                None => self.open().await.map(|opened| {
                    session = Some(opened);
                    Turn::Moved
                }),
                Some(session) => self.turn(session, shutdown).await,
            };
            let pause = match turn {
                Ok(Turn::Moved) => {
                    backoff.reset();
                    continue;
                }
                Ok(Turn::Finished(finished)) => return Ok(finished),
                Ok(Turn::AtHead) => {
                    backoff.reset();
                    None
                }
                Ok(Turn::Unsettled(reason)) => {
                    tracing::debug!(reason, "unsettled");
                    self.status.state(IngestState::Waiting(reason));
                    Some(Duration::from_millis(self.options.poll_ms))
                }
                // What was asked of the source when the stop came was dropped.
                Err(error) if error.kind().is_retryable() && shutdown.is_cancelled() => break,
                Err(error) if error.kind().is_retryable() => {
                    if let Some(height) = refused.again(&error) {
                        self.reports.fatal(height, error.to_string());
                    }
                    let pause = backoff.next_pause();
                    let pause_ms = pause.as_millis() as u64;
                    tracing::warn!(%error, tries = backoff.tries(), pause_ms, "trying again");
                    metrics::counter!("cairn_ingest_retries_total").increment(1);
                    self.status.state(IngestState::Waiting(error.to_string()));
                    Some(pause)
                }
                Err(error) => return Err(error),
            };
            let wait = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => self.source.wait_for_head(self.options.poll_ms).await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                () = wait => {}
            }
        }
        Ok(Finished::Stopped)
    }

    /// Checks that source and store are of one chain, then becomes the store's ingester.
    async fn open(&self) -> Result<Session, IngestError> {
        let chain_id = self.source.chain_id().await?;
        let mut info = self.options.info.clone();
        if info.chain_id != chain_id {
            return Err(
                cairn_store::StoreError::WrongChain { stored: info.chain_id, offered: chain_id }.into()
            );
        }
        info.chain_id = chain_id;
        self.store.init(info).await?;
        let head = self.store.acquire().await?;
        self.status.head(&head);
        if let Some(first) = head.first
            && self.options.start < first
        {
            return Err(IngestError::Invalid(format!(
                "this archive begins at height {first}; it can't be extended down to {}. Use --from {first} or another data directory",
                self.options.start
            )));
        }
        self.free_own_leases().await?;
        Ok(Session { fence: head.fence, suspicion: None, seam_attempts: 0 })
    }

    async fn turn(&self, session: &mut Session, shutdown: &CancellationToken) -> Result<Turn, IngestError> {
        let head = self.settled_head(session).await?;
        let heads = self.source.heads().await?;
        let latest = heads.latest.block;
        let target = self.options.stop_inclusive.map_or(latest.height, |stop| stop.min(latest.height));
        self.status.source_head(latest.height, target);

        let Some(tip) = head.tip else {
            if self.options.start > target {
                self.status.state(IngestState::Following);
                return Ok(Turn::AtHead);
            }
            // An anchor can't be rolled back, so it has to be final where the chain knows finality.
            if let Some(finalized) = heads.finalized.filter(|finalized| self.options.start > finalized.height)
            {
                let start = self.options.start;
                return Ok(Turn::Unsettled(format!(
                    "the first block {start} is not final yet; finalised is {finalized}"
                )));
            }
            return self.append_up_to(session, &head, &heads, target, shutdown).await;
        };
        let head = self.move_finality(session.fence, head, tip, &heads).await?;
        if self.options.stop_inclusive.is_some_and(|stop| tip.height >= stop) {
            return Ok(Turn::Finished(Finished::ReachedStop));
        }
        if latest.height > tip.height {
            return self.append_up_to(session, &head, &heads, target, shutdown).await;
        }
        // The node's head is not above ours: it is our tip, or it lags, or another block took its place.
        let stored = self.store.snapshot().await?.linked_ref(latest.height).await?;
        match stored {
            Some(ours) if ours.block.id == latest.id => {
                session.suspicion = None;
                self.status.state(IngestState::Following);
                metrics::gauge!("cairn_source_lag_heights").set(tip.height.since(latest.height) as f64);
                if self.options.exit_after_head {
                    return Ok(Turn::Finished(Finished::ReachedHead));
                }
                self.store
                    .prune_orphans(session.fence, self.options.max_reorg_depth_blocks, PRUNE_STEP_BLOCKS)
                    .await?;
                Ok(Turn::AtHead)
            }
            Some(_) => self.resolve_fork(session, &head, &heads, None).await,
            // Below the archive's first block: the node is far behind.
            None => Ok(Turn::Unsettled(format!("the node's head {latest} lies below this archive"))),
        }
    }

    /// The head row, with no purge pending.
    async fn settled_head(&self, session: &Session) -> Result<HeadRow, IngestError> {
        loop {
            let head = self.store.snapshot().await?.head().clone();
            self.status.head(&head);
            if head.pending_purge.is_none() {
                return Ok(head);
            }
            while self.store.purge_step(session.fence, PURGE_STEP_BLOCKS).await? != PurgeProgress::Done {}
        }
    }

    /// Appends from the tip up to `target_inclusive`, fetching ahead of the commits.
    async fn append_up_to(
        &self,
        session: &mut Session,
        head: &HeadRow,
        heads: &Heads,
        target_inclusive: Height,
        shutdown: &CancellationToken,
    ) -> Result<Turn, IngestError> {
        let next = head.tip.map_or(self.options.start, |tip| tip.height.next());
        let behind = HeightRange::inclusive(next, target_inclusive).len();
        self.status.state(if behind > BACKFILL_HEIGHTS {
            IngestState::Backfilling
        } else {
            IngestState::Following
        });
        let last = match head.tip {
            // Ranges are filled above a first block: that one is stored by itself.
            None if self.options.fill.is_some() => next,
            None => target_inclusive,
            Some(tip) => match self.fill_ahead(session, tip, heads, target_inclusive, shutdown).await? {
                FillTurn::Did(turn) => return Ok(turn),
                FillTurn::AppendTo(last) => last,
            },
        };
        let range = HeightRange::inclusive(next, last);
        let (sender, pieces) = mpsc::unbounded_channel();
        let fetching = fetch_in_order(
            self.source.clone(),
            range,
            self.options.fetches_in_flight,
            self.budget.clone(),
            sender,
        );
        let appending = self.append_pieces(session.fence, head.tip, heads, pieces, shutdown);
        // Both in this task: dropping the appender's receiver ends the fetcher at its next piece, and the end of the appender
        // ends the wait at once.
        tokio::pin!(appending);
        let ended = tokio::select! {
            biased;
            ended = &mut appending => ended,
            () = fetching => appending.await,
        }?;
        match ended {
            // Where blocks build on our tip, whoever told another story has not told it in a row.
            Appended::All | Appended::Stopped => {
                session.suspicion = None;
                Ok(Turn::Moved)
            }
            Appended::NotYet { height, moved } => {
                if moved {
                    session.suspicion = None;
                    return Ok(Turn::Moved);
                }
                Ok(Turn::Unsettled(format!("height {height} was announced, the node does not have it yet")))
            }
            Appended::Mismatch(block) => {
                let head = self.settled_head(session).await?;
                self.resolve_fork(session, &head, heads, Some(block)).await
            }
        }
    }

    async fn append_pieces(
        &self,
        fence: Fence,
        tip: Option<BlockRef>,
        heads: &Heads,
        mut pieces: mpsc::UnboundedReceiver<Piece>,
        shutdown: &CancellationToken,
    ) -> Result<Appended, IngestError> {
        let mut tip = tip;
        let mut moved = false;
        while let Some(first) = pieces.recv().await {
            let mut gathered = Gathered::new(first);
            while gathered.may_grow(&self.options) {
                match pieces.try_recv() {
                    Ok(piece) => gathered.add(piece),
                    Err(_) => break,
                }
            }
            let Gathered { mut blocks, reservations, end, bytes } = gathered;
            let linked = linked_prefix(tip, &blocks);
            let broken = blocks.get(linked).map(|block| block.facts.linked_ref());
            blocks.truncate(linked);
            if let Some(last) = blocks.last() {
                let new_tip = last.block_ref();
                let transactions = blocks.iter().map(|block| block.transactions.len() as u64).sum();
                let count = blocks.len() as u64;
                let finalized = self.finalized_with(heads, &blocks).await?;
                let batch = AppendBatch { blocks, finalized, safe: heads.safe };
                let head = self.store.append(fence, batch).await?;
                self.status.head(&head);
                self.status.committed(count, transactions, bytes, self.source.bound_by());
                tip = Some(new_tip);
                moved = true;
            }
            drop(reservations);
            if let Some(block) = broken {
                return Ok(Appended::Mismatch(block));
            }
            match end {
                PieceEnd::Whole => {}
                PieceEnd::NotYet(height) => return Ok(Appended::NotYet { height, moved }),
                PieceEnd::Failed(error) => return Err(error.into()),
            }
            if shutdown.is_cancelled() {
                return Ok(Appended::Stopped);
            }
        }
        Ok(Appended::All)
    }

    /// Merges index runs and the like while the ingester works. Ends only with an error that must halt it.
    async fn maintain(&self) -> IngestError {
        loop {
            match self.store.maintain(MAINTAIN_STEP_BYTES).await {
                Ok(Maintained::More) => tokio::task::yield_now().await,
                Ok(Maintained::Nothing) => tokio::time::sleep(MAINTAIN_REST).await,
                Err(error) if error.kind() == ErrorKind::Halt => return error.into(),
                Err(error) => {
                    tracing::debug!(%error, "maintenance will be tried again");
                    tokio::time::sleep(MAINTAIN_REST).await;
                }
            }
        }
    }
}

/// Blocks that checks refuse, and how often each.
#[derive(Default)]
struct Refused {
    times: BTreeMap<Height, u32>,
}

impl Refused {
    /// Another failure; the height of its block, where it is to be reported now: what is reported again while it is open is one error still.
    fn again(&mut self, error: &IngestError) -> Option<Height> {
        let IngestError::Source(SourceError::Inconsistent { height, .. }) = error else { return None };
        if self.times.len() >= MAX_REFUSED {
            // What was stored since is below what is refused now.
            self.times.pop_first();
        }
        let times = self.times.entry(*height).or_default();
        *times += 1;
        times.is_multiple_of(REPORTED_AFTER).then_some(*height)
    }
}

/// How appending a range ended.
enum Appended {
    All,
    Stopped,
    NotYet { height: Height, moved: bool },
    Mismatch(LinkedRef),
}

/// Pieces gathered into one commit.
struct Gathered {
    blocks: Vec<RawBlock>,
    reservations: Vec<crate::budget::Reservation>,
    end: PieceEnd,
    bytes: u64,
}

impl Gathered {
    fn new(piece: Piece) -> Self {
        let bytes = piece.blocks.iter().map(RawBlock::size_bytes).sum();
        Gathered { blocks: piece.blocks, reservations: vec![piece.reservation], end: piece.end, bytes }
    }

    fn may_grow(&self, options: &IngestOptions) -> bool {
        matches!(self.end, PieceEnd::Whole)
            && self.blocks.len() < options.batch_blocks
            && self.bytes < options.batch_bytes
    }

    fn add(&mut self, piece: Piece) {
        self.bytes += piece.blocks.iter().map(RawBlock::size_bytes).sum::<u64>();
        self.blocks.extend(piece.blocks);
        self.reservations.push(piece.reservation);
        self.end = piece.end;
    }
}

/// How many of `blocks` link to `tip` and to each other, height by height.
fn linked_prefix(tip: Option<BlockRef>, blocks: &[RawBlock]) -> usize {
    let mut before = tip;
    for (index, block) in blocks.iter().enumerate() {
        if let Some(before) = before
            && (block.facts.parent_id != before.id || block.facts.height != before.height.next())
        {
            return index;
        }
        before = Some(block.block_ref());
    }
    blocks.len()
}
