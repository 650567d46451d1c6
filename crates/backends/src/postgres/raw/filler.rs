//! Filling ahead of the head, under leases, from any number of processes.
//!
//! Claims, releases and the advance lock the head, since they take fences from its counter. A renewal and a fill lock their lease alone; a fill proves
//! its right by the lease's fence: whoever gives a lease a new fence, or deletes it, waits for a fill that is being committed, and later ones
//! find that they are fenced off. A claim gets no lease while rows of one that was given up are left, so a fill never meets such rows.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockRef, Fence, Height, HeightRange, RawBlock};
use cairn_store::derived::MAX_ATTEMPTS;
use cairn_store::{HeadRow, RangeEnd, RawFiller, RawLease, RawLeaseState, Result, StoreError, is_held_up};
use tokio_postgres::Row;

use super::head::{self, Head, get_height, get_id_opt, get_u32, get_u64, sql};
use super::rows::EncodedBatch;
use super::tx::{FILL, Tx};
use super::writer::{MAX_OFFLOADS, demand_finality, is_object_lost, make_live};
use super::{PgRawStore, Shared, blocking, read, runs, stale};
use crate::postgres::PgConn;
use crate::postgres::error::{corrupt, db};

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

    async fn write(&self, tx: &Tx) -> Result<()> {
        let lease = &self.lease;
        tx.execute(
            "INSERT INTO raw.leases (from_height, to_height, status, leased_by, fence, lease_expires_at_ms, attempt, \
             done_to, claimed_at_height, last_id, first_parent, last_error) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) \
             ON CONFLICT (from_height) DO UPDATE SET to_height = $2, status = $3, leased_by = $4, fence = $5, \
             lease_expires_at_ms = $6, attempt = $7, done_to = $8, claimed_at_height = $9, last_id = $10, \
             first_parent = $11, last_error = $12",
            &[
                &sql(lease.range.start()),
                &sql(lease.range.end()),
                &status(lease.state),
                &lease.owner,
                &(lease.fence.0 as i64),
                // A time to live without end is an end of time that sorts.
                &i64::try_from(lease.expires_at_ms).unwrap_or(i64::MAX),
                &i64::from(lease.attempt),
                &sql(lease.done_to),
                &sql(self.claimed_at),
                &lease.last_id.map(|id| id.0.to_vec()),
                &lease.first_parent.map(|id| id.0.to_vec()),
                &lease.last_error,
            ],
        )
        .await
        .map(drop)
    }
}

const fn status(state: RawLeaseState) -> &'static str {
    match state {
        RawLeaseState::Active => "ACTIVE",
        RawLeaseState::Completed => "COMPLETED",
        RawLeaseState::Failed => "FAILED",
    }
}

fn lease_row(row: &Row) -> Result<LeaseRow> {
    let word: &str = row.try_get(2).map_err(db)?;
    let states = [RawLeaseState::Active, RawLeaseState::Completed, RawLeaseState::Failed];
    let state = states.into_iter().find(|state| status(*state) == word);
    let lease = RawLease {
        range: HeightRange::new(get_height(row, 0)?, get_height(row, 1)?),
        state: state.ok_or_else(|| corrupt("raw.leases, column status", format!("{word} is unknown")))?,
        owner: row.try_get(3).map_err(db)?,
        fence: Fence(get_u64(row, 4)?),
        expires_at_ms: get_u64(row, 5)?,
        attempt: get_u32(row, 6)?,
        done_to: get_height(row, 7)?,
        last_id: get_id_opt(row, 9)?,
        first_parent: get_id_opt(row, 10)?,
        last_error: row.try_get(11).map_err(db)?,
    };
    Ok(LeaseRow { lease, claimed_at: get_height(row, 8)? })
}

macro_rules! select_leases {
    ($more:literal) => {
        concat!(
            "SELECT from_height, to_height, status, leased_by, fence, lease_expires_at_ms, attempt, done_to, ",
            "claimed_at_height, last_id, first_parent, last_error FROM raw.leases",
            $more
        )
    };
}

/// Every lease, by first height: those that the head has not passed, so never many.
pub(super) async fn read_leases(conn: &PgConn) -> Result<Vec<LeaseRow>> {
    let rows = conn.query(select_leases!(" ORDER BY from_height"), &[]).await?;
    rows.iter().map(lease_row).collect()
}

/// The lease that begins at `start`, locked.
async fn lock_lease(tx: &Tx, start: Height) -> Result<Option<LeaseRow>> {
    let row = tx.query_opt(select_leases!(" WHERE from_height = $1 FOR UPDATE"), &[&sql(start)]).await?;
    row.map(|row| lease_row(&row)).transpose()
}

#[async_trait]
impl RawFiller for PgRawStore {
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
        let (shared, owner) = (self.shared.clone(), owner.to_owned());
        self.shared
            .commit_clean("claim_range", |tx| {
                let (shared, owner) = (shared.clone(), owner.clone());
                let claim = Claim { owner, ttl_ms, range_heights, stop_exclusive };
                Box::pin(async move { claim.run(&shared, tx).await })
            })
            .await
    }

    async fn fill(&self, lease: &RawLease, blocks: Vec<RawBlock>, ttl_ms: u64) -> Result<RawLease> {
        let shared = &self.shared;
        shared.demand_writable()?;
        let held = Arc::new(lease.clone());
        let conn = shared.pool.get().await?;
        let found = read_leases(&conn).await?.into_iter().find(|row| row.lease.range == held.range);
        demand_fence(head::read(&conn).await?.last_fence, &held, found)?;
        drop(conn);
        let encoding = shared.clone();
        let encoded = blocking(move || EncodedBatch::new(blocks, &encoding)).await?;
        let heights = encoded.heights();
        // What reaches outside is refused below, and must not make a partition for a height far away.
        if heights.intersect(lease.range) == heights {
            shared.partitions.ensure(&shared.pool, heights).await?;
        }
        shared.store_scripts(&encoded).await?;
        let mut batch = Arc::new(encoded);
        for tries in 1.. {
            batch = shared.upload(batch).await?;
            let filled = shared
                .commit(FILL, |tx| {
                    let (shared, held, batch) = (shared.clone(), held.clone(), batch.clone());
                    Box::pin(async move { fill(&shared, tx, &held, &batch, ttl_ms).await })
                })
                .await;
            match filled {
                Err(error) if is_object_lost(&error) && tries < MAX_OFFLOADS => {}
                filled => return filled,
            }
        }
        Err(StoreError::Busy("the batch's payloads were collected again and again".into()))
    }

    async fn renew_range(&self, lease: &RawLease, ttl_ms: u64) -> Result<RawLease> {
        let (shared, held) = (self.shared.clone(), Arc::new(lease.clone()));
        self.shared
            .commit("renew_range", |tx| {
                let (shared, held) = (shared.clone(), held.clone());
                Box::pin(async move {
                    let found = lock_lease(tx, held.range.start()).await?;
                    let last_fence = head::read(tx.conn()).await?.last_fence;
                    let mut row = demand_fence(last_fence, &held, found)?;
                    if row.lease.state == RawLeaseState::Active {
                        row.lease.expires_at_ms = shared.now_ms(tx.conn()).await?.saturating_add(ttl_ms);
                        row.write(tx).await?;
                    }
                    Ok(row.lease)
                })
            })
            .await
    }

    async fn release(&self, lease: &RawLease, end: RangeEnd) -> Result<()> {
        let (shared, held) = (self.shared.clone(), Arc::new(lease.clone()));
        self.shared
            .commit("release", |tx| {
                let (shared, held, end) = (shared.clone(), held.clone(), end.clone());
                Box::pin(async move {
                    let mut head = head::lock(tx).await?;
                    let found = lock_lease(tx, held.range.start()).await?;
                    let mut row = demand_fence(head.last_fence, &held, found)?;
                    if row.lease.state == RawLeaseState::Completed {
                        return Ok(());
                    }
                    let has_moved = row.has_moved();
                    row.lease.end(end, has_moved);
                    let now_ms = shared.now_ms(tx.conn()).await?;
                    row.give_back(&mut head, now_ms);
                    row.write(tx).await?;
                    head.write(tx).await
                })
            })
            .await
    }

    async fn retry_range(&self, start: Height) -> Result<Option<RawLease>> {
        self.shared
            .commit("retry_range", |tx| {
                Box::pin(async move {
                    let found = lock_lease(tx, start).await?;
                    let Some(mut row) = found.filter(|row| row.lease.state == RawLeaseState::Failed) else {
                        return Ok(None);
                    };
                    row.lease.attempt = 0;
                    row.write(tx).await?;
                    Ok(Some(row.lease))
                })
            })
            .await
    }

    async fn release_range(&self, start: Height) -> Result<Option<RawLease>> {
        let shared = self.shared.clone();
        self.shared
            .commit("release_range", |tx| {
                let shared = shared.clone();
                Box::pin(async move {
                    let mut head = head::lock(tx).await?;
                    let found = lock_lease(tx, start).await?;
                    let Some(mut row) = found.filter(|row| row.lease.state == RawLeaseState::Active) else {
                        return Ok(None);
                    };
                    let now_ms = shared.now_ms(tx.conn()).await?;
                    row.give_back(&mut head, now_ms);
                    row.write(tx).await?;
                    head.write(tx).await?;
                    Ok(Some(row.lease))
                })
            })
            .await
    }

    async fn advance(&self, fence: Fence) -> Result<HeadRow> {
        let shared = self.shared.clone();
        // A broken seam is an answer and a commit at once: the head moved below it, and the range above was given up.
        let (head, seam) = self
            .shared
            .commit_clean("advance", |tx| {
                let shared = shared.clone();
                Box::pin(async move { advance(&shared, tx, fence).await })
            })
            .await?;
        match seam {
            None => Ok(head),
            Some(error) => {
                self.shared.finish_discard().await?;
                Err(error)
            }
        }
    }
}

/// What is to be claimed.
struct Claim {
    owner: String,
    ttl_ms: u64,
    range_heights: u64,
    stop_exclusive: Height,
}

impl Claim {
    async fn run(self, shared: &Shared, tx: &Tx) -> Result<Option<Option<RawLease>>> {
        let mut head = head::lock(tx).await?;
        if head.discard.is_some() {
            return Ok(None);
        }
        let now_ms = shared.now_ms(tx.conn()).await?;
        let leases = read_leases(tx.conn()).await?;
        let held_up = is_held_up(leases.iter().map(|row| &row.lease));
        let new_range = self.new_range(&head, leases.last()).filter(|_| !held_up);
        let reclaimed = self.to_reclaim(tx, &mut head, leases, now_ms).await?;
        let Some(mut row) = reclaimed.or_else(|| new_range.map(LeaseRow::fresh)) else {
            head.write(tx).await?;
            return Ok(Some(None));
        };
        row.lease.state = RawLeaseState::Active;
        row.lease.owner = self.owner;
        row.lease.fence = head.next_fence();
        row.lease.expires_at_ms = now_ms.saturating_add(self.ttl_ms);
        row.claimed_at = row.lease.done_to;
        row.write(tx).await?;
        head.write(tx).await?;
        Ok(Some(Some(row.lease)))
    }

    /// The lowest lease that failed or expired and isn't dead. An expired one that has not moved counts one attempt more, and may be dead by that. A fill that
    /// was being committed renews its lease: it is looked at once more under its lock. One that failed is free at once: whoever failed pauses (docs/adr/0002).
    async fn to_reclaim(
        &self,
        tx: &Tx,
        head: &mut Head,
        leases: Vec<LeaseRow>,
        now_ms: u64,
    ) -> Result<Option<LeaseRow>> {
        let is_free = |row: &LeaseRow| match row.lease.state {
            RawLeaseState::Failed => !row.lease.is_dead(),
            RawLeaseState::Active => row.lease.expires_at_ms <= now_ms,
            RawLeaseState::Completed => false,
        };
        let below = leases.into_iter().take_while(|row| row.lease.range.start() < self.stop_exclusive);
        for row in below.filter(is_free) {
            let Some(mut row) = lock_lease(tx, row.lease.range.start()).await?.filter(is_free) else {
                continue;
            };
            if row.lease.state == RawLeaseState::Active && !row.has_moved() {
                row.lease.expire();
                if row.lease.attempt >= MAX_ATTEMPTS {
                    row.give_back(head, now_ms);
                    row.write(tx).await?;
                    continue;
                }
            }
            return Ok(Some(row));
        }
        Ok(None)
    }

    /// The heights of a new lease, above the tip and every other lease.
    fn new_range(&self, head: &Head, last: Option<&LeaseRow>) -> Option<HeightRange> {
        let (Some(tip), None) = (head.row.tip, head.row.pending_purge) else {
            return None;
        };
        let above_leases = last.map_or(Height::ZERO, |row| row.lease.range.end());
        let start = tip.height.next().max(above_leases);
        let multiple = (start.get() / self.range_heights + 1).saturating_mul(self.range_heights);
        let end = Height(multiple).min(self.stop_exclusive);
        Some(HeightRange::new(start, end)).filter(|range| !range.is_empty())
    }
}

/// The lease under this fence: law 5.
fn demand_fence(last_fence: u64, held: &RawLease, found: Option<LeaseRow>) -> Result<LeaseRow> {
    match found {
        Some(row) if row.lease.range == held.range && row.lease.fence == held.fence => Ok(row),
        row => Err(StoreError::Fenced {
            what: format!("the raw lease {}", held.range),
            held: held.fence,
            current: row.map_or(Fence(last_fence), |row| row.lease.fence),
        }),
    }
}

async fn fill(
    shared: &Shared,
    tx: &Tx,
    held: &RawLease,
    batch: &Arc<EncodedBatch>,
    ttl_ms: u64,
) -> Result<RawLease> {
    if tx.was_refused_by_lookup() {
        // Lookups are taken away under it, and it comes before the lease.
        head::lock(tx).await?;
    }
    let found = lock_lease(tx, held.range.start()).await?;
    // The head as it was committed last.
    let head = head::read(tx.conn()).await?;
    let mut row = demand_fence(head.last_fence, held, found)?;
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
        read::demand_no_conflict(shared, tx.conn(), batch).await?;
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
    let stored = read::demand_no_conflict(shared, tx.conn(), batch).await?;
    let finalized = head.row.finalized;
    demand_finality(finalized, finalized.and_then(|finalized| batch.at(finalized.height)))?;

    lease.first_parent = lease.first_parent.or(Some(first.parent_id));
    lease.done_to = last.height.next();
    lease.last_id = Some(last.id);
    lease.attempt = 0;
    lease.last_error.clear();
    lease.expires_at_ms = shared.now_ms(tx.conn()).await?.saturating_add(ttl_ms);
    if lease.done_to == lease.range.end() {
        lease.state = RawLeaseState::Completed;
    }
    make_live(tx, batch).await?;
    stale::make_way(tx, batch).await?;
    batch.write(tx, &stored).await?;
    row.write(tx).await?;
    Ok(row.lease)
}

async fn advance(shared: &Shared, tx: &Tx, fence: Fence) -> Result<Option<(HeadRow, Option<StoreError>)>> {
    let mut head = head::lock(tx).await?;
    head.demand_fence(fence)?;
    head.demand_no_purge()?;
    if head.discard.is_some() {
        return Ok(None);
    }
    let Some(mut tip) = head.row.tip else { return Ok(Some((head.row, None))) };

    // As they were committed last. A fill that goes on only moves its lease further on.
    let (mut passed, mut seam) = (Vec::new(), None);
    for row in read_leases(tx.conn()).await? {
        let lease = &row.lease;
        if lease.range.start() > tip.height.next() {
            break;
        }
        if lease.done_to > tip.height.next() {
            let (Some(last_id), Some(last_height)) = (lease.last_id, lease.done_to.prev()) else { break };
            if lease.range.start() == tip.height.next() && lease.first_parent != Some(tip.id) {
                seam = Some(lease.range.start());
                break;
            }
            tip = BlockRef { height: last_height, id: last_id };
        }
        if lease.range.end() > tip.height.next() {
            break;
        }
        passed.push(sql(lease.range.start()));
    }
    if let Some(finalized) = head.row.finalized.filter(|finalized| finalized.height <= tip.height) {
        demand_finality(Some(finalized), read::row_ref(tx.conn(), finalized.height).await?)?;
    }

    if !passed.is_empty() {
        tx.execute("DELETE FROM raw.leases WHERE from_height = ANY($1)", &[&passed]).await?;
    }
    head.row.tip = Some(tip);
    let seam = match seam {
        Some(start) => give_up(shared, tx, &mut head, start, tip).await?,
        None => None,
    };
    head.write(tx).await?;
    Ok(Some((head.row, seam)))
}

/// Gives up what was filled of a lease that doesn't link to the tip, so that it is fetched again. Its index entries go at once,
/// its rows afterwards, in bounded steps.
async fn give_up(
    shared: &Shared,
    tx: &Tx,
    head: &mut Head,
    start: Height,
    tip: BlockRef,
) -> Result<Option<StoreError>> {
    // Waits for a fill that is being committed, whose rows are then given up too; its holder is fenced off afterwards.
    let Some(mut row) = lock_lease(tx, start).await? else { return Ok(None) };
    let range = row.lease.range;
    let first_id = read::row_ref(tx.conn(), range.start()).await?.map(|first| first.id).unwrap_or_default();
    let error = StoreError::DoesNotLink {
        first: BlockRef { height: range.start(), id: first_id },
        parent_id: row.lease.first_parent.unwrap_or_default(),
        expected: tip,
    };
    let filled = HeightRange::new(range.start(), row.lease.done_to);
    runs::cut(tx, filled).await?;
    head.discard = Some(filled);
    row.lease.give_up(&error);
    let now_ms = shared.now_ms(tx.conn()).await?;
    row.give_back(head, now_ms);
    row.write(tx).await?;
    Ok(Some(error))
}
