//! Reading the fields of a node's JSON objects. What is wrong is said with the place, the field and the value.

use std::fmt;

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use serde_json::{Map, Value};

use crate::EvmError;
use crate::json::quantity;
use crate::views::sink::digits;

/// Which object is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub height: Option<u64>,
    pub what: &'static str,
    pub index: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(height) = self.height {
            write!(f, "block {height}: ")?;
        }
        f.write_str(self.what)?;
        match self.index {
            Some(index) => write!(f, " {index}"),
            None => Ok(()),
        }
    }
}

/// An object and its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    pub map: &'a Map<String, Value>,
    pub place: Place,
}

impl<'a> Object<'a> {
    pub fn new(value: &'a Value, place: Place) -> Result<Self, EvmError> {
        match value {
            Value::Object(map) => Ok(Object { map, place }),
            other => Err(EvmError::malformed(
                place.to_string(),
                format!("expected an object, got {}", brief(other)),
            )),
        }
    }

    /// A field that is there. Null and empty text are as good as absent: nodes use them so.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null() && value.as_str() != Some(""))
    }

    pub fn required(&self, name: &str) -> Result<&'a Value, EvmError> {
        self.get(name).ok_or_else(|| self.wrong(name, "it is missing"))
    }

    pub fn wrong(&self, name: &str, message: impl fmt::Display) -> EvmError {
        EvmError::malformed(self.place.to_string(), format!("field `{name}`: {message}"))
    }

    fn expected(&self, name: &str, what: &str, value: &Value) -> EvmError {
        self.wrong(name, format!("expected {what}, got {}", brief(value)))
    }

    /// A quantity: hex text (without digits it is 0), or a JSON integer as some nodes have it.
    pub fn opt_u256(&self, name: &str) -> Result<Option<U256>, EvmError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        if value.as_str() == Some("0x") {
            return Ok(Some(U256::ZERO));
        }
        match quantity(value) {
            Some(quantity) => Ok(Some(quantity)),
            None => Err(self.expected(name, "a quantity of at most 256 bits", value)),
        }
    }

    pub fn u256(&self, name: &str) -> Result<U256, EvmError> {
        self.opt_u256(name)?.ok_or_else(|| self.wrong(name, "it is missing"))
    }

    pub fn u128(&self, name: &str) -> Result<u128, EvmError> {
        let quantity = self.u256(name)?;
        quantity.try_into().map_err(|_| self.wrong(name, format!("{quantity} has more than 128 bits")))
    }

    pub fn opt_u64(&self, name: &str) -> Result<Option<u64>, EvmError> {
        let Some(quantity) = self.opt_u256(name)? else { return Ok(None) };
        let narrow = quantity.try_into().map(Some);
        narrow.map_err(|_| self.wrong(name, format!("{quantity} has more than 64 bits")))
    }

    pub fn u64(&self, name: &str) -> Result<u64, EvmError> {
        self.opt_u64(name)?.ok_or_else(|| self.wrong(name, "it is missing"))
    }

    /// Exactly `N` bytes of hex.
    pub fn fixed_of<const N: usize>(&self, name: &str, value: &Value) -> Result<[u8; N], EvmError> {
        let mut bytes = [0; N];
        let text = value.as_str().and_then(digits).filter(|digits| digits.len() == 2 * N);
        match text.map(|digits| hex::decode_to_slice(digits, &mut bytes)) {
            Some(Ok(())) => Ok(bytes),
            _ => Err(self.expected(name, &format!("{N} bytes of hex"), value)),
        }
    }

    pub fn opt_fixed<const N: usize>(&self, name: &str) -> Result<Option<[u8; N]>, EvmError> {
        self.get(name).map(|value| self.fixed_of(name, value)).transpose()
    }

    pub fn fixed<const N: usize>(&self, name: &str) -> Result<[u8; N], EvmError> {
        self.fixed_of(name, self.required(name)?)
    }

    pub fn b256(&self, name: &str) -> Result<B256, EvmError> {
        self.fixed(name).map(B256::new)
    }

    /// An address; `None` where it is absent or empty (the recipient of a creation).
    pub fn opt_address(&self, name: &str) -> Result<Option<Address>, EvmError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if text == "0x" => Ok(None),
            Some(value) => self.fixed_of(name, value).map(|bytes| Some(Address::new(bytes))),
        }
    }

    /// The digits of bytes of any length; none where it is absent.
    pub fn data_digits(&self, name: &str) -> Result<&'a str, EvmError> {
        let Some(value) = self.get(name) else { return Ok("") };
        value
            .as_str()
            .and_then(digits)
            .filter(|digits| digits.len().is_multiple_of(2))
            .ok_or_else(|| self.expected(name, "an even number of hex digits", value))
    }

    pub fn data(&self, name: &str) -> Result<Bytes, EvmError> {
        let bytes = hex::decode(self.data_digits(name)?);
        bytes.map(Bytes::from).map_err(|error| self.wrong(name, error))
    }

    /// A list; an absent one is empty.
    pub fn list(&self, name: &str) -> Result<&'a [Value], EvmError> {
        match self.get(name) {
            None => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(value) => Err(self.expected(name, "a list", value)),
        }
    }
}

/// A value as it stands in a message.
fn brief(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > 80 => {
            format!("{:?}… ({} characters)", text.chars().take(80).collect::<String>(), text.len())
        }
        other => other.to_string(),
    }
}
