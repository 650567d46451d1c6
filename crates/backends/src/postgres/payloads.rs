//! Which payloads there are in object storage: `raw.payloads`, see [`PayloadRegistry`] for the protocol.
//!
//! Each verb is one READ COMMITTED transaction. What refers to payloads is asked of every column of the schema `raw` that is named `payload_ref` or ends in
//! `_payload_ref`, taken from the catalogue at each step: orphan tables, later ones, and partitions that are detached count too.

use async_trait::async_trait;
use cairn_store::{
    LivePage, MarkedDead, PayloadContent, PayloadCursor, PayloadHash, PayloadRef, PayloadRegistry,
    PayloadRow, PayloadState, Reservation, Result,
};
use tokio_postgres::Row;

use super::error::{Failure, corrupt};
use super::pool::{Isolation, PgConn, PgPool};

/// How often a verb is run again that lost against another transaction.
const MAX_AGAIN: u32 = 8;

/// The registry in the raw database.
#[derive(Debug, Clone)]
pub struct PgPayloadRegistry {
    pool: PgPool,
}

impl PgPayloadRegistry {
    /// Over a pool of the raw database, whose schema is there.
    pub fn new(pool: PgPool) -> Self {
        PgPayloadRegistry { pool }
    }

    /// At most `limit` rows after `after`, of one state or of all, in the order of (hash, generation), for people.
    pub async fn rows(
        &self,
        state: Option<PayloadState>,
        after: PayloadCursor,
        limit: usize,
    ) -> Result<Vec<PayloadRow>> {
        let (after_hash, after_generation) = after_columns(&after);
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation, state, size_bytes FROM raw.payloads \
                 WHERE ($1::text IS NULL OR state = $1) AND (hash, generation) > ($2::bytea, $3::bigint) \
                 ORDER BY hash, generation LIMIT $4::bigint",
                &[&state.map(|state| state.as_str()), &after_hash, &after_generation, &limit_of(limit)],
            )
            .await?;
        rows.iter().map(payload_row).collect()
    }

    /// How many objects there are of each state, and how many bytes they hold.
    pub async fn totals(&self) -> Result<Vec<(PayloadState, u64, u64)>> {
        let conn = self.pool.get().await?;
        let mut totals = Vec::new();
        for state in [PayloadState::Live, PayloadState::Dead, PayloadState::Deleting] {
            let row = conn
                .query_one(
                    "SELECT count(*), coalesce(sum(size_bytes), 0)::bigint FROM raw.payloads WHERE state = $1",
                    &[&state.as_str()],
                )
                .await?;
            totals.push((state, number(&row, 0)?, number(&row, 1)?));
        }
        Ok(totals)
    }

    /// What a collection that began now would change, without changing it: rows after `after`, at most about `limit` looked at, in order, and where
    /// to go on. A live row in the answer would become dead, a dead or deleting one would be deleted.
    pub async fn preview(
        &self,
        grace_ms: u64,
        after: PayloadCursor,
        limit: usize,
    ) -> Result<(Vec<PayloadRow>, PayloadCursor)> {
        let (after_hash, after_generation) = after_columns(&after);
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation, state, size_bytes FROM raw.payloads \
                 WHERE (state = 'deleting' OR changed_at <= clock_timestamp() - $1::float8 * interval '1 ms') \
                   AND (hash, generation) > ($2::bytea, $3::bigint) ORDER BY hash, generation LIMIT $4::bigint",
                &[&ms(grace_ms), &after_hash, &after_generation, &limit_of(limit)],
            )
            .await?;
        let mut rows = rows.iter().map(payload_row).collect::<Result<Vec<_>>>()?;
        let next = if rows.len() < limit { None } else { rows.last().map(|row| row.object) };
        let objects: Vec<PayloadRef> = rows.iter().map(|row| row.object).collect();
        let referred = is_referred_to(&conn).await?;
        let needed = conn
            .query(
                &format!("SELECT w.key FROM unnest($1::text[]) AS w (key) WHERE {referred}"),
                &[&keys(&objects)],
            )
            .await?;
        let needed = needed.iter().map(|row| get::<&str>(row, 0)).collect::<Result<Vec<_>>>()?;
        rows.retain(|row| {
            row.state == PayloadState::Deleting || !needed.contains(&row.object.key().as_str())
        });
        Ok((rows, next))
    }

    /// Those of `objects` that have no row.
    pub async fn unknown(&self, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>> {
        let (hashes, generations) = columns(objects);
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation FROM unnest($1::bytea[], $2::bigint[]) AS o (hash, generation) \
                 WHERE NOT EXISTS (SELECT FROM raw.payloads p WHERE (p.hash, p.generation) = (o.hash, o.generation)) \
                 ORDER BY hash, generation",
                &[&hashes, &generations],
            )
            .await?;
        rows.iter().map(object).collect()
    }

    /// Whether a verb that failed with `error` is to be run again at once.
    fn again(conn: &PgConn, tries: &mut u32) -> bool {
        *tries += 1;
        // A generation that an adopted object has already: the next try takes another one.
        *tries < MAX_AGAIN && matches!(conn.failure(), Some(Failure::Again | Failure::Unique(_)))
    }
}

/// Makes objects live in a data transaction, and answers those that are lost: then the transaction has to be rolled back.
pub async fn make_live(conn: &PgConn, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>> {
    let mut objects = objects.to_vec();
    objects.sort_unstable();
    objects.dedup();
    let (hashes, generations) = columns(&objects);
    let rows = conn
        .query(
            "WITH wanted AS MATERIALIZED ( \
               SELECT p.hash, p.generation FROM raw.payloads p \
               JOIN unnest($1::bytea[], $2::bigint[]) AS w (hash, generation) USING (hash, generation) \
               WHERE p.state <> 'deleting' ORDER BY p.hash, p.generation FOR UPDATE OF p) \
             UPDATE raw.payloads p SET state = 'live', changed_at = clock_timestamp() \
             FROM wanted w WHERE (p.hash, p.generation) = (w.hash, w.generation) AND p.state <> 'deleting' \
             RETURNING p.hash, p.generation",
            &[&hashes, &generations],
        )
        .await?;
    let live = rows.iter().map(object).collect::<Result<Vec<_>>>()?;
    objects.retain(|object| !live.contains(object));
    Ok(objects)
}

fn columns(objects: &[PayloadRef]) -> (Vec<&[u8]>, Vec<i64>) {
    objects.iter().map(|object| (&object.hash.as_bytes()[..], to_i64(object.generation))).unzip()
}

/// Lengths and generations are far below the limit; what isn't stays what no row has.
fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn ms(grace_ms: u64) -> f64 {
    grace_ms as f64
}

fn object(row: &Row) -> Result<PayloadRef> {
    let hash: &[u8] = get(row, 0)?;
    let hash = hash.try_into().map_err(|_| corrupt("raw.payloads", "a hash that hasn't 32 bytes"))?;
    Ok(PayloadRef { hash: PayloadHash(hash), generation: number(row, 1)? })
}

/// A row of `hash, generation, state, size_bytes`.
fn payload_row(row: &Row) -> Result<PayloadRow> {
    let object = object(row)?;
    let state: &str = get(row, 2)?;
    let state = [PayloadState::Live, PayloadState::Dead, PayloadState::Deleting]
        .into_iter()
        .find(|known| known.as_str() == state)
        .ok_or_else(|| corrupt(format!("raw.payloads, {object}"), format!("the unknown state {state:?}")))?;
    Ok(PayloadRow { object, state, size_bytes: number(row, 3)? })
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(super::error::db)
}

fn number(row: &Row, column: usize) -> Result<u64> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| corrupt("raw.payloads", "a negative number"))
}

/// The place after which a walk goes on, as parameters: before everything at its beginning.
fn after_columns(after: &PayloadCursor) -> (&[u8], i64) {
    after.as_ref().map_or((&[][..], 0), |after| (&after.hash.as_bytes()[..], to_i64(after.generation)))
}

/// `EXISTS (…) OR EXISTS (…)` over every column that refers to payloads, for an object whose key is `w.key`.
async fn is_referred_to(conn: &PgConn) -> Result<String> {
    let tables = conn
        .query(
            "SELECT quote_ident(c.relname), quote_ident(a.attname) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = 'raw' AND a.attname ~ '(^|_)payload_ref$' AND NOT a.attisdropped \
               AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1, 2",
            &[],
        )
        .await?;
    if tables.is_empty() {
        return Err(corrupt(
            "the schema raw",
            "no table refers to payloads, so every payload would be garbage",
        ));
    }
    let mut parts = Vec::with_capacity(tables.len());
    for row in &tables {
        let (table, column): (&str, &str) = (get(row, 0)?, get(row, 1)?);
        parts.push(format!("EXISTS (SELECT FROM raw.{table} r WHERE r.{column} = w.key)"));
    }
    Ok(parts.join(" OR "))
}

fn keys(objects: &[PayloadRef]) -> Vec<String> {
    objects.iter().map(PayloadRef::key).collect()
}

fn limit_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[async_trait]
impl PayloadRegistry for PgPayloadRegistry {
    async fn reserve(&self, contents: &[PayloadContent]) -> Result<Vec<Reservation>> {
        let hashes: Vec<&[u8]> = contents.iter().map(|content| &content.hash.as_bytes()[..]).collect();
        let sizes: Vec<i64> = contents.iter().map(|content| to_i64(content.size_bytes)).collect();
        let mut tries = 0;
        let rows = loop {
            let conn = self.pool.get().await?;
            let rows = conn
                .query(
                    "INSERT INTO raw.payloads AS p (hash, generation, state, size_bytes) \
                     SELECT hash, nextval('raw.payload_generation'), 'dead', size_bytes \
                     FROM (SELECT * FROM unnest($1::bytea[], $2::bigint[]) AS c (hash, size_bytes) ORDER BY hash) c \
                     ON CONFLICT (hash) WHERE state <> 'deleting' DO UPDATE SET changed_at = clock_timestamp() \
                     RETURNING p.hash, p.generation, p.state, p.size_bytes",
                    &[&hashes, &sizes],
                )
                .await;
            match rows {
                Err(_) if Self::again(&conn, &mut tries) => {}
                rows => break rows?,
            }
        };
        let mut reserved = Vec::with_capacity(rows.len());
        for row in &rows {
            reserved.push(payload_row(row)?);
        }
        reserved.sort_unstable_by_key(|row| row.object);
        let reservation = |content: &PayloadContent| {
            let found = reserved.binary_search_by_key(&content.hash, |row| row.object.hash);
            let row = found.ok().and_then(|at| reserved.get(at)).ok_or_else(|| {
                corrupt("raw.payloads", format!("no row for content {} after its insertion", content.hash))
            })?;
            if row.size_bytes != content.size_bytes {
                let what =
                    format!("it states {} bytes, the content has {}", row.size_bytes, content.size_bytes);
                return Err(corrupt(format!("raw.payloads, {}", row.object), what));
            }
            Ok(Reservation { object: row.object, live: row.state == PayloadState::Live })
        };
        contents.iter().map(reservation).collect()
    }

    async fn mark_dead(&self, grace_ms: u64, after: PayloadCursor, limit: usize) -> Result<MarkedDead> {
        let (after_hash, after_generation) = after_columns(&after);
        let mut conn = self.pool.begin(Isolation::ReadCommitted).await?;
        let rows = conn
            .query(
                "SELECT hash, generation FROM raw.payloads WHERE state = 'live' \
                   AND changed_at <= clock_timestamp() - $1::float8 * interval '1 ms' \
                   AND (hash, generation) > ($2::bytea, $3::bigint) \
                 ORDER BY hash, generation LIMIT $4::bigint FOR UPDATE SKIP LOCKED",
                &[&ms(grace_ms), &after_hash, &after_generation, &limit_of(limit)],
            )
            .await?;
        let objects = rows.iter().map(object).collect::<Result<Vec<_>>>()?;
        let next = if objects.len() < limit { None } else { objects.last().copied() };
        // A statement of its own: its snapshot is newer than the locks.
        let (hashes, generations) = columns(&objects);
        let referred = is_referred_to(&conn).await?;
        let dead = conn
            .execute(
                &format!(
                    "UPDATE raw.payloads p SET state = 'dead', changed_at = clock_timestamp() \
                     FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS w (hash, generation, key) \
                     WHERE (p.hash, p.generation) = (w.hash, w.generation) AND NOT ({referred})"
                ),
                &[&hashes, &generations, &keys(&objects)],
            )
            .await?;
        conn.commit().await?;
        Ok(MarkedDead { dead, next })
    }

    async fn begin_delete(&self, grace_ms: u64, limit: usize) -> Result<Vec<PayloadRow>> {
        let mut conn = self.pool.begin(Isolation::ReadCommitted).await?;
        let rows = conn
            .query(
                "SELECT hash, generation FROM raw.payloads WHERE state = 'dead' \
                   AND changed_at <= clock_timestamp() - $1::float8 * interval '1 ms' \
                 ORDER BY hash, generation LIMIT $2::bigint FOR UPDATE SKIP LOCKED",
                &[&ms(grace_ms), &limit_of(limit)],
            )
            .await?;
        let objects = rows.iter().map(object).collect::<Result<Vec<_>>>()?;
        let (hashes, generations) = columns(&objects);
        let referred = is_referred_to(&conn).await?;
        let rows = conn
            .query(
                &format!(
                    "UPDATE raw.payloads p SET changed_at = clock_timestamp(), \
                       state = CASE WHEN {referred} THEN 'live' ELSE 'deleting' END \
                     FROM unnest($1::bytea[], $2::bigint[], $3::text[]) AS w (hash, generation, key) \
                     WHERE (p.hash, p.generation) = (w.hash, w.generation) \
                     RETURNING p.hash, p.generation, p.state, p.size_bytes"
                ),
                &[&hashes, &generations, &keys(&objects)],
            )
            .await?;
        let changed = rows.iter().map(payload_row).collect::<Result<Vec<_>>>()?;
        conn.commit().await?;
        Ok(changed)
    }

    async fn deleting(&self, after: PayloadCursor, limit: usize) -> Result<Vec<PayloadRow>> {
        let (after_hash, after_generation) = after_columns(&after);
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation, state, size_bytes FROM raw.payloads WHERE state = 'deleting' \
                   AND (hash, generation) > ($1::bytea, $2::bigint) ORDER BY hash, generation LIMIT $3::bigint",
                &[&after_hash, &after_generation, &limit_of(limit)],
            )
            .await?;
        rows.iter().map(payload_row).collect()
    }

    async fn finish_delete(&self, objects: &[PayloadRef]) -> Result<()> {
        let mut objects = objects.to_vec();
        objects.sort_unstable();
        let (hashes, generations) = columns(&objects);
        let mut tries = 0;
        loop {
            let conn = self.pool.get().await?;
            let done = conn
                .execute(
                    "DELETE FROM raw.payloads p USING unnest($1::bytea[], $2::bigint[]) AS w (hash, generation) \
                     WHERE (p.hash, p.generation) = (w.hash, w.generation) AND p.state = 'deleting'",
                    &[&hashes, &generations],
                )
                .await;
            match done {
                Err(_) if Self::again(&conn, &mut tries) => {}
                done => return done.map(|_| ()),
            }
        }
    }

    async fn adopt(&self, objects: &[(PayloadRef, u64)]) -> Result<Vec<PayloadRef>> {
        // What no row can have isn't ours.
        let mut objects: Vec<(PayloadRef, u64)> = objects
            .iter()
            .filter(|(object, _)| i64::try_from(object.generation).is_ok_and(|number| number < i64::MAX))
            .copied()
            .collect();
        objects.sort_unstable();
        let (names, sizes): (Vec<PayloadRef>, Vec<i64>) =
            objects.iter().map(|(object, size_bytes)| (*object, to_i64(*size_bytes))).unzip();
        let (hashes, generations) = columns(&names);
        let mut conn = self.pool.begin(Isolation::ReadCommitted).await?;
        // Two adopters must not set the counter back.
        conn.lock_until_end("cairn payload adoption").await?;
        let rows = conn
            .query(
                "INSERT INTO raw.payloads (hash, generation, state, size_bytes) \
                 SELECT hash, generation, 'deleting', size_bytes \
                 FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) AS o (hash, generation, size_bytes) \
                 ON CONFLICT DO NOTHING RETURNING hash, generation",
                &[&hashes, &generations, &sizes],
            )
            .await?;
        let adopted = rows.iter().map(object).collect::<Result<Vec<_>>>()?;
        if let Some(highest) = adopted.iter().map(|object| to_i64(object.generation)).max() {
            conn.query(
                "SELECT setval('raw.payload_generation', $1::bigint) FROM raw.payload_generation WHERE last_value < $1::bigint",
                &[&highest],
            )
            .await?;
        }
        conn.commit().await?;
        Ok(adopted)
    }

    async fn live(&self, after: PayloadCursor, limit: usize) -> Result<LivePage> {
        let (after_hash, after_generation) = after_columns(&after);
        let conn = self.pool.get().await?;
        let rows = conn
            .query(
                "SELECT hash, generation, state, size_bytes FROM raw.payloads WHERE state = 'live' \
                   AND (hash, generation) > ($1::bytea, $2::bigint) ORDER BY hash, generation LIMIT $3::bigint",
                &[&after_hash, &after_generation, &limit_of(limit)],
            )
            .await?;
        let rows = rows.iter().map(payload_row).collect::<Result<Vec<_>>>()?;
        let next = if rows.len() < limit { None } else { rows.last().map(|row| row.object) };
        Ok(LivePage { rows, next })
    }
}
