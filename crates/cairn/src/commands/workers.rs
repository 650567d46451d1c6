//! `cairn workers`: the workers of derived tables.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::bail;

use crate::cli::{WorkersArgs, WorkersCommand};
use crate::config::{self, Config, Overrides};
use crate::operators::{self, Operation};
use crate::stores::{self, Access, AppStore};
use crate::{derive, output};

/// Lists, pauses or resumes.
pub async fn workers(file: Option<&Path>, args: &WorkersArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    match &args.command {
        WorkersCommand::List => list(&config).await,
        WorkersCommand::Pause { worker } => {
            operators::carry_out(&config, Operation::PauseWorker { worker: worker.clone() }).await
        }
        WorkersCommand::Resume { worker } => {
            operators::carry_out(&config, Operation::ResumeWorker { worker: worker.clone() }).await
        }
    }
}

async fn list(config: &Config) -> anyhow::Result<()> {
    let app = stores::open_app(config, derive::catalog(config)?, Access::Read).await?;
    let snapshot = app.snapshot().await?;
    let mut out = String::new();
    writeln!(out, "{:<24} {:>14}  last block", "worker", "last height")?;
    for checkpoint in snapshot.checkpoints() {
        let height = checkpoint.last_height().map_or("none yet".into(), |height| height.to_string());
        let id = checkpoint.last_id.map_or(String::new(), |id| id.to_string());
        let paused = if checkpoint.paused { "  paused" } else { "" };
        let anew = snapshot.being_rebuilt(&checkpoint.service).and_then(|rebuild| rebuild.until.prev());
        let anew = anew.map_or(String::new(), |until| format!("  anew, to {until}"));
        writeln!(out, "{:<24} {height:>14}  {id}{paused}{anew}", checkpoint.service)?;
    }
    for rebuild in snapshot.rebuilds().iter().filter(|rebuild| rebuild.is_clearing) {
        writeln!(
            out,
            "{:<24} {:>14}  being reset, begins anew at {}",
            rebuild.service, "none", rebuild.first
        )?;
    }
    let forks = snapshot.forks();
    writeln!(out, "reorgs applied: {}, begun: {}", forks.applied.id, forks.begun.id)?;
    Ok(output::print(&out)?)
}

/// Lets a worker claim nothing more, or go on; what there is to say.
pub async fn pause(app: &dyn AppStore, worker: &str, paused: bool) -> anyhow::Result<String> {
    let snapshot = app.snapshot().await?;
    if snapshot.checkpoint(worker).is_none() {
        if let Some(rebuild) = snapshot.rebuilds().iter().find(|rebuild| rebuild.service == worker) {
            bail!(
                "{worker} is being reset: what it made before is still being deleted, and it claims nothing until then. It begins anew {} at height {}; ask again when \
                 `cairn workers list` shows it so",
                if rebuild.paused { "paused" } else { "and goes on" },
                rebuild.first
            );
        }
        let known: Vec<_> =
            snapshot.checkpoints().iter().map(|checkpoint| checkpoint.service.as_str()).collect();
        bail!("there is no worker `{worker}`; there are {}", known.join(", "));
    }
    drop(snapshot);
    app.set_paused(worker, paused).await?;
    Ok(format!("{worker} {}\n", if paused { "is paused" } else { "goes on" }))
}
