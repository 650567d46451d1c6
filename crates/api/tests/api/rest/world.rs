//! A raw store and an app store in memory, the processors between them, and REST over both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use alloy_primitives::{Address, B256, Log, LogData, U256, keccak256};
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use cairn_api::rest::{Halt, Obstacle, RestChain, RestLimits, RestState, WorkerUse, router};
use cairn_core::{BlockRef, ChainId, Height, HeightRange, RawBlock, SystemClock};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_explorer::processors::{EVM, FLOW, Settings, evm_catalog, evm_processors};
use cairn_pipeline::derive::processor::{AskError, Processor, ServiceInfo};
use cairn_pipeline::derive::{Compute, DeriveOptions, Deriver};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain, SyntheticOptions};
use cairn_store::derived::memory::{MemoryDerived, MemoryErrorLog};
use cairn_store::derived::{Catalog, DerivedReader};
use cairn_store::memory::MemoryStore;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{append, empty_store, made};

/// The token of the made-up transfers.
pub const TOKEN: Address = Address::repeat_byte(0x70);

pub struct World {
    pub store: MemoryStore,
    pub app: MemoryDerived,
    pub catalog: Catalog,
    /// What the process says that has stopped.
    pub halts: Arc<Mutex<Vec<Halt>>>,
    /// What it says that ingestion can't get past.
    pub obstacle: Arc<Mutex<Option<Obstacle>>>,
    pub router: Router,
}

fn services(chain: RestChain) -> impl Iterator<Item = &'static ServiceInfo> {
    let registrations = match chain {
        RestChain::Evm => EVM,
        RestChain::Flow(_) => FLOW,
    };
    registrations.iter().map(|registration| registration.service)
}

/// Who reads from whom.
fn upstreams(chain: RestChain) -> BTreeMap<&'static str, &'static [&'static str]> {
    services(chain).map(|service| (service.name, service.upstreams)).collect()
}

/// All workers are enabled.
pub fn workers(chain: RestChain) -> BTreeMap<&'static str, WorkerUse> {
    let asks = |name: &str| name.ends_with("_metadata_worker") || name == "contract_code_worker";
    let of = |name| if asks(name) { WorkerUse::AsksNode } else { WorkerUse::Required };
    services(chain).map(|service| (service.name, of(service.name))).collect()
}

/// What of a process is told to REST: what has stopped, and what ingestion can't get past.
type Troubles<'a> = (&'a Arc<Mutex<Vec<Halt>>>, &'a Arc<Mutex<Option<Obstacle>>>);

fn routes(
    chain: RestChain,
    store: &MemoryStore,
    app: Arc<dyn DerivedReader>,
    catalog: &Catalog,
    workers: BTreeMap<&'static str, WorkerUse>,
    (halts, obstacle): Troubles<'_>,
    limits: RestLimits,
) -> Router {
    let (halts, obstacle) = (halts.clone(), obstacle.clone());
    let router = router(RestState {
        chain,
        raw: Arc::new(store.clone()),
        app: Some(app),
        catalog: catalog.clone(),
        upstreams: upstreams(chain),
        workers,
        halts: Arc::new(move || halts.lock().expect("no panic").clone()),
        obstacle: Arc::new(move || obstacle.lock().expect("no panic").clone()),
        wrapped_tokens: Arc::new(|chain_id| vec![format!("0x{:040x}", chain_id.0)]),
        search_term: cairn_explorer::processors::evm::token_metadata::search_term,
        limits,
        new_head: None,
        stop: CancellationToken::new(),
    });
    router.expect("a document")
}

/// All processors of EVM chains that need no node, but these.
pub fn all_but(names: &[&str]) -> Vec<Processor> {
    let all = evm_processors(&Settings::default());
    all.into_iter().filter(|processor| !names.contains(&processor.service().name)).collect()
}

/// What was answered.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
    pub json: Value,
}

impl Reply {
    pub fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    pub fn content_type(&self) -> &str {
        self.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Limits that don't make tests wait.
pub fn limits() -> RestLimits {
    RestLimits { fork_tries: 2, fork_pause_ms: 1, ..RestLimits::default() }
}

impl World {
    pub async fn new(blocks: Vec<RawBlock>) -> World {
        World::with(blocks, limits()).await
    }

    pub async fn with(blocks: Vec<RawBlock>, limits: RestLimits) -> World {
        let catalog = evm_catalog().expect("tables");
        World::of(RestChain::Evm, ChainId(1_337), catalog, blocks, limits).await
    }

    /// Of any chain.
    pub async fn of(
        chain: RestChain,
        chain_id: ChainId,
        catalog: Catalog,
        blocks: Vec<RawBlock>,
        limits: RestLimits,
    ) -> World {
        let store = empty_store(chain_id.0, Bytes::new()).await;
        if !blocks.is_empty() {
            append(&store, blocks, None).await;
        }
        let app = MemoryDerived::new(catalog.clone(), Arc::new(SystemClock));
        let (halts, obstacle) = (Arc::default(), Arc::default());
        let reader = Arc::new(app.clone());
        let router = routes(chain, &store, reader, &catalog, workers(chain), (&halts, &obstacle), limits);
        World { store, app, catalog, halts, obstacle, router }
    }

    /// The same stores of an EVM chain, in a process whose configuration has these workers so.
    pub fn with_uses(&self, uses: &[(&'static str, WorkerUse)]) -> World {
        let mut all = workers(RestChain::Evm);
        all.extend(uses.iter().copied());
        self.process(Arc::new(self.app.clone()), all)
    }

    /// The same, in a process that reads the app store so.
    pub fn with_app(&self, app: Arc<dyn DerivedReader>) -> World {
        self.process(app, workers(RestChain::Evm))
    }

    fn process(&self, app: Arc<dyn DerivedReader>, uses: BTreeMap<&'static str, WorkerUse>) -> World {
        let store = self.store.clone();
        let (halts, obstacle) = (Arc::default(), Arc::default());
        let router = routes(RestChain::Evm, &store, app, &self.catalog, uses, (&halts, &obstacle), limits());
        World { store, app: self.app.clone(), catalog: self.catalog.clone(), halts, obstacle, router }
    }

    /// Appends blocks to the tip; `transactions` says what each holds.
    pub async fn grow(&self, count: u64, salt: u8, transactions: impl FnMut(u64) -> Vec<Vec<Log>>) {
        let tip = made::tip(&self.store).await;
        let blocks = made::chain(tip.height.get() + 1, count, tip.id, salt, transactions);
        append(&self.store, blocks, None).await;
    }

    /// Runs every processor up to the tip, and the reorgs in between.
    pub async fn derive(&self) {
        let node: Arc<dyn ContractNode> = Arc::new(Node);
        self.derive_by(evm_processors(&Settings { node: Some(node), ..Settings::default() })).await;
    }

    pub async fn derive_by(&self, processors: Vec<Processor>) {
        let deriver = self.deriver(processors, true);
        deriver.run(CancellationToken::new()).await.expect("derives");
    }

    /// Runs processors until something is so: one that has caught up doesn't wait for ranges that are made again.
    pub async fn derive_until(&self, processors: Vec<Processor>, is_so: impl AsyncFn() -> bool) {
        let stop = CancellationToken::new();
        let mut running = Box::pin(self.deriver(processors, false).run(stop.clone()));
        for _ in 0..10_000 {
            tokio::select! {
                ended = &mut running => return ended.expect("derives"),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
            if is_so().await {
                stop.cancel();
            }
        }
        panic!("it never came");
    }

    fn deriver(&self, processors: Vec<Processor>, exit_when_caught_up: bool) -> Deriver {
        let options = DeriveOptions {
            exit_when_caught_up,
            compute: Compute::Inline,
            poll_ms: 10,
            ..DeriveOptions::new("test")
        };
        let clock = Arc::new(SystemClock);
        let deriver = Deriver::new(
            Arc::new(self.store.clone()),
            Arc::new(self.app.clone()),
            Arc::new(MemoryErrorLog::new(clock)),
            self.catalog.clone(),
            processors,
            options,
        );
        deriver.expect("processors")
    }

    pub async fn ask(&self, method: Method, path: &str) -> Reply {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).expect("a request");
        self.send(request).await
    }

    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Reply { status: parts.status, headers: parts.headers, text, json }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.ask(Method::GET, path).await
    }

    /// The answer, which has to be one.
    pub async fn ok(&self, path: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text);
        reply.json
    }

    /// The problem, which has to be one.
    pub async fn problem(&self, path: &str, status: u16, code: &str) -> Value {
        let reply = self.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (status, code), "{path}: {}", reply.text);
        assert_eq!(reply.content_type(), "application/problem+json");
        reply.json
    }

    /// All rows of a list, page by page, and how many each page had.
    pub async fn pages(&self, path: &str) -> (Vec<Value>, Vec<usize>) {
        let (mut rows, mut sizes) = (Vec::new(), Vec::new());
        let mut cursor = String::new();
        loop {
            let page = self.ok(&format!("{path}{cursor}")).await;
            let data = page["data"].as_array().expect("a list");
            sizes.push(data.len());
            rows.extend(data.iter().cloned());
            match page["page"]["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return (rows, sizes),
            }
            assert!(sizes.len() < 10_000, "{path} has no end");
        }
    }
}

/// A token transfer as contracts log it.
pub fn transfer(token: Address, from: Address, to: Address, amount: U256) -> Log {
    let topics = vec![keccak256("Transfer(address,address,uint256)"), from.into_word(), to.into_word()];
    Log { address: token, data: LogData::new_unchecked(topics, amount.to_be_bytes_vec().into()) }
}

/// `TOKEN` from `0xNN…` to `0xNN…`; 0 is the zero address.
pub fn moved(from: u8, to: u8, amount: u64) -> Log {
    transfer(TOKEN, Address::repeat_byte(from), Address::repeat_byte(to), U256::from(amount))
}

/// How many blocks of a synthetic chain have some of everything in them, contracts that were created too.
pub const BLOCKS: u64 = 150;

/// Blocks of a synthetic chain.
pub fn synthetic(blocks: u64) -> Vec<RawBlock> {
    let options = SyntheticOptions { txs_per_block: 2..=6, ..SyntheticOptions::tiny(3) };
    let chain = SyntheticChain::with_traffic(options, SyntheticChain::tiny_traffic());
    let heights = HeightRange::new(Height(0), Height(blocks));
    heights.iter().map(|height| RawBlock::clone(&chain.block(ForkId::MAIN, height))).collect()
}

/// A node on which every contract is a token and a collection.
struct Node;

pub fn abi_text(text: &str) -> Bytes {
    let mut out = U256::from(32).to_be_bytes_vec();
    out.extend(U256::from(text.len()).to_be_bytes_vec());
    out.extend(text.as_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.into()
}

#[async_trait]
impl ContractNode for Node {
    async fn call(&self, to: Address, input: Vec<u8>, _: BlockRef) -> Result<CallAnswer, AskError> {
        let answer = match input.get(..4) {
            Some([0x06, 0xfd, 0xde, 0x03]) => abi_text(&format!("Coin {:02x}", to[0])),
            Some([0x95, 0xd8, 0x9b, 0x41]) => abi_text("COIN"),
            Some([0x31, 0x3c, 0xe5, 0x67]) => U256::from(18).to_be_bytes_vec().into(),
            Some([0x18, 0x16, 0x0d, 0xdd]) => U256::MAX.to_be_bytes_vec().into(),
            Some([0xc8, 0x7b, 0x56, 0xdd]) => abi_text("ipfs://item"),
            Some([0x01, 0xff, 0xc9, 0xa7]) => U256::from(1).to_be_bytes_vec().into(),
            _ => return Ok(CallAnswer::Reverted),
        };
        Ok(CallAnswer::Returned(answer))
    }

    async fn code(&self, _: Address, _: BlockRef) -> Result<Bytes, AskError> {
        Ok(Bytes::from_static(&[0x60, 0x00]))
    }
}

pub fn b256(byte: u8) -> B256 {
    B256::repeat_byte(byte)
}
