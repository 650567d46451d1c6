//! Repair: heights whose rows don't fit each other, rows that are gone written again, and index runs made anew from their blocks.
//!
//! Looking is a snapshot, for which nobody who writes waits (law 1); each mend is one transaction. It demands no fence: it may run beside the ingester of its
//! process, works on canonical heights alone and changes nothing that a reader may not see already. The caller bounds the range; index runs are made anew
//! whole, so that one transaction may be as large as the largest run that is damaged, while memory holds a piece of it.

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange, Parts, RawBlock};
use cairn_store::runs::{RunBuilder, RunInfo, RunKind};
use cairn_store::{HeadRow, RawReplacer, Replacement, Result, StoreError, is_to_replace};
use rusqlite::{Connection, params};

use super::SqliteStore;
use super::blocks;
use super::codec::Unpacker;
use super::error::{corrupt, db};
use super::head::{self, get_height, sql};
use super::index::{self, RunState};
use super::writer::EncodedBatch;
use crate::index_runs::{LogTerms, PIECE_HEIGHTS, to_make};

/// The most heights that one call looks at.
const MAX_HEIGHTS: u64 = 100_000;

/// What a look at the rows of blocks found. By height.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Damage {
    /// Heights that have no block, or not as many transactions as the block says, or lack its receipts.
    pub damaged: Vec<Height>,
    /// Heights of blocks that have receipts and say that they have no logs. A query for all logs passes over them by that word, and only who can read the
    /// receipts knows whether it is true.
    pub silent: Vec<Height>,
}

impl SqliteStore {
    /// What is wrong with the rows of the canonical heights of `range`, or may be.
    pub async fn find_damage(&self, range: HeightRange) -> Result<Damage> {
        demand_bounded(range)?;
        let max_ms = self.shared.options.snapshot_max_ms;
        let (snapshot, head) = self.shared.pool.begin(max_ms, head::read).await?;
        let range = range.intersect(head.row.range());
        snapshot.run(move |from, _| damage(&from.conn, range)).await
    }

    /// Writes the rows of a canonical block again, which was fetched and verified: its id has to be the stored one, or fit between its stored
    /// neighbours where its row is gone. Its index entries stay: see [`SqliteStore::repair_index`].
    pub async fn repair_block(&self, block: RawBlock) -> Result<()> {
        self.write(move |shared| {
            let encoded = EncodedBatch::new(vec![block], shared.options.compression_level)?;
            shared.commit_clean("repair_block", |tx, _| repair_block(tx, &encoded))
        })
        .await
    }

    /// Makes the index entries of these heights anew from their blocks, with every run that holds some of them. Returns how many runs were
    /// made anew.
    pub async fn repair_index(&self, heights: Vec<HeightRange>, terms: LogTerms) -> Result<u64> {
        self.write(move |shared| {
            shared.commit_clean("repair_index", |tx, unpacker| {
                let head = head::read(tx)?;
                if head.row.pending_purge.is_some() {
                    return Err(StoreError::Busy(
                        "a reorg's blocks are being moved; repair the index after it".into(),
                    ));
                }
                let mut made = 0;
                for kind in RunKind::ALL {
                    let runs = index::live_runs(tx, kind)?;
                    for run in to_make(kind, &runs, head.row.range(), &heights) {
                        make_anew(tx, unpacker, kind, &run, &terms)?;
                        made += 1;
                    }
                }
                Ok(made)
            })
        })
        .await
    }
}

#[async_trait]
impl RawReplacer for SqliteStore {
    async fn replace_block(&self, replacement: Replacement) -> Result<()> {
        replacement.check()?;
        self.write(move |shared| {
            let Replacement { block, read } = replacement;
            let encoded = EncodedBatch::new(vec![block.clone()], shared.options.compression_level)?;
            shared.commit_clean("replace_block", |tx, unpacker| {
                let at = block.block_ref();
                demand_in_chain("replace", &head::read(tx)?.row, at)?;
                let stored = blocks::read(tx, unpacker, at.height, Parts::all())?;
                if is_to_replace(&block, &read, stored.as_ref())? {
                    blocks::delete(tx, HeightRange::one(at.height))?;
                    blocks::insert_all(tx, encoded.blocks.iter())?;
                }
                Ok(())
            })
        })
        .await
    }
}

fn demand_bounded(range: HeightRange) -> Result<()> {
    if range.len() <= MAX_HEIGHTS {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "repair: {} heights at once, at most {MAX_HEIGHTS}; ask for them one part after the other",
        range.len()
    )))
}

fn damage(conn: &Connection, range: HeightRange) -> Result<Damage> {
    let bounds = params![sql(range.start()), sql(range.end())];
    let mut found = Damage::default();
    let mut at = range.start();
    for stored in blocks::stored_heights(conn, range)? {
        found.damaged.extend(HeightRange::new(at, stored).iter());
        at = stored.next();
    }
    if at < range.end() {
        found.damaged.extend(HeightRange::new(at, range.end()).iter());
    }
    let mut statement = conn
        .prepare_cached(
            "SELECT b.height, b.tx_count * 32 <> coalesce(length(t.ids), 0) OR (b.log_count > 0 AND r.height IS NULL) AS is_wrong \
             FROM blocks b LEFT JOIN transactions t ON t.height = b.height \
             LEFT JOIN receipts r ON r.height = b.height WHERE b.height >= ?1 AND b.height < ?2 \
             AND (is_wrong OR (b.log_count = 0 AND r.height IS NOT NULL)) ORDER BY b.height",
        )
        .map_err(db)?;
    let rows = statement.query_map(bounds, |row| Ok((get_height(row, 0)?, row.get(1)?))).map_err(db)?;
    for row in rows {
        match row.map_err(db)? {
            (height, true) => found.damaged.push(height),
            (height, false) => found.silent.push(height),
        }
    }
    found.damaged.sort_unstable();
    Ok(found)
}

/// A block inside the chain.
fn demand_in_chain(verb: &str, head: &HeadRow, block: BlockRef) -> Result<()> {
    match head.range().contains(block.height) {
        true => Ok(()),
        false => {
            Err(StoreError::Invalid(format!("{verb}: block {block} is outside the chain {}", head.range())))
        }
    }
}

fn repair_block(conn: &Connection, batch: &EncodedBatch) -> Result<()> {
    let head = head::read(conn)?.row;
    let facts = batch.first().facts;
    let block = facts.block_ref();
    demand_in_chain("repair", &head, block)?;
    let conflict = |stored| StoreError::Conflict { height: block.height, stored, offered: block.id };
    let named = head.named_at(block.height);
    if let Some(stored) = blocks::row_ref(conn, block.height)?.or(named).filter(|stored| *stored != block) {
        return Err(conflict(stored.id));
    }
    if let Some(below) = block.height.prev().filter(|below| head.range().contains(*below))
        && let Some(below) = blocks::row_ref(conn, below)?.filter(|below| below.id != facts.parent_id)
    {
        return Err(StoreError::DoesNotLink { first: block, parent_id: facts.parent_id, expected: below });
    }
    if let Some(above) = blocks::read_facts(conn, block.height.next())?
        && head.range().contains(above.height)
        && above.parent_id != block.id
    {
        return Err(conflict(above.parent_id));
    }
    blocks::delete(conn, HeightRange::one(block.height))?;
    blocks::insert_all(conn, batch.blocks.iter())
}

/// Puts runs that are made from the blocks in the place of one.
fn make_anew(
    conn: &Connection,
    unpacker: &Unpacker,
    kind: RunKind,
    run: &RunInfo,
    terms: &LogTerms,
) -> Result<()> {
    if run.id != 0 {
        index::set_state(conn, run.id, RunState::Dead)?;
    }
    let parts = match kind {
        RunKind::BlockId => Parts::empty(),
        RunKind::TxId => Parts::TRANSACTIONS,
        RunKind::LogTerm => Parts::RECEIPTS,
    };
    for piece in run.heights.chunks(PIECE_HEIGHTS) {
        let mut builder = RunBuilder::new(kind, piece);
        for height in blocks::stored_heights(conn, piece)? {
            let Some(block) = blocks::read(conn, unpacker, height, parts)? else { continue };
            match kind {
                RunKind::BlockId => builder.push(block.facts.id.index_key(), height, 0)?,
                RunKind::TxId => {
                    for (index, tx) in (0..).zip(&block.transactions) {
                        builder.push(tx.id.index_key(), height, index)?;
                    }
                }
                RunKind::LogTerm => {
                    let place = || format!("receipts, height {height}");
                    for term in terms(&block).map_err(|error| corrupt(place(), error))? {
                        builder.push(term, height, 0)?;
                    }
                }
            }
        }
        index::insert_run(conn, &builder.finish()?, 0)?;
    }
    Ok(())
}
