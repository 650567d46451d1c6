//! `account_creations`, `account_key_events`, `coa_accounts`: what events told of accounts. `flow_accounts`, `account_keys`: what came of it.

use std::collections::BTreeMap;

use anyhow::Result;
use cairn_explorer::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEY_EVENTS, ACCOUNT_KEYS, COA_ACCOUNTS, FLOW_ACCOUNTS, UNPLACED_REVOCATIONS,
};
use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{ContractChange, Deed};
use cairn_flow_node::ledger::{Key, KeyForm};

use super::ledger::{Truth, account};
use super::rows::{Cell, Expected, GIVEN, Rows, Tables, boolean, bytes, number, text};
use super::tokens::Span;

/// `account_creations`.
pub fn creations(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_CREATIONS)?;
    for (at, done) in truth.deeds() {
        let Deed::AccountCreated(address) = &done.deed else { continue };
        let ([height, id], [index, time]) = (at.key(), at.when());
        expected.add(vec![height, account(*address), id, index, time, account(at.tx.payer)])?;
    }
    Ok(expected)
}

/// A key as far as an event of that form says it: bytes, algorithms, weight.
fn told(key: &Key, form: KeyForm) -> [Cell; 4] {
    // A struct leaves out what it was given beside the key.
    let is_whole = form != KeyForm::Struct;
    let rest = |number_of: u32| number(number_of).filter(|_| is_whole);
    [bytes(&key.public_key), number(key.sign_algo), rest(key.hash_algo.into()), rest(key.weight)]
}

/// `account_key_events`.
pub fn key_events(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_KEY_EVENTS)?;
    for (at, done) in truth.deeds() {
        let ([height, id], [index, time]) = (at.key(), at.when());
        let (address, change, key_index, key) = match &done.deed {
            Deed::KeyAdded { address, index, key } => {
                let form = key.told.unwrap_or(KeyForm::Whole);
                let index = number(index).filter(|_| form == KeyForm::Whole);
                (address, "added", index, told(key, form))
            }
            Deed::KeyRevoked { address, key, form: KeyForm::Rlp, .. } => {
                (address, "revoked", None, told(key, KeyForm::Rlp))
            }
            Deed::KeyRevoked { address, index, .. } => {
                (address, "revoked", number(index), [const { None }; 4])
            }
            _ => continue,
        };
        let mut row = vec![height, account(*address), id, number(done.event_index), index, time];
        row.extend([text(change), key_index]);
        row.extend(key);
        expected.add(row)?;
    }
    Ok(expected)
}

/// What became of a key.
struct KeyState<'l> {
    key: &'l Key,
    is_revoked: bool,
    span: Span,
}

/// `account_keys`: every key that an account was ever given. One is revoked there when it is certain: the oldest form names a key by its bytes, which
/// several may have.
pub fn keys(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut keys: BTreeMap<(FlowAddress, u32), KeyState<'_>> = BTreeMap::new();
    for (at, done) in truth.deeds() {
        match &done.deed {
            Deed::KeyAdded { address, index, key } => {
                let state = KeyState { key, is_revoked: false, span: Span::add(None, at.height) };
                keys.insert((*address, *index), state);
            }
            Deed::KeyRevoked { address, .. } => {
                let Some(account) = truth.ledger.accounts.at(address, at.height) else { continue };
                for (index, key) in (0..).zip(&account.keys) {
                    let Some(state) = keys.get_mut(&(*address, index)) else { continue };
                    if key.revoked.is_some() && !key.is_in_doubt && !state.is_revoked {
                        state.is_revoked = true;
                        state.span = Span::add(Some(state.span), at.height);
                    }
                }
            }
            _ => {}
        }
    }
    let mut expected = Expected::of(&ACCOUNT_KEYS)?;
    for ((address, index), KeyState { key, is_revoked, span }) in keys {
        let mut row = vec![account(address), number(index)];
        row.extend(told(key, key.told.unwrap_or(KeyForm::Whole)));
        row.push(boolean(is_revoked));
        row.extend(span.cells());
        expected.add(row)?;
    }
    Ok(expected)
}

/// `unplaced_key_revocations`: how many keys with the same bytes are revoked of which nobody knows which they are. A row stays when that is known; whether
/// there was anything to wait for within one block is left to the table, and so is by which of an account's revocations it changed last.
pub fn unplaced(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut waiting: BTreeMap<(Cell, Cell), u64> = BTreeMap::new();
    for (address, keys) in truth.ledger.accounts.all_at(truth.height).map(|(at, of)| (at, &of.keys)) {
        for key in keys.iter().filter(|key| key.is_in_doubt && key.revoked.is_some()) {
            *waiting.entry((account(*address), bytes(&key.public_key))).or_default() += 1;
        }
    }
    let mut heights: BTreeMap<(Cell, Cell), Vec<u64>> = BTreeMap::new();
    for (at, done) in truth.deeds() {
        if let Deed::KeyRevoked { address, key, .. } = &done.deed {
            heights.entry((account(*address), bytes(&key.public_key))).or_default().push(at.height);
        }
    }
    let mut rows: BTreeMap<(Cell, Cell), Cell> = BTreeMap::new();
    for row in found.rows(&UNPLACED_REVOCATIONS)?.iter() {
        let of = (row.cell("address")?, row.cell("public_key")?);
        let height: u64 = row.number("last_height")?;
        let of_one = heights.get(&of).map(Vec::as_slice).unwrap_or_default();
        let height = of_one.iter().find(|one| **one == height).or(of_one.last());
        if let Some(height) = height {
            rows.insert(of, number(height));
        }
    }
    for of in waiting.keys() {
        let last = heights.get(of).and_then(|heights| heights.last());
        rows.entry(of.clone()).or_insert_with(|| last.and_then(number));
    }
    let mut expected = Expected::of(&UNPLACED_REVOCATIONS)?;
    for (of, height) in rows {
        let count = waiting.get(&of).copied().unwrap_or(0);
        let encoded = (count > 0).then(|| GIVEN.to_owned());
        expected.add(vec![of.0, of.1, number(count), encoded, height])?;
    }
    Ok(expected)
}

/// What is known of an account.
#[derive(Default)]
struct AccountState {
    created: Option<u64>,
    keys: u64,
    contracts: i64,
    /// The last height at which anything changed.
    last: u64,
}

/// `flow_accounts`: every account that was made.
pub fn states(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut states: BTreeMap<FlowAddress, AccountState> = BTreeMap::new();
    for (at, done) in truth.deeds() {
        let address = match &done.deed {
            Deed::AccountCreated(address) | Deed::KeyAdded { address, .. } => *address,
            Deed::KeyRevoked { address, form, .. } if *form != KeyForm::Rlp => *address,
            Deed::ContractChanged { contract, .. } => contract.address,
            _ => continue,
        };
        let state = states.entry(address).or_default();
        state.last = at.height;
        match &done.deed {
            Deed::AccountCreated(_) => state.created = Some(at.height),
            Deed::KeyAdded { .. } => state.keys += 1,
            Deed::ContractChanged { change: ContractChange::Added, .. } => state.contracts += 1,
            Deed::ContractChanged { change: ContractChange::Removed, .. } => state.contracts -= 1,
            _ => {}
        }
    }
    let mut expected = Expected::of(&FLOW_ACCOUNTS)?;
    for (address, state) in states {
        let mut row = vec![account(address), state.created.and_then(number), number(state.keys)];
        row.extend([number(state.contracts), None, number(state.last)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `coa_accounts`: whose an EVM account is that a resource owns. Whoever gave out a capability of it has it, else whoever alone authorised the transaction.
pub fn coas(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&COA_ACCOUNTS)?;
    for (at, done) in truth.deeds() {
        let Deed::CoaCreated { coa, uuid, by_capability } = &done.deed else { continue };
        let ([height, id], [index, time]) = (at.key(), at.when());
        let owner = truth.ledger.coas.at(coa, truth.height);
        let mut row = vec![height, bytes(coa), id, number(done.event_index), index, time];
        let rule = if *by_capability { "capability" } else { "authorizer" };
        row.extend([owner.copied().and_then(account), text(rule), number(uuid)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// The keys' bytes that each account was given up to a height, by the table of events alone.
pub fn keys_at(events: &Rows, height: u64) -> Result<BTreeMap<String, Vec<String>>> {
    let mut added = Vec::new();
    for row in events.iter() {
        let at: (u64, u64, u64) =
            (row.number("block_height")?, row.number("transaction_index")?, row.number("event_index")?);
        if at.0 <= height && row.said("change")? == "added" {
            added.push((at, row.said("address")?, row.said("public_key")?));
        }
    }
    added.sort();
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, address, key) in added {
        keys.entry(address).or_default().push(key);
    }
    Ok(keys)
}
