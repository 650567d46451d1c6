//! Reading: everything is bounded by the head row that the read transaction began with.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, BlockRef, Height, HeightRange, IndexKey, LinkedRef, Parts, StoredBlock, TxId};
use cairn_store::runs::{Entry, Lookup, RunCursor, RunInfo, RunKind, candidates};
use cairn_store::{
    BlocksRead, Checkpoint, HeadRow, IndexFingerprint, LogQuery, OrphanRef, RawLease, RawSnapshot,
    ReorgEntry, Result, StoreError, StoreSizes, TxPlace,
};
use rusqlite::{Connection, params};
use tokio::time::Instant;

use super::codec::{ID_BYTES, Unpacker};
use super::error::{corrupt, db};
use super::head::{get_height, get_id, get_u64, sql};
use super::index::{RunPages, demand_time, live_runs};
use super::pool::ReadTx;
use super::schema::RAW;
use super::{blocks, filler};
use crate::index_runs::{Counted, demand_covered, without_pages};

pub(super) struct SqliteSnapshot {
    transaction: Arc<ReadTx>,
    head: HeadRow,
    dir: PathBuf,
    counted: Arc<Counted>,
}

/// One audit call answers for at most this many heights; its memory grows with them.
const MAX_FINGERPRINT_HEIGHTS: u64 = 4_000_000;

impl SqliteSnapshot {
    pub(super) fn new(transaction: Arc<ReadTx>, head: HeadRow, dir: PathBuf, counted: Arc<Counted>) -> Self {
        SqliteSnapshot { transaction, head, dir, counted }
    }
}

#[async_trait]
impl RawSnapshot for SqliteSnapshot {
    fn head(&self) -> &HeadRow {
        &self.head
    }

    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        if !self.head.range().contains(height) {
            return Ok(None);
        }
        self.transaction
            .run(move |from, _| required(&from.conn, &from.unpacker, height, parts).map(Some))
            .await
    }

    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        let there = range.intersect(self.head.range());
        if there.is_empty() {
            return Ok(BlocksRead::whole(range, Vec::new()));
        }
        let (blocks, is_cut) = self
            .transaction
            .run(move |from, deadline| {
                read_until(&from.conn, &from.unpacker, there.iter(), parts, max_bytes, deadline)
            })
            .await?;
        Ok(if is_cut { BlocksRead::cut(range, blocks) } else { BlocksRead::whole(range, blocks) })
    }

    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>> {
        if heights.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(StoreError::Invalid(
                "blocks_at: heights must be ascending and without repeats".into(),
            ));
        }
        // Within the head's range every height has its row; another answer is damage, and found as such.
        let range = self.head.range();
        if let Some(at) = heights.iter().position(|height| !range.contains(*height)) {
            let run = heights[at..]
                .iter()
                .zip(heights[at].get()..)
                .take_while(|(height, expected)| height.get() == *expected && !range.contains(**height))
                .count();
            let missing = HeightRange::new(heights[at], heights[at] + run as u64);
            return Err(StoreError::Missing { missing });
        }
        if heights.is_empty() {
            return Ok(Vec::new());
        }
        let heights = heights.to_vec();
        let read = self.transaction.run(move |from, deadline| {
            read_until(&from.conn, &from.unpacker, heights.into_iter(), parts, max_bytes, deadline)
        });
        Ok(read.await?.0)
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        if !self.head.range().contains(height) {
            return Ok(None);
        }
        self.transaction
            .run(move |from, _| {
                let facts =
                    blocks::read_facts(&from.conn, height)?.ok_or_else(|| StoreError::hole(height))?;
                Ok(Some(facts.linked_ref()))
            })
            .await
    }

    async fn find_block(&self, id: BlockId) -> Result<Option<Height>> {
        let range = self.head.range();
        self.transaction
            .run(move |from, deadline| {
                let is_it = |entry: Entry| {
                    let height = RunKind::BlockId.height_of(entry.position);
                    let row = blocks::row_ref(&from.conn, height)?.ok_or_else(|| StoreError::hole(height))?;
                    Ok((row.id == id).then_some(height))
                };
                let found = find(&from.conn, RunKind::BlockId, id.index_key(), range, deadline, 1, is_it)?;
                Ok(found.into_iter().next())
            })
            .await
    }

    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        Ok(self.places_of_tx(id, self.head.range(), 1).await?.pop())
    }

    async fn places_of_tx(&self, id: TxId, range: HeightRange, limit: usize) -> Result<Vec<TxPlace>> {
        let range = range.intersect(self.head.range());
        if range.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        self.transaction
            .run(move |from, deadline| {
                let is_it = |entry: Entry| {
                    let height = RunKind::TxId.height_of(entry.position);
                    let index = RunKind::TxId.tx_index_of(entry.position);
                    let stored = tx_id_at(&from.conn, height, index)?;
                    Ok((stored == id).then_some(TxPlace { height, index }))
                };
                find(&from.conn, RunKind::TxId, id.index_key(), range, deadline, limit, is_it)
            })
            .await
    }

    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        let range = range.intersect(self.head.range());
        let (query, counted) = (query.clone(), self.counted.clone());
        if range.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        self.transaction
            .run(move |from, deadline| {
                let found = if query.groups.is_empty() {
                    with_logs(&from.conn, range, limit)?
                } else {
                    indexed(&from.conn, range, &query.groups, limit, deadline)?
                };
                for stretch in counted.left(&query, LogQuery::accounted(range, &found, limit)) {
                    demand_whole(&from.conn, stretch, deadline)?;
                    counted.note(stretch);
                }
                Ok(found)
            })
            .await
    }

    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        self.transaction.run(move |from, _| read_reorgs(&from.conn, after_id, limit)).await
    }

    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        let pending = self.head.pending_purge.filter(|purge| purge.reorg_id == reorg_id);
        self.transaction
            .run(move |from, _| {
                let moved = blocks::read_orphan(&from.conn, &from.unpacker, reorg_id, id, parts)?;
                let (None, Some(purge)) = (&moved, pending) else { return Ok(moved) };
                // Not moved yet: its row still stands above the tip.
                for height in blocks::stored_heights(&from.conn, purge.orphans)? {
                    if blocks::row_ref(&from.conn, height)?.is_some_and(|row| row.id == id) {
                        return blocks::read(&from.conn, &from.unpacker, height, parts);
                    }
                }
                Ok(None)
            })
            .await
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.transaction
            .run(|from, _| {
                let mut statement = from
                    .conn
                    .prepare_cached("SELECT service_name, height, id FROM checkpoints ORDER BY service_name")
                    .map_err(db)?;
                let rows = statement.query_map([], |row| {
                    let last = BlockRef { height: get_height(row, 1)?, id: get_id(row, 2)? };
                    Ok(Checkpoint { service_name: row.get(0)?, last })
                });
                rows.and_then(|rows| rows.collect()).map_err(db)
            })
            .await
    }

    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        self.transaction
            .run(|from, _| {
                let leases = filler::read_leases(&from.conn)?;
                Ok(leases.into_iter().map(|row| row.lease).collect())
            })
            .await
    }

    async fn sizes(&self) -> Result<StoreSizes> {
        let dir = self.dir.clone();
        self.transaction.run(move |from, _| read_sizes(&from.conn, &dir)).await
    }

    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        let range = range.intersect(self.head.range());
        if range.len() > MAX_FINGERPRINT_HEIGHTS {
            return Err(StoreError::Invalid(format!(
                "index_fingerprints: {} heights asked for, at most {MAX_FINGERPRINT_HEIGHTS} at a time",
                range.len()
            )));
        }
        self.transaction.run(move |from, deadline| fingerprints(&from.conn, range, deadline)).await
    }
}

fn required(conn: &Connection, unpacker: &Unpacker, height: Height, parts: Parts) -> Result<StoredBlock> {
    blocks::read(conn, unpacker, height, parts)?.ok_or_else(|| StoreError::hole(height))
}

/// The first of these blocks, and whether bytes or time ended the read.
fn read_until(
    conn: &Connection,
    unpacker: &Unpacker,
    heights: impl Iterator<Item = Height>,
    parts: Parts,
    max_bytes: u64,
    deadline: Option<Instant>,
) -> Result<(Vec<StoredBlock>, bool)> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    for height in heights {
        // What was read in time is an answer.
        if !found.is_empty() && demand_time(deadline).is_err() {
            return Ok((found, true));
        }
        let block = required(conn, unpacker, height, parts)?;
        let traces = block.traces.as_ref().map_or(0, bytes::Bytes::len);
        bytes += block.header.len() + block.body.len() + block.receipts.len() + block.extras.len() + traces;
        found.push(block);
        if bytes as u64 >= max_bytes {
            return Ok((found, true));
        }
    }
    Ok((found, false))
}

/// The runs that may hold heights of `range`, by height.
fn runs_over(conn: &Connection, kind: RunKind, range: HeightRange) -> Result<Vec<RunInfo>> {
    let mut runs = live_runs(conn, kind)?;
    runs.retain(|run| !run.heights.intersect(range).is_empty());
    Ok(runs)
}

/// The same, where the answer says what isn't there too: every height has to be in a run.
fn covering_runs(conn: &Connection, kind: RunKind, range: HeightRange) -> Result<Vec<RunInfo>> {
    let runs = runs_over(conn, kind, range)?;
    demand_covered(kind, &runs, range)?;
    Ok(runs)
}

/// A run with entries has pages.
fn demand_pages(conn: &Connection, runs: &[RunInfo]) -> Result<()> {
    for run in runs.iter().filter(|run| run.entries > 0) {
        if !RunPages::new(conn, run.id, None).exist()? {
            return Err(without_pages(run));
        }
    }
    Ok(())
}

/// Says in which run the damage is.
fn in_run(error: StoreError, run: &RunInfo) -> StoreError {
    match error {
        StoreError::Corrupt { what, .. } => {
            corrupt(format!("index run {} ({:?}, heights {})", run.id, run.kind, run.heights), what)
        }
        error => error,
    }
}

/// The lowest entry of `key` that `is_it` takes. Keys are only prefixes: each entry is checked against the whole id.
fn find<T>(
    conn: &Connection,
    kind: RunKind,
    key: IndexKey,
    range: HeightRange,
    deadline: Option<Instant>,
    limit: usize,
    is_it: impl Fn(Entry) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    /// How many entries of one key are looked at in one go; nearly always there is one.
    const AT_ONCE: usize = 64;
    let runs = covering_runs(conn, kind, range)?;
    let mut all = Vec::new();
    for run in &runs {
        let clipped = range.intersect(run.heights);
        let Some(end) = kind.first_position(clipped.end()).checked_sub(1) else { continue };
        let pages = RunPages::new(conn, run.id, deadline);
        let lookup = Lookup::new(kind, &pages);
        let mut at = kind.first_position(clipped.start());
        loop {
            let positions = lookup.positions(key, at, end, AT_ONCE).map_err(|e| in_run(e, run))?;
            for position in &positions {
                if let Some(found) = is_it(Entry { key, position: *position })? {
                    all.push(found);
                    if all.len() == limit {
                        return Ok(all);
                    }
                }
            }
            match positions.last() {
                Some(last) if positions.len() == AT_ONCE => at = last + 1,
                _ => break,
            }
        }
    }
    demand_pages(conn, &runs)?;
    Ok(all)
}

fn tx_id_at(conn: &Connection, height: Height, index: u32) -> Result<TxId> {
    let mut statement = conn.prepare_cached("SELECT ids FROM transactions WHERE height = ?1").map_err(db)?;
    let mut rows = statement.query([sql(height)]).map_err(db)?;
    let row = rows.next().map_err(db)?;
    let ids = row.map(|row| row.get_ref(0).map_err(db)?.as_blob().map_err(|e| db(e.into()))).transpose()?;
    let (ids, _) = ids.unwrap_or_default().as_chunks::<ID_BYTES>();
    ids.get(index as usize).map(|id| TxId(*id)).ok_or_else(|| {
        corrupt(
            format!("height {height}"),
            format!("the index names transaction {index}, which is not there"),
        )
    })
}

/// The heights in `range` that the index names for all of `groups`.
fn indexed(
    conn: &Connection,
    range: HeightRange,
    groups: &[Vec<IndexKey>],
    limit: usize,
    deadline: Option<Instant>,
) -> Result<Vec<Height>> {
    let mut found = Vec::new();
    if groups.iter().any(Vec::is_empty) {
        return Ok(found);
    }
    let runs = covering_runs(conn, RunKind::LogTerm, range)?;
    demand_pages(conn, &runs)?;
    for run in runs {
        let pages = RunPages::new(conn, run.id, deadline);
        let left = limit - found.len();
        let clipped = range.intersect(run.heights);
        found.extend(candidates(&pages, groups, clipped, left).map_err(|e| in_run(e, &run))?);
        if found.len() == limit {
            break;
        }
    }
    Ok(found)
}

/// Heights whose rows are counted in one go.
const COUNTED_HEIGHTS: u64 = 1_000_000;

/// Demands that each height of `range` has its row. Counts entries of two small indexes, which together have one for each row.
fn demand_whole(conn: &Connection, range: HeightRange, deadline: Option<Instant>) -> Result<()> {
    for chunk in range.chunks(COUNTED_HEIGHTS) {
        demand_time(deadline)?;
        let mut statement = conn
            .prepare_cached(
                "SELECT (SELECT count(*) FROM blocks INDEXED BY blocks_with_logs \
                   WHERE log_count > 0 AND height >= ?1 AND height < ?2) \
                 + (SELECT count(*) FROM blocks INDEXED BY blocks_without_logs \
                   WHERE log_count = 0 AND height >= ?1 AND height < ?2)",
            )
            .map_err(db)?;
        let bounds = params![sql(chunk.start()), sql(chunk.end())];
        let rows: i64 = statement.query_row(bounds, |row| row.get(0)).map_err(db)?;
        if rows as u64 != chunk.len() {
            let stored = blocks::stored_heights(conn, chunk)?;
            let missing = chunk.iter().zip(stored.into_iter().map(Some).chain(std::iter::repeat(None)));
            let first = missing.into_iter().find(|(height, stored)| *stored != Some(*height));
            return Err(StoreError::hole(first.map_or(chunk.start(), |(height, _)| height)));
        }
    }
    Ok(())
}

/// The heights in `range` whose blocks have a log.
fn with_logs(conn: &Connection, range: HeightRange, limit: usize) -> Result<Vec<Height>> {
    let mut statement = conn
        .prepare_cached(
            "SELECT height FROM blocks INDEXED BY blocks_with_logs \
             WHERE log_count > 0 AND height >= ?1 AND height < ?2 ORDER BY height LIMIT ?3",
        )
        .map_err(db)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement
        .query_map(params![sql(range.start()), sql(range.end()), limit], |row| get_height(row, 0))
        .map_err(db)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db)
}

pub(super) fn read_reorgs(conn: &Connection, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
    let after = i64::try_from(after_id).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut entries: Vec<ReorgEntry> = conn
        .prepare_cached("SELECT * FROM reorgs WHERE id > ?1 ORDER BY id LIMIT ?2")
        .and_then(|mut statement| {
            let rows = statement.query_map([after, limit], |row| {
                Ok(ReorgEntry {
                    id: get_u64(row, 0)?,
                    digest: row.get(1)?,
                    store_uuid: row.get(2)?,
                    common: BlockRef { height: get_height(row, 3)?, id: get_id(row, 4)? },
                    orphans: Vec::new(),
                    decided_at_ms: row.get::<_, i64>(5)? as u64,
                })
            });
            rows?.collect()
        })
        .map_err(db)?;
    let mut orphans = conn
        .prepare_cached(
            "SELECT height, id, timestamp_ms FROM reorg_orphans WHERE reorg_id = ?1 ORDER BY height",
        )
        .map_err(db)?;
    for entry in &mut entries {
        let rows = orphans.query_map([entry.id as i64], |row| {
            let block = BlockRef { height: get_height(row, 0)?, id: get_id(row, 1)? };
            Ok(OrphanRef { block, timestamp_ms: row.get::<_, i64>(2)? as u64 })
        });
        entry.orphans = rows.and_then(|rows| rows.collect()).map_err(db)?;
    }
    Ok(entries)
}

fn read_sizes(conn: &Connection, dir: &std::path::Path) -> Result<StoreSizes> {
    let query = |select: &str| -> Result<Vec<(String, u64, u64)>> {
        let mut statement = conn.prepare_cached(select).map_err(db)?;
        let rows = statement
            .query_map([], |row| Ok((row.get(0)?, get_u64(row, 1)?, get_u64(row, 2)?)))
            .map_err(db)?;
        rows.collect::<rusqlite::Result<_>>().map_err(db)
    };
    let mut parts = query("SELECT part, part_rows, bytes FROM part_sizes")?;
    parts.extend(query(
        "SELECT 'orphans', count(*), coalesce(sum(length(header) + ifnull(length(tx_ids), 0) + ifnull(length(tx_facts), 0) \
         + ifnull(length(body), 0) + ifnull(length(receipts), 0) + ifnull(length(extras), 0) \
         + ifnull(length(traces), 0)), 0) FROM orphans",
    )?);
    for (kind, name) in
        [(RunKind::BlockId, "block_lookup"), (RunKind::TxId, "tx_lookup"), (RunKind::LogTerm, "log_terms")]
    {
        let runs = live_runs(conn, kind)?;
        let sum = |of: fn(&RunInfo) -> u64| runs.iter().map(of).sum();
        parts.push((name.to_owned(), sum(|run| run.entries), sum(|run| run.bytes)));
    }
    parts.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    let files = [RAW.name.to_owned(), RAW.wal_name()];
    // The log is not there once everything was copied and the last connection went.
    let sizes = files.iter().filter_map(|name| std::fs::metadata(dir.join(name)).ok());
    Ok(StoreSizes { total_bytes: sizes.map(|file| file.len()).sum(), parts })
}

fn fingerprints(
    conn: &Connection,
    range: HeightRange,
    deadline: Option<Instant>,
) -> Result<Vec<IndexFingerprint>> {
    let mut found: Vec<IndexFingerprint> = range.iter().map(IndexFingerprint::empty).collect();
    for kind in RunKind::ALL {
        for run in runs_over(conn, kind, range)? {
            let pages = RunPages::new(conn, run.id, deadline);
            let mut cursor = RunCursor::new(kind, run.heights, &pages, None);
            while let Some(entry) = cursor.next_entry().map_err(|e| in_run(e, &run))? {
                let height = kind.height_of(entry.position);
                if range.contains(height) {
                    found[height.since(range.start()) as usize].add(
                        kind,
                        entry.key,
                        kind.tx_index_of(entry.position),
                    );
                }
            }
        }
    }
    found.retain(|fingerprint| fingerprint.entries > 0);
    Ok(found)
}
