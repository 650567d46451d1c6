//! How long a worker's chunks take, by step: what bounds a worker is the step that takes longest.

use tokio::time::Instant;

use super::processor::ServiceInfo;

/// Reading blocks, event rows and rows of state.
pub(super) const READ: &str = "read";
/// Asking a node, which enrichers do.
pub(super) const ASK: &str = "ask";
/// What a processor does, waiting for a thread included.
pub(super) const COMPUTE: &str = "compute";
/// The transaction that writes rows, lease and checkpoint.
pub(super) const COMMIT: &str = "commit";

/// One chunk's steps, one after the other. A step that fails isn't recorded.
pub(super) struct Steps {
    service: &'static str,
    since: Instant,
}

impl Steps {
    /// The first step begins now.
    pub fn begin(service: &ServiceInfo) -> Self {
        Self { service: service.name, since: Instant::now() }
    }

    /// A step ends now, and the next one begins.
    pub fn done(&mut self, step: &'static str) {
        let now = Instant::now();
        let took = now.duration_since(self.since).as_secs_f64();
        metrics::histogram!("cairn_worker_step_seconds", "service" => self.service, "step" => step)
            .record(took);
        self.since = now;
    }
}
