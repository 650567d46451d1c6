//! Jobs beside the main path: one that panics is named, counted and begun again, and ends nothing but itself.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How long a job rests that panicked.
const REST: Duration = Duration::from_secs(30);

/// Runs a job until it ends by itself or `stop` comes; one that panics begins again after a rest.
pub fn supervise<F, J>(job: &'static str, stop: CancellationToken, make: F)
where
    F: Fn() -> J + Send + 'static,
    J: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        while let Err(error) = tokio::spawn(make()).await {
            metrics::counter!("cairn_background_failures_total", "job" => job).increment(1);
            tracing::error!(job, %error, rest_s = REST.as_secs(), "a background job panicked; it begins again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(REST) => {}
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_job_that_panics_begins_again_until_it_ends_well() {
        let (tries, stop) = (Arc::new(AtomicU32::new(0)), CancellationToken::new());
        let counted = tries.clone();
        supervise("a test", stop.clone(), move || {
            let tries = counted.clone();
            async move {
                assert!(tries.fetch_add(1, Ordering::SeqCst) >= 2, "it panics at first");
            }
        });
        tokio::time::sleep(REST * 5).await;
        assert_eq!(tries.load(Ordering::SeqCst), 3);
    }
}
