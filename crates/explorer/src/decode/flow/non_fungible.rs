//! Non-fungible tokens: each item's withdrawals and deposits, paired by the item, and what was destroyed.
//!
//! An item is its resource, whose id the new form says: two items of a collection that have one id are told apart by it. Where an event doesn't
//! say it, the item's id in its collection decides.

use std::collections::{BTreeMap, BTreeSet};

use cairn_flow::FlowAddress;

use super::tokens::{NftDestroyed, NftKind, NftMove, Said};

/// An item: its collection and its id in it.
type Item = (String, u64);

/// Where an item on its way comes from.
#[derive(Debug)]
struct Away {
    from: FlowAddress,
    event_index: u32,
}

/// All non-fungible tokens of one transaction.
#[derive(Debug, Default)]
pub(super) struct NonFungible {
    /// Those on their way, by the resource's id where it was said.
    away: BTreeMap<Item, BTreeMap<Option<u64>, Away>>,
    /// Items on their way, by the resource's id.
    by_uuid: BTreeMap<u64, Item>,
    /// Items that are said to be new.
    minted: BTreeSet<Item>,
    moves: Vec<NftMove>,
    /// Destroyed resources of a collection that isn't named, by the resource's id: the item's id and the event.
    nameless: BTreeMap<u64, (Option<u64>, u32)>,
    /// Collections that were said to be those of destroyed resources.
    named: BTreeMap<u64, Item>,
    /// Resources whose destruction is told.
    burnt: BTreeSet<u64>,
}

impl NonFungible {
    /// Hears the next event.
    pub fn hear(&mut self, event_index: u32, contract: &str, said: &Said) {
        match *said {
            // From a collection that is no account's: it is on its way already, or new.
            Said::ItemWithdrawn { from: None, .. } | Said::ItemDeposited { to: None, .. } => {}
            Said::ItemWithdrawn { id, uuid, from: Some(from) } => {
                let item = (contract.to_owned(), id);
                if let Some(uuid) = uuid {
                    self.by_uuid.insert(uuid, item.clone());
                }
                let away = self.away.entry(item.clone()).or_default();
                if let Some(before) = away.insert(uuid, Away { from, event_index }) {
                    // Taken twice without a deposit that is told of: it had left the first account.
                    self.left(item, uuid, before);
                }
            }
            Said::ItemDeposited { id, uuid, to } => {
                let away = self.take(&(contract.to_owned(), id), uuid);
                // Whether it is new is known at the end: some contracts tell of a mint after the deposit.
                let kind = if away.is_some() { NftKind::Transfer } else { NftKind::Release };
                self.moves.push(NftMove {
                    collection: contract.to_owned(),
                    id,
                    uuid: uuid.or(away.as_ref().and_then(|(uuid, _)| *uuid)),
                    from: away.map(|(_, away)| away.from),
                    to,
                    kind,
                    event_index,
                });
            }
            Said::ItemMinted { id } => {
                self.minted.insert((contract.to_owned(), id));
            }
            Said::SomeItemDestroyed { uuid, id } => {
                let item = self.by_uuid.get(&uuid).cloned();
                if !item.is_some_and(|item| self.destroyed(item, Some(uuid), event_index)) {
                    self.nameless.insert(uuid, (id, event_index));
                }
            }
            Said::ItemDestroyed { id, uuid } => {
                let item = (contract.to_owned(), id);
                if let Some(uuid) = uuid {
                    self.named.insert(uuid, item.clone());
                }
                self.destroyed(item, uuid, event_index);
            }
            _ => {}
        }
    }

    /// Whether it was taken out in this transaction. What wasn't, or was told of already, is left to [`NonFungible::end`].
    fn destroyed(&mut self, item: Item, uuid: Option<u64>, event_index: u32) -> bool {
        let Some((taken, away)) = self.take(&item, uuid) else { return false };
        let uuid = uuid.or(taken);
        self.burnt.extend(uuid);
        self.moves.push(NftMove {
            collection: item.0,
            id: item.1,
            uuid,
            from: Some(away.from),
            to: None,
            kind: NftKind::Burn,
            event_index,
        });
        true
    }

    /// Takes an item that is on its way, with its resource's id where that was said: this resource, else one of which it wasn't; any of the item's where no
    /// resource is named.
    fn take(&mut self, item: &Item, uuid: Option<u64>) -> Option<(Option<u64>, Away)> {
        let away = self.away.get_mut(item)?;
        match uuid {
            Some(_) => away.remove_entry(&uuid).or_else(|| away.remove_entry(&None)),
            None => away.pop_first(),
        }
    }

    fn left(&mut self, (collection, id): Item, uuid: Option<u64>, away: Away) {
        let Away { from, event_index } = away;
        let kind = NftKind::Withdrawal;
        self.moves.push(NftMove { collection, id, uuid, from: Some(from), to: None, kind, event_index });
    }

    /// All movements, by event; what is still on its way left its account, and what was destroyed where it belonged to none is burnt all the
    /// same. Beside them what was destroyed without a word on its collection.
    pub fn end(mut self) -> (Vec<NftMove>, Vec<NftDestroyed>) {
        let mut unnamed = Vec::new();
        for (item, resources) in std::mem::take(&mut self.away) {
            for (uuid, away) in resources {
                self.left(item.clone(), uuid, away);
            }
        }
        for (uuid, (id, event_index)) in std::mem::take(&mut self.nameless) {
            if self.burnt.contains(&uuid) {
                continue;
            }
            let named = self.named.remove(&uuid).or_else(|| self.by_uuid.remove(&uuid));
            let Some((collection, id)) = named else {
                unnamed.push(NftDestroyed { uuid, id, event_index });
                continue;
            };
            self.moves.push(NftMove {
                collection,
                id,
                uuid: Some(uuid),
                from: None,
                to: None,
                kind: NftKind::Burn,
                event_index,
            });
        }
        self.moves.sort_by_key(|one| one.event_index);
        for one in self.moves.iter_mut().filter(|one| one.kind == NftKind::Release) {
            // New only once: it may leave the account again and come back.
            if self.minted.remove(&(one.collection.clone(), one.id)) {
                one.kind = NftKind::Mint;
            }
        }
        unnamed.sort_by_key(|one| one.event_index);
        (self.moves, unnamed)
    }
}
