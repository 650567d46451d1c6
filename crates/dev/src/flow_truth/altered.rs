//! That the comparison can fail: one row of each table is altered by SQL, and has to be seen. Each alteration is taken back.

use anyhow::{Context, Result, bail, ensure};
use cairn_store::derived::{Column, ColumnType, TableDef, U256};

use super::rows::{Cell, Tables};
use super::{COMPARISONS, Database, Truth};

/// Alters a row of each table, and fails where that isn't seen, or isn't named. How many tables it were.
pub async fn every_alteration_is_seen(
    database: &Database,
    truth: &Truth<'_>,
    tables: &mut Tables,
) -> Result<usize> {
    for one in COMPARISONS {
        alteration_is_seen(database, one.table, tables, |tables| one.compare(truth, tables)).await?;
    }
    Ok(COMPARISONS.len())
}

/// Alters a row of a table, and fails where the comparison doesn't see it, or doesn't name the table.
pub async fn alteration_is_seen(
    database: &Database,
    table: &'static TableDef,
    tables: &mut Tables,
    compare: impl Fn(&Tables) -> Result<usize>,
) -> Result<()> {
    database.run("SAVEPOINT altered").await?;
    let statement = statement(database, table, tables)?;
    database.change_one(&statement).await.with_context(|| statement.clone())?;
    let altered = database.read(table).await?;
    database.run("ROLLBACK TO SAVEPOINT altered").await?;
    let right = tables.0.insert(table.name, altered).context("was read before")?;
    let seen = compare(tables);
    tables.0.insert(table.name, right);
    named(table.name, seen).with_context(|| statement)
}

fn named(table: &str, seen: Result<usize>) -> Result<()> {
    match seen {
        Ok(rows) => bail!("{table}: {rows} rows were compared, and the alteration wasn't seen"),
        Err(error) => {
            let message = format!("{error:#}");
            ensure!(message.starts_with(table), "{table}: what was seen is {message}");
            Ok(())
        }
    }
}

/// Sets the last column that is neither of the key nor a time of asking to something else, in the table's middle row. An empty table gets a row.
fn statement(database: &Database, def: &'static TableDef, tables: &Tables) -> Result<String> {
    let name = database.name(def);
    let rows = &tables.rows(def)?.rows;
    let Some(row) = rows.get(rows.len() / 2) else {
        let row: Vec<String> =
            def.columns.iter().map(|column| literal(database, column, &other(column, &None))).collect();
        return Ok(format!("INSERT INTO {name} VALUES ({})", row.join(", ")));
    };
    let is_key = |column: &Column| def.key.contains(&column.name);
    let altered = def
        .columns
        .iter()
        .zip(row)
        .rfind(|(column, _)| !is_key(column) && column.name != "asked_at_height")
        .with_context(|| format!("{name} has nothing but its key"))?;
    let set = literal(database, altered.0, &other(altered.0, altered.1));
    let of: Vec<String> = def
        .columns
        .iter()
        .zip(row)
        .filter(|(column, _)| is_key(column))
        .map(|(column, cell)| format!("\"{}\" = {}", column.name, literal(database, column, cell)))
        .collect();
    Ok(format!("UPDATE {name} SET \"{}\" = {set} WHERE {}", altered.0.name, of.join(" AND ")))
}

/// Another value for a column.
fn other(column: &Column, cell: &Cell) -> Cell {
    let text = cell.as_deref();
    Some(match column.ty {
        ColumnType::Bool => (text != Some("true")).to_string(),
        ColumnType::Bytes => format!("{}ff", text.unwrap_or_default()),
        ColumnType::Text => format!("{}x", text.unwrap_or_default()),
        _ => {
            let number = text.and_then(|digits| digits.parse::<U256>().ok()).unwrap_or_default();
            number.saturating_add(U256::from(1)).to_string()
        }
    })
}

/// A value as SQL takes it. SQLite keeps amounts as 32 bytes, and sums with a byte before 40.
fn literal(database: &Database, column: &Column, cell: &Cell) -> String {
    let Some(text) = cell else { return "NULL".to_owned() };
    let number = || text.parse::<U256>().unwrap_or_default();
    match (database, column.ty) {
        (_, ColumnType::Text) => format!("'{}'", text.replace('\'', "''")),
        (Database::Postgres(..), ColumnType::Bytes) => format!("'\\x{text}'::bytea"),
        (Database::Sqlite(_), ColumnType::Bytes) => format!("X'{text}'"),
        (Database::Sqlite(_), ColumnType::Amount) => format!("X'{:064x}'", number()),
        (Database::Sqlite(_), ColumnType::Sum) => format!("X'01{:080x}'", number()),
        _ => text.clone(),
    }
}
