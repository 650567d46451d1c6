//! What the node itself answers over gRPC, account by account, against the tables: `GetAccountAtBlockHeight`, and scripts for balances, items, supplies,
//! names, pictures and EVM accounts.
//!
//! At the head the tables of state are compared. At earlier heights, of which no table keeps the state, what the tables of events sum up to.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use cairn_explorer::tables::flow::account_bases::ACCOUNT_BASE_CONTRACTS;
use cairn_explorer::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEY_EVENTS, ACCOUNT_KEYS, COA_ACCOUNTS, UNPLACED_REVOCATIONS,
};
use cairn_explorer::tables::flow::contracts::{ACCOUNT_CONTRACTS, CONTRACT_VERSIONS};
use cairn_explorer::tables::flow::nfts::NFT_ASKS;
use cairn_explorer::tables::holdings::FT_HOLDINGS;
use cairn_explorer::tables::metadata::{NFT_COLLECTIONS, NFT_METADATA, TOKENS};
use cairn_explorer::tables::nfts::NFT_OWNERSHIP;
use cairn_flow::{FlowAddress, Network, proto};
use cairn_flow_node::cdc::{self, Cdc};
use cairn_flow_node::ledger::ContractId;
use cairn_flow_node::{AccessClient, Ledger, scripts::code_hash};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;

use super::ledger::{Truth, account, contract};
use super::rows::{Cell, Row, Tables, bytes, number, text};
use super::{accounts, contracts, items, scripts, tokens};

/// Questions that are on their way at once.
const AT_ONCE: usize = 8;

/// About whom and what a node is asked.
pub struct Question {
    pub network: Network,
    pub accounts: Vec<FlowAddress>,
    pub tokens: Vec<ContractId>,
    pub collections: Vec<ContractId>,
}

impl Question {
    /// Everybody and everything that a ledger knows of at a height.
    fn of_ledger(ledger: &Ledger, height: u64) -> Question {
        let collections: BTreeSet<&ContractId> =
            ledger.items.all_at(height).map(|((collection, _), _)| collection).collect();
        Question {
            network: ledger.network,
            accounts: ledger.accounts.all_at(height).map(|(address, _)| *address).collect(),
            tokens: ledger.supplies.all_at(height).map(|(token, _)| token.clone()).collect(),
            collections: collections.into_iter().cloned().collect(),
        }
    }
}

/// What the node answered of one height.
pub struct NodeTruth {
    /// Of which.
    pub height: u64,
    /// Accounts as they are.
    pub accounts: BTreeMap<FlowAddress, proto::Account>,
    /// By owner and token.
    pub balances: BTreeMap<(FlowAddress, ContractId), u64>,
    /// By owner and collection.
    pub items: BTreeMap<(FlowAddress, ContractId), BTreeSet<u64>>,
    /// By owner.
    pub coas: BTreeMap<FlowAddress, String>,
}

/// A script's value.
pub fn value(answer: &[u8]) -> Result<Value> {
    Ok(serde_json::from_slice::<Value>(answer)?["value"].take())
}

/// Units of 10^-8.
pub fn units(value: &Value) -> Result<u64> {
    let digits = value.as_str().with_context(|| format!("{value} is no UFix64"))?;
    digits.replace('.', "").parse().with_context(|| format!("{digits} is no UFix64"))
}

/// A text under a name of a dictionary of optionals.
pub fn named(value: &Value, name: &str) -> Option<String> {
    let entries = value.as_array()?;
    let entry = entries.iter().find(|entry| entry["key"]["value"] == name)?;
    Some(entry["value"]["value"]["value"].as_str()?.to_owned())
}

pub fn of_contract(id: &ContractId) -> [Cdc; 2] {
    [cdc::address(id.address), cdc::string(&id.name)]
}

/// Asks about every account of a ledger at a height, and about each token and collection that there is then.
pub async fn ask(client: &AccessClient, truth: &Truth<'_>, height: u64) -> Result<NodeTruth> {
    let question = Question::of_ledger(truth.ledger, height);
    let answers = ask_about(client, &question, height).await?;
    let missing = question.accounts.iter().find(|owner| !answers.accounts.contains_key(*owner));
    ensure!(missing.is_none(), "the node has no account {missing:?} at {height}");
    Ok(answers)
}

/// Asks at a height. Accounts that the node doesn't have then are left out.
pub async fn ask_about(client: &AccessClient, question: &Question, height: u64) -> Result<NodeTruth> {
    let network = question.network;
    let (balance, held, coa) = (scripts::balance(network), scripts::items(network), scripts::coa(network));
    let Question { accounts, tokens, collections, .. } = question;
    let of_one = |owner: FlowAddress| {
        let (balance, held, coa) = (&balance, &held, &coa);
        async move {
            let asked = |of: &ContractId| {
                let [address, name] = of_contract(of);
                [cdc::address(owner), address, name]
            };
            let Some(found) = client.account(owner, height).await? else { return Ok(None) };
            let mut balances = Vec::new();
            for token in tokens {
                let answer = client.script(balance, &asked(token), height).await?;
                balances.push((token.clone(), units(&value(&answer)?)?));
            }
            let mut items = Vec::new();
            for collection in collections {
                let ids = value(&client.script(held, &asked(collection), height).await?)?;
                let ids = ids.as_array().context("no list of ids")?;
                let id = |id: &Value| id["value"].as_str().and_then(|digits| digits.parse::<u64>().ok());
                let ids: Option<BTreeSet<u64>> = ids.iter().map(id).collect();
                items.push((collection.clone(), ids.context("no list of ids")?));
            }
            let coa = value(&client.script(coa, &[cdc::address(owner)], height).await?)?;
            let coa = coa["value"].as_str().map(str::to_owned);
            Ok::<_, anyhow::Error>(Some((owner, found, balances, items, coa)))
        }
    };
    let mut answers = futures::stream::iter(accounts.iter().copied().map(of_one)).buffer_unordered(AT_ONCE);
    let mut all = NodeTruth {
        height,
        accounts: BTreeMap::new(),
        balances: BTreeMap::new(),
        items: BTreeMap::new(),
        coas: BTreeMap::new(),
    };
    while let Some(answer) = answers.try_next().await? {
        let Some((owner, found, balances, items, coa)) = answer else { continue };
        all.accounts.insert(owner, found);
        all.balances.extend(balances.into_iter().map(|(token, balance)| ((owner, token), balance)));
        all.items.extend(items.into_iter().map(|(collection, ids)| ((owner, collection), ids)));
        all.coas.extend(coa.map(|coa| (owner, coa)));
    }
    Ok(all)
}

/// A key as a table has it; what no event said is nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyRow {
    pub index: u64,
    pub public_key: String,
    pub sign_algo: Option<u64>,
    pub hash_algo: Option<u64>,
    pub weight: Option<u64>,
    pub is_revoked: Option<bool>,
}

/// What tables say of a height.
pub struct State {
    /// By owner and token; above 0.
    pub balances: BTreeMap<[Cell; 3], u64>,
    /// Owners by collection and item.
    pub items: BTreeMap<[Cell; 3], Cell>,
    /// Hashes of code by account and name.
    pub contracts: BTreeMap<(String, String), String>,
    /// By account.
    pub keys: BTreeMap<String, Vec<KeyRow>>,
    /// By owner.
    pub coas: BTreeMap<String, String>,
}

impl State {
    /// What the tables of state have: that is of the head.
    pub fn of_head(found: &Tables) -> Result<State> {
        let mut balances = BTreeMap::new();
        for row in found.rows(&FT_HOLDINGS)?.of_accounts().filter(|row| is(row, "is_held")) {
            // Below 0 is what somebody gave away of what the archive didn't see.
            if row.said("balance")?.starts_with('-') {
                continue;
            }
            let key = [row.cell("address")?, row.cell("token_contract_address")?, row.cell("contract_name")?];
            balances.insert(key, row.number("balance")?);
        }
        let mut items = BTreeMap::new();
        for row in found.rows(&NFT_OWNERSHIP)?.of_accounts() {
            let key = [row.cell("contract_address")?, row.cell("contract_name")?, row.cell("nft_id")?];
            if let Some(owner) = row.cell("owner")? {
                items.insert(key, Some(owner));
            }
        }
        let mut contracts = older_contracts(found, u64::MAX)?;
        for row in found.rows(&ACCOUNT_CONTRACTS)?.iter().filter(|row| !is(row, "is_removed")) {
            let of = (row.said("address")?, row.said("contract_name")?);
            contracts.insert(of, row.said("code_hash")?);
        }
        // Of keys with the same bytes of which some are revoked it isn't known which those are.
        let mut in_doubt = BTreeSet::new();
        for row in found.rows(&UNPLACED_REVOCATIONS)?.iter() {
            if row.number::<u64>("revocation_count")? > 0 {
                in_doubt.insert((row.said("address")?, row.said("public_key")?));
            }
        }
        let mut keys: BTreeMap<String, Vec<KeyRow>> = BTreeMap::new();
        for row in found.rows(&ACCOUNT_KEYS)?.iter() {
            let number = |column: &str| -> Result<Option<u64>> {
                row.cell(column)?.map(|digits| digits.parse().context("no number")).transpose()
            };
            let (address, public_key) = (row.said("address")?, row.said("public_key")?);
            let key = KeyRow {
                index: row.number("key_index")?,
                public_key: public_key.clone(),
                sign_algo: number("sign_algo")?,
                hash_algo: number("hash_algo")?,
                weight: number("weight")?,
                is_revoked: Some(is(&row, "is_revoked"))
                    .filter(|is| *is || !in_doubt.contains(&(address.clone(), public_key.clone()))),
            };
            keys.entry(address).or_default().push(key);
        }
        keys.values_mut().for_each(|keys| keys.sort_by_key(|key| key.index));
        Ok(State { balances, items, contracts, keys, coas: coas_at(found, u64::MAX)? })
    }

    /// What the tables of events sum up to at a height.
    fn at(found: &Tables, height: u64) -> Result<State> {
        Ok(State { balances: tokens::balances_at(found, height)?, ..State::owned_at(found, height)? })
    }

    /// The same without balances: there may be some that no event tells of.
    pub fn owned_at(found: &Tables, height: u64) -> Result<State> {
        let keys = accounts::keys_at(found.rows(&ACCOUNT_KEY_EVENTS)?, height)?.into_iter();
        let keys = keys.map(|(address, keys)| {
            let keys = (0..).zip(keys).map(|(index, public_key)| KeyRow {
                index,
                public_key,
                sign_algo: None,
                hash_algo: None,
                weight: None,
                is_revoked: None,
            });
            (address, keys.collect())
        });
        let mut contracts = older_contracts(found, height)?;
        contracts.extend(contracts::contracts_at(found.rows(&CONTRACT_VERSIONS)?, height)?);
        Ok(State {
            balances: BTreeMap::new(),
            items: items::owners_at(found, height)?,
            contracts,
            keys: keys.collect(),
            coas: coas_at(found, height)?,
        })
    }
}

fn is(row: &Row<'_>, column: &str) -> bool {
    row.cell(column).is_ok_and(|cell| cell.as_deref() == Some("true"))
}

fn coas_at(found: &Tables, height: u64) -> Result<BTreeMap<String, String>> {
    let mut coas = BTreeMap::new();
    for row in found.rows(&COA_ACCOUNTS)?.iter() {
        if row.number::<u64>("block_height")? <= height {
            let owner = row.said("owner_address")?;
            let before = coas.insert(owner, row.said("coa_address")?);
            ensure!(before.is_none(), "coa_accounts: {before:?} has another of its owner beside it");
        }
    }
    Ok(coas)
}

/// How many answers of the node were compared with the tables. `is_head`: the node was asked about the height at which the tables stand.
pub fn compare(answers: &NodeTruth, truth: &Truth<'_>, found: &Tables, is_head: bool) -> Result<usize> {
    let mut state = match is_head {
        true => State::of_head(found)?,
        false => State::at(found, answers.height)?,
    };
    let flow = truth.ledger.flow_token();
    let mut created = BTreeSet::new();
    for row in found.rows(&ACCOUNT_CREATIONS)?.iter() {
        if row.number::<u64>("block_height")? <= answers.height {
            created.insert(row.said("address")?);
        }
    }
    let mut compared = 0;
    for (owner, account) in &answers.accounts {
        let name = owner.bare();
        let asked = answers.balances.get(&(*owner, flow.clone())).copied();
        ensure!(
            asked == Some(account.balance),
            "the node says of {owner} that it has {} FLOW, and its script {asked:?}",
            account.balance
        );
        if created.remove(&name) {
            keys(account, state.keys.remove(&name).unwrap_or_default())
                .with_context(|| format!("keys of {owner}"))?;
        }
        for (contract, code) in &account.contracts {
            let hash = state.contracts.remove(&(name.clone(), contract.clone()));
            let code = bytes(code_hash(code));
            ensure!(hash == code, "contracts: {contract} of {owner} is {code:?}, the table has {hash:?}");
        }
        let coa = state.coas.remove(&name);
        let answer = answers.coas.get(owner);
        ensure!(coa.as_ref() == answer, "coa_accounts: {owner} has {answer:?}, the table says {coa:?}");
        compared += 2 + account.keys.len() + account.contracts.len();
    }
    for ((owner, token), balance) in &answers.balances {
        let [address, name] = contract(token);
        let held = state.balances.remove(&[account(*owner), address, name]).unwrap_or(0);
        ensure!(held == *balance, "ft_holdings: {owner} has {balance} of {token}, the table says {held}");
    }
    for ((owner, collection), ids) in &answers.items {
        for id in ids {
            let [address, name] = contract(collection);
            let found = state.items.remove(&[address, name, number(id)]);
            let is_owner = found.as_ref() == Some(&account(*owner));
            ensure!(is_owner, "nft_ownership: {owner} has {id} of {collection}, the table says {found:?}");
            compared += 1;
        }
    }
    // What was destroyed without a word on which item that was, events still show with its last owner.
    for ((collection, id), item) in truth.ledger.items_at(answers.height) {
        if item.is_burned && !item.is_burn_told {
            let [address, name] = contract(&collection);
            state.items.remove(&[address, name, number(id)]);
        }
    }
    if let Some(address) = created.first() {
        bail!("account_creations: the node knows no account {address}");
    }
    let left = [
        ("ft_holdings", state.balances.first_key_value().map(|one| format!("{one:?}"))),
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
    Ok(compared + answers.balances.len())
}

/// Contracts that accounts had before a block named them, and of which no event told until a height. Each by owner and name, with the code's hash.
fn older_contracts(found: &Tables, height: u64) -> Result<BTreeMap<(String, String), String>> {
    let mut older = BTreeMap::new();
    for row in found.rows(&ACCOUNT_BASE_CONTRACTS)?.iter() {
        older.insert((row.said("address")?, row.said("contract_name")?), row.said("code_hash")?);
    }
    for row in found.rows(&CONTRACT_VERSIONS)?.iter() {
        if row.number::<u64>("block_height")? <= height {
            older.remove(&(row.said("address")?, row.said("contract_name")?));
        }
    }
    Ok(older)
}

/// That the keys of an account are those of the table.
pub fn keys(account: &proto::Account, rows: Vec<KeyRow>) -> Result<()> {
    ensure!(rows.len() == account.keys.len(), "{} are there, the table has {rows:?}", account.keys.len());
    for (key, row) in account.keys.iter().zip(&rows) {
        let is_it = u64::from(key.index) == row.index
            && bytes(&key.public_key) == text(&row.public_key)
            // The Access API counts otherwise than Cadence: 1 is BLS.
            && row.sign_algo.is_none_or(|algo| algo + 1 == u64::from(key.sign_algo))
            && row.hash_algo.is_none_or(|algo| algo == u64::from(key.hash_algo))
            && row.weight.is_none_or(|weight| weight == u64::from(key.weight))
            && row.is_revoked.is_none_or(|is_revoked| is_revoked == key.revoked);
        ensure!(is_it, "account_keys: {key:?} is there, the table has {row:?}");
    }
    Ok(())
}

fn contract_of(row: &Row<'_>) -> Result<ContractId> {
    let owner: FlowAddress = row.said("contract_address")?.parse().context("no account's address")?;
    Ok(ContractId::new(owner, &row.said("contract_name")?))
}

/// What tables say that a node was asked, asked again at the same blocks: names, supplies, pictures. How many answers those are.
pub async fn compare_answers(client: &AccessClient, network: Network, found: &Tables) -> Result<usize> {
    let mut compared = 0;
    let scripts = (scripts::token(network), scripts::supply(network), scripts::collection(network));
    for row in found.rows(&TOKENS)?.of_accounts() {
        let (of, height) = (contract_of(&row)?, row.number("asked_at_height")?);
        let display = value(&client.script(&scripts.0, &of_contract(&of), height).await?)?;
        let names = (named(&display, "name"), named(&display, "symbol"));
        let rows = (row.cell("name")?, row.cell("symbol")?);
        ensure!(names == rows, "tokens: {of} is {names:?}, the table has {rows:?}");
        let supply = value(&client.script(&scripts.1, &of_contract(&of), height).await?)?;
        let supply = if supply.is_null() { None } else { number(units(&supply["value"])?) };
        let said = row.cell("total_supply")?;
        ensure!(supply == said, "tokens: there are {supply:?} of {of} at {height}, the table has {said:?}");
        compared += 2;
    }
    for row in found.rows(&NFT_COLLECTIONS)?.of_accounts() {
        let (of, height) = (contract_of(&row)?, row.number("asked_at_height")?);
        let display = value(&client.script(&scripts.2, &of_contract(&of), height).await?)?;
        let (name, said) = (named(&display, "name"), row.cell("name")?);
        ensure!(name == said, "nft_collections: {of} is {name:?}, the table has {said:?}");
        compared += 1;
    }
    let mut pictures = BTreeMap::new();
    for row in found.rows(&NFT_METADATA)?.of_accounts() {
        let key = (contract_of(&row)?, row.number::<u64>("nft_id")?);
        pictures.insert(key, row.said("token_uri")?);
    }
    let picture = scripts::picture(network);
    let mut asks = Vec::new();
    for row in found.rows(&NFT_ASKS)?.of_accounts() {
        let owner: FlowAddress = row.said("owner_address")?.parse().context("no account's address")?;
        let item = (contract_of(&row)?, row.number::<u64>("nft_id")?);
        let height: u64 = row.number("asked_at_height")?;
        asks.push((item, owner, height, row.said("status")?));
    }
    compared += asks.len();
    let one = |((of, id), owner, height, status): ((ContractId, u64), FlowAddress, u64, String)| {
        let (picture, pictures) = (&picture, &pictures);
        async move {
            let [address, name] = of_contract(&of);
            let arguments = [address, name, cdc::number("UInt64", id), cdc::address(owner)];
            let answer = value(&client.script(picture, &arguments, height).await?)?;
            let uri = named(&answer, "uri");
            let said = if status == "ok" { pictures.get(&(of.clone(), id)).cloned() } else { None };
            ensure!(
                uri == said,
                "nft_metadata: the picture of {id} of {of}, as {owner} had it at {height}, is at {uri:?}, the tables say {said:?} ({status})"
            );
            Ok::<_, anyhow::Error>(())
        }
    };
    let mut asked = futures::stream::iter(asks.into_iter().map(one)).buffer_unordered(AT_ONCE);
    while asked.try_next().await?.is_some() {}
    Ok(compared)
}
