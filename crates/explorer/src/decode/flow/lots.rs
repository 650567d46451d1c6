//! Tokens on their way: whose they were, and how many of each.

use std::collections::VecDeque;

use cairn_flow::FlowAddress;

/// Tokens of one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lot {
    /// The account that they were taken from; `None`: they are new.
    pub origin: Option<FlowAddress>,
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

    /// Takes a lot of exactly this amount, the oldest of them; `None` where there is none.
    pub fn take_exactly(&mut self, amount: u128) -> Option<Lot> {
        let at = self.0.iter().position(|lot| lot.amount == amount)?;
        self.0.remove(at)
    }

    /// Takes so much, oldest first. Less than asked for where there isn't more.
    pub fn take(&mut self, mut amount: u128) -> Vec<Lot> {
        let mut taken = Vec::new();
        while amount > 0 {
            let Some(first) = self.0.front_mut() else { break };
            let part = first.amount.min(amount);
            taken.push(Lot { amount: part, ..first.clone() });
            first.amount -= part;
            amount -= part;
            if first.amount == 0 {
                self.0.pop_front();
            }
        }
        taken
    }

    /// All that is left.
    pub fn rest(self) -> impl Iterator<Item = Lot> {
        self.0.into_iter()
    }
}
