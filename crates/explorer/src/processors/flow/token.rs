//! `token_worker`: token events as `ft_transfers`, `nft_transfers`, `fee_transfers` and `nft_resources`, those of the EVM side too.
//!
//! It is the one worker that reports malformed token events; others that read the same events pass over them.

use std::sync::Arc;

use cairn_core::{Parts, StoredBlock};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};

use super::{FlowBlocks, moves};
use crate::decode::flow::FtKind;
use crate::names::TOKEN_WORKER;
use crate::processors::Settings;
use crate::tables::flow::fees::FEE_TRANSFERS;
use crate::tables::flow::nfts::NFT_RESOURCES;
use crate::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TOKEN_WORKER,
    version: 6,
    upstreams: &[],
    tables: &[&FT_TRANSFERS, &NFT_TRANSFERS, &FEE_TRANSFERS, &NFT_RESOURCES],
};

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TokenWorker { blocks: FlowBlocks::of(settings)? })))
}

struct TokenWorker {
    blocks: FlowBlocks,
}

impl Mapper for TokenWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for placed in decoded.each() {
            let (index, tx) = (placed.index, placed.tx);
            let moves = placed.moves();
            for moved in &moves.fungible {
                if let Some(row) = moves::ft_row(block, index, tx, moved) {
                    let table = if moved.kind == FtKind::Fee { &FEE_TRANSFERS } else { &FT_TRANSFERS };
                    out.row(table, row.to_row());
                }
            }
            for moved in &moves.non_fungible {
                if let Some(row) = moves::nft_row(block, index, tx, moved) {
                    out.row(&NFT_TRANSFERS, row.to_row());
                }
                if let Some(row) = moves::resource_row_of(block, index, tx, moved) {
                    out.row(&NFT_RESOURCES, row);
                }
            }
            for destroyed in &moves.destroyed {
                out.row(&NFT_RESOURCES, moves::destroyed_row(block, index, tx, destroyed));
            }
            for evm in placed.evm() {
                evm.transfers(block, placed, out);
            }
            for event in &moves.malformed {
                let message = &event.message;
                out.malformed(super::malformed_at(tx, event.event_index, &event.event_type, message));
            }
        }
        Ok(())
    }
}
