//! Mappers over made-up blocks and over the public test chain.

use alloy_primitives::{Address, B256, U256, keccak256};
use cairn_explorer::decode::evm::transfers::{
    CONSECUTIVE_TRANSFER, DEPOSIT, MAX_BLOCK_CONSECUTIVE_IDS, MAX_CONSECUTIVE_IDS, TRANSFER, TRANSFER_BATCH,
};
use cairn_explorer::decode::evm::wrapped::WrappedTokens;
use cairn_explorer::names;
use cairn_explorer::processors::Settings;
use cairn_explorer::tables::transfers::{FtTransfer, NftTransfer};
use cairn_store::derived::{Row, Value};

use crate::support;
use support::{Log, Tx, block, column, get, map, map_all, tx_hash, with_logs};

const TOKEN: Address = Address::repeat_byte(0xcc);
const X: Address = Address::repeat_byte(0xaa);
const Y: Address = Address::repeat_byte(0xbb);

fn word(n: u64) -> B256 {
    U256::from(n).into()
}

fn transfer(from: Address, to: Address, amount: U256) -> Log {
    let topics = vec![TRANSFER, from.into_word(), to.into_word()];
    Log { address: TOKEN, topics, data: amount.to_be_bytes::<32>().to_vec() }
}

fn log(topics: &[B256], data: &[B256]) -> Log {
    Log { address: TOKEN, topics: topics.to_vec(), data: data.concat() }
}

fn settings() -> Settings {
    Settings::default()
}

fn wrapping() -> Settings {
    Settings { wrapped: WrappedTokens::Any, ..Settings::default() }
}

#[test]
fn e23_layouts_go_to_the_table_of_their_kind() {
    let (x, y) = (X.into_word(), Y.into_word());
    let logs = vec![
        log(&[TRANSFER, x, y], &[word(5)]),
        log(&[TRANSFER, x, y, word(5)], &[]),
        log(&[TRANSFER], &[x, y, word(5)]),
        log(&[TRANSFER, x], &[y, word(5)]),
    ];
    let (tables, malformed) = map(&settings(), names::TOKEN_WORKER, &block(7, 100, &[with_logs(logs)]));
    assert!(malformed.is_empty());
    let ft = &tables["ft_transfers"];
    let kinds = ["\"erc20\"", "\"unknown-fungibility\"", "\"unknown-fungibility\""];
    assert_eq!(column("ft_transfers", ft, "kind"), kinds);
    assert_eq!(column("ft_transfers", ft, "affects_balance"), ["true", "false", "false"]);
    assert_eq!(column("ft_transfers", ft, "event_index"), ["0", "2", "3"]);
    assert_eq!(column("ft_transfers", ft, "block_timestamp_ms"), ["100000"; 3]);
    let nft = NftTransfer::from_row(&tables["nft_transfers"][0]).unwrap();
    assert_eq!((nft.token_id, nft.amount, nft.kind.as_str()), (U256::from(5), U256::ONE, "erc721"));
}

#[test]
fn e24_a_malformed_event_is_reported_once_and_the_rest_of_the_block_goes_on() {
    let bad = Log { data: vec![0; 31], ..transfer(X, Y, U256::ONE) };
    let block = block(7, 100, &[with_logs(vec![bad.clone(), transfer(X, Y, U256::from(9))])]);
    let (tables, malformed) = map(&settings(), names::TOKEN_WORKER, &block);
    assert_eq!(tables["ft_transfers"].len(), 1);
    let [malformed] = &malformed[..] else { panic!("{malformed:?}") };
    assert_eq!(malformed.transaction_id, tx_hash(7, 0).to_string());
    assert!(
        malformed.message.contains(&TOKEN.to_string()) && malformed.message.contains(&TRANSFER.to_string())
    );
    assert_eq!(malformed.raw_data.len(), 96 + 31);
    // Others read the same logs, and leave the report to it; the log itself is kept.
    for other in [names::ACCOUNTS_WORKER, names::TX_METRICS_WORKER, names::TX_CONTRACTS_WORKER] {
        assert!(map(&settings(), other, &block).1.is_empty());
    }
    let (tables, _) = map(&settings(), names::EVM_WORKER, &block);
    assert_eq!(get("evm_logs", &tables["evm_logs"][0], "data"), &Value::bytes(&bad.data));
}

#[test]
fn e24_one_event_makes_several_rows_with_places_of_their_own() {
    let topics = [TRANSFER_BATCH, X.into_word(), Address::ZERO.into_word(), Y.into_word()];
    let data = [64, 160, 2, 7, 7, 2, 70, 80].map(word);
    let (tables, _) =
        map(&settings(), names::TOKEN_WORKER, &block(7, 1, &[with_logs(vec![log(&topics, &data)])]));
    let rows = &tables["nft_transfers"];
    assert_eq!(column("nft_transfers", rows, "sub_index"), ["0", "1"]);
    assert_eq!(column("nft_transfers", rows, "token_id"), ["7", "7"]);
    assert_eq!(column("nft_transfers", rows, "amount"), ["70", "80"]);
}

/// A mint of so many ids from `first` on in one log of ERC-2309.
fn range(first: u64, ids: u64) -> Log {
    let topics = [CONSECUTIVE_TRANSFER, word(first), Address::ZERO.into_word(), Y.into_word()];
    log(&topics, &[word(first + ids - 1)])
}

#[test]
fn e24_ranges_of_one_block_make_no_more_rows_than_a_block_may() {
    // Each log costs the same whatever it names. They lie in two transactions: it is the block that is bounded.
    let longest = |n: u64| range(n * MAX_CONSECUTIVE_IDS, MAX_CONSECUTIVE_IDS);
    let first = with_logs((0..3).map(longest).collect());
    let mut rest: Vec<Log> = (3..400).map(longest).collect();
    rest.push(transfer(X, Y, U256::from(9)));
    rest.push(range(7_000_000, 1));
    let block = block(7, 100, &[first, with_logs(rest)]);
    let (tables, malformed) = map(&settings(), names::TOKEN_WORKER, &block);
    assert_eq!(tables["nft_transfers"].len(), MAX_BLOCK_CONSECUTIVE_IDS as usize + 1);
    assert_eq!(tables["ft_transfers"].len(), 1, "what comes after it in the block is read");
    // Each that doesn't fit is refused whole, and named.
    assert_eq!(malformed.len(), 400 - 5);
    assert!(malformed.iter().all(|what| what.labels.reason == "range-too-long"), "{:?}", malformed[0]);
    assert_eq!(malformed[0].event_index, Some(5));
    assert!(malformed[0].message.contains("a range of 10000 ids"), "{}", malformed[0].message);
    // Counts agree with rows, and contracts and parties of a range are there once.
    let (metrics, _) = map(&settings(), names::TX_METRICS_WORKER, &block);
    assert_eq!(column("tx_metrics", &metrics["tx_metrics"], "nft_transfer_count"), ["30000", "20001"]);
    assert_eq!(column("tx_metrics", &metrics["tx_metrics"], "ft_transfer_count"), ["0", "1"]);
    // The same block gives the same rows, whichever mapper came to it first.
    let shared = settings();
    map(&shared, names::ACCOUNTS_WORKER, &block);
    assert_eq!(map(&shared, names::TOKEN_WORKER, &block).0, tables);
}

#[test]
fn e25_a_deposit_counts_unless_a_mint_says_the_same() {
    let deposit = |amount| log(&[DEPOSIT, X.into_word()], &[word(amount)]);
    let alone = with_logs(vec![deposit(5)]);
    let both = with_logs(vec![deposit(5), transfer(Address::ZERO, X, U256::from(5)), deposit(5)]);
    let block = block(7, 1, &[alone, both]);
    let (tables, _) = map(&wrapping(), names::TOKEN_WORKER, &block);
    let mut rows: Vec<_> =
        tables["ft_transfers"].iter().map(|row| FtTransfer::from_row(row).unwrap()).collect();
    rows.sort_by_key(|row| row.place.order());
    let said: Vec<_> = rows.iter().map(|row| (row.kind.as_str(), row.affects_balance)).collect();
    let deposit = "wrapped-deposit";
    assert_eq!(said, [(deposit, true), (deposit, false), ("erc20", true), (deposit, true)]);
    assert!(rows.iter().all(|row| row.parties.is_mint));
    let (tables, _) = map(&settings(), names::TOKEN_WORKER, &block);
    assert_eq!(tables["ft_transfers"].len(), 1);
}

#[test]
fn e27_a_history_has_each_transfer_once_and_the_zero_address_has_none() {
    let zero = Address::ZERO;
    let amounts = [(X, X, 5), (zero, X, 1), (X, zero, 1), (X, Y, 0)];
    let txs: Vec<Tx> = amounts
        .iter()
        .map(|(from, to, amount)| Tx {
            from: Address::repeat_byte(1),
            to: Some(TOKEN),
            ..with_logs(vec![transfer(*from, *to, U256::from(*amount))])
        })
        .collect();
    let block = block(7, 1, &txs);
    let (tables, _) = map(&settings(), names::TOKEN_WORKER, &block);
    let rows: Vec<_> = tables["ft_transfers"].iter().map(|row| FtTransfer::from_row(row).unwrap()).collect();
    assert_eq!(rows.len(), 4);
    let flags = |from: Address, to: Address| {
        let row = rows
            .iter()
            .find(|row| {
                row.parties.from_address.as_deref() == Some(from.as_slice())
                    && row.parties.to_address.as_deref() == Some(to.as_slice())
            })
            .unwrap();
        (row.parties.is_mint, row.parties.is_burn)
    };
    assert_eq!(flags(X, X), (false, false));
    assert_eq!(flags(zero, X), (true, false));
    assert_eq!(flags(X, zero), (false, true));

    let (tables, _) = map(&settings(), names::ACCOUNTS_WORKER, &block);
    let rows = &tables["address_transactions"];
    let of = |address: Address| {
        let is =
            |row: &&Row| get("address_transactions", row, "address") == &Value::bytes(address.as_slice());
        rows.iter()
            .filter(is)
            .map(|row| get("address_transactions", row, "direction").to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(of(X), ["\"transfer\""; 4]);
    assert_eq!(of(Y), ["\"transfer\""]);
    assert_eq!(of(TOKEN), ["\"in\""; 4]);
    assert!(of(zero).is_empty());
}

#[test]
fn e27_who_sends_to_himself_is_there_once_with_direction_self() {
    let tx = Tx { from: X, to: Some(X), ..Tx::default() };
    let (tables, _) = map(&settings(), names::ACCOUNTS_WORKER, &block(7, 1, &[tx]));
    let rows = &tables["address_transactions"];
    assert_eq!(column("address_transactions", rows, "direction"), ["\"self\""]);
}

#[test]
fn p01_an_address_that_occurs_often_in_a_transaction_is_there_once() {
    let logs = vec![
        transfer(X, Y, U256::ONE),
        transfer(Y, X, U256::ONE),
        transfer(X, X, U256::ONE),
        transfer(X, Y, U256::ONE),
    ];
    let txs = vec![Tx { from: X, to: Some(Y), logs, ..Tx::default() }; 3];
    // The helper demands that no key is there twice.
    let tables = map_all(&settings(), &block(7, 1, &txs));
    assert_eq!(tables["address_transactions"].len(), 6);
    assert_eq!(tables["ft_transfers"].len(), 12);
    assert_eq!(tables["tx_contracts"].len(), 3);
    assert_eq!(column("tx_contracts", &tables["tx_contracts"], "tags"), ["\"log,ft\""; 3]);
}

#[test]
fn e07_a_fee_that_is_not_known_is_null() {
    let txs = [Tx { gas_price: Some(7), ..Tx::default() }, Tx { gas_price: None, ..Tx::default() }];
    let (tables, _) = map(&settings(), names::TX_METRICS_WORKER, &block(7, 1, &txs));
    let mut fees = column("tx_metrics", &tables["tx_metrics"], "fee");
    fees.sort();
    assert_eq!(fees, ["147000", "null"]);
}

#[test]
fn e09_only_creations_that_did_not_fail_make_contracts() {
    let create = |n: u8, status| Tx {
        to: None,
        status,
        input: vec![0x60, n],
        contract: Some(Address::repeat_byte(n)),
        ..Tx::default()
    };
    let block = block(7, 1, &[create(1, Some(true)), create(2, Some(false)), create(3, None)]);
    let (tables, _) = map(&settings(), names::META_WORKER, &block);
    let rows = &tables["smart_contracts"];
    let address = |n: u8| Value::bytes(&[n; 20]).to_string();
    assert_eq!(column("smart_contracts", rows, "address"), [address(1), address(3)]);
    assert_eq!(column("smart_contracts", rows, "is_confirmed"), ["true", "false"]);
    assert_eq!(
        get("smart_contracts", &rows[0], "init_code_hash"),
        &Value::bytes(keccak256([0x60, 1]).as_slice())
    );
    let (tables, _) = map(&settings(), names::EVM_WORKER, &block);
    let mut created = column("evm_transactions", &tables["evm_transactions"], "contract_address");
    created.sort();
    assert_eq!(created, [address(1), address(3), "null".into()]);
}

#[test]
fn contracts_that_contracts_created_come_from_traces() {
    let mut block = block(7, 1, &[Tx::default(), Tx { status: Some(false), ..Tx::default() }]);
    let call = |to: u8, ty: &str, calls: &str| {
        let (from, to) = (Address::repeat_byte(9), Address::repeat_byte(to));
        format!(r#"{{"type":"{ty}","from":"{from}","to":"{to}","input":"0x60","calls":[{calls}]}}"#)
    };
    let inner = call(5, "CREATE2", "");
    let twice = call(4, "CALL", &format!("{inner},{inner}"));
    block.traces = Some(format!(r#"[{{"result":{twice}}},{{"result":{twice}}}]"#).into_bytes().into());
    let (tables, _) = map(&settings(), names::META_WORKER, &block);
    let rows = &tables["smart_contracts"];
    assert_eq!(column("smart_contracts", rows, "is_internal"), ["true"]);
    assert_eq!(get("smart_contracts", &rows[0], "creator_address"), &Value::bytes(&[9; 20]));
    // A trace of another shape is reported, and takes nothing else with it.
    block.traces = Some((&br#"[{"result":[]},{"result":1}]"#[..]).into());
    let (tables, malformed) = map(&settings(), names::META_WORKER, &block);
    assert!(tables.is_empty() && malformed.len() == 1);
}

#[test]
fn large_data_is_kept_as_hash_and_length() {
    let data = |bytes: usize| Log { address: TOKEN, topics: vec![], data: vec![1; bytes] };
    let tx = Tx { input: vec![2; 9000], logs: vec![data(8192), data(8193)], ..Tx::default() };
    let (tables, _) = map(&settings(), names::EVM_WORKER, &block(7, 1, &[tx]));
    let [inline, apart] = &tables["evm_logs"][..] else { panic!() };
    assert_eq!(get("evm_logs", inline, "data"), &Value::bytes(&[1; 8192]));
    assert!(get("evm_logs", inline, "payload_hash").is_null());
    assert!(get("evm_logs", apart, "data").is_null());
    assert_eq!(get("evm_logs", apart, "data_length_bytes"), &Value::Int(8193));
    assert_eq!(get("evm_logs", apart, "payload_ref"), &Value::text("raw:7/1"));
    assert_eq!(get("evm_logs", apart, "payload_hash").as_bytes().unwrap().len(), 32);
    let tx = &tables["evm_transactions"][0];
    assert!(get("evm_transactions", tx, "input").is_null());
    assert_eq!(get("evm_transactions", tx, "input_length_bytes"), &Value::Int(9000));
    assert_eq!(get("evm_transactions", tx, "method"), &Value::bytes(&[2; 4]));
}

#[test]
fn a05_the_largest_numbers_keep_their_digits() {
    let tx = Tx { nonce: u64::MAX, value: U256::MAX, ..with_logs(vec![transfer(X, Y, U256::MAX)]) };
    let tables = map_all(&settings(), &block(7, 1, &[tx]));
    let row = &tables["evm_transactions"][0];
    assert_eq!(get("evm_transactions", row, "nonce").to_string(), u64::MAX.to_string());
    assert_eq!(get("evm_transactions", row, "value"), &Value::Amount(U256::MAX));
    assert_eq!(FtTransfer::from_row(&tables["ft_transfers"][0]).unwrap().amount, U256::MAX);
}

#[test]
fn rows_read_back_as_they_were_written() {
    let topics = [TRANSFER_BATCH, X.into_word(), Address::ZERO.into_word(), Y.into_word()];
    let batch = log(&topics, &[64, 160, 2, 7, 8, 2, 70, 80].map(word));
    let create = Tx { to: None, contract: Some(TOKEN), input: vec![1], ..Tx::default() };
    let logs = vec![transfer(X, Address::ZERO, U256::MAX), batch];
    let tables = map_all(&settings(), &block(7, 1, &[with_logs(logs), create]));
    use cairn_explorer::tables::{accounts, contracts, transactions};
    for (table, rows) in &tables {
        for row in rows {
            let again = match *table {
                "ft_transfers" => FtTransfer::from_row(row).unwrap().to_row(),
                "nft_transfers" => NftTransfer::from_row(row).unwrap().to_row(),
                "smart_contracts" => contracts::SmartContract::from_row(row).unwrap().to_row(),
                "address_transactions" => accounts::AddressTransaction::from_row(row).unwrap().to_row(),
                "tx_metrics" => transactions::TxMetrics::from_row(row).unwrap().to_row(),
                "tx_contracts" => transactions::TxContract::from_row(row).unwrap().to_row(),
                _ => row.clone(),
            };
            assert_eq!(&again, row);
        }
    }
    assert_eq!(tables.len(), 8);
    let short = Row(vec![Value::Int(7)]);
    let error = FtTransfer::from_row(&short).unwrap_err().to_string();
    assert!(error.contains("ft_transfers") && error.contains("transaction_id"), "{error}");
}

#[test]
fn every_mapper_takes_the_public_test_chain() {
    let shared =
        std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), std::path::PathBuf::from);
    let folder = shared.join("conformance/execution-apis");
    if !folder.join("chain.rlp").is_file() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} has no chain", folder.display());
        println!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", folder.display());
        return;
    }
    let mut rows = 0;
    for block in support::suite_chain(&folder) {
        let tables = map_all(&wrapping(), &block);
        assert_eq!(tables.get("evm_transactions").map_or(0, Vec::len), block.facts.tx_count as usize);
        assert_eq!(tables.get("tx_metrics").map_or(0, Vec::len), block.facts.tx_count as usize);
        assert_eq!(tables.get("evm_logs").map_or(0, Vec::len), block.facts.log_count as usize);
        rows += tables.values().map(Vec::len).sum::<usize>();
    }
    assert!(rows > 500, "{rows}");
}
