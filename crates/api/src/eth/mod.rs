//! The Ethereum JSON-RPC methods, without the transport: a method and its parameters in, a serialised result or an error out.
//!
//! Every request reads one snapshot ([`read`]), so that an answer never mixes two forks or two heights. What is above the head is
//! unknown (`null`), what is below the archive's first block is an error that says so, and nothing is clamped.

mod blocks;
mod chain;
mod debug;
mod fees;
mod filters;
pub(crate) mod logs;
pub mod methods;
pub(crate) mod place;
pub(crate) mod read;
mod transactions;
mod upstream;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cairn_core::{ChainId, StoredBlock};
use cairn_evm::{BlockView, ForkSchedule, ParamError};
use cairn_store::{RawReader, StoreError, StoreInfo};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

pub use self::chain::SyncState;
use self::filters::{Filters, Moved};
use self::methods::Kind;
use self::read::{Reading, size_bytes, work};
pub use self::upstream::Upstream;
use crate::error::{METHOD_NOT_FOUND, RpcError};
use crate::limits::RpcLimits;

/// The code of a method that this server can't answer because it keeps no state (EIP-1474: method not supported).
const NOT_SUPPORTED: i32 = -32004;

/// A serialised result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    json: Bytes,
}

impl Response {
    /// From JSON text.
    pub(crate) fn from_json(json: Vec<u8>) -> Self {
        Response { json: json.into() }
    }

    /// From a value.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self, RpcError> {
        Ok(Response::from_json(serde_json::to_vec(value)?))
    }

    /// `null`.
    pub(crate) fn null() -> Self {
        Response { json: Bytes::from_static(b"null") }
    }

    /// The JSON text.
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// The JSON text.
    pub fn into_json(self) -> Bytes {
        self.json
    }
}

/// An answer from the archive.
pub(crate) struct Answered {
    pub response: Response,
    /// How far a filter's caller has been told; to be settled when the answer goes out.
    pub moved: Option<Moved>,
}

/// Why there is no answer.
pub(crate) enum Refusal {
    /// This is why.
    Error(RpcError),
    /// The archive doesn't know, and an upstream may: [`EthApi::forward`]. Without one this is why.
    Elsewhere(RpcError),
}

impl From<RpcError> for Refusal {
    fn from(error: RpcError) -> Self {
        Refusal::Error(error)
    }
}

impl From<ParamError> for Refusal {
    fn from(error: ParamError) -> Self {
        Refusal::Error(error.into())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Refusal::Error(error.into())
    }
}

/// Says how far the ingester is behind its node; `None`: at the node's head, or there is no ingester.
pub type Syncing = Arc<dyn Fn() -> Option<SyncState> + Send + Sync>;

/// The fork schedule, parsed once for each configuration that the store holds.
#[derive(Default)]
struct ScheduleCache(Mutex<Option<Scheduled>>);

/// A configuration and the schedule in it.
struct Scheduled {
    chain_id: ChainId,
    config: Bytes,
    schedule: Option<Arc<ForkSchedule>>,
}

impl ScheduleCache {
    fn get(&self, info: &StoreInfo) -> Option<Arc<ForkSchedule>> {
        // The cache holds plain values: a panic elsewhere can't have left it half written.
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some(known) if known.chain_id == info.chain_id && known.config == info.chain_config => {
                known.schedule.clone()
            }
            _ => {
                let schedule = parse_schedule(info).map(Arc::new);
                let config = info.chain_config.clone();
                *cached = Some(Scheduled { chain_id: info.chain_id, config, schedule: schedule.clone() });
                schedule
            }
        }
    }
}

fn parse_schedule(info: &StoreInfo) -> Option<ForkSchedule> {
    if info.chain_config.is_empty() {
        return ForkSchedule::known(info.chain_id.0);
    }
    match ForkSchedule::from_genesis_json(&info.chain_config) {
        Ok(schedule) => Some(schedule),
        Err(error) => {
            tracing::error!(%error, "the stored chain configuration can't be read; answers that need the fork schedule fail");
            None
        }
    }
}

/// The methods over one store.
pub struct EthApi {
    reader: Arc<dyn RawReader>,
    limits: RpcLimits,
    client_version: String,
    schedules: ScheduleCache,
    upstream: Option<Arc<dyn Upstream>>,
    syncing: Option<Syncing>,
    filters: Filters,
}

impl EthApi {
    /// Methods that read `reader`.
    pub fn new(reader: Arc<dyn RawReader>, limits: RpcLimits) -> Self {
        let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
        EthApi {
            reader,
            limits,
            client_version: format!("cairn/v{}/{os}-{arch}/rust", env!("CARGO_PKG_VERSION")),
            schedules: ScheduleCache::default(),
            upstream: None,
            syncing: None,
            filters: Filters::default(),
        }
    }

    /// Forwards what the archive can't say.
    pub fn with_upstream(mut self, upstream: Arc<dyn Upstream>) -> Self {
        self.upstream = Some(upstream);
        self
    }

    /// Answers `eth_syncing` from the ingester.
    pub fn with_syncing(mut self, syncing: Syncing) -> Self {
        self.syncing = Some(syncing);
        self
    }

    /// The limits in force.
    pub fn limits(&self) -> &RpcLimits {
        &self.limits
    }

    pub(crate) fn reader(&self) -> &Arc<dyn RawReader> {
        &self.reader
    }

    /// Answers one request within the time and size limits. `params` is the caller's text; absent means none.
    pub async fn call(&self, method: &str, params: Option<&RawValue>) -> Result<Response, RpcError> {
        match self.answer(method, params, None).await {
            Ok(Answered { response, moved }) => {
                if let Some(moved) = moved {
                    moved.settle();
                }
                Ok(response)
            }
            Err(Refusal::Elsewhere(refusal)) => self.forward(method, params, refusal).await,
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// The same from the archive alone. `caller` is who asks, where filters are counted by it.
    pub(crate) async fn answer(
        &self,
        method: &str,
        params: Option<&RawValue>,
        caller: Option<IpAddr>,
    ) -> Result<Answered, Refusal> {
        let limit_ms = self.limits.request_timeout_ms;
        let answer =
            tokio::time::timeout(Duration::from_millis(limit_ms), self.dispatch(method, params, caller));
        let answered = answer.await.unwrap_or_else(|_| Err(RpcError::timeout(limit_ms).into()))?;
        self.demand_size(&answered.response)?;
        Ok(answered)
    }

    fn demand_size(&self, response: &Response) -> Result<(), RpcError> {
        match self.limits.max_response_bytes {
            max_bytes if response.json.len() > max_bytes => Err(RpcError::response_too_large(max_bytes)),
            _ => Ok(()),
        }
    }

    async fn dispatch(
        &self,
        method: &str,
        raw: Option<&RawValue>,
        caller: Option<IpAddr>,
    ) -> Result<Answered, Refusal> {
        match methods::find(method) {
            None => return Err(RpcError::method_not_found(method).into()),
            // The other methods of filters don't know an upstream's.
            Some(("eth_newPendingTransactionFilter", _)) => return Err(filters::no_mempool().into()),
            Some((_, Kind::State)) => return Err(needs_state(method)),
            Some((_, Kind::Subscription)) => {
                return Err(RpcError::new(
                    METHOD_NOT_FOUND,
                    format!("{method} needs a WebSocket connection: notifications are not supported here"),
                )
                .into());
            }
            Some(_) => {}
        }
        let params = parse_params(raw)?;
        let params = params.as_ref();
        let response = match method {
            "eth_blockNumber" => self.block_number(params).await?,
            "eth_chainId" => self.chain_id(params).await?,
            "eth_syncing" => self.syncing(params).await?,
            "eth_capabilities" => self.capabilities(params).await?,
            "eth_config" => self.config(params).await?,
            "net_version" => self.net_version(params).await?,
            "net_listening" => self.net_listening(params)?,
            "web3_clientVersion" => self.client_version(params)?,
            "web3_sha3" => self.sha3(params)?,
            "rpc_modules" => self.modules(params)?,
            "eth_baseFee" => self.base_fee(params).await?,
            "eth_blobBaseFee" => self.blob_base_fee(params).await?,
            "eth_feeHistory" => self.fee_history(params).await?,
            "eth_getBlockByHash" => self.block_by_hash(params).await?,
            "eth_getBlockByNumber" => self.block_by_number(params).await?,
            "eth_getBlockReceipts" => self.block_receipts(params).await?,
            "eth_getBlockTransactionCountByHash" => self.transaction_count_by_hash(params).await?,
            "eth_getBlockTransactionCountByNumber" => self.transaction_count_by_number(params).await?,
            "eth_getUncleCountByBlockHash" => self.uncle_count_by_hash(params).await?,
            "eth_getUncleCountByBlockNumber" => self.uncle_count_by_number(params).await?,
            "eth_getUncleByBlockHashAndIndex" => self.uncle_by_hash(params).await?,
            "eth_getUncleByBlockNumberAndIndex" => self.uncle_by_number(params).await?,
            "eth_getTransactionByHash" => self.transaction_by_hash(params).await?,
            "eth_getTransactionByBlockHashAndIndex" => self.transaction_by_block_hash(params).await?,
            "eth_getTransactionByBlockNumberAndIndex" => self.transaction_by_block_number(params).await?,
            "eth_getTransactionReceipt" => self.transaction_receipt(params).await?,
            "eth_getLogs" => self.get_logs(params).await?,
            "debug_getRawHeader" => self.raw_header(params).await?,
            "debug_getRawBlock" => self.raw_block(params).await?,
            "debug_getRawReceipts" => self.raw_receipts(params).await?,
            "debug_getRawTransaction" => self.raw_transaction(params).await?,
            "debug_traceBlockByHash" => self.trace_block_by_hash(params).await?,
            "debug_traceBlockByNumber" => self.trace_block_by_number(params).await?,
            "debug_traceTransaction" => self.trace_transaction(params).await?,
            "net_peerCount" => self.peer_count(params)?,
            "eth_getHeaderByHash" => self.header_by_hash(params).await?,
            "eth_getHeaderByNumber" => self.header_by_number(params).await?,
            "eth_getRawTransactionByHash" => self.raw_transaction(params).await?,
            "eth_getRawTransactionByBlockHashAndIndex" => self.raw_transaction_by_block_hash(params).await?,
            "eth_getRawTransactionByBlockNumberAndIndex" => {
                self.raw_transaction_by_block_number(params).await?
            }
            "eth_newFilter" => self.new_filter(params, caller).await?,
            "eth_newBlockFilter" => self.new_block_filter(params, caller).await?,
            "eth_uninstallFilter" => self.uninstall_filter(params)?,
            "eth_getFilterLogs" => self.filter_logs(params).await?,
            "eth_getFilterChanges" => {
                let (response, moved) = self.filter_changes(params).await?;
                return Ok(Answered { response, moved: Some(moved) });
            }
            _ => return Err(RpcError::internal(format!("{method} is listed but not answered")).into()),
        };
        Ok(Answered { response, moved: None })
    }

    /// Asks the upstream, within its own time; without one it is `refusal`.
    pub(crate) async fn forward(
        &self,
        method: &str,
        params: Option<&RawValue>,
        refusal: RpcError,
    ) -> Result<Response, RpcError> {
        let Some(upstream) = &self.upstream else { return Err(refusal) };
        let answer: Box<str> = upstream.forward(method, params).await?.into();
        let response = Response { json: Bytes::from(String::from(answer)) };
        self.demand_size(&response)?;
        Ok(response)
    }

    /// A snapshot for one request.
    pub(crate) async fn read(&self) -> Result<Reading, RpcError> {
        Reading::open(&self.reader, self.limits.max_snapshot_age_ms).await
    }

    /// The fork schedule of the store's chain, where it is known.
    pub(crate) fn schedule(&self, info: &StoreInfo) -> Option<Arc<ForkSchedule>> {
        self.schedules.get(info)
    }

    /// Decodes a block and runs `then` on the view, where it may block.
    pub(crate) async fn view<T: Send + 'static>(
        &self,
        reading: &Reading,
        block: StoredBlock,
        then: impl FnOnce(&BlockView) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, RpcError> {
        let schedule = self.schedule(&reading.head().info);
        work(size_bytes(&block), move || then(&BlockView::decode(block, schedule.as_deref())?)).await
    }
}

fn needs_state(method: &str) -> Refusal {
    Refusal::Elsewhere(RpcError::new(
        NOT_SUPPORTED,
        format!(
            "{method} needs the chain's state (or its mempool), and this server keeps none: it archives blocks, receipts and \
             logs. Ask a node, or configure one as the upstream (`serve.upstream`, --upstream), to which this server then forwards such methods"
        ),
    ))
}

/// The parameters as JSON values; `serde_json` bounds their depth.
fn parse_params(raw: Option<&RawValue>) -> Result<Option<Value>, RpcError> {
    raw.map(|raw| serde_json::from_str(raw.get()))
        .transpose()
        .map_err(|error| RpcError::invalid_params(format!("params can't be read: {error}")))
}
