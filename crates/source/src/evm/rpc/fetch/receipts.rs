//! The receipts of blocks, in the widest way that a node has: all of a block by its hash, all of it by number, one by one.

use cairn_evm::Checks;

use super::super::batch::Kind;
use super::super::classify::{ErrorClass, Hint};
use super::super::endpoint::{CallError, Feature, is_null};
use super::super::outline::{self, Coverage, Outline, ReceiptOutline};
use super::super::wire::{Call, json_text, quantity};
use super::{Body, Fetch, Stop};
use crate::Result;
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

impl Fetch<'_> {
    /// The receipts of the bodies at the front, and whether they are of doubtful emptiness (then there is one).
    pub(super) async fn receipts(&self, bodies: &[Body]) -> Result<(Vec<Receipts>, bool), Stop> {
        let mut got: Vec<Option<Receipts>> = (0..bodies.len()).map(|_| None).collect();
        let mut doubt = None;
        let mut problem = None;
        for attempt in 0..=self.limits.not_yet_attempts {
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
            let answers = self.ask_receipts(&wanted).await;
            for ((at, block), answer) in places.into_iter().zip(wanted).zip(answers) {
                let height = block.height;
                match answer {
                    Err(error) if at == 0 => return Err(Stop::Failed(self.endpoint.error(error))),
                    Ok(None) if at == 0 => {
                        problem = Some(self.inconsistent(
                            height,
                            "receipts",
                            format!("no receipts of block {} yet", block.id),
                        ));
                    }
                    Err(_) | Ok(None) => {}
                    Ok(Some(answer)) => {
                        match self.judge_receipts(block, answer).await.map_err(Stop::Failed)? {
                            (Coverage::Whole, receipts) => got[at] = Some(receipts),
                            (Coverage::NoLogs, receipts) if at == 0 => doubt = Some(receipts),
                            (Coverage::Wrong(message), _) if at == 0 => {
                                problem = Some(self.inconsistent(height, "receipts", message))
                            }
                            _ => {}
                        }
                    }
                }
            }
            if got[0].is_some() {
                return Ok((got.into_iter().map_while(|receipts| receipts).collect(), false));
            }
        }
        match (doubt, problem) {
            // An endpoint that gave both is not to be trusted with either.
            (Some(receipts), None) => Ok((vec![receipts], true)),
            (_, Some(error)) => Err(Stop::Failed(error)),
            (None, None) => Err(Stop::NotYet),
        }
    }

    /// Asks for the receipts of each block in the widest way that the node is known to have. `None`: it says that it doesn't have them.
    async fn ask_receipts(&self, blocks: &[&Outline]) -> Vec<Result<Option<ReceiptsAnswer>, CallError>> {
        let endpoint = self.endpoint;
        let mut answers: Vec<Option<Result<Option<ReceiptsAnswer>, CallError>>> =
            (0..blocks.len()).map(|_| None).collect();
        let mut left: Vec<usize> = (0..blocks.len()).collect();
        let mut refused = false;
        for by_number in [false, true] {
            if endpoint.lacks(Feature::BlockReceipts)
                || (!by_number && endpoint.lacks(Feature::ReceiptsByHash))
                || left.is_empty()
            {
                continue;
            }
            let calls: Vec<Call> = left
                .iter()
                .map(|&at| {
                    let block =
                        if by_number { quantity(blocks[at].height.get()) } else { json_text(&blocks[at].id) };
                    Call::new("eth_getBlockReceipts", &[&block])
                })
                .collect();
            let results = endpoint.call_many(Kind::Receipts, &calls, self.patience, self.memory).await;
            let asked = std::mem::take(&mut left);
            for (at, result) in asked.into_iter().zip(results) {
                match result {
                    Ok(list) => {
                        if by_number && refused {
                            endpoint.note_lack(Feature::ReceiptsByHash);
                        }
                        let answer = (!is_null(&list))
                            .then_some(ReceiptsAnswer { receipts: Receipts::Whole(list), by_number });
                        answers[at] = Some(Ok(answer));
                    }
                    Err(error) if error.hint == Hint::MethodMissing => {
                        endpoint.note_lack(Feature::BlockReceipts);
                        left.push(at);
                    }
                    // This block alone is too large for one answer, by number too.
                    Err(error) if error.class == ErrorClass::TooWide => left.push(at),
                    Err(error) if error.class == ErrorClass::Permanent && error.hint != Hint::Refused => {
                        refused = true;
                        left.push(at);
                    }
                    Err(error) => answers[at] = Some(Err(error)),
                }
            }
        }
        for at in left {
            answers[at] = Some(self.receipts_one_by_one(blocks[at]).await);
            if refused && matches!(answers[at], Some(Ok(Some(_)))) {
                endpoint.note_lack(Feature::BlockReceipts);
            }
        }
        let missing = || Err(CallError::transient("no result"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    async fn receipts_one_by_one(&self, block: &Outline) -> Result<Option<ReceiptsAnswer>, CallError> {
        let calls: Vec<Call> = block
            .txs
            .iter()
            .map(|tx| Call::new("eth_getTransactionReceipt", &[&json_text(&tx.hash)]))
            .collect();
        let mut receipts = Vec::with_capacity(calls.len());
        for result in self.endpoint.call_many(Kind::Receipt, &calls, self.patience, self.memory).await {
            let receipt = result?;
            if is_null(&receipt) {
                return Ok(None);
            }
            receipts.push(receipt);
        }
        Ok(Some(ReceiptsAnswer { receipts: Receipts::Each(receipts), by_number: true }))
    }

    async fn judge_receipts(&self, block: &Outline, answer: ReceiptsAnswer) -> Result<(Coverage, Receipts)> {
        let ReceiptsAnswer { receipts, by_number } = answer;
        let block = block.clone();
        let allow_extra = self.profile.allows_extra_receipts();
        let trust_bloom = !self.profile.relaxes(Checks::BLOOM);
        self.offload(move || {
            let read: Result<Vec<ReceiptOutline>, String> = match &receipts {
                Receipts::Whole(list) => outline::read_receipts(list),
                Receipts::Each(each) => each.iter().map(|receipt| outline::read_receipt(receipt)).collect(),
            };
            let coverage = match read {
                Ok(read) => match outline::coverage(&block, &read, allow_extra, by_number) {
                    Coverage::NoLogs if !trust_bloom => Coverage::Whole,
                    coverage => coverage,
                },
                Err(error) => Coverage::Wrong(error),
            };
            (coverage, receipts)
        })
        .await
    }
}
