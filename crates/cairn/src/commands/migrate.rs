//! `cairn migrate`: makes the schemas of both databases, or brings them up to date. Opening a store for writing does the same; this does
//! nothing else. On PostgreSQL it also makes single tables anew: in place with their rows, or exported, dropped, and made empty.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cairn_backends::postgres::migrate_table::{APPLICATION_NAME, Moved, export_csv};
use cairn_backends::postgres::{PgDerived, PgOptions, PgPool, PgRawStore};
use cairn_store::StoreError;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::reindex;
use crate::cli::MigrateArgs;
use crate::config::{self, Config, Overrides, hide_url};
use crate::stores::{self, Access};
use crate::{derive, output};

/// Opens each database once for writing; or makes one table anew.
pub async fn migrate(file: Option<&Path>, args: &MigrateArgs) -> anyhow::Result<()> {
    let config = config::load_for_archive(file, &Overrides::default().data(&args.data)).await?;
    if let Some(table) = &args.in_place {
        return in_place(&config, table, args.batch_rows).await;
    }
    if let (Some(table), Some(dir)) = (&args.recreate, &args.export_dir) {
        return recreate(&config, table, dir).await;
    }
    let place = |url: &Option<String>| match url {
        Some(url) => hide_url(url),
        None => config.data_dir.display().to_string(),
    };
    stores::open_raw(&config, Access::Write).await?;
    output::print(&format!("raw store {} is up to date\n", place(&config.raw.url)))?;
    stores::open_app(&config, derive::catalog(&config)?, Access::Write).await?;
    output::print(&format!("app store {} is up to date\n", place(&config.app.url)))?;
    Ok(())
}

async fn in_place(config: &Config, table: &str, batch_rows: u64) -> anyhow::Result<()> {
    let told = |moved: &Moved| {
        // Nobody to tell is no reason to stop.
        let _ = output::print(&format!("{}\n", said(moved)));
        true
    };
    match table.split_once('.') {
        Some(("raw", name)) => {
            let options = stores::pg_raw_options(config, postgres(&config.raw.url, "raw")?);
            PgRawStore::rebuild(options, name, batch_rows, told).await?;
        }
        Some(("app", name)) => {
            let options = stores::pg_app_options(config, postgres(&config.app.url, "app")?);
            PgDerived::rebuild(options, derive::catalog(config)?, name, batch_rows, told).await?;
        }
        _ => bail!("--in-place {table}: expected raw.TABLE or app.TABLE"),
    }
    Ok(output::print(&format!("{table} was made anew\n"))?)
}

fn said(moved: &Moved) -> String {
    match moved {
        Moved::Renamed { left_behind } if left_behind.is_empty() => {
            "renamed to _old, and the new table made".into()
        }
        Moved::Renamed { left_behind } => format!(
            "renamed to _old, and the new table made; it has no columns {}, which are left behind",
            left_behind.join(", ")
        ),
        Moved::Copied(rows) => format!("copied {rows} rows"),
        Moved::CopiedAll(rows) => format!("copied all {rows} rows"),
        Moved::Same(rows) => format!("compared: {rows} rows, the same checksums"),
        Moved::Dropped => "dropped the old table".into(),
    }
}

fn postgres<'a>(url: &'a Option<String>, name: &str) -> anyhow::Result<&'a str> {
    match url {
        Some(url) => Ok(url),
        None => bail!("the {name} database is SQLite: tables are made anew in place on PostgreSQL only"),
    }
}

async fn recreate(config: &Config, table: &str, dir: &Path) -> anyhow::Result<()> {
    let Some(("app", name)) = table.split_once('.') else {
        bail!("--recreate {table}: expected app.TABLE; what is raw can't be derived again");
    };
    let (options, catalog) =
        (stores::pg_app_options(config, postgres(&config.app.url, "app")?), derive::catalog(config)?);
    PgDerived::demand_alone(&options).await?;
    let tables = PgDerived::tables_beside(&options, &catalog, name).await?;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let pool = PgPool::new(PgOptions { application_name: APPLICATION_NAME.into(), ..options.read.clone() })?;
    for table in &tables {
        let (path, rows) = export(&pool, table, dir)
            .await
            .with_context(|| format!("app.{table} was not exported, nothing was dropped"))?;
        output::print(&format!("exported {rows} rows of app.{table} to {}\n", path.display()))?;
    }
    drop(pool);
    let services: Vec<&str> = tables
        .iter()
        .filter_map(|table| catalog.table(table).ok().map(|table| table.def().service))
        .collect();
    let behind = reindex::behind(config, &services)?;
    let dropped = PgDerived::drop_tables(options, catalog.clone(), &tables, &behind).await?;
    let app = stores::open_app(config, catalog, Access::Write).await?;
    let mut message = format!(
        "app.{} made again, empty; `cairn run` derives what belongs into it\n",
        tables.join(", app.")
    );
    for rebuild in &dropped.anew {
        reindex::clear(&*app, &rebuild.service).await?;
        message += &format!("{} begins anew at height {}\n", rebuild.service, rebuild.first);
    }
    for service in &dropped.asked {
        message += &format!("{service} asks again about what these rows name, once they are made again\n");
    }
    for service in &dropped.busy {
        message += &format!(
            "{service} asks about some heights again already; when it has: cairn reindex --worker {service}\n"
        );
    }
    Ok(output::print(&message)?)
}

/// Writes a table as gzipped CSV: whole and on the disk, or not under its name.
async fn export(pool: &PgPool, table: &str, dir: &Path) -> anyhow::Result<(PathBuf, u64)> {
    let path = dir.join(format!("app.{table}.csv.gz"));
    if path.exists() {
        bail!("{} is there already; move it away", path.display());
    }
    let unfinished = dir.join(format!("app.{table}.csv.gz.part"));
    let file = File::create(&unfinished).with_context(|| unfinished.display().to_string())?;
    let mut writer = GzEncoder::new(BufWriter::new(file), Compression::default());
    let mut bytes = 0_u64;
    let rows = export_csv(pool, &format!("app.\"{table}\""), |piece| {
        bytes += piece.len() as u64;
        writer
            .write_all(piece)
            .map_err(|error| StoreError::Database(format!("the export can't be written: {error}")))
    })
    .await?;
    let file = writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    drop(file);
    // It is all that is left of the table: read it back.
    let read = io::copy(&mut GzDecoder::new(BufReader::new(File::open(&unfinished)?)), &mut io::sink())?;
    if read != bytes {
        bail!("{} holds {read} bytes of {bytes}", unfinished.display());
    }
    fs::rename(&unfinished, &path)?;
    File::open(dir)?.sync_all()?;
    Ok((path, rows))
}
