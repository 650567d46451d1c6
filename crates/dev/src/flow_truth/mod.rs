//! Every derived table of a generated Flow chain against the chain's ledger, in both directions, read from the databases themselves; and against
//! what the node answers over gRPC.
//!
//! | subject | module |
//! | --- | --- |
//! | rows, and where they differ | `rows` |
//! | what stands in a database | `read` |
//! | transactions of the ledger at their places | `ledger` |
//! | the tables by subject | `tokens`, `items`, `accounts`, `contracts`, `transactions`, `parties`, `evm`, `answers`, `bases` |
//! | what EVM transactions log of tokens, for all of these | `evm_tokens` |
//! | accounts and scripts, asked of the node | `node`, `scripts` |
//! | that a row that is altered is seen | `altered` |
//!
//! The ledger is written by the generator as it acts. What it does not know, because events don't say it, is left to the tables in three places: into how
//! many rows a movement is cut, in which order tokens of before Cadence 1.0 were taken out of several resources, and at which block a node was asked.

mod accounts;
mod altered;
mod answers;
mod bases;
mod contracts;
mod evm;
mod evm_tokens;
mod items;
mod ledger;
pub mod node;
mod parties;
mod read;
pub mod rows;
pub mod scripts;
mod tokens;
mod transactions;

use anyhow::Result;
use cairn_explorer::tables::accounts::ADDRESS_TRANSACTIONS;
use cairn_explorer::tables::contracts::{CONTRACT_CODE, CONTRACT_CODE_HASHES, SMART_CONTRACTS};
use cairn_explorer::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use cairn_explorer::tables::flow::account_bases::{ACCOUNT_BASE_CONTRACTS, ACCOUNT_BASE_KEYS, ACCOUNT_BASES};
use cairn_explorer::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEY_EVENTS, ACCOUNT_KEYS, ACCOUNT_ROLES, COA_ACCOUNTS, FLOW_ACCOUNTS,
    UNPLACED_REVOCATIONS,
};
use cairn_explorer::tables::flow::contracts::{ACCOUNT_CONTRACTS, CONTRACT_VERSION_CODE, CONTRACT_VERSIONS};
use cairn_explorer::tables::flow::evm::{EVM_ABSENCES, EVM_BLOCKS, EVM_CHAIN, EVM_EXECUTIONS, EVM_GAPS};
use cairn_explorer::tables::flow::evm_splits::{EVM_BLOCK_PARTS, EVM_SPLITS};
use cairn_explorer::tables::flow::fees::FEE_TRANSFERS;
use cairn_explorer::tables::flow::nfts::{NFT_ASKS, NFT_RESOURCES};
use cairn_explorer::tables::flow::transactions::{FLOW_TX_METRICS, TX_TAGS};
use cairn_explorer::tables::holdings::{FT_HOLDINGS, TOKEN_STATS};
use cairn_explorer::tables::metadata::{
    NFT_COLLECTIONS, NFT_METADATA, NFT_URI_BYTES, SEARCH_INDEX, TOKEN_ANSWER_BYTES, TOKEN_CONTRACTS, TOKENS,
};
use cairn_explorer::tables::nfts::{NFT_COLLECTION_STATS, NFT_HOLDINGS, NFT_OWNERS, NFT_OWNERSHIP};
use cairn_explorer::tables::stats::{ADDRESS_STATS, DAILY_STATS};
use cairn_explorer::tables::transactions::{TX_CONTRACTS, TX_METRICS};
use cairn_explorer::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};
use cairn_store::derived::TableDef;

pub use altered::{alteration_is_seen, every_alteration_is_seen};
pub use ledger::{Generated, Names, Truth};
pub use node::{NodeTruth, ask, compare as compare_with_node, compare_answers};
pub use read::Database;
pub use rows::Tables;

use rows::Expected;

/// A table with what it has to hold.
pub struct Comparison {
    pub table: &'static TableDef,
    expect: fn(&Truth<'_>, &Tables) -> Result<Expected>,
}

const fn of(table: &'static TableDef, expect: fn(&Truth<'_>, &Tables) -> Result<Expected>) -> Comparison {
    Comparison { table, expect }
}

/// Every table of the catalog. One that takes something from another comes after it.
pub static COMPARISONS: &[Comparison] = &[
    of(&FT_TRANSFERS, tokens::transfers),
    of(&FEE_TRANSFERS, tokens::fees),
    of(&FT_HOLDINGS, tokens::holdings),
    of(&TOKEN_STATS, tokens::stats),
    of(&NFT_TRANSFERS, items::transfers),
    of(&NFT_RESOURCES, items::resources),
    of(&NFT_OWNERSHIP, items::ownership),
    of(&NFT_HOLDINGS, items::holdings),
    of(&NFT_OWNERS, items::owners),
    of(&NFT_COLLECTION_STATS, items::stats),
    of(&ACCOUNT_CREATIONS, accounts::creations),
    of(&ACCOUNT_KEY_EVENTS, accounts::key_events),
    of(&ACCOUNT_KEYS, accounts::keys),
    of(&UNPLACED_REVOCATIONS, accounts::unplaced),
    of(&FLOW_ACCOUNTS, accounts::states),
    of(&COA_ACCOUNTS, accounts::coas),
    of(&CONTRACT_VERSIONS, contracts::versions),
    of(&SMART_CONTRACTS, contracts::creations),
    of(&ACCOUNT_CONTRACTS, contracts::states),
    of(&TX_METRICS, transactions::metrics),
    of(&FLOW_TX_METRICS, transactions::flow_metrics),
    of(&TX_CONTRACTS, transactions::contracts),
    of(&TX_TAGS, transactions::tags),
    of(&ACCOUNT_ROLES, parties::roles),
    of(&ADDRESS_TRANSACTIONS, parties::addresses),
    of(&ADDRESS_STATS, parties::address_stats),
    of(&DAILY_STATS, parties::daily),
    of(&EVM_TRANSACTIONS, evm::transactions),
    of(&EVM_EXECUTIONS, evm::executions),
    of(&EVM_LOGS, evm::logs),
    of(&EVM_BLOCKS, evm::blocks),
    of(&EVM_CHAIN, evm::chain),
    of(&EVM_GAPS, evm::gaps),
    of(&EVM_ABSENCES, evm::absences),
    of(&EVM_BLOCK_PARTS, evm::block_parts),
    of(&EVM_SPLITS, evm::splits),
    of(&TOKEN_CONTRACTS, answers::asked),
    of(&TOKENS, answers::tokens),
    of(&NFT_COLLECTIONS, answers::collections),
    of(&SEARCH_INDEX, answers::words),
    of(&NFT_ASKS, answers::asks),
    of(&NFT_METADATA, answers::pictures),
    of(&TOKEN_ANSWER_BYTES, answers::altered_names),
    of(&NFT_URI_BYTES, answers::altered_pictures),
    of(&CONTRACT_VERSION_CODE, answers::versions),
    of(&CONTRACT_CODE_HASHES, answers::hashes),
    of(&CONTRACT_CODE, answers::codes),
    of(&ACCOUNT_BASES, bases::bases),
    of(&ACCOUNT_BASE_KEYS, bases::keys),
    of(&ACCOUNT_BASE_CONTRACTS, bases::contracts),
];

impl Comparison {
    /// How many rows were compared; fails with the first difference.
    pub fn compare(&self, truth: &Truth<'_>, found: &Tables) -> Result<usize> {
        (self.expect)(truth, found)?.same(found.rows(self.table)?)
    }
}

/// Every table of a database.
pub async fn read(database: &Database) -> Result<Tables> {
    database.read_all(COMPARISONS.iter().map(|one| one.table)).await
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use cairn_flow_node::{Behaviour, Generator, GeneratorOptions, Ledger};

    use super::rows::{Cell, Rows};
    use super::*;

    #[test]
    fn every_table_of_the_catalog_is_compared() {
        let catalog = cairn_explorer::processors::flow_catalog().expect("is whole");
        let there: BTreeSet<&str> = catalog.tables().iter().map(|table| table.name()).collect();
        let compared: BTreeSet<&str> = COMPARISONS.iter().map(|one| one.table.name).collect();
        assert_eq!(compared, there, "each table of Flow's catalog has a comparison with the ledger");
        assert_eq!(compared.len(), COMPARISONS.len(), "and one only");
    }

    const HEIGHT: u64 = 1_299;

    /// A chain of Cadence 1.0, in which events leave nothing open.
    fn ledger() -> Ledger {
        let options = GeneratorOptions {
            rlp_heights: 0,
            old_heights: 0,
            has_evm_tokens: true,
            has_elder: true,
            ..GeneratorOptions::new(11)
        };
        let generator = Generator::new(options, Behaviour::default());
        generator.grow(300);
        let state = generator.state();
        state.lock().expect("nobody panicked").ledger.clone()
    }

    /// Tables that are right, made of the ledger itself.
    fn tables(truth: &Truth<'_>) -> Tables {
        let empty = COMPARISONS.iter().map(|one| (one.table.name, Rows { def: one.table, rows: Vec::new() }));
        let mut tables = Tables(empty.collect::<BTreeMap<_, _>>());
        for Comparison { table, expect } in COMPARISONS {
            let mut rows = expect(truth, &tables).expect("is known").as_rows();
            if let Some(at) = table.columns.iter().position(|column| column.name == "asked_at_height") {
                // The rows that are wanted, all asked at the head: then it is known what they answer. An account is asked about below the block that names it first.
                if !table.name.starts_with(ACCOUNT_BASES.name.trim_end_matches('s')) {
                    rows.rows.iter_mut().for_each(|row| row[at] = Some(HEIGHT.to_string()));
                }
                tables.0.insert(table.name, rows);
                rows = expect(truth, &tables).expect("is known").as_rows();
            }
            tables.0.insert(table.name, rows);
        }
        tables
    }

    /// Something else of the same kind.
    fn other(cell: &Cell) -> Cell {
        match cell.as_deref() {
            None => Some("1".to_owned()),
            Some("true") => Some("false".to_owned()),
            Some("false") => Some("true".to_owned()),
            // What isn't the ledger's to say has to be there.
            Some("00") => None,
            Some(text) => Some(match text.parse::<u128>() {
                Ok(number) => (number + 1).to_string(),
                Err(_) => format!("{text}00"),
            }),
        }
    }

    #[test]
    fn a_row_that_is_missing_too_many_or_altered_in_any_column_is_seen() {
        let ledger = ledger();
        let truth = Truth {
            ledger: &ledger,
            root: 1_000,
            height: HEIGHT,
            new_from: 1_000,
            is_forked: false,
            names: &Generated,
        };
        let mut tables = tables(&truth);
        for one in COMPARISONS {
            let table = one.table.name;
            let right = tables.0[table].clone();
            let compared = one.compare(&truth, &tables);
            let compared = compared.unwrap_or_else(|error| panic!("{table}: {error:#}"));
            let may_be_empty = [&EVM_GAPS, &UNPLACED_REVOCATIONS, &TOKEN_ANSWER_BYTES, &NFT_URI_BYTES]
                .iter()
                .any(|def| def.name == table);
            assert!(compared > 0 || may_be_empty, "{table} has no rows");
            let mut refusal = |rows: Vec<Vec<Cell>>, what: &str| {
                tables.0.insert(table, Rows { def: one.table, rows });
                let message = match one.compare(&truth, &tables) {
                    Ok(_) => panic!("{table}: {what} isn't seen"),
                    Err(error) => format!("{error:#}"),
                };
                assert!(message.starts_with(table), "{table}: {what}: {message}");
                message
            };
            if right.rows.is_empty() {
                let row = one.table.columns.iter().map(|_| Some("1".to_owned())).collect();
                refusal(vec![row], "a row too many");
                tables.0.insert(table, right);
                continue;
            }
            // The places of the EVM's movements are compared in one table alone.
            let name = one.table.columns.iter().position(|column| column.name == "contract_name");
            let is_of_account = |row: &Vec<Cell>| name.is_none_or(|at| row[at] != rows::text(""));
            let half = right.rows.len() / 2;
            let middle = half + right.rows[half..].iter().position(is_of_account).unwrap_or(0);
            for (at, column) in one.table.columns.iter().enumerate() {
                let mut rows = right.rows.clone();
                rows[middle][at] = other(&rows[middle][at]);
                let message = refusal(rows, column.name);
                let is_named = message.contains(column.name);
                assert!(is_named, "{table}.{}: {message}", column.name);
            }
            let mut rows = right.rows.clone();
            rows.remove(middle);
            refusal(rows, "a row that is missing");
            let mut rows = right.rows.clone();
            let mut more = rows[middle].clone();
            let key = one.table.columns.iter().position(|column| column.name == one.table.key[0]);
            let key = key.expect("is a column");
            more[key] = other(&more[key]);
            rows.push(more);
            refusal(rows, "a row too many");
            tables.0.insert(table, right);
        }
    }
}
