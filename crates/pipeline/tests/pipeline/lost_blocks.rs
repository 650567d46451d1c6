//! A raw store that lost blocks and goes on along another fork, of which no reorg says anything: derived work stops and says so.

// Tests may.

use crate::support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cairn_core::Height;
use cairn_pipeline::derive::processor::Processor;
use cairn_pipeline::derive::{DeriveError, DeriveOptions};
use cairn_source::evm::synthetic::ForkOptions;
use cairn_store::derived::{Coordinator, DerivedDump, ReorgApplier};
use cairn_store::memory::MemoryStore;
use cairn_store::{RawReader, RawSnapshot, Result, StoreError};
use tokio::time::Instant;

use support::derive::{Derived, Working, counts, marks, names};
use support::reading::Reading;
use support::{MAIN, fork, pass_ms, tiny};

/// The way to a raw store, in whose place another one can be put.
#[derive(Clone)]
struct Place(Arc<Mutex<MemoryStore>>);

impl Place {
    fn of(store: &MemoryStore) -> Place {
        Place(Arc::new(Mutex::new(store.clone())))
    }

    fn put(&self, store: &MemoryStore) {
        *self.0.lock().unwrap() = store.clone();
    }
}

#[async_trait]
impl RawReader for Place {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        let store = self.0.lock().unwrap().clone();
        store.snapshot().await
    }
}

fn processors() -> Vec<Processor> {
    vec![marks(|_, _| Ok(())), counts(|_| Ok(())), names(|_, _| (1, Ok(Some("it".into()))))]
}

fn options(world: &Derived) -> DeriveOptions {
    DeriveOptions { range_heights: 16, ..world.options() }
}

/// Derived from the main chain's heights up to 40, all of it.
async fn derived() -> Derived {
    let world = Derived::new(tiny(1), 40).await;
    let working = world.start(processors(), options(&world));
    all_at(&world, 41).await;
    working.stop().await.unwrap();
    world
}

async fn all_at(world: &Derived, next: u64) {
    for service in ["mark_worker", "count_worker", "name_worker"] {
        world.until_next(service, next).await;
    }
}

/// A copy of the raw store that holds the main chain up to `last`.
async fn copy(world: &Derived, last: u64) -> Derived {
    Derived::new(world.chain.clone(), last).await
}

/// It halts, within so many milliseconds, over the mapper's block 40, says what to do, and has changed nothing.
async fn halts_within(world: &Derived, working: Working, limit_ms: u64) -> String {
    let began = Instant::now();
    world.until("derived work ends", async || !working.is_running()).await;
    assert!(began.elapsed().as_millis() <= u128::from(limit_ms), "{:?}", began.elapsed());
    let status = working.status();
    let error = working.stop().await.unwrap_err();
    assert!(matches!(&error, DeriveError::Store(StoreError::OtherRaw { .. })), "{error}");
    let halt = status.halted.unwrap();
    assert_eq!((halt.code, halt.height), ("other-raw", Some(Height(40))), "{halt}");
    assert!(halt.service.is_some(), "{halt}");
    let lost = world.chain.block_ref(MAIN, Height(40)).id;
    for words in [halt.service.unwrap(), &lost.to_string(), "No reorg says so", "an empty app store"] {
        assert!(halt.message.contains(words), "{words}: {halt}");
    }
    halt.message
}

#[tokio::test(start_paused = true)]
async fn a_start_over_a_raw_store_that_lost_blocks_halts_and_an_empty_app_store_mends_it() {
    let world = derived().await;
    let before = world.app.dump().await.unwrap();
    let raw = copy(&world, 35).await;
    let other = fork(&raw.chain, 35, 7);
    raw.append(other, 36, 45).await;
    let working = world.start_over(Arc::new(raw.raw.clone()), processors(), options(&world));
    let told = halts_within(&world, working, 5_000).await;
    assert!(told.contains(&raw.chain.block_ref(other, Height(40)).id.to_string()), "{told}");
    assert_eq!(world.app.dump().await.unwrap(), before, "nothing was changed");

    // What it says to do: the same raw store with an empty app store.
    let working = raw.start(processors(), options(&raw));
    all_at(&raw, 46).await;
    assert_eq!(raw.marked().await, (0..=45).collect::<Vec<_>>());
    pass_ms(120_000).await;
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_at_the_tip_whose_block_was_lost_halts_at_once() {
    let world = derived().await;
    let place = Place::of(&world.raw);
    let working = world.start_over(Arc::new(place.clone()), processors(), options(&world));
    pass_ms(1_000).await;
    // The last two are lost. Nothing can be said before there are others.
    let raw = copy(&world, 38).await;
    place.put(&raw.raw);
    pass_ms(90_000).await;
    assert!(working.is_running());
    let other = fork(&raw.chain, 38, 7);
    raw.append(other, 39, 39).await;
    pass_ms(90_000).await;
    assert!(working.is_running());
    raw.append(other, 40, 41).await;
    halts_within(&world, working, 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_works_on_is_looked_at_too() {
    let world = derived().await;
    let place = Place::of(&world.raw);
    let working = world.start_over(Arc::new(place.clone()), processors(), options(&world));
    pass_ms(1_000).await;
    for service in ["mark_worker", "count_worker", "name_worker"] {
        world.app.set_paused(service, true).await.unwrap();
    }
    let raw = copy(&world, 35).await;
    raw.append(fork(&raw.chain, 35, 7), 36, 50).await;
    place.put(&raw.raw);
    halts_within(&world, working, 61_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_over_lost_blocks_is_not_applied() {
    let world = derived().await;
    let before = world.app.dump().await.unwrap();
    let raw = copy(&world, 35).await;
    let other = fork(&raw.chain, 35, 7);
    raw.append(other, 36, 45).await;
    let third = raw.chain.fork_at((other, Height(38)), ForkOptions::new(8));
    raw.reorg_of(other, 38, third, 46).await;
    let working = world.start_over(Arc::new(raw.raw.clone()), processors(), options(&world));
    let told = halts_within(&world, working, 5_000).await;
    assert!(told.contains("reorg 1"), "{told}");
    assert_eq!(world.app.dump().await.unwrap(), before, "nothing was changed");
}

/// It halts over the lost reorg within so many milliseconds.
async fn halts_over_a_reorg_within(world: &Derived, working: Working, limit_ms: u64) {
    let began = Instant::now();
    world.until("derived work ends", async || !working.is_running()).await;
    assert!(began.elapsed().as_millis() <= u128::from(limit_ms), "{:?}", began.elapsed());
    let error = working.stop().await.unwrap_err();
    assert!(matches!(&error, DeriveError::Store(StoreError::OtherRaw { .. })), "{error}");
    for words in ["reorg 1", "an empty app store"] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_raw_store_that_lost_a_reorg_with_its_blocks_halts_too() {
    let world = derived().await;
    let other = fork(&world.chain, 38, 7);
    world.reorg_of(MAIN, 38, other, 41).await;
    let place = Place::of(&world.raw);
    let working = world.start_over(Arc::new(place.clone()), processors(), options(&world));
    all_at(&world, 42).await;
    // An older copy, which gets the other fork's blocks without a reorg, and has all that was derived in the end.
    let raw = copy(&world, 38).await;
    raw.append(other, 39, 45).await;
    place.put(&raw.raw);
    halts_over_a_reorg_within(&world, working, 125_000).await;
    // And so it does at each start.
    let working = world.start_over(Arc::new(place.clone()), processors(), options(&world));
    halts_over_a_reorg_within(&world, working, 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_reorg_that_was_begun_and_is_lost_halts_too() {
    let world = derived().await;
    let other = fork(&world.chain, 38, 7);
    let raw = copy(&world, 40).await;
    world.reorg_of(MAIN, 38, other, 41).await;
    let entry = world.raw.snapshot().await.unwrap().reorgs(0, 1).await.unwrap().remove(0);
    world.app.begin_apply(&entry).await.unwrap();
    let working = world.start_over(Arc::new(raw.raw.clone()), processors(), options(&world));
    halts_over_a_reorg_within(&world, working, 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_read_where_a_worker_stands_ends_no_other_work() {
    let world = derived().await;
    world.app.set_paused("name_worker", true).await.unwrap();
    world.append(MAIN, 41, 45).await;
    let working =
        world.start_over(Reading::damaged_at(&world.raw, Height(40)), processors(), options(&world));
    for next in [46, 51] {
        for service in ["mark_worker", "count_worker"] {
            world.until_next(service, next).await;
        }
        // Two looks.
        pass_ms(125_000).await;
        assert!(working.is_running());
        world.append(MAIN, next, next + 4).await;
    }
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_raw_store_that_is_late_or_had_reorgs_meanwhile_is_no_alarm() {
    let world = derived().await;
    let place = Place::of(&world.raw);
    let options = DeriveOptions { detect_ms: 50, ..options(&world) };
    let working = world.start_over(Arc::new(place.clone()), processors(), options);
    pass_ms(1_000).await;
    // A server that follows another one, late.
    let late = copy(&world, 30).await;
    place.put(&late.raw);
    pass_ms(10_000).await;
    late.append(MAIN, 31, 44).await;
    all_at(&world, 45).await;
    let mut stored = MAIN;
    for (common, last) in [(42, 46), (20, 47), (33, 48)] {
        let next = late.chain.fork_at((stored, Height(common)), ForkOptions::new(last));
        late.reorg_of(stored, common, next, last).await;
        stored = next;
        all_at(&world, last + 1).await;
        pass_ms(1_000).await;
    }
    assert!(working.is_running());
    assert_eq!(world.marked().await, (0..=48).collect::<Vec<_>>());
    working.stop().await.unwrap();
}
