//! One chunk of an enricher: things that event rows name, asked of a node once.
//!
//! A thing that a block above finality names is asked at that very block, so that a reorg that takes the answer also takes the range back in which it is asked
//! again; anything else is asked at the finalised block. A range that is made again asks about what is known too, once the rows that name it are made again;
//! what is known stays where the node has no answer now. No transaction is open while a node is asked. What only it fails over is given up in the end
//! ([`super::unanswered`]).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use cairn_core::{BlockId, BlockRef, HeightRange, Parts};
use cairn_store::derived::{ChunkCommit, Key, LeaseKind, Row, TableRows, WorkerLease};
use futures::{FutureExt, StreamExt};

use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::fold::demand_own_checkpoint;
use super::guard::text_of;
use super::processor::{AskError, Asked, Enricher};
use super::read::{not_yet, read_raw};
use super::unanswered::{MAX_TRIES, node_answers};

pub(super) async fn prepare(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    lease: &WorkerLease,
    heights: HeightRange,
) -> Result<Prepared, DeriveError> {
    let asks_again = lease.kind == LeaseKind::Reindex;
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(&context.raw, &context.app, heights, Parts::empty(), max_bytes, None).await?;
    let snapshot = context.app.snapshot().await?;
    let applied = snapshot.forks().applied.id;
    if !asks_again {
        demand_own_checkpoint(&*snapshot, enricher.service().name, chunk.heights.start())?;
    }
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
        if asks_again && let Some(again) = snapshot.made_again_from(upstream, chunk.heights.start()).await? {
            chunk.cut(again);
        }
    }
    if chunk.heights.is_empty() {
        return Err(not_yet(format!("events of heights {heights}")));
    }
    let mut first_named: BTreeMap<Key, BlockRef> = BTreeMap::new();
    let by_height: BTreeMap<_, _> =
        chunk.blocks.iter().map(|block| (block.facts.height, block.facts.block_ref())).collect();
    for (table, rows) in events.iter().enumerate() {
        for row in rows {
            let Some(block) = row.0[0].as_height().and_then(|height| by_height.get(&height)) else {
                continue;
            };
            let mut wanted = Vec::new();
            enricher.wanted(table, row, &mut wanted);
            for key in wanted {
                let named = first_named.entry(key).or_insert(*block);
                if block.height < named.height {
                    *named = *block;
                }
            }
        }
    }
    let mut known: BTreeSet<Key> = BTreeSet::new();
    let keys: Vec<Key> = first_named.keys().cloned().collect();
    for keys in keys.chunks(4_096) {
        let rows = snapshot.rows(enricher.known_in().name, keys).await?;
        known.extend(keys.iter().zip(rows).filter(|(_, row)| row.is_some()).map(|(key, _)| key.clone()));
    }
    if !asks_again {
        first_named.retain(|key, _| !known.contains(key));
    }
    drop(snapshot);

    let settled = chunk.finalized.filter(|_| chunk.finalized_exclusive.get() > 0);
    let asks = first_named.into_iter().map(|(key, named)| {
        let at = match settled {
            Some(finalized) if named.height <= finalized.height => finalized,
            _ => named,
        };
        async move {
            let answer = ask(enricher, &key, at).await;
            Question { key, at, answer }
        }
    });
    let questions: Vec<Question> =
        futures::stream::iter(asks).buffered(context.options.asks_in_flight.max(1)).collect().await;
    let mut rows: BTreeMap<&'static str, BTreeMap<Key, Row>> = BTreeMap::new();
    for (key, answer) in settle(context, enricher, questions).await? {
        if answer.is_given_up && known.contains(&key) {
            continue;
        }
        for (table, row) in answer.rows {
            let def = context.catalog.table(table)?;
            let of_table = rows.entry(table).or_default();
            // Two answers may make one row: the newer one says what holds.
            let key = def.key_of(&row);
            let asked = |row: &Row| def.height_column().and_then(|at| row.0[at].as_int());
            if of_table.get(&key).is_none_or(|other| asked(other) <= asked(&row)) {
                of_table.insert(key, row);
            }
        }
    }
    let rows = rows
        .into_iter()
        .map(|(table, rows)| TableRows { table, rows: rows.into_values().collect() })
        .collect();
    let last_id = chunk.last_id();
    // Rows were read from the app store, and its leases come one after the other: the same demands as a folder's. Below the checkpoint there is no order; what
    // was applied since those rows were read is a reorg that they don't know.
    let folded_at = (!asks_again).then_some(applied);
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
        quarantined: Vec::new(),
        finalized: chunk.finalized_exclusive,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed: Vec::new(), quarantined: None })
}

/// A question, and what came of it.
struct Question {
    key: Key,
    at: BlockRef,
    answer: Result<Answer, String>,
}

/// What is to be stored.
pub(super) struct Answer {
    rows: Vec<(&'static str, Row)>,
    /// It says that nothing could be learnt.
    is_given_up: bool,
}

impl Answer {
    fn given_up(enricher: &Arc<dyn Enricher>, key: &Key, at: BlockRef, message: &str) -> Answer {
        Answer { rows: enricher.given_up(key, at, message), is_given_up: true }
    }
}

/// Asks about one thing. An error is trouble that may pass.
pub(super) async fn ask(enricher: &Arc<dyn Enricher>, key: &Key, at: BlockRef) -> Result<Answer, String> {
    match AssertUnwindSafe(enricher.ask(key, at)).catch_unwind().await {
        Ok(Ok(Asked::Rows(rows))) => Ok(Answer { rows, is_given_up: false }),
        Ok(Ok(Asked::Nothing)) => Ok(Answer { rows: enricher.given_up(key, at, ""), is_given_up: false }),
        Ok(Err(AskError { transient: true, message })) => Err(message),
        Ok(Err(AskError { transient: false, message })) => Ok(Answer::given_up(enricher, key, at, &message)),
        Err(panic) => {
            let message = format!("the answer could not be understood: {}", text_of(&*panic));
            Ok(Answer::given_up(enricher, key, at, &message))
        }
    }
}

/// What was answered, once nothing has to be waited for.
async fn settle(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    questions: Vec<Question>,
) -> Result<Vec<(Key, Answer)>, DeriveError> {
    let service = enricher.service().name;
    let mut answers_at: BTreeMap<BlockId, bool> = BTreeMap::new();
    for question in questions.iter().filter(|question| question.answer.is_ok()) {
        answers_at.insert(question.at.id, true);
        context.unanswered.answered(service, &question.key);
    }
    let mut answers = Vec::with_capacity(questions.len());
    let mut waits = None;
    for Question { key, at, answer } in questions {
        let message = match answer {
            Ok(answer) => {
                answers.push((key, answer));
                continue;
            }
            Err(message) => message,
        };
        let node_is_there = match answers_at.get(&at.id) {
            Some(answers) => *answers,
            None => {
                let there = node_answers(context, enricher, at).await?;
                answers_at.insert(at.id, there);
                there
            }
        };
        if node_is_there && context.unanswered.failed(service, &key) >= MAX_TRIES {
            tracing::warn!(service, ?key, %message, "a node fails over this alone; it is not asked again");
            let answer = Answer::given_up(enricher, &key, at, &message);
            answers.push((key, answer));
        } else {
            waits.get_or_insert(message);
        }
    }
    match waits {
        Some(message) => Err(DeriveError::Node(message)),
        None => Ok(answers),
    }
}
