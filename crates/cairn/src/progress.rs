//! Progress for people: a bar on a terminal, a log line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use cairn_pipeline::derive::status::DeriveStatus;
use cairn_pipeline::status::{IngestState, IngestStatus};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;

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

/// Shows an ingester's progress until the status board is gone or the ingester has stopped.
pub async fn show(mut status: watch::Receiver<IngestStatus>, derived: Option<watch::Receiver<DeriveStatus>>) {
    let terminal = std::io::stderr().is_terminal();
    let bar = terminal.then(|| {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        bar.set_style(style("{wide_bar} {pos}/{len} {msg}"));
        bar
    });
    let mut speeds = Speeds::default();
    let mut logged = Instant::now();
    loop {
        let now = status.borrow_and_update().clone();
        speeds.add(&now);
        let derived = derived.as_ref().map_or(String::new(), |derived| derived_line(&derived.borrow()));
        let line = line(&now, &speeds) + &derived;
        if let Some(bar) = &bar {
            let target = now.target.map_or(1, |target| target.get() + 1);
            bar.set_length(target);
            bar.set_position(now.tip.map_or(0, |tip| tip.height.get() + 1));
            bar.set_message(line);
        } else if logged.elapsed() >= LOG_EVERY {
            logged = Instant::now();
            tracing::info!("{line}");
        }
        if matches!(now.state, IngestState::Stopped | IngestState::Halted(_)) {
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

fn line(status: &IngestStatus, speeds: &Speeds) -> String {
    let tip = status.tip.map_or("nothing yet".into(), |tip| format!("height {}", tip.height));
    let lag = status.lag_heights().map_or("?".into(), |lag| lag.to_string());
    let (blocks, txs, volume) = speeds.per_second();
    let speed = format!("{blocks:.0} blocks/s, {txs:.0} tx/s, {}/s", bytes(volume as u64));
    match &status.state {
        IngestState::Starting => "starting".into(),
        IngestState::Backfilling => {
            let eta = speeds
                .eta(status.lag_heights().unwrap_or(0))
                .map_or("eta ?".into(), |eta| format!("eta {}", indicatif::HumanDuration(eta)));
            format!("{tip}, {lag} behind, {speed}, {eta}; bounded by {}", status.bound_by)
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
        return format!("; derived work halted: {reason}");
    }
    let last = status.services.iter().min_by_key(|(_, service)| service.next);
    match last.and_then(|(name, service)| Some((name, service.next?.prev()?))) {
        Some((name, height)) => format!("; derived to {height} ({name})"),
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
