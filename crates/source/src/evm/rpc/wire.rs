//! JSON-RPC 2.0 on the wire: batches out, answers in, matched by id (field case E16).
//!
//! An answer is cut into slices of the body, without a copy and without building trees: items are parsed one by one later, so
//! that a large batch is never twice in memory. `serde_json`'s limit of nesting stays on for those.

use bytes::Bytes;
use cairn_core::Height;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One call of a method.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The method's name.
    pub method: &'static str,
    /// Its parameters, a JSON array.
    pub params: String,
    /// The height of the block that it is about, for errors.
    pub height: Option<Height>,
}

impl Call {
    /// A call with parameters that are JSON texts already.
    pub fn new(method: &'static str, params: &[&str]) -> Call {
        Call { method, params: format!("[{}]", params.join(",")), height: None }
    }

    /// The same, about the block at `height`.
    pub fn about(self, height: Height) -> Call {
        Call { height: Some(height), ..self }
    }
}

/// A height as a JSON string of a hexadecimal quantity.
pub fn quantity(n: u64) -> String {
    format!("\"{n:#x}\"")
}

/// A JSON-RPC error object, as far as we read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorObject {
    /// The code; 0 where there is none.
    pub code: i64,
    /// The message, with what `data` adds where that is text.
    pub message: String,
}

/// What an answer says of one item.
pub type ItemResult = Result<Bytes, ErrorObject>;

/// An answer, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub enum Decoded {
    /// By position in the request; `None`: the answer doesn't mention it.
    Items(Vec<Option<ItemResult>>),
    /// One error for the whole request.
    Failed(ErrorObject),
}

/// Writes a request for the calls at these positions; the id of a call is its position + 1. One call goes out as a plain
/// object: not every server knows batches.
pub fn encode(calls: &[Call], positions: &[usize]) -> Vec<u8> {
    let mut out = Vec::with_capacity(positions.len() * 128);
    let many = positions.len() != 1;
    if many {
        out.push(b'[');
    }
    for (at, &position) in positions.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let call = &calls[position];
        let head = format!(r#"{{"jsonrpc":"2.0","id":{},"method":"{}","params":"#, position + 1, call.method);
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(call.params.as_bytes());
        out.push(b'}');
    }
    if many {
        out.push(b']');
    }
    out
}

/// More broken sequences than this make an answer no text.
const MAX_BROKEN_SEQUENCES: usize = 10_000;

/// The answer with escapes `\udc80` to `\udcff` in place of bytes that are no UTF-8, as the codec reads them; `None` where there are none. An escape outside
/// of a string is no JSON: what it is part of can't be parsed.
pub fn escape_broken_utf8(body: &[u8]) -> Result<Option<Bytes>, String> {
    if std::str::from_utf8(body).is_ok() {
        return Ok(None);
    }
    let mut escaped = String::with_capacity(body.len());
    for (at, chunk) in body.utf8_chunks().enumerate() {
        if at > MAX_BROKEN_SEQUENCES {
            return Err(format!("the answer has more than {MAX_BROKEN_SEQUENCES} broken UTF-8 sequences"));
        }
        escaped.push_str(chunk.valid());
        for byte in chunk.invalid() {
            escaped.push_str(&format!("\\udc{byte:02x}"));
        }
    }
    Ok(Some(escaped.into()))
}

/// Takes an answer apart. `Err` says why the body is no JSON-RPC answer.
pub fn decode(body: &Bytes, positions: &[usize]) -> Result<Decoded, String> {
    let text = std::str::from_utf8(body).map_err(|error| format!("the answer is not UTF-8 ({error})"))?;
    let mut items: Vec<Option<ItemResult>> = vec![None; positions.len()];
    match text.trim_ascii_start().as_bytes().first() {
        Some(b'[') => {
            // A bounded list: a body of millions of tiny items would take many times its size.
            let max_items = positions.len() * 2 + 8;
            let mut deserializer = serde_json::Deserializer::from_str(text);
            let wires =
                BoundedList { max_items }.deserialize(&mut deserializer).map_err(|error| no_json(&error))?;
            deserializer.end().map_err(|error| no_json(&error))?;
            if wires.is_empty() {
                return Err("the answer is an empty list".into());
            }
            for wire in &wires {
                place(wire, body, positions, &mut items);
            }
            // A list that holds nothing but an error without id is the same as that error alone.
            if let [only] = wires.as_slice()
                && items.iter().all(Option::is_none)
                && let Some(error) = only.error
            {
                return Ok(Decoded::Failed(error_object(error)));
            }
            Ok(Decoded::Items(items))
        }
        Some(b'{') => {
            let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| no_json(&error))?;
            if let Some(error) = wire.error
                && (positions.len() != 1 || wire.position().is_none())
            {
                return Ok(Decoded::Failed(error_object(error)));
            }
            // Whoever takes a batch for its first call may have misread that too.
            if positions.len() != 1 {
                return Err("a batch was answered with one object instead of a list".into());
            }
            // A lone answer to a lone question: some proxies lose the id.
            if wire.position().is_none() {
                items[0] = wire.outcome(body);
            } else {
                place(&wire, body, positions, &mut items);
            }
            if items[0].is_none() {
                return Err("the answer has neither a result nor an error for the id that was asked".into());
            }
            Ok(Decoded::Items(items))
        }
        Some(_) => Err("the answer is no JSON-RPC".into()),
        None => Err("the answer is empty".into()),
    }
}

fn no_json(error: &serde_json::Error) -> String {
    format!("the answer is no JSON-RPC ({error})")
}

/// Puts an answer where it belongs. The first of several answers for one item counts; answers to what was not asked are dropped.
fn place(wire: &Wire<'_>, body: &Bytes, positions: &[usize], items: &mut [Option<ItemResult>]) {
    let Some(position) = wire.position() else { return };
    // Positions grow.
    if let Ok(at) = positions.binary_search(&position)
        && items[at].is_none()
    {
        items[at] = wire.outcome(body);
    }
}

/// One answer, borrowed from the body.
#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    // `Option<&RawValue>` reads null as `None`; here null is an answer.
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

impl Wire<'_> {
    /// The position that its id names; ids that came back as text are read too.
    fn position(&self) -> Option<usize> {
        let id: usize = self.id?.get().trim_matches('"').parse().ok()?;
        id.checked_sub(1)
    }

    fn outcome(&self, body: &Bytes) -> Option<ItemResult> {
        if let Some(error) = self.error {
            return Some(Err(error_object(error)));
        }
        self.result.map(|result| Ok(body.slice_ref(result.get().as_bytes())))
    }
}

/// Reads an error object of any shape: some servers send a text.
fn error_object(error: &RawValue) -> ErrorObject {
    #[derive(Deserialize)]
    struct Shape<'a> {
        #[serde(default)]
        code: Option<serde_json::Number>,
        #[serde(default)]
        message: Option<String>,
        #[serde(borrow, default)]
        data: Option<&'a RawValue>,
    }
    let text = error.get();
    match serde_json::from_str::<Shape<'_>>(text) {
        Ok(shape) => {
            let mut message = shape.message.unwrap_or_default();
            if let Some(data) = shape.data.and_then(|data| serde_json::from_str::<String>(data.get()).ok())
                && !data.is_empty()
            {
                message.push_str(": ");
                message.push_str(&data);
            }
            ErrorObject { code: shape.code.and_then(|code| code.as_i64()).unwrap_or(0), message }
        }
        Err(_) => ErrorObject { code: 0, message: text.chars().take(2_000).collect() },
    }
}

struct BoundedList {
    max_items: usize,
}

impl<'de> DeserializeSeed<'de> for BoundedList {
    type Value = Vec<Wire<'de>>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for BoundedList {
    type Value = Vec<Wire<'de>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of answers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut wires = Vec::new();
        while let Some(wire) = list.next_element()? {
            if wires.len() == self.max_items {
                return Err(A::Error::custom(format_args!(
                    "more than {} answers in a batch",
                    self.max_items
                )));
            }
            wires.push(wire);
        }
        Ok(wires)
    }
}

/// A JSON text as a parameter.
pub fn json_text<T: Serialize>(value: &T) -> String {
    // Strings and plain maps always serialise.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(body: &str, positions: &[usize]) -> Vec<Option<ItemResult>> {
        match decode(&Bytes::copy_from_slice(body.as_bytes()), positions).unwrap() {
            Decoded::Items(items) => items,
            Decoded::Failed(error) => panic!("{error:?}"),
        }
    }

    fn ok(text: &str) -> Option<ItemResult> {
        Some(Ok(Bytes::copy_from_slice(text.as_bytes())))
    }

    #[test]
    fn e16_answers_are_matched_by_id() {
        let body = r#"[{"id":3,"result":{"a":1}}, {"id":"1","result":null},{"id":2,"error":{"code":429,"message":"slow"}},{"id":9,"result":1}]"#;
        let error = ErrorObject { code: 429, message: "slow".into() };
        assert_eq!(items(body, &[0, 1, 2, 3]), [ok("null"), Some(Err(error)), ok(r#"{"a":1}"#), None]);
    }

    #[test]
    fn e16_one_error_object_is_the_failure_of_all() {
        for body in [
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"no"}}"#,
            r#"[{"jsonrpc":"2.0","id":null,"error":{"code":-32005,"message":"no"}}]"#,
            r#"{"error":{"code":-32005,"message":"no"}}"#,
        ] {
            let error = ErrorObject { code: -32005, message: "no".into() };
            assert_eq!(decode(&Bytes::from_static(body.as_bytes()), &[0, 1]), Ok(Decoded::Failed(error)));
        }
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for body in ["", " ", "<html>", "[]", "7", "{", "[{\"id\":1,\"result\":", "\u{1}"] {
            assert!(decode(&Bytes::from_static(body.as_bytes()), &[0, 1]).is_err(), "{body:?}");
        }
        assert!(decode(&Bytes::from_static(b"\xff\xfe"), &[0]).is_err());
        assert!(decode(&Bytes::from_static(b"{\"id\":1}"), &[0]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(text in "[\\[\\]{}\",:0-9a-z. \\\\]{0,60}", count in 1_usize..4) {
            let positions: Vec<usize> = (0..count).collect();
            for body in [text.clone(), format!(r#"[{{"id":1,"result":{text}}}]"#), format!(r#"{{"error":{text}}}"#)] {
                if let Ok(Decoded::Items(items)) = decode(&Bytes::from(body), &positions) {
                    assert_eq!(items.len(), count);
                }
            }
        }
    }

    #[test]
    fn a_flood_of_tiny_items_is_refused() {
        let body = format!("[{}{{}}]", "{},".repeat(100_000));
        assert!(decode(&Bytes::from(body), &[0, 1]).unwrap_err().contains("more than"));
    }

    #[test]
    fn deep_nesting_costs_nothing() {
        let deep = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        let items = items(&deep, &[0]);
        let slice = items[0].clone().unwrap().unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&slice).is_err(), "the limit of nesting is on");
    }

    #[test]
    fn requests_keep_their_ids() {
        let calls = [Call::new("a", &[]), Call::new("b", &["\"0x1\"", "true"]), Call::new("c", &[])];
        assert_eq!(encode(&calls, &[1]), br#"{"jsonrpc":"2.0","id":2,"method":"b","params":["0x1",true]}"#);
        let both = String::from_utf8(encode(&calls, &[0, 2])).unwrap();
        assert!(both.starts_with('[') && both.contains(r#""id":1"#) && both.contains(r#""id":3"#), "{both}");
    }

    #[test]
    fn error_objects_of_any_shape_are_read() {
        let read = |text: &str| error_object(serde_json::from_str(text).unwrap());
        assert_eq!(read(r#""busy""#).message, "\"busy\"");
        assert_eq!(
            read(r#"{"code":-32000,"message":"execution","data":"batch limit"}"#).message,
            "execution: batch limit"
        );
        assert_eq!(read(r#"{"code":1.5}"#).code, 0);
        assert_eq!(read("{\"code\":-32005,\"message\":\"m\",\"data\":{\"x\":1}}").code, -32005);
    }
}
