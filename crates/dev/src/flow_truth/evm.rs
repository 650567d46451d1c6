//! `evm_transactions`, `evm_executions`, `evm_logs`, `evm_blocks`: the EVM on Flow. `evm_chain`, `evm_gaps` and `evm_absences`: whether it is whole, which it is,
//! and which Flow blocks have none. `evm_block_parts` and `evm_splits`: those that stand in several Flow blocks.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use cairn_explorer::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use cairn_explorer::tables::flow::evm::{EVM_ABSENCES, EVM_BLOCKS, EVM_CHAIN, EVM_EXECUTIONS, EVM_GAPS};
use cairn_explorer::tables::flow::evm_splits::{EVM_BLOCK_PARTS, EVM_SPLITS};
use cairn_flow_node::ledger::EvmBlock;
use sha2::{Digest, Sha256};

use super::evm_tokens::all;
use super::ledger::{Truth, TxAt};
use super::rows::{Cell, Expected, Tables, boolean, bytes, number, text};
use super::transactions::readable;

/// Data up to so many bytes is kept in a row; of more, its SHA-256.
const INLINE_MAX_BYTES: usize = 8_192;

fn inline(data: &[u8]) -> Cell {
    bytes(data).filter(|_| data.len() <= INLINE_MAX_BYTES)
}

fn digest(data: &[u8]) -> Cell {
    bytes(Sha256::digest(data)).filter(|_| data.len() > INLINE_MAX_BYTES)
}

/// `evm_transactions`.
pub fn transactions(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVM_TRANSACTIONS)?;
    // Of an EVM block in several Flow blocks, the first one alone says what was used before a transaction.
    let mut used: BTreeMap<(u64, u64), Option<u64>> = BTreeMap::new();
    for (evm, at) in all(truth)? {
        let place = (evm.height, evm.evm_height);
        let cumulative = used.entry(place).or_insert((evm.index == 0).then_some(0));
        *cumulative = cumulative.map(|before| before + evm.gas_used);
        // One that pays by the block's price says only what it pays at most.
        let fixed = number(evm.gas_price).filter(|_| evm.max_priority_fee.is_none());
        let most = number(evm.gas_price).filter(|_| evm.max_priority_fee.is_some());
        let is_call = evm.to.is_some() && evm.direct != Some("deploy");
        let mut row = vec![number(at.height), bytes(evm.hash), number(evm.index), number(at.time_ms)];
        row.extend([number(evm.tx_type), text(if evm.error_code == 0 { "ok" } else { "failed" })]);
        row.extend([boolean(evm.tx_type == 0xff), bytes(evm.from), evm.to.and_then(bytes)]);
        row.extend([evm.created.and_then(bytes), number(evm.nonce), number(evm.value)]);
        row.extend([evm.input.get(..4).filter(|_| is_call).and_then(bytes), inline(&evm.input)]);
        row.extend([number(evm.input.len()), digest(&evm.input), number(evm.gas_limit)]);
        row.extend([number(evm.gas_used), cumulative.and_then(number), fixed.clone(), most]);
        row.extend([evm.max_priority_fee.and_then(number), None, fixed, number(evm.logs.len())]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `evm_executions`.
pub fn executions(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVM_EXECUTIONS)?;
    for (evm, at) in all(truth)? {
        let mut row = vec![number(at.height), bytes(evm.hash), number(evm.index), number(at.time_ms)];
        row.extend([bytes(at.tx.id), number(at.index), number(evm.event_index), number(evm.evm_height)]);
        let message = Some(evm.error_message.as_str()).filter(|message| !message.is_empty());
        row.extend([number(evm.error_code), message.map(readable), evm.direct.and_then(text)]);
        row.extend([inline(&evm.returned), number(evm.returned.len())]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `evm_logs`.
pub fn logs(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVM_LOGS)?;
    for (evm, at) in all(truth)? {
        for log in &evm.logs {
            let mut row = vec![number(at.height), bytes(evm.hash), number(log.index), number(evm.index)];
            row.extend([number(at.time_ms), bytes(log.address)]);
            row.extend((0..4).map(|topic| log.topics.get(topic).and_then(bytes)));
            let place = format!("raw:{}/{}/{}", at.height, evm.event_index, log.index);
            let is_elsewhere = log.data.len() > INLINE_MAX_BYTES;
            row.extend([inline(&log.data), number(log.data.len()), digest(&log.data)]);
            row.push(text(place).filter(|_| is_elsewhere));
            expected.add(row)?;
        }
    }
    Ok(expected)
}

fn closed<'l>(truth: &Truth<'l>) -> impl DoubleEndedIterator<Item = (u64, &'l EvmBlock)> + use<'l> {
    truth.ledger.evm_blocks.range(..=truth.height).map(|(height, block)| (*height, block))
}

/// `evm_blocks`: the last transaction of a Flow block closes its EVM block.
pub fn blocks(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let last: BTreeMap<u64, TxAt<'_>> = truth.transactions().map(|at| (at.height, at)).collect();
    let mut expected = Expected::of(&EVM_BLOCKS)?;
    for (height, block) in closed(truth) {
        let at = last.get(&height).with_context(|| format!("block {height} has no transaction"))?;
        let mut row = vec![number(height), number(block.height), bytes(block.hash), bytes(block.parent)];
        row.extend([bytes(at.tx.id), number(at.index), number(at.time_ms), number(block.timestamp_s)]);
        let here = truth.ledger.evm_transactions.get(&height).map_or(0, Vec::len);
        row.extend([number(block.gas_used), number(here)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `evm_chain`.
pub fn chain(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let (first, last) = (closed(truth).next(), closed(truth).next_back());
    let newest = truth.ledger.evm_blocks.get(&truth.height);
    let count = closed(truth).count() as u64;
    // Below the first EVM block nothing is absent.
    let absent = first.map_or(0, |(height, _)| truth.height - height + 1 - count);
    let mut row = vec![number(truth.ledger.network.evm_chain_id())];
    row.extend([first.and_then(|(_, block)| number(block.height))]);
    row.extend([last.and_then(|(_, block)| number(block.height))]);
    row.extend([last.and_then(|(_, block)| bytes(block.hash))]);
    row.extend([newest.and_then(|block| number(block.height)), newest.and_then(|block| bytes(block.parent))]);
    row.extend([number(count), number(absent), number(0), number(truth.height)]);
    let mut expected = Expected::of(&EVM_CHAIN)?;
    expected.add(row)?;
    Ok(expected)
}

/// `evm_gaps`: none.
pub fn gaps(_: &Truth<'_>, _: &Tables) -> Result<Expected> {
    Expected::of(&EVM_GAPS)
}

/// `evm_absences`: the Flow blocks between one EVM block and the next, or the head.
pub fn absences(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVM_ABSENCES)?;
    let mut next = closed(truth).skip(1).map(|(height, _)| height).chain([truth.height + 1]);
    for (height, block) in closed(truth) {
        let next = next.next().with_context(|| format!("nothing follows EVM block {}", block.height))?;
        let absent = next - height - 1;
        if absent > 0 {
            expected.add(vec![number(block.height), number(height + 1), number(absent), number(next - 1)])?;
        }
    }
    Ok(expected)
}

/// A Flow block's part of an EVM block.
struct Part {
    height: u64,
    evm_height: u64,
    first_index: Option<u32>,
    count: usize,
    gas_used: u64,
    closed_gas_used: Option<u64>,
}

/// Those of EVM blocks that stand in several Flow blocks, or are not closed yet.
fn parts(truth: &Truth<'_>) -> Vec<Part> {
    let mut parts: BTreeMap<(u64, u64), Part> = BTreeMap::new();
    let part = |height, evm_height| Part {
        height,
        evm_height,
        first_index: None,
        count: 0,
        gas_used: 0,
        closed_gas_used: None,
    };
    for (height, block) in closed(truth) {
        let closed_gas_used = Some(block.gas_used);
        parts.insert((block.height, height), Part { closed_gas_used, ..part(height, block.height) });
    }
    for evm in truth.ledger.evm_transactions.range(..=truth.height).flat_map(|(_, txs)| txs) {
        let at = (evm.evm_height, evm.height);
        let part = parts.entry(at).or_insert_with(|| part(evm.height, evm.evm_height));
        part.first_index.get_or_insert(evm.index);
        (part.count, part.gas_used) = (part.count + 1, part.gas_used + evm.gas_used);
    }
    let of = |evm_height: u64| parts.range((evm_height, 0)..=(evm_height, u64::MAX)).count();
    let is_whole = |part: &Part| part.closed_gas_used.is_some() && of(part.evm_height) == 1;
    let split: Vec<(u64, u64)> =
        parts.iter().filter(|(_, part)| !is_whole(part)).map(|(at, _)| *at).collect();
    split.iter().filter_map(|at| parts.remove(at)).collect()
}

/// `evm_block_parts`.
pub fn block_parts(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&EVM_BLOCK_PARTS)?;
    for part in parts(truth) {
        let mut row = vec![number(part.height), number(part.evm_height), part.first_index.and_then(number)];
        row.extend([number(part.count), number(part.gas_used)]);
        row.extend([part.closed_gas_used.and_then(number), boolean(false)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// `evm_splits`.
pub fn splits(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut splits: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
    for part in parts(truth) {
        splits.entry(part.evm_height).or_default().push(part);
    }
    let mut expected = Expected::of(&EVM_SPLITS)?;
    for (evm_height, parts) in splits {
        let (first, last) = parts.first().zip(parts.last()).context("a split has parts")?;
        let count: usize = parts.iter().map(|part| part.count).sum();
        let gas_used: u64 = parts.iter().map(|part| part.gas_used).sum();
        let mut row = vec![number(evm_height), number(first.height), number(count), number(gas_used)];
        row.extend([last.first_index.and_then(number), last.closed_gas_used.and_then(number)]);
        row.extend([last.closed_gas_used.and_then(|_| boolean(true)), number(last.height)]);
        expected.add(row)?;
    }
    Ok(expected)
}
