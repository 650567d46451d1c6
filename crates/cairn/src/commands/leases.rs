//! `cairn leases`: ranges of derived work, and of blocks that are filled ahead of the head.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use cairn_core::Height;
use cairn_pipeline::ingest::RAW_SERVICE;
use cairn_store::derived::{LeaseFilter, LeaseStatus, WorkerLease};
use cairn_store::{RawLease, RawLeaseState};

use crate::cli::{LeaseId, LeasesArgs, LeasesCommand};
use crate::config::{self, Config, Overrides};
use crate::operators::{self, Operation, Stores};
use crate::output::more;
use crate::stores::{self, Access};
use crate::{derive, output};

/// The name under which ranges of blocks are listed.
const RAW: &str = RAW_SERVICE;

/// Lists, frees or takes away.
pub async fn leases(file: Option<&Path>, args: &LeasesArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    match &args.command {
        LeasesCommand::List { worker, status, dead, limit, after } => {
            let filter = LeaseFilter {
                service: worker.clone(),
                status: status.as_deref().and_then(LeaseStatus::parse),
                dead: *dead,
                after_id: *after,
                limit: *limit,
            };
            Ok(output::print(&list(&config, &filter).await?)?)
        }
        LeasesCommand::Retry { id } => operators::carry_out(&config, Operation::RetryLease { id: *id }).await,
        LeasesCommand::Release { id } => {
            operators::carry_out(&config, Operation::ReleaseLease { id: *id }).await
        }
    }
}

/// Frees one that failed; shows it.
pub async fn retry(stores: &Stores, id: LeaseId) -> anyhow::Result<String> {
    let found = match id {
        LeaseId::Raw(start) => {
            stores.raw()?.retry_range(Height(start)).await?.map(|lease| Line::of_raw(&lease))
        }
        LeaseId::Derived(id) => stores.app()?.retry_lease(id).await?.map(|lease| Line::of_derived(&lease)),
    };
    tell(found, id, "FAILED")
}

/// Takes one from its holder; shows it.
pub async fn release(stores: &Stores, id: LeaseId) -> anyhow::Result<String> {
    let found = match id {
        LeaseId::Raw(start) => {
            stores.raw()?.release_range(Height(start)).await?.map(|lease| Line::of_raw(&lease))
        }
        LeaseId::Derived(id) => stores.app()?.release_lease(id).await?.map(|lease| Line::of_derived(&lease)),
    };
    tell(found, id, "ACTIVE")
}

fn tell(found: Option<Line>, id: LeaseId, demanded: &str) -> anyhow::Result<String> {
    match found {
        Some(line) => table(&[line]),
        None => bail!("lease {id} is not {demanded}, or not there; `cairn leases list` shows them"),
    }
}

/// Ranges of blocks, which are never many, on the first page; then those of derived work.
async fn list(config: &Config, filter: &LeaseFilter) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    if filter.after_id == 0 && filter.service.as_deref().is_none_or(|service| service == RAW) {
        let raw = stores::open_raw(config, Access::Read).await?;
        let leases = raw.snapshot().await?.raw_leases().await?;
        let wanted = leases.iter().filter(|lease| {
            (!filter.dead || lease.is_dead())
                && filter.status.is_none_or(|status| status.as_str() == state(lease.state))
        });
        lines.extend(wanted.map(Line::of_raw));
    }
    let mut rest = String::new();
    if filter.service.as_deref() != Some(RAW) {
        let app = stores::open_app(config, derive::catalog(config)?, Access::Read).await?;
        let leases = app.snapshot().await?.leases(filter).await?;
        rest = more(leases.last().map(|lease| lease.id), leases.len(), filter.limit);
        lines.extend(leases.iter().map(Line::of_derived));
    }
    if let Some(service) = filter.service.as_deref().filter(|service| lines.is_empty() && *service != RAW) {
        derive::demand_worker(config, service)
            .map_err(|error| anyhow::anyhow!("{error}, and `{RAW}` for ranges of blocks"))?;
    }
    Ok(table(&lines)? + &rest)
}

const fn state(state: RawLeaseState) -> &'static str {
    match state {
        RawLeaseState::Active => "ACTIVE",
        RawLeaseState::Completed => "COMPLETED",
        RawLeaseState::Failed => "FAILED",
    }
}

/// What is shown of one.
struct Line {
    id: String,
    worker: String,
    kind: &'static str,
    status: String,
    range: cairn_core::HeightRange,
    done_to: Height,
    attempt: u32,
    owner: String,
    last_error: String,
}

impl Line {
    fn of_derived(lease: &WorkerLease) -> Line {
        Line {
            id: lease.id.to_string(),
            worker: lease.service.clone(),
            kind: lease.kind.as_str(),
            status: if lease.is_dead() { "DEAD".into() } else { lease.status.to_string() },
            range: lease.range,
            done_to: lease.done_to,
            attempt: lease.attempt,
            owner: lease.owner.clone(),
            last_error: lease.last_error.clone(),
        }
    }

    fn of_raw(lease: &RawLease) -> Line {
        Line {
            id: LeaseId::Raw(lease.range.start().0).to_string(),
            worker: RAW.into(),
            kind: "fill",
            status: if lease.is_dead() { "DEAD".into() } else { state(lease.state).into() },
            range: lease.range,
            done_to: lease.done_to,
            attempt: lease.attempt,
            owner: lease.owner.clone(),
            last_error: lease.last_error.clone(),
        }
    }
}

fn table(lines: &[Line]) -> anyhow::Result<String> {
    let mut out = String::new();
    if lines.is_empty() {
        return Ok("no leases\n".into());
    }
    writeln!(
        out,
        "{:>8} {:<22} {:<8} {:<10} {:>12} {:>12} {:>12} {:>7}  owner",
        "id", "worker", "kind", "status", "from", "to", "done to", "attempt"
    )
    .context("can't be shown")?;
    for line in lines {
        writeln!(
            out,
            "{:>8} {:<22} {:<8} {:<10} {:>12} {:>12} {:>12} {:>7}  {}",
            line.id,
            line.worker,
            line.kind,
            line.status,
            line.range.start(),
            line.range.end(),
            line.done_to,
            line.attempt,
            line.owner
        )?;
        if !line.last_error.is_empty() {
            writeln!(out, "         {}", line.last_error.lines().next().unwrap_or_default())?;
        }
    }
    Ok(out)
}
