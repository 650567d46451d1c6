//! The encoding is persisted: golden bytes. Everything else against a model, a plain ordered set.

use std::collections::BTreeSet;

use cairn_core::{Height, HeightRange};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::*;

fn run(kind: RunKind, heights: HeightRange, entries: &BTreeSet<(u64, u64, u32)>) -> BuiltRun {
    let mut builder = RunBuilder::new(kind, heights);
    // Backwards, to see that the builder sorts.
    for (key, height, index) in entries.iter().rev() {
        builder.push(*key, Height(*height), *index).expect("in range");
    }
    builder.finish().expect("encodes")
}

fn entries_of(kind: RunKind, pages: &Vec<StoredPage>) -> Vec<(u64, u64, u32)> {
    let everything = heights(0, MAX_HEIGHT + 1);
    let mut cursor = RunCursor::new(kind, everything, pages, None);
    let mut found = Vec::new();
    while let Some(entry) = cursor.next_entry().expect("valid pages") {
        found.push((entry.key, kind.height_of(entry.position).get(), kind.tx_index_of(entry.position)));
    }
    found
}

fn heights(start: u64, end: u64) -> HeightRange {
    HeightRange::new(Height(start), Height(end))
}

#[test]
fn golden_pages() {
    let terms = BTreeSet::from([
        (0x0102_0304_0506_0708, 1_000, 0),
        (0x0102_0304_0506_0708, 1_001, 0),
        (0x0102_0304_0506_0708, 1_300, 0),
        (0xf102_0304_0506_0708, 1_299, 0),
    ]);
    let built = run(RunKind::LogTerm, heights(1_000, 1_301), &terms);
    assert_eq!(built.pages.len(), 1);
    assert_eq!(hex::encode(built.pages[0].place), "010203040506070800000000000003e8");
    assert_eq!(hex::encode(&built.pages[0].data), GOLDEN_TERMS);

    let txs = BTreeSet::from([
        (0, 1_000, 0),
        (5, 1_000, 3),
        (5, 1_000, 200),
        (5, 1_002, 1),
        (u64::MAX, MAX_HEIGHT, MAX_TXS_PER_BLOCK - 1),
    ]);
    let built = run(RunKind::TxId, heights(1_000, MAX_HEIGHT + 1), &txs);
    assert_eq!(hex::encode(&built.pages[0].data), GOLDEN_TXS);
    assert_eq!(entries_of(RunKind::TxId, &built.pages), Vec::from_iter(txs));

    // With restarts: within a group and between groups.
    let many = (0..900).map(|n| (7 + n / 600 * 3 + n / 700 * n, 10 + n, 0)).collect();
    let built = run(RunKind::LogTerm, heights(10, 910), &many);
    assert_eq!(built.pages.len(), 1);
    let end = built.pages[0].data.len();
    assert_eq!(hex::encode(&built.pages[0].data[end - 36..]), GOLDEN_RESTARTS);
    assert_eq!(hex::encode(Sha256::digest(&built.pages[0].data)), GOLDEN_RESTARTS_PAGE);
}

const GOLDEN_TERMS: &str = "0103c9b6ee140000000400000000000003e8010203040506070800000000000003e8f10203040506070800000000000005130000000101d4048080808080808080f001d604";
const GOLDEN_TXS: &str = "0102a5076e300000000500000000000003e80000000000000000000000003e800000ffffffffffffffff7fffffffffffffff000000000005010301c8010401faffffffffffffffff01aef0ffffffff03ffff3f";
const GOLDEN_RESTARTS: &str = "000000000000000700000000000002088234000000000000033000000000000003300435";
const GOLDEN_RESTARTS_PAGE: &str = "055d8553c30bbef7551a02badd5178579e8ea78dfb43d8b64f3c9b66ca0e562d";

#[test]
fn a_run_without_entries_has_no_pages() {
    let built = run(RunKind::LogTerm, heights(5, 6), &BTreeSet::new());
    assert!(built.pages.is_empty() && built.entries == 0);
    assert_eq!(entries_of(RunKind::LogTerm, &built.pages), []);
    let lookup = Lookup::new(RunKind::LogTerm, &built.pages);
    assert_eq!(lookup.positions(1, 0, 9, 9).expect("valid"), [0_u64; 0]);
}

#[test]
fn entries_outside_their_run_are_refused() {
    let mut builder = RunBuilder::new(RunKind::TxId, heights(5, 6));
    assert!(builder.push(1, Height(6), 0).is_err());
    assert!(builder.push(1, Height(4), 0).is_err());
    assert!(builder.push(1, Height(5), MAX_TXS_PER_BLOCK).is_err());
    let mut writer = PageWriter::new(RunKind::LogTerm, Height(5));
    assert!(writer.push(Entry { key: 3, position: 4 }).is_err());
    writer.push(Entry { key: 3, position: 7 }).expect("first");
    assert!(writer.push(Entry { key: 3, position: 7 }).is_err());
    assert!(writer.push(Entry { key: 2, position: 8 }).is_err());
}

#[test]
fn a_common_term_spans_pages_and_a_reader_seeks_into_them() {
    // One term in every block between a rare one on each side.
    let mut entries: BTreeSet<_> = (0..100_000).map(|height| (7, height, 0)).collect();
    entries.insert((6, 50_000, 0));
    entries.insert((8, 99_999, 0));
    let built = run(RunKind::LogTerm, heights(0, 100_000), &entries);
    assert!(built.pages.len() > 10);
    assert!(built.pages.iter().all(|page| page.data.len() <= PAGE_MAX_BYTES));

    let counted = Counted { pages: built.pages.clone(), reads: 0.into() };
    let lookup = Lookup::new(RunKind::LogTerm, &counted);
    assert_eq!(lookup.positions(7, 77_777, 77_779, 9).expect("valid"), [77_777, 77_778, 77_779]);
    assert!(counted.reads.get() <= 2, "{} pages were read", counted.reads.get());

    counted.reads.set(0);
    let rare_and_common = candidates(&counted, &[vec![7], vec![6]], heights(0, 100_000), 10).expect("valid");
    assert_eq!(rare_and_common, [Height(50_000)]);
    assert!(counted.reads.get() <= 6, "{} pages were read", counted.reads.get());

    counted.reads.set(0);
    assert!(candidates(&counted, &[vec![7], vec![5]], heights(0, 100_000), 10).expect("valid").is_empty());
    assert!(counted.reads.get() <= 4, "{} pages were read", counted.reads.get());
}

struct Counted {
    pages: Vec<StoredPage>,
    reads: std::cell::Cell<usize>,
}

impl PageSource for Counted {
    fn at_or_before(&self, place: Place) -> crate::Result<Option<StoredPage>> {
        self.reads.set(self.reads.get() + 1);
        self.pages.at_or_before(place)
    }

    fn after(&self, place: Place) -> crate::Result<Option<StoredPage>> {
        self.reads.set(self.reads.get() + 1);
        self.pages.after(place)
    }
}

#[test]
fn g09_a_thousand_terms_in_one_group_share_page_reads() {
    let entries: BTreeSet<_> = (0..1_000).map(|key| (key * 3, 10 + key % 7, 0)).collect();
    let built = run(RunKind::LogTerm, heights(0, 100), &entries);
    let pages = built.pages.len();
    let counted = Counted { pages: built.pages, reads: 0.into() };
    // With repeats, and half of them absent.
    let group: Vec<u64> = (0..1_500).rev().chain(0..1_500).collect();
    let found = candidates(&counted, &[group], heights(0, 100), 100).expect("valid");
    assert_eq!(found, (10..17).map(Height).collect::<Vec<_>>());
    assert!(counted.reads.get() < 600, "{} reads of {pages} pages", counted.reads.get());
}

#[test]
fn g07_every_range_over_odd_heights_equals_a_scan() {
    let points = [9, 10, 99, 100, 255, 256, 2_519, 65_535, 65_536, 1 << 32];
    let entries: BTreeSet<_> = points.iter().map(|height| (0xabcd, *height, 0)).collect();
    let built = run(RunKind::LogTerm, heights(0, (1 << 32) + 1), &entries);
    let find = |range| candidates(&built.pages, &[vec![0xabcd]], range, 100).expect("valid");
    for a in points {
        for b in points.into_iter().filter(|b| *b >= a) {
            let scan: Vec<Height> =
                points.iter().filter(|at| (a..=b).contains(*at)).map(|at| Height(*at)).collect();
            assert_eq!(find(heights(a, b + 1)), scan, "[{a}, {b}]");
            let middle = (a + b) / 2;
            let halves = [find(heights(a, middle + 1)), find(heights(middle + 1, b + 1))].concat();
            assert_eq!(halves, scan, "[{a}, {b}] in two");
        }
    }
}

fn kinds() -> impl Strategy<Value = RunKind> {
    prop_oneof![Just(RunKind::BlockId), Just(RunKind::TxId), Just(RunKind::LogTerm)]
}

/// Few keys and some far apart; heights from 100 to 3099; the index is 0 where the kind has none.
fn entries(kind: RunKind) -> impl Strategy<Value = BTreeSet<(u64, u64, u32)>> {
    let keys = prop_oneof![0_u64..5, any::<u64>(), Just(u64::MAX)];
    let indexes = if kind == RunKind::TxId { 0..40_u32 } else { 0..1 };
    btree_set((keys, 100_u64..3_100, indexes), 0..4_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn runs_read_back_what_was_put_in((kind, entries) in kinds().prop_flat_map(|kind| (Just(kind), entries(kind)))) {
        let built = run(kind, heights(100, 3_100), &entries);
        prop_assert_eq!(built.entries, entries.len() as u64);
        prop_assert!(built.pages.iter().all(|page| page.data.len() <= PAGE_MAX_BYTES));
        prop_assert_eq!(entries_of(kind, &built.pages), Vec::from_iter(entries));
    }

    #[test]
    fn lookups_equal_a_scan(
        (kind, entries) in kinds().prop_flat_map(|kind| (Just(kind), entries(kind))),
        from in 90_u64..3_110, len in 0_u64..3_000, limit in 0_usize..200,
    ) {
        let built = run(kind, heights(100, 3_100), &entries);
        let lookup = Lookup::new(kind, &built.pages);
        let keys: BTreeSet<u64> = entries.iter().map(|entry| entry.0).chain([2, 77]).collect();
        for key in keys.into_iter().take(50) {
            let (low, high) = (kind.first_position(Height(from)), kind.first_position(Height(from + len)));
            let scan: Vec<u64> = entries
                .iter()
                .filter(|entry| entry.0 == key)
                .map(|entry| kind.position(Height(entry.1), entry.2).expect("in range"))
                .filter(|position| (low..=high).contains(position))
                .take(limit)
                .collect();
            prop_assert_eq!(lookup.positions(key, low, high, limit).expect("valid"), scan);
        }
    }

    #[test]
    fn candidates_equal_a_scan(
        entries in btree_set((0_u64..12, 100_u64..3_100, 0..1_u32), 0..8_000),
        groups in vec(vec(0_u64..14, 0..4), 1..4),
        from in 90_u64..3_110, len in 0_u64..3_000, limit in 0_usize..2_000,
    ) {
        let built = run(RunKind::LogTerm, heights(100, 3_100), &entries);
        let scan: Vec<Height> = (from..from + len)
            .filter(|at| groups.iter().all(|terms| terms.iter().any(|term| entries.contains(&(*term, *at, 0)))))
            .map(Height)
            .take(limit)
            .collect();
        prop_assert_eq!(candidates(&built.pages, &groups, heights(from, from + len), limit).expect("valid"), scan);
    }

    #[test]
    fn merging_in_steps_equals_one_build(
        (kind, entries) in kinds().prop_flat_map(|kind| (Just(kind), entries(kind))),
        cuts in btree_set(101_u64..3_099, 1..10),
        step_bytes in 1_u64..40_000, lost in 0_u64..50,
    ) {
        let ends: Vec<u64> = [100].into_iter().chain(cuts).chain([3_100]).collect();
        let parts: Vec<BuiltRun> = ends
            .windows(2)
            .map(|ends| {
                let part = entries.iter().copied().filter(|entry| (ends[0]..ends[1]).contains(&entry.1)).collect();
                run(kind, heights(ends[0], ends[1]), &part)
            })
            .collect();
        // The last run is cut: its end is lowered, its entries stay.
        let end = (3_100 - lost).max(ends[ends.len() - 2] + 1);
        let kept = entries.into_iter().filter(|entry| entry.1 < end).collect();
        let whole = run(kind, heights(100, end), &kept);
        let inputs: Vec<(HeightRange, &dyn PageSource)> = parts
            .iter()
            .map(|part| (part.heights.intersect(heights(100, end)), &part.pages as &dyn PageSource))
            .collect();
        let (mut pages, mut count, mut after) = (Vec::new(), 0, None);
        loop {
            let step = merge_step(kind, Height(100), &inputs, after, step_bytes).expect("valid");
            prop_assert!(step.finished || !step.pages.is_empty());
            count += step.entries;
            pages.extend(step.pages);
            if step.finished {
                break;
            }
            let last: StoredPage = pages.last().cloned().expect("a page");
            after = Some(Page::open(kind, last).expect("valid").last);
        }
        prop_assert_eq!(count, whole.entries);
        prop_assert_eq!(pages, whole.pages);
    }

    /// Whatever bytes stand there: an error or the very entries, never a panic.
    #[test]
    fn damaged_pages_are_found(
        (kind, entries) in kinds().prop_flat_map(|kind| (Just(kind), entries(kind))),
        at in any::<prop::sample::Index>(), flip in 1_u8.., cut in any::<bool>(), resum in any::<bool>(),
    ) {
        prop_assume!(!entries.is_empty());
        let built = run(kind, heights(100, 3_100), &entries);
        let page = built.pages[0].clone();
        let mut data = page.data.to_vec();
        let at = at.index(data.len());
        if cut { data.truncate(at) } else { data[at] ^= flip }
        if resum && data.len() >= 52 {
            let mut sum = crc32fast::Hasher::new();
            sum.update(&data[..2]);
            sum.update(&data[6..]);
            data[2..6].copy_from_slice(&sum.finalize().to_be_bytes());
        }
        let read = Page::open(kind, StoredPage { place: page.place, data: data.into() }).and_then(|page| {
            let mut reader = page.reader();
            while reader.next_entry()?.is_some() {}
            Ok(())
        });
        if !resum {
            let is_corrupt = matches!(read, Err(crate::StoreError::Corrupt { .. }));
            prop_assert!(is_corrupt);
        } else if let Err(error) = read {
            let is_corrupt = matches!(error, crate::StoreError::Corrupt { .. });
            prop_assert!(is_corrupt, "{}", error);
        }
    }

    #[test]
    fn strangers_bytes_never_panic(kind in kinds(), place in any::<[u8; 16]>(), mut data in vec(any::<u8>(), 0..200)) {
        if data.len() >= 52 {
            data[0] = page::PAGE_VERSION;
            data[1] = kind as u8;
            data[18..34].copy_from_slice(&place);
            let mut sum = crc32fast::Hasher::new();
            sum.update(&data[..2]);
            sum.update(&data[6..]);
            data[2..6].copy_from_slice(&sum.finalize().to_be_bytes());
        }
        if let Ok(page) = Page::open(kind, StoredPage { place, data: data.into() }) {
            let mut reader = page.reader();
            while let Ok(Some(_)) = reader.next_entry() {}
        }
    }
}
