//! Lists of Flow transactions, straight out of the raw store: block by block, the transactions of each in their order.

use std::collections::{BTreeMap, HashMap};

use axum::Json;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::Value;

use super::transaction::{FlowTx, PARTS, decode};
use crate::rest::answer::{Page, PageInfo};
use crate::rest::cursor::Binding;
use crate::rest::list::{lost_to_a_reorg, reorged, seal};
use crate::rest::params::Paging;
use crate::rest::problem::Problem;
use crate::rest::transactions::TransactionRow;
use crate::rest::view::View;

/// Blocks that are read for one page, at most: blocks of old sporks may have no transaction.
const MAX_BLOCKS: usize = 500;

/// About how many bytes of blocks are read at once.
const READ_BYTES: u64 = 8 << 20;

/// A place in the chain.
type Place = (Height, u32);

/// A page of the transactions of `range`.
pub(crate) async fn page(
    view: &View,
    range: HeightRange,
    binding: Binding,
    paging: &Paging,
) -> Result<Json<Page<TransactionRow>>, Problem> {
    let mut after: Option<Place> = None;
    let mut anchor = None;
    if let Some(text) = &paging.cursor {
        let cursor = view.cursor_key().open(binding, text)?;
        let place = place_of(&cursor.place)
            .ok_or_else(|| Problem::cursor("the cursor is of another version of this list"))?;
        if let Some(lost) = lost_to_a_reorg(view, &cursor).await? {
            let from = match paging.descending {
                // What is at and below the place was not shown yet.
                true if place.0 <= lost.height => place,
                true => (lost.height.next(), 0),
                false => (lost.height, u32::MAX),
            };
            return Err(reorged(lost, Some(seal(view, binding, Some(lost), values(from)))));
        }
        (after, anchor) = (Some(place), cursor.anchor);
    }
    let limit = paging.limit as usize;
    let mut rows: Vec<(Place, TransactionRow)> = Vec::new();
    let mut at = match (after, paging.descending) {
        (Some((height, _)), _) => Some(height),
        (None, true) => range.last(),
        (None, false) => (!range.is_empty()).then(|| range.start()),
    };
    let mut read = 0;
    // Where the walk stopped with more to come.
    let mut horizon: Option<Place> = None;
    while let Some(height) = at.filter(|height| range.contains(*height)) {
        if rows.len() > limit {
            break;
        }
        if read == MAX_BLOCKS {
            horizon = Some(if paging.descending {
                (height.next(), 0)
            } else {
                (height.saturating_sub(1), u32::MAX)
            });
            break;
        }
        read += 1;
        if let Some(stored) = view.chain().block(height, PARTS).await? {
            let (stored, block) = decode(stored).await?;
            if anchor.is_none_or(|anchor: cairn_core::BlockRef| anchor.height < height) {
                anchor = Some(stored.facts.block_ref());
            }
            let mut of_block: Vec<(Place, TransactionRow)> = (0u32..)
                .zip(block.transactions)
                .map(|(index, tx)| ((height, index), FlowTx { index, tx }.row(&stored.facts)))
                .collect();
            if paging.descending {
                of_block.reverse();
            }
            rows.extend(of_block.into_iter().filter(|(place, _)| match after {
                None => true,
                Some(after) if paging.descending => *place < after,
                Some(after) => *place > after,
            }));
        }
        at = if paging.descending { height.prev() } else { Some(height.next()) };
    }
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().map(|(place, _)| *place);
    let next = match is_cut {
        true => last.map(|place| seal(view, binding, anchor, values(place))),
        false => horizon.map(|place| seal(view, binding, anchor, values(place))),
    };
    let resume = match (&next, last) {
        _ if paging.descending => None,
        (Some(next), _) => Some(next.clone()),
        (None, Some(place)) => Some(seal(view, binding, anchor, values(place))),
        (None, None) => paging.cursor.clone(),
    };
    let data = rows.into_iter().map(|(_, row)| row).collect();
    Ok(Json(Page { data, page: PageInfo { next, resume, limit: paging.limit }, meta: view.meta() }))
}

/// The transactions at these places. One that isn't there is a damaged store's.
pub(crate) async fn at_places(
    view: &View,
    places: &[Place],
) -> Result<HashMap<Place, TransactionRow>, Problem> {
    let mut of_height: BTreeMap<Height, Vec<u32>> = BTreeMap::new();
    for (height, index) in places {
        of_height.entry(*height).or_default().push(*index);
    }
    let mut rows = HashMap::with_capacity(places.len());
    let heights: Vec<Height> = of_height.keys().copied().collect();
    let mut left = &heights[..];
    while !left.is_empty() {
        let read = view.chain().blocks_at(left, PARTS, READ_BYTES).await?;
        if read.is_empty() {
            return Err(Problem::internal(format!("block {} is derived from, but not stored", left[0])));
        }
        left = &left[read.len().min(left.len())..];
        for stored in read {
            let height = stored.facts.height;
            let (stored, block) = decode(stored).await?;
            let wanted = of_height.remove(&height).unwrap_or_default();
            for (index, tx) in (0u32..).zip(block.transactions) {
                if wanted.contains(&index) {
                    rows.insert((height, index), FlowTx { index, tx }.row(&stored.facts));
                }
            }
        }
    }
    match places.iter().find(|place| !rows.contains_key(place)) {
        Some((height, index)) => Err(Problem::internal(format!(
            "block {height} has no transaction {index}, which was derived from"
        ))),
        None => Ok(rows),
    }
}

fn values((height, index): Place) -> Vec<Value> {
    vec![Value::height(height), Value::uint(index.into())]
}

fn place_of(values: &[Value]) -> Option<Place> {
    match values {
        [height, Value::Int(index)] => Some((height.as_height()?, u32::try_from(*index).ok()?)),
        _ => None,
    }
}
