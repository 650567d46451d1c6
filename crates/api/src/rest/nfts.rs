//! NFTs: collections, items, owners, transfers.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use cairn_store::derived::{Row, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::{Answer, Page};
use super::balances::{BelowZero, not_zero};
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Walk};
use super::params::{self, ListQuery, NoParams, Order, PageQuery, Paging, Params, Place};
use super::problem::Problem;
use super::tokens::{AnswerBytes, NameStatus, asked_at, keys_of};
use super::transfers::Transfer;
use super::view::View;
use super::words::{Address, Amount, Data, Num, SumOf};

/// What a collection's contract says of itself. Anybody can choose any name: a name never identifies a collection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CollectionName {
    pub name: Option<String>,
    pub symbol: Option<String>,
    /// Whether `name` lacks something of what the contract answered: characters that can't be shown were removed, or it was cut. `answered` has the bytes.
    pub name_sanitised: bool,
    /// The same of `symbol`.
    pub symbol_sanitised: bool,
    /// `erc721` or `erc1155`, where the contract says that it supports one of them.
    pub standard: Option<String>,
    pub status: NameStatus,
    /// The bytes that were answered, where the fields above say something else or nothing; else null.
    pub answered: Option<AnswerBytes>,
    /// The height at which a node was asked.
    pub asked_at_height: Num,
}

/// A collection of NFTs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Collection {
    /// As paths take it: the address, on Flow `A.<address>.<name>`.
    pub identifier: String,
    pub address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    /// Items that aren't burnt.
    pub item_count: Num,
    /// Addresses that hold any.
    pub owner_count: Num,
    pub transfer_count: Num,
    pub first_height: Num,
    pub last_height: Num,
    /// What the contract says of itself. Null where no node was asked yet, and where `token_metadata_worker` is not enabled.
    pub collection: Option<CollectionName>,
}

impl Collection {
    fn of(view: &View, row: &Row, name: Option<CollectionName>) -> Result<Collection, Problem> {
        let fields = Fields::new(view.table("nft_collection_stats")?, row);
        Ok(Collection {
            identifier: view.identifier(&fields, "contract_address")?,
            address: fields.address("contract_address")?,
            contract_name: fields.text("contract_name")?,
            item_count: fields.count("item_count")?,
            owner_count: fields.count("owner_count")?,
            transfer_count: fields.count("transfer_count")?,
            first_height: fields.num("first_height")?,
            last_height: fields.num("last_height")?,
            collection: name,
        })
    }

    /// What these contracts say of themselves, in the same order.
    pub(crate) async fn names(
        view: &View,
        collections: &[(Bytes, String)],
    ) -> Result<Vec<Option<CollectionName>>, Problem> {
        if !view.has("nft_collections")? {
            return Ok(collections.iter().map(|_| None).collect());
        }
        let table = view.table("nft_collections")?;
        let rows = view.tables()?.rows("nft_collections", &keys_of(collections)).await?;
        let asked_at = asked_at(view, "nft_collections", &rows)?;
        let answered = AnswerBytes::of(view, "nft", collections, asked_at).await?;
        rows.iter()
            .zip(answered)
            .map(|(row, answered)| {
                let Some(row) = row else { return Ok(None) };
                let fields = Fields::new(table, row);
                let bytes = answered.as_ref();
                Ok(Some(CollectionName {
                    name: fields.opt_text("name")?,
                    symbol: fields.opt_text("symbol")?,
                    name_sanitised: bytes.is_some_and(|bytes| bytes.name.is_some()),
                    symbol_sanitised: bytes.is_some_and(|bytes| bytes.symbol.is_some()),
                    standard: fields.opt_text("standard")?,
                    status: NameStatus::of(&fields.text("status")?)?,
                    answered,
                    asked_at_height: fields.num("asked_at_height")?,
                }))
            })
            .collect()
    }
}

/// By what a list of collections is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CollectionSort {
    /// The most owners first.
    Owners,
    /// By address, ascending.
    Address,
}

/// Of lists of collections.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CollectionsQuery {
    /// By what it is ordered; by owners where nothing is said.
    #[param(inline)]
    pub sort: Option<CollectionSort>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
}

/// Collections of NFTs that were transferred, those with the most owners first.
#[utoipa::path(
    get,
    path = "/v1/nft-collections",
    tag = "nfts",
    params(CollectionsQuery),
    responses((status = 200, description = "A page of collections", body = Page<Collection>))
)]
pub(crate) async fn list_collections(
    State(api): State<Arc<Api>>,
    Params(query): Params<CollectionsQuery>,
) -> Result<Json<Page<Collection>>, Problem> {
    let (index, order) = match query.sort.unwrap_or(CollectionSort::Owners) {
        CollectionSort::Owners => (Some("by_owners"), Order::Desc),
        CollectionSort::Address => (None, Order::Asc),
    };
    let paging = Paging::new(api.limits(), query.limit, query.cursor, order)?;
    let view = View::open(&api, &["nft_collection_stats"], &["nft_collections"]).await?;
    let binding = Binding::new("collections", &[index.unwrap_or_default()]);
    let walk = Walk::new("nft_collection_stats", index, Vec::new());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let collections = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(view.table("nft_collection_stats")?, row);
            Ok((fields.bytes("contract_address")?, fields.text("contract_name")?))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let names = Collection::names(&view, &collections).await?;
    let data = found
        .rows
        .iter()
        .zip(names)
        .map(|((_, row), name)| Collection::of(&view, row, name))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// One collection of NFTs.
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}",
    tag = "nfts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>")),
    responses((status = 200, description = "The collection", body = Answer<Collection>))
)]
pub(crate) async fn get_collection(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<Collection>>, Problem> {
    let collection = api.chain().token("address", &text)?;
    let view = View::open(&api, &["nft_collection_stats"], &["nft_collections"]).await?;
    let rows = view.tables()?.rows("nft_collection_stats", &[collection.key()]).await?;
    let row = rows.into_iter().next().flatten().ok_or_else(|| {
        let identifier = view.kind().identifier(&collection.address, &collection.name);
        Problem::not_found(format!("a collection of NFTs at {identifier} that was transferred"))
    })?;
    let name = Collection::names(&view, &[(collection.address, collection.name)]).await?.pop().flatten();
    Ok(Json(Answer { data: Collection::of(&view, &row, name)?, meta: view.meta() }))
}

/// An item of a collection.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Item {
    /// The collection as paths take it: the address, on Flow `A.<address>.<name>`.
    pub collection_identifier: String,
    pub collection_address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    pub id: Amount,
    /// By which rule its newest event was read.
    pub kind: String,
    /// Null where it was burnt, and where items of its kind have several owners: `/v1/nft-collections/{address}/items/{item}/owners` lists them.
    pub owner: Option<Address>,
    pub is_burned: bool,
    /// How many there are of it, as far as mints were logged.
    pub net_minted: SumOf,
    /// Why `net_minted` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub transfer_count: Num,
    pub first_height: Num,
    pub last_height: Num,
}

impl Item {
    fn of(view: &View, row: &Row) -> Result<Item, Problem> {
        let fields = Fields::new(view.table("nft_ownership")?, row);
        let net_minted = fields.sum("net_minted")?;
        Ok(Item {
            collection_identifier: view.identifier(&fields, "contract_address")?,
            collection_address: fields.address("contract_address")?,
            contract_name: fields.text("contract_name")?,
            id: fields.amount("nft_id")?,
            kind: fields.text("kind")?,
            owner: fields.opt_address("owner")?,
            is_burned: fields.boolean("is_burned")?,
            below_zero: BelowZero::of(view, &net_minted),
            net_minted,
            transfer_count: fields.count("transfer_count")?,
            first_height: fields.num("first_height")?,
            last_height: fields.num("last_height")?,
        })
    }
}

/// The items of a collection, by id; burnt ones too.
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}/items",
    tag = "nfts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), ListQuery),
    responses((status = 200, description = "A page of items", body = Page<Item>))
)]
pub(crate) async fn list_items(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<Item>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let collection = api.chain().token("address", &text)?;
    let view = View::open(&api, &["nft_ownership"], &[]).await?;
    let binding = Binding::new("items", &[&collection.binding(), paging.order_word()]);
    let walk = Walk::new("nft_ownership", None, collection.values());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let data = found.rows.iter().map(|(_, row)| Item::of(&view, row)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// What a contract says of one item.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemUri {
    /// Text as the contract gives it, cleaned; nobody follows it.
    pub uri: Option<String>,
    /// Whether `uri` lacks something of what the contract answered: characters that can't be shown were removed, or it was cut.
    pub uri_sanitised: bool,
    /// The first 8,192 bytes that were answered, where `uri` is sanitised or can't be read; else null.
    pub answered: Option<Data>,
    pub status: NameStatus,
    /// The height at which a node was asked.
    pub asked_at_height: Num,
}

/// An item with what its contract says of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemDetail {
    pub item: Item,
    /// Null where no node was asked yet, and where `nft_metadata_worker` is not enabled.
    pub metadata: Option<ItemUri>,
}

/// One item of a collection.
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}/items/{item}",
    tag = "nfts",
    params(
        ("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"),
        ("item" = String, Path, pattern = "^[0-9]{1,78}$", description = "The item's id in decimal digits")
    ),
    responses((status = 200, description = "The item", body = Answer<ItemDetail>))
)]
pub(crate) async fn get_item(
    State(api): State<Arc<Api>>,
    Place((text, item)): Place<(String, String)>,
    Params(NoParams {}): Params<NoParams>,
) -> Result<Json<Answer<ItemDetail>>, Problem> {
    let collection = api.chain().token("address", &text)?;
    let item = params::item(&item)?;
    let view = View::open(&api, &["nft_ownership"], &["nft_metadata"]).await?;
    let mut key = collection.key();
    key.0.push(Value::Amount(item));
    let rows = view.tables()?.rows("nft_ownership", std::slice::from_ref(&key)).await?;
    let row = rows.into_iter().next().flatten().ok_or_else(|| {
        let identifier = view.kind().identifier(&collection.address, &collection.name);
        Problem::not_found(format!("the item {item} of {identifier}, as far as it was transferred,"))
    })?;
    let mut metadata = None;
    if view.has("nft_metadata")? {
        let rows = view.tables()?.rows("nft_metadata", std::slice::from_ref(&key)).await?;
        if let Some(row) = rows.first().and_then(Option::as_ref) {
            let fields = Fields::new(view.table("nft_metadata")?, row);
            let asked_at_height = fields.num("asked_at_height")?;
            let mut answered = None;
            if let Some(row) =
                view.tables()?.rows("nft_uri_bytes", &[key]).await?.first().and_then(Option::as_ref)
            {
                let bytes = Fields::new(view.table("nft_uri_bytes")?, row);
                // Those of another height are of an older answer.
                if bytes.num("asked_at_height")? == asked_at_height {
                    answered = bytes.opt_data("token_uri")?;
                }
            }
            metadata = Some(ItemUri {
                uri: fields.opt_text("token_uri")?,
                uri_sanitised: answered.is_some(),
                answered,
                status: NameStatus::of(&fields.text("status")?)?,
                asked_at_height,
            });
        }
    }
    let data = ItemDetail { item: Item::of(&view, &row)?, metadata };
    Ok(Json(Answer { data, meta: view.meta() }))
}

/// How many of an item an address holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemOwner {
    pub address: Address,
    pub balance: SumOf,
    /// Why `balance` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub last_height: Num,
}

/// The owners of an item, by address, and those whose balance is below 0 (`below_zero` says why it may be). An item with a single owner has one or, where it was burnt, none; an item that is not known has none.
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}/items/{item}/owners",
    tag = "nfts",
    params(
        ("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"),
        ("item" = String, Path, pattern = "^[0-9]{1,78}$", description = "The item's id in decimal digits"),
        PageQuery
    ),
    responses((status = 200, description = "A page of owners", body = Page<ItemOwner>))
)]
pub(crate) async fn list_item_owners(
    State(api): State<Arc<Api>>,
    Place((text, item)): Place<(String, String)>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<ItemOwner>>, Problem> {
    let paging = query.paging(api.limits(), Order::Asc)?;
    let collection = api.chain().token("address", &text)?;
    let item = params::item(&item)?;
    let view = View::open(&api, &["nft_holdings"], &[]).await?;
    let binding = Binding::new("item owners", &[&collection.binding(), &item.to_string()]);
    let mut prefix = collection.values();
    prefix.push(Value::Amount(item));
    let mut walk = Walk::new("nft_holdings", None, prefix);
    // Who has given all of it away keeps a row, at 0.
    walk.filters.push(("is_held", Value::Bool(true)));
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let table = view.table("nft_holdings")?;
    let data = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(table, row);
            let balance = fields.sum("balance")?;
            Ok(ItemOwner {
                address: fields.address("address")?,
                below_zero: BelowZero::of(&view, &balance),
                balance,
                last_height: fields.num("last_height")?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// How many items of a collection an address holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Owner {
    pub address: Address,
    pub balance: SumOf,
    /// Why `balance` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub last_height: Num,
}

/// The owners of a collection, those of the most items first; at the end those whose balance is below 0 (`below_zero` says why it may be).
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}/owners",
    tag = "nfts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), PageQuery),
    responses((status = 200, description = "A page of owners", body = Page<Owner>))
)]
pub(crate) async fn list_owners(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<Owner>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let collection = api.chain().token("address", &text)?;
    let view = View::open(&api, &["nft_owners"], &[]).await?;
    let binding = Binding::new("owners", &[&collection.binding()]);
    let walks = not_zero("nft_owners", collection.values());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &walks).await?;
    let table = view.table("nft_owners")?;
    let data = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(table, row);
            let balance = fields.sum("balance")?;
            Ok(Owner {
                address: fields.address("address")?,
                below_zero: BelowZero::of(&view, &balance),
                balance,
                last_height: fields.num("last_height")?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// Of a collection's transfers.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct CollectionTransfersQuery {
    /// Only of this item: its id in decimal digits.
    #[param(pattern = "^[0-9]{1,78}$")]
    pub item: Option<String>,
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

/// The transfers of a collection or of one of its items, newest first.
#[utoipa::path(
    get,
    path = "/v1/nft-collections/{address}/transfers",
    tag = "nfts",
    params(("address" = String, Path, pattern = "^((0[xX])?[0-9a-fA-F]{40}|([aA][.])?(0[xX])?[0-9a-fA-F]{1,16}([.][A-Za-z_][A-Za-z0-9_]*){1,2})$", description = "40 hex digits in any case; on Flow A.<address>.<name>"), CollectionTransfersQuery),
    responses((status = 200, description = "A page of transfers", body = Page<Transfer>))
)]
pub(crate) async fn list_collection_transfers(
    State(api): State<Arc<Api>>,
    Place(text): Place<String>,
    Params(query): Params<CollectionTransfersQuery>,
) -> Result<Json<Page<Transfer>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, query.order.unwrap_or(Order::Desc))?;
    let collection = api.chain().token("address", &text)?;
    let item = query.item.as_deref().map(params::item).transpose()?;
    let view = View::open(&api, &["nft_transfers"], &[]).await?;
    let said = item.map(|item| item.to_string()).unwrap_or_default();
    let filters = [collection.binding(), said];
    let binding = Binding::new("collection transfers", &[&filters[0], &filters[1], paging.order_word()]);
    let mut prefix = collection.values();
    let index = match item {
        Some(item) => {
            prefix.push(Value::Amount(item));
            "by_item"
        }
        None => "by_token",
    };
    let walks = [Walk::new("nft_transfers", Some(index), prefix)];
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &walks).await?;
    Transfer::page(&view, found, &walks, None, &paging)
}

/// How many of an item an address holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NftHolding {
    /// The collection as paths take it: the address, on Flow `A.<address>.<name>`.
    pub collection_identifier: String,
    pub collection_address: Address,
    /// The contract's name within its account, where the chain has such; else empty.
    pub contract_name: String,
    pub item_id: Amount,
    pub balance: SumOf,
    /// Why `balance` may be below 0; null where it isn't.
    pub below_zero: Option<BelowZero>,
    pub last_height: Num,
}

impl NftHolding {
    pub(crate) fn of(view: &View, row: &Row) -> Result<NftHolding, Problem> {
        let fields = Fields::new(view.table("nft_holdings")?, row);
        let balance = fields.sum("balance")?;
        Ok(NftHolding {
            collection_identifier: view.identifier(&fields, "contract_address")?,
            collection_address: fields.address("contract_address")?,
            contract_name: fields.text("contract_name")?,
            item_id: fields.amount("nft_id")?,
            below_zero: BelowZero::of(view, &balance),
            balance,
            last_height: fields.num("last_height")?,
        })
    }
}
