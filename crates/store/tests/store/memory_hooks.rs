//! The memory store's commit hook: a crash before a commit changes nothing, a lost answer changes everything but the answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use cairn_core::{ChainId, Fence, Height, SystemClock};
use cairn_store::memory::{CommitHook, MemoryStore};
use cairn_store::suite::blocks::{chain, fork};
use cairn_store::{
    AppendBatch, Dump, RawDump, RawFiller, RawLease, RawReader, RawWriter, Result, Rollback, StoreError,
    StoreInfo,
};

/// Breaks the commit with this number, before or after it, and counts them all.
struct Breaking {
    at: usize,
    after: bool,
    seen: Mutex<Vec<&'static str>>,
}

impl Breaking {
    fn new(at: usize, after: bool) -> Arc<Self> {
        Arc::new(Breaking { at, after, seen: Mutex::default() })
    }

    fn broken(&self) -> StoreError {
        StoreError::Busy(format!("broken {}", if self.after { "after" } else { "before" }))
    }
}

impl CommitHook for Breaking {
    fn before(&self, verb: &'static str) -> Result<()> {
        let mut seen = self.seen.lock().expect("no panic");
        seen.push(verb);
        if seen.len() - 1 == self.at && !self.after { Err(self.broken()) } else { Ok(()) }
    }

    fn after(&self, _verb: &'static str) -> Result<()> {
        let is_now = self.seen.lock().expect("no panic").len() - 1 == self.at;
        if is_now && self.after { Err(self.broken()) } else { Ok(()) }
    }
}

fn batch(blocks: &[cairn_core::RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// Verbs that a caller repeats when they fail, each with what it knows of the store.
struct Caller {
    store: MemoryStore,
    fence: Fence,
    lease: Option<RawLease>,
}

const VERBS: usize = 10;

impl Caller {
    async fn verb(&mut self, n: usize) -> Result<()> {
        let a = chain(0, 10, 0);
        let b = fork(&a, 6, 20, 1);
        let store = &self.store;
        match n {
            0 => {
                let info =
                    StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Default::default() };
                store.init(info).await.map(drop)
            }
            1 => {
                self.fence = store.acquire().await?.fence;
                Ok(())
            }
            2 => store.append(self.fence, batch(&a)).await.map(drop),
            3 => {
                let rollback = Rollback { common: a[6].block_ref(), max_depth: 9, decided_at_ms: 5 };
                store.rollback(self.fence, rollback).await.map(drop)
            }
            4 => store.purge_step(self.fence, 9).await.map(drop),
            5 => store.append(self.fence, batch(&b[7..12])).await.map(drop),
            6 => {
                // After a lost answer the claim is found among the leases.
                let known = store.snapshot().await?.raw_leases().await?.pop();
                let claimed = match known {
                    Some(lease) => Some(lease),
                    None => store.claim_range("w", 60_000, 20, Height(20)).await?,
                };
                self.lease = claimed;
                Ok(())
            }
            7 => {
                let lease = self.lease.as_ref().expect("claimed");
                store.fill(lease, b[12..20].to_vec(), 60_000).await.map(drop)
            }
            8 => store.advance(self.fence).await.map(drop),
            _ => store.finalize(self.fence, Some(b[15].block_ref()), None).await.map(drop),
        }
    }

    async fn dump(&self) -> Option<Dump> {
        self.store.dump().await.ok()
    }
}

#[tokio::test]
async fn a_broken_commit_is_settled_by_asking_again() {
    let run = async |at: usize, after: bool| -> (Dump, Vec<&'static str>) {
        let store = MemoryStore::new(Arc::new(SystemClock));
        let hook = Breaking::new(at, after);
        store.set_hook(Some(hook.clone()));
        let mut caller = Caller { store, fence: Fence(0), lease: None };
        for n in 0..VERBS {
            let before = caller.dump().await;
            if let Err(error) = caller.verb(n).await {
                assert!(error.to_string().contains("broken"), "{error}");
                assert_eq!(n, at, "the hook broke another verb");
                let changed = caller.dump().await != before;
                // A dump leaves out fences, leases and orphans.
                let shows_in_dumps = !matches!(n, 1 | 4 | 6);
                assert_eq!(changed, after && shows_in_dumps, "verb {n} broken, after: {after}");
                caller.verb(n).await.expect("the second try");
            }
        }
        let seen = hook.seen.lock().expect("no panic").clone();
        (caller.dump().await.expect("initialised"), seen)
    };
    let (clean, verbs) = run(usize::MAX, false).await;
    assert_eq!(verbs.len(), VERBS);
    let names: BTreeSet<_> = verbs.iter().copied().collect();
    let expected =
        ["acquire", "advance", "append", "claim_range", "fill", "finalize", "init", "purge_step", "rollback"];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
    for at in 0..VERBS {
        for after in [false, true] {
            let (dump, seen) = run(at, after).await;
            assert_eq!(dump.first_difference(&clean), None, "commit {at} broken, after: {after}");
            assert!(seen.len() >= VERBS);
        }
    }
}

#[tokio::test]
async fn a_removed_hook_breaks_nothing_and_handles_share_it() {
    let store = MemoryStore::new(Arc::new(SystemClock));
    let other = store.clone();
    let info = StoreInfo { uuid: [1; 16], chain_id: ChainId(1), chain_config: Default::default() };
    other.set_hook(Some(Breaking::new(0, false)));
    assert!(store.init(info.clone()).await.is_err());
    assert!(store.snapshot().await.is_err(), "nothing was made");
    store.set_hook(None);
    other.init(info).await.expect("no hook");
    assert_eq!(store.acquire().await.expect("initialised").fence, Fence(1));
}
