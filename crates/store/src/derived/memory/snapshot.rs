//! Reading: a frozen state, bounded by its checkpoints.

use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use ruint::aliases::U256;

use super::state::{State, TableData};
use crate::derived::answers;
use crate::derived::fork::{DerivedCheckpoint, ForkState};
use crate::derived::lease::{LeaseFilter, LeaseKind, LeaseStatus, WorkerLease};
use crate::derived::reader::{
    DerivedSnapshot, MAX_SCAN_ROWS, Quarantined, QuarantinedBlock, Scan, ScanPage, UndoRows,
};
use crate::derived::rebuild::Rebuild;
use crate::derived::row::{Key, Row};
use crate::derived::table::{Table, TableClass};
use crate::derived::value::{Sum, Value};
use crate::{Result, StoreError};

/// A consistent view of the memory store.
pub(super) struct MemorySnapshot {
    state: Arc<State>,
    forks: ForkState,
    checkpoints: Vec<DerivedCheckpoint>,
    rebuilds: Vec<Rebuild>,
}

/// One table as the snapshot sees it.
struct View<'a> {
    table: &'a Table,
    data: &'a TableData,
    /// The end of the checkpoint of the service that writes it; `None` where that isn't registered.
    next: Option<Height>,
    /// The first height that the reorg under way takes away.
    applying: Option<Height>,
}

impl MemorySnapshot {
    pub(super) fn new(state: Arc<State>) -> Result<MemorySnapshot> {
        let forks = state.forks()?.state;
        let checkpoints = state.checkpoints.values().cloned().collect();
        let rebuilds = state.rebuilds.values().cloned().collect();
        Ok(MemorySnapshot { state, forks, checkpoints, rebuilds })
    }

    fn view(&self, table: &str) -> Result<View<'_>> {
        let place = self.state.place(table)?;
        let table = &*self.state.catalog.tables()[place];
        Ok(View {
            table,
            data: &self.state.tables[place],
            next: self.state.checkpoints.get(table.def().service).map(|checkpoint| checkpoint.next),
            applying: self.state.forks()?.applying(),
        })
    }
}

impl View<'_> {
    /// The row as it may be seen.
    fn visible(&self, key: &Key, row: &Arc<Row>) -> Result<Option<Arc<Row>>> {
        let height = self.table.height_column().and_then(|at| row.0[at].as_height());
        let (Some(height), class) = (height, self.table.def().class) else {
            return Ok(Some(row.clone()));
        };
        let is_seen = match class {
            TableClass::Content => true,
            TableClass::Answers => match self.applying {
                Some(first_orphan) if height >= first_orphan => {
                    return answer_below(self.table, self.data, key, first_orphan);
                }
                _ => true,
            },
            TableClass::Events { .. } => self.next.is_some_and(|next| height < next),
            TableClass::State => {
                let Some(next) = self.next else { return Ok(None) };
                if height >= next {
                    return match self.data.before(key, next) {
                        Some(before) => Ok(before.clone()),
                        None => Err(no_undo(self.table, key, next)),
                    };
                }
                true
            }
        };
        Ok(is_seen.then(|| row.clone()))
    }

    fn check_values(&self, columns: &[usize], values: &[Value]) -> Result<()> {
        let wrong = |what: String| Err(StoreError::Invalid(format!("scan of {}: {what}", self.table.name())));
        if values.len() > columns.len() {
            return wrong(format!("{} values for {} columns", values.len(), columns.len()));
        }
        for (value, &at) in values.iter().zip(columns) {
            let column = &self.table.def().columns[at];
            if !value.is_of(column.ty) {
                return wrong(format!("{value} can't stand in column {}", column.name));
            }
        }
        Ok(())
    }

    fn scan(&self, scan: &Scan) -> Result<ScanPage> {
        let columns = self.table.index_columns(scan.index)?;
        self.check_values(columns, &scan.prefix)?;
        for bound in [&scan.lower, &scan.upper] {
            if let Bound::Included(values) | Bound::Excluded(values) = bound {
                self.check_values(&columns[scan.prefix.len()..], values)?;
            }
        }
        let mut filters = Vec::with_capacity(scan.filters.len());
        for (name, value) in &scan.filters {
            let at = self.table.column(name)?;
            self.check_values(&[at], std::slice::from_ref(value))?;
            filters.push((at, value));
        }
        let (limit, examine) = (scan.limit.max(1), scan.examine.clamp(1, MAX_SCAN_ROWS));
        let mut page = ScanPage::default();
        let Some((start, end)) = half_open(scan) else { return Ok(page) };
        let (mut examined, mut last) = (0, None);
        for (place, key, row) in self.walk(scan.index, columns, start, end, scan.descending)? {
            let Some(row) = self.visible(key.as_ref(), row)? else { continue };
            if page.rows.len() == limit || examined == examine {
                page.more = last;
                break;
            }
            examined += 1;
            last = Some(place[scan.prefix.len()..].to_vec());
            if filters.iter().all(|(at, value)| row.0[*at] == **value) {
                page.rows.push((*row).clone());
            }
        }
        Ok(page)
    }

    /// The places `[start, end)` of an index with their rows, in order or backwards.
    fn walk<'a>(
        &'a self,
        index: Option<&str>,
        columns: &'a [usize],
        start: Vec<Value>,
        end: Option<Vec<Value>>,
        descending: bool,
    ) -> Result<Walk<'a>> {
        let Some(name) = index else {
            let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(Key(end)));
            let rows = self.data.rows.range((Bound::Included(Key(start)), end));
            let rows = rows.map(|(key, row)| (&key.0[..], KeyOf::Stored(key), row));
            return Ok(if descending { Box::new(rows.rev()) } else { Box::new(rows) });
        };
        let number = self.table.def().indexes.iter().position(|index| index.name == name);
        let Some(entries) = number.and_then(|number| self.data.indexes.get(number)) else {
            return Err(StoreError::Invalid(format!("table {} has no index {name}", self.table.name())));
        };
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let key_places: Vec<usize> = self
            .table
            .key_columns()
            .iter()
            .filter_map(|at| columns.iter().position(|column| column == at))
            .collect();
        let places = entries.range((Bound::Included(start), end)).filter_map(move |place| {
            let key = Key(key_places.iter().map(|&at| place[at].clone()).collect());
            let row = self.data.rows.get(&key)?;
            Some((&place[..], KeyOf::Made(key), row))
        });
        Ok(if descending { Box::new(places.rev()) } else { Box::new(places) })
    }
}

/// An index's place, the key of its row, and the row.
type Walk<'a> = Box<dyn Iterator<Item = (&'a [Value], KeyOf<'a>, &'a Arc<Row>)> + 'a>;

enum KeyOf<'a> {
    Stored(&'a Key),
    Made(Key),
}

impl AsRef<Key> for KeyOf<'_> {
    fn as_ref(&self) -> &Key {
        match self {
            KeyOf::Stored(key) => key,
            KeyOf::Made(key) => key,
        }
    }
}

/// The answer that a reorg leaves in the place of one that it takes away.
pub(super) fn answer_below(
    table: &Table,
    data: &TableData,
    key: &Key,
    first_orphan: Height,
) -> Result<Option<Arc<Row>>> {
    let before = data.before(key, first_orphan).cloned().flatten();
    let before = before.map(|row| Row::clone(&row));
    Ok(answers::below(table, before, first_orphan)?.map(Arc::new))
}

/// State above the checkpoint without its undo row: it can't be said what it was.
pub(super) fn no_undo(table: &Table, key: &Key, next: Height) -> StoreError {
    let key: Vec<String> = key.0.iter().map(ToString::to_string).collect();
    StoreError::Corrupt {
        place: format!("table {}, key {}", table.name(), key.join(",")),
        what: format!("the row was changed at or above height {next}, and no undo row says what it was"),
    }
}

/// A scan's bounds as places: from `start`, inclusive, to `end`, exclusive. `None`: nothing lies between them.
fn half_open(scan: &Scan) -> Option<(Vec<Value>, Option<Vec<Value>>)> {
    let place = |rest: &[Value]| [&scan.prefix[..], rest].concat();
    let start = match &scan.lower {
        Bound::Unbounded => place(&[]),
        Bound::Included(values) => place(values),
        Bound::Excluded(values) => after(place(values))?,
    };
    let end = match &scan.upper {
        Bound::Unbounded => after(place(&[])),
        Bound::Included(values) => after(place(values)),
        Bound::Excluded(values) => Some(place(values)),
    };
    (end.as_ref().is_none_or(|end| start < *end)).then_some((start, end))
}

/// The first place after every one that begins with `place`; `None` where that is all of them.
fn after(mut place: Vec<Value>) -> Option<Vec<Value>> {
    let last = place.pop()?;
    place.push(successor(last));
    Some(place)
}

/// The least value above this one in a column of its type; of the type that sorts next where it is the greatest.
fn successor(value: Value) -> Value {
    match value {
        Value::Null => Value::Bool(false),
        Value::Bool(false) => Value::Bool(true),
        Value::Bool(true) => Value::Int(i64::MIN),
        Value::Int(n) => n.checked_add(1).map_or(Value::Amount(U256::ZERO), Value::Int),
        Value::Amount(amount) => match amount.checked_add(U256::from(1)) {
            Some(next) => Value::Amount(next),
            None => Value::Bytes(bytes::Bytes::new()),
        },
        Value::Sum(sum) => {
            let next = *sum + Sum::from(U256::from(1));
            if next > *sum { Value::Sum(Box::new(next)) } else { Value::Bytes(bytes::Bytes::new()) }
        }
        Value::Bytes(bytes) => Value::Bytes([&bytes[..], &[0]].concat().into()),
        Value::Text(text) => Value::Text(text + "\0"),
    }
}

#[async_trait]
impl DerivedSnapshot for MemorySnapshot {
    fn forks(&self) -> &ForkState {
        &self.forks
    }

    fn checkpoints(&self) -> &[DerivedCheckpoint] {
        &self.checkpoints
    }

    fn rebuilds(&self) -> &[Rebuild] {
        &self.rebuilds
    }

    async fn rows(&self, table: &'static str, keys: &[Key]) -> Result<Vec<Option<Row>>> {
        let view = self.view(table)?;
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            if key.0.len() != view.table.key_columns().len() {
                return Err(StoreError::Invalid(format!(
                    "table {table}: a key has {} values, not {}",
                    view.table.key_columns().len(),
                    key.0.len()
                )));
            }
            view.check_values(view.table.key_columns(), &key.0)?;
            let row = match view.data.rows.get(key) {
                Some(row) => view.visible(key, row)?,
                None => None,
            };
            found.push(row.map(|row| (*row).clone()));
        }
        Ok(found)
    }

    async fn undo_rows(
        &self,
        table: &'static str,
        keys: &[Key],
        from: Height,
        max_rows: usize,
    ) -> Result<Option<UndoRows>> {
        let data = self.view(table)?.data;
        let of_key = |key| {
            let undo = data.undo.get(key).into_iter().flat_map(|undo| undo.range(from..));
            undo.map(|(height, before)| (*height, before.as_deref().cloned())).collect::<Vec<_>>()
        };
        let undo: UndoRows = keys.iter().map(of_key).collect();
        Ok((undo.iter().map(Vec::len).sum::<usize>() <= max_rows).then_some(undo))
    }

    async fn scan(&self, scan: &Scan) -> Result<ScanPage> {
        let view = self.view(scan.table)?;
        if view.table.is_ordered_by_state(scan.index)? && !self.forks.is_settled() {
            return Err(StoreError::NotYet {
                what: format!("{} by {}", scan.table, scan.index.unwrap_or("key")),
            });
        }
        view.scan(scan)
    }

    async fn events(
        &self,
        table: &'static str,
        from: Height,
        to_exclusive: Height,
        max_bytes: usize,
    ) -> Result<(Vec<Row>, Height)> {
        let view = self.view(table)?;
        if !matches!(view.table.def().class, TableClass::Events { .. }) {
            return Err(StoreError::Invalid(format!("table {table} has no events")));
        }
        let end = view.next.map_or(from, |next| to_exclusive.min(next)).max(from);
        let (mut rows, mut bytes): (Vec<Row>, usize) = (Vec::new(), 0);
        let place = |height| Bound::Included(Key(vec![Value::height(height)]));
        let until = Bound::Excluded(Key(vec![Value::height(end)]));
        if from == end {
            return Ok((rows, end));
        }
        let mut at = from;
        for row in view.data.rows.range((place(from), until)).map(|(_, row)| row) {
            let height = row.0[0].as_height().unwrap_or_default();
            if bytes > max_bytes && height > at {
                return Ok((rows, at.next()));
            }
            at = height;
            bytes += row.size_bytes();
            rows.push((**row).clone());
        }
        Ok((rows, end))
    }

    async fn made_again_from(&self, service: &str, from: Height) -> Result<Option<Height>> {
        let again = self.state.leases.values().filter(|lease| {
            lease.service == service
                && lease.kind == LeaseKind::Reindex
                && lease.status != LeaseStatus::Completed
                && lease.range.end() > from
        });
        Ok(again.map(|lease| lease.done_to.max(from)).min())
    }

    async fn quarantined(
        &self,
        services: &[&str],
        heights: HeightRange,
        limit: usize,
    ) -> Result<Quarantined> {
        let is_seen = |block: &&QuarantinedBlock| {
            let next = self.state.checkpoints.get(&block.service).map(|checkpoint| checkpoint.next);
            services.contains(&block.service.as_str())
                && next.is_some_and(|next| block.height < next)
                && heights.contains(block.height)
        };
        let seen = || self.state.quarantined.iter().filter(is_seen);
        Ok(Quarantined { lowest: seen().take(limit).cloned().collect(), total: seen().count() as u64 })
    }

    async fn newest_asked(&self, table: &'static str) -> Result<Option<Height>> {
        let view = self.view(table)?;
        let Some(at) = view.table.height_column().filter(|_| view.table.def().class == TableClass::Answers)
        else {
            return Err(StoreError::Invalid(format!("table {table} has no answers")));
        };
        Ok(view.data.rows.values().filter_map(|row| row.0[at].as_height()).max())
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<WorkerLease>> {
        let from = Bound::Excluded(filter.after_id);
        let leases = self.state.leases.range((from, Bound::Unbounded)).map(|(_, lease)| lease);
        Ok(leases
            .filter(|lease| filter.service.as_ref().is_none_or(|service| lease.service == *service))
            .filter(|lease| filter.status.is_none_or(|status| lease.status == status))
            .filter(|lease| !filter.dead || lease.is_dead())
            .take(filter.limit)
            .cloned()
            .collect())
    }

    async fn sizes(&self) -> Result<Vec<(String, u64, u64)>> {
        let tables = self.state.catalog.tables().iter().zip(&self.state.tables);
        Ok(tables
            .map(|(table, data)| {
                let bytes: usize = data.rows.values().map(|row| row.size_bytes()).sum();
                (table.name().to_owned(), data.rows.len() as u64, bytes as u64)
            })
            .collect())
    }
}
