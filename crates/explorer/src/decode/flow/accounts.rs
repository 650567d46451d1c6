//! Events about accounts: creation, keys, contracts.
//!
//! | event | since Cadence 1.0 | before |
//! | --- | --- | --- |
//! | `flow.AccountKeyAdded` | key, its algorithms, weight and index | a struct without weight and index; still earlier the RLP of the key |
//! | `flow.AccountKeyRemoved` | the key's **index**, in a field that is called `publicKey` | the same; still earlier the RLP of the key as it is stored, revoked; at first the RLP of the key |
//! | `flow.AccountContract…` | the contract's name and the hash of its code | the same |
//!
//! A key is never deleted, only revoked, so an index counts the keys that an account was ever given. Where an event doesn't
//! name it, only the order of all of the account's events does.

use alloy_rlp::{Decodable, Header};
use cairn_flow::FlowAddress;
use cairn_flow::cdc::{CdcValue, Composite};
use cairn_flow::{DecodedEvent, EventType};

use super::MAX_NAME_BYTES;

/// An event about an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountEvent {
    /// The account.
    pub address: FlowAddress,
    /// What happened to it.
    pub change: AccountChange,
}

/// What happened to an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountChange {
    /// It was created.
    Created,
    /// It was given a key.
    KeyAdded {
        /// The key's index; `None` before Cadence 1.0.
        index: Option<u64>,
        /// The key.
        key: AccountKey,
    },
    /// A key was revoked.
    KeyRevoked(RevokedKey),
    /// A contract is new, changed, or gone.
    Contract {
        /// Its name.
        name: String,
        /// The hash of its code; of the last one, where it was removed.
        code_hash: [u8; 32],
        /// Which of the three.
        change: ContractChange,
    },
}

/// Which key was revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevokedKey {
    /// The one with this index.
    Index(u64),
    /// One with these bytes: the oldest forms.
    Key(AccountKey),
}

/// What became of a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContractChange {
    /// It is new.
    Added,
    /// It has new code.
    Updated,
    /// It is gone.
    Removed,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountKey {
    /// The public key.
    pub public_key: Vec<u8>,
    /// 1 is ECDSA_P256, 2 ECDSA_secp256k1, 3 BLS, as Cadence counts.
    pub sign_algo: u64,
    /// 1 is SHA2_256, 3 SHA3_256 and so on, where the event says.
    pub hash_algo: Option<u64>,
    /// Of 1000, where the event says.
    pub weight: Option<u64>,
}

/// Reads an event. `None`: it is about no account.
pub fn account_event(event: &DecodedEvent) -> Result<Option<AccountEvent>, String> {
    let Some(name) = EventType::parse(&event.event_type).filter(|name| name.address.is_none()) else {
        return Ok(None);
    };
    let is_about = matches!(
        name.event,
        "AccountCreated"
            | "AccountKeyAdded"
            | "AccountKeyRemoved"
            | "AccountContractAdded"
            | "AccountContractUpdated"
            | "AccountContractRemoved"
    );
    if !is_about {
        return Ok(None);
    }
    let fields = CdcValue::parse_event(&event.payload).map_err(|error| error.to_string())?;
    let address = fields.field("address").and_then(CdcValue::as_address).ok_or("it has no address")?;
    let change = match name.event {
        "AccountCreated" => AccountChange::Created,
        "AccountKeyAdded" => {
            let index =
                fields.field("keyIndex").and_then(CdcValue::as_number).and_then(|index| index.to_u64());
            AccountChange::KeyAdded { index, key: added_key(&fields)? }
        }
        "AccountKeyRemoved" => AccountChange::KeyRevoked(revoked_key(&fields)?),
        "AccountContractAdded" => contract(&fields, ContractChange::Added)?,
        "AccountContractUpdated" => contract(&fields, ContractChange::Updated)?,
        _ => contract(&fields, ContractChange::Removed)?,
    };
    Ok(Some(AccountEvent { address, change }))
}

fn public_key(fields: &Composite) -> Result<&CdcValue, String> {
    fields.field("publicKey").ok_or_else(|| "it has no publicKey".into())
}

fn added_key(fields: &Composite) -> Result<AccountKey, String> {
    let key = match public_key(fields)? {
        CdcValue::Composite(key) => key,
        bytes => return rlp_key(&bytes.as_bytes().ok_or("its publicKey is neither a key nor bytes")?),
    };
    let enum_of = |value: Option<&CdcValue>| value.and_then(CdcValue::as_enum);
    let weight = match fields.field("weight").and_then(CdcValue::as_number) {
        None => None,
        Some(weight) => {
            let whole = weight.to_scaled(0).and_then(|weight| u64::try_from(weight).ok());
            Some(whole.ok_or_else(|| format!("its weight {} is not whole", weight.text))?)
        }
    };
    Ok(AccountKey {
        public_key: key
            .field("publicKey")
            .and_then(CdcValue::as_bytes)
            .ok_or("its publicKey has no bytes")?,
        sign_algo: enum_of(key.field("signatureAlgorithm")).ok_or("its key has no signatureAlgorithm")?,
        hash_algo: enum_of(fields.field("hashAlgorithm")),
        weight,
    })
}

fn revoked_key(fields: &Composite) -> Result<RevokedKey, String> {
    let key = public_key(fields)?;
    if let Some(index) = key.as_number() {
        return index
            .to_u64()
            .map(RevokedKey::Index)
            .ok_or_else(|| format!("{} is no key's index", index.text));
    }
    let bytes = key.as_bytes().ok_or("its publicKey is neither an index nor bytes")?;
    rlp_key(&bytes).map(RevokedKey::Key)
}

/// `RLP([public key, signature algorithm, hash algorithm, weight])`; as it is stored, its sequence number and whether it is revoked follow.
fn rlp_key(bytes: &[u8]) -> Result<AccountKey, String> {
    let parts = || -> alloy_rlp::Result<AccountKey> {
        let mut rest = bytes;
        let mut list = Header::decode_bytes(&mut rest, true)?;
        let key = AccountKey {
            public_key: alloy_rlp::Bytes::decode(&mut list)?.to_vec(),
            sign_algo: cadence_algorithm(u64::decode(&mut list)?)?,
            hash_algo: Some(u64::decode(&mut list)?),
            weight: Some(u64::decode(&mut list)?),
        };
        for _ in 0..2 {
            if !list.is_empty() {
                u64::decode(&mut list)?;
            }
        }
        match list.is_empty() && rest.is_empty() {
            true => Ok(key),
            false => Err(alloy_rlp::Error::UnexpectedLength),
        }
    };
    parts().map_err(|error| format!("its publicKey is no RLP of a key: {error}"))
}

/// RLP numbers signature algorithms as the node's own library does: 1 BLS, 2 ECDSA_P256, 3 ECDSA_secp256k1.
fn cadence_algorithm(number: u64) -> alloy_rlp::Result<u64> {
    match number {
        1 => Ok(3),
        2 => Ok(1),
        3 => Ok(2),
        _ => Err(alloy_rlp::Error::Custom("no such signature algorithm")),
    }
}

fn contract(fields: &Composite, change: ContractChange) -> Result<AccountChange, String> {
    let name = fields.field("contract").and_then(CdcValue::as_str).ok_or("it names no contract")?;
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("its contract's name has {} bytes, more than {MAX_NAME_BYTES}", name.len()));
    }
    let hash = fields.field("codeHash").and_then(CdcValue::as_bytes).ok_or("it has no codeHash")?;
    let code_hash = <[u8; 32]>::try_from(hash.as_slice())
        .map_err(|_| format!("its codeHash has {} bytes, not 32", hash.len()))?;
    Ok(AccountChange::Contract { name: name.to_owned(), code_hash, change })
}
