//! configurations
use crate::model::Protocol;
use crate::rules::Off;
use crate::words::{A, B, C, Chain, GENESIS, NONE};

/// Forks twice and back, above height 1.
pub const THERE_AND_BACK: &[Chain] = &[[GENESIS, A, A, A, A], [GENESIS, A, B, B, B], [GENESIS, A, A, A, A]];
/// Forks above height 2, then deeper, above the genesis block.
pub const DEEPER: &[Chain] = &[[GENESIS, A, A, A, A], [GENESIS, A, A, B, B], [GENESIS, C, C, C, C]];
/// Skips
pub const SKIPPING: &[Chain] = &[[GENESIS, A, NONE, A, NONE], [GENESIS, A, B, B, NONE], [GENESIS, A, NONE, A, NONE]];

/// Two mappers, an applier.
pub const MAPPERS: Protocol = Protocol {
    name: "mappers",
    script: THERE_AND_BACK,
    top: 4,
    range: 2,
    mappers: 2,
    folders: 0,
    appliers: 1,
    purge_in_steps: false,
    late_commits: false,
    silent_swap: false,
    zombies_are_idle: false,
    off: Off::NOTHING,
};
