//! `cairn run`: archive a chain from a node and serve it.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use cairn_source::ChainSource;
use cairn_source::verify::{Verified, VerifyOptions};

use crate::cli::{Role, RunArgs};
use crate::config::{self, Overrides, hide_url};
use crate::service::{self, Job};
use crate::wiring;

/// Connects, checks the chain, ingests and serves.
pub async fn run(file: Option<&Path>, args: &RunArgs) -> anyhow::Result<()> {
    let overrides =
        Overrides::default().data(&args.data).chain(&args.chain).ingest(&args.ingest).listen(&args.listen);
    let config = config::load(file, &overrides)?;
    if args.role != Role::All && (config.raw.url.is_none() || config.app.url.is_none()) {
        bail!(
            "--role needs both databases on PostgreSQL (DB_RAW_URL, DB_APP_URL): SQLite belongs to one process; \
             leave --role out, or read beside it with `cairn serve`"
        );
    }
    match args.role {
        Role::Work => return service::work(&config).await,
        Role::Api => return service::serve(&config).await,
        Role::All | Role::Ingest => {}
    }
    let node = wiring::connect(&config).await?;
    let chain_id = node.chain_id().await?;
    let chain_config = wiring::chain_config(config.chain.genesis.as_deref(), chain_id)?;
    let profile = config.profile()?;
    if !profile.relaxed.is_empty() {
        tracing::warn!(checks = %profile.relaxed, "these checks are relaxed: what they guard is believed of the node");
    }
    let source =
        Verified::new(node, VerifyOptions { name: "the node".into(), profile, ..VerifyOptions::default() });
    let nodes = config.without_secrets().chain.rpc.join(", ");
    let dir = match &config.raw.url {
        Some(url) => hide_url(url),
        None => config.data_dir.display().to_string(),
    };
    let announce = move |rpc: Option<&str>, ops: &str| {
        eprintln!("archiving chain {chain_id} from {nodes} into {dir}");
        if let Some(rpc) = rpc {
            eprintln!("JSON-RPC   {rpc} (HTTP and WebSocket)");
            eprintln!("REST       {ops}/v1/status   {ops}/v1/docs");
        }
        eprintln!("health     {ops}/readyz   metrics {ops}/metrics");
    };
    let job = Job {
        source: Arc::new(source),
        info: wiring::store_info(chain_id, chain_config),
        exit_after_head: args.exit_after_head,
        role: args.role,
        announce: Box::new(announce),
    };
    service::run(&config, job).await
}
