//! Reading: everything is bounded by the head row that the view began with.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, BlockRef, Height, HeightRange, IndexKey, LinkedRef, Parts, StoredBlock, TxId};
use cairn_store::runs::{RunCursor, RunInfo, RunKind, candidates};
use cairn_store::{
    BlocksRead, Checkpoint, HeadRow, IndexFingerprint, LogQuery, OrphanRef, RawLease, RawSnapshot,
    ReorgEntry, Result, StoreError, StoreSizes, TxPlace,
};
use futures::pin_mut;
use tokio::runtime::Handle;

use super::head::{get_array, get_height, get_id, get_u32, get_u64, sql};
use super::read::{self, Measured, Which};
use super::runs::{RunPages, in_run, live_runs};
use super::view::View;
use super::{Shared, blocking, evm_lookup, filler};
use crate::index_runs::{demand_covered, without_pages};
use crate::postgres::PgConn;
use crate::postgres::error::db;

pub(super) struct PgSnapshot {
    shared: Arc<Shared>,
    view: Arc<View>,
    head: HeadRow,
}

/// One audit call answers for at most this many heights; its memory grows with them.
const MAX_FINGERPRINT_HEIGHTS: u64 = 4_000_000;

/// How many blocks are measured at once, and read at once, at most.
const AT_ONCE: usize = 1_024;

/// About how many bytes of parts are read in one go.
const AT_ONCE_BYTES: u64 = 8 << 20;

impl PgSnapshot {
    pub(super) fn new(shared: Arc<Shared>, view: Arc<View>, head: HeadRow) -> Self {
        PgSnapshot { shared, view, head }
    }

    /// Reads what was measured until `max_bytes` are reached, adding to `found`. `Ok(true)` where they were, or the view's time is over.
    async fn read_measured(
        &self,
        measured: &[Measured],
        parts: Parts,
        bytes: &mut u64,
        max_bytes: u64,
        found: &mut Vec<StoredBlock>,
    ) -> Result<bool> {
        let mut at = 0;
        while at < measured.len() {
            let (mut end, mut chunk_bytes, mut is_full) = (at, 0, false);
            while end < measured.len() && chunk_bytes < AT_ONCE_BYTES && !is_full {
                chunk_bytes += measured[end].bytes(parts);
                is_full = bytes.saturating_add(chunk_bytes) >= max_bytes;
                end += 1;
            }
            // What was read in time is an answer.
            if !found.is_empty() && self.view.is_over() {
                return Ok(true);
            }
            let heights: Vec<i64> = measured[at..end].iter().map(|block| sql(block.height)).collect();
            let rows = {
                let conn = self.view.conn().await?;
                read::read(&conn, &Which::Heights(heights), parts).await?
            };
            found.extend(rows.put_together(&self.shared).await?);
            *bytes = bytes.saturating_add(chunk_bytes);
            if is_full {
                return Ok(true);
            }
            at = end;
        }
        Ok(false)
    }

    /// The heights in `range` that the index names for all of `groups`.
    async fn indexed(
        &self,
        range: HeightRange,
        groups: &[Vec<IndexKey>],
        limit: usize,
    ) -> Result<Vec<Height>> {
        if groups.iter().any(Vec::is_empty) {
            return Ok(Vec::new());
        }
        let runs = whole_runs_over(&*self.view.conn().await?, range).await?;
        let (view, runtime, groups) = (self.view.clone(), Handle::current(), groups.to_vec());
        blocking(move || {
            let mut found = Vec::new();
            for run in runs {
                let pages = RunPages::new(view.clone(), runtime.clone(), run.id);
                let clipped = range.intersect(run.heights);
                let more = candidates(&pages, &groups, clipped, limit - found.len());
                found.extend(more.map_err(|error| in_run(error, &run))?);
                if found.len() == limit {
                    break;
                }
            }
            Ok(found)
        })
        .await
    }
}

#[async_trait]
impl RawSnapshot for PgSnapshot {
    fn head(&self) -> &HeadRow {
        &self.head
    }

    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        if !self.head.range().contains(height) {
            return Ok(None);
        }
        let rows = {
            let conn = self.view.conn().await?;
            read::read_one(&conn, height, parts).await?
        };
        rows.put_together(&self.shared).await?.pop().ok_or_else(|| StoreError::hole(height)).map(Some)
    }

    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        let there = range.intersect(self.head.range());
        // The first block is read whatever its size.
        if range.len() == 1 && !there.is_empty() {
            let found = self.block(there.start(), parts).await?;
            return Ok(BlocksRead::whole(range, found.into_iter().collect()));
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for chunk in there.chunks(AT_ONCE as u64) {
            // What was read in time is an answer.
            if !found.is_empty() && self.view.is_over() {
                return Ok(BlocksRead::cut(range, found));
            }
            let measured = {
                let conn = self.view.conn().await?;
                read::measure(&conn, &Which::Range(chunk), AT_ONCE as i64).await?
            };
            demand_all(chunk.iter(), &measured)?;
            if self.read_measured(&measured, parts, &mut bytes, max_bytes, &mut found).await? {
                return Ok(BlocksRead::cut(range, found));
            }
        }
        Ok(BlocksRead::whole(range, found))
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
        let (mut found, mut bytes) = (Vec::new(), 0);
        for chunk in heights.chunks(AT_ONCE) {
            if !found.is_empty() && self.view.is_over() {
                break;
            }
            let which = Which::Heights(chunk.iter().map(|height| sql(*height)).collect());
            let measured = {
                let conn = self.view.conn().await?;
                read::measure(&conn, &which, AT_ONCE as i64).await?
            };
            demand_all(chunk.iter().copied(), &measured)?;
            if self.read_measured(&measured, parts, &mut bytes, max_bytes, &mut found).await? {
                break;
            }
        }
        Ok(found)
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        if !self.head.range().contains(height) {
            return Ok(None);
        }
        let conn = self.view.conn().await?;
        let facts = read::read_facts(&conn, height).await?.ok_or_else(|| StoreError::hole(height))?;
        Ok(Some(facts.linked_ref()))
    }

    async fn find_block(&self, id: BlockId) -> Result<Option<Height>> {
        let range = self.head.range();
        let conn = self.view.conn().await?;
        let row = conn
            .query_opt(
                "SELECT height FROM raw.block_lookup WHERE id = $1 AND height >= $2 AND height < $3",
                &[&&id.0[..], &sql(range.start()), &sql(range.end())],
            )
            .await?;
        row.map(|row| get_height(&row, 0)).transpose()
    }

    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        Ok(self.places_of_tx(id, self.head.range(), 1).await?.pop())
    }

    async fn places_of_tx(&self, id: TxId, range: HeightRange, limit: usize) -> Result<Vec<TxPlace>> {
        let range = range.intersect(self.head.range());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let conn = self.view.conn().await?;
        let rows = conn
            .query(
                "SELECT block_height, tx_index FROM raw.tx_lookup \
                 WHERE id = $1 AND block_height >= $2 AND block_height < $3 ORDER BY id, block_height, tx_index LIMIT $4",
                &[&&id.0[..], &sql(range.start()), &sql(range.end()), &limit],
            )
            .await?;
        rows.iter().map(|row| Ok(TxPlace { height: get_height(row, 0)?, index: get_u32(row, 1)? })).collect()
    }

    async fn find_evm(&self, evm_hash: [u8; 32], range: HeightRange) -> Result<Option<Vec<TxPlace>>> {
        if !self.shared.options.layout.has_evm_lookups() {
            return Ok(None);
        }
        let conn = self.view.conn().await?;
        evm_lookup::find(&conn, evm_hash, range.intersect(self.head.range())).await.map(Some)
    }

    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        let range = range.intersect(self.head.range());
        if range.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let found = if query.groups.is_empty() {
            with_logs(&*self.view.conn().await?, range, limit).await?
        } else {
            self.indexed(range, &query.groups, limit).await?
        };
        for stretch in self.shared.counted.left(query, LogQuery::accounted(range, &found, limit)) {
            demand_whole(&*self.view.conn().await?, stretch).await?;
            self.shared.counted.note(stretch);
        }
        Ok(found)
    }

    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        read_reorgs(&*self.view.conn().await?, after_id, limit).await
    }

    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        let rows = {
            let conn = self.view.conn().await?;
            let moved = read::read(&conn, &Which::Orphan(reorg_id, id), parts).await?;
            let pending = self.head.pending_purge.filter(|purge| purge.reorg_id == reorg_id);
            match pending {
                Some(purge) if moved.blocks.is_empty() => {
                    // Not moved yet: its row still stands above the tip.
                    let row = conn
                        .query_opt(
                            "SELECT height FROM raw.block_lookup WHERE id = $1 AND height >= $2 AND height < $3",
                            &[&&id.0[..], &sql(purge.orphans.start()), &sql(purge.orphans.end())],
                        )
                        .await?;
                    match row {
                        Some(row) => read::read_one(&conn, get_height(&row, 0)?, parts).await?,
                        None => moved,
                    }
                }
                _ => moved,
            }
        };
        Ok(rows.put_together(&self.shared).await?.pop())
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let conn = self.view.conn().await?;
        let rows = conn
            .query(
                "SELECT service_name, last_height, last_id FROM raw.checkpoints ORDER BY service_name",
                &[],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let last = BlockRef { height: get_height(row, 1)?, id: get_id(row, 2)? };
                Ok(Checkpoint { service_name: row.try_get(0).map_err(db)?, last })
            })
            .collect()
    }

    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        let leases = filler::read_leases(&*self.view.conn().await?).await?;
        Ok(leases.into_iter().map(|row| row.lease).collect())
    }

    async fn sizes(&self) -> Result<StoreSizes> {
        sizes(&*self.view.conn().await?, self.head.range().len()).await
    }

    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        let range = range.intersect(self.head.range());
        if range.len() > MAX_FINGERPRINT_HEIGHTS {
            return Err(StoreError::Invalid(format!(
                "index_fingerprints: {} heights asked for, at most {MAX_FINGERPRINT_HEIGHTS} at a time",
                range.len()
            )));
        }
        let mut found: Vec<IndexFingerprint> = range.iter().map(IndexFingerprint::empty).collect();
        let runs = {
            let conn = self.view.conn().await?;
            add_lookups(&conn, range, &mut found).await?;
            runs_over(&conn, range).await?
        };
        let (view, runtime) = (self.view.clone(), Handle::current());
        blocking(move || {
            for run in runs {
                let pages = RunPages::new(view.clone(), runtime.clone(), run.id);
                let mut cursor = RunCursor::new(run.kind, run.heights, &pages, None);
                while let Some(entry) = cursor.next_entry().map_err(|error| in_run(error, &run))? {
                    let height = run.kind.height_of(entry.position);
                    if range.contains(height) {
                        found[height.since(range.start()) as usize].add(run.kind, entry.key, 0);
                    }
                }
            }
            found.retain(|fingerprint| fingerprint.entries > 0);
            Ok(found)
        })
        .await
    }
}

fn demand_all(heights: impl Iterator<Item = Height>, measured: &[Measured]) -> Result<()> {
    let mut found = measured.iter().map(|block| block.height);
    for height in heights {
        if found.next() != Some(height) {
            return Err(StoreError::hole(height));
        }
    }
    Ok(())
}

/// The runs that may hold heights of `range`, by height.
async fn runs_over(conn: &PgConn, range: HeightRange) -> Result<Vec<RunInfo>> {
    let mut runs = live_runs(conn).await?;
    runs.retain(|run| !run.heights.intersect(range).is_empty());
    Ok(runs)
}

/// The same, where the answer says what isn't there too: every height has to be in a run, and a run with entries has pages.
async fn whole_runs_over(conn: &PgConn, range: HeightRange) -> Result<Vec<RunInfo>> {
    let runs = runs_over(conn, range).await?;
    demand_covered(RunKind::LogTerm, &runs, range)?;
    let ids: Vec<i64> = runs.iter().filter(|run| run.entries > 0).map(|run| run.id as i64).collect();
    let empty = conn
        .query_opt(
            "SELECT r.id FROM unnest($1::bigint[]) AS r (id) \
             WHERE NOT EXISTS (SELECT FROM raw.run_pages p WHERE p.run_id = r.id) LIMIT 1",
            &[&ids],
        )
        .await?;
    let Some(row) = empty else { return Ok(runs) };
    let id = get_u64(&row, 0)?;
    Err(runs.iter().find(|run| run.id == id).map_or_else(|| StoreError::hole(range.start()), without_pages))
}

/// Demands that each height of `range` has its row; counts the primary key's entries.
async fn demand_whole(conn: &PgConn, range: HeightRange) -> Result<()> {
    let bounds = [sql(range.start()), sql(range.end())];
    let row = conn
        .query_one(
            "SELECT count(*) FROM raw.blocks WHERE height >= $1 AND height < $2",
            &[&bounds[0], &bounds[1]],
        )
        .await?;
    if get_u64(&row, 0)? == range.len() {
        return Ok(());
    }
    let first = conn
        .query_one(
            "SELECT h FROM generate_series($1::bigint, $2::bigint - 1) AS h \
             WHERE NOT EXISTS (SELECT FROM raw.blocks b WHERE b.height = h) ORDER BY h LIMIT 1",
            &[&bounds[0], &bounds[1]],
        )
        .await?;
    Err(StoreError::hole(get_height(&first, 0)?))
}

/// The heights in `range` whose blocks have a log.
async fn with_logs(conn: &PgConn, range: HeightRange, limit: usize) -> Result<Vec<Height>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = conn
        .query(
            "SELECT height FROM raw.blocks WHERE event_count > 0 AND height >= $1 AND height < $2 \
             ORDER BY height LIMIT $3",
            &[&sql(range.start()), &sql(range.end()), &limit],
        )
        .await?;
    rows.iter().map(|row| get_height(row, 0)).collect()
}

/// The lookups' part of the fingerprints. A summary of heights by stretches of the tables (BRIN) keeps it from walking all of them.
async fn add_lookups(conn: &PgConn, range: HeightRange, found: &mut [IndexFingerprint]) -> Result<()> {
    let lookups = [
        (
            RunKind::BlockId,
            "SELECT height, 0::bigint, id FROM raw.block_lookup WHERE height >= $1 AND height < $2",
        ),
        (
            RunKind::TxId,
            "SELECT block_height, tx_index, id FROM raw.tx_lookup WHERE block_height >= $1 AND block_height < $2",
        ),
    ];
    for (kind, query) in lookups {
        let rows = conn.query_stream(query, &[&sql(range.start()), &sql(range.end())]).await?;
        pin_mut!(rows);
        while let Some(row) = conn.next_row(&mut rows).await? {
            let (height, index) = (get_height(&row, 0)?, get_u32(&row, 1)?);
            let key = TxId(get_array(&row, 2)?).index_key();
            found[height.since(range.start()) as usize].add(kind, key, index);
        }
    }
    Ok(())
}

pub(super) async fn read_reorgs(conn: &PgConn, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
    let after = i64::try_from(after_id).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = conn
        .query(
            "SELECT id, digest, store_uuid, common_height, common_id, decided_at_ms FROM raw.reorgs \
             WHERE id > $1 ORDER BY id LIMIT $2",
            &[&after, &limit],
        )
        .await?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        entries.push(ReorgEntry {
            id: get_u64(row, 0)?,
            digest: get_array(row, 1)?,
            store_uuid: get_array(row, 2)?,
            common: BlockRef { height: get_height(row, 3)?, id: get_id(row, 4)? },
            orphans: Vec::new(),
            decided_at_ms: row.try_get::<_, i64>(5).map_err(db)? as u64,
        });
    }
    let ids: Vec<i64> = entries.iter().map(|entry| entry.id as i64).collect();
    let orphans = conn
        .query(
            "SELECT reorg_id, height, id, timestamp_ms FROM raw.reorg_orphans WHERE reorg_id = ANY($1) \
             ORDER BY reorg_id, height",
            &[&ids],
        )
        .await?;
    for row in &orphans {
        let id = get_u64(row, 0)?;
        let orphan = OrphanRef {
            block: BlockRef { height: get_height(row, 1)?, id: get_id(row, 2)? },
            timestamp_ms: row.try_get::<_, i64>(3).map_err(db)? as u64,
        };
        if let Ok(at) = entries.binary_search_by_key(&id, |entry| entry.id) {
            entries[at].orphans.push(orphan);
        }
    }
    Ok(entries)
}

/// Tables with their partitions, indexes and long values; rows as the server estimates them, but for the blocks of the chain, which are known.
async fn sizes(conn: &PgConn, blocks: u64) -> Result<StoreSizes> {
    let rows = conn
        .query(
            "SELECT coalesce(parent.relname, c.relname)::text, \
               sum(CASE WHEN c.reltuples > 0 THEN c.reltuples ELSE coalesce(s.n_live_tup, 0) END)::bigint, \
               sum(pg_total_relation_size(c.oid))::bigint \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid \
             LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = i.inhparent \
             WHERE n.nspname = 'raw' AND c.relkind = 'r' GROUP BY 1 ORDER BY 3 DESC, 1",
            &[],
        )
        .await?;
    let mut sizes = StoreSizes::default();
    for row in &rows {
        let (name, rows, bytes): (String, _, _) =
            (row.try_get(0).map_err(db)?, get_u64(row, 1)?, get_u64(row, 2)?);
        let rows = if name == "blocks" { rows.max(blocks) } else { rows };
        sizes.total_bytes += bytes;
        sizes.parts.push((name, rows, bytes));
    }
    Ok(sizes)
}
