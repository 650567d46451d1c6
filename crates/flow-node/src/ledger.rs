//! What is true of a generated chain at each height: the generator writes it as it acts, and tests compare it with what cairn derived.

use std::collections::BTreeMap;
use std::fmt;

use alloy_primitives::{Address as EvmAddress, B256, U256};
use cairn_flow::network::Accounts;
use cairn_flow::{FlowAddress, Network, proto};

use crate::deeds::Done;
use crate::history::{Histories, History};

/// A contract: of a token, of a collection, or any other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContractId {
    /// Whose it is.
    pub address: FlowAddress,
    /// Its name within the account.
    pub name: String,
}

impl ContractId {
    /// By its parts.
    pub fn new(address: FlowAddress, name: &str) -> ContractId {
        ContractId { address, name: name.to_owned() }
    }
}

impl fmt::Display for ContractId {
    /// `A.<address>.<name>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "A.{}.{}", self.address.bare(), self.name)
    }
}

/// In which form an event told of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyForm {
    /// As the RLP of the key: the oldest.
    Rlp,
    /// As a struct without weight and index.
    Struct,
    /// With all of it, since Cadence 1.0.
    Whole,
}

/// A key of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The public key.
    pub public_key: Vec<u8>,
    /// As Cadence counts: 1 is ECDSA_P256, 2 ECDSA_secp256k1.
    pub sign_algo: u8,
    /// 1 is SHA2_256, 3 SHA3_256.
    pub hash_algo: u8,
    /// Of 1000.
    pub weight: u32,
    /// How an event told that it was revoked; `None`: it wasn't.
    pub revoked: Option<KeyForm>,
    /// Whether events leave open if it is revoked: one that it shares its bytes with was revoked by them, or it was.
    pub is_in_doubt: bool,
    /// How an event told of it; `None`: none did, the account is as old as the chain.
    pub told: Option<KeyForm>,
}

/// A contract's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// The source.
    pub source: String,
    /// SHA3-256 of it.
    pub hash: [u8; 32],
    /// The height at which it got this code.
    pub since_height: u64,
}

/// An account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Account {
    /// The height of its creation; `None`: it is as old as the chain.
    pub created_height: Option<u64>,
    /// Its keys by index.
    pub keys: Vec<Key>,
    /// Its contracts by name. Removed ones aren't among them.
    pub contracts: BTreeMap<String, Code>,
}

/// An account's vault of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vault {
    /// The resource's id.
    pub uuid: u64,
    /// In units of 10^-8.
    pub balance: u64,
}

/// An item of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// The resource's id.
    pub uuid: u64,
    /// Who has it; `None`: it was destroyed, or lies in some other resource.
    pub owner: Option<FlowAddress>,
    /// Whether it was destroyed.
    pub is_burned: bool,
    /// Whether a movement told which resource it is.
    pub is_resource_told: bool,
    /// Who has it as far as events tell: the last owner still, where it was destroyed with its collection and nothing told which item that was.
    pub told_owner: Option<FlowAddress>,
    /// Whether events tell that it was destroyed.
    pub is_burn_told: bool,
}

impl Item {
    /// It has this owner now, as a movement told.
    pub fn moved(self, owner: Option<FlowAddress>, is_resource_told: bool) -> Item {
        Item { owner, told_owner: owner, is_resource_told: self.is_resource_told || is_resource_told, ..self }
    }

    /// It is destroyed.
    pub fn destroyed(self, is_told: bool) -> Item {
        let told_owner = if is_told { None } else { self.told_owner };
        Item { owner: None, is_burned: true, told_owner, is_burn_told: is_told, ..self }
    }
}

/// An account of the EVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvmAccount {
    /// Its next transaction's.
    pub nonce: u64,
    /// In units of 10^-8 FLOW.
    pub balance: u64,
}

/// A log of an EVM transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmLog {
    /// Its place in the EVM block.
    pub index: u32,
    /// Who logged.
    pub address: EvmAddress,
    /// At most four.
    pub topics: Vec<B256>,
    /// The rest.
    pub data: Vec<u8>,
}

/// An EVM transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvmTx {
    /// Its hash.
    pub hash: B256,
    /// The Flow block's height.
    pub height: u64,
    /// The place of the Flow transaction that ran it, in its block.
    pub flow_tx_index: usize,
    /// Its place in the EVM block.
    pub index: u32,
    /// Its type; 255: a direct call.
    pub tx_type: u8,
    /// Who sent it.
    pub from: EvmAddress,
    /// Whom it calls.
    pub to: Option<EvmAddress>,
    /// The contract that it created.
    pub created: Option<EvmAddress>,
    /// The sender's count.
    pub nonce: u64,
    /// In attoflow.
    pub value: U256,
    /// What it may use.
    pub gas_limit: u64,
    /// What it used.
    pub gas_used: u64,
    /// Price of one gas, or the most that it pays.
    pub gas_price: u128,
    /// The most that it pays beyond the block's price, where it pays by that.
    pub max_priority_fee: Option<u128>,
    /// The input.
    pub input: Vec<u8>,
    /// What kind of direct call it is: `deposit`, `withdraw`, `transfer`, `deploy` or `call`.
    pub direct: Option<&'static str>,
    /// 0: it succeeded.
    pub error_code: u16,
    /// What its event says of the failure.
    pub error_message: String,
    /// What it returned.
    pub returned: Vec<u8>,
    /// What it logged.
    pub logs: Vec<EvmLog>,
    /// The EVM block that it is in.
    pub evm_height: u64,
    /// The place of its event in the Flow transaction.
    pub event_index: u32,
}

/// An EVM block. The last transaction of a Flow block closes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvmBlock {
    /// Its height.
    pub height: u64,
    /// Its hash.
    pub hash: B256,
    /// The hash of the one before.
    pub parent: B256,
    /// Seconds since 1970.
    pub timestamp_s: u64,
    /// All its transactions' gas.
    pub gas_used: u64,
    /// How many transactions it has.
    pub transactions: u32,
    /// The place of its event in the Flow transaction.
    pub event_index: u32,
}

/// A Flow transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowTx {
    /// Its id.
    pub id: [u8; 32],
    /// Whether the chain itself made it.
    pub is_system: bool,
    /// Whether it failed.
    pub is_failed: bool,
    /// Who paid.
    pub payer: FlowAddress,
    /// Whose sequence number it used.
    pub proposer: FlowAddress,
    /// Who authorised it.
    pub authorizers: Vec<FlowAddress>,
    /// What its script imports.
    pub imports: Vec<ContractId>,
    /// The fee in units of 10^-8 FLOW.
    pub fee: u64,
    /// Whether an event told of it: none does in the first block, and the chain's own transactions pay none.
    pub is_fee_told: bool,
    /// What it used.
    pub computation: u64,
    /// What it was allowed to use.
    pub computation_limit: u64,
    /// What including and executing it cost, where the fee's event says it.
    pub efforts: Option<(u64, u64)>,
    /// What the node says of its failure.
    pub error: String,
    /// The types of its events, in order.
    pub event_types: Vec<String>,
    /// What it did.
    pub done: Vec<Done>,
}

/// Numbers that are given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// The next resource's id.
    pub uuid: u64,
    /// How many accounts were made.
    pub accounts: u64,
    /// The next proposal's sequence number.
    pub sequence: u64,
    /// The next item's id, counted over all collections.
    pub items: u64,
    /// The newest EVM block.
    pub evm_height: u64,
    /// Its hash.
    pub evm_hash: B256,
    /// The next scheduled transaction.
    pub scheduled: u64,
}

/// Everything, at each height.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Where the chain's own contracts are.
    pub network: Network,
    /// Accounts by address.
    pub accounts: Histories<FlowAddress, Account>,
    /// Vaults by token and account.
    pub vaults: Histories<(ContractId, FlowAddress), Vault>,
    /// Tokens that lie in other resources, by token and the vault's id; 0: they were taken out again.
    pub parked: Histories<(ContractId, u64), u64>,
    /// How many there are of a token.
    pub supplies: Histories<ContractId, u64>,
    /// Items by collection and id.
    pub items: Histories<(ContractId, u64), Item>,
    /// EVM accounts.
    pub evm_accounts: Histories<EvmAddress, EvmAccount>,
    /// Whose a Cadence-owned EVM account is.
    pub coas: Histories<EvmAddress, FlowAddress>,
    /// EVM transactions by height, in order.
    pub evm_transactions: BTreeMap<u64, Vec<EvmTx>>,
    /// EVM blocks by the height of the Flow block that closed them. Not every one closes one.
    pub evm_blocks: BTreeMap<u64, EvmBlock>,
    /// Transactions by height, in order.
    pub transactions: BTreeMap<u64, Vec<FlowTx>>,
    /// Times of blocks by height, in milliseconds since 1970.
    pub times_ms: BTreeMap<u64, u64>,
    /// See [`Counters`].
    pub counters: History<Counters>,
    /// What accounts had before the first block, of which no event tells: nothing where the chain is generated.
    pub before: BTreeMap<(ContractId, FlowAddress), u64>,
}

impl Ledger {
    /// An empty one.
    pub fn new(network: Network) -> Ledger {
        Ledger {
            network,
            accounts: Histories::default(),
            vaults: Histories::default(),
            parked: Histories::default(),
            supplies: Histories::default(),
            items: Histories::default(),
            evm_accounts: Histories::default(),
            coas: Histories::default(),
            evm_transactions: BTreeMap::new(),
            evm_blocks: BTreeMap::new(),
            transactions: BTreeMap::new(),
            times_ms: BTreeMap::new(),
            counters: History::default(),
            before: BTreeMap::new(),
        }
    }

    /// Where the chain's own contracts are.
    pub fn places(&self) -> Accounts {
        self.network.accounts()
    }

    /// The token of fees.
    pub fn flow_token(&self) -> ContractId {
        ContractId::new(self.places().flow_token, "FlowToken")
    }

    /// Takes back what came after `height`.
    pub fn truncate(&mut self, height: u64) {
        self.accounts.truncate(height);
        self.vaults.truncate(height);
        self.parked.truncate(height);
        self.supplies.truncate(height);
        self.items.truncate(height);
        self.evm_accounts.truncate(height);
        self.coas.truncate(height);
        self.evm_transactions.split_off(&(height + 1));
        self.evm_blocks.split_off(&(height + 1));
        self.transactions.split_off(&(height + 1));
        self.times_ms.split_off(&(height + 1));
        self.counters.truncate(height);
    }

    /// Balances above 0 behind the block at `height`, by token and account.
    pub fn balances(&self, height: u64) -> BTreeMap<(ContractId, FlowAddress), u64> {
        let above_zero = self.vaults.all_at(height).filter(|(_, vault)| vault.balance > 0);
        above_zero.map(|(key, vault)| (key.clone(), vault.balance)).collect()
    }

    /// What the chain's movements made of balances: those that aren't 0. Below it where somebody gave away what was there before the first block.
    pub fn moved_balances(&self, height: u64) -> BTreeMap<(ContractId, FlowAddress), i128> {
        let mut balances: BTreeMap<(ContractId, FlowAddress), i128> =
            self.vaults.all_at(height).map(|(key, vault)| (key.clone(), vault.balance.into())).collect();
        for (key, before) in &self.before {
            *balances.entry(key.clone()).or_default() -= i128::from(*before);
        }
        balances.retain(|_, balance| *balance != 0);
        balances
    }

    /// Every item that there ever was, behind the block at `height`.
    pub fn items_at(&self, height: u64) -> BTreeMap<(ContractId, u64), Item> {
        self.items.all_at(height).map(|(key, item)| (key.clone(), *item)).collect()
    }

    /// An account as `GetAccountAtBlockHeight` has it.
    pub fn account(&self, address: &[u8], height: u64) -> Option<proto::Account> {
        let address = FlowAddress::from_slice(address)?;
        let account = self.accounts.at(&address, height)?;
        let key = |(index, key): (u32, &Key)| proto::AccountKey {
            index,
            public_key: key.public_key.clone().into(),
            // The Access API counts otherwise than Cadence: 1 is BLS, 2 ECDSA_P256, 3 ECDSA_secp256k1.
            sign_algo: u32::from(key.sign_algo) + 1,
            hash_algo: key.hash_algo.into(),
            weight: key.weight,
            sequence_number: 0,
            revoked: key.revoked.is_some(),
        };
        Some(proto::Account {
            address: address.0.to_vec().into(),
            balance: self.vaults.at(&(self.flow_token(), address), height).map_or(0, |vault| vault.balance),
            keys: (0..).zip(&account.keys).map(key).collect(),
            contracts: account
                .contracts
                .iter()
                .map(|(name, code)| (name.clone(), code.source.clone().into_bytes()))
                .collect(),
        })
    }
}
