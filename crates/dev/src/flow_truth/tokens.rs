//! `ft_transfers` and `fee_transfers`: every movement of tokens, from whom to whom. `ft_holdings` and `token_stats`: what came of them.
//!
//! A movement may be several rows, one for each withdrawal that it is made of: what is compared is their sum. Events of before Cadence 1.0 name no vaults,
//! so that where tokens also came out of another resource, or went into one, nobody can say which were which: there each account lost and
//! gained what it did.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cairn_explorer::tables::flow::fees::FEE_TRANSFERS;
use cairn_explorer::tables::holdings::{FT_HOLDINGS, TOKEN_STATS};
use cairn_explorer::tables::transfers::FT_TRANSFERS;
use cairn_flow_node::deeds::MoveKind;
use cairn_flow_node::ledger::ContractId;
use cairn_store::derived::TableDef;

use super::evm_tokens;
use super::ledger::{TokensAt, Truth, account, contract, is_transfer};
use super::rows::{Cell, Expected, Row, Rows, Tables, boolean, bytes, number, text};

/// A transaction and a token in it.
type Place = (u64, [u8; 32], ContractId);

fn place(one: &TokensAt<'_>) -> Place {
    (one.at.height, one.at.tx.id, one.moved.token.clone())
}

/// Where events can't say which tokens went where.
fn unclear(truth: &Truth<'_>) -> BTreeSet<Place> {
    let old = truth.tokens().filter(|one| one.at.height < truth.new_from);
    old.filter(|one| matches!(one.moved.kind, MoveKind::Release | MoveKind::Withdrawal))
        .map(|one| place(&one))
        .collect()
}

fn transfer_row(one: &TokensAt<'_>) -> Vec<Cell> {
    let (at, moved) = (one.at, one.moved);
    let [height, id] = at.key();
    let [index, time] = at.when();
    let [address, name] = contract(&moved.token);
    let mut row = vec![height, id, number(one.event_index), number(0), index, time, address, name];
    row.extend([moved.from.and_then(account), moved.to.and_then(account), number(moved.amount)]);
    let kind = if moved.kind == MoveKind::Fee { "cadence-fee" } else { "cadence-ft" };
    row.extend([text(kind), boolean(moved.kind == MoveKind::Mint)]);
    row.extend([boolean(moved.kind == MoveKind::Burn), boolean(true)]);
    row
}

/// `ft_transfers`.
pub fn transfers(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    moves(truth, found, &FT_TRANSFERS, false)
}

/// `fee_transfers`.
pub fn fees(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    moves(truth, found, &FEE_TRANSFERS, true)
}

fn moves(truth: &Truth<'_>, found: &Tables, def: &'static TableDef, is_fee: bool) -> Result<Expected> {
    let unclear = unclear(truth);
    let mut expected = Expected::summed(def, "amount", &["sub_index"])?;
    for one in truth.tokens().filter(|one| is_transfer(one.moved) != is_fee) {
        if !unclear.contains(&place(&one)) {
            expected.add(transfer_row(&one))?;
        }
    }
    let rows = found.rows(def)?;
    if !is_fee {
        let of_evm = evm_tokens::moves(truth)?;
        of_evm.iter().filter(|one| !one.is_item()).try_for_each(|one| expected.add(one.row()))?;
    }
    places_in_events(rows)?;
    if !unclear.is_empty() {
        // What the table says counts, once every account has lost and gained what it did.
        let unclear: BTreeMap<[Cell; 4], &Place> = unclear
            .iter()
            .map(|one| {
                let [address, name] = contract(&one.2);
                ([number(one.0), bytes(one.1), address, name], one)
            })
            .collect();
        sums(truth, found, &unclear)?;
        for (cells, row) in rows.rows.iter().zip(rows.iter()) {
            if unclear.contains_key(&token_of(&row)?) {
                expected.add(cells.clone())?;
            }
        }
    }
    Ok(expected)
}

fn token_of(row: &Row<'_>) -> Result<[Cell; 4]> {
    Ok([
        row.cell("block_height")?,
        row.cell("transaction_id")?,
        row.cell("token_contract_address")?,
        row.cell("contract_name")?,
    ])
}

/// Movements of one event are counted from 0; those of the EVM through both tables of movements, so that `nft_transfers` alone has their places compared.
fn places_in_events(rows: &Rows) -> Result<()> {
    let mut places: BTreeMap<[Cell; 3], Vec<u32>> = BTreeMap::new();
    for row in rows.of_accounts() {
        let event = [row.cell("block_height")?, row.cell("transaction_id")?, row.cell("event_index")?];
        places.entry(event).or_default().push(row.number("sub_index")?);
    }
    for (event, mut places) in places {
        places.sort_unstable();
        let is_counted = (0..).zip(&places).all(|(at, place)| at == *place);
        ensure!(is_counted, "{}: sub_index of the rows of {event:?} is {places:?}", rows.def.name);
    }
    Ok(())
}

/// What each account lost and gained.
type Sums = BTreeMap<([Cell; 4], Cell), (u128, u128)>;

fn add(sums: &mut Sums, token: &[Cell; 4], from: Cell, to: Cell, amount: u128) {
    if from.is_some() {
        sums.entry((token.clone(), from)).or_default().0 += amount;
    }
    if to.is_some() {
        sums.entry((token.clone(), to)).or_default().1 += amount;
    }
}

fn sums(truth: &Truth<'_>, found: &Tables, unclear: &BTreeMap<[Cell; 4], &Place>) -> Result<()> {
    let (mut wanted, mut there) = (Sums::new(), Sums::new());
    for one in truth.tokens() {
        let [height, id] = one.at.key();
        let [address, name] = contract(&one.moved.token);
        let token = [height, id, address, name];
        if unclear.contains_key(&token) {
            let (from, to) = (one.moved.from.and_then(account), one.moved.to.and_then(account));
            add(&mut wanted, &token, from, to, one.moved.amount.into());
        }
    }
    for row in found.rows(&FT_TRANSFERS)?.iter().chain(found.rows(&FEE_TRANSFERS)?.iter()) {
        let token = token_of(&row)?;
        if unclear.contains_key(&token) {
            let (from, to) = (row.cell("from_address")?, row.cell("to_address")?);
            add(&mut there, &token, from, to, row.number("amount")?);
        }
    }
    let differs = wanted.iter().find(|(key, sums)| there.get(*key) != Some(*sums));
    let differs = differs.or_else(|| there.iter().find(|(key, sums)| wanted.get(*key) != Some(*sums)));
    let Some((key, _)) = differs else { return Ok(()) };
    let (wanted, there) = (wanted.get(key), there.get(key));
    anyhow::bail!("ft_transfers: {key:?} lost and gained {there:?} where it has to be {wanted:?}")
}

/// From when to when something was so.
#[derive(Clone, Copy)]
pub struct Span {
    pub first: u64,
    pub last: u64,
}

impl Span {
    /// One more height.
    pub fn add(of: Option<Span>, height: u64) -> Span {
        let (first, last) = of.map_or((height, height), |of| (of.first, of.last));
        Span { first: first.min(height), last: last.max(height) }
    }

    /// Both ends.
    pub fn cells(self) -> [Cell; 2] {
        [number(self.first), number(self.last)]
    }
}

/// When each holding changed, by account and token, as far as the tables of movements say, which are compared on their own.
fn changed(found: &Tables) -> Result<BTreeMap<[Cell; 3], Span>> {
    let mut changed: BTreeMap<[Cell; 3], Span> = BTreeMap::new();
    for row in found.rows(&FT_TRANSFERS)?.of_accounts().chain(found.rows(&FEE_TRANSFERS)?.iter()) {
        let (from, to) = (row.cell("from_address")?, row.cell("to_address")?);
        let (token, name) = (row.cell("token_contract_address")?, row.cell("contract_name")?);
        let height = row.number("block_height")?;
        for party in [&from, &to].into_iter().filter(|party| from != to && party.is_some()) {
            let key = [party.clone(), token.clone(), name.clone()];
            let span = Span::add(changed.get(&key).copied(), height);
            changed.insert(key, span);
        }
    }
    Ok(changed)
}

/// `ft_holdings`: every account that ever had some, those that have none any more too.
pub fn holdings(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&FT_HOLDINGS)?;
    let balances = truth.ledger.moved_balances(truth.height);
    let mut balances: BTreeMap<[Cell; 3], i128> = balances
        .into_iter()
        .map(|((token, owner), balance)| {
            let [address, name] = contract(&token);
            ([account(owner), address, name], balance)
        })
        .collect();
    for (key, span) in changed(found)? {
        let balance = balances.remove(&key).unwrap_or(0);
        let mut row = key.to_vec();
        row.extend([number(balance), boolean(balance != 0)]);
        row.extend(span.cells());
        expected.add(row)?;
    }
    if let Some((key, balance)) = balances.first_key_value() {
        anyhow::bail!("ft_holdings: {key:?} have {balance}, and no movement tells of it");
    }
    evm_tokens::ft_holdings(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// `token_stats`: how often a token moved, how many have some of it, how much lies in accounts.
pub fn stats(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&TOKEN_STATS)?;
    let mut rows = BTreeMap::<[Cell; 2], u64>::new();
    for row in found.rows(&FT_TRANSFERS)?.iter() {
        let token = [row.cell("token_contract_address")?, row.cell("contract_name")?];
        *rows.entry(token).or_default() += 1;
    }
    let mut spans: BTreeMap<&ContractId, Span> = BTreeMap::new();
    for one in truth.tokens() {
        let span = Span::add(spans.get(&one.moved.token).copied(), one.at.height);
        spans.insert(&one.moved.token, span);
    }
    let balances = truth.ledger.moved_balances(truth.height);
    for (token, span) in spans {
        let held = balances.iter().filter(|((of, _), _)| of == token);
        let (mut holders, mut sum) = (0u64, 0i128);
        for (_, balance) in held {
            (holders, sum) = (holders + u64::from(*balance > 0), sum + balance);
        }
        let key = contract(token);
        let transfers = rows.get(&key).copied().unwrap_or(0);
        let mut row = key.to_vec();
        row.extend([number(transfers), number(holders), number(sum)]);
        row.extend(span.cells());
        expected.add(row)?;
    }
    evm_tokens::token_stats(truth)?.into_iter().try_for_each(|row| expected.add(row))?;
    Ok(expected)
}

/// Movements of a table by account and token up to a height: what each has, by the table alone. Not those of the EVM, about which nobody is asked.
pub fn balances_at(found: &Tables, height: u64) -> Result<BTreeMap<[Cell; 3], u64>> {
    let mut balances: BTreeMap<[Cell; 3], i128> = BTreeMap::new();
    for row in found.rows(&FT_TRANSFERS)?.of_accounts().chain(found.rows(&FEE_TRANSFERS)?.iter()) {
        if row.number::<u64>("block_height")? > height {
            continue;
        }
        let amount: i128 = row.number("amount")?;
        for (party, by) in [(row.cell("from_address")?, -amount), (row.cell("to_address")?, amount)] {
            if party.is_some() {
                let key = [party, row.cell("token_contract_address")?, row.cell("contract_name")?];
                *balances.entry(key).or_default() += by;
            }
        }
    }
    let above_zero = balances.into_iter().filter(|(_, balance)| *balance != 0);
    above_zero
        .map(|(key, balance)| {
            let balance = u64::try_from(balance);
            let balance = balance.with_context(|| format!("{key:?} have less than nothing at {height}"))?;
            Ok((key, balance))
        })
        .collect()
}
