//! The suite's tables, and the pure functions that fill them: what a mapper, a folder and an enricher make of a chain.

use std::collections::BTreeMap;

use cairn_core::{BlockRef, Height};

use crate::derived::lease::WorkerLease;
use crate::derived::row::{Change, Key, Row};
use crate::derived::table::{
    ASKED_AT_HEIGHT, BLOCK_HEIGHT, Catalog, Column, IndexDef, LAST_HEIGHT, Merge, Table, TableClass,
    TableDef, column,
};
use crate::derived::value::{ColumnType, U256, Value};
use crate::derived::writer::{StateRow, StateRows, TableRows};
use crate::{Result, suite::check::Failure};

/// The service that writes event rows.
pub(super) const MAPPER: &str = "mapper";
/// The service that folds them.
pub(super) const FOLDER: &str = "folder";
/// The service that asks a node.
pub(super) const ASKER: &str = "asker";

const MOVE_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("tx_index", ColumnType::Int),
    column("event_index", ColumnType::Int),
    column("sender", ColumnType::Bytes),
    column("receiver", ColumnType::Bytes).nullable(),
    column("amount", ColumnType::Amount),
    column("delta", ColumnType::Sum),
    column("memo", ColumnType::Text).nullable(),
    column("ok", ColumnType::Bool),
];

/// Event rows with every type of column.
pub(super) static MOVES: TableDef = TableDef {
    name: "moves",
    service: MAPPER,
    class: TableClass::Events { partition_heights: 64 },
    columns: MOVE_COLUMNS,
    key: &[BLOCK_HEIGHT, "tx_index", "event_index"],
    indexes: &[
        IndexDef { name: "by_sender", columns: &["sender", BLOCK_HEIGHT] },
        IndexDef { name: "by_receiver", columns: &["receiver", "amount"] },
        IndexDef { name: "by_delta", columns: &["ok", "delta"] },
    ],
};

const NOTE_COLUMNS: &[Column] = &[
    column(BLOCK_HEIGHT, ColumnType::Int),
    column("name", ColumnType::Text),
    column("weight", ColumnType::Int),
];

/// Event rows whose key holds text.
pub(super) static NOTES: TableDef = TableDef {
    name: "notes",
    service: MAPPER,
    class: TableClass::Events { partition_heights: 10 },
    columns: NOTE_COLUMNS,
    key: &[BLOCK_HEIGHT, "name"],
    indexes: &[
        IndexDef { name: "by_name", columns: &["name"] },
        IndexDef { name: "by_weight", columns: &["weight"] },
    ],
};

const HOLDING_COLUMNS: &[Column] = &[
    column("token", ColumnType::Int),
    column("address", ColumnType::Bytes),
    column("balance", ColumnType::Sum).merged(Merge::Sum),
    column("moves", ColumnType::Int).merged(Merge::Sum),
    column("first_height", ColumnType::Int).merged(Merge::First),
    column("memo", ColumnType::Text).nullable().merged(Merge::Last),
    column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
];

/// State by key.
pub(super) static HOLDINGS: TableDef = TableDef {
    name: "holdings",
    service: FOLDER,
    class: TableClass::State,
    columns: HOLDING_COLUMNS,
    key: &["token", "address"],
    indexes: &[
        IndexDef { name: "by_balance", columns: &["token", "balance"] },
        IndexDef { name: "by_address", columns: &["address"] },
    ],
};

const TOTAL_COLUMNS: &[Column] = &[
    column("day", ColumnType::Int),
    column("moves", ColumnType::Int).merged(Merge::Sum),
    column("volume", ColumnType::Sum).merged(Merge::Sum),
    column(LAST_HEIGHT, ColumnType::Int).merged(Merge::Last),
];

/// A second table of the same folder.
pub(super) static TOTALS: TableDef = TableDef {
    name: "totals",
    service: FOLDER,
    class: TableClass::State,
    columns: TOTAL_COLUMNS,
    key: &["day"],
    indexes: &[IndexDef { name: "by_moves", columns: &["moves"] }],
};

const NAME_COLUMNS: &[Column] = &[
    column("address", ColumnType::Bytes),
    column("name", ColumnType::Text).nullable(),
    column(ASKED_AT_HEIGHT, ColumnType::Int),
];

/// What a node answered.
pub(super) static NAMES: TableDef = TableDef {
    name: "names",
    service: ASKER,
    class: TableClass::Answers,
    columns: NAME_COLUMNS,
    key: &["address"],
    indexes: &[IndexDef { name: "by_asked", columns: &[ASKED_AT_HEIGHT] }],
};

const CODE_COLUMNS: &[Column] =
    &[column("hash", ColumnType::Bytes), column("code", ColumnType::Bytes).nullable()];

/// Content.
pub(super) static CODES: TableDef = TableDef {
    name: "codes",
    service: ASKER,
    class: TableClass::Content,
    columns: CODE_COLUMNS,
    key: &["hash"],
    indexes: &[],
};

/// The tables of the suite, for places to be made with.
pub fn catalog() -> Result<Catalog> {
    Catalog::new([&MOVES, &NOTES, &HOLDINGS, &TOTALS, &NAMES, &CODES])
}

/// The addresses that things move between.
pub(super) fn address(n: u64) -> Value {
    Value::bytes(&[0xa0 + (n % 5) as u8; 20])
}

/// Numbers that depend on a block's id alone.
fn number(block: &BlockRef, salt: u64) -> u64 {
    let mut x = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for part in block.id.0.chunks(8) {
        for byte in part {
            x = (x ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        x ^= x >> 29;
    }
    x ^ (x >> 32)
}

/// The row of one move.
pub(super) fn move_row(height: u64, tx: i64, event: i64, from: u64, to: Option<u64>, amount: U256) -> Row {
    let delta = if event % 2 == 0 { Value::sum(amount) } else { Value::minus(amount) };
    let memo = match (height + event as u64) % 4 {
        0 => Value::Null,
        1 => Value::text(""),
        2 => Value::text("é"),
        _ => Value::text("zz"),
    };
    Row(vec![
        Value::height(Height(height)),
        Value::Int(tx),
        Value::Int(event),
        address(from),
        to.map_or(Value::Null, address),
        Value::Amount(amount),
        delta,
        memo,
        Value::Bool(event % 2 == 0),
    ])
}

/// The row of one note.
pub(super) fn note_row(height: u64, name: &str, weight: i64) -> Row {
    Row(vec![Value::height(Height(height)), Value::text(name), Value::Int(weight)])
}

/// What the mapper makes of blocks.
pub(super) fn map(blocks: &[BlockRef]) -> Vec<TableRows> {
    let (mut moves, mut notes) = (Vec::new(), Vec::new());
    for block in blocks {
        let height = block.height.get();
        for event in 0..number(block, 1) % 4 {
            let n = number(block, 10 + event);
            let amount = if n.is_multiple_of(11) { U256::MAX } else { U256::from(n % 1_000) };
            let to = (!n.is_multiple_of(7)).then_some(n >> 8);
            moves.push(move_row(height, (event / 2) as i64, event as i64, n >> 16, to, amount));
        }
        for n in 0..number(block, 2) % 3 {
            let name = ["a", "é", "Z", "a b"][(number(block, 20 + n) % 4) as usize];
            // One name a block, since it is part of the key.
            notes.push(note_row(height, &format!("{name}{n}"), number(block, 30) as i64 % 5));
        }
    }
    // Rows come in any order: the store writes them by key.
    moves.reverse();
    vec![TableRows { table: NOTES.name, rows: notes }, TableRows { table: MOVES.name, rows: moves }]
}

/// What the enricher makes of blocks, asked at the height of each.
pub(super) fn ask(blocks: &[BlockRef]) -> Vec<TableRows> {
    let names = blocks.iter().map(|block| {
        let name = format!("name {}", number(block, 3) % 100);
        Row(vec![address(number(block, 4)), Value::text(name), Value::height(block.height)])
    });
    let codes = blocks.iter().map(|block| {
        let hash = number(block, 5) % 8;
        Row(vec![Value::bytes(&hash.to_be_bytes()), Value::bytes(&vec![hash as u8; hash as usize])])
    });
    vec![
        TableRows { table: NAMES.name, rows: names.collect() },
        TableRows { table: CODES.name, rows: codes.collect() },
    ]
}

/// The changes that one move makes, by table.
fn changes(row: &Row) -> Vec<(&'static TableDef, Change)> {
    let [height, tx, sender, receiver, memo] = [0, 1, 3, 4, 7].map(|at: usize| row.0[at].clone());
    let amount = row.0[5].as_amount().unwrap_or_default();
    let token = Value::Int(tx.as_int().unwrap_or_default() % 2);
    let holding = |address: Value, change: Value, memo: Option<Value>| {
        let fields = [
            Some(token.clone()),
            Some(address),
            Some(change),
            Some(Value::Int(1)),
            Some(height.clone()),
            memo,
            None,
        ];
        (&HOLDINGS, Change(fields.to_vec()))
    };
    let mut changes = vec![holding(sender, Value::minus(amount), None)];
    if !receiver.is_null() {
        changes.push(holding(receiver, Value::sum(amount), Some(memo)));
    }
    let day = Value::Int(height.as_int().unwrap_or_default() / 4);
    let total = [Some(day), Some(Value::Int(1)), Some(Value::sum(amount)), None];
    changes.push((&TOTALS, Change(total.to_vec())));
    changes
}

/// A row while it is folded.
#[derive(Debug, Default)]
struct Folded {
    row: Option<Row>,
    undo: Vec<(Height, Option<Row>)>,
}

/// Folds moves, in chain order, over the rows that are there; `read` finds those.
pub(super) async fn fold<F>(
    lease: &WorkerLease,
    moves: &[Row],
    finalized: Height,
    read: impl Fn(&'static str, Key) -> F,
) -> Result<Vec<StateRows>, Failure>
where
    F: Future<Output = Result<Option<Row>>>,
{
    let mut folded: BTreeMap<(&'static str, Key), Folded> = BTreeMap::new();
    let tables = [Table::new(&HOLDINGS)?, Table::new(&TOTALS)?];
    for row in moves {
        let height = row.0[0].as_height().unwrap_or_default();
        for (def, change) in changes(row) {
            let Some(table) = tables.iter().find(|table| table.name() == def.name) else { continue };
            let key = change.key(table)?;
            let place = (def.name, key.clone());
            if !folded.contains_key(&place) {
                let row = read(def.name, key).await?;
                folded.insert(place.clone(), Folded { row, undo: Vec::new() });
            }
            let Some(entry) = folded.get_mut(&place) else { continue };
            if height > finalized && entry.undo.last().is_none_or(|(at, _)| *at < height) {
                entry.undo.push((height, entry.row.clone()));
            }
            entry.row = Some(change.apply(table, entry.row.as_ref(), height)?);
        }
    }
    let mut states = vec![
        StateRows { table: TOTALS.name, rows: Vec::new() },
        StateRows { table: HOLDINGS.name, rows: Vec::new() },
    ];
    for ((name, _), entry) in folded {
        let (Some(row), Some(rows)) = (entry.row, states.iter_mut().find(|part| part.table == name)) else {
            return Err(Failure::new(format!("nothing was folded for {} of {}", name, lease.service)));
        };
        rows.rows.push(StateRow { row, undo: entry.undo });
    }
    Ok(states)
}
