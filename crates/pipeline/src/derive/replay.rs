//! A folder's state made once more in memory, to hold what is stored against it.
//!
//! A [`Replay`] folds event rows from the first height on through the folder itself, in chain order, as it was done when they came ([`super::state`]): a
//! folder that looks at state sees what the blocks before left in the replay, and never what is stored. Events that it looks for by an index, of
//! blocks long ago, the caller reads.
//!
//! It keeps a bounded number of bytes: where the rows of all groups ([`Folder::group`]) take more, it goes on with half of the groups only ([`Slice`]), and
//! leaves out a group that takes too much by itself. What each block above finality changed is kept too, also bounded, so that a reorg is taken back and
//! not begun anew for.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use cairn_core::{Height, HeightRange};
use cairn_store::derived::{Catalog, Key, Row, Table, Value};

use super::error::DeriveError;
use super::part::Part;
pub use super::part::Slice;
use super::processor::Folder;
use super::state::{ChunkInput, ChunkState, Found, Lookup};

/// The bytes that are kept of what blocks above finality changed, at most.
const JOURNAL_BYTES: usize = 16 << 20;
/// What a row costs beside its fields and its key's, in bytes, about.
const ROW_OVERHEAD_BYTES: usize = 96;

/// How a stored row differs from what its events make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deviation {
    /// Events make a row, and none is stored.
    Missing,
    /// A row is stored, and no event makes it.
    Extra,
    /// Columns: the name, what is stored, what the events make.
    Columns(Vec<(&'static str, Value, Value)>),
}

/// A row of state that is not what its events make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The row's key.
    pub key: Key,
    /// What differs.
    pub deviation: Deviation,
}

/// The rows that one block changed, as they were before it.
type Before = BTreeMap<(&'static str, Key), Option<Row>>;

/// State of one folder as its events make it, up to a height.
pub struct Replay {
    folder: Arc<dyn Folder>,
    catalog: Catalog,
    tables: BTreeMap<&'static str, Arc<Table>>,
    part: Part,
    /// Which half it goes on with, by depth.
    turn: u64,
    rows: BTreeMap<&'static str, BTreeMap<Key, Row>>,
    bytes: usize,
    max_bytes: usize,
    first: Height,
    next: Height,
    journal: VecDeque<(Height, Before)>,
    journal_bytes: usize,
    /// Nothing below it can be taken back.
    kept_from: Height,
    left_out: Vec<Slice>,
}

impl Replay {
    /// Nothing yet: `first` is the first height. Of the halves of a slice that takes more than `max_bytes` it goes on with the one that `turn` says, bit
    /// by bit, so that turns that follow each other come to all slices.
    pub fn new(
        folder: Arc<dyn Folder>,
        catalog: &Catalog,
        slice: Slice,
        turn: u64,
        first: Height,
        max_bytes: usize,
    ) -> Result<Replay, DeriveError> {
        let mut tables = BTreeMap::new();
        for def in folder.service().tables {
            tables.insert(def.name, catalog.table(def.name)?.clone());
        }
        Ok(Replay {
            rows: tables.keys().map(|name| (*name, BTreeMap::new())).collect(),
            part: Part::new(folder.clone(), slice),
            folder,
            catalog: catalog.clone(),
            tables,
            turn,
            bytes: 0,
            max_bytes,
            first,
            next: first,
            journal: VecDeque::new(),
            journal_bytes: 0,
            kept_from: Height::ZERO,
            left_out: Vec::new(),
        })
    }

    /// The height after the last one that was folded.
    pub fn next(&self) -> Height {
        self.next
    }

    /// What it keeps by now.
    pub fn slice(&self) -> Slice {
        self.part.slice
    }

    /// The slices that it left out since it began, none of which overlap.
    pub fn left_out(&self) -> &[Slice] {
        &self.left_out
    }

    /// The groups of its slice that take too much by themselves.
    pub fn too_large(&self) -> impl Iterator<Item = &[Value]> {
        let Part { slice, too_large, .. } = &self.part;
        too_large.iter().map(Vec::as_slice).filter(move |group| slice.holds(group))
    }

    /// Folds the blocks of `heights`, which begin where it stands; nothing below `finalized` is ever taken back. `found` is what the store has for lookups of
    /// events. Where that is not all that the folder looks for, nothing is folded, and it says what is wanted besides.
    pub fn fold(
        &mut self,
        heights: HeightRange,
        input: &ChunkInput,
        found: &BTreeMap<Lookup, Found>,
        finalized: Height,
    ) -> Result<BTreeSet<Lookup>, DeriveError> {
        if heights.start() != self.next {
            return Err(DeriveError::Invalid(format!("{heights} doesn't begin at height {}", self.next)));
        }
        let state = ChunkState::new(&*self.folder, &self.catalog, finalized)?;
        let mut state = state.of_part(self.part.clone());
        let mut missing = state.touched_by(input)?;
        let state = loop {
            for (table, key) in missing.places {
                let row = self.rows.get(table).and_then(|rows| rows.get(&key)).cloned();
                state.give(table, key, row);
            }
            let mut wanted = BTreeSet::new();
            for lookup in missing.lookups {
                let of_store = found.get(&lookup).cloned();
                let own = self.tables.contains_key(lookup.table).then(|| self.look(&lookup));
                match own.transpose()?.or(of_store) {
                    Some(found) => state.give_found(lookup, found),
                    None => _ = wanted.insert(lookup),
                }
            }
            if !wanted.is_empty() {
                return Ok(wanted);
            }
            let mut worked = state.clone();
            let (_, more) = worked.run(&*self.folder, input)?;
            if more.is_empty() {
                break worked;
            }
            missing = more;
        };
        self.keep(state)?;
        self.next = heights.end();
        self.kept_from = self.kept_from.max(finalized);
        self.shrink_journal();
        self.shrink();
        Ok(BTreeSet::new())
    }

    /// Takes back what was folded from `next` on. `false`: that is no longer possible, and it has to begin anew.
    pub fn roll_back(&mut self, next: Height) -> bool {
        if next >= self.next {
            return true;
        }
        if next < self.kept_from {
            return false;
        }
        while self.journal.back().is_some_and(|(height, _)| *height >= next) {
            let Some((_, before)) = self.journal.pop_back() else { break };
            self.journal_bytes -= weight_of(&before);
            for ((table, key), row) in before {
                if self.part.holds(table, &key) {
                    self.put(table, key, row);
                }
            }
        }
        self.next = next.max(self.first);
        true
    }

    /// Compares stored rows of a table with what was folded, where keys lie above `after` and up to `to`; `None`: without that end. `stored` are
    /// all of them, ascending. How many rows were compared, and what differs.
    pub fn differences(
        &self,
        table: &'static str,
        after: Option<&Key>,
        to: Option<&Key>,
        stored: &[Row],
    ) -> Result<(u64, Vec<Difference>), DeriveError> {
        let (def, folded) = (self.table(table)?, &self.rows[table]);
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        let upper = to.map_or(Bound::Unbounded, Bound::Included);
        let mut expected: BTreeMap<&Key, &Row> = folded.range::<Key, _>((lower, upper)).collect();
        let (mut compared, mut differences) = (0, Vec::new());
        for row in stored {
            let key = def.key_of(row);
            if !self.part.holds(table, &key) {
                continue;
            }
            compared += 1;
            let deviation = match expected.remove(&key) {
                None => Deviation::Extra,
                Some(made) if made == row => continue,
                Some(made) => Deviation::Columns(
                    def.def()
                        .columns
                        .iter()
                        .zip(row.0.iter().zip(&made.0))
                        .filter(|(_, (stored, made))| stored != made)
                        .map(|(column, (stored, made))| (column.name, stored.clone(), made.clone()))
                        .collect(),
                ),
            };
            differences.push(Difference { key, deviation });
        }
        compared += expected.len() as u64;
        differences.extend(
            expected.into_keys().map(|key| Difference { key: key.clone(), deviation: Deviation::Missing }),
        );
        Ok((compared, differences))
    }

    fn table(&self, name: &'static str) -> Result<&Arc<Table>, DeriveError> {
        self.tables.get(name).ok_or_else(|| {
            DeriveError::Invalid(format!("a folder changes table {name}, which is not its own"))
        })
    }

    /// What it has for a lookup in one of the folder's own tables.
    fn look(&self, lookup: &Lookup) -> Result<Found, DeriveError> {
        let table = self.table(lookup.table)?;
        let columns = table.index_columns(lookup.index)?;
        // Of the key's columns, the first ones are said as a rule: no index is kept beside the rows.
        let said = |column: &usize| {
            let at = columns.iter().take(lookup.prefix.len()).position(|of_index| of_index == column)?;
            lookup.prefix.get(at).cloned()
        };
        let first = Key(table.index_columns(None)?.iter().map_while(said).collect());
        let fits = |row: &&Row| columns.iter().zip(&lookup.prefix).all(|(&at, value)| row.0[at] == *value);
        let near = self.rows[lookup.table].range(&first..).take_while(|(key, _)| key.0.starts_with(&first.0));
        let mut rows: Vec<Row> = near.map(|(_, row)| row).filter(fits).cloned().collect();
        rows.sort_by_cached_key(|row| -> Vec<Value> {
            columns.iter().map(|&at| row.0[at].clone()).collect()
        });
        let is_whole = rows.len() <= lookup.limit;
        rows.truncate(lookup.limit);
        Ok(Found { rows, is_whole })
    }

    /// Keeps what was folded, and how to take it back.
    fn keep(&mut self, folded: ChunkState) -> Result<(), DeriveError> {
        let mut journal: BTreeMap<Height, Before> = BTreeMap::new();
        for rows in folded.into_rows() {
            let table = self.table(rows.table)?.clone();
            for changed in rows.rows {
                let key = table.key_of(&changed.row);
                for (height, before) in changed.undo {
                    journal.entry(height).or_default().insert((rows.table, key.clone()), before);
                }
                self.put(rows.table, key, Some(changed.row));
            }
        }
        for (height, before) in journal {
            self.journal_bytes += weight_of(&before);
            self.journal.push_back((height, before));
        }
        Ok(())
    }

    fn put(&mut self, table: &'static str, key: Key, row: Option<Row>) {
        let weight = |row: &Row| row_weight(&key, row);
        self.bytes += row.as_ref().map_or(0, weight);
        let rows = self.rows.entry(table).or_default();
        let old = match row {
            Some(row) => rows.insert(key.clone(), row),
            None => rows.remove(&key),
        };
        self.bytes -= old.as_ref().map_or(0, weight);
    }

    fn shrink_journal(&mut self) {
        while let Some((height, before)) = self.journal.front() {
            if *height >= self.kept_from && self.journal_bytes <= JOURNAL_BYTES {
                break;
            }
            self.journal_bytes -= weight_of(before);
            self.kept_from = self.kept_from.max(height.next());
            self.journal.pop_front();
        }
    }

    /// Leaves out groups until the rest fits.
    fn shrink(&mut self) {
        while self.bytes > self.max_bytes {
            let mut groups: HashMap<&[Value], usize> = HashMap::new();
            for (table, rows) in &self.rows {
                for (key, row) in rows {
                    *groups.entry(self.folder.group(table, key)).or_default() += row_weight(key, row);
                }
            }
            let largest = groups.into_iter().max_by_key(|(_, bytes)| *bytes);
            let Some((group, bytes)) = largest else { return };
            match self.part.slice.halves(self.turn).filter(|_| bytes <= self.max_bytes / 2) {
                Some((kept, left)) => {
                    self.part.slice = kept;
                    self.left_out.push(left);
                }
                None => _ = Arc::make_mut(&mut self.part.too_large).insert(group.to_vec()),
            }
            let mut rows = std::mem::take(&mut self.rows);
            for (table, rows) in &mut rows {
                rows.retain(|key, _| self.part.holds(table, key));
            }
            self.bytes = rows.values().flatten().map(|(key, row)| row_weight(key, row)).sum();
            self.rows = rows;
        }
    }
}

fn row_weight(key: &Key, row: &Row) -> usize {
    ROW_OVERHEAD_BYTES + row.size_bytes() + key.0.iter().map(Value::size_bytes).sum::<usize>()
}

fn weight_of(before: &Before) -> usize {
    let one = |((_, key), row): (&(&str, Key), &Option<Row>)| {
        let fields = row.as_ref().map_or(0, Row::size_bytes);
        ROW_OVERHEAD_BYTES + fields + key.0.iter().map(Value::size_bytes).sum::<usize>()
    };
    before.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use cairn_core::{BlockFacts, BlockId, StoredBlock};
    use cairn_store::derived::{
        BLOCK_HEIGHT, Change, ColumnType, LAST_HEIGHT, Merge, TableClass, TableDef, column,
    };

    use super::super::processor::{Changes, FoldBlock, ProcessError, ServiceInfo};
    use super::*;

    static MOVES: TableDef = TableDef {
        name: "moves",
        service: "moves",
        class: TableClass::Events { partition_heights: 16 },
        columns: &[column(BLOCK_HEIGHT, ColumnType::Int), column("what", ColumnType::Int)],
        key: &[BLOCK_HEIGHT, "what"],
        indexes: &[],
    };
    static SUMS: TableDef = TableDef {
        name: "sums",
        service: "sums",
        class: TableClass::State,
        columns: &[
            column("what", ColumnType::Int),
            column("count", ColumnType::Int).merged(Merge::Sum),
            column("settled", ColumnType::Int).merged(Merge::Sum),
            column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
        ],
        key: &["what"],
        indexes: &[],
    };
    static SERVICE: ServiceInfo =
        ServiceInfo { name: "sums", version: 1, upstreams: &["moves"], tables: &[&SUMS] };

    static READS: &[&TableDef] = &[&MOVES];

    struct Sums;

    impl Folder for Sums {
        fn service(&self) -> &'static ServiceInfo {
            &SERVICE
        }

        fn reads(&self) -> &'static [&'static TableDef] {
            READS
        }

        fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
            for row in block.rows[0] {
                changes.change(&SUMS, Change(vec![Some(row.0[1].clone()), Some(Value::Int(1)), None, None]));
            }
            Ok(())
        }

        fn settled(&self, _: &'static str, _: Option<&Row>, after: &Row, changes: &mut Changes) {
            changes.change(&SUMS, Change(vec![Some(after.0[0].clone()), None, Some(Value::Int(1)), None]));
        }

        fn group<'a>(&self, _: &'static str, key: &'a Key) -> &'a [Value] {
            &key.0
        }
    }

    fn replay(slice: Slice, turn: u64, max_bytes: usize) -> Replay {
        let catalog = Catalog::new([&MOVES, &SUMS]).expect("right");
        Replay::new(Arc::new(Sums), &catalog, slice, turn, Height(0), max_bytes)
            .expect("its tables are there")
    }

    /// Folds the block at `height`, which has one event for each of these.
    fn fold(replay: &mut Replay, height: u64, whats: &[i64], finalized: u64) {
        let facts = BlockFacts {
            height: Height(height),
            id: BlockId([height as u8; 32]),
            parent_id: BlockId([0; 32]),
            timestamp_ms: 0,
            tx_count: 0,
            log_count: 0,
            unverified: 0,
        };
        let nothing = bytes::Bytes::new;
        let block = StoredBlock {
            facts,
            transactions: Vec::new(),
            header: nothing(),
            body: nothing(),
            receipts: nothing(),
            extras: nothing(),
            traces: None,
        };
        let rows =
            whats.iter().map(|what| Row(vec![Value::height(facts.height), Value::Int(*what)])).collect();
        let heights = HeightRange::one(facts.height);
        let input = ChunkInput::fold(&Sums, vec![block], vec![rows]).expect("folds");
        let wanted = replay.fold(heights, &input, &BTreeMap::new(), Height(finalized)).expect("folds");
        assert!(wanted.is_empty());
    }

    fn row(what: i64, count: i64, last: i64) -> Row {
        Row(vec![Value::Int(what), Value::Int(count), Value::Int(count), Value::Int(last)])
    }

    fn rows(replay: &Replay) -> Vec<Row> {
        replay.rows["sums"].values().cloned().collect()
    }

    #[test]
    fn what_is_stored_otherwise_is_named_by_key_and_column() {
        let mut replay = replay(Slice::ALL, 0, usize::MAX);
        fold(&mut replay, 0, &[1, 2, 3], 0);
        fold(&mut replay, 1, &[2], 0);
        let right = [row(1, 1, 0), row(2, 2, 1), row(3, 1, 0)];
        assert_eq!(replay.differences("sums", None, None, &right).expect("compares"), (3, vec![]));
        let key = |what| Key(vec![Value::Int(what)]);
        let wrong = [row(0, 1, 0), row(2, 5, 1)];
        let (compared, found) = replay.differences("sums", None, Some(&key(2)), &wrong).expect("compares");
        let columns =
            vec![("count", Value::Int(5), Value::Int(2)), ("settled", Value::Int(5), Value::Int(2))];
        let is = |what, deviation| Difference { key: key(what), deviation };
        let expected =
            [is(0, Deviation::Extra), is(2, Deviation::Columns(columns)), is(1, Deviation::Missing)];
        assert_eq!((compared, &found[..]), (3, &expected[..]));
        // The rest of it.
        let rest = replay.differences("sums", Some(&key(2)), None, &right[2..]).expect("compares");
        assert_eq!(rest, (1, vec![]));
    }

    #[test]
    fn a_reorg_is_taken_back_as_if_it_had_not_been_folded() {
        let mut through = replay(Slice::ALL, 0, usize::MAX);
        let mut straight = replay(Slice::ALL, 0, usize::MAX);
        for height in 0..6 {
            fold(&mut through, height, &[1, height as i64], 2);
        }
        for height in 0..3 {
            fold(&mut straight, height, &[1, height as i64], 2);
        }
        assert!(through.roll_back(Height(3)) && through.next() == Height(3));
        assert_eq!((rows(&through), through.bytes), (rows(&straight), straight.bytes));
        fold(&mut through, 3, &[9], 2);
        fold(&mut straight, 3, &[9], 2);
        assert_eq!(rows(&through), rows(&straight));
        assert!(through.roll_back(Height(9)) && through.next() == Height(4), "nothing of it was folded");
        assert!(!through.roll_back(Height(1)), "nothing is kept of what lies below finality");
    }

    #[test]
    fn turns_come_to_all_slices_and_what_is_left_out_is_the_rest() {
        let whats: Vec<i64> = (0..200).collect();
        let mut whole = replay(Slice::ALL, 0, usize::MAX);
        fold(&mut whole, 0, &whats, 0);
        let limit = whole.bytes / 3;
        let mut seen = BTreeSet::new();
        for turn in 7..7 + 16 {
            let mut part = replay(Slice::ALL, turn, limit);
            fold(&mut part, 0, &whats, 0);
            assert!(part.bytes <= limit && !rows(&part).is_empty());
            seen.extend(rows(&part));
        }
        assert_eq!(seen.len(), whats.len());
        let (mut slices, mut count) = (vec![Slice::ALL], 0);
        while let Some(slice) = slices.pop() {
            let mut part = replay(slice, 0, limit);
            fold(&mut part, 0, &whats, 0);
            count += rows(&part).len();
            slices.extend(part.left_out());
        }
        assert_eq!(count, whats.len());
    }

    #[test]
    fn a_group_that_is_too_large_by_itself_is_left_out_and_said() {
        let mut part = replay(Slice::ALL, 0, 100);
        fold(&mut part, 0, &[4], 0);
        fold(&mut part, 1, &[4], 0);
        assert_eq!(part.too_large().collect::<Vec<_>>(), [&[Value::Int(4)][..]]);
        assert_eq!((rows(&part).len(), part.bytes), (0, 0));
        let stored = part.differences("sums", None, None, &[row(4, 2, 1)]).expect("compares");
        assert_eq!(stored, (0, vec![]));
    }
}
