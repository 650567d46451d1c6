//! Fees of blocks and of the block after them: `eth_baseFee`, `eth_blobBaseFee`, `eth_feeHistory`.
//!
//! Pure functions over headers and pairs of (priority fee, gas used), with go-ethereum's rounding throughout (EIP-1559, EIP-4844,
//! EIP-7691, EIP-7918). A chain with other fee rules than Ethereum's is refused, never guessed. Values of hostile headers neither
//! overflow nor panic.

use alloy_consensus::Header;
use alloy_eips::eip1559::{
    DEFAULT_BASE_FEE_MAX_CHANGE_DENOMINATOR, DEFAULT_ELASTICITY_MULTIPLIER, INITIAL_BASE_FEE,
};
use alloy_eips::eip4844::DATA_GAS_PER_BLOB;
use alloy_eips::eip7840::BLOB_BASE_COST;
use alloy_primitives::U256;
use cairn_core::{ErrorKind, Height};
use serde_json::{Map, Value, json};

use crate::schedule::{BlobParams, Fork, ForkSchedule};

/// The most blocks that one `eth_feeHistory` covers; go-ethereum cuts a longer request down to it.
pub const MAX_FEE_HISTORY_BLOCKS: u64 = 1024;

/// Fees that can't be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeeError {
    /// The chain has its own rules.
    #[error(
        "the chain's configuration has `{rules}`: its fee rules are not Ethereum's, and this server doesn't know them"
    )]
    ForeignRules {
        /// The configuration's key.
        rules: &'static str,
    },
    /// The header and the chain's configuration contradict each other.
    #[error(
        "block {height} has {field} where the chain's configuration says otherwise; check the genesis file that was given"
    )]
    Mismatch {
        /// The block.
        height: Height,
        /// What it has or hasn't.
        field: &'static str,
    },
}

impl FeeError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::GiveUp
    }
}

/// What fees depend on in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeeHeader {
    /// The block's height.
    pub height: u64,
    /// Its time, in seconds since 1970.
    pub timestamp: u64,
    /// The most gas that it could use.
    pub gas_limit: u64,
    /// The gas that it used.
    pub gas_used: u64,
    /// Wei per gas; `None` before London.
    pub base_fee: Option<u64>,
    /// The blob gas that it used; `None` before Cancun.
    pub blob_gas_used: Option<u64>,
    /// The blob gas in excess of the target before it; `None` before Cancun.
    pub excess_blob_gas: Option<u64>,
}

impl From<&Header> for FeeHeader {
    fn from(header: &Header) -> FeeHeader {
        FeeHeader {
            height: header.number,
            timestamp: header.timestamp,
            gas_limit: header.gas_limit,
            gas_used: header.gas_used,
            base_fee: header.base_fee_per_gas,
            blob_gas_used: header.blob_gas_used,
            excess_blob_gas: header.excess_blob_gas,
        }
    }
}

impl FeeHeader {
    fn mismatch(&self, field: &'static str) -> FeeError {
        FeeError::Mismatch { height: Height(self.height), field }
    }
}

/// The base fee of the block after `parent`, in wei per gas: what `eth_baseFee` says at the head. `None`: the next block is before
/// London.
pub fn next_base_fee(schedule: &ForkSchedule, parent: &FeeHeader) -> Result<Option<u128>, FeeError> {
    let london = |height| schedule.is_active(Fork::London, height, parent.timestamp);
    if !london(parent.height.saturating_add(1)) {
        return Ok(None);
    }
    if let Some(rules) = schedule.foreign_fee_rules() {
        return Err(FeeError::ForeignRules { rules });
    }
    if !london(parent.height) {
        return Ok(Some(INITIAL_BASE_FEE.into()));
    }
    let base_fee: u128 = parent.base_fee.ok_or_else(|| parent.mismatch("no base fee"))?.into();
    let target = parent.gas_limit / DEFAULT_ELASTICITY_MULTIPLIER;
    if target == 0 {
        // No real block has so low a gas limit; without a target the fee doesn't move.
        return Ok(Some(base_fee));
    }
    // Both factors are below 2^64.
    let delta = |gas: u64| {
        base_fee * u128::from(gas) / u128::from(target) / u128::from(DEFAULT_BASE_FEE_MAX_CHANGE_DENOMINATOR)
    };
    Ok(Some(match parent.gas_used.checked_sub(target) {
        Some(0) => base_fee,
        Some(above) => base_fee.saturating_add(delta(above).max(1)),
        None => base_fee.saturating_sub(delta(target - parent.gas_used)),
    }))
}

/// The price of blob gas in the block of `header`, in wei. `None` before Cancun.
pub fn blob_base_fee(schedule: &ForkSchedule, header: &FeeHeader) -> Result<Option<u128>, FeeError> {
    let Some(excess) = header.excess_blob_gas else { return Ok(None) };
    Ok(Some(blob_params(schedule, header)?.blob_base_fee(excess)))
}

/// The price of blob gas in the block after `parent`, in wei, by the rules in force at `parent`. `None` where `parent` is before
/// Cancun.
pub fn next_blob_base_fee(schedule: &ForkSchedule, parent: &FeeHeader) -> Result<Option<u128>, FeeError> {
    if parent.excess_blob_gas.is_none() {
        return Ok(None);
    }
    let params = blob_params(schedule, parent)?;
    let osaka = schedule.is_active(Fork::Osaka, parent.height, parent.timestamp);
    Ok(Some(params.blob_base_fee(next_excess_blob_gas(&params, osaka, parent))))
}

/// The `excessBlobGas` of the block after `parent` (EIP-4844; with `osaka` also the reserve price of EIP-7918).
pub fn next_excess_blob_gas(params: &BlobParams, osaka: bool, parent: &FeeHeader) -> u64 {
    let excess = parent.excess_blob_gas.unwrap_or(0);
    let used = parent.blob_gas_used.unwrap_or(0);
    let total = excess.saturating_add(used);
    let target = params.target.saturating_mul(DATA_GAS_PER_BLOB);
    if total < target {
        return 0;
    }
    if osaka {
        let reserve_price = U256::from(BLOB_BASE_COST) * U256::from(parent.base_fee.unwrap_or(0));
        let blob_price = U256::from(params.blob_base_fee(excess)) * U256::from(DATA_GAS_PER_BLOB);
        if reserve_price > blob_price {
            let room = params.max.saturating_sub(params.target);
            let scaled = used.saturating_mul(room).checked_div(params.max).unwrap_or(0);
            return excess.saturating_add(scaled);
        }
    }
    total - target
}

fn blob_params(schedule: &ForkSchedule, header: &FeeHeader) -> Result<BlobParams, FeeError> {
    if let Some(rules) = schedule.foreign_fee_rules() {
        return Err(FeeError::ForeignRules { rules });
    }
    schedule.blob_params(header.timestamp).ok_or_else(|| header.mismatch("blob gas"))
}

/// One block's part of `eth_feeHistory`. What the chain's fork schedule has to say is `None` where that isn't known.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockFees {
    /// Wei per gas; 0 before London.
    pub base_fee: u128,
    /// That of the next block.
    pub next_base_fee: Option<u128>,
    /// Wei per blob gas; 0 before Cancun.
    pub blob_base_fee: Option<u128>,
    /// That of the next block.
    pub next_blob_base_fee: Option<u128>,
    /// Gas used as a part of the limit.
    pub gas_used_ratio: f64,
    /// Blob gas used as a part of the most that a block takes; 0 before Cancun.
    pub blob_gas_used_ratio: Option<f64>,
    /// The priority fees at the percentiles that were asked for, in wei per gas; `None`: none were asked for.
    pub rewards: Option<Vec<u128>>,
}

/// The fees of a block. `rewards`: what [`reward_percentiles`] said, where percentiles were asked for.
pub fn block_fees(
    schedule: &ForkSchedule,
    header: &FeeHeader,
    rewards: Option<Vec<u128>>,
) -> Result<BlockFees, FeeError> {
    let max_blob_gas = schedule.blob_params(header.timestamp).map_or(0, |params| params.max_blob_gas());
    Ok(BlockFees {
        base_fee: header.base_fee.unwrap_or(0).into(),
        next_base_fee: Some(next_base_fee(schedule, header)?.unwrap_or(0)),
        blob_base_fee: Some(blob_base_fee(schedule, header)?.unwrap_or(0)),
        next_blob_base_fee: Some(next_blob_base_fee(schedule, header)?.unwrap_or(0)),
        gas_used_ratio: ratio(header.gas_used, header.gas_limit),
        blob_gas_used_ratio: Some(ratio(header.blob_gas_used.unwrap_or(0), max_blob_gas)),
        rewards,
    })
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What one transaction paid beyond the base fee, and for how much gas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reward {
    /// The effective priority fee, in wei per gas: the effective gas price less the block's base fee.
    pub priority_fee: u128,
    /// The gas that the transaction used: the difference of cumulative gas to the one before.
    pub gas_used: u64,
}

/// The priority fees at `percentiles` (growing, 0 to 100) of a block's gas, cheapest transactions first. All 0 for a block without
/// transactions. `block_gas_used` is the header's.
pub fn reward_percentiles(block_gas_used: u64, mut rewards: Vec<Reward>, percentiles: &[f64]) -> Vec<u128> {
    // Stable, as in go-ethereum: at equal fees the place in the block decides.
    rewards.sort_by_key(|reward| reward.priority_fee);
    let mut rewards = rewards.into_iter().peekable();
    let Some(mut current) = rewards.next() else { return vec![0; percentiles.len()] };
    let mut gas_so_far = current.gas_used;
    percentiles
        .iter()
        .map(|percentile| {
            let threshold = (block_gas_used as f64 * percentile / 100.0) as u64;
            while gas_so_far < threshold
                && let Some(next) = rewards.next()
            {
                current = next;
                gas_so_far = gas_so_far.saturating_add(next.gas_used);
            }
            current.priority_fee
        })
        .collect()
}

/// The answer to `eth_feeHistory` from the fees of the blocks from `oldest` on. The fees of the block after the last one stand at
/// the end of each list of fees. What isn't known is `null` in its place.
pub fn fee_history_json(oldest: u64, blocks: &[BlockFees]) -> Value {
    let Some(last) = blocks.last() else {
        // go-ethereum's words for "no blocks".
        return json!({"oldestBlock": "0x0", "gasUsedRatio": null});
    };
    let wei = |fee: u128| Value::String(format!("{fee:#x}"));
    let fees = |fee: fn(&BlockFees) -> Option<u128>, next: Option<u128>| -> Value {
        blocks.iter().map(fee).chain([next]).map(|fee| fee.map_or(Value::Null, wei)).collect()
    };
    let mut answer = Map::new();
    answer.insert("oldestBlock".into(), format!("{oldest:#x}").into());
    let rewards: Option<Vec<Value>> =
        blocks.iter().map(|block| Some(block.rewards.as_ref()?.iter().copied().map(wei).collect())).collect();
    if let Some(rewards) = rewards {
        answer.insert("reward".into(), rewards.into());
    }
    answer.insert("baseFeePerGas".into(), fees(|block| Some(block.base_fee), last.next_base_fee));
    answer.insert("gasUsedRatio".into(), blocks.iter().map(|block| number(block.gas_used_ratio)).collect());
    answer.insert("baseFeePerBlobGas".into(), fees(|block| block.blob_base_fee, last.next_blob_base_fee));
    answer.insert(
        "blobGasUsedRatio".into(),
        blocks.iter().map(|block| block.blob_gas_used_ratio.map_or(Value::Null, number)).collect(),
    );
    Value::Object(answer)
}

/// A ratio as nodes write it: 0 and 1 without a fraction.
fn number(ratio: f64) -> Value {
    if ratio == 0.0 || ratio == 1.0 { Value::from(ratio as u64) } else { Value::from(ratio) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn suite() -> Option<ForkSchedule> {
        let genesis = crate::testdata::conformance("genesis.json")?;
        Some(ForkSchedule::from_genesis_json(&genesis).expect("the suite's configuration"))
    }

    /// The headers of the suite's chain, from block 1 on.
    fn headers() -> Vec<FeeHeader> {
        let chain = crate::testdata::conformance("chain.rlp").expect("beside genesis.json");
        let mut rest = &chain[..];
        let mut headers = Vec::new();
        while !rest.is_empty() {
            let mut block = crate::rlp::next(&mut rest).expect("a block").items().expect("a list");
            let header = block.next().expect("a header").expect("whole").raw;
            headers.push(FeeHeader::from(&alloy_rlp::decode_exact::<Header>(header).expect("a header")));
        }
        headers
    }

    #[test]
    fn every_header_of_the_suite_has_the_fees_that_its_parent_gives() {
        let Some(schedule) = suite() else { return };
        let headers = headers();
        for pair in headers.windows(2) {
            let (parent, child) = (&pair[0], &pair[1]);
            assert_eq!(
                next_base_fee(&schedule, parent),
                Ok(child.base_fee.map(u128::from)),
                "the base fee of block {}",
                child.height
            );
            if let Some(excess) = child.excess_blob_gas {
                let params = schedule.blob_params(child.timestamp).expect("after Cancun");
                let osaka = schedule.is_active(Fork::Osaka, child.height, child.timestamp);
                assert_eq!(next_excess_blob_gas(&params, osaka, parent), excess, "block {}", child.height);
            }
        }
    }

    #[test]
    fn the_suites_answers_are_exact() {
        let Some(schedule) = suite() else { return };
        let headers = headers();
        let head = headers.last().expect("54 blocks");
        let expected = |case| crate::testdata::conformance_result(case).expect("beside genesis.json");
        let hex =
            |fee: Result<Option<u128>, FeeError>| fee.map(|fee| fee.map(|fee| json!(format!("{fee:#x}"))));
        assert_eq!(
            hex(next_base_fee(&schedule, head)),
            Ok(Some(expected("eth_baseFee/get-current-basefee")))
        );
        let blob_fee = Ok(Some(expected("eth_blobBaseFee/get-current-blobfee")));
        assert_eq!(hex(next_blob_base_fee(&schedule, head)), blob_fee);
        assert_eq!(hex(blob_base_fee(&schedule, head)), blob_fee);

        // Block 27 has one transaction, whose priority fee is 1 wei.
        let header = &headers[26];
        assert_eq!(header.height, 27);
        let paid = vec![Reward { priority_fee: 1, gas_used: header.gas_used }];
        let rewards = reward_percentiles(header.gas_used, paid, &[95.0, 99.0]);
        let fees = block_fees(&schedule, header, Some(rewards)).expect("Ethereum's rules");
        assert_eq!(fee_history_json(27, &[fees]), expected("eth_feeHistory/fee-history"));
    }

    #[test]
    fn base_fees_move_as_in_eip_1559() {
        let schedule =
            ForkSchedule::from_genesis_json(br#"{"chainId":1,"londonBlock":5}"#).expect("a schedule");
        let parent = |height, gas_used, base_fee| FeeHeader {
            height,
            timestamp: 0,
            gas_limit: 20_000_000,
            gas_used,
            base_fee,
            blob_gas_used: None,
            excess_blob_gas: None,
        };
        // go-ethereum's own table.
        for (gas_used, next) in
            [(10_000_000, 1_000_000_000), (9_000_000, 987_500_000), (11_000_000, 1_012_500_000)]
        {
            assert_eq!(next_base_fee(&schedule, &parent(32, gas_used, Some(1_000_000_000))), Ok(Some(next)));
        }
        assert_eq!(next_base_fee(&schedule, &parent(32, 20_000_000, Some(0))), Ok(Some(1)));
        assert_eq!(next_base_fee(&schedule, &parent(32, 0, Some(1))), Ok(Some(1)));
        assert_eq!(next_base_fee(&schedule, &parent(3, 0, None)), Ok(None));
        assert_eq!(next_base_fee(&schedule, &parent(4, 0, None)), Ok(Some(1_000_000_000)));
        assert!(matches!(next_base_fee(&schedule, &parent(5, 0, None)), Err(FeeError::Mismatch { .. })));
        let foreign = br#"{"chainId":10,"londonBlock":5,"optimism":{"eip1559Elasticity":6}}"#;
        let foreign = ForkSchedule::from_genesis_json(foreign).expect("a schedule");
        assert!(matches!(
            next_base_fee(&foreign, &parent(9, 0, Some(1))),
            Err(FeeError::ForeignRules { rules: "optimism" })
        ));
    }

    #[test]
    fn blob_gas_in_excess_follows_the_target_and_the_reserve_price() {
        let params = BlobParams { target: 6, max: 9, update_fraction: 5_007_716, min_price: 1 };
        let gas = |blobs: u64| blobs * DATA_GAS_PER_BLOB;
        let parent = |excess, used, base_fee| FeeHeader {
            height: 1,
            timestamp: 0,
            gas_limit: 0,
            gas_used: 0,
            base_fee: Some(base_fee),
            blob_gas_used: Some(used),
            excess_blob_gas: Some(excess),
        };
        assert_eq!(next_excess_blob_gas(&params, false, &parent(0, gas(5), 1)), 0);
        assert_eq!(next_excess_blob_gas(&params, false, &parent(0, gas(9), 1)), gas(3));
        assert_eq!(next_excess_blob_gas(&params, false, &parent(gas(8), 0, 1)), gas(2));
        // The reserve price of EIP-7918: 2^13 × base fee against 2^17 × blob fee; the blob fee is 1 here.
        assert_eq!(next_excess_blob_gas(&params, true, &parent(0, gas(9), 16)), gas(3));
        assert_eq!(next_excess_blob_gas(&params, true, &parent(0, gas(9), 17)), gas(9) * 3 / 9);
        assert_eq!(next_excess_blob_gas(&params, true, &parent(gas(8), 0, 17)), gas(8));
    }

    #[test]
    fn percentiles_are_weighted_by_gas() {
        let paid = |list: &[(u128, u64)]| {
            list.iter().map(|&(priority_fee, gas_used)| Reward { priority_fee, gas_used }).collect::<Vec<_>>()
        };
        let rewards = paid(&[(30, 100), (10, 700), (20, 200)]);
        assert_eq!(
            reward_percentiles(1000, rewards, &[0.0, 70.0, 70.1, 90.0, 90.1, 100.0]),
            [10, 10, 20, 20, 30, 30]
        );
        assert_eq!(reward_percentiles(0, Vec::new(), &[1.0, 2.0]), [0, 0]);
        assert_eq!(reward_percentiles(1000, paid(&[(5, 1)]), &[]), []);
    }

    #[test]
    fn no_blocks_have_no_ratios() {
        assert_eq!(fee_history_json(5, &[]), json!({"oldestBlock": "0x0", "gasUsedRatio": null}));
    }

    proptest! {
        #[test]
        fn hostile_headers_do_no_harm(
            (height, timestamp, gas_limit, gas_used) in any::<(u64, u64, u64, u64)>(),
            (base_fee, blob_gas_used, excess_blob_gas) in any::<(Option<u64>, Option<u64>, Option<u64>)>(),
        ) {
            let schedule = ForkSchedule::known(1).expect("built in");
            let header =
                FeeHeader { height, timestamp, gas_limit, gas_used, base_fee, blob_gas_used, excess_blob_gas };
            if let Ok(fees) = block_fees(&schedule, &header, None) {
                prop_assert!(fee_history_json(0, &[fees]).is_object());
            }
        }
    }
}
