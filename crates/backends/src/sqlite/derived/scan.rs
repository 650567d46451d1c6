//! Walks along an index: rows between two places of it, by comparing its columns as one value.

use std::ops::Bound;

use cairn_core::Height;
use cairn_store::derived::{MAX_SCAN_ROWS, Row, Scan, ScanPage, TableClass, Value};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, Statement};
use tokio::time::Instant;

use super::super::index::demand_time;
use super::snapshot::{Bounds, check_values};
use super::tables::{TableSql, quoted};
use super::{db, values};

/// How many rows are read between two looks at the time.
pub(super) const LOOK_EVERY: usize = 64;

/// Rows whose size is measured to estimate a table's.
const SAMPLE_ROWS: u64 = 256;

/// A scan made ready: its statement and what is bound to it.
///
/// Rows that the snapshot may not see count as examined like those that the filters leave out, so that a scan is bounded however far
/// work has run ahead of the checkpoint; where height comes first in the order they are not walked at all.
pub(super) struct Walk {
    sql: String,
    bound: Vec<Value>,
    /// The columns after the prefix.
    order: Vec<usize>,
    filters: Vec<(usize, Value)>,
    limit: usize,
    examine: usize,
    /// No row can match.
    is_empty: bool,
}

impl Walk {
    pub(super) fn new(table: &TableSql, scan: &Scan, bounds: Bounds) -> Result<Walk> {
        let columns = table.table.index_columns(scan.index)?;
        check_values(table, columns, &scan.prefix)?;
        let order = &columns[scan.prefix.len()..];
        for bound in [&scan.lower, &scan.upper] {
            if let Bound::Included(values) | Bound::Excluded(values) = bound {
                check_values(table, order, values)?;
                if values.iter().any(Value::is_null) {
                    return Err(StoreError::Invalid(format!(
                        "scan of {}: a bound holds no null, since nothing is ordered by columns that may be null",
                        table.table.name()
                    )));
                }
            }
        }
        let filters = scan.filters.iter().map(|(name, value)| {
            let at = table.table.column(name)?;
            check_values(table, &[at], std::slice::from_ref(value))?;
            Ok((at, value.clone()))
        });
        let mut walk = Walk {
            sql: String::new(),
            bound: Vec::new(),
            order: order.to_vec(),
            filters: filters.collect::<Result<_>>()?,
            limit: scan.limit.max(1),
            examine: scan.examine.clamp(1, MAX_SCAN_ROWS),
            is_empty: false,
        };
        let upper = walk.visible_upper(table, scan, bounds);
        walk.prepare(table, columns, scan, &upper);
        Ok(walk)
    }

    /// The upper bound, lowered to the checkpoint where events are in the order of height.
    fn visible_upper(&mut self, table: &TableSql, scan: &Scan, bounds: Bounds) -> Bound<Vec<Value>> {
        let upper = scan.upper.clone();
        if !matches!(table.table.def().class, TableClass::Events { .. }) {
            return upper;
        }
        let Some(next) = bounds.next.map(Value::height) else {
            self.is_empty = true;
            return upper;
        };
        if self.order.first() != table.table.height_column().as_ref() {
            return upper;
        }
        match &upper {
            Bound::Included(values) | Bound::Excluded(values)
                if values.first().is_some_and(|first| *first < next) =>
            {
                upper
            }
            // A bound of nothing leaves everything in, or out.
            Bound::Excluded(values) if values.is_empty() => upper,
            _ => Bound::Excluded(vec![next]),
        }
    }

    fn prepare(&mut self, table: &TableSql, columns: &[usize], scan: &Scan, upper: &Bound<Vec<Value>>) {
        let names: Vec<String> =
            columns.iter().map(|&at| quoted(table.table.def().columns[at].name)).collect();
        let (prefix, order) = names.split_at(scan.prefix.len());
        let mut terms = Vec::new();
        for (name, value) in prefix.iter().zip(&scan.prefix) {
            if value.is_null() {
                terms.push(format!("{name} IS NULL"));
            } else {
                terms.push(format!("{name} = ?"));
                self.bound.push(value.clone());
            }
        }
        for (bound, included, excluded) in [(&scan.lower, ">=", ">"), (upper, "<=", "<")] {
            let (values, operator) = match bound {
                Bound::Unbounded => continue,
                Bound::Included(values) => (values, included),
                Bound::Excluded(values) => (values, excluded),
            };
            match values.len() {
                0 => self.is_empty |= operator == excluded,
                1 => terms.push(format!("{} {operator} ?", order[0])),
                n => {
                    let places = vec!["?"; n].join(", ");
                    terms.push(format!("({}) {operator} ({places})", order[..n].join(", ")));
                }
            }
            self.bound.extend(values.iter().cloned());
        }
        let direction = if scan.descending { " DESC" } else { "" };
        let by: Vec<String> = order.iter().map(|name| format!("{name}{direction}")).collect();
        self.sql = format!("{} INDEXED BY {}", table.select, table.index_name(scan.index));
        if !terms.is_empty() {
            self.sql += &format!(" WHERE {}", terms.join(" AND "));
        }
        if !by.is_empty() {
            self.sql += &format!(" ORDER BY {}", by.join(", "));
        }
    }

    pub(super) fn run(
        &self,
        conn: &Connection,
        table: &TableSql,
        bounds: Bounds,
        deadline: Option<Instant>,
    ) -> Result<ScanPage> {
        let mut page = ScanPage::default();
        if self.is_empty {
            return Ok(page);
        }
        let mut statement = conn.prepare_cached(&self.sql).map_err(db)?;
        self.bind(&mut statement).map_err(db)?;
        let mut rows = statement.raw_query();
        let (mut examined, mut last): (usize, Option<Vec<Value>>) = (0, None);
        while let Some(row) = rows.next().map_err(db)? {
            // What was read in time is an answer.
            let is_late =
                examined > 0 && examined.is_multiple_of(LOOK_EVERY) && demand_time(deadline).is_err();
            if page.rows.len() == self.limit || examined == self.examine || is_late {
                page.more = last;
                break;
            }
            examined += 1;
            let row = table.read(row).map_err(db)?;
            last = Some(self.order.iter().map(|&at| row.0[at].clone()).collect());
            let Some(row) = bounds.visible(conn, table, row)? else { continue };
            if self.filters.iter().all(|(at, value)| row.0[*at] == *value) {
                page.rows.push(row);
            }
        }
        Ok(page)
    }

    fn bind(&self, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
        self.bound.iter().zip(1..).try_for_each(|(value, at)| values::bind(statement, at, value))
    }

    /// How SQLite is going to do it, for tests.
    #[cfg(test)]
    pub(super) fn plan(&self, conn: &Connection) -> rusqlite::Result<Vec<String>> {
        let mut statement = conn.prepare(&format!("EXPLAIN QUERY PLAN {}", self.sql))?;
        self.bind(&mut statement)?;
        let mut rows = statement.raw_query();
        let mut plan = Vec::new();
        while let Some(row) = rows.next()? {
            plan.push(row.get(3)?);
        }
        Ok(plan)
    }
}

/// Event rows of `[from, end)`, whole blocks of them.
pub(super) fn events(
    conn: &Connection,
    table: &TableSql,
    from: Height,
    end: Height,
    max_bytes: usize,
    deadline: Option<Instant>,
) -> Result<(Vec<Row>, Height)> {
    let key: Vec<String> = table.table.def().key.iter().map(|name| quoted(name)).collect();
    let height = &key[0];
    let sql = format!(
        "{} INDEXED BY {} WHERE {height} >= ?1 AND {height} < ?2 ORDER BY {}",
        table.select,
        table.index_name(None),
        key.join(", ")
    );
    let mut statement = conn.prepare_cached(&sql).map_err(db)?;
    let mut stored = statement.query([super::sql(from), super::sql(end)]).map_err(db)?;
    let (mut rows, mut bytes): (Vec<Row>, usize) = (Vec::new(), 0);
    // The block that is being read, and where its rows begin.
    let (mut at, mut first) = (from, 0);
    while let Some(row) = stored.next().map_err(db)? {
        let row = table.read(row).map_err(db)?;
        let height = row.0[0].as_height().unwrap_or_default();
        if height > at {
            if bytes > max_bytes {
                return Ok((rows, at.next()));
            }
            (at, first) = (height, rows.len());
        }
        if rows.len().is_multiple_of(LOOK_EVERY)
            && let Err(late) = demand_time(deadline)
        {
            // The blocks that were read whole are an answer.
            rows.truncate(first);
            return if at > from { Ok((rows, at)) } else { Err(late) };
        }
        bytes += row.size_bytes();
        rows.push(row);
    }
    Ok((rows, end))
}

/// Name, rows, and about how many bytes: events as they were counted with every change, the others counted now; the bytes by a sample.
pub(super) fn size(conn: &Connection, table: &TableSql) -> Result<(String, u64, u64)> {
    let name = table.table.name();
    let count: i64 = if table.is_events() {
        conn.prepare_cached("SELECT row_count FROM table_definitions WHERE table_name = ?1")
            .and_then(|mut statement| statement.query_row([name], |row| row.get(0)))
    } else {
        conn.prepare_cached(&format!("SELECT count(*) FROM {}", table.name))
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
    }
    .map_err(db)?;
    let lengths: Vec<String> = table
        .table
        .def()
        .columns
        .iter()
        .map(|column| format!("ifnull(octet_length({}), 0)", quoted(column.name)))
        .collect();
    let sample = format!(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM (SELECT {} AS bytes FROM {} LIMIT {SAMPLE_ROWS})",
        lengths.join(" + "),
        table.name
    );
    let (sampled, bytes): (i64, i64) = conn
        .prepare_cached(&sample)
        .and_then(|mut statement| statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(db)?;
    let count = count.unsigned_abs();
    let bytes =
        u128::from(bytes.unsigned_abs()) * u128::from(count) / u128::from(sampled.unsigned_abs().max(1));
    Ok((name.to_owned(), count, u64::try_from(bytes).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_core::SystemClock;
    use cairn_store::derived::{
        BLOCK_HEIGHT, Catalog, Column, ColumnType, IndexDef, LAST_HEIGHT, TableDef, column,
    };

    use super::super::tables::Tables;
    use super::super::{SqliteDerived, SqliteDerivedOptions};
    use super::*;

    const COLUMNS: &[Column] = &[
        column(BLOCK_HEIGHT, ColumnType::Int),
        column("event", ColumnType::Int),
        column("token", ColumnType::Bytes),
        column("owner", ColumnType::Bytes).nullable(),
        column(LAST_HEIGHT, ColumnType::Int),
    ];
    const INDEXES: &[IndexDef] = &[
        IndexDef { name: "token", columns: &["token"] },
        IndexDef { name: "owner", columns: &["owner", "token"] },
        IndexDef { name: "height", columns: &[BLOCK_HEIGHT, "token"] },
    ];
    static NARROW: TableDef = TableDef {
        name: "narrow",
        service: "w",
        class: TableClass::Events { partition_heights: 1 },
        columns: COLUMNS,
        key: &[BLOCK_HEIGHT, "event"],
        indexes: INDEXES,
    };
    static WIDE: TableDef = TableDef {
        name: "wide",
        service: "w",
        class: TableClass::Content,
        columns: COLUMNS,
        key: &["token", "event"],
        indexes: INDEXES,
    };
    static ONE: TableDef = TableDef {
        name: "one",
        service: "w",
        class: TableClass::State,
        columns: COLUMNS,
        key: &["event"],
        indexes: INDEXES,
    };

    /// Every walk goes along its index between its two ends, and sorts nothing.
    #[tokio::test]
    async fn no_scan_sorts_or_walks_a_whole_table() {
        let dir = tempfile::tempdir().expect("dir");
        let catalog = Catalog::new([&NARROW, &WIDE, &ONE]).expect("right");
        let options = SqliteDerivedOptions::new(dir.path());
        drop(SqliteDerived::open(options, catalog.clone(), Arc::new(SystemClock)).await.expect("opens"));
        let conn = Connection::open(dir.path().join("app.sqlite")).expect("opens");
        let tables = Tables::new(&catalog).expect("right");
        let bounds = Bounds::all(Height(1_000));
        let sample = |ty| if ty == ColumnType::Int { Value::Int(3) } else { Value::bytes(b"x") };
        let mut plans = 0;
        for table in tables.all() {
            for index in [None, Some("token"), Some("owner"), Some("height")] {
                let columns = table.table.index_columns(index).expect("is there");
                let value = |at: &usize| sample(table.table.def().columns[*at].ty);
                for prefix in 0..=columns.len() {
                    for bound in 0..=columns.len() - prefix {
                        let values: Vec<Value> = columns[prefix..prefix + bound].iter().map(value).collect();
                        let scan = Scan {
                            index,
                            prefix: columns[..prefix].iter().map(value).collect(),
                            lower: Bound::Excluded(values.clone()),
                            upper: Bound::Included(values),
                            descending: bound % 2 == 1,
                            ..Scan::new(table.table.name(), 5)
                        };
                        let walk = Walk::new(table, &scan, bounds).expect("right");
                        let plan = walk.plan(&conn).expect("is understood").join("; ");
                        assert!(!plan.contains("TEMP B-TREE"), "{plan}: {}", walk.sql);
                        let is_bounded = prefix + bound > 0;
                        assert!(!is_bounded || plan.starts_with("SEARCH"), "{plan}: {}", walk.sql);
                        plans += 1;
                    }
                }
            }
        }
        assert!(plans > 60, "{plans}");
    }
}
