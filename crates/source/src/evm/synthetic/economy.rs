//! An economy in which nobody gives away what they don't have.
//!
//! The seed and all earlier transactions determine transaction `g`. Every fork of a chain carries the same transactions in nearly the same
//! order, so this holds on each fork. An item that moved stays where it is for longer than a block may reorder.
//!
//! The first transactions deploy the contracts. The next ones issue each token's whole supply. From there on tokens only change hands, so
//! the holders of a token together hold its supply.

use std::collections::HashMap;

use alloy_primitives::{Address, U256};

use super::Traffic;
use super::actions::{self, Action};
use super::contracts::supply_of;
use super::draw::Draw;

/// The exchange, among accounts.
const POOL: u32 = u32::MAX;
/// How many transactions must lie between two that move one item: more than any block holds.
const SETTLED_AFTER: u64 = 256;
/// How many items of a collection are looked at for one that may be given.
const LOOKED_AT: usize = 64;

/// What a transaction does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Deploys a contract.
    Deploy,
    /// Issues all of a token to the sender.
    Issue { token: usize, amount: u128 },
    /// Gives tokens of the sender's, or of an owner who allows it.
    Transfer { token: usize, owner: u32, to: u32, amount: u128 },
    /// Makes an item of an ERC-721 collection.
    Mint { collection: usize, to: u32, item: u64 },
    /// Gives one of the sender's.
    Give { collection: usize, to: u32, item: u64 },
    /// Makes items of an ERC-1155 collection: one kind, or several in a batch.
    MintSome { collection: usize, to: u32, items: Vec<(u64, u64)> },
    /// Gives some of the sender's.
    GiveSome { collection: usize, to: u32, item: u64, count: u64 },
    /// Wraps coins.
    Deposit { amount: u128 },
    /// Unwraps some of the sender's.
    Withdraw { amount: u128 },
    /// Sells one token to the exchange for another.
    Swap { sold: usize, paid: u128, bought: usize, got: u128 },
    /// Pays coins.
    Pay { to: u32, amount: u128 },
    /// Leaves a log without topics.
    Anonymous { contract: usize },
    /// Calls a contract that hardly anybody calls.
    Ping { contract: usize },
    /// Asks for more than the sender has, and fails.
    Refused { token: usize, to: u32 },
}

/// An item of an ERC-721 collection.
#[derive(Debug, Clone, Copy)]
struct Item {
    owner: u32,
    moved_at: u64,
}

/// Who has what, and all that was done.
#[derive(Debug, Default)]
pub(crate) struct Economy {
    deeds: Vec<Deed>,
    tokens: HashMap<(usize, u32), u128>,
    wrapped: HashMap<u32, u128>,
    collections: Vec<Vec<Item>>,
    multi: HashMap<(usize, u32), Vec<(u64, u64)>>,
}

impl Economy {
    /// What transaction `g` does.
    pub(crate) fn deed(&mut self, traffic: &Traffic, g: u64) -> Deed {
        for next in self.deeds.len() as u64..=g {
            let deed = self.next(traffic, next);
            self.deeds.push(deed);
        }
        // It was just made, where it was not there.
        self.deeds.get(g as usize).cloned().unwrap_or(Deed::Deploy)
    }

    fn next(&mut self, traffic: &Traffic, g: u64) -> Deed {
        let contracts = traffic.contracts();
        let (deployed, tokens) = (contracts.count(), contracts.erc20.len() as u64);
        let from = traffic.turn(g).0;
        if g < deployed {
            return Deed::Deploy;
        }
        if g < deployed + tokens {
            let token = (g - deployed) as usize;
            let amount = supply_of(traffic.options().seed, contracts.erc20[token], token);
            self.tokens.insert((token, from), amount);
            return Deed::Issue { token, amount };
        }
        self.collections.resize(contracts.erc721.len(), Vec::new());
        let mut draw = Draw::of(&[traffic.options().seed, DEED, g]);
        let accounts = u64::from(traffic.options().accounts.max(1));
        let to = draw.log_uniform(accounts) as u32;
        let token = draw.log_uniform(tokens) as usize;
        let collection = draw.log_uniform(contracts.erc721.len() as u64) as usize;
        let multi = draw.log_uniform(contracts.erc1155.len() as u64) as usize;
        let contract = draw.below(contracts.rare.len() as u64) as usize;
        match draw.below(100) {
            0..=39 => self.transfer(&mut draw, token, from, to),
            40..=47 => {
                // Whoever was given all of the token at first lets others have some.
                let owner = traffic.turn(deployed + token as u64).0;
                self.transfer(&mut draw, token, owner, to)
            }
            48..=55 => self.give(&mut draw, g, collection, from, to),
            56..=60 => self.mint(g, collection, to),
            61..=65 => self.give_some(&mut draw, multi, from, to),
            66..=70 => self.mint_some(&mut draw, multi, to),
            71..=74 => {
                let amount = coins(&mut draw);
                *self.wrapped.entry(from).or_default() += amount;
                Deed::Deposit { amount }
            }
            75..=77 => match part(&mut draw, self.wrapped.get(&from).copied().unwrap_or_default()) {
                0 => Deed::Pay { to, amount: coins(&mut draw) },
                amount => {
                    *self.wrapped.entry(from).or_default() -= amount;
                    Deed::Withdraw { amount }
                }
            },
            78..=83 => {
                let bought = draw_other(&mut draw, token, tokens);
                self.swap(&mut draw, token, bought, from, to)
            }
            84..=92 => Deed::Pay { to, amount: coins(&mut draw) },
            93..=94 => Deed::Anonymous { contract },
            95..=96 => Deed::Ping { contract },
            _ => Deed::Refused { token, to },
        }
    }

    fn move_tokens(&mut self, token: usize, from: u32, to: u32, amount: u128) {
        *self.tokens.entry((token, from)).or_default() -= amount;
        *self.tokens.entry((token, to)).or_default() += amount;
    }

    fn held(&self, token: usize, by: u32) -> u128 {
        self.tokens.get(&(token, by)).copied().unwrap_or_default()
    }

    fn transfer(&mut self, draw: &mut Draw, token: usize, owner: u32, to: u32) -> Deed {
        match part(draw, self.held(token, owner)) {
            0 => Deed::Pay { to, amount: coins(draw) },
            amount => {
                self.move_tokens(token, owner, to, amount);
                Deed::Transfer { token, owner, to, amount }
            }
        }
    }

    /// The exchange gives what it has; where that is nothing, the sender brings it some.
    fn swap(&mut self, draw: &mut Draw, sold: usize, bought: usize, from: u32, to: u32) -> Deed {
        let paid = part(draw, self.held(sold, from));
        let got = part(draw, self.held(bought, POOL));
        if paid == 0 {
            return Deed::Pay { to, amount: coins(draw) };
        }
        self.move_tokens(sold, from, POOL, paid);
        if got == 0 {
            return Deed::Transfer { token: sold, owner: from, to: POOL, amount: paid };
        }
        self.move_tokens(bought, POOL, from, got);
        Deed::Swap { sold, paid, bought, got }
    }

    fn mint(&mut self, g: u64, collection: usize, to: u32) -> Deed {
        let items = &mut self.collections[collection];
        items.push(Item { owner: to, moved_at: g });
        Deed::Mint { collection, to, item: items.len() as u64 }
    }

    fn give(&mut self, draw: &mut Draw, g: u64, collection: usize, from: u32, to: u32) -> Deed {
        let items = &mut self.collections[collection];
        let begin = draw.below((items.len() as u64).max(1)) as usize;
        let is_free = |item: &Item| item.owner == from && item.moved_at + SETTLED_AFTER <= g;
        let mut around = (begin..items.len()).chain(0..begin).take(LOOKED_AT);
        let Some(at) = around.find(|at| is_free(&items[*at])) else {
            return self.mint(g, collection, from);
        };
        items[at] = Item { owner: to, moved_at: g };
        Deed::Give { collection, to, item: at as u64 + 1 }
    }

    fn mint_some(&mut self, draw: &mut Draw, collection: usize, to: u32) -> Deed {
        let kinds = if draw.below(3) == 0 { draw.between(2, 4) } else { 1 };
        let first = draw.log_uniform(500);
        let items: Vec<_> = (0..kinds).map(|next| (first + next, draw.between(1, 1_000))).collect();
        for (item, count) in &items {
            self.add_some(collection, to, *item, *count);
        }
        Deed::MintSome { collection, to, items }
    }

    fn give_some(&mut self, draw: &mut Draw, collection: usize, from: u32, to: u32) -> Deed {
        let held = self.multi.entry((collection, from)).or_default();
        let at = draw.below((held.len() as u64).max(1)) as usize;
        let Some((item, has)) = held.get_mut(at).filter(|(_, has)| *has > 0) else {
            return self.mint_some(draw, collection, from);
        };
        let count = draw.between(1, *has);
        *has -= count;
        let item = *item;
        self.add_some(collection, to, item, count);
        Deed::GiveSome { collection, to, item, count }
    }

    fn add_some(&mut self, collection: usize, to: u32, item: u64, count: u64) {
        let held = self.multi.entry((collection, to)).or_default();
        match held.iter_mut().find(|(id, _)| *id == item) {
            Some((_, has)) => *has += count,
            None => held.push((item, count)),
        }
    }
}

impl Deed {
    /// The call and the logs.
    pub(crate) fn action(&self, traffic: &Traffic, sender: u32, g: u64) -> Action {
        let contracts = traffic.contracts();
        let mut draw = Draw::of(&[traffic.options().seed, DETAIL, g]);
        let from = traffic.account(sender);
        let address = |at: u32| match at {
            POOL => contracts.exchange,
            at => traffic.account(at),
        };
        match self {
            Deed::Deploy => actions::creation(&mut draw),
            Deed::Issue { token, amount } => {
                actions::mint(contracts.erc20[*token], from, U256::from(*amount))
            }
            Deed::Transfer { token, owner, to, amount } => {
                let (token, to, amount) = (contracts.erc20[*token], address(*to), U256::from(*amount));
                match *owner == sender {
                    true => actions::transfer(token, from, to, amount),
                    // An allowance without an end stays what it is.
                    false => actions::spend(token, from, address(*owner), to, amount, U256::MAX),
                }
            }
            Deed::Mint { collection, to, item } => {
                actions::erc721(contracts.erc721[*collection], Address::ZERO, address(*to), *item)
            }
            Deed::Give { collection, to, item } => {
                actions::erc721(contracts.erc721[*collection], from, address(*to), *item)
            }
            Deed::MintSome { collection, to, items } => {
                let contract = contracts.erc1155[*collection];
                let items: Vec<_> =
                    items.iter().map(|(id, count)| (U256::from(*id), U256::from(*count))).collect();
                match items[..] {
                    [(id, count)] => actions::single(contract, from, Address::ZERO, address(*to), id, count),
                    _ => actions::batch(contract, from, Address::ZERO, address(*to), &items),
                }
            }
            Deed::GiveSome { collection, to, item, count } => {
                let contract = contracts.erc1155[*collection];
                actions::single(contract, from, from, address(*to), U256::from(*item), U256::from(*count))
            }
            Deed::Deposit { amount } => actions::deposit(contracts.wrapped, from, U256::from(*amount)),
            Deed::Withdraw { amount } => actions::withdraw(contracts.wrapped, from, U256::from(*amount)),
            Deed::Swap { sold, paid, bought, got } => {
                let sold = (contracts.erc20[*sold], U256::from(*paid));
                let bought = (contracts.erc20[*bought], U256::from(*got));
                actions::exchange(contracts.exchange, from, from, sold, bought)
            }
            Deed::Pay { to, amount } => actions::pay(address(*to), U256::from(*amount)),
            Deed::Anonymous { contract } => actions::anonymous(&mut draw, contracts.rare[*contract]),
            Deed::Ping { contract } => actions::ping(&mut draw, contracts.rare[*contract], from),
            Deed::Refused { token, to } => {
                actions::transfer(contracts.erc20[*token], from, address(*to), U256::MAX)
            }
        }
    }

    /// Whether it fails.
    pub(crate) fn fails(&self) -> bool {
        matches!(self, Deed::Refused { .. })
    }
}

/// Another token than this one.
fn draw_other(draw: &mut Draw, token: usize, tokens: u64) -> usize {
    let others = tokens.saturating_sub(1).max(1);
    (token + 1 + draw.below(others) as usize) % tokens.max(1) as usize
}

/// From a hundredth to a fifth of it.
fn part(draw: &mut Draw, of: u128) -> u128 {
    (of / 100).saturating_mul(u128::from(draw.between(1, 20)))
}

/// From a thousandth of a coin to ten.
fn coins(draw: &mut Draw) -> u128 {
    u128::from(draw.between(1, 10_000)) * 1_000_000_000_000_000
}

// Which stream of numbers is drawn from; other files have 1 to 9.
const DEED: u64 = 10;
const DETAIL: u64 = 11;

#[cfg(test)]
mod tests {
    use super::super::{ForkId, ForkOptions, Mix, SyntheticChain, SyntheticOptions};
    use super::*;
    use cairn_core::{Height, StoredBlock, TxStatus};
    use cairn_evm::DecodedBlock;

    fn chain(seed: u64) -> SyntheticChain {
        SyntheticChain::new(SyntheticOptions { seed, mix: Mix::Economy, ..SyntheticOptions::default() })
    }

    /// Who has what after these blocks, by their logs alone.
    #[derive(Default)]
    struct Holders {
        tokens: HashMap<(Address, Address), i128>,
        items: HashMap<(Address, U256), Address>,
    }

    impl Holders {
        fn take(&mut self, chain: &SyntheticChain, fork: ForkId, height: u64) {
            let block = chain.block(fork, Height(height));
            let decoded = DecodedBlock::decode(&StoredBlock::from(&*block)).expect("decodes");
            for (_, log) in decoded.logs() {
                let contracts = chain.traffic().contracts();
                let address = |topic: usize| Address::from_word(log.topics[topic]);
                if contracts.erc20.contains(&log.address) {
                    if log.topics.len() != 3 || log.topics[0] != actions::transfer_topic() {
                        continue;
                    }
                    let amount = i128::try_from(U256::from_be_slice(&log.data)).expect("small");
                    for (who, change) in [(address(1), -amount), (address(2), amount)] {
                        *self.tokens.entry((log.address, who)).or_default() += change;
                    }
                } else if contracts.erc721.contains(&log.address) {
                    let item = (log.address, U256::from_be_bytes(log.topics[3].0));
                    let (from, to) = (address(1), address(2));
                    let owner = self.items.insert(item, to).unwrap_or_default();
                    assert_eq!(owner, from, "height {height}: {item:?} is given by its owner");
                }
            }
            for ((token, who), amount) in self.tokens.iter().filter(|((_, who), _)| !who.is_zero()) {
                assert!(*amount >= 0, "height {height}: {who} has {amount} of {token}");
            }
        }
    }

    #[test]
    fn nobody_gives_what_they_do_not_have_and_sums_are_the_supplies() {
        let chain = chain(7);
        let mut holders = Holders::default();
        for height in 0..=300 {
            holders.take(&chain, ForkId::MAIN, height);
        }
        for (at, token) in chain.traffic().contracts().erc20.iter().enumerate() {
            let held: i128 = holders
                .tokens
                .iter()
                .filter(|((of, who), _)| of == token && !who.is_zero())
                .map(|(_, amount)| amount)
                .sum();
            assert_eq!(held, i128::try_from(supply_of(7, *token, at)).expect("fits"), "{token}");
        }
        assert!(holders.items.len() > 100 && holders.tokens.len() > 500);
        let given = holders.items.values().collect::<std::collections::HashSet<_>>();
        assert!(given.len() > 20, "{} owners", given.len());
        let failed =
            (0..=300).flat_map(|height| chain.block(ForkId::MAIN, Height(height)).transactions.clone());
        assert!(failed.filter(|tx| tx.status == TxStatus::Failed).count() > 20);
    }

    #[test]
    fn the_same_holds_on_a_fork() {
        let chain = chain(9);
        let fork = chain.fork_at((ForkId::MAIN, Height(120)), ForkOptions::new(5));
        let mut holders = Holders::default();
        for height in 0..=160 {
            holders.take(&chain, fork, height);
        }
    }

    #[test]
    fn contracts_are_deployed_where_they_are_called() {
        let chain = chain(7);
        let contracts = chain.traffic().contracts();
        let mut created = Vec::new();
        for height in 0..=40 {
            let block = chain.block(ForkId::MAIN, Height(height));
            let decoded = DecodedBlock::decode(&StoredBlock::from(&*block)).expect("decodes");
            created.extend(decoded.transactions.iter().filter_map(|tx| tx.created_contract()));
        }
        let all = contracts.erc20.iter().chain(&contracts.erc721).chain(&contracts.erc1155);
        for contract in all.chain([&contracts.wrapped, &contracts.exchange]) {
            assert!(created.contains(contract), "{contract}");
        }
    }
}
