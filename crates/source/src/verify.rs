//! The decorator that enforces law 6: nothing passes that doesn't agree with itself.
//!
//! **What is checked.** The heights are those that were asked for, each block links to the one before it in the answer, and each block holds
//! against [`check_block_with`]: header hash, transactions and their senders, receipts, withdrawals, ommers, bloom. Checks that the
//! chain's profile relaxes are noted in the block's facts and counted.
//!
//! **What fails.** A prefix is better than an error: what precedes the first bad block is returned, and the bad block is asked for again
//! with the next call; the source hears of it ([`ChainSource::distrust`]). Only where the first block of an answer is bad the call fails, with [`SourceError::Inconsistent`]. An answer that
//! stops linking is cut there and is no error: its blocks come from two forks (E17). A bloom that isn't that of the logs, with all else in order, may be
//! the mark of logs that are missing (E03): the block is asked for again a few times, then taken and marked. Of a place whose blooms were wrong
//! several times and came back the same, blocks are taken at once, and marked.
//!
//! **Back-pressure and shutdown.** At most `parallelism` blocks are checked at a time per call. A call that is dropped leaves at most so
//! many checks running to their end on the blocking threads; they hold their block until then and change nothing.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_evm::{ChainProfile, CheckFailure, Checks, SendersAre, check_block_with};
use futures::{StreamExt, stream};

use crate::{ChainSource, Heads, Result, SourceError};

/// Where work that takes the processor for milliseconds is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// On the runtime's blocking threads, so that its own threads stay free.
    #[default]
    Blocking,
    /// In place: the simulation's runs stay the same for the same seed.
    Inline,
}

impl Offload {
    /// Does the work. `who` is named in the error, which only comes when the runtime shuts down before the work began.
    ///
    /// # Panics
    /// Where the work does.
    pub async fn run<T, F>(self, who: &str, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        match self {
            Offload::Inline => Ok(work()),
            Offload::Blocking => match tokio::task::spawn_blocking(work).await {
                Ok(done) => Ok(done),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => {
                        Err(SourceError::Transient { endpoint: who.to_owned(), message: error.to_string() })
                    }
                },
            },
        }
    }
}

/// After so many blocks whose bloom alone was wrong and came back the same, blocks of that place are taken at once.
const WRONG_BLOOMS_BELIEVED: u32 = 3;

/// How [`Verified`] checks.
#[derive(Debug, Clone)]
pub struct VerifyOptions {
    /// Names the source in errors and logs.
    pub name: String,
    /// What is demanded of the chain.
    pub profile: ChainProfile,
    /// Whether the source recovered the senders itself, so that it isn't done twice. [`SendersAre::Claimed`] where in doubt.
    pub senders: SendersAre,
    /// How many blocks of one answer are checked at a time.
    pub parallelism: usize,
    /// How many times a block is asked for again whose bloom alone is wrong; after that it is taken if two answers agree.
    pub bloom_retries: u32,
    /// The pause before each of these.
    pub bloom_retry_pause_ms: u64,
    /// Where checks run.
    pub offload: Offload,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        VerifyOptions {
            name: "source".into(),
            profile: ChainProfile::default(),
            senders: SendersAre::Claimed,
            parallelism: std::thread::available_parallelism().map_or(1, |threads| threads.get()),
            bloom_retries: 2,
            bloom_retry_pause_ms: 250,
            offload: Offload::Blocking,
        }
    }
}

/// A source of which only checked blocks come through. [`ChainSource::heads`] and [`ChainSource::linked_ref`] are passed on: sources check
/// headers against their own hash.
#[derive(Debug)]
pub struct Verified<S> {
    inner: S,
    options: VerifyOptions,
    /// Of each place, by name: how many blocks had a wrong bloom that came back the same.
    wrong_blooms: Mutex<HashMap<String, u32>>,
    /// The marks that were warned of, as bits.
    told: AtomicU32,
}

/// What became of a block whose bloom alone is wrong.
enum Settled {
    Accepted(Box<RawBlock>),
    /// The source has another chain by now: the answer ends before this block.
    Moved,
    Refused(SourceError),
}

impl<S: ChainSource> Verified<S> {
    /// Checks whatever `inner` answers.
    pub fn new(inner: S, options: VerifyOptions) -> Self {
        Verified { inner, options, wrong_blooms: Mutex::default(), told: AtomicU32::new(0) }
    }

    /// The source behind it.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Cuts an answer where it leaves what was asked for, or stops linking.
    fn in_place(&self, range: HeightRange, mut answer: Vec<RawBlock>) -> Result<Vec<RawBlock>> {
        let mut held = 0;
        for (at, (block, height)) in answer.iter().zip(range.iter()).enumerate() {
            if block.facts.height != height {
                let message = format!("asked for height {height}, got {}", block.block_ref());
                let error = self.inconsistent(height, "height", message);
                if at == 0 {
                    return Err(error);
                }
                tracing::warn!(%error, "cut an answer");
                break;
            }
            if let Some(before) = at.checked_sub(1).map(|before| &answer[before].facts)
                && before.id != block.facts.parent_id
            {
                count_failure("link");
                tracing::debug!(
                    source = %self.options.name, at = %block.block_ref(), parent = %block.facts.parent_id, before = %before.id,
                    "an answer holds blocks of two forks; cut where it stops linking"
                );
                break;
            }
            held = at + 1;
        }
        answer.truncate(held);
        Ok(answer)
    }

    async fn check(
        &self,
        block: RawBlock,
        profile: ChainProfile,
    ) -> Result<(RawBlock, Result<Checks, CheckFailure>)> {
        let senders = self.options.senders;
        let work = move || {
            let checked = check_block_with(&block, &profile, senders);
            (block, checked)
        };
        self.options.offload.run(&self.options.name, work).await
    }

    /// Asks again for a block whose bloom alone is wrong. A wrongly empty answer mends itself; a chain whose blooms are wrong gives the same again.
    async fn settle_bloom(&self, block: RawBlock, failure: CheckFailure) -> Settled {
        let (height, parent_id) = (block.facts.height, block.facts.parent_id);
        let place = self.inner.served_by(height).unwrap_or_else(|| self.options.name.clone());
        if self.options.bloom_retries == 0
            || self.wrong_blooms(&place, |times| *times) >= WRONG_BLOOMS_BELIEVED
        {
            return self.take_without_bloom(block).await;
        }
        count_failure("bloom");
        let mut seen = vec![block];
        for attempt in 1..=self.options.bloom_retries {
            tracing::debug!(source = %self.options.name, %failure, attempt, "asking for the block again");
            self.inner.distrust(height);
            tokio::time::sleep(Duration::from_millis(self.options.bloom_retry_pause_ms)).await;
            let again = match self.inner.blocks(HeightRange::one(height)).await {
                Ok(answer) => answer.into_iter().next(),
                Err(error) => {
                    tracing::debug!(source = %self.options.name, %height, %error, "asking again failed");
                    continue;
                }
            };
            let Some(again) = again.filter(|again| again.facts.height == height) else { continue };
            if again.facts.parent_id != parent_id {
                return Settled::Moved;
            }
            match self.check(again, self.options.profile).await {
                Ok((again, Ok(unverified))) => {
                    // It was no peculiarity of the chain.
                    self.wrong_blooms(&place, |times| *times = 0);
                    return Settled::Accepted(Box::new(self.accept(again, unverified)));
                }
                Ok((again, Err(failure))) if failure.is_bloom_only() => seen.push(again),
                Ok((_, Err(failure))) => return Settled::Refused(self.refuse(failure)),
                Err(error) => return Settled::Refused(error),
            }
        }
        // Nothing better came. Two answers that agree are the chain's own; one alone, or different ones, are not believed.
        match seen.pop() {
            Some(last) if seen.contains(&last) => {
                tracing::warn!(source = %self.options.name, %failure, "two answers agree: taken and marked");
                let times = self.wrong_blooms(&place, |times| {
                    *times += 1;
                    *times
                });
                if times == WRONG_BLOOMS_BELIEVED {
                    tracing::warn!(
                        endpoint = place, %height,
                        "the blooms of this chain are not those of its logs; its blocks are taken at once from now on, and marked. If the chain is known for \
                         that, `--relax bloom` says so"
                    );
                }
                self.take_without_bloom(last).await
            }
            _ => Settled::Refused(self.refuse(failure)),
        }
    }

    /// What is counted of a place's wrong blooms.
    fn wrong_blooms<T>(&self, place: &str, count: impl FnOnce(&mut u32) -> T) -> T {
        let mut places = self.wrong_blooms.lock().unwrap_or_else(PoisonError::into_inner);
        count(places.entry(place.to_owned()).or_default())
    }

    /// Takes a block that holds against everything but the bloom. Checked once more, to learn what else its profile leaves unverified.
    async fn take_without_bloom(&self, block: RawBlock) -> Settled {
        let without_bloom = ChainProfile { relaxed: self.options.profile.relaxed | Checks::BLOOM };
        match self.check(block, without_bloom).await {
            Ok((block, Ok(unverified))) => Settled::Accepted(Box::new(self.accept(block, unverified))),
            Ok((_, Err(failure))) => Settled::Refused(self.refuse(failure)),
            Err(error) => Settled::Refused(error),
        }
    }

    fn accept(&self, mut block: RawBlock, unverified: Checks) -> RawBlock {
        // Only the source knows which traces it lacks.
        let unverified = unverified | (Checks::of_facts(block.facts.unverified) & Checks::MISSING_TRACES);
        block.facts.unverified = unverified.bits();
        self.tell_once(&block, unverified.noted());
        for check in unverified.names() {
            metrics::counter!("cairn_source_unverified_total", "check" => check).increment(1);
        }
        block
    }

    /// Warns of the first block with a mark that no setting asks for. The metric counts the others.
    fn tell_once(&self, block: &RawBlock, noted: Checks) {
        let told = Checks::of_facts(self.told.fetch_or(noted.bits(), Ordering::Relaxed));
        let news = noted - told;
        if !news.is_empty() {
            tracing::warn!(
                source = %self.options.name, height = %block.facts.height, marks = %news,
                "a block is taken and marked with what its node says otherwise than Ethereum's, or nothing proves; docs/reference/chains.md says what each mark \
                 means, and `cairn_source_unverified_total` counts further blocks"
            );
        }
    }

    fn refuse(&self, failure: CheckFailure) -> SourceError {
        self.inconsistent(failure.height, failure.check.names().next().unwrap_or("unknown"), failure.message)
    }

    fn inconsistent(&self, height: Height, check: &'static str, message: String) -> SourceError {
        count_failure(check);
        self.inner.distrust(height);
        SourceError::Inconsistent {
            endpoint: self.options.name.clone(),
            height,
            check: check.to_owned(),
            message,
        }
    }
}

fn count_failure(check: &'static str) {
    metrics::counter!("cairn_source_check_failures_total", "check" => check).increment(1);
}

#[async_trait]
impl<S: ChainSource> ChainSource for Verified<S> {
    async fn chain_id(&self) -> Result<ChainId> {
        self.inner.chain_id().await
    }

    async fn heads(&self) -> Result<Heads> {
        self.inner.heads().await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        let found = self.inner.linked_ref(height).await?;
        match found {
            Some(found) if found.block.height != height => {
                let message = format!("asked for height {height}, got {}", found.block);
                Err(self.inconsistent(height, "height", message))
            }
            _ => Ok(found),
        }
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let answer = self.in_place(range, self.inner.blocks(range).await?)?;
        let mut verified: Vec<RawBlock> = Vec::with_capacity(answer.len());
        let mut checks = stream::iter(answer)
            .map(|block| self.check(block, self.options.profile))
            .buffered(self.options.parallelism.max(1));
        while let Some(checked) = checks.next().await {
            let (block, outcome) = match checked {
                Ok(checked) => checked,
                Err(error) if verified.is_empty() => return Err(error),
                Err(_) => break,
            };
            let asked_for = block.facts.id;
            let refused = match outcome {
                Ok(unverified) => {
                    verified.push(self.accept(block, unverified));
                    continue;
                }
                Err(failure) if failure.is_bloom_only() => match self.settle_bloom(block, failure).await {
                    Settled::Accepted(block) => {
                        let builds_on = block.facts.id == asked_for;
                        verified.push(*block);
                        if builds_on {
                            continue;
                        }
                        // Another block than the one that the rest of the answer builds on.
                        break;
                    }
                    Settled::Moved => break,
                    Settled::Refused(error) => error,
                },
                Err(failure) => self.refuse(failure),
            };
            if verified.is_empty() {
                return Err(refused);
            }
            tracing::warn!(error = %refused, verified = verified.len(), "cut an answer before a block that doesn't hold");
            break;
        }
        Ok(verified)
    }

    async fn holders(&self, block: BlockRef, enough: usize) -> Result<Vec<String>> {
        self.inner.holders(block, enough).await
    }

    fn preferred_heights(&self) -> u64 {
        self.inner.preferred_heights()
    }

    async fn wait_for_head(&self, at_most_ms: u64) {
        self.inner.wait_for_head(at_most_ms).await;
    }

    fn distrust(&self, height: Height) {
        self.inner.distrust(height);
    }

    fn served_by(&self, height: Height) -> Option<String> {
        self.inner.served_by(height)
    }

    fn boundary_setting(&self, height: Height, below: BlockRef) -> Option<String> {
        self.inner.boundary_setting(height, below)
    }

    fn bound_by(&self) -> String {
        self.inner.bound_by()
    }
}
