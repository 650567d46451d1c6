//! Reading: one snapshot per question, bounded by the head row in it.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, Height, HeightRange, IndexKey, LinkedRef, Parts, StoredBlock, TxId};

use crate::{Checkpoint, HeadRow, RawLease, ReorgEntry, Result};

/// Where a transaction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxPlace {
    /// Its block's height.
    pub height: Height,
    /// Its index in the block.
    pub index: u32,
}

/// The most places that [`RawSnapshot::find_evm`] names: an EVM hash stands at one place, but for what a chain did wrong.
pub const MAX_EVM_PLACES: usize = 16;

/// Which blocks may hold logs of interest: for each group one of its terms has to be in the block.
///
/// No groups: every block with a log. A group without terms matches nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogQuery {
    /// Groups joined by AND; the terms of a group joined by OR.
    pub groups: Vec<Vec<IndexKey>>,
}

impl LogQuery {
    /// The heights for which `found` is the whole answer to a query over `range` with this `limit`: up to the last of them where the limit
    /// ended it, else all of `range`.
    pub fn accounted(range: HeightRange, found: &[Height], limit: usize) -> HeightRange {
        match found.last() {
            Some(last) if found.len() >= limit => HeightRange::inclusive(range.start(), *last),
            _ => range,
        }
    }
}

/// What a store takes, for people: table or part name, rows, bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreSizes {
    /// Bytes of all files together.
    pub total_bytes: u64,
    /// `(part, rows, stored bytes)`, largest first.
    pub parts: Vec<(String, u64, u64)>,
}

/// What a read of a range of blocks found, and how far it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlocksRead {
    /// The blocks, in order.
    pub blocks: Vec<StoredBlock>,
    /// Where the caller goes on. A height of the range below it without a block here has none in this snapshot; of those from it on nothing is said.
    /// The end of the range that was asked for, or the height after the last block where bytes or time ended the read before it.
    pub next: Height,
}

impl BlocksRead {
    /// All blocks of `range`.
    pub fn whole(range: HeightRange, blocks: Vec<StoredBlock>) -> BlocksRead {
        BlocksRead { blocks, next: range.end() }
    }

    /// The first blocks of `range`: the read ended with the last of these. Without one it is a whole read.
    pub fn cut(range: HeightRange, blocks: Vec<StoredBlock>) -> BlocksRead {
        let next = blocks.last().map_or(range.end(), |last| last.facts.height.next());
        BlocksRead { blocks, next }
    }
}

/// Opens snapshots.
#[async_trait]
pub trait RawReader: Send + Sync {
    /// A consistent view of the store as it is now. It stays as it is while it is held, whatever is written meanwhile.
    ///
    /// Hold it for one request only: a backend may end it after two seconds, and then answers [`crate::StoreError::Busy`].
    /// A store that was not initialised is [`crate::StoreError::Invalid`].
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>>;

    /// The head row alone, for whoever looks often. A backend may read it without a snapshot.
    async fn head(&self) -> Result<HeadRow> {
        Ok(self.snapshot().await?.head().clone())
    }
}

/// A consistent view. Nothing above its head's tip, and nothing that a reorg took away, can be seen in it,
/// except through [`RawSnapshot::orphan`].
#[async_trait]
pub trait RawSnapshot: Send + Sync {
    /// The head row.
    fn head(&self) -> &HeadRow;

    /// The canonical block at `height` with the parts asked for. `None` outside [`HeadRow::range`]. A height in it without a block is
    /// [`crate::StoreError::hole`], here and in every other read that meets it.
    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>>;

    /// The blocks of `range` that are stored, in order, until `max_bytes` of decompressed parts are read, or the snapshot's time is
    /// over; at least one where there is one. Ends with the block whose parts make the sum reach `max_bytes`, so it passes the limit by less
    /// than one block; transactions' facts aren't counted. Fewer bytes than `max_bytes` don't say that it is whole: [`BlocksRead::next`] says
    /// how far it came, and the caller goes on there.
    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead>;

    /// The blocks at `heights` (ascending, without repeats, else [`crate::StoreError::Invalid`]), under the same limits of bytes and
    /// time: the first of them, and the caller goes on with the others. An absent one, wherever it stands in the list, is
    /// [`crate::StoreError::Missing`].
    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>>;

    /// Height, id and parent's id of the canonical block at `height`.
    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>>;

    /// The height of the canonical block with this id.
    async fn find_block(&self, id: BlockId) -> Result<Option<Height>>;

    /// The canonical place of a transaction; the first one where an id stands at several.
    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>>;

    /// The canonical places of a transaction in `range`, ascending; at most `limit`. A snapshot that wraps another one may know the first place alone.
    async fn places_of_tx(&self, id: TxId, range: HeightRange, limit: usize) -> Result<Vec<TxPlace>> {
        let first = self.find_tx(id).await?.filter(|place| range.contains(place.height));
        Ok(first.into_iter().take(limit).collect())
    }

    /// The canonical places in `range` of the transactions that hold the EVM transaction of this hash, ascending; at most [`MAX_EVM_PLACES`].
    /// `None`: this store has no lookup of such hashes, and the block's log terms find it. A lookup whose transaction is gone is passed over, so
    /// an empty list is no proof that there is none.
    async fn find_evm(&self, _evm_hash: [u8; 32], _range: HeightRange) -> Result<Option<Vec<TxPlace>>> {
        Ok(None)
    }

    /// Up to `limit` heights in `range` (and within the head's range), ascending, whose blocks may hold matching logs:
    /// no block that has a match is left out; a block without one may be among them. Fewer than `limit`: there are no more.
    ///
    /// The answer accounts for every height of [`LogQuery::accounted`] (law 2): one without a block is [`crate::StoreError::hole`], whatever
    /// the index says of it. Where an index answers, and the range is wide, a backend may go by a count of its rows some minutes ago.
    async fn log_candidates(&self, range: HeightRange, query: &LogQuery, limit: usize)
    -> Result<Vec<Height>>;

    /// Up to `limit` entries of the reorg log with an id above `after_id`, ascending.
    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>>;

    /// A block that a reorg took away, whether its rows have been moved already or not. `None` once it was pruned.
    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>>;

    /// Every checkpoint, by service name. That of [`crate::RAW_INGESTER`] is the tip; there is none before the first block.
    async fn checkpoints(&self) -> Result<Vec<Checkpoint>>;

    /// The raw leases, by first height: those that the head has not passed whole.
    async fn raw_leases(&self) -> Result<Vec<RawLease>>;

    /// What the store takes. May walk tables: for people, not for requests.
    async fn sizes(&self) -> Result<StoreSizes>;

    /// For audits: one fingerprint for each height in `range` (within the head's range) that has index entries, ascending.
    /// Made in one pass over the index, however wide the range; call it with at most a million heights.
    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>>;
}

/// All index entries of one height, as a count and an order-independent sum: equal for equal sets of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexFingerprint {
    /// The height.
    pub height: Height,
    /// How many entries it has, over all kinds.
    pub entries: u64,
    /// The wrapping sum of [`IndexFingerprint::entry_hash`] over them.
    pub sum: u64,
}

impl IndexFingerprint {
    /// The fingerprint of a height without entries.
    pub fn empty(height: Height) -> Self {
        IndexFingerprint { height, entries: 0, sum: 0 }
    }

    /// Adds one entry; `tx_index` is 0 for kinds other than transactions.
    pub fn add(&mut self, kind: crate::runs::RunKind, key: IndexKey, tx_index: u32) {
        self.entries += 1;
        self.sum = self.sum.wrapping_add(Self::entry_hash(kind, key, tx_index));
    }

    /// A well-mixed hash of one entry (the finaliser of SplitMix64 over its parts).
    pub fn entry_hash(kind: crate::runs::RunKind, key: IndexKey, tx_index: u32) -> u64 {
        let mix = |mut z: u64| {
            z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        mix(mix(mix(kind as u64) ^ key) ^ u64::from(tx_index))
    }
}
