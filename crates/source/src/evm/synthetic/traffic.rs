//! Who acts on a synthetic chain, and the signed transactions that they send.
//!
//! Transaction `g` of a chain (counted over all its blocks) is sent by a signer that follows from `g` alone, with that
//! signer's next nonce; what it does follows from the traffic's seed, a stream number and `g`. So nonces grow by one
//! without any state, no transaction comes twice on one chain, and two forks may carry the same transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use alloy_consensus::{SignableTransaction, Signed, TxEip1559, TxEip2930, TxEnvelope, TxLegacy};
use alloy_eips::Encodable2718;
use alloy_eips::eip2930::{AccessList, AccessListItem};
use alloy_primitives::{Address, B256, Bloom, Log, Signature, TxKind, keccak256};
use bytes::Bytes;
use cairn_evm::signature;

use super::actions::{Action, Contracts, Mix};
use super::draw::{Draw, hash_words};
use super::economy::Economy;

/// What there is to a traffic.
#[derive(Debug, Clone)]
pub struct TrafficOptions {
    /// Keys, addresses and amounts follow from it.
    pub seed: u64,
    /// The chain for which transactions are signed (EIP-155).
    pub chain_id: u64,
    /// How many accounts have a key and send; a few of them send most.
    pub signers: u32,
    /// How many addresses there are to send to, the signers among them.
    pub accounts: u32,
    /// Which kinds of actions come, and how often.
    pub mix: Mix,
    /// How many signed transactions are kept to be used again. Worth it where many chains share one traffic; about 1 KiB each.
    pub kept_transactions: usize,
}

impl Default for TrafficOptions {
    fn default() -> Self {
        TrafficOptions {
            seed: 1,
            chain_id: 1_337,
            signers: 64,
            accounts: 5_000,
            mix: Mix::Varied,
            kept_transactions: 0,
        }
    }
}

/// A signed transaction, and what it does where it succeeds.
#[derive(Debug)]
pub(crate) struct PreparedTx {
    pub(crate) id: B256,
    pub(crate) sender: Bytes,
    pub(crate) type_byte: u8,
    /// EIP-2718.
    pub(crate) encoded: Vec<u8>,
    /// Whether it calls a contract, so that it may fail.
    pub(crate) can_fail: bool,
    /// Whether it fails, where that doesn't depend on the fork.
    pub(crate) fails: Option<bool>,
    pub(crate) gas_used: u64,
    pub(crate) log_count: u32,
    /// The RLP list of its logs.
    pub(crate) logs: Vec<u8>,
    pub(crate) bloom: Bloom,
}

struct Signer {
    secret: B256,
    address: Address,
    /// How often it sends in one round of the pattern.
    turns: u64,
}

/// The accounts and contracts of a chain, and the maker of its transactions. One may serve many chains.
pub struct Traffic {
    options: TrafficOptions,
    contracts: Contracts,
    signers: Vec<Signer>,
    /// Who sends, turn by turn, round after round: the signer, and which of its turns in the round this is.
    pattern: Vec<(u32, u32)>,
    kept: Mutex<HashMap<(u64, u64), Arc<PreparedTx>>>,
    /// Where people give away only what they have.
    economy: Option<Mutex<Economy>>,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys of play money; still no reason to print them.
        f.debug_struct("Traffic").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Traffic {
    /// Makes keys and addresses: about 0.1 ms a signer.
    pub fn new(options: TrafficOptions) -> Traffic {
        let signer_count = options.signers.max(1);
        let mut signers: Vec<Signer> = (0..signer_count)
            .map(|at| {
                let secret = secret_key(options.seed, at);
                Signer { secret, address: address_of(secret), turns: 0 }
            })
            .collect();
        let mut pattern = Vec::new();
        for at in 0..signer_count {
            // Zipf's law: the second sends half as much as the first, the third a third, …
            let turns = u64::from(signer_count.div_ceil(at + 1));
            pattern.extend((0..turns).map(|_| (at, 0)));
        }
        let mut draw = Draw::of(&[options.seed, TURNS]);
        for at in (1..pattern.len()).rev() {
            pattern.swap(at, draw.below(at as u64 + 1) as usize);
        }
        for (signer, turn) in &mut pattern {
            let signer = &mut signers[*signer as usize];
            *turn = signer.turns as u32;
            signer.turns += 1;
        }
        let contracts = Contracts::new(options.seed, options.mix);
        let economy = (options.mix == Mix::Economy).then(Mutex::default);
        let kept = Mutex::new(HashMap::new());
        let mut traffic = Traffic { options, contracts, signers, pattern, kept, economy };
        if traffic.economy.is_some() {
            traffic.contracts = traffic.contracts.clone().deployed(|g| {
                let (signer, nonce) = traffic.turn(g);
                traffic.account(signer).create(nonce)
            });
        }
        traffic
    }

    /// What it was made with.
    pub fn options(&self) -> &TrafficOptions {
        &self.options
    }

    /// The contracts that are called.
    pub fn contracts(&self) -> &Contracts {
        &self.contracts
    }

    /// The address of account `at`; account 0 is the busiest.
    pub fn account(&self, at: u32) -> Address {
        match self.signers.get(at as usize) {
            Some(signer) => signer.address,
            None => Draw::of(&[self.options.seed, ACCOUNT, u64::from(at)]).address(),
        }
    }

    /// Who sends transaction `g` of any chain, and with which nonce.
    pub(crate) fn turn(&self, g: u64) -> (u32, u64) {
        let round_turns = self.pattern.len() as u64;
        let (signer, turn) = self.pattern[(g % round_turns) as usize];
        (signer, (g / round_turns) * self.signers[signer as usize].turns + u64::from(turn))
    }

    /// Transaction `g` of the stream, signed.
    pub(crate) fn tx(&self, stream: u64, g: u64) -> Arc<PreparedTx> {
        if self.options.kept_transactions == 0 {
            return Arc::new(self.sign(stream, g));
        }
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tx) = kept().get(&(stream, g)) {
            return Arc::clone(tx);
        }
        let tx = Arc::new(self.sign(stream, g));
        let mut kept = kept();
        // Full: what is there stays, since chains all begin with the same transactions.
        if kept.len() < self.options.kept_transactions {
            kept.insert((stream, g), Arc::clone(&tx));
        }
        tx
    }

    /// Signs it, whatever is kept.
    pub(crate) fn sign(&self, stream: u64, g: u64) -> PreparedTx {
        let (signer_at, nonce) = self.turn(g);
        let signer = &self.signers[signer_at as usize];
        let mut draw = Draw::of(&[self.options.seed, TRANSACTION, stream, g]);
        let (action, fails) = match &self.economy {
            Some(economy) => {
                let deed = economy.lock().unwrap_or_else(PoisonError::into_inner).deed(self, g);
                (deed.action(self, signer_at, g), Some(deed.fails()))
            }
            None => (Action::draw(&mut draw, self, signer.address), None),
        };
        let gas_limit = action.gas_used + action.gas_used / 4;
        let to = action.to.map_or(TxKind::Create, TxKind::Call);
        let chain_id = self.options.chain_id;
        let tip_wei = u128::from(draw.between(1, 20)) * 100_000_000;
        let max_fee_wei = u128::from(draw.between(4, 40)) * 1_000_000_000;
        let can_fail = !action.input.is_empty();
        let kind = draw.below(100);
        let (type_byte, envelope) = if kind < 25 {
            let tx = TxLegacy {
                chain_id: Some(chain_id),
                nonce,
                gas_price: max_fee_wei,
                gas_limit,
                to,
                value: action.value,
                input: action.input.into(),
            };
            (0, signed(tx, signer.secret))
        } else if kind < 35 {
            let mut access_list = Vec::new();
            if let (Some(address), true) = (action.to, can_fail) {
                access_list.push(AccessListItem { address, storage_keys: vec![draw.word(); 1] });
            }
            let tx = TxEip2930 {
                chain_id,
                nonce,
                gas_price: max_fee_wei,
                gas_limit: gas_limit + 6_000,
                to,
                value: action.value,
                access_list: AccessList(access_list),
                input: action.input.into(),
            };
            (1, signed(tx, signer.secret))
        } else {
            let tx = TxEip1559 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: max_fee_wei,
                max_priority_fee_per_gas: tip_wei,
                to,
                value: action.value,
                access_list: AccessList::default(),
                input: action.input.into(),
            };
            (2, signed(tx, signer.secret))
        };
        let encoded = envelope.encoded_2718();
        let mut logs = Vec::new();
        alloy_rlp::encode_list::<Log, Log>(&action.logs, &mut logs);
        PreparedTx {
            id: keccak256(&encoded),
            sender: Bytes::copy_from_slice(signer.address.as_slice()),
            type_byte,
            encoded,
            can_fail,
            fails,
            gas_used: action.gas_used,
            log_count: action.logs.len() as u32,
            bloom: action.logs.iter().collect(),
            logs,
        }
    }
}

fn signed<T: SignableTransaction<Signature>>(tx: T, secret: B256) -> TxEnvelope
where
    TxEnvelope: From<Signed<T>>,
{
    #[expect(clippy::expect_used, reason = "a key below the curve's order signs every hash")]
    let signature = signature::sign(secret, tx.signature_hash()).expect("secret_key gives valid keys");
    tx.into_signed(signature).into()
}

fn secret_key(seed: u64, at: u32) -> B256 {
    let mut secret = Draw::of(&[seed, KEY, u64::from(at)]).word();
    // Below the order of the curve, and not 0.
    secret.0[0] = 0x11;
    secret
}

fn address_of(secret: B256) -> Address {
    let message = keccak256(secret);
    #[expect(clippy::expect_used, reason = "a signature that was just made")]
    signature::sign(secret, message)
        .and_then(|signature| signature::recover(&signature, message))
        .expect("secret_key gives valid keys")
}

/// Whether transaction `g` fails on the fork of this salt.
pub(crate) fn fails(salt: u64, g: u64, tx: &PreparedTx, failed_percent: u64) -> bool {
    tx.fails.unwrap_or_else(|| tx.can_fail && hash_words(&[salt, OUTCOME, g]) % 100 < failed_percent)
}

const KEY: u64 = 1;
const TURNS: u64 = 2;
const ACCOUNT: u64 = 3;
const TRANSACTION: u64 = 4;
const OUTCOME: u64 = 5;
