//! How many blocks are committed at once.
//!
//! A database that is slow may never be done with a large commit before its time limit. So each commit that fails halves what the next ones
//! take, and after a number of commits that pass larger ones are tried again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cairn_core::RawBlock;
use cairn_store::Result;

/// So many commits in a row pass before larger ones are tried again.
const COMMITS_BEFORE_LARGER: u32 = 16;
/// So many leave a block or a few of each commit.
const MAX_HALVINGS: u32 = 8;

/// Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct CommitSize(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    halvings: AtomicU32,
    /// Commits that passed since the last change.
    passed: AtomicU32,
}

impl CommitSize {
    /// Cuts the blocks of the next commit off the front.
    pub fn next_of(&self, blocks: &mut Vec<RawBlock>, gathered: usize) -> Vec<RawBlock> {
        let at_once = (gathered >> self.0.halvings.load(Ordering::Relaxed)).max(1);
        let later = blocks.split_off(at_once.min(blocks.len()));
        std::mem::replace(blocks, later)
    }

    /// Takes note of how a commit ended. Two that end at once may count as one.
    pub fn ended<T>(&self, commit: Result<T>) -> Result<T> {
        let Counts { halvings, passed } = &*self.0;
        let before = halvings.load(Ordering::Relaxed);
        match &commit {
            Ok(_) if before > 0 && passed.fetch_add(1, Ordering::Relaxed) + 1 >= COMMITS_BEFORE_LARGER => {
                halvings.store(before - 1, Ordering::Relaxed);
                passed.store(0, Ordering::Relaxed);
            }
            Err(error) if error.kind().is_retryable() => {
                halvings.store((before + 1).min(MAX_HALVINGS), Ordering::Relaxed);
                passed.store(0, Ordering::Relaxed);
            }
            _ => {}
        }
        commit
    }
}
