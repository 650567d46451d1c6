//! A block as its mappers see it: decoded once for all of them, and what several read of its transactions read once.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use cairn_core::{StoredBlock, TxId};
use cairn_flow::cdc::CdcValue;
use cairn_flow::evm::{EvmTransaction, Executed, decode_payload};
use cairn_flow::{DecodedBlock, DecodedEvent, DecodedTx, EventType, FlowError, Network};
use cairn_pipeline::derive::processor::ProcessError;

use crate::decode::flow::TokenMoves;
use crate::processors::Settings;
use crate::processors::shared::Shared;

/// The blocks of a network, as the mappers of this process share them.
#[derive(Clone)]
pub struct FlowBlocks {
    pub(super) network: Network,
    shared: Arc<Shared<FlowBlock>>,
}

/// A decoded block.
pub struct FlowBlock {
    network: Network,
    decoded: DecodedBlock,
    /// One for each transaction.
    read: Vec<ReadTx>,
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
        Some(FlowBlocks { network: settings.network?, shared: settings.flow_blocks.clone() })
    }

    /// Decodes the parts of a block that were read.
    pub(super) fn get(&self, stored: &StoredBlock) -> Result<Arc<FlowBlock>, ProcessError> {
        self.shared.get(stored, |stored| {
            let decoded = DecodedBlock::decode(stored).map_err(|error| ProcessError {
                block: stored.facts.block_ref(),
                message: error.to_string(),
            })?;
            let read = decoded.transactions.iter().map(|_| ReadTx::default()).collect();
            Ok(FlowBlock { network: self.network, decoded, read })
        })
    }
}

impl FlowBlock {
    /// All transactions, in order.
    pub(super) fn transactions(&self) -> &[DecodedTx] {
        &self.decoded.transactions
    }

    /// The transactions with their places, each id once: the first one.
    pub(super) fn once(&self) -> impl Iterator<Item = OnceTx<'_>> {
        let mut seen: BTreeSet<TxId> = BTreeSet::new();
        let places = (0u32..).zip(self.decoded.transactions.iter().zip(&self.read));
        places.filter(move |(_, (tx, _))| seen.insert(tx.id)).map(|(index, (tx, read))| OnceTx {
            index,
            tx,
            read,
            network: self.network,
        })
    }
}

/// A transaction at its place.
#[derive(Clone, Copy)]
pub(super) struct OnceTx<'b> {
    pub index: u32,
    pub tx: &'b DecodedTx,
    read: &'b ReadTx,
    network: Network,
}

impl<'b> OnceTx<'b> {
    /// Its token movements.
    pub fn moves(&self) -> &'b TokenMoves {
        self.read.moves.get_or_init(|| TokenMoves::of(&self.tx.events, self.network))
    }

    /// The EVM transactions that it executed, with the events that say so.
    pub fn executions(&self) -> impl Iterator<Item = (&'b DecodedEvent, &'b Execution)> {
        let executions = self.read.executions.get_or_init(|| executions(self.tx, self.network));
        executions.iter().map(|execution| (&self.tx.events[execution.at], execution))
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
