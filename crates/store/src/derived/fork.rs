//! What the derived side knows of the raw store's reorgs.

use cairn_core::{BlockId, BlockRef, Height};

use crate::ReorgMark;

/// A reorg that has been begun: its entry's id, digest, and first orphaned height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkMark {
    /// The entry's id.
    pub id: u64,
    /// The first height that it took away.
    pub first_orphan: Height,
}

/// Where the derived side stands in the raw store's reorg log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkState {
    /// The raw store that it follows.
    pub raw_uuid: [u8; 16],
    /// The newest entry that was applied whole, or the one at which a new app store began.
    pub applied: ReorgMark,
    /// The newest entry that was begun; equal to `applied` where none is under way.
    pub begun: ReorgMark,
}

impl ForkState {
    /// Whether an entry is being applied: state above its common block may be half restored.
    pub fn is_settled(&self) -> bool {
        self.applied.id == self.begun.id
    }
}

/// What a worker saw of the reorg log in the raw snapshot that it read its chunk from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadMark {
    /// The newest entry's id in that snapshot: R.
    pub reorg_id: u64,
    /// Entries with an id up to this one are not in `newer`, since the app store had begun them when this was read.
    pub known_to: u64,
    /// The entries in `(known_to, reorg_id]`, ascending, without a gap.
    pub newer: Vec<ForkMark>,
}

/// A service's checkpoint: everything from its start to here is there, on one fork (law 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedCheckpoint {
    /// The service.
    pub service: String,
    /// The height after the last complete one (`last_height` in the table is the one before).
    pub next: Height,
    /// The last complete block's id; `None` before the first one.
    pub last_id: Option<BlockId>,
    /// When it moved last, by the store's clock, in milliseconds since 1970.
    pub updated_at_ms: u64,
    /// An operator paused the service: nothing of it is claimed.
    pub paused: bool,
    /// How often rows that its state was folded from were replaced: [`super::Correction`]. State that was read at another count is not the state now.
    pub corrections: u64,
}

/// The app snapshot that a folder's chunk was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldedAt {
    /// The newest entry of the reorg log that was applied in it.
    pub applied: u64,
    /// [`DerivedCheckpoint::corrections`] of the folder in it.
    pub corrections: u64,
}

impl FoldedAt {
    /// Before any correction.
    pub fn applied(applied: u64) -> FoldedAt {
        FoldedAt { applied, corrections: 0 }
    }
}

impl DerivedCheckpoint {
    /// The last complete height.
    pub fn last_height(&self) -> Option<Height> {
        self.next.prev()
    }

    /// The last complete block.
    pub fn last(&self) -> Option<BlockRef> {
        Some(BlockRef { height: self.last_height()?, id: self.last_id? })
    }
}
