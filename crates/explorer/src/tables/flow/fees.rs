//! Fees of transactions as the token movements that they are: `fee_transfers`.

use cairn_store::derived::{TableClass, TableDef};

use crate::names::TOKEN_WORKER;
use crate::tables::LARGE_PARTITION_HEIGHTS;
use crate::tables::transfers::FT_TRANSFERS;

/// Payments of fees: rows like those of `ft_transfers`, kept apart so that no list of transfers shows them, while balances count them.
/// A payment is told by `FlowFees.FeesDeducted`, whoever receives it.
pub static FEE_TRANSFERS: TableDef = TableDef {
    name: "fee_transfers",
    service: TOKEN_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: FT_TRANSFERS.columns,
    key: FT_TRANSFERS.key,
    indexes: &[],
};
