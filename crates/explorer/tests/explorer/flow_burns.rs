//! What is destroyed, in whatever words: tokens by a contract itself and by the standard's `Burner`, items by events that name a resource, an item, or both.

use cairn_explorer::names;
use cairn_store::derived::Value;

use crate::support;
use support::Tables;
use support::flow::*;

const HOUNDS: &str = "A.0000000000000009.Hounds";

type Events = Vec<(String, String)>;

fn shown(number: u64) -> String {
    account(number).bare()
}

/// Event, giver, taker, how many or which item, and whether they are burnt: the rows of one transaction.
fn rows(tables: &Tables, table: &'static str, what: &str) -> Vec<(i64, String, String, String, bool)> {
    let mut rows: Vec<_> = tables.get(table).into_iter().flatten().collect();
    rows.sort_by_key(|row| ["event_index", "sub_index"].map(|at| get(table, row, at).as_int()));
    let text = |value: &Value| match value {
        Value::Null => "-".to_owned(),
        Value::Bytes(bytes) => hex::encode(bytes).trim_start_matches('0').to_owned(),
        other => other.to_string(),
    };
    rows.into_iter()
        .map(|row| {
            let of = |column: &str| get(table, row, column);
            (
                of("event_index").as_int().unwrap(),
                text(of("from_address")),
                text(of("to_address")),
                text(of(what)),
                of("is_burn").as_bool().unwrap(),
            )
        })
        .collect()
}

fn check(
    table: &'static str,
    what: &str,
    events: Events,
    wanted: &[(i64, &str, &str, &str, bool)],
) -> Tables {
    let tables = map_all(&flow_block(5, &[with(events)]));
    let found = rows(&tables, table, what);
    let found: Vec<_> = found
        .iter()
        .map(|(event, from, to, what, is_burn)| (*event, from.as_str(), to.as_str(), what.as_str(), *is_burn))
        .collect();
    assert_eq!(found, wanted);
    tables
}

fn tokens(events: Events, wanted: &[(i64, &str, &str, &str, bool)]) {
    check("ft_transfers", "amount", events, wanted);
}

fn burned_by_contract(units: u64) -> (String, String) {
    old(COIN, "TokensBurned", units, None)
}

#[test]
fn tokens_that_a_contract_destroys_itself_are_burnt() {
    // The interface tells of the withdrawal, the contract alone of the burn.
    tokens(vec![withdrawn(COIN, 30, Some(1), 10, 20), burned_by_contract(30)], &[(1, "1", "-", "30", true)]);
    // A pool's shares: some go on to another account, the rest is destroyed.
    tokens(
        vec![
            withdrawn(COIN, 100, Some(1), 10, 20),
            withdrawn(COIN, 40, None, 20, 21),
            deposited(COIN, 60, Some(2), 30, 20),
            burned_by_contract(40),
        ],
        &[(2, "1", "2", "60", false), (3, "1", "-", "40", true)],
    );
    // Out of some other resource.
    tokens(
        vec![withdrawn(COIN, 5, Some(1), 10, 20), deposited(COIN, 5, Some(2), 30, 20), burned_by_contract(7)],
        &[(1, "1", "2", "5", false), (2, "-", "-", "7", true)],
    );
}

#[test]
fn a_burn_that_both_tell_of_is_one() {
    let taken = || withdrawn(COIN, 30, Some(1), 10, 20);
    for (events, at) in [
        (vec![taken(), burned(COIN, 30, 20), burned_by_contract(30)], 1),
        (vec![taken(), burned_by_contract(30), burned(COIN, 30, 20)], 2),
    ] {
        tokens(events, &[(at, "1", "-", "30", true)]);
    }
    // Two burns of as many, of which one is told twice.
    tokens(
        vec![
            taken(),
            burned_by_contract(30),
            withdrawn(COIN, 30, Some(2), 11, 21),
            burned(COIN, 30, 21),
            burned_by_contract(30),
        ],
        &[(1, "1", "-", "30", true), (3, "2", "-", "30", true)],
    );
    // Of another amount than the one that the standard tells of.
    tokens(
        vec![taken(), burned(COIN, 10, 20), burned_by_contract(20)],
        &[(1, "1", "-", "10", true), (2, "1", "-", "20", true)],
    );
}

#[test]
fn the_vault_that_was_burnt_held_exactly_as_many_and_comes_no_more() {
    let taken = || [withdrawn(COIN, 30, Some(1), 10, 20), withdrawn(COIN, 30, Some(2), 11, 21)];
    for (kept, giver, burnt) in [(20, "1", "2"), (21, "2", "1")] {
        let mut events = taken().to_vec();
        events.extend([burned_by_contract(30), deposited(COIN, 30, Some(3), 12, kept)]);
        tokens(events, &[(2, burnt, "-", "30", true), (3, giver, "3", "30", false)]);
    }
    // One that was taken out later can't be it.
    tokens(
        vec![
            withdrawn(COIN, 30, Some(1), 10, 20),
            burned_by_contract(30),
            withdrawn(COIN, 30, Some(2), 11, 21),
        ],
        &[(1, "1", "-", "30", true), (2, "2", "-", "30", false)],
    );
    // Where no vault held as many, the oldest are burnt.
    tokens(
        vec![
            withdrawn(COIN, 30, Some(1), 10, 20),
            withdrawn(COIN, 50, Some(2), 11, 21),
            burned_by_contract(60),
        ],
        &[(1, "2", "-", "20", false), (2, "1", "-", "30", true), (2, "2", "-", "30", true)],
    );
}

/// In the name of the collection's own type, which declares the item's id alone.
fn ended(collection: &str, id: u64) -> (String, String) {
    event(&format!("{collection}.NFT.ResourceDestroyed"), &[("id", value("UInt64", id.to_string()))])
}

/// In the standard's name.
fn ended_by_standard(collection: &str, id: u64) -> (String, String) {
    item_destroyed(NFT, collection, id)
}

/// The movements of items, and which resources are told to be destroyed without a word on their collection.
fn items(events: Events, wanted: &[(i64, &str, &str, &str, bool)], unnamed: &[u64]) {
    let tables = check("nft_transfers", "token_id", events, wanted);
    let mut destroyed: Vec<String> = tables
        .get("nft_resources")
        .into_iter()
        .flatten()
        .filter(|row| get("nft_resources", row, "is_destroyed").as_bool().unwrap())
        .map(|row| get("nft_resources", row, "resource_uuid").to_string())
        .collect();
    destroyed.sort();
    assert_eq!(destroyed, unnamed.iter().map(u64::to_string).collect::<Vec<_>>());
}

#[test]
fn an_item_whose_collection_says_its_id_alone_is_burnt() {
    let burnt = |at, id| [(at, "-", "-", id, true)];
    items(vec![ended(CATS, 4), ended_by_standard(CATS, 4)], &burnt(1, "4"), &[]);
    items(vec![ended_by_standard(CATS, 4), ended(CATS, 4)], &burnt(0, "4"), &[]);
    // Somewhere else in the transaction.
    let between = || deposited(COIN, 7, Some(3), 30, 31);
    items(vec![ended(CATS, 4), between(), ended_by_standard(CATS, 4)], &burnt(2, "4"), &[]);
    // Taken out before: whose it was is known, and it is told once.
    items(
        vec![item_withdrawn(CATS, 4, Some(1)), ended(CATS, 4), ended_by_standard(CATS, 4)],
        &[(1, "1", "-", "4", true)],
        &[],
    );
    // Without the standard's word, and without the chain's, it is no item's end.
    items(vec![ended(CATS, 4)], &[], &[]);
    let in_its_words = event(&format!("{CATS}.Burned"), &[("id", value("UInt64", "4"))]);
    items(vec![in_its_words, ended_by_standard(CATS, 4)], &[], &[uuid(CATS, 4)]);
    // Another id is another item.
    items(vec![ended(CATS, 3), ended_by_standard(CATS, 4)], &[], &[uuid(CATS, 4)]);
}

#[test]
fn items_of_one_id_that_are_destroyed_in_several_collections_are_told_apart() {
    // The chain tells the collection's word just before the standard's.
    items(
        vec![ended_by_standard(HOUNDS, 5), ended(CATS, 5), ended_by_standard(CATS, 5)],
        &[(2, "-", "-", "5", true)],
        &[uuid(HOUNDS, 5)],
    );
    // What the standard names by its resource takes its collection's word with it.
    items(
        vec![
            item_withdrawn(CATS, 6, Some(1)),
            ended_by_standard(CATS, 6),
            ended(CATS, 6),
            ended_by_standard(HOUNDS, 6),
        ],
        &[(1, "1", "-", "6", true)],
        &[uuid(HOUNDS, 6)],
    );
    items(
        vec![
            item_withdrawn(CATS, 7, Some(1)),
            item_deposited(CATS, 7, Some(2)),
            ended(CATS, 7),
            ended_by_standard(CATS, 7),
            ended_by_standard(HOUNDS, 7),
        ],
        &[(1, "1", "2", "7", false), (3, "-", "-", "7", true)],
        &[uuid(HOUNDS, 7)],
    );
}

#[test]
fn an_item_that_no_event_named_a_resource_loses_its_owner_where_its_collection_tells_its_end() {
    // As before Cadence 1.0.
    let given = |id: u64| {
        let fields = [("id", value("UInt64", id.to_string())), ("to", party(Some(1)))];
        event(&format!("{CATS}.Deposit"), &fields)
    };
    let blocks = [
        flow_block(1, &[with(vec![given(4), given(5)])]),
        flow_block(2, &[with(vec![ended(CATS, 4), ended_by_standard(CATS, 4), ended_by_standard(CATS, 5)])]),
    ];
    for chunk in 1..=2 {
        let state = folded(names::NFT_OWNERSHIP_WORKER, &blocks, chunk);
        let of = |table, name: &str| column(table, &state.table(table), name);
        assert_eq!(of("nft_ownership", "nft_id"), ["4", "5"]);
        assert_eq!(of("nft_ownership", "owner"), ["null".to_owned(), shown(1)]);
        assert_eq!(
            of("nft_ownership", "is_burned"),
            ["true", "false"],
            "of the other nothing says which it is"
        );
        assert_eq!(of("nft_holdings", "is_held"), ["false", "true"]);
        assert_eq!(of("nft_owners", "balance"), ["1"]);
        assert_eq!(of("nft_collection_stats", "item_count"), ["1"]);
    }
}
