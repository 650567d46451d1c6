//! One chunk of a folder: event rows in, state out, strictly in chain order.
//!
//! A raw snapshot comes first (the reorg log, block ids), then one app snapshot (event rows, state, upstream checkpoints, what was applied); the
//! commit compares both. A chunk ends where an upstream's rows are being made again. Rows of state that the chunk touches are loaded, changed in memory block by block
//! (see `state`), and written once; above finality each block that changes a row leaves the row's former self for the undo table.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{BlockFacts, Height, HeightRange};
use cairn_store::derived::{ChunkCommit, DerivedSnapshot, FoldedAt, Key, Row, WorkerLease};

use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::processor::{Folder, Malformed};
use super::read::{not_yet, read_raw};
use super::report;
use super::state::{ChunkInput, ChunkState, Found, Missing, cut_events};
use super::steps::{self, Steps};

/// How many rows are loaded by one read.
const KEYS_PER_READ: usize = 4_096;
/// How many lookups one snapshot answers: a store may end it after two seconds.
const LOOKUPS_PER_SNAPSHOT: usize = 200;

pub(super) async fn prepare(
    context: &Context,
    folder: &Arc<dyn Folder>,
    _lease: &WorkerLease,
    heights: HeightRange,
) -> Result<Prepared, DeriveError> {
    let mut steps = Steps::begin(folder.service());
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(context, heights, folder.parts(), max_bytes, None).await?;
    let snapshot = context.app.snapshot().await?;
    let corrections = demand_own_checkpoint(&*snapshot, folder.service().name, chunk.heights.start())?;
    let folded_at = FoldedAt { applied: snapshot.forks().applied.id, corrections };
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
    cut_events(&mut events, chunk.heights.end());
    let parent_id = chunk.parent_id;
    let last_id = chunk.last_id();
    let finalized = chunk.finalized_exclusive;
    let blocks = std::mem::take(&mut chunk.blocks);
    steps.done(steps::READ);
    let folding = folder.clone();
    let input = context.compute(move || ChunkInput::fold(&*folding, blocks, events)).await?;
    let input = Arc::new(input);
    let mut state = ChunkState::new(&**folder, &context.catalog, finalized)?;
    let mut missing = state.touched_by(&input)?;
    steps.done(steps::COMPUTE);
    let from = chunk.heights.start();
    let mut reader = Reader { context, folder, from, corrections, snapshot, lookups: 0 };
    let (state, malformed) = loop {
        reader.load(&mut state, missing).await?;
        steps.done(steps::READ);
        let (folding, input, mut worked) = (folder.clone(), input.clone(), state.clone());
        let run = move || {
            let (errors, missing) = worked.run(&*folding, &input)?;
            Ok((worked, errors, missing))
        };
        let (worked, errors, more) = context.compute(run).await?;
        steps.done(steps::COMPUTE);
        if more.is_empty() {
            break (worked, errors);
        }
        missing = more;
        // It took a while, and a store ends a snapshot after two seconds.
        reader.renew().await?;
    };
    // They come by step, and within it by block.
    let mut by_block: BTreeMap<Height, (BlockFacts, Vec<Malformed>)> = BTreeMap::new();
    for (facts, what) in malformed {
        by_block.entry(facts.height).or_insert((facts, Vec::new())).1.push(what);
    }
    let malformed = by_block
        .into_values()
        .flat_map(|(facts, events)| report::of_block_events(folder.service(), &facts, events))
        .collect();
    let commit = ChunkCommit {
        chunk: chunk.heights,
        parent_id,
        last_id,
        read: chunk.read,
        folded_at: Some(folded_at),
        rows: Vec::new(),
        states: state.into_rows(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed, quarantined: None })
}

/// State in this snapshot has to be that of exactly the checkpoint that the chunk goes on from: a predecessor's commit may be
/// under way, and what is computed from the state before it would pass the commit's own demand and lose it. How often it was corrected.
pub(super) fn demand_own_checkpoint(
    snapshot: &dyn DerivedSnapshot,
    service: &'static str,
    from: Height,
) -> Result<u64, DeriveError> {
    match snapshot.checkpoint(service) {
        Some(own) if own.next == from => Ok(own.corrections),
        own => Err(not_yet(format!(
            "{service} from height {from} (its checkpoint ends at {})",
            own.map_or("none".into(), |own| own.next.to_string())
        ))),
    }
}

/// Loads what rounds miss.
struct Reader<'c> {
    context: &'c Context,
    folder: &'c Arc<dyn Folder>,
    /// Where the chunk begins.
    from: Height,
    /// How often the state had been corrected.
    corrections: u64,
    snapshot: Arc<dyn DerivedSnapshot>,
    /// How many lookups this snapshot has answered.
    lookups: usize,
}

impl Reader<'_> {
    async fn load(&mut self, state: &mut ChunkState, missing: Missing) -> Result<(), DeriveError> {
        let mut wanted: BTreeMap<&'static str, Vec<Key>> = BTreeMap::new();
        for (table, key) in missing.places {
            wanted.entry(table).or_default().push(key);
        }
        for (table, keys) in wanted {
            for keys in keys.chunks(KEYS_PER_READ) {
                for (key, row) in keys.iter().zip(self.snapshot.rows(table, keys).await?) {
                    state.give(table, key.clone(), row);
                }
            }
        }
        for lookup in missing.lookups {
            if self.lookups == LOOKUPS_PER_SNAPSHOT {
                self.renew().await?;
            }
            self.lookups += 1;
            let page = self.snapshot.scan(&lookup.to_scan()).await?;
            state.give_found(lookup, Found { is_whole: page.more.is_none(), rows: page.rows });
        }
        Ok(())
    }

    /// A store ends a snapshot after a while. Another one says the same as long as the checkpoint is where it was and no reorg came between.
    async fn renew(&mut self) -> Result<(), DeriveError> {
        let snapshot = self.context.app.snapshot().await?;
        let name = self.folder.service().name;
        let corrections = demand_own_checkpoint(&*snapshot, name, self.from)?;
        let (then, now) = (self.snapshot.forks(), snapshot.forks());
        if (then.applied.id, then.begun.id) != (now.applied.id, now.begun.id) {
            return Err(not_yet(format!("{name} while reorgs are applied")));
        }
        if corrections != self.corrections {
            return Err(not_yet(format!("{name} while its state is corrected")));
        }
        (self.snapshot, self.lookups) = (snapshot, 0);
        Ok(())
    }
}
