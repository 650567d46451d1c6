//! How values stand in answers. A number that may pass 2^53 is a string, always, whatever its size (A05): heights, counts of all
//! kinds, amounts, nonces, times. Numbers that can't (an index in a block, decimals, a page's limit) are numbers. Bytes are lower-case hex.

use std::fmt;

use alloy_primitives::U256;
use bytes::Bytes;
use cairn_store::derived::Sum;
use chrono::{DateTime, SecondsFormat};
use serde::{Serialize, Serializer};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

macro_rules! word {
    ($name:ident, $pattern:literal, $example:literal, $what:literal) => {
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .pattern(Some($pattern))
                    .description(Some($what))
                    .examples([$example])
                    .into()
            }
        }

        impl ToSchema for $name {}

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}

/// A 64-bit number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Num(pub u64);

/// An amount of up to 256 bits, in the smallest unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount(pub U256);

/// A sum of amounts, which may be negative and may pass 256 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SumOf(pub Sum);

/// 32 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hash(pub Bytes);

/// An address, in the chain's own length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address(pub Bytes);

/// Any bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Data(pub Bytes);

word!(Num, "^(0|[1-9][0-9]*)$", "9007199254740993", "A number of up to 64 bits, in decimal");
word!(Amount, "^(0|[1-9][0-9]*)$", "1000000000000000000", "A number of up to 256 bits, in decimal");
word!(
    SumOf,
    "^(0|-?[1-9][0-9]*)$",
    "1000000000000000000",
    "A sum of amounts, in decimal; it may be negative and may pass 256 bits"
);
word!(
    Hash,
    "^0x[0-9a-f]{64}$",
    "0x1f2e3d4c5b6a79880f1e2d3c4b5a69788796a5b4c3d2e1f00112233445566778",
    "A hash or id of 32 bytes, in lower case"
);
word!(
    Address,
    "^0x([0-9a-f]{2})+$",
    "0x52908400098527886e0f7030069857d2e4169ee7",
    "An address, in lower case"
);
word!(Data, "^0x([0-9a-f]{2})*$", "0xa9059cbb", "Bytes, in lower case");

impl fmt::Display for Num {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SumOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("0x")?;
    f.write_str(&hex::encode(bytes))
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(&self.0, f)
    }
}

impl Hash {
    pub(crate) fn of(bytes: &[u8]) -> Hash {
        Hash(Bytes::copy_from_slice(bytes))
    }
}

impl Address {
    pub(crate) fn of(bytes: &[u8]) -> Address {
        Address(Bytes::copy_from_slice(bytes))
    }
}

impl Amount {
    pub(crate) fn of(n: impl Into<u128>) -> Amount {
        Amount(U256::from(n.into()))
    }
}

/// A time in milliseconds since 1970, as RFC 3339 in UTC; `None` for one beyond the year 262,000.
pub fn rfc3339(timestamp_ms: u64) -> Option<String> {
    let time = DateTime::from_timestamp_millis(i64::try_from(timestamp_ms).ok()?)?;
    Some(time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a05_numbers_are_strings_whatever_their_size() {
        let all = (
            Num(1),
            Num((1 << 53) + 1),
            Num(u64::MAX),
            Amount(U256::MAX),
            SumOf(-(Sum::from(U256::MAX) + Sum::from(U256::MAX))),
        );
        assert_eq!(
            serde_json::to_string(&all).expect("json"),
            "[\"1\",\"9007199254740993\",\"18446744073709551615\",\
             \"115792089237316195423570985008687907853269984665640564039457584007913129639935\",\
             \"-231584178474632390847141970017375815706539969331281128078915168015826259279870\"]"
        );
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(rfc3339(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(rfc3339(1_671_316_629_471).as_deref(), Some("2022-12-17T22:37:09.471Z"));
        assert_eq!(rfc3339(u64::MAX), None);
    }
}
