//! Rows as blocks again.
//!
//! What of them is in object storage is fetched first, several objects at a time, and with no connection in hand: a slow store of objects keeps nobody
//! from the database (P08).

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use cairn_core::{Height, Parts, StoredBlock};
use cairn_store::layout::{self, EventSlice, TxBytes};
use cairn_store::{PayloadRef, Result, StoreError};
use futures::{StreamExt, TryStreamExt, stream};
use tokio_postgres::Row;

use super::Shared;
use super::head::get_height;
use super::pack::unpack;
use super::read::{
    self, BlockRows, EXTRAS_ELSEWHERE, EventRow, PartColumns, ReadRows, ResultRow, TxRow, bytes, facts,
    object,
};
use super::rows::EncodedBatch;
use super::scripts::{ScriptHash, script_of};
use crate::postgres::error::{corrupt, db};

/// Objects that one reader asks for at once, at most.
const OBJECTS_AT_ONCE: usize = 8;

/// What was fetched.
type Objects = HashMap<PayloadRef, Bytes>;

impl ReadRows {
    /// The blocks, by height; each complete, or it is an error.
    pub(super) async fn put_together(self, shared: &Shared) -> Result<Vec<StoredBlock>> {
        self.put_together_with(shared, Objects::new()).await
    }

    /// The same, where `batch` may hold what is in object storage.
    pub(super) async fn put_together_knowing(
        self,
        shared: &Shared,
        batch: &EncodedBatch,
    ) -> Result<Vec<StoredBlock>> {
        let own: HashMap<_, _> =
            batch.objects().iter().zip(batch.large()).map(|(object, body)| (object.hash, body)).collect();
        let known = self
            .objects()?
            .into_iter()
            .filter_map(|(object, _)| own.get(&object.hash).map(|body| (object, Bytes::clone(body))));
        let known = known.collect();
        self.put_together_with(shared, known).await
    }

    async fn put_together_with(self, shared: &Shared, mut objects: Objects) -> Result<Vec<StoredBlock>> {
        let mut wanted = self.objects()?;
        wanted.retain(|(object, _)| !objects.contains_key(object));
        objects.extend(shared.fetch(wanted).await?);
        let asked = (self.parts, self.with_txs);
        let put = |(row, rows): (Row, BlockRows)| assemble(&row, asked, rows, &self.scripts, &objects);
        self.blocks.into_iter().map(put).collect()
    }

    /// The objects that the rows name, each once, with a place where it belongs.
    fn objects(&self) -> Result<Vec<(PayloadRef, String)>> {
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        let mut add = |object: Option<PayloadRef>, place: &dyn Fn() -> String| {
            if let Some(object) = object.filter(|object| seen.insert(*object)) {
                found.push((object, place()));
            }
        };
        for (row, rows) in &self.blocks {
            let height = get_height(row, 0)?;
            for part in [read::BODY, read::RECEIPTS, read::EXTRAS, read::TRACES] {
                add(object(row, part.object)?, &|| part_place(height, part.name));
            }
            add(rows.result.as_ref().and_then(|result| result.object), &|| result_place(height));
            for (index, tx) in &rows.txs {
                add(tx.object, &|| tx_place(height, *index));
                add(tx.result_object, &|| tx_place(height, *index));
            }
            for event in &rows.events {
                add(event.object, &|| event_place(height, event));
            }
        }
        Ok(found)
    }
}

impl Shared {
    async fn fetch(&self, wanted: Vec<(PayloadRef, String)>) -> Result<Objects> {
        let Some((object, place)) = wanted.first() else { return Ok(Objects::new()) };
        let Some(payloads) = &self.payloads else {
            return Err(StoreError::Invalid(format!(
                "{place}: its bytes are object {object}, and no object storage is configured"
            )));
        };
        let get = |(object, place): (PayloadRef, String)| {
            let store = payloads.store.clone();
            async move {
                let body = store.get(object, None).await.map_err(|error| error.at(place))?;
                Ok::<_, StoreError>((object, body))
            }
        };
        stream::iter(wanted.into_iter().map(get)).buffer_unordered(OBJECTS_AT_ONCE).try_collect().await
    }
}

fn part_place(height: Height, name: &str) -> String {
    format!("height {height}, {name}")
}

fn result_place(height: Height) -> String {
    format!("height {height}, execution result")
}

fn tx_place(height: Height, index: u64) -> String {
    format!("height {height}, transaction {index}")
}

fn event_place(height: Height, event: &EventRow) -> String {
    format!("{}, event {}", tx_place(height, event.tx_index), event.index)
}

/// A row's bytes, wherever they are.
fn whole(
    inline: Option<Bytes>,
    object: Option<PayloadRef>,
    objects: &Objects,
    place: impl Fn() -> String,
) -> Result<Bytes> {
    let fetched = object.and_then(|object| objects.get(&object).cloned());
    match (inline, fetched) {
        (Some(bytes), None) | (None, Some(bytes)) => Ok(bytes),
        _ => Err(corrupt(place(), "its bytes are missing, in the row and in object storage")),
    }
}

fn assemble(
    row: &Row,
    (parts, with_txs): (Parts, bool),
    rows: BlockRows,
    scripts: &HashMap<ScriptHash, Bytes>,
    objects: &Objects,
) -> Result<StoredBlock> {
    let BlockRows { txs, events, result } = rows;
    let facts = facts(row)?;
    let height = facts.height;
    if with_txs && !txs.iter().map(|(index, _)| *index).eq(0..u64::from(facts.tx_count)) {
        return Err(corrupt(
            format!("transactions, height {height}"),
            format!("the block says {}, {} are stored", facts.tx_count, txs.len()),
        ));
    }
    let part = |part: PartColumns| part_of(row, &part, objects, height);
    let mut block = StoredBlock {
        facts,
        transactions: Vec::new(),
        header: bytes(row, 7)?.unwrap_or_default(),
        body: part(read::BODY)?.unwrap_or_default(),
        receipts: part(read::RECEIPTS)?.unwrap_or_default(),
        extras: part(read::EXTRAS)?.unwrap_or_default(),
        traces: part(read::TRACES)?,
    };
    if row.try_get(EXTRAS_ELSEWHERE).map_err(db)? {
        let place = || result_place(height);
        let Some(ResultRow { payload, object }) = result else {
            return Err(corrupt(place(), "its row is missing"));
        };
        block.extras = whole(payload, object, objects, place)?;
    }
    let layout: Option<&[u8]> = row.try_get(12).map_err(db)?;
    let layout = layout.map(|packed| unpack(packed, "layout", height)).transpose()?.unwrap_or_default();
    if !layout.is_empty() {
        if parts.contains(Parts::BODY) {
            block.body = body(&block.body, &layout, &txs, scripts, objects, height)?;
        }
        if parts.contains(Parts::RECEIPTS) {
            block.receipts = receipts(&block.receipts, &layout, &txs, &events, objects, height)?;
        }
    }
    if parts.contains(Parts::TRANSACTIONS) {
        block.transactions = txs.into_iter().map(|(_, tx)| tx.facts).collect();
    }
    Ok(block)
}

/// A part of a block's row, unpacked, wherever its bytes are; `None` where the block has none.
fn part_of(row: &Row, part: &PartColumns, objects: &Objects, height: Height) -> Result<Option<Bytes>> {
    let inline: Option<&[u8]> = row.try_get(part.bytes).map_err(db)?;
    match (inline, object(row, part.object)?) {
        (None, None) => Ok(None),
        (Some(packed), None) => unpack(packed, part.name, height).map(Some),
        (inline, object) => {
            let place = || part_place(height, part.name);
            let packed = whole(inline.map(Bytes::copy_from_slice), object, objects, place)?;
            unpack(&packed, part.name, height).map(Some)
        }
    }
}

fn body(
    skeleton: &[u8],
    layout: &[u8],
    txs: &[(u64, TxRow)],
    scripts: &HashMap<ScriptHash, Bytes>,
    objects: &Objects,
    height: Height,
) -> Result<Bytes> {
    let mut bodies = Vec::with_capacity(txs.len());
    for (index, tx) in txs {
        let place = || tx_place(height, *index);
        let body = whole(tx.body.clone(), tx.object, objects, place)?;
        let script = tx.script.map(|hash| script_of(scripts, &hash, height, *index)).transpose()?;
        let arguments: Vec<&[u8]> = tx.arguments.iter().map(|argument| &argument[..]).collect();
        bodies.push((body, script, arguments));
    }
    let slices: Vec<TxBytes<'_>> = bodies
        .iter()
        .map(|(body, script, arguments)| TxBytes { body, script: script.as_deref(), arguments })
        .collect();
    layout::rebuild_body(skeleton, layout, &slices).map(Bytes::from).map_err(|error| at(error, height))
}

fn receipts(
    skeleton: &[u8],
    layout: &[u8],
    txs: &[(u64, TxRow)],
    events: &[EventRow],
    objects: &Objects,
    height: Height,
) -> Result<Bytes> {
    let mut results = Vec::with_capacity(txs.len());
    for (index, tx) in txs {
        let place = || format!("{}, its result", tx_place(height, *index));
        results.push((whole(tx.result.clone(), tx.result_object, objects, place)?, tx.event_count));
    }
    let results: Vec<(&[u8], u32)> = results.iter().map(|(result, events)| (&result[..], *events)).collect();
    let mut rows = events;
    for (index, tx) in txs {
        // That there are no more of them is seen when they are put in their places.
        let (own, others) = rows.split_at_checked(tx.event_count as usize).unwrap_or((rows, &[]));
        let whole = own.len() == tx.event_count as usize && own.iter().all(|event| event.tx_index == *index);
        let follow = |pair: &[EventRow]| EventSlice::may_follow(pair[0].index, pair[1].index);
        if !whole || !own.windows(2).all(follow) {
            return Err(corrupt(
                format!("events, {}", tx_place(height, *index)),
                format!("there are not the {} that it has, or their indexes have a gap", tx.event_count),
            ));
        }
        rows = others;
    }
    let mut payloads = Vec::with_capacity(events.len());
    for event in events {
        let place = || event_place(height, event);
        payloads.push(whole(event.payload.clone(), event.object, objects, place)?);
    }
    let slices: Vec<&[u8]> = payloads.iter().map(|payload| &payload[..]).collect();
    layout::rebuild_receipts(skeleton, layout, &results, &slices)
        .map(Bytes::from)
        .map_err(|error| at(error, height))
}

/// Says at which height the damage is.
fn at(error: StoreError, height: Height) -> StoreError {
    match error {
        StoreError::Corrupt { place, what } => corrupt(format!("{place}, height {height}"), what),
        error => error,
    }
}
