//! Tokens and collections in the logs of EVM transactions: the expected rows of the tables that both sides of Flow share.
//! This reader follows ERC-20, ERC-721 and ERC-1155, and shares no code with the workers.
//!
//! Everything stands under the Flow transaction that ran the EVM one, at the place of its event; movements are counted through that event.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, U256, keccak256};
use anyhow::{Context, Result, ensure};
use cairn_flow_node::ledger::{EvmLog, EvmTx};

use super::ledger::{Truth, TxAt};
use super::rows::{Cell, boolean, bytes, number, text};
use super::tokens::Span;

/// A movement at its place.
pub struct Move<'l> {
    pub at: TxAt<'l>,
    event_index: u32,
    sub_index: u32,
    pub token: Address,
    from: Address,
    to: Address,
    /// Of an item, which.
    id: Option<u128>,
    amount: u128,
    kind: &'static str,
}

/// EVM transactions, each with the transaction that ran it, in order.
pub fn all<'l>(truth: &Truth<'l>) -> Result<Vec<(&'l EvmTx, TxAt<'l>)>> {
    let flow: BTreeMap<(u64, usize), TxAt<'l>> =
        truth.transactions().map(|at| ((at.height, at.index), at)).collect();
    let evm = truth.ledger.evm_transactions.range(..=truth.height).flat_map(|(_, txs)| txs);
    evm.map(|evm| {
        let at = flow.get(&(evm.height, evm.flow_tx_index));
        Ok((evm, *at.with_context(|| format!("nothing ran the EVM transaction {}", evm.hash))?))
    })
    .collect()
}

/// Every movement, in order.
pub fn moves<'l>(truth: &Truth<'l>) -> Result<Vec<Move<'l>>> {
    let mut moves = Vec::new();
    for (evm, at) in all(truth)? {
        let mut sub_index = 0;
        for log in &evm.logs {
            for (id, amount, kind) in moved(log)? {
                // An ERC-1155 event names an operator first.
                let first = if kind == "erc1155" { 2 } else { 1 };
                let party = |topic: usize| Address::from_word(log.topics[topic]);
                let (from, to) = (party(first), party(first + 1));
                let event_index = evm.event_index;
                moves.push(Move {
                    at,
                    event_index,
                    sub_index,
                    token: log.address,
                    from,
                    to,
                    id,
                    amount,
                    kind,
                });
                sub_index += 1;
            }
        }
    }
    Ok(moves)
}

/// The items and amounts of a log.
fn moved(log: &EvmLog) -> Result<Vec<(Option<u128>, u128, &'static str)>> {
    let is = |signature: &str| log.topics.first() == Some(&keccak256(signature));
    let number = |at: usize| -> Result<u128> {
        let word = log.data.get(at * 32..at * 32 + 32).context("a token's log is too short")?;
        u128::try_from(U256::from_be_slice(word)).context("a token's log has a number that large")
    };
    if is("Transfer(address,address,uint256)") {
        return Ok(match log.topics.len() {
            3 => vec![(None, number(0)?, "erc20")],
            4 => vec![(Some(U256::from_be_bytes(log.topics[3].0).to()), 1, "erc721")],
            count => anyhow::bail!("a transfer has {count} topics"),
        });
    }
    if is("TransferSingle(address,address,address,uint256,uint256)") {
        return Ok(vec![(Some(number(0)?), number(1)?, "erc1155")]);
    }
    if is("TransferBatch(address,address,address,uint256[],uint256[])") {
        let (ids, amounts) = (number(0)? as usize / 32, number(1)? as usize / 32);
        let count = number(ids)? as usize;
        ensure!(number(amounts)? as usize == count, "a batch has as many ids as amounts");
        let each = (1..=count).map(|at| Ok((Some(number(ids + at)?), number(amounts + at)?, "erc1155")));
        return each.collect();
    }
    Ok(Vec::new())
}

/// Who has what, and when that changed last and first.
#[derive(Default)]
struct Held {
    balance: i128,
    span: Option<Span>,
}

impl Held {
    fn add(&mut self, by: i128, height: u64) {
        self.balance += by;
        self.span = Some(Span::add(self.span, height));
    }

    fn last(&self) -> Cell {
        self.span.and_then(|span| number(span.last))
    }
}

impl Move<'_> {
    fn is_mint(&self) -> bool {
        self.from.is_zero()
    }

    fn is_burn(&self) -> bool {
        self.to.is_zero()
    }

    pub fn is_item(&self) -> bool {
        self.id.is_some()
    }

    /// Who lost and who got it, where that changes anything; nobody is the zero address.
    fn changes(&self) -> Vec<(Address, i128)> {
        let amount = self.amount as i128;
        let both = [(self.from, -amount), (self.to, amount)];
        let counts = self.from != self.to && self.amount > 0;
        both.into_iter().filter(|(party, _)| counts && !party.is_zero()).collect()
    }

    /// Those parties that a transaction concerns.
    pub fn parties(&self) -> impl Iterator<Item = Address> {
        [self.from, self.to].into_iter().filter(|party| !party.is_zero())
    }

    /// As a row of `ft_transfers` or `nft_transfers`.
    pub fn row(&self) -> Vec<Cell> {
        let ([height, id], [index, time]) = (self.at.key(), self.at.when());
        let mut row = vec![height, id, number(self.event_index), number(self.sub_index), index, time];
        row.extend([bytes(self.token), text(""), bytes(self.from), bytes(self.to)]);
        row.extend(self.id.map(number));
        row.extend([number(self.amount), text(self.kind), boolean(self.is_mint()), boolean(self.is_burn())]);
        row.extend((!self.is_item()).then(|| boolean(true)));
        row
    }
}

/// What was minted, less what was burnt: what lies with parties.
fn minted<'m>(moves: impl Iterator<Item = &'m Move<'m>>) -> i128 {
    let of = |one: &Move<'_>| i128::from(one.is_mint()) - i128::from(one.is_burn());
    moves.map(|one| of(one) * one.amount as i128).sum()
}

fn holdings<K: Ord>(moves: &[Move<'_>], key: impl Fn(&Move<'_>, Address) -> Option<K>) -> BTreeMap<K, Held> {
    let mut held: BTreeMap<K, Held> = BTreeMap::new();
    for one in moves {
        for (party, by) in one.changes() {
            if let Some(key) = key(one, party) {
                held.entry(key).or_default().add(by, one.at.height);
            }
        }
    }
    held
}

/// Rows of `ft_holdings`.
pub fn ft_holdings(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let held = holdings(&moves, |one, party| (!one.is_item()).then_some((party, one.token)));
    let row = |((party, token), held): ((Address, Address), Held)| {
        let mut row = vec![bytes(party), bytes(token), text(""), number(held.balance)];
        row.push(boolean(held.balance != 0));
        row.extend(held.span.map(Span::cells).into_iter().flatten());
        row
    };
    Ok(held.into_iter().map(row).collect())
}

/// Rows of `token_stats`.
pub fn token_stats(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let held = holdings(&moves, |one, party| (!one.is_item()).then_some((one.token, party)));
    let tokens: BTreeSet<Address> = moves.iter().filter(|one| !one.is_item()).map(|one| one.token).collect();
    let row = |token: Address| {
        let of = || moves.iter().filter(move |one| !one.is_item() && one.token == token);
        let holders = held.iter().filter(|((of, _), held)| *of == token && held.balance > 0).count();
        let span = of().fold(None, |span, one| Some(Span::add(span, one.at.height)));
        let mut row =
            vec![bytes(token), text(""), number(of().count()), number(holders), number(minted(of()))];
        row.extend(span.map(Span::cells).into_iter().flatten());
        row
    };
    Ok(tokens.into_iter().map(row).collect())
}

/// Movements of each item, in order.
fn items<'m, 'l>(moves: &'m [Move<'l>]) -> BTreeMap<(Address, u128), Vec<&'m Move<'l>>> {
    let mut items: BTreeMap<(Address, u128), Vec<&Move<'l>>> = BTreeMap::new();
    for one in moves.iter().filter(|one| one.amount > 0) {
        if let Some(id) = one.id {
            items.entry((one.token, id)).or_default().push(one);
        }
    }
    items
}

/// Whether none of an item is left: what moved last was burnt, and of one that many hold as many are burnt as were minted.
fn is_burnt(moves: &[&Move<'_>]) -> bool {
    let none_left = minted(moves.iter().copied()) == 0;
    moves.last().is_some_and(|last| last.is_burn() && (last.kind == "erc721" || none_left))
}

/// Rows of `nft_ownership`.
pub fn nft_ownership(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let mut rows = Vec::new();
    for ((collection, id), of) in items(&moves) {
        let last = of.last().context("an item has movements")?;
        let owner = Some(last.to).filter(|to| last.kind == "erc721" && !to.is_zero());
        let span = of.iter().fold(None, |span, one| Some(Span::add(span, one.at.height)));
        let mut row = vec![bytes(collection), text(""), number(id), text(last.kind), owner.and_then(bytes)];
        row.extend([boolean(is_burnt(&of)), number(minted(of.iter().copied())), number(of.len())]);
        row.extend(span.map(Span::cells).into_iter().flatten());
        rows.push(row);
    }
    Ok(rows)
}

/// Rows of `nft_holdings`.
pub fn nft_holdings(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let held = holdings(&moves, |one, party| Some((one.token, one.id?, party)));
    let row = |((collection, id, party), held): ((Address, u128, Address), Held)| {
        let mut row = vec![bytes(collection), text(""), number(id), bytes(party)];
        row.extend([number(held.balance), boolean(held.balance != 0), held.last()]);
        row
    };
    Ok(held.into_iter().map(row).collect())
}

/// Rows of `nft_owners`.
pub fn nft_owners(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let held = holdings(&moves, |one, party| one.id.map(|_| (one.token, party)));
    let row = |((collection, party), held): ((Address, Address), Held)| {
        vec![bytes(collection), text(""), bytes(party), number(held.balance), held.last()]
    };
    Ok(held.into_iter().map(row).collect())
}

/// Rows of `nft_collection_stats`.
pub fn nft_stats(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let moves = moves(truth)?;
    let held = holdings(&moves, |one, party| one.id.map(|_| (one.token, party)));
    let items = items(&moves);
    let collections: BTreeSet<Address> =
        moves.iter().filter(|one| one.is_item()).map(|one| one.token).collect();
    let row = |collection: Address| {
        let of = || moves.iter().filter(move |one| one.is_item() && one.token == collection);
        let there = items.iter().filter(|((of, _), moves)| *of == collection && !is_burnt(moves)).count();
        let owners = held.iter().filter(|((of, _), held)| *of == collection && held.balance > 0).count();
        let span = of().fold(None, |span, one| Some(Span::add(span, one.at.height)));
        let mut row = vec![bytes(collection), text(""), number(there), number(owners), number(of().count())];
        row.extend(span.map(Span::cells).into_iter().flatten());
        row
    };
    Ok(collections.into_iter().map(row).collect())
}

/// The tokens that moved, or the collections of which items did.
pub fn contracts(truth: &Truth<'_>, is_item: bool) -> Result<BTreeSet<Address>> {
    Ok(moves(truth)?.iter().filter(|one| one.is_item() == is_item).map(|one| one.token).collect())
}

/// The items of which any moved to somebody: those that are asked about.
pub fn asked_items(truth: &Truth<'_>) -> Result<BTreeSet<(Address, u128)>> {
    let moves = moves(truth)?;
    let asked = moves.iter().filter(|one| one.amount > 0 && !one.is_burn());
    Ok(asked.filter_map(|one| Some((one.token, one.id?))).collect())
}

/// Rows of `smart_contracts`: what EVM transactions created, of one address in one Flow transaction the last.
pub fn creations(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    let mut rows: BTreeMap<(u64, usize, Address), Vec<Cell>> = BTreeMap::new();
    for (evm, at) in all(truth)? {
        let Some(created) = evm.created.filter(|_| evm.error_code == 0) else { continue };
        let ([height, id], [index, time]) = (at.key(), at.when());
        let mut row = vec![height, bytes(created), text(""), id, index, time, bytes(evm.from)];
        row.extend([bytes(keccak256(&evm.input)), boolean(false), boolean(true)]);
        rows.insert((at.height, at.index, created), row);
    }
    Ok(rows.into_values().collect())
}

/// Rows of `tx_contracts`: which contracts of the EVM a Flow transaction touched, and how.
pub fn touched(truth: &Truth<'_>) -> Result<Vec<Vec<Cell>>> {
    const TOUCHES: [&str; 5] = ["call", "create", "log", "ft", "nft"];
    let mut touches: Vec<(TxAt<'_>, Address, &str)> = Vec::new();
    for (evm, at) in all(truth)? {
        let called = evm.to.filter(|_| !evm.input.is_empty() && evm.direct != Some("deploy"));
        touches.extend(called.map(|to| (at, to, "call")));
        let created = evm.created.filter(|_| evm.error_code == 0);
        touches.extend(created.map(|created| (at, created, "create")));
        touches.extend(evm.logs.iter().map(|log| (at, log.address, "log")));
    }
    for one in moves(truth)? {
        touches.push((one.at, one.token, if one.is_item() { "nft" } else { "ft" }));
    }
    let mut touched: BTreeMap<(u64, usize, Address), (TxAt<'_>, BTreeSet<&str>)> = BTreeMap::new();
    for (at, contract, how) in touches {
        let entry = touched.entry((at.height, at.index, contract));
        entry.or_insert_with(|| (at, BTreeSet::new())).1.insert(how);
    }
    let row = |((_, _, contract), (at, how)): ((u64, usize, Address), (TxAt<'_>, BTreeSet<&str>))| {
        let ([height, id], [index, time]) = (at.key(), at.when());
        let words: Vec<&str> = TOUCHES.into_iter().filter(|word| how.contains(word)).collect();
        vec![height, id, bytes(contract), text(""), index, time, text(words.join(","))]
    };
    Ok(touched.into_iter().map(row).collect())
}
