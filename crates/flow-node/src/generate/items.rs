//! Items: of `ExampleNFT`; of `OtherNFT`, which emits its own events beside the standard's; and of `PackNFT`, whose own word on a destruction has the item's
//! id alone.

use cairn_flow::FlowAddress;
use rand::RngExt;

use super::block::BlockBuilder;
use super::transaction::Tx;
use crate::cdc;
use crate::ledger::{ContractId, Item};

impl BlockBuilder<'_> {
    fn collection(&mut self) -> ContractId {
        match self.rng.random_range(0..10) {
            0..5 => self.cast.example_nft.clone(),
            5..8 => self.cast.other_nft.clone(),
            _ => self.cast.pack_nft.clone(),
        }
    }

    fn nft_standard(&self) -> ContractId {
        ContractId::new(self.options.network.accounts().non_fungible_token, "NonFungibleToken")
    }

    fn item_imports(&self, collection: &ContractId) -> Vec<ContractId> {
        vec![self.nft_standard(), collection.clone()]
    }

    /// One half of a movement, in the forms that the collection tells it in. Nothing is told of what has no owner, since 1.0.
    fn tell_item(
        &self,
        tx: &mut Tx,
        collection: &ContractId,
        id: u64,
        uuid: u64,
        party: FlowAddress,
        is_deposit: bool,
    ) {
        let (own, standard, side, place) = match is_deposit {
            true => ("Deposit", "Deposited", "to", "collectionUUID"),
            false => ("Withdraw", "Withdrawn", "from", "providerUUID"),
        };
        let party_field = (side, cdc::optional(Some(cdc::address(party))));
        if self.is_old() || *collection == self.cast.other_nft {
            let name = format!("{collection}.{own}");
            tx.event(&name, &[("id", cdc::number("UInt64", id)), party_field.clone()]);
        }
        if !self.is_old() {
            let place_uuid = u64::from_be_bytes(party.0) ^ 0x0011_2233_4455_6677;
            tx.event(
                &format!("{}.{standard}", self.nft_standard()),
                &[
                    ("type", cdc::string(&format!("{collection}.NFT"))),
                    ("id", cdc::number("UInt64", id)),
                    ("uuid", cdc::number("UInt64", uuid)),
                    party_field,
                    (place, cdc::number("UInt64", place_uuid)),
                ],
            );
        }
        let uuid = Some(uuid).filter(|_| !self.is_old());
        match is_deposit {
            true => tx.item_put(collection, id, uuid, party),
            false => tx.item_took(collection, id, uuid, party),
        }
    }

    fn set_item(&mut self, collection: &ContractId, id: u64, item: Item) {
        self.ledger.items.set((collection.clone(), id), self.height, item);
    }

    pub fn mint_item(&mut self, tx: &mut Tx) {
        let collection = self.collection();
        let to = self.actor();
        tx.scripted(self.item_imports(&collection), "mint");
        for _ in 0..self.rng.random_range(1..4) {
            self.counters.items += 1;
            // The same ids in all collections, and some that use all 64 bits.
            let counted = self.counters.items;
            let id = if counted.is_multiple_of(7) { u64::MAX - counted } else { counted / 2 };
            if self.ledger.items.last(&(collection.clone(), id)).is_some() {
                continue;
            }
            let uuid = self.next_uuid();
            let item = Item {
                uuid,
                owner: Some(to),
                is_burned: false,
                is_resource_told: !self.is_old(),
                told_owner: Some(to),
                is_burn_told: false,
            };
            self.set_item(&collection, id, item);
            // One collection tells of mints, the others don't.
            if collection == self.cast.example_nft {
                tx.event(&format!("{collection}.Minted"), &[("id", cdc::number("UInt64", id))]);
                tx.item_minted(&collection, id);
            }
            self.tell_item(tx, &collection, id, uuid, to, true);
        }
    }

    fn any_of(&mut self, actor: FlowAddress) -> Option<(ContractId, u64, Item)> {
        let owned: Vec<_> = self
            .ledger
            .items
            .all()
            .filter(|(_, item)| item.owner == Some(actor))
            .map(|((collection, id), item)| (collection.clone(), *id, *item))
            .collect();
        let at = self.rng.random_range(0..owned.len().max(1));
        owned.into_iter().nth(at)
    }

    /// From its owner to another, at times over several in one transaction, and back.
    pub fn move_item(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let Some((collection, id, item)) = self.any_of(actor) else { return self.mint_item(tx) };
        tx.scripted(self.item_imports(&collection), "move");
        let mut owner = actor;
        let hops = if self.chance(30) { 3 } else { 1 };
        for _ in 0..hops {
            let to = if self.chance(10) { owner } else { self.actor() };
            self.tell_item(tx, &collection, id, item.uuid, owner, false);
            self.tell_item(tx, &collection, id, item.uuid, to, true);
            let is_old = self.is_old();
            self.set_item(&collection, id, item.moved(Some(to), !is_old));
            owner = to;
        }
    }

    pub fn burn_item(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let Some((collection, id, item)) = self.any_of(actor) else { return self.mint_item(tx) };
        tx.scripted(self.item_imports(&collection), "burn");
        self.tell_item(tx, &collection, id, item.uuid, actor, false);
        let is_old = self.is_old();
        if is_old {
            // Nothing tells it from any other leaving.
            return self.set_item(&collection, id, item.moved(None, false).destroyed(false));
        }
        self.tell_end(tx, &collection, id, item.uuid);
        self.set_item(&collection, id, item.destroyed(true));
    }

    /// In the standard's name, which says nothing of the collection; two collections declare the event too, each in a form of its own. Says whether this one does.
    fn tell_end(&self, tx: &mut Tx, collection: &ContractId, id: u64, uuid: u64) -> bool {
        let fields = [("id", cdc::number("UInt64", id)), ("uuid", cdc::number("UInt64", uuid))];
        let is_named = *collection != self.cast.other_nft;
        if is_named {
            let own = if *collection == self.cast.pack_nft { &fields[..1] } else { &fields };
            tx.event(&format!("{collection}.NFT.ResourceDestroyed"), own);
            tx.item_burnt(collection, id);
        }
        tx.event(&format!("{}.NFT.ResourceDestroyed", self.nft_standard()), &fields);
        if !tx.item_burnt(collection, id) {
            tx.item_ended(collection, id, uuid, is_named);
        }
        is_named
    }

    /// With whatever lies in it, which is nothing at times. No event tells whose it was.
    pub fn destroy_collection(&mut self, tx: &mut Tx, actor: FlowAddress) {
        if self.is_old() {
            // The contracts of then demand that it is empty, and tell nothing.
            return self.burn_item(tx, actor);
        }
        // One with something in it, as a rule.
        let owned = self.any_of(actor).filter(|_| self.chance(80));
        let collection = owned.map_or_else(|| self.collection(), |(collection, ..)| collection);
        tx.scripted(self.item_imports(&collection), "destroy a collection");
        let items: Vec<(u64, Item)> = self
            .ledger
            .items
            .all()
            .filter(|((of, _), item)| *of == collection && item.owner == Some(actor))
            .map(|((_, id), item)| (*id, *item))
            .collect();
        for (id, item) in items {
            let is_named = self.tell_end(tx, &collection, id, item.uuid);
            self.set_item(&collection, id, item.destroyed(is_named || item.is_resource_told));
        }
        let own = [("uuid", cdc::number("UInt64", self.next_uuid()))];
        tx.event(&format!("{collection}.Collection.ResourceDestroyed"), &own);
    }

    /// Into some other resource, of which no event tells; or out of it, to anybody; or destroyed with that resource.
    pub fn park_item(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let parked = self.ledger.items.all().find(|(_, item)| item.owner.is_none() && !item.is_burned);
        let parked = parked.map(|((collection, id), item)| (collection.clone(), *id, *item));
        let is_old = self.is_old();
        if let Some((collection, id, item)) = parked
            && self.chance(60)
        {
            if !is_old && self.chance(25) {
                tx.scripted(self.item_imports(&collection), "destroy what is parked");
                let is_named = self.tell_end(tx, &collection, id, item.uuid);
                return self.set_item(&collection, id, item.destroyed(is_named || item.is_resource_told));
            }
            tx.scripted(self.item_imports(&collection), "unpark");
            self.tell_item(tx, &collection, id, item.uuid, actor, true);
            return self.set_item(&collection, id, item.moved(Some(actor), !is_old));
        }
        let Some((collection, id, item)) = self.any_of(actor) else { return self.mint_item(tx) };
        tx.scripted(self.item_imports(&collection), "park");
        self.tell_item(tx, &collection, id, item.uuid, actor, false);
        self.set_item(&collection, id, item.moved(None, !is_old));
    }
}
