//! The in-memory reference runs the suite that it is the measure of.

use std::sync::Arc;

use cairn_store::derived::suite::{MemoryFactory, run_all};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_passes_the_whole_suite() {
    let filter = std::env::var("CAIRN_CASE").ok();
    let report = run_all(Arc::new(MemoryFactory), filter.as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
