//! `cairn reindex`: makes derived rows again while everything else goes on.
//!
//! Rows that stand by themselves (events) are replaced chunk by chunk, each in one transaction, and the checkpoint stays where it is; state that was folded
//! from them is folded anew from its beginning. What rows of these heights name is asked of a node again, once they are made again.

use std::path::Path;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_pipeline::derive::processor::{Processor, ServiceInfo};
use cairn_store::StoreError;
use cairn_store::derived::{TableClass, TableDef};

use crate::cli::ReindexArgs;
use crate::config::{self, Config, Overrides};
use crate::stores::AppStore;
use crate::{derive, output};

/// Rows deleted in one transaction when a worker begins anew.
const RESET_ROWS: usize = 20_000;

/// Asks for it; running workers do it.
pub async fn reindex(file: Option<&Path>, args: &ReindexArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let app = derive::open_for_command(&config).await?;
    let range = match (args.from, args.to) {
        (None, None) => None,
        (from, to) => {
            let end = to.map_or(Height(u64::MAX), |to| Height(to).next());
            Some(HeightRange::new(Height(from.unwrap_or(0)), end))
        }
    };
    let message = request(&config, &*app, &args.worker, range).await?;
    Ok(output::print(&message)?)
}

/// Asks for a range of a worker, or for all of it, and for whatever is folded from it. Says what will be done.
pub async fn request(
    config: &Config,
    app: &dyn AppStore,
    worker: &str,
    range: Option<HeightRange>,
) -> anyhow::Result<String> {
    let workers = workers(config)?;
    let found = find(&workers, worker)?;
    let snapshot = app.snapshot().await?;
    let checkpoint =
        snapshot.checkpoint(worker).with_context(|| format!("{worker} has never run here"))?.clone();
    drop(snapshot);
    let begins_anew = match found.kind {
        Kind::Mapper => false,
        Kind::Enricher => range.is_none(),
        Kind::Folder if range.is_some() => {
            bail!("{worker} folds from the beginning: leave --from and --to out, and it begins anew")
        }
        Kind::Folder => true,
    };
    if begins_anew {
        let first = first_height(app, worker, checkpoint.next).await?;
        reset(app, worker, first).await?;
        return Ok(format!("{worker} begins anew at height {first}\n"));
    }
    let first = first_height(app, worker, checkpoint.next).await?;
    let whole = HeightRange::new(first, checkpoint.next);
    let range = range.map_or(whole, |range| range.intersect(whole));
    if range.is_empty() {
        bail!("{worker} has derived {whole}; the range asked for lies outside of it");
    }
    let heights = derive::options(config).range_of(worker);
    let leases = app.request_reindex(worker, found.service.version, range, heights).await?;
    if found.kind == Kind::Enricher {
        return Ok(format!("{worker}: what heights {range} name is asked again, in {leases} ranges\n"));
    }
    let mut message = format!("{worker}: heights {range} are made again, in {leases} ranges\n");
    let follows =
        |follower: &&Worker| follower.kind == Kind::Folder && follower.service.upstreams.contains(&worker);
    for follower in workers.iter().filter(follows) {
        let name = follower.service.name;
        let first = first_height(app, name, checkpoint.next).await?;
        reset(app, name, first).await?;
        message += &format!("{name} is folded from it and begins anew at height {first}\n");
    }
    for told in ask_again_behind(config, app, worker, range).await? {
        message += &told;
        message.push('\n');
    }
    Ok(message)
}

/// Lets the enrichers behind a mapper ask again about what a range names that it makes again. What each of them does, a line each.
pub async fn ask_again_behind(
    config: &Config,
    app: &dyn AppStore,
    mapper: &str,
    range: HeightRange,
) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    for follower in workers(config)? {
        if follower.kind == Kind::Enricher && follower.service.upstreams.contains(&mapper) {
            told.extend(ask_again(config, app, follower.service, range).await?);
        }
    }
    Ok(told)
}

/// Lets an enricher ask again about what a range names whose rows are made again. It waits for them by itself. `None`: it never came to these heights.
async fn ask_again(
    config: &Config,
    app: &dyn AppStore,
    service: &'static ServiceInfo,
    range: HeightRange,
) -> anyhow::Result<Option<String>> {
    let name = service.name;
    let Some(checkpoint) = app.snapshot().await?.checkpoint(name).cloned() else { return Ok(None) };
    let first = first_height(app, name, checkpoint.next).await?;
    let range = range.intersect(HeightRange::new(first, checkpoint.next));
    if range.is_empty() {
        // It comes to these heights yet.
        return Ok(None);
    }
    let heights = derive::options(config).range_of(name);
    match app.request_reindex(name, service.version, range, heights).await {
        Ok(_) => {
            Ok(Some(format!("{name} asks again about what heights {range} name, once they are made again")))
        }
        Err(StoreError::Invalid(why)) => Ok(Some(format!(
            "{name} asks about some of these heights again already ({why}); when it has: cairn reindex --worker {name} --from {} --to {}",
            range.start(),
            range.end().saturating_sub(1)
        ))),
        Err(error) => Err(error.into()),
    }
}

/// Whether single ranges of a worker can be made again; else it begins anew from its first block.
pub fn takes_ranges(config: &Config, worker: &str) -> anyhow::Result<bool> {
    Ok(find(&workers(config)?, worker)?.kind != Kind::Folder)
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
}

/// The workers that the configuration enables. Those that ask a node count whether this command is told of one or not: others do the work.
fn workers(config: &Config) -> anyhow::Result<Vec<Worker>> {
    let mut workers: Vec<Worker> = Vec::new();
    for processor in derive::processors(config, None)? {
        let kind = match processor {
            Processor::Mapper(_) => Kind::Mapper,
            Processor::Folder(_) => Kind::Folder,
            Processor::Enricher(_) => Kind::Enricher,
        };
        workers.push(Worker { service: processor.service(), kind });
    }
    for service in config.chain().registrations().iter().map(|registration| registration.service) {
        let asks = |table: &&TableDef| matches!(table.class, TableClass::Answers | TableClass::Content);
        let is_known = workers.iter().any(|worker| worker.service.name == service.name);
        let is_disabled = config.derive.disabled.iter().any(|name| name == service.name);
        if !is_known && !is_disabled && service.tables.iter().all(asks) {
            workers.push(Worker { service, kind: Kind::Enricher });
        }
    }
    Ok(workers)
}

fn find<'a>(workers: &'a [Worker], name: &str) -> anyhow::Result<&'a Worker> {
    workers.iter().find(|worker| worker.service.name == name).with_context(|| {
        let known: Vec<_> = workers.iter().map(|worker| worker.service.name).collect();
        format!("there is no worker `{name}`; there are {}", known.join(", "))
    })
}

/// The first height that a worker has a lease on.
pub async fn first_height(app: &dyn AppStore, worker: &str, otherwise: Height) -> anyhow::Result<Height> {
    let filter = cairn_store::derived::LeaseFilter {
        service: Some(worker.into()),
        limit: 100_000,
        ..Default::default()
    };
    let leases = app.snapshot().await?.leases(&filter).await?;
    Ok(leases.iter().map(|lease| lease.range.start()).min().unwrap_or(otherwise))
}

/// Lets a worker begin anew.
pub async fn reset(app: &dyn AppStore, worker: &str, first: Height) -> anyhow::Result<()> {
    while app.reset_step(worker, RESET_ROWS).await? {}
    app.register(worker, first).await?;
    Ok(())
}

#[cfg(test)]
#[path = "../../../backends/tests/support/pg.rs"]
mod pg;

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

    async fn enrichers_ask_again(config: Config) {
        let app = derive::open_for_command(&config).await.expect("opens");
        app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
        for service in ["token_worker", "token_metadata_worker", "nft_metadata_worker"] {
            done(&*app, service).await;
        }
        let range = |from, to| HeightRange::new(Height(from), Height(to));
        let of = |service: &str, range| (service.to_owned(), range);
        let ask = async |worker: &str, range| request(&config, &*app, worker, range).await;

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
