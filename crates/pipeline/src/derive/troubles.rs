//! Trouble that may pass and doesn't, by service: when to tell of it.
//!
//! What may pass is tried again for ever, since a node or a database that is away comes back. One that refuses for good looks the same, and must not be tried for ever in silence.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Trouble that is over sooner isn't told of.
const TOLD_AFTER: Duration = Duration::from_secs(10);
/// The longest time between two tellings.
const TOLD_EVERY_AT_MOST: Duration = Duration::from_secs(3_600);
/// What comes so much later is other trouble.
const OTHER_AFTER: Duration = Duration::from_secs(600);

/// Trouble since the last commit, by service, of all workers of this process.
#[derive(Default)]
pub(super) struct Troubles {
    by_service: Mutex<BTreeMap<&'static str, Trouble>>,
}

struct Trouble {
    since: Instant,
    met: Instant,
    tell_at: Instant,
    is_told: bool,
}

impl Troubles {
    /// A service met trouble. For how long it has, where that is to be told now: after a while, and then at growing intervals.
    pub fn met(&self, service: &'static str) -> Option<Duration> {
        let now = Instant::now();
        let mut by_service = self.by_service.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Trouble { since: now, met: now, tell_at: now + TOLD_AFTER, is_told: false };
        let trouble = by_service.entry(service).or_insert_with(new);
        if now - trouble.met > OTHER_AFTER {
            *trouble = new();
        }
        trouble.met = now;
        if now < trouble.tell_at {
            return None;
        }
        let lasts = now - trouble.since;
        trouble.tell_at = now + lasts.min(TOLD_EVERY_AT_MOST);
        trouble.is_told = true;
        Some(lasts)
    }

    /// Something of a service was committed. How long the trouble lasted, where it was told of.
    pub fn over(&self, service: &'static str) -> Option<Duration> {
        let mut by_service = self.by_service.lock().unwrap_or_else(PoisonError::into_inner);
        by_service.remove(service).filter(|trouble| trouble.is_told).map(|trouble| trouble.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn trouble_that_lasts_is_told_at_growing_intervals_until_it_is_over() {
        let troubles = Troubles::default();
        let mut told_s = Vec::new();
        for _ in 0..30_000 {
            told_s.extend(troubles.met("asker").map(|lasts| lasts.as_secs()));
            tokio::time::advance(STEP).await;
        }
        assert_eq!(told_s[..9], [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560]);
        assert!(told_s[9..].windows(2).all(|pair| pair[1] - pair[0] == 3_600), "{told_s:?}");
        assert!(troubles.met("other").is_none(), "each service by itself");
        assert_eq!(troubles.over("asker"), Some(Duration::from_secs(30_000)));
        assert_eq!(troubles.over("asker"), None);

        // What passes is nothing to tell, nor what comes now and then.
        assert_eq!((troubles.met("asker"), troubles.over("asker")), (None, None));
        for _ in 0..5 {
            assert_eq!(troubles.met("asker"), None);
            tokio::time::advance(2 * OTHER_AFTER).await;
        }
    }
}
