//! Blocks from the texts that make them, one at a time.

use bytes::Bytes;
use cairn_core::RawBlock;
use cairn_evm::{ChainProfile, Checks};
use serde_json::Value;

use super::beside::{Beside, Traces};
use super::receipts::Receipts;
use super::{BlockJson, Body, Fetch, Part, Stop};
use crate::Result;

impl Fetch<'_> {
    /// Builds the blocks, one at a time, on a blocking thread.
    pub(super) async fn assemble(
        &self,
        bodies: Vec<Body>,
        receipts: Vec<Receipts>,
        beside: Vec<Beside>,
    ) -> Part {
        let profile = *self.profile;
        let build = move || {
            let mut blocks: Vec<RawBlock> = Vec::with_capacity(bodies.len());
            for ((body, receipts), beside) in bodies.into_iter().zip(receipts).zip(beside) {
                let height = body.outline.height;
                match build_block(body, receipts, beside, &profile) {
                    // The hash is recomputed now; what doesn't link by it is another fork's, or a lie.
                    Ok(block)
                        if blocks.last().is_some_and(|before| before.facts.id != block.facts.parent_id) =>
                    {
                        break;
                    }
                    Ok(block) => blocks.push(block),
                    Err(problem) => return (blocks, Some((height, problem))),
                }
            }
            (blocks, None)
        };
        match self.offload(build).await {
            Err(error) => Part::none(Stop::Failed(error)),
            Ok((blocks, problem)) => {
                let stop = problem.map(|(height, problem)| {
                    self.endpoint.ways().refuse_receipts(height);
                    Stop::Failed(self.inconsistent(height, problem.check, problem.message))
                });
                Part { blocks, stop }
            }
        }
    }
}

/// Why a block could not be built.
struct Problem {
    check: String,
    message: String,
}

impl Problem {
    fn json(part: &str, error: &serde_json::Error) -> Problem {
        Problem { check: part.to_owned(), message: format!("malformed JSON: {error}") }
    }
}

/// One block from its texts. Each text is dropped as soon as it is a tree.
fn build_block(
    body: Body,
    receipts: Receipts,
    beside: Beside,
    profile: &ChainProfile,
) -> Result<RawBlock, Problem> {
    let parse =
        |text: Bytes, part: &str| cairn_evm::json::parse(&text).map_err(|error| Problem::json(part, &error));
    let block = match body.json {
        BlockJson::Whole(text) => parse(text, "block")?,
        BlockJson::Pieces { header, transactions } => {
            let mut block = parse(header, "block")?;
            let transactions = transactions
                .into_iter()
                .map(|text| parse(text, "transactions"))
                .collect::<Result<Vec<_>, _>>()?;
            block["transactions"] = Value::Array(transactions);
            block
        }
    };
    let receipts: Vec<Value> = match receipts {
        Receipts::Whole(text) => match parse(text, "receipts")? {
            Value::Array(receipts) => receipts,
            _ => return Err(Problem { check: "receipts".into(), message: "they are no list".into() }),
        },
        Receipts::Each(texts) => {
            texts.into_iter().map(|text| parse(text, "receipts")).collect::<Result<_, _>>()?
        }
    };
    let codec = |error: cairn_evm::EvmError| match error {
        cairn_evm::EvmError::Inconsistent(failure) => {
            Problem { check: failure.check.to_string(), message: failure.message }
        }
        other => Problem { check: "codec".into(), message: other.to_string() },
    };
    let ommers =
        beside.ommers.into_iter().map(|text| parse(text, "ommers")).collect::<Result<Vec<_>, _>>()?;
    let extra = cairn_evm::Beside { raw_transactions: beside.raw_transactions, ommers };
    let mut built = cairn_evm::from_rpc_with(block, receipts, extra, profile).map_err(codec)?;
    match beside.traces {
        Traces::Unwanted => {}
        Traces::All(stored) => built.traces = Some(stored),
        Traces::Some(stored) => {
            built.traces = stored;
            built.facts.unverified |= Checks::MISSING_TRACES.bits();
        }
    }
    Ok(built)
}
