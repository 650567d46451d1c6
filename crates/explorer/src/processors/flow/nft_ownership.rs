//! `nft_ownership_worker` of Flow: owners of items, folded from `nft_transfers` and `nft_resources` in chain order. Items of the EVM side are folded as those of
//! EVM chains are; what follows is of Cadence.
//!
//! An item belongs to whoever got it last, and what accounts hold follows from that alone: what an event says of the giver isn't needed, and may be missing.
//! An item may leave its account and come back, which no event tells from a burn and a mint: it counts as minted while it isn't destroyed.
//!
//! The chain says of an item that was destroyed in its collection neither whose it was nor, as a rule, of which collection: its resource's id alone. Which item that is was said
//! when it moved, so its owner loses it all the same. Of an item that hasn't moved since Cadence 1.0, nothing ever said it: unless its collection declares the event too,
//! which then names it, it stays with its owner here, and `nft_resources` has the end of it.

use std::sync::Arc;

use bytes::Bytes;
use cairn_pipeline::derive::processor::{
    Changes, FoldBlock, FoldState, Folder, Lookup, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{Key, Row, Sum, TableDef, U256, Value};

use crate::decode::flow::NFT_KIND;
use crate::names::{NFT_OWNERSHIP_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::ft_holdings::is_above_zero;
use crate::processors::nft_ownership as of_evm;
use crate::tables::flow::nfts::{NFT_RESOURCES, ResourceRow};
use crate::tables::nfts::{
    ItemChange, NFT_COLLECTION_STATS, NFT_HOLDINGS, NFT_IS_BURNED, NFT_OWNER, NFT_OWNERS, NFT_OWNERSHIP,
    OWNER_BALANCE, collection_stats, nft_holding, nft_owner,
};
use crate::tables::transfers::{NFT_TRANSFERS, NftTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: NFT_OWNERSHIP_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&NFT_OWNERSHIP, &NFT_HOLDINGS, &NFT_OWNERS, &NFT_COLLECTION_STATS],
};

static READS: &[&TableDef] = &[&NFT_TRANSFERS, &NFT_RESOURCES];

/// Makes it.
pub fn make(_settings: &Settings) -> Option<Processor> {
    Some(Processor::Folder(Arc::new(NftOwnershipWorker)))
}

struct NftOwnershipWorker;

impl Folder for NftOwnershipWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    /// Items of the EVM side. Of Cadence everything depends on what an item was before.
    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        of_evm::fold(block, changes, |transfer| transfer.kind != NFT_KIND)
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        // Every table here begins with the contract's address.
        if after
            .0
            .first()
            .and_then(Value::as_bytes)
            .is_some_and(|address| address.len() == super::EVM_ADDRESS_BYTES)
        {
            of_evm::settled(table, before, after, changes);
        }
    }

    fn looks_at_state(&self) -> bool {
        true
    }

    fn fold_with_state(&self, block: &FoldBlock<'_>, state: &mut FoldState<'_>) -> Result<(), ProcessError> {
        let in_block = |error: crate::tables::RowError| error.in_block(block.facts.block_ref());
        let rows = |at: usize| block.rows.get(at).copied().unwrap_or_default();
        let height = block.facts.height.get();
        let mut steps = Vec::new();
        for row in rows(0) {
            let transfer = NftTransfer::from_row(row).map_err(in_block)?;
            if transfer.kind != NFT_KIND {
                continue;
            }
            let (order, parties) = (transfer.place.order(), transfer.parties);
            let owner = parties.taker().cloned();
            let is_burned = parties.is_burn;
            let (contract, name) = (parties.contract_address, parties.contract_name);
            let item = Item { contract, name, id: transfer.token_id };
            steps.push((order, Step::Moved { item, owner, is_burned }));
        }
        for row in rows(1) {
            let resource = ResourceRow::from_row(row).map_err(in_block)?;
            if resource.is_destroyed {
                steps.push((resource.order(), Step::Destroyed(resource.resource_uuid)));
            }
        }
        // Rows come by key, which is by transaction id.
        steps.sort_by_key(|(order, _)| *order);
        for (_, step) in steps {
            match step {
                Step::Moved { item, owner, is_burned } => {
                    item.becomes(owner.as_ref(), is_burned, 1, height, state);
                }
                Step::Destroyed(uuid) => {
                    let Some(item) = item_of(uuid, state).map_err(in_block)? else { continue };
                    // One that the archive has no other word of belongs to nobody as it is.
                    if state.row(&NFT_OWNERSHIP, item.key()).is_some_and(|row| !is_burned(&row)) {
                        item.becomes(None, true, 0, height, state);
                    }
                }
            }
        }
        Ok(())
    }

    /// The collection.
    fn group<'a>(&self, _table: &'static str, key: &'a Key) -> &'a [Value] {
        key.0.get(..2).unwrap_or_default()
    }
}

enum Step {
    Moved {
        item: Item,
        owner: Option<Bytes>,
        is_burned: bool,
    },
    /// A resource by its id.
    Destroyed(U256),
}

/// Which item a resource is, as the first event said that named both.
fn item_of(uuid: U256, state: &mut FoldState<'_>) -> Result<Option<Item>, crate::tables::RowError> {
    let lookup = Lookup {
        table: NFT_RESOURCES.name,
        index: Some("by_resource"),
        prefix: vec![Value::Amount(uuid)],
        limit: 1,
    };
    let first = state.find(&lookup).rows.first().map(ResourceRow::from_row).transpose()?;
    let Some(ResourceRow { collection: Some((contract, name)), token_id: Some(id), .. }) = first else {
        return Ok(None);
    };
    Ok(Some(Item { contract, name, id }))
}

fn is_burned(row: &Row) -> bool {
    row.0.get(NFT_IS_BURNED).and_then(Value::as_bool).unwrap_or(false)
}

struct Item {
    contract: Bytes,
    name: String,
    id: U256,
}

impl Item {
    fn collection(&self) -> (&Bytes, &str) {
        (&self.contract, &self.name)
    }

    fn key_with(&self, rest: impl IntoIterator<Item = Value>) -> Key {
        let collection = [Value::Bytes(self.contract.clone()), Value::text(&self.name)];
        Key(collection.into_iter().chain(rest).collect())
    }

    fn key(&self) -> Key {
        self.key_with([Value::Amount(self.id)])
    }

    /// It has another owner, or none.
    fn becomes(
        &self,
        owner: Option<&Bytes>,
        is_burned: bool,
        transfers: i64,
        height: u64,
        state: &mut FoldState<'_>,
    ) {
        let before = state.row(&NFT_OWNERSHIP, self.key());
        let was_there = before.as_ref().is_some_and(|row| !self::is_burned(row));
        let items = i64::from(!is_burned) - i64::from(was_there);
        let change = ItemChange {
            collection: self.collection(),
            nft_id: self.id,
            kind: NFT_KIND,
            owner,
            is_burned,
            minted: sum(items),
            transfers,
            height,
        };
        state.change(&NFT_OWNERSHIP, &change.to_change());
        let stats = collection_stats(self.collection(), items, 0, transfers, Some(height));
        state.change(&NFT_COLLECTION_STATS, &stats);
        let had = before.as_ref().and_then(|row| row.0.get(NFT_OWNER)?.as_bytes());
        if had != owner {
            for (address, by) in [(had, -1), (owner, 1)] {
                if let Some(address) = address {
                    self.held(address, by, state);
                }
            }
        }
    }

    /// An account has it no more, or now.
    fn held(&self, address: &Bytes, by: i64, state: &mut FoldState<'_>) {
        let change = nft_holding(self.collection(), self.id, address, sum(by), by > 0);
        state.change(&NFT_HOLDINGS, &change);
        let account = Value::Bytes(address.clone());
        let is_owner = |state: &mut FoldState<'_>| {
            let row = state.row(&NFT_OWNERS, self.key_with([account.clone()]));
            row.is_some_and(|row| is_above_zero(&row, OWNER_BALANCE))
        };
        let was_owner = is_owner(state);
        state.change(&NFT_OWNERS, &nft_owner(self.collection(), address, sum(by)));
        let owners = i64::from(is_owner(state)) - i64::from(was_owner);
        if owners != 0 {
            let stats = collection_stats(self.collection(), 0, owners, 0, None);
            state.change(&NFT_COLLECTION_STATS, &stats);
        }
    }
}

/// A small number.
fn sum(of: i64) -> Sum {
    let size = Sum::from(U256::from(of.unsigned_abs()));
    if of < 0 { -size } else { size }
}
