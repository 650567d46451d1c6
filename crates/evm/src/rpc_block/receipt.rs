//! A receipt and its logs from a node's JSON, as the stored form.

use alloy_primitives::hex;
use alloy_rlp::Encodable;
use serde_json::Value;

use super::object::{Object, Place};
use super::transaction::type_of;
use crate::EvmError;
use crate::receipts::{MAX_TOPICS, Outcome, Receipt};
use crate::rlp;

/// The EIP-2718 type of the OP stack's deposits, whose receipts have two more items since Canyon.
const DEPOSIT: u8 = 0x7e;

/// Reads a receipt and appends its stored form to `out`. `tx_type` is the transaction's type, and final where `is_known`; else the
/// receipt's own goes before it. `scratch` is room that is used again from receipt to receipt.
pub(crate) fn encode(
    object: Object<'_>,
    tx_type: u8,
    is_known: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), EvmError> {
    let ty = match type_of(object)? {
        Some(claimed) if is_known && claimed != tx_type => {
            return Err(
                object.wrong("type", format!("it is {claimed:#x}, the transaction's is {tx_type:#x}"))
            );
        }
        claimed => claimed.unwrap_or(tx_type),
    };
    let root = object.get("root").filter(|root| *root != "0x");
    let root = root.map(|root| object.fixed_of::<32>("root", root)).transpose();
    let root_bytes;
    let outcome = match object.opt_u64("status")? {
        Some(0) => Outcome::Status(false),
        Some(1) => Outcome::Status(true),
        Some(other) => return Err(object.wrong("status", format!("{other:#x} is neither 0x0 nor 0x1"))),
        None => match root? {
            Some(root) => {
                root_bytes = root;
                Outcome::Root(&root_bytes)
            }
            None => Outcome::Unknown,
        },
    };
    let mut rest = Vec::new();
    if ty == DEPOSIT
        && let (Some(nonce), Some(version)) =
            (object.opt_u64("depositNonce")?, object.opt_u64("depositReceiptVersion")?)
    {
        nonce.encode(&mut rest);
        version.encode(&mut rest);
    }
    scratch.clear();
    for (index, log) in object.list("logs")?.iter().enumerate() {
        encode_log(log_object(log, object.place.height, index)?, scratch)?;
    }
    let cumulative_gas = object.u64("cumulativeGasUsed")?;
    Receipt { ty, outcome, cumulative_gas, logs: scratch, rest: &rest }.encode_stored(out);
    Ok(())
}

/// A log's object. `index` counts within its receipt.
pub(crate) fn log_object(log: &Value, height: Option<u64>, index: usize) -> Result<Object<'_>, EvmError> {
    Object::new(log, Place { height, what: "log", index: Some(index) })
}

fn encode_log(object: Object<'_>, out: &mut Vec<u8>) -> Result<(), EvmError> {
    let address: [u8; 20] = object.fixed("address")?;
    let topics = object.list("topics")?;
    if topics.len() > MAX_TOPICS {
        return Err(object.wrong("topics", format!("{} are more than {MAX_TOPICS}", topics.len())));
    }
    let mut words = [[0; 32]; MAX_TOPICS];
    for (word, topic) in words.iter_mut().zip(topics) {
        *word = object.fixed_of("topics", topic)?;
    }
    let words = &words[..topics.len()];
    let digits = object.data_digits("data")?;

    // The data is decoded in place: it can be most of the block.
    let data_length = digits.len() / 2;
    let mut first = [0u8; 1];
    let single = data_length == 1 && hex::decode_to_slice(digits, &mut first).is_ok() && first[0] < 0x80;
    let data_header = alloy_rlp::Header { list: false, payload_length: data_length };
    let data_item = if single { 1 } else { data_header.length_with_payload() };
    let topics_header = alloy_rlp::Header { list: true, payload_length: words.len() * 33 };
    rlp::list_header(21 + topics_header.length_with_payload() + data_item, out);
    address.encode(out);
    topics_header.encode(out);
    for word in words {
        word.encode(out);
    }
    if !single {
        data_header.encode(out);
    }
    let start = out.len();
    out.resize(start + data_length, 0);
    hex::decode_to_slice(digits, &mut out[start..]).map_err(|error| object.wrong("data", error))
}
