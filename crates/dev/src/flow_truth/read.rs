//! Tables as they stand in a database, read by SQL of its own: nothing of cairn's stores is between.

use std::collections::BTreeMap;
use std::path::Path;

use alloy_primitives::{U256, hex};
use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{Isolation, PgConn, PgOptions, PgPool};
use cairn_store::derived::{ColumnType, TableDef};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::rows::{Cell, Rows, Tables};

/// A database, in one transaction, which is never committed.
pub enum Database {
    /// A file.
    Sqlite(Connection),
    /// A schema.
    Postgres(Box<PgConn>, &'static str),
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

impl Database {
    /// The database in this file.
    pub fn sqlite(file: &Path) -> Result<Database> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection =
            Connection::open_with_flags(file, flags).with_context(|| file.display().to_string())?;
        connection.execute_batch("BEGIN")?;
        Ok(Database::Sqlite(connection))
    }

    /// A schema of the database at this URL.
    pub async fn postgres(url: &str, schema: &'static str) -> Result<Database> {
        let connection = PgPool::new(PgOptions::new(url))?.begin(Isolation::RepeatableRead).await?;
        Ok(Database::Postgres(Box::new(connection), schema))
    }

    /// The table's name in SQL.
    pub fn name(&self, def: &TableDef) -> String {
        match self {
            Database::Sqlite(_) => quoted(def.name),
            Database::Postgres(_, schema) => format!("{schema}.{}", quoted(def.name)),
        }
    }

    /// Every table that there is, whoever made it, with its number of rows. Partitions are their table's.
    pub async fn all_tables(&self) -> Result<BTreeMap<String, u64>> {
        let (names, schema) = match self {
            Database::Sqlite(_) => {
                let names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
                (names.to_owned(), String::new())
            }
            Database::Postgres(_, schema) => {
                let names = format!(
                    "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
                );
                (names, format!("{schema}."))
            }
        };
        let mut tables = BTreeMap::new();
        for name in self.texts(&names).await? {
            let count = format!("SELECT CAST(count(*) AS TEXT) FROM {schema}{}", quoted(&name));
            let count = self.texts(&count).await?.pop().context("no count")?;
            tables.insert(name, count.parse().with_context(|| format!("{count} is no number of rows"))?);
        }
        Ok(tables)
    }

    /// The first column of what a query finds.
    async fn texts(&self, sql: &str) -> Result<Vec<String>> {
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare(sql)?;
                let found = statement.query_map([], |row| row.get::<_, String>(0))?;
                Ok(found.collect::<Result<_, _>>()?)
            }
            Database::Postgres(connection, _) => {
                let found = connection.query(sql, &[]).await?;
                found.iter().map(|row| Ok(row.try_get::<_, String>(0)?)).collect()
            }
        }
    }

    /// Every row of a table.
    pub async fn read(&self, def: &'static TableDef) -> Result<Rows> {
        let name = self.name(def);
        let columns: Vec<String> = def.columns.iter().map(|column| quoted(column.name)).collect();
        let rows = match self {
            Database::Sqlite(connection) => {
                let mut statement =
                    connection.prepare(&format!("SELECT {} FROM {name}", columns.join(", ")))?;
                let mut found = statement.query([])?;
                let mut rows = Vec::new();
                while let Some(row) = found.next()? {
                    let cell = |(at, column): (usize, &cairn_store::derived::Column)| {
                        cell(row.get_ref(at)?, column.ty).with_context(|| format!("{name}.{}", column.name))
                    };
                    rows.push(def.columns.iter().enumerate().map(cell).collect::<Result<_>>()?);
                }
                rows
            }
            Database::Postgres(connection, _) => {
                let columns: Vec<String> = def
                    .columns
                    .iter()
                    .zip(&columns)
                    .map(|(column, name)| match column.ty {
                        ColumnType::Bytes => format!("encode({name}, 'hex')"),
                        _ => format!("{name}::text"),
                    })
                    .collect();
                let found =
                    connection.query(&format!("SELECT {} FROM {name}", columns.join(", ")), &[]).await?;
                let mut rows = Vec::with_capacity(found.len());
                for row in &found {
                    let cells = (0..columns.len()).map(|at| Ok(row.try_get::<_, Option<String>>(at)?));
                    rows.push(cells.collect::<Result<Vec<Cell>>>()?);
                }
                rows
            }
        };
        Ok(Rows { def, rows })
    }

    /// Every table of a catalog.
    pub async fn read_all(&self, defs: impl IntoIterator<Item = &'static TableDef>) -> Result<Tables> {
        let mut tables = BTreeMap::new();
        for def in defs {
            tables.insert(def.name, self.read(def).await?);
        }
        Ok(Tables(tables))
    }

    /// Runs statements in the transaction.
    pub async fn run(&self, sql: &str) -> Result<()> {
        match self {
            Database::Sqlite(connection) => connection.execute_batch(sql)?,
            Database::Postgres(connection, _) => connection.batch(sql).await?,
        }
        Ok(())
    }

    /// A statement that has to change one row.
    pub async fn change_one(&self, sql: &str) -> Result<()> {
        let changed = match self {
            Database::Sqlite(connection) => connection.execute(sql, [])? as u64,
            Database::Postgres(connection, _) => connection.execute(sql, &[]).await?,
        };
        ensure!(changed == 1, "{changed} rows were changed by {sql}");
        Ok(())
    }
}

fn cell(value: ValueRef<'_>, ty: ColumnType) -> Result<Cell> {
    Ok(Some(match (ty, value) {
        (_, ValueRef::Null) => return Ok(None),
        (ColumnType::Bool, ValueRef::Integer(number @ (0 | 1))) => (number == 1).to_string(),
        (ColumnType::Int, ValueRef::Integer(number)) => number.to_string(),
        (ColumnType::Bytes, ValueRef::Blob(bytes)) => hex::encode(bytes),
        (ColumnType::Text, ValueRef::Text(text)) => std::str::from_utf8(text)?.to_owned(),
        (ColumnType::Amount, ValueRef::Blob(bytes)) if bytes.len() == 32 => {
            U256::from_be_slice(bytes).to_string()
        }
        (ColumnType::Sum, ValueRef::Blob(bytes)) => sum(bytes)?,
        (ty, value) => bail!("{value:?} is no {ty:?}"),
    }))
}

/// A sum as it is kept in SQLite: a byte that is 1 where it isn't negative, then 40 bytes of it, of a negative one each bit turned round.
fn sum(bytes: &[u8]) -> Result<String> {
    let Some((sign, magnitude)) = bytes.split_first().filter(|_| bytes.len() == 41) else {
        bail!("a sum of {} bytes", bytes.len());
    };
    let is_negative = *sign == 0;
    let magnitude: Vec<u8> = magnitude.iter().map(|byte| if is_negative { !byte } else { *byte }).collect();
    let (high, low) = magnitude.split_at(8);
    ensure!(high.iter().all(|byte| *byte == 0), "a sum of more than 256 bits");
    Ok(format!("{}{}", if is_negative { "-" } else { "" }, U256::from_be_slice(low)))
}

#[cfg(test)]
mod tests {
    use cairn_store::derived::Sum;

    use super::*;

    #[test]
    fn sums_are_read_as_they_are_kept() {
        let big = Sum::from(U256::MAX);
        for (kept, read) in [
            (Sum::ZERO, "0".to_owned()),
            (Sum::from(U256::from(70_000)), "70000".to_owned()),
            (-Sum::from(U256::from(3)), "-3".to_owned()),
            (big, U256::MAX.to_string()),
            (-big, format!("-{}", U256::MAX)),
        ] {
            assert_eq!(sum(&kept.to_sortable()).expect("is read"), read);
        }
        assert!(sum(&(big + big).to_sortable()).is_err());
        assert!(sum(&[1; 40]).is_err());
    }
}
