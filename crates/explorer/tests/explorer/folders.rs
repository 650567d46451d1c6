//! Folders against plain models, over random chains and in chunks of every size.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, B256, U256};
use cairn_core::StoredBlock;
use cairn_explorer::decode::evm::transfers::{TRANSFER, TRANSFER_SINGLE};
use cairn_explorer::names;
use cairn_explorer::processors::Settings;
use cairn_store::derived::{Row, Sum};
use proptest::prelude::*;

use crate::support;
use support::{Folded, Log, Tables, Tx, block, column, get, map, map_all, with_logs};

fn who(n: u8) -> Address {
    if n == 0 { Address::ZERO } else { Address::repeat_byte(n) }
}

fn contract(n: u8) -> Address {
    Address::repeat_byte(0xc0 + n)
}

fn erc20(token: u8, from: u8, to: u8, amount: U256) -> Log {
    let topics = vec![TRANSFER, who(from).into_word(), who(to).into_word()];
    Log { address: contract(token), topics, data: amount.to_be_bytes::<32>().to_vec() }
}

fn erc721(token: u8, from: u8, to: u8, id: u64) -> Log {
    let topics = vec![TRANSFER, who(from).into_word(), who(to).into_word(), U256::from(id).into()];
    Log { address: contract(token), topics, data: vec![] }
}

fn erc1155(token: u8, from: u8, to: u8, id: u64, amount: u64) -> Log {
    let topics = vec![TRANSFER_SINGLE, B256::ZERO, who(from).into_word(), who(to).into_word()];
    let data = [id, amount].map(|n| B256::from(U256::from(n))).concat();
    Log { address: contract(token), topics, data }
}

/// Blocks from height 1, one an hour, each with the rows of the mapper that folders read; a transaction holds up to `per_tx` of its logs.
fn chain(blocks: &[Vec<Log>], per_tx: usize) -> Vec<(StoredBlock, Tables)> {
    let settings = Settings::default();
    let one = |(at, logs): (usize, &Vec<Log>)| {
        let txs: Vec<Tx> = logs.chunks(per_tx).map(|logs| with_logs(logs.to_vec())).collect();
        let block = block(at as u64 + 1, at as u64 * 3600, &txs);
        let rows = map(&settings, names::TOKEN_WORKER, &block).0;
        (block, rows)
    };
    blocks.iter().enumerate().map(one).collect()
}

/// Folds a chain in chunks of so many blocks.
fn folded(service: &str, chain: &[(StoredBlock, Tables)], chunk: usize) -> Folded {
    let mut state = Folded::new();
    for blocks in chain.chunks(chunk) {
        state.fold(service, blocks);
    }
    state.hold_against_replays(service, chain);
    state
}

fn sum(table: &'static str, row: &Row, column: &str) -> Sum {
    *get(table, row, column).as_sum().unwrap()
}

fn int(table: &'static str, row: &Row, column: &str) -> i64 {
    get(table, row, column).as_int().unwrap()
}

fn address(table: &'static str, row: &Row, column: &str) -> Option<Address> {
    get(table, row, column).as_bytes().map(|bytes| Address::from_slice(bytes))
}

fn amounts() -> impl Strategy<Value = U256> {
    prop_oneof![
        Just(U256::ZERO),
        (0u64..20).prop_map(U256::from),
        Just(U256::MAX),
        any::<[u64; 4]>().prop_map(U256::from_limbs)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn balances_are_the_sums_of_transfers(
        moves in prop::collection::vec(prop::collection::vec((0u8..2, 0u8..4, 0u8..4, amounts()), 0..6), 1..8),
        per_tx in 1usize..4,
        chunk in 1usize..9,
    ) {
        let logs: Vec<Vec<Log>> = moves
            .iter()
            .map(|moves| moves.iter().map(|(token, from, to, amount)| erc20(*token, *from, *to, *amount)).collect())
            .collect();
        let chain = chain(&logs, per_tx);
        let state = folded(names::FT_HOLDINGS_WORKER, &chain, chunk);

        let mut model: BTreeMap<(Address, Address), Sum> = BTreeMap::new();
        let mut transfers: BTreeMap<Address, i64> = BTreeMap::new();
        let mut minted: BTreeMap<Address, Sum> = BTreeMap::new();
        for (token, from, to, amount) in moves.iter().flatten() {
            let amount = Sum::from(*amount);
            for (party, by) in [(from, -amount), (to, amount)] {
                if *party != 0 {
                    let balance = model.entry((who(*party), contract(*token))).or_default();
                    *balance = *balance + by;
                } else {
                    let minted = minted.entry(contract(*token)).or_default();
                    *minted = *minted + -by;
                }
            }
            *transfers.entry(contract(*token)).or_default() += 1;
        }
        let mut found: BTreeMap<(Address, Address), Sum> = BTreeMap::new();
        for row in state.table("ft_holdings") {
            let balance = sum("ft_holdings", &row, "balance");
            prop_assert_eq!(get("ft_holdings", &row, "is_held").as_bool().unwrap(), !balance.is_zero());
            let place = |column| address("ft_holdings", &row, column).unwrap();
            prop_assert_ne!(place("address"), Address::ZERO);
            found.insert((place("address"), place("token_contract_address")), balance);
        }
        for (place, balance) in &model {
            prop_assert_eq!(found.get(place).copied().unwrap_or_default(), *balance);
        }
        prop_assert!(found.keys().all(|place| model.contains_key(place)));
        for row in state.table("token_stats") {
            let token = address("token_stats", &row, "contract_address").unwrap();
            let holders = found.iter().filter(|((_, of), balance)| *of == token && **balance > Sum::ZERO).count();
            prop_assert_eq!(int("token_stats", &row, "holder_count"), holders as i64);
            prop_assert_eq!(int("token_stats", &row, "transfer_count"), transfers[&token]);
            prop_assert_eq!(sum("token_stats", &row, "net_minted"), minted.get(&token).copied().unwrap_or_default());
        }
        prop_assert_eq!(state.table("token_stats").len(), transfers.len());
        // The size of chunks makes no difference.
        prop_assert_eq!(state.rows, folded(names::FT_HOLDINGS_WORKER, &chain, 1).rows);
    }

    #[test]
    fn items_belong_to_who_got_them_last(
        moves in prop::collection::vec(prop::collection::vec((0u8..2, 0u8..4, 0u64..4), 0..6), 1..8),
        per_tx in 1usize..4,
        chunk in 1usize..9,
    ) {
        // Each item goes from its owner to whoever is named; to nobody is a burn, and what is burnt may be minted again.
        let mut owners: BTreeMap<(u8, u64), u8> = BTreeMap::new();
        let mut logs = Vec::new();
        for moves in &moves {
            let mut of_block = Vec::new();
            for (token, to, id) in moves {
                let owner = owners.insert((*token, *id), *to).unwrap_or(0);
                of_block.push(erc721(*token, owner, *to, *id));
            }
            logs.push(of_block);
        }
        let chain = chain(&logs, per_tx);
        let state = folded(names::NFT_OWNERSHIP_WORKER, &chain, chunk);

        let items = state.table("nft_ownership");
        prop_assert_eq!(items.len(), owners.len());
        let mut held = BTreeSet::new();
        for ((token, id), owner) in &owners {
            let is = |row: &&Row| {
                address("nft_ownership", row, "contract_address") == Some(contract(*token))
                    && get("nft_ownership", row, "nft_id").as_amount() == Some(U256::from(*id))
            };
            let row = items.iter().find(is).unwrap();
            let expected = Some(who(*owner)).filter(|owner| *owner != Address::ZERO);
            prop_assert_eq!(address("nft_ownership", row, "owner"), expected);
            prop_assert_eq!(get("nft_ownership", row, "is_burned").as_bool(), Some(*owner == 0));
            if *owner != 0 {
                held.insert((contract(*token), who(*owner), *id));
            }
        }
        let mut found = BTreeSet::new();
        for row in state.table("nft_holdings") {
            let place = |column| address("nft_holdings", &row, column).unwrap();
            let balance = sum("nft_holdings", &row, "balance");
            prop_assert!(balance == Sum::ZERO || balance == Sum::from(U256::ONE));
            prop_assert_ne!(place("address"), Address::ZERO);
            if get("nft_holdings", &row, "is_held").as_bool().unwrap() {
                let id = get("nft_holdings", &row, "nft_id").as_amount().unwrap().to::<u64>();
                found.insert((place("contract_address"), place("address"), id));
            }
        }
        prop_assert_eq!(&found, &held);
        check_collections(&state)?;
        prop_assert_eq!(state.rows, folded(names::NFT_OWNERSHIP_WORKER, &chain, 1).rows);
    }

    #[test]
    fn items_that_many_hold_are_counted(
        moves in prop::collection::vec(prop::collection::vec((0u8..2, 0u8..4, 0u8..4, 0u64..3, 0u64..5), 0..6), 1..8),
        per_tx in 1usize..4,
        chunk in 1usize..9,
    ) {
        // As a real contract: nobody gives what he hasn't.
        let mut model: BTreeMap<(u8, u64, u8), u64> = BTreeMap::new();
        // Transfers of each contract, and of each item those that moved any of it.
        let mut sent: BTreeMap<u8, i64> = BTreeMap::new();
        let mut moved: BTreeMap<(u8, u64), i64> = BTreeMap::new();
        let mut logs = Vec::new();
        for moves in &moves {
            let mut of_block = Vec::new();
            for (token, from, to, id, amount) in moves {
                let has = model.get(&(*token, *id, *from)).copied().unwrap_or(0);
                let amount = if *from == 0 { *amount } else { (*amount).min(has) };
                if *from != 0 {
                    *model.entry((*token, *id, *from)).or_default() -= amount;
                }
                if *to != 0 {
                    *model.entry((*token, *id, *to)).or_default() += amount;
                }
                *sent.entry(*token).or_default() += 1;
                if amount > 0 {
                    *moved.entry((*token, *id)).or_default() += 1;
                }
                of_block.push(erc1155(*token, *from, *to, *id, amount));
            }
            logs.push(of_block);
        }
        let chain = chain(&logs, per_tx);
        let state = folded(names::NFT_OWNERSHIP_WORKER, &chain, chunk);
        let mut found: BTreeMap<(Address, u64, Address), Sum> = BTreeMap::new();
        for row in state.table("nft_holdings") {
            let place = |column| address("nft_holdings", &row, column).unwrap();
            let id = get("nft_holdings", &row, "nft_id").as_amount().unwrap().to::<u64>();
            let balance = sum("nft_holdings", &row, "balance");
            prop_assert_eq!(get("nft_holdings", &row, "is_held").as_bool().unwrap(), !balance.is_zero());
            found.insert((place("contract_address"), id, place("address")), balance);
        }
        for ((token, id, holder), amount) in &model {
            let balance = found.get(&(contract(*token), *id, who(*holder))).copied().unwrap_or_default();
            prop_assert_eq!(balance, Sum::from(U256::from(*amount)));
        }
        let mut supplies: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        for ((token, id, _), amount) in &model {
            *supplies.entry((*token, *id)).or_default() += amount;
        }
        let items = state.table("nft_ownership");
        prop_assert_eq!(items.len(), moved.len());
        for ((token, id), transfers) in &moved {
            let is = |row: &&Row| {
                address("nft_ownership", row, "contract_address") == Some(contract(*token))
                    && get("nft_ownership", row, "nft_id").as_amount() == Some(U256::from(*id))
            };
            let row = items.iter().find(is).unwrap();
            let supply = supplies.get(&(*token, *id)).copied().unwrap_or(0);
            prop_assert!(get("nft_ownership", row, "owner").is_null());
            prop_assert_eq!(sum("nft_ownership", row, "net_minted"), Sum::from(U256::from(supply)));
            prop_assert_eq!(get("nft_ownership", row, "is_burned").as_bool(), Some(supply == 0));
            prop_assert_eq!(int("nft_ownership", row, "transfer_count"), *transfers);
        }
        let collections = state.table("nft_collection_stats");
        prop_assert_eq!(collections.len(), sent.len());
        for (token, transfers) in &sent {
            let is = |row: &&Row| {
                address("nft_collection_stats", row, "contract_address") == Some(contract(*token))
            };
            let row = collections.iter().find(is).unwrap();
            let there = supplies.iter().filter(|((of, _), supply)| of == token && **supply > 0).count();
            prop_assert_eq!(int("nft_collection_stats", row, "item_count"), there as i64);
            prop_assert_eq!(int("nft_collection_stats", row, "transfer_count"), *transfers);
        }
        check_collections(&state)?;
        prop_assert_eq!(state.rows, folded(names::NFT_OWNERSHIP_WORKER, &chain, 1).rows);
    }
}

/// The counts of collections and owners are those of the rows below them.
fn check_collections(state: &Folded) -> Result<(), TestCaseError> {
    let items = state.table("nft_ownership");
    let holdings = state.table("nft_holdings");
    let owners = state.table("nft_owners");
    for row in &owners {
        let place = |column| address("nft_owners", row, column);
        let mut total = Sum::ZERO;
        for holding in &holdings {
            let of = |column| address("nft_holdings", holding, column);
            if of("address") == place("address") && of("contract_address") == place("contract_address") {
                total = total + sum("nft_holdings", holding, "balance");
            }
        }
        prop_assert_eq!(sum("nft_owners", row, "balance"), total);
    }
    for row in state.table("nft_collection_stats") {
        let collection = address("nft_collection_stats", &row, "contract_address");
        let live = items.iter().filter(|item| {
            address("nft_ownership", item, "contract_address") == collection
                && get("nft_ownership", item, "is_burned").as_bool() == Some(false)
        });
        let owning = owners.iter().filter(|owner| {
            address("nft_owners", owner, "contract_address") == collection
                && sum("nft_owners", owner, "balance") > Sum::ZERO
        });
        prop_assert_eq!(int("nft_collection_stats", &row, "item_count"), live.count() as i64);
        prop_assert_eq!(int("nft_collection_stats", &row, "owner_count"), owning.count() as i64);
    }
    Ok(())
}

#[test]
fn sums_of_the_largest_amounts_are_exact() {
    let mints = vec![erc20(0, 0, 1, U256::MAX), erc20(0, 0, 1, U256::MAX), erc20(0, 2, 1, U256::MAX)];
    let state = folded(names::FT_HOLDINGS_WORKER, &chain(&[mints], 1), 1);
    let balances = column("ft_holdings", &state.table("ft_holdings"), "balance");
    let max = Sum::from(U256::MAX);
    assert_eq!(balances, [(max + max + max).to_string(), (-max).to_string()]);
}

#[test]
fn e27_zeros_and_self_transfers_fill_no_table_of_holdings() {
    let logs = vec![erc20(0, 1, 2, U256::ZERO), erc20(0, 1, 1, U256::from(5)), erc20(0, 0, 0, U256::from(5))];
    let state = folded(names::FT_HOLDINGS_WORKER, &chain(&[logs], 1), 1);
    assert!(state.table("ft_holdings").is_empty());
    assert_eq!(column("token_stats", &state.table("token_stats"), "transfer_count"), ["3"]);
    assert_eq!(column("token_stats", &state.table("token_stats"), "net_minted"), ["0"]);
}

#[test]
fn e27_who_sends_nothing_of_an_item_makes_none_and_brings_none_back() {
    let blocks = [
        // Of one that was never minted, and a mint of none of it.
        vec![erc1155(0, 1, 2, 7, 0), erc1155(0, 0, 2, 7, 0)],
        // Of one that is burnt.
        vec![erc1155(0, 0, 1, 8, 5), erc1155(0, 1, 0, 8, 5)],
        vec![erc1155(0, 1, 2, 8, 0), erc1155(0, 0, 2, 8, 0)],
        // A burn of none of one that is there.
        vec![erc1155(0, 0, 1, 9, 2)],
        vec![erc1155(0, 1, 0, 9, 0)],
    ];
    for chunk in 1..=blocks.len() {
        let state = folded(names::NFT_OWNERSHIP_WORKER, &chain(&blocks, 1), chunk);
        let items = state.table("nft_ownership");
        let of_items = |name| column("nft_ownership", &items, name);
        assert_eq!(of_items("nft_id"), ["8", "9"]);
        assert_eq!(of_items("is_burned"), ["true", "false"]);
        assert_eq!(of_items("net_minted"), ["0", "2"]);
        assert_eq!(of_items("transfer_count"), ["2", "1"]);
        assert_eq!(of_items("last_height"), ["2", "4"]);
        let collections = state.table("nft_collection_stats");
        let of_collections = |name| column("nft_collection_stats", &collections, name);
        assert_eq!(of_collections("item_count"), ["1"]);
        assert_eq!(of_collections("owner_count"), ["1"]);
        assert_eq!(of_collections("transfer_count"), ["8"]);
        assert_eq!(column("nft_holdings", &state.table("nft_holdings"), "balance"), ["0", "2"]);
        assert_eq!(state.table("nft_owners").len(), 1);
    }
}

#[test]
fn items_minted_before_the_archive_are_there_until_all_that_was_minted_since_is_burnt() {
    let there = |blocks: &[Vec<Log>]| {
        let state = folded(names::NFT_OWNERSHIP_WORKER, &chain(blocks, 1), 1);
        let items = state.table("nft_ownership");
        let collections = state.table("nft_collection_stats");
        let mut of = column("nft_ownership", &items, "net_minted");
        of.extend(column("nft_ownership", &items, "is_burned"));
        of.extend(column("nft_collection_stats", &collections, "item_count"));
        of
    };
    let mut blocks = vec![vec![erc1155(0, 1, 2, 7, 5)]];
    assert_eq!(there(&blocks), ["0", "false", "1"], "somebody gave some");
    blocks.push(vec![erc1155(0, 2, 0, 7, 3)]);
    assert_eq!(there(&blocks), ["-3", "false", "1"], "there were more than the archive knows");
    blocks.push(vec![erc1155(0, 0, 2, 7, 3)]);
    assert_eq!(there(&blocks), ["0", "false", "1"], "some are new");
    blocks.push(vec![erc1155(0, 0, 2, 7, 4)]);
    blocks.push(vec![erc1155(0, 2, 0, 7, 4)]);
    assert_eq!(there(&blocks), ["0", "true", "0"], "as many are burnt as were minted");
    blocks.push(vec![erc1155(0, 2, 1, 7, 2)]);
    assert_eq!(there(&blocks), ["0", "false", "1"], "and yet somebody gives some");
}

#[test]
fn e27_what_is_burnt_and_what_is_spent_keeps_its_row() {
    let logs = vec![erc721(0, 0, 1, 7), erc721(0, 1, 0, 7)];
    let state = folded(names::NFT_OWNERSHIP_WORKER, &chain(&[logs], 2), 1);
    let items = state.table("nft_ownership");
    assert_eq!(column("nft_ownership", &items, "owner"), ["null"]);
    assert_eq!(column("nft_ownership", &items, "is_burned"), ["true"]);
    let logs = vec![erc20(0, 0, 1, U256::ONE), erc20(0, 1, 2, U256::ONE)];
    let state = folded(names::FT_HOLDINGS_WORKER, &chain(&[logs], 2), 1);
    assert_eq!(column("ft_holdings", &state.table("ft_holdings"), "balance"), ["0", "1"]);
    assert_eq!(column("ft_holdings", &state.table("ft_holdings"), "is_held"), ["false", "true"]);
}

#[test]
fn p01_increments_to_one_row_in_one_block_are_all_counted() {
    let logs = vec![erc20(0, 0, 1, U256::from(2)), erc20(0, 0, 1, U256::from(3)), erc20(0, 1, 2, U256::ONE)];
    let state = folded(names::FT_HOLDINGS_WORKER, &chain(&[logs], 1), 1);
    assert_eq!(column("ft_holdings", &state.table("ft_holdings"), "balance"), ["4", "1"]);
    assert_eq!(column("token_stats", &state.table("token_stats"), "holder_count"), ["2"]);
}

#[test]
fn days_and_addresses_are_counted_from_the_rows_of_their_upstreams() {
    let settings = Settings::default();
    let day_s = 86_400;
    let failed = Tx { status: Some(false), gas_price: None, ..Tx::default() };
    let unknown = Tx { status: None, ..Tx::default() };
    let create = Tx { to: None, contract: Some(contract(9)), input: vec![1], ..Tx::default() };
    let blocks = [
        block(1, 10, &[with_logs(vec![erc20(0, 1, 2, U256::ONE), erc721(1, 0, 1, 7)]), failed]),
        block(2, day_s - 1, &[unknown]),
        block(3, day_s, &[create]),
        block(4, day_s + 5, &[]),
    ];
    let chain: Vec<_> = blocks.iter().map(|block| (block.clone(), map_all(&settings, block))).collect();
    let mut expected = None;
    for chunk in 1..=4 {
        let state = folded(names::STATS_WORKER, &chain, chunk);
        let days = state.table("daily_stats");
        let of = |name| column("daily_stats", &days, name);
        assert_eq!(of("date"), ["\"1970-01-01\"", "\"1970-01-02\""]);
        assert_eq!(of("block_count"), ["2", "2"]);
        assert_eq!(of("transaction_count"), ["3", "1"]);
        assert_eq!(of("failed_transaction_count"), ["1", "0"]);
        assert_eq!(of("gas_used"), ["63000", "21000"]);
        // Two fees are known (E07), and the row says of how many transactions none is.
        assert_eq!(of("fees"), ["294000", "147000"]);
        assert_eq!(of("transactions_without_fee"), ["1", "0"]);
        assert_eq!(of("event_count"), ["2", "0"]);
        assert_eq!(of("ft_transfer_count"), ["1", "0"]);
        assert_eq!(of("nft_transfer_count"), ["1", "0"]);
        assert_eq!(of("new_contract_count"), ["0", "1"]);
        assert_eq!(
            (of("first_height"), of("last_height")),
            (vec!["1".into(), "3".into()], vec!["2".into(), "4".into()])
        );

        let addresses = state.table("address_stats");
        let row = |of: Address| {
            let is = |row: &&Row| address("address_stats", row, "address") == Some(of);
            addresses.iter().find(is).map(|row| {
                ["transaction_count", "sent_count", "received_count", "first_height", "last_height"]
                    .map(|column| int("address_stats", row, column))
            })
        };
        let default = Tx::default();
        assert_eq!(row(default.from), Some([4, 4, 0, 1, 3]));
        assert_eq!(row(default.to.unwrap()), Some([3, 0, 3, 1, 2]));
        assert_eq!(row(who(1)), Some([1, 0, 0, 1, 1]));
        assert_eq!(row(contract(9)), Some([1, 0, 0, 3, 3]));
        assert_eq!(row(Address::ZERO), None);
        assert_eq!(expected.get_or_insert_with(|| state.rows.clone()), &state.rows);
    }
}
