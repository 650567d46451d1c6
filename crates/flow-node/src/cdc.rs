//! JSON-CDC as a node writes it (cadence `encoding/json`): numbers as strings, a newline behind each payload.

use std::fmt::{Display, Write};

use bytes::Bytes;
use cairn_flow::FlowAddress;

/// A value, as its JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cdc(pub String);

/// Text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn simple(kind: &str, value: impl Display) -> Cdc {
    Cdc(format!(r#"{{"type":"{kind}","value":"{value}"}}"#))
}

/// A number of any kind, by its digits.
pub fn number(kind: &str, digits: impl Display) -> Cdc {
    simple(kind, digits)
}

/// Units of 10^-8 with all eight decimals.
pub fn ufix64(units: u64) -> Cdc {
    simple("UFix64", format_args!("{}.{:08}", units / 100_000_000, units % 100_000_000))
}

/// Text.
pub fn string(text: &str) -> Cdc {
    Cdc(format!(r#"{{"type":"String","value":{}}}"#, quoted(text)))
}

/// An address with all its digits.
pub fn address(address: FlowAddress) -> Cdc {
    simple("Address", address)
}

/// A value or nil.
pub fn optional(value: Option<Cdc>) -> Cdc {
    Cdc(format!(r#"{{"type":"Optional","value":{}}}"#, value.map_or("null".into(), |value| value.0)))
}

/// A list.
pub fn array(values: impl IntoIterator<Item = Cdc>) -> Cdc {
    let values: Vec<String> = values.into_iter().map(|value| value.0).collect();
    Cdc(format!(r#"{{"type":"Array","value":[{}]}}"#, values.join(",")))
}

/// `[UInt8]`.
pub fn bytes(bytes: &[u8]) -> Cdc {
    let mut text = String::with_capacity(bytes.len() * 33 + 32);
    text.push_str(r#"{"type":"Array","value":["#);
    for (at, byte) in bytes.iter().enumerate() {
        // A write into a string can't fail.
        let _ = write!(text, r#"{}{{"type":"UInt8","value":"{byte}"}}"#, if at > 0 { "," } else { "" });
    }
    text.push_str("]}");
    Cdc(text)
}

/// Keys and values.
pub fn dictionary(entries: impl IntoIterator<Item = (Cdc, Cdc)>) -> Cdc {
    let entries: Vec<String> = entries
        .into_iter()
        .map(|(key, value)| format!(r#"{{"key":{},"value":{}}}"#, key.0, value.0))
        .collect();
    Cdc(format!(r#"{{"type":"Dictionary","value":[{}]}}"#, entries.join(",")))
}

/// A truth value.
pub fn boolean(is: bool) -> Cdc {
    Cdc(format!(r#"{{"type":"Bool","value":{is}}}"#))
}

/// A struct, resource, enum or event.
pub fn composite(kind: &str, id: &str, fields: &[(&str, Cdc)]) -> Cdc {
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!(r#"{{"name":"{name}","value":{}}}"#, value.0)).collect();
    Cdc(format!(r#"{{"type":"{kind}","value":{{"id":"{id}","fields":[{}]}}}}"#, fields.join(",")))
}

/// An enum of `UInt8`.
pub fn enumeration(id: &str, raw: u8) -> Cdc {
    composite("Enum", id, &[("rawValue", number("UInt8", raw))])
}

/// An event's payload.
pub fn event(id: &str, fields: &[(&str, Cdc)]) -> Bytes {
    (composite("Event", id, fields).0 + "\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_what_a_node_recorded() {
        let id = "A.7e60df042a9c0868.FlowToken.TokensWithdrawn";
        let from = FlowAddress([0xcb, 0x2d, 0x04, 0xfc, 0x89, 0x30, 0x71, 0x07]);
        let payload = event(id, &[("amount", ufix64(1816)), ("from", optional(Some(address(from))))]);
        let recorded = concat!(
            r#"{"type":"Event","value":{"id":"A.7e60df042a9c0868.FlowToken.TokensWithdrawn","fields":["#,
            r#"{"name":"amount","value":{"type":"UFix64","value":"0.00001816"}},"#,
            r#"{"name":"from","value":{"type":"Optional","value":{"type":"Address","value":"0xcb2d04fc89307107"}}}]}}"#,
            "\n"
        );
        assert_eq!(payload, recorded);
    }
}
