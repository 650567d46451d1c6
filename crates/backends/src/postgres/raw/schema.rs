//! The schema's versions.

use crate::postgres::Migration;

/// Where the raw tables are.
pub(super) const SCHEMA: &str = "raw";

/// In order; never changed once released.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "raw tables", sql: include_str!("0001.sql") },
    Migration { version: 2, name: "cheaper rows, and Flow's columns", sql: include_str!("0002.sql") },
    Migration { version: 3, name: "large parts of blocks in object storage", sql: include_str!("0003.sql") },
    Migration { version: 4, name: "what ended a range of blocks", sql: include_str!("0004.sql") },
    Migration { version: 5, name: "events by their own index", sql: include_str!("0005.sql") },
    Migration { version: 6, name: "when a checkpoint moved", sql: include_str!("0006.sql") },
];
