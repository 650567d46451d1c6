//! The receipts of blocks, in the widest way that a node has: all of a block by its hash, all of it by number, one by one.

use cairn_evm::Checks;

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint};
use super::super::endpoint::{CallError, Way, is_null};
use super::super::outline::{self, Coverage, Outline, ReceiptOutline};
use super::super::wire::{Call, json_text, quantity};
use super::{Body, Fetch, Stop};
use crate::{Result, SourceError};
use bytes::Bytes;

/// A block's receipts.
pub(super) enum Receipts {
    /// One list.
    Whole(Bytes),
    /// One by one.
    Each(Vec<Bytes>),
}

/// Receipts as an endpoint answered them.
struct ReceiptsAnswer {
    receipts: Receipts,
    /// They were asked for by number, so each has to name the block.
    by_number: bool,
}

/// Why a block's receipts are not there.
enum Lack {
    /// The call failed.
    Call(CallError),
    /// The answer is none, or is not the block's.
    Answer(String),
}

impl Lack {
    fn words(&self) -> String {
        match self {
            Lack::Call(error) => error.words(),
            Lack::Answer(message) => message.clone(),
        }
    }

    /// The same, with what the narrower way came to.
    fn then(self, narrow: &Lack) -> Lack {
        let both = |words: String| format!("{words}; then one by one: {}", narrow.words());
        match self {
            Lack::Call(error) => Lack::Call(CallError { message: both(error.message), ..error }),
            Lack::Answer(message) => Lack::Answer(both(message)),
        }
    }
}

impl Fetch<'_> {
    /// The receipts of the bodies at the front, and whether they are of doubtful emptiness (then there is one).
    pub(super) async fn receipts(&self, bodies: &[Body]) -> Result<(Vec<Receipts>, bool), Stop> {
        let ways = self.endpoint.ways();
        let first = &bodies[0].outline;
        let mut got: Vec<Option<Receipts>> = (0..bodies.len()).map(|_| None).collect();
        let mut doubt = None;
        let mut lack = None;
        let is_refused = ways.narrows_receipts(first.height);
        let narrow_only = is_refused || ways.avoids(Way::BlockReceipts);
        // What was refused of one block says nothing of the others.
        let bodies = if is_refused { &bodies[..1] } else { bodies };
        let is_doubted = ways.doubts(Way::BlockReceipts) || ways.doubts(Way::Bloom);
        let again = if is_doubted || narrow_only { 0 } else { self.limits.not_yet_attempts };
        for attempt in 0..=again {
            self.pause_before(attempt).await;
            // Only the first block is asked for again: the others can come with the next piece.
            let asked = if attempt == 0 { bodies } else { &bodies[..1] };
            let (mut wanted, mut places) = (Vec::new(), Vec::new());
            for (at, body) in asked.iter().enumerate() {
                let bare = body.outline.txs.is_empty()
                    && !body.outline.has_bloom
                    && !self.profile.allows_extra_receipts();
                if bare {
                    got[at] = Some(Receipts::Each(Vec::new()));
                } else {
                    wanted.push(&body.outline);
                    places.push(at);
                }
            }
            let answers = self.ask_receipts(&wanted, narrow_only).await;
            for ((at, block), answer) in places.into_iter().zip(wanted).zip(answers) {
                match self.judge_receipts(block, answer).await.map_err(Stop::Failed)? {
                    Ok((receipts, false)) => got[at] = Some(receipts),
                    Ok((receipts, true)) if at == 0 => doubt = Some(receipts),
                    Err(why) if at == 0 => lack = Some(why),
                    _ => {}
                }
            }
            if got[0].is_some() {
                if doubt.is_some() {
                    ways.worked(Way::Bloom);
                }
                if lack.is_none() && matches!(got[0], Some(Receipts::Whole(_))) {
                    ways.worked(Way::BlockReceipts);
                }
                return Ok((got.into_iter().map_while(|receipts| receipts).collect(), false));
            }
            // A call has had its tries.
            if matches!(lack, Some(Lack::Call(_))) {
                break;
            }
        }
        if !narrow_only && !matches!(&lack, Some(Lack::Call(error)) if error.hint == Hint::Away) {
            let answer = self.receipts_one_by_one(first).await;
            match self.judge_receipts(first, answer).await.map_err(Stop::Failed)? {
                Ok((receipts, is_doubtful)) => {
                    match &lack {
                        Some(Lack::Call(error)) => self.endpoint.note(Way::BlockReceipts, error),
                        Some(lack) => self.endpoint.note_failed(Way::BlockReceipts, &lack.words()),
                        // Without logs in either way, nothing is wrong with the wide one.
                        None if !is_doubtful => {
                            let message =
                                format!("block {}: eth_getBlockReceipts leaves logs out", first.height);
                            self.endpoint.note_failed(Way::BlockReceipts, &message);
                        }
                        None => {}
                    }
                    if is_doubtful {
                        (doubt, lack) = (Some(receipts), None);
                    } else {
                        got[0] = Some(receipts);
                        return Ok((got.into_iter().map_while(|receipts| receipts).collect(), false));
                    }
                }
                Err(narrow) => lack = lack.map(|wide| wide.then(&narrow)),
            }
        }
        match (doubt, lack) {
            // An endpoint that gave both is not to be trusted with either.
            (Some(receipts), None) => {
                let message = format!(
                    "block {}: its bloom says that there are logs, its receipts have none",
                    first.height
                );
                self.endpoint.note_failed(Way::Bloom, &message);
                Ok((vec![receipts], true))
            }
            (_, Some(Lack::Call(error))) => Err(Stop::Failed(self.endpoint.error(error))),
            (_, Some(Lack::Answer(message))) => {
                Err(Stop::Failed(self.inconsistent(first.height, "receipts", message)))
            }
            (None, None) => Err(Stop::NotYet),
        }
    }

    /// Asks for the receipts of each block in the widest way that the node is known to have.
    async fn ask_receipts(
        &self,
        blocks: &[&Outline],
        narrow_only: bool,
    ) -> Vec<Result<ReceiptsAnswer, CallError>> {
        let endpoint = self.endpoint;
        let mut answers: Vec<Option<Result<ReceiptsAnswer, CallError>>> =
            (0..blocks.len()).map(|_| None).collect();
        let mut left: Vec<usize> = (0..blocks.len()).collect();
        if narrow_only {
            let mut each = Vec::with_capacity(blocks.len());
            for block in blocks {
                each.push(self.receipts_one_by_one(block).await);
            }
            return each;
        }
        let patience = self.patience_with(Way::BlockReceipts);
        let mut refused = None;
        for by_number in [false, true] {
            if (!by_number && endpoint.ways().avoids(Way::ReceiptsByHash)) || left.is_empty() {
                continue;
            }
            let calls: Vec<Call> = left
                .iter()
                .map(|&at| {
                    let height = blocks[at].height;
                    let block = if by_number { quantity(height.get()) } else { json_text(&blocks[at].id) };
                    Call::new("eth_getBlockReceipts", &[&block]).about(height)
                })
                .collect();
            let results = endpoint.call_many(Kind::Receipts, &calls, patience, self.memory).await;
            let asked = std::mem::take(&mut left);
            for (at, result) in asked.into_iter().zip(results) {
                match result {
                    Ok(list) => {
                        if by_number && let Some(error) = &refused {
                            endpoint.note(Way::ReceiptsByHash, error);
                        }
                        answers[at] = Some(Ok(ReceiptsAnswer { receipts: Receipts::Whole(list), by_number }));
                    }
                    // Many nodes take a number alone.
                    Err(error)
                        if !by_number && error.class == ErrorClass::Refused && error.hint == Hint::None =>
                    {
                        refused = Some(error);
                        left.push(at);
                    }
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
        }
        let missing = || Err(CallError::transient("no result"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    async fn receipts_one_by_one(&self, block: &Outline) -> Result<ReceiptsAnswer, CallError> {
        let calls: Vec<Call> = block
            .txs
            .iter()
            .map(|tx| Call::new("eth_getTransactionReceipt", &[&json_text(&tx.hash)]).about(block.height))
            .collect();
        let results = self.endpoint.call_many(Kind::Receipt, &calls, self.patience, self.memory).await;
        let receipts = results.into_iter().collect::<Result<_, _>>()?;
        Ok(ReceiptsAnswer { receipts: Receipts::Each(receipts), by_number: true })
    }

    /// The block's receipts, and whether they are of doubtful emptiness; or what is wrong with the answer.
    async fn judge_receipts(
        &self,
        block: &Outline,
        answer: Result<ReceiptsAnswer, CallError>,
    ) -> Result<Result<(Receipts, bool), Lack>, SourceError> {
        let ReceiptsAnswer { receipts, by_number } = match answer {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(Lack::Call(error))),
        };
        let block = block.clone();
        let allow_missing = self.profile.relaxes(Checks::MISSING_RECEIPTS);
        let trust_bloom = !self.profile.relaxes(Checks::BLOOM) && !self.endpoint.ways().avoids(Way::Bloom);
        self.offload(move || {
            let (method, one_by_one) = match &receipts {
                Receipts::Whole(_) => ("eth_getBlockReceipts", false),
                Receipts::Each(_) => ("eth_getTransactionReceipt", true),
            };
            // A receipt is believed to be missing only where it was asked for by itself.
            let allow_missing = allow_missing && one_by_one;
            let (receipts, read): (Receipts, Result<Vec<ReceiptOutline>, String>) = match receipts {
                Receipts::Whole(list) if is_null(&list) => {
                    (Receipts::Whole(list), Err("it has no receipts of the block".into()))
                }
                Receipts::Whole(list) => {
                    let read = outline::read_receipts(&list);
                    (Receipts::Whole(list), read)
                }
                Receipts::Each(each) => {
                    let missing = each.iter().zip(&block.txs).find(|(receipt, _)| is_null(receipt));
                    let missing = missing.map(|(_, tx)| {
                        format!(
                            "it has no receipt of transaction {}. If there is none for good, `--relax missing-receipts` stores the block \
                             without it",
                            tx.hash
                        )
                    });
                    let given: Vec<Bytes> = each.into_iter().filter(|receipt| !is_null(receipt)).collect();
                    let read = match missing.filter(|_| !allow_missing) {
                        Some(missing) => Err(missing),
                        None => given.iter().map(|receipt| outline::read_receipt(receipt)).collect(),
                    };
                    (Receipts::Each(given), read)
                }
            };
            let coverage = match read {
                Ok(read) => outline::coverage(&block, &read, by_number, allow_missing),
                Err(error) => Coverage::Wrong(error),
            };
            match coverage {
                Coverage::Whole => Ok((receipts, false)),
                Coverage::NoLogs => Ok((receipts, trust_bloom)),
                Coverage::Wrong(message) => Err(Lack::Answer(format!("{method}: {message}"))),
            }
        })
        .await
    }
}
