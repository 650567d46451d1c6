//! How a store is opened.

use std::sync::Arc;

use cairn_core::{BlockLayout, Uncut};

use crate::postgres::{PartitionedTable, PgOptions};

/// How many heights a new partition of each table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionSizes {
    /// `raw.blocks`.
    pub blocks_heights: u64,
    /// `raw.transactions`.
    pub transactions_heights: u64,
    /// `raw.events`.
    pub events_heights: u64,
    /// `raw.execution_results`.
    pub execution_results_heights: u64,
    /// `raw.collections`.
    pub collections_heights: u64,
}

impl Default for PartitionSizes {
    fn default() -> Self {
        PartitionSizes {
            blocks_heights: 5_000_000,
            transactions_heights: 5_000_000,
            events_heights: 10_000_000,
            execution_results_heights: 5_000_000,
            collections_heights: 5_000_000,
        }
    }
}

impl PartitionSizes {
    /// One size for all of them.
    pub fn all(heights: u64) -> Self {
        PartitionSizes {
            blocks_heights: heights,
            transactions_heights: heights,
            events_heights: heights,
            execution_results_heights: heights,
            collections_heights: heights,
        }
    }

    /// The tables that have partitions.
    pub const TABLES: [&str; 5] = ["blocks", "transactions", "events", "execution_results", "collections"];

    /// Another size for one table; whether there is such a table.
    pub fn set(&mut self, table: &str, heights: u64) -> bool {
        let size = match table {
            "blocks" => &mut self.blocks_heights,
            "transactions" => &mut self.transactions_heights,
            "events" => &mut self.events_heights,
            "execution_results" => &mut self.execution_results_heights,
            "collections" => &mut self.collections_heights,
            _ => return false,
        };
        *size = heights;
        true
    }

    pub(super) fn tables(&self) -> Vec<PartitionedTable> {
        let table = |table, heights, storage, secondary, when_full| PartitionedTable {
            schema: super::schema::SCHEMA,
            table,
            heights,
            storage,
            secondary,
            when_full,
        };
        vec![
            table(
                "blocks",
                self.blocks_heights,
                "toast_tuple_target = 8160",
                &[("with_events", "(height) WHERE event_count > 0")],
                &[],
            ),
            table(
                "transactions",
                self.transactions_heights,
                "",
                &[],
                // The key's own prefix gives a block's transactions; the writer saves an eighth of the server's work (ADR 0009).
                &[("in_order", "(block_height, transaction_index)")],
            ),
            table("events", self.events_heights, "", &[], &[]),
            table("execution_results", self.execution_results_heights, "", &[], &[]),
            table("collections", self.collections_heights, "", &[], &[]),
        ]
    }
}

/// How a raw store is opened. Sizes are bytes, times milliseconds.
#[derive(Debug, Clone)]
pub struct PgRawOptions {
    /// The server and how much of it is used. Each store has its own pool, and so have its [readers](super::PgRawStore::readers).
    pub pg: PgOptions,
    /// Reads only: demands the schema as it has to be, and changes nothing.
    pub read_only: bool,
    /// How old a snapshot may get; `None` for tools that run alone, such as an audit.
    pub snapshot_max_ms: Option<u64>,
    /// The zstd level of packed parts.
    pub compression_level: i32,
    /// How the chain's blocks are cut into rows; by default they aren't.
    pub layout: Arc<dyn BlockLayout>,
    /// Sizes of new partitions.
    pub partitions: PartitionSizes,
    /// How many partitions there are at least above the one that is written to.
    pub lookahead_partitions: u64,
    /// Only the keys have indexes; the others are built on each partition when it is full and final. Counts for a table that has had no partition without it.
    pub backfill: bool,
    /// Bytes of a transaction, its result, an event, or a packed part of a block that are longer go to object storage, where there is one.
    pub payload_inline_max_bytes: u64,
}

impl PgRawOptions {
    /// The defaults, for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        PgRawOptions::with(PgOptions::new(url))
    }

    /// The defaults, for a server.
    pub fn with(pg: PgOptions) -> Self {
        PgRawOptions {
            pg,
            read_only: false,
            snapshot_max_ms: Some(2_000),
            compression_level: 3,
            layout: Arc::new(Uncut),
            partitions: PartitionSizes::default(),
            lookahead_partitions: 2,
            backfill: false,
            payload_inline_max_bytes: 8_192,
        }
    }
}
