//! The rows of blocks, read.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use cairn_core::{
    BlockFacts, BlockId, BlockRef, Height, HeightRange, Parts, RawBlock, StoredBlock, TxFacts, TxId, TxStatus,
};
use cairn_store::{PayloadRef, Result, StoreError};
use futures::future::try_join3;
use tokio_postgres::Row;

use super::Shared;
use super::head::{get_array, get_height, get_id, get_u32, get_u64, sql};
use super::rows::EncodedBatch;
use super::scripts::{ScriptHash, read_scripts};
use crate::postgres::PgConn;
use crate::postgres::error::{corrupt, db};
use crate::postgres::pool::Param;

/// Which blocks: those of the chain and ahead of it, or one that a reorg took away.
#[derive(Debug, Clone)]
pub(super) enum Which {
    /// Consecutive heights.
    Range(HeightRange),
    /// These heights.
    Heights(Vec<i64>),
    /// An orphan.
    Orphan(u64, BlockId),
}

impl Which {
    /// The tables' prefix, and the condition, whose parameters follow `$used`; `height` and `block_id` are the table's columns.
    fn condition(&self, used: usize, height: &str, block_id: &str) -> (&'static str, String) {
        let (a, b) = (used + 1, used + 2);
        match self {
            Which::Range(_) => ("raw.", format!("{height} >= ${a} AND {height} < ${b}")),
            Which::Heights(_) => ("raw.", format!("{height} = ANY(${a})")),
            Which::Orphan(..) => ("raw.orphan_", format!("reorg_id = ${a} AND {block_id} = ${b}")),
        }
    }
}

/// The parameters of a condition.
enum Bounds<'a> {
    Range(i64, i64),
    Heights(&'a Vec<i64>),
    Orphan(i64, &'a [u8]),
}

impl<'a> Bounds<'a> {
    fn of(which: &'a Which) -> Self {
        match which {
            Which::Range(range) => Bounds::Range(sql(range.start()), sql(range.end())),
            Which::Heights(heights) => Bounds::Heights(heights),
            Which::Orphan(reorg_id, id) => {
                Bounds::Orphan(i64::try_from(*reorg_id).unwrap_or(i64::MAX), &id.0[..])
            }
        }
    }

    fn push<'p>(&'p self, params: &mut Vec<Param<'p>>) {
        match self {
            Bounds::Range(from, to) => params.extend([from as Param<'p>, to]),
            Bounds::Heights(heights) => params.push(heights),
            Bounds::Orphan(reorg_id, id) => params.extend([reorg_id as Param<'p>, id]),
        }
    }
}

/// A transaction's row.
pub(super) struct TxRow {
    pub(super) facts: TxFacts,
    pub(super) event_count: u32,
    pub(super) body: Option<Bytes>,
    pub(super) result: Option<Bytes>,
    /// Where the result is, if not in the row.
    pub(super) result_object: Option<PayloadRef>,
    /// Where the body is, if not in the row.
    pub(super) object: Option<PayloadRef>,
    pub(super) script: Option<ScriptHash>,
    pub(super) arguments: Vec<Bytes>,
}

/// An execution result's row.
pub(super) struct ResultRow {
    pub(super) payload: Option<Bytes>,
    pub(super) object: Option<PayloadRef>,
}

/// What belongs to one block.
pub(super) struct BlockRows {
    pub(super) txs: Vec<(u64, TxRow)>,
    pub(super) events: Vec<EventRow>,
    pub(super) result: Option<ResultRow>,
}

/// An event's row.
pub(super) struct EventRow {
    pub(super) tx_index: u64,
    /// By the chain's protocol; in archives of before, over the block on Flow too.
    pub(super) index: u64,
    pub(super) payload: Option<Bytes>,
    pub(super) object: Option<PayloadRef>,
}

/// Blocks as their rows have them, by height: read, and not put together yet.
pub(super) struct ReadRows {
    pub(super) parts: Parts,
    pub(super) with_txs: bool,
    /// Each block's own row, and the others'.
    pub(super) blocks: Vec<(Row, BlockRows)>,
    pub(super) scripts: HashMap<ScriptHash, Bytes>,
}

/// The rows of the blocks that are there, for these parts. What of them is in object storage is asked for when they are put together, without the connection.
pub(super) async fn read(conn: &PgConn, which: &Which, parts: Parts) -> Result<ReadRows> {
    let whole = parts.intersects(Parts::BODY | Parts::RECEIPTS);
    let with_txs = parts.contains(Parts::TRANSACTIONS) || whole;
    let with_events = parts.contains(Parts::RECEIPTS);
    let none = async || Ok(Vec::new());
    let (blocks, txs, events) = try_join3(
        block_rows(conn, which, parts),
        async { if with_txs { tx_rows(conn, which, parts).await } else { none().await } },
        async { if with_events { event_rows(conn, which).await } else { none().await } },
    )
    .await?;
    let results = result_rows(conn, which, &blocks).await?;
    let mut txs = by_height(txs, tx_row)?;
    let mut results = by_height(results, result_row)?;
    let named = txs.values().flatten().filter_map(|(_, tx)| tx.script).collect();
    let scripts = read_scripts(conn, &named).await?;
    let mut events = by_height(events, event_row)?;
    let mut found = Vec::with_capacity(blocks.len());
    for row in blocks {
        let height = get_height(&row, 0)?;
        let mut txs = txs.remove(&height).unwrap_or_default();
        let mut events = events.remove(&height).unwrap_or_default();
        txs.sort_by_key(|(index, _)| *index);
        events.sort_by_key(|event| (event.tx_index, event.index));
        let result = results.remove(&height).and_then(|mut results| results.pop());
        found.push((height, row, BlockRows { txs, events, result }));
    }
    found.sort_by_key(|(height, ..)| *height);
    let blocks = found.into_iter().map(|(_, row, rows)| (row, rows)).collect();
    Ok(ReadRows { parts, with_txs, blocks, scripts })
}

fn by_height<T>(rows: Vec<Row>, decode: fn(&Row) -> Result<T>) -> Result<BTreeMap<Height, Vec<T>>> {
    let mut by_height: BTreeMap<Height, Vec<T>> = BTreeMap::new();
    for row in rows {
        by_height.entry(get_height(&row, 0)?).or_default().push(decode(&row)?);
    }
    Ok(by_height)
}

/// The columns that make a block's facts, beginning with its height.
const FACTS: &str = "height, id, parent_id, timestamp_ms, tx_count, event_count, unverified";

async fn block_rows(conn: &PgConn, which: &Which, parts: Parts) -> Result<Vec<Row>> {
    let (prefix, condition) = which.condition(6, "height", "id");
    let text = format!(
        "SELECT {FACTS}, CASE WHEN $1 THEN header END, CASE WHEN $2 THEN body END, CASE WHEN $3 THEN receipts END, \
         CASE WHEN $4 THEN extras END, CASE WHEN $5 THEN traces END, CASE WHEN $6 THEN layout END, \
         $4 AND extras IS NULL AND extras_payload_ref IS NULL AND extras_bytes > 0, \
         CASE WHEN $2 THEN body_payload_ref END, CASE WHEN $3 THEN receipts_payload_ref END, \
         CASE WHEN $4 THEN extras_payload_ref END, CASE WHEN $5 THEN traces_payload_ref END \
         FROM {prefix}blocks WHERE {condition}"
    );
    let asked = [Parts::HEADER, Parts::BODY, Parts::RECEIPTS, Parts::EXTRAS, Parts::TRACES]
        .map(|flag| parts.contains(flag));
    let layout = asked[1] || asked[2];
    let bounds = Bounds::of(which);
    let mut params: Vec<Param<'_>> = asked.iter().map(|flag| flag as Param<'_>).collect();
    params.push(&layout);
    bounds.push(&mut params);
    conn.query(&text, &params).await
}

async fn tx_rows(conn: &PgConn, which: &Which, parts: Parts) -> Result<Vec<Row>> {
    let (prefix, condition) = which.condition(2, "block_height", "block_id");
    let text = format!(
        "SELECT block_height, transaction_index, event_count, status, id, sender, CASE WHEN $1 THEN body END, \
         CASE WHEN $2 THEN result END, CASE WHEN $1 THEN payload_ref END, CASE WHEN $1 THEN script_hash END, \
         CASE WHEN $1 THEN arguments END, CASE WHEN $2 THEN result_payload_ref END FROM {prefix}transactions WHERE {condition}"
    );
    let asked = [Parts::BODY, Parts::RECEIPTS].map(|flag| parts.contains(flag));
    let bounds = Bounds::of(which);
    let mut params: Vec<Param<'_>> = asked.iter().map(|flag| flag as Param<'_>).collect();
    bounds.push(&mut params);
    conn.query(&text, &params).await
}

async fn event_rows(conn: &PgConn, which: &Which) -> Result<Vec<Row>> {
    let (prefix, condition) = which.condition(0, "block_height", "block_id");
    let text = format!(
        "SELECT block_height, event_index, payload, payload_ref, transaction_index FROM {prefix}events WHERE {condition}"
    );
    let bounds = Bounds::of(which);
    let mut params = Vec::new();
    bounds.push(&mut params);
    conn.query(&text, &params).await
}

/// The rows that hold the extras of blocks that don't have them themselves: their execution results.
async fn result_rows(conn: &PgConn, which: &Which, blocks: &[Row]) -> Result<Vec<Row>> {
    let mut is_asked = false;
    for block in blocks {
        is_asked |= block.try_get::<_, bool>(EXTRAS_ELSEWHERE).map_err(db)?;
    }
    if !is_asked {
        return Ok(Vec::new());
    }
    let (prefix, condition) = which.condition(0, "block_height", "block_id");
    let text =
        format!("SELECT block_height, payload, payload_ref FROM {prefix}execution_results WHERE {condition}");
    let bounds = Bounds::of(which);
    let mut params = Vec::new();
    bounds.push(&mut params);
    conn.query(&text, &params).await
}

/// The column of a block's row that says whether its extras are those of its execution result.
pub(super) const EXTRAS_ELSEWHERE: usize = 13;

/// A packed part in a block's row: what it is, its column, and that of its object's key.
pub(super) struct PartColumns {
    pub(super) name: &'static str,
    pub(super) bytes: usize,
    pub(super) object: usize,
}

pub(super) const BODY: PartColumns = PartColumns { name: "body", bytes: 8, object: 14 };
pub(super) const RECEIPTS: PartColumns = PartColumns { name: "receipts", bytes: 9, object: 15 };
pub(super) const EXTRAS: PartColumns = PartColumns { name: "extras", bytes: 10, object: 16 };
pub(super) const TRACES: PartColumns = PartColumns { name: "traces", bytes: 11, object: 17 };

fn result_row(row: &Row) -> Result<ResultRow> {
    Ok(ResultRow { payload: bytes(row, 1)?, object: object(row, 2)? })
}

pub(super) fn bytes(row: &Row, column: usize) -> Result<Option<Bytes>> {
    let bytes: Option<&[u8]> = row.try_get(column).map_err(db)?;
    Ok(bytes.map(Bytes::copy_from_slice))
}

pub(super) fn object(row: &Row, column: usize) -> Result<Option<PayloadRef>> {
    let key: Option<&str> = row.try_get(column).map_err(db)?;
    key.map(|key| key.parse::<PayloadRef>().map_err(|error| corrupt("column payload_ref", error.to_string())))
        .transpose()
}

fn tx_row(row: &Row) -> Result<(u64, TxRow)> {
    let status: i16 = row.try_get(3).map_err(db)?;
    let status = u8::try_from(status).ok().and_then(TxStatus::from_byte);
    let facts = TxFacts {
        id: TxId(get_array(row, 4)?),
        sender: bytes(row, 5)?.unwrap_or_default(),
        status: status.ok_or_else(|| corrupt("raw.transactions, column status", "an unknown status"))?,
    };
    let tx = TxRow {
        facts,
        event_count: get_u32(row, 2)?,
        body: bytes(row, 6)?,
        result: bytes(row, 7)?,
        result_object: object(row, 11)?,
        object: object(row, 8)?,
        script: row.try_get::<_, Option<&[u8]>>(9).map_err(db)?.map(|_| get_array(row, 9)).transpose()?,
        arguments: row
            .try_get::<_, Option<Vec<&[u8]>>>(10)
            .map_err(db)?
            .unwrap_or_default()
            .into_iter()
            .map(Bytes::copy_from_slice)
            .collect(),
    };
    Ok((get_u64(row, 1)?, tx))
}

fn event_row(row: &Row) -> Result<EventRow> {
    Ok(EventRow {
        tx_index: get_u64(row, 4)?,
        index: get_u64(row, 1)?,
        payload: bytes(row, 2)?,
        object: object(row, 3)?,
    })
}

pub(super) fn facts(row: &Row) -> Result<BlockFacts> {
    Ok(BlockFacts {
        height: get_height(row, 0)?,
        id: get_id(row, 1)?,
        parent_id: get_id(row, 2)?,
        timestamp_ms: row.try_get::<_, i64>(3).map_err(db)? as u64,
        tx_count: get_u32(row, 4)?,
        log_count: get_u32(row, 5)?,
        unverified: get_u32(row, 6)?,
    })
}

/// A block's place and the lengths of its parts.
pub(super) struct Measured {
    pub(super) height: Height,
    bytes: [u64; 5],
}

impl Measured {
    /// How many bytes these parts have.
    pub(super) fn bytes(&self, parts: Parts) -> u64 {
        let flags = [Parts::HEADER, Parts::BODY, Parts::RECEIPTS, Parts::EXTRAS, Parts::TRACES];
        flags.iter().zip(self.bytes).filter(|(flag, _)| parts.contains(**flag)).map(|(_, bytes)| bytes).sum()
    }
}

/// Up to `limit` of the blocks that are there, by height, measured without reading their parts.
pub(super) async fn measure(conn: &PgConn, which: &Which, limit: i64) -> Result<Vec<Measured>> {
    let (prefix, condition) = which.condition(1, "height", "id");
    let text = format!(
        "SELECT height, octet_length(header)::bigint, body_bytes, receipts_bytes, extras_bytes, traces_bytes \
         FROM {prefix}blocks WHERE {condition} ORDER BY height LIMIT $1"
    );
    let bounds = Bounds::of(which);
    let mut params: Vec<Param<'_>> = vec![&limit];
    bounds.push(&mut params);
    let rows = conn.query(&text, &params).await?;
    let measured = |row: &Row| {
        let mut bytes = [0; 5];
        for (at, length) in bytes.iter_mut().enumerate() {
            *length = get_u64(row, 1 + at)?;
        }
        Ok(Measured { height: get_height(row, 0)?, bytes })
    };
    rows.iter().map(measured).collect()
}

/// The rows at `height` for these parts, whatever the head says.
pub(super) async fn read_one(conn: &PgConn, height: Height, parts: Parts) -> Result<ReadRows> {
    read(conn, &Which::Range(HeightRange::one(height)), parts).await
}

pub(super) async fn read_facts(conn: &PgConn, height: Height) -> Result<Option<BlockFacts>> {
    let row =
        conn.query_opt(&format!("SELECT {FACTS} FROM raw.blocks WHERE height = $1"), &[&sql(height)]).await?;
    row.map(|row| facts(&row)).transpose()
}

/// Height and id of the row at `height`, whatever the head says.
pub(super) async fn row_ref(conn: &PgConn, height: Height) -> Result<Option<BlockRef>> {
    let row = conn.query_opt("SELECT id FROM raw.blocks WHERE height = $1", &[&sql(height)]).await?;
    row.map(|row| Ok(BlockRef { height, id: get_id(&row, 0)? })).transpose()
}

/// The heights of `range` that have a row, ascending.
pub(super) async fn stored_heights(conn: &PgConn, range: HeightRange) -> Result<Vec<Height>> {
    let rows = conn
        .query(
            "SELECT height FROM raw.blocks WHERE height >= $1 AND height < $2 ORDER BY height",
            &[&sql(range.start()), &sql(range.end())],
        )
        .await?;
    rows.iter().map(|row| get_height(row, 0)).collect()
}

/// The highest row.
pub(super) async fn last_height(conn: &PgConn) -> Result<Option<Height>> {
    let row = conn.query_opt("SELECT height FROM raw.blocks ORDER BY height DESC LIMIT 1", &[]).await?;
    row.map(|row| get_height(&row, 0)).transpose()
}

/// The height of the `nth` row of `range` from its top, counted from 1.
pub(super) async fn nth_from_top(conn: &PgConn, range: HeightRange, nth: i64) -> Result<Option<Height>> {
    let row = conn
        .query_opt(
            "SELECT height FROM raw.blocks WHERE height >= $1 AND height < $2 ORDER BY height DESC LIMIT 1 OFFSET $3",
            &[&sql(range.start()), &sql(range.end()), &(nth - 1)],
        )
        .await?;
    row.map(|row| get_height(&row, 0)).transpose()
}

/// The heights of these consecutive blocks that are stored already, byte for byte; [`StoreError::Conflict`] where
/// something else is. Inside of the writer's transaction: what the batch has set apart itself isn't asked of object storage.
pub(super) async fn demand_no_conflict(
    shared: &Shared,
    conn: &PgConn,
    batch: &EncodedBatch,
) -> Result<Vec<Height>> {
    let blocks = &batch.blocks;
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(Vec::new()) };
    let range = HeightRange::inclusive(first.block.facts.height, last.block.facts.height);
    let stored = stored_heights(conn, range).await?;
    for height in &stored {
        let offered = &blocks[height.since(range.start()) as usize].block;
        let rows = read_one(conn, *height, Parts::all()).await?;
        let found = rows.put_together_knowing(shared, batch).await?.pop();
        if found.as_ref().is_none_or(|found| !is_same(offered, found)) {
            let id = found.map(|found| found.facts.id).unwrap_or_default();
            return Err(StoreError::Conflict { height: *height, stored: id, offered: offered.facts.id });
        }
    }
    Ok(stored)
}

/// Facts, transactions and bytes; log terms are derived, and not compared.
fn is_same(offered: &RawBlock, found: &StoredBlock) -> bool {
    offered.facts == found.facts
        && offered.transactions == found.transactions
        && offered.header == found.header
        && offered.body == found.body
        && offered.receipts == found.receipts
        && offered.extras == found.extras
        && offered.traces == found.traces
}
