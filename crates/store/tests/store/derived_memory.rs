//! The in-memory reference runs the suite that it is the measure of, and its hook can break every commit.

use std::sync::{Arc, Mutex};

use cairn_core::{Clock, Height};
use cairn_store::derived::memory::MemoryDerived;
use cairn_store::derived::suite::{MemoryFactory, TestClock, catalog, run_all};
use cairn_store::derived::{ClaimRequest, Coordinator, DerivedReader, LeaseEnd, LeaseStatus, ReorgApplier};
use cairn_store::memory::CommitHook;
use cairn_store::{ReorgMark, Result, StoreError};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_passes_the_whole_suite() {
    let filter = std::env::var("CAIRN_CASE").ok();
    let report = run_all(Arc::new(MemoryFactory), filter.as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

/// Breaks the verb of this name, before or after it.
#[derive(Default)]
struct Breaker {
    before: Option<&'static str>,
    after: Option<&'static str>,
    told: Mutex<Vec<&'static str>>,
}

impl CommitHook for Breaker {
    fn before(&self, verb: &'static str) -> Result<()> {
        self.told.lock().expect("no test panics here").push(verb);
        if self.before == Some(verb) { Err(StoreError::Busy("a crash before".into())) } else { Ok(()) }
    }

    fn after(&self, verb: &'static str) -> Result<()> {
        if self.after == Some(verb) { Err(StoreError::Busy("a crash after".into())) } else { Ok(()) }
    }
}

fn request() -> ClaimRequest {
    ClaimRequest {
        service: "mapper".into(),
        version: 1,
        owner: "worker".into(),
        ttl_ms: 1_000,
        range_heights: 10,
        first: Height(0),
        limit_exclusive: Height(100),
        stop_exclusive: None,
        in_order: false,
    }
}

#[tokio::test]
async fn the_hook_breaks_a_verb_before_or_after_it() {
    let clock: Arc<dyn Clock> = Arc::new(TestClock::new(5));
    let store = MemoryDerived::new(catalog().expect("the suite's tables are right"), clock);
    store.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
    store.register("mapper", Height(0)).await.expect("registers");

    store.set_hook(Some(Arc::new(Breaker { before: Some("claim"), ..Breaker::default() })));
    assert!(matches!(store.clone().claim(&request()).await, Err(StoreError::Busy(_))));
    assert_eq!(store.lease(1).await.expect("reads"), None);

    store.set_hook(Some(Arc::new(Breaker { after: Some("claim"), ..Breaker::default() })));
    assert!(matches!(store.claim(&request()).await, Err(StoreError::Busy(_))));
    let lease = store.lease(1).await.expect("reads").expect("the lease was made all the same");
    assert_eq!(lease.status, LeaseStatus::Active);

    let listening = Arc::new(Breaker::default());
    store.set_hook(Some(listening.clone()));
    store.end(&lease, LeaseEnd::Released).await.expect("ends");
    store.repair_checkpoints().await.expect("repairs");
    store.snapshot().await.expect("reads");
    assert_eq!(*listening.told.lock().expect("no test panics here"), ["end", "repair_checkpoints"]);
}
