//! State while a chunk is folded over it: its rows as the blocks change them, strictly in chain order.
//!
//! A folder may look at rows while it decides ([`Folder::fold_with_state`]), and yet does no I/O: a round goes through all blocks of the chunk over the
//! rows that were loaded. What it misses counts as absent and is remembered; such a round counts for nothing. What it missed is loaded, and the
//! next round begins at the first block again. Up to the first miss a round is right, so each is right further than the one before it; the
//! last one, which misses nothing, is right as a whole, and the same however the blocks were cut into chunks.
//!
//! A replay ([`super::replay`]) that has no memory for all rows folds a [`Part`] of them. Other rows are never there then, whatever changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{BlockFacts, Height, StoredBlock};
use cairn_store::StoreError;
use cairn_store::derived::{
    BLOCK_HEIGHT, Catalog, Change, Key, Row, Scan, StateRow, StateRows, Table, TableClass, TableDef, Value,
};

use super::corrected::{ChangesOf, Place};
use super::error::DeriveError;
use super::guard::guarded;
use super::part::Part;
use super::processor::{Changes, FoldBlock, Folder, Malformed, ProcessError};

/// What can't be understood, with its block.
type Errors = Vec<(BlockFacts, Malformed)>;

/// Rows that a folder looks for by an index of a table that it writes or reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lookup {
    /// The table's name.
    pub table: &'static str,
    /// The index's name; `None` is the key.
    pub index: Option<&'static str>,
    /// What the first columns of the index equal.
    pub prefix: Vec<Value>,
    /// How many rows are wanted, at most; at least 1.
    pub limit: usize,
}

impl Lookup {
    /// As the store is asked.
    pub fn to_scan(&self) -> Scan {
        Scan { index: self.index, prefix: self.prefix.clone(), ..Scan::new(self.table, self.limit) }
    }
}

/// What a lookup found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The rows in the index's order.
    pub rows: Vec<Row>,
    /// Whether there are no more than these.
    pub is_whole: bool,
}

/// What a round missed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Rows by their keys.
    pub places: BTreeSet<(&'static str, Key)>,
    /// Rows by an index.
    pub lookups: BTreeSet<Lookup>,
}

impl Missing {
    /// Whether it missed nothing.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.lookups.is_empty()
    }
}

/// Leaves out the rows at or above `end`: those of one table may have been read further than those of the next.
pub fn cut_events(events: &mut [Vec<Row>], end: Height) {
    for rows in events {
        rows.retain(|row| row.0[0].as_height().is_none_or(|height| height < end));
    }
}

/// A chunk's blocks with their rows, and what they change whatever the state is.
pub struct ChunkInput {
    blocks: Vec<StoredBlock>,
    /// By table that the folder reads.
    events: Vec<Vec<Row>>,
    /// For each block where its rows begin and end in each of these.
    places: Vec<Vec<std::ops::Range<usize>>>,
    changes: Vec<Vec<(&'static str, Change)>>,
    errors: Errors,
}

impl ChunkInput {
    /// Folds blocks; `events` has the rows of each table that the folder reads, by key, and none at a height without a block.
    pub fn fold(
        folder: &dyn Folder,
        blocks: Vec<StoredBlock>,
        events: Vec<Vec<Row>>,
    ) -> Result<ChunkInput, DeriveError> {
        let mut at = vec![0; events.len()];
        let mut places = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let height = block.facts.height;
            let mut of_block = Vec::with_capacity(events.len());
            for (events, at) in events.iter().zip(&mut at) {
                let rest = &events[*at..];
                let here = rest.partition_point(|row| row.0[0].as_height().is_none_or(|row| row <= height));
                if let Some(stray) = rest[..here].iter().find(|row| row.0[0].as_height() != Some(height)) {
                    return Err(ProcessError {
                        block: block.facts.block_ref(),
                        message: format!("an event row has {BLOCK_HEIGHT} {}, where no block is", stray.0[0]),
                    }
                    .into());
                }
                of_block.push(*at..*at + here);
                *at += here;
            }
            places.push(of_block);
        }
        for (events, at) in events.iter().zip(&at) {
            if let Some(left) = events.get(*at) {
                // It would be dropped, though its height counts as folded.
                return Err(StoreError::Corrupt {
                    place: format!("the event rows of {BLOCK_HEIGHT} {}", left.0[0]),
                    what: "the chunk that they are folded in has no block there".into(),
                }
                .into());
            }
        }
        let (changes, errors) = (Vec::with_capacity(blocks.len()), Vec::new());
        let mut input = ChunkInput { blocks, events, places, changes, errors };
        for at in 0..input.blocks.len() {
            let facts = input.blocks[at].facts;
            let changes = input.with_block(at, |block| {
                guarded(facts.block_ref(), || {
                    let mut changes = Changes::default();
                    folder.fold(block, &mut changes)?;
                    Ok(changes)
                })
            })?;
            let (changes, malformed) = changes.into_parts();
            input.errors.extend(malformed.into_iter().map(|what| (facts, what)));
            input.changes.push(changes);
        }
        Ok(input)
    }

    /// What each row's blocks change, ascending.
    pub(super) fn changes_of(&self, catalog: &Catalog) -> Result<ChangesOf, DeriveError> {
        let mut changes = ChangesOf::new();
        for (block, of_block) in self.blocks.iter().zip(&self.changes) {
            for (name, change) in of_block {
                let place = (*name, change.key(catalog.table(name)?)?);
                changes.entry(place).or_default().push((block.facts.height, change.clone()));
            }
        }
        Ok(changes)
    }

    fn with_block<T>(&self, at: usize, run: impl FnOnce(&FoldBlock<'_>) -> T) -> T {
        let rows: Vec<&[Row]> =
            self.events.iter().zip(&self.places[at]).map(|(events, place)| &events[place.clone()]).collect();
        let block = &self.blocks[at];
        run(&FoldBlock { facts: &block.facts, stored: Some(block), rows: &rows })
    }
}

#[derive(Debug, Clone, Default)]
struct Touched {
    now: Option<Row>,
    undo: Vec<(Height, Option<Row>)>,
    changed: bool,
}

/// The rows that a chunk touches.
#[derive(Debug, Clone)]
pub struct ChunkState {
    own: Arc<BTreeMap<&'static str, Arc<Table>>>,
    read: Arc<BTreeMap<&'static str, Arc<Table>>>,
    rows: BTreeMap<Place, Touched>,
    found: BTreeMap<Lookup, Found>,
    finalized_exclusive: Height,
    /// The rows that it has; `None`: all.
    part: Option<Part>,
    missing: Missing,
    /// What the rows that the block at work changes were before it.
    before: BTreeMap<Place, Option<Row>>,
}

impl ChunkState {
    /// Without any rows. Blocks from `finalized_exclusive` on leave what undoes them.
    pub fn new(
        folder: &dyn Folder,
        catalog: &Catalog,
        finalized_exclusive: Height,
    ) -> Result<ChunkState, DeriveError> {
        let tables = |defs: &[&'static TableDef]| -> Result<_, DeriveError> {
            let tables = defs.iter().map(|def| Ok((def.name, catalog.table(def.name)?.clone())));
            Ok(Arc::new(tables.collect::<Result<BTreeMap<_, _>, DeriveError>>()?))
        };
        Ok(ChunkState {
            own: tables(folder.service().tables)?,
            read: tables(folder.reads())?,
            rows: BTreeMap::new(),
            found: BTreeMap::new(),
            finalized_exclusive,
            part: None,
            missing: Missing::default(),
            before: BTreeMap::new(),
        })
    }

    /// The same with only the rows of a part.
    pub fn of_part(self, part: Part) -> ChunkState {
        ChunkState { part: Some(part), ..self }
    }

    fn holds(&self, table: &'static str, key: &Key) -> bool {
        self.part.as_ref().is_none_or(|part| part.holds(table, key))
    }

    /// The rows that the blocks change whatever the state is.
    pub fn touched_by(&self, input: &ChunkInput) -> Result<Missing, DeriveError> {
        let mut missing = Missing::default();
        for (name, change) in input.changes.iter().flatten() {
            let key = change.key(self.own(name)?)?;
            if self.holds(name, &key) {
                missing.places.insert((name, key));
            }
        }
        Ok(missing)
    }

    /// A row as it is before the chunk; `None`: there is none.
    pub fn give(&mut self, table: &'static str, key: Key, row: Option<Row>) {
        self.rows.insert((table, key), Touched { now: row, ..Touched::default() });
    }

    /// What the store finds before the chunk.
    pub fn give_found(&mut self, lookup: Lookup, found: Found) {
        self.found.insert(lookup, found);
    }

    /// Goes through all blocks. Where it misses something, what it made of the state and its errors count for nothing.
    pub fn run(&mut self, folder: &dyn Folder, input: &ChunkInput) -> Result<(Errors, Missing), DeriveError> {
        let mut errors = input.errors.clone();
        for at in 0..input.blocks.len() {
            match self.block(folder, input, at) {
                Ok(more) => errors.extend(more),
                Err(error) if self.missing.is_empty() => return Err(error),
                // Over rows that are only taken as absent anything may fail. What later blocks miss is wanted all the same.
                Err(_) => {}
            }
        }
        Ok((errors, std::mem::take(&mut self.missing)))
    }

    fn block(&mut self, folder: &dyn Folder, input: &ChunkInput, at: usize) -> Result<Errors, DeriveError> {
        let facts = input.blocks[at].facts;
        self.before.clear();
        for (name, change) in &input.changes[at] {
            self.lay(name, change, facts.height)?;
        }
        let mut settled = Changes::default();
        guarded(facts.block_ref(), || {
            for (place, before) in &self.before {
                if let Some(after) = self.rows.get(place).and_then(|touched| touched.now.as_ref()) {
                    folder.settled(place.0, before.as_ref(), after, &mut settled);
                }
            }
            Ok(())
        })?;
        let (changes, malformed) = settled.into_parts();
        let mut errors: Errors = malformed.into_iter().map(|what| (facts, what)).collect();
        for (name, change) in &changes {
            self.lay(name, change, facts.height)?;
        }
        if folder.looks_at_state() {
            let mut state =
                FoldState { state: self, height: facts.height, malformed: Vec::new(), failed: None };
            input.with_block(at, |block| {
                guarded(facts.block_ref(), || folder.fold_with_state(block, &mut state))
            })?;
            let FoldState { malformed, failed, .. } = state;
            failed.map_or(Ok(()), Err)?;
            errors.extend(malformed.into_iter().map(|what| (facts, what)));
        }
        if facts.height >= self.finalized_exclusive {
            for (place, before) in std::mem::take(&mut self.before) {
                if let Some(touched) = self.rows.get_mut(&place) {
                    touched.undo.push((facts.height, before));
                }
            }
        }
        Ok(errors)
    }

    fn own(&self, name: &str) -> Result<&Arc<Table>, DeriveError> {
        self.own
            .get(name)
            .ok_or_else(|| DeriveError::Invalid(format!("a folder names table {name}, which is not its own")))
    }

    fn lay(&mut self, name: &'static str, change: &Change, height: Height) -> Result<(), DeriveError> {
        let table = self.own(name)?.clone();
        let place = (name, change.key(&table)?);
        if !self.holds(name, &place.1) {
            return Ok(());
        }
        let touched = self.rows.entry(place.clone()).or_insert_with(|| {
            self.missing.places.insert(place.clone());
            Touched::default()
        });
        let row = match change.apply(&table, touched.now.as_ref(), height) {
            Ok(row) => row,
            // Half a change of a row that is only taken as absent.
            Err(_) if !self.missing.is_empty() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let old = touched.now.replace(row);
        touched.changed = true;
        self.before.entry(place).or_insert(old);
        Ok(())
    }

    fn find(&mut self, lookup: &Lookup, height: Height) -> Result<Found, DeriveError> {
        let name = lookup.table;
        let table = self.own.get(name).or_else(|| self.read.get(name)).cloned().ok_or_else(|| {
            DeriveError::Invalid(format!(
                "a folder looks into table {name}, which it neither writes nor reads"
            ))
        })?;
        let Some(mut found) = self.found.get(lookup).cloned() else {
            self.missing.lookups.insert(lookup.clone());
            return Ok(Found { rows: Vec::new(), is_whole: true });
        };
        if let TableClass::Events { .. } = table.def().class {
            // The store has those of the chunk's later blocks as well.
            found.rows.retain(|row| row.0[0].as_height().is_some_and(|of_row| of_row <= height));
            return Ok(found);
        }
        let columns = table.index_columns(lookup.index)?;
        let is_changed = |key: Key| self.rows.get(&(name, key)).is_some_and(|touched| touched.changed);
        found.rows.retain(|row| !is_changed(table.key_of(row)));
        let fits = |row: &Row| columns.iter().zip(&lookup.prefix).all(|(&at, value)| row.0[at] == *value);
        let of_table = self.rows.range((name, Key(Vec::new()))..).take_while(|((of, _), _)| *of == name);
        let changed = of_table.filter(|(_, touched)| touched.changed);
        found.rows.extend(changed.filter_map(|(_, touched)| touched.now.clone()).filter(fits));
        found.rows.sort_by_cached_key(|row| -> Vec<Value> {
            columns.iter().map(|&at| row.0[at].clone()).collect()
        });
        found.is_whole &= found.rows.len() <= lookup.limit;
        found.rows.truncate(lookup.limit);
        Ok(found)
    }

    /// The rows that changed, with what undoes them.
    pub fn into_rows(self) -> Vec<StateRows> {
        let mut all: Vec<StateRows> = Vec::new();
        for ((table, _), touched) in self.rows {
            let (Some(row), true) = (touched.now, touched.changed) else { continue };
            let row = StateRow { row, undo: touched.undo };
            match all.last_mut().filter(|rows| rows.table == table) {
                Some(rows) => rows.rows.push(row),
                None => all.push(StateRows { table, rows: vec![row] }),
            }
        }
        all
    }
}

/// The state at a block: what all blocks before it left, and what was changed at it so far.
pub struct FoldState<'s> {
    state: &'s mut ChunkState,
    height: Height,
    malformed: Vec<Malformed>,
    failed: Option<DeriveError>,
}

impl FoldState<'_> {
    /// The row of one of the folder's own tables by its key. `None`: there is none, or it is not known yet; then all is done again with it.
    pub fn row(&mut self, table: &'static TableDef, key: Key) -> Option<Row> {
        if let Err(error) = self.state.own(table.name) {
            self.failed.get_or_insert(error);
            return None;
        }
        if !self.state.holds(table.name, &key) {
            return None;
        }
        let place = (table.name, key);
        match self.state.rows.get(&place) {
            Some(touched) => touched.now.clone(),
            None => {
                self.state.missing.places.insert(place);
                None
            }
        }
    }

    /// Rows by an index: of one of the folder's own tables as they are here, or events up to this block of one that it reads. A question for each is put
    /// to the store, so it is for what is rare.
    pub fn find(&mut self, lookup: &Lookup) -> Found {
        self.state.find(lookup, self.height).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            Found { rows: Vec::new(), is_whole: true }
        })
    }

    /// Changes a row at once.
    pub fn change(&mut self, table: &'static TableDef, change: &Change) {
        if self.failed.is_none() {
            self.failed = self.state.lay(table.name, change, self.height).err();
        }
    }

    /// Adds something that contradicts what came before, or can't be understood: see [`Malformed`].
    pub fn malformed(&mut self, what: Malformed) {
        self.malformed.push(what);
    }
}
