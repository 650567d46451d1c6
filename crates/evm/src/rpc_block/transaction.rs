//! A transaction from a node's JSON.

use alloy_consensus::transaction::from_eip155_value;
use alloy_consensus::{EthereumTypedTransaction, TxEip1559, TxEip2930, TxEip4844, TxEip7702, TxLegacy};
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_eips::eip7702::{Authorization, SignedAuthorization};
use alloy_primitives::{Address, B256, Signature, TxKind, U256, keccak256};
use serde_json::Value;

use super::object::{Object, Place};
use crate::tx::described::Described;
use crate::tx::{self, Sender, Tx, TxEnvelope};
use crate::{ChainProfile, CheckFailure, Checks, EvmError};

/// What a node's object says, as far as it is understood.
#[derive(Debug)]
pub(crate) struct NodeTx {
    pub id: B256,
    pub ty: u8,
    /// Empty where the node doesn't say, and it can't be recovered.
    pub sender: Vec<u8>,
    /// EIP-2718 bytes, where they are known.
    pub bytes: Option<Vec<u8>>,
    /// Decoded, where the type is known and the bytes hash to the id.
    pub known: Option<Tx>,
    /// Why a transaction of known type is not decoded.
    pub refused: Option<EvmError>,
}

/// Reads a transaction. `raw` are its EIP-2718 bytes where they were fetched.
///
/// Of the transactions that the object can be, the one that hashes to the node's hash is meant. That none does is not an error here:
/// the caller decides by `refused`. What makes no sense at all is: no object, no hash, a type that is no small number.
pub(crate) fn read(
    object: Object<'_>,
    raw: Option<&[u8]>,
    profile: &ChainProfile,
) -> Result<NodeTx, EvmError> {
    let ty = type_of(object)?.unwrap_or(0);
    let from = object.opt_address("from")?;
    let claimed = object.opt_fixed::<32>("hash")?.map(B256::new);
    let mut refused = None;
    let mut bytes = None;
    let mut known = None;
    match raw {
        Some(raw) => {
            let computed = keccak256(raw);
            if claimed.is_some_and(|claimed| claimed != computed) {
                refused = Some(mismatch(object.place, claimed, computed));
            } else {
                known = Tx::decode(raw).map_err(|error| {
                    EvmError::malformed(object.place.to_string(), format!("its raw bytes: {error}"))
                })?;
                bytes = Some(raw.to_vec());
            }
        }
        None => {
            for candidate in candidates(object, ty) {
                let error = match candidate {
                    Ok(tx) => {
                        let encoded = tx.encode();
                        let computed = keccak256(&encoded);
                        if claimed.is_none_or(|claimed| claimed == computed) {
                            (known, bytes, refused) = (Some(tx), Some(encoded), None);
                            break;
                        }
                        mismatch(object.place, claimed, computed)
                    }
                    Err(error) => error,
                };
                // What its own chain may do otherwise is no lie.
                if tx::is_ethereums(ty) {
                    refused.get_or_insert(error);
                }
            }
        }
    }
    let id = match (claimed, &bytes) {
        (Some(id), _) => id,
        (None, Some(bytes)) => keccak256(bytes),
        (None, None) => return Err(refused.unwrap_or_else(|| object.wrong("hash", "it is missing"))),
    };
    let sender = match (from, known.as_ref().map(Tx::sender)) {
        (Some(from), _) => from.to_vec(),
        (None, Some(Sender::Proven(sender))) => sender.to_vec(),
        (None, Some(Sender::None)) if !profile.relaxes(Checks::SENDERS) => {
            return Err(object.wrong("from", "it is missing, and the signature gives no sender"));
        }
        (None, _) => Vec::new(),
    };
    Ok(NodeTx { id, ty, sender, bytes, known, refused })
}

/// The transactions that the object can be, the likeliest first.
fn candidates(object: Object<'_>, ty: u8) -> impl Iterator<Item = Result<Tx, EvmError>> + '_ {
    let parities: &[Parities] = match ty {
        4 => &[Parities::AsTheyStand, Parities::WithoutOffset],
        ty if tx::is_ethereums(ty) => &[Parities::AsTheyStand],
        _ => &[],
    };
    let ethereum = parities.iter().map(move |parities| fields(object, ty, *parities).map(Tx::Ethereum));
    ethereum.chain(Described::candidates(object, ty).map(|described| Ok(Tx::Described(described))))
}

/// How the parities of an authorization list are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parities {
    AsTheyStand,
    /// As `v` of 27 or 28, for 0 or 1.
    WithoutOffset,
}

fn mismatch(place: Place, claimed: Option<B256>, computed: B256) -> EvmError {
    let message = format!(
        "{}: hash is {}, its fields hash to {computed}",
        Place { height: None, ..place },
        claimed.unwrap_or_default()
    );
    CheckFailure::new(Checks::TRANSACTIONS_ROOT, place.height.unwrap_or_default(), message).into()
}

/// The type as the object says it: `None` where it doesn't (legacy).
pub(crate) fn type_of(object: Object<'_>) -> Result<Option<u8>, EvmError> {
    let Some(ty) = object.opt_u64("type")? else { return Ok(None) };
    u8::try_from(ty).map(Some).map_err(|_| object.wrong("type", format!("{ty:#x} is no transaction type")))
}

/// Builds the transaction of a known type from its fields.
fn fields(object: Object<'_>, ty: u8, parities: Parities) -> Result<TxEnvelope, EvmError> {
    let nonce = object.u64("nonce")?;
    let gas_limit = object.u64("gas")?;
    let to = object.opt_address("to")?;
    let kind = to.map_or(TxKind::Create, TxKind::Call);
    let value = object.opt_u256("value")?.unwrap_or_default();
    let input = object.data(if object.get("input").is_some() { "input" } else { "data" })?;
    let word = |name: &str| object.opt_u256(name).map(Option::unwrap_or_default);
    let (r, s) = (word("r")?, word("s")?);
    if ty == 0 {
        let (parity, chain_id) = legacy_v(object)?;
        let gas_price = object.u128("gasPrice")?;
        let tx = TxLegacy { chain_id, nonce, gas_price, gas_limit, to: kind, value, input };
        return Ok(TxEnvelope::new_unhashed(
            EthereumTypedTransaction::Legacy(tx),
            Signature::new(r, s, parity),
        ));
    }
    let chain_id = object.u64("chainId")?;
    let access_list = access_list(object)?;
    let signature = Signature::new(r, s, parity(object)?);
    let recipient =
        || to.ok_or_else(|| object.wrong("to", "it is missing, and this type can't create contracts"));
    let (max_fee_per_gas, max_priority_fee_per_gas) =
        if ty == 1 { (0, 0) } else { (object.u128("maxFeePerGas")?, object.u128("maxPriorityFeePerGas")?) };
    let tx = match ty {
        1 => {
            let gas_price = object.u128("gasPrice")?;
            EthereumTypedTransaction::Eip2930(TxEip2930 {
                chain_id,
                nonce,
                gas_price,
                gas_limit,
                to: kind,
                value,
                access_list,
                input,
            })
        }
        2 => EthereumTypedTransaction::Eip1559(TxEip1559 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: kind,
            value,
            access_list,
            input,
        }),
        3 => EthereumTypedTransaction::Eip4844(TxEip4844 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: recipient()?,
            value,
            access_list,
            blob_versioned_hashes: hashes(object, "blobVersionedHashes")?,
            max_fee_per_blob_gas: object.u128("maxFeePerBlobGas")?,
            input,
        }),
        _ => EthereumTypedTransaction::Eip7702(TxEip7702 {
            chain_id,
            nonce,
            gas_limit,
            max_fee_per_gas,
            max_priority_fee_per_gas,
            to: recipient()?,
            value,
            access_list,
            authorization_list: authorizations(object, parities)?,
            input,
        }),
    };
    Ok(TxEnvelope::new_unhashed(tx, signature))
}

/// Parity and chain id (EIP-155) of a legacy transaction. Some nodes write the bare parity as `v`.
fn legacy_v(object: Object<'_>) -> Result<(bool, Option<u64>), EvmError> {
    let v = object.opt_u256("v")?.unwrap_or_default();
    let v = u128::try_from(v).map_err(|_| object.wrong("v", format!("{v:#x} is no signature's")))?;
    match v {
        0 | 1 => Ok((v == 1, object.opt_u64("chainId")?)),
        _ => from_eip155_value(v).ok_or_else(|| object.wrong("v", format!("{v:#x} is no signature's"))),
    }
}

/// Parity of a typed transaction: `yParity`, or `v` where a node has only that; 0 where it has neither, as of one that is not signed.
fn parity(object: Object<'_>) -> Result<bool, EvmError> {
    let name = if object.get("yParity").is_some() { "yParity" } else { "v" };
    match object.opt_u64(name)?.unwrap_or(0) {
        0 | 27 => Ok(false),
        1 | 28 => Ok(true),
        other => Err(object.wrong(name, format!("{other:#x} is no parity"))),
    }
}

fn hashes(object: Object<'_>, name: &str) -> Result<Vec<B256>, EvmError> {
    object.list(name)?.iter().map(|value| object.fixed_of(name, value).map(B256::new)).collect()
}

fn access_list(object: Object<'_>) -> Result<AccessList, EvmError> {
    let place = Place { what: "an entry of the access list of transaction", ..object.place };
    let entry = |value| {
        let entry = Object::new(value, place)?;
        let address = Address::new(entry.fixed("address")?);
        Ok(AccessListItem { address, storage_keys: hashes(entry, "storageKeys")? })
    };
    object.list("accessList")?.iter().map(entry).collect::<Result<_, EvmError>>().map(AccessList)
}

fn authorizations(object: Object<'_>, parities: Parities) -> Result<Vec<SignedAuthorization>, EvmError> {
    let place = Place { what: "an authorization of transaction", ..object.place };
    let entry = |value: &Value| {
        let entry = Object::new(value, place)?;
        let inner = Authorization {
            chain_id: entry.u256("chainId")?,
            address: Address::new(entry.fixed("address")?),
            nonce: entry.u64("nonce")?,
        };
        let name = if entry.get("yParity").is_some() { "yParity" } else { "v" };
        let parity =
            u8::try_from(entry.u64(name)?).map_err(|_| entry.wrong(name, "it has more than 8 bits"))?;
        let parity = match parity {
            27 | 28 if parities == Parities::WithoutOffset => parity - 27,
            parity => parity,
        };
        let (r, s): (U256, U256) = (entry.u256("r")?, entry.u256("s")?);
        Ok(SignedAuthorization::new_unchecked(inner, parity, r, s))
    };
    object.list("authorizationList")?.iter().map(entry).collect()
}
