//! Which tables there are, as the databases themselves list them: each is compared with what the node answers, or has its reason here why there is nothing
//! to ask for.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

/// A table that says nothing of the chain that a node could be asked about, and why.
pub type NotAsked = (&'static str, &'static str);

/// Of the app database, on both backends.
pub static APP: &[NotAsked] = &[
    (
        "indexing_checkpoints",
        "how far cairn's own workers are; that all stand at the node's head is waited for",
    ),
    (
        "account_bases",
        "what the service account had before the first block, of which no event tells; the stage `flow` compares it with a ledger",
    ),
    ("account_base_keys", "the same"),
    ("account_base_contracts", "the same"),
    ("worker_leases", "who of cairn's own workers does which heights; none is dead"),
    (
        "state_undo",
        "what rows of state were before; what they restore is compared after blocks were taken back",
    ),
    ("reorg_state", "which of the raw store's reorgs was applied last"),
    ("fork_state", "the same on SQLite"),
    ("reorgs_applied", "which reorgs cairn saw: a node has one chain, and knows of no others"),
    ("quarantined_blocks", "blocks that a worker could not process"),
    ("rebuilds", "workers that begin anew"),
    ("table_definitions", "how cairn made its tables"),
    ("index_definitions", "how cairn made its indexes"),
    ("counters", "the counter of cairn's own fences"),
    ("schema_migrations", "which versions of the schema were applied"),
];

/// Of the raw database.
pub static RAW: &[NotAsked] = &[
    ("head", "which blocks there are; that the tip is the node's head is waited for"),
    ("checkpoints", "how far ingestion is"),
    ("chain_config", "settings of an EVM chain"),
    ("runs", "the index of log terms, pages of cairn's own form"),
    ("run_pages", "the same"),
    ("reorgs", "which reorgs cairn saw: a node has one chain, and knows of no others"),
    ("reorg_orphans", "the same"),
    ("orphans", "blocks that were taken back: the node has forgotten them"),
    ("orphan_blocks", "the same"),
    ("orphan_transactions", "the same"),
    ("orphan_events", "the same"),
    ("orphan_collections", "the same"),
    ("orphan_execution_results", "the same"),
    ("leases", "who of cairn's own processes fills which heights"),
    ("raw_leases", "the same on SQLite"),
    ("indexing_errors", "what cairn could not read: that there is nothing is a case of its own"),
    ("payloads", "objects elsewhere: there is no object storage here"),
    ("bodies", "packed on SQLite: every derived table is made of them"),
    ("receipts", "the same"),
    ("extras", "execution results, packed: the emulator has none"),
    ("traces", "an EVM chain's"),
    ("part_sizes", "how large the parts are, packed"),
    ("schema_migrations", "which versions of the schema were applied"),
];

/// Fails for a table that was neither compared nor has its reason, and for one that has other than the rows that were compared. How many tables there are.
pub fn every_table_is_known(
    there: &BTreeMap<String, u64>,
    compared: &BTreeMap<&'static str, usize>,
    not_asked: &[NotAsked],
) -> Result<usize> {
    for (name, rows) in there {
        match compared.get(name.as_str()) {
            Some(count) => {
                ensure!(*count as u64 == *rows, "{name} has {rows} rows, of which {count} were compared");
            }
            None => {
                let is_known = not_asked.iter().any(|(table, _)| table == name);
                ensure!(is_known, "{name} has {rows} rows, and nothing says what they have to be");
            }
        }
    }
    let missing = compared.keys().find(|name| !there.contains_key(**name));
    ensure!(missing.is_none(), "there is no table {missing:?}");
    Ok(there.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_nobody_compared_is_seen() {
        let there = |tables: &[(&str, u64)]| {
            tables.iter().map(|(name, rows)| ((*name).to_owned(), *rows)).collect::<BTreeMap<_, _>>()
        };
        let compared = BTreeMap::from([("tokens", 3)]);
        let known = |tables: &[(&str, u64)]| every_table_is_known(&there(tables), &compared, APP);
        assert_eq!(known(&[("tokens", 3), ("worker_leases", 9)]).expect("all are known"), 2);
        for wrong in [&[("tokens", 4)][..], &[("tokens", 3), ("other", 0)], &[("worker_leases", 9)]] {
            assert!(known(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_the_bases_of_the_catalog_are_left_out() {
        let catalog = cairn_explorer::processors::flow_catalog().expect("is whole");
        let mut left_out: Vec<_> = catalog.tables().iter().map(|table| table.name()).collect();
        left_out.retain(|table| APP.iter().any(|(name, _)| name == table));
        left_out.sort_unstable();
        assert_eq!(left_out, ["account_base_contracts", "account_base_keys", "account_bases"]);
    }
}
