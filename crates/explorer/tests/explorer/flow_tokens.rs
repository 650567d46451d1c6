//! Token movements of Flow transactions: recorded ones, the faults that other indexers had, and what holds of any.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cairn_explorer::decode::flow::{FtKind, FtMove, NftKind, NftMove, TokenMoves, contract_of, fees};
use cairn_flow::{DecodedEvent, FlowAddress, Network};
use proptest::prelude::*;
use serde_json::{Value, json};

const FT: &str = "A.f233dcee88fe0abe.FungibleToken";
const NFT: &str = "A.1d7e57aa55817448.NonFungibleToken";
const FLOW: &str = "A.1654653399040a61.FlowToken";
const FEES: &str = "A.f919ee77447b7497.FlowFees.FeesDeducted";

fn account(number: u64) -> FlowAddress {
    FlowAddress(number.to_be_bytes())
}

/// Events as a node writes them: what explorers show flat, with its types.
#[derive(Default)]
struct Events(Vec<DecodedEvent>);

impl Events {
    fn add(&mut self, event_type: &str, flat: &Value) {
        let field = |(name, value): (&String, &Value)| {
            let text = value.as_str().unwrap_or_default();
            let typed = match name.as_str() {
                "from" | "to" if value.is_null() => json!({"type": "Optional", "value": null}),
                "from" | "to" => {
                    json!({"type": "Optional", "value": {"type": "Address", "value": format!("0x{text}")}})
                }
                "id" | "uuid" | "momentID" => json!({"type": "UInt64", "value": text}),
                name if name.ends_with("UUID") => json!({"type": "UInt64", "value": text}),
                name if name.starts_with("amount") || name.ends_with("Effort") || name == "balanceAfter" => {
                    json!({"type": "UFix64", "value": text})
                }
                _ => json!({"type": "String", "value": text}),
            };
            json!({"name": name, "value": typed})
        };
        let fields: Vec<Value> = flat.as_object().expect("an object").iter().map(field).collect();
        let payload = json!({"type": "Event", "value": {"id": event_type, "fields": fields}});
        self.0.push(DecodedEvent {
            event_type: event_type.into(),
            index: self.0.len() as u32,
            payload: format!("{payload}\n").into(),
        });
    }

    fn withdrawn(&mut self, token: &str, units: u64, from: Option<u64>, of: u64, moved: u64) {
        self.withdrawn_of(&format!("{token}.Vault"), units, from, of, moved);
    }

    fn withdrawn_of(&mut self, kind: &str, units: u64, from: Option<u64>, of: u64, moved: u64) {
        self.add(&format!("{FT}.Withdrawn"), &json!({"type": kind, "amount": fixed(units),
            "from": from.map(|from| account(from).bare()), "fromUUID": of.to_string(), "withdrawnUUID": moved.to_string()}));
    }

    fn deposited(&mut self, token: &str, units: u64, to: Option<u64>, of: u64, moved: u64) {
        self.deposited_of(&format!("{token}.Vault"), units, to, of, moved);
    }

    fn deposited_of(&mut self, kind: &str, units: u64, to: Option<u64>, of: u64, moved: u64) {
        self.add(&format!("{FT}.Deposited"), &json!({"type": kind, "amount": fixed(units),
            "to": to.map(|to| account(to).bare()), "toUUID": of.to_string(), "depositedUUID": moved.to_string()}));
    }

    /// An item's event in the new form: of which type it is, and which resource.
    fn item_of(&mut self, event: &str, kind: &str, id: u64, uuid: u64, party: (&str, u64)) {
        let mut flat = json!({"id": id.to_string(), "type": kind, "uuid": uuid.to_string()});
        flat[party.0] = json!(account(party.1).bare());
        self.add(&format!("{NFT}.{event}"), &flat);
    }

    fn old(&mut self, token: &str, event: &str, units: u64, party: Option<(&str, Option<u64>)>) {
        let mut flat = json!({"amount": fixed(units)});
        if let Some((name, account_number)) = party {
            flat[name] = json!(account_number.map(|number| account(number).bare()));
        }
        self.add(&format!("{token}.{event}"), &flat);
    }

    fn item(&mut self, event: &str, id: u64, party: (&str, Option<u64>)) {
        let mut flat = json!({"id": id.to_string()});
        flat[party.0] = json!(party.1.map(|number| account(number).bare()));
        if event.starts_with(NFT) {
            flat["type"] = json!("A.0b2a3299cc857e29.TopShot.NFT");
            flat["uuid"] = json!((id + 1000).to_string());
        }
        self.add(event, &flat);
    }

    fn moves(&self) -> TokenMoves {
        let moves = TokenMoves::of(&self.0, Network::Mainnet);
        assert_eq!(moves.malformed, []);
        moves
    }
}

fn fixed(units: u64) -> String {
    format!("{}.{:08}", units / 100_000_000, units % 100_000_000)
}

type Told = (Option<FlowAddress>, Option<FlowAddress>, u64, FtKind);

fn told(moves: &[FtMove]) -> Vec<Told> {
    moves.iter().map(|one| (one.from, one.to, one.amount, one.kind)).collect()
}

fn items(moves: &[NftMove]) -> Vec<(Option<FlowAddress>, Option<FlowAddress>, u64)> {
    moves.iter().map(|one| (one.from, one.to, one.id)).collect()
}

fn at(number: u64) -> Option<FlowAddress> {
    Some(account(number))
}

#[test]
fn recorded_transactions_are_read_as_what_happened() {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let file = shared.join("fixtures/flow/mainnet-tx-events-flat.json");
    let Ok(text) = std::fs::read(&file) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", file.display());
        println!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", file.display());
        return;
    };
    let recorded: Value = serde_json::from_slice(&text).expect("JSON");
    let moves = |at: usize| {
        let mut events = Events::default();
        for event in recorded[at]["events"].as_array().expect("a list") {
            events.add(event["type"].as_str().expect("text"), &event["payload"]);
        }
        events.moves().fungible
    };
    let address = |text: &str| text.parse::<FlowAddress>().ok();
    assert_eq!(
        told(&moves(0)),
        [
            (address("43b5b87eac607406"), address("8624b52f9ddcd04a"), 1_698_900_000_000, FtKind::Transfer),
            (address("55e1dd4d35647e67"), address("f919ee77447b7497"), 2_299, FtKind::Fee),
        ],
        "both forms of one event count once, and the fee is told apart"
    );
    let sender = address("e7aded0979f825d0");
    let second = moves(1);
    assert_eq!(
        told(&second),
        [
            (sender, None, 100_000, FtKind::Withdrawal),
            (sender, address("473d6a2c37eab5be"), 201, FtKind::Transfer),
            (sender, address("473d6a2c37eab5be"), 1_233, FtKind::Transfer),
            (sender, sender, 792, FtKind::Transfer),
            (address("319e67f2ef9d937f"), address("f919ee77447b7497"), 578_000, FtKind::Fee),
        ],
        "a vault that was split in between is followed"
    );
    assert!(
        second[0].token.ends_with(".EVMVMBridgedToken_2aabea2058b5ac2d339b163c6ab6f2b6d53aabed"),
        "a token without events of its own"
    );
}

#[test]
fn mints_burns_and_merges_are_told_apart() {
    let mut events = Events::default();
    events.deposited(FLOW, 50, Some(1), 10, 99);
    events.withdrawn(FLOW, 30, Some(1), 10, 20);
    events.withdrawn(FLOW, 12, Some(2), 11, 21);
    // The second vault goes into the first, which is nobody's.
    events.deposited(FLOW, 12, None, 20, 21);
    events.withdrawn(FLOW, 35, None, 20, 22);
    events.deposited(FLOW, 35, Some(3), 12, 22);
    events.add(
        &format!("{FT}.Burned"),
        &json!({"type": format!("{FLOW}.Vault"), "amount": fixed(7), "fromUUID": "20"}),
    );
    assert_eq!(
        told(&events.moves().fungible),
        [
            (None, at(1), 50, FtKind::Release),
            (at(1), at(3), 30, FtKind::Transfer),
            (at(2), at(3), 5, FtKind::Transfer),
            (at(2), None, 7, FtKind::Burn),
        ]
    );
}

#[test]
fn only_what_a_contract_says_is_new_is_a_mint() {
    // The new form doesn't say which vault was minted: as much as was said is new, what a deposit has beyond it is not.
    let mut events = Events::default();
    events.old(FLOW, "TokensMinted", 40, None);
    events.deposited(FLOW, 30, Some(1), 10, 90);
    events.deposited(FLOW, 30, Some(2), 11, 91);
    let burn = json!({"type": format!("{FLOW}.Vault"), "amount": fixed(7), "fromUUID": "92"});
    events.add(&format!("{FT}.Burned"), &burn);
    assert_eq!(
        told(&events.moves().fungible),
        [
            (None, at(1), 30, FtKind::Mint),
            (None, at(2), 10, FtKind::Mint),
            (None, at(2), 20, FtKind::Release),
            (None, None, 7, FtKind::Burn),
        ],
        "tokens of unknown origin that were burnt are burnt"
    );
    let mut events = Events::default();
    let token = "A.0000000000000009.Coin";
    events.old(token, "TokensDeposited", 5, Some(("to", Some(1))));
    events.old(token, "TokensBurned", 6, None);
    assert_eq!(
        told(&events.moves().fungible),
        [(None, at(1), 5, FtKind::Release), (None, None, 6, FtKind::Burn)]
    );
}

#[test]
fn only_an_item_that_a_contract_says_is_new_is_a_mint() {
    let contract = "A.0b2a3299cc857e29.TopShot";
    let mut events = Events::default();
    events.add(&format!("{contract}.MomentMinted"), &json!({"momentID": "1"}));
    // Of another contract, and without an id.
    events.add("A.0000000000000009.TopShot.Minted", &json!({"id": "2"}));
    events.add(&format!("{contract}.Minted"), &json!({"note": "x"}));
    for id in [1, 2] {
        events.item(&format!("{NFT}.Deposited"), id, ("to", Some(1)));
    }
    let kinds: Vec<_> = events.moves().non_fungible.iter().map(|one| (one.id, one.kind)).collect();
    assert_eq!(kinds, [(1, NftKind::Mint), (2, NftKind::Release)]);
}

#[test]
fn the_old_form_pairs_by_amount_and_then_by_order() {
    let token = "A.0000000000000009.Coin";
    let mut events = Events::default();
    events.old(token, "TokensWithdrawn", 10, Some(("from", Some(1))));
    events.old(token, "TokensWithdrawn", 5, Some(("from", Some(2))));
    events.old(token, "TokensDeposited", 5, Some(("to", Some(3))));
    events.old(token, "TokensWithdrawn", 4, Some(("from", None)));
    events.old(token, "TokensDeposited", 4, Some(("to", Some(4))));
    events.old(token, "TokensDeposited", 6, Some(("to", Some(1))));
    events.old(token, "TokensMinted", 8, None);
    events.old(token, "TokensDeposited", 8, Some(("to", Some(5))));
    events.old(token, "TokensWithdrawn", 3, Some(("from", Some(5))));
    events.old(token, "TokensBurned", 3, None);
    assert_eq!(
        told(&events.moves().fungible),
        [
            (at(2), at(3), 5, FtKind::Transfer),
            (at(1), at(4), 4, FtKind::Transfer),
            (at(1), at(1), 6, FtKind::Transfer),
            (None, at(5), 8, FtKind::Mint),
            (at(5), None, 3, FtKind::Burn),
        ]
    );
}

#[test]
fn items_move_are_made_and_leave() {
    for (out, into) in [
        (format!("{NFT}.Withdrawn"), format!("{NFT}.Deposited")),
        ("A.0b2a3299cc857e29.TopShot.Withdraw".to_owned(), "A.0b2a3299cc857e29.TopShot.Deposit".to_owned()),
    ] {
        let mut events = Events::default();
        events.item(&into, 1, ("to", Some(1)));
        events.item(&out, 2, ("from", Some(1)));
        events.item(&into, 2, ("to", Some(2)));
        events.item(&out, 2, ("from", Some(2)));
        events.item(&into, 2, ("to", Some(3)));
        events.item(&out, 3, ("from", Some(1)));
        let moves = events.moves();
        assert_eq!(moves.fungible, [], "no item is taken for fungible tokens");
        assert_eq!(
            items(&moves.non_fungible),
            [(None, at(1), 1), (at(1), at(2), 2), (at(2), at(3), 2), (at(1), None, 3)]
        );
        assert!(moves.non_fungible.iter().all(|one| one.collection == "A.0b2a3299cc857e29.TopShot"));
    }
}

#[test]
fn the_types_of_one_contract_are_tokens_of_their_own() {
    let coin = "A.0000000000000009.Coin";
    let (vault, gold) = (format!("{coin}.Vault"), format!("{coin}.Gold"));
    let mut events = Events::default();
    events.withdrawn_of(&vault, 5, Some(1), 10, 20);
    events.withdrawn_of(&gold, 5, Some(2), 11, 21);
    events.deposited_of(&gold, 5, Some(3), 12, 21);
    events.deposited_of(&vault, 5, Some(4), 13, 20);
    // The contract tells of both in the old form too.
    events.old(coin, "TokensWithdrawn", 5, Some(("from", Some(1))));
    events.old(coin, "TokensDeposited", 5, Some(("to", Some(4))));
    let of = |moves: &[FtMove]| -> Vec<String> { moves.iter().map(|one| one.token.clone()).collect() };
    let moves = events.moves().fungible;
    assert_eq!(
        told(&moves),
        [(at(2), at(3), 5, FtKind::Transfer), (at(1), at(4), 5, FtKind::Transfer)],
        "each once"
    );
    assert_eq!(of(&moves), [gold.as_str(), coin]);
    assert_eq!(moves.iter().map(|one| contract_of(&one.token)).collect::<Vec<_>>(), [coin, coin]);

    // What the contract says without a type is of the only one that moves.
    let mut events = Events::default();
    events.old(coin, "TokensMinted", 5, None);
    events.deposited_of(&gold, 5, Some(1), 10, 20);
    let moves = events.moves().fungible;
    assert_eq!((told(&moves), of(&moves)), (vec![(None, at(1), 5, FtKind::Mint)], vec![gold.clone()]));

    // A burn is of the type of which a vault holds exactly as many.
    let mut events = Events::default();
    events.withdrawn_of(&vault, 5, Some(1), 10, 20);
    events.withdrawn_of(&gold, 7, Some(2), 11, 21);
    events.old(coin, "TokensBurned", 7, None);
    let moves = events.moves().fungible;
    assert_eq!(told(&moves), [(at(1), None, 5, FtKind::Withdrawal), (at(2), None, 7, FtKind::Burn)]);
    assert_eq!(of(&moves), [coin, &gold]);

    let cats = "A.0000000000000009.Cats";
    let (cat, kitten) = (format!("{cats}.NFT"), format!("{cats}.Kitten"));
    let mut events = Events::default();
    events.item_of("Withdrawn", &cat, 1, 10, ("from", 1));
    events.item_of("Withdrawn", &kitten, 1, 20, ("from", 2));
    events.item_of("Deposited", &cat, 1, 10, ("to", 3));
    events.item_of("Deposited", &kitten, 1, 20, ("to", 4));
    let moves = events.moves().non_fungible;
    assert_eq!(items(&moves), [(at(1), at(3), 1), (at(2), at(4), 1)]);
    let of: Vec<&str> = moves.iter().map(|one| one.collection.as_str()).collect();
    assert_eq!(of, [cats, &kitten]);
}

#[test]
fn items_of_one_id_are_told_apart_by_their_resources() {
    let cat = "A.0000000000000009.Cats.NFT";
    let mut events = Events::default();
    events.item_of("Withdrawn", cat, 7, 100, ("from", 1));
    events.item_of("Withdrawn", cat, 7, 200, ("from", 2));
    events.item_of("Deposited", cat, 7, 100, ("to", 3));
    events.item_of("Deposited", cat, 7, 200, ("to", 4));
    let moves = events.moves().non_fungible;
    assert_eq!(items(&moves), [(at(1), at(3), 7), (at(2), at(4), 7)]);
    assert_eq!(moves.iter().map(|one| one.uuid).collect::<Vec<_>>(), [Some(100), Some(200)]);

    // Another resource doesn't end the way of the first.
    let mut events = Events::default();
    events.item_of("Withdrawn", cat, 7, 100, ("from", 1));
    events.item_of("Deposited", cat, 7, 200, ("to", 2));
    let moves = events.moves().non_fungible;
    assert_eq!(items(&moves), [(at(1), None, 7), (None, at(2), 7)]);
    assert_eq!(moves.iter().map(|one| one.kind).collect::<Vec<_>>(), [NftKind::Withdrawal, NftKind::Release]);

    // Where the contract's own event names no resource, the item's id decides.
    let mut events = Events::default();
    events.item_of("Withdrawn", cat, 7, 100, ("from", 1));
    events.add("A.0000000000000009.Cats.Burned", &json!({"id": "7"}));
    let moves = events.moves().non_fungible;
    assert_eq!((moves.len(), moves[0].kind, moves[0].uuid), (1, NftKind::Burn, Some(100)));
}

#[test]
fn the_fee_of_before_deductions_is_the_last_deposit_to_the_fees() {
    let fees = "A.f919ee77447b7497.FlowFees";
    let collector = "f919ee77447b7497".parse::<FlowAddress>().ok();
    let pay = |events: &mut Events, units: u64| {
        events.old(FLOW, "TokensWithdrawn", units, Some(("from", Some(1))));
        events.add(
            &format!("{FLOW}.TokensDeposited"),
            &json!({"amount": fixed(units), "to": "f919ee77447b7497"}),
        );
        events.old(fees, "TokensDeposited", units, None);
    };
    let mut events = Events::default();
    events.old(fees, "TokensWithdrawn", 900, None);
    pay(&mut events, 500);
    pay(&mut events, 100);
    assert_eq!(
        told(&events.moves().fungible),
        [(at(1), collector, 500, FtKind::Transfer), (at(1), collector, 100, FtKind::Fee)],
        "an event that names no party is none of a token, and nothing is malformed"
    );
    assert_eq!(fees_of(&events), Some(100));
    events.add(FEES, &json!({"amount": fixed(500)}));
    assert_eq!(told(&events.moves().fungible)[0].3, FtKind::Fee, "what was deducted is the fee");
    assert_eq!(fees_of(&events), Some(500));
}

fn fees_of(events: &Events) -> Option<u64> {
    fees(&events.0, Network::Mainnet).map(|fees| fees.amount)
}

#[test]
fn both_forms_of_an_item_event_count_once() {
    let mut events = Events::default();
    events.item(&format!("{NFT}.Withdrawn"), 2, ("from", Some(1)));
    events.item("A.0b2a3299cc857e29.TopShot.Withdraw", 2, ("from", Some(1)));
    events.item(&format!("{NFT}.Deposited"), 2, ("to", Some(2)));
    events.item("A.0b2a3299cc857e29.TopShot.Deposit", 2, ("to", Some(2)));
    let moves = events.moves();
    assert_eq!(items(&moves.non_fungible), [(at(1), at(2), 2)]);
    assert_eq!(moves.non_fungible[0].uuid, Some(1002));
}

#[test]
fn other_contracts_events_of_the_same_name_are_left_alone_and_malformed_ones_named() {
    let mut events = Events::default();
    // A Deposit that is no item's; tokens of nobody and of no amount; a FungibleToken of somebody else.
    for event in ["TokensWithdrawn", "TokensDeposited"] {
        events.add(&format!("A.0000000000000009.Pool.{event}"), &json!({"amount": "1.0"}));
    }
    for event in ["TokensMinted", "TokensBurned"] {
        events.add(&format!("A.0000000000000009.Pool.{event}"), &json!({"note": "x"}));
    }
    events.add("A.0000000000000009.Bank.Deposit", &json!({"note": "x"}));
    events.add("A.0000000000000009.FungibleToken.Deposited", &json!({"amount": "1.0"}));
    assert_eq!(events.moves(), TokenMoves::default());
    events.add(&format!("{FT}.Deposited"), &json!({"type": "x", "amount": "1.0"}));
    events.deposited(FLOW, 5, Some(1), 1, 2);
    let moves = TokenMoves::of(&events.0, Network::Mainnet);
    assert_eq!((moves.malformed.len(), moves.malformed[0].event_index), (1, 6));
    assert_eq!(told(&moves.fungible), [(None, at(1), 5, FtKind::Release)], "the others count");
}

#[derive(Debug, Clone)]
enum Step {
    Withdraw { from: Option<u64>, of: u64, moved: u64, units: u64 },
    Deposit { to: Option<u64>, of: u64, moved: u64, units: u64 },
    Burn { vault: u64, units: u64 },
    Fee { units: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let party = || prop_oneof![1 => Just(None), 2 => (1u64..4).prop_map(Some)];
    let units = || prop_oneof![3 => 0u64..6, 1 => any::<u64>()];
    prop_oneof![
        4 => (party(), 0u64..4, 0u64..4, units()).prop_map(|(from, of, moved, units)| Step::Withdraw { from, of, moved, units }),
        4 => (party(), 0u64..4, 0u64..4, units()).prop_map(|(to, of, moved, units)| Step::Deposit { to, of, moved, units }),
        1 => (0u64..4, units()).prop_map(|(vault, units)| Step::Burn { vault, units }),
        1 => units().prop_map(|units| Step::Fee { units }),
    ]
}

proptest! {
    /// Whatever vaults do, an account loses what was withdrawn from it and gains what was deposited to it: in both forms, and where burns are told in another
    /// one than movements, or in both.
    #[test]
    fn accounts_lose_and_gain_what_events_say(
        steps in proptest::collection::vec(step(), 0..40),
        is_old in any::<bool>(),
        (burns_by_contract, burns_by_standard) in (any::<bool>(), any::<bool>()),
    ) {
        let mut events = Events::default();
        let mut want: BTreeMap<FlowAddress, i128> = BTreeMap::new();
        for step in &steps {
            match *step {
                Step::Withdraw { from, of, moved, units } => {
                    if let Some(from) = from {
                        *want.entry(account(from)).or_default() -= i128::from(units);
                    }
                    match is_old {
                        true => events.old(FLOW, "TokensWithdrawn", units, Some(("from", from))),
                        false => events.withdrawn(FLOW, units, from, of, moved),
                    }
                }
                Step::Deposit { to, of, moved, units } => {
                    if let Some(to) = to {
                        *want.entry(account(to)).or_default() += i128::from(units);
                    }
                    match is_old {
                        true => events.old(FLOW, "TokensDeposited", units, Some(("to", to))),
                        false => events.deposited(FLOW, units, to, of, moved),
                    }
                }
                Step::Burn { vault, units } => {
                    if is_old || burns_by_contract {
                        events.old(FLOW, "TokensBurned", units, None);
                    }
                    if !is_old && burns_by_standard {
                        events.add(&format!("{FT}.Burned"), &json!({"type": format!("{FLOW}.Vault"), "amount": fixed(units), "fromUUID": vault.to_string()}));
                    }
                }
                Step::Fee { units } => events.add(FEES, &json!({"amount": fixed(units)})),
            }
        }
        let moves = events.moves().fungible;
        let mut got: BTreeMap<FlowAddress, i128> = BTreeMap::new();
        for one in &moves {
            prop_assert!(one.from.is_some() || one.to.is_some() || one.kind == FtKind::Burn);
            prop_assert!(one.amount > 0);
            if let Some(from) = one.from {
                *got.entry(from).or_default() -= i128::from(one.amount);
            }
            if let Some(to) = one.to {
                *got.entry(to).or_default() += i128::from(one.amount);
            }
        }
        want.retain(|_, units| *units != 0);
        got.retain(|_, units| *units != 0);
        prop_assert_eq!(got, want);
        let mut keys: Vec<_> = moves.iter().map(|one| (one.event_index, one.sub_index)).collect();
        keys.dedup();
        prop_assert_eq!(keys.len(), moves.len(), "each movement has a key of its own");
        // An event splits two lots at most and adds one, so that nobody makes many rows of few events.
        prop_assert!(moves.len() <= 3 * events.0.len());
    }
}
