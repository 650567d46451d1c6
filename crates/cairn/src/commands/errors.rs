//! `cairn errors`: what could not be indexed.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_store::derived::{ErrorFilter, ErrorLog, LoggedError};

use crate::cli::{ErrorsArgs, ErrorsCommand};
use crate::commands::reindex;
use crate::config::{self, Overrides};
use crate::stores::{self, Access};
use crate::{derive, output};

/// Lists, closes or tries again.
pub async fn errors(file: Option<&Path>, args: &ErrorsArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    match &args.command {
        ErrorsCommand::List { worker, resolved, height, limit } => {
            let raw = stores::open_raw(&config, Access::Read).await?;
            let filter = ErrorFilter {
                service: worker.clone(),
                resolved: *resolved,
                height: height.map(Height),
                after_id: 0,
                limit: *limit,
            };
            let errors = ErrorLog::list(&*raw, &filter).await?;
            let open = raw.count_unresolved().await?;
            Ok(output::print(&table(&errors, open)?)?)
        }
        ErrorsCommand::Resolve { ids } => {
            let raw = stores::open_raw(&config, Access::Write).await?;
            let closed = raw.resolve(ids).await?;
            Ok(output::print(&format!("{closed} closed\n"))?)
        }
        ErrorsCommand::Retry { id } => {
            let raw = stores::open_raw(&config, Access::Write).await?;
            let filter = ErrorFilter {
                resolved: true,
                after_id: id.saturating_sub(1),
                limit: 1,
                ..ErrorFilter::default()
            };
            let found = ErrorLog::list(&*raw, &filter).await?.into_iter().find(|error| error.id == *id);
            let Some(found) = found else { bail!("there is no error {id}") };
            let app = derive::open_for_command(&config).await?;
            let range = HeightRange::one(found.error.height);
            let message = reindex::request(&config, &*app, &found.error.service, Some(range))
                .await
                .with_context(|| format!("error {id}, height {}", found.error.height))?;
            raw.resolve(&[*id]).await?;
            Ok(output::print(&message)?)
        }
    }
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
        writeln!(out, "         {}", error.message.lines().next().unwrap_or_default())?;
    }
    writeln!(out, "{open} open")?;
    Ok(out)
}
