//! `eth_config` (EIP-7910): the current, next and last fork with what each brings.
//!
//! As go-ethereum answers it: forks by time only (before Shanghai `current` is `null`), block forks count as passed.

use alloy_eips::{eip2935, eip4788, eip7002, eip7251, eip8282};
use alloy_primitives::{Address, B256, hex};
use cairn_core::ErrorKind;
use serde_json::{Map, Value, json};

use crate::schedule::{Fork, ForkSchedule};

/// What a fork brings can't be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the chain's configuration schedules `{fork}`, a fork that this version knows by name only; a newer version of this program may \
     know it"
)]
pub struct UnknownFork {
    /// The fork's key in the configuration.
    pub fork: String,
}

impl UnknownFork {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::GiveUp
    }
}

/// Each precompiled contract with the fork by time that brought it; `Paris`: it was there before.
const PRECOMPILES: [(Fork, &str, u16); 18] = [
    (Fork::Paris, "BLAKE2F", 0x09),
    (Fork::Prague, "BLS12_G1ADD", 0x0b),
    (Fork::Prague, "BLS12_G1MSM", 0x0c),
    (Fork::Prague, "BLS12_G2ADD", 0x0d),
    (Fork::Prague, "BLS12_G2MSM", 0x0e),
    (Fork::Prague, "BLS12_MAP_FP2_TO_G2", 0x11),
    (Fork::Prague, "BLS12_MAP_FP_TO_G1", 0x10),
    (Fork::Prague, "BLS12_PAIRING_CHECK", 0x0f),
    (Fork::Paris, "BN254_ADD", 0x06),
    (Fork::Paris, "BN254_MUL", 0x07),
    (Fork::Paris, "BN254_PAIRING", 0x08),
    (Fork::Paris, "ECREC", 0x01),
    (Fork::Paris, "ID", 0x04),
    (Fork::Cancun, "KZG_POINT_EVALUATION", 0x0a),
    (Fork::Paris, "MODEXP", 0x05),
    (Fork::Osaka, "P256VERIFY", 0x100),
    (Fork::Paris, "RIPEMD160", 0x03),
    (Fork::Paris, "SHA256", 0x02),
];

impl ForkSchedule {
    /// The answer to `eth_config` of a node whose head's timestamp is `head_timestamp`. `genesis_hash`: of block 0.
    pub fn eth_config_json(&self, head_timestamp: u64, genesis_hash: B256) -> Result<Value, UnknownFork> {
        // The unknown forks are part of the schedule: an answer without them would be a wrong one.
        if let Some(fork) = self.unknown_fork_at(head_timestamp).or_else(|| self.unknown_fork_at(u64::MAX)) {
            return Err(UnknownFork { fork: fork.to_owned() });
        }
        let time_of = |fork: Option<Fork>| fork.and_then(|fork| self.activation(fork));
        let describe = |time: Option<u64>| time.map_or(Value::Null, |time| self.describe(time, genesis_hash));
        let current = time_of(self.latest_time_fork(head_timestamp));
        let next = self.time_forks().map(|(_, time)| time).filter(|time| *time > head_timestamp).min();
        // With nothing to come there is no last one either.
        let last = next.and_then(|_| time_of(self.latest_time_fork(u64::MAX)));
        Ok(json!({"current": describe(current), "next": describe(next), "last": describe(last)}))
    }

    fn describe(&self, time: u64, genesis_hash: B256) -> Value {
        let fork = self.latest_time_fork(time).unwrap_or(Fork::Paris);
        let precompiles: Map<String, Value> = PRECOMPILES
            .iter()
            .filter(|(since, ..)| *since <= fork)
            .map(|(_, name, address)| {
                ((*name).to_owned(), text(Address::left_padding_from(&address.to_be_bytes())))
            })
            .collect();
        let mut contracts = Map::new();
        let mut contract = |name: &str, address: Address| contracts.insert(name.to_owned(), text(address));
        if fork >= Fork::Cancun {
            contract("BEACON_ROOTS_ADDRESS", eip4788::BEACON_ROOTS_ADDRESS);
        }
        if fork >= Fork::Amsterdam {
            contract("BUILDER_DEPOSIT_CONTRACT_ADDRESS", eip8282::BUILDER_DEPOSIT_CONTRACT_ADDRESS);
            contract("BUILDER_EXIT_CONTRACT_ADDRESS", eip8282::BUILDER_EXIT_CONTRACT_ADDRESS);
        }
        if fork >= Fork::Prague {
            contract(
                "CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS",
                eip7251::CONSOLIDATION_REQUEST_PREDEPLOY_ADDRESS,
            );
            contract("DEPOSIT_CONTRACT_ADDRESS", self.deposit_contract());
            contract("HISTORY_STORAGE_ADDRESS", eip2935::HISTORY_STORAGE_ADDRESS);
            contract("WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS", eip7002::WITHDRAWAL_REQUEST_PREDEPLOY_ADDRESS);
        }
        let blobs = self.blob_params(time).map(|blobs| {
            json!({"target": blobs.target, "max": blobs.max, "baseFeeUpdateFraction": blobs.update_fraction})
        });
        json!({
            // A fork that was active at genesis has the time 0, whatever the configuration says.
            "activationTime": if time <= self.genesis_timestamp() { 0 } else { time },
            "blobSchedule": blobs,
            "chainId": format!("{:#x}", self.chain_id().0),
            "forkId": hex::encode_prefixed(self.fork_id(genesis_hash, u64::MAX, time).hash.0),
            "precompiles": precompiles,
            "systemContracts": contracts,
        })
    }
}

/// In lower case: addresses in answers have no checksum.
fn text(address: Address) -> Value {
    Value::String(hex::encode_prefixed(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::keccak256;

    #[test]
    fn the_suites_answer_is_exact() {
        let Some(genesis) = crate::testdata::conformance("genesis.json") else { return };
        let Some(expected) = crate::testdata::conformance_result("eth_config/get-config") else { return };
        let schedule = ForkSchedule::from_genesis_json(&genesis).expect("the suite's configuration");
        let genesis_hash = keccak256(crate::genesis::genesis_block(&genesis).expect("a genesis").header);
        assert_eq!(schedule.eth_config_json(540, genesis_hash), Ok(expected));
        // Before Shanghai there is no fork by time yet.
        let early = schedule.eth_config_json(10, genesis_hash).expect("known forks");
        assert_eq!(early["current"], Value::Null);
        assert_eq!(early["next"]["activationTime"], 390);
        assert_eq!(early["next"]["blobSchedule"], Value::Null);
        assert_eq!(early["next"]["precompiles"].as_object().map(Map::len), Some(9));
        assert_eq!(early["last"]["activationTime"], 540);
    }

    /// The example of EIP-7910 for Hoodi after Prague.
    #[test]
    fn hoodi_is_as_in_the_eip() {
        let hoodi = ForkSchedule::known(560_048).expect("built in");
        let hash = hoodi.genesis_hash().expect("built in");
        let config = hoodi.eth_config_json(1_742_999_833, hash).expect("known forks");
        assert_eq!(config["current"]["activationTime"], 1_742_999_832);
        assert_eq!(config["current"]["forkId"], "0x0929e24e");
        assert_eq!(config["current"]["chainId"], "0x88bb0");
        assert_eq!(config["current"]["precompiles"].as_object().map(Map::len), Some(17));
        assert_eq!(
            config["current"]["systemContracts"]["DEPOSIT_CONTRACT_ADDRESS"],
            "0x00000000219ab540356cbb839cbe05303d7705fa"
        );
        assert_eq!(config["next"]["forkId"], "0xe7e0e7ff");
        assert_eq!(config["last"]["forkId"], "0x23aa1351");
        // Cancun was active at genesis.
        let start = hoodi.eth_config_json(1_742_212_800, hash).expect("known forks");
        assert_eq!(start["current"]["activationTime"], 0);
        assert_eq!(start["current"]["forkId"], "0xbef71d30");
        assert_eq!(start["current"]["systemContracts"].as_object().map(Map::len), Some(1));
    }

    #[test]
    fn a_fork_that_is_not_known_is_refused_not_guessed() {
        let config = br#"{"chainId":7,"londonBlock":0,"shanghaiTime":0,"novaTime":20}"#;
        let schedule = ForkSchedule::from_genesis_json(config).expect("tolerated");
        let error = schedule.eth_config_json(5, B256::ZERO).expect_err("nova is unknown");
        assert_eq!(error.fork, "novaTime");
    }
}
