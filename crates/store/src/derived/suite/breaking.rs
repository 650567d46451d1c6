//! Broken off between any two statements: a verb is done whole or not at all, and whoever comes next goes on from there.
//!
//! A process does everything that the derived store and the error log can do. Each of its verbs is broken off at its first point, then at its
//! second, and so on until it gets through; after each break the store is what it was before. What is there in the end is what a
//! process makes that nothing ever happened to.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};

use super::raw::{Raw, id};
use super::subject::{Frozen, Subject, TTL_MS};
use super::tables::{ASKER, FOLDER, MAPPER, NOTES, note_row};
use super::{Case, CaseResult, DerivedFactory, Failure, TestDerived};
use crate::derived::errors::{ErrorFilter, ErrorLog, LoggedError, NewError, Severity};
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseStatus, WorkerLease};
use crate::derived::memory::MemoryErrorLog;
use crate::derived::rebuild::{RangeAgain, Rebuild, RebuildRequest};
use crate::derived::row::Key;
use crate::derived::value::Value;
use crate::derived::writer::{ApplyProgress, ChunkCommit};
use crate::memory::CommitHook;
use crate::suite::check::{holds, same};
use crate::{Result, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("breaking": i01_a_crash_between_any_two_statements_changes_nothing)
}

/// What the error of a transaction says that was broken off.
pub const BROKEN: &str = "broken off";

/// A store and its error log, opened so that what they write can be broken off.
pub struct Breaking {
    /// The store.
    pub store: Arc<dyn TestDerived>,
    /// The log.
    pub log: Arc<dyn ErrorLog>,
    /// Breaks off both.
    pub breaker: Arc<dyn Breaker>,
}

/// Breaks off transactions that write.
#[async_trait]
pub trait Breaker: Send + Sync {
    /// The next transaction that comes to its point with this number, from 0, ends there with an error that says [`BROKEN`], as if the process had died; `None`:
    /// none does. Points lie before each statement that changes something, and before the commit. What was broken off before holds no lock any more when this answers.
    async fn break_at(&self, point: Option<u64>) -> Result<()>;
}

/// Counts the points of which a backend's hooks tell, and breaks off at one of them.
#[derive(Debug, Default)]
pub struct Countdown {
    left: Mutex<Option<u64>>,
}

impl Countdown {
    /// Breaks off at the point with this number from now on, once.
    pub fn set(&self, point: Option<u64>) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = point;
    }

    /// A transaction is at its next point.
    pub fn pass(&self) -> Result<()> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        match *left {
            Some(0) => {
                *left = None;
                Err(StoreError::Database(BROKEN.into()))
            }
            more => {
                *left = more.map(|points| points - 1);
                Ok(())
            }
        }
    }
}

/// Where commits are all that a hook hears of.
impl CommitHook for Countdown {
    fn before(&self, _verb: &'static str) -> Result<()> {
        self.pass()
    }
}

#[async_trait]
impl Breaker for Countdown {
    async fn break_at(&self, point: Option<u64>) -> Result<()> {
        self.set(point);
        Ok(())
    }
}

/// More points than any verb here has.
const MAX_POINTS: u64 = 5_000;

/// Every verb that writes rows; each of them has to be broken off at least once.
const VERBS: [&str; 24] = [
    "adopt",
    "apply_step",
    "begin_apply",
    "begin_rebuild",
    "claim",
    "commit_chunk",
    "delete_rows",
    "end",
    "finish_apply",
    "forget_blocks",
    "prune_undo",
    "reap",
    "record",
    "register",
    "release_all",
    "release_lease",
    "renew",
    "repair_checkpoints",
    "request_reindex",
    "reset_step",
    "resolve",
    "retry_lease",
    "set_paused",
    "take_back_step",
];

/// What a verb that was broken off has to leave as it was.
struct Look {
    frozen: Frozen,
    rebuilds: Vec<Rebuild>,
    errors: Vec<LoggedError>,
}

#[derive(Clone)]
struct Stores {
    store: Arc<dyn TestDerived>,
    log: Arc<dyn ErrorLog>,
}

/// A process whose verbs are broken off.
struct Process {
    subject: Subject,
    log: Arc<dyn ErrorLog>,
    breaker: Arc<dyn Breaker>,
    /// Heights that the mapper can't process for now.
    holes: Vec<Height>,
    /// Verbs that were broken off.
    broken: BTreeSet<&'static str>,
}

impl Process {
    async fn new(factory: &Arc<dyn DerivedFactory>, raw: Raw) -> CaseResult<Process> {
        let mut subject = Subject::bare(factory, raw).await?;
        let Breaking { store, log, breaker } = open(&mut subject).await?;
        subject.store = store;
        Ok(Process { subject, log, breaker, holes: Vec::new(), broken: BTreeSet::new() })
    }

    /// Drops both stores without closing them and opens them again.
    async fn reopen(&mut self) -> CaseResult {
        self.log = Arc::new(MemoryErrorLog::new(self.subject.clock.clone()));
        let opened = open(&mut self.subject).await?;
        self.subject.store = opened.store;
        self.log = opened.log;
        self.breaker = opened.breaker;
        Ok(())
    }

    /// `None` before the store follows anything, when there is nothing to look at.
    async fn look(&self) -> CaseResult<Option<Look>> {
        if self.subject.store.forks().await?.is_none() {
            return Ok(None);
        }
        Ok(Some(Look {
            frozen: self.subject.freeze().await?,
            rebuilds: self.subject.snapshot().await?.rebuilds().to_vec(),
            errors: self.log.list(&every()).await?,
        }))
    }

    async fn is_still(&self, before: &Option<Look>) -> CaseResult {
        let Some(before) = before else {
            return same("what it follows", self.subject.store.forks().await?, None);
        };
        self.subject.is_still(&before.frozen).await?;
        same("the rebuilds", self.subject.snapshot().await?.rebuilds(), &before.rebuilds[..])?;
        same("the error log", &self.log.list(&every()).await?, &before.errors)
    }

    /// Runs a verb, broken off at each of its points and then whole.
    async fn verb<T, F>(&mut self, name: &'static str, run: impl Fn(Stores) -> F) -> CaseResult<T>
    where
        F: Future<Output = Result<T>>,
    {
        let before = self.look().await?;
        for point in 0..MAX_POINTS {
            self.breaker.break_at(Some(point)).await?;
            let stores = Stores { store: self.subject.store.clone(), log: self.log.clone() };
            match run(stores).await {
                Ok(answer) => {
                    self.breaker.break_at(None).await?;
                    return Ok(answer);
                }
                Err(error) if error.to_string().contains(BROKEN) => {}
                Err(error) => {
                    return Err(Failure::new(format!("{name}, not broken off at {point}: {error}")));
                }
            }
            self.broken.insert(name);
            // Another process comes, or it was only the connection that died and the same one goes on.
            if point == 0 {
                self.reopen().await?;
            }
            let still = self.is_still(&before).await;
            still.map_err(|failure| Failure::new(format!("{name} broken off at {point}: {failure}")))?;
        }
        Err(Failure::new(format!("{name} has no end")))
    }

    async fn claim(&mut self, service: &str) -> CaseResult<Option<WorkerLease>> {
        let limit = self.subject.limit(service).await?;
        let request = &ClaimRequest {
            range_heights: 6,
            limit_exclusive: limit,
            stop_exclusive: Some(limit),
            ..self.subject.request(service)
        };
        self.verb("claim", |on| async move { on.store.claim(request).await }).await
    }

    /// Claims what there has to be.
    async fn hold(&mut self, service: &str) -> CaseResult<WorkerLease> {
        let claimed = self.claim(service).await?;
        claimed.ok_or_else(|| Failure::new(format!("nothing to claim for {service}")))
    }

    async fn chunk(&self, lease: &WorkerLease, to: Height) -> CaseResult<ChunkCommit> {
        let mut commit = self.subject.chunk(lease, to.get()).await?;
        if lease.service != MAPPER {
            // What is asked again takes its place by the height.
            commit.replaces.clear();
            return Ok(commit);
        }
        commit.quarantined = self.holes.iter().copied().filter(|hole| commit.chunk.contains(*hole)).collect();
        let is_hole = |height: Height| self.holes.contains(&height);
        for part in &mut commit.rows {
            part.rows.retain(|row| row.0[0].as_height().is_none_or(|height| !is_hole(height)));
        }
        Ok(commit)
    }

    async fn commit(&mut self, lease: &WorkerLease, commit: &ChunkCommit) -> CaseResult<WorkerLease> {
        let run = |on: Stores| async move { on.store.commit_chunk(lease, commit.clone()).await };
        Ok(self.verb("commit_chunk", run).await?.lease)
    }

    /// Works off what there is for a service, leases of both kinds.
    async fn index(&mut self, service: &str) -> CaseResult {
        while let Some(mut lease) = self.claim(service).await? {
            while lease.status == LeaseStatus::Active {
                let commit = self.chunk(&lease, (lease.done_to + 4).min(lease.range.end())).await?;
                lease = self.commit(&lease, &commit).await?;
            }
        }
        Ok(())
    }

    async fn index_all(&mut self) -> CaseResult {
        for service in [MAPPER, FOLDER, ASKER] {
            self.index(service).await?;
        }
        self.verb("repair_checkpoints", |on| async move { on.store.repair_checkpoints().await }).await?;
        Ok(())
    }

    /// Applies every entry that was not applied yet.
    async fn follow(&mut self) -> CaseResult {
        let applied = self.subject.forks().await?.applied.id;
        let entries = self.subject.raw.reorgs.clone();
        for entry in entries.iter().filter(|entry| entry.id > applied) {
            self.verb("begin_apply", |on| async move { on.store.begin_apply(entry).await }).await?;
            let step = |on: Stores| async move { on.store.apply_step(entry.id, 12).await };
            while self.verb("apply_step", step).await? == ApplyProgress::More {}
            self.verb("finish_apply", |on| async move { on.store.finish_apply(entry.id).await }).await?;
        }
        Ok(())
    }

    async fn begin(&mut self) -> CaseResult {
        let (uuid, newest) = (self.subject.raw.uuid, self.subject.raw.newest());
        self.verb("adopt", |on| async move { on.store.adopt(uuid, newest).await }).await?;
        for service in [MAPPER, FOLDER, ASKER] {
            self.verb("register", |on| async move { on.store.register(service, Height(0)).await }).await?;
        }
        Ok(())
    }

    /// A range again, and then another one with everything behind it.
    async fn make_again(&mut self) -> CaseResult {
        let range = HeightRange::new(Height(0), Height(3));
        let asked = self
            .verb("request_reindex", |on| async move { on.store.request_reindex(MAPPER, 1, range, 2).await })
            .await?;
        same("how many leases", asked, 2)?;
        self.index(MAPPER).await?;
        let again = |service: &str, is_behind| RangeAgain {
            service: service.into(),
            version: 1,
            range: HeightRange::new(Height(4), Height(10)),
            range_heights: 10,
            is_behind,
            corrects_state: true,
        };
        let again = vec![again(MAPPER, false), again(ASKER, true)];
        let request = &RebuildRequest { again, anew: vec![FOLDER.into()] };
        self.verb("begin_rebuild", |on| async move { on.store.begin_rebuild(request).await }).await?;
        while self.verb("reset_step", |on| async move { on.store.reset_step(FOLDER, 12).await }).await? {}
        self.index_all().await?;
        same("rebuilds that go on", self.subject.snapshot().await?.rebuilds().to_vec(), Vec::new())
    }

    /// Leases that end in every other way.
    async fn lose_leases(&mut self) -> CaseResult {
        for paused in [true, false] {
            self.verb("set_paused", |on| async move { on.store.set_paused(MAPPER, paused).await }).await?;
            if paused {
                same("claimed while it is paused", self.claim(MAPPER).await?, None)?;
            }
        }
        let lease = &self.hold(MAPPER).await?;
        let lease = &self.verb("renew", |on| async move { on.store.renew(lease, 2 * TTL_MS).await }).await?;
        let taken =
            self.verb("release_lease", |on| async move { on.store.release_lease(lease.id).await }).await?;
        holds(taken.is_some(), "the lease was not taken")?;
        let lease = &self.hold(MAPPER).await?;
        let bad = || LeaseEnd::Bad { message: "odd".into(), retry_in_ms: 60_000 };
        self.verb("end", |on| async move { on.store.end(lease, bad()).await }).await?;
        let freed =
            self.verb("retry_lease", |on| async move { on.store.retry_lease(lease.id).await }).await?;
        holds(freed.is_some(), "the lease was not freed")?;
        self.hold(MAPPER).await?;
        self.subject.clock.advance_ms(TTL_MS);
        let reaped = self.verb("reap", |on| async move { on.store.reap(10).await }).await?;
        same("how many were reaped", reaped.len(), 1)?;
        self.hold(MAPPER).await?;
        let released = self.verb("release_all", |on| async move { on.store.release_all().await }).await?;
        same("how many were given back", released, 1)
    }

    /// A range above one that is not done, taken back in steps: of the rows that it made nothing is left but what is made anew.
    async fn take_back(&mut self) -> CaseResult {
        let low = self.hold(MAPPER).await?;
        let high = self.hold(MAPPER).await?;
        let commit = self.chunk(&high, high.range.end()).await?;
        self.commit(&high, &commit).await?;
        let from = high.range.start();
        let step = |on: Stores| async move { on.store.take_back_step(MAPPER, from, 3).await };
        let mut steps = 0;
        while self.verb("take_back_step", step).await?.is_some() {
            steps += 1;
        }
        holds(steps > 1, "it was taken back in one step")?;
        let released = self.verb("release_all", |on| async move { on.store.release_all().await }).await?;
        same("how many were given back", released, 1)?;
        same("the lower one is there", self.subject.lease(low.id).await?.range, low.range)
    }

    /// A row that ought not to be.
    async fn delete_a_stray(&mut self) -> CaseResult {
        let lease = self.hold(MAPPER).await?;
        let mut commit = self.chunk(&lease, lease.range.end()).await?;
        let notes = commit.rows.iter_mut().find(|part| part.table == NOTES.name);
        let notes = notes.ok_or_else(|| Failure::new("the mapper writes no notes"))?;
        notes.rows.push(note_row(lease.done_to.get(), "stray", 1));
        self.commit(&lease, &commit).await?;
        let stray = &[Key(vec![Value::height(lease.done_to), Value::text("stray")])];
        let deleted = self
            .verb("delete_rows", |on| async move { on.store.delete_rows(NOTES.name, stray).await })
            .await?;
        same("how many were deleted", deleted, 1)
    }

    /// Everything that is done with errors, here and on a log that nothing happens to.
    async fn log_errors(&mut self) -> CaseResult {
        let calm = MemoryErrorLog::new(self.subject.clock.clone());
        let [one, two, three] = [1, 2, 3].map(error);
        for errors in [vec![one.clone(), two.clone()], vec![one.clone()], vec![two.clone(), three.clone()]] {
            let errors = &errors;
            let recorded = self.verb("record", |on| async move { on.log.record(errors).await }).await?;
            same("how many were recorded", recorded, calm.record(errors).await?)?;
            // Each is closed, so that the next ones open it again.
            let listed = self.log.list(&every()).await?;
            let ids: Vec<u64> = listed.iter().map(|logged| logged.id).collect();
            let ids = &ids;
            let closed = self.verb("resolve", |on| async move { on.log.resolve(ids).await }).await?;
            let calm_ids: Vec<u64> = calm.list(&every()).await?.iter().map(|logged| logged.id).collect();
            same("how many were closed", closed, calm.resolve(&calm_ids).await?)?;
        }
        let blocks = &[two.block_id];
        let gone = self.verb("forget_blocks", |on| async move { on.log.forget_blocks(blocks).await }).await?;
        same("how many were forgotten", gone, calm.forget_blocks(blocks).await?)?;
        // Numbers may be left out.
        let plain = |errors: Vec<LoggedError>| -> Vec<LoggedError> {
            errors.into_iter().map(|logged| LoggedError { id: 0, ..logged }).collect()
        };
        same("the log", plain(self.log.list(&every()).await?), plain(calm.list(&every()).await?))
    }
}

/// Opens both stores in the place of those that are there.
async fn open(subject: &mut Subject) -> CaseResult<Breaking> {
    // Something has to stand in its place while it is gone.
    subject.store = Subject::reference(Raw::new()).await?.store;
    Ok(subject.place.open_breaking().await?)
}

fn every() -> ErrorFilter {
    ErrorFilter { resolved: true, limit: 1_000, ..ErrorFilter::default() }
}

fn error(height: u64) -> NewError {
    NewError {
        service: MAPPER.into(),
        height: Height(height),
        block_id: id(height, 1),
        transaction_id: "0xab".into(),
        severity: Severity::Warn,
        message: format!("error {height}"),
        raw_data: vec![0, 1, 255],
        raw_ref: None,
    }
}

async fn i01_a_crash_between_any_two_statements_changes_nothing(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    let mut process = Process::new(&factory, Raw::with(9, 1)).await?;
    process.begin().await?;
    process.holes = vec![Height(1)];
    process.index_all().await?;
    process.log_errors().await?;
    // A reorg takes rows, state and answers.
    process.subject.raw.fork(6);
    process.subject.raw.grow(11, 2);
    process.follow().await?;
    process.index_all().await?;
    process.holes.clear();
    process.make_again().await?;
    process.subject.raw.grow(14, 2);
    process.lose_leases().await?;
    process.delete_a_stray().await?;
    process.index_all().await?;
    process.subject.raw.grow(24, 2);
    process.take_back().await?;
    process.index_all().await?;
    // Of what is final nothing is kept to be undone; what is above it is undone as before.
    let finalized = Height(8);
    process.subject.raw.finalized = finalized;
    let prune = |on: Stores| async move { on.store.prune_undo(finalized, 6).await };
    while process.verb("prune_undo", prune).await? > 0 {}
    process.subject.raw.fork(12);
    process.subject.raw.grow(14, 3);
    process.subject.raw.fork(10);
    process.subject.raw.grow(15, 4);
    process.follow().await?;
    process.index_all().await?;
    process.subject.dumps_as_its_chain().await?;
    same("the verbs that were broken off", process.broken.into_iter().collect(), VERBS.to_vec())?;
    let is_done = |lease: &WorkerLease| lease.status == LeaseStatus::Completed;
    holds(process.subject.leases().await?.iter().all(is_done), "a lease is left")
}
