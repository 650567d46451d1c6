//! `cairn status`: what an archive holds.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use cairn_core::{Clock, HeightRange, Parts, SystemClock};
use cairn_pipeline::ingest::RAW_SERVICE;
use cairn_store::derived::{DerivedCheckpoint, ErrorFilter, ErrorLog, LeaseFilter, Severity, WorkerLease};
use cairn_store::{HeadRow, RawLease, ReorgEntry, StoreError, StoreSizes};
use serde_json::{Value, json};

use crate::cli::StatusArgs;
use crate::config::{self, Config, Overrides};
use crate::stores::{self, Access};
use crate::{derive, output, watch};

/// How many reorgs are listed.
const LISTED_REORGS: u64 = 10;
/// How many errors and dead ranges are listed.
const LISTED_ERRORS: usize = 20;

/// Prints head, finality, gaps, reorgs, tables, errors and sizes.
pub async fn status(file: Option<&Path>, args: &StatusArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let store = stores::open_raw(&config, Access::Read).await?;
    let snapshot = match store.snapshot().await {
        // Made, and nobody has ingested into it.
        Err(StoreError::Invalid(_)) => bail!(
            "the archive in {} holds no block yet: `cairn run` stores the first one",
            config.archive_place()
        ),
        snapshot => snapshot?,
    };
    let head = snapshot.head().clone();
    let after = head.newest_reorg.id.saturating_sub(LISTED_REORGS);
    let reorgs = snapshot.reorgs(after, LISTED_REORGS as usize).await?;
    let leases = snapshot.raw_leases().await?;
    let tip_age_ms = match head.tip {
        Some(tip) => {
            let block = snapshot.block(tip.height, Parts::empty()).await?;
            block.map(|block| SystemClock.now_ms().saturating_sub(block.facts.timestamp_ms))
        }
        None => None,
    };
    drop(snapshot);
    let filter =
        ErrorFilter { service: Some(RAW_SERVICE.into()), limit: LISTED_ERRORS, ..ErrorFilter::default() };
    let of_raw = ErrorLog::list(&*store, &filter).await?;
    let fatal = of_raw.into_iter().filter(|logged| logged.error.severity == Severity::Fatal);
    let status = Status {
        place: config.archive_place(),
        gaps: gaps(&head, &leases),
        errors_open: store.count_unresolved().await?,
        fatal: fatal.map(|logged| logged.error.message).collect(),
        // Sizes may walk tables: a snapshot of their own, so that nothing above is cut short by it.
        sizes: store.snapshot().await?.sizes().await?,
        tables: tables(&config, &head).await,
        head,
        leases,
        reorgs,
        tip_age_ms,
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&status.as_json())? + "\n",
        false => status.as_text()?,
    };
    Ok(output::print(&text)?)
}

/// All that is said of an archive.
struct Status {
    place: String,
    head: HeadRow,
    gaps: Vec<HeightRange>,
    leases: Vec<RawLease>,
    reorgs: Vec<ReorgEntry>,
    tip_age_ms: Option<u64>,
    errors_open: u64,
    /// Of ingestion: what it halted at, and what it could not store.
    fatal: Vec<String>,
    sizes: StoreSizes,
    /// The derived tables, or why nothing can be said of them.
    tables: Result<Tables, String>,
}

/// The derived tables.
struct Tables {
    workers: Vec<DerivedCheckpoint>,
    dead: Vec<WorkerLease>,
    bytes: u64,
    unfit: Option<String>,
}

async fn tables(config: &Config, head: &HeadRow) -> Result<Tables, String> {
    let tables = async {
        let app = stores::open_app(config, derive::catalog(config)?, Access::Read).await?;
        let snapshot = app.snapshot().await?;
        let filter = LeaseFilter { dead: true, limit: LISTED_ERRORS, ..LeaseFilter::default() };
        let bytes = match &config.app.url {
            // SQLite counts no bytes for each table; the file has a size.
            // What was committed lately is in the second file.
            None => ["app.sqlite", "app.sqlite-wal"]
                .iter()
                .filter_map(|name| std::fs::metadata(config.data_dir.join(name)).ok())
                .map(|file| file.len())
                .sum(),
            Some(_) => snapshot.sizes().await?.iter().map(|(_, _, bytes)| bytes).sum(),
        };
        anyhow::Ok(Tables {
            workers: snapshot.checkpoints().to_vec(),
            dead: snapshot.leases(&filter).await?,
            bytes,
            unfit: watch::unfit(head, &*snapshot),
        })
    };
    tables.await.map_err(|error| format!("{error:#}"))
}

/// How many heights a worker is below the archive's tip.
fn lag(head: &HeadRow, own: &DerivedCheckpoint) -> u64 {
    head.tip.map_or(0, |tip| tip.height.next().since(own.next))
}

/// The heights between the tip and what was filled ahead of it that nobody has filled yet.
fn gaps(head: &HeadRow, leases: &[RawLease]) -> Vec<HeightRange> {
    let Some(mut at) = head.tip.map(|tip| tip.height.next()) else { return Vec::new() };
    let mut gaps = Vec::new();
    for lease in leases {
        let filled = HeightRange::new(lease.range.start(), lease.done_to);
        if filled.is_empty() {
            continue;
        }
        if filled.start() > at {
            gaps.push(HeightRange::new(at, filled.start()));
        }
        at = at.max(filled.end());
    }
    gaps
}

impl Status {
    fn as_json(&self) -> Value {
        let Status { head, gaps, leases, reorgs, sizes, .. } = self;
        let tables = self.tables.as_ref();
        let block =
            |block: Option<cairn_core::BlockRef>| block.map(|b| json!({"height": b.height, "id": b.id}));
        json!({
            "chain_id": head.info.chain_id,
            "chain": head.info.chain_id.to_string(),
            "first": head.first,
            "checkpoint": block(head.tip),
            "safe": block(head.safe),
            "finalized": block(head.finalized),
            "gaps": gaps.iter().map(|gap| json!({"from": gap.start(), "to": gap.last()})).collect::<Vec<_>>(),
            "filled_ahead": leases.iter().map(|lease| json!({
                "from": lease.range.start(), "to": lease.range.last(), "done_to": lease.done_to,
                "state": format!("{:?}", lease.state).to_lowercase(), "owner": lease.owner, "attempt": lease.attempt,
            })).collect::<Vec<_>>(),
            "reorgs": {
                "count": head.newest_reorg.id,
                "newest": reorgs.iter().rev().map(|entry| json!({
                    "id": entry.id, "common": entry.common.height, "depth": entry.orphans.len(),
                    "decided_at_ms": entry.decided_at_ms,
                })).collect::<Vec<_>>(),
                "purge_pending": head.pending_purge.is_some(),
            },
            "tip_age_ms": self.tip_age_ms,
            "errors_open": self.errors_open,
            "fatal": self.fatal,
            "tables": tables.ok().map(|tables| tables.workers.iter().map(|own| json!({
                "worker": own.service, "last_height": own.last_height(), "lag_blocks": lag(head, own), "paused": own.paused,
            })).collect::<Vec<_>>()),
            "tables_missing": tables.err(),
            "dead_ranges": tables.ok().map(|tables| tables.dead.iter().map(|lease| json!({
                "id": lease.id, "worker": lease.service, "from": lease.range.start(), "to": lease.range.last(),
            })).collect::<Vec<_>>()),
            "unfit": tables.ok().and_then(|tables| tables.unfit.as_ref()),
            "app_bytes": tables.ok().map(|tables| tables.bytes),
            "bytes": sizes.total_bytes,
            "parts": sizes.parts.iter().map(|(name, rows, bytes)| json!({"name": name, "rows": rows, "bytes": bytes})).collect::<Vec<_>>(),
        })
    }

    fn as_text(&self) -> Result<String, std::fmt::Error> {
        let Status { place, head, gaps, leases, reorgs, sizes, .. } = self;
        let mut out = String::new();
        let or_none =
            |block: Option<cairn_core::BlockRef>| block.map_or("none".into(), |block| block.to_string());
        writeln!(out, "archive     {place}")?;
        writeln!(out, "chain       {}", head.info.chain_id)?;
        writeln!(out, "first       {}", head.first.map_or("none yet".into(), |first| first.to_string()))?;
        writeln!(out, "checkpoint  {}", or_none(head.tip))?;
        if let Some(age_ms) = self.tip_age_ms {
            writeln!(
                out,
                "            made {} ago",
                indicatif::HumanDuration(Duration::from_millis(age_ms))
            )?;
        }
        if head.tip.is_none() {
            writeln!(out, "            no block is stored yet")?;
        }
        writeln!(out, "safe        {}", or_none(head.safe))?;
        writeln!(out, "finalized   {}", or_none(head.finalized))?;
        if head.pending_purge.is_some() {
            writeln!(out, "purge       pending; the next `cairn run` finishes it")?;
        }
        if gaps.is_empty() {
            writeln!(out, "gaps        none")?;
        }
        for gap in gaps {
            writeln!(out, "gap         {gap}")?;
        }
        for lease in leases {
            let state = format!("{:?}", lease.state).to_lowercase();
            writeln!(
                out,
                "filling     {} done to {} ({state}, attempt {})",
                lease.range, lease.done_to, lease.attempt
            )?;
        }
        writeln!(out, "reorgs      {}", head.newest_reorg.id)?;
        for entry in reorgs.iter().rev() {
            writeln!(
                out,
                "  reorg {:<5} above height {}, {} blocks",
                entry.id,
                entry.common.height,
                entry.orphans.len()
            )?;
        }
        writeln!(
            out,
            "errors      {} open{}",
            self.errors_open,
            if self.errors_open > 0 { " (cairn errors list)" } else { "" }
        )?;
        for message in &self.fatal {
            writeln!(out, "  fatal     {}", message.escape_debug())?;
        }
        match &self.tables {
            Err(reason) => writeln!(out, "tables      none: {reason}")?,
            Ok(tables) => {
                writeln!(out, "tables")?;
                for own in &tables.workers {
                    let at = own.last_height().map_or("none yet".into(), |height| height.to_string());
                    let paused = if own.paused { ", paused" } else { "" };
                    writeln!(out, "  {:<32} {at:>12}, {} behind{paused}", own.service, lag(head, own))?;
                }
                for lease in &tables.dead {
                    writeln!(
                        out,
                        "  dead range {} of {}: `cairn leases retry {}`",
                        lease.range, lease.service, lease.id
                    )?;
                }
                if let Some(reason) = &tables.unfit {
                    writeln!(out, "  unfit: {reason}")?;
                }
                writeln!(out, "app size    {}", bytes(tables.bytes))?;
            }
        }
        writeln!(out, "raw size    {}", bytes(sizes.total_bytes))?;
        for (name, rows, size) in &sizes.parts {
            writeln!(out, "  {name:<14} {rows:>12} rows {:>12}", bytes(*size))?;
        }
        Ok(out)
    }
}

/// A size for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
