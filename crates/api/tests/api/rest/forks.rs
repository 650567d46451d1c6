//! What reorgs do to answers and to pages.

use cairn_api::rest::RestLimits;
use cairn_core::BlockId;
use serde_json::Value;

use super::world::{TOKEN, World, limits, moved};
use crate::support::{append, made};

/// Heights 100 to 104 with two transfers each.
async fn world() -> World {
    let blocks = made::chain(100, 5, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 1), moved(1, 2, 2)]]);
    let world = World::new(blocks).await;
    world.derive().await;
    world
}

/// Another block 104, with one transfer, and 105.
async fn fork(world: &World) {
    let common = made::at(&world.store, 103).await;
    made::roll_back(&world.store, common).await;
    let blocks = made::chain(104, 2, common.id, 1, |_| vec![vec![moved(1, 2, 7)]]);
    append(&world.store, blocks, None).await;
}

fn amounts(page: &Value) -> Vec<(&str, &str)> {
    let rows = page["data"].as_array().expect("rows");
    rows.iter()
        .map(|row| (row["block_height"].as_str().expect("text"), row["amount"].as_str().expect("text")))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a03_a_page_after_a_reorg_says_so_and_how_to_go_on() {
    let world = world().await;
    let list = format!("/v1/tokens/{TOKEN}/transfers?order=asc&limit=9");
    let page = world.ok(&list).await;
    assert_eq!(amounts(&page).last(), Some(&("104", "1")));
    let next = page["page"]["next"].as_str().expect("more").to_owned();

    fork(&world).await;
    // The derived tables still stand on the old fork: neither it nor a mixture is an answer.
    world.problem(&list, 409, "forks-disagree").await;
    world.derive().await;

    let problem = world.problem(&format!("{list}&cursor={next}"), 409, "reorged").await;
    assert_eq!(problem["common_height"], "103");
    let restart = problem["next"].as_str().expect("a cursor");
    let rest = world.ok(&format!("{list}&cursor={restart}")).await;
    assert_eq!(amounts(&rest), [("104", "7"), ("105", "7")]);
}

#[tokio::test(start_paused = true)]
async fn a03_downwards_what_lies_below_the_common_block_goes_on_where_it_was() {
    let world = world().await;
    let list = format!("/v1/tokens/{TOKEN}/transfers?order=desc");
    let first = world.ok(&format!("{list}&limit=1")).await;
    let third = world.ok(&format!("{list}&limit=3")).await;
    assert_eq!(amounts(&third), [("104", "2"), ("104", "1"), ("103", "2")]);
    fork(&world).await;
    world.derive().await;
    for (page, expected) in [(first, ("103", "2")), (third, ("103", "1"))] {
        let next = page["page"]["next"].as_str().expect("more");
        let problem = world.problem(&format!("{list}&cursor={next}"), 409, "reorged").await;
        assert_eq!(problem["common_height"], "103");
        let restart = problem["next"].as_str().expect("a cursor");
        let rest = world.ok(&format!("{list}&cursor={restart}")).await;
        assert_eq!(amounts(&rest)[0], expected);
        assert_eq!(amounts(&rest).last(), Some(&("100", "1")));
    }
}

#[tokio::test(start_paused = true)]
async fn a03_pages_that_saw_nothing_of_the_lost_blocks_go_on() {
    let world = world().await;
    let list = format!("/v1/tokens/{TOKEN}/transfers?order=asc&limit=8");
    let page = world.ok(&list).await;
    assert_eq!(amounts(&page).last(), Some(&("103", "2")));
    fork(&world).await;
    world.derive().await;
    let next = page["page"]["next"].as_str().expect("more");
    let rest = world.ok(&format!("{list}&cursor={next}")).await;
    assert_eq!(amounts(&rest), [("104", "7"), ("105", "7")]);
}

#[tokio::test(start_paused = true)]
async fn a03_pages_that_passed_over_lost_blocks_without_showing_any_say_so() {
    // Only blocks 100 and, on the other fork, 104 have the log that is looked for; the index covers the sender alone.
    let wanted = || vec![vec![moved(1, 5, 1)]];
    let others = || vec![vec![moved(1, 2, 1), moved(1, 2, 2)]];
    let blocks = made::chain(100, 5, BlockId::default(), 0, |height| match height {
        100 => wanted(),
        104 => vec![(1..=4).map(|amount| moved(1, 2, amount)).collect()],
        _ => others(),
    });
    let world = World::with(blocks, RestLimits { max_examined_rows: 3, ..limits() }).await;
    world.derive().await;
    let sought = moved(1, 5, 1);
    let [_, from, to] = sought.data.topics() else { panic!("three topics") };
    let list = format!("/v1/logs?order=asc&limit=2&topic1={from}&topic2={to}");
    let mut next = String::new();
    let mut shown = 0;
    for _ in 0..3 {
        let page = world.ok(&format!("{list}{next}")).await;
        shown += page["data"].as_array().expect("rows").len();
        next = format!("&cursor={}", page["page"]["next"].as_str().expect("more"));
    }
    // It has examined nine rows, the last ones in block 104, and shown one of block 100.
    assert_eq!(shown, 1);

    let common = made::at(&world.store, 102).await;
    made::roll_back(&world.store, common).await;
    let blocks = made::chain(103, 3, common.id, 1, |height| if height == 104 { wanted() } else { others() });
    append(&world.store, blocks, None).await;
    world.derive().await;
    let problem = world.problem(&format!("{list}{next}"), 409, "reorged").await;
    assert_eq!(problem["common_height"], "102");
    next = format!("&cursor={}", problem["next"].as_str().expect("a cursor"));
    let mut heights = Vec::new();
    loop {
        let page = world.ok(&format!("{list}{next}")).await;
        let rows = page["data"].as_array().expect("rows");
        heights.extend(rows.iter().map(|row| row["block_height"].as_str().expect("text").to_owned()));
        match page["page"]["next"].as_str() {
            Some(more) => next = format!("&cursor={more}"),
            None => break,
        }
    }
    assert_eq!(heights, ["104"]);
}

#[tokio::test(start_paused = true)]
async fn a03_blocks_are_paged_over_a_reorg_alike() {
    let world = world().await;
    let page = world.ok("/v1/blocks?limit=2").await;
    let next = page["page"]["next"].as_str().expect("more").to_owned();
    let up = world.ok("/v1/blocks?limit=5&order=asc").await;
    assert_eq!(up["page"]["next"], Value::Null);
    let resume = up["page"]["resume"].as_str().expect("a cursor").to_owned();
    fork(&world).await;
    let problem = world.problem(&format!("/v1/blocks?limit=2&cursor={next}"), 409, "reorged").await;
    let restart = problem["next"].as_str().expect("a cursor");
    let rest = world.ok(&format!("/v1/blocks?limit=2&cursor={restart}")).await;
    assert_eq!(rest["data"][0]["height"], "102");
    let problem = world.problem(&format!("/v1/blocks?order=asc&cursor={resume}"), 409, "reorged").await;
    assert_eq!(problem["common_height"], "103");
    let restart = problem["next"].as_str().expect("a cursor");
    let rest = world.ok(&format!("/v1/blocks?order=asc&cursor={restart}")).await;
    assert_eq!(rest["data"][0]["height"], "104");
    assert_eq!(rest["data"][1]["height"], "105");
}

#[tokio::test(start_paused = true)]
async fn lists_by_state_that_showed_what_is_gone_begin_again() {
    let blocks = made::chain(0, 5, BlockId::default(), 0, |height| {
        vec![vec![moved(0, 10 + height as u8, height + 1)]]
    });
    let world = World::new(blocks).await;
    world.derive().await;
    let list = format!("/v1/tokens/{TOKEN}/holders?limit=2");
    let page = world.ok(&list).await;
    assert_eq!(page["data"][0]["balance"], "5");
    let common = made::at(&world.store, 3).await;
    made::roll_back(&world.store, common).await;
    append(&world.store, made::chain(4, 1, common.id, 1, |_| vec![]), None).await;
    world.derive().await;
    let next = page["page"]["next"].as_str().expect("more");
    let problem = world.problem(&format!("{list}&cursor={next}"), 409, "reorged").await;
    assert_eq!(problem["common_height"], "3");
    assert_eq!(problem.get("next"), None);
    assert_eq!(world.ok(&list).await["data"][0]["balance"], "4");
}

#[tokio::test(start_paused = true)]
async fn a_reorg_far_above_the_derived_tables_disturbs_no_list() {
    let world = world().await;
    let more = made::chain(105, 3, made::tip(&world.store).await.id, 0, |_| vec![]);
    append(&world.store, more, None).await;
    let common = made::at(&world.store, 106).await;
    made::roll_back(&world.store, common).await;
    let page = world.ok(&format!("/v1/tokens/{TOKEN}/transfers")).await;
    assert_eq!(page["meta"]["data_watermark"]["height"], "104");
    // A block above the watermark is known, its transactions are not yet.
    world.ok("/v1/blocks/106").await;
    let problem = world.problem("/v1/blocks/106/transactions", 503, "not-yet").await;
    assert_eq!(problem["watermark_height"], "104");
}
