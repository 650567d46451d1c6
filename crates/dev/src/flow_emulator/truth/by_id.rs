//! Each transaction of the test, asked for by its id.

use std::collections::BTreeMap;

use alloy_primitives::hex;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cairn_explorer::tables::flow::accounts::ACCOUNT_ROLES;
use cairn_explorer::tables::flow::transactions::FLOW_TX_METRICS;
use cairn_explorer::tables::transactions::{TX_CONTRACTS, TX_METRICS};
use cairn_flow::{FlowAddress, proto};
use cairn_flow_node::AccessClient;
use futures::{StreamExt, TryStreamExt};

use crate::flow_truth::Tables;
use crate::flow_truth::rows::Row;

/// Questions that are on their way at once.
const AT_ONCE: usize = 8;

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

/// A transaction of the test, as the node answers by its id.
pub struct Sent {
    height: u64,
    id: Bytes,
    transaction: proto::Transaction,
    result: proto::TransactionResult,
}

/// Asks for transactions at these heights by their ids.
pub async fn ask(client: &AccessClient, sent: &[(u64, Bytes)]) -> Result<Vec<Sent>> {
    let one = |(height, id): &(u64, Bytes)| {
        let (height, id) = (*height, id.clone());
        async move {
            let (transaction, result) = (client.transaction(&id).await?, client.result(&id).await?);
            Ok::<_, anyhow::Error>(Sent { height, id, transaction, result })
        }
    };
    futures::stream::iter(sent.iter().map(one)).buffered(AT_ONCE).try_collect().await
}

/// Each of them against the tables of transactions: where it is, how it ended, who signed it, how many events it has, and whose contracts it named.
pub fn compare(sent: &[Sent], found: &Tables) -> Result<usize> {
    let (metrics, flow) = (by_id(found, &TX_METRICS)?, by_id(found, &FLOW_TX_METRICS)?);
    let (roles, contracts) = (by_id(found, &ACCOUNT_ROLES)?, by_id(found, &TX_CONTRACTS)?);
    for Sent { height, id, transaction, result } in sent {
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
        let key = transaction.proposal_key.as_ref().context("no proposal key")?;
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
            let of: FlowAddress = of.trim().parse().with_context(|| of.to_owned())?;
            let of = of.bare();
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
