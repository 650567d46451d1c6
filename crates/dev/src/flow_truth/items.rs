//! `nft_transfers` and `nft_resources`: every movement of an item. `nft_ownership`, `nft_holdings`, `nft_owners`, `nft_collection_stats`: what
//! came of them.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use cairn_explorer::tables::flow::nfts::NFT_RESOURCES;
use cairn_explorer::tables::nfts::{NFT_COLLECTION_STATS, NFT_HOLDINGS, NFT_OWNERS, NFT_OWNERSHIP};
use cairn_explorer::tables::transfers::NFT_TRANSFERS;
use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{Deed, MoveKind};
use cairn_flow_node::ledger::ContractId;

use super::evm_tokens;
use super::ledger::{ItemAt, Truth, account, contract};
use super::rows::{Cell, Expected, Row, Tables, boolean, number, text};
use super::tokens::Span;

/// `nft_transfers`.
pub fn transfers(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_TRANSFERS)?;
    for ItemAt { at, event_index, moved } in truth.items() {
        let [height, id] = at.key();
        let [index, time] = at.when();
        let [address, name] = contract(&moved.collection);
        let mut row = vec![height, id, number(event_index), number(0), index, time, address, name];
        row.extend([moved.from.and_then(account), moved.to.and_then(account)]);
        row.extend([number(moved.id), number(1), text("cadence-nft")]);
        row.extend([boolean(moved.kind == MoveKind::Mint), boolean(moved.kind == MoveKind::Burn)]);
        expected.add(row)?;
    }
    let of_evm = evm_tokens::moves(truth)?;
    of_evm.iter().filter(|one| one.is_item()).try_for_each(|one| expected.add(one.row()))?;
    Ok(expected)
}

/// `nft_resources`: which resource an item is, where a movement told it; and the ends of those whose collection nothing names.
pub fn resources(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_RESOURCES)?;
    for ItemAt { at, event_index, moved } in truth.items() {
        let Some(uuid) = moved.uuid.filter(|_| moved.kind != MoveKind::Burn) else { continue };
        let [height, id] = at.key();
        let [index, time] = at.when();
        let [address, name] = contract(&moved.collection);
        let mut row = vec![height, id, number(event_index), index, time, number(uuid), address, name];
        row.extend([number(moved.id), boolean(false)]);
        expected.add(row)?;
    }
    for (at, done) in truth.deeds() {
        let Deed::ItemDestroyed { id: item, uuid, .. } = &done.deed else { continue };
        let [height, id] = at.key();
        let [index, time] = at.when();
        let mut row = vec![height, id, number(done.event_index), index, time, number(uuid), None, None];
        row.extend([number(item), boolean(true)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// What became of an item, as far as events tell.
struct Step<'l> {
    item: (&'l ContractId, u64),
    at: (u64, usize, u32),
    owner: Option<FlowAddress>,
    is_burned: bool,
    is_move: bool,
}

/// In the order of the chain. Of an item of which nothing ever told which resource it is, its end isn't known.
fn steps<'l>(truth: &Truth<'l>) -> Vec<Step<'l>> {
    let mut steps = Vec::new();
    for (at, done) in truth.deeds() {
        let place = (at.height, at.index, done.event_index);
        match &done.deed {
            Deed::Item(moved) => steps.push(Step {
                item: (&moved.collection, moved.id),
                at: place,
                owner: moved.to,
                is_burned: moved.kind == MoveKind::Burn,
                is_move: true,
            }),
            Deed::ItemDestroyed { collection, id, .. } => {
                let item = truth.ledger.items.at(&(collection.clone(), *id), truth.height);
                if item.is_some_and(|item| item.is_burn_told) {
                    let item = (collection, *id);
                    steps.push(Step { item, at: place, owner: None, is_burned: true, is_move: false });
                }
            }
            _ => {}
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// An item with what its steps say.
struct History {
    span: Span,
    transfers: u64,
    is_burned: bool,
}

fn histories<'l>(truth: &Truth<'l>) -> BTreeMap<(&'l ContractId, u64), History> {
    let mut histories: BTreeMap<(&ContractId, u64), History> = BTreeMap::new();
    for step in steps(truth) {
        let before = histories.get(&step.item);
        let history = History {
            span: Span::add(before.map(|history| history.span), step.at.0),
            transfers: before.map_or(0, |history| history.transfers) + u64::from(step.is_move),
            // Before Cadence 1.0 nothing told a burn from any other leaving.
            is_burned: step.is_burned,
        };
        histories.insert(step.item, history);
    }
    histories
}

/// `nft_ownership`: every item that there ever was, and who has it.
pub fn ownership(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_OWNERSHIP)?;
    let histories = histories(truth);
    for ((collection, id), item) in truth.ledger.items_at(truth.height) {
        let mut row = contract(&collection).to_vec();
        row.extend([number(id), text("cadence-nft"), item.told_owner.and_then(account)]);
        let Some(history) = histories.get(&(&collection, id)) else {
            anyhow::bail!("nft_ownership: item {id} of {collection} is there, and no movement tells of it");
        };
        row.extend([boolean(item.is_burn_told), number(u8::from(!item.is_burn_told))]);
        row.push(number(history.transfers));
        row.extend(history.span.cells());
        expected.add(row)?;
    }
    evm_tokens::nft_ownership(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// The last height at which a party's holding of an item changed.
fn changes<'l>(truth: &Truth<'l>) -> BTreeMap<(&'l ContractId, u64, FlowAddress), u64> {
    let mut owners: BTreeMap<(&ContractId, u64), FlowAddress> = BTreeMap::new();
    let mut changes = BTreeMap::new();
    for step in steps(truth) {
        let had = match step.owner {
            Some(owner) => owners.insert(step.item, owner),
            None => owners.remove(&step.item),
        };
        for party in [had, step.owner].into_iter().flatten().filter(|_| had != step.owner) {
            changes.insert((step.item.0, step.item.1, party), step.at.0);
        }
    }
    changes
}

/// `nft_holdings`: everybody who ever had an item.
pub fn holdings(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_HOLDINGS)?;
    for ((collection, id, party), height) in changes(truth) {
        let item = truth.ledger.items.at(&(collection.clone(), id), truth.height);
        let is_held = item.is_some_and(|item| item.told_owner == Some(party));
        let mut row = contract(collection).to_vec();
        row.extend([number(id), account(party), number(u8::from(is_held)), boolean(is_held), number(height)]);
        expected.add(row)?;
    }
    evm_tokens::nft_holdings(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// How many items of a collection an account has.
fn counts(truth: &Truth<'_>) -> BTreeMap<(ContractId, FlowAddress), u64> {
    let mut counts = BTreeMap::new();
    for ((collection, _), item) in truth.ledger.items_at(truth.height) {
        if let Some(owner) = item.told_owner {
            *counts.entry((collection, owner)).or_default() += 1;
        }
    }
    counts
}

/// `nft_owners`: everybody who ever had an item of a collection.
pub fn owners(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_OWNERS)?;
    let counts = counts(truth);
    let mut last: BTreeMap<(&ContractId, FlowAddress), u64> = BTreeMap::new();
    for ((collection, _, party), height) in changes(truth) {
        let entry = last.entry((collection, party)).or_default();
        *entry = height.max(*entry);
    }
    for ((collection, party), height) in last {
        let count = counts.get(&(collection.clone(), party)).copied().unwrap_or(0);
        let mut row = contract(collection).to_vec();
        row.extend([account(party), number(count), number(height)]);
        expected.add(row)?;
    }
    evm_tokens::nft_owners(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// `nft_collection_stats`: items that aren't burnt, owners, movements.
pub fn stats(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&NFT_COLLECTION_STATS)?;
    let counts = counts(truth);
    let histories = histories(truth);
    let collections: BTreeSet<&ContractId> = histories.keys().map(|(collection, _)| *collection).collect();
    for collection in collections {
        let of = histories.iter().filter(|((one, _), _)| *one == collection).map(|(_, history)| history);
        let (mut items, mut transfers, mut span) = (0u64, 0, None);
        for history in of {
            items += u64::from(!history.is_burned);
            transfers += history.transfers;
            span = Some(Span::add(Some(Span::add(span, history.span.first)), history.span.last));
        }
        let Some(span) = span else { continue };
        let owners = counts.keys().filter(|(one, _)| one == collection).count();
        let mut row: Vec<Cell> = contract(collection).to_vec();
        row.extend([number(items), number(owners), number(transfers)]);
        row.extend(span.cells());
        expected.add(row)?;
    }
    evm_tokens::nft_stats(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// Who has which item at a height, by the tables of movements and of resources alone.
pub fn owners_at(found: &Tables, height: u64) -> Result<BTreeMap<[Cell; 3], Cell>> {
    type Place = (u64, u64, u64);
    let place = |row: &Row<'_>| -> Result<Place> {
        Ok((row.number("block_height")?, row.number("transaction_index")?, row.number("event_index")?))
    };
    let item_of = |row: &Row<'_>| -> Result<[Cell; 3]> {
        Ok([row.cell("token_contract_address")?, row.cell("contract_name")?, row.cell("token_id")?])
    };
    let mut steps: Vec<(Place, [Cell; 3], Cell)> = Vec::new();
    for row in found.rows(&NFT_TRANSFERS)?.of_accounts() {
        steps.push((place(&row)?, item_of(&row)?, row.cell("to_address")?));
    }
    let (mut items, mut ends) = (BTreeMap::new(), Vec::new());
    for row in found.rows(&NFT_RESOURCES)?.iter() {
        match row.said("is_destroyed")?.as_str() {
            "true" => ends.push((place(&row)?, row.cell("resource_uuid")?)),
            _ => drop(items.insert(row.cell("resource_uuid")?, item_of(&row)?)),
        }
    }
    for (at, uuid) in ends {
        steps.extend(items.get(&uuid).map(|item| (at, item.clone(), None)));
    }
    steps.retain(|(at, ..)| at.0 <= height);
    steps.sort_by_key(|(at, ..)| *at);
    let mut owners: BTreeMap<[Cell; 3], Cell> = steps.into_iter().map(|(_, item, to)| (item, to)).collect();
    owners.retain(|_, owner| owner.is_some());
    Ok(owners)
}
