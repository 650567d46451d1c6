//! Which objects there are, and which of them are referred to: rows in the raw database.

use std::fmt;

use async_trait::async_trait;

use crate::{PayloadHash, PayloadRef, Result};

/// The state of an object's row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadState {
    /// Rows refer to it, or did when somebody last looked; its object was uploaded and verified.
    Live,
    /// Nothing refers to it: reserved and not yet committed, or no longer needed. Its object may or may not be there, and stays as it is.
    Dead,
    /// Its object is being deleted, or already is. Never revived.
    Deleting,
}

impl PayloadState {
    /// As in the column `state`.
    pub const fn as_str(self) -> &'static str {
        match self {
            PayloadState::Live => "live",
            PayloadState::Dead => "dead",
            PayloadState::Deleting => "deleting",
        }
    }
}

impl fmt::Display for PayloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A body that wants an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadContent {
    /// Its hash.
    pub hash: PayloadHash,
    /// Its length, in bytes.
    pub size_bytes: u64,
}

/// An object for a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// The object.
    pub object: PayloadRef,
    /// It is live: uploaded and verified by whoever made it so. Else it has to be put.
    pub live: bool,
}

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRow {
    /// The object.
    pub object: PayloadRef,
    /// Its state.
    pub state: PayloadState,
    /// Its length, in bytes.
    pub size_bytes: u64,
}

/// Where a walk over the rows stands: the last object looked at, in the order of (hash, generation).
pub type PayloadCursor = Option<PayloadRef>;

/// What one step of [`PayloadRegistry::mark_dead`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkedDead {
    /// How many rows became dead.
    pub dead: u64,
    /// Where to go on; `None` at the end.
    pub next: PayloadCursor,
}

/// Part of the live rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePage {
    /// In the order of (hash, generation).
    pub rows: Vec<PayloadRow>,
    /// Where to go on; `None` at the end.
    pub next: PayloadCursor,
}

/// The rows of objects, in the database that holds the rows which refer to them.
///
/// Each verb is one transaction, and repeating it after a lost answer is harmless. Ages are judged by the database's clock. Lists and inputs
/// are bounded by the callers. Rows are locked in the order of (hash, generation), so that neither verbs nor data transactions deadlock.
///
/// # On PostgreSQL
///
/// ```sql
/// CREATE SEQUENCE raw.payload_generation;
/// CREATE TABLE raw.payloads (
///   hash       bytea       NOT NULL CHECK (octet_length(hash) = 32),
///   generation bigint      NOT NULL CHECK (generation > 0),
///   state      text        NOT NULL CHECK (state IN ('live', 'dead', 'deleting')),
///   size_bytes bigint      NOT NULL CHECK (size_bytes >= 0),
///   changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
///   PRIMARY KEY (hash, generation)
/// );
/// -- At most one object of a content can be used; older ones may still be on their way out.
/// CREATE UNIQUE INDEX payloads_usable ON raw.payloads (hash) WHERE state <> 'deleting';
/// CREATE INDEX payloads_not_live ON raw.payloads (changed_at) WHERE state <> 'live';
/// -- And on every table that refers to payloads, orphan tables included:
/// CREATE INDEX ON raw.events (payload_ref) WHERE payload_ref IS NOT NULL;
/// ```
///
/// All transactions run at READ COMMITTED. `changed_at` is always `clock_timestamp()`, since `now()` is when the transaction began.
///
/// **Making live** is no verb here, since it is the first statement of the writer's own data transaction:
///
/// ```sql
/// WITH wanted AS MATERIALIZED (
///   SELECT p.hash, p.generation FROM raw.payloads p
///   JOIN unnest($1::bytea[], $2::bigint[]) AS w (hash, generation) USING (hash, generation)
///   WHERE p.state <> 'deleting' ORDER BY p.hash, p.generation FOR UPDATE OF p)
/// UPDATE raw.payloads p SET state = 'live', changed_at = clock_timestamp()
/// FROM wanted w WHERE (p.hash, p.generation) = (w.hash, w.generation) AND p.state <> 'deleting'
/// RETURNING p.hash, p.generation
/// ```
///
/// Every object of the transaction is named, those that were live already too: the lock is what keeps the collector off until the commit. Where it
/// returns fewer rows than objects were named, the transaction is rolled back, and the writer offloads the batch again.
#[async_trait]
pub trait PayloadRegistry: Send + Sync {
    /// An object for each content, in the order given; contents are distinct. One that is live or dead is used, and a dead one's grace begins
    /// anew; else a new row, dead, under the next generation.
    ///
    /// ```sql
    /// INSERT INTO raw.payloads (hash, generation, state, size_bytes)
    /// SELECT hash, nextval('raw.payload_generation'), 'dead', size_bytes
    /// FROM unnest($1::bytea[], $2::bigint[]) AS c (hash, size_bytes) ORDER BY hash
    /// ON CONFLICT (hash) WHERE state <> 'deleting' DO UPDATE SET changed_at = clock_timestamp()
    /// RETURNING hash, generation, state, size_bytes
    /// ```
    ///
    /// A row of another length than the content's is [`crate::StoreError::Corrupt`]. A violation of the primary key (an adopted object had that generation) is tried
    /// again by the implementation, and takes another number.
    async fn reserve(&self, contents: &[PayloadContent]) -> Result<Vec<Reservation>>;

    /// Of at most `limit` live rows after `after` that haven't changed for `grace_ms`, makes those dead that nothing refers to. Rows that
    /// somebody has locked are passed over. References count whose transaction committed before the row was locked, so these are two statements of one
    /// transaction: the second one's snapshot is newer than the locks.
    ///
    /// ```sql
    /// SELECT hash, generation FROM raw.payloads
    /// WHERE state = 'live' AND changed_at <= clock_timestamp() - $1 * interval '1 ms' AND (hash, generation) > ($2, $3)
    /// ORDER BY hash, generation LIMIT $4 FOR UPDATE SKIP LOCKED;
    ///
    /// UPDATE raw.payloads p SET state = 'dead', changed_at = clock_timestamp()
    /// FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS w (hash, generation, key)
    /// WHERE (p.hash, p.generation) = (w.hash, w.generation)
    ///   AND NOT EXISTS (SELECT FROM raw.events e WHERE e.payload_ref = w.key) AND NOT EXISTS (…the other tables…)
    /// ```
    async fn mark_dead(&self, grace_ms: u64, after: PayloadCursor, limit: usize) -> Result<MarkedDead>;

    /// Moves at most `limit` rows that have been dead for `grace_ms` to deleting, and returns them as they are now. As a second line, looks for
    /// references once more, under the lock and in a statement of its own as above: a row that something refers to (a partition that was away is
    /// back) becomes live instead. Rows that somebody has locked are passed over; nothing returned means that nothing was to be done.
    ///
    /// ```sql
    /// SELECT hash, generation FROM raw.payloads WHERE state = 'dead' AND changed_at <= clock_timestamp() - $1 * interval '1 ms'
    /// ORDER BY hash, generation LIMIT $2 FOR UPDATE SKIP LOCKED;
    ///
    /// UPDATE raw.payloads p SET changed_at = clock_timestamp(),
    ///   state = CASE WHEN EXISTS (SELECT FROM raw.events e WHERE e.payload_ref = w.key) OR … THEN 'live' ELSE 'deleting' END
    /// FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS w (hash, generation, key) WHERE (p.hash, p.generation) = (w.hash, w.generation)
    /// RETURNING p.hash, p.generation, p.state, p.size_bytes
    /// ```
    async fn begin_delete(&self, grace_ms: u64, limit: usize) -> Result<Vec<PayloadRow>>;

    /// At most `limit` rows that are deleting, after `after`, in the order of (hash, generation): what a collector that died has left.
    async fn deleting(&self, after: PayloadCursor, limit: usize) -> Result<Vec<PayloadRow>>;

    /// Removes rows whose objects were deleted. Only rows that are deleting are removed; the others are left.
    async fn finish_delete(&self, objects: &[PayloadRef]) -> Result<()>;

    /// Takes over objects that a listing found, with their lengths in bytes: those that have no row get one that is deleting, and are returned.
    /// Their generations are never given out afterwards (a database restored from a backup may know less than the object store).
    ///
    /// ```sql
    /// SELECT pg_advisory_xact_lock(…);  -- two adopters must not set the counter back
    /// INSERT INTO raw.payloads (hash, generation, state, size_bytes)
    /// SELECT hash, generation, 'deleting', size_bytes FROM unnest($1::bytea[], $2::bigint[], $3::bigint[])
    ///   AS o (hash, generation, size_bytes) ORDER BY hash, generation
    /// ON CONFLICT DO NOTHING RETURNING hash, generation;
    ///
    /// SELECT setval('raw.payload_generation', $1) FROM raw.payload_generation WHERE last_value < $1  -- the highest one returned
    /// ```
    async fn adopt(&self, objects: &[(PayloadRef, u64)]) -> Result<Vec<PayloadRef>>;

    /// At most `limit` live rows after `after`, in the order of (hash, generation).
    async fn live(&self, after: PayloadCursor, limit: usize) -> Result<LivePage>;
}
