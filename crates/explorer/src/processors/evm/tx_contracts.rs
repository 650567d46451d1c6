//! `tx_contracts_worker`: which contracts a transaction touched, and how.
//!
//! It follows `token_worker`, as the reliability document wants it, and reads the same logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::Address;
use cairn_core::{Parts, StoredBlock};
use cairn_evm::DecodedTx;
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};

use super::EvmBlocks;
use super::moves::Moves;
use crate::names::{TOKEN_WORKER, TX_CONTRACTS_WORKER};
use crate::processors::Settings;
use crate::tables::transactions::{TX_CONTRACTS, TxContract};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TX_CONTRACTS_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TX_CONTRACTS],
};

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TxContractsWorker { blocks: EvmBlocks::of(settings) })))
}

/// The tags, in the order in which they are written.
const TAGS: [&str; 5] = ["call", "create", "log", "ft", "nft"];
const CALL: usize = 0;
const CREATE: usize = 1;
const LOG: usize = 2;
const FT: usize = 3;
const NFT: usize = 4;

struct TxContractsWorker {
    blocks: EvmBlocks,
}

impl Mapper for TxContractsWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for (tx, moves) in decoded.with_moves() {
            let mut touched = Touched::new();
            touch(&mut touched, tx, moves);
            for (contract, tags) in touched {
                let row = TxContract {
                    block_height: block.facts.height.get(),
                    transaction_id: tx.id.0.to_vec().into(),
                    contract_address: super::bytes(contract),
                    contract_name: String::new(),
                    transaction_index: tx.index,
                    block_timestamp_ms: block.facts.timestamp_ms,
                    tags: words(tags),
                };
                out.row(&TX_CONTRACTS, row.to_row());
            }
        }
        Ok(())
    }
}

/// Contracts with what happened to them.
pub(in crate::processors) type Touched = BTreeMap<Address, Tags>;

/// Which of the tags are set.
pub(in crate::processors) type Tags = [bool; TAGS.len()];

/// Their words, separated by commas.
pub(in crate::processors) fn words(tags: Tags) -> String {
    let set = TAGS.iter().zip(tags).filter(|(_, is_set)| *is_set);
    set.map(|(tag, _)| *tag).collect::<Vec<_>>().join(",")
}

/// Adds the contracts that a transaction touched.
pub(in crate::processors) fn touch(touched: &mut Touched, tx: &DecodedTx, moves: &Moves) {
    let mut tag = |contract: Address, tag: usize| touched.entry(contract).or_default()[tag] = true;
    let has_input = tx.input.as_ref().is_some_and(|input| !input.is_empty());
    if let Some(called) = tx.to.address().filter(|_| has_input) {
        tag(called, CALL);
    }
    if let Some(created) = tx.created_contract() {
        tag(created, CREATE);
    }
    for log in &tx.receipt.logs {
        tag(log.address, LOG);
    }
    for placed in &moves.placed {
        tag(placed.token, if placed.moved.kind.is_nft() { NFT } else { FT });
    }
}
