//! What clients and proxies may keep.

use axum::body::Body;
use axum::http::Request;
use cairn_core::BlockId;
use tower::ServiceExt;

use super::world::{Reply, World};
use crate::support::{append, made};

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    reply.headers.get(name).and_then(|value| value.to_str().ok())
}

async fn ask_again(world: &World, path: &str, tag: &str) -> Reply {
    let request = Request::get(path).header("if-none-match", tag).body(Body::empty());
    world.send(request.expect("a request")).await
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_not_changed_is_not_sent_again() {
    let world = World::new(made::chain(0, 3, BlockId::default(), 0, |_| vec![])).await;
    let first = world.get("/v1/blocks").await;
    let tag = header(&first, "etag").expect("a tag").to_owned();
    assert_eq!(header(&first, "cache-control"), Some("no-cache"));
    let same = ask_again(&world, "/v1/blocks", &tag).await;
    assert_eq!(
        (same.status.as_u16(), same.text.as_str(), header(&same, "etag")),
        (304, "", Some(tag.as_str()))
    );
    world.grow(1, 0, |_| vec![]).await;
    let changed = ask_again(&world, "/v1/blocks", &tag).await;
    assert_eq!(changed.status, 200);
    assert_ne!(header(&changed, "etag"), Some(tag.as_str()));
    // A problem is kept by nobody.
    let problem = world.get("/v1/blocks/99").await;
    assert_eq!((header(&problem, "cache-control"), header(&problem, "etag")), (Some("no-store"), None));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_final_may_be_kept() {
    let world = World::new(made::chain(0, 3, BlockId::default(), 0, |_| vec![])).await;
    let one = made::at(&world.store, 1).await;
    let next = made::chain(3, 1, made::tip(&world.store).await.id, 0, |_| vec![]);
    append(&world.store, next, Some(one)).await;
    let kept = world.get("/v1/blocks/1").await;
    assert_eq!(header(&kept, "cache-control"), Some("public, max-age=60"));
    let open = world.get("/v1/blocks/2").await;
    assert_eq!(header(&open, "cache-control"), Some("no-cache"));
}

#[tokio::test(start_paused = true)]
async fn events_pass_through_proxies_at_once() {
    let world = World::new(made::chain(0, 3, BlockId::default(), 0, |_| vec![])).await;
    let request = Request::get("/v1/blocks/stream").body(Body::empty()).expect("a request");
    let response = world.router.clone().oneshot(request).await.expect("an answer");
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("cache-control"), Some("no-cache, no-transform"));
    assert_eq!((header("x-accel-buffering"), header("etag")), (Some("no"), None));
}
