//! Call traces: what `debug_traceBlockByHash` with the `callTracer` answers, archived as it came.
//!
//! Stored as a JSON array with one `{"txHash", "result"}` a transaction, in order. Call frames nest as deep as calls do (1024), so they are
//! kept and served as text and never built as values.

use bytes::Bytes;
use cairn_core::{Height, TxFacts};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{CheckFailure, Checks, EvmError};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    #[serde(default)]
    tx_hash: Option<String>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

fn entries(height: Height, text: &[u8]) -> Result<Vec<Entry<'_>>, EvmError> {
    serde_json::from_slice(text)
        .map_err(|error| EvmError::malformed(format!("block {height}: traces"), error))
}

/// Checks a node's answer for a block of `listed` transactions (those of its body) and returns the bytes to store.
///
/// There has to be one entry a transaction, in order, with its result; hashes are compared where the node gave them, and added where it
/// didn't. An entry with an error in place of a result is an error: a tracer that timed out is no trace.
pub fn from_rpc(height: Height, answer: &RawValue, listed: &[TxFacts]) -> Result<Bytes, EvmError> {
    let mut entries = entries(height, answer.get().as_bytes())?;
    // No root covers a trace; what disagrees with the block's own list is filed under that list's check.
    let fail =
        |message: String| EvmError::from(CheckFailure { check: Checks::TRANSACTIONS_ROOT, height, message });
    if entries.len() != listed.len() {
        return Err(fail(format!(
            "traces of {} transactions, the block has {}",
            entries.len(),
            listed.len()
        )));
    }
    for (index, (entry, facts)) in entries.iter_mut().zip(listed).enumerate() {
        if let Some(error) = entry.error {
            let text: String = error.get().chars().take(200).collect();
            return Err(fail(format!("the trace of transaction {index} is an error: {text}")));
        }
        if entry.result.is_none() {
            return Err(fail(format!("the trace of transaction {index} has no result")));
        }
        let id = facts.id.to_string();
        if let Some(hash) = &entry.tx_hash
            && !hash.eq_ignore_ascii_case(&id)
        {
            return Err(fail(format!("trace {index} is of {hash}, transaction {index} is {id}")));
        }
        entry.tx_hash = Some(id);
    }
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
    use cairn_core::{TxId, TxStatus};

    use super::*;

    fn facts(count: u8) -> Vec<TxFacts> {
        let one = |n| TxFacts { id: TxId([n; 32]), sender: Bytes::new(), status: TxStatus::Ok };
        (0..count).map(one).collect()
    }

    fn read(answer: &str, listed: &[TxFacts]) -> Result<Bytes, EvmError> {
        from_rpc(Height(7), &RawValue::from_string(answer.into()).unwrap(), listed)
    }

    #[test]
    fn traces_are_kept_as_they_came_with_their_hashes() {
        let hash = format!("0x{}", "00".repeat(32));
        let stored =
            read(&format!(r#"[{{"txHash":"{hash}","result":{{"a": 1}}}},{{"result":{{}}}}]"#), &facts(2))
                .unwrap();
        assert_eq!(one(Height(7), &stored, 0).unwrap().unwrap().get(), r#"{"a": 1}"#);
        assert_eq!(one(Height(7), &stored, 1).unwrap().unwrap().get(), "{}");
        assert!(one(Height(7), &stored, 2).unwrap().is_none());
        assert!(all(Height(7), &stored).unwrap().get().contains(&format!("0x{}", "01".repeat(32))));
        assert_eq!(&read("[]", &[]).unwrap()[..], b"[]");
    }

    #[test]
    fn traces_that_do_not_fit_the_block_are_refused() {
        let other = format!(r#"[{{"txHash":"0x{}","result":{{}}}}]"#, "05".repeat(32));
        for (answer, part) in [
            ("[]", "traces of 0 transactions, the block has 1"),
            (other.as_str(), "trace 0 is of"),
            (r#"[{"error":"execution timeout"}]"#, "execution timeout"),
            (r#"[{"txHash":null}]"#, "has no result"),
            (r#"{"result":1}"#, "malformed"),
        ] {
            let error = read(answer, &facts(1)).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("block 7"), "{error}");
        }
    }

    #[test]
    fn traces_may_nest_as_deep_as_calls() {
        let deep = format!(r#"[{{"result":{}{}}}]"#, r#"{"calls":["#.repeat(1024), "]}".repeat(1024));
        let stored = read(&deep, &facts(1)).unwrap();
        assert!(one(Height(7), &stored, 0).unwrap().unwrap().get().len() > 10_000);
    }
}
