//! Transactions: lists out of `evm_transactions`, or on Flow out of the raw store; one by its id out of the raw store, by id → height → block.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_core::{Height, HeightRange, Parts, StoredBlock, TxId, TxStatus};
use cairn_evm::{BlockView, DecodedBlock, DecodedLog, DecodedTx, EvmError};
use cairn_flow::{DecodedEvent, Network};
use cairn_store::TxPlace;
use cairn_store::derived::{Row, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::{Answer, BlockStamp, Page, PageInfo};
use super::beside::{self, TouchedContract};
use super::blocks;
use super::cache::IfFinal;
use super::chain::RestChain;
use super::cursor::Binding;
use super::fields::Fields;
use super::flow::{
    self,
    transaction::{CadenceEvent, FlowTransaction, FlowTx, Repeats},
};
use super::list::{self, List, Rows, Walk, lost_to_a_reorg, reorged};
use super::logs::Log;
use super::params::{self, ListQuery, Order, Paging, Params, Place};
use super::problem::Problem;
use super::transfers::Transfer;
use super::view::View;
use super::words::{Address, Amount, Data, Hash, Num, rfc3339};

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TransactionStatus {
    Ok,
    Failed,
    /// The chain doesn't say: before Byzantium.
    Unknown,
}

impl From<TxStatus> for TransactionStatus {
    fn from(status: TxStatus) -> TransactionStatus {
        match status {
            TxStatus::Ok => TransactionStatus::Ok,
            TxStatus::Failed => TransactionStatus::Failed,
            TxStatus::Unknown => TransactionStatus::Unknown,
        }
    }
}

impl TransactionStatus {
    fn of(word: &str) -> Result<TransactionStatus, Problem> {
        match word {
            "ok" => Ok(TransactionStatus::Ok),
            "failed" => Ok(TransactionStatus::Failed),
            "unknown" => Ok(TransactionStatus::Unknown),
            word => Err(Problem::internal(format!("a transaction's status is {word:?}"))),
        }
    }
}

/// A transaction in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransactionRow {
    pub block_height: Num,
    pub id: Hash,
    pub transaction_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// The EIP-2718 type; null where it isn't known.
    #[serde(rename = "type")]
    pub tx_type: Option<Num>,
    pub status: TransactionStatus,
    /// Whether the chain itself made it: on Flow its id stands in more than one block.
    pub is_system: bool,
    /// On Flow who pays. Null where nobody says.
    pub from: Option<Address>,
    /// Null where it creates a contract, or where it isn't known.
    pub to: Option<Address>,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    /// On Flow the sequence number of the proposer's key.
    pub nonce: Option<Num>,
    /// Wei.
    pub value: Option<Amount>,
    /// The first four bytes of its input.
    pub method: Option<Data>,
    pub input_length_bytes: Option<Num>,
    /// On Flow the limit of its computation.
    pub gas_limit: Option<Num>,
    /// On Flow its computation.
    pub gas_used: Num,
    /// Wei per gas that were paid; null where nobody says.
    pub effective_gas_price: Option<Amount>,
    pub event_count: Num,
}

impl TransactionRow {
    pub(crate) fn of(view: &View, row: &Row) -> Result<TransactionRow, Problem> {
        let fields = Fields::new(view.table("evm_transactions")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        let nonce = fields.opt_amount("nonce")?.map(|nonce| {
            u64::try_from(nonce.0)
                .map(Num)
                .map_err(|_| Problem::internal("a transaction's nonce has more than 64 bits"))
        });
        Ok(TransactionRow {
            block_height: fields.num("block_height")?,
            id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            tx_type: fields.opt_num("tx_type")?,
            status: TransactionStatus::of(&fields.text("status")?)?,
            is_system: false,
            from: fields.opt_address("from_address")?,
            to: fields.opt_address("to_address")?,
            contract_address: fields.opt_address("contract_address")?,
            nonce: nonce.transpose()?,
            value: fields.opt_amount("value")?,
            method: fields.opt_data("method")?,
            input_length_bytes: fields.opt_num("input_length_bytes")?,
            gas_limit: fields.opt_num("gas_limit")?,
            gas_used: fields.num("gas_used")?,
            effective_gas_price: fields.opt_amount("effective_gas_price")?,
            event_count: fields.num("log_count")?,
        })
    }

    /// A page of rows of `evm_transactions`.
    pub(crate) fn page(view: &View, found: Rows, paging: &Paging) -> Result<Json<Page<Self>>, Problem> {
        let data = found.rows.iter().map(|(_, row)| Self::of(view, row)).collect::<Result<Vec<_>, _>>()?;
        Ok(Json(Page { data, page: found.page(paging), meta: view.meta() }))
    }
}

/// A transaction with everything that its receipt says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Transaction {
    pub id: Hash,
    pub block: BlockStamp,
    pub transaction_index: u32,
    /// The EIP-2718 type; null where it isn't known.
    #[serde(rename = "type")]
    pub tx_type: Option<Num>,
    pub status: TransactionStatus,
    /// Whether the chain put it in outside the header's roots.
    pub is_injected: bool,
    /// On Flow who pays. Null where nobody says.
    pub from: Option<Address>,
    /// Null where it creates a contract, or where it isn't known.
    pub to: Option<Address>,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    pub nonce: Option<Num>,
    /// Wei.
    pub value: Option<Amount>,
    pub input: Option<Data>,
    /// On Flow the limit of its computation.
    pub gas_limit: Option<Num>,
    /// On Flow its computation.
    pub gas_used: Num,
    /// Null on Flow.
    pub cumulative_gas_used: Option<Num>,
    /// Wei per gas that it offers, where it offers one price.
    pub gas_price: Option<Amount>,
    pub max_fee_per_gas: Option<Amount>,
    pub max_priority_fee_per_gas: Option<Amount>,
    pub max_fee_per_blob_gas: Option<Amount>,
    /// Wei per gas that were paid; null where nobody says.
    pub effective_gas_price: Option<Amount>,
    pub blob_gas_used: Option<Num>,
    /// Wei per blob gas, where the node said.
    pub blob_gas_price: Option<Amount>,
    /// Wei for the data on the chain below, where the node said.
    pub l1_fee: Option<Amount>,
    /// All that was paid for it, in the chain's smallest unit: wei; on Flow 10^-8 FLOW, and 0 for what the chain itself made. Null where it isn't
    /// known, and where `tx_metrics_worker` is not enabled or has not done its block.
    pub fee: Option<Amount>,
    /// The first 200 of the contracts that it touched. Null where `tx_contracts_worker` is not enabled or has not done its block.
    #[schema(max_items = 200)]
    pub contracts: Option<Vec<TouchedContract>>,
    /// On Flow what kinds of things it did, such as `evm`, `ft`, `account-created`. Null on other chains, and where `contracts` is null.
    #[schema(max_items = 200)]
    pub tags: Option<Vec<String>>,
    pub event_count: Num,
    /// Of a Flow transaction; else null.
    pub flow: Option<FlowTransaction>,
    /// The first events, where they were asked for; else null.
    pub events: Option<Vec<Event>>,
    /// The cursor for `/events` where there are more of them.
    pub events_next: Option<String>,
}

/// An event: a log of an EVM chain, or an event of Cadence.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Event {
    Log(Log),
    Cadence(CadenceEvent),
}

impl Transaction {
    /// What every chain says of one, and nothing else.
    pub(crate) fn bare(
        id: TxId,
        block: BlockStamp,
        transaction_index: u32,
        status: TransactionStatus,
    ) -> Transaction {
        Transaction {
            id: Hash::of(id.as_bytes()),
            block,
            transaction_index,
            tx_type: None,
            status,
            is_injected: false,
            from: None,
            to: None,
            contract_address: None,
            nonce: None,
            value: None,
            input: None,
            gas_limit: None,
            gas_used: Num(0),
            cumulative_gas_used: None,
            gas_price: None,
            max_fee_per_gas: None,
            max_priority_fee_per_gas: None,
            max_fee_per_blob_gas: None,
            effective_gas_price: None,
            blob_gas_used: None,
            blob_gas_price: None,
            l1_fee: None,
            fee: None,
            contracts: None,
            tags: None,
            event_count: Num(0),
            flow: None,
            events: None,
            events_next: None,
        }
    }

    fn of(stored: &StoredBlock, tx: &DecodedTx) -> Transaction {
        let receipt = &tx.receipt;
        let address = |address: alloy_primitives::Address| Address::of(address.as_slice());
        Transaction {
            tx_type: tx.ty.map(Num),
            is_injected: tx.is_injected,
            from: tx.sender.map(address),
            to: tx.to.address().map(address),
            contract_address: tx.created_contract().map(address),
            nonce: tx.nonce.map(Num),
            value: tx.value.map(Amount),
            input: tx.input.clone().map(Data),
            gas_limit: tx.gas_limit.map(Num),
            gas_used: Num(receipt.gas_used),
            cumulative_gas_used: (!receipt.is_missing).then_some(Num(receipt.cumulative_gas_used)),
            gas_price: tx.gas_price.map(Amount::of),
            max_fee_per_gas: tx.max_fee_per_gas.map(Amount::of),
            max_priority_fee_per_gas: tx.max_priority_fee_per_gas.map(Amount::of),
            max_fee_per_blob_gas: tx.max_fee_per_blob_gas.map(Amount::of),
            effective_gas_price: receipt.effective_gas_price.map(Amount::of),
            blob_gas_used: receipt.blob_gas_used.map(Num),
            blob_gas_price: receipt.blob_gas_price.map(Amount::of),
            l1_fee: receipt.l1_fee.map(Amount),
            event_count: Num(receipt.logs.len() as u64),
            ..Transaction::bare(tx.id, BlockStamp::of(&stored.facts), tx.index, tx.status.into())
        }
    }
}

/// The bytes of a transaction and of its receipt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RawTransaction {
    pub id: Hash,
    pub block: BlockStamp,
    pub transaction_index: u32,
    /// EIP-2718 bytes; null for one that the chain put in outside the header's roots, and for one of an unknown type whose bytes the node
    /// did not give. On Flow the message `Transaction`.
    pub transaction: Option<Data>,
    /// EIP-2718 bytes with the bloom; null where the receipts root doesn't cover it, or the node has none. On Flow the message `TransactionResultResponse`.
    pub receipt: Option<Data>,
}

/// Of one transaction.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionQuery {
    /// Whether to give the first events too.
    pub events: Option<bool>,
    /// The block that is meant, where an id stands in more than one.
    #[param(pattern = "^[0-9]{1,19}$")]
    pub height: Option<String>,
    /// The transaction's place in its block, where an id stands there more than once. By default the first one.
    pub index: Option<u32>,
}

/// Of one transaction's bytes.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeightQuery {
    /// The block that is meant, where an id stands in more than one.
    #[param(pattern = "^[0-9]{1,19}$")]
    pub height: Option<String>,
    /// The transaction's place in its block, where an id stands there more than once. By default the first one.
    pub index: Option<u32>,
}

/// Of lists that belong to one transaction.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfTransactionQuery {
    /// The block that is meant, where an id stands in more than one.
    #[param(pattern = "^[0-9]{1,19}$")]
    pub height: Option<String>,
    /// The transaction's place in its block, where an id stands there more than once. By default the first one.
    pub index: Option<u32>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
}

/// Where a transaction stands.
struct Located {
    /// Its id: of the Flow transaction where an EVM hash was asked for.
    id: TxId,
    place: TxPlace,
}

/// Which place of an id is meant.
#[derive(Clone, Copy)]
struct Meant {
    height: Option<Height>,
    index: Option<u32>,
}

impl Meant {
    fn of(height: Option<&str>, index: Option<u32>) -> Result<Meant, Problem> {
        let decimal = |text| params::decimal("height", text, params::MAX_HEIGHT_DIGITS).map(Height);
        let height = height.map(decimal).transpose()?;
        Ok(Meant { height, index })
    }
}

/// Finds a transaction by its id, or on Flow by the hash of an EVM transaction in it: that hash's lookup comes first, then the id, then the log terms. Where an id stands in more than one block, the newest block's
/// counts where that has it, else the first one's; or the place that is meant.
async fn find(view: &View, id: TxId, meant: Meant) -> Result<Located, Problem> {
    let Meant { height, index } = meant;
    let unknown = || {
        let at = index.map(|index| format!(" at place {index}")).unwrap_or_default();
        let of = height.map(|height| format!(" in block {height}")).unwrap_or_default();
        Problem::not_found(format!("the transaction {id}{at}{of}"))
    };
    if let Some(height) = height {
        blocks::at(view, height).await?;
    }
    let range = height.map_or(view.head().range(), HeightRange::one);
    let of_evm = |(place, id): (TxPlace, TxId)| Located { id, place };
    if let RestChain::Flow(network) = view.kind()
        && let Some(found) = flow::transaction::look_up_evm(view, network, id, range).await?
    {
        return Ok(of_evm(found));
    }
    if let Some(first) = view.chain().find_tx(id).await? {
        let default = match (height, view.kind()) {
            (Some(height), _) => {
                flow::transaction::in_block(view, id, height, index).await?.ok_or_else(unknown)?
            }
            (None, RestChain::Flow(_)) => flow::transaction::newest(view, id, first).await?,
            (None, RestChain::Evm) => first,
        };
        let place = match index {
            Some(index) if index != default.index => {
                let found = flow::transaction::in_block(view, id, default.height, Some(index)).await?;
                found.ok_or_else(unknown)?
            }
            _ => default,
        };
        return Ok(Located { id, place });
    }
    if let RestChain::Flow(network) = view.kind()
        && let Some(found) = flow::transaction::search_evm(view, network, id, range).await?
    {
        return Ok(of_evm(found));
    }
    Err(unknown())
}

/// A transaction, read by its chain's codec.
enum Read {
    Evm(Box<DecodedTx>),
    Flow(Network, Box<FlowTx>),
}

impl Read {
    fn answer(&self, stored: &StoredBlock) -> Transaction {
        match self {
            Read::Evm(tx) => Transaction::of(stored, tx),
            Read::Flow(network, tx) => tx.transaction(*network, &stored.facts),
        }
    }

    /// Its events with their places, from a place on, at most so many; and whether there are more.
    fn events(&self, stored: &StoredBlock, from: u32, limit: usize) -> (Vec<(u32, Event)>, bool) {
        match self {
            Read::Evm(tx) => {
                let rest = tx.receipt.logs.iter().filter(|log| log.log_index >= from);
                let event =
                    |log: &DecodedLog| (log.log_index, Event::Log(Log::decoded(&stored.facts, tx, log)));
                (rest.clone().take(limit).map(event).collect(), rest.count() > limit)
            }
            Read::Flow(_, tx) => {
                let rest = tx.tx.events.iter().filter(|event| event.index >= from);
                let event =
                    |event: &DecodedEvent| (event.index, Event::Cadence(tx.event(&stored.facts, event)));
                (rest.clone().take(limit).map(event).collect(), rest.count() > limit)
            }
        }
    }
}

async fn read(view: &View, height: Height, parts: Parts) -> Result<StoredBlock, Problem> {
    let stored = view.chain().block(height, parts).await?;
    stored.ok_or_else(|| Problem::internal(format!("block {height} is looked up, but not stored")))
}

async fn decode(view: &View, place: TxPlace) -> Result<(StoredBlock, Read), Problem> {
    if let RestChain::Flow(network) = view.kind() {
        let stored = read(view, place.height, flow::transaction::PARTS).await?;
        let (stored, tx) = flow::transaction::read(stored, place.index).await?;
        return Ok((stored, Read::Flow(network, Box::new(tx))));
    }
    let parts = Parts::HEADER | Parts::TRANSACTIONS | Parts::BODY | Parts::RECEIPTS | Parts::EXTRAS;
    let stored = read(view, place.height, parts).await?;
    let bytes = stored.body.len() + stored.receipts.len();
    let task = move || {
        let mut block = DecodedBlock::decode(&stored)?;
        let at = place.index as usize;
        if at >= block.transactions.len() {
            return Err(Problem::internal(format!("block {} has no transaction {at}", place.height)));
        }
        Ok((stored, Read::Evm(Box::new(block.transactions.swap_remove(at)))))
    };
    // Large blocks are decoded off the async threads.
    if bytes < 64 << 10 {
        return task();
    }
    tokio::task::spawn_blocking(task).await.map_err(Problem::internal)?
}

/// Transactions, newest first.
#[utoipa::path(
    get,
    path = "/v1/transactions",
    tag = "transactions",
    params(ListQuery),
    responses((status = 200, description = "A page of transactions", body = Page<TransactionRow>))
)]
pub(crate) async fn list_transactions(
    State(api): State<Arc<Api>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<TransactionRow>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let binding = Binding::new("transactions", &[paging.order_word()]);
    if let RestChain::Flow(_) = api.chain() {
        let view = View::raw(&api).await?;
        return flow::list::page(&view, view.head().range(), binding, &paging).await;
    }
    let view = View::open(&api, &["evm_transactions"], &[]).await?;
    let walk = Walk::new("evm_transactions", Some("by_place"), Vec::new());
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    TransactionRow::page(&view, found, &paging)
}

/// One transaction, by its id, or on Flow by the hash of an EVM transaction in it. An id that stands in more than one block is answered for the newest
/// block where that has it, else for the first one; `flow.repeats` says so, and `height` asks for another block's.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), TransactionQuery),
    responses((status = 200, description = "The transaction", body = Answer<Transaction>))
)]
pub(crate) async fn get_transaction(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<TransactionQuery>,
) -> Result<(IfFinal, Json<Answer<Transaction>>), Problem> {
    let id = params::tx_id(&id)?;
    let meant = Meant::of(query.height.as_deref(), query.index)?;
    let mut view = View::of_one_block(&api, &beside::TABLES).await?;
    let located = find(&view, id, meant).await?;
    view.keep_those_at(&api, located.place.height).await?;
    let (stored, tx) = decode(&view, located.place).await?;
    let mut data = tx.answer(&stored);
    if let Some(flow) = &mut data.flow {
        flow.repeats = Repeats::of(&view, located.id, located.place.height, flow.is_system).await?;
        for evm in &mut flow.evm {
            evm.is_asked = located.id != id && evm.hash.0[..] == id.0[..];
        }
    }
    data.add_derived(&view, located.place, located.id).await?;
    if query.events == Some(true) {
        let limit = api.limits().max_page_rows;
        let paging = Paging { limit, cursor: None, descending: false };
        let (events, next) = events_page(&view, &stored, located.id, &tx, &paging).await?;
        (data.events, data.events_next) = (Some(events), next);
    }
    Ok((view.if_final(located.place.height), Json(Answer { data, meta: view.meta() })))
}

async fn events_page(
    view: &View,
    stored: &StoredBlock,
    id: TxId,
    tx: &Read,
    paging: &Paging,
) -> Result<(Vec<Event>, Option<String>), Problem> {
    let binding = Binding::new("events", &[&id.to_string()]);
    let mut from = 0;
    if let Some(text) = &paging.cursor {
        let cursor = view.cursor_key().open(binding, text)?;
        if let Some(lost) = lost_to_a_reorg(view, &cursor).await? {
            return Err(reorged(lost, None));
        }
        from = match cursor.place[..] {
            [Value::Int(place)] => u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1),
            _ => return Err(Problem::cursor("the cursor is of another version of this list")),
        };
    }
    let (shown, has_more) = tx.events(stored, from, paging.limit as usize);
    let next = match shown.last() {
        Some((place, _)) if has_more => {
            let place = vec![Value::uint((*place).into())];
            Some(list::seal(view, binding, Some(stored.facts.block_ref()), place))
        }
        _ => None,
    };
    Ok((shown.into_iter().map(|(_, event)| event).collect(), next))
}

/// The events of a transaction, in their order.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/events",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), OfTransactionQuery),
    responses((status = 200, description = "A page of events", body = Page<Event>))
)]
pub(crate) async fn list_transaction_events(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<OfTransactionQuery>,
) -> Result<Json<Page<Event>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, Order::Asc)?;
    let meant = Meant::of(query.height.as_deref(), query.index)?;
    let id = params::tx_id(&id)?;
    let view = View::raw(&api).await?;
    let located = find(&view, id, meant).await?;
    let (stored, tx) = decode(&view, located.place).await?;
    let (data, next) = events_page(&view, &stored, located.id, &tx, &paging).await?;
    Ok(Json(Page { data, page: PageInfo { next, resume: None, limit: paging.limit }, meta: view.meta() }))
}

/// The bytes of a transaction and its receipt: id → height → that block, nothing else is read.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/raw",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), HeightQuery),
    responses((status = 200, description = "The bytes", body = Answer<RawTransaction>))
)]
pub(crate) async fn get_raw_transaction(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<HeightQuery>,
) -> Result<(IfFinal, Json<Answer<RawTransaction>>), Problem> {
    let id = params::tx_id(&id)?;
    let meant = Meant::of(query.height.as_deref(), query.index)?;
    let view = View::raw(&api).await?;
    let Located { id, place } = find(&view, id, meant).await?;
    let parts = Parts::TRANSACTIONS | Parts::BODY | Parts::RECEIPTS | Parts::EXTRAS;
    let stored = read(&view, place.height, parts).await?;
    let block = BlockStamp::of(&stored.facts);
    let index = place.index as usize;
    let kind = view.kind();
    let task = move || -> Result<_, Problem> {
        if let RestChain::Flow(network) = kind {
            let (transaction, result) = flow::transaction::raw(network, stored, place.index)?;
            return Ok((Some(transaction), Some(result)));
        }
        let decoded = BlockView::decode(stored, None)?;
        let receipt = decoded.raw_receipt(index)?.map(Data);
        let in_body = index < decoded.listed_tx_count()?;
        let transaction = match in_body.then(|| decoded.raw_transaction(index)).transpose() {
            Ok(bytes) => bytes.map(Data),
            // The node gave no bytes of a transaction of an unknown type.
            Err(EvmError::BytesUnknown { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        Ok((transaction, receipt))
    };
    let (transaction, receipt) = tokio::task::spawn_blocking(task).await.map_err(Problem::internal)??;
    let id = Hash::of(id.as_bytes());
    let data = RawTransaction { id, block, transaction_index: place.index, transaction, receipt };
    Ok((view.if_final(place.height), Json(Answer { data, meta: view.meta() })))
}

/// The token transfers of a transaction, fungible tokens and NFTs, in their order.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/transfers",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), OfTransactionQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_transaction_transfers(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<OfTransactionQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, Order::Asc)?;
    let meant = Meant::of(query.height.as_deref(), query.index)?;
    let id = params::tx_id(&id)?;
    let mut view = View::open(&api, &["ft_transfers", "nft_transfers"], &[]).await?;
    let Located { id, place } = find(&view, id, meant).await?;
    view.reaches(place.height)?;
    view.is_of(&api, place.height).await?;
    let prefix = || beside::place_values(place, id);
    let walks = [Walk::new("ft_transfers", None, prefix()), Walk::new("nft_transfers", None, prefix())];
    let binding = Binding::new(
        "transaction transfers",
        &[&id.to_string(), &place.height.to_string(), &place.index.to_string()],
    );
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &walks).await?;
    Transfer::page(&view, found, &walks, None, &paging)
}
