//! What the model's states and steps are.

use std::hash::{Hash, Hasher};

use crate::actors::{Applier, Worker};
use crate::app::{App, Checkpoint, Commit};
use crate::raw::Raw;

/// The most workers of a configuration.
pub const MAX_WORKERS: usize = 3;
/// The most appliers of a configuration.
pub const MAX_APPLIERS: usize = 2;

/// Everything that is remembered anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The raw store.
    pub raw: Raw,
    /// The app store.
    pub app: App,
    /// Mappers, then folders.
    pub workers: [Worker; MAX_WORKERS],
    /// Appliers.
    pub appliers: [Applier; MAX_APPLIERS],
    /// What a committer outside the gate has read and is about to write.
    pub committer: Option<(u8, Checkpoint)>,
    /// A commit on its way whose sender has given it up.
    pub late: Option<Commit>,
    /// A commit with an old fence went through.
    pub zombie_wrote: bool,
    /// `applied` went down.
    pub applied_fell: bool,
}

/// The whole state in one piece: a hasher takes it much faster than a hundred fields one by one, and hashing is much of the work of an exploration.
impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let State { raw, app, workers, appliers, committer, late, zombie_wrote, applied_fell } = self;
        let mut gathered = Gathered::default();
        (raw, app, workers, appliers).hash(&mut gathered);
        (committer, late, zombie_wrote, applied_fell).hash(&mut gathered);
        hasher.write(&gathered.bytes[..gathered.len]);
    }
}

/// Gathers what the fields of a state give to a hasher.
struct Gathered {
    bytes: [u8; MAX_STATE_BYTES],
    len: usize,
}

/// More than any state takes.
const MAX_STATE_BYTES: usize = 192;

impl Default for Gathered {
    fn default() -> Self {
        Gathered { bytes: [0; MAX_STATE_BYTES], len: 0 }
    }
}

impl Hasher for Gathered {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Which variant of an enumeration it is: none here has 256.
    #[inline]
    fn write_isize(&mut self, variant: isize) {
        self.write_u8(variant as u8);
    }

    /// The length of an array, which is the same in every state.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        unreachable!("what was gathered is hashed by another hasher")
    }
}

/// One step of one actor. Numbers are the actor's place; a lease is named by service and place. Actors of one kind are kept
/// sorted (an idle mapper comes before a busy one), so the same actor may have another number in the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The ingester appends a block.
    Append,
    /// The node goes over to its next fork; the ingester rolls back where it must.
    Fork,
    /// The ingester moves a height's rows away.
    Purge,
    /// The fault of [`Protocol::silent_swap`].
    SwapSilently,
    /// A worker claims the next range.
    Claim(usize),
    /// A worker inserts the lease that it looked for before.
    InsertClaim(usize),
    /// A worker takes a FAILED lease over.
    Reclaim(usize, u8),
    /// A worker reads for a lease that it doesn't hold yet.
    ReadAhead(usize, u8),
    /// A worker opens, reads and closes its raw snapshot.
    ReadRaw(usize),
    /// The same, but it takes one height though there may be more: chunks have any size.
    ReadOne(usize),
    /// A folder opens, reads and closes its app snapshot.
    ReadApp(usize),
    /// A worker commits and hears the answer.
    Commit(usize),
    /// A worker commits, and the answer is lost.
    CommitUnanswered(usize),
    /// A worker's commit is lost on its way.
    CommitLost(usize),
    /// A worker gives its commit up while it is still on its way.
    GiveUp(usize),
    /// The commit that was given up arrives.
    ArriveLate,
    /// A commit outside the gate writes.
    Write(usize),
    /// A worker reads its lease to learn what became of its commit.
    Settle(usize),
    /// A worker dies; another starts in its place.
    Crash(usize),
    /// The reaper finds a lease expired.
    Reap(u8, u8),
    /// An applier looks for the next entry.
    Look(usize),
    /// An applier runs its next transaction.
    Apply(usize),
    /// An applier dies; another starts in its place.
    CrashApplier(usize),
    /// The committer repairs a service's checkpoint.
    Repair(u8),
    /// A committer outside the gate reads the leases.
    RepairRead(u8),
    /// A committer outside the gate writes.
    RepairWrite,
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use ahash::RandomState;
    use stateright::Model;

    use super::State;
    use crate::configurations::{APPLIERS, FOLDER, LATE, MAPPERS, SWAPPED};
    use crate::model::Protocol;
    use crate::rules::{Off, Rule};

    const STATES: usize = 10_000;

    /// Two states of one hash would be taken for one.
    #[test]
    fn states_that_differ_in_anything_differ_in_their_hash() {
        let torn = Protocol { off: Off::these(&[Rule::CommitterInGate]), ..MAPPERS };
        let hasher = RandomState::with_seeds(1, 2, 3, 4);
        for model in [FOLDER, LATE, APPLIERS, SWAPPED, torn] {
            let mut by_hash: HashMap<u64, State> = HashMap::new();
            let mut met = HashSet::new();
            let mut layer = model.init_states();
            while !layer.is_empty() && met.len() < STATES {
                let mut next_layer = Vec::new();
                for state in layer {
                    let first = *by_hash.entry(hasher.hash_one(state)).or_insert(state);
                    assert_eq!(first, state, "{}", model.name);
                    if met.insert(format!("{state:?}")) {
                        next_layer.extend(model.next_steps(&state).into_iter().map(|(_, next)| next));
                    }
                }
                layer = next_layer;
            }
            assert!(met.len() >= STATES, "{}: {} states", model.name, met.len());
            assert_eq!(by_hash.len(), met.len(), "{}", model.name);
        }
    }
}
