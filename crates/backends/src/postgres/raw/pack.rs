//! Packed bytes: zstd where that is smaller.
//!
//! Persisted. A tag first: 0, then the bytes as they are; or 1, then their length as four bytes (big-endian), then a zstd frame with
//! a checksum.

use std::io;

use bytes::Bytes;
use cairn_core::Height;
use cairn_store::{Result, StoreError};
use zstd::bulk::Compressor;

use crate::postgres::error::corrupt;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const ZSTD_HEADER_BYTES: usize = 5;

/// Shorter bytes are not worth a try.
const MIN_ZSTD_BYTES: usize = 64;

/// The longest part that is stored: a value of PostgreSQL's has less than 1 GiB.
const MAX_PART_BYTES: usize = 900_000_000;

/// Packs, with one reused context.
pub(super) struct Packer(Compressor<'static>);

impl Packer {
    pub(super) fn new(level: i32) -> Result<Self> {
        let compressor = Compressor::new(level).and_then(|mut compressor| {
            compressor.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))?;
            Ok(compressor)
        });
        compressor.map(Packer).map_err(failed)
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
            let frame = self.0.compress_to_buffer(bytes, &mut packed[ZSTD_HEADER_BYTES..]).map_err(failed)?;
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

fn failed(error: io::Error) -> StoreError {
    StoreError::Database(format!("zstd failed: {error}"))
}

/// The bytes again. `column` and `height` name the place in errors.
pub(super) fn unpack(packed: &[u8], column: &str, height: Height) -> Result<Bytes> {
    let damaged = |what: &str| corrupt(format!("height {height}, {column}"), what);
    match packed.split_first() {
        Some((&RAW, bytes)) => Ok(Bytes::copy_from_slice(bytes)),
        Some((&ZSTD, rest)) => {
            let (length, frame) =
                rest.split_first_chunk::<4>().ok_or_else(|| damaged("packed bytes end too early"))?;
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_PART_BYTES {
                return Err(damaged("packed bytes claim an impossible length"));
            }
            let bytes =
                zstd::bulk::decompress(frame, length).map_err(|error| damaged(&format!("zstd: {error}")))?;
            if bytes.len() != length {
                return Err(damaged("packed bytes have another length than they say"));
            }
            Ok(bytes.into())
        }
        Some((tag, _)) => Err(damaged(&format!("packed bytes have the unknown tag {tag}"))),
        None => Err(damaged("packed bytes are empty")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packed_bytes_come_back(bytes in proptest::collection::vec(0_u8..4, 0..2_000)) {
            let packed = Packer::new(3).unwrap().pack(&bytes).unwrap();
            prop_assert!(packed.len() <= bytes.len() + 1);
            prop_assert_eq!(unpack(&packed, "body", Height(1)).unwrap(), bytes);
        }

        #[test]
        fn damage_is_an_error_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = unpack(&bytes, "body", Height(1));
        }
    }

    #[test]
    fn golden_packed_bytes() {
        let mut packer = Packer::new(3).unwrap();
        assert_eq!(packer.pack(b"").unwrap(), [0]);
        assert_eq!(packer.pack(b"abc").unwrap(), [0, b'a', b'b', b'c']);
        // 300 times the byte 7.
        let stored = hex::decode("010000012c28b52ffd642c004d00001007070100272ac002dbc71d0c").unwrap();
        assert_eq!(unpack(&stored, "body", Height(1)).unwrap(), [7_u8; 300].as_slice());
    }
}
