//! Blocks that a worker could not process: every answer that rests on them says so (law 2), and the status counts them and names what has stopped.

use std::sync::Arc;

use alloy_primitives::Address;
use cairn_api::rest::{Halt, HaltedPart, Obstacle};
use cairn_core::{BlockId, Height, HeightRange, Parts, RawBlock, StoredBlock};
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{ClaimRequest, Coordinator, DerivedReader, LeaseEnd, MAX_ATTEMPTS};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{TOKEN, World, moved};
use crate::support::made;

/// A mapper that can't process some blocks.
struct Broken {
    mapper: Arc<dyn Mapper>,
    at: Vec<u64>,
}

impl Mapper for Broken {
    fn service(&self) -> &'static ServiceInfo {
        self.mapper.service()
    }

    fn parts(&self) -> Parts {
        self.mapper.parts()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        if self.at.contains(&block.facts.height.get()) {
            return Err(ProcessError { block: block.facts.block_ref(), message: "no decoder".into() });
        }
        self.mapper.map(block, out)
    }
}

/// The processors of EVM chains, of which this one can't process these blocks.
fn broken(name: &str, at: &[u64]) -> Vec<Processor> {
    let break_it = |processor| match processor {
        Processor::Mapper(mapper) if mapper.service().name == name => {
            Processor::Mapper(Arc::new(Broken { mapper, at: at.to_vec() }))
        }
        other => other,
    };
    evm_processors(&Settings::default()).into_iter().map(break_it).collect()
}

fn chain(last: u64) -> Vec<RawBlock> {
    made::chain(0, last + 1, BlockId::default(), 0, |height| vec![vec![moved(1, 2, height)]])
}

fn named(worker: &str, heights: &[u64]) -> Value {
    heights.iter().map(|height| json!({ "worker": worker, "height": height.to_string() })).collect()
}

fn said(answer: &Value) -> (Value, Value) {
    (answer["meta"]["incomplete"].clone(), answer["meta"]["incomplete_count"].clone())
}

#[tokio::test(start_paused = true)]
async fn i07_answers_over_a_block_that_could_not_be_processed_say_so() {
    let world = World::new(chain(9)).await;
    world.derive_by(broken("token_worker", &[3, 7])).await;
    let list = format!("/v1/tokens/{TOKEN}/transfers?order=asc");
    let page = world.ok(&list).await;
    assert_eq!(page["data"].as_array().map(Vec::len), Some(8), "{page}");
    assert_eq!(said(&page), (named("token_worker", &[3, 7]), json!("2")));
    // What was folded from these rows is not whole either, and says whose blocks are missing.
    for path in [
        format!("/v1/tokens/{TOKEN}/holders"),
        format!("/v1/tokens/{TOKEN}"),
        format!("/v1/accounts/{}/holdings", Address::repeat_byte(2)),
        format!("/v1/accounts/{}/transfers", Address::repeat_byte(2)),
    ] {
        assert_eq!(said(&world.ok(&path).await), (named("token_worker", &[3, 7]), json!("2")), "{path}");
    }
    // Answers that rest on other workers, and on none, are whole.
    for path in ["/v1/blocks".to_owned(), "/v1/transactions".to_owned(), format!("/v1/logs?address={TOKEN}")]
    {
        assert_eq!(said(&world.ok(&path).await), (json!([]), json!("0")), "{path}");
    }
    let status = world.ok("/v1/status").await;
    let workers = status["data"]["derived"]["workers"].as_array().expect("workers").clone();
    let count = |name: &str| {
        let worker = workers.iter().find(|worker| worker["name"] == name).expect("a worker");
        worker["quarantined_blocks"].clone()
    };
    assert_eq!((count("token_worker"), count("evm_worker")), (json!("2"), json!("0")));
    // Asking for these rows closes no hole yet.
    let whole = || evm_processors(&Settings::default());
    let version = whole().iter().map(|one| one.service()).find(|one| one.name == "token_worker");
    let range = HeightRange::new(Height(0), Height(10));
    let version = version.expect("it is made").version;
    world.app.request_reindex("token_worker", version, range, 100).await.expect("asks");
    assert_eq!(world.ok("/v1/status").await["data"]["derived"]["workers"].as_array(), Some(&workers));
    assert_eq!(said(&world.ok(&list).await), (named("token_worker", &[3, 7]), json!("2")));
    // Closed, it is named no more.
    let is_made = async || {
        let snapshot = world.app.snapshot().await.expect("opens");
        snapshot.made_again_from("token_worker", Height(0)).await.expect("reads").is_none()
    };
    world.derive_until(whole(), is_made).await;
    let page = world.ok(&list).await;
    assert_eq!(page["data"].as_array().map(Vec::len), Some(10), "{page}");
    assert_eq!(said(&page), (json!([]), json!("0")));
    let status = world.ok("/v1/status").await;
    let workers = status["data"]["derived"]["workers"].as_array().expect("workers").iter();
    assert!(workers.clone().all(|worker| worker["quarantined_blocks"] == "0"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn i07_what_is_missing_beside_is_named_too() {
    let world = World::new(chain(9)).await;
    world.derive_by(broken("evm_worker", &[3])).await;
    let page = world.ok(&format!("/v1/accounts/{}/transactions?order=asc", Address::repeat_byte(1))).await;
    let rows = page["data"].as_array().expect("rows");
    assert_eq!(rows.len(), 10, "{page}");
    for (height, row) in rows.iter().enumerate() {
        assert_eq!(row["transaction"].is_null(), height == 3, "{row}");
    }
    assert_eq!(said(&page), (named("evm_worker", &[3]), json!("1")));
    assert_eq!(page["meta"]["required_workers"], json!(["accounts_worker"]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_one_block_names_that_block_alone() {
    let world = World::new(chain(9)).await;
    world.derive_by(broken("token_worker", &[3])).await;
    let transfers = async |height: u64| {
        let block = world.ok(&format!("/v1/blocks/{height}/transactions")).await;
        let id = block["data"][0]["id"].as_str().expect("an id").to_owned();
        world.ok(&format!("/v1/transactions/{id}/transfers")).await
    };
    let page = transfers(3).await;
    assert_eq!(page["data"], json!([]));
    assert_eq!(said(&page), (named("token_worker", &[3]), json!("1")));
    assert_eq!(said(&transfers(4).await), (json!([]), json!("0")));

    let world = World::new(chain(9)).await;
    world.derive_by(broken("tx_contracts_worker", &[5])).await;
    let rows = world.ok("/v1/transactions?order=asc").await;
    for (height, expected) in
        [(5, (named("tx_contracts_worker", &[5]), json!("1"))), (6, (json!([]), json!("0")))]
    {
        let id = rows["data"][height]["id"].as_str().expect("an id");
        let one = world.ok(&format!("/v1/transactions/{id}")).await;
        assert_eq!(one["data"]["contracts"] == json!([]), height == 5, "{one}");
        assert_eq!(said(&one), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn many_blocks_that_could_not_be_processed_are_counted_and_the_lowest_hundred_named() {
    let world = World::new(chain(149)).await;
    let holes: Vec<u64> = (10..140).collect();
    world.derive_by(broken("token_worker", &holes)).await;
    let document = Document::read(&world).await;
    let path = format!("/v1/tokens/{TOKEN}/transfers");
    let reply = world.get(&path).await;
    document.check(&path, &reply);
    assert_eq!(said(&reply.json), (named("token_worker", &holes[..100]), json!("130")));
}

#[tokio::test(start_paused = true)]
async fn the_status_names_what_ingestion_can_not_get_past() {
    let world = World::new(chain(3)).await;
    let document = Document::read(&world).await;
    assert_eq!(world.ok("/v1/status").await["data"]["obstacle"], Value::Null);
    *world.obstacle.lock().expect("no panic") = Some(Obstacle {
        code: "block-refused".into(),
        height: Some(Height(17)),
        check: Some("bloom".into()),
        message: "x".repeat(1_000),
        remedy: Some("--relax bloom".into()),
        since_ms: 1_700_000_000_000,
        tries: 7,
    });
    let reply = world.get("/v1/status").await;
    document.check("/v1/status", &reply);
    assert_eq!(
        reply.json["data"]["obstacle"],
        json!({
            "code": "block-refused", "height": "17", "check": "bloom", "message": "x".repeat(300),
            "remedy": "--relax bloom", "since_ms": "1700000000000", "tries": 7
        })
    );
}

#[tokio::test(start_paused = true)]
async fn the_status_names_what_has_stopped() {
    let world = World::new(chain(9)).await;
    world.derive_by(evm_processors(&Settings::default())).await;
    let document = Document::read(&world).await;
    assert_eq!(world.ok("/v1/status").await["data"]["halts"], json!([]));
    world.halts.lock().expect("no panic").push(Halt {
        part: HaltedPart::Ingestion,
        service: None,
        height: Some(Height(10)),
        code: "below-finality".into(),
    });
    world.halts.lock().expect("no panic").push(Halt {
        part: HaltedPart::Derived,
        service: Some("token_worker".into()),
        height: None,
        code: "corrupt".into(),
    });
    // A range that failed too often.
    let request = ClaimRequest {
        service: "evm_worker".into(),
        version: 1_000,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights: 1_000,
        first: Height(0),
        limit_exclusive: Height(5_000),
        stop_exclusive: None,
        in_order: false,
    };
    let mut lease = world.app.claim(&request).await.expect("claims").expect("a range");
    let at = lease.done_to;
    for _ in 0..MAX_ATTEMPTS {
        let end = LeaseEnd::Bad { message: "no decoder".into(), retry_in_ms: 0 };
        world.app.end(&lease, end).await.expect("ends");
        match world.app.claim(&request).await.expect("claims") {
            Some(again) if again.id == lease.id => lease = again,
            _ => break,
        }
    }
    let reply = world.get("/v1/status").await;
    document.check("/v1/status", &reply);
    assert_eq!(
        reply.json["data"]["halts"],
        json!([
            { "part": "ingestion", "worker": null, "height": "10", "code": "below-finality" },
            { "part": "derived", "worker": "token_worker", "height": null, "code": "corrupt" },
            { "part": "range", "worker": "evm_worker", "height": at.to_string(), "code": "range-failed" }
        ])
    );
}
