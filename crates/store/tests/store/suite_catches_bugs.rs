//! The suite is worth what it catches: the reference with one bug each, and every bug has to fail a case.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cairn_core::{
    BlockId, BlockRef, Clock, Fence, Height, HeightRange, LinkedRef, Parts, RawBlock, StoredBlock, TxId,
};
use cairn_store::memory::MemoryStore;
use cairn_store::suite::{StoreFactory, StorePlace, TestStore, cases};
use cairn_store::{
    AppendBatch, BlocksRead, Checkpoint, Dump, HeadRow, IndexFingerprint, LogQuery, Maintained,
    PurgeProgress, RangeEnd, RawDump, RawFiller, RawLease, RawMaintenance, RawReader, RawReplacer,
    RawSnapshot, RawWriter, ReorgEntry, Replacement, Result, Rollback, StoreError, StoreInfo, StoreSizes,
    TxPlace,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    Nothing,
    // Fences.
    AcquireKeepsTheFence,
    AppendIgnoresTheFence,
    FinalizeIgnoresTheFence,
    RollbackIgnoresTheFence,
    PurgeIgnoresTheFence,
    PruneIgnoresTheFence,
    AdvanceIgnoresTheFence,
    FillIgnoresTheFence,
    ReleaseIgnoresTheFence,
    // Writing.
    AppendInTwoTransactions,
    AppendForgetsTheMarks,
    AppendRefusesItsRepetition,
    FinalizeForgetsSafe,
    RollbackOneDeeper,
    RollbackOneShallower,
    RollbackForgetsItsClock,
    PurgeWithoutBound,
    PurgeOneMore,
    PruneOneMore,
    PruneKeepsOneMore,
    PruneKeepsOneLess,
    ReplaceIgnoresWhatIsThere,
    ReplaceDoesNothing,
    ReplaceRefusesItsRepetition,
    // Leases.
    ClaimIgnoresTheStop,
    ClaimIgnoresTheTime,
    ClaimForgetsTheOwner,
    ClaimTakesTheDead,
    RetryForgetsToCountAnew,
    FillInTwoTransactions,
    FillDoesNotRenew,
    RenewIgnoresTheFence,
    RenewDoesNothing,
    ReleaseForgetsBadEnds,
    ReleaseCountsGoodEnds,
    ReleaseForgetsTheReason,
    AdvanceHidesTheSeam,
    // Reading.
    SnapshotsAreNotIsolated,
    PartsAreIgnored,
    BlocksIgnoreTheLimit,
    BlocksStopBeforeTheLimit,
    BlocksCallACutReadWhole,
    BlocksAtSkipsWhatIsMissing,
    FindTxGivesTheIndexAsHeight,
    FindBlockByPrefix,
    CandidatesWithoutTheLast,
    CandidatesIgnoreTheRange,
    CandidatesIgnoreTheLimit,
    CandidatesOfAnEmptyGroup,
    CandidatesAreEveryBlock,
    CandidatesPassOverHoles,
    RangesPassOverHoles,
    ReorgsRepeatTheLast,
    OrphansAreForgottenWhenPurged,
    OrphansOfAnyEntry,
    FingerprintsIgnoreTheRange,
    NoCheckpoint,
    LeasesAreHidden,
    DumpMissesAnEntry,
    MaintenanceChangesTheDump,
    MaintenanceNeverEnds,
}

use Bug::*;

const BUGS: [Bug; 60] = [
    AcquireKeepsTheFence,
    AppendIgnoresTheFence,
    FinalizeIgnoresTheFence,
    RollbackIgnoresTheFence,
    PurgeIgnoresTheFence,
    PruneIgnoresTheFence,
    AdvanceIgnoresTheFence,
    FillIgnoresTheFence,
    ReleaseIgnoresTheFence,
    AppendInTwoTransactions,
    AppendForgetsTheMarks,
    AppendRefusesItsRepetition,
    FinalizeForgetsSafe,
    RollbackOneDeeper,
    RollbackOneShallower,
    RollbackForgetsItsClock,
    PurgeWithoutBound,
    PurgeOneMore,
    PruneOneMore,
    PruneKeepsOneMore,
    PruneKeepsOneLess,
    ReplaceIgnoresWhatIsThere,
    ReplaceDoesNothing,
    ReplaceRefusesItsRepetition,
    ClaimIgnoresTheStop,
    ClaimIgnoresTheTime,
    ClaimForgetsTheOwner,
    ClaimTakesTheDead,
    RetryForgetsToCountAnew,
    FillInTwoTransactions,
    FillDoesNotRenew,
    RenewIgnoresTheFence,
    RenewDoesNothing,
    ReleaseForgetsBadEnds,
    ReleaseCountsGoodEnds,
    ReleaseForgetsTheReason,
    AdvanceHidesTheSeam,
    SnapshotsAreNotIsolated,
    PartsAreIgnored,
    BlocksIgnoreTheLimit,
    BlocksStopBeforeTheLimit,
    BlocksCallACutReadWhole,
    BlocksAtSkipsWhatIsMissing,
    FindTxGivesTheIndexAsHeight,
    FindBlockByPrefix,
    CandidatesWithoutTheLast,
    CandidatesIgnoreTheRange,
    CandidatesIgnoreTheLimit,
    CandidatesOfAnEmptyGroup,
    CandidatesAreEveryBlock,
    CandidatesPassOverHoles,
    RangesPassOverHoles,
    ReorgsRepeatTheLast,
    OrphansAreForgottenWhenPurged,
    OrphansOfAnyEntry,
    FingerprintsIgnoreTheRange,
    NoCheckpoint,
    LeasesAreHidden,
    DumpMissesAnEntry,
    MaintenanceChangesTheDump,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_fails_a_case() {
    let mut missed = Vec::new();
    for bug in BUGS.into_iter().chain([MaintenanceNeverEnds]) {
        match first_failure(bug).await {
            Some((case, failure)) => println!("{bug:?} fails {case}: {failure}"),
            None => missed.push(bug),
        }
    }
    println!("{} passed, {} failed", BUGS.len() + 1 - missed.len(), missed.len());
    assert!(missed.is_empty(), "the suite doesn't notice {missed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bug_fails_no_case() {
    assert_eq!(first_failure(Nothing).await, None);
}

async fn first_failure(bug: Bug) -> Option<(&'static str, String)> {
    for case in cases() {
        if let Err(failure) = case.run(Arc::new(Factory(bug))).await {
            return Some((case.name, failure.to_string().chars().take(200).collect()));
        }
    }
    None
}

struct Factory(Bug);

#[async_trait]
impl StoreFactory for Factory {
    async fn place(&self, clock: Arc<dyn Clock>) -> Result<Arc<dyn StorePlace>> {
        Ok(Arc::new(Buggy { bug: self.0, inner: MemoryStore::new(clock), maintained: Arc::default() }))
    }
}

#[derive(Clone)]
struct Buggy {
    bug: Bug,
    inner: MemoryStore,
    maintained: Arc<AtomicU64>,
}

impl Buggy {
    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// The fence in force where the bug is that fences are ignored.
    async fn fence(&self, fence: Fence, bug: Bug) -> Fence {
        if !self.has(bug) {
            return fence;
        }
        self.inner.snapshot().await.map_or(fence, |snapshot| snapshot.head().fence)
    }

    async fn lease(&self, lease: &RawLease, bug: Bug) -> RawLease {
        let Ok(snapshot) = self.inner.snapshot().await else { return lease.clone() };
        let now = snapshot.raw_leases().await.unwrap_or_default();
        let now = now.into_iter().find(|now| now.range == lease.range).filter(|_| self.has(bug));
        now.unwrap_or_else(|| lease.clone())
    }
}

#[async_trait]
impl StorePlace for Buggy {
    async fn open(&self) -> Result<Arc<dyn TestStore>> {
        Ok(Arc::new(self.clone()))
    }

    async fn lose_block(&self, height: Height) -> Result<()> {
        self.inner.lose_block(height)
    }
}

#[async_trait]
impl RawWriter for Buggy {
    async fn init(&self, info: StoreInfo) -> Result<HeadRow> {
        self.inner.init(info).await
    }

    async fn acquire(&self) -> Result<HeadRow> {
        let now = self.inner.snapshot().await?.head().clone();
        if self.has(AcquireKeepsTheFence) && now.fence > Fence(0) {
            Ok(now)
        } else {
            self.inner.acquire().await
        }
    }

    async fn append(&self, fence: Fence, mut batch: AppendBatch) -> Result<HeadRow> {
        let fence = self.fence(fence, AppendIgnoresTheFence).await;
        if self.has(AppendForgetsTheMarks) {
            (batch.finalized, batch.safe) = Default::default();
        }
        if self.has(AppendInTwoTransactions) && batch.blocks.len() > 1 {
            let rest = batch.blocks.split_off(1);
            self.inner.append(fence, batch.clone()).await?;
            return self.inner.append(fence, AppendBatch { blocks: rest, ..batch }).await;
        }
        let tip = self.inner.snapshot().await?.head().tip;
        let last = batch.blocks.last().map(RawBlock::block_ref);
        if self.has(AppendRefusesItsRepetition) && tip.is_some() && tip == last {
            return Err(StoreError::Invalid("again".into()));
        }
        self.inner.append(fence, batch).await
    }

    async fn finalize(
        &self,
        fence: Fence,
        finalized: Option<BlockRef>,
        safe: Option<BlockRef>,
    ) -> Result<HeadRow> {
        let fence = self.fence(fence, FinalizeIgnoresTheFence).await;
        self.inner.finalize(fence, finalized, safe.filter(|_| !self.has(FinalizeForgetsSafe))).await
    }

    async fn rollback(&self, fence: Fence, mut rollback: Rollback) -> Result<ReorgEntry> {
        let fence = self.fence(fence, RollbackIgnoresTheFence).await;
        match self.bug {
            RollbackOneDeeper => rollback.max_depth += 1,
            RollbackOneShallower => rollback.max_depth = rollback.max_depth.saturating_sub(1),
            RollbackForgetsItsClock => rollback.decided_at_ms = 0,
            _ => {}
        }
        self.inner.rollback(fence, rollback).await
    }

    async fn purge_step(&self, fence: Fence, max_blocks: u64) -> Result<PurgeProgress> {
        let fence = self.fence(fence, PurgeIgnoresTheFence).await;
        let max_blocks = match self.bug {
            PurgeWithoutBound => u64::MAX,
            PurgeOneMore => max_blocks.saturating_add(1),
            _ => max_blocks,
        };
        self.inner.purge_step(fence, max_blocks).await
    }

    async fn prune_orphans(&self, fence: Fence, keep_heights: u64, max_blocks: u64) -> Result<u64> {
        let fence = self.fence(fence, PruneIgnoresTheFence).await;
        let (keep_heights, max_blocks) = match self.bug {
            PruneOneMore => (keep_heights, max_blocks + 1),
            PruneKeepsOneMore => (keep_heights + 1, max_blocks),
            PruneKeepsOneLess => (keep_heights.saturating_sub(1), max_blocks),
            _ => (keep_heights, max_blocks),
        };
        self.inner.prune_orphans(fence, keep_heights, max_blocks).await
    }
}

#[async_trait]
impl RawFiller for Buggy {
    async fn claim_range(
        &self,
        owner: &str,
        ttl_ms: u64,
        heights: u64,
        stop: Height,
    ) -> Result<Option<RawLease>> {
        match self.bug {
            ClaimIgnoresTheStop => self.inner.claim_range(owner, ttl_ms, heights, stop + 1).await,
            ClaimIgnoresTheTime => self.inner.claim_range(owner, u64::MAX, heights, stop).await,
            ClaimForgetsTheOwner => self.inner.claim_range("", ttl_ms, heights, stop).await,
            ClaimTakesTheDead => {
                for lease in self.inner.snapshot().await?.raw_leases().await? {
                    if lease.is_dead() {
                        self.inner.retry_range(lease.range.start()).await?;
                    }
                }
                self.inner.claim_range(owner, ttl_ms, heights, stop).await
            }
            _ => self.inner.claim_range(owner, ttl_ms, heights, stop).await,
        }
    }

    async fn fill(&self, lease: &RawLease, mut blocks: Vec<RawBlock>, ttl_ms: u64) -> Result<RawLease> {
        let lease = self.lease(lease, FillIgnoresTheFence).await;
        if self.has(FillInTwoTransactions) && blocks.len() > 1 {
            let rest = blocks.split_off(1);
            self.inner.fill(&lease, blocks, ttl_ms).await?;
            return self.inner.fill(&lease, rest, ttl_ms).await;
        }
        self.inner.fill(&lease, blocks, if self.has(FillDoesNotRenew) { 0 } else { ttl_ms }).await
    }

    async fn renew_range(&self, lease: &RawLease, ttl_ms: u64) -> Result<RawLease> {
        let lease = self.lease(lease, RenewIgnoresTheFence).await;
        self.inner.renew_range(&lease, if self.has(RenewDoesNothing) { 0 } else { ttl_ms }).await
    }

    async fn release(&self, lease: &RawLease, end: RangeEnd) -> Result<()> {
        let lease = self.lease(lease, ReleaseIgnoresTheFence).await;
        let end = match end {
            RangeEnd::Bad(error) if self.has(ReleaseForgetsBadEnds) => RangeEnd::Transient(error),
            RangeEnd::Released if self.has(ReleaseCountsGoodEnds) => RangeEnd::Bad(String::new()),
            RangeEnd::Transient(_) if self.has(ReleaseForgetsTheReason) => RangeEnd::Released,
            end => end,
        };
        self.inner.release(&lease, end).await
    }

    async fn retry_range(&self, start: Height) -> Result<Option<RawLease>> {
        if self.has(RetryForgetsToCountAnew) {
            let leases = self.inner.snapshot().await?.raw_leases().await?;
            return Ok(leases.into_iter().find(|lease| lease.range.start() == start));
        }
        self.inner.retry_range(start).await
    }

    async fn release_range(&self, start: Height) -> Result<Option<RawLease>> {
        self.inner.release_range(start).await
    }

    async fn advance(&self, fence: Fence) -> Result<HeadRow> {
        let fence = self.fence(fence, AdvanceIgnoresTheFence).await;
        match self.inner.advance(fence).await {
            Err(StoreError::DoesNotLink { .. }) if self.has(AdvanceHidesTheSeam) => {
                Ok(self.inner.snapshot().await?.head().clone())
            }
            answer => answer,
        }
    }
}

#[async_trait]
impl RawReplacer for Buggy {
    async fn replace_block(&self, mut replacement: Replacement) -> Result<()> {
        let height = replacement.block.facts.height;
        let now = self.inner.snapshot().await?.block(height, Parts::all()).await?;
        match (self.bug, now) {
            (ReplaceDoesNothing, _) => return Ok(()),
            (ReplaceIgnoresWhatIsThere, Some(now)) => replacement.read = now,
            (ReplaceRefusesItsRepetition, Some(now)) if now == StoredBlock::from(&replacement.block) => {
                return Err(StoreError::Replaced { block: now.facts.block_ref() });
            }
            _ => {}
        }
        self.inner.replace_block(replacement).await
    }
}

#[async_trait]
impl RawMaintenance for Buggy {
    async fn maintain(&self, max_bytes: u64) -> Result<Maintained> {
        self.maintained.fetch_add(1, Ordering::SeqCst);
        let done = self.inner.maintain(max_bytes).await?;
        Ok(if self.has(MaintenanceNeverEnds) { Maintained::More } else { done })
    }
}

#[async_trait]
impl RawDump for Buggy {
    async fn dump(&self) -> Result<Dump> {
        let mut dump = self.inner.dump().await?;
        if self.has(DumpMissesAnEntry) {
            let entry = dump.lines.iter().position(|line| line.starts_with("index/log-term"));
            entry.map(|at| dump.lines.remove(at));
        }
        if self.has(MaintenanceChangesTheDump) && self.maintained.load(Ordering::SeqCst) > 0 {
            dump.lines.pop();
        }
        Ok(dump)
    }
}

#[async_trait]
impl RawReader for Buggy {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        let at = self.inner.snapshot().await?;
        Ok(Arc::new(BuggySnapshot { bug: self.bug, store: self.inner.clone(), head: at.head().clone(), at }))
    }
}

struct BuggySnapshot {
    bug: Bug,
    store: MemoryStore,
    head: HeadRow,
    at: Arc<dyn RawSnapshot>,
}

impl BuggySnapshot {
    async fn at(&self) -> Result<Arc<dyn RawSnapshot>> {
        if self.bug == SnapshotsAreNotIsolated { self.store.snapshot().await } else { Ok(self.at.clone()) }
    }

    fn parts(&self, parts: Parts) -> Parts {
        if self.bug == PartsAreIgnored { Parts::all() } else { parts }
    }
}

#[async_trait]
impl RawSnapshot for BuggySnapshot {
    fn head(&self) -> &HeadRow {
        &self.head
    }

    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        self.at().await?.block(height, self.parts(parts)).await
    }

    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        let max_bytes = if self.bug == BlocksIgnoreTheLimit { u64::MAX } else { max_bytes };
        let mut read = match self.at().await?.blocks(range, self.parts(parts), max_bytes).await {
            Err(StoreError::Corrupt { .. }) if self.bug == RangesPassOverHoles => {
                BlocksRead::whole(range, Vec::new())
            }
            read => read?,
        };
        if self.bug == BlocksStopBeforeTheLimit && max_bytes < u64::MAX {
            read.blocks.pop();
        }
        if self.bug == BlocksCallACutReadWhole {
            read.next = range.end();
        }
        Ok(read)
    }

    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>> {
        let mut heights = heights.to_vec();
        if self.bug == BlocksAtSkipsWhatIsMissing {
            heights.retain(|height| self.head.range().contains(*height));
        }
        self.at().await?.blocks_at(&heights, self.parts(parts), max_bytes).await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.at().await?.linked_ref(height).await
    }

    async fn find_block(&self, mut id: BlockId) -> Result<Option<Height>> {
        if self.bug == FindBlockByPrefix {
            for height in self.head.range().iter() {
                let stored = self.at.linked_ref(height).await?.map(|linked| linked.block.id);
                id = stored.filter(|stored| stored.index_key() == id.index_key()).unwrap_or(id);
            }
        }
        self.at().await?.find_block(id).await
    }

    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        let place = self.at().await?.find_tx(id).await?;
        Ok(place.map(|mut place| {
            if self.bug == FindTxGivesTheIndexAsHeight {
                place.height = Height(u64::from(place.index));
            }
            place
        }))
    }

    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        let mut query = query.clone();
        let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
        match self.bug {
            CandidatesOfAnEmptyGroup => query.groups.retain(|group| !group.is_empty()),
            CandidatesAreEveryBlock => query.groups.clear(),
            _ => {}
        }
        let range = if self.bug == CandidatesIgnoreTheRange { all } else { range };
        let limit = if self.bug == CandidatesIgnoreTheLimit { usize::MAX } else { limit };
        let mut found = match self.at().await?.log_candidates(range, &query, limit).await {
            // What an index alone says, which knows nothing of rows.
            Err(StoreError::Corrupt { .. }) if self.bug == CandidatesPassOverHoles => Vec::new(),
            found => found?,
        };
        if self.bug == CandidatesWithoutTheLast {
            found.pop();
        }
        Ok(found)
    }

    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        let back = u64::from(self.bug == ReorgsRepeatTheLast);
        self.at().await?.reorgs(after_id.saturating_sub(back), limit).await
    }

    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        if self.bug == OrphansAreForgottenWhenPurged && self.head.pending_purge.is_none() {
            return Ok(None);
        }
        if self.bug == OrphansOfAnyEntry {
            for entry in self.at.reorgs(0, usize::MAX).await? {
                if let Some(found) = self.at.orphan(entry.id, id, parts).await? {
                    return Ok(Some(found));
                }
            }
        }
        self.at().await?.orphan(reorg_id, id, parts).await
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        if self.bug == NoCheckpoint { Ok(vec![]) } else { self.at().await?.checkpoints().await }
    }

    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        if self.bug == LeasesAreHidden { Ok(vec![]) } else { self.at().await?.raw_leases().await }
    }

    async fn sizes(&self) -> Result<StoreSizes> {
        self.at().await?.sizes().await
    }

    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        let range = if self.bug == FingerprintsIgnoreTheRange { self.head.range() } else { range };
        self.at().await?.index_fingerprints(range).await
    }
}
