//! What nodes say of tokens: `tokens`, `nft_collections`, `nft_metadata`, the `search_index` of their names, and which contracts were asked
//! (`token_contracts`). Answers: each says at which block a node was asked, and gates nothing.
//!
//! Names are cleaned ([`crate::decode::clean`]): anybody can choose any name, so a name never identifies a token. Where a row doesn't say what was
//! answered as it was, `token_answer_bytes` and `nft_uri_bytes` have the bytes, of the same `asked_at_height`; those of another height are of an older answer.
//! `status` is `ok`, `partial` (something was answered, and something not), `silent` (the contract answers none of it), `no-code` (at that block there is no contract any
//! more, as a node says that was asked again) or `failed` (no node could be asked, or what was asked failed, as a script of Flow's may; `message` says why).

use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_store::derived::{ColumnType, IndexDef, Row, TableClass, TableDef, Value, column};

use crate::names::{NFT_METADATA_WORKER, TOKEN_METADATA_WORKER};

/// The contracts that were asked. `family` is `ft` or `nft`: a contract can be both.
pub static TOKEN_CONTRACTS: TableDef = TableDef {
    name: "token_contracts",
    service: TOKEN_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("family", ColumnType::Text),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name", "family"],
    indexes: &[],
};

/// Fungible tokens. `total_supply` is that of the block that was asked at.
pub static TOKENS: TableDef = TableDef {
    name: "tokens",
    service: TOKEN_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("name", ColumnType::Text).nullable(),
        column("symbol", ColumnType::Text).nullable(),
        column("decimals", ColumnType::Int).nullable(),
        column("total_supply", ColumnType::Amount).nullable(),
        column("status", ColumnType::Text),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name"],
    indexes: &[],
};

/// Collections of NFTs. `standard` is what the contract says that it supports: `erc721`, `erc1155`, or null where it says neither.
pub static NFT_COLLECTIONS: TableDef = TableDef {
    name: "nft_collections",
    service: TOKEN_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("name", ColumnType::Text).nullable(),
        column("symbol", ColumnType::Text).nullable(),
        column("standard", ColumnType::Text).nullable(),
        column("status", ColumnType::Text),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name"],
    indexes: &[],
};

/// The bytes that a contract answered, bounded, where the row of `tokens` or `nft_collections` says something else or nothing: a text that was cleaned
/// or cut, decimals above 255, what can't be read. Null where it says what was answered. `family` is `ft` or `nft`.
pub static TOKEN_ANSWER_BYTES: TableDef = TableDef {
    name: "token_answer_bytes",
    service: TOKEN_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("family", ColumnType::Text),
        column("name", ColumnType::Bytes).nullable(),
        column("symbol", ColumnType::Bytes).nullable(),
        column("decimals", ColumnType::Bytes).nullable(),
        column("total_supply", ColumnType::Bytes).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name", "family"],
    indexes: &[],
};

/// Names to find tokens by: a walk of the key from a prefix. `term` is a name or symbol in lower case, and each rest of a name that begins
/// with a word. `kind` is `token` or `collection`.
pub static SEARCH_INDEX: TableDef = TableDef {
    name: "search_index",
    service: TOKEN_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("term", ColumnType::Text),
        column("kind", ColumnType::Text),
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("name", ColumnType::Text).nullable(),
        column("symbol", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["term", "kind", "contract_address", "contract_name"],
    indexes: &[IndexDef { name: "by_contract", columns: &["contract_address", "contract_name"] }],
};

/// The URIs of single NFTs, cleaned text; nobody fetches them.
pub static NFT_METADATA: TableDef = TableDef {
    name: "nft_metadata",
    service: NFT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("nft_id", ColumnType::Amount),
        column("token_uri", ColumnType::Text).nullable(),
        column("status", ColumnType::Text),
        column("message", ColumnType::Text).nullable(),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name", "nft_id"],
    indexes: &[],
};

/// The bytes of a URI, bounded, where `nft_metadata` doesn't have it as it was answered.
pub static NFT_URI_BYTES: TableDef = TableDef {
    name: "nft_uri_bytes",
    service: NFT_METADATA_WORKER,
    class: TableClass::Answers,
    columns: &[
        column("contract_address", ColumnType::Bytes),
        column("contract_name", ColumnType::Text),
        column("nft_id", ColumnType::Amount),
        column("token_uri", ColumnType::Bytes),
        column("asked_at_height", ColumnType::Int),
    ],
    key: &["contract_address", "contract_name", "nft_id"],
    indexes: &[],
};

/// A row of [`NFT_URI_BYTES`]; `item` is its key.
pub fn nft_uri_bytes(item: &[Value], uri: Bytes, at: BlockRef) -> (&'static str, Row) {
    let values = item.iter().cloned().chain([Value::Bytes(uri), Value::height(at.height)]);
    (NFT_URI_BYTES.name, Row(values.collect()))
}
