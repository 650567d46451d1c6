//! The model: who takes part, which actions a state allows, and what each does.

use std::ops::Range;

use stateright::{Model, Property};

use crate::actors::{Applier, Step, Worker};
use crate::app::{App, Commit, FOLDER, MAPPER, MAX_LEASES, NEW_FENCE, SERVICES, Status};
use crate::properties;
use crate::raw::Raw;
use crate::rules::{Off, Rule};
use crate::state::{Action, State};
use crate::words::{Chain, Height, NONE};

/// One configuration: who takes part, and how far things go.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Its name in what the tests print.
    pub name: &'static str,
    /// The forks that the node shows one after another.
    pub script: &'static [Chain],
    /// The last height.
    pub top: Height,
    /// Heights in a lease: 1 or 2.
    pub range: u8,
    /// Mappers; they come first among the workers.
    pub mappers: usize,
    /// Folders.
    pub folders: usize,
    /// Appliers.
    pub appliers: usize,
    /// Rows of an abandoned fork are moved away height by height, not at once.
    pub purge_in_steps: bool,
    /// A commit that its sender gave up may still arrive, at any later time.
    pub late_commits: bool,
    /// A range may be claimed before there is anything in it: the claimant saw a tip that is gone.
    pub claims_ahead: bool,
    /// The raw store may be exchanged for another fork's without a log entry.
    pub silent_swap: bool,
    /// A worker whose fence is old is taken as idle at once: it could only be refused. Sound while [`Rule::CommitFence`] is in force, and spares the exploration of what zombies would have sent;
    /// the configurations without this show that the fence refuses them.
    pub zombies_are_idle: bool,
    /// The rules that are switched off.
    pub off: Off,
}

impl Protocol {
    fn service(&self, worker: usize) -> u8 {
        if worker < self.mappers { MAPPER } else { FOLDER }
    }

    fn workers(&self) -> usize {
        self.mappers + self.folders
    }

    fn lease_to(&self, lease: u8) -> Height {
        App::to(lease as usize, self.range, self.top)
    }

    /// A fresh lease is claimed where there is something to do: blocks for a mapper, upstream rows for a folder.
    fn claimable(&self, state: &State, worker: usize) -> Option<u8> {
        let service = self.service(worker);
        let lease = state.app.next_lease(service);
        let from = App::from(lease, self.range);
        if service == FOLDER
            && self.off.on(Rule::FolderClaimsInOrder)
            && lease > 0
            && state.app.lease(service, lease as u8 - 1).status != Status::Completed
        {
            return None;
        }
        let work_to = if self.claims_ahead {
            self.top
        } else if service == MAPPER || !self.off.on(Rule::UpstreamBound) {
            state.raw.tip
        } else {
            state.app.checkpoints[MAPPER as usize].height
        };
        (lease < MAX_LEASES && from <= self.top && from <= work_to).then_some(lease as u8)
    }

    /// The state in which `worker` holds `lease` and goes on where the lease stands; idle if there is nothing left to do.
    fn holding(&self, app: &App, service: u8, lease: u8, fence: u8) -> Worker {
        let row = app.lease(service, lease);
        if row.status == Status::Absent || row.fence != fence || row.done_to >= self.lease_to(lease) {
            return Worker::Idle;
        }
        Worker::Holds { lease, fence, done_to: row.done_to }
    }

    /// The same right after the lease was taken; who read ahead of it has its commit ready.
    fn taken(&self, app: &App, service: u8, lease: u8, fence: u8, before: Worker) -> Worker {
        match before {
            Worker::Ahead(commit) => Worker::Ready(Commit { fence, ..commit }),
            _ => self.holding(app, service, lease, fence),
        }
    }

    /// A raw snapshot of some heights, cut at the lease's end and at the tip; `None` where there is nothing yet.
    fn read_raw(
        &self,
        raw: &Raw,
        service: u8,
        lease: u8,
        fence: u8,
        heights: Range<Height>,
    ) -> Option<Commit> {
        let from = heights.start;
        let (to, ids, parent) = raw.read(self.script, from, heights.end.min(self.lease_to(lease)))?;
        let rows = if service == MAPPER { ids } else { [NONE; 2] };
        let base = Default::default();
        Some(Commit {
            service,
            lease,
            fence,
            reorg: raw.reorg,
            applied: 0,
            from,
            to,
            parent,
            ids,
            rows,
            base,
        })
    }

    /// A folder's app snapshot: cuts the chunk at the upstream's checkpoint and reads rows and state. `None` where nothing is to be done yet, or its own checkpoint hasn't come to the chunk.
    fn read_app(&self, app: &App, mut commit: Commit) -> Option<Commit> {
        if self.off.on(Rule::UpstreamBound) {
            commit.to = commit.to.min(app.checkpoints[MAPPER as usize].height + 1);
        }
        let follows = app.checkpoints[FOLDER as usize].height + 1 == commit.from;
        if commit.to <= commit.from || (!follows && self.off.on(Rule::FolderSnapshotContiguous)) {
            return None;
        }
        for place in 0..2 {
            let height = commit.from + place as u8;
            if height < commit.to {
                commit.rows[place] = app.row(height);
            } else {
                commit.ids[place] = NONE;
            }
        }
        commit.applied = app.applied;
        commit.base = app.state;
        Some(commit)
    }

    /// One app transaction: the commit, if it passes.
    fn commit(&self, state: &mut State, commit: &Commit) -> bool {
        let admitted = state.app.admits(commit, &state.raw, self.off);
        if admitted {
            self.write(state, commit);
        }
        admitted
    }

    fn write(&self, state: &mut State, commit: &Commit) {
        state.zombie_wrote |= state.app.lease(commit.service, commit.lease).fence != commit.fence;
        state.app.write(commit, self.lease_to(commit.lease), self.off);
    }

    fn apply(&self, state: &mut State, applier: usize, id: u8, step: Step) {
        let me = &mut state.appliers[applier];
        let demand = match step {
            Step::Begin => Rule::DemandAtBegin,
            Step::Delete | Step::Restore | Step::PutBack(..) => Rule::DemandAtSteps,
            Step::Finish => Rule::DemandAtFinish,
        };
        if !state.app.may_apply(id, demand, self.off) {
            *me = Applier::Idle;
            return;
        }
        let entry = state.raw.entry(id);
        let next = match step {
            Step::Begin => {
                state.app.begin(id, entry, self.range, self.top, self.off);
                Some(Step::Delete)
            }
            Step::Delete => Some(if state.app.delete_step(entry) { Step::Delete } else { Step::Restore }),
            Step::Restore if self.off.on(Rule::RestoreWithUndo) => {
                Some(if state.app.restore_step(entry) { Step::Restore } else { Step::Finish })
            }
            Step::Restore => Some(match state.app.newest_undo(entry) {
                None => Step::Finish,
                Some((height, row)) => {
                    state.app.undo[height as usize] = None;
                    Step::PutBack(height, row)
                }
            }),
            Step::PutBack(height, row) => {
                state.app.state[height as usize % 2] = row;
                Some(Step::Restore)
            }
            Step::Finish => {
                state.applied_fell |= id < state.app.applied;
                state.app.applied = id;
                None
            }
        };
        *me = next.map_or(Applier::Idle, |step| Applier::At { id, step });
    }

    /// Brings a state to the form in which equal ones are equal: which number a fence has doesn't matter, only whether it is still its lease's newest; and neither do the names of two mappers or two appliers.
    fn normalise(&self, state: &mut State) {
        for worker in 0..self.workers() {
            let service = self.service(worker);
            let newest = state.workers[worker].lease().map(|lease| state.app.lease(service, lease).fence);
            if let Some(fence) = state.workers[worker].fence() {
                *fence = u8::from(Some(*fence) == newest);
                if *fence == 0 && self.zombies_are_idle {
                    state.workers[worker] = Worker::Idle;
                }
            }
        }
        if let Some(late) = &mut state.late {
            late.fence = u8::from(late.fence == state.app.lease(late.service, late.lease).fence);
        }
        for lease in state.app.leases.iter_mut().flatten() {
            lease.fence = u8::from(lease.status != Status::Absent);
        }
        state.workers[..self.mappers].sort_unstable();
        state.workers[self.mappers..self.workers()].sort_unstable();
        state.appliers[..self.appliers].sort_unstable();
    }

    fn worker_actions(&self, state: &State, worker: usize, actions: &mut Vec<Action>) {
        let service = self.service(worker);
        match state.workers[worker] {
            Worker::Idle => {
                if self.claimable(state, worker).is_some() {
                    actions.push(Action::Claim(worker));
                }
                let leases = &state.app.leases[service as usize];
                let failed = (0..MAX_LEASES).filter(|lease| leases[*lease].status == Status::Failed);
                actions.extend(failed.clone().map(|lease| Action::Reclaim(worker, lease as u8)));
                if !self.off.on(Rule::LeaseBeforeSnapshot) && service == MAPPER {
                    actions.extend(failed.map(|lease| Action::ReadAhead(worker, lease as u8)));
                    actions
                        .extend(self.claimable(state, worker).map(|lease| Action::ReadAhead(worker, lease)));
                }
                return;
            }
            Worker::Ahead(commit) => {
                if self.claimable(state, worker) == Some(commit.lease) {
                    actions.push(Action::Claim(worker));
                }
                actions.push(Action::Reclaim(worker, commit.lease));
            }
            Worker::Claiming { .. } => actions.push(Action::InsertClaim(worker)),
            Worker::Holds { .. } => {
                actions.push(Action::ReadRaw(worker));
                if self.range > 1 {
                    actions.push(Action::ReadOne(worker));
                }
            }
            Worker::RawRead(_) => actions.push(Action::ReadApp(worker)),
            Worker::Ready(_) => {
                actions.extend([
                    Action::Commit(worker),
                    Action::CommitUnanswered(worker),
                    Action::CommitLost(worker),
                ]);
                if self.late_commits && state.late.is_none() {
                    actions.push(Action::GiveUp(worker));
                }
            }
            Worker::Checked(_) => actions.push(Action::Write(worker)),
            Worker::Unsure { .. } => actions.push(Action::Settle(worker)),
        }
        actions.push(Action::Crash(worker));
    }

    fn worker_step(&self, state: &mut State, worker: usize, action: Action) -> bool {
        let service = self.service(worker);
        let before = state.workers[worker];
        let after = match (action, before) {
            (Action::Claim(_), _) => {
                let Some(lease) = self.claimable(state, worker) else { return false };
                if !self.off.on(Rule::ClaimInGate) {
                    Worker::Claiming { lease }
                } else if state.app.claim(service, lease, self.range) {
                    self.taken(&state.app, service, lease, NEW_FENCE, before)
                } else {
                    return false;
                }
            }
            (Action::InsertClaim(_), Worker::Claiming { lease }) => {
                if state.app.claim(service, lease, self.range) {
                    self.holding(&state.app, service, lease, NEW_FENCE)
                } else {
                    Worker::Idle
                }
            }
            (Action::Reclaim(_, lease), _) => {
                if !state.app.reclaim(service, lease, self.off) {
                    return false;
                }
                let fence = state.app.lease(service, lease).fence;
                self.taken(&state.app, service, lease, fence, before)
            }
            (Action::ReadAhead(_, lease), Worker::Idle) => {
                let row = state.app.lease(service, lease);
                let from = if row.status == Status::Absent {
                    App::from(lease as usize, self.range)
                } else {
                    row.done_to
                };
                match self.read_raw(&state.raw, service, lease, 0, from..from + self.range) {
                    None => return false,
                    Some(commit) => Worker::Ahead(commit),
                }
            }
            (Action::ReadRaw(_) | Action::ReadOne(_), Worker::Holds { lease, fence, done_to }) => {
                let heights = if matches!(action, Action::ReadOne(_)) { 1 } else { self.range };
                match self.read_raw(&state.raw, service, lease, fence, done_to..done_to + heights) {
                    None => return false,
                    Some(commit) if service == MAPPER => Worker::Ready(commit),
                    Some(commit) => Worker::RawRead(commit),
                }
            }
            (Action::ReadApp(_), Worker::RawRead(commit)) => match self.read_app(&state.app, commit) {
                None => Worker::Holds { lease: commit.lease, fence: commit.fence, done_to: commit.from },
                Some(commit) => Worker::Ready(commit),
            },
            (Action::Commit(_), Worker::Ready(commit)) if !self.off.on(Rule::CommitInGate) => {
                if state.app.admits(&commit, &state.raw, self.off) {
                    Worker::Checked(commit)
                } else {
                    self.holding(&state.app, service, commit.lease, commit.fence)
                }
            }
            (Action::Commit(_), Worker::Ready(commit)) => {
                // Done or refused, it goes on from where its lease stands, if that is still its own.
                self.commit(state, &commit);
                self.holding(&state.app, service, commit.lease, commit.fence)
            }
            (Action::Write(_), Worker::Checked(commit)) => {
                self.write(state, &commit);
                self.holding(&state.app, service, commit.lease, commit.fence)
            }
            (Action::CommitUnanswered(_), Worker::Ready(commit)) => {
                if !self.commit(state, &commit) {
                    return false; // A refusal that isn't heard is a commit that was lost.
                }
                Worker::Unsure { lease: commit.lease, fence: commit.fence, from: commit.from, to: commit.to }
            }
            (Action::CommitLost(_), Worker::Ready(commit)) => {
                Worker::Unsure { lease: commit.lease, fence: commit.fence, from: commit.from, to: commit.to }
            }
            (Action::GiveUp(_), Worker::Ready(commit)) => {
                state.late = Some(commit);
                Worker::Unsure { lease: commit.lease, fence: commit.fence, from: commit.from, to: commit.to }
            }
            (Action::Settle(_), Worker::Unsure { lease, fence, from, to }) => {
                let row = state.app.lease(service, lease);
                if row.status == Status::Absent || row.fence != fence {
                    Worker::Idle // Whatever became of the commit, the lease is somebody else's matter now.
                } else if row.done_to >= to && self.off.on(Rule::SettleByLease) {
                    self.holding(&state.app, service, lease, fence)
                } else {
                    Worker::Holds { lease, fence, done_to: from }
                }
            }
            (Action::Crash(_), _) => Worker::Idle,
            _ => return false,
        };
        state.workers[worker] = after;
        true
    }

    fn step(&self, state: &mut State, action: Action) -> bool {
        match action {
            Action::Append => state.raw.append(self.script, self.top, self.off),
            Action::Fork => state.raw.switch(self.script, !self.purge_in_steps),
            Action::Purge => state.raw.purge_step(),
            Action::SwapSilently => state.raw.swap_silently(self.script),
            Action::ArriveLate => {
                let Some(commit) = state.late.take() else { return false };
                self.commit(state, &commit);
                true
            }
            Action::Reap(service, lease) => state.app.reap(service, lease, self.off),
            Action::Look(applier) => {
                let id = state.app.applied + 1;
                state.appliers[applier] = Applier::At { id, step: Step::Begin };
                id <= state.raw.reorg
            }
            Action::Apply(applier) => {
                let Applier::At { id, step } = state.appliers[applier] else { return false };
                self.apply(state, applier, id, step);
                true
            }
            Action::CrashApplier(applier) => {
                state.appliers[applier] = Applier::Idle;
                true
            }
            Action::Repair(service) => {
                let to = state.app.repaired(service, self.range, self.top, self.off);
                let moves = to != state.app.checkpoints[service as usize];
                state.app.checkpoints[service as usize] = to;
                moves
            }
            Action::RepairRead(service) => {
                let to = state.app.repaired(service, self.range, self.top, self.off);
                state.committer = Some((service, to));
                to != state.app.checkpoints[service as usize]
            }
            Action::RepairWrite => {
                let Some((service, to)) = state.committer.take() else { return false };
                state.app.checkpoints[service as usize] = to;
                true
            }
            Action::Claim(w)
            | Action::InsertClaim(w)
            | Action::Reclaim(w, _)
            | Action::ReadAhead(w, _)
            | Action::ReadRaw(w)
            | Action::ReadOne(w)
            | Action::ReadApp(w)
            | Action::Commit(w)
            | Action::CommitUnanswered(w)
            | Action::CommitLost(w)
            | Action::GiveUp(w)
            | Action::Write(w)
            | Action::Settle(w)
            | Action::Crash(w) => self.worker_step(state, w, action),
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            raw: Raw::new(),
            app: App::new(),
            workers: Default::default(),
            appliers: Default::default(),
            committer: None,
            late: None,
            zombie_wrote: false,
            applied_fell: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend([Action::Append, Action::Fork]);
        if state.raw.purge {
            actions.push(Action::Purge);
        }
        if self.silent_swap {
            // The fault stands in for the fork: the log stays empty.
            actions[1] = Action::SwapSilently;
        }
        for worker in 0..self.workers() {
            self.worker_actions(state, worker, actions);
        }
        if state.late.is_some() {
            actions.push(Action::ArriveLate);
        }
        for applier in 0..self.appliers {
            match state.appliers[applier] {
                Applier::Idle => actions.push(Action::Look(applier)),
                Applier::At { .. } => actions.extend([Action::Apply(applier), Action::CrashApplier(applier)]),
            }
        }
        let services = if self.folders == 0 { 1 } else { SERVICES as u8 };
        for service in 0..services {
            for lease in 0..MAX_LEASES as u8 {
                if state.app.lease(service, lease).status == Status::Active {
                    actions.push(Action::Reap(service, lease));
                }
            }
            if self.off.on(Rule::CommitterInGate) {
                actions.push(Action::Repair(service));
            } else if state.committer.is_none() {
                actions.push(Action::RepairRead(service));
            }
        }
        if state.committer.is_some() {
            actions.push(Action::RepairWrite);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = *state;
        if !self.step(&mut next, action) {
            return None;
        }
        self.normalise(&mut next);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
