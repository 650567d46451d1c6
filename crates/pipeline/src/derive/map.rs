//! One chunk of a mapper: raw blocks in, event rows out.
//!
//! Rows are bounded by what one block may make and by the bytes of one chunk: a chunk whose blocks make more ends earlier. A block that can't be processed fails the chunk; with `quarantine` it is passed over without rows, and reported by name: a hole that is known.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{BlockId, Height, HeightRange, StoredBlock};
use cairn_store::derived::{ChunkCommit, LeaseKind, TableRows, WorkerLease};

use super::context::{Context, Prepared};
use super::correct::{self, Again};
use super::error::DeriveError;
use super::guard::map_block;
use super::processor::Mapper;
use super::read::read_raw;
use super::report::{self, Report};
use super::steps::{self, Steps};

/// What was made of a chunk's blocks.
struct Made {
    rows: Vec<TableRows>,
    malformed: Vec<Report>,
    quarantined: Option<Height>,
    /// The last block that was looked at.
    last: Option<BlockId>,
    /// Where the chunk ends before all its blocks were looked at.
    cut: Option<Height>,
    /// Where state is corrected: the blocks without their parts.
    blocks: Vec<StoredBlock>,
}

pub(super) async fn prepare(
    context: &Context,
    mapper: &Arc<dyn Mapper>,
    lease: &WorkerLease,
    heights: HeightRange,
    quarantine: bool,
) -> Result<Prepared, DeriveError> {
    let mut steps = Steps::begin(mapper.service());
    let parts = mapper.parts();
    // What is made again is made of what is stored now.
    let recent = Some(&context.recent).filter(|_| lease.kind == LeaseKind::Index);
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(context, heights, parts, max_bytes, recent).await?;
    steps.done(steps::READ);
    let service = mapper.service();
    let blocks = std::mem::take(&mut chunk.blocks);
    let mapping = mapper.clone();
    let max_output_bytes = context.options.chunk_output_bytes;
    let corrects_state = lease.corrects_state;
    let made = context
        .compute(move || {
            let mut rows: Vec<TableRows> = Vec::new();
            let mut errors = Vec::new();
            let mut quarantined = None;
            let (mut bytes, mut last, mut cut) = (0, None, None);
            for (at, block) in blocks.iter().enumerate() {
                last = Some(block.facts.id);
                let out = match map_block(&*mapping, block) {
                    Ok(out) => out,
                    Err(error) if quarantine => {
                        errors.push(report::of_block(service, &error));
                        quarantined = Some(error.block.height);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                bytes += out.size_bytes();
                let (made, malformed) = out.into_parts();
                for (table, made) in made {
                    match rows.iter_mut().find(|rows| rows.table == table) {
                        Some(rows) => rows.rows.extend(made),
                        None => rows.push(TableRows { table, rows: made }),
                    }
                }
                errors.extend(report::of_block_events(service, &block.facts, malformed));
                if bytes >= max_output_bytes && at + 1 < blocks.len() {
                    cut = Some(block.facts.height.next());
                    break;
                }
            }
            let blocks = if corrects_state { blocks.iter().map(without_parts).collect() } else { Vec::new() };
            Ok(Made { rows, malformed: errors, quarantined, last, cut, blocks })
        })
        .await?;
    steps.done(steps::COMPUTE);
    let Made { rows, malformed, quarantined, last: last_id, cut, blocks } = made;
    if let Some(end) = cut {
        chunk.cut(end);
    }
    let replaces = match lease.kind {
        LeaseKind::Index => Vec::new(),
        // What was made of the block before is better than nothing.
        LeaseKind::Reindex if quarantined.is_some() => Vec::new(),
        LeaseKind::Reindex => service.tables.iter().map(|table| table.name).collect(),
    };
    let (corrections, finalized) = match corrects_state && !replaces.is_empty() {
        true => {
            let again = Again { service: service.name, chunk: &chunk, blocks: &blocks, rows: &rows };
            correct::corrections(context, &again).await?
        }
        false => (Vec::new(), chunk.finalized_exclusive),
    };
    let commit = ChunkCommit {
        chunk: chunk.heights,
        parent_id: chunk.parent_id,
        last_id,
        read: chunk.read,
        folded_at: None,
        rows,
        states: Vec::new(),
        replaces,
        corrections,
        quarantined: quarantined.into_iter().collect(),
        finalized,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed, quarantined })
}

/// A block's facts alone.
fn without_parts(block: &StoredBlock) -> StoredBlock {
    StoredBlock {
        facts: block.facts,
        transactions: Vec::new(),
        header: Bytes::new(),
        body: Bytes::new(),
        receipts: Bytes::new(),
        extras: Bytes::new(),
        traces: None,
    }
}
