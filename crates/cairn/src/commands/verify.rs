//! `cairn verify`: every stored block against its own hashes, roots, links and index entries; on PostgreSQL lookups of EVM transactions inside transactions
//! too. It changes nothing.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use cairn_core::{Height, HeightRange};
use cairn_pipeline::audit::audit;
use cairn_store::RawReader;

use crate::cli::VerifyArgs;
use crate::config::{self, Overrides};
use crate::output::print;
use crate::progress::Bar;
use crate::stores::{self, Access};

/// Heights whose lookups of EVM transactions are looked at in one go.
const STEP_HEIGHTS: u64 = 10_000;

/// Checks the range and names what is wrong. Fails when anything is.
pub async fn verify(file: Option<&Path>, args: &VerifyArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let asked = args.range.as_deref().map(parse_range).transpose()?;
    let archive = stores::open_raw(&config, Access::Audit).await?;
    let store: Arc<dyn RawReader> = archive.clone();
    let stored = store.snapshot().await?.head().range();
    if stored.is_empty() {
        print("the archive is empty: nothing to verify\n")?;
        return Ok(());
    }
    let range = match asked {
        Some(range) if range.intersect(stored) != range && range.end() != Height(u64::MAX) => {
            bail!("heights {range} are not all stored; this archive holds {stored}")
        }
        Some(range) => range.intersect(stored),
        None => stored,
    };
    let bar = Bar::new(range.len(), "verifying");
    let first = range.start();
    let report = audit(&store, config.chain().auditor(), range, args.max_findings, |done| {
        bar.set(done.since(first) + 1)
    })
    .await?;
    bar.finish();
    for finding in &report.findings {
        print(&format!(
            "{finding}
"
        ))?;
    }
    let mut problems = report.findings.len();
    for step in range.chunks(STEP_HEIGHTS) {
        let left = args.max_findings.saturating_sub(problems);
        if left == 0 {
            break;
        }
        for fault in archive.audit_evm_lookups(step, left).await?.iter().take(left) {
            print(&format!(
                "height {}: {} lookups of EVM transactions are missing, {} name what its block doesn't have; `cairn repair` makes them what the block says\n",
                fault.height, fault.missing, fault.strange
            ))?;
            problems += 1;
        }
    }
    print(&format!(
        "verified {} blocks, {} transactions in {range}: {}\n",
        report.blocks,
        report.transactions,
        if problems == 0 { "all good".into() } else { format!("{problems} problems") },
    ))?;
    if report.relaxed_blocks > 0 {
        print(&format!(
            "{} of these blocks were stored with a check relaxed or impossible\n",
            report.relaxed_blocks
        ))?;
    }
    if problems == 0 { Ok(()) } else { bail!("{problems} problems found") }
}

/// `a..b` with both ends included, `a..`, `..b`, or `a`.
pub fn parse_range(text: &str) -> anyhow::Result<HeightRange> {
    let height = |digits: &str| {
        digits.parse::<u64>().map(Height).with_context(|| format!("range `{text}`: `{digits}` is no height"))
    };
    let (from, to) = match text.split_once("..") {
        None => return Ok(HeightRange::one(height(text)?)),
        Some((from, to)) => (from, to.trim_start_matches('=')),
    };
    let from = if from.is_empty() { Height::ZERO } else { height(from)? };
    let end = if to.is_empty() { Height(u64::MAX) } else { height(to)?.next() };
    if end <= from {
        bail!("range `{text}` is empty or reversed");
    }
    Ok(HeightRange::new(from, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_both_ends() {
        assert_eq!(parse_range("3..5").expect("range"), HeightRange::new(Height(3), Height(6)));
        assert_eq!(parse_range("7").expect("one"), HeightRange::one(Height(7)));
        assert_eq!(parse_range("..2").expect("to"), HeightRange::new(Height(0), Height(3)));
        assert!(parse_range("5..3").is_err() && parse_range("x").is_err());
    }
}
