//! Another answer for a block that is stored, in its place: the same block by id, of which a source gives more than it did.
//!
//! Whoever replaces a block has read it, judged an answer against it, and may have waited for both. Two who did so at the same time must not undo each other's work, so what
//! was read has to stand there still, byte for byte; else nothing is written and the caller reads again. One transaction, under the head's lock and without its fence: it
//! may run in another process than the ingester, and changes nothing that decides which blocks there are.

use async_trait::async_trait;
use cairn_core::{RawBlock, StoredBlock};

use crate::{Result, StoreError, check_batch};

/// A block that is to take the place of one that was read.
#[derive(Debug, Clone)]
pub struct Replacement {
    /// What is to stand there: of the same height, id and parent.
    pub block: RawBlock,
    /// What was read there, with all its parts.
    pub read: StoredBlock,
}

/// Replacing single blocks.
#[async_trait]
pub trait RawReplacer: Send + Sync {
    /// Writes a canonical block in the place of the one that was read. [`StoreError::Replaced`] where something else stands there by now, and
    /// nothing is changed; a block that stands there already as offered succeeds (an answer that was lost). One that is another block than was read, by id or parent, is
    /// [`StoreError::Conflict`]; a height outside of the chain is [`StoreError::Invalid`].
    ///
    /// Where lookups stand in rows they become the block's own. Entries in index runs may stay those of the former block, until the caller makes them anew.
    async fn replace_block(&self, replacement: Replacement) -> Result<()>;
}

impl Replacement {
    /// What needs no store to be refused.
    pub fn check(&self) -> Result<()> {
        let (block, read) = (&self.block.facts, &self.read.facts);
        if (block.height, block.id, block.parent_id) != (read.height, read.id, read.parent_id) {
            return Err(StoreError::Conflict { height: block.height, stored: read.id, offered: block.id });
        }
        check_batch(std::slice::from_ref(&self.block))
    }
}

/// Whether `block` is still to be written where `read` was read, and `stored` stands now. `false`: it stands there already.
pub fn is_to_replace(block: &RawBlock, read: &StoredBlock, stored: Option<&StoredBlock>) -> Result<bool> {
    let replaced = StoreError::Replaced { block: block.block_ref() };
    let stored = stored.ok_or_else(|| replaced.clone())?;
    if *stored == StoredBlock::from(block) {
        return Ok(false);
    }
    if stored == read { Ok(true) } else { Err(replaced) }
}
