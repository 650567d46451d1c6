//! Repair: what is stored is held against itself and mended. Behind `cairn repair`, and at intervals in a running process.
//!
//! * [`raw`]: lookups against rows both ways, blocks whose counts disagree, blocks against their own hashes, index entries. What is gone or wrong is
//!   fetched again from the node.
//! * [`evm_gaps`]: gaps of the EVM chain on Flow, which only a node can close: the Flow blocks in which they are are asked for again.
//! * [`derived`]: rows that mappers wrote against what they make of the blocks now. What differs is made again by the workers.
//! * [`state`]: rows that folders keep, against what their events make. What differs is folded anew where that is asked for.
//! * [`nightly`]: all of them, in a running process, on a part of the archive at a time.
//!
//! Each step is a transaction of its own, beside everything else that goes on. A repair that is killed has mended what it had come to; the next
//! one goes on.

pub mod derived;
pub mod evm_gaps;
pub mod fetch;
mod lacks;
pub mod lines;
pub mod nightly;
pub mod raw;
pub mod state;

use std::fmt::{self, Write as _};

use cairn_core::HeightRange;

use self::lines::Lines;

/// Findings that a report names, at most; all are counted.
pub const MAX_NAMED: usize = 200;

/// What a repair looked at, found and mended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The heights whose lookups and counts were looked at.
    pub heights: u64,
    /// The blocks that were held against their own hashes and index entries.
    pub blocks: u64,
    /// The derived rows that were made again and compared.
    pub rows: u64,
    /// Lookups that were missing or said something else than their rows: written.
    pub lookups_written: u64,
    /// Lookups whose rows are gone: removed.
    pub lookups_removed: u64,
    /// Blocks that are missing or wrong.
    pub blocks_damaged: u64,
    /// Of them, those that were fetched again and written.
    pub blocks_mended: u64,
    /// Heights whose index entries are wrong.
    pub index_damaged: u64,
    /// Of them, those that were made anew.
    pub index_mended: u64,
    /// Derived rows that are missing, too many, or different.
    pub rows_damaged: u64,
    /// Of them, those whose heights the workers make again.
    pub rows_requested: u64,
    /// Rows of state that were held against their events.
    pub states: u64,
    /// Of them, those that are not what their events make.
    pub states_damaged: u64,
    /// Of those, the ones whose folders begin anew.
    pub states_requested: u64,
    /// Open gaps of the EVM chain on Flow whose blocks were asked for again.
    pub gaps: u64,
    /// Of them, those whose EVM blocks came: the rows are made again.
    pub gaps_mended: u64,
    /// Of them, those for which the nodes gave the same again.
    pub gaps_same: u64,
    /// How many are open still, as far as they were looked at; `None`: it is not known now.
    pub gaps_open: Option<u64>,
    /// What was found, one line each, the first [`MAX_NAMED`].
    pub named: Vec<String>,
    /// What could not be mended, and why.
    pub unmended: Lines,
    /// What is there and could not be compared, and why: nothing is known of it. Heights that nobody has derived yet are a note: there is nothing to compare.
    pub not_compared: Lines,
    /// What an operator has to know beside.
    pub notes: Lines,
}

/// How a repair ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was looked at and is right.
    Clean,
    /// Something was wrong and is mended, or asked for.
    Mended,
    /// What was found is mended, but not everything could be looked at.
    Incomplete,
    /// Something is wrong and could not be mended.
    Unmended,
}

impl Outcome {
    /// The word under which metrics count it.
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::Clean => "clean",
            Outcome::Mended => "mended",
            Outcome::Incomplete => "incomplete",
            Outcome::Unmended => "unmended",
        }
    }
}

/// Nothing was found that is still wrong, but so many parts could not be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incomplete(pub u64);

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the repair is incomplete: {} parts were not compared, so nothing is known of them. The lines `not compared` say which, and what was in the way: see to that and run cairn repair again",
            self.0
        )
    }
}

impl std::error::Error for Incomplete {}

impl Report {
    /// Names something that was found.
    pub fn name(&mut self, line: String) {
        if self.named.len() < MAX_NAMED {
            self.named.push(line);
        }
    }

    /// How it ended.
    pub fn outcome(&self) -> Outcome {
        match (self.unmended.is_empty(), self.not_compared.is_empty(), self.found()) {
            (false, ..) => Outcome::Unmended,
            (_, false, _) => Outcome::Incomplete,
            (_, _, 0) => Outcome::Clean,
            _ => Outcome::Mended,
        }
    }

    /// How much was found, of everything.
    pub fn found(&self) -> u64 {
        self.lookups_written
            + self.lookups_removed
            + self.blocks_damaged
            + self.index_damaged
            + self.rows_damaged
            + self.states_damaged
            + self.gaps
    }

    /// Adds another report.
    pub fn add(&mut self, other: Report) {
        self.heights += other.heights;
        self.blocks += other.blocks;
        self.rows += other.rows;
        self.lookups_written += other.lookups_written;
        self.lookups_removed += other.lookups_removed;
        self.blocks_damaged += other.blocks_damaged;
        self.blocks_mended += other.blocks_mended;
        self.index_damaged += other.index_damaged;
        self.index_mended += other.index_mended;
        self.rows_damaged += other.rows_damaged;
        self.rows_requested += other.rows_requested;
        self.states += other.states;
        self.states_damaged += other.states_damaged;
        self.states_requested += other.states_requested;
        self.gaps += other.gaps;
        self.gaps_mended += other.gaps_mended;
        self.gaps_same += other.gaps_same;
        self.gaps_open = other.gaps_open.or(self.gaps_open);
        for line in other.named {
            self.name(line);
        }
        self.unmended.add(other.unmended);
        self.not_compared.add(other.not_compared);
        self.notes.add(other.notes);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        for line in &self.named {
            writeln!(out, "{line}")?;
        }
        if self.named.len() == MAX_NAMED {
            writeln!(out, "… the first {MAX_NAMED} are named")?;
        }
        self.unmended.write(&mut out, "not mended")?;
        self.not_compared.write(&mut out, "not compared")?;
        self.notes.write(&mut out, "note")?;
        writeln!(
            out,
            "looked at   {} heights, {} blocks in full, {} derived rows",
            self.heights, self.blocks, self.rows
        )?;
        writeln!(out, "lookups     {} written, {} removed", self.lookups_written, self.lookups_removed)?;
        writeln!(out, "blocks      {} damaged, {} fetched again", self.blocks_damaged, self.blocks_mended)?;
        writeln!(out, "index       {} heights damaged, {} made anew", self.index_damaged, self.index_mended)?;
        writeln!(
            out,
            "derived     {} rows differ, {} are made again by their workers",
            self.rows_damaged, self.rows_requested
        )?;
        writeln!(
            out,
            "state       {} rows compared, {} not what their events make, {} folded anew",
            self.states, self.states_damaged, self.states_requested
        )?;
        if self.gaps > 0 {
            writeln!(
                out,
                "EVM gaps    {} asked about, {} closed, {} with the same answer as before",
                self.gaps, self.gaps_mended, self.gaps_same
            )?;
        }
        f.write_str(&out)
    }
}

/// Heights (ascending) as ranges; what lies closer together than `join` is one.
pub fn ranges_of(heights: impl IntoIterator<Item = cairn_core::Height>, join: u64) -> Vec<HeightRange> {
    let mut ranges: Vec<HeightRange> = Vec::new();
    for height in heights {
        match ranges.last_mut() {
            Some(last) if height.get() <= last.end().get().saturating_add(join) => {
                *last = HeightRange::new(last.start(), last.end().max(height.next()));
            }
            _ => ranges.push(HeightRange::one(height)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use cairn_core::Height;

    use super::*;

    #[test]
    fn heights_become_ranges() {
        let range = |from, to| HeightRange::new(Height(from), Height(to));
        let heights = [1, 2, 5, 9, 20].map(Height);
        assert_eq!(ranges_of(heights, 0), [range(1, 3), range(5, 6), range(9, 10), range(20, 21)]);
        assert_eq!(ranges_of(heights, 3), [range(1, 10), range(20, 21)]);
    }

    #[test]
    fn a_report_says_what_was_found_and_what_was_not_mended() {
        let mut report = Report { blocks_damaged: 2, blocks_mended: 1, ..Report::default() };
        report.name("height 7: the block is missing".into());
        report.unmended.push("height 7: the node is away".into());
        let mut sum = Report { lookups_removed: 3, ..Report::default() };
        sum.add(report);
        assert_eq!(sum.found(), 5);
        let text = sum.to_string();
        for part in [
            "height 7: the block is missing",
            "not mended: height 7",
            "0 written, 3 removed",
            "2 damaged, 1 fetched",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn what_was_not_compared_makes_a_repair_incomplete_and_a_note_does_not() {
        let mut report = Report::default();
        report.notes.push("token_worker: heights [90, 100) are not derived yet".into());
        assert_eq!(report.outcome(), Outcome::Clean);
        report.rows_damaged = 1;
        assert_eq!(report.outcome(), Outcome::Mended);
        let mut other = Report::default();
        other
            .not_compared
            .push("token_worker: heights [5, 9) were not compared: a reorg was in the way".into());
        report.add(other);
        assert_eq!(report.outcome(), Outcome::Incomplete);
        let text = report.to_string();
        for part in ["not compared: token_worker: heights [5, 9)", "note: token_worker: heights [90, 100)"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        report.unmended.push("height 7: the node is away".into());
        assert_eq!(report.outcome(), Outcome::Unmended);
    }
}
