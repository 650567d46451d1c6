//! One snapshot per request, and what heights mean in it.

use std::sync::Arc;
use std::time::Duration;

use cairn_core::{BlockId, BlockRef, Height, Parts, StoredBlock};
use cairn_evm::{BlockAt, BlockTag, TagHeights};
use cairn_store::{HeadRow, RawReader, RawSnapshot, StoreError};
use tokio::time::Instant;

use crate::error::{RpcError, UNKNOWN_BLOCK};

/// How many entries of the reorg log are looked at in one read.
const REORGS_PER_READ: usize = 64;

/// A read-only view for one request. Everything that a request says comes from the head row that it began with.
///
/// A backend may end a snapshot after two seconds, so a long request renews it with [`Reading::renew_if_old`]: a newer snapshot is as good as
/// the old one as long as no reorg has touched the heights that are being read, since stored blocks don't change otherwise.
pub(crate) struct Reading {
    reader: Arc<dyn RawReader>,
    snapshot: Arc<dyn RawSnapshot>,
    head: HeadRow,
    opened: Instant,
    max_age: Duration,
}

/// A reorg took away blocks that a request had already read: it has to begin again.
#[derive(Debug)]
pub(crate) struct Reorganised;

impl Reading {
    /// Opens a snapshot.
    pub(crate) async fn open(reader: &Arc<dyn RawReader>, max_age_ms: u64) -> Result<Self, RpcError> {
        let snapshot = reader.snapshot().await?;
        let head = snapshot.head().clone();
        let max_age = Duration::from_millis(max_age_ms);
        Ok(Reading { reader: Arc::clone(reader), snapshot, head, opened: Instant::now(), max_age })
    }

    /// The head row of the request's beginning.
    pub(crate) fn head(&self) -> &HeadRow {
        &self.head
    }

    /// The snapshot.
    pub(crate) fn snapshot(&self) -> &dyn RawSnapshot {
        &*self.snapshot
    }

    /// Opens a newer snapshot if this one is old. `highest` is the highest height that the request reads.
    pub(crate) async fn renew_if_old(
        &mut self,
        highest: Height,
    ) -> Result<Result<(), Reorganised>, RpcError> {
        if self.opened.elapsed() < self.max_age {
            return Ok(Ok(()));
        }
        let snapshot = self.reader.snapshot().await?;
        if snapshot.head().info.uuid != self.head.info.uuid || snapshot.head().first != self.head.first {
            return Ok(Err(Reorganised));
        }
        let mut seen = self.head.newest_reorg.id;
        while seen < snapshot.head().newest_reorg.id {
            let entries = snapshot.reorgs(seen, REORGS_PER_READ).await?;
            let Some(last) = entries.last() else { return Ok(Err(Reorganised)) };
            if entries.iter().any(|entry| entry.first_orphan() <= highest) {
                return Ok(Err(Reorganised));
            }
            seen = last.id;
        }
        self.snapshot = snapshot;
        self.opened = Instant::now();
        Ok(Ok(()))
    }

    /// First height and tip; `None` while the archive is empty.
    pub(crate) fn bounds(&self) -> Option<(Height, BlockRef)> {
        self.head.first.zip(self.head.tip)
    }

    /// What the tags stand for; an error while the archive is empty.
    pub(crate) fn tag_heights(&self) -> Result<TagHeights, RpcError> {
        let (first, tip) = self.bounds().ok_or_else(RpcError::empty_archive)?;
        let finalized = self.head.stored_finalized().map(Height::get);
        // A finalised block is safe, also where the source never says `safe`.
        let safe = self.head.safe.map(|safe| safe.height.get()).max(finalized);
        Ok(TagHeights { earliest: first.get(), latest: tip.height.get(), safe, finalized })
    }

    /// The height that `tag` names. `None`: above the head; below the archive's first block it is an error.
    pub(crate) fn height_of(&self, tag: BlockTag) -> Result<Option<Height>, RpcError> {
        let Some((first, tip)) = self.bounds() else { return Ok(None) };
        let height = tag.resolve(&self.tag_heights()?).map(Height).ok_or_else(|| unknown_tag(tag))?;
        if height < first {
            return Err(RpcError::pruned(height, first));
        }
        Ok((height <= tip.height).then_some(height))
    }

    /// The canonical height of what `at` names; `None`: unknown.
    pub(crate) async fn height_at(&self, at: BlockAt) -> Result<Option<Height>, RpcError> {
        match at {
            BlockAt::Tag(tag) => self.height_of(tag),
            // Only canonical blocks are found by id, so `requireCanonical` makes no difference.
            BlockAt::Hash { hash, .. } => Ok(self.snapshot.find_block(BlockId(hash.0)).await?),
        }
    }

    /// The block at a height that the head says is stored.
    pub(crate) async fn stored(&self, height: Height, parts: Parts) -> Result<StoredBlock, RpcError> {
        let block = self.snapshot.block(height, parts).await?;
        block.ok_or_else(|| StoreError::hole(height).into())
    }

    /// The block that `at` names; `None`: unknown.
    pub(crate) async fn block_at(&self, at: BlockAt, parts: Parts) -> Result<Option<StoredBlock>, RpcError> {
        match self.height_at(at).await? {
            Some(height) => self.stored(height, parts).await.map(Some),
            None => Ok(None),
        }
    }
}

/// `safe` or `finalized` where none is known: the source never named one, or what it named is above the tip and the archive still short. The execution API's -39001.
pub(crate) fn unknown_tag(tag: BlockTag) -> RpcError {
    RpcError::new(UNKNOWN_BLOCK, format!("{tag} block not found: none is known yet"))
}

/// Runs work on `bytes` bytes of block data where it may block: small amounts here, large ones off the async threads.
pub(crate) async fn work<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    const INLINE_BYTES: usize = 64 << 10;
    if bytes <= INLINE_BYTES {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a request's work failed");
            Err(RpcError::internal("the request's work failed; the server's log says why"))
        }
    }
}

/// The bytes of a stored block's parts.
pub(crate) fn size_bytes(block: &StoredBlock) -> usize {
    block.header.len()
        + block.body.len()
        + block.receipts.len()
        + block.extras.len()
        + block.traces.as_ref().map_or(0, |traces| traces.len())
        + block.transactions.len() * 64
}
