//! Which databases: the raw store and the app store, by URL, each SQLite in the data directory where none is given.
//!
//! The two never share a transaction or a query. The app store may be away: ingestion goes on without it (law 1), and derived work begins
//! when it is there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use async_trait::async_trait;
use cairn_backends::LogTerms;
use cairn_backends::objects::{Location, ObjectPayloads, ObjectsConfig};
use cairn_backends::postgres::raw::{LookupFault, PartitionSizes, Repaired};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgRawOptions, PgRawStore};
use cairn_backends::sqlite::{Damage, SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::{ChainId, Clock, ErrorKind, Height, HeightRange, RawBlock, SystemClock};
use cairn_pipeline::ingest::IngestStore;
use cairn_store::derived::{Catalog, DerivedDump, DerivedReader, DerivedSnapshot, DerivedStore, ErrorLog};
use cairn_store::{RawDump, RawReader, RawReplacer, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chain;
use crate::config::{Config, DatabaseConfig, hide_url};
use crate::output::say;
use crate::start::{self, Patience};

/// Everything that a raw database can do.
#[async_trait]
pub trait RawStore: IngestStore + RawReplacer + ErrorLog + RawDump {
    /// A door for readers beside the ingester, who must not be able to hold what it needs (law 1). `name` is what the server shows them as.
    fn readers(self: Arc<Self>, name: &str) -> Result<Arc<dyn RawReader>, StoreError>;

    /// The store for what writes beside the ingester and must not be able to hold what it needs either: the error log, repair, upkeep.
    fn beside(self: Arc<Self>, name: &str) -> Result<Arc<dyn RawStore>, StoreError>;

    /// One round of the partition manager; whether it made something. Nothing where there are no partitions.
    async fn maintain_partitions(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Writes the next event lists for debugging, and takes those of dead blocks away; whether there may be more to do. Nothing where events stand in no rows.
    async fn denormalize_events(&self, _max_reorg_depth: u64) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// How many partitions each table has above the one that the next block goes into; none where there are no partitions.
    async fn partitions_ahead(&self) -> Result<Vec<(&'static str, u64)>, StoreError> {
        Ok(Vec::new())
    }

    /// Makes the lookups of these heights what the rows say, and names the heights whose rows don't fit their block's counts.
    async fn repair_lookups(&self, range: HeightRange) -> Result<RepairedLookups, StoreError>;

    /// Removes lookups above the head that no row stands behind; says how many. None where lookups aren't rows.
    async fn repair_lookups_above_head(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Makes the lookups of EVM transactions inside transactions what the blocks say, which are read whole; nothing where a store has none.
    async fn repair_evm_lookups(&self, _range: HeightRange) -> Result<RepairedLookups, StoreError> {
        Ok(RepairedLookups::default())
    }

    /// Heights, at most about `limit`, whose lookups of EVM transactions are not what the blocks say; changes nothing. None where a store has no such lookups.
    async fn audit_evm_lookups(
        &self,
        _range: HeightRange,
        _limit: usize,
    ) -> Result<Vec<LookupFault>, StoreError> {
        Ok(Vec::new())
    }

    /// Writes the rows of a canonical block again, which was fetched and verified.
    async fn repair_block(&self, block: RawBlock) -> Result<(), StoreError>;

    /// Makes the index entries of these heights anew; `terms` are those of a block.
    async fn repair_index(&self, heights: Vec<HeightRange>, terms: LogTerms) -> Result<(), StoreError>;
}

/// What a repair of lookups did and found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairedLookups {
    /// Lookups that were missing or said something else than the rows.
    pub written: u64,
    /// Lookups whose rows are not there.
    pub removed: u64,
    /// Heights whose rows are incomplete.
    pub damaged: Vec<Height>,
    /// Heights of blocks that have receipts and say that they have no logs, where only the receipts know whether that is true.
    pub silent: Vec<Height>,
}

impl From<Repaired> for RepairedLookups {
    fn from(found: Repaired) -> Self {
        RepairedLookups {
            written: found.lookups_written,
            removed: found.lookups_removed,
            damaged: found.damaged,
            silent: found.silent,
        }
    }
}

/// Lookups are index runs here, and are looked at with all else that the index has.
#[async_trait]
impl RawStore for SqliteStore {
    /// The same: its writer has a connection that no reader can take.
    fn readers(self: Arc<Self>, _name: &str) -> Result<Arc<dyn RawReader>, StoreError> {
        Ok(self)
    }

    /// The same: a file has one writer at a time, whoever opened it, so what is written here is short.
    fn beside(self: Arc<Self>, _name: &str) -> Result<Arc<dyn RawStore>, StoreError> {
        Ok(self)
    }

    async fn repair_lookups(&self, range: HeightRange) -> Result<RepairedLookups, StoreError> {
        let Damage { damaged, silent } = self.find_damage(range).await?;
        Ok(RepairedLookups { damaged, silent, ..RepairedLookups::default() })
    }

    async fn repair_block(&self, block: RawBlock) -> Result<(), StoreError> {
        SqliteStore::repair_block(self, block).await
    }

    async fn repair_index(&self, heights: Vec<HeightRange>, terms: LogTerms) -> Result<(), StoreError> {
        SqliteStore::repair_index(self, heights, terms).await.map(drop)
    }
}

#[async_trait]
impl RawStore for PgRawStore {
    fn readers(self: Arc<Self>, name: &str) -> Result<Arc<dyn RawReader>, StoreError> {
        Ok(Arc::new(PgRawStore::readers(&self, name)?))
    }

    fn beside(self: Arc<Self>, name: &str) -> Result<Arc<dyn RawStore>, StoreError> {
        Ok(Arc::new(PgRawStore::beside(&self, name)?))
    }

    async fn repair_lookups(&self, range: HeightRange) -> Result<RepairedLookups, StoreError> {
        Ok(PgRawStore::repair_lookups(self, range).await?.into())
    }

    async fn repair_lookups_above_head(&self) -> Result<u64, StoreError> {
        PgRawStore::repair_lookups_above_head(self).await
    }

    async fn repair_evm_lookups(&self, range: HeightRange) -> Result<RepairedLookups, StoreError> {
        Ok(PgRawStore::repair_evm_lookups(self, range).await?.into())
    }

    async fn audit_evm_lookups(
        &self,
        range: HeightRange,
        limit: usize,
    ) -> Result<Vec<LookupFault>, StoreError> {
        PgRawStore::audit_evm_lookups(self, range, limit).await
    }

    async fn repair_block(&self, block: RawBlock) -> Result<(), StoreError> {
        PgRawStore::repair_block(self, block).await
    }

    async fn repair_index(&self, heights: Vec<HeightRange>, terms: LogTerms) -> Result<(), StoreError> {
        PgRawStore::repair_index(self, heights, terms).await.map(drop)
    }

    async fn maintain_partitions(&self) -> Result<bool, StoreError> {
        PgRawStore::maintain_partitions(self).await
    }

    async fn denormalize_events(&self, max_reorg_depth: u64) -> Result<bool, StoreError> {
        PgRawStore::denormalize_events(self, max_reorg_depth).await
    }

    async fn partitions_ahead(&self) -> Result<Vec<(&'static str, u64)>, StoreError> {
        PgRawStore::partitions_ahead(self).await
    }
}

/// Everything that an app database can do.
pub trait AppStore: DerivedStore + DerivedDump {}
impl<T: DerivedStore + DerivedDump> AppStore for T {}

/// How a store is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes; on SQLite it holds the directory's lock.
    Write,
    /// Reads only, beside a writer.
    Read,
    /// The same of a server that takes writes: one that follows another says what was true some time ago.
    Primary,
    /// Reads only, with snapshots that may live as long as an audit takes.
    Audit,
}

/// The chain of the archive that the configuration names, whatever kind it says; `None` where there is no archive yet.
pub async fn stored_chain(config: &Config) -> anyhow::Result<Option<ChainId>> {
    if config.raw.url.is_none() && !config.data_dir.is_dir() {
        return Ok(None);
    }
    let store = open_unchecked(config, Access::Read).await?;
    match store.snapshot().await {
        Ok(snapshot) => Ok(Some(snapshot.head().info.chain_id)),
        Err(StoreError::Invalid(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Waits for a raw database on PostgreSQL that isn't there yet. Where only the archive can say of which chain it is, for the archive too.
pub async fn await_raw(config: &Config) -> anyhow::Result<()> {
    if config.raw.url.is_none() {
        return Ok(());
    }
    let needs_archive = !config.chain.says_kind();
    let mut start = Patience::of(config);
    loop {
        let error = match stored_chain(config).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) if !needs_archive => return Ok(()),
            Ok(None) => anyhow::anyhow!("nobody has made the archive yet; `cairn run --role ingest` does"),
            Err(error) => error,
        };
        let is_old = matches!(error.downcast_ref(), Some(StoreError::OldSchema { .. }));
        let has_come = (is_old && !needs_archive)
            || error.downcast_ref().is_some_and(|error: &StoreError| !start::may_come(error));
        // What is wrong for good is said by whoever opens it.
        if has_come {
            return Ok(());
        }
        start.wait_for("the raw database", error).await?;
    }
}

/// Opens the raw store. One of another chain than the configuration says is refused.
pub async fn open_raw(config: &Config, access: Access) -> anyhow::Result<Arc<dyn RawStore>> {
    let store = open_unchecked(config, access).await?;
    chain::check_store(config, &*store).await?;
    Ok(store)
}

async fn open_unchecked(config: &Config, access: Access) -> anyhow::Result<Arc<dyn RawStore>> {
    let Some(url) = &config.raw.url else {
        let dir = config.data_dir.display();
        if access != Access::Write && !config.data_dir.is_dir() {
            bail!(
                "there is no archive in {dir}; `cairn run --rpc URL --data {dir}` (or --flow-access) or `cairn import` makes one"
            );
        }
        let options = SqliteOptions {
            cache_bytes: config.ingest.cache_mib.saturating_mul(1 << 20),
            read_only: access != Access::Write,
            ..SqliteOptions::new(&config.data_dir)
        };
        let options = match access {
            Access::Audit => SqliteOptions { snapshot_max_ms: None, ..options },
            Access::Read | Access::Primary | Access::Write => options,
        };
        let store = SqliteStore::open(options, Arc::new(SystemClock))
            .await
            .with_context(|| format!("can't open the archive in {dir}"))?;
        return Ok(Arc::new(store));
    };
    Ok(Arc::new(open_pg_raw(config, url, access).await?))
}

/// Opens the raw store on PostgreSQL, with its payloads where they are kept.
pub async fn open_pg_raw(config: &Config, url: &str, access: Access) -> anyhow::Result<PgRawStore> {
    let mut options = pg_raw_options(config, url);
    options.read_only = access != Access::Write;
    options.pg.is_primary |= access == Access::Primary;
    options.payload_inline_max_bytes = config.payloads.inline_max_bytes;
    if access == Access::Audit {
        options.snapshot_max_ms = None;
    }
    // The database's own clock judges leases: several processes may share it.
    let store = match open_payloads(config, access)? {
        Some(payloads) => PgRawStore::open_with_payloads(options, None, payloads).await,
        None => PgRawStore::open(options, None).await,
    };
    store.with_context(|| format!("can't open the raw store {}", hide_url(url)))
}

/// Where the large payloads of a raw store on PostgreSQL are; `None` where they are to stay in the database. No request is sent yet.
pub fn open_payloads(config: &Config, access: Access) -> anyhow::Result<Option<Arc<ObjectPayloads>>> {
    let Some(location) = payload_location(config)? else { return Ok(None) };
    if let Location::Directory(dir) = &location
        && access != Access::Write
        && !dir.is_dir()
    {
        // Whoever only reads makes no directory. A row whose bytes ought to be there says so.
        return Ok(None);
    }
    let payloads = ObjectPayloads::open(ObjectsConfig::new(location)).context("payloads.url")?;
    Ok(Some(Arc::new(payloads)))
}

/// The place of large payloads: by default a directory beside the data.
pub fn payload_location(config: &Config) -> anyhow::Result<Option<Location>> {
    match config.payloads.url.as_deref() {
        Some("none") => Ok(None),
        Some(url) => Ok(Some(url.parse().context("payloads.url")?)),
        None => Ok(Some(Location::Directory(config.data_dir.join("payloads")))),
    }
}

/// Opens the app store.
pub async fn open_app(
    config: &Config,
    catalog: Catalog,
    access: Access,
) -> Result<Arc<dyn AppStore>, StoreError> {
    match &config.app.url {
        None => {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            let options = SqliteDerivedOptions {
                read_only: access != Access::Write,
                ..SqliteDerivedOptions::new(&config.data_dir)
            };
            Ok(Arc::new(SqliteDerived::open(options, catalog, clock).await?))
        }
        Some(url) => {
            let mut options = pg_app_options(config, url);
            options.read_only = access != Access::Write;
            Ok(Arc::new(PgDerived::open(options, catalog, None).await?))
        }
    }
}

/// The raw database as the configuration has it.
pub fn pg_raw_options(config: &Config, url: &str) -> PgRawOptions {
    let mut options = PgRawOptions::with(pg_options(&config.raw, url, "cairn raw"));
    options.layout = config.chain().layout();
    options.backfill = config.raw.backfill;
    if let Some(heights) = config.raw.partition_heights {
        options.partitions = PartitionSizes::all(heights);
    }
    for (table, heights) in &config.raw.partitions {
        // The configuration was checked: there is such a table.
        options.partitions.set(table, *heights);
    }
    options
}

/// The app database as the configuration has it.
pub fn pg_app_options(config: &Config, url: &str) -> PgDerivedOptions {
    let mut options = PgDerivedOptions::new(url);
    options.write = pg_options(&config.app, url, "cairn app write");
    options.read =
        PgOptions { statement_timeout_ms: 10_000, ..pg_options(&config.app, url, "cairn app read") };
    options.defer_indexes = config.app.backfill;
    options
}

fn pg_options(config: &DatabaseConfig, url: &str, name: &str) -> PgOptions {
    PgOptions {
        max_open_conns: config.max_open_conns,
        max_idle_conns: config.max_idle_conns,
        statement_timeout_ms: config.statement_timeout_ms,
        application_name: name.into(),
        ..PgOptions::new(url)
    }
}

/// How long a lock is waited for: a command that was quicker has it for a moment, and a cairn that ends a little longer.
const LOCK_WITHIN: Duration = Duration::from_secs(10);
/// How often it is tried.
const LOCK_EVERY: Duration = Duration::from_millis(100);

/// The process that holds a lock, for people.
pub fn holder_name(holder: Option<u32>) -> String {
    holder.map_or("another process".into(), |id| format!("process {id}"))
}

/// Opens the raw store for a process that is to stay: it waits for a database that isn't there yet, and a little where another process holds the store.
pub async fn open_raw_patiently(config: &Config, access: Access) -> anyhow::Result<Arc<dyn RawStore>> {
    open_raw_within(config, access, LOCK_WITHIN).await
}

async fn open_raw_within(
    config: &Config,
    access: Access,
    patience: Duration,
) -> anyhow::Result<Arc<dyn RawStore>> {
    let deadline = Instant::now() + patience;
    let mut start = Patience::of(config);
    let mut is_told = false;
    loop {
        let error = match open_raw(config, access).await {
            Ok(store) => return Ok(store),
            Err(error) => error,
        };
        if start::is_awaited(&error) && config.raw.url.is_some() {
            start.wait_for("the raw database", error).await?;
            continue;
        }
        let Some(StoreError::Locked { what, holder }) = error.downcast_ref() else { return Err(error) };
        if Instant::now() >= deadline {
            return Err(error);
        }
        if !std::mem::replace(&mut is_told, true) {
            say(format_args!(
                "waiting up to {} s for {what}, which {} holds",
                patience.as_secs(),
                holder_name(*holder)
            ));
        }
        tokio::time::sleep(LOCK_EVERY).await;
    }
}

/// The app store as readers reach it while it may not be there yet.
#[derive(Default)]
pub struct LateApp {
    store: OnceLock<Arc<dyn AppStore>>,
}

impl LateApp {
    /// It is there.
    pub fn set(&self, store: Arc<dyn AppStore>) {
        // Set twice only by a second opening of the same store.
        let _ = self.store.set(store);
    }

    /// It, where it is there.
    pub fn app(&self) -> Option<Arc<dyn AppStore>> {
        self.store.get().cloned()
    }
}

#[async_trait]
impl DerivedReader for LateApp {
    async fn snapshot(&self) -> Result<Arc<dyn DerivedSnapshot>, StoreError> {
        match self.store.get() {
            Some(store) => store.snapshot().await,
            None => Err(StoreError::Busy("the app store can't be reached yet".into())),
        }
    }
}

/// Opens the app store, waiting for it as long as it is away. `None`: told to stop.
pub async fn open_app_patiently(
    config: &Config,
    catalog: Catalog,
    stop: &CancellationToken,
) -> Result<Option<Arc<dyn AppStore>>, StoreError> {
    let mut pause = Duration::from_millis(500);
    let lock_deadline = Instant::now() + LOCK_WITHIN;
    loop {
        let error = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            opened = open_app(config, catalog.clone(), Access::Write) => match opened {
                Ok(store) => return Ok(Some(store)),
                Err(error) => error,
            },
        };
        // Where blocks are in a file of the same directory, this process holds that: only a command that ends by itself can have the other.
        let may_be_held = config.raw.url.is_none() || Instant::now() < lock_deadline;
        let is_held = matches!(error, StoreError::Locked { .. }) && may_be_held;
        if !is_held && error.kind() != ErrorKind::Retry && !start::may_come(&error) {
            return Err(error);
        }
        tracing::warn!(%error, "the app store can't be reached; ingestion goes on without it");
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(15)),
        }
    }
}

/// The raw store for readers.
pub async fn open_reader(config: &Config, access: Access) -> anyhow::Result<Arc<dyn RawReader>> {
    let store: Arc<dyn RawReader> = open_raw(config, access).await?;
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_start_waits_for_who_has_the_lock_for_a_moment() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { data_dir: dir.path().into(), ..Config::default() };
        let held = open_raw(&config, Access::Write).await.expect("opens");
        let patience = Duration::from_millis(300);
        let Err(error) = open_raw_within(&config, Access::Write, patience).await else { panic!("two write") };
        let error = format!("{error:#}");
        assert!(error.contains("cairn.lock") && error.contains(&std::process::id().to_string()), "{error}");
        let waiting = tokio::spawn(async move {
            open_raw_within(&config, Access::Write, Duration::from_secs(10)).await.map(drop)
        });
        tokio::time::sleep(patience).await;
        assert!(!waiting.is_finished(), "it waits for nobody");
        drop(held);
        waiting.await.expect("no panic").expect("opens");
    }
}
