//! The derived side as cairn sees it: tables described once, and small traits over them.
//!
//! * [`TableDef`], [`Row`], [`Value`]: what is stored. A backend makes its SQL from the definitions.
//! * [`DerivedReader`], [`DerivedSnapshot`]: reading, bounded by checkpoints, through the undo table where it has to be.
//! * [`DerivedWriter`]: the four-step commit of a chunk.
//! * [`Coordinator`]: leases, checkpoints, pauses.
//! * [`ReorgApplier`]: the raw store's reorg log, applied in order.
//! * [`ErrorLog`]: what could not be indexed.
//!
//! The app store knows nothing of the raw store but its uuid and the reorgs that it applied. The order of locks is: the gate, the row
//! of what was applied, leases by number, checkpoints by name (those of corrected folders after the one that moves), tables as
//! the catalog has them, keys ascending.

pub mod answers;
mod dump;
mod errors;
mod fork;
mod lease;
pub mod memory;
mod reader;
mod rebuild;
mod row;
pub mod rules;
pub mod suite;
mod table;
mod value;
mod writer;

pub use dump::DerivedDumpBuilder;
pub use errors::{
    ErrorFilter, ErrorLog, LoggedError, MAX_MESSAGE_BYTES, MAX_RAW_DATA_BYTES, NewError, Recorded, Severity,
    within,
};
pub use fork::{DerivedCheckpoint, FoldedAt, ForkMark, ForkState, ReadMark};
pub use lease::{
    ClaimRequest, LeaseEnd, LeaseFilter, LeaseGap, LeaseKind, LeaseStatus, MAX_ATTEMPTS, MAX_ERROR_BYTES,
    WorkerLease,
};
pub use reader::{
    DerivedDump, DerivedReader, DerivedSnapshot, MAX_SCAN_ROWS, Quarantined, QuarantinedBlock, Scan,
    ScanPage, Standing, UndoRows,
};
pub use rebuild::{RangeAgain, Rebuild, RebuildRequest};
pub use row::{Change, Key, Row};
pub use table::{
    ASKED_AT_HEIGHT, BLOCK_HEIGHT, Catalog, Column, IndexDef, LAST_HEIGHT, Merge, Table, TableClass,
    TableDef, column,
};
pub use value::{ColumnType, SUM_BYTES, Sum, U256, Value};
pub use writer::{
    ApplyProgress, ChunkCommit, Committed, Coordinator, CorrectedRow, Correction, DerivedMaintenance,
    DerivedWriter, Entered, ReorgApplier, Repairs, SeamAlarm, StateRow, StateRows, TableRows, TakenBack,
};

/// Everything that the pipeline needs of an app store.
pub trait DerivedStore:
    DerivedReader + DerivedWriter + Coordinator + ReorgApplier + DerivedMaintenance
{
}

impl<T: DerivedReader + DerivedWriter + Coordinator + ReorgApplier + DerivedMaintenance> DerivedStore for T {}
