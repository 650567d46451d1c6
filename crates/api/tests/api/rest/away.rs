//! The app database doesn't answer: what the raw store says is said all the same, and the status names what is away.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_store::StoreError;
use cairn_store::derived::{DerivedReader, DerivedSnapshot};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{TOKEN, World, all_but, synthetic};

/// An app store that is away.
struct Away {
    /// It says so, or it says nothing at all.
    says_so: bool,
}

#[async_trait]
impl DerivedReader for Away {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>, StoreError> {
        match self.says_so {
            true => Err(StoreError::Busy("the app store can't be reached yet".into())),
            false => std::future::pending().await,
        }
    }
}

async fn checked(world: &World, path: &str) -> Value {
    let reply = world.get(path).await;
    assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.text);
    Document::read(world).await.check(path, &reply);
    reply.json
}

#[tokio::test(start_paused = true)]
async fn the_status_says_that_the_app_database_does_not_answer() {
    let world = World::new(synthetic(12)).await;
    world.derive_by(all_but(&[])).await;
    let whole = checked(&world, "/v1/status").await;
    assert!(whole["data"]["derived"].is_object());
    for says_so in [true, false] {
        let away = world.with_app(Arc::new(Away { says_so }));
        let status = checked(&away, "/v1/status").await;
        assert_eq!(status["data"]["derived"], Value::Null);
        assert_eq!(status["data"]["app_watermark_height"], Value::Null);
        let halt = json!({ "part": "derived", "worker": null, "height": null, "code": "app-database-away" });
        assert_eq!(status["data"]["halts"], json!([halt]));
        for field in ["raw_tip_height", "raw_tip", "finalized", "first_height", "newest_reorg"] {
            assert_eq!(status["data"][field], whole["data"][field], "{field}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_of_what_the_raw_store_has_needs_no_app_database() {
    let world = World::new(synthetic(12)).await;
    world.derive_by(all_but(&[])).await;
    let block = world.ok("/v1/blocks/7").await["data"]["id"].as_str().expect("an id").to_owned();
    for says_so in [true, false] {
        let away = world.with_app(Arc::new(Away { says_so }));
        let found = checked(&away, "/v1/search?q=7").await;
        assert_eq!(found["data"], json!([{ "kind": "block", "height": "7", "id": block }]));
        // Nobody looked for names.
        assert_eq!(found["page"]["has_more"], json!(true));
        assert_eq!(found["meta"]["required_workers"], json!([]));
        let found = checked(&away, &format!("/v1/search?q={block}")).await;
        assert_eq!(found["data"][0]["kind"], "block");
        let found = checked(&away, &format!("/v1/search?q={TOKEN}")).await;
        assert_eq!(
            (&found["data"][0]["kind"], &found["data"][0]["is_token"]),
            (&json!("address"), &Value::Null)
        );
    }
    // A name is nowhere else.
    world.with_app(Arc::new(Away { says_so: true })).problem("/v1/search?q=coin", 503, "busy").await;
    assert_eq!(checked(&world, "/v1/search?q=7").await["page"]["has_more"], json!(false));
}
