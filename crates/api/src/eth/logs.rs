//! `eth_getLogs`: the index names candidate blocks, their receipts decide.
//!
//! Cost follows the candidates, not the width of the range. Memory is bounded by the response limit, one chunk of blocks, and the
//! block at hand. The result is never cut short: it is whole, or an error with a smaller range that works.

use std::time::Duration;

use cairn_core::{BlockId, Height, HeightRange, IndexKey, Parts, StoredBlock};
use cairn_evm::{
    Arguments, BlockSelector, BlockView, FilterLimits, LogFilter, RangeError, parse_filter, resolve_range,
};
use cairn_store::LogQuery;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::read::{Reading, Reorganised, size_bytes, unknown_tag, work};
use super::{EthApi, Response};
use crate::error::{INVALID_PARAMS, LIMIT_EXCEEDED, RESPONSE_TOO_LARGE, RpcError, TIMEOUT};

/// What a log needs of its block.
pub(crate) const LOG_PARTS: Parts = Parts::RECEIPTS.union(Parts::TRANSACTIONS).union(Parts::EXTRAS);

/// Heights that are looked at under one snapshot: their rows are counted, which takes a part of its time.
const WINDOW_HEIGHTS: u64 = 1_000_000;
/// Candidates that are asked for at once.
const PAGE_HEIGHTS: usize = 512;
/// Decompressed bytes that are read at once (one block may be more).
const CHUNK_BYTES: u64 = 4 << 20;
/// How often a query begins again when a reorg changes what it has read.
pub(super) const MAX_STARTS: usize = 4;

impl EthApi {
    /// The limits on a filter's lists.
    pub(crate) fn filter_limits(&self) -> FilterLimits {
        FilterLimits {
            max_addresses: self.limits.max_filter_values,
            max_topics_per_position: self.limits.max_filter_values,
        }
    }

    pub(super) async fn get_logs(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let limits = self.filter_limits();
        let (selector, filter) =
            Arguments::new(params, 1)?.required(0, |value| parse_filter(value, &limits))?;
        self.logs(selector, &filter).await
    }

    /// A little before the hard limit, so that the answer can be an error with a smaller range.
    pub(super) fn log_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.limits.request_timeout_ms.saturating_mul(9) / 10)
    }

    /// The logs of these blocks that match.
    pub(super) async fn logs(
        &self,
        selector: BlockSelector,
        filter: &LogFilter,
    ) -> Result<Response, RpcError> {
        let deadline = self.log_deadline();
        for _ in 0..MAX_STARTS {
            let mut reading = self.read().await?;
            let (range, one_block) = match selector {
                BlockSelector::Hash(hash) => {
                    let Some(height) = reading.snapshot().find_block(BlockId(hash.0)).await? else {
                        return Err(RpcError::server(format!("unknown block {hash}")));
                    };
                    (HeightRange::one(height), true)
                }
                BlockSelector::Range { from, to } => {
                    let range = self.log_range(&reading, from, to)?;
                    (range, range.len() == 1)
                }
            };
            let scan = Scan::new(range, one_block, filter.clone(), self, deadline);
            match scan.run(&mut reading).await? {
                Ok(json) => return Ok(Response::from_json(json)),
                Err(Reorganised) => continue,
            }
        }
        Err(moved_too_often())
    }

    fn log_range(
        &self,
        reading: &Reading,
        from: cairn_evm::BlockTag,
        to: cairn_evm::BlockTag,
    ) -> Result<HeightRange, RpcError> {
        let heights = reading.tag_heights()?;
        let (first, last) = resolve_range(from, to, &heights).map_err(|error| match error {
            RangeError::Invalid(error) => RpcError::from(error),
            RangeError::UnknownTag(tag) => unknown_tag(tag),
        })?;
        if first < heights.earliest {
            return Err(RpcError::pruned(Height(first), Height(heights.earliest)));
        }
        let range = HeightRange::inclusive(Height(first), Height(last));
        if let Some(max) = self.limits.max_log_range_blocks.filter(|max| range.len() > *max) {
            let hint = Height(first.saturating_add(max.max(1) - 1));
            return Err(with_hint(
                INVALID_PARAMS,
                format!("query exceeds max block range {max}."),
                range,
                hint,
                max,
            ));
        }
        Ok(range)
    }
}

/// [`MAX_STARTS`] were not enough.
pub(super) fn moved_too_often() -> RpcError {
    RpcError::new(TIMEOUT, "the chain reorganised again and again while it was being read; try again")
}

/// An error that says which smaller range works; clients parse "Try with this block range [0xA, 0xB]".
pub(super) fn with_hint(code: i32, what: String, range: HeightRange, last: Height, limit: u64) -> RpcError {
    let (from, to) = (format!("0x{:x}", range.start().get()), format!("0x{:x}", last.get()));
    RpcError {
        code,
        message: format!("{what} Try with this block range [{from}, {to}]."),
        data: Some(json!({ "from": from, "to": to, "limit": limit })),
    }
}

/// The first of the blocks at `heights`, as many as a chunk takes; none where there are no heights.
async fn chunk(
    reading: &mut Reading,
    heights: &[Height],
    highest: Height,
) -> Result<Result<Vec<StoredBlock>, Reorganised>, RpcError> {
    let Some(first) = heights.first() else { return Ok(Ok(Vec::new())) };
    if let Err(moved) = reading.renew_if_old(highest).await? {
        return Ok(Err(moved));
    }
    let blocks = reading.snapshot().blocks_at(heights, LOG_PARTS, CHUNK_BYTES).await?;
    if blocks.is_empty() {
        return Err(RpcError::internal(format!("block {first} could not be read")));
    }
    Ok(Ok(blocks))
}

/// One pass over a range.
pub(super) struct Scan {
    range: HeightRange,
    one_block: bool,
    filter: LogFilter,
    groups: Vec<Vec<IndexKey>>,
    max_results: usize,
    max_bytes: usize,
    deadline: Instant,
    limit_ms: u64,
    out: Vec<u8>,
    results: usize,
}

impl Scan {
    pub(super) fn new(
        range: HeightRange,
        one_block: bool,
        filter: LogFilter,
        api: &EthApi,
        deadline: Instant,
    ) -> Self {
        Scan {
            range,
            one_block,
            groups: filter.groups(),
            filter,
            max_results: api.limits.max_log_results,
            max_bytes: api.limits.max_response_bytes,
            deadline,
            limit_ms: api.limits.request_timeout_ms,
            out: vec![b'['],
            results: 0,
        }
    }

    /// Puts logs before those of the range, within the same limits.
    pub(super) fn put(&mut self, logs: &[Box<RawValue>], height: Height) -> Result<(), RpcError> {
        for log in logs {
            self.out.extend_from_slice(log.get().as_bytes());
            self.out.push(b',');
        }
        self.results += logs.len();
        self.demand_limits(height)
    }

    pub(super) async fn run(
        mut self,
        reading: &mut Reading,
    ) -> Result<Result<Vec<u8>, Reorganised>, RpcError> {
        let highest = self.range.last().unwrap_or(self.range.start());
        let query = LogQuery { groups: std::mem::take(&mut self.groups) };
        let mut from = self.range.start();
        while from < self.range.end() {
            if Instant::now() >= self.deadline {
                return Err(self.out_of_time(from));
            }
            if let Err(moved) = reading.renew_if_old(highest).await? {
                return Ok(Err(moved));
            }
            let end = Height(from.get().saturating_add(WINDOW_HEIGHTS)).min(self.range.end());
            let page =
                reading.snapshot().log_candidates(HeightRange::new(from, end), &query, PAGE_HEIGHTS).await?;
            from = page.last().filter(|_| page.len() >= PAGE_HEIGHTS).map_or(end, |last| last.next());
            let mut at = 0;
            let mut blocks = Vec::new();
            // The next chunk is read while this one is filtered.
            while at < page.len() || !blocks.is_empty() {
                if Instant::now() >= self.deadline {
                    return Err(self.out_of_time(page[at.min(page.len() - 1)]));
                }
                let filtered = self.take(std::mem::take(&mut blocks));
                let (filtered, read) = tokio::join!(filtered, chunk(reading, &page[at..], highest));
                self = filtered?;
                match read? {
                    Ok(read) => blocks = read,
                    Err(moved) => return Ok(Err(moved)),
                }
                at += blocks.len();
            }
        }
        // Each log left a comma behind it.
        if self.results > 0 {
            self.out.pop();
        }
        self.out.push(b']');
        Ok(Ok(self.out))
    }

    /// Filters a chunk of blocks, off the async threads where it is large.
    async fn take(mut self, blocks: Vec<StoredBlock>) -> Result<Self, RpcError> {
        let bytes = blocks.iter().map(size_bytes).sum();
        work(bytes, move || {
            for block in blocks {
                self.take_block(block)?;
            }
            Ok(self)
        })
        .await
    }

    fn take_block(&mut self, block: StoredBlock) -> Result<(), RpcError> {
        let height = block.facts.height;
        self.results += BlockView::decode(block, None)?.write_logs(&self.filter, false, &mut self.out)?;
        self.demand_limits(height)
    }

    fn demand_limits(&self, height: Height) -> Result<(), RpcError> {
        if !self.one_block && self.results > self.max_results {
            return Err(self.too_many(height));
        }
        if self.out.len() > self.max_bytes {
            return Err(self.too_large(height));
        }
        Ok(())
    }

    /// The last height before `height`, or the first of the range: strictly less than the whole where that is more than one block.
    fn before(&self, height: Height) -> Height {
        height.prev().unwrap_or(height).max(self.range.start())
    }

    fn too_many(&self, height: Height) -> RpcError {
        let max = self.max_results;
        let what = format!("query exceeds max results {max}.");
        with_hint(LIMIT_EXCEEDED, what, self.range, self.before(height), max as u64)
    }

    fn too_large(&self, height: Height) -> RpcError {
        let max = self.max_bytes;
        if height == self.range.start() {
            return RpcError::new(
                RESPONSE_TOO_LARGE,
                format!(
                    "the matching logs of block {height} alone are more than {max} bytes; narrow the filter by address or topics"
                ),
            );
        }
        let what = format!("query exceeds max response size of {max} bytes.");
        with_hint(RESPONSE_TOO_LARGE, what, self.range, self.before(height), max as u64)
    }

    fn out_of_time(&self, next: Height) -> RpcError {
        let done = next.since(self.range.start());
        let ms = self.limit_ms;
        if done < 2 {
            return RpcError::timeout(ms);
        }
        // Half of what was done in the time, so that it works on a slower day too.
        let last = Height(self.range.start().get() + done / 2 - 1);
        with_hint(TIMEOUT, format!("query exceeds the time limit of {ms} ms."), self.range, last, ms)
    }
}
