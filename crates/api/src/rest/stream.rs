//! New blocks and reorgs as server-sent events.
//!
//! Each stream walks the raw store by itself: its place is (newest reorg, block), which is also the id of each event, so that a client
//! that comes back with `Last-Event-ID` goes on exactly there, over reorgs too.
//!
//! * **Ordering.** Reorgs in the order of the log, each before the blocks of the new fork; blocks upwards, none left out.
//! * **Back-pressure.** The next event is read when the client has taken the one before: a slow client holds nothing but its place. A
//!   client that takes nothing is cut off by the listener.
//! * **Bounds.** So many streams at once; resumed from so many blocks behind at most.
//! * **Shutdown.** Streams end when the server stops.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CACHE_CONTROL;
use axum::http::{HeaderMap, HeaderName};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use cairn_core::{BlockId, BlockRef, Height, Parts};
use futures::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use utoipa::ToSchema;

use super::Api;
use super::blocks::Block;
use super::params::{NoParams, Params};
use super::problem::{Code, Problem};
use super::status::BlockName;
use super::view::View;
use super::words::Num;

/// nginx takes it as an order not to buffer.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
/// Blocks that are read under one snapshot.
const STEP_BLOCKS: u64 = 32;
/// Entries of the reorg log that are read under one snapshot.
const STEP_REORGS: usize = 16;

/// A reorg, as a stream tells it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReorgEvent {
    /// Its number in the reorg log.
    pub reorg: Num,
    /// The last block that both forks share. The next blocks follow it.
    pub common: BlockName,
    /// The blocks of this stream that are no longer so, newest first.
    pub removed: Vec<BlockName>,
}

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    uuid: [u8; 16],
    reorg_id: u64,
    /// The last block that was sent, or that counts as sent; `None`: the next one is the first of the archive.
    last: Option<BlockRef>,
}

impl Mark {
    /// As the id of an event.
    fn id(&self) -> String {
        match self.last {
            Some(last) => format!("{}:{}:{}", self.reorg_id, last.height, last.id),
            None => format!("{}", self.reorg_id),
        }
    }

    fn parse(uuid: [u8; 16], text: &str) -> Option<Mark> {
        let mut parts = text.split(':');
        let mut number = || -> Option<u64> { parts.next()?.parse().ok() };
        let (reorg_id, height) = (number()?, number()?);
        let id: BlockId = parts.next()?.parse().ok()?;
        let last = Some(BlockRef { height: Height(height), id });
        parts.next().is_none().then_some(Mark { uuid, reorg_id, last })
    }
}

struct Stream {
    api: Arc<Api>,
    mark: Mark,
    ready: VecDeque<Event>,
    hint: Option<watch::Receiver<u64>>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

/// New blocks as they are stored, and reorgs, as server-sent events. Begins with the newest block, or after the event that
/// `Last-Event-ID` names. Events: `block` with a block, `reorg` with a reorg, `problem` with a problem before the stream is ended.
#[utoipa::path(
    get,
    path = "/v1/blocks/stream",
    tag = "blocks",
    params(("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was received")),
    responses((status = 200, description = "Events", body = String, content_type = "text/event-stream"))
)]
pub(crate) async fn stream_blocks(
    State(api): State<Arc<Api>>,
    Params(NoParams {}): Params<NoParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let permit = Arc::clone(api.streams()).try_acquire_owned().map_err(|_| {
        Problem::new(Code::Overloaded, format!("{} streams are open already", api.limits().max_streams))
    })?;
    let view = View::raw(&api).await?;
    let head = view.head().clone();
    let mark = match headers.get("last-event-id") {
        Some(value) => {
            let mark = value.to_str().ok().and_then(|text| Mark::parse(head.info.uuid, text));
            let mark = mark.ok_or_else(|| {
                Problem::new(Code::InvalidCursor, "Last-Event-ID is not the id of an event of this stream")
            })?;
            demand_known(&api, &view, &mark).await?;
            mark
        }
        None => {
            // The newest block is the first event.
            let before = match head.tip {
                Some(tip) => view.chain().linked_ref(tip.height).await?.and_then(|linked| {
                    let height = linked.block.height.prev()?;
                    Some(BlockRef { height, id: linked.parent_id })
                }),
                None => None,
            };
            Mark { uuid: head.info.uuid, reorg_id: head.newest_reorg.id, last: before }
        }
    };
    let hint = api.new_head().cloned();
    let stream =
        Stream { api: Arc::clone(&api), mark, ready: VecDeque::new(), hint, ended: false, _permit: permit };
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_millis(api.limits().stream_keep_alive_ms));
    // Proxies that gather answers, or compress them, would keep events to themselves.
    let headers = [(CACHE_CONTROL, "no-cache, no-transform"), (X_ACCEL_BUFFERING, "no")];
    Ok((headers, Sse::new(events).keep_alive(keep_alive)).into_response())
}

/// Demands that a stream can go on from a mark that a client brought.
async fn demand_known(api: &Api, view: &View, mark: &Mark) -> Result<(), Problem> {
    let gone =
        |what: String| Err(Problem::new(Code::Reorged, format!("{what}; begin without Last-Event-ID")));
    let head = view.head();
    let (Some(last), Some(tip)) = (mark.last, head.tip) else { return gone("nothing is stored".into()) };
    if mark.reorg_id > head.newest_reorg.id {
        return gone(format!("reorg {} is not known here", mark.reorg_id));
    }
    let limit = api.limits().max_stream_backlog_blocks;
    if tip.height.since(last.height) > limit {
        return gone(format!(
            "block {} is more than {limit} blocks below the newest one: read /v1/blocks up to it",
            last.height
        ));
    }
    if view.chain().linked_ref(last.height).await?.is_some_and(|here| here.block == last) {
        return Ok(());
    }
    let mut seen = mark.reorg_id;
    loop {
        let entries = view.chain().reorgs(seen, STEP_REORGS).await?;
        let Some(newest) = entries.last() else {
            return gone(format!("block {last} was never here"));
        };
        if entries.iter().any(|entry| entry.orphan(last.id).is_some()) {
            return Ok(());
        }
        seen = newest.id;
    }
}

impl Stream {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.step().await {
                Ok(true) => {}
                Ok(false) => {
                    let stop = self.api.stop().clone();
                    tokio::select! {
                        () = stop.cancelled() => return None,
                        () = woken(&mut self.hint) => {}
                        () = tokio::time::sleep(Duration::from_millis(self.api.limits().stream_poll_ms.max(1))) => {}
                    }
                }
                Err(problem) if problem.code == Code::Busy => {
                    tokio::time::sleep(Duration::from_millis(self.api.limits().stream_poll_ms.max(1))).await;
                }
                Err(problem) => {
                    let body = String::from_utf8(problem.body("/v1/blocks/stream")).unwrap_or_default();
                    self.ready.push_back(Event::default().event("problem").data(body));
                    self.ended = true;
                }
            }
        }
    }

    /// One bounded piece of the way; whether there may be more.
    async fn step(&mut self) -> Result<bool, Problem> {
        let view = View::raw(&self.api).await?;
        let head = view.head();
        if head.info.uuid != self.mark.uuid || head.newest_reorg.id < self.mark.reorg_id {
            return Err(Problem::new(Code::Reorged, "the store was replaced; begin without Last-Event-ID"));
        }
        if head.newest_reorg.id > self.mark.reorg_id {
            for entry in view.chain().reorgs(self.mark.reorg_id, STEP_REORGS).await? {
                self.mark.reorg_id = entry.id;
                let Some(last) = self.mark.last.filter(|last| last.height > entry.common.height) else {
                    continue;
                };
                let removed = entry.orphans.iter().rev().map(|orphan| orphan.block);
                let removed =
                    removed.filter(|block| block.height <= last.height).map(BlockName::of).collect();
                self.mark.last = Some(entry.common);
                let event = ReorgEvent { reorg: Num(entry.id), common: BlockName::of(entry.common), removed };
                self.push("reorg", &event)?;
            }
            return Ok(true);
        }
        let range = head.range();
        let from = self.mark.last.map_or(range.start(), |last| last.height.next().max(range.start()));
        let rest = range.intersect(cairn_core::HeightRange::new(from, range.end()));
        let Some(piece) = rest.chunks(STEP_BLOCKS).next() else { return Ok(false) };
        let read = view.chain().blocks(piece, Parts::HEADER, self.api.limits().max_stream_step_bytes).await?;
        for stored in read.blocks {
            let block = stored.facts.block_ref();
            if self.mark.last.is_some_and(|last| last.id != stored.facts.parent_id) {
                return Err(Problem::internal(format!("block {block} doesn't follow what a stream sent")));
            }
            self.mark.last = Some(block);
            let block = Block::of(view.kind(), stored)?;
            self.push("block", &block)?;
        }
        Ok(true)
    }

    fn push(&mut self, name: &str, data: &impl Serialize) -> Result<(), Problem> {
        let json = serde_json::to_string(data).map_err(Problem::internal)?;
        self.ready.push_back(Event::default().event(name).id(self.mark.id()).data(json));
        Ok(())
    }
}

/// Waits for the hint to change; for ever without one.
async fn woken(hint: &mut Option<watch::Receiver<u64>>) {
    if let Some(receiver) = hint
        && receiver.changed().await.is_ok()
    {
        return;
    }
    *hint = None;
    std::future::pending::<()>().await;
}
