//! The ledger of the emulator's chain, written from its blocks: what each transaction is, and what its events say that it did.
//!
//! It has the form of the ledger of a generated chain, so that every table is held against it in the same way.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cairn_flow::network::Accounts;
use cairn_flow::{FlowAddress, Network, proto};
use cairn_flow_node::Ledger;
use cairn_flow_node::deeds::{ContractChange, Deed, Done, MoveKind};
use cairn_flow_node::ledger::{Account, Code, ContractId, FlowTx, Item, Key, KeyForm};
use cairn_flow_node::scripts::code_hash;

use super::blocks::{Block, Blocks, Tx};
use super::evm::EvmBook;
use super::moves::moves;
use super::payload::{Fields, parts};

/// The contracts of accounts at heights at which one of theirs changed, as account calls have them.
pub type Codes = BTreeMap<(u64, FlowAddress), BTreeMap<String, Vec<u8>>>;

/// Where contracts of accounts changed.
pub fn contract_changes(blocks: &Blocks) -> Result<BTreeSet<(u64, FlowAddress)>> {
    let mut changes = BTreeSet::new();
    for block in blocks.iter() {
        for event in block.transactions.iter().flat_map(|tx| &tx.result.events) {
            if event.r#type.starts_with("flow.AccountContract") {
                changes.insert((block.height, Fields::of(&event.payload)?.account("address")?));
            }
        }
    }
    Ok(changes)
}

/// The ledger of these blocks.
pub fn ledger(blocks: &Blocks, codes: &Codes) -> Result<Ledger> {
    let network = Network::Emulator;
    let mut book =
        Book { ledger: Ledger::new(network), places: network.accounts(), accounts: BTreeMap::new(), codes };
    for block in blocks.iter() {
        book.block(block).with_context(|| format!("block {}", block.height))?;
    }
    Ok(book.ledger)
}

struct Book<'c> {
    ledger: Ledger,
    places: Accounts,
    /// Accounts as they are.
    accounts: BTreeMap<FlowAddress, Account>,
    codes: &'c Codes,
}

fn address(bytes: &[u8]) -> Result<FlowAddress> {
    FlowAddress::from_slice(bytes).context("an address of more than 8 bytes")
}

/// What a script imports: `import A, B from 0x1`, line by line, before anything else.
fn imports(script: &[u8]) -> Result<Vec<ContractId>> {
    let script = std::str::from_utf8(script)?;
    let mut found = BTreeSet::new();
    for line in script.lines().map(str::trim) {
        let Some(import) = line.strip_prefix("import ") else {
            if line.is_empty() || line.starts_with("//") {
                continue;
            }
            break;
        };
        let (names, of) = import.split_once(" from ").with_context(|| format!("{line}: of no account"))?;
        let of: FlowAddress = of.trim().parse().with_context(|| line.to_owned())?;
        found.extend(names.split(',').map(|name| ContractId::new(of, name.trim())));
    }
    Ok(found.into_iter().collect())
}

impl Book<'_> {
    fn block(&mut self, block: &Block) -> Result<()> {
        let height = block.height;
        self.ledger.times_ms.insert(height, block.time_ms);
        let mut evm = EvmBook::default();
        let mut transactions = Vec::new();
        for (index, tx) in block.transactions.iter().enumerate() {
            evm.hear(height, index, &tx.result.events, self.places.service)?;
            transactions.push(self.transaction(height, tx).with_context(|| format!("transaction {index}"))?);
        }
        if let Some((index, closed)) = evm.closed {
            ensure!(index + 1 == transactions.len(), "its EVM block is closed by transaction {index}");
            self.ledger.evm_blocks.insert(height, closed);
        }
        if !evm.transactions.is_empty() {
            self.ledger.evm_transactions.insert(height, evm.transactions);
        }
        for done in transactions.iter().flat_map(|tx| &tx.done) {
            self.happened(height, &done.deed)?;
        }
        self.ledger.transactions.insert(height, transactions);
        Ok(())
    }

    fn transaction(&mut self, height: u64, Tx { id, transaction, result, is_system }: &Tx) -> Result<FlowTx> {
        let mut done = moves(&result.events, &self.places)?;
        let (mut fee, mut efforts) = (None, None);
        for event in &result.events {
            let deed = self.deed(height, event).with_context(|| event.r#type.clone())?;
            done.extend(deed.map(|deed| Done { event_index: event.event_index, deed }));
            if parts(&event.r#type) == Some((self.places.flow_fees, "FlowFees", "FeesDeducted")) {
                let fields = Fields::of(&event.payload)?;
                fee = Some(fields.units("amount")?);
                efforts = Some((fields.units("inclusionEffort")?, fields.units("executionEffort")?));
            }
        }
        done.sort_by_key(|done| done.event_index);
        let proposer = transaction.proposal_key.as_ref().map(|key| address(&key.address));
        Ok(FlowTx {
            id: id[..].try_into().context("an id of other than 32 bytes")?,
            is_system: *is_system,
            is_failed: result.status_code != 0,
            payer: address(&transaction.payer)?,
            proposer: proposer.transpose()?.unwrap_or(FlowAddress::ZERO),
            authorizers: transaction.authorizers.iter().map(|one| address(one)).collect::<Result<_>>()?,
            imports: imports(&transaction.script)?,
            fee: fee.unwrap_or(0),
            is_fee_told: fee.is_some(),
            computation: result.computation_usage,
            computation_limit: transaction.gas_limit,
            efforts,
            error: result.error_message.clone(),
            event_types: result.events.iter().map(|event| event.r#type.clone()).collect(),
            done,
        })
    }

    /// What an event says that happened, but for movements.
    fn deed(&mut self, height: u64, event: &proto::Event) -> Result<Option<Deed>> {
        let fields = || Fields::of(&event.payload);
        let change = match event.r#type.as_str() {
            "flow.AccountCreated" => {
                let address = fields()?.account("address")?;
                let created = Account { created_height: Some(height), ..Account::default() };
                let before = self.accounts.insert(address, created);
                ensure!(before.is_none(), "{address} is made twice");
                return Ok(Some(Deed::AccountCreated(address)));
            }
            "flow.AccountKeyAdded" => return self.key_added(&fields()?).map(Some),
            "flow.AccountKeyRemoved" => return self.key_revoked(&fields()?).map(Some),
            "flow.AccountContractAdded" => ContractChange::Added,
            "flow.AccountContractUpdated" => ContractChange::Updated,
            "flow.AccountContractRemoved" => ContractChange::Removed,
            kind => {
                let service = self.places.service;
                return Ok(match parts(kind) {
                    Some((of, "EVM", "CadenceOwnedAccountCreated")) if of == service => {
                        let fields = fields()?;
                        let coa = fields.evm_account("address")?.context("an account of the EVM")?;
                        // No transaction of `tests/flow` gives out a capability of one.
                        Some(Deed::CoaCreated { coa, uuid: fields.number("uuid")?, by_capability: false })
                    }
                    Some((of, "EVM", "FLOWTokensDeposited" | "FLOWTokensWithdrawn")) if of == service => {
                        Some(Deed::Bridged)
                    }
                    Some((of, "FlowTransactionScheduler", "Executed")) if of == service => {
                        Some(Deed::Scheduled)
                    }
                    _ => None,
                });
            }
        };
        let fields = fields()?;
        let contract = ContractId::new(fields.account("address")?, fields.text("contract")?);
        let code_hash = fields.hash("codeHash")?.0;
        Ok(Some(Deed::ContractChanged { contract, code_hash, change }))
    }

    fn key_added(&mut self, fields: &Fields) -> Result<Deed> {
        let (address, index) = (fields.account("address")?, fields.number::<u32>("keyIndex")?);
        let public = fields.within("publicKey")?;
        let weight = fields.units("weight")?;
        ensure!(weight.is_multiple_of(100_000_000), "a weight of {weight} units");
        let key = Key {
            public_key: public.bytes("publicKey")?,
            sign_algo: public.case("signatureAlgorithm")?,
            hash_algo: fields.case("hashAlgorithm")?,
            weight: u32::try_from(weight / 100_000_000)?,
            revoked: None,
            is_in_doubt: false,
            told: Some(KeyForm::Whole),
        };
        let keys = &mut self.accounts.entry(address).or_default().keys;
        ensure!(keys.len() == index as usize, "{address} has {} keys, and gets number {index}", keys.len());
        keys.push(key.clone());
        Ok(Deed::KeyAdded { address, index, key })
    }

    fn key_revoked(&mut self, fields: &Fields) -> Result<Deed> {
        // The index, whatever the field is called.
        let (address, index) = (fields.account("address")?, fields.number::<u32>("publicKey")?);
        let keys = &mut self.accounts.entry(address).or_default().keys;
        let key = keys.get_mut(index as usize);
        let key = key.with_context(|| format!("{address} has no key {index} that the chain tells of"))?;
        let before = key.clone();
        key.revoked = Some(KeyForm::Whole);
        Ok(Deed::KeyRevoked { address, index, key: before, form: KeyForm::Whole })
    }

    /// What is so from this height on.
    fn happened(&mut self, height: u64, deed: &Deed) -> Result<()> {
        let of = match deed {
            Deed::AccountCreated(address)
            | Deed::KeyAdded { address, .. }
            | Deed::KeyRevoked { address, .. } => *address,
            Deed::ContractChanged { contract, code_hash: told, change } => {
                let codes = self.codes.get(&(height, contract.address));
                let codes = codes.with_context(|| format!("nobody asked for the code of {contract}"))?;
                let hash = codes.get(&contract.name).map(|code| code_hash(code));
                let is_so = match change {
                    ContractChange::Removed => hash.is_none(),
                    ContractChange::Added | ContractChange::Updated => hash == Some(*told),
                };
                ensure!(is_so, "{contract} is {change:?}, and the hash of the account's code is {hash:?}");
                self.contracts(height, contract.address, codes)?;
                contract.address
            }
            Deed::Item(moved) => {
                let item = Item {
                    uuid: moved.uuid.context("an item without its resource")?,
                    owner: moved.to,
                    is_burned: moved.kind == MoveKind::Burn,
                    is_resource_told: true,
                    told_owner: moved.to,
                    is_burn_told: moved.kind == MoveKind::Burn,
                };
                self.ledger.items.set((moved.collection.clone(), moved.id), height, item);
                return Ok(());
            }
            _ => return Ok(()),
        };
        let account = self.accounts.entry(of).or_default().clone();
        self.ledger.accounts.set(of, height, account);
        Ok(())
    }

    /// An account's contracts are these from a height on.
    fn contracts(&mut self, height: u64, of: FlowAddress, codes: &BTreeMap<String, Vec<u8>>) -> Result<()> {
        let account = self.accounts.entry(of).or_default();
        let mut contracts = BTreeMap::new();
        for (name, source) in codes {
            let hash = code_hash(source);
            let before = account.contracts.get(name).filter(|before| before.hash == hash);
            let since_height = before.map_or(height, |before| before.since_height);
            let source = String::from_utf8(source.clone()).with_context(|| name.clone())?;
            contracts.insert(name.clone(), Code { source, hash, since_height });
        }
        account.contracts = contracts;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_those_before_everything_else() {
        let script = "// first\nimport A from 0x1\n\nimport B, C from 0x0000000000000002\ntransaction {\nimport D from 0x3";
        let found: Vec<String> =
            imports(script.as_bytes()).expect("are read").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["A.0000000000000001.A", "A.0000000000000002.B", "A.0000000000000002.C"]);
        assert!(imports(b"import \"A\"").is_err());
    }
}
