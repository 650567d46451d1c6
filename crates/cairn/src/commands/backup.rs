//! `cairn backup`: a copy of both databases that fit each other, while everything goes on.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use cairn_backends::sqlite::copy_database;

use crate::cli::BackupArgs;
use crate::commands::status::bytes;
use crate::config::{self, Config, Overrides};
use crate::stores::{self, Access};
use crate::{derive, output, watch};

/// In this order: tables may be of an older moment than blocks, and are then derived on from there. The other way round they would be of blocks that the
/// copy doesn't have.
const FILES: [&str; 2] = ["app.sqlite", "raw.sqlite"];

/// Copies, checks that the copies fit each other, and says what is in them.
pub async fn backup(file: Option<&Path>, args: &BackupArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    if config.raw.url.is_some() || config.app.url.is_some() {
        bail!(
            "`cairn backup` copies SQLite files. Of databases on PostgreSQL, dump the app database first and the raw one after it (`pg_dump -Fc`), so that no table is of blocks that the dump doesn't have"
        );
    }
    ensure!(
        config.data_dir.join(FILES[1]).is_file(),
        "there is no archive in {}; --data names its directory",
        config.data_dir.display()
    );
    let to = &args.dir;
    std::fs::create_dir_all(to).with_context(|| format!("can't make {}", to.display()))?;
    if let Some(name) = FILES.iter().find(|name| to.join(name).exists()) {
        bail!("{} holds {name} already: name another directory", to.display());
    }
    let mut out = String::new();
    for name in FILES {
        let (from, into) = (config.data_dir.clone(), to.clone());
        let copied = tokio::task::spawn_blocking(move || copy_database(&from, &into, name))
            .await
            .context("the copy panicked")?
            .with_context(|| format!("can't copy {name}"))?;
        match copied {
            Some(size) => writeln!(out, "{name:<12} {:>10}", bytes(size))?,
            None => writeln!(out, "{name:<12} not there")?,
        }
    }
    out += &check(&Config { data_dir: to.clone(), ..config }).await?;
    Ok(output::print(&out)?)
}

/// Opens the copies and holds them against each other.
async fn check(copy: &Config) -> anyhow::Result<String> {
    let place = copy.data_dir.display();
    let raw = stores::open_raw(copy, Access::Read).await?;
    let head = raw.snapshot().await?.head().clone();
    let tip = head.tip.map_or("no block".to_owned(), |tip| format!("block {tip}"));
    let mut out = format!("{place} holds chain {} up to {tip}\n", head.info.chain_id);
    if copy.data_dir.join(FILES[0]).is_file() {
        let app = stores::open_app(copy, derive::catalog(copy)?, Access::Read).await?;
        let app = app.snapshot().await?;
        if let Some(reason) = watch::unfit(&head, &*app) {
            bail!("the copies in {place} don't fit each other: {reason}");
        }
        out += "the two fit each other\n";
    }
    Ok(out)
}
