//! The configuration: one TOML file, the environment over it, flags over that. Unknown keys are errors; everything is checked
//! before anything starts.
//!
//! Environment names are `CAIRN_` and the key, with `__` between section and key (`CAIRN_CHAIN__RPC`); `DB_RAW_URL`, `DB_APP_URL`,
//! `MAX_REORG_DEPTH`, `PAYLOAD_INLINE_MAX_BYTES` and `DENORMALIZE_EVENTS` work too.

#[cfg(test)]
mod example;
pub mod first;
mod flag;
pub mod listen;
mod partitions;
mod place;
mod shown;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::bail;
use cairn_api::rest::RestLimits;
use cairn_api::{ConnectionLimits, RpcLimits, TrustedProxies};
use cairn_core::Height;
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use serde::{Deserialize, Serialize};
use url::Url;

use crate::chain::settings::{self, ChainConfig};
use crate::chain::{self, Chain};
use crate::cli::{ChainArgs, DataArgs, IngestArgs, ListenArgs};
use crate::stores;
use first::First;

/// Environment names that begin like ours and are no settings, without `CAIRN_`: the log filter, and what the project's own scripts and
/// tests read. Any other that isn't a key is refused.
const FOREIGN_ENV: &[&str] = &[
    "log",
    "cache",
    "shared",
    // Of `./dev`.
    "answer_blocks",
    "anvil_port",
    "correcting_seeds",
    "flow_emulator_admin_port",
    "flow_emulator_port",
    "geth_port",
    "kill_seed",
    "kills",
    "model_whole",
    "outage_s",
    "postgres_bin",
    "postgres_port",
    "rest_examples",
    "rest_seed",
    "s3s_port",
    "sim_seeds",
    // Of tests.
    "case",
    "http",
    "payload_seeds",
    "test_crash_dir",
    "test_jobs",
    "test_pg_url",
    "test_s3_url",
    "write_golden",
    "ws",
];

/// Environment names without our prefix, and the keys that they set.
const SEED_ENV: [(&str, &str); 5] = [
    ("DB_RAW_URL", "raw.url"),
    ("DB_APP_URL", "app.url"),
    ("MAX_REORG_DEPTH", "ingest.max_reorg_depth"),
    ("PAYLOAD_INLINE_MAX_BYTES", "payloads.inline_max_bytes"),
    ("DENORMALIZE_EVENTS", "raw.denormalize_events"),
];

/// All settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The archive's directory.
    pub data_dir: PathBuf,
    /// How long `run` and `serve` wait at the start for a database, a schema or a node that isn't there yet, in seconds; 0: not at all.
    pub start_wait_s: u64,
    /// The raw database.
    pub raw: DatabaseConfig,
    /// The app database: everything derived.
    pub app: DatabaseConfig,
    /// What is derived, and within which limits.
    pub derive: DeriveConfig,
    /// Large payloads of a raw database on PostgreSQL.
    pub payloads: PayloadsConfig,
    /// The chain and its nodes.
    pub chain: ChainConfig,
    /// What is taken, and within which limits.
    pub ingest: IngestConfig,
    /// What is served, and within which limits.
    pub serve: ServeConfig,
    /// When the service calls itself ready.
    pub health: HealthConfig,
    /// Repair at intervals.
    pub repair: RepairConfig,
}

/// One database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE`; none: SQLite in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The most connections of each pool.
    pub max_open_conns: usize,
    /// The most connections of each pool that are kept while nobody uses them.
    pub max_idle_conns: usize,
    /// How long one statement may run, in milliseconds.
    pub statement_timeout_ms: u64,
    /// Only keys are indexed while partitions fill; the other indexes are built on each partition when it is full.
    pub backfill: bool,
    /// How many heights a partition of each partitioned table holds; none: the sizes of the schema. In the raw database it counts for new partitions; of the app
    /// database it is part of a table's definition, and another one than it was made with is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_heights: Option<u64>,
    /// The same for single tables, by name; it wins over `partition_heights`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub partitions: BTreeMap<String, u64>,
    /// For debugging: keep a cut list of each transaction's events too. Refused for the app database.
    #[serde(skip_serializing_if = "std::ops::Not::not", deserialize_with = "flag::read")]
    pub denormalize_events: bool,
}

impl Default for DatabaseConfig {
    fn default() -> Self {
        DatabaseConfig {
            url: None,
            max_open_conns: 8,
            max_idle_conns: 4,
            statement_timeout_ms: 30_000,
            backfill: false,
            partition_heights: None,
            partitions: BTreeMap::new(),
            denormalize_events: false,
        }
    }
}

/// What happens to a range with an event that can't be decoded at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Malformed {
    /// It is recorded, and the range goes on.
    Continue,
    /// A fatal one fails the range.
    Halt,
}

/// What is derived, and within which limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeriveConfig {
    /// Derive at all.
    pub enabled: bool,
    /// Workers that don't run, by name.
    pub disabled: Vec<String>,
    /// Ranges are cut at multiples of this many heights.
    pub range_heights: u64,
    /// The same for single workers, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub range_heights_of: BTreeMap<String, u64>,
    /// Ranges of one mapper that are worked on at once in this process.
    pub workers_per_service: usize,
    /// How long a lease lasts without a sign of life, in seconds.
    pub lease_ttl_s: u64,
    /// The most heights in one commit.
    pub chunk_heights: u64,
    /// The most raw bytes read for one commit, in MiB.
    pub chunk_mib: u64,
    /// Raw blocks that a mapper read and the others may take from it, in MiB.
    pub recent_mib: u64,
    /// How often stores are looked at when nothing wakes a worker, in milliseconds.
    pub poll_ms: u64,
    /// What happens to a range with an event that can't be decoded.
    pub malformed: Malformed,
    /// Open entries that the error log has of a worker at most; further warnings are counted. Fatal ones are always recorded.
    pub errors_max_per_worker: u64,
    /// How long closed entries of the error log are kept, in days; 0: for ever.
    pub errors_retention_days: u64,
    /// Contracts whose `Deposit` and `Withdrawal` events count as token movements; `*` for all. `None`: the well-known ones of the chain.
    pub wrapped_tokens: Option<Vec<String>>,
    /// Ask the node for names, symbols, code.
    pub ask_node: bool,
}

impl Default for DeriveConfig {
    fn default() -> Self {
        DeriveConfig {
            enabled: true,
            disabled: Vec::new(),
            range_heights: 50_000,
            range_heights_of: BTreeMap::new(),
            workers_per_service: 2,
            lease_ttl_s: 60,
            chunk_heights: 500,
            chunk_mib: 4,
            recent_mib: 64,
            poll_ms: 1_000,
            malformed: Malformed::Continue,
            errors_max_per_worker: 10_000,
            errors_retention_days: 30,
            wrapped_tokens: None,
            ask_node: true,
        }
    }
}

/// Large payloads of a raw database on PostgreSQL.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PayloadsConfig {
    /// Where they are kept: a directory, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`; `none`: in the database, whatever their size. Not set: the
    /// directory `payloads` in the data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Larger ones are kept there.
    pub inline_max_bytes: u64,
}

impl Default for PayloadsConfig {
    fn default() -> Self {
        PayloadsConfig { url: None, inline_max_bytes: 8_192 }
    }
}

/// What is taken, and within which limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IngestConfig {
    /// The first height of a new archive, `latest`, or `-N` for N blocks below the head.
    pub from: First,
    /// The last height; none: follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Halt at a deeper reorg, in blocks.
    pub max_reorg_depth: u64,
    /// Ranges filled at once below finality; 0: in order.
    pub fill_workers: usize,
    /// Heights of such a range.
    pub fill_range_heights: u64,
    /// Blocks in flight, in MiB.
    pub budget_mib: u64,
    /// Pause between looks at the head, in milliseconds.
    pub poll_ms: u64,
    /// How often a node has to say the same before a chain that isn't longer replaces the stored one.
    pub confirmations: u32,
    /// The database's page cache, in MiB.
    pub cache_mib: u64,
}

/// What is served, and within which limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// JSON-RPC over HTTP and WebSocket.
    #[serde(deserialize_with = "listen::read")]
    pub rpc_listen: SocketAddr,
    /// REST, and health and metrics where these have no address of their own.
    #[serde(deserialize_with = "listen::read")]
    pub listen: SocketAddr,
    /// Health and metrics alone, so that `listen` can be public while these stay private.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "listen::read_some")]
    pub health_listen: Option<SocketAddr>,
    /// Node for state methods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Names that a `Host` header may have besides IP addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Origins that a browser's page may have; `*` for any.
    pub allowed_origins: Vec<String>,
    /// Addresses and networks of proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<String>,
    /// Every limit of the JSON-RPC server.
    pub limits: RpcLimits,
    /// Every limit of REST.
    pub rest: RestLimits,
    /// Every limit of connections to REST, health and metrics.
    pub connections: ConnectionLimits,
}

/// When the service calls itself ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// Not ready when more heights than this behind the node.
    pub max_lag_heights: u64,
    /// Not ready when nothing moved for this long although the node is ahead, in seconds.
    pub max_age_s: u64,
    /// A process that works or answers only is not ready when a table is more heights than this behind the archive.
    pub max_table_lag_heights: u64,
}

/// Repair at intervals in a running process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RepairConfig {
    /// How often, in seconds; 0: never. The first comes after a 24th of it.
    pub every_s: u64,
    /// How many heights are looked at in full each time: a stretch drawn at random.
    pub sample_heights: u64,
    /// The memory in which state is made once more to be compared, in MiB; 0: state is not compared.
    pub state_mib: u64,
    /// Compare state at intervals too: each time reads all events that it is folded from.
    pub state_at_intervals: bool,
}

impl Default for RepairConfig {
    fn default() -> Self {
        RepairConfig { every_s: 86_400, sample_heights: 1_000, state_mib: 256, state_at_intervals: false }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data_dir: PathBuf::from("cairn-data"),
            start_wait_s: 3_600,
            raw: DatabaseConfig::default(),
            app: DatabaseConfig::default(),
            derive: DeriveConfig::default(),
            payloads: PayloadsConfig::default(),
            chain: ChainConfig::default(),
            ingest: IngestConfig::default(),
            serve: ServeConfig::default(),
            health: HealthConfig::default(),
            repair: RepairConfig::default(),
        }
    }
}

impl Default for IngestConfig {
    fn default() -> Self {
        IngestConfig {
            from: First::Height(0),
            to: None,
            max_reorg_depth: 1_000,
            fill_workers: 0,
            fill_range_heights: 1_000,
            budget_mib: 96,
            poll_ms: 1_000,
            confirmations: 3,
            cache_mib: 64,
        }
    }
}

impl ServeConfig {
    /// Proxies that name their callers.
    pub fn proxies(&self) -> anyhow::Result<TrustedProxies> {
        TrustedProxies::parse(&self.trusted_proxies).map_err(|text| {
            anyhow::anyhow!(
                "serve.trusted_proxies: `{text}` is neither an IP address nor a network such as 10.0.0.0/8"
            )
        })
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            rpc_listen: SocketAddr::from(([127, 0, 0, 1], 8545)),
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            health_listen: None,
            upstream: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            trusted_proxies: Vec::new(),
            limits: RpcLimits::default(),
            rest: RestLimits::default(),
            connections: ConnectionLimits::default(),
        }
    }
}

impl Default for HealthConfig {
    fn default() -> Self {
        HealthConfig { max_lag_heights: 50, max_age_s: 120, max_table_lag_heights: 1_000 }
    }
}

/// What the flags of a command set.
#[derive(Debug, Default, Serialize)]
pub struct Overrides<'a> {
    #[serde(flatten)]
    data: Option<&'a DataArgs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<&'a ChainArgs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ingest: Option<&'a IngestArgs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serve: Option<&'a ListenArgs>,
}

impl<'a> Overrides<'a> {
    /// The data directory's flag.
    pub fn data(mut self, args: &'a DataArgs) -> Self {
        self.data = Some(args);
        self
    }

    /// The chain's flags.
    pub fn chain(mut self, args: &'a ChainArgs) -> Self {
        self.chain = Some(args);
        self
    }

    /// The ingester's flags.
    pub fn ingest(mut self, args: &'a IngestArgs) -> Self {
        self.ingest = Some(args);
        self
    }

    /// The servers' flags.
    pub fn listen(mut self, args: &'a ListenArgs) -> Self {
        self.serve = Some(args);
        self
    }
}

/// The same for processes that stay: a raw database that isn't there yet is waited for.
pub async fn load_to_stay(file: Option<&Path>, overrides: &Overrides<'_>) -> anyhow::Result<Config> {
    let mut config = load(file, overrides)?;
    stores::await_raw(&config).await?;
    chain::settle(&mut config).await?;
    Ok(config)
}

/// The same for commands over an archive: where the configuration leaves the kind of chain open, the archive says it; one of another chain is refused.
pub async fn load_for_archive(file: Option<&Path>, overrides: &Overrides<'_>) -> anyhow::Result<Config> {
    let mut config = load(file, overrides)?;
    chain::settle(&mut config).await?;
    Ok(config)
}

/// Reads file and environment, lays the flags over them, and checks the result.
pub fn load(file: Option<&Path>, overrides: &Overrides<'_>) -> anyhow::Result<Config> {
    let figment = Figment::from(Serialized::defaults(Config::default()));
    let path = match file {
        Some(path) if !path.is_file() => bail!("configuration file {} does not exist", path.display()),
        Some(path) => path,
        None => Path::new("cairn.toml"),
    };
    // Read once, so that what is said of it is said of the text that was read.
    let file = match std::fs::read_to_string(path) {
        Ok(text) => Some(shown::File { path, text }),
        Err(error) if file.is_none() && error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => bail!("configuration file {} can't be read: {error}", path.display()),
    };
    let figment = match &file {
        Some(file) => figment.merge(Toml::string(&file.text)),
        None => figment,
    };
    let config: Config = figment
        .merge(Env::raw().only(&SEED_ENV.map(|(name, _)| name)).map(|name| {
            let known = SEED_ENV.iter().find(|(seed, _)| name == *seed);
            known.map_or_else(|| name.to_owned(), |(_, key)| (*key).into()).into()
        }))
        .merge(Env::prefixed("CAIRN_").ignore(FOREIGN_ENV).split("__"))
        .merge(Serialized::defaults(overrides))
        .extract()
        .map_err(|error| {
            anyhow::anyhow!("the configuration can't be used: {}", shown::errors(error, file.as_ref()))
        })?;
    config.check().map_err(|error| {
        match file.as_ref().and_then(|file| file.place_of(&error.to_string())) {
            Some(place) => error.context(format!("the configuration can't be used ({place})")),
            None => error,
        }
    })?;
    Ok(config)
}

impl Config {
    /// Checks everything that can be checked without starting anything.
    pub fn check(&self) -> anyhow::Result<()> {
        self.chain.check()?;
        if let Chain::Flow(_) = self.chain() {
            let foreign = [(self.serve.upstream.is_some(), "serve.upstream (--upstream)")];
            settings::refuse(&foreign, "EVM chains", "Flow")?;
        }
        self.serve.proxies()?;
        if let Some(url) = &self.serve.upstream {
            let parsed =
                Url::parse(url).map_err(|error| anyhow::anyhow!("--upstream {}: {error}", hide_url(url)))?;
            if !matches!(parsed.scheme(), "http" | "https") {
                bail!("--upstream {}: expected http or https", hide_url(url));
            }
        }
        if self.app.denormalize_events {
            bail!("app.denormalize_events does nothing: it is a setting of [raw] alone");
        }
        for (name, database) in [("raw", &self.raw), ("app", &self.app)] {
            // PostgreSQL would take 0 for no limit at all.
            if database.statement_timeout_ms == 0 {
                bail!("{name}.statement_timeout_ms must be at least 1");
            }
            let Some(url) = &database.url else { continue };
            if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
                bail!(
                    "{name}.url {}: expected postgres://USER@HOST/DATABASE; without it SQLite in data_dir is used",
                    hide_url(url)
                );
            }
            // Building an index holds one for as long as that takes.
            let least = if name == "app" { 2 } else { 1 };
            if database.max_open_conns < least {
                bail!("{name}.max_open_conns must be at least {least}");
            }
        }
        crate::stores::payload_location(self)?;
        let from = match self.ingest.from {
            First::Height(height) => Some(height),
            First::BelowHead(_) => None,
        };
        for (name, height) in [("--from", from), ("--to", self.ingest.to)] {
            if let Some(Err(error)) = height.map(Height::believable) {
                bail!("{name} is {error}");
            }
        }
        if let (Some(to), First::Height(from)) = (self.ingest.to, self.ingest.from)
            && to < from
        {
            bail!("--to {to} lies below --from {from}");
        }
        let positive = [
            ("ingest.max_reorg_depth", self.ingest.max_reorg_depth),
            ("ingest.budget_mib", self.ingest.budget_mib),
            ("ingest.poll_ms", self.ingest.poll_ms),
            ("ingest.fill_range_heights", self.ingest.fill_range_heights),
            ("ingest.confirmations", u64::from(self.ingest.confirmations)),
            ("derive.range_heights", self.derive.range_heights),
            ("derive.workers_per_service", self.derive.workers_per_service as u64),
            ("derive.lease_ttl_s", self.derive.lease_ttl_s),
            ("derive.chunk_heights", self.derive.chunk_heights),
            ("derive.chunk_mib", self.derive.chunk_mib),
            ("derive.poll_ms", self.derive.poll_ms),
            ("derive.errors_max_per_worker", self.derive.errors_max_per_worker),
            ("repair.sample_heights", self.repair.sample_heights),
            ("payloads.inline_max_bytes", self.payloads.inline_max_bytes),
        ];
        if let Some((worker, _)) = self.derive.range_heights_of.iter().find(|(_, heights)| **heights == 0) {
            bail!("derive.range_heights_of.{worker} must be at least 1");
        }
        for (name, value) in positive {
            if value == 0 {
                bail!("{name} must be at least 1");
            }
        }
        partitions::check(self)?;
        self.serve.limits.check().map_err(|error| anyhow::anyhow!("serve.limits.{error}"))?;
        self.serve.rest.check().map_err(|error| anyhow::anyhow!("serve.rest.{error}"))?;
        self.serve.connections.check().map_err(|error| anyhow::anyhow!("serve.connections.{error}"))?;
        crate::derive::check_names(self)?;
        let mut addresses = vec![("--rpc-listen", self.serve.rpc_listen), ("--listen", self.serve.listen)];
        addresses.extend(self.serve.health_listen.map(|address| ("--health-listen", address)));
        for (at, (name, address)) in addresses.iter().enumerate() {
            let before = addresses.iter().take(at).find(|(_, other)| other == address && address.port() != 0);
            if let Some((other, _)) = before {
                bail!("{other} and {name} are both {address}; give them different ports");
            }
        }
        Ok(())
    }

    /// Where the archive is, fit to be shown.
    pub fn archive_place(&self) -> String {
        match &self.raw.url {
            Some(url) => hide_url(url),
            None => self.data_dir.display().to_string(),
        }
    }

    /// The kind of chain.
    pub fn chain(&self) -> Chain {
        self.chain.chain()
    }

    /// The same, fit to be shown: URLs without user, path or query.
    pub fn without_secrets(&self) -> Config {
        let mut shown = self.clone();
        shown.chain = shown.chain.without_secrets();
        shown.raw.url = shown.raw.url.as_deref().map(hide_url);
        shown.app.url = shown.app.url.as_deref().map(hide_url);
        shown.payloads.url = shown.payloads.url.as_deref().map(hide_place);
        shown.serve.upstream = shown.serve.upstream.as_deref().map(hide_url);
        shown
    }
}

/// A URL as far as it may be shown: scheme, host and port. Keys hide in user names, paths and queries.
pub fn hide_url(url: &str) -> String {
    match Url::parse(url) {
        // A password that isn't written as one in a URL: what was read as host and port may be its beginning.
        Ok(parsed) if parsed.username().is_empty() && url.contains('@') => format!("{}://…", parsed.scheme()),
        Ok(parsed) => {
            let host = parsed.host_str().unwrap_or("?");
            let port = parsed.port().map(|port| format!(":{port}")).unwrap_or_default();
            let hidden = parsed.path().len() > 1 || parsed.query().is_some() || !parsed.username().is_empty();
            format!("{}://{host}{port}{}", parsed.scheme(), if hidden { "/…" } else { "" })
        }
        Err(_) => "(not a URL)".into(),
    }
}

/// A place for payloads as far as it may be shown: a directory whole, a URL without user and query.
fn hide_place(place: &str) -> String {
    match Url::parse(place) {
        Ok(parsed) if !parsed.username().is_empty() || parsed.query().is_some() => hide_url(place),
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_their_secrets() {
        assert_eq!(hide_url("https://user:pw@node.example:8545/v2/KEY?x=1"), "https://node.example:8545/…");
        assert_eq!(hide_url("postgres://user:123?pw@db.example/d"), "postgres://…");
        assert_eq!(hide_url("http://127.0.0.1:8545"), "http://127.0.0.1:8545");
        assert_eq!(hide_url("KEY"), "(not a URL)");
    }

    #[test]
    fn an_archive_is_where_its_blocks_are() {
        let mut config = Config { data_dir: "here".into(), ..Config::default() };
        assert_eq!(config.archive_place(), "here");
        config.raw.url = Some("postgres://user:pw@db.example:5432/blocks".into());
        assert_eq!(config.archive_place(), "postgres://db.example:5432/…");
    }

    #[test]
    fn contradictions_are_refused_by_name() {
        let mut config = Config::default();
        config.ingest.from = First::Height(10);
        config.ingest.to = Some(9);
        assert!(config.check().expect_err("reversed").to_string().contains("--to 9"));
        config.ingest.to = Some(u64::MAX);
        assert!(
            config
                .check()
                .expect_err("no chain has it")
                .to_string()
                .contains("--to is height 18446744073709551615")
        );
        let mut config = Config::default();
        config.chain.finality = Some("depth:x".into());
        assert!(config.check().expect_err("no number").to_string().contains("chain.finality"));
        let mut config = Config::default();
        config.serve.limits.max_log_results = 0;
        assert!(config.check().expect_err("zero").to_string().contains("max_log_results"));
    }
}
