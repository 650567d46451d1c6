//! What an ingester is told.

use cairn_core::Height;
use cairn_store::StoreInfo;

/// Settings of one ingester. All limits have units in their names.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// What a new store is made with; an existing one keeps its own uuid and must hold the same chain.
    pub info: StoreInfo,
    /// The first height of a new archive. An archive that exists goes on at its tip.
    pub start: Height,
    /// The last height to store; `None`: follow the head for ever.
    pub stop_inclusive: Option<Height>,
    /// End when the head has been reached once.
    pub exit_after_head: bool,
    /// `MAX_REORG_DEPTH`: a reorg of more blocks halts.
    pub max_reorg_depth_blocks: u64,
    /// Bytes of blocks in flight between source and store.
    pub budget_bytes: u64,
    /// A commit is made at the latest when this many bytes have come together.
    pub batch_bytes: u64,
    /// A commit is made at the latest when this many blocks have come together.
    pub batch_blocks: usize,
    /// How many fetches may be in flight at once; the source's own limits come on top.
    pub fetches_in_flight: usize,
    /// How long to wait at the head before asking again, in milliseconds. A hint of the source may end the wait early.
    pub poll_ms: u64,
    /// How many times in a row a node has to tell the same story, at least a poll apart, before a chain that is not longer than the
    /// stored one replaces it, or before the ingester halts because of it.
    pub confirmations: u32,
    /// How many nodes have to say that the first block of another fork is theirs before blocks are rolled back for it, or before the
    /// ingester halts because of it. 1: the node that announced it is enough.
    pub head_quorum: usize,
    /// Filling several ranges at once ahead of the head; `None`: in order only.
    pub fill: Option<FillOptions>,
    /// Seed of the jitter between retries.
    pub seed: u64,
}

impl IngestOptions {
    /// The defaults, for a store made with `info`.
    pub fn new(info: StoreInfo) -> Self {
        IngestOptions {
            info,
            start: Height::ZERO,
            stop_inclusive: None,
            exit_after_head: false,
            max_reorg_depth_blocks: 1_000,
            budget_bytes: 96 << 20,
            batch_bytes: 16 << 20,
            batch_blocks: 1_024,
            fetches_in_flight: 16,
            poll_ms: 1_000,
            confirmations: 3,
            head_quorum: 1,
            fill: None,
            seed: 0x5eed,
        }
    }
}

/// Settings of filling ahead of the head.
#[derive(Debug, Clone)]
pub struct FillOptions {
    /// How many ranges are filled at once.
    pub workers: usize,
    /// How many heights a range has; it is cut at multiples of this.
    pub range_heights: u64,
    /// How long a lease lives without a commit or a renewal, by the store's clock. It is renewed at a third of it while blocks are on their way;
    /// its holder stops by itself a tenth of it before it would expire, and 10 s at the most.
    pub lease_ttl_ms: u64,
    /// Who this process is, for people who look at leases. A process frees at its start what one of the same name left: those that may
    /// fill one store at once without being each other's successors have different names.
    pub owner: String,
}

impl Default for FillOptions {
    fn default() -> Self {
        FillOptions { workers: 4, range_heights: 1_000, lease_ttl_ms: 300_000, owner: "cairn-run".into() }
    }
}

impl FillOptions {
    /// How long before a lease would expire its holder stops by itself.
    pub(super) fn lease_margin_ms(&self) -> u64 {
        (self.lease_ttl_ms / 10).clamp(100, 10_000)
    }
}
