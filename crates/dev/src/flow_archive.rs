//! The stores of a cairn that follows Flow, on SQLite or PostgreSQL: where a process finds them, and what stands in them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_backends::postgres::{PgDerived, PgDerivedOptions, PgRawOptions, PgRawStore};
use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
use cairn_core::SystemClock;
use cairn_explorer::processors::flow_catalog;
use cairn_flow::{FlowLayout, Network};
use cairn_store::derived::{DerivedDump, DerivedReader, ErrorFilter, ErrorLog, LeaseFilter};
use cairn_store::{Dump, RawDump, RawReader};
use tokio::process::Command;

use crate::databases::Databases;
use crate::flow_truth::Database;
use crate::peer::{Peer, wait_until};

/// Settings of every process: small ranges and chunks, so that there are many borders; short leases, so that what the dead held is soon
/// taken over; forks of some dozens of blocks.
const SETTINGS: [(&str, &str); 7] = [
    ("CAIRN_DERIVE__RANGE_HEIGHTS", "100"),
    ("CAIRN_DERIVE__CHUNK_HEIGHTS", "23"),
    ("CAIRN_DERIVE__LEASE_TTL_S", "4"),
    ("CAIRN_DERIVE__POLL_MS", "200"),
    ("CAIRN_INGEST__MAX_REORG_DEPTH", "200"),
    ("CAIRN_INGEST__POLL_MS", "100"),
    // All there is in the databases, so that a dump of them is all there is.
    ("CAIRN_PAYLOADS__URL", "none"),
];

/// Where one cairn keeps what it has.
pub struct Archive {
    /// `sqlite` or `postgres`.
    pub backend: &'static str,
    folder: PathBuf,
    databases: Option<Databases>,
    cairn: PathBuf,
    starts: std::cell::Cell<u32>,
}

/// A store of blocks.
pub trait Raw: RawReader + RawDump + ErrorLog {}
impl<T: RawReader + RawDump + ErrorLog> Raw for T {}

/// A store of derived tables.
pub trait App: DerivedReader + DerivedDump {}
impl<T: DerivedReader + DerivedDump> App for T {}

impl Archive {
    /// In a folder of its own.
    pub fn sqlite(cairn: &Path, folder: &Path, name: &str) -> Result<Archive> {
        let folder = folder.join(format!("{name}-sqlite"));
        std::fs::create_dir_all(&folder)?;
        let starts = std::cell::Cell::default();
        Ok(Archive { backend: "sqlite", folder, databases: None, cairn: cairn.to_owned(), starts })
    }

    /// In databases of its own; logs in a folder.
    pub async fn postgres(cairn: &Path, folder: &Path, name: &str, server: &str) -> Result<Archive> {
        let folder = folder.join(format!("{name}-postgres"));
        std::fs::create_dir_all(&folder)?;
        let databases = Some(Databases::make(server, &format!("cairn_flow_{name}")).await?);
        let starts = std::cell::Cell::default();
        Ok(Archive { backend: "postgres", folder, databases, cairn: cairn.to_owned(), starts })
    }

    /// Of the raw and of the app database, on PostgreSQL.
    pub fn urls(&self) -> Option<&[String; 2]> {
        self.databases.as_ref().map(|databases| &databases.urls)
    }

    /// `cairn run` from an access node whose first height is `root`.
    pub fn run(&self, node: &str, root: u64, more: &[&str], settings: &[(&str, &str)]) -> Result<Peer> {
        let mut command = self.command(&["run", "--network", "emulator", "--from", &root.to_string()]);
        command.args(["--listen", "127.0.0.1:0", "--rpc-listen", "127.0.0.1:0"]).args(more);
        // As often as it goes: the node has no limit unless it is given one.
        let access = format!("[{{url = \"{node}\", requests_per_s = 0, scripts_per_s = 0}}]");
        // The node has execution results, as those of real networks do; a flow-emulator doesn't.
        command.env("CAIRN_CHAIN__ACCESS", access).env("CAIRN_CHAIN__FLOW__EXECUTION_RESULTS", "true");
        command.envs(settings.iter().copied());
        self.starts.set(self.starts.get() + 1);
        let log = self.folder.join(format!("cairn-{}.log", self.starts.get()));
        Peer::start("cairn run", command, &log)
    }

    /// `cairn workers pause`, or `resume`.
    pub async fn set_paused(&self, worker: &str, is_paused: bool) -> Result<()> {
        let mut command = self.command(&["workers", if is_paused { "pause" } else { "resume" }, worker]);
        let output = command.kill_on_drop(true).output().await.context("cannot start cairn workers")?;
        ensure!(output.status.success(), "{worker}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// A command over this archive.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.cairn);
        command.args(arguments).arg("--data").arg(self.folder.join("data"));
        // Ours, not a setting of cairn's.
        command.env_remove("CAIRN_TEST_PG_URL").envs(SETTINGS);
        if let Some([raw, app]) = self.urls() {
            command.env("DB_RAW_URL", raw).env("DB_APP_URL", app);
        }
        command
    }

    /// The raw store, for reading.
    pub async fn raw(&self) -> Result<Arc<dyn Raw>> {
        let layout = Arc::new(FlowLayout::new(Network::Emulator));
        Ok(match self.urls() {
            Some([raw, _]) => {
                let mut options = PgRawOptions::new(raw.clone());
                (options.read_only, options.layout, options.snapshot_max_ms) = (true, layout, None);
                Arc::new(PgRawStore::open(options, None).await?)
            }
            None => {
                let mut options = SqliteOptions::new(self.folder.join("data"));
                (options.read_only, options.snapshot_max_ms) = (true, None);
                Arc::new(SqliteStore::open(options, Arc::new(SystemClock)).await?)
            }
        })
    }

    /// The app store, for reading.
    pub async fn app(&self) -> Result<Arc<dyn App>> {
        let catalog = flow_catalog()?;
        Ok(match self.urls() {
            Some([_, app]) => {
                let mut options = PgDerivedOptions::new(app.clone());
                options.snapshot_max_ms = None;
                Arc::new(PgDerived::open(options, catalog, None).await?)
            }
            None => {
                let mut options = SqliteDerivedOptions::read_only(self.folder.join("data"));
                options.snapshot_max_ms = None;
                Arc::new(SqliteDerived::open(options, catalog, Arc::new(SystemClock)).await?)
            }
        })
    }

    /// The derived tables, as the database has them.
    pub async fn database(&self) -> Result<Database> {
        match self.urls() {
            Some([_, app]) => Database::postgres(app, "app").await,
            None => Database::sqlite(&self.folder.join("data/app.sqlite")),
        }
    }

    /// The blocks, as the database has them.
    pub async fn raw_database(&self) -> Result<Database> {
        match self.urls() {
            Some([raw, _]) => Database::postgres(raw, "raw").await,
            None => Database::sqlite(&self.folder.join("data/raw.sqlite")),
        }
    }

    /// Everything that counts in both.
    pub async fn dumps(&self) -> Result<(Dump, Dump)> {
        let (raw, app) = (self.raw().await?, self.app().await?);
        Ok((RawDump::dump(&*raw).await?, DerivedDump::dump(&*app).await?))
    }

    /// Waits until both stores stand at this block, every reorg is applied and every worker has come as far.
    pub async fn settle(&self, tip: (u64, String), process: &mut Peer, limit: Duration) -> Result<()> {
        let both = std::cell::RefCell::new(None);
        let catalog = flow_catalog()?;
        let services: BTreeSet<&str> = catalog.tables().iter().map(|table| table.def().service).collect();
        let waited = wait_until("everything is derived", limit, || async {
            if both.borrow().is_none() {
                let opened = (self.raw().await?, self.app().await?);
                both.replace(Some(opened));
            }
            let (raw, app) = both.borrow().clone().context("just opened")?;
            let stored = raw.snapshot().await?.head().clone();
            let Some(found) = stored.tip else { return Ok(Some("no raw tip".into())) };
            if (found.height.get(), found.id.to_string()) != tip {
                return Ok(Some(format!("raw tip {found}, node {tip:?}")));
            }
            let snapshot = app.snapshot().await?;
            let forks = snapshot.forks();
            if !forks.is_settled() || forks.applied.id != stored.newest_reorg.id {
                return Ok(Some(format!("reorg {} of {}", forks.applied.id, stored.newest_reorg.id)));
            }
            // One that has not begun has no checkpoint yet.
            let begun = |service: &str| snapshot.checkpoint(service).is_some();
            if let Some(service) = services.iter().find(|service| !begun(service)) {
                return Ok(Some(format!("{service} has not begun")));
            }
            match snapshot.checkpoints().iter().find(|checkpoint| checkpoint.last() != Some(found)) {
                Some(checkpoint) => Ok(Some(format!("{checkpoint:?}"))),
                None => Ok(None),
            }
        });
        let waited = tokio::select! {
            waited = waited => waited,
            ended = ends(process) => ended,
        };
        waited.with_context(|| process.log_tail())?;
        let dead = LeaseFilter { dead: true, limit: 10, ..LeaseFilter::default() };
        if let Some(lease) = self.app().await?.snapshot().await?.leases(&dead).await?.first() {
            bail!("a dead lease: {lease:?}");
        }
        Ok(())
    }

    /// Fails with the first error of the log.
    pub async fn no_errors(&self) -> Result<()> {
        let filter = ErrorFilter { resolved: true, limit: 10, ..ErrorFilter::default() };
        let errors = self.raw().await?.list(&filter).await?;
        ensure!(errors.is_empty(), "{} errors are logged, the first: {:?}", errors.len(), errors.first());
        Ok(())
    }

    /// Drops its databases.
    pub async fn drop(self) -> Result<()> {
        match self.databases {
            Some(databases) => databases.drop().await,
            None => Ok(()),
        }
    }
}

/// Fails when the process has ended.
async fn ends(process: &mut Peer) -> Result<()> {
    loop {
        process.check_alive()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
