//! Walking along an index.
//!
//! Prefix and bounds become row comparisons over the index's own columns, in its own order, so that exactly one index fits and a page
//! costs the same wherever it lies: the server descends once and reads on. No OFFSET. Equality on the prefix would let the planner take
//! another index that has the same order behind it, and filter. The height is said once more by itself, for partitions to be
//! left out.

use std::ops::Bound;

use cairn_core::Height;
use cairn_store::derived::{MAX_SCAN_ROWS, Row, Scan, ScanPage, TableClass, Value};
use cairn_store::{Result, StoreError};

use super::lease::column;
use super::snapshot::PgSnapshot;
use super::tables::PgTable;
use super::value::{Field, param_type};
use crate::postgres::PgConn;
use crate::postgres::pool::Param;

/// How many rows are asked for first where rows may be left out; then four times as many, and so on.
const FIRST_ROWS: usize = 128;

/// A scan, checked.
pub(super) struct Walk<'a> {
    table: &'a PgTable,
    scan: &'a Scan,
    /// The index's columns in its order.
    columns: &'a [usize],
    filters: Vec<(usize, &'a Value)>,
    hidden_from: Option<Height>,
    limit: usize,
    examine: usize,
}

/// A statement under construction.
struct Sql<'a> {
    table: &'a PgTable,
    conditions: Vec<String>,
    values: Vec<Value>,
}

impl Sql<'_> {
    /// The next parameter, for a column.
    fn param(&mut self, column: usize, value: &Value) -> String {
        self.values.push(value.clone());
        format!("${}::{}", self.values.len(), param_type(self.table.table.def().columns[column].ty))
    }

    fn compare(&mut self, columns: &[usize], operator: &str, values: &[&Value]) {
        let names = self.table.quoted_columns(&columns[..values.len()]);
        let params: Vec<String> =
            columns.iter().zip(values).map(|(&at, value)| self.param(at, value)).collect();
        self.conditions.push(format!("({names}) {operator} ({})", params.join(", ")));
    }
}

impl<'a> Walk<'a> {
    pub(super) fn new(table: &'a PgTable, scan: &'a Scan, hidden_from: Option<Height>) -> Result<Walk<'a>> {
        let invalid =
            |what: String| Err(StoreError::Invalid(format!("scan of table {}: {what}", scan.table)));
        let columns = table.table.index_columns(scan.index)?;
        let mut filters = Vec::with_capacity(scan.filters.len());
        for (name, value) in &scan.filters {
            filters.push((table.table.column(name)?, value));
        }
        let Some(rest) = columns.get(scan.prefix.len()..) else {
            return invalid(format!(
                "a prefix of {} values; the index has {}",
                scan.prefix.len(),
                columns.len()
            ));
        };
        let ty = |at: usize| table.table.def().columns[at].ty;
        let mut is_right = columns.iter().zip(&scan.prefix).all(|(&at, value)| value.is_of(ty(at)));
        for bound in [&scan.lower, &scan.upper] {
            if let Bound::Included(values) | Bound::Excluded(values) = bound {
                is_right &= values.len() <= rest.len()
                    && rest.iter().zip(values).all(|(&at, value)| value.is_of(ty(at)) && !value.is_null());
            }
        }
        is_right &= filters.iter().all(|&(at, value)| value.is_of(ty(at)));
        if !is_right {
            return invalid("a prefix, bound or filter whose values don't fit the columns".into());
        }
        let (limit, examine) = (scan.limit.max(1), scan.examine.clamp(1, MAX_SCAN_ROWS));
        Ok(Walk { table, scan, columns, filters, hidden_from, limit, examine })
    }

    /// Whether the bounds leave nothing.
    fn is_empty(&self) -> bool {
        let leaves_all_out =
            |bound: &Bound<Vec<Value>>| matches!(bound, Bound::Excluded(values) if values.is_empty());
        self.hidden_from == Some(Height::ZERO)
            || leaves_all_out(&self.scan.lower)
            || leaves_all_out(&self.scan.upper)
    }

    /// Whether rows that are hidden may have been others before.
    fn is_read_through(&self) -> bool {
        matches!(self.table.table.def().class, TableClass::State | TableClass::Answers)
    }

    /// The place of a row: the index's columns after the prefix.
    fn place(&self, row: &Row) -> Vec<Value> {
        self.columns[self.scan.prefix.len()..].iter().map(|&at| row.0[at].clone()).collect()
    }

    pub(super) async fn run(&self, snapshot: &PgSnapshot) -> Result<ScanPage> {
        let mut page = ScanPage::default();
        if self.is_empty() {
            return Ok(page);
        }
        let conn = snapshot.conn()?;
        let may_skip = !self.filters.is_empty() || (self.is_read_through() && !snapshot_is_settled(snapshot));
        let mut examined = 0;
        let mut batch = FIRST_ROWS;
        let mut after: Option<Vec<Value>> = None;
        loop {
            let wanted = self.limit - page.rows.len();
            let wanted = if may_skip { wanted.max(batch) } else { wanted }.min(self.examine - examined);
            let mut found = self.fetch(&conn, after.as_deref(), wanted + 1).await?;
            let is_more = found.len() > wanted;
            found.truncate(wanted);
            let places: Vec<Vec<Value>> = found.iter().map(|row| self.place(row)).collect();
            let rows = snapshot.as_seen(&conn, self.table, found).await?;
            let count = rows.len();
            for (n, (row, place)) in rows.into_iter().zip(places).enumerate() {
                examined += 1;
                page.rows.extend(row.filter(|row| self.fits(row)));
                if page.rows.len() == self.limit || examined == self.examine {
                    page.more = (is_more || n + 1 < count).then_some(place);
                    return Ok(page);
                }
                after = Some(place);
            }
            if !is_more {
                return Ok(page);
            }
            batch = batch.saturating_mul(4);
        }
    }

    fn fits(&self, row: &Row) -> bool {
        self.filters.iter().all(|&(at, value)| row.0[at] == *value)
    }

    /// How the server runs the first statement of the scan, with the pages that it touched.
    pub(super) async fn explain(&self, snapshot: &PgSnapshot) -> Result<String> {
        let conn = snapshot.conn()?;
        let (text, values) = self.statement(None);
        let fields: Vec<Field<'_>> = values.iter().map(Field).collect();
        let limit = super::int_of(self.limit as u64 + 1);
        let mut params: Vec<Param<'_>> = fields.iter().map(|field| field as Param<'_>).collect();
        params.push(&limit);
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) {text}");
        let lines = conn.query(&explain, &params).await?;
        let lines = lines.iter().map(|line| column::<&str>(line, 0)).collect::<Result<Vec<_>>>()?;
        Ok(lines.join("\n"))
    }

    async fn fetch(&self, conn: &PgConn, after: Option<&[Value]>, limit: usize) -> Result<Vec<Row>> {
        let (text, values) = self.statement(after);
        let fields: Vec<Field<'_>> = values.iter().map(Field).collect();
        let limit = super::int_of(limit as u64);
        let mut params: Vec<Param<'_>> = fields.iter().map(|field| field as Param<'_>).collect();
        params.push(&limit);
        conn.query(&text, &params).await?.iter().map(|row| self.table.read(row, 0)).collect()
    }

    /// The statement, from behind `after` on where that is given, and its parameters except the last, the limit. There are as many
    /// texts as shapes of scans.
    fn statement(&self, after: Option<&[Value]>) -> (String, Vec<Value>) {
        let (table, scan) = (self.table, self.scan);
        let mut sql = Sql { table, conditions: Vec::new(), values: Vec::new() };
        let behind = after.map(|place| Bound::Excluded(place.to_vec()));
        let (lower, upper) = match (&behind, scan.descending) {
            (Some(behind), false) => (behind, &scan.upper),
            (Some(behind), true) => (&scan.lower, behind),
            (None, _) => (&scan.lower, &scan.upper),
        };
        let width = scan.prefix.len();
        // A row comparison knows no null.
        let by_row = !scan.prefix.iter().any(Value::is_null);
        let prefix: Vec<&Value> = if by_row { scan.prefix.iter().collect() } else { Vec::new() };
        let compared = if by_row { self.columns } else { &self.columns[width..] };
        if !by_row {
            for (&at, value) in self.columns.iter().zip(&scan.prefix) {
                let condition = if value.is_null() {
                    format!("{} IS NULL", table.columns[at])
                } else {
                    format!("{} = {}", table.columns[at], sql.param(at, value))
                };
                sql.conditions.push(condition);
            }
        }
        for (bound, including, excluding) in [(lower, ">=", ">"), (upper, "<=", "<")] {
            let (operator, values) = match bound {
                Bound::Included(values) => (including, values.as_slice()),
                Bound::Excluded(values) => (excluding, values.as_slice()),
                Bound::Unbounded => (including, &[][..]),
            };
            let values: Vec<&Value> = prefix.iter().copied().chain(values).collect();
            if !values.is_empty() {
                sql.compare(compared, operator, &values);
            }
        }
        self.bound_height(&mut sql, lower, upper);
        let direction = if scan.descending { "DESC" } else { "ASC" };
        let order: Vec<String> =
            compared.iter().map(|&at| format!("{} {direction}", table.columns[at])).collect();
        let conditions = if sql.conditions.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", sql.conditions.join(" AND "))
        };
        let text = format!(
            "{}{conditions} ORDER BY {} LIMIT ${}",
            table.all,
            order.join(", "),
            sql.values.len() + 1
        );
        (text, sql.values)
    }

    /// What the bounds say of the height, for partitions to be left out; and what is hidden.
    fn bound_height(&self, sql: &mut Sql<'_>, lower: &Bound<Vec<Value>>, upper: &Bound<Vec<Value>>) {
        let (Some(at), Some(name)) = (self.table.table.height_column(), &self.table.height) else { return };
        if self.table.table.def().class == TableClass::State {
            return;
        }
        if let Some(hidden_from) = self.hidden_from.filter(|_| !self.is_read_through()) {
            let param = sql.param(at, &Value::height(hidden_from));
            sql.conditions.push(format!("{name} < {param}"));
        }
        let width = self.scan.prefix.len();
        match self.columns.iter().position(|&column| column == at) {
            Some(place) if place < width => {
                let param = sql.param(at, &self.scan.prefix[place]);
                sql.conditions.push(format!("{name} = {param}"));
            }
            Some(place) if place == width => {
                for (bound, operator) in [(lower, ">="), (upper, "<=")] {
                    if let Bound::Included(values) | Bound::Excluded(values) = bound
                        && let Some(value) = values.first()
                    {
                        let param = sql.param(at, value);
                        sql.conditions.push(format!("{name} {operator} {param}"));
                    }
                }
            }
            _ => {}
        }
    }
}

fn snapshot_is_settled(snapshot: &PgSnapshot) -> bool {
    use cairn_store::derived::DerivedSnapshot;
    snapshot.forks().is_settled()
}
