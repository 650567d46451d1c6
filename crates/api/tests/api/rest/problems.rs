//! Everything that isn't an answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use cairn_api::rest::{RestChain, RestLimits, RestState, router};
use cairn_core::{BlockId, Height};
use cairn_explorer::processors::{Settings, evm_catalog, evm_processors};
use tokio_util::sync::CancellationToken;

use super::world::{TOKEN, World, b256, limits, moved};
use crate::support::made;

async fn small() -> World {
    let world = World::new(made::chain(10, 3, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]])).await;
    world.derive().await;
    world
}

#[tokio::test(start_paused = true)]
async fn paths_methods_and_parameters_that_are_not_there_are_problems() {
    let world = small().await;
    for path in ["/v1", "/v1/", "/v1/nothing", "/v1/blocks/", "/v1/blocks/10/nothing", "/v1/errors"] {
        let problem = world.problem(path, 404, "unknown-route").await;
        assert_eq!(problem["instance"], path);
        assert_eq!(problem["type"], "/v1/docs#unknown-route");
        assert_eq!(problem["status"], 404);
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let reply = world.ask(method, "/v1/blocks").await;
        assert_eq!((reply.status.as_u16(), reply.code()), (405, "method-not-allowed"));
        assert_eq!(reply.headers["allow"], "GET,HEAD");
    }
    for path in [
        "/v1/blocks?order=up",
        "/v1/blocks?offset=3",
        "/v1/blocks?limit=1&limit=2",
        "/v1/status?x",
        "/v1/blocks/10?full=true",
        "/v1/blocks/latest",
        "/v1/blocks/0x10",
        "/v1/blocks/-1",
        "/v1/blocks/99999999999999999999999",
        "/v1/blocks/%FF",
        "/v1/transactions/0x12",
        "/v1/transactions/10?events=maybe",
        "/v1/accounts/nobody",
        "/v1/accounts/0x12/transfers",
        "/v1/logs",
        "/v1/logs?topic0=0x12",
        "/v1/logs?from=1",
        "/v1/logs?address=0x7070707070707070707070707070707070707070&from=12&to=11",
        "/v1/logs?address=0x7070707070707070707070707070707070707070&from=0xa",
        "/v1/stats/daily?from=yesterday",
        "/v1/stats/daily?from=2026-2-1",
        "/v1/stats/daily?from=2026-02-30",
        "/v1/stats/daily?from=2026-02-02&to=2026-02-01",
        "/v1/search",
        "/v1/search?q=",
        "/v1/search?q=%20",
    ] {
        world.problem(path, 400, "invalid-parameter").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_parameter_that_can_not_be_read_is_named() {
    let world = small().await;
    for (path, name) in [
        ("/v1/blocks?order=up", "order"),
        ("/v1/blocks?limit=many", "limit"),
        ("/v1/blocks?limit=201", "limit"),
        ("/v1/blocks?limit=-1", "limit"),
        ("/v1/blocks?limit=1&limit=2", "limit"),
        ("/v1/blocks?offset=3", "offset"),
        ("/v1/status?x", "x"),
        ("/v1/blocks/10?full=true", "full"),
        ("/v1/blocks/0x10", "id"),
        ("/v1/blocks/%FF", "id"),
        ("/v1/accounts/nobody", "address"),
        ("/v1/transactions/10?events=maybe", "events"),
        ("/v1/search", "q"),
        ("/v1/stats/daily?from=yesterday", "from"),
    ] {
        let problem = world.problem(path, 400, "invalid-parameter").await;
        assert_eq!(problem["parameter"], name, "{path}: {problem}");
        let detail = problem["detail"].as_str().expect("a text");
        assert!(detail.contains(name) && !detail.contains("deserialize"), "{path}: {detail}");
    }
}

#[tokio::test(start_paused = true)]
async fn absent_not_yet_and_not_kept_are_told_apart() {
    let world = small().await;
    assert_eq!(world.problem("/v1/blocks/9", 404, "below-archive").await["first_height"], "10");
    assert_eq!(world.problem("/v1/blocks/13", 404, "above-head").await["tip_height"], "12");
    world.problem(&format!("/v1/blocks/{}", b256(9)), 404, "not-found").await;
    world.problem(&format!("/v1/transactions/{}", b256(9)), 404, "not-found").await;
    world.problem(&format!("/v1/transactions/{}/raw", b256(9)), 404, "not-found").await;
    let nobody = "0x1111111111111111111111111111111111111111";
    world.problem(&format!("/v1/tokens/{nobody}"), 404, "not-found").await;
    world.problem(&format!("/v1/contracts/{nobody}"), 404, "not-found").await;
    world.problem(&format!("/v1/nft-collections/{nobody}"), 404, "not-found").await;
    world.problem(&format!("/v1/nft-collections/{nobody}/items/1"), 404, "not-found").await;
    let logs = format!("/v1/logs?address={TOKEN}");
    world.problem(&format!("{logs}&from=9"), 404, "below-archive").await;
    world.problem(&format!("{logs}&to=13"), 404, "above-head").await;
    // What is there, and has nothing in it, is an empty list.
    let empty = world.ok(&format!("/v1/accounts/{nobody}/transfers")).await;
    assert_eq!(empty["data"].as_array().map(Vec::len), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_not_enabled_is_never_an_empty_list() {
    let world = World::new(made::chain(0, 3, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]])).await;
    // Nothing has been derived yet.
    world.problem("/v1/transactions", 503, "not-yet").await;
    world.ok("/v1/status").await;
    world.ok("/v1/blocks").await;
    let all = evm_processors(&Settings::default());
    let some = all.into_iter().filter(|processor| processor.service().name == "token_worker").collect();
    world.derive_by(some).await;
    world.ok(&format!("/v1/tokens/{TOKEN}/transfers")).await;
    for (path, worker) in [
        ("/v1/transactions".to_owned(), "evm_worker"),
        ("/v1/blocks/1/transactions".to_owned(), "evm_worker"),
        (format!("/v1/logs?address={TOKEN}"), "evm_worker"),
        (format!("/v1/accounts/{TOKEN}"), "stats_worker"),
        (format!("/v1/accounts/{TOKEN}/transactions"), "accounts_worker"),
        (format!("/v1/accounts/{TOKEN}/holdings"), "ft_holdings_worker"),
        (format!("/v1/accounts/{TOKEN}/nfts"), "nft_ownership_worker"),
        ("/v1/tokens".to_owned(), "ft_holdings_worker"),
        ("/v1/nft-collections".to_owned(), "nft_ownership_worker"),
        ("/v1/contracts".to_owned(), "meta_worker"),
        (format!("/v1/contracts/{TOKEN}/code"), "contract_code_worker"),
        (format!("/v1/contracts/{TOKEN}/transactions"), "tx_contracts_worker"),
        ("/v1/stats/daily".to_owned(), "stats_worker"),
        ("/v1/search?q=coin".to_owned(), "token_metadata_worker"),
    ] {
        assert_eq!(world.problem(&path, 501, "worker-not-enabled").await["worker"], worker);
    }
    // What is known of an address elsewhere is said to be unknown.
    let found = world.ok(&format!("/v1/search?q={TOKEN}")).await;
    assert!(found["data"][0]["is_contract"].is_null());
}

#[tokio::test(start_paused = true)]
async fn without_derived_tables_the_chain_is_served_and_the_rest_says_why_not() {
    let world = World::new(made::chain(0, 3, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]])).await;
    let router = router(RestState {
        chain: RestChain::Evm,
        raw: Arc::new(world.store.clone()),
        app: None,
        catalog: evm_catalog().expect("tables"),
        upstreams: BTreeMap::new(),
        workers: BTreeMap::new(),
        halts: Arc::new(Vec::new),
        wrapped_tokens: Arc::new(|_| Vec::new()),
        obstacle: Arc::new(|| None),
        search_term: cairn_explorer::processors::evm::token_metadata::search_term,
        limits: limits(),
        new_head: None,
        stop: CancellationToken::new(),
    });
    let world = World { router: router.expect("a document"), ..world };
    assert!(world.ok("/v1/status").await["data"]["derived"].is_null());
    let block = world.ok("/v1/blocks/1").await;
    assert_eq!(block["meta"]["required_workers"].as_array().map(Vec::len), Some(0));
    assert_eq!(block["meta"]["data_watermark"]["height"], "2");
    world.problem("/v1/tokens", 501, "worker-not-enabled").await;
    world.ok("/v1/search?q=1").await;
}

#[tokio::test(start_paused = true)]
async fn an_empty_archive_is_not_yet_there() {
    let world = World::new(Vec::new()).await;
    let status = world.ok("/v1/status").await;
    assert!(status["data"]["raw_tip_height"].is_null() && status["meta"]["data_watermark"].is_null());
    assert_eq!(world.ok("/v1/blocks").await["data"].as_array().map(Vec::len), Some(0));
    world.problem("/v1/blocks/0", 404, "above-head").await;
}

#[tokio::test(start_paused = true)]
async fn requests_over_a_limit_are_refused() {
    let one = RestLimits { max_uri_bytes: 64, max_body_bytes: 10, ..limits() };
    let world = World::with(made::chain(0, 1, BlockId::default(), 0, |_| vec![]), one).await;
    world.problem(&format!("/v1/blocks?cursor={}", "a".repeat(100)), 414, "uri-too-long").await;
    let request = Request::get("/v1/blocks").header("content-length", "11").body(Body::empty());
    let reply = world.send(request.expect("a request")).await;
    assert_eq!((reply.status, reply.code()), (StatusCode::PAYLOAD_TOO_LARGE, "body-too-large"));

    let none = RestLimits { max_streams: 0, ..limits() };
    let world = World::with(made::chain(0, 1, BlockId::default(), 0, |_| vec![]), none).await;
    let reply = world.get("/v1/blocks/stream").await;
    assert_eq!((reply.status.as_u16(), reply.code()), (503, "overloaded"));
    assert_eq!(reply.headers["retry-after"], "1");
}

#[tokio::test(start_paused = true)]
async fn too_many_requests_and_too_slow_ones_are_told_to_come_again() {
    let blocks = made::chain(0, 3, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]]);
    let slow = RestLimits {
        max_concurrent_requests: 1,
        queue_timeout_ms: 10,
        request_timeout_ms: 1_000,
        fork_tries: 20,
        fork_pause_ms: 1_000,
        ..RestLimits::default()
    };
    let world = World::with(blocks, slow).await;
    world.derive().await;
    // While the databases disagree, a request waits for them.
    let common = made::at(&world.store, 1).await;
    made::roll_back(&world.store, common).await;
    let waiting = world.get("/v1/transactions");
    let other = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        world.get("/v1/blocks").await
    };
    let (waiting, other) = tokio::join!(waiting, other);
    assert_eq!((waiting.status.as_u16(), waiting.code()), (503, "timeout"));
    assert_eq!((other.status.as_u16(), other.code()), (503, "overloaded"));
    assert_eq!(other.headers["retry-after"], "1");
    assert_eq!(other.json["retry_after_s"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_examines_a_bounded_number_of_rows_and_goes_on() {
    let blocks = made::chain(0, 40, BlockId::default(), 0, |height| {
        vec![vec![moved(1, 2, height), moved(3, 4, height)]]
    });
    let few = RestLimits { max_examined_rows: 10, ..limits() };
    let world = World::with(blocks, few).await;
    world.derive().await;
    // Only one log of the 80 matches the filter, and the index covers the address alone.
    let topic = b256(0);
    let wanted = format!("/v1/logs?limit=5&address={TOKEN}&topic0={}", moved(1, 2, 0).data.topics()[0]);
    let (rows, sizes) = world.pages(&wanted).await;
    assert_eq!(rows.len(), 80);
    assert!(sizes.iter().all(|size| *size <= 5));
    let (rows, sizes) = world.pages(&format!("/v1/logs?limit=5&address={TOKEN}&topic0={topic}")).await;
    assert_eq!(rows.len(), 0);
    assert!(sizes.len() > 5, "{sizes:?}");
}

/// Law 2: what a block's row should say is in no answer without it, and the height is named.
#[tokio::test(start_paused = true)]
async fn i06_a_block_that_was_lost_is_named_and_never_passed_over() {
    let world = small().await;
    world.store.lose_block(Height(11)).expect("loses");
    for path in [
        "/v1/blocks",
        "/v1/blocks?order=asc",
        "/v1/blocks/11",
        "/v1/blocks/11/transactions",
        "/v1/search?q=11",
        "/v1/logs?address=0x7070707070707070707070707070707070707070&from=11",
    ] {
        let problem = world.problem(path, 500, "internal").await;
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains("height 11:"), "{path}: {detail}");
    }
    world.ok("/v1/blocks/12").await;
}
