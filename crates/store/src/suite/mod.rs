//! The conformance suite of the raw store traits: every backend runs all of it (law 10).
//!
//! A backend gives a [`StoreFactory`]; [`run_all`] runs every one of [`cases`] on places that it makes, prints a line for each and
//! ends with `N passed, M failed`. A backend's test demands [`Report::is_complete`], so that no case can be left out.
//!
//! ```text
//! let report = suite::run_all(Arc::new(MyFactory), std::env::var("CAIRN_CASE").ok().as_deref()).await;
//! assert!(report.is_complete(), "{report}");
//! ```
//!
//! Cases share nothing: each has its own places and its own clock, and what it does depends on nothing else.

// Lists functions `async fn(Arc<dyn StoreFactory>) -> CaseResult` under their own names.
macro_rules! case_list {
    ($group:literal: $($name:ident),+ $(,)?) => {
        vec![$($crate::suite::Case {
            name: concat!($group, "::", stringify!($name)),
            run: |factory| Box::pin($name(factory)),
        }),+]
    };
}

pub mod blocks;
pub(crate) mod check;
mod subject;

mod append;
pub(crate) mod beside;
mod differential;
mod filling;
mod finality;
mod initialising;
mod isolation;
mod leases;
mod maintenance;
mod orphans;
mod reading;
mod replacing;
mod restart;
mod rollback;
mod seams;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cairn_core::{Clock, Height};
use futures::{StreamExt, stream};

use crate::{RawDump, RawFiller, RawMaintenance, RawReader, RawReplacer, RawWriter, Result};

pub use check::{CaseResult, Failure};

/// The longest that one case may take, in seconds.
const CASE_TIMEOUT_S: u64 = 900;

/// Everything that a raw store can do.
pub trait TestStore: RawReader + RawWriter + RawFiller + RawReplacer + RawMaintenance + RawDump {}

impl<T: RawReader + RawWriter + RawFiller + RawReplacer + RawMaintenance + RawDump> TestStore for T {}

/// Makes places for stores.
#[async_trait]
pub trait StoreFactory: Send + Sync + 'static {
    /// A new place that holds nothing, such as a temporary directory. Stores opened there judge the expiry of leases by `clock`.
    async fn place(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn StorePlace>>;

    /// How many random sequences of verbs the differential case compares with the reference.
    fn differential_seeds(&self) -> u64 {
        16
    }

    /// How many cases, and how many runs within a case that has many of one kind, are worked on at the same time: each on a place of its
    /// own. For backends that are waited for.
    fn at_once(&self) -> usize {
        1
    }
}

/// Where one store's data lives until the place is dropped.
#[async_trait]
pub trait StorePlace: Send + Sync {
    /// Opens the store: an empty one the first time, then what the last one left. Cases drop every handle and snapshot before they
    /// open it again, as after a crash: nothing was closed in order.
    async fn open(&self) -> Result<Arc<dyn TestStore>>;

    /// Removes the row of a block and leaves all else, as damage does to a database. It may lie in the head's range.
    async fn lose_block(&self, height: Height) -> Result<()>;
}

/// A clock that stands still until it is told to move.
#[derive(Debug, Default)]
pub struct TestClock {
    now_ms: AtomicU64,
}

impl TestClock {
    /// A clock that shows `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        TestClock { now_ms: AtomicU64::new(now_ms) }
    }

    /// Moves it on.
    pub fn advance_ms(&self, by_ms: u64) {
        self.now_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = CaseResult> + Send>>;

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: the module and the sentence that it tests.
    pub name: &'static str,
    run: fn(Arc<dyn StoreFactory>) -> CaseFuture,
}

impl Case {
    /// Runs it on new places of `factory`.
    pub async fn run(&self, factory: Arc<dyn StoreFactory>) -> CaseResult {
        (self.run)(factory).await
    }

    /// Runs it as a task of its own: the case, how long it took in milliseconds, and how it ended.
    async fn timed(self, factory: Arc<dyn StoreFactory>) -> (Case, u128, CaseResult) {
        let started = Instant::now();
        let run = tokio::spawn((self.run)(factory));
        let ended = match tokio::time::timeout(Duration::from_secs(CASE_TIMEOUT_S), run).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Failure::new(format!("the case panicked: {panic}"))),
            Err(_) => Err(Failure::new(format!("not done after {CASE_TIMEOUT_S} s"))),
        };
        (self, started.elapsed().as_millis(), ended)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Every case there is, in the order in which they run.
pub fn cases() -> Vec<Case> {
    [
        initialising::cases(),
        append::cases(),
        finality::cases(),
        rollback::cases(),
        orphans::cases(),
        reading::cases(),
        isolation::cases(),
        leases::cases(),
        filling::cases(),
        seams::cases(),
        restart::cases(),
        replacing::cases(),
        maintenance::cases(),
        differential::cases(),
    ]
    .concat()
}

/// How a run ended.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How many cases there are.
    pub total: usize,
    /// How many passed.
    pub passed: usize,
    /// Those that failed, and why.
    pub failed: Vec<(&'static str, Failure)>,
    /// Only cases chosen by name ran.
    pub filtered: bool,
}

impl Report {
    /// Every case ran and none failed; with a filter, every chosen one, and there was one.
    pub fn is_complete(&self) -> bool {
        let least = if self.filtered { 1 } else { self.total };
        self.failed.is_empty() && self.passed >= least
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, failure) in &self.failed {
            writeln!(f, "FAILED {name}: {failure}")?;
        }
        let left_out = self.total - self.passed - self.failed.len();
        if left_out > 0 {
            writeln!(f, "{left_out} of {} cases were left out by the filter", self.total)?;
        }
        write!(f, "{} passed, {} failed", self.passed, self.failed.len())
    }
}

/// Runs every case whose name contains `filter` (all where it is `None`), as many at a time as the factory says, and prints a line for each.
/// A case that panics, or takes longer than `CASE_TIMEOUT_S`, has failed. Needs a tokio runtime with time.
pub async fn run_all(factory: Arc<dyn StoreFactory>, filter: Option<&str>) -> Report {
    let all = cases();
    let mut report = Report { total: all.len(), filtered: filter.is_some(), ..Report::default() };
    let chosen = all.into_iter().filter(|case| filter.is_none_or(|part| case.name.contains(part)));
    let mut running =
        stream::iter(chosen.map(|case| case.timed(factory.clone()))).buffer_unordered(factory.at_once());
    while let Some((case, took_ms, ended)) = running.next().await {
        match ended {
            Ok(()) => {
                println!("ok     {} ({took_ms} ms)", case.name);
                report.passed += 1;
            }
            Err(failure) => {
                println!("FAILED {} ({took_ms} ms): {failure}", case.name);
                report.failed.push((case.name, failure));
            }
        }
    }
    println!("{} cases in the suite", report.total);
    println!("{} passed, {} failed", report.passed, report.failed.len());
    report
}
