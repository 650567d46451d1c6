//! `cairn reindex`: makes derived rows again while everything else goes on.
//!
//! Rows that stand by themselves (events) are replaced chunk by chunk, each in one transaction, and the checkpoint stays where it is. State that was folded
//! from them is corrected in the same transactions, where its folder can do that and the range is short; else it begins anew. What rows of
//! these heights name is asked of a node again, once they are made again.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use cairn_backends::postgres::Behind;
use cairn_core::{Height, HeightRange};
use cairn_pipeline::backoff::Backoff;
use cairn_pipeline::derive::processor::{Processor, ServiceInfo};
use cairn_store::StoreError;
use cairn_store::derived::{
    DerivedSnapshot, LeaseFilter, LeaseKind, LeaseStatus, RangeAgain, RebuildRequest, TableClass, TableDef,
    WorkerLease,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cli::ReindexArgs;
use crate::config::{self, Config, Overrides};
use crate::derive;
use crate::operators::{self, Operation};
use crate::stores::AppStore;

/// Rows deleted in one transaction when a worker begins anew.
pub const RESET_ROWS: usize = 20_000;
/// The most leases of a worker that are looked at for its first height.
const MAX_LEASES: usize = 100_000;
/// Leases that are read at once.
const LEASES_AT_ONCE: usize = 5_000;

/// A range that is longer than this part of what a folder has folded is not corrected: folding all of it anew costs about as much.
const CORRECTED_PART: u64 = 2;

/// The first and the longest pause before a store that is busy is asked again, in milliseconds.
#[cfg_attr(not(unix), allow(dead_code))]
const BUSY_PAUSE_MS: (u64, u64) = (100, 5_000);
/// How often it is asked again for one thing.
#[cfg_attr(not(unix), allow(dead_code))]
const BUSY_TRIES: u32 = 12;

/// Asks for it; running workers do it.
pub async fn reindex(file: Option<&Path>, args: &ReindexArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let ReindexArgs { worker, from, to, .. } = args;
    operators::carry_out(&config, Operation::Reindex { worker: worker.clone(), from: *from, to: *to }).await
}

/// How long whoever asks for something stays to delete what stands in its way. Leaving early costs nothing: whoever derives goes on with it.
pub struct Stay {
    until: Option<Instant>,
    stop: CancellationToken,
}

impl Stay {
    /// Until all is deleted.
    pub fn to_the_end() -> Stay {
        Stay { until: None, stop: CancellationToken::new() }
    }

    /// So long at most, and not after `stop`.
    #[cfg_attr(not(unix), allow(dead_code))]
    pub fn within(limit: Duration, stop: CancellationToken) -> Stay {
        Stay { until: Some(Instant::now() + limit), stop }
    }

    /// Until `stop`.
    #[cfg_attr(not(unix), allow(dead_code))]
    pub fn until(stop: CancellationToken) -> Stay {
        Stay { until: None, stop }
    }

    /// Whether whoever asked goes now.
    pub fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Asks a store, and again where it is busy, a bounded number of times. `None`: it stays no longer.
    #[cfg_attr(not(unix), allow(dead_code))]
    async fn patiently<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let (first_ms, cap_ms) = BUSY_PAUSE_MS;
        let mut backoff = Backoff::new(first_ms, cap_ms, std::process::id().into());
        while !self.is_over() {
            match ask().await {
                Err(error) if error.kind().is_retryable() && backoff.tries() < BUSY_TRIES => {
                    tracing::debug!(%error, "the store is asked again");
                    tokio::select! {
                        () = self.stop.cancelled() => {}
                        () = tokio::time::sleep(backoff.next_pause()) => {}
                    }
                }
                answer => return answer.map(Some),
            }
        }
        Ok(None)
    }

    /// Deletes what a worker made before its rebuild was begun. What to add to a message where something is left.
    async fn clear(&self, app: &dyn AppStore, worker: &str) -> anyhow::Result<&'static str> {
        while !self.is_over() {
            if !app.reset_step(worker, RESET_ROWS).await? {
                return Ok("");
            }
        }
        Ok(" once what is left of its rows is deleted, which goes on wherever tables are derived")
    }
}

/// What stands before the cause of an error where what was asked for has begun, and something after it failed: nothing is to be asked for once more.
#[derive(Debug)]
pub struct Begun(String);

impl fmt::Display for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `told` is what was done, and these begin anew.
fn begun_and_left(told: &str, workers: &[&str]) -> Begun {
    let names = workers.join(", ");
    let commands: Vec<String> =
        workers.iter().map(|worker| format!("`cairn reindex --worker {worker}`")).collect();
    Begun(format!(
        "{told}{names}: begun anew, and what was made before could not be deleted to the end now; that goes on wherever tables are derived, and so does {}",
        commands.join(", ")
    ))
}

/// Asks for a range of a worker, or for all of it, and for whatever is folded from it. Says what will be done.
///
/// What is asked for begins in one transaction, so that whoever is killed after it leaves nothing to ask for once more; what is left of deleting is done by the next call, or by any process that derives.
pub async fn request(
    config: &Config,
    app: &dyn AppStore,
    worker: &str,
    range: Option<HeightRange>,
    stay: &Stay,
) -> anyhow::Result<String> {
    let workers = workers(config)?;
    let found = find(&workers, worker)?;
    let begins_anew = match found.kind {
        Kind::Mapper => false,
        Kind::Enricher => range.is_none(),
        Kind::Folder if range.is_some() => {
            bail!("{worker} folds from the beginning: leave --from and --to out, and it begins anew")
        }
        Kind::Folder => true,
    };
    let followers: Vec<&Worker> =
        workers.iter().filter(|follower| follower.service.upstreams.contains(&worker)).collect();
    let mut message = String::new();
    for concerned in std::iter::once(found).chain(followers.iter().copied()) {
        let name = concerned.service.name;
        if let Some((first, left)) = finish_reset(app, name, stay).await? {
            if !left.is_empty() {
                bail!(
                    "{name}: a reset was begun before, and it begins anew at height {first}{left}; ask again then"
                );
            }
            message += &format!(
                "{name}: a reset that was begun before is finished; it begins anew at height {first}\n"
            );
            if name == worker {
                return Ok(message);
            }
        }
    }
    let snapshot = app.snapshot().await?;
    let checkpoint =
        snapshot.checkpoint(worker).with_context(|| format!("{worker} has never run here"))?.clone();
    if begins_anew {
        let first = begin_anew(app, worker).await?;
        let cleared = stay.clear(app, worker).await;
        let left = cleared.map_err(|error| error.context(begun_and_left(&message, &[worker])))?;
        return Ok(message + &format!("{worker} begins anew at height {first}{left}\n"));
    }
    let first = first_height(app, worker, checkpoint.next).await?;
    let whole = HeightRange::new(first, checkpoint.next);
    let range = range.map_or(whole, |range| range.intersect(whole));
    if range.is_empty() {
        bail!("{message}{worker} has derived {whole}; the range asked for lies outside of it");
    }
    let mut asked = RebuildRequest { again: vec![again(config, found.service, range)], anew: Vec::new() };
    if found.kind == Kind::Enricher {
        app.begin_rebuild(&asked).await?;
        return Ok(message + &format!("{worker}: what heights {range} name is asked again\n"));
    }
    message += &format!("{worker}: heights {range} are made again\n");
    let correctable = derive::folders(config).into_iter().filter(|folder| folder.is_correctable());
    let correctable: BTreeSet<&str> = correctable.map(|folder| folder.service().name).collect();
    for follower in followers {
        match follower.kind {
            Kind::Folder if has_run(&*snapshot, follower.service.name) => {
                let name = follower.service.name;
                let folded = snapshot.checkpoint(name).map_or(0, |own| own.next.since(first));
                if correctable.contains(name) && range.len() <= folded / CORRECTED_PART {
                    asked.again[0].corrects_state = true;
                    message += &format!("{name} is folded from it, and its state is corrected\n");
                } else {
                    asked.anew.push(name.to_owned());
                }
            }
            Kind::Enricher => {
                let asker = Asker::of(app, follower.service).await?;
                let told = asker.and_then(|asker| asker.ask_again(config, range, &mut asked));
                message.extend(told.map(|told| told + "\n"));
            }
            Kind::Folder | Kind::Mapper => {}
        }
    }
    drop(snapshot);
    let finished = message.lines().filter(|line| line.contains("is finished")).collect::<Vec<_>>().join("\n");
    let begun = app.begin_rebuild(&asked).await;
    let begun = if finished.is_empty() { begun? } else { begun.context(finished)? };
    for (at, rebuild) in begun.iter().enumerate() {
        let name = &rebuild.service;
        let left = stay.clear(app, name).await.map_err(|error| {
            let rest: Vec<&str> = begun[at..].iter().map(|rebuild| rebuild.service.as_str()).collect();
            error.context(begun_and_left(&message, &rest))
        })?;
        message += &format!("{name} is folded from it and begins anew at height {}{left}\n", rebuild.first);
    }
    Ok(message)
}

/// Whether a worker has made anything here: one that is being cleared has no checkpoint, and may have been begun anew already. What never ran begins with new rows by itself.
pub fn has_run(snapshot: &dyn DerivedSnapshot, worker: &str) -> bool {
    snapshot.checkpoint(worker).is_some()
        || snapshot.rebuilds().iter().any(|rebuild| rebuild.service == worker)
}

/// A range to be made again.
pub fn again(config: &Config, service: &'static ServiceInfo, range: HeightRange) -> RangeAgain {
    let range_heights = derive::options(config).range_of(service.name);
    RangeAgain {
        service: service.name.to_owned(),
        version: service.version,
        range,
        range_heights,
        is_behind: false,
        corrects_state: false,
    }
}

/// What a worker is to make again, or to ask about again, and has not done yet.
pub struct UnderWay {
    /// By height; no two of them share one.
    leases: Vec<WorkerLease>,
}

impl UnderWay {
    /// Reads it.
    pub async fn of(app: &dyn AppStore, worker: &str) -> anyhow::Result<UnderWay> {
        let mut leases = Vec::new();
        let mut snapshot = app.snapshot().await?;
        for status in [LeaseStatus::Active, LeaseStatus::Failed] {
            let mut filter = LeaseFilter {
                service: Some(worker.into()),
                status: Some(status),
                limit: LEASES_AT_ONCE,
                ..LeaseFilter::default()
            };
            loop {
                let page = snapshot.leases(&filter).await?;
                let (is_last, last) = (page.len() < LEASES_AT_ONCE, page.last().map(|lease| lease.id));
                leases.extend(page.into_iter().filter(|lease| lease.kind == LeaseKind::Reindex));
                let Some(last) = last.filter(|_| !is_last) else { break };
                filter.after_id = last;
                // A store may end one after two seconds.
                snapshot = app.snapshot().await?;
            }
        }
        leases.sort_by_key(|lease| (lease.range.start(), lease.id));
        // One may have changed its status between two snapshots.
        leases.dedup_by_key(|lease| lease.id);
        Ok(UnderWay { leases })
    }

    /// A lease under which some of these heights are made again.
    pub fn in_the_way(&self, range: HeightRange) -> Option<&WorkerLease> {
        self.on(range).next()
    }

    /// Whether some of these heights are still to be made again.
    pub fn makes_again(&self, range: HeightRange) -> bool {
        self.on(range).any(|lease| lease.done_to < range.end())
    }

    fn on(&self, range: HeightRange) -> impl Iterator<Item = &WorkerLease> {
        let first = self.leases.partition_point(|lease| lease.range.end() <= range.start());
        let above = move |lease: &&WorkerLease| lease.range.start() < range.end();
        self.leases.get(first..).unwrap_or_default().iter().take_while(above)
    }
}

/// An enricher that has to ask again about what rows name that are made again.
pub struct Asker {
    service: &'static ServiceInfo,
    /// The heights that it has asked about.
    done: HeightRange,
    under_way: UnderWay,
}

impl Asker {
    /// `None`: it never ran, and begins with these rows by itself.
    async fn of(app: &dyn AppStore, service: &'static ServiceInfo) -> anyhow::Result<Option<Asker>> {
        let snapshot = app.snapshot().await?;
        let Some(next) = snapshot.checkpoint(service.name).map(|checkpoint| checkpoint.next) else {
            return Ok(None);
        };
        drop(snapshot);
        let first = first_height(app, service.name, next).await?;
        let under_way = UnderWay::of(app, service.name).await?;
        Ok(Some(Asker { service, done: HeightRange::new(first.min(next), next), under_way }))
    }

    /// Lets it ask again about what a range names whose rows are made again. It waits for them by itself, and what it has under way is stopped. What it does; `None`: it never came to these
    /// heights.
    pub fn ask_again(
        &self,
        config: &Config,
        range: HeightRange,
        asked: &mut RebuildRequest,
    ) -> Option<String> {
        let name = self.service.name;
        let behind = |range| RangeAgain { is_behind: true, ..again(config, self.service, range) };
        let done = range.intersect(self.done);
        if let Some(lease) = self.under_way.in_the_way(range) {
            // No more is asked for, but what is under way stops.
            asked.again.push(behind(HeightRange::new(range.start(), range.start())));
            return Some(format!(
                "{name} asks about some of these heights again already (lease {} on {} is not done); when it has: cairn reindex --worker {name} --from {} --to {}",
                lease.id,
                lease.range,
                done.start(),
                done.end().saturating_sub(1)
            ));
        }
        // The store knows how far it has come by then.
        asked.again.push(behind(range));
        // Where it is empty it comes to these heights yet.
        let told = format!("{name} asks again about what heights {done} name, once they are made again");
        (!done.is_empty()).then_some(told)
    }
}

/// The enrichers behind a mapper that have run.
pub async fn askers_behind(config: &Config, app: &dyn AppStore, mapper: &str) -> anyhow::Result<Vec<Asker>> {
    let mut askers = Vec::new();
    for follower in workers(config)? {
        let service = follower.service;
        if follower.kind == Kind::Enricher && service.upstreams.contains(&mapper) {
            askers.extend(Asker::of(app, service).await?);
        }
    }
    Ok(askers)
}

/// Whether single ranges of a worker can be made again; else it begins anew from its first block.
pub fn takes_ranges(config: &Config, worker: &str) -> anyhow::Result<bool> {
    Ok(find(&workers(config)?, worker)?.kind != Kind::Folder)
}

/// Who reads what these services write: whatever has to be done again when that is made anew.
pub fn behind(config: &Config, services: &[&str]) -> anyhow::Result<Behind> {
    let mut behind = Behind::default();
    for worker in workers(config)? {
        let service = worker.service;
        if services.contains(&service.name) || !service.upstreams.iter().any(|name| services.contains(name)) {
            continue;
        }
        match worker.kind {
            Kind::Folder => behind.folders.push(service.name.to_owned()),
            Kind::Enricher => {
                let range_heights = derive::options(config).range_of(service.name);
                behind.askers.push((service.name.to_owned(), service.version, range_heights));
            }
            Kind::Mapper => {}
        }
    }
    Ok(behind)
}

/// How a worker works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mapper,
    Folder,
    Enricher,
}

/// A worker by what it says of itself.
struct Worker {
    service: &'static ServiceInfo,
    kind: Kind,
    /// Nobody may ask for it by its name; what it made before is done again with what it was made of.
    is_disabled: bool,
}

/// The chain's workers, without mappers that the configuration disables. Those that ask a node count whether this command is told of one or not: others do the work.
fn workers(config: &Config) -> anyhow::Result<Vec<Worker>> {
    let mut workers: Vec<Worker> = Vec::new();
    for processor in derive::processors(config, derive::Asked::default(), None)? {
        let kind = match processor {
            Processor::Mapper(_) => Kind::Mapper,
            Processor::Folder(_) => Kind::Folder,
            Processor::Enricher(_) => Kind::Enricher,
        };
        workers.push(Worker { service: processor.service(), kind, is_disabled: false });
    }
    for service in config.chain().registrations().iter().map(|registration| registration.service) {
        let folds = |table: &&TableDef| matches!(table.class, TableClass::State);
        let is_known = workers.iter().any(|worker| worker.service.name == service.name);
        let is_disabled = config.derive.disabled.iter().any(|name| name == service.name);
        if is_known {
            continue;
        }
        if derive::asks_node(service) {
            workers.push(Worker { service, kind: Kind::Enricher, is_disabled });
        } else if is_disabled && service.tables.iter().all(folds) {
            workers.push(Worker { service, kind: Kind::Folder, is_disabled });
        }
    }
    Ok(workers)
}

fn find<'a>(workers: &'a [Worker], name: &str) -> anyhow::Result<&'a Worker> {
    let enabled = move || workers.iter().filter(|worker| !worker.is_disabled);
    enabled().find(|worker| worker.service.name == name).with_context(|| {
        let known: Vec<_> = enabled().map(|worker| worker.service.name).collect();
        format!("there is no worker `{name}`; there are {}", known.join(", "))
    })
}

/// The first height that a worker has a lease on.
pub async fn first_height(app: &dyn AppStore, worker: &str, otherwise: Height) -> anyhow::Result<Height> {
    let filter = LeaseFilter { service: Some(worker.into()), limit: MAX_LEASES, ..LeaseFilter::default() };
    let leases = app.snapshot().await?.leases(&filter).await?;
    Ok(leases.iter().map(|lease| lease.range.start()).min().unwrap_or(otherwise))
}

/// Lets a worker begin anew; says where.
pub async fn reset(app: &dyn AppStore, worker: &str) -> anyhow::Result<Height> {
    let first = begin_anew(app, worker).await?;
    clear(app, worker).await?;
    Ok(first)
}

async fn begin_anew(app: &dyn AppStore, worker: &str) -> anyhow::Result<Height> {
    let request = RebuildRequest { anew: vec![worker.to_owned()], ..RebuildRequest::default() };
    let begun = app.begin_rebuild(&request).await?;
    Ok(begun.first().map_or(Height::ZERO, |rebuild| rebuild.first))
}

/// Finishes a reset that somebody began and left; says where the worker begins anew, and what is left to do. `None`: there is none.
async fn finish_reset(
    app: &dyn AppStore,
    worker: &str,
    stay: &Stay,
) -> anyhow::Result<Option<(Height, &'static str)>> {
    let snapshot = app.snapshot().await?;
    let left = snapshot.rebuilds().iter().find(|rebuild| rebuild.service == worker && rebuild.is_clearing);
    let Some(first) = left.map(|rebuild| rebuild.first) else { return Ok(None) };
    drop(snapshot);
    let left = stay.clear(app, worker).await.with_context(|| {
        format!(
            "{worker}: a reset was begun before, and could not be finished now; nothing else was asked for"
        )
    })?;
    Ok(Some((first, left)))
}

/// Deletes what a worker made before its rebuild was begun. Others may do so at the same time.
pub async fn clear(app: &dyn AppStore, worker: &str) -> anyhow::Result<()> {
    Stay::to_the_end().clear(app, worker).await.map(drop)
}

/// Deletes what any worker made before its rebuild was begun, as long as that stays. A store that is busy is asked again for a while: nobody may be there who derives.
#[cfg_attr(not(unix), allow(dead_code))]
pub async fn clear_all(app: &dyn AppStore, stay: &Stay) -> anyhow::Result<()> {
    let Some(snapshot) = stay.patiently(|| app.snapshot()).await? else { return Ok(()) };
    let clearing = snapshot.rebuilds().iter().filter(|rebuild| rebuild.is_clearing);
    let workers: Vec<String> = clearing.map(|rebuild| rebuild.service.clone()).collect();
    drop(snapshot);
    for worker in &workers {
        while stay.patiently(|| app.reset_step(worker, RESET_ROWS)).await? == Some(true) {}
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../backends/tests/backends/support/pg.rs"]
pub(crate) mod pg;

#[cfg(test)]
mod tests {
    use cairn_core::BlockId;
    use cairn_store::ReorgMark;
    use cairn_store::derived::{ChunkCommit, ClaimRequest, LeaseKind, ReadMark};

    use super::*;
    use crate::config::DatabaseConfig;

    /// Lets a worker have done heights 0 to 99, without rows.
    async fn done(app: &dyn AppStore, service: &str) {
        app.register(service, Height(0)).await.expect("registers");
        let request = ClaimRequest {
            service: service.into(),
            version: 1_000,
            owner: "test".into(),
            ttl_ms: 60_000,
            range_heights: 100,
            first: Height(0),
            limit_exclusive: Height(100),
            stop_exclusive: None,
            in_order: false,
        };
        let lease = app.claim(&request).await.expect("claims").expect("a range");
        let commit = ChunkCommit {
            chunk: lease.range,
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
        app.commit_chunk(&lease, commit).await.expect("commits");
    }

    async fn asked(app: &dyn AppStore) -> Vec<(String, HeightRange)> {
        let filter = cairn_store::derived::LeaseFilter { limit: 100, ..Default::default() };
        let leases = app.snapshot().await.expect("reads").leases(&filter).await.expect("reads");
        let again = leases.into_iter().filter(|lease| lease.kind == LeaseKind::Reindex);
        again.map(|lease| (lease.service, lease.range)).collect()
    }

    #[test]
    fn who_is_disabled_is_behind_all_the_same() {
        let mut config = Config::default();
        let disabled = ["token_metadata_worker", "ft_holdings_worker"];
        config.derive.disabled = disabled.map(String::from).to_vec();
        let behind = behind(&config, &["token_worker"]).expect("the workers");
        assert!(behind.folders.iter().any(|name| name == "ft_holdings_worker"), "{behind:?}");
        assert!(behind.askers.iter().any(|(name, ..)| name == "token_metadata_worker"), "{behind:?}");
        let workers = workers(&config).expect("the workers");
        assert!(disabled.iter().all(|name| find(&workers, name).is_err()));
    }

    async fn enrichers_ask_again(config: Config) {
        let app = derive::open_for_command(&config).await.expect("opens");
        app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
        for service in ["token_worker", "token_metadata_worker", "nft_metadata_worker"] {
            done(&*app, service).await;
        }
        let range = |from, to| HeightRange::new(Height(from), Height(to));
        let of = |service: &str, range| (service.to_owned(), range);
        let ask =
            async |worker: &str, range| request(&config, &*app, worker, range, &Stay::to_the_end()).await;

        let told = ask("token_metadata_worker", Some(range(10, 20))).await.expect("asks");
        assert!(told.contains("what heights [10, 20) name is asked again"), "{told}");
        assert_eq!(asked(&*app).await, [of("token_metadata_worker", range(10, 20))]);

        // Behind a mapper, whoever asks about what its rows name; one of them is at it already over some of the heights.
        let told = ask("token_worker", Some(range(15, 30))).await.expect("asks");
        assert!(told.contains("nft_metadata_worker asks again"), "{told}");
        assert!(told.contains("cairn reindex --worker token_metadata_worker --from 15 --to 29"), "{told}");
        let mut all = asked(&*app).await;
        all.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [
            of("nft_metadata_worker", range(15, 30)),
            of("token_metadata_worker", range(10, 20)),
            of("token_worker", range(15, 30)),
        ];
        assert_eq!(all, expected);
        assert!(takes_ranges(&config, "nft_metadata_worker").expect("a worker"));

        // Without a range it begins anew, and asks about everything.
        let told = ask("nft_metadata_worker", None).await.expect("asks");
        assert!(told.contains("nft_metadata_worker begins anew at height 0"), "{told}");
        let wrong = ask("ft_holdings_worker", Some(range(1, 2))).await.expect_err("a folder");
        assert!(wrong.to_string().contains("folds from the beginning"), "{wrong}");

        // Whoever doesn't stay leaves what is to be deleted to others, and has begun all the same.
        done(&*app, "ft_holdings_worker").await;
        let gone = Stay::within(Duration::ZERO, CancellationToken::new());
        let told = request(&config, &*app, "ft_holdings_worker", None, &gone).await.expect("begins");
        assert!(told.contains("begins anew at height 0 once what is left"), "{told}");
        let is_clearing = async || {
            let snapshot = app.snapshot().await.expect("reads");
            let mut rebuilds = snapshot.rebuilds().iter();
            rebuilds.any(|rebuild| rebuild.service == "ft_holdings_worker" && rebuild.is_clearing)
        };
        assert!(is_clearing().await);
        let again = request(&config, &*app, "ft_holdings_worker", None, &gone).await.expect_err("not yet");
        assert!(again.to_string().contains("ask again then"), "{again}");
        let told = ask("ft_holdings_worker", None).await.expect("finishes");
        assert!(told.contains("a reset that was begun before is finished"), "{told}");
        assert!(!is_clearing().await);
    }

    #[tokio::test]
    async fn enrichers_ask_again_about_a_range_on_sqlite() {
        let dir = tempfile::tempdir().expect("a directory");
        enrichers_ask_again(Config { data_dir: dir.path().into(), ..Config::default() }).await;
    }

    #[tokio::test]
    async fn enrichers_ask_again_about_a_range_on_postgres() {
        let Some(db) = pg::database().await else { return };
        let app = DatabaseConfig { url: Some(db.url.clone()), ..DatabaseConfig::default() };
        enrichers_ask_again(Config { app, ..Config::default() }).await;
    }
}
