//! EVM on Flow: transactions inside `EVM.TransactionExecuted` events, blocks inside `EVM.BlockExecuted`.
//!
//! A payload is an EIP-2718 transaction, or a direct call: `0xff ‖ RLP([type, sub-type, from, to, data, value, gas limit, nonce])`,
//! eight items of which the first is the type again and the last the nonce. The oldest of flow-go are without a nonce.

use std::borrow::Cow;

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use alloy_rlp::{Decodable, Encodable, Header};
use cairn_evm::signature::recover_low_s;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::FlowError;
use crate::cdc::{CdcValue, Composite};

/// The first byte of a direct call's payload, and its type.
pub const DIRECT_CALL: u8 = 0xff;

/// What an `EVM.TransactionExecuted` event says.
#[derive(Debug, Clone, PartialEq)]
pub struct Executed {
    /// The transaction's hash.
    pub hash: B256,
    /// Its place in the EVM block.
    pub index: u16,
    /// Its EIP-2718 type, or [`DIRECT_CALL`].
    pub tx_type: u8,
    /// Its bytes.
    pub payload: Bytes,
    /// 0: it succeeded. 306: it reverted.
    pub error_code: u16,
    /// Why it failed.
    pub error_message: String,
    /// The gas that it used.
    pub gas_used: u64,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    /// What it logged, in order.
    pub logs: Vec<Log>,
    /// The EVM block's height.
    pub block_height: u64,
    /// What it returned; the revert's data where it reverted.
    pub returned_data: Bytes,
}

/// A log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Who logged.
    pub address: Address,
    /// At most four.
    pub topics: Vec<B256>,
    /// The rest.
    pub data: Bytes,
}

/// What an `EVM.BlockExecuted` event says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmBlock {
    /// Its height: one more than the last one's. Not every Flow block has one.
    pub height: u64,
    /// Its hash.
    pub hash: B256,
    /// Its parent's hash.
    pub parent_hash: B256,
    /// Its time in seconds since 1970.
    pub timestamp_s: u64,
    /// The gas that its transactions used.
    pub gas_used: u64,
    /// The root over the hashes of its transactions.
    pub transaction_hash_root: Option<B256>,
}

/// A transaction as its payload has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmTransaction {
    /// Its hash.
    pub hash: B256,
    /// Its type; [`DIRECT_CALL`] for direct calls.
    pub tx_type: u8,
    /// Who sent it; `None` where the signature gives no sender.
    pub from: Option<Address>,
    /// Whom it calls; `None` where it creates a contract.
    pub to: Option<Address>,
    /// The sender's count.
    pub nonce: u64,
    /// What it may use.
    pub gas_limit: u64,
    /// Price of one gas: the legacy price, or the most that it pays. 0 for direct calls.
    pub gas_price: u128,
    /// The most that it pays the producer for one gas, where its type has that.
    pub max_priority_fee_per_gas: Option<u128>,
    /// In attoflow.
    pub value: U256,
    /// The input.
    pub input: Bytes,
    /// What kind of direct call it is.
    pub direct: Option<DirectKind>,
}

/// What a direct call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectKind {
    /// FLOW comes in from Cadence.
    Deposit = 1,
    /// FLOW leaves for Cadence.
    Withdraw = 2,
    /// Value moves.
    Transfer = 3,
    /// A contract is created.
    Deploy = 4,
    /// A contract is called.
    Call = 5,
}

impl DirectKind {
    fn from_byte(byte: u8) -> Option<DirectKind> {
        Some(match byte {
            1 => DirectKind::Deposit,
            2 => DirectKind::Withdraw,
            3 => DirectKind::Transfer,
            4 => DirectKind::Deploy,
            5 => DirectKind::Call,
            _ => return None,
        })
    }
}

fn malformed(message: impl std::fmt::Display) -> FlowError {
    FlowError::malformed("an EVM transaction", message)
}

/// Bytes as Cadence writes them, or as hex in older events.
fn bytes_of(event: &Composite, name: &'static str) -> Result<Option<Bytes>, FlowError> {
    let Some(value) = event.field(name).and_then(CdcValue::unwrapped) else { return Ok(None) };
    if let Some(bytes) = value.as_bytes() {
        return Ok(Some(bytes.into()));
    }
    let text = value.as_str().ok_or_else(|| malformed(format!("{name} is no list of bytes")))?;
    let digits = text.strip_prefix("0x").unwrap_or(text);
    hex::decode(digits).map(|bytes| Some(bytes.into())).map_err(|error| malformed(format!("{name}: {error}")))
}

fn hash_of(event: &Composite, name: &'static str) -> Result<Option<B256>, FlowError> {
    match bytes_of(event, name)? {
        None => Ok(None),
        Some(bytes) => match <[u8; 32]>::try_from(bytes.as_ref()) {
            Ok(hash) => Ok(Some(hash.into())),
            Err(_) => Err(malformed(format!("{name} has {} bytes, not 32", bytes.len()))),
        },
    }
}

fn number_of<N: TryFrom<u64>>(event: &Composite, name: &'static str) -> Result<N, FlowError> {
    let number = event.field(name).and_then(CdcValue::unwrapped).and_then(CdcValue::as_number);
    let number = number.and_then(|number| number.to_u64()).and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| malformed(format!("{name} is missing or out of its bounds")))
}

impl Executed {
    /// Reads the event.
    pub fn from_event(event: &Composite) -> Result<Executed, FlowError> {
        let contract = event.field("contractAddress").and_then(CdcValue::as_str).unwrap_or_default();
        let contract_address = match contract.trim_start_matches("0x") {
            "" => None,
            digits => {
                let address: Address =
                    digits.parse().map_err(|error| malformed(format!("contractAddress: {error}")))?;
                Some(address)
            }
        };
        Ok(Executed {
            hash: hash_of(event, "hash")?.ok_or_else(|| malformed("it has no hash"))?,
            index: number_of(event, "index")?,
            tx_type: number_of(event, "type")?,
            payload: bytes_of(event, "payload")?.ok_or_else(|| malformed("it has no payload"))?,
            error_code: number_of(event, "errorCode")?,
            error_message: event
                .field("errorMessage")
                .and_then(CdcValue::as_str)
                .unwrap_or_default()
                .to_owned(),
            gas_used: number_of(event, "gasConsumed")?,
            contract_address,
            logs: logs(&bytes_of(event, "logs")?.unwrap_or_default())?,
            block_height: number_of(event, "blockHeight")?,
            returned_data: bytes_of(event, "returnedData")?.unwrap_or_default(),
        })
    }
}

#[derive(Deserialize)]
struct RawEvent<'p> {
    #[serde(borrow)]
    value: RawFields<'p>,
}

#[derive(Deserialize)]
struct RawFields<'p> {
    #[serde(borrow)]
    fields: Vec<RawField<'p>>,
}

#[derive(Deserialize)]
struct RawField<'p> {
    #[serde(borrow)]
    name: Cow<'p, str>,
    #[serde(borrow)]
    value: &'p RawValue,
}

impl RawFields<'_> {
    /// An event of these fields alone, of each name the first one; `None` where one isn't there or can't be read.
    fn only(&self, names: &[&str]) -> Option<Composite> {
        let one = |name: &&str| {
            let field = self.fields.iter().find(|field| field.name == *name)?;
            let value = CdcValue::parse(field.value.get().as_bytes()).ok()?;
            Some(((*name).to_owned(), value))
        };
        let fields = names.iter().map(one).collect::<Option<_>>()?;
        Some(Composite { kind: "Event".into(), id: String::new(), fields })
    }
}

/// The hash alone of an `EVM.TransactionExecuted` event, without decoding the rest; `None` where there is none that can be read.
pub fn executed_hash(payload: &[u8]) -> Option<B256> {
    let event: RawEvent<'_> = serde_json::from_slice(payload).ok()?;
    hash_of(&event.value.only(&["hash"])?, "hash").ok()?
}

/// Of an `EVM.TransactionExecuted` event what its EVM block is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExecutedOutline {
    pub hash: B256,
    pub index: u64,
    pub gas_used: u64,
    pub block_height: u64,
}

/// As [`executed_hash`], without decoding payload, logs and what was returned.
pub(crate) fn executed_outline(payload: &[u8]) -> Option<ExecutedOutline> {
    let event: RawEvent<'_> = serde_json::from_slice(payload).ok()?;
    let fields = event.value.only(&["hash", "index", "gasConsumed", "blockHeight"])?;
    Some(ExecutedOutline {
        hash: hash_of(&fields, "hash").ok()??,
        index: number_of(&fields, "index").ok()?,
        gas_used: number_of(&fields, "gasConsumed").ok()?,
        block_height: number_of(&fields, "blockHeight").ok()?,
    })
}

impl EvmBlock {
    /// Reads the event.
    pub fn from_event(event: &Composite) -> Result<EvmBlock, FlowError> {
        Ok(EvmBlock {
            height: number_of(event, "height")?,
            hash: hash_of(event, "hash")?.ok_or_else(|| malformed("an EVM block has no hash"))?,
            parent_hash: hash_of(event, "parentHash")?
                .ok_or_else(|| malformed("an EVM block has no parent"))?,
            timestamp_s: number_of(event, "timestamp")?,
            gas_used: number_of(event, "totalGasUsed")?,
            transaction_hash_root: hash_of(event, "transactionHashRoot")?,
        })
    }
}

/// The root that an EVM block's event has of its transactions' hashes, in order: of a trie as Ethereum's, but with hashes for transactions.
pub fn transaction_hash_root(hashes: &[B256]) -> B256 {
    alloy_trie::root::ordered_trie_root_with_encoder(hashes, |hash, out| out.extend_from_slice(&hash.0))
}

/// Reads the RLP list of logs; nothing where there are none.
pub fn logs(bytes: &[u8]) -> Result<Vec<Log>, FlowError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let refuse = |error: alloy_rlp::Error| malformed(format!("logs: {error}"));
    let mut rest = bytes;
    let mut list = Header::decode_bytes(&mut rest, true).map_err(refuse)?;
    if !rest.is_empty() {
        return Err(malformed("logs: bytes follow the list"));
    }
    let mut logs = Vec::new();
    while !list.is_empty() {
        let mut log = Header::decode_bytes(&mut list, true).map_err(refuse)?;
        let address = Address::decode(&mut log).map_err(refuse)?;
        let mut topics_left = Header::decode_bytes(&mut log, true).map_err(refuse)?;
        let mut topics = Vec::new();
        while !topics_left.is_empty() {
            topics.push(B256::decode(&mut topics_left).map_err(refuse)?);
        }
        let data = Bytes::decode(&mut log).map_err(refuse)?;
        if topics.len() > 4 || !log.is_empty() {
            return Err(malformed("logs: one has more than address, four topics and data"));
        }
        logs.push(Log { address, topics, data });
    }
    Ok(logs)
}

/// Decodes a payload and computes its hash.
pub fn decode_payload(payload: &[u8]) -> Result<EvmTransaction, FlowError> {
    match payload.first() {
        Some(&DIRECT_CALL) => direct_call(&payload[1..]),
        Some(_) => signed(payload),
        None => Err(malformed("its payload is empty")),
    }
}

fn signed(payload: &[u8]) -> Result<EvmTransaction, FlowError> {
    let mut rest = payload;
    let tx = TxEnvelope::decode_2718(&mut rest).map_err(malformed)?;
    if !rest.is_empty() {
        return Err(malformed("bytes follow its payload"));
    }
    Ok(EvmTransaction {
        hash: *tx.tx_hash(),
        tx_type: tx.tx_type().into(),
        from: recover_low_s(tx.signature(), tx.signature_hash()),
        to: tx.to(),
        nonce: tx.nonce(),
        gas_limit: tx.gas_limit(),
        gas_price: tx.max_fee_per_gas(),
        max_priority_fee_per_gas: tx.max_priority_fee_per_gas(),
        value: tx.value(),
        input: tx.input().clone(),
        direct: None,
    })
}

fn direct_call(rlp: &[u8]) -> Result<EvmTransaction, FlowError> {
    let refuse = |error: alloy_rlp::Error| malformed(format!("a direct call: {error}"));
    let mut rest = rlp;
    let mut items = Header::decode_bytes(&mut rest, true).map_err(refuse)?;
    if u8::decode(&mut items).map_err(refuse)? != DIRECT_CALL {
        return Err(malformed("a direct call does not begin with its type"));
    }
    let sub_type = u8::decode(&mut items).map_err(refuse)?;
    let kind = DirectKind::from_byte(sub_type);
    let kind = kind.ok_or_else(|| malformed(format!("{sub_type} is no sub-type of a direct call")))?;
    let from = Address::decode(&mut items).map_err(refuse)?;
    let to = Address::decode(&mut items).map_err(refuse)?;
    let input = Bytes::decode(&mut items).map_err(refuse)?;
    let value = U256::decode(&mut items).map_err(refuse)?;
    let gas_limit = u64::decode(&mut items).map_err(refuse)?;
    let nonce = if items.is_empty() { 0 } else { u64::decode(&mut items).map_err(refuse)? };
    if !items.is_empty() || !rest.is_empty() {
        return Err(malformed("a direct call has more than eight items"));
    }
    let to = Some(to).filter(|to| !to.is_zero());
    Ok(EvmTransaction {
        hash: direct_hash(nonce, gas_limit, to, value, &input, from, kind),
        tx_type: DIRECT_CALL,
        from: Some(from),
        to,
        nonce,
        gas_limit,
        gas_price: 0,
        max_priority_fee_per_gas: None,
        value,
        input,
        direct: Some(kind),
    })
}

/// As of a legacy transaction that is signed with v = 255, r = the sender and s = the sub-type.
fn direct_hash(
    nonce: u64,
    gas_limit: u64,
    to: Option<Address>,
    value: U256,
    input: &Bytes,
    from: Address,
    kind: DirectKind,
) -> B256 {
    let mut inner = Vec::new();
    nonce.encode(&mut inner);
    0u8.encode(&mut inner);
    gas_limit.encode(&mut inner);
    to.map_or(TxKind::Create, TxKind::Call).encode(&mut inner);
    value.encode(&mut inner);
    input.encode(&mut inner);
    DIRECT_CALL.encode(&mut inner);
    U256::from_be_slice(from.as_slice()).encode(&mut inner);
    (kind as u8).encode(&mut inner);
    let mut whole = Vec::with_capacity(inner.len() + 9);
    Header { list: true, payload_length: inner.len() }.encode(&mut whole);
    whole.extend_from_slice(&inner);
    keccak256(&whole)
}
