//! The fields of a header, a transaction, a receipt and a log, as nodes name them.
//!
//! The names and forms are those of the Ethereum JSON-RPC specification (ethereum/execution-apis) as geth answers: transactions and
//! logs carry `blockTimestamp`, typed transactions both `v` and `yParity`, transactions before EIP-155 no `chainId`, receipts before
//! Byzantium `root` and no `status`.

use alloy_consensus::transaction::to_eip155_value;
use alloy_consensus::{Header, Transaction, Typed2718};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bloom, U256, hex};
use serde_json::{Map, Value, json};

use super::sink::{Field, Sink};
use crate::receipts::{Log, Outcome, Receipt};
use crate::tx::{Tx, TxEnvelope};

/// What the fields of everything in a block are made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockContext {
    pub id: B256,
    pub number: u64,
    /// In seconds.
    pub timestamp: u64,
    pub base_fee: Option<u64>,
    /// Known where the chain's fork schedule is.
    pub blob_gas_price: Option<u128>,
}

/// The fields of a header. `hash` comes last.
pub(crate) fn header(header: &Header, id: B256, sink: &mut impl Sink) {
    sink.put("number", Field::Number(header.number));
    sink.put("parentHash", Field::Data(header.parent_hash.as_slice()));
    sink.put("sha3Uncles", Field::Data(header.ommers_hash.as_slice()));
    sink.put("miner", Field::Data(header.beneficiary.as_slice()));
    sink.put("stateRoot", Field::Data(header.state_root.as_slice()));
    sink.put("transactionsRoot", Field::Data(header.transactions_root.as_slice()));
    sink.put("receiptsRoot", Field::Data(header.receipts_root.as_slice()));
    sink.put("logsBloom", Field::Data(header.logs_bloom.as_slice()));
    sink.put("difficulty", Field::Quantity(header.difficulty));
    sink.put("gasLimit", Field::Number(header.gas_limit));
    sink.put("gasUsed", Field::Number(header.gas_used));
    sink.put("timestamp", Field::Number(header.timestamp));
    sink.put("extraData", Field::Data(&header.extra_data));
    sink.put("mixHash", Field::Data(header.mix_hash.as_slice()));
    sink.put("nonce", Field::Data(header.nonce.as_slice()));
    if let Some(fee) = header.base_fee_per_gas {
        sink.put("baseFeePerGas", Field::Number(fee));
    }
    if let Some(root) = &header.withdrawals_root {
        sink.put("withdrawalsRoot", Field::Data(root.as_slice()));
    }
    if let Some(gas) = header.blob_gas_used {
        sink.put("blobGasUsed", Field::Number(gas));
    }
    if let Some(gas) = header.excess_blob_gas {
        sink.put("excessBlobGas", Field::Number(gas));
    }
    if let Some(root) = &header.parent_beacon_block_root {
        sink.put("parentBeaconBlockRoot", Field::Data(root.as_slice()));
    }
    if let Some(hash) = &header.requests_hash {
        sink.put("requestsHash", Field::Data(hash.as_slice()));
    }
    if let Some(hash) = &header.block_access_list_hash {
        sink.put("blockAccessListHash", Field::Data(hash.as_slice()));
    }
    if let Some(slot) = header.slot_number {
        sink.put("slotNumber", Field::Number(slot));
    }
    sink.put("hash", Field::Data(id.as_slice()));
}

/// Withdrawals, as a block has them.
pub(crate) fn withdrawals(list: &[Withdrawal]) -> Value {
    let object = |withdrawal: &Withdrawal| {
        let mut object = Map::new();
        object.put("index", Field::Number(withdrawal.index));
        object.put("validatorIndex", Field::Number(withdrawal.validator_index));
        object.put("address", Field::Data(withdrawal.address.as_slice()));
        object.put("amount", Field::Number(withdrawal.amount));
        Value::Object(object)
    };
    Value::Array(list.iter().map(object).collect())
}

/// Where a transaction stands.
pub(crate) fn place(block: &BlockContext, index: usize, sink: &mut impl Sink) {
    sink.put("blockHash", Field::Data(block.id.as_slice()));
    sink.put("blockNumber", Field::Number(block.number));
    sink.put("blockTimestamp", Field::Number(block.timestamp));
    sink.put("transactionIndex", Field::Number(index as u64));
}

/// The fields of a transaction of known type.
pub(crate) fn transaction(
    block: &BlockContext,
    index: usize,
    tx: &Tx,
    hash: B256,
    sender: &[u8],
    sink: &mut impl Sink,
) {
    place(block, index, sink);
    sink.put("hash", Field::Data(hash.as_slice()));
    sink.put("from", Field::data_or_null(Some(sender).filter(|sender| !sender.is_empty())));
    let tx = match tx {
        Tx::Ethereum(tx) => tx,
        Tx::Described(tx) => {
            sink.put("type", Field::Number(u64::from(tx.ty())));
            return tx.put(sink);
        }
    };
    sink.put("type", Field::Number(u64::from(tx.ty())));
    sink.put("nonce", Field::Number(tx.nonce()));
    sink.put("gas", Field::Number(tx.gas_limit()));
    sink.put("gasPrice", number(tx.effective_gas_price(block.base_fee)));
    if tx.is_dynamic_fee() {
        sink.put("maxFeePerGas", number(tx.max_fee_per_gas()));
        sink.put("maxPriorityFeePerGas", number(tx.max_priority_fee_per_gas().unwrap_or_default()));
    }
    if let Some(fee) = tx.max_fee_per_blob_gas() {
        sink.put("maxFeePerBlobGas", number(fee));
    }
    sink.put("to", Field::data_or_null(tx.to().as_ref().map(|to| to.as_slice())));
    sink.put("value", Field::Quantity(tx.value()));
    sink.put("input", Field::Data(tx.input()));
    if let Some(list) = tx.access_list() {
        let entry = |item: &alloy_eips::eip2930::AccessListItem| {
            let keys: Vec<Value> =
                item.storage_keys.iter().map(|key| hex::encode_prefixed(key).into()).collect();
            json!({ "address": hex::encode_prefixed(item.address), "storageKeys": keys })
        };
        sink.put("accessList", Field::Json(Value::Array(list.iter().map(entry).collect())));
    }
    if let Some(hashes) = tx.blob_versioned_hashes() {
        sink.put("blobVersionedHashes", Field::Hashes(hashes));
    }
    if let Some(list) = tx.authorization_list() {
        let entry = |signed: &alloy_eips::eip7702::SignedAuthorization| {
            let mut object = Map::new();
            object.put("chainId", Field::Quantity(signed.chain_id));
            object.put("address", Field::Data(signed.address.as_slice()));
            object.put("nonce", Field::Number(signed.nonce));
            object.put("yParity", Field::Number(u64::from(signed.y_parity())));
            object.put("r", Field::Quantity(signed.r()));
            object.put("s", Field::Quantity(signed.s()));
            Value::Object(object)
        };
        sink.put("authorizationList", Field::Json(Value::Array(list.iter().map(entry).collect())));
    }
    if let Some(chain_id) = tx.chain_id() {
        sink.put("chainId", Field::Number(chain_id));
    }
    let signature = tx.signature();
    match tx {
        TxEnvelope::Legacy(legacy) => {
            sink.put("v", number(to_eip155_value(signature.v(), legacy.tx().chain_id)));
        }
        _ => {
            sink.put("v", Field::Number(u64::from(signature.v())));
            sink.put("yParity", Field::Number(u64::from(signature.v())));
        }
    }
    sink.put("r", Field::Quantity(signature.r()));
    sink.put("s", Field::Quantity(signature.s()));
}

fn number(number: u128) -> Field<'static> {
    Field::Quantity(U256::from(number))
}

/// What a receipt's fields are made of, beside the receipt.
#[derive(Debug)]
pub(crate) struct ReceiptContext<'a> {
    pub index: usize,
    pub hash: B256,
    pub sender: &'a [u8],
    /// `None` where the transaction is of unknown type or not in the body.
    pub tx: Option<&'a Tx>,
    /// What the transaction's own JSON says, where it is not known otherwise.
    pub json: Option<&'a Map<String, Value>>,
    /// The cumulative gas of the receipt before it in the block; 0 for the first.
    pub gas_before: u64,
    pub bloom: Bloom,
}

/// The fields of a receipt, but for its logs.
pub(crate) fn receipt(
    block: &BlockContext,
    context: &ReceiptContext<'_>,
    receipt: &Receipt<'_>,
    sink: &mut impl Sink,
) {
    sink.put("blockHash", Field::Data(block.id.as_slice()));
    sink.put("blockNumber", Field::Number(block.number));
    sink.put("transactionHash", Field::Data(context.hash.as_slice()));
    sink.put("transactionIndex", Field::Number(context.index as u64));
    sink.put("type", Field::Number(u64::from(receipt.ty)));
    sink.put("from", Field::data_or_null(Some(context.sender).filter(|sender| !sender.is_empty())));
    sink.put("to", Field::data_or_null(context.tx.and_then(Tx::to).as_ref().map(|to| to.as_slice())));
    let known = context.tx.and_then(Tx::ethereum);
    let created = created_by(context);
    sink.put("contractAddress", Field::data_or_null(created.as_ref().map(|address| address.as_slice())));
    match receipt.outcome {
        Outcome::Status(ok) => sink.put("status", Field::Number(u64::from(ok))),
        Outcome::Root(root) => sink.put("root", Field::Data(root)),
        Outcome::Unknown | Outcome::Missing => {}
    }
    sink.put("cumulativeGasUsed", Field::Number(receipt.cumulative_gas));
    sink.put("gasUsed", Field::Number(receipt.cumulative_gas.saturating_sub(context.gas_before)));
    let price = match (known, context.json.and_then(|json| json.get("gasPrice"))) {
        (Some(tx), _) => number(tx.effective_gas_price(block.base_fee)),
        (None, Some(price)) => Field::Json(price.clone()),
        (None, None) => Field::Null,
    };
    sink.put("effectiveGasPrice", price);
    if let Some(gas) = known.and_then(|tx| tx.blob_gas_used()) {
        sink.put("blobGasUsed", Field::Number(gas));
        if let Some(price) = block.blob_gas_price {
            sink.put("blobGasPrice", number(price));
        }
    }
    sink.put("logsBloom", Field::Data(context.bloom.as_slice()));
}

/// The address of the contract that a transaction without recipient makes, whether it succeeded or not, as nodes answer.
fn created_by(context: &ReceiptContext<'_>) -> Option<Address> {
    let tx = context.tx?.ethereum()?;
    let sender = Address::try_from(context.sender).ok()?;
    tx.is_create().then(|| sender.create(tx.nonce()))
}

/// Where a log stands: the transaction and the positions that we counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogContext {
    pub tx_hash: B256,
    pub tx_index: usize,
    pub log_index: u32,
    pub removed: bool,
}

/// The fields of a log.
pub(crate) fn log(block: &BlockContext, context: &LogContext, log: &Log<'_>, sink: &mut impl Sink) {
    let mut topics = [B256::ZERO; crate::receipts::MAX_TOPICS];
    let mut count = 0;
    for (to, topic) in topics.iter_mut().zip(log.topics()) {
        *to = B256::new(*topic);
        count += 1;
    }
    sink.put("address", Field::Data(log.address));
    sink.put("topics", Field::Hashes(&topics[..count]));
    sink.put("data", Field::Data(log.data));
    sink.put("blockNumber", Field::Number(block.number));
    sink.put("transactionHash", Field::Data(context.tx_hash.as_slice()));
    sink.put("transactionIndex", Field::Number(context.tx_index as u64));
    sink.put("blockHash", Field::Data(block.id.as_slice()));
    sink.put("blockTimestamp", Field::Number(block.timestamp));
    sink.put("logIndex", Field::Number(u64::from(context.log_index)));
    sink.put("removed", Field::Bool(context.removed));
}
