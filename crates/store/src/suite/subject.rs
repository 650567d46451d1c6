//! The store that a case works on, and the demand that it shows exactly a given chain.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{
    BlockId, BlockRef, ChainId, Clock, Fence, Height, HeightRange, IndexKey, LinkedRef, Parts, RawBlock, TxId,
};

use super::blocks::as_stored;
use super::check::{Failure, holds, same};
use super::{CaseResult, StoreFactory, StorePlace, TestClock, TestStore};
use crate::memory::MemoryStore;
use crate::runs::RunKind;
use crate::{
    AppendBatch, Checkpoint, Dump, HeadRow, IndexFingerprint, LogQuery, Maintained, PurgeProgress,
    RAW_INGESTER, RawDump, RawLease, RawSnapshot, RawWriter, ReorgEntry, Result, Rollback, StoreInfo,
    TxPlace,
};

/// When a case's clock starts, in milliseconds since 1970.
pub(super) const START_MS: u64 = 1_700_000_000_000;

/// The depth limit of rollbacks where a case doesn't set its own.
pub(super) const MAX_DEPTH: u64 = 1_000;

pub(super) fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(1337), chain_config: Bytes::new() }
}

/// Everything about a store that a refused verb must leave as it was.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frozen {
    head: HeadRow,
    leases: Vec<RawLease>,
    reorgs: Vec<ReorgEntry>,
    dump: Dump,
}

impl Frozen {
    /// The only thing that a restart changes.
    pub(super) fn set_fence(&mut self, fence: Fence) {
        self.head.fence = fence;
    }
}

/// A store with the ingester's fence.
pub(super) struct Subject {
    pub(super) store: Arc<dyn TestStore>,
    pub(super) fence: Fence,
    pub(super) clock: Arc<TestClock>,
    pub(super) place: Arc<dyn StorePlace>,
}

impl Subject {
    /// A new place and its store, not initialised; the fence is 0.
    pub(super) async fn bare(factory: &Arc<dyn StoreFactory>) -> CaseResult<Subject> {
        let clock = Arc::new(TestClock::new(START_MS));
        let place = factory.place(clock.clone() as Arc<dyn Clock>).await?;
        let store = place.open().await?;
        Ok(Subject { store, fence: Fence(0), clock, place })
    }

    /// An initialised store, acquired.
    pub(super) async fn new(factory: &Arc<dyn StoreFactory>) -> CaseResult<Subject> {
        let mut subject = Subject::bare(factory).await?;
        subject.store.init(info()).await?;
        subject.acquire().await?;
        Ok(subject)
    }

    /// An initialised store that holds `blocks`.
    pub(super) async fn with(factory: &Arc<dyn StoreFactory>, blocks: &[RawBlock]) -> CaseResult<Subject> {
        let subject = Subject::new(factory).await?;
        for batch in blocks.chunks(64) {
            subject.append(batch).await?;
        }
        Ok(subject)
    }

    /// Becomes the ingester; the fence held before is dead.
    pub(super) async fn acquire(&mut self) -> CaseResult {
        let fence = self.store.acquire().await?.fence;
        holds(fence > self.fence, format!("fence {fence} is not above {}", self.fence))?;
        self.fence = fence;
        Ok(())
    }

    /// Drops the store without closing it, opens it again, and takes it over.
    pub(super) async fn restart(mut self) -> CaseResult<Subject> {
        self.reopen().await?;
        self.store.init(info()).await?;
        self.acquire().await?;
        Ok(self)
    }

    /// Drops the store without closing it and opens it again.
    pub(super) async fn reopen(&mut self) -> CaseResult {
        // Something has to stand in its place while it is gone.
        self.store = Arc::new(MemoryStore::new(self.clock.clone()));
        self.store = self.place.open().await?;
        Ok(())
    }

    pub(super) async fn append(&self, blocks: &[RawBlock]) -> Result<HeadRow> {
        self.store.append(self.fence, batch(blocks)).await
    }

    pub(super) async fn finalize(&self, block: &RawBlock) -> Result<HeadRow> {
        self.store.finalize(self.fence, Some(block.block_ref()), None).await
    }

    pub(super) async fn roll_back(&self, common: &RawBlock) -> Result<ReorgEntry> {
        self.store.rollback(self.fence, rollback(common.block_ref())).await
    }

    /// Purges in steps of `max_blocks` until nothing is pending.
    pub(super) async fn purge(&self, max_blocks: u64) -> CaseResult {
        let mut before = u64::MAX;
        loop {
            match self.store.purge_step(self.fence, max_blocks).await? {
                PurgeProgress::Done => return Ok(()),
                PurgeProgress::Left(left) => {
                    holds(
                        left > 0 && left < before,
                        format!("a purge step left {left} blocks after {before}"),
                    )?;
                    before = left;
                }
            }
        }
    }

    /// From the chain that the store holds to another one that shares a first part with it.
    pub(super) async fn switch(&self, from: &[RawBlock], to: &[RawBlock]) -> CaseResult<ReorgEntry> {
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let common = shared.checked_sub(1).ok_or_else(|| Failure::new("the forks share nothing"))?;
        let entry = self.roll_back(&to[common]).await?;
        self.purge(3).await?;
        if shared < to.len() {
            self.append(&to[shared..]).await?;
        }
        Ok(entry)
    }

    /// Maintains until there is nothing to do; that has to come.
    pub(super) async fn settle(&self) -> CaseResult {
        for _ in 0..10_000 {
            if self.store.maintain(1 << 20).await? == Maintained::Nothing {
                return Ok(());
            }
        }
        Err(Failure::new("maintenance still finds something to do after 10,000 steps"))
    }

    pub(super) async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        self.store.snapshot().await
    }

    pub(super) async fn head(&self) -> Result<HeadRow> {
        Ok(self.snapshot().await?.head().clone())
    }

    pub(super) async fn leases(&self) -> Result<Vec<RawLease>> {
        self.snapshot().await?.raw_leases().await
    }

    /// The lowest lease; it is a failure if there is none.
    pub(super) async fn first_lease(&self) -> CaseResult<RawLease> {
        self.leases().await?.into_iter().next().ok_or_else(|| Failure::new("there is no lease"))
    }

    /// Remembers how everything stands.
    pub(super) async fn freeze(&self) -> CaseResult<Frozen> {
        let snapshot = self.snapshot().await?;
        Ok(Frozen {
            head: snapshot.head().clone(),
            leases: snapshot.raw_leases().await?,
            reorgs: snapshot.reorgs(0, usize::MAX).await?,
            dump: self.store.dump().await?,
        })
    }

    /// Demands that nothing has changed since.
    pub(super) async fn is_still(&self, before: &Frozen) -> CaseResult {
        let now = self.freeze().await?;
        same("the head row", &now.head, &before.head)?;
        same("the leases", &now.leases, &before.leases)?;
        same("the reorg log", &now.reorgs, &before.reorgs)?;
        same_dump(&now.dump, &before.dump)
    }

    /// Demands that the store shows exactly `chain`, by every way there is to read it.
    pub(super) async fn shows(&self, chain: &[RawBlock]) -> CaseResult {
        shows(&*self.snapshot().await?, chain).await
    }

    /// Demands that its dump is that of a reference store that took `chain` and the finalised mark at once.
    pub(super) async fn dumps_as(&self, chain: &[RawBlock]) -> CaseResult {
        let expected = reference_dump(chain, self.head().await?.finalized).await?;
        same_dump(&self.store.dump().await?, &expected)
    }
}

pub(super) fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

pub(super) fn rollback(common: BlockRef) -> Rollback {
    Rollback { common, max_depth: MAX_DEPTH, decided_at_ms: START_MS }
}

/// The dump of a reference store that never saw anything but `chain`.
pub(super) async fn reference_dump(chain: &[RawBlock], finalized: Option<BlockRef>) -> CaseResult<Dump> {
    let store = MemoryStore::new(Arc::new(TestClock::new(START_MS)));
    store.init(info()).await?;
    let fence = store.acquire().await?.fence;
    if !chain.is_empty() {
        store.append(fence, batch(chain)).await?;
    }
    store.finalize(fence, finalized, None).await?;
    Ok(store.dump().await?)
}

#[track_caller]
pub(super) fn same_dump(found: &Dump, expected: &Dump) -> CaseResult {
    match found.first_difference(expected) {
        None => Ok(()),
        Some((found, expected)) => {
            Err(Failure::new(format!("the dumps differ: found `{found}`, expected `{expected}`")))
        }
    }
}

/// Demands that a snapshot shows exactly `chain`: head row, blocks by height whole and by part, links, lookups, logs, fingerprints,
/// checkpoints; and nothing below or above.
pub(super) async fn shows(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    shows_head(snapshot, chain).await?;
    shows_blocks(snapshot, chain).await?;
    shows_lookups(snapshot, chain).await?;
    shows_logs(snapshot, chain).await?;
    shows_fingerprints(snapshot, chain).await
}

fn range_of(chain: &[RawBlock]) -> HeightRange {
    match (chain.first(), chain.last()) {
        (Some(first), Some(last)) => HeightRange::inclusive(first.facts.height, last.facts.height),
        _ => HeightRange::new(Height::ZERO, Height::ZERO),
    }
}

async fn shows_head(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    let head = snapshot.head();
    same("the first height", head.first, chain.first().map(|block| block.facts.height))?;
    let tip = chain.last().map(RawBlock::block_ref);
    same("the tip", head.tip, tip)?;
    same("the head's range", head.range(), range_of(chain))?;
    let checkpoint = tip.map(|last| Checkpoint { service_name: RAW_INGESTER.into(), last });
    same("the checkpoints", snapshot.checkpoints().await?, checkpoint.into_iter().collect())
}

async fn shows_blocks(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    let range = range_of(chain);
    let mut outside = vec![range.end(), range.end() + 1, range.end() + 1_000];
    outside.extend(range.start().prev());
    for height in outside {
        same("a block outside the range", snapshot.block(height, Parts::all()).await?, None)?;
        same("a link outside the range", snapshot.linked_ref(height).await?, None)?;
    }
    for block in chain {
        let height = block.facts.height;
        let found = snapshot.block(height, Parts::all()).await?;
        same("a block", found, Some(as_stored(block, Parts::all())))?;
        let linked = LinkedRef { block: block.block_ref(), parent_id: block.facts.parent_id };
        same("a link", snapshot.linked_ref(height).await?, Some(linked))?;
    }
    let wide = HeightRange::new(range.start().saturating_sub(5), range.end() + 5);
    for parts in [Parts::empty(), Parts::RECEIPTS | Parts::TRANSACTIONS] {
        let expected: Vec<_> = chain.iter().map(|block| as_stored(block, parts)).collect();
        same("the blocks of a range", snapshot.blocks(wide, parts, u64::MAX).await?.blocks, expected)?;
    }
    Ok(())
}

async fn shows_lookups(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    let mut places: BTreeMap<TxId, TxPlace> = BTreeMap::new();
    for block in chain {
        let height = block.facts.height;
        same("a block by id", snapshot.find_block(block.facts.id).await?, Some(height))?;
        for (index, tx) in (0..).zip(&block.transactions) {
            places.entry(tx.id).or_insert(TxPlace { height, index });
        }
    }
    for (id, place) in places {
        same("a transaction by id", snapshot.find_tx(id).await?, Some(place))?;
    }
    // An id that shares its first eight bytes with a stored one is another id.
    if let Some(block) = chain.last() {
        let mut near = block.facts.id;
        near.0[31] ^= 1;
        same("a block by an id that differs in its last bit", snapshot.find_block(near).await?, None)?;
        same("a transaction by a block's id", snapshot.find_tx(TxId(near.0)).await?, None)?;
    }
    same("an unknown block", snapshot.find_block(BlockId([0xee; 32])).await?, None)
}

async fn shows_logs(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
    let mut by_term: BTreeMap<IndexKey, Vec<Height>> = BTreeMap::new();
    for block in chain {
        for term in &block.log_terms {
            by_term.entry(*term).or_default().push(block.facts.height);
        }
    }
    for (term, expected) in by_term {
        let query = LogQuery { groups: vec![vec![term]] };
        covers(&snapshot.log_candidates(all, &query, usize::MAX).await?, &expected, chain)?;
    }
    let expected: Vec<_> =
        chain.iter().filter(|block| block.facts.log_count > 0).map(|block| block.facts.height).collect();
    covers(&snapshot.log_candidates(all, &LogQuery::default(), usize::MAX).await?, &expected, chain)
}

/// Demands that `found` is ascending, within the chain, and holds every expected height.
#[track_caller]
pub(super) fn covers(found: &[Height], expected: &[Height], chain: &[RawBlock]) -> CaseResult {
    let range = range_of(chain);
    holds(found.is_sorted_by(|a, b| a < b), format!("candidates are not ascending: {found:?}"))?;
    let foreign = found.iter().find(|height| !range.contains(**height));
    holds(foreign.is_none(), format!("candidate {foreign:?} is outside {range}"))?;
    let left_out = expected.iter().find(|height| found.binary_search(height).is_err());
    holds(left_out.is_none(), format!("{left_out:?} is not among the candidates {found:?}"))
}

async fn shows_fingerprints(snapshot: &dyn RawSnapshot, chain: &[RawBlock]) -> CaseResult {
    let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
    let expected: Vec<_> = chain.iter().map(fingerprint).collect();
    same("the index fingerprints", snapshot.index_fingerprints(all).await?, expected)
}

pub(super) fn fingerprint(block: &RawBlock) -> IndexFingerprint {
    let mut sum = IndexFingerprint::empty(block.facts.height);
    sum.add(RunKind::BlockId, block.facts.id.index_key(), 0);
    for (index, tx) in (0..).zip(&block.transactions) {
        sum.add(RunKind::TxId, tx.id.index_key(), index);
    }
    for term in &block.log_terms {
        sum.add(RunKind::LogTerm, *term, 0);
    }
    sum
}
