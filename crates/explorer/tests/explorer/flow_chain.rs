//! Flow's processors as the pipeline runs them, over stores in memory, held against a ledger that knows of no events: also after
//! ranges are made again, and after reorgs.

use std::collections::BTreeMap;

use cairn_core::{Height, HeightRange, RawBlock};
use cairn_explorer::names;
use cairn_explorer::processors::flow_catalog;
use cairn_store::derived::{DerivedDumpBuilder, DerivedReader, Sum, U256, Value};
use proptest::prelude::*;

use crate::support;
use support::flow::*;
use support::world::{World, run};

/// The account of the fees on the emulator.
const FEE_ACCOUNT: u64 = 0xe5a8_b7f2_3e8b_548f;
/// A token that has only the old events.
const OLD: &str = "A.0000000000000009.OldCoin";
/// Fungible tokens: both forms of events, the new one alone, the old one alone.
const TOKENS: [&str; 3] = [FLOW, COIN, OLD];

/// What somebody does.
#[derive(Debug, Clone)]
enum Op {
    Move {
        token: usize,
        from: u64,
        to: u64,
        units: u64,
    },
    Mint {
        token: usize,
        to: u64,
        units: u64,
    },
    Burn {
        token: usize,
        from: u64,
        units: u64,
    },
    /// Tokens leave for some other resource, or come from one.
    Leave {
        token: usize,
        from: u64,
        units: u64,
    },
    Return {
        token: usize,
        to: u64,
        units: u64,
    },
    /// An item gets to an account; or, 0, to some other resource; or, 4, is destroyed.
    Item {
        id: u64,
        to: u64,
    },
    Key {
        account: u64,
        revoked: Option<u64>,
    },
    Contract {
        account: u64,
        version: u8,
    },
    Evm,
}

fn op() -> impl Strategy<Value = Op> {
    let account = || 1u64..4;
    let units = || prop_oneof![6 => 0u64..9, 1 => any::<u64>()];
    prop_oneof![
        4 => (0usize..3, account(), account(), units()).prop_map(|(token, from, to, units)| Op::Move { token, from, to, units }),
        2 => (0usize..3, account(), units()).prop_map(|(token, to, units)| Op::Mint { token, to, units }),
        1 => (0usize..3, account(), units()).prop_map(|(token, from, units)| Op::Burn { token, from, units }),
        1 => (0usize..3, account(), units()).prop_map(|(token, from, units)| Op::Leave { token, from, units }),
        1 => (0usize..3, account(), units()).prop_map(|(token, to, units)| Op::Return { token, to, units }),
        6 => (0u64..5, 0u64..5).prop_map(|(id, to)| Op::Item { id, to }),
        1 => (account(), prop::option::of(0u64..3)).prop_map(|(account, revoked)| Op::Key { account, revoked }),
        1 => (account(), 0u8..3).prop_map(|(account, version)| Op::Contract { account, version }),
        1 => Just(Op::Evm),
    ]
}

/// Blocks of transactions of what is done; a transaction may pay a fee.
type Plan = Vec<Vec<(Vec<Op>, Option<u64>)>>;

fn plan(blocks: std::ops::Range<usize>) -> impl Strategy<Value = Plan> {
    let tx = (prop::collection::vec(op(), 0..6), prop::option::of(1u64..50));
    prop::collection::vec(prop::collection::vec(tx, 0..3), blocks)
}

/// What everybody has, by what was done.
#[derive(Debug, Clone, Default)]
struct Ledger {
    balances: BTreeMap<(&'static str, u64), i128>,
    /// Owner, and whether it was destroyed.
    items: BTreeMap<u64, (Option<u64>, bool)>,
    vaults: u64,
    evm: u64,
}

impl Ledger {
    fn vault(&mut self) -> u64 {
        self.vaults += 1;
        1_000 + self.vaults
    }

    fn add(&mut self, token: &'static str, account: u64, units: i128) {
        *self.balances.entry((token, account)).or_default() += units;
    }

    /// Does something, and says what events tell of it.
    fn apply(&mut self, op: &Op, evm_height: u64) -> Vec<(String, String)> {
        match *op {
            Op::Move { token, from, to, units } => {
                let vault = self.vault();
                let token = TOKENS[token];
                self.add(token, from, -i128::from(units));
                self.add(token, to, i128::from(units));
                forms(
                    token,
                    [
                        withdrawn(token, units, Some(from), from, vault),
                        deposited(token, units, Some(to), to, vault),
                    ],
                    [
                        ("TokensWithdrawn", units, Some(("from", Some(from)))),
                        ("TokensDeposited", units, Some(("to", Some(to)))),
                    ],
                )
            }
            Op::Mint { token, to, units } | Op::Return { token, to, units } => {
                let vault = self.vault();
                let token = TOKENS[token];
                self.add(token, to, i128::from(units));
                let minted = matches!(op, Op::Mint { .. }).then_some(("TokensMinted", units, None));
                let put = ("TokensDeposited", units, Some(("to", Some(to))));
                forms(token, [deposited(token, units, Some(to), to, vault)], minted.into_iter().chain([put]))
            }
            Op::Burn { token, from, units } => {
                let vault = self.vault();
                let token = TOKENS[token];
                self.add(token, from, -i128::from(units));
                forms(
                    token,
                    [withdrawn(token, units, Some(from), from, vault), burned(token, units, vault)],
                    [("TokensWithdrawn", units, Some(("from", Some(from)))), ("TokensBurned", units, None)],
                )
            }
            Op::Leave { token, from, units } => {
                let vault = self.vault();
                let token = TOKENS[token];
                self.add(token, from, -i128::from(units));
                let taken = ("TokensWithdrawn", units, Some(("from", Some(from))));
                forms(token, [withdrawn(token, units, Some(from), from, vault)], [taken])
            }
            Op::Item { id, to } => self.item(id, to),
            Op::Key { account, revoked: None } => vec![key_added(account, &[account as u8; 64], None)],
            Op::Key { account, revoked: Some(index) } => vec![key_revoked(account, index)],
            Op::Contract { account, version } => {
                let change = ["Added", "Updated", "Removed"][usize::from(version)];
                vec![contract_set(change, account, "Cats", [version; 32])]
            }
            Op::Evm => {
                self.evm += 1;
                let call = Direct::call(self.evm + evm_height * 1_000);
                vec![evm_executed(evm_height, self.evm as u16 - 1, &call, &[], 0)]
            }
        }
    }

    fn item(&mut self, id: u64, to: u64) -> Vec<(String, String)> {
        let (owner, is_burned) = self.items.get(&id).copied().unwrap_or((None, false));
        let is_new = !self.items.contains_key(&id);
        if is_burned || (is_new && matches!(to, 0 | 4)) {
            return Vec::new();
        }
        let mut events: Vec<_> =
            owner.map(|owner| item_withdrawn(CATS, id, Some(owner))).into_iter().collect();
        match to {
            0 => drop(self.items.insert(id, (None, false))),
            4 => {
                events.extend([item_destroyed(CATS, CATS, id), item_destroyed(NFT, CATS, id)]);
                self.items.insert(id, (None, true));
            }
            to => {
                events.push(item_deposited(CATS, id, Some(to)));
                self.items.insert(id, (Some(to), false));
            }
        }
        events
    }

    /// The blocks of a plan from `from` on, and what is had after them.
    fn blocks(&mut self, from: u64, fork: u8, common: u64, plan: &Plan) -> Vec<RawBlock> {
        let mut blocks = Vec::new();
        for (height, txs) in (from..).zip(plan) {
            self.evm = 0;
            let mut made = Vec::new();
            for (ops, fee) in txs {
                let mut events: Vec<_> = ops.iter().flat_map(|op| self.apply(op, height + 100)).collect();
                if let Some(units) = fee {
                    self.add(FLOW, 1, -i128::from(*units));
                    self.add(FLOW, FEE_ACCOUNT, i128::from(*units));
                    events.extend(fee_of(1, *units));
                }
                made.push(with(events));
            }
            if height == 0 {
                made.push(with((1..4).map(|number| about("flow.AccountCreated", number, &[])).collect()));
            }
            made.push(system(vec![evm_closed(height + 100, self.evm)]));
            blocks.push(raw_block(height, fork, common, &made));
        }
        blocks
    }
}

/// The events of one thing in the forms that the token has.
fn forms(
    token: &str,
    new: impl IntoIterator<Item = (String, String)>,
    old_form: impl IntoIterator<Item = (&'static str, u64, Option<(&'static str, Option<u64>)>)>,
) -> Vec<(String, String)> {
    let old_form = old_form.into_iter().map(|(name, units, party)| old(token, name, units, party));
    match token {
        OLD => old_form.collect(),
        FLOW => new.into_iter().chain(old_form).collect(),
        _ => new.into_iter().collect(),
    }
}

/// Holds tables against the ledger.
async fn check(world: &World, ledger: &Ledger) {
    let mut found: BTreeMap<(String, u64), Sum> = BTreeMap::new();
    for row in world.rows("ft_holdings").await {
        let address = get("ft_holdings", &row, "address").as_bytes().unwrap();
        let number = u64::from_be_bytes(address[..].try_into().unwrap());
        let name = get("ft_holdings", &row, "contract_name").as_text().unwrap().to_owned();
        let balance = *get("ft_holdings", &row, "balance").as_sum().unwrap();
        assert_eq!(get("ft_holdings", &row, "is_held").as_bool().unwrap(), !balance.is_zero());
        assert_eq!(found.insert((name, number), balance), None);
    }
    found.retain(|_, balance| !balance.is_zero());
    let mut want: BTreeMap<(String, u64), Sum> = BTreeMap::new();
    let mut supplies: BTreeMap<String, Sum> = BTreeMap::new();
    for ((token, account), units) in &ledger.balances {
        let name = token.rsplit('.').next().unwrap().to_owned();
        let magnitude = Sum::from(U256::from(units.unsigned_abs()));
        let balance = if *units < 0 { -magnitude } else { magnitude };
        let supply = supplies.entry(name.clone()).or_default();
        *supply = *supply + balance;
        if *units != 0 {
            want.insert((name, *account), balance);
        }
    }
    assert_eq!(found, want);
    for row in world.rows("token_stats").await {
        let name = get("token_stats", &row, "contract_name").as_text().unwrap();
        let supply = supplies.get(name).copied().unwrap_or_default();
        assert_eq!(get("token_stats", &row, "net_minted"), &Value::Sum(Box::new(supply)), "{name}");
    }

    let mut found: BTreeMap<u64, (Option<u64>, bool)> = BTreeMap::new();
    for row in world.rows("nft_ownership").await {
        let id = get("nft_ownership", &row, "nft_id").as_amount().unwrap().to::<u64>();
        let owner = get("nft_ownership", &row, "owner").as_bytes();
        let owner = owner.map(|owner| u64::from_be_bytes(owner[..].try_into().unwrap()));
        let is_burned = get("nft_ownership", &row, "is_burned").as_bool().unwrap();
        let minted = Sum::from(U256::from(u64::from(!is_burned)));
        assert_eq!(get("nft_ownership", &row, "net_minted"), &Value::Sum(Box::new(minted)));
        found.insert(id, (owner, is_burned));
    }
    assert_eq!(found, ledger.items);
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    for row in world.rows("nft_holdings").await {
        if get("nft_holdings", &row, "is_held").as_bool().unwrap() {
            let owner = get("nft_holdings", &row, "address").as_bytes().unwrap();
            let id = get("nft_holdings", &row, "nft_id").as_amount().unwrap().to::<u64>();
            assert_eq!(held.insert(id, u64::from_be_bytes(owner[..].try_into().unwrap())), None);
        }
    }
    let owned = ledger.items.iter().filter_map(|(id, (owner, _))| Some((*id, (*owner)?)));
    assert_eq!(held, owned.collect());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn tables_equal_a_ledger_after_replays_and_reorgs(
        shared in plan(2..12),
        first in plan(1..8),
        second in plan(1..8),
        replayed in (0u64..8, 1u64..8),
    ) {
        run(async {
            let mut ledger = Ledger::default();
            let below = ledger.blocks(0, 0, u64::MAX, &shared);
            let common = shared.len() as u64 - 1;
            let mut on_first = ledger.clone();
            let mut on_second = ledger.clone();
            let dead = on_first.blocks(common + 1, 0, u64::MAX, &first);
            let alive = on_second.blocks(common + 1, 1, common, &second);

            let world = World::new(below.clone()).await;
            world.derive().await;
            check(&world, &ledger).await;
            world.append(dead.clone()).await;
            world.derive().await;
            check(&world, &on_first).await;
            world.check_leases(common + first.len() as u64).await;

            // A range made again changes nothing: no holding is doubled.
            let before = world.dump().await;
            let tip = common + first.len() as u64;
            let from = replayed.0.min(tip);
            let again = HeightRange::new(Height(from), Height((from + replayed.1).min(tip + 1)));
            world.make_again(again).await;
            assert_eq!(world.dump().await, before);
            check(&world, &on_first).await;

            // A reorg leaves what a clean run over the chain that is left would.
            world.roll_back(&below[common as usize]).await;
            world.append(alive.clone()).await;
            world.derive().await;
            check(&world, &on_second).await;
            let clean = World::new([below.clone(), alive.clone()].concat()).await;
            clean.derive().await;
            assert_eq!(world.dump().await, clean.dump().await);

            // And back again.
            world.roll_back(&below[common as usize]).await;
            world.append(dead.clone()).await;
            world.derive().await;
            assert_eq!(world.dump().await, before);
            world.check_leases(tip).await;
        });
    }
}

/// The tables of whatever holds the work of these blocks are all touched: a rollback that forgot one would leave rows in it.
#[test]
fn a_rollback_forgets_no_table() {
    run(async {
        let everything = || {
            let mut events = vec![
                about("flow.AccountCreated", 4, &[]),
                key_added(4, &[1; 64], Some(0)),
                old_key_added(4, &[2; 64], 1_000),
                old_key_added(4, &[2; 64], 1_000),
                old_key_revoked(4, &[2; 64], 1_000),
                contract_set("Added", 4, "Cats", [1; 32]),
                deposited(COIN, 7, Some(3), 30, 31),
                item_deposited(CATS, 1, Some(1)),
                evm_executed(101, 0, &Direct::call(0), &[(Default::default(), vec![], vec![])], 0),
                event(
                    &format!("{EVM}.CadenceOwnedAccountCreated"),
                    &[("address", value("String", "11".repeat(20))), ("uuid", value("UInt64", "5"))],
                ),
            ];
            events.extend(fee_of(1, 3));
            vec![with(events), system(vec![evm_closed(101, 1)])]
        };
        let empty =
            |height: u64| raw_block(height, 0, u64::MAX, &[system(vec![evm_closed(height + 100, 0)])]);
        let world = World::new(vec![empty(0)]).await;
        world.derive().await;
        let before = world.dump().await;
        let open = vec![evm_executed(102, 0, &Direct::call(0), &[], 0)];
        let left_open = raw_block(2, 0, u64::MAX, &[with(open), system(Vec::new())]);
        world.append(vec![raw_block(1, 0, u64::MAX, &everything()), left_open]).await;
        world.derive().await;
        world.check_leases(2).await;
        for table in flow_catalog().unwrap().tables() {
            // Answers need a node; the chain is whole.
            let is_empty = world.rows(table.name()).await.is_empty();
            let may_be = !DerivedDumpBuilder::is_dumped(table) || table.name() == "evm_gaps";
            assert_eq!(is_empty, may_be, "{}", table.name());
        }
        world.roll_back(&empty(0)).await;
        world.append(vec![raw_block(1, 1, 0, &[system(vec![evm_closed(101, 0)])])]).await;
        world.derive().await;
        world.roll_back(&empty(0)).await;
        world.append(vec![raw_block(1, 2, 0, &[])]).await;
        world.derive().await;
        let after = world.dump().await;
        let strip = |lines: &[String]| -> Vec<String> {
            let counting = ["checkpoint", "evm_chain", "evm_absences", "daily_stats"];
            let is_row = |line: &&String| !counting.iter().any(|name| line.contains(name));
            lines.iter().filter(is_row).cloned().collect()
        };
        assert_eq!(strip(&after), strip(&before), "but for what counts blocks, what was there before");
    });
}

/// The reliability document's section 8, small: a thousand blocks and all workers; every lease is completed, no error is logged, and nobody
/// passes whom he waits for.
#[test]
fn a_thousand_blocks_leave_completed_leases_and_no_error() {
    run(async {
        let mut ledger = Ledger::default();
        let ops = |height: u64| {
            let to = 1 + height % 3;
            vec![
                Op::Mint { token: (height % 3) as usize, to, units: height },
                Op::Move { token: (height % 3) as usize, from: to, to: 1 + to % 3, units: height / 2 },
                Op::Item { id: height % 50, to },
                Op::Evm,
            ]
        };
        let plan: Plan = (0..1_000).map(|height| vec![(ops(height), Some(1 + height % 7))]).collect();
        let blocks = ledger.blocks(0, 0, u64::MAX, &plan);
        let world = World::new(blocks).await;
        world.derive().await;
        check(&world, &ledger).await;
        world.check_leases(999).await;
        let snapshot = world.app.snapshot().await.unwrap();
        for name in
            [names::TOKEN_WORKER, names::FT_HOLDINGS_WORKER, names::STATS_WORKER, names::EVM_CHAIN_WORKER]
        {
            assert_eq!(snapshot.checkpoint(name).unwrap().next, Height(1_000), "{name}");
        }
        let chain = world.rows("evm_chain").await;
        assert_eq!(column("evm_chain", &chain, "block_count"), ["1000"]);
        assert_eq!(column("evm_chain", &chain, "missing_count"), ["0"]);
        assert_eq!(world.rows("evm_transactions").await.len(), 1_000);
    });
}

/// One gap and one run of Flow blocks without an EVM block, of which a reorg takes the newer part away.
#[test]
fn f04_a_reorg_takes_gaps_and_absences_away_as_if_they_had_never_been() {
    run(async {
        let block = |height: u64, fork: u8, common: u64, evm_height: Option<u64>| {
            let events = evm_height.map(|evm_height| evm_closed(evm_height, 0));
            raw_block(height, fork, common, &[system(events.into_iter().collect())])
        };
        let of_first = [None, Some(5), None, None, None, Some(8), None];
        let first: Vec<RawBlock> =
            (0..).zip(of_first).map(|(height, evm)| block(height, 0, u64::MAX, evm)).collect();
        let world = World::new(first.clone()).await;
        world.derive().await;
        let gaps = world.rows("evm_gaps").await;
        assert_eq!(column("evm_gaps", &gaps, "from_evm_height"), ["6"]);
        let absences = world.rows("evm_absences").await;
        assert_eq!(column("evm_absences", &absences, "evm_height"), ["5", "8"]);
        assert_eq!(column("evm_absences", &absences, "last_height"), ["4", "6"]);

        // From height 3 on another fork, on which the EVM goes on at once.
        world.roll_back(&first[2]).await;
        world.derive().await;
        assert!(world.rows("evm_gaps").await.is_empty());
        let absences = world.rows("evm_absences").await;
        assert_eq!(column("evm_absences", &absences, "absent_count"), ["1"]);
        assert_eq!(column("evm_absences", &absences, "last_height"), ["2"]);
        let second: Vec<RawBlock> =
            (3..).zip([Some(6), None]).map(|(height, evm)| block(height, 1, 2, evm)).collect();
        world.append(second.clone()).await;
        world.derive().await;
        assert!(world.rows("evm_gaps").await.is_empty());
        let absences = world.rows("evm_absences").await;
        assert_eq!(column("evm_absences", &absences, "evm_height"), ["5", "6"]);

        let clean = World::new([&first[..3], &second].concat()).await;
        clean.derive().await;
        assert_eq!(world.dump().await, clean.dump().await);
    });
}
