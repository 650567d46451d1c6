//! Whatever a stranger sends, the server never fails.

use axum::body::Body;
use axum::http::{Request, Uri};
use cairn_core::BlockId;
use proptest::prelude::*;

use super::world::{World, moved};
use crate::support::made;

const LISTS: [&str; 15] = [
    "/v1/blocks",
    "/v1/transactions",
    "/v1/blocks/1/transactions",
    "/v1/tokens",
    "/v1/nft-collections",
    "/v1/contracts",
    "/v1/contracts/0x7070707070707070707070707070707070707070/transactions",
    "/v1/stats/daily",
    "/v1/accounts/0x0101010101010101010101010101010101010101/transfers",
    "/v1/accounts/0x0101010101010101010101010101010101010101/transactions",
    "/v1/accounts/0x0101010101010101010101010101010101010101/holdings",
    "/v1/tokens/0x7070707070707070707070707070707070707070/transfers",
    "/v1/tokens/0x7070707070707070707070707070707070707070/holders",
    "/v1/nft-collections/0x7070707070707070707070707070707070707070/items",
    "/v1/logs?address=0x7070707070707070707070707070707070707070",
];

fn runtime() -> (tokio::runtime::Runtime, World) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
    let world = runtime.block_on(async {
        let world =
            World::new(made::chain(0, 5, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]])).await;
        world.derive().await;
        world
    });
    (runtime, world)
}

fn percent(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn a06_no_cursor_makes_the_server_fail() {
    let (runtime, world) = runtime();
    // A real one, to begin from.
    let page = runtime.block_on(world.ok("/v1/transactions?limit=1"));
    let next = page["page"]["next"].as_str().expect("more").to_owned();
    let cursor = prop_oneof![
        any::<Vec<u8>>().prop_map(|bytes| percent(&bytes)),
        "[A-Za-z0-9_-]{1,200}",
        (any::<prop::sample::Index>(), "[A-Za-z0-9_-]").prop_map(move |(at, with)| {
            let at = at.index(next.len());
            format!("{}{with}{}", &next[..at], &next[at + 1..])
        }),
    ];
    proptest!(ProptestConfig::with_cases(400), |(list in prop::sample::select(&LISTS[..]), cursor in cursor)| {
        let join = if list.contains('?') { '&' } else { '?' };
        let path = format!("{list}{join}cursor={cursor}");
        let reply = runtime.block_on(world.get(&path));
        let status = reply.status.as_u16();
        // The change may have put the same letter there.
        prop_assert!(status == 400 || status == 200 && list == "/v1/transactions", "{path}: {}", reply.text);
    });
}

#[test]
fn no_path_and_no_query_makes_the_server_fail() {
    let (runtime, world) = runtime();
    let piece = prop_oneof![
        prop::sample::select(vec![
            "blocks",
            "transactions",
            "accounts",
            "tokens",
            "nft-collections",
            "contracts",
            "logs",
            "stats",
            "daily",
            "search",
            "items",
            "holders",
            "owners",
            "transfers",
            "raw",
            "events",
            "code",
            "status",
            "1",
            "18446744073709551615",
            "0x7070707070707070707070707070707070707070",
        ])
        .prop_map(str::to_owned),
        any::<Vec<u8>>().prop_map(|bytes| percent(&bytes)),
        "[a-z0-9.~]{0,70}",
    ];
    let name = prop_oneof![
        prop::sample::select(vec![
            "limit", "cursor", "order", "q", "from", "to", "address", "topic0", "token", "item", "sort",
            "events"
        ])
        .prop_map(str::to_owned),
        "[a-z]{0,5}",
    ];
    let value = prop_oneof![
        any::<Vec<u8>>().prop_map(|bytes| percent(&bytes)),
        "[a-z0-9-]{0,70}",
        prop::sample::select(vec![
            "asc",
            "desc",
            "1",
            "0",
            "200",
            "2026-01-01",
            "true",
            "9223372036854775808"
        ])
        .prop_map(str::to_owned),
    ];
    let path = prop::collection::vec(piece, 0..5);
    let query = prop::collection::vec((name, value), 0..4);
    proptest!(ProptestConfig::with_cases(1_000), |(path in path, query in query)| {
        prop_assume!(!path.iter().any(|piece| piece == "stream"));
        let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let uri = format!("/v1/{}?{}", path.join("/"), query.join("&"));
        prop_assume!(uri.parse::<Uri>().is_ok());
        let request = Request::get(&uri).body(Body::empty()).expect("a request");
        let reply = runtime.block_on(world.send(request));
        prop_assert!(reply.status.as_u16() < 500, "{uri}: {}", reply.text);
        prop_assert!(!reply.text.is_empty());
    });
}
