//! A header from a node's JSON.

use alloy_consensus::Header;
use alloy_primitives::{Address, B64, B256, Bloom};
use serde_json::Value;

use super::json::{Object, Place};
use crate::{ChainProfile, CheckFailure, Checks, EvmError};

/// A header with the hash that the node gives it and its RLP.
#[derive(Debug)]
pub(crate) struct NodeHeader {
    pub header: Header,
    pub id: B256,
    pub rlp: Vec<u8>,
}

/// Reads the header's fields from a block's or an ommer's object, and compares the hash unless that is relaxed.
///
/// A field that the chain's headers don't have may be missing only where the header's hash is not checked.
pub(crate) fn read(
    value: &Value,
    what: &'static str,
    profile: &ChainProfile,
) -> Result<NodeHeader, EvmError> {
    let unplaced = Object::new(value, Place { height: None, what, index: None })?;
    let number = unplaced.u64("number")?;
    let object = Object { place: Place { height: Some(number), what, index: None }, ..unplaced };
    let lenient = profile.relaxes(Checks::HEADER_HASH);

    let id = object.b256("hash")?;
    let hash = |name: &str| or_default(lenient, object.get(name).is_none(), || object.b256(name));
    let quantity = |name: &str| or_default(lenient, object.get(name).is_none(), || object.u64(name));
    let opt_hash = |name: &str| object.opt_fixed::<32>(name).map(|bytes| bytes.map(B256::new));
    let mut header = Header {
        parent_hash: object.b256("parentHash")?,
        ommers_hash: hash("sha3Uncles")?,
        beneficiary: or_default(lenient, object.get("miner").is_none(), || {
            object.fixed("miner").map(Address::new)
        })?,
        state_root: hash("stateRoot")?,
        transactions_root: hash("transactionsRoot")?,
        receipts_root: hash("receiptsRoot")?,
        logs_bloom: or_default(lenient, object.get("logsBloom").is_none(), || {
            object.fixed("logsBloom").map(Bloom::new)
        })?,
        difficulty: or_default(lenient, object.get("difficulty").is_none(), || object.u256("difficulty"))?,
        number,
        gas_limit: quantity("gasLimit")?,
        gas_used: quantity("gasUsed")?,
        timestamp: object.u64("timestamp")?,
        extra_data: or_default(lenient, object.get("extraData").is_none(), || object.data("extraData"))?,
        mix_hash: hash("mixHash")?,
        nonce: or_default(lenient, object.get("nonce").is_none(), || object.fixed("nonce").map(B64::new))?,
        base_fee_per_gas: object.opt_u64("baseFeePerGas")?,
        withdrawals_root: opt_hash("withdrawalsRoot")?,
        blob_gas_used: object.opt_u64("blobGasUsed")?,
        excess_blob_gas: object.opt_u64("excessBlobGas")?,
        parent_beacon_block_root: opt_hash("parentBeaconBlockRoot")?,
        requests_hash: opt_hash("requestsHash")?,
        block_access_list_hash: opt_hash("blockAccessListHash")?,
        slot_number: object.opt_u64("slotNumber")?,
    };
    drop_after_gap(&mut header);

    let rlp = alloy_rlp::encode(&header);
    if !lenient {
        let computed = alloy_primitives::keccak256(&rlp);
        if computed != id {
            let message = format!("{what}: hash is {id}, its fields hash to {computed}");
            return Err(CheckFailure::new(Checks::HEADER_HASH, number, message).into());
        }
    }
    Ok(NodeHeader { header, id, rlp })
}

fn or_default<T: Default>(
    lenient: bool,
    missing: bool,
    read: impl FnOnce() -> Result<T, EvmError>,
) -> Result<T, EvmError> {
    if lenient && missing { Ok(T::default()) } else { read() }
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
