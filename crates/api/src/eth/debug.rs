//! Raw bytes, and archived call traces.

use cairn_core::{Height, Parts, TxId};
use cairn_evm::{Arguments, BlockAt, EvmError, parse_block_at, parse_hash};
use serde_json::Value;
use serde_json::value::RawValue;

use super::blocks::{block_hash, block_number, item_index};
use super::transactions::Found;
use super::{EthApi, Refusal, Response};
use crate::error::RpcError;

/// Bytes as a JSON string of hex.
fn hex_json(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(bytes.len() * 2 + 4);
    out.extend_from_slice(b"\"0x");
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
    out.push(b'"');
}

fn hex_response(bytes: &[u8]) -> Response {
    let mut out = Vec::new();
    hex_json(bytes, &mut out);
    Response::from_json(out)
}

/// What a caller wants of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The archived frames.
    Frames,
    /// Without inner calls.
    TopFrames,
    /// Something that needs re-execution.
    Other,
}

fn wanted(options: &Value) -> Result<Wanted, cairn_evm::ParamError> {
    let Value::Object(options) = options else {
        return Err(cairn_evm::ParamError::new("expected an object of tracer options"));
    };
    if options.get("tracer").and_then(Value::as_str) != Some("callTracer") {
        return Ok(Wanted::Other);
    }
    let config = options.get("tracerConfig");
    let flag =
        |name: &str| config.and_then(|config| config.get(name)).and_then(Value::as_bool).unwrap_or(false);
    Ok(match (flag("withLog"), flag("onlyTopCall")) {
        (true, _) => Wanted::Other,
        (false, true) => Wanted::TopFrames,
        (false, false) => Wanted::Frames,
    })
}

/// Takes the inner calls from a top frame. The frame's own fields stay as text, whatever is nested in `calls`.
fn top_frame(frame: &RawValue) -> Result<String, RpcError> {
    let fields: Vec<(String, &RawValue)> = Fields::parse(frame.get())?;
    let mut out = String::from("{");
    for (name, value) in fields.iter().filter(|(name, _)| name != "calls") {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&serde_json::to_string(name)?);
        out.push(':');
        out.push_str(value.get());
    }
    out.push('}');
    Ok(out)
}

/// A JSON object whose values stay text.
struct Fields;

impl Fields {
    fn parse(text: &str) -> Result<Vec<(String, &RawValue)>, RpcError> {
        use serde::de::Deserializer as _;
        let mut from = serde_json::Deserializer::from_str(text);
        let fields = from.deserialize_map(Fields);
        fields.map_err(|error| {
            RpcError::internal(format!("an archived trace can't be read: {error}. Run `cairn verify`"))
        })
    }
}

impl<'de> serde::de::Visitor<'de> for Fields {
    type Value = Vec<(String, &'de RawValue)>;
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }
    fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(fields)
    }
}

/// The same for each entry of a block's traces.
fn top_frames(traces: &RawValue) -> Result<String, RpcError> {
    let entries: Vec<&RawValue> = serde_json::from_str(traces.get())?;
    let mut out = String::from("[");
    for (i, entry) in entries.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push('{');
        for (j, (name, value)) in Fields::parse(entry.get())?.into_iter().enumerate() {
            if j > 0 {
                out.push(',');
            }
            out.push_str(&serde_json::to_string(&name)?);
            out.push(':');
            // Null: the node had no trace of this transaction.
            let is_frame = name == "result" && value.get() != "null";
            if is_frame { out.push_str(&top_frame(value)?) } else { out.push_str(value.get()) }
        }
        out.push('}');
    }
    out.push(']');
    Ok(out)
}

fn not_archived(height: Height) -> RpcError {
    RpcError::server(format!(
        "the call traces of block {height} were not archived; ingest with traces on, or configure an upstream that can trace"
    ))
}

impl EthApi {
    pub(super) async fn raw_header(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let at = Arguments::new(params, 1)?.required(0, parse_block_at)?;
        match self.read().await?.block_at(at, Parts::HEADER).await? {
            Some(block) => Ok(hex_response(&block.header)),
            None => Ok(Response::null()),
        }
    }

    pub(super) async fn raw_block(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let at = Arguments::new(params, 1)?.required(0, parse_block_at)?;
        let reading = self.read().await?;
        let Some(block) = reading.block_at(at, Parts::HEADER | Parts::BODY).await? else {
            return Ok(Response::null());
        };
        self.view(&reading, block, |view| Ok(hex_response(&view.raw_block()?))).await
    }

    pub(super) async fn raw_receipts(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let at = Arguments::new(params, 1)?.required(0, parse_block_at)?;
        let reading = self.read().await?;
        let parts = Parts::BODY | Parts::RECEIPTS | Parts::EXTRAS;
        let Some(block) = reading.block_at(at, parts).await? else { return Ok(Response::null()) };
        self.view(&reading, block, |view| {
            let mut out = vec![b'['];
            for (i, receipt) in view.raw_receipts()?.iter().enumerate() {
                if i > 0 {
                    out.push(b',');
                }
                hex_json(receipt, &mut out);
            }
            out.push(b']');
            Ok(Response::from_json(out))
        })
        .await
    }

    pub(super) async fn raw_transaction(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let hash = Arguments::new(params, 1)?.required(0, parse_hash)?;
        let Some(found) = self.find_transaction(TxId(hash.0), Parts::BODY).await? else {
            return Ok(Response::null());
        };
        self.raw_of(found).await
    }

    pub(super) async fn raw_transaction_by_block_hash(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_hash(&arguments, 0)?;
        self.raw_transaction_at(at, item_index(&arguments, 1)?).await
    }

    pub(super) async fn raw_transaction_by_block_number(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_number(&arguments, 0)?;
        self.raw_transaction_at(at, item_index(&arguments, 1)?).await
    }

    async fn raw_transaction_at(&self, at: BlockAt, index: usize) -> Result<Response, RpcError> {
        let reading = self.read().await?;
        match reading.block_at(at, Parts::BODY).await? {
            Some(block) if index < block.facts.tx_count as usize => {
                self.raw_of(Found { reading, block, index }).await
            }
            _ => Ok(Response::null()),
        }
    }

    /// `null` where the node never gave the bytes (of a type that cairn doesn't know): an archive that asks this one then takes the
    /// transaction's JSON, which is stored.
    async fn raw_of(&self, Found { reading, block, index }: Found) -> Result<Response, RpcError> {
        self.view(&reading, block, move |view| match view.raw_transaction(index) {
            Ok(bytes) => Ok(hex_response(&bytes)),
            Err(EvmError::BytesUnknown { .. }) => Ok(Response::null()),
            Err(error) => Err(error.into()),
        })
        .await
    }

    pub(super) async fn trace_block_by_hash(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_hash(&arguments, 0)?;
        self.trace_block(at, &arguments).await
    }

    pub(super) async fn trace_block_by_number(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_number(&arguments, 0)?;
        self.trace_block(at, &arguments).await
    }

    async fn trace_block(&self, at: BlockAt, arguments: &Arguments<'_>) -> Result<Response, Refusal> {
        let wanted = arguments.optional(1, wanted)?.unwrap_or(Wanted::Other);
        let reading = self.read().await?;
        let Some(height) = reading.height_at(at).await? else {
            let name = match at {
                BlockAt::Hash { hash, .. } => hash.to_string(),
                BlockAt::Tag(tag) => tag.to_string(),
            };
            return Err(RpcError::server(format!("block {name} not found")).into());
        };
        if height == Height::ZERO {
            return Err(RpcError::server("genesis is not traceable").into());
        }
        if wanted == Wanted::Other {
            return Err(only_frames());
        }
        let block = reading.stored(height, Parts::TRACES).await?;
        if block.traces.is_none() {
            return Err(Refusal::Elsewhere(not_archived(height)));
        }
        let traces = self.view(&reading, block, move |view| {
            let traces = view.traces_json()?.ok_or_else(|| not_archived(height))?;
            Ok(Response::from_json(match wanted {
                Wanted::TopFrames => top_frames(&traces)?.into_bytes(),
                _ => String::from(Box::<str>::from(traces)).into_bytes(),
            }))
        });
        Ok(traces.await?)
    }

    pub(super) async fn trace_transaction(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        let arguments = Arguments::new(params, 2)?;
        let hash = arguments.required(0, parse_hash)?;
        let wanted = arguments.optional(1, wanted)?.unwrap_or(Wanted::Other);
        let Some(found) = self.find_transaction(TxId(hash.0), Parts::TRACES).await? else {
            return Err(RpcError::server("transaction not found").into());
        };
        if wanted == Wanted::Other {
            return Err(only_frames());
        }
        let (index, height) = (found.index, found.block.facts.height);
        let trace = self
            .view(&found.reading, found.block, move |view| {
                let Some(frame) = view.trace_json(index)? else { return Ok(None) };
                Ok(Some(match wanted {
                    Wanted::TopFrames => top_frame(&frame)?.into_bytes(),
                    _ => String::from(Box::<str>::from(frame)).into_bytes(),
                }))
            })
            .await?;
        match trace {
            Some(trace) => Ok(Response::from_json(trace)),
            None => Err(Refusal::Elsewhere(not_archived(height))),
        }
    }
}

/// A trace that needs re-execution.
fn only_frames() -> Refusal {
    Refusal::Elsewhere(RpcError::server(
        "only call frames are archived: ask with {\"tracer\":\"callTracer\"} (and without withLog); every other tracer needs \
         re-execution, which this server can't do without an upstream that has the state",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_say_what_is_wanted() {
        for (options, expected) in [
            (json!({"tracer": "callTracer"}), Wanted::Frames),
            (
                json!({"tracer": "callTracer", "timeout": "5s", "tracerConfig": {"withLog": false}}),
                Wanted::Frames,
            ),
            (json!({"tracer": "callTracer", "tracerConfig": {"onlyTopCall": true}}), Wanted::TopFrames),
            (json!({"tracer": "callTracer", "tracerConfig": {"withLog": true}}), Wanted::Other),
            (json!({"tracer": "prestateTracer"}), Wanted::Other),
            (json!({"disableStack": true}), Wanted::Other),
            (json!({}), Wanted::Other),
        ] {
            assert_eq!(wanted(&options), Ok(expected), "{options}");
        }
        assert!(wanted(&json!("callTracer")).is_err());
    }

    #[test]
    fn top_frames_lose_their_calls_only() {
        let deep = format!("{}1{}", r#"[{"calls":"#.repeat(2000), "}]".repeat(2000));
        let frame = format!(r#"{{"type":"CALL","value":"0x0","calls":{deep},"gas":"0x5208"}}"#);
        let raw: Box<RawValue> = RawValue::from_string(frame.clone()).expect("json");
        assert_eq!(top_frame(&raw).expect("a frame"), r#"{"type":"CALL","value":"0x0","gas":"0x5208"}"#);
        let raw: Box<RawValue> =
            RawValue::from_string(format!(r#"[{{"txHash":"0x1","result":{frame}}},{{"result":null}}]"#))
                .expect("json");
        assert_eq!(
            top_frames(&raw).expect("frames"),
            r#"[{"txHash":"0x1","result":{"type":"CALL","value":"0x0","gas":"0x5208"}},{"result":null}]"#
        );
    }

    #[test]
    fn bytes_are_written_whole() {
        let mut out = Vec::new();
        hex_json(&[0, 1, 0xab, 0xff], &mut out);
        assert_eq!(out, br#""0x0001abff""#);
        assert_eq!(hex_response(&[]).json().as_ref(), br#""0x""#);
    }
}
