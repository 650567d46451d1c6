//! What happens to the derived side in a run, drawn from the seed apart from the rest.

use std::collections::BTreeSet;

use cairn_core::Height;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::app::AppFault;

/// The derived half of a run.
#[derive(Debug, Clone)]
pub struct DerivedPlan {
    /// Worker processes that run at once.
    pub processes: usize,
    /// Workers of one mapper in each.
    pub workers: usize,
    /// Ranges are cut at multiples of so many heights.
    pub range_heights: u64,
    /// Heights in a commit.
    pub chunk_heights: u64,
    /// Bytes in a commit.
    pub chunk_bytes: u64,
    /// Bytes of raw blocks that mappers keep for each other.
    pub recent_bytes: u64,
    /// How long a lease lasts.
    pub ttl_ms: u64,
    /// Rows of one step of applying a reorg.
    pub apply_rows: usize,
    /// The nth verb (from 0, over all processes) and its fault, ascending.
    pub faults: Vec<(u64, AppFault)>,
    /// The app store can't be reached in `[from, to)`.
    pub away_ms: Option<(u64, u64)>,
    /// Blocks that fail so many times.
    pub bugs: Vec<(Height, u32)>,
    /// Blocks that a mapper, by name, can never process: it passes over them. Only where there are no bugs, over which ranges halt.
    pub incurable: BTreeSet<(&'static str, Height)>,
    /// How often asking a node fails.
    pub ask_fails_percent: u32,
    /// Rows are made again at this time, where the checkpoint is far enough.
    pub reindex_at_ms: Option<u64>,
    /// A folder begins anew at this time; whoever asks for it deletes so many steps of its rows, and dies.
    pub rebuild: Option<(u64, u32)>,
    /// The first look at derived work comes so late.
    pub starts_at_ms: u64,
}

/// Draws the derived half of `seed`, for a chain whose life lasts `life_ms`.
pub fn draw(seed: u64, life_ms: u64) -> DerivedPlan {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xde21_7ed0);
    let rng = &mut rng;
    let ttl_ms = rng.random_range(2_000..20_000);
    let mut at = 0;
    let many = if rng.random_ratio(1, 5) { 0 } else { rng.random_range(1..25) };
    let faults = (0..many)
        .map(|_| {
            at += rng.random_range(1..30u64);
            (at, fault(rng, ttl_ms))
        })
        .collect();
    let away_ms = rng.random_ratio(1, 5).then(|| {
        let from = rng.random_range(0..=life_ms);
        (from, from + rng.random_range(1_000..90_000))
    });
    let bugs = if rng.random_ratio(1, 3) { rng.random_range(1..4) } else { 0 };
    let bugs: Vec<(Height, u32)> = (0..bugs)
        .map(|_| {
            let fails =
                if rng.random_ratio(1, 10) { rng.random_range(25..90) } else { rng.random_range(1..9) };
            (Height(rng.random_range(0..80)), fails)
        })
        .collect();
    DerivedPlan {
        processes: rng.random_range(1..=3),
        workers: rng.random_range(1..=3),
        range_heights: rng.random_range(1..=14),
        chunk_heights: rng.random_range(1..=7),
        chunk_bytes: *[1, 2_000, 1 << 20].get(rng.random_range(0..3usize)).unwrap_or(&2_000),
        // Not drawn, so that what a seed stood for before stays.
        recent_bytes: *[0, 3_000, 64 << 20].get(ttl_ms as usize % 3).unwrap_or(&0),
        ttl_ms,
        apply_rows: rng.random_range(1..40),
        faults,
        away_ms,
        incurable: if bugs.is_empty() { incurable(seed) } else { BTreeSet::new() },
        bugs,
        ask_fails_percent: if rng.random_ratio(1, 2) { 0 } else { rng.random_range(1..40) },
        reindex_at_ms: rng.random_ratio(1, 4).then(|| rng.random_range(0..=life_ms + 20_000)),
        rebuild: rebuild(seed, life_ms),
        starts_at_ms: if rng.random_ratio(1, 3) { rng.random_range(0..=life_ms) } else { 0 },
    }
}

/// Drawn from a generator of its own, so that what a seed stood for before stays where there are none.
fn incurable(seed: u64) -> BTreeSet<(&'static str, Height)> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x1c4b_1e00);
    let many = if rng.random_ratio(1, 4) { rng.random_range(1..4) } else { 0 };
    let place = |rng: &mut SmallRng| {
        let mapper = if rng.random_ratio(1, 2) { "tx_worker" } else { "mark_worker" };
        (mapper, Height(rng.random_range(0..80)))
    };
    (0..many).map(|_| place(&mut rng)).collect()
}

/// Likewise.
fn rebuild(seed: u64, life_ms: u64) -> Option<(u64, u32)> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x4eb1_1d00);
    let begins = rng.random_ratio(1, 4);
    begins.then(|| (rng.random_range(0..=life_ms + 20_000), rng.random_range(0..4)))
}

fn fault(rng: &mut SmallRng, ttl_ms: u64) -> AppFault {
    match rng.random_range(0..6) {
        0 => AppFault::CrashBefore,
        1 => AppFault::CrashAfter,
        2 => AppFault::LostAnswer,
        3 => AppFault::Busy,
        4 => AppFault::Late(rng.random_range(1..ttl_ms * 4)),
        _ => AppFault::Slow(rng.random_range(1..ttl_ms * 2)),
    }
}
