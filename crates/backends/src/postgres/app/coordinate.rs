//! Leases and checkpoints.

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::rules::{self, Crossing};
use cairn_store::derived::{
    ClaimRequest, Coordinator, DerivedCheckpoint, Entered, LeaseEnd, LeaseGap, LeaseStatus, MAX_ATTEMPTS,
    MAX_ERROR_BYTES, RangeAgain, Repairs, WorkerLease,
};
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::fault::Fault;
use super::lease::{
    CHECKPOINT_COLUMNS, LEASE_COLUMNS, checkpoint_of, column, last_height, lease_of, leases_of,
};
use super::tx::{Gate, Tx};
use super::{PgDerived, Shared, int, int_of, presence, rebuilds};
use crate::postgres::copy::PgTimestamp;

type Faulty<T> = std::result::Result<T, Fault>;

/// How often a claim is tried while others take what it would have taken.
const MAX_CLAIMS: usize = 1_000;

/// The most expired leases that one claim reaps on its way.
const MAX_REAPED_BY_CLAIM: usize = 64;

/// How many leases of one service a checkpoint crosses in one transaction; the next call goes on.
const MAX_CROSSED: usize = 1_000;

pub(super) fn unknown_service(service: &str) -> StoreError {
    StoreError::Invalid(format!("service {service} is not registered"))
}

#[async_trait]
impl Coordinator for PgDerived {
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint> {
        self.shared.rerun(|| register(&self.shared, service, first).boxed()).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        // Somebody may insert the same range first; then it is asked again.
        for _ in 0..MAX_CLAIMS {
            match self.shared.rerun(|| claim(&self.shared, request).boxed()).await? {
                Claim::Lease(lease) => return Ok(Some(*lease)),
                Claim::Nothing => return Ok(None),
                Claim::Again => {}
            }
        }
        Err(StoreError::Busy(format!(
            "others were quicker {MAX_CLAIMS} times to claim a range of {}",
            request.service
        )))
    }

    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease> {
        let change = |tx: &Tx<'_>, lease: &mut WorkerLease| lease.expires_at_ms = tx.after(ttl_ms);
        self.shared.rerun(|| of_holder(&self.shared, "renew", lease, false, change).boxed()).await
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()> {
        let end = &end;
        let change = |tx: &Tx<'_>, lease: &mut WorkerLease| {
            lease.status = LeaseStatus::Failed;
            match end {
                LeaseEnd::Released => lease.next_try_at_ms = tx.now_ms,
                LeaseEnd::Transient { message, retry_in_ms } | LeaseEnd::Bad { message, retry_in_ms } => {
                    lease.next_try_at_ms = tx.after(*retry_in_ms);
                    lease.last_error = rules::shortened(message, MAX_ERROR_BYTES);
                    if matches!(end, LeaseEnd::Bad { .. }) {
                        lease.attempt = rules::attempt_after_bad_end(lease);
                    }
                }
            }
        };
        self.shared.rerun(|| of_holder(&self.shared, "end", lease, true, change).boxed()).await.map(drop)
    }

    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        let conn = self.shared.write.get().await?;
        let sql = format!("SELECT {LEASE_COLUMNS} FROM app.worker_leases WHERE id = $1");
        conn.query_opt(&sql, &[&int_of(id)]).await?.as_ref().map(lease_of).transpose()
    }

    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        self.shared.rerun(|| reap(&self.shared, limit).boxed()).await
    }

    async fn repair_checkpoints(&self) -> Result<Repairs> {
        // The gate stops every commit for a moment: it is taken only where there is something to do.
        const ANY: &str = "SELECT EXISTS (SELECT 1 FROM app.indexing_checkpoints c JOIN app.worker_leases l
             ON l.worker_type = c.service_name AND l.kind = 'index'
             AND l.from_height <= c.last_height + 1 AND l.done_to > c.last_height + 1)
             OR EXISTS (SELECT 1 FROM app.rebuilds r JOIN app.indexing_checkpoints c USING (service_name)
             WHERE NOT r.is_clearing AND c.last_height + 1 >= r.until_height)";
        let is_any: bool = {
            let conn = self.shared.write.get().await?;
            column(&conn.query_one(ANY, &[]).await?, 0)?
        };
        if !is_any {
            return Ok(Repairs::default());
        }
        self.shared.rerun(|| repair(&self.shared).boxed()).await
    }

    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>> {
        // What is derived ends where the lowest one has to begin, at the latest.
        const GAPS: &str = "SELECT worker_type, before_to, from_height FROM (
                 SELECT worker_type, from_height,
                        coalesce(lag(to_height) OVER (PARTITION BY worker_type ORDER BY from_height), last_height + 1) AS before_to
                 FROM app.worker_leases JOIN app.indexing_checkpoints ON service_name = worker_type WHERE kind = 'index') l
             WHERE from_height > before_to ORDER BY worker_type, from_height LIMIT $1";
        let conn = self.shared.write.get().await?;
        let rows = conn.query(GAPS, &[&int_of(limit as u64)]).await?;
        let gap = |row| {
            let (from, to): (i64, i64) = (column(row, 1)?, column(row, 2)?);
            let missing = HeightRange::new(Height(from.max(0) as u64), Height(to.max(0) as u64));
            Ok(LeaseGap { service: column::<&str>(row, 0)?.to_owned(), missing })
        };
        rows.iter().map(gap).collect()
    }

    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        let conn = self.shared.write.get().await?;
        let sql = format!(
            "SELECT {LEASE_COLUMNS} FROM app.worker_leases WHERE status = 'FAILED' AND attempt >= $1 ORDER BY id LIMIT $2"
        );
        leases_of(&conn.query(&sql, &[&i64::from(MAX_ATTEMPTS), &int_of(limit as u64)]).await?)
    }

    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        let change = |tx: &Tx<'_>, lease: &mut WorkerLease| {
            lease.attempt = 0;
            lease.next_try_at_ms = tx.now_ms;
        };
        self.shared
            .rerun(|| by_operator(&self.shared, "retry_lease", id, LeaseStatus::Failed, change).boxed())
            .await
    }

    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        let change = |tx: &Tx<'_>, lease: &mut WorkerLease| {
            lease.status = LeaseStatus::Failed;
            lease.next_try_at_ms = tx.now_ms;
        };
        self.shared
            .rerun(|| by_operator(&self.shared, "release_lease", id, LeaseStatus::Active, change).boxed())
            .await
    }

    async fn release_all(&self) -> Result<u64> {
        self.shared.rerun(|| release_all(&self.shared).boxed()).await
    }

    async fn enter(&self) -> Result<Entered> {
        presence::enter(self).await
    }

    async fn set_paused(&self, service: &str, paused: bool) -> Result<()> {
        self.shared.rerun(|| set_paused(&self.shared, service, paused).boxed()).await
    }

    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64> {
        self.shared.rerun(|| reindex(&self.shared, service, version, range, range_heights).boxed()).await
    }
}

async fn register(shared: &Shared, service: &str, first: Height) -> Faulty<DerivedCheckpoint> {
    let tx = shared.begin(Gate::Shared).await?;
    if let Some(known) = tx.checkpoint(service, false).await? {
        return Ok(known);
    }
    if rebuilds::find(&tx, service).await?.is_some_and(|rebuild| rebuild.is_clearing) {
        return Err(rules::still_clearing(service).into());
    }
    let new = DerivedCheckpoint {
        service: service.to_owned(),
        next: first,
        last_id: None,
        updated_at_ms: tx.now_ms,
        corrections: 0,
        paused: false,
    };
    let sql = format!(
        "INSERT INTO app.indexing_checkpoints ({CHECKPOINT_COLUMNS}) VALUES ($1, $2, NULL, $3, false, 0)
         ON CONFLICT DO NOTHING"
    );
    tx.execute(&sql, &[&service, &last_height(&new), &tx.now()]).await?;
    // Somebody else's, where they were quicker.
    let known = tx.checkpoint(service, false).await?.ok_or_else(|| unknown_service(service))?;
    tx.commit("register").await?;
    Ok(known)
}

enum Claim {
    Lease(Box<WorkerLease>),
    Nothing,
    Again,
}

async fn claim(shared: &Shared, request: &ClaimRequest) -> Faulty<Claim> {
    let tx = shared.begin(Gate::Shared).await?;
    let Some(checkpoint) = tx.checkpoint(&request.service, false).await? else {
        return Err(unknown_service(&request.service).into());
    };
    // Says what is wrong with the request, whatever there is to do.
    rules::next_range(None, request)?;
    if checkpoint.paused {
        return Ok(Claim::Nothing);
    }
    let due = format!(
        "SELECT {LEASE_COLUMNS} FROM app.worker_leases
         WHERE worker_type = $1 AND version <= $2 AND status <> 'COMPLETED'
           AND ((status = 'FAILED' AND attempt < $3 AND next_try_at <= $4)
             OR (status = 'ACTIVE' AND lease_expires_at <= $4))
         ORDER BY from_height, id LIMIT 1 FOR UPDATE SKIP LOCKED"
    );
    let mut reaped = 0;
    loop {
        let params: [crate::postgres::pool::Param<'_>; 4] =
            [&request.service, &i64::from(request.version), &i64::from(MAX_ATTEMPTS), &tx.now()];
        let Some(row) = tx.query_opt(&due, &params).await? else { break };
        let mut lease = lease_of(&row)?;
        if lease.status == LeaseStatus::Active {
            lease = rules::left_behind(lease, rules::RAN_OUT);
            lease.next_try_at_ms = tx.now_ms;
            lease.status = LeaseStatus::Failed;
        }
        lease.fence = tx.next_fence().await?;
        if lease.is_dead() {
            tx.write_lease(&lease).await?;
            reaped += 1;
            if reaped == MAX_REAPED_BY_CLAIM {
                tx.commit("claim").await?;
                return Ok(Claim::Again);
            }
            continue;
        }
        lease.status = LeaseStatus::Active;
        lease.owner.clone_from(&request.owner);
        lease.expires_at_ms = tx.after(request.ttl_ms);
        lease.claimed_done_to = lease.done_to;
        lease.claimed_to_wait = rules::is_to_wait(&lease, request);
        lease.version = request.version;
        tx.write_lease(&lease).await?;
        tx.commit("claim").await?;
        return Ok(Claim::Lease(Box::new(lease)));
    }
    let new = insert_next(&tx, request).await?;
    if reaped > 0 || matches!(new, Claim::Lease(_)) {
        tx.commit("claim").await?;
    }
    Ok(new)
}

/// The next range of kind `Index`.
async fn insert_next(tx: &Tx<'_>, request: &ClaimRequest) -> Faulty<Claim> {
    const OPEN: &str = "SELECT 1 FROM app.worker_leases
         WHERE worker_type = $1 AND kind = 'index' AND status <> 'COMPLETED' LIMIT 1";
    const ABOVE: &str = "SELECT to_height FROM app.worker_leases
         WHERE worker_type = $1 AND kind = 'index' ORDER BY from_height DESC LIMIT 1";
    let above: Option<i64> =
        tx.query_opt(ABOVE, &[&request.service]).await?.map(|row| column(&row, 0)).transpose()?;
    let Some(range) = rules::next_range(above.map(|above| Height(above.max(0) as u64)), request)? else {
        return Ok(Claim::Nothing);
    };
    if request.in_order && tx.query_opt(OPEN, &[&request.service]).await?.is_some() {
        return Ok(Claim::Nothing);
    }
    let insert = format!(
        "INSERT INTO app.worker_leases (worker_type, kind, from_height, to_height, status, leased_by, fence,
             lease_expires_at, next_try_at, attempt, done_to, claimed_done_to, version, last_error, created_at, updated_at)
         VALUES ($1, 'index', $2, $3, 'ACTIVE', $4, nextval('app.fences'), $5, $6, 0, $2, $2, $7, '', $6, $6)
         ON CONFLICT DO NOTHING RETURNING {LEASE_COLUMNS}"
    );
    let params: [crate::postgres::pool::Param<'_>; 7] = [
        &request.service,
        &int(range.start()),
        &int(range.end()),
        &request.owner,
        &PgTimestamp(tx.after(request.ttl_ms)),
        &tx.now(),
        &i64::from(request.version),
    ];
    match tx.query_opt(&insert, &params).await {
        Ok(Some(row)) => Ok(Claim::Lease(Box::new(lease_of(&row)?))),
        Ok(None) => Ok(Claim::Again),
        // The trigger that stands in for the constraint says it so.
        Err(fault) if fault.is_conflict() => Ok(Claim::Again),
        Err(fault) => Err(fault),
    }
}

/// Changes a lease that the caller holds.
async fn of_holder(
    shared: &Shared,
    verb: &'static str,
    held: &WorkerLease,
    new_fence: bool,
    change: impl Fn(&Tx<'_>, &mut WorkerLease) + Send + Sync,
) -> Faulty<WorkerLease> {
    let tx = shared.begin(Gate::Shared).await?;
    let current = tx.lock_lease(held.id).await?;
    let newest = if current.is_none() { tx.newest_fence().await? } else { held.fence };
    let mut lease = match rules::demand_holder(current.as_ref(), held, newest) {
        Ok(lease) => lease.clone(),
        Err(error) => {
            tx.undo().await;
            return Err(error.into());
        }
    };
    change(&tx, &mut lease);
    if new_fence {
        lease.fence = tx.next_fence().await?;
    }
    tx.write_lease(&lease).await?;
    tx.commit(verb).await?;
    Ok(lease)
}

/// Changes a lease that is in this state; one that is taken from its holder gets a new fence.
async fn by_operator(
    shared: &Shared,
    verb: &'static str,
    id: u64,
    status: LeaseStatus,
    change: impl Fn(&Tx<'_>, &mut WorkerLease) + Send + Sync,
) -> Faulty<Option<WorkerLease>> {
    let tx = shared.begin(Gate::Shared).await?;
    let Some(mut lease) = tx.lock_lease(id).await?.filter(|lease| lease.status == status) else {
        tx.undo().await;
        return Ok(None);
    };
    if let Err(error) = rules::demand_whole(&lease) {
        tx.undo().await;
        return Err(error.into());
    }
    change(&tx, &mut lease);
    if status == LeaseStatus::Active {
        lease.fence = tx.next_fence().await?;
    }
    tx.write_lease(&lease).await?;
    tx.commit(verb).await?;
    Ok(Some(lease))
}

/// What [`rules::left_behind`] does, up to how the lease was found.
const LEFT_BEHIND: &str =
    "attempt = attempt + CASE WHEN done_to > claimed_done_to OR claimed_to_wait THEN 0 ELSE 1 END,
     last_error = left(leased_by, 500) || ' ' ||";

async fn reap(shared: &Shared, limit: usize) -> Faulty<Vec<WorkerLease>> {
    let tx = shared.begin(Gate::Shared).await?;
    // By number, as all leases are locked; those that are being committed right now are left out (L06).
    let sql = format!(
        "WITH due AS (
             SELECT id AS due_id FROM app.worker_leases WHERE status = 'ACTIVE' AND lease_expires_at <= $1
             ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
         UPDATE app.worker_leases SET status = 'FAILED', fence = nextval('app.fences'), next_try_at = $1, updated_at = $1,
             {LEFT_BEHIND} '{RAN_OUT}'
         FROM due WHERE id = due_id RETURNING {LEASE_COLUMNS}",
        RAN_OUT = rules::RAN_OUT,
    );
    let mut reaped = leases_of(&tx.query(&sql, &[&tx.now(), &int_of(limit as u64)]).await?)?;
    reaped.sort_unstable_by_key(|lease| lease.id);
    tx.commit("reap").await?;
    Ok(reaped)
}

async fn release_all(shared: &Shared) -> Faulty<u64> {
    let release = format!(
        "UPDATE app.worker_leases SET status = 'FAILED', fence = nextval('app.fences'), next_try_at = $1,
         updated_at = $1, {LEFT_BEHIND} '{ENDED_WITH_IT}' WHERE status = 'ACTIVE'",
        ENDED_WITH_IT = rules::ENDED_WITH_IT,
    );
    let tx = shared.begin(Gate::Exclusive).await?;
    let released = tx.execute(&release, &[&tx.now()]).await?;
    tx.commit("release_all").await?;
    Ok(released)
}

async fn set_paused(shared: &Shared, service: &str, paused: bool) -> Faulty<()> {
    let tx = shared.begin(Gate::Shared).await?;
    let sql = "UPDATE app.indexing_checkpoints SET paused = $2 WHERE service_name = $1";
    if tx.execute(sql, &[&service, &paused]).await? == 0 {
        return Err(unknown_service(service).into());
    }
    tx.commit("set_paused").await
}

async fn repair(shared: &Shared) -> Faulty<Repairs> {
    let tx = shared.begin(Gate::Exclusive).await?;
    let mut repairs = Repairs::default();
    let sql = format!("SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints ORDER BY service_name");
    let checkpoints = tx.query(&sql, &[]).await?;
    let next = format!(
        "SELECT {LEASE_COLUMNS} FROM app.worker_leases
         WHERE worker_type = $1 AND kind = 'index' AND from_height <= $2 ORDER BY from_height DESC LIMIT 1"
    );
    for row in &checkpoints {
        let mut checkpoint = checkpoint_of(row)?;
        let start = checkpoint.next;
        for _ in 0..MAX_CROSSED {
            let found = tx.query_opt(&next, &[&checkpoint.service, &int(checkpoint.next)]).await?;
            let Some(lease) = found.as_ref().map(lease_of).transpose()? else { break };
            match rules::cross(&checkpoint, &lease) {
                Crossing::Stays => break,
                Crossing::Alarm(alarm) => {
                    repairs.alarms.push(alarm);
                    break;
                }
                Crossing::To { next, last_id } => {
                    checkpoint.next = next;
                    checkpoint.last_id = last_id;
                }
            }
        }
        if checkpoint.next > start {
            checkpoint.updated_at_ms = tx.now_ms;
            tx.write_checkpoint(&checkpoint).await?;
            repairs.moved.push(checkpoint);
        }
    }
    repairs.rebuilt = rebuilds::forget_done(&tx).await?;
    if !repairs.moved.is_empty() || !repairs.rebuilt.is_empty() {
        tx.commit("repair_checkpoints").await?;
    }
    Ok(repairs)
}

async fn reindex(
    shared: &Shared,
    service: &str,
    version: u32,
    range: HeightRange,
    range_heights: u64,
) -> Faulty<u64> {
    let tx = shared.begin(Gate::Shared).await?;
    let again = RangeAgain {
        service: service.to_owned(),
        version,
        range,
        range_heights,
        is_behind: false,
        corrects_state: false,
    };
    let made = insert_reindex(&tx, &again, range).await?;
    tx.commit("request_reindex").await?;
    Ok(made)
}

/// Makes `range` again, by a request for it or for more.
pub(super) async fn insert_reindex(tx: &Tx<'_>, again: &RangeAgain, range: HeightRange) -> Faulty<u64> {
    const OVERLAP: &str =
        "SELECT from_height, to_height FROM app.worker_leases WHERE worker_type = $1 AND kind = 'reindex'
         AND from_height < $3 AND to_height > $2 AND status <> 'COMPLETED' LIMIT 1";
    const DELETE: &str = "DELETE FROM app.worker_leases WHERE worker_type = $1 AND kind = 'reindex'
         AND from_height < $3 AND to_height > $2";
    const INSERT: &str = "INSERT INTO app.worker_leases (worker_type, kind, from_height, to_height, status, leased_by, fence,
             lease_expires_at, next_try_at, attempt, done_to, claimed_done_to, version, last_error, created_at, updated_at, corrects_state)
         SELECT $1, 'reindex', f, t, 'FAILED', '', nextval('app.fences'), $5, $5, 0, f, f, $4, '', $5, $5, $6
         FROM unnest($2::bigint[], $3::bigint[]) AS r(f, t)";
    let RangeAgain { service, version, range_heights, corrects_state, .. } = again;
    let (service, range_heights) = (service.as_str(), *range_heights);
    let invalid =
        |what: String| Fault::Store(StoreError::Invalid(format!("reindex of {service} on {range}: {what}")));
    if range.is_empty() || range_heights == 0 {
        return Err(invalid("the range is empty, or cut into ranges of no heights".into()));
    }
    // Locked, so that two requests for one range come one after the other.
    let Some(checkpoint) = tx.checkpoint(service, true).await? else {
        return Err(unknown_service(service).into());
    };
    if range.end() > checkpoint.next {
        return Err(invalid(format!("the checkpoint ends at height {}", checkpoint.next)));
    }
    let ends: [crate::postgres::pool::Param<'_>; 3] = [&service, &int(range.start()), &int(range.end())];
    if let Some(row) = tx.query_opt(OVERLAP, &ends).await? {
        let (from, to): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
        return Err(invalid(format!("[{from}, {to}) is being made again already")));
    }
    tx.execute(DELETE, &ends).await?;
    let (mut froms, mut tos) = (Vec::new(), Vec::new());
    let mut at = range.start();
    while at < range.end() {
        let end = rules::next_multiple(at, range_heights).min(range.end());
        froms.push(int(at));
        tos.push(int(end));
        at = end;
    }
    tx.execute(INSERT, &[&service, &froms, &tos, &i64::from(*version), &tx.now(), corrects_state]).await
}
