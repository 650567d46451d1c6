//! The patience of a start: what isn't there yet is waited for, with a message that names it, up to a limit.
//!
//! Under compose, Kubernetes and the like everything begins at once, in any order. What can't be mended by waiting ends the start at once.

use std::time::Duration;

use anyhow::bail;
use cairn_source::SourceError;
use cairn_store::StoreError;
use tokio::time::Instant;

use crate::config::Config;
use crate::output::say;
use crate::service::stop_signal;

/// The pauses between two tries grow from the one to the other.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long a start goes on waiting.
pub struct Patience {
    limit: Duration,
    since: Instant,
    pause: Duration,
    told: String,
}

impl Patience {
    /// By the configuration.
    pub fn of(config: &Config) -> Patience {
        Patience {
            limit: Duration::from_secs(config.start_wait_s),
            since: Instant::now(),
            pause: PAUSES.0,
            told: String::new(),
        }
    }

    /// Says what is waited for and why, and returns after a pause. An error once the limit is passed, or where somebody ends the process.
    pub async fn wait_for(&mut self, what: &str, error: anyhow::Error) -> anyhow::Result<()> {
        let left = self.limit.saturating_sub(self.since.elapsed());
        if left.is_zero() {
            let limit_s = self.limit.as_secs();
            return Err(error.context(format!("waited {limit_s} s (start_wait_s) for {what}")));
        }
        let message = format!("{error:#}");
        // Said once as long as it is the same.
        if self.told != message {
            let left_s = left.as_millis().div_ceil(1_000);
            say(format_args!("waiting up to {left_s} s for {what}: {message}"));
            self.told = message;
        }
        tokio::select! {
            () = tokio::time::sleep(self.pause.min(left)) => {}
            signal = stop_signal() => bail!("stopped by a signal ({signal}) while waiting for {what}"),
        }
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(())
    }
}

/// Whether a database may still come: it is away, starts up, has no such database or role yet, refuses this one, or nobody has made its schema.
pub fn may_come(error: &StoreError) -> bool {
    matches!(error, StoreError::Busy(_) | StoreError::Database(_) | StoreError::OldSchema { .. })
}

/// The same of what a start met.
pub fn is_awaited(error: &anyhow::Error) -> bool {
    let store = error.downcast_ref::<StoreError>().is_some_and(may_come);
    let source = error.downcast_ref::<SourceError>().map(SourceError::kind);
    store || source == Some(cairn_core::ErrorKind::Retry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> anyhow::Error {
        anyhow::Error::from(StoreError::Busy("connection refused".into())).context("can't open the raw store")
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_up_to_its_limit_and_then_says_for_what_it_waited() {
        let config = Config { start_wait_s: 100, ..Config::default() };
        let mut patience = Patience::of(&config);
        let begun = Instant::now();
        let mut tries = 0;
        let error = loop {
            assert!(is_awaited(&away()));
            tries += 1;
            if let Err(error) = patience.wait_for("the raw database", away()).await {
                break format!("{error:#}");
            }
        };
        assert_eq!(begun.elapsed(), Duration::from_secs(100));
        assert!((6..=12).contains(&tries), "{tries} tries");
        assert!(error.starts_with("waited 100 s (start_wait_s) for the raw database"), "{error}");
        assert!(error.contains("connection refused"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_nothing_is_waited_for() {
        let config = Config { start_wait_s: 0, ..Config::default() };
        assert!(Patience::of(&config).wait_for("a node", away()).await.is_err());
    }

    #[test]
    fn what_waiting_can_not_mend_ends_a_start() {
        let old = StoreError::OldSchema { schema: "raw", found: 0, known: 3 };
        assert!(may_come(&old) && may_come(&StoreError::Database("3D000".into())));
        for error in [
            StoreError::UnknownSchema { found: 9, known: 3 },
            StoreError::Invalid("transaction pooling".into()),
            StoreError::Corrupt { place: "head".into(), what: "two rows".into() },
        ] {
            assert!(!may_come(&error), "{error}");
        }
        assert!(!is_awaited(&anyhow::anyhow!("the configuration can't be used")));
    }
}
