//! `cairn config`: what is in force.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;

use crate::cli::ConfigArgs;
use crate::config::{self, Overrides};

/// Prints the configuration as TOML, secrets hidden.
pub fn config(file: Option<&Path>, args: &ConfigArgs) -> anyhow::Result<()> {
    let overrides =
        Overrides::default().data(&args.data).chain(&args.chain).ingest(&args.ingest).listen(&args.listen);
    let config = config::load(file, &overrides)?;
    let mut text = String::new();
    if let Some(role) = args.role.as_ref().and_then(ValueEnum::to_possible_value) {
        text.push_str(&format!("# --role {}\n", role.get_name()));
    }
    if args.exit_after_head {
        text.push_str("# --exit-after-head\n");
    }
    text +=
        &toml::to_string_pretty(&config.without_secrets()).context("the configuration can't be printed")?;
    Ok(crate::output::print(&text)?)
}
