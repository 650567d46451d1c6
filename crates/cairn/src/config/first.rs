//! Where a new archive begins: at a height, or as far below the head as is said.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The first block of a new archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// This height.
    Height(u64),
    /// So many blocks below the head; 0: the head itself.
    BelowHead(u64),
}

/// For people, where a text is none of them.
const EXPECTED: &str = "a height such as 1000 or 0x3e8, `latest`, or `-N` for N blocks below the head";

impl FromStr for First {
    type Err = String;

    fn from_str(text: &str) -> Result<First, String> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            // A sign is read by who calls.
            None => text.parse().ok().filter(|_| text.starts_with(|char: char| char.is_ascii_digit())),
        };
        let read = match text.strip_prefix('-') {
            _ if text == "latest" => Some(First::BelowHead(0)),
            Some(below) => number(below).map(First::BelowHead),
            None => number(text).map(First::Height),
        };
        read.ok_or_else(|| format!("expected {EXPECTED}"))
    }
}

impl fmt::Display for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            First::Height(height) => write!(f, "{height}"),
            First::BelowHead(0) => f.write_str("latest"),
            First::BelowHead(below) => write!(f, "-{below}"),
        }
    }
}

impl Serialize for First {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            First::Height(height) => to.serialize_u64(*height),
            First::BelowHead(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<First, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = First;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_u64<E: Error>(self, height: u64) -> Result<First, E> {
                Ok(First::Height(height))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<First, E> {
                match u64::try_from(number) {
                    Ok(height) => Ok(First::Height(height)),
                    Err(_) => Ok(First::BelowHead(number.unsigned_abs())),
                }
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<First, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_read_as_people_write_them() {
        for (text, first) in [
            ("0", First::Height(0)),
            ("1000", First::Height(1_000)),
            ("0x3e8", First::Height(1_000)),
            ("latest", First::BelowHead(0)),
            ("-100", First::BelowHead(100)),
        ] {
            assert_eq!(text.parse(), Ok(first), "{text}");
            assert_eq!(first.to_string().parse(), Ok(first), "{text}");
        }
        for text in ["", "-", "+1", "head", "1.5", "--1", "-latest", "0x", "0xg", "99999999999999999999"] {
            let error = text.parse::<First>().expect_err(text);
            assert!(error.contains("`latest`"), "{text}: {error}");
        }
    }
}
