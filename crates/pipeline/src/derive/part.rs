//! A part of a folder's state: the groups ([`Folder::group`]) that a replay keeps while it has no memory for all of them.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cairn_store::derived::{Key, Value};

use super::processor::Folder;

/// A slice is not halved more often.
const MAX_DEPTH: u32 = 48;

/// A part of all groups: those whose hash ends in these bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    depth: u32,
    bits: u64,
}

impl Slice {
    /// Everything.
    pub const ALL: Slice = Slice { depth: 0, bits: 0 };

    pub(super) fn holds(self, group: &[Value]) -> bool {
        if self == Slice::ALL {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        group.hash(&mut hasher);
        hasher.finish() & ((1 << self.depth) - 1) == self.bits
    }

    /// The half that `turn` says, bit by bit, and the other one; `None`: it is as small as can be.
    pub(super) fn halves(self, turn: u64) -> Option<(Slice, Slice)> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        let side = (turn >> self.depth) & 1;
        let half = |side: u64| Slice { depth: self.depth + 1, bits: self.bits | (side << self.depth) };
        Some((half(side), half(1 - side)))
    }
}

/// A slice without the groups that are too large by themselves.
#[derive(Clone)]
pub struct Part {
    folder: Arc<dyn Folder>,
    pub(super) slice: Slice,
    pub(super) too_large: Arc<BTreeSet<Vec<Value>>>,
}

impl Part {
    pub(super) fn new(folder: Arc<dyn Folder>, slice: Slice) -> Part {
        Part { folder, slice, too_large: Arc::default() }
    }

    /// Whether a row by this key is of it.
    pub fn holds(&self, table: &'static str, key: &Key) -> bool {
        let group = self.folder.group(table, key);
        self.slice.holds(group) && (self.too_large.is_empty() || !self.too_large.contains(group))
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Part { folder, slice, too_large } = self;
        f.debug_struct("Part")
            .field("service", &folder.service().name)
            .field("slice", slice)
            .field("too_large", too_large)
            .finish()
    }
}
