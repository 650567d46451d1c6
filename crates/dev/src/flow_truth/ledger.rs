//! The ledger as the tables of events want it: every transaction at its place, with what it did.

use anyhow::{Context, Result};
use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{Deed, Done, ItemMove, MoveKind, TokenMove};
use cairn_flow_node::ledger::{ContractId, FlowTx};
use cairn_flow_node::{Ledger, scripts};

use super::rows::{Cell, bytes, number, text};

/// What is true of a chain up to a height, and of what the tables may know of it.
#[derive(Clone, Copy)]
pub struct Truth<'l> {
    pub ledger: &'l Ledger,
    /// The first height.
    pub root: u64,
    /// The last one.
    pub height: u64,
    /// The first height of Cadence 1.0: before it events name no vaults, and nothing tells that an item was destroyed.
    pub new_from: u64,
    /// Whether blocks were taken back, so that there may be code of contracts that never were.
    pub is_forked: bool,
    /// What contracts call themselves.
    pub names: &'l dyn Names,
}

/// What contracts say of themselves and of their items, once for all heights; `None`: nobody knows.
pub trait Names {
    /// A token's name and symbol.
    fn token(&self, token: &ContractId) -> Option<(String, String)>;
    /// A collection's name.
    fn collection(&self, collection: &ContractId) -> Option<String>;
    /// Where the picture of an item is.
    fn picture(&self, collection: &ContractId, id: u64) -> Option<String>;
    /// What a contract of the EVM calls itself, by its address in hex, and its symbol.
    fn evm(&self, contract: &str) -> Option<(String, String)>;
}

/// What the contracts of a generated chain say.
pub struct Generated;

impl Names for Generated {
    fn token(&self, token: &ContractId) -> Option<(String, String)> {
        Some(scripts::token_names(token))
    }

    fn collection(&self, collection: &ContractId) -> Option<String> {
        Some(scripts::collection_name(collection))
    }

    fn picture(&self, collection: &ContractId, id: u64) -> Option<String> {
        Some(scripts::item_uri(collection, id))
    }

    fn evm(&self, contract: &str) -> Option<(String, String)> {
        Some((scripts::evm_name(contract), scripts::EVM_SYMBOL.to_owned()))
    }
}

/// A transaction at its place.
#[derive(Clone, Copy)]
pub struct TxAt<'l> {
    pub height: u64,
    pub index: usize,
    pub time_ms: u64,
    pub tx: &'l FlowTx,
}

/// A movement of tokens at its place.
#[derive(Clone, Copy)]
pub struct TokensAt<'l> {
    pub at: TxAt<'l>,
    pub event_index: u32,
    pub moved: &'l TokenMove,
}

/// A movement of an item at its place.
#[derive(Clone, Copy)]
pub struct ItemAt<'l> {
    pub at: TxAt<'l>,
    pub event_index: u32,
    pub moved: &'l ItemMove,
}

impl<'l> Truth<'l> {
    /// Every transaction.
    pub fn transactions(&self) -> impl Iterator<Item = TxAt<'l>> + use<'l> {
        let ledger = self.ledger;
        ledger.transactions.range(..=self.height).flat_map(move |(height, txs)| {
            let time_ms = ledger.times_ms.get(height).copied().unwrap_or(0);
            txs.iter().enumerate().map(move |(index, tx)| TxAt { height: *height, index, time_ms, tx })
        })
    }

    /// Everything that transactions did.
    pub fn deeds(&self) -> impl Iterator<Item = (TxAt<'l>, &'l Done)> + use<'l> {
        self.transactions().flat_map(|at| at.tx.done.iter().map(move |done| (at, done)))
    }

    /// Every movement of tokens.
    pub fn tokens(&self) -> impl Iterator<Item = TokensAt<'l>> + use<'l> {
        self.deeds().filter_map(|(at, done)| match &done.deed {
            Deed::Tokens(moved) => Some(TokensAt { at, event_index: done.event_index, moved }),
            _ => None,
        })
    }

    /// A token's name and symbol.
    pub fn token_names(&self, token: &ContractId) -> Result<(String, String)> {
        self.names.token(token).with_context(|| format!("tokens: nobody knows the name of {token}"))
    }

    /// A collection's name.
    pub fn collection_name(&self, collection: &ContractId) -> Result<String> {
        let name = self.names.collection(collection);
        name.with_context(|| format!("nft_collections: nobody knows the name of {collection}"))
    }

    /// Where the picture of an item is.
    pub fn picture(&self, collection: &ContractId, id: u64) -> Result<String> {
        let uri = self.names.picture(collection, id);
        uri.with_context(|| format!("nft_metadata: nobody knows the picture of {id} of {collection}"))
    }

    /// Every movement of an item, in the order of the chain.
    pub fn items(&self) -> Vec<ItemAt<'l>> {
        let mut items: Vec<ItemAt<'l>> = self
            .deeds()
            .filter_map(|(at, done)| match &done.deed {
                Deed::Item(moved) => Some(ItemAt { at, event_index: done.event_index, moved }),
                _ => None,
            })
            .collect();
        items.sort_by_key(|one| (one.at.height, one.at.index, one.event_index));
        items
    }
}

impl TxAt<'_> {
    /// Height and id.
    pub fn key(&self) -> [Cell; 2] {
        [number(self.height), bytes(self.tx.id)]
    }

    /// The index in its block, and the block's time.
    pub fn when(&self) -> [Cell; 2] {
        [number(self.index), number(self.time_ms)]
    }

    /// Who signs, once each; nobody in a system transaction's place.
    pub fn signers(&self) -> Vec<(FlowAddress, [bool; 3])> {
        let mut signers: Vec<(FlowAddress, [bool; 3])> = Vec::new();
        let roles = [(self.tx.proposer, 0), (self.tx.payer, 1)].into_iter();
        for (address, role) in roles.chain(self.tx.authorizers.iter().map(|address| (*address, 2))) {
            if address == FlowAddress::ZERO {
                continue;
            }
            match signers.iter_mut().find(|(signer, _)| *signer == address) {
                Some((_, roles)) => roles[role] = true,
                None => {
                    let mut roles = [false; 3];
                    roles[role] = true;
                    signers.push((address, roles));
                }
            }
        }
        signers
    }
}

/// An account.
pub fn account(address: FlowAddress) -> Cell {
    bytes(address.0)
}

/// A contract's account and name.
pub fn contract(id: &ContractId) -> [Cell; 2] {
    [account(id.address), text(&id.name)]
}

/// Whether it is among the transfers of a transaction: all are but its fee.
pub fn is_transfer(moved: &TokenMove) -> bool {
    moved.kind != MoveKind::Fee
}
