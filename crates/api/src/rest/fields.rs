//! A derived row read by the names of its columns.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::Height;
use cairn_store::derived::{Catalog, Row, Table, Value};

use super::problem::Problem;
use super::words::{Address, Amount, Data, Hash, Num, SumOf};

/// A row and what its fields mean.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    table: &'a Table,
    row: &'a Row,
}

/// The table of this name; its absence is the server's fault.
pub(crate) fn table<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a Arc<Table>, Problem> {
    catalog.table(name).map_err(Problem::internal)
}

impl<'a> Fields<'a> {
    pub(crate) fn new(table: &'a Table, row: &'a Row) -> Fields<'a> {
        Fields { table, row }
    }

    fn value(&self, name: &str) -> Result<&'a Value, Problem> {
        let at = self.table.column(name).map_err(Problem::internal)?;
        self.row.0.get(at).ok_or_else(|| self.wrong(name, "value"))
    }

    fn wrong(&self, name: &str, wanted: &str) -> Problem {
        Problem::internal(format!("a row of {} has no {wanted} in column {name}", self.table.name()))
    }

    fn need<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, Problem> {
        read(self.value(name)?).ok_or_else(|| self.wrong(name, wanted))
    }

    fn may<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        match self.value(name)? {
            Value::Null => Ok(None),
            value => read(value).map(Some).ok_or_else(|| self.wrong(name, wanted)),
        }
    }

    pub(crate) fn uint(&self, name: &str) -> Result<u64, Problem> {
        self.need(name, "count", |value| value.as_int()?.try_into().ok())
    }

    pub(crate) fn num(&self, name: &str) -> Result<Num, Problem> {
        self.uint(name).map(Num)
    }

    pub(crate) fn opt_num(&self, name: &str) -> Result<Option<Num>, Problem> {
        Ok(self.may(name, "count", |value| value.as_int()?.try_into().ok())?.map(Num))
    }

    /// A count. One below 0, which only a damaged store has, is an error.
    pub(crate) fn count(&self, name: &str) -> Result<Num, Problem> {
        self.num(name)
    }

    /// A number that may be negative.
    pub(crate) fn signed(&self, name: &str) -> Result<i64, Problem> {
        self.need(name, "number", Value::as_int)
    }

    pub(crate) fn height(&self, name: &str) -> Result<Height, Problem> {
        self.uint(name).map(Height)
    }

    pub(crate) fn index(&self, name: &str) -> Result<u32, Problem> {
        self.need(name, "index", |value| value.as_int()?.try_into().ok())
    }

    pub(crate) fn opt_index(&self, name: &str) -> Result<Option<u32>, Problem> {
        self.may(name, "index", |value| value.as_int()?.try_into().ok())
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<bool, Problem> {
        self.need(name, "truth value", Value::as_bool)
    }

    pub(crate) fn opt_boolean(&self, name: &str) -> Result<Option<bool>, Problem> {
        self.may(name, "truth value", Value::as_bool)
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Bytes, Problem> {
        self.need(name, "bytes", |value| value.as_bytes().cloned())
    }

    pub(crate) fn opt_bytes(&self, name: &str) -> Result<Option<Bytes>, Problem> {
        self.may(name, "bytes", |value| value.as_bytes().cloned())
    }

    pub(crate) fn hash(&self, name: &str) -> Result<Hash, Problem> {
        self.bytes(name).map(Hash)
    }

    pub(crate) fn opt_hash(&self, name: &str) -> Result<Option<Hash>, Problem> {
        Ok(self.opt_bytes(name)?.map(Hash))
    }

    pub(crate) fn address(&self, name: &str) -> Result<Address, Problem> {
        self.bytes(name).map(Address)
    }

    pub(crate) fn opt_address(&self, name: &str) -> Result<Option<Address>, Problem> {
        Ok(self.opt_bytes(name)?.map(Address))
    }

    pub(crate) fn opt_data(&self, name: &str) -> Result<Option<Data>, Problem> {
        Ok(self.opt_bytes(name)?.map(Data))
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, Problem> {
        self.need(name, "text", |value| value.as_text().map(str::to_owned))
    }

    pub(crate) fn opt_text(&self, name: &str) -> Result<Option<String>, Problem> {
        self.may(name, "text", |value| value.as_text().map(str::to_owned))
    }

    pub(crate) fn amount(&self, name: &str) -> Result<Amount, Problem> {
        self.need(name, "amount", Value::as_amount).map(Amount)
    }

    pub(crate) fn opt_amount(&self, name: &str) -> Result<Option<Amount>, Problem> {
        Ok(self.may(name, "amount", Value::as_amount)?.map(Amount))
    }

    pub(crate) fn sum(&self, name: &str) -> Result<SumOf, Problem> {
        self.need(name, "sum", |value| value.as_sum().copied()).map(SumOf)
    }
}
