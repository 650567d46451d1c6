//! What each transaction did: tables of single events and movements are compared with it.
//!
//! A movement is of tokens as the generator moved them, vault by vault, and of items as it moved them. It stands at the event that ended it: the deposit,
//! the destruction, or, where nothing of the transaction did, the withdrawal.

use alloy_primitives::Address as EvmAddress;
use cairn_flow::FlowAddress;

use crate::ledger::{ContractId, Key, KeyForm};

/// One thing that a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The event that tells of it, by its place in the transaction.
    pub event_index: u32,
    /// What.
    pub deed: Deed,
}

/// What a transaction can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// An account was made.
    AccountCreated(FlowAddress),
    /// An account was given a key.
    KeyAdded {
        /// Whose.
        address: FlowAddress,
        /// Its place among all keys that the account was ever given.
        index: u32,
        /// The key, and in which form it is told.
        key: Key,
    },
    /// A key was revoked.
    KeyRevoked {
        /// Whose.
        address: FlowAddress,
        /// Its place.
        index: u32,
        /// The key as it was.
        key: Key,
        /// How it is told: the oldest form has the key's bytes and no index.
        form: KeyForm,
    },
    /// A contract was added, changed or removed.
    ContractChanged {
        /// Which.
        contract: ContractId,
        /// SHA3-256 of its code; of a removed one that of its last.
        code_hash: [u8; 32],
        /// What became of it.
        change: ContractChange,
    },
    /// Tokens moved.
    Tokens(TokenMove),
    /// An item moved.
    Item(ItemMove),
    /// An item was destroyed where it lay, and nothing of the transaction names its collection: its resource's id alone is told, and its own.
    ItemDestroyed {
        /// The collection's contract.
        collection: ContractId,
        /// Its id in it.
        id: u64,
        /// The resource's id.
        uuid: u64,
    },
    /// An EVM account was made that a resource owns.
    CoaCreated {
        /// The EVM account.
        coa: EvmAddress,
        /// The resource's id.
        uuid: u64,
        /// Whether the owner gave out a capability of it in the transaction, which others sign too.
        by_capability: bool,
    },
    /// Tokens went into the EVM, or came out of it.
    Bridged,
    /// The chain ran a call that was due.
    Scheduled,
}

/// What became of a contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContractChange {
    /// It is new, or there again.
    Added,
    /// It has other code.
    Updated,
    /// It is gone.
    Removed,
}

/// How tokens or an item came and went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveKind {
    /// New, and told to be so.
    Mint,
    /// Out of no account.
    Release,
    /// From an account to an account.
    Transfer,
    /// Destroyed, and told to be so.
    Burn,
    /// Into no account.
    Withdrawal,
    /// The fee of the transaction.
    Fee,
}

/// Tokens that moved: of one origin, to one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMove {
    /// The token's contract.
    pub token: ContractId,
    /// Whose they were.
    pub from: Option<FlowAddress>,
    /// Whose they are.
    pub to: Option<FlowAddress>,
    /// In units of 10^-8.
    pub amount: u64,
    /// How.
    pub kind: MoveKind,
}

/// An item that moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemMove {
    /// The collection's contract.
    pub collection: ContractId,
    /// Its id in it.
    pub id: u64,
    /// The resource's id, where it is told.
    pub uuid: Option<u64>,
    /// Whose it was.
    pub from: Option<FlowAddress>,
    /// Whose it is.
    pub to: Option<FlowAddress>,
    /// How.
    pub kind: MoveKind,
}
