//! `cairn payloads`: large payloads of a raw database on PostgreSQL, which lie in object storage.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use cairn_backends::objects::ObjectPayloads;
use cairn_backends::postgres::PgPayloadRegistry;
use cairn_core::{Clock, SystemClock};
use cairn_pipeline::ingest::FillOptions;
use cairn_store::{
    CollectOptions, ListedPayload, PayloadRow, PayloadState, PayloadStore, check_live, collect_orphans,
};

use crate::cli::{PayloadsArgs, PayloadsCommand};
use crate::commands::status::bytes;
use crate::config::{self, Config, Overrides};
use crate::output;
use crate::stores::{self, Access};

/// Rows that are read at once.
const PAGE: usize = 500;
/// Objects named by `--check`, at most.
const MAX_MISSING: usize = 100;

/// Lists or collects.
pub async fn payloads(file: Option<&Path>, args: &PayloadsArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    let place = Place::open(&config, access(&args.command)).await?;
    match &args.command {
        PayloadsCommand::List { state, limit, check } => {
            place.list(state.as_deref(), *limit).await?;
            if *check { place.check().await } else { Ok(()) }
        }
        PayloadsCommand::Gc { dry_run, grace_s, no_listing } => {
            let options = CollectOptions {
                grace_ms: grace_s.saturating_mul(1_000),
                longest_lease_ms: FillOptions::default()
                    .lease_ttl_ms
                    .max(config.derive.lease_ttl_s.saturating_mul(1_000)),
                list: !no_listing,
                ..CollectOptions::default()
            };
            if *dry_run { place.preview(options).await } else { place.collect(options).await }
        }
    }
}

/// A collection writes, and what it would do, or what is missing, is said of what stands there now: on a server that follows another one an object that was just written has no row yet, and one that was
/// collected still has one. A list is for people.
fn access(command: &PayloadsCommand) -> Access {
    match command {
        PayloadsCommand::List { check: false, .. } => Access::Read,
        PayloadsCommand::List { .. } | PayloadsCommand::Gc { .. } => Access::Primary,
    }
}

/// The objects, and what the database knows of them.
struct Place {
    store: Arc<ObjectPayloads>,
    registry: PgPayloadRegistry,
    owner: String,
}

impl Place {
    async fn open(config: &Config, access: Access) -> anyhow::Result<Place> {
        let Some(url) = &config.raw.url else {
            bail!(
                "the raw database is SQLite, which keeps all payloads itself; `cairn payloads` is for PostgreSQL (DB_RAW_URL)"
            );
        };
        let raw = stores::open_pg_raw(config, url, access).await?;
        let Some(store) = stores::open_payloads(config, access)? else {
            match stores::payload_location(config)? {
                None => bail!("payloads.url is `none`: all payloads are in the database"),
                Some(location) => {
                    bail!("there are no payloads in {location}; payloads.url or --data says where they are")
                }
            }
        };
        let owner = raw.payload_owner().await?.context("the raw store is empty")?;
        Ok(Place { store, registry: raw.payload_registry(), owner })
    }

    async fn list(&self, state: Option<&str>, limit: usize) -> anyhow::Result<()> {
        let state = [PayloadState::Live, PayloadState::Dead, PayloadState::Deleting]
            .into_iter()
            .find(|known| Some(known.as_str()) == state);
        let (mut after, mut left) = (None, limit);
        while left > 0 {
            let rows = self.registry.rows(state, after, left.min(PAGE)).await?;
            let Some(last) = rows.last() else { break };
            (after, left) = (Some(last.object), left - rows.len());
            output::print(&lines(&rows, |row| row.state.as_str())?)?;
        }
        let mut out = String::new();
        for (state, count, size) in self.registry.totals().await? {
            writeln!(out, "{count} {state}, {}", bytes(size))?;
        }
        Ok(output::print(&out)?)
    }

    async fn check(&self) -> anyhow::Result<()> {
        let (asked, missing) = check_live(&*self.store, &self.registry, PAGE, MAX_MISSING).await?;
        let mut out = String::new();
        for found in &missing {
            let object = found.row.object;
            match found.found_bytes {
                None => writeln!(out, "missing     {object}")?,
                Some(size) => {
                    writeln!(out, "damaged     {object}: {size} bytes instead of {}", found.row.size_bytes)?;
                }
            }
        }
        writeln!(out, "{asked} live objects asked for, {} not as they ought to be", missing.len())?;
        output::print(&out)?;
        if missing.is_empty() {
            return Ok(());
        }
        bail!("{} payloads are missing or damaged; `cairn repair` fetches their blocks again", missing.len())
    }

    async fn collect(&self, options: CollectOptions) -> anyhow::Result<()> {
        let done = collect_orphans(&*self.store, &self.registry, &self.owner, &SystemClock, options).await?;
        output::print(&format!("{done}\n"))?;
        if done.failed > 0 {
            bail!("{} objects could not be deleted; the next run tries again", done.failed);
        }
        Ok(())
    }

    /// Names what a collection that began now would change.
    async fn preview(&self, options: CollectOptions) -> anyhow::Result<()> {
        self.store.claim(&self.owner).await?;
        let (mut dead, mut deleted, mut freed) = (0_u64, 0_u64, 0_u64);
        let mut after = None;
        loop {
            let (rows, next) = self.registry.preview(options.grace_ms, after, PAGE).await?;
            for row in &rows {
                match row.state {
                    PayloadState::Live => dead += 1,
                    PayloadState::Dead | PayloadState::Deleting => {
                        deleted += 1;
                        freed += row.size_bytes;
                    }
                }
            }
            output::print(&lines(&rows, |row| match row.state {
                PayloadState::Live => "to be dead",
                PayloadState::Dead | PayloadState::Deleting => "to delete",
            })?)?;
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let (orphans, orphan_bytes) =
            if options.list { self.preview_orphans(options.grace_ms).await? } else { (0, 0) };
        freed += orphan_bytes;
        let summary = format!(
            "nothing was changed: {deleted} would be deleted and {orphans} orphans, {freed} bytes freed; {dead} would be marked dead\n"
        );
        Ok(output::print(&summary)?)
    }

    /// Names objects that the database doesn't know; how many there are, and their bytes.
    async fn preview_orphans(&self, grace_ms: u64) -> anyhow::Result<(u64, u64)> {
        let (mut orphans, mut size_bytes) = (0, 0);
        let now_ms = SystemClock.now_ms();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(after.as_deref(), PAGE).await?;
            let is_old = |listed: &&ListedPayload| listed.modified_at_ms.saturating_add(grace_ms) <= now_ms;
            let old: Vec<ListedPayload> = page.objects.iter().filter(is_old).copied().collect();
            let names: Vec<_> = old.iter().map(|listed| listed.object).collect();
            let unknown = self.registry.unknown(&names).await?;
            let mut out = String::new();
            for listed in old.iter().filter(|listed| unknown.contains(&listed.object)) {
                orphans += 1;
                size_bytes += listed.size_bytes;
                writeln!(out, "{:<10} {:>12}  {}", "orphan", listed.size_bytes, listed.object.key())?;
            }
            output::print(&out)?;
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok((orphans, size_bytes)),
            }
        }
    }
}

fn lines(rows: &[PayloadRow], word: impl Fn(&PayloadRow) -> &'static str) -> anyhow::Result<String> {
    let mut out = String::new();
    for row in rows {
        writeln!(out, "{:<10} {:>12}  {}", word(row), row.size_bytes, row.object.key())?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use cairn_core::ChainId;
    use cairn_store::{RawWriter, StoreInfo};

    use super::super::reindex::pg;
    use super::*;
    use crate::config::DatabaseConfig;

    #[tokio::test]
    async fn nothing_is_collected_by_what_a_server_says_that_follows_another() {
        let Some(db) = pg::database().await else { return };
        let dir = tempfile::tempdir().expect("a directory");
        let raw = DatabaseConfig { url: Some(db.url.clone()), ..DatabaseConfig::default() };
        let config = Config { data_dir: dir.path().into(), raw, ..Config::default() };
        let writer = stores::open_pg_raw(&config, &db.url, Access::Write).await.expect("opens");
        let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(1), chain_config: Default::default() };
        writer.init(info).await.expect("init");
        drop(writer);

        let gc = |dry_run| PayloadsCommand::Gc { dry_run, grace_s: 0, no_listing: false };
        let list = |check| PayloadsCommand::List { state: None, limit: 1, check };
        let all = [gc(false), gc(true), list(true), list(false)];
        for command in &all {
            Place::open(&config, access(command)).await.expect("a primary");
        }
        db.follows_another(true).await;
        for command in &all[..3] {
            let Err(error) = Place::open(&config, access(command)).await else {
                panic!("{command:?} goes to a server that follows another one");
            };
            assert!(format!("{error:#}").contains("follows another one"), "{error:#}");
        }
        Place::open(&config, access(&all[3])).await.expect("who only reads may read there");
        db.follows_another(false).await;
        let place = Place::open(&config, access(&all[0])).await.expect("a primary");
        place.collect(CollectOptions::default()).await.expect("collects");
    }
}
