//! When ingestion tells of what it can't get past.
//!
//! The log has a line for the first failure of each kind, lines at growing intervals while it lasts, and one when it is over. The error log
//! has an entry once a source has failed [`LASTING_TRIES`] times in a row.

use std::time::Duration;

use cairn_core::Height;
use tokio::time::Instant;

use super::Reports;
use crate::IngestError;
use crate::status::{LASTING_TRIES, Obstacle};

/// The shortest time between two lines about the same, and how long answers may be unsettled before there is a line.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// The longest time between two lines.
const TELL_EVERY_AT_MOST: Duration = Duration::from_secs(3_600);

/// What was told since something was stored last.
#[derive(Default)]
pub(super) struct Telling {
    spell: Option<Spell>,
}

/// A time in which nothing is stored.
struct Spell {
    since: Instant,
    tell_at: Instant,
    /// Codes and checks that were named: a new one is told at once.
    told: Vec<(&'static str, Option<String>)>,
    has_lines: bool,
}

impl Spell {
    /// How long it lasts, where that is to be told now.
    fn due(&mut self, is_new: bool) -> Option<u64> {
        let now = Instant::now();
        if !is_new && now < self.tell_at {
            return None;
        }
        self.has_lines = true;
        let lasts = now - self.since;
        self.tell_at = now + lasts.clamp(TELL_AFTER, TELL_EVERY_AT_MOST);
        Some(lasts.as_secs())
    }
}

impl Telling {
    fn spell(&mut self) -> &mut Spell {
        self.spell.get_or_insert_with(|| {
            let now = Instant::now();
            Spell { since: now, tell_at: now + TELL_AFTER, told: Vec::new(), has_lines: false }
        })
    }

    /// A try failed and is repeated after `pause`. `next` is the height that can't be stored, where the error names none.
    pub fn failed(
        &mut self,
        error: &IngestError,
        obstacle: &Obstacle,
        pause: Duration,
        next: Height,
        reports: &Reports,
    ) {
        let spell = self.spell();
        let kind = (obstacle.code, obstacle.check.clone());
        let is_new = !spell.told.contains(&kind);
        if is_new {
            spell.told.push(kind);
        }
        let due = spell.due(is_new);
        if let Some(lasts_s) = due {
            let (tries, remedy) = (obstacle.tries, obstacle.remedy.as_deref().unwrap_or("wait"));
            let pause_ms = pause.as_millis() as u64;
            tracing::warn!(%error, tries, lasts_s, pause_ms, remedy, "nothing is stored; trying again");
        }
        // Where the store fails, its error log does too.
        let is_reportable = !matches!(error, IngestError::Store(_));
        if is_reportable
            && (obstacle.tries == LASTING_TRIES || due.is_some() && obstacle.tries > LASTING_TRIES)
        {
            reports.fatal(obstacle.height.unwrap_or(next), obstacle.message.clone());
        }
    }

    /// The source's answers don't allow a decision.
    pub fn unsettled(&mut self, reason: &str) {
        if let Some(lasts_s) = self.spell().due(false) {
            tracing::warn!(reason, lasts_s, "nothing is stored; waiting for the node");
        } else {
            tracing::debug!(reason, "unsettled");
        }
    }

    /// Something was stored, or there is nothing to store.
    pub fn over(&mut self) {
        if let Some(spell) = self.spell.take().filter(|spell| spell.has_lines) {
            tracing::info!(lasted_s = spell.since.elapsed().as_secs(), "ingestion goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_at_once_and_then_at_growing_intervals() {
        let mut telling = Telling::default();
        let mut told_s = Vec::new();
        for second in 0..20_000 {
            told_s.extend(telling.spell().due(second == 0));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told_s[..6], [0, 10, 20, 40, 80, 160]);
        assert!(told_s[10..].windows(2).all(|pair| pair[1] - pair[0] <= 3_600), "{told_s:?}");
        telling.over();
        assert_eq!(telling.spell().due(false), None, "what begins anew is given its time again");
    }
}
