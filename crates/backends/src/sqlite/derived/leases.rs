//! Leases: their rows, and the verbs on them.

use async_trait::async_trait;
use cairn_core::{BlockId, Fence, Height, HeightRange};
use cairn_store::derived::rules::{self, Crossing};
use cairn_store::derived::{
    ClaimRequest, Coordinator, DerivedCheckpoint, LeaseEnd, LeaseFilter, LeaseGap, LeaseKind, LeaseStatus,
    MAX_ATTEMPTS, MAX_ERROR_BYTES, RangeAgain, Repairs, WorkerLease,
};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::{SqliteDerived, Write, checkpoints, db, number, rebuilds, sql};

const SELECT: &str = "SELECT id, worker_type, kind, from_height, to_height, status, leased_by, fence, lease_expires_at, \
     next_try_at, attempt, done_to, claimed_done_to, last_id, first_parent, version, last_error, claimed_to_wait, corrects_state FROM worker_leases";

fn read(row: &Row<'_>) -> rusqlite::Result<WorkerLease> {
    let unsigned = |at: usize| {
        let n: i64 = row.get(at)?;
        u64::try_from(n).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(at, n))
    };
    let id = |at: usize| row.get::<_, Option<[u8; 32]>>(at).map(|id| id.map(BlockId));
    let unknown = |at: usize, word: &str| {
        rusqlite::Error::InvalidColumnType(at, word.to_owned(), rusqlite::types::Type::Text)
    };
    let (kind, status): (String, String) = (row.get(2)?, row.get(5)?);
    Ok(WorkerLease {
        id: unsigned(0)?,
        service: row.get(1)?,
        kind: LeaseKind::parse(&kind).ok_or_else(|| unknown(2, &kind))?,
        range: HeightRange::new(Height(unsigned(3)?), Height(unsigned(4)?)),
        status: LeaseStatus::parse(&status).ok_or_else(|| unknown(5, &status))?,
        owner: row.get(6)?,
        fence: Fence(unsigned(7)?),
        expires_at_ms: unsigned(8)?,
        next_try_at_ms: unsigned(9)?,
        attempt: row.get(10)?,
        done_to: Height(unsigned(11)?),
        claimed_done_to: Height(unsigned(12)?),
        claimed_to_wait: row.get(17)?,
        last_id: id(13)?,
        first_parent: id(14)?,
        version: row.get(15)?,
        last_error: row.get(16)?,
        corrects_state: row.get(18)?,
    })
}

/// Leases by what follows `FROM worker_leases`.
fn select(conn: &Connection, rest: &str, bounds: impl Params) -> Result<Vec<WorkerLease>> {
    conn.prepare_cached(&format!("{SELECT} {rest}"))
        .and_then(|mut statement| statement.query_map(bounds, read)?.collect())
        .map_err(db)
}

fn select_one(conn: &Connection, rest: &str, bounds: impl Params) -> Result<Option<WorkerLease>> {
    conn.prepare_cached(&format!("{SELECT} {rest}"))
        .and_then(|mut statement| statement.query_row(bounds, read).optional())
        .map_err(db)
}

pub(super) fn find(conn: &Connection, id: u64) -> Result<Option<WorkerLease>> {
    select_one(conn, "WHERE id = ?1", [number(id)])
}

/// Every lease that ends above a height, by number.
pub(super) fn above(conn: &Connection, height: Height) -> Result<Vec<WorkerLease>> {
    select(conn, "WHERE to_height > ?1 ORDER BY id", [sql(height)])
}

pub(super) fn list(conn: &Connection, filter: &LeaseFilter) -> Result<Vec<WorkerLease>> {
    select(
        conn,
        "WHERE id > ?1 AND (?2 IS NULL OR worker_type = ?2) AND (?3 IS NULL OR status = ?3) \
         AND (?4 = 0 OR (status = 'FAILED' AND attempt >= ?5)) ORDER BY id LIMIT ?6",
        params![
            number(filter.after_id),
            filter.service,
            filter.status.map(LeaseStatus::as_str),
            filter.dead,
            MAX_ATTEMPTS,
            number(filter.limit as u64),
        ],
    )
}

/// Where the lowest of the service's unfinished leases of kind `Reindex` that reach above `from` stands, or `from` where that is higher.
pub(super) fn made_again_from(conn: &Connection, service: &str, from: Height) -> Result<Option<Height>> {
    let lease = select_one(
        conn,
        "WHERE worker_type = ?1 AND kind = 'reindex' AND status <> 'COMPLETED' AND to_height > ?2 \
         ORDER BY done_to LIMIT 1",
        params![service, number(from.get())],
    )?;
    Ok(lease.map(|lease| lease.done_to.max(from)))
}

/// Where the service's lowest lease of kind `Index` begins.
pub(super) fn lowest(conn: &Connection, service: &str) -> Result<Option<Height>> {
    let lease = select_one(
        conn,
        "WHERE worker_type = ?1 AND kind = 'index' ORDER BY from_height LIMIT 1",
        [service],
    )?;
    Ok(lease.map(|lease| lease.range.start()))
}

/// The service's lowest lease of kind `Index` that begins at or above a height.
pub(super) fn lowest_from(conn: &Connection, service: &str, from: Height) -> Result<Option<WorkerLease>> {
    select_one(
        conn,
        "WHERE worker_type = ?1 AND kind = 'index' AND from_height >= ?2 ORDER BY from_height LIMIT 1",
        params![service, sql(from)],
    )
}

/// The service's highest lease of kind `Index` that begins below a height.
pub(super) fn highest_below(conn: &Connection, service: &str, height: Height) -> Result<Option<WorkerLease>> {
    select_one(
        conn,
        "WHERE worker_type = ?1 AND kind = 'index' AND from_height < ?2 ORDER BY from_height DESC LIMIT 1",
        params![service, sql(height)],
    )
}

/// Writes a lease that has a number; everything but its service, kind and heights.
pub(super) fn update(conn: &Connection, lease: &WorkerLease) -> Result<()> {
    conn.prepare_cached(
        "UPDATE worker_leases SET status = ?2, leased_by = ?3, fence = ?4, lease_expires_at = ?5, next_try_at = ?6, \
         attempt = ?7, done_to = ?8, claimed_done_to = ?9, last_id = ?10, first_parent = ?11, version = ?12, \
         last_error = ?13, claimed_to_wait = ?14 WHERE id = ?1",
    )
    .and_then(|mut statement| {
        statement.execute(params![
            number(lease.id),
            lease.status.as_str(),
            lease.owner,
            number(lease.fence.0),
            number(lease.expires_at_ms),
            number(lease.next_try_at_ms),
            lease.attempt,
            sql(lease.done_to),
            sql(lease.claimed_done_to),
            lease.last_id.map(|id| id.0),
            lease.first_parent.map(|id| id.0),
            lease.version,
            lease.last_error,
            lease.claimed_to_wait,
        ])
    })
    .map_err(db)?;
    Ok(())
}

/// Inserts a lease that nobody holds yet, FAILED and due, under a new number. Its fence is still to be given.
fn insert(
    write: &Write<'_>,
    service: &str,
    kind: LeaseKind,
    range: HeightRange,
    version: u32,
    corrects_state: bool,
) -> Result<WorkerLease> {
    write
        .tx
        .prepare_cached(
            "INSERT INTO worker_leases (worker_type, kind, from_height, to_height, status, leased_by, fence, \
             lease_expires_at, next_try_at, attempt, done_to, claimed_done_to, version, last_error, corrects_state) \
             VALUES (?1, ?2, ?3, ?4, 'FAILED', '', 0, ?5, ?5, 0, ?3, ?3, ?6, '', ?7) \
             RETURNING id, worker_type, kind, from_height, to_height, status, leased_by, fence, lease_expires_at, \
             next_try_at, attempt, done_to, claimed_done_to, last_id, first_parent, version, last_error, claimed_to_wait, corrects_state",
        )
        .and_then(|mut statement| {
            let values = params![
                service,
                kind.as_str(),
                sql(range.start()),
                sql(range.end()),
                number(write.now_ms),
                version,
                corrects_state
            ];
            statement.query_row(values, read)
        })
        .map_err(db)
}

pub(super) fn delete(conn: &Connection, id: u64) -> Result<()> {
    conn.prepare_cached("DELETE FROM worker_leases WHERE id = ?1")
        .and_then(|mut statement| statement.execute([number(id)]))
        .map_err(db)?;
    Ok(())
}

/// The newest fence that was given.
pub(super) fn newest_fence(conn: &Connection) -> Result<Fence> {
    let fence: i64 = conn
        .prepare_cached("SELECT last_fence FROM counters")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(db)?;
    Ok(Fence(fence.unsigned_abs()))
}

fn next_fence(conn: &Connection) -> Result<Fence> {
    let fence: i64 = conn
        .prepare_cached("UPDATE counters SET last_fence = last_fence + 1 RETURNING last_fence")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(db)?;
    Ok(Fence(fence.unsigned_abs()))
}

/// Takes a lease from its holder: FAILED, under a new fence, due at `next_try_at_ms`.
pub(super) fn give_back(
    conn: &Connection,
    mut lease: WorkerLease,
    next_try_at_ms: u64,
) -> Result<WorkerLease> {
    lease.status = LeaseStatus::Failed;
    lease.fence = next_fence(conn)?;
    lease.next_try_at_ms = next_try_at_ms;
    update(conn, &lease)?;
    Ok(lease)
}

/// Takes a service's leases of kind `Index` from whoever holds them.
pub(super) fn release_index(conn: &Connection, service: &str, now_ms: u64) -> Result<()> {
    let held = select(
        conn,
        "WHERE worker_type = ?1 AND kind = 'index' AND status = 'ACTIVE' ORDER BY id",
        [service],
    )?;
    held.into_iter().try_for_each(|lease| give_back(conn, lease, now_ms).map(drop))
}

/// The checkpoint of a service; an error where it isn't registered.
pub(super) fn registered(conn: &Connection, service: &str) -> Result<DerivedCheckpoint> {
    checkpoints::find(conn, service)?
        .ok_or_else(|| StoreError::Invalid(format!("service {service} is not registered; register it first")))
}

impl Write<'_> {
    fn demand_holder(&self, held: &WorkerLease) -> Result<WorkerLease> {
        let current = find(self.tx, held.id)?;
        rules::demand_holder(current.as_ref(), held, newest_fence(self.tx)?).cloned()
    }

    fn reap(&self, lease: WorkerLease) -> Result<WorkerLease> {
        give_back(self.tx, rules::left_behind(lease, rules::RAN_OUT), self.now_ms)
    }

    fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let service = &request.service;
        let is_paused = registered(self.tx, service)?.paused;
        let above = select_one(
            self.tx,
            "WHERE worker_type = ?1 AND kind = 'index' ORDER BY from_height DESC LIMIT 1",
            [service],
        )?
        .map(|lease| lease.range.end());
        let fresh = rules::next_range(above, request)?;
        if is_paused {
            return Ok(None);
        }
        while let Some(lowest) = self.lowest_due(request)? {
            let lease = if lowest.status == LeaseStatus::Active { self.reap(lowest)? } else { lowest };
            if !lease.is_dead() {
                return self.hand_out(lease, request).map(Some);
            }
        }
        let Some(range) = fresh else { return Ok(None) };
        if request.in_order && self.is_behind(service)? {
            return Ok(None);
        }
        let lease = insert(self, service, LeaseKind::Index, range, request.version, false)?;
        self.hand_out(lease, request).map(Some)
    }

    /// The lowest lease that may be taken over: FAILED and due, or expired.
    fn lowest_due(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let (service, version, now_ms) = (&request.service, request.version, number(self.now_ms));
        let failed = select_one(
            self.tx,
            "INDEXED BY worker_leases_failed WHERE worker_type = ?1 AND status = 'FAILED' AND version <= ?2 \
             AND next_try_at <= ?3 AND attempt < ?4 ORDER BY from_height, id LIMIT 1",
            params![service, version, now_ms, MAX_ATTEMPTS],
        )?;
        let expired = select_one(
            self.tx,
            "INDEXED BY worker_leases_active WHERE worker_type = ?1 AND status = 'ACTIVE' AND version <= ?2 \
             AND lease_expires_at <= ?3 ORDER BY from_height, id LIMIT 1",
            params![service, version, now_ms],
        )?;
        Ok(failed.into_iter().chain(expired).min_by_key(|lease| (lease.range.start(), lease.id)))
    }

    /// Whether a lease of kind `Index` is not complete.
    fn is_behind(&self, service: &str) -> Result<bool> {
        self.tx
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM worker_leases INDEXED BY worker_leases_active \
                                WHERE worker_type = ?1 AND kind = 'index' AND status = 'ACTIVE') \
                     OR EXISTS (SELECT 1 FROM worker_leases INDEXED BY worker_leases_failed \
                                WHERE worker_type = ?1 AND kind = 'index' AND status = 'FAILED')",
            )
            .and_then(|mut statement| statement.query_row([service], |row| row.get(0)))
            .map_err(db)
    }

    /// Makes a lease its new holder's, under a new fence.
    fn hand_out(&self, lease: WorkerLease, request: &ClaimRequest) -> Result<WorkerLease> {
        let lease = WorkerLease {
            status: LeaseStatus::Active,
            owner: request.owner.clone(),
            fence: next_fence(self.tx)?,
            expires_at_ms: self.now_ms.saturating_add(request.ttl_ms),
            claimed_done_to: lease.done_to,
            claimed_to_wait: rules::is_to_wait(&lease, request),
            version: request.version,
            ..lease
        };
        update(self.tx, &lease)?;
        Ok(lease)
    }

    fn repair(&self, checkpoint: &DerivedCheckpoint, repairs: &mut Repairs) -> Result<()> {
        let mut after = checkpoint.clone();
        loop {
            // Leases don't overlap: no other one can reach beyond the checkpoint.
            let lease = select_one(
                self.tx,
                "WHERE worker_type = ?1 AND kind = 'index' AND from_height <= ?2 ORDER BY from_height DESC LIMIT 1",
                params![after.service, sql(after.next)],
            )?;
            match lease.map(|lease| rules::cross(&after, &lease)) {
                None | Some(Crossing::Stays) => break,
                Some(Crossing::To { next, last_id }) => {
                    after = DerivedCheckpoint { next, last_id, updated_at_ms: self.now_ms, ..after };
                }
                Some(Crossing::Alarm(alarm)) => {
                    repairs.alarms.push(alarm);
                    break;
                }
            }
        }
        if after.next != checkpoint.next {
            checkpoints::write(self.tx, &after)?;
            repairs.moved.push(after);
        }
        Ok(())
    }

    /// Makes `range` again, by a request for it or for more.
    pub(super) fn request_reindex(&self, again: &RangeAgain, range: HeightRange) -> Result<u64> {
        let RangeAgain { service, version, range_heights, corrects_state, .. } = again;
        let range_heights = *range_heights;
        let invalid = |what: String| StoreError::Invalid(format!("reindex of {service} on {range}: {what}"));
        let checkpoint = registered(self.tx, service)?;
        if range.is_empty() || range_heights == 0 {
            return Err(invalid(
                "there is nothing in the range, or in the ranges that it is cut into".into(),
            ));
        }
        if range.end() > checkpoint.next {
            return Err(invalid(format!("the checkpoint ends at height {}", checkpoint.next)));
        }
        let in_the_way = select(
            self.tx,
            "WHERE worker_type = ?1 AND kind = 'reindex' AND from_height < ?3 AND to_height > ?2 ORDER BY id",
            params![service, sql(range.start()), sql(range.end())],
        )?;
        if let Some(lease) = in_the_way.iter().find(|lease| lease.status != LeaseStatus::Completed) {
            return Err(invalid(format!("lease {} on {} is not done", lease.id, lease.range)));
        }
        in_the_way.iter().try_for_each(|lease| delete(self.tx, lease.id))?;
        let (mut at, mut count) = (range.start(), 0);
        while at < range.end() {
            let end = rules::next_multiple(at, range_heights).min(range.end());
            let piece = HeightRange::new(at, end);
            let mut lease = insert(self, service, LeaseKind::Reindex, piece, *version, *corrects_state)?;
            lease.fence = next_fence(self.tx)?;
            update(self.tx, &lease)?;
            (at, count) = (end, count + 1);
        }
        Ok(count)
    }
}

#[async_trait]
impl Coordinator for SqliteDerived {
    async fn register(&self, service: &str, first: Height) -> Result<DerivedCheckpoint> {
        let service = service.to_owned();
        self.write("register", move |write| {
            if let Some(checkpoint) = checkpoints::find(write.tx, &service)? {
                return Ok(checkpoint);
            }
            if rebuilds::clearing(write.tx, &service)?.is_some() {
                return Err(rules::still_clearing(&service));
            }
            let checkpoint = DerivedCheckpoint {
                service,
                next: first,
                last_id: None,
                updated_at_ms: write.now_ms,
                paused: false,
                corrections: 0,
            };
            checkpoints::write(write.tx, &checkpoint)?;
            Ok(checkpoint)
        })
        .await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Option<WorkerLease>> {
        let request = request.clone();
        self.write("claim", move |write| write.claim(&request)).await
    }

    async fn renew(&self, lease: &WorkerLease, ttl_ms: u64) -> Result<WorkerLease> {
        let held = lease.clone();
        self.write("renew", move |write| {
            let mut lease = write.demand_holder(&held)?;
            lease.expires_at_ms = write.now_ms.saturating_add(ttl_ms);
            update(write.tx, &lease)?;
            Ok(lease)
        })
        .await
    }

    async fn end(&self, lease: &WorkerLease, end: LeaseEnd) -> Result<()> {
        let held = lease.clone();
        self.write("end", move |write| {
            let mut lease = write.demand_holder(&held)?;
            let pause_ms = match end {
                LeaseEnd::Released => 0,
                LeaseEnd::Transient { message, retry_in_ms } => {
                    lease.last_error = rules::shortened(&message, MAX_ERROR_BYTES);
                    retry_in_ms
                }
                LeaseEnd::Bad { message, retry_in_ms } => {
                    lease.last_error = rules::shortened(&message, MAX_ERROR_BYTES);
                    lease.attempt = rules::attempt_after_bad_end(&lease);
                    retry_in_ms
                }
            };
            give_back(write.tx, lease, write.now_ms.saturating_add(pause_ms)).map(|_| ())
        })
        .await
    }

    async fn lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.read(move |conn| find(conn, id)).await
    }

    async fn reap(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        self.write("reap", move |write| {
            let expired = select(
                write.tx,
                "INDEXED BY worker_leases_active WHERE status = 'ACTIVE' AND lease_expires_at <= ?1 ORDER BY id LIMIT ?2",
                [number(write.now_ms), number(limit as u64)],
            )?;
            expired.into_iter().map(|lease| write.reap(lease)).collect()
        })
        .await
    }

    async fn repair_checkpoints(&self) -> Result<Repairs> {
        self.write("repair_checkpoints", |write| {
            let mut repairs = Repairs::default();
            for checkpoint in checkpoints::all(write.tx)? {
                write.repair(&checkpoint, &mut repairs)?;
            }
            repairs.rebuilt = rebuilds::forget_done(write.tx)?;
            Ok(repairs)
        })
        .await
    }

    async fn lease_gaps(&self, limit: usize) -> Result<Vec<LeaseGap>> {
        self.read(move |conn| {
            // What is derived ends where the lowest one has to begin, at the latest.
            conn.prepare_cached(
                "SELECT worker_type, below, from_height FROM ( \
                     SELECT worker_type, from_height, \
                         coalesce(LAG(to_height) OVER (PARTITION BY worker_type ORDER BY from_height), last_height + 1) AS below \
                     FROM worker_leases JOIN indexing_checkpoints ON service_name = worker_type WHERE kind = 'index') \
                 WHERE below < from_height ORDER BY worker_type, from_height LIMIT ?1",
            )
            .and_then(|mut statement| {
                let gap = |row: &Row<'_>| {
                    let (from, to): (i64, i64) = (row.get(1)?, row.get(2)?);
                    let missing = HeightRange::new(Height(from.unsigned_abs()), Height(to.unsigned_abs()));
                    Ok(LeaseGap { service: row.get(0)?, missing })
                };
                statement.query_map([number(limit as u64)], gap)?.collect()
            })
            .map_err(db)
        })
        .await
    }

    async fn dead_leases(&self, limit: usize) -> Result<Vec<WorkerLease>> {
        let filter = LeaseFilter { dead: true, limit, ..LeaseFilter::default() };
        self.read(move |conn| list(conn, &filter)).await
    }

    async fn retry_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.write("retry_lease", move |write| {
            let lease = find(write.tx, id)?.filter(|lease| lease.status == LeaseStatus::Failed);
            let Some(lease) = lease else { return Ok(None) };
            rules::demand_whole(&lease)?;
            let lease = WorkerLease { attempt: 0, next_try_at_ms: write.now_ms, ..lease };
            update(write.tx, &lease)?;
            Ok(Some(lease))
        })
        .await
    }

    async fn release_lease(&self, id: u64) -> Result<Option<WorkerLease>> {
        self.write("release_lease", move |write| {
            let lease = find(write.tx, id)?.filter(|lease| lease.status == LeaseStatus::Active);
            lease.map(|lease| give_back(write.tx, lease, write.now_ms)).transpose()
        })
        .await
    }

    async fn release_all(&self) -> Result<u64> {
        self.write("release_all", |write| {
            let held =
                select(write.tx, "INDEXED BY worker_leases_active WHERE status = 'ACTIVE' ORDER BY id", [])?;
            let count = held.len() as u64;
            for lease in held {
                give_back(write.tx, rules::left_behind(lease, rules::ENDED_WITH_IT), write.now_ms)?;
            }
            Ok(count)
        })
        .await
    }

    async fn set_paused(&self, service: &str, paused: bool) -> Result<()> {
        let service = service.to_owned();
        self.write("set_paused", move |write| {
            let checkpoint = DerivedCheckpoint { paused, ..registered(write.tx, &service)? };
            checkpoints::write(write.tx, &checkpoint)
        })
        .await
    }

    async fn request_reindex(
        &self,
        service: &str,
        version: u32,
        range: HeightRange,
        range_heights: u64,
    ) -> Result<u64> {
        let service = service.to_owned();
        self.write("request_reindex", move |write| {
            let (is_behind, corrects_state) = (false, false);
            let again = RangeAgain { service, version, range, range_heights, is_behind, corrects_state };
            write.request_reindex(&again, range)
        })
        .await
    }
}
