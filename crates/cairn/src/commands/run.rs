//! `cairn run`: archive a chain from a node and serve it.

use std::path::Path;

use anyhow::bail;

use crate::cli::{Role, RunArgs};
use crate::config::{self, Overrides};
use crate::output::say;
use crate::servers::Served;
use crate::service::{self, Job};
use crate::wiring;

/// Connects, checks the chain, ingests and serves.
pub async fn run(file: Option<&Path>, args: &RunArgs) -> anyhow::Result<()> {
    let overrides =
        Overrides::default().data(&args.data).chain(&args.chain).ingest(&args.ingest).listen(&args.listen);
    let config = config::load_to_stay(file, &overrides).await?;
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
    let nodes = wiring::connect_waiting(&config).await?;
    let chain_config = wiring::chain_config(config.chain.genesis.as_deref(), nodes.chain_id)?;
    let (chain, from) = (nodes.chain_id.to_string(), config.chain.shown_nodes());
    let into = config.archive_place();
    let announce =
        move |served: &Served| say(format_args!("archiving chain {chain} from {from} into {into}\n{served}"));
    let job = Job {
        source: nodes.source,
        first_height: nodes.first_height,
        asked: nodes.asked,
        info: wiring::store_info(nodes.chain_id, chain_config),
        exit_after_head: args.exit_after_head,
        role: args.role,
        takes_requests: true,
        announce: Box::new(announce),
    };
    service::run(&config, job).await
}
