//! A worker: claims a range of one service, works it off chunk by chunk, and goes on to the next.
//!
//! The range at the tip is a range like any other: its `done_to` follows the head block by block, and each commit moves the checkpoint, so
//! derived data is a block behind and there is one mechanism. Only the answer to a failure differs: at the tip the block is tried
//! again after 5, 10 and 20 seconds before the range is given up to the others; below it the range is given up at once.
//!
//! Nothing that matters is remembered between chunks: a worker killed anywhere is replaced from its lease's `done_to`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{ErrorKind, Height, HeightRange};
use cairn_store::StoreError;
use cairn_store::derived::{
    ClaimRequest, Committed, DerivedSnapshot, LeaseEnd, LeaseKind, LeaseStatus, WorkerLease,
};
use futures::FutureExt;
use tokio::time::Instant;

use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::guard::text_of;
use super::held::{Held, Lost};
use super::options::MalformedPolicy;
use super::processor::{Processor, ServiceInfo};
use super::read::not_yet;
use super::status::Halt;
use super::steps::{self, Steps};
use super::strays::Strays;
use super::waiting::Waited;
use super::wake::Listener;
use super::{enrich, fold, map, report, standing};
use crate::backoff::Backoff;

/// How often one chunk is tried again over transient errors before its lease is given back.
const TRANSIENT_TRIES: u32 = 5;
/// The first and the longest pause between them, in milliseconds.
const TRANSIENT_PAUSE_MS: (u64, u64) = (100, 5_000);

pub(super) struct Worker {
    pub(super) context: Arc<Context>,
    processor: Processor,
    owner: String,
    seed: u64,
    pub(super) strays: Strays,
}

/// Heights of a chunk that corrects state, at most: a folder's commit in between would make it void.
const CORRECTED_HEIGHTS: u64 = 64;

/// How the next chunk is tried.
#[derive(Clone, Copy)]
struct Try {
    heights: u64,
    /// A block that still can't be processed is passed over.
    quarantine: bool,
}

impl Try {
    fn of(heights: u64) -> Try {
        Try { heights: heights.max(1), quarantine: false }
    }
}

/// How a lease was left.
enum Left {
    /// Its last height is committed.
    Completed,
    /// The process stops, or goes on with what it had before.
    Stopping,
    /// An operator paused the service.
    Paused,
    /// It is another's.
    Lost,
}

/// What came of a look at the next chunk.
enum Outcome<T> {
    /// There is one.
    Chunk(T),
    /// There is nothing to do up to where upstreams and the raw tip are.
    Nothing,
    /// An operator paused the service: what is held is given back, and goes on when it is claimed again.
    Paused,
}

impl Worker {
    pub fn new(context: Arc<Context>, processor: Processor, number: usize) -> Self {
        let owner = format!("{}/{}/{number}", context.options.owner, processor.service().name);
        let seed = context.options.seed ^ ((number as u64) << 32) ^ processor.service().name.len() as u64;
        Worker { context, processor, owner, seed, strays: Strays::default() }
    }

    pub(super) fn service(&self) -> &'static ServiceInfo {
        self.processor.service()
    }

    pub(super) fn in_order(&self) -> bool {
        !matches!(self.processor, Processor::Mapper(_))
    }

    /// Works until told to stop. An error is one that ends all derived work of this process.
    pub async fn run(self) -> Result<(), DeriveError> {
        let (first_ms, cap_ms) = TRANSIENT_PAUSE_MS;
        let mut backoff = Backoff::new(first_ms, cap_ms, self.seed);
        let mut listener = self.context.wake.listen();
        while !self.context.stop.is_cancelled() {
            let asked_at = Instant::now();
            match self.claim(self.context.options.stop_exclusive, None).await {
                Ok(Some(lease)) => {
                    backoff.reset();
                    self.work_off(lease, asked_at, &mut listener).await?;
                }
                Ok(None) => self.wait_for_claim(&mut listener).await,
                Err(error) if ends_all(&error) => return Err(self.halts(error, None)),
                Err(error) => {
                    self.note(&error);
                    self.pause(tokio::time::sleep(backoff.next_pause())).await;
                }
            }
        }
        Ok(())
    }

    pub(super) async fn pause(&self, until: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = self.context.stop.cancelled() => {}
            () = until => {}
        }
    }

    /// Says on the board that this error ends all derived work of this process, and which service met it.
    fn halts(&self, error: DeriveError, done_to: Option<Height>) -> DeriveError {
        self.context.board.halted(Halt {
            service: Some(self.service().name),
            height: error.height().or(done_to),
            code: error.code(),
            message: error.to_string(),
        });
        error
    }

    pub(super) fn note(&self, error: &DeriveError) {
        let name = self.service().name;
        tracing::debug!(service = name, %error, "derived work waits");
        self.context.board.service(name, |service| service.last_error = error.to_string());
        if error.kind() != ErrorKind::Retry && !error.is_of_one_range() {
            return;
        }
        metrics::counter!("cairn_worker_troubles_total", "service" => name).increment(1);
        if let Some(lasts) = self.context.troubles.met(name) {
            tracing::warn!(service = name, lasts_s = lasts.as_secs(), %error, "this worker doesn't get on; it goes on trying");
        }
    }

    /// While the range in hand waits for the head, one chunk of a range that somebody gave up: the range at the tip may be held by the only
    /// worker there is. Says whether something of it was committed.
    async fn help_once(&self, in_hand: u64) -> Result<bool, DeriveError> {
        let asked_at = Instant::now();
        // Nothing new is claimed.
        let lease = match self.claim(Some(Height::ZERO), Some(in_hand)).await {
            Ok(Some(lease)) => lease,
            Ok(None) => return Ok(false),
            Err(error) if ends_all(&error) => return Err(error),
            // It is not about the range in hand, which is neither given up nor charged for it.
            Err(error) => {
                self.note(&error);
                return Ok(false);
            }
        };
        let mut helped = self.hold(lease, asked_at);
        let mut next = Try::of(self.chunk_heights(&helped.lease));
        let mut worked = false;
        let left = loop {
            break match helped.keep(self.one_chunk(&helped, next)).await {
                Err(Lost) => Ok(Left::Lost),
                Ok((asked_at, Ok(Outcome::Chunk(committed)))) => {
                    worked = true;
                    self.committed(&mut helped, committed, asked_at);
                    Ok(if helped.lease.rest().is_empty() { Left::Completed } else { Left::Stopping })
                }
                // Put off, so that the next help goes to another.
                Ok((_, Ok(Outcome::Nothing))) => Err(nothing_yet(&helped.lease)),
                Ok((_, Ok(Outcome::Paused))) => Ok(Left::Paused),
                Ok((_, Err(error))) => match self.narrower(&helped.lease, next, &error) {
                    Some(narrower) => {
                        next = narrower;
                        continue;
                    }
                    None => Err(error),
                },
            };
        };
        self.leave(&helped, left).await?;
        Ok(worked)
    }

    fn hold(&self, lease: WorkerLease, asked_at: Instant) -> Held {
        let options = &self.context.options;
        let name = self.service().name;
        tracing::debug!(service = name, range = %lease.range, done_to = %lease.done_to, "claimed");
        let app = self.context.app.clone();
        Held::new(lease, app, options.lease_ttl_ms, options.lease_margin_ms, asked_at)
    }

    /// Claims beside the lease in hand; new ranges are cut at `stop_exclusive`.
    async fn claim(
        &self,
        stop_exclusive: Option<Height>,
        in_hand: Option<u64>,
    ) -> Result<Option<WorkerLease>, DeriveError> {
        let options = &self.context.options;
        self.strays.give_back(&self.context, self.service().name, &self.owner, in_hand).await?;
        let Some(head) = self.context.wake.head() else { return Ok(None) };
        let (Some(first), Some(tip)) = (head.first, head.tip) else { return Ok(None) };
        let mut limit_exclusive = tip.height.next();
        if !self.service().upstreams.is_empty() {
            let snapshot = self.context.app.snapshot().await?;
            limit_exclusive = self.upstream_limit(&*snapshot, limit_exclusive);
        }
        let stop = options.stop_exclusive.unwrap_or(limit_exclusive);
        let limit_exclusive = limit_exclusive.min(stop);
        let request = ClaimRequest {
            service: self.service().name.into(),
            version: self.service().version,
            owner: self.owner.clone(),
            ttl_ms: options.lease_ttl_ms,
            range_heights: options.range_of(self.service().name),
            first: first.max(options.start),
            limit_exclusive,
            stop_exclusive,
            in_order: self.in_order(),
        };
        let claimed = self.context.app.claim(&request).await;
        if claimed.is_err() {
            // Its answer may have been lost.
            self.strays.suspect();
        }
        Ok(claimed?)
    }

    /// How far this service may go: up to the lowest checkpoint of its upstreams, and the raw tip.
    fn upstream_limit(&self, snapshot: &dyn DerivedSnapshot, raw_exclusive: Height) -> Height {
        let limit = self.context.options.stop_exclusive.map_or(raw_exclusive, |stop| stop.min(raw_exclusive));
        let upstreams = self.service().upstreams.iter();
        // One that was never registered has nothing yet.
        let next =
            upstreams.map(|name| snapshot.checkpoint(name).map_or(Height::ZERO, |upstream| upstream.next));
        next.fold(limit, Height::min)
    }

    async fn work_off(
        &self,
        lease: WorkerLease,
        asked_at: Instant,
        listener: &mut Listener,
    ) -> Result<(), DeriveError> {
        let mut held = self.hold(lease, asked_at);
        let left = self.chunks(&mut held, listener).await;
        let rest_ms = self.leave(&held, left).await?;
        if rest_ms > 0 {
            self.pause(tokio::time::sleep(Duration::from_millis(rest_ms))).await;
        }
        Ok(())
    }

    /// Gives a lease back as its end demands; says for how many milliseconds whoever left it is to claim nothing. An error is one that ends all derived work of this process.
    async fn leave(&self, held: &Held, left: Result<Left, DeriveError>) -> Result<u64, DeriveError> {
        let options = &self.context.options;
        let name = self.service().name;
        let mut rest_ms = 0;
        let end = match left {
            Ok(Left::Completed) => return Ok(0),
            Ok(Left::Lost) => {
                // It may be nobody's, where it could not be renewed.
                self.strays.suspect();
                return Ok(0);
            }
            Ok(Left::Stopping | Left::Paused) => LeaseEnd::Released,
            Err(error) => {
                self.note(&error);
                let message = error.to_string();
                let uncharged = match &error {
                    DeriveError::Store(StoreError::Database(_)) => self.refused(&held.lease).await,
                    _ => None,
                };
                match (error.kind(), uncharged) {
                    // The store's uuid, schema or catalog don't fit: nothing this process does can be right.
                    _ if ends_all(&error) => {
                        // No bad end of this range. A store that isn't the one this process thinks it is refuses this too.
                        let end = LeaseEnd::Transient { message, retry_in_ms: options.failed_pause_ms };
                        self.end(&held.lease, end).await;
                        return Err(self.halts(error, Some(held.lease.done_to)));
                    }
                    (ErrorKind::Retry | ErrorKind::Wait, _) => {
                        LeaseEnd::Transient { message, retry_in_ms: options.failed_pause_ms }
                    }
                    (_, Some(before)) => {
                        let retry_in_ms = options.failed_pause(before);
                        rest_ms = retry_in_ms;
                        tracing::warn!(
                            service = name,
                            range = %held.lease.range,
                            retry_in_ms,
                            %error,
                            "the database refuses one range after the other; this one isn't charged with it"
                        );
                        LeaseEnd::Transient { message, retry_in_ms }
                    }
                    (_, None) => {
                        let retry_in_ms = options.failed_pause(held.lease.attempt);
                        if error.is_of_one_range() {
                            // Where the database refuses more than this range, not one range after the other is to fail at once.
                            rest_ms = retry_in_ms;
                        }
                        tracing::warn!(
                            service = name,
                            range = %held.lease.range,
                            done_to = %held.lease.done_to,
                            attempt = held.lease.attempt + 1,
                            %error,
                            "a range failed"
                        );
                        metrics::counter!("cairn_worker_failures_total", "service" => name).increment(1);
                        if let Err(unrecorded) =
                            report::of_end(&self.context, self.service(), &held.lease, &error).await
                        {
                            // The lease says it too, and the next bad end records it.
                            tracing::warn!(service = name, error = %unrecorded, "the error log could not be written");
                        }
                        LeaseEnd::Bad { message, retry_in_ms }
                    }
                }
            }
        };
        self.end(&held.lease, end).await;
        Ok(rest_ms)
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) {
        if let Err(error) = self.context.app.end(lease, end).await {
            tracing::debug!(service = self.service().name, %error, "a lease could not be given back now");
            self.strays.suspect();
        }
    }

    /// The database refused a range for good: see [`super::refusals::Refusals::refused`].
    async fn refused(&self, lease: &WorkerLease) -> Option<u32> {
        let (name, refusals) = (self.service().name, &self.context.refusals);
        if let Some(charged) = refusals.charged(name).filter(|charged| charged.lease_id != lease.id) {
            match self.context.app.lease(charged.lease_id).await {
                Ok(now) if !charged.stands(now.as_ref()) => refusals.forget(name, charged),
                Ok(_) => {}
                // The next refusal looks again.
                Err(error) => {
                    tracing::debug!(service = name, %error, "can't look at the range that is charged");
                }
            }
        }
        refusals.refused(name, lease)
    }

    /// Works off a lease's chunks.
    async fn chunks(&self, held: &mut Held, listener: &mut Listener) -> Result<Left, DeriveError> {
        let options = &self.context.options;
        let (first_ms, cap_ms) = TRANSIENT_PAUSE_MS;
        let mut backoff = Backoff::new(first_ms, cap_ms, self.seed ^ held.lease.id);
        let most_heights = self.chunk_heights(&held.lease);
        let mut next = Try::of(most_heights);
        let mut live_tries = 0;
        let mut after_hole = false;
        // Whoever comes to the tip looks after the others once.
        let mut helps = true;
        loop {
            let lease = &held.lease;
            if lease.rest().is_empty() {
                return Ok(Left::Completed);
            }
            if self.context.stop.is_cancelled() {
                return Ok(Left::Stopping);
            }
            let (asked_at, outcome) = if self.is_at_end(lease) {
                (Instant::now(), Ok(Outcome::Nothing))
            } else {
                match held.keep(self.one_chunk(held, next)).await {
                    Err(Lost) => return Ok(Left::Lost),
                    Ok(done) => done,
                }
            };
            let error = match outcome {
                Ok(Outcome::Chunk(committed)) => {
                    self.committed(held, committed, asked_at);
                    (live_tries, after_hole) = (0, next.quarantine);
                    next = Try::of(next.heights.saturating_mul(2).min(most_heights));
                    backoff.reset();
                    continue;
                }
                Ok(Outcome::Paused) => return Ok(Left::Paused),
                Ok(Outcome::Nothing) if self.context.stop.is_cancelled() => continue,
                // Rows that are made again wait for the work that they lie under: who holds them must not be the one it waits for.
                Ok(Outcome::Nothing) if lease.kind == LeaseKind::Reindex => return Err(nothing_yet(lease)),
                Ok(Outcome::Nothing) => {
                    if helps {
                        // To its end, whatever becomes of the lease in hand: the range that is helped is given back.
                        let (helped, kept) = held.keep_through(self.help_once(held.lease.id)).await;
                        let helped = helped?;
                        if kept == Err(Lost) {
                            return Ok(Left::Lost);
                        }
                        if helped {
                            continue;
                        }
                    }
                    helps = match self.wait_in_hand(held, listener).await {
                        Waited::Lost => return Ok(Left::Lost),
                        Waited::Paused => return Ok(Left::Paused),
                        waited => waited == Waited::Help,
                    };
                    continue;
                }
                Err(error) => error,
            };
            let name = self.service().name;
            self.note(&error);
            match error.kind() {
                // Somebody took the lease, or it stands elsewhere: a reorg lowered it, or an answer was lost.
                ErrorKind::Fenced | ErrorKind::Wait => {
                    self.context.board.service(name, |service| service.refused += 1);
                    if self.wait_for_work(held, listener).await == Err(Lost) {
                        return Ok(Left::Lost);
                    }
                    match self.context.app.lease(held.lease.id).await {
                        Ok(Some(now))
                            if now.fence == held.lease.fence && now.status == LeaseStatus::Active =>
                        {
                            held.lease = now;
                        }
                        Ok(_) => return Ok(Left::Lost),
                        Err(error) => return Err(error.into()),
                    }
                    if held.lease.corrects_state || matches!(self.processor, Processor::Folder(_)) {
                        // State went on, or was corrected, meanwhile: a smaller chunk is there before that happens again.
                        next.heights = (next.heights / 2).max(1);
                    }
                    if matches!(error, DeriveError::Store(StoreError::LeaseMoved { .. })) {
                        self.demand_standing().await?;
                    }
                }
                ErrorKind::Retry => {
                    next.heights = (next.heights / 2).max(1);
                    if backoff.tries() >= TRANSIENT_TRIES {
                        return Err(error);
                    }
                    let pause = tokio::time::sleep(backoff.next_pause());
                    if held.keep(self.pause(pause)).await == Err(Lost) {
                        return Ok(Left::Lost);
                    }
                }
                // Of many blocks in a row that can't be processed only the first is waited for.
                ErrorKind::GiveUp
                    if next.heights == 1
                        && self.is_live(&held.lease)
                        && live_tries < options.live_retries_ms.len()
                        && !(after_hole && self.quarantines(&error)) =>
                {
                    let pause_ms = options.live_retries_ms[live_tries];
                    live_tries += 1;
                    tracing::warn!(service = name, %error, pause_ms, "a block at the tip failed; it is tried again");
                    let pause = tokio::time::sleep(Duration::from_millis(pause_ms));
                    if held.keep(self.pause(pause)).await == Err(Lost) {
                        return Ok(Left::Lost);
                    }
                }
                ErrorKind::GiveUp | ErrorKind::Halt => match self.narrower(&held.lease, next, &error) {
                    Some(narrower) => next = narrower,
                    None => return Err(error),
                },
            }
        }
    }

    /// How a chunk that failed is tried again at once: what lies below the block to blame, or half of it, down to one block; then without what that block
    /// would give, where the policy lets the range go on. `None`: not at all.
    fn narrower(&self, lease: &WorkerLease, tried: Try, error: &DeriveError) -> Option<Try> {
        let is_of_a_block = matches!(error, DeriveError::Store(StoreError::Corrupt { .. }));
        if error.kind() != ErrorKind::GiveUp && !is_of_a_block {
            return None;
        }
        if tried.heights > 1 {
            let below = error.height().map(|height| height.get().saturating_sub(lease.done_to.get()));
            let below = below.filter(|below| *below < tried.heights);
            return Some(Try::of(below.unwrap_or(tried.heights / 2)));
        }
        (!tried.quarantine && self.quarantines(error)).then_some(Try { quarantine: true, ..tried })
    }

    /// Whether the block that this is about is passed over in the end. State depends on every block, so folders never do that.
    fn quarantines(&self, error: &DeriveError) -> bool {
        matches!(error, DeriveError::Process(_))
            && matches!(self.processor, Processor::Mapper(_))
            && self.context.options.malformed == MalformedPolicy::Continue
    }

    /// Whether a lease reaches to the raw tip.
    fn is_live(&self, lease: &WorkerLease) -> bool {
        let tip = self.context.wake.head().and_then(|head| head.tip);
        tip.is_some_and(|tip| lease.range.end() > tip.height)
    }

    /// A chunk doesn't join what its own lease, or the checkpoint, stands on: the raw store may have lost that, and then no try brings it on.
    async fn demand_standing(&self) -> Result<(), DeriveError> {
        let name = self.service().name;
        match standing::demand(&self.context, Some(name)).await {
            Err(error) if !ends_all(&error) => {
                // The next refusal looks again.
                tracing::debug!(service = name, %error, "can't tell now whether it stands on what is stored");
                Ok(())
            }
            demanded => demanded,
        }
    }

    /// The most heights of a chunk.
    fn chunk_heights(&self, lease: &WorkerLease) -> u64 {
        let heights = self.context.options.chunk_heights;
        if lease.corrects_state { heights.min(CORRECTED_HEIGHTS) } else { heights }
    }

    async fn wait_for_work(&self, held: &Held, listener: &mut Listener) -> Result<(), Lost> {
        held.keep(self.pause(listener.wait(self.poll()))).await
    }

    fn committed(&self, held: &mut Held, committed: Committed, asked_at: Instant) {
        let name = self.service().name;
        held.lease = committed.lease;
        held.renewed(asked_at);
        if let Some(lasted) = self.context.troubles.over(name) {
            tracing::info!(service = name, lasted_s = lasted.as_secs(), "this worker gets on again");
        }
        self.context.board.checkpoint(name, &committed.checkpoint);
        self.context.board.service(name, |service| service.last_error.clear());
        self.context.refusals.committed(name);
        self.context.wake.tick();
    }

    /// Prepares and commits the next chunk.
    async fn one_chunk(&self, held: &Held, next: Try) -> (Instant, Result<Outcome<Committed>, DeriveError>) {
        let began = Instant::now();
        let prepared = match self.prepare(held, next).await {
            Ok(Outcome::Chunk(prepared)) => prepared,
            Ok(Outcome::Nothing) => return (began, Ok(Outcome::Nothing)),
            Ok(Outcome::Paused) => return (began, Ok(Outcome::Paused)),
            Err(error) => return (began, Err(error)),
        };
        let asked_at = Instant::now();
        (asked_at, self.commit(&held.lease, prepared).await.map(Outcome::Chunk))
    }

    async fn prepare(&self, held: &Held, next: Try) -> Result<Outcome<Prepared>, DeriveError> {
        let (name, lease) = (self.service().name, &held.lease);
        // A lease at the tip is held for as long as a range lasts, so it isn't enough to ask at a claim.
        let look = self.look_for_chunk(held).await?;
        if look.is_paused(name) {
            return Ok(Outcome::Paused);
        }
        let limit = match lease.kind {
            LeaseKind::Index => self.known_limit(Some(&look)),
            // What is rebuilt lies below the checkpoint.
            LeaseKind::Reindex => {
                let snapshot = self.context.app.snapshot().await?;
                let own = snapshot.checkpoint(name).map_or(Height::ZERO, |own| own.next);
                self.made_again_limit(&*snapshot, lease.done_to, own).await?
            }
        };
        let from = lease.done_to;
        let to = lease.range.end().min(limit).min(from + next.heights);
        let heights = HeightRange::new(from, to);
        if heights.is_empty() {
            return Ok(Outcome::Nothing);
        }
        let context = &self.context;
        let preparing = async {
            match &self.processor {
                Processor::Mapper(mapper) => {
                    map::prepare(context, mapper, lease, heights, next.quarantine).await
                }
                Processor::Folder(folder) => fold::prepare(context, folder, lease, heights).await,
                Processor::Enricher(enricher) => enrich::prepare(context, enricher, lease, heights).await,
            }
        };
        // It only reads, so a process that stops need not wait for it: a node that is asked may be silent for long.
        tokio::select! {
            biased;
            () = context.stop.cancelled() => Ok(Outcome::Nothing),
            // What is left here of a panic is that nothing was prepared.
            prepared = AssertUnwindSafe(preparing).catch_unwind() => match prepared {
                Ok(prepared) => prepared.map(Outcome::Chunk),
                Err(panic) => Err(DeriveError::Processor(text_of(&*panic).into())),
            },
        }
    }

    /// How far an enricher may ask, for the first time or again: up to where the rows that name what it asks about are being made again themselves.
    async fn made_again_limit(
        &self,
        snapshot: &dyn DerivedSnapshot,
        from: Height,
        own: Height,
    ) -> Result<Height, DeriveError> {
        let mut limit = own;
        if let Processor::Enricher(_) = self.processor {
            for upstream in self.service().upstreams {
                limit = limit.min(snapshot.made_again_from(upstream, from).await?.unwrap_or(limit));
                // One that makes everything anew stands lower than it did.
                limit =
                    limit.min(snapshot.checkpoint(upstream).map_or(Height::ZERO, |upstream| upstream.next));
            }
        }
        Ok(limit)
    }

    async fn commit(&self, lease: &WorkerLease, prepared: Prepared) -> Result<Committed, DeriveError> {
        let Prepared { commit, malformed, quarantined } = prepared;
        let name = self.service().name;
        if !malformed.is_empty() {
            let first = malformed.first().map(|first| DeriveError::Malformed {
                height: first.error.height.get(),
                message: first.error.message.clone(),
            });
            let new = report::record(&self.context, name, malformed).await?;
            self.context.board.service(name, |service| service.malformed += new);
            if let (MalformedPolicy::Halt, Some(first)) = (self.context.options.malformed, first) {
                return Err(first);
            }
        }
        let rows = commit.rows.iter().map(|rows| rows.rows.len()).sum::<usize>()
            + commit.states.iter().map(|rows| rows.rows.len()).sum::<usize>();
        let chunk = commit.chunk;
        let corrected = commit.corrections.iter().filter(|correction| !correction.tables.is_empty());
        let corrected: Vec<String> = corrected.map(|correction| correction.service.clone()).collect();
        let mut steps = Steps::begin(self.service());
        let committed = match self.context.app.commit_chunk(lease, commit).await {
            Ok(committed) => committed,
            // The answer may have been lost; the lease says whether it happened.
            Err(error) if error.kind() == ErrorKind::Retry => {
                self.settle(lease, chunk).await?.ok_or(error)?
            }
            Err(error) => return Err(error.into()),
        };
        steps.done(steps::COMMIT);
        metrics::counter!("cairn_worker_rows_total", "service" => name).increment(rows as u64);
        for folder in corrected {
            metrics::counter!("cairn_state_corrections_total", "service" => folder).increment(1);
        }
        self.context.board.service(name, |service| service.rows += rows as u64);
        self.context.board.heights(name, chunk, quarantined);
        if let Some(height) = quarantined {
            metrics::counter!("cairn_quarantined_blocks_total", "service" => name).increment(1);
            tracing::error!(
                service = name,
                %height,
                "a block could not be processed and is left without rows; mend the cause, then `cairn errors retry`"
            );
        }
        Ok(committed)
    }

    /// Whether a commit without an answer happened: `done_to` is at or above the chunk's end under our fence.
    async fn settle(
        &self,
        lease: &WorkerLease,
        chunk: HeightRange,
    ) -> Result<Option<Committed>, DeriveError> {
        let Some(now) = self.context.app.lease(lease.id).await? else { return Ok(None) };
        if now.fence != lease.fence || now.done_to < chunk.end() {
            return Ok(None);
        }
        let snapshot = self.context.app.snapshot().await?;
        let checkpoint = snapshot.checkpoint(self.service().name).cloned();
        Ok(checkpoint.map(|checkpoint| Committed { lease: now, checkpoint }))
    }
}

/// Whether nothing that this process derives can be right any more.
pub(super) fn ends_all(error: &DeriveError) -> bool {
    error.kind() == ErrorKind::Halt && !error.is_of_one_range()
}

fn nothing_yet(lease: &WorkerLease) -> DeriveError {
    not_yet(format!("{} from height {}", lease.service, lease.done_to))
}
