//! What only Flow keeps a history of: keys of accounts, versions of contracts, and the blocks of its EVM side.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::{Row, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::rest::Api;
use crate::rest::answer::Page;
use crate::rest::cursor::Binding;
use crate::rest::fields::Fields;
use crate::rest::list::{List, Walk};
use crate::rest::params::{ListQuery, Order, Params, Place};
use crate::rest::problem::Problem;
use crate::rest::view::View;
use crate::rest::words::{Data, Hash, Num, rfc3339};

/// A key that was added to an account, or revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeyEvent {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Its event's place in its transaction.
    pub event_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// `added` or `revoked`.
    pub change: String,
    /// Null where the event doesn't say, before Cadence 1.0.
    pub key_index: Option<Num>,
    /// Null where the event doesn't say.
    pub public_key: Option<Data>,
    /// 1 is ECDSA_P256, 2 ECDSA_secp256k1, 3 BLS.
    pub sign_algo: Option<Num>,
    /// 1 is SHA2_256, 2 SHA2_384, 3 SHA3_256, 4 SHA3_384, 5 KMAC128_BLS, 6 KECCAK_256.
    pub hash_algo: Option<Num>,
    /// Of 1000.
    pub weight: Option<Num>,
}

impl KeyEvent {
    fn of(view: &View, row: &Row) -> Result<KeyEvent, Problem> {
        let fields = Fields::new(view.table("account_key_events")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        let number = |name| -> Result<Option<Num>, Problem> {
            Ok(fields.opt_amount(name)?.and_then(|amount| u64::try_from(amount.0).ok()).map(Num))
        };
        Ok(KeyEvent {
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            event_index: fields.index("event_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            change: fields.text("change")?,
            key_index: number("key_index")?,
            public_key: fields.opt_data("public_key")?,
            sign_algo: number("sign_algo")?,
            hash_algo: number("hash_algo")?,
            weight: number("weight")?,
        })
    }
}

/// The keys that were added to a Flow account and revoked, newest first. `/v1/accounts/{address}` has what holds now.
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/keys",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), ListQuery),
    responses((status = 200, description = "A page of changes", body = Page<KeyEvent>))
)]
pub(crate) async fn list_account_keys(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<KeyEvent>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let address = api.chain().address("address", &text)?;
    let view = View::open(&api, &["account_key_events"], &[]).await?;
    let binding = Binding::new("account keys", &[&hex::encode(&address), paging.order_word()]);
    let walk = Walk::new("account_key_events", Some("by_address"), vec![Value::Bytes(address)]);
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    let data = found.rows.iter().map(|(_, row)| KeyEvent::of(&view, row)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// A version of a contract.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ContractVersion {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Its event's place in its transaction.
    pub event_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// `added`, `updated` or `removed`.
    pub change: String,
    /// SHA3-256 of the code; of a removed contract that of its last one.
    pub code_hash: Hash,
}

impl ContractVersion {
    fn of(view: &View, row: &Row) -> Result<ContractVersion, Problem> {
        let fields = Fields::new(view.table("contract_versions")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        Ok(ContractVersion {
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            event_index: fields.index("event_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            change: fields.text("change")?,
            code_hash: fields.hash("code_hash")?,
        })
    }
}

/// The versions of a Flow contract, newest first.
#[utoipa::path(
    get,
    path = "/v1/contracts/{address}/versions",
    tag = "contracts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), ListQuery),
    responses((status = 200, description = "A page of versions", body = Page<ContractVersion>))
)]
pub(crate) async fn list_contract_versions(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<ContractVersion>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let contract = api.chain().contract("address", &text)?;
    let view = View::open(&api, &["contract_versions"], &[]).await?;
    let binding = Binding::new("contract versions", &[&contract.binding(), paging.order_word()]);
    let walk = Walk::new("contract_versions", Some("by_contract"), contract.values());
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    let versions = found.rows.iter().map(|(_, row)| ContractVersion::of(&view, row));
    let data = versions.collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// A block of Flow's EVM side.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowEvmBlock {
    pub evm_height: Num,
    pub evm_hash: Hash,
    pub evm_parent_hash: Hash,
    /// Seconds since 1970.
    pub evm_timestamp_s: Num,
    pub gas_used: Num,
    /// The EVM transactions of the Flow block that name it.
    pub transaction_count: Num,
    /// The Flow block that has it.
    pub block_height: Num,
    /// The Flow transaction that closed it.
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// The Flow block's time: milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
}

impl FlowEvmBlock {
    fn of(view: &View, row: &Row) -> Result<FlowEvmBlock, Problem> {
        let fields = Fields::new(view.table("evm_blocks")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        Ok(FlowEvmBlock {
            evm_height: fields.num("evm_height")?,
            evm_hash: fields.hash("evm_hash")?,
            evm_parent_hash: fields.hash("evm_parent_hash")?,
            evm_timestamp_s: fields.num("evm_timestamp_s")?,
            gas_used: fields.num("gas_used")?,
            transaction_count: fields.num("transaction_count")?,
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
        })
    }
}

/// The blocks of Flow's EVM side, newest first, by the Flow blocks that have them.
#[utoipa::path(
    get,
    path = "/v1/flow/evm/blocks",
    tag = "blocks",
    params(ListQuery),
    responses((status = 200, description = "A page of EVM blocks", body = Page<FlowEvmBlock>))
)]
pub(crate) async fn list_evm_blocks(
    State(api): State<Arc<Api>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<FlowEvmBlock>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let view = View::open(&api, &["evm_blocks"], &[]).await?;
    let binding = Binding::new("evm blocks", &[paging.order_word()]);
    let walk = Walk::new("evm_blocks", None, Vec::new());
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    let blocks = found.rows.iter().map(|(_, row)| FlowEvmBlock::of(&view, row));
    let data = blocks.collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}
