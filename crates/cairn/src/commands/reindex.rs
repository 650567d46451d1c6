//! `cairn reindex`: makes derived rows again while everything else goes on.
//!
//! Rows that stand by themselves (events) are replaced chunk by chunk, each in one transaction, and the checkpoint stays where it is; state that was folded
//! from them is folded anew from its beginning. What a node was asked is asked anew.

use std::path::Path;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_pipeline::derive::processor::Processor;

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
    let processors = derive::processors(config, None)?;
    let processor = find(&processors, worker)?;
    let snapshot = app.snapshot().await?;
    let checkpoint =
        snapshot.checkpoint(worker).with_context(|| format!("{worker} has never run here"))?.clone();
    drop(snapshot);
    if !matches!(processor, Processor::Mapper(_)) {
        if range.is_some() {
            bail!("{worker} folds or asks from the beginning: leave --from and --to out, and it begins anew");
        }
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
    let leases = app.request_reindex(worker, processor.service().version, range, heights).await?;
    let mut message = format!("{worker}: heights {range} are made again, in {leases} ranges\n");
    for follower in &processors {
        let service = follower.service();
        if service.upstreams.contains(&worker) && matches!(follower, Processor::Folder(_)) {
            let first = first_height(app, service.name, checkpoint.next).await?;
            reset(app, service.name, first).await?;
            message += &format!("{} is folded from it and begins anew at height {first}\n", service.name);
        }
    }
    Ok(message)
}

/// Whether single ranges of a worker can be made again; else it begins anew from its first block.
pub fn takes_ranges(config: &Config, worker: &str) -> anyhow::Result<bool> {
    let processors = derive::processors(config, None)?;
    Ok(matches!(find(&processors, worker)?, Processor::Mapper(_)))
}

fn find<'a>(processors: &'a [Processor], worker: &str) -> anyhow::Result<&'a Processor> {
    processors.iter().find(|processor| processor.service().name == worker).with_context(|| {
        let known: Vec<_> = processors.iter().map(|processor| processor.service().name).collect();
        format!("there is no worker `{worker}`; there are {}", known.join(", "))
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
