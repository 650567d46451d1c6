//! `cairn leases`: ranges of derived work.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use cairn_store::derived::{LeaseFilter, LeaseStatus, WorkerLease};

use crate::cli::{LeasesArgs, LeasesCommand};
use crate::config::{self, Overrides};
use crate::output::more;
use crate::stores::{self, Access};
use crate::{derive, output};

/// Lists, frees or takes away.
pub async fn leases(file: Option<&Path>, args: &LeasesArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    match &args.command {
        LeasesCommand::List { worker, status, dead, limit, after } => {
            let app = stores::open_app(&config, derive::catalog(&config)?, Access::Read).await?;
            let filter = LeaseFilter {
                service: worker.clone(),
                status: status.as_deref().and_then(LeaseStatus::parse),
                dead: *dead,
                after_id: *after,
                limit: *limit,
            };
            let leases = app.snapshot().await?.leases(&filter).await?;
            Ok(output::print(
                &(table(&leases)? + &more(leases.last().map(|lease| lease.id), leases.len(), *limit)),
            )?)
        }
        LeasesCommand::Retry { id } => {
            let app = derive::open_for_command(&config).await?;
            match app.retry_lease(*id).await? {
                Some(lease) => Ok(output::print(&table(&[lease])?)?),
                None => bail!("lease {id} is not FAILED, or not there; `cairn leases list` shows them"),
            }
        }
        LeasesCommand::Release { id } => {
            let app = derive::open_for_command(&config).await?;
            match app.release_lease(*id).await? {
                Some(lease) => Ok(output::print(&table(&[lease])?)?),
                None => bail!("lease {id} is not ACTIVE, or not there; `cairn leases list` shows them"),
            }
        }
    }
}

fn table(leases: &[WorkerLease]) -> anyhow::Result<String> {
    let mut out = String::new();
    if leases.is_empty() {
        return Ok("no leases\n".into());
    }
    writeln!(
        out,
        "{:>8} {:<22} {:<8} {:<10} {:>12} {:>12} {:>12} {:>7}  owner",
        "id", "worker", "kind", "status", "from", "to", "done to", "attempt"
    )
    .context("can't be shown")?;
    for lease in leases {
        let status = if lease.is_dead() { "DEAD".into() } else { lease.status.to_string() };
        writeln!(
            out,
            "{:>8} {:<22} {:<8} {:<10} {:>12} {:>12} {:>12} {:>7}  {}",
            lease.id,
            lease.service,
            lease.kind.as_str(),
            status,
            lease.range.start(),
            lease.range.end(),
            lease.done_to,
            lease.attempt,
            lease.owner
        )?;
        if !lease.last_error.is_empty() {
            writeln!(out, "         {}", lease.last_error.lines().next().unwrap_or_default())?;
        }
    }
    Ok(out)
}
