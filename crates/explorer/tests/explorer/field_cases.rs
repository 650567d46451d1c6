//! Cases from the field, named by their numbers.

use alloy_primitives::{Address, B256, U256, keccak256};
use cairn_evm::DecodedLog;
use cairn_explorer::decode::evm::transfers::{
    CONSECUTIVE_TRANSFER, DEPOSIT, MAX_CONSECUTIVE_IDS, TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE,
    WITHDRAWAL, decode,
};
use cairn_explorer::decode::evm::wrapped::WrappedTokens;
use cairn_explorer::decode::evm::{DecodeError, TokenKind, TokenMove};

const TOKEN: Address = Address::repeat_byte(0xcc);
const FROM: Address = Address::repeat_byte(0xaa);
const TO: Address = Address::repeat_byte(0xbb);

fn word(n: u64) -> B256 {
    U256::from(n).into()
}

fn log(topics: &[B256], data: &[B256]) -> DecodedLog {
    bytes_log(topics, &data.concat())
}

fn bytes_log(topics: &[B256], data: &[u8]) -> DecodedLog {
    DecodedLog { log_index: 7, address: TOKEN, topics: topics.to_vec(), data: data.to_vec().into() }
}

fn moves(log: &DecodedLog, wrapped: &WrappedTokens) -> Vec<TokenMove> {
    let event = decode(log, wrapped).unwrap().unwrap();
    assert_eq!(event.token, TOKEN);
    event.moves
}

fn only(log: &DecodedLog) -> TokenMove {
    let found = moves(log, &WrappedTokens::Off);
    assert_eq!(found.len(), 1);
    found[0]
}

fn refused(log: &DecodedLog) -> DecodeError {
    let error = decode(log, &WrappedTokens::Off).unwrap_err();
    assert_eq!((error.address, error.topic0, error.log_index), (TOKEN, log.topics[0], 7));
    error
}

#[test]
fn e23_the_layout_of_a_transfer_says_what_it_is() {
    let (from, to) = (FROM.into_word(), TO.into_word());
    let five = U256::from(5);
    for (log, kind, token_id, amount) in [
        (log(&[TRANSFER, from, to], &[word(5)]), TokenKind::Erc20, None, five),
        (log(&[TRANSFER, from, to, word(5)], &[]), TokenKind::Erc721, Some(five), U256::ONE),
        (log(&[TRANSFER], &[from, to, word(5)]), TokenKind::UnknownFungibility, None, five),
        (log(&[TRANSFER, from], &[to, word(5)]), TokenKind::UnknownFungibility, None, five),
    ] {
        let expected = TokenMove { kind, from: FROM, to: TO, token_id, amount, sub_index: 0, count: 1 };
        assert_eq!(only(&log), expected);
    }
}

#[test]
fn e23_what_comes_after_the_last_word_is_ignored() {
    let (from, to) = (FROM.into_word(), TO.into_word());
    assert_eq!(only(&log(&[TRANSFER, from, to], &[word(5), word(6)])).amount, U256::from(5));
    assert_eq!(only(&log(&[TRANSFER, from, to, word(5)], &[word(6)])).token_id, Some(U256::from(5)));
}

#[test]
fn e24_a_malformed_event_is_an_error_that_names_it() {
    let (from, to) = (FROM.into_word(), TO.into_word());
    assert_eq!(refused(&bytes_log(&[TRANSFER, from, to], &[])).reason.code(), "short-data");
    assert_eq!(refused(&bytes_log(&[TRANSFER, from, to], &[0; 31])).reason.code(), "short-data");
    let mut dirty = from;
    dirty[11] = 1;
    let error = refused(&log(&[TRANSFER, dirty, to], &[word(5)]));
    assert_eq!(error.reason.code(), "dirty-address");
    let text = error.to_string();
    assert!(text.contains(&TOKEN.to_string()) && text.contains(&TRANSFER.to_string()), "{text}");
    assert_eq!(refused(&log(&[TRANSFER], &[dirty, to, word(5)])).reason.code(), "dirty-address");
}

#[test]
fn e24_batches_are_decoded_within_their_bounds() {
    let topics = |topic0| [topic0, word(1), FROM.into_word(), TO.into_word()];
    let single = only(&log(&topics(TRANSFER_SINGLE), &[word(9), word(3)]));
    assert_eq!((single.token_id, single.amount), (Some(U256::from(9)), U256::from(3)));

    let data = [64, 160, 2, 7, 8, 2, 70, 80].map(word);
    let batch = moves(&log(&topics(TRANSFER_BATCH), &data), &WrappedTokens::Off);
    let items: Vec<_> = batch.iter().map(|item| (item.sub_index, item.token_id, item.amount)).collect();
    let item = |sub_index, id, amount| (sub_index, Some(U256::from(id)), U256::from(amount));
    assert_eq!(items, [item(0, 7, 70), item(1, 8, 80)]);
    assert_eq!(moves(&log(&topics(TRANSFER_BATCH), &[64, 96, 0, 0].map(word)), &WrappedTokens::Off), []);

    let unequal = [64, 160, 2, 7, 8, 1, 70].map(word);
    assert_eq!(refused(&log(&topics(TRANSFER_BATCH), &unequal)).reason.code(), "unequal-batch");
    let beyond = [64, 160, 2, 7, 8, u64::MAX, 70].map(word);
    assert_eq!(refused(&log(&topics(TRANSFER_BATCH), &beyond)).reason.code(), "out-of-bounds");
    assert_eq!(refused(&log(&topics(TRANSFER_BATCH), &[])).reason.code(), "short-data");
    assert_eq!(refused(&log(&topics(TRANSFER_SINGLE)[..3], &[word(9)])).reason.code(), "topics");
}

#[test]
fn e24_a_range_of_ids_is_taken_whole_or_not_at_all() {
    let topics = |first| [CONSECUTIVE_TRANSFER, word(first), Address::ZERO.into_word(), TO.into_word()];
    let [range] = moves(&log(&topics(5), &[word(7)]), &WrappedTokens::Off)[..] else { panic!("one range") };
    let minted: Vec<_> = range.each().collect();
    let items: Vec<_> = minted.iter().map(|item| (item.sub_index, item.token_id)).collect();
    assert_eq!(items, [5, 6, 7].map(|id| ((id - 5) as u32, Some(U256::from(id)))));
    assert!(minted.iter().all(|item| item.kind == TokenKind::Erc721 && item.is_mint()));
    assert!(minted.iter().all(|item| item.count == 1));
    let longest = log(&topics(0), &[word(MAX_CONSECUTIVE_IDS - 1)]);
    assert_eq!(only(&longest).each().count(), 10_000);
    let longer = log(&topics(0), &[word(MAX_CONSECUTIVE_IDS)]);
    assert_eq!(refused(&longer).reason.code(), "range-too-long");
    assert_eq!(refused(&log(&topics(1), &[word(0)])).reason.code(), "out-of-range");
}

#[test]
fn topics_are_those_of_their_signatures() {
    for (topic, signature) in [
        (TRANSFER, "Transfer(address,address,uint256)"),
        (TRANSFER_SINGLE, "TransferSingle(address,address,address,uint256,uint256)"),
        (TRANSFER_BATCH, "TransferBatch(address,address,address,uint256[],uint256[])"),
        (CONSECUTIVE_TRANSFER, "ConsecutiveTransfer(uint256,uint256,address,address)"),
        (DEPOSIT, "Deposit(address,uint256)"),
        (WITHDRAWAL, "Withdrawal(address,uint256)"),
    ] {
        assert_eq!(topic, keccak256(signature), "{signature}");
    }
}

#[test]
fn e25_deposits_and_withdrawals_of_wrapped_tokens_are_a_kind_of_their_own() {
    let to = TO.into_word();
    let any = WrappedTokens::Any;
    for log in [log(&[DEPOSIT, to], &[word(5)]), log(&[DEPOSIT], &[to, word(5)])] {
        let found = moves(&log, &any)[0];
        assert_eq!((found.kind, found.from, found.to), (TokenKind::WrappedDeposit, Address::ZERO, TO));
        assert_eq!(found.amount, U256::from(5));
        assert!(found.is_mint());
        assert_eq!(decode(&log, &WrappedTokens::Off), Ok(None));
        let listed = WrappedTokens::Listed([TOKEN].into());
        assert_eq!(moves(&log, &listed)[0], found);
        assert_eq!(decode(&log, &WrappedTokens::Listed([FROM].into())), Ok(None));
    }
    let found = moves(&log(&[WITHDRAWAL, to], &[word(5)]), &any)[0];
    assert_eq!((found.kind, found.from, found.to), (TokenKind::WrappedWithdrawal, TO, Address::ZERO));
    assert!(found.is_burn());
}

#[test]
fn e25_what_only_looks_like_a_deposit_is_never_half_decoded() {
    let short = log(&[DEPOSIT], &[TO.into_word()]);
    // Many contracts that are no tokens have such events; a contract that was listed by name should not.
    assert_eq!(decode(&short, &WrappedTokens::Any), Ok(None));
    assert!(decode(&short, &WrappedTokens::Listed([TOKEN].into())).is_err());
}

#[test]
fn e27_mints_burns_and_self_transfers_are_told_apart() {
    let transfer = |from: Address, to: Address, amount| {
        only(&log(&[TRANSFER, from.into_word(), to.into_word()], &[word(amount)]))
    };
    let flags = |found: TokenMove| (found.is_mint(), found.is_burn(), found.is_self_transfer());
    assert_eq!(flags(transfer(FROM, FROM, 5)), (false, false, true));
    assert_eq!(flags(transfer(Address::ZERO, FROM, 1)), (true, false, false));
    assert_eq!(flags(transfer(FROM, Address::ZERO, 1)), (false, true, false));
    assert_eq!(flags(transfer(FROM, TO, 0)), (false, false, false));
}
