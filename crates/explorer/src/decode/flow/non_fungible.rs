//! Non-fungible tokens: each item's withdrawals and deposits, paired by the item, and what was destroyed.
//!
//! An item is its resource, whose id the new form says: two items of a collection that have one id are told apart by it. Where an event doesn't
//! say it, the item's id in its collection decides.
//!
//! A destruction is told once or twice: in the standard's name, with the resource's id and without the collection, and in that of the collection's own type, which
//! may have the item's id alone. Of an item that wasn't taken out before, such two are one where they have the same item's id.

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

/// Where the event in the collection's name stands to the one in the standard's: just before it, as the chain tells the two.
#[derive(Debug, Clone, Copy)]
enum Place {
    Before,
    Behind,
    Anywhere,
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
    /// Items that the chain said to be destroyed in their collection's name without the resource's id, and not yet in the standard's; by the event.
    without_uuid: BTreeMap<u32, Item>,
    /// Resources whose destruction is told.
    burnt: BTreeSet<u64>,
    /// The items that they were.
    burnt_items: BTreeSet<Item>,
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
            Said::ItemDestroyed { id, uuid, is_by_chain } => {
                let item = (contract.to_owned(), id);
                if let Some(uuid) = uuid {
                    self.named.insert(uuid, item.clone());
                }
                let is_told =
                    self.destroyed(item.clone(), uuid, event_index) || self.burnt_items.contains(&item);
                if is_by_chain && uuid.is_none() && !is_told {
                    self.without_uuid.insert(event_index, item);
                }
            }
            _ => {}
        }
    }

    /// Whether it was taken out in this transaction. What wasn't, or was told of already, is left to [`NonFungible::end`].
    fn destroyed(&mut self, item: Item, uuid: Option<u64>, event_index: u32) -> bool {
        let Some((taken, away)) = self.take(&item, uuid) else { return false };
        let uuid = uuid.or(taken);
        self.burnt.extend(uuid);
        self.burnt_items.insert(item.clone());
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
        let mut nameless: Vec<NftDestroyed> = std::mem::take(&mut self.nameless)
            .into_iter()
            .filter(|(uuid, _)| !self.burnt.contains(uuid))
            .map(|(uuid, (id, event_index))| NftDestroyed { uuid, id, event_index })
            .collect();
        nameless.sort_by_key(|one| one.event_index);
        // Those that a resource's id names first: what is left has the item's id alone.
        let mut items: Vec<Option<Item>> = nameless.iter().map(|one| self.item_of(one.uuid)).collect();
        for item in items.iter().flatten() {
            let told = self.without_uuid.iter().find(|(_, other)| *other == item);
            if let Some(event_index) = told.map(|(event_index, _)| *event_index) {
                self.without_uuid.remove(&event_index);
            }
        }
        for place in [Place::Before, Place::Behind, Place::Anywhere] {
            for (one, item) in nameless.iter().zip(&mut items).filter(|(_, item)| item.is_none()) {
                *item = self.take_named(one, place);
            }
        }
        for (one, item) in nameless.into_iter().zip(items) {
            let Some((collection, id)) = item else {
                unnamed.push(one);
                continue;
            };
            self.moves.push(NftMove {
                collection,
                id,
                uuid: Some(one.uuid),
                from: None,
                to: None,
                kind: NftKind::Burn,
                event_index: one.event_index,
            });
        }
        self.moves.sort_by_key(|one| one.event_index);
        for one in self.moves.iter_mut().filter(|one| one.kind == NftKind::Release) {
            // New only once: it may leave the account again and come back.
            if self.minted.remove(&(one.collection.clone(), one.id)) {
                one.kind = NftKind::Mint;
            }
        }
        (self.moves, unnamed)
    }

    /// Which item a resource is, as an event says that names it.
    fn item_of(&mut self, uuid: u64) -> Option<Item> {
        self.named.remove(&uuid).or_else(|| self.by_uuid.remove(&uuid))
    }

    /// The item of this id that was destroyed in its collection's name, as the event at this place says.
    fn take_named(&mut self, one: &NftDestroyed, place: Place) -> Option<Item> {
        let id = one.id?;
        let at = match place {
            Place::Before => one.event_index.checked_sub(1)?,
            Place::Behind => one.event_index.checked_add(1)?,
            Place::Anywhere => *self.without_uuid.iter().find(|(_, item)| item.1 == id)?.0,
        };
        self.without_uuid.get(&at).filter(|item| item.1 == id)?;
        self.without_uuid.remove(&at)
    }
}
