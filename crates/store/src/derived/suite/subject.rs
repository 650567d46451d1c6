//! The store that a case works on, the raw chain beside it, and the workers between them.

use std::sync::Arc;

use cairn_core::{BlockId, BlockRef, Clock, Height, HeightRange};

use super::raw::{NO_BLOCK, Raw};
use super::tables::{ASKER, CODES, FOLDER, MAPPER, MOVES, NAMES, ask, catalog, fold, map};
use super::{CaseResult, DerivedFactory, DerivedPlace, Failure, MemoryFactory, TestClock, TestDerived};
use crate::derived::fork::{DerivedCheckpoint, FoldedAt, ForkState};
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseFilter, LeaseKind, LeaseStatus, WorkerLease};
use crate::derived::reader::{DerivedSnapshot, Scan};
use crate::derived::rebuild::{Rebuild, RebuildRequest};
use crate::derived::row::Row;
use crate::derived::value::Value;
use crate::derived::writer::{ApplyProgress, ChunkCommit, Committed, StateRow, StateRows};
use crate::suite::check::{holds, same};
use crate::{Dump, ReorgEntry, Result, StoreError};

/// When a case's clock starts, in milliseconds since 1970.
pub(super) const START_MS: u64 = 1_700_000_000_000;

/// How long leases last here, in milliseconds.
pub(super) const TTL_MS: u64 = 60_000;

/// Everything about a store that a refused verb must leave as it was.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frozen {
    pub(super) forks: ForkState,
    pub(super) checkpoints: Vec<DerivedCheckpoint>,
    pub(super) leases: Vec<WorkerLease>,
    pub(super) asked: Vec<Row>,
    pub(super) dump: Dump,
}

/// A store beside a raw chain.
pub(super) struct Subject {
    pub(super) store: Arc<dyn TestDerived>,
    pub(super) clock: Arc<TestClock>,
    pub(super) place: Arc<dyn DerivedPlace>,
    pub(super) raw: Raw,
}

impl Subject {
    /// A new place and its store that follows nothing yet.
    pub(super) async fn bare(factory: &Arc<dyn DerivedFactory>, raw: Raw) -> CaseResult<Subject> {
        let clock = Arc::new(TestClock::new(START_MS));
        let place = factory.place(catalog()?, clock.clone() as Arc<dyn Clock>).await?;
        let store = place.open().await?;
        Ok(Subject { store, clock, place, raw })
    }

    /// A store that follows `raw`, with the three services registered at height 0.
    pub(super) async fn new(factory: &Arc<dyn DerivedFactory>, raw: Raw) -> CaseResult<Subject> {
        let subject = Subject::bare(factory, raw).await?;
        subject.store.adopt(subject.raw.uuid, subject.raw.newest()).await?;
        for service in [MAPPER, FOLDER, ASKER] {
            subject.store.register(service, Height(0)).await?;
        }
        Ok(subject)
    }

    /// A store on the reference, whatever backend is tested.
    pub(super) async fn reference(raw: Raw) -> CaseResult<Subject> {
        let factory: Arc<dyn DerivedFactory> = Arc::new(MemoryFactory);
        Subject::new(&factory, raw).await
    }

    /// Drops the store without closing it and opens it again.
    pub(super) async fn reopen(&mut self) -> CaseResult {
        // Something has to stand in its place while it is gone.
        self.store = Subject::reference(Raw::new()).await?.store;
        self.store = self.place.open().await?;
        Ok(())
    }

    pub(super) async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        self.store.snapshot().await
    }

    pub(super) async fn forks(&self) -> CaseResult<ForkState> {
        self.store.forks().await?.ok_or_else(|| Failure::new("the store follows nothing"))
    }

    pub(super) async fn checkpoint(&self, service: &str) -> CaseResult<DerivedCheckpoint> {
        let snapshot = self.snapshot().await?;
        let checkpoint = snapshot.checkpoint(service).cloned();
        checkpoint.ok_or_else(|| Failure::new(format!("{service} has no checkpoint")))
    }

    /// Demands where a service's checkpoint ends and on which block.
    #[track_caller]
    pub(super) fn ends(checkpoint: &DerivedCheckpoint, next: u64, last_id: Option<BlockId>) -> CaseResult {
        let found = (checkpoint.next, checkpoint.last_id);
        same(&format!("the checkpoint of {}", checkpoint.service), found, (Height(next), last_id))
    }

    pub(super) async fn leases(&self) -> Result<Vec<WorkerLease>> {
        let filter = LeaseFilter { limit: usize::MAX, ..LeaseFilter::default() };
        self.snapshot().await?.leases(&filter).await
    }

    pub(super) async fn lease(&self, id: u64) -> CaseResult<WorkerLease> {
        let lease = self.store.lease(id).await?;
        lease.ok_or_else(|| Failure::new(format!("there is no lease {id}")))
    }

    /// How far a service may go: the raw tip, or the mapper's checkpoint.
    pub(super) async fn limit(&self, service: &str) -> CaseResult<Height> {
        match service {
            FOLDER | ASKER => Ok(self.checkpoint(MAPPER).await?.next),
            _ => Ok(self.raw.next),
        }
    }

    /// A claim that could go to height 1000 if there were leases for it.
    pub(super) fn request(&self, service: &str) -> ClaimRequest {
        ClaimRequest {
            service: service.to_owned(),
            version: 1,
            owner: "worker".into(),
            ttl_ms: TTL_MS,
            range_heights: 10,
            first: Height(0),
            limit_exclusive: Height(1_000),
            stop_exclusive: None,
            in_order: service == FOLDER,
        }
    }

    pub(super) async fn claim(&self, service: &str) -> CaseResult<WorkerLease> {
        self.claim_as(&self.request(service)).await
    }

    /// A claim by somebody who knows how far the service may go now.
    pub(super) async fn at_limit(&self, service: &str) -> CaseResult<Option<WorkerLease>> {
        let limit_exclusive = self.limit(service).await?;
        let request = ClaimRequest { limit_exclusive, ..self.request(service) };
        Ok(self.store.claim(&request).await?)
    }

    pub(super) async fn claim_as(&self, request: &ClaimRequest) -> CaseResult<WorkerLease> {
        let lease = self.store.claim(request).await?;
        lease.ok_or_else(|| Failure::new(format!("nothing to claim for {}", request.service)))
    }

    /// The commit of a lease's chunk from where it stands to `to`, with the rows of the service that it is of.
    pub(super) async fn chunk(&self, lease: &WorkerLease, to: u64) -> CaseResult<ChunkCommit> {
        let chunk = HeightRange::new(lease.done_to, Height(to));
        let blocks = self.raw.blocks(chunk);
        let forks = self.forks().await?;
        let mut commit = ChunkCommit {
            chunk,
            parent_id: Some(self.raw.below(chunk.start())),
            last_id: blocks.last().map(|block| block.id),
            read: self.raw.read(&forks),
            folded_at: None,
            rows: Vec::new(),
            states: Vec::new(),
            replaces: Vec::new(),
            corrections: Vec::new(),
            quarantined: Vec::new(),
            finalized: self.raw.finalized,
            ttl_ms: TTL_MS,
        };
        match lease.service.as_str() {
            MAPPER => commit.rows = map(&blocks),
            ASKER => commit.rows = ask(&blocks),
            FOLDER => {
                commit.states = self.fold(lease, &blocks, chunk).await?;
                let snapshot = self.snapshot().await?;
                let corrections = snapshot.checkpoint(FOLDER).map_or(0, |own| own.corrections);
                commit.folded_at = Some(FoldedAt { applied: forks.applied.id, corrections });
            }
            _ => {}
        }
        if lease.kind == LeaseKind::Reindex {
            commit.replaces = vec![MOVES.name, "notes"];
        }
        Ok(commit)
    }

    async fn fold(
        &self,
        lease: &WorkerLease,
        blocks: &[BlockRef],
        chunk: HeightRange,
    ) -> CaseResult<Vec<StateRows>> {
        let snapshot = self.snapshot().await?;
        let (moves, end) = snapshot.events(MOVES.name, chunk.start(), chunk.end(), usize::MAX).await?;
        same("where the events end", end, chunk.end())?;
        let stray =
            moves.iter().find(|row| !blocks.iter().any(|block| row.0[0] == Value::height(block.height)));
        same("an event of no block", stray, None)?;
        let read = |table, key| {
            let snapshot = snapshot.clone();
            async move { Ok(snapshot.rows(table, &[key]).await?.pop().flatten()) }
        };
        fold(lease, &moves, self.raw.finalized, read).await
    }

    pub(super) async fn commit(&self, lease: &WorkerLease, to: u64) -> CaseResult<Committed> {
        Ok(self.try_commit(lease, to).await??)
    }

    /// The commit's own answer apart from what can fail before it.
    pub(super) async fn try_commit(&self, lease: &WorkerLease, to: u64) -> CaseResult<Result<Committed>> {
        let commit = self.chunk(lease, to).await?;
        Ok(self.store.commit_chunk(lease, commit).await)
    }

    /// Works off a lease in chunks as far as it goes; gives it back where that is not its end.
    pub(super) async fn work(&self, mut lease: WorkerLease, chunk_heights: u64) -> CaseResult<WorkerLease> {
        let limit = match lease.kind {
            LeaseKind::Index => self.limit(&lease.service).await?,
            LeaseKind::Reindex => self.checkpoint(&lease.service).await?.next,
        };
        let end = lease.range.end().min(limit);
        while lease.done_to < end {
            let to = (lease.done_to + chunk_heights).min(end);
            lease = self.commit(&lease, to.get()).await?.lease;
        }
        if lease.status != LeaseStatus::Completed {
            // What is made again waits for the checkpoint, and is not in the way of what moves that.
            let end = match lease.kind {
                LeaseKind::Index => LeaseEnd::Released,
                LeaseKind::Reindex => {
                    LeaseEnd::Transient { message: "it is above the checkpoint".into(), retry_in_ms: 1_000 }
                }
            };
            self.store.end(&lease, end).await?;
        }
        Ok(lease)
    }

    /// Indexes a service as far as it may go, in ranges and chunks of these sizes.
    pub(super) async fn index(&self, service: &str, range_heights: u64, chunk_heights: u64) -> CaseResult {
        let request = ClaimRequest {
            range_heights,
            limit_exclusive: self.limit(service).await?,
            ..self.request(service)
        };
        while let Some(lease) = self.store.claim(&request).await? {
            let worked = self.work(lease, chunk_heights).await?;
            if worked.status != LeaseStatus::Completed && worked.kind == LeaseKind::Index {
                break;
            }
        }
        Ok(())
    }

    /// Indexes every service to the raw tip.
    pub(super) async fn index_all(&self, range_heights: u64, chunk_heights: u64) -> CaseResult {
        for service in [MAPPER, FOLDER, ASKER] {
            self.index(service, range_heights, chunk_heights).await?;
            self.store.repair_checkpoints().await?;
        }
        Ok(())
    }

    /// Applies an entry in steps of `max_rows`.
    pub(super) async fn apply(&self, entry: &ReorgEntry, max_rows: usize) -> CaseResult<ForkState> {
        self.store.begin_apply(entry).await?;
        self.finish(entry, max_rows).await
    }

    /// Goes on with an entry that was begun, to its end.
    pub(super) async fn finish(&self, entry: &ReorgEntry, max_rows: usize) -> CaseResult<ForkState> {
        for _ in 0..10_000 {
            if self.store.apply_step(entry.id, max_rows).await? == ApplyProgress::Done {
                return Ok(self.store.finish_apply(entry.id).await?);
            }
        }
        Err(Failure::new("there are rows to undo after 10,000 steps"))
    }

    /// Lets a service make everything anew.
    pub(super) async fn anew(&self, service: &str) -> Result<Rebuild> {
        let request = RebuildRequest { anew: vec![service.to_owned()], ..RebuildRequest::default() };
        let begun = self.store.begin_rebuild(&request).await?.pop();
        begun.ok_or_else(|| StoreError::Invalid("nothing was begun".into()))
    }

    /// Forks the raw chain at `common`, applies that, and grows another fork to `end`.
    pub(super) async fn switch(&mut self, common: u64, end: u64, salt: u8, max_rows: usize) -> CaseResult {
        let entry = self.raw.fork(common);
        self.apply(&entry, max_rows).await?;
        self.raw.grow(end, salt);
        Ok(())
    }

    /// Every row of a table by its key.
    pub(super) async fn all(&self, table: &'static str) -> CaseResult<Vec<Row>> {
        all(&*self.snapshot().await?, table).await
    }

    /// Remembers how everything stands.
    pub(super) async fn freeze(&self) -> CaseResult<Frozen> {
        let asked = [self.all(NAMES.name).await?, self.all(CODES.name).await?].concat();
        Ok(Frozen {
            forks: self.forks().await?,
            checkpoints: self.snapshot().await?.checkpoints().to_vec(),
            leases: self.leases().await?,
            asked,
            dump: self.store.dump().await?,
        })
    }

    /// Demands that nothing has changed since.
    pub(super) async fn is_still(&self, before: &Frozen) -> CaseResult {
        let now = self.freeze().await?;
        same("the mark of what was applied", &now.forks, &before.forks)?;
        same("the leases", &now.leases, &before.leases)?;
        same("the checkpoints", &now.checkpoints, &before.checkpoints)?;
        same("answers and content", &now.asked, &before.asked)?;
        same_dump(&now.dump, &before.dump)
    }

    /// Demands that its dump is that of a reference store that indexed the raw chain at once and never saw another, and that it has the same answers, which
    /// dumps leave out.
    pub(super) async fn dumps_as_its_chain(&self) -> CaseResult {
        let mut raw = self.raw.clone();
        raw.reorgs.clear();
        let reference = Subject::reference(raw).await?;
        reference.index_all(1_000_000, 1_000_000).await?;
        same_dump(&self.store.dump().await?, &reference.store.dump().await?)?;
        same("the answers", self.all(NAMES.name).await?, reference.all(NAMES.name).await?)
    }
}

/// Every row of a table by its key, page by page.
pub(super) async fn all(snapshot: &dyn DerivedSnapshot, table: &'static str) -> CaseResult<Vec<Row>> {
    let mut scan = Scan::new(table, 1_000);
    let mut rows = Vec::new();
    loop {
        let page = snapshot.scan(&scan).await?;
        rows.extend(page.rows);
        let Some(place) = page.more else { return Ok(rows) };
        scan.lower = std::ops::Bound::Excluded(place);
    }
}

/// The states in a commit, to be changed.
pub(super) fn states_of<'a>(commit: &'a mut ChunkCommit, table: &str) -> CaseResult<&'a mut Vec<StateRow>> {
    let part = commit.states.iter_mut().find(|part| part.table == table);
    part.map(|part| &mut part.rows).ok_or_else(|| Failure::new(format!("no state of {table}")))
}

#[track_caller]
pub(super) fn same_dump(found: &Dump, expected: &Dump) -> CaseResult {
    let difference = found.first_difference(expected);
    holds(difference.is_none(), format!("the dumps differ (found, expected): {difference:?}"))
}

/// The parent that a lease at height 0 records.
pub(super) const FIRST_PARENT: Option<BlockId> = Some(NO_BLOCK);
