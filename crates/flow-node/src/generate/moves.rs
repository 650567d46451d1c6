//! What is on its way within a transaction, so that the ledger can say what came from whom: tokens by the vault that holds them, items by their ids.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cairn_flow::FlowAddress;

use super::transaction::Tx;
use crate::deeds::{Deed, Done, ItemMove, MoveKind, TokenMove};
use crate::ledger::ContractId;

/// Where tokens came from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Origin {
    Account(FlowAddress),
    Minted,
}

/// Tokens of one origin, taken at an event.
#[derive(Debug, Clone, Copy)]
struct Lot {
    origin: Origin,
    amount: u64,
    event_index: u32,
}

/// An item that was taken out of an account.
#[derive(Debug, Clone, Copy)]
struct Away {
    from: FlowAddress,
    uuid: Option<u64>,
    event_index: u32,
}

type Vaults = BTreeMap<(ContractId, u64), VecDeque<Lot>>;

/// Everything that a transaction has taken and not yet put down.
#[derive(Debug, Clone, Default)]
pub(super) struct OnTheWay {
    vaults: Vaults,
    items: BTreeMap<(ContractId, u64), Away>,
    /// Items that were told to be new.
    minted: BTreeSet<(ContractId, u64)>,
    /// Items of which it was told which resource they are when they were taken out.
    named: BTreeSet<(ContractId, u64)>,
    /// Items that were destroyed.
    burnt: BTreeSet<(ContractId, u64)>,
}

impl Tx {
    /// The place of the newest event.
    fn last_event(&self) -> u32 {
        self.events.len().saturating_sub(1) as u32
    }

    /// The newest event tells of this.
    pub fn did(&mut self, deed: Deed) {
        let event_index = self.last_event();
        self.done.push(Done { event_index, deed });
    }

    /// An account's tokens are in this vault now.
    pub fn took(&mut self, token: &ContractId, vault: u64, from: FlowAddress, amount: u64) {
        let lot = Lot { origin: Origin::Account(from), amount, event_index: self.last_event() };
        self.on_the_way.vaults.entry((token.clone(), vault)).or_default().push_back(lot);
    }

    /// New tokens are in this vault.
    pub fn minted(&mut self, token: &ContractId, vault: u64, amount: u64) {
        let lot = Lot { origin: Origin::Minted, amount, event_index: self.last_event() };
        self.on_the_way.vaults.entry((token.clone(), vault)).or_default().push_back(lot);
    }

    /// From one vault that is no account's into another.
    pub fn poured(&mut self, token: &ContractId, from: u64, into: u64, amount: u64) {
        let lots = self.taken(token, from, amount);
        self.on_the_way.vaults.entry((token.clone(), into)).or_default().extend(lots);
    }

    fn taken(&mut self, token: &ContractId, vault: u64, mut amount: u64) -> Vec<Lot> {
        let mut taken = Vec::new();
        let Some(lots) = self.on_the_way.vaults.get_mut(&(token.clone(), vault)) else { return taken };
        while let Some(lot) = lots.pop_front() {
            let part = lot.amount.min(amount);
            taken.push(Lot { amount: part, ..lot });
            amount -= part;
            if part < lot.amount {
                lots.push_front(Lot { amount: lot.amount - part, ..lot });
                break;
            }
        }
        taken.retain(|lot| lot.amount > 0);
        taken
    }

    /// The vault's tokens are an account's now. What nobody put into it lay somewhere else.
    pub fn put(&mut self, token: &ContractId, vault: u64, to: FlowAddress, amount: u64) {
        let mut lots = self.taken(token, vault, amount);
        let found: u64 = lots.iter().map(|lot| lot.amount).sum();
        for lot in lots.drain(..) {
            let (from, kind) = match lot.origin {
                Origin::Account(from) => (Some(from), MoveKind::Transfer),
                Origin::Minted => (None, MoveKind::Mint),
            };
            let token = token.clone();
            self.did(Deed::Tokens(TokenMove { token, from, to: Some(to), amount: lot.amount, kind }));
        }
        if found < amount {
            let moved = TokenMove {
                token: token.clone(),
                from: None,
                to: Some(to),
                amount: amount - found,
                kind: MoveKind::Release,
            };
            self.did(Deed::Tokens(moved));
        }
    }

    /// The vault and its tokens are gone.
    pub fn burnt(&mut self, token: &ContractId, vault: u64, amount: u64) {
        for lot in self.taken(token, vault, amount) {
            let from = match lot.origin {
                Origin::Account(from) => Some(from),
                Origin::Minted => None,
            };
            let (token, kind) = (token.clone(), MoveKind::Burn);
            self.did(Deed::Tokens(TokenMove { token, from, to: None, amount: lot.amount, kind }));
        }
    }

    /// What was moved last is the fee.
    pub fn paid(&mut self) {
        if let Some(Done { deed: Deed::Tokens(moved), .. }) = self.done.last_mut() {
            moved.kind = MoveKind::Fee;
        }
    }

    /// An item is told to be new.
    pub fn item_minted(&mut self, collection: &ContractId, id: u64) {
        self.on_the_way.minted.insert((collection.clone(), id));
    }

    /// An item was taken out of an account's collection.
    pub fn item_took(&mut self, collection: &ContractId, id: u64, uuid: Option<u64>, from: FlowAddress) {
        let away = Away { from, uuid, event_index: self.last_event() };
        if uuid.is_some() {
            self.on_the_way.named.insert((collection.clone(), id));
        }
        if let Some(before) = self.on_the_way.items.insert((collection.clone(), id), away) {
            self.left(collection.clone(), id, before);
        }
    }

    /// An item came into an account's collection.
    pub fn item_put(&mut self, collection: &ContractId, id: u64, uuid: Option<u64>, to: FlowAddress) {
        let item = (collection.clone(), id);
        let (from, kind) = match self.on_the_way.items.remove(&item) {
            Some(away) => (Some(away.from), MoveKind::Transfer),
            None if self.on_the_way.minted.remove(&item) => (None, MoveKind::Mint),
            None => (None, MoveKind::Release),
        };
        let collection = collection.clone();
        self.did(Deed::Item(ItemMove { collection, id, uuid, from, to: Some(to), kind }));
    }

    /// Whether an item that was taken out was destroyed, as the newest event tells, or the one before it did.
    pub fn item_burnt(&mut self, collection: &ContractId, id: u64) -> bool {
        let item = (collection.clone(), id);
        if let Some(away) = self.on_the_way.items.remove(&item) {
            let moved = ItemMove {
                collection: collection.clone(),
                id,
                uuid: away.uuid,
                from: Some(away.from),
                to: None,
                kind: MoveKind::Burn,
            };
            self.on_the_way.burnt.insert(item.clone());
            self.did(Deed::Item(moved));
        }
        self.on_the_way.burnt.contains(&item)
    }

    /// An item was destroyed where it lay, as the newest event tells, which names its resource alone. Whether another one names its collection.
    pub fn item_ended(&mut self, collection: &ContractId, id: u64, uuid: u64, is_named: bool) {
        let collection = collection.clone();
        let is_named = is_named || self.on_the_way.named.contains(&(collection.clone(), id));
        self.did(match is_named {
            true => {
                let (uuid, kind) = (Some(uuid), MoveKind::Burn);
                Deed::Item(ItemMove { collection, id, uuid, from: None, to: None, kind })
            }
            false => Deed::ItemDestroyed { collection, id, uuid },
        });
    }

    fn left(&mut self, collection: ContractId, id: u64, away: Away) {
        let Away { from, uuid, event_index } = away;
        let kind = MoveKind::Withdrawal;
        let moved = ItemMove { collection, id, uuid, from: Some(from), to: None, kind };
        self.done.push(Done { event_index, deed: Deed::Item(moved) });
    }

    /// The transaction ends: what is still on its way left its account.
    pub fn end(&mut self) {
        let OnTheWay { vaults, items, .. } = std::mem::take(&mut self.on_the_way);
        for ((token, _), lots) in vaults {
            for Lot { origin, amount, event_index } in lots {
                if let Origin::Account(from) = origin {
                    let kind = MoveKind::Withdrawal;
                    let moved = TokenMove { token: token.clone(), from: Some(from), to: None, amount, kind };
                    self.done.push(Done { event_index, deed: Deed::Tokens(moved) });
                }
            }
        }
        for ((collection, id), away) in items {
            self.left(collection, id, away);
        }
    }
}
