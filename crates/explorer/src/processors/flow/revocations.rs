//! Keys that are revoked by their bytes, as the oldest events say it: which of an account's keys that is.
//!
//! An account may have the same key twice, and then the bytes name either. Such a revocation waits until all keys that it may mean are revoked for certain: when there
//! are as many that wait as keys are left. Nobody revokes a key twice.

use alloy_rlp::{Decodable, Encodable, Header};
use bytes::Bytes;
use cairn_pipeline::derive::processor::{FoldState, Lookup};
use cairn_store::derived::{Key, U256, Value};

use crate::tables::RowError;
use crate::tables::flow::accounts::{
    ACCOUNT_KEYS, AccountKeyRow, KeyFields, REVOCATIONS, UNPLACED_REVOCATIONS, account_key,
    unplaced_revocations,
};

/// How many keys with the same bytes are told apart. With more, a revocation by bytes stays unplaced.
const MAX_SAME_KEYS: usize = 256;

/// A revocation of which it isn't known which key it means.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unplaced {
    /// The key as it was named.
    key: KeyFields,
    /// It means one whose index is below this: those from here on came later.
    below: u64,
}

impl Unplaced {
    /// Whether it may mean this key: what isn't said of a key may be anything.
    fn may_mean(&self, row: &AccountKeyRow) -> bool {
        let fits =
            |ours: Option<u64>, theirs: Option<u64>| ours.is_none() || theirs.is_none() || ours == theirs;
        row.key_index < self.below
            && fits(row.key.sign_algo, self.key.sign_algo)
            && fits(row.key.hash_algo, self.key.hash_algo)
            && fits(row.key.weight, self.key.weight)
    }
}

/// A key was revoked by its bytes.
pub(super) fn by_bytes(
    address: &Bytes,
    revoked: &KeyFields,
    height: u64,
    state: &mut FoldState<'_>,
) -> Result<(), RowError> {
    let Some(public_key) = &revoked.public_key else { return Ok(()) };
    let same = Same::of(address, public_key, state)?;
    let mut new = Unplaced { key: revoked.clone(), below: u64::MAX };
    if same.is_whole {
        let last = same.left.iter().filter(|row| new.may_mean(row)).map(|row| row.key_index).max();
        // None is left: it means a key whose index nobody knows.
        let Some(last) = last else { return Ok(()) };
        new.below = last.saturating_add(1);
    }
    let mut waiting = unplaced(address, public_key, state);
    waiting.push(new);
    same.place(waiting, height, state);
    Ok(())
}

/// A key was revoked by its index: perhaps those that remain with its bytes are now known.
pub(super) fn by_index(
    address: &Bytes,
    index: u64,
    height: u64,
    state: &mut FoldState<'_>,
) -> Result<(), RowError> {
    let key = Key(vec![Value::Bytes(address.clone()), Value::Amount(U256::from(index))]);
    let row = state.row(&ACCOUNT_KEYS, key).as_ref().map(AccountKeyRow::from_row).transpose()?;
    let Some(public_key) = row.and_then(|row| row.key.public_key) else { return Ok(()) };
    let waiting = unplaced(address, &public_key, state);
    if !waiting.is_empty() {
        Same::of(address, &public_key, state)?.place(waiting, height, state);
    }
    Ok(())
}

/// The keys of an account that have the same bytes and aren't revoked.
struct Same<'a> {
    address: &'a Bytes,
    public_key: &'a Bytes,
    left: Vec<AccountKeyRow>,
    /// Whether there are no others.
    is_whole: bool,
}

impl<'a> Same<'a> {
    fn of(
        address: &'a Bytes,
        public_key: &'a Bytes,
        state: &mut FoldState<'_>,
    ) -> Result<Same<'a>, RowError> {
        let found = state.find(&Lookup {
            table: ACCOUNT_KEYS.name,
            index: Some("by_public_key"),
            prefix: vec![Value::Bytes(public_key.clone()), Value::Bytes(address.clone())],
            limit: MAX_SAME_KEYS,
        });
        let rows = found.rows.iter().map(AccountKeyRow::from_row).collect::<Result<Vec<_>, _>>()?;
        let left = rows.into_iter().filter(|row| !row.is_revoked).collect();
        Ok(Same { address, public_key, left, is_whole: found.is_whole })
    }

    /// Revokes what is certain, and keeps the rest of what waits.
    fn place(mut self, mut waiting: Vec<Unplaced>, height: u64, state: &mut FoldState<'_>) {
        let mut at = 0;
        while let Some(revoked) = waiting.get(at).cloned().filter(|_| self.is_whole) {
            // Those that mean one of the same keys or of fewer.
            let is_of = |other: &Unplaced| other.key == revoked.key && other.below <= revoked.below;
            let revocations = waiting.iter().filter(|other| is_of(other)).count();
            if self.left.iter().filter(|row| revoked.may_mean(row)).count() > revocations {
                at += 1;
                continue;
            }
            for row in self.left.extract_if(.., |row| revoked.may_mean(row)) {
                state.change(&ACCOUNT_KEYS, &account_key(self.address, row.key_index, None, true, height));
            }
            waiting.retain(|other| !is_of(other));
            at = 0;
        }
        let before = unplaced(self.address, self.public_key, state);
        if before != waiting {
            let encoded = Some(encode(&waiting)).filter(|_| !waiting.is_empty());
            let change = unplaced_revocations(self.address, self.public_key, waiting.len(), encoded);
            state.change(&UNPLACED_REVOCATIONS, &change);
        }
    }
}

fn unplaced(address: &Bytes, public_key: &Bytes, state: &mut FoldState<'_>) -> Vec<Unplaced> {
    let key = Key(vec![Value::Bytes(address.clone()), Value::Bytes(public_key.clone())]);
    let row = state.row(&UNPLACED_REVOCATIONS, key);
    let encoded = row.as_ref().and_then(|row| row.0.get(REVOCATIONS)?.as_bytes());
    // What this very folder encoded.
    encoded.and_then(|encoded| decode(public_key, encoded).ok()).unwrap_or_default()
}

/// `RLP([[below, algorithm, hash algorithm, weight]…])`, but for the first each with 1 added; what isn't said is 0.
fn encode(revocations: &[Unplaced]) -> Bytes {
    let list = |inner: &[u8]| {
        let mut out = Vec::with_capacity(inner.len() + 9);
        Header { list: true, payload_length: inner.len() }.encode(&mut out);
        out.extend_from_slice(inner);
        out
    };
    let mut all = Vec::new();
    for Unplaced { key, below } in revocations {
        let mut one = Vec::new();
        below.encode(&mut one);
        for number in [key.sign_algo, key.hash_algo, key.weight] {
            number.map_or(0, |number| u128::from(number) + 1).encode(&mut one);
        }
        all.extend(list(&one));
    }
    list(&all).into()
}

fn decode(public_key: &Bytes, bytes: &[u8]) -> alloy_rlp::Result<Vec<Unplaced>> {
    let mut rest = bytes;
    let mut all = Header::decode_bytes(&mut rest, true)?;
    let mut revocations = Vec::new();
    while !all.is_empty() {
        let mut one = Header::decode_bytes(&mut all, true)?;
        let below = u64::decode(&mut one)?;
        let mut number = || -> alloy_rlp::Result<Option<u64>> {
            Ok(u128::decode(&mut one)?.checked_sub(1).and_then(|number| number.try_into().ok()))
        };
        let (sign_algo, hash_algo, weight) = (number()?, number()?, number()?);
        let key = KeyFields { public_key: Some(public_key.clone()), sign_algo, hash_algo, weight };
        revocations.push(Unplaced { key, below });
    }
    Ok(revocations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unplaced_is_read_as_it_was_written() {
        let public_key = Bytes::from_static(&[1, 2]);
        let unplaced = |sign_algo, hash_algo, weight, below| {
            let key = KeyFields { public_key: Some(public_key.clone()), sign_algo, hash_algo, weight };
            Unplaced { key, below }
        };
        let all =
            vec![unplaced(Some(u64::MAX), None, Some(0), u64::MAX), unplaced(None, Some(3), Some(1000), 1)];
        assert_eq!(decode(&public_key, &encode(&all)), Ok(all));
        assert!(decode(&public_key, b"x").is_err());
    }
}
