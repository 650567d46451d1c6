//! What operators' commands change, apart from who does it: the command by itself or, where another process holds SQLite's files, that process by itself
//! (`control`). Both go through [`perform`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_store::StoreError;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::cli::LeaseId;
use crate::commands::reindex::{self, Stay};
use crate::commands::{errors, leases, retry, workers};
use crate::config::Config;
use crate::output::say;
use crate::stores::{self, Access, AppStore, RawStore};
use crate::{derive, output};

/// How long a command goes on trying where the stores are held and nobody takes its request: a process that starts holds them a little before it listens.
const HOLDER_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits for the end of a process that says that it ends.
const ENDING_WITHIN: Duration = Duration::from_secs(60);
/// How long it waits between two tries.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// One change, as it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// `cairn workers pause`.
    PauseWorker {
        /// Its name.
        worker: String,
    },
    /// `cairn workers resume`.
    ResumeWorker {
        /// Its name.
        worker: String,
    },
    /// `cairn leases retry`.
    RetryLease {
        /// Which.
        id: LeaseId,
    },
    /// `cairn leases release`.
    ReleaseLease {
        /// Which.
        id: LeaseId,
    },
    /// `cairn leases reset`.
    ResetLeases {
        /// Whose.
        worker: String,
        /// From this height on.
        from: u64,
    },
    /// `cairn errors resolve`.
    ResolveErrors {
        /// Their numbers.
        ids: Vec<u64>,
    },
    /// `cairn errors retry`.
    RetryError {
        /// Its number.
        id: u64,
        /// Also where the worker then begins anew.
        yes: bool,
    },
    /// `cairn reindex`.
    Reindex {
        /// Whose rows.
        worker: String,
        /// The first height.
        from: Option<u64>,
        /// The last height.
        to: Option<u64>,
    },
}

impl Operation {
    fn needs_raw(&self) -> bool {
        use Operation::*;
        match self {
            RetryLease { id } | ReleaseLease { id } => matches!(id, LeaseId::Raw(_)),
            ResolveErrors { .. } | RetryError { .. } => true,
            PauseWorker { .. } | ResumeWorker { .. } | ResetLeases { .. } | Reindex { .. } => false,
        }
    }

    /// Whether the app store is needed.
    pub fn needs_app(&self) -> bool {
        !self.needs_raw() || matches!(self, Operation::RetryError { .. })
    }
}

/// As a person would type it, in one line, whoever sent it.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::PauseWorker { worker } => write!(f, "workers pause {}", worker.escape_debug()),
            Operation::ResumeWorker { worker } => write!(f, "workers resume {}", worker.escape_debug()),
            Operation::RetryLease { id } => write!(f, "leases retry {id}"),
            Operation::ReleaseLease { id } => write!(f, "leases release {id}"),
            Operation::ResetLeases { worker, from } => {
                write!(f, "leases reset --worker {} --from {from}", worker.escape_debug())
            }
            Operation::ResolveErrors { ids } => write!(f, "errors resolve, {} of them", ids.len()),
            Operation::RetryError { id, .. } => write!(f, "errors retry {id}"),
            Operation::Reindex { worker, from, to } => {
                write!(f, "reindex --worker {}", worker.escape_debug())?;
                from.map_or(Ok(()), |from| write!(f, " --from {from}"))?;
                to.map_or(Ok(()), |to| write!(f, " --to {to}"))
            }
        }
    }
}

/// The stores that it is done with.
#[derive(Default)]
pub struct Stores {
    /// Blocks, ranges of blocks, the error log.
    pub raw: Option<Arc<dyn RawStore>>,
    /// Derived tables and their ranges.
    pub app: Option<Arc<dyn AppStore>>,
}

impl Stores {
    /// The raw store.
    pub fn raw(&self) -> anyhow::Result<&dyn RawStore> {
        self.raw.as_deref().context("the raw store is not open")
    }

    /// The app store.
    pub fn app(&self) -> anyhow::Result<&dyn AppStore> {
        self.app.as_deref().context("the app store is not open")
    }
}

/// Does it; what a person is told of it.
pub async fn perform(
    config: &Config,
    operation: &Operation,
    stores: &Stores,
    stay: &Stay,
) -> anyhow::Result<String> {
    match operation {
        Operation::PauseWorker { worker } => workers::pause(stores.app()?, worker, true).await,
        Operation::ResumeWorker { worker } => workers::pause(stores.app()?, worker, false).await,
        Operation::RetryLease { id } => leases::retry(stores, *id).await,
        Operation::ReleaseLease { id } => leases::release(stores, *id).await,
        Operation::ResetLeases { worker, from } => {
            leases::reset(config, stores.app()?, worker, Height(*from), stay).await
        }
        Operation::ResolveErrors { ids } => errors::resolve(stores.raw()?, ids).await,
        Operation::RetryError { id, yes } => retry::retry(config, stores, *id, *yes, stay).await,
        Operation::Reindex { worker, from, to } => {
            if let (Some(from), Some(to)) = (from, to)
                && to < from
            {
                bail!("--to {to} lies below --from {from}");
            }
            let range = (from.is_some() || to.is_some()).then(|| {
                let end = to.map_or(Height(u64::MAX), |to| Height(to.saturating_add(1)));
                HeightRange::new(Height(from.unwrap_or(0)), end)
            });
            reindex::request(config, stores.app()?, worker, range, stay).await
        }
    }
}

/// What an operator's command does: opens the stores and does it, or lets the process do it that holds them; prints what there is to say.
pub async fn carry_out(config: &Config, operation: Operation) -> anyhow::Result<()> {
    let patience = Patience { holder: HOLDER_WITHIN, ending: ENDING_WITHIN };
    Ok(output::print(&done(config, &operation, patience).await?)?)
}

/// How long a command waits for whoever holds the stores.
struct Patience {
    /// Who takes no requests.
    holder: Duration,
    /// Who says that it ends.
    ending: Duration,
}

async fn done(config: &Config, operation: &Operation, patience: Patience) -> anyhow::Result<String> {
    let mut deadline = Instant::now() + patience.holder;
    let mut is_ending = false;
    loop {
        let (lock, holder) = match open(config, operation).await {
            Ok(stores) => return perform(config, operation, &stores, &Stay::to_the_end()).await,
            Err(error) => match error.downcast_ref::<StoreError>() {
                Some(StoreError::Locked { what, holder }) => (what.clone(), stores::holder_name(*holder)),
                _ => return Err(error),
            },
        };
        match ask_holder(config, operation).await? {
            Asked::Told(told) => return Ok(told),
            Asked::Ending if !is_ending => {
                is_ending = true;
                deadline = Instant::now() + patience.ending;
                say("the running cairn is ending; waiting for that");
            }
            Asked::Ending | Asked::Nobody => {}
        }
        if Instant::now() >= deadline {
            match is_ending {
                true => bail!(
                    "{lock} is held by {holder}, a cairn that is ending and takes nothing any more: ask again when it has ended"
                ),
                false => bail!(
                    "{lock} is held by {holder}, which takes no requests: a command such as `cairn import` or `repair`, a cairn that is still starting, or an older one. \
                     SQLite lets one process write: stop it, or wait for its end, or use PostgreSQL"
                ),
            }
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// All that it needs is open before anything is done.
async fn open(config: &Config, operation: &Operation) -> anyhow::Result<Stores> {
    let mut stores = Stores::default();
    if operation.needs_raw() {
        stores.raw = Some(stores::open_raw(config, Access::Write).await?);
    }
    if operation.needs_app() {
        stores.app = Some(stores::open_app(config, derive::catalog(config)?, Access::Write).await?);
    }
    Ok(stores)
}

#[cfg(unix)]
use crate::control::client::{Asked, ask as ask_holder};

/// What came of asking: nobody can be asked where the system has no sockets in directories.
#[cfg(not(unix))]
#[allow(dead_code)]
enum Asked {
    Told(String),
    Ending,
    Nobody,
}

#[cfg(not(unix))]
async fn ask_holder(_config: &Config, _operation: &Operation) -> anyhow::Result<Asked> {
    Ok(Asked::Nobody)
}

#[cfg(all(test, unix))]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::control::server;

    fn resolve() -> Operation {
        Operation::ResolveErrors { ids: vec![1] }
    }

    async fn error(config: &Config, holder: Duration, ending: Duration) -> String {
        let done = done(config, &resolve(), Patience { holder, ending }).await;
        format!("{:#}", done.expect_err("the stores are held"))
    }

    #[tokio::test]
    async fn whoever_waits_for_the_stores_is_told_what_holds_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let config = Config { data_dir: dir.path().into(), ..Config::default() };
        let raw = stores::open_raw(&config, Access::Write).await.expect("opens");
        let soon = Duration::from_millis(200);
        let told = error(&config, soon, soon).await;
        let holder = format!("cairn.lock is held by process {}", std::process::id());
        assert!(told.contains(&holder) && told.contains("takes no requests"), "{told}");

        // One that ends is waited for, for longer than one that takes no requests.
        let stop = CancellationToken::new();
        let requests = server::start(&config, raw.clone(), None, stop.clone()).expect("starts");
        while !dir.path().join("cairn.sock").exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        let told = error(&config, Duration::ZERO, soon).await;
        assert!(told.contains(&holder) && told.contains("is ending"), "{told}");
        let patience = Patience { holder: Duration::ZERO, ending: Duration::from_secs(20) };
        let waiting = tokio::spawn({
            let config = config.clone();
            async move { done(&config, &resolve(), patience).await }
        });
        tokio::time::sleep(soon).await;
        assert!(!waiting.is_finished());
        requests.end().await;
        drop(raw);
        let told = waiting.await.expect("no panic").expect_err("it comes to the store, where nothing is");
        assert!(told.to_string().contains("there is no error 1"), "{told}");
    }
}
