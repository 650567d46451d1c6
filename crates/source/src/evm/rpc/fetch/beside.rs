//! What a block needs beside its own JSON and its receipts.

use bytes::Bytes;
use cairn_evm::Checks;

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint};
use super::super::endpoint::{CallError, Feature, is_null};
use super::super::wire::{Call, json_text, quantity};
use super::{Body, Fetch};
use crate::Result;

/// The newest EIP-2718 type that the codec decodes; raw bytes are asked for above it.
const NEWEST_KNOWN_TX_TYPE: u64 = 4;
/// Tracer options of `debug_trace…`.
const CALL_TRACER: &str = r#"{"tracer":"callTracer"}"#;

/// What a block needs beside its own JSON and its receipts.
pub(super) struct Beside {
    /// Bytes of transactions of unknown type, by index.
    pub raw_transactions: Vec<(usize, Bytes)>,
    /// Each an object; in order.
    pub ommers: Vec<Bytes>,
    /// A list; `None` where they are not asked for.
    pub traces: Option<Bytes>,
}

impl Fetch<'_> {
    /// The bytes of transactions whose type the codec doesn't know, by block and index, where the node gives them.
    pub(super) async fn raw_transactions(&self, bodies: &[Body]) -> Result<Vec<Vec<(usize, Bytes)>>> {
        let mut raw: Vec<Vec<(usize, Bytes)>> = vec![Vec::new(); bodies.len()];
        let mut wanted: Vec<(usize, usize, String)> = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            for (index, tx) in body.outline.txs.iter().enumerate() {
                if tx.ty.is_some_and(|ty| ty > NEWEST_KNOWN_TX_TYPE) {
                    wanted.push((at, index, json_text(&tx.hash)));
                }
            }
        }
        if wanted.is_empty() {
            return Ok(raw);
        }
        self.endpoint.meters.unknown_types(wanted.len() as u64);
        let ways = [
            (Feature::DebugRawTransaction, "debug_getRawTransaction"),
            (Feature::EthRawTransaction, "eth_getRawTransactionByHash"),
        ];
        for (feature, method) in ways {
            if self.endpoint.lacks(feature) || wanted.is_empty() {
                continue;
            }
            let calls: Vec<Call> = wanted.iter().map(|(_, _, hash)| Call::new(method, &[hash])).collect();
            let results =
                self.endpoint.call_many(Kind::Transaction, &calls, self.patience, self.memory).await;
            let mut left = Vec::new();
            for ((at, index, hash), result) in wanted.into_iter().zip(results) {
                match result {
                    Ok(text) => match decode_data(&text) {
                        Some(bytes) if !bytes.is_empty() => raw[at].push((index, bytes)),
                        _ => left.push((at, index, hash)),
                    },
                    Err(error) if error.class == ErrorClass::Permanent => {
                        self.endpoint.note_lack(feature);
                        left.push((at, index, hash));
                    }
                    // Not for good: a block must not be kept with less than another try would give.
                    Err(error) => return Err(self.endpoint.error(error)),
                }
            }
            wanted = left;
        }
        Ok(raw)
    }

    /// The ommers of the bodies at the front: a block's JSON has only their hashes.
    pub(super) async fn ommers(&self, bodies: &[Body]) -> Result<Vec<Vec<Bytes>>> {
        let mut calls = Vec::new();
        for body in bodies {
            let hash = json_text(&body.outline.id);
            let call = |index| Call::new("eth_getUncleByBlockHashAndIndex", &[&hash, &quantity(index)]);
            calls.extend((0..body.outline.ommers as u64).map(call));
        }
        let mut results = match calls.is_empty() {
            true => Vec::new(),
            false => self.endpoint.call_many(Kind::Header, &calls, self.patience, self.memory).await,
        }
        .into_iter();
        let mut ommers: Vec<Vec<Bytes>> = Vec::with_capacity(bodies.len());
        for body in bodies {
            let mut of_block = Vec::new();
            for index in 0..body.outline.ommers {
                match results.next() {
                    Some(Ok(ommer)) if !is_null(&ommer) => of_block.push(ommer),
                    // The codec says what to do without them.
                    Some(Err(error))
                        if error.class == ErrorClass::Permanent
                            && self.profile.relaxes(Checks::OMMERS_HASH) => {}
                    _ if !ommers.is_empty() => return Ok(ommers),
                    Some(Err(error)) => return Err(self.endpoint.error(error)),
                    _ => {
                        let message = format!("no ommer {index} of block {} yet", body.outline.id);
                        return Err(self.inconsistent(body.outline.height, "ommers", message));
                    }
                }
            }
            ommers.push(of_block);
        }
        Ok(ommers)
    }

    /// The call traces of the bodies at the front; `None` each where they are not asked for.
    pub(super) async fn traces(&self, bodies: &[Body]) -> Result<Vec<Option<Bytes>>> {
        if !self.traces {
            return Ok(vec![None; bodies.len()]);
        }
        let mut traces: Vec<Option<Bytes>> = Vec::with_capacity(bodies.len());
        let bare = |body: &Body| body.outline.txs.is_empty();
        let calls: Vec<Call> = bodies
            .iter()
            .filter(|body| !bare(body))
            .map(|body| Call::new("debug_traceBlockByHash", &[&json_text(&body.outline.id), CALL_TRACER]))
            .collect();
        let mut results =
            self.endpoint.call_many(Kind::Trace, &calls, self.patience, self.memory).await.into_iter();
        for body in bodies {
            if bare(body) {
                traces.push(Some(Bytes::from_static(b"[]")));
                continue;
            }
            let result = match results.next() {
                Some(Err(error)) if error.class == ErrorClass::TooWide || error.hint == Hint::TimedOut => {
                    self.traces_one_by_one(body).await
                }
                Some(result) => result,
                None => Err(CallError::transient("no result")),
            };
            match result {
                Ok(text) if !is_null(&text) => traces.push(Some(text)),
                _ if !traces.is_empty() => break,
                Ok(_) => {
                    let height = body.outline.height;
                    return Err(self.inconsistent(
                        height,
                        "traces",
                        format!("no traces of block {} yet", body.outline.id),
                    ));
                }
                Err(mut error) => {
                    if error.class == ErrorClass::Permanent {
                        error.message.push_str("; call traces need a node with the debug methods that keeps the block's state: use one, or turn traces off");
                    }
                    return Err(self.endpoint.error(error));
                }
            }
        }
        Ok(traces)
    }

    async fn traces_one_by_one(&self, body: &Body) -> Result<Bytes, CallError> {
        let hashes: Vec<String> = body.outline.txs.iter().map(|tx| json_text(&tx.hash)).collect();
        let calls: Vec<Call> =
            hashes.iter().map(|hash| Call::new("debug_traceTransaction", &[hash, CALL_TRACER])).collect();
        let mut list = Vec::from(*b"[");
        for (hash, result) in
            hashes.iter().zip(self.endpoint.call_many(Kind::Trace, &calls, self.patience, self.memory).await)
        {
            let result = result?;
            if is_null(&result) {
                return Ok(result);
            }
            if list.len() > 1 {
                list.push(b',');
            }
            list.extend_from_slice(format!(r#"{{"txHash":{hash},"result":"#).as_bytes());
            list.extend_from_slice(&result);
            list.push(b'}');
        }
        list.push(b']');
        Ok(list.into())
    }
}

/// Bytes of a JSON string of hex.
fn decode_data(text: &[u8]) -> Option<Bytes> {
    let text: std::borrow::Cow<'_, str> = serde_json::from_slice(text).ok()?;
    text.parse::<alloy_primitives::Bytes>().ok().map(|bytes| bytes.0)
}
