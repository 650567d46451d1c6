//! What nodes were asked: `token_contracts`, `tokens`, `nft_collections`, `search_index`, `nft_asks`, `nft_metadata`, `contract_version_code`,
//! `contract_code_hashes`, `contract_code`.
//!
//! Each answer is that of the ledger at the block at which it says that it was asked. Everything that the chain names was asked, and nothing else, whatever was
//! taken back; and of an item or contract about which there were several questions, the newest answer to them is there.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cairn_explorer::tables::contracts::{CONTRACT_CODE, CONTRACT_CODE_HASHES};
use cairn_explorer::tables::flow::contracts::CONTRACT_VERSION_CODE;
use cairn_explorer::tables::flow::nfts::NFT_ASKS;
use cairn_explorer::tables::metadata::{
    NFT_COLLECTIONS, NFT_METADATA, NFT_URI_BYTES, SEARCH_INDEX, TOKEN_ANSWER_BYTES, TOKEN_CONTRACTS, TOKENS,
};
use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{ContractChange, Deed};
use cairn_flow_node::ledger::{Code, ContractId};
use cairn_flow_node::scripts;
use cairn_store::derived::TableDef;

use super::evm_tokens;
use super::ledger::{Truth, account, contract, is_transfer};
use super::rows::{Cell, Expected, GIVEN, Row, Tables, bytes, number, text};

/// The height at which a row says that it was asked.
fn asked_at(truth: &Truth<'_>, row: &Row<'_>, of: &TableDef) -> Result<u64> {
    let height: u64 = row.number("asked_at_height")?;
    let is_there = (truth.root..=truth.height).contains(&height);
    ensure!(is_there, "{}: asked_at_height is {height}: the chain has no such block", of.name);
    Ok(height)
}

fn contract_of(row: &Row<'_>, address: &str) -> Result<ContractId> {
    let owner: FlowAddress = row.said(address)?.parse().context("no account's address")?;
    Ok(ContractId::new(owner, &row.said("contract_name")?))
}

/// Rows of answers: `wanted` are the keys that have to be there, and no others; `answer` is the rest of a row from its key and height.
fn answers(
    truth: &Truth<'_>,
    found: &Tables,
    def: &'static TableDef,
    wanted: BTreeSet<Vec<Cell>>,
    answer: impl Fn(&Row<'_>, u64) -> Result<Vec<Cell>>,
) -> Result<Expected> {
    let mut expected = Expected::of(def)?;
    for row in found.rows(def)?.iter() {
        let key: Vec<Cell> = def.key.iter().map(|column| row.cell(column)).collect::<Result<_>>()?;
        if wanted.contains(&key) {
            let height = asked_at(truth, &row, def)?;
            let mut cells = key;
            cells.extend(answer(&row, height)?);
            cells.push(number(height));
            expected.add(cells)?;
        }
    }
    for key in wanted.into_iter().filter(|key| !expected.has(key)).collect::<Vec<_>>() {
        // It isn't there, so nobody knows when it would have been asked.
        let mut cells = key;
        cells.resize(def.columns.len(), Some(GIVEN.to_owned()));
        expected.add(cells)?;
    }
    Ok(expected)
}

/// By the first columns of its key: the highest block at which each question of a table was asked.
fn newest(
    found: &Tables,
    def: &'static TableDef,
    columns: usize,
    counts: impl Fn(&Row<'_>) -> Result<bool>,
) -> Result<BTreeMap<Vec<Cell>, u64>> {
    let mut newest = BTreeMap::new();
    for row in found.rows(def)?.iter() {
        if counts(&row)? {
            let key: Vec<Cell> =
                def.key[..columns].iter().map(|column| row.cell(column)).collect::<Result<_>>()?;
            let height: u64 = row.number("asked_at_height")?;
            newest.entry(key).and_modify(|other: &mut u64| *other = height.max(*other)).or_insert(height);
        }
    }
    Ok(newest)
}

/// Demands that a row is the newest answer.
fn demand_newest(
    newest: &BTreeMap<Vec<Cell>, u64>,
    row: &Row<'_>,
    def: &TableDef,
    height: u64,
) -> Result<()> {
    let key: Vec<Cell> = def.key.iter().map(|column| row.cell(column)).collect::<Result<_>>()?;
    let of = newest.get(&key);
    ensure!(
        of == Some(&height),
        "{}: asked_at_height of {key:?} is {height}; the newest answer is of {of:?}",
        def.name
    );
    Ok(())
}

/// The tokens that moved, but for fees.
fn tokens_of<'l>(truth: &Truth<'l>) -> BTreeSet<&'l ContractId> {
    truth.tokens().filter(|one| is_transfer(one.moved)).map(|one| &one.moved.token).collect()
}

/// The collections whose items moved.
fn collections_of<'l>(truth: &Truth<'l>) -> BTreeSet<&'l ContractId> {
    truth.items().iter().map(|one| &one.moved.collection).collect()
}

fn has_items(truth: &Truth<'_>, collection: &ContractId, height: u64) -> bool {
    truth.ledger.items.all_at(height).any(|((of, _), _)| of == collection)
}

fn status(is_known: bool) -> Cell {
    text(if is_known { "ok" } else { "silent" })
}

/// The keys of contracts of accounts, and of those of the EVM: of tokens or of collections.
fn keys(truth: &Truth<'_>, is_item: bool) -> Result<Vec<Vec<Cell>>> {
    let of_accounts = if is_item { collections_of(truth) } else { tokens_of(truth) };
    let of_accounts = of_accounts.into_iter().map(|of| contract(of).to_vec());
    let of_evm = evm_tokens::contracts(truth, is_item)?;
    Ok(of_accounts.chain(of_evm.into_iter().map(|of| vec![bytes(of), text("")])).collect())
}

/// Whether a row is of a contract of the EVM: those have no name.
fn is_of_evm(row: &Row<'_>) -> Result<bool> {
    Ok(row.said("contract_name")?.is_empty())
}

/// The name and symbol of a row's contract of the EVM.
fn evm_names(truth: &Truth<'_>, row: &Row<'_>) -> Result<(String, String)> {
    let contract = row.said("contract_address")?;
    truth.names.evm(&contract).with_context(|| format!("tokens: nobody knows the name of 0x{contract}"))
}

/// `token_contracts`: who was asked.
pub fn asked(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let of_family = |is_item: bool, family: &str| -> Result<Vec<Vec<Cell>>> {
        let keys = keys(truth, is_item)?.into_iter();
        Ok(keys.map(|key| key.into_iter().chain([text(family)]).collect()).collect())
    };
    let wanted = of_family(false, "ft")?.into_iter().chain(of_family(true, "nft")?).collect();
    answers(truth, found, &TOKEN_CONTRACTS, wanted, |row, height| {
        if is_of_evm(row)? {
            let is_token = row.said("family")? == "ft";
            return Ok(vec![text(if is_token { "ok" } else { "partial" }), None]);
        }
        let of = contract_of(row, "contract_address")?;
        let is_known = match row.said("family")?.as_str() {
            "ft" => truth.ledger.supplies.at(&of, height).is_some(),
            _ => has_items(truth, &of, height),
        };
        Ok(vec![status(is_known), None])
    })
}

/// `tokens`: what they say of themselves, and how many there were.
pub fn tokens(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let wanted = keys(truth, false)?.into_iter().collect();
    answers(truth, found, &TOKENS, wanted, |row, height| {
        if is_of_evm(row)? {
            let (name, symbol) = evm_names(truth, row)?;
            let number = number(scripts::EVM_DECIMALS);
            return Ok(vec![text(name), text(symbol), number.clone(), number, text("ok")]);
        }
        let of = contract_of(row, "contract_address")?;
        let supply = truth.ledger.supplies.at(&of, height);
        let (name, symbol) = supply.map(|_| truth.token_names(&of)).transpose()?.unzip();
        Ok(vec![name, symbol, number(8), supply.and_then(number), status(supply.is_some())])
    })
}

/// `nft_collections`.
pub fn collections(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let wanted = keys(truth, true)?.into_iter().collect();
    answers(truth, found, &NFT_COLLECTIONS, wanted, |row, height| {
        if is_of_evm(row)? {
            let (name, symbol) = evm_names(truth, row)?;
            return Ok(vec![text(name), text(symbol), None, text("partial")]);
        }
        let of = contract_of(row, "contract_address")?;
        let is_known = has_items(truth, &of, height);
        let said = |cell: Cell| cell.filter(|_| is_known);
        let name = is_known.then(|| truth.collection_name(&of)).transpose()?;
        Ok(vec![name, None, said(text("cadence-nft")), status(is_known)])
    })
}

/// The words by which something is found: its symbol, its name, and each rest of it that begins with a word, all in lower case.
fn terms(name: &str, symbol: Option<&str>) -> BTreeSet<String> {
    let rests = name.match_indices(' ').map(|(at, _)| &name[at + 1..]);
    symbol.into_iter().chain([name]).chain(rests).map(str::to_lowercase).collect()
}

/// `search_index`: every word of every token and collection whose name is known.
pub fn words(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut wanted = BTreeSet::new();
    let tables = [(&TOKENS, "token"), (&NFT_COLLECTIONS, "collection")];
    for (table, kind) in tables {
        for row in found.rows(table)?.iter().filter(|row| row.cell("name").is_ok_and(|name| name.is_some())) {
            let symbol = row.cell("symbol")?;
            for term in terms(&row.said("name")?, symbol.as_deref()) {
                let (address, name) = (row.cell("contract_address")?, row.cell("contract_name")?);
                wanted.insert(vec![text(term), text(kind), address, name]);
            }
        }
    }
    answers(truth, found, &SEARCH_INDEX, wanted, |row, _| {
        let (name, symbol) = match row.said("kind")?.as_str() {
            _ if is_of_evm(row)? => {
                let (name, symbol) = evm_names(truth, row)?;
                (name, text(symbol))
            }
            "token" => {
                let (name, symbol) = truth.token_names(&contract_of(row, "contract_address")?)?;
                (name, text(symbol))
            }
            _ => (truth.collection_name(&contract_of(row, "contract_address")?)?, None),
        };
        let term = row.said("term")?;
        let is_term = terms(&name, symbol.as_deref()).contains(&term);
        ensure!(is_term, "search_index: {name} is not found by {term:?}");
        Ok(vec![text(name), symbol])
    })
}

fn item_of(row: &Row<'_>) -> Result<(ContractId, u64)> {
    Ok((contract_of(row, "contract_address")?, row.number("nft_id")?))
}

/// `nft_asks`: every item was asked in the collection of everybody who got it.
pub fn asks(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let takers = truth.items().into_iter().filter_map(|one| Some((one.moved, one.moved.to?)));
    let wanted = takers.map(|(moved, to)| {
        let [address, name] = contract(&moved.collection);
        vec![address, name, number(moved.id), account(to)]
    });
    let of_evm = evm_tokens::asked_items(truth)?.into_iter();
    let of_evm = of_evm.map(|(of, id)| vec![bytes(of), text(""), number(id), bytes([])]);
    answers(truth, found, &NFT_ASKS, wanted.chain(of_evm).collect(), |row, height| {
        if is_of_evm(row)? {
            return Ok(vec![text("silent"), None]);
        }
        let owner: FlowAddress = row.said("owner_address")?.parse().context("no account's address")?;
        let item = truth.ledger.items.at(&item_of(row)?, height);
        let is_held = item.is_some_and(|item| item.owner == Some(owner));
        Ok(vec![text(if is_held { "ok" } else { "not-held" }), None])
    })
}

/// `nft_metadata`: where the picture is of every item that somebody had who was asked, by the newest answer.
pub fn pictures(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let newest = newest(found, &NFT_ASKS, 3, |row| Ok(row.said("status")? == "ok"))?;
    let of_evm = evm_tokens::asked_items(truth)?.into_iter();
    let of_evm = of_evm.map(|(of, id)| vec![bytes(of), text(""), number(id)]);
    answers(truth, found, &NFT_METADATA, newest.keys().cloned().chain(of_evm).collect(), |row, height| {
        if is_of_evm(row)? {
            return Ok(vec![None, text("silent"), None]);
        }
        demand_newest(&newest, row, &NFT_METADATA, height)?;
        let (of, id) = item_of(row)?;
        let owned = truth.ledger.items.at(&(of.clone(), id), height).and_then(|item| item.owner);
        ensure!(owned.is_some(), "nft_metadata: nobody had item {id} of {of} at {height}");
        Ok(vec![text(truth.picture(&of, id)?), text("ok"), None])
    })
}

/// `token_answer_bytes`: none, since every name is shown as it is said.
pub fn altered_names(_: &Truth<'_>, _: &Tables) -> Result<Expected> {
    Expected::of(&TOKEN_ANSWER_BYTES)
}

/// `nft_uri_bytes`: none, likewise.
pub fn altered_pictures(_: &Truth<'_>, _: &Tables) -> Result<Expected> {
    Expected::of(&NFT_URI_BYTES)
}

fn code_at<'l>(truth: &Truth<'l>, of: &ContractId, height: u64) -> Option<&'l Code> {
    truth.ledger.accounts.at(&of.address, height)?.contracts.get(&of.name)
}

/// Versions of contracts that were set, each with the hash of its code.
fn set<'l>(truth: &Truth<'l>) -> impl Iterator<Item = (&'l ContractId, [u8; 32])> + use<'l> {
    truth.deeds().filter_map(|(_, done)| match &done.deed {
        Deed::ContractChanged { change: ContractChange::Removed, .. } => None,
        Deed::ContractChanged { contract, code_hash, .. } => Some((contract, *code_hash)),
        _ => None,
    })
}

/// `contract_version_code`: what became of every version by the time that it was asked about.
pub fn versions(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let wanted = set(truth).map(|(of, hash)| {
        let [address, name] = contract(of);
        vec![address, name, bytes(hash)]
    });
    answers(truth, found, &CONTRACT_VERSION_CODE, wanted.collect(), |row, height| {
        let code = code_at(truth, &contract_of(row, "address")?, height);
        let hash = row.cell("code_hash")?;
        let status = match code {
            None => "empty",
            Some(code) if bytes(code.hash) == hash => "ok",
            Some(_) => "superseded",
        };
        Ok(vec![text(status), None])
    })
}

/// `contract_code_hashes`: the code that every contract had when it was asked about last.
pub fn hashes(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let wanted = set(truth).map(|(of, _)| contract(of).to_vec()).collect();
    let newest = newest(found, &CONTRACT_VERSION_CODE, 2, |_| Ok(true))?;
    answers(truth, found, &CONTRACT_CODE_HASHES, wanted, |row, height| {
        demand_newest(&newest, row, &CONTRACT_CODE_HASHES, height)?;
        let code = code_at(truth, &contract_of(row, "address")?, height);
        let status = text(if code.is_some() { "ok" } else { "empty" });
        let length = code.and_then(|code| number(code.source.len()));
        Ok(vec![code.and_then(|code| bytes(code.hash)), length, status, None])
    })
}

/// `contract_code`: the code of every version that was there when it was asked about, by its hash.
pub fn codes(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut wanted: BTreeMap<Cell, &Code> = BTreeMap::new();
    for row in found.rows(&CONTRACT_VERSION_CODE)?.iter() {
        let height = asked_at(truth, &row, &CONTRACT_VERSION_CODE)?;
        if let Some(code) = code_at(truth, &contract_of(&row, "address")?, height) {
            wanted.insert(bytes(code.hash), code);
        }
    }
    let mut expected = Expected::of(&CONTRACT_CODE)?;
    for (hash, code) in &wanted {
        expected.add(vec![hash.clone(), bytes(&code.source)])?;
    }
    // Code that was asked about before blocks were taken back stays, and is what its hash says.
    for row in found.rows(&CONTRACT_CODE)?.iter().filter(|_| truth.is_forked) {
        let hash = row.cell("code_hash")?;
        if !wanted.contains_key(&hash) {
            let code = alloy_primitives::hex::decode(row.said("code")?)?;
            ensure!(bytes(scripts::code_hash(&code)) == hash, "contract_code: {hash:?} is of other code");
            expected.add(vec![hash, row.cell("code")?])?;
        }
    }
    Ok(expected)
}
