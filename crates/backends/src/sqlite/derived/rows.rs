//! Writing rows: a few statements for many rows, in the order of their keys.

use cairn_core::{Height, HeightRange};
use cairn_store::Result;
use cairn_store::derived::{Key, Row, TableClass, Value, rules};
use rusqlite::{Connection, OptionalExtension};

use super::tables::TableSql;
use super::{db, number, sql, values};

/// The row with this key.
pub(super) fn find(conn: &Connection, table: &TableSql, key: &Key) -> Result<Option<Row>> {
    let mut statement = conn.prepare_cached(&table.select_by_key).map_err(db)?;
    bind_all(&mut statement, &key.0).map_err(db)?;
    let mut rows = statement.raw_query();
    rows.next().and_then(|row| row.map(|row| table.read(row)).transpose()).map_err(db)
}

fn bind_all<'a>(
    statement: &mut rusqlite::Statement<'_>,
    values: impl IntoIterator<Item = &'a Value>,
) -> rusqlite::Result<()> {
    values.into_iter().zip(1..).try_for_each(|(value, at)| values::bind(statement, at, value))
}

fn execute<'a>(
    conn: &Connection,
    sql: &str,
    values: impl IntoIterator<Item = &'a Value>,
) -> rusqlite::Result<usize> {
    let mut statement = conn.prepare_cached(sql)?;
    bind_all(&mut statement, values)?;
    statement.raw_execute()
}

/// Writes rows, each key once, by the rule of the table's class: events and content stay where they are there already (events have
/// to be the same), answers replace, state replaces what is not newer. How many were written: the others were left out.
pub(super) fn write<'a>(
    conn: &Connection,
    table: &TableSql,
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<usize> {
    let [one, many] = &table.insert;
    let rows: Vec<&Row> = rows.into_iter().collect();
    let mut written = 0;
    for batch in rows.chunks(table.rows_at_once) {
        let new = if batch.len() == table.rows_at_once {
            execute(conn, many, batch.iter().flat_map(|row| &row.0)).map_err(db)?
        } else {
            let each = batch.iter().map(|row| execute(conn, one, &row.0));
            each.sum::<rusqlite::Result<usize>>().map_err(db)?
        };
        if new < batch.len() && table.is_events() {
            batch.iter().try_for_each(|row| demand_same(conn, table, row))?;
        }
        written += new;
    }
    count(conn, table, written as i64)?;
    Ok(written)
}

fn demand_same(conn: &Connection, table: &TableSql, row: &Row) -> Result<()> {
    let key = table.table.key_of(row);
    if find(conn, table, &key)?.as_ref() == Some(row) {
        return Ok(());
    }
    Err(rules::other_fields(&table.table, &key))
}

/// Puts a row of state, or an answer, back as it was, or takes it away.
pub(super) fn restore(conn: &Connection, table: &TableSql, key: &Key, before: Option<&Row>) -> Result<()> {
    match before {
        Some(row) => execute(conn, &table.restore, &row.0).map_err(db)?,
        None => execute(conn, &table.delete_by_key, &key.0).map_err(db)?,
    };
    Ok(())
}

pub(super) fn delete(conn: &Connection, table: &TableSql, key: &Key) -> Result<u64> {
    let deleted = execute(conn, &table.delete_by_key, &key.0).map_err(db)?;
    count(conn, table, -(deleted as i64))?;
    Ok(deleted as u64)
}

/// Deletes at most so many rows, whichever.
pub(super) fn delete_some(conn: &Connection, table: &TableSql, max_rows: usize) -> Result<usize> {
    let deleted = conn
        .prepare_cached(&table.delete_some())
        .and_then(|mut statement| statement.execute([number(max_rows as u64)]))
        .map_err(db)?;
    count(conn, table, -(deleted as i64))?;
    Ok(deleted)
}

/// Deletes the rows of these heights.
pub(super) fn delete_range(conn: &Connection, table: &TableSql, from: Height, to: Height) -> Result<usize> {
    let Some(height) = &table.height else { return Ok(0) };
    let deleted = conn
        .prepare_cached(&format!("DELETE FROM {} WHERE {height} >= ?1 AND {height} < ?2", table.name))
        .and_then(|mut statement| statement.execute([sql(from), sql(to)]))
        .map_err(db)?;
    count(conn, table, -(deleted as i64))?;
    Ok(deleted)
}

/// Deletes rows above a height, from the top down, whole heights at a time: at least `max_rows` of them if there are so many.
pub(super) fn delete_above(
    conn: &Connection,
    table: &TableSql,
    above: Height,
    max_rows: usize,
) -> Result<usize> {
    delete_from_top(conn, table, HeightRange::new(above.next(), Height(u64::MAX)), max_rows)
}

/// Deletes rows of these heights in the same way.
pub(super) fn delete_from_top(
    conn: &Connection,
    table: &TableSql,
    heights: HeightRange,
    max_rows: usize,
) -> Result<usize> {
    let Some(height) = &table.height else { return Ok(0) };
    let lowest: Option<i64> = conn
        .prepare_cached(&format!(
            "SELECT {height} FROM {} WHERE {height} >= ?1 AND {height} < ?2 ORDER BY {height} DESC LIMIT 1 OFFSET ?3",
            table.name
        ))
        .and_then(|mut statement| {
            let skipped = number(max_rows.saturating_sub(1) as u64);
            let bounds = [sql(heights.start()), sql(heights.end()), skipped];
            statement.query_row(bounds, |row| row.get(0)).optional()
        })
        .map_err(db)?;
    let from = lowest.and_then(|lowest| u64::try_from(lowest).ok()).map_or(heights.start(), Height);
    delete_range(conn, table, from, heights.end())
}

/// The highest height of a row.
pub(super) fn newest(conn: &Connection, table: &TableSql) -> Result<Option<Height>> {
    let Some(height) = &table.height else { return Ok(None) };
    let newest: Option<i64> = conn
        .prepare_cached(&format!("SELECT max({height}) FROM {}", table.name))
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(db)?;
    Ok(newest.map(|height| Height(height.unsigned_abs())))
}

/// Whether there is a row above a height.
pub(super) fn any_above(conn: &Connection, table: &TableSql, above: Height) -> Result<bool> {
    let Some(height) = &table.height else { return Ok(false) };
    conn.prepare_cached(&format!("SELECT EXISTS (SELECT 1 FROM {} WHERE {height} > ?1)", table.name))
        .and_then(|mut statement| statement.query_row([sql(above)], |row| row.get(0)))
        .map_err(db)
}

/// Keeps the number of rows of a table of events.
fn count(conn: &Connection, table: &TableSql, more: i64) -> Result<()> {
    if more == 0 || !matches!(table.table.def().class, TableClass::Events { .. }) {
        return Ok(());
    }
    conn.prepare_cached("UPDATE table_definitions SET row_count = row_count + ?2 WHERE table_name = ?1")
        .and_then(|mut statement| statement.execute((table.table.name(), more)))
        .map_err(db)?;
    Ok(())
}
