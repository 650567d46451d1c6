//! What a token event says, whatever its layout was.

use alloy_primitives::{Address, B256, U256};

use super::abi::AbiError;

/// By which rule a log was read. It is a property of the log: nobody asks the contract (E23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// `Transfer` with from and to as topics and the amount as data.
    Erc20,
    /// `Transfer` with from, to and id as topics.
    Erc721,
    /// `TransferSingle`, or one item of a `TransferBatch`.
    Erc1155,
    /// `Transfer` of before the standards, with fewer topics: its number may be an amount or an id.
    UnknownFungibility,
    /// `Deposit` of a wrapped native token.
    WrappedDeposit,
    /// `Withdrawal` of a wrapped native token.
    WrappedWithdrawal,
}

impl TokenKind {
    /// The name that tables hold.
    pub const fn name(self) -> &'static str {
        match self {
            TokenKind::Erc20 => "erc20",
            TokenKind::Erc721 => "erc721",
            TokenKind::Erc1155 => "erc1155",
            TokenKind::UnknownFungibility => "unknown-fungibility",
            TokenKind::WrappedDeposit => "wrapped-deposit",
            TokenKind::WrappedWithdrawal => "wrapped-withdrawal",
        }
    }

    /// Whether what moves has an id of its own.
    pub const fn is_nft(self) -> bool {
        matches!(self, TokenKind::Erc721 | TokenKind::Erc1155)
    }
}

/// One movement of one token: what a row of a transfer table is made of; or a range of them, which differ in their ids alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenMove {
    /// How it was read.
    pub kind: TokenKind,
    /// From whom; the zero address at a mint.
    pub from: Address,
    /// To whom; the zero address at a burn.
    pub to: Address,
    /// The id, of an NFT.
    pub token_id: Option<U256>,
    /// The amount; 1 for an ERC-721.
    pub amount: U256,
    /// Its place among the movements of its event, from 0.
    pub sub_index: u32,
    /// How many movements it stands for, of ids and places that follow each other; 1 but for ranges of ERC-2309. A log's cost doesn't grow with
    /// its range, so ranges are kept as such and spread where rows are made.
    pub count: u32,
}

impl TokenMove {
    /// Each movement that it stands for, in order.
    pub fn each(self) -> impl Iterator<Item = TokenMove> {
        (0..self.count).map(move |further| TokenMove {
            token_id: self.token_id.map(|first| first.wrapping_add(U256::from(further))),
            sub_index: self.sub_index.saturating_add(further),
            count: 1,
            ..self
        })
    }

    /// Whether it made what moved (E27).
    pub fn is_mint(&self) -> bool {
        self.from == Address::ZERO
    }

    /// Whether it destroyed what moved (E27).
    pub fn is_burn(&self) -> bool {
        self.to == Address::ZERO
    }

    /// Whether it changed nothing: from and to are the same.
    pub fn is_self_transfer(&self) -> bool {
        self.from == self.to
    }
}

/// All that one log says. Without movements it is an empty batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEvent {
    /// The contract that logged: the token.
    pub token: Address,
    /// What moved, in order.
    pub moves: Vec<TokenMove>,
}

/// A log that has the first topic of a token event, and not its body (E24). It is counted by contract and topic; the raw log stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("log {log_index} of {address} has topic {topic0} but is no such event: {reason}")]
pub struct DecodeError {
    /// The log's place in its block.
    pub log_index: u32,
    /// The contract that logged.
    pub address: Address,
    /// The event's topic.
    pub topic0: B256,
    /// What doesn't fit.
    pub reason: Mismatch,
}

/// What doesn't fit in a malformed event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Mismatch {
    /// No layout of the event has so many topics.
    #[error("no layout of it has {0} topics")]
    Topics(usize),
    /// Ids and values of a batch that don't pair up.
    #[error("a batch of {ids} ids and {values} values")]
    UnequalBatch {
        /// How many ids.
        ids: usize,
        /// How many values.
        values: usize,
    },
    /// More ids than are taken of one event.
    #[error("a range of more than {} ids", super::transfers::MAX_CONSECUTIVE_IDS)]
    RangeTooLong,
    /// More ids than are taken of all ranges of one block.
    #[error(
        "a range of {ids} ids where those of its block, taken together, may have {} at most",
        super::transfers::MAX_BLOCK_CONSECUTIVE_IDS
    )]
    BlockRangesTooLong {
        /// How many ids.
        ids: u32,
    },
    /// The data.
    #[error(transparent)]
    Data(#[from] AbiError),
}

impl Mismatch {
    /// A short code without numbers, under which metrics count.
    pub const fn code(self) -> &'static str {
        match self {
            Mismatch::Topics(_) => "topics",
            Mismatch::UnequalBatch { .. } => "unequal-batch",
            Mismatch::RangeTooLong | Mismatch::BlockRangesTooLong { .. } => "range-too-long",
            Mismatch::Data(AbiError::MissingWord(_)) => "short-data",
            Mismatch::Data(AbiError::DirtyAddress) => "dirty-address",
            Mismatch::Data(AbiError::OutOfBounds) => "out-of-bounds",
            Mismatch::Data(AbiError::OutOfRange) => "out-of-range",
        }
    }
}
