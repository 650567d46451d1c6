//! Fungible tokens: withdrawals and deposits paired to movements.
//!
//! In the new form each vault has an id, so tokens are followed from vault to vault, through splits and merges that belong to no account.
//! In the old form a deposit takes the withdrawal of the same amount, else the oldest that are left.
//!
//! Where a token's vaults are followed and its contract alone says that so many were burnt, it doesn't say in which vault they were: in one that holds
//! exactly as many and that no later event names, since it is gone; else they are the oldest that are on their way. So such a burn waits for the
//! transaction's end.
//!
//! **Bounds.** One event may end many movements, but a transaction has at most three times as many as events: each event adds or splits three lots at most, and
//! a movement uses one up.
//!
//! Whatever the pairing, **an account loses what was withdrawn from it and gains what was deposited to it**: what is left over at the end is a
//! movement to nobody. What came from no account is a mint as far as the token's contract told of mints in the same transaction
//! (`TokensMinted`); the rest lay in some other resource, or is of a token that tells of no mints.

use std::collections::BTreeMap;

use cairn_flow::FlowAddress;

use super::lots::{Lot, Lots, Origin};
use super::tokens::{FtKind, FtMove, Said, contract_of};

/// The two vaults of an event: the one that it is of, and the one that left it or went into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vault {
    pub of: u64,
    pub moved: u64,
}

/// What a vault that is on its way holds.
#[derive(Debug, Default)]
struct Held {
    lots: Lots,
    /// The last event that names it.
    named_at: u32,
}

/// Tokens were burnt in a vault that isn't named.
#[derive(Debug)]
struct NamelessBurn {
    event_index: u32,
    /// What they are where no vault tells.
    token: String,
    amount: u64,
}

/// One token's tokens on their way.
#[derive(Debug, Default)]
struct Token {
    /// By vault, in the new form.
    vaults: BTreeMap<u64, Held>,
    /// Those without a vault: in the old form all, in the new one what was minted.
    pool: Lots,
}

/// All fungible tokens of one transaction.
#[derive(Debug, Default)]
pub(super) struct Fungible {
    tokens: BTreeMap<String, Token>,
    moves: Vec<FtMove>,
    burns: Vec<NamelessBurn>,
    fees: Vec<(u32, u64)>,
    /// The last deposit to the fees' own contract.
    fee_received: Option<(u32, u64)>,
}

impl Fungible {
    /// Hears the next event.
    pub fn hear(&mut self, event_index: u32, contract: &str, said: &Said) {
        match *said {
            Said::Fee { amount } => self.fees.push((event_index, amount)),
            Said::FeeReceived { amount } => self.fee_received = Some((event_index, amount)),
            Said::Withdrawn { vault, amount, from } => {
                self.withdrawn(event_index, contract, vault, amount, from)
            }
            Said::Deposited { vault, amount, to } => self.deposited(event_index, contract, vault, amount, to),
            Said::Minted { amount } => {
                let lot = Lot { origin: Origin::Minted, amount: amount.into(), event_index };
                self.token(contract).pool.put(lot);
            }
            Said::Burned { vault, amount } => {
                let token = self.token(contract);
                let mut taken = match vault {
                    Some(vault) => token.vault(vault, event_index).take(amount.into()),
                    None => token.take_from_pool(amount),
                };
                token.complete(&mut taken, amount, event_index);
                self.ended(event_index, contract, taken, None, FtKind::Burn);
            }
            Said::ItemWithdrawn { .. }
            | Said::ItemDeposited { .. }
            | Said::ItemMinted { .. }
            | Said::SomeItemDestroyed { .. }
            | Said::ItemDestroyed { .. } => {}
        }
    }

    /// Hears that a contract whose vaults are followed says itself that so many were burnt: of this token, or another of its types.
    pub fn hear_burn(&mut self, event_index: u32, token: String, amount: u64) {
        self.burns.push(NamelessBurn { event_index, token, amount });
    }

    fn token(&mut self, contract: &str) -> &mut Token {
        self.tokens.entry(contract.to_owned()).or_default()
    }

    fn withdrawn(
        &mut self,
        event_index: u32,
        contract: &str,
        vault: Option<Vault>,
        amount: u64,
        from: Option<FlowAddress>,
    ) {
        let token = self.token(contract);
        let amount = u128::from(amount);
        match (vault, from) {
            (None, Some(from)) => token.pool.put(Lot { origin: Origin::Account(from), amount, event_index }),
            // A split of what is on its way already.
            (None, None) => {}
            (Some(vault), Some(from)) => {
                let lot = Lot { origin: Origin::Account(from), amount, event_index };
                token.vault(vault.moved, event_index).put(lot);
            }
            (Some(vault), None) => {
                let taken = token.vault(vault.of, event_index).take(amount);
                let to = token.vault(vault.moved, event_index);
                taken.into_iter().for_each(|lot| to.put(lot));
            }
        }
    }

    fn deposited(
        &mut self,
        event_index: u32,
        contract: &str,
        vault: Option<Vault>,
        amount: u64,
        to: Option<FlowAddress>,
    ) {
        let token = self.token(contract);
        let mut taken = match (vault, to) {
            (None, None) => return,
            (None, Some(_)) => token.take_from_pool(amount),
            (Some(vault), _) => token.vault(vault.moved, event_index).take(amount.into()),
        };
        if to.is_none() {
            // Into a vault that is on its way itself.
            if let Some(vault) = vault {
                let into = token.vault(vault.of, event_index);
                taken.into_iter().for_each(|lot| into.put(lot));
            }
            return;
        }
        token.complete(&mut taken, amount, event_index);
        self.ended(event_index, contract, taken, to, FtKind::Transfer);
    }

    /// Tokens that arrived, or are gone. Those that neither came from an account nor reached one are nobody's movement, unless they are burnt.
    fn ended(
        &mut self,
        event_index: u32,
        contract: &str,
        lots: Vec<Lot>,
        to: Option<FlowAddress>,
        kind: FtKind,
    ) {
        // Those of one event are told one behind the other.
        let first = self.moves.iter().rev().take_while(|one| one.event_index == event_index).count();
        let is_ones = |lot: &Lot| matches!(lot.origin, Origin::Account(_)) || to.is_some();
        let lots = lots.into_iter().filter(|lot| kind == FtKind::Burn || is_ones(lot));
        for (sub_index, lot) in (first as u32..).zip(lots) {
            let (from, kind) = match (lot.origin, kind) {
                (Origin::Account(from), kind) => (Some(from), kind),
                (_, FtKind::Burn) => (None, FtKind::Burn),
                (Origin::Minted, _) => (None, FtKind::Mint),
                (Origin::Elsewhere, _) => (None, FtKind::Release),
            };
            self.moves.push(FtMove {
                token: contract.to_owned(),
                from,
                to,
                // At most what one event said.
                amount: u64::try_from(lot.amount).unwrap_or(u64::MAX),
                kind,
                event_index,
                sub_index,
            });
        }
    }

    fn burnt(&mut self, burn: &NamelessBurn) {
        let contract = contract_of(&burn.token);
        let of_contract = self.tokens.range(contract.to_owned()..);
        let mut of_contract = of_contract
            .take_while(|(name, _)| name.starts_with(contract))
            .filter(|(name, _)| contract_of(name) == contract);
        let holds_it = |(name, token): (&String, &Token)| token.vault_of_burn(burn).map(|_| name.clone());
        let name = of_contract.find_map(holds_it).unwrap_or_else(|| burn.token.clone());
        let token = self.token(&name);
        let mut taken = token.take_for_burn(burn);
        token.complete(&mut taken, burn.amount, burn.event_index);
        self.ended(burn.event_index, &name, taken, None, FtKind::Burn);
    }

    /// All movements, by event; what is still on its way left its account.
    pub fn end(mut self, flow: &str) -> Vec<FtMove> {
        for burn in std::mem::take(&mut self.burns) {
            self.burnt(&burn);
        }
        let tokens = std::mem::take(&mut self.tokens);
        for (contract, token) in tokens {
            let rest = token.vaults.into_values().flat_map(|held| held.lots.rest()).chain(token.pool.rest());
            let mut rest: Vec<Lot> = rest.collect();
            rest.sort_by_key(|lot| lot.event_index);
            for lot in rest {
                self.ended(lot.event_index, &contract, vec![lot], None, FtKind::Withdrawal);
            }
        }
        self.moves.sort_by_key(|one| (one.event_index, one.sub_index));
        if self.fees.is_empty() {
            self.fees.extend(self.fee_received);
        }
        for (fee_index, amount) in &self.fees {
            let paid = self.moves.iter_mut().rev().find(|one| {
                one.token == flow
                    && one.event_index < *fee_index
                    && one.amount == *amount
                    && one.kind == FtKind::Transfer
            });
            if let Some(paid) = paid {
                paid.kind = FtKind::Fee;
            }
        }
        self.moves
    }
}

impl Token {
    /// A vault that an event names.
    fn vault(&mut self, vault: u64, event_index: u32) -> &mut Lots {
        let held = self.vaults.entry(vault).or_default();
        held.named_at = event_index;
        &mut held.lots
    }

    /// The vault that held exactly what was burnt and that no later event names; of several the one that was named last.
    fn vault_of_burn(&self, burn: &NamelessBurn) -> Option<u64> {
        let may_be =
            |held: &Held| held.named_at < burn.event_index && held.lots.amount() == u128::from(burn.amount);
        let vaults = self.vaults.iter().filter(|(_, held)| may_be(held));
        vaults.max_by_key(|(_, held)| held.named_at).map(|(vault, _)| *vault)
    }

    /// What that vault held; else what was minted as exactly so much; else the oldest that no later event names, if they are enough.
    fn take_for_burn(&mut self, burn: &NamelessBurn) -> Vec<Lot> {
        let mut missing = u128::from(burn.amount);
        if let Some(held) = self.vault_of_burn(burn).and_then(|vault| self.vaults.get_mut(&vault)) {
            return held.lots.take(missing);
        }
        if let Some(lot) = self.pool.take_exactly(missing) {
            return vec![lot];
        }
        let may_be = self.vaults.values_mut().filter(|held| held.named_at < burn.event_index);
        let mut by_age: Vec<(u32, &mut Lots)> =
            may_be.filter_map(|held| Some((held.lots.oldest_event()?, &mut held.lots))).collect();
        // Fewer than were burnt are on their way: these lie elsewhere, and what was burnt came from a vault that no event names.
        if by_age.iter().map(|(_, lots)| lots.amount()).sum::<u128>() < missing {
            return Vec::new();
        }
        by_age.sort_by_key(|(oldest_event, _)| *oldest_event);
        let mut taken = Vec::new();
        for (_, lots) in by_age {
            let more = lots.take(missing);
            missing -= more.iter().map(|lot| lot.amount).sum::<u128>();
            taken.extend(more);
        }
        taken
    }

    /// Adds to tokens that were found what there are of them beside: minted ones first.
    fn complete(&mut self, taken: &mut Vec<Lot>, amount: u64, event_index: u32) {
        let found = |taken: &[Lot]| taken.iter().map(|lot| lot.amount).sum::<u128>();
        let missing = u128::from(amount).saturating_sub(found(taken));
        taken.extend(self.pool.take_minted(missing));
        let missing = u128::from(amount).saturating_sub(found(taken));
        if missing > 0 {
            taken.push(Lot { origin: Origin::Elsewhere, amount: missing, event_index });
        }
    }

    /// The withdrawal of the same amount, else the oldest that are left.
    fn take_from_pool(&mut self, amount: u64) -> Vec<Lot> {
        match self.pool.take_exactly(amount.into()) {
            Some(lot) => vec![lot],
            None => self.pool.take(amount.into()),
        }
    }
}
