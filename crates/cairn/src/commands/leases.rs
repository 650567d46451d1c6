//! `cairn leases`: ranges of derived work, and of blocks that are filled ahead of the head.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_pipeline::ingest::RAW_SERVICE;
use cairn_store::derived::{LeaseFilter, LeaseStatus, WorkerLease};
use cairn_store::{RawLease, RawLeaseState};

use crate::cli::{LeaseId, LeasesArgs, LeasesCommand};
use crate::commands::reindex::{self, RESET_ROWS, Stay};
use crate::config::{self, Config, Overrides};
use crate::operators::{self, Operation, Stores};
use crate::output::more;
use crate::stores::{self, Access, AppStore};
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
        LeasesCommand::Reset { worker, from } => {
            let operation = Operation::ResetLeases { worker: worker.clone(), from: *from };
            operators::carry_out(&config, operation).await
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

/// Takes back what a worker did from a height above its checkpoint on; what there is to say. Who is cut short is told how to go on.
pub async fn reset(
    config: &Config,
    app: &dyn AppStore,
    worker: &str,
    from: Height,
    stay: &Stay,
) -> anyhow::Result<String> {
    if !reindex::takes_ranges(config, worker)? {
        bail!("{worker} folds from the beginning: `cairn reindex --worker {worker}` lets it begin anew");
    }
    let (mut heights, mut ranges, mut rows): (Option<HeightRange>, u64, u64) = (None, 0, 0);
    let mut is_left = false;
    while !is_left {
        let taken = match (app.take_back_step(worker, from, RESET_ROWS).await, heights) {
            (Ok(Some(taken)), _) => taken,
            (Ok(None), _) => break,
            (Err(error), None) => return Err(error.into()),
            (Err(error), Some(heights)) => {
                return Err(anyhow::Error::from(error).context(format!(
                    "{worker}: heights {heights} are taken back so far; ask again, which goes on"
                )));
            }
        };
        heights = Some(heights.map_or(taken.heights, |before| {
            HeightRange::new(before.start(), before.end().max(taken.heights.end()))
        }));
        (ranges, rows) = (ranges + u64::from(taken.is_whole), rows + taken.rows);
        is_left = stay.is_over();
    }
    let Some(heights) = heights else {
        bail!(
            "{worker} has no range that begins at height {from} or above; `cairn leases list --worker {worker}` shows them"
        )
    };
    let more = match is_left {
        true => "; there may be more above: ask again, which goes on\n",
        false => ", to be derived anew\n",
    };
    Ok(format!("{worker}: heights {heights} are taken back ({ranges} ranges, {rows} rows){more}"))
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
            // An archive of before keeps the errors of what is done.
            last_error: match lease.status {
                LeaseStatus::Completed => String::new(),
                _ => lease.last_error.clone(),
            },
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
