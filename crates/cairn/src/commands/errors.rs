//! `cairn errors`: what could not be indexed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use cairn_core::Height;
use cairn_pipeline::ingest::RAW_SERVICE;
use cairn_store::derived::{ErrorFilter, ErrorLog, LoggedError};

use crate::cli::{ErrorsArgs, ErrorsCommand};
use crate::config::{self, Overrides};
use crate::operators::{self, Operation};
use crate::output::more;
use crate::repair::evm_gaps::REPAIR_SERVICE;
use crate::stores::{self, Access, RawStore};
use crate::{derive, output};

/// Bytes of a payload in one line.
const DATA_LINE_BYTES: usize = 32;

/// Lists, shows, closes or tries again.
pub async fn errors(file: Option<&Path>, args: &ErrorsArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    match &args.command {
        ErrorsCommand::List { worker, resolved, height, limit, after } => {
            let raw = stores::open_raw(&config, Access::Read).await?;
            let filter = ErrorFilter {
                service: worker.clone(),
                resolved: *resolved,
                height: height.map(Height),
                after_id: *after,
                limit: *limit,
            };
            let errors = ErrorLog::list(&*raw, &filter).await?;
            let is_other = |name: &&str| errors.is_empty() && ![RAW_SERVICE, REPAIR_SERVICE].contains(name);
            if let Some(worker) = worker.as_deref().filter(is_other) {
                derive::demand_worker(&config, worker).map_err(|error| {
                    anyhow::anyhow!("{error}, and `{RAW_SERVICE}` for what is not stored, `{REPAIR_SERVICE}` for blocks that were replaced")
                })?;
            }
            let open = raw.count_unresolved().await?;
            let more = more(errors.last().map(|logged| logged.id), errors.len(), *limit);
            Ok(output::print(&(table(&errors, open)? + &more))?)
        }
        ErrorsCommand::Resolve { ids } => {
            operators::carry_out(&config, Operation::ResolveErrors { ids: ids.clone() }).await
        }
        ErrorsCommand::Show { id } => {
            let raw = stores::open_raw(&config, Access::Read).await?;
            Ok(output::print(&whole(&find(&*raw, *id).await?)?)?)
        }
        ErrorsCommand::Retry { id, yes } => {
            operators::carry_out(&config, Operation::RetryError { id: *id, yes: *yes }).await
        }
    }
}

/// Closes errors; says how many. Where one of them is not there, none is closed: a number may be mistyped.
pub async fn resolve(raw: &dyn RawStore, ids: &[u64]) -> anyhow::Result<String> {
    let ids: BTreeSet<u64> = ids.iter().copied().collect();
    for id in &ids {
        find(raw, *id).await?;
    }
    let ids: Vec<u64> = ids.into_iter().collect();
    let closed = raw.resolve(&ids).await?;
    Ok(match (ids.len() as u64).saturating_sub(closed) {
        0 => format!("{closed} closed\n"),
        before => format!("{closed} closed; closed before: {before}\n"),
    })
}

/// An error by its number.
pub async fn find(raw: &dyn RawStore, id: u64) -> anyhow::Result<LoggedError> {
    let filter =
        ErrorFilter { resolved: true, after_id: id.saturating_sub(1), limit: 1, ..ErrorFilter::default() };
    let found = ErrorLog::list(raw, &filter).await?.into_iter().find(|error| error.id == id);
    found.with_context(|| format!("there is no error {id}; `cairn errors list --resolved` shows all"))
}

/// All that is known of one. What a stranger wrote is escaped.
fn whole(logged: &LoggedError) -> anyhow::Result<String> {
    let error = &logged.error;
    let mut out = String::new();
    writeln!(out, "id           {}", logged.id)?;
    writeln!(out, "state        {}", if logged.resolved { "closed" } else { "open" })?;
    writeln!(out, "severity     {}", error.severity.as_str())?;
    writeln!(out, "worker       {}", error.service)?;
    writeln!(out, "height       {}", error.height)?;
    writeln!(out, "block        {}", error.block_id)?;
    writeln!(out, "transaction  {}", error.transaction_id)?;
    writeln!(out, "since        {} ms since 1970", logged.created_at_ms)?;
    writeln!(out, "message      {}", error.message.escape_debug())?;
    if let Some(raw_ref) = &error.raw_ref {
        writeln!(out, "whole data   {}", raw_ref.escape_debug())?;
    }
    writeln!(out, "data         {} bytes", error.raw_data.len())?;
    for line in error.raw_data.chunks(DATA_LINE_BYTES) {
        writeln!(
            out,
            "  {:<width$}  {}",
            hex::encode(line),
            line.escape_ascii(),
            width = 2 * DATA_LINE_BYTES
        )?;
    }
    Ok(out)
}

fn table(errors: &[LoggedError], open: u64) -> anyhow::Result<String> {
    let mut out = String::new();
    for logged in errors {
        let error = &logged.error;
        let state = if logged.resolved { "closed" } else { "open" };
        writeln!(
            out,
            "{:>8} {:<5} {:<6} {:<22} height {} {}",
            logged.id,
            error.severity.as_str(),
            state,
            error.service,
            error.height,
            error.transaction_id
        )?;
        writeln!(out, "         {}", error.message.lines().next().unwrap_or_default().escape_debug())?;
    }
    writeln!(out, "{open} open")?;
    Ok(out)
}
