//! `cairn repair`: holds what is stored against itself and mends it. Fails when something could not be mended, and in another way when not everything could be looked at.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use cairn_store::RawReader;

use crate::cli::RepairArgs;
use crate::commands::verify::parse_range;
use crate::config::{self, Overrides};
use crate::progress::Bar;
use crate::repair::evm_gaps::{Bounds, EvmGaps};
use crate::repair::fetch::Fetch;
use crate::repair::nightly::{compare, sample};
use crate::repair::state::Part;
use crate::repair::{Incomplete, Outcome, raw};
use crate::stores::{self, Access};
use crate::{derive, output};

/// Repairs the range, or everything.
pub async fn repair(file: Option<&Path>, args: &RepairArgs) -> anyhow::Result<()> {
    let overrides = Overrides::default().data(&args.data).chain(&args.chain);
    let config = config::load_for_archive(file, &overrides).await?;
    let asked = args.range.as_deref().map(parse_range).transpose()?;
    if config.raw.url.is_none() && !config.data_dir.is_dir() {
        bail!("there is no archive in {}", config.data_dir.display());
    }
    let store = stores::open_raw(&config, Access::Write).await?;
    let reader: Arc<dyn RawReader> = store.clone();
    let head = reader.snapshot().await?.head().clone();
    let stored = head.range();
    if stored.is_empty() {
        return Ok(output::print("the archive is empty: nothing to repair\n")?);
    }
    let range = asked.map_or(stored, |range| range.intersect(stored));
    if range.is_empty() {
        bail!("none of these heights is stored; this archive holds {stored}");
    }
    let full = args.sample.map_or(range, |heights| sample(range, heights));
    let fetch = Fetch::configured(&config, head.info.chain_id).await?;
    let bar = Bar::new(full.len(), "repairing");
    let first = full.start();
    let mut report =
        raw::repair(&store, config.chain(), &fetch, range, full, |done| bar.set(done.since(first) + 1))
            .await?;
    bar.finish();
    if config.derive.enabled && !args.raw_only {
        let app = derive::open_for_command(&config).await?;
        let bounds = if args.sample.is_some() { Bounds::PART } else { Bounds::WHOLE };
        // Before rows are compared: it also lets begin anew what was folded from them.
        let gaps = EvmGaps { config: &config, store: &store, app: &*app, bounds };
        report.add(gaps.repair(asked, Some(&fetch)).await);
        // State is folded from all heights: a range of them says nothing about it.
        let state = match (&asked, args.sample) {
            (Some(_), _) => None,
            (None, Some(_)) => Some(Part::Turn(rand::random())),
            (None, None) => Some(Part::All),
        };
        report.add(compare(&config, &reader, &*app, full, state, args.refold).await);
    }
    output::print(&report.to_string())?;
    match report.outcome() {
        Outcome::Clean | Outcome::Mended => Ok(()),
        Outcome::Incomplete => Err(Incomplete(report.not_compared.count()).into()),
        Outcome::Unmended => bail!("{} problems could not be mended", report.unmended.count()),
    }
}
