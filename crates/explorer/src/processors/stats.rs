//! `stats_worker`: statistics by UTC date and by address, folded from `tx_metrics`, `address_transactions` and `smart_contracts`.
//!
//! State that is folded in order and undone by reorgs, and so exact however often a block is done again. A day's row is changed by each of
//! its blocks.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_core::TxStatus;
use cairn_pipeline::derive::processor::{Changes, FoldBlock, Folder, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, Sum, TableDef, U256, Value};

use super::Settings;
use crate::names::{ACCOUNTS_WORKER, META_WORKER, STATS_WORKER, TX_METRICS_WORKER};
use crate::tables::accounts::{ADDRESS_TRANSACTIONS, AddressTransaction};
use crate::tables::contracts::SMART_CONTRACTS;
use crate::tables::stats::{ADDRESS_STATS, AddressChange, DAILY_STATS, DayChange};
use crate::tables::status_name;
use crate::tables::transactions::{TX_METRICS, TxMetrics};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: STATS_WORKER,
    version: 1,
    upstreams: &[TX_METRICS_WORKER, ACCOUNTS_WORKER, META_WORKER],
    tables: &[&DAILY_STATS, &ADDRESS_STATS],
};

static READS: &[&TableDef] = &[&TX_METRICS, &ADDRESS_TRANSACTIONS, &SMART_CONTRACTS];

/// Makes it.
pub fn make(_settings: &Settings) -> Option<Processor> {
    Some(Processor::Folder(Arc::new(StatsWorker)))
}

struct StatsWorker;

impl Folder for StatsWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let facts = block.facts;
        let (height, time_ms) = (facts.height.get(), facts.timestamp_ms);
        let rows = |at: usize| block.rows.get(at).copied().unwrap_or_default();

        let mut day = DayChange {
            transactions: facts.tx_count.into(),
            new_contracts: rows(2).len() as i64,
            ..DayChange::default()
        };
        for row in rows(0) {
            let tx = TxMetrics::from_row(row).map_err(|error| error.in_block(facts.block_ref()))?;
            day.failed += i64::from(tx.status == status_name(TxStatus::Failed));
            day.gas_used = day.gas_used + Sum::from(U256::from(tx.gas_used));
            match tx.fee {
                Some(fee) => day.fees = day.fees + Sum::from(fee),
                None => day.without_fee += 1,
            }
            day.events += tx.event_count as i64;
            day.ft_transfers += tx.ft_transfer_count as i64;
            day.nft_transfers += tx.nft_transfer_count as i64;
        }
        changes.change(&DAILY_STATS, day.to_change(utc_date(time_ms), height));

        let mut addresses: BTreeMap<Bytes, AddressChange> = BTreeMap::new();
        for row in rows(1) {
            let row = AddressTransaction::from_row(row).map_err(|error| error.in_block(facts.block_ref()))?;
            let change = addresses.entry(row.address).or_default();
            change.transactions += 1;
            change.sent += i64::from(row.roles.is_sender);
            change.received += i64::from(row.roles.is_recipient);
        }
        for (address, change) in addresses {
            changes.change(&ADDRESS_STATS, change.to_change(&address, height, time_ms));
        }
        Ok(())
    }

    fn is_correctable(&self) -> bool {
        true
    }

    fn put_right(&self, _table: &'static str, _row: &mut Row) -> bool {
        true
    }

    /// Each row by itself.
    fn group<'a>(&self, _table: &'static str, key: &'a Key) -> &'a [Value] {
        &key.0
    }
}

/// The UTC date of a time, `YYYY-MM-DD`. Times beyond the year 9999, which only a broken block has, are counted under its last day.
fn utc_date(time_ms: u64) -> String {
    const LAST_DAY: u64 = 2_932_896;
    let days = (time_ms / 86_400_000).min(LAST_DAY);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March, eras have 400 years.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::utc_date;

    #[test]
    fn dates_are_those_of_utc() {
        const DAY_MS: u64 = 86_400_000;
        for (time_ms, date) in [
            (0, "1970-01-01"),
            (DAY_MS - 1, "1970-01-01"),
            (DAY_MS, "1970-01-02"),
            (951_782_400_000, "2000-02-29"),
            (951_868_800_000, "2000-03-01"),
            (1_438_269_988_000, "2015-07-30"),
            (4_107_542_399_999, "2100-02-28"),
            (4_107_542_400_000, "2100-03-01"),
            (253_402_300_799_999, "9999-12-31"),
            (u64::MAX, "9999-12-31"),
        ] {
            assert_eq!(utc_date(time_ms), date);
        }
    }
}
