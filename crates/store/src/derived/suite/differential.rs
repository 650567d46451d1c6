//! Random sequences of verbs, given to the store under test and to the reference alike: answers, leases, checkpoints and dumps have to
//! be the same after every step. Each seed is one sequence. Fences and numbers of leases are each store's own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::mem::discriminant;
use std::ops::Bound;
use std::sync::Arc;

use cairn_core::{Fence, Height, HeightRange};

use super::raw::Raw;
use super::subject::{Subject, all, same_dump};
use super::tables::{ASKER, FOLDER, HOLDINGS, MAPPER, MOVES, NAMES, NOTES, TOTALS};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::derived::FoldedAt;
use crate::derived::fork::DerivedCheckpoint;
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseKind, LeaseStatus, WorkerLease};
use crate::derived::reader::Scan;
use crate::derived::writer::{ApplyProgress, ChunkCommit, Repairs};
use crate::suite::beside::beside;
use crate::suite::blocks::Numbers;
use crate::suite::check::{holds, same};
use crate::{Result, StoreError};

/// How many verbs a sequence has.
const STEPS: usize = 120;

/// How often each verb was answered and refused.
type Tally = BTreeMap<String, (u64, u64)>;

pub(super) fn cases() -> Vec<Case> {
    case_list!("differential": random_sequences_equal_the_reference)
}

async fn random_sequences_equal_the_reference(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let of_seeds =
        beside(factory.at_once(), 0..factory.differential_seeds(), |seed| sequence(factory.clone(), seed))
            .await?;
    let mut tally = Tally::new();
    for (verb, (answers, refusals)) in of_seeds.into_iter().flatten() {
        let sum = tally.entry(verb).or_default();
        *sum = (sum.0 + answers, sum.1 + refusals);
    }
    // Sequences in which everything is refused would agree as well.
    let verbs = ["claim", "commit", "end", "renew", "apply", "repair", "reindex"];
    let of_use = verbs.iter().all(|verb| tally.get(*verb).is_some_and(|(answers, _)| *answers >= 5));
    holds(of_use || factory.differential_seeds() < 10, format!("too few verbs were answered: {tally:?}"))
}

/// One sequence; how often each verb was answered and refused.
async fn sequence(factory: Arc<dyn DerivedFactory>, seed: u64) -> CaseResult<Tally> {
    let mut pair = Pair::new(&factory, seed).await?;
    for step in 0..STEPS {
        let done = pair.step().await;
        let checked = match done {
            Ok(()) => pair.agree(step % 20 == 19).await,
            Err(failure) => Err(failure),
        };
        checked.map_err(|failure| {
            Failure::new(format!("seed {seed}, step {step}, {}: {failure}", pair.doing))
        })?;
    }
    let ended = pair.end().await;
    ended.map_err(|failure| Failure::new(format!("seed {seed}, at the end: {failure}")))?;
    Ok(pair.tally)
}

struct Pair {
    reference: Subject,
    tested: Subject,
    /// Leases as both stores gave them.
    held: Vec<(WorkerLease, WorkerLease)>,
    /// The raw chain as it was before the newest forks, for workers that read early.
    old: Vec<Raw>,
    salt: u8,
    numbers: Numbers,
    /// The last verb, for messages.
    doing: String,
    /// How often each verb was answered and refused.
    tally: Tally,
}

impl Pair {
    async fn new(factory: &Arc<dyn DerivedFactory>, seed: u64) -> CaseResult<Pair> {
        let mut numbers = Numbers::new(seed);
        let mut raw = Raw::with(12 + numbers.below(12), 1);
        raw.finalized = Height(numbers.below(3));
        let tested = Subject::new(factory, raw.clone()).await?;
        let mut reference = Subject::reference(raw).await?;
        // Both judge by one clock.
        let place = super::MemoryFactory.place(super::catalog()?, tested.clock.clone()).await?;
        reference.store = place.open().await?;
        reference.place = place;
        reference.clock = tested.clock.clone();
        reference.store.adopt(reference.raw.uuid, reference.raw.newest()).await?;
        for service in [MAPPER, FOLDER, ASKER] {
            reference.store.register(service, Height(0)).await?;
        }
        Ok(Pair {
            reference,
            tested,
            held: Vec::new(),
            old: Vec::new(),
            salt: 1,
            numbers,
            doing: String::new(),
            tally: BTreeMap::new(),
        })
    }

    fn count(&mut self, verb: &str, answered: bool) -> CaseResult {
        let sum = self.tally.entry(verb.to_owned()).or_default();
        *if answered { &mut sum.0 } else { &mut sum.1 } += 1;
        Ok(())
    }

    fn service(&mut self) -> &'static str {
        [MAPPER, MAPPER, FOLDER, ASKER][self.numbers.below(4) as usize]
    }

    async fn step(&mut self) -> CaseResult {
        match self.numbers.below(41) {
            0..=8 => self.claim().await,
            9..=22 => self.commit().await,
            23 | 24 => self.end_lease().await,
            25 => self.renew().await,
            26 => self.wait(),
            27 | 28 => self.grow(),
            29 => self.fork(),
            30 | 31 => self.apply().await,
            32..=34 => self.repair().await,
            35 => self.reap().await,
            36 => self.operate().await,
            37 => self.reindex().await,
            38 => self.pause().await,
            39 => self.prune().await,
            _ => self.restart().await,
        }
    }

    async fn claim(&mut self) -> CaseResult {
        let service = self.service();
        let limit = self.reference.limit(service).await?;
        let request = ClaimRequest {
            version: 1 + self.numbers.below(5) as u32 / 4,
            range_heights: [1, 4, 10][self.numbers.below(3) as usize],
            limit_exclusive: limit,
            stop_exclusive: self.numbers.one_in(4).then_some(limit),
            ttl_ms: 5_000,
            ..self.reference.request(service)
        };
        self.doing = format!("claim {request:?}");
        let ours = self.reference.store.claim(&request).await;
        let theirs = self.tested.store.claim(&request).await;
        if let (Ok(Some(ours)), Ok(Some(theirs))) = (&ours, &theirs) {
            self.held.push((ours.clone(), theirs.clone()));
        }
        let given = matches!(ours, Ok(Some(_)));
        let plain = |lease: Result<Option<WorkerLease>>| lease.map(|lease| lease.map(plain));
        agree("the lease", plain(ours), plain(theirs))?;
        self.count("claim", given)
    }

    /// A lease that was given: mostly one that is still its holder's, as it stands now.
    async fn some_lease(&mut self) -> CaseResult<Option<(WorkerLease, WorkerLease)>> {
        let mut live = Vec::new();
        for (ours, theirs) in &self.held {
            let (now, other) =
                (self.reference.store.lease(ours.id).await?, self.tested.store.lease(theirs.id).await?);
            if let (Some(now), Some(other)) = (now, other)
                && now.fence == ours.fence
                && now.status == LeaseStatus::Active
            {
                live.push((now, WorkerLease { fence: theirs.fence, ..other }));
            }
        }
        let from = if self.numbers.one_in(8) || live.is_empty() { &self.held } else { &live };
        Ok(from.get(self.numbers.below(from.len() as u64) as usize).cloned())
    }

    async fn commit(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return self.claim().await };
        let limit = match ours.kind {
            LeaseKind::Index => self.reference.limit(&ours.service).await?,
            LeaseKind::Reindex if self.numbers.one_in(8) => ours.range.end(),
            LeaseKind::Reindex => self.reference.checkpoint(&ours.service).await?.next,
        };
        let left = ours.range.end().min(limit).since(ours.done_to);
        let to = ours.done_to + (1 + self.numbers.below(left.max(1)));
        self.doing = format!("commit {} to {to} of {} {:?}", ours.service, ours.range, ours.kind);
        // Some read before the newest fork, folders always what is there.
        let stale = self.old.get(self.numbers.below(self.old.len() as u64) as usize).cloned();
        let stale = stale.filter(|_| self.numbers.one_in(8) && ours.service != FOLDER);
        let now = self.reference.raw.clone();
        if let Some(stale) = stale {
            self.reference.raw = stale;
        }
        // Nobody commits heights that are not there in the snapshot that it reads.
        let is_there = to <= self.reference.raw.next && to <= limit;
        let commit = if is_there { Some(self.reference.chunk(&ours, to.get()).await) } else { None };
        self.reference.raw = now;
        let Some(commit) = commit else { return Ok(()) };
        // A folder whose lease is a zombie's reads what was not written yet.
        let Ok(mut commit) = commit else { return Ok(()) };
        self.spoil(&mut commit, ours.last_id.is_some());
        let ours = self.reference.store.commit_chunk(&ours, commit.clone()).await;
        let theirs = self.tested.store.commit_chunk(&theirs, commit).await;
        let done = ours.is_ok();
        let essence = |committed: Result<crate::derived::writer::Committed>| {
            committed.map(|committed| (plain(committed.lease), committed.checkpoint))
        };
        agree("the commit", essence(ours), essence(theirs))?;
        self.count("commit", done)
    }

    /// Sometimes a worker is wrong.
    fn spoil(&mut self, commit: &mut ChunkCommit, is_joined: bool) {
        match self.numbers.below(30) {
            0 if is_joined => commit.parent_id = Some(super::raw::id(1, 77)),
            1 => commit.chunk = HeightRange::new(commit.chunk.start().next(), commit.chunk.end()),
            2 => commit.folded_at = commit.folded_at.map(|at| FoldedAt { applied: 0, ..at }),
            3 => commit.read.reorg_id = 0,
            4 => commit.read.newer.clear(),
            5 => commit.rows.iter_mut().for_each(|part| {
                let first = part.rows.first().cloned();
                part.rows.extend(first);
            }),
            _ => {}
        }
    }

    async fn end_lease(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return Ok(()) };
        let (message, retry_in_ms) = ("odd".to_owned(), self.numbers.below(3) * 1_000);
        let end = match self.numbers.below(3) {
            0 => LeaseEnd::Released,
            1 => LeaseEnd::Transient { message, retry_in_ms },
            _ => LeaseEnd::Bad { message, retry_in_ms },
        };
        self.doing = format!("end {:?} {end:?}", ours.range);
        let ours = self.reference.store.end(&ours, end.clone()).await;
        let done = ours.is_ok();
        agree("the end", ours, self.tested.store.end(&theirs, end).await)?;
        self.count("end", done)
    }

    async fn renew(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return Ok(()) };
        self.doing = format!("renew {:?}", ours.range);
        let ours = self.reference.store.renew(&ours, 7_000).await.map(plain);
        let done = ours.is_ok();
        agree("the lease", ours, self.tested.store.renew(&theirs, 7_000).await.map(plain))?;
        self.count("renew", done)
    }

    fn wait(&mut self) -> CaseResult {
        self.doing = "wait".into();
        self.tested.clock.advance_ms(1 + self.numbers.below(6_000));
        Ok(())
    }

    fn grow(&mut self) -> CaseResult {
        self.doing = "grow".into();
        let raw = &mut self.reference.raw;
        if self.numbers.one_in(4) {
            raw.skip(raw.next.get() + 1 + self.numbers.below(3));
        }
        raw.grow(raw.next.get() + 1 + self.numbers.below(6), self.salt);
        self.tested.raw = raw.clone();
        Ok(())
    }

    fn fork(&mut self) -> CaseResult {
        let raw = &mut self.reference.raw;
        let above = raw.next.since(raw.finalized);
        let common = raw.finalized.get() + self.numbers.below(above);
        self.doing = format!("fork at {common}");
        let is_taken = raw.blocks(HeightRange::new(Height(common + 1), raw.next)).is_empty();
        if raw.block(common).is_none() || is_taken {
            return Ok(());
        }
        self.old.push(raw.clone());
        raw.fork(common);
        self.salt += 1;
        raw.grow(common + 1 + self.numbers.below(9), self.salt);
        self.tested.raw = raw.clone();
        Ok(())
    }

    async fn apply(&mut self) -> CaseResult {
        let applied = self.reference.forks().await?.applied.id;
        // Mostly the next entry; sometimes one that isn't.
        let at = if self.numbers.one_in(6) { self.numbers.below(4) } else { applied };
        let Some(entry) = self.reference.raw.reorgs.get(at as usize).cloned() else { return Ok(()) };
        self.doing = format!("apply {}", entry.id);
        let ours = self.reference.store.begin_apply(&entry).await;
        let done = ours.is_ok();
        agree("the begin", ours, self.tested.store.begin_apply(&entry).await)?;
        self.count("apply", done)?;
        if done && self.numbers.one_in(2) {
            self.agree(true).await?;
        }
        if self.numbers.one_in(5) {
            // It stays half done for a while.
            return Ok(());
        }
        for subject in [&self.reference, &self.tested] {
            loop {
                match subject.store.apply_step(entry.id, 10).await {
                    Ok(ApplyProgress::More) => {}
                    Ok(ApplyProgress::Done) | Err(StoreError::Applied { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let ours = self.reference.store.finish_apply(entry.id).await;
        agree("the end", ours, self.tested.store.finish_apply(entry.id).await)
    }

    async fn repair(&mut self) -> CaseResult {
        self.doing = "repair".into();
        let ours = self.reference.store.repair_checkpoints().await?;
        let theirs = self.tested.store.repair_checkpoints().await?;
        let by_name = |mut repairs: Repairs| {
            repairs.moved.sort_by(|one, two| one.service.cmp(&two.service));
            repairs.alarms.sort_by(|one, two| one.service.cmp(&two.service));
            repairs
        };
        let moved = !ours.moved.is_empty();
        same("the repairs", by_name(theirs), by_name(ours))?;
        self.count("repair", moved)
    }

    async fn reap(&mut self) -> CaseResult {
        self.doing = "reap".into();
        let essence = |leases: Vec<WorkerLease>| {
            let mut leases: Vec<WorkerLease> = leases.into_iter().map(plain).collect();
            leases.sort_by_key(order);
            leases
        };
        let ours = essence(self.reference.store.reap(100).await?);
        same("the reaped", essence(self.tested.store.reap(100).await?), ours)
    }

    async fn operate(&mut self) -> CaseResult {
        let Some((ours, theirs)) = self.some_lease().await? else { return Ok(()) };
        let verb = self.numbers.below(3);
        self.doing = format!("operator's verb {verb} on {:?}", ours.range);
        let (ours, theirs) = match verb {
            0 => (
                self.reference.store.retry_lease(ours.id).await?,
                self.tested.store.retry_lease(theirs.id).await?,
            ),
            1 => (
                self.reference.store.release_lease(ours.id).await?,
                self.tested.store.release_lease(theirs.id).await?,
            ),
            _ => {
                let ours = self.reference.store.release_all().await?;
                return same("how many", self.tested.store.release_all().await?, ours);
            }
        };
        same("the lease", theirs.map(plain), ours.map(plain))
    }

    async fn reindex(&mut self) -> CaseResult {
        let next = self.reference.checkpoint(MAPPER).await?.next.get();
        let from = self.numbers.below(next + 2);
        let range = HeightRange::new(Height(from), Height(from + self.numbers.below(next + 3)));
        self.doing = format!("reindex {range}");
        let heights = 1 + self.numbers.below(6);
        let ours = self.reference.store.request_reindex(MAPPER, 1, range, heights).await;
        let done = ours.is_ok();
        agree("how many", ours, self.tested.store.request_reindex(MAPPER, 1, range, heights).await)?;
        self.count("reindex", done)
    }

    async fn pause(&mut self) -> CaseResult {
        let (service, paused) = (self.service(), self.numbers.one_in(3));
        self.doing = format!("pause {service} {paused}");
        self.reference.store.set_paused(service, paused).await?;
        self.tested.store.set_paused(service, paused).await?;
        Ok(())
    }

    async fn prune(&mut self) -> CaseResult {
        let finalized = self.reference.raw.finalized;
        self.doing = format!("prune below {finalized}");
        // How many there are is each store's own: commits may prune as well.
        self.reference.store.prune_undo(finalized, 1_000).await?;
        self.tested.store.prune_undo(finalized, 1_000).await?;
        Ok(())
    }

    async fn restart(&mut self) -> CaseResult {
        self.doing = "restart".into();
        self.tested.reopen().await
    }

    /// Demands that both are alike.
    async fn agree(&mut self, thorough: bool) -> CaseResult {
        same("the forks", self.tested.forks().await?, self.reference.forks().await?)?;
        let (ours, theirs) = (self.reference.snapshot().await?, self.tested.snapshot().await?);
        let essence = |checkpoints: &[DerivedCheckpoint]| {
            let essence = |one: &DerivedCheckpoint| (one.service.clone(), one.next, one.last_id, one.paused);
            checkpoints.iter().map(essence).collect::<Vec<_>>()
        };
        same("the checkpoints", essence(theirs.checkpoints()), essence(ours.checkpoints()))?;
        let leases = |leases: Vec<WorkerLease>| {
            let mut leases: Vec<WorkerLease> = leases.into_iter().map(plain).collect();
            leases.sort_by_key(order);
            leases
        };
        same("the leases", leases(self.tested.leases().await?), leases(self.reference.leases().await?))?;
        same_dump(&self.tested.store.dump().await?, &self.reference.store.dump().await?)?;
        if !thorough {
            return Ok(());
        }
        for table in [MOVES.name, NOTES.name, HOLDINGS.name, TOTALS.name, NAMES.name, "codes"] {
            same(table, all(&*theirs, table).await?, all(&*ours, table).await?)?;
        }
        for (table, index) in [
            (HOLDINGS.name, "by_balance"),
            (HOLDINGS.name, "by_address"),
            (MOVES.name, "by_delta"),
            (NAMES.name, "by_asked"),
        ] {
            let scan = Scan {
                index: Some(index),
                descending: self.numbers.one_in(2),
                upper: Bound::Unbounded,
                ..Scan::new(table, 1_000)
            };
            let rows = |page: Result<crate::derived::reader::ScanPage>| page.map(|page| page.rows);
            agree(index, rows(ours.scan(&scan).await), rows(theirs.scan(&scan).await))?;
        }
        let gaps = self.reference.store.lease_gaps(100).await?;
        same("the gaps", self.tested.store.lease_gaps(100).await?, gaps)?;
        let dead = self.reference.store.dead_leases(100).await?.len();
        same("how many are dead", self.tested.store.dead_leases(100).await?.len(), dead)
    }

    /// Everything that was begun is ended, and then both are what the chain makes.
    async fn end(&mut self) -> CaseResult {
        self.doing = "the end".into();
        self.tested.clock.advance_ms(10_000);
        let (reference, tested) = (&self.reference, &self.tested);
        for subject in [reference, tested] {
            subject.store.release_all().await?;
            for service in [MAPPER, FOLDER, ASKER] {
                subject.store.set_paused(service, false).await?;
            }
            let applied = subject.forks().await?.applied.id;
            for entry in subject.raw.reorgs.iter().filter(|entry| entry.id > applied) {
                subject.apply(entry, 10).await?;
            }
            for lease in subject.leases().await? {
                subject.store.retry_lease(lease.id).await?;
            }
        }
        self.agree(true).await?;
        for subject in [&self.reference, &self.tested] {
            for service in [MAPPER, FOLDER, ASKER] {
                let request = ClaimRequest {
                    version: 2,
                    limit_exclusive: subject.limit(service).await?,
                    ..subject.request(service)
                };
                while let Some(lease) = subject.store.claim(&request).await? {
                    let worked = subject.work(lease, 5).await?;
                    if worked.status != LeaseStatus::Completed && worked.kind == LeaseKind::Index {
                        break;
                    }
                }
                subject.store.repair_checkpoints().await?;
            }
        }
        self.agree(true).await?;
        self.tested.dumps_as_its_chain().await
    }
}

/// What both stores agree on: no numbers, fences, messages, and only those times that matter in its state.
fn plain(lease: WorkerLease) -> WorkerLease {
    let (is_active, is_failed) = (lease.status == LeaseStatus::Active, lease.status == LeaseStatus::Failed);
    WorkerLease {
        id: 0,
        fence: Fence(0),
        last_error: String::new(),
        expires_at_ms: if is_active { lease.expires_at_ms } else { 0 },
        claimed_done_to: if is_active { lease.claimed_done_to } else { Height(0) },
        claimed_to_wait: is_active && lease.claimed_to_wait,
        next_try_at_ms: if is_failed { lease.next_try_at_ms } else { 0 },
        ..lease
    }
}

fn order(lease: &WorkerLease) -> (String, LeaseKind, Height) {
    (lease.service.clone(), lease.kind, lease.range.start())
}

/// Demands the same answer or the same kind of refusal.
#[track_caller]
fn agree<T: Debug + PartialEq>(what: &str, expected: Result<T>, found: Result<T>) -> CaseResult {
    match (expected, found) {
        (Ok(expected), Ok(found)) => same(what, found, expected),
        (Err(expected), Err(found)) if alike(&expected, &found) => Ok(()),
        (expected, found) => Err(Failure::new(format!("{what}: found {found:?}, expected {expected:?}"))),
    }
}

/// Where two things are wrong, either may be said.
fn alike(a: &StoreError, b: &StoreError) -> bool {
    let is_behind = |error: &StoreError| {
        matches!(
            error,
            StoreError::ForkBelow { .. } | StoreError::LeaseMoved { .. } | StoreError::Fenced { .. }
        )
    };
    discriminant(a) == discriminant(b) || (is_behind(a) && is_behind(b))
}
