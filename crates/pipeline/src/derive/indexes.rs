//! Indexes that the app store put off, built while everything else goes on.
//!
//! They change no row and no answer but how long it takes. So whatever goes wrong with them is logged, counted and tried again, and never ends derived work.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::Height;
use cairn_store::StoreError;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::context::Context;

/// How often it is looked for what lacks, where nothing did.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest pause after a failure that won't pass by itself: each try may read a large partition.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Until told to stop. `final_to` is the height below which nothing is undone.
pub(super) async fn run(context: Arc<Context>, final_to: watch::Receiver<Height>) {
    let stop = context.stop.clone();
    let build = move || {
        let (context, final_to) = (context.clone(), *final_to.borrow());
        async move { context.app.build_indexes(final_to).await }
    };
    keep_up(build, stop).await;
}

/// Builds what there is to build, and looks again after a while. A build may take hours; told to stop, nobody waits for it.
async fn keep_up<F>(build: impl Fn() -> F, stop: CancellationToken)
where
    F: Future<Output = Result<bool, StoreError>>,
{
    let mut after_failure = PAUSE;
    loop {
        let built = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            built = build() => built,
        };
        let outcome = match &built {
            Ok(true) => "made",
            Ok(false) => "nothing",
            Err(error) => {
                tracing::warn!(
                    %error,
                    "an index of the app store could not be built; it is tried again. Until then lists that go by it take longer"
                );
                "failed"
            }
        };
        metrics::counter!("cairn_app_index_rounds_total", "outcome" => outcome).increment(1);
        let pause = match built {
            Err(error) if !error.kind().is_retryable() => {
                let pause = after_failure;
                after_failure = (2 * pause).min(LONGEST_PAUSE);
                pause
            }
            _ => {
                after_failure = PAUSE;
                PAUSE
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_index_that_fails_is_tried_again_whatever_the_error_is_and_less_often_if_it_stays() {
        let refused = || Err(StoreError::Database("relation exists already (SQLSTATE 42P07)".into()));
        let busy = || Err(StoreError::Busy("a lock".into()));
        let answers = Mutex::new(vec![Ok(false), refused(), Ok(true), busy(), refused(), refused()]);
        let (begun, stop) = (Instant::now(), CancellationToken::new());
        let asked = Mutex::new(Vec::new());
        let build = || {
            asked.lock().unwrap().push(begun.elapsed().as_secs());
            let answer = answers.lock().unwrap().pop().unwrap_or_else(|| {
                stop.cancel();
                Ok(false)
            });
            async move { answer }
        };
        keep_up(build, stop.clone()).await;
        assert_eq!(*asked.lock().unwrap(), [0, 10, 30, 40, 50, 60, 70]);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_who_stops_waits_for_a_build() {
        let stop = CancellationToken::new();
        let build = || {
            stop.cancel();
            std::future::pending()
        };
        let ended = tokio::time::timeout(Duration::from_secs(1), keep_up(build, stop.clone()));
        ended.await.expect("ends at once");
    }
}
