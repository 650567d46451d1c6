//! Snapshots: point reads, scans along indexes, events, all of one moment and bounded by checkpoints.

use std::ops::Bound;
use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::{Raw, id};
use super::subject::{Subject, all};
use super::tables::{
    FOLDER, HOLDINGS, MAPPER, MOVES, NAMES, NOTES, TOTALS, address, catalog, map, move_row, note_row,
};
use super::{Case, CaseResult, DerivedFactory};
use crate::derived::lease::{ClaimRequest, LeaseFilter};
use crate::derived::reader::{DerivedSnapshot, Scan};
use crate::derived::row::{Key, Row};
use crate::derived::table::Table;
use crate::derived::value::{Sum, U256, Value};
use crate::derived::writer::{ChunkCommit, TableRows};
use crate::suite::blocks::Numbers;
use crate::suite::check::{holds, is_invalid, refused, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("reading":
        a01_pages_of_ties_leave_out_and_repeat_nothing,
        a_short_bound_speaks_of_all_that_begins_so,
        numbers_sort_by_value,
        text_sorts_byte_by_byte,
        nulls_are_asked_for_by_name,
        a_scan_examines_no_more_than_it_may,
        scans_find_what_a_plain_walk_finds,
        scans_that_make_no_sense_are_refused,
        points_are_read_in_the_order_asked,
        a04_nothing_above_the_checkpoint_is_seen,
        events_come_block_by_block,
        a_snapshot_stands_still,
        sizes_name_every_table,
    )
}

/// A store whose mapper has committed these rows on a chain of 64.
async fn with_rows(factory: &Arc<dyn DerivedFactory>, rows: Vec<TableRows>) -> CaseResult<Subject> {
    let subject = Subject::new(factory, Raw::with(64, 1)).await?;
    let request = ClaimRequest { range_heights: 64, ..subject.request(MAPPER) };
    let lease = subject.claim_as(&request).await?;
    let commit = ChunkCommit { rows, ..subject.chunk(&lease, 64).await? };
    subject.store.commit_chunk(&lease, commit).await?;
    Ok(subject)
}

fn moves(rows: &[Row]) -> Vec<TableRows> {
    vec![TableRows { table: MOVES.name, rows: rows.to_vec() }]
}

fn notes(rows: &[Row]) -> Vec<TableRows> {
    vec![TableRows { table: NOTES.name, rows: rows.to_vec() }]
}

/// Every page of a scan.
async fn pages(snapshot: &dyn DerivedSnapshot, scan: &Scan) -> CaseResult<Vec<Vec<Row>>> {
    let mut scan = scan.clone();
    let mut pages = Vec::new();
    loop {
        let page = snapshot.scan(&scan).await?;
        pages.push(page.rows);
        let Some(place) = page.more else { return Ok(pages) };
        if scan.descending {
            scan.upper = Bound::Excluded(place);
        } else {
            scan.lower = Bound::Excluded(place);
        }
        holds(pages.len() < 10_000, format!("there is no end of {scan:?}"))?;
    }
}

/// What a scan has to find, whatever its limits, by walking all rows.
fn found(table: &Table, rows: &[Row], scan: &Scan) -> CaseResult<Vec<Row>> {
    let columns = table.index_columns(scan.index)?;
    let place = |row: &Row| columns.iter().map(|&at| row.0[at].clone()).collect::<Vec<_>>();
    let mut found = Vec::new();
    for row in rows {
        let place = place(row);
        let (prefix, rest) = place.split_at(scan.prefix.len());
        let is_above = match &scan.lower {
            Bound::Unbounded => true,
            Bound::Included(bound) => rest[..bound.len()] >= bound[..],
            Bound::Excluded(bound) => rest[..bound.len()] > bound[..],
        };
        let is_below = match &scan.upper {
            Bound::Unbounded => true,
            Bound::Included(bound) => rest[..bound.len()] <= bound[..],
            Bound::Excluded(bound) => rest[..bound.len()] < bound[..],
        };
        let mut fits = true;
        for (name, value) in &scan.filters {
            fits &= row.0[table.column(name)?] == *value;
        }
        if prefix == scan.prefix && is_above && is_below && fits {
            found.push((place, row.clone()));
        }
    }
    found.sort();
    if scan.descending {
        found.reverse();
    }
    Ok(found.into_iter().map(|(_, row)| row).collect())
}

async fn a01_pages_of_ties_leave_out_and_repeat_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    // Seven rows of one weight in two blocks.
    let names = ["a", "b", "c", "d"];
    let mut rows: Vec<Row> = names.iter().map(|name| note_row(1, name, 5)).collect();
    rows.extend(names[..3].iter().map(|name| note_row(2, name, 5)));
    let others = [note_row(1, "x", 4), note_row(2, "x", 6)];
    let subject = with_rows(&factory, notes(&[&rows[..], &others[..]].concat())).await?;
    let snapshot = subject.snapshot().await?;
    let scan = Scan { index: Some("by_weight"), prefix: vec![Value::Int(5)], ..Scan::new(NOTES.name, 3) };
    for descending in [false, true] {
        if descending {
            rows.reverse();
        }
        let mut found = pages(&*snapshot, &Scan { descending, ..scan.clone() }).await?;
        found.retain(|page| !page.is_empty());
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        same("the pages", lengths, vec![3, 3, 1])?;
        same("the rows", found.concat(), rows.clone())?;
    }
    Ok(())
}

async fn a_short_bound_speaks_of_all_that_begins_so(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let rows: Vec<Row> =
        (0..40).map(|n| move_row(n / 4, (n % 4) as i64 / 2, n as i64 % 2, 1, None, U256::from(n))).collect();
    let subject = with_rows(&factory, moves(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    let one = |height| vec![Value::Int(height)];
    let two = |height, tx| vec![Value::Int(height), Value::Int(tx)];
    for (lower, upper, expected) in [
        (Bound::Excluded(one(3)), Bound::Unbounded, 16..40),
        (Bound::Included(one(3)), Bound::Unbounded, 12..40),
        (Bound::Unbounded, Bound::Excluded(one(3)), 0..12),
        (Bound::Unbounded, Bound::Included(one(3)), 0..16),
        (Bound::Included(one(3)), Bound::Included(one(3)), 12..16),
        (Bound::Excluded(one(3)), Bound::Excluded(one(4)), 16..16),
        (Bound::Excluded(two(3, 0)), Bound::Included(one(4)), 14..20),
        (Bound::Included(two(3, 1)), Bound::Excluded(two(5, 1)), 14..22),
        (Bound::Excluded(one(-1)), Bound::Included(one(i64::MAX)), 0..40),
        (Bound::Excluded(one(i64::MAX)), Bound::Unbounded, 40..40),
        (Bound::Included(one(7)), Bound::Included(one(2)), 0..0),
    ] {
        for (index, prefix) in [(None, Vec::new()), (Some("by_sender"), vec![address(1)])] {
            for descending in [false, true] {
                let scan = Scan {
                    index,
                    prefix: prefix.clone(),
                    lower: lower.clone(),
                    upper: upper.clone(),
                    descending,
                    ..Scan::new(MOVES.name, 3)
                };
                let mut expected = rows[expected.clone()].to_vec();
                if descending {
                    expected.reverse();
                }
                let found = pages(&*snapshot, &scan).await?.concat();
                same(&format!("{scan:?}"), found, expected)?;
            }
        }
    }
    Ok(())
}

async fn numbers_sort_by_value(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let most = Sum::from(U256::MAX);
    let sums = [
        -most + -most,
        -most,
        -Sum::from(U256::from(256)),
        -Sum::from(U256::from(255)),
        Sum::ZERO,
        Sum::from(U256::from(9)),
        Sum::from(U256::from(10)),
        most,
        most + most,
    ];
    let amounts = [0_u64, 9, 10, 255, 256, u64::MAX].map(U256::from);
    let amounts = [&amounts[..], &[U256::from(1) << 64, U256::from(1) << 255, U256::MAX]].concat();
    let rows: Vec<Row> = (0..9_usize)
        .map(|n| {
            // Not in their order by height.
            let mut row = move_row((n as u64 * 4) % 9, 0, 0, 1, Some(2), amounts[n]);
            row.0[6] = Value::Sum(Box::new(sums[n]));
            row
        })
        .collect();
    let subject = with_rows(&factory, moves(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    for (index, prefix) in [("by_receiver", address(2)), ("by_delta", Value::Bool(true))] {
        let scan = Scan { index: Some(index), prefix: vec![prefix], ..Scan::new(MOVES.name, 2) };
        same(index, pages(&*snapshot, &scan).await?.concat(), rows.clone())?;
        let backwards: Vec<Row> = rows.iter().rev().cloned().collect();
        let scan = Scan { descending: true, ..scan };
        same("backwards", pages(&*snapshot, &scan).await?.concat(), backwards)?;
    }
    let from = |lower: Value| Scan {
        index: Some("by_delta"),
        prefix: vec![Value::Bool(true)],
        lower: Bound::Excluded(vec![lower]),
        ..Scan::new(MOVES.name, 100)
    };
    let above = snapshot.scan(&from(Value::Sum(Box::new(sums[2])))).await?.rows;
    same("sums above -256", above, rows[3..].to_vec())?;
    let above = snapshot.scan(&from(Value::Sum(Box::new(most)))).await?.rows;
    same("sums above the largest amount", above, rows[8..].to_vec())?;
    let weights = [i64::MIN, -256, -2, -1, 0, 1, 255, 256, i64::MAX];
    let rows: Vec<Row> = (0..9).map(|n| note_row((n as u64 * 4) % 9, "n", weights[n])).collect();
    let subject = with_rows(&factory, notes(&rows)).await?;
    let scan = Scan { index: Some("by_weight"), ..Scan::new(NOTES.name, 4) };
    same("integers", pages(&*subject.snapshot().await?, &scan).await?.concat(), rows)
}

async fn text_sorts_byte_by_byte(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let names = [
        "",
        " ",
        "%",
        "A",
        "B",
        "Z",
        "_",
        "a",
        "a b",
        "aa",
        "ab",
        "b",
        "e\u{301}",
        "z",
        "é",
        "\u{fffd}",
        "\u{10ffff}",
    ];
    let rows: Vec<Row> =
        names.iter().enumerate().map(|(n, name)| note_row((n as u64 * 7) % 17, name, 1)).collect();
    let subject = with_rows(&factory, notes(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    let scan = Scan { index: Some("by_name"), ..Scan::new(NOTES.name, 3) };
    same("the names", pages(&*snapshot, &scan).await?.concat(), rows.clone())?;
    let between = Scan {
        lower: Bound::Excluded(vec![Value::text("a")]),
        upper: Bound::Excluded(vec![Value::text("é")]),
        ..scan.clone()
    };
    same("between two", pages(&*snapshot, &between).await?.concat(), rows[8..14].to_vec())?;
    let one = Scan { prefix: vec![Value::text("a")], ..scan };
    same("one name", pages(&*snapshot, &one).await?.concat(), rows[7..8].to_vec())
}

async fn nulls_are_asked_for_by_name(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let rows: Vec<Row> = (0..12_u64)
        .map(|n| {
            let to = (n % 3 > 0).then_some(n % 3);
            let mut row = move_row(n, 0, 0, 1, to, U256::from(100 - n));
            row.0[7] = if n % 4 == 0 { Value::Null } else { Value::text("") };
            row
        })
        .collect();
    let subject = with_rows(&factory, moves(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    let table = Table::new(&MOVES)?;
    for filters in [
        vec![("receiver", Value::Null)],
        vec![("receiver", address(1)), ("memo", Value::Null)],
        vec![("memo", Value::text(""))],
        vec![("memo", Value::text("x"))],
        vec![("ok", Value::Bool(true)), ("amount", Value::Amount(U256::from(97)))],
    ] {
        let scan = Scan { filters, ..Scan::new(MOVES.name, 2) };
        let expected = found(&table, &rows, &scan)?;
        same(&format!("{:?}", scan.filters), pages(&*snapshot, &scan).await?.concat(), expected)?;
    }
    let scan = Scan { index: Some("by_receiver"), prefix: vec![Value::Null], ..Scan::new(MOVES.name, 2) };
    let expected = found(&table, &rows, &scan)?;
    same("nobody's", expected.len(), 4)?;
    same("nobody's by an index", pages(&*snapshot, &scan).await?.concat(), expected)
}

async fn a_scan_examines_no_more_than_it_may(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let rows: Vec<Row> = (0..60).map(|n| note_row(n, "n", if n == 50 { 1 } else { 0 })).collect();
    let subject = with_rows(&factory, notes(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    let scan = Scan { filters: vec![("weight", Value::Int(1))], examine: 8, ..Scan::new(NOTES.name, 5) };
    for descending in [false, true] {
        let scan = Scan { descending, ..scan.clone() };
        let first = snapshot.scan(&scan).await?;
        let place = if descending { 52 } else { 7 };
        same("the first page's rows", first.rows, Vec::new())?;
        let expected = Some(vec![Value::Int(place), Value::text("n")]);
        same("where it stopped", first.more, expected)?;
        let found = pages(&*snapshot, &scan).await?;
        holds(found.len() >= 8, format!("{} pages examined 60 rows, 8 at a time", found.len()))?;
        same("what it found", found.concat(), rows[50..51].to_vec())?;
    }
    // The limit stops it as well, at the last row that it gives.
    let page = snapshot.scan(&Scan::new(NOTES.name, 5)).await?;
    same(
        "a page",
        (page.rows, page.more),
        (rows[..5].to_vec(), Some(vec![Value::Int(4), Value::text("n")])),
    )?;
    let page = snapshot.scan(&Scan::new(NOTES.name, 61)).await?;
    same("everything", (page.rows.len(), page.more), (60, None))
}

async fn scans_find_what_a_plain_walk_finds(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(60, 1)).await?;
    subject.index_all(20, 10).await?;
    subject.reopen().await?;
    let snapshot = subject.snapshot().await?;
    let mut numbers = Numbers::new(11);
    let catalog = catalog()?;
    for table in catalog.tables() {
        let rows = all(&*snapshot, table.name()).await?;
        holds(!rows.is_empty(), format!("{} is empty", table.name()))?;
        let sorted = found(table, &rows, &Scan::new(table.name(), 1))?;
        same("the order of the key", &rows, &sorted)?;
        let indexes: Vec<Option<&'static str>> =
            std::iter::once(None).chain(table.def().indexes.iter().map(|index| Some(index.name))).collect();
        for _ in 0..60 {
            let index = indexes[numbers.below(indexes.len() as u64) as usize];
            let columns = table.index_columns(index)?;
            let row = |numbers: &mut Numbers| &rows[numbers.below(rows.len() as u64) as usize];
            let some = |numbers: &mut Numbers, from: usize, count: usize| -> Vec<Value> {
                let row = row(numbers);
                columns[from..from + count].iter().map(|&at| row.0[at].clone()).collect()
            };
            // Columns that may be null are only asked for equality.
            let nullable = columns.iter().take_while(|&&at| table.def().columns[at].nullable).count();
            let least = nullable as u64;
            let prefix = (least + numbers.below(columns.len() as u64 - least)) as usize;
            let mut scan = Scan {
                index,
                prefix: some(&mut numbers, 0, prefix),
                descending: numbers.one_in(2),
                examine: 1 + numbers.below(40) as usize,
                ..Scan::new(table.name(), 1 + numbers.below(20) as usize)
            };
            let rest = (columns.len() - prefix) as u64;
            for end in 0..2 {
                let count = 1 + numbers.below(rest) as usize;
                let values = some(&mut numbers, prefix, count);
                let bound = match numbers.below(3) {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(values),
                    _ => Bound::Excluded(values),
                };
                if end == 0 {
                    scan.lower = bound;
                } else {
                    scan.upper = bound;
                }
            }
            if numbers.one_in(3) {
                let at = numbers.below(table.def().columns.len() as u64) as usize;
                scan.filters.push((table.def().columns[at].name, row(&mut numbers).0[at].clone()));
            }
            let pages = pages(&*snapshot, &scan).await?;
            holds(
                pages.iter().all(|page| page.len() <= scan.limit),
                format!("a page is longer than its limit: {scan:?}"),
            )?;
            same(&format!("{scan:?}"), pages.concat(), found(table, &rows, &scan)?)?;
        }
    }
    Ok(())
}

async fn scans_that_make_no_sense_are_refused(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(10, 1)).await?;
    subject.index_all(10, 10).await?;
    let snapshot = subject.snapshot().await?;
    let scan = Scan::new(NOTES.name, 5);
    let text = || vec![Value::text("x")];
    for (what, scan) in [
        ("no such table", Scan { table: "nothing", ..scan.clone() }),
        ("no such index", Scan { index: Some("by_nothing"), ..scan.clone() }),
        ("no such column", Scan { filters: vec![("nothing", Value::Null)], ..scan.clone() }),
        ("a filter of another type", Scan { filters: vec![("weight", Value::text("1"))], ..scan.clone() }),
        ("a prefix of another type", Scan { prefix: text(), ..scan.clone() }),
        ("a bound of another type", Scan { lower: Bound::Included(text()), ..scan.clone() }),
        ("an upper bound of another type", Scan { upper: Bound::Excluded(text()), ..scan.clone() }),
        ("too long a prefix", Scan { prefix: vec![Value::Null; 3], ..scan.clone() }),
    ] {
        refused(what, snapshot.scan(&scan).await, is_invalid)?;
    }
    let short = snapshot.rows(NOTES.name, &[Key(vec![Value::Int(1)])]).await;
    refused("half a key", short, is_invalid)?;
    refused("rows of no table", snapshot.rows("nothing", &[]).await, is_invalid)?;
    let events = snapshot.events(HOLDINGS.name, Height(0), Height(5), 100).await;
    refused("events of state", events, is_invalid)?;
    Ok(())
}

async fn points_are_read_in_the_order_asked(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let rows: Vec<Row> = (0..50).map(|n| note_row(n, "n", n as i64)).collect();
    let subject = with_rows(&factory, notes(&rows)).await?;
    let snapshot = subject.snapshot().await?;
    let key = |height: i64, name: &str| Key(vec![Value::Int(height), Value::text(name)]);
    let keys = [key(40, "n"), key(3, "n"), key(3, "x"), key(40, "n"), key(-1, "n"), key(0, "n")];
    let expected = [Some(40), Some(3), None, Some(40), None, Some(0)];
    let expected: Vec<Option<Row>> = expected.map(|at: Option<usize>| at.map(|at| rows[at].clone())).to_vec();
    same("the rows", snapshot.rows(NOTES.name, &keys).await?, expected)?;
    same("no keys", snapshot.rows(NOTES.name, &[]).await?, Vec::new())?;
    let many: Vec<Key> = (0..3_000).map(|n| key(n % 60, "n")).collect();
    let found = snapshot.rows(NOTES.name, &many).await?;
    let expected: Vec<Option<Row>> = (0..3_000_usize).map(|n| rows.get(n % 60).cloned()).collect();
    same("many keys", found, expected)
}

async fn a04_nothing_above_the_checkpoint_is_seen(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    let (one, two) = (subject.claim(MAPPER).await?, subject.claim(MAPPER).await?);
    subject.work(two, 100).await?;
    let one = subject.commit(&one, 6).await?.lease;
    // Heights 0 to 5 and 10 to 19 are stored; the list ends at 5.
    let expected = |to: u64| -> Vec<Row> {
        let blocks = subject.raw.blocks(HeightRange::new(Height(0), Height(to)));
        let mut rows = map(&blocks).pop().map(|part| part.rows).unwrap_or_default();
        rows.sort();
        rows
    };
    let snapshot = subject.snapshot().await?;
    let mut scan = Scan::new(MOVES.name, 100);
    let page = snapshot.scan(&scan).await?;
    same("the list", (page.rows, page.more), (expected(6), None))?;
    let by_sender = async |snapshot: &dyn DerivedSnapshot| -> CaseResult<usize> {
        let mut count = 0;
        for n in 0..5 {
            let scan =
                Scan { index: Some("by_sender"), prefix: vec![address(n)], ..Scan::new(MOVES.name, 100) };
            count += pages(snapshot, &scan).await?.concat().len();
        }
        Ok(count)
    };
    same("by sender", by_sender(&*snapshot).await?, expected(6).len())?;
    let upper: Vec<Row> = expected(20).into_iter().filter(|row| row.0[0] >= Value::Int(10)).collect();
    let keys: Vec<Key> = upper.iter().map(|row| Key(row.0[..3].to_vec())).collect();
    same("points above", snapshot.rows(MOVES.name, &keys).await?, vec![None; keys.len()])?;
    let (rows, end) = snapshot.events(MOVES.name, Height(0), Height(40), usize::MAX).await?;
    same("events", (rows, end), (expected(6), Height(6)))?;
    let backwards = Scan { descending: true, ..Scan::new(MOVES.name, 1) };
    same("the newest", snapshot.scan(&backwards).await?.rows.first(), expected(6).last())?;
    // The old cursor goes on when the hole is filled.
    let last = expected(6).last().map(|row| row.0[..3].to_vec());
    scan.lower = last.map_or(Bound::Unbounded, Bound::Excluded);
    subject.work(one, 100).await?;
    subject.store.repair_checkpoints().await?;
    let page = subject.snapshot().await?.scan(&scan).await?;
    let rest = expected(20)[expected(6).len()..].to_vec();
    same("the rest of the list", (page.rows, page.more), (rest, None))?;
    same(
        "points then",
        subject.snapshot().await?.rows(MOVES.name, &keys).await?,
        upper.into_iter().map(Some).collect(),
    )
}

async fn events_come_block_by_block(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    let snapshot = subject.snapshot().await?;
    let rows = all(&*snapshot, MOVES.name).await?;
    for max_bytes in [0, 1, 700, 5_000, usize::MAX] {
        let (mut at, mut found, mut calls) = (Height(0), Vec::new(), 0);
        while at < Height(40) {
            let (part, next) = snapshot.events(MOVES.name, at, Height(40), max_bytes).await?;
            holds(next > at, format!("it doesn't go on from {at} with {max_bytes} bytes"))?;
            let range = HeightRange::new(at, next);
            let is_inside = |row: &Row| row.0[0].as_height().is_some_and(|height| range.contains(height));
            holds(part.iter().all(is_inside), format!("a row outside of {range}"))?;
            let heights: std::collections::BTreeSet<_> = part.iter().map(|row| row.0[0].clone()).collect();
            holds(
                max_bytes > 1 || heights.len() <= 2,
                format!("{} blocks in {max_bytes} bytes", heights.len()),
            )?;
            found.extend(part);
            at = next;
            calls += 1;
        }
        same(&format!("the events by {max_bytes} bytes"), &found, &rows)?;
        holds(max_bytes > 1 || calls > 10, format!("{calls} calls for 40 blocks"))?;
        holds(max_bytes < usize::MAX || calls == 1, format!("{calls} calls for everything"))?;
    }
    let (part, next) = snapshot.events(MOVES.name, Height(7), Height(9), usize::MAX).await?;
    let expected: Vec<Row> =
        rows.iter().filter(|row| (7..9).contains(&row.0[0].as_int().unwrap_or(0))).cloned().collect();
    same("a part", (part, next), (expected, Height(9)))?;
    let (part, next) = snapshot.events(MOVES.name, Height(40), Height(50), usize::MAX).await?;
    same("above the checkpoint", (part.len(), next), (0, Height(40)))?;
    let (part, next) = snapshot.events(MOVES.name, Height(45), Height(50), usize::MAX).await?;
    same("far above the checkpoint", (part.len(), next), (0, Height(45)))?;
    let (part, next) = snapshot.events(MOVES.name, Height(9), Height(9), usize::MAX).await?;
    same("nothing", (part.len(), next), (0, Height(9)))
}

async fn a_snapshot_stands_still(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(20, 1)).await?;
    subject.index_all(10, 10).await?;
    let snapshot = subject.snapshot().await?;
    let filter = LeaseFilter { limit: 100, ..LeaseFilter::default() };
    let mut before = Vec::new();
    for table in [MOVES.name, NOTES.name, HOLDINGS.name, TOTALS.name, NAMES.name] {
        before.push((table, all(&*snapshot, table).await?));
    }
    let leases = snapshot.leases(&filter).await?;
    let (forks, checkpoints) = (*snapshot.forks(), snapshot.checkpoints().to_vec());
    subject.raw.grow(30, 1);
    subject.index_all(10, 10).await?;
    subject.switch(15, 35, 2, 3).await?;
    subject.index_all(10, 10).await?;
    for (table, rows) in before {
        same(table, all(&*snapshot, table).await?, rows)?;
    }
    same("the leases", snapshot.leases(&filter).await?, leases)?;
    same("the forks", (*snapshot.forks(), snapshot.checkpoints()), (forks, &checkpoints[..]))?;
    same("its checkpoint", snapshot.checkpoint(FOLDER).map(|one| one.last_id), Some(Some(id(19, 1))))?;
    drop(snapshot);
    subject.dumps_as_its_chain().await
}

async fn sizes_name_every_table(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(20, 1)).await?;
    subject.index_all(10, 10).await?;
    let sizes = subject.snapshot().await?.sizes().await?;
    for table in catalog()?.tables() {
        let found = sizes.iter().any(|(name, _, _)| name == table.name());
        holds(found, format!("{} is not among {sizes:?}", table.name()))?;
    }
    let all_rows: u64 = sizes.iter().map(|(_, rows, _)| *rows).sum();
    holds(all_rows < 1 << 40, format!("so many rows: {sizes:?}"))
}
