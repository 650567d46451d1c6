//! What must hold in every state, whoever died where.

use stateright::Property;

use crate::app::{App, FOLDER, Lease, MAPPER, MAX_LEASES, Status};
use crate::model::Protocol;
use crate::raw::Entry;
use crate::rules::Rule;
use crate::state::State;
use crate::words::{Chain, GENESIS, Height, NONE, block_at_or_below, parent};

/// The raw store has one row a height up to its tip, of the node's chain.
pub const RAW_WHOLE: &str = "raw rows up to the tip are the canonical chain";
/// Rows up to a checkpoint link block to block up to the checkpoint's id.
pub const ONE_FORK: &str = "rows up to the checkpoint are one unbroken fork";
/// With every entry applied, rows up to a checkpoint are the canonical chain's.
pub const CANONICAL: &str = "with every entry applied, rows up to the checkpoint are canonical";
/// What a folder serves is the fold of the rows up to exactly its checkpoint.
pub const STATE: &str = "state read at the folder's checkpoint is the fold of the rows up to it";
/// A list ordered by state shows the rows as they stand, so it is answered only where they stand at the checkpoint.
pub const LISTS: &str = "state rows stand at the folder's checkpoint whenever lists are answered";
/// A commit with an old fence changes nothing.
pub const FENCED: &str = "a commit with an old fence changes nothing";
/// What was applied stays applied.
pub const APPLIED_GROWS: &str = "the newest applied entry never falls";
/// Two leases that touch fit by their ids, so the committer's alarm means a fault.
pub const NO_FALSE_ALARM: &str = "the committer never meets leases that don't fit";

/// The properties of a configuration, all of them "always". After a silent swap nobody can know what is canonical; what is left is never to mix forks.
pub fn all(model: &Protocol) -> Vec<Property<Protocol>> {
    let mut all = vec![
        Property::always(ONE_FORK, one_fork),
        Property::always(FENCED, |_, state: &State| !state.zombie_wrote),
        Property::always(APPLIED_GROWS, |_, state: &State| !state.applied_fell),
    ];
    if !model.silent_swap {
        all.push(Property::always(RAW_WHOLE, raw_is_whole));
        all.push(Property::always(CANONICAL, canonical));
        all.push(Property::always(NO_FALSE_ALARM, leases_fit));
    }
    if model.folders > 0 {
        all.push(Property::always(STATE, state_is_fold));
        all.push(Property::always(LISTS, lists_are_state));
    }
    all
}

fn raw_is_whole(model: &Protocol, state: &State) -> bool {
    state.raw.is_whole(model.script)
}

/// A height without a row is a skipped one; then the next block's parent lies below it, or the checkpoint's id does.
fn one_fork(model: &Protocol, state: &State) -> bool {
    let checkpoint = state.app.checkpoints[MAPPER as usize];
    let bounded = model.off.on(Rule::ReadBelowCheckpoint);
    let bound = if bounded { checkpoint.height } else { model.top };
    let mut last = GENESIS;
    for height in 1..=bound {
        let id = state.app.row(height);
        if id == NONE {
            continue;
        }
        let alone = state.app.rows[height as usize] == 1 << ((id - 1) * 2);
        if !alone || parent(model.script, height, id) != Some(last) {
            return false;
        }
        last = id;
    }
    last == checkpoint.id || !bounded
}

fn canonical(model: &Protocol, state: &State) -> bool {
    let newest = state.raw.reorg;
    if state.app.applied != newest || state.app.begun != newest {
        return true;
    }
    let (app, chain) = (&state.app, state.raw.chain(model.script));
    app.checkpoints.iter().all(|c| c.height <= state.raw.tip && c.id == block_at_or_below(chain, c.height).1)
        && (1..=app.checkpoints[MAPPER as usize].height).all(|h| app.row(h) == chain[h as usize])
}

fn leases_fit(model: &Protocol, state: &State) -> bool {
    state.app.leases.iter().all(|leases| {
        (1..MAX_LEASES).all(|place| {
            let (below, lease) = (&leases[place - 1], &leases[place]);
            below.status == Status::Absent
                || below.done_to < App::to(place - 1, model.range, model.top)
                || below.last_id == NONE
                || lease.first_parent == NONE
                || below.last_id == lease.first_parent
        })
    })
}

fn state_is_fold(model: &Protocol, state: &State) -> bool {
    let app = &state.app;
    let checkpoint = app.checkpoints[FOLDER as usize];
    if checkpoint.height > app.checkpoints[MAPPER as usize].height
        || last_row(app, checkpoint.height) != checkpoint.id
    {
        return false;
    }
    (0..2).all(|key| {
        let heights = (1..=checkpoint.height).filter(|h| *h as usize % 2 == key);
        let rows = heights.map(|h| (h, app.row(h))).filter(|(_, id)| *id != NONE);
        let fold =
            rows.fold(Default::default(), |row: crate::app::StateRow, (height, id)| row.then(height, id));
        app.read_state(key, checkpoint.height, model.off) == fold
    })
}

/// Given that the state read at the checkpoint is right, this says that each row is that state.
fn lists_are_state(model: &Protocol, state: &State) -> bool {
    let app = &state.app;
    let checkpoint = app.checkpoints[FOLDER as usize].height;
    let answered = app.begun == app.applied || !model.off.on(Rule::ListsWait);
    !answered || app.state.iter().all(|row| row.height <= checkpoint)
}

fn last_row(app: &App, height: Height) -> u8 {
    (1..=height).rev().map(|h| app.row(h)).find(|id| *id != NONE).unwrap_or(GENESIS)
}

/// The end that every run must be able to reach: the node's last fork is taken to its top, every entry is applied, and the app store is what a clean run over that fork alone leaves. (What actors hold in memory doesn't count.)
pub fn is_done(model: &Protocol, state: &State) -> bool {
    let Some(chain) = model.script.last() else { return false };
    let (raw, app) = (&state.raw, &state.app);
    if raw.phase as usize + 1 != model.script.len() || raw.tip != model.top || raw.purge {
        return false;
    }
    if app.applied != raw.reorg || app.begun != raw.reorg {
        return false;
    }
    let services = if model.folders == 0 { 1 } else { 2 };
    let leases = app.leases[..services].iter().all(|leases| {
        leases.iter().enumerate().all(|(place, lease)| {
            let (from, to) = (App::from(place, model.range), App::to(place, model.range, model.top));
            from > model.top
                || (lease.status == Status::Completed
                    && lease.done_to == to
                    && (lease_ids_are(lease, chain, from, to) || is_exempt(model, lease, chain, from, to)))
        })
    });
    let checkpoints = app.checkpoints[..services]
        .iter()
        .all(|c| c.height == model.top && c.id == chain[model.top as usize]);
    let rows = (1..=model.top).all(|h| match chain[h as usize] {
        NONE => app.rows[h as usize] == 0,
        id => app.rows[h as usize] == 1 << ((id - 1) * 2),
    });
    leases && checkpoints && rows && (model.folders == 0 || undo_is_clean(model, app))
}

fn lease_ids_are(lease: &Lease, chain: &Chain, from: Height, to: Height) -> bool {
    lease.last_id == block_at_or_below(chain, to - 1).1
        && lease.first_parent == block_at_or_below(chain, from - 1).1
}

/// Without [`Rule::SkippedRecordsParent`] a lease of only skipped heights has no ids; the question is then whether a checkpoint still comes past it.
fn is_exempt(model: &Protocol, lease: &Lease, chain: &Chain, from: Height, to: Height) -> bool {
    !model.off.on(Rule::SkippedRecordsParent)
        && chain[from as usize..to as usize].iter().all(|id| *id == NONE)
        && (lease.last_id, lease.first_parent) == (NONE, NONE)
}

/// Each height's undo row is the state below it; no other is left. The state itself is checked by [`STATE`].
fn undo_is_clean(model: &Protocol, app: &App) -> bool {
    let Some(chain) = model.script.last() else { return false };
    let mut state = [crate::app::StateRow::default(); 2];
    (1..=model.top).all(|height| {
        let id = chain[height as usize];
        let key = height as usize % 2;
        let before = state[key];
        if id != NONE {
            state[key] = before.then(height, id);
        }
        app.undo[height as usize] == (id != NONE).then_some(before)
    }) && app.newest_undo(Entry { common: model.top, ..Default::default() }).is_none()
}
