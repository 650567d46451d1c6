//! Brings schema `app` up to date: migrations, then the catalog's tables and indexes.
//!
//! A table is described when it is made. One whose columns, key, class or service changed since is refused; a new table or a new index is added.
//! An index that the catalog no longer names stays, and is not in the way.

use cairn_store::derived::{LAST_HEIGHT, Table, TableClass};
use cairn_store::{Result, StoreError};
use sha2::{Digest, Sha256};

use super::Shared;
use super::tables::{PgTable, quoted};
use crate::postgres::error::db;
use crate::postgres::migrate::{self, Migration};
use crate::postgres::server::demand_server;
use crate::postgres::{Isolation, PgConn};

/// What every app store has.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "leases, checkpoints, undo, definitions", sql: include_str!("0001.sql") },
    Migration { version: 2, name: "quarantined blocks", sql: include_str!("0002.sql") },
    Migration { version: 3, name: "rebuilds", sql: include_str!("0003.sql") },
    Migration { version: 4, name: "leases that wait", sql: include_str!("0004.sql") },
    Migration { version: 5, name: "corrections of state", sql: include_str!("0005.sql") },
];

/// Held by whoever changes tables, indexes or partitions.
pub(super) const DDL_LOCK: &str = "cairn.app.tables";

/// PostgreSQL cuts longer names off.
const MAX_NAME_BYTES: usize = 63;

/// Makes what is missing; whoever comes second waits for the first.
pub(super) async fn open(shared: &Shared) -> Result<()> {
    if shared.options.read_only {
        return demand_all(shared).await;
    }
    let mut conn = shared.write.get().await?;
    demand_server(&shared.write, &conn).await?;
    migrate::migrate(&mut conn, "app", MIGRATIONS).await?;
    forbid_overlap(&mut conn, shared.options.use_extensions).await?;
    conn.begin(Isolation::ReadCommitted).await?;
    conn.lock_until_end(DDL_LOCK).await?;
    let defined = definitions(&conn, shared).await?;
    for table in shared.tables.iter() {
        let found = defined.iter().find(|(name, _)| name == table.table.name());
        table_is_there(&conn, table, found.map(|(_, definition)| definition.as_str())).await?;
    }
    for table in shared.tables.iter() {
        indexes_are_there(&conn, shared, table).await?;
    }
    conn.commit().await
}

/// Demands that everything is there, without changing it: for those who only read.
async fn demand_all(shared: &Shared) -> Result<()> {
    let conn = shared.read.get().await?;
    demand_server(&shared.read, &conn).await?;
    migrate::demand_current(&conn, "app", MIGRATIONS).await?;
    let defined = definitions(&conn, shared).await?;
    for table in shared.tables.iter() {
        let def = table.table.def();
        match defined.iter().find(|(name, _)| name == def.name) {
            Some((_, found)) => demand_same(&table.table, found)?,
            None => {
                return Err(StoreError::Invalid(format!(
                    "the app store has no table {} yet: run `cairn migrate` or start a process that derives first",
                    def.name
                )));
            }
        }
    }
    Ok(())
}

/// The tables that were made, and as what.
async fn definitions(conn: &PgConn, shared: &Shared) -> Result<Vec<(String, String)>> {
    let known = conn.query("SELECT table_name, definition FROM app.table_definitions", &[]).await?;
    let mut defined: Vec<(String, String)> = Vec::with_capacity(known.len());
    for row in &known {
        defined.push((row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?));
    }
    if let Some((name, _)) =
        defined.iter().find(|(name, _)| shared.tables.iter().all(|table| table.table.name() != name))
    {
        return Err(StoreError::Invalid(format!(
            "the app store has table {name}, which this program doesn't know: a reorg would leave its rows. Use the newer program that made it, or \
             drop app.{name} and delete it from app.table_definitions"
        )));
    }
    Ok(defined)
}

/// A table that was made as something else is refused.
fn demand_same(table: &Table, found: &str) -> Result<()> {
    let (def, expected) = (table.def(), definition(table));
    if found == expected {
        return Ok(());
    }
    if let (Some(made), Some(wanted)) = (partitions_of(found), table.partition_heights())
        && found == expected.replacen(&class_of(wanted), &class_of(made), 1)
    {
        return Err(StoreError::Invalid(format!(
            "table {0} was made with partitions of {made} heights, and is to have {wanted} by app.partition_heights or app.partitions. Nothing was changed. Say \
             {made} for {0} there, or make it anew with `cairn migrate --in-place app.{0}`",
            def.name
        )));
    }
    Err(StoreError::Invalid(format!(
        "table {} was made as `{found}`, this program defines it as `{expected}`. Nothing was changed. Run the program that made it, or reset service {} and \
         drop the table",
        def.name, def.service
    )))
}

/// Makes a table again, by this program's definition, in the transaction in which the old one got another name.
pub(super) async fn define_again(conn: &PgConn, shared: &Shared, table: &PgTable) -> Result<()> {
    let name = table.table.name();
    for sql in [
        "DELETE FROM app.table_definitions WHERE table_name = $1",
        "DELETE FROM app.index_definitions WHERE table_name = $1",
    ] {
        conn.execute(sql, &[&name]).await?;
    }
    table_is_there(conn, table, None).await?;
    indexes_are_there(conn, shared, table).await
}

/// How a table is described: everything that makes its rows what they are.
fn definition(table: &Table) -> String {
    let def = table.def();
    let columns: Vec<String> = def
        .columns
        .iter()
        .map(|column| {
            let null = if column.nullable { " null" } else { "" };
            format!("{} {:?}{null} {:?}", column.name, column.ty, column.merge)
        })
        .collect();
    format!("{:?} of {}: {}; key {}", table.class(), def.service, columns.join(", "), def.key.join(", "))
}

/// How the class of a table with such partitions is described.
fn class_of(partition_heights: u64) -> String {
    format!("{:?} of ", TableClass::Events { partition_heights })
}

/// The size of a table's partitions by what it was made as.
fn partitions_of(definition: &str) -> Option<u64> {
    let size = definition.strip_prefix("Events { partition_heights: ")?;
    size.split_once(' ')?.0.parse().ok()
}

async fn table_is_there(conn: &PgConn, table: &PgTable, found: Option<&str>) -> Result<()> {
    let def = table.table.def();
    let expected = definition(&table.table);
    if let Some(found) = found {
        return demand_same(&table.table, found);
    }
    // `TABLE_p` and the number of a partition, `_` and the name of an index have to fit.
    let longest = def.indexes.iter().map(|index| index.name.len()).max().unwrap_or(8).max(8);
    if def.name.len() + longest + 24 > MAX_NAME_BYTES + 2 {
        return Err(StoreError::Invalid(format!("table {}: its name or an index's is too long", def.name)));
    }
    let options = match def.class {
        TableClass::Events { .. } => format!(" PARTITION BY RANGE ({})", table.columns[0]),
        // Room for new versions of rows on their own page.
        TableClass::State => " WITH (fillfactor = 85)".to_owned(),
        _ => String::new(),
    };
    conn.batch(&format!("CREATE TABLE {} ({}){options}", table.name, table.body())).await?;
    if def.class == TableClass::Answers {
        // A reorg deletes by it.
        let name = quoted(&format!("{}_asked", def.name));
        conn.batch(&format!(
            "CREATE INDEX {name} ON {} ({})",
            table.name,
            quoted(cairn_store::derived::ASKED_AT_HEIGHT)
        ))
        .await?;
    }
    debug_assert!(def.class != TableClass::State || table.height == Some(quoted(LAST_HEIGHT)));
    let hash = Sha256::digest(expected.as_bytes());
    conn.execute(
        "INSERT INTO app.table_definitions (table_name, definition, definition_hash) VALUES ($1, $2, $3)",
        &[&def.name, &expected, &&hash[..]],
    )
    .await?;
    Ok(())
}

/// Whether the indexes of a table are built one partition at a time, by [`super::indexes`]: asked for, or since there are partitions
/// already, whose writers would all wait.
async fn is_put_off(conn: &PgConn, shared: &Shared, table: &PgTable) -> Result<bool> {
    if table.partition_heights().is_none() {
        return Ok(false);
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = to_regclass($1))";
    let has_partitions: bool = conn.query_one(sql, &[&table.name]).await?.try_get(0).map_err(db)?;
    Ok(shared.options.defer_indexes || has_partitions)
}

/// Adds the indexes that are missing.
async fn indexes_are_there(conn: &PgConn, shared: &Shared, table: &PgTable) -> Result<()> {
    let def = table.table.def();
    let known = conn
        .query("SELECT index_name, columns FROM app.index_definitions WHERE table_name = $1", &[&def.name])
        .await?;
    for index in def.indexes {
        let columns = table.index_columns(index)?;
        let mut found = None;
        for row in &known {
            if row.try_get::<_, &str>(0).map_err(db)? == index.name {
                found = Some(row.try_get::<_, &str>(1).map_err(db)?);
            }
        }
        match found {
            Some(found) if found == columns => continue,
            Some(found) => {
                return Err(StoreError::Invalid(format!(
                    "index {} of table {} was made over ({found}), this program defines it over ({columns}). Nothing was changed. Give the new \
                     index another name",
                    index.name, def.name
                )));
            }
            None => {}
        }
        if !is_put_off(conn, shared, table).await? {
            conn.batch("SET LOCAL statement_timeout = 0").await?;
            let name = quoted(&index_name(def.name, index.name));
            conn.batch(&format!("CREATE INDEX {name} ON {} ({columns})", table.name)).await?;
        }
        conn.execute(
            "INSERT INTO app.index_definitions (table_name, index_name, columns) VALUES ($1, $2, $3)",
            &[&def.name, &index.name, &columns],
        )
        .await?;
    }
    Ok(())
}

/// The name of an index in the schema: two tables may name theirs alike.
pub(super) fn index_name(table: &str, index: &str) -> String {
    format!("{table}_{index}")
}

/// Lets the schema forbid leases of one service and kind that overlap: by an EXCLUDE constraint, or, where its extension can't be
/// had, by a trigger that takes a lock per service and kind.
async fn forbid_overlap(conn: &mut PgConn, use_extensions: bool) -> Result<()> {
    const IS_FORBIDDEN: &str = "SELECT EXISTS (SELECT 1 FROM pg_constraint WHERE conname = 'worker_leases_apart'
             AND conrelid = 'app.worker_leases'::regclass AND contype = 'x')
        OR EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = 'worker_leases_apart' AND tgrelid = 'app.worker_leases'::regclass)";
    const CONSTRAINT: &str = "CREATE EXTENSION IF NOT EXISTS btree_gist;
        ALTER TABLE app.worker_leases ADD CONSTRAINT worker_leases_apart EXCLUDE USING gist
            (worker_type WITH =, kind WITH =, int8range(from_height, to_height) WITH &&)";
    const TRIGGER: &str = "CREATE OR REPLACE FUNCTION app.worker_leases_apart() RETURNS trigger LANGUAGE plpgsql AS $f$
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtextextended('cairn.app.leases ' || NEW.kind || ' ' || NEW.worker_type, 0));
            IF EXISTS (SELECT 1 FROM app.worker_leases l WHERE l.worker_type = NEW.worker_type AND l.kind = NEW.kind
                       AND l.from_height < NEW.to_height AND l.to_height > NEW.from_height AND l.id <> NEW.id) THEN
                RAISE EXCEPTION 'leases of one service and kind must not overlap'
                    USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'worker_leases_apart';
            END IF;
            RETURN NEW;
        END $f$;
        CREATE TRIGGER worker_leases_apart BEFORE INSERT OR UPDATE OF worker_type, kind, from_height, to_height
            ON app.worker_leases FOR EACH ROW EXECUTE FUNCTION app.worker_leases_apart()";
    let mut try_extension = use_extensions;
    loop {
        conn.begin(Isolation::ReadCommitted).await?;
        conn.lock_until_end(DDL_LOCK).await?;
        if conn.query_one(IS_FORBIDDEN, &[]).await?.try_get(0).map_err(db)? {
            return conn.rollback().await;
        }
        if !try_extension {
            conn.batch(TRIGGER).await?;
            return conn.commit().await;
        }
        match conn.batch(CONSTRAINT).await {
            Ok(()) => return conn.commit().await,
            Err(error @ StoreError::Busy(_)) => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "no btree_gist: a trigger keeps leases from overlapping");
                conn.rollback().await?;
                try_extension = false;
            }
        }
    }
}
