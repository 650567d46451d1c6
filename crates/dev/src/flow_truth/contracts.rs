//! `contract_versions` and `smart_contracts`: contracts as they were added, changed and removed. `account_contracts`: those that there are.

use std::collections::BTreeMap;

use anyhow::Result;
use cairn_explorer::tables::contracts::SMART_CONTRACTS;
use cairn_explorer::tables::flow::contracts::{ACCOUNT_CONTRACTS, CONTRACT_VERSIONS};
use cairn_flow_node::deeds::{ContractChange, Deed};
use cairn_flow_node::ledger::ContractId;

use super::evm_tokens;
use super::ledger::{Truth, TxAt, account, contract};
use super::rows::{Cell, Expected, Rows, Tables, boolean, bytes, number, text};
use super::tokens::Span;

/// A change of a contract at its place.
struct Change<'l> {
    at: TxAt<'l>,
    event_index: u32,
    contract: &'l ContractId,
    code_hash: [u8; 32],
    change: ContractChange,
}

fn changes<'l>(truth: &Truth<'l>) -> impl Iterator<Item = Change<'l>> + use<'l> {
    truth.deeds().filter_map(|(at, done)| match &done.deed {
        Deed::ContractChanged { contract, code_hash, change } => Some(Change {
            at,
            event_index: done.event_index,
            contract,
            code_hash: *code_hash,
            change: *change,
        }),
        _ => None,
    })
}

/// `contract_versions`.
pub fn versions(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&CONTRACT_VERSIONS)?;
    for one in changes(truth) {
        let ([height, id], [index, time]) = (one.at.key(), one.at.when());
        let [address, name] = contract(one.contract);
        let word = match one.change {
            ContractChange::Added => "added",
            ContractChange::Updated => "updated",
            ContractChange::Removed => "removed",
        };
        let mut row = vec![height, address, name, id, number(one.event_index), index, time];
        row.extend([text(word), bytes(one.code_hash)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `smart_contracts`: each creation. Of one that was removed and added again in one transaction the last code counts.
pub fn creations(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut rows: BTreeMap<(u64, usize, &ContractId), Vec<Cell>> = BTreeMap::new();
    for one in changes(truth).filter(|one| one.change == ContractChange::Added) {
        let ([height, id], [index, time]) = (one.at.key(), one.at.when());
        let [address, name] = contract(one.contract);
        let mut row = vec![height, address, name, id, index, time, account(one.at.tx.payer)];
        row.extend([bytes(one.code_hash), boolean(false), boolean(!one.at.tx.is_failed)]);
        rows.insert((one.at.height, one.at.index, one.contract), row);
    }
    let mut expected = Expected::of(&SMART_CONTRACTS)?;
    rows.into_values().try_for_each(|row| expected.add(row))?;
    evm_tokens::creations(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// `account_contracts`: every contract that there ever was.
pub fn states(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    struct State {
        code_hash: [u8; 32],
        versions: u64,
        is_removed: bool,
        span: Span,
    }
    let mut states: BTreeMap<&ContractId, State> = BTreeMap::new();
    for one in changes(truth) {
        let before = states.get(one.contract);
        let is_removed = one.change == ContractChange::Removed;
        let state = State {
            code_hash: one.code_hash,
            versions: before.map_or(0, |state| state.versions) + u64::from(!is_removed),
            is_removed,
            span: Span::add(before.map(|state| state.span), one.at.height),
        };
        states.insert(one.contract, state);
    }
    let mut expected = Expected::of(&ACCOUNT_CONTRACTS)?;
    for (of, state) in states {
        let mut row = contract(of).to_vec();
        row.extend([bytes(state.code_hash), number(state.versions), boolean(state.is_removed)]);
        row.extend(state.span.cells());
        expected.add(row)?;
    }
    Ok(expected)
}

/// The contracts of accounts at a height with the hashes of their code, by the table of versions alone.
pub fn contracts_at(versions: &Rows, height: u64) -> Result<BTreeMap<(String, String), String>> {
    let mut changes = Vec::new();
    for row in versions.iter() {
        let at: (u64, u64, u64) =
            (row.number("block_height")?, row.number("transaction_index")?, row.number("event_index")?);
        if at.0 <= height {
            let of = (row.said("address")?, row.said("contract_name")?);
            changes.push((at, of, row.said("change")?, row.said("code_hash")?));
        }
    }
    changes.sort();
    let mut contracts = BTreeMap::new();
    for (_, of, change, code_hash) in changes {
        match change.as_str() {
            "removed" => contracts.remove(&of),
            _ => contracts.insert(of, code_hash),
        };
    }
    Ok(contracts)
}
