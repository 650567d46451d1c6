//! Derived work of this process: the processors, the app store, and what runs them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cairn_api::rest::WorkerUse;
use cairn_core::{ChainId, Height};
use cairn_explorer::decode::evm::wrapped::WrappedTokens;
use cairn_explorer::processors::Settings;
use cairn_explorer::processors::evm::node::ContractNode;
use cairn_explorer::processors::flow::node::ScriptNode;
use cairn_pipeline::derive::processor::{Folder, Processor, ServiceInfo};
use cairn_pipeline::derive::status::{DeriveStatus, Halt};
use cairn_pipeline::derive::{
    DeriveError, DeriveOptions, Deriver, MalformedPolicy, derives_again, in_order_of_upstreams,
};
use cairn_store::derived::{
    Catalog, DerivedReader, DerivedStore, ErrorLog, LeaseFilter, TableClass, TableDef,
};
use cairn_store::{RawReader, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::access::AccessScripts;
use crate::chain::Chain;
use crate::chain::settings::ChainKind;
use crate::config::{Config, Malformed};
use crate::node::HttpContractNode;
use crate::output::say;
use crate::stores::{self, LateApp};

/// How long it is till the store is looked at again, where workers say that they are done and it doesn't.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often a process that waits for derived work looks whether an operator holds it up.
const HELD_UP_LOOK: Duration = Duration::from_secs(2);

/// Every derived table, with the partitions that the configuration says.
pub fn catalog(config: &Config) -> anyhow::Result<Catalog> {
    let catalog = config.chain().catalog()?;
    catalog.with_partitions(config.app.partition_heights, &config.app.partitions).context("app.partitions")
}

/// Nodes that this process is connected to already, for those who ask. Where there is none of the chain's kind, those that the configuration names are asked.
#[derive(Clone, Default)]
pub struct Asked {
    /// About contracts of an EVM chain.
    pub contracts: Option<Arc<dyn ContractNode>>,
    /// By scripts, on Flow.
    pub scripts: Option<Arc<dyn ScriptNode>>,
}

/// The processors that the configuration enables, of blocks of this chain. Without it no wrapped tokens are known: then they only say what they are.
pub fn processors(
    config: &Config,
    asked: Asked,
    chain_id: Option<ChainId>,
) -> anyhow::Result<Vec<Processor>> {
    let chain = config.chain();
    let wrapped = wrapped_tokens(config)?;
    let wrapped = chain_id.map(wrapped).unwrap_or_default();
    let settings = match chain {
        Chain::Evm => {
            Settings { wrapped, node: contract_node(config, asked.contracts)?, ..Settings::default() }
        }
        Chain::Flow(network) => {
            let asks = config.derive.ask_node && !config.chain.access.is_empty();
            let scripts = asks.then(|| {
                asked
                    .scripts
                    .unwrap_or_else(|| Arc::new(AccessScripts::configured(config, network)) as Arc<_>)
            });
            Settings { wrapped, network: Some(network), scripts, ..Settings::default() }
        }
    };
    let mut processors = chain.processors(&settings);
    let disabled = &config.derive.disabled;
    let known: Vec<&str> = chain.registrations().iter().map(|registered| registered.service.name).collect();
    if let Some(unknown) = disabled.iter().find(|name| !known.contains(&name.as_str())) {
        anyhow::bail!("derive.disabled: there is no worker `{unknown}`; there are {}", known.join(", "));
    }
    if let Some(unknown) = config.derive.range_heights_of.keys().find(|name| !known.contains(&name.as_str()))
    {
        anyhow::bail!(
            "derive.range_heights_of: there is no worker `{unknown}`; there are {}",
            known.join(", ")
        );
    }
    processors.retain(|processor| !disabled.iter().any(|name| name == processor.service().name));
    Ok(processors)
}

/// Every folder of the chain, those that the configuration disables included.
pub fn folders(config: &Config) -> Vec<Arc<dyn Folder>> {
    let network = match config.chain() {
        Chain::Evm => None,
        Chain::Flow(network) => Some(network),
    };
    let processors = config.chain().processors(&Settings { network, ..Settings::default() });
    let folders = processors.into_iter().filter_map(|processor| match processor {
        Processor::Folder(folder) => Some(folder),
        Processor::Mapper(_) | Processor::Enricher(_) => None,
    });
    folders.collect()
}

/// Whether a worker asks a node: all that it makes are answers.
pub fn asks_node(service: &ServiceInfo) -> bool {
    let asks = |table: &&TableDef| matches!(table.class, TableClass::Answers | TableClass::Content);
    service.tables.iter().all(asks)
}

/// What the configuration makes of each worker of the chain. Whether there is a node to ask is only known where tables are derived.
pub fn uses(config: &Config) -> BTreeMap<&'static str, WorkerUse> {
    let of = |service: &ServiceInfo| match asks_node(service) {
        _ if config.derive.disabled.iter().any(|name| name == service.name) => WorkerUse::Disabled,
        true if config.derive.ask_node => WorkerUse::AsksNode,
        true => WorkerUse::Disabled,
        false => WorkerUse::Required,
    };
    let services = config.chain().registrations().iter().map(|registration| registration.service);
    services.map(|service| (service.name, of(service))).collect()
}

/// Refuses a name that is no worker's of the chain.
pub fn demand_worker(config: &Config, name: &str) -> anyhow::Result<()> {
    let registrations = config.chain().registrations().iter();
    let known: Vec<&str> = registrations.map(|registration| registration.service.name).collect();
    anyhow::ensure!(known.contains(&name), "there is no worker `{name}`; there are {}", known.join(", "));
    Ok(())
}

/// Checks the names of workers and tables in the configuration. Where only the archive says the kind of chain, any chain's will do; they are looked at again once it has.
pub fn check_names(config: &Config) -> anyhow::Result<()> {
    if config.chain.says_kind() {
        return check_names_on(config);
    }
    // Wrong on any chain.
    let _checked = wrapped_tokens(config)?;
    let mut other = config.clone();
    other.chain.kind = Some(ChainKind::Flow);
    // The first chain's error is the one to show: nobody spoke of Flow.
    check_names_on(config).or_else(|error| check_names_on(&other).map_err(|_| error))
}

fn check_names_on(config: &Config) -> anyhow::Result<()> {
    catalog(config)?;
    in_order_of_upstreams(processors(config, Asked::default(), None)?)?;
    Ok(())
}

/// Says whose `Deposit` and `Withdrawal` events count on a chain: those that the configuration names, else the well-known ones.
pub fn wrapped_tokens(
    config: &Config,
) -> anyhow::Result<impl Fn(ChainId) -> WrappedTokens + Send + Sync + 'static> {
    let named = match config.derive.wrapped_tokens.as_deref() {
        None => None,
        Some([]) => Some(WrappedTokens::Off),
        Some([all]) if all == "*" => Some(WrappedTokens::Any),
        Some(listed) => {
            let addresses = listed.iter().map(|address| {
                address.parse().with_context(|| format!("derive.wrapped_tokens: `{address}` is no address"))
            });
            Some(WrappedTokens::Listed(addresses.collect::<anyhow::Result<_>>()?))
        }
    };
    let chain = config.chain();
    let evm_chain_id = move |id: ChainId| match chain {
        Chain::Evm => id.0,
        Chain::Flow(network) => network.evm_chain_id(),
    };
    Ok(move |id| named.clone().unwrap_or_else(|| WrappedTokens::known(evm_chain_id(id))))
}

/// The same for people: addresses, or `*`.
pub fn wrapped_names(wrapped: WrappedTokens) -> Vec<String> {
    match wrapped {
        WrappedTokens::Off => Vec::new(),
        WrappedTokens::Any => vec!["*".to_owned()],
        WrappedTokens::Listed(listed) => {
            listed.iter().map(|address| address.to_string().to_lowercase()).collect()
        }
    }
}

/// The node that is asked about contracts.
fn contract_node(
    config: &Config,
    contracts: Option<Arc<dyn ContractNode>>,
) -> anyhow::Result<Option<Arc<dyn ContractNode>>> {
    let http = config.chain.rpc.iter().find(|url| url.starts_with("http"));
    Ok(match (contracts, http) {
        _ if !config.derive.ask_node => None,
        (Some(node), _) => Some(node),
        (None, Some(url)) => {
            let headers = config.chain.rpc_source()?.headers_for(&Url::parse(url)?);
            let node = HttpContractNode::new(url, &headers)?.with_finality(config.chain.finality()?);
            Some(Arc::new(node) as Arc<_>)
        }
        (None, None) => None,
    })
}

/// The options of this process's deriver.
pub fn options(config: &Config) -> DeriveOptions {
    let derive = &config.derive;
    let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "cairn".into());
    DeriveOptions {
        range_heights: derive.range_heights,
        range_heights_of: derive.range_heights_of.clone(),
        // So that the last range ends there and is completed, also where that is no multiple of its size.
        stop_exclusive: config.ingest.to.map(|to| Height(to).next()),
        workers_per_service: derive.workers_per_service,
        lease_ttl_ms: derive.lease_ttl_s.saturating_mul(1_000),
        lease_margin_ms: (derive.lease_ttl_s.saturating_mul(1_000) / 10).clamp(100, 10_000),
        chunk_heights: derive.chunk_heights,
        chunk_bytes: derive.chunk_mib.saturating_mul(1 << 20),
        recent_bytes: derive.recent_mib.saturating_mul(1 << 20),
        poll_ms: derive.poll_ms,
        max_open_errors: derive.errors_max_per_worker,
        closed_errors_kept_ms: match derive.errors_retention_days {
            0 => None,
            days => Some(days.saturating_mul(86_400_000)),
        },
        malformed: match derive.malformed {
            Malformed::Continue => MalformedPolicy::Continue,
            Malformed::Halt => MalformedPolicy::Halt,
        },
        seed: rand::random(),
        // Its own in each run: leases are given back by their owner's name, and containers share host names and process ids.
        ..DeriveOptions::new(format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>()))
    }
}

/// Derived work that runs beside the rest of the process.
pub struct Work {
    task: tokio::task::JoinHandle<()>,
    status: watch::Receiver<DeriveStatus>,
    raw: Arc<dyn RawReader>,
    /// The app store for readers, once it is there.
    pub late: Arc<LateApp>,
}

impl Work {
    /// Starts it. Nothing that goes wrong in it touches ingestion.
    pub fn start(
        config: &Config,
        raw: Arc<dyn RawReader>,
        errors: Arc<dyn ErrorLog>,
        asked: Asked,
        hint: watch::Receiver<u64>,
        stop: CancellationToken,
    ) -> anyhow::Result<Work> {
        let catalog = catalog(config)?;
        let late = Arc::new(LateApp::default());
        let (board, status) = watch::channel(DeriveStatus::default());
        let task = tokio::spawn({
            let (config, late, raw) = (config.clone(), late.clone(), raw.clone());
            async move {
                if let Err(error) = run(&config, catalog, asked, raw, errors, hint, &late, &board, stop).await
                {
                    let message = error.to_string();
                    tracing::error!("derived work halted: {message}");
                    say(format_args!(
                        "derived work halted: {message}\nIngestion and what is there already are not touched by it."
                    ));
                    let code = error.downcast_ref::<DeriveError>().map_or("start", DeriveError::code);
                    let halt = Halt { service: None, height: None, code, message };
                    // Who met it may have said more.
                    board.send_modify(|status| {
                        status.halted.get_or_insert(halt);
                    });
                }
            }
        });
        Ok(Work { task, status, raw, late })
    }

    /// The app store for readers.
    pub fn reader(&self) -> Arc<dyn DerivedReader> {
        self.late.clone()
    }

    /// What it says of itself.
    pub fn status(&self) -> watch::Receiver<DeriveStatus> {
        self.status.clone()
    }

    /// Waits until everything up to the raw tip is derived and every reorg is applied; an error where it has halted, or where nobody will do it: a worker is
    /// paused, or a range is dead.
    pub async fn caught_up(&self, tip: Height) -> anyhow::Result<()> {
        let mut status = self.status.clone();
        let looked = self.looked(tip);
        tokio::pin!(looked);
        loop {
            let may_be = status.wait_for(|status| {
                status.halted.is_some() || status.watermark_exclusive().is_some_and(|next| next > tip)
            });
            let halted = tokio::select! {
                biased;
                seen = may_be => seen.context("derived work ended early")?.halted.clone(),
                looked = &mut looked => return looked,
            };
            if let Some(message) = halted {
                anyhow::bail!("derived work halted: {message}");
            }
            // They may have said it of a fork that is left since.
            if self.is_done(tip).await {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                looked = &mut looked => return looked,
            }
        }
    }

    /// Whether the store itself has everything up to the tip, of the chain as it is now. What can't be read now is not known to be done.
    async fn is_done(&self, tip: Height) -> bool {
        let waited_for = {
            let status = self.status.borrow();
            if status.watermark_exclusive().is_none() {
                return false;
            }
            waited_for(&status)
        };
        let Ok(app) = self.late.snapshot().await else { return false };
        let Ok(raw) = self.raw.snapshot().await else { return false };
        let forks = app.forks();
        forks.is_settled()
            && forks.applied.id == raw.head().newest_reorg.id
            && waited_for.iter().all(|name| app.checkpoint(name).is_some_and(|own| own.next > tip))
            && matches!(derives_again(&*app, &waited_for).await, Ok(false))
    }

    /// Looks now and then at the store itself: for what only an operator can set going again, which is an error, and whether all is done. What workers say of
    /// themselves may be behind that: of two that commit ranges of one service side by side, the earlier may say so later.
    async fn looked(&self, tip: Height) -> anyhow::Result<()> {
        loop {
            tokio::time::sleep(HELD_UP_LOOK).await;
            if self.is_done(tip).await {
                return Ok(());
            }
            // A store that can't be read now is no answer; whoever works says so.
            let Ok(snapshot) = self.late.snapshot().await else { continue };
            let waited_for = waited_for(&self.status.borrow());
            let behind = |name: &str| {
                waited_for.contains(&name) && snapshot.checkpoint(name).is_some_and(|own| own.next <= tip)
            };
            if let Some(own) = snapshot.checkpoints().iter().find(|own| own.paused && behind(&own.service)) {
                let name = &own.service;
                anyhow::bail!("{name} is paused at height {}; `cairn workers resume {name}`", own.next);
            }
            let filter = LeaseFilter { dead: true, limit: 10, ..LeaseFilter::default() };
            let Ok(dead) = snapshot.leases(&filter).await else { continue };
            if let Some(lease) = dead.iter().find(|lease| behind(&lease.service)) {
                anyhow::bail!(
                    "range {} of {} failed too often: mend what `cairn leases list --dead` says, then `cairn leases retry {}`",
                    lease.range,
                    lease.service,
                    lease.id
                );
            }
        }
    }

    /// Waits for its end; it was told to stop before.
    pub async fn stopped(self) {
        if tokio::time::timeout(Duration::from_secs(20), self.task).await.is_err() {
            tracing::warn!("derived work did not stop in time; nothing is lost");
        }
    }
}

/// Whose checkpoints count: nothing waits for those who ask a node.
fn waited_for(status: &DeriveStatus) -> Vec<&'static str> {
    let services = status.services.iter().filter(|(_, service)| !service.is_enricher);
    services.map(|(name, _)| *name).collect()
}

#[expect(clippy::too_many_arguments, reason = "called once, with what the process has")]
async fn run(
    config: &Config,
    catalog: Catalog,
    asked: Asked,
    raw: Arc<dyn RawReader>,
    errors: Arc<dyn ErrorLog>,
    hint: watch::Receiver<u64>,
    late: &LateApp,
    board: &watch::Sender<DeriveStatus>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Some(app) = stores::open_app_patiently(config, catalog.clone(), &stop).await? else { return Ok(()) };
    // What processes left that are gone is freed, and a bad end of each range of which they did nothing.
    let entered = loop {
        match app.enter().await {
            Ok(entered) => break entered,
            Err(error) if error.kind().is_retryable() || matches!(error, StoreError::Database(_)) => {
                tracing::warn!(%error, "leases of the process before can't be freed yet; it is tried again");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    };
    if entered.released > 0 {
        tracing::info!(leases = entered.released, "leases of processes that are gone were taken back");
    }
    late.set(app.clone());
    let app: Arc<dyn DerivedStore> = app;
    let Some(chain_id) = chain_of(&*raw, &stop).await? else { return Ok(()) };
    let processors = processors(config, asked, Some(chain_id))?;
    let deriver = Deriver::new(raw, app, errors, catalog, processors, options(config))?
        .with_folders(folders(config))?
        .with_hint(hint);
    let mut from = deriver.board().subscribe();
    let forward = async {
        loop {
            let now = from.borrow_and_update().clone();
            board.send_replace(now);
            if from.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let ended = tokio::select! {
        ended = deriver.run(stop) => ended,
        () = forward => Ok(()),
    };
    // What it said last, of a halt above all, may not have been forwarded yet.
    board.send_replace(from.borrow().clone());
    // Its leases are given back; from now on others may take it for gone.
    drop(entered);
    Ok(ended?)
}

/// The chain of the raw store, once somebody has made it; `None` where it is to stop before.
async fn chain_of(raw: &dyn RawReader, stop: &CancellationToken) -> anyhow::Result<Option<ChainId>> {
    loop {
        match raw.snapshot().await {
            Ok(snapshot) => return Ok(Some(snapshot.head().info.chain_id)),
            Err(StoreError::Invalid(_)) => {}
            Err(error) if error.kind().is_retryable() || matches!(error, StoreError::Database(_)) => {
                tracing::warn!(%error, "the raw store can't be read yet; it is tried again");
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// What a command that only looks needs of the app store.
pub async fn open_for_command(config: &Config) -> anyhow::Result<Arc<dyn stores::AppStore>> {
    let store = stores::open_app(config, catalog(config)?, stores::Access::Write).await;
    store.map_err(|error| match error {
        StoreError::Locked { what, holder } => anyhow::anyhow!(
            "{what} is held by {}, a running cairn or another command: SQLite lets one process write. Stop it first, or use PostgreSQL (DB_APP_URL)",
            stores::holder_name(holder)
        ),
        error => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_a_node_is_known_by_its_tables_and_holds_nothing_up() {
        let mut config = Config::default();
        for kind in [ChainKind::Evm, ChainKind::Flow] {
            config.chain.kind = Some(kind);
            config.derive.disabled = vec!["stats_worker".into()];
            let uses = uses(&config);
            let named =
                |wanted| uses.iter().filter(|(_, is)| **is == wanted).map(|(name, _)| *name).collect();
            let askers: Vec<&str> = named(WorkerUse::AsksNode);
            let mut expected = vec!["contract_code_worker", "nft_metadata_worker", "token_metadata_worker"];
            if kind == ChainKind::Flow {
                expected.insert(0, "account_metadata_worker");
            }
            assert_eq!(askers, expected);
            let disabled: Vec<&str> = named(WorkerUse::Disabled);
            assert_eq!(disabled, ["stats_worker"]);
            assert_eq!(uses["token_worker"], WorkerUse::Required);
            config.derive.ask_node = false;
            assert_eq!(super::uses(&config)["contract_code_worker"], WorkerUse::Disabled);
            config.derive.ask_node = true;
        }
    }

    #[test]
    fn e25_wrapped_tokens_are_the_well_known_ones_unless_the_configuration_names_others() {
        const WETH: &str = "0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2";
        const WFLOW: &str = "0xd3bf53dac106a0290b0483ecbc89d40fcc961f3e";
        let mut config = Config::default();
        let names =
            |config: &Config, id| wrapped_names(wrapped_tokens(config).expect("addresses")(ChainId(id)));
        assert_eq!(names(&config, 1), [WETH]);
        assert!(names(&config, 1_337).is_empty());
        for (listed, shown) in [(vec![], vec![]), (vec!["*"], vec!["*"]), (vec![WFLOW], vec![WFLOW])] {
            config.derive.wrapped_tokens = Some(listed.into_iter().map(str::to_owned).collect());
            assert_eq!(names(&config, 1), shown);
        }
        config.derive.wrapped_tokens = None;
        config.chain.kind = Some(ChainKind::Flow);
        let network = cairn_flow::Network::Mainnet;
        assert_eq!(names(&config, network.chain_number().0), [WFLOW]);
    }

    #[test]
    fn partitions_of_derived_tables_are_those_of_the_plan_unless_the_configuration_says_otherwise() {
        let mut config = Config::default();
        let size = |config: &Config, table: &str| {
            catalog(config).expect("a catalog").table(table).expect("a table").partition_heights()
        };
        assert_eq!(size(&config, "ft_transfers"), Some(10_000_000));
        assert_eq!(size(&config, "evm_logs"), Some(10_000_000));
        assert_eq!(size(&config, "ft_holdings"), None);
        config.app.partitions.insert("evm_logs".into(), 1_000);
        config.app.partition_heights = Some(5_000);
        assert_eq!(size(&config, "ft_transfers"), Some(5_000));
        assert_eq!(size(&config, "evm_logs"), Some(1_000));
        assert_eq!(size(&config, "ft_holdings"), None);
        // State isn't partitioned, and blocks are raw.
        for name in ["ft_holdings", "blocks"] {
            config.app.partitions = [(name.to_owned(), 7)].into();
            let error = format!("{:#}", catalog(&config).expect_err("no such table"));
            assert!(error.contains("app.partitions") && error.contains(&format!("`{name}`")), "{error}");
            assert!(error.contains("nft_transfers"), "{error}");
        }
    }
}
