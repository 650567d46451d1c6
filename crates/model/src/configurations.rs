//! The configurations that the tests explore whole.
//!
//! [`WHOLE`] and [`WHOLE_TWICE`] have everybody in them. The others have fewer actors and, in exchange, what would be too much for all at once:
//! zombies followed to their end, rows moved away step by step, commits that arrive late, skipped heights, a raw store
//! that was exchanged.

use crate::model::Protocol;
use crate::rules::Off;
use crate::words::{A, B, C, Chain, GENESIS, NONE};

/// Forks above height 1 and goes back: with leases of two heights, in the middle of the first lease.
const THERE_AND_BACK: &[Chain] = &[[GENESIS, A, A, A, A], [GENESIS, A, B, B, B], [GENESIS, A, A, A, A]];
/// Forks above height 2, then deeper, above the genesis block.
const DEEPER: &[Chain] = &[[GENESIS, A, A, A, A], [GENESIS, A, A, B, B], [GENESIS, C, C, C, C]];
/// Forks twice, the second time deeper, and goes back to the first.
const TWICE_AND_BACK: &[Chain] =
    &[[GENESIS, A, A, A, A], [GENESIS, A, B, B, B], [GENESIS, C, C, C, C], [GENESIS, A, A, A, A]];
/// A height that one fork skips and the other doesn't.
const SKIPPING: &[Chain] =
    &[[GENESIS, A, NONE, A, NONE], [GENESIS, A, B, B, NONE], [GENESIS, A, NONE, A, NONE]];
/// One fork, then another.
const ONE_FORK: &[Chain] = &[[GENESIS, A, A, A, A], [GENESIS, A, B, B, B]];

/// Two mappers, a folder, two appliers, the committer, the reaper; two leases a service; A, B and A again.
pub const WHOLE: Protocol = Protocol {
    name: "whole",
    script: THERE_AND_BACK,
    top: 4,
    range: 2,
    mappers: 2,
    folders: 1,
    appliers: 2,
    purge_in_steps: false,
    late_commits: false,
    claims_ahead: false,
    silent_swap: false,
    zombies_are_idle: true,
    off: Off::NOTHING,
};

/// The same three heights high, over two forks, the second one deeper, and the way back.
pub const WHOLE_TWICE: Protocol =
    Protocol { name: "whole, two forks and back", script: TWICE_AND_BACK, top: 3, ..WHOLE };

/// Two mappers and an applier, zombies followed to their end, ranges claimed before there is anything in them.
pub const MAPPERS: Protocol = Protocol {
    name: "mappers",
    top: 3,
    folders: 0,
    appliers: 1,
    claims_ahead: true,
    zombies_are_idle: false,
    ..WHOLE
};

/// The same where the second fork is deeper than the first.
pub const MAPPERS_DEEPER: Protocol = Protocol { name: "mappers, deeper", script: DEEPER, ..MAPPERS };

/// Two appliers and a mapper over a raw store that moves orphans away row by row.
pub const APPLIERS: Protocol =
    Protocol { name: "appliers", top: 4, mappers: 1, appliers: 2, purge_in_steps: true, ..MAPPERS };

/// A mapper whose commits may arrive after it gave them up.
pub const LATE: Protocol = Protocol { name: "late commits", mappers: 1, late_commits: true, ..MAPPERS };

/// Two mappers with leases of one height, over a chain that skips heights.
pub const SKIPPED: Protocol = Protocol { name: "skipped heights", script: SKIPPING, range: 1, ..MAPPERS };

/// Two mappers over a raw store that is exchanged for another fork's without an entry.
pub const SWAPPED: Protocol =
    Protocol { name: "exchanged raw store", script: ONE_FORK, top: 4, silent_swap: true, ..MAPPERS };

/// A mapper, a folder and an applier, zombies followed to their end.
pub const FOLDER: Protocol =
    Protocol { name: "folder", mappers: 1, folders: 1, claims_ahead: false, ..MAPPERS };

/// A mapper, a folder and two appliers.
pub const FOLDER_APPLIERS: Protocol =
    Protocol { name: "folder, two appliers", appliers: 2, zombies_are_idle: true, ..FOLDER };

/// Two workers of the folder.
pub const FOLDERS: Protocol = Protocol { name: "two folders", folders: 2, zombies_are_idle: true, ..FOLDER };

/// A folder whose commits, and its mapper's, may arrive late, over one fork.
pub const FOLDER_LATE: Protocol = Protocol {
    name: "folder, late commits",
    script: ONE_FORK,
    late_commits: true,
    zombies_are_idle: true,
    ..FOLDER
};

/// A mapper and a folder over a chain that skips heights.
pub const FOLDER_SKIPPED: Protocol = Protocol {
    name: "folder, skipped heights",
    script: SKIPPING,
    range: 1,
    zombies_are_idle: true,
    ..FOLDER
};

/// All of them.
pub const ALL: [Protocol; 13] = [
    WHOLE,
    WHOLE_TWICE,
    MAPPERS,
    MAPPERS_DEEPER,
    APPLIERS,
    LATE,
    SKIPPED,
    SWAPPED,
    FOLDER,
    FOLDER_APPLIERS,
    FOLDERS,
    FOLDER_LATE,
    FOLDER_SKIPPED,
];
