//! Random sequences of verbs, given to the store under test and to the reference alike: answers, head rows, leases and dumps have to
//! be the same after every step. Each seed is one sequence.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::mem::discriminant;
use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Clock, Fence, Height, HeightRange, Parts, RawBlock};

use super::beside::beside;
use super::blocks::{Numbers, anchor_parent, chain_after, common_term, own_term};
use super::check::{Failure, holds, same};
use super::subject::{Subject, info, same_dump};
use super::{Case, CaseResult, StoreFactory};
use crate::memory::MemoryStore;
use crate::{
    AppendBatch, HeadRow, LogQuery, RangeEnd, RawDump, RawFiller, RawLease, RawReader, RawSnapshot,
    RawWriter, ReorgEntry, Result, Rollback, StoreError,
};

/// How many verbs a sequence has.
const STEPS: usize = 90;

/// How long leases last, in milliseconds.
const TTL_MS: u64 = 5_000;

/// How often each verb was answered and refused.
type Tally = BTreeMap<String, (u64, u64)>;

pub(super) fn cases() -> Vec<Case> {
    case_list!("differential": random_sequences_equal_the_reference)
}

async fn random_sequences_equal_the_reference(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let of_seeds =
        beside(factory.at_once(), 0..factory.differential_seeds(), |seed| sequence(factory.clone(), seed))
            .await?;
    let mut tally = Tally::new();
    for (verb, (answers, refusals)) in of_seeds.into_iter().flatten() {
        let sum = tally.entry(verb).or_default();
        *sum = (sum.0 + answers, sum.1 + refusals);
    }
    // Sequences in which everything is refused would agree as well.
    let of_use = ["append", "claim", "fill", "advance", "finalize", "rollback", "purge", "prune"]
        .iter()
        .all(|verb| tally.get(*verb).is_some_and(|(answers, _)| *answers >= 10));
    holds(of_use || factory.differential_seeds() < 10, format!("too few verbs were answered: {tally:?}"))
}

/// One sequence; how often each verb was answered and refused.
async fn sequence(factory: Arc<dyn StoreFactory>, seed: u64) -> CaseResult<Tally> {
    let mut pair = Pair::new(&factory, seed).await?;
    for step in 0..STEPS {
        let done = pair.step().await;
        let checked = match done {
            Ok(()) => pair.agree(step % 15 == 14).await,
            Err(failure) => Err(failure),
        };
        checked.map_err(|failure| {
            Failure::new(format!("seed {seed}, step {step}, {}: {failure}", pair.doing))
        })?;
    }
    pair.tested.settle().await?;
    let agreed = pair.agree(true).await;
    agreed.map_err(|failure| Failure::new(format!("seed {seed}, at the end: {failure}")))?;
    Ok(pair.tally)
}

/// A lease as both stores gave it; they may give different fences.
type LeasePair = (RawLease, RawLease);

struct Pair {
    reference: MemoryStore,
    /// The reference's fence.
    fence: Fence,
    tested: Subject,
    /// Fences of the head that are dead: the reference's and the tested one's.
    zombies: Vec<(Fence, Fence)>,
    /// Every lease that was ever given, as it was given.
    leases: Vec<LeasePair>,
    /// Every block that was ever offered.
    known: BTreeMap<BlockId, RawBlock>,
    /// What the reference shows.
    chain: Vec<RawBlock>,
    head: HeadRow,
    anchor: Height,
    /// Whether marks may contradict the chain.
    is_wild: bool,
    numbers: Numbers,
    /// The last verb, for messages.
    doing: String,
    /// How often each verb was answered and refused.
    tally: Tally,
}

impl Pair {
    async fn new(factory: &Arc<dyn StoreFactory>, seed: u64) -> CaseResult<Pair> {
        let tested = Subject::new(factory).await?;
        let reference = MemoryStore::new(tested.clock.clone() as Arc<dyn Clock>);
        reference.init(info()).await?;
        let head = reference.acquire().await?;
        let mut numbers = Numbers::new(seed);
        let anchor = Height([0, 1, 250, 65_530, (1 << 32) - 9][numbers.below(5) as usize]);
        Ok(Pair {
            reference,
            fence: head.fence,
            tested,
            zombies: vec![(Fence(0), Fence(0))],
            leases: Vec::new(),
            known: BTreeMap::new(),
            chain: Vec::new(),
            head,
            anchor,
            is_wild: seed % 5 == 4,
            numbers,
            doing: String::new(),
            tally: BTreeMap::new(),
        })
    }

    /// One random verb on both.
    async fn step(&mut self) -> CaseResult {
        if self.head.pending_purge.is_some() && self.numbers.one_in(2) {
            return self.purge().await;
        }
        match self.numbers.below(100) {
            0..28 => self.append().await,
            28..36 => self.append_oddly().await,
            36..43 => self.finalize().await,
            43..53 => self.roll_back().await,
            53..57 => self.purge().await,
            57..60 => self.prune().await,
            60..63 => self.take_over(false).await,
            63..67 => self.haunt().await,
            67..75 => self.claim().await,
            75..86 => self.fill().await,
            86..91 => self.advance().await,
            91..93 => self.release().await,
            93..94 => self.renew().await,
            94..96 => self.wait(),
            96..98 => self.maintain().await,
            _ => self.take_over(true).await,
        }
    }

    fn count(&mut self, answered: bool) -> CaseResult {
        let verb = self.doing.split(' ').next().unwrap_or_default().to_owned();
        let (answers, refusals) = self.tally.entry(verb).or_default();
        *(if answered { answers } else { refusals }) += 1;
        Ok(())
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.numbers.below(from.len() as u64) as usize;
        from.get(at).cloned()
    }

    fn remember(&mut self, blocks: &[RawBlock]) {
        self.known.extend(blocks.iter().map(|block| (block.facts.id, block.clone())));
    }

    /// The blocks that would follow the tip (the anchor first).
    fn next_blocks(&self, count: u64, salt: u64) -> Vec<RawBlock> {
        match self.head.tip {
            Some(tip) => chain_after(tip.id, tip.height.next(), count, salt),
            None => chain_after(anchor_parent(self.anchor), self.anchor, count, salt),
        }
    }

    /// Some block of the visible chain, `lag` or a few more below the tip.
    fn visible(&mut self, lag: u64) -> Option<RawBlock> {
        let back = lag + self.numbers.below(8);
        let at = self.chain.len().checked_sub(1 + back as usize)?;
        self.chain.get(at).cloned()
    }

    async fn append_both(&mut self, batch: AppendBatch) -> CaseResult {
        self.remember(&batch.blocks);
        let answers = (
            self.reference.append(self.fence, batch.clone()).await.map(unfenced),
            self.tested.store.append(self.tested.fence, batch).await.map(unfenced),
        );
        let answered = agree("the answer", answers)?;
        self.count(answered)
    }

    async fn append(&mut self) -> CaseResult {
        let (count, salt) = (1 + self.numbers.below(6), self.numbers.below(3));
        let blocks = self.next_blocks(count, if salt == 2 { 7 } else { salt });
        let mark = match self.numbers.below(12) {
            0..3 => self.visible(12).map(|block| block.block_ref()),
            3 => Some(blocks[0].block_ref()).filter(|_| self.numbers.one_in(4)),
            // A mark of any fork at any height may stop the chain for good.
            4 if self.is_wild => self.known.values().map(RawBlock::block_ref).min_by_key(|block| block.id.0),
            _ => None,
        };
        let safe = self.visible(1).map(|block| block.block_ref());
        self.doing = format!("append {count} of fork {salt}, finalized {mark:?}");
        self.append_both(AppendBatch { blocks, finalized: mark, safe }).await
    }

    async fn append_oddly(&mut self) -> CaseResult {
        let mut blocks = self.next_blocks(4, 0);
        let below = self.visible(0);
        let odd = self.numbers.below(8);
        self.doing = format!("append in odd way {odd}");
        match (odd, below) {
            // Above a gap; without the first; with a hole; nothing.
            (0, _) => drop(blocks.remove(0)),
            (1, _) => drop(blocks.remove(2)),
            (2, _) => blocks.clear(),
            (3, _) => blocks[1].facts.tx_count += 1,
            // Another fork at stored heights.
            (4, Some(below)) => {
                blocks = chain_after(below.facts.id, below.facts.height.next(), 3, 9);
            }
            // Stored blocks again, up to the tip or across it.
            (5, Some(below)) => {
                let from = below.facts.height.since(self.chain[0].facts.height) as usize;
                blocks = self.chain[from..].to_vec();
            }
            (6, Some(_)) => {
                let last = self.chain.len() - 1;
                blocks = [&self.chain[last..], &blocks[..]].concat();
            }
            // Other bytes under a stored id.
            (_, Some(_)) => {
                let last = self.chain.len() - 1;
                blocks = self.chain[last..].to_vec();
                blocks[0].extras = Bytes::from_static(b"other");
            }
            _ => {}
        }
        let known = std::mem::take(&mut self.known);
        let done = self.append_both(AppendBatch { blocks, ..AppendBatch::default() }).await;
        // Some of them carry a known block's id and other bytes.
        let made = std::mem::replace(&mut self.known, known);
        for (id, block) in made {
            self.known.entry(id).or_insert(block);
        }
        done
    }

    async fn finalize(&mut self) -> CaseResult {
        let mark = match self.numbers.below(14) {
            0 if self.is_wild => self.next_blocks(8, 7).pop().map(|block| block.block_ref()),
            1..3 if self.is_wild => {
                let known: Vec<BlockRef> = self.known.values().map(RawBlock::block_ref).collect();
                known.into_iter().min_by_key(|block| block.id.0[7])
            }
            3 => None,
            _ => self.visible(14).map(|block| block.block_ref()),
        };
        let safe = self.visible(2).map(|block| block.block_ref());
        self.doing = format!("finalize {mark:?}");
        let answers = (
            self.reference.finalize(self.fence, mark, safe).await.map(unfenced),
            self.tested.store.finalize(self.tested.fence, mark, safe).await.map(unfenced),
        );
        let answered = agree("the answer", answers)?;
        self.count(answered)
    }

    async fn roll_back(&mut self) -> CaseResult {
        let common = match self.numbers.below(10) {
            0 => self.next_blocks(2, 3).pop(),
            1 => self.head.tip.and_then(|tip| self.known.get(&tip.id).cloned()),
            2 => Some(chain_after(BlockId([3; 32]), self.anchor + 1, 1, 0).remove(0)),
            _ => self.visible(1),
        };
        let Some(common) = common.map(|block| block.block_ref()) else { return self.append().await };
        let max_depth = if self.numbers.one_in(5) { 3 } else { 1_000 };
        let request = Rollback { common, max_depth, decided_at_ms: self.tested.clock.now_ms() };
        self.doing = format!("rollback to {common}, at most {max_depth}");
        let answers = (
            self.reference.rollback(self.fence, request).await,
            self.tested.store.rollback(self.tested.fence, request).await,
        );
        let answered = agree("the entry", answers)?;
        self.count(answered)
    }

    async fn purge(&mut self) -> CaseResult {
        let max_blocks = self.numbers.below(6);
        self.doing = format!("purge {max_blocks}");
        let answers = (
            self.reference.purge_step(self.fence, max_blocks).await,
            self.tested.store.purge_step(self.tested.fence, max_blocks).await,
        );
        let answered = agree("the progress", answers)?;
        self.count(answered)
    }

    async fn prune(&mut self) -> CaseResult {
        let (keep, most) = (self.numbers.below(30), self.numbers.below(5));
        self.doing = format!("prune {most} below {keep}");
        let answers = (
            self.reference.prune_orphans(self.fence, keep, most).await,
            self.tested.store.prune_orphans(self.tested.fence, keep, most).await,
        );
        let answered = agree("how many", answers)?;
        self.count(answered)
    }

    /// Another ingester, perhaps after a crash of the tested store.
    async fn take_over(&mut self, restart: bool) -> CaseResult {
        self.doing = format!("take over, restart {restart}");
        self.zombies.push((self.fence, self.tested.fence));
        self.fence = self.reference.acquire().await?.fence;
        if restart {
            self.tested.reopen().await?;
        }
        self.tested.acquire().await
    }

    /// A verb under a dead fence.
    async fn haunt(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.pick(&self.zombies.clone()) else { return Ok(()) };
        let verb = self.numbers.below(6);
        self.doing = format!("zombie's verb {verb}");
        let (reference, tested) = (&self.reference, &self.tested.store);
        let batch = AppendBatch { blocks: self.next_blocks(2, 0), ..AppendBatch::default() };
        let answers = match verb {
            0 => (
                reference.append(ours, batch.clone()).await.map(drop),
                tested.append(theirs, batch).await.map(drop),
            ),
            1 => (
                reference.finalize(ours, None, None).await.map(drop),
                tested.finalize(theirs, None, None).await.map(drop),
            ),
            2 => {
                let common = self.chain.first().map_or(batch.blocks[0].block_ref(), RawBlock::block_ref);
                let request = Rollback { common, max_depth: 9, decided_at_ms: 0 };
                (
                    reference.rollback(ours, request).await.map(drop),
                    tested.rollback(theirs, request).await.map(drop),
                )
            }
            3 => {
                (reference.purge_step(ours, 1).await.map(drop), tested.purge_step(theirs, 1).await.map(drop))
            }
            4 => (
                reference.prune_orphans(ours, 0, 9).await.map(drop),
                tested.prune_orphans(theirs, 0, 9).await.map(drop),
            ),
            _ => (reference.advance(ours).await.map(drop), tested.advance(theirs).await.map(drop)),
        };
        let answered = agree("the refusal", answers)?;
        self.count(answered)
    }

    async fn claim(&mut self) -> CaseResult {
        let range_heights = [1, 4, 10][self.numbers.below(3) as usize];
        let stop = Height(self.head.tip.map_or(9, |tip| tip.height.get()) + 2 + self.numbers.below(30));
        self.doing = format!("claim {range_heights} below {stop}");
        let (owner, ttl_ms) = (format!("w{range_heights}"), TTL_MS);
        let answers = (
            self.reference.claim_range(&owner, ttl_ms, range_heights, stop).await,
            self.tested.store.claim_range(&owner, ttl_ms, range_heights, stop).await,
        );
        if let (Ok(Some(ours)), Ok(Some(theirs))) = &answers {
            self.leases.push((ours.clone(), theirs.clone()));
        }
        let (ours, theirs) = answers;
        let unfenced = |lease: Result<Option<RawLease>>| lease.map(|lease| lease.map(unfenced_lease));
        let answered = agree("the lease", (unfenced(ours), unfenced(theirs)))?;
        self.count(answered)
    }

    /// A lease that was given: mostly one that is still its holder's.
    async fn some_lease(&mut self) -> CaseResult<Option<LeasePair>> {
        if self.numbers.one_in(6) {
            return Ok(self.pick(&self.leases.clone()));
        }
        let now = self.reference.snapshot().await?.raw_leases().await?;
        let is_live = |pair: &&LeasePair| now.iter().any(|lease| lease.fence == pair.0.fence);
        let live: Vec<LeasePair> = self.leases.iter().filter(is_live).cloned().collect();
        Ok(self.pick(&live))
    }

    async fn fill(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return self.claim().await };
        // What the store says of it now, as its holder would know from the last answer.
        let now = self.reference.snapshot().await?.raw_leases().await?;
        let at =
            now.iter().find(|lease| lease.range == ours.range).map_or(ours.done_to, |lease| lease.done_to);
        let at = match self.numbers.below(8) {
            0 => ours.range.start(),
            1 => at.next(),
            _ => at,
        };
        let left = ours.range.end().since(at).max(1);
        let beyond = if self.numbers.one_in(9) { 2 } else { 0 };
        let count = 1 + self.numbers.below(left + beyond);
        // Mostly the fork that the tip would grow on; sometimes one that doesn't join.
        let salt = if self.numbers.one_in(7) { 5 } else { 7 };
        self.doing = format!("fill {count} of fork {salt} at {at} of {}", ours.range);
        let blocks = self.planned(at, count, salt);
        self.remember(&blocks);
        let answers = (
            self.reference.fill(&ours, blocks.clone(), TTL_MS).await.map(unfenced_lease),
            self.tested.store.fill(&theirs, blocks, TTL_MS).await.map(unfenced_lease),
        );
        let answered = agree("the lease", answers)?;
        self.count(answered)
    }

    /// The blocks `[at, at + count)` of the visible chain and its continuation by `salt`.
    fn planned(&self, at: Height, count: u64, salt: u64) -> Vec<RawBlock> {
        let above = self.head.tip.map_or(0, |tip| (at + count).since(tip.height.next()));
        let plan = self.chain.iter().cloned().chain(self.next_blocks(above, salt));
        let range = HeightRange::new(at, at + count);
        plan.filter(|block| range.contains(block.facts.height)).collect()
    }

    async fn advance(&mut self) -> CaseResult {
        self.doing = "advance".into();
        let answers = (
            self.reference.advance(self.fence).await.map(unfenced),
            self.tested.store.advance(self.tested.fence).await.map(unfenced),
        );
        let answered = agree("the answer", answers)?;
        self.count(answered)
    }

    async fn release(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return Ok(()) };
        let bad_end = self.numbers.one_in(2);
        self.doing = format!("release {}, bad end {bad_end}", ours.range);
        let end = || if bad_end { RangeEnd::Bad("it is odd".into()) } else { RangeEnd::Released };
        let answers =
            (self.reference.release(&ours, end()).await, self.tested.store.release(&theirs, end()).await);
        let answered = agree("the answer", answers)?;
        self.count(answered)
    }

    async fn renew(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return Ok(()) };
        self.doing = format!("renew {}", ours.range);
        let answers = (
            self.reference.renew_range(&ours, TTL_MS).await.map(unfenced_lease),
            self.tested.store.renew_range(&theirs, TTL_MS).await.map(unfenced_lease),
        );
        let answered = agree("the lease", answers)?;
        self.count(answered)
    }

    fn wait(&mut self) -> CaseResult {
        self.doing = "wait".into();
        self.tested.clock.advance_ms(1 + self.numbers.below(TTL_MS));
        Ok(())
    }

    async fn maintain(&mut self) -> CaseResult {
        self.doing = "maintain".into();
        self.tested.store.maintain(1 + self.numbers.below(1 << 16)).await?;
        Ok(())
    }

    /// Demands that both are alike, and learns what the reference shows now.
    async fn agree(&mut self, thorough: bool) -> CaseResult {
        let (ours, theirs) = (self.reference.snapshot().await?, self.tested.snapshot().await?);
        same("the head row", unfenced(theirs.head().clone()), unfenced(ours.head().clone()))?;
        let leases = async |snapshot: &Arc<dyn RawSnapshot>| -> CaseResult<Vec<RawLease>> {
            Ok(snapshot.raw_leases().await?.into_iter().map(unfenced_lease).collect())
        };
        same("the leases", leases(&theirs).await?, leases(&ours).await?)?;
        self.head = ours.head().clone();
        let (mut chain, range) = (Vec::new(), self.head.range());
        for height in range.iter() {
            let id = ours.linked_ref(height).await?.map(|linked| linked.block.id);
            let block = id.and_then(|id| self.known.get(&id));
            chain.push(block.cloned().ok_or_else(|| Failure::new(format!("the reference shows {id:?}")))?);
        }
        self.chain = chain;
        let log = ours.reorgs(0, usize::MAX).await?;
        same("the reorg log", theirs.reorgs(0, usize::MAX).await?, log.clone())?;
        if thorough {
            self.agree_thoroughly(&*ours, &*theirs, &log).await?;
        }
        drop((ours, theirs));
        same_dump(&self.tested.store.dump().await?, &self.reference.dump().await?)
    }

    async fn agree_thoroughly(
        &mut self,
        ours: &dyn RawSnapshot,
        theirs: &dyn RawSnapshot,
        log: &[ReorgEntry],
    ) -> CaseResult {
        super::subject::shows(theirs, &self.chain).await?;
        for entry in log {
            for orphan in &entry.orphans {
                let id = orphan.block.id;
                let expected = ours.orphan(entry.id, id, Parts::all()).await?;
                same("an orphan", theirs.orphan(entry.id, id, Parts::all()).await?, expected)?;
            }
        }
        let known: Vec<BlockId> = self.known.keys().copied().collect();
        for id in known {
            same("a block by id", theirs.find_block(id).await?, ours.find_block(id).await?)?;
            for tx in &self.known[&id].transactions {
                same("a transaction by id", theirs.find_tx(tx.id).await?, ours.find_tx(tx.id).await?)?;
            }
        }
        let range = self.head.range();
        for _ in 0..10 {
            let from = range.start() + self.numbers.below(range.len() + 3);
            let part = HeightRange::new(from, from + self.numbers.below(20));
            let max_bytes = self.numbers.below(3_000);
            let expected = ours.blocks(part, Parts::all(), max_bytes).await?.blocks;
            same("blocks of a range", theirs.blocks(part, Parts::all(), max_bytes).await?.blocks, expected)?;
            let own = self.visible(0).map_or(1, |block| own_term(block.facts.id));
            let groups = vec![vec![common_term(self.numbers.below(4)), own], vec![common_term(0)]];
            let query = LogQuery { groups };
            let expected = ours.log_candidates(part, &query, usize::MAX).await?;
            let found = theirs.log_candidates(part, &query, usize::MAX).await?;
            super::subject::covers(&found, &expected, &self.chain)?;
        }
        Ok(())
    }
}

fn unfenced(head: HeadRow) -> HeadRow {
    HeadRow { fence: Fence(0), ..head }
}

fn unfenced_lease(lease: RawLease) -> RawLease {
    RawLease { fence: Fence(0), ..lease }
}

/// Demands the same answer or the same refusal: the reference's first. Says whether it was an answer.
#[track_caller]
fn agree<T: Debug + PartialEq>(what: &str, (expected, found): (Result<T>, Result<T>)) -> CaseResult<bool> {
    match (expected, found) {
        (Ok(expected), Ok(found)) => same(what, found, expected).map(|()| true),
        (Err(expected), Err(found)) if alike(&expected, &found) => Ok(false),
        (expected, found) => Err(Failure::new(format!("{what}: found {found:?}, expected {expected:?}"))),
    }
}

fn alike(a: &StoreError, b: &StoreError) -> bool {
    match (a, b) {
        // Their texts and numbers are each backend's own.
        (StoreError::Invalid(_) | StoreError::Fenced { .. }, _) => discriminant(a) == discriminant(b),
        _ => a.to_string() == b.to_string(),
    }
}
