//! One chunk of a folder: event rows in, state out, strictly in chain order.
//!
//! A raw snapshot comes first (the reorg log, block ids), then one app snapshot (event rows, state, upstream checkpoints, what was applied); the
//! commit compares both. A chunk ends where an upstream's rows are being made again. Rows of state that the chunk touches are loaded once, changed in memory block by block, and written once;
//! above finality each block that changes a row leaves the row's former self for the undo table.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{BlockFacts, Height, HeightRange, StoredBlock};
use cairn_store::derived::{
    BLOCK_HEIGHT, Change, ChunkCommit, DerivedSnapshot, Key, Row, StateRow, StateRows, Table, WorkerLease,
};

use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::guard::guarded;
use super::processor::{Changes, FoldBlock, Folder, ProcessError};
use super::read::{not_yet, read_raw};
use super::report::{self, Report};

/// How many rows are loaded by one read.
const KEYS_PER_READ: usize = 4_096;

pub(super) async fn prepare(
    context: &Context,
    folder: &Arc<dyn Folder>,
    _lease: &WorkerLease,
    heights: HeightRange,
) -> Result<Prepared, DeriveError> {
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(&context.raw, &context.app, heights, folder.parts(), max_bytes, None).await?;
    let snapshot = context.app.snapshot().await?;
    let applied = snapshot.forks().applied.id;
    demand_own_checkpoint(&*snapshot, folder.service().name, chunk.heights.start())?;
    let mut events: Vec<Vec<Row>> = Vec::new();
    for table in folder.reads() {
        let heights = chunk.heights;
        let (rows, go_on) =
            snapshot.events(table.name, heights.start(), heights.end(), max_bytes as usize).await?;
        events.push(rows);
        chunk.cut(go_on);
    }
    for upstream in folder.service().upstreams {
        if snapshot.checkpoint(upstream).is_none_or(|upstream| upstream.next < chunk.heights.end()) {
            return Err(not_yet(format!("{upstream} up to height {}", chunk.heights.end())));
        }
        // In the snapshot that the rows were read from: below that they are new, above it they may be old.
        if let Some(again) = snapshot.made_again_from(upstream, chunk.heights.start()).await? {
            chunk.cut(again);
        }
    }
    if chunk.heights.is_empty() {
        return Err(not_yet(format!("events of heights {heights}")));
    }
    let parent_id = chunk.parent_id;
    let last_id = chunk.last_id();
    let finalized = chunk.finalized_exclusive;
    let blocks = std::mem::take(&mut chunk.blocks);
    let folding = folder.clone();
    let (changes, mut malformed) = context.compute(move || fold_blocks(&*folding, &blocks, events)).await?;

    let mut states = States::new(context, folder, finalized)?;
    states.load(&*snapshot, changes.iter().flat_map(|(_, changes)| changes)).await?;
    let (folding, mut worked) = (folder.clone(), states.clone());
    let (worked, changes, more, settling) = context
        .compute(move || {
            let (more, malformed) = worked.run(&*folding, &changes)?;
            Ok((worked, changes, more, malformed))
        })
        .await?;
    malformed.extend(settling);
    let states = if more.iter().all(Vec::is_empty) {
        worked
    } else {
        // What follows from the changes may touch rows that were not loaded; everything is done again in chain order with them.
        states.load(&*snapshot, more.iter().flatten()).await?;
        context
            .compute(move || {
                for ((facts, changes), more) in changes.iter().zip(&more) {
                    states.block(facts.height, changes.iter().chain(more), |_, _, _| {})?;
                }
                Ok(states)
            })
            .await?
    };
    let commit = ChunkCommit {
        chunk: chunk.heights,
        parent_id,
        last_id,
        read: chunk.read,
        folded_at: Some(applied),
        rows: Vec::new(),
        states: states.into_rows(),
        replaces: Vec::new(),
        quarantined: Vec::new(),
        finalized,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed, quarantined: None })
}

/// State in this snapshot has to be that of exactly the checkpoint that the chunk goes on from: a predecessor's commit may be
/// under way, and what is computed from the state before it would pass the commit's own demand and lose it.
pub(super) fn demand_own_checkpoint(
    snapshot: &dyn DerivedSnapshot,
    service: &'static str,
    from: Height,
) -> Result<(), DeriveError> {
    match snapshot.checkpoint(service) {
        Some(own) if own.next == from => Ok(()),
        own => Err(not_yet(format!(
            "{service} from height {from} (its checkpoint ends at {})",
            own.map_or("none".into(), |own| own.next.to_string())
        ))),
    }
}

type BlockChanges = Vec<(BlockFacts, Vec<(&'static str, Change)>)>;

/// What a folder says follows from a block's changes.
type FollowingChanges = Vec<(&'static str, Change)>;

fn fold_blocks(
    folder: &dyn Folder,
    blocks: &[StoredBlock],
    events: Vec<Vec<Row>>,
) -> Result<(BlockChanges, Vec<Report>), DeriveError> {
    let mut at = vec![0; events.len()];
    let mut all = Vec::with_capacity(blocks.len());
    let mut errors = Vec::new();
    for block in blocks {
        let height = block.facts.height;
        let mut rows: Vec<&[Row]> = Vec::with_capacity(events.len());
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
            rows.push(&rest[..here]);
            *at += here;
        }
        let changes = guarded(block.facts.block_ref(), || {
            let mut changes = Changes::default();
            folder
                .fold(&FoldBlock { facts: &block.facts, stored: Some(block), rows: &rows }, &mut changes)?;
            Ok(changes)
        })?;
        let (changes, malformed) = changes.into_parts();
        errors
            .extend(malformed.into_iter().map(|what| report::of_event(folder.service(), &block.facts, what)));
        all.push((block.facts, changes));
    }
    Ok((all, errors))
}

/// The rows that a chunk touches.
#[derive(Clone)]
struct States {
    tables: Arc<BTreeMap<&'static str, Arc<Table>>>,
    rows: BTreeMap<(&'static str, Key), Touched>,
    finalized_exclusive: Height,
}

#[derive(Clone, Default)]
struct Touched {
    now: Option<Row>,
    undo: Vec<(Height, Option<Row>)>,
    changed: bool,
}

impl States {
    fn new(context: &Context, folder: &Arc<dyn Folder>, finalized: Height) -> Result<Self, DeriveError> {
        let mut tables = BTreeMap::new();
        for def in folder.service().tables {
            tables.insert(def.name, context.catalog.table(def.name)?.clone());
        }
        Ok(States { tables: Arc::new(tables), rows: BTreeMap::new(), finalized_exclusive: finalized })
    }

    fn table(&self, name: &'static str) -> Result<&Arc<Table>, DeriveError> {
        self.tables.get(name).ok_or_else(|| {
            DeriveError::Invalid(format!("a folder changes table {name}, which is not its own"))
        })
    }

    /// Loads what `changes` touch and is not there yet.
    async fn load<'a>(
        &mut self,
        snapshot: &dyn DerivedSnapshot,
        changes: impl Iterator<Item = &'a (&'static str, Change)>,
    ) -> Result<(), DeriveError> {
        let mut wanted: BTreeMap<&'static str, Vec<Key>> = BTreeMap::new();
        for (name, change) in changes {
            let place = (*name, change.key(self.table(name)?)?);
            if let std::collections::btree_map::Entry::Vacant(place) = self.rows.entry(place) {
                wanted.entry(name).or_default().push(place.key().1.clone());
                place.insert(Touched::default());
            }
        }
        for (name, keys) in wanted {
            for keys in keys.chunks(KEYS_PER_READ) {
                for (key, row) in keys.iter().zip(snapshot.rows(name, keys).await?) {
                    self.rows.insert((name, key.clone()), Touched { now: row, ..Touched::default() });
                }
            }
        }
        Ok(())
    }

    /// Lays all changes over the rows, and collects for each block what the folder says follows from them.
    fn run(
        &mut self,
        folder: &dyn Folder,
        blocks: &[(BlockFacts, Vec<(&'static str, Change)>)],
    ) -> Result<(Vec<FollowingChanges>, Vec<Report>), DeriveError> {
        let mut all = Vec::with_capacity(blocks.len());
        let mut errors = Vec::new();
        for (facts, changes) in blocks {
            let mut more = Changes::default();
            let mut settled = Ok(());
            self.block(facts.height, changes.iter(), |table, before, after| {
                if settled.is_ok() {
                    settled = guarded(facts.block_ref(), || {
                        folder.settled(table, before, after, &mut more);
                        Ok(())
                    });
                }
            })?;
            settled?;
            let (more, malformed) = more.into_parts();
            errors.extend(malformed.into_iter().map(|what| report::of_event(folder.service(), facts, what)));
            all.push(more);
        }
        Ok((all, errors))
    }

    /// Lays one block's changes over the rows; `settled` hears of each row that changed, by table and key.
    fn block<'a>(
        &mut self,
        height: Height,
        changes: impl Iterator<Item = &'a (&'static str, Change)>,
        mut settled: impl FnMut(&'static str, Option<&Row>, &Row),
    ) -> Result<(), DeriveError> {
        let mut before: BTreeMap<(&'static str, Key), Option<Row>> = BTreeMap::new();
        for (name, change) in changes {
            let table = self.table(name)?.clone();
            let place = (*name, change.key(&table)?);
            let touched = self.rows.entry(place.clone()).or_default();
            let row = change.apply(&table, touched.now.as_ref(), height)?;
            let old = touched.now.replace(row);
            touched.changed = true;
            before.entry(place).or_insert(old);
        }
        for (place, before) in before {
            let Some(touched) = self.rows.get_mut(&place) else { continue };
            if let Some(after) = &touched.now {
                settled(place.0, before.as_ref(), after);
            }
            if height >= self.finalized_exclusive {
                touched.undo.push((height, before));
            }
        }
        Ok(())
    }

    fn into_rows(self) -> Vec<StateRows> {
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
