//! What the memory store holds: plain ordered maps, shared with the snapshots that still look at them.
//!
//! Every map sits behind an [`Arc`]. A snapshot clones the pointers; a verb copies a map only where a snapshot still
//! holds it. Blocks themselves are never copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{
    BlockId, BlockRef, Fence, Height, HeightRange, IndexKey, Parts, RawBlock, StoredBlock, TxId,
};

use crate::runs::RunKind;
use crate::{HeadRow, RawLease, ReorgEntry, Result, StoreError};

/// A lease, and where it stood when it was claimed: whether it moved decides if a bad end counts.
#[derive(Debug, Clone)]
pub(super) struct LeaseRow {
    pub(super) lease: RawLease,
    pub(super) claimed_at: Height,
}

impl LeaseRow {
    pub(super) fn has_moved(&self) -> bool {
        self.lease.done_to > self.claimed_at
    }
}

/// All rows.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    /// `None` before `init`.
    pub(super) head: Option<HeadRow>,
    /// The newest fence given, to the head or to a lease.
    pub(super) last_fence: u64,
    /// Blocks by height: the canonical ones, those that a purge has not moved yet, and those filled above the tip.
    pub(super) blocks: Arc<BTreeMap<Height, Arc<RawBlock>>>,
    pub(super) block_lookup: Arc<BTreeSet<(BlockId, Height)>>,
    pub(super) tx_lookup: Arc<BTreeSet<(TxId, Height, u32)>>,
    pub(super) terms: Arc<BTreeSet<(IndexKey, Height)>>,
    pub(super) reorgs: Arc<Vec<ReorgEntry>>,
    /// By reorg id and block id.
    pub(super) orphans: Arc<BTreeMap<(u64, BlockId), Arc<RawBlock>>>,
    /// By first height.
    pub(super) leases: Arc<BTreeMap<Height, LeaseRow>>,
}

pub(super) fn not_initialised() -> StoreError {
    StoreError::not_begun()
}

impl State {
    pub(super) fn head(&self) -> Result<&HeadRow> {
        self.head.as_ref().ok_or_else(not_initialised)
    }

    pub(super) fn head_mut(&mut self) -> Result<&mut HeadRow> {
        self.head.as_mut().ok_or_else(not_initialised)
    }

    pub(super) fn next_fence(&mut self) -> Fence {
        self.last_fence += 1;
        Fence(self.last_fence)
    }

    /// Law 5: a commit under any other fence than the one in force fails.
    pub(super) fn demand_head(&self, held: Fence) -> Result<&HeadRow> {
        let head = self.head()?;
        if head.fence == held {
            Ok(head)
        } else {
            Err(StoreError::Fenced { what: "the head".into(), held, current: head.fence })
        }
    }

    /// Writes a row with its lookups and terms; a row that is there already is left alone. The caller has checked that it is
    /// the same.
    pub(super) fn put_block(&mut self, block: Arc<RawBlock>) {
        let height = block.facts.height;
        if self.blocks.contains_key(&height) {
            return;
        }
        Arc::make_mut(&mut self.block_lookup).insert((block.facts.id, height));
        let txs = Arc::make_mut(&mut self.tx_lookup);
        for (index, tx) in (0..).zip(&block.transactions) {
            txs.insert((tx.id, height, index));
        }
        Arc::make_mut(&mut self.terms).extend(block.log_terms.iter().map(|term| (*term, height)));
        Arc::make_mut(&mut self.blocks).insert(height, block);
    }

    /// Takes a row away, with its lookups and terms; those of the same ids at other heights stay.
    pub(super) fn take_block(&mut self, height: Height) -> Option<Arc<RawBlock>> {
        let block = Arc::make_mut(&mut self.blocks).remove(&height)?;
        Arc::make_mut(&mut self.block_lookup).remove(&(block.facts.id, height));
        let txs = Arc::make_mut(&mut self.tx_lookup);
        for (index, tx) in (0..).zip(&block.transactions) {
            txs.remove(&(tx.id, height, index));
        }
        let terms = Arc::make_mut(&mut self.terms);
        for term in &block.log_terms {
            terms.remove(&(*term, height));
        }
        Some(block)
    }

    /// Whether every block that is already there is the same, byte for byte.
    pub(super) fn demand_no_conflict(&self, blocks: &[RawBlock]) -> Result<()> {
        let conflict = blocks.iter().find_map(|block| {
            let stored = self.blocks.get(&block.facts.height)?;
            (!same_block(stored, block)).then_some((stored, block))
        });
        match conflict {
            None => Ok(()),
            Some((stored, block)) => Err(StoreError::Conflict {
                height: block.facts.height,
                stored: stored.facts.id,
                offered: block.facts.id,
            }),
        }
    }

    /// The stored block at a height, whatever the head says.
    pub(super) fn row_ref(&self, height: Height) -> Option<BlockRef> {
        self.blocks.get(&height).map(|block| block.block_ref())
    }

    /// Every index entry with a height in `range`, as `(kind, key, height, tx index or 0)`, ascending; not bounded by the head.
    pub(super) fn index_entries(&self, range: HeightRange) -> Vec<(RunKind, IndexKey, Height, u32)> {
        let mut entries = Vec::new();
        entries.extend(self.block_lookup.iter().map(|(id, at)| (RunKind::BlockId, id.index_key(), *at, 0)));
        entries.extend(
            self.tx_lookup.iter().map(|(id, at, index)| (RunKind::TxId, id.index_key(), *at, *index)),
        );
        entries.extend(self.terms.iter().map(|(term, at)| (RunKind::LogTerm, *term, *at, 0)));
        entries.retain(|(_, _, at, _)| range.contains(*at));
        entries.sort_unstable();
        entries
    }
}

/// Whether two blocks have the same facts, transactions and parts. Terms are derived from the receipts and not compared.
fn same_block(a: &RawBlock, b: &RawBlock) -> bool {
    a.facts == b.facts
        && a.transactions == b.transactions
        && (&a.header, &a.body, &a.receipts) == (&b.header, &b.body, &b.receipts)
        && (&a.extras, &a.traces) == (&b.extras, &b.traces)
}

/// A block as it is read back.
pub(super) fn stored(block: &RawBlock, parts: Parts) -> StoredBlock {
    let part = |flag: Parts, bytes: &bytes::Bytes| {
        if parts.contains(flag) { bytes.clone() } else { bytes::Bytes::new() }
    };
    StoredBlock {
        facts: block.facts,
        transactions: if parts.contains(Parts::TRANSACTIONS) {
            block.transactions.clone()
        } else {
            Vec::new()
        },
        header: part(Parts::HEADER, &block.header),
        body: part(Parts::BODY, &block.body),
        receipts: part(Parts::RECEIPTS, &block.receipts),
        extras: part(Parts::EXTRAS, &block.extras),
        traces: if parts.contains(Parts::TRACES) { block.traces.clone() } else { None },
    }
}
