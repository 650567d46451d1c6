//! `evm_worker`: EVM transactions, logs and blocks out of the events of Flow transactions.
//!
//! An EVM block is closed by an event of the system's own transaction, which may fail: then its transactions stand in one Flow block and its
//! event in a later one (F04). So a transaction is derived where it was executed, whether or not its block is closed there. The index of a log
//! runs over its EVM block; where the block began in an earlier Flow block the logs before aren't known here, and the index runs from the first that
//! is here. An event that can't be read leaves a hole: its logs and its gas aren't known, so the index counts on without them. Where any of that is
//! missing, `cumulative_gas_used` is null.
//!
//! Numbers have 64 bits there and 63 in these tables. The limit of a transaction's gas is whatever a stranger writes: one that doesn't fit is null and
//! reported. Heights, times and gas that was used are the chain's own, and never that large: an event that has them so is reported, and isn't derived.
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
use cairn_pipeline::derive::processor::{Malformed, Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, Value};
use sha2::{Digest, Sha256};

use super::{FlowBlocks, PlacedTx};
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
    version: 5,
    upstreams: &[],
    tables: &[&EVM_TRANSACTIONS, &EVM_LOGS, &EVM_EXECUTIONS, &EVM_BLOCKS, &EVM_BLOCK_PARTS],
};

/// The most gas that the EVM transactions of one Flow block may have used: far more than any block can, and so little that the parts of an EVM block
/// add up to what a column holds.
const MAX_GAS_USED: u64 = (i64::MAX as u64) >> 16;
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
        let mut evm = InBlock {
            block,
            open: BTreeMap::new(),
            unread: 0,
            hashes: BTreeSet::new(),
            heights: BTreeSet::new(),
        };
        for placed in decoded.each() {
            let (index, tx) = (placed.index, placed.tx);
            for (event, execution) in placed.executions() {
                match &execution.executed {
                    Ok((executed, inner)) => evm.executed(index, tx, event, executed, inner, out),
                    Err(error) => evm.unreadable(super::malformed_event(tx, event, error), out),
                }
            }
        }
        let service = self.blocks.network.accounts().service;
        for PlacedTx { index, tx, .. } in decoded.each() {
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
    /// The place behind its newest one.
    next_index: u64,
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
    /// Whether all that came before in the EVM block is here.
    is_certain: bool,
    /// Events that couldn't be read, in this Flow block up to its newest transaction.
    unread: u64,
}

impl Open {
    /// Of a first transaction at this place.
    fn at(place: u64, unread: u64) -> Open {
        Open { first_index: place, next_index: place, is_certain: place == 0, unread, ..Open::default() }
    }

    /// The next transaction is at this place, with so many unreadable events before it. Says what is wrong with the place, if nothing that couldn't be read
    /// explains it. What comes behind has to follow this one.
    fn follow(&mut self, place: u64, unread: u64) -> Option<String> {
        let (last, unread_between) = (self.next_index.saturating_sub(1), unread - self.unread);
        let is_next = place == self.next_index;
        let is_explained =
            place.checked_sub(self.next_index).is_some_and(|missing| missing <= unread_between);
        if !is_next {
            self.is_wrong = true;
            self.is_certain = false;
        }
        (self.next_index, self.unread) = (place + 1, unread);
        (!is_explained).then(|| format!("follows number {last}"))
    }

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
    /// Events of transactions that couldn't be read.
    unread: u64,
    hashes: BTreeSet<B256>,
    heights: BTreeSet<u64>,
}

impl InBlock<'_> {
    /// What an event of a transaction says isn't known.
    fn unreadable(&mut self, fault: Malformed, out: &mut Output) {
        self.unread += 1;
        out.malformed(fault);
    }

    /// What is larger than any chain has it.
    fn excess(&self, executed: &Executed) -> Option<String> {
        if let Some(excess) = excess_of([("blockHeight", executed.block_height)]) {
            return Some(excess);
        }
        let gas_before = self.open.get(&executed.block_height).map_or(0, |open| open.gas_used);
        let is_too_much = gas_before.saturating_add(executed.gas_used) > MAX_GAS_USED;
        is_too_much.then(|| format!("its gasConsumed {} is more than a block can use", executed.gas_used))
    }

    fn executed(
        &mut self,
        index: u32,
        tx: &DecodedTx,
        event: &DecodedEvent,
        executed: &Executed,
        inner: &Result<EvmTransaction, FlowError>,
        out: &mut Output,
    ) {
        if let Some(excess) = self.excess(executed) {
            return self.unreadable(super::malformed_event(tx, event, excess), out);
        }
        let mut report = |message: String| out.malformed(super::malformed_event(tx, event, message));
        if !self.hashes.insert(executed.hash) {
            report(format!(
                "EVM transaction {} stands in the block before it: it is not derived",
                executed.hash
            ));
            return;
        }
        let (place, unread) = (u64::from(executed.index), self.unread);
        let open = self.open.entry(executed.block_height).or_insert_with(|| Open::at(place, unread));
        if let Some(wrong) = open.follow(place, unread) {
            report(format!("EVM transaction {place} of EVM block {} {wrong}", executed.block_height));
        }
        let first_log = open.logs;
        open.transactions += 1;
        open.hashes.push(executed.hash);
        open.gas_used = open.gas_used.saturating_add(executed.gas_used);
        open.logs += executed.logs.len() as u64;
        let cumulative = Some(open.gas_used).filter(|_| open.is_certain);
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
        if let Some(excess) = inner.and_then(|inner| excess_of([("gas limit", inner.gas_limit)])) {
            report(excess);
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
        let numbers =
            [("height", closed.height), ("timestamp", closed.timestamp_s), ("totalGasUsed", closed.gas_used)];
        if let Some(excess) = excess_of(numbers) {
            out.malformed(super::malformed_event(tx, event, excess));
            return;
        }
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

    fn transaction(
        &self,
        executed: &Executed,
        inner: Option<&EvmTransaction>,
        cumulative_gas: Option<u64>,
    ) -> Row {
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
            opt(inner.and_then(|inner| i64::try_from(inner.gas_limit).ok()), Value::Int),
            Value::uint(executed.gas_used),
            opt(cumulative_gas, Value::uint),
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
                Value::text(clean(message, ERROR_LIMIT))
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

/// The first of these numbers that no column holds.
fn excess_of<const N: usize>(numbers: [(&str, u64); N]) -> Option<String> {
    let (name, number) = numbers.into_iter().find(|(_, number)| i64::try_from(*number).is_err())?;
    Some(format!("its {name} {number} is 2^63 or more"))
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
