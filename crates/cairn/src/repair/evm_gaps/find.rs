//! Which gaps of the EVM chain are open, and in which Flow blocks that has to be what is missing: in those from the one that closed the EVM block before
//! the gap to the one at which the gap was seen.
//!
//! Nothing is asked about blocks of which some worker is still to make rows, for the first time or again: it may have read them already as they are.

use std::ops::Bound;

use anyhow::Context;
use cairn_core::{Height, HeightRange};
use cairn_explorer::names::{EVM_CHAIN_WORKER, EVM_WORKER};
use cairn_explorer::tables::flow::evm::{EVM_BLOCKS, EVM_GAPS, EvmBlockRow, EvmGap};
use cairn_pipeline::derive::processor::Processor;
use cairn_store::StoreError;
use cairn_store::derived::{Scan, Value};
use rand::RngExt;

use super::super::Report;
use super::super::nightly::sample;
use super::Bounds;
use crate::commands::reindex::UnderWay;
use crate::stores::AppStore;

/// The most gaps that are read of the table.
pub(super) const MAX_LISTED: usize = 10_000;
/// Rows of one scan.
const PAGE_ROWS: usize = 1_000;
/// The most EVM blocks of a gap that are looked for, in pages: one of which so many are there counts as open.
const MAX_PAGES: usize = 20;

/// A gap that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenGap {
    /// The first EVM block that is missing.
    pub from_evm_height: u64,
    /// The last one, included; some between them may be there.
    pub to_evm_height: u64,
    /// The Flow block at which it was seen.
    pub seen_at: Height,
    /// The Flow blocks that are asked for now: all that what is missing can be in, or a part of them.
    pub blocks: HeightRange,
}

impl OpenGap {
    /// Of EVM blocks, those that belong into the gap.
    pub fn has(&self, evm_height: u64) -> bool {
        (self.from_evm_height..=self.to_evm_height).contains(&evm_height)
    }

    /// How many EVM blocks it is of.
    pub fn evm_blocks(&self) -> u64 {
        (self.to_evm_height - self.from_evm_height).saturating_add(1)
    }
}

/// The gaps that are asked about now, by EVM height.
#[derive(Debug, Default)]
pub struct Found {
    /// They.
    pub gaps: Vec<OpenGap>,
    /// What there is to say of others.
    pub report: Report,
}

/// How far a worker has come that makes rows of blocks, and what it makes again.
pub(super) struct Made {
    /// The worker.
    pub service: &'static str,
    next: Height,
    under_way: UnderWay,
}

/// Finds them, within bounds, anywhere in the list where there are more. With `range`, only those that reach into it.
pub(super) async fn find(
    app: &dyn AppStore,
    processors: &[Processor],
    range: Option<HeightRange>,
    bounds: Bounds,
) -> anyhow::Result<Found> {
    let mut found = Found::default();
    let snapshot = match app.snapshot().await {
        Ok(snapshot) => snapshot,
        // Nothing was ever derived here.
        Err(StoreError::Invalid(_)) => return Ok(found),
        Err(error) => return Err(error.into()),
    };
    let makes_them = |processor: &Processor| processor.service().name == EVM_WORKER;
    if snapshot.checkpoint(EVM_CHAIN_WORKER).is_none() || !processors.iter().any(makes_them) {
        return Ok(found);
    }
    if snapshot.being_rebuilt(EVM_CHAIN_WORKER).is_some() {
        let note = format!("which gaps the EVM chain has is known when {EVM_CHAIN_WORKER} is where it was");
        found.report.notes.push(note);
        return Ok(found);
    }
    drop(snapshot);
    let mut rows = gaps(app).await?;
    if rows.is_empty() {
        found.report.gaps_open = Some(0);
        return Ok(found);
    }
    let made = made(app, processors).await?;
    let (mut open, mut left, mut passed) = (rows.len(), bounds.blocks, 0);
    // So that each comes to its turn where there are more than one repair looks at.
    let first = rand::rng().random_range(0..rows.len());
    rows.rotate_left(first);
    for row in rows {
        let seen_at = Height(row.seen_at_height);
        if range.is_some_and(|range| seen_at < range.start()) {
            continue;
        }
        if left == 0 || found.gaps.len() == bounds.gaps {
            passed += 1;
            continue;
        }
        let named = format!("EVM blocks {} to {}", row.from_evm_height, row.to_evm_height);
        if !is_open(app, &row).await? {
            open -= 1;
            found.report.notes.push(format!(
                "{named} have turned up since they were missed; `cairn reindex --worker {EVM_CHAIN_WORKER}` takes their gap away"
            ));
            continue;
        }
        let Some(after) = place_before(app, &row).await? else {
            found.report.not_compared.push(format!(
                "{named}: the Flow block of the EVM block before them isn't known any more; `cairn reindex --worker {EVM_CHAIN_WORKER}`"
            ));
            continue;
        };
        let blocks = HeightRange::inclusive(after, seen_at);
        if range.is_some_and(|range| blocks.intersect(range).is_empty()) {
            continue;
        }
        if let Some(made) = made.iter().find(|made| made.is_to_make(blocks)) {
            let service = made.service;
            found.report.notes.push(format!(
                "{named} are asked for when {service} has made its rows of Flow blocks {blocks}"
            ));
            continue;
        }
        let blocks = sample(blocks, left);
        left -= blocks.len();
        let (from_evm_height, to_evm_height) = (row.from_evm_height, row.to_evm_height);
        found.gaps.push(OpenGap { from_evm_height, to_evm_height, seen_at, blocks });
    }
    if passed > 0 {
        found
            .report
            .notes
            .push(format!("{passed} more gaps of the EVM chain are asked about by later repairs"));
    }
    found.gaps.sort_unstable_by_key(|gap| (gap.from_evm_height, gap.seen_at));
    found.report.gaps_open = Some(open as u64);
    Ok(found)
}

impl Made {
    /// Whether it is still to make rows of some of these blocks.
    pub fn is_to_make(&self, blocks: HeightRange) -> bool {
        self.next < blocks.end() || self.under_way.makes_again(blocks)
    }
}

/// Those who have begun.
pub(super) async fn made(app: &dyn AppStore, processors: &[Processor]) -> anyhow::Result<Vec<Made>> {
    let mut all = Vec::new();
    for processor in processors {
        let Processor::Mapper(mapper) = processor else { continue };
        let service = mapper.service().name;
        let Some(next) = app.snapshot().await?.checkpoint(service).map(|own| own.next) else { continue };
        all.push(Made { service, next, under_way: UnderWay::of(app, service).await? });
    }
    Ok(all)
}

/// The rows of gaps, by EVM height.
pub(super) async fn gaps(app: &dyn AppStore) -> anyhow::Result<Vec<EvmGap>> {
    let (mut gaps, mut lower) = (Vec::new(), Bound::Unbounded);
    loop {
        let scan = Scan {
            lower,
            filters: vec![("kind", Value::text("gap"))],
            ..Scan::new(EVM_GAPS.name, PAGE_ROWS)
        };
        // A store may end one after two seconds.
        let page = app.snapshot().await?.scan(&scan).await?;
        for row in &page.rows {
            gaps.push(EvmGap::from_row(row).context("a row of evm_gaps can't be read")?);
        }
        match page.more {
            Some(place) if gaps.len() < MAX_LISTED => lower = Bound::Excluded(place),
            _ => return Ok(gaps),
        }
    }
}

/// Whether an EVM block of a gap is not there.
async fn is_open(app: &dyn AppStore, gap: &EvmGap) -> anyhow::Result<bool> {
    let (mut next, mut lower) =
        (gap.from_evm_height, Bound::Included(vec![Value::uint(gap.from_evm_height)]));
    for _ in 0..MAX_PAGES {
        let scan = Scan {
            index: Some("by_evm_height"),
            lower,
            upper: Bound::Included(vec![Value::uint(gap.to_evm_height)]),
            ..Scan::new(EVM_BLOCKS.name, PAGE_ROWS)
        };
        let page = app.snapshot().await?.scan(&scan).await?;
        for row in &page.rows {
            let height = evm_block(row)?.evm_height;
            if height > next {
                return Ok(true);
            }
            if height == next {
                next = next.saturating_add(1);
            }
        }
        match page.more {
            _ if next > gap.to_evm_height => return Ok(false),
            None => return Ok(true),
            Some(place) => lower = Bound::Excluded(place),
        }
    }
    Ok(true)
}

/// The last Flow block, up to the one at which a gap was seen, that has the EVM block before it.
async fn place_before(app: &dyn AppStore, gap: &EvmGap) -> anyhow::Result<Option<Height>> {
    let scan = Scan {
        index: Some("by_evm_height"),
        prefix: vec![Value::uint(gap.from_evm_height.saturating_sub(1))],
        upper: Bound::Included(vec![Value::uint(gap.seen_at_height)]),
        descending: true,
        ..Scan::new(EVM_BLOCKS.name, 1)
    };
    let page = app.snapshot().await?.scan(&scan).await?;
    page.rows.first().map(|row| Ok(Height(evm_block(row)?.block_height))).transpose()
}

fn evm_block(row: &cairn_store::derived::Row) -> anyhow::Result<EvmBlockRow> {
    EvmBlockRow::from_row(row).context("a row of evm_blocks can't be read")
}
