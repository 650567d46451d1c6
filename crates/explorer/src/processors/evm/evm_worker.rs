//! `evm_worker`: normalised transactions and logs.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use bytes::Bytes;
use cairn_core::{Parts, StoredBlock};
use cairn_evm::{DecodedLog, DecodedTx, Recipient};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, Value};
use sha2::{Digest, Sha256};

use super::EvmBlocks;
use crate::names::EVM_WORKER;
use crate::processors::Settings;
use crate::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use crate::tables::{INLINE_MAX_BYTES, opt, status_name};

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: EVM_WORKER, version: 1, upstreams: &[], tables: &[&EVM_TRANSACTIONS, &EVM_LOGS] };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(EvmWorker { blocks: EvmBlocks::of(settings) })))
}

struct EvmWorker {
    blocks: EvmBlocks,
}

impl Mapper for EvmWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for tx in decoded.transactions() {
            out.row(&EVM_TRANSACTIONS, transaction(block, tx));
            for log in &tx.receipt.logs {
                out.row(&EVM_LOGS, log_row(block, tx, log));
            }
        }
        Ok(())
    }
}

fn transaction(block: &StoredBlock, tx: &DecodedTx) -> Row {
    let address = |address: Option<Address>| opt(address, |address| Value::bytes(address.as_slice()));
    let wide = |number: Option<u128>| opt(number, |number| Value::Amount(U256::from(number)));
    let receipt = &tx.receipt;
    let method = tx.input.as_ref().filter(|input| input.len() >= 4 && tx.to != Recipient::Create);
    let (input, input_hash) = tx.input.as_ref().map_or((Value::Null, Value::Null), inline_or_hash);
    Row(vec![
        Value::height(block.facts.height),
        Value::bytes(&tx.id.0),
        Value::uint(tx.index.into()),
        Value::uint(block.facts.timestamp_ms),
        opt(tx.ty, Value::uint),
        Value::text(status_name(tx.status)),
        Value::Bool(tx.is_injected),
        address(tx.sender),
        address(tx.to.address()),
        address(tx.created_contract()),
        opt(tx.nonce, |nonce| Value::Amount(U256::from(nonce))),
        opt(tx.value, Value::Amount),
        opt(method, |input| Value::Bytes(input.slice(..4))),
        input,
        opt(tx.input.as_ref(), |input| Value::uint(input.len() as u64)),
        input_hash,
        opt(tx.gas_limit, Value::uint),
        Value::uint(receipt.gas_used),
        opt((!receipt.is_missing).then_some(receipt.cumulative_gas_used), Value::uint),
        wide(tx.gas_price),
        wide(tx.max_fee_per_gas),
        wide(tx.max_priority_fee_per_gas),
        wide(tx.max_fee_per_blob_gas),
        wide(receipt.effective_gas_price),
        Value::uint(receipt.logs.len() as u64),
    ])
}

fn log_row(block: &StoredBlock, tx: &DecodedTx, log: &DecodedLog) -> Row {
    let topic = |at: usize| opt(log.topics.get(at), |topic| Value::bytes(topic.as_slice()));
    let (data, payload_hash) = inline_or_hash(&log.data);
    let payload_ref = match &data {
        Value::Null => Value::text(format!("raw:{}/{}", block.facts.height, log.log_index)),
        _ => Value::Null,
    };
    Row(vec![
        Value::height(block.facts.height),
        Value::bytes(&tx.id.0),
        Value::uint(log.log_index.into()),
        Value::uint(tx.index.into()),
        Value::uint(block.facts.timestamp_ms),
        Value::bytes(log.address.as_slice()),
        topic(0),
        topic(1),
        topic(2),
        topic(3),
        data,
        Value::uint(log.data.len() as u64),
        payload_hash,
        payload_ref,
    ])
}

/// The data itself; above the limit its SHA-256.
fn inline_or_hash(data: &Bytes) -> (Value, Value) {
    if data.len() <= INLINE_MAX_BYTES {
        // A copy: a slice would keep the whole block's receipts in memory for as long as the row waits.
        (Value::bytes(data), Value::Null)
    } else {
        (Value::Null, Value::bytes(&Sha256::digest(data)))
    }
}
