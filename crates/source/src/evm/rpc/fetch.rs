//! Whole blocks from one endpoint: bodies, then receipts, then what is missing, then assembly.
//!
//! **Order.** Blocks by number in batches; the prefix that links; their receipts, asked for by block hash, so that they can't be those of
//! another fork; raw bytes of transactions of unknown type; traces. All of one block comes from one endpoint.
//!
//! **Ways around.** What a node refuses is asked for in the next narrower way: receipts by hash, by number (each must name the
//! block), one by one; an oversized block as header and single transactions; its traces one by one. Never more heights than were asked for
//! (E13, E14).
//!
//! **Absence.** Null for a height that the endpoint announced, and receipts that don't cover the block, are asked for again a few times (E01,
//! E03). Only what stands at the front is waited for: a shorter answer is better than a late one.
//!
//! **Copies.** Answers are slices of the bodies that they came in. A block's JSON text and its receipts' are held once; then, one block at a
//! time and on a blocking thread, each text becomes a tree, and the tree becomes canonical bytes. So a block that is alone in its answers is in memory at most as its own
//! tree, its receipts' text and tree, and its bytes; with others, plus the texts of those.

use std::time::Duration;

use bytes::Bytes;
use cairn_core::{Height, HeightRange, RawBlock};
use cairn_evm::{ChainProfile, Checks};
use serde_json::Value;
use serde_json::value::RawValue;

use super::batch::Kind;
use super::classify::{ErrorClass, Hint};
use super::config::RpcLimits;
use super::endpoint::{CallError, Endpoint, Feature, Patience, is_null};
use super::memory::CallMemory;
use super::outline::{self, Coverage, Outline, ReceiptOutline};
use super::wire::{Call, json_text, quantity};
use crate::verify::Offload;
use crate::{Result, SourceError};

/// The newest EIP-2718 type that the codec decodes; raw bytes are asked for above it.
const NEWEST_KNOWN_TX_TYPE: u64 = 4;
/// Tracer options of `debug_trace…`.
const CALL_TRACER: &str = r#"{"tracer":"callTracer"}"#;

/// Why there are no more blocks.
#[derive(Debug)]
pub enum Stop {
    /// The endpoint doesn't have the next one yet.
    NotYet,
    /// The last block's bloom says that there are logs, and there are none, also when asked again: only good if nobody knows better.
    Doubtful,
    /// The next one failed.
    Failed(SourceError),
}

/// Blocks from the start of the range, and why there are no more.
#[derive(Debug)]
pub struct Part {
    /// In order and linked.
    pub blocks: Vec<RawBlock>,
    /// `None` where the range is whole, or cut to what is worth having now.
    pub stop: Option<Stop>,
}

impl Part {
    fn none(stop: Stop) -> Part {
        Part { blocks: Vec::new(), stop: Some(stop) }
    }
}

/// A block's JSON.
enum BlockJson {
    /// As it came.
    Whole(Bytes),
    /// Asked for piece by piece.
    Pieces { header: Bytes, transactions: Vec<Bytes> },
}

/// A block without its receipts.
struct Body {
    outline: Outline,
    json: BlockJson,
}

/// A block's receipts.
enum Receipts {
    /// One list.
    Whole(Bytes),
    /// One by one.
    Each(Vec<Bytes>),
}

/// What a block needs beside its own JSON and its receipts.
struct Beside {
    /// Bytes of transactions of unknown type, by index.
    raw_transactions: Vec<(usize, Bytes)>,
    /// Each an object; in order.
    ommers: Vec<Bytes>,
    /// A list; `None` where they are not asked for.
    traces: Option<Bytes>,
}

/// Receipts as an endpoint answered them.
struct ReceiptsAnswer {
    receipts: Receipts,
    /// They were asked for by number, so each has to name the block.
    by_number: bool,
}

/// One endpoint, asked for a piece of the chain.
pub struct Fetch<'a> {
    /// Who.
    pub endpoint: &'a Endpoint,
    /// What is known of the chain.
    pub profile: &'a ChainProfile,
    /// Whether call traces belong to a block.
    pub traces: bool,
    /// Sizes, counts and times.
    pub limits: &'a RpcLimits,
    /// How long failures are put up with.
    pub patience: Patience,
    /// What answers are charged to.
    pub memory: &'a std::sync::Arc<CallMemory>,
}

impl Fetch<'_> {
    /// The blocks of `range` from its start, as many as are there and link.
    pub async fn piece(&self, range: HeightRange) -> Part {
        let (mut bodies, stop) = match self.bodies(range).await {
            Ok(bodies) => bodies,
            Err(stop) => return Part::none(stop),
        };
        if bodies.is_empty() {
            return Part { blocks: Vec::new(), stop };
        }
        let (receipts, doubtful) = match self.receipts(&bodies).await {
            Ok(receipts) => receipts,
            Err(stop) => return Part::none(stop),
        };
        bodies.truncate(receipts.len());
        let beside = async {
            let raw_transactions = self.raw_transactions(&bodies).await?;
            let ommers = self.ommers(&bodies).await?;
            let traces = self.traces(&bodies).await?;
            let whole = ommers.len().min(traces.len());
            let beside = raw_transactions.into_iter().zip(ommers).zip(traces);
            Ok((
                whole,
                beside
                    .map(|((raw_transactions, ommers), traces)| Beside { raw_transactions, ommers, traces })
                    .collect(),
            ))
        };
        let (whole, beside) = match beside.await {
            Ok(beside) => beside,
            Err(error) => return Part::none(Stop::Failed(error)),
        };
        bodies.truncate(whole);
        let mut part = self.assemble(bodies, receipts, beside).await;
        if part.stop.is_none() && doubtful {
            part.stop = Some(Stop::Doubtful);
        }
        part
    }

    /// The linked bodies at the front of `range`. With a stop only where there are none.
    async fn bodies(&self, range: HeightRange) -> Result<(Vec<Body>, Option<Stop>), Stop> {
        let mut ask = range;
        for attempt in 0..=self.limits.not_yet_attempts {
            self.pause_before(attempt).await;
            let calls: Vec<Call> = ask
                .iter()
                .map(|height| Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "true"]))
                .collect();
            let mut results =
                self.endpoint.call_many(Kind::Block, &calls, self.patience, self.memory).await.into_iter();
            let Some(first) = results.next() else { return Ok((Vec::new(), None)) };
            match first {
                Ok(block) if is_null(&block) => {
                    if self.endpoint.head().is_some_and(|head| head < range.start()) {
                        return Err(Stop::NotYet);
                    }
                    // The first one alone is waited for.
                    ask = HeightRange::one(range.start());
                }
                Ok(first) => {
                    let texts: Vec<Bytes> = std::iter::once(first)
                        .chain(results.map_while(|result| result.ok().filter(|block| !is_null(block))))
                        .collect();
                    return Ok((self.outlines(range, texts).await?, None));
                }
                Err(error) if error.class == ErrorClass::TooWide => {
                    return self.narrow_body(range.start(), error).await.map(|body| (vec![body], None));
                }
                Err(error) => return Err(Stop::Failed(self.endpoint.error(error))),
            }
        }
        Err(Stop::NotYet)
    }

    /// Reads the outlines of blocks and keeps those that link.
    async fn outlines(&self, range: HeightRange, texts: Vec<Bytes>) -> Result<Vec<Body>, Stop> {
        let read = move || {
            let mut bodies: Vec<Body> = Vec::with_capacity(texts.len());
            for (height, text) in range.iter().zip(texts) {
                let outline = match outline::read_block(&text) {
                    Ok(outline) if outline.height == height => outline,
                    Ok(outline) => return (bodies, Some((height, format!("got height {}", outline.height)))),
                    Err(error) => return (bodies, Some((height, error))),
                };
                if bodies.last().is_some_and(|before| before.outline.id != outline.parent_id) {
                    break;
                }
                bodies.push(Body { outline, json: BlockJson::Whole(text) });
            }
            (bodies, None)
        };
        let (bodies, problem) = self.offload(read).await.map_err(Stop::Failed)?;
        match problem {
            Some((height, message)) if bodies.is_empty() => {
                Err(Stop::Failed(self.inconsistent(height, "block", message)))
            }
            _ => Ok(bodies),
        }
    }

    /// A block that is too large for one answer: its header, then its transactions one by one, by block hash.
    async fn narrow_body(&self, height: Height, whole: CallError) -> Result<Body, Stop> {
        let failed = |error: CallError| Stop::Failed(self.endpoint.error(error));
        let call = Call::new("eth_getBlockByNumber", &[&quantity(height.get()), "false"]);
        let header =
            self.endpoint.call(Kind::Header, call, self.patience, self.memory).await.map_err(Stop::Failed)?;
        if is_null(&header) {
            return Err(Stop::NotYet);
        }
        let outline = outline::read_block(&header)
            .map_err(|error| Stop::Failed(self.inconsistent(height, "block", error)))?;
        if outline.height != height {
            return Err(Stop::Failed(self.inconsistent(
                height,
                "block",
                format!("got height {}", outline.height),
            )));
        }
        if outline.txs.is_empty() {
            // Nothing to ask for piece by piece: it is too large as it is.
            return Err(failed(whole));
        }
        let hash = json_text(&outline.id);
        let calls: Vec<Call> = (0..outline.txs.len() as u64)
            .map(|index| Call::new("eth_getTransactionByBlockHashAndIndex", &[&hash, &quantity(index)]))
            .collect();
        let mut transactions = Vec::with_capacity(calls.len());
        let mut types = Vec::with_capacity(calls.len());
        let results = self.endpoint.call_many(Kind::Transaction, &calls, self.patience, self.memory).await;
        for (tx, result) in outline.txs.iter().zip(results) {
            let text = result.map_err(failed)?;
            if is_null(&text) {
                // The block is not on the node's chain any more, or not quite there.
                return Err(Stop::NotYet);
            }
            let found = outline::read_tx(&text)
                .map_err(|error| Stop::Failed(self.inconsistent(height, "transactions", error)))?;
            if found.hash != tx.hash {
                let message =
                    format!("the block lists transaction {}, asked by index it is {}", tx.hash, found.hash);
                return Err(Stop::Failed(self.inconsistent(height, "transactions", message)));
            }
            types.push(found);
            transactions.push(text);
        }
        let outline = Outline { txs: types, ..outline };
        Ok(Body { outline, json: BlockJson::Pieces { header, transactions } })
    }

    /// The receipts of the bodies at the front, and whether they are of doubtful emptiness (then there is one).
    async fn receipts(&self, bodies: &[Body]) -> Result<(Vec<Receipts>, bool), Stop> {
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
        self.offload(move || {
            let read: Result<Vec<ReceiptOutline>, String> = match &receipts {
                Receipts::Whole(list) => outline::read_receipts(list),
                Receipts::Each(each) => each.iter().map(|receipt| outline::read_receipt(receipt)).collect(),
            };
            let coverage = match read {
                Ok(read) => outline::coverage(&block, &read, allow_extra, by_number),
                Err(error) => Coverage::Wrong(error),
            };
            (coverage, receipts)
        })
        .await
    }

    /// The bytes of transactions whose type the codec doesn't know, by block and index, where the node gives them.
    async fn raw_transactions(&self, bodies: &[Body]) -> Result<Vec<Vec<(usize, Bytes)>>> {
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
    async fn ommers(&self, bodies: &[Body]) -> Result<Vec<Vec<Bytes>>> {
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
    async fn traces(&self, bodies: &[Body]) -> Result<Vec<Option<Bytes>>> {
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

    /// Builds the blocks, one at a time, on a blocking thread.
    async fn assemble(&self, bodies: Vec<Body>, receipts: Vec<Receipts>, beside: Vec<Beside>) -> Part {
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
                    Stop::Failed(self.inconsistent(height, problem.check, problem.message))
                });
                Part { blocks, stop }
            }
        }
    }

    async fn pause_before(&self, attempt: u32) {
        if let Some(doublings) = attempt.checked_sub(1) {
            let ms = self.limits.not_yet_pause_ms.saturating_mul(1 << doublings.min(6));
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
        Offload::Blocking.run(self.endpoint.name.as_str(), work).await
    }

    fn inconsistent(
        &self,
        height: Height,
        check: impl Into<String>,
        message: impl AsRef<str>,
    ) -> SourceError {
        SourceError::Inconsistent {
            endpoint: self.endpoint.name.to_string(),
            height,
            check: check.into(),
            message: self.endpoint.name.scrub(message.as_ref()),
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
    let listed = body.outline.txs.len();
    let height = body.outline.height;
    let parse = |text: Bytes, part: &str| {
        serde_json::from_slice::<Value>(&text).map_err(|error| Problem::json(part, &error))
    };
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
        Receipts::Whole(text) => {
            serde_json::from_slice(&text).map_err(|error| Problem::json("receipts", &error))?
        }
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
    if let Some(text) = beside.traces {
        let answer: &RawValue =
            serde_json::from_slice(&text).map_err(|error| Problem::json("traces", &error))?;
        let listed = &built.transactions[..listed.min(built.transactions.len())];
        built.traces = Some(cairn_evm::traces::from_rpc(height, answer, listed).map_err(codec)?);
    }
    Ok(built)
}

/// Bytes of a JSON string of hex.
fn decode_data(text: &[u8]) -> Option<Bytes> {
    let text: std::borrow::Cow<'_, str> = serde_json::from_slice(text).ok()?;
    text.parse::<alloy_primitives::Bytes>().ok().map(|bytes| bytes.0)
}
