//! `cairn demo`: the same as `run` on a synthetic chain made in process, whose contracts are asked in process too.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::Address;
use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockRef, Clock, Height, Parts, SystemClock};
use cairn_explorer::processors::evm::node::{CallAnswer, ContractNode};
use cairn_pipeline::derive::processor::AskError;
use cairn_source::evm::synthetic::{
    ContractAnswers, ForkId, LiveOptions, Mix, SyntheticChain, SyntheticOptions, SyntheticSource,
};
use cairn_source::verify::{Verified, VerifyOptions};
use cairn_store::StoreError;

use crate::chain::settings::ChainConfig;
use crate::cli::{DemoArgs, Role};
use crate::config::first::First;
use crate::config::{self, Config, Overrides};
use crate::derive::Asked;
use crate::output::say;
use crate::servers::Served;
use crate::service::{self, Job};
use crate::stores::{self, Access};
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
    let past = Past::of(&config).await?;
    let now_s = SystemClock.now_ms() / 1_000;
    let options = SyntheticOptions { seed: args.seed, mix: Mix::Economy, ..SyntheticOptions::default() };
    let options = past.timed(options, args, now_s);
    let chain = Arc::new(SyntheticChain::new(options));
    let contracts = chain.traffic().contracts();
    config.derive.wrapped_tokens.get_or_insert_with(|| vec![contracts.wrapped.to_string()]);
    // It goes on where it stood.
    let start_height = past.tip.map_or(args.blocks, |tip| args.blocks.max(tip));
    let live = LiveOptions {
        start_height,
        block_time_ms: args.block_time_ms.max(1),
        until_height: args.until.or(args.exit_after_head.then_some(start_height)),
        in_steps: args.until.is_some(),
        ..LiveOptions::default()
    };
    let chain_id = chain.chain_id();
    let source = Verified::new(
        SyntheticSource::new(chain.clone(), live),
        VerifyOptions { name: "the synthetic chain".into(), ..VerifyOptions::default() },
    );
    let token = chain.traffic().contracts().erc20.first().copied().map(|token| token.to_string());
    let answers = ContractAnswers::new(chain.traffic());
    let sample = sample_transaction(&chain, args.blocks);
    let dir = config.data_dir.display().to_string();
    let token = token.unwrap_or_default();
    let announce = move |served: &Served| {
        let (rpc, rest) = (served.rpc_url.as_deref().unwrap_or_default(), &served.rest_url);
        let token = token.to_lowercase();
        let call = |method: &str, params: &str| {
            format!(
                "  curl -s {rpc} -H 'content-type: application/json' -d '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{params}}}'\n"
            )
        };
        let tries = [
            call("eth_getBlockByNumber", r#"["latest", false]"#),
            call("eth_getTransactionReceipt", &format!(r#"["{}"]"#, sample.unwrap_or_default())),
            call("eth_getLogs", &format!(r#"[{{"fromBlock":"0x1","toBlock":"0x20","address":"{token}"}}]"#)),
            format!("  curl -s {rest}/v1/tokens/{token}/holders\n"),
            format!("  curl -s '{rest}/v1/search?q=club'\n"),
        ];
        say(format_args!(
            "a synthetic chain of ERC-20, ERC-721 and ERC-1155 traffic, archived in {dir}\n\
             {served}\n\nTry:\n{}",
            tries.concat()
        ));
    };
    let job = Job {
        source: Arc::new(source),
        first_height: Height::ZERO,
        asked: Asked { contracts: Some(Arc::new(SyntheticNode(answers))), ..Asked::default() },
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

/// What an archive has of its demo chain already: without it the chain begins.
#[derive(Debug, Default, PartialEq, Eq)]
struct Past {
    /// The newest block.
    tip: Option<u64>,
    genesis_timestamp_s: u64,
    /// 0 where there is no second block that says it.
    block_time_s: u64,
    /// Where the demo stood still, and for how many seconds.
    pauses: Vec<(u64, u64)>,
}

impl Past {
    /// Reads it from block times: what is later than blocks in a row would be was a pause.
    async fn of(config: &Config) -> anyhow::Result<Past> {
        if config.raw.url.is_none() && !config.data_dir.join("raw.sqlite").is_file() {
            return Ok(Past::default());
        }
        match stores::stored_chain(config).await {
            Ok(Some(id)) if id.0 == SyntheticOptions::default().chain_id => {}
            // Of another chain: whoever opens it refuses that.
            Ok(_) => return Ok(Past::default()),
            Err(error) if matches!(error.downcast_ref(), Some(StoreError::OldSchema { .. })) => {
                return Ok(Past::default());
            }
            Err(error) => return Err(error),
        }
        let store = stores::open_reader(config, Access::Read).await?;
        let snapshot = store.snapshot().await?;
        let Some(tip) = snapshot.head().tip.map(|tip| tip.height.get()) else { return Ok(Past::default()) };
        let time = async |height: u64| -> anyhow::Result<u64> {
            let block = snapshot.block(Height(height), Parts::empty()).await?;
            let block = block.with_context(|| format!("block {height} of the demo is not stored"))?;
            Ok(block.facts.timestamp_ms / 1_000)
        };
        let genesis_timestamp_s = time(0).await?;
        if tip == 0 {
            return Ok(Past { tip: Some(0), genesis_timestamp_s, ..Past::default() });
        }
        let block_time_s = time(1).await?.saturating_sub(genesis_timestamp_s).max(1);
        let late = async |height: u64| -> anyhow::Result<u64> {
            Ok(time(height).await?.saturating_sub(genesis_timestamp_s + height * block_time_s))
        };
        // Lateness only grows: halves of a stretch that begins and ends as late are not looked at.
        let (mut pauses, mut stretches) = (Vec::new(), vec![((0, 0), (tip, late(tip).await?))]);
        while let Some((from, to)) = stretches.pop() {
            if from.1 == to.1 {
                continue;
            }
            if to.0 - from.0 == 1 {
                pauses.push((to.0, to.1.saturating_sub(from.1)));
                continue;
            }
            let middle = from.0 + (to.0 - from.0) / 2;
            let middle = (middle, late(middle).await?);
            stretches.extend([(middle, to), (from, middle)]);
        }
        Ok(Past { tip: Some(tip), genesis_timestamp_s, block_time_s, pauses })
    }

    /// The chain with its times: those that are stored, then those of a clock by which the next block is of now.
    fn timed(&self, options: SyntheticOptions, args: &DemoArgs, now_s: u64) -> SyntheticOptions {
        let usual = SyntheticOptions::default();
        let fixed = args.genesis_time_s.or(args.until.map(|_| usual.genesis_timestamp_s));
        let block_time_s = match fixed {
            _ if self.block_time_s > 0 => self.block_time_s,
            Some(_) => usual.block_time_s,
            None => (args.block_time_ms / 1_000).clamp(1, 86_400),
        };
        let Some(tip) = self.tip else {
            let genesis_timestamp_s =
                fixed.unwrap_or_else(|| now_s.saturating_sub(args.blocks.saturating_mul(block_time_s)));
            return SyntheticOptions { genesis_timestamp_s, block_time_s, ..options };
        };
        let mut timed = SyntheticOptions {
            genesis_timestamp_s: self.genesis_timestamp_s,
            block_time_s,
            pauses: self.pauses.clone(),
            ..options
        };
        if fixed.is_none() {
            let late = now_s.saturating_sub(timed.timestamp_s(args.blocks.max(tip + 1)));
            timed.pauses.extend((late > 0).then_some((tip + 1, late)));
        }
        timed
    }
}

/// Takes out of a configuration what is of another chain, and puts the archive into `temporary` where there is one.
fn make_fit(config: &mut Config, args: &DemoArgs, temporary: Option<&Path>) {
    // What a file in the working directory says of a chain and its nodes isn't of this one.
    config.chain = ChainConfig::default();
    (config.ingest.from, config.ingest.to) = (First::Height(0), None);
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

    fn demo_args(args: &[&str]) -> DemoArgs {
        let Command::Demo(args) = Cli::parse_from([&["cairn", "demo"], args].concat()).command else {
            panic!("it is the demo");
        };
        args
    }

    #[test]
    fn the_newest_block_is_of_now_also_after_a_pause() {
        let now_s = 2_000_000_000;
        let made = Past::default().timed(SyntheticOptions::default(), &demo_args(&[]), now_s);
        assert_eq!((made.timestamp_s(1_000), made.block_time_s), (now_s, 2));
        let past = Past {
            tip: Some(1_500),
            genesis_timestamp_s: made.genesis_timestamp_s,
            block_time_s: 2,
            pauses: vec![(1_200, 7)],
        };
        let later = past.timed(SyntheticOptions::default(), &demo_args(&[]), now_s + 86_400);
        assert_eq!(later.timestamp_s(1_501), now_s + 86_400);
        // What is stored stays as it is.
        assert_eq!(later.timestamp_s(1_199), made.timestamp_s(1_199));
        assert_eq!(later.timestamp_s(1_500), made.timestamp_s(1_500) + 7);
        // For comparisons the clock is left alone.
        let fixed = Past::default().timed(SyntheticOptions::default(), &demo_args(&["--until", "9"]), now_s);
        assert_eq!(fixed.timestamp_s(0), SyntheticOptions::default().genesis_timestamp_s);
    }

    #[test]
    fn payloads_of_a_database_that_stays_do_not_go_with_the_temporary_directory() {
        let args = demo_args(&[]);
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
