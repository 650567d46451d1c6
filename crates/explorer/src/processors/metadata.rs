//! What is the same of every chain's `token_metadata_worker`: whom it asks about, and the rows of what was answered.

use std::collections::BTreeSet;

use alloy_primitives::U256;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_store::derived::{Key, Row, Value};

use crate::decode::{Said, TextLimit, clean};
use crate::tables::metadata::{NFT_COLLECTIONS, SEARCH_INDEX, TOKEN_ANSWER_BYTES, TOKEN_CONTRACTS, TOKENS};
use crate::tables::{opt, opt_bytes};

/// The most terms by which one token is found.
const MAX_TERMS: usize = 8;
/// The longest term, in bytes: more than anybody types.
const MAX_TERM_BYTES: usize = 256;
/// The longest message that a row keeps, in characters and bytes.
pub(super) const MESSAGE_LIMIT: TextLimit = TextLimit { chars: 500, bytes: 1000 };

const FT: &str = "ft";
const NFT: &str = "nft";

/// What is asked about.
pub(super) struct Subject {
    /// The contract's address.
    pub contract: Bytes,
    /// Its name within the account, where the chain has such.
    pub name: String,
    /// Whether it is asked about as a collection of NFTs.
    pub is_nft: bool,
}

impl Subject {
    /// From a key of `token_contracts`.
    pub fn of(key: &Key) -> Option<Subject> {
        let [contract, name, family] = &key.0[..] else { return None };
        Some(Subject {
            contract: contract.as_bytes()?.clone(),
            name: name.as_text()?.to_owned(),
            is_nft: family.as_text()? == NFT,
        })
    }

    fn contract(&self) -> Value {
        Value::Bytes(self.contract.clone())
    }

    fn name(&self) -> Value {
        Value::text(self.name.clone())
    }

    fn family(&self) -> Value {
        Value::text(if self.is_nft { NFT } else { FT })
    }
}

/// The subject that a row of transfers names. Both tables have the contract and its name in the same places.
pub(super) fn wanted(table: usize, row: &Row, wanted: &mut Vec<Key>) {
    if let (Some(contract), Some(name)) = (row.0.get(6), row.0.get(7)) {
        let family = if table == 0 { FT } else { NFT };
        wanted.push(Key(vec![contract.clone(), name.clone(), Value::text(family)]));
    }
}

/// The rows that say that nobody could be asked.
pub(super) fn given_up(key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
    let subject = Subject::of(key);
    subject.map(|subject| nothing_of(&subject, "failed", Some(message), at)).unwrap_or_default()
}

/// The rows that say that nothing is known of it, and why.
pub(super) fn nothing_of(
    subject: &Subject,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> Vec<(&'static str, Row)> {
    let found = if subject.is_nft {
        collection(subject, &Answered::default(), None, status, at)
    } else {
        token(subject, &Answered::default(), status, at)
    };
    vec![asked(subject, status, message, at), found]
}

/// What a contract says of itself, its names cleaned. A collection has neither decimals nor supply.
#[derive(Default)]
pub(super) struct Answered {
    pub name: Said<String>,
    pub symbol: Said<String>,
    pub decimals: Said<u8>,
    pub supply: Said<U256>,
}

impl Answered {
    fn names(&self) -> [Value; 2] {
        [&self.name, &self.symbol].map(|said| opt(said.value.clone(), Value::text))
    }

    /// The bytes of what the other rows don't say as it was answered.
    fn bytes(&self, subject: &Subject, at: BlockRef) -> Option<(&'static str, Row)> {
        let bytes = [&self.name.bytes, &self.symbol.bytes, &self.decimals.bytes, &self.supply.bytes];
        if bytes.iter().all(|bytes| bytes.is_none()) {
            return None;
        }
        let mut row = vec![subject.contract(), subject.name(), subject.family()];
        row.extend(bytes.map(opt_bytes));
        row.push(Value::height(at.height));
        Some((TOKEN_ANSWER_BYTES.name, Row(row)))
    }
}

/// How much was answered.
pub(super) fn status(answered: &[bool]) -> &'static str {
    match (answered.iter().all(|is| *is), answered.iter().any(|is| *is)) {
        (true, _) => "ok",
        (false, true) => "partial",
        (false, false) => "silent",
    }
}

/// That it was asked about.
pub(super) fn asked(
    subject: &Subject,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> (&'static str, Row) {
    let row = Row(vec![
        subject.contract(),
        subject.name(),
        subject.family(),
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT))),
        Value::height(at.height),
    ]);
    (TOKEN_CONTRACTS.name, row)
}

/// What a fungible token says of itself.
pub(super) fn token(
    subject: &Subject,
    answered: &Answered,
    status: &'static str,
    at: BlockRef,
) -> (&'static str, Row) {
    let [name, symbol] = answered.names();
    let row = Row(vec![
        subject.contract(),
        subject.name(),
        name,
        symbol,
        opt(answered.decimals.value, |decimals| Value::uint(decimals.into())),
        opt(answered.supply.value, Value::Amount),
        Value::text(status),
        Value::height(at.height),
    ]);
    (TOKENS.name, row)
}

/// What a collection says of itself.
pub(super) fn collection(
    subject: &Subject,
    answered: &Answered,
    standard: Option<&'static str>,
    status: &'static str,
    at: BlockRef,
) -> (&'static str, Row) {
    let [name, symbol] = answered.names();
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

/// The terms to find it by, and the bytes of what was answered where the rows don't say it as it was.
pub(super) fn further(
    subject: &Subject,
    answered: &Answered,
    at: BlockRef,
) -> impl Iterator<Item = (&'static str, Row)> {
    let row = move |term: String| {
        let [name, symbol] = answered.names();
        let row = Row(vec![
            Value::text(term),
            Value::text(if subject.is_nft { "collection" } else { "token" }),
            subject.contract(),
            subject.name(),
            name,
            symbol,
            Value::height(at.height),
        ]);
        (SEARCH_INDEX.name, row)
    };
    let terms = search_terms(answered.name.value.as_deref(), answered.symbol.value.as_deref());
    terms.into_iter().map(row).chain(answered.bytes(subject, at))
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
    let mut term = clean(text, TextLimit::NAME).to_lowercase();
    if term.len() > MAX_TERM_BYTES {
        let end = (0..=MAX_TERM_BYTES).rev().find(|at| term.is_char_boundary(*at)).unwrap_or(0);
        term.truncate(end);
    }
    term
}
