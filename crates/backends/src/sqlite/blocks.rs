//! Block rows: encoding them outside of any transaction, writing, reading, comparing and deleting them.

use bytes::Bytes;
use cairn_core::{
    BlockFacts, BlockId, BlockRef, Height, HeightRange, IndexKey, Parts, RawBlock, StoredBlock,
};
use cairn_store::{Result, StoreError};
use rusqlite::blob::ZeroBlob;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, Row, params};

use super::codec::{self, Packer, Unpacker};
use super::error::{corrupt, db};
use super::head::{get_height, get_id, get_u32, sql};

/// A block as its rows will be, with what its index entries are made of. The uncompressed bytes are let go.
pub(super) struct EncodedBlock {
    pub(super) facts: BlockFacts,
    header: Vec<u8>,
    /// 32 bytes each.
    pub(super) tx_ids: Vec<u8>,
    /// `None` without transactions.
    tx_facts: Option<Vec<u8>>,
    /// In the order of [`PARTS`].
    parts: [Option<Vec<u8>>; PARTS.len()],
    pub(super) log_terms: Vec<IndexKey>,
}

/// From this size on a part is written into its place: SQLite would copy it twice otherwise.
const IN_PLACE_BYTES: usize = 1 << 20;

/// The tables of the parts with one packed column, and the flags that ask for them.
const PARTS: [(&str, Parts); 4] = [
    ("bodies", Parts::BODY),
    ("receipts", Parts::RECEIPTS),
    ("extras", Parts::EXTRAS),
    ("traces", Parts::TRACES),
];

const PART_INSERTS: [&str; PARTS.len()] = [
    "INSERT INTO bodies VALUES (?1, ?2)",
    "INSERT INTO receipts VALUES (?1, ?2)",
    "INSERT INTO extras VALUES (?1, ?2)",
    "INSERT INTO traces VALUES (?1, ?2)",
];

const PART_SELECTS: [&str; PARTS.len()] = [
    "SELECT data FROM bodies WHERE height = ?1",
    "SELECT data FROM receipts WHERE height = ?1",
    "SELECT data FROM extras WHERE height = ?1",
    "SELECT data FROM traces WHERE height = ?1",
];

impl EncodedBlock {
    /// Compresses, and lets each part go when it is done. A part without bytes becomes no row; traces that are there but empty stay there.
    pub(super) fn new(block: RawBlock, packer: &mut Packer) -> Result<Self> {
        let RawBlock { facts, transactions, header, body, receipts, extras, traces, log_terms } = block;
        let tx_facts =
            if transactions.is_empty() { None } else { Some(packer.pack(&codec::tx_facts(&transactions))?) };
        let tx_ids = codec::tx_ids(&transactions);
        drop(transactions);
        let mut pack = |part: Option<Bytes>| part.map(|bytes| packer.pack(&bytes)).transpose();
        let or_nothing = |bytes: Bytes| Some(bytes).filter(|bytes| !bytes.is_empty());
        Ok(EncodedBlock {
            facts,
            header: pack(Some(header))?.unwrap_or_default(),
            tx_ids,
            tx_facts,
            parts: [
                pack(or_nothing(body))?,
                pack(or_nothing(receipts))?,
                pack(or_nothing(extras))?,
                pack(traces)?,
            ],
            log_terms,
        })
    }

    pub(super) fn block_ref(&self) -> BlockRef {
        self.facts.block_ref()
    }

    fn insert(&self, conn: &Connection, sizes: &mut Sizes) -> rusqlite::Result<()> {
        let facts = &self.facts;
        let height = sql(facts.height);
        conn.prepare_cached("INSERT INTO blocks VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?.execute(
            params![
                height,
                facts.id.0,
                facts.parent_id.0,
                facts.timestamp_ms as i64,
                facts.tx_count,
                facts.log_count,
                facts.unverified,
                self.header,
            ],
        )?;
        sizes.add("headers", self.header.len());
        if let Some(tx_facts) = &self.tx_facts {
            conn.prepare_cached("INSERT INTO transactions VALUES (?1, ?2, ?3)")?.execute(params![
                height,
                self.tx_ids,
                tx_facts
            ])?;
            sizes.add("transactions", self.tx_ids.len() + tx_facts.len());
        }
        for (part, ((table, _), insert)) in self.parts.iter().zip(PARTS.iter().zip(PART_INSERTS)) {
            if let Some(data) = part {
                let mut insert = conn.prepare_cached(insert)?;
                if data.len() < IN_PLACE_BYTES {
                    insert.execute(params![height, data])?;
                } else {
                    insert.execute(params![height, ZeroBlob(data.len() as u64)])?;
                    conn.blob_open(MAIN_DB, *table, "data", height, false)?.write_at(data, 0)?;
                }
                sizes.add(table, data.len());
            }
        }
        Ok(())
    }

    /// Whether the rows at its height hold the same block, byte for byte once unpacked.
    fn is_stored(&self, conn: &Connection, unpacker: &Unpacker) -> Result<bool> {
        let Some(stored) = read(conn, unpacker, self.facts.height, Parts::all())? else { return Ok(false) };
        if stored.facts != self.facts {
            return Ok(false);
        }
        let height = self.facts.height;
        let unpack = |packed: &Vec<u8>, table| unpacker.unpack(packed, table, height);
        let facts = self.tx_facts.as_ref().map(|facts| unpack(facts, "transactions")).transpose()?;
        let transactions = codec::transactions(&self.tx_ids, &facts.unwrap_or_default(), height)?;
        if stored.transactions != transactions || stored.header != unpack(&self.header, "blocks")? {
            return Ok(false);
        }
        let stored = [Some(stored.body), Some(stored.receipts), Some(stored.extras), stored.traces];
        for ((ours, theirs), (table, flag)) in self.parts.iter().zip(stored).zip(PARTS) {
            let ours = ours.as_ref().map(|packed| unpack(packed, table)).transpose()?;
            let ours = if flag == Parts::TRACES { ours } else { Some(ours.unwrap_or_default()) };
            if ours != theirs {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Writes the blocks that are not there yet. The caller has compared those that are.
pub(super) fn insert_all<'a>(
    conn: &Connection,
    blocks: impl Iterator<Item = &'a EncodedBlock>,
) -> Result<()> {
    let mut sizes = Sizes::default();
    for block in blocks {
        block.insert(conn, &mut sizes).map_err(db)?;
    }
    sizes.apply(conn, 1)
}

/// The heights of `range` that have a row, ascending.
pub(super) fn stored_heights(conn: &Connection, range: HeightRange) -> Result<Vec<Height>> {
    let mut statement = conn
        .prepare_cached("SELECT height FROM blocks WHERE height >= ?1 AND height < ?2 ORDER BY height")
        .map_err(db)?;
    let rows = statement
        .query_map(params![sql(range.start()), sql(range.end())], |row| get_height(row, 0))
        .map_err(db)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db)
}

/// The highest row.
pub(super) fn last_height(conn: &Connection) -> Result<Option<Height>> {
    conn.prepare_cached("SELECT height FROM blocks ORDER BY height DESC LIMIT 1")
        .and_then(|mut statement| statement.query_row([], |row| get_height(row, 0)).optional())
        .map_err(db)
}

/// The height of the `nth` row of `range` from its top, counted from 1.
pub(super) fn nth_from_top(conn: &Connection, range: HeightRange, nth: u64) -> Result<Option<Height>> {
    let skipped = i64::try_from(nth.saturating_sub(1)).unwrap_or(i64::MAX);
    conn.prepare_cached(
        "SELECT height FROM blocks WHERE height >= ?1 AND height < ?2 ORDER BY height DESC LIMIT 1 OFFSET ?3",
    )
    .and_then(|mut statement| {
        let bounds = params![sql(range.start()), sql(range.end()), skipped];
        statement.query_row(bounds, |row| get_height(row, 0)).optional()
    })
    .map_err(db)
}

/// The heights of these consecutive blocks that are stored already, byte for byte; [`StoreError::Conflict`] where
/// something else is.
pub(super) fn demand_no_conflict(
    conn: &Connection,
    unpacker: &Unpacker,
    blocks: &[EncodedBlock],
) -> Result<Vec<Height>> {
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(Vec::new()) };
    let range = HeightRange::inclusive(first.facts.height, last.facts.height);
    let stored = stored_heights(conn, range)?;
    for height in &stored {
        let block = &blocks[height.since(range.start()) as usize];
        if !block.is_stored(conn, unpacker)? {
            let id = row_ref(conn, *height)?.map(|row| row.id).unwrap_or_default();
            return Err(StoreError::Conflict { height: *height, stored: id, offered: block.facts.id });
        }
    }
    Ok(stored)
}

/// Height and id of the row at `height`, whatever the head says.
pub(super) fn row_ref(conn: &Connection, height: Height) -> Result<Option<BlockRef>> {
    conn.prepare_cached("SELECT id FROM blocks WHERE height = ?1")
        .and_then(|mut statement| statement.query_row([sql(height)], |row| get_id(row, 0)).optional())
        .map(|id| id.map(|id| BlockRef { height, id }))
        .map_err(db)
}

/// The columns that make a block's facts, beginning with its height.
const FACTS: &str = "height, id, parent_id, timestamp_ms, tx_count, log_count, unverified";

fn facts(row: &Row<'_>) -> rusqlite::Result<BlockFacts> {
    Ok(BlockFacts {
        height: get_height(row, 0)?,
        id: get_id(row, 1)?,
        parent_id: get_id(row, 2)?,
        timestamp_ms: row.get::<_, i64>(3)? as u64,
        tx_count: get_u32(row, 4)?,
        log_count: get_u32(row, 5)?,
        unverified: get_u32(row, 6)?,
    })
}

pub(super) fn read_facts(conn: &Connection, height: Height) -> Result<Option<BlockFacts>> {
    conn.prepare_cached(&format!("SELECT {FACTS} FROM blocks WHERE height = ?1"))
        .and_then(|mut statement| statement.query_row([sql(height)], facts).optional())
        .map_err(db)
}

fn blob<'a>(row: &'a Row<'_>, column: usize) -> Result<Option<&'a [u8]>> {
    match row.get_ref(column).map_err(db)? {
        ValueRef::Null => Ok(None),
        ValueRef::Blob(bytes) => Ok(Some(bytes)),
        _ => Err(corrupt(format!("column {column} of a block"), "it holds no bytes")),
    }
}

/// The row at `height` with the parts asked for, whatever the head says.
pub(super) fn read(
    conn: &Connection,
    unpacker: &Unpacker,
    height: Height,
    parts: Parts,
) -> Result<Option<StoredBlock>> {
    let mut block = {
        let header = if parts.contains(Parts::HEADER) { "header" } else { "NULL" };
        let mut statement = conn
            .prepare_cached(&format!("SELECT {FACTS}, {header} FROM blocks WHERE height = ?1"))
            .map_err(db)?;
        let mut rows = statement.query([sql(height)]).map_err(db)?;
        let Some(row) = rows.next().map_err(db)? else { return Ok(None) };
        let header = blob(row, 7)?.map(|packed| unpacker.unpack(packed, "blocks", height)).transpose()?;
        empty(facts(row).map_err(db)?, header.unwrap_or_default())
    };
    if parts.contains(Parts::TRANSACTIONS) {
        let mut statement =
            conn.prepare_cached("SELECT ids, facts FROM transactions WHERE height = ?1").map_err(db)?;
        let mut rows = statement.query([sql(height)]).map_err(db)?;
        let row = rows.next().map_err(db)?;
        let columns = row.map(|row| Ok::<_, StoreError>((blob(row, 0)?, blob(row, 1)?))).transpose()?;
        let (ids, facts) = columns.unwrap_or((None, None));
        set_transactions(&mut block, unpacker, ids, facts)?;
    }
    for ((table, flag), select) in PARTS.into_iter().zip(PART_SELECTS) {
        if parts.contains(flag) {
            let mut statement = conn.prepare_cached(select).map_err(db)?;
            let mut rows = statement.query([sql(height)]).map_err(db)?;
            let packed = rows.next().map_err(db)?.map(|row| blob(row, 0)).transpose()?.flatten();
            set_part(&mut block, unpacker, table, flag, packed)?;
        }
    }
    Ok(Some(block))
}

fn empty(facts: BlockFacts, header: Bytes) -> StoredBlock {
    StoredBlock {
        facts,
        transactions: Vec::new(),
        header,
        body: Bytes::new(),
        receipts: Bytes::new(),
        extras: Bytes::new(),
        traces: None,
    }
}

/// A block whose rows don't hold as many transactions as it says is damaged.
fn set_transactions(
    block: &mut StoredBlock,
    unpacker: &Unpacker,
    ids: Option<&[u8]>,
    facts: Option<&[u8]>,
) -> Result<()> {
    let height = block.facts.height;
    let facts = facts.map(|packed| unpacker.unpack(packed, "transactions", height)).transpose()?;
    block.transactions = codec::transactions(ids.unwrap_or_default(), &facts.unwrap_or_default(), height)?;
    if block.transactions.len() != block.facts.tx_count as usize {
        return Err(corrupt(
            format!("transactions, height {height}"),
            format!("the block says {}, {} are stored", block.facts.tx_count, block.transactions.len()),
        ));
    }
    Ok(())
}

fn set_part(
    block: &mut StoredBlock,
    unpacker: &Unpacker,
    table: &str,
    flag: Parts,
    packed: Option<&[u8]>,
) -> Result<()> {
    let Some(packed) = packed else { return Ok(()) };
    let bytes = unpacker.unpack(packed, table, block.facts.height)?;
    match flag {
        Parts::BODY => block.body = bytes,
        Parts::RECEIPTS => block.receipts = bytes,
        Parts::EXTRAS => block.extras = bytes,
        _ => block.traces = Some(bytes),
    }
    Ok(())
}

/// A block that a purge has moved.
pub(super) fn read_orphan(
    conn: &Connection,
    unpacker: &Unpacker,
    reorg_id: u64,
    id: BlockId,
    parts: Parts,
) -> Result<Option<StoredBlock>> {
    // Columns that nobody asked for are not read: a column costs the pages of those before it only.
    let column = |name: &'static str, flag| if parts.contains(flag) { name } else { "NULL" };
    let (header, txs) = (column("header", Parts::HEADER), parts.contains(Parts::TRANSACTIONS));
    let (ids, tx_facts) = if txs { ("tx_ids", "tx_facts") } else { ("NULL", "NULL") };
    let columns = ["body", "receipts", "extras", "traces"];
    let columns: Vec<&str> = columns.iter().zip(PARTS).map(|(name, (_, flag))| column(name, flag)).collect();
    let mut statement = conn
        .prepare_cached(&format!(
            "SELECT {FACTS}, {header}, {ids}, {tx_facts}, {} FROM orphans WHERE reorg_id = ?1 AND id = ?2",
            columns.join(", ")
        ))
        .map_err(db)?;
    let mut rows = statement.query(params![reorg_id as i64, id.0]).map_err(db)?;
    let Some(row) = rows.next().map_err(db)? else { return Ok(None) };
    let facts = facts(row).map_err(db)?;
    let height = facts.height;
    let header = blob(row, 7)?.map(|packed| unpacker.unpack(packed, "orphans", height)).transpose()?;
    let mut block = empty(facts, header.unwrap_or_default());
    if txs {
        set_transactions(&mut block, unpacker, blob(row, 8)?, blob(row, 9)?)?;
    }
    for (at, (_, flag)) in PARTS.into_iter().enumerate() {
        set_part(&mut block, unpacker, "orphans", flag, blob(row, 10 + at)?)?;
    }
    Ok(Some(block))
}

/// Copies the rows of `range` into the orphan table.
pub(super) fn copy_to_orphans(conn: &Connection, reorg_id: u64, range: HeightRange) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO orphans (reorg_id, height, id, parent_id, timestamp_ms, tx_count, log_count, unverified, header, \
         tx_ids, tx_facts, body, receipts, extras, traces) \
         SELECT ?1, b.height, b.id, b.parent_id, b.timestamp_ms, b.tx_count, b.log_count, b.unverified, b.header, \
         t.ids, t.facts, p1.data, p2.data, p3.data, p4.data FROM blocks b \
         LEFT JOIN transactions t ON t.height = b.height LEFT JOIN bodies p1 ON p1.height = b.height \
         LEFT JOIN receipts p2 ON p2.height = b.height LEFT JOIN extras p3 ON p3.height = b.height \
         LEFT JOIN traces p4 ON p4.height = b.height \
         WHERE b.height >= ?2 AND b.height < ?3 ORDER BY b.height",
    )
    .and_then(|mut statement| {
        statement.execute(params![reorg_id as i64, sql(range.start()), sql(range.end())])
    })
    .map_err(db)?;
    Ok(())
}

/// Deletes the rows of `range`, without their index entries.
pub(super) fn delete(conn: &Connection, range: HeightRange) -> Result<()> {
    let bounds = params![sql(range.start()), sql(range.end())];
    let mut sizes = Sizes::default();
    let tables = [
        ("headers", "blocks", "length(header)"),
        ("transactions", "transactions", "length(ids) + length(facts)"),
    ];
    let parts = PARTS.iter().map(|(table, _)| (*table, *table, "length(data)"));
    for (part, table, length) in tables.into_iter().chain(parts) {
        let sum = format!(
            "SELECT count(*), coalesce(sum({length}), 0) FROM {table} WHERE height >= ?1 AND height < ?2"
        );
        let (rows, bytes) = conn
            .prepare_cached(&sum)
            .and_then(|mut statement| statement.query_row(bounds, |row| Ok((row.get(0)?, row.get(1)?))))
            .map_err(db)?;
        sizes.0.push((part, rows, bytes));
        conn.prepare_cached(&format!("DELETE FROM {table} WHERE height >= ?1 AND height < ?2"))
            .and_then(|mut statement| statement.execute(bounds))
            .map_err(db)?;
    }
    sizes.apply(conn, -1)
}

/// Rows and bytes that a transaction adds to each part, or takes away.
#[derive(Default)]
struct Sizes(Vec<(&'static str, i64, i64)>);

impl Sizes {
    fn add(&mut self, part: &'static str, bytes: usize) {
        match self.0.iter_mut().find(|(name, ..)| *name == part) {
            Some((_, part_rows, part_bytes)) => {
                *part_rows += 1;
                *part_bytes += bytes as i64;
            }
            None => self.0.push((part, 1, bytes as i64)),
        }
    }

    fn apply(&self, conn: &Connection, sign: i64) -> Result<()> {
        for (part, rows, bytes) in &self.0 {
            conn.prepare_cached(
                "UPDATE part_sizes SET part_rows = part_rows + ?2, bytes = bytes + ?3 WHERE part = ?1",
            )
            .and_then(|mut statement| statement.execute(params![part, sign * rows, sign * bytes]))
            .map_err(db)?;
        }
        Ok(())
    }
}
