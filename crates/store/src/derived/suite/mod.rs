//! The conformance suite of the derived store's traits: every backend runs all of it (law 10).
//!
//! A backend gives a [`DerivedFactory`]; [`run_all`] runs every one of [`cases`] on places that it makes, prints a line for each and
//! ends with `N passed, M failed`. A backend's test demands [`Report::is_complete`], so that no case can be left out.
//!
//! ```text
//! let report = suite::run_all(Arc::new(MyFactory), std::env::var("CAIRN_CASE").ok().as_deref()).await;
//! assert!(report.is_complete(), "{report}");
//! ```
//!
//! Cases share nothing: each has its own places and its own clock, and what it does depends on nothing else. The tables are those of
//! [`catalog`].

// Lists functions `async fn(Arc<dyn DerivedFactory>) -> CaseResult` under their own names.
macro_rules! case_list {
    ($group:literal: $($name:ident),+ $(,)?) => {
        vec![$($crate::derived::suite::Case {
            name: concat!($group, "::", stringify!($name)),
            run: |factory| Box::pin($name(factory)),
        }),+]
    };
}

mod raw;
mod subject;
mod tables;

mod answers;
mod applying;
mod attempts;
mod breaking;
mod committing;
mod correcting;
mod differential;
mod forks;
mod leases;
mod log;
mod maintaining;
mod quarantine;
mod racing;
mod reading;
mod rebuilding;
mod registering;
mod repairing;
mod restart;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cairn_core::{Clock, Height};
use futures::{StreamExt, stream};

use super::errors::ErrorLog;
use super::reader::DerivedDump;
use super::table::Catalog;
use super::{DerivedStore, memory};
use crate::Result;

pub use crate::suite::check::{CaseResult, Failure};
pub use crate::suite::{Report, TestClock};
pub use breaking::{BROKEN, Breaker, Breaking, Countdown};
pub use tables::catalog;

/// The longest that one case may take, in seconds.
const CASE_TIMEOUT_S: u64 = 900;

/// Everything that a derived store can do.
pub trait TestDerived: DerivedStore + DerivedDump {}

impl<T: DerivedStore + DerivedDump> TestDerived for T {}

/// Makes places for stores.
#[async_trait]
pub trait DerivedFactory: Send + Sync + 'static {
    /// A new place that holds nothing, such as a temporary directory. Stores opened there have these tables and judge the expiry of
    /// leases by `clock`.
    async fn place(&self, catalog: Catalog, clock: Arc<dyn Clock>) -> Result<Arc<dyn DerivedPlace>>;

    /// How many random sequences of verbs the differential case compares with the reference.
    fn differential_seeds(&self) -> u64 {
        16
    }

    /// How many cases, and how many runs within a case that has many of one kind, are worked on at the same time: each on a place of its
    /// own. For backends that are waited for.
    fn at_once(&self) -> usize {
        1
    }

    /// How many leases expire at once in the case of L06.
    fn expired_leases(&self) -> u64 {
        5_000
    }

    /// How many pairs of commits meet in the case of P02.
    fn rounds_of_writers(&self) -> u64 {
        200
    }
}

/// Where one store's data lives until the place is dropped.
#[async_trait]
pub trait DerivedPlace: Send + Sync {
    /// Opens the store: an empty one the first time, then what the last one left. Cases drop every handle and snapshot before they
    /// open it again, as after a crash: nothing was closed in order.
    async fn open(&self) -> Result<Arc<dyn TestDerived>>;

    /// Opens the error log of the same place, as cases open the store.
    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>>;

    /// Deletes a lease behind the store's back, as damage or somebody's SQL does: no verb can.
    async fn lose_lease(&self, id: u64) -> Result<()>;

    /// Sets the `last_height` of every row of a table of state behind the store's back, as damage or somebody's SQL does: no folder can.
    async fn set_last_height(&self, table: &'static str, height: Height) -> Result<()>;

    /// Opens both, as a case opens them again, so that their transactions can be broken off.
    async fn open_breaking(&self) -> Result<Breaking>;
}

type CaseFuture = Pin<Box<dyn Future<Output = CaseResult> + Send>>;

/// One case.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: the module and the sentence that it tests.
    pub name: &'static str,
    run: fn(Arc<dyn DerivedFactory>) -> CaseFuture,
}

impl Case {
    /// Runs it on new places of `factory`.
    pub async fn run(&self, factory: Arc<dyn DerivedFactory>) -> CaseResult {
        (self.run)(factory).await
    }

    /// Runs it as a task of its own: the case, how long it took in milliseconds, and how it ended.
    async fn timed(self, factory: Arc<dyn DerivedFactory>) -> (Case, u128, CaseResult) {
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
        registering::cases(),
        leases::cases(),
        attempts::cases(),
        committing::cases(),
        correcting::cases(),
        forks::cases(),
        applying::cases(),
        answers::cases(),
        repairing::cases(),
        reading::cases(),
        rebuilding::cases(),
        racing::cases(),
        restart::cases(),
        breaking::cases(),
        maintaining::cases(),
        quarantine::cases(),
        log::cases(),
        differential::cases(),
    ]
    .concat()
}

/// Runs every case whose name contains `filter` (all where it is `None`), as many at a time as the factory says, and prints a line for each.
/// A case that panics, or takes longer than `CASE_TIMEOUT_S`, has failed. Needs a tokio runtime with time.
pub async fn run_all(factory: Arc<dyn DerivedFactory>, filter: Option<&str>) -> Report {
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

/// The reference itself, as a factory: each place is one store.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryFactory;

struct MemoryPlace {
    store: memory::MemoryDerived,
    log: memory::MemoryErrorLog,
}

#[async_trait]
impl DerivedFactory for MemoryFactory {
    async fn place(&self, catalog: Catalog, clock: Arc<dyn Clock>) -> Result<Arc<dyn DerivedPlace>> {
        let store = memory::MemoryDerived::new(catalog, clock.clone());
        Ok(Arc::new(MemoryPlace { store, log: memory::MemoryErrorLog::new(clock) }))
    }

    fn expired_leases(&self) -> u64 {
        100_000
    }
}

#[async_trait]
impl DerivedPlace for MemoryPlace {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        Ok(Arc::new(self.store.clone()))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        Ok(Arc::new(self.log.clone()))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        self.store.lose_lease(id)
    }

    async fn set_last_height(&self, table: &'static str, height: Height) -> Result<()> {
        self.store.set_last_height(table, height)
    }

    async fn open_breaking(&self) -> Result<Breaking> {
        let breaker = Arc::new(Countdown::default());
        self.store.set_hook(Some(breaker.clone()));
        self.log.set_hook(Some(breaker.clone()));
        Ok(Breaking { store: self.open().await?, log: self.open_log().await?, breaker })
    }
}
