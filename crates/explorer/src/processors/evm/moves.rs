//! The token movements of a transaction, and which of them balances count.

use std::collections::HashMap;

use alloy_primitives::{Address, U256};
use cairn_evm::DecodedTx;

use super::block::Moves;
use crate::decode::evm::transfers::{self, WrappedTokens};
use crate::decode::evm::{TokenKind, TokenMove};

/// A movement with its place and token.
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

/// Reads a transaction's token events, in order.
///
/// Some wrapped tokens log a `Transfer` from the zero address beside their `Deposit`, others don't: a deposit counts only where the
/// transaction has no such mint that no other deposit is paired with, and a withdrawal likewise with burns.
pub(super) fn of_tx(tx: &DecodedTx, wrapped: &WrappedTokens) -> Moves {
    let Moves { placed: mut moves, mut malformed } = Moves::default();
    let mut has_wrapped = false;
    for log in &tx.receipt.logs {
        match transfers::decode(log, wrapped) {
            Ok(None) => {}
            Ok(Some(event)) => {
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
