//! `cairn import`: a chain out of files.

use std::path::Path;
use std::sync::Arc;

use cairn_core::{Clock, SystemClock};
use cairn_evm::SendersAre;
use cairn_pipeline::ingest::{IngestOptions, Ingester};
use cairn_pipeline::status::StatusBoard;
use cairn_source::ChainSource;
use cairn_source::evm::file::{ChainFile, FileSourceOptions};
use cairn_source::verify::{Verified, VerifyOptions};
use tokio_util::sync::CancellationToken;

use crate::cli::ImportArgs;
use crate::config::{self, Overrides};
use crate::output::print;
use crate::stores::{self, Access};
use crate::{progress, service, wiring};

/// Reads the files, checks every block, and stores them. An archive that holds a part already goes on from there.
pub async fn import(file: Option<&Path>, args: &ImportArgs) -> anyhow::Result<()> {
    let config = config::load(file, &Overrides::default().data(&args.data))?;
    config.chain().demand_evm("`cairn import`")?;
    let chain = ChainFile::open(FileSourceOptions {
        receipts: Some(args.receipts.clone()),
        genesis: Some(args.genesis.clone()),
        ..FileSourceOptions::new(&args.chain)
    })
    .await?;
    let heights = chain.heights();
    let chain_id = chain.chain_id().await?;
    let chain_config = chain.chain_config().cloned().unwrap_or_default();
    let store = stores::open_raw(&config, Access::Write).await?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let board = StatusBoard::new(clock.clone());
    let source = Verified::new(
        chain,
        VerifyOptions {
            name: "the chain file".into(),
            senders: SendersAre::RecoveredHere,
            ..VerifyOptions::default()
        },
    );
    let options = IngestOptions {
        start: heights.start(),
        exit_after_head: true,
        ..IngestOptions::new(wiring::store_info(chain_id, chain_config))
    };
    let ingester = Ingester::new(Arc::new(source), store, clock, board.clone(), options);
    let stop = CancellationToken::new();
    let showing = tokio::spawn(progress::show(board.subscribe(), None, stop.clone()));
    let running = ingester.run(stop.clone());
    tokio::pin!(running);
    let finished = tokio::select! {
        finished = &mut running => finished,
        _ = service::stop_signal() => {
            stop.cancel();
            running.await
        }
    };
    showing.abort();
    finished?;
    let status = board.get();
    let tip = status.tip.map_or("nothing".into(), |tip| tip.to_string());
    print(&format!(
        "imported {} blocks with {} transactions of chain {chain_id}; the archive in {} ends at {tip}\n",
        status.blocks,
        status.transactions,
        config.data_dir.display()
    ))?;
    Ok(())
}
