//! `meta_worker`: keys and contracts of accounts, and contracts that EVM transactions created. Contracts that EVM contracts created are not known: no node
//! gives traces of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::Address;
use bytes::Bytes;
use cairn_core::{Parts, StoredBlock, TxStatus};
use cairn_flow::{DecodedEvent, DecodedTx, FlowAddress};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};

use super::{FlowBlocks, PlacedTx};
use crate::decode::flow::{
    AccountChange, AccountEvent, AccountKey, ContractChange, RevokedKey, account_event,
};
use crate::names::META_WORKER;
use crate::processors::Settings;
use crate::processors::evm::meta::created_by;
use crate::tables::contracts::{SMART_CONTRACTS, SmartContract};
use crate::tables::flow::accounts::{ACCOUNT_KEY_EVENTS, AccountKeyEvent, KeyFields};
use crate::tables::flow::contracts::{CONTRACT_VERSIONS, ContractVersion};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: META_WORKER,
    version: 3,
    upstreams: &[],
    tables: &[&SMART_CONTRACTS, &CONTRACT_VERSIONS, &ACCOUNT_KEY_EVENTS],
};

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(MetaWorker { blocks: FlowBlocks::of(settings)? })))
}

struct MetaWorker {
    blocks: FlowBlocks,
}

impl Mapper for MetaWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn parts(&self) -> Parts {
        super::PARTS
    }

    fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
        let decoded = self.blocks.get(block)?;
        for placed in decoded.each() {
            let PlacedTx { index, tx, .. } = placed;
            // A contract that was added, removed and added again in one transaction is one creation.
            let mut created: BTreeMap<(FlowAddress, String), SmartContract> = BTreeMap::new();
            for event in &tx.events {
                match account_event(event) {
                    Ok(None) => {}
                    Ok(Some(AccountEvent { address, change })) => {
                        let place = Place { block, index, tx, event, address };
                        place.add(change, &mut created, out);
                    }
                    Err(message) => out.malformed(super::malformed_event(tx, event, message)),
                }
            }
            let mut in_evm: BTreeMap<Address, SmartContract> = BTreeMap::new();
            for evm in placed.evm() {
                let Some(address) = evm.tx.created_contract() else { continue };
                let contract = SmartContract {
                    transaction_id: super::id(tx),
                    transaction_index: index,
                    ..created_by(block, &evm.tx, address)
                };
                in_evm.insert(address, contract);
            }
            for contract in created.values().chain(in_evm.values()) {
                out.row(&SMART_CONTRACTS, contract.to_row());
            }
        }
        Ok(())
    }
}

/// Where an event about an account stands.
struct Place<'b> {
    block: &'b StoredBlock,
    index: u32,
    tx: &'b DecodedTx,
    event: &'b DecodedEvent,
    address: FlowAddress,
}

impl Place<'_> {
    fn add(
        &self,
        change: AccountChange,
        created: &mut BTreeMap<(FlowAddress, String), SmartContract>,
        out: &mut Output,
    ) {
        match change {
            AccountChange::Created => {}
            AccountChange::KeyAdded { index, key } => {
                out.row(&ACCOUNT_KEY_EVENTS, self.key(index, false, fields(&key)).to_row());
            }
            AccountChange::KeyRevoked(RevokedKey::Index(index)) => {
                out.row(&ACCOUNT_KEY_EVENTS, self.key(Some(index), true, KeyFields::default()).to_row());
            }
            AccountChange::KeyRevoked(RevokedKey::Key(key)) => {
                out.row(&ACCOUNT_KEY_EVENTS, self.key(None, true, fields(&key)).to_row());
            }
            AccountChange::Contract { name, code_hash, change } => {
                if change == ContractChange::Added {
                    let contract = self.contract(&name, &code_hash);
                    created.insert((self.address, name.clone()), contract);
                }
                let version = ContractVersion {
                    block_height: self.block.facts.height.get(),
                    address: super::bytes(self.address),
                    contract_name: name,
                    transaction_id: super::id(self.tx),
                    event_index: self.event.index,
                    transaction_index: self.index,
                    block_timestamp_ms: self.block.facts.timestamp_ms,
                    change: word(change).to_owned(),
                    code_hash: Bytes::copy_from_slice(&code_hash),
                };
                out.row(&CONTRACT_VERSIONS, version.to_row());
            }
        }
    }

    fn key(&self, key_index: Option<u64>, is_revoked: bool, key: KeyFields) -> AccountKeyEvent {
        AccountKeyEvent {
            block_height: self.block.facts.height.get(),
            address: super::bytes(self.address),
            transaction_id: super::id(self.tx),
            event_index: self.event.index,
            transaction_index: self.index,
            block_timestamp_ms: self.block.facts.timestamp_ms,
            is_revoked,
            key_index,
            key,
        }
    }

    fn contract(&self, name: &str, code_hash: &[u8; 32]) -> SmartContract {
        let payer = FlowAddress::from_slice(&self.tx.transaction.payer);
        SmartContract {
            block_height: self.block.facts.height.get(),
            address: super::bytes(self.address),
            contract_name: name.to_owned(),
            transaction_id: super::id(self.tx),
            transaction_index: self.index,
            block_timestamp_ms: self.block.facts.timestamp_ms,
            creator_address: payer.filter(|payer| *payer != FlowAddress::ZERO).map(super::bytes),
            init_code_hash: Some(Bytes::copy_from_slice(code_hash)),
            is_internal: false,
            is_confirmed: self.tx.status() == TxStatus::Ok,
        }
    }
}

fn fields(key: &AccountKey) -> KeyFields {
    KeyFields {
        public_key: Some(Bytes::copy_from_slice(&key.public_key)),
        sign_algo: Some(key.sign_algo),
        hash_algo: key.hash_algo,
        weight: key.weight,
    }
}

/// The word of a change.
pub(super) const fn word(change: ContractChange) -> &'static str {
    match change {
        ContractChange::Added => "added",
        ContractChange::Updated => "updated",
        ContractChange::Removed => "removed",
    }
}
