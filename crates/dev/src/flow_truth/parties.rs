//! `account_roles` and `address_transactions`: whom transactions concern. `address_stats` and `daily_stats`: what is counted of it.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::Address;
use anyhow::Result;
use cairn_explorer::tables::accounts::ADDRESS_TRANSACTIONS;
use cairn_explorer::tables::flow::accounts::ACCOUNT_ROLES;
use cairn_explorer::tables::stats::{ADDRESS_STATS, DAILY_STATS};
use cairn_flow_node::deeds::{ContractChange, Deed};

use super::evm_tokens;
use super::ledger::{Truth, TxAt, account, is_transfer};
use super::rows::{Cell, Expected, Tables, boolean, bytes, number, text};
use super::tokens::Span;
use super::transactions::{fee, item_moves, transfer_rows};

/// `account_roles`.
pub fn roles(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ACCOUNT_ROLES)?;
    for at in truth.transactions() {
        for (address, roles) in at.signers() {
            let ([height, id], [index, time]) = (at.key(), at.when());
            let mut row = vec![height, account(address), id, index, time];
            row.extend(roles.map(boolean));
            expected.add(row)?;
        }
    }
    Ok(expected)
}

/// What an address is in a transaction.
#[derive(Default, Clone, Copy)]
struct Part {
    is_sender: bool,
    is_recipient: bool,
    is_created: bool,
    is_party: bool,
}

impl Part {
    fn direction(self) -> &'static str {
        match self {
            Part { is_sender: true, is_recipient: true, .. } => "self",
            Part { is_sender: true, .. } => "out",
            Part { is_recipient: true, .. } => "in",
            Part { is_created: true, .. } => "created",
            _ => "transfer",
        }
    }
}

/// Whom a transaction concerns: who signs, what is made, whose tokens and items move (but for the fee), and who is who in its EVM transactions.
fn concerned(
    truth: &Truth<'_>,
    of_evm: &BTreeMap<(u64, usize), BTreeSet<Address>>,
    at: &TxAt<'_>,
) -> BTreeMap<Cell, Part> {
    let mut parts: BTreeMap<Cell, Part> = BTreeMap::new();
    for (address, _) in at.signers() {
        parts.entry(account(address)).or_default().is_sender = true;
    }
    for done in &at.tx.done {
        let parties = match &done.deed {
            Deed::AccountCreated(address) => {
                parts.entry(account(*address)).or_default().is_created = true;
                continue;
            }
            Deed::Tokens(moved) if is_transfer(moved) => [moved.from, moved.to],
            Deed::Item(moved) => [moved.from, moved.to],
            _ => continue,
        };
        for party in parties.into_iter().flatten() {
            parts.entry(account(party)).or_default().is_party = true;
        }
    }
    let evm = truth.ledger.evm_transactions.get(&at.height).into_iter().flatten();
    for evm in evm.filter(|evm| evm.flow_tx_index == at.index) {
        parts.entry(bytes(evm.from)).or_default().is_sender = true;
        if let Some(to) = evm.to {
            parts.entry(bytes(to)).or_default().is_recipient = true;
        }
        if let Some(created) = evm.created.filter(|_| evm.error_code == 0) {
            parts.entry(bytes(created)).or_default().is_created = true;
        }
    }
    for party in of_evm.get(&(at.height, at.index)).into_iter().flatten() {
        parts.entry(bytes(party)).or_default().is_party = true;
    }
    parts
}

/// The parties of movements of the EVM's tokens, by the height and place of the Flow transaction.
fn evm_parties(truth: &Truth<'_>) -> Result<BTreeMap<(u64, usize), BTreeSet<Address>>> {
    let mut parties: BTreeMap<(u64, usize), BTreeSet<Address>> = BTreeMap::new();
    for one in evm_tokens::moves(truth)? {
        parties.entry((one.at.height, one.at.index)).or_default().extend(one.parties());
    }
    Ok(parties)
}

/// `address_transactions`.
pub fn addresses(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    let mut expected = Expected::of(&ADDRESS_TRANSACTIONS)?;
    let of_evm = evm_parties(truth)?;
    for at in truth.transactions() {
        for (address, part) in concerned(truth, &of_evm, &at) {
            let ([height, id], [index, time]) = (at.key(), at.when());
            let mut row = vec![height, address, id, index, time, text(part.direction())];
            row.extend([part.is_sender, part.is_recipient, part.is_created, part.is_party].map(boolean));
            expected.add(row)?;
        }
    }
    Ok(expected)
}

/// `address_stats`.
pub fn address_stats(truth: &Truth<'_>, _: &Tables) -> Result<Expected> {
    #[derive(Default)]
    struct Counted {
        transactions: u64,
        sent: u64,
        received: u64,
        heights: Option<Span>,
        times: Option<Span>,
    }
    let mut all: BTreeMap<Cell, Counted> = BTreeMap::new();
    let of_evm = evm_parties(truth)?;
    for at in truth.transactions() {
        for (address, part) in concerned(truth, &of_evm, &at) {
            let counted = all.entry(address).or_default();
            counted.transactions += 1;
            counted.sent += u64::from(part.is_sender);
            counted.received += u64::from(part.is_recipient);
            counted.heights = Some(Span::add(counted.heights, at.height));
            counted.times = Some(Span::add(counted.times, at.time_ms));
        }
    }
    let mut expected = Expected::of(&ADDRESS_STATS)?;
    for (address, counted) in all {
        let (Some(heights), Some(times)) = (counted.heights, counted.times) else { continue };
        let mut row = vec![address, number(counted.transactions), number(counted.sent)];
        row.extend([number(counted.received), number(heights.first)]);
        row.extend(times.cells());
        row.push(number(heights.last));
        expected.add(row)?;
    }
    Ok(expected)
}

/// `daily_stats`.
pub fn daily(truth: &Truth<'_>, found: &Tables) -> Result<Expected> {
    #[derive(Default)]
    struct Day {
        blocks: BTreeSet<u64>,
        transactions: u64,
        failed: u64,
        gas: u64,
        fees: u64,
        without_fee: u64,
        events: usize,
        transfers: u64,
        items: usize,
        contracts: usize,
    }
    let (rows, items) = (transfer_rows(found)?, item_moves(truth)?);
    let mut in_evm: BTreeMap<(u64, usize), BTreeSet<Address>> = BTreeMap::new();
    for (evm, at) in evm_tokens::all(truth)? {
        let created = evm.created.filter(|_| evm.error_code == 0);
        in_evm.entry((at.height, at.index)).or_default().extend(created);
    }
    let mut days: BTreeMap<String, Day> = BTreeMap::new();
    for (height, time_ms) in truth.ledger.times_ms.range(truth.root..=truth.height) {
        days.entry(date(*time_ms)).or_default().blocks.insert(*height);
    }
    for at in truth.transactions() {
        let day = days.entry(date(at.time_ms)).or_default();
        let tx = at.tx;
        day.transactions += 1;
        day.failed += u64::from(tx.is_failed);
        day.gas += tx.computation;
        day.fees += fee(tx).unwrap_or(0);
        day.without_fee += u64::from(fee(tx).is_none());
        day.events += tx.event_types.len();
        day.transfers += rows.get(&at.key()).copied().unwrap_or(0);
        let place = (at.height, at.index);
        day.items += items.get(&place).copied().unwrap_or(0);
        day.contracts += in_evm.get(&place).map_or(0, BTreeSet::len);
        let created = tx.done.iter().filter_map(|done| match &done.deed {
            Deed::ContractChanged { contract, change: ContractChange::Added, .. } => Some(contract),
            _ => None,
        });
        day.contracts += created.collect::<BTreeSet<_>>().len();
    }
    let mut expected = Expected::of(&DAILY_STATS)?;
    for (date, day) in days {
        let mut row =
            vec![text(date), number(day.blocks.len()), number(day.transactions), number(day.failed)];
        row.extend([number(day.gas), number(day.fees), number(day.without_fee), number(day.events)]);
        row.extend([number(day.transfers), number(day.items), number(day.contracts)]);
        row.extend([day.blocks.first().and_then(number), day.blocks.last().and_then(number)]);
        expected.add(row)?;
    }
    Ok(expected)
}

/// The UTC date of a time: years are counted from March, so that the day that may be missing is the last one.
fn date(time_ms: u64) -> String {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_OF_400_YEARS: u64 = 146_097;
    let days = time_ms / 86_400_000 + DAYS_TO_1970;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / (DAYS_OF_400_YEARS - 1)) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let since_march = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * since_march + 2) / 5 + 1;
    let (month, next) = if since_march < 10 { (since_march + 3, 0) } else { (since_march - 9, 1) };
    format!("{:04}-{month:02}-{of_month:02}", era * 400 + year + next)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (time_ms, is) in [
            (0, "1970-01-01"),
            (951_782_399_999, "2000-02-28"),
            (951_782_400_000, "2000-02-29"),
            (951_868_800_000, "2000-03-01"),
            (1_545_258_750_000, "2018-12-19"),
            (1_769_904_000_000, "2026-02-01"),
            (4_107_542_400_000, "2100-03-01"),
        ] {
            assert_eq!(date(time_ms), is);
        }
    }
}
