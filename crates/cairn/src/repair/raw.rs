//! The raw store's part of a repair.
//!
//! In this order: lookups are made what the rows say (above the head those without a row go), and blocks whose counts disagree are named (of logs too, where a block that says it has none
//! has receipts, which are read), over all of the range; in the part that is looked at in full, lookups of EVM transactions
//! inside transactions are made what the blocks say, and blocks are held against their own hashes and their index entries; what is damaged is fetched from the node, verified as any other block, and
//! written; index entries that are still wrong are made anew; and what was damaged is looked at once more.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use cairn_core::{ErrorKind, Height, HeightRange, Parts, RawBlock};
use cairn_pipeline::audit::{AuditReport, Subject, audit};
use cairn_store::{RawReader, StoreError};

use super::fetch::Fetch;
use super::{Report, lacks, ranges_of};
use crate::chain::Chain;
use crate::stores::{RawStore, RepairedLookups};

/// Heights whose lookups are looked at in one go, at most, and at least.
const STEP_HEIGHTS: (u64, u64) = (10_000, 100);
/// Blocks whose receipts are read at once, at most, and their bytes.
const READ_HEIGHTS: usize = 1_000;
const READ_BYTES: u64 = 8 << 20;
/// The most findings of one audit; the next run goes on with what is left.
const MAX_FINDINGS: usize = 10_000;
/// Damaged heights closer together than this are looked at again as one range.
const JOIN_HEIGHTS: u64 = 1_000;

/// Repairs lookups and counts of `range`, and all of the blocks in `full`, which lies in it. `progress` is told how far the audit is.
pub async fn repair(
    store: &Arc<dyn RawStore>,
    chain: Chain,
    fetch: &Fetch,
    range: HeightRange,
    full: HeightRange,
    mut progress: impl FnMut(Height),
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let reader: Arc<dyn RawReader> = store.clone();
    let stored = reader.snapshot().await?.head().range();
    let (range, full) = (range.intersect(stored), full.intersect(stored));
    let mut blocks: BTreeSet<Height> = BTreeSet::new();
    let (mut at, mut reach) = (range.start(), Reach::default());
    while at < range.end() {
        let step = reach.from(at, range);
        let found = match store.repair_lookups(step).await {
            Ok(found) => found,
            // The database had too much to do, or this was too much at once: less of it.
            Err(error) if error.kind() == ErrorKind::Retry && reach.shrink() => continue,
            Err(error) => return Err(error.into()),
        };
        reach.grow();
        at = step.end();
        report.heights += step.len();
        tell(&mut report, step, "lookups", &found);
        for height in &found.damaged {
            report.name(format!("height {height}: the block's rows are missing or don't fit its counts"));
        }
        blocks.extend(found.damaged);
        for height in with_lost_logs(&reader, chain, &found.silent).await? {
            report.name(format!("height {height}: the block says that it has no logs, its receipts don't"));
            blocks.insert(height);
        }
    }
    // Whatever the range is: these stand in the way of what comes.
    let removed = store.repair_lookups_above_head().await?;
    report.lookups_removed += removed;
    if removed > 0 {
        report.name(format!("above the head: {removed} lookups removed"));
    }
    for step in full.chunks(STEP_HEIGHTS.0) {
        // Blocks that can't be read are the audit's to name.
        tell(&mut report, step, "lookups of EVM transactions", &store.repair_evm_lookups(step).await?);
    }
    let audited = look(&reader, chain, full, &mut progress).await?;
    report.blocks += audited.blocks;
    let mut index: Vec<HeightRange> = Vec::new();
    for finding in &audited.findings {
        report.name(finding.to_string());
        match finding.subject {
            Subject::Block => {
                blocks.insert(finding.height);
            }
            Subject::Missing(heights) => blocks.extend(heights.iter()),
            Subject::Index(heights) => index.push(heights),
        }
    }
    let damaged: Vec<Height> = blocks.iter().copied().collect();
    report.blocks_damaged = damaged.len() as u64;
    let mut failed: BTreeSet<Height> = BTreeSet::new();
    for height in &damaged {
        match fetch_again(store, fetch, *height).await {
            Ok(()) => report.blocks_mended += 1,
            Err(error) => {
                failed.insert(*height);
                report.unmended.push(format!("height {height}: {error:#}"));
            }
        }
    }
    // Lookups of what was written again came with it. Those beside may have been removed for a block that was gone.
    let again = ranges_of(
        blocks.iter().copied().chain(index.iter().flat_map(|range| ends(*range))).collect::<BTreeSet<_>>(),
        JOIN_HEIGHTS,
    );
    settle(store, &reader, chain, &again, &failed, &mut report).await?;
    lacks::ask_again(store, &reader, chain, fetch, full, &failed, &mut report).await?;
    Ok(report)
}

/// Looks at what was damaged, or replaced, once more: makes its index entries anew where they are wrong, and names what is still wrong, but for heights that `failed` and
/// are named already.
pub(super) async fn settle(
    store: &Arc<dyn RawStore>,
    reader: &Arc<dyn RawReader>,
    chain: Chain,
    again: &[HeightRange],
    failed: &BTreeSet<Height>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut left = Vec::new();
    for part in again {
        left.extend(look(reader, chain, *part, &mut |_| {}).await?.findings);
    }
    let wrong: Vec<HeightRange> = left
        .iter()
        .filter_map(|finding| match finding.subject {
            Subject::Index(heights) => Some(heights),
            Subject::Block | Subject::Missing(_) => None,
        })
        .collect();
    let damaged = wrong.len() as u64;
    report.index_damaged += damaged;
    if !wrong.is_empty() {
        match store.repair_index(wrong.clone(), chain.log_terms()).await {
            Ok(_) => {}
            Err(error) => report.unmended.push(format!("index: {error}")),
        }
        left.clear();
        for part in again {
            left.extend(look(reader, chain, *part, &mut |_| {}).await?.findings);
        }
        let still = left.iter().filter(|finding| matches!(finding.subject, Subject::Index(_))).count() as u64;
        report.index_mended += damaged.saturating_sub(still);
    }
    for finding in left.iter().filter(|finding| !failed.contains(&finding.height)) {
        report.unmended.push(finding.to_string());
    }
    Ok(())
}

fn tell(report: &mut Report, step: HeightRange, what: &str, found: &RepairedLookups) {
    report.lookups_written += found.written;
    report.lookups_removed += found.removed;
    if found.written + found.removed > 0 {
        report.name(format!("heights {step}: {} {what} written, {} removed", found.written, found.removed));
    }
}

/// Of these heights, whose blocks say that they have no logs, those whose receipts have some, or can't be read.
async fn with_lost_logs(
    reader: &Arc<dyn RawReader>,
    chain: Chain,
    silent: &[Height],
) -> anyhow::Result<Vec<Height>> {
    let (mut found, mut left, mut reach) = (Vec::new(), silent, READ_HEIGHTS);
    while !left.is_empty() {
        let snapshot = reader.snapshot().await?;
        // A reorg may have taken the highest away.
        let here =
            left.iter().take_while(|height| snapshot.head().range().contains(**height)).count().min(reach);
        if here == 0 {
            break;
        }
        let read = snapshot.blocks_at(&left[..here], Parts::RECEIPTS, READ_BYTES).await;
        drop(snapshot);
        let blocks = match read {
            Ok(blocks) => blocks,
            // One of them can't be read: reach less far, until it stands alone.
            Err(StoreError::Corrupt { .. }) if here > 1 => {
                reach = here / 2;
                continue;
            }
            Err(StoreError::Corrupt { .. }) => {
                found.push(left[0]);
                left = &left[1..];
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        left = &left[blocks.len()..];
        reach = READ_HEIGHTS;
        let terms = chain.log_terms();
        let lost = tokio::task::spawn_blocking(move || {
            let lost = blocks.iter().filter(|block| !terms(block).is_ok_and(|terms| terms.is_empty()));
            lost.map(|block| block.facts.height).collect::<Vec<_>>()
        });
        found.extend(lost.await.context("the look at receipts panicked")?);
    }
    Ok(found)
}

/// How many heights are looked at in one go.
struct Reach(u64);

impl Default for Reach {
    fn default() -> Self {
        Reach(STEP_HEIGHTS.0)
    }
}

impl Reach {
    /// The next step of `range`.
    fn from(&self, at: Height, range: HeightRange) -> HeightRange {
        HeightRange::new(at, Height(at.get().saturating_add(self.0))).intersect(range)
    }

    /// Half as many, after one that failed. `false` where it can't be fewer.
    fn shrink(&mut self) -> bool {
        let fewer = (self.0 / 2).max(STEP_HEIGHTS.1);
        std::mem::replace(&mut self.0, fewer) > fewer
    }

    /// More again, after one that went well.
    fn grow(&mut self) {
        self.0 = (self.0 * 2).min(STEP_HEIGHTS.0);
    }
}

/// The first and the last height of a range.
fn ends(range: HeightRange) -> impl Iterator<Item = Height> {
    [Some(range.start()), range.last()].into_iter().flatten()
}

async fn look(
    reader: &Arc<dyn RawReader>,
    chain: Chain,
    range: HeightRange,
    progress: &mut impl FnMut(Height),
) -> Result<AuditReport, StoreError> {
    audit(reader, chain.auditor(), range, MAX_FINDINGS, progress).await
}

async fn fetch_again(store: &Arc<dyn RawStore>, fetch: &Fetch, height: Height) -> anyhow::Result<()> {
    let block = fetch_block(fetch, height).await?;
    store.repair_block(block).await.context("the node's block can't take its place")
}

/// The block at `height` as the node has it.
pub(super) async fn fetch_block(fetch: &Fetch, height: Height) -> anyhow::Result<RawBlock> {
    let source = fetch.source()?;
    let blocks = source.blocks(HeightRange::one(height)).await.context("can't be fetched")?;
    blocks.into_iter().next().context("the node doesn't have it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_too_much_for_the_database_become_smaller_and_grow_again() {
        let range = HeightRange::new(Height(0), Height(25_000));
        let mut reach = Reach::default();
        assert_eq!(reach.from(Height(20_000), range), HeightRange::new(Height(20_000), Height(25_000)));
        let mut tries = 0;
        while reach.shrink() {
            tries += 1;
        }
        assert_eq!((tries, reach.from(Height(7), range)), (7, HeightRange::new(Height(7), Height(107))));
        reach.grow();
        assert_eq!(reach.from(Height(0), range).len(), 200);
        (0..20).for_each(|_| reach.grow());
        assert_eq!(reach.from(Height(0), range).len(), 10_000);
    }
}
