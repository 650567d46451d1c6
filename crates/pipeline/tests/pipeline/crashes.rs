//! A process that dies at any commit: the one after it goes on, and nothing is lost or doubled.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_core::{Height, HeightRange};
use cairn_pipeline::ingest::FillOptions;
use cairn_source::evm::synthetic::{ForkId, SyntheticChain};
use cairn_store::memory::CommitHook;
use cairn_store::{Dump, RawDump};
use support::*;
use tokio::sync::Notify;

/// Kills the process at one commit: before it, or after it and before anybody hears of it.
struct Crash {
    at: usize,
    side: When,
    commits: AtomicUsize,
    /// A process that died does nothing more.
    dead: AtomicBool,
    died: Notify,
}

impl Crash {
    fn new(at: usize, side: When) -> Arc<Crash> {
        let (commits, dead, died) = (AtomicUsize::new(0), AtomicBool::new(false), Notify::new());
        Arc::new(Crash { at, side, commits, dead, died })
    }

    fn die(&self) -> cairn_store::Result<()> {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
        Err(busy())
    }
}

impl CommitHook for Crash {
    fn before(&self, _verb: &'static str) -> cairn_store::Result<()> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(busy());
        }
        let nth = self.commits.fetch_add(1, Ordering::SeqCst);
        if nth == self.at && self.side == When::Before { self.die() } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> cairn_store::Result<()> {
        let nth = self.commits.load(Ordering::SeqCst) - 1;
        if nth == self.at && self.side == When::After { self.die() } else { Ok(()) }
    }
}

struct Played {
    commits: usize,
    died: bool,
    dump: Dump,
    /// Common height and number of orphans of each reorg.
    reorgs: Vec<(u64, usize)>,
}

/// A backfill, a fork, and growth with finality, with a crash at one commit.
async fn play(
    chain: &Arc<SyntheticChain>,
    other: ForkId,
    fill: Option<FillOptions>,
    at: usize,
    side: When,
) -> Played {
    let world = World::new(chain.clone(), view(MAIN, 36, Some(28))).with(|options| {
        options.batch_blocks = 5;
        options.fill = fill;
    });
    let crash = Crash::new(at, side);
    world.store.set_hook(Some(crash.clone()));
    let start = || world.start_from(Arc::new(world.node.clone()), world.options.clone());
    let mut running = start();
    let mut died = false;
    for shown in [view(MAIN, 36, Some(28)), view(other, 37, Some(28)), view(other, 44, Some(40))] {
        world.see(shown);
        let (tip, finalized) = (chain.block_ref(shown.fork, shown.head), shown.finalized);
        let mut looks = 0;
        loop {
            tokio::select! {
                biased;
                () = crash.died.notified() => {
                    died = true;
                    running.kill().await;
                    crash.dead.store(false, Ordering::SeqCst);
                    running = start();
                }
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
            looks += 1;
            assert!(looks < 20_000, "it never arrived after a crash {side:?} commit {at}");
            let Ok(snapshot) = cairn_store::RawReader::snapshot(&world.store).await else { continue };
            let head = snapshot.head();
            let marked = head.finalized.map(|mark| mark.height) >= finalized;
            if head.tip == Some(tip) && head.pending_purge.is_none() && marked {
                break;
            }
        }
    }
    running.stop_well().await;
    let entries = world.snapshot().await.reorgs(0, 10).await.expect("reads");
    Played {
        commits: crash.commits.load(Ordering::SeqCst),
        died,
        dump: world.store.dump().await.expect("dumps"),
        reorgs: entries.iter().map(|entry| (entry.common.height.get(), entry.orphans.len())).collect(),
    }
}

async fn crash_at_every_commit(seed: u64, fill: Option<FillOptions>) {
    let chain = tiny(seed);
    let other = fork(&chain, 33, 1);
    let finalized = Some(chain.block_ref(other, Height(40)));
    let want = clean(&chain, other, HeightRange::inclusive(Height(0), Height(44)), finalized).await;
    let whole = play(&chain, other, fill.clone(), usize::MAX, When::Before).await;
    assert!(!whole.died && whole.commits >= 12, "{} commits", whole.commits);
    for at in 0..whole.commits {
        for side in [When::Before, When::After] {
            let played = play(&chain, other, fill.clone(), at, side).await;
            assert!(played.died, "commit {at} was reached");
            let difference = played.dump.first_difference(&want);
            assert_eq!(difference, None, "after a crash {side:?} commit {at}");
            assert_eq!(played.reorgs, [(33, 3)], "after a crash {side:?} commit {at}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn i01_a_crash_before_or_after_any_commit_loses_and_doubles_nothing() {
    crash_at_every_commit(1, None).await;
}

#[tokio::test(start_paused = true)]
async fn i01_the_same_with_ranges_filled_in_parallel() {
    let fill = FillOptions { workers: 2, range_heights: 8, lease_ttl_ms: 20_000, owner: "a-test".into() };
    crash_at_every_commit(2, Some(fill)).await;
}
