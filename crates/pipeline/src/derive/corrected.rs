//! What a folder's state is where other events of some heights had been folded: pure functions of rows, undo rows and changes.
//!
//! Sums change by what the new events add less what the old ones added. The first and the last writer of a row are known where the row says
//! that they lie outside of the heights, or the new events have one. Else the caller looks for the nearest events around the heights that
//! change it ([`Look`]). Where even these don't say what a row would be, the answer is [`Unknown`], and the folder has to begin anew. What it
//! may rely on is the contract of [`Folder::is_correctable`].
//!
//! A row has a past: above finality each undo row says what it was before a block. Each of these is corrected as the row itself, by the
//! changes below that block.

use std::collections::{BTreeMap, BTreeSet};

use cairn_core::{Height, HeightRange};
use cairn_store::derived::{Catalog, Change, CorrectedRow, Key, Merge, Row, Sum, Table, Value};

use super::processor::{Changes, Folder};

/// The column that says which block changed a row first.
const FIRST_HEIGHT: &str = "first_height";

/// Where a row stands.
pub(super) type Place = (&'static str, Key);

/// What blocks do to rows, ascending by block.
pub(super) type ChangesOf = BTreeMap<Place, Vec<(Height, Change)>>;

/// Rows don't say what they would be: why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unknown(pub String);

impl<E: std::error::Error> From<E> for Unknown {
    fn from(error: E) -> Self {
        Unknown(error.to_string())
    }
}

/// Rows of which the nearest events around the heights have to be known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// Whose last writer lies before the heights.
    pub before: BTreeSet<Place>,
    /// Whose first writer lies after them.
    pub after: BTreeSet<Place>,
}

impl Look {
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}

/// What the nearest block before the heights, and the nearest one after them, change of a row; nothing where there is no such block.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    pub before: ChangesOf,
    pub after: ChangesOf,
}

/// What becomes of state.
pub(super) enum Corrected {
    /// The rows that change, by table.
    Rows(Vec<(&'static str, Vec<CorrectedRow>)>),
    /// More has to be known.
    Look(Look),
}

/// A row with its past, by the moments before which it was so: heights, then `None` for now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Past {
    /// `(height, row before that block)`, ascending.
    pub undo: Vec<(Height, Option<Row>)>,
    /// The row at the folder's checkpoint.
    pub now: Option<Row>,
}

impl Past {
    /// As it was before the block at `height`; now where that is `None`.
    fn before(&self, height: Option<Height>) -> Option<&Row> {
        let at = height.map(|height| self.undo.partition_point(|(at, _)| *at < height));
        at.and_then(|at| self.undo.get(at)).map_or(self.now.as_ref(), |(_, row)| row.as_ref())
    }

    /// Each moment, from the lowest.
    fn moments(&self) -> impl Iterator<Item = Option<Height>> {
        self.undo.iter().map(|(height, _)| Some(*height)).chain([None])
    }
}

/// What changes the state that was folded from some heights.
pub(super) struct Replaced<'a> {
    pub folder: &'a dyn Folder,
    pub catalog: &'a Catalog,
    /// The heights whose events are replaced, as far as the folder has folded them.
    pub heights: HeightRange,
    /// Blocks from here on have undo rows.
    pub finalized: Height,
    pub old: &'a ChangesOf,
    pub new: &'a ChangesOf,
    /// What was looked for before.
    pub around: &'a Around,
}

/// What follows for other rows from a row's old and new self, by the moments of its past.
type Settled = Vec<(Option<Height>, Vec<(Place, Change)>)>;

impl Replaced<'_> {
    /// The rows that change. `pasts` has every place that the old or the new events change, without undo rows below finality.
    pub fn rows(&self, pasts: &BTreeMap<Place, Past>) -> Result<Corrected, Unknown> {
        let mut corrected: BTreeMap<&Place, Past> = BTreeMap::new();
        let mut look = Look::default();
        for (place, past) in pasts {
            corrected.insert(place, self.past(place, past, &mut look)?);
        }
        if !look.is_empty() {
            return Ok(Corrected::Look(look));
        }
        let mut settled: BTreeMap<Place, Vec<Settled>> = BTreeMap::new();
        for (place, after) in &corrected {
            for (other, of_other) in self.settled(place, &pasts[*place], after) {
                settled.entry(other).or_default().push(of_other);
            }
        }
        for (place, of_place) in &settled {
            let Some(past) = corrected.get_mut(place) else {
                return Err(Unknown(format!("a row of {} changes with one of another key", place.0)));
            };
            let table = self.catalog.table(place.0)?;
            let moments: Vec<_> = past.moments().collect();
            for (at, moment) in moments.into_iter().enumerate() {
                let row = match past.undo.get_mut(at) {
                    Some((_, row)) => row,
                    None => &mut past.now,
                };
                // Where no event makes it any more, nothing makes those it is counted from.
                if row.is_none() {
                    continue;
                }
                for of_row in of_place {
                    let then = of_row.iter().find(|(until, _)| reaches(*until, moment));
                    let changes = then.into_iter().flat_map(|(_, changes)| changes);
                    for (_, change) in changes.filter(|(other, _)| other == place) {
                        *row = add(table, row.take(), change)?;
                    }
                }
            }
        }
        let mut tables: Vec<(&'static str, Vec<CorrectedRow>)> = Vec::new();
        for (place, after) in corrected {
            if pasts.get(place) == Some(&after) {
                continue;
            }
            let row = CorrectedRow { key: place.1.clone(), row: after.now, undo: after.undo };
            match tables.last_mut().filter(|(table, _)| *table == place.0) {
                Some((_, rows)) => rows.push(row),
                None => tables.push((place.0, vec![row])),
            }
        }
        Ok(Corrected::Rows(tables))
    }

    /// A row and its past, without what follows from other rows.
    fn past(&self, place: &Place, past: &Past, look: &mut Look) -> Result<Past, Unknown> {
        let mut heights: BTreeSet<Height> = past.undo.iter().map(|(height, _)| *height).collect();
        heights.retain(|height| !self.heights.contains(*height));
        let new = self.new.get(place).into_iter().flatten().map(|(height, _)| *height);
        heights.extend(new.filter(|height| *height >= self.finalized));
        let mut undo = Vec::with_capacity(heights.len());
        for height in heights {
            undo.push((height, self.row(place, past, Some(height), look)?));
        }
        Ok(Past { undo, now: self.row(place, past, None, look)? })
    }

    /// A row as it was before a block, or is now; any where more has to be looked for.
    fn row(
        &self,
        place: &Place,
        past: &Past,
        before: Option<Height>,
        look: &mut Look,
    ) -> Result<Option<Row>, Unknown> {
        let table = self.catalog.table(place.0)?;
        let below = |changes: &'_ ChangesOf| -> Vec<(Height, Change)> {
            let of_place = changes.get(place).into_iter().flatten();
            of_place.filter(|(height, _)| before.is_none_or(|before| *height < before)).cloned().collect()
        };
        let (old, new) = (below(self.old), below(self.new));
        let stored = past.before(before);
        if old == new {
            return Ok(stored.cloned());
        }
        let unknown = |what: &str| Err(Unknown(format!("a row of {}: {what}", place.0)));
        let made = folded(table, &new)?;
        let Some(stored) = stored else {
            if !old.is_empty() {
                return unknown("events of it were folded, and it is not there");
            }
            return self.put_right(place.0, made);
        };
        let is_set = |change: &Change| {
            let columns = table.def().columns.iter().enumerate();
            let mut last =
                columns.filter(|(at, of)| of.merge == Merge::Last && table.height_column() != Some(*at));
            last.all(|(at, _)| change.0.get(at).is_some_and(Option::is_some))
        };
        let nearest = self.around.before.get(place);
        let writers = [new.last(), nearest.and_then(|changes| changes.last())];
        if writers.into_iter().flatten().any(|(_, change)| !is_set(change)) {
            return unknown("its last change leaves something as it was");
        }
        let height_at = |at: usize| stored.0.get(at).and_then(Value::as_height);
        let Some(last) = table.height_column().and_then(height_at) else {
            return unknown("without a height");
        };
        let first = table.column(FIRST_HEIGHT).ok().and_then(height_at);
        let fits = |of_row: Height, of_old: Option<Height>| match self.heights.contains(of_row) {
            true => of_old == Some(of_row),
            false => true,
        };
        let (lowest, highest) = (old.first().map(|(at, _)| *at), old.last().map(|(at, _)| *at));
        let is_below = first.zip(lowest).is_none_or(|(first, lowest)| first <= lowest);
        let is_above = highest.is_none_or(|highest| last >= highest);
        if !fits(last, highest) || first.is_some_and(|first| !fits(first, lowest)) || !is_below || !is_above {
            return unknown("it was not folded from the events that are stored");
        }
        let is_within = first.is_some_and(|first| first >= self.heights.start()) && last < self.heights.end();
        // Who wrote last, and first: `None` is whoever wrote what is stored.
        let last_from = match (&made, nearest) {
            _ if last >= self.heights.end() => None,
            (Some(made), _) => Some(made.clone()),
            (None, _) if is_within => return self.vanished(table, stored, &old),
            (None, Some(nearest)) => match folded(table, nearest)? {
                Some(before) => Some(before),
                None if first.is_none() => return self.vanished(table, stored, &old),
                None => return unknown("it was changed before these heights, and no event did it"),
            },
            (None, None) => {
                look.before.insert(place.clone());
                return Ok(None);
            }
        };
        let first_from = match (first, &made, self.around.after.get(place)) {
            (Some(first), ..) if first < self.heights.start() => None,
            (Some(first), None, _) if first >= self.heights.end() => None,
            (Some(_), Some(made), _) => Some(made.clone()),
            (Some(_), None, Some(nearest)) => match folded(table, nearest)? {
                Some(after) => Some(after),
                None => return unknown("it was changed after these heights, and no event did it"),
            },
            (Some(_), None, None) => {
                look.after.insert(place.clone());
                return Ok(None);
            }
            (None, ..) => None,
        };
        let mut row = stored.clone();
        for (at, column) in table.def().columns.iter().enumerate() {
            let from = match column.merge {
                Merge::Last => &last_from,
                Merge::First if first.is_none() => return unknown("who changed it first is not known"),
                Merge::First => &first_from,
                Merge::Sum | Merge::Keep => &None,
            };
            if let Some(from) = from {
                row.0[at] = from.0[at].clone();
            }
        }
        self.put_right(place.0, self.sums(table, Some(row), &old, &new)?)
    }

    /// A row with the sums that the new events make in place of the old ones.
    fn sums(
        &self,
        table: &Table,
        mut row: Option<Row>,
        old: &[(Height, Change)],
        new: &[(Height, Change)],
    ) -> Result<Option<Row>, Unknown> {
        for (_, change) in old {
            row = add(table, row, &negated(change))?;
        }
        for (_, change) in new {
            row = add(table, row, change)?;
        }
        Ok(row)
    }

    /// No event makes it any more: then nothing may be left in its sums but what follows from other rows.
    fn vanished(
        &self,
        table: &Table,
        stored: &Row,
        old: &[(Height, Change)],
    ) -> Result<Option<Row>, Unknown> {
        let left = self.sums(table, Some(stored.clone()), old, &[])?;
        // Columns that no event of its own changes are other rows' to change.
        let own =
            |at: usize| old.iter().any(|(_, change)| change.0[at].as_ref().is_some_and(|by| !is_zero(by)));
        let columns = table.def().columns.iter().enumerate();
        let sums: Vec<usize> =
            columns.filter(|(at, of)| of.merge == Merge::Sum && own(*at)).map(|(at, _)| at).collect();
        if left.is_some_and(|left| sums.iter().any(|at| !is_zero(&left.0[*at]))) {
            return Err(Unknown(format!("a row of {} has more than its events made", table.name())));
        }
        Ok(None)
    }

    fn put_right(&self, table: &'static str, row: Option<Row>) -> Result<Option<Row>, Unknown> {
        let Some(mut row) = row else { return Ok(None) };
        if self.folder.put_right(table, &mut row) {
            return Ok(Some(row));
        }
        Err(Unknown(format!("a row of {table} doesn't say what other events would have made of it")))
    }

    /// What follows for other rows, by each of them.
    fn settled(&self, place: &Place, old: &Past, new: &Past) -> BTreeMap<Place, Settled> {
        let mut moments: BTreeSet<Height> = BTreeSet::new();
        moments.extend(old.undo.iter().chain(&new.undo).map(|(height, _)| *height));
        let moments = moments.into_iter().map(Some).chain([None]);
        let mut of_moments: Settled = Vec::new();
        for moment in moments {
            let mut changes = Changes::default();
            let by = match (old.before(moment), new.before(moment)) {
                (before, Some(after)) => {
                    self.folder.settled(place.0, before, after, &mut changes);
                    1
                }
                (Some(before), None) => {
                    self.folder.settled(place.0, None, before, &mut changes);
                    -1
                }
                (None, None) => 1,
            };
            let of_moment = changes.into_inner().into_iter().filter_map(|(name, change)| {
                let key = change.key(self.catalog.table(name).ok()?).ok()?;
                let change = if by < 0 { negated(&change) } else { change };
                Some(((name, key), change)).filter(|(other, _)| other != place)
            });
            of_moments.push((moment, of_moment.collect()));
        }
        let others: BTreeSet<Place> =
            of_moments.iter().flat_map(|(_, changes)| changes).map(|(other, _)| other.clone()).collect();
        others.into_iter().map(|other| (other, of_moments.clone())).collect()
    }
}

/// The row that changes make where there was none.
fn folded(table: &Table, changes: &[(Height, Change)]) -> Result<Option<Row>, Unknown> {
    let mut row: Option<Row> = None;
    for (height, change) in changes {
        row = Some(change.apply(table, row.as_ref(), *height)?);
    }
    Ok(row)
}

/// Whether what was so until one moment was so at another.
fn reaches(until: Option<Height>, moment: Option<Height>) -> bool {
    match (until, moment) {
        (None, _) => true,
        (Some(until), Some(moment)) => moment <= until,
        (Some(_), None) => false,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Int(n) => *n == 0,
        Value::Sum(sum) => **sum == Sum::ZERO,
        _ => value.is_null(),
    }
}

/// The change that takes back what a change adds.
fn negated(change: &Change) -> Change {
    let negate = |value: &Value| match value {
        Value::Int(n) => Value::Int(n.saturating_neg()),
        Value::Sum(sum) => Value::Sum(Box::new(-**sum)),
        other => other.clone(),
    };
    Change(change.0.iter().map(|value| value.as_ref().map(negate)).collect())
}

/// Adds what a change adds to the sums of a row; everything else stays.
fn add(table: &Table, row: Option<Row>, change: &Change) -> Result<Option<Row>, Unknown> {
    let columns = table.def().columns;
    let adds = |at: usize| columns[at].merge == Merge::Sum;
    let Some(row) = row else {
        let nothing =
            change.0.iter().enumerate().all(|(at, by)| !adds(at) || by.as_ref().is_none_or(is_zero));
        return if nothing {
            Ok(None)
        } else {
            Err(Unknown(format!("a row of {} is not there", table.name())))
        };
    };
    let sums = change.0.iter().enumerate().map(|(at, by)| by.clone().filter(|_| adds(at)));
    let height = table.height_column().and_then(|at| row.0[at].as_height()).unwrap_or_default();
    Ok(Some(Change(sums.collect()).apply(table, Some(&row), height)?))
}
