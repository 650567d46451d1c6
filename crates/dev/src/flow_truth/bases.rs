//! What accounts were before the chain's first block that names them: `account_bases`, `account_base_keys`, `account_base_contracts`.
//!
//! Each was asked about at the block below the first one that names it. Where blocks were taken back, one that only they named may be there too; it is what
//! the ledger says all the same. Of the block below the root no node has the state.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cairn_explorer::tables::accounts::ADDRESS_TRANSACTIONS;
use cairn_explorer::tables::flow::account_bases::{ACCOUNT_BASE_CONTRACTS, ACCOUNT_BASE_KEYS, ACCOUNT_BASES};
use cairn_explorer::tables::flow::accounts::ACCOUNT_KEY_EVENTS;
use cairn_explorer::tables::flow::contracts::CONTRACT_VERSIONS;
use cairn_flow::{FlowAddress, proto};
use cairn_flow_node::scripts;

use super::ledger::{Truth, account};
use super::rows::{Cell, Expected, GIVEN, Tables, boolean, bytes, number, text};

/// The accounts that are named, each with the height of the first block that does.
fn first_named(found: &Tables) -> Result<BTreeMap<FlowAddress, u64>> {
    let mut first: BTreeMap<FlowAddress, u64> = BTreeMap::new();
    for table in [&ADDRESS_TRANSACTIONS, &ACCOUNT_KEY_EVENTS, &CONTRACT_VERSIONS] {
        for row in found.rows(table)?.iter() {
            let height: u64 = row.number("block_height")?;
            let address = row.said("address")?;
            // Others are of the EVM side.
            if address.len() == 16 {
                let address = address.parse().context("no account's address")?;
                first.entry(address).and_modify(|first| *first = height.min(*first)).or_insert(height);
            }
        }
    }
    Ok(first)
}

/// A height, and what the ledger says of an account there; `None` at the block below the root.
type Asked = (u64, Option<Option<proto::Account>>);

/// The accounts that were asked about, each with the height, and what the ledger says of it there; `None` at the block below the root.
fn asked(truth: &Truth<'_>, found: &Tables) -> Result<BTreeMap<FlowAddress, Asked>> {
    let first = first_named(found)?;
    let mut asked = BTreeMap::new();
    for row in found.rows(&ACCOUNT_BASES)?.iter() {
        let address: FlowAddress =
            row.said("address")?.parse().context("account_bases: address: no account has it")?;
        let height: u64 = row.number("asked_at_height")?;
        match first.get(&address) {
            Some(first) => ensure!(
                height < *first && (truth.is_forked || height + 1 == *first),
                "account_bases: asked_at_height: {address} was asked about at {height}, and is first named at {first}"
            ),
            None => ensure!(truth.is_forked, "account_bases: address: nothing names {address}"),
        }
        let has_state = height >= truth.root;
        asked.insert(address, (height, has_state.then(|| truth.ledger.account(&address.0, height))));
    }
    for (address, height) in first.into_iter().filter(|(_, height)| *height > 0) {
        asked.entry(address).or_insert((height - 1, None));
    }
    Ok(asked)
}

/// `account_bases`.
pub fn bases(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_BASES)?;
    for (address, (height, said)) in asked(truth, found)? {
        // Balances of a chain that had some before its first block are not the ledger's to say.
        let balance = |account: &proto::Account| match truth.ledger.before.is_empty() {
            true => number(account.balance),
            false => Some(GIVEN.to_owned()),
        };
        let [is, count_of_keys, count_of_contracts, status, message]: [Cell; 5] = match &said {
            None => [None, None, None, text("failed"), Some(GIVEN.to_owned())],
            Some(None) => [None, None, None, text("absent"), None],
            Some(Some(account)) => [
                balance(account),
                number(account.keys.len()),
                number(account.contracts.len()),
                text("ok"),
                None,
            ],
        };
        expected.add(vec![
            account(address),
            is,
            count_of_keys,
            count_of_contracts,
            status,
            message,
            number(height),
        ])?;
    }
    Ok(expected)
}

/// `account_base_keys`.
pub fn keys(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_BASE_KEYS)?;
    for (address, (height, said)) in asked(truth, found)? {
        for key in said.flatten().map(|account| account.keys).unwrap_or_default() {
            expected.add(vec![
                account(address),
                number(key.index),
                bytes(&key.public_key),
                // The ledger's account counts as the Access API does, the table as Cadence.
                number(key.sign_algo - 1),
                number(key.hash_algo),
                number(key.weight),
                boolean(key.revoked),
                number(height),
            ])?;
        }
    }
    Ok(expected)
}

/// `account_base_contracts`.
pub fn contracts(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_BASE_CONTRACTS)?;
    for (address, (height, said)) in asked(truth, found)? {
        for (name, code) in said.flatten().map(|account| account.contracts).unwrap_or_default() {
            expected.add(vec![
                account(address),
                text(name),
                bytes(scripts::code_hash(&code)),
                number(height),
            ])?;
        }
    }
    Ok(expected)
}
