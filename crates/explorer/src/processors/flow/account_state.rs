//! `account_state_worker`: accounts, their keys and their contracts as they are now, folded in chain order.
//!
//! A key has an index among all keys that its account was ever given. Events of before Cadence 1.0 don't say it, so those keys are
//! counted: the row of the account carries them until the row is settled, when it is known how many there were before. That is known only of
//! accounts whose creation the archive has seen; other accounts' keys without an index stay in `account_key_events`. There, too, stays a
//! revocation that names the key by its bytes, as the oldest did: a folder sees no row by another key than that of its change.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_rlp::{Decodable, Encodable, Header};
use bytes::Bytes;
use cairn_pipeline::derive::processor::{Changes, FoldBlock, Folder, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, TableDef, Value};

use crate::names::{ACCOUNT_STATE_WORKER, ACCOUNTS_WORKER, META_WORKER};
use crate::processors::Settings;
use crate::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEY_EVENTS, ACCOUNT_KEYS, AccountKeyEvent, AccountState, CREATED_HEIGHT,
    FLOW_ACCOUNTS, KEY_COUNT, KEYS_WITHOUT_INDEX, KeyFields, account_key,
};
use crate::tables::flow::contracts::{
    ACCOUNT_CONTRACTS, CONTRACT_VERSIONS, ContractVersion, account_contract,
};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: ACCOUNT_STATE_WORKER,
    version: 1,
    upstreams: &[META_WORKER, ACCOUNTS_WORKER],
    tables: &[&FLOW_ACCOUNTS, &ACCOUNT_KEYS, &ACCOUNT_CONTRACTS],
};

static READS: &[&TableDef] = &[&ACCOUNT_CREATIONS, &ACCOUNT_KEY_EVENTS, &CONTRACT_VERSIONS];

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    settings.network?;
    Some(Processor::Folder(Arc::new(AccountStateWorker)))
}

struct AccountStateWorker;

impl Folder for AccountStateWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let height = block.facts.height.get();
        let rows = |at: usize| block.rows.get(at).copied().unwrap_or_default();
        let in_block = |error: crate::tables::RowError| error.in_block(block.facts.block_ref());
        let mut accounts: BTreeMap<Bytes, AccountState> = BTreeMap::new();
        let mut waiting: BTreeMap<Bytes, Waiting> = BTreeMap::new();

        for row in rows(0) {
            if let Some(Value::Bytes(address)) = row.0.get(1) {
                accounts.entry(address.clone()).or_default().created_height = Some(height);
            }
        }
        let mut keys =
            rows(1).iter().map(AccountKeyEvent::from_row).collect::<Result<Vec<_>, _>>().map_err(in_block)?;
        keys.sort_by_key(|key| (key.transaction_index, key.event_index));
        for event in keys {
            match (event.is_revoked, event.key_index) {
                (true, None) => {}
                (true, Some(index)) => {
                    // The row of the account is there, or is made: who has keys is an account.
                    accounts.entry(event.address.clone()).or_default();
                    let waiting = waiting.entry(event.address.clone()).or_default();
                    waiting.revoked.push(index);
                    changes.change(&ACCOUNT_KEYS, account_key(&event.address, index, None, true, height));
                }
                (false, index) => {
                    accounts.entry(event.address.clone()).or_default().keys += 1;
                    let waiting = waiting.entry(event.address.clone()).or_default();
                    match index {
                        Some(index) => {
                            let change = account_key(&event.address, index, Some(&event.key), false, height);
                            changes.change(&ACCOUNT_KEYS, change);
                        }
                        None => waiting.keys.push((waiting.added, event.key)),
                    }
                    waiting.added += 1;
                }
            }
        }
        let versions =
            rows(2).iter().map(ContractVersion::from_row).collect::<Result<Vec<_>, _>>().map_err(in_block);
        let mut versions = versions?;
        versions.sort_by_key(|version| (version.transaction_index, version.event_index));
        for version in &versions {
            let contracts = match version.change.as_str() {
                "added" => 1,
                "removed" => -1,
                _ => 0,
            };
            accounts.entry(version.address.clone()).or_default().contracts += contracts;
            changes.change(&ACCOUNT_CONTRACTS, account_contract(version));
        }
        for (address, mut account) in accounts {
            account.keys_without_index = waiting
                .remove(&address)
                .filter(|waiting| !waiting.keys.is_empty())
                .map(|waiting| waiting.encode());
            changes.change(&FLOW_ACCOUNTS, account.to_change(&address));
        }
        Ok(())
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        if table != FLOW_ACCOUNTS.name {
            return;
        }
        let (Some(Value::Bytes(address)), Some(Value::Bytes(keys))) =
            (after.0.first(), after.0.get(KEYS_WITHOUT_INDEX))
        else {
            return;
        };
        if after.0.get(CREATED_HEIGHT).is_none_or(Value::is_null) {
            return;
        }
        let count = before.and_then(|row| row.0.get(KEY_COUNT)?.as_int()).unwrap_or(0).max(0) as u64;
        let height = after.0.last().and_then(Value::as_int).unwrap_or(0).max(0) as u64;
        // What this very folder encoded.
        let Ok(waiting) = Waiting::decode(keys) else { return };
        for (place, key) in waiting.keys {
            let index = count + place;
            let is_revoked = waiting.revoked.contains(&index);
            changes.change(&ACCOUNT_KEYS, account_key(address, index, Some(&key), is_revoked, height));
        }
    }
}

/// What a block adds to an account's keys, until it is known how many there were before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Waiting {
    /// Keys whose index isn't said, each with its place among all that the block adds.
    keys: Vec<(u64, KeyFields)>,
    /// Indexes that the block revokes: perhaps keys that it adds itself.
    revoked: Vec<u64>,
    /// How many keys the block adds.
    added: u64,
}

impl Waiting {
    /// `RLP([[place, public key, algorithm, hash algorithm + 1, weight + 1]…], [revoked index…])`; what isn't said is 0.
    fn encode(&self) -> Bytes {
        let list = |inner: &[u8]| {
            let mut out = Vec::with_capacity(inner.len() + 9);
            Header { list: true, payload_length: inner.len() }.encode(&mut out);
            out.extend_from_slice(inner);
            out
        };
        let mut keys = Vec::new();
        for (place, key) in &self.keys {
            let mut one = Vec::new();
            place.encode(&mut one);
            key.public_key.clone().unwrap_or_default().encode(&mut one);
            for number in [key.sign_algo, key.hash_algo, key.weight] {
                number.map_or(0, |number| u128::from(number) + 1).encode(&mut one);
            }
            keys.extend(list(&one));
        }
        let mut revoked = Vec::new();
        self.revoked.iter().for_each(|index| index.encode(&mut revoked));
        list(&[list(&keys), list(&revoked)].concat()).into()
    }

    fn decode(bytes: &[u8]) -> alloy_rlp::Result<Waiting> {
        let mut rest = bytes;
        let mut both = Header::decode_bytes(&mut rest, true)?;
        let mut keys = Header::decode_bytes(&mut both, true)?;
        let mut revoked = Header::decode_bytes(&mut both, true)?;
        let mut waiting = Waiting::default();
        while !keys.is_empty() {
            let mut one = Header::decode_bytes(&mut keys, true)?;
            let place = u64::decode(&mut one)?;
            let public_key = Some(Bytes::decode(&mut one)?).filter(|key| !key.is_empty());
            let mut number = || -> alloy_rlp::Result<Option<u64>> {
                Ok(u128::decode(&mut one)?.checked_sub(1).and_then(|number| number.try_into().ok()))
            };
            let (sign_algo, hash_algo, weight) = (number()?, number()?, number()?);
            waiting.keys.push((place, KeyFields { public_key, sign_algo, hash_algo, weight }));
        }
        while !revoked.is_empty() {
            waiting.revoked.push(u64::decode(&mut revoked)?);
        }
        Ok(waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_read_as_it_was_written() {
        let key = KeyFields {
            public_key: Some(Bytes::from_static(&[1, 2])),
            sign_algo: Some(u64::MAX),
            hash_algo: None,
            weight: Some(0),
        };
        let waiting =
            Waiting { keys: vec![(0, key), (7, KeyFields::default())], revoked: vec![3, 0], added: 0 };
        assert_eq!(Waiting::decode(&waiting.encode()), Ok(waiting));
        assert!(Waiting::decode(b"x").is_err());
    }
}
