//! The tables as they are stored: a change of one is seen here first.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use cairn_explorer::processors::{EVM, FLOW, Registration, evm_catalog, flow_catalog};
use cairn_store::derived::{Catalog, ColumnType, Merge, Table, TableClass};

/// The tables of every chain.
fn catalogs() -> [Catalog; 2] {
    [evm_catalog().unwrap(), flow_catalog().unwrap()]
}

/// Tables as text: what backends make their SQL from.
fn printed<'t>(tables: impl IntoIterator<Item = &'t Arc<Table>>) -> String {
    let mut out = String::new();
    for table in tables {
        let def = table.def();
        writeln!(out, "table {} by {} as {:?}", def.name, def.service, def.class).unwrap();
        for column in def.columns {
            let null = if column.nullable { " null" } else { "" };
            let merge = match column.merge {
                Merge::Keep => String::new(),
                merge => format!(" merged {merge:?}"),
            };
            writeln!(out, "  {} {:?}{null}{merge}", column.name, column.ty).unwrap();
        }
        let names =
            |columns: &[usize]| columns.iter().map(|at| def.columns[*at].name).collect::<Vec<_>>().join(", ");
        writeln!(out, "  key ({})", names(table.key_columns())).unwrap();
        for index in def.indexes {
            writeln!(
                out,
                "  index {} ({})",
                index.name,
                names(table.index_columns(Some(index.name)).unwrap())
            )
            .unwrap();
        }
        out.push('\n');
    }
    out
}

#[test]
fn golden_tables() {
    let [evm, flow] = catalogs();
    hold("tables.txt", printed(evm.tables()));
    // What only Flow has.
    hold("flow_tables.txt", printed(flow.tables().iter().filter(|table| evm.table(table.name()).is_err())));
}

fn hold(name: &str, printed: String) {
    let path = Path::new("tests/golden").join(name);
    if std::env::var_os("CAIRN_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (at, (ours, golden)) in printed.lines().zip(golden.lines()).enumerate() {
        assert_eq!(ours, golden, "line {} of {}: a stored table changed", at + 1, path.display());
    }
    assert_eq!(
        printed, golden,
        "a stored table changed: migrate it, raise its service's version, and write the file anew with CAIRN_WRITE_GOLDEN=1"
    );
}

#[test]
fn chains_share_the_tables_of_one_name() {
    let [evm, flow] = catalogs();
    let shared = flow.tables().iter().filter_map(|table| Some((table, evm.table(table.name()).ok()?)));
    let shared: Vec<&str> = shared
        .map(|(table, other)| {
            assert!(std::ptr::eq(table.def(), other.def()), "{}", table.name());
            table.name()
        })
        .collect();
    assert_eq!(shared.len(), evm.tables().len(), "Flow has every table that EVM chains have");
}

#[test]
fn services_and_tables_name_each_other() {
    for registrations in [EVM, FLOW] {
        of_one_chain(registrations);
    }
}

fn of_one_chain(registrations: &[Registration]) {
    let names: BTreeSet<&str> = registrations.iter().map(|registration| registration.service.name).collect();
    assert_eq!(names.len(), registrations.len());
    for (at, registration) in registrations.iter().enumerate() {
        let service = registration.service;
        for table in service.tables {
            assert_eq!(table.service, service.name, "{}", table.name);
        }
        // Upstreams come first, so that the order of registration is an order of the graph.
        for upstream in service.upstreams {
            let place = registrations.iter().position(|registration| registration.service.name == *upstream);
            assert!(place.is_some_and(|place| place < at), "{} of {}", upstream, service.name);
        }
    }
}

#[test]
fn p06_there_is_no_narrow_integer_and_positions_are_whole() {
    for table in catalogs().iter().flat_map(|catalog| catalog.tables()) {
        let def = table.def();
        // `Int` has 64 bits in every backend; a list's index of an event table ends in its full position.
        let TableClass::Events { .. } = def.class else { continue };
        if def.name == "evm_block_parts" {
            // Of a block, of no one transaction.
            continue;
        }
        let has =
            |name: &str| def.columns.iter().any(|column| column.name == name && column.ty == ColumnType::Int);
        assert!(has("transaction_index") && has("block_timestamp_ms"), "{}", def.name);
        for index in def.indexes {
            let position = index.columns.iter().position(|column| *column == "block_height").unwrap();
            let rest = &index.columns[position + 1..];
            let expected: &[&str] = match def.name {
                "ft_transfers" | "nft_transfers" => &["transaction_index", "event_index", "sub_index"],
                "evm_logs" => &["log_index"],
                "account_key_events" | "coa_accounts" | "contract_versions" | "nft_resources" => {
                    &["transaction_index", "event_index"]
                }
                "smart_contracts" if index.name == "by_creator" => &["transaction_index", "address"],
                _ => &["transaction_index"],
            };
            assert_eq!(rest, expected, "{} {}", def.name, index.name);
        }
    }
}

#[test]
fn columns_that_order_a_list_are_never_null() {
    // A null column may only be asked for by equality: it comes before every column that orders.
    for table in catalogs().iter().flat_map(|catalog| catalog.tables()) {
        let def = table.def();
        for index in def.indexes {
            let columns = table.index_columns(Some(index.name)).unwrap();
            let nullable = columns.iter().rposition(|at| def.columns[*at].nullable);
            assert!(nullable.is_none_or(|at| at == 0), "{} {}", def.name, index.name);
        }
    }
}

/// The lists of the schema plan (§5.6): where these columns are given, rows come in order of height out of one index.
#[test]
fn the_lists_of_the_schema_plan_are_walks_of_an_index() {
    for catalog in catalogs() {
        for (table, given) in [
            ("ft_transfers", &["from_address"][..]),
            ("ft_transfers", &["to_address"]),
            ("ft_transfers", &["token_contract_address", "contract_name"]),
            ("nft_transfers", &["from_address"]),
            ("nft_transfers", &["to_address"]),
            ("nft_transfers", &["token_contract_address", "contract_name"]),
            ("address_transactions", &["address"]),
        ] {
            let table = catalog.table(table).unwrap();
            let columns = table.def().columns;
            let fits = table.def().indexes.iter().filter(|index| {
                let of = table.index_columns(Some(index.name)).unwrap().iter().map(|at| columns[*at].name);
                let wanted = given.iter().copied().chain(["block_height", "transaction_index"]);
                of.zip(wanted).all(|(have, want)| have == want)
            });
            assert_eq!(fits.count(), 1, "{} by {given:?}", table.name());
        }
    }
}
