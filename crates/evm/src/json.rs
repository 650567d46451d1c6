//! JSON in which nothing is lost: what `serde_json::Value` can't hold stays as it is written.
//!
//! That are numbers beyond 64 bits, fractions and exponents, and strings that are no Unicode (`"\ud800"`). A tree holds such a text as an
//! object with one private name; [`Json`] writes it as it came. Bytes that are no UTF-8 become the escapes `\udc80` to `\udcff` (as in
//! Python's `surrogateescape`), from which they can be told.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use alloy_primitives::U256;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// The name under which a tree holds a text. A node's object that has this name is held as text itself.
const VERBATIM: &str = "$cairn::verbatim";

/// How deep texts are taken apart; what is below stays one text. As deep as `serde_json` reads trees.
const MAX_DEPTH: usize = 128;

/// A tree that is written with the texts that it was read with.
#[derive(Debug, Clone, PartialEq)]
pub struct Json(pub Value);

impl Deref for Json {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl PartialEq<Value> for Json {
    fn eq(&self, other: &Value) -> bool {
        self.0 == *other
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Written(&self.0).serialize(to)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Writes an object of a tree: for `serialize_with`.
pub(crate) fn write_object<S: Serializer>(object: &Map<String, Value>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(object.iter().map(|(name, value)| (name, Written(value))))
}

struct Written<'a>(&'a Value);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => match verbatim(self.0) {
                Some(text) => RawValue::from_string(text.to_owned()).map_err(S::Error::custom)?.serialize(to),
                None => write_object(object, to),
            },
            Value::Array(items) => to.collect_seq(items.iter().map(Written)),
            other => other.serialize(to),
        }
    }
}

/// The text that stands for a value in a tree.
fn verbatim(value: &Value) -> Option<&str> {
    value.as_object().filter(|object| object.len() == 1)?.get(VERBATIM)?.as_str()
}

/// A quantity as `0x` text, or as a JSON integer of up to 256 bits.
pub(crate) fn quantity(value: &Value) -> Option<U256> {
    match value {
        Value::String(text) => crate::views::sink::quantity(text),
        Value::Number(number) => number.as_u64().map(U256::from),
        other => verbatim(other)
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| U256::from_str_radix(text, 10).ok()),
    }
}

/// Reads JSON.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    let text = utf8(text);
    match serde_json::from_str(&text) {
        Ok(value) if is_exact(&value) => Ok(value),
        _ => serde_json::from_str::<&RawValue>(&text).map(|raw| tree(raw, MAX_DEPTH)),
    }
}

/// The text, with escapes for bytes that are no UTF-8.
fn utf8(text: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(text) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 64);
    for chunk in text.utf8_chunks() {
        escaped.push_str(chunk.valid());
        for byte in chunk.invalid() {
            escaped.push_str(&format!("\\udc{byte:02x}"));
        }
    }
    escaped.into()
}

/// Whether the tree says all that its text did.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => !number.is_f64(),
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(object) => !object.contains_key(VERBATIM) && object.values().all(is_exact),
        _ => true,
    }
}

fn tree(raw: &RawValue, depth: usize) -> Value {
    let text = raw.get();
    let read = match text.as_bytes().first() {
        Some(b'{' | b'[') if depth == 0 => None,
        Some(b'{') => serde_json::from_str::<Entries<'_>>(text).ok().and_then(|Entries(entries)| {
            let known = entries.iter().all(|(name, _)| name != VERBATIM);
            let tree = |(name, raw): (String, &RawValue)| (name, tree(raw, depth - 1));
            known.then(|| Value::Object(entries.into_iter().map(tree).collect()))
        }),
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text)
            .ok()
            .map(|items| items.into_iter().map(|raw| tree(raw, depth - 1)).collect()),
        Some(b'-' | b'0'..=b'9') => {
            serde_json::from_str::<Number>(text).ok().filter(|number| !number.is_f64()).map(Value::Number)
        }
        _ => serde_json::from_str(text).ok(),
    };
    read.unwrap_or_else(|| Value::Object(Map::from_iter([(VERBATIM.to_owned(), text.into())])))
}

/// The names and values of an object, in order.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(text: &[u8]) -> String {
        Json(parse(text).unwrap()).to_string()
    }

    #[test]
    fn numbers_and_strings_come_back_as_they_are_written() {
        for text in [
            r#"{"a":58750003716598352816469,"b":[18446744073709551615,18446744073709551616],"c":-0}"#,
            r#"{"a":1.10,"b":1e400,"c":5E-3,"d":-9223372036854775809}"#,
            r#"{"a":"\ud800","b":["\udfff x"],"c":"\ud83d\ude00"}"#,
            r#"[{"\ud800":1,"b":2},{"b":"\ud800"}]"#,
            r#"{"$cairn::verbatim":"1}, {","b":1.5}"#,
        ] {
            let same =
                if text.contains("ude00") { text.replace(r"\ud83d\ude00", "😀") } else { text.into() };
            assert_eq!(again(text.as_bytes()), same);
        }
        assert_eq!(again(b"{\"a\": \"x\xff\xc3\", \"b\": \"\xc3\xa9\"}"), r#"{"a":"x\udcff\udcc3","b":"é"}"#);
    }

    #[test]
    fn what_is_no_json_is_refused_and_depth_is_no_trouble() {
        for text in [&b"{"[..], b"{\"a\":01}", b"\xff", b"{\"a\":\"\n\"}", b"[1,]", b""] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let deep = format!("{}1.0{}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(again(deep.as_bytes()), deep);
    }

    #[test]
    fn integers_of_256_bits_are_quantities() {
        let parsed = |text: &str| quantity(&parse(text.as_bytes()).unwrap());
        assert_eq!(parsed("58750003716598352816469").unwrap().to_string(), "58750003716598352816469");
        assert_eq!(parsed(&U256::MAX.to_string()), Some(U256::MAX));
        assert_eq!(parsed(&format!("{}0", U256::MAX)), None);
        assert_eq!((parsed("1.0"), parsed("-1"), parsed("\"0x5\"")), (None, None, Some(U256::from(5))));
    }
}
