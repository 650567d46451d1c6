//! What ingestion can't get past: named in its status, told in the error log, and over by itself.

// Tests may.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_core::{ErrorKind, Height};
use cairn_pipeline::ingest::FillOptions;
use cairn_pipeline::status::{BLOCK_REFUSED, LASTING_TRIES, SOURCE_REFUSED};
use cairn_source::SourceError;
use support::node::{Asked, rate_limited, transient};
use support::*;

type MakeError = fn() -> SourceError;

fn endpoint() -> String {
    "node.example:8545".into()
}

fn refused() -> SourceError {
    SourceError::Refused {
        endpoint: endpoint(),
        message: "eth_getBlockByNumber: HTTP 403: not for you".into(),
    }
}

fn permanent() -> SourceError {
    SourceError::Permanent { endpoint: endpoint(), message: "-32601: no such method".into() }
}

fn invalid() -> SourceError {
    SourceError::Invalid("no node serves this height".into())
}

fn too_wide() -> SourceError {
    SourceError::TooWide { endpoint: endpoint(), message: "response too large".into() }
}

fn inconsistent() -> SourceError {
    SourceError::Inconsistent {
        endpoint: endpoint(),
        height: Height(41),
        check: "receipts-root".into(),
        message: "0x01 and 0x02".into(),
    }
}

/// Every failure that says nothing of the chain's data, and one that contradicts itself and may do better next time.
const PASSING: [(&str, MakeError); 7] = [
    ("refused", refused),
    ("permanent", permanent),
    ("invalid", invalid),
    ("too wide", too_wide),
    ("rate limited", rate_limited),
    ("transient", transient),
    ("inconsistent", inconsistent),
];

/// Lets a node fail at everything that `of` names until it is told to be well.
fn fail(world: &World, of: &'static str, error: MakeError) {
    let fails = move |what: &str| if of == what { Err(error()) } else { Ok(()) };
    world.node.refuse(move |asked| {
        fails(match asked {
            Asked::ChainId => "start",
            Asked::Heads => "heads",
            Asked::Header(_) => "fork walk",
            Asked::Blocks(_) => "blocks",
        })
    });
}

#[tokio::test(start_paused = true)]
async fn k1_no_failure_of_a_node_ends_ingestion_wherever_it_comes() {
    for (seed, (kind, error)) in (1..).zip(PASSING) {
        for (of, filled) in
            [("start", false), ("heads", false), ("blocks", false), ("blocks", true), ("fork walk", false)]
        {
            let what = format!("{kind} at {of}, filled {filled}");
            let world = World::new(tiny(seed), view(MAIN, 40, Some(10))).with(|options| {
                options.fill =
                    filled.then(|| FillOptions { workers: 2, range_heights: 10, ..FillOptions::default() });
            });
            let mut running = world.start();
            world.until_tip(MAIN, 40).await;
            let side = match of {
                "fork walk" => fork(&world.chain, 35, 1),
                _ => MAIN,
            };
            if of == "start" {
                running.stop_well().await;
                fail(&world, of, error);
                running = world.start();
            } else {
                fail(&world, of, error);
            }
            world.see(view(side, 140, Some(if filled { 130 } else { 10 })));
            pass_ms(120_000).await;
            assert!(running.is_running(), "{what}");
            let obstacle = running.board.get().obstacle.expect(&what);
            assert!(obstacle.message.contains(&error().to_string()), "{what}: {obstacle:?}");
            assert!(obstacle.tries >= LASTING_TRIES, "{what}: {obstacle:?}");
            let code = match error() {
                SourceError::Inconsistent { .. } => BLOCK_REFUSED,
                error if error.is_refusal() => SOURCE_REFUSED,
                _ => "source",
            };
            assert_eq!((obstacle.code, obstacle.is_lasting()), (code, code != "source"), "{what}");
            world.node.well();
            pass_ms(61_000).await;
            assert_eq!(world.tip().await, Some(world.chain.block_ref(side, Height(140))), "{what}");
            assert_eq!(running.board.get().obstacle, None, "{what}");
            if filled {
                assert!(world.snapshot().await.raw_leases().await.unwrap().is_empty(), "{what}");
            }
            world.assert_holds(side, 0, 140).await;
            running.stop_well().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn k1_a_chain_id_or_a_file_that_contradicts_ends_it() {
    let wrong = || SourceError::WrongChain {
        endpoint: endpoint(),
        found: cairn_core::ChainId(2),
        expected: cairn_core::ChainId(1),
    };
    for error in [wrong, || SourceError::File("block 3 at byte 17 is cut".into())] {
        let world = World::new(tiny(1), view(MAIN, 40, None));
        fail(&world, "blocks", error);
        let ended = world.start().end().await.expect_err("the data say so");
        assert_eq!(ended.kind(), ErrorKind::Halt, "{ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_block_is_on_the_board_with_height_check_remedy_and_since_when() {
    let world = World::new(tiny(2), view(MAIN, 60, None));
    fail(&world, "blocks", transient);
    let running = world.start();
    pass_ms(100).await;
    let began = running.board.get().obstacle.expect("it failed").since_ms;
    fail_at(&world, 41, inconsistent);
    world.until_tip(MAIN, 40).await;
    pass_ms(100).await;
    let first = running.board.get().obstacle.expect("it failed");
    assert_eq!((first.tries, first.is_lasting()), (1, false), "40 blocks were stored in between: {first:?}");
    pass_ms(60_000).await;
    let obstacle = running.board.get().obstacle.expect("it fails");
    assert_eq!(
        (obstacle.code, obstacle.height, obstacle.check.as_deref()),
        (BLOCK_REFUSED, Some(Height(41)), Some("receipts-root"))
    );
    assert!(obstacle.remedy.as_deref().unwrap().contains("--relax receipts-root"), "{obstacle:?}");
    assert!(obstacle.since_ms == first.since_ms && obstacle.since_ms > began, "{obstacle:?}");
    let words = obstacle.to_string();
    assert!(words.contains("block 41 from node.example:8545 failed check `receipts-root`"), "{words}");
    world.node.well();
    world.until_tip(MAIN, 60).await;
    pass_ms(2_000).await;
    assert_eq!(running.board.get().obstacle, None);
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refused_and_is_left_alone_meanwhile_still_refuses() {
    let world = World::new(tiny(6), view(MAIN, 40, None));
    let running = world.start();
    world.until_tip(MAIN, 40).await;
    fail(&world, "heads", refused);
    pass_ms(2_000).await;
    fail(&world, "heads", rate_limited);
    pass_ms(120_000).await;
    let obstacle = running.board.get().obstacle.expect("it fails");
    assert_eq!((obstacle.code, obstacle.is_lasting()), (SOURCE_REFUSED, true), "{obstacle:?}");
    assert!(obstacle.message.contains("too many requests"), "what it says now: {obstacle:?}");
    assert!(obstacle.remedy.is_some(), "{obstacle:?}");
    world.node.well();
    pass_ms(61_000).await;
    assert_eq!(running.board.get().obstacle, None);
    running.stop_well().await;
}

/// Lets blocks fail whose range holds `height`, in one call only for what precedes it.
fn fail_at(world: &World, height: u64, error: MakeError) {
    world.node.well();
    world.node.on_blocks(move |range, mut honest| {
        if range.start() == Height(height) {
            return Err(error());
        }
        honest.retain(|block| block.facts.height < Height(height));
        Ok(honest)
    });
}

#[tokio::test(start_paused = true)]
async fn a_failure_without_a_height_names_the_one_that_was_asked_for() {
    let world = World::new(tiny(3), view(MAIN, 60, None));
    fail_at(&world, 17, refused);
    let running = world.start();
    world.until_tip(MAIN, 16).await;
    pass_ms(5_000).await;
    let obstacle = running.board.get().obstacle.expect("it fails");
    assert_eq!(obstacle.height, Some(Height(17)));
    assert!(obstacle.message.starts_with("block 17: node.example:8545 refuses"), "{obstacle:?}");
    running.stop_well().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_well_now_and_then_is_no_obstacle_that_lasts() {
    let world = World::new(tiny(4), view(MAIN, 200, None));
    let fails = Arc::new(AtomicBool::new(false));
    world.node.on_blocks(move |range, honest| match fails.fetch_xor(true, Ordering::SeqCst) {
        true => Err(SourceError::Inconsistent {
            endpoint: endpoint(),
            height: range.start(),
            check: "link".into(),
            message: "two forks".into(),
        }),
        false => Ok(honest),
    });
    let running = world.start();
    let mut status = running.board.subscribe();
    let watching = tokio::spawn(async move {
        let mut most = 0;
        while status.changed().await.is_ok() {
            most = most.max(status.borrow().obstacle.as_ref().map_or(0, |obstacle| obstacle.tries));
        }
        most
    });
    world.until_tip(MAIN, 200).await;
    running.stop_well().await;
    let most = watching.await.unwrap();
    assert!((1..LASTING_TRIES).contains(&most), "{most}");
}
