//! Every metric family: its kind and its help, in one table. Tests hold the table, the code and `docs/reference/metrics.md` together.

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// The kind of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How values are distributed.
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

/// The families of everything but the servers, which describe their own.
pub const FAMILIES: &[(Kind, &str, &str)] = &[
    (Gauge, "cairn_ingest_obstacle", "1 while ingestion can't get past this, else 0"),
    (Gauge, "cairn_source_endpoint_head_height", "each node's head"),
    (Gauge, "cairn_source_endpoint_lag_heights", "how far each node is behind the highest of them"),
    (Counter, "cairn_source_requests_total", "requests to nodes by outcome"),
    (Counter, "cairn_source_errors_total", "failed items and requests to nodes by error class"),
    (Counter, "cairn_source_retries_total", "items that nodes were asked for again"),
    (Counter, "cairn_source_response_bytes_total", "bytes of answers of nodes, decompressed"),
    (Histogram, "cairn_source_request_seconds", "time of a request to a node"),
    (Gauge, "cairn_source_in_flight", "requests to nodes in flight"),
    (Gauge, "cairn_source_batch_items", "how many calls go into one batch, as it was learned"),
    (Counter, "cairn_source_rate_limited_total", "requests that a node refused for coming too soon"),
    (Counter, "cairn_source_bulk_fallbacks_total", "bulk calls that failed and were asked one by one"),
    (
        Counter,
        "cairn_source_missing_total",
        "heights that a node did not have whole, though its sealed head was well above",
    ),
    (Counter, "cairn_source_failovers_total", "answers that the preferred node didn't give"),
    (Counter, "cairn_source_unknown_tx_types_total", "transactions of a type that this version doesn't know"),
    (Counter, "cairn_source_broken_texts_total", "answers of a node with bytes that are no UTF-8"),
    (
        Counter,
        "cairn_source_websocket_reconnects_total",
        "new WebSocket connections, by what was wrong with the old one",
    ),
    (Counter, "cairn_source_check_failures_total", "blocks refused, by the check that failed"),
    (Counter, "cairn_source_unverified_total", "blocks taken with a check relaxed or impossible"),
    (Gauge, "cairn_worker_tip_height", "the last height up to which the rows of a worker are complete"),
    (Counter, "cairn_worker_rows_total", "rows that workers committed"),
    (Histogram, "cairn_worker_step_seconds", "time of each step of a chunk of derived work"),
    (Counter, "cairn_worker_troubles_total", "tries that a node or a database was in the way of"),
    (
        Counter,
        "cairn_node_refusals_total",
        "questions about contracts that a node won't answer however often it is asked",
    ),
    (Counter, "cairn_worker_failures_total", "ranges of derived work that failed"),
    (Counter, "cairn_state_corrections_total", "commits of replaced rows that changed a folder's state"),
    (Counter, "cairn_malformed_events_total", "events that could not be decoded"),
    (
        Counter,
        "cairn_errors_dropped_total",
        "warnings that the error log had no room for (derive.errors_max_per_worker)",
    ),
    (
        Counter,
        "cairn_quarantined_blocks_total",
        "blocks that a worker could not process and left without rows",
    ),
    (Counter, "cairn_partition_rounds_total", "looks of the partition manager by outcome"),
    (
        Gauge,
        "cairn_partitions_ahead",
        "partitions of each raw table above the one that the next block goes into",
    ),
    (
        Counter,
        "cairn_app_index_rounds_total",
        "looks for indexes of the app database that were put off, by outcome",
    ),
    (Counter, "cairn_repair_runs_total", "repairs at intervals by outcome"),
    (Counter, "cairn_repair_found_total", "what repairs at intervals found"),
    (Gauge, "cairn_ingest_tip_height", "the checkpoint: the last height of the unbroken run"),
    (Gauge, "cairn_ingest_finalized_height", "the finalised mark"),
    (Counter, "cairn_ingest_blocks_total", "blocks committed by this process"),
    (Counter, "cairn_ingest_transactions_total", "transactions committed by this process"),
    (Counter, "cairn_ingest_bytes_total", "bytes of blocks committed by this process, before compression"),
    (Counter, "cairn_ingest_reorgs_total", "reorgs handled"),
    (Histogram, "cairn_ingest_reorg_depth_blocks", "how many blocks each reorg took away"),
    (
        Counter,
        "cairn_raw_uncut_blocks_total",
        "blocks whose bytes could not be cut into rows and are kept whole",
    ),
    (Gauge, "cairn_raw_gaps", "stretches of heights below the head of the node that are not stored"),
    (Gauge, "cairn_raw_gap_heights", "heights below the head of the node that are not stored"),
    (Gauge, "cairn_raw_gap_age_seconds", "how long the node has had the lowest height that is not stored"),
    (
        Gauge,
        "cairn_raw_dead_leases",
        "ranges of blocks that failed 20 times in a row and wait for an operator",
    ),
    (Counter, "cairn_ingest_retries_total", "turns that failed and were tried again"),
    (
        Counter,
        "cairn_ingest_finality_conflicts_total",
        "times that a node named a finalised block that isn't the stored one",
    ),
    (Gauge, "cairn_source_head_height", "the head that the ingester sees"),
    (Gauge, "cairn_source_lag_heights", "how far the head of the nodes is below the stored tip"),
    (Gauge, "cairn_derived_halted", "1: derived work of this process stopped and wants a person"),
    (
        Counter,
        "cairn_leases_reaped_total",
        "leases that expired in the hands of a holder that gave no sign of life",
    ),
    (Gauge, "cairn_lease_gaps", "stretches of heights between two leases that no lease covers"),
    (Gauge, "cairn_dead_leases", "ranges of derived work that failed 20 times and wait for an operator"),
    (Counter, "cairn_seam_alarms_total", "looks that found two ranges side by side on different forks"),
    (Counter, "cairn_reorgs_applied_total", "reorgs applied to derived tables"),
    (Gauge, "cairn_repair_unmended", "what the last repair at intervals could not mend"),
    (
        Gauge,
        "cairn_evm_gaps",
        "gaps of the EVM chain that were open at the end of the last repair at intervals",
    ),
    (Gauge, "cairn_repair_not_compared", "parts that the last repair at intervals could not compare"),
    (Counter, "cairn_log_lines_dropped_total", "lines of the log that nobody read in time"),
    (Gauge, "cairn_build_info", "1, with the version of this binary"),
    (Gauge, "cairn_database_bytes", "size of each database, without the WAL"),
    (Gauge, "cairn_wal_bytes", "size of the write-ahead log of each SQLite file"),
    (Counter, "cairn_derive_job_failures_total", "failures of jobs beside the workers"),
    (Gauge, "cairn_derive_job_failing", "1 while a job beside the workers fails, else 0"),
    (Counter, "cairn_background_failures_total", "failures of jobs beside the main path"),
];

/// Tells the recorder in force what each family means.
pub fn describe() {
    for (kind, name, help) in FAMILIES.iter().copied() {
        match kind {
            Counter => describe_counter!(name, help),
            Gauge => describe_gauge!(name, help),
            Histogram => describe_histogram!(name, help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn repository() -> PathBuf {
        // Where it is now: what was compiled may be used in a clone at another place.
        let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
        PathBuf::from(folder).join("../..")
    }

    fn sources(dir: &Path, into: &mut String) {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, into);
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("families.rs") {
                *into += &fs::read_to_string(path).expect("text");
            }
        }
    }

    /// The names of families that these macros are called with.
    fn counted<'t>(text: &'t str, macro_name: &str) -> impl Iterator<Item = &'t str> {
        let calls = text.split(&format!("{macro_name}!(\"")).skip(1).collect::<Vec<_>>();
        let names = calls.into_iter().filter_map(|rest| rest.split('"').next());
        names.filter(|name| name.starts_with(env!("CARGO_PKG_NAME")))
    }

    /// That they stand in `docs/reference/metrics.md` too is held by `tests/cairn/commands.rs`.
    #[test]
    fn every_family_that_is_counted_has_one_help() {
        let mut known = BTreeSet::new();
        for (_, name, help) in FAMILIES {
            assert!(known.insert(*name), "{name} stands there twice");
            assert!(!help.is_empty() && !help.contains(['\n', '\\']), "{name}");
        }
        let mut text = String::new();
        for dir in fs::read_dir(repository().join("crates")).expect("crates") {
            let source = dir.expect("a crate").path().join("src");
            if source.is_dir() && !source.to_string_lossy().contains("crates/dev") {
                sources(&source, &mut text);
            }
        }
        text.retain(|char| !char.is_whitespace());
        for macro_name in ["counter", "gauge", "histogram"] {
            for name in counted(&text, macro_name) {
                assert!(known.contains(name), "{name} has no help: put it into FAMILIES");
            }
        }
        for name in known {
            assert!(text.contains(name), "{name} is counted nowhere");
        }
    }
}
