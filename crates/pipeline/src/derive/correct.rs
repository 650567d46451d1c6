//! State where rows that it was folded from are derived again: what the commit of those rows changes in it.
//!
//! **Order.** The raw blocks come first, then one app snapshot: where the folder stands, the events as they are, its rows and what undoes them.
//! The raw head comes last. Its finality is no older than that of any commit that the snapshot shows, so no undo row above it is missing.
//! The commit demands that the folder still stands there, and that nobody corrected it since. A folder's own commit demands the same, so
//! whoever read the old rows loses.
//!
//! **Where the rows don't say it**, the nearest events around the chunk are looked for ([`super::nearest`]). Where these don't say it either, or lie
//! too far away, the folder begins anew, in a transaction before the commit: `cairn reindex` would have asked for that.
//!
//! **Back-pressure.** A chunk's events are bounded as its blocks are. Where its rows have too many undo rows, it is tried with fewer
//! heights; over one height the folder begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{Height, HeightRange, StoredBlock};
use cairn_store::derived::{
    CorrectedRow, Correction, DerivedCheckpoint, DerivedSnapshot, FoldedAt, Key, RebuildRequest, Row,
    TableRows,
};

use super::context::Context;
use super::corrected::{Around, ChangesOf, Corrected, Look, Past, Place, Replaced, Unknown};
use super::error::DeriveError;
use super::nearest::Search;
use super::processor::Folder;
use super::read::{RawChunk, not_yet, undone_never};
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

/// What a folder's state is to be, by table.
type Tables = Vec<(&'static str, Vec<CorrectedRow>)>;

/// What it changes in the state of each folder behind it, and the height below which it leaves no undo rows.
pub(super) async fn corrections(
    context: &Context,
    again: &Again<'_>,
) -> Result<(Vec<Correction>, Height), DeriveError> {
    let (mut corrections, mut finalized) = (Vec::new(), again.chunk.finalized_exclusive);
    for folder in &context.folders {
        if !folder.service().upstreams.contains(&again.service) {
            continue;
        }
        if let Some((correction, of_folder)) = correction(context, folder, again).await? {
            corrections.push(correction);
            finalized = finalized.max(of_folder);
        }
    }
    Ok((corrections, finalized))
}

async fn correction(
    context: &Context,
    folder: &Arc<dyn Folder>,
    again: &Again<'_>,
) -> Result<Option<(Correction, Height)>, DeriveError> {
    let name = folder.service().name;
    let heights = again.chunk.heights;
    let mut around = Around::default();
    let mut looked: Option<FoldedAt> = None;
    loop {
        let snapshot = context.app.snapshot().await?;
        let (forks, head) = (*snapshot.forks(), context.raw.head().await?);
        let newest = [again.chunk.read.reorg_id, head.newest_reorg.id];
        if !forks.is_settled() || newest.iter().any(|newest| *newest != forks.applied.id) {
            // What finality leaves of the undo rows isn't known while reorgs are to be applied.
            return Err(not_yet(format!("the state of {name} while reorgs are applied")));
        }
        let finalized = undone_never(&head, &forks);
        let stands = snapshot.checkpoint(name).cloned();
        let next = stands.as_ref().map_or(Height::ZERO, |stands| stands.next);
        let corrections = stands.as_ref().map_or(0, |stands| stands.corrections);
        let at = FoldedAt { applied: forks.applied.id, corrections };
        if looked.is_some_and(|looked| looked != at) {
            return Err(not_yet(format!("the state of {name}, which was corrected or forked meanwhile")));
        }
        let folded = HeightRange::new(heights.start(), next.clamp(heights.start(), heights.end()));
        let found = match folded.is_empty() {
            true => Found::Nothing,
            false => find(context, folder, again, &*snapshot, folded, finalized, around.clone()).await?,
        };
        drop(snapshot);
        // Nothing is folded otherwise. Of several upstreams another may be at the same heights, and has to know of the new rows; so has whoever folds them.
        let is_nothing = folder.service().upstreams.len() == 1 && folded == heights;
        let tables = match found {
            Found::Nothing if is_nothing => return Ok(None),
            Found::Nothing => Vec::new(),
            Found::Rows(tables) => tables,
            Found::Look(look) => {
                looked = Some(at);
                let search = Search { context, folder, at, next };
                match search.around(folded, look).await? {
                    Some(found) => {
                        around.before.extend(found.before);
                        around.after.extend(found.after);
                        continue;
                    }
                    None => {
                        let why = "the events that say it lie too far away, or can't be read";
                        return Err(begin_anew(context, name, stands, folded, why).await?);
                    }
                }
            }
            Found::Unknown(why) => return Err(begin_anew(context, name, stands, folded, &why).await?),
        };
        return Ok(Some((Correction { service: name.into(), stands, tables }, finalized)));
    }
}

/// Lets a folder begin anew that stands here; one that went on meanwhile may be another's already. The error that the chunk waits with.
async fn begin_anew(
    context: &Context,
    name: &'static str,
    stands: Option<DerivedCheckpoint>,
    heights: HeightRange,
    why: &str,
) -> Result<DeriveError, DeriveError> {
    if context.app.snapshot().await?.checkpoint(name) == stands.as_ref() {
        tracing::warn!(
            service = name,
            %heights,
            why,
            "its state can't be corrected where rows are derived again: it begins anew"
        );
        let request = RebuildRequest { again: Vec::new(), anew: vec![name.into()] };
        context.app.begin_rebuild(&request).await?;
    }
    Ok(not_yet(format!("rows of {heights}, since {name} begins anew")))
}

/// What new rows change in the state.
enum Found {
    /// Nothing is folded otherwise.
    Nothing,
    Rows(Tables),
    /// More events have to be known.
    Look(Look),
    /// The rows don't say it: why.
    Unknown(String),
}

/// What the new rows of some heights make of the state.
async fn find(
    context: &Context,
    folder: &Arc<dyn Folder>,
    again: &Again<'_>,
    snapshot: &dyn DerivedSnapshot,
    heights: HeightRange,
    finalized: Height,
    around: Around,
) -> Result<Found, DeriveError> {
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
    let folded = move || {
        let fold = |blocks, events| ChunkInput::fold(&*folding, blocks, events)?.changes_of(&catalog);
        // New rows that can't be folded are the mapper's fault.
        Ok((fold(blocks.clone(), old), fold(blocks, new)?))
    };
    let (old, new): (ChangesOf, ChangesOf) = match context.compute(folded).await? {
        (Ok(old), new) => (old, new),
        // Old ones that can't say nothing of the state that was.
        (Err(error), _) => return Ok(Found::Unknown(error.to_string())),
    };
    if old == new {
        return Ok(Found::Nothing);
    }
    let places: BTreeSet<Place> = old.keys().chain(new.keys()).cloned().collect();
    let Some(pasts) = pasts(snapshot, places, finalized).await? else {
        let why = format!("rows of heights {heights} have more than {MAX_UNDO_ROWS} undo rows");
        return if heights.len() > 1 { Err(DeriveError::TooMuch(why)) } else { Ok(Found::Unknown(why)) };
    };
    let (folder, catalog) = (folder.clone(), context.catalog.clone());
    let computed = move || {
        let (folder, catalog, old, new, around) = (&*folder, &catalog, &old, &new, &around);
        Ok(Replaced { folder, catalog, heights, finalized, old, new, around }.rows(&pasts))
    };
    Ok(match context.compute(computed).await? {
        Ok(Corrected::Rows(tables)) => Found::Rows(tables),
        Ok(Corrected::Look(look)) => Found::Look(look),
        Err(Unknown(why)) => Found::Unknown(why),
    })
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
            let Some(undo) = snapshot.undo_rows(table, keys, finalized, left).await? else { return Ok(None) };
            left -= undo.iter().map(Vec::len).sum::<usize>();
            for ((key, now), undo) in keys.iter().zip(rows).zip(undo) {
                pasts.insert((table, key.clone()), Past { undo, now });
            }
        }
    }
    Ok(Some(pasts))
}
