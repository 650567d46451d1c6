//! The little of the contract ABI that is needed, with every offset and length checked against the bytes that are there.
//!
//! Source: the Solidity documentation, "Contract ABI Specification". A head is a row of 32-byte words; a dynamic value's word is its
//! offset from the head's start; an array is its length and its items.

use alloy_primitives::{Address, B256, U256};

/// Why bytes are not what they should be. The text is fixed, so that errors can be counted by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AbiError {
    /// A word is cut off.
    #[error("the data ends before word {0}")]
    MissingWord(usize),
    /// An address with bytes above its 20.
    #[error("an address has dirty high bytes")]
    DirtyAddress,
    /// An offset or a length beyond the data.
    #[error("an offset or a length points beyond the data")]
    OutOfBounds,
    /// A number that doesn't fit where it is used.
    #[error("a number is out of range")]
    OutOfRange,
}

/// The word at `index` (counted in words).
pub fn word(data: &[u8], index: usize) -> Result<&[u8; 32], AbiError> {
    let start = index.checked_mul(32).ok_or(AbiError::OutOfBounds)?;
    data.get(start..).and_then(|rest| rest.first_chunk::<32>()).ok_or(AbiError::MissingWord(index))
}

/// The number at word `index`.
pub fn uint(data: &[u8], index: usize) -> Result<U256, AbiError> {
    word(data, index).map(|word| U256::from_be_bytes(*word))
}

/// The address at word `index`; its high bytes have to be 0.
pub fn address(data: &[u8], index: usize) -> Result<Address, AbiError> {
    address_of_word(word(data, index)?)
}

/// The address that a word (a topic) holds; its high bytes have to be 0.
pub fn address_of_word(word: &[u8; 32]) -> Result<Address, AbiError> {
    let (high, low) = word.split_at(12);
    if high.iter().any(|byte| *byte != 0) {
        return Err(AbiError::DirtyAddress);
    }
    Ok(Address::from_slice(low))
}

/// A number that counts bytes or items.
fn length(data: &[u8], index: usize) -> Result<usize, AbiError> {
    uint(data, index)?.try_into().map_err(|_| AbiError::OutOfBounds)
}

/// The bytes from the offset that word `index` holds.
fn tail(data: &[u8], index: usize) -> Result<&[u8], AbiError> {
    data.get(length(data, index)?..).ok_or(AbiError::OutOfBounds)
}

/// The `uint256[]` whose offset is at word `index`, no longer than the data is.
pub fn uint_array(data: &[u8], index: usize) -> Result<Vec<U256>, AbiError> {
    let tail = tail(data, index)?;
    let count = length(tail, 0)?;
    // Before anything is built: a length that the data can't hold costs nothing.
    if tail.len() / 32 - 1 < count {
        return Err(AbiError::OutOfBounds);
    }
    (1..=count).map(|index| uint(tail, index)).collect()
}

/// The `bytes` or `string` whose offset is at word `index`, without its padding, which isn't demanded.
pub fn dynamic_bytes(data: &[u8], index: usize) -> Result<&[u8], AbiError> {
    let tail = tail(data, index)?;
    let count = length(tail, 0)?;
    tail[32..].get(..count).ok_or(AbiError::OutOfBounds)
}

/// The input of a call: a selector and words.
pub fn call(selector: [u8; 4], words: &[B256]) -> Vec<u8> {
    let mut input = Vec::with_capacity(4 + words.len() * 32);
    input.extend_from_slice(&selector);
    for word in words {
        input.extend_from_slice(word.as_slice());
    }
    input
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| U256::from(*word).to_be_bytes::<32>()).collect()
    }

    #[test]
    fn arrays_and_bytes_are_read_where_their_offsets_say() {
        let data = words(&[64, 160, 2, 7, 8, 0]);
        assert_eq!(uint_array(&data, 0), Ok(vec![U256::from(7), U256::from(8)]));
        assert_eq!(uint_array(&data, 1), Ok(vec![]));
        let mut text = words(&[32, 3]);
        text.extend(b"abc");
        assert_eq!(dynamic_bytes(&text, 0), Ok(&b"abc"[..]));
    }

    #[test]
    fn offsets_and_lengths_beyond_the_data_are_errors() {
        assert_eq!(uint_array(&words(&[64, 0]), 0), Err(AbiError::MissingWord(0)));
        assert_eq!(uint_array(&words(&[65, 0]), 0), Err(AbiError::OutOfBounds));
        assert_eq!(uint_array(&words(&[32, u64::MAX]), 0), Err(AbiError::OutOfBounds));
        assert_eq!(uint_array(&words(&[32, 3, 1, 2]), 0), Err(AbiError::OutOfBounds));
        assert_eq!(dynamic_bytes(&words(&[32, 1]), 0), Err(AbiError::OutOfBounds));
        assert_eq!(dynamic_bytes(&[0xff; 64], 0), Err(AbiError::OutOfBounds));
        assert_eq!(word(&[0; 31], 0), Err(AbiError::MissingWord(0)));
        assert_eq!(word(&[0; 32], usize::MAX), Err(AbiError::OutOfBounds));
    }

    proptest! {
        #[test]
        fn nothing_panics(data in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300), index in 0usize..12) {
            let _ = (uint_array(&data, index), dynamic_bytes(&data, index), address(&data, index));
        }
    }
}
