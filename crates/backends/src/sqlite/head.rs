//! The head row, as it is stored.

use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, ChainId, Fence, Height, HeightRange};
use cairn_store::{HeadRow, PendingPurge, RAW_INGESTER, ReorgMark, Result, StoreError, StoreInfo};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::error::{corrupt, db};

/// The head row with what only this backend keeps in it.
pub(super) struct Head {
    pub(super) row: HeadRow,
    /// The newest fence that was given, to the head or to a lease.
    pub(super) last_fence: u64,
    /// Rows of a lease that was given up, which nobody has deleted yet.
    pub(super) discard: Option<HeightRange>,
}

/// A height as SQLite keeps it. Ends of ranges may lie above every stored height.
pub(super) fn sql(height: Height) -> i64 {
    i64::try_from(height.get()).unwrap_or(i64::MAX)
}

pub(super) fn get_height(row: &Row<'_>, column: usize) -> rusqlite::Result<Height> {
    let height: i64 = row.get(column)?;
    u64::try_from(height).map(Height).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, height))
}

/// Numbers that never are negative: counters, lengths.
pub(super) fn get_u64(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    get_height(row, column).map(Height::get)
}

pub(super) fn get_u32(row: &Row<'_>, column: usize) -> rusqlite::Result<u32> {
    row.get(column)
}

pub(super) fn get_id(row: &Row<'_>, column: usize) -> rusqlite::Result<BlockId> {
    row.get(column).map(BlockId)
}

/// Heights and ids that are there both or neither.
fn get_mark(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<BlockRef>> {
    match row.get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(_) => Ok(Some(BlockRef { height: get_height(row, column)?, id: get_id(row, column + 1)? })),
    }
}

fn get_range(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<HeightRange>> {
    match row.get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(_) => Ok(Some(HeightRange::new(get_height(row, column)?, get_height(row, column + 1)?))),
    }
}

pub(super) fn not_initialised() -> StoreError {
    StoreError::not_begun()
}

/// The head row; an error where the store was not initialised.
pub(super) fn read(conn: &Connection) -> Result<Head> {
    find(conn)?.ok_or_else(not_initialised)
}

/// The head row; `None` where the store was not initialised.
pub(super) fn find(conn: &Connection) -> Result<Option<Head>> {
    let mut statement = conn
        .prepare_cached(
            "SELECT uuid, chain_id, first_height, tip_height, tip_id, safe_height, safe_id, finalized_height, \
             finalized_id, reorg_id, reorg_digest, purge_from, purge_to, discard_from, discard_to, fence, last_fence, \
             (SELECT data FROM chain_config) FROM head",
        )
        .map_err(db)?;
    let head = statement.query_row([], |row| {
        let newest_reorg = ReorgMark { id: get_u64(row, 9)?, digest: row.get(10)? };
        let first = match row.get::<_, Option<i64>>(2)? {
            None => None,
            Some(_) => Some(get_height(row, 2)?),
        };
        let config: Option<Vec<u8>> = row.get(17)?;
        Ok(Head {
            row: HeadRow {
                info: StoreInfo {
                    uuid: row.get(0)?,
                    chain_id: ChainId(row.get::<_, i64>(1)? as u64),
                    chain_config: config.map_or_else(Bytes::new, Bytes::from),
                },
                first,
                tip: get_mark(row, 3)?,
                safe: get_mark(row, 5)?,
                finalized: get_mark(row, 7)?,
                newest_reorg,
                pending_purge: get_range(row, 11)?
                    .map(|orphans| PendingPurge { reorg_id: newest_reorg.id, orphans }),
                fence: Fence(get_u64(row, 15)?),
            },
            last_fence: get_u64(row, 16)?,
            discard: get_range(row, 13)?,
        })
    });
    head.optional().map_err(db)
}

impl Head {
    /// Law 5: a commit under any other fence than the one in force fails.
    pub(super) fn demand_fence(&self, held: Fence) -> Result<()> {
        let current = self.row.fence;
        if current == held {
            Ok(())
        } else {
            Err(StoreError::Fenced { what: "the head".into(), held, current })
        }
    }

    pub(super) fn demand_no_purge(&self) -> Result<()> {
        match self.row.pending_purge {
            None => Ok(()),
            Some(purge) => Err(StoreError::PurgePending {
                reorg_id: purge.reorg_id,
                common: purge.orphans.start().saturating_sub(1),
            }),
        }
    }

    pub(super) fn next_fence(&mut self) -> Fence {
        self.last_fence += 1;
        Fence(self.last_fence)
    }

    /// Writes the row, and the checkpoint that moves with it. Not the chain's configuration.
    pub(super) fn write(&self, conn: &Connection) -> Result<()> {
        let row = &self.row;
        let mark = |mark: Option<BlockRef>| (mark.map(|mark| sql(mark.height)), mark.map(|mark| mark.id.0));
        let (tip, safe, finalized) = (mark(row.tip), mark(row.safe), mark(row.finalized));
        let purge = row.pending_purge.map(|purge| purge.orphans);
        let mut statement = conn
            .prepare_cached(
                "INSERT INTO head VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) \
                 ON CONFLICT DO UPDATE SET first_height = ?3, tip_height = ?4, tip_id = ?5, safe_height = ?6, \
                 safe_id = ?7, finalized_height = ?8, finalized_id = ?9, reorg_id = ?10, reorg_digest = ?11, \
                 purge_from = ?12, purge_to = ?13, discard_from = ?14, discard_to = ?15, fence = ?16, last_fence = ?17",
            )
            .map_err(db)?;
        statement
            .execute(params![
                row.info.uuid,
                row.info.chain_id.0 as i64,
                row.first.map(sql),
                tip.0,
                tip.1,
                safe.0,
                safe.1,
                finalized.0,
                finalized.1,
                row.newest_reorg.id as i64,
                row.newest_reorg.digest,
                purge.map(|range| sql(range.start())),
                purge.map(|range| sql(range.end())),
                self.discard.map(|range| sql(range.start())),
                self.discard.map(|range| sql(range.end())),
                row.fence.0 as i64,
                self.last_fence as i64,
            ])
            .map_err(db)?;
        let Some(tip) = row.tip else { return Ok(()) };
        conn.prepare_cached(
            "INSERT INTO checkpoints (service_name, height, id, updated_at) \
             VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER)) \
             ON CONFLICT DO UPDATE SET height = excluded.height, id = excluded.id, updated_at = excluded.updated_at \
             WHERE (height, id) <> (excluded.height, excluded.id)",
        )
        .and_then(|mut statement| statement.execute(params![RAW_INGESTER, sql(tip.height), tip.id.0]))
        .map_err(db)?;
        Ok(())
    }
}

/// Refuses a store in which the checkpoint and the head row disagree (law 8).
pub(super) fn demand_checkpoint(conn: &Connection, head: &Head) -> Result<()> {
    let checkpoint = conn
        .query_row("SELECT height, id FROM checkpoints WHERE service_name = ?1", [RAW_INGESTER], |row| {
            Ok(BlockRef { height: get_height(row, 0)?, id: get_id(row, 1)? })
        })
        .optional()
        .map_err(db)?;
    if checkpoint == head.row.tip {
        return Ok(());
    }
    Err(corrupt("the checkpoint raw_ingester", "it is not the head row's tip"))
}
