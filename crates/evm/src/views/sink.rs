//! One description of an object's fields, three uses: building a JSON object, writing JSON text, comparing with a node's object.

use alloy_primitives::{B256, U256, hex};
use serde_json::{Map, Value};

/// A field's value, before it is JSON.
#[derive(Debug, Clone)]
pub(crate) enum Field<'a> {
    Null,
    Bool(bool),
    /// A quantity: `0x` and no leading zeros.
    Number(u64),
    /// A quantity beyond 64 bits.
    Quantity(U256),
    /// Bytes, hashes and addresses: `0x` and two digits a byte.
    Data(&'a [u8]),
    Hashes(&'a [B256]),
    /// Nested; for what is rare.
    Json(Value),
}

impl<'a> Field<'a> {
    /// Data, or null.
    pub fn data_or_null(bytes: Option<&'a [u8]>) -> Field<'a> {
        bytes.map_or(Field::Null, Field::Data)
    }

    /// As JSON.
    pub fn into_value(self) -> Value {
        match self {
            Field::Null => Value::Null,
            Field::Bool(bool) => Value::Bool(bool),
            Field::Number(number) => Value::String(format!("{number:#x}")),
            Field::Quantity(number) => Value::String(format!("{number:#x}")),
            Field::Data(bytes) => Value::String(hex::encode_prefixed(bytes)),
            Field::Hashes(hashes) => {
                Value::Array(hashes.iter().map(|hash| Value::String(hex::encode_prefixed(hash))).collect())
            }
            Field::Json(value) => value,
        }
    }

    /// Whether a node's value means the same: letter case, and leading zeros of a quantity, make no difference.
    pub fn is_same_as(&self, node: &Value) -> bool {
        match (self, node) {
            (Field::Null, node) => node.is_null(),
            (Field::Bool(bool), node) => *node == Value::Bool(*bool),
            (Field::Number(number), Value::String(text)) => quantity(text) == Some(U256::from(*number)),
            (Field::Quantity(number), Value::String(text)) => quantity(text) == Some(*number),
            (Field::Data(bytes), Value::String(text)) => is_hex_of(text, bytes),
            (Field::Hashes(hashes), Value::Array(items)) => {
                hashes.len() == items.len()
                    && hashes
                        .iter()
                        .zip(items)
                        .all(|(hash, item)| item.as_str().is_some_and(|text| is_hex_of(text, &hash[..])))
            }
            (Field::Json(value), node) => same_json(value, node),
            _ => false,
        }
    }

    /// Whether a node's value is the same number in whatever form.
    pub fn is_as_large_as(&self, node: &Value) -> bool {
        match self {
            Field::Number(number) => crate::json::quantity(node) == Some(U256::from(*number)),
            Field::Quantity(number) => crate::json::quantity(node) == Some(*number),
            _ => false,
        }
    }
}

/// The digits of `0x` text.
pub(crate) fn digits(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

/// Reads a quantity; leading zeros are allowed, no digits are not.
pub(crate) fn quantity(text: &str) -> Option<U256> {
    let digits = digits(text)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    if digits.len() <= 16 {
        return u64::from_str_radix(digits, 16).ok().map(U256::from);
    }
    let digits = digits.trim_start_matches('0');
    if digits.len() > 64 {
        return None;
    }
    U256::from_str_radix(if digits.is_empty() { "0" } else { digits }, 16).ok()
}

fn is_hex_of(text: &str, bytes: &[u8]) -> bool {
    let Some(digits) = digits(text).map(str::as_bytes) else { return false };
    let nibble = |digit: u8| (digit as char).to_digit(16).unwrap_or(16);
    digits.len() == bytes.len() * 2
        && digits
            .chunks_exact(2)
            .zip(bytes)
            .all(|(pair, byte)| nibble(pair[0]) << 4 | nibble(pair[1]) == u32::from(*byte))
}

/// Equal, but for the case of `0x` text. Both sides are at most as deep as the JSON parser allows.
fn same_json(ours: &Value, node: &Value) -> bool {
    match (ours, node) {
        (Value::String(ours), Value::String(node)) => {
            ours == node
                || (digits(ours).is_some() && digits(node).is_some() && ours.eq_ignore_ascii_case(node))
        }
        (Value::Array(ours), Value::Array(node)) => {
            ours.len() == node.len() && ours.iter().zip(node).all(|(ours, node)| same_json(ours, node))
        }
        (Value::Object(ours), Value::Object(node)) => {
            ours.len() == node.len()
                && ours.iter().all(|(name, ours)| node.get(name).is_some_and(|node| same_json(ours, node)))
        }
        (ours, node) => ours == node,
    }
}

/// What fields are put into.
pub(crate) trait Sink {
    /// The next field. Each name comes once.
    fn put(&mut self, name: &'static str, field: Field<'_>);
}

impl Sink for Map<String, Value> {
    fn put(&mut self, name: &'static str, field: Field<'_>) {
        self.insert(name.to_owned(), field.into_value());
    }
}

/// Writes an object as JSON text: for logs, of which an answer can hold megabytes.
#[derive(Debug)]
pub(crate) struct TextSink<'a> {
    out: &'a mut Vec<u8>,
    separator: u8,
}

impl<'a> TextSink<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        TextSink { out, separator: b'{' }
    }

    pub fn finish(self) {
        if self.separator == b'{' {
            self.out.push(b'{');
        }
        self.out.push(b'}');
    }

    fn data(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(b"\"0x");
        let start = self.out.len();
        self.out.resize(start + bytes.len() * 2, b'0');
        let fits = hex::encode_to_slice(bytes, &mut self.out[start..]);
        debug_assert!(fits.is_ok(), "the room is exactly that of the digits");
        self.out.push(b'"');
    }

    fn number(&mut self, number: u64) {
        self.out.extend_from_slice(b"\"0x");
        let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(1);
        let digit = |at: u32| b"0123456789abcdef"[(number >> (4 * at) & 15) as usize];
        self.out.extend((0..digits).rev().map(digit));
        self.out.push(b'"');
    }
}

impl Sink for TextSink<'_> {
    fn put(&mut self, name: &'static str, field: Field<'_>) {
        self.out.push(self.separator);
        self.separator = b',';
        // Field names need no escapes.
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        match field {
            Field::Data(bytes) => self.data(bytes),
            Field::Hashes(hashes) => {
                self.out.push(b'[');
                for (at, hash) in hashes.iter().enumerate() {
                    if at > 0 {
                        self.out.push(b',');
                    }
                    self.data(hash.as_slice());
                }
                self.out.push(b']');
            }
            Field::Null => self.out.extend_from_slice(b"null"),
            Field::Bool(true) => self.out.extend_from_slice(b"true"),
            Field::Bool(false) => self.out.extend_from_slice(b"false"),
            Field::Number(number) => self.number(number),
            // Rare in logs.
            other => self.out.extend_from_slice(other.into_value().to_string().as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_object_are_the_same() {
        let hashes = [B256::repeat_byte(0xab), B256::repeat_byte(1)];
        let fields = || {
            [
                ("null", Field::Null),
                ("false", Field::Bool(false)),
                ("true", Field::Bool(true)),
                ("number", Field::Number(271)),
                ("zero", Field::Number(0)),
                ("sixteen", Field::Number(16)),
                ("most", Field::Number(u64::MAX)),
                ("quantity", Field::Quantity(U256::MAX)),
                ("data", Field::Data(&[0, 0xab])),
                ("empty", Field::Data(&[])),
                ("hashes", Field::Hashes(&hashes)),
                ("json", Field::Json(serde_json::json!({"a": ["\"", 1]}))),
            ]
        };
        let mut object = Map::new();
        let mut text = Vec::new();
        let mut sink = TextSink::new(&mut text);
        for (name, field) in fields() {
            sink.put(name, field.clone());
            object.put(name, field);
        }
        sink.finish();
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), Value::Object(object.clone()));
        for (name, field) in fields() {
            assert!(field.is_same_as(&object[name]), "{name}");
            assert!(!field.is_same_as(&Value::String("0x5".into())), "{name}");
        }
        let mut text = Vec::new();
        TextSink::new(&mut text).finish();
        assert_eq!(text, b"{}");
    }

    #[test]
    fn g08_quantities_are_compared_by_value_and_data_by_digit() {
        let same = |field: Field<'_>, text: &str| field.is_same_as(&Value::String(text.into()));
        assert!(same(Field::Number(0x10f), "0x10F") && same(Field::Number(0x10f), "0x00010f"));
        assert!(same(Field::Number(0), "0x0") && !same(Field::Number(0), "0x"));
        assert!(same(Field::Quantity(U256::from(5)), &format!("0x{}5", "0".repeat(70))));
        assert!(!same(Field::Quantity(U256::from(5)), &format!("0x5{}", "0".repeat(70))));
        assert!(same(Field::Data(&[0x0a, 0xff]), "0x0AFf") && !same(Field::Data(&[0x0a]), "0xa"));
        assert!(!same(Field::Data(&[0x0a]), "0a") && !same(Field::Data(&[0x0a]), "0x+a"));
        assert!(!same(Field::Number(1), "0x+1"));
    }
}
