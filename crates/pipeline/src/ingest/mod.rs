//! The ingester: takes every block of a chain once and in order into a raw store, and follows the chain's forks.
//!
//! It works in turns. Each turn reads the head row, finishes a purge that is pending, asks the source for its head, and then does one
//! thing: appends what is missing, decides about a fork ([`fork`]), moves the finalised mark, or waits. Nothing is remembered
//! between turns that matters for correctness: a process killed anywhere goes on from the head row.
//!
//! Atomicity: blocks, lookups and the head commit together in the store's verbs. Back-pressure: [`fetch`] keeps within a byte
//! budget. Shutdown: the commit in progress is finished, fetches are dropped ([`stop`]). Raw first (law 1): nothing here waits for a
//! reader or a worker.

mod commit_size;
mod fetch;
mod fill;
mod finality;
mod fork;
mod options;
mod reports;
mod stop;
mod telling;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockRef, Clock, ErrorKind, Fence, Height, HeightRange, LinkedRef, RawBlock};
use cairn_source::{ChainSource, Heads};
use cairn_store::{
    AppendBatch, HeadRow, Maintained, PurgeProgress, RawFiller, RawMaintenance, RawReader, RawWriter,
};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::commit_size::CommitSize;
use self::fetch::{Piece, PieceEnd, fetch_in_order};
use self::fill::FillTurn;
use self::fork::Suspicion;
pub use self::options::{FillOptions, IngestOptions};
pub use self::reports::{RAW_SERVICE, ReportWriter, Reports};
use self::stop::UntilStopped;
use self::telling::Telling;
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
/// The longest such rest: it doubles while there is nothing.
const MAINTAIN_LONGEST_REST: Duration = Duration::from_secs(30);
/// How long the store isn't looked at while the source says what it said before.
const REST: Duration = Duration::from_secs(5);
/// The longest pause after merges that failed.
const MAINTAIN_LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// The first and the longest pause between two tries.
const RETRY_PAUSE_MS: (u64, u64) = (250, 60_000);
/// The longest pause in an outage: its end is noticed within that time.
const OUTAGE_PAUSE: Duration = Duration::from_secs(10);
/// So many tries in a row may fail before one that the database refuses for a reason that isn't known to pass ends ingestion: about half an hour.
const STORE_REFUSALS: u32 = 45;
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
    commits: CommitSize,
}

/// What one process knows while it holds the head.
struct Session {
    fence: Fence,
    suspicion: Option<Suspicion>,
    seam_attempts: u32,
    /// The head row when no orphan was left to prune.
    pruned: Option<HeadRow>,
    /// What the source said when there was nothing to do, and when the store was looked at for it.
    at_rest: Option<(Heads, Instant)>,
}

/// What a turn did.
enum Turn {
    /// It became the store's ingester: go on at once.
    Opened,
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
        Ingester {
            source,
            store,
            clock,
            status,
            options,
            budget,
            reports: Reports::default(),
            commits: CommitSize::default(),
        }
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
            never = self.maintain() => match never {},
        };
        match &result {
            Ok(_) => self.status.state(IngestState::Stopped),
            Err(error) => {
                tracing::error!(%error, "ingestion halted");
                self.status.halted(error);
                // Where another ingester has taken over, nothing is wrong with blocks.
                if error.kind() != ErrorKind::Fenced {
                    let at = error.height().unwrap_or_else(|| self.next_height());
                    self.reports.fatal(at, format!("ingestion halted: {error}"));
                }
            }
        }
        result
    }

    async fn drive(&self, shutdown: &CancellationToken) -> Result<Finished, IngestError> {
        let mut backoff = Backoff::new(RETRY_PAUSE_MS.0, RETRY_PAUSE_MS.1, self.options.seed);
        let mut session: Option<Session> = None;
        // In a row: other failures are waited for without end.
        let mut refusals = 0;
        let mut telling = Telling::default();
        while !shutdown.is_cancelled() {
            let tip = self.status.tip();
            let turn = match &mut session {
                None => self.open().await.map(|opened| {
                    session = Some(opened);
                    Turn::Opened
                }),
                Some(session) => self.turn(session, shutdown).await,
            };
            // Also where the turn failed in the end: what it failed at is something new.
            if matches!(turn, Ok(Turn::Moved | Turn::AtHead | Turn::Finished(_))) || self.status.tip() != tip
            {
                backoff.reset();
                refusals = 0;
                telling.over();
                self.status.passed();
                self.reports.stored(self.status.tip());
            }
            let pause = match turn {
                Ok(Turn::Opened | Turn::Moved) => continue,
                Ok(Turn::Finished(finished)) => return Ok(finished),
                Ok(Turn::AtHead) => None,
                Ok(Turn::Unsettled(reason)) => {
                    telling.unsettled(&reason);
                    self.status.state(IngestState::Waiting(reason));
                    Some(Duration::from_millis(self.options.poll_ms))
                }
                // What was asked of the source when the stop came was dropped.
                Err(error) if error.kind().is_retryable() && shutdown.is_cancelled() => break,
                Err(error)
                    if error.kind().is_retryable()
                        || refusals < STORE_REFUSALS && error.is_store_refusal() =>
                {
                    refusals = if error.is_store_refusal() { refusals + 1 } else { 0 };
                    let obstacle = self.status.met(&error);
                    let mut pause = backoff.next_pause();
                    if !error.is_store_refusal() {
                        pause = pause.min(OUTAGE_PAUSE);
                    }
                    telling.failed(&error, &obstacle, pause, self.next_height(), &self.reports);
                    metrics::counter!("cairn_ingest_retries_total").increment(1);
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

    /// The height after the stored tip.
    fn next_height(&self) -> Height {
        self.status.tip().map_or(self.options.start, |tip| tip.height.next())
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
        Ok(Session { fence: head.fence, suspicion: None, seam_attempts: 0, pruned: None, at_rest: None })
    }

    async fn turn(&self, session: &mut Session, shutdown: &CancellationToken) -> Result<Turn, IngestError> {
        let mut asked = None;
        if let Some((said, looked)) = session.at_rest.take() {
            let heads = self.source.heads().await?;
            if said == heads && looked.elapsed() < REST {
                let height = heads.latest.block.height;
                self.status.source_head(height, height);
                session.at_rest = Some((said, looked));
                return Ok(Turn::AtHead);
            }
            asked = Some(heads);
        }
        let head = self.settled_head(session).await?;
        let heads = match asked {
            Some(heads) => heads,
            None => self.source.heads().await?,
        };
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
        let stored = match latest == tip {
            true => Some(tip),
            false => {
                let linked = self.store.snapshot().await?.linked_ref(latest.height).await?;
                linked.map(|linked| linked.block)
            }
        };
        match stored {
            Some(ours) if ours.id == latest.id => {
                session.suspicion = None;
                self.status.state(IngestState::Following);
                metrics::gauge!("cairn_source_lag_heights").set(tip.height.since(latest.height) as f64);
                if self.options.exit_after_head {
                    return Ok(Turn::Finished(Finished::ReachedHead));
                }
                // Orphans come with a reorg and are old enough by the tip: both are in the head row.
                if session.pruned.as_ref() != Some(&head) {
                    let keep = self.options.max_reorg_depth_blocks;
                    if self.store.prune_orphans(session.fence, keep, PRUNE_STEP_BLOCKS).await? > 0 {
                        return Ok(Turn::AtHead);
                    }
                    session.pruned = Some(head);
                }
                session.at_rest = Some((heads, Instant::now()));
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
            let head = self.store.head().await?;
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
            let Gathered { mut blocks, reservations, end, .. } = gathered;
            let linked = linked_prefix(tip, &blocks);
            let broken = blocks.get(linked).map(|block| block.facts.linked_ref());
            blocks.truncate(linked);
            while !blocks.is_empty() {
                let blocks = self.commits.next_of(&mut blocks, linked);
                let new_tip = blocks.last().map(RawBlock::block_ref);
                let transactions = blocks.iter().map(|block| block.transactions.len() as u64).sum();
                let bytes = blocks.iter().map(RawBlock::size_bytes).sum();
                let count = blocks.len() as u64;
                let finalized = self.finalized_with(heads, &blocks).await?;
                let batch = AppendBatch { blocks, finalized, safe: heads.safe };
                let head = self.commits.ended(self.store.append(fence, batch).await)?;
                self.status.head(&head);
                self.status.committed(count, transactions, bytes, self.source.bound_by());
                tip = new_tip;
                moved = true;
                if shutdown.is_cancelled() {
                    return Ok(Appended::Stopped);
                }
            }
            drop(reservations);
            if let Some(block) = broken {
                return Ok(Appended::Mismatch(block));
            }
            match end {
                PieceEnd::Whole => {}
                PieceEnd::NotYet(height) => return Ok(Appended::NotYet { height, moved }),
                PieceEnd::Failed(height, error) => return Err(error.at(height).into()),
            }
            if shutdown.is_cancelled() {
                return Ok(Appended::Stopped);
            }
        }
        Ok(Appended::All)
    }

    /// Merges the index in the background. Blocks are stored and found without it, only slower: a merge that fails ends nothing.
    async fn maintain(&self) -> Infallible {
        let (mut pause, mut rest) = (MAINTAIN_REST, MAINTAIN_REST);
        loop {
            match self.store.maintain(MAINTAIN_STEP_BYTES).await {
                Ok(done) => {
                    pause = MAINTAIN_REST;
                    match done {
                        Maintained::More => {
                            rest = MAINTAIN_REST;
                            tokio::task::yield_now().await;
                        }
                        Maintained::Nothing => {
                            tokio::time::sleep(rest).await;
                            rest = (rest * 2).min(MAINTAIN_LONGEST_REST);
                        }
                    }
                }
                Err(error) => {
                    metrics::counter!("cairn_background_failures_total", "job" => "index-merge").increment(1);
                    let pause_s = pause.as_secs_f64();
                    match error.kind().is_retryable() {
                        true => {
                            tracing::debug!(%error, pause_s, "the index was not merged; it is tried again")
                        }
                        false => tracing::warn!(
                            %error, pause_s,
                            "the index can't be merged: blocks are stored, and searches get slower; it is tried again"
                        ),
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAINTAIN_LONGEST_PAUSE);
                }
            }
        }
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
