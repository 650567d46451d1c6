//! The catalog's tables in SQL: the statements that every row goes through.

use std::sync::Arc;

use cairn_store::Result;
use cairn_store::derived::{Catalog, IndexDef, Key, Row, Table, TableClass, Value};
use tokio_postgres::Row as PgRow;

use super::value::{Field, param_type, read_field, sql_type};
use crate::postgres::pool::Param;

/// A table with its statements.
#[derive(Debug)]
pub(super) struct PgTable {
    pub(super) table: Arc<Table>,
    /// `app."name"`.
    pub(super) name: String,
    /// The columns in order, quoted.
    pub(super) columns: Vec<String>,
    /// The quoted column of the height that bounds or guards rows.
    pub(super) height: Option<String>,
    /// Binary COPY of whole rows.
    pub(super) copy: String,
    /// Whole rows as arrays; those that are there already stay.
    pub(super) insert: String,
    /// Whole rows as arrays; those that are there already are replaced. For state only by rows that are not older (the height guard).
    pub(super) upsert: String,
    /// State as arrays, whatever is there.
    pub(super) restore: String,
    /// Keys as arrays: `(place in the arrays from 1, row)` of those that are there.
    pub(super) by_keys: String,
    /// Keys as arrays: deletes those rows.
    pub(super) delete_keys: String,
    /// Every row.
    pub(super) all: String,
}

/// Double-quoted.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl PgTable {
    fn new(table: Arc<Table>) -> PgTable {
        let def = table.def();
        let name = format!("app.{}", quoted(def.name));
        let columns: Vec<String> = def.columns.iter().map(|column| quoted(column.name)).collect();
        let list = columns.join(", ");
        let arrays = |at: &mut dyn Iterator<Item = usize>| {
            at.enumerate()
                .map(|(n, at)| format!("${}::{}[]", n + 1, param_type(def.columns[at].ty)))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let row_arrays = arrays(&mut (0..columns.len()));
        let key_arrays = arrays(&mut table.key_columns().iter().copied());
        let key: Vec<&str> = table.key_columns().iter().map(|&at| columns[at].as_str()).collect();
        let sets: Vec<String> = (0..columns.len())
            .filter(|at| !table.key_columns().contains(at))
            .map(|at| format!("{0} = EXCLUDED.{0}", columns[at]))
            .collect();
        let height = table.height_column().map(|at| columns[at].clone());
        let insert_into = format!("INSERT INTO {name} AS t ({list}) SELECT * FROM unnest({row_arrays})");
        let insert = format!("{insert_into} ON CONFLICT DO NOTHING");
        let restore = if sets.is_empty() {
            insert.clone()
        } else {
            format!("{insert_into} ON CONFLICT ({}) DO UPDATE SET {}", key.join(", "), sets.join(", "))
        };
        let upsert = match (&height, def.class) {
            (Some(height), TableClass::State) => {
                format!("{restore} WHERE EXCLUDED.{height} >= t.{height}")
            }
            _ => restore.clone(),
        };
        let names: Vec<String> = (0..key.len()).map(|n| format!("k{n}")).collect();
        let same: Vec<String> = key.iter().enumerate().map(|(n, key)| format!("t.{key} = k.k{n}")).collect();
        let of_t: Vec<String> = columns.iter().map(|column| format!("t.{column}")).collect();
        let names = names.join(", ");
        let same = same.join(" AND ");
        let by_keys = format!(
            "SELECT k.n, {} FROM unnest({key_arrays}) WITH ORDINALITY AS k({names}, n) JOIN {name} AS t ON {same}",
            of_t.join(", ")
        );
        let delete_keys =
            format!("DELETE FROM {name} AS t USING unnest({key_arrays}) AS k({names}) WHERE {same}");
        PgTable {
            copy: format!("COPY {name} ({list}) FROM STDIN (FORMAT binary)"),
            all: format!("SELECT {list} FROM {name}"),
            table,
            name,
            columns,
            height,
            insert,
            upsert,
            restore,
            by_keys,
            delete_keys,
        }
    }

    /// Every table of the catalog, in its order.
    pub(super) fn of_catalog(catalog: &Catalog) -> Vec<PgTable> {
        catalog.tables().iter().map(|table| PgTable::new(table.clone())).collect()
    }

    /// Heights in one partition; `None` for a table without partitions.
    pub(super) fn partition_heights(&self) -> Option<u64> {
        self.table.partition_heights()
    }

    /// The columns between the parentheses of `CREATE TABLE`, the primary key included.
    pub(super) fn body(&self) -> String {
        let mut parts: Vec<String> = self
            .table
            .def()
            .columns
            .iter()
            .zip(&self.columns)
            .map(|(column, name)| {
                let null = if column.nullable { "" } else { " NOT NULL" };
                format!("{name} {}{null}", sql_type(column.ty))
            })
            .collect();
        parts.push(format!("PRIMARY KEY ({})", self.quoted_columns(self.table.key_columns())));
        parts.join(", ")
    }

    /// These columns, quoted, with commas.
    pub(super) fn quoted_columns(&self, at: &[usize]) -> String {
        at.iter().map(|&at| self.columns[at].as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The columns of a secondary index, those of the key that complete it included.
    pub(super) fn index_columns(&self, index: &IndexDef) -> Result<String> {
        Ok(self.quoted_columns(self.table.index_columns(Some(index.name))?))
    }

    /// The row in a result whose columns from `first` on are the table's.
    pub(super) fn read(&self, row: &PgRow, first: usize) -> Result<Row> {
        let columns = self.table.def().columns.iter().enumerate();
        columns
            .map(|(at, column)| read_field(row, first + at, column.ty))
            .collect::<Result<Vec<_>>>()
            .map(Row)
    }
}

/// Rows, or keys, turned into one array a column.
pub(super) struct Arrays<'a>(Vec<Vec<Field<'a>>>);

impl<'a> Arrays<'a> {
    pub(super) fn of_rows(width: usize, rows: impl IntoIterator<Item = &'a Row>) -> Arrays<'a> {
        Arrays::of(width, rows.into_iter().map(|row| row.0.as_slice()))
    }

    pub(super) fn of_keys(width: usize, keys: impl IntoIterator<Item = &'a Key>) -> Arrays<'a> {
        Arrays::of(width, keys.into_iter().map(|key| key.0.as_slice()))
    }

    fn of(width: usize, rows: impl Iterator<Item = &'a [Value]>) -> Arrays<'a> {
        let mut arrays: Vec<Vec<Field<'a>>> =
            (0..width).map(|_| Vec::with_capacity(rows.size_hint().0)).collect();
        for row in rows {
            for (array, value) in arrays.iter_mut().zip(row) {
                array.push(Field(value));
            }
        }
        Arrays(arrays)
    }

    /// As parameters, in the order of the columns.
    pub(super) fn params(&self) -> Vec<Param<'_>> {
        self.0.iter().map(|array| array as Param<'_>).collect()
    }
}

/// Cuts rows into runs of about `max_bytes`, at least one row each.
pub(super) fn runs<T>(rows: &[T], max_bytes: usize, size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let (mut from, mut bytes) = (0, 0usize);
    for (at, row) in rows.iter().enumerate() {
        let row_bytes = size(row);
        if at > from && bytes + row_bytes > max_bytes {
            runs.push(&rows[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += row_bytes;
    }
    if from < rows.len() {
        runs.push(&rows[from..]);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_bounded_by_bytes_and_leave_nothing_out() {
        let rows = [3, 3, 3, 9, 1, 1];
        let cut = runs(&rows, 6, |bytes| *bytes);
        assert_eq!(cut, [&[3, 3][..], &[3], &[9], &[1, 1]]);
        assert!(runs(&[], 6, |bytes: &usize| *bytes).is_empty());
    }
}
