//! Made-up derived tables and rows for benchmarks of app stores: transfers (events with a key and three indexes) and holdings (state with two).
//! The shapes and sizes are those of `ft_transfers` and `ft_holdings`; the rows need no chain.

use anyhow::{Context, Result};
use cairn_backends::postgres::{PgDerived, PgPool};
use cairn_core::{BlockId, Height, HeightRange};
use cairn_store::derived::{
    BLOCK_HEIGHT, Catalog, ChunkCommit, ClaimRequest, Column, ColumnType, Coordinator, IndexDef, LAST_HEIGHT,
    Merge, ReadMark, Row, Sum, TableClass, TableDef, U256, Value, WorkerLease, column,
};

const COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("log_index", ColumnType::Int),
    column("sub_index", ColumnType::Int),
    column("transaction_id", ColumnType::Bytes),
    column("token", ColumnType::Bytes),
    column("from_address", ColumnType::Bytes),
    column("to_address", ColumnType::Bytes),
    column("amount", ColumnType::Amount),
    column("timestamp_ms", ColumnType::Int),
];
const INDEXES: &[IndexDef] = &[
    IndexDef { name: "by_from", columns: &["from_address", BLOCK_HEIGHT, "log_index", "sub_index"] },
    IndexDef { name: "by_to", columns: &["to_address", BLOCK_HEIGHT, "log_index", "sub_index"] },
    IndexDef { name: "by_token", columns: &["token", BLOCK_HEIGHT, "log_index", "sub_index"] },
];
const KEY: &[&str] = &[BLOCK_HEIGHT, "log_index", "sub_index"];
const CLASS: TableClass = TableClass::Events { partition_heights: 10_000_000 };

/// What is rolled back and read.
pub static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: CLASS,
    columns: COLUMNS,
    key: KEY,
    indexes: INDEXES,
};
/// What somebody else writes meanwhile.
pub static OTHERS: TableDef = TableDef {
    name: "others",
    service: "writer",
    class: CLASS,
    columns: COLUMNS,
    key: KEY,
    indexes: INDEXES,
};
/// Balances.
pub static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: "folder",
    class: TableClass::State,
    columns: &[
        column("token", ColumnType::Bytes),
        column("address", ColumnType::Bytes),
        column("balance", ColumnType::Sum).merged(Merge::Sum),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
    ],
    key: &["token", "address"],
    indexes: &[
        IndexDef { name: "by_balance", columns: &["token", "balance", "address"] },
        IndexDef { name: "by_address", columns: &["address", "token"] },
    ],
};
/// The services of those tables.
pub const SERVICES: [&str; 3] = ["writer", "mapper", "folder"];
/// The raw store's uuid.
pub const RAW: [u8; 16] = [7; 16];
/// Transfers in a block.
pub const PER_BLOCK: u64 = 100;
/// Addresses that are written between `Value`s are scattered over the index by this, as hashes would be.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The three tables.
pub fn catalog() -> Result<Catalog> {
    Ok(Catalog::new([&TRANSFERS, &OTHERS, &HOLDINGS])?)
}

/// A block's id.
pub fn id(height: u64) -> BlockId {
    let mut id = [1; 32];
    id[..8].copy_from_slice(&height.to_be_bytes());
    BlockId(id)
}

/// The token of all transfers.
pub fn token() -> Value {
    address(1)
}

fn address(n: u64) -> Value {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&n.wrapping_mul(SCATTER).to_be_bytes());
    bytes[12..].copy_from_slice(&n.to_be_bytes());
    Value::bytes(&bytes)
}

/// One transfer.
pub fn transfer(height: u64, log_index: u64) -> Row {
    let n = height * PER_BLOCK + log_index;
    let mut transaction = [2; 32];
    transaction[..8].copy_from_slice(&n.wrapping_mul(0xd134_2543_de82_ef95).to_be_bytes());
    Row(vec![
        Value::uint(height),
        Value::uint(log_index),
        Value::Int(0),
        Value::bytes(&transaction),
        token(),
        address(if log_index == 0 { 2 } else { n % 900_001 + 10 }),
        address(n % 700_001 + 10),
        Value::Amount(U256::from(n) << 64),
        Value::uint(1_700_000_000_000 + height * 12_000),
    ])
}

/// The transfers of blocks `[from, to)`.
pub fn transfers(from: u64, to: u64) -> Vec<Row> {
    (from..to).flat_map(|height| (0..PER_BLOCK).map(move |n| transfer(height, n))).collect()
}

/// A holder's balance as it is after a block. Holder 0 is the one who is in every block.
pub fn holding(n: u64, last_height: u64) -> Row {
    let balance = Value::Sum(Box::new(Sum::from(U256::from(last_height) << 70)));
    Row(vec![token(), address(n), balance, Value::Int(0), Value::uint(last_height)])
}

/// A lease on everything.
pub async fn claim(store: &impl Coordinator, service: &str) -> Result<WorkerLease> {
    claim_below(store, service, Height(1 << 40)).await
}

/// A lease on all below `limit_exclusive`.
pub async fn claim_below(
    store: &impl Coordinator,
    service: &str,
    limit_exclusive: Height,
) -> Result<WorkerLease> {
    let request = ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "bench".into(),
        ttl_ms: 3_600_000,
        // A range is not cut at the limit.
        range_heights: limit_exclusive.get().max(1),
        first: Height(0),
        limit_exclusive,
        stop_exclusive: None,
        in_order: false,
    };
    store.claim(&request).await?.with_context(|| format!("no lease for {service}"))
}

/// An empty chunk from where the lease is to `to`.
pub fn chunk(lease: &WorkerLease, to: u64, finalized: u64) -> ChunkCommit {
    let start = lease.done_to;
    ChunkCommit {
        chunk: HeightRange::new(start, Height(to)),
        parent_id: Some(start.prev().map_or(BlockId::default(), |height| id(height.get()))),
        last_id: Some(id(to - 1)),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: Vec::new(),
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(finalized),
        ttl_ms: 3_600_000,
    }
}

/// The same transfers made by the server, and as many holdings of another token, with all indexes on: quicker than commits.
pub async fn fill_postgres(store: &PgDerived, pool: &PgPool, rows: u64) -> Result<()> {
    let blocks = rows / PER_BLOCK;
    store.ensure_partitions(HeightRange::new(Height(0), Height(blocks + 2_000))).await?;
    let conn = pool.get().await?;
    let address = |n: &str| format!("substr(sha256(int8send({n}::bigint)), 1, 20)");
    let hex =
        token().as_bytes().map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    conn.batch(&format!(
        "INSERT INTO app.transfers SELECT n / {PER_BLOCK}, n % {PER_BLOCK}, 0, sha256(int8send(n)),
             '\\x{token}'::bytea, {from}, {to}, n::numeric * 1000000000000, 1700000000000
           FROM generate_series(0, {rows}::bigint - 1) AS g(n);
         INSERT INTO app.holdings SELECT '\\x02'::bytea, {holder}, n, 0, n / {PER_BLOCK}
           FROM generate_series(0, {rows}::bigint - 1) AS g(n)",
        token = hex.unwrap_or_default(),
        from = address("(n % 900001)"),
        to = address("(n % 700001)"),
        holder = address("n"),
    ))
    .await?;
    conn.batch("VACUUM (ANALYZE)").await?;
    Ok(())
}
