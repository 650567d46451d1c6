//! `evm_worker`: EVM transactions, logs and blocks out of the events of Flow transactions.
//!
//! An EVM block is closed by an event of the system's own transaction, which may fail: then its transactions stand in one Flow block and its
//! event in a later one (F04). So a transaction is derived where it was executed, whether or not its block is closed there. The index of a log
//! runs over its EVM block; where the block began in an earlier Flow block the logs before aren't known here, and the index runs from the first that
//! is here.
//!
//! A block that began and is closed in this Flow block must have in it all transactions that it counts gas of, and those whose hashes its root is of (F05):
//! what is missing, or isn't the same, is reported. Of one that isn't, this Flow block has a part (`evm_block_parts`), and `evm_chain_worker` says
//! whether the parts are all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{B256, U256};
use bytes::Bytes;
use cairn_core::{Parts, StoredBlock, TxStatus};
use cairn_flow::cdc::CdcValue;
use cairn_flow::evm::{DIRECT_CALL, DirectKind, EvmBlock, EvmTransaction, Executed, transaction_hash_root};
use cairn_flow::{DecodedEvent, DecodedTx, EventType, FlowError};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, Value};
use sha2::{Digest, Sha256};

use super::{FlowBlocks, OnceTx};
use crate::decode::{TextLimit, clean};
use crate::names::EVM_WORKER;
use crate::processors::Settings;
use crate::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use crate::tables::flow::evm::{EVM_BLOCKS, EVM_EXECUTIONS, EvmBlockRow};
use crate::tables::flow::evm_splits::{EVM_BLOCK_PARTS, EvmBlockPart};
use crate::tables::{INLINE_MAX_BYTES, opt, status_name};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: EVM_WORKER,
    version: 4,
    upstreams: &[],
    tables: &[&EVM_TRANSACTIONS, &EVM_LOGS, &EVM_EXECUTIONS, &EVM_BLOCKS, &EVM_BLOCK_PARTS],
};

/// The longest error message that a row keeps.
const ERROR_LIMIT: TextLimit = TextLimit { chars: 500, bytes: 1_000 };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(EvmWorker { blocks: FlowBlocks::of(settings)? })))
}

struct EvmWorker {
    blocks: FlowBlocks,
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
        let mut evm =
            InBlock { block, open: BTreeMap::new(), hashes: BTreeSet::new(), heights: BTreeSet::new() };
        for once in decoded.once() {
            let (index, tx) = (once.index, once.tx);
            for (event, execution) in once.executions() {
                match &execution.executed {
                    Ok((executed, inner)) => evm.executed(index, tx, event, executed, inner, out),
                    Err(error) => out.malformed(super::malformed_event(tx, event, error)),
                }
            }
        }
        let service = self.blocks.network.accounts().service;
        for OnceTx { index, tx, .. } in decoded.once() {
            for event in &tx.events {
                let Some(name) = EventType::parse(&event.event_type) else { continue };
                if !name.is(service, "EVM", "BlockExecuted") {
                    continue;
                }
                let closed =
                    CdcValue::parse_event(&event.payload).and_then(|fields| EvmBlock::from_event(&fields));
                match closed {
                    Ok(closed) => evm.closed(index, tx, event, &closed, out),
                    Err(error) => out.malformed(super::malformed_event(tx, event, error)),
                }
            }
        }
        evm.unclosed(out);
        Ok(())
    }
}

/// What was seen of an EVM block in this Flow block.
#[derive(Debug, Default)]
struct Open {
    /// The place of its first transaction that is here.
    first_index: u64,
    /// Transactions that are here.
    transactions: u64,
    /// Their hashes, in order.
    hashes: Vec<B256>,
    /// Their gas.
    gas_used: u64,
    /// Their logs.
    logs: u64,
    /// Whether they don't follow each other.
    is_wrong: bool,
}

impl Open {
    /// As a part of the EVM block at `evm_height`, which used `closed_gas_used` where it is closed here.
    fn part(&self, block: &StoredBlock, evm_height: u64, closed_gas_used: Option<u64>) -> EvmBlockPart {
        EvmBlockPart {
            block_height: block.facts.height.get(),
            evm_height,
            first_index: (self.transactions > 0).then_some(self.first_index),
            transaction_count: self.transactions,
            gas_used: self.gas_used,
            closed_gas_used,
            is_wrong: self.is_wrong,
        }
    }
}

struct InBlock<'b> {
    block: &'b StoredBlock,
    /// By the EVM block's height.
    open: BTreeMap<u64, Open>,
    hashes: BTreeSet<B256>,
    heights: BTreeSet<u64>,
}

impl InBlock<'_> {
    fn executed(
        &mut self,
        index: u32,
        tx: &DecodedTx,
        event: &DecodedEvent,
        executed: &Executed,
        inner: &Result<EvmTransaction, FlowError>,
        out: &mut Output,
    ) {
        let mut report = |message: String| out.malformed(super::malformed_event(tx, event, message));
        if !self.hashes.insert(executed.hash) {
            report(format!(
                "EVM transaction {} stands in the block before it: it is not derived",
                executed.hash
            ));
            return;
        }
        let place = u64::from(executed.index);
        let open = self
            .open
            .entry(executed.block_height)
            .or_insert_with(|| Open { first_index: place, ..Open::default() });
        if place != open.first_index + open.transactions {
            open.is_wrong = true;
            report(format!(
                "EVM transaction {place} of EVM block {} follows number {}",
                executed.block_height,
                open.first_index + open.transactions - 1
            ));
        }
        let first_log = open.logs;
        open.transactions += 1;
        open.hashes.push(executed.hash);
        open.gas_used = open.gas_used.saturating_add(executed.gas_used);
        open.logs += executed.logs.len() as u64;
        let cumulative = open.gas_used;
        let inner = match inner {
            Ok(inner) if inner.hash != executed.hash => {
                report(format!("its payload has the hash {}, it names {}", inner.hash, executed.hash));
                Some(inner)
            }
            Ok(inner) => Some(inner),
            Err(error) => {
                report(format!("its payload can't be read: {error}"));
                None
            }
        };
        if inner.is_some_and(|inner| inner.from.is_none()) {
            report("its signature gives no sender".to_owned());
        }
        out.row(&EVM_TRANSACTIONS, self.transaction(executed, inner, cumulative));
        out.row(&EVM_EXECUTIONS, self.execution(index, tx, event, executed, inner));
        for (at, log) in (first_log..).zip(&executed.logs) {
            out.row(&EVM_LOGS, self.log(event, executed, at, log));
        }
    }

    fn closed(
        &mut self,
        index: u32,
        tx: &DecodedTx,
        event: &DecodedEvent,
        closed: &EvmBlock,
        out: &mut Output,
    ) {
        if !self.heights.insert(closed.height) {
            let message = format!("EVM block {} is closed a second time: it is not derived", closed.height);
            out.malformed(super::malformed_event(tx, event, message));
            return;
        }
        let open = self.open.entry(closed.height).or_default();
        let root = closed.transaction_hash_root;
        let has_its_root = root.is_none_or(|root| transaction_hash_root(&open.hashes) == root);
        let has_its_gas = open.gas_used == closed.gas_used;
        // What it is of may stand in earlier Flow blocks, where its first transaction isn't here.
        let began_here = open.first_index == 0 && open.transactions > 0;
        if began_here && !has_its_gas {
            open.is_wrong = true;
            let message = format!(
                "EVM block {} used {} gas, its {} transactions in this Flow block {}: some are missing",
                closed.height, closed.gas_used, open.transactions, open.gas_used
            );
            out.malformed(super::malformed_event(tx, event, message));
        } else if began_here && let Some(root) = root.filter(|_| !has_its_root) {
            open.is_wrong = true;
            let message = format!(
                "EVM block {} has the root {root} of its transactions' hashes, the {} in this Flow block have another",
                closed.height, open.transactions
            );
            out.malformed(super::malformed_event(tx, event, message));
        }
        if open.is_wrong || open.first_index > 0 || !has_its_gas || !has_its_root {
            let part = open.part(self.block, closed.height, Some(closed.gas_used));
            out.row(&EVM_BLOCK_PARTS, part.to_row());
        }
        let row = EvmBlockRow {
            block_height: self.block.facts.height.get(),
            evm_height: closed.height,
            evm_hash: closed.hash,
            evm_parent_hash: closed.parent_hash,
            transaction_id: super::id(tx),
            transaction_index: index,
            block_timestamp_ms: self.block.facts.timestamp_ms,
            evm_timestamp_s: closed.timestamp_s,
            gas_used: closed.gas_used,
            transaction_count: open.transactions,
        };
        out.row(&EVM_BLOCKS, row.to_row());
    }

    /// What is here of EVM blocks that are closed in later Flow blocks.
    fn unclosed(&self, out: &mut Output) {
        for (evm_height, open) in self.open.iter().filter(|(height, _)| !self.heights.contains(height)) {
            out.row(&EVM_BLOCK_PARTS, open.part(self.block, *evm_height, None).to_row());
        }
    }

    fn transaction(&self, executed: &Executed, inner: Option<&EvmTransaction>, cumulative_gas: u64) -> Row {
        let address = |address: Option<alloy_primitives::Address>| {
            opt(address, |address| Value::bytes(address.as_slice()))
        };
        let wide = |number: Option<u128>| opt(number, |number| Value::Amount(U256::from(number)));
        let failed = executed.error_code != 0;
        // Of one that charges by the block's price the event says only what it would have paid at most.
        let fixed_price =
            inner.filter(|inner| inner.max_priority_fee_per_gas.is_none()).map(|inner| inner.gas_price);
        let max_fee =
            inner.filter(|inner| inner.max_priority_fee_per_gas.is_some()).map(|inner| inner.gas_price);
        // A resource may create a contract at an address that it names: what it sends is the contract's code all the same.
        let creates =
            inner.is_some_and(|inner| inner.to.is_none() || inner.direct == Some(DirectKind::Deploy));
        let method = inner.filter(|inner| inner.input.len() >= 4 && !creates);
        let (input, input_hash) =
            inner.map_or((Value::Null, Value::Null), |inner| inline_or_hash(&inner.input));
        Row(vec![
            Value::height(self.block.facts.height),
            Value::bytes(executed.hash.as_slice()),
            Value::uint(executed.index.into()),
            Value::uint(self.block.facts.timestamp_ms),
            Value::uint(executed.tx_type.into()),
            Value::text(status_name(if failed { TxStatus::Failed } else { TxStatus::Ok })),
            Value::Bool(executed.tx_type == DIRECT_CALL),
            address(inner.and_then(|inner| inner.from)),
            address(inner.and_then(|inner| inner.to)),
            address(executed.contract_address.filter(|_| !failed)),
            opt(inner, |inner| Value::Amount(U256::from(inner.nonce))),
            opt(inner, |inner| Value::Amount(inner.value)),
            opt(method, |inner| Value::bytes(&inner.input[..4])),
            input,
            opt(inner, |inner| Value::uint(inner.input.len() as u64)),
            input_hash,
            opt(inner, |inner| Value::uint(inner.gas_limit)),
            Value::uint(executed.gas_used),
            Value::uint(cumulative_gas),
            wide(fixed_price),
            wide(max_fee),
            wide(inner.and_then(|inner| inner.max_priority_fee_per_gas)),
            Value::Null,
            wide(fixed_price),
            Value::uint(executed.logs.len() as u64),
        ])
    }

    fn execution(
        &self,
        index: u32,
        tx: &DecodedTx,
        event: &DecodedEvent,
        executed: &Executed,
        inner: Option<&EvmTransaction>,
    ) -> Row {
        let returned = &executed.returned_data;
        Row(vec![
            Value::height(self.block.facts.height),
            Value::bytes(executed.hash.as_slice()),
            Value::uint(executed.index.into()),
            Value::uint(self.block.facts.timestamp_ms),
            Value::Bytes(super::id(tx)),
            Value::uint(index.into()),
            Value::uint(event.index.into()),
            Value::uint(executed.block_height),
            Value::uint(executed.error_code.into()),
            opt(Some(&executed.error_message).filter(|message| !message.is_empty()), |message| {
                Value::text(clean(message, ERROR_LIMIT).text)
            }),
            opt(inner.and_then(|inner| inner.direct), |kind| Value::text(direct_name(kind))),
            inline_or_hash(returned).0,
            Value::uint(returned.len() as u64),
        ])
    }

    fn log(
        &self,
        event: &DecodedEvent,
        executed: &Executed,
        log_index: u64,
        log: &cairn_flow::evm::Log,
    ) -> Row {
        let topic = |at: usize| opt(log.topics.get(at), |topic| Value::bytes(topic.as_slice()));
        let (data, payload_hash) = inline_or_hash(&log.data);
        let payload_ref = match &data {
            Value::Null => {
                Value::text(format!("raw:{}/{}/{log_index}", self.block.facts.height, event.index))
            }
            _ => Value::Null,
        };
        Row(vec![
            Value::height(self.block.facts.height),
            Value::bytes(executed.hash.as_slice()),
            Value::uint(log_index),
            Value::uint(executed.index.into()),
            Value::uint(self.block.facts.timestamp_ms),
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
}

/// The word of a direct call.
fn direct_name(kind: DirectKind) -> &'static str {
    match kind {
        DirectKind::Deposit => "deposit",
        DirectKind::Withdraw => "withdraw",
        DirectKind::Transfer => "transfer",
        DirectKind::Deploy => "deploy",
        DirectKind::Call => "call",
    }
}

/// The data itself; above the limit its SHA-256.
fn inline_or_hash(data: &Bytes) -> (Value, Value) {
    if data.len() <= INLINE_MAX_BYTES {
        (Value::bytes(data), Value::Null)
    } else {
        (Value::Null, Value::bytes(&Sha256::digest(data)))
    }
}
