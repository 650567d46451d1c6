//! The processor that `docs/how-to/add-a-table.md` shows is one that compiles and works.

use cairn_explorer::processors::{EVM, Registration, Settings};
use cairn_store::derived::{Catalog, Value};

use crate::support;

#[path = "adding/failures.rs"]
mod failures;

use support::{Tx, block, map_by, tx_hash};

#[test]
fn the_processor_of_the_document_is_this_one() {
    let document = include_str!("../../../../docs/how-to/add-a-table.md");
    let shown = document.split("```rust\n").map(|part| part.split("```").next().unwrap());
    let file = include_str!("adding/failures.rs");
    assert!(
        shown.into_iter().any(|shown| shown == file),
        "docs/how-to/add-a-table.md shows another file than this test has"
    );
}

#[test]
fn one_file_and_one_line_make_a_table() {
    let ours = Registration { service: &failures::SERVICE, make: failures::make };
    let tables = EVM.iter().chain([&ours]).flat_map(|one| one.service.tables.iter().copied());
    let catalog = Catalog::new(tables).unwrap();
    let made = (ours.make)(&Settings::default()).unwrap();
    let failed = Tx { status: Some(false), ..Tx::default() };
    let block = block(9, 1_700_000_000, &[Tx::default(), failed.clone()]);
    let (rows, malformed) = map_by(&[made], &catalog, "failures_worker", &block);
    assert!(malformed.is_empty());
    let row = &rows["failed_transactions"][0].0;
    assert_eq!(rows["failed_transactions"].len(), 1);
    assert_eq!(row[1], Value::bytes(tx_hash(9, 1).as_slice()));
    assert_eq!(row[2], Value::Int(1));
    assert_eq!(row[4], Value::bytes(failed.from.as_slice()));
}
