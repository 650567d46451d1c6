//! `tx_contracts_worker`: which contracts a transaction touched, and how, those of the EVM side too; and tags that say what kinds of things it did.
//!
//! It follows `token_worker`, as the reliability document wants it, and reads the same events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_core::{Parts, StoredBlock, TxStatus};
use cairn_flow::network::Accounts;
use cairn_flow::{EventType, FlowAddress};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, Value};

use super::{FlowBlocks, PlacedTx, moves};
use crate::decode::flow::{
    AccountChange, ContractChange, FtKind, MAX_NAME_BYTES, account_event, contract_of, imports,
};
use crate::names::{TOKEN_WORKER, TX_CONTRACTS_WORKER};
use crate::processors::Settings;
use crate::processors::evm::{bytes as evm_bytes, tx_contracts as evm};
use crate::tables::flow::transactions::TX_TAGS;
use crate::tables::transactions::{TX_CONTRACTS, TxContract};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TX_CONTRACTS_WORKER,
    version: 4,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TX_CONTRACTS, &TX_TAGS],
};

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(TxContractsWorker { blocks: FlowBlocks::of(settings)? })))
}

/// The tags of contracts, in the order in which they are written.
const TAGS: [&str; 7] = ["import", "create", "update", "remove", "log", "ft", "nft"];
const IMPORT: usize = 0;
const CREATE: usize = 1;
const UPDATE: usize = 2;
const REMOVE: usize = 3;
const LOG: usize = 4;
const FT: usize = 5;
const NFT: usize = 6;

type Touched = BTreeMap<(FlowAddress, String), [bool; TAGS.len()]>;

struct TxContractsWorker {
    blocks: FlowBlocks,
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
        for placed in decoded.each() {
            let (index, tx) = (placed.index, placed.tx);
            let mut tags: BTreeSet<&'static str> = BTreeSet::new();
            for ((address, name), is_set) in self.touched(placed, &mut tags) {
                let of_contract: Vec<&str> =
                    TAGS.iter().zip(is_set).filter(|(_, is_set)| *is_set).map(|(tag, _)| *tag).collect();
                let row = TxContract {
                    block_height: block.facts.height.get(),
                    transaction_id: super::id(tx),
                    contract_address: super::bytes(address),
                    contract_name: name,
                    transaction_index: index,
                    block_timestamp_ms: block.facts.timestamp_ms,
                    tags: of_contract.join(","),
                };
                out.row(&TX_CONTRACTS, row.to_row());
            }
            let mut in_evm = evm::Touched::new();
            for one in placed.evm() {
                evm::touch(&mut in_evm, &one.tx, &one.moves);
                tags.extend((one.moves.count(false) > 0).then_some("ft"));
                tags.extend((one.moves.count(true) > 0).then_some("nft"));
            }
            for (contract, of_contract) in in_evm {
                let row = TxContract {
                    block_height: block.facts.height.get(),
                    transaction_id: super::id(tx),
                    contract_address: evm_bytes(contract),
                    contract_name: String::new(),
                    transaction_index: index,
                    block_timestamp_ms: block.facts.timestamp_ms,
                    tags: evm::words(of_contract),
                };
                out.row(&TX_CONTRACTS, row.to_row());
            }
            for tag in tags {
                out.row(
                    &TX_TAGS,
                    Row(vec![
                        Value::height(block.facts.height),
                        Value::Bytes(super::id(tx)),
                        Value::text(tag),
                        Value::uint(index.into()),
                        Value::uint(block.facts.timestamp_ms),
                    ]),
                );
            }
        }
        Ok(())
    }
}

impl TxContractsWorker {
    fn touched(&self, placed: PlacedTx<'_>, tags: &mut BTreeSet<&'static str>) -> Touched {
        let (tx, accounts) = (placed.tx, self.blocks.network.accounts());
        let mut touched = Touched::new();
        let mut tag = |address: FlowAddress, name: &str, tag: usize| {
            touched.entry((address, name.to_owned())).or_default()[tag] = true;
        };
        if tx.is_system {
            tags.insert("system");
        }
        if tx.status() == TxStatus::Failed {
            tags.insert("failed");
        }
        for (address, name) in imports(&tx.transaction.script) {
            // One that runs a scheduled call has the call's id as its argument. Where it fails, no event says so.
            if tx.is_system
                && tx.transaction.arguments.len() == 1
                && (address, name.as_str()) == (accounts.service, "FlowTransactionScheduler")
            {
                tags.insert("scheduled");
            }
            tag(address, &name, IMPORT);
        }
        for event in &tx.events {
            let Some(name) = EventType::parse(&event.event_type) else { continue };
            if let Some(address) = name.address.filter(|_| name.contract.len() <= MAX_NAME_BYTES) {
                tag(address, name.contract, LOG);
                tags.extend(event_tag(name, &accounts));
            } else if let Ok(Some(about)) = account_event(event) {
                tags.insert(change_tag(&about.change));
                if let AccountChange::Contract { name, change, .. } = &about.change {
                    let of = match change {
                        ContractChange::Added => CREATE,
                        ContractChange::Updated => UPDATE,
                        ContractChange::Removed => REMOVE,
                    };
                    tag(about.address, name, of);
                }
            }
        }
        let moves = placed.moves();
        for moved in moves.fungible.iter().filter(|moved| moved.kind != FtKind::Fee) {
            if let Some((address, name)) = moves::contract(contract_of(&moved.token)) {
                tag(address, name, FT);
                tags.insert("ft");
            }
        }
        for moved in &moves.non_fungible {
            if let Some((address, name)) = moves::contract(contract_of(&moved.collection)) {
                tag(address, name, NFT);
                tags.insert("nft");
            }
        }
        touched
    }
}

/// What an event says that its transaction did. Anybody may name a contract as the chain's own are named: only those of the network's accounts count.
fn event_tag(name: EventType<'_>, accounts: &Accounts) -> Option<&'static str> {
    let is_at = |account: FlowAddress| name.address == Some(account);
    match (name.contract, name.event) {
        ("EVM", "CadenceOwnedAccountCreated") if is_at(accounts.service) => Some("coa-created"),
        ("EVM", "FLOWTokensDeposited" | "FLOWTokensWithdrawn") if is_at(accounts.service) => Some("bridge"),
        ("EVM", "TransactionExecuted") if is_at(accounts.service) => Some("evm"),
        ("FlowTransactionScheduler", "Executed") if is_at(accounts.service) => Some("scheduled"),
        ("FlowEVMBridge", _) if is_at(accounts.evm_bridge) => Some("bridge"),
        ("FlowIDTableStaking" | "FlowEpoch", _) if is_at(accounts.staking) => Some("staking"),
        ("FlowStakingCollection" | "LockedTokens", _) if is_at(accounts.locked_tokens) => Some("staking"),
        _ => None,
    }
}

fn change_tag(change: &AccountChange) -> &'static str {
    match change {
        AccountChange::Created => "account-created",
        AccountChange::KeyAdded { .. } => "key-added",
        AccountChange::KeyRevoked(_) => "key-revoked",
        AccountChange::Contract { change: ContractChange::Added, .. } => "contract-added",
        AccountChange::Contract { change: ContractChange::Updated, .. } => "contract-updated",
        AccountChange::Contract { change: ContractChange::Removed, .. } => "contract-removed",
    }
}
