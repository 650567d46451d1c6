//! Fees: of the next block, of blobs, and the history.
//!
//! What headers say is taken from them. Only what no header says yet (the fee of the block after the head) or what they never say (the price of
//! blob gas) needs the chain's fork schedule. Where that isn't known the upstream is asked. Without one a history has `null` in that
//! place, and a method that asks for nothing else is an error. Nothing is guessed.

use cairn_core::{Height, HeightRange, Parts, StoredBlock};
use cairn_evm::fees::{
    BlockFees, Reward, blob_base_fee, fee_history_json, next_base_fee, next_blob_base_fee, reward_percentiles,
};
use cairn_evm::{
    Arguments, BlockView, FeeError, FeeHeader, ForkSchedule, parse_block_tag, parse_count, parse_percentiles,
};
use serde_json::Value;

use super::blocks::RECEIPT_PARTS;
use super::logs::{MAX_STARTS, moved_too_often};
use super::read::{Reading, Reorganised, size_bytes, work};
use super::{EthApi, Refusal, Response};
use crate::error::RpcError;

/// Bytes of blocks that are read at once.
const CHUNK_BYTES: u64 = 4 << 20;

fn fee_error(error: FeeError) -> RpcError {
    RpcError::server(error.to_string())
}

/// A fee by the chain's rules. `None`: they are not Ethereum's.
fn known<T>(fee: Result<T, FeeError>) -> Result<Option<T>, RpcError> {
    match fee {
        Err(FeeError::ForeignRules { .. }) => Ok(None),
        fee => fee.map(Some).map_err(fee_error),
    }
}

/// The schedule, unless a fork that it knows by name only may have changed the rules.
fn rules(schedule: Option<&ForkSchedule>, timestamp: u64) -> Option<&ForkSchedule> {
    schedule.filter(|schedule| schedule.unknown_fork_at(timestamp).is_none())
}

/// Why [`rules`] has none.
fn no_rules(schedule: Option<&ForkSchedule>, what: &str, timestamp: u64) -> RpcError {
    let why = match schedule.and_then(|schedule| schedule.unknown_fork_at(timestamp)) {
        Some(fork) => {
            format!("the chain's configuration schedules `{fork}`, which this version doesn't know. Configure")
        }
        None => {
            "this chain's fork schedule is not known here. Give the chain's genesis file when ingesting, or configure"
                .to_owned()
        }
    };
    RpcError::server(format!("{what} can't be computed: {why} a node to ask (`serve.upstream`, --upstream)"))
}

/// Wei per blob gas in a block; 0 before blobs. `None`: the rules aren't known. Without a schedule the lowest price is Ethereum's.
fn blob_price(schedule: Option<&ForkSchedule>, header: &FeeHeader) -> Result<Option<u128>, RpcError> {
    match header.excess_blob_gas {
        None => Ok(Some(0)),
        Some(0) => {
            let params = schedule.and_then(|schedule| schedule.blob_params(header.timestamp));
            Ok(Some(params.map_or(1, |params| params.min_price.into())))
        }
        Some(_) => {
            let Some(schedule) = rules(schedule, header.timestamp) else { return Ok(None) };
            match known(blob_base_fee(schedule, header))? {
                Some(None) => Err(no_blobs_scheduled(header)),
                price => Ok(price.flatten()),
            }
        }
    }
}

/// A header with blob gas at a time when the schedule has no blobs: one of them is wrong, and no price follows from that (law 2).
fn no_blobs_scheduled(header: &FeeHeader) -> RpcError {
    RpcError::server(format!(
        "a block of time {} has blob gas, but the chain's fork schedule has no blobs then. Give the chain's own genesis file when ingesting",
        header.timestamp
    ))
}

/// The fees of the block after `header`, by the rules: `(base fee, blob base fee)`, each `None` where the rules aren't known.
fn next_fees(
    schedule: Option<&ForkSchedule>,
    header: &FeeHeader,
) -> Result<(Option<u128>, Option<u128>), RpcError> {
    let Some(schedule) = rules(schedule, header.timestamp) else { return Ok((None, None)) };
    let or_zero = |fee: Option<u128>| fee.unwrap_or(0);
    Ok((
        known(next_base_fee(schedule, header))?.map(or_zero),
        known(next_blob_base_fee(schedule, header))?.map(or_zero),
    ))
}

/// The fees of one block, without those of the next.
fn fees_of(
    schedule: Option<&ForkSchedule>,
    block: StoredBlock,
    percentiles: Option<&[f64]>,
) -> Result<BlockFees, RpcError> {
    let view = BlockView::decode(block, None)?;
    let header = FeeHeader::from(view.header()?);
    let blob_gas_used_ratio = match header.blob_gas_used {
        None | Some(0) => Some(0.0),
        Some(used) => match rules(schedule, header.timestamp) {
            None => None,
            Some(schedule) => {
                let params = schedule.blob_params(header.timestamp);
                let params = params.ok_or_else(|| no_blobs_scheduled(&header))?;
                Some(ratio(used, params.max_blob_gas()))
            }
        },
    };
    let rewards = match percentiles {
        Some(percentiles) => Some(reward_percentiles(header.gas_used, rewards(&view, &header)?, percentiles)),
        None => None,
    };
    Ok(BlockFees {
        base_fee: header.base_fee.unwrap_or(0).into(),
        next_base_fee: None,
        blob_base_fee: blob_price(schedule, &header)?,
        next_blob_base_fee: None,
        gas_used_ratio: ratio(header.gas_used, header.gas_limit),
        blob_gas_used_ratio,
        rewards,
    })
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn rewards(view: &BlockView, header: &FeeHeader) -> Result<Vec<Reward>, RpcError> {
    let number = |value: Option<&Value>| u128::from_str_radix(value?.as_str()?.strip_prefix("0x")?, 16).ok();
    let base_fee = u128::from(header.base_fee.unwrap_or(0));
    let reward = |receipt: &Value| {
        let price = number(receipt.get("effectiveGasPrice"))?;
        let gas_used = u64::try_from(number(receipt.get("gasUsed"))?).ok()?;
        Some(Reward { priority_fee: price.saturating_sub(base_fee), gas_used })
    };
    // Transactions without a price (injected by the chain) pay no priority fee to anybody.
    Ok(view.receipts_json()?.iter().filter_map(|receipt| reward(receipt)).collect())
}

/// Whether nothing of a history is unknown. Of the fees of the next block those of the last one count.
fn is_whole(fees: &[BlockFees]) -> bool {
    let of_blobs = |block: &BlockFees| block.blob_base_fee.is_some() && block.blob_gas_used_ratio.is_some();
    let of_next = |last: &BlockFees| last.next_base_fee.is_some() && last.next_blob_base_fee.is_some();
    fees.iter().all(of_blobs) && fees.last().is_none_or(of_next)
}

/// A checked `eth_feeHistory` request.
struct History {
    range: HeightRange,
    percentiles: Option<Vec<f64>>,
}

impl EthApi {
    /// Wei per gas in the block after the head.
    pub(super) async fn base_fee(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        Arguments::new(params, 0)?;
        let reading = self.read().await?;
        let header = self.head_fees(&reading).await?;
        let schedule = self.schedule(&reading.head().info);
        let refusal = match rules(schedule.as_deref(), header.timestamp) {
            None => no_rules(schedule.as_deref(), "the next block's base fee", header.timestamp),
            Some(rules) => match next_base_fee(rules, &header) {
                Ok(Some(fee)) => return Ok(Response::of(&format!("0x{fee:x}"))?),
                Ok(None) => return Ok(Response::null()),
                Err(error) => fee_error(error),
            },
        };
        Err(Refusal::Elsewhere(refusal))
    }

    /// Wei per blob gas at the head.
    pub(super) async fn blob_base_fee(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        Arguments::new(params, 0)?;
        let reading = self.read().await?;
        let header = self.head_fees(&reading).await?;
        if header.excess_blob_gas.is_none() {
            return Ok(Response::null());
        }
        let schedule = self.schedule(&reading.head().info);
        let refusal = match blob_price(schedule.as_deref(), &header) {
            Ok(Some(price)) => return Ok(Response::of(&format!("0x{price:x}"))?),
            Ok(None) => no_rules(schedule.as_deref(), "the blob base fee", header.timestamp),
            Err(error) => error,
        };
        Err(Refusal::Elsewhere(refusal))
    }

    async fn head_fees(&self, reading: &Reading) -> Result<FeeHeader, RpcError> {
        let (_, tip) = reading.bounds().ok_or_else(RpcError::empty_archive)?;
        self.fee_header(reading, tip.height).await
    }

    async fn fee_header(&self, reading: &Reading, height: Height) -> Result<FeeHeader, RpcError> {
        let block = reading.stored(height, Parts::HEADER).await?;
        Ok(FeeHeader::from(BlockView::decode(block, None)?.header()?))
    }

    /// What headers prove. What only the fork schedule says is asked of the upstream, with all else; without one it is `null`.
    pub(super) async fn fee_history(&self, params: Option<&Value>) -> Result<Response, Refusal> {
        for _ in 0..MAX_STARTS {
            let mut reading = self.read().await?;
            let Some(history) = self.history(params, &reading)? else {
                return Ok(Response::of(&fee_history_json(0, &[]))?);
            };
            let oldest = history.range.start().get();
            match self.read_history(&mut reading, history).await? {
                Ok(fees) if self.upstream.is_some() && !is_whole(&fees) => {
                    return Err(Refusal::Elsewhere(no_rules(None, "the next block's fee", 0)));
                }
                Ok(fees) => return Ok(Response::of(&fee_history_json(oldest, &fees))?),
                Err(Reorganised) => continue,
            }
        }
        Err(moved_too_often().into())
    }

    /// Checks the parameters; `None`: no blocks were asked for.
    fn history(&self, params: Option<&Value>, reading: &Reading) -> Result<Option<History>, RpcError> {
        let arguments = Arguments::new(params, 3)?;
        let count = arguments.required(0, parse_count)?;
        let newest = arguments.required(1, parse_block_tag)?;
        let percentiles =
            arguments.optional(2, parse_percentiles)?.filter(|percentiles| !percentiles.is_empty());
        let max = self.limits.max_fee_history_blocks;
        if count > max {
            return Err(RpcError::invalid_params(format!(
                "blockCount {count} is over the limit of {max} blocks"
            )));
        }
        if count == 0 {
            return Ok(None);
        }
        let (first, tip) = reading.bounds().ok_or_else(RpcError::empty_archive)?;
        let Some(last) = reading.height_of(newest)? else {
            return Err(RpcError::server(format!(
                "request beyond head block: requested {newest}, head {}",
                tip.height
            )));
        };
        // There is nothing before genesis: shorter answers say so by their `oldestBlock`. A hole is another matter.
        let oldest = last.saturating_sub(count - 1);
        if oldest < first {
            return Err(RpcError::pruned(oldest, first));
        }
        Ok(Some(History { range: HeightRange::inclusive(oldest, last), percentiles }))
    }

    async fn read_history(
        &self,
        reading: &mut Reading,
        History { range, percentiles }: History,
    ) -> Result<Result<Vec<BlockFees>, Reorganised>, RpcError> {
        let (Some((_, tip)), Some(last)) = (reading.bounds(), range.last()) else {
            return Err(RpcError::empty_archive());
        };
        let parts = if percentiles.is_some() { RECEIPT_PARTS } else { Parts::HEADER };
        let schedule = self.schedule(&reading.head().info);
        let mut fees: Vec<BlockFees> = Vec::with_capacity(range.len() as usize);
        while (fees.len() as u64) < range.len() {
            // One more than the last may be read below.
            if let Err(moved) = reading.renew_if_old(last.next()).await? {
                return Ok(Err(moved));
            }
            let rest = HeightRange::new(range.start() + fees.len() as u64, range.end());
            let blocks = reading.snapshot().blocks(rest, parts, CHUNK_BYTES).await?.blocks;
            if blocks.is_empty() {
                return Err(RpcError::internal(format!("block {} could not be read", rest.start())));
            }
            let (schedule, percentiles) = (schedule.clone(), percentiles.clone());
            let more = work(blocks.iter().map(size_bytes).sum(), move || {
                blocks
                    .into_iter()
                    .map(|block| fees_of(schedule.as_deref(), block, percentiles.as_deref()))
                    .collect::<Result<Vec<_>, _>>()
            })
            .await?;
            fees.extend(more);
        }
        let (base_fee, blob_fee) = if last < tip.height {
            let next = self.fee_header(reading, last.next()).await?;
            (Some(next.base_fee.unwrap_or(0).into()), blob_price(schedule.as_deref(), &next)?)
        } else {
            next_fees(schedule.as_deref(), &self.fee_header(reading, last).await?)?
        };
        if let Some(newest) = fees.last_mut() {
            (newest.next_base_fee, newest.next_blob_base_fee) = (base_fee, blob_fee);
        }
        Ok(Ok(fees))
    }
}
