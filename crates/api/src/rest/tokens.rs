//! Fungible tokens: what is counted of them, what nodes say of them, who holds them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use cairn_store::derived::{Key, Row, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::{Answer, Page};
use super::balances::{BelowZero, not_zero};
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Walk};
use super::params::{ListQuery, NoParams, Order, PageQuery, Paging, Params, Place};
use super::problem::Problem;
use super::transfers::Transfer;
use super::view::View;
use super::words::{Address, Amount, Data, Num, SumOf};

/// What a token's contract says of itself. Anybody can choose any name: a name never identifies a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenName {
    pub name: Option<String>,
    pub symbol: Option<String>,
    /// Whether `name` lacks something of what the contract answered: characters that can't be shown were removed, or it was cut. `answered` has the bytes.
    pub name_sanitised: bool,
    /// The same of `symbol`.
    pub symbol_sanitised: bool,
    /// Null where the contract answered nothing, or no number from 0 to 255: amounts are then given as they are.
    pub decimals: Option<u32>,
    /// Whether the contract answered something that is no number from 0 to 255. `answered` has the bytes.
    pub decimals_out_of_range: bool,
    /// As it was at `asked_at_height`.
    pub total_supply: Option<Amount>,
    pub status: NameStatus,
    /// The bytes that were answered, where the fields above say something else or nothing; else null.
    pub answered: Option<AnswerBytes>,
    /// The height at which a node was asked.
    pub asked_at_height: Num,
}

/// What a contract answered, byte for byte, as far as it is kept: 1,024 bytes, of a symbol 256. Null where the field of that name says it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AnswerBytes {
    pub name: Option<Data>,
    pub symbol: Option<Data>,
    pub decimals: Option<Data>,
    pub total_supply: Option<Data>,
}

impl AnswerBytes {
    /// Of these contracts, each with the height at which it was asked, in the same order: an older answer's bytes are not shown.
    pub(crate) async fn of(
        view: &View,
        family: &'static str,
        contracts: &[(Bytes, String)],
        asked_at: Vec<Option<Num>>,
    ) -> Result<Vec<Option<AnswerBytes>>, Problem> {
        let mut keys = keys_of(contracts);
        keys.iter_mut().for_each(|key| key.0.push(Value::text(family)));
        let rows = view.tables()?.rows("token_answer_bytes", &keys).await?;
        let of_row = |(row, asked_at): (&Option<Row>, Option<Num>)| {
            let Some(row) = row else { return Ok(None) };
            let fields = Fields::new(view.table("token_answer_bytes")?, row);
            if asked_at != Some(fields.num("asked_at_height")?) {
                return Ok(None);
            }
            Ok(Some(AnswerBytes {
                name: fields.opt_data("name")?,
                symbol: fields.opt_data("symbol")?,
                decimals: fields.opt_data("decimals")?,
                total_supply: fields.opt_data("total_supply")?,
            }))
        };
        rows.iter().zip(asked_at).map(of_row).collect()
    }
}

/// How a contract answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NameStatus {
    Ok,
    /// Something was answered, and something not; or nothing of it can be read.
    Partial,
    /// The contract answers none of it.
    Silent,
    /// At `asked_at_height` there is no code any more: it was destroyed.
    NoCode,
    /// No node could be asked, or what was asked failed.
    Failed,
}

impl NameStatus {
    pub(crate) fn of(word: &str) -> Result<NameStatus, Problem> {
        Ok(match word {
            "ok" => NameStatus::Ok,
            "partial" => NameStatus::Partial,
            "silent" => NameStatus::Silent,
            "no-code" => NameStatus::NoCode,
            "failed" => NameStatus::Failed,
            word => return Err(Problem::internal(format!("the status of a name is {word:?}"))),
        })
    }
}

impl TokenName {
    fn of(view: &View, row: &Row, answered: Option<AnswerBytes>) -> Result<TokenName, Problem> {
        let fields = Fields::new(view.table("tokens")?, row);
        let bytes = answered.as_ref();
        Ok(TokenName {
            name: fields.opt_text("name")?,
            symbol: fields.opt_text("symbol")?,
            name_sanitised: bytes.is_some_and(|bytes| bytes.name.is_some()),
            symbol_sanitised: bytes.is_some_and(|bytes| bytes.symbol.is_some()),
            decimals: fields.opt_index("decimals")?,
            decimals_out_of_range: bytes.is_some_and(|bytes| bytes.decimals.is_some()),
            total_supply: fields.opt_amount("total_supply")?,
            status: NameStatus::of(&fields.text("status")?)?,
            answered,
            asked_at_height: fields.num("asked_at_height")?,
        })
    }

    /// Of these contracts, in the same order.
    pub(crate) async fn of_tokens(
        view: &View,
        tokens: &[(Bytes, String)],
    ) -> Result<Vec<Option<TokenName>>, Problem> {
        if !view.has("tokens")? {
            return Ok(tokens.iter().map(|_| None).collect());
        }
        let rows = view.tables()?.rows("tokens", &keys_of(tokens)).await?;
        let asked_at = asked_at(view, "tokens", &rows)?;
        let answered = AnswerBytes::of(view, "ft", tokens, asked_at).await?;
        let of_row = |(row, answered): (&Option<Row>, Option<AnswerBytes>)| {
            row.as_ref().map(|row| TokenName::of(view, row, answered)).transpose()
        };
        rows.iter().zip(answered).map(of_row).collect()
    }
}

/// The heights at which rows of answers were asked.
pub(crate) fn asked_at(view: &View, table: &str, rows: &[Option<Row>]) -> Result<Vec<Option<Num>>, Problem> {
    let table = view.table(table)?;
    let of_row = |row: &Row| Fields::new(table, row).num("asked_at_height");
    rows.iter().map(|row| row.as_ref().map(of_row).transpose()).collect()
}

/// Keys of tables that are keyed by contract.
pub(crate) fn keys_of(contracts: &[(Bytes, String)]) -> Vec<Key> {
    contracts
        .iter()
        .map(|(address, name)| Key(vec![Value::Bytes(address.clone()), Value::text(name.as_str())]))
        .collect()
}

/// A fungible token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Token {
    /// As paths take it: the address, on Flow `A.<address>.<name>`.
    pub identifier: String,
    pub address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    pub transfer_count: Num,
    /// Addresses whose balance is above 0: see the balance of a holder for what it counts.
    pub holder_count: Num,
    /// What was minted less what was burnt, as far as events say so. Deposits and withdrawals of wrapped native tokens (WETH's `Deposit` and `Withdrawal`) count for the
    /// contracts that `meta.wrapped_tokens` names.
    pub net_minted: SumOf,
    /// Why `net_minted` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub first_height: Num,
    pub last_height: Num,
    /// What the contract says of itself. Null where no node was asked yet, and where `token_metadata_worker` is not enabled.
    pub token: Option<TokenName>,
}

impl Token {
    fn of(view: &View, row: &Row, token: Option<TokenName>) -> Result<Token, Problem> {
        let fields = Fields::new(view.table("token_stats")?, row);
        let net_minted = fields.sum("net_minted")?;
        Ok(Token {
            identifier: view.identifier(&fields, "contract_address")?,
            address: fields.address("contract_address")?,
            contract_name: fields.text("contract_name")?,
            transfer_count: fields.count("transfer_count")?,
            holder_count: fields.count("holder_count")?,
            below_zero: BelowZero::of(view, &net_minted),
            net_minted,
            first_height: fields.num("first_height")?,
            last_height: fields.num("last_height")?,
            token,
        })
    }
}

/// By what a list of tokens is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TokenSort {
    /// The most holders first.
    Holders,
    /// By address, ascending.
    Address,
}

/// Of lists of tokens.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokensQuery {
    /// By what it is ordered; by holders where nothing is said.
    #[param(inline)]
    pub sort: Option<TokenSort>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
}

/// Fungible tokens that were transferred, those with the most holders first.
#[utoipa::path(
    get,
    path = "/v1/tokens",
    tag = "tokens",
    params(TokensQuery),
    responses((status = 200, description = "A page of tokens", body = Page<Token>))
)]
pub(crate) async fn list_tokens(
    State(api): State<Arc<Api>>,
    Params(query): Params<TokensQuery>,
) -> Result<Json<Page<Token>>, Problem> {
    let (index, order) = match query.sort.unwrap_or(TokenSort::Holders) {
        TokenSort::Holders => (Some("by_holders"), Order::Desc),
        TokenSort::Address => (None, Order::Asc),
    };
    let paging = Paging::new(api.limits(), query.limit, query.cursor, order)?;
    let view = View::open(&api, &["token_stats"], &["tokens"]).await?;
    let binding = Binding::new("tokens", &[index.unwrap_or_default()]);
    let walk = Walk::new("token_stats", index, Vec::new());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let tokens = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(view.table("token_stats")?, row);
            Ok((fields.bytes("contract_address")?, fields.text("contract_name")?))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let names = TokenName::of_tokens(&view, &tokens).await?;
    let data = found
        .rows
        .iter()
        .zip(names)
        .map(|((_, row), name)| Token::of(&view, row, name))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// One fungible token.
#[utoipa::path(
    get,
    path = "/v1/tokens/{address}",
    tag = "tokens",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>")),
    responses((status = 200, description = "The token", body = Answer<Token>))
)]
pub(crate) async fn get_token(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<Token>>, Problem> {
    let token = api.chain().token("address", &text)?;
    let view = View::open(&api, &["token_stats"], &["tokens"]).await?;
    let rows = view.tables()?.rows("token_stats", &[token.key()]).await?;
    let row = rows.into_iter().next().flatten().ok_or_else(|| {
        let identifier = view.kind().identifier(&token.address, &token.name);
        Problem::not_found(format!("a fungible token at {identifier} that was transferred"))
    })?;
    let name = TokenName::of_tokens(&view, &[(token.address, token.name)]).await?.pop().flatten();
    Ok(Json(Answer { data: Token::of(&view, &row, name)?, meta: view.meta() }))
}

/// Who holds how much of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Holder {
    pub address: Address,
    /// In the token's smallest unit: the sum of its transfers. Deposits and withdrawals of wrapped native tokens (WETH's `Deposit` and `Withdrawal`) count for the
    /// contracts that `meta.wrapped_tokens` names.
    pub balance: SumOf,
    /// Why `balance` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub first_height: Num,
    pub last_height: Num,
}

/// The holders of a token, the largest first; at the end those whose balance is below 0 (`below_zero` says why it may be).
#[utoipa::path(
    get,
    path = "/v1/tokens/{address}/holders",
    tag = "tokens",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), PageQuery),
    responses((status = 200, description = "A page of holders", body = Page<Holder>))
)]
pub(crate) async fn list_token_holders(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Holder>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let token = api.chain().token("address", &text)?;
    let view = View::open(&api, &["ft_holdings"], &[]).await?;
    let binding = Binding::new("token holders", &[&token.binding()]);
    let walks = not_zero("ft_holdings", token.values());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &walks).await?;
    let table = view.table("ft_holdings")?;
    let data = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(table, row);
            let balance = fields.sum("balance")?;
            Ok(Holder {
                address: fields.address("address")?,
                below_zero: BelowZero::of(&view, &balance),
                balance,
                first_height: fields.num("first_height")?,
                last_height: fields.num("last_height")?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// The transfers of a token, newest first.
#[utoipa::path(
    get,
    path = "/v1/tokens/{address}/transfers",
    tag = "tokens",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), ListQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_token_transfers(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let token = api.chain().token("address", &text)?;
    let view = View::open(&api, &["ft_transfers"], &[]).await?;
    let binding = Binding::new("token transfers", &[&token.binding(), paging.order_word()]);
    let walks = [Walk::new("ft_transfers", Some("by_token"), token.values())];
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &walks).await?;
    Transfer::page(&view, found, &walks, None, &paging)
}
