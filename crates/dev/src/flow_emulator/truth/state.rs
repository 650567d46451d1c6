//! Accounts, keys, contracts, balances, items and EVM accounts at a height: account calls and scripts against the tables.
//!
//! Accounts that were there before the first block have what no event tells of: of those the difference to the first block is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::hex;
use anyhow::{Context, Result, bail, ensure};
use cairn_explorer::tables::flow::accounts::ACCOUNT_CREATIONS;
use cairn_explorer::tables::flow::fees::FEE_TRANSFERS;
use cairn_explorer::tables::holdings::FT_HOLDINGS;
use cairn_explorer::tables::transfers::FT_TRANSFERS;
use cairn_flow::{FlowAddress, Network};
use cairn_flow_node::deeds::Deed;
use cairn_flow_node::ledger::ContractId;
use cairn_flow_node::scripts::code_hash;
use cairn_flow_node::{AccessClient, Ledger};
use serde_json::Value;

use super::super::cadence;
use crate::flow_truth::Tables;
use crate::flow_truth::node::{NodeTruth, Question, State, ask_about, keys, units};

/// What the node answers of two heights: the first one, and a later one.
pub struct Answers {
    pub first: Arc<NodeTruth>,
    pub then: NodeTruth,
}

fn address(cell: &str) -> Result<FlowAddress> {
    cell.parse().with_context(|| format!("{cell} is no account's address"))
}

/// Everybody of whom the chain tells, and the accounts of the chain's own contracts, which were there before it; its tokens and collections.
pub fn question(ledger: &Ledger) -> Question {
    let places = ledger.places();
    let own = [places.service, places.flow_token, places.fungible_token, places.flow_fees];
    let mut accounts: BTreeSet<FlowAddress> = own.into();
    let (mut tokens, mut collections) = (BTreeSet::from([ledger.flow_token()]), BTreeSet::new());
    for tx in ledger.transactions.values().flatten() {
        accounts.extend(tx.authorizers.iter().copied().chain([tx.payer, tx.proposer]));
        for done in &tx.done {
            let parties = match &done.deed {
                Deed::AccountCreated(address) => [Some(*address), None],
                Deed::Tokens(moved) => {
                    tokens.insert(moved.token.clone());
                    [moved.from, moved.to]
                }
                Deed::Item(moved) => {
                    collections.insert(moved.collection.clone());
                    [moved.from, moved.to]
                }
                _ => continue,
            };
            accounts.extend(parties.into_iter().flatten());
        }
    }
    accounts.remove(&FlowAddress::ZERO);
    Question {
        network: ledger.network,
        accounts: accounts.into_iter().collect(),
        tokens: tokens.into_iter().collect(),
        collections: collections.into_iter().collect(),
    }
}

/// Asks about them at the first height, at which FLOW is all that there is.
pub async fn ask_first(client: &AccessClient, question: &Question, first: u64) -> Result<Arc<NodeTruth>> {
    let flow = ContractId::new(question.network.accounts().flow_token, "FlowToken");
    let (network, accounts) = (question.network, question.accounts.clone());
    let of_first = Question { network, accounts, tokens: vec![flow], collections: Vec::new() };
    let mut answers = ask_about(client, &of_first, first).await?;
    add_fees(client, &mut answers).await?;
    Ok(Arc::new(answers))
}

/// Asks about them at a later height.
pub async fn ask(
    client: &AccessClient,
    question: &Question,
    first: Arc<NodeTruth>,
    height: u64,
) -> Result<Answers> {
    let mut then = ask_about(client, question, height).await?;
    add_fees(client, &mut then).await?;
    Ok(Answers { first, then })
}

/// Fees lie in their contract, whose account is the owner in events.
async fn add_fees(client: &AccessClient, answers: &mut NodeTruth) -> Result<()> {
    let accounts = Network::Emulator.accounts();
    let key = (accounts.flow_fees, ContractId::new(accounts.flow_token, "FlowToken"));
    let fees: Value =
        serde_json::from_slice(&client.script(cadence::FEE_BALANCE, &[], answers.height).await?)?;
    *answers.balances.entry(key).or_default() += units(&fees["value"])?;
    Ok(())
}

/// Accounts, keys, contracts, balances, items and EVM accounts. How many answers were compared.
pub fn compare(answers: &Answers, found: &Tables, is_head: bool) -> Result<usize> {
    let Answers { first, then } = answers;
    let mut state = match is_head {
        true => State::of_head(found)?,
        false => State::owned_at(found, then.height)?,
    };
    let mut compared = 0;
    let mut created = BTreeSet::new();
    for row in found.rows(&ACCOUNT_CREATIONS)?.iter() {
        if row.number::<u64>("block_height")? <= then.height {
            created.insert(row.said("address")?);
        }
    }
    for (owner, account) in &then.accounts {
        let name = owner.bare();
        let before = first.accounts.get(owner);
        ensure!(
            created.remove(&name) == before.is_none(),
            "account_creations: {owner} was there at {}: {}",
            first.height,
            before.is_some()
        );
        let rows = state.keys.remove(&name).unwrap_or_default();
        match before {
            None => keys(account, rows).with_context(|| format!("keys of {owner}"))?,
            Some(_) => {
                let all =
                    account.keys.iter().map(|key| hex::encode(&key.public_key)).collect::<BTreeSet<_>>();
                let strange = rows.iter().find(|row| !all.contains(&row.public_key));
                ensure!(strange.is_none(), "account_keys: {owner} has no key {strange:?}");
            }
        }
        for (contract, code) in &account.contracts {
            let hash = state.contracts.remove(&(name.clone(), contract.clone()));
            let code = hex::encode(code_hash(code));
            let is_old = before.is_some_and(|account| {
                account.contracts.get(contract).is_some_and(|was| hex::encode(code_hash(was)) == code)
            });
            let is_it = hash.as_ref() == Some(&code) || (hash.is_none() && is_old);
            ensure!(is_it, "contracts: {contract} of {owner} is {code}, the table has {hash:?}");
        }
        let (coa, answer) = (state.coas.remove(&name), then.coas.get(owner));
        ensure!(
            coa.as_ref() == answer || first.coas.contains_key(owner),
            "coa_accounts: {owner} has {answer:?}, the table says {coa:?}"
        );
        compared += 3 + account.keys.len() + account.contracts.len();
    }
    ensure!(created.is_empty(), "account_creations: the node knows no account {created:?}");
    compared += balances(answers, found)?;
    for ((owner, collection), ids) in &then.items {
        for id in ids {
            let key = [
                Some(hex::encode(collection.address.0)),
                Some(collection.name.clone()),
                Some(id.to_string()),
            ];
            let said = state.items.remove(&key);
            let is_owner = said.as_ref() == Some(&Some(owner.bare()));
            ensure!(is_owner, "nft_ownership: {owner} has {id} of {collection}, the table says {said:?}");
            compared += 1;
        }
    }
    let left = [
        ("nft_ownership", state.items.first_key_value().map(|one| format!("{one:?}"))),
        ("account_contracts", state.contracts.first_key_value().map(|one| format!("{one:?}"))),
        ("account_keys", state.keys.first_key_value().map(|one| format!("{one:?}"))),
        ("coa_accounts", state.coas.first_key_value().map(|one| format!("{one:?}"))),
    ];
    for (table, left) in left {
        if let Some(left) = left {
            bail!("{table}: the node knows nothing of {left}");
        }
    }
    Ok(compared)
}

/// Balances by the tables of movements, as far as they go at that height.
fn balances(answers: &Answers, found: &Tables) -> Result<usize> {
    let Answers { first, then } = answers;
    let mut sums: BTreeMap<(String, ContractId), i128> = BTreeMap::new();
    for row in found.rows(&FT_TRANSFERS)?.iter().chain(found.rows(&FEE_TRANSFERS)?.iter()) {
        if row.number::<u64>("block_height")? > then.height {
            continue;
        }
        let token =
            ContractId::new(address(&row.said("token_contract_address")?)?, &row.said("contract_name")?);
        let amount: i128 = row.number("amount")?;
        for (party, by) in [("from_address", -amount), ("to_address", amount)] {
            if let Some(party) = row.cell(party)? {
                *sums.entry((party, token.clone())).or_default() += by;
            }
        }
    }
    for ((owner, token), balance) in &then.balances {
        let was = first.balances.get(&(*owner, token.clone())).copied().unwrap_or(0);
        let grown = i128::from(*balance) - i128::from(was);
        let said = sums.remove(&(owner.bare(), token.clone())).unwrap_or(0);
        ensure!(
            said == grown,
            "transfers: {owner} has {grown} of {token} more than at first, the tables say {said}"
        );
    }
    let left = sums.iter().find(|(_, sum)| **sum != 0);
    ensure!(left.is_none(), "transfers: the node knows nothing of {left:?}");
    Ok(then.balances.len())
}

/// `ft_holdings` at the head, of accounts that were not there at first: the balances themselves.
pub fn compare_holdings(answers: &Answers, found: &Tables) -> Result<usize> {
    let mut held: BTreeMap<(String, ContractId), u64> = BTreeMap::new();
    for row in found.rows(&FT_HOLDINGS)?.iter() {
        let token =
            ContractId::new(address(&row.said("token_contract_address")?)?, &row.said("contract_name")?);
        let owner = row.said("address")?;
        if !answers.first.accounts.contains_key(&address(&owner)?) {
            held.insert((owner, token), row.number("balance")?);
        }
    }
    let mut compared = 0;
    for ((owner, token), balance) in &answers.then.balances {
        if !answers.first.accounts.contains_key(owner) {
            let said = held.remove(&(owner.bare(), token.clone())).unwrap_or(0);
            ensure!(said == *balance, "ft_holdings: {owner} has {balance} of {token}, the table says {said}");
            compared += 1;
        }
    }
    let left = held.iter().find(|(_, balance)| **balance != 0);
    ensure!(left.is_none(), "ft_holdings: the node knows nothing of {left:?}");
    Ok(compared)
}
