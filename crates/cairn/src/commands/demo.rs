//! `cairn demo`: the same as `run` on a synthetic chain made in process, whose contracts are asked in process too.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::Address;
use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockRef, Height};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_pipeline::derive::processor::AskError;
use cairn_source::evm::synthetic::{
    ContractAnswers, ForkId, LiveOptions, SyntheticChain, SyntheticOptions, SyntheticSource,
};
use cairn_source::verify::{Verified, VerifyOptions};

use crate::chain::settings::ChainConfig;
use crate::cli::{DemoArgs, Role};
use crate::config::{self, Config, Overrides};
use crate::derive::Asked;
use crate::service::{self, Job, Served};
use crate::wiring;

/// The node of the synthetic chain, for who asks about contracts. Contracts say the same at every block, so it doesn't matter which one is asked at.
struct SyntheticNode(ContractAnswers);

#[async_trait]
impl ContractNode for SyntheticNode {
    async fn call(&self, to: Address, input: Vec<u8>, _at: BlockRef) -> Result<CallAnswer, AskError> {
        Ok(match self.0.call(to, &input) {
            Some(returned) => CallAnswer::Returned(returned.into()),
            None => CallAnswer::Reverted,
        })
    }

    async fn code(&self, address: Address, _at: BlockRef) -> Result<Bytes, AskError> {
        Ok(self.0.code(address).into())
    }
}

/// Makes the chain and runs on it. Without `--data` the archive lives in a temporary directory and goes with the process.
pub async fn demo(file: Option<&Path>, args: &DemoArgs) -> anyhow::Result<()> {
    let mut config = config::load(file, &Overrides::default().data(&args.data).listen(&args.listen))?;
    config.chain().demand_evm("`cairn demo`")?;
    let temporary = match args.data.data_dir {
        Some(_) => None,
        None => {
            let dir =
                tempfile::Builder::new().prefix("cairn-demo-").tempdir().context("no temporary directory")?;
            Some(dir)
        }
    };
    make_fit(&mut config, args, temporary.as_ref().map(tempfile::TempDir::path));
    config.ingest.poll_ms = config.ingest.poll_ms.min(args.block_time_ms.max(50));
    let chain =
        Arc::new(SyntheticChain::new(SyntheticOptions { seed: args.seed, ..SyntheticOptions::default() }));
    let live = LiveOptions {
        start_height: args.blocks,
        block_time_ms: args.block_time_ms.max(1),
        until_height: args.until.or(args.exit_after_head.then_some(args.blocks)),
        in_steps: args.until.is_some(),
        ..LiveOptions::default()
    };
    let chain_id = chain.chain_id();
    let source = Verified::new(
        SyntheticSource::new(chain.clone(), live),
        VerifyOptions { name: "the synthetic chain".into(), ..VerifyOptions::default() },
    );
    let token = chain.traffic().contracts().erc20.first().copied().map(|token| token.to_string());
    let contracts = ContractAnswers::new(chain.traffic());
    let sample = sample_transaction(&chain, args.blocks);
    let dir = config.data_dir.display().to_string();
    let token = token.unwrap_or_default();
    let announce = move |served: &Served| {
        eprintln!(
            "a synthetic chain of ERC-20, ERC-721 and ERC-1155 traffic, archived in {dir}\n\
             (its amounts are random: people give away what they never had, so balances are below 0 as often as not)\n\
             {served}\n\nTry:"
        );
        let (rpc, ops) = (served.rpc_url.as_deref().unwrap_or_default(), &served.ops_url);
        for (method, params) in [
            ("eth_getBlockByNumber", r#"["latest", false]"#.to_string()),
            ("eth_getTransactionReceipt", format!(r#"["{}"]"#, sample.unwrap_or_default())),
            (
                "eth_getLogs",
                format!(r#"[{{"fromBlock":"0x1","toBlock":"0x20","address":"{}"}}]"#, token.to_lowercase()),
            ),
        ] {
            eprintln!(
                "  curl -s {rpc} -H 'content-type: application/json' -d '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}'"
            );
        }
        eprintln!("  curl -s {ops}/v1/tokens/{}/holders", token.to_lowercase());
        eprintln!("  curl -s '{ops}/v1/search?q=club'");
        eprintln!();
    };
    let job = Job {
        source: Arc::new(source),
        first_height: Height::ZERO,
        asked: Asked { contracts: Some(Arc::new(SyntheticNode(contracts))), ..Asked::default() },
        info: wiring::store_info(chain_id, Default::default()),
        exit_after_head: args.exit_after_head,
        role: Role::All,
        // Nobody knows where a temporary archive is.
        takes_requests: temporary.is_none(),
        announce: Box::new(announce),
    };
    let result = service::run(&config, job).await;
    drop(temporary);
    result
}

/// Takes out of a configuration what is of another chain, and puts the archive into `temporary` where there is one.
fn make_fit(config: &mut Config, args: &DemoArgs, temporary: Option<&Path>) {
    // What a file in the working directory says of a chain and its nodes isn't of this one.
    config.chain = ChainConfig::default();
    (config.ingest.from, config.ingest.to) = (0, None);
    config.serve.upstream = args.listen.upstream.clone();
    if let Some(dir) = temporary {
        config.data_dir = dir.to_path_buf();
        // A raw database on PostgreSQL stays, and its payloads must not go with the directory.
        if config.raw.url.is_some() && config.payloads.url.is_none() {
            config.payloads.url = Some("none".into());
        }
    }
}

/// A transaction of the first blocks, so that the printed request finds something at once.
fn sample_transaction(chain: &SyntheticChain, blocks: u64) -> Option<cairn_core::TxId> {
    (1..=blocks.min(20))
        .find_map(|height| chain.block(ForkId::MAIN, Height(height)).transactions.first().map(|tx| tx.id))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn payloads_of_a_database_that_stays_do_not_go_with_the_temporary_directory() {
        let Command::Demo(args) = Cli::parse_from(["cairn", "demo"]).command else {
            panic!("it is the demo");
        };
        let made = |raw: Option<&str>, temporary: Option<&Path>| {
            let mut config = Config::default();
            config.raw.url = raw.map(str::to_owned);
            make_fit(&mut config, &args, temporary);
            config
        };
        let dir = Path::new("/tmp/some");
        let postgres = Some("postgres://127.0.0.1/blocks");
        assert_eq!(made(postgres, Some(dir)).payloads.url.as_deref(), Some("none"));
        // They lie beside what stays, or in what goes as a whole.
        assert_eq!(made(postgres, None).payloads.url, None);
        assert_eq!(made(None, Some(dir)).payloads.url, None);
        assert_eq!(made(None, Some(dir)).data_dir, dir);
    }
}
