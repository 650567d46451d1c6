//! The public networks that follow Ethereum's rules.
//!
//! Numbers from go-ethereum's `params/chainspecs` (v1.17.10) and, for Holesky, which has ended, `params/config.go` of v1.16.7. The fork
//! ids that their nodes announce depend on each of them, and are tested. Gnosis: from its chain specification in Nethermind and Erigon, whose tests have
//! its fork ids too; Osaka from its nodes' `eth_config`.

use alloy_primitives::{Address, B256, address, b256};

use super::{BlobParams, Fork};

pub(super) struct Network {
    pub chain_id: u64,
    pub genesis_hash: B256,
    pub genesis_timestamp: u64,
    pub merged_at_genesis: bool,
    pub deposit_contract: Address,
    /// Active from height 0 on.
    pub forks_at_genesis: &'static [Fork],
    /// With their heights or times.
    pub forks: &'static [(Fork, u64)],
    /// Forks of its own by block, which count in the fork id.
    pub own_blocks: &'static [(&'static str, u64)],
    /// The same by time, in order.
    pub own_times: &'static [(&'static str, u64)],
    /// What each fork made of the blobs.
    pub blobs: &'static [(Fork, BlobParams)],
}

const ETHEREUMS_BLOBS: [(Fork, BlobParams); 4] = [
    (Fork::Cancun, BlobParams::CANCUN),
    (Fork::Prague, BlobParams::PRAGUE),
    (Fork::Bpo1, BlobParams::BPO1),
    (Fork::Bpo2, BlobParams::BPO2),
];

/// Every fork by block that the test networks have.
const UP_TO_LONDON: [Fork; 10] = [
    Fork::Homestead,
    Fork::Eip150,
    Fork::Eip155,
    Fork::Eip158,
    Fork::Byzantium,
    Fork::Constantinople,
    Fork::Petersburg,
    Fork::Istanbul,
    Fork::Berlin,
    Fork::London,
];

pub(super) const NETWORKS: [Network; 5] = [MAINNET, SEPOLIA, HOODI, HOLESKY, GNOSIS];

const MAINNET: Network = Network {
    chain_id: 1,
    genesis_hash: b256!("d4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3"),
    genesis_timestamp: 0,
    merged_at_genesis: false,
    deposit_contract: address!("00000000219ab540356cbb839cbe05303d7705fa"),
    forks_at_genesis: &[],
    forks: &[
        (Fork::Homestead, 1_150_000),
        (Fork::Dao, 1_920_000),
        (Fork::Eip150, 2_463_000),
        (Fork::Eip155, 2_675_000),
        (Fork::Eip158, 2_675_000),
        (Fork::Byzantium, 4_370_000),
        (Fork::Constantinople, 7_280_000),
        (Fork::Petersburg, 7_280_000),
        (Fork::Istanbul, 9_069_000),
        (Fork::MuirGlacier, 9_200_000),
        (Fork::Berlin, 12_244_000),
        (Fork::London, 12_965_000),
        (Fork::ArrowGlacier, 13_773_000),
        (Fork::GrayGlacier, 15_050_000),
        (Fork::Shanghai, 1_681_338_455),
        (Fork::Cancun, 1_710_338_135),
        (Fork::Prague, 1_746_612_311),
        (Fork::Osaka, 1_764_798_551),
        (Fork::Bpo1, 1_765_290_071),
        (Fork::Bpo2, 1_767_747_671),
    ],
    own_blocks: &[],
    own_times: &[],
    blobs: &ETHEREUMS_BLOBS,
};

const SEPOLIA: Network = Network {
    chain_id: 11_155_111,
    genesis_hash: b256!("25a5cc106eea7138acab33231d7160d69cb777ee0c2c553fcddf5138993e6dd9"),
    genesis_timestamp: 1_633_267_481,
    merged_at_genesis: false,
    deposit_contract: address!("7f02c3e3c98b133055b8b348b2ac625669ed295d"),
    forks_at_genesis: &UP_TO_LONDON,
    forks: &[
        (Fork::Paris, 1_735_371),
        (Fork::Shanghai, 1_677_557_088),
        (Fork::Cancun, 1_706_655_072),
        (Fork::Prague, 1_741_159_776),
        (Fork::Osaka, 1_760_427_360),
        (Fork::Bpo1, 1_761_017_184),
        (Fork::Bpo2, 1_761_607_008),
        (Fork::Amsterdam, 1_791_294_816),
    ],
    own_blocks: &[],
    own_times: &[],
    blobs: &ETHEREUMS_BLOBS,
};

const HOODI: Network = Network {
    chain_id: 560_048,
    genesis_hash: b256!("bbe312868b376a3001692a646dd2d7d1e4406380dfd86b98aa8a34d1557c971b"),
    genesis_timestamp: 1_742_212_800,
    merged_at_genesis: true,
    deposit_contract: address!("00000000219ab540356cbb839cbe05303d7705fa"),
    forks_at_genesis: &UP_TO_LONDON,
    forks: &[
        (Fork::Paris, 0),
        (Fork::Shanghai, 0),
        (Fork::Cancun, 0),
        (Fork::Prague, 1_742_999_832),
        (Fork::Osaka, 1_761_677_592),
        (Fork::Bpo1, 1_762_365_720),
        (Fork::Bpo2, 1_762_955_544),
    ],
    own_blocks: &[],
    own_times: &[],
    blobs: &ETHEREUMS_BLOBS,
};

const HOLESKY: Network = Network {
    chain_id: 17_000,
    genesis_hash: b256!("b5f7f912443c940f21fd611f12828d75b534364ed9e95ca4e307729a4661bde4"),
    genesis_timestamp: 1_695_902_100,
    merged_at_genesis: true,
    deposit_contract: address!("4242424242424242424242424242424242424242"),
    forks_at_genesis: &UP_TO_LONDON,
    forks: &[
        (Fork::Shanghai, 1_696_000_704),
        (Fork::Cancun, 1_707_305_664),
        (Fork::Prague, 1_740_434_112),
        (Fork::Osaka, 1_759_308_480),
        (Fork::Bpo1, 1_759_800_000),
        (Fork::Bpo2, 1_760_389_824),
    ],
    own_blocks: &[],
    own_times: &[],
    blobs: &ETHEREUMS_BLOBS,
};

const GNOSIS: Network = Network {
    chain_id: 100,
    genesis_hash: b256!("4f1dd23188aab3a76b463e4af801b52b1248ef073c648cbdc4c9333d3da79756"),
    genesis_timestamp: 0,
    merged_at_genesis: false,
    deposit_contract: address!("0b98057ea310f4d31f2a452b414647007d1645d9"),
    forks_at_genesis: &[Fork::Homestead, Fork::Eip150, Fork::Eip155, Fork::Eip158, Fork::Byzantium],
    forks: &[
        (Fork::Constantinople, 1_604_400),
        (Fork::Petersburg, 2_508_800),
        (Fork::Istanbul, 7_298_030),
        (Fork::Berlin, 16_101_500),
        (Fork::London, 19_040_000),
        (Fork::Shanghai, 1_690_889_660),
        (Fork::Cancun, 1_710_181_820),
        (Fork::Prague, 1_746_021_820),
        (Fork::Osaka, 1_776_168_380),
    ],
    own_blocks: &[("posdao", 9_186_425)],
    own_times: &[("balancer", 1_766_419_900)],
    blobs: &[(
        Fork::Cancun,
        BlobParams { target: 1, max: 2, update_fraction: 1_112_826, min_price: 1_000_000_000 },
    )],
};
