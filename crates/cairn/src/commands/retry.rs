//! `cairn errors retry`: asks for an error's height again.
//!
//! The height is asked for first and the error closed after it, so that a command that is killed in between leaves an open error and never a closed one of which nothing is made again. A
//! worker may come to the height before the error is closed, finds it open and says nothing more of it; then the height is asked for once more, and the error opens again where it still
//! happens. Doing all of it once more is right wherever it was cut off.

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_pipeline::ingest::RAW_SERVICE;
use cairn_store::derived::{LeaseFilter, LeaseKind, LeaseStatus, NewError, WorkerLease};

use super::errors::find;
use super::reindex::{self, Begun, Stay, UnderWay};
use crate::config::Config;
use crate::operators::Stores;
use crate::repair::evm_gaps::REPAIR_SERVICE;
use crate::stores::AppStore;

/// Leases of one worker that are held at once, at most.
const MAX_HELD: usize = 1_000;

/// Asks for an error's height again, and closes it; what there is to say.
pub async fn retry(
    config: &Config,
    stores: &Stores,
    id: u64,
    yes: bool,
    stay: &Stay,
) -> anyhow::Result<String> {
    let (raw, app) = (stores.raw()?, stores.app()?);
    let found = find(raw, id).await?;
    let NewError { service, height, .. } = &found.error;
    let (service, height) = (service.as_str(), *height);
    if service == RAW_SERVICE {
        bail!(
            "error {id} is about blocks that are not stored: those are asked for by whoever ingests, again and again; a range that waits for an operator, by `cairn leases retry raw:HEIGHT`. \
             `cairn errors resolve {id}` closes it"
        );
    }
    if service == REPAIR_SERVICE {
        bail!(
            "error {id} is about a block that was replaced: `cairn repair`, also at intervals, lets what is made of it be made again, and closes it"
        );
    }
    let alone = reindex::takes_ranges(config, service)?;
    if !alone && !yes {
        bail!(
            "{service} can't make height {height} again alone: it would begin anew from its first block. To do that: `cairn errors retry {id} --yes`"
        );
    }
    let closing = async || match found.resolved {
        true => Ok(0),
        false => raw.resolve(&[id]).await,
    };
    let mut told = match ask(config, app, service, height, alone, stay).await {
        Ok(told) => told,
        Err(error) if error.is::<Begun>() => {
            closing().await?;
            return Err(error.context(format!("error {id} is closed")));
        }
        Err(error) => {
            return Err(error.context(format!(
                "error {id}, height {height}: nothing is made again, and it is as it was"
            )));
        }
    };
    closing().await.with_context(|| {
        format!("{told}but error {id} could not be closed; `cairn errors resolve {id}` closes it")
    })?;
    let is_yet_to_come = match is_yet_to_come(app, service, height, alone).await {
        Ok(yet) => yet,
        Err(error) => {
            raw.record(std::slice::from_ref(&found.error)).await?;
            return Err(error.context(format!(
                "{told}but error {id} stays open: whether the worker had come to height {height} before it was closed can't be told"
            )));
        }
    };
    if !is_yet_to_come {
        let again = match alone {
            true => ask(config, app, service, height, alone, stay).await,
            false => Err(anyhow::anyhow!("{service} has come to height {height} already")),
        };
        if let Err(error) = again {
            raw.record(std::slice::from_ref(&found.error)).await?;
            told += &format!(
                "error {id} stays open: the worker came to height {height} before it was closed ({error:#}); where its rows are right now: `cairn errors resolve {id}`\n"
            );
            return Ok(told);
        }
    }
    Ok(told + &format!("error {id} is closed; it opens again where the worker meets it again\n"))
}

/// Asks for the height; it is asked for already where a command was cut off after that.
async fn ask(
    config: &Config,
    app: &dyn AppStore,
    service: &str,
    height: Height,
    alone: bool,
    stay: &Stay,
) -> anyhow::Result<String> {
    if !alone {
        return reindex::request(config, app, service, None, stay).await;
    }
    let under_way = UnderWay::of(app, service).await?;
    let range = HeightRange::one(height);
    match under_way.in_the_way(range).filter(|lease| lease.done_to <= height) {
        Some(lease) if lease.is_dead() => bail!(
            "{service} failed at it too often: mend the cause, then `cairn leases retry {}` makes {} again",
            lease.id,
            lease.range
        ),
        Some(lease) => Ok(format!("{service}: heights {} are made again already\n", lease.range)),
        None => reindex::request(config, app, service, Some(range), stay).await,
    }
}

/// Whether the worker is yet to come to a height that it was asked for. Who may be at it right now loses its lease, so that it is read again.
async fn is_yet_to_come(
    app: &dyn AppStore,
    service: &str,
    height: Height,
    alone: bool,
) -> anyhow::Result<bool> {
    let kind = if alone { LeaseKind::Reindex } else { LeaseKind::Index };
    let filter = LeaseFilter {
        service: Some(service.into()),
        status: Some(LeaseStatus::Active),
        limit: MAX_HELD,
        ..LeaseFilter::default()
    };
    let covers =
        |lease: &WorkerLease| lease.kind == kind && lease.range.contains(height) && lease.done_to <= height;
    let held = app.snapshot().await?.leases(&filter).await?;
    for lease in held.iter().filter(|lease| covers(lease)) {
        app.release_lease(lease.id).await?;
    }
    if alone {
        let under_way = UnderWay::of(app, service).await?;
        return Ok(under_way
            .in_the_way(HeightRange::one(height))
            .is_some_and(|lease| lease.done_to <= height));
    }
    // While its rows are being deleted it has none.
    let snapshot = app.snapshot().await?;
    Ok(snapshot.checkpoint(service).is_none_or(|own| own.next <= height))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use cairn_backends::sqlite::{SqliteDerived, SqliteDerivedOptions, SqliteOptions, SqliteStore};
    use cairn_core::{BlockId, SystemClock};
    use cairn_store::derived::{
        ChunkCommit, ClaimRequest, Coordinator, DerivedReader, DerivedWriter, ErrorFilter, ErrorLog,
        LoggedError, ReadMark, ReorgApplier, Severity,
    };
    use cairn_store::memory::CommitHook;
    use cairn_store::{ReorgMark, Result, StoreError};
    use tokio::runtime::Handle;

    use super::*;
    use crate::derive;

    const WORKER: &str = "evm_worker";
    const FOLDER: &str = "stats_worker";
    const HEIGHT: Height = Height(7);

    /// An archive whose workers have done heights 0 to 9, with an error of each.
    struct World {
        _dir: tempfile::TempDir,
        config: Config,
        raw: SqliteStore,
        app: SqliteDerived,
    }

    impl World {
        async fn new() -> World {
            let dir = tempfile::tempdir().expect("a directory");
            let config = Config { data_dir: dir.path().into(), ..Config::default() };
            let clock = Arc::new(SystemClock);
            let raw = SqliteStore::open(SqliteOptions::new(dir.path()), clock.clone()).await.expect("opens");
            let catalog = derive::catalog(&config).expect("a catalog");
            let app = SqliteDerived::open(SqliteDerivedOptions::new(dir.path()), catalog, clock);
            let app = app.await.expect("opens");
            app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
            for service in [WORKER, FOLDER] {
                app.register(service, Height(0)).await.expect("registers");
                let lease = claim(&app, service).await.expect("a range");
                commit(&app, &lease).await;
                let error = NewError {
                    service: service.into(),
                    height: HEIGHT,
                    block_id: BlockId([1; 32]),
                    transaction_id: String::new(),
                    severity: Severity::Warn,
                    message: "not understood".into(),
                    raw_data: Vec::new(),
                    raw_ref: None,
                };
                raw.record(&[error]).await.expect("records");
            }
            World { _dir: dir, config, raw, app }
        }

        async fn retry(&self, id: u64) -> anyhow::Result<String> {
            let stores =
                Stores { raw: Some(Arc::new(self.raw.clone())), app: Some(Arc::new(self.app.clone())) };
            retry(&self.config, &stores, id, true, &Stay::to_the_end()).await
        }

        /// The numbers of open errors.
        async fn open(&self) -> Vec<u64> {
            let filter = ErrorFilter { limit: 10, ..ErrorFilter::default() };
            let open: Vec<LoggedError> = self.raw.list(&filter).await.expect("reads");
            open.iter().map(|logged| logged.id).collect()
        }

        /// What is to be made again, and how far it is.
        async fn again(&self) -> Vec<(HeightRange, LeaseStatus)> {
            let filter = LeaseFilter { limit: 100, ..LeaseFilter::default() };
            let leases = self.app.snapshot().await.expect("reads").leases(&filter).await.expect("reads");
            let again = leases.into_iter().filter(|lease| lease.kind == LeaseKind::Reindex);
            again.map(|lease| (lease.range, lease.status)).collect()
        }

        fn hook_raw(&self, run: impl FnMut(&'static str) -> Result<()> + Send + 'static) {
            self.raw.set_hook(Some(Arc::new(Before(Mutex::new(Box::new(run))))));
        }
    }

    /// Is called before a verb commits.
    struct Before(Mutex<Box<dyn FnMut(&'static str) -> Result<()> + Send>>);

    impl CommitHook for Before {
        fn before(&self, verb: &'static str) -> Result<()> {
            let mut run = self.0.lock().expect("no panic");
            run(verb)
        }

        fn after(&self, _verb: &'static str) -> Result<()> {
            Ok(())
        }
    }

    fn refuses(refused: &'static str) -> impl FnMut(&'static str) -> Result<()> + Send {
        move |verb| match verb == refused {
            true => Err(StoreError::Busy("killed".into())),
            false => Ok(()),
        }
    }

    async fn claim(app: &SqliteDerived, service: &str) -> Option<WorkerLease> {
        let request = ClaimRequest {
            service: service.into(),
            version: 1_000,
            owner: "test".into(),
            ttl_ms: 60_000,
            range_heights: 10,
            first: Height(0),
            limit_exclusive: Height(10),
            stop_exclusive: None,
            in_order: false,
        };
        app.claim(&request).await.expect("claims")
    }

    async fn commit(app: &SqliteDerived, lease: &WorkerLease) {
        let commit = ChunkCommit {
            chunk: lease.rest(),
            parent_id: Some(BlockId([1; 32])),
            last_id: Some(BlockId([2; 32])),
            read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
            folded_at: None,
            rows: Vec::new(),
            states: Vec::new(),
            replaces: Vec::new(),
            corrections: Vec::new(),
            quarantined: Vec::new(),
            finalized: Height(0),
            ttl_ms: 60_000,
        };
        app.commit_chunk(lease, commit).await.expect("commits");
    }

    #[tokio::test]
    async fn a_command_that_ends_before_the_error_is_closed_has_asked_and_is_asked_again() {
        let world = World::new().await;
        let one = HeightRange::one(HEIGHT);
        world.hook_raw(refuses("resolve"));
        let error = format!("{:#}", world.retry(1).await.expect_err("is killed"));
        assert!(error.contains("evm_worker: heights [7, 8) are made again"), "{error}");
        assert!(error.contains("`cairn errors resolve 1`"), "{error}");
        assert_eq!((world.open().await, world.again().await), (vec![1, 2], vec![(one, LeaseStatus::Failed)]));

        world.raw.set_hook(None);
        let told = world.retry(1).await.expect("is done");
        assert!(told.contains("are made again already") && told.contains("error 1 is closed"), "{told}");
        assert_eq!((world.open().await, world.again().await), (vec![2], vec![(one, LeaseStatus::Failed)]));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_worker_that_comes_before_the_error_is_closed_comes_again() {
        for is_quick in [true, false] {
            let world = World::new().await;
            let (app, runtime) = (world.app.clone(), Handle::current());
            // It finds the error open.
            world.hook_raw(move |verb| {
                if verb == "resolve" {
                    runtime.block_on(async {
                        let lease = claim(&app, WORKER).await.expect("it was asked for");
                        if is_quick {
                            commit(&app, &lease).await;
                        }
                    });
                }
                Ok(())
            });
            let told = world.retry(1).await.expect("is done");
            assert!(told.contains("error 1 is closed"), "{told}");
            assert_eq!(world.open().await, [2]);
            // Its height is due once more, whether it had been done or was being done.
            assert_eq!(world.again().await, [(HeightRange::one(HEIGHT), LeaseStatus::Failed)], "{is_quick}");
            assert!(claim(&world.app, WORKER).await.is_some());
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_error_of_a_folder_that_came_first_stays_open() {
        let world = World::new().await;
        let (app, runtime) = (world.app.clone(), Handle::current());
        world.hook_raw(move |verb| {
            if verb == "resolve" {
                runtime.block_on(async {
                    let lease = claim(&app, FOLDER).await.expect("it begins anew");
                    commit(&app, &lease).await;
                });
            }
            Ok(())
        });
        let told = world.retry(2).await.expect("is done");
        assert!(told.contains("stats_worker begins anew") && told.contains("error 2 stays open"), "{told}");
        assert_eq!(world.open().await, [1, 2]);
    }

    #[tokio::test]
    async fn what_was_begun_is_said_where_what_follows_fails() {
        let world = World::new().await;
        world.app.set_hook(Some(Arc::new(Before(Mutex::new(Box::new(refuses("reset_step")))))));
        let error = format!("{:#}", world.retry(2).await.expect_err("rows are left"));
        for part in [
            "error 2 is closed",
            "stats_worker: begun anew",
            "could not be deleted",
            "`cairn reindex --worker stats_worker`",
            "killed",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(world.open().await, [1]);
        let request = |worker: &'static str| {
            let (config, app) = (&world.config, &world.app);
            async move { reindex::request(config, app, worker, None, &Stay::to_the_end()).await }
        };
        let error = format!("{:#}", request(FOLDER).await.expect_err("rows are left yet"));
        assert!(error.contains("begun before") && error.contains("killed"), "{error}");
        // The next one finishes it.
        world.app.set_hook(None);
        let told = request(FOLDER).await.expect("is done");
        assert!(told.contains("a reset that was begun before is finished"), "{told}");
    }
}
