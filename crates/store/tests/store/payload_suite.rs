//! The references of payloads pass their suites.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::SystemClock;
use cairn_store::suite_payload::{
    PayloadsFactory, RegistryFactory, TestPayloads, TestRegistry, run_registry, run_store,
};
use cairn_store::{MemoryPayloads, MemoryRegistry, PayloadError, Result};

struct Registries;

#[async_trait]
impl RegistryFactory for Registries {
    async fn registry(&self) -> Result<Arc<dyn TestRegistry>> {
        Ok(Arc::new(MemoryRegistry::new(Arc::new(SystemClock))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_registry_conforms() {
    let report = run_registry(Arc::new(Registries), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

struct Payloads;

#[async_trait]
impl PayloadsFactory for Payloads {
    async fn payloads(&self) -> Result<Arc<dyn TestPayloads>, PayloadError> {
        Ok(Arc::new(MemoryPayloads::new(Arc::new(SystemClock))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_payloads_conform() {
    let report = run_store(Arc::new(Payloads), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}
