//! The networks: their names, contracts that the chain itself relies on, and sporks.

use cairn_core::{ChainId, FLOW_NETWORKS};

use crate::FlowAddress;

/// A network, by the `chain_id` text of its blocks; in the order of [`FLOW_NETWORKS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Network {
    /// `flow-mainnet`.
    Mainnet,
    /// `flow-testnet`.
    Testnet,
    /// `flow-emulator`.
    Emulator,
}

/// Accounts of the contracts that decoders look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accounts {
    /// `FlowToken`.
    pub flow_token: FlowAddress,
    /// `FungibleToken`.
    pub fungible_token: FlowAddress,
    /// `FlowFees`.
    pub flow_fees: FlowAddress,
    /// `NonFungibleToken` and `MetadataViews`.
    pub non_fungible_token: FlowAddress,
    /// The service account: `EVM`, `FlowTransactionScheduler` and others.
    pub service: FlowAddress,
    /// `FlowIDTableStaking` and `FlowEpoch`.
    pub staking: FlowAddress,
    /// `LockedTokens` and `FlowStakingCollection`.
    pub locked_tokens: FlowAddress,
    /// `FlowEVMBridge`.
    pub evm_bridge: FlowAddress,
}

/// A spork: a stretch of heights that one set of nodes serves, from its root to the next one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spork {
    /// Its name.
    pub name: &'static str,
    /// The first height that its nodes serve.
    pub root_height: u64,
}

const MAINNET_EVM: u64 = 747;
const TESTNET_EVM: u64 = 545;
const OTHER_EVM: u64 = 646;

impl Network {
    /// By its `chain_id`; `None` for names that this version doesn't know.
    pub fn from_chain_id(chain_id: &str) -> Option<Network> {
        let networks = [Network::Mainnet, Network::Testnet, Network::Emulator];
        networks.into_iter().find(|network| network.chain_id() == chain_id)
    }

    /// The text in its blocks.
    pub fn chain_id(self) -> &'static str {
        FLOW_NETWORKS[self as usize].1
    }

    /// The number that stands for it in stores.
    pub fn chain_number(self) -> ChainId {
        FLOW_NETWORKS[self as usize].0
    }

    /// The EIP-155 chain id of its EVM.
    pub fn evm_chain_id(self) -> u64 {
        match self {
            Network::Mainnet => MAINNET_EVM,
            Network::Testnet => TESTNET_EVM,
            Network::Emulator => OTHER_EVM,
        }
    }

    /// Where the contracts stand.
    pub fn accounts(self) -> Accounts {
        let account = |number: u64| FlowAddress(number.to_be_bytes());
        match self {
            Network::Mainnet => Accounts {
                flow_token: account(0x1654_6533_9904_0a61),
                fungible_token: account(0xf233_dcee_88fe_0abe),
                flow_fees: account(0xf919_ee77_447b_7497),
                non_fungible_token: account(0x1d7e_57aa_5581_7448),
                service: account(0xe467_b9dd_11fa_00df),
                staking: account(0x8624_b52f_9ddc_d04a),
                locked_tokens: account(0x8d0e_87b6_5159_ae63),
                evm_bridge: account(0x1e4a_a0b8_7d10_b141),
            },
            Network::Testnet => Accounts {
                flow_token: account(0x7e60_df04_2a9c_0868),
                fungible_token: account(0x9a07_66d9_3b66_08b7),
                flow_fees: account(0x912d_5440_f7e3_769e),
                non_fungible_token: account(0x631e_88ae_7f1d_7c20),
                service: account(0x8c53_03ea_a262_02d6),
                staking: account(0x9eca_2b38_b18b_5dfe),
                locked_tokens: account(0x95e0_19a1_7d0e_23d7),
                evm_bridge: account(0xdfc2_0aee_650f_cbdf),
            },
            Network::Emulator => Accounts {
                flow_token: account(0x0ae5_3cb6_e3f4_2a79),
                fungible_token: account(0xee82_856b_f20e_2aa6),
                flow_fees: account(0xe5a8_b7f2_3e8b_548f),
                non_fungible_token: account(0xf8d6_e058_6b0a_20c7),
                service: account(0xf8d6_e058_6b0a_20c7),
                staking: account(0xf8d6_e058_6b0a_20c7),
                locked_tokens: account(0xf8d6_e058_6b0a_20c7),
                evm_bridge: account(0xf8d6_e058_6b0a_20c7),
            },
        }
    }

    /// The first block of Cadence 1.0, whose syntax older ones don't know: the root of mainnet25 and of devnet51. `None`: all blocks have it.
    pub fn cadence_1_root(self) -> Option<u64> {
        match self {
            Network::Mainnet => Some(85_981_135),
            Network::Testnet => Some(211_176_670),
            Network::Emulator => None,
        }
    }

    /// Where the spork ends in which a height lies: the next one's root. `None`: no later one is known.
    pub fn spork_end(self, height: u64) -> Option<Spork> {
        self.sporks().iter().copied().find(|spork| spork.root_height > height)
    }

    /// Its sporks by ascending root (onflow/flow `sporks.json`). Empty where there is only one set of nodes.
    pub fn sporks(self) -> &'static [Spork] {
        match self {
            Network::Mainnet => MAINNET_SPORKS,
            Network::Testnet => TESTNET_SPORKS,
            Network::Emulator => &[],
        }
    }
}

const fn spork(name: &'static str, root_height: u64) -> Spork {
    Spork { name, root_height }
}

const MAINNET_SPORKS: &[Spork] = &[
    spork("mainnet1", 7_601_063),
    spork("mainnet2", 8_742_959),
    spork("mainnet3", 9_737_133),
    spork("mainnet4", 9_992_020),
    spork("mainnet5", 12_020_337),
    spork("mainnet6", 12_609_237),
    spork("mainnet7", 13_404_174),
    spork("mainnet8", 13_950_742),
    spork("mainnet9", 14_892_104),
    spork("mainnet10", 15_791_891),
    spork("mainnet11", 16_755_602),
    spork("mainnet12", 17_544_523),
    spork("mainnet13", 18_587_478),
    spork("mainnet14", 19_050_753),
    spork("mainnet15", 21_291_692),
    spork("mainnet16", 23_830_813),
    spork("mainnet17", 27_341_470),
    spork("mainnet18", 31_735_955),
    spork("mainnet19", 35_858_811),
    spork("mainnet20", 40_171_634),
    spork("mainnet21", 44_950_207),
    spork("mainnet22", 47_169_687),
    spork("mainnet23", 55_114_467),
    spork("mainnet24", 65_264_619),
    spork("mainnet25", 85_981_135),
    spork("mainnet26", 88_226_267),
    spork("mainnet27", 130_290_659),
    spork("mainnet28", 137_390_146),
];

const TESTNET_SPORKS: &[Spork] =
    &[spork("devnet52", 218_215_349), spork("devnet53", 280_224_020), spork("devnet54", 305_778_201)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sporks_ascend() {
        for network in [Network::Mainnet, Network::Testnet, Network::Emulator] {
            assert!(network.sporks().is_sorted_by(|a, b| a.root_height < b.root_height));
            assert_eq!(Network::from_chain_id(network.chain_id()), Some(network));
        }
        assert_eq!(Network::from_chain_id("flow-previewnet"), None);
        let crescendo = MAINNET_SPORKS.iter().find(|spork| spork.name == "mainnet25");
        assert_eq!(Network::Mainnet.cadence_1_root(), crescendo.map(|spork| spork.root_height));
        let end = |height| Network::Mainnet.spork_end(height).map(|spork| spork.name);
        assert_eq!(
            [130_290_658, 130_290_659, 137_390_145, 137_390_146].map(end),
            [Some("mainnet27"), Some("mainnet28"), Some("mainnet28"), None]
        );
    }

    /// Stores have the numbers; people read the names.
    #[test]
    fn numbers_of_networks_are_for_ever_and_read_as_names() {
        let numbers = [Network::Mainnet, Network::Testnet, Network::Emulator].map(Network::chain_number);
        assert_eq!(
            numbers.map(|number| number.0),
            [0x464c_4f57_0000_0001, 0x464c_4f57_0000_0002, 0x464c_4f57_0000_0003]
        );
        assert_eq!(
            numbers.map(|number| number.to_string()),
            ["flow-mainnet", "flow-testnet", "flow-emulator"]
        );
        assert_eq!(ChainId(747).to_string(), "747");
    }
}
