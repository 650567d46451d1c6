//! `cairn migrate`: makes the schemas of both databases, or brings them up to date. Opening a store for writing does the same; this does
//! nothing else.

use std::path::Path;

use crate::cli::MigrateArgs;
use crate::config::{self, Overrides, hide_url};
use crate::stores::{self, Access};
use crate::{derive, output};

/// Opens each database once for writing.
pub async fn migrate(file: Option<&Path>, args: &MigrateArgs) -> anyhow::Result<()> {
    let config = config::load(file, &Overrides::default().data(&args.data))?;
    let place = |url: &Option<String>| match url {
        Some(url) => hide_url(url),
        None => config.data_dir.display().to_string(),
    };
    stores::open_raw(&config, Access::Write).await?;
    output::print(&format!("raw store {} is up to date\n", place(&config.raw.url)))?;
    stores::open_app(&config, derive::catalog()?, Access::Write).await?;
    output::print(&format!("app store {} is up to date\n", place(&config.app.url)))?;
    Ok(())
}
