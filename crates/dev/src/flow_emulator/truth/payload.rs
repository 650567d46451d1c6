//! JSON-CDC as this test reads it: the fields of an event by name. Nothing of cairn's own decoder is in it.

use std::collections::BTreeMap;
use std::str::FromStr;

use alloy_primitives::{Address, B256, hex};
use anyhow::{Context, Result, bail};
use cairn_flow::FlowAddress;
use serde_json::Value;

/// The fields of an event, or of a struct in one.
pub struct Fields(BTreeMap<String, Value>);

impl Fields {
    /// Of an event's payload.
    pub fn of(payload: &[u8]) -> Result<Fields> {
        let payload: Value = serde_json::from_slice(payload)?;
        Fields::of_composite(&payload["value"])
    }

    fn of_composite(value: &Value) -> Result<Fields> {
        let fields = value["fields"].as_array().with_context(|| format!("{value} has no fields"))?;
        let field = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["value"].clone()));
        let fields: Option<BTreeMap<String, Value>> = fields.iter().map(field).collect();
        Ok(Fields(fields.context("a field without a name")?))
    }

    /// Whether there is such a field.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A field's value out of its optional; `None`: it is nil.
    fn optional(&self, name: &str) -> Result<Option<&Value>> {
        let mut value = self.0.get(name).with_context(|| format!("there is no field {name}"))?;
        loop {
            let inner = value.get("value").with_context(|| format!("{name} has no value"))?;
            if value["type"] != "Optional" {
                return Ok(Some(inner));
            }
            if inner.is_null() {
                return Ok(None);
            }
            value = inner;
        }
    }

    fn value(&self, name: &str) -> Result<&Value> {
        self.optional(name)?.with_context(|| format!("{name} is nil"))
    }

    /// Text.
    pub fn text(&self, name: &str) -> Result<&str> {
        self.value(name)?.as_str().with_context(|| format!("{name} is no text"))
    }

    /// A whole number.
    pub fn number<N: FromStr>(&self, name: &str) -> Result<N> {
        let digits = self.text(name)?;
        digits.parse().ok().with_context(|| format!("{name}: {digits} is no such number"))
    }

    /// A `UFix64`, in units of 10^-8.
    pub fn units(&self, name: &str) -> Result<u64> {
        let digits = self.text(name)?;
        let (whole, part) = digits.split_once('.').with_context(|| format!("{name}: {digits}"))?;
        let is_whole = part.len() == 8;
        let units = format!("{whole}{part}").parse().ok().filter(|_| is_whole);
        units.with_context(|| format!("{name}: {digits} is no UFix64"))
    }

    /// An account.
    pub fn account(&self, name: &str) -> Result<FlowAddress> {
        self.account_or_nil(name)?.with_context(|| format!("{name} is nil"))
    }

    /// An account, or nobody.
    pub fn account_or_nil(&self, name: &str) -> Result<Option<FlowAddress>> {
        let Some(value) = self.optional(name)? else { return Ok(None) };
        let text = value.as_str().with_context(|| format!("{name} is no account"))?;
        Ok(Some(text.parse().with_context(|| format!("{name}: {text}"))?))
    }

    /// A list of bytes, or their hex.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        match self.value(name)? {
            Value::Array(bytes) => {
                let byte = |byte: &Value| byte["value"].as_str()?.parse::<u8>().ok();
                let bytes: Option<Vec<u8>> = bytes.iter().map(byte).collect();
                bytes.with_context(|| format!("{name} is no list of bytes"))
            }
            Value::String(digits) => {
                hex::decode(digits).with_context(|| format!("{name}: {digits} is no hex"))
            }
            other => bail!("{name}: {other} is no list of bytes"),
        }
    }

    /// A hash of 32 bytes.
    pub fn hash(&self, name: &str) -> Result<B256> {
        let bytes = self.bytes(name)?;
        B256::try_from(&bytes[..]).with_context(|| format!("{name} has {} bytes", bytes.len()))
    }

    /// An account of the EVM; `None`: nothing is there.
    pub fn evm_account(&self, name: &str) -> Result<Option<Address>> {
        match self.text(name)? {
            "" => Ok(None),
            digits => Ok(Some(digits.parse().with_context(|| format!("{name}: {digits}"))?)),
        }
    }

    /// The fields of a struct.
    pub fn within(&self, name: &str) -> Result<Fields> {
        Fields::of_composite(self.value(name)?).with_context(|| name.to_owned())
    }

    /// The number of an enum.
    pub fn case<N: FromStr>(&self, name: &str) -> Result<N> {
        self.within(name)?.number("rawValue")
    }
}

/// Account, contract and name of a contract's event, `A.<account>.<contract>.<name>`; `None`: it is one of the chain's own.
pub fn parts(kind: &str) -> Option<(FlowAddress, &str, &str)> {
    let (account, rest) = kind.strip_prefix("A.")?.split_once('.')?;
    let (contract, name) = rest.split_once('.')?;
    Some((account.parse().ok()?, contract, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_the_node_writes_them() {
        let payload = br#"{"value":{"id":"A.01.X.Y","fields":[
            {"value":{"value":"1000.00000001","type":"UFix64"},"name":"amount"},
            {"value":{"value":null,"type":"Optional"},"name":"from"},
            {"value":{"value":{"value":"0xf8d6e0586b0a20c7","type":"Address"},"type":"Optional"},"name":"to"},
            {"value":{"value":[{"value":"255","type":"UInt8"},{"value":"0","type":"UInt8"}],"type":"Array"},"name":"data"},
            {"value":{"value":{"id":"HashAlgorithm","fields":[{"value":{"value":"3","type":"UInt8"},"name":"rawValue"}]},"type":"Enum"},"name":"hash"}
        ]},"type":"Event"}"#;
        let fields = Fields::of(payload).expect("is read");
        assert_eq!(fields.units("amount").expect("is one"), 100_000_000_001);
        assert_eq!(fields.account_or_nil("from").expect("is nil"), None);
        assert_eq!(fields.account("to").expect("is one").bare(), "f8d6e0586b0a20c7");
        assert_eq!(fields.bytes("data").expect("is a list"), [255, 0]);
        assert_eq!(fields.case::<u8>("hash").expect("is an enum"), 3);
        assert!(fields.has("to") && !fields.has("missing"));
        for wrong in [fields.units("to").err(), fields.account("from").err(), fields.text("missing").err()] {
            assert!(wrong.is_some());
        }
    }

    #[test]
    fn kinds_of_events_are_taken_apart() {
        let (account, contract, name) =
            parts("A.f8d6e0586b0a20c7.NonFungibleToken.NFT.ResourceDestroyed").expect("is a contract's");
        assert_eq!((account.bare().as_str(), contract), ("f8d6e0586b0a20c7", "NonFungibleToken"));
        assert_eq!(name, "NFT.ResourceDestroyed");
        assert_eq!(parts("flow.AccountCreated"), None);
    }
}
