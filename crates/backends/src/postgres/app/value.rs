//! Fields of derived rows as parameters, columns and COPY data.

use bytes::{BufMut, Bytes, BytesMut};
use cairn_store::derived::{ColumnType, SUM_BYTES, Sum, U256, Value};
use cairn_store::{Result, StoreError};
use tokio_postgres::Row as PgRow;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::postgres::copy::put_numeric;
use crate::postgres::error::corrupt;
use crate::postgres::{CopyBuf, PgNumeric};

/// A field as a parameter, or as an element of an array that is one.
#[derive(Debug)]
pub(super) struct Field<'a>(pub(super) &'a Value);

impl ToSql for Field<'_> {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> std::result::Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self.0 {
            Value::Null => return Ok(IsNull::Yes),
            Value::Bool(value) => out.put_u8(u8::from(*value)),
            Value::Int(value) => out.put_i64(*value),
            Value::Amount(value) => put_numeric(false, &value.to_be_bytes::<32>(), out),
            Value::Sum(value) => {
                let (negative, magnitude) = parts(value);
                put_numeric(negative, &magnitude, out);
            }
            Value::Bytes(value) => out.put_slice(value),
            Value::Text(value) => out.put_slice(value.as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        [Type::BOOL, Type::INT8, Type::NUMERIC, Type::BYTEA, Type::TEXT].contains(ty)
    }

    to_sql_checked!();
}

/// A sum's sign and magnitude, big-endian.
fn parts(sum: &Sum) -> (bool, [u8; SUM_BYTES - 1]) {
    let sortable = sum.to_sortable();
    let negative = sortable[0] == 0;
    let mut magnitude = [0; SUM_BYTES - 1];
    magnitude.copy_from_slice(&sortable[1..]);
    if negative {
        magnitude.iter_mut().for_each(|byte| *byte = !*byte);
    }
    (negative, magnitude)
}

fn sum_of(number: &PgNumeric) -> Option<Sum> {
    let mut sortable = [0; SUM_BYTES];
    let at = SUM_BYTES.checked_sub(number.magnitude.len()).filter(|at| *at > 0)?;
    sortable[at..].copy_from_slice(&number.magnitude);
    if number.negative {
        sortable[1..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    sortable[0] = u8::from(!number.negative);
    Sum::from_sortable(&sortable)
}

/// Appends a field to a row of COPY data.
pub(super) fn copy_field(buf: &mut CopyBuf, value: &Value) {
    match value {
        Value::Null => buf.null(),
        Value::Bool(value) => buf.bool(*value),
        Value::Int(value) => buf.i64(*value),
        Value::Amount(value) => buf.numeric(&value.to_be_bytes::<32>()),
        Value::Sum(value) => {
            let (negative, magnitude) = parts(value);
            buf.numeric_signed(negative, &magnitude)
        }
        Value::Bytes(value) => buf.bytea(value),
        Value::Text(value) => buf.text(value),
    };
}

/// A column of a result.
pub(super) fn read_field(row: &PgRow, at: usize, ty: ColumnType) -> Result<Value> {
    let failed = |error: tokio_postgres::Error| crate::postgres::error::db(error);
    let null = || Ok(Value::Null);
    match ty {
        ColumnType::Bool => {
            row.try_get::<_, Option<bool>>(at).map_err(failed)?.map(Value::Bool).map_or_else(null, Ok)
        }
        ColumnType::Int => {
            row.try_get::<_, Option<i64>>(at).map_err(failed)?.map(Value::Int).map_or_else(null, Ok)
        }
        ColumnType::Bytes => row
            .try_get::<_, Option<&[u8]>>(at)
            .map_err(failed)?
            .map(|bytes| Value::Bytes(Bytes::copy_from_slice(bytes)))
            .map_or_else(null, Ok),
        ColumnType::Text => row
            .try_get::<_, Option<&str>>(at)
            .map_err(failed)?
            .map(|text| Value::Text(text.to_owned()))
            .map_or_else(null, Ok),
        ColumnType::Amount => {
            let Some(number) = row.try_get::<_, Option<PgNumeric>>(at).map_err(failed)? else {
                return null();
            };
            let bytes = number.to_be_bytes32().ok_or_else(|| not_a(row, at, "an amount of 256 bits"))?;
            Ok(Value::Amount(U256::from_be_bytes(bytes)))
        }
        ColumnType::Sum => {
            let Some(number) = row.try_get::<_, Option<PgNumeric>>(at).map_err(failed)? else {
                return null();
            };
            let sum = sum_of(&number).ok_or_else(|| not_a(row, at, "a sum of 320 bits"))?;
            Ok(Value::Sum(Box::new(sum)))
        }
    }
}

fn not_a(row: &PgRow, at: usize, what: &str) -> StoreError {
    let name = row.columns().get(at).map_or("?", |column| column.name());
    corrupt(format!("column {name}"), format!("a number that is not {what}"))
}

/// The column's type in SQL.
pub(super) fn sql_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::Bool => "BOOLEAN",
        ColumnType::Int => "BIGINT",
        ColumnType::Amount => "NUMERIC(78,0)",
        ColumnType::Sum => "NUMERIC",
        ColumnType::Bytes => "BYTEA",
        ColumnType::Text => "TEXT COLLATE \"C\"",
    }
}

/// The type of a parameter.
pub(super) fn param_type(ty: ColumnType) -> &'static str {
    match ty {
        ColumnType::Bool => "boolean",
        ColumnType::Int => "bigint",
        ColumnType::Amount | ColumnType::Sum => "numeric",
        ColumnType::Bytes => "bytea",
        ColumnType::Text => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_back_from_their_parts() {
        let most = Sum::from(U256::MAX);
        for sum in [Sum::ZERO, most, -most, most + most, -(most + most), Sum::from(U256::from(1))] {
            let (negative, magnitude) = parts(&sum);
            let number = PgNumeric { negative, ..PgNumeric::unsigned(&magnitude) };
            assert_eq!(sum_of(&number), Some(sum));
        }
        assert_eq!(sum_of(&PgNumeric { negative: false, magnitude: vec![1; 41] }), None);
    }
}
