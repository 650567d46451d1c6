//! Statistics by day (`daily_stats`) and by address (`address_stats`). State, and so exact: what is folded again after a reorg was taken back
//! before.

use bytes::Bytes;
use cairn_store::derived::{Change, ColumnType, IndexDef, Merge, Sum, TableClass, TableDef, Value, column};

use crate::names::STATS_WORKER;

/// One row a UTC date, `YYYY-MM-DD`. `fees` leaves out the transactions whose fee isn't known, and `transactions_without_fee` says how many
/// those are (E07); `failed_transactions` leaves out those that the chain says nothing of (E08).
pub static DAILY_STATS: TableDef = TableDef {
    name: "daily_stats",
    service: STATS_WORKER,
    class: TableClass::State,
    columns: &[
        column("date", ColumnType::Text),
        column("block_count", ColumnType::Int).merged(Merge::Sum),
        column("transaction_count", ColumnType::Int).merged(Merge::Sum),
        column("failed_transaction_count", ColumnType::Int).merged(Merge::Sum),
        column("gas_used", ColumnType::Sum).merged(Merge::Sum),
        column("fees", ColumnType::Sum).merged(Merge::Sum),
        column("transactions_without_fee", ColumnType::Int).merged(Merge::Sum),
        column("event_count", ColumnType::Int).merged(Merge::Sum),
        column("ft_transfer_count", ColumnType::Int).merged(Merge::Sum),
        column("nft_transfer_count", ColumnType::Int).merged(Merge::Sum),
        column("new_contract_count", ColumnType::Int).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["date"],
    indexes: &[],
};

/// What one block adds to its day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DayChange {
    /// Transactions.
    pub transactions: i64,
    /// Those that are known to have failed.
    pub failed: i64,
    /// Gas.
    pub gas_used: Sum,
    /// Fees that are known.
    pub fees: Sum,
    /// Transactions whose fee isn't.
    pub without_fee: i64,
    /// Events.
    pub events: i64,
    /// Movements of fungible tokens.
    pub ft_transfers: i64,
    /// Movements of NFTs.
    pub nft_transfers: i64,
    /// Contracts that were created.
    pub new_contracts: i64,
}

impl DayChange {
    /// As a change of a day's row.
    pub fn to_change(&self, date: String, height: u64) -> Change {
        Change(vec![
            Some(Value::text(date)),
            Some(Value::Int(1)),
            Some(Value::Int(self.transactions)),
            Some(Value::Int(self.failed)),
            Some(Value::Sum(Box::new(self.gas_used))),
            Some(Value::Sum(Box::new(self.fees))),
            Some(Value::Int(self.without_fee)),
            Some(Value::Int(self.events)),
            Some(Value::Int(self.ft_transfers)),
            Some(Value::Int(self.nft_transfers)),
            Some(Value::Int(self.new_contracts)),
            Some(Value::uint(height)),
            None,
        ])
    }
}

/// What is counted of an address: the transactions that concern it, those that it sent, those that called it; when it was seen first and
/// last. Never the zero address.
pub static ADDRESS_STATS: TableDef = TableDef {
    name: "address_stats",
    service: STATS_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("transaction_count", ColumnType::Int).merged(Merge::Sum),
        column("sent_count", ColumnType::Int).merged(Merge::Sum),
        column("received_count", ColumnType::Int).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("first_seen_ms", ColumnType::Int).merged(Merge::First),
        column("last_seen_ms", ColumnType::Int).merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address"],
    indexes: &[IndexDef { name: "by_transactions", columns: &["transaction_count", "address"] }],
};

/// What one block adds to an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressChange {
    /// Transactions that concern it.
    pub transactions: i64,
    /// Those that it sent.
    pub sent: i64,
    /// Those that called it.
    pub received: i64,
}

impl AddressChange {
    /// As a change of an address's row.
    pub fn to_change(self, address: &Bytes, height: u64, time_ms: u64) -> Change {
        Change(vec![
            Some(Value::Bytes(address.clone())),
            Some(Value::Int(self.transactions)),
            Some(Value::Int(self.sent)),
            Some(Value::Int(self.received)),
            Some(Value::uint(height)),
            Some(Value::uint(time_ms)),
            Some(Value::uint(time_ms)),
            None,
        ])
    }
}
