//! The calls that ask a contract what it is, and their answers.
//!
//! An answer comes from a stranger: whatever its bytes are, it becomes a value, an absence or an error, and never more than a bounded
//! amount of text. An empty answer is an absence: the contract has no such function, or is no contract.

use alloy_primitives::{Address, B256, U256};

use super::abi::{self, AbiError};
use crate::decode::{CleanText, TextLimit, clean_bytes};

/// `name()`.
pub const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03];
/// `symbol()`.
pub const SYMBOL: [u8; 4] = [0x95, 0xd8, 0x9b, 0x41];
/// `decimals()`.
pub const DECIMALS: [u8; 4] = [0x31, 0x3c, 0xe5, 0x67];
/// `totalSupply()`.
pub const TOTAL_SUPPLY: [u8; 4] = [0x18, 0x16, 0x0d, 0xdd];
/// `tokenURI(uint256)` of ERC-721.
pub const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
/// `uri(uint256)` of ERC-1155.
pub const URI: [u8; 4] = [0x0e, 0x89, 0x34, 0x1c];
/// `supportsInterface(bytes4)` of ERC-165.
pub const SUPPORTS_INTERFACE: [u8; 4] = [0x01, 0xff, 0xc9, 0xa7];
/// `balanceOf(address)`.
pub const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];

/// The ERC-165 id of ERC-721.
pub const INTERFACE_ERC721: [u8; 4] = [0x80, 0xac, 0x58, 0xcd];
/// The ERC-165 id of ERC-1155.
pub const INTERFACE_ERC1155: [u8; 4] = [0xd9, 0xb6, 0x7a, 0x26];

/// The most bytes of an answer that anybody should take from a node: enough for the longest text that is kept, were it padded.
pub const MAX_RETURN_BYTES: usize = 64 * 1024;

/// The input of a call without arguments.
pub fn plain(selector: [u8; 4]) -> Vec<u8> {
    abi::call(selector, &[])
}

/// The input of a call with a number, as [`TOKEN_URI`] and [`URI`] take.
pub fn with_id(selector: [u8; 4], id: U256) -> Vec<u8> {
    abi::call(selector, &[id.into()])
}

/// The input of `balanceOf(address)`.
pub fn balance_of(holder: Address) -> Vec<u8> {
    abi::call(BALANCE_OF, &[holder.into_word()])
}

/// The input of `supportsInterface(bytes4)`.
pub fn supports_interface(interface: [u8; 4]) -> Vec<u8> {
    abi::call(SUPPORTS_INTERFACE, &[B256::right_padding_from(&interface)])
}

/// A text: an ABI `string`, or the `bytes32` that tokens of before the standard answer (up to its first NUL).
pub fn text(answer: &[u8], limit: TextLimit) -> Result<Option<CleanText>, AbiError> {
    match answer.len() {
        0 => Ok(None),
        32 => {
            let end = answer.iter().position(|byte| *byte == 0).unwrap_or(32);
            Ok(Some(clean_bytes(&answer[..end], limit)))
        }
        _ => abi::dynamic_bytes(answer, 0).map(|bytes| Some(clean_bytes(bytes, limit))),
    }
}

/// A number of any size.
pub fn uint(answer: &[u8]) -> Result<Option<U256>, AbiError> {
    if answer.is_empty() { Ok(None) } else { abi::uint(answer, 0).map(Some) }
}

/// `decimals()`: a `uint8`; more than 255 is an error.
pub fn decimals(answer: &[u8]) -> Result<Option<u8>, AbiError> {
    uint(answer)?.map(|number| u8::try_from(number).map_err(|_| AbiError::OutOfRange)).transpose()
}

/// A truth value: 0 or 1, and nothing else.
pub fn boolean(answer: &[u8]) -> Result<Option<bool>, AbiError> {
    match uint(answer)? {
        None => Ok(None),
        Some(U256::ZERO) => Ok(Some(false)),
        Some(U256::ONE) => Ok(Some(true)),
        Some(_) => Err(AbiError::OutOfRange),
    }
}

/// An ERC-1155 URI with `{id}` replaced by the id as the standard says: 64 lower-case hex digits without prefix. It is cut at
/// [`TextLimit::URI`].
pub fn uri_of_id(template: &str, id: U256) -> String {
    let digits = hex::encode(id.to_be_bytes::<32>());
    let uri = template.replace("{id}", &digits);
    if uri.len() <= TextLimit::URI.bytes { uri } else { template.to_owned() }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::keccak256;
    use proptest::prelude::*;

    use super::*;

    fn string(text: &[u8]) -> Vec<u8> {
        let mut data = [U256::from(32), U256::from(text.len())].map(|n| n.to_be_bytes::<32>()).concat();
        data.extend(text);
        data.resize(data.len().next_multiple_of(32), 0);
        data
    }

    fn shown(answer: &[u8]) -> Option<String> {
        text(answer, TextLimit::SYMBOL).unwrap().map(|text| text.text)
    }

    #[test]
    fn selectors_are_those_of_their_signatures() {
        for (selector, signature) in [
            (NAME, "name()"),
            (SYMBOL, "symbol()"),
            (DECIMALS, "decimals()"),
            (TOTAL_SUPPLY, "totalSupply()"),
            (TOKEN_URI, "tokenURI(uint256)"),
            (URI, "uri(uint256)"),
            (SUPPORTS_INTERFACE, "supportsInterface(bytes4)"),
            (BALANCE_OF, "balanceOf(address)"),
        ] {
            assert_eq!(selector, keccak256(signature)[..4], "{signature}");
        }
        assert_eq!(supports_interface(INTERFACE_ERC721)[4..9], [0x80, 0xac, 0x58, 0xcd, 0]);
        assert_eq!(with_id(URI, U256::from(5)).len(), 36);
    }

    #[test]
    fn texts_are_read_in_both_forms() {
        assert_eq!(shown(&string(b"USDC")).as_deref(), Some("USDC"));
        let mut maker = [0; 32];
        maker[..3].copy_from_slice(b"MKR");
        assert_eq!(shown(&maker).as_deref(), Some("MKR"));
        assert_eq!(shown(&[b'A'; 32]), Some("A".repeat(32)));
        assert_eq!(shown(&string(b"")).as_deref(), Some(""));
        assert_eq!(shown(&[]), None);
        assert_eq!(shown(&string(b"U\0S\xffD")).as_deref(), Some("US\u{FFFD}D"));
        assert_eq!(text(&string(&[b'x'; 100_000]), TextLimit::SYMBOL).unwrap().unwrap().text.len(), 64);
    }

    #[test]
    fn numbers_are_read_within_their_ranges() {
        let word = |n: U256| n.to_be_bytes::<32>();
        assert_eq!(decimals(&word(U256::from(18))), Ok(Some(18)));
        assert_eq!(decimals(&word(U256::from(256))), Err(AbiError::OutOfRange));
        assert_eq!(decimals(&[]), Ok(None));
        assert_eq!(decimals(&[1]), Err(AbiError::MissingWord(0)));
        assert_eq!(uint(&word(U256::MAX)), Ok(Some(U256::MAX)));
        assert_eq!(boolean(&word(U256::ONE)), Ok(Some(true)));
        assert_eq!(boolean(&word(U256::from(2))), Err(AbiError::OutOfRange));
    }

    #[test]
    fn ids_stand_in_uris_as_the_standard_says() {
        let uri = uri_of_id("https://x/{id}.json", U256::from(0x4cce0));
        assert_eq!(uri, format!("https://x/{}4cce0.json", "0".repeat(59)));
        let hostile = "{id}".repeat(2000);
        assert_eq!(uri_of_id(&hostile, U256::ZERO), hostile);
    }

    proptest! {
        #[test]
        fn no_answer_panics_or_grows(answer in prop::collection::vec(prop_oneof![Just(0u8), Just(32), any::<u8>()], 0..400)) {
            if let Ok(Some(text)) = text(&answer, TextLimit::NAME) {
                prop_assert!(text.text.len() <= TextLimit::NAME.bytes);
            }
            let _ = (uint(&answer), decimals(&answer), boolean(&answer));
        }
    }
}
