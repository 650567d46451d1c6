//! The one shape of every answer: `data`, `page` for lists, `meta`.

use cairn_core::BlockFacts;
use cairn_store::derived::QuarantinedBlock;
use serde::Serialize;
use utoipa::ToSchema;

use super::words::{Hash, Num, rfc3339};

/// One thing.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Answer<T> {
    /// What was asked for.
    pub data: T,
    pub meta: Meta,
}

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// The rows. There may be fewer than `limit`, even none, though there are more: `page.next` decides.
    pub data: Vec<T>,
    pub page: PageInfo,
    pub meta: Meta,
}

/// Where a list goes on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PageInfo {
    /// The cursor of the next page; null at the end.
    pub next: Option<String>,
    /// Of lists that grow at their end (in the chain's order, ascending): the cursor after the last row of this page, also where `next` is
    /// null. Rows that come later are found with it. Else null.
    pub resume: Option<String>,
    /// The most rows of a page.
    pub limit: u32,
}

/// How far the data goes, and who made it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Meta {
    /// The chain.
    pub chain_id: Num,
    /// The newest block that the answer counts in: where the slowest of `required_workers` stands; without any, the newest stored
    /// block. Null while there is none.
    pub data_watermark: Option<BlockStamp>,
    /// The height up to which nothing is undone any more. While blocks are being caught up newer ones are final too. Null while there is none.
    pub finalized_height: Option<Num>,
    /// The first stored height, where that is not the chain's first, 0: everything is counted from there. Balances, holders, owners, items and statistics are then
    /// what came and went since: who held something before and gave it away has a balance below 0 (`below_zero`). Null where the
    /// archive has the chain's first block, and while it is empty.
    pub counts_from_height: Option<Num>,
    /// The contracts whose `Deposit` and `Withdrawal` events balances count, as WETH's have to be; `*` stands for every contract. The balances of any other
    /// token that wraps the native one lack what was wrapped and unwrapped. Null where no balances of fungible tokens are behind the answer.
    pub wrapped_tokens: Option<Vec<String>>,
    /// The workers whose data the answer was made of.
    pub required_workers: Vec<&'static str>,
    /// Workers whose data is shown beside, each up to its own height: what they would say of a block above it is null. They hold nothing back. Empty where
    /// nothing is shown beside. What nodes were asked isn't named here: it says itself at which height.
    pub beside: Vec<BesideWorker>,
    /// Blocks up to the watermark that one of these workers, or one that they read from, could not process and passed over: what the answer says
    /// is not whole there. The lowest 100; empty almost always.
    pub incomplete: Vec<IncompleteBlock>,
    /// How many such blocks there are, those that aren't named included.
    pub incomplete_count: Num,
}

/// A worker whose data is shown beside what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct BesideWorker {
    pub worker: &'static str,
    /// The last block that it has done, with all before it.
    pub height: Num,
}

/// A block that a worker could not process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct IncompleteBlock {
    pub worker: String,
    pub height: Num,
}

impl IncompleteBlock {
    pub(crate) fn of(block: QuarantinedBlock) -> IncompleteBlock {
        IncompleteBlock { worker: block.service, height: Num(block.height.get()) }
    }
}

/// A block with its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct BlockStamp {
    pub height: Num,
    pub id: Hash,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
}

impl BlockStamp {
    pub(crate) fn of(facts: &BlockFacts) -> BlockStamp {
        BlockStamp {
            height: Num(facts.height.get()),
            id: Hash::of(facts.id.as_bytes()),
            timestamp_ms: Num(facts.timestamp_ms),
            timestamp: rfc3339(facts.timestamp_ms),
        }
    }
}
