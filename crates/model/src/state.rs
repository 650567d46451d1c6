//! What the model's states and steps are.

use crate::actors::{Applier, Worker};
use crate::app::{App, Checkpoint, Commit};
use crate::raw::Raw;

/// The most workers of a configuration.
pub const MAX_WORKERS: usize = 3;
/// The most appliers of a configuration.
pub const MAX_APPLIERS: usize = 2;

/// Everything that is remembered anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
