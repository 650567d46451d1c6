//! `accounts_worker`: which accounts a transaction concerns and what they are in it, which were created, and whose an EVM account is.
//!
//! In `address_transactions` an account is a sender that proposes, pays or authorises (`account_roles` says which), created, or party of a
//! token's movement; an EVM address is what it is in the EVM transactions that the Flow transaction executed, party of their tokens' movements too. Whoever receives the fee is no
//! party: it would be one of nearly every transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use cairn_core::{Parts, StoredBlock};
use cairn_flow::cdc::{CdcValue, StaticType};
use cairn_flow::{DecodedTx, EventType, FlowAddress};
use cairn_pipeline::derive::processor::{Mapper, Output, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Row, U256, Value};

use super::{FlowBlocks, PlacedTx};
use crate::decode::flow::{AccountChange, FtKind, account_event};
use crate::names::ACCOUNTS_WORKER;
use crate::processors::Settings;
use crate::tables::accounts::{ADDRESS_TRANSACTIONS, AddressTransaction, Roles};
use crate::tables::flow::accounts::{ACCOUNT_CREATIONS, ACCOUNT_ROLES, COA_ACCOUNTS};
use crate::tables::opt;

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: ACCOUNTS_WORKER,
    version: 4,
    upstreams: &[],
    tables: &[&ADDRESS_TRANSACTIONS, &ACCOUNT_ROLES, &ACCOUNT_CREATIONS, &COA_ACCOUNTS],
};

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    Some(Processor::Mapper(Arc::new(AccountsWorker { blocks: FlowBlocks::of(settings)? })))
}

struct AccountsWorker {
    blocks: FlowBlocks,
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
        let mut created: BTreeSet<FlowAddress> = BTreeSet::new();
        for placed in decoded.each() {
            let (index, tx) = (placed.index, placed.tx);
            let of = OfTx { block, index, tx };
            let signers = Signers::of(tx);
            let mut roles = signers.as_senders();
            for event in &tx.events {
                // Malformed ones are reported by meta_worker.
                let Ok(Some(event)) = account_event(event) else { continue };
                if event.change == AccountChange::Created {
                    roles.entry(super::bytes(event.address)).or_default().is_created = true;
                    // An address is created once: a second event of it would only repeat the key.
                    if created.insert(event.address) {
                        out.row(&ACCOUNT_CREATIONS, of.creation(event.address));
                    }
                }
            }
            add_parties(placed, &mut roles);
            add_evm(placed, &mut roles);
            roles.retain(|address, _| address.iter().any(|byte| *byte != 0));
            for (address, roles) in roles {
                out.row(&ADDRESS_TRANSACTIONS, of.concerned(address, roles));
            }
            for (address, roles) in &signers.0 {
                out.row(&ACCOUNT_ROLES, of.roles(*address, *roles));
            }
            self.add_coas(&of, &signers, out);
        }
        Ok(())
    }
}

impl AccountsWorker {
    fn add_coas(&self, of: &OfTx<'_>, signers: &Signers, out: &mut Output) {
        let mut owners = None;
        for event in &of.tx.events {
            let Some(name) = EventType::parse(&event.event_type) else { continue };
            if !name.is(self.blocks.network.accounts().service, "EVM", "CadenceOwnedAccountCreated") {
                continue;
            }
            let fields = match CdcValue::parse_event(&event.payload) {
                Ok(fields) => fields,
                Err(error) => {
                    out.malformed(super::malformed_event(of.tx, event, error));
                    continue;
                }
            };
            let address = fields
                .field("address")
                .and_then(CdcValue::as_str)
                .and_then(|text| text.trim_start_matches("0x").parse::<alloy_primitives::Address>().ok());
            let Some(address) = address else {
                out.malformed(super::malformed_event(of.tx, event, "its address is no EVM address"));
                continue;
            };
            let uuid = fields.field("uuid").and_then(CdcValue::as_number).and_then(|uuid| uuid.to_u64());
            let service = self.blocks.network.accounts().service;
            let (owner, rule) = *owners.get_or_insert_with(|| owner(of.tx, signers, service, out));
            out.row(
                &COA_ACCOUNTS,
                Row(vec![
                    Value::height(of.block.facts.height),
                    Value::bytes(address.as_slice()),
                    Value::Bytes(super::id(of.tx)),
                    Value::uint(event.index.into()),
                    Value::uint(of.index.into()),
                    Value::uint(of.block.facts.timestamp_ms),
                    opt(owner, |owner| Value::bytes(&owner.0)),
                    Value::text(rule),
                    opt(uuid, |uuid| Value::Amount(U256::from(uuid))),
                ]),
            );
        }
    }
}

fn add_parties(placed: PlacedTx<'_>, roles: &mut BTreeMap<Bytes, Roles>) {
    let moves = placed.moves();
    let fungible = moves.fungible.iter().filter(|moved| moved.kind != FtKind::Fee);
    let fungible = fungible.flat_map(|moved| [moved.from, moved.to]);
    let items = moves.non_fungible.iter().flat_map(|moved| [moved.from, moved.to]);
    for party in fungible.chain(items).flatten() {
        roles.entry(super::bytes(party)).or_default().is_transfer_party = true;
    }
}

fn add_evm(placed: PlacedTx<'_>, roles: &mut BTreeMap<Bytes, Roles>) {
    for of_log in placed.evm().iter().flat_map(|evm| &evm.moves.placed) {
        for party in [of_log.moved.from, of_log.moved.to] {
            roles.entry(Bytes::copy_from_slice(party.as_slice())).or_default().is_transfer_party = true;
        }
    }
    for (_, execution) in placed.executions() {
        // Malformed ones are reported by evm_worker.
        let Ok((executed, inner)) = &execution.executed else { continue };
        let evm = |address: alloy_primitives::Address| Bytes::copy_from_slice(address.as_slice());
        if let Ok(inner) = inner {
            if let Some(from) = inner.from {
                roles.entry(evm(from)).or_default().is_sender = true;
            }
            if let Some(to) = inner.to {
                roles.entry(evm(to)).or_default().is_recipient = true;
            }
        }
        if let Some(created) = executed.contract_address.filter(|_| executed.error_code == 0) {
            roles.entry(evm(created)).or_default().is_created = true;
        }
    }
}

/// Whose a Cadence-owned EVM account is that the transaction created, and by which rule that is known. `service` has the chain's own EVM: anybody may name a type
/// of theirs as its are named. Where an event that might say it can't be read, nobody knows.
fn owner(
    tx: &DecodedTx,
    signers: &Signers,
    service: FlowAddress,
    out: &mut Output,
) -> (Option<FlowAddress>, &'static str) {
    let coa = format!("A.{}.EVM.CadenceOwnedAccount", service.bare());
    // A reference to it, with whatever is authorised.
    let is_coa = |name: &StaticType| name.0.rsplit('&').next() == Some(coa.as_str());
    let mut by_capability: BTreeSet<FlowAddress> = BTreeSet::new();
    let mut is_unread = false;
    for event in &tx.events {
        let is_about = matches!(
            event.event_type.as_str(),
            "flow.StorageCapabilityControllerIssued" | "flow.CapabilityPublished"
        );
        if !is_about {
            continue;
        }
        let fields = match CdcValue::parse_event(&event.payload) {
            Ok(fields) => fields,
            Err(error) => {
                is_unread = true;
                out.malformed(super::malformed_event(tx, event, error));
                continue;
            }
        };
        let issued = matches!(fields.field("type"), Some(CdcValue::Type(name)) if is_coa(name));
        let published = matches!(
            fields.field("capability"),
            Some(CdcValue::Capability { borrow_type: Some(name), .. }) if is_coa(name)
        );
        if issued || published {
            by_capability.extend(fields.field("address").and_then(CdcValue::as_address));
        }
    }
    let mut authorizers =
        signers.0.iter().filter(|(_, roles)| roles.is_authorizer).map(|(address, _)| *address);
    match (by_capability.first(), by_capability.len(), authorizers.next(), authorizers.next()) {
        _ if is_unread => (None, "unknown"),
        (Some(owner), 1, ..) => (Some(*owner), "capability"),
        (_, 0, Some(owner), None) => (Some(owner), "authorizer"),
        _ => (None, "unknown"),
    }
}

/// What an account signs a transaction as.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signs {
    is_proposer: bool,
    is_payer: bool,
    is_authorizer: bool,
}

/// Who signs a transaction. Nobody has the address of zeros.
pub(super) struct Signers(BTreeMap<FlowAddress, Signs>);

impl Signers {
    fn of(tx: &DecodedTx) -> Signers {
        let mut signers: BTreeMap<FlowAddress, Signs> = BTreeMap::new();
        let message = &tx.transaction;
        let address =
            |bytes: &[u8]| FlowAddress::from_slice(bytes).filter(|address| *address != FlowAddress::ZERO);
        if let Some(proposer) = message.proposal_key.as_ref().and_then(|key| address(&key.address)) {
            signers.entry(proposer).or_default().is_proposer = true;
        }
        if let Some(payer) = address(&message.payer) {
            signers.entry(payer).or_default().is_payer = true;
        }
        for authorizer in message.authorizers.iter().filter_map(|bytes| address(bytes)) {
            signers.entry(authorizer).or_default().is_authorizer = true;
        }
        Signers(signers)
    }

    fn as_senders(&self) -> BTreeMap<Bytes, Roles> {
        let sender = Roles { is_sender: true, ..Roles::default() };
        self.0.keys().map(|address| (super::bytes(*address), sender)).collect()
    }
}

/// A transaction at its place.
struct OfTx<'b> {
    block: &'b StoredBlock,
    index: u32,
    tx: &'b DecodedTx,
}

impl OfTx<'_> {
    fn concerned(&self, address: Bytes, roles: Roles) -> Row {
        let row = AddressTransaction {
            block_height: self.block.facts.height.get(),
            address,
            transaction_id: super::id(self.tx),
            transaction_index: self.index,
            block_timestamp_ms: self.block.facts.timestamp_ms,
            roles,
        };
        row.to_row()
    }

    fn start(&self, address: FlowAddress) -> Vec<Value> {
        vec![
            Value::height(self.block.facts.height),
            Value::bytes(&address.0),
            Value::Bytes(super::id(self.tx)),
            Value::uint(self.index.into()),
            Value::uint(self.block.facts.timestamp_ms),
        ]
    }

    fn creation(&self, address: FlowAddress) -> Row {
        let payer = FlowAddress::from_slice(&self.tx.transaction.payer).unwrap_or_default();
        let mut row = self.start(address);
        row.push(Value::bytes(&payer.0));
        Row(row)
    }

    fn roles(&self, address: FlowAddress, signs: Signs) -> Row {
        let mut row = self.start(address);
        row.extend([signs.is_proposer, signs.is_payer, signs.is_authorizer].map(Value::Bool));
        Row(row)
    }
}
