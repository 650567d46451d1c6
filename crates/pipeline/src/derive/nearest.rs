//! The nearest events around some heights that change rows of state: who wrote them last before, or first after.
//!
//! The heights are folded window by window, away from those that are asked about, until each row was met. A window is small enough for one
//! snapshot: it is halved where that ends too soon, and the next one is as large as its bytes allow. What is read is bounded: of a row that
//! nobody changed for long, nothing is found.
//!
//! Folders go on meanwhile, and that changes nothing here. A correction or a reorg in between does.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_core::{Height, HeightRange, Parts};
use cairn_store::StoreError;
use cairn_store::derived::{DerivedSnapshot, FoldedAt, Row};

use super::context::Context;
use super::corrected::{Around, ChangesOf, Look, Place};
use super::error::DeriveError;
use super::processor::Folder;
use super::read::not_yet;
use super::state::ChunkInput;

/// Heights of the first window, and of the largest one.
const WINDOW_HEIGHTS: (u64, u64) = (16, 512);
/// Event rows of one window, in bytes, about.
const WINDOW_BYTES: usize = 4 << 20;
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

/// What came of a window.
enum Seen {
    /// What its blocks change, and the bytes of their events.
    Changes(ChangesOf, usize),
    /// It has more than one snapshot gives.
    TooMuch,
    /// Its rows can't be folded.
    Broken,
}

/// Whose events are looked at.
pub(super) struct Search<'a> {
    pub context: &'a Context,
    pub folder: &'a Arc<dyn Folder>,
    /// The state that they are of.
    pub at: FoldedAt,
    /// The folder's checkpoint.
    pub next: Height,
}

impl Search<'_> {
    /// What the nearest blocks around `heights` change; `None`: they lie too far away, or say nothing.
    pub async fn around(&self, heights: HeightRange, look: Look) -> Result<Option<Around>, DeriveError> {
        let first = self.context.raw.head().await?.first.unwrap_or_default().max(self.context.options.start);
        let below = HeightRange::new(first.min(heights.start()), heights.start());
        let above = HeightRange::new(heights.end(), self.next.max(heights.end()));
        let Some(before) = self.walk(below, Way::Down, look.before).await? else { return Ok(None) };
        let after = self.walk(above, Way::Up, look.after).await?;
        Ok(after.map(|after| Around { before, after }))
    }

    /// Goes through the heights until every place was met. One that none of them changes has no changes.
    async fn walk(
        &self,
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
            let (changes, read) = match self.window(window).await? {
                Seen::Changes(changes, read) => (changes, read),
                Seen::TooMuch => {
                    reach = size / 2;
                    continue;
                }
                Seen::Broken => return Ok(None),
            };
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
            let fits = (WINDOW_BYTES as u64).saturating_mul(size) / (read as u64).max(1);
            reach = fits.min(size * 2).clamp(1, WINDOW_HEIGHTS.1);
        }
        found.extend(wanted.into_iter().map(|place| (place, Vec::new())));
        Ok(Some(found))
    }

    async fn window(&self, window: HeightRange) -> Result<Seen, DeriveError> {
        match self.fold(window).await {
            Err(DeriveError::Store(StoreError::Busy(_))) if window.len() > 1 => Ok(Seen::TooMuch),
            Err(DeriveError::Process(_) | DeriveError::Store(StoreError::Corrupt { .. })) => Ok(Seen::Broken),
            seen => seen,
        }
    }

    async fn fold(&self, window: HeightRange) -> Result<Seen, DeriveError> {
        let (context, name) = (self.context, self.folder.service().name);
        let (raw, app) = (context.raw.snapshot().await?, context.app.snapshot().await?);
        if !self.is_of(&*app) || app.forks().applied.id != raw.head().newest_reorg.id {
            return Err(not_yet(format!("the state of {name}, which was corrected or forked meanwhile")));
        }
        let max_bytes = if window.len() > 1 { 4 * WINDOW_BYTES } else { usize::MAX };
        let cut = || match window.len() {
            1 => Err(not_yet(format!("the events of {window}"))),
            _ => Ok(Seen::TooMuch),
        };
        let (mut events, mut bytes): (Vec<Vec<Row>>, usize) = (Vec::new(), 0);
        for table in self.folder.reads() {
            let (rows, end) = app.events(table.name, window.start(), window.end(), max_bytes).await?;
            if end < window.end() {
                return cut();
            }
            bytes += rows.iter().map(Row::size_bytes).sum::<usize>();
            events.push(rows);
        }
        let read = raw.blocks(window, Parts::empty(), u64::MAX).await?;
        if read.next < window.end() {
            return cut();
        }
        let (folding, catalog) = (self.folder.clone(), context.catalog.clone());
        let folded = move || ChunkInput::fold(&*folding, read.blocks, events)?.changes_of(&catalog);
        Ok(Seen::Changes(context.compute(folded).await?, bytes))
    }

    /// Whether a snapshot shows the state that is asked about, however far the folder has come since.
    pub fn is_of(&self, app: &dyn DerivedSnapshot) -> bool {
        let own = app.checkpoint(self.folder.service().name);
        let is_same = own.is_some_and(|own| own.corrections == self.at.corrections && own.next >= self.next);
        is_same && app.forks().is_settled() && app.forks().applied.id == self.at.applied
    }
}
