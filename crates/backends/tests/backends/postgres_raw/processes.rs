//! Several processes at once, and one that ends between any two statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_backends::postgres::{PgRawStore, StatementHook};
use cairn_core::{BlockId, Clock, Height, RawBlock, SystemClock};
use cairn_store::derived::{ErrorFilter, ErrorLog, NewError, Severity};
use cairn_store::suite::TestClock;
use cairn_store::suite::blocks::{chain, fork};
use cairn_store::{
    HeadRow, Maintained, PurgeProgress, RawFiller, RawLeaseState, RawMaintenance, RawReader, RawWriter,
    Result, Rollback, StoreError,
};

use super::{assert_is_clean, batch, begun, info, number, open, options};
use crate::support::pg;

/// Breaks the statement with this number.
struct BreakAt {
    left: AtomicU64,
}

impl StatementHook for BreakAt {
    fn before_statement(&self) -> Result<()> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 => Err(StoreError::Database("crash".into())),
            _ => Ok(()),
        }
    }
}

/// One step of a script that appends, takes blocks back, fills ahead and joins. `None` at the end.
async fn step(store: &PgRawStore, blocks: &[RawBlock], dead: &[RawBlock]) -> Result<Option<HeadRow>> {
    let head = store.acquire().await?;
    if head.pending_purge.is_some() {
        store.purge_step(head.fence, 2).await?;
        return Ok(Some(head));
    }
    let next = head.tip.map_or(0, |tip| tip.height.get() as usize + 1);
    // First onto the dead fork, then back, then on.
    if next == 12 && head.newest_reorg.id == 0 {
        store.append(head.fence, batch(&dead[12..16])).await?;
        return Ok(Some(head));
    }
    if next == 16 && head.newest_reorg.id == 0 {
        let common = blocks[11].block_ref();
        store.rollback(head.fence, Rollback { common, max_depth: 10, decided_at_ms: 1 }).await?;
        return Ok(Some(head));
    }
    if next >= blocks.len() {
        store.prune_orphans(head.fence, 0, 1).await?;
        store.maintain(20_000).await?;
        return Ok(None);
    }
    if (16..36).contains(&next) {
        let stop = Height(36.min(blocks.len() as u64));
        let lease = store.claim_range("w", 0, 10, stop).await?;
        if let Some(lease) = lease {
            let (from, to) = (lease.done_to.get() as usize, lease.range.end().get() as usize);
            store.fill(&lease, blocks[from..to.min(from + 5)].to_vec(), 0).await?;
        }
        return store.advance(head.fence).await.map(Some);
    }
    let end = blocks.len().min(next + 3);
    store.append(head.fence, batch(&blocks[next..end])).await?;
    store.maintain(20_000).await?;
    Ok(Some(head))
}

/// A run that is broken at this statement, and one that goes on from there: as clean as one that was never broken. Whether it came to that statement.
async fn survives_a_crash_at(db: &pg::TestDb, crash_at: u64, blocks: &[RawBlock], dead: &[RawBlock]) -> bool {
    db.sql("DROP SCHEMA IF EXISTS raw CASCADE").await;
    let store = open(db).await;
    store.init(info()).await.expect("init");
    store.set_statement_hook(Some(Arc::new(BreakAt { left: AtomicU64::new(crash_at) })));
    let crashed = loop {
        match step(&store, blocks, dead).await {
            Ok(Some(_)) => {}
            Ok(None) => break false,
            Err(StoreError::Database(error)) if error == "crash" => break true,
            Err(error) => panic!("crash at {crash_at}: {error}"),
        }
    };
    drop(store);
    let store = open(db).await;
    while step(&store, blocks, dead).await.expect("goes on").is_some() {}
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, blocks).await;
    crashed
}

/// Every statement of the script, those of several runs beside each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i01_a_crash_between_any_two_statements_ends_as_a_clean_run() {
    const BESIDE: u64 = 4;
    let (blocks, trunk) = (Arc::new(chain(0, 45, 0)), chain(0, 12, 0));
    let dead = Arc::new(fork(&trunk, 11, 6, 9));
    let mut runs = Vec::new();
    for first in 0..BESIDE {
        let Some(db) = pg::database().await else { return };
        let (blocks, dead) = (blocks.clone(), dead.clone());
        runs.push(tokio::spawn(async move {
            let mut crash_at = first;
            while survives_a_crash_at(&db, crash_at, &blocks, &dead).await {
                crash_at += BESIDE;
            }
            crash_at
        }));
    }
    let mut statements = u64::MAX;
    for run in runs {
        statements = statements.min(run.await.expect("each is survived"));
    }
    assert!(statements > 200, "{statements} statements");
}

/// Three fillers, each with its own connections, an ingester that advances and appends: as several processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_processes_fill_while_the_ingester_appends_and_advances() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let blocks = Arc::new(chain(0, 400, 0));
    store.append(fence, batch(&blocks[..5])).await.expect("appends");
    let fillers: Vec<_> = (0..3)
        .map(|n| {
            let (options, blocks) = (options(&db), blocks.clone());
            tokio::spawn(async move {
                let store = PgRawStore::open(options, None).await.expect("opens");
                let owner = format!("filler {n}");
                let mut filled = 0_u64;
                loop {
                    let claimed = store.claim_range(&owner, 60_000, 16, Height(380)).await;
                    let Some(mut lease) = claimed.expect("claims") else { break filled };
                    while lease.state == RawLeaseState::Active {
                        let from = lease.done_to.get() as usize;
                        let to = (from + 5).min(lease.range.end().get() as usize);
                        lease = match store.fill(&lease, blocks[from..to].to_vec(), 60_000).await {
                            Ok(renewed) => renewed,
                            // The appends of the ingester have passed the end of its range.
                            Err(StoreError::Fenced { .. }) => break,
                            Err(error) => panic!("{error}"),
                        };
                        filled += 1;
                    }
                }
            })
        })
        .collect();
    let mut done = Vec::new();
    for filler in fillers {
        // The head moves meanwhile, and appends run into what was filled.
        for _ in 0..5 {
            let head = store.advance(fence).await.expect("advances");
            let next = head.tip.expect("a tip").height.get() as usize + 1;
            // Two blocks, and nothing above what the fillers may take.
            if next + 2 <= 380 {
                store.append(fence, batch(&blocks[next..next + 2])).await.expect("appends");
            }
        }
        done.push(filler.await.expect("ends"));
    }
    let head = store.advance(fence).await.expect("advances");
    assert_eq!(head.tip.map(|tip| tip.height), Some(Height(379)), "{done:?}");
    store.append(fence, batch(&blocks[380..])).await.expect("appends");
    while store.maintain(1 << 20).await.expect("maintains") == Maintained::More {}
    assert_is_clean(&store, &blocks).await;
    assert!(store.snapshot().await.expect("reads").raw_leases().await.expect("reads").is_empty());
}

/// A fill that is being committed and a rollback that takes its lease away: whichever comes first, nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rollback_beside_running_fills_leaves_nothing_behind() {
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    let trunk = chain(0, 10, 0);
    let branch = Arc::new(fork(&trunk, 7, 60, 1));
    store.append(fence, batch(&trunk[..8])).await.expect("appends");
    for round in 0..12_u64 {
        store.append(fence, batch(&branch[8..10])).await.expect("appends");
        let lease = store.claim_range("w", 60_000, 100, Height(60)).await.expect("claims").expect("a range");
        let (filler, blocks, held) = (open(&db).await, branch.clone(), lease.clone());
        let filling = tokio::spawn(async move {
            let mut held = held;
            while held.done_to < Height(50) {
                let from = held.done_to.get() as usize;
                match filler.fill(&held, blocks[from..from + 4].to_vec(), 60_000).await {
                    Ok(renewed) => held = renewed,
                    Err(error) => return error,
                }
            }
            StoreError::Invalid("it was never stopped".into())
        });
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        let common = trunk[7].block_ref();
        store
            .rollback(fence, Rollback { common, max_depth: 10, decided_at_ms: 1 })
            .await
            .expect("rolls back");
        let ended = filling.await.expect("ends");
        assert!(matches!(ended, StoreError::Fenced { .. } | StoreError::Invalid(_)), "{ended}");
        while store.purge_step(fence, 1).await.expect("purges") != PurgeProgress::Done {}
        assert_is_clean(&store, &trunk[..8]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p02_writers_of_the_same_rows_in_opposite_order_do_not_fail() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let errors: Vec<NewError> = (0..500)
        .map(|n| NewError {
            service: format!("worker {}", n % 7),
            height: Height(n),
            block_id: BlockId([n as u8; 32]),
            transaction_id: format!("0x{n:x}"),
            severity: Severity::Warn,
            message: "it can't be decoded".into(),
            raw_data: vec![1; 10],
            raw_ref: None,
        })
        .collect();
    let reversed: Vec<NewError> = errors.iter().rev().cloned().collect();
    let other = open(&db).await;
    for _ in 0..40 {
        db.sql("DELETE FROM raw.indexing_errors").await;
        let (a, b) = tokio::join!(store.record(&errors), other.record(&reversed));
        assert_eq!(a.expect("records") + b.expect("records"), 500);
    }
}

#[tokio::test]
async fn p01_the_same_error_twice_in_one_batch_is_recorded_once() {
    let Some(db) = pg::database().await else { return };
    let (store, _) = begun(&db).await;
    let error = |message: &str, block: u8| NewError {
        service: "token_worker".into(),
        height: Height(9),
        block_id: BlockId([block; 32]),
        transaction_id: String::new(),
        severity: Severity::Fatal,
        message: message.into(),
        raw_data: vec![0, 1, 2],
        raw_ref: Some("payloads/x".into()),
    };
    let list = [error("a\0b", 1), error("a\0b", 1), error("other", 1), error("a\0b", 2)];
    assert_eq!(store.record(&list).await.expect("records"), 3);
    assert_eq!(store.record(&list).await.expect("records"), 0);
    assert_eq!(store.count_unresolved().await.expect("counts"), 3);
    let filter = ErrorFilter { limit: 2, ..ErrorFilter::default() };
    let found = store.list(&filter).await.expect("lists");
    assert_eq!(found.len(), 2);
    assert!(found[0].created_at_ms > 1_600_000_000_000);
    let rest =
        store.list(&ErrorFilter { after_id: found[1].id, limit: 9, ..filter.clone() }).await.expect("lists");
    assert_eq!(rest.len(), 1);
    assert_eq!(store.resolve(&[found[0].id, found[0].id, 1 << 40]).await.expect("resolves"), 1);
    assert_eq!(store.resolve(&[found[0].id]).await.expect("resolves"), 0);
    assert_eq!(store.count_unresolved().await.expect("counts"), 2);
    let all = ErrorFilter { resolved: true, limit: 9, height: Some(Height(9)), ..ErrorFilter::default() };
    assert_eq!(store.list(&all).await.expect("lists").len(), 3);
    let nobody = ErrorFilter { service: Some("nobody".into()), ..all };
    assert_eq!(store.list(&nobody).await.expect("lists"), []);
    assert_eq!(store.forget_blocks(&[BlockId([1; 32])]).await.expect("forgets"), 2);
    // The reliability document's query, as it stands.
    assert_eq!(number(store.pool(), "SELECT COUNT(*) FROM raw.indexing_errors;").await, 1);
}

#[tokio::test]
async fn l03_leases_expire_by_the_databases_clock_whatever_a_process_thinks() {
    // A process whose clock is ten minutes behind the server's, and one whose clock is ten minutes ahead.
    for (skew, seconds) in [("10 minutes", 600_i64), ("-10 minutes", -600)] {
        let Some(db) = pg::database().await else { return };
        db.skew_clock(skew).await;
        let (store, fence) = begun(&db).await;
        let blocks = chain(0, 9, 0);
        store.append(fence, batch(&blocks[..3])).await.expect("appends");
        let lease = store.claim_range("a", 3_000, 10, Height(9)).await.expect("claims").expect("a range");
        let ahead_ms = lease.expires_at_ms as i64 - SystemClock.now_ms() as i64;
        assert!((ahead_ms - seconds * 1_000).abs() < 60_000, "the clocks differ by {skew}: {ahead_ms} ms");
        assert_eq!(store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims"), None, "{skew}");
        // It lives on where it is renewed, and not a moment longer than it says.
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let lease = store.fill(&lease, blocks[3..5].to_vec(), 3_000).await.expect("renews");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims"), None, "{skew}");
        tokio::time::sleep(Duration::from_millis(2_000)).await;
        let taken = store.claim_range("b", 3_000, 10, Height(9)).await.expect("claims").expect("expired");
        assert_eq!((taken.range, taken.done_to), (lease.range, Height(5)), "{skew}");
        let late = store.fill(&lease, blocks[5..6].to_vec(), 3_000).await;
        assert!(matches!(late, Err(StoreError::Fenced { .. })), "{skew}: {late:?}");
    }
    let Some(db) = pg::database().await else { return };
    let (store, fence) = begun(&db).await;
    store.append(fence, batch(&chain(0, 3, 0))).await.expect("appends");
    let taken = store.claim_range("b", 60_000, 10, Height(9)).await.expect("claims").expect("a range");
    // And with a clock of its own, as the simulation has it.
    let clock = Arc::new(TestClock::new(5));
    let driven = PgRawStore::open(options(&db), Some(clock)).await.expect("opens");
    let renewed = driven.fill(&taken, chain(0, 4, 0)[3..].to_vec(), 10).await.expect("fills");
    assert_eq!(renewed.expires_at_ms, 15);
}
