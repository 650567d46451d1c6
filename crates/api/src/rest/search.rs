//! Search by height, hash, address, and beginning of a token's name.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bytes::Bytes;
use cairn_core::{BlockId, Height, TxId};
use cairn_store::TxPlace;
use cairn_store::derived::{Row, Scan, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::Meta;
use super::chain::{ContractName, RestChain, flow_contract, flow_token};
use super::contracts::Contract;
use super::fields::Fields;
use super::flow::transaction::{look_up_evm, search_evm};
use super::nfts::Collection;
use super::params;
use super::params::Params;
use super::problem::Problem;
use super::tokens::TokenName;
use super::view::View;
use super::words::{Address, Data, Hash, Num};

/// How many names are found at most.
const MAX_NAMES: usize = 20;
/// Rows of names that are read at once.
const ROWS_AT_ONCE: usize = 500;

/// What was found.
#[derive(Debug, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Found {
    /// A block.
    Block { height: Num, id: Hash },
    /// A transaction; on Flow one by the hash of an EVM transaction in it too.
    Transaction { id: Hash, block_height: Num, transaction_index: u32 },
    /// A contract of Flow by its name, known or not. What is known of it is null where the worker behind it is not enabled, or the app database could not be read along with the blocks.
    Contract {
        identifier: String,
        /// Whether a transaction deployed it.
        is_contract: Option<bool>,
        /// Whether a fungible token moved there.
        is_token: Option<bool>,
        /// Whether NFTs of it moved.
        is_nft_collection: Option<bool>,
    },
    /// An address, known or not. What is known of it is null where the worker behind it is not enabled, or the app database could not be read along with the blocks.
    Address {
        address: Address,
        /// Whether a transaction created a contract there.
        is_contract: Option<bool>,
        /// Whether a fungible token moved there.
        is_token: Option<bool>,
        /// Whether NFTs of it moved.
        is_nft_collection: Option<bool>,
    },
    /// An account of Flow that was given this public key, as a block since the archive's first one says, or a node did of what was there before.
    AccountKey {
        address: Address,
        public_key: Data,
        /// Its place among the account's keys; null where the event doesn't say it (before Cadence 1.0).
        key_index: Option<Num>,
        /// The block that gave the account the key; or in which it had it, where that was before the archive's first block.
        block_height: Num,
    },
    /// A fungible token whose name or symbol begins so, or a word in it.
    Token {
        identifier: String,
        address: Address,
        name: Option<String>,
        symbol: Option<String>,
        /// Whether `name` or `symbol` lacks something of what the contract answered: `/v1/tokens/{address}` has the bytes.
        is_sanitised: bool,
    },
    /// A collection of NFTs whose name or symbol begins so, or a word in it.
    NftCollection {
        identifier: String,
        address: Address,
        name: Option<String>,
        symbol: Option<String>,
        /// Whether `name` or `symbol` lacks something of what the contract answered: `/v1/nft-collections/{address}` has the bytes.
        is_sanitised: bool,
    },
}

/// What a search found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchAnswer {
    /// What was found, the surest first.
    pub data: Vec<Found>,
    pub page: SearchPage,
    pub meta: Meta,
}

/// How much was found. There is no next page.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SearchPage {
    /// Null, always.
    pub next: Option<String>,
    /// Null, always.
    pub resume: Option<String>,
    /// The most tokens and collections that are found by name, or accounts by a public key.
    pub limit: u32,
    /// Whether there are, or may be, more tokens and collections whose names begin so than are named here: a longer beginning finds them. Also where a height was
    /// searched for and the app database could not be read: names were then not looked for.
    pub has_more: bool,
}

/// What to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    /// A height, a hash of 64 hex digits, an address of 40 hex digits (on Flow of 16 too, or fewer behind 0x), a contract as `A.<address>.<name>`, on Flow a
    /// public key of 128 or 192 hex digits, or the beginning of a name.
    #[param(min_length = 1, max_length = 200)]
    pub q: String,
}

enum Wanted {
    Height(Height),
    Hash([u8; 32]),
    Address(Bytes),
    /// A contract, and the token that is meant.
    Contract(ContractName, ContractName),
    PublicKey(Bytes),
    Name,
}

/// A public key of Flow: 64 bytes of an ECDSA key, which many write with 04 before them, or 96 of a BLS key.
fn public_key(text: &str) -> Option<Bytes> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let digits = if digits.len() == 130 { digits.strip_prefix("04")? } else { digits };
    let is_key = matches!(digits.len(), 128 | 192);
    is_key.then(|| hex::decode(digits).ok()).flatten().map(Bytes::from)
}

fn wanted(chain: RestChain, text: &str) -> Wanted {
    if let RestChain::Flow(_) = chain {
        if let Some(key) = public_key(text) {
            return Wanted::PublicKey(key);
        }
        // Few hex digits may be a word or a height as well.
        let is_address = text.len() == 16 || text.starts_with("0x") || text.starts_with("0X");
        if let Some(address) = is_address.then(|| chain.address("q", text).ok()).flatten() {
            return Wanted::Address(address);
        }
        if let (Some(contract), Some(token)) = (flow_contract(text), flow_token(text))
            && !contract.name.is_empty()
        {
            return Wanted::Contract(contract, token);
        }
    }
    if let Ok(height) = params::decimal("q", text, params::MAX_HEIGHT_DIGITS) {
        return Wanted::Height(Height(height));
    }
    if let Ok(hash) = params::hash("q", text) {
        return Wanted::Hash(hash);
    }
    params::address("q", text).map_or(Wanted::Name, Wanted::Address)
}

/// Search. A number is a height; it may begin a name too, where names are known. At most 20 tokens and collections are found, the first ones by name; where there may be
/// more, `page.has_more` says so, and a longer beginning finds them.
#[utoipa::path(
    get,
    path = "/v1/search",
    tag = "search",
    params(SearchQuery),
    responses((status = 200, description = "What was found, the surest first", body = SearchAnswer))
)]
pub(crate) async fn search(
    State(api): State<Arc<Api>>,
    Params(query): Params<SearchQuery>,
) -> Result<Json<SearchAnswer>, Problem> {
    let text = query.q.trim();
    let limit = api.limits().max_search_chars;
    if text.is_empty() || query.q.chars().count() > limit {
        return Err(Problem::parameter("q", format!("give 1 to {limit} characters")));
    }
    let wanted = wanted(api.chain(), text);
    let mut data = Vec::new();
    let view = match wanted {
        Wanted::Hash(_) => View::raw(&api).await?,
        Wanted::Height(_) => View::with_welcome(&api, &["search_index"]).await?,
        Wanted::Address(_) | Wanted::Contract(..) => {
            View::with_welcome(&api, &["smart_contracts", "token_stats", "nft_collection_stats"]).await?
        }
        Wanted::PublicKey(_) => View::open(&api, &["account_key_events"], &["account_base_keys"]).await?,
        Wanted::Name => View::open(&api, &["search_index"], &[]).await?,
    };
    match &wanted {
        Wanted::Height(height) => {
            if let Some(linked) = view.chain().linked_ref(*height).await? {
                let id = Hash::of(linked.block.id.as_bytes());
                data.push(Found::Block { height: Num(height.get()), id });
            }
        }
        Wanted::Hash(hash) => {
            if let Some(height) = view.chain().find_block(BlockId(*hash)).await? {
                data.push(Found::Block { height: Num(height.get()), id: Hash::of(hash) });
            }
            let id = TxId(*hash);
            if let Some((place, id)) = transaction(&view, id).await? {
                data.push(Found::Transaction {
                    id: Hash::of(id.as_bytes()),
                    block_height: Num(place.height.get()),
                    transaction_index: place.index,
                });
            }
        }
        Wanted::Address(address) => {
            let alone = ContractName::at(address);
            data.push(Found::Address {
                address: Address(address.clone()),
                is_contract: is_contract(&view, &alone).await?,
                is_token: is_in(&view, "token_stats", &alone).await?,
                is_nft_collection: is_in(&view, "nft_collection_stats", &alone).await?,
            });
        }
        Wanted::Contract(contract, token) => data.push(Found::Contract {
            identifier: view.kind().identifier(&token.address, &token.name),
            is_contract: is_contract(&view, contract).await?,
            is_token: is_in(&view, "token_stats", token).await?,
            is_nft_collection: is_in(&view, "nft_collection_stats", token).await?,
        }),
        Wanted::PublicKey(_) | Wanted::Name => {}
    }
    let term = api.search_term(text);
    // Names that were not looked for may be there.
    let mut has_more = matches!(wanted, Wanted::Height(_)) && view.lacks_tables(&api);
    if let Wanted::PublicKey(key) = &wanted {
        has_more = key_holders(&view, key, &mut data).await?;
    }
    // Of characters that no name has, nothing is left.
    if !term.is_empty() && view.has("search_index")? {
        has_more = names(&view, term, api.limits().max_examined_rows, &mut data).await?;
    }
    let page = SearchPage { next: None, resume: None, limit: MAX_NAMES as u32, has_more };
    Ok(Json(SearchAnswer { data, page, meta: view.meta() }))
}

/// Finds the first accounts that were given a public key; says whether there are more.
async fn key_holders(view: &View, key: &Bytes, data: &mut Vec<Found>) -> Result<bool, Problem> {
    let mut seen = BTreeSet::new();
    let mut has_more = false;
    for (table, height) in [("account_base_keys", "asked_at_height"), ("account_key_events", "block_height")]
    {
        if !view.has(table)? {
            continue;
        }
        let scan = Scan {
            index: Some("by_public_key"),
            prefix: vec![Value::Bytes(key.clone())],
            ..Scan::new(table, ROWS_AT_ONCE)
        };
        let page = view.tables()?.scan(&scan).await?;
        has_more |= page.more.is_some();
        for row in &page.rows {
            let fields = Fields::new(view.table(table)?, row);
            // Other rows of events are of keys that were revoked.
            let is_added = table != "account_key_events" || fields.text("change")? == "added";
            let address = fields.bytes("address")?;
            let key_index = fields.opt_amount("key_index")?.and_then(|index| u64::try_from(index.0).ok());
            if !is_added || !seen.insert((address.clone(), key_index)) {
                continue;
            }
            if data.len() == MAX_NAMES {
                return Ok(true);
            }
            data.push(Found::AccountKey {
                address: Address(address),
                public_key: Data(key.clone()),
                key_index: key_index.map(Num),
                block_height: fields.num(height)?,
            });
        }
    }
    Ok(has_more)
}

/// A transaction by its id, or on Flow by the hash of an EVM transaction in it.
async fn transaction(view: &View, id: TxId) -> Result<Option<(TxPlace, TxId)>, Problem> {
    let RestChain::Flow(network) = view.kind() else {
        return Ok(view.chain().find_tx(id).await?.map(|place| (place, id)));
    };
    let range = view.head().range();
    if let Some(found) = look_up_evm(view, network, id, range).await? {
        return Ok(Some(found));
    }
    match view.chain().find_tx(id).await? {
        Some(place) => Ok(Some((place, id))),
        None => search_evm(view, network, id, range).await,
    }
}

async fn is_contract(view: &View, contract: &ContractName) -> Result<Option<bool>, Problem> {
    match view.has("smart_contracts")? {
        true => Ok(Some(Contract::newest(view, contract).await?.is_some())),
        false => Ok(None),
    }
}

async fn is_in(view: &View, table: &'static str, contract: &ContractName) -> Result<Option<bool>, Problem> {
    if !view.has(table)? {
        return Ok(None);
    }
    let rows = view.tables()?.rows(table, &[contract.key()]).await?;
    Ok(Some(rows.iter().any(Option::is_some)))
}

/// A name as its row of the index has it.
struct Listed {
    contract: (Bytes, String),
    identifier: String,
    kind: NameKind,
    name: Option<String>,
    symbol: Option<String>,
    is_sanitised: bool,
    asked_at: Num,
}

/// What a contract says of itself now.
struct Now {
    name: Option<String>,
    symbol: Option<String>,
    is_sanitised: bool,
    asked_at: Num,
}

/// Whose name it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    Token,
    Collection,
}

impl Listed {
    fn of(view: &View, row: &Row) -> Result<Listed, Problem> {
        let fields = Fields::new(view.table("search_index")?, row);
        let kind = match fields.text("kind")?.as_str() {
            "collection" => NameKind::Collection,
            _ => NameKind::Token,
        };
        Ok(Listed {
            contract: (fields.bytes("contract_address")?, fields.text("contract_name")?),
            identifier: view.identifier(&fields, "contract_address")?,
            kind,
            name: fields.opt_text("name")?,
            symbol: fields.opt_text("symbol")?,
            is_sanitised: false,
            asked_at: fields.num("asked_at_height")?,
        })
    }

    /// With the name and symbol of these, which say when they were asked. `None`: the row is of an older answer, and may be found by a name that is no more.
    fn newest(self, now: Option<Now>) -> Option<Listed> {
        let Some(Now { name, symbol, is_sanitised, asked_at }) = now else { return Some(self) };
        (self.asked_at >= asked_at).then_some(Listed { name, symbol, is_sanitised, ..self })
    }

    fn found(self) -> Found {
        let Listed { contract: (address, _), identifier, kind, name, symbol, is_sanitised, .. } = self;
        let address = Address(address);
        match kind {
            NameKind::Collection => Found::NftCollection { identifier, address, name, symbol, is_sanitised },
            NameKind::Token => Found::Token { identifier, address, name, symbol, is_sanitised },
        }
    }
}

/// Those of the rows that are of the newest answer of their contract, in the same order. A contract that is asked again gets rows for the terms of its new name; those
/// of the former one stay in the index.
async fn of_newest_answers(view: &View, rows: &[Row]) -> Result<Vec<Listed>, Problem> {
    let listed = rows.iter().map(|row| Listed::of(view, row)).collect::<Result<Vec<_>, Problem>>()?;
    let of = |kind| -> Vec<(Bytes, String)> {
        listed.iter().filter(|one| one.kind == kind).map(|one| one.contract.clone()).collect()
    };
    let tokens = TokenName::of_tokens(view, &of(NameKind::Token)).await?;
    let collections = Collection::names(view, &of(NameKind::Collection)).await?;
    let mut tokens = tokens.into_iter().map(|now| {
        now.map(|now| Now {
            is_sanitised: now.name_sanitised || now.symbol_sanitised,
            name: now.name,
            symbol: now.symbol,
            asked_at: now.asked_at_height,
        })
    });
    let mut collections = collections.into_iter().map(|now| {
        now.map(|now| Now {
            is_sanitised: now.name_sanitised || now.symbol_sanitised,
            name: now.name,
            symbol: now.symbol,
            asked_at: now.asked_at_height,
        })
    });
    let newest = listed.into_iter().filter_map(|one| {
        let now = match one.kind {
            NameKind::Token => tokens.next(),
            NameKind::Collection => collections.next(),
        };
        one.newest(now.flatten())
    });
    Ok(newest.collect())
}

/// Finds the first names that begin so; says whether there may be more. A token has a row for each word of its name, so few of them may fill many rows.
async fn names(view: &View, term: String, max_rows: usize, data: &mut Vec<Found>) -> Result<bool, Problem> {
    // U+10FFFF sorts after every other character, byte by byte too.
    let end = format!("{term}\u{10ffff}");
    let mut scan = Scan {
        lower: Bound::Included(vec![Value::text(term)]),
        upper: Bound::Included(vec![Value::text(end)]),
        ..Scan::new("search_index", ROWS_AT_ONCE)
    };
    let mut seen = Vec::new();
    let mut left = max_rows;
    loop {
        scan.limit = left.clamp(1, ROWS_AT_ONCE);
        let page = view.tables()?.scan(&scan).await?;
        left = left.saturating_sub(page.rows.len().max(1));
        for listed in of_newest_answers(view, &page.rows).await? {
            let contract = (listed.kind, listed.identifier.clone());
            // Several words of one name may begin so.
            if seen.contains(&contract) {
                continue;
            }
            if seen.len() == MAX_NAMES {
                return Ok(true);
            }
            seen.push(contract);
            data.push(listed.found());
        }
        match page.more {
            None => return Ok(false),
            Some(_) if left == 0 => return Ok(true),
            Some(last) => scan.lower = Bound::Excluded(last),
        }
    }
}
