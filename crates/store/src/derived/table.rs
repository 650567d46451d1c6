//! What a derived table is: columns, key, indexes, and how a reorg undoes its rows.
//!
//! A [`TableDef`] is a constant beside the processor that fills it. Backends make their SQL from it, so that a new processor
//! is one file and a store never learns what a table means.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::row::{Key, Row};
use super::value::{ColumnType, Value};
use crate::{Result, StoreError};

/// The first column of every table of events.
pub const BLOCK_HEIGHT: &str = "block_height";
/// The column of a table of state that says which block changed the row last.
pub const LAST_HEIGHT: &str = "last_height";
/// The column of a table of answers that says at which block a node was asked.
pub const ASKED_AT_HEIGHT: &str = "asked_at_height";

/// How the rows of a table come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableClass {
    /// Rows keyed by their place in the chain, made once and never changed. A reorg deletes those above the common block.
    /// The first column is `block_height`; partitioned by it where the backend can, each partition so many heights.
    Events {
        /// Heights in one partition.
        partition_heights: u64,
    },
    /// The present state of things, folded from events in chain order. A reorg restores rows from the undo table. Rows are never
    /// deleted by a folder. Has a column `last_height`.
    State,
    /// What a node was asked. Of a key the answer that was asked at the highest block counts; a reorg deletes those that were asked above the
    /// common block, and restores the ones whose place they took ([`super::answers`]). Has a column `asked_at_height`.
    Answers,
    /// Keyed by its content, and so true for ever: written once, untouched by reorgs.
    Content,
}

/// How a folder's change to a column meets what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// Part of the key, or of a table that isn't folded.
    Keep,
    /// Numbers are added; `Int` and `Sum` only.
    Sum,
    /// The first one stays.
    First,
    /// The last one wins, by position in the chain.
    Last,
}

/// One column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name in SQL.
    pub name: &'static str,
    /// What it holds.
    pub ty: ColumnType,
    /// Whether it may be null.
    pub nullable: bool,
    /// How changes to it are folded.
    pub merge: Merge,
}

/// A column that is never null.
pub const fn column(name: &'static str, ty: ColumnType) -> Column {
    Column { name, ty, nullable: false, merge: Merge::Keep }
}

impl Column {
    /// It may be null.
    pub const fn nullable(self) -> Column {
        Column { nullable: true, ..self }
    }

    /// Changes to it are folded so.
    pub const fn merged(self, merge: Merge) -> Column {
        Column { merge, ..self }
    }
}

/// An index. It ends in whatever columns of the key it doesn't name, so that its order is total and a place in it is a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexDef {
    /// Its name; unique among the table's.
    pub name: &'static str,
    /// Its leading columns. Those by which it is ordered, rather than only asked for equality, are never null.
    pub columns: &'static [&'static str],
}

/// A table.
#[derive(Debug, PartialEq, Eq)]
pub struct TableDef {
    /// Its name, without a schema.
    pub name: &'static str,
    /// The service whose checkpoint bounds it: the one worker that writes it.
    pub service: &'static str,
    /// How its rows come and go.
    pub class: TableClass,
    /// The columns in order.
    pub columns: &'static [Column],
    /// The primary key; none of its columns is null.
    pub key: &'static [&'static str],
    /// Further indexes.
    pub indexes: &'static [IndexDef],
}

/// A table with its names resolved.
#[derive(Debug)]
pub struct Table {
    def: &'static TableDef,
    key: Vec<usize>,
    /// Column numbers of each index, the rest of the key included.
    indexes: Vec<Vec<usize>>,
    height: Option<usize>,
    /// Its definition's, with the partitions that it is to have.
    class: TableClass,
}

impl Table {
    /// Resolves and checks a definition; says what is wrong with it.
    pub fn new(def: &'static TableDef) -> Result<Table> {
        let wrong = |what: &str| StoreError::Invalid(format!("table {}: {what}", def.name));
        let find = |name: &str| {
            def.columns
                .iter()
                .position(|column| column.name == name)
                .ok_or_else(|| wrong(&format!("there is no column {name}")))
        };
        let key = def.key.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
        if key.is_empty() || key.iter().any(|&at| def.columns[at].nullable) {
            return Err(wrong("a key has columns, none of them null"));
        }
        let mut indexes = Vec::with_capacity(def.indexes.len());
        for (n, index) in def.indexes.iter().enumerate() {
            if def.indexes[..n].iter().any(|other| other.name == index.name) {
                return Err(wrong(&format!("two indexes are named {}", index.name)));
            }
            let mut columns = index.columns.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?;
            columns.extend(key.iter().copied().filter(|at| !index.columns.contains(&def.columns[*at].name)));
            indexes.push(columns);
        }
        let height = match def.class {
            TableClass::Events { partition_heights: 0 } => return Err(wrong("a partition has heights")),
            TableClass::Events { .. } if def.columns[0].name != BLOCK_HEIGHT || key.first() != Some(&0) => {
                return Err(wrong("a table of events begins with block_height, its key too"));
            }
            TableClass::Events { .. } => Some(0),
            TableClass::State => Some(find(LAST_HEIGHT)?),
            TableClass::Answers => Some(find(ASKED_AT_HEIGHT)?),
            TableClass::Content => None,
        };
        Ok(Table { def, key, indexes, height, class: def.class })
    }

    /// The class, with the size that partitions have here.
    pub fn class(&self) -> TableClass {
        self.class
    }

    /// Heights in one partition, where a backend has such; `None` for tables that are in one piece.
    pub fn partition_heights(&self) -> Option<u64> {
        match self.class {
            TableClass::Events { partition_heights } => Some(partition_heights),
            TableClass::State | TableClass::Answers | TableClass::Content => None,
        }
    }

    /// The definition.
    pub fn def(&self) -> &'static TableDef {
        self.def
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.def.name
    }

    /// The key's column numbers.
    pub fn key_columns(&self) -> &[usize] {
        &self.key
    }

    /// The column number of the height that bounds or guards its rows.
    pub fn height_column(&self) -> Option<usize> {
        self.height
    }

    /// The column numbers of an index in its order, the rest of the key included; of the key for `None`.
    pub fn index_columns(&self, index: Option<&str>) -> Result<&[usize]> {
        let Some(name) = index else { return Ok(&self.key) };
        self.def
            .indexes
            .iter()
            .position(|index| index.name == name)
            .map(|n| self.indexes[n].as_slice())
            .ok_or_else(|| StoreError::Invalid(format!("table {} has no index {name}", self.def.name)))
    }

    /// Whether an index is ordered by something that changes, and that a reorg restores: by anything but the key, in a table of state or answers.
    pub fn is_ordered_by_state(&self, index: Option<&str>) -> Result<bool> {
        Ok(matches!(self.def.class, TableClass::State | TableClass::Answers)
            && self.index_columns(index)?.iter().any(|column| !self.key.contains(column)))
    }

    /// The number of a column.
    pub fn column(&self, name: &str) -> Result<usize> {
        self.def
            .columns
            .iter()
            .position(|column| column.name == name)
            .ok_or_else(|| StoreError::Invalid(format!("table {} has no column {name}", self.def.name)))
    }

    /// The key of a row.
    pub fn key_of(&self, row: &Row) -> Key {
        Key(self.key.iter().map(|&at| row.0[at].clone()).collect())
    }

    /// Demands the right number of fields, of the right types, and no null where none may be.
    pub fn check(&self, row: &Row) -> Result<()> {
        let wrong = |what: String| Err(StoreError::Invalid(format!("table {}: {what}", self.def.name)));
        if row.0.len() != self.def.columns.len() {
            return wrong(format!("a row has {} fields, not {}", self.def.columns.len(), row.0.len()));
        }
        for (value, column) in row.0.iter().zip(self.def.columns) {
            if !value.is_of(column.ty) || (value.is_null() && !column.nullable) {
                return wrong(format!("{value} can't stand in column {}", column.name));
            }
            if matches!(value, Value::Text(text) if text.contains('\0')) {
                return wrong(format!("text with a NUL byte in column {}", column.name));
            }
        }
        Ok(())
    }
}

/// All tables of an app store, by name. Order: as registered, which is the order in which every writer touches them (P02).
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    tables: Arc<Vec<Arc<Table>>>,
}

impl Catalog {
    /// Resolves and checks every definition; two of one name are an error.
    pub fn new(defs: impl IntoIterator<Item = &'static TableDef>) -> Result<Catalog> {
        let mut tables: Vec<Arc<Table>> = Vec::new();
        for def in defs {
            if tables.iter().any(|table| table.name() == def.name) {
                return Err(StoreError::Invalid(format!("two tables are named {}", def.name)));
            }
            tables.push(Arc::new(Table::new(def)?));
        }
        Ok(Catalog { tables: Arc::new(tables) })
    }

    /// The same tables with partitions of `all` heights, where that is given, and of these for single ones, by name. A name that isn't that of a table with
    /// partitions is an error, and so are partitions without heights.
    pub fn with_partitions(&self, all: Option<u64>, single: &BTreeMap<String, u64>) -> Result<Catalog> {
        let has_partitions = |name: &str| {
            self.tables.iter().any(|table| table.name() == name && table.partition_heights().is_some())
        };
        if let Some(name) = single.keys().find(|name| !has_partitions(name)) {
            let known: Vec<_> =
                self.tables.iter().map(|table| table.name()).filter(|name| has_partitions(name)).collect();
            return Err(StoreError::Invalid(format!(
                "there is no table `{name}` with partitions; there are {}",
                known.join(", ")
            )));
        }
        let mut tables = Vec::with_capacity(self.tables.len());
        for table in self.tables.iter() {
            let size = single.get(table.name()).copied().or(all);
            let mut sized = Table::new(table.def)?;
            if let (Some(partition_heights), Some(_)) = (size, table.partition_heights()) {
                if partition_heights == 0 {
                    return Err(StoreError::Invalid(format!(
                        "table {}: a partition has heights",
                        table.name()
                    )));
                }
                sized.class = TableClass::Events { partition_heights };
            }
            tables.push(Arc::new(sized));
        }
        Ok(Catalog { tables: Arc::new(tables) })
    }

    /// Every table in order.
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// The table of this name.
    pub fn table(&self, name: &str) -> Result<&Arc<Table>> {
        self.tables
            .iter()
            .find(|table| table.name() == name)
            .ok_or_else(|| StoreError::Invalid(format!("the catalog has no table {name}")))
    }

    /// The tables that a service writes.
    pub fn of_service(&self, service: &str) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter().filter(move |table| table.def().service == service)
    }
}
