//! Transactions: lists out of `evm_transactions`; one by its id out of the raw store, by id → height → block.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_core::{Height, Parts, StoredBlock, TxId, TxStatus};
use cairn_evm::{BlockView, DecodedBlock, DecodedTx, Recipient};
use cairn_store::TxPlace;
use cairn_store::derived::{Row, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::{Answer, BlockStamp, Page, PageInfo};
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{self, List, Rows, Walk, lost_to_a_reorg, reorged};
use super::logs::Log;
use super::params::{self, ListQuery, NoParams, Order, PageQuery, Paging, Params, Place};
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
    /// Null where nobody says.
    pub from: Option<Address>,
    /// Null where it creates a contract, or where it isn't known.
    pub to: Option<Address>,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    pub nonce: Option<Num>,
    /// Wei.
    pub value: Option<Amount>,
    /// The first four bytes of its input.
    pub method: Option<Data>,
    pub input_length_bytes: Option<Num>,
    pub gas_limit: Option<Num>,
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
    /// Null where nobody says.
    pub from: Option<Address>,
    /// Null where it creates a contract, or where it isn't known.
    pub to: Option<Address>,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    pub nonce: Option<Num>,
    /// Wei.
    pub value: Option<Amount>,
    pub input: Option<Data>,
    pub gas_limit: Option<Num>,
    pub gas_used: Num,
    pub cumulative_gas_used: Num,
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
    pub event_count: u32,
    /// The first events, where they were asked for; else null.
    pub events: Option<Vec<Log>>,
    /// The cursor for `/events` where there are more of them.
    pub events_next: Option<String>,
}

impl Transaction {
    fn of(stored: &StoredBlock, tx: &DecodedTx) -> Transaction {
        let receipt = &tx.receipt;
        let address = |address: alloy_primitives::Address| Address::of(address.as_slice());
        // A creation that failed has no contract (E09).
        let created = tx.to == Recipient::Create && tx.status != TxStatus::Failed;
        Transaction {
            id: Hash::of(tx.id.as_bytes()),
            block: BlockStamp::of(&stored.facts),
            transaction_index: tx.index,
            tx_type: tx.ty.map(Num),
            status: tx.status.into(),
            is_injected: tx.is_injected,
            from: tx.sender.map(address),
            to: tx.to.address().map(address),
            contract_address: receipt.contract_address.filter(|_| created).map(address),
            nonce: tx.nonce.map(Num),
            value: tx.value.map(Amount),
            input: tx.input.clone().map(Data),
            gas_limit: tx.gas_limit.map(Num),
            gas_used: Num(receipt.gas_used),
            cumulative_gas_used: Num(receipt.cumulative_gas_used),
            gas_price: tx.gas_price.map(Amount::of),
            max_fee_per_gas: tx.max_fee_per_gas.map(Amount::of),
            max_priority_fee_per_gas: tx.max_priority_fee_per_gas.map(Amount::of),
            max_fee_per_blob_gas: tx.max_fee_per_blob_gas.map(Amount::of),
            effective_gas_price: receipt.effective_gas_price.map(Amount::of),
            blob_gas_used: receipt.blob_gas_used.map(Num),
            blob_gas_price: receipt.blob_gas_price.map(Amount::of),
            l1_fee: receipt.l1_fee.map(Amount),
            event_count: receipt.logs.len() as u32,
            events: None,
            events_next: None,
        }
    }
}

/// The bytes of a transaction and of its receipt.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RawTransaction {
    pub id: Hash,
    pub block: BlockStamp,
    pub transaction_index: u32,
    /// EIP-2718 bytes; null for one that the chain put in outside the header's roots.
    pub transaction: Option<Data>,
    /// EIP-2718 bytes with the bloom; null where the receipts root doesn't cover it.
    pub receipt: Option<Data>,
}

/// Of one transaction.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TransactionQuery {
    /// Whether to give the first events too.
    pub events: Option<bool>,
}

/// Where a transaction stands.
async fn find(view: &View, id: TxId) -> Result<TxPlace, Problem> {
    let place = view.chain().find_tx(id).await?;
    place.ok_or_else(|| Problem::not_found(format!("the transaction {id}")))
}

async fn read(view: &View, height: Height, parts: Parts) -> Result<StoredBlock, Problem> {
    let stored = view.chain().block(height, parts).await?;
    stored.ok_or_else(|| Problem::internal(format!("block {height} is looked up, but not stored")))
}

async fn decode(view: &View, place: TxPlace) -> Result<(StoredBlock, DecodedTx), Problem> {
    let parts = Parts::HEADER | Parts::TRANSACTIONS | Parts::BODY | Parts::RECEIPTS | Parts::EXTRAS;
    let stored = read(view, place.height, parts).await?;
    let bytes = stored.body.len() + stored.receipts.len();
    let task = move || {
        let mut block = DecodedBlock::decode(&stored)?;
        let at = place.index as usize;
        if at >= block.transactions.len() {
            return Err(Problem::internal(format!("block {} has no transaction {at}", place.height)));
        }
        Ok((stored, block.transactions.swap_remove(at)))
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
    let view = View::open(&api, &["evm_transactions"], &[]).await?;
    let binding = Binding::new("transactions", &[paging.order_word()]);
    let walk = Walk::new("evm_transactions", Some("by_place"), Vec::new());
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    TransactionRow::page(&view, found, &paging)
}

/// One transaction, by its id or EVM hash.
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
) -> Result<Json<Answer<Transaction>>, Problem> {
    let id = params::tx_id(&id)?;
    let view = View::raw(&api).await?;
    let (stored, tx) = decode(&view, find(&view, id).await?).await?;
    let mut data = Transaction::of(&stored, &tx);
    if query.events == Some(true) {
        let limit = api.limits().max_page_rows;
        let paging = Paging { limit, cursor: None, descending: false };
        let (events, next) = events_page(&view, &stored, &tx, &paging).await?;
        (data.events, data.events_next) = (Some(events), next);
    }
    Ok(Json(Answer { data, meta: view.meta() }))
}

async fn events_page(
    view: &View,
    stored: &StoredBlock,
    tx: &DecodedTx,
    paging: &Paging,
) -> Result<(Vec<Log>, Option<String>), Problem> {
    let binding = Binding::new("events", &[&tx.id.to_string()]);
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
    let rest: Vec<_> = tx.receipt.logs.iter().filter(|log| log.log_index >= from).collect();
    let shown = &rest[..rest.len().min(paging.limit as usize)];
    let next = match shown.last() {
        Some(last) if shown.len() < rest.len() => {
            let place = vec![Value::uint(last.log_index.into())];
            Some(list::seal(view, binding, Some(stored.facts.block_ref()), place))
        }
        _ => None,
    };
    Ok((shown.iter().map(|log| Log::decoded(&stored.facts, tx, log)).collect(), next))
}

/// The events of a transaction, in their order.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/events",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), PageQuery),
    responses((status = 200, description = "A page of events", body = Page<Log>))
)]
pub(crate) async fn list_transaction_events(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Log>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let id = params::tx_id(&id)?;
    let view = View::raw(&api).await?;
    let (stored, tx) = decode(&view, find(&view, id).await?).await?;
    let (data, next) = events_page(&view, &stored, &tx, &paging).await?;
    Ok(Json(Page { data, page: PageInfo { next, resume: None, limit: paging.limit }, meta: view.meta() }))
}

/// The bytes of a transaction and its receipt: id → height → that block, nothing else is read.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/raw",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case")),
    responses((status = 200, description = "The bytes", body = Answer<RawTransaction>))
)]
pub(crate) async fn get_raw_transaction(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<RawTransaction>>, Problem> {
    let id = params::tx_id(&id)?;
    let view = View::raw(&api).await?;
    let place = find(&view, id).await?;
    let parts = Parts::TRANSACTIONS | Parts::BODY | Parts::RECEIPTS | Parts::EXTRAS;
    let stored = read(&view, place.height, parts).await?;
    let block = BlockStamp::of(&stored.facts);
    let index = place.index as usize;
    let task = move || -> Result<_, Problem> {
        let decoded = BlockView::decode(stored, None)?;
        let receipt = decoded.raw_receipts()?.into_iter().nth(index).map(Data);
        let in_body = index < decoded.listed_tx_count()?;
        let transaction = if in_body { Some(Data(decoded.raw_transaction(index)?)) } else { None };
        Ok((transaction, receipt))
    };
    let (transaction, receipt) = tokio::task::spawn_blocking(task).await.map_err(Problem::internal)??;
    let id = Hash::of(id.as_bytes());
    let data = RawTransaction { id, block, transaction_index: place.index, transaction, receipt };
    Ok(Json(Answer { data, meta: view.meta() }))
}

/// The token transfers of a transaction, fungible tokens and NFTs, in their order.
#[utoipa::path(
    get,
    path = "/v1/transactions/{id}/transfers",
    tag = "transactions",
    params(("id" = String, Path, pattern = "^(0[xX])?[0-9a-fA-F]{64}$", description = "64 hex digits in any case"), PageQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_transaction_transfers(
    State(api): State<Arc<Api>>,
    Place(id): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let id = params::tx_id(&id)?;
    let view = View::open(&api, &["ft_transfers", "nft_transfers"], &[]).await?;
    let place = find(&view, id).await?;
    view.reaches(place.height)?;
    let prefix = || vec![Value::height(place.height), Value::bytes(id.as_bytes())];
    let walks = [Walk::new("ft_transfers", None, prefix()), Walk::new("nft_transfers", None, prefix())];
    let binding = Binding::new("transaction transfers", &[&id.to_string()]);
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &walks).await?;
    Transfer::page(&view, found, &walks, None, &paging)
}
