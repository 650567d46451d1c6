//! The raw store and its ingester.
//!
//! The **head row** says what exists: the tip, the newest reorg id (here: the length of the log) and whether a purge is
//! pending. Every read is bounded by the head of its snapshot. Three verbs write, each one transaction:
//!
//! - **append** puts the next block on the tip; it refuses while a purge is pending;
//! - **roll back** appends an entry to the reorg log and lowers the head to the last common block: from then on no read
//!   sees what lay above, though its rows are still there;
//! - **purge** moves one height's rows above the common block away; when none is left the purge is no longer pending.
//!
//! The ingester keeps nothing between two verbs: what it does next follows from the head row and from its node's chain.
//! So a crash of the ingester is no step of the model; it is the ingester not being scheduled.
//!
//! The node's chain is a *script* of forks, each taken up at any moment: A, then B, then A again, with the same block
//! ids as the first time.

use crate::rules::{Off, Rule};
use crate::words::{Chain, Height, Id, MAX_TOP, NONE, block_at_or_below, common_block};

/// The rows of a height that has this block and no other.
fn alone(id: Id) -> u8 {
    if id == NONE { 0 } else { 1 << id }
}

/// The most entries that a reorg log of the model has.
pub const MAX_ENTRIES: usize = 3;

/// One entry of the reorg log. Its id is its place in the log, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Height of the last common block.
    pub common: Height,
    /// Its id.
    pub common_id: Id,
    /// Height of the lowest orphan; above `common + 1` where the abandoned fork skipped heights.
    pub first_orphan: Height,
}

/// The raw store, and how far the node's script has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Raw {
    /// Which fork of the script the node is on.
    pub phase: u8,
    /// The tip's height.
    pub tip: Height,
    /// The reorg log.
    pub log: [Entry; MAX_ENTRIES],
    /// How many entries the log has: the head row's newest reorg id.
    pub reorg: u8,
    /// The head row's pending purge.
    pub purge: bool,
    /// The rows by height: a set of ids (bit 1 << id), so that a mixture of forks shows.
    pub rows: [u8; MAX_TOP + 1],
    /// The blocks were exchanged for another fork's without a log entry: a fault, never done by the ingester.
    pub swapped: bool,
}

impl Raw {
    /// A raw store with only the genesis block.
    pub fn new() -> Raw {
        Raw {
            phase: 0,
            tip: 0,
            log: Default::default(),
            reorg: 0,
            purge: false,
            rows: [0; MAX_TOP + 1],
            swapped: false,
        }
    }

    /// The entry with this id, from 1.
    pub fn entry(&self, id: u8) -> Entry {
        self.log[id as usize - 1]
    }

    /// The chain that canonical reads see up to the tip.
    pub fn chain<'a>(&self, script: &'a [Chain]) -> &'a Chain {
        &script[self.phase as usize]
    }

    /// Appends the node's next block.
    pub fn append(&mut self, script: &[Chain], top: Height, off: Off) -> bool {
        if self.purge && off.on(Rule::NoAppendDuringPurge) {
            return false;
        }
        let Some(next) = (self.tip + 1..=top).find(|h| script[self.phase as usize][*h as usize] != NONE)
        else {
            return false;
        };
        self.tip = next;
        self.rows[next as usize] |= 1 << script[self.phase as usize][next as usize];
        true
    }

    /// The node goes over to the next fork of the script. Where the tip isn't on it, the store rolls back to the last common block.
    pub fn switch(&mut self, script: &[Chain], purge_at_once: bool) -> bool {
        let next = self.phase as usize + 1;
        if next >= script.len() || self.purge {
            return false;
        }
        let (common, common_id) = common_block(&script[next - 1], &script[next], self.tip);
        if common < self.tip {
            let first_orphan =
                (common + 1..=self.tip).find(|h| script[next - 1][*h as usize] != NONE).unwrap_or(self.tip);
            self.log[self.reorg as usize] = Entry { common, common_id, first_orphan };
            self.reorg += 1;
            self.tip = common;
            self.purge = true;
            while purge_at_once && self.purge {
                self.purge_step();
            }
        }
        self.phase = next as u8;
        true
    }

    /// Moves the rows of the greatest height above the common block away.
    pub fn purge_step(&mut self) -> bool {
        if !self.purge {
            return false;
        }
        let above = self.entry(self.reorg).common as usize + 1;
        if let Some(height) = (above..=MAX_TOP).rev().find(|h| self.rows[*h] != 0) {
            self.rows[height] = 0;
        }
        self.purge = self.rows[above..].iter().any(|rows| *rows != 0);
        true
    }

    /// The fault of the configuration `swapped`: the store now holds the next fork's blocks, and the log says nothing.
    pub fn swap_silently(&mut self, script: &[Chain]) -> bool {
        if self.swapped || self.phase as usize + 1 >= script.len() {
            return false;
        }
        self.phase += 1;
        self.swapped = true;
        let chain = &script[self.phase as usize];
        for (rows, id) in self.rows.iter_mut().zip(chain).take(self.tip as usize + 1).skip(1) {
            *rows = alone(*id);
        }
        true
    }

    /// Whether each height up to the tip has exactly the rows of the node's chain.
    pub fn is_whole(&self, script: &[Chain]) -> bool {
        (1..=self.tip as usize).all(|height| self.rows[height] == alone(self.chain(script)[height]))
    }

    /// What a repeatable-read snapshot gives for `[from, to)` cut at the tip: the end, the ids, and the block under `from`.
    /// `None` where the tip is below `from`.
    pub fn read(&self, script: &[Chain], from: Height, to: Height) -> Option<(Height, [Id; 2], Id)> {
        let to = to.min(self.tip + 1);
        if to <= from {
            return None;
        }
        let chain = self.chain(script);
        let mut ids = [NONE; 2];
        for height in from..to {
            ids[(height - from) as usize] = chain[height as usize];
        }
        Some((to, ids, block_at_or_below(chain, from - 1).1))
    }
}

impl Default for Raw {
    fn default() -> Self {
        Raw::new()
    }
}
