//! The calls that ask a contract what it is, and their answers.
//!
//! An answer comes from a stranger: whatever its bytes are, it becomes a value, or bytes that can't be read, and never more than a bounded
//! amount of either. An empty answer is neither: the contract has no such function, or is no contract.

use alloy_primitives::{Address, B256, U256};

use super::abi;
use crate::decode::{Said, TextLimit, said};

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
pub fn text(answer: &[u8], limit: TextLimit) -> Said<String> {
    if answer.len() != 32 {
        return match abi::dynamic_bytes(answer, 0) {
            Ok(bytes) => said(bytes, limit),
            Err(_) => Said::unreadable(answer, limit),
        };
    }
    let end = answer.iter().position(|byte| *byte == 0).unwrap_or(32);
    let text = said(&answer[..end], limit);
    if answer[end..].iter().all(|byte| *byte == 0) {
        return text;
    }
    // What stands behind the NUL is not shown.
    Said { bytes: Said::<String>::unreadable(answer, limit).bytes, ..text }
}

/// A number of any size.
pub fn uint(answer: &[u8]) -> Said<U256> {
    match abi::uint(answer, 0) {
        Ok(number) => Said { value: Some(number), bytes: None },
        Err(_) => Said::unreadable(answer, TextLimit::NAME),
    }
}

/// `decimals()`: a `uint8`; a larger number can't be read as one.
pub fn decimals(answer: &[u8]) -> Said<u8> {
    match uint(answer).value.and_then(|number| u8::try_from(number).ok()) {
        Some(decimals) => Said { value: Some(decimals), bytes: None },
        None => Said::unreadable(answer, TextLimit::NAME),
    }
}

/// A truth value: 0 or 1; anything else is none.
pub fn boolean(answer: &[u8]) -> Option<bool> {
    match uint(answer).value? {
        U256::ZERO => Some(false),
        U256::ONE => Some(true),
        _ => None,
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
        text(answer, TextLimit::SYMBOL).value
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
        assert_eq!(text(&string(b""), TextLimit::SYMBOL), Said::default());
        assert_eq!(shown(&[]), None);
        assert_eq!(shown(&string(b"U\0S\xffD")).as_deref(), Some("US\u{FFFD}D"));
        assert_eq!(shown(&string(&[b'x'; 100_000])), Some("x".repeat(64)));
    }

    #[test]
    fn what_is_not_shown_of_a_text_is_kept() {
        let kept = |answer: &[u8]| text(answer, TextLimit::SYMBOL).bytes;
        let mut maker = [0; 32];
        maker[..3].copy_from_slice(b"MKR");
        assert_eq!(kept(&maker), None);
        maker[31] = b'!';
        assert_eq!((shown(&maker).as_deref(), kept(&maker).as_deref()), (Some("MKR"), Some(&maker[..])));
        assert_eq!(kept(&string(b"U\0S")).as_deref(), Some(&b"U\0S"[..]));
        assert_eq!(kept(&[0xff; 70]).as_deref(), Some(&[0xff; 70][..]));
    }

    #[test]
    fn numbers_are_read_within_their_ranges() {
        let word = |n: U256| n.to_be_bytes::<32>();
        assert_eq!(decimals(&word(U256::from(18))), Said { value: Some(18), bytes: None });
        for out_of_range in [U256::from(256), U256::MAX] {
            let kept = Some(word(out_of_range).to_vec().into());
            assert_eq!(decimals(&word(out_of_range)), Said { value: None, bytes: kept });
        }
        assert_eq!(decimals(&[]), Said::default());
        assert_eq!(decimals(&[1]), Said { value: None, bytes: Some(vec![1].into()) });
        assert_eq!(uint(&word(U256::MAX)).value, Some(U256::MAX));
        assert_eq!(boolean(&word(U256::ONE)), Some(true));
        assert_eq!(boolean(&word(U256::from(2))), None);
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
            let said = text(&answer, TextLimit::NAME);
            prop_assert!(said.value.is_none_or(|text| text.len() <= TextLimit::NAME.bytes));
            prop_assert!(said.bytes.is_none_or(|bytes| bytes.len() <= TextLimit::NAME.bytes));
            let _ = (uint(&answer), decimals(&answer), boolean(&answer));
        }
    }
}
