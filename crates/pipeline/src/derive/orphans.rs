//! Errors of blocks that a reorg took.
//!
//! The applier forgets them with the reorg. But the error log and the app store share no transaction: a worker that read a dead fork may record what it
//! found there after the reorg was applied; its commit is refused, the record stays. The committer comes round and forgets those too.

use std::collections::BTreeSet;

use cairn_core::{BlockId, Height, HeightRange};
use cairn_store::StoreError;
use tokio::time::{Duration, Instant};

use super::context::Context;

/// The newest entries of the reorg log that are looked at.
const ENTRIES: u64 = 32;
/// Orphans further below the highest one were looked at long ago.
const WINDOW_HEIGHTS: u64 = 4_096;
/// A snapshot is used so long; a store ends it a little later.
const SNAPSHOT_USED: Duration = Duration::from_secs(1);

/// Forgets the errors of blocks that reorgs took and none brought back. Returns how many.
pub(super) async fn forget_errors(context: &Context) -> Result<u64, StoreError> {
    let Some(forks) = context.app.forks().await? else { return Ok(0) };
    let snapshot = context.raw.snapshot().await?;
    let newest = snapshot.head().newest_reorg.id;
    // While one is being applied, the applier is at it.
    if newest == 0 || !forks.is_settled() || forks.applied.id != newest {
        return Ok(0);
    }
    let entries = snapshot.reorgs(newest.saturating_sub(ENTRIES), ENTRIES as usize).await?;
    let orphans = || entries.iter().flat_map(|entry| &entry.orphans).map(|orphan| orphan.block);
    let Some(highest) = orphans().map(|block| block.height).max() else { return Ok(0) };
    let window = HeightRange::new((highest.get().saturating_sub(WINDOW_HEIGHTS - 1)).into(), highest.next());
    // Only where a reorg took something: what lies between says nothing of it.
    let heights: BTreeSet<Height> =
        orphans().map(|block| block.height).filter(|height| window.contains(*height)).collect();
    let (mut snapshot, mut opened) = (snapshot, Instant::now());
    let (mut canonical, mut unknown): (BTreeSet<BlockId>, BTreeSet<Height>) = Default::default();
    for height in heights {
        if opened.elapsed() > SNAPSHOT_USED {
            (snapshot, opened) = (context.raw.snapshot().await?, Instant::now());
            if snapshot.head().newest_reorg.id != newest {
                return Ok(0);
            }
        }
        match snapshot.linked_ref(height).await {
            Ok(linked) => canonical.extend(linked.map(|linked| linked.block.id)),
            // Its row is lost, or can't be read. Errors of the block are kept, and the others are looked at.
            Err(StoreError::Corrupt { place, what }) => {
                tracing::debug!(%height, place, what, "can't tell which block stands here");
                unknown.insert(height);
            }
            Err(error) => return Err(error),
        }
    }
    let gone: BTreeSet<BlockId> = orphans()
        .filter(|block| {
            window.contains(block.height)
                && !unknown.contains(&block.height)
                && !canonical.contains(&block.id)
        })
        .map(|block| block.id)
        .collect();
    context.errors.forget_blocks(&gone.into_iter().collect::<Vec<_>>()).await
}
