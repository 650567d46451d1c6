//! `/v1/status`: who counts in the watermark, who runs, and why somebody doesn't get on.

use cairn_api::rest::WorkerUse;
use cairn_core::Height;
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_store::derived::{ClaimRequest, Coordinator, LeaseEnd};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{World, synthetic};

const TIP: &str = "11";
const ASKER: &str = "token_metadata_worker";

/// Derived by all that need no node.
async fn world() -> World {
    let world = World::new(synthetic(12)).await;
    world.derive_by(evm_processors(&Settings::default())).await;
    world
}

async fn status(world: &World) -> Value {
    let reply = world.get("/v1/status").await;
    Document::read(world).await.check("/v1/status", &reply);
    reply.json["data"].clone()
}

fn worker(status: &Value, name: &str) -> Value {
    let workers = status["derived"]["workers"].as_array().expect("workers");
    let found: Vec<_> = workers.iter().filter(|worker| worker["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name}: {workers:?}");
    found[0].clone()
}

#[tokio::test(start_paused = true)]
async fn the_watermark_is_that_of_the_workers_that_everything_rests_on() {
    let world = world().await;
    assert_eq!(status(&world).await["app_watermark_height"], TIP);
    // One that asks a node has not answered for a block yet, and nothing waits for it.
    world.app.register(ASKER, Height(0)).await.expect("registers");
    let told = status(&world).await;
    assert_eq!(told["app_watermark_height"], TIP);
    let asker = worker(&told, ASKER);
    assert_eq!(
        (&asker["tip"], &asker["asks_node"], &asker["is_enabled"]),
        (&Value::Null, &json!(true), &json!(true))
    );
    assert_eq!(worker(&told, "token_worker")["asks_node"], json!(false));

    // One that was switched off stays where it was, and says so.
    world.app.register("old_worker", Height(3)).await.expect("registers");
    let process = world.with_uses(&[("stats_worker", WorkerUse::Disabled)]);
    let told = status(&process).await;
    assert_eq!(told["app_watermark_height"], TIP);
    for name in ["stats_worker", "old_worker"] {
        assert_eq!(worker(&told, name)["is_enabled"], json!(false), "{name}");
    }

    // One that is enabled and has not begun is shown, and holds the watermark down.
    let told = status(&world.with_uses(&[("new_worker", WorkerUse::Required)])).await;
    assert_eq!(told["app_watermark_height"], Value::Null);
    let new = worker(&told, "new_worker");
    assert_eq!((&new["tip"], &new["is_enabled"]), (&Value::Null, &json!(true)));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_get_on_says_why() {
    let world = world().await;
    world.app.register(ASKER, Height(0)).await.expect("registers");
    assert_eq!(worker(&status(&world).await, ASKER)["last_error"], Value::Null);
    let request = ClaimRequest {
        service: ASKER.into(),
        version: 1_000,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights: 1_000,
        first: Height(0),
        limit_exclusive: Height(12),
        stop_exclusive: None,
        in_order: true,
    };
    let lease = world.app.claim(&request).await.expect("claims").expect("a range");
    let message = format!("the node has no eth_call {}", "x".repeat(1_000));
    world.app.end(&lease, LeaseEnd::Transient { message, retry_in_ms: 0 }).await.expect("ends");
    let told = status(&world).await;
    let error = worker(&told, ASKER)["last_error"].as_str().expect("an error").to_owned();
    assert!(error.starts_with("the node has no eth_call") && error.len() == 300, "{error}");
    assert_eq!(worker(&told, "token_worker")["last_error"], Value::Null);
    // While it is tried again nothing has changed.
    world.app.claim(&request).await.expect("claims").expect("the same range");
    assert_eq!(worker(&status(&world).await, ASKER)["last_error"], error);
}
