//! The conformance suites of payloads: one for [`PayloadRegistry`] with the writer's side of the protocol, one for [`PayloadStore`].
//!
//! A backend gives a factory; [`run_registry`] or [`run_store`] runs every case on a registry or a store of its own, prints a line for each and ends with
//! `N passed, M failed`. A backend's test demands [`Report::is_complete`]. Time is the backend's own: cases use grace times of a millisecond, or of an
//! hour for what must not happen.

mod check;
mod collector;
mod crash;
mod races;
mod store;
mod writer;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;

use crate::suite::{CaseResult, Failure, Report};
use crate::{
    MemoryPayloads, MemoryRegistry, MemoryTransaction, PayloadError, PayloadRef, PayloadRegistry, PayloadRow,
    PayloadStore, Result,
};

/// The longest that one case may take, in seconds.
const CASE_TIMEOUT_S: u64 = 120;

/// A registry, and what a test needs besides: a writer's transactions, and a look at the tables.
#[async_trait]
pub trait TestRegistry: PayloadRegistry {
    /// Begins a data transaction, as the backend's writer does.
    async fn begin(&self) -> Result<Box<dyn TestTransaction>>;
    /// What the committed rows of other tables refer to, by place.
    async fn references(&self) -> Result<BTreeMap<u64, PayloadRef>>;
    /// Every row, as committed, in the order of (hash, generation).
    async fn rows(&self) -> Result<Vec<PayloadRow>>;
}

/// A writer's data transaction. Dropping it rolls it back.
#[async_trait]
pub trait TestTransaction: Send {
    /// The statement of [`PayloadRegistry`], "making live". Answers the objects that are lost: deleting, or gone.
    async fn make_live(&mut self, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>>;
    /// Writes a row of another table, the one at `place`, that refers to `object`.
    async fn refer(&mut self, place: u64, object: PayloadRef) -> Result<()>;
    /// Deletes the row at `place`.
    async fn forget(&mut self, place: u64) -> Result<()>;
    /// Commits.
    async fn commit(self: Box<Self>) -> Result<()>;
}

/// Makes registries.
#[async_trait]
pub trait RegistryFactory: Send + Sync + 'static {
    /// A new one that holds nothing.
    async fn registry(&self) -> Result<Arc<dyn TestRegistry>>;
}

/// A store of payloads, and a way to damage it.
#[async_trait]
pub trait TestPayloads: PayloadStore {
    /// Writes whatever bytes under whatever key, past all checks.
    async fn insert_unchecked(&self, key: &str, body: Bytes) -> Result<(), PayloadError>;
}

/// Makes stores of payloads.
#[async_trait]
pub trait PayloadsFactory: Send + Sync + 'static {
    /// A new one that holds nothing.
    async fn payloads(&self) -> Result<Arc<dyn TestPayloads>, PayloadError>;
}

#[async_trait]
impl TestRegistry for MemoryRegistry {
    async fn begin(&self) -> Result<Box<dyn TestTransaction>> {
        Ok(Box::new(MemoryRegistry::begin(self)))
    }

    async fn references(&self) -> Result<BTreeMap<u64, PayloadRef>> {
        Ok(MemoryRegistry::references(self))
    }

    async fn rows(&self) -> Result<Vec<PayloadRow>> {
        Ok(MemoryRegistry::rows(self))
    }
}

#[async_trait]
impl TestTransaction for MemoryTransaction {
    async fn make_live(&mut self, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>> {
        Ok(MemoryTransaction::make_live(self, objects).await)
    }

    async fn refer(&mut self, place: u64, object: PayloadRef) -> Result<()> {
        MemoryTransaction::refer(self, place, object);
        Ok(())
    }

    async fn forget(&mut self, place: u64) -> Result<()> {
        MemoryTransaction::forget(self, place);
        Ok(())
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        MemoryTransaction::commit(*self);
        Ok(())
    }
}

#[async_trait]
impl TestPayloads for MemoryPayloads {
    async fn insert_unchecked(&self, key: &str, body: Bytes) -> Result<(), PayloadError> {
        MemoryPayloads::insert_unchecked(self, key, body);
        Ok(())
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = CaseResult> + Send>>;
/// A named case over a factory.
type Case<F> = (&'static str, fn(Arc<F>) -> CaseFuture);

// Lists functions `async fn(Arc<dyn Factory>) -> CaseResult` under their own names.
macro_rules! payload_cases {
    ($group:literal: $($name:ident),+ $(,)?) => {
        vec![$((concat!($group, "::", stringify!($name)), |factory| Box::pin($name(factory)))),+]
    };
}
use payload_cases;

/// Runs every case of the registry whose name contains `filter` (all where it is `None`). Needs a tokio runtime with time.
pub async fn run_registry(factory: Arc<dyn RegistryFactory>, filter: Option<&str>) -> Report {
    let all = [writer::cases(), collector::cases(), crash::cases(), races::cases()].concat();
    run(all, factory, filter).await
}

/// Runs every case of the store whose name contains `filter` (all where it is `None`). Needs a tokio runtime with time.
pub async fn run_store(factory: Arc<dyn PayloadsFactory>, filter: Option<&str>) -> Report {
    run(store::cases(), factory, filter).await
}

async fn run<F: ?Sized + Send + Sync + 'static>(
    all: Vec<Case<F>>,
    factory: Arc<F>,
    filter: Option<&str>,
) -> Report {
    let mut report = Report { total: all.len(), filtered: filter.is_some(), ..Report::default() };
    for (name, case) in all.into_iter().filter(|(name, _)| filter.is_none_or(|part| name.contains(part))) {
        let started = Instant::now();
        let running = tokio::spawn(case(factory.clone()));
        let abort = running.abort_handle();
        let ended = match tokio::time::timeout(Duration::from_secs(CASE_TIMEOUT_S), running).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(panic)) => Err(Failure::new(format!("the case panicked: {panic}"))),
            Err(_) => {
                abort.abort();
                Err(Failure::new(format!("not done after {CASE_TIMEOUT_S} s")))
            }
        };
        let took_ms = started.elapsed().as_millis();
        match ended {
            Ok(()) => {
                println!("ok     {name} ({took_ms} ms)");
                report.passed += 1;
            }
            Err(failure) => {
                println!("FAILED {name} ({took_ms} ms): {failure}");
                report.failed.push((name, failure));
            }
        }
    }
    println!("{} passed, {} failed", report.passed, report.failed.len());
    report
}
