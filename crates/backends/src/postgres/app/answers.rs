//! Answers: writing them among those that are there, by the height at which they were asked.
//!
//! What is there is read and then written. That is safe without locks on the rows: every commit locks its service's checkpoint first, so those that
//! write one table come one after the other, and whoever applies a reorg holds the gate.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_core::Height;
use cairn_store::StoreError;
use cairn_store::derived::answers::Answers;
use cairn_store::derived::{Key, Row, Value};

use super::commit::write_arrays;
use super::fault::Fault;
use super::int;
use super::lease::column;
use super::tables::{Arrays, PgTable, runs};
use super::tx::Tx;
use crate::postgres::error::corrupt;

type Faulty<T> = std::result::Result<T, Fault>;

/// Undo rows of these keys, `(place in the array from 1, height, row before)`.
const FIND_UNDO: &str =
    "SELECT k.n, u.height, u.previous FROM unnest($2::bytea[]) WITH ORDINALITY AS k(key, n)
     JOIN app.state_undo u ON u.table_name = $1 AND u.key = k.key";

const WRITE_UNDO: &str = "INSERT INTO app.state_undo (table_name, key, height, previous)
     SELECT $1::text, u.key, u.height, u.previous FROM unnest($2::bytea[], $3::bigint[], $4::bytea[]) AS u(key, height, previous)
     ON CONFLICT (table_name, key, height) DO UPDATE SET previous = EXCLUDED.previous";

/// Writes the answers of one table, sorted by key; how many undo rows that takes.
pub(super) async fn write(
    tx: &Tx<'_>,
    table: &PgTable,
    rows: &[(Key, BTreeMap<Height, Row>)],
    finalized: Height,
) -> Faulty<usize> {
    let size = |(key, rows): &(Key, BTreeMap<Height, Row>)| {
        let key: usize = key.0.iter().map(Value::size_bytes).sum();
        key + rows.values().map(Row::size_bytes).sum::<usize>()
    };
    let mut undone = 0;
    for run in runs(rows, tx.shared.options.statement_bytes, size) {
        undone += write_run(tx, table, run, finalized).await?;
    }
    Ok(undone)
}

async fn write_run(
    tx: &Tx<'_>,
    table: &PgTable,
    run: &[(Key, BTreeMap<Height, Row>)],
    finalized: Height,
) -> Faulty<usize> {
    let keys: Vec<Bytes> = run.iter().map(|(key, _)| key.encode()).collect();
    let there = find(tx, table, run, &keys).await?;
    let mut newest: Vec<Row> = Vec::with_capacity(run.len());
    let mut undo: Vec<(&[u8], i64, Bytes)> = Vec::new();
    for (((_, laid), key), mut answers) in run.iter().zip(&keys).zip(there) {
        laid.iter().for_each(|(height, row)| answers.lay(*height, row.clone()));
        let change = answers.change(finalized);
        undo.extend(change.undo.iter().map(|(height, row)| (key.as_ref(), int(*height), row.encode())));
        newest.extend(change.row);
    }
    write_arrays(tx, &table.upsert, &newest, |row| row).await?;
    for part in runs(&undo, tx.shared.options.statement_bytes, |(key, _, row)| key.len() + row.len()) {
        let keys: Vec<&[u8]> = part.iter().map(|(key, _, _)| *key).collect();
        let heights: Vec<i64> = part.iter().map(|(_, height, _)| *height).collect();
        let rows: Vec<&[u8]> = part.iter().map(|(_, _, row)| row.as_ref()).collect();
        tx.execute(WRITE_UNDO, &[&table.table.name(), &keys, &heights, &rows]).await?;
    }
    Ok(undo.len())
}

/// What is stored of each key.
async fn find(
    tx: &Tx<'_>,
    table: &PgTable,
    run: &[(Key, BTreeMap<Height, Row>)],
    keys: &[Bytes],
) -> Faulty<Vec<Answers>> {
    let wanted = Arrays::of_keys(table.table.key_columns().len(), run.iter().map(|(key, _)| key));
    let mut rows: Vec<Option<Row>> = vec![None; run.len()];
    for found in tx.query(&table.by_keys, &wanted.params()).await? {
        let place = place(column(&found, 0)?, rows.len())?;
        rows[place] = Some(table.read(&found, 1)?);
    }
    let mut undo: Vec<Vec<(Height, Option<Row>)>> = vec![Vec::new(); run.len()];
    let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_ref()).collect();
    for found in tx.query(FIND_UNDO, &[&table.table.name(), &keys]).await? {
        let place = place(column(&found, 0)?, rows.len())?;
        let height = Height(column::<i64>(&found, 1)?.max(0) as u64);
        let previous: Option<&[u8]> = column(&found, 2)?;
        undo[place].push((height, previous.map(|bytes| decode(table, bytes)).transpose()?));
    }
    let there = rows.into_iter().zip(undo).map(|(row, undo)| Answers::new(&table.table, row, undo));
    Ok(there.collect::<Result<_, StoreError>>()?)
}

fn place(from_one: i64, count: usize) -> Faulty<usize> {
    let place = usize::try_from(from_one - 1).ok().filter(|place| *place < count);
    Ok(place.ok_or_else(|| corrupt("app.state_undo", "an answer to nothing that was asked"))?)
}

/// A row from the undo table, which has to be one of its table.
pub(super) fn decode(table: &PgTable, bytes: &[u8]) -> cairn_store::Result<Row> {
    let row = Row::decode(bytes)?;
    let wrong = |error: StoreError| {
        corrupt(format!("an undo row of table {}", table.table.name()), error.to_string())
    };
    table.table.check(&row).map_err(wrong)?;
    Ok(row)
}
