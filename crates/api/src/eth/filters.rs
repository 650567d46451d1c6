//! Filters that are polled: `eth_newFilter`, `eth_newBlockFilter`, `eth_getFilterChanges`, `eth_getFilterLogs`, `eth_uninstallFilter`.
//!
//! A filter is what its caller asked for and a [`Place`]: how far the caller has been told. Changes are read from the store when they are
//! asked for, as [`super::logs`] reads them, with `removed: true` for what reorgs took away since. Answers are whole, within the limits
//! of `eth_getLogs`, or an error; the place moves only when the answer goes out ([`Moved`]).
//!
//! Bounds: filters in all, for one address, and their bytes; one that nobody asks for is forgotten after a while.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_core::{BlockRef, Height, HeightRange, Parts};
use cairn_evm::{Arguments, BlockSelector, BlockTag, BlockView, LogFilter, ParamError, parse_filter};
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::logs::{LOG_PARTS, MAX_STARTS, Scan, moved_too_often, with_hint};
use super::place::Place;
use super::read::{Reading, Reorganised, size_bytes, work};
use super::{EthApi, NOT_SUPPORTED, Response};
use crate::error::{LIMIT_EXCEEDED, RpcError};
use crate::limits::RpcLimits;

/// What a filter takes beside its addresses and topics, about.
const FILTER_BYTES: usize = 512;

/// What a filter tells of.
#[derive(Debug)]
enum Subject {
    /// The hashes of new blocks.
    Blocks,
    /// New logs.
    Logs(Box<LogSubject>),
}

#[derive(Debug)]
struct LogSubject {
    from: BlockTag,
    to: BlockTag,
    filter: LogFilter,
}

impl LogSubject {
    /// Which of the blocks that come it tells of: tags are no bound.
    fn heights(&self) -> HeightRange {
        let from = match self.from {
            BlockTag::Number(number) => Height(number),
            _ => Height::ZERO,
        };
        match self.to {
            BlockTag::Number(number) => HeightRange::new(from, Height(number.saturating_add(1))),
            _ => HeightRange::new(from, Height(u64::MAX)),
        }
    }
}

impl Subject {
    fn size_bytes(&self) -> usize {
        FILTER_BYTES
            + match self {
                Subject::Blocks => 0,
                Subject::Logs(logs) => {
                    let topics: usize = logs.filter.topics().iter().flatten().map(Vec::len).sum();
                    logs.filter.addresses().len() * 20 + topics * 32
                }
            }
    }
}

/// A filter, as its callers share it.
#[derive(Debug)]
struct Filter {
    subject: Subject,
    /// Locked from the reading of changes until their answer goes out.
    place: Arc<AsyncMutex<Place>>,
}

struct Installed {
    filter: Arc<Filter>,
    owner: Option<IpAddr>,
    used: Instant,
}

/// How far a caller has been told once an answer is on its way. Dropped instead, the filter tells the same again.
pub(crate) struct Moved {
    place: OwnedMutexGuard<Place>,
    to: Place,
}

impl Moved {
    /// The answer is on its way.
    pub(crate) fn settle(mut self) {
        *self.place = self.to;
    }
}

/// The filters of one server.
#[derive(Default)]
pub(super) struct Filters {
    installed: Mutex<HashMap<String, Installed>>,
    ids: RandomState,
}

fn not_found() -> RpcError {
    // go-ethereum's words: clients install the filter again when they read them.
    RpcError::server("filter not found")
}

impl Filters {
    /// Those that are in use.
    fn live(&self, limits: &RpcLimits) -> MutexGuard<'_, HashMap<String, Installed>> {
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = Duration::from_millis(limits.filter_idle_timeout_ms);
        installed.retain(|_, filter| filter.used.elapsed() < idle);
        installed
    }

    fn install(
        &self,
        limits: &RpcLimits,
        owner: Option<IpAddr>,
        subject: Subject,
        place: Place,
    ) -> Result<String, RpcError> {
        let mut installed = self.live(limits);
        let refuse = |what: String| {
            let idle_ms = limits.filter_idle_timeout_ms;
            let way_out = "uninstall filters (eth_uninstallFilter), or subscribe over a WebSocket";
            Err(RpcError::new(
                LIMIT_EXCEEDED,
                format!("{what}; {way_out}. One that nobody asks for is forgotten after {idle_ms} ms"),
            ))
        };
        if installed.len() >= limits.max_filters {
            return refuse(format!(
                "this server already has {} filters, which is the limit",
                limits.max_filters
            ));
        }
        let of_owner = installed.values().filter(|filter| filter.owner == owner).count();
        if of_owner >= limits.max_filters_per_address {
            let max = limits.max_filters_per_address;
            return refuse(format!("your address already has {max} filters, which is the limit"));
        }
        let bytes: usize = installed.values().map(|filter| filter.filter.subject.size_bytes()).sum();
        if bytes + subject.size_bytes() > limits.filters_bytes {
            let max = limits.filters_bytes;
            return refuse(format!("the filters of this server would take more than {max} bytes together"));
        }
        let salt = RandomState::new();
        let half = |n: u8| self.ids.hash_one((salt.hash_one(n), n));
        let id = format!("0x{:016x}{:016x}", half(0), half(1));
        let filter = Arc::new(Filter { subject, place: Arc::new(AsyncMutex::new(place)) });
        installed.insert(id.clone(), Installed { filter, owner, used: Instant::now() });
        Ok(id)
    }

    fn find(&self, limits: &RpcLimits, id: &str) -> Result<Arc<Filter>, RpcError> {
        let mut installed = self.live(limits);
        let found = installed.get_mut(id).ok_or_else(not_found)?;
        found.used = Instant::now();
        Ok(Arc::clone(&found.filter))
    }
}

/// A server without a mempool never hears of a pending transaction, and an empty list would say that there are none.
pub(super) fn no_mempool() -> RpcError {
    RpcError::new(
        NOT_SUPPORTED,
        "eth_newPendingTransactionFilter needs a mempool, and this server has none: ask a node. There are eth_newFilter and eth_newBlockFilter",
    )
}

fn filter_id(params: Option<&Value>) -> Result<String, RpcError> {
    let text = |value: &Value| {
        value.as_str().map(str::to_owned).ok_or_else(|| ParamError::new("expected a filter id"))
    };
    Ok(Arguments::new(params, 1)?.required(0, text)?)
}

impl EthApi {
    pub(super) async fn new_filter(
        &self,
        params: Option<&Value>,
        owner: Option<IpAddr>,
    ) -> Result<Response, RpcError> {
        let limits = self.filter_limits();
        let (selector, filter) =
            Arguments::new(params, 1)?.required(0, |value| parse_filter(value, &limits))?;
        let BlockSelector::Range { from, to } = selector else {
            return Err(RpcError::invalid_params(
                "a filter of one block (blockHash) never changes: ask eth_getLogs for it",
            ));
        };
        if let (BlockTag::Number(from), BlockTag::Number(to)) = (from, to)
            && from > to
        {
            return Err(RpcError::invalid_params(format!(
                "invalid block range params: fromBlock {from:#x} is above toBlock {to:#x}"
            )));
        }
        self.install(owner, Subject::Logs(Box::new(LogSubject { from, to, filter }))).await
    }

    pub(super) async fn new_block_filter(
        &self,
        params: Option<&Value>,
        owner: Option<IpAddr>,
    ) -> Result<Response, RpcError> {
        Arguments::new(params, 0)?;
        self.install(owner, Subject::Blocks).await
    }

    async fn install(&self, owner: Option<IpAddr>, subject: Subject) -> Result<Response, RpcError> {
        let place = Place::at(self.read().await?.head());
        Response::of(&self.filters.install(&self.limits, owner, subject, place)?)
    }

    pub(super) fn uninstall_filter(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let id = filter_id(params)?;
        Response::of(&self.filters.live(&self.limits).remove(&id).is_some())
    }

    /// All logs of a filter's range, as `eth_getLogs` answers.
    pub(super) async fn filter_logs(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let filter = self.filters.find(&self.limits, &filter_id(params)?)?;
        match &filter.subject {
            Subject::Logs(logs) => {
                let selector = BlockSelector::Range { from: logs.from, to: logs.to };
                self.logs(selector, &logs.filter).await
            }
            // As go-ethereum answers.
            Subject::Blocks => Err(not_found()),
        }
    }

    /// What came and went since the last answer.
    pub(super) async fn filter_changes(&self, params: Option<&Value>) -> Result<(Response, Moved), RpcError> {
        let filter = self.filters.find(&self.limits, &filter_id(params)?)?;
        let place = Arc::clone(&filter.place).lock_owned().await;
        for _ in 0..MAX_STARTS {
            let mut reading = self.read().await?;
            let to = Place::at(reading.head());
            let json = match &filter.subject {
                Subject::Blocks => self.new_blocks(&mut reading, *place).await?,
                Subject::Logs(logs) => self.new_logs(&mut reading, *place, logs).await?,
            };
            match json {
                Ok(json) => return Ok((Response::from_json(json), Moved { place, to })),
                Err(Reorganised) => continue,
            }
        }
        Err(moved_too_often())
    }

    /// The blocks that reorgs took away of those that were told of, newest first, each with the entry that took it; the place goes below them.
    async fn replay(&self, reading: &Reading, place: &mut Place) -> Result<Vec<(u64, BlockRef)>, RpcError> {
        let mut gone = Vec::new();
        place.demand_before(reading.head())?;
        while !place.is_on_fork_of(reading.head()) {
            let entries = place.reorgs(reading.snapshot()).await?;
            if entries.is_empty() {
                return Err(RpcError::internal(
                    "the reorg log is shorter than the head row says; run `cairn verify`",
                ));
            }
            while let Some(step) = place.step_down(&entries)? {
                gone.push(step);
            }
        }
        place.demand_canonical(reading.snapshot()).await?;
        Ok(gone)
    }

    async fn new_blocks(
        &self,
        reading: &mut Reading,
        mut place: Place,
    ) -> Result<Result<Vec<u8>, Reorganised>, RpcError> {
        self.replay(reading, &mut place).await?;
        let range = place.above(reading.head());
        let Some(highest) = range.last() else { return Ok(Ok(b"[]".to_vec())) };
        let max = self.limits.max_log_results as u64;
        if range.len() > max {
            return Err(RpcError::new(
                LIMIT_EXCEEDED,
                format!(
                    "{} blocks came since the last answer, over the limit of {max}: read blocks [0x{:x}, 0x{:x}] by number and install a new filter",
                    range.len(),
                    range.start().get(),
                    highest.get()
                ),
            ));
        }
        let mut hashes = Vec::with_capacity(range.len() as usize);
        let mut from = range.start();
        while from < range.end() {
            if let Err(moved) = reading.renew_if_old(highest).await? {
                return Ok(Err(moved));
            }
            let rest = HeightRange::new(from, range.end());
            let read = reading.snapshot().blocks(rest, Parts::empty(), u64::MAX).await?;
            hashes.extend(read.blocks.iter().map(|block| block.facts.id.to_string()));
            from = read.next;
        }
        Ok(Ok(serde_json::to_vec(&hashes)?))
    }

    async fn new_logs(
        &self,
        reading: &mut Reading,
        mut place: Place,
        logs: &LogSubject,
    ) -> Result<Result<Vec<u8>, Reorganised>, RpcError> {
        let gone = self.replay(reading, &mut place).await?;
        let wanted = logs.heights();
        let range = place.above(reading.head()).intersect(wanted);
        // What reorgs took away counts as a block of its own.
        let one_block = gone.is_empty() && range.len() == 1;
        let mut scan = Scan::new(range, one_block, logs.filter.clone(), self, self.log_deadline());
        for (reorg_id, orphan) in gone.into_iter().filter(|(_, orphan)| wanted.contains(orphan.height)) {
            let Some(block) = reading.snapshot().orphan(reorg_id, orphan.id, LOG_PARTS).await? else {
                return Err(RpcError::server(format!(
                    "block {orphan} was taken away by reorg {reorg_id} and pruned before its logs could be revoked: install a new filter, and read again what it told of block {} and above",
                    orphan.height
                )));
            };
            let filter = logs.filter.clone();
            let mut removed =
                work(size_bytes(&block), move || Ok(BlockView::decode(block, None)?.logs(&filter, true)?))
                    .await?;
            // What came last goes first.
            removed.reverse();
            scan.put(&removed, orphan.height)?;
        }
        if let Some(max) = self.limits.max_log_range_blocks.filter(|max| range.len() > *max) {
            let what = format!("query exceeds max block range {max}.");
            let hint = Height(range.start().get().saturating_add(max - 1));
            return Err(beside(with_hint(LIMIT_EXCEEDED, what, range, hint, max), range));
        }
        scan.run(reading).await.map_err(|error| beside(error, range))
    }
}

/// A filter's changes can't be asked for in smaller ranges: says how they can be had.
fn beside(mut error: RpcError, range: HeightRange) -> RpcError {
    if let (Some(_), Some(last)) = (&error.data, range.last()) {
        error.message.push_str(&format!(
            " These are the changes since the filter's last answer: read blocks [0x{:x}, 0x{:x}] with eth_getLogs in such ranges, and install a new filter.",
            range.start().get(),
            last.get()
        ));
    }
    error
}
