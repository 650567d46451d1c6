//! New blocks and reorgs as server-sent events.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use cairn_core::BlockId;
use futures::StreamExt;
use serde_json::Value;
use tower::ServiceExt;

use super::world::{World, limits};
use crate::support::{append, made};

struct Events {
    body: BodyDataStream,
    text: String,
}

#[derive(Debug, PartialEq)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

impl Events {
    async fn open(world: &World, last: Option<&str>) -> Events {
        let mut request = Request::get("/v1/blocks/stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = world.router.clone().oneshot(request).await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The next event; `None` where none comes for a while.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = event.lines().find_map(|line| line.strip_prefix(name));
                    line.map(|value| value.trim_start_matches(": ").to_owned())
                };
                let found = field("data").map(|data| Event {
                    name: field("event").unwrap_or_default(),
                    id: field("id").unwrap_or_default(),
                    data: serde_json::from_str(&data).expect("JSON"),
                });
                self.text = rest.to_owned();
                if found.is_some() {
                    return found;
                }
                continue;
            }
            let piece = tokio::time::timeout(Duration::from_secs(3), self.body.next()).await.ok()??;
            self.text.push_str(std::str::from_utf8(&piece.expect("bytes")).expect("text"));
        }
    }

    async fn heights(&mut self) -> Vec<String> {
        let mut heights = Vec::new();
        while let Some(event) = self.next().await {
            let field =
                if event.name == "reorg" { &event.data["common"]["height"] } else { &event.data["height"] };
            heights.push(format!("{} {}", event.name, field.as_str().expect("a height")));
        }
        heights
    }
}

#[tokio::test(start_paused = true)]
async fn new_blocks_come_in_order_and_reorgs_before_the_new_fork() {
    let world = World::new(made::chain(0, 5, BlockId::default(), 0, |_| vec![])).await;
    let mut events = Events::open(&world, None).await;
    assert_eq!(events.heights().await, ["block 4"]);
    append(&world.store, made::chain(5, 2, made::tip(&world.store).await.id, 0, |_| vec![]), None).await;
    assert_eq!(events.heights().await, ["block 5", "block 6"]);
    let common = made::at(&world.store, 4).await;
    made::roll_back(&world.store, common).await;
    append(&world.store, made::chain(5, 3, common.id, 1, |_| vec![]), None).await;
    let reorg = events.next().await.expect("an event");
    assert_eq!(reorg.name, "reorg");
    assert_eq!(reorg.data["common"]["height"], "4");
    let removed: Vec<_> = reorg.data["removed"]
        .as_array()
        .expect("blocks")
        .iter()
        .map(|block| block["height"].clone())
        .collect();
    assert_eq!(removed, ["6", "5"]);
    assert_eq!(events.heights().await, ["block 5", "block 6", "block 7"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_after_the_last_event_also_over_a_reorg() {
    let world = World::new(made::chain(0, 5, BlockId::default(), 0, |_| vec![])).await;
    let mut events = Events::open(&world, None).await;
    let last = events.next().await.expect("an event");
    drop(events);
    append(&world.store, made::chain(5, 2, made::tip(&world.store).await.id, 0, |_| vec![]), None).await;
    let mut events = Events::open(&world, Some(&last.id)).await;
    assert_eq!(events.heights().await, ["block 5", "block 6"]);
    let common = made::at(&world.store, 2).await;
    made::roll_back(&world.store, common).await;
    append(&world.store, made::chain(3, 1, common.id, 1, |_| vec![]), None).await;
    let mut events = Events::open(&world, Some(&last.id)).await;
    assert_eq!(events.heights().await, ["reorg 2", "block 3"]);
}

#[tokio::test(start_paused = true)]
async fn marks_that_are_not_ours_are_refused() {
    let near = cairn_api::rest::RestLimits { max_stream_backlog_blocks: 3, ..limits() };
    let world = World::with(made::chain(0, 9, BlockId::default(), 0, |_| vec![]), near).await;
    let at = |height: u64, id: String| format!("0:{height}:{id}");
    let old = made::at(&world.store, 2).await.id.to_string();
    for (mark, status, code) in [
        ("nonsense".to_owned(), 400, "invalid-cursor"),
        (at(8, "0x12".into()), 400, "invalid-cursor"),
        (at(8, format!("0x{}", "ab".repeat(32))), 409, "reorged"),
        (at(2, old), 409, "reorged"),
        (format!("9:8:{}", made::tip(&world.store).await.id), 409, "reorged"),
    ] {
        let request = Request::get("/v1/blocks/stream").header("last-event-id", &mark).body(Body::empty());
        let reply = world.send(request.expect("a request")).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (status, code), "{mark}: {}", reply.text);
    }
}
