//! Which runs to merge next. Pure: the same list gives the same answer.
//!
//! Each batch makes a run of level 0. Where [`MERGE_WIDTH`] runs of one level stand side by side, the lowest of them become one run of
//! the next level, so a lookup visits at most about nine runs a level. Three rules bound the work:
//!
//! * Runs wholly or partly above the head (filled ranges that have not been joined) are left alone until the head passed them.
//! * A result of more than [`SMALL_MERGE_HEIGHTS`] lies below finality, or at least [`SETTLED_HEIGHTS`] below the tip, so that reorgs don't
//!   throw away long merges that have begun.
//! * No result is larger than [`MAX_RUN_HEIGHTS`] or [`MAX_RUN_BYTES`].

use cairn_core::{Height, HeightRange};

use super::RunKind;

/// How many runs of one level make one of the next.
pub const MERGE_WIDTH: usize = 10;

/// The most heights of a merged run that a reorg may still reach.
pub const SMALL_MERGE_HEIGHTS: u64 = 1_000;

/// So far below the tip a reorg is not expected, even where nothing is known to be final.
pub const SETTLED_HEIGHTS: u64 = 1_000;

/// The most heights of any merged run.
pub const MAX_RUN_HEIGHTS: u64 = 1_000_000;

/// The most bytes of any merged run.
pub const MAX_RUN_BYTES: u64 = 1 << 30;

/// A run, as a store lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunInfo {
    /// The store's number for it; never used twice.
    pub id: u64,
    /// Which index.
    pub kind: RunKind,
    /// 0 for a batch's run; one more for each merge.
    pub level: u32,
    /// The heights that it covers.
    pub heights: HeightRange,
    /// How many entries it has.
    pub entries: u64,
    /// The bytes of its pages.
    pub bytes: u64,
}

/// Runs to be merged, and what becomes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// The inputs, ascending and side by side; at least two.
    pub inputs: Vec<RunInfo>,
    /// The result's level.
    pub level: u32,
    /// The result's heights.
    pub heights: HeightRange,
}

/// The next merge among the live runs of one kind, which are sorted by height. `tip` and `finalized` come from the head row.
pub fn next_merge(runs: &[RunInfo], tip: Option<Height>, finalized: Option<Height>) -> Option<MergePlan> {
    let tip = tip?;
    let settled_end =
        tip.next().saturating_sub(SETTLED_HEIGHTS).max(finalized.map_or(Height::ZERO, Height::next));
    let passed = runs.partition_point(|run| run.heights.end() <= tip.next());
    let mut rows: Vec<&[RunInfo]> = runs[..passed]
        .chunk_by(|a, b| a.level == b.level && a.heights.end() == b.heights.start())
        .filter(|row| row.len() >= MERGE_WIDTH)
        .collect();
    rows.sort_by_key(|row| row[0].level);
    rows.into_iter().find_map(|row| merge_in(row, settled_end))
}

/// The first merge in runs of one level that stand side by side.
fn merge_in(row: &[RunInfo], settled_end: Height) -> Option<MergePlan> {
    let mut row = row;
    while row.len() >= MERGE_WIDTH {
        let fitting = fitting(row);
        if fitting >= 2 {
            let inputs = &row[..fitting];
            let heights = HeightRange::new(inputs[0].heights.start(), inputs[fitting - 1].heights.end());
            let is_settled = heights.end() <= settled_end;
            // What stands further up is not settled either.
            return (is_settled || heights.len() <= SMALL_MERGE_HEIGHTS).then(|| MergePlan {
                inputs: inputs.to_vec(),
                level: row[0].level + 1,
                heights,
            });
        }
        // The first one is full already.
        row = &row[1..];
    }
    None
}

/// How many of the first runs fit together into one.
fn fitting(row: &[RunInfo]) -> usize {
    let (mut heights, mut bytes) = (0_u64, 0_u64);
    row.iter()
        .take(MERGE_WIDTH)
        .take_while(|run| {
            heights += run.heights.len();
            bytes += run.bytes;
            heights <= MAX_RUN_HEIGHTS && bytes <= MAX_RUN_BYTES
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(level: u32, start: u64, count: u64, heights: u64) -> Vec<RunInfo> {
        (0..count)
            .map(|i| RunInfo {
                id: start + i,
                kind: RunKind::LogTerm,
                level,
                heights: HeightRange::new(Height(start + i * heights), Height(start + (i + 1) * heights)),
                entries: 10,
                bytes: 100,
            })
            .collect()
    }

    fn merged(plan: Option<MergePlan>) -> Option<(u64, u64, u32)> {
        plan.map(|plan| (plan.heights.start().get(), plan.heights.end().get(), plan.level))
    }

    #[test]
    fn ten_of_a_level_become_one() {
        assert_eq!(next_merge(&runs(0, 0, 9, 5), Some(Height(44)), Some(Height(44))), None);
        let ten = runs(0, 0, 10, 5);
        assert_eq!(merged(next_merge(&ten, Some(Height(49)), Some(Height(49)))), Some((0, 50, 1)));
        assert_eq!(merged(next_merge(&runs(3, 7, 12, 5), Some(Height(99)), None)), Some((7, 57, 4)));
    }

    #[test]
    fn a_gap_or_another_level_parts_them() {
        let mut gap = runs(0, 0, 5, 5);
        gap.extend(runs(0, 26, 5, 5));
        assert_eq!(next_merge(&gap, Some(Height(50)), None), None);
        let mut mixed = runs(1, 0, 9, 50);
        mixed.extend(runs(0, 450, 9, 5));
        assert_eq!(next_merge(&mixed, Some(Height(494)), None), None);
    }

    #[test]
    fn nothing_above_the_head_is_merged() {
        let ten = runs(0, 0, 10, 5);
        assert_eq!(next_merge(&ten, Some(Height(48)), Some(Height(49))), None);
        assert_eq!(next_merge(&ten, None, None), None);
    }

    #[test]
    fn near_the_tip_only_small_results() {
        let large = runs(2, 0, 10, 101);
        assert_eq!(next_merge(&large, Some(Height(2_008)), Some(Height(1_008))), None);
        assert_eq!(merged(next_merge(&large, Some(Height(2_008)), Some(Height(1_009)))), Some((0, 1_010, 3)));
        assert_eq!(merged(next_merge(&large, Some(Height(2_009)), None)), Some((0, 1_010, 3)));
        assert_eq!(merged(next_merge(&runs(2, 0, 10, 100), Some(Height(999)), None)), Some((0, 1_000, 3)));
    }

    /// During a long backfill no block that is stored is known to be final: the source's finalised block lies far above.
    #[test]
    fn a_backfill_without_a_finalised_block_is_merged_all_the_same() {
        let (batch, batches) = (32, 5_000);
        let mut live: Vec<RunInfo> = Vec::new();
        for n in 0..batches {
            live.extend(runs(0, n * batch, 1, batch));
            let tip = Some(Height((n + 1) * batch - 1));
            while let Some(plan) = next_merge(&live, tip, None) {
                let at = live.iter().position(|run| *run == plan.inputs[0]).expect("an input");
                let result =
                    RunInfo { heights: plan.heights, level: plan.level, id: 1_000_000 + n, ..plan.inputs[0] };
                live.splice(at..at + plan.inputs.len(), [result]);
            }
        }
        for level in 0..=4 {
            let count = live.iter().filter(|run| run.level == level).count();
            // A result of level 2 waits until it is settled.
            assert!(count <= if level == 1 { 13 } else { 9 }, "{count} runs of level {level}");
        }
        assert_eq!(live.iter().map(|run| run.heights.len()).sum::<u64>(), batch * batches);
    }

    #[test]
    fn full_runs_are_passed_over_and_smaller_ones_still_meet() {
        let tip = Some(Height(100_000_000));
        assert_eq!(next_merge(&runs(6, 0, 30, 600_000), tip, tip), None);
        assert_eq!(merged(next_merge(&runs(5, 0, 10, 300_000), tip, tip)), Some((0, 900_000, 6)));
        let mut mixed = runs(5, 0, 3, 600_000);
        mixed.extend(runs(5, 1_800_000, 10, 300_000));
        // 600,000 + 300,000 fit; two of 600,000 don't.
        assert_eq!(merged(next_merge(&mixed, tip, tip)), Some((1_200_000, 2_100_000, 6)));
    }
}
