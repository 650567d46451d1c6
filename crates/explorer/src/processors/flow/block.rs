//! A block as its mappers see it: decoded once for all of them, and what several read of its transactions read once.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use cairn_core::StoredBlock;
use cairn_flow::cdc::CdcValue;
use cairn_flow::evm::{EvmTransaction, Executed, decode_payload};
use cairn_flow::{DecodedBlock, DecodedEvent, DecodedTx, EventType, FlowError, Network};
use cairn_pipeline::derive::processor::ProcessError;

use super::evm_tx::EvmTx;
use crate::decode::evm::transfers::MAX_BLOCK_CONSECUTIVE_IDS;
use crate::decode::evm::wrapped::WrappedTokens;
use crate::decode::flow::TokenMoves;
use crate::processors::Settings;
use crate::processors::shared::Shared;

/// The blocks of a network, as the mappers of this process share them.
#[derive(Clone)]
pub struct FlowBlocks {
    pub(super) network: Network,
    wrapped: WrappedTokens,
    shared: Arc<Shared<FlowBlock>>,
}

/// A decoded block.
pub struct FlowBlock {
    network: Network,
    wrapped: WrappedTokens,
    decoded: DecodedBlock,
    /// One for each transaction.
    read: Vec<ReadTx>,
    /// Of each transaction those of the EVM that it executed. All at once: what ranges of ids one may name depends on those before it in the block.
    evm: OnceLock<Vec<Vec<EvmTx>>>,
}

/// What was read of a transaction so far.
#[derive(Default)]
struct ReadTx {
    moves: OnceLock<TokenMoves>,
    executions: OnceLock<Vec<Execution>>,
}

/// An EVM transaction that a transaction executed.
pub(super) struct Execution {
    /// The event's place among the transaction's.
    at: usize,
    /// What the event says; not read: it is malformed.
    pub executed: Result<(Executed, Result<EvmTransaction, FlowError>), FlowError>,
}

impl FlowBlocks {
    /// `None`: there are no processors without a network.
    pub(super) fn of(settings: &Settings) -> Option<Self> {
        let (wrapped, shared) = (settings.wrapped.clone(), settings.flow_blocks.clone());
        Some(FlowBlocks { network: settings.network?, wrapped, shared })
    }

    /// Decodes the parts of a block that were read.
    pub(super) fn get(&self, stored: &StoredBlock) -> Result<Arc<FlowBlock>, ProcessError> {
        self.shared.get(stored, |stored| {
            let decoded = DecodedBlock::decode(stored).map_err(|error| ProcessError {
                block: stored.facts.block_ref(),
                message: error.to_string(),
            })?;
            let read = decoded.transactions.iter().map(|_| ReadTx::default()).collect();
            let (network, wrapped) = (self.network, self.wrapped.clone());
            Ok(FlowBlock { network, wrapped, decoded, read, evm: OnceLock::new() })
        })
    }
}

impl FlowBlock {
    /// The transactions with their places, in order.
    pub(super) fn each(&self) -> impl Iterator<Item = PlacedTx<'_>> {
        let places = (0u32..).zip(self.decoded.transactions.iter().zip(&self.read));
        places.map(|(index, (tx, read))| PlacedTx { index, tx, read, block: self })
    }

    fn evm(&self) -> &[Vec<EvmTx>] {
        self.evm.get_or_init(|| {
            let (mut seen, mut ids_left) = (BTreeSet::new(), MAX_BLOCK_CONSECUTIVE_IDS);
            let mut of_block: Vec<Vec<EvmTx>> = self.read.iter().map(|_| Vec::new()).collect();
            for placed in self.each() {
                for (event, execution) in placed.executions() {
                    let Ok((executed, inner)) = &execution.executed else { continue };
                    if seen.insert(executed.hash) {
                        let inner = inner.as_ref().ok();
                        let tx = EvmTx::read(event, executed, inner, &self.wrapped, &mut ids_left);
                        of_block[placed.index as usize].push(tx);
                    }
                }
            }
            of_block
        })
    }
}

/// A transaction at its place.
#[derive(Clone, Copy)]
pub(super) struct PlacedTx<'b> {
    pub index: u32,
    pub tx: &'b DecodedTx,
    read: &'b ReadTx,
    block: &'b FlowBlock,
}

impl<'b> PlacedTx<'b> {
    /// Its token movements.
    pub fn moves(&self) -> &'b TokenMoves {
        self.read.moves.get_or_init(|| TokenMoves::of(&self.tx.events, self.block.network))
    }

    /// The EVM transactions that it executed, with the events that say so.
    pub fn executions(&self) -> impl Iterator<Item = (&'b DecodedEvent, &'b Execution)> {
        let executions = self.read.executions.get_or_init(|| executions(self.tx, self.block.network));
        executions.iter().map(|execution| (&self.tx.events[execution.at], execution))
    }

    /// The same, as the mappers of EVM chains read them.
    pub fn evm(&self) -> &'b [EvmTx] {
        &self.block.evm()[self.index as usize]
    }
}

fn executions(tx: &DecodedTx, network: Network) -> Vec<Execution> {
    let service = network.accounts().service;
    let is_execution = |event: &DecodedEvent| {
        EventType::parse(&event.event_type).is_some_and(|name| name.is(service, "EVM", "TransactionExecuted"))
    };
    let executions = tx.events.iter().enumerate().filter(|(_, event)| is_execution(event));
    let read = |event: &DecodedEvent| {
        let executed = Executed::from_event(&CdcValue::parse_event(&event.payload)?)?;
        let inner = decode_payload(&executed.payload);
        Ok((executed, inner))
    };
    executions.map(|(at, event)| Execution { at, executed: read(event) }).collect()
}
