//! State where rows that it was folded from are derived again: what the commit of those rows changes in it.
//!
//! **Order.** The raw blocks come first, then one app snapshot: where the folder stands, the events as they are, its rows and what undoes them.
//! The commit demands that the folder still stands there, and that nobody corrected it since. A folder's own commit demands the same, so
//! whoever read the old rows loses.
//!
//! **Where the rows don't say it**, the folder begins anew, in a transaction before the commit: `cairn reindex` would have asked for that.
//!
//! **Back-pressure.** A chunk's events are bounded as its blocks are. Where its rows have too many undo rows, the folder begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{Height, HeightRange, StoredBlock};
use cairn_store::derived::{CorrectedRow, Correction, DerivedSnapshot, Key, RebuildRequest, Row, TableRows};

use super::context::Context;
use super::corrected::{ChangesOf, Past, Place, Replaced, Unknown};
use super::error::DeriveError;
use super::processor::Folder;
use super::read::{RawChunk, not_yet};
use super::state::ChunkInput;

/// Undo rows that are read for one chunk, at most.
const MAX_UNDO_ROWS: usize = 100_000;
/// How many rows are loaded by one read.
const KEYS_PER_READ: usize = 4_096;

/// Rows that a mapper derives again.
pub(super) struct Again<'a> {
    /// The mapper's service.
    pub service: &'static str,
    pub chunk: &'a RawChunk,
    /// The chunk's blocks, without their parts.
    pub blocks: &'a [StoredBlock],
    pub rows: &'a [TableRows],
}

/// What it changes in the state of each folder behind it.
pub(super) async fn corrections(
    context: &Context,
    again: &Again<'_>,
) -> Result<Vec<Correction>, DeriveError> {
    let mut corrections = Vec::new();
    for folder in &context.folders {
        if folder.service().upstreams.contains(&again.service) {
            corrections.push(correction(context, folder, again).await?);
        }
    }
    Ok(corrections)
}

async fn correction(
    context: &Context,
    folder: &Arc<dyn Folder>,
    again: &Again<'_>,
) -> Result<Correction, DeriveError> {
    let name = folder.service().name;
    let snapshot = context.app.snapshot().await?;
    let forks = snapshot.forks();
    if !forks.is_settled() || forks.applied.id != again.chunk.read.reorg_id {
        // What finality leaves of the undo rows isn't known while reorgs are to be applied.
        return Err(not_yet(format!("the state of {name} while reorgs are applied")));
    }
    let stands = snapshot.checkpoint(name).cloned();
    let next = stands.as_ref().map_or(Height::ZERO, |stands| stands.next);
    let heights = again.chunk.heights;
    let folded = HeightRange::new(heights.start(), next.clamp(heights.start(), heights.end()));
    let mut of_folder = Correction { service: name.into(), stands, tables: Vec::new() };
    if folded.is_empty() {
        return Ok(of_folder);
    }
    match rows(context, folder, again, &*snapshot, folded).await? {
        Ok(tables) => of_folder.tables = tables,
        Err(Unknown(why)) => {
            drop(snapshot);
            tracing::warn!(
                service = name,
                heights = %folded,
                %why,
                "its state can't be corrected where rows are derived again: it begins anew"
            );
            let anew = RebuildRequest { again: Vec::new(), anew: vec![name.into()] };
            context.app.begin_rebuild(&anew).await?;
            return Err(not_yet(format!("{heights} of {}, since {name} begins anew", again.service)));
        }
    }
    Ok(of_folder)
}

type Tables = Vec<(&'static str, Vec<CorrectedRow>)>;

async fn rows(
    context: &Context,
    folder: &Arc<dyn Folder>,
    again: &Again<'_>,
    snapshot: &dyn DerivedSnapshot,
    heights: HeightRange,
) -> Result<Result<Tables, Unknown>, DeriveError> {
    let (mut old, mut new): (Vec<Vec<Row>>, Vec<Vec<Row>>) = (Vec::new(), Vec::new());
    for table in folder.reads() {
        // The chunk's blocks are bounded, and so is what was made of them.
        let (stored, end) = snapshot.events(table.name, heights.start(), heights.end(), usize::MAX).await?;
        if end < heights.end() {
            return Err(not_yet(format!("events of heights {heights}")));
        }
        new.push(match table.service == again.service {
            true => made(context, again, table.name, heights)?,
            false => stored.clone(),
        });
        old.push(stored);
    }
    let blocks = again.blocks.iter().filter(|block| heights.contains(block.facts.height));
    let blocks: Vec<StoredBlock> = blocks.cloned().collect();
    let (folding, catalog) = (folder.clone(), context.catalog.clone());
    let changes = context
        .compute(move || {
            let mut both = Vec::with_capacity(2);
            for events in [old, new] {
                both.push(ChunkInput::fold(&*folding, blocks.clone(), events)?.changes_of(&catalog)?);
            }
            Ok(both)
        })
        .await;
    let [old, new]: [ChangesOf; 2] = match changes.map(<[ChangesOf; 2]>::try_from) {
        Ok(Ok(both)) => both,
        Ok(Err(_)) => return Ok(Err(Unknown("nothing was folded".into()))),
        // Rows that can't be folded say nothing of the state that was.
        Err(error) => return Ok(Err(Unknown(error.to_string()))),
    };
    let finalized = again.chunk.finalized_exclusive;
    let places: BTreeSet<Place> = old.keys().chain(new.keys()).cloned().collect();
    let Some(pasts) = pasts(snapshot, places, finalized).await? else {
        return Ok(Err(Unknown(format!("its rows have more than {MAX_UNDO_ROWS} undo rows"))));
    };
    let (folder, catalog) = (folder.clone(), context.catalog.clone());
    let computed = move || {
        let (folder, catalog, old, new) = (&*folder, &catalog, &old, &new);
        Ok(Replaced { folder, catalog, heights, finalized, old, new }.rows(&pasts))
    };
    context.compute(computed).await
}

/// The mapper's new rows of a table, by key.
fn made(
    context: &Context,
    again: &Again<'_>,
    name: &str,
    heights: HeightRange,
) -> Result<Vec<Row>, DeriveError> {
    let table = context.catalog.table(name)?;
    let of_table = again.rows.iter().filter(|rows| rows.table == name).flat_map(|rows| &rows.rows);
    let is_folded = |row: &&Row| row.0[0].as_height().is_some_and(|height| heights.contains(height));
    let mut rows: Vec<Row> = of_table.filter(is_folded).cloned().collect();
    rows.sort_by_cached_key(|row| table.key_of(row));
    Ok(rows)
}

/// Rows as they are, with their undo rows above finality; `None`: they have too many.
async fn pasts(
    snapshot: &dyn DerivedSnapshot,
    places: BTreeSet<Place>,
    finalized: Height,
) -> Result<Option<BTreeMap<Place, Past>>, DeriveError> {
    let mut by_table: BTreeMap<&'static str, Vec<Key>> = BTreeMap::new();
    for (table, key) in places {
        by_table.entry(table).or_default().push(key);
    }
    let (mut pasts, mut left) = (BTreeMap::new(), MAX_UNDO_ROWS);
    for (table, keys) in by_table {
        for keys in keys.chunks(KEYS_PER_READ) {
            let rows = snapshot.rows(table, keys).await?;
            let Some(undo) = snapshot.undo_rows(table, keys, left).await? else { return Ok(None) };
            left -= undo.iter().map(Vec::len).sum::<usize>();
            for ((key, now), mut undo) in keys.iter().zip(rows).zip(undo) {
                undo.retain(|(height, _)| *height >= finalized);
                pasts.insert((table, key.clone()), Past { undo, now });
            }
        }
    }
    Ok(Some(pasts))
}
