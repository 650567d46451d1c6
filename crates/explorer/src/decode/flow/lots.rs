//! Tokens on their way: whose they were, and how many of each.

use std::collections::VecDeque;

use cairn_flow::FlowAddress;

/// Where tokens come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// They were taken from this account.
    Account(FlowAddress),
    /// They are new: the token's contract said so in this transaction.
    Minted,
    /// Out of some other resource; or they are new and nobody said so.
    Elsewhere,
}

/// Tokens of one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lot {
    /// Where from.
    pub origin: Origin,
    /// How many; more than fit into one event may come together.
    pub amount: u128,
    /// The event that took them.
    pub event_index: u32,
}

/// What a vault holds, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Lots(VecDeque<Lot>);

impl Lots {
    pub fn put(&mut self, lot: Lot) {
        if lot.amount > 0 {
            self.0.push_back(lot);
        }
    }

    /// How many there are.
    pub fn amount(&self) -> u128 {
        self.0.iter().map(|lot| lot.amount).sum()
    }

    /// The event that took the oldest; `None` where there is nothing.
    pub fn oldest_event(&self) -> Option<u32> {
        self.0.front().map(|lot| lot.event_index)
    }

    /// Takes a lot of exactly this amount, the oldest of them; `None` where there is none.
    pub fn take_exactly(&mut self, amount: u128) -> Option<Lot> {
        let at = self.0.iter().position(|lot| lot.amount == amount)?;
        self.0.remove(at)
    }

    /// Takes so much, oldest first. Less than asked for where there isn't more.
    pub fn take(&mut self, amount: u128) -> Vec<Lot> {
        self.take_of(amount, |_| true)
    }

    /// The same of minted ones alone.
    pub fn take_minted(&mut self, amount: u128) -> Vec<Lot> {
        self.take_of(amount, |lot| lot.origin == Origin::Minted)
    }

    fn take_of(&mut self, mut amount: u128, is_wanted: impl Fn(&Lot) -> bool) -> Vec<Lot> {
        let mut taken = Vec::new();
        while amount > 0 {
            let Some(at) = self.0.iter().position(&is_wanted) else { break };
            let Some(first) = self.0.get_mut(at) else { break };
            let part = first.amount.min(amount);
            taken.push(Lot { amount: part, ..first.clone() });
            first.amount -= part;
            amount -= part;
            if first.amount == 0 {
                self.0.remove(at);
            }
        }
        taken
    }

    /// All that is left.
    pub fn rest(self) -> impl Iterator<Item = Lot> {
        self.0.into_iter()
    }
}
