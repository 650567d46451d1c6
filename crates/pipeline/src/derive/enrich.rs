//! One chunk of an enricher: things that event rows name, asked of a node once.
//!
//! A thing that a block above finality names is asked at that very block, so that a reorg that takes the answer also takes the range back in which it is asked
//! again; anything else is asked at the finalised block. An enricher of what was before ([`Enricher::asks_before`]) is asked at the parent of the block that names the thing
//! first, on whichever fork: a reorg below which nothing names it leaves what was true there. An archive that catches up asks at the node's finalised block, above its own tip ([`super::ahead`]). A chunk ends where rows that name things are being made again. A range that is made again asks about what is known too;
//! what is known stays where the node has no answer now. No transaction is open while a node is asked. A chunk that names more than one commit takes is cut, down to one
//! block ([`super::asking`]). What only it fails over is given up in the end ([`super::unanswered`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{BlockRef, Height, HeightRange, LinkedRef, Parts};
use cairn_store::derived::{ChunkCommit, FoldedAt, Key, LeaseKind, Row, TableRows, WorkerLease};

use super::asking::{Answer, Answers, Question, Worth, ask_all};
use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::fold::demand_own_checkpoint;
use super::processor::Enricher;
use super::read::{not_yet, read_raw};
use super::steps::{self, Steps};

/// The parent of the block at a height, where that is stored.
async fn parent_of(context: &Context, height: Height) -> Result<Option<BlockRef>, DeriveError> {
    let linked = context.raw.snapshot().await?.linked_ref(height).await?;
    let parent = |linked: LinkedRef| BlockRef { height: linked.block.height - 1, id: linked.parent_id };
    Ok(linked.map(parent))
}

pub(super) async fn prepare(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    lease: &WorkerLease,
    heights: HeightRange,
) -> Result<Prepared, DeriveError> {
    let asks_again = lease.kind == LeaseKind::Reindex;
    let mut steps = Steps::begin(enricher.service());
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(context, heights, Parts::empty(), max_bytes, None).await?;
    if asks_again && chunk.finalized.is_some() && chunk.finalized_exclusive == Height::ZERO {
        // No block is known to be settled now. What is asked at the block that names it would come to lie below the answer that it is to replace.
        return Err(not_yet("reorgs that the raw store has had"));
    }
    let snapshot = context.app.snapshot().await?;
    let applied = snapshot.forks().applied.id;
    let folded_at = match asks_again {
        true => None,
        false => {
            let from = chunk.heights.start();
            let corrections = demand_own_checkpoint(&*snapshot, enricher.service().name, from)?;
            Some(FoldedAt { applied, corrections })
        }
    };
    let mut events: Vec<Vec<Row>> = Vec::new();
    for table in enricher.reads() {
        let heights = chunk.heights;
        let (rows, go_on) =
            snapshot.events(table.name, heights.start(), heights.end(), max_bytes as usize).await?;
        events.push(rows);
        chunk.cut(go_on);
    }
    for upstream in enricher.service().upstreams {
        if snapshot.checkpoint(upstream).is_none_or(|upstream| upstream.next < chunk.heights.end()) {
            return Err(not_yet(format!("{upstream} up to height {}", chunk.heights.end())));
        }
        // In the snapshot that the rows were read from, as a folder does: what is old there would be passed over for good.
        if let Some(again) = snapshot.made_again_from(upstream, chunk.heights.start()).await? {
            chunk.cut(again);
        }
    }
    if chunk.heights.is_empty() {
        return Err(not_yet(format!("events of heights {heights}")));
    }
    let mut first_named: BTreeMap<Key, LinkedRef> = BTreeMap::new();
    let by_height: BTreeMap<_, _> =
        chunk.blocks.iter().map(|block| (block.facts.height, block.facts.linked_ref())).collect();
    for (table, rows) in events.iter().enumerate() {
        for row in rows {
            let Some(block) = row.0[0].as_height().and_then(|height| by_height.get(&height)) else {
                continue;
            };
            let mut wanted = Vec::new();
            enricher.wanted(table, row, &mut wanted);
            for key in wanted {
                let named = first_named.entry(key).or_insert(*block);
                if block.block.height < named.block.height {
                    *named = *block;
                }
            }
        }
    }
    let known_in = context.catalog.table(enricher.known_in().name)?;
    let asked_at = |row: &Row| row.0[known_in.height_column()?].as_height();
    // What is known, and at which block it was asked.
    let mut known: BTreeMap<Key, Option<Height>> = BTreeMap::new();
    let keys: Vec<Key> = first_named.keys().cloned().collect();
    for keys in keys.chunks(4_096) {
        let rows = snapshot.rows(known_in.name(), keys).await?;
        known.extend(keys.iter().zip(rows).filter_map(|(key, row)| Some((key.clone(), asked_at(&row?)))));
    }
    if !asks_again {
        let is_old = |asked: Height, named: &LinkedRef| {
            enricher.asks_again_after().is_some_and(|after| named.block.height.since(asked) >= after)
        };
        first_named.retain(|key, named| match known.get(key) {
            None => true,
            Some(at) => at.is_some_and(|asked| is_old(asked, named)),
        });
    }
    drop(snapshot);

    let asks_before = enricher.asks_before();
    let ahead = match first_named.is_empty() || asks_before {
        true => None,
        false => context.ahead.finalized(enricher, chunk.tip).await,
    };
    let settled = chunk.finalized.filter(|_| chunk.finalized_exclusive.get() > 0);
    let mut questions: Vec<Question> = Vec::with_capacity(first_named.len());
    for (key, named) in first_named {
        let LinkedRef { block: named, parent_id } = named;
        let is_below = settled.is_some_and(|at| named.height <= at.height);
        let (at, is_settled) = match (ahead, settled) {
            _ if asks_before => {
                let Some(height) = named.height.get().checked_sub(1) else { continue };
                let first = BlockRef { height: Height(height), id: parent_id };
                // An earlier block may have named it before: then it is asked about where it was.
                let at = match known.get(&key).copied().flatten() {
                    Some(asked) => parent_of(context, asked.next()).await?,
                    None => Some(first),
                };
                (at.unwrap_or(first), is_below)
            }
            (Some(at), _) => (at, true),
            (None, Some(at)) if is_below => (at, true),
            _ => (named, false),
        };
        questions.push(Question { key, named: named.height, at, is_settled });
    }
    let (service, start) = (enricher.service().name, chunk.heights.start());
    if asks_again {
        // What is said of a lower block would lie below the answer that it is to replace, and change nothing.
        let is_below = |question: &Question| {
            known.get(&question.key).copied().flatten().is_some_and(|asked| asked > question.at.height)
        };
        if ahead.is_none() && questions.iter().any(is_below) {
            return Err(not_yet("the node's finalised block"));
        }
        // A chunk of this lease that was committed asked at this very block.
        questions.retain(|Question { key, at, is_settled, .. }| {
            let is_of_it = *is_settled && known.get(key) == Some(&Some(at.height));
            !(is_of_it && context.unanswered.was_asked_again(service, lease.id, key, start))
        });
    }
    questions.sort_by(|a, b| (a.named, &a.key).cmp(&(b.named, &b.key)));
    steps.done(steps::READ);
    let Answers { answers, open_from } = ask_all(context, enricher, lease.id, start, &questions).await?;
    steps.done(steps::ASK);
    if let Some(open_from) = open_from {
        chunk.cut(open_from);
    }
    if asks_again {
        let is_done = |answer: &Answer| answer.worth != Worth::GivenUp;
        let answered = answers.iter().filter(|(_, answer)| is_done(answer)).map(|(key, _)| key.clone());
        context.unanswered.asked_again(service, lease.id, answered, start);
    }
    // Several answers may make one row: all go, since the store keeps those that a reorg may bring back.
    let mut rows: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
    // Of a thing of which nothing was said, rows of tables that other things have a part in too.
    let mut shared: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
    for (key, answer) in answers {
        let is_said = answer.is_said();
        if !is_said && known.contains_key(&key) {
            continue;
        }
        for (table, row) in answer.rows {
            let is_shared = !is_said && table != known_in.name();
            let rows = if is_shared { &mut shared } else { &mut rows };
            rows.entry(table).or_default().push(row);
        }
    }
    for (name, given_up) in shared {
        let table = context.catalog.table(name)?;
        let answered: BTreeSet<Key> =
            rows.get(name).into_iter().flatten().map(|row| table.key_of(row)).collect();
        let keys: Vec<Key> = given_up.iter().map(|row| table.key_of(row)).collect();
        let stored = context.app.snapshot().await?.rows(name, &keys).await?;
        for ((row, key), stored) in given_up.into_iter().zip(keys).zip(stored) {
            // What is known stays.
            if stored.is_none() && !answered.contains(&key) {
                rows.entry(name).or_default().push(row);
            }
        }
    }
    let rows = rows.into_iter().map(|(table, rows)| TableRows { table, rows }).collect();
    let last_id = chunk.last_id();
    // Rows were read from the app store, and its leases come one after the other: the same demands as a folder's. Below the checkpoint there is no order; what
    // was applied since those rows were read is a reorg that they don't know.
    if asks_again {
        chunk.read.reorg_id = chunk.read.reorg_id.min(applied);
    }
    let commit = ChunkCommit {
        chunk: chunk.heights,
        parent_id: chunk.parent_id,
        last_id,
        read: chunk.read,
        folded_at,
        rows,
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: chunk.finalized_exclusive,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed: Vec::new(), quarantined: None })
}
