//! EVM transactions: signed ones that Cadence runs, and direct calls of Cadence-owned accounts. Encoded here on its own, from flow-go's
//! `fvm/evm/types`.

use alloy_consensus::{
    SignableTransaction, Signed, Transaction as _, TxEip1559, TxEip2930, TxEnvelope, TxLegacy,
};
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Signature, TxKind, U256, keccak256};
use alloy_rlp::Encodable;
use cairn_flow::FlowAddress;
use rand::RngExt;
use secp256k1::ecdsa::RecoverableSignature;
use secp256k1::{Message, PublicKey, SecretKey};

use super::block::BlockBuilder;
use super::transaction::Tx;
use crate::cdc::{self, Cdc};
use crate::deeds::Deed;
use crate::ledger::{ContractId, EvmAccount, EvmBlock, EvmLog, EvmTx};

/// Accounts with keys of their own.
const SIGNERS: u64 = 6;
/// Attoflow in a unit of 10^-8 FLOW.
const ATTO: u64 = 10_000_000_000;
/// How many of 256 EVM blocks with transactions a Flow block leaves open.
const SPLITS_OF_256: u8 = 24;
/// Events of the EVM's first blocks lack their newest fields.
const SHORT_EVENTS_HEIGHTS: u64 = 60;

/// What a direct call is.
#[derive(Clone, Copy, PartialEq)]
enum Direct {
    Deposit = 1,
    Withdraw = 2,
    Transfer = 3,
    Deploy = 4,
    Call = 5,
}

impl Direct {
    const fn name(self) -> &'static str {
        match self {
            Direct::Deposit => "deposit",
            Direct::Withdraw => "withdraw",
            Direct::Transfer => "transfer",
            Direct::Deploy => "deploy",
            Direct::Call => "call",
        }
    }
}

/// What came of it, before it has a place.
struct Outcome {
    error_code: u16,
    gas_used: u64,
    created: Option<Address>,
}

/// A well-known account of the EVM on Flow, by its first number: 1 bridges the token, 2 makes accounts.
fn of_chain(first: u8) -> Address {
    let mut bytes = [0; 20];
    bytes[11] = first;
    bytes.into()
}

fn list(inner: Vec<u8>) -> Vec<u8> {
    let mut whole = Vec::with_capacity(inner.len() + 9);
    alloy_rlp::Header { list: true, payload_length: inner.len() }.encode(&mut whole);
    whole.extend(inner);
    whole
}

fn encode_logs(logs: &[EvmLog]) -> Vec<u8> {
    if logs.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    for log in logs {
        let mut one = Vec::new();
        log.address.encode(&mut one);
        log.topics.encode(&mut one);
        log.data.as_slice().encode(&mut one);
        all.extend(list(one));
    }
    list(all)
}

impl BlockBuilder<'_> {
    fn evm_contract(&self) -> ContractId {
        ContractId::new(self.service(), "EVM")
    }

    fn evm_account(&self, address: Address) -> EvmAccount {
        self.ledger.evm_accounts.last(&address).copied().unwrap_or_default()
    }

    fn set_evm_account(&mut self, address: Address, account: EvmAccount) {
        self.ledger.evm_accounts.set(address, self.height, account);
    }

    /// Gives the account's next nonce away.
    fn take_nonce(&mut self, address: Address) -> u64 {
        let account = self.evm_account(address);
        self.set_evm_account(address, EvmAccount { nonce: account.nonce + 1, ..account });
        account.nonce
    }

    fn word(&mut self) -> B256 {
        let mut word = [0; 32];
        self.rng.fill(&mut word[..]);
        word.into()
    }

    fn some_bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.random_range(0..=most)];
        self.rng.fill(&mut bytes[..]);
        bytes
    }

    fn any_address(&mut self) -> Address {
        let number = self.rng.random_range(0..20u64);
        Address::from_word(keccak256(number.to_be_bytes()))
    }

    fn logs(&mut self) -> Vec<EvmLog> {
        let count = if self.chance(50) { 0 } else { self.rng.random_range(1..5) };
        let mut logs = Vec::new();
        for _ in 0..count {
            let topics = self.rng.random_range(0..=4);
            logs.push(EvmLog {
                index: self.evm.logs,
                address: self.any_address(),
                topics: (0..topics).map(|_| self.word()).collect(),
                data: if self.chance(2) { vec![9; 9_000] } else { self.some_bytes(64) },
            });
            self.evm.logs += 1;
        }
        logs
    }

    /// What tokens and collections of the EVM log: movements between few parties, of which some have not what they give.
    fn token_logs(&mut self, hash: B256) -> Vec<EvmLog> {
        let draw = keccak256([hash.as_slice(), b"tokens"].concat());
        let party = |byte: u8| match byte % 6 {
            0 => B256::ZERO,
            number => Address::repeat_byte(number).into_word(),
        };
        let word = |number: u64| B256::from(U256::from(number)).to_vec();
        let mut logs = Vec::new();
        for at in 0..usize::from(draw[0] % 4) {
            let bytes = &draw[1 + at * 6..][..6];
            let (from, to) = (party(bytes[1]), party(bytes[2]));
            let (id, amount) = (u64::from(bytes[3] % 8), u64::from(bytes[4]) + 1);
            let operator = Address::repeat_byte(9).into_word();
            let (name, topics, data) = match bytes[0] % 5 {
                0 | 1 => ("Transfer(address,address,uint256)", vec![from, to], word(amount)),
                2 => {
                    let id = B256::from(U256::from(id));
                    ("Transfer(address,address,uint256)", vec![from, to, id], Vec::new())
                }
                3 => {
                    let name = "TransferSingle(address,address,address,uint256,uint256)";
                    (name, vec![operator, from, to], [word(id), word(amount)].concat())
                }
                _ => {
                    let name = "TransferBatch(address,address,address,uint256[],uint256[])";
                    let arrays = [64, 160, 2, id, id + 1, 2, amount, 1].map(word).concat();
                    (name, vec![operator, from, to], arrays)
                }
            };
            // Two tokens, and a collection of each standard.
            let contract = match bytes[0] % 5 {
                0 | 1 => 0xe0 + bytes[5] % 2,
                2 => 0xe2,
                _ => 0xe3,
            };
            logs.push(EvmLog {
                index: self.evm.logs,
                address: Address::repeat_byte(contract),
                topics: [vec![keccak256(name)], topics].concat(),
                data,
            });
            self.evm.logs += 1;
        }
        logs
    }

    pub fn evm_action(&mut self, tx: &mut Tx, actor: FlowAddress) {
        tx.scripted(vec![self.evm_contract(), self.cast.flow.clone()], "EVM");
        let coa = self.ledger.coas.all().find(|(_, owner)| **owner == actor).map(|(coa, _)| *coa);
        match (self.rng.random_range(0..10), coa) {
            (0..4, _) => self.run_signed(tx),
            (_, None) => self.create_coa(tx, actor),
            (4 | 5, Some(coa)) => self.deposit_to_evm(tx, actor, coa),
            (6 | 7, Some(coa)) => self.withdraw_from_evm(tx, actor, coa),
            (_, Some(coa)) => {
                let direct = [Direct::Transfer, Direct::Deploy, Direct::Call, Direct::Call];
                let direct = direct[self.rng.random_range(0..direct.len())];
                let to = if direct == Direct::Deploy { None } else { Some(self.any_address()) };
                let input = if direct == Direct::Transfer { Vec::new() } else { self.some_bytes(120) };
                let value = if direct == Direct::Transfer { 1 } else { 0 };
                self.direct(tx, direct, coa, to, input, U256::from(value));
            }
        }
    }

    fn create_coa(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let uuid = self.next_uuid();
        let coa = self.direct(tx, Direct::Deploy, of_chain(2), None, vec![0x60, 0x80], U256::ZERO);
        let Some(coa) = coa else { return };
        self.ledger.coas.set(coa, self.height, actor);
        let name = format!("{}.CadenceOwnedAccountCreated", self.evm_contract());
        let address = cdc::string(&hex::encode(coa));
        tx.event(&name, &[("address", address), ("uuid", cdc::number("UInt64", uuid))]);
        let by_capability = self.chance(50);
        tx.did(Deed::CoaCreated { coa, uuid, by_capability });
        let kind = format!("{}.CadenceOwnedAccount", self.evm_contract());
        if by_capability {
            // One more signs, so that nothing else says whose it is.
            tx.authorizers.push(self.service());
            self.tell_capability(tx, actor, &kind, "evm");
        }
        if self.chance(30) {
            let stranger = self.actor();
            let kind = format!("{}.CadenceOwnedAccount", ContractId::new(stranger, "EVM"));
            self.tell_capability(tx, stranger, &kind, "evm");
        }
    }

    /// What `FLOWTokensDeposited` and `FLOWTokensWithdrawn` say.
    fn tell_bridged(&self, tx: &mut Tx, event: &str, side: &str, coa: Address, amount: u64, uuid: u64) {
        let after = U256::from(self.evm_account(coa).balance) * U256::from(ATTO);
        let fields = [
            ("address", cdc::string(&hex::encode(coa))),
            ("amount", cdc::ufix64(amount)),
            (side, cdc::number("UInt64", uuid)),
            ("balanceAfterInAttoFlow", cdc::number("UInt", after)),
        ];
        tx.event(&format!("{}.{event}", self.evm_contract()), &fields);
        tx.did(Deed::Bridged);
    }

    fn deposit_to_evm(&mut self, tx: &mut Tx, actor: FlowAddress, coa: Address) {
        let flow = self.cast.flow.clone();
        let balance = self.balance(&flow, actor);
        if balance == 0 {
            return self.run_signed(tx);
        }
        let amount = self.rng.random_range(1..=balance);
        let vault = self.withdraw(tx, &flow, actor, amount);
        let value = U256::from(amount) * U256::from(ATTO);
        self.direct(tx, Direct::Deposit, of_chain(1), Some(coa), Vec::new(), value);
        let account = self.evm_account(coa);
        self.set_evm_account(coa, EvmAccount { balance: account.balance + amount, ..account });
        self.tell_bridged(tx, "FLOWTokensDeposited", "depositedUUID", coa, amount, vault);
    }

    fn withdraw_from_evm(&mut self, tx: &mut Tx, actor: FlowAddress, coa: Address) {
        let account = self.evm_account(coa);
        if account.balance == 0 {
            return self.deposit_to_evm(tx, actor, coa);
        }
        let amount = self.rng.random_range(1..=account.balance);
        let flow = self.cast.flow.clone();
        let value = U256::from(amount) * U256::from(ATTO);
        self.direct(tx, Direct::Withdraw, coa, Some(of_chain(1)), Vec::new(), value);
        let account = self.evm_account(coa);
        self.set_evm_account(coa, EvmAccount { balance: account.balance - amount, ..account });
        let vault = self.next_uuid();
        self.tell_bridged(tx, "FLOWTokensWithdrawn", "withdrawnUUID", coa, amount, vault);
        self.deposit(tx, &flow, actor, vault, amount);
    }

    /// A direct call; the contract that it created.
    fn direct(
        &mut self,
        tx: &mut Tx,
        direct: Direct,
        from: Address,
        to: Option<Address>,
        input: Vec<u8>,
        value: U256,
    ) -> Option<Address> {
        let nonce = self.take_nonce(from);
        let gas_limit = self.rng.random_range(30_000..16_000_000);
        let mut items = Vec::new();
        0xffu8.encode(&mut items);
        (direct as u8).encode(&mut items);
        from.encode(&mut items);
        to.unwrap_or_default().encode(&mut items);
        input.as_slice().encode(&mut items);
        value.encode(&mut items);
        gas_limit.encode(&mut items);
        nonce.encode(&mut items);
        let mut payload = vec![0xff];
        payload.extend(list(items));
        // As of a legacy transaction with v = 255, r = the sender, s = the sub-type.
        let mut hashed = Vec::new();
        nonce.encode(&mut hashed);
        U256::ZERO.encode(&mut hashed);
        gas_limit.encode(&mut hashed);
        match to {
            Some(to) => to.encode(&mut hashed),
            None => [0u8; 0].as_slice().encode(&mut hashed),
        }
        value.encode(&mut hashed);
        input.as_slice().encode(&mut hashed);
        U256::from(255).encode(&mut hashed);
        U256::from_be_slice(from.as_slice()).encode(&mut hashed);
        U256::from(direct as u8).encode(&mut hashed);
        let is_failed = direct == Direct::Call && self.chance(20);
        let created = (direct == Direct::Deploy).then(|| from.create(nonce));
        let outcome =
            Outcome { error_code: if is_failed { 306 } else { 0 }, gas_used: gas_limit / 2, created };
        let evm = EvmTx {
            hash: keccak256(list(hashed)),
            tx_type: 0xff,
            from,
            to,
            nonce,
            value,
            gas_limit,
            gas_price: 0,
            input,
            direct: Some(direct.name()),
            ..self.unplaced()
        };
        self.executed(tx, evm, payload, outcome);
        created
    }

    fn unplaced(&self) -> EvmTx {
        EvmTx {
            hash: B256::ZERO,
            height: self.height,
            flow_tx_index: self.tx_index(),
            index: self.evm.hashes.len() as u32,
            tx_type: 0,
            from: Address::ZERO,
            to: None,
            created: None,
            nonce: 0,
            value: U256::ZERO,
            gas_limit: 0,
            gas_used: 0,
            gas_price: 0,
            max_priority_fee: None,
            input: Vec::new(),
            direct: None,
            error_code: 0,
            error_message: String::new(),
            returned: Vec::new(),
            logs: Vec::new(),
            evm_height: self.counters.evm_height + 1,
            event_index: 0,
        }
    }

    /// A signed transaction of one of three types.
    fn run_signed(&mut self, tx: &mut Tx) {
        let signer = self.rng.random_range(0..SIGNERS);
        let mut secret = keccak256([self.options.seed.to_be_bytes(), signer.to_be_bytes()].concat());
        // Below the order of the curve, and not 0.
        secret.0[0] = 0x11;
        let key = SecretKey::from_secret_bytes(secret.0).expect("below the order of the curve");
        let public = PublicKey::from_secret_key(&key).serialize_uncompressed();
        let from = Address::from_raw_public_key(&public[1..]);
        let chain_id = self.options.network.evm_chain_id();
        let to = if self.chance(15) { TxKind::Create } else { TxKind::Call(self.any_address()) };
        let error_code = match self.rng.random_range(0..10) {
            0 => 201,
            1 => 306,
            _ => 0,
        };
        // What can't be paid for may be any number.
        let value = if error_code == 201 { U256::MAX } else { U256::from(self.rng.random::<u64>()) };
        let nonce = if error_code == 201 { u64::MAX } else { self.take_nonce(from) };
        let input = if self.chance(3) { vec![5; 9_500] } else { self.some_bytes(100) };
        let gas_limit = self.rng.random_range(21_000..1_000_000);
        let price = self.rng.random_range(0..1_000_000_000u128);
        let envelope = match self.rng.random_range(0..4) {
            0 => sign(
                secret,
                TxLegacy {
                    chain_id: Some(chain_id),
                    nonce,
                    gas_price: price,
                    gas_limit,
                    to,
                    value,
                    input: input.clone().into(),
                },
            ),
            // Before EIP-155: of no chain.
            1 => sign(
                secret,
                TxLegacy {
                    chain_id: None,
                    nonce,
                    gas_price: price,
                    gas_limit,
                    to,
                    value,
                    input: input.clone().into(),
                },
            ),
            2 => sign(
                secret,
                TxEip2930 {
                    chain_id,
                    nonce,
                    gas_price: price,
                    gas_limit,
                    to,
                    value,
                    input: input.clone().into(),
                    access_list: Default::default(),
                },
            ),
            _ => sign(
                secret,
                TxEip1559 {
                    chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: price,
                    max_priority_fee_per_gas: price / 2,
                    to,
                    value,
                    access_list: Default::default(),
                    input: input.clone().into(),
                },
            ),
        };
        let payload = envelope.encoded_2718();
        let created = (to == TxKind::Create && error_code == 0).then(|| from.create(nonce));
        let outcome =
            Outcome { error_code, gas_used: if error_code == 201 { 0 } else { gas_limit / 3 }, created };
        let evm = EvmTx {
            hash: keccak256(&payload),
            tx_type: envelope.tx_type() as u8,
            from,
            to: to.to().copied(),
            nonce,
            value,
            gas_limit,
            gas_price: price,
            max_priority_fee: envelope.max_priority_fee_per_gas(),
            input,
            ..self.unplaced()
        };
        self.executed(tx, evm, payload, outcome);
    }

    /// Gives it its place, and tells of it.
    fn executed(&mut self, tx: &mut Tx, mut evm: EvmTx, payload: Vec<u8>, outcome: Outcome) {
        (evm.error_code, evm.gas_used, evm.created) = (outcome.error_code, outcome.gas_used, outcome.created);
        evm.logs = if evm.error_code == 0 { self.logs() } else { Vec::new() };
        if evm.error_code == 0 && self.options.has_evm_tokens {
            evm.logs.extend(self.token_logs(evm.hash));
        }
        let message = match evm.error_code {
            0 => "",
            306 => "execution reverted",
            _ => "insufficient funds for gas * price + value: \"have\" 0 \u{0}",
        };
        let returned = if evm.error_code == 306 { self.some_bytes(80) } else { Vec::new() };
        (evm.error_message, evm.returned) = (message.to_owned(), returned.clone());
        let contract = evm.created.map_or_else(String::new, |created| created.to_string());
        let mut fields = vec![
            ("hash", cdc::bytes(evm.hash.as_slice())),
            ("index", cdc::number("UInt16", evm.index)),
            ("type", cdc::number("UInt8", evm.tx_type)),
            ("payload", cdc::bytes(&payload)),
            ("errorCode", cdc::number("UInt16", evm.error_code)),
            ("errorMessage", cdc::string(message)),
            ("gasConsumed", cdc::number("UInt64", evm.gas_used)),
            ("contractAddress", cdc::string(&contract)),
            ("logs", cdc::bytes(&encode_logs(&evm.logs))),
            ("blockHeight", cdc::number("UInt64", evm.evm_height)),
            ("returnedData", cdc::bytes(&returned)),
            ("precompiledCalls", cdc::bytes(&[])),
        ];
        if !self.is_short() {
            fields.push(("stateUpdateChecksum", cdc::bytes(&evm.hash[..4])));
        }
        evm.event_index = tx.events.len() as u32;
        tx.event(&format!("{}.TransactionExecuted", self.evm_contract()), &fields);
        self.evm.gas_used += evm.gas_used;
        self.evm.hashes.push(evm.hash);
        self.ledger.evm_transactions.entry(self.height).or_default().push(evm);
    }

    /// Whether events still lack their newest fields.
    fn is_short(&self) -> bool {
        self.age() < self.options.old_heights + SHORT_EVENTS_HEIGHTS
    }

    /// Whether the system transaction fails over an EVM block with transactions, which goes on in the next Flow block then. It draws no number, so that all
    /// else of a chain stays what it is.
    fn is_split(&self) -> bool {
        keccak256([self.counters.evm_hash.as_slice(), &self.height.to_be_bytes()].concat())[0] < SPLITS_OF_256
    }

    /// The system transaction closes the EVM block. One without transactions is at times left out, or the system transaction fails.
    pub fn end_evm_block(&mut self, tx: &mut Tx) {
        if self.is_old() {
            return;
        }
        let is_empty = self.evm.hashes.is_empty();
        let is_left_out = is_empty && self.chance(30);
        if (is_left_out && self.chance(10)) || (!is_empty && self.is_split()) {
            tx.error =
                Some("[Error Code: 1101] cadence runtime error: the system transaction panicked".into());
            return;
        }
        if is_left_out {
            return;
        }
        let parent = self.counters.evm_hash;
        self.counters.evm_height += 1;
        let root = cairn_flow::evm::transaction_hash_root(&self.evm.hashes);
        let height = self.counters.evm_height;
        self.counters.evm_hash =
            keccak256([parent.as_slice(), root.as_slice(), &height.to_be_bytes()].concat());
        let timestamp_s = super::ROOT_TIME_MS / 1000 + self.age();
        let mut fields: Vec<(&str, Cdc)> = vec![
            ("height", cdc::number("UInt64", height)),
            ("hash", cdc::bytes(self.counters.evm_hash.as_slice())),
            ("timestamp", cdc::number("UInt64", timestamp_s)),
            ("totalSupply", cdc::number("Int", U256::from(height) * U256::from(ATTO))),
            ("totalGasUsed", cdc::number("UInt64", self.evm.gas_used)),
            ("parentHash", cdc::bytes(parent.as_slice())),
            ("receiptRoot", cdc::bytes(keccak256(root).as_slice())),
            ("transactionHashRoot", cdc::bytes(root.as_slice())),
        ];
        if !self.is_short() {
            fields.push(("prevrandao", cdc::bytes(keccak256(parent).as_slice())));
        }
        let block = EvmBlock {
            height,
            hash: self.counters.evm_hash,
            parent,
            timestamp_s,
            gas_used: self.evm.gas_used,
            transactions: self.evm.hashes.len() as u32,
            event_index: tx.events.len() as u32,
        };
        self.ledger.evm_blocks.insert(self.height, block);
        tx.event(&format!("{}.BlockExecuted", self.evm_contract()), &fields);
    }
}

fn sign<T>(secret: B256, tx: T) -> TxEnvelope
where
    T: SignableTransaction<Signature>,
    TxEnvelope: From<Signed<T>>,
{
    let key = SecretKey::from_secret_bytes(secret.0).expect("below the order of the curve");
    let digest = Message::from_digest(tx.signature_hash().0);
    let (recovery, bytes) = RecoverableSignature::sign_ecdsa_recoverable(digest, &key).serialize_compact();
    tx.into_signed(Signature::from_bytes_and_parity(&bytes, u8::from(recovery) & 1 == 1)).into()
}
