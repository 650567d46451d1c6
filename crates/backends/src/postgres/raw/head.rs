//! The head row, as it is stored.

use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, ChainId, Fence, Height, HeightRange};
use cairn_store::{HeadRow, PendingPurge, RAW_INGESTER, ReorgMark, Result, StoreError, StoreInfo};
use tokio_postgres::Row;

use super::tx::Tx;
use crate::postgres::error::{corrupt, db};
use crate::postgres::{PgConn, PgPool};

/// The head row with what only this backend keeps in it.
pub(super) struct Head {
    pub(super) row: HeadRow,
    /// The newest fence that was given, to the head or to a lease.
    pub(super) last_fence: u64,
    /// Rows of fills that were given up, which nobody has deleted yet.
    pub(super) discard: Option<HeightRange>,
}

/// A height as PostgreSQL keeps it. Ends of ranges may lie above every stored height.
pub(super) fn sql(height: Height) -> i64 {
    i64::try_from(height.get()).unwrap_or(i64::MAX)
}

/// A counter or length, which never is negative.
pub(super) fn get_u64(row: &Row, column: usize) -> Result<u64> {
    let number: i64 = row.try_get(column).map_err(db)?;
    u64::try_from(number).map_err(|_| {
        corrupt(
            row.columns().get(column).map_or("a column", |column| column.name()),
            format!("{number} is below 0"),
        )
    })
}

pub(super) fn get_u32(row: &Row, column: usize) -> Result<u32> {
    let number = get_u64(row, column)?;
    u32::try_from(number).map_err(|_| {
        corrupt(
            row.columns().get(column).map_or("a column", |column| column.name()),
            format!("{number} is too large"),
        )
    })
}

pub(super) fn get_height(row: &Row, column: usize) -> Result<Height> {
    get_u64(row, column).map(Height)
}

/// Bytes of a fixed length.
pub(super) fn get_array<const N: usize>(row: &Row, column: usize) -> Result<[u8; N]> {
    let bytes: &[u8] = row.try_get(column).map_err(db)?;
    array(bytes, row, column)
}

fn array<const N: usize>(bytes: &[u8], row: &Row, column: usize) -> Result<[u8; N]> {
    bytes.try_into().map_err(|_| {
        corrupt(
            row.columns().get(column).map_or("a column", |column| column.name()),
            format!("it holds {} bytes, expected {N}", bytes.len()),
        )
    })
}

pub(super) fn get_id(row: &Row, column: usize) -> Result<BlockId> {
    get_array(row, column).map(BlockId)
}

pub(super) fn get_id_opt(row: &Row, column: usize) -> Result<Option<BlockId>> {
    let bytes: Option<&[u8]> = row.try_get(column).map_err(db)?;
    bytes.map(|bytes| array(bytes, row, column).map(BlockId)).transpose()
}

/// Heights and ids that are there both or neither.
fn get_mark(row: &Row, column: usize) -> Result<Option<BlockRef>> {
    match row.try_get::<_, Option<i64>>(column).map_err(db)? {
        None => Ok(None),
        Some(_) => Ok(Some(BlockRef { height: get_height(row, column)?, id: get_id(row, column + 1)? })),
    }
}

fn get_range(row: &Row, column: usize) -> Result<Option<HeightRange>> {
    match row.try_get::<_, Option<i64>>(column).map_err(db)? {
        None => Ok(None),
        Some(_) => Ok(Some(HeightRange::new(get_height(row, column)?, get_height(row, column + 1)?))),
    }
}

pub(super) fn not_initialised() -> StoreError {
    StoreError::not_begun()
}

macro_rules! select_head {
    ($lock:literal) => {
        concat!(
            "SELECT uuid, chain_id, first_height, tip_height, tip_id, safe_height, safe_id, finalized_height, ",
            "finalized_id, reorg_id, reorg_digest, purge_from, purge_to, discard_from, discard_to, fence, last_fence, ",
            "chain_config FROM raw.head",
            $lock
        )
    };
}

/// The head row as this view has it; `None` where the store was not initialised.
pub(super) async fn find(conn: &PgConn) -> Result<Option<Head>> {
    conn.query_opt(select_head!(""), &[]).await?.map(|row| decode(&row)).transpose()
}

/// The head row as this view has it; an error where the store was not initialised.
pub(super) async fn read(conn: &PgConn) -> Result<Head> {
    find(conn).await?.ok_or_else(not_initialised)
}

/// The head row as it is now, by itself.
pub(super) async fn ask(pool: &PgPool) -> Result<HeadRow> {
    let rows = pool.ask_quickly(select_head!(""), &[]).await?;
    Ok(rows.first().map(decode).transpose()?.ok_or_else(not_initialised)?.row)
}

/// Locks the head row: the first statement of every verb that changes it.
pub(super) async fn find_locked(tx: &Tx) -> Result<Option<Head>> {
    tx.query_opt(select_head!(" FOR UPDATE"), &[]).await?.map(|row| decode(&row)).transpose()
}

/// Locks the head row; an error where the store was not initialised.
pub(super) async fn lock(tx: &Tx) -> Result<Head> {
    find_locked(tx).await?.ok_or_else(not_initialised)
}

fn decode(row: &Row) -> Result<Head> {
    let newest_reorg = ReorgMark { id: get_u64(row, 9)?, digest: get_array(row, 10)? };
    let first = match row.try_get::<_, Option<i64>>(2).map_err(db)? {
        None => None,
        Some(_) => Some(get_height(row, 2)?),
    };
    let config: &[u8] = row.try_get(17).map_err(db)?;
    Ok(Head {
        row: HeadRow {
            info: StoreInfo {
                uuid: get_array(row, 0)?,
                chain_id: ChainId(row.try_get::<_, i64>(1).map_err(db)? as u64),
                chain_config: Bytes::copy_from_slice(config),
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

    /// Writes the row, which the caller has locked, and the checkpoint that moves with it. Not the chain's configuration.
    pub(super) async fn write(&self, tx: &Tx) -> Result<()> {
        let row = &self.row;
        let mark =
            |mark: Option<BlockRef>| (mark.map(|mark| sql(mark.height)), mark.map(|mark| mark.id.0.to_vec()));
        let (tip, safe, finalized) = (mark(row.tip), mark(row.safe), mark(row.finalized));
        let bounds = |range: Option<HeightRange>| {
            (range.map(|range| sql(range.start())), range.map(|range| sql(range.end())))
        };
        let (purge, discard) = (bounds(row.pending_purge.map(|purge| purge.orphans)), bounds(self.discard));
        tx.execute(
            "UPDATE raw.head SET first_height = $1, tip_height = $2, tip_id = $3, safe_height = $4, safe_id = $5, \
             finalized_height = $6, finalized_id = $7, reorg_id = $8, reorg_digest = $9, purge_from = $10, \
             purge_to = $11, discard_from = $12, discard_to = $13, fence = $14, last_fence = $15",
            &[
                &row.first.map(sql),
                &tip.0,
                &tip.1,
                &safe.0,
                &safe.1,
                &finalized.0,
                &finalized.1,
                &(row.newest_reorg.id as i64),
                &&row.newest_reorg.digest[..],
                &purge.0,
                &purge.1,
                &discard.0,
                &discard.1,
                &(row.fence.0 as i64),
                &(self.last_fence as i64),
            ],
        )
        .await?;
        let Some(tip) = row.tip else { return Ok(()) };
        tx.execute(
            "INSERT INTO raw.checkpoints AS c (service_name, last_height, last_id, updated_at) \
             VALUES ($1, $2, $3, clock_timestamp()) ON CONFLICT (service_name) \
             DO UPDATE SET last_height = excluded.last_height, last_id = excluded.last_id, updated_at = excluded.updated_at \
             WHERE (c.last_height, c.last_id) <> (excluded.last_height, excluded.last_id)",
            &[&RAW_INGESTER, &sql(tip.height), &&tip.id.0[..]],
        )
        .await?;
        Ok(())
    }
}

/// Refuses a store in which the checkpoint and the head row disagree (law 8).
pub(super) async fn demand_checkpoint(conn: &PgConn) -> Result<()> {
    let row = conn
        .query_one(
            "SELECT NOT EXISTS (SELECT FROM raw.head h FULL JOIN \
               (SELECT last_height, last_id FROM raw.checkpoints WHERE service_name = $1) c ON TRUE \
             WHERE (h.tip_height, h.tip_id) IS DISTINCT FROM (c.last_height, c.last_id))",
            &[&RAW_INGESTER],
        )
        .await?;
    if row.try_get(0).map_err(db)? {
        return Ok(());
    }
    Err(corrupt("the checkpoint raw_ingester", "it is not the head row's tip"))
}
