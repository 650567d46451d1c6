//! REST `/v1`: blocks, transactions, accounts, tokens, NFTs, contracts, logs, statistics and search, over the raw store and the derived
//! tables.
//!
//! * One answer is of one snapshot of each database, and the two agree about the forks at the heights that it counts in ([`view`]).
//! * Lists come out of derived tables, page by page behind cursors ([`cursor`], [`list`]); what one transaction is comes out of the raw
//!   store, by id → height → block.
//! * One shape ([`answer`]), one kind of error ([`problem`]), and a document of all of it that is made from the code ([`docs`]).
//! * A table whose worker is not enabled, or has not begun, is never an empty list (law 2).
//!
//! Back-pressure: a bounded number of requests at once, each with a time limit ([`guard`]); a page examines a bounded number of rows.

mod accounts;
mod answer;
mod balances;
mod beside;
mod blocks;
mod cache;
mod chain;
mod contract_transactions;
mod contracts;
mod cursor;
mod docs;
mod fields;
mod flow;
mod guard;
mod limits;
mod list;
mod logs;
mod nfts;
mod params;
mod problem;
mod search;
mod shown;
mod stats;
mod status;
mod stream;
mod tokens;
mod transactions;
mod transfers;
mod view;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::middleware;
use axum::routing::{any, get};
use cairn_core::{ChainId, Height};
use cairn_store::RawReader;
use cairn_store::derived::{Catalog, DerivedReader};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use utoipa::{OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use chain::RestChain;
pub use limits::{MAX_PAGE_ROWS, RestLimits};
pub use words::rfc3339;

/// Something that has stopped for good and wants a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// What stopped.
    pub part: HaltedPart,
    /// The worker, where it is about one.
    pub service: Option<String>,
    /// The height that it stands at, where it is known.
    pub height: Option<Height>,
    /// Why, in a word.
    pub code: String,
}

/// What can stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HaltedPart {
    /// Ingestion: no block is stored any more.
    Ingestion,
    /// All derived work of a process.
    Derived,
    /// One range of one worker.
    Range,
}

/// What the configuration makes of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerUse {
    /// It runs, and derived data is there as far as it is.
    Required,
    /// It runs where there is a node to ask, and nothing waits for it.
    AsksNode,
    /// It doesn't run; what it made before stays as it is.
    Disabled,
}

/// Says what has stopped.
pub type Halts = Arc<dyn Fn() -> Vec<Halt> + Send + Sync>;

/// Says whose `Deposit` and `Withdrawal` events count on a chain: addresses, or `*` for everybody's.
pub type WrappedTokens = Arc<dyn Fn(ChainId) -> Vec<String> + Send + Sync>;
/// What ingestion can't get past. It tries again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Why, in a word.
    pub code: String,
    /// The height of the block that can't be stored, where it is known.
    pub height: Option<Height>,
    /// The check that refused the block, by its configured name.
    pub check: Option<String>,
    /// Who said what.
    pub message: String,
    /// What an operator can do beside waiting.
    pub remedy: Option<String>,
    /// When the first try failed, in milliseconds since 1970.
    pub since_ms: u64,
    /// How many tries in a row have failed.
    pub tries: u32,
}

/// Says what ingestion can't get past now.
pub type ObstacleNow = Arc<dyn Fn() -> Option<Obstacle> + Send + Sync>;

/// What REST reads from, and within which limits.
#[derive(Clone)]
pub struct RestState {
    /// The kind of chain that it is of.
    pub chain: RestChain,
    /// The raw store.
    pub raw: Arc<dyn RawReader>,
    /// The derived tables; `None` where there are none here: what needs them is then a problem that says so.
    pub app: Option<Arc<dyn DerivedReader>>,
    /// What the derived tables are.
    pub catalog: Catalog,
    /// Which workers each worker reads from, by name.
    pub upstreams: BTreeMap<&'static str, &'static [&'static str]>,
    /// The workers of the chain as the configuration of this process has them, by name.
    pub workers: BTreeMap<&'static str, WorkerUse>,
    /// What of this process has stopped and wants a person; asked whenever somebody asks for the status.
    pub halts: Halts,
    /// Whose deposits and withdrawals balances count.
    pub wrapped_tokens: WrappedTokens,
    /// What ingestion of this process can't get past; asked whenever somebody asks for the status.
    pub obstacle: ObstacleNow,
    /// The form in which the terms of `search_index` are kept, of a text that is searched for.
    pub search_term: fn(&str) -> String,
    /// Every limit.
    pub limits: RestLimits,
    /// Wakes event streams when its value changes; without it they poll.
    pub new_head: Option<watch::Receiver<u64>>,
    /// Ends event streams.
    pub stop: CancellationToken,
}

/// What the handlers share.
pub(crate) struct Api {
    state: RestState,
    turns: Semaphore,
    streams: Arc<Semaphore>,
    documents: docs::Documents,
}

impl Api {
    fn chain(&self) -> RestChain {
        self.state.chain
    }

    fn raw(&self) -> &dyn RawReader {
        &*self.state.raw
    }

    fn app(&self) -> Option<&dyn DerivedReader> {
        self.state.app.as_deref()
    }

    fn catalog(&self) -> &Catalog {
        &self.state.catalog
    }

    fn upstreams_of(&self, service: &str) -> &'static [&'static str] {
        self.state.upstreams.get(service).copied().unwrap_or_default()
    }

    /// What the configuration makes of a worker; one that it doesn't know doesn't run.
    fn use_of(&self, service: &str) -> WorkerUse {
        self.state.workers.get(service).copied().unwrap_or(WorkerUse::Disabled)
    }

    fn required_workers(&self) -> impl Iterator<Item = &'static str> {
        let workers = self.state.workers.iter();
        workers.filter(|(_, is)| **is == WorkerUse::Required).map(|(name, _)| *name)
    }

    fn search_term(&self, text: &str) -> String {
        (self.state.search_term)(text)
    }

    fn wrapped_tokens(&self, chain_id: ChainId) -> Vec<String> {
        (self.state.wrapped_tokens)(chain_id)
    }

    fn halts(&self) -> Vec<Halt> {
        (self.state.halts)()
    }

    fn obstacle(&self) -> Option<Obstacle> {
        (self.state.obstacle)()
    }

    fn limits(&self) -> &RestLimits {
        &self.state.limits
    }

    fn new_head(&self) -> Option<&watch::Receiver<u64>> {
        self.state.new_head.as_ref()
    }

    fn stop(&self) -> &CancellationToken {
        &self.state.stop
    }

    fn turns(&self) -> &Semaphore {
        &self.turns
    }

    fn streams(&self) -> &Arc<Semaphore> {
        &self.streams
    }

    fn documents(&self) -> &docs::Documents {
        &self.documents
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "cairn REST",
        version = "1",
        description = "Reads only. Every answer has the same shape: data, page for lists, meta with the block up to which the data goes. \
                       Numbers that may pass 2^53 are strings. Hashes and addresses are read in any case and written in lower case. \
                       Flow's accounts have 16 hex digits (leading zeros may be left out), its contracts are A.<address>.<name>, and addresses of its EVM side have 40. \
                       Errors are problems as in RFC 9457.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(problem::ProblemBody, stream::ReorgEvent)),
    tags(
        (name = "accounts", description = "What concerns an address"),
        (name = "blocks", description = "Blocks, and new ones as they come"),
        (name = "contracts", description = "Contracts and their code"),
        (name = "logs", description = "EVM logs by address and topics"),
        (name = "nfts", description = "Collections of NFTs, their items and owners"),
        (name = "search", description = "By height, hash, address or name"),
        (name = "stats", description = "Statistics by day"),
        (name = "status", description = "How far everything has come"),
        (name = "tokens", description = "Fungible tokens and their holders"),
        (name = "transactions", description = "Transactions, their events and their bytes")
    )
)]
struct Document;

/// The routes, all under `/v1`. An error says what is wrong with the document, which follows from the code alone.
pub fn router(state: RestState) -> Result<Router, serde_json::Error> {
    let (routes, openapi) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status::get_status))
        .routes(routes!(blocks::list_blocks))
        .routes(routes!(stream::stream_blocks))
        .routes(routes!(blocks::get_block))
        .routes(routes!(blocks::list_block_transactions))
        .routes(routes!(transactions::list_transactions))
        .routes(routes!(transactions::get_transaction))
        .routes(routes!(transactions::list_transaction_events))
        .routes(routes!(transactions::get_raw_transaction))
        .routes(routes!(transactions::list_transaction_transfers))
        .routes(routes!(accounts::get_account))
        .routes(routes!(accounts::list_account_transactions))
        .routes(routes!(accounts::list_account_transfers))
        .routes(routes!(accounts::list_account_nft_transfers))
        .routes(routes!(accounts::list_account_holdings))
        .routes(routes!(accounts::list_account_nfts))
        .routes(routes!(accounts::list_account_contracts))
        .routes(routes!(tokens::list_tokens))
        .routes(routes!(tokens::get_token))
        .routes(routes!(tokens::list_token_holders))
        .routes(routes!(tokens::list_token_transfers))
        .routes(routes!(nfts::list_collections))
        .routes(routes!(nfts::get_collection))
        .routes(routes!(nfts::list_items))
        .routes(routes!(nfts::get_item))
        .routes(routes!(nfts::list_item_owners))
        .routes(routes!(nfts::list_owners))
        .routes(routes!(nfts::list_collection_transfers))
        .routes(routes!(contracts::list_contracts))
        .routes(routes!(contracts::get_contract))
        .routes(routes!(contracts::get_contract_code))
        .routes(routes!(contract_transactions::list_contract_transactions))
        .routes(routes!(flow::history::list_account_keys))
        .routes(routes!(flow::history::list_contract_versions))
        .routes(routes!(flow::history::list_evm_blocks))
        .routes(routes!(flow::gaps::list_evm_gaps))
        .routes(routes!(flow::gaps::list_evm_absences))
        .routes(routes!(flow::gaps::list_evm_splits))
        .routes(routes!(logs::list_logs))
        .routes(routes!(stats::list_days))
        .routes(routes!(search::search))
        .split_for_parts();
    let api = Arc::new(Api {
        turns: Semaphore::new(state.limits.max_concurrent_requests.max(1)),
        streams: Arc::new(Semaphore::new(state.limits.max_streams)),
        documents: docs::Documents::new(&openapi)?,
        state,
    });
    Ok(routes
        .route("/v1/openapi.json", get(docs::openapi))
        .route("/v1/docs", get(docs::docs))
        .method_not_allowed_fallback(guard::no_method)
        .route("/v1", any(guard::no_route))
        .route("/v1/", any(guard::no_route))
        .route("/v1/{*rest}", any(guard::no_route))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guard::guard))
        .with_state(api))
}
