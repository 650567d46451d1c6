//! Metrics of this process: one recorder, one help for each family, histograms, and what is known of the process and its files.

mod families;
#[cfg(test)]
mod lint;
mod process;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cairn_api::MetricsText;
use cairn_store::RawReader;
use cairn_store::derived::DerivedReader;
use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::output::dropped_lines;

/// The upper bounds of times, in seconds: from a read of memory to a statement that runs into its limit.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// The upper bounds of depths, in blocks.
const BLOCKS: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0];

/// How often sizes are looked at. On PostgreSQL a look asks the server for the size of each partition.
const SIZES_EVERY: Duration = Duration::from_secs(60);
const SERVER_SIZES_EVERY: Duration = Duration::from_secs(300);

fn builder() -> anyhow::Result<PrometheusBuilder> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
        .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_blocks".into()), &BLOCKS))
        .context("the buckets of histograms can't be used; this is a bug")
}

/// Installs the recorder of this process and gives its text.
pub fn install() -> anyhow::Result<MetricsText> {
    let handle = builder()?.install_recorder().context("can't install the metrics recorder")?;
    describe();
    Ok(Arc::new(move || {
        handle.run_upkeep();
        metrics::counter!("cairn_log_lines_dropped_total").absolute(dropped_lines());
        handle.render() + &process::text()
    }))
}

fn describe() {
    families::describe();
    cairn_api::describe_metrics();
    gauge!("cairn_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// The databases whose sizes are shown.
#[derive(Clone)]
pub struct Databases {
    /// Where the SQLite files are; `None` of each that is on PostgreSQL.
    pub raw_file: Option<PathBuf>,
    /// Likewise of the app database.
    pub app_file: Option<PathBuf>,
    /// The raw database, to be asked.
    pub raw: Arc<dyn RawReader>,
    /// The app database, to be asked.
    pub app: Option<Arc<dyn DerivedReader>>,
}

impl Databases {
    /// Those of a configuration.
    pub fn of(config: &Config, raw: Arc<dyn RawReader>, app: Option<Arc<dyn DerivedReader>>) -> Databases {
        let file = |url: &Option<String>, name: &str| url.is_none().then(|| config.data_dir.join(name));
        Databases {
            raw_file: file(&config.raw.url, "raw.sqlite"),
            app_file: file(&config.app.url, "app.sqlite"),
            raw,
            app,
        }
    }
}

/// Shows sizes until told to stop. A database that is away keeps the size that it had.
pub async fn watch_sizes(databases: Databases, stop: CancellationToken) {
    let all_files = databases.raw_file.is_some() && (databases.app_file.is_some() || databases.app.is_none());
    let every = if all_files { SIZES_EVERY } else { SERVER_SIZES_EVERY };
    loop {
        match &databases.raw_file {
            Some(file) => show_file("raw", file),
            None => {
                let sizes = async { databases.raw.snapshot().await?.sizes().await };
                match sizes.await {
                    Ok(sizes) => show("raw", sizes.total_bytes),
                    Err(error) => tracing::debug!(%error, "the raw database's size is not known"),
                }
            }
        }
        match (&databases.app_file, &databases.app) {
            (Some(file), Some(_)) => show_file("app", file),
            (None, Some(app)) => {
                let sizes = async { app.snapshot().await?.sizes().await };
                match sizes.await {
                    Ok(sizes) => show("app", sizes.iter().map(|(_, _, bytes)| bytes).sum()),
                    Err(error) => tracing::debug!(%error, "the app database's size is not known"),
                }
            }
            (_, None) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(every) => {}
        }
    }
}

fn show(database: &'static str, bytes: u64) {
    gauge!("cairn_database_bytes", "database" => database).set(bytes as f64);
}

/// The size of a SQLite file and of its WAL, which is gone after a clean end.
fn show_file(database: &'static str, file: &Path) {
    if let Ok(meta) = std::fs::metadata(file) {
        show(database, meta.len());
        let mut wal = file.as_os_str().to_owned();
        wal.push("-wal");
        let bytes = std::fs::metadata(wal).map_or(0, |meta| meta.len());
        gauge!("cairn_wal_bytes", "database" => database).set(bytes as f64);
    }
}
