//! Contracts and their code.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::{Key, Row, Scan, Value};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::answer::{Answer, Page};
use super::chain::{ContractName, RestChain};
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Rows, Walk};
use super::params::{ListQuery, NoParams, Order, Paging, Params, Place};
use super::problem::Problem;
use super::view::View;
use super::words::{Address, Data, Hash, Num, rfc3339};

/// A contract, as it was created.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Contract {
    /// As paths take it: the address, on Flow `A.<address>.<name>`.
    pub identifier: String,
    pub address: Address,
    /// Its name within its account, where the chain has such; else empty.
    pub contract_name: String,
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    /// Who created it; null where nobody says.
    pub creator: Option<Address>,
    /// keccak256 of the init code, where it is known.
    pub init_code_hash: Option<Hash>,
    /// Whether a contract created it.
    pub is_internal: bool,
    /// Whether the transaction is known to have succeeded.
    pub is_confirmed: bool,
}

impl Contract {
    pub(crate) fn of(view: &View, row: &Row) -> Result<Contract, Problem> {
        let fields = Fields::new(view.table("smart_contracts")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        Ok(Contract {
            identifier: view.identifier(&fields, "address")?,
            address: fields.address("address")?,
            contract_name: fields.text("contract_name")?,
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            creator: fields.opt_address("creator_address")?,
            init_code_hash: fields.opt_hash("init_code_hash")?,
            is_internal: fields.boolean("is_internal")?,
            is_confirmed: fields.boolean("is_confirmed")?,
        })
    }

    /// The newest one at an address, up to the watermark.
    pub(crate) async fn newest(view: &View, contract: &ContractName) -> Result<Option<Contract>, Problem> {
        let scan = Scan {
            index: Some("by_address"),
            prefix: contract.values(),
            upper: view.watermark().map_or(Bound::Unbounded, |at| Bound::Included(vec![Value::height(at)])),
            descending: true,
            ..Scan::new("smart_contracts", 1)
        };
        let page = view.tables()?.scan(&scan).await?;
        page.rows.first().map(|row| Contract::of(view, row)).transpose()
    }

    pub(crate) fn page(view: &View, found: Rows, paging: &Paging) -> Result<Json<Page<Self>>, Problem> {
        let data = found.rows.iter().map(|(_, row)| Self::of(view, row)).collect::<Result<Vec<_>, _>>()?;
        Ok(Json(Page { data, page: found.page(paging), meta: view.meta() }))
    }
}

/// Contracts, newest first.
#[utoipa::path(
    get,
    path = "/v1/contracts",
    tag = "contracts",
    params(ListQuery),
    responses((status = 200, description = "A page of contracts", body = Page<Contract>))
)]
pub(crate) async fn list_contracts(
    State(api): State<Arc<Api>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<Contract>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let view = View::open(&api, &["smart_contracts"], &[]).await?;
    let binding = Binding::new("contracts", &[paging.order_word()]);
    let walk = Walk::new("smart_contracts", None, Vec::new());
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    Contract::page(&view, found, &paging)
}

/// The contract at an address; the newest one, where it was created more than once.
#[utoipa::path(
    get,
    path = "/v1/contracts/{address}",
    tag = "contracts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>")),
    responses((status = 200, description = "The contract", body = Answer<Contract>))
)]
pub(crate) async fn get_contract(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<Contract>>, Problem> {
    let name = api.chain().contract("address", &text)?;
    let view = View::open(&api, &["smart_contracts"], &[]).await?;
    let contract = Contract::newest(&view, &name).await?;
    let data = contract.ok_or_else(|| {
        let identifier = view.kind().identifier(&name.address, &name.name);
        Problem::not_found(format!(
            "a contract at {identifier} that a transaction up to the watermark created (those that contracts created are known where call traces are archived)"
        ))
    })?;
    Ok(Json(Answer { data, meta: view.meta() }))
}

/// The code of a contract, as a node answered.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ContractCode {
    pub address: Address,
    /// Its name within its account, where the chain has such; else empty.
    pub contract_name: String,
    pub status: CodeStatus,
    /// keccak256; on Flow SHA3-256.
    pub code_hash: Option<Hash>,
    pub code_length_bytes: Option<Num>,
    /// Null where `status` is not `ok`.
    pub code: Option<Data>,
    /// On Flow the same as text; else null.
    pub source: Option<String>,
    /// The height at which the node was asked.
    pub asked_at_height: Num,
}

/// What a node said of a contract's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CodeStatus {
    Ok,
    /// There is no code.
    Empty,
    /// Only its hash and length are kept.
    TooLarge,
    /// No node could be asked.
    Failed,
}

/// The code of a contract.
#[utoipa::path(
    get,
    path = "/v1/contracts/{address}/code",
    tag = "contracts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>")),
    responses((status = 200, description = "The code", body = Answer<ContractCode>))
)]
pub(crate) async fn get_contract_code(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<ContractCode>>, Problem> {
    let contract = api.chain().contract("address", &text)?;
    let view = View::open(&api, &["contract_code_hashes", "contract_code"], &[]).await?;
    if let (RestChain::Flow(_), true) = (view.kind(), contract.name.is_empty()) {
        // No node of Flow is asked about the code of its EVM side.
        return Err(Problem::not_enabled(view.table("contract_code_hashes")?.def().service));
    }
    let rows = view.tables()?.rows("contract_code_hashes", &[contract.key()]).await?;
    let row = rows.into_iter().next().flatten().ok_or_else(|| {
        let identifier = view.kind().identifier(&contract.address, &contract.name);
        Problem::not_found(format!("the code at {identifier}, as far as nodes were asked,"))
    })?;
    let fields = Fields::new(view.table("contract_code_hashes")?, &row);
    let status = match fields.text("status")?.as_str() {
        "ok" => CodeStatus::Ok,
        "empty" => CodeStatus::Empty,
        "too-large" => CodeStatus::TooLarge,
        "failed" => CodeStatus::Failed,
        word => return Err(Problem::internal(format!("the status of a contract's code is {word:?}"))),
    };
    let hash = fields.opt_bytes("code_hash")?;
    let mut code = None;
    if let (CodeStatus::Ok, Some(hash)) = (status, &hash) {
        let rows = view.tables()?.rows("contract_code", &[Key(vec![Value::Bytes(hash.clone())])]).await?;
        if let Some(row) = rows.first().and_then(Option::as_ref) {
            code = Some(Data(Fields::new(view.table("contract_code")?, row).bytes("code")?));
        }
    }
    let source = match (view.kind(), &code) {
        (RestChain::Flow(_), Some(code)) => Some(String::from_utf8_lossy(&code.0).into_owned()),
        _ => None,
    };
    let data = ContractCode {
        address: Address(contract.address),
        contract_name: fields.text("contract_name")?,
        status,
        code_hash: hash.map(Hash),
        code_length_bytes: fields.opt_num("code_length_bytes")?,
        code,
        source,
        asked_at_height: fields.num("asked_at_height")?,
    };
    Ok(Json(Answer { data, meta: view.meta() }))
}
