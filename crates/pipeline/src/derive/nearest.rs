//! The nearest events around some heights that change rows of state: who wrote them last before, or first after.
//!
//! The heights are folded window by window, away from those that are asked about, until each row was met. What is read is bounded: of a row
//! that nobody changed for long, nothing is found.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_core::{Height, HeightRange, Parts};
use cairn_store::derived::{DerivedCheckpoint, Row};

use super::context::Context;
use super::corrected::{Around, ChangesOf, Look, Place};
use super::error::DeriveError;
use super::processor::Folder;
use super::read::not_yet;
use super::state::ChunkInput;

/// Heights of the first window, and of the largest one.
const WINDOW_HEIGHTS: (u64, u64) = (64, 512);
/// Heights that are looked at in one direction, at most.
const MAX_HEIGHTS: u64 = 10_000;
/// Event rows that are read in one direction, in bytes, about.
const MAX_BYTES: usize = 64 << 20;

/// A walk away from the heights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// What the nearest blocks change; `None`: some lie too far away.
pub(super) async fn around(
    context: &Context,
    folder: &Arc<dyn Folder>,
    stands: Option<&DerivedCheckpoint>,
    heights: HeightRange,
    look: Look,
) -> Result<Option<Around>, DeriveError> {
    let Some(stands) = stands else { return Ok(None) };
    let first = context.raw.head().await?.first.unwrap_or_default().max(context.options.start);
    let below = HeightRange::new(first.min(heights.start()), heights.start());
    let above = HeightRange::new(heights.end(), stands.next.max(heights.end()));
    let Some(before) = walk(context, folder, stands, below, Way::Down, look.before).await? else {
        return Ok(None);
    };
    let after = walk(context, folder, stands, above, Way::Up, look.after).await?;
    Ok(after.map(|after| Around { before, after }))
}

/// Goes through the heights until every place was met. One that none of them changes has no changes.
async fn walk(
    context: &Context,
    folder: &Arc<dyn Folder>,
    stands: &DerivedCheckpoint,
    mut rest: HeightRange,
    way: Way,
    mut wanted: BTreeSet<Place>,
) -> Result<Option<ChangesOf>, DeriveError> {
    let (mut found, mut reach) = (ChangesOf::new(), WINDOW_HEIGHTS.0);
    let (mut seen, mut bytes) = (0, 0);
    while !wanted.is_empty() && !rest.is_empty() {
        if seen >= MAX_HEIGHTS || bytes >= MAX_BYTES {
            return Ok(None);
        }
        let size = reach.min(rest.len());
        let window = match way {
            Way::Down => HeightRange::new(Height(rest.end().get() - size), rest.end()),
            Way::Up => HeightRange::new(rest.start(), rest.start() + size),
        };
        let (changes, read) = fold(context, folder, stands, window).await?;
        for (place, of_place) in changes {
            let nearest = match way {
                Way::Down => of_place.last(),
                Way::Up => of_place.first(),
            };
            let Some(height) = nearest.map(|(height, _)| *height) else { continue };
            if wanted.remove(&place) {
                found.insert(place, of_place.into_iter().filter(|(at, _)| *at == height).collect());
            }
        }
        rest = match way {
            Way::Down => HeightRange::new(rest.start(), window.start()),
            Way::Up => HeightRange::new(window.end(), rest.end()),
        };
        (seen, bytes) = (seen + size, bytes + read);
        reach = (reach * 2).min(WINDOW_HEIGHTS.1);
    }
    found.extend(wanted.into_iter().map(|place| (place, Vec::new())));
    Ok(Some(found))
}

/// What the blocks of a window change, and the bytes of their events.
async fn fold(
    context: &Context,
    folder: &Arc<dyn Folder>,
    stands: &DerivedCheckpoint,
    window: HeightRange,
) -> Result<(ChangesOf, usize), DeriveError> {
    let name = folder.service().name;
    let (raw, app) = (context.raw.snapshot().await?, context.app.snapshot().await?);
    let is_same = app.checkpoint(name) == Some(stands)
        && app.forks().is_settled()
        && app.forks().applied.id == raw.head().newest_reorg.id;
    if !is_same {
        return Err(not_yet(format!("the state of {name}, which went on meanwhile")));
    }
    let (mut events, mut bytes): (Vec<Vec<Row>>, usize) = (Vec::new(), 0);
    for table in folder.reads() {
        let (rows, end) = app.events(table.name, window.start(), window.end(), usize::MAX).await?;
        if end < window.end() {
            return Err(not_yet(format!("events of heights {window}")));
        }
        bytes += rows.iter().map(Row::size_bytes).sum::<usize>();
        events.push(rows);
    }
    let (mut blocks, mut at) = (Vec::new(), window.start());
    while at < window.end() {
        let read = raw.blocks(HeightRange::new(at, window.end()), Parts::empty(), u64::MAX).await?;
        if read.next <= at {
            return Err(not_yet(format!("raw heights {window}")));
        }
        blocks.extend(read.blocks);
        at = read.next;
    }
    let (folding, catalog) = (folder.clone(), context.catalog.clone());
    let folded = move || ChunkInput::fold(&*folding, blocks, events)?.changes_of(&catalog);
    Ok((context.compute(folded).await?, bytes))
}
