//! Blocks that were stored without something optional: call traces, or bytes of transactions of unknown type. The node is asked for them again.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_core::{BlockFacts, Height, HeightRange, Parts};
use cairn_evm::Checks;
use cairn_store::RawReader;

use super::Report;
use super::fetch::Fetch;
use super::raw::fetch_block;
use crate::chain::Chain;
use crate::stores::RawStore;

/// Marks of blocks that are read at once, at most.
const READ_HEIGHTS: u64 = 10_000;
const READ_BYTES: u64 = 8 << 20;
/// The most blocks that are asked about in one repair.
const MAX_ASKED: usize = 10_000;
/// After so many blocks in a row of which the node gives no more, the others are left for the next repair.
const MAX_IN_VAIN: usize = 20;

/// What a block lacks by its marks.
fn lacks(facts: &BlockFacts) -> Checks {
    let marks = Checks::of_facts(facts.unverified);
    // Without the bytes of a transaction there is no root of all.
    let raw_bytes = Checks::UNKNOWN_TX_TYPE | Checks::TRANSACTIONS_ROOT;
    let mut lacks = marks & Checks::MISSING_TRACES;
    if marks.contains(raw_bytes) {
        lacks |= raw_bytes;
    }
    lacks
}

/// Asks the node again about the blocks of `range` that lack something, and stores those of which it gives more.
///
/// Blocks that `failed` to be mended can't be read, and are left out.
pub(super) async fn ask_again(
    store: &Arc<dyn RawStore>,
    reader: &Arc<dyn RawReader>,
    chain: Chain,
    fetch: &Fetch,
    range: HeightRange,
    failed: &BTreeSet<Height>,
    report: &mut Report,
) -> anyhow::Result<()> {
    if chain != Chain::Evm {
        return Ok(());
    }
    let mut lacking = Vec::new();
    for part in without(range, failed) {
        find_lacking(reader, part, &mut lacking).await?;
    }
    let Some(first) = lacking.first().copied() else { return Ok(()) };
    let (mut mended, mut in_vain) = (0, 0);
    let mut last_error = None;
    for height in &lacking {
        if in_vain >= MAX_IN_VAIN {
            break;
        }
        match mend(store, reader, fetch, *height).await {
            Ok(true) => (mended, in_vain) = (mended + 1, 0),
            Ok(false) => in_vain += 1,
            Err(error) => {
                in_vain += 1;
                last_error = Some(format!("height {height}: {error:#}"));
            }
        }
    }
    if mended > 0 {
        report.name(format!(
            "{mended} blocks have call traces or raw bytes now that the node did not give before"
        ));
    }
    let left = lacking.len() - mended;
    if left > 0 {
        let why = last_error.map(|error| format!(" ({error})")).unwrap_or_default();
        report.notes.push(format!(
            "{left} blocks from height {first} on lack call traces, or bytes of transactions of unknown type, that the node doesn't give{why}"
        ));
    }
    Ok(())
}

/// The parts of `range` between some heights.
fn without(range: HeightRange, heights: &BTreeSet<Height>) -> Vec<HeightRange> {
    let mut parts = Vec::new();
    let mut start = range.start();
    for height in heights.range(range.start()..range.end()) {
        parts.push(HeightRange::new(start, *height));
        start = height.next();
    }
    parts.push(HeightRange::new(start, range.end()));
    parts
}

/// Adds the blocks of `range` that lack something.
async fn find_lacking(
    reader: &Arc<dyn RawReader>,
    range: HeightRange,
    lacking: &mut Vec<Height>,
) -> anyhow::Result<()> {
    for part in range.chunks(READ_HEIGHTS) {
        let mut at = part.start();
        while at < part.end() && lacking.len() < MAX_ASKED {
            let read = reader
                .snapshot()
                .await?
                .blocks(HeightRange::new(at, part.end()), Parts::empty(), READ_BYTES)
                .await?;
            lacking.extend(
                read.blocks
                    .iter()
                    .filter(|block| !lacks(&block.facts).is_empty())
                    .map(|block| block.facts.height),
            );
            at = read.next;
        }
    }
    lacking.truncate(MAX_ASKED);
    Ok(())
}

/// Stores the node's block where it lacks less than the stored one.
async fn mend(
    store: &Arc<dyn RawStore>,
    reader: &Arc<dyn RawReader>,
    fetch: &Fetch,
    height: Height,
) -> anyhow::Result<bool> {
    let block = fetch_block(fetch, height).await?;
    let Some(stored) = reader.snapshot().await?.block(height, Parts::TRACES).await? else { return Ok(false) };
    let (before, now) = (lacks(&stored.facts), lacks(&block.facts));
    // Where traces aren't asked for any more, those that are stored stay.
    let keeps_traces = block.traces.is_some() || stored.traces.is_none();
    let has_traces = block.traces.is_some() || !before.contains(Checks::MISSING_TRACES);
    if now == before || !before.contains(now) || !keeps_traces || !has_traces {
        return Ok(false);
    }
    store.repair_block(block).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_say_what_a_block_lacks() {
        let of = |marks: Checks| lacks(&BlockFacts { unverified: marks.bits(), ..facts() });
        assert!(of(Checks::BLOOM | Checks::UNKNOWN_TX_TYPE).is_empty(), "its bytes are there");
        assert!(of(Checks::TRANSACTIONS_ROOT).is_empty(), "relaxed");
        let both = Checks::UNKNOWN_TX_TYPE | Checks::TRANSACTIONS_ROOT;
        assert_eq!(of(both | Checks::MISSING_TRACES), both | Checks::MISSING_TRACES);
    }

    fn facts() -> BlockFacts {
        BlockFacts {
            height: Height(1),
            id: Default::default(),
            parent_id: Default::default(),
            timestamp_ms: 0,
            tx_count: 0,
            log_count: 0,
            unverified: 0,
        }
    }
}
