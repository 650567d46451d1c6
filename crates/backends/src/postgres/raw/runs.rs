//! The index of log terms in tables: writing a batch's run, listing, reading pages, and cutting runs off above a height.
//!
//! **Order.** Appends and fills only add runs. Whoever cuts runs (under the head's lock) or replaces them (maintenance) holds the runs' lock,
//! an advisory one, to the end of its transaction; it comes after the head's.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::HeightRange;
use cairn_store::runs::{BuiltRun, PageSource, Place, RunInfo, RunKind, StoredPage};
use cairn_store::{Result, StoreError};
use tokio::runtime::Handle;
use tokio_postgres::Row;

use super::head::{get_array, get_height, get_u32, get_u64, sql};
use super::tx::Tx;
use super::view::View;
use crate::postgres::PgConn;
use crate::postgres::error::{corrupt, db};

/// What a row of `raw.runs` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
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

pub(super) fn run_info(row: &Row) -> Result<RunInfo> {
    let kind: i16 = row.try_get(1).map_err(db)?;
    let known = u8::try_from(kind).ok().and_then(RunKind::from_byte);
    Ok(RunInfo {
        id: get_u64(row, 0)?,
        kind: known.ok_or_else(|| corrupt("raw.runs, column kind", format!("{kind} is unknown")))?,
        level: get_u32(row, 2)?,
        heights: HeightRange::new(get_height(row, 3)?, get_height(row, 4)?),
        entries: get_u64(row, 5)?,
        bytes: get_u64(row, 6)?,
    })
}

/// The live runs, by height.
pub(super) async fn live_runs(conn: &PgConn) -> Result<Vec<RunInfo>> {
    let rows = conn
        .query(
            &format!(
                "SELECT {RUN_COLUMNS} FROM raw.runs WHERE state = $1 AND kind = $2 ORDER BY from_height"
            ),
            &[&(RunState::Live as i16), &(RunKind::LogTerm as i16)],
        )
        .await?;
    rows.iter().map(run_info).collect()
}

/// Waits for the runs' lock.
pub(super) async fn lock(tx: &Tx) -> Result<()> {
    let key = crate::postgres::pool::lock_key("cairn.raw.runs");
    tx.execute("SELECT pg_advisory_xact_lock($1)", &[&key]).await.map(drop)
}

/// The pages of one run in one view, for code that may block.
pub(super) struct RunPages {
    view: Arc<View>,
    runtime: Handle,
    run_id: i64,
}

impl RunPages {
    pub(super) fn new(view: Arc<View>, runtime: Handle, run_id: u64) -> Self {
        RunPages { view, runtime, run_id: run_id as i64 }
    }

    fn page(&self, select: &str, place: Place) -> Result<Option<StoredPage>> {
        self.runtime.block_on(async {
            let conn = self.view.conn().await?;
            let row = conn.query_opt(select, &[&self.run_id, &&place[..]]).await?;
            row.map(|row| page(&row)).transpose()
        })
    }
}

fn page(row: &Row) -> Result<StoredPage> {
    let data: &[u8] = row.try_get(1).map_err(db)?;
    Ok(StoredPage { place: get_array(row, 0)?, data: Bytes::copy_from_slice(data) })
}

const AT_OR_BEFORE: &str =
    "SELECT place, data FROM raw.run_pages WHERE run_id = $1 AND place <= $2 ORDER BY place DESC LIMIT 1";

impl PageSource for RunPages {
    fn at_or_before(&self, place: Place) -> Result<Option<StoredPage>> {
        self.page(AT_OR_BEFORE, place)
    }

    fn after(&self, place: Place) -> Result<Option<StoredPage>> {
        self.page(
            "SELECT place, data FROM raw.run_pages WHERE run_id = $1 AND place > $2 ORDER BY place LIMIT 1",
            place,
        )
    }
}

/// The last page of a run.
pub(super) async fn last_page(conn: &PgConn, run_id: u64) -> Result<Option<StoredPage>> {
    let row = conn.query_opt(AT_OR_BEFORE, &[&(run_id as i64), &&[0xff_u8; 16][..]]).await?;
    row.map(|row| page(&row)).transpose()
}

/// Adds a run to the index.
pub(super) async fn insert_run(tx: &Tx, run: &BuiltRun, level: u32) -> Result<()> {
    let id = insert_run_row(tx, RunState::Live, level, run.heights, None).await?;
    insert_pages(tx, id, &run.pages, run.entries).await
}

/// A row without pages. `inputs` belongs to merges.
pub(super) async fn insert_run_row(
    tx: &Tx,
    state: RunState,
    level: u32,
    heights: HeightRange,
    inputs: Option<Vec<i64>>,
) -> Result<u64> {
    let row = tx
        .query_one(
            "INSERT INTO raw.runs (kind, state, level, from_height, to_height, entries, bytes, inputs) \
             VALUES ($1, $2, $3, $4, $5, 0, 0, $6) RETURNING id",
            &[
                &(RunKind::LogTerm as i16),
                &(state as i16),
                &i64::from(level),
                &sql(heights.start()),
                &sql(heights.end()),
                &inputs,
            ],
        )
        .await?;
    get_u64(&row, 0)
}

/// Adds pages that hold `entries` entries to a run.
pub(super) async fn insert_pages(tx: &Tx, run_id: u64, pages: &[StoredPage], entries: u64) -> Result<()> {
    if pages.is_empty() {
        return Ok(());
    }
    let mut rows = crate::postgres::CopyBuf::new();
    for page in pages {
        rows.row(3).i64(run_id as i64).bytea(&page.place).bytea(&page.data);
    }
    let bytes: usize = pages.iter().map(|page| page.data.len()).sum();
    tx.copy_in("COPY raw.run_pages (run_id, place, data) FROM STDIN (FORMAT binary)", rows).await?;
    tx.execute(
        "UPDATE raw.runs SET entries = entries + $2, bytes = bytes + $3 WHERE id = $1",
        &[&(run_id as i64), &(entries as i64), &(bytes as i64)],
    )
    .await
    .map(drop)
}

pub(super) async fn set_state(tx: &Tx, run_id: u64, state: RunState) -> Result<()> {
    tx.execute("UPDATE raw.runs SET state = $2 WHERE id = $1", &[&(run_id as i64), &(state as i16)])
        .await
        .map(drop)
}

/// Takes every entry of `heights` out of the index, under the runs' lock: runs that lie inside are dead, runs that begin below end at its
/// start. What is above a run's end in its pages doesn't count, and the next merge leaves it out. A merge over these heights is thrown away.
pub(super) async fn cut(tx: &Tx, heights: HeightRange) -> Result<()> {
    lock(tx).await?;
    let (start, end) = (sql(heights.start()), sql(heights.end()));
    let [live, building, dead] =
        [RunState::Live, RunState::Building, RunState::Dead].map(|state| state as i16);
    tx.execute(
        "UPDATE raw.runs SET state = $5 WHERE to_height > $1 AND from_height < $2 \
         AND (state = $4 OR (state = $3 AND from_height >= $1))",
        &[&start, &end, &live, &building, &dead],
    )
    .await?;
    tx.execute(
        "UPDATE raw.runs SET to_height = $1, is_cut = TRUE WHERE to_height > $1 AND from_height < $1 AND state = $2",
        &[&start, &live],
    )
    .await
    .map(drop)
}

/// Says in which run the damage is.
pub(super) fn in_run(error: StoreError, run: &RunInfo) -> StoreError {
    match error {
        StoreError::Corrupt { what, .. } => {
            corrupt(format!("index run {} ({:?}, heights {})", run.id, run.kind, run.heights), what)
        }
        error => error,
    }
}
