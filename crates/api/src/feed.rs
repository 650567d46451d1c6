//! The head feed: one follower per server turns what the store says into head events, and every subscription takes them from there.
//!
//! State is a [`Place`]; everything else is read from the store, so a missed wake-up, a slow poll or a burst of reorgs loses nothing.
//!
//! * Ordering: removed blocks from the old tip downwards, entry by entry of the reorg log, then added blocks upwards.
//! * Back-pressure: none towards the store. While many blocks come at once the follower waits for subscribers that have no room, within a
//!   patience that refills slowly, so that a burst closes nobody and a slow subscriber can't hold up the others for long. Subscribers have a bounded queue ([`RpcLimits::feed_queue_blocks`]) and decoded blocks a byte budget
//!   ([`RpcLimits::feed_payload_bytes`]); who falls behind either is told so and closed, never skipped over.
//! * Idle: without subscribers nothing is read.
//! * Shutdown: by the server's cancellation token; subscribers see the channel close.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Height, Parts, StoredBlock};
use cairn_evm::{BlockView, LogPlace};
use cairn_store::RawSnapshot;
use tokio::sync::{Mutex as AsyncMutex, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::RpcError;
use crate::eth::EthApi;
use crate::eth::logs::LOG_PARTS;
use crate::eth::place::Place;
use crate::eth::read::{size_bytes, work};
use crate::limits::RpcLimits;

/// Texts of logs that are kept for the next subscription that sends the same.
const SHARED_TEXT_BYTES: usize = 8 << 20;
/// Blocks that one step reads under one snapshot.
const STEP_BYTES: u64 = 4 << 20;
/// Orphans that one step reads under one snapshot.
const STEP_ORPHANS: usize = 16;

/// A decoded block's logs, as long as the budget allows.
enum Payload {
    /// Nobody wanted logs when the event was made.
    NotWanted,
    /// Here, with its bytes.
    Here(Arc<BlockView>, usize),
    /// It had to make room.
    Dropped,
}

/// What a subscriber finds when it asks for an event's logs.
pub(crate) enum LogsOf {
    /// The subscription began after the event was made.
    NotMine,
    /// Here, with its bytes.
    Here(Arc<BlockView>, usize),
    /// The subscriber was too slow.
    Dropped,
}

/// A block that came or went.
pub(crate) struct HeadEvent {
    /// Whether a reorg took it away.
    pub removed: bool,
    /// Which.
    pub block: BlockRef,
    /// The header as `newHeads` sends it; for added blocks only.
    pub header: Option<Bytes>,
    payload: Mutex<Payload>,
}

impl HeadEvent {
    /// The block to take logs from.
    pub(crate) fn logs(&self) -> LogsOf {
        match &*self.payload.lock().unwrap_or_else(PoisonError::into_inner) {
            Payload::NotWanted => LogsOf::NotMine,
            Payload::Here(view, bytes) => LogsOf::Here(Arc::clone(view), *bytes),
            Payload::Dropped => LogsOf::Dropped,
        }
    }

    fn drop_payload(&self) {
        *self.payload.lock().unwrap_or_else(PoisonError::into_inner) = Payload::Dropped;
    }
}

/// Texts of logs that were written lately: subscriptions that send the same log share one.
#[derive(Default)]
struct Texts {
    by_log: HashMap<LogKey, Bytes>,
    oldest: VecDeque<LogKey>,
    bytes: usize,
}

/// A block, whether it was taken away, and the log's number in it.
type LogKey = (BlockId, bool, u32);

impl Texts {
    fn put(&mut self, key: LogKey, text: Bytes) {
        if text.len() > SHARED_TEXT_BYTES || self.by_log.contains_key(&key) {
            return;
        }
        self.bytes += text.len();
        self.by_log.insert(key, text);
        self.oldest.push_back(key);
        while self.bytes > SHARED_TEXT_BYTES {
            let Some(oldest) = self.oldest.pop_front() else { return };
            self.bytes -= self.by_log.remove(&oldest).map_or(0, |text| text.len());
        }
    }
}

/// What the follower says.
#[derive(Clone)]
pub(crate) enum FeedMessage {
    /// A block came or went.
    Head(Arc<HeadEvent>),
    /// The feed can't go on without a gap: every subscription ends.
    Broken(Arc<str>),
}

/// Which events a subscriber needs payloads of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Headers only.
    Headers,
    /// Logs.
    Logs,
}

/// A place in the feed. Dropping it leaves.
pub(crate) struct FeedSubscriber {
    pub receiver: broadcast::Receiver<FeedMessage>,
    _guard: Guard,
}

struct Guard {
    feed: Arc<Feed>,
    wants: Wants,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.feed.counter(self.wants).fetch_sub(1, Ordering::AcqRel);
    }
}

/// The follower's shared half.
pub(crate) struct Feed {
    api: Arc<EthApi>,
    sender: broadcast::Sender<FeedMessage>,
    headers_wanted: AtomicUsize,
    logs_wanted: AtomicUsize,
    state: AsyncMutex<FollowerState>,
    texts: Mutex<Texts>,
}

#[derive(Default)]
struct FollowerState {
    /// `None` while nobody listens.
    place: Option<Place>,
    /// Events that still hold their payload, oldest first, with its bytes.
    held: VecDeque<(Arc<HeadEvent>, usize)>,
    held_bytes: usize,
    patience: Patience,
}

/// How long the follower may still wait for subscribers without room.
struct Patience {
    left: Duration,
    refilled: Instant,
}

impl Default for Patience {
    fn default() -> Self {
        Patience { left: Patience::MOST, refilled: Instant::now() }
    }
}

impl Patience {
    const MOST: Duration = Duration::from_secs(2);
    const LOOK_EVERY: Duration = Duration::from_millis(2);

    /// Gives back half of the time that has passed.
    fn refill(&mut self) {
        let now = Instant::now();
        self.left = Patience::MOST.min(self.left + now.duration_since(self.refilled) / 2);
        self.refilled = now;
    }

    /// Waits until `has_room`, as far as patience goes.
    async fn wait(&mut self, has_room: impl Fn() -> bool) {
        if has_room() {
            return;
        }
        self.refill();
        let began = Instant::now();
        while !has_room() && began.elapsed() < self.left {
            tokio::time::sleep(Patience::LOOK_EVERY).await;
        }
        self.left = self.left.saturating_sub(began.elapsed());
        self.refilled = Instant::now();
    }
}

enum Step {
    /// At the tip.
    Done,
    /// There is more.
    More,
}

impl Feed {
    /// A feed without subscribers.
    pub(crate) fn new(api: Arc<EthApi>) -> Arc<Self> {
        let (sender, _) = broadcast::channel(api.limits().feed_queue_blocks.max(1));
        Arc::new(Feed {
            api,
            sender,
            headers_wanted: AtomicUsize::new(0),
            logs_wanted: AtomicUsize::new(0),
            state: AsyncMutex::new(FollowerState::default()),
            texts: Mutex::default(),
        })
    }

    fn limits(&self) -> &RpcLimits {
        self.api.limits()
    }

    fn counter(&self, wants: Wants) -> &AtomicUsize {
        match wants {
            Wants::Headers => &self.headers_wanted,
            Wants::Logs => &self.logs_wanted,
        }
    }

    fn listeners(&self) -> usize {
        self.headers_wanted.load(Ordering::Acquire) + self.logs_wanted.load(Ordering::Acquire)
    }

    /// Joins: every change of the head after this returns is delivered.
    pub(crate) async fn subscribe(self: &Arc<Self>, wants: Wants) -> Result<FeedSubscriber, RpcError> {
        let mut state = self.state.lock().await;
        if state.place.is_none() {
            let snapshot = self.api.reader().snapshot().await?;
            let head = snapshot.head();
            state.place = Some(Place::at(head));
        }
        self.counter(wants).fetch_add(1, Ordering::AcqRel);
        let guard = Guard { feed: Arc::clone(self), wants };
        Ok(FeedSubscriber { receiver: self.sender.subscribe(), _guard: guard })
    }

    /// The text of one log of an event's block.
    pub(crate) async fn log_text(
        &self,
        event: &HeadEvent,
        view: &Arc<BlockView>,
        place: &LogPlace,
    ) -> Result<Bytes, RpcError> {
        let key = (event.block.id, event.removed, place.index());
        if let Some(text) = self.texts().by_log.get(&key) {
            return Ok(text.clone());
        }
        let (view, place, removed) = (Arc::clone(view), place.clone(), event.removed);
        let text = work(place.text_bytes(), move || Ok(Bytes::from(view.log_text(&place, removed)?))).await?;
        self.texts().put(key, text.clone());
        Ok(text)
    }

    fn texts(&self) -> MutexGuard<'_, Texts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the head until cancelled. `hint` wakes it earlier than the poll interval.
    pub(crate) async fn run(
        self: Arc<Self>,
        mut hint: Option<watch::Receiver<u64>>,
        cancel: CancellationToken,
    ) {
        let pause = Duration::from_millis(self.limits().head_poll_ms.max(1));
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = woken(&mut hint) => {}
            }
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.catch_up() => {}
            }
        }
    }

    /// Goes to the store's head as far as it is now.
    async fn catch_up(&self) {
        loop {
            // The lock is given back between steps, so that a new subscriber waits for one step at most.
            let mut state = self.state.lock().await;
            if self.listeners() == 0 {
                *state = FollowerState::default();
                return;
            }
            match self.step(&mut state).await {
                Ok(Step::More) => {}
                Ok(Step::Done) => return,
                Err(error) if error.code == crate::error::TIMEOUT => {
                    tracing::warn!(%error, "the head feed will try again");
                    return;
                }
                Err(error) => {
                    tracing::error!(%error, "the head feed ends its subscriptions");
                    *state = FollowerState::default();
                    // No receiver left is no failure.
                    let _ = self.sender.send(FeedMessage::Broken(error.message.into()));
                    return;
                }
            }
        }
    }

    /// One bounded piece of the way under one snapshot.
    async fn step(&self, state: &mut FollowerState) -> Result<Step, RpcError> {
        let snapshot = self.api.reader().snapshot().await?;
        let head = snapshot.head().clone();
        // Listeners came while the place was lost: they begin here.
        let mut place = state.place.unwrap_or_else(|| Place::at(&head));
        place.demand_before(&head)?;
        if !place.is_on_fork_of(&head) {
            let more = self.unwind(state, &mut place, &*snapshot).await?;
            state.place = Some(place);
            if more {
                return Ok(Step::More);
            }
        }
        place.demand_canonical(&*snapshot).await?;
        let more = self.climb(state, &mut place, &*snapshot).await?;
        state.place = Some(place);
        Ok(if more { Step::More } else { Step::Done })
    }

    /// Replays the reorg log. Returns whether there is more of it.
    async fn unwind(
        &self,
        state: &mut FollowerState,
        place: &mut Place,
        snapshot: &dyn RawSnapshot,
    ) -> Result<bool, RpcError> {
        let wanted = self.logs_wanted.load(Ordering::Acquire) > 0;
        let entries = place.reorgs(snapshot).await?;
        for _ in 0..STEP_ORPHANS {
            let mut below = *place;
            let Some((reorg_id, orphan)) = below.step_down(&entries)? else {
                *place = below;
                return Ok(!place.is_on_fork_of(snapshot.head()));
            };
            let payload = if wanted {
                let Some(block) = snapshot.orphan(reorg_id, orphan.id, LOG_PARTS).await? else {
                    return Err(RpcError::server(format!(
                        "block {orphan} was taken away by reorg {reorg_id} and pruned before its logs could be revoked; subscribe again"
                    )));
                };
                Some(block)
            } else {
                None
            };
            self.emit(state, true, orphan, None, payload).await?;
            *place = below;
            state.place = Some(below);
        }
        Ok(true)
    }

    /// Walks up to the snapshot's tip. Returns whether there is more of the way.
    async fn climb(
        &self,
        state: &mut FollowerState,
        place: &mut Place,
        snapshot: &dyn RawSnapshot,
    ) -> Result<bool, RpcError> {
        let head = snapshot.head();
        let way = place.above(head);
        let Some(last) = way.last() else { return Ok(false) };
        let wanted = self.logs_wanted.load(Ordering::Acquire) > 0;
        let parts = if wanted { LOG_PARTS.union(HEADER_PARTS) } else { HEADER_PARTS };
        let schedule = self.api.schedule(&head.info);
        let read = snapshot.blocks(way, parts, STEP_BYTES).await?;
        for (block, height) in read.blocks.into_iter().zip(way.start().get()..) {
            let facts = block.facts;
            if facts.height != Height(height) || place.tip.is_some_and(|tip| facts.parent_id != tip.id) {
                return Err(RpcError::server(format!(
                    "block {} does not follow what was announced; subscribe again",
                    facts.block_ref()
                )));
            }
            let (header_block, schedule) =
                (StoredBlock { receipts: Bytes::new(), ..block.clone() }, schedule.clone());
            let header = work(size_bytes(&header_block), move || {
                let view = BlockView::decode(header_block, schedule.as_deref())?;
                Ok(Bytes::from(serde_json::to_vec(&view.header_json()?)?))
            })
            .await?;
            self.emit(state, false, facts.block_ref(), Some(header), wanted.then_some(block)).await?;
            place.tip = Some(facts.block_ref());
            state.place = Some(*place);
        }
        Ok(place.tip.is_none_or(|reached| reached.height < last))
    }

    async fn emit(
        &self,
        state: &mut FollowerState,
        removed: bool,
        block: BlockRef,
        header: Option<Bytes>,
        payload: Option<StoredBlock>,
    ) -> Result<(), RpcError> {
        let mut bytes = 0;
        let payload = match payload {
            Some(stored) => {
                bytes = size_bytes(&stored);
                Payload::Here(
                    Arc::new(work(bytes, move || Ok(BlockView::decode(stored, None)?)).await?),
                    bytes,
                )
            }
            None => Payload::NotWanted,
        };
        let event = Arc::new(HeadEvent { removed, block, header, payload: Mutex::new(payload) });
        if bytes > 0 {
            state.held.push_back((Arc::clone(&event), bytes));
            state.held_bytes += bytes;
            // The newest is kept whatever its size: a single large block must not end subscriptions by itself.
            while state.held_bytes > self.limits().feed_payload_bytes && state.held.len() > 1 {
                if let Some((old, old_bytes)) = state.held.pop_front() {
                    old.drop_payload();
                    state.held_bytes -= old_bytes;
                }
            }
        }
        let room = self.limits().feed_queue_blocks.max(1);
        state.patience.wait(|| self.sender.len() < room).await;
        // No receiver left is no failure.
        let _ = self.sender.send(FeedMessage::Head(event));
        Ok(())
    }
}

/// What `newHeads` needs of a block.
const HEADER_PARTS: Parts = Parts::HEADER.union(Parts::EXTRAS);

async fn woken(hint: &mut Option<watch::Receiver<u64>>) {
    match hint {
        Some(receiver) => {
            if receiver.changed().await.is_err() {
                // Nobody will wake us any more: the poll interval goes on.
                *hint = None;
            }
        }
        None => std::future::pending().await,
    }
}
