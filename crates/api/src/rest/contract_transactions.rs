//! The transactions that touched a contract.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::Value;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::Page;
use super::chain::RestChain;
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Walk};
use super::params::{ListQuery, Order, Params, Place};
use super::problem::Problem;
use super::transactions::TransactionRow;
use super::view::View;
use super::words::{Hash, Num, rfc3339};
use super::{Api, shown};

/// A transaction that touched a contract.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ContractTransaction {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// The contract's name within its account, where the chain has such; else empty. On Flow also empty where a script imports all contracts of the account, of
    /// which it need not use this one.
    pub contract_name: String,
    /// What happened to it: `call`, `create`, `log`, `ft`, `nft`; on Flow also `import`, `update` and `remove`.
    pub tags: Vec<String>,
    /// The transaction itself. Null on EVM chains where `evm_worker` is not enabled, and in blocks that it has not done: `meta.beside` says how far it is.
    pub transaction: Option<TransactionRow>,
}

/// The transactions that touched a contract, newest first: that called, created or changed it, in which it logged, or its tokens moved.
#[utoipa::path(
    get,
    path = "/v1/contracts/{address}/transactions",
    tag = "contracts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), ListQuery),
    responses((status = 200, description = "A page of transactions", body = Page<ContractTransaction>))
)]
pub(crate) async fn list_contract_transactions(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<ContractTransaction>>, Problem> {
    const TABLE: &str = "tx_contracts";
    let paging = query.paging(api.limits(), Order::Desc)?;
    let contract = api.chain().contract("address", &text)?;
    let view = View::open(&api, &[TABLE], api.chain().transaction_tables()).await?;
    let binding = Binding::new("contract transactions", &[&contract.binding(), paging.order_word()]);
    let mut walks = vec![Walk::new(TABLE, Some("by_contract"), contract.values())];
    if let (RestChain::Flow(_), false) = (view.kind(), contract.name.is_empty()) {
        let all_of_account = vec![Value::Bytes(contract.address.clone()), Value::text("")];
        walks.push(Walk::new(TABLE, Some("by_contract"), all_of_account));
    }
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &walks).await?;
    let transactions = shown::transactions(&view, TABLE, &found.rows).await?;
    let table = view.table(TABLE)?;
    let data = found
        .rows
        .iter()
        .zip(transactions)
        .map(|((_, row), transaction)| {
            let fields = Fields::new(table, row);
            let timestamp_ms = fields.uint("block_timestamp_ms")?;
            Ok(ContractTransaction {
                block_height: fields.num("block_height")?,
                transaction_id: fields.hash("transaction_id")?,
                transaction_index: fields.index("transaction_index")?,
                timestamp_ms: Num(timestamp_ms),
                timestamp: rfc3339(timestamp_ms),
                contract_name: fields.text("contract_name")?,
                tags: fields.text("tags")?.split(',').map(str::to_owned).collect(),
                transaction,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}
