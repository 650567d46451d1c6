//! Rows of `app.worker_leases`, `app.indexing_checkpoints` and `app.reorg_state` as values.

use cairn_core::{BlockId, Fence, Height, HeightRange};
use cairn_store::derived::{DerivedCheckpoint, ForkMark, ForkState, LeaseKind, LeaseStatus, WorkerLease};
use cairn_store::{ReorgMark, Result, StoreError};
use tokio_postgres::Row as PgRow;
use tokio_postgres::types::FromSql;

use super::fault::Fault;
use super::tx::Tx;
use super::{int, int_of};
use crate::postgres::copy::PgTimestamp;
use crate::postgres::error::{corrupt, db};
use crate::postgres::pool::Param;

/// The columns of a lease as [`lease_of`] reads them.
pub(super) const LEASE_COLUMNS: &str = "id, worker_type, kind, from_height, to_height, status, leased_by, fence, \
     lease_expires_at, next_try_at, attempt, done_to, claimed_done_to, last_id, first_parent, version, last_error, claimed_to_wait, corrects_state";

/// The columns of a checkpoint as [`checkpoint_of`] reads them.
pub(super) const CHECKPOINT_COLUMNS: &str =
    "service_name, last_height, last_id, updated_at, paused, corrections";

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a PgRow, at: usize) -> Result<T> {
    row.try_get(at).map_err(db)
}

fn unsigned(row: &PgRow, at: usize) -> Result<u64> {
    let n: i64 = column(row, at)?;
    u64::try_from(n).map_err(|_| corrupt(column_name(row, at), format!("{n} is below zero")))
}

fn small(row: &PgRow, at: usize) -> Result<u32> {
    let n: i64 = column(row, at)?;
    u32::try_from(n).map_err(|_| corrupt(column_name(row, at), format!("{n} is out of range")))
}

fn fixed<const N: usize>(row: &PgRow, at: usize) -> Result<[u8; N]> {
    let bytes: &[u8] = column(row, at)?;
    bytes
        .try_into()
        .map_err(|_| corrupt(column_name(row, at), format!("{} bytes where {N} are expected", bytes.len())))
}

fn block_id(row: &PgRow, at: usize) -> Result<Option<BlockId>> {
    match column::<Option<&[u8]>>(row, at)? {
        None => Ok(None),
        Some(_) => fixed(row, at).map(BlockId).map(Some),
    }
}

fn column_name(row: &PgRow, at: usize) -> String {
    format!("column {}", row.columns().get(at).map_or("?", |column| column.name()))
}

pub(super) fn lease_of(row: &PgRow) -> Result<WorkerLease> {
    lease_at(row, 0)
}

/// The lease whose columns begin at `first`.
pub(super) fn lease_at(row: &PgRow, first: usize) -> Result<WorkerLease> {
    let word = |at: usize| column::<&str>(row, at);
    Ok(WorkerLease {
        id: unsigned(row, first)?,
        service: word(first + 1)?.to_owned(),
        kind: LeaseKind::parse(word(first + 2)?)
            .ok_or_else(|| corrupt("a lease's kind", word(first + 2).unwrap_or_default()))?,
        range: HeightRange::new(Height(unsigned(row, first + 3)?), Height(unsigned(row, first + 4)?)),
        status: LeaseStatus::parse(word(first + 5)?)
            .ok_or_else(|| corrupt("a lease's status", word(first + 5).unwrap_or_default()))?,
        owner: word(first + 6)?.to_owned(),
        fence: Fence(unsigned(row, first + 7)?),
        expires_at_ms: column::<PgTimestamp>(row, first + 8)?.0,
        next_try_at_ms: column::<PgTimestamp>(row, first + 9)?.0,
        attempt: small(row, first + 10)?,
        done_to: Height(unsigned(row, first + 11)?),
        claimed_done_to: Height(unsigned(row, first + 12)?),
        claimed_to_wait: column(row, first + 17)?,
        last_id: block_id(row, first + 13)?,
        first_parent: block_id(row, first + 14)?,
        version: small(row, first + 15)?,
        last_error: word(first + 16)?.to_owned(),
        corrects_state: column(row, first + 18)?,
    })
}

pub(super) fn leases_of(rows: &[PgRow]) -> Result<Vec<WorkerLease>> {
    rows.iter().map(lease_of).collect()
}

pub(super) fn checkpoint_of(row: &PgRow) -> Result<DerivedCheckpoint> {
    checkpoint_at(row, 0)
}

/// The checkpoint whose columns begin at `first`.
pub(super) fn checkpoint_at(row: &PgRow, first: usize) -> Result<DerivedCheckpoint> {
    let last_height: i64 = column(row, first + 1)?;
    let next = last_height.checked_add(1).and_then(|next| u64::try_from(next).ok());
    Ok(DerivedCheckpoint {
        service: column::<&str>(row, first)?.to_owned(),
        next: Height(next.ok_or_else(|| corrupt("a checkpoint", format!("{last_height} is no height")))?),
        last_id: block_id(row, first + 2)?,
        updated_at_ms: column::<PgTimestamp>(row, first + 3)?.0,
        paused: column(row, first + 4)?,
        corrections: unsigned(row, first + 5)?,
    })
}

/// `last_height` of a checkpoint: -1 before height 0.
pub(super) fn last_height(checkpoint: &DerivedCheckpoint) -> i64 {
    int(checkpoint.next) - 1
}

/// The row of `app.reorg_state`: where the store stands, and the entry at which it began to follow.
pub(super) const FORKS: &str =
    "SELECT raw_uuid, base_id, applied_id, applied_digest, begun_id, begun_digest FROM app.reorg_state";

/// How many [`LEASE_COLUMNS`] there are.
pub(super) const LEASE_WIDTH: usize = 19;

/// How many [`CHECKPOINT_COLUMNS`] there are.
pub(super) const CHECKPOINT_WIDTH: usize = 6;

/// Columns of one of the tables of a join.
pub(super) fn of_table(table: &str, columns: &str) -> String {
    columns.split(", ").map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn forks_of(row: &PgRow) -> Result<(ForkState, u64)> {
    forks_at(row, 0)
}

/// What [`FORKS`] has, where its columns begin at `first`.
pub(super) fn forks_at(row: &PgRow, first: usize) -> Result<(ForkState, u64)> {
    let forks = ForkState {
        raw_uuid: fixed(row, first)?,
        applied: ReorgMark { id: unsigned(row, first + 2)?, digest: fixed(row, first + 3)? },
        begun: ReorgMark { id: unsigned(row, first + 4)?, digest: fixed(row, first + 5)? },
    };
    Ok((forks, unsigned(row, first + 1)?))
}

/// `id, first_orphan` of `app.reorgs_applied`.
pub(super) fn mark_of(row: &PgRow) -> Result<ForkMark> {
    Ok(ForkMark { id: unsigned(row, 0)?, first_orphan: Height(unsigned(row, 1)?) })
}

/// What every verb needs that is made before [`cairn_store::derived::ReorgApplier::adopt`].
pub(super) fn not_adopted() -> StoreError {
    StoreError::Invalid("the app store follows no raw store yet: adopt one first".into())
}

/// An id as a parameter.
pub(super) fn id_bytes(id: &Option<BlockId>) -> Option<&[u8]> {
    id.as_ref().map(|id| id.as_bytes().as_slice())
}

impl Tx<'_> {
    /// The lease of this number, locked.
    pub(super) async fn lock_lease(&self, id: u64) -> std::result::Result<Option<WorkerLease>, Fault> {
        let sql = format!("SELECT {LEASE_COLUMNS} FROM app.worker_leases WHERE id = $1 FOR UPDATE");
        let row = self.query_opt(&sql, &[&int_of(id)]).await?;
        Ok(row.as_ref().map(lease_of).transpose()?)
    }

    /// Writes what may change of a lease.
    pub(super) async fn write_lease(&self, lease: &WorkerLease) -> std::result::Result<(), Fault> {
        self.write(lease, None).await
    }

    /// Writes a lease and, by the same statement, a checkpoint; both are locked.
    pub(super) async fn write(
        &self,
        lease: &WorkerLease,
        checkpoint: Option<&DerivedCheckpoint>,
    ) -> std::result::Result<(), Fault> {
        const LEASE: &str = "UPDATE app.worker_leases SET status = $2, leased_by = $3, fence = $4, \
             lease_expires_at = $5, next_try_at = $6, attempt = $7, done_to = $8, claimed_done_to = $9, last_id = $10, \
             first_parent = $11, version = $12, last_error = $13, updated_at = $14, claimed_to_wait = $15 WHERE id = $1";
        const BOTH: &str =
            "UPDATE app.indexing_checkpoints SET last_height = $16, last_id = $17, updated_at = $18
             FROM lease WHERE service_name = $19";
        let (id, fence, now) = (int_of(lease.id), int_of(lease.fence.0), self.now());
        let (status, attempt, version) =
            (lease.status.as_str(), i64::from(lease.attempt), i64::from(lease.version));
        let (expires_at, next_try_at) = (PgTimestamp(lease.expires_at_ms), PgTimestamp(lease.next_try_at_ms));
        let (done_to, claimed_done_to) = (int(lease.done_to), int(lease.claimed_done_to));
        let (last_id, first_parent) = (id_bytes(&lease.last_id), id_bytes(&lease.first_parent));
        let mut params: Vec<Param<'_>> = vec![
            &id,
            &status,
            &lease.owner,
            &fence,
            &expires_at,
            &next_try_at,
            &attempt,
            &done_to,
            &claimed_done_to,
            &last_id,
            &first_parent,
            &version,
            &lease.last_error,
            &now,
            &lease.claimed_to_wait,
        ];
        let touched = match checkpoint {
            None => self.execute(LEASE, &params).await?,
            Some(checkpoint) => {
                let height = last_height(checkpoint);
                let (block, moved_at) =
                    (id_bytes(&checkpoint.last_id), PgTimestamp(checkpoint.updated_at_ms));
                params.extend::<[Param<'_>; 4]>([&height, &block, &moved_at, &checkpoint.service]);
                self.execute(&format!("WITH lease AS ({LEASE} RETURNING 1) {BOTH}"), &params).await?
            }
        };
        if touched == 1 {
            return Ok(());
        }
        Err(corrupt(format!("lease {}", lease.id), "it, or its checkpoint, is gone though it was locked")
            .into())
    }

    /// The checkpoint of a service; locked where it is going to be moved.
    pub(super) async fn checkpoint(
        &self,
        service: &str,
        locked: bool,
    ) -> std::result::Result<Option<DerivedCheckpoint>, Fault> {
        let lock = if locked { " FOR UPDATE" } else { "" };
        let sql = format!(
            "SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints WHERE service_name = $1{lock}"
        );
        let row = self.query_opt(&sql, &[&service]).await?;
        Ok(row.as_ref().map(checkpoint_of).transpose()?)
    }

    /// Counts a correction of a folder's state; its checkpoint is locked.
    pub(super) async fn count_correction(
        &self,
        checkpoint: &DerivedCheckpoint,
    ) -> std::result::Result<(), Fault> {
        const UPDATE: &str = "UPDATE app.indexing_checkpoints SET corrections = $2 WHERE service_name = $1";
        self.execute(UPDATE, &[&checkpoint.service, &int_of(checkpoint.corrections)]).await.map(drop)
    }

    /// Moves a checkpoint that is locked.
    pub(super) async fn write_checkpoint(
        &self,
        checkpoint: &DerivedCheckpoint,
    ) -> std::result::Result<(), Fault> {
        const UPDATE: &str =
            "UPDATE app.indexing_checkpoints SET last_height = $2, last_id = $3, updated_at = $4
             WHERE service_name = $1";
        self.execute(
            UPDATE,
            &[
                &checkpoint.service,
                &last_height(checkpoint),
                &id_bytes(&checkpoint.last_id),
                &PgTimestamp(checkpoint.updated_at_ms),
            ],
        )
        .await?;
        Ok(())
    }
}
