//! How bytes are packed into columns: zstd where that is smaller, and the transactions' facts as columns of their own.
//!
//! Persisted. Packed bytes begin with a tag: 0, then the bytes as they are; or 1, then their length as four bytes
//! (big-endian), then a zstd frame with a checksum.

use std::cell::RefCell;
use std::io;

use bytes::Bytes;
use cairn_core::{Height, TxFacts, TxId, TxStatus};
use cairn_store::{Result, StoreError};
use zstd::bulk::{Compressor, Decompressor};

use super::error::corrupt;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_HEADER_BYTES: usize = 5;

/// Shorter bytes are not worth a try.
const MIN_ZSTD_BYTES: usize = 64;

/// The longest part that is stored: SQLite's own limit for a value is 1,000,000,000 bytes.
const MAX_PART_BYTES: usize = 900_000_000;

/// Packs, with one reused context.
pub(super) struct Packer(Compressor<'static>);

impl Packer {
    pub(super) fn new(level: i32) -> Result<Self> {
        let compressor = Compressor::new(level).and_then(|mut compressor| {
            compressor.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))?;
            Ok(compressor)
        });
        compressor.map(Packer).map_err(zstd_failed)
    }

    pub(super) fn pack(&mut self, bytes: &[u8]) -> Result<Vec<u8>> {
        if bytes.len() > MAX_PART_BYTES {
            return Err(StoreError::Invalid(format!(
                "a block's part has {} bytes, more than the {MAX_PART_BYTES} that can be stored",
                bytes.len()
            )));
        }
        if bytes.len() >= MIN_ZSTD_BYTES {
            let mut packed = vec![0; ZSTD_HEADER_BYTES + zstd::zstd_safe::compress_bound(bytes.len())];
            packed[0] = ZSTD;
            packed[1..ZSTD_HEADER_BYTES].copy_from_slice(&(bytes.len() as u32).to_be_bytes());
            let frame =
                self.0.compress_to_buffer(bytes, &mut packed[ZSTD_HEADER_BYTES..]).map_err(zstd_failed)?;
            if ZSTD_HEADER_BYTES + frame < 1 + bytes.len() {
                packed.truncate(ZSTD_HEADER_BYTES + frame);
                packed.shrink_to_fit();
                return Ok(packed);
            }
        }
        let mut packed = Vec::with_capacity(1 + bytes.len());
        packed.push(RAW);
        packed.extend_from_slice(bytes);
        Ok(packed)
    }
}

fn zstd_failed(error: io::Error) -> StoreError {
    StoreError::Database(format!("zstd failed: {error}"))
}

/// Unpacks, with one reused context.
pub(super) struct Unpacker(RefCell<Decompressor<'static>>);

impl Unpacker {
    pub(super) fn new() -> Result<Self> {
        Decompressor::new().map(|context| Unpacker(RefCell::new(context))).map_err(zstd_failed)
    }

    /// `table` and `height` name the place in errors.
    pub(super) fn unpack(&self, packed: &[u8], table: &str, height: Height) -> Result<Bytes> {
        let damaged = |what: &str| corrupt(format!("{table}, height {height}"), what);
        match packed.split_first() {
            Some((&RAW, bytes)) => Ok(Bytes::copy_from_slice(bytes)),
            Some((&ZSTD, rest)) => {
                let (length, frame) =
                    rest.split_first_chunk::<4>().ok_or_else(|| damaged("packed bytes end too early"))?;
                let length = u32::from_be_bytes(*length) as usize;
                if length > MAX_PART_BYTES {
                    return Err(damaged("packed bytes claim an impossible length"));
                }
                let bytes = self.0.borrow_mut().decompress(frame, length);
                let bytes = bytes.map_err(|error| damaged(&format!("zstd: {error}")))?;
                if bytes.len() != length {
                    return Err(damaged("packed bytes have another length than they say"));
                }
                Ok(bytes.into())
            }
            Some((tag, _)) => Err(damaged(&format!("packed bytes have the unknown tag {tag}"))),
            None => Err(damaged("packed bytes are empty")),
        }
    }
}

/// The bytes of one transaction's id.
pub(super) const ID_BYTES: usize = 32;

pub(super) fn tx_ids(transactions: &[TxFacts]) -> Vec<u8> {
    transactions.iter().flat_map(|tx| tx.id.0).collect()
}

/// Statuses, lengths of senders, senders: before packing. Senders have at most 255 bytes (checked with the batch).
pub(super) fn tx_facts(transactions: &[TxFacts]) -> Vec<u8> {
    let statuses = transactions.iter().map(|tx| tx.status as u8);
    let lengths = transactions.iter().map(|tx| tx.sender.len() as u8);
    let mut out: Vec<u8> = statuses.chain(lengths).collect();
    for tx in transactions {
        out.extend_from_slice(&tx.sender);
    }
    out
}

/// The transactions back, from their ids and unpacked facts.
pub(super) fn transactions(ids: &[u8], facts: &Bytes, height: Height) -> Result<Vec<TxFacts>> {
    let damaged = |what: &str| corrupt(format!("transactions, height {height}"), what);
    let (ids, rest) = ids.as_chunks::<ID_BYTES>();
    if !rest.is_empty() || facts.len() < 2 * ids.len() {
        return Err(damaged("ids and facts don't fit together"));
    }
    let mut at = 2 * ids.len();
    let transactions = ids.iter().enumerate().map(|(index, id)| {
        let status = TxStatus::from_byte(facts[index]).ok_or_else(|| damaged("an unknown status"))?;
        let end = at + usize::from(facts[ids.len() + index]);
        if end > facts.len() {
            return Err(damaged("senders end too early"));
        }
        let sender = facts.slice(at..end);
        at = end;
        Ok(TxFacts { id: TxId(*id), sender, status })
    });
    let transactions: Vec<TxFacts> = transactions.collect::<Result<_>>()?;
    if at != facts.len() {
        return Err(damaged("bytes are left after the last sender"));
    }
    Ok(transactions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn facts() -> impl Strategy<Value = TxFacts> {
        let sender = proptest::collection::vec(any::<u8>(), 0..40);
        (any::<[u8; 32]>(), sender, 0_u8..3).prop_map(|(id, sender, status)| TxFacts {
            id: TxId(id),
            sender: sender.into(),
            status: TxStatus::from_byte(status).expect("known"),
        })
    }

    proptest! {
        #[test]
        fn packed_bytes_come_back(bytes in proptest::collection::vec(0_u8..4, 0..2_000)) {
            let packed = Packer::new(3).expect("zstd").pack(&bytes).expect("packs");
            prop_assert!(packed.len() <= bytes.len() + 1);
            let back = Unpacker::new().expect("zstd").unpack(&packed, "bodies", Height(1)).expect("unpacks");
            prop_assert_eq!(back, bytes);
        }

        #[test]
        fn damage_is_an_error_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Unpacker::new().expect("zstd").unpack(&bytes, "bodies", Height(1));
            let _ = transactions(&bytes, &Bytes::from(bytes.clone()), Height(1));
        }

        #[test]
        fn facts_come_back(list in proptest::collection::vec(facts(), 0..30)) {
            let (ids, packed) = (tx_ids(&list), Bytes::from(tx_facts(&list)));
            prop_assert_eq!(transactions(&ids, &packed, Height(1)).expect("reads"), list);
        }
    }

    #[test]
    fn golden_packed_bytes() {
        let mut packer = Packer::new(3).expect("zstd");
        assert_eq!(packer.pack(b"").expect("packs"), [0]);
        assert_eq!(packer.pack(b"abc").expect("packs"), [0, b'a', b'b', b'c']);
        let stored = hex::decode(GOLDEN_FRAME).expect("hex");
        let back = Unpacker::new().expect("zstd").unpack(&stored, "bodies", Height(1)).expect("unpacks");
        assert_eq!(back, [7_u8; 300].as_slice());
        let tx = TxFacts { id: TxId([9; 32]), sender: Bytes::from_static(b"me"), status: TxStatus::Unknown };
        assert_eq!(tx_facts(&[tx.clone(), tx]), [2, 2, 2, 2, b'm', b'e', b'm', b'e']);
    }

    /// 300 times the byte 7.
    const GOLDEN_FRAME: &str = "010000012c28b52ffd642c004d00001007070100272ac002dbc71d0c";
}
