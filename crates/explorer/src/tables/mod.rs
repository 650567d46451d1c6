//! Every derived table: columns, keys, indexes. One file a family.
//!
//! * Columns are chain-neutral: addresses are bytes of any length, transaction ids 32 bytes, `contract_name` is empty on EVM chains. What
//!   only EVM chains have is in [`evm`], what only Flow has in [`flow`].
//! * Rows of events carry what a list shows, so that nothing is joined with the raw database: `transaction_index` and the time, in
//!   milliseconds since 1970.
//! * The index of a list ends in the full position in the chain (height, transaction, event, sub-index), so that a place in it is a
//!   unique cursor; the rest of the key follows it by itself.
//! * `event_index` is, on EVM chains, the log's place in its block: the `logIndex` of the JSON-RPC; on Flow the event's place in its
//!   transaction.
//! * A struct beside a table's definition writes and reads its rows, in the order of its columns.

use alloy_primitives::B256;
use bytes::Bytes;
use cairn_core::{BlockRef, TxStatus};
use cairn_pipeline::derive::processor::ProcessError;
use cairn_store::derived::{Row, TableDef, U256, Value};

pub mod accounts;
pub mod contracts;
pub mod evm;
pub mod flow;
pub mod holdings;
pub mod metadata;
pub mod nfts;
pub mod stats;
pub mod transactions;
pub mod transfers;

/// Heights in one partition of the large tables (the schema plan's default).
pub const LARGE_PARTITION_HEIGHTS: u64 = 10_000_000;
/// Heights in one partition of small tables that are looked up across all heights: few partitions, few probes.
pub const LOOKUP_PARTITION_HEIGHTS: u64 = 50_000_000;
/// Data up to so many bytes is kept in a row; of more, its hash and length (the schema plan's 8 KB rule).
pub const INLINE_MAX_BYTES: usize = 8_192;

/// The word of a status: `ok`, `failed`, `unknown` (E08).
pub const fn status_name(status: TxStatus) -> &'static str {
    match status {
        TxStatus::Ok => "ok",
        TxStatus::Failed => "failed",
        TxStatus::Unknown => "unknown",
    }
}

/// A row of a table of ours that doesn't read as one: the store is damaged, or an older version wrote it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a row of {table} has no {wanted} in column {column}")]
pub struct RowError {
    /// The table.
    pub table: &'static str,
    /// The column's name, or its number where the row is too long or too short.
    pub column: String,
    /// What should be there.
    pub wanted: &'static str,
}

impl RowError {
    /// As what a processor answers.
    pub fn in_block(self, block: BlockRef) -> ProcessError {
        ProcessError { block, message: self.to_string() }
    }
}

/// Reads a row field by field, in the order of its columns.
pub(crate) struct Fields<'a> {
    table: &'static TableDef,
    row: &'a Row,
    at: usize,
}

impl<'a> Fields<'a> {
    pub fn of(table: &'static TableDef, row: &'a Row) -> Self {
        Fields { table, row, at: 0 }
    }

    fn take<T>(
        &mut self,
        wanted: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, RowError> {
        let at = self.at;
        self.at += 1;
        self.row.0.get(at).and_then(read).ok_or_else(|| RowError {
            table: self.table.name,
            column: self.table.columns.get(at).map_or_else(|| at.to_string(), |column| column.name.into()),
            wanted,
        })
    }

    pub fn uint(&mut self) -> Result<u64, RowError> {
        self.take("count", |value| value.as_int()?.try_into().ok())
    }

    pub fn index(&mut self) -> Result<u32, RowError> {
        self.take("index", |value| value.as_int()?.try_into().ok())
    }

    pub fn boolean(&mut self) -> Result<bool, RowError> {
        self.take("truth value", Value::as_bool)
    }

    pub fn opt_boolean(&mut self) -> Result<Option<bool>, RowError> {
        self.take("truth value", |value| if value.is_null() { Some(None) } else { value.as_bool().map(Some) })
    }

    pub fn bytes(&mut self) -> Result<Bytes, RowError> {
        self.take("bytes", |value| value.as_bytes().cloned())
    }

    pub fn opt_bytes(&mut self) -> Result<Option<Bytes>, RowError> {
        self.take(
            "bytes",
            |value| {
                if value.is_null() { Some(None) } else { value.as_bytes().cloned().map(Some) }
            },
        )
    }

    pub fn hash(&mut self) -> Result<B256, RowError> {
        self.take("hash", |value| B256::try_from(&value.as_bytes()?[..]).ok())
    }

    pub fn opt_hash(&mut self) -> Result<Option<B256>, RowError> {
        self.take("hash", |value| match value {
            Value::Null => Some(None),
            value => B256::try_from(&value.as_bytes()?[..]).ok().map(Some),
        })
    }

    pub fn opt_uint(&mut self) -> Result<Option<u64>, RowError> {
        self.take("count", |value| match value {
            Value::Null => Some(None),
            value => value.as_int()?.try_into().ok().map(Some),
        })
    }

    /// An amount of at most 64 bits, or null.
    pub fn opt_number(&mut self) -> Result<Option<u64>, RowError> {
        self.take("number of 64 bits", |value| match value {
            Value::Null => Some(None),
            value => value.as_amount()?.try_into().ok().map(Some),
        })
    }

    pub fn text(&mut self) -> Result<&'a str, RowError> {
        self.take("text", Value::as_text)
    }

    pub fn opt_text(&mut self) -> Result<Option<String>, RowError> {
        self.take("text", |value| match value {
            Value::Null => Some(None),
            value => value.as_text().map(|text| Some(text.to_owned())),
        })
    }

    pub fn amount(&mut self) -> Result<U256, RowError> {
        self.take("amount", Value::as_amount)
    }

    pub fn opt_amount(&mut self) -> Result<Option<U256>, RowError> {
        self.take("amount", |value| if value.is_null() { Some(None) } else { value.as_amount().map(Some) })
    }
}

/// A value, or null.
pub(crate) fn opt<T>(value: Option<T>, to: impl FnOnce(T) -> Value) -> Value {
    value.map_or(Value::Null, to)
}

/// Bytes, not copied, or null.
pub(crate) fn opt_bytes(value: &Option<Bytes>) -> Value {
    opt(value.clone(), Value::Bytes)
}
