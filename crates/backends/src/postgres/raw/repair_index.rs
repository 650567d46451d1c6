//! Repair of the index of log terms: runs made anew from their blocks.
//!
//! A run is made anew from its top, a piece of heights at a time: one transaction adds the piece's run and lets the old one end below it, as a reorg would
//! cut it, or buries it with the last piece. So a reader finds each height in one run at every moment, a transaction is as large as a piece, and a repair
//! that is killed goes on with what is left of the old run. What a piece holds was read before: the transaction demands under the head's lock and the runs' lock that the blocks
//! are the same ones still, and that the run is there as it was.

use std::sync::Arc;

use cairn_core::{BlockRef, HeightRange, Parts};
use cairn_store::runs::{BuiltRun, RunBuilder, RunInfo, RunKind};
use cairn_store::{BlocksRead, RawReader, Result, StoreError};

use super::head::{self, sql};
use super::runs::{self, RunState, live_runs};
use super::tx::Tx;
use super::{PgRawStore, blocking};
use crate::index_runs::{LogTerms, PIECE_HEIGHTS, to_make};
use crate::postgres::error::corrupt;

/// Bytes of blocks that are read at once.
const READ_BYTES: u64 = 8 << 20;
/// How often it looks again at runs that maintenance merged meanwhile.
const MAX_LOOKS: u32 = 5;

/// A piece, ready to be put in its place.
struct Piece {
    run: BuiltRun,
    blocks: Vec<BlockRef>,
}

impl PgRawStore {
    /// Makes the index entries of these heights anew from their blocks, with every run that holds some of them. Returns how many runs were made
    /// anew.
    pub async fn repair_index(&self, heights: Vec<HeightRange>, terms: LogTerms) -> Result<u64> {
        self.shared.demand_writable()?;
        for _ in 0..MAX_LOOKS {
            let conn = self.shared.pool.get().await?;
            let canonical = head::read(&conn).await?.row.range();
            let targets = to_make(RunKind::LogTerm, &live_runs(&conn).await?, canonical, &heights);
            drop(conn);
            let mut moved = false;
            for target in &targets {
                moved |= !self.make_anew(target, &terms).await?;
            }
            if !moved {
                return Ok(targets.len() as u64);
            }
        }
        Err(StoreError::Busy("index runs were merged while they were made anew; try again".into()))
    }

    /// `false`: the run is no longer there as it was.
    async fn make_anew(&self, target: &RunInfo, terms: &LogTerms) -> Result<bool> {
        let mut pieces: Vec<HeightRange> = target.heights.chunks(PIECE_HEIGHTS).collect();
        // From the top, since a run can be cut there alone.
        while let Some(heights) = pieces.pop() {
            let piece = Arc::new(self.build(heights, terms).await?);
            let (target, is_last) = (*target, pieces.is_empty());
            let swapped = self
                .shared
                .commit("repair_index", |tx| {
                    let piece = piece.clone();
                    Box::pin(async move { swap(tx, &target, &piece, is_last).await })
                })
                .await?;
            if !swapped {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn build(&self, heights: HeightRange, terms: &LogTerms) -> Result<Piece> {
        let mut builder = RunBuilder::new(RunKind::LogTerm, heights);
        let (mut blocks, mut at) = (Vec::new(), heights.start());
        while at < heights.end() {
            let snapshot = self.snapshot().await?;
            let rest = HeightRange::new(at, heights.end());
            if rest.intersect(snapshot.head().range()) != rest {
                return Err(StoreError::Busy(format!(
                    "heights {rest} are not all stored; their index is repaired when they are"
                )));
            }
            let BlocksRead { blocks: read, next } =
                snapshot.blocks(rest, Parts::RECEIPTS, READ_BYTES).await?;
            drop(snapshot);
            at = next;
            blocks.extend(read.iter().map(|block| block.facts.block_ref()));
            let terms = terms.clone();
            builder = blocking(move || {
                for block in &read {
                    let place = || format!("receipts, height {}", block.facts.height);
                    for term in terms(block).map_err(|error| corrupt(place(), error))? {
                        builder.push(term, block.facts.height, 0)?;
                    }
                }
                Ok(builder)
            })
            .await?;
        }
        Ok(Piece { run: blocking(move || builder.finish()).await?, blocks })
    }
}

/// Puts a piece in the place of the top of `target`, or into a gap. `false`: the runs are not as they were.
async fn swap(tx: &Tx, target: &RunInfo, piece: &Piece, is_last: bool) -> Result<bool> {
    let head = head::lock(tx).await?;
    head.demand_no_purge()?;
    runs::lock(tx).await?;
    demand_same_blocks(tx, head.row.range(), piece).await?;
    let heights = piece.run.heights;
    let mut there = live_runs(tx.conn()).await?;
    there.retain(|run| !run.heights.intersect(heights).is_empty());
    let as_it_was = match &there[..] {
        [] => target.id == 0,
        [run] => {
            run.id == target.id
                && run.heights.end() == heights.end()
                && run.heights.start() == target.heights.start()
        }
        _ => false,
    };
    if !as_it_was {
        return Ok(false);
    }
    if target.id != 0 && is_last {
        runs::set_state(tx, target.id, RunState::Dead).await?;
    } else if target.id != 0 {
        tx.execute(
            "UPDATE raw.runs SET to_height = $2, is_cut = TRUE WHERE id = $1",
            &[&(target.id as i64), &sql(heights.start())],
        )
        .await?;
    }
    runs::insert_run(tx, &piece.run, 0).await?;
    Ok(true)
}

/// A reorg may have taken blocks away since they were read.
async fn demand_same_blocks(tx: &Tx, canonical: HeightRange, piece: &Piece) -> Result<()> {
    let heights: Vec<i64> = piece.blocks.iter().map(|block| sql(block.height)).collect();
    let ids: Vec<Vec<u8>> = piece.blocks.iter().map(|block| block.id.0.to_vec()).collect();
    let row = tx
        .query_one(
            "SELECT count(*) FROM unnest($1::bigint[], $2::bytea[]) AS w (height, id) \
             JOIN raw.blocks b ON b.height = w.height AND b.id = w.id \
             WHERE w.height >= $3 AND w.height < $4",
            &[&heights, &ids, &sql(canonical.start()), &sql(canonical.end())],
        )
        .await?;
    if head::get_u64(&row, 0)? == piece.blocks.len() as u64 {
        return Ok(());
    }
    Err(StoreError::Busy(format!(
        "a reorg took blocks of heights {} away while their index was made anew",
        piece.run.heights
    )))
}
