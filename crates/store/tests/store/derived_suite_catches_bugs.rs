//! The derived suite is worth what it catches: the reference with one bug each, and every bug has to fail a case.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, Clock, Height, HeightRange};
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::suite::{
    BROKEN, Breaking, Countdown, DerivedFactory, DerivedPlace, TestDerived, cases,
};
use cairn_store::derived::{
    ApplyProgress, Catalog, ChunkCommit, ClaimRequest, Committed, Coordinator, DerivedCheckpoint,
    DerivedDump, DerivedMaintenance, DerivedReader, DerivedSnapshot, DerivedWriter, ErrorFilter, ErrorLog,
    ForkState, Key, LeaseEnd, LeaseFilter, LeaseGap, LeaseStatus, LoggedError, NewError, Quarantined,
    ReadMark, Rebuild, RebuildRequest, Recorded, ReorgApplier, Repairs, Row, Scan, ScanPage, TakenBack,
    UndoRows, WorkerLease,
};
use cairn_store::{Dump, ReorgEntry, ReorgMark, Result, StoreError};

macro_rules! bugs {
    ($($name:ident),+ $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Bug { Nothing, $($name),+ }

        const BUGS: &[Bug] = &[$(Bug::$name),+];
    };
}

bugs!(
    // Fences and the places where work joins.
    CommitIgnoresTheFence,
    RenewIgnoresTheFence,
    EndIgnoresTheFence,
    CommitIgnoresTheParent,
    CommitAnswersARepetition,
    // Forks.
    CommitTrustsStaleReads,
    CommitIgnoresNewerReorgs,
    CommitIgnoresTheAgeOfState,
    CommitForgetsTheReach,
    // Corrections.
    CorrectionsTrustStaleState,
    FoldersTrustStaleCorrections,
    CorrectionsForgetUndo,
    CorrectionsKeepWhatGoes,
    CorrectionsAreForgotten,
    // Rows.
    ARefusedCommitMovesTheLease,
    CommitForgetsARow,
    CommitReplacesNothing,
    CommitForgetsEarlierUndo,
    CommitSaysThatNothingWas,
    CommitForgetsWhatAnswersReplace,
    CommitTakesTheLastAnswerOfAKey,
    CommitLetsALateAnswerReplace,
    CommitDoesNotRenew,
    CommitHidesItsHoles,
    CommitIgnoresNewerState,
    // Leases.
    ClaimIgnoresTheStop,
    ClaimIgnoresTheLimit,
    ClaimIgnoresTheOrder,
    ClaimIgnoresTheVersion,
    ClaimIgnoresThePause,
    ClaimForgetsTheOwner,
    ClaimForgetsTheTtl,
    ClaimIsNotReclaiming,
    RenewDoesNothing,
    AReleaseCounts,
    ATransientEndCounts,
    ABadEndDoesNotCount,
    AnEndForgetsThePause,
    ABrokenEndIsAnEnd,
    ReapIsUnbounded,
    ReapDoesNothing,
    RetryDoesNothing,
    ReleaseDoesNothing,
    ReleaseAllCountsNothing,
    ReleaseAllIsNoBadEnd,
    WaitingIsCharged,
    PausingDoesNothing,
    DeadLeasesAreHidden,
    GapsAreHidden,
    GapsAreUnbounded,
    LeaseListsForgetWhereToGoOn,
    ReindexIsNotCut,
    WhatIsMadeAgainIsForgotten,
    WhatWasMadeAgainIsNotYet,
    // The committer.
    RepairDoesNothing,
    RepairHidesAlarms,
    // Reorgs.
    AdoptTakesAnyStore,
    BeginTakesAnyDigest,
    StepsAreUnbounded,
    StepsAreDoneTooEarly,
    FinishUndoesTheRest,
    ApplyingAgainIsFine,
    // Reading.
    SnapshotsAreNotIsolated,
    StateListsDontWait,
    ScansIgnoreFilters,
    ScansIgnoreLimits,
    ScansForgetWhereToGoOn,
    ScansStopTooFar,
    ScansExamineEverything,
    ScansTakeExcludedBounds,
    ScansIgnoreTheDirection,
    PointsAreSorted,
    EventsIgnoreTheirLimit,
    EventsGoOnTooFar,
    QuarantinedOfAllHeights,
    QuarantinedAreCountedAsNamed,
    // Maintenance.
    ResetIsUnbounded,
    ResetIsDoneTooEarly,
    ResetTakesWhatIsNew,
    RebuildsBeginInPieces,
    RebuildsAreNotTold,
    NewestAskedIsHidden,
    RebuildsAreNeverOver,
    RebuildsForgetThePause,
    RebuildsLeaveWhoAsksAtIt,
    TakeBackIsUnbounded,
    TakeBackDoesNothing,
    TakeBackTakesWhatIsDerived,
    PruneIsUnbounded,
    DeleteCountsEveryKey,
    MaintainDeletes,
    DumpMissesALine,
    // The log.
    ErrorsAreRecordedTwice,
    ABrokenResolveCloses,
    MessagesAreNotCut,
    ResolvingDoesNothing,
    ClosedErrorsAreListed,
    ClosedErrorsStayClosed,
    ForgettingDoesNothing,
    TheErrorLogHasNoEnd,
    FatalErrorsAreDropped,
    PruningTakesYoungErrors,
);

use Bug::Nothing;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_fails_a_case() {
    let mut missed = Vec::new();
    for bug in BUGS {
        match first_failure(*bug).await {
            Some((case, failure)) => println!("{bug:?} fails {case}: {failure}"),
            None => missed.push(bug),
        }
    }
    println!("{} passed, {} failed", BUGS.len() - missed.len(), missed.len());
    assert!(missed.is_empty(), "the suite doesn't notice {missed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bug_fails_no_case() {
    assert_eq!(first_failure(Nothing).await, None);
}

async fn first_failure(bug: Bug) -> Option<(&'static str, String)> {
    for case in cases() {
        // A case may find the bug by a panic, or by waiting for what never comes.
        let run = tokio::spawn(async move { case.run(Arc::new(Factory(bug))).await });
        let failure = match tokio::time::timeout(std::time::Duration::from_secs(60), run).await {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(failure))) => failure.to_string(),
            Ok(Err(panic)) => panic.to_string(),
            Err(_) => "it takes for ever".to_owned(),
        };
        return Some((case.name, failure.chars().take(200).collect()));
    }
    None
}

struct Factory(Bug);

struct Place {
    store: Buggy,
    log: BuggyLog,
}

#[async_trait]
impl DerivedFactory for Factory {
    async fn place(&self, catalog: Catalog, clock: Arc<dyn Clock>) -> Result<Arc<dyn DerivedPlace>> {
        let store = Buggy { inner: MemoryDerived::new(catalog, clock.clone()), bug: self.0 };
        let log = BuggyLog { inner: MemoryErrorLog::new(clock), bug: self.0 };
        Ok(Arc::new(Place { store, log }))
    }

    fn differential_seeds(&self) -> u64 {
        4
    }

    fn expired_leases(&self) -> u64 {
        400
    }

    fn rounds_of_writers(&self) -> u64 {
        5
    }
}

#[async_trait]
impl DerivedPlace for Place {
    async fn open(&self) -> Result<Arc<dyn TestDerived>> {
        Ok(Arc::new(self.store.clone()))
    }

    async fn open_log(&self) -> Result<Arc<dyn ErrorLog>> {
        Ok(Arc::new(self.log.clone()))
    }

    async fn lose_lease(&self, id: u64) -> Result<()> {
        self.store.inner.lose_lease(id)
    }

    async fn set_last_height(&self, table: &'static str, height: Height) -> Result<()> {
        self.store.inner.set_last_height(table, height)
    }

    async fn open_breaking(&self) -> Result<Breaking> {
        let breaker = Arc::new(Countdown::default());
        self.store.inner.set_hook(Some(breaker.clone()));
        self.log.inner.set_hook(Some(breaker.clone()));
        Ok(Breaking { store: self.open().await?, log: self.open_log().await?, breaker })
    }
}

#[derive(Clone)]
struct Buggy {
    inner: MemoryDerived,
    bug: Bug,
}

impl Buggy {
    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Deletes answers, with what they replaced, that a commit meets.
    async fn forget_names(&self, commit: &ChunkCommit, is_met: impl Fn(&Row, &Row) -> bool) -> Result<()> {
        let Ok(snapshot) = self.inner.snapshot().await else { return Ok(()) };
        for row in commit.rows.iter().filter(|part| part.table == "names").flat_map(|part| &part.rows) {
            let key = Key(vec![row.0[0].clone()]);
            let stored = snapshot.rows("names", std::slice::from_ref(&key)).await?.pop().flatten();
            if stored.is_some_and(|stored| is_met(&stored, row)) {
                self.inner.delete_rows("names", &[key]).await?;
            }
        }
        Ok(())
    }

    /// The lease with the fence in force, where the bug says so.
    async fn unfenced(&self, lease: &WorkerLease, bug: Bug) -> Result<WorkerLease> {
        let current = if self.has(bug) { self.inner.lease(lease.id).await? } else { None };
        Ok(WorkerLease { fence: current.map_or(lease.fence, |lease| lease.fence), ..lease.clone() })
    }
}

#[async_trait]
impl DerivedWriter for Buggy {
    async fn commit_chunk(&self, lease: &WorkerLease, mut commit: ChunkCommit) -> Result<Committed> {
        let lease = self.unfenced(lease, Bug::CommitIgnoresTheFence).await?;
        let forks = self.inner.forks().await?;
        match (self.bug, forks) {
            (Bug::CommitIgnoresTheParent, _) => {
                let current = self.inner.lease(lease.id).await?;
                if let Some(last) = current.and_then(|lease| lease.last_id) {
                    commit.parent_id = Some(last);
                }
            }
            (Bug::CommitTrustsStaleReads, Some(forks)) => {
                commit.read.reorg_id = commit.read.reorg_id.max(forks.applied.id);
            }
            (Bug::CommitIgnoresNewerReorgs, Some(forks)) if commit.read.reorg_id > forks.begun.id => {
                let id = forks.begun.id;
                commit.read = ReadMark { reorg_id: id, known_to: id, newer: Vec::new() };
            }
            (Bug::CommitIgnoresTheAgeOfState, Some(forks)) => {
                if let Some(at) = &mut commit.folded_at {
                    at.applied = at.applied.max(forks.applied.id);
                }
            }
            (Bug::CommitForgetsTheReach, _) if lease.service == "asker" => {
                let end = commit.chunk.end();
                let is_below = |row: &Row| row.0[2].as_height().is_none_or(|height| height < end);
                let names = commit.rows.iter_mut().filter(|part| part.table == "names");
                names.for_each(|part| part.rows.retain(is_below));
            }
            (Bug::CommitForgetsARow, _) => {
                commit.rows.iter_mut().for_each(|part| drop(part.rows.pop()));
            }
            (Bug::CommitReplacesNothing, _) => commit.replaces.clear(),
            (Bug::CommitForgetsEarlierUndo, _) => {
                let states = commit.states.iter_mut().flat_map(|part| &mut part.rows);
                states.for_each(|state| {
                    let earlier = state.undo.len().saturating_sub(1);
                    state.undo.drain(..earlier);
                });
            }
            (Bug::CommitSaysThatNothingWas, _) => {
                let states = commit.states.iter_mut().flat_map(|part| &mut part.rows);
                states.flat_map(|state| &mut state.undo).for_each(|(_, before)| *before = None);
            }
            (Bug::CommitForgetsWhatAnswersReplace, _) => self.forget_names(&commit, |_, _| true).await?,
            (Bug::CommitLetsALateAnswerReplace, _) => {
                self.forget_names(&commit, |stored, laid| stored.0[2] > laid.0[2]).await?;
            }
            (Bug::CommitTakesTheLastAnswerOfAKey, _) => {
                for part in commit.rows.iter_mut().filter(|part| part.table == "names") {
                    part.rows.sort_by_key(|row| row.0[2].clone());
                    let rows = part.rows.drain(..).map(|row| (row.0[0].clone(), row));
                    let last: std::collections::BTreeMap<_, _> = rows.collect();
                    part.rows.extend(last.into_values());
                }
            }
            (Bug::CommitDoesNotRenew, _) => commit.ttl_ms = 1,
            (Bug::CorrectionsTrustStaleState, _) => {
                let snapshot = self.inner.snapshot().await?;
                for by in &mut commit.corrections {
                    by.stands = snapshot.checkpoint(&by.service).cloned();
                }
            }
            (Bug::FoldersTrustStaleCorrections, _) => {
                let snapshot = self.inner.snapshot().await?;
                if let (Some(at), Some(own)) = (&mut commit.folded_at, snapshot.checkpoint(&lease.service)) {
                    at.corrections = own.corrections;
                }
            }
            (Bug::CorrectionsForgetUndo, _) => {
                let tables = commit.corrections.iter_mut().flat_map(|by| &mut by.tables);
                tables.flat_map(|(_, rows)| rows).for_each(|row| row.undo.clear());
            }
            (Bug::CorrectionsKeepWhatGoes, _) => {
                let tables = commit.corrections.iter_mut().flat_map(|by| &mut by.tables);
                tables.for_each(|(_, rows)| rows.retain(|row| row.row.is_some()));
            }
            (Bug::CorrectionsAreForgotten, _) => {
                commit.corrections.iter_mut().for_each(|by| by.tables.clear());
            }
            (Bug::CommitHidesItsHoles, _) => commit.quarantined.clear(),
            _ => {}
        }
        let answer = self.inner.commit_chunk(&lease, commit.clone()).await;
        match answer {
            Err(StoreError::LeaseMoved { .. }) if self.has(Bug::CommitAnswersARepetition) => {
                let lease = self.inner.lease(lease.id).await?.ok_or_else(gone)?;
                let snapshot = self.inner.snapshot().await?;
                let checkpoint = snapshot.checkpoint(&lease.service).cloned().ok_or_else(gone)?;
                Ok(Committed { lease, checkpoint })
            }
            Err(error @ StoreError::Corrupt { .. }) if self.has(Bug::ARefusedCommitMovesTheLease) => {
                let empty = ChunkCommit { rows: Vec::new(), states: Vec::new(), ..commit };
                self.inner.commit_chunk(&lease, empty).await?;
                Err(error)
            }
            Err(StoreError::Corrupt { .. }) if self.has(Bug::CommitIgnoresNewerState) => {
                for part in &commit.states {
                    self.inner.set_last_height(part.table, Height::ZERO)?;
                }
                self.inner.commit_chunk(&lease, commit).await
            }
            answer => answer,
        }
    }
}

fn gone() -> StoreError {
    StoreError::Invalid("it is gone".into())
}

#[async_trait]
impl Coordinator for Buggy {
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint> {
        self.inner.register(service, first).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let mut request = request.clone();
        match self.bug {
            Bug::ClaimIgnoresTheStop => request.stop_exclusive = None,
            Bug::ClaimIgnoresTheLimit => request.limit_exclusive = Height(u64::MAX),
            Bug::ClaimIgnoresTheOrder => request.in_order = false,
            Bug::ClaimIgnoresTheVersion => request.version = 1_000,
            Bug::ClaimForgetsTheOwner => request.owner.clear(),
            Bug::ClaimForgetsTheTtl => request.ttl_ms = 60_001,
            // What was given back waits until its time.
            Bug::ClaimIsNotReclaiming => request.version = 0,
            _ => {}
        }
        let snapshot = self.inner.snapshot().await;
        let is_paused = snapshot.is_ok_and(|snapshot| {
            snapshot.checkpoint(&request.service).is_some_and(|checkpoint| checkpoint.paused)
        });
        if self.has(Bug::ClaimIgnoresThePause) && is_paused {
            self.inner.set_paused(&request.service, false).await?;
            let lease = self.inner.claim(&request).await;
            self.inner.set_paused(&request.service, true).await?;
            return lease;
        }
        if self.has(Bug::WaitingIsCharged) {
            let any = ClaimRequest {
                limit_exclusive: Height(u64::MAX),
                stop_exclusive: Some(Height(0)),
                ..request.clone()
            };
            if let Some(lease) = self.inner.claim(&any).await? {
                return Ok(Some(lease));
            }
        }
        self.inner.claim(&request).await
    }

    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease> {
        let lease = self.unfenced(lease, Bug::RenewIgnoresTheFence).await?;
        if self.has(Bug::RenewDoesNothing) {
            return Ok(lease);
        }
        self.inner.renew(&lease, ttl_ms).await
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()> {
        let lease = self.unfenced(lease, Bug::EndIgnoresTheFence).await?;
        let end = match (self.bug, end) {
            (Bug::AReleaseCounts, LeaseEnd::Released) => {
                LeaseEnd::Bad { message: String::new(), retry_in_ms: 0 }
            }
            (Bug::ATransientEndCounts, LeaseEnd::Transient { message, retry_in_ms }) => {
                LeaseEnd::Bad { message, retry_in_ms }
            }
            (Bug::ABadEndDoesNotCount, LeaseEnd::Bad { message, retry_in_ms }) => {
                LeaseEnd::Transient { message, retry_in_ms }
            }
            (Bug::AnEndForgetsThePause, LeaseEnd::Bad { message, .. }) => {
                LeaseEnd::Bad { message, retry_in_ms: 0 }
            }
            (_, end) => end,
        };
        let ended = self.inner.end(&lease, end.clone()).await;
        if self.has(Bug::ABrokenEndIsAnEnd) && ended.as_ref().is_err_and(is_broken) {
            self.inner.end(&lease, end).await?;
        }
        ended
    }

    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.inner.lease(id).await
    }

    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        match self.bug {
            Bug::ReapIsUnbounded => self.inner.reap(usize::MAX).await,
            Bug::ReapDoesNothing => Ok(Vec::new()),
            _ => self.inner.reap(limit).await,
        }
    }

    async fn repair_checkpoints(&self) -> Result<Repairs> {
        if self.has(Bug::RepairDoesNothing) {
            return Ok(Repairs::default());
        }
        let mut repairs = self.inner.repair_checkpoints().await?;
        if self.has(Bug::RepairHidesAlarms) {
            repairs.alarms.clear();
        }
        if self.has(Bug::RebuildsAreNeverOver) {
            repairs.rebuilt.clear();
        }
        Ok(repairs)
    }

    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>> {
        match self.bug {
            Bug::GapsAreHidden => Ok(Vec::new()),
            Bug::GapsAreUnbounded => self.inner.lease_gaps(usize::MAX).await,
            _ => self.inner.lease_gaps(limit).await,
        }
    }

    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        if self.has(Bug::DeadLeasesAreHidden) {
            return Ok(Vec::new());
        }
        self.inner.dead_leases(limit).await
    }

    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        if self.has(Bug::RetryDoesNothing) {
            return self.inner.lease(id).await;
        }
        self.inner.retry_lease(id).await
    }

    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        if self.has(Bug::ReleaseDoesNothing) {
            return self.inner.lease(id).await;
        }
        self.inner.release_lease(id).await
    }

    async fn release_all(&self) -> Result<u64> {
        let held = LeaseFilter { limit: 1_000, ..LeaseFilter::default() };
        let held = match self.has(Bug::ReleaseAllIsNoBadEnd) {
            true => self.inner.snapshot().await?.leases(&held).await?,
            false => Vec::new(),
        };
        let released = self.inner.release_all().await?;
        for lease in held.iter().filter(|lease| lease.status == LeaseStatus::Active) {
            self.inner.retry_lease(lease.id).await?;
        }
        Ok(if self.has(Bug::ReleaseAllCountsNothing) { 0 } else { released })
    }

    async fn set_paused(&self, service: &str, paused: bool) -> Result<()> {
        if self.has(Bug::PausingDoesNothing) {
            return Ok(());
        }
        self.inner.set_paused(service, paused).await
    }

    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64> {
        let range_heights =
            if self.has(Bug::ReindexIsNotCut) { range_heights.saturating_mul(1_000) } else { range_heights };
        self.inner.request_reindex(service, version, range, range_heights).await
    }
}

#[async_trait]
impl ReorgApplier for Buggy {
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState> {
        match self.inner.forks().await? {
            Some(forks) if self.has(Bug::AdoptTakesAnyStore) => Ok(forks),
            _ => self.inner.adopt(raw_uuid, newest).await,
        }
    }

    async fn forks(&self) -> Result<Option<ForkState>> {
        self.inner.forks().await
    }

    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        let Some(forks) = self.inner.forks().await? else { return self.inner.begin_apply(entry).await };
        if self.has(Bug::BeginTakesAnyDigest) && forks.is_settled() {
            let (id, digest, uuid) = (entry.id, &forks.applied.digest, forks.raw_uuid);
            let entry = ReorgEntry::chain(id, digest, uuid, entry.common, entry.orphans.clone(), 0);
            return self.inner.begin_apply(&entry).await;
        }
        match self.inner.begin_apply(entry).await {
            Err(StoreError::Applied { .. }) if self.has(Bug::ApplyingAgainIsFine) => Ok(()),
            answer => answer,
        }
    }

    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress> {
        let max_rows = if self.has(Bug::StepsAreUnbounded) { usize::MAX } else { max_rows };
        let progress = self.inner.apply_step(entry_id, max_rows).await?;
        Ok(if self.has(Bug::StepsAreDoneTooEarly) { ApplyProgress::Done } else { progress })
    }

    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState> {
        if self.has(Bug::FinishUndoesTheRest) {
            while self.inner.apply_step(entry_id, 100).await? == ApplyProgress::More {}
        }
        self.inner.finish_apply(entry_id).await
    }
}

#[async_trait]
impl DerivedMaintenance for Buggy {
    async fn maintain(&self, tip: Height) -> Result<()> {
        if self.has(Bug::MaintainDeletes) {
            let rows = match self.inner.snapshot().await {
                Ok(snapshot) => snapshot.scan(&Scan::new("notes", 1)).await?.rows,
                Err(_) => Vec::new(),
            };
            let keys: Vec<Key> = rows.iter().map(|row| Key(row.0[..2].to_vec())).collect();
            self.inner.delete_rows("notes", &keys).await?;
        }
        self.inner.maintain(tip).await
    }

    async fn build_indexes(&self, final_to: Height) -> Result<bool> {
        self.inner.build_indexes(final_to).await
    }

    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        if self.has(Bug::RebuildsBeginInPieces) {
            let ranges = RebuildRequest { again: request.again.clone(), ..RebuildRequest::default() };
            self.inner.begin_rebuild(&ranges).await?;
            return self.inner.begin_rebuild(&RebuildRequest { again: Vec::new(), ..request.clone() }).await;
        }
        if self.has(Bug::RebuildsForgetThePause) {
            for service in &request.anew {
                self.inner.set_paused(service, false).await?;
            }
        }
        if self.has(Bug::RebuildsLeaveWhoAsksAtIt) {
            let again = request.again.iter().filter(|again| !again.is_behind).cloned().collect();
            return self.inner.begin_rebuild(&RebuildRequest { again, ..request.clone() }).await;
        }
        self.inner.begin_rebuild(request).await
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        if self.has(Bug::ResetTakesWhatIsNew) {
            let anew = vec![service.to_owned()];
            // Of a service that nobody knows there is nothing.
            let begun = self.inner.begin_rebuild(&RebuildRequest { anew, ..RebuildRequest::default() }).await;
            if begun.is_err() {
                return Ok(false);
            }
        }
        let max_rows = if self.has(Bug::ResetIsUnbounded) { usize::MAX } else { max_rows };
        let more = self.inner.reset_step(service, max_rows).await?;
        Ok(more && !self.has(Bug::ResetIsDoneTooEarly))
    }

    async fn take_back_step(
        &self,
        service: &str,
        from: Height,
        max_rows: usize,
    ) -> Result<Option<TakenBack>> {
        let max_rows = if self.has(Bug::TakeBackIsUnbounded) { usize::MAX } else { max_rows };
        if self.has(Bug::TakeBackDoesNothing) {
            return Ok(None);
        }
        let taken = self.inner.take_back_step(service, from, max_rows).await;
        match taken {
            Err(StoreError::Invalid(_)) if self.has(Bug::TakeBackTakesWhatIsDerived) => Ok(None),
            taken => taken,
        }
    }

    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        let max_rows = if self.has(Bug::PruneIsUnbounded) { usize::MAX } else { max_rows };
        self.inner.prune_undo(finalized, max_rows).await
    }

    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64> {
        let deleted = self.inner.delete_rows(table, keys).await?;
        Ok(if self.has(Bug::DeleteCountsEveryKey) { keys.len() as u64 } else { deleted })
    }
}

#[async_trait]
impl DerivedDump for Buggy {
    async fn dump(&self) -> Result<Dump> {
        let mut dump = self.inner.dump().await?;
        if self.has(Bug::DumpMissesALine) {
            dump.lines.pop();
        }
        Ok(dump)
    }
}

#[async_trait]
impl DerivedReader for Buggy {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        let inner = self.inner.snapshot().await?;
        Ok(Arc::new(BuggySnapshot { inner, store: self.inner.clone(), bug: self.bug }))
    }
}

struct BuggySnapshot {
    inner: Arc<dyn DerivedSnapshot>,
    store: MemoryDerived,
    bug: Bug,
}

impl BuggySnapshot {
    async fn now(&self) -> Result<Arc<dyn DerivedSnapshot>> {
        if self.bug == Bug::SnapshotsAreNotIsolated {
            return self.store.snapshot().await;
        }
        Ok(self.inner.clone())
    }
}

#[async_trait]
impl DerivedSnapshot for BuggySnapshot {
    fn forks(&self) -> &ForkState {
        self.inner.forks()
    }

    fn checkpoints(&self) -> &[DerivedCheckpoint] {
        self.inner.checkpoints()
    }

    fn rebuilds(&self) -> &[Rebuild] {
        if self.bug == Bug::RebuildsAreNotTold { &[] } else { self.inner.rebuilds() }
    }

    async fn rows(&self, table: &'static str, keys: &[Key]) -> Result<Vec<Option<Row>>> {
        let mut rows = self.now().await?.rows(table, keys).await?;
        if self.bug == Bug::PointsAreSorted {
            rows.sort();
        }
        Ok(rows)
    }

    async fn undo_rows(
        &self,
        table: &'static str,
        keys: &[Key],
        from: Height,
        max_rows: usize,
    ) -> Result<Option<UndoRows>> {
        self.now().await?.undo_rows(table, keys, from, max_rows).await
    }

    async fn scan(&self, scan: &Scan) -> Result<ScanPage> {
        use std::ops::Bound::{Excluded, Included};
        let mut changed = scan.clone();
        match self.bug {
            Bug::ScansIgnoreFilters => changed.filters.clear(),
            Bug::ScansIgnoreLimits => changed.limit = 10_000,
            Bug::ScansExamineEverything => changed.examine = 10_000,
            Bug::ScansIgnoreTheDirection => changed.descending = false,
            Bug::ScansTakeExcludedBounds => {
                if let Excluded(bound) = &scan.lower {
                    changed.lower = Included(bound.clone());
                }
            }
            _ => {}
        }
        let snapshot = self.now().await?;
        let page = match snapshot.scan(&changed).await {
            Err(StoreError::NotYet { .. }) if self.bug == Bug::StateListsDontWait => {
                snapshot.scan(&Scan::new(scan.table, scan.limit)).await
            }
            page => page,
        };
        page.map(|mut page| {
            match self.bug {
                Bug::ScansForgetWhereToGoOn => page.more = None,
                // One row further than it gave.
                Bug::ScansStopTooFar if page.more.is_some() => drop(page.rows.pop()),
                _ => {}
            }
            page
        })
    }

    async fn events(
        &self,
        table: &'static str,
        from: Height,
        to_exclusive: Height,
        max_bytes: usize,
    ) -> Result<(Vec<Row>, Height)> {
        let max_bytes = if self.bug == Bug::EventsIgnoreTheirLimit { usize::MAX } else { max_bytes };
        let (rows, next) = self.now().await?.events(table, from, to_exclusive, max_bytes).await?;
        Ok((rows, if self.bug == Bug::EventsGoOnTooFar { to_exclusive } else { next }))
    }

    async fn made_again_from(&self, service: &str, from: Height) -> Result<Option<Height>> {
        match self.bug {
            Bug::WhatIsMadeAgainIsForgotten => Ok(None),
            Bug::WhatWasMadeAgainIsNotYet => {
                let again = self.inner.made_again_from(service, from).await?;
                Ok(again.map(|_| from))
            }
            _ => self.inner.made_again_from(service, from).await,
        }
    }

    async fn quarantined(
        &self,
        services: &[&str],
        heights: HeightRange,
        limit: usize,
    ) -> Result<Quarantined> {
        let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
        let heights = if self.bug == Bug::QuarantinedOfAllHeights { all } else { heights };
        let mut found = self.now().await?.quarantined(services, heights, limit).await?;
        if self.bug == Bug::QuarantinedAreCountedAsNamed {
            found.total = found.lowest.len() as u64;
        }
        Ok(found)
    }

    async fn newest_asked(&self, table: &'static str) -> Result<Option<Height>> {
        let newest = self.now().await?.newest_asked(table).await?;
        // The reorg that is being applied hides those above its common block.
        Ok(newest.filter(|_| self.bug != Bug::NewestAskedIsHidden || self.inner.forks().is_settled()))
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<WorkerLease>> {
        let mut filter = filter.clone();
        if self.bug == Bug::LeaseListsForgetWhereToGoOn {
            filter.after_id = 0;
        }
        self.now().await?.leases(&filter).await
    }

    async fn sizes(&self) -> Result<Vec<(String, u64, u64)>> {
        self.now().await?.sizes().await
    }
}

/// Whether a case broke a verb off.
fn is_broken(error: &StoreError) -> bool {
    error.to_string().contains(BROKEN)
}

#[derive(Clone)]
struct BuggyLog {
    inner: MemoryErrorLog,
    bug: Bug,
}

#[async_trait]
impl ErrorLog for BuggyLog {
    async fn record(&self, errors: &[NewError]) -> Result<u64> {
        let mut errors = errors.to_vec();
        if self.bug == Bug::ErrorsAreRecordedTwice {
            for (n, error) in errors.iter_mut().enumerate() {
                error.transaction_id.push_str(&" ".repeat(n));
            }
        }
        let all = ErrorFilter { resolved: true, limit: usize::MAX, ..ErrorFilter::default() };
        let before = self.inner.list(&all).await?;
        let new = self.inner.record(&errors).await?;
        if self.bug == Bug::ClosedErrorsStayClosed {
            let closed = before.iter().filter(|logged| logged.resolved).map(|logged| logged.id);
            self.inner.resolve(&closed.collect::<Vec<_>>()).await?;
        }
        Ok(new)
    }

    async fn record_within(&self, errors: &[NewError], max_open: u64) -> Result<Recorded> {
        let max_open = if self.bug == Bug::TheErrorLogHasNoEnd { u64::MAX } else { max_open };
        let is_full = self.inner.count_unresolved().await? >= max_open;
        if self.bug == Bug::FatalErrorsAreDropped && is_full {
            return Ok(Recorded { new: 0, dropped: errors.len() as u64 });
        }
        self.inner.record_within(errors, max_open).await
    }

    async fn prune_closed(&self, age_ms: u64, limit: usize) -> Result<u64> {
        let age_ms = if self.bug == Bug::PruningTakesYoungErrors { 0 } else { age_ms };
        self.inner.prune_closed(age_ms, limit).await
    }

    async fn list(&self, filter: &ErrorFilter) -> Result<Vec<LoggedError>> {
        let mut filter = filter.clone();
        filter.resolved |= self.bug == Bug::ClosedErrorsAreListed;
        let mut listed = self.inner.list(&filter).await?;
        if self.bug == Bug::MessagesAreNotCut {
            listed.iter_mut().for_each(|logged| logged.error.message.push_str(&"x".repeat(5_000)));
        }
        Ok(listed)
    }

    async fn count_unresolved(&self) -> Result<u64> {
        self.inner.count_unresolved().await
    }

    async fn resolve(&self, ids: &[u64]) -> Result<u64> {
        if self.bug == Bug::ResolvingDoesNothing {
            return Ok(0);
        }
        let closed = self.inner.resolve(ids).await;
        if self.bug == Bug::ABrokenResolveCloses && closed.as_ref().is_err_and(is_broken) {
            self.inner.resolve(ids).await?;
        }
        closed
    }

    async fn forget_blocks(&self, blocks: &[BlockId]) -> Result<u64> {
        if self.bug == Bug::ForgettingDoesNothing {
            return Ok(0);
        }
        self.inner.forget_blocks(blocks).await
    }
}
