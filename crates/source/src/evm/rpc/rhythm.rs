//! How often a chain has blocks, and so when it is worth looking for the next one.

use std::time::Duration;

use cairn_core::Height;
use tokio::time::Instant;

/// How many times between blocks are remembered.
const REMEMBERED: usize = 4;
/// The longest pause before a block that is due.
const MAX_PAUSE: Duration = Duration::from_secs(15);
/// The longest pause once it is overdue.
const MAX_OVERDUE_PAUSE: Duration = Duration::from_secs(5);

/// The rhythm of a chain, as looks at its head have shown it.
#[derive(Debug, Default)]
pub struct Rhythm {
    head: Option<(Height, Instant)>,
    /// The last times from one block to the next.
    intervals: Vec<Duration>,
}

impl Rhythm {
    /// The head was at this height now.
    pub fn seen(&mut self, height: Height) {
        let now = Instant::now();
        match self.head {
            Some((before, _)) if before == height => return,
            Some((before, at)) if height > before => {
                let blocks = u32::try_from(height.since(before)).unwrap_or(u32::MAX);
                if self.intervals.len() == REMEMBERED {
                    self.intervals.remove(0);
                }
                self.intervals.push((now - at) / blocks);
            }
            // A fork, or the first look.
            _ => {}
        }
        self.head = Some((height, now));
    }

    /// How long to wait before the next look. `poll` is the pause where nothing is known, and the shortest one.
    pub fn wait(&self, poll: Duration) -> Duration {
        let Some((_, at)) = self.head.filter(|_| self.intervals.len() >= REMEMBERED - 1) else { return poll };
        // The shortest: a block that comes early is not missed for long.
        let interval = self.intervals.iter().min().copied().unwrap_or(poll);
        let passed = at.elapsed();
        let due = interval * 9 / 10;
        let pause = match due.checked_sub(passed) {
            Some(left) => left.min(MAX_PAUSE),
            None => (passed.saturating_sub(interval) / 8).min(MAX_OVERDUE_PAUSE),
        };
        pause.max(poll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);

    /// Looks at a chain with a block each `block` for `time`; how often, and the longest that a block was late.
    async fn looked(rhythm: &mut Rhythm, block: Duration, time: Duration) -> (u32, Duration) {
        let begun = Instant::now();
        let (mut looks, mut last, mut late) = (0, 0, Duration::ZERO);
        while begun.elapsed() < time {
            let height = u64::try_from(begun.elapsed().as_millis() / block.as_millis()).expect("few");
            if height > last {
                let came = block * u32::try_from(height).expect("few");
                late = late.max(begun.elapsed() - came);
                last = height;
            }
            rhythm.seen(Height(height));
            looks += 1;
            tokio::time::sleep(rhythm.wait(POLL)).await;
        }
        (looks, late)
    }

    #[tokio::test(start_paused = true)]
    async fn a_chain_is_looked_at_when_a_block_is_due() {
        let hour = Duration::from_secs(3_600);
        let (looks, late) = looked(&mut Rhythm::default(), Duration::from_secs(12), hour).await;
        // 300 blocks; each second would be 3,600 looks.
        assert!((300..=1_100).contains(&looks), "{looks}");
        assert!(late <= POLL * 2, "{late:?}");
        // A quick chain is looked at as often as ever.
        let (looks, _) = looked(&mut Rhythm::default(), Duration::from_millis(250), hour).await;
        assert!(looks >= 3_500, "{looks}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_chain_that_stands_still_is_looked_at_less_and_never_forgotten() {
        let mut rhythm = Rhythm::default();
        looked(&mut rhythm, Duration::from_secs(2), Duration::from_secs(60)).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(rhythm.wait(POLL), MAX_OVERDUE_PAUSE);
        // Nothing is known yet: the pause that was asked for.
        assert_eq!(Rhythm::default().wait(POLL), POLL);
    }
}
