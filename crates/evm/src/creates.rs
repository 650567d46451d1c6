//! The contracts that calls created, read from archived call traces.

use std::borrow::Cow;

use alloy_primitives::{Address, B256, hex, keccak256};
use cairn_core::{Height, StoredBlock};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{EvmError, traces};

/// The most frames of one transaction that are looked at: far above what a block's gas can pay for.
const MAX_FRAMES: usize = 1_000_000;

/// A contract that a call frame created, and that was not reverted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedContract {
    /// Where it is.
    pub address: Address,
    /// The account or contract that created it.
    pub creator: Address,
    /// keccak256 of its init code; `None` where the trace doesn't have it.
    pub init_code_hash: Option<B256>,
    /// Whether the transaction itself is the creation.
    pub is_top_level: bool,
}

/// A frame of the `callTracer`. Its calls are read one level at a time, so that deep nesting costs no stack.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type", borrow, default)]
    ty: Cow<'a, str>,
    #[serde(borrow, default)]
    from: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    to: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    input: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    calls: Vec<&'a RawValue>,
}

/// The contracts that calls created, by transaction, in the order of execution; those of frames that were reverted are left out. `None` where no
/// traces are archived or they were not read.
pub fn created_contracts(stored: &StoredBlock) -> Result<Option<Vec<Vec<CreatedContract>>>, EvmError> {
    stored.traces.as_deref().map(|traces| all(stored.facts.height, traces)).transpose()
}

/// Of each transaction of a block's stored traces.
fn all(height: Height, stored: &[u8]) -> Result<Vec<Vec<CreatedContract>>, EvmError> {
    let results = traces::results(height, stored)?;
    results.iter().enumerate().map(|(index, result)| of_transaction(height, index, *result)).collect()
}

fn of_transaction(
    height: Height,
    index: usize,
    result: Option<&RawValue>,
) -> Result<Vec<CreatedContract>, EvmError> {
    let malformed =
        |error: String| EvmError::malformed(format!("block {height}: trace of transaction {index}"), error);
    let mut created = Vec::new();
    let mut stack = Vec::from_iter(result);
    let mut frames = 0;
    while let Some(raw) = stack.pop() {
        let is_top_level = frames == 0;
        frames += 1;
        if frames > MAX_FRAMES {
            return Err(malformed(format!("it has more than {MAX_FRAMES} frames")));
        }
        let frame: Frame<'_> =
            serde_json::from_str(raw.get()).map_err(|error| malformed(error.to_string()))?;
        if frame.error.is_some_and(|error| error.get() != "null") {
            // What it created was undone, and so was what its calls created.
            continue;
        }
        if matches!(&*frame.ty, "CREATE" | "CREATE2") {
            let address = |text: &Option<Cow<'_, str>>| text.as_deref()?.parse::<Address>().ok();
            if let (Some(creator), Some(address)) = (address(&frame.from), address(&frame.to)) {
                let code = frame.input.as_deref().and_then(|input| hex::decode(input).ok());
                let init_code_hash = code.map(keccak256);
                created.push(CreatedContract { address, creator, init_code_hash, is_top_level });
            }
        }
        stack.extend(frame.calls.into_iter().rev());
    }
    Ok(created)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(trace: &str) -> Vec<CreatedContract> {
        all(Height(7), format!(r#"[{{"txHash":"0x","result":{trace}}}]"#).as_bytes()).unwrap().remove(0)
    }

    fn frame(ty: &str, to: u8, rest: &str) -> String {
        let address = |n: u8| Address::repeat_byte(n);
        format!(r#"{{"type":"{ty}","from":"{}","to":"{}","input":"0x60"{rest}}}"#, address(1), address(to))
    }

    #[test]
    fn creations_are_found_in_the_order_of_execution() {
        let inner = frame("CREATE2", 5, &format!(r#","calls":[{}]"#, frame("CREATE", 6, "")));
        let trace = frame("CREATE", 4, &format!(r#","calls":[{},{inner}]"#, frame("CALL", 9, "")));
        let found = read(&trace);
        let places: Vec<_> = found.iter().map(|found| (found.address[0], found.is_top_level)).collect();
        assert_eq!(places, [(4, true), (5, false), (6, false)]);
        assert_eq!(found[0].creator, Address::repeat_byte(1));
        assert_eq!(found[0].init_code_hash, Some(keccak256([0x60])));
    }

    #[test]
    fn e09_what_a_reverted_frame_created_was_never_there() {
        let failed = frame(
            "CALL",
            5,
            &format!(r#","calls":[{}],"error":"execution reverted""#, frame("CREATE", 6, "")),
        );
        let trace =
            frame("CALL", 4, &format!(r#","calls":[{failed},{}],"error":null"#, frame("CREATE", 7, "")));
        assert_eq!(read(&trace).iter().map(|found| found.address[0]).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn traces_as_deep_as_calls_go_and_strange_ones_are_no_trouble() {
        let mut deep = frame("CREATE", 8, "");
        for _ in 0..1024 {
            deep = frame("CALL", 4, &format!(r#","calls":[{deep}]"#));
        }
        assert_eq!(read(&deep).len(), 1);
        assert_eq!(read("{}"), []);
        assert_eq!(read(r#"{"type":"CREATE","from":null,"to":"0x12"}"#), []);
        assert!(all(Height(7), br#"[{"result":[1]}]"#).is_err());
    }
}
