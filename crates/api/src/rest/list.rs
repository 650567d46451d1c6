//! Pages of derived tables: one or several walks along indexes of the same order, merged.
//!
//! A list that is the union of several walks (transfers from an address and to it) shows a row that is in two of them once
//! (E27). Each page examines a bounded number of rows; a page that stops there is short, and its cursor goes on after the last row that was
//! examined.

use std::cmp::Ordering;
use std::ops::Bound;

use cairn_core::{BlockRef, Height};
use cairn_store::derived::{MAX_SCAN_ROWS, Row, Scan, Value};

use super::Api;
use super::answer::PageInfo;
use super::cursor::{Binding, Cursor};
use super::fields::Fields;
use super::params::Paging;
use super::problem::{Code, Problem};
use super::view::View;
use super::words::Num;

/// One walk along an index.
pub(crate) struct Walk {
    pub table: &'static str,
    pub index: Option<&'static str>,
    pub prefix: Vec<Value>,
    pub lower: Bound<Vec<Value>>,
    pub upper: Bound<Vec<Value>>,
    pub filters: Vec<(&'static str, Value)>,
}

impl Walk {
    pub(crate) fn new(table: &'static str, index: Option<&'static str>, prefix: Vec<Value>) -> Walk {
        Walk { table, index, prefix, lower: Bound::Unbounded, upper: Bound::Unbounded, filters: Vec::new() }
    }
}

/// A list. All walks have the same columns after their prefixes.
pub(crate) struct List<'a> {
    /// What binds its cursors.
    pub binding: Binding,
    /// Whether the first column after the prefix is the block's height: the list then goes on after a reorg, and ends at the
    /// watermark.
    pub by_height: bool,
    pub paging: &'a Paging,
}

/// A page's rows, each with the number of the walk that it came from.
pub(crate) struct Rows {
    pub rows: Vec<(usize, Row)>,
    pub next: Option<String>,
    pub resume: Option<String>,
}

impl Rows {
    /// Where the list goes on.
    pub(crate) fn page(&self, paging: &Paging) -> PageInfo {
        PageInfo { next: self.next.clone(), resume: self.resume.clone(), limit: paging.limit }
    }
}

struct Found {
    walk: usize,
    place: Vec<Value>,
    row: Row,
}

impl List<'_> {
    /// Reads the page.
    pub(crate) async fn read(&self, api: &Api, view: &View, walks: &[Walk]) -> Result<Rows, Problem> {
        let cursor = match &self.paging.cursor {
            Some(text) => {
                let cursor = view.cursor_key().open(self.binding, text)?;
                self.demand_canonical(view, &cursor).await?;
                Some(cursor)
            }
            None => None,
        };
        let limit = self.paging.limit as usize;
        let examine = (api.limits().max_examined_rows / walks.len().max(1)).min(MAX_SCAN_ROWS).max(limit + 1);
        let mut found: Vec<Found> = Vec::new();
        // Beyond this place some walk was not read.
        let mut horizon: Option<Vec<Value>> = None;
        for (walk, of) in walks.iter().enumerate() {
            let table = view.table(of.table)?;
            let columns = table.index_columns(of.index).map_err(Problem::internal)?;
            let rest = columns.get(of.prefix.len()..).unwrap_or_default();
            let mut scan = Scan {
                table: of.table,
                index: of.index,
                prefix: of.prefix.clone(),
                lower: of.lower.clone(),
                upper: of.upper.clone(),
                descending: self.paging.descending,
                filters: of.filters.clone(),
                limit: limit + 1,
                examine,
            };
            if self.by_height
                && let Some(watermark) = view.watermark()
            {
                scan.upper = lower_of(scan.upper, Bound::Included(vec![Value::height(watermark)]));
            }
            if let Some(cursor) = &cursor {
                let fits = cursor.place.len() <= rest.len()
                    && cursor
                        .place
                        .iter()
                        .zip(rest)
                        .all(|(value, at)| !value.is_null() && value.is_of(table.def().columns[*at].ty));
                if !fits {
                    return Err(Problem::cursor("the cursor is of another version of this list"));
                }
                let place = Bound::Excluded(cursor.place.clone());
                if self.paging.descending {
                    scan.upper = lower_of(scan.upper, place);
                } else {
                    scan.lower = higher_of(scan.lower, place);
                }
            }
            let page = view.tables()?.scan(&scan).await?;
            if let Some(more) = page.more {
                horizon = Some(match horizon {
                    Some(before) if self.order(&before, &more).is_le() => before,
                    _ => more,
                });
            }
            for row in page.rows {
                let place = rest.iter().map(|at| row.0[*at].clone()).collect();
                found.push(Found { walk, place, row });
            }
        }
        found.sort_by(|a, b| self.order(&a.place, &b.place));
        found.dedup_by(|b, a| a.place == b.place && walks[a.walk].table == walks[b.walk].table);
        if let Some(horizon) = &horizon {
            found.retain(|found| self.order(&found.place, horizon).is_le());
        }
        let place = if found.len() > limit {
            found.truncate(limit);
            found.last().map(|found| found.place.clone())
        } else {
            horizon
        };
        let next = match place {
            Some(place) => Some(self.next(view, cursor.as_ref(), &found, walks, place).await?),
            None => None,
        };
        let resume = match (&next, found.last()) {
            _ if !self.by_height || self.paging.descending => None,
            (Some(next), _) => Some(next.clone()),
            (None, Some(last)) => {
                let place = last.place.clone();
                Some(self.next(view, cursor.as_ref(), &found, walks, place).await?)
            }
            (None, None) => self.paging.cursor.clone(),
        };
        let rows = found.into_iter().map(|found| (found.walk, found.row)).collect();
        Ok(Rows { rows, next, resume })
    }

    fn order(&self, a: &[Value], b: &[Value]) -> Ordering {
        let order = a.cmp(b);
        if self.paging.descending { order.reverse() } else { order }
    }

    async fn next(
        &self,
        view: &View,
        before: Option<&Cursor>,
        found: &[Found],
        walks: &[Walk],
        place: Vec<Value>,
    ) -> Result<String, Problem> {
        let mut anchor = before.and_then(|cursor| cursor.anchor);
        let mut newest: Option<Height> = None;
        for found in found {
            let table = view.table(walks[found.walk].table)?;
            if let Some(column) = table.height_column() {
                let name = table.def().columns[column].name;
                newest = newest.max(Some(Fields::new(table, &found.row).height(name)?));
            }
        }
        // A page that stops where no row is shown has still passed over blocks: if a reorg takes them away, others stand there that it didn't see.
        if self.by_height {
            newest = newest.max(place.first().and_then(Value::as_height));
        }
        if let Some(newest) = newest.filter(|newest| anchor.is_none_or(|anchor| *newest > anchor.height)) {
            let linked = view.chain().linked_ref(newest).await?;
            let block = linked.map(|linked| linked.block).ok_or_else(|| {
                Problem::internal(format!("a derived row is of block {newest}, which is not stored"))
            })?;
            anchor = Some(block);
        }
        Ok(seal(view, self.binding, anchor, place))
    }

    /// Demands that what was shown before is still so.
    async fn demand_canonical(&self, view: &View, cursor: &Cursor) -> Result<(), Problem> {
        let Some(lost) = lost_to_a_reorg(view, cursor).await? else { return Ok(()) };
        let next = self.by_height.then(|| {
            let kept = cursor.place.first().and_then(Value::as_height).is_some_and(|at| at <= lost.height);
            let place = match (self.paging.descending, kept) {
                // What is at and below the place was not shown yet.
                (true, true) => cursor.place.clone(),
                (true, false) => vec![Value::height(lost.height.next())],
                (false, _) => vec![Value::height(lost.height)],
            };
            seal(view, self.binding, Some(lost), place)
        });
        Err(reorged(lost, next))
    }
}

/// The last block up to which what was shown before a cursor still holds, where a reorg took away what lay above it; `None`: all of it holds.
pub(crate) async fn lost_to_a_reorg(view: &View, cursor: &Cursor) -> Result<Option<BlockRef>, Problem> {
    let Some(anchor) = cursor.anchor else { return Ok(None) };
    let here = view.chain().linked_ref(anchor.height).await?;
    if here.is_some_and(|here| here.block == anchor) {
        return Ok(None);
    }
    let mut common: Option<BlockRef> = None;
    let mut seen = cursor.reorg_id;
    loop {
        let entries = view.chain().reorgs(seen, 64).await?;
        let Some(last) = entries.last() else { break };
        for entry in &entries {
            if common.is_none_or(|common| entry.common.height < common.height) {
                common = Some(entry.common);
            }
        }
        seen = last.id;
    }
    // Without an entry, the store was put back to an older copy of itself: what is final holds in any case.
    let height = common.map(|common| common.height).or(view.head().stored_finalized());
    let height = height.unwrap_or(Height::ZERO).min(anchor.height);
    match view.chain().linked_ref(height).await? {
        Some(linked) => Ok(Some(linked.block)),
        None => Err(Problem::internal(format!("block {height}, which no reorg took away, is not stored"))),
    }
}

/// The answer to a cursor whose anchor is gone.
pub(crate) fn reorged(common: BlockRef, next: Option<String>) -> Problem {
    let how = if next.is_some() { "go on with `next`" } else { "begin again without a cursor" };
    Problem::new(
        Code::Reorged,
        format!(
            "a reorg took away blocks above {}: drop the rows above that height that you have, and {how}",
            common.height
        ),
    )
    .with(|extra| {
        extra.common_height = Some(Num(common.height.get()));
        extra.next = next;
    })
}

/// A cursor as text.
pub(crate) fn seal(view: &View, binding: Binding, anchor: Option<BlockRef>, place: Vec<Value>) -> String {
    let reorg_id = view.head().newest_reorg.id;
    view.cursor_key().seal(binding, &Cursor { reorg_id, anchor, place })
}

/// The nearer of two upper ends. Values are compared as far as both have them.
fn lower_of(a: Bound<Vec<Value>>, b: Bound<Vec<Value>>) -> Bound<Vec<Value>> {
    match prefix_order(&a, &b) {
        Some(Ordering::Less) => a,
        Some(Ordering::Greater) => b,
        // Equal as far as both go. The longer one is nearer, unless the shorter one leaves all of these out.
        Some(Ordering::Equal) => tighter(a, b),
        None if matches!(a, Bound::Unbounded) => b,
        None => a,
    }
}

/// The nearer of two lower ends.
fn higher_of(a: Bound<Vec<Value>>, b: Bound<Vec<Value>>) -> Bound<Vec<Value>> {
    match prefix_order(&a, &b) {
        Some(Ordering::Less) => b,
        Some(Ordering::Greater) => a,
        Some(Ordering::Equal) => tighter(a, b),
        None if matches!(a, Bound::Unbounded) => b,
        None => a,
    }
}

fn tighter(a: Bound<Vec<Value>>, b: Bound<Vec<Value>>) -> Bound<Vec<Value>> {
    let (long, short) = if length(&a) >= length(&b) { (a, b) } else { (b, a) };
    match (&long, &short) {
        (_, Bound::Excluded(_)) => short,
        _ => long,
    }
}

fn values(bound: &Bound<Vec<Value>>) -> Option<&[Value]> {
    match bound {
        Bound::Included(values) | Bound::Excluded(values) => Some(values),
        Bound::Unbounded => None,
    }
}

fn length(bound: &Bound<Vec<Value>>) -> usize {
    values(bound).map_or(0, <[Value]>::len)
}

fn prefix_order(a: &Bound<Vec<Value>>, b: &Bound<Vec<Value>>) -> Option<Ordering> {
    let (a, b) = (values(a)?, values(b)?);
    let both = a.len().min(b.len());
    Some(a[..both].cmp(&b[..both]))
}
