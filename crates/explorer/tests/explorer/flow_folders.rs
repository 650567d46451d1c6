//! Folders over made-up Flow chains: the EVM chain, accounts with their keys and contracts, statistics.

use cairn_core::StoredBlock;
use cairn_explorer::names;
use cairn_store::derived::Severity;

use crate::support;
use support::flow::*;

fn shown(number: u64) -> String {
    account(number).bare()
}

/// An event of the new form, of another type of its contract than the usual one.
fn of_type(kind: &str, (name, payload): (String, String)) -> (String, String) {
    let named = |payload: &str, usual: &str| payload.replace(&format!(".{usual}\""), &format!(".{kind}\""));
    (name, named(&named(&payload, "Vault"), "NFT"))
}

/// The event of an item as that of another resource.
fn event_of_uuid((name, payload): (String, String), new: u64) -> (String, String) {
    (name, payload.replace(&format!("\"{}\"", uuid(CATS, 1)), &format!("\"{new}\"")))
}

fn evm_block(height: u64, evm_height: Option<u64>) -> StoredBlock {
    let events = evm_height.map(|evm_height| evm_closed(evm_height, 0));
    flow_block(height, &[system(events.into_iter().collect())])
}

#[test]
fn f04_flow_blocks_without_an_evm_block_are_counted_and_a_gap_is_named() {
    // Flow 10 has EVM 5, Flow 11 none, Flow 12 EVM 6: fine. Flow 13 has EVM 8: 7 is missing.
    let blocks = [(9, None), (10, Some(5)), (11, None), (12, Some(6)), (13, Some(8)), (14, Some(9))]
        .map(|(height, evm_height)| evm_block(height, evm_height));
    for chunk in 1..=blocks.len() {
        let state = folded(names::EVM_CHAIN_WORKER, &blocks, chunk);
        let chain = state.table("evm_chain");
        let of = |name: &str| column("evm_chain", &chain, name);
        assert_eq!((of("first_evm_height"), of("evm_height")), (vec!["5".into()], vec!["9".into()]));
        assert_eq!(of("block_count"), ["4"]);
        assert_eq!(of("absent_count"), ["1"], "before the first one, none is absent");
        assert_eq!(of("missing_count"), ["1"]);
        assert_eq!(of("last_height"), ["14"]);
        let gaps = state.table("evm_gaps");
        let of = |name: &str| column("evm_gaps", &gaps, name);
        assert_eq!((of("from_evm_height"), of("to_evm_height")), (vec!["7".into()], vec!["7".into()]));
        assert_eq!((of("kind"), of("seen_at_height")), (vec!["gap".into()], vec!["13".into()]));
        let absences = state.table("evm_absences");
        let of = |name: &str| column("evm_absences", &absences, name);
        assert_eq!((of("evm_height"), of("absent_count")), (vec!["5".into()], vec!["1".into()]));
        assert_eq!((of("first_height"), of("last_height")), (vec!["11".into()], vec!["11".into()]));
        // One error. The block after the gap names a parent that is missing, and that is the same fault.
        let said: Vec<_> = state.errors.iter().map(|one| (one.severity, one.message.as_str())).collect();
        let want = "EVM blocks 7 to 7 are missing: block 8 follows block 6";
        assert_eq!(said, [(Severity::Fatal, want)], "chunks of {chunk}");
    }
    let whole = [(10, Some(5)), (11, None), (12, Some(6))].map(|(height, evm)| evm_block(height, evm));
    let state = folded(names::EVM_CHAIN_WORKER, &whole, 2);
    assert_eq!(state.errors, []);
    assert!(state.table("evm_gaps").is_empty());
}

#[test]
fn f04_flow_blocks_in_succession_without_an_evm_block_have_one_row_however_many_they_are() {
    let evm = |height: u64| match height {
        10 => Some(5),
        600 => Some(6),
        605 => Some(7),
        _ => None,
    };
    let blocks: Vec<StoredBlock> = (0..=610).map(|height| evm_block(height, evm(height))).collect();
    for chunk in [1, 7, 250, 611] {
        let state = folded(names::EVM_CHAIN_WORKER, &blocks, chunk);
        assert_eq!(state.errors, []);
        let absences = state.table("evm_absences");
        let of = |name: &str| column("evm_absences", &absences, name);
        // None before the first EVM block, and the last run is not over.
        assert_eq!(of("evm_height"), ["5", "6", "7"]);
        assert_eq!(of("first_height"), ["11", "601", "606"]);
        assert_eq!(of("last_height"), ["599", "604", "610"]);
        assert_eq!(of("absent_count"), ["589", "4", "5"], "chunks of {chunk}");
        let chain = state.table("evm_chain");
        assert_eq!(column("evm_chain", &chain, "absent_count"), ["598"]);
    }
}

#[test]
fn f04_an_evm_block_that_comes_late_is_named_and_the_chain_goes_on_from_it() {
    let blocks = [(10, Some(5)), (11, Some(7)), (12, Some(6)), (13, None), (14, Some(7))]
        .map(|(height, evm)| evm_block(height, evm));
    for chunk in [1, 5] {
        let state = folded(names::EVM_CHAIN_WORKER, &blocks, chunk);
        let gaps = state.table("evm_gaps");
        let of = |name: &str| column("evm_gaps", &gaps, name);
        assert_eq!(of("kind"), ["gap", "repeat"]);
        assert_eq!(
            (of("from_evm_height"), of("to_evm_height")),
            (vec!["6".into(), "6".into()], vec!["6".into(), "7".into()])
        );
        assert_eq!(of("seen_at_height"), ["11", "12"]);
        let said: Vec<_> = state.errors.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(said[1], "EVM block 6 follows block 7: it comes again, or late");
        assert_eq!(column("evm_absences", &state.table("evm_absences"), "evm_height"), ["6"]);
    }
}

#[test]
fn f04_evm_blocks_that_come_again_or_have_another_parent_are_named() {
    let foreign = {
        let (name, payload) = evm_closed(7, 0);
        let parent = byte_list(evm_hash(6).as_slice()).to_string();
        (name, payload.replace(&parent, &byte_list(evm_hash(99).as_slice()).to_string()))
    };
    let blocks = [
        evm_block(10, Some(5)),
        // Two in one block follow each other as well.
        flow_block(11, &[system(vec![evm_closed(6, 0), foreign])]),
        evm_block(12, Some(7)),
        evm_block(13, Some(8)),
    ];
    for chunk in [1, 4] {
        let state = folded(names::EVM_CHAIN_WORKER, &blocks, chunk);
        let gaps = state.table("evm_gaps");
        let mut kinds = column("evm_gaps", &gaps, "kind");
        kinds.sort();
        assert_eq!(kinds, ["fork", "repeat"]);
        assert_eq!(column("evm_chain", &state.table("evm_chain"), "missing_count"), ["0"]);
        assert_eq!(state.errors.len(), 2);
    }
}

/// A Flow block with these transactions of the EVM block 6, each at its place; it closes the EVM block where that used the gas of so many.
fn part(height: u64, places: &[u16], closed: Option<u64>) -> StoredBlock {
    let executed = places.iter().map(|place| evm_executed(6, *place, &Direct::call((*place).into()), &[], 0));
    let events = closed.map(|transactions| evm_closed(6, transactions));
    flow_block(height, &[with(executed.collect()), system(events.into_iter().collect())])
}

#[test]
fn f05_an_evm_block_in_several_flow_blocks_is_complete_when_its_parts_are() {
    let cases: [(&[StoredBlock], &str, &str); 6] = [
        // The system's transaction failed once, and twice; and there is nothing more to come.
        (&[part(11, &[0], None), part(12, &[1, 2], Some(3))], "true", ""),
        (&[part(11, &[0], None), part(12, &[1], None), part(13, &[], Some(2))], "true", ""),
        (&[part(11, &[0], None)], "null", ""),
        // Of what was missing in the middle, and at the end.
        (&[part(11, &[0], None), part(12, &[2], Some(3))], "false", "2 transactions with 42000 gas of 63000"),
        (
            &[part(11, &[0, 1], None), part(12, &[], Some(3))],
            "false",
            "2 transactions with 42000 gas of 63000",
        ),
        // The worker that saw the only part has said it already.
        (&[part(11, &[0], Some(2))], "false", ""),
    ];
    for (blocks, is_complete, said) in cases {
        for chunk in 1..=blocks.len() {
            let state = folded(names::EVM_CHAIN_WORKER, blocks, chunk);
            let splits = state.table("evm_splits");
            let of = |name: &str| column("evm_splits", &splits, name).join(",");
            assert_eq!((of("evm_height"), of("is_complete")), ("6".into(), is_complete.into()), "{blocks:?}");
            assert_eq!(
                (of("first_height"), of("last_height")),
                ("11".into(), (10 + blocks.len()).to_string())
            );
            let of_folder = state.errors.iter().filter(|one| one.severity == Severity::Fatal);
            let told: Vec<&str> = of_folder.map(|one| one.message.as_str()).collect();
            assert_eq!(told.len(), usize::from(!said.is_empty()), "{told:?}");
            assert!(told.iter().all(|told| told.contains(said)), "{told:?}");
        }
    }
    let whole = [part(11, &[0, 1], Some(2)), part(12, &[], None)];
    assert!(folded(names::EVM_CHAIN_WORKER, &whole, 2).table("evm_splits").is_empty());
}

#[test]
fn keys_are_counted_where_events_leave_their_index_out() {
    let blocks = [
        flow_block(1, &[with(vec![about("flow.AccountCreated", 4, &[]), key_added(4, &[1; 64], None)])]),
        // Two more, the second with its index, and the one between them is revoked in the block that adds it.
        flow_block(
            2,
            &[with(vec![
                key_added(4, &[2; 64], None),
                key_added(4, &[3; 64], Some(2)),
                key_revoked(4, 1),
                key_added(4, &[4; 64], None),
            ])],
        ),
        flow_block(3, &[with(vec![key_revoked(4, 0), key_added(5, &[9; 64], Some(0))])]),
        // One of which the archive has not seen the addition.
        flow_block(4, &[with(vec![key_revoked(6, 3)])]),
    ];
    let mut first = None;
    for chunk in 1..=4 {
        let state = folded(names::ACCOUNT_STATE_WORKER, &blocks, chunk);
        let keys = state.table("account_keys");
        let of = |name: &str| column("account_keys", &keys, name);
        assert_eq!(of("address"), [4, 4, 4, 4, 5, 6].map(shown));
        assert_eq!(of("key_index"), ["0", "1", "2", "3", "0", "3"]);
        let key = |byte: u8| hex::encode([byte; 64]);
        assert_eq!(of("public_key"), [key(1), key(2), key(3), key(4), key(9), "null".into()]);
        assert_eq!(of("is_revoked"), ["true", "true", "false", "false", "false", "true"]);
        assert_eq!(of("weight"), ["null", "null", "1000", "null", "1000", "null"]);
        let accounts = state.table("flow_accounts");
        let of = |name: &str| column("flow_accounts", &accounts, name);
        assert_eq!(of("key_count"), ["4", "1", "0"]);
        assert_eq!(of("created_height"), ["1", "null", "null"]);
        assert_eq!(first.get_or_insert_with(|| state.rows.clone()), &state.rows, "chunks of {chunk}");
    }
}

#[test]
fn a_key_that_is_revoked_by_its_bytes_is_revoked() {
    let added = |byte: u8, weight| old_key_added(4, &[byte; 64], weight);
    let revoked = |byte: u8, weight| old_key_revoked(4, &[byte; 64], weight);
    let blocks = [
        flow_block(1, &[with(vec![about("flow.AccountCreated", 4, &[]), added(1, 1000), added(2, 1000)])]),
        // Added and revoked in one block; and one whose bytes another key has with another weight.
        flow_block(2, &[with(vec![added(3, 1000), added(2, 1), revoked(3, 1000), revoked(2, 1)])]),
        flow_block(3, &[with(vec![revoked(1, 1000), key_added(4, &[5; 64], None)])]),
        // Of a key that no event told of, and of an account that has none.
        flow_block(4, &[with(vec![revoked(9, 1000), old_key_revoked(5, &[1; 64], 1000)])]),
        // One that is told without its weight may be meant too.
        flow_block(5, &[with(vec![revoked(5, 1000)])]),
    ];
    let mut first = None;
    for chunk in 1..=5 {
        let state = folded(names::ACCOUNT_STATE_WORKER, &blocks, chunk);
        let keys = state.table("account_keys");
        let of = |name: &str| column("account_keys", &keys, name);
        assert_eq!(of("key_index"), ["0", "1", "2", "3", "4"]);
        assert_eq!(of("is_revoked"), ["true", "false", "true", "true", "true"]);
        assert_eq!(of("last_height"), ["3", "1", "2", "2", "5"]);
        assert!(state.table("unplaced_key_revocations").is_empty());
        assert_eq!(state.errors, []);
        assert_eq!(first.get_or_insert_with(|| state.rows.clone()), &state.rows, "chunks of {chunk}");
    }
}

#[test]
fn which_of_two_equal_keys_was_revoked_is_left_open_until_it_is_known() {
    let key = [7; 64];
    let start = || {
        vec![about("flow.AccountCreated", 4, &[]), old_key_added(4, &key, 1000), old_key_added(4, &key, 1000)]
    };
    let blocks = [
        flow_block(1, &[with(start())]),
        flow_block(2, &[with(vec![old_key_revoked(4, &key, 1000)])]),
        // A third one, which that revocation can't mean.
        flow_block(3, &[with(vec![old_key_added(4, &key, 1000)])]),
        // The second: so it was the first.
        flow_block(4, &[with(vec![key_revoked(4, 1)])]),
        flow_block(5, &[with(vec![old_key_revoked(4, &key, 1000)])]),
    ];
    let wanted = [
        (["false", "false"].as_slice(), "0"),
        (&["false", "false"], "1"),
        (&["false", "false", "false"], "1"),
        (&["true", "true", "false"], "0"),
        (&["true", "true", "true"], "0"),
    ];
    for (upto, (is_revoked, count)) in (1..).zip(wanted) {
        let mut first = None;
        for chunk in 1..=upto {
            let state = folded(names::ACCOUNT_STATE_WORKER, &blocks[..upto], chunk);
            let keys = state.table("account_keys");
            assert_eq!(
                column("account_keys", &keys, "is_revoked"),
                is_revoked,
                "{upto} in chunks of {chunk}"
            );
            let unplaced = state.table("unplaced_key_revocations");
            let counts = column("unplaced_key_revocations", &unplaced, "revocation_count");
            assert_eq!(counts.first().map_or("0", String::as_str), count);
            assert_eq!(first.get_or_insert_with(|| state.rows.clone()), &state.rows, "chunks of {chunk}");
        }
    }
    // As many revocations as keys: all of them.
    let both = [
        flow_block(1, &[with(start())]),
        flow_block(2, &[with(vec![old_key_revoked(4, &key, 1000), old_key_revoked(4, &key, 1000)])]),
    ];
    let state = folded(names::ACCOUNT_STATE_WORKER, &both, 2);
    assert_eq!(column("account_keys", &state.table("account_keys"), "is_revoked"), ["true", "true"]);
}

#[test]
fn contracts_are_what_their_last_event_left() {
    let hash = |byte: u8| [byte; 32];
    let blocks = [
        flow_block(1, &[with(vec![contract_set("Added", 4, "Cats", hash(1))])]),
        flow_block(
            2,
            &[with(vec![
                contract_set("Updated", 4, "Cats", hash(2)),
                contract_set("Added", 4, "Dogs", hash(3)),
            ])],
        ),
        flow_block(3, &[with(vec![contract_set("Removed", 4, "Dogs", hash(3))])]),
    ];
    for chunk in 1..=3 {
        let state = folded(names::ACCOUNT_STATE_WORKER, &blocks, chunk);
        let contracts = state.table("account_contracts");
        let of = |name: &str| column("account_contracts", &contracts, name);
        assert_eq!(of("contract_name"), ["Cats", "Dogs"]);
        assert_eq!(of("code_hash"), [hex::encode(hash(2)), hex::encode(hash(3))]);
        assert_eq!(of("version_count"), ["2", "1"]);
        assert_eq!(of("is_removed"), ["false", "true"]);
        assert_eq!(column("flow_accounts", &state.table("flow_accounts"), "contract_count"), ["1"]);
    }
}

#[test]
fn a_burn_does_not_keep_the_owner_and_an_item_that_comes_back_is_not_made_twice() {
    let blocks = [
        flow_block(1, &[with(vec![item_deposited(CATS, 1, Some(1)), item_deposited(CATS, 2, Some(1))])]),
        // One leaves its account for a market, and is sold out of it a block later.
        flow_block(2, &[with(vec![item_withdrawn(CATS, 1, Some(1))])]),
        flow_block(3, &[with(vec![item_deposited(CATS, 1, Some(2))])]),
        flow_block(4, &[with(vec![item_withdrawn(CATS, 2, Some(1)), item_destroyed(NFT, CATS, 2)])]),
    ];
    for chunk in 1..=4 {
        let state = folded(names::NFT_OWNERSHIP_WORKER, &blocks, chunk);
        let items = state.table("nft_ownership");
        let of = |name: &str| column("nft_ownership", &items, name);
        assert_eq!(of("owner"), [shown(2), "null".into()]);
        assert_eq!(of("is_burned"), ["false", "true"]);
        assert_eq!(of("net_minted"), ["1", "0"]);
        let collections = state.table("nft_collection_stats");
        assert_eq!(column("nft_collection_stats", &collections, "item_count"), ["1"]);
        assert_eq!(column("nft_collection_stats", &collections, "owner_count"), ["1"]);
        let away = folded(names::NFT_OWNERSHIP_WORKER, &blocks[..2], chunk);
        let items = away.table("nft_ownership");
        assert_eq!(column("nft_ownership", &items, "owner"), ["null".into(), shown(1)]);
        assert_eq!(column("nft_ownership", &items, "is_burned"), ["false", "false"]);
    }
}

#[test]
fn an_item_that_is_destroyed_with_its_collection_has_no_owner_any_more() {
    let blocks = [
        flow_block(1, &[with((1..=5).map(|id| item_deposited(CATS, id, Some(1))).collect())]),
        // To another account, and out of any.
        flow_block(
            2,
            &[with(vec![
                item_withdrawn(CATS, 2, Some(1)),
                item_deposited(CATS, 2, Some(2)),
                item_withdrawn(CATS, 5, Some(1)),
            ])],
        ),
        // Account 1's collection: one item is told by its own contract too, which knows the collection, one by the standard alone; of one that was never seen too.
        flow_block(
            3,
            &[with(vec![
                item_destroyed(CATS, CATS, 1),
                item_destroyed(NFT, CATS, 1),
                item_destroyed(NFT, CATS, 3),
                item_destroyed(NFT, CATS, 99),
            ])],
        ),
        // What lay in no account; and one that came and went in one block.
        flow_block(
            4,
            &[
                with(vec![item_destroyed(NFT, CATS, 5)]),
                FlowTx { proposer: 9, ..with(vec![item_deposited(CATS, 6, Some(2))]) },
                FlowTx { proposer: 8, ..with(vec![item_destroyed(NFT, CATS, 6)]) },
            ],
        ),
    ];
    let mut first = None;
    for chunk in 1..=4 {
        let state = folded(names::NFT_OWNERSHIP_WORKER, &blocks, chunk);
        let items = state.table("nft_ownership");
        let of = |name: &str| column("nft_ownership", &items, name);
        assert_eq!(of("nft_id"), ["1", "2", "3", "4", "5", "6"]);
        let nobody = || "null".to_owned();
        assert_eq!(of("owner"), [nobody(), shown(2), nobody(), shown(1), nobody(), nobody()]);
        assert_eq!(of("is_burned"), ["true", "false", "true", "false", "true", "true"]);
        assert_eq!(of("net_minted"), ["0", "1", "0", "1", "0", "0"]);
        assert_eq!(of("transfer_count"), ["2", "2", "1", "1", "2", "1"]);
        let held = state.table("nft_holdings");
        let of = |name: &str| column("nft_holdings", &held, name);
        let held: Vec<_> = of("nft_id").into_iter().zip(of("address")).zip(of("is_held")).collect();
        let held: Vec<_> =
            held.iter().filter(|(_, is_held)| is_held == "true").map(|(held, _)| held).collect();
        assert_eq!(held, [&("2".to_owned(), shown(2)), &("4".to_owned(), shown(1))]);
        let owners = state.table("nft_owners");
        assert_eq!(column("nft_owners", &owners, "balance"), ["1", "1"]);
        let collections = state.table("nft_collection_stats");
        assert_eq!(column("nft_collection_stats", &collections, "item_count"), ["2"]);
        assert_eq!(column("nft_collection_stats", &collections, "owner_count"), ["2"]);
        assert_eq!(first.get_or_insert_with(|| state.rows.clone()), &state.rows, "chunks of {chunk}");
    }
}

#[test]
fn the_types_of_one_contract_have_balances_and_owners_of_their_own() {
    let blocks = [
        flow_block(
            1,
            &[with(vec![
                deposited(COIN, 5, Some(1), 10, 20),
                of_type("Gold", deposited(COIN, 7, Some(1), 11, 21)),
                item_deposited(CATS, 1, Some(1)),
                // Another resource with the same id.
                of_type("Kitten", event_of_uuid(item_deposited(CATS, 1, Some(2)), 77)),
            ])],
        ),
        flow_block(2, &[with(vec![of_type("Gold", withdrawn(COIN, 3, Some(1), 11, 22))])]),
    ];
    for chunk in 1..=2 {
        let state = folded(names::FT_HOLDINGS_WORKER, &blocks, chunk);
        let held = state.table("ft_holdings");
        assert_eq!(column("ft_holdings", &held, "contract_name"), ["Coin", "Coin.Gold"]);
        assert_eq!(column("ft_holdings", &held, "balance"), ["5", "4"]);
        let state = folded(names::NFT_OWNERSHIP_WORKER, &blocks, chunk);
        let items = state.table("nft_ownership");
        assert_eq!(column("nft_ownership", &items, "contract_name"), ["Cats", "Cats.Kitten"]);
        assert_eq!(column("nft_ownership", &items, "owner"), [shown(1), shown(2)]);
    }
    // Which contracts a transaction touched is said by contract.
    let (tables, _) = map_on(cairn_flow::Network::Emulator, names::TX_CONTRACTS_WORKER, &blocks[0]);
    let touched: Vec<_> = told(&tables, "tx_contracts", "contract_name")
        .into_iter()
        .zip(told(&tables, "tx_contracts", "tags"))
        .filter(|(_, tags)| tags != "log")
        .collect();
    assert_eq!(touched, [("Cats".to_owned(), "nft".to_owned()), ("Coin".into(), "ft".into())]);
}

#[test]
fn ties_at_one_height_are_decided_by_the_place_in_the_block() {
    // The same item three times in one block: in two transactions, and twice in one. Ids of transactions come in any order.
    let moves =
        |from: u64, to: u64| vec![item_withdrawn(CATS, 1, Some(from)), item_deposited(CATS, 1, Some(to))];
    for first in 1..40u64 {
        let mint = with(vec![item_deposited(CATS, 1, Some(first))]);
        let there = with([moves(first, 100), moves(100, 101)].concat());
        let back = FlowTx { proposer: first, ..with(moves(101, first)) };
        let state = folded(names::NFT_OWNERSHIP_WORKER, &[flow_block(5, &[mint, there, back])], 1);
        assert_eq!(column("nft_ownership", &state.table("nft_ownership"), "owner"), [shown(first)]);
        let held = state.table("nft_holdings");
        assert_eq!(
            column("nft_holdings", &held, "is_held"),
            column("nft_holdings", &held, "balance")
                .iter()
                .map(|held| (held == "1").to_string())
                .collect::<Vec<_>>()
        );
    }
}

#[test]
fn days_count_flow_blocks_as_they_count_others() {
    let mut paid = vec![deposited(COIN, 5, Some(2), 1, 2), contract_set("Added", 4, "Cats", [1; 32])];
    paid.extend(fee_of(1, 12));
    let failed = FlowTx { error: Some("no".into()), events: fee_of(1, 3), ..FlowTx::default() };
    let blocks = [
        flow_block(1, &[with(paid), failed, system(vec![])]),
        flow_block(2, &[system(vec![])]),
        flow_block(24, &[with(vec![item_deposited(CATS, 1, Some(1))]), system(vec![])]),
    ];
    for chunk in 1..=3 {
        let state = folded(names::STATS_WORKER, &blocks, chunk);
        let days = state.table("daily_stats");
        let of = |name: &str| column("daily_stats", &days, name);
        assert_eq!(of("date"), ["1970-01-01", "1970-01-02"]);
        assert_eq!(of("transaction_count"), ["4", "2"]);
        assert_eq!(of("failed_transaction_count"), ["1", "0"]);
        assert_eq!(of("fees"), ["15", "0"]);
        assert_eq!(of("transactions_without_fee"), ["0", "1"]);
        assert_eq!(of("ft_transfer_count"), ["1", "0"]);
        assert_eq!(of("nft_transfer_count"), ["0", "1"]);
        assert_eq!(of("new_contract_count"), ["1", "0"]);
    }
}
