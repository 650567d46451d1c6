//! The names of payloads and of their objects.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The SHA-256 of a payload, as in a row's `payload_hash`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadHash(pub [u8; 32]);

impl PayloadHash {
    /// The hash of `body`.
    pub fn of(body: &[u8]) -> Self {
        PayloadHash(Sha256::digest(body).into())
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for PayloadHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One object: a content and a generation. As text it is the object's key, as in a row's `payload_ref`:
/// `payloads/ab/cd/<sha256>.<generation>`, with the hash in lower-case hex and the generation in decimal without leading zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadRef {
    /// The content.
    pub hash: PayloadHash,
    /// From the registry's counter, from 1: of two objects with the same content, the one made later has the higher one.
    pub generation: u64,
}

/// The first part of every key.
pub(super) const FOLDER: &str = "payloads";

impl PayloadRef {
    /// The object's key, below the store's own prefix.
    pub fn key(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for PayloadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = hex::encode(self.hash.0);
        write!(f, "{FOLDER}/{}/{}/{hash}.{}", &hash[..2], &hash[2..4], self.generation)
    }
}

/// Text that is not the key of a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a payload's key, payloads/ab/cd/<sha256>.<generation>, got {found:?}")]
pub struct ParsePayloadKeyError {
    /// The text, shortened.
    pub found: String,
}

impl FromStr for PayloadRef {
    type Err = ParsePayloadKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParsePayloadKeyError { found: text.chars().take(120).collect() };
        let (hash, generation) =
            text.rsplit('/').next().and_then(|name| name.split_once('.')).ok_or_else(error)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(hash, &mut bytes).map_err(|_| error())?;
        let generation = generation.parse().map_err(|_| error())?;
        let parsed = PayloadRef { hash: PayloadHash(bytes), generation };
        // One spelling an object: no other folder, no capital letters, no leading zeros or signs.
        if generation == 0 || parsed.key() != text { Err(error()) } else { Ok(parsed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_and_has_one_spelling() {
        let object = PayloadRef { hash: PayloadHash::of(b"abc"), generation: 7 };
        let key = "payloads/ba/78/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad.7";
        assert_eq!(object.key(), key);
        assert_eq!(key.parse(), Ok(object));
        let max = PayloadRef { generation: u64::MAX, ..object };
        assert_eq!(max.key().parse(), Ok(max));
        for wrong in [
            "",
            "payloads",
            &key[..key.len() - 2],
            &key.replace(".7", ".07"),
            &key.replace(".7", ".+7"),
            &key.replace(".7", ".0"),
            &key.replace(".7", ".7.8"),
            &key.replace(".7", ".18446744073709551616"),
            &key.replace("/ba/", "/bb/"),
            &key.to_uppercase(),
            &format!("/{key}"),
        ] {
            assert!(wrong.parse::<PayloadRef>().is_err(), "{wrong}");
        }
    }
}
