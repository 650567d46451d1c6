//! Work that is done again: ranges whose rows are replaced, and services that make everything anew.
//!
//! A **rebuild** of a service begins in one transaction, in which its checkpoint goes: from then on nobody commits, and nobody sees what is left. Its rows are then deleted in
//! bounded steps, which anybody may take, one or several at once; the last of them makes it known again, at its first height. While its checkpoint is below the height at which it
//! stood before, what it has made is less than what was shown, and readers are to be told so. A reorg below lowers that height too.

use cairn_core::{BlockRef, Height, HeightRange};

use super::fork::DerivedCheckpoint;

/// A range to be made again, as [`super::Coordinator::request_reindex`] takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeAgain {
    /// The service.
    pub service: String,
    /// Its processor's version.
    pub version: u32,
    /// The heights.
    pub range: HeightRange,
    /// Leases are cut at multiples of so many heights.
    pub range_heights: u64,
    /// The service asks about rows that another of the same request makes again. Whoever holds one of its leases of kind `Index` loses it, since what is under way may have been
    /// read from the old rows, and of the range only what the service has done counts: nothing, where it never ran.
    pub is_behind: bool,
    /// Each commit corrects the state that was folded from the rows it replaces: [`super::Correction`].
    pub corrects_state: bool,
}

impl RangeAgain {
    /// What of the range a service has done that stands here. `lowest` is where its lowest lease of kind `Index` begins.
    pub fn done(&self, checkpoint: &DerivedCheckpoint, lowest: Option<Height>) -> HeightRange {
        let first = lowest.map_or(checkpoint.next, |lowest| lowest.min(checkpoint.next));
        self.range.intersect(HeightRange::new(first, checkpoint.next))
    }
}

/// What begins together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RebuildRequest {
    /// Ranges whose rows are replaced.
    pub again: Vec<RangeAgain>,
    /// Services that make everything anew.
    pub anew: Vec<String>,
}

/// A service that makes everything anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuild {
    /// The service.
    pub service: String,
    /// Where it begins.
    pub first: Height,
    /// It is whole again when its checkpoint is here: the height after the last that it had done before.
    pub until: Height,
    /// What it made before is still being deleted; it has no checkpoint.
    pub is_clearing: bool,
    /// How many steps of deleting were taken. A number that stays as it is says that nobody takes them.
    pub steps: u64,
    /// An operator had paused it, and it stays so.
    pub paused: bool,
    /// When it began, by the store's clock, in milliseconds since 1970.
    pub begun_at_ms: u64,
}

impl Rebuild {
    /// That of a service that stands here; `before` is one that is not over. `lowest` is where its lowest lease of kind `Index` begins.
    pub fn of(
        checkpoint: &DerivedCheckpoint,
        lowest: Option<Height>,
        before: Option<&Rebuild>,
        now_ms: u64,
    ) -> Rebuild {
        let first = lowest.map_or(checkpoint.next, |lowest| lowest.min(checkpoint.next));
        Rebuild {
            service: checkpoint.service.clone(),
            first,
            until: before.map_or(checkpoint.next, |before| before.until.max(checkpoint.next)),
            is_clearing: true,
            steps: 0,
            paused: checkpoint.paused,
            begun_at_ms: now_ms,
        }
    }

    /// The service's checkpoint when everything of before is gone.
    pub fn start(&self, now_ms: u64) -> DerivedCheckpoint {
        DerivedCheckpoint {
            service: self.service.clone(),
            next: self.first,
            last_id: None,
            updated_at_ms: now_ms,
            paused: self.paused,
            // No number is used twice: whoever read the state of before doesn't take this one for it.
            corrections: self.begun_at_ms,
        }
    }

    /// Whether a service that stands here has made less than there was.
    pub fn goes_on(&self, checkpoint: Option<&DerivedCheckpoint>) -> bool {
        self.is_clearing || checkpoint.is_none_or(|checkpoint| checkpoint.next < self.until)
    }

    /// Where it ends after a reorg down to `common`, where that is lower.
    pub fn clamped(&self, common: BlockRef) -> Option<Height> {
        let until = self.until.min(common.height.next()).max(self.first);
        (until < self.until).then_some(until)
    }
}
