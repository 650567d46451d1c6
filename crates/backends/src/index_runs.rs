//! What both databases ask of a list of index runs, and of the rows behind an answer from it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cairn_core::{HeightRange, IndexKey, StoredBlock};
use cairn_store::runs::{RunInfo, RunKind};
use cairn_store::{LogQuery, StoreError};

/// A run that is made anew becomes runs of so many heights, which maintenance merges again.
pub(crate) const PIECE_HEIGHTS: u64 = 1_000;

/// The log terms of a block with its receipts, by the chain's codec.
pub type LogTerms = Arc<dyn Fn(&StoredBlock) -> Result<Vec<IndexKey>, String> + Send + Sync>;

/// The heights of `range` that no run covers, in stretches. `runs` are by height.
fn gaps(runs: &[RunInfo], range: HeightRange) -> Vec<HeightRange> {
    let (mut gaps, mut at) = (Vec::new(), range.start());
    for run in runs {
        gaps.push(HeightRange::new(at, run.heights.start().max(at)).intersect(range));
        at = at.max(run.heights.end());
    }
    gaps.push(HeightRange::new(at, range.end().max(at)));
    gaps.retain(|gap| !gap.is_empty());
    gaps
}

/// Demands that each height of `range` is in one of the runs: each block is, when it is written, so one that is in none has lost its entries (law 2).
pub(crate) fn demand_covered(kind: RunKind, runs: &[RunInfo], range: HeightRange) -> Result<(), StoreError> {
    match gaps(runs, range).first() {
        None => Ok(()),
        Some(gap) => Err(StoreError::Corrupt {
            place: format!("the index ({kind:?}) of heights {gap}"),
            what: "no run covers them; `cairn repair` makes it anew".into(),
        }),
    }
}

/// Ranges up to so many heights are counted for every answer.
const NARROW_HEIGHTS: u64 = 1_000;
/// How long a wider range that was counted is taken for whole.
const COUNTED_FOR: Duration = Duration::from_secs(600);

/// The heights whose rows were counted last, when there was one for each.
///
/// An answer that the index gives is right whether the rows of the blocks that it doesn't name are there or not. So a loss among them may be noticed
/// late, and a wide query by address or topics needn't count its whole range each time.
#[derive(Debug, Default)]
pub(crate) struct Counted(Mutex<Option<(HeightRange, Instant)>>);

impl Counted {
    /// The stretches of `range`, for which `query` was answered, whose rows are to be counted.
    pub(crate) fn left(&self, query: &LogQuery, range: HeightRange) -> Vec<HeightRange> {
        let known = match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // Without terms the rows themselves are the index.
            _ if query.groups.is_empty() || range.len() <= NARROW_HEIGHTS => None,
            Some((known, since)) if since.elapsed() < COUNTED_FOR => Some(known),
            _ => None,
        };
        let Some(known) = known.filter(|known| !known.intersect(range).is_empty()) else {
            return vec![range];
        };
        let mut left = vec![
            HeightRange::new(range.start(), known.start().min(range.end())),
            HeightRange::new(known.end().max(range.start()), range.end()),
        ];
        left.retain(|stretch| !stretch.is_empty());
        left
    }

    /// Each height of `range` has its row.
    pub(crate) fn note(&self, range: HeightRange) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counted = match *counted {
            Some((known, since)) if since.elapsed() < COUNTED_FOR => {
                let touch = range.start() <= known.end() && known.start() <= range.end();
                let both = HeightRange::new(known.start().min(range.start()), known.end().max(range.end()));
                match (touch, range.len() > known.len()) {
                    (true, _) => Some((both, since)),
                    (false, true) => Some((range, Instant::now())),
                    (false, false) => Some((known, since)),
                }
            }
            _ => Some((range, Instant::now())),
        };
    }
}

/// A run has entries and no page.
pub(crate) fn without_pages(run: &RunInfo) -> StoreError {
    StoreError::Corrupt {
        place: format!("index run {} ({:?}, heights {})", run.id, run.kind, run.heights),
        what: format!(
            "it has {} entries and none of its pages is there; `cairn repair` makes it anew",
            run.entries
        ),
    }
}

/// The runs of a kind that hold some of `wanted`, and the gaps between runs in which some of them lie (as runs without a number).
pub(crate) fn to_make(
    kind: RunKind,
    runs: &[RunInfo],
    canonical: HeightRange,
    wanted: &[HeightRange],
) -> Vec<RunInfo> {
    let touched = |heights: HeightRange| wanted.iter().any(|range| !range.intersect(heights).is_empty());
    let gap = |heights| RunInfo { id: 0, kind, level: 0, heights, entries: 0, bytes: 0 };
    let mut found: Vec<RunInfo> = gaps(runs, canonical).into_iter().map(gap).collect();
    found.extend(runs);
    found.retain(|run| touched(run.heights));
    found.sort_by_key(|run| run.heights.start());
    found
}

#[cfg(test)]
mod tests {
    use cairn_core::Height;

    use super::*;

    fn range(from: u64, to: u64) -> HeightRange {
        HeightRange::new(Height(from), Height(to))
    }

    fn run(id: u64, from: u64, to: u64) -> RunInfo {
        RunInfo { id, kind: RunKind::LogTerm, level: 0, heights: range(from, to), entries: 1, bytes: 1 }
    }

    #[test]
    fn what_was_counted_is_not_counted_again_where_an_index_answers() {
        let by_term = LogQuery { groups: vec![vec![1]] };
        let counted = Counted::default();
        assert_eq!(counted.left(&by_term, range(0, 5_000)), [range(0, 5_000)]);
        counted.note(range(0, 5_000));
        assert_eq!(counted.left(&by_term, range(0, 5_000)), []);
        assert_eq!(counted.left(&by_term, range(4_000, 9_000)), [range(5_000, 9_000)]);
        assert_eq!(counted.left(&by_term, range(8_000, 9_500)), [range(8_000, 9_500)]);
        // A narrow range, and one that no index answers for, is counted each time.
        assert_eq!(counted.left(&by_term, range(0, 1_000)), [range(0, 1_000)]);
        assert_eq!(counted.left(&LogQuery::default(), range(0, 5_000)), [range(0, 5_000)]);
        counted.note(range(5_000, 9_000));
        counted.note(range(20_000, 21_000));
        assert_eq!(counted.left(&by_term, range(0, 10_000)), [range(9_000, 10_000)]);
        counted.note(range(20_000, 40_000));
        assert_eq!(
            counted.left(&by_term, range(10_000, 50_000)),
            [range(10_000, 20_000), range(40_000, 50_000)]
        );
    }

    #[test]
    fn heights_in_no_run_are_found_and_made_with_the_runs_beside() {
        let runs = [run(1, 0, 10), run(2, 10, 20), run(3, 25, 30)];
        assert_eq!(gaps(&runs, range(5, 40)), [range(20, 25), range(30, 40)]);
        assert!(demand_covered(RunKind::LogTerm, &runs, range(3, 20)).is_ok());
        let missing = demand_covered(RunKind::LogTerm, &runs, range(3, 26)).expect_err("a gap");
        assert!(missing.to_string().contains("20..24") || missing.to_string().contains("20"), "{missing}");
        let made = to_make(RunKind::LogTerm, &runs, range(0, 30), &[range(12, 13), range(22, 23)]);
        assert_eq!(
            made.iter().map(|run| (run.id, run.heights)).collect::<Vec<_>>(),
            [(2, range(10, 20)), (0, range(20, 25))]
        );
    }
}
