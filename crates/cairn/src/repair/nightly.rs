//! Repair at intervals in a running process: lookups and counts of everything, gaps of the EVM chain on Flow, some where there are many, a stretch of blocks and derived rows
//! in full, another one each time, and where that is asked for as much of the state as fits into memory, another part each time.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::{Height, HeightRange};
use cairn_store::RawReader;
use rand::RngExt;
use tokio_util::sync::CancellationToken;

use super::derived::{ASK_AFTER, Derived};
use super::evm_gaps::{Bounds, EvmGaps};
use super::fetch::Fetch;
use super::raw;
use super::state::{Part, States};
use super::{Outcome, Report};
use crate::config::Config;
use crate::derive;
use crate::stores::{AppStore, LateApp, RawStore};
use crate::supervise::supervise;

/// The part of the interval after which the first repair comes.
const FIRST_AFTER: u32 = 24;

/// What is repaired.
#[derive(Clone)]
pub struct Nightly {
    /// The raw store.
    pub raw: Arc<dyn RawStore>,
    /// Where lost blocks come from; `None` where another process repairs blocks and lookups. Gaps of the EVM chain are closed where tables are derived, from the nodes that
    /// the configuration names if this process has no others.
    pub fetch: Option<Fetch>,
    /// Where blocks are read for the comparison.
    pub reader: Arc<dyn RawReader>,
    /// The app store, where this process derives.
    pub app: Option<Arc<LateApp>>,
}

/// Starts repairs at intervals beside everything else.
pub fn start(config: &Config, nightly: Nightly, stop: &CancellationToken) {
    let config = config.clone();
    supervise("repair", stop.clone(), {
        let stop = stop.clone();
        move || run(config.clone(), nightly.clone(), stop.clone())
    });
}

/// Repairs at intervals until told to stop. What goes wrong is logged and counted, and touches nothing else.
async fn run(config: Config, nightly: Nightly, stop: CancellationToken) {
    if config.repair.every_s == 0 {
        return;
    }
    let every = Duration::from_secs(config.repair.every_s);
    let mut pause = every / FIRST_AFTER;
    // So that processes that are started often don't compare the same part of the state each time.
    let mut turn: u64 = rand::random();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = every;
        let repaired = tokio::select! {
            () = stop.cancelled() => return,
            repaired = once(&config, &nightly, turn) => repaired,
        };
        turn = turn.wrapping_add(1);
        match repaired {
            Ok(report) => tell(&report),
            Err(error) => {
                count("failed");
                tracing::warn!("the repair failed and is tried again in its turn: {error:#}");
            }
        }
    }
}

async fn once(config: &Config, nightly: &Nightly, turn: u64) -> anyhow::Result<Report> {
    let stored = nightly.reader.snapshot().await?.head().range();
    let full = sample(stored, config.repair.sample_heights);
    let mut report = Report::default();
    let (store, nodes) = (&nightly.raw, nightly.fetch.as_ref());
    if let Some(fetch) = nodes {
        report.add(raw::repair(store, config.chain(), fetch, stored, full, |_| {}).await?);
    }
    if let Some(app) = nightly.app.as_ref().and_then(|late| late.app()) {
        // Before rows are compared: it also lets begin anew what was folded from them.
        let gaps = EvmGaps { config, store, app: &*app, bounds: Bounds::PART };
        report.add(gaps.repair(None, nodes).await);
        let state = config.repair.state_at_intervals.then_some(Part::Turn(turn));
        report.add(compare(config, &nightly.reader, &*app, full, state, false).await);
    }
    Ok(report)
}

/// Compares derived rows of `range`, and so much of the state. Where that ends early it is among what was not compared, and what was found before is told all the same: a
/// block that could not be mended can't be derived from either.
pub async fn compare(
    config: &Config,
    raw: &Arc<dyn RawReader>,
    app: &dyn AppStore,
    range: HeightRange,
    state: Option<Part>,
    refold: bool,
) -> Report {
    match compared(config, raw, app, range, state, refold).await {
        Ok(report) => report,
        Err(error) => {
            let mut report = Report::default();
            report.not_compared.push(format!("derived rows of {range}: {error:#}"));
            report
        }
    }
}

async fn compared(
    config: &Config,
    raw: &Arc<dyn RawReader>,
    app: &dyn AppStore,
    range: HeightRange,
    state: Option<Part>,
    refold: bool,
) -> anyhow::Result<Report> {
    let catalog = derive::catalog(config)?;
    let chain_id = raw.snapshot().await?.head().info.chain_id;
    let processors = derive::processors(config, derive::Asked::default(), Some(chain_id))?;
    let (catalog, processors) = (&catalog, &processors[..]);
    let derived = Derived { raw, app, catalog, processors, config, refold, ask_after: ASK_AFTER };
    let mut report = derived.repair(range).await;
    let max_bytes = usize::try_from(config.repair.state_mib.saturating_mul(1 << 20)).unwrap_or(usize::MAX);
    if let Some(part) = state.filter(|_| max_bytes > 0) {
        let states = States { raw, app, catalog, processors, part, max_bytes, refold };
        report.add(states.repair().await);
    }
    Ok(report)
}

/// A stretch of so many heights, anywhere.
pub fn sample(stored: HeightRange, heights: u64) -> HeightRange {
    if stored.len() <= heights {
        return stored;
    }
    let start = stored.start().get() + rand::rng().random_range(0..=stored.len() - heights);
    HeightRange::new(Height(start), Height(start.saturating_add(heights)))
}

fn tell(report: &Report) {
    let outcome = report.outcome();
    count(outcome.name());
    for (what, found) in [
        ("lookup", report.lookups_written + report.lookups_removed),
        ("block", report.blocks_damaged),
        ("index", report.index_damaged),
        ("derived", report.rows_damaged),
        ("state", report.states_damaged),
        ("evm-gap", report.gaps),
    ] {
        metrics::counter!("cairn_repair_found_total", "what" => what).increment(found);
    }
    metrics::gauge!("cairn_repair_unmended").set(report.unmended.count() as f64);
    metrics::gauge!("cairn_repair_not_compared").set(report.not_compared.count() as f64);
    if let Some(open) = report.gaps_open {
        metrics::gauge!("cairn_evm_gaps").set(open as f64);
    }
    match outcome {
        Outcome::Clean => {
            tracing::info!(
                heights = report.heights,
                blocks = report.blocks,
                rows = report.rows,
                states = report.states,
                "repair: all good"
            );
            for note in report.notes.kept() {
                tracing::info!("repair: {note}");
            }
        }
        Outcome::Incomplete if report.found() == 0 => {
            tracing::warn!("repair: what was compared is good, but not everything was:\n{report}");
        }
        Outcome::Mended | Outcome::Incomplete | Outcome::Unmended => {
            tracing::warn!("repair found something:\n{report}");
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("cairn_repair_runs_total", "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_lie_in_what_is_stored() {
        let stored = HeightRange::new(Height(10), Height(100));
        for _ in 0..50 {
            let part = sample(stored, 7);
            assert_eq!((part.len(), part.intersect(stored)), (7, part));
        }
        assert_eq!(sample(stored, 90), stored);
        assert_eq!(sample(stored, 1_000), stored);
    }
}
