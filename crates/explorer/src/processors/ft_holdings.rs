//! `ft_holdings_worker`: balances of fungible tokens, folded from `ft_transfers`.
//!
//! Counted are the rows with `affects_balance`. The zero address has no balance; a self-transfer and a transfer of nothing change none,
//! so that somebody who sends zeros around fills no table (E27). Every row counts as a transfer of its token. On Flow the fees, which lists of
//! transfers leave out, are a table of their own that counts for balances alone.

use std::sync::Arc;

use cairn_pipeline::derive::processor::{Changes, FoldBlock, Folder, ProcessError, Processor, ServiceInfo};
use cairn_store::derived::{Change, Key, Row, Sum, TableDef, Value};

use super::Settings;
use crate::names::{FT_HOLDINGS_WORKER, TOKEN_WORKER};
use crate::tables::flow::fees::FEE_TRANSFERS;
use crate::tables::holdings::{FT_BALANCE, FT_HOLDINGS, FT_IS_HELD, TOKEN_STATS, ft_holding, token_stats};
use crate::tables::transfers::{FT_TRANSFERS, FtTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: FT_HOLDINGS_WORKER,
    version: 2,
    upstreams: &[TOKEN_WORKER],
    tables: &[&FT_HOLDINGS, &TOKEN_STATS],
};

static READS: &[&TableDef] = &[&FT_TRANSFERS];
static FLOW_READS: &[&TableDef] = &[&FT_TRANSFERS, &FEE_TRANSFERS];

/// Makes it.
pub fn make(_settings: &Settings) -> Option<Processor> {
    Some(Processor::Folder(Arc::new(FtHoldingsWorker { reads: READS })))
}

/// Makes it for Flow.
pub fn make_flow(_settings: &Settings) -> Option<Processor> {
    Some(Processor::Folder(Arc::new(FtHoldingsWorker { reads: FLOW_READS })))
}

struct FtHoldingsWorker {
    reads: &'static [&'static TableDef],
}

impl Folder for FtHoldingsWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        self.reads
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let height = block.facts.height.get();
        // Sums don't depend on the order of rows.
        let rows =
            block.rows.iter().enumerate().flat_map(|(table, rows)| rows.iter().map(move |row| (table, row)));
        for (table, row) in rows {
            let transfer =
                FtTransfer::from_row(row).map_err(|error| error.in_block(block.facts.block_ref()))?;
            let parties = &transfer.parties;
            let token = (&parties.contract_address, parties.contract_name.as_str());
            let mut minted = Sum::ZERO;
            if transfer.affects_balance && !transfer.amount.is_zero() {
                let amount = Sum::from(transfer.amount);
                // What nobody gave or nobody took: on Flow, where tokens may lie in no account, not only mints and burns.
                if parties.giver().is_none() {
                    minted = minted + amount;
                }
                if parties.taker().is_none() {
                    minted = minted + -amount;
                }
                if parties.giver() != parties.taker() {
                    if let Some(giver) = parties.giver() {
                        changes.change(&FT_HOLDINGS, ft_holding(giver, token, -amount, height));
                    }
                    if let Some(taker) = parties.taker() {
                        changes.change(&FT_HOLDINGS, ft_holding(taker, token, amount, height));
                    }
                }
            }
            let transfers = i64::from(table == 0);
            changes.change(&TOKEN_STATS, token_stats(token, transfers, 0, minted, Some(height)));
        }
        Ok(())
    }

    fn settled(&self, table: &'static str, before: Option<&Row>, after: &Row, changes: &mut Changes) {
        if table != FT_HOLDINGS.name {
            return;
        }
        let [address, token, name, ..] = &after.0[..] else { return };
        if !is_zero(after, FT_BALANCE) {
            changes.change(
                &FT_HOLDINGS,
                Change(vec![
                    Some(address.clone()),
                    Some(token.clone()),
                    Some(name.clone()),
                    None,
                    Some(Value::Bool(true)),
                    None,
                    None,
                ]),
            );
        }
        let was_holder = before.is_some_and(|row| is_above_zero(row, FT_BALANCE));
        let holders = i64::from(is_above_zero(after, FT_BALANCE)) - i64::from(was_holder);
        if let (true, Value::Bytes(token), Value::Text(name)) = (holders != 0, token, name) {
            changes.change(&TOKEN_STATS, token_stats((token, name), 0, holders, Sum::ZERO, None));
        }
    }

    fn is_correctable(&self) -> bool {
        true
    }

    fn put_right(&self, table: &'static str, row: &mut Row) -> bool {
        if table == FT_HOLDINGS.name {
            row.0[FT_IS_HELD] = Value::Bool(!is_zero(row, FT_BALANCE));
        }
        true
    }

    /// The token.
    fn group<'a>(&self, table: &'static str, key: &'a Key) -> &'a [Value] {
        if table == FT_HOLDINGS.name { key.0.get(1..).unwrap_or_default() } else { &key.0 }
    }
}

/// Whether the sum in a column is above zero.
pub(super) fn is_above_zero(row: &Row, column: usize) -> bool {
    row.0.get(column).and_then(Value::as_sum).is_some_and(|sum| *sum > Sum::ZERO)
}

/// Whether the sum in a column is zero: then lists leave the row out.
pub(super) fn is_zero(row: &Row, column: usize) -> bool {
    row.0.get(column).and_then(Value::as_sum).is_some_and(Sum::is_zero)
}
