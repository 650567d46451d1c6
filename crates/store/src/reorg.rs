//! The reorg log: append-only, gapless, digest-chained.

use cairn_core::{BlockId, BlockRef, Height};
use sha2::{Digest, Sha256};

/// A block that a reorg took from the chain. Its rows live on in the orphan tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrphanRef {
    /// The block.
    pub block: BlockRef,
    /// Its time, in milliseconds since 1970.
    pub timestamp_ms: u64,
}

/// One reorg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReorgEntry {
    /// Gapless, from 1, assigned under the head lock.
    pub id: u64,
    /// The chain of digests: of this entry's content and the digest before it.
    pub digest: [u8; 32],
    /// The store that it happened in.
    pub store_uuid: [u8; 16],
    /// The last block that both forks share.
    pub common: BlockRef,
    /// What was taken away, lowest first; never empty.
    pub orphans: Vec<OrphanRef>,
    /// When it was decided, by the ingester's clock, in milliseconds since 1970. Not part of the digest.
    pub decided_at_ms: u64,
}

impl ReorgEntry {
    /// Makes the entry that follows one with digest `previous`.
    pub fn chain(
        id: u64,
        previous: &[u8; 32],
        store_uuid: [u8; 16],
        common: BlockRef,
        orphans: Vec<OrphanRef>,
        decided_at_ms: u64,
    ) -> Self {
        let digest = digest(id, previous, &store_uuid, &common, &orphans);
        ReorgEntry { id, digest, store_uuid, common, orphans, decided_at_ms }
    }

    /// Whether the digest is that of the content after `previous`.
    pub fn follows(&self, previous: &[u8; 32]) -> bool {
        self.digest == digest(self.id, previous, &self.store_uuid, &self.common, &self.orphans)
    }

    /// The first height that it took away.
    pub fn first_orphan(&self) -> Height {
        self.common.height.next()
    }

    /// The orphan with this id.
    pub fn orphan(&self, id: BlockId) -> Option<&OrphanRef> {
        self.orphans.iter().find(|orphan| orphan.block.id == id)
    }
}

fn digest(
    id: u64,
    previous: &[u8; 32],
    uuid: &[u8; 16],
    common: &BlockRef,
    orphans: &[OrphanRef],
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(previous);
    hash.update(id.to_be_bytes());
    hash.update(uuid);
    hash.update(common.height.get().to_be_bytes());
    hash.update(common.id.as_bytes());
    hash.update((orphans.len() as u64).to_be_bytes());
    for orphan in orphans {
        hash.update(orphan.block.height.get().to_be_bytes());
        hash.update(orphan.block.id.as_bytes());
        hash.update(orphan.timestamp_ms.to_be_bytes());
    }
    hash.finalize().into()
}
