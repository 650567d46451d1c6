//! Filling ahead of the head, under leases.

use async_trait::async_trait;
use cairn_core::{BlockId, BlockRef, Fence, Height, HeightRange, RawBlock};
use cairn_store::derived::MAX_ATTEMPTS;
use cairn_store::{HeadRow, RangeEnd, RawFiller, RawLease, RawLeaseState, Result, StoreError, is_held_up};
use rusqlite::{Connection, Row, params};

use super::blocks::{self};
use super::codec::Unpacker;
use super::error::db;
use super::head::{self, Head, get_height, get_u32, get_u64, sql};
use super::writer::{EncodedBatch, demand_finality};
use super::{SqliteStore, index};

/// A lease, and where it stood when it was claimed: whether it moved decides if a bad end counts.
pub(super) struct LeaseRow {
    pub(super) lease: RawLease,
    claimed_at: Height,
}

impl LeaseRow {
    fn has_moved(&self) -> bool {
        self.lease.done_to > self.claimed_at
    }

    fn fresh(range: HeightRange) -> Self {
        let lease = RawLease {
            range,
            state: RawLeaseState::Active,
            owner: String::new(),
            fence: Fence(0),
            expires_at_ms: 0,
            attempt: 0,
            done_to: range.start(),
            last_id: None,
            first_parent: None,
            last_error: String::new(),
        };
        LeaseRow { lease, claimed_at: range.start() }
    }

    /// Back to `Failed`, under a new fence, so that whoever held it can't go on.
    fn give_back(&mut self, head: &mut Head, now_ms: u64) {
        self.lease.state = RawLeaseState::Failed;
        self.lease.fence = head.next_fence();
        self.lease.expires_at_ms = now_ms;
    }

    fn write(&self, conn: &Connection) -> Result<()> {
        let lease = &self.lease;
        conn.prepare_cached(
            "INSERT OR REPLACE INTO raw_leases VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                sql(lease.range.start()),
                sql(lease.range.end()),
                state_number(lease.state),
                lease.owner,
                lease.fence.0 as i64,
                // A time to live without end is an end of time that sorts.
                i64::try_from(lease.expires_at_ms).unwrap_or(i64::MAX),
                lease.attempt,
                sql(lease.done_to),
                sql(self.claimed_at),
                lease.last_id.map(|id| id.0),
                lease.first_parent.map(|id| id.0),
                lease.last_error,
            ])
        })
        .map_err(db)?;
        Ok(())
    }
}

fn state_number(state: RawLeaseState) -> i64 {
    match state {
        RawLeaseState::Active => 0,
        RawLeaseState::Completed => 1,
        RawLeaseState::Failed => 2,
    }
}

fn lease_row(row: &Row<'_>) -> rusqlite::Result<LeaseRow> {
    let id = |column| row.get::<_, Option<[u8; 32]>>(column).map(|id| id.map(BlockId));
    let lease = RawLease {
        range: HeightRange::new(get_height(row, 0)?, get_height(row, 1)?),
        state: match row.get::<_, i64>(2)? {
            0 => RawLeaseState::Active,
            1 => RawLeaseState::Completed,
            2 => RawLeaseState::Failed,
            other => return Err(rusqlite::Error::IntegralValueOutOfRange(2, other)),
        },
        owner: row.get(3)?,
        fence: Fence(get_u64(row, 4)?),
        expires_at_ms: get_u64(row, 5)?,
        attempt: get_u32(row, 6)?,
        done_to: get_height(row, 7)?,
        last_id: id(9)?,
        first_parent: id(10)?,
        last_error: row.get(11)?,
    };
    Ok(LeaseRow { lease, claimed_at: get_height(row, 8)? })
}

/// Every lease, by first height: those that the head has not passed, so never many.
pub(super) fn read_leases(conn: &Connection) -> Result<Vec<LeaseRow>> {
    let mut statement = conn.prepare_cached("SELECT * FROM raw_leases ORDER BY from_height").map_err(db)?;
    let rows = statement.query_map([], lease_row).map_err(db)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db)
}

#[async_trait]
impl RawFiller for SqliteStore {
    async fn claim_range(
        &self,
        owner: &str,
        ttl_ms: u64,
        range_heights: u64,
        stop_exclusive: Height,
    ) -> Result<Option<RawLease>> {
        if range_heights == 0 {
            return Err(StoreError::Invalid(
                "claim_range: range_heights is 0; ask for at least one height".into(),
            ));
        }
        let owner = owner.to_owned();
        self.write(move |shared| {
            let now_ms = shared.now_ms();
            shared.finish_discard()?;
            shared.commit("claim_range", |tx, _| {
                let mut head = head::read(tx)?;
                let leases = read_leases(tx)?;
                let held_up = is_held_up(leases.iter().map(|row| &row.lease));
                let new_range =
                    new_range(&head, leases.last(), range_heights, stop_exclusive).filter(|_| !held_up);
                let reclaimed = to_reclaim(tx, &mut head, leases, now_ms, stop_exclusive)?;
                let Some(mut row) = reclaimed.or_else(|| new_range.map(LeaseRow::fresh)) else {
                    head.write(tx)?;
                    return Ok(None);
                };
                row.lease.state = RawLeaseState::Active;
                row.lease.owner = owner;
                row.lease.fence = head.next_fence();
                row.lease.expires_at_ms = now_ms.saturating_add(ttl_ms);
                row.claimed_at = row.lease.done_to;
                row.write(tx)?;
                head.write(tx)?;
                Ok(Some(row.lease))
            })
        })
        .await
    }

    async fn fill(&self, lease: &RawLease, blocks: Vec<RawBlock>, ttl_ms: u64) -> Result<RawLease> {
        let held = lease.clone();
        self.write(move |shared| {
            shared.with_writer(|writer| demand_lease(&writer.conn, &held).map(|_| ()))?;
            let batch = EncodedBatch::new(blocks, shared.options.compression_level)?;
            shared.finish_discard()?;
            let expires_at_ms = shared.now_ms().saturating_add(ttl_ms);
            shared.commit("fill", |tx, unpacker| fill(tx, unpacker, &held, &batch, expires_at_ms))
        })
        .await
    }

    async fn renew_range(&self, lease: &RawLease, ttl_ms: u64) -> Result<RawLease> {
        let held = lease.clone();
        self.write(move |shared| {
            shared.commit("renew_range", |tx, _| {
                let (_, mut row) = demand_lease(tx, &held)?;
                if row.lease.state == RawLeaseState::Active {
                    row.lease.expires_at_ms = shared.now_ms().saturating_add(ttl_ms);
                    row.write(tx)?;
                }
                Ok(row.lease)
            })
        })
        .await
    }

    async fn release(&self, lease: &RawLease, end: RangeEnd) -> Result<()> {
        let held = lease.clone();
        self.write(move |shared| {
            let now_ms = shared.now_ms();
            shared.commit("release", |tx, _| {
                let (mut head, mut row) = demand_lease(tx, &held)?;
                if row.lease.state == RawLeaseState::Completed {
                    return Ok(());
                }
                let has_moved = row.has_moved();
                row.lease.end(end.clone(), has_moved);
                row.give_back(&mut head, now_ms);
                row.write(tx)?;
                head.write(tx)
            })
        })
        .await
    }

    async fn retry_range(&self, start: Height) -> Result<Option<RawLease>> {
        self.write(move |shared| {
            shared.commit("retry_range", |tx, _| {
                let Some(mut row) = lease_in(tx, start, RawLeaseState::Failed)? else { return Ok(None) };
                row.lease.attempt = 0;
                row.write(tx)?;
                Ok(Some(row.lease))
            })
        })
        .await
    }

    async fn release_range(&self, start: Height) -> Result<Option<RawLease>> {
        self.write(move |shared| {
            let now_ms = shared.now_ms();
            shared.commit("release_range", |tx, _| {
                let mut head = head::read(tx)?;
                let Some(mut row) = lease_in(tx, start, RawLeaseState::Active)? else { return Ok(None) };
                row.give_back(&mut head, now_ms);
                row.write(tx)?;
                head.write(tx)?;
                Ok(Some(row.lease))
            })
        })
        .await
    }

    async fn advance(&self, fence: Fence) -> Result<HeadRow> {
        self.write(move |shared| {
            let now_ms = shared.now_ms();
            // A broken seam is an answer and a commit at once: the head moved below it, and the range above was given up.
            let (head, seam) = shared.commit_clean("advance", |tx, _| advance(tx, fence, now_ms))?;
            match seam {
                None => Ok(head),
                Some(error) => {
                    shared.finish_discard()?;
                    Err(error)
                }
            }
        })
        .await
    }
}

/// The lowest lease that failed or expired and isn't dead. An expired one that has not moved counts one attempt more, and may be dead by that.
fn to_reclaim(
    conn: &Connection,
    head: &mut Head,
    leases: Vec<LeaseRow>,
    now_ms: u64,
    stop_exclusive: Height,
) -> Result<Option<LeaseRow>> {
    let is_free = |row: &LeaseRow| match row.lease.state {
        RawLeaseState::Failed => !row.lease.is_dead(),
        RawLeaseState::Active => row.lease.expires_at_ms <= now_ms,
        RawLeaseState::Completed => false,
    };
    let below = leases.into_iter().take_while(|row| row.lease.range.start() < stop_exclusive);
    for mut row in below.filter(is_free) {
        if row.lease.state == RawLeaseState::Active && !row.has_moved() {
            row.lease.expire();
            if row.lease.attempt >= MAX_ATTEMPTS {
                row.give_back(head, now_ms);
                row.write(conn)?;
                continue;
            }
        }
        return Ok(Some(row));
    }
    Ok(None)
}

/// The lease that begins at `start`, where it is in this state.
fn lease_in(conn: &Connection, start: Height, wanted: RawLeaseState) -> Result<Option<LeaseRow>> {
    let is_it = |row: &LeaseRow| row.lease.range.start() == start && row.lease.state == wanted;
    Ok(read_leases(conn)?.into_iter().find(is_it))
}

/// The heights of a new lease, above the tip and every other lease.
fn new_range(
    head: &Head,
    last: Option<&LeaseRow>,
    range_heights: u64,
    stop_exclusive: Height,
) -> Option<HeightRange> {
    let (Some(tip), None) = (head.row.tip, head.row.pending_purge) else {
        return None;
    };
    let above_leases = last.map_or(Height::ZERO, |row| row.lease.range.end());
    let start = tip.height.next().max(above_leases);
    let multiple = (start.get() / range_heights + 1).saturating_mul(range_heights);
    let end = Height(multiple).min(stop_exclusive);
    Some(HeightRange::new(start, end)).filter(|range| !range.is_empty())
}

/// The lease under this fence, with the head row: law 5.
fn demand_lease(conn: &Connection, held: &RawLease) -> Result<(Head, LeaseRow)> {
    let head = head::read(conn)?;
    let row = read_leases(conn)?.into_iter().find(|row| row.lease.range == held.range);
    match row {
        Some(row) if row.lease.fence == held.fence => Ok((head, row)),
        row => Err(StoreError::Fenced {
            what: format!("the raw lease {}", held.range),
            held: held.fence,
            current: row.map_or(Fence(head.last_fence), |row| row.lease.fence),
        }),
    }
}

fn fill(
    tx: &Connection,
    unpacker: &Unpacker,
    held: &RawLease,
    batch: &EncodedBatch,
    expires_at_ms: u64,
) -> Result<RawLease> {
    let (head, mut row) = demand_lease(tx, held)?;
    let lease = &mut row.lease;
    let (first, last) = (&batch.first().facts, batch.last());
    if first.height < lease.range.start() || last.height >= lease.range.end() {
        return Err(StoreError::Invalid(format!(
            "fill: blocks {} to {last} reach outside the lease {}",
            first.block_ref(),
            lease.range
        )));
    }
    if last.height < lease.done_to {
        blocks::demand_no_conflict(tx, unpacker, &batch.blocks)?;
        return Ok(row.lease);
    }
    if first.height != lease.done_to {
        return Err(StoreError::Invalid(format!(
            "fill: the lease {} goes on at {}, the blocks begin at {}",
            lease.range,
            lease.done_to,
            first.block_ref()
        )));
    }
    if let (Some(last_id), Some(before)) = (lease.last_id, lease.done_to.prev())
        && first.parent_id != last_id
    {
        return Err(StoreError::DoesNotLink {
            first: first.block_ref(),
            parent_id: first.parent_id,
            expected: BlockRef { height: before, id: last_id },
        });
    }
    let stored = blocks::demand_no_conflict(tx, unpacker, &batch.blocks)?;
    demand_finality(head.row.finalized, |height| Ok(batch.at(height)))?;

    lease.first_parent = lease.first_parent.or(Some(first.parent_id));
    lease.done_to = last.height.next();
    lease.last_id = Some(last.id);
    lease.attempt = 0;
    lease.last_error.clear();
    lease.expires_at_ms = expires_at_ms;
    if lease.done_to == lease.range.end() {
        lease.state = RawLeaseState::Completed;
    }
    batch.write(tx, &stored)?;
    row.write(tx)?;
    Ok(row.lease)
}

fn advance(tx: &Connection, fence: Fence, now_ms: u64) -> Result<(HeadRow, Option<StoreError>)> {
    let mut head = head::read(tx)?;
    head.demand_fence(fence)?;
    head.demand_no_purge()?;
    let Some(mut tip) = head.row.tip else { return Ok((head.row, None)) };

    let (mut passed, mut seam) = (Vec::new(), None);
    for row in read_leases(tx)? {
        let lease = &row.lease;
        if lease.range.start() > tip.height.next() {
            break;
        }
        if lease.done_to > tip.height.next() {
            let (Some(last_id), Some(last_height)) = (lease.last_id, lease.done_to.prev()) else { break };
            if lease.range.start() == tip.height.next() && lease.first_parent != Some(tip.id) {
                seam = Some(row);
                break;
            }
            tip = BlockRef { height: last_height, id: last_id };
        }
        if lease.range.end() > tip.height.next() {
            break;
        }
        passed.push(lease.range.start());
    }
    demand_finality(head.row.finalized, |height| {
        if height <= tip.height { blocks::row_ref(tx, height) } else { Ok(None) }
    })?;

    for start in passed {
        tx.prepare_cached("DELETE FROM raw_leases WHERE from_height = ?1")
            .and_then(|mut statement| statement.execute([sql(start)]))
            .map_err(db)?;
    }
    head.row.tip = Some(tip);
    let seam = seam.map(|row| give_up(tx, &mut head, row, tip, now_ms)).transpose()?;
    head.write(tx)?;
    Ok((head.row, seam))
}

/// Gives up what was filled of a lease that doesn't link to the tip, so that it is fetched again. Its index entries go at once,
/// its rows afterwards, in bounded steps.
fn give_up(
    tx: &Connection,
    head: &mut Head,
    mut row: LeaseRow,
    tip: BlockRef,
    now_ms: u64,
) -> Result<StoreError> {
    let range = row.lease.range;
    let first_id = blocks::row_ref(tx, range.start())?.map(|first| first.id).unwrap_or_default();
    let error = StoreError::DoesNotLink {
        first: BlockRef { height: range.start(), id: first_id },
        parent_id: row.lease.first_parent.unwrap_or_default(),
        expected: tip,
    };
    let filled = HeightRange::new(range.start(), row.lease.done_to);
    index::cut(tx, filled)?;
    head.discard = Some(filled);
    row.lease.give_up(&error);
    row.give_back(head, now_ms);
    row.write(tx)?;
    Ok(error)
}
