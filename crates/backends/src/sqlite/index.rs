//! Index runs in tables: writing a batch's runs, listing, reading pages, and cutting runs off above a height.

use bytes::Bytes;
use cairn_core::{Height, HeightRange};
use cairn_store::runs::{BuiltRun, PageSource, Place, RunBuilder, RunInfo, RunKind, StoredPage};
use cairn_store::{Result, StoreError};
use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::time::Instant;

use super::blocks::EncodedBlock;
use super::codec::ID_BYTES;
use super::error::db;
use super::head::{get_height, get_u32, get_u64, sql};

/// What a row of `runs` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i64)]
pub(super) enum RunState {
    /// Part of the index.
    Live = 0,
    /// The result of a merge that goes on; nobody reads it.
    Building = 1,
    /// Replaced or cut off; maintenance deletes its pages.
    Dead = 2,
}

/// The columns of a [`RunInfo`].
pub(super) const RUN_COLUMNS: &str = "id, kind, level, from_height, to_height, entries, bytes";

pub(super) fn run_info(row: &Row<'_>) -> rusqlite::Result<RunInfo> {
    let kind: u8 = row.get(1)?;
    Ok(RunInfo {
        id: get_u64(row, 0)?,
        kind: RunKind::from_byte(kind).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, i64::from(kind)))?,
        level: get_u32(row, 2)?,
        heights: HeightRange::new(get_height(row, 3)?, get_height(row, 4)?),
        entries: get_u64(row, 5)?,
        bytes: get_u64(row, 6)?,
    })
}

/// The live runs of one kind, by height.
pub(super) fn live_runs(conn: &Connection, kind: RunKind) -> Result<Vec<RunInfo>> {
    let mut statement = conn
        .prepare_cached(&format!(
            "SELECT {RUN_COLUMNS} FROM runs WHERE state = ?1 AND kind = ?2 ORDER BY from_height"
        ))
        .map_err(db)?;
    let rows = statement.query_map(params![RunState::Live as i64, kind as u8], run_info).map_err(db)?;
    rows.collect::<rusqlite::Result<_>>().map_err(db)
}

/// The pages of one run in one connection's view.
pub(super) struct RunPages<'a> {
    conn: &'a Connection,
    run_id: u64,
    /// When the view ends: a long walk stops in its middle.
    deadline: Option<Instant>,
}

impl<'a> RunPages<'a> {
    pub(super) fn new(conn: &'a Connection, run_id: u64, deadline: Option<Instant>) -> Self {
        RunPages { conn, run_id, deadline }
    }

    fn page(&self, select: &str, place: Place) -> Result<Option<StoredPage>> {
        demand_time(self.deadline)?;
        self.conn
            .prepare_cached(select)
            .and_then(|mut statement| {
                let page = statement.query_row(params![self.run_id as i64, place], |row| {
                    let data = row.get_ref(1)?.as_blob()?;
                    Ok(StoredPage { place: row.get(0)?, data: Bytes::copy_from_slice(data) })
                });
                page.optional()
            })
            .map_err(db)
    }

    /// Whether there is one.
    pub(super) fn exist(&self) -> Result<bool> {
        self.conn
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM run_pages WHERE run_id = ?1)")
            .and_then(|mut statement| statement.query_row([self.run_id as i64], |row| row.get(0)))
            .map_err(db)
    }

    /// The last page.
    pub(super) fn last(&self) -> Result<Option<StoredPage>> {
        self.at_or_before([0xff; 16])
    }
}

impl PageSource for RunPages<'_> {
    fn at_or_before(&self, place: Place) -> Result<Option<StoredPage>> {
        self.page(
            "SELECT place, data FROM run_pages WHERE run_id = ?1 AND place <= ?2 ORDER BY place DESC LIMIT 1",
            place,
        )
    }

    fn after(&self, place: Place) -> Result<Option<StoredPage>> {
        self.page(
            "SELECT place, data FROM run_pages WHERE run_id = ?1 AND place > ?2 ORDER BY place LIMIT 1",
            place,
        )
    }
}

/// Law 9: no read transaction grows old.
pub(super) fn demand_time(deadline: Option<Instant>) -> Result<()> {
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(StoreError::Busy(
            "the snapshot is too old and was ended; ask again, or for less at once".into(),
        ));
    }
    Ok(())
}

/// The runs of these consecutive blocks, one for each kind.
pub(super) fn build_runs(blocks: &[EncodedBlock]) -> Result<Vec<BuiltRun>> {
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(Vec::new()) };
    let heights = HeightRange::inclusive(first.facts.height, last.facts.height);
    let mut ids = RunBuilder::new(RunKind::BlockId, heights);
    let mut txs = RunBuilder::new(RunKind::TxId, heights);
    let mut terms = RunBuilder::new(RunKind::LogTerm, heights);
    for block in blocks {
        let height = block.facts.height;
        ids.push(block.facts.id.index_key(), height, 0)?;
        for (index, id) in (0..).zip(block.tx_ids.as_chunks::<ID_BYTES>().0) {
            txs.push(cairn_core::TxId(*id).index_key(), height, index)?;
        }
        for term in &block.log_terms {
            terms.push(*term, height, 0)?;
        }
    }
    Ok(vec![ids.finish()?, txs.finish()?, terms.finish()?])
}

/// Adds a run to the index.
pub(super) fn insert_run(conn: &Connection, run: &BuiltRun, level: u32) -> Result<()> {
    let id = insert_run_row(conn, run.kind, RunState::Live, level, run.heights, None)?;
    insert_pages(conn, id, &run.pages, run.entries)
}

/// A row without pages. `inputs` belongs to merges.
pub(super) fn insert_run_row(
    conn: &Connection,
    kind: RunKind,
    state: RunState,
    level: u32,
    heights: HeightRange,
    inputs: Option<Vec<u8>>,
) -> Result<u64> {
    conn.prepare_cached(
        "INSERT INTO runs (kind, state, level, from_height, to_height, entries, bytes, is_cut, inputs) \
         VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, 0, ?6)",
    )
    .and_then(|mut statement| {
        statement.insert(params![
            kind as u8,
            state as i64,
            level,
            sql(heights.start()),
            sql(heights.end()),
            inputs
        ])
    })
    .map(|id| id as u64)
    .map_err(db)
}

/// Adds pages that hold `entries` entries to a run.
pub(super) fn insert_pages(conn: &Connection, run_id: u64, pages: &[StoredPage], entries: u64) -> Result<()> {
    let write = || -> rusqlite::Result<()> {
        let mut insert =
            conn.prepare_cached("INSERT INTO run_pages (run_id, place, data) VALUES (?1, ?2, ?3)")?;
        for page in pages {
            insert.execute(params![run_id as i64, page.place, page.data.as_ref()])?;
        }
        let bytes: usize = pages.iter().map(|page| page.data.len()).sum();
        conn.prepare_cached("UPDATE runs SET entries = entries + ?2, bytes = bytes + ?3 WHERE id = ?1")?
            .execute(params![run_id as i64, entries as i64, bytes as i64])?;
        Ok(())
    };
    write().map_err(db)
}

/// Whether a run's pages hold more than counts.
pub(super) fn is_cut(conn: &Connection, run_id: u64) -> Result<bool> {
    conn.prepare_cached("SELECT is_cut FROM runs WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([run_id as i64], |row| row.get(0)))
        .map_err(db)
}

pub(super) fn set_state(conn: &Connection, run_id: u64, state: RunState) -> Result<()> {
    conn.prepare_cached("UPDATE runs SET state = ?2 WHERE id = ?1")
        .and_then(|mut statement| statement.execute(params![run_id as i64, state as i64]))
        .map_err(db)?;
    Ok(())
}

/// Takes every entry of `heights` out of the index: runs that lie inside are dead, runs that begin below end at its start. What is
/// above a run's end in its pages doesn't count, and the next merge leaves it out. A merge over these heights is thrown away.
pub(super) fn cut(conn: &Connection, heights: HeightRange) -> Result<()> {
    let (start, end) = (sql(heights.start()), sql(heights.end()));
    let cut = || -> rusqlite::Result<()> {
        let [live, building, dead] =
            [RunState::Live, RunState::Building, RunState::Dead].map(|state| state as i64);
        conn.prepare_cached(
            "UPDATE runs SET state = ?5 WHERE to_height > ?1 AND from_height < ?2 \
             AND (state = ?4 OR (state = ?3 AND from_height >= ?1))",
        )?
        .execute([start, end, live, building, dead])?;
        conn.prepare_cached(
            "UPDATE runs SET to_height = ?1, is_cut = 1 WHERE to_height > ?1 AND from_height < ?1 AND state = ?2",
        )?
        .execute([start, live])?;
        Ok(())
    };
    cut().map_err(db)
}

/// Writes the index entries of those of these consecutive blocks that are not in `stored` (ascending): a run for each stretch of new ones,
/// so that no height is ever in two runs.
pub(super) fn insert_new_runs(conn: &Connection, blocks: &[EncodedBlock], stored: &[Height]) -> Result<()> {
    let is_new = |block: &EncodedBlock| stored.binary_search(&block.facts.height).is_err();
    for stretch in blocks.chunk_by(|a, b| is_new(a) == is_new(b)) {
        if stretch.first().is_some_and(is_new) {
            for run in build_runs(stretch)? {
                insert_run(conn, &run, 0)?;
            }
        }
    }
    Ok(())
}
