//! A tree of forks, each block of which follows from the seed.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use alloy_primitives::B256;
use cairn_core::{BlockId, BlockRef, ChainId, Height, LinkedRef, RawBlock};

use super::actions::Mix;
use super::assemble::{HeaderWords, Seal, contents, header, seal, withdrawals};
use super::draw::{Draw, hash_words};
use super::traffic::{Traffic, TrafficOptions, fails};

/// What a synthetic chain is like. The same options give the same chain, byte for byte.
#[derive(Debug, Clone)]
pub struct SyntheticOptions {
    /// Everything follows from it.
    pub seed: u64,
    /// EIP-155.
    pub chain_id: u64,
    /// How many transactions a block has.
    pub txs_per_block: RangeInclusive<u32>,
    /// Beside those that draw 0: one block in so many is empty; 0 for none.
    pub empty_block_once_in: u64,
    /// How many accounts sign; see [`TrafficOptions::signers`].
    pub signers: u32,
    /// How many addresses there are; see [`TrafficOptions::accounts`].
    pub accounts: u32,
    /// Which kinds of actions come, and how often.
    pub mix: Mix,
    /// How many of a hundred contract calls fail; in an economy those fail that ask for too much.
    pub failed_percent: u64,
    /// How many withdrawals a block has.
    pub withdrawals_per_block: u64,
    /// The time of block 0, in seconds since 1970.
    pub genesis_timestamp_s: u64,
    /// Seconds from one block's timestamp to the next one's.
    pub block_time_s: u64,
    /// Heights before which nobody made blocks for a while, and for how many seconds more than usual.
    pub pauses: Vec<(u64, u64)>,
    /// How many bytes of blocks are kept at hand; others are made again when they are asked for.
    pub cache_bytes: u64,
    /// Which stream of transactions the main chain takes; `None`: the seed's own. Chains of different seeds that share one
    /// [`Traffic`] and one stream carry the same transactions, so that signing is paid for once.
    pub stream: Option<u64>,
}

impl Default for SyntheticOptions {
    fn default() -> Self {
        SyntheticOptions {
            seed: 1,
            chain_id: 1_337,
            txs_per_block: 4..=20,
            empty_block_once_in: 12,
            signers: 64,
            accounts: 5_000,
            mix: Mix::Varied,
            failed_percent: 4,
            withdrawals_per_block: 2,
            genesis_timestamp_s: 1_700_000_000,
            block_time_s: 12,
            pauses: Vec::new(),
            cache_bytes: 64 << 20,
            stream: None,
        }
    }
}

impl SyntheticOptions {
    /// The smallest chain that still has everything in it: a few transactions a block, a handful of signers. With a shared
    /// traffic (see [`SyntheticChain::tiny_traffic`]) a hundred blocks take a few milliseconds.
    pub fn tiny(seed: u64) -> SyntheticOptions {
        SyntheticOptions {
            seed,
            txs_per_block: 0..=3,
            empty_block_once_in: 0,
            signers: 4,
            accounts: 40,
            withdrawals_per_block: 1,
            cache_bytes: 8 << 20,
            stream: Some(seed % 8),
            ..SyntheticOptions::default()
        }
    }

    /// The time of a block, in seconds since 1970.
    pub fn timestamp_s(&self, height: u64) -> u64 {
        let paused = self.pauses.iter().filter(|(from, _)| *from <= height).map(|(_, seconds)| seconds);
        self.genesis_timestamp_s + height * self.block_time_s + paused.sum::<u64>()
    }

    fn gas_limit(&self) -> u64 {
        // Blocks stay below the gas target, so that the base fee falls and every transaction can pay it.
        (u64::from(*self.txs_per_block.end()) * 500_000).max(30_000_000)
    }
}

/// One of a chain's forks; [`ForkId::MAIN`] is the one that begins at genesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForkId(u32);

impl ForkId {
    /// The fork that begins at genesis.
    pub const MAIN: ForkId = ForkId(0);
}

/// What the first block of a fork holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FirstBlock {
    /// Transactions as any other block of the fork.
    #[default]
    Drawn,
    /// None.
    Empty,
    /// Exactly the transactions of the block that it replaces, in the same order: only the header (and perhaps an outcome) differs.
    SameTransactions,
}

/// How a fork differs from the one that it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ForkOptions {
    /// Tells forks at one place apart; not 0.
    pub salt: u64,
    /// How many of a hundred transactions are the same signed ones that the left fork carries from there on, most of them at another place,
    /// some with another outcome.
    pub reincluded_percent: u8,
    /// What its first block holds.
    pub first_block: FirstBlock,
}

impl ForkOptions {
    /// Three quarters of the transactions included again.
    pub fn new(salt: u64) -> ForkOptions {
        ForkOptions { salt, reincluded_percent: 75, first_block: FirstBlock::Drawn }
    }
}

struct Fork {
    /// The last block that it shares, by a fork that has it; `None` on the main fork.
    base: Option<(ForkId, u64)>,
    options: ForkOptions,
    /// Told apart from all others in the tree.
    salt: u64,
    stream: u64,
    first: u64,
    /// Of its own blocks, from `first`: 56 bytes each, kept for ever.
    seals: Vec<Seal>,
}

#[derive(Default)]
struct Tree {
    forks: Vec<Fork>,
    known: HashMap<(ForkId, u64, ForkOptions), ForkId>,
    cache: HashMap<(ForkId, u64), Arc<RawBlock>>,
    /// In the order of their making: the oldest leave first.
    cached: VecDeque<(ForkId, u64)>,
    cached_bytes: u64,
}

/// A deterministic EVM chain made in process: no state, but every block holds against everything that cairn checks.
///
/// Blocks are made one after the other up to the one that is asked for (each needs its parent's hash), at about 50 µs a transaction, nearly
/// all of it for the signature. Every number of this type is a height; heights have no upper bound.
pub struct SyntheticChain {
    options: SyntheticOptions,
    traffic: Arc<Traffic>,
    tree: Mutex<Tree>,
}

impl std::fmt::Debug for SyntheticChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyntheticChain").field("options", &self.options).finish_non_exhaustive()
    }
}

impl SyntheticChain {
    /// A chain with accounts of its own.
    pub fn new(options: SyntheticOptions) -> SyntheticChain {
        let traffic = Traffic::new(TrafficOptions {
            seed: options.seed,
            chain_id: options.chain_id,
            signers: options.signers,
            accounts: options.accounts,
            mix: options.mix,
            ..TrafficOptions::default()
        });
        SyntheticChain::with_traffic(options, Arc::new(traffic))
    }

    /// A chain on the accounts of `traffic`, whose options go before these.
    pub fn with_traffic(options: SyntheticOptions, traffic: Arc<Traffic>) -> SyntheticChain {
        let options = SyntheticOptions { chain_id: traffic.options().chain_id, ..options };
        let main = Fork {
            base: None,
            options: ForkOptions { salt: 0, reincluded_percent: 0, first_block: FirstBlock::Empty },
            salt: 0,
            stream: options.stream.unwrap_or(options.seed),
            first: 0,
            seals: Vec::new(),
        };
        let tree = Tree { forks: vec![main], ..Tree::default() };
        SyntheticChain { options, traffic, tree: Mutex::new(tree) }
    }

    /// What chains of [`SyntheticOptions::tiny`] share: transactions are signed once and used by every seed.
    pub fn tiny_traffic() -> Arc<Traffic> {
        let tiny = SyntheticOptions::tiny(0);
        Arc::new(Traffic::new(TrafficOptions {
            seed: 0,
            chain_id: tiny.chain_id,
            signers: tiny.signers,
            accounts: tiny.accounts,
            kept_transactions: 20_000,
            ..TrafficOptions::default()
        }))
    }

    /// What it was made with.
    pub fn options(&self) -> &SyntheticOptions {
        &self.options
    }

    /// Its accounts and contracts.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Its number.
    pub fn chain_id(&self) -> ChainId {
        ChainId(self.options.chain_id)
    }

    /// A fork that shares everything up to and with the block of `common` at its height, and goes on by itself. The same arguments give the same fork.
    ///
    /// # Panics
    /// Where `common` names a fork of another chain.
    pub fn fork_at(&self, common: (ForkId, Height), options: ForkOptions) -> ForkId {
        let mut tree = self.tree();
        let key = (common.0, common.1.0, options);
        if let Some(fork) = tree.known.get(&key) {
            return *fork;
        }
        let left = &tree.forks[common.0.0 as usize];
        let fork = Fork {
            base: Some((common.0, common.1.0)),
            options,
            // Where it leaves is part of it: two forks with one salt at two places differ.
            salt: hash_words(&[left.salt, common.1.0, options.salt, u64::from(options.reincluded_percent)])
                | 1,
            // Few streams, so that a shared traffic serves the forks of every seed.
            stream: hash_words(&[left.stream, options.salt]),
            first: common.1.0 + 1,
            seals: Vec::new(),
        };
        let id = ForkId(tree.forks.len() as u32);
        tree.forks.push(fork);
        tree.known.insert(key, id);
        id
    }

    /// The highest block that both forks have.
    pub fn common(&self, one: ForkId, other: ForkId) -> Height {
        let tree = self.tree();
        let path = |mut fork: ForkId| {
            let mut shared_to = u64::MAX;
            let mut path = vec![(fork, shared_to)];
            while let Some((base, height)) = tree.forks[fork.0 as usize].base {
                shared_to = shared_to.min(height);
                fork = base;
                path.push((fork, shared_to));
            }
            path
        };
        let (a, b) = (path(one), path(other));
        let both = a
            .iter()
            .find_map(|(fork, to)| b.iter().find(|(of_b, _)| of_b == fork).map(|(_, to_b)| (*to).min(*to_b)));
        // Every path ends at the main fork.
        Height(both.unwrap_or(0))
    }

    /// The block of `fork` at `height`. Makes whatever below it isn't made yet.
    ///
    /// # Panics
    /// Where `fork` is one of another chain.
    pub fn block(&self, fork: ForkId, height: Height) -> Arc<RawBlock> {
        let mut tree = self.tree();
        let owner = self.ensure(&mut tree, fork, height.0);
        if let Some(block) = tree.cache.get(&(owner, height.0)) {
            return Arc::clone(block);
        }
        // Made before and dropped from the cache.
        let (_, block) = self.make(&tree, owner, height.0);
        tree.keep((owner, height.0), Arc::new(block), self.options.cache_bytes)
    }

    /// Height, id and parent's id of the block of `fork` at `height`.
    pub fn linked_ref(&self, fork: ForkId, height: Height) -> LinkedRef {
        let mut tree = self.tree();
        self.ensure(&mut tree, fork, height.0);
        let id_at = |height: u64| tree.seal(fork, height).map_or(B256::ZERO, |seal| seal.id);
        let parent = height.prev().map_or(B256::ZERO, |height| id_at(height.0));
        LinkedRef { block: BlockRef { height, id: BlockId(id_at(height.0).0) }, parent_id: BlockId(parent.0) }
    }

    /// Height and id of the block of `fork` at `height`.
    pub fn block_ref(&self, fork: ForkId, height: Height) -> BlockRef {
        self.linked_ref(fork, height).block
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        // A panic while a block was made leaves the tree as it was before that block.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what `fork` lacks up to `height`, and says which fork the block there belongs to.
    fn ensure(&self, tree: &mut Tree, fork: ForkId, height: u64) -> ForkId {
        let owner = tree.owner(fork, height);
        // From the tip of the path down to the fork that is complete, then up again.
        let mut path = vec![(owner, height)];
        while let Some((base, shared)) = path.last().and_then(|(fork, _)| tree.forks[fork.0 as usize].base) {
            let base = tree.owner(base, shared);
            if tree.seal(base, shared).is_some() {
                break;
            }
            path.push((base, shared));
        }
        for (fork, to) in path.into_iter().rev() {
            let first = tree.forks[fork.0 as usize].first;
            for height in first + tree.forks[fork.0 as usize].seals.len() as u64..=to {
                let (seal, block) = self.make(tree, fork, height);
                tree.forks[fork.0 as usize].seals.push(seal);
                tree.keep((fork, height), Arc::new(block), self.options.cache_bytes);
            }
        }
        owner
    }

    /// Makes one block whose parent has been made.
    fn make(&self, tree: &Tree, fork: ForkId, height: u64) -> (Seal, RawBlock) {
        let options = &self.options;
        let parent = height.checked_sub(1).and_then(|below| tree.seal(fork, below));
        let first_tx = parent.map_or(0, |parent| parent.next_tx);
        let salt = tree.forks[fork.0 as usize].salt;
        let txs: Vec<_> = self
            .plan(tree, fork, height, first_tx)
            .into_iter()
            .map(|(stream, g)| {
                let tx = self.traffic.tx(stream, g);
                let succeeds = !fails(salt, g, &tx, options.failed_percent);
                (tx, succeeds)
            })
            .collect();
        let contents = contents(&txs, &withdrawals(options.seed, height, options.withdrawals_per_block));
        let words = HeaderWords {
            seed: options.seed,
            fork_salt: salt,
            gas_limit: options.gas_limit(),
            timestamp_s: options.timestamp_s(height),
        };
        let header = header(height, parent, &contents, &words);
        seal(&header, contents, first_tx)
    }

    /// The transactions of a block in order, each by stream and number.
    fn plan(&self, tree: &Tree, fork: ForkId, height: u64, first_tx: u64) -> Vec<(u64, u64)> {
        let own = &tree.forks[fork.0 as usize];
        if height == own.first {
            match (own.options.first_block, own.base) {
                (FirstBlock::Empty, _) => return Vec::new(),
                (FirstBlock::SameTransactions, Some((base, _))) => {
                    let replaced = tree.owner(base, height);
                    return self.plan(tree, replaced, height, first_tx);
                }
                (FirstBlock::SameTransactions | FirstBlock::Drawn, _) => {}
            }
        }
        let options = &self.options;
        let mut draw = Draw::of(&[options.seed, own.salt, height, 0x9a1e]);
        let (least, most) = (*options.txs_per_block.start(), *options.txs_per_block.end());
        let count = match draw.once_in(options.empty_block_once_in) {
            true => 0,
            false => draw.between(least.into(), most.into()),
        };
        let mut txs: Vec<u64> = (first_tx..first_tx + count).collect();
        if own.base.is_some() {
            // Another order than the other fork's, with every sender's nonces still in theirs.
            for at in (1..txs.len()).rev() {
                txs.swap(at, draw.below(at as u64 + 1) as usize);
            }
            let mut of_sender: HashMap<u32, VecDeque<u64>> = HashMap::new();
            for g in first_tx..first_tx + count {
                of_sender.entry(self.traffic.turn(g).0).or_default().push_back(g);
            }
            for g in &mut txs {
                let sender = self.traffic.turn(*g).0;
                if let Some(next) = of_sender.get_mut(&sender).and_then(VecDeque::pop_front) {
                    *g = next;
                }
            }
        }
        txs.into_iter().map(|g| (tree.stream_at(fork, g), g)).collect()
    }
}

impl Tree {
    /// The fork that the block of `fork` at `height` belongs to.
    fn owner(&self, mut fork: ForkId, height: u64) -> ForkId {
        loop {
            let at = &self.forks[fork.0 as usize];
            match at.base {
                Some((base, _)) if height < at.first => fork = base,
                _ => return fork,
            }
        }
    }

    fn seal(&self, fork: ForkId, height: u64) -> Option<&Seal> {
        let owner = &self.forks[self.owner(fork, height).0 as usize];
        owner.seals.get(usize::try_from(height - owner.first).ok()?)
    }

    /// The stream from which `fork` takes transaction `g`: its own, or that of the fork which it left.
    fn stream_at(&self, mut fork: ForkId, g: u64) -> u64 {
        loop {
            let at = &self.forks[fork.0 as usize];
            match at.base {
                Some((base, _))
                    if hash_words(&[at.salt, g]) % 100 < u64::from(at.options.reincluded_percent) =>
                {
                    fork = base;
                }
                _ => return at.stream,
            }
        }
    }

    fn keep(&mut self, at: (ForkId, u64), block: Arc<RawBlock>, limit_bytes: u64) -> Arc<RawBlock> {
        self.cached_bytes += block.size_bytes();
        if let Some(before) = self.cache.insert(at, Arc::clone(&block)) {
            self.cached_bytes -= before.size_bytes();
        } else {
            self.cached.push_back(at);
        }
        while self.cached_bytes > limit_bytes {
            let Some(oldest) = self.cached.pop_front() else { break };
            if let Some(dropped) = self.cache.remove(&oldest) {
                self.cached_bytes -= dropped.size_bytes();
            }
        }
        block
    }
}
