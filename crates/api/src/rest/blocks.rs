//! Blocks, out of the raw store; and the transactions of one, out of `evm_transactions`, or on Flow out of the raw store too.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_core::{BlockRef, Height, HeightRange, Parts, StoredBlock};
use cairn_evm::BlockView;
use cairn_store::StoreError;
use cairn_store::derived::Value;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::answer::{Answer, Page, PageInfo};
use super::cache::IfFinal;
use super::chain::RestChain;
use super::cursor::Binding;
use super::flow::{self, block::FlowBlock};
use super::list::{self, List, Walk, lost_to_a_reorg, reorged};
use super::params::{BlockName, ListQuery, NoParams, Order, Params, Place};
use super::problem::Problem;
use super::transactions::TransactionRow;
use super::view::View;
use super::words::{Address, Amount, Data, Hash, Num, rfc3339};

/// A block.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Block {
    pub height: Num,
    pub id: Hash,
    pub parent_id: Hash,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    pub transaction_count: Num,
    pub log_count: Num,
    /// Of an EVM chain's block; else null.
    pub evm: Option<EvmHeader>,
    /// Of a Flow block; else null.
    pub flow: Option<FlowBlock>,
}

/// What an EVM block's header says beside.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EvmHeader {
    /// Who is paid for the block.
    pub miner: Address,
    pub gas_limit: Num,
    pub gas_used: Num,
    /// Wei per gas; null before London.
    pub base_fee_per_gas: Option<Amount>,
    /// Null before Cancun.
    pub blob_gas_used: Option<Num>,
    /// Null before Cancun.
    pub excess_blob_gas: Option<Num>,
    pub difficulty: Amount,
    pub extra_data: Data,
    pub state_root: Hash,
    pub transactions_root: Hash,
    pub receipts_root: Hash,
}

impl Block {
    /// Of a stored block with its header.
    pub(crate) fn of(chain: RestChain, stored: StoredBlock) -> Result<Block, Problem> {
        let facts = stored.facts;
        let (evm, flow) = match chain {
            RestChain::Evm => (Some(EvmHeader::of(stored)?), None),
            RestChain::Flow(_) => (None, Some(FlowBlock::of(&stored)?)),
        };
        Ok(Block {
            height: Num(facts.height.get()),
            id: Hash::of(facts.id.as_bytes()),
            parent_id: Hash::of(facts.parent_id.as_bytes()),
            timestamp_ms: Num(facts.timestamp_ms),
            timestamp: rfc3339(facts.timestamp_ms),
            transaction_count: Num(facts.tx_count.into()),
            log_count: Num(facts.log_count.into()),
            evm,
            flow,
        })
    }
}

impl EvmHeader {
    fn of(stored: StoredBlock) -> Result<EvmHeader, Problem> {
        let view = BlockView::decode(stored, None)?;
        let header = view.header()?;
        Ok(EvmHeader {
            miner: Address::of(header.beneficiary.as_slice()),
            gas_limit: Num(header.gas_limit),
            gas_used: Num(header.gas_used),
            base_fee_per_gas: header.base_fee_per_gas.map(Amount::of),
            blob_gas_used: header.blob_gas_used.map(Num),
            excess_blob_gas: header.excess_blob_gas.map(Num),
            difficulty: Amount(header.difficulty),
            extra_data: Data(header.extra_data.0.clone()),
            state_root: Hash::of(header.state_root.as_slice()),
            transactions_root: Hash::of(header.transactions_root.as_slice()),
            receipts_root: Hash::of(header.receipts_root.as_slice()),
        })
    }
}

/// The stored block that a path names.
pub(crate) async fn find(view: &View, name: &str) -> Result<BlockRef, Problem> {
    match name.parse()? {
        BlockName::Height(height) => at(view, height).await,
        BlockName::Id(id) => match view.chain().find_block(id).await? {
            Some(height) => Ok(BlockRef { height, id }),
            None => Err(Problem::not_found(format!("the block {id}"))),
        },
    }
}

/// The stored block at a height.
pub(crate) async fn at(view: &View, height: Height) -> Result<BlockRef, Problem> {
    let head = view.head();
    match (head.first, head.tip) {
        (Some(first), Some(_)) if height < first => Err(Problem::below_archive(height, first)),
        (_, tip) if tip.is_none_or(|tip| height > tip.height) => {
            Err(Problem::above_head(height, tip.map(|tip| tip.height)))
        }
        _ => match view.chain().linked_ref(height).await? {
            Some(linked) => Ok(linked.block),
            // Chains that skip heights.
            None => Err(Problem::not_found(format!("a block at height {height}"))),
        },
    }
}

/// Blocks, newest first.
#[utoipa::path(
    get,
    path = "/v1/blocks",
    tag = "blocks",
    params(ListQuery),
    responses((status = 200, description = "A page of blocks", body = Page<Block>))
)]
pub(crate) async fn list_blocks(
    State(api): State<Arc<Api>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<Block>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let view = View::raw(&api).await?;
    let binding = Binding::new("blocks", &[paging.order_word()]);
    let mut range = view.head().range();
    let mut anchor = None;
    if let Some(text) = &paging.cursor {
        let cursor = view.cursor_key().open(binding, text)?;
        let place = match &cursor.place[..] {
            [place] => place.as_height(),
            _ => None,
        };
        let place = place.ok_or_else(|| Problem::cursor("the cursor is of another version of this list"))?;
        if let Some(lost) = lost_to_a_reorg(&view, &cursor).await? {
            let from = if paging.descending { place.min(lost.height.next()) } else { lost.height };
            let next = list::seal(&view, binding, Some(lost), vec![Value::height(from)]);
            return Err(reorged(lost, Some(next)));
        }
        anchor = cursor.anchor;
        range = if paging.descending {
            range.intersect(HeightRange::new(Height::ZERO, place))
        } else {
            range.intersect(HeightRange::new(place.next(), Height(u64::MAX)))
        };
    }
    let limit = u64::from(paging.limit);
    // Heights may be skipped on some chains: a page of so many heights is then short.
    let page = if paging.descending {
        HeightRange::new(range.end().saturating_sub(limit).max(range.start()), range.end())
    } else {
        HeightRange::new(range.start(), Height(range.start().get().saturating_add(limit)).min(range.end()))
    };
    let read = view.chain().blocks(page, Parts::HEADER, u64::MAX).await?;
    if read.next < page.end() {
        return Err(StoreError::Busy(format!("time was over at block {} of {page}", read.next)).into());
    }
    let mut blocks = read.blocks;
    if paging.descending {
        blocks.reverse();
    }
    let has_more = if paging.descending { page.start() > range.start() } else { page.end() < range.end() };
    let seal = |place: Height| {
        let newest = blocks.iter().map(|block| block.facts.block_ref()).max_by_key(|block| block.height);
        let anchor = match (anchor, newest) {
            (Some(before), Some(newest)) if newest.height <= before.height => Some(before),
            (before, newest) => newest.or(before),
        };
        list::seal(&view, binding, anchor, vec![Value::height(place)])
    };
    let next = match (has_more, paging.descending) {
        (true, true) => Some(seal(page.start())),
        (true, false) => Some(seal(page.end().saturating_sub(1))),
        (false, _) => None,
    };
    let resume = match (&next, page.last()) {
        _ if paging.descending => None,
        (Some(next), _) => Some(next.clone()),
        (None, Some(last)) => Some(seal(last)),
        (None, None) => paging.cursor.clone(),
    };
    let data =
        blocks.into_iter().map(|stored| Block::of(view.kind(), stored)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: PageInfo { next, resume, limit: paging.limit }, meta: view.meta() }))
}

/// One block, by height or id.
#[utoipa::path(
    get,
    path = "/v1/blocks/{id}",
    tag = "blocks",
    params(("id" = String, Path, pattern = "^([0-9]{1,19}|(0[xX])?[0-9a-fA-F]{64})$", description = "A height in decimal digits, or an id of 64 hex digits")),
    responses((status = 200, description = "The block", body = Answer<Block>))
)]
pub(crate) async fn get_block(
    State(api): State<Arc<Api>>,
    Place(name): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<(IfFinal, Json<Answer<Block>>), Problem> {
    let view = View::raw(&api).await?;
    let block = find(&view, &name).await?;
    let parts = match view.kind() {
        RestChain::Evm => Parts::HEADER,
        RestChain::Flow(_) => Parts::HEADER | Parts::EXTRAS,
    };
    let stored = view.chain().block(block.height, parts).await?;
    let stored =
        stored.ok_or_else(|| Problem::internal(format!("block {block} is listed, but not stored")))?;
    let answer = Answer { data: Block::of(view.kind(), stored)?, meta: view.meta() };
    Ok((view.if_final(block.height), Json(answer)))
}

/// The transactions of a block, in their order.
#[utoipa::path(
    get,
    path = "/v1/blocks/{id}/transactions",
    tag = "blocks",
    params(
        ("id" = String, Path, pattern = "^([0-9]{1,19}|(0[xX])?[0-9a-fA-F]{64})$", description = "A height in decimal digits, or an id of 64 hex digits"),
        ListQuery
    ),
    responses((status = 200, description = "A page of transactions", body = Page<TransactionRow>))
)]
pub(crate) async fn list_block_transactions(
    State(api): State<Arc<Api>>,
    Place(name): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<TransactionRow>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    name.parse::<BlockName>()?;
    if let RestChain::Flow(_) = api.chain() {
        let view = View::raw(&api).await?;
        let block = find(&view, &name).await?;
        let binding = Binding::new("block transactions", &[&block.to_string(), paging.order_word()]);
        return flow::list::page(&view, HeightRange::one(block.height), binding, &paging).await;
    }
    let mut view = View::open(&api, &["evm_transactions"], &[]).await?;
    let block = find(&view, &name).await?;
    view.reaches(block.height)?;
    view.is_of(&api, block.height).await?;
    let binding = Binding::new("block transactions", &[&block.to_string(), paging.order_word()]);
    let walk = Walk::new("evm_transactions", Some("by_place"), vec![Value::height(block.height)]);
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    TransactionRow::page(&view, found, &paging)
}
