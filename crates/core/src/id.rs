//! Ids of chains, blocks, transactions and writers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Height;

/// A chain's number: EIP-155's for EVM chains, [`FLOW_NETWORKS`] for Flow. People read a Flow network's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChainId(pub u64);

/// The numbers that stand for Flow's networks, which have none of their own, and their names: `FLOW` in ASCII in the upper half, so that they are no EIP-155 chain ids.
pub const FLOW_NETWORKS: [(ChainId, &str); 3] = [
    (ChainId(0x464c_4f57_0000_0001), "flow-mainnet"),
    (ChainId(0x464c_4f57_0000_0002), "flow-testnet"),
    (ChainId(0x464c_4f57_0000_0003), "flow-emulator"),
];

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match FLOW_NETWORKS.iter().find(|(number, _)| number == self) {
            Some((_, name)) => name.fmt(f),
            None => self.0.fmt(f),
        }
    }
}

/// Text that should have been 32 bytes of hex and was not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 bytes as 64 hex digits with an optional 0x, got {found_chars} characters")]
pub struct HexError {
    /// How long the text was, in characters.
    pub found_chars: usize,
}

macro_rules! hash_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The key under which an index finds it: the first eight bytes, big-endian.
            pub fn index_key(&self) -> crate::IndexKey {
                let mut key = [0; 8];
                key.copy_from_slice(&self.0[..8]);
                u64::from_be_bytes(key)
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{}", hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = HexError;
            fn from_str(text: &str) -> Result<Self, HexError> {
                let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
                let mut bytes = [0; 32];
                hex::decode_to_slice(digits, &mut bytes)
                    .map_err(|_| HexError { found_chars: text.chars().count() })?;
                Ok($name(bytes))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hash_id! {
    /// A block's hash or id: 32 bytes on every chain that cairn knows.
    BlockId
}

hash_id! {
    /// A transaction's hash or id. It does not identify a transaction on every chain: keys add the height.
    TxId
}

/// A block by height and id: the smallest thing that names a place on one fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockRef {
    /// Where it stands.
    pub height: Height,
    /// Which of the blocks that stand there.
    pub id: BlockId,
}

impl fmt::Display for BlockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.height, self.id)
    }
}

/// A block with the id of its parent: what linkage is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinkedRef {
    /// The block.
    pub block: BlockRef,
    /// Its parent's id.
    pub parent_id: BlockId,
}

/// A growing number given by the durable store at each acquisition; a commit under an old one fails (law 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_any_case_and_write_lower_case() {
        let text = format!("0X{}", "AbCdEf01".repeat(8));
        let id: BlockId = text.parse().expect("64 digits");
        assert_eq!(id.to_string(), format!("0x{}", "abcdef01".repeat(8)));
        assert_eq!(id.index_key(), 0xabcd_ef01_abcd_ef01);
        assert!("0x12".parse::<BlockId>().is_err());
    }
}
