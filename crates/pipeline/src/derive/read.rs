//! Reading a chunk of raw blocks together with what the reorg log said at that moment.
//!
//! Order matters: first what the app store has begun to apply, then one raw snapshot, whose head row is read first. The snapshot is
//! closed before anything is computed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_core::{BlockId, BlockRef, Height, HeightRange, Parts, StoredBlock};
use cairn_store::derived::{DerivedStore, ForkMark, ForkState, ReadMark};
use cairn_store::{BlocksRead, HeadRow, RawReader, RawSnapshot, StoreError};
use tokio::time::Instant;

use super::context::Context;
use super::error::DeriveError;
use super::recent::RecentBlocks;

/// The most entries of the reorg log that a chunk may have to be compared with; more means that the applier is far behind.
const MAX_NEWER_ENTRIES: usize = 256;

/// Raw blocks of a chunk.
#[derive(Debug)]
pub(super) struct RawChunk {
    /// The heights that were read; may end before those asked for.
    pub heights: HeightRange,
    /// The stored blocks of it, in order. A height without one was skipped by the chain.
    pub blocks: Vec<StoredBlock>,
    /// The reorg log as it was.
    pub read: ReadMark,
    /// The height after the finalised block as far as it is stored: nothing below is ever undone. 0 while the app store has reorgs to apply that
    /// the raw store has had: finality may have come above them since, and what they undo is still wanted.
    pub finalized_exclusive: Height,
    /// The finalised block, where it is stored.
    pub finalized: Option<BlockRef>,
    /// How far the raw store had come.
    pub tip: Height,
    /// The block below the first height; the first block's parent, where there is one.
    pub parent_id: Option<BlockId>,
}

impl RawChunk {
    /// The last block's id.
    pub fn last_id(&self) -> Option<BlockId> {
        self.blocks.last().map(|block| block.facts.id)
    }

    /// Leaves out what lies at or above `end`.
    pub fn cut(&mut self, end: Height) {
        self.heights = HeightRange::new(self.heights.start(), end.min(self.heights.end()));
        self.blocks.retain(|block| block.facts.height < end);
    }
}

/// The stores at one moment: what is read of the raw store goes with what the reorg log said.
pub(super) struct Opened {
    began: Instant,
    forks: ForkState,
    raw: Arc<dyn RawSnapshot>,
    read: ReadMark,
    finalized: Option<BlockRef>,
}

impl Opened {
    async fn open(raw: &Arc<dyn RawReader>, app: &Arc<dyn DerivedStore>) -> Result<Opened, DeriveError> {
        let began = Instant::now();
        let forks =
            app.forks().await?.ok_or_else(|| not_yet("derived work before the raw store was adopted"))?;
        let raw = raw.snapshot().await?;
        let head = raw.head();
        if head.info.uuid != forks.raw_uuid {
            return Err(StoreError::OtherRaw { what: "its uuid is another".into() }.into());
        }
        let read = read_mark(&*raw, forks.begun.id).await?;
        let finalized = match head.stored_finalized() {
            Some(height) => raw.linked_ref(height).await?.map(|linked| linked.block),
            None => None,
        };
        Ok(Opened { began, forks, raw, read, finalized })
    }
}

/// Workers that come to the tip at the same time read it together: a new block wakes all of them.
#[derive(Default)]
pub(super) struct SharedTip(tokio::sync::Mutex<Weak<Opened>>);

/// How old it may be: a backend ends a snapshot after two seconds.
const SHARED_AGE: Duration = Duration::from_millis(500);

impl SharedTip {
    /// What another worker has open just now and holds `heights`, or the stores as they are now.
    async fn open(
        &self,
        raw: &Arc<dyn RawReader>,
        app: &Arc<dyn DerivedStore>,
        heights: HeightRange,
    ) -> Result<Arc<Opened>, DeriveError> {
        if heights.len() > 1 {
            return Opened::open(raw, app).await.map(Arc::new);
        }
        let mut shared = self.0.lock().await;
        let is_usable = |opened: &Arc<Opened>| {
            opened.began.elapsed() < SHARED_AGE && opened.raw.head().range().contains(heights.start())
        };
        if let Some(opened) = shared.upgrade().filter(is_usable) {
            return Ok(opened);
        }
        let opened = Arc::new(Opened::open(raw, app).await?);
        *shared = Arc::downgrade(&opened);
        Ok(opened)
    }
}

/// Reads up to `max_bytes` of `heights`, one block more at most, and as much as the snapshot's time allows; blocks that are among `recent` ones are taken from there.
pub(super) async fn read_raw(
    context: &Context,
    heights: HeightRange,
    parts: Parts,
    max_bytes: u64,
    recent: Option<&RecentBlocks>,
) -> Result<RawChunk, DeriveError> {
    let opened = context.tip.open(&context.raw, &context.app, heights).await?;
    let Opened { forks, raw: snapshot, read, finalized, .. } = &*opened;
    let head = snapshot.head();
    let there = heights.intersect(head.range());
    if there.is_empty() || there.start() != heights.start() {
        return Err(not_yet(format!("raw heights {heights}")));
    }
    let finalized_exclusive = undone_never(head, forks);
    let tip = head.tip.map_or(Height::ZERO, |tip| tip.height);
    // Where time ends this read, the snapshot answers nothing more.
    let BlocksRead { blocks, next } = match recent {
        Some(recent) => recent.blocks(&**snapshot, there, parts, max_bytes).await?,
        None => snapshot.blocks(there, parts, max_bytes).await?,
    };
    let heights = HeightRange::new(there.start(), next);
    let parent_id = match blocks.first() {
        Some(first) => Some(first.facts.parent_id),
        None => block_below(&**snapshot, heights.start()).await?,
    };
    let (read, finalized) = (read.clone(), *finalized);
    Ok(RawChunk { heights, blocks, read, finalized_exclusive, finalized, tip, parent_id })
}

/// Below this height nothing on the app store's side is ever undone.
pub(super) fn undone_never(head: &HeadRow, forks: &ForkState) -> Height {
    if forks.is_settled() && forks.applied.id == head.newest_reorg.id {
        head.stored_finalized().map_or(Height::ZERO, Height::next)
    } else {
        Height::ZERO
    }
}

/// The nearest block below `height`: chains that skip heights have runs of them without one.
async fn block_below(snapshot: &dyn RawSnapshot, height: Height) -> Result<Option<BlockId>, DeriveError> {
    let below = HeightRange::new(snapshot.head().range().start(), height);
    for height in below.iter().rev() {
        if let Some(linked) = snapshot.linked_ref(height).await? {
            return Ok(Some(linked.block.id));
        }
    }
    Ok(None)
}

async fn read_mark(snapshot: &dyn RawSnapshot, known_to: u64) -> Result<ReadMark, DeriveError> {
    let reorg_id = snapshot.head().newest_reorg.id;
    let mut newer = Vec::new();
    if reorg_id > known_to {
        for entry in snapshot.reorgs(known_to, MAX_NEWER_ENTRIES).await? {
            newer.push(ForkMark { id: entry.id, first_orphan: entry.first_orphan() });
        }
        if newer.last().map(|mark| mark.id) != Some(reorg_id) {
            return Err(not_yet("derived work until earlier reorgs are applied"));
        }
    }
    Ok(ReadMark { reorg_id, known_to, newer })
}

pub(super) fn not_yet(what: impl Into<String>) -> DeriveError {
    StoreError::NotYet { what: what.into() }.into()
}
