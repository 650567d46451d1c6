//! PostgreSQL databases of one run: made under names of their own, looked into, dropped.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_backends::objects::{Location, ObjectPayloads, ObjectsConfig};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgOptions, PgPool, PgRawOptions, PgRawStore};
use cairn_core::BlockRef;
use cairn_store::derived::{DerivedDump, DerivedReader, LeaseFilter, LeaseKind, LeaseStatus};
use cairn_store::{Dump, RawDump, RawReader};

use crate::peer::wait_until;
use crate::rpc::Rpc;

/// A raw and an app database.
pub struct Databases {
    /// Of each database: its server and its name.
    made: [(PgPool, String); 2],
    /// Of the raw and of the app database.
    pub urls: [String; 2],
    /// The directory of the raw database's large payloads; `None` where all are in the database.
    pub payloads: Option<PathBuf>,
}

impl Databases {
    /// Makes both on one server.
    pub async fn make(server: &str, label: &str) -> Result<Databases> {
        Databases::make_apart(server, server, label).await
    }

    /// Makes each on a server of its own.
    pub async fn make_apart(raw_server: &str, app_server: &str, label: &str) -> Result<Databases> {
        let unique = format!("{label}_{}_{}", std::process::id(), rand::random::<u32>());
        let (raw, raw_url) = make_one(raw_server, format!("{unique}_raw")).await?;
        let (app, app_url) = make_one(app_server, format!("{unique}_app")).await?;
        Ok(Databases { made: [raw, app], urls: [raw_url, app_url], payloads: None })
    }

    /// Drops both, whoever still is connected.
    pub async fn drop(self) -> Result<()> {
        for (server, name) in &self.made {
            server.get().await?.batch(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
        }
        Ok(())
    }

    /// The raw store, read only.
    pub async fn open_raw(&self) -> Result<PgRawStore> {
        let mut options = PgRawOptions::new(self.urls[0].clone());
        options.read_only = true;
        options.layout = Arc::new(cairn_evm::EvmLayout);
        options.snapshot_max_ms = None;
        Ok(match &self.payloads {
            Some(directory) => {
                let config = ObjectsConfig::new(Location::Directory(directory.clone()));
                let payloads = Arc::new(ObjectPayloads::open(config)?);
                PgRawStore::open_with_payloads(options, None, payloads).await?
            }
            None => PgRawStore::open(options, None).await?,
        })
    }

    /// The app store with all tables of the explorer.
    pub async fn open_app(&self) -> Result<PgDerived> {
        let catalog = cairn_explorer::processors::evm_catalog()?;
        let mut options = PgDerivedOptions::new(self.urls[1].clone());
        options.snapshot_max_ms = None;
        Ok(PgDerived::open(options, catalog, None).await?)
    }

    /// Everything that counts in both: what one chain leaves is the same whatever happened meanwhile.
    pub async fn dumps(&self) -> Result<(Dump, Dump)> {
        let (raw, app) = (self.open_raw().await?, self.open_app().await?);
        Ok((RawDump::dump(&raw).await?, DerivedDump::dump(&app).await?))
    }

    /// Waits until both stores stand at the node's head, every reorg is applied, every worker of every table has come as far, those that ask a node among them, and nothing
    /// is to be made again.
    pub async fn settle(&self, node: &Rpc, limit: Duration) -> Result<BlockRef> {
        // A process that has just begun may not have made their tables yet.
        let both = std::cell::RefCell::new(None);
        wait_until("both databases have their tables", limit, || async {
            match (self.open_raw().await, self.open_app().await) {
                (Ok(raw), Ok(app)) => Ok(both.replace(Some((raw, app))).and(None)),
                (Err(error), _) | (_, Err(error)) => Ok(Some(format!("{error:#}"))),
            }
        })
        .await?;
        let (raw, app) = both.take().context("just opened")?;
        let head = node.head().await?.context("no head")?;
        let catalog = cairn_explorer::processors::evm_catalog()?;
        let services: BTreeSet<&str> = catalog.tables().iter().map(|table| table.def().service).collect();
        wait_until("everything is derived", limit, || async {
            let stored = raw.snapshot().await?.head().clone();
            let Some(tip) = stored.tip else { return Ok(Some("no raw tip".into())) };
            if (tip.height.get(), tip.id.to_string()) != head {
                return Ok(Some(format!("raw tip {tip}, node {head:?}")));
            }
            let snapshot = app.snapshot().await?;
            let forks = snapshot.forks();
            if !forks.is_settled() || forks.applied.id != stored.newest_reorg.id {
                return Ok(Some(format!("reorg {} of {}", forks.applied.id, stored.newest_reorg.id)));
            }
            if let Some(missing) = services.iter().find(|service| snapshot.checkpoint(service).is_none()) {
                return Ok(Some(format!("{missing} has not begun")));
            }
            if let Some(behind) = snapshot.checkpoints().iter().find(|one| one.last() != Some(tip)) {
                return Ok(Some(format!("{behind:?}")));
            }
            for status in [LeaseStatus::Active, LeaseStatus::Failed] {
                let open = LeaseFilter { status: Some(status), limit: 10_000, ..LeaseFilter::default() };
                let leases = snapshot.leases(&open).await?;
                if let Some(again) = leases.iter().find(|lease| lease.kind == LeaseKind::Reindex) {
                    return Ok(Some(format!("to be made again: {again:?}")));
                }
            }
            Ok(None)
        })
        .await?;
        let dead = LeaseFilter { dead: true, limit: 10, ..LeaseFilter::default() };
        if let Some(lease) = app.snapshot().await?.leases(&dead).await?.first() {
            bail!("a dead lease: {lease:?}");
        }
        raw.snapshot().await?.head().tip.context("no raw tip")
    }
}

async fn make_one(server: &str, name: String) -> Result<((PgPool, String), String)> {
    let admin = PgPool::new(PgOptions::new(server))?;
    admin.get().await?.batch(&format!("CREATE DATABASE {name}")).await?;
    let base = server.rsplit_once('/').map_or(server, |(base, _)| base);
    let url = format!("{base}/{name}");
    Ok(((admin, name), url))
}
