//! What the tables say against what the emulator answers: its account calls, its scripts, and each transaction and event asked for by itself.
//!
//! Accounts that were there before the first block have what no event tells of: of those the difference to the first block is compared.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::hex;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use cairn_explorer::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use cairn_explorer::tables::flow::accounts::{ACCOUNT_CREATIONS, ACCOUNT_ROLES};
use cairn_explorer::tables::flow::evm::{EVM_BLOCKS, EVM_EXECUTIONS};
use cairn_explorer::tables::flow::fees::FEE_TRANSFERS;
use cairn_explorer::tables::flow::transactions::FLOW_TX_METRICS;
use cairn_explorer::tables::holdings::FT_HOLDINGS;
use cairn_explorer::tables::transactions::{TX_CONTRACTS, TX_METRICS};
use cairn_explorer::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};
use cairn_flow::{FlowAddress, Network};
use cairn_flow_node::AccessClient;
use cairn_flow_node::cdc;
use cairn_flow_node::ledger::ContractId;
use cairn_flow_node::scripts::code_hash;
use serde_json::Value;

use super::cadence;
use crate::flow_truth::Tables;
use crate::flow_truth::node::{NodeTruth, Question, State, ask_about, keys, units};
use crate::flow_truth::rows::{Cell, Row};

/// Heights that are asked for at once.
const EVENTS_HEIGHTS: u64 = 200;

/// What the node answers of two heights: the first one, and a later one.
pub struct Answers {
    first: NodeTruth,
    then: NodeTruth,
}

fn address(cell: &str) -> Result<FlowAddress> {
    cell.parse().with_context(|| format!("{cell} is no account's address"))
}

/// Everybody whom a table names, and those whom the test knows of; tokens and collections likewise.
pub fn question(found: &Tables, known: impl Iterator<Item = FlowAddress>) -> Result<Question> {
    let mut accounts: BTreeSet<FlowAddress> = known.collect();
    for (table, column) in
        [(&ACCOUNT_CREATIONS, "address"), (&FT_HOLDINGS, "address"), (&ACCOUNT_ROLES, "address")]
    {
        for row in found.rows(table)?.iter() {
            accounts.insert(address(&row.said(column)?)?);
        }
    }
    accounts.remove(&FlowAddress::ZERO);
    let of = |row: &Row<'_>, column: &str| -> Result<ContractId> {
        Ok(ContractId::new(address(&row.said(column)?)?, &row.said("contract_name")?))
    };
    let (mut tokens, mut collections) = (BTreeSet::new(), BTreeSet::new());
    for row in found.rows(&FT_TRANSFERS)?.iter().chain(found.rows(&FEE_TRANSFERS)?.iter()) {
        tokens.insert(of(&row, "token_contract_address")?);
    }
    for row in found.rows(&NFT_TRANSFERS)?.iter() {
        collections.insert(of(&row, "token_contract_address")?);
    }
    Ok(Question {
        network: Network::Emulator,
        accounts: accounts.into_iter().collect(),
        tokens: tokens.into_iter().collect(),
        collections: collections.into_iter().collect(),
    })
}

/// Asks about everybody at the first height, and at a later one.
pub async fn ask(client: &AccessClient, question: &Question, first: u64, height: u64) -> Result<Answers> {
    // FLOW is all that there was then.
    let flow = ContractId::new(question.network.accounts().flow_token, "FlowToken");
    let (network, accounts) = (question.network, question.accounts.clone());
    let of_first = Question { network, accounts, tokens: vec![flow], collections: Vec::new() };
    let mut answers = Answers {
        first: ask_about(client, &of_first, first).await?,
        then: ask_about(client, question, height).await?,
    };
    // Fees lie in their contract, whose account is the owner in events.
    let accounts = Network::Emulator.accounts();
    let key = (accounts.flow_fees, ContractId::new(accounts.flow_token, "FlowToken"));
    for at in [&mut answers.first, &mut answers.then] {
        let fees: Value =
            serde_json::from_slice(&client.script(cadence::FEE_BALANCE, &[], at.height).await?)?;
        *at.balances.entry(key.clone()).or_default() += units(&fees["value"])?;
    }
    Ok(answers)
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

fn by_id<'t>(
    found: &'t Tables,
    table: &'static cairn_store::derived::TableDef,
) -> Result<BTreeMap<String, Vec<Row<'t>>>> {
    let mut rows: BTreeMap<String, Vec<Row<'t>>> = BTreeMap::new();
    for row in found.rows(table)?.iter() {
        rows.entry(row.said("transaction_id")?).or_default().push(row);
    }
    Ok(rows)
}

/// Each transaction of the test, asked for by its id, against the tables of transactions: where it is, how it ended, who signed it, how many events it
/// has, and whose contracts it named.
pub async fn compare_transactions(
    client: &AccessClient,
    sent: &[(u64, Bytes)],
    found: &Tables,
) -> Result<usize> {
    let (metrics, flow) = (by_id(found, &TX_METRICS)?, by_id(found, &FLOW_TX_METRICS)?);
    let (roles, contracts) = (by_id(found, &ACCOUNT_ROLES)?, by_id(found, &TX_CONTRACTS)?);
    for (height, id) in sent {
        let (transaction, result) = (client.transaction(id).await?, client.result(id).await?);
        let id = hex::encode(id);
        let one = |rows: &BTreeMap<String, Vec<Row<'_>>>, table: &str| -> Result<usize> {
            let count = rows.get(&id).map_or(0, Vec::len);
            ensure!(count == 1, "{table}: {count} rows of {id}");
            Ok(count)
        };
        one(&metrics, "tx_metrics")?;
        one(&flow, "flow_tx_metrics")?;
        let (metric, flow) = (metrics[&id][0], flow[&id][0]);
        let said = (
            metric.number::<u64>("block_height")?,
            metric.number::<usize>("event_count")?,
            flow.number::<u32>("status_code")?,
            flow.cell("error_message")?.is_some(),
            flow.number::<u64>("computation_limit")?,
        );
        let is = (
            *height,
            result.events.len(),
            result.status_code,
            !result.error_message.is_empty(),
            transaction.gas_limit,
        );
        ensure!(said == is, "tx_metrics of {id}: {said:?}, the node says {is:?}");
        let key = transaction.proposal_key.context("no proposal key")?;
        let mut signers: BTreeMap<String, [bool; 3]> = BTreeMap::new();
        signers.entry(hex::encode(&key.address)).or_default()[0] = true;
        signers.entry(hex::encode(&transaction.payer)).or_default()[1] = true;
        for authorizer in &transaction.authorizers {
            signers.entry(hex::encode(authorizer)).or_default()[2] = true;
        }
        let mut there = BTreeMap::new();
        for row in roles.get(&id).into_iter().flatten() {
            let is = |column: &str| -> Result<bool> { Ok(row.said(column)? == "true") };
            there.insert(row.said("address")?, [is("is_proposer")?, is("is_payer")?, is("is_authorizer")?]);
        }
        ensure!(there == signers, "account_roles of {id}: {there:?}, the node says {signers:?}");
        // `import NAME from 0xADDRESS`, line by line.
        let script = String::from_utf8_lossy(&transaction.script).into_owned();
        for line in script.lines().filter_map(|line| line.strip_prefix("import ")) {
            let (name, of) = line.split_once(" from ").context("an import of the tests")?;
            let of = address(of.trim())?.bare();
            let mut rows = contracts.get(&id).into_iter().flatten();
            let is_there = rows.any(|row| {
                row.cell("contract_address").is_ok_and(|cell| cell.as_deref() == Some(&of))
                    && row.cell("contract_name").is_ok_and(|cell| cell.as_deref() == Some(name))
            });
            ensure!(is_there, "tx_contracts of {id}: {name} of {of} isn't there");
        }
    }
    Ok(sent.len())
}

fn fields(payload: &[u8]) -> Result<BTreeMap<String, Value>> {
    let mut payload: Value = serde_json::from_slice(payload)?;
    let fields = payload["value"]["fields"].take();
    let fields = fields.as_array().context("an event without fields")?.iter();
    fields
        .map(|one| Ok((one["name"].as_str().context("a name")?.to_owned(), one["value"]["value"].clone())))
        .collect()
}

fn hex_of(value: &Value) -> Result<String> {
    match value {
        Value::Array(bytes) => {
            let byte = |byte: &Value| byte["value"].as_str().and_then(|digits| digits.parse::<u8>().ok());
            let bytes: Option<Vec<u8>> = bytes.iter().map(byte).collect();
            Ok(hex::encode(bytes.context("no bytes")?))
        }
        Value::String(digits) => Ok(digits.trim_start_matches("0x").to_lowercase()),
        other => bail!("{other} is no hash"),
    }
}

/// The events of the EVM, asked for by their type and heights, against its tables; and what its accounts have, by a script.
pub async fn compare_evm(client: &AccessClient, first: u64, height: u64, found: &Tables) -> Result<usize> {
    let service = Network::Emulator.accounts().service.bare();
    let (mut executed, mut blocks) = (BTreeMap::new(), BTreeMap::new());
    let mut from = first;
    while from <= height {
        let to = height.min(from + EVENTS_HEIGHTS - 1);
        for (at, events) in client.events(&format!("A.{service}.EVM.TransactionExecuted"), from, to).await? {
            for event in events {
                let fields = fields(&event.payload)?;
                let logs = hex::decode(hex_of(&fields["logs"])?)?;
                let logs = <Vec<alloy_primitives::Log> as alloy_rlp::Decodable>::decode(&mut &logs[..])
                    .or_else(|error| if logs.is_empty() { Ok(Vec::new()) } else { Err(error) })?;
                let number = |name: &str| fields[name].as_str().map(str::to_owned).context("no number");
                let one = (
                    at,
                    number("errorCode")?,
                    number("gasConsumed")?,
                    hex::encode(&event.transaction_id),
                    logs,
                );
                executed.insert(hex_of(&fields["hash"])?, one);
            }
        }
        for (at, events) in client.events(&format!("A.{service}.EVM.BlockExecuted"), from, to).await? {
            for event in events {
                let fields = fields(&event.payload)?;
                let number = fields["height"].as_str().context("no height")?.to_owned();
                blocks.insert(number, (at, hex_of(&fields["hash"])?));
            }
        }
        from = to + 1;
    }
    let executions = by_id(found, &EVM_EXECUTIONS)?;
    let (transactions, mut logs) = (by_id(found, &EVM_TRANSACTIONS)?, by_id(found, &EVM_LOGS)?);
    let mut sent: BTreeMap<String, u64> = BTreeMap::new();
    for (id, (at, error_code, gas_used, flow_id, wanted)) in &executed {
        let of_one = |rows: &BTreeMap<String, Vec<Row<'_>>>| rows.get(id).map_or(0, Vec::len);
        ensure!(
            of_one(&executions) == 1 && of_one(&transactions) == 1,
            "evm_transactions: {id} isn't there once"
        );
        let (execution, transaction) = (executions[id][0], transactions[id][0]);
        let said = (
            execution.number::<u64>("block_height")?,
            execution.said("error_code")?,
            transaction.said("gas_used")?,
            execution.said("flow_transaction_id")?,
        );
        let is = (*at, error_code.clone(), gas_used.clone(), flow_id.clone());
        ensure!(said == is, "evm_transactions: {id}: {said:?}, the node says {is:?}");
        let mut there = logs.remove(id).unwrap_or_default();
        there.sort_by_key(|row| row.number::<u64>("log_index").unwrap_or(u64::MAX));
        ensure!(
            there.len() == wanted.len(),
            "evm_logs: {} of {id}, the node has {}",
            there.len(),
            wanted.len()
        );
        for (row, log) in there.iter().zip(wanted) {
            let topic = |at: usize| -> Cell { log.data.topics().get(at).map(hex::encode) };
            let is = [Some(hex::encode(log.address)), topic(0), topic(1), Some(hex::encode(&log.data.data))];
            let said = [row.cell("address")?, row.cell("topic0")?, row.cell("topic1")?, row.cell("data")?];
            ensure!(said == is, "evm_logs: of {id}: {said:?}, the node has {is:?}");
        }
        if execution.cell("direct_call")?.is_none() {
            *sent.entry(transaction.said("from_address")?).or_default() += 1;
        }
    }
    ensure!(logs.is_empty(), "evm_logs: logs of {:?}, which isn't there", logs.keys().next());
    let rows = (found.rows(&EVM_EXECUTIONS)?.rows.len(), found.rows(&EVM_TRANSACTIONS)?.rows.len());
    ensure!(rows == (executed.len(), executed.len()), "{rows:?} rows of {} EVM transactions", executed.len());
    let mut there = BTreeMap::new();
    for row in found.rows(&EVM_BLOCKS)?.iter() {
        there.insert(row.said("evm_height")?, (row.number("block_height")?, row.said("evm_hash")?));
    }
    ensure!(there == blocks, "evm_blocks: {} rows, the node has {} blocks", there.len(), blocks.len());
    for (account, count) in &sent {
        let arguments = [cdc::string(account)];
        let answer = client.script(cadence::EVM_ACCOUNT, &arguments, height).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let nonce = answer["value"][0]["value"].as_str().context("no nonce")?;
        ensure!(nonce == count.to_string(), "evm_transactions: {account} sent {count}, its nonce is {nonce}");
    }
    Ok(executed.len() + blocks.len() + sent.len())
}
