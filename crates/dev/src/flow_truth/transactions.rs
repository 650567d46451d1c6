//! `tx_metrics` and `flow_tx_metrics`: what transactions used, paid and did. `tx_contracts` and `tx_tags`: what they touched, and of which kinds they are.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use cairn_explorer::tables::flow::transactions::{FLOW_TX_METRICS, TX_TAGS};
use cairn_explorer::tables::transactions::{TX_CONTRACTS, TX_METRICS};
use cairn_explorer::tables::transfers::FT_TRANSFERS;
use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{ContractChange, Deed, MoveKind};
use cairn_flow_node::ledger::FlowTx;

use super::evm_tokens;
use super::ledger::{Truth, TxAt, account, is_transfer};
use super::rows::{Cell, Expected, Tables, boolean, number, text};

/// How many rows of `ft_transfers` each transaction has: a movement may be several.
pub fn transfer_rows(found: &Tables) -> Result<BTreeMap<[Cell; 2], u64>> {
    let mut rows = BTreeMap::new();
    for row in found.rows(&FT_TRANSFERS)?.iter() {
        *rows.entry([row.cell("block_height")?, row.cell("transaction_id")?]).or_default() += 1;
    }
    Ok(rows)
}

/// What was paid. What the chain itself does is free; elsewhere, without an event, it isn't known.
pub fn fee(tx: &FlowTx) -> Option<u64> {
    Some(tx.fee).filter(|_| tx.is_fee_told || tx.is_system)
}

/// How many movements of items each transaction has, by height and place.
pub fn item_moves(truth: &Truth<'_>) -> Result<BTreeMap<(u64, usize), usize>> {
    let mut moves: BTreeMap<(u64, usize), usize> = BTreeMap::new();
    for (at, _) in truth.deeds().filter(|(_, done)| matches!(done.deed, Deed::Item(_))) {
        *moves.entry((at.height, at.index)).or_default() += 1;
    }
    for one in evm_tokens::moves(truth)?.iter().filter(|one| one.is_item()) {
        *moves.entry((one.at.height, one.at.index)).or_default() += 1;
    }
    Ok(moves)
}

/// `tx_metrics`.
pub fn metrics(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let (transfers, items) = (transfer_rows(found)?, item_moves(truth)?);
    let mut expected = Expected::of(&TX_METRICS)?;
    for at in truth.transactions() {
        let tx = at.tx;
        let mut row = at.key().to_vec();
        row.extend(at.when());
        row.extend([text(if tx.is_failed { "failed" } else { "ok" }), number(tx.computation)]);
        row.extend([fee(tx).and_then(number), None, number(tx.event_types.len())]);
        row.extend([number(transfers.get(&at.key()).copied().unwrap_or(0))]);
        row.extend([number(items.get(&(at.height, at.index)).copied().unwrap_or(0))]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `flow_tx_metrics`.
pub fn flow_metrics(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&FLOW_TX_METRICS)?;
    for at in truth.transactions() {
        let tx = at.tx;
        let mut row = at.key().to_vec();
        row.extend(at.when());
        row.extend([boolean(tx.is_system), number(u8::from(tx.is_failed))]);
        row.extend([text(readable(&tx.error)).filter(|_| !tx.error.is_empty())]);
        row.extend([number(tx.computation_limit), number(tx.computation)]);
        row.extend([tx.efforts.and_then(|efforts| number(efforts.0))]);
        row.extend([tx.efforts.and_then(|efforts| number(efforts.1))]);
        let (mut count, mut gas) = (0u64, 0u64);
        for evm in truth.ledger.evm_transactions.get(&at.height).into_iter().flatten() {
            if evm.flow_tx_index == at.index {
                (count, gas) = (count + 1, gas + evm.gas_used);
            }
        }
        row.extend([number(count), number(gas)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// An error message as it may be shown: no controls, nothing unseen or turned round, blanks as one space; at most 2,000 characters and 4,000 bytes.
pub fn readable(message: &str) -> String {
    let is_unseen = |c: char| {
        (c.is_control() && !c.is_whitespace())
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{fdd0}'..='\u{fdef}' | '\u{f0000}'..='\u{10ffff}')
    };
    let seen: String = message.chars().filter(|c| !is_unseen(*c)).collect();
    let words: Vec<&str> = seen.split_whitespace().collect();
    let mut text = String::new();
    for (at, c) in words.join(" ").chars().enumerate() {
        if at == 2_000 || text.len() + c.len_utf8() > 4_000 {
            break;
        }
        text.push(c);
    }
    text.trim_end().to_owned()
}

/// How a contract was touched, in the order in which the words are written.
const TOUCHES: [&str; 7] = ["import", "create", "update", "remove", "log", "ft", "nft"];

/// `tx_contracts`.
pub fn contracts(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&TX_CONTRACTS)?;
    for at in truth.transactions() {
        for ((address, name), touches) in touched(&at) {
            let words: Vec<&str> = TOUCHES.into_iter().filter(|word| touches.contains(word)).collect();
            let [height, id] = at.key();
            let [index, time] = at.when();
            expected.add(vec![
                height,
                id,
                account(address),
                text(name),
                index,
                time,
                text(words.join(",")),
            ])?;
        }
    }
    evm_tokens::touched(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// The account, contract and name of an event's type; `None` for the chain's own.
fn parts(event_type: &str) -> Option<(FlowAddress, &str, &str)> {
    let (address, rest) = event_type.strip_prefix("A.")?.split_once('.')?;
    let (contract, event) = rest.split_once('.')?;
    Some((address.parse().ok()?, contract, event))
}

fn touched(at: &TxAt<'_>) -> BTreeMap<(FlowAddress, String), BTreeSet<&'static str>> {
    let mut touched: BTreeMap<(FlowAddress, String), BTreeSet<&'static str>> = BTreeMap::new();
    let mut touch = |address: FlowAddress, name: &str, how: &'static str| {
        touched.entry((address, name.to_owned())).or_default().insert(how);
    };
    at.tx.imports.iter().for_each(|import| touch(import.address, &import.name, "import"));
    for (address, contract, _) in at.tx.event_types.iter().filter_map(|name| parts(name)) {
        touch(address, contract, "log");
    }
    for done in &at.tx.done {
        match &done.deed {
            Deed::ContractChanged { contract, change, .. } => {
                let how = match change {
                    ContractChange::Added => "create",
                    ContractChange::Updated => "update",
                    ContractChange::Removed => "remove",
                };
                touch(contract.address, &contract.name, how);
            }
            Deed::Tokens(moved) if is_transfer(moved) => touch(moved.token.address, &moved.token.name, "ft"),
            Deed::Item(moved) => touch(moved.collection.address, &moved.collection.name, "nft"),
            _ => {}
        }
    }
    touched
}

/// `tx_tags`.
pub fn tags(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&TX_TAGS)?;
    let mut of_evm: BTreeMap<(u64, usize), BTreeSet<&str>> = BTreeMap::new();
    for one in evm_tokens::moves(truth)? {
        let tag = if one.is_item() { "nft" } else { "ft" };
        of_evm.entry((one.at.height, one.at.index)).or_default().insert(tag);
    }
    for at in truth.transactions() {
        let mut tags: BTreeSet<&str> = at.tx.done.iter().filter_map(|done| tag(&done.deed)).collect();
        tags.extend(of_evm.get(&(at.height, at.index)).into_iter().flatten());
        tags.extend(Some("system").filter(|_| at.tx.is_system));
        tags.extend(Some("failed").filter(|_| at.tx.is_failed));
        let evm = truth.ledger.evm_transactions.get(&at.height).into_iter().flatten();
        tags.extend(Some("evm").filter(|_| evm.clone().any(|evm| evm.flow_tx_index == at.index)));
        for tag in tags {
            let [height, id] = at.key();
            let [index, time] = at.when();
            expected.add(vec![height, id, text(tag), index, time])?;
        }
    }
    Ok(expected)
}

fn tag(deed: &Deed) -> Option<&'static str> {
    Some(match deed {
        Deed::AccountCreated(_) => "account-created",
        Deed::KeyAdded { .. } => "key-added",
        Deed::KeyRevoked { .. } => "key-revoked",
        Deed::ContractChanged { change: ContractChange::Added, .. } => "contract-added",
        Deed::ContractChanged { change: ContractChange::Updated, .. } => "contract-updated",
        Deed::ContractChanged { change: ContractChange::Removed, .. } => "contract-removed",
        Deed::Tokens(moved) if moved.kind == MoveKind::Fee => return None,
        Deed::ItemDestroyed { .. } => return None,
        Deed::Tokens(_) => "ft",
        Deed::Item(_) => "nft",
        Deed::CoaCreated { .. } => "coa-created",
        Deed::Bridged => "bridge",
        Deed::Scheduled => "scheduled",
    })
}
