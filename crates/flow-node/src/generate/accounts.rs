//! Accounts, their keys and their contracts.

use alloy_rlp::Encodable;
use cairn_flow::FlowAddress;
use rand::RngExt;

use super::block::{BlockBuilder, hash};
use super::transaction::Tx;
use crate::cdc::{self, Cdc};
use crate::deeds::{ContractChange, Deed};
use crate::ledger::{Account, Code, ContractId, Key, KeyForm};

/// What an account is given at its creation, for its storage: 0.001 FLOW.
const STORAGE_DEPOSIT: u64 = 100_000;
/// Few names, so that a removed one comes again.
const CONTRACT_NAMES: [&str; 5] =
    ["Market", "Vault", "ExampleNFT", "A", "Contract_with_a_long_name_0123456789"];

/// An account that is older than the root.
pub(super) const ELDER: FlowAddress = FlowAddress([0xe1, 0xde, 0, 0, 0, 0, 0, 1]);
/// The age of the block that names it first.
pub(super) const ELDER_AGE: u64 = 30;

/// What the elder has: two keys, one of them revoked, and a contract.
pub(super) fn elder(since_height: u64) -> Account {
    let key = |number: u8, revoked| Key {
        public_key: vec![number; 64],
        sign_algo: 2,
        hash_algo: 3,
        weight: 500,
        revoked,
        is_in_doubt: false,
        told: None,
    };
    let source = "access(all) contract Elder {}".to_owned();
    let code = Code { hash: hash(&[source.as_bytes()]), source, since_height };
    Account {
        created_height: None,
        keys: vec![key(0xe1, None), key(0xe2, Some(KeyForm::Whole))],
        contracts: [("Elder".to_owned(), code)].into(),
    }
}

impl BlockBuilder<'_> {
    /// The elder signs a transaction that another account pays.
    pub fn elder_transaction(&mut self) {
        let service = self.service();
        let mut tx = Tx::new(service, service, vec![ELDER]);
        tx.scripted(Vec::new(), "the elder signs");
        self.pay_fee(&mut tx);
        self.finish(tx);
    }

    fn key_form(&self) -> KeyForm {
        match self.age() {
            age if age < self.options.rlp_heights => KeyForm::Rlp,
            age if age < self.options.old_heights => KeyForm::Struct,
            _ => KeyForm::Whole,
        }
    }

    fn account(&self, address: FlowAddress) -> Account {
        self.ledger.accounts.last(&address).cloned().unwrap_or_default()
    }

    fn set_account(&mut self, address: FlowAddress, account: Account) {
        self.ledger.accounts.set(address, self.height, account);
    }

    pub fn create_account(&mut self, tx: &mut Tx, payer: FlowAddress) {
        self.counters.accounts += 1;
        let number = self.counters.accounts;
        let digest = hash(&[b"account", &self.options.seed.to_be_bytes(), &number.to_be_bytes()]);
        let mut address = [0; 8];
        address.copy_from_slice(&digest[..8]);
        if number.is_multiple_of(5) {
            // Addresses with leading zeros.
            address[..2].fill(0);
        }
        let address = FlowAddress(address);
        let flow = self.cast.flow.clone();
        let funder = if self.balance(&flow, payer) >= STORAGE_DEPOSIT { payer } else { self.service() };
        let service = self.service();
        tx.scripted(vec![flow.clone(), ContractId::new(service, "FlowServiceAccount")], "create an account");
        let account = Account { created_height: Some(self.height), ..Account::default() };
        self.set_account(address, account);
        tx.event("flow.AccountCreated", &[("address", cdc::address(address))]);
        tx.did(Deed::AccountCreated(address));
        for _ in 0..self.rng.random_range(1..4) {
            self.give_key(tx, address);
        }
        let vault = self.withdraw(tx, &flow, funder, STORAGE_DEPOSIT);
        self.deposit(tx, &flow, address, vault, STORAGE_DEPOSIT);
        self.actors.push(address);
    }

    fn give_key(&mut self, tx: &mut Tx, address: FlowAddress) {
        let mut account = self.account(address);
        let index = account.keys.len();
        let told = self.key_form();
        let of_its_own = hash(&[b"key", &address.0, &index.to_be_bytes(), &self.height.to_be_bytes()]);
        let key = Key {
            public_key: [of_its_own, [7; 32]].concat(),
            sign_algo: self.rng.random_range(1..=2),
            hash_algo: if self.chance(50) { 1 } else { 3 },
            weight: [1000, 500, 1][self.rng.random_range(0..3)],
            revoked: None,
            is_in_doubt: false,
            told: Some(told),
        };
        // At times the same key again, with all it has or its bytes alone: an index of its own all the same.
        let key = match account.keys.last() {
            Some(last) if index % 3 == 1 => {
                Key { told: Some(told), revoked: None, is_in_doubt: false, ..last.clone() }
            }
            Some(last) if index % 3 == 2 => Key { public_key: last.public_key.clone(), ..key },
            _ => key,
        };
        let public = cdc::bytes(&key.public_key);
        let algorithm = cdc::enumeration("SignatureAlgorithm", key.sign_algo);
        let of_account = ("address", cdc::address(address));
        match told {
            KeyForm::Rlp => {
                tx.event("flow.AccountKeyAdded", &[of_account, ("publicKey", cdc::bytes(&rlp_of(&key)))]);
            }
            KeyForm::Struct => {
                let fields = [
                    ("publicKey", public),
                    ("signatureAlgorithm", algorithm),
                    ("isValid", Cdc(r#"{"type":"Bool","value":true}"#.into())),
                ];
                let value = cdc::composite("Struct", "PublicKey", &fields);
                tx.event("flow.AccountKeyAdded", &[of_account, ("publicKey", value)]);
            }
            KeyForm::Whole => {
                let fields = [("publicKey", public), ("signatureAlgorithm", algorithm)];
                tx.event(
                    "flow.AccountKeyAdded",
                    &[
                        of_account,
                        ("publicKey", cdc::composite("Struct", "PublicKey", &fields)),
                        ("weight", cdc::ufix64(u64::from(key.weight) * 100_000_000)),
                        ("hashAlgorithm", cdc::enumeration("HashAlgorithm", key.hash_algo)),
                        ("keyIndex", cdc::number("Int", index)),
                    ],
                );
            }
        }
        tx.did(Deed::KeyAdded { address, index: index as u32, key: key.clone() });
        account.keys.push(key);
        self.set_account(address, account);
    }

    pub fn add_key(&mut self, tx: &mut Tx, actor: FlowAddress) {
        if self.account(actor).created_height.is_none() {
            return self.transfer(tx, actor, 0);
        }
        tx.scripted(Vec::new(), "add a key");
        self.give_key(tx, actor);
    }

    pub fn revoke_key(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let mut account = self.account(actor);
        let alive: Vec<usize> =
            (0..account.keys.len()).filter(|at| account.keys[*at].revoked.is_none()).collect();
        if account.created_height.is_none() || alive.len() < 2 {
            return self.add_key(tx, actor);
        }
        let index = alive[self.rng.random_range(0..alive.len())];
        tx.scripted(Vec::new(), "revoke a key");
        tx.argument(&cdc::number("Int", index));
        let told = self.key_form();
        let named = match told {
            KeyForm::Rlp => cdc::bytes(&stored_rlp_of(&account.keys[index])),
            _ => cdc::number("Int", index),
        };
        let key = account.keys[index].clone();
        revoke(&mut account.keys, index, told);
        tx.event("flow.AccountKeyRemoved", &[("address", cdc::address(actor)), ("publicKey", named)]);
        tx.did(Deed::KeyRevoked { address: actor, index: index as u32, key, form: told });
        self.set_account(actor, account);
    }

    /// An account gives a capability of what it stores out, and publishes it.
    pub fn tell_capability(&mut self, tx: &mut Tx, address: FlowAddress, kind: &str, path: &str) {
        let id = self.next_uuid();
        let at = |domain: &str| {
            Cdc(format!(r#"{{"type":"Path","value":{{"domain":"{domain}","identifier":"{path}"}}}}"#))
        };
        let kind = format!(
            r#"{{"kind":"Reference","authorization":{{"kind":"Unauthorized","entitlements":null}},"type":{{"kind":"Resource","typeID":"{kind}","type":"","fields":[],"initializers":[]}}}}"#
        );
        let owner = ("address", cdc::address(address));
        let controller = [
            ("id", cdc::number("UInt64", id)),
            owner.clone(),
            ("type", Cdc(format!(r#"{{"type":"Type","value":{{"staticType":{kind}}}}}"#))),
            ("path", at("storage")),
        ];
        tx.event("flow.StorageCapabilityControllerIssued", &controller);
        let capability = format!(
            r#"{{"type":"Capability","value":{{"id":"{id}","address":"{address}","borrowType":{kind}}}}}"#
        );
        let published = [owner, ("path", at("public")), ("capability", Cdc(capability))];
        tx.event("flow.CapabilityPublished", &published);
    }

    /// A contract is added, gets new code, or is removed.
    pub fn change_contract(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let mut account = self.account(actor);
        if account.created_height.is_none() {
            return self.transfer(tx, actor, 0);
        }
        let name = CONTRACT_NAMES[self.rng.random_range(0..CONTRACT_NAMES.len())];
        let event = match account.contracts.get(name) {
            None => "flow.AccountContractAdded",
            Some(_) if self.chance(30) => "flow.AccountContractRemoved",
            Some(_) => "flow.AccountContractUpdated",
        };
        let filler = if self.chance(10) { 12_000 } else { self.rng.random_range(0..200) };
        let source = format!(
            "access(all) contract {name} {{\n  // at {}: {}\n{} init() {{}}\n}}\n",
            self.height,
            self.rng.random::<u32>(),
            "  // ß€𝄞\n".repeat(filler / 8)
        );
        let code = Code { hash: hash(&[source.as_bytes()]), source, since_height: self.height };
        tx.scripted(Vec::new(), event);
        tx.argument(&cdc::string(name));
        let told = match event {
            "flow.AccountContractRemoved" => {
                account.contracts.remove(name).map_or(code.hash, |code| code.hash)
            }
            _ => {
                tx.argument(&cdc::string(&hex::encode(&code.source)));
                let told = code.hash;
                account.contracts.insert(name.to_owned(), code);
                told
            }
        };
        let fields = [
            ("address", cdc::address(actor)),
            ("codeHash", cdc::bytes(&told)),
            ("contract", cdc::string(name)),
        ];
        tx.event(event, &fields);
        let change = match event {
            "flow.AccountContractAdded" => ContractChange::Added,
            "flow.AccountContractRemoved" => ContractChange::Removed,
            _ => ContractChange::Updated,
        };
        let contract = ContractId::new(actor, name);
        tx.did(Deed::ContractChanged { contract, code_hash: told, change });
        self.set_account(actor, account);
    }
}

/// The oldest form names the key by its bytes, so it doesn't tell which of equal ones it was. When all of them are revoked, that is known all the same.
fn revoke(keys: &mut [Key], index: usize, told: KeyForm) {
    let bytes = rlp_of(&keys[index]);
    let mut equal: Vec<&mut Key> = Vec::new();
    for (at, key) in keys.iter_mut().enumerate() {
        let is_open = key.revoked.is_none() || key.is_in_doubt;
        if at == index {
            key.revoked = Some(told);
            key.is_in_doubt = false;
        }
        if is_open && rlp_of(key) == bytes && (at != index || told == KeyForm::Rlp) {
            equal.push(key);
        }
    }
    if told == KeyForm::Rlp && equal.len() > 1 {
        equal.iter_mut().for_each(|key| key.is_in_doubt = true);
    }
    if equal.iter().filter(|key| key.is_in_doubt).all(|key| key.revoked.is_some()) {
        equal.iter_mut().for_each(|key| key.is_in_doubt = false);
    }
}

/// `RLP([public key, signature algorithm, hash algorithm, weight])`.
fn rlp_of(key: &Key) -> Vec<u8> {
    rlp_list(rlp_fields(key))
}

/// The key as a node stores it once it is revoked: its sequence number and `true` follow.
fn stored_rlp_of(key: &Key) -> Vec<u8> {
    let mut inner = rlp_fields(key);
    0u64.encode(&mut inner);
    true.encode(&mut inner);
    rlp_list(inner)
}

fn rlp_fields(key: &Key) -> Vec<u8> {
    let mut inner = Vec::new();
    key.public_key.as_slice().encode(&mut inner);
    // As the node's library counts, in which BLS comes first.
    (key.sign_algo + 1).encode(&mut inner);
    key.hash_algo.encode(&mut inner);
    key.weight.encode(&mut inner);
    inner
}

fn rlp_list(inner: Vec<u8>) -> Vec<u8> {
    let mut whole = Vec::new();
    alloy_rlp::Header { list: true, payload_length: inner.len() }.encode(&mut whole);
    whole.extend(inner);
    whole
}
