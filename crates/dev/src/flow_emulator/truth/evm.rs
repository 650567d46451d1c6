//! The EVM on Flow: its transactions and blocks as the events have them, for the ledger; and what the node answers of them to questions of another kind:
//! events by their type, and accounts of the EVM by a script.

use std::collections::BTreeMap;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, Bytes, Log, U256, hex};
use alloy_rlp::{Decodable, Header};
use anyhow::{Context, Result, bail, ensure};
use cairn_explorer::tables::evm::EVM_TRANSACTIONS;
use cairn_explorer::tables::flow::evm::{EVM_BLOCKS, EVM_EXECUTIONS};
use cairn_flow::{FlowAddress, Network, proto};
use cairn_flow_node::ledger::{EvmBlock, EvmLog, EvmTx};
use cairn_flow_node::{AccessClient, cdc};
use serde_json::Value;

use super::super::cadence;
use super::payload::{Fields, parts};
use crate::flow_truth::Tables;

/// Heights that are asked for at once.
const EVENTS_HEIGHTS: u64 = 200;
/// The type of what a resource does, without a signature.
const DIRECT_CALL: u8 = 0xff;

/// What one Flow block has of the EVM.
#[derive(Default)]
pub struct EvmBook {
    pub transactions: Vec<EvmTx>,
    /// The block that it closes, and the place of the transaction that says so.
    pub closed: Option<(usize, EvmBlock)>,
    /// How many logs there were, by EVM block.
    logs: BTreeMap<u64, u32>,
}

impl EvmBook {
    /// Takes what the events of the Flow transaction at a place say.
    pub fn hear(
        &mut self,
        height: u64,
        index: usize,
        events: &[proto::Event],
        service: FlowAddress,
    ) -> Result<()> {
        for event in events {
            match parts(&event.r#type) {
                Some((of, "EVM", "TransactionExecuted")) if of == service => {
                    let fields = Fields::of(&event.payload)?;
                    let executed = self.executed(height, index, event.event_index, &fields);
                    let executed = executed.with_context(|| format!("event {}", event.event_index))?;
                    self.transactions.push(executed);
                }
                Some((of, "EVM", "BlockExecuted")) if of == service => {
                    ensure!(self.closed.is_none(), "two EVM blocks are closed");
                    let fields = Fields::of(&event.payload)?;
                    let closed = EvmBlock {
                        height: fields.number("height")?,
                        hash: fields.hash("hash")?,
                        parent: fields.hash("parentHash")?,
                        timestamp_s: fields.number("timestamp")?,
                        gas_used: fields.number("totalGasUsed")?,
                        transactions: u32::try_from(self.transactions.len())?,
                        event_index: event.event_index,
                    };
                    self.closed = Some((index, closed));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn executed(&mut self, height: u64, index: usize, event_index: u32, fields: &Fields) -> Result<EvmTx> {
        let payload = fields.bytes("payload")?;
        let sent = match payload.split_first() {
            Some((&DIRECT_CALL, call)) => direct_call(call)?,
            Some(_) => signed(&payload)?,
            None => bail!("an EVM transaction without bytes"),
        };
        let error_code = fields.number::<u16>("errorCode")?;
        let (tx_type, evm_height) = (fields.number::<u8>("type")?, fields.number::<u64>("blockHeight")?);
        let gas_used = fields.number::<u64>("gasConsumed")?;
        let logs = fields.bytes("logs")?;
        let logs = if logs.is_empty() { Vec::new() } else { Vec::<Log>::decode(&mut &logs[..])? };
        let next = self.logs.entry(evm_height).or_default();
        let mut told = Vec::new();
        for log in logs {
            let topics = log.data.topics().to_vec();
            told.push(EvmLog { index: *next, address: log.address, topics, data: log.data.data.to_vec() });
            *next += 1;
        }
        let created = fields.evm_account("contractAddress")?.filter(|_| error_code == 0);
        Ok(EvmTx {
            hash: fields.hash("hash")?,
            height,
            flow_tx_index: index,
            index: fields.number("index")?,
            tx_type,
            from: sent.from,
            to: sent.to,
            created,
            nonce: sent.nonce,
            value: sent.value,
            gas_limit: sent.gas_limit,
            gas_used,
            gas_price: sent.gas_price,
            max_priority_fee: sent.max_priority_fee,
            input: sent.input,
            direct: sent.direct,
            error_code,
            error_message: fields.text("errorMessage")?.to_owned(),
            returned: fields.bytes("returnedData")?,
            logs: told,
            evm_height,
            event_index,
        })
    }
}

/// What the bytes of an EVM transaction say.
struct Sent {
    from: Address,
    to: Option<Address>,
    nonce: u64,
    value: U256,
    gas_limit: u64,
    gas_price: u128,
    max_priority_fee: Option<u128>,
    input: Vec<u8>,
    direct: Option<&'static str>,
}

fn signed(bytes: &[u8]) -> Result<Sent> {
    let mut rest = bytes;
    let tx = TxEnvelope::decode_2718(&mut rest).context("a signed transaction")?;
    ensure!(rest.is_empty(), "bytes follow a signed transaction");
    Ok(Sent {
        from: cairn_evm::signature::recover_low_s(tx.signature(), tx.signature_hash()).context("a sender")?,
        to: tx.to(),
        nonce: tx.nonce(),
        value: tx.value(),
        gas_limit: tx.gas_limit(),
        gas_price: tx.max_fee_per_gas(),
        max_priority_fee: tx.max_priority_fee_per_gas(),
        input: tx.input().to_vec(),
        direct: None,
    })
}

/// `RLP([0xff, kind, from, to, data, value, gas limit, nonce])`.
fn direct_call(mut bytes: &[u8]) -> Result<Sent> {
    let mut items = Header::decode_bytes(&mut bytes, true)?;
    let items = &mut items;
    ensure!(u8::decode(items)? == DIRECT_CALL, "a direct call of another type");
    let direct = match u8::decode(items)? {
        1 => "deposit",
        2 => "withdraw",
        3 => "transfer",
        4 => "deploy",
        5 => "call",
        other => bail!("a direct call of kind {other}"),
    };
    let (from, to) = (Address::decode(items)?, Address::decode(items)?);
    let (input, value) = (Bytes::decode(items)?.to_vec(), U256::decode(items)?);
    let (gas_limit, nonce) = (u64::decode(items)?, u64::decode(items)?);
    ensure!(items.is_empty() && bytes.is_empty(), "a direct call of more than eight items");
    let to = Some(to).filter(|to| !to.is_zero());
    let direct = Some(direct);
    Ok(Sent { from, to, nonce, value, gas_limit, gas_price: 0, max_priority_fee: None, input, direct })
}

/// The events of the EVM, asked for by their type and heights, against its tables; and the nonces of its accounts, by a script. How many answers those are.
pub async fn compare_evm(client: &AccessClient, first: u64, height: u64, found: &Tables) -> Result<usize> {
    let service = Network::Emulator.accounts().service.bare();
    let (mut executed, mut blocks) = (BTreeMap::new(), BTreeMap::new());
    let mut from = first;
    while from <= height {
        let to = height.min(from + EVENTS_HEIGHTS - 1);
        for (at, events) in client.events(&format!("A.{service}.EVM.TransactionExecuted"), from, to).await? {
            for event in events {
                let fields = Fields::of(&event.payload)?;
                let gas_used = fields.number::<u64>("gasConsumed")?;
                let one =
                    (at, fields.number::<u64>("errorCode")?, gas_used, hex::encode(&event.transaction_id));
                executed.insert(hex::encode(fields.hash("hash")?), one);
            }
        }
        for (at, events) in client.events(&format!("A.{service}.EVM.BlockExecuted"), from, to).await? {
            for event in events {
                let fields = Fields::of(&event.payload)?;
                blocks.insert(fields.number::<u64>("height")?, (at, hex::encode(fields.hash("hash")?)));
            }
        }
        from = to + 1;
    }
    let mut gas_used = BTreeMap::new();
    for row in found.rows(&EVM_TRANSACTIONS)?.iter() {
        gas_used
            .insert(row.said("transaction_id")?, (row.number::<u64>("gas_used")?, row.said("from_address")?));
    }
    let (mut there, mut sent) = (BTreeMap::new(), BTreeMap::<String, u64>::new());
    for row in found.rows(&EVM_EXECUTIONS)?.iter() {
        let id = row.said("transaction_id")?;
        let (gas_used, from) = gas_used.remove(&id).with_context(|| format!("evm_transactions: no {id}"))?;
        let (at, error_code) = (row.number::<u64>("block_height")?, row.number::<u64>("error_code")?);
        there.insert(id, (at, error_code, gas_used, row.said("flow_transaction_id")?));
        if row.cell("direct_call")?.is_none() {
            *sent.entry(from).or_default() += 1;
        }
    }
    let other = executed.iter().find(|(id, one)| there.get(*id) != Some(*one));
    ensure!(other.is_none(), "evm_executions: the node has {other:?}");
    ensure!(there.len() == executed.len(), "evm_executions: {} rows, {} events", there.len(), executed.len());
    let mut closed = BTreeMap::new();
    for row in found.rows(&EVM_BLOCKS)?.iter() {
        let at = row.number::<u64>("block_height")?;
        closed.insert(row.number::<u64>("evm_height")?, (at, row.said("evm_hash")?));
    }
    ensure!(closed == blocks, "evm_blocks: {} rows, the node has {} blocks", closed.len(), blocks.len());
    for (account, count) in &sent {
        let answer = client.script(cadence::EVM_ACCOUNT, &[cdc::string(account)], height).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let nonce = answer["value"][0]["value"].as_str().context("no nonce")?;
        ensure!(nonce == count.to_string(), "evm_transactions: {account} sent {count}, its nonce is {nonce}");
    }
    Ok(executed.len() + blocks.len() + sent.len())
}
