//! `cairn config`: what is in force.

use std::path::Path;

use anyhow::Context;

use crate::cli::ConfigArgs;
use crate::config::{self, Overrides};

/// Prints the configuration as TOML, secrets hidden.
pub fn config(file: Option<&Path>, args: &ConfigArgs) -> anyhow::Result<()> {
    let overrides =
        Overrides::default().data(&args.data).chain(&args.chain).ingest(&args.ingest).listen(&args.listen);
    let config = config::load(file, &overrides)?;
    let text =
        toml::to_string_pretty(&config.without_secrets()).context("the configuration can't be printed")?;
    Ok(crate::output::print(&text)?)
}
