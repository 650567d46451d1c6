//! Account addresses: 8 bytes, written in more ways than one.

use std::fmt;
use std::str::FromStr;

/// A Flow account's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FlowAddress(pub [u8; 8]);

/// Text that is no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a Flow address: 1 to 16 hex digits with an optional 0x, got {found_chars} characters")]
pub struct AddressError {
    /// How long the text was, in characters.
    pub found_chars: usize,
}

impl FlowAddress {
    /// No account's: what stands for "nobody" in system transactions.
    pub const ZERO: FlowAddress = FlowAddress([0; 8]);

    /// From the bytes of a message: at most 8, shorter ones are padded on the left.
    pub fn from_slice(bytes: &[u8]) -> Option<FlowAddress> {
        let mut padded = [0; 8];
        let start = padded.len().checked_sub(bytes.len())?;
        padded[start..].copy_from_slice(bytes);
        Some(FlowAddress(padded))
    }

    /// 16 hex digits without 0x: the form in event types.
    pub fn bare(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for FlowAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(self.0))
    }
}

impl FromStr for FlowAddress {
    type Err = AddressError;

    /// Any spelling: upper or lower case, with or without `0x`, leading zeros left out.
    fn from_str(text: &str) -> Result<Self, AddressError> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
        let refused = AddressError { found_chars: text.chars().count() };
        if digits.is_empty() || digits.len() > 16 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(refused);
        }
        match u64::from_str_radix(digits, 16) {
            Ok(number) => Ok(FlowAddress(number.to_be_bytes())),
            Err(_) => Err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_spelling_is_read() {
        let service = FlowAddress([0xe4, 0x67, 0xb9, 0xdd, 0x11, 0xfa, 0x00, 0xdf]);
        for text in ["e467b9dd11fa00df", "0xe467b9dd11fa00df", "0XE467B9DD11FA00DF"] {
            assert_eq!(text.parse(), Ok(service));
        }
        assert_eq!("0x1".parse(), Ok(FlowAddress([0, 0, 0, 0, 0, 0, 0, 1])));
        assert_eq!(FlowAddress::from_slice(&[1]), "1".parse().ok());
        for text in ["", "0x", "+1", "e467b9dd11fa00df0", "xyz", "0x 1"] {
            assert!(text.parse::<FlowAddress>().is_err(), "{text}");
        }
        assert_eq!(FlowAddress::from_slice(&[0; 9]), None);
        assert_eq!(service.to_string(), "0xe467b9dd11fa00df");
        assert_eq!(service.bare(), "e467b9dd11fa00df");
    }
}
