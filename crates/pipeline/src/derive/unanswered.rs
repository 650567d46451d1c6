//! What a node doesn't answer for now, counted by thing.
//!
//! A node that is away answers nothing, and then everything waits for it. A contract that makes it fail each time it is asked about looks the same from the one
//! question alone, and would stop its worker for ever: so a failure counts against the thing only where the node answers about another one at the same block.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cairn_core::BlockRef;
use cairn_store::derived::{Key, Scan};

use super::context::Context;
use super::enrich::ask;
use super::error::DeriveError;
use super::processor::Enricher;

/// Failures that count against one thing before nobody asks about it again.
pub(super) const MAX_TRIES: u32 = 10;
/// Things that are counted at once; more are counted anew.
const MAX_KEPT: usize = 4_096;
/// Known things that are asked about to see whether a node answers.
const PROBES: usize = 3;

#[derive(Default)]
pub(super) struct Unanswered {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    tries: BTreeMap<(&'static str, Key), u32>,
    /// What each service got an answer about last.
    answered: BTreeMap<&'static str, Key>,
}

impl Unanswered {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node answered about it.
    pub fn answered(&self, service: &'static str, key: &Key) {
        let mut kept = self.kept();
        kept.tries.remove(&(service, key.clone()));
        kept.answered.insert(service, key.clone());
    }

    /// The node failed over it while it answered others; says how often that happened.
    pub fn failed(&self, service: &'static str, key: &Key) -> u32 {
        let mut kept = self.kept();
        if kept.tries.len() >= MAX_KEPT {
            kept.tries.clear();
        }
        let tries = kept.tries.entry((service, key.clone())).or_default();
        *tries += 1;
        *tries
    }
}

/// Whether the node answers about something at this block: what it answered last, or what is known from before.
pub(super) async fn node_answers(
    context: &Context,
    enricher: &Arc<dyn Enricher>,
    at: BlockRef,
) -> Result<bool, DeriveError> {
    let last = context.unanswered.kept().answered.get(enricher.service().name).cloned();
    let mut known: Vec<Key> = last.into_iter().collect();
    if known.is_empty() {
        let table = context.catalog.table(enricher.known_in().name)?;
        let snapshot = context.app.snapshot().await?;
        let page = snapshot.scan(&Scan::new(table.name(), PROBES)).await?;
        known.extend(page.rows.iter().map(|row| table.key_of(row)));
    }
    for key in known {
        if ask(enricher, &key, at).await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}
