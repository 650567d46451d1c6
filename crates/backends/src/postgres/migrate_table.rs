//! A table made anew in place, with its rows: into partitions, into partitions of another size, or by another definition.
//!
//! 1. **Rename**: the table, its partitions and their indexes get names that end in `_old`, and the new table is made: one transaction. Of a name that
//!    would be too long then, the end is a hash of it.
//! 2. **Copy**: rows go over in the order of the key, so many in a transaction that also notes how far it has come.
//! 3. **Compare**: counts and order-independent checksums of the columns that both have. A difference is an error, and nothing is dropped.
//! 4. **Drop** the old one.
//!
//! `SCHEMA.table_moves` has a row from the first step to the last. A move that was killed anywhere goes on where it stood; while there is such a row,
//! the schema is refused by whoever opens it ([`super::migrate`]). Nobody else may be connected: rows that are
//! written meanwhile would be in the one table and not in the other, so a step refuses to run beside other connections of cairn's.

use std::time::Duration;

use cairn_core::Height;
use cairn_store::{Result, StoreError};
use futures::future::BoxFuture;
use sha2::{Digest, Sha256};

use super::error::db;
use super::pool::{Isolation, PgConn, PgPool};

/// The name by which pools of a migration are known to the server; every other name that begins with `cairn` is in its way.
pub const APPLICATION_NAME: &str = "cairn migrate";

/// How often it is looked whether others are connected, and the pause between two looks.
const ALONE_TRIES: u32 = 20;
const ALONE_PAUSE: Duration = Duration::from_millis(100);

/// PostgreSQL cuts longer names off.
const MAX_NAME_BYTES: usize = 63;

/// Makes sure that the partition for a height is there.
pub type EnsurePartition = Box<dyn Fn(Height) -> BoxFuture<'static, Result<()>> + Send + Sync>;

/// Makes the new table in the transaction that has renamed the old one.
pub type Create = Box<dyn for<'c> Fn(&'c PgConn) -> BoxFuture<'c, Result<()>> + Send + Sync>;

/// What becomes of a table. Names are our own plain identifiers.
pub struct TableMove {
    /// The schema.
    pub schema: &'static str,
    /// The table.
    pub table: String,
    /// The primary key's columns in order, the same in both.
    pub key: Vec<String>,
    /// Makes the new table.
    pub create: Create,
    /// How many heights a partition has, of which the first column of the key is one, and who makes it; `None` for a table without.
    pub partitions: Option<(u64, EnsurePartition)>,
    /// Rows in one transaction.
    pub batch_rows: u64,
}

/// What a step has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// The old table has another name, and the new one is there and empty. Columns that only the old one has, which are left behind, are named.
    Renamed {
        /// They.
        left_behind: Vec<String>,
    },
    /// So many rows have been copied in all.
    Copied(u64),
    /// Every row is over.
    CopiedAll(u64),
    /// Both hold the same: so many rows.
    Same(u64),
    /// The old table is gone: the move is finished.
    Dropped,
}

/// The tables whose move was begun and not finished.
pub async fn unfinished(conn: &PgConn, schema: &'static str) -> Result<Vec<String>> {
    let moves = format!("{schema}.table_moves");
    let there = conn.query_one("SELECT to_regclass($1) IS NOT NULL", &[&moves]).await?;
    if !there.try_get::<_, bool>(0).map_err(db)? {
        return Ok(Vec::new());
    }
    let rows = conn.query(&format!("SELECT table_name FROM {moves} ORDER BY 1"), &[]).await?;
    rows.iter().map(|row| row.try_get(0).map_err(db)).collect()
}

/// How far a move is.
struct State {
    state: String,
    after: Option<Vec<String>>,
    copied: i64,
}

/// Refuses while other programs of ours are connected. The server notices a moment late that a process has ended.
pub(super) async fn demand_alone(conn: &PgConn) -> Result<()> {
    let mut others = 0_i64;
    for _ in 0..ALONE_TRIES {
        // A transaction sees the same activity until it asks for it anew.
        conn.batch("SELECT pg_stat_clear_snapshot()").await?;
        let row = conn
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                 AND application_name LIKE 'cairn %' AND application_name <> $1",
                &[&APPLICATION_NAME],
            )
            .await?;
        others = row.try_get(0).map_err(db)?;
        if others == 0 {
            return Ok(());
        }
        tokio::time::sleep(ALONE_PAUSE).await;
    }
    Err(StoreError::Invalid(format!(
        "{others} connections of running cairns are in this database: stop them all, a table is made anew only while nobody writes"
    )))
}

impl TableMove {
    /// Does the next step, and says what it was.
    pub async fn step(&self, pool: &PgPool) -> Result<Moved> {
        let mut conn = pool.begin(Isolation::ReadCommitted).await?;
        demand_alone(&conn).await?;
        match self.state(&conn).await? {
            None => {
                let left_behind = self.rename(&conn).await?;
                conn.commit().await?;
                Ok(Moved::Renamed { left_behind })
            }
            Some(state) if state.state == "copy" => {
                conn.rollback().await?;
                self.copy(conn, pool, state).await
            }
            Some(state) if state.state == "compare" => {
                let rows = self.compare(&conn).await?;
                self.set(&conn, "state = 'drop'").await?;
                conn.commit().await?;
                Ok(Moved::Same(rows))
            }
            Some(_) => {
                conn.batch(&format!("DROP TABLE {}", self.old())).await?;
                let delete = format!("DELETE FROM {}.table_moves WHERE table_name = $1", self.schema);
                conn.execute(&delete, &[&self.table]).await?;
                conn.commit().await?;
                Ok(Moved::Dropped)
            }
        }
    }

    fn new_name(&self) -> String {
        format!("{}.\"{}\"", self.schema, self.table)
    }

    fn old(&self) -> String {
        format!("{}.\"{}_old\"", self.schema, self.table)
    }

    async fn state(&self, conn: &PgConn) -> Result<Option<State>> {
        conn.lock_until_end(&format!("cairn.migrate.{}", self.schema)).await?;
        conn.batch(&format!(
            "SET LOCAL statement_timeout = 0; CREATE TABLE IF NOT EXISTS {}.table_moves (
               table_name TEXT PRIMARY KEY,
               state TEXT NOT NULL CHECK (state IN ('copy', 'compare', 'drop')),
               -- The key of the last row that was copied, as text.
               after_key TEXT[],
               copied BIGINT NOT NULL DEFAULT 0,
               started_at TIMESTAMPTZ NOT NULL DEFAULT now())",
            self.schema
        ))
        .await?;
        let sql =
            format!("SELECT state, after_key, copied FROM {}.table_moves WHERE table_name = $1", self.schema);
        let Some(row) = conn.query_opt(&sql, &[&self.table]).await? else { return Ok(None) };
        Ok(Some(State {
            state: row.try_get(0).map_err(db)?,
            after: row.try_get(1).map_err(db)?,
            copied: row.try_get(2).map_err(db)?,
        }))
    }

    async fn set(&self, conn: &PgConn, what: &str) -> Result<()> {
        let sql = format!("UPDATE {}.table_moves SET {what} WHERE table_name = $1", self.schema);
        conn.execute(&sql, &[&self.table]).await.map(drop)
    }

    async fn rename(&self, conn: &PgConn) -> Result<Vec<String>> {
        let table = self.new_name();
        if !exists(conn, &table).await? {
            return Err(StoreError::Invalid(format!("there is no table {table}")));
        }
        if exists(conn, &self.old()).await? {
            let what = format!(
                "table {} is there already, and no move of this program's: rename or drop it",
                self.old()
            );
            return Err(StoreError::Invalid(what));
        }
        let relations = conn
            .query(
                "SELECT c.oid::bigint, c.relname::text FROM pg_class c WHERE c.oid = to_regclass($1) \
                 OR c.oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass($1)) ORDER BY 1",
                &[&table],
            )
            .await?;
        let mut renames = Vec::new();
        for row in &relations {
            let (oid, name): (i64, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
            let indexes = conn
                .query(
                    "SELECT i.relname::text FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
                     WHERE x.indrelid::bigint = $1 ORDER BY 1",
                    &[&oid],
                )
                .await?;
            for index in &indexes {
                renames.push(("INDEX", index.try_get::<_, String>(0).map_err(db)?));
            }
            renames.push(("TABLE", name));
        }
        for (kind, name) in renames {
            let old = old_name(&name);
            conn.batch(&format!("ALTER {kind} {}.\"{name}\" RENAME TO \"{old}\"", self.schema)).await?;
        }
        (self.create)(conn).await?;
        let left_behind = self.demand_fits(conn).await?;
        let insert =
            format!("INSERT INTO {}.table_moves (table_name, state) VALUES ($1, 'copy')", self.schema);
        conn.execute(&insert, &[&self.table]).await?;
        Ok(left_behind)
    }

    /// Demands that every row of the old table can stand in the new one; the columns that only the old one has.
    async fn demand_fits(&self, conn: &PgConn) -> Result<Vec<String>> {
        let (old, new) = (columns(conn, &self.old()).await?, columns(conn, &self.new_name()).await?);
        for (name, needs_value) in &new {
            if *needs_value && !old.iter().any(|(old, _)| old == name) {
                return Err(StoreError::Invalid(format!(
                    "column {name} of the new table {} is never null, and the old one has no such column: rows can't be copied. \
                     `cairn migrate --recreate` exports the table and derives it anew",
                    self.new_name()
                )));
            }
        }
        if let Some(key) = self.key.iter().find(|key| !old.iter().any(|(old, _)| old == *key)) {
            return Err(StoreError::Invalid(format!(
                "the old table {} has no column {key}, which is part of the new key",
                self.old()
            )));
        }
        let is_new = |name: &str| new.iter().any(|(new, _)| new == name);
        Ok(old.into_iter().map(|(name, _)| name).filter(|name| !is_new(name)).collect())
    }

    /// The columns that both tables have, quoted, in the new one's order.
    async fn shared_columns(&self, conn: &PgConn) -> Result<String> {
        let (old, new) = (columns(conn, &self.old()).await?, columns(conn, &self.new_name()).await?);
        let shared = new.iter().filter(|(name, _)| old.iter().any(|(old, _)| old == name));
        Ok(shared.map(|(name, _)| quoted(name)).collect::<Vec<_>>().join(", "))
    }

    /// `("a", "b") OP ($n::text::bigint, …)` over the key, with parameters from `first` on.
    async fn beside_key(&self, conn: &PgConn, op: &str, first: usize) -> Result<String> {
        let mut values = Vec::with_capacity(self.key.len());
        for (n, key) in self.key.iter().enumerate() {
            let row = conn
                .query_one(
                    "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2",
                    &[&self.old(), key],
                )
                .await?;
            let ty: String = row.try_get(0).map_err(db)?;
            values.push(format!("${}::text::{ty}", first + n));
        }
        let keys: Vec<String> = self.key.iter().map(|key| quoted(key)).collect();
        Ok(format!("({}) {op} ({})", keys.join(", "), values.join(", ")))
    }

    /// One batch. Partitions are made before its transaction, where nothing waits for it.
    async fn copy(&self, mut conn: PgConn, pool: &PgPool, state: State) -> Result<Moved> {
        let after = state.after.clone().unwrap_or_default();
        let place: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
            after.iter().map(|text| text as _).collect();
        let above = if after.is_empty() { "TRUE".to_owned() } else { self.beside_key(&conn, ">", 1).await? };
        let keys: Vec<String> = self.key.iter().map(|key| quoted(key)).collect();
        let texts: Vec<String> = keys.iter().map(|key| format!("{key}::text")).collect();
        // Of the columns, not of their texts, which have the same names.
        let down: Vec<String> = keys.iter().map(|key| format!("b.{key} DESC")).collect();
        conn.begin(Isolation::ReadCommitted).await?;
        conn.batch("SET LOCAL statement_timeout = 0").await?;
        let last = conn
            .query_opt(
                &format!(
                    "SELECT {} FROM (SELECT {keys} FROM {} WHERE {above} ORDER BY {keys} LIMIT {}) b ORDER BY {} LIMIT 1",
                    texts.join(", "),
                    self.old(),
                    self.batch_rows.max(1),
                    down.join(", "),
                    keys = keys.join(", ")
                ),
                &place,
            )
            .await?;
        let Some(last) = last else {
            conn.rollback().await?;
            let mut conn = pool.begin(Isolation::ReadCommitted).await?;
            self.set(&conn, "state = 'compare'").await?;
            conn.commit().await?;
            return Ok(Moved::CopiedAll(u64::try_from(state.copied).unwrap_or(0)));
        };
        let last: Vec<String> =
            (0..keys.len()).map(|n| last.try_get(n).map_err(db)).collect::<Result<_>>()?;
        let up_to = self.beside_key(&conn, "<=", after.len() + 1).await?;
        let mut both = place.clone();
        both.extend(last.iter().map(|text| text as &(dyn tokio_postgres::types::ToSql + Sync)));
        if let Some((heights, ensure)) = &self.partitions {
            let sql = format!(
                "SELECT DISTINCT {height} / {heights} * {heights} FROM {} WHERE {above} AND {up_to} ORDER BY 1",
                self.old(),
                height = keys[0]
            );
            let starts = conn.query(&sql, &both).await?;
            conn.rollback().await?;
            for row in &starts {
                let start: i64 = row.try_get(0).map_err(db)?;
                ensure(Height(u64::try_from(start).unwrap_or(0))).await?;
            }
        } else {
            conn.rollback().await?;
        }
        let columns = self.shared_columns(&conn).await?;
        conn.begin(Isolation::ReadCommitted).await?;
        let found = self.state(&conn).await?;
        if found.is_none_or(|found| found.state != "copy" || found.after != state.after) {
            return Err(StoreError::Busy(format!("somebody else moves table {} too", self.new_name())));
        }
        let insert = format!(
            "INSERT INTO {} ({columns}) SELECT {columns} FROM {} WHERE {above} AND {up_to}",
            self.new_name(),
            self.old()
        );
        let rows = conn.execute(&insert, &both).await?;
        let update = format!(
            "UPDATE {}.table_moves SET after_key = $2, copied = copied + $3 WHERE table_name = $1",
            self.schema
        );
        conn.execute(&update, &[&self.table, &last, &(rows as i64)]).await?;
        conn.commit().await?;
        Ok(Moved::Copied(u64::try_from(state.copied).unwrap_or(0) + rows))
    }

    async fn compare(&self, conn: &PgConn) -> Result<u64> {
        let columns = self.shared_columns(conn).await?;
        let mut sums = Vec::new();
        for table in [self.old(), self.new_name()] {
            let row = conn
                .query_one(
                    &format!(
                        "SELECT count(*), coalesce(sum(('x' || left(md5(ROW({columns})::text), 16))::bit(64)::bigint::numeric), 0)::text \
                         FROM {table}"
                    ),
                    &[],
                )
                .await?;
            sums.push((row.try_get::<_, i64>(0).map_err(db)?, row.try_get::<_, String>(1).map_err(db)?));
        }
        match sums.as_slice() {
            [old, new] if old == new => Ok(u64::try_from(old.0).unwrap_or(0)),
            [old, new] => Err(StoreError::Corrupt {
                place: format!("table {}", self.new_name()),
                what: format!(
                    "it has {} rows with checksum {}, {} has {} with {}. Nothing was dropped: drop the new table, name the old one and its partitions \
                     and indexes as they were, and delete the row of {}.table_moves",
                    new.0,
                    new.1,
                    self.old(),
                    old.0,
                    old.1,
                    self.schema
                ),
            }),
            _ => Err(StoreError::Database("two tables were compared, and another number came back".into())),
        }
    }
}

/// The rows of a table as CSV with a header, by its key, from one snapshot; handed to `take` piece by piece. How many there are.
pub async fn export_csv(
    pool: &PgPool,
    table: &str,
    take: impl FnMut(&[u8]) -> Result<()> + Send,
) -> Result<u64> {
    let mut conn = pool.begin(Isolation::RepeatableRead).await?;
    conn.batch("SET LOCAL statement_timeout = 0").await?;
    let rows = conn.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await?;
    let rows: i64 = rows.try_get(0).map_err(db)?;
    let key = conn
        .query(
            "SELECT quote_ident(a.attname) FROM pg_index x CROSS JOIN unnest(x.indkey) WITH ORDINALITY AS k (attnum, n) \
             JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = k.attnum \
             WHERE x.indrelid = to_regclass($1) AND x.indisprimary ORDER BY k.n",
            &[&table],
        )
        .await?;
    let key: Vec<String> = key.iter().map(|row| row.try_get(0).map_err(db)).collect::<Result<_>>()?;
    let order = if key.is_empty() { String::new() } else { format!(" ORDER BY {}", key.join(", ")) };
    conn.copy_out(&format!("COPY (SELECT * FROM {table}{order}) TO STDOUT (FORMAT csv, HEADER)"), take)
        .await?;
    conn.commit().await?;
    Ok(u64::try_from(rows).unwrap_or(0))
}

/// `NAME_old`; where that is longer than PostgreSQL takes, as much of the name as leaves room for a hash of all of it. Names that PostgreSQL makes
/// for the indexes of partitions are often as long as they can be, and alike but for their ends.
fn old_name(name: &str) -> String {
    if name.len() + 4 <= MAX_NAME_BYTES {
        return format!("{name}_old");
    }
    let hash: String = Sha256::digest(name).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let mut kept = MAX_NAME_BYTES - 4 - 1 - hash.len();
    while !name.is_char_boundary(kept) {
        kept -= 1;
    }
    format!("{}_{hash}_old", &name[..kept])
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

async fn exists(conn: &PgConn, relation: &str) -> Result<bool> {
    let row = conn.query_one("SELECT to_regclass($1) IS NOT NULL", &[&relation]).await?;
    row.try_get(0).map_err(db)
}

/// The columns of a table in order, and whether each needs a value.
async fn columns(conn: &PgConn, table: &str) -> Result<Vec<(String, bool)>> {
    let rows = conn
        .query(
            "SELECT attname::text, attnotnull AND NOT atthasdef FROM pg_attribute \
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            &[&table],
        )
        .await?;
    rows.iter().map(|row| Ok((row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?))).collect()
}

/// Makes a table like the one that was renamed, partitioned by a column of heights, with the same keys and indexes.
pub async fn create_like_old(conn: &PgConn, schema: &str, table: &str, height: &str) -> Result<()> {
    let (new, old) = (format!("{schema}.\"{table}\""), format!("{schema}.\"{table}_old\""));
    conn.batch(&format!(
        "CREATE TABLE {new} (LIKE {old} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) PARTITION BY RANGE ({height})"
    ))
    .await?;
    let keys = conn
        .query(
            "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint \
             WHERE conrelid = to_regclass($1) AND contype IN ('p', 'u') ORDER BY 1",
            &[&old],
        )
        .await?;
    for row in &keys {
        let (name, definition): (String, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
        let name = name.strip_suffix("_old").unwrap_or(&name);
        conn.batch(&format!("ALTER TABLE {new} ADD CONSTRAINT \"{name}\" {definition}")).await?;
    }
    let indexes = conn
        .query(
            "SELECT i.relname::text, pg_get_indexdef(i.oid) FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid \
             WHERE x.indrelid = to_regclass($1) \
               AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.oid AND c.contype IN ('p', 'u')) ORDER BY 1",
            &[&old],
        )
        .await?;
    for row in &indexes {
        let (name, definition): (String, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
        let Some((_, using)) = definition.split_once(" USING ") else {
            return Err(StoreError::Database(format!("index {name} can't be read: {definition}")));
        };
        let name = name.strip_suffix("_old").unwrap_or(&name);
        conn.batch(&format!("CREATE INDEX \"{name}\" ON {new} USING {using}")).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{MAX_NAME_BYTES, old_name};

    #[test]
    fn old_names_fit_and_differ() {
        assert_eq!(old_name("blocks"), "blocks_old");
        assert_eq!(old_name(&"a".repeat(59)), format!("{}_old", "a".repeat(59)));
        let (one, two) =
            (old_name(&format!("{}_idx", "a".repeat(59))), old_name(&format!("{}_id1", "a".repeat(59))));
        assert!(one != two && one.len() == MAX_NAME_BYTES && one.ends_with("_old"), "{one} {two}");
        assert!(old_name(&"ä".repeat(31)).len() <= MAX_NAME_BYTES);
    }
}
