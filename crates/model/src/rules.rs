//! The rules of the protocol, each of which can be switched off.

/// One rule of the protocol. A model with a rule switched off is a wrong variant; the tests show what the checker finds then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Rule {
    /// Raw: nothing is appended while rows of an abandoned fork wait to be moved away.
    NoAppendDuringPurge,
    /// Gate: a commit checks and writes under the shared gate, so no applier comes between.
    CommitInGate,
    /// Gate: the committer reads leases and moves a checkpoint under the exclusive gate.
    CommitterInGate,
    /// Gate: a claim looks for the last lease and inserts the next under the shared gate.
    ClaimInGate,
    /// A lease that is found expired gets a new fence.
    ReapFence,
    /// A reclaimed lease gets a new fence.
    ReclaimFence,
    /// A worker takes its lease first and opens its raw snapshot after. Off: it may read ahead of its lease.
    LeaseBeforeSnapshot,
    /// Step 2: the commit carries the lease's newest fence.
    CommitFence,
    /// Step 2: the lease is ACTIVE.
    CommitActive,
    /// Step 2: the lease stands where the chunk begins.
    CommitDoneTo,
    /// Step 2: the lease's last block is the parent of the chunk.
    CommitLastId,
    /// Step 3, lower bound: entries that the app store has yet to finish count too, not only those the snapshot didn't know.
    LowerBoundApplied,
    /// Step 3, upper bound: entries that began after the snapshot count too.
    UpperBoundBegun,
    /// Step 3 looks at the first height above the common block. Off: at the first orphan, which lies higher where heights are skipped.
    BoundIsCommonBlock,
    /// Step 3 for a folder: the lower bound is no newer than `applied` in its app snapshot.
    FolderLowerBound,
    /// A worker goes up to its upstream's checkpoint and no further.
    UpstreamBound,
    /// A folder's next range is claimed only when the one before is COMPLETED.
    FolderClaimsInOrder,
    /// A folder computes only where its checkpoint, in the snapshot that it read its state from, ends where the chunk begins.
    FolderSnapshotContiguous,
    /// A folder's commit demands that its checkpoint ends where the chunk begins.
    FolderContiguous,
    /// Step 4: the checkpoint moves only when it ends where the chunk begins. Off: to the greatest height committed.
    CheckpointContiguous,
    /// Step 4: the checkpoint moves only when its id is the chunk's parent.
    CheckpointIds,
    /// The committer crosses into a lease only where its first parent is the checkpoint's block.
    CrossByFirstParent,
    /// A chunk of only skipped heights records the block that it stands on as the lease's first parent. Off: the lease's `first_parent` stays unset.
    SkippedRecordsParent,
    /// An applier's first transaction demands `applied` = id − 1.
    DemandAtBegin,
    /// So does each that deletes rows or restores state.
    DemandAtSteps,
    /// So does the last, which moves `applied`.
    DemandAtFinish,
    /// An applier's first transaction deletes the leases that begin above the common block.
    DeleteLeases,
    /// It gives a new fence to each other lease that reaches above the common block.
    Refence,
    /// It makes each such lease reclaimable, COMPLETED ones included.
    Reopen,
    /// It leaves a lease alone that ends right above the common block. Off: `to`, which is exclusive, is compared with the common block's height.
    ReopenOnlyAbove,
    /// It lowers `done_to` to just above the common block.
    LowerDoneTo,
    /// It lowers `last_id` with `done_to`.
    LowerLastId,
    /// It clamps checkpoints to the common block.
    Clamp,
    /// An undo row is deleted in the transaction that restores it. Off: in one before.
    RestoreWithUndo,
    /// A state row above the checkpoint is read through the undo table.
    ReadThroughUndo,
    /// Event rows are read up to the checkpoint and no further.
    ReadBelowCheckpoint,
    /// A list ordered by state answers "not yet" while an entry is begun and not finished.
    ListsWait,
    /// A commit whose answer was lost is settled by reading the lease. Off: it is taken as not done.
    SettleByLease,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 38] = [
        Rule::NoAppendDuringPurge,
        Rule::CommitInGate,
        Rule::CommitterInGate,
        Rule::ClaimInGate,
        Rule::ReapFence,
        Rule::ReclaimFence,
        Rule::LeaseBeforeSnapshot,
        Rule::CommitFence,
        Rule::CommitActive,
        Rule::CommitDoneTo,
        Rule::CommitLastId,
        Rule::LowerBoundApplied,
        Rule::UpperBoundBegun,
        Rule::BoundIsCommonBlock,
        Rule::FolderLowerBound,
        Rule::UpstreamBound,
        Rule::FolderClaimsInOrder,
        Rule::FolderSnapshotContiguous,
        Rule::FolderContiguous,
        Rule::CheckpointContiguous,
        Rule::CheckpointIds,
        Rule::CrossByFirstParent,
        Rule::SkippedRecordsParent,
        Rule::DemandAtBegin,
        Rule::DemandAtSteps,
        Rule::DemandAtFinish,
        Rule::DeleteLeases,
        Rule::Refence,
        Rule::Reopen,
        Rule::ReopenOnlyAbove,
        Rule::LowerDoneTo,
        Rule::LowerLastId,
        Rule::Clamp,
        Rule::RestoreWithUndo,
        Rule::ReadThroughUndo,
        Rule::ReadBelowCheckpoint,
        Rule::ListsWait,
        Rule::SettleByLease,
    ];
}

/// A set of rules that are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Off(u64);

impl Off {
    /// Nothing is switched off: the protocol as it should be.
    pub const NOTHING: Off = Off(0);

    /// These rules are switched off.
    pub fn these(rules: &[Rule]) -> Off {
        Off(rules.iter().fold(0, |set, rule| set | 1 << *rule as u64))
    }

    /// Whether the rule is in force.
    pub fn on(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u64) == 0
    }
}
