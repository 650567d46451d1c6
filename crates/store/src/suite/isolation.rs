//! Snapshots while others write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cairn_core::{Height, Parts, RawBlock};

use super::blocks::{as_stored, chain, fork};
use super::check::{Failure, holds, same};
use super::subject::{Subject, shows};
use super::{Case, CaseResult, StoreFactory, TestStore};
use crate::RawSnapshot;

/// A backend may end a snapshot that is held longer than this.
const HOLD: Duration = Duration::from_secs(2);

/// How often at least the writer changes forks in the case about readers, and how many reads there must be meanwhile.
const FLIPS: usize = 250;
const READS: u64 = 50;

/// How long the writer goes on for readers that get no turn.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn cases() -> Vec<Case> {
    case_list!("isolation":
        a_held_snapshot_stays_as_it_is,
        a_held_snapshot_keeps_orphans_leases_and_log_as_they_were,
        r10_readers_never_see_a_mix_of_forks,
    )
}

/// A snapshot and what it has to show for as long as it is held.
struct Held {
    snapshot: Arc<dyn RawSnapshot>,
    chain: Vec<RawBlock>,
    since: Instant,
}

impl Held {
    async fn take(subject: &Subject, chain: &[RawBlock]) -> CaseResult<Held> {
        let since = Instant::now();
        Ok(Held { snapshot: subject.snapshot().await?, chain: chain.to_vec(), since })
    }

    async fn still_shows(&self) -> CaseResult {
        let shown = shows(&*self.snapshot, &self.chain).await;
        // A slow machine is no failure.
        if self.since.elapsed() > HOLD { Ok(()) } else { shown }
    }
}

async fn a_held_snapshot_stays_as_it_is(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let a = chain(0, 14, 0);
    let b = fork(&a, 6, 5, 1);
    let subject = Subject::new(&factory).await?;
    let mut held = vec![Held::take(&subject, &[]).await?];
    subject.append(&a[..10]).await?;
    held.push(Held::take(&subject, &a[..10]).await?);
    subject.append(&a[10..]).await?;
    held.push(Held::take(&subject, &a).await?);
    subject.roll_back(&a[6]).await?;
    held.push(Held::take(&subject, &a[..7]).await?);
    subject.store.purge_step(subject.fence, 3).await?;
    held.push(Held::take(&subject, &a[..7]).await?);
    subject.purge(3).await?;
    held.push(Held::take(&subject, &a[..7]).await?);
    subject.append(&b[7..]).await?;
    held.push(Held::take(&subject, &b).await?);
    subject.finalize(&b[9]).await?;
    subject.store.prune_orphans(subject.fence, 0, 100).await?;
    subject.settle().await?;
    held.push(Held::take(&subject, &b).await?);
    for held in held.iter().rev() {
        held.still_shows().await?;
    }
    Ok(())
}

async fn a_held_snapshot_keeps_orphans_leases_and_log_as_they_were(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let a = chain(0, 12, 0);
    let b = fork(&a, 8, 40, 1);
    let subject = Subject::with(&factory, &a).await?;
    let since = Instant::now();
    let before = subject.snapshot().await?;
    subject.roll_back(&a[8]).await?;
    let pending = subject.snapshot().await?;
    subject.purge(1).await?;
    subject.append(&b[9..12]).await?;
    let purged = subject.snapshot().await?;
    subject.store.prune_orphans(subject.fence, 0, 100).await?;
    subject.finalize(&b[40]).await?;
    let lease = subject.store.claim_range("w", 60_000, 10, Height(100)).await?;
    let lease = lease.ok_or_else(|| Failure::new("nothing to claim"))?;
    subject.store.fill(&lease, b[12..15].to_vec(), 60_000).await?;
    subject.store.advance(subject.fence).await?;
    let orphan = as_stored(&a[10], Parts::all());
    let check = async || -> CaseResult {
        let find =
            async |snapshot: &Arc<dyn RawSnapshot>| snapshot.orphan(1, a[10].facts.id, Parts::all()).await;
        same("before the reorg", find(&before).await?, None)?;
        same("its log", before.reorgs(0, 9).await?, vec![])?;
        same("before the purge", find(&pending).await?, Some(orphan.clone()))?;
        same("after the purge", find(&purged).await?, Some(orphan.clone()))?;
        same("its leases", purged.raw_leases().await?, vec![])?;
        same("its log", purged.reorgs(0, 9).await?.len(), 1)?;
        same("its finality", purged.head().finalized, None)
    };
    let checked = check().await;
    if since.elapsed() <= HOLD {
        checked?;
    }
    same("after pruning", subject.snapshot().await?.orphan(1, a[10].facts.id, Parts::all()).await?, None)?;
    subject.shows(&b[..15]).await
}

async fn r10_readers_never_see_a_mix_of_forks(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let trunk = chain(0, 4, 0);
    let forks: Arc<Vec<Vec<RawBlock>>> =
        Arc::new((1..4).map(|salt| fork(&trunk, 3, 1 + salt, salt)).chain([trunk.clone()]).collect());
    let subject = Subject::with(&factory, &forks[0]).await?;
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..2)
        .map(|_| tokio::spawn(read_until(subject.store.clone(), forks.clone(), stop.clone(), reads.clone())))
        .collect();
    let (mut written, mut flips, since) = (Ok(()), 0, Instant::now());
    let enough = |flips: usize| flips >= FLIPS && reads.load(Ordering::SeqCst) >= READS;
    while written.is_ok() && !enough(flips) && since.elapsed() < PATIENCE {
        if readers.iter().any(tokio::task::JoinHandle::is_finished) {
            break;
        }
        written = flip(&subject, &trunk[3], &forks[(flips + 1) % 3]).await;
        flips += 1;
    }
    stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.map_err(|panic| Failure::new(format!("a reader panicked: {panic}")))??;
    }
    written?;
    let reads = reads.load(Ordering::SeqCst);
    holds(reads >= READS, format!("only {reads} reads were made in {flips} flips"))?;
    subject.shows(&forks[flips % 3]).await
}

async fn flip(subject: &Subject, common: &RawBlock, to: &[RawBlock]) -> CaseResult {
    subject.roll_back(common).await?;
    tokio::task::yield_now().await;
    subject.purge(2).await?;
    tokio::task::yield_now().await;
    subject.append(&to[4..]).await?;
    tokio::task::yield_now().await;
    Ok(())
}

/// Every snapshot shows one of the forks whole, and the orphans of the entries that it knows.
async fn read_until(
    store: Arc<dyn TestStore>,
    forks: Arc<Vec<Vec<RawBlock>>>,
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
) -> CaseResult {
    while !stop.load(Ordering::SeqCst) {
        let since = Instant::now();
        let checked = read_once(&*store.snapshot().await?, &forks).await;
        if since.elapsed() <= HOLD {
            checked?;
        }
        reads.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn read_once(snapshot: &dyn RawSnapshot, forks: &[Vec<RawBlock>]) -> CaseResult {
    let head = snapshot.head();
    let tip = head.tip.ok_or_else(|| Failure::new("no tip"))?;
    let shown = forks.iter().find(|fork| fork.last().is_some_and(|last| last.block_ref() == tip));
    let shown = shown.ok_or_else(|| Failure::new(format!("{tip} was never the tip of a whole fork")))?;
    shows(snapshot, shown).await?;
    let newest = head.newest_reorg.id;
    let log = snapshot.reorgs(newest.saturating_sub(1), 10).await?;
    same("the log's end", log.last().map_or(0, |entry| entry.id), newest)?;
    for entry in log {
        for orphan in &entry.orphans {
            let found = snapshot.orphan(entry.id, orphan.block.id, Parts::all()).await?;
            let of_fork = forks.iter().flatten().find(|block| block.facts.id == orphan.block.id);
            same("an orphan", found, of_fork.map(|block| as_stored(block, Parts::all())))?;
        }
    }
    Ok(())
}
