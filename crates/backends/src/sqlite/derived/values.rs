//! Values and SQLite's columns: integers and truth values are `INTEGER`, amounts 32 bytes big-endian, sums their sortable bytes.

use cairn_store::derived::{ColumnType, Sum, U256, Value};
use rusqlite::types::{Null, ValueRef};
use rusqlite::{Row, Statement};

/// Of an amount.
const AMOUNT_BYTES: usize = 32;

/// The type of a column in a `STRICT` table.
pub(super) fn sql_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::Bool | ColumnType::Int => "INTEGER",
        ColumnType::Amount | ColumnType::Sum | ColumnType::Bytes => "BLOB",
        ColumnType::Text => "TEXT",
    }
}

/// Binds a value; parameters count from 1.
pub(super) fn bind(statement: &mut Statement<'_>, at: usize, value: &Value) -> rusqlite::Result<()> {
    match value {
        Value::Null => statement.raw_bind_parameter(at, Null),
        Value::Bool(b) => statement.raw_bind_parameter(at, *b),
        Value::Int(n) => statement.raw_bind_parameter(at, *n),
        Value::Amount(amount) => {
            statement.raw_bind_parameter(at, amount.to_be_bytes::<AMOUNT_BYTES>().as_slice())
        }
        Value::Sum(sum) => statement.raw_bind_parameter(at, sum.to_sortable().as_slice()),
        Value::Bytes(bytes) => statement.raw_bind_parameter(at, bytes.as_ref()),
        Value::Text(text) => statement.raw_bind_parameter(at, text.as_str()),
    }
}

/// The value in a column of this type; anything else in it is damage.
pub(super) fn read(row: &Row<'_>, at: usize, ty: ColumnType) -> rusqlite::Result<Value> {
    let stored = row.get_ref(at)?;
    let value = match (ty, stored) {
        (_, ValueRef::Null) => Some(Value::Null),
        (ColumnType::Bool, ValueRef::Integer(n @ (0 | 1))) => Some(Value::Bool(n == 1)),
        (ColumnType::Int, ValueRef::Integer(n)) => Some(Value::Int(n)),
        (ColumnType::Amount, ValueRef::Blob(bytes)) if bytes.len() == AMOUNT_BYTES => {
            Some(Value::Amount(U256::from_be_slice(bytes)))
        }
        (ColumnType::Sum, ValueRef::Blob(bytes)) => {
            Sum::from_sortable(bytes).map(|sum| Value::Sum(Box::new(sum)))
        }
        (ColumnType::Bytes, ValueRef::Blob(bytes)) => Some(Value::bytes(bytes)),
        (ColumnType::Text, ValueRef::Text(text)) => {
            std::str::from_utf8(text).ok().map(|text| Value::Text(text.to_owned()))
        }
        _ => None,
    };
    value.ok_or_else(|| {
        let name = row.as_ref().column_name(at).unwrap_or("?").to_owned();
        rusqlite::Error::InvalidColumnType(at, name, stored.data_type())
    })
}
