//! Workers that make everything anew: nothing that rests on them is answered before they are where they were.

use cairn_core::{BlockId, Height, HeightRange};
use cairn_explorer::processors::{Settings, evm_processors};
use cairn_store::RawReader;
use cairn_store::derived::{
    ChunkCommit, ClaimRequest, Coordinator, DerivedMaintenance, DerivedReader, DerivedWriter, FoldedAt,
    LeaseEnd, ReadMark, RebuildRequest,
};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{TOKEN, World, moved};
use crate::support::made;

async fn world() -> World {
    let blocks = made::chain(0, 10, BlockId::default(), 0, |height| vec![vec![moved(1, 2, height)]]);
    let world = World::new(blocks).await;
    world.derive_by(evm_processors(&Settings::default())).await;
    world
}

async fn begin(world: &World, worker: &str) {
    let request = RebuildRequest { anew: vec![worker.into()], ..RebuildRequest::default() };
    world.app.begin_rebuild(&request).await.expect("begins");
}

async fn clear(world: &World, worker: &str) {
    while world.app.reset_step(worker, 3).await.expect("steps") {}
}

/// Moves a folder's checkpoint on without changing state, as a chunk of blocks that move nothing does.
async fn fold_to(world: &World, worker: &str, to: u64) {
    let request = ClaimRequest {
        service: worker.into(),
        version: 1_000,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights: 1_000,
        first: Height(0),
        limit_exclusive: Height(10),
        stop_exclusive: None,
        in_order: true,
    };
    let lease = world.app.claim(&request).await.expect("claims").expect("a range");
    let snapshot = world.store.snapshot().await.expect("reads");
    let last = snapshot.linked_ref(Height(to)).await.expect("reads").expect("a block");
    let first = snapshot.linked_ref(Height(0)).await.expect("reads").expect("a block");
    let app = world.app.snapshot().await.expect("reads");
    let corrections = app.checkpoint(worker).expect("a checkpoint").corrections;
    let commit = ChunkCommit {
        chunk: HeightRange::new(Height(0), Height(to + 1)),
        parent_id: Some(first.parent_id),
        last_id: Some(last.block.id),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: Some(FoldedAt { applied: 0, corrections }),
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    };
    let committed = world.app.commit_chunk(&lease, commit).await.expect("commits");
    world.app.end(&committed.lease, LeaseEnd::Released).await.expect("ends");
}

/// What the search says, where this worker is welcome and not needed.
async fn is_token(world: &World) -> Value {
    let found = world.ok(&format!("/v1/search?q={TOKEN}")).await;
    let required = found["meta"]["required_workers"].as_array().expect("workers");
    assert_eq!(
        required.contains(&json!("ft_holdings_worker")),
        !found["data"][0]["is_token"].is_null(),
        "{found}"
    );
    found["data"][0]["is_token"].clone()
}

async fn rebuild_of(world: &World, worker: &str) -> Value {
    let status = world.ok("/v1/status").await;
    let workers = status["data"]["derived"]["workers"].as_array().expect("workers").clone();
    let found: Vec<_> = workers.iter().filter(|found| found["name"] == worker).collect();
    assert_eq!(found.len(), 1, "{workers:?}");
    found[0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_begins_anew_is_answered_for_when_it_is_where_it_was() {
    let world = world().await;
    let document = Document::read(&world).await;
    let holders = format!("/v1/tokens/{TOKEN}/holders");
    let whole = world.ok(&holders).await;
    assert_eq!(is_token(&world).await, json!(true));
    assert_eq!(rebuild_of(&world, "ft_holdings_worker").await["rebuild"], Value::Null);

    let refused = async |watermark: Value| {
        let reply = world.get(&holders).await;
        document.check(&holders, &reply);
        let problem = world.problem(&holders, 503, "being-rebuilt").await;
        assert_eq!(reply.headers.get("retry-after").and_then(|value| value.to_str().ok()), Some("30"));
        assert_eq!(
            (
                &problem["worker"],
                &problem["watermark_height"],
                &problem["until_height"],
                &problem["retry_after_s"]
            ),
            (&json!("ft_holdings_worker"), &watermark, &json!("9"), &json!(30)),
            "{problem}"
        );
    };
    begin(&world, "ft_holdings_worker").await;
    refused(Value::Null).await;
    assert!(world.app.reset_step("ft_holdings_worker", 1).await.expect("steps"), "one row was all");
    refused(Value::Null).await;
    let worker = rebuild_of(&world, "ft_holdings_worker").await;
    assert_eq!((&worker["tip"], &worker["rebuild"]["is_clearing"]), (&Value::Null, &json!(true)), "{worker}");
    clear(&world, "ft_holdings_worker").await;
    refused(Value::Null).await;
    fold_to(&world, "ft_holdings_worker", 3).await;
    refused(json!("3")).await;
    let reply = world.get("/v1/status").await;
    document.check("/v1/status", &reply);
    let worker = rebuild_of(&world, "ft_holdings_worker").await;
    let told = (
        &worker["rebuild"]["first_height"],
        &worker["rebuild"]["until_height"],
        &worker["rebuild"]["is_clearing"],
    );
    assert_eq!(told, (&json!("0"), &json!("9"), &json!(false)), "{worker}");

    // What rests on others is answered, and where it is only welcome it is left out rather than shown in part.
    world.ok(&format!("/v1/tokens/{TOKEN}/transfers")).await;
    assert_eq!(is_token(&world).await, Value::Null);

    begin(&world, "ft_holdings_worker").await;
    clear(&world, "ft_holdings_worker").await;
    world.derive_by(evm_processors(&Settings::default())).await;
    let again = world.ok(&holders).await;
    assert_eq!(again, whole);
    assert_eq!(is_token(&world).await, json!(true));
    assert_eq!(rebuild_of(&world, "ft_holdings_worker").await["rebuild"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn events_that_are_made_anew_are_no_shorter_list() {
    let world = world().await;
    let list = format!("/v1/tokens/{TOKEN}/transfers");
    world.ok(&list).await;
    begin(&world, "token_worker").await;
    assert_eq!(world.problem(&list, 503, "being-rebuilt").await["worker"], "token_worker");
    clear(&world, "token_worker").await;
    assert_eq!(world.problem(&list, 503, "being-rebuilt").await["worker"], "token_worker");
    world.derive_by(evm_processors(&Settings::default())).await;
    world.ok(&list).await;
    let snapshot = world.app.snapshot().await.expect("reads");
    assert!(snapshot.being_rebuilt("token_worker").is_none());
}
