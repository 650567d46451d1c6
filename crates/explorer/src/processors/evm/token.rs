//! `token_worker`: token events as `ft_transfers` and `nft_transfers`.
//!
//! It is the one worker that reports malformed token events (E24); others that read the same logs pass over them.

use std::sync::Arc;

use cairn_core::{Parts, StoredBlock};
use cairn_evm::{DecodedLog, DecodedTx};
use cairn_pipeline::derive::processor::{
    FaultLabels, Malformed, Mapper, Output, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{MAX_RAW_DATA_BYTES, Severity};

use super::EvmBlocks;
use crate::decode::evm::DecodeError;
use crate::names::TOKEN_WORKER;
use crate::processors::Settings;
use crate::tables::transfers::{EventPlace, FT_TRANSFERS, NFT_TRANSFERS};

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: TOKEN_WORKER, version: 3, upstreams: &[], tables: &[&FT_TRANSFERS, &NFT_TRANSFERS] };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TokenWorker { blocks: EvmBlocks::of(settings) })))
}

struct TokenWorker {
    blocks: EvmBlocks,
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
        for (tx, moves) in decoded.with_moves() {
            for placed in &moves.placed {
                let place = |sub_index| EventPlace {
                    block_height: block.facts.height.get(),
                    transaction_id: tx.id.0.to_vec().into(),
                    event_index: placed.log_index,
                    sub_index,
                    transaction_index: tx.index,
                    block_timestamp_ms: block.facts.timestamp_ms,
                };
                for (table, row) in placed.rows(place) {
                    out.row(table, row);
                }
            }
            for error in &moves.malformed {
                out.malformed(malformed(tx, error));
            }
        }
        Ok(())
    }
}

fn malformed(tx: &DecodedTx, error: &DecodeError) -> Malformed {
    let log = tx.receipt.logs.iter().find(|log| log.log_index == error.log_index);
    Malformed {
        transaction_id: tx.id.to_string(),
        severity: Severity::Warn,
        message: error.to_string(),
        raw_data: log.map(raw_data).unwrap_or_default(),
        event_index: Some(error.log_index),
        labels: labels(error),
    }
}

/// What metrics count a malformed token event under.
pub(in crate::processors) fn labels(error: &DecodeError) -> FaultLabels {
    FaultLabels {
        reason: error.reason.code(),
        contract: error.address.to_string().to_lowercase(),
        topic: error.topic0.to_string(),
    }
}

/// Topics, then data, cut.
fn raw_data(log: &DecodedLog) -> Vec<u8> {
    let mut raw: Vec<u8> = log.topics.iter().flat_map(|topic| topic.0).collect();
    let room = MAX_RAW_DATA_BYTES.saturating_sub(raw.len());
    raw.extend_from_slice(&log.data[..log.data.len().min(room)]);
    raw
}
