//! Progress for people: a bar on a terminal, a log line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cairn_core::Height;
use cairn_pipeline::derive::status::DeriveStatus;
use cairn_pipeline::status::{IngestState, IngestStatus};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::commands::status::bytes;

/// How often a line is logged where there is no terminal.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// How often the bar is redrawn.
const TICK: Duration = Duration::from_millis(250);
/// Over how long speeds are averaged.
const WINDOW: Duration = Duration::from_secs(10);

/// A simple bar on standard error; silent where that is no terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar of `len` steps.
    pub fn new(len: u64, what: &'static str) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr());
        bar.set_style(style("{msg} {wide_bar} {pos}/{len} {per_sec} eta {eta}"));
        bar.set_message(what);
        Bar(bar)
    }

    /// How far it is.
    pub fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Takes it away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constants; a wrong one falls back to the plain bar.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows an ingester's progress, and that of derived work, which goes on after it: until the status board is gone, or both have come to their end. A process that
/// is told to stop shows its ingester's end and no more.
pub async fn show(
    mut status: watch::Receiver<IngestStatus>,
    derived: Option<watch::Receiver<DeriveStatus>>,
    stop: CancellationToken,
) {
    let terminal = std::io::stderr().is_terminal();
    let bar = terminal.then(|| {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        bar.set_style(style("{wide_bar} {pos}/{len}\n{wide_msg}\n{prefix}"));
        bar
    });
    let mut speeds = Speeds::default();
    let mut logged = Instant::now();
    loop {
        let now = status.borrow_and_update().clone();
        speeds.add(&now);
        let derived = derived.as_ref().map(|derived| derived.borrow().clone());
        let (speed, rest) = lines(&now, &speeds, derived.as_ref());
        if let Some(bar) = &bar {
            let (done, all) = position(&now, derived.as_ref());
            bar.set_length(all);
            bar.set_position(done);
            bar.set_message(cut(speed));
            bar.set_prefix(cut(rest));
        } else if logged.elapsed() >= LOG_EVERY {
            logged = Instant::now();
            match rest.is_empty() {
                true => tracing::info!("{speed}"),
                false => tracing::info!("{speed}; {rest}"),
            }
        }
        if has_ended(&now) && (stop.is_cancelled() || is_derived(&now, derived.as_ref())) {
            break;
        }
        tokio::time::sleep(TICK).await;
        if status.has_changed().is_err() {
            break;
        }
    }
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
}

/// Whether no more blocks are taken.
fn has_ended(status: &IngestStatus) -> bool {
    matches!(status.state, IngestState::Stopped | IngestState::Halted(_))
}

/// Whether derived work has nothing left to do below the stored tip, or does no more of it.
fn is_derived(status: &IngestStatus, derived: Option<&DeriveStatus>) -> bool {
    let (Some(derived), Some(tip)) = (derived, status.tip) else { return true };
    derived.halted.is_some() || derived.watermark_exclusive().is_some_and(|next| next > tip.height)
}

/// How many heights are done, and of how many: of blocks, and once they are all there, of what is derived from them.
fn position(status: &IngestStatus, derived: Option<&DeriveStatus>) -> (u64, u64) {
    let stored = status.tip.map_or(0, |tip| tip.height.get() + 1);
    match derived {
        Some(derived) if has_ended(status) => {
            (derived.watermark_exclusive().map_or(0, Height::get).min(stored), stored.max(1))
        }
        _ => (stored, status.target.map_or(1, |target| target.get() + 1)),
    }
}

/// The columns of a terminal that nobody made wider.
const COLUMNS: usize = 80;

/// Cut so that it stays on one line, with a mark where something was left out.
fn cut(mut line: String) -> String {
    if let Some((at, _)) = line.char_indices().nth(COLUMNS) {
        let keep = line[..at].char_indices().last().map_or(0, |(last, _)| last);
        line.truncate(keep);
        line.push('…');
    }
    line
}

/// Two lines: how fast it goes, and how far the tables are and what bounds it, which may name every node.
fn lines(status: &IngestStatus, speeds: &Speeds, derived: Option<&DeriveStatus>) -> (String, String) {
    let bound = match status.state {
        IngestState::Backfilling => format!("bounded by {}", status.bound_by),
        _ => String::new(),
    };
    let derived = derived.map(derived_line).unwrap_or_default();
    let rest = [derived, bound].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    (line(status, speeds), rest.join("; "))
}

fn line(status: &IngestStatus, speeds: &Speeds) -> String {
    let tip = status.tip.map_or("nothing yet".into(), |tip| format!("height {}", tip.height));
    let lag = status.lag_heights().map_or("?".into(), |lag| lag.to_string());
    let (blocks, txs, volume) = speeds.per_second();
    let speed = format!("{blocks:.0} blk/s, {txs:.0} tx/s, {}/s", bytes(volume as u64));
    match &status.state {
        IngestState::Starting => "starting".into(),
        IngestState::Backfilling => {
            let eta = speeds
                .eta(status.lag_heights().unwrap_or(0))
                .map_or("eta ?".into(), |eta| format!("eta {:#}", indicatif::HumanDuration(eta)));
            format!("{tip}, {lag} behind, {speed}, {eta}")
        }
        IngestState::Following => format!("{tip}, at the head (lag {lag}), {} reorgs", status.reorgs),
        IngestState::Waiting(reason) => format!("{tip}, waiting: {reason}"),
        IngestState::Halted(reason) => format!("{tip}, halted: {reason}"),
        IngestState::Stopped => format!("{tip}, stopped"),
    }
}

/// How far the tables are, and the worker that is furthest behind.
fn derived_line(status: &DeriveStatus) -> String {
    if let Some(reason) = &status.halted {
        return format!("derived work halted: {reason}");
    }
    let waited_for = status.services.iter().filter(|(_, service)| !service.is_enricher);
    let last = waited_for.min_by_key(|(_, service)| service.next);
    match last.and_then(|(name, service)| Some((name, service.next?.prev()?))) {
        Some((name, height)) => format!("derived to {height} ({name})"),
        None => String::new(),
    }
}

/// Speeds over the last few seconds.
#[derive(Default)]
struct Speeds {
    samples: std::collections::VecDeque<(Instant, u64, u64, u64)>,
}

impl Speeds {
    fn add(&mut self, status: &IngestStatus) {
        let now = Instant::now();
        self.samples.push_back((now, status.blocks, status.transactions, status.bytes));
        while self.samples.front().is_some_and(|first| now - first.0 > WINDOW) && self.samples.len() > 2 {
            self.samples.pop_front();
        }
    }

    fn per_second(&self) -> (f64, f64, f64) {
        match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) if last.0 > first.0 => {
                let seconds = (last.0 - first.0).as_secs_f64();
                let rate = |from: u64, to: u64| (to - from) as f64 / seconds;
                (rate(first.1, last.1), rate(first.2, last.2), rate(first.3, last.3))
            }
            _ => (0.0, 0.0, 0.0),
        }
    }

    fn eta(&self, blocks_left: u64) -> Option<Duration> {
        let (blocks, _, _) = self.per_second();
        (blocks > 0.0).then(|| Duration::from_secs_f64((blocks_left as f64 / blocks).min(1e9)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_core::{BlockId, BlockRef, SystemClock};
    use cairn_pipeline::derive::status::ServiceStatus;
    use cairn_pipeline::status::{Halt, StatusBoard};

    use super::*;

    #[test]
    fn what_is_shown_of_a_mainnet_backfill_fits_into_80_columns() {
        let mut ingest = StatusBoard::new(Arc::new(SystemClock)).get();
        ingest.state = IngestState::Backfilling;
        let tip = Height(11_234_567);
        ingest.tip = Some(BlockRef { height: tip, id: BlockId([1; 32]) });
        ingest.target = Some(Height(23_456_789));
        ingest.bound_by = "the database".into();
        let mut speeds = Speeds::default();
        let now = Instant::now();
        speeds.samples.push_back((now - Duration::from_secs(10), 0, 0, 0));
        speeds.samples.push_back((now, 12_340, 1_234_560, 2 << 30));
        let next = Some(Height(11_234_000));
        let mut derived = DeriveStatus::default();
        derived.services.insert("nft_item_metadata_worker", ServiceStatus { next, ..Default::default() });
        let (speed, rest) = lines(&ingest, &speeds, Some(&derived));
        assert!(speed.contains("1234 blk/s") && speed.contains("123456 tx/s"), "{speed}");
        assert!(rest.starts_with("derived to 11233999"), "{rest}");
        assert!(rest.ends_with("bounded by the database"), "{rest}");
        for line in [speed, rest] {
            assert!(line.chars().count() <= COLUMNS, "{} columns: {line}", line.chars().count());
            assert_eq!(cut(line.clone()), line);
        }
        assert_eq!(cut("é".repeat(81)), "é".repeat(79) + "…");
    }

    #[test]
    fn progress_is_shown_until_all_that_was_stored_is_derived() {
        let mut ingest = StatusBoard::new(Arc::new(SystemClock)).get();
        ingest.tip = Some(BlockRef { height: Height(99), id: BlockId([1; 32]) });
        (ingest.source_head, ingest.target) = (Some(Height(1_000)), Some(Height(199)));
        ingest.state = IngestState::Backfilling;
        let at = |next: u64, is_enricher| ServiceStatus {
            next: Some(Height(next)),
            is_enricher,
            ..Default::default()
        };
        let mut derived = DeriveStatus::default();
        derived.services.insert("token_worker", at(40, false));
        derived.services.insert("token_metadata_worker", at(0, true));
        assert!(!has_ended(&ingest));
        assert_eq!(position(&ingest, Some(&derived)), (100, 200));
        assert_eq!(ingest.lag_heights(), Some(100), "it works towards its last height, wherever the node is");

        ingest.state = IngestState::Stopped;
        assert!(has_ended(&ingest) && !is_derived(&ingest, Some(&derived)));
        assert_eq!(position(&ingest, Some(&derived)), (40, 100));
        let (speed, rest) = lines(&ingest, &Speeds::default(), Some(&derived));
        assert_eq!(speed, "height 99, stopped");
        assert_eq!(rest, "derived to 39 (token_worker)");
        ingest.state = IngestState::Halted("too deep".into());
        assert!(has_ended(&ingest) && !is_derived(&ingest, Some(&derived)));
        // Nobody waits for who asks a node.
        derived.services.insert("token_worker", at(100, false));
        assert!(is_derived(&ingest, Some(&derived)));
        derived.services.insert("token_worker", at(40, false));
        derived.halted = Some(Halt { service: None, height: None, code: "invalid", message: "no".into() });
        assert!(is_derived(&ingest, Some(&derived)), "it will never be");
        assert!(is_derived(&ingest, None));
    }
}
