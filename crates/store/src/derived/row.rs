//! Rows, keys, changes, and the bytes in which a row is kept in the undo table.

use bytes::{BufMut, Bytes, BytesMut};
use cairn_core::Height;

use super::table::{Merge, Table};
use super::value::{Sum, U256, Value};
use crate::{Result, StoreError};

/// A row: one value a column, in the table's order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Row(pub Vec<Value>);

/// A key: one value a key column, in the key's order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub Vec<Value>);

impl Row {
    /// The memory that it takes, in bytes, about.
    pub fn size_bytes(&self) -> usize {
        std::mem::size_of::<Row>() + self.0.iter().map(Value::size_bytes).sum::<usize>()
    }

    /// As bytes: see [`Row::decode`]. Persisted in undo tables; the first byte is the version.
    pub fn encode(&self) -> Bytes {
        encode(&self.0)
    }

    /// A row from bytes that [`Row::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Row> {
        decode(bytes).map(Row)
    }
}

impl Key {
    /// As bytes, for undo tables. Equal keys make equal bytes; their order means nothing.
    pub fn encode(&self) -> Bytes {
        encode(&self.0)
    }

    /// A key from bytes that [`Key::encode`] made.
    pub fn decode(bytes: &[u8]) -> Result<Key> {
        decode(bytes).map(Key)
    }
}

/// What a folder does to one row in one block: for each column a change, or nothing. Key columns are always given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change(pub Vec<Option<Value>>);

impl Change {
    /// The key of the row that it changes.
    pub fn key(&self, table: &Table) -> Result<Key> {
        let field = |&at: &usize| {
            self.0.get(at).cloned().flatten().ok_or_else(|| {
                StoreError::Invalid(format!("table {}: a change without its whole key", table.name()))
            })
        };
        table.key_columns().iter().map(field).collect::<Result<Vec<_>>>().map(Key)
    }

    /// Lays a change of the block at `height` over a row, by the columns' merge rules. A column of a new row that no change
    /// speaks of is zero where it sums and null otherwise.
    pub fn apply(&self, table: &Table, before: Option<&Row>, height: Height) -> Result<Row> {
        let columns = table.def().columns;
        if self.0.len() != columns.len() {
            return Err(StoreError::Invalid(format!(
                "table {}: a change has {} fields, not {}",
                table.name(),
                columns.len(),
                self.0.len()
            )));
        }
        let mut row = Vec::with_capacity(columns.len());
        for (at, (column, change)) in columns.iter().zip(&self.0).enumerate() {
            let old = before.map_or(&Value::Null, |row| &row.0[at]);
            let new = if table.height_column() == Some(at) {
                Value::height(height)
            } else {
                match (column.merge, change) {
                    (Merge::Sum, change) => add(table, column, old, change.as_ref().unwrap_or(&Value::Null))?,
                    (Merge::Keep | Merge::First, Some(value)) if old.is_null() => value.clone(),
                    (Merge::Last, Some(value)) => value.clone(),
                    _ => old.clone(),
                }
            };
            row.push(new);
        }
        let row = Row(row);
        table.check(&row)?;
        Ok(row)
    }
}

fn add(table: &Table, column: &super::table::Column, old: &Value, new: &Value) -> Result<Value> {
    use super::value::ColumnType;
    let wrong = |value: &Value| {
        StoreError::Invalid(format!(
            "table {}: {value} can't be added to column {}",
            table.name(),
            column.name
        ))
    };
    match column.ty {
        ColumnType::Int => {
            let number = |value: &Value| match value {
                Value::Null => Ok(0),
                value => value.as_int().ok_or_else(|| wrong(value)),
            };
            let sum = number(old)?.checked_add(number(new)?).ok_or_else(|| wrong(new))?;
            Ok(Value::Int(sum))
        }
        ColumnType::Sum => {
            let number = |value: &Value| match value {
                Value::Null => Ok(Sum::ZERO),
                value => value.as_sum().copied().ok_or_else(|| wrong(value)),
            };
            Ok(Value::Sum(Box::new(number(old)? + number(new)?)))
        }
        _ => Err(wrong(new)),
    }
}

/// The version of the encoding.
const VERSION: u8 = 1;

fn encode(values: &[Value]) -> Bytes {
    let mut out = BytesMut::with_capacity(16 * values.len() + 8);
    out.put_u8(VERSION);
    out.put_u16(values.len() as u16);
    for value in values {
        match value {
            Value::Null => out.put_u8(0),
            Value::Bool(false) => out.put_u8(1),
            Value::Bool(true) => out.put_u8(2),
            Value::Int(n) => {
                out.put_u8(3);
                out.put_i64(*n);
            }
            Value::Amount(amount) => {
                out.put_u8(4);
                out.put_slice(&amount.to_be_bytes::<32>());
            }
            Value::Sum(sum) => {
                out.put_u8(5);
                out.put_slice(&sum.to_sortable());
            }
            Value::Bytes(bytes) => {
                out.put_u8(6);
                out.put_u32(bytes.len() as u32);
                out.put_slice(bytes);
            }
            Value::Text(text) => {
                out.put_u8(7);
                out.put_u32(text.len() as u32);
                out.put_slice(text.as_bytes());
            }
        }
    }
    out.freeze()
}

fn decode(bytes: &[u8]) -> Result<Vec<Value>> {
    let corrupt = |what: &str| StoreError::Corrupt { place: "an encoded row".into(), what: what.into() };
    let short = || corrupt("it ends too early");
    let mut rest = bytes;
    let mut take = |n: usize| -> Result<&[u8]> {
        let (head, tail) = rest.split_at_checked(n).ok_or_else(short)?;
        rest = tail;
        Ok(head)
    };
    if take(1)? != [VERSION] {
        return Err(corrupt("its version is unknown"));
    }
    let count = u16::from_be_bytes(take(2)?.try_into().map_err(|_| short())?);
    let mut values = Vec::with_capacity(usize::from(count.min(64)));
    for _ in 0..count {
        let value = match take(1)?[0] {
            0 => Value::Null,
            1 => Value::Bool(false),
            2 => Value::Bool(true),
            3 => Value::Int(i64::from_be_bytes(take(8)?.try_into().map_err(|_| short())?)),
            4 => Value::Amount(U256::from_be_slice(take(32)?)),
            5 => Value::Sum(Box::new(
                Sum::from_sortable(take(super::value::SUM_BYTES)?).ok_or_else(|| corrupt("no sum"))?,
            )),
            tag @ (6 | 7) => {
                let len = u32::from_be_bytes(take(4)?.try_into().map_err(|_| short())?);
                let data = take(len as usize)?;
                if tag == 6 {
                    Value::bytes(data)
                } else {
                    let text = std::str::from_utf8(data).map_err(|_| corrupt("text that is not UTF-8"))?;
                    Value::Text(text.to_owned())
                }
            }
            _ => return Err(corrupt("a field of unknown type")),
        };
        values.push(value);
    }
    if rest.is_empty() { Ok(values) } else { Err(corrupt("bytes are left over")) }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Column, LAST_HEIGHT, TableClass, TableDef, column};
    use super::super::value::ColumnType;
    use super::*;

    const COLUMNS: &[Column] = &[
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("owner", ColumnType::Bytes).nullable().merged(Merge::Last),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ];
    static TABLE: TableDef = TableDef {
        name: "holdings",
        service: "w",
        class: TableClass::State,
        columns: COLUMNS,
        key: &["address"],
        indexes: &[],
    };

    fn change(balance: Option<Value>, first: Option<Value>, owner: Option<Value>) -> Change {
        Change(vec![Some(Value::bytes(b"x")), balance, first, owner, None])
    }

    #[test]
    fn changes_are_folded_by_the_columns_rules() {
        let table = Table::new(&TABLE).expect("right");
        let first = change(Some(Value::sum(U256::from(7))), Some(Value::Int(3)), Some(Value::bytes(b"a")));
        let row = first.apply(&table, None, Height(3)).expect("folds");
        let later = change(Some(Value::minus(U256::from(9))), Some(Value::Int(5)), Some(Value::Null));
        let row = later.apply(&table, Some(&row), Height(5)).expect("folds");
        assert_eq!(row.0[1].to_string(), "-2");
        assert_eq!(row.0[2], Value::Int(3));
        assert_eq!(row.0[3], Value::Null);
        assert_eq!(row.0[4], Value::Int(5));
        let untouched = change(None, None, None).apply(&table, Some(&row), Height(6)).expect("folds");
        assert_eq!(untouched.0[1].to_string(), "-2");
        assert!(Change(vec![None; 5]).key(&table).is_err());
    }

    #[test]
    fn golden_encoding_of_a_row() {
        let row = Row(vec![
            Value::Null,
            Value::Bool(true),
            Value::Int(-2),
            Value::Amount(U256::from(1)),
            Value::minus(U256::from(1)),
            Value::bytes(&[0xab]),
            Value::text("é"),
        ]);
        let bytes = row.encode();
        let golden = concat!(
            "010007",
            "00",
            "02",
            "03fffffffffffffffe",
            "040000000000000000000000000000000000000000000000000000000000000001",
            "0500",
            "fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffe",
            "0600000001ab",
            "0700000002c3a9",
        );
        assert_eq!(hex::encode(&bytes), golden);
        assert_eq!(Row::decode(&bytes).expect("decodes"), row);
        for cut in 0..bytes.len() {
            assert!(Row::decode(&bytes[..cut]).is_err(), "{cut}");
        }
    }
}
