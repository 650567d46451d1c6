//! `token_metadata_worker`: names, symbols, decimals and supply of the contracts whose tokens moved, and the terms to find them by.
//!
//! A contract is asked once. What it answers is a stranger's: broken answers are as good as none, and texts are cleaned.

use std::collections::BTreeSet;
use std::sync::Arc;

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::node::{CallAnswer, ContractNode};
use crate::decode::evm::calls;
use crate::decode::{TextLimit, clean};
use crate::names::{TOKEN_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::tables::metadata::{NFT_COLLECTIONS, SEARCH_INDEX, TOKEN_CONTRACTS, TOKENS};
use crate::tables::opt;
use crate::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TOKEN_METADATA_WORKER,
    version: 1,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TOKEN_CONTRACTS, &TOKENS, &NFT_COLLECTIONS, &SEARCH_INDEX],
};

static READS: &[&TableDef] = &[&FT_TRANSFERS, &NFT_TRANSFERS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.node.as_ref()?);
    Some(Processor::Enricher(Arc::new(TokenMetadataWorker { node })))
}

/// The most terms by which one token is found.
const MAX_TERMS: usize = 8;
/// The longest term, in bytes: more than anybody types.
const MAX_TERM_BYTES: usize = 256;
/// The longest message that a row keeps, in characters and bytes.
pub(super) const MESSAGE_LIMIT: TextLimit = TextLimit { chars: 500, bytes: 1000 };

const FT: &str = "ft";
const NFT: &str = "nft";

struct TokenMetadataWorker {
    node: Arc<dyn ContractNode>,
}

#[async_trait]
impl Enricher for TokenMetadataWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, table: usize, row: &Row, wanted: &mut Vec<Key>) {
        // Both tables have the contract and its name in the same places.
        if let (Some(contract), Some(name)) = (row.0.get(6), row.0.get(7)) {
            let family = if table == 0 { FT } else { NFT };
            wanted.push(Key(vec![contract.clone(), name.clone(), Value::text(family)]));
        }
    }

    fn known_in(&self) -> &'static TableDef {
        &TOKEN_CONTRACTS
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some(subject) = Subject::of(key) else { return Ok(Asked::Nothing) };
        if subject.is_nft {
            self.ask_collection(&subject, at).await
        } else {
            self.ask_token(&subject, at).await
        }
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        let Some(subject) = Subject::of(key) else { return Vec::new() };
        let found = if subject.is_nft {
            collection(&subject, &Named::default(), None, "failed", at)
        } else {
            token(&subject, &Named::default(), None, None, "failed", at)
        };
        vec![asked(&subject, "failed", Some(message), at), found]
    }
}

impl TokenMetadataWorker {
    async fn ask_token(&self, subject: &Subject, at: BlockRef) -> Result<Asked, AskError> {
        let (name, symbol, decimals, supply) = futures::try_join!(
            self.call(subject.contract, calls::plain(calls::NAME), at),
            self.call(subject.contract, calls::plain(calls::SYMBOL), at),
            self.call(subject.contract, calls::plain(calls::DECIMALS), at),
            self.call(subject.contract, calls::plain(calls::TOTAL_SUPPLY), at),
        )?;
        let named = Named::read(&name, &symbol);
        let decimals = calls::decimals(&decimals).ok().flatten();
        let supply = calls::uint(&supply).ok().flatten();
        let answered = [named.name.is_some(), named.symbol.is_some(), decimals.is_some(), supply.is_some()];
        let status = status(&answered);
        let mut rows =
            vec![asked(subject, status, None, at), token(subject, &named, decimals, supply, status, at)];
        rows.extend(terms(subject, "token", &named, at));
        Ok(Asked::Rows(rows))
    }

    async fn ask_collection(&self, subject: &Subject, at: BlockRef) -> Result<Asked, AskError> {
        let (name, symbol, erc721, erc1155) = futures::try_join!(
            self.call(subject.contract, calls::plain(calls::NAME), at),
            self.call(subject.contract, calls::plain(calls::SYMBOL), at),
            self.call(subject.contract, calls::supports_interface(calls::INTERFACE_ERC721), at),
            self.call(subject.contract, calls::supports_interface(calls::INTERFACE_ERC1155), at),
        )?;
        let named = Named::read(&name, &symbol);
        let supports = |answer: &[u8]| matches!(calls::boolean(answer), Ok(Some(true)));
        let standard = match (supports(&erc721), supports(&erc1155)) {
            (true, _) => Some("erc721"),
            (false, true) => Some("erc1155"),
            (false, false) => None,
        };
        // ERC-1155 has neither name nor symbol.
        let may_be_nameless = standard == Some("erc1155");
        let answered = [
            named.name.is_some() || may_be_nameless,
            named.symbol.is_some() || may_be_nameless,
            standard.is_some(),
        ];
        let status = status(&answered);
        let mut rows =
            vec![asked(subject, status, None, at), collection(subject, &named, standard, status, at)];
        rows.extend(terms(subject, "collection", &named, at));
        Ok(Asked::Rows(rows))
    }

    /// What a call returns; nothing where the contract refused, or answered more than anybody should.
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<bytes::Bytes, AskError> {
        Ok(match self.node.call(to, input, at).await? {
            CallAnswer::Returned(answer) if answer.len() <= calls::MAX_RETURN_BYTES => answer,
            CallAnswer::Returned(_) | CallAnswer::Reverted => bytes::Bytes::new(),
        })
    }
}

/// What is asked about.
struct Subject {
    contract: Address,
    name: String,
    is_nft: bool,
}

impl Subject {
    fn of(key: &Key) -> Option<Subject> {
        let [contract, name, family] = &key.0[..] else { return None };
        Some(Subject {
            contract: Address::try_from(&contract.as_bytes()?[..]).ok()?,
            name: name.as_text()?.to_owned(),
            is_nft: family.as_text()? == NFT,
        })
    }

    fn contract(&self) -> Value {
        Value::bytes(self.contract.as_slice())
    }

    fn name(&self) -> Value {
        Value::text(self.name.clone())
    }
}

/// Cleaned names; an empty one is none.
#[derive(Default)]
struct Named {
    name: Option<String>,
    symbol: Option<String>,
}

impl Named {
    fn read(name: &[u8], symbol: &[u8]) -> Named {
        let text = |answer, limit| {
            let cleaned = calls::text(answer, limit).ok().flatten()?.text;
            Some(cleaned).filter(|text| !text.is_empty())
        };
        Named { name: text(name, TextLimit::NAME), symbol: text(symbol, TextLimit::SYMBOL) }
    }

    fn values(&self) -> [Value; 2] {
        [opt(self.name.clone(), Value::text), opt(self.symbol.clone(), Value::text)]
    }
}

fn status(answered: &[bool]) -> &'static str {
    match (answered.iter().all(|is| *is), answered.iter().any(|is| *is)) {
        (true, _) => "ok",
        (false, true) => "partial",
        (false, false) => "silent",
    }
}

fn asked(
    subject: &Subject,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> (&'static str, Row) {
    let row = Row(vec![
        subject.contract(),
        subject.name(),
        Value::text(if subject.is_nft { NFT } else { FT }),
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT).text)),
        Value::height(at.height),
    ]);
    (TOKEN_CONTRACTS.name, row)
}

fn token(
    subject: &Subject,
    named: &Named,
    decimals: Option<u8>,
    supply: Option<U256>,
    status: &'static str,
    at: BlockRef,
) -> (&'static str, Row) {
    let [name, symbol] = named.values();
    let row = Row(vec![
        subject.contract(),
        subject.name(),
        name,
        symbol,
        opt(decimals, |decimals| Value::uint(decimals.into())),
        opt(supply, Value::Amount),
        Value::text(status),
        Value::height(at.height),
    ]);
    (TOKENS.name, row)
}

fn collection(
    subject: &Subject,
    named: &Named,
    standard: Option<&'static str>,
    status: &'static str,
    at: BlockRef,
) -> (&'static str, Row) {
    let [name, symbol] = named.values();
    let row = Row(vec![
        subject.contract(),
        subject.name(),
        name,
        symbol,
        opt(standard, Value::text),
        Value::text(status),
        Value::height(at.height),
    ]);
    (NFT_COLLECTIONS.name, row)
}

fn terms(subject: &Subject, kind: &'static str, named: &Named, at: BlockRef) -> Vec<(&'static str, Row)> {
    let row = |term: String| {
        let [name, symbol] = named.values();
        let row = Row(vec![
            Value::text(term),
            Value::text(kind),
            subject.contract(),
            subject.name(),
            name,
            symbol,
            Value::height(at.height),
        ]);
        (SEARCH_INDEX.name, row)
    };
    search_terms(named.name.as_deref(), named.symbol.as_deref()).into_iter().map(row).collect()
}

/// The terms under which a name and a symbol are found, without repeats: both whole, and each rest of the name that begins with a word; in
/// lower case. What is searched for goes through [`search_term`].
pub fn search_terms(name: Option<&str>, symbol: Option<&str>) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    let whole = symbol.into_iter().chain(name);
    let rests = name.into_iter().flat_map(|name| name.match_indices(' ').map(move |(at, _)| &name[at + 1..]));
    for text in whole.chain(rests) {
        if terms.len() == MAX_TERMS {
            break;
        }
        let term = search_term(text);
        if !term.is_empty() {
            terms.insert(term);
        }
    }
    terms
}

/// A text in the form in which terms are kept: cleaned, in lower case, cut.
pub fn search_term(text: &str) -> String {
    let mut term = clean(text, TextLimit::NAME).text.to_lowercase();
    if term.len() > MAX_TERM_BYTES {
        let end = (0..=MAX_TERM_BYTES).rev().find(|at| term.is_char_boundary(*at)).unwrap_or(0);
        term.truncate(end);
    }
    term
}
