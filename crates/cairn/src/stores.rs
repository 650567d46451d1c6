//! Which databases: the raw store and the app store, by URL, each SQLite in the data directory where none is given.
//!
//! The two never share a transaction or a query. The app store may be away: ingestion goes on without it (law 1), and derived work begins
//! when it is there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use async_trait::async_trait;
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgRawOptions, PgRawStore};
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::{Clock, ErrorKind, SystemClock};
use cairn_pipeline::ingest::IngestStore;
use cairn_store::derived::{Catalog, DerivedDump, DerivedReader, DerivedSnapshot, DerivedStore, ErrorLog};
use cairn_store::{RawDump, RawReader, StoreError};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, DatabaseConfig, hide_url};

/// Everything that a raw database can do.
pub trait RawStore: IngestStore + ErrorLog + RawDump {}
impl<T: IngestStore + ErrorLog + RawDump> RawStore for T {}

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
    /// Reads only, with snapshots that may live as long as an audit takes.
    Audit,
}

/// Opens the raw store.
pub async fn open_raw(config: &Config, access: Access) -> anyhow::Result<Arc<dyn RawStore>> {
    let Some(url) = &config.raw.url else {
        let dir = config.data_dir.display();
        if access != Access::Write && !config.data_dir.is_dir() {
            bail!(
                "there is no archive in {dir}; `cairn run --rpc URL --data {dir}` or `cairn import` makes one"
            );
        }
        let options = SqliteOptions {
            cache_bytes: config.ingest.cache_mib << 20,
            read_only: access != Access::Write,
            ..SqliteOptions::new(&config.data_dir)
        };
        let options = match access {
            Access::Audit => SqliteOptions { snapshot_max_ms: None, ..options },
            Access::Read | Access::Write => options,
        };
        let store = SqliteStore::open(options, Arc::new(SystemClock))
            .await
            .with_context(|| format!("can't open the archive in {dir}"))?;
        return Ok(Arc::new(store));
    };
    let mut options = PgRawOptions::with(pg_options(&config.raw, url, "cairn raw"));
    options.read_only = access != Access::Write;
    options.layout = Arc::new(cairn_evm::EvmLayout);
    options.payload_inline_max_bytes = config.payloads.inline_max_bytes;
    options.backfill = config.raw.backfill;
    if access == Access::Audit {
        options.snapshot_max_ms = None;
    }
    // The database's own clock judges leases: several processes may share it.
    let store = PgRawStore::open(options, None)
        .await
        .with_context(|| format!("can't open the raw store {}", hide_url(url)))?;
    Ok(Arc::new(store))
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
            let mut options = PgDerivedOptions::new(url.clone());
            options.write = pg_options(&config.app, url, "cairn app write");
            options.read =
                PgOptions { statement_timeout_ms: 10_000, ..pg_options(&config.app, url, "cairn app read") };
            options.defer_indexes = config.app.backfill;
            Ok(Arc::new(PgDerived::open(options, catalog, None).await?))
        }
    }
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

/// The app store as readers reach it while it may not be there yet.
#[derive(Default)]
pub struct LateApp {
    store: OnceLock<Arc<dyn DerivedReader>>,
}

impl LateApp {
    /// It is there.
    pub fn set(&self, store: Arc<dyn DerivedReader>) {
        // Set twice only by a second opening of the same store.
        let _ = self.store.set(store);
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
    loop {
        let error = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            opened = open_app(config, catalog.clone(), Access::Write) => match opened {
                Ok(store) => return Ok(Some(store)),
                Err(error) => error,
            },
        };
        if error.kind() != ErrorKind::Retry {
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
