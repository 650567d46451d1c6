//! `cairn status`: what an archive holds.

use std::fmt::Write as _;
use std::path::Path;

use cairn_core::HeightRange;
use cairn_store::{HeadRow, RawLease, ReorgEntry, StoreSizes};
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::cli::StatusArgs;
use crate::config::{self, Overrides};
use crate::output;
use crate::stores::{self, Access};

/// How many reorgs are listed.
const LISTED_REORGS: u64 = 10;

/// Prints head, finality, gaps, reorgs and sizes.
pub async fn status(file: Option<&Path>, args: &StatusArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let store = stores::open_reader(&config, Access::Read).await?;
    let snapshot = store.snapshot().await?;
    let head = snapshot.head().clone();
    let after = head.newest_reorg.id.saturating_sub(LISTED_REORGS);
    let reorgs = snapshot.reorgs(after, LISTED_REORGS as usize).await?;
    let leases = snapshot.raw_leases().await?;
    drop(snapshot);
    // Sizes may walk tables: a snapshot of their own, so that nothing above is cut short by it.
    let sizes = store.snapshot().await?.sizes().await?;
    let gaps = gaps(&head, &leases);
    let text = if args.json {
        serde_json::to_string_pretty(&as_json(&head, &gaps, &leases, &reorgs, &sizes))?
            + "
"
    } else {
        as_text(&config.archive_place(), &head, &gaps, &leases, &reorgs, &sizes)?
    };
    Ok(output::print(&text)?)
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

fn as_json(
    head: &HeadRow,
    gaps: &[HeightRange],
    leases: &[RawLease],
    reorgs: &[ReorgEntry],
    sizes: &StoreSizes,
) -> Value {
    let block = |block: Option<cairn_core::BlockRef>| block.map(|b| json!({"height": b.height, "id": b.id}));
    json!({
        "chain_id": head.info.chain_id,
        "chain": Chain::name_of(head.info.chain_id),
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
        "bytes": sizes.total_bytes,
        "parts": sizes.parts.iter().map(|(name, rows, bytes)| json!({"name": name, "rows": rows, "bytes": bytes})).collect::<Vec<_>>(),
    })
}

fn as_text(
    place: &str,
    head: &HeadRow,
    gaps: &[HeightRange],
    leases: &[RawLease],
    reorgs: &[ReorgEntry],
    sizes: &StoreSizes,
) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let or_none =
        |block: Option<cairn_core::BlockRef>| block.map_or("none".into(), |block| block.to_string());
    writeln!(out, "archive     {place}")?;
    writeln!(out, "chain       {}", Chain::name_of(head.info.chain_id))?;
    writeln!(out, "first       {}", head.first.map_or("none yet".into(), |first| first.to_string()))?;
    writeln!(out, "checkpoint  {}", or_none(head.tip))?;
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
    writeln!(out, "size        {}", bytes(sizes.total_bytes))?;
    for (name, rows, size) in &sizes.parts {
        writeln!(out, "  {name:<14} {rows:>12} rows {:>12}", bytes(*size))?;
    }
    Ok(out)
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
