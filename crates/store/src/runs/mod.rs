//! Index runs: immutable, sorted pieces of an index, as pure data. No I/O, no clock, no database.
//!
//! Hashes arrive in random order. Putting each into one big tree costs a page write per entry; so every batch of
//! blocks makes one small sorted **run** per [`RunKind`] instead, and runs that stand side by side are merged by tens
//! into larger ones ([`plan`]). Every write is sequential, and after years an index is still a few large runs.
//!
//! A run covers a range of heights without a gap and holds sorted entries: a key, and the positions where it stands. It is cut into
//! **pages** of at most [`PAGE_MAX_BYTES`], each a self-contained, checksummed piece ([`page`]), addressed by its first entry
//! ([`Place`]). A term that stands in every block fills many pages; since the position is part of the address, a reader
//! of one range of heights seeks straight to the right page ([`find`]).
//!
//! Runs of one kind never overlap in heights: a backend cuts batches so that no height is in two runs. Where a reorg takes heights away, a run
//! that reaches into them is cut by lowering the end of its heights alone: whoever reads it passes over what lies above, and the
//! next merge leaves it out. A backend gives
//! access to one run's pages by [`PageSource`] and keeps the list of runs itself.

pub mod build;
pub mod cursor;
pub mod find;
pub mod merge;
pub mod page;
pub mod plan;

use bytes::Bytes;
use cairn_core::{Height, IndexKey};

use crate::{Result, StoreError};

pub use build::{BuiltRun, PageWriter, RunBuilder};
pub use cursor::{PageSource, RunCursor};
pub use find::{Lookup, candidates};
pub use merge::{MergeStep, merge_step};
pub use page::{Page, PageReader};
pub use plan::{MergePlan, RunInfo, next_merge};

/// Which index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RunKind {
    /// Block id → height.
    BlockId = 1,
    /// Transaction id → height and index.
    TxId = 2,
    /// Log term → height.
    LogTerm = 3,
}

/// Where a key stands: the height for block ids and log terms; `height << 20 | tx index` for transactions.
pub type Position = u64;

/// How many low bits of a transaction's position are its index in the block.
pub const TX_INDEX_BITS: u32 = 20;

/// How many transactions of one block the index can tell apart: 1,048,576.
pub const MAX_TXS_PER_BLOCK: u32 = 1 << TX_INDEX_BITS;

/// The highest height that a position can hold, for any kind.
pub const MAX_HEIGHT: u64 = (1 << (63 - TX_INDEX_BITS)) - 1;

/// No page is larger, in bytes. With its row it fills one database page of 8 KiB.
pub const PAGE_MAX_BYTES: usize = 8_100;

impl RunKind {
    /// Every kind.
    pub const ALL: [RunKind; 3] = [RunKind::BlockId, RunKind::TxId, RunKind::LogTerm];

    /// The stored byte, back.
    pub fn from_byte(byte: u8) -> Option<RunKind> {
        RunKind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// How many low bits of a position are not the height.
    const fn low_bits(self) -> u32 {
        match self {
            RunKind::TxId => TX_INDEX_BITS,
            RunKind::BlockId | RunKind::LogTerm => 0,
        }
    }

    /// The position of `height` and, for transactions, the index in the block.
    pub fn position(self, height: Height, tx_index: u32) -> Result<Position> {
        if height.get() > MAX_HEIGHT {
            return Err(StoreError::Invalid(format!(
                "height {height} is above {MAX_HEIGHT}, the highest that can be indexed"
            )));
        }
        if self != RunKind::TxId {
            return Ok(height.get());
        }
        if tx_index >= MAX_TXS_PER_BLOCK {
            return Err(StoreError::Invalid(format!(
                "height {height}: transaction index {tx_index} is above the limit of {MAX_TXS_PER_BLOCK} transactions a block"
            )));
        }
        Ok(height.get() << TX_INDEX_BITS | u64::from(tx_index))
    }

    /// The lowest position at `height`: what a range of positions begins or ends with. Heights above
    /// [`MAX_HEIGHT`] give a position above every stored one.
    pub fn first_position(self, height: Height) -> Position {
        height.get().min(MAX_HEIGHT + 1) << self.low_bits()
    }

    /// The height of a position.
    pub fn height_of(self, position: Position) -> Height {
        Height(position >> self.low_bits())
    }

    /// The transaction index of a position; 0 for the other kinds.
    pub fn tx_index_of(self, position: Position) -> u32 {
        (position & ((1 << self.low_bits()) - 1)) as u32
    }
}

/// One entry of a run. Runs and pages are sorted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// What is looked up.
    pub key: IndexKey,
    /// Where it stands.
    pub position: Position,
}

/// A page's address within its run: its first entry as 16 bytes, key then position, big-endian, so that the order of bytes is
/// the order of numbers.
pub type Place = [u8; 16];

impl Entry {
    /// As an address.
    pub fn place(self) -> Place {
        ((u128::from(self.key) << 64) | u128::from(self.position)).to_be_bytes()
    }

    /// An address, back.
    pub fn from_place(place: Place) -> Entry {
        let both = u128::from_be_bytes(place);
        Entry { key: (both >> 64) as u64, position: both as u64 }
    }
}

/// A page as a database keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPage {
    /// Its address.
    pub place: Place,
    /// Its bytes.
    pub data: Bytes,
}

#[cfg(test)]
mod tests;

fn corrupt(what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { place: "an index run".into(), what: what.into() }
}

#[cfg(test)]
mod position_tests {
    use super::*;

    #[test]
    fn positions_keep_height_and_index() {
        let position = RunKind::TxId.position(Height(7), 5).expect("in range");
        assert_eq!(position, 7 << 20 | 5);
        assert_eq!((RunKind::TxId.height_of(position), RunKind::TxId.tx_index_of(position)), (Height(7), 5));
        assert_eq!(RunKind::LogTerm.position(Height(7), 5).expect("in range"), 7);
        assert_eq!(RunKind::BlockId.tx_index_of(7), 0);
        assert!(RunKind::TxId.position(Height(7), MAX_TXS_PER_BLOCK).is_err());
        assert!(RunKind::LogTerm.position(Height(MAX_HEIGHT + 1), 0).is_err());
        assert!(
            RunKind::TxId.first_position(Height(u64::MAX))
                > RunKind::TxId.position(Height(MAX_HEIGHT), 9).expect("ok")
        );
    }

    #[test]
    fn g07_address_bytes_sort_like_numbers() {
        let points = [0, 9, 10, 99, 100, 255, 256, 2519, 65_535, 65_536, 1 << 32, u64::MAX];
        let entries: Vec<Entry> = points
            .iter()
            .flat_map(|key| points.iter().map(|position| Entry { key: *key, position: *position }))
            .collect();
        assert!(entries.is_sorted());
        assert!(entries.iter().map(|entry| entry.place()).is_sorted());
        assert!(entries.iter().all(|entry| Entry::from_place(entry.place()) == *entry));
    }
}
