//! A switch, as people set one in an environment: `true` and `false`, and `1` and `0`.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// Reads it.
pub fn read<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    struct Flag;
    impl Visitor<'_> for Flag {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("true or false, or 1 or 0")
        }
        fn visit_bool<E>(self, flag: bool) -> Result<bool, E> {
            Ok(flag)
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<bool, E> {
            match number {
                0 => Ok(false),
                1 => Ok(true),
                _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
            }
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<bool, E> {
            match u64::try_from(number) {
                Ok(number) => self.visit_u64(number),
                Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
            }
        }
    }
    from.deserialize_any(Flag)
}
