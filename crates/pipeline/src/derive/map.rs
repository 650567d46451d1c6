//! One chunk of a mapper: raw blocks in, event rows out.

use std::sync::Arc;

use cairn_core::{BlockFacts, HeightRange};
use cairn_store::derived::{ChunkCommit, LeaseKind, NewError, TableRows, WorkerLease};

use super::context::{Context, Prepared};
use super::error::DeriveError;
use super::processor::{Malformed, Mapper, Output, ServiceInfo};
use super::read::read_raw;

pub(super) async fn prepare(
    context: &Context,
    mapper: &Arc<dyn Mapper>,
    lease: &WorkerLease,
    heights: HeightRange,
) -> Result<Prepared, DeriveError> {
    let parts = mapper.parts();
    // What is made again is made of what is stored now.
    let recent = Some(&context.recent).filter(|_| lease.kind == LeaseKind::Index);
    let max_bytes = context.options.chunk_bytes;
    let mut chunk = read_raw(&context.raw, &context.app, heights, parts, max_bytes, recent).await?;
    let service = mapper.service();
    let blocks = std::mem::take(&mut chunk.blocks);
    let last_id = blocks.last().map(|block| block.facts.id);
    let mapping = mapper.clone();
    let (rows, malformed) = context
        .compute(move || {
            let mut rows: Vec<TableRows> = Vec::new();
            let mut errors = Vec::new();
            for block in &blocks {
                let mut out = Output::default();
                mapping.map(block, &mut out)?;
                let (made, malformed) = out.into_parts();
                for (table, made) in made {
                    match rows.iter_mut().find(|rows| rows.table == table) {
                        Some(rows) => rows.rows.extend(made),
                        None => rows.push(TableRows { table, rows: made }),
                    }
                }
                errors.extend(malformed.into_iter().map(|what| new_error(service, &block.facts, what)));
            }
            Ok((rows, errors))
        })
        .await?;
    let replaces = match lease.kind {
        LeaseKind::Index => Vec::new(),
        LeaseKind::Reindex => service.tables.iter().map(|table| table.name).collect(),
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
        finalized: chunk.finalized_exclusive,
        ttl_ms: context.options.lease_ttl_ms,
    };
    Ok(Prepared { commit, malformed })
}

/// What a processor could not understand of a block, as the error log has it.
pub(super) fn new_error(service: &ServiceInfo, block: &BlockFacts, what: Malformed) -> NewError {
    NewError {
        service: service.name.into(),
        height: block.height,
        block_id: block.id,
        transaction_id: what.transaction_id,
        severity: what.severity,
        message: what.message,
        raw_data: what.raw_data,
        raw_ref: None,
    }
}
