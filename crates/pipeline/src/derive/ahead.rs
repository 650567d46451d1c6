//! Asking at blocks that the archive hasn't reached.
//!
//! Most nodes have the state of their newest blocks only. An archive that catches up is far below, so its enrichers ask at the block that the node calls
//! final, as long as that lies above the archive's tip: what they are told is what is true there, and the rows say so (`asked_at_height`).
//!
//! A reorg deletes what was asked above its common block, and these answers are above each one, whichever block named what they are about. A reorg of an archive
//! that is so far behind is rare: blocks came from a node on a dead fork. Whoever applies one looks whether there are such answers, and has their
//! workers ask about everything anew ([`begin_anew`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::{BlockRef, Height};
use cairn_store::derived::{RebuildRequest, TableClass};
use cairn_store::{ReorgEntry, Result};
use tokio::time::Instant;

use super::context::Context;
use super::processor::Enricher;

/// How long it is believed which block is the node's finalised one. Nodes that drop state keep that of about a hundred blocks.
const BELIEVED: Duration = Duration::from_secs(60);

/// What nodes call final, by service.
#[derive(Default)]
pub(super) struct Ahead {
    seen: Mutex<BTreeMap<&'static str, (Instant, Option<BlockRef>)>>,
}

impl Ahead {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Instant, Option<BlockRef>)>> {
        // Nothing panics while it is held.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node's finalised block where the archive isn't that far. A node that fails now is asked at a block of the archive, and may fail over that too.
    pub async fn finalized(&self, enricher: &Arc<dyn Enricher>, tip: Height) -> Option<BlockRef> {
        let service = enricher.service().name;
        let now = Instant::now();
        let seen = self.seen().get(service).copied();
        let finalized = match seen {
            Some((at, finalized)) if now.duration_since(at) < BELIEVED => finalized,
            _ => match enricher.finalized().await {
                Ok(finalized) => {
                    self.seen().insert(service, (now, finalized));
                    finalized
                }
                Err(error) => {
                    tracing::debug!(service, message = %error.message, "which block is final is not known now");
                    None
                }
            },
        };
        finalized.filter(|block| block.height > tip)
    }
}

/// Makes services ask anew that were answered at blocks above all that this reorg takes. To be called once it was begun and before anything of it is undone: from then on
/// no such answer is committed, and whoever goes on in another's place finds them still.
pub(super) async fn begin_anew(context: &Context, entry: &ReorgEntry) -> Result<()> {
    let tip = entry.orphans.last().map_or(entry.common.height, |orphan| orphan.block.height);
    let snapshot = context.app.snapshot().await?;
    // Another process may have ended it meanwhile, and what was asked since is no concern of this one.
    if snapshot.forks().is_settled() || snapshot.forks().begun.id != entry.id {
        return Ok(());
    }
    let mut anew: Vec<String> = Vec::new();
    for table in context.catalog.tables().iter().filter(|table| table.def().class == TableClass::Answers) {
        let service = table.def().service;
        // One without a checkpoint never ran, or is being made anew already.
        if anew.iter().any(|other| other == service) || snapshot.checkpoint(service).is_none() {
            continue;
        }
        if snapshot.newest_asked(table.name()).await?.is_some_and(|asked| asked > tip) {
            anew.push(service.to_owned());
        }
    }
    drop(snapshot);
    if anew.is_empty() {
        return Ok(());
    }
    tracing::warn!(reorg = entry.id, services = ?anew, "a reorg of an archive that catches up: what a node was asked at blocks above it is asked anew");
    context.app.begin_rebuild(&RebuildRequest { anew, ..RebuildRequest::default() }).await?;
    Ok(())
}
