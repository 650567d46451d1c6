//! Call traces: what `debug_traceBlockByHash` with the `callTracer` answers, archived as it came.
//!
//! Stored as a JSON array with one `{"txHash", "result"}` a transaction, in order; `result` is null where the node gave none. Call frames nest as deep as calls do (1024), so they are
//! kept and served as text and never built as values.

use std::collections::HashMap;

use bytes::Bytes;
use cairn_core::{Height, TxId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{CheckFailure, Checks, EvmError};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(default)]
    tx_hash: Option<String>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

fn entries(height: Height, text: &[u8]) -> Result<Vec<Entry<'_>>, EvmError> {
    serde_json::from_slice(text)
        .map_err(|error| EvmError::malformed(format!("block {height}: traces"), error))
}

/// What a node's answer says of one transaction.
#[derive(Debug, Clone, Copy)]
pub enum Trace<'a> {
    /// Its top frame.
    Frame(&'a RawValue),
    /// The node has no trace of it: the chain injected it.
    None,
    /// The node could not trace it.
    Failed,
}

/// Reads a node's answer for a block of these transactions: one trace each, in their order.
///
/// Where every entry names its transaction, a transaction that none names has no trace. Else there has to be one entry a transaction, in order.
pub fn from_rpc<'a>(height: Height, answer: &'a [u8], ids: &[TxId]) -> Result<Vec<Trace<'a>>, EvmError> {
    let entries = entries(height, answer)?;
    // No root covers a trace; what disagrees with the block's own list is filed under that list's check.
    let fail =
        |message: String| EvmError::from(CheckFailure { check: Checks::TRANSACTIONS_ROOT, height, message });
    let names_all = entries.iter().all(|entry| entry.tx_hash.is_some());
    if entries.len() > ids.len() || (entries.len() < ids.len() && (entries.is_empty() || !names_all)) {
        return Err(fail(format!("traces of {} transactions, the block has {}", entries.len(), ids.len())));
    }
    let places: HashMap<String, usize> =
        ids.iter().enumerate().map(|(place, id)| (id.to_string(), place)).collect();
    let mut traces = vec![Trace::None; ids.len()];
    for (index, entry) in entries.iter().enumerate() {
        let place = match &entry.tx_hash {
            Some(hash) => *places
                .get(&hash.to_ascii_lowercase())
                .filter(|place| names_all || **place == index)
                .ok_or_else(|| {
                    fail(format!("trace {index} is of {hash}, transaction {index} is {}", ids[index]))
                })?,
            None => index,
        };
        traces[place] = match (entry.error, entry.result) {
            (None, Some(frame)) if is_frame(frame.get()) => Trace::Frame(frame),
            (None, None) if entry.tx_hash.is_some() => Trace::None,
            _ => Trace::Failed,
        };
    }
    Ok(traces)
}

/// Whether a text may be a call frame: it is an object.
fn is_frame(text: &str) -> bool {
    text.starts_with('{')
}

/// The bytes to store: an entry with the frame, or null, of each transaction.
pub fn encode(height: Height, ids: &[TxId], frames: &[Option<&RawValue>]) -> Result<Bytes, EvmError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Stored<'a> {
        tx_hash: String,
        result: Option<&'a RawValue>,
    }
    let entries: Vec<Stored<'_>> = ids
        .iter()
        .zip(frames)
        .map(|(id, frame)| Stored { tx_hash: id.to_string(), result: *frame })
        .collect();
    let bytes = serde_json::to_vec(&entries)
        .map_err(|error| EvmError::malformed(format!("block {height}: traces"), error))?;
    Ok(bytes.into())
}

/// All of a block's stored traces.
pub(crate) fn all(height: Height, stored: &[u8]) -> Result<Box<RawValue>, EvmError> {
    serde_json::from_slice(stored)
        .map_err(|error| EvmError::malformed(format!("block {height}: traces"), error))
}

/// The result of one transaction; `None` where there is none of it.
pub(crate) fn one(height: Height, stored: &[u8], index: usize) -> Result<Option<Box<RawValue>>, EvmError> {
    Ok(entries(height, stored)?.get(index).and_then(|entry| entry.result).map(ToOwned::to_owned))
}

/// The result of each transaction, in order; `None` where a transaction has none.
pub(crate) fn results(height: Height, stored: &[u8]) -> Result<Vec<Option<&RawValue>>, EvmError> {
    Ok(entries(height, stored)?.into_iter().map(|entry| entry.result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(count: u8) -> Vec<TxId> {
        (0..count).map(|n| TxId([n; 32])).collect()
    }

    fn named(n: u8, rest: &str) -> String {
        format!(r#"{{"txHash":"0x{}"{rest}}}"#, format!("{n:02X}").repeat(32))
    }

    /// What an answer comes to: `F` for a frame, `-` for none, `!` for a failure.
    fn read(answer: &str, count: u8) -> Result<String, String> {
        let traces =
            from_rpc(Height(7), answer.as_bytes(), &ids(count)).map_err(|error| error.to_string())?;
        let sign = |trace: &Trace<'_>| match trace {
            Trace::Frame(_) => 'F',
            Trace::None => '-',
            Trace::Failed => '!',
        };
        Ok(traces.iter().map(sign).collect())
    }

    #[test]
    fn each_transaction_has_a_trace_or_none_or_failed() {
        let frame = r#","result":{"a": 1}"#;
        for (answer, count, expected) in [
            ("[]".to_owned(), 0, ""),
            (format!("[{},{}]", named(0, frame), r#"{"result":{}}"#), 2, "FF"),
            // A transaction that nobody names was injected; order is no matter where all are named.
            (format!("[{}]", named(1, frame)), 2, "-F"),
            (format!("[{},{}]", named(1, frame), named(0, frame)), 2, "FF"),
            (format!("[{},{}]", named(0, frame), named(1, r#","result":null"#)), 2, "F-"),
            (format!("[{},{}]", named(0, frame), named(1, r#","error":"execution timeout""#)), 2, "F!"),
            (r#"[{"error":"execution timeout"},{"txHash":null}]"#.to_owned(), 2, "!!"),
            (format!("[{}]", named(0, r#","result":"no""#)), 1, "!"),
        ] {
            assert_eq!(read(&answer, count).as_deref(), Ok(expected), "{answer}");
        }
    }

    #[test]
    fn traces_that_do_not_fit_the_block_are_refused() {
        let other = format!("[{}]", named(5, r#","result":{}"#));
        let swapped = format!(r#"[{},{{"result":{{}}}}]"#, named(1, r#","result":{}"#));
        for (answer, count, part) in [
            ("[]", 1, "traces of 0 transactions, the block has 1"),
            (r#"[{"result":{}}]"#, 2, "traces of 1 transactions, the block has 2"),
            (other.as_str(), 1, "trace 0 is of"),
            (swapped.as_str(), 2, "trace 0 is of"),
            (r#"{"result":1}"#, 1, "malformed"),
        ] {
            let error = read(answer, count).unwrap_err();
            assert!(error.contains(part) && error.contains("block 7"), "{error}");
        }
    }

    #[test]
    fn frames_are_kept_as_they_came_with_their_hashes() {
        let frame = RawValue::from_string(r#"{"a": 1}"#.into()).unwrap();
        let stored = encode(Height(7), &ids(2), &[Some(&*frame), None]).unwrap();
        assert_eq!(one(Height(7), &stored, 0).unwrap().unwrap().get(), r#"{"a": 1}"#);
        assert!(
            one(Height(7), &stored, 1).unwrap().is_none() && one(Height(7), &stored, 2).unwrap().is_none()
        );
        let hash = "01".repeat(32);
        assert!(
            all(Height(7), &stored)
                .unwrap()
                .get()
                .ends_with(&format!(r#"{{"txHash":"0x{hash}","result":null}}]"#))
        );
        // What a cairn serves is what another one reads.
        assert!(matches!(from_rpc(Height(7), &stored, &ids(2)).unwrap()[..], [Trace::Frame(_), Trace::None]));
    }

    #[test]
    fn traces_may_nest_as_deep_as_calls() {
        let deep = format!("{}{}", r#"{"calls":["#.repeat(1024), "]}".repeat(1024));
        let answer = format!(r#"[{{"result":{deep}}}]"#);
        let [Trace::Frame(frame)] = from_rpc(Height(7), answer.as_bytes(), &ids(1)).unwrap()[..] else {
            panic!("a frame")
        };
        let stored = encode(Height(7), &ids(1), &[Some(frame)]).unwrap();
        assert!(one(Height(7), &stored, 0).unwrap().unwrap().get().len() > 10_000);
    }
}
