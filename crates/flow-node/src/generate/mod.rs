//! A chain from a seed. Every block depends on the seed, the fork, the height and the state before it, and on nothing else.
//!
//! The chain has three ages, as mainnet has: keys told as RLP; keys told as structs, and tokens' own events; and since Cadence 1.0 the events of the
//! standards, the EVM, and whole keys. Small blocks, many of everything: what a processor could get wrong comes often.
//!
//! | subject | module |
//! | --- | --- |
//! | putting a block together | `block` |
//! | transactions: who signs and pays, fees, failures | `transaction` |
//! | FLOW and `ExampleToken` | `fungible` |
//! | `ExampleNFT`, `OtherNFT` and `PackNFT` | `items` |
//! | what is on its way within a transaction | `moves` |
//! | accounts, keys, contracts | `accounts` |
//! | EVM | `evm` |
//! | what nobody asked for | `hostile` |

mod accounts;
mod block;
mod evm;
mod fungible;
mod hostile;
mod items;
mod moves;
mod transaction;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use cairn_flow::Network;
use cairn_flow::proto::Transaction;
use prost::Message;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::behaviour::Behaviour;
use crate::chain::Chain;
use crate::ledger::{Account, ContractId, Counters, Key, Ledger};
use crate::server::{State, lock};
use accounts::ELDER;
use block::BlockBuilder;

/// Milliseconds since 1970 of the root block.
const ROOT_TIME_MS: u64 = 1_770_000_000_000;
/// The first resource's id. High, so that ids use all 64 bits.
const FIRST_UUID: u64 = 0xf000_0000_0000_0000;

/// A block's result is agreed on so many blocks later.
const SEALED_AFTER: u64 = 2;

/// What chain it is.
#[derive(Debug, Clone)]
pub struct GeneratorOptions {
    /// Decides everything.
    pub seed: u64,
    /// Whose contracts stand where.
    pub network: Network,
    /// The first height.
    pub root_height: u64,
    /// User transactions of a block.
    pub transactions: RangeInclusive<usize>,
    /// How many accounts one transaction more in each block creates, and twice as often it mints items: much state with few transactions.
    pub crowd: usize,
    /// Blocks of the first age, in which keys are told as RLP.
    pub rlp_heights: u64,
    /// Blocks before Cadence 1.0, those of the first age among them.
    pub old_heights: u64,
    /// How many of the newest blocks aren't sealed yet.
    pub unsealed_heights: u64,
    /// Whether EVM transactions log what tokens and collections do. It draws no number, so that all else of a chain stays what it is.
    pub has_evm_tokens: bool,
    /// Whether an account is older than the root, and is named first by a later block. Of it no event tells.
    pub has_elder: bool,
    /// Whether blocks have oddities of the real network: a transaction once more, of the same block or of the one before, which then fails; a service event with an
    /// index missing behind it; scheduled calls that fail.
    pub is_odd: bool,
}

impl GeneratorOptions {
    /// Some of everything.
    pub fn new(seed: u64) -> GeneratorOptions {
        GeneratorOptions {
            seed,
            network: Network::Emulator,
            root_height: 1_000,
            transactions: 0..=6,
            crowd: 0,
            rlp_heights: 40,
            old_heights: 120,
            unsealed_heights: 0,
            has_evm_tokens: false,
            has_elder: false,
            is_odd: false,
        }
    }
}

/// Makes blocks.
#[derive(Clone)]
pub struct Generator {
    options: GeneratorOptions,
    /// How often the chain was taken back.
    forks: u64,
    /// The node's state, which it changes.
    state: Arc<Mutex<State>>,
}

/// Tokens and collections of a chain.
#[derive(Debug, Clone)]
pub(crate) struct Cast {
    /// The chain's own token.
    pub flow: ContractId,
    /// `ExampleToken`.
    pub example_token: ContractId,
    /// `ExampleNFT`, in the same account.
    pub example_nft: ContractId,
    /// `OtherNFT`, which since Cadence 1.0 emits events of both forms.
    pub other_nft: ContractId,
    /// `PackNFT`, which says of a destroyed item its id alone.
    pub pack_nft: ContractId,
}

impl Cast {
    fn of(network: Network) -> Cast {
        let places = network.accounts();
        Cast {
            flow: ContractId::new(places.flow_token, "FlowToken"),
            example_token: ContractId::new(places.service, "ExampleToken"),
            example_nft: ContractId::new(places.service, "ExampleNFT"),
            other_nft: ContractId::new(places.flow_fees, "OtherNFT"),
            pack_nft: ContractId::new(places.flow_token, "PackNFT"),
        }
    }
}

impl Generator {
    /// A chain without blocks yet.
    pub fn new(options: GeneratorOptions, behaviour: Behaviour) -> Generator {
        let mut ledger = Ledger::new(options.network);
        let before = options.root_height.saturating_sub(1);
        let places = options.network.accounts();
        for address in [places.service, places.flow_token, places.fungible_token, places.flow_fees] {
            let key = Key {
                public_key: vec![address.0[0]; 64],
                sign_algo: 1,
                hash_algo: 3,
                weight: 1000,
                revoked: None,
                is_in_doubt: false,
                told: None,
            };
            ledger.accounts.set(address, before, Account { keys: vec![key], ..Account::default() });
        }
        if options.has_elder {
            ledger.accounts.set(ELDER, before, accounts::elder(before));
        }
        ledger.counters.set(
            before,
            Counters {
                uuid: FIRST_UUID,
                accounts: 0,
                sequence: 0,
                items: 0,
                evm_height: 0,
                evm_hash: alloy_primitives::keccak256(options.seed.to_be_bytes()),
                scheduled: 1,
            },
        );
        let mut chain = Chain::empty(options.network, options.root_height);
        chain.unsealed_heights = options.unsealed_heights;
        let state = Arc::new(Mutex::new(State::new(chain, ledger, behaviour)));
        Generator { options, forks: 0, state }
    }

    /// What a node serves: see [`crate::FlowNode::serve`].
    pub fn state(&self) -> Arc<Mutex<State>> {
        self.state.clone()
    }

    /// Another node over the chain as it is now, with the same ledger: what a clean run is made from.
    pub fn copy(&self, behaviour: Behaviour) -> Arc<Mutex<State>> {
        let state = lock(&self.state);
        Arc::new(Mutex::new(State::new(state.chain.clone(), state.ledger.clone(), behaviour)))
    }

    /// Adds blocks. The node answers between two of them.
    pub fn grow(&self, blocks: u64) {
        for _ in 0..blocks {
            let mut state = lock(&self.state);
            let tip = state.chain.tip().map(|block| (block.header.height, block.id.clone()));
            let height = tip.as_ref().map_or(self.options.root_height, |(height, _)| height + 1);
            let parent_id = tip.map_or_else(|| vec![0; 32].into(), |(_, id)| id);
            let mut draw = Draw(self.options.seed);
            let rng = SmallRng::seed_from_u64(draw.mix(self.forks).mix(height).0);
            let State { chain, ledger, .. } = &mut *state;
            let sealed_id = height.checked_sub(SEALED_AFTER).and_then(|sealed| chain.at(sealed));
            let links = (parent_id, sealed_id.map(|block| block.id.clone()));
            let before = height.checked_sub(1).and_then(|before| chain.at(before));
            let before = before.and_then(|block| block.transactions.first()).filter(|tx| !tx.is_system());
            let before = before.and_then(|tx| Transaction::decode(tx.transaction.clone()).ok());
            let draft =
                BlockBuilder::new(&self.options, self.forks, ledger, rng, height, links).build(before);
            chain.push(&draft);
        }
    }

    /// Takes the newest blocks back, sealed ones too; what is added next is different.
    pub fn rollback(&mut self, blocks: u64) {
        let mut state = lock(&self.state);
        let Some(tip) = state.chain.tip().map(|block| block.header.height) else { return };
        let height = tip.saturating_sub(blocks).max(self.options.root_height);
        state.chain.rollback(height);
        state.ledger.truncate(height);
        self.forks += 1;
    }

    /// The newest sealed height.
    pub fn sealed_height(&self) -> u64 {
        lock(&self.state).chain.sealed().map_or(0, |block| block.header.height)
    }
}

/// Mixes numbers into one (splitmix64).
struct Draw(u64);

impl Draw {
    fn mix(&mut self, number: u64) -> &mut Draw {
        self.0 = (self.0 ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0 = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.0 = (self.0 ^ (self.0 >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 ^= self.0 >> 31;
        self
    }
}
