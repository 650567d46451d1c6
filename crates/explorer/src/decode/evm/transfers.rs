//! A log as token movements.
//!
//! | event | topics + data bytes | kind |
//! | --- | --- | --- |
//! | `Transfer(address,address,uint256)` | 3 + 32 | ERC-20 |
//! | | 4 + 0 | ERC-721 |
//! | | 1 + 96, 2 + 64 | unknown fungibility: from before the standards |
//! | `TransferSingle(address,address,address,uint256,uint256)` | 4 + 64 | ERC-1155 |
//! | `TransferBatch(address,address,address,uint256[],uint256[])` | 4 + arrays | ERC-1155, one movement an item |
//! | `ConsecutiveTransfer(uint256,uint256,address,address)` | 4 + 32 | ERC-721 (ERC-2309), one movement that stands for all ids |
//! | `Deposit(address,uint256)`, `Withdrawal(address,uint256)` | 2 + 32, 1 + 64 | wrapped native token, where the settings say so |
//!
//! The number of topics chooses the layout. Data that is shorter than the layout is malformed; **data that is longer is accepted and what
//! is left over is ignored**, as Solidity's own decoder does: what the contract counted stands in the first words. `Deposit` and
//! `Withdrawal` are also the events of many contracts that are no tokens, so a body that doesn't fit is not an error there unless the
//! contract was listed by name.

use alloy_primitives::{Address, B256, U256, b256};
use cairn_evm::DecodedLog;

use super::abi::{self, AbiError};
use super::token_event::{DecodeError, Mismatch, TokenEvent, TokenKind, TokenMove};
use super::wrapped::WrappedTokens;

/// `Transfer(address,address,uint256)`.
pub const TRANSFER: B256 = b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
/// `TransferSingle(address,address,address,uint256,uint256)`.
pub const TRANSFER_SINGLE: B256 = b256!("c3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62");
/// `TransferBatch(address,address,address,uint256[],uint256[])`.
pub const TRANSFER_BATCH: B256 = b256!("4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb");
/// `ConsecutiveTransfer(uint256,uint256,address,address)` of ERC-2309.
pub const CONSECUTIVE_TRANSFER: B256 =
    b256!("deaa91b6123d068f5821d0fb0678463d1a8a6079fe8af5de3ce5e896dcf9133d");
/// `Deposit(address,uint256)`.
pub const DEPOSIT: B256 = b256!("e1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c");
/// `Withdrawal(address,uint256)`.
pub const WITHDRAWAL: B256 = b256!("7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65");

/// The most ids of one `ConsecutiveTransfer`: its cost doesn't grow with them, so a contract could name 2^256. Libraries stop at 5,000.
pub const MAX_CONSECUTIVE_IDS: u64 = 10_000;
/// The most ids of all `ConsecutiveTransfer` events of a block: a log costs some 2,200 gas, so a block of 30 million could name 10^8. A range that goes
/// over it is refused whole; shorter ones after it may still fit.
pub const MAX_BLOCK_CONSECUTIVE_IDS: u32 = 50_000;

/// Reads a log. `None`: it is no token event.
pub fn decode(log: &DecodedLog, wrapped: &WrappedTokens) -> Result<Option<TokenEvent>, DecodeError> {
    let Some(&topic0) = log.topics.first() else { return Ok(None) };
    let moves = match topic0 {
        TRANSFER => transfer(log),
        TRANSFER_SINGLE => transfer_single(log),
        TRANSFER_BATCH => transfer_batch(log),
        CONSECUTIVE_TRANSFER => consecutive_transfer(log),
        DEPOSIT | WITHDRAWAL if wrapped.include(&log.address) => match wrapped_move(log, topic0 == DEPOSIT) {
            Err(_) if *wrapped == WrappedTokens::Any => return Ok(None),
            result => result,
        },
        _ => return Ok(None),
    };
    match moves {
        Ok(moves) => Ok(Some(TokenEvent { token: log.address, moves })),
        Err(reason) => Err(DecodeError { log_index: log.log_index, address: log.address, topic0, reason }),
    }
}

fn transfer(log: &DecodedLog) -> Result<Vec<TokenMove>, Mismatch> {
    let topic = |index: usize| abi::address_of_word(&log.topics[index].0);
    let data = &log.data[..];
    let (kind, from, to, number) = match log.topics.len() {
        1 => {
            let (from, to) = (abi::address(data, 0)?, abi::address(data, 1)?);
            (TokenKind::UnknownFungibility, from, to, abi::uint(data, 2)?)
        }
        2 => (TokenKind::UnknownFungibility, topic(1)?, abi::address(data, 0)?, abi::uint(data, 1)?),
        3 => (TokenKind::Erc20, topic(1)?, topic(2)?, abi::uint(data, 0)?),
        4 => (TokenKind::Erc721, topic(1)?, topic(2)?, log.topics[3].into()),
        count => return Err(Mismatch::Topics(count)),
    };
    let (token_id, amount) = match kind {
        TokenKind::Erc721 => (Some(number), U256::ONE),
        _ => (None, number),
    };
    Ok(vec![TokenMove { kind, from, to, token_id, amount, sub_index: 0, count: 1 }])
}

/// From and to of an ERC-1155 event, whose first topic after the event's is the operator.
fn parties(log: &DecodedLog) -> Result<(Address, Address), Mismatch> {
    let [_, operator, from, to] = &log.topics[..] else { return Err(Mismatch::Topics(log.topics.len())) };
    abi::address_of_word(&operator.0)?;
    Ok((abi::address_of_word(&from.0)?, abi::address_of_word(&to.0)?))
}

fn transfer_single(log: &DecodedLog) -> Result<Vec<TokenMove>, Mismatch> {
    let (from, to) = parties(log)?;
    let (id, amount) = (abi::uint(&log.data, 0)?, abi::uint(&log.data, 1)?);
    let kind = TokenKind::Erc1155;
    Ok(vec![TokenMove { kind, from, to, token_id: Some(id), amount, sub_index: 0, count: 1 }])
}

fn transfer_batch(log: &DecodedLog) -> Result<Vec<TokenMove>, Mismatch> {
    let (from, to) = parties(log)?;
    let ids = abi::uint_array(&log.data, 0)?;
    let values = abi::uint_array(&log.data, 1)?;
    if ids.len() != values.len() {
        return Err(Mismatch::UnequalBatch { ids: ids.len(), values: values.len() });
    }
    let kind = TokenKind::Erc1155;
    let item = |(sub_index, (id, amount))| {
        let sub_index = u32::try_from(sub_index).map_err(|_| AbiError::OutOfRange)?;
        Ok(TokenMove { kind, from, to, token_id: Some(id), amount, sub_index, count: 1 })
    };
    ids.into_iter().zip(values).enumerate().map(item).collect()
}

fn consecutive_transfer(log: &DecodedLog) -> Result<Vec<TokenMove>, Mismatch> {
    let [_, first, from, to] = &log.topics[..] else { return Err(Mismatch::Topics(log.topics.len())) };
    let (from, to) = (abi::address_of_word(&from.0)?, abi::address_of_word(&to.0)?);
    let (first, last) = (U256::from_be_bytes(first.0), abi::uint(&log.data, 0)?);
    let further = last.checked_sub(first).ok_or(AbiError::OutOfRange)?;
    if further >= U256::from(MAX_CONSECUTIVE_IDS) {
        return Err(Mismatch::RangeTooLong);
    }
    let (kind, amount, count) = (TokenKind::Erc721, U256::ONE, further.to::<u32>() + 1);
    Ok(vec![TokenMove { kind, from, to, token_id: Some(first), amount, sub_index: 0, count }])
}

fn wrapped_move(log: &DecodedLog, is_deposit: bool) -> Result<Vec<TokenMove>, Mismatch> {
    let data = &log.data[..];
    let (party, amount) = match &log.topics[..] {
        [_] => (abi::address(data, 0)?, abi::uint(data, 1)?),
        [_, party] => (abi::address_of_word(&party.0)?, abi::uint(data, 0)?),
        topics => return Err(Mismatch::Topics(topics.len())),
    };
    let (kind, from, to) = if is_deposit {
        (TokenKind::WrappedDeposit, Address::ZERO, party)
    } else {
        (TokenKind::WrappedWithdrawal, party, Address::ZERO)
    };
    Ok(vec![TokenMove { kind, from, to, token_id: None, amount, sub_index: 0, count: 1 }])
}
