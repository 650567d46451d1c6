//! Holes in Flow's EVM chain, and Flow blocks without an EVM block: listed, closed when what is missing turns up, and taken away by a reorg.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use cairn_api::rest::{RestChain, RestLimits, RestState, router};
use cairn_core::{Height, HeightRange, Parts, StoredBlock};
use cairn_explorer::names::{EVM_CHAIN_WORKER, EVM_WORKER};
use cairn_explorer::processors::{Settings, flow_processors};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Coordinator, DerivedMaintenance, DerivedReader, RebuildRequest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::endpoints::Document;
use super::flow::{Flow, NETWORK, chain, generator};
use super::world::{World, limits};
use crate::support::{append, made};

/// A mapper that overlooks the EVM blocks of some Flow blocks, as if a node had not sent their events.
struct Blind {
    inner: Arc<dyn Mapper>,
    heights: BTreeSet<u64>,
}

impl Mapper for Blind {
    fn service(&self) -> &'static ServiceInfo {
        self.inner.service()
    }

    fn parts(&self) -> Parts {
        self.inner.parts()
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let mut all = Output::default();
        self.inner.map(block, &mut all)?;
        let (tables, malformed) = all.into_parts();
        malformed.into_iter().for_each(|what| out.malformed(what));
        for (name, rows) in tables {
            let table = self.service().tables.iter().find(|table| table.name == name).expect("its table");
            if name != "evm_blocks" || !self.heights.contains(&block.facts.height.get()) {
                rows.into_iter().for_each(|row| out.row(table, row));
            }
        }
        Ok(())
    }
}

fn processors(blind_at: &[u64]) -> Vec<Processor> {
    let settings = Settings { network: Some(NETWORK), ..Settings::default() };
    let mut all = flow_processors(&settings);
    for processor in &mut all {
        if let Processor::Mapper(mapper) = &*processor
            && mapper.service().name == EVM_WORKER
        {
            let (inner, heights) = (mapper.clone(), blind_at.iter().copied().collect());
            *processor = Processor::Mapper(Arc::new(Blind { inner, heights }));
        }
    }
    all
}

/// Flow blocks with the EVM blocks in them, by height.
fn evm_blocks(flow: &Flow) -> Vec<(u64, u64)> {
    flow.ledger.evm_blocks.iter().map(|(height, block)| (*height, block.height)).collect()
}

/// The gap that is left where the EVM blocks at these places of [`evm_blocks`] are overlooked.
fn gap(blocks: &[(u64, u64)], from: usize, to: usize, is_open: impl Into<Value>) -> Value {
    json!({
        "kind": "gap",
        "from_evm_height": blocks[from].1.to_string(),
        "to_evm_height": blocks[to].1.to_string(),
        "after_height": blocks[from - 1].0.to_string(),
        "seen_at_height": blocks[to + 1].0.to_string(),
        "is_open": is_open.into(),
    })
}

async fn gaps(world: &World) -> Vec<Value> {
    world.pages("/v1/flow/evm/gaps?order=asc").await.0
}

/// Lets the worker of EVM blocks make one Flow block again, and sees all that is there.
async fn read_again(world: &World, height: u64) {
    let service = processors(&[]).into_iter().find(|one| one.service().name == EVM_WORKER).expect("is made");
    let again = HeightRange::inclusive(Height(height), Height(height));
    let version = service.service().version;
    world.app.request_reindex(EVM_WORKER, version, again, 5).await.expect("asks");
    let is_made = async || {
        let snapshot = world.app.snapshot().await.expect("opens");
        snapshot.made_again_from(EVM_WORKER, Height(0)).await.expect("reads").is_none()
    };
    assert!(!is_made().await);
    world.derive_until(processors(&[]), is_made).await;
    assert!(is_made().await);
}

#[tokio::test(start_paused = true)]
async fn f04_flow_blocks_without_an_evm_block_are_listed_and_are_no_gaps() {
    let flow = Flow::new().await;
    let world = &flow.world;
    assert_eq!(gaps(world).await, [] as [Value; 0]);
    let blocks = evm_blocks(&flow);
    let (tip, _) = flow.ledger.transactions.last_key_value().expect("blocks");
    let ends = blocks[1..].iter().map(|(height, _)| *height).chain([tip + 1]);
    let wanted: Vec<Value> = blocks
        .iter()
        .zip(ends)
        .filter(|((height, _), end)| height + 1 < *end)
        .map(|((height, evm_height), end)| {
            json!({
                "after_evm_height": evm_height.to_string(),
                "from_height": (height + 1).to_string(),
                "to_height": (end - 1).to_string(),
                "block_count": (end - 1 - height).to_string(),
            })
        })
        .collect();
    assert!(wanted.len() > 5);
    let (rows, _) = world.pages("/v1/flow/evm/absences?order=asc&limit=2").await;
    assert_eq!(rows, wanted);
    let (mut down, _) = world.pages("/v1/flow/evm/absences?limit=3").await;
    down.reverse();
    assert_eq!(down, wanted);
}

#[tokio::test(start_paused = true)]
async fn f04_a_gap_is_listed_until_what_is_missing_turns_up() {
    let flow = Flow::underived().await;
    let world = &flow.world;
    let blocks = evm_blocks(&flow);
    // Three gaps, the second one of two EVM blocks.
    let lost = [5, 20, 21, 35];
    world.derive_by(processors(&lost.map(|place| blocks[place].0))).await;
    let wanted = [gap(&blocks, 5, 5, true), gap(&blocks, 20, 21, true), gap(&blocks, 35, 35, true)];
    assert_eq!(gaps(world).await, wanted);

    let document = Document::read(world).await;
    let list = "/v1/flow/evm/gaps?kind=gap&limit=1";
    document.check(list, &world.get(list).await);
    let (mut down, sizes) = world.pages(list).await;
    down.reverse();
    assert_eq!((down, sizes.iter().max()), (wanted.to_vec(), Some(&1)));
    for kind in ["repeat", "fork"] {
        assert_eq!(world.pages(&format!("/v1/flow/evm/gaps?kind={kind}")).await.0, [] as [Value; 0]);
    }
    let next = world.ok(list).await["page"]["next"].as_str().expect("more").to_owned();
    let other = format!("/v1/flow/evm/gaps?kind=fork&limit=1&cursor={next}");
    world.problem(&other, 400, "invalid-cursor").await;
    world.problem("/v1/flow/evm/gaps?kind=hole", 400, "invalid-parameter").await;

    // One of the two turns up: the other is missing still. Then that too.
    read_again(world, blocks[21].0).await;
    assert_eq!(gaps(world).await[1], gap(&blocks, 20, 21, true));
    read_again(world, blocks[20].0).await;
    let wanted = [gap(&blocks, 5, 5, true), gap(&blocks, 20, 21, false), gap(&blocks, 35, 35, true)];
    assert_eq!(gaps(world).await, wanted);

    // Where fewer EVM blocks may be looked at than came back, it is not known.
    let narrow = narrow(world, 1);
    assert_eq!(gaps(&narrow).await[1]["is_open"], Value::Null);

    // Folded anew, it was never there.
    let request = RebuildRequest { anew: vec![EVM_CHAIN_WORKER.into()], ..RebuildRequest::default() };
    world.app.begin_rebuild(&request).await.expect("begins");
    while world.app.reset_step(EVM_CHAIN_WORKER, 100).await.expect("resets") {}
    let (root, _) = flow.ledger.transactions.first_key_value().expect("blocks");
    world.app.register(EVM_CHAIN_WORKER, Height(*root)).await.expect("registers");
    world.derive_by(processors(&[])).await;
    assert_eq!(gaps(world).await, [gap(&blocks, 5, 5, true), gap(&blocks, 35, 35, true)]);
}

/// The same world, in which an answer examines only so many rows.
fn narrow(world: &World, max_examined_rows: usize) -> World {
    let router = router(RestState {
        chain: RestChain::Flow(NETWORK),
        raw: Arc::new(world.store.clone()),
        app: Some(Arc::new(world.app.clone())),
        catalog: world.catalog.clone(),
        upstreams: Default::default(),
        workers: Default::default(),
        halts: Arc::new(Vec::new),
        wrapped_tokens: Arc::new(|_| Vec::new()),
        obstacle: Arc::new(|| None),
        search_term: cairn_explorer::processors::evm::token_metadata::search_term,
        limits: RestLimits { max_examined_rows, ..limits() },
        new_head: None,
        stop: CancellationToken::new(),
    });
    World {
        store: world.store.clone(),
        app: world.app.clone(),
        catalog: world.catalog.clone(),
        halts: Arc::new(Mutex::default()),
        obstacle: Arc::default(),
        router: router.expect("a document"),
    }
}

#[tokio::test(start_paused = true)]
async fn f05_evm_blocks_in_several_flow_blocks_are_listed_with_whether_all_of_them_is_there() {
    let flow = Flow::new().await;
    let world = &flow.world;
    let mut wanted = Vec::new();
    let txs = || flow.ledger.evm_transactions.values().flatten();
    for (height, block) in &flow.ledger.evm_blocks {
        let of: Vec<_> = txs().filter(|tx| tx.evm_height == block.height).collect();
        if of.iter().all(|tx| tx.height == *height) {
            continue;
        }
        wanted.push(json!({
            "evm_height": block.height.to_string(),
            "from_height": of[0].height.to_string(),
            "to_height": height.to_string(),
            "transaction_count": of.len().to_string(),
            "gas_used": block.gas_used.to_string(),
            "closed_gas_used": block.gas_used.to_string(),
            "is_complete": true,
        }));
    }
    assert!(!wanted.is_empty());
    assert_eq!(world.pages("/v1/flow/evm/splits?order=asc&limit=1&is_complete=true").await.0, wanted);
    assert_eq!(world.pages("/v1/flow/evm/splits?is_complete=false").await.0, [] as [Value; 0]);
    world.problem("/v1/flow/evm/splits?is_complete=perhaps", 400, "invalid-parameter").await;
}

#[tokio::test(start_paused = true)]
async fn f04_a_reorg_takes_a_gap_away() {
    let mut generator = generator();
    let flow = Flow::grown(&generator).await;
    let world = &flow.world;
    let blocks = evm_blocks(&flow);
    let late = blocks.len() - 4;
    world.derive_by(processors(&[blocks[5].0, blocks[late].0])).await;
    let old = gap(&blocks, 5, 5, true);
    assert_eq!(gaps(world).await, [old.clone(), gap(&blocks, late, late, true)]);
    let list = "/v1/flow/evm/gaps?limit=1";
    let next = world.ok(list).await["page"]["next"].as_str().expect("more").to_owned();

    let common = blocks[late].0 - 1;
    let (tip, _) = flow.ledger.transactions.last_key_value().expect("blocks");
    let orphaned = tip - common;
    generator.rollback(orphaned);
    generator.grow(orphaned + 5);
    let (new, ledger) = chain(&generator);
    let block = made::at(&world.store, common).await;
    made::roll_back(&world.store, block).await;
    append(&world.store, new.into_iter().filter(|block| block.facts.height.get() > common).collect(), None)
        .await;
    world.problem(list, 409, "forks-disagree").await;
    world.derive_by(processors(&[])).await;
    assert_eq!(gaps(world).await, [old]);
    world.problem(&format!("{list}&cursor={next}"), 409, "reorged").await;

    // What the other fork has is what a world has that knows no other. A Flow block whose EVM block is missing has none.
    let clean = Flow::grown(&generator).await;
    clean.world.derive_by(processors(&[blocks[5].0])).await;
    let (rows, _) = clean.world.pages("/v1/flow/evm/absences?order=asc").await;
    let missing = json!(blocks[5].0.to_string());
    assert!(rows.iter().any(|row| row["from_height"] == missing));
    let absences = "/v1/flow/evm/absences?order=asc";
    assert_eq!(world.pages(absences).await.0, clean.world.pages(absences).await.0);
    assert!(ledger.evm_blocks.last_key_value().is_some_and(|(height, _)| *height > common));
}
