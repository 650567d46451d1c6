//! What a block needs beside its own JSON and its receipts.

use bytes::Bytes;
use cairn_core::{Height, TxId};
use cairn_evm::Checks;
use cairn_evm::traces::{self, Trace};
use cairn_evm::tx::is_known_type;
use serde_json::value::RawValue;

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint};
use super::super::endpoint::{CallError, Way, is_null};
use super::super::wire::{Call, json_text, quantity};
use super::{Body, Fetch};
use crate::Result;

/// Tracer options of `debug_trace…`.
const CALL_TRACER: &str = r#"{"tracer":"callTracer"}"#;

/// What a block needs beside its own JSON and its receipts.
pub(super) struct Beside {
    /// Bytes of transactions of unknown type, by index.
    pub raw_transactions: Vec<(usize, Bytes)>,
    /// Each an object; in order.
    pub ommers: Vec<Bytes>,
    /// Call traces.
    pub traces: Traces,
}

/// The call traces of a block.
#[derive(Clone)]
pub(super) enum Traces {
    /// They are not asked for.
    Unwanted,
    /// As they are stored.
    All(Bytes),
    /// Those that the node has, if any; some failed.
    Some(Option<Bytes>),
}

impl Fetch<'_> {
    /// The bytes of transactions whose type the codec doesn't know, by block and index, where the node gives them; and whether those of the first block
    /// failed. Then those of the others are not there either.
    pub(super) async fn raw_transactions(&self, bodies: &[Body]) -> (Vec<Vec<(usize, Bytes)>>, bool) {
        let mut raw: Vec<Vec<(usize, Bytes)>> = vec![Vec::new(); bodies.len()];
        let mut wanted: Vec<(usize, usize, String)> = Vec::new();
        for (at, body) in bodies.iter().enumerate() {
            for (index, tx) in body.outline.txs.iter().enumerate() {
                if tx.ty.is_some_and(|ty| !is_known_type(ty)) {
                    wanted.push((at, index, json_text(&tx.hash)));
                }
            }
        }
        if wanted.is_empty() {
            return (raw, false);
        }
        self.endpoint.meters.unknown_types(wanted.len() as u64);
        let ways = [
            (Way::DebugRawTransaction, "debug_getRawTransaction"),
            (Way::EthRawTransaction, "eth_getRawTransactionByHash"),
        ];
        let mut failed_from = bodies.len();
        for (way, method) in ways {
            if self.endpoint.ways().avoids(way) || wanted.is_empty() {
                continue;
            }
            let calls: Vec<Call> = wanted
                .iter()
                .map(|(at, _, hash)| Call::new(method, &[hash]).about(bodies[*at].outline.height))
                .collect();
            let patience = self.patience_with(way);
            let results = self.endpoint.call_many(Kind::Transaction, &calls, patience, self.memory).await;
            let mut left = Vec::new();
            let mut failure = None;
            failed_from = bodies.len();
            for ((at, index, hash), result) in wanted.into_iter().zip(results) {
                match result {
                    Ok(text) => match decode_data(&text) {
                        Some(bytes) if !bytes.is_empty() => raw[at].push((index, bytes)),
                        _ => left.push((at, index, hash)),
                    },
                    Err(error) => {
                        failed_from = failed_from.min(at);
                        failure = Some(error);
                        left.push((at, index, hash));
                    }
                }
            }
            match &failure {
                Some(error) => self.endpoint.note(way, error),
                None => self.endpoint.ways().worked(way),
            }
            wanted = left;
        }
        // What another try may give is worth one for every block but the first.
        raw.truncate(failed_from.max(1));
        (raw, failed_from == 0)
    }

    /// The ommers of the bodies at the front: a block's JSON has only their hashes.
    pub(super) async fn ommers(&self, bodies: &[Body]) -> Result<Vec<Vec<Bytes>>> {
        let mut calls = Vec::new();
        for body in bodies {
            let hash = json_text(&body.outline.id);
            let call = |index| {
                Call::new("eth_getUncleByBlockHashAndIndex", &[&hash, &quantity(index)])
                    .about(body.outline.height)
            };
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
                        if error.class == ErrorClass::Refused
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

    /// The call traces of the bodies at the front, and whether those of the first failed. Then there are none of the others.
    pub(super) async fn traces(&self, bodies: &[Body]) -> (Vec<Traces>, bool) {
        if !self.traces {
            return (vec![Traces::Unwanted; bodies.len()], false);
        }
        let ways = self.endpoint.ways();
        let bare = |body: &Body| body.outline.txs.is_empty();
        let none = |body: &Body| match bare(body) {
            true => Traces::All(Bytes::from_static(b"[]")),
            false => Traces::Some(None),
        };
        if ways.avoids(Way::Traces) {
            return (bodies.iter().map(none).collect(), false);
        }
        let narrow_only = ways.avoids(Way::BlockTraces);
        let calls: Vec<Call> = bodies
            .iter()
            .filter(|body| !bare(body) && !narrow_only)
            .map(|body| {
                Call::new("debug_traceBlockByHash", &[&json_text(&body.outline.id), CALL_TRACER])
                    .about(body.outline.height)
            })
            .collect();
        let patience = self.patience_with(Way::BlockTraces);
        let mut results = match calls.is_empty() {
            true => Vec::new(),
            false => self.endpoint.call_many(Kind::Trace, &calls, patience, self.memory).await,
        }
        .into_iter();
        let mut traces: Vec<Traces> = Vec::with_capacity(bodies.len());
        for body in bodies {
            let of_block = match bare(body) {
                true => none(body),
                false => self.traces_of(body, results.next()).await,
            };
            let failed = matches!(of_block, Traces::Some(_));
            if failed && !traces.is_empty() {
                // Worth another try, as the first block of the next piece.
                break;
            }
            traces.push(of_block);
            if failed {
                return (traces, true);
            }
        }
        (traces, false)
    }

    /// The call traces of a block: of those that the whole answer lacks, or of all where there is none, one by one.
    async fn traces_of(&self, body: &Body, whole: Option<Result<Bytes, CallError>>) -> Traces {
        let height = body.outline.height;
        let ids: Vec<TxId> = body.outline.txs.iter().map(|tx| tx.hash).collect();
        let mut frames: Vec<Frame> = vec![Frame::Failed; ids.len()];
        match whole {
            None => {}
            Some(Err(error)) if error.hint == Hint::Away => return Traces::Some(None),
            Some(Err(error)) => self.endpoint.note(Way::BlockTraces, &error),
            Some(Ok(answer)) => match read_frames(height, &answer, &ids) {
                Ok(read) => {
                    self.endpoint.ways().worked(Way::BlockTraces);
                    frames = read;
                }
                Err(error) => self.endpoint.note_failed(Way::BlockTraces, &error),
            },
        }
        let left: Vec<usize> =
            (0..ids.len()).filter(|place| matches!(frames[*place], Frame::Failed)).collect();
        if !left.is_empty() {
            let calls: Vec<Call> = left
                .iter()
                .map(|place| {
                    Call::new("debug_traceTransaction", &[&json_text(&ids[*place]), CALL_TRACER])
                        .about(height)
                })
                .collect();
            let patience = self.patience_with(Way::Traces);
            let mut failure = None;
            let results = self.endpoint.call_many(Kind::Trace, &calls, patience, self.memory).await;
            for (place, result) in left.into_iter().zip(results) {
                match result {
                    Ok(frame) if frame.starts_with(b"{") => frames[place] = Frame::Given(frame),
                    // Null, or no frame.
                    Ok(_) => {}
                    Err(error) => failure = Some(error),
                }
            }
            if !frames.iter().any(|frame| matches!(frame, Frame::Given(_))) {
                match failure {
                    Some(error) => self.endpoint.note(Way::Traces, &error),
                    None => self.endpoint.note_failed(Way::Traces, "debug_traceTransaction: no call frame"),
                }
            }
        }
        let failed = frames.iter().filter(|frame| matches!(frame, Frame::Failed)).count();
        if failed < ids.len() {
            self.endpoint.ways().worked(Way::Traces);
        }
        let encoded = (failed < ids.len()).then(|| encode_frames(height, &ids, &frames)).transpose();
        match encoded {
            Ok(Some(stored)) if failed == 0 => Traces::All(stored),
            Ok(stored) => Traces::Some(stored),
            Err(error) => {
                tracing::debug!(endpoint = %self.endpoint.name, %height, error, "call traces can't be kept");
                Traces::Some(None)
            }
        }
    }
}

/// What is known of one transaction's trace.
#[derive(Clone)]
enum Frame {
    Given(Bytes),
    /// The node has none of it.
    None,
    Failed,
}

fn read_frames(height: Height, answer: &Bytes, ids: &[TxId]) -> Result<Vec<Frame>, String> {
    let read = traces::from_rpc(height, answer, ids).map_err(|error| error.to_string())?;
    let frame = |trace| match trace {
        Trace::Frame(frame) => Frame::Given(answer.slice_ref(RawValue::get(frame).as_bytes())),
        Trace::None => Frame::None,
        Trace::Failed => Frame::Failed,
    };
    Ok(read.into_iter().map(frame).collect())
}

fn encode_frames(height: Height, ids: &[TxId], frames: &[Frame]) -> Result<Bytes, String> {
    let mut texts: Vec<Option<&RawValue>> = Vec::with_capacity(frames.len());
    for frame in frames {
        texts.push(match frame {
            Frame::Given(text) => Some(serde_json::from_slice(text).map_err(|error| error.to_string())?),
            Frame::None | Frame::Failed => None,
        });
    }
    traces::encode(height, ids, &texts).map_err(|error| error.to_string())
}

/// Bytes of a JSON string of hex.
fn decode_data(text: &[u8]) -> Option<Bytes> {
    let text: std::borrow::Cow<'_, str> = serde_json::from_slice(text).ok()?;
    text.parse::<alloy_primitives::Bytes>().ok().map(|bytes| bytes.0)
}
