//! Accounts: what is counted of an address, and the lists of what concerns it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::{Key, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::answer::{Answer, Page};
use super::balances::BelowZero;
use super::chain::{ContractName, RestChain};
use super::contracts::Contract;
use super::cursor::Binding;
use super::fields::Fields;
use super::flow::{self, account::FlowAccount};
use super::list::{List, Walk};
use super::nfts::NftHolding;
use super::params::{ListQuery, NoParams, Order, PageQuery, Paging, Params, Place};
use super::problem::Problem;
use super::tokens::TokenName;
use super::transactions::TransactionRow;
use super::transfers::Transfer;
use super::view::View;
use super::words::{Address, Hash, Num, SumOf, rfc3339};
use super::{Api, shown};

/// An account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Account {
    pub address: Address,
    /// What is counted of it. Null where no transaction concerns it up to the watermark.
    pub stats: Option<AccountStats>,
    /// The contract that is there. Null where none was created as far as is known (`meta.beside` says how far that is), and where `meta_worker` is not enabled.
    pub contract: Option<Contract>,
    /// What a Flow account is beside. Null on other chains, and where the workers behind it are not enabled.
    pub flow: Option<FlowAccount>,
}

/// What is counted of an address.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountStats {
    /// Transactions that concern it.
    pub transaction_count: Num,
    pub sent_count: Num,
    pub received_count: Num,
    pub first_height: Num,
    /// Milliseconds since 1970.
    pub first_seen_ms: Num,
    #[schema(format = "date-time")]
    pub first_seen: Option<String>,
    pub last_height: Num,
    /// Milliseconds since 1970.
    pub last_seen_ms: Num,
    #[schema(format = "date-time")]
    pub last_seen: Option<String>,
}

/// What an address is counted as at some height, and which contract is there.
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side")),
    responses((status = 200, description = "The account", body = Answer<Account>))
)]
pub(crate) async fn get_account(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<Account>>, Problem> {
    let address = api.chain().address("address", &text)?;
    let mut welcome = vec!["smart_contracts"];
    welcome.extend(flow::account::TABLES);
    if let RestChain::Flow(_) = api.chain() {
        welcome.push(flow::account::BALANCES);
    }
    let view = View::open(&api, &["address_stats"], &welcome).await?;
    let key = Key(vec![Value::Bytes(address.clone())]);
    let rows = view.tables()?.rows("address_stats", &[key]).await?;
    let stats = match rows.first().and_then(Option::as_ref) {
        Some(row) => {
            let fields = Fields::new(view.table("address_stats")?, row);
            let (first, last) = (fields.uint("first_seen_ms")?, fields.uint("last_seen_ms")?);
            Some(AccountStats {
                transaction_count: fields.count("transaction_count")?,
                sent_count: fields.count("sent_count")?,
                received_count: fields.count("received_count")?,
                first_height: fields.num("first_height")?,
                first_seen_ms: Num(first),
                first_seen: rfc3339(first),
                last_height: fields.num("last_height")?,
                last_seen_ms: Num(last),
                last_seen: rfc3339(last),
            })
        }
        None => None,
    };
    let mut contract = None;
    if view.has("smart_contracts")? {
        contract = Contract::newest(&view, &ContractName::at(&address)).await?;
    }
    let flow = match view.kind() {
        RestChain::Flow(_) => FlowAccount::of(&view, &address).await?,
        RestChain::Evm => None,
    };
    Ok(Json(Answer { data: Account { address: Address(address), stats, contract, flow }, meta: view.meta() }))
}

/// A transaction that concerns an address.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountTransaction {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    pub direction: AccountRole,
    pub is_sender: bool,
    pub is_recipient: bool,
    pub is_created: bool,
    pub is_transfer_party: bool,
    /// The transaction itself. Null on EVM chains where `evm_worker` is not enabled, and in blocks that it has not done: `meta.beside` says how far it is.
    pub transaction: Option<TransactionRow>,
}

/// What an address is in a transaction, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AccountRole {
    /// Sender and recipient.
    #[serde(rename = "self")]
    Own,
    /// Sender.
    Out,
    /// Recipient.
    In,
    /// The contract that the transaction created.
    Created,
    /// Only a party of token transfers.
    Transfer,
}

impl AccountRole {
    fn of(word: &str) -> Result<AccountRole, Problem> {
        Ok(match word {
            "self" => AccountRole::Own,
            "out" => AccountRole::Out,
            "in" => AccountRole::In,
            "created" => AccountRole::Created,
            "transfer" => AccountRole::Transfer,
            word => return Err(Problem::internal(format!("an address is {word:?} in a transaction"))),
        })
    }
}

/// The transactions that concern an address, newest first.
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/transactions",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), ListQuery),
    responses((status = 200, description = "A page of transactions", body = Page<AccountTransaction>))
)]
pub(crate) async fn list_account_transactions(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<AccountTransaction>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let address = api.chain().address("address", &text)?;
    let view = View::open(&api, &["address_transactions"], api.chain().transaction_tables()).await?;
    let binding = Binding::new("account transactions", &[&hex::encode(&address), paging.order_word()]);
    let walk = Walk::new("address_transactions", Some("by_address"), vec![Value::Bytes(address)]);
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    let transactions = shown::transactions(&view, "address_transactions", &found.rows).await?;
    let mut data = Vec::with_capacity(found.rows.len());
    for ((_, row), transaction) in found.rows.iter().zip(transactions) {
        let fields = Fields::new(view.table("address_transactions")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        data.push(AccountTransaction {
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            direction: AccountRole::of(&fields.text("direction")?)?,
            is_sender: fields.boolean("is_sender")?,
            is_recipient: fields.boolean("is_recipient")?,
            is_created: fields.boolean("is_created")?,
            is_transfer_party: fields.boolean("is_transfer_party")?,
            transaction,
        });
    }
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// Of an address's transfers.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountTransfersQuery {
    /// Only of this token or collection: its address, on Flow `A.<address>.<name>`.
    #[param(
        pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$"
    )]
    pub token: Option<String>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
    /// From which end; newest first where nothing is said.
    #[param(inline)]
    pub order: Option<Order>,
}

async fn account_transfers(
    api: &Api,
    table: &'static str,
    text: &str,
    query: AccountTransfersQuery,
) -> Result<Json<Page<Transfer>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, query.order.unwrap_or(Order::Desc))?;
    let address = api.chain().address("address", text)?;
    let token = query.token.as_deref().map(|text| api.chain().token("token", text)).transpose()?;
    let view = View::open(api, &[table], &[]).await?;
    let token_word = token.as_ref().map(ContractName::binding).unwrap_or_default();
    let filters = [table, &hex::encode(&address), &token_word, paging.order_word()];
    let binding = Binding::new("account transfers", &filters);
    let walks = ["by_from", "by_to"].map(|index| {
        let mut walk = Walk::new(table, Some(index), vec![Value::Bytes(address.clone())]);
        if let Some(token) = &token {
            walk.filters.push(("token_contract_address", Value::Bytes(token.address.clone())));
            walk.filters.push(("contract_name", Value::text(token.name.as_str())));
        }
        walk
    });
    let found = List { binding, by_height: true, paging: &paging }.read(api, &view, &walks).await?;
    Transfer::page(&view, found, &walks, Some(&address), &paging)
}

/// The transfers of fungible tokens from an address and to it, newest first. One from an address to itself is one row (E27).
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/transfers",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), AccountTransfersQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_account_transfers(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<AccountTransfersQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    account_transfers(&api, "ft_transfers", &text, query).await
}

/// The transfers of NFTs from an address and to it, newest first. One from an address to itself is one row (E27).
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/nft-transfers",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), AccountTransfersQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_account_nft_transfers(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<AccountTransfersQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    account_transfers(&api, "nft_transfers", &text, query).await
}

/// What an address holds of a fungible token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Holding {
    /// As paths take it: the address, on Flow `A.<address>.<name>`.
    pub identifier: String,
    pub token_address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    /// In the token's smallest unit: the sum of its transfers. Deposits and withdrawals of wrapped native tokens (WETH's `Deposit` and `Withdrawal`) count for the
    /// contracts that `meta.wrapped_tokens` names.
    pub balance: SumOf,
    /// Why `balance` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub first_height: Num,
    pub last_height: Num,
    /// What the contract says of itself. Null where no node was asked yet, and where `token_metadata_worker` is not enabled.
    pub token: Option<TokenName>,
}

/// The fungible tokens of which an address has a balance that isn't 0, by the token's address. One below 0 says why it may be (`below_zero`).
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/holdings",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), PageQuery),
    responses((status = 200, description = "A page of holdings", body = Page<Holding>))
)]
pub(crate) async fn list_account_holdings(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Holding>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let address = api.chain().address("address", &text)?;
    let view = View::open(&api, &["ft_holdings"], &["tokens"]).await?;
    let binding = Binding::new("account holdings", &[&hex::encode(&address)]);
    let prefix = vec![Value::Bytes(address), Value::Bool(true)];
    let walk = Walk::new("ft_holdings", Some("by_owner"), prefix);
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let table = view.table("ft_holdings")?;
    let tokens = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(table, row);
            Ok((fields.bytes("token_contract_address")?, fields.text("contract_name")?))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let names = TokenName::of_tokens(&view, &tokens).await?;
    let mut data = Vec::with_capacity(found.rows.len());
    for ((_, row), token) in found.rows.iter().zip(names) {
        let fields = Fields::new(table, row);
        let balance = fields.sum("balance")?;
        data.push(Holding {
            identifier: view.identifier(&fields, "token_contract_address")?,
            token_address: fields.address("token_contract_address")?,
            contract_name: fields.text("contract_name")?,
            below_zero: BelowZero::of(&view, &balance),
            balance,
            first_height: fields.num("first_height")?,
            last_height: fields.num("last_height")?,
            token,
        });
    }
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// The NFTs of which an address has a balance that isn't 0, by collection and item. One below 0 says why it may be (`below_zero`).
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/nfts",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), PageQuery),
    responses((status = 200, description = "A page of NFTs", body = Page<NftHolding>))
)]
pub(crate) async fn list_account_nfts(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<NftHolding>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let address = api.chain().address("address", &text)?;
    let view = View::open(&api, &["nft_holdings"], &[]).await?;
    let binding = Binding::new("account nfts", &[&hex::encode(&address)]);
    let prefix = vec![Value::Bytes(address), Value::Bool(true)];
    let walk = Walk::new("nft_holdings", Some("by_owner"), prefix);
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let data = found.rows.iter().map(|(_, row)| NftHolding::of(&view, row)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// The contracts that an address created, newest first.
#[utoipa::path(
    get,
    path = "/v1/accounts/{address}/contracts",
    tag = "accounts",
    params(("address" = String, Path, pattern = "^(0[xX])?([0-9a-fA-F]{1,16}|[0-9a-fA-F]{40})$", description = "40 hex digits in any case; on Flow up to 16, or 40 of its EVM side"), ListQuery),
    responses((status = 200, description = "A page of contracts", body = Page<Contract>))
)]
pub(crate) async fn list_account_contracts(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<Contract>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let address = api.chain().address("address", &text)?;
    let view = View::open(&api, &["smart_contracts"], &[]).await?;
    let binding = Binding::new("account contracts", &[&hex::encode(&address), paging.order_word()]);
    let walk = Walk::new("smart_contracts", Some("by_creator"), vec![Value::Bytes(address)]);
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    Contract::page(&view, found, &paging)
}
