//! `accounts_worker`: which addresses a transaction concerns.
//!
//! Sender, recipient, the contract that it created, and the parties of its token movements: each once a transaction, and never the zero
//! address (E27).

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::Address;
use cairn_core::{Parts, StoredBlock};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};

use super::EvmBlocks;
use crate::names::ACCOUNTS_WORKER;
use crate::processors::Settings;
use crate::tables::accounts::{ADDRESS_TRANSACTIONS, AddressTransaction, Roles};

/// What it says of itself.
pub static SERVICE: ServiceInfo =
    ServiceInfo { name: ACCOUNTS_WORKER, version: 3, upstreams: &[], tables: &[&ADDRESS_TRANSACTIONS] };

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(AccountsWorker { blocks: EvmBlocks::of(settings) })))
}

struct AccountsWorker {
    blocks: EvmBlocks,
}

impl Mapper for AccountsWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for (tx, moves) in decoded.with_moves() {
            let mut roles: BTreeMap<Address, Roles> = BTreeMap::new();
            if let Some(sender) = tx.sender {
                roles.entry(sender).or_default().is_sender = true;
            }
            if let Some(recipient) = tx.to.address() {
                roles.entry(recipient).or_default().is_recipient = true;
            }
            if let Some(created) = tx.created_contract() {
                roles.entry(created).or_default().is_created = true;
            }
            for placed in &moves.placed {
                for party in [placed.moved.from, placed.moved.to] {
                    roles.entry(party).or_default().is_transfer_party = true;
                }
            }
            roles.remove(&Address::ZERO);
            for (address, roles) in roles {
                let row = AddressTransaction {
                    block_height: block.facts.height.get(),
                    address: super::bytes(address),
                    transaction_id: tx.id.0.to_vec().into(),
                    transaction_index: tx.index,
                    block_timestamp_ms: block.facts.timestamp_ms,
                    roles,
                };
                out.row(&ADDRESS_TRANSACTIONS, row.to_row());
            }
        }
        Ok(())
    }
}
