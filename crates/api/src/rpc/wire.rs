//! JSON-RPC 2.0 as bytes: requests in, responses out, without copying parameters or results.
//!
//! Parsing costs memory in proportion to the body and never recurses into parameters: they stay raw text until a method reads them,
//! with `serde_json`'s depth limit. A batch is cut off while it is being parsed, not afterwards.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{PARSE_ERROR, RpcError};

/// The longest `id` that is echoed.
const MAX_ID_BYTES: usize = 1024;
/// The longest method name that is looked at.
const MAX_METHOD_BYTES: usize = 256;

/// One request. Borrows from the body.
#[derive(Debug)]
pub struct Call<'a> {
    /// The id as it was written; `None`: a notification, which gets no answer.
    pub id: Option<&'a RawValue>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The parameters as they were written.
    pub params: Option<&'a RawValue>,
}

/// A request that can't be one, with whatever id could be read.
#[derive(Debug)]
pub struct BadCall<'a> {
    /// The id, where there was a usable one.
    pub id: Option<&'a RawValue>,
    /// Why.
    pub error: RpcError,
}

/// What a body holds.
#[derive(Debug)]
pub enum Payload<'a> {
    /// One request.
    Single(Result<Call<'a>, BadCall<'a>>),
    /// Several, in order; at least one.
    Batch(Vec<Result<Call<'a>, BadCall<'a>>>),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
}

/// Tells a `null` that was written from a field that was not.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Reads a body. The error is for the whole body and is answered with `id: null`.
pub fn parse(body: &[u8], max_batch_items: usize) -> Result<Payload<'_>, RpcError> {
    let first = body.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(b'[') {
        let raw: &RawValue = serde_json::from_slice(body).map_err(|error| parse_error(&error))?;
        return Ok(Payload::Single(call(raw)));
    }
    let mut from = serde_json::Deserializer::from_slice(body);
    let mut over = false;
    let items = Items { max: max_batch_items, over: &mut over }.deserialize(&mut from);
    if over {
        return Err(RpcError::invalid_request(format!(
            "batch too large: this server takes at most {max_batch_items} requests in one batch"
        )));
    }
    let items = items.and_then(|items| from.end().map(|()| items)).map_err(|error| parse_error(&error))?;
    if items.is_empty() {
        return Err(RpcError::invalid_request("empty batch"));
    }
    Ok(Payload::Batch(items.into_iter().map(call).collect()))
}

fn parse_error(error: &serde_json::Error) -> RpcError {
    RpcError::new(PARSE_ERROR, format!("the request is not valid JSON: {error}"))
}

fn call(raw: &RawValue) -> Result<Call<'_>, BadCall<'_>> {
    let envelope: Envelope<'_> = serde_json::from_str(raw.get()).map_err(|error| BadCall {
        id: None,
        error: RpcError::invalid_request(format!("not a JSON-RPC request: {error}")),
    })?;
    let id = match envelope.id {
        Some(id) if !usable_id(id) => {
            let error = RpcError::invalid_request(format!(
                "`id` has to be a number, null or a string of at most {MAX_ID_BYTES} bytes"
            ));
            return Err(BadCall { id: None, error });
        }
        id => id,
    };
    let bad = |why: &str| Err(BadCall { id, error: RpcError::invalid_request(why) });
    if envelope.jsonrpc.as_deref() != Some("2.0") {
        return bad("`jsonrpc` has to be \"2.0\"");
    }
    match envelope.method {
        Some(method) if method.len() <= MAX_METHOD_BYTES => Ok(Call { id, method, params: envelope.params }),
        Some(_) => bad("`method` is too long"),
        None => bad("`method` is missing"),
    }
}

fn usable_id(id: &RawValue) -> bool {
    let text = id.get();
    text.len() <= MAX_ID_BYTES
        && (text == "null" || matches!(text.as_bytes().first(), Some(b'"' | b'-' | b'0'..=b'9')))
}

/// The items of a batch, given up as soon as there are too many.
struct Items<'f> {
    max: usize,
    over: &'f mut bool,
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = Vec<&'de RawValue>;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = Vec<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a batch of requests")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut kept = Vec::new();
        while let Some(item) = items.next_element()? {
            if kept.len() == self.max {
                *self.over = true;
                return Err(serde::de::Error::custom("too many items"));
            }
            kept.push(item);
        }
        Ok(kept)
    }
}

/// A message to be sent: pieces that are written one after the other, so that a large result is never copied into one.
#[derive(Debug, Clone, Default)]
pub struct Message {
    pieces: Vec<Bytes>,
    len_bytes: usize,
}

impl Message {
    /// The response to `id` with a serialised result.
    pub fn result(id: &RawValue, result: Bytes) -> Self {
        let mut message = Message::default();
        message.push(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{},"result":"#, id.get())));
        message.push(result);
        message.push(Bytes::from_static(b"}"));
        message
    }

    /// The response to `id` (`None`: it could not be read) with an error.
    pub fn error(id: Option<&RawValue>, error: &RpcError) -> Self {
        let id = id.map_or("null", RawValue::get);
        // An error holds strings, numbers and JSON values only: it always serialises.
        let error = serde_json::to_string(error).unwrap_or_else(|_| {
            r#"{"code":-32603,"message":"the error could not be serialised"}"#.to_owned()
        });
        let mut message = Message::default();
        message.push(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)));
        message
    }

    /// A subscription's notification with a serialised result, which many may share.
    pub fn notification(subscription: &str, result: Bytes) -> Self {
        let mut message = Message::default();
        message.push(Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"{subscription}","result":"#
        )));
        message.push(result);
        message.push(Bytes::from_static(b"}}"));
        message
    }

    /// A subscription's last notification: why it ended.
    pub fn subscription_ended(subscription: &str, error: &RpcError) -> Self {
        let error = serde_json::to_string(error).unwrap_or_else(|_| {
            r#"{"code":-32603,"message":"the error could not be serialised"}"#.to_owned()
        });
        let mut message = Message::default();
        message.push(Bytes::from(format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"{subscription}","error":{error}}}}}"#
        )));
        message
    }

    /// The response to a batch; `None` where nothing in it wanted an answer.
    pub fn batch(responses: Vec<Message>) -> Option<Self> {
        if responses.is_empty() {
            return None;
        }
        let mut message = Message::default();
        message.push(Bytes::from_static(b"["));
        for (i, response) in responses.into_iter().enumerate() {
            if i > 0 {
                message.push(Bytes::from_static(b","));
            }
            for piece in response.pieces {
                message.push(piece);
            }
        }
        message.push(Bytes::from_static(b"]"));
        Some(message)
    }

    fn push(&mut self, piece: Bytes) {
        self.len_bytes += piece.len();
        self.pieces.push(piece);
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Its pieces, in order.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    /// As one piece; copies where there are several.
    #[cfg(test)]
    pub fn into_bytes(self) -> Bytes {
        match <[Bytes; 1]>::try_from(self.pieces) {
            Ok([piece]) => piece,
            Err(pieces) => {
                let mut whole = Vec::with_capacity(self.len_bytes);
                for piece in pieces {
                    whole.extend_from_slice(&piece);
                }
                Bytes::from(whole)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(message: Message) -> String {
        String::from_utf8(message.into_bytes().to_vec()).expect("utf-8")
    }

    #[test]
    fn a_written_null_id_is_not_a_notification() {
        let Ok(Payload::Single(Ok(call))) = parse(br#"{"jsonrpc":"2.0","id":null,"method":"a"}"#, 9) else {
            panic!()
        };
        assert_eq!(call.id.map(RawValue::get), Some("null"));
        let Ok(Payload::Single(Ok(call))) = parse(br#" {"jsonrpc":"2.0","method":"a","params":[]} "#, 9)
        else {
            panic!()
        };
        assert!(call.id.is_none());
        assert_eq!(call.params.map(RawValue::get), Some("[]"));
    }

    #[test]
    fn bad_envelopes_are_named() {
        for (body, code) in [
            (&br#"{"jsonrpc":"2.0""#[..], PARSE_ERROR),
            (b"", PARSE_ERROR),
            (b"\xff\xfe", PARSE_ERROR),
            (b"[]", -32600),
            (b"[1,2,3,4]", -32600),
            (b"[1,2", PARSE_ERROR),
            (b"[1] x", PARSE_ERROR),
        ] {
            assert_eq!(parse(body, 3).expect_err("bad").code, code, "{}", String::from_utf8_lossy(body));
        }
        for body in [
            &br#"{"id":1,"method":"a"}"#[..],
            br#"{"jsonrpc":"1.0","id":1,"method":"a"}"#,
            br#"{"jsonrpc":"2.0","id":1}"#,
            br#"{"jsonrpc":"2.0","id":{},"method":"a"}"#,
            br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#,
            br#"{"jsonrpc":"2.0","id":1,"method":7}"#,
            b"7",
            b"\"x\"",
        ] {
            let Ok(Payload::Single(Err(bad))) = parse(body, 3) else {
                panic!("{}", String::from_utf8_lossy(body))
            };
            assert_eq!(bad.error.code, -32600);
        }
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let deep = "[".repeat(1_000_000);
        assert_eq!(parse(deep.as_bytes(), 3).expect_err("unfinished").code, PARSE_ERROR);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"a","params":{}{}}}"#,
            "[".repeat(500_000),
            "]".repeat(500_000)
        );
        assert!(matches!(parse(body.as_bytes(), 3), Ok(Payload::Single(Ok(_)))));
    }

    #[test]
    fn responses_are_written_in_pieces() {
        let id: Box<RawValue> = RawValue::from_string("\"x\"".into()).expect("json");
        let one = Message::result(&id, Bytes::from_static(b"[1]"));
        let len_bytes = one.len_bytes();
        assert_eq!(text(one.clone()), r#"{"jsonrpc":"2.0","id":"x","result":[1]}"#);
        assert_eq!(text(one.clone()).len(), len_bytes);
        let two = Message::error(None, &RpcError::invalid_request("no"));
        assert_eq!(
            text(Message::batch(vec![one, two]).expect("two")),
            r#"[{"jsonrpc":"2.0","id":"x","result":[1]},{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}]"#
        );
        assert!(Message::batch(vec![]).is_none());
    }

    proptest::proptest! {
        /// Whatever comes in, what goes out is JSON.
        #[test]
        fn any_body_is_read_or_refused(body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            check_any(&body);
        }

        #[test]
        fn any_text_like_a_request_is_read_or_refused(
            body in r#"[\[ ]{0,2}(\{"(jsonrpc|id|method|params)":("2.0"|1|null|"x"|\[\]|\{\})(,"(jsonrpc|id|method|params)":("2.0"|7|"eth_x"|\[1\]))*\}[, ]?){0,3}[\] ]{0,2}"#
        ) {
            check_any(body.as_bytes());
        }
    }

    fn check_any(body: &[u8]) {
        let calls = match parse(body, 2) {
            Err(error) => {
                let _: serde_json::Value =
                    serde_json::from_str(&text(Message::error(None, &error))).expect("json");
                return;
            }
            Ok(Payload::Single(call)) => vec![call],
            Ok(Payload::Batch(calls)) => {
                assert!((1..=2).contains(&calls.len()));
                calls
            }
        };
        for call in calls {
            let id = match &call {
                Ok(call) => call.id,
                Err(bad) => bad.id,
            };
            let answer = Message::error(id, &RpcError::server("\u{1}\"\\"));
            let _: serde_json::Value = serde_json::from_str(&text(answer)).expect("json");
        }
    }
}
