//! `nft_ownership_worker` of EVM chains: owners of NFTs, folded from `nft_transfers` in chain order. Flow's is `flow::nft_ownership`.
//!
//! An item of a kind with one owner belongs to whoever got it last; burnt, to nobody, and its row stays. Items that many hold (ERC-1155)
//! have their owners in `nft_holdings`, where those with one owner are too, so that one walk lists what an address holds.
//!
//! Anybody may send nothing of any item that many hold, be it one that was never minted or one that is burnt (E27). That is a transfer of the
//! collection and changes no item: it makes no row, and leaves an item's flag, its counts and its heights as they are.
//!
//! An item that many hold is burnt where what moved last was burnt and as many are burnt as were minted; else it is there. Of a contract that
//! keeps to the standard and an archive that has it whole, that is: where its supply isn't 0. The net alone would say too little of an item that
//! was minted before the archive's first block, or without an event. Who mints or gives some has them, so it is there then, whatever the net
//! is; a net below 0 says that there were more than the archive knows, and not that none is left.

use std::sync::Arc;

use cairn_pipeline::derive::processor::{Changes, FoldBlock, Folder, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Change, Key, Row, Sum, TableDef, Value};

use super::Settings;
use super::ft_holdings::{is_above_zero, is_zero};
use crate::decode::evm::TokenKind;
use crate::names::{NFT_OWNERSHIP_WORKER, TOKEN_WORKER};
use crate::tables::nfts::{
    ItemChange, NFT_BALANCE, NFT_COLLECTION_STATS, NFT_HOLDINGS, NFT_IS_BURNED, NFT_IS_HELD, NFT_KIND,
    NFT_NET_MINTED, NFT_OWNERS, NFT_OWNERSHIP, OWNER_BALANCE, collection_stats, nft_holding, nft_owner,
};
use crate::tables::transfers::{NFT_TRANSFERS, NftTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: NFT_OWNERSHIP_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&NFT_OWNERSHIP, &NFT_HOLDINGS, &NFT_OWNERS, &NFT_COLLECTION_STATS],
};

static READS: &[&TableDef] = &[&NFT_TRANSFERS];

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

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        fold(block, changes, |_| true)
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        settled(table, before, after, changes);
    }

    fn is_correctable(&self) -> bool {
        true
    }

    /// Whether an item that many hold was burnt last is no longer known where some of it is left.
    fn put_right(&self, table: &'static str, row: &mut Row) -> bool {
        if table == NFT_HOLDINGS.name {
            row.0[NFT_IS_HELD] = Value::Bool(!is_zero(row, NFT_BALANCE));
        }
        table != NFT_OWNERSHIP.name || row.0[NFT_KIND].as_text().is_some_and(has_one_owner)
    }

    /// The collection.
    fn group<'a>(&self, _table: &'static str, key: &'a Key) -> &'a [Value] {
        key.0.get(..2).unwrap_or_default()
    }
}

/// Folds the transfers of a block's first table that count, in chain order.
pub(super) fn fold(
    block: &FoldBlock<'_>,
    changes: &mut Changes,
    counts: impl Fn(&NftTransfer) -> bool,
) -> Result<(), ProcessError> {
    let rows = block.rows.first().copied().unwrap_or_default();
    let mut transfers = rows
        .iter()
        .map(NftTransfer::from_row)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| error.in_block(block.facts.block_ref()))?;
    transfers.retain(counts);
    // Rows come by key, which is by transaction id.
    transfers.sort_by_key(|transfer| transfer.place.order());
    for transfer in &transfers {
        fold_one(transfer, block.facts.height.get(), changes);
    }
    Ok(())
}

/// What follows from a row's old and new self.
pub(super) fn settled(table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
    if table == NFT_OWNERSHIP.name {
        settle_item(before, after, changes);
    } else if table == NFT_HOLDINGS.name && !is_zero(after, NFT_BALANCE) {
        changes.change(&NFT_HOLDINGS, only(after, &[0, 1, 2, 3], NFT_IS_HELD, Value::Bool(true)));
    } else if table == NFT_OWNERS.name {
        let was_owner = before.is_some_and(|row| is_above_zero(row, OWNER_BALANCE));
        let owners = i64::from(is_above_zero(after, OWNER_BALANCE)) - i64::from(was_owner);
        count(after, 0, owners, changes);
    }
}

fn has_one_owner(kind: &str) -> bool {
    kind != TokenKind::Erc1155.name()
}

fn fold_one(transfer: &NftTransfer, height: u64, changes: &mut Changes) {
    let parties = &transfer.parties;
    let collection = (&parties.contract_address, parties.contract_name.as_str());
    let amount = Sum::from(transfer.amount);
    let (giver, taker) = (parties.giver(), parties.taker());
    changes.change(&NFT_COLLECTION_STATS, collection_stats(collection, 0, 0, 1, Some(height)));
    if transfer.amount.is_zero() {
        return;
    }
    let mut minted = Sum::ZERO;
    if parties.is_mint {
        minted = minted + amount;
    }
    if parties.is_burn {
        minted = minted + -amount;
    }
    let one_owner = has_one_owner(&transfer.kind);
    let item = ItemChange {
        collection,
        nft_id: transfer.token_id,
        kind: &transfer.kind,
        owner: taker.filter(|_| one_owner),
        is_burned: parties.is_burn,
        minted,
        transfers: 1,
        height,
    };
    changes.change(&NFT_OWNERSHIP, item.to_change());
    if giver == taker {
        return;
    }
    for (address, by) in [(giver, -amount), (taker, amount)] {
        if let Some(address) = address {
            // Whether any is left is known when the row is settled.
            let holding = nft_holding(collection, transfer.token_id, address, by, false);
            changes.change(&NFT_HOLDINGS, holding);
            changes.change(&NFT_OWNERS, nft_owner(collection, address, by));
        }
    }
}

/// A burn of some of an item that many hold need not be its end; and the collection counts the items that aren't burnt.
fn settle_item(before: Option<&Row>, after: &Row, changes: &mut Changes) {
    let is_burned = is_burnt(after);
    if !is_burned && is_flagged(after) {
        changes.change(&NFT_OWNERSHIP, only(after, &[0, 1, 2], NFT_IS_BURNED, Value::Bool(false)));
    }
    let was_there = before.is_some_and(|row| !is_burnt(row));
    count(after, i64::from(!is_burned) - i64::from(was_there), 0, changes);
}

/// Whether the last transfer that moved any of it burnt that, as folding left the flag.
fn is_flagged(row: &Row) -> bool {
    row.0.get(NFT_IS_BURNED).and_then(Value::as_bool).unwrap_or(false)
}

/// Whether none of it is left, as the module says. The same whether the flag was put right already or not: rows are settled before that.
fn is_burnt(row: &Row) -> bool {
    let one_owner = row.0.get(NFT_KIND).and_then(Value::as_text).is_some_and(has_one_owner);
    is_flagged(row) && (one_owner || is_zero(row, NFT_NET_MINTED))
}

/// Adds to the counts of the collection whose address and name a row begins with.
fn count(row: &Row, items: i64, owners: i64, changes: &mut Changes) {
    if let (true, [Value::Bytes(contract), Value::Text(name), ..]) = (items != 0 || owners != 0, &row.0[..]) {
        let collection = (contract, name.as_str());
        changes.change(&NFT_COLLECTION_STATS, collection_stats(collection, items, owners, 0, None));
    }
}

/// A change of one column of a row that is there.
fn only(row: &Row, key: &[usize], column: usize, value: Value) -> Change {
    let field = |at: usize| {
        if at == column { Some(value.clone()) } else { row.0.get(at).filter(|_| key.contains(&at)).cloned() }
    };
    Change((0..row.0.len()).map(field).collect())
}
