//! When each fork of a chain becomes active, and what depends on it: blob parameters and the fork id.
//!
//! A schedule is read from a geth-style configuration or built in for the public Ethereum networks. Names of forks that this
//! version doesn't know are kept: they count in the fork id, their blob parameters apply, and whatever else they may
//! change is refused rather than guessed (see [`ForkSchedule::unknown_fork_at`]).
//!
//! Sources: EIP-2124 and EIP-6122 (fork id), EIP-7840 (blob schedule), EIP-7892 (blob-parameter-only forks); go-ethereum `params/config.go`.

use std::collections::BTreeMap;

use alloy_eips::eip2124::{ForkHash, ForkId};
use alloy_eips::eip4844::{BLOB_TX_MIN_BLOB_GASPRICE, DATA_GAS_PER_BLOB, fake_exponential};
use alloy_primitives::{Address, B256, U256};
use cairn_core::ChainId;
use serde_json::{Map, Value};

use self::networks::NETWORKS;
use crate::genesis::{Fields, GenesisError, loose_quantity};

mod networks;

/// The most forks that a configuration may name.
const MAX_FORKS: usize = 256;

/// A fork that this version knows, in the order of activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // They are proper names.
pub enum Fork {
    Homestead,
    Dao,
    Eip150,
    Eip155,
    Eip158,
    Byzantium,
    Constantinople,
    Petersburg,
    Istanbul,
    MuirGlacier,
    Berlin,
    London,
    ArrowGlacier,
    GrayGlacier,
    Paris,
    Shanghai,
    Cancun,
    Prague,
    Osaka,
    Bpo1,
    Bpo2,
    Bpo3,
    Bpo4,
    Bpo5,
    Amsterdam,
    Bogota,
}

/// Each fork's key in a configuration; `…Block` keys are heights, `…Time` keys are seconds since 1970.
const KEYS: [(Fork, &str); 26] = [
    (Fork::Homestead, "homesteadBlock"),
    (Fork::Dao, "daoForkBlock"),
    (Fork::Eip150, "eip150Block"),
    (Fork::Eip155, "eip155Block"),
    (Fork::Eip158, "eip158Block"),
    (Fork::Byzantium, "byzantiumBlock"),
    (Fork::Constantinople, "constantinopleBlock"),
    (Fork::Petersburg, "petersburgBlock"),
    (Fork::Istanbul, "istanbulBlock"),
    (Fork::MuirGlacier, "muirGlacierBlock"),
    (Fork::Berlin, "berlinBlock"),
    (Fork::London, "londonBlock"),
    (Fork::ArrowGlacier, "arrowGlacierBlock"),
    (Fork::GrayGlacier, "grayGlacierBlock"),
    (Fork::Paris, "mergeNetsplitBlock"),
    (Fork::Shanghai, "shanghaiTime"),
    (Fork::Cancun, "cancunTime"),
    (Fork::Prague, "pragueTime"),
    (Fork::Osaka, "osakaTime"),
    (Fork::Bpo1, "bpo1Time"),
    (Fork::Bpo2, "bpo2Time"),
    (Fork::Bpo3, "bpo3Time"),
    (Fork::Bpo4, "bpo4Time"),
    (Fork::Bpo5, "bpo5Time"),
    (Fork::Amsterdam, "amsterdamTime"),
    (Fork::Bogota, "bogotaTime"),
];

/// Keys of a configuration whose chains have other fee rules than Ethereum's.
const FOREIGN_FEE_RULES: [&str; 6] = ["optimism", "bor", "parlia", "arbitrum", "taiko", "celo"];

/// How many blobs blocks take and how their price moves (EIP-7840).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobParams {
    /// The number of blobs in a block at which the price stays.
    pub target: u64,
    /// The most blobs in a block.
    pub max: u64,
    /// How slowly the price moves (`baseFeeUpdateFraction`). Never 0.
    pub update_fraction: u64,
    /// The lowest price of a unit of blob gas, in wei.
    pub min_price: u64,
}

/// Ethereum's.
const MIN_PRICE: u64 = BLOB_TX_MIN_BLOB_GASPRICE as u64;

impl BlobParams {
    const CANCUN: BlobParams =
        BlobParams { target: 3, max: 6, update_fraction: 3_338_477, min_price: MIN_PRICE };
    const PRAGUE: BlobParams =
        BlobParams { target: 6, max: 9, update_fraction: 5_007_716, min_price: MIN_PRICE };
    const BPO1: BlobParams =
        BlobParams { target: 10, max: 15, update_fraction: 8_346_193, min_price: MIN_PRICE };
    const BPO2: BlobParams =
        BlobParams { target: 14, max: 21, update_fraction: 11_684_671, min_price: MIN_PRICE };

    /// The most blob gas in a block.
    pub fn max_blob_gas(&self) -> u64 {
        self.max.saturating_mul(DATA_GAS_PER_BLOB)
    }

    /// The price of a unit of blob gas, in wei, in a block with this excess (EIP-4844). `u128::MAX` where it doesn't fit, which
    /// no chain reaches: there is not so much ether.
    pub fn blob_base_fee(&self, excess_blob_gas: u64) -> u128 {
        fake_exponential(self.min_price.into(), excess_blob_gas.into(), self.update_fraction.into())
    }

    fn parse(name: &str, value: &Value) -> Result<BlobParams, GenesisError> {
        let field = |key: &str| {
            value.get(key).and_then(loose_quantity).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
                GenesisError::field(
                    format!("config.blobSchedule.{name}.{key}"),
                    "a number below 2^32 is needed",
                )
            })
        };
        let params = BlobParams {
            target: field("target")?.into(),
            max: field("max")?.into(),
            update_fraction: field("baseFeeUpdateFraction")?.into(),
            min_price: MIN_PRICE,
        };
        if params.update_fraction == 0 || params.target > params.max {
            return Err(GenesisError::field(
                format!("config.blobSchedule.{name}"),
                "baseFeeUpdateFraction must not be 0, and target not above max",
            ));
        }
        Ok(params)
    }
}

/// When a chain's forks become active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkSchedule {
    chain_id: ChainId,
    genesis_hash: Option<B256>,
    genesis_timestamp: u64,
    merged_at_genesis: bool,
    deposit_contract: Address,
    /// Height or time, as the fork's key says.
    known: BTreeMap<Fork, u64>,
    unknown_blocks: Vec<(String, u64)>,
    unknown_times: Vec<(String, u64)>,
    /// In the order of their times.
    blob_steps: Vec<(u64, BlobParams)>,
    foreign_fees: Option<&'static str>,
}

impl ForkSchedule {
    fn new(chain_id: u64) -> ForkSchedule {
        ForkSchedule {
            chain_id: ChainId(chain_id),
            genesis_hash: None,
            genesis_timestamp: 0,
            merged_at_genesis: false,
            deposit_contract: Address::ZERO,
            known: BTreeMap::new(),
            unknown_blocks: Vec::new(),
            unknown_times: Vec::new(),
            blob_steps: Vec::new(),
            foreign_fees: None,
        }
    }

    /// Reads a geth-style genesis file (with or without `alloc`) or the `config` object of one.
    ///
    /// Cancun and Prague have Ethereum's blob parameters where `blobSchedule` doesn't give any (files older than EIP-7840 don't).
    pub fn from_genesis_json(json: &[u8]) -> Result<ForkSchedule, GenesisError> {
        let fields = Fields::parse(json)?;
        let config = match fields.value("config")? {
            Some(config) => config,
            None if fields.value("chainId")?.is_some() => {
                serde_json::from_slice(json).map_err(|error| GenesisError::Json(error.to_string()))?
            }
            None => return Err(GenesisError::Missing("config".into())),
        };
        let Value::Object(config) = config else {
            return Err(GenesisError::field("config", "not an object"));
        };
        let mut schedule = ForkSchedule::from_config(&config)?;
        schedule.genesis_timestamp = fields.quantity("timestamp")?.unwrap_or(0);
        Ok(schedule)
    }

    fn from_config(config: &Map<String, Value>) -> Result<ForkSchedule, GenesisError> {
        let path = |key: &str| format!("config.{key}");
        let integer = |key: &str, value: &Value| {
            loose_quantity(value)
                .and_then(|n| u64::try_from(n).ok())
                .ok_or_else(|| GenesisError::field(path(key), format!("not a 64-bit integer: {value}")))
        };
        let chain_id = config.get("chainId").ok_or_else(|| GenesisError::Missing(path("chainId")))?;
        let mut schedule = ForkSchedule::new(integer("chainId", chain_id)?);
        for (key, value) in config.iter().filter(|(_, value)| !value.is_null()) {
            if let Some((fork, _)) = KEYS.iter().find(|(_, known)| known == key) {
                schedule.known.insert(*fork, integer(key, value)?);
            } else if key.ends_with("Time") && value.is_number() {
                schedule.unknown_times.push((key.clone(), integer(key, value)?));
            } else if key.ends_with("Block") && value.is_number() {
                schedule.unknown_blocks.push((key.clone(), integer(key, value)?));
            } else if key == "depositContractAddress" {
                schedule.deposit_contract = serde_json::from_value(value.clone())
                    .map_err(|error| GenesisError::field(path(key), error))?;
            } else if key == "terminalTotalDifficulty" {
                // Only "merged from the start" matters here; larger numbers may have more digits than a double holds.
                schedule.merged_at_genesis =
                    loose_quantity(value) == Some(U256::ZERO) || value.as_f64() == Some(0.0);
            } else if let Some(rules) = FOREIGN_FEE_RULES.into_iter().find(|rules| rules == key) {
                schedule.foreign_fees = Some(rules);
            }
        }
        if schedule.unknown_times.len() + schedule.unknown_blocks.len() > MAX_FORKS {
            return Err(GenesisError::field("config", format!("more than {MAX_FORKS} unknown forks")));
        }
        schedule.unknown_times.sort_by_key(|(_, time)| *time);
        schedule.blob_steps = schedule.read_blob_schedule(config.get("blobSchedule"))?;
        Ok(schedule)
    }

    fn read_blob_schedule(&self, given: Option<&Value>) -> Result<Vec<(u64, BlobParams)>, GenesisError> {
        let given = match given {
            None | Some(Value::Null) => &Map::new(),
            Some(Value::Object(given)) => given,
            Some(_) => return Err(GenesisError::field("config.blobSchedule", "not an object")),
        };
        let known = KEYS
            .iter()
            .filter_map(|(fork, key)| Some((*key, Some(*fork), *self.known.get(fork)?)))
            .filter(|(key, ..)| key.ends_with("Time"));
        let unknown = self.unknown_times.iter().map(|(key, time)| (key.as_str(), None, *time));
        let mut steps = Vec::new();
        for (key, fork, time) in known.chain(unknown) {
            let name = key.trim_end_matches("Time");
            let params = match (given.get(name), fork) {
                (Some(params), _) => BlobParams::parse(name, params)?,
                (None, Some(Fork::Cancun)) => BlobParams::CANCUN,
                (None, Some(Fork::Prague)) => BlobParams::PRAGUE,
                (None, Some(Fork::Bpo1 | Fork::Bpo2 | Fork::Bpo3 | Fork::Bpo4 | Fork::Bpo5)) => {
                    return Err(GenesisError::Missing(format!("config.blobSchedule.{name}")));
                }
                // Every other fork inherits what was in force before it.
                (None, _) => continue,
            };
            steps.push((time, params));
        }
        // Stable: of forks at the same time the newer one, which stands later in the table, has the last word.
        steps.sort_by_key(|(time, _)| *time);
        Ok(steps)
    }

    /// The built-in schedule of a public network: Ethereum's mainnet (1), Sepolia (11155111), Hoodi (560048), Holesky (17000), and Gnosis (100).
    pub fn known(chain_id: u64) -> Option<ForkSchedule> {
        let network = NETWORKS.iter().find(|network| network.chain_id == chain_id)?;
        let mut schedule = ForkSchedule::new(chain_id);
        schedule.genesis_hash = Some(network.genesis_hash);
        schedule.genesis_timestamp = network.genesis_timestamp;
        schedule.merged_at_genesis = network.merged_at_genesis;
        schedule.deposit_contract = network.deposit_contract;
        schedule.known.extend(network.forks_at_genesis.iter().map(|fork| (*fork, 0)));
        schedule.known.extend(network.forks.iter().copied());
        let own = |forks: &[(&str, u64)]| forks.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect();
        schedule.unknown_blocks = own(network.own_blocks);
        schedule.unknown_times = own(network.own_times);
        schedule.blob_steps = network
            .blobs
            .iter()
            .filter_map(|(fork, params)| Some((*schedule.known.get(fork)?, *params)))
            .collect();
        Some(schedule)
    }

    /// The chain.
    pub fn chain_id(&self) -> ChainId {
        self.chain_id
    }

    /// The hash of block 0, where the schedule is a built-in one.
    pub fn genesis_hash(&self) -> Option<B256> {
        self.genesis_hash
    }

    /// The time of block 0, in seconds since 1970.
    pub fn genesis_timestamp(&self) -> u64 {
        self.genesis_timestamp
    }

    /// The beacon chain's deposit contract (EIP-6110); zero where the configuration doesn't say.
    pub fn deposit_contract(&self) -> Address {
        self.deposit_contract
    }

    /// The key of the configuration that says that this chain has other fee rules than Ethereum's.
    pub fn foreign_fee_rules(&self) -> Option<&'static str> {
        self.foreign_fees
    }

    /// The height or time (seconds since 1970) at which a fork becomes active; `None`: not scheduled.
    pub fn activation(&self, fork: Fork) -> Option<u64> {
        self.known.get(&fork).copied()
    }

    /// Whether `fork` is active in a block. Forks by time need London first, as in go-ethereum.
    ///
    /// Paris has no height in most configurations: then it counts as active from the start of a chain without proof of work, and from
    /// Shanghai on one that had it.
    pub fn is_active(&self, fork: Fork, height: u64, timestamp: u64) -> bool {
        let reached = |fork: Fork, at: u64| self.activation(fork).is_some_and(|activation| activation <= at);
        match fork {
            Fork::Paris => {
                self.merged_at_genesis
                    || reached(fork, height)
                    || self.is_active(Fork::Shanghai, height, timestamp)
            }
            Fork::Petersburg if self.activation(fork).is_none() => reached(Fork::Constantinople, height),
            _ if fork < Fork::Paris => reached(fork, height),
            _ => reached(Fork::London, height) && reached(fork, timestamp),
        }
    }

    /// The newest fork by time that is active at `timestamp`; `None` before Shanghai.
    pub fn latest_time_fork(&self, timestamp: u64) -> Option<Fork> {
        self.time_forks().filter(|(_, time)| *time <= timestamp).map(|(fork, _)| fork).max()
    }

    /// The forks that have a time.
    pub(crate) fn time_forks(&self) -> impl Iterator<Item = (Fork, u64)> + '_ {
        let scheduled = self.known.contains_key(&Fork::London);
        self.known.range(Fork::Shanghai..).filter(move |_| scheduled).map(|(fork, time)| (*fork, *time))
    }

    /// A fork that is active at `timestamp`, that this version knows by name only, and that came after the ones it knows. What such a
    /// fork changed can't be said.
    pub fn unknown_fork_at(&self, timestamp: u64) -> Option<&str> {
        let newest_known = self.time_forks().map(|(_, time)| time).filter(|time| *time <= timestamp).max();
        self.unknown_times
            .iter()
            .rev()
            .find(|(_, time)| *time <= timestamp && newest_known.is_none_or(|known| *time >= known))
            .map(|(name, _)| name.as_str())
    }

    /// The blob parameters of blocks at `timestamp`; `None` before Cancun.
    pub fn blob_params(&self, timestamp: u64) -> Option<BlobParams> {
        self.blob_steps.iter().rev().find(|(time, _)| *time <= timestamp).map(|(_, params)| *params)
    }

    /// The price of a unit of blob gas, in wei, in a block at `timestamp` with this excess; `None` before Cancun.
    pub fn blob_base_fee(&self, excess_blob_gas: u64, timestamp: u64) -> Option<u128> {
        Some(self.blob_params(timestamp)?.blob_base_fee(excess_blob_gas))
    }

    /// The fork id of a node whose head is at `height` and `timestamp` (EIP-2124, EIP-6122).
    pub fn fork_id(&self, genesis_hash: B256, height: u64, timestamp: u64) -> ForkId {
        let mut hash = ForkHash::from(genesis_hash);
        let by_block = self.known.range(..Fork::Shanghai).map(|(_, at)| *at);
        let by_block = sorted(by_block.chain(self.unknown_blocks.iter().map(|(_, at)| *at)), 0);
        let by_time = self.known.range(Fork::Shanghai..).map(|(_, at)| *at);
        let by_time =
            sorted(by_time.chain(self.unknown_times.iter().map(|(_, at)| *at)), self.genesis_timestamp);
        let steps =
            by_block.into_iter().map(|at| (at, height)).chain(by_time.into_iter().map(|at| (at, timestamp)));
        for (at, now) in steps {
            if at > now {
                return ForkId { hash, next: at };
            }
            hash += at;
        }
        ForkId { hash, next: 0 }
    }
}

/// The activations after `genesis`, in order, without repeats.
fn sorted(activations: impl Iterator<Item = u64>, genesis: u64) -> Vec<u64> {
    let mut activations: Vec<_> = activations.filter(|at| *at > genesis).collect();
    activations.sort_unstable();
    activations.dedup();
    activations
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schedule(config: Value) -> Result<ForkSchedule, GenesisError> {
        ForkSchedule::from_genesis_json(json!({"config": config}).to_string().as_bytes())
    }

    fn known(chain_id: u64) -> ForkSchedule {
        ForkSchedule::known(chain_id).expect("a public network")
    }

    /// The fork ids that the networks' nodes announce: they depend on every number of the schedules.
    #[test]
    fn fork_ids_are_those_of_the_public_networks() {
        let id = |schedule: &ForkSchedule, height, timestamp| {
            let id = schedule.fork_id(schedule.genesis_hash().expect("built in"), height, timestamp);
            (u32::from_be_bytes(id.hash.0), id.next)
        };
        let mainnet = known(1);
        assert_eq!(id(&mainnet, 0, 0), (0xfc64ec04, 1_150_000));
        assert_eq!(id(&mainnet, 1_919_999, 0), (0x97c2c34c, 1_920_000));
        assert_eq!(id(&mainnet, 15_050_000, 0), (0xf0afd0e3, 1_681_338_455));
        assert_eq!(id(&mainnet, 20_000_000, 1_681_338_455), (0xdce96c2d, 1_710_338_135));
        assert_eq!(id(&mainnet, 30_000_000, 1_764_798_551), (0x5167e2a6, 1_765_290_071));
        assert_eq!(id(&mainnet, 30_000_000, 1_767_747_671), (0x07c9462e, 0));
        // The last one as a node of Gnosis answers `eth_config` since Osaka.
        let gnosis = known(100);
        assert_eq!(id(&gnosis, 0, 0), (0xf64909b1, 1_604_400));
        assert_eq!(id(&gnosis, 7_298_030, 0), (0x54d05e6c, 9_186_425));
        assert_eq!(id(&gnosis, 19_040_000, 0), (0x018479d3, 1_690_889_660));
        assert_eq!(id(&gnosis, 39_834_365, 1_746_021_820), (0x2f095d4a, 1_766_419_900));
        assert_eq!(id(&gnosis, 50_000_000, 1_776_168_380), (0xcfca387c, 0));
        assert_eq!(gnosis.blob_base_fee(0, 1_776_168_380), Some(1_000_000_000));
        let sepolia = known(11_155_111);
        assert_eq!(id(&sepolia, 0, 0), (0xfe3366e7, 1_735_371));
        assert_eq!(id(&sepolia, 1_735_372, 1_761_607_008), (0x268956b6, 1_791_294_816));
        assert_eq!(id(&sepolia, 1_735_372, 2_000_000_000), (0x6c1d9423, 0));
        let hoodi = known(560_048);
        assert_eq!(id(&hoodi, 0, 0), (0xbef71d30, 1_742_999_832));
        assert_eq!(id(&hoodi, 123, 1_762_955_544), (0x23aa1351, 0));
        let holesky = known(17_000);
        assert_eq!(id(&holesky, 0, 0), (0xc61a6098, 1_696_000_704));
        assert_eq!(id(&holesky, 123, 1_760_389_824), (0x9bc6cb31, 0));
        assert_eq!(ForkSchedule::known(31_337), None);
    }

    #[test]
    fn blob_parameters_change_at_their_times() {
        let mainnet = known(1);
        let at = |time| mainnet.blob_params(time).map(|params| (params.target, params.max));
        assert_eq!(at(1_710_338_134), None);
        assert_eq!(at(1_710_338_135), Some((3, 6)));
        assert_eq!(at(1_746_612_311), Some((6, 9)));
        // Osaka has none of its own.
        assert_eq!(at(1_764_798_551), Some((6, 9)));
        assert_eq!(at(1_765_290_071), Some((10, 15)));
        assert_eq!(at(u64::MAX), Some((14, 21)));
        // EIP-4844: the price is 1 wei up to an excess of about ln 2 fractions.
        assert_eq!(mainnet.blob_base_fee(0, 1_710_338_135), Some(1));
        assert_eq!(mainnet.blob_base_fee(2_314_057, 1_710_338_135), Some(1));
        assert_eq!(mainnet.blob_base_fee(2_314_058, 1_710_338_135), Some(2));
        assert_eq!(mainnet.blob_base_fee(10 * 1024 * 1024, 1_710_338_135), Some(23));
        assert_eq!(mainnet.blob_base_fee(u64::MAX, 1_710_338_135), Some(u128::MAX));
        assert_eq!(mainnet.blob_base_fee(0, 0), None);
    }

    #[test]
    fn forks_are_active_from_their_block_or_time_on() {
        let Some(genesis) = crate::testdata::conformance("genesis.json") else { return };
        let suite = ForkSchedule::from_genesis_json(&genesis).expect("the suite's configuration");
        assert_eq!(suite.chain_id(), ChainId(3_503_995_874_084_926));
        assert!(suite.is_active(Fork::Homestead, 0, 0));
        assert!(!suite.is_active(Fork::London, 26, 260));
        assert!(suite.is_active(Fork::London, 27, 270));
        assert!(!suite.is_active(Fork::Paris, 35, 350));
        assert!(suite.is_active(Fork::Paris, 36, 360));
        assert!(!suite.is_active(Fork::Shanghai, 38, 389));
        assert!(suite.is_active(Fork::Shanghai, 39, 390));
        // A fork by time needs London.
        assert!(!suite.is_active(Fork::Shanghai, 26, 390));
        assert!(suite.is_active(Fork::Bpo2, 54, 540));
        assert!(!suite.is_active(Fork::Amsterdam, 54, u64::MAX));
        assert_eq!(suite.latest_time_fork(389), None);
        assert_eq!(suite.latest_time_fork(539), Some(Fork::Bpo1));
        assert_eq!(suite.latest_time_fork(u64::MAX), Some(Fork::Bpo2));
        assert_eq!(suite.unknown_fork_at(u64::MAX), None);
    }

    #[test]
    fn forks_of_the_future_are_kept_by_name() {
        let future = schedule(json!({
            "chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0, "shanghaiTime": 0, "cancunTime": 10, "osakaTime": 15,
            "novaTime": 20, "bogotaTime": 30, "strangeBlock": 5, "isthmusTime": null, "bedrock": {"aTime": 1},
            "blobSchedule": {"cancun": {"target": 1, "max": 2, "baseFeeUpdateFraction": 100}, "nova": {"target": 4, "max": 8, "baseFeeUpdateFraction": 200}}
        }))
        .expect("tolerated");
        assert_eq!(future.unknown_fork_at(19), None);
        assert_eq!(future.unknown_fork_at(20), Some("novaTime"));
        // A newer fork that is known includes it.
        assert_eq!(future.unknown_fork_at(30), None);
        assert_eq!(future.blob_params(19).map(|p| p.max), Some(2));
        assert_eq!(future.blob_params(20).map(|p| p.max), Some(8));
        let genesis = B256::ZERO;
        assert_eq!(future.fork_id(genesis, 0, 0).next, 5);
        assert_eq!(future.fork_id(genesis, 5, 0).next, 10);
        assert_eq!(future.fork_id(genesis, 5, 15).next, 20);
        assert_eq!(future.fork_id(genesis, 5, 30).next, 0);
    }

    #[test]
    fn old_configurations_have_ethereums_blob_parameters() {
        let old = schedule(json!({"chainId": "0x7", "londonBlock": "0x0", "cancunTime": 1, "pragueTime": 2}))
            .expect("old");
        assert_eq!(old.chain_id(), ChainId(7));
        assert_eq!(old.blob_params(1), Some(BlobParams::CANCUN));
        assert_eq!(old.blob_params(2), Some(BlobParams::PRAGUE));
    }

    #[test]
    fn a_configuration_that_can_not_be_used_says_why() {
        let message = |config| schedule(config).map(|_| ()).unwrap_err().to_string();
        assert!(message(json!({})).contains("chainId"));
        assert!(message(json!([])).contains("not an object"));
        assert!(message(json!({"chainId": 1, "londonBlock": "soon"})).contains("config.londonBlock"));
        assert!(message(json!({"chainId": 1, "cancunTime": -1})).contains("config.cancunTime"));
        assert!(
            message(json!({"chainId": 1, "londonBlock": 0, "bpo1Time": 1})).contains("blobSchedule.bpo1")
        );
        let zero = json!({"target": 1, "max": 2, "baseFeeUpdateFraction": 0});
        assert!(
            message(json!({"chainId": 1, "cancunTime": 1, "blobSchedule": {"cancun": zero}}))
                .contains("Fraction")
        );
        let missing = json!({"target": 1});
        assert!(
            message(json!({"chainId": 1, "cancunTime": 1, "blobSchedule": {"cancun": missing}}))
                .contains("cancun.max")
        );
        assert!(ForkSchedule::from_genesis_json(b"{}").is_err());
        // The bare object is as good as the file.
        assert!(ForkSchedule::from_genesis_json(br#"{"chainId":1}"#).is_ok());
    }
}
