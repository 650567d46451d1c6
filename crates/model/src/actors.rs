//! What the actors hold in memory between two transactions. A crash loses all of it, at any moment.
//!
//! - A **mapper** takes a lease, then opens a raw snapshot: it reads the newest reorg id R first and then its chunk. It
//!   computes, and commits. If the answer is lost it reads its lease: `done_to` at or above the chunk's end under its own
//!   fence means that the commit happened.
//! - A **folder** does the same with a second snapshot, of the app store, between: the rows of its chunk, bounded by its
//!   upstream's checkpoint, its own state rows, and `applied`.
//! - An **applier** reads `applied` and the entry after it, then runs that entry's transactions one after another.
//! - The **committer** and the **reaper** run single transactions and hold nothing.
//!
//! Nothing here makes an actor go on: a worker may stop for ever with an old snapshot and an old fence, and wake up much later.

use crate::app::{Commit, StateRow};
use crate::words::Height;

/// A mapper or a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Worker {
    /// Has nothing.
    #[default]
    Idle,
    /// Has looked for the next range and not yet inserted it: only outside the gate.
    Claiming {
        /// The place of the lease that it will insert.
        lease: u8,
    },
    /// Has read and computed before it took the lease: only without [`crate::Rule::LeaseBeforeSnapshot`].
    Ahead(Commit),
    /// Holds a lease.
    Holds {
        /// Which one.
        lease: u8,
        /// Its fence.
        fence: u8,
        /// Where its work goes on.
        done_to: Height,
    },
    /// A folder with its raw snapshot read.
    RawRead(Commit),
    /// Has computed; the commit is to be sent.
    Ready(Commit),
    /// The commit has passed its checks and not yet written: only outside the gate.
    Checked(Commit),
    /// Sent a commit and got no answer.
    Unsure {
        /// Which lease.
        lease: u8,
        /// Its fence.
        fence: u8,
        /// Where the chunk begins.
        from: Height,
        /// Where it ends.
        to: Height,
    },
}

impl Worker {
    /// Which lease it works on.
    pub fn lease(&self) -> Option<u8> {
        match self {
            Worker::Idle | Worker::Claiming { .. } | Worker::Ahead(_) => None,
            Worker::Holds { lease, .. } | Worker::Unsure { lease, .. } => Some(*lease),
            Worker::RawRead(commit) | Worker::Ready(commit) | Worker::Checked(commit) => Some(commit.lease),
        }
    }

    /// The fence that it holds.
    pub fn fence(&mut self) -> Option<&mut u8> {
        match self {
            Worker::Idle | Worker::Claiming { .. } | Worker::Ahead(_) => None,
            Worker::Holds { fence, .. } | Worker::Unsure { fence, .. } => Some(fence),
            Worker::RawRead(commit) | Worker::Ready(commit) | Worker::Checked(commit) => {
                Some(&mut commit.fence)
            }
        }
    }
}

/// An applier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Applier {
    /// Has nothing to do, or hasn't looked.
    #[default]
    Idle,
    /// Works on an entry.
    At {
        /// The entry's id.
        id: u8,
        /// What its next transaction does.
        step: Step,
    },
}

/// The transactions of an entry in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Store `begun`; leases and checkpoints.
    Begin,
    /// Delete event rows.
    Delete,
    /// Restore state.
    Restore,
    /// Put back a row whose undo row was deleted in the transaction before: only without [`crate::Rule::RestoreWithUndo`].
    PutBack(Height, StateRow),
    /// Move `applied`.
    Finish,
}
