//! The token movements of a transaction, which of them balances count, and their rows.

use std::collections::HashMap;

use alloy_primitives::{Address, U256};
use cairn_evm::{DecodedLog, DecodedTx};
use cairn_store::derived::{Row, TableDef};

use crate::decode::evm::transfers::{self, MAX_BLOCK_CONSECUTIVE_IDS};
use crate::decode::evm::wrapped::WrappedTokens;
use crate::decode::evm::{DecodeError, Mismatch, TokenKind, TokenMove};
use crate::tables::transfers::{EventPlace, FT_TRANSFERS, FtTransfer, NFT_TRANSFERS, NftTransfer, Parties};

/// The token movements of a transaction, in order.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub placed: Vec<PlacedMove>,
    pub malformed: Vec<DecodeError>,
}

impl Moves {
    /// How many rows of `nft_transfers` they make, or of `ft_transfers`.
    pub fn count(&self, is_nft: bool) -> u64 {
        let placed = self.placed.iter().filter(|placed| placed.moved.kind.is_nft() == is_nft);
        placed.map(|placed| u64::from(placed.moved.count)).sum()
    }
}

/// A movement, or a range of them, with its place and token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlacedMove {
    pub log_index: u32,
    pub token: Address,
    pub moved: TokenMove,
    /// Whether balances of fungible tokens count it.
    pub affects_balance: bool,
}

/// What is the same of a deposit and of the mint that says the same: token, whether it is a mint, whose, how much.
type Effect = (Address, bool, Address, U256);

/// Reads the token events of a block's transactions, in order, and as many ids of ranges as a block may name.
pub(super) fn of_block(transactions: &[DecodedTx], wrapped: &WrappedTokens) -> Vec<Moves> {
    let mut ids_left = MAX_BLOCK_CONSECUTIVE_IDS;
    transactions.iter().map(|tx| of_logs(&tx.receipt.logs, wrapped, &mut ids_left)).collect()
}

/// Reads the token events among a transaction's logs, in order. `ids_left` is how many ids of ranges the rest of the block may name.
///
/// Some wrapped tokens log a `Transfer` from the zero address beside their `Deposit`, others don't: a deposit counts only where the
/// transaction has no such mint that no other deposit is paired with, and a withdrawal likewise with burns.
pub(crate) fn of_logs(logs: &[DecodedLog], wrapped: &WrappedTokens, ids_left: &mut u32) -> Moves {
    let Moves { placed: mut moves, mut malformed } = Moves::default();
    let mut has_wrapped = false;
    for log in logs {
        match transfers::decode(log, wrapped) {
            Ok(None) => {}
            Ok(Some(event)) => {
                let ids: u32 = event.moves.iter().map(|moved| moved.count).filter(|count| *count > 1).sum();
                if ids > *ids_left {
                    malformed.push(DecodeError {
                        log_index: log.log_index,
                        address: log.address,
                        topic0: log.topics.first().copied().unwrap_or_default(),
                        reason: Mismatch::BlockRangesTooLong { ids },
                    });
                    continue;
                }
                *ids_left -= ids;
                for moved in event.moves {
                    has_wrapped |= is_wrapped(moved.kind);
                    let affects_balance = moved.kind != TokenKind::UnknownFungibility;
                    let log_index = log.log_index;
                    moves.push(PlacedMove { log_index, token: event.token, moved, affects_balance });
                }
            }
            Err(error) => malformed.push(error),
        }
    }
    if has_wrapped {
        pair_with_mints(&mut moves);
    }
    Moves { placed: moves, malformed }
}

impl PlacedMove {
    /// The rows of each movement that it stands for. `place` says where the one with this number among those of its log is.
    pub fn rows(&self, place: impl Fn(u32) -> EventPlace) -> impl Iterator<Item = (&'static TableDef, Row)> {
        self.moved.each().map(move |moved| self.row(&moved, place(moved.sub_index)))
    }

    fn row(&self, moved: &TokenMove, place: EventPlace) -> (&'static TableDef, Row) {
        let parties = Parties {
            contract_address: super::bytes(self.token),
            contract_name: String::new(),
            from_address: Some(super::bytes(moved.from)),
            to_address: Some(super::bytes(moved.to)),
            is_mint: moved.is_mint(),
            is_burn: moved.is_burn(),
        };
        let (amount, kind) = (moved.amount, moved.kind.name().to_owned());
        match moved.token_id.filter(|_| moved.kind.is_nft()) {
            Some(token_id) => {
                (&NFT_TRANSFERS, NftTransfer { place, parties, token_id, amount, kind }.to_row())
            }
            None => {
                let affects_balance = self.affects_balance;
                (&FT_TRANSFERS, FtTransfer { place, parties, amount, kind, affects_balance }.to_row())
            }
        }
    }
}

fn is_wrapped(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::WrappedDeposit | TokenKind::WrappedWithdrawal)
}

fn pair_with_mints(moves: &mut [PlacedMove]) {
    let mut said: HashMap<Effect, usize> = HashMap::new();
    for placed in moves.iter() {
        if placed.moved.kind == TokenKind::Erc20
            && let Some(effect) = effect(placed)
        {
            *said.entry(effect).or_default() += 1;
        }
    }
    for placed in moves.iter_mut().filter(|placed| is_wrapped(placed.moved.kind)) {
        if let Some(left) = effect(placed).and_then(|effect| said.get_mut(&effect)).filter(|left| **left > 0)
        {
            *left -= 1;
            placed.affects_balance = false;
        }
    }
}

/// Of a mint or a burn that isn't both.
fn effect(placed: &PlacedMove) -> Option<Effect> {
    let moved = &placed.moved;
    match (moved.is_mint(), moved.is_burn()) {
        (true, false) => Some((placed.token, true, moved.to, moved.amount)),
        (false, true) => Some((placed.token, false, moved.from, moved.amount)),
        _ => None,
    }
}
