//! The catalog's tables in SQL: how they are made, and the statements on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use cairn_store::derived::{ASKED_AT_HEIGHT, Catalog, ColumnType, Merge, Row, Table, TableClass};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, TransactionBehavior, params};

use super::super::schema::APP;
use super::{db, values};

/// Statements write so many rows at once, as long as they bind no more than this many values.
const VALUES_PER_STATEMENT: usize = 256;

/// Rows that are wider than this, about, in bytes, don't live in the tree of their key.
const NARROW_BYTES: usize = 400;

/// One table, with its statements. All of them are cached by each connection.
#[derive(Debug)]
pub(super) struct TableSql {
    pub(super) table: Arc<Table>,
    /// Its name in quotes.
    pub(super) name: String,
    /// `SELECT every column FROM the table`.
    pub(super) select: String,
    pub(super) select_by_key: String,
    pub(super) delete_by_key: String,
    /// One row; and [`TableSql::rows_at_once`] of them.
    pub(super) insert: [String; 2],
    /// The same with no guard, for restoring state.
    pub(super) restore: String,
    pub(super) rows_at_once: usize,
    /// The column of [`Table::height_column`], in quotes.
    pub(super) height: Option<String>,
    /// What identifies a row in a subquery: the rowid, or the key.
    row_id: String,
    without_rowid: bool,
}

/// A name as SQL takes it whatever it is.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl TableSql {
    fn new(table: &Arc<Table>) -> TableSql {
        let def = table.def();
        let name = quoted(def.name);
        let names: Vec<String> = def.columns.iter().map(|column| quoted(column.name)).collect();
        let key: Vec<&str> = table.key_columns().iter().map(|&at| names[at].as_str()).collect();
        let height = table.height_column().map(|at| names[at].clone());
        let is_key: Vec<String> = key.iter().enumerate().map(|(n, k)| format!("{k} = ?{}", n + 1)).collect();
        let is_key = is_key.join(" AND ");

        let set: Vec<String> = names
            .iter()
            .filter(|column| !key.contains(&column.as_str()))
            .map(|column| format!("{column} = excluded.{column}"))
            .collect();
        let replace = if set.is_empty() {
            "DO NOTHING".to_owned()
        } else {
            format!("({}) DO UPDATE SET {}", key.join(", "), set.join(", "))
        };
        let on_conflict = match (def.class, &height) {
            (TableClass::Events { .. } | TableClass::Content, _) => "DO NOTHING".to_owned(),
            // The second line: nothing older ever overwrites something newer.
            (TableClass::State, Some(height)) if !set.is_empty() => {
                format!("{replace} WHERE excluded.{height} >= {name}.{height}")
            }
            _ => replace.clone(),
        };
        let one = format!("({})", vec!["?"; names.len()].join(","));
        let rows_at_once = (VALUES_PER_STATEMENT / names.len().max(1)).clamp(1, 32);
        let insert = |rows: usize, on_conflict: &str| {
            let rows = vec![one.as_str(); rows].join(",");
            format!("INSERT INTO {name} VALUES {rows} ON CONFLICT {on_conflict}")
        };
        let without_rowid = is_without_rowid(table);
        let select = format!("SELECT {} FROM {name}", names.join(", "));
        TableSql {
            select_by_key: format!("{select} WHERE {is_key}"),
            delete_by_key: format!("DELETE FROM {name} WHERE {is_key}"),
            insert: [insert(1, &on_conflict), insert(rows_at_once, &on_conflict)],
            restore: insert(1, &replace),
            row_id: if without_rowid { format!("({})", key.join(", ")) } else { "rowid".to_owned() },
            table: table.clone(),
            select,
            name,
            rows_at_once,
            height,
            without_rowid,
        }
    }

    /// `DELETE` of at most `?1` rows, whichever.
    pub(super) fn delete_some(&self) -> String {
        let columns = self.row_id.trim_matches(['(', ')']);
        format!(
            "DELETE FROM {name} WHERE {id} IN (SELECT {columns} FROM {name} LIMIT ?1)",
            name = self.name,
            id = self.row_id
        )
    }

    /// The index's name in SQL; that of the key for `None`.
    pub(super) fn index_name(&self, index: Option<&str>) -> String {
        match index {
            Some(index) => quoted(&format!("{}_{index}", self.table.name())),
            None => quoted(&format!("sqlite_autoindex_{}_1", self.table.name())),
        }
    }

    /// The row in a result of [`TableSql::select`].
    pub(super) fn read(&self, row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
        let columns = self.table.def().columns.iter().enumerate();
        columns.map(|(at, column)| values::read(row, at, column.ty)).collect::<rusqlite::Result<_>>().map(Row)
    }

    pub(super) fn is_events(&self) -> bool {
        matches!(self.table.def().class, TableClass::Events { .. })
    }

    fn create(&self) -> String {
        let def = self.table.def();
        let mut sql = format!("CREATE TABLE {} (", self.name);
        for column in def.columns {
            let null = if column.nullable { "" } else { " NOT NULL" };
            let _ = write!(sql, "{} {}{null}, ", quoted(column.name), values::sql_type(column.ty));
        }
        let key: Vec<String> = def.key.iter().map(|name| quoted(name)).collect();
        let without = if self.without_rowid { ", WITHOUT ROWID" } else { "" };
        let _ = write!(sql, "PRIMARY KEY ({})) STRICT{without}", key.join(", "));
        sql
    }

    /// Every index by name with its columns, the rest of the key included.
    fn indexes(&self) -> BTreeMap<String, String> {
        let columns = self.table.def().columns;
        let mut indexes: BTreeMap<String, String> = BTreeMap::new();
        for index in self.table.def().indexes {
            // The definition was resolved when the catalog was made.
            let places = self.table.index_columns(Some(index.name)).unwrap_or_default();
            let names: Vec<String> = places.iter().map(|&at| quoted(columns[at].name)).collect();
            indexes.insert(index.name.to_owned(), names.join(", "));
        }
        if self.table.def().class == TableClass::Answers
            && !self.table.def().indexes.iter().any(|index| index.columns.first() == Some(&ASKED_AT_HEIGHT))
        {
            // By it a reorg finds its answers.
            indexes.insert(ASKED_AT_HEIGHT.to_owned(), quoted(ASKED_AT_HEIGHT));
        }
        indexes
    }

    /// What the file says of the table; a change of anything in it is refused.
    fn definition(&self) -> String {
        let def = self.table.def();
        let class = match def.class {
            TableClass::Events { .. } => "events",
            TableClass::State => "state",
            TableClass::Answers => "answers",
            TableClass::Content => "content",
        };
        let mut text = format!("service {}\nclass {class}\n", def.service);
        for column in def.columns {
            let ty = match column.ty {
                ColumnType::Bool => "bool",
                ColumnType::Int => "int",
                ColumnType::Amount => "amount",
                ColumnType::Sum => "sum",
                ColumnType::Bytes => "bytes",
                ColumnType::Text => "text",
            };
            let merge = match column.merge {
                Merge::Keep => "keep",
                Merge::Sum => "sum",
                Merge::First => "first",
                Merge::Last => "last",
            };
            let null = if column.nullable { " null" } else { "" };
            let _ = writeln!(text, "column {} {ty}{null} {merge}", column.name);
        }
        let _ = writeln!(text, "key {}", def.key.join(", "));
        text
    }
}

/// Narrow rows live in the tree of their key. So do those whose key is one integer, which would be the rowid otherwise, and no index.
fn is_without_rowid(table: &Table) -> bool {
    let def = table.def();
    let width = |ty: ColumnType| match ty {
        ColumnType::Bool => 1,
        ColumnType::Int => 6,
        ColumnType::Amount => 32,
        ColumnType::Sum => 41,
        ColumnType::Bytes => 32,
        ColumnType::Text => 64,
    };
    let one_integer = matches!(table.key_columns(), [at] if def.columns[*at].ty == ColumnType::Int);
    let is_narrow = def.columns.iter().map(|column| width(column.ty)).sum::<usize>() <= NARROW_BYTES;
    one_integer || (is_narrow && def.class != TableClass::Content)
}

/// All tables of the catalog, in its order.
#[derive(Debug)]
pub(super) struct Tables {
    list: Vec<TableSql>,
}

/// What the file says of its tables: definitions by name, and columns by table and index.
struct Stored {
    tables: BTreeMap<String, String>,
    indexes: BTreeMap<(String, String), String>,
}

impl Tables {
    pub(super) fn new(catalog: &Catalog) -> Result<Tables> {
        /// Tables that every app store has.
        const OURS: &[&str] = &[
            "counters",
            "fork_state",
            "reorgs_applied",
            "indexing_checkpoints",
            "worker_leases",
            "state_undo",
            "quarantined_blocks",
            "rebuilds",
            "table_definitions",
            "index_definitions",
        ];
        let wrong = catalog
            .tables()
            .iter()
            .find(|table| OURS.contains(&table.name()) || table.name().starts_with("sqlite_"));
        match wrong {
            None => Ok(Tables { list: catalog.tables().iter().map(TableSql::new).collect() }),
            Some(table) => {
                Err(StoreError::Invalid(format!("no derived table can be named {}", table.name())))
            }
        }
    }

    pub(super) fn all(&self) -> &[TableSql] {
        &self.list
    }

    pub(super) fn get(&self, name: &str) -> Result<&TableSql> {
        self.list
            .iter()
            .find(|sql| sql.table.name() == name)
            .ok_or_else(|| StoreError::Invalid(format!("the catalog has no table {name}")))
    }

    /// Makes the tables and indexes that are missing; refuses a file whose tables are others.
    pub(super) fn bring_up(&self, conn: &mut Connection) -> Result<()> {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(db)?;
        let stored = self.compare(&tx)?;
        for sql in &self.list {
            let name = sql.table.name();
            if !stored.tables.contains_key(name) {
                tx.execute_batch(&sql.create()).map_err(db)?;
                tx.execute(
                    "INSERT INTO table_definitions (table_name, definition) VALUES (?1, ?2)",
                    params![name, sql.definition()],
                )
                .map_err(db)?;
            }
            for (index, columns) in sql.indexes() {
                if stored.indexes.contains_key(&(name.to_owned(), index.clone())) {
                    continue;
                }
                if stored.tables.contains_key(name) {
                    tracing::info!(table = name, index, "building an index that is new");
                }
                let index_name = sql.index_name(Some(&index));
                tx.execute_batch(&format!("CREATE INDEX {index_name} ON {} ({columns})", sql.name))
                    .map_err(db)?;
                tx.execute(
                    "INSERT INTO index_definitions VALUES (?1, ?2, ?3)",
                    params![name, index, columns],
                )
                .map_err(db)?;
            }
        }
        tx.commit().map_err(db)
    }

    /// For readers, which can't make anything.
    pub(super) fn demand_same(&self, conn: &Connection) -> Result<()> {
        let stored = self.compare(conn)?;
        let missing = |what: String| {
            StoreError::Invalid(format!("{} has no {what}; open it for writing once to make it", APP.name))
        };
        for sql in &self.list {
            let name = sql.table.name();
            if !stored.tables.contains_key(name) {
                return Err(missing(format!("table {name}")));
            }
            let indexes = sql.indexes();
            let lacks =
                indexes.keys().find(|i| !stored.indexes.contains_key(&(name.to_owned(), (*i).clone())));
            if let Some(index) = lacks {
                return Err(missing(format!("index {name}_{index}")));
            }
        }
        Ok(())
    }

    /// What the file holds, which has to be what the catalog says wherever both say something. A table that only the file has is refused
    /// as well: no reorg would reach its rows.
    fn compare(&self, conn: &Connection) -> Result<Stored> {
        let stored = Stored::read(conn).map_err(db)?;
        let refuse = |what: String| {
            Err(StoreError::Database(format!(
                "{what}; use the program that made {}, or begin anew with an empty app store: what is in it can be made \
                 again from the raw store. Nothing was changed",
                APP.name
            )))
        };
        for (name, definition) in &stored.tables {
            let Some(sql) = self.list.iter().find(|sql| sql.table.name() == name) else {
                return refuse(format!(
                    "{} holds the table {name}, which this program doesn't know",
                    APP.name
                ));
            };
            let known = sql.definition();
            if *definition != known {
                let lines = known.lines().zip(definition.lines());
                let differ = lines.into_iter().find(|(known, stored)| known != stored);
                let (known, stored) = differ.unwrap_or(("more or fewer columns", "others"));
                return refuse(format!(
                    "table {name} is defined otherwise in {}: it says \"{stored}\", this program \"{known}\"",
                    APP.name
                ));
            }
            for (index, columns) in sql.indexes() {
                let stored = stored.indexes.get(&(name.clone(), index.clone()));
                if let Some(stored) = stored.filter(|stored| **stored != columns) {
                    return refuse(format!(
                        "index {index} of table {name} is defined otherwise in {}: over {stored}, not over {columns}",
                        APP.name
                    ));
                }
            }
        }
        Ok(stored)
    }
}

impl Stored {
    fn read(conn: &Connection) -> rusqlite::Result<Stored> {
        let tables = conn
            .prepare("SELECT table_name, definition FROM table_definitions")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        let indexes = conn
            .prepare("SELECT table_name, index_name, columns FROM index_definitions")?
            .query_map([], |row| Ok(((row.get(0)?, row.get(1)?), row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Stored { tables, indexes })
    }
}
