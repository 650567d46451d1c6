//! The protocol between the raw store's reorg log and the derived tables, as a model small enough that a checker visits
//! every state of it.
//!
//! # What is modelled
//!
//! Two databases that share no transaction. The **raw store** takes blocks, and rolls back when its node goes over to
//! another fork ([`Raw`]). The **app store** holds what was derived: event rows, state, and the leases and checkpoints of
//! the services that derive them ([`App`]). Between the two stand actors with nothing but their memory, which a crash
//! takes at any moment ([`Worker`], [`Applier`]):
//!
//! - the **ingester** appends, rolls back (an entry in the reorg log, and a lower head, in one transaction), and moves orphans away. It waits for nobody;
//! - **mappers** turn blocks into event rows, in leases of a few heights, in any order;
//! - a **folder** turns event rows into state, in order, and leaves undo rows;
//! - **appliers** apply the log's entries to the app store, one entry after another, in several bounded transactions;
//! - the **committer** moves checkpoints along finished leases; the **reaper** finds leases expired, rightly or not.
//!
//! Each transaction is one [`Action`]. Everything else interleaves freely, and a worker may stop for ever with an old
//! snapshot and an old fence, and wake up later.
//!
//! # The protocol
//!
//! **The gate.** One lock of the app store: shared for claims, reclaims, reaping and commits; exclusive for each
//! transaction of an applier and of the committer.
//!
//! **A mapper** takes its lease; opens a raw snapshot and reads R, the newest reorg id, and its chunk; closes it;
//! computes; commits in one app transaction:
//!
//! 1. take the gate;
//! 2. update the lease where the fence is its own, it is ACTIVE, `done_to` is where the chunk begins, and `last_id` is the chunk's parent (a fresh lease records that parent as `first_parent`);
//! 3. refuse if an entry with min(R, `applied`) < id ≤ max(R, `begun`) has its common block below `chunk_to` − 1, that is, if it touched any height of the chunk or below;
//! 4. write the rows, and move the checkpoint if it ends where the chunk begins with the chunk's parent.
//!
//! **A folder** reads a second snapshot, of the app store: rows up to its upstream's checkpoint, its state, and `applied`.
//! Its next range is claimed only when the one before is COMPLETED, and its own checkpoint must end where its chunk
//! begins, in that snapshot and again at the commit. The lower bound of its step 3 is the older of R and that `applied`.
//!
//! **An applier's** transactions each demand `applied` = id − 1. The first stores `begun` = id, deletes the leases that
//! begin above the common block, gives every other lease that reaches above it a new fence and makes it reclaimable,
//! lowers `done_to` and `last_id` to the common block where they lie above, and clamps checkpoints. The next delete event
//! rows above the common block and restore state, each undo row in the transaction that restores it. The last moves
//! `applied`.
//!
//! **The committer** moves a checkpoint along the chain of `done_to`, and crosses from one lease into the next only where
//! the checkpoint's id is the next one's `first_parent`.
//!
//! **A reader** reads event rows up to the checkpoint, and a state row that lies above the folder's checkpoint through the
//! undo table; lists ordered by state wait while `begun` > `applied`.
//!
//! # What is shown
//!
//! In every state ([`Protocol::properties`](stateright::Model::properties)): what a reader sees is one unbroken fork,
//! each row once, up to the checkpoint's very block; state is the fold of those rows; with every entry applied it is the
//! canonical chain; a commit with an old fence changes nothing. And from every state, whatever crashed, a way leads to the
//! end in which everything is as a clean run leaves it ([`explore`]).
//!
//! Each [`Rule`] can be switched off. The tests name for each a configuration in which that is caught. Some rules are
//! **second lines**: alone, nothing breaks without them; behind the first line they are what holds. The tests show both.
//!
//! # What is left out
//!
//! Attempts, back-off and dead leases (a lease can always be reclaimed); processor versions; enrichers; reindexing; the
//! walk that finds the common block, finality and the depth limit; the uuid and digests of the log. A block has one event
//! row, a state has two keys.
//!
//! Decisions that came of it: `docs/adr/0007-derived-protocol.md`.

mod actors;
mod app;
pub mod configurations;
mod model;
mod properties;
mod raw;
mod reach;
mod rules;
mod state;
mod words;

pub use actors::{Applier, Step, Worker};
pub use app::{App, Checkpoint, Commit, Lease, StateRow, Status};
pub use model::Protocol;
pub use properties::{
    APPLIED_GROWS, CANONICAL, FENCED, LISTS, NO_FALSE_ALARM, ONE_FORK, RAW_WHOLE, STATE, is_done,
};
pub use raw::{Entry, Raw};
pub use reach::{Reach, explore, explore_for};
pub use rules::{Off, Rule};
pub use state::{Action, State};
pub use words::{Chain, Height, Id};
