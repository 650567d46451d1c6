//! `cairn serve`: answers from an archive that exists, read only.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use crate::cli::ServeArgs;
use crate::config::{self, Overrides};
use crate::service::{Servers, stop_signal};
use crate::wiring;

/// Serves until it is told to stop.
pub async fn serve(file: Option<&Path>, args: &ServeArgs) -> anyhow::Result<()> {
    let config = config::load(file, &Overrides::default().data(&args.data).listen(&args.listen))?;
    let store = wiring::open_read_only(&config).await?;
    let servers = Servers::start(&config, store, None, CancellationToken::new()).await?;
    eprintln!("serving {} read only", config.data_dir.display());
    eprintln!("JSON-RPC   {} (HTTP and WebSocket)", servers.rpc_url);
    eprintln!("health     {0}/readyz   metrics {0}/metrics", servers.ops_url);
    stop_signal().await;
    servers.stop().await;
    Ok(())
}
