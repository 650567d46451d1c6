//! A header from a node's JSON.

use alloy_consensus::Header;
use alloy_primitives::{Address, B64, B256, Bloom};
use serde_json::Value;

use super::object::{Object, Place};
use crate::{ChainProfile, CheckFailure, Checks, EvmError};

/// A header with the hash that the node gives it and its RLP.
#[derive(Debug)]
pub(crate) struct NodeHeader {
    pub header: Header,
    pub id: B256,
    pub rlp: Vec<u8>,
}

/// The fields that every header of Ethereum has, but for those without which nothing can be said.
const ALWAYS_THERE: [&str; 12] = [
    "sha3Uncles",
    "miner",
    "stateRoot",
    "transactionsRoot",
    "receiptsRoot",
    "logsBloom",
    "difficulty",
    "gasLimit",
    "gasUsed",
    "extraData",
    "mixHash",
    "nonce",
];

/// Reads the header's fields from a block's or an ommer's object, and compares the hash unless that is relaxed. An absent field is zero or empty:
/// the hash decides.
pub(crate) fn read(
    value: &Value,
    what: &'static str,
    profile: &ChainProfile,
) -> Result<NodeHeader, EvmError> {
    let unplaced = Object::new(value, Place { height: None, what, index: None })?;
    let number = unplaced.u64("number")?;
    let object = Object { place: Place { height: Some(number), what, index: None }, ..unplaced };
    let id = object.b256("hash")?;
    let hash = |name: &str| object.opt_fixed::<32>(name).map(|bytes| bytes.map(B256::new));
    let mut header = Header {
        parent_hash: object.b256("parentHash")?,
        ommers_hash: hash("sha3Uncles")?.unwrap_or_default(),
        beneficiary: object.opt_fixed("miner")?.map(Address::new).unwrap_or_default(),
        state_root: hash("stateRoot")?.unwrap_or_default(),
        transactions_root: hash("transactionsRoot")?.unwrap_or_default(),
        receipts_root: hash("receiptsRoot")?.unwrap_or_default(),
        logs_bloom: match object.get("logsBloom") {
            Some(value) if value != "0x" => Bloom::new(object.fixed_of("logsBloom", value)?),
            _ => Bloom::ZERO,
        },
        difficulty: object.opt_u256("difficulty")?.unwrap_or_default(),
        number,
        gas_limit: object.opt_u64("gasLimit")?.unwrap_or_default(),
        gas_used: object.opt_u64("gasUsed")?.unwrap_or_default(),
        timestamp: object.u64("timestamp")?,
        extra_data: object.data("extraData")?,
        mix_hash: hash("mixHash")?.unwrap_or_default(),
        nonce: object.opt_fixed("nonce")?.map(B64::new).unwrap_or_default(),
        base_fee_per_gas: object.opt_u64("baseFeePerGas")?,
        withdrawals_root: hash("withdrawalsRoot")?,
        blob_gas_used: object.opt_u64("blobGasUsed")?,
        excess_blob_gas: object.opt_u64("excessBlobGas")?,
        parent_beacon_block_root: hash("parentBeaconBlockRoot")?,
        requests_hash: hash("requestsHash")?,
        block_access_list_hash: hash("blockAccessListHash")?,
        slot_number: object.opt_u64("slotNumber")?,
    };
    drop_after_gap(&mut header);

    let rlp = alloy_rlp::encode(&header);
    if !profile.relaxes(Checks::HEADER_HASH) {
        let computed = alloy_primitives::keccak256(&rlp);
        if computed != id {
            let absent = ALWAYS_THERE.iter().filter(|name| object.get(name).is_none());
            let absent = absent.map(|name| format!(", `{name}` is missing")).collect::<String>();
            let message = format!("{what}: hash is {id}, its fields hash to {computed}{absent}");
            return Err(CheckFailure::new(Checks::HEADER_HASH, number, message).into());
        }
    }
    Ok(NodeHeader { header, id, rlp })
}

/// The optional fields of a header's RLP go by position: what comes after the first missing one can't be in it. It is kept in the overlay, as
/// any field that the header doesn't carry. (With such a header the hash doesn't hold, so that it comes here only where that is relaxed.)
fn drop_after_gap(header: &mut Header) {
    let mut whole = header.base_fee_per_gas.is_some();
    fn keep<T>(field: &mut Option<T>, whole: &mut bool) {
        if !*whole {
            *field = None;
        }
        *whole = field.is_some();
    }
    keep(&mut header.withdrawals_root, &mut whole);
    keep(&mut header.blob_gas_used, &mut whole);
    keep(&mut header.excess_blob_gas, &mut whole);
    keep(&mut header.parent_beacon_block_root, &mut whole);
    keep(&mut header.requests_hash, &mut whole);
    keep(&mut header.block_access_list_hash, &mut whole);
    keep(&mut header.slot_number, &mut whole);
}
