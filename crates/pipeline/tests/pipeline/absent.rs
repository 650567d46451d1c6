//! What a node says isn't there, though rows name it: believed only where it keeps to that. Seen in paradigmxyz/reth#22873, where a node answers about a block from another state, and
//! in anvil 1.7.1, which loses the code of all contracts.

// Tests may.

use crate::support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Coordinator, Key, LeaseKind, LeaseStatus, Row, TableDef, Value};
use tokio::time::{Duration, Instant};

use support::derive::{Derived, MARKS, NAMES, marks};
use support::{MAIN, tiny};

/// Whether the node has a thing at a block.
type Has = dyn Fn(&Key, BlockRef) -> bool + Send + Sync;

/// Asks about each row of `MARKS`; the node either has a name for it, or says that there is no such thing.
struct Finder {
    has: Box<Has>,
    name: Arc<Mutex<&'static str>>,
}

static READS: &[&TableDef] = &[&MARKS];

static SERVICE: ServiceInfo =
    ServiceInfo { name: "name_worker", version: 1, upstreams: &["mark_worker"], tables: &[&NAMES] };

fn row(key: &Key, name: &str, at: BlockRef) -> (&'static str, Row) {
    (NAMES.name, Row(vec![key.0[0].clone(), Value::text(name), Value::height(at.height)]))
}

#[async_trait]
impl Enricher for Finder {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        wanted.push(Key(vec![row.0[1].clone()]));
    }

    fn known_in(&self) -> &'static TableDef {
        &NAMES
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        if (self.has)(key, at) {
            let name = *self.name.lock().unwrap();
            return Ok(Asked::Rows(vec![row(key, name, at)]));
        }
        Ok(Asked::Absent(vec![row(key, "gone", at)]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, _message: &str) -> Vec<(&'static str, Row)> {
        vec![row(key, "given up", at)]
    }
}

fn finder(has: impl Fn(&Key, BlockRef) -> bool + Send + Sync + 'static) -> Processor {
    finder_of(Arc::new(Mutex::new("first")), has)
}

fn finder_of(
    name: Arc<Mutex<&'static str>>,
    has: impl Fn(&Key, BlockRef) -> bool + Send + Sync + 'static,
) -> Processor {
    Processor::Enricher(Arc::new(Finder { has: Box::new(has), name }))
}

fn key_of(world: &Derived, height: u64) -> Key {
    Key(vec![Value::bytes(world.chain.block_ref(MAIN, Height(height)).id.as_bytes())])
}

/// Names by height.
async fn named(world: &Derived) -> BTreeMap<i64, String> {
    let rows = world.rows(NAMES.name).await;
    rows.iter()
        .map(|row| (row.0[2].as_int().unwrap(), row.0[1].as_text().unwrap_or_default().to_owned()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn e03_a_node_that_has_nothing_for_a_moment_is_asked_again() {
    for (chunk_heights, away_ms) in [(500, 1), (500, 1_200), (1, 1_200)] {
        let world = Derived::new(tiny(1), 20).await;
        let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
        world.until_next("mark_worker", 21).await;
        working.stop().await.unwrap();
        // All that it has is away for a moment, from the first question on.
        let began: Arc<Mutex<Option<Instant>>> = Arc::default();
        let node = finder(move |_, _| {
            let began = *began.lock().unwrap().get_or_insert_with(Instant::now);
            began.elapsed() >= Duration::from_millis(away_ms)
        });
        let options = cairn_pipeline::derive::DeriveOptions { chunk_heights, ..world.options() };
        let working = world.start(vec![marks(|_, _| Ok(())), node], options);
        world.until_next("name_worker", 21).await;
        let named = named(&world).await;
        assert_eq!(named.len(), 21);
        assert!(named.values().all(|name| name == "first"), "{away_ms} ms: {named:?}");
        working.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn e03_what_a_node_lacks_beside_what_it_has_is_gone_after_a_second_look_without_a_pause() {
    let world = Derived::new(tiny(1), 20).await;
    let working = world.start(vec![marks(|_, _| Ok(()))], world.options());
    world.until_next("mark_worker", 21).await;
    working.stop().await.unwrap();
    let gone = [key_of(&world, 7), key_of(&world, 8), key_of(&world, 20)];
    let asked: Arc<Mutex<Vec<(Key, Instant)>>> = Arc::default();
    let notes = asked.clone();
    let node = finder(move |key, _| {
        notes.lock().unwrap().push((key.clone(), Instant::now()));
        !gone.contains(key)
    });
    let working = world.start(vec![marks(|_, _| Ok(())), node], world.options());
    world.until_next("name_worker", 21).await;
    for (height, name) in named(&world).await {
        assert_eq!(name, if [7, 8, 20].contains(&height) { "gone" } else { "first" }, "{height}");
    }
    let asked = asked.lock().unwrap().clone();
    for height in [7, 8, 20] {
        let key = key_of(&world, height);
        let times: Vec<Instant> = asked.iter().filter(|(of, _)| *of == key).map(|(_, at)| *at).collect();
        assert!(times.len() == 2 && times[0] == times[1], "{height}: {times:?}");
    }
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn e03_where_a_node_has_nothing_at_all_that_counts_after_some_looks() {
    let world = Derived::new(tiny(1), 3).await;
    let looks: Arc<Mutex<BTreeMap<Key, usize>>> = Arc::default();
    let notes = looks.clone();
    let node = finder(move |key, _| {
        *notes.lock().unwrap().entry(key.clone()).or_default() += 1;
        false
    });
    let working = world.start(vec![marks(|_, _| Ok(())), node], world.options());
    world.until_next("name_worker", 4).await;
    let named = named(&world).await;
    assert!(named.len() == 4 && named.values().all(|name| name == "gone"), "{named:?}");
    // The first time, four looks, and as something that is known, to see whether the node has that.
    for (key, times) in looks.lock().unwrap().iter() {
        assert!((5..40).contains(times), "{key:?}: {times}");
    }
    assert!(world.leases().await.iter().all(|lease| lease.attempt == 0));
    working.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn e03_that_a_thing_is_gone_leaves_what_is_known_of_it() {
    let world = Derived::new(tiny(1), 20).await;
    let (name, is_second) = (Arc::new(Mutex::new("first")), Arc::new(AtomicBool::new(false)));
    let (looks, gone) = (is_second.clone(), key_of(&world, 7));
    let node = finder_of(name.clone(), move |key, _| !looks.load(SeqCst) || *key != gone);
    let working = world.start(vec![marks(|_, _| Ok(())), node], world.options());
    world.until_next("name_worker", 21).await;
    *name.lock().unwrap() = "second";
    is_second.store(true, SeqCst);
    let heights = HeightRange::new(Height(5), Height(10));
    world.app.request_reindex("name_worker", 1, heights, 100).await.unwrap();
    let is_done = |lease: &cairn_store::derived::WorkerLease| {
        lease.kind != LeaseKind::Reindex || lease.status == LeaseStatus::Completed
    };
    world.until("what is made again", async || world.leases().await.iter().all(is_done)).await;
    for (height, name) in named(&world).await {
        let is_second = (5..10).contains(&height) && height != 7;
        assert_eq!(name, if is_second { "second" } else { "first" }, "{height}");
    }
    working.stop().await.unwrap();
}
