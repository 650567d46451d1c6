//! Sizes of partitions: names of tables, and sizes that a commit fits into.

use anyhow::bail;
use cairn_backends::postgres::raw::PartitionSizes;

use super::Config;

/// The smallest partition, in heights. A commit of blocks has up to 1,024, and the database is asked for 16 partitions of a table at once at most; smaller ones would be
/// thousands of tables soon.
const MIN_HEIGHTS: u64 = 100;
/// Of derived tables: a chunk reaches over at most so many partitions. At most 64 are made at once, some of them ahead.
const MAX_OF_CHUNK: u64 = 32;

/// Checks all sizes; those of the app database against the heights of a chunk too. What a table is called there is checked with the catalog.
pub fn check(config: &Config) -> anyhow::Result<()> {
    for table in config.raw.partitions.keys() {
        if !PartitionSizes::TABLES.contains(&table.as_str()) {
            let known = PartitionSizes::TABLES.join(", ");
            bail!("raw.partitions: there is no table `{table}`; there are {known}");
        }
    }
    let of_chunk = config.derive.chunk_heights.div_ceil(MAX_OF_CHUNK);
    for (name, database, of_chunk) in [("raw", &config.raw, 0), ("app", &config.app, of_chunk)] {
        let whole = database.partition_heights.map(|heights| (format!("{name}.partition_heights"), heights));
        let single = database.partitions.iter();
        let single = single.map(|(table, heights)| (format!("{name}.partitions.{table}"), *heights));
        for (key, heights) in whole.into_iter().chain(single) {
            if heights < MIN_HEIGHTS {
                bail!(
                    "{key} must be at least {MIN_HEIGHTS}: a commit over partitions of {heights} heights would need more of them than can be made at once"
                );
            }
            if heights < of_chunk {
                bail!(
                    "{key} is {heights}, and a chunk of derive.chunk_heights = {} would reach over more than {MAX_OF_CHUNK} partitions: make it at least {of_chunk}, or chunks smaller",
                    config.derive.chunk_heights
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_a_commit_does_not_fit_into_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            check(&config).expect_err("it doesn't fit").to_string()
        };
        let error = refused(&|config| config.raw.partition_heights = Some(99));
        assert!(error.starts_with("raw.partition_heights must be at least 100"), "{error}");
        let error = refused(&|config| {
            config.raw.partitions.insert("blocks".into(), 0);
        });
        assert!(error.starts_with("raw.partitions.blocks must be at least 100"), "{error}");
        let error = refused(&|config| {
            config.app.partitions.insert("evm_logs".into(), 64);
        });
        assert!(error.starts_with("app.partitions.evm_logs must be at least 100"), "{error}");
        let error = refused(&|config| {
            config.app.partition_heights = Some(100);
            config.derive.chunk_heights = 3_201;
        });
        assert!(error.contains("app.partition_heights is 100") && error.contains("at least 101"), "{error}");
        let mut config = Config::default();
        (config.raw.partition_heights, config.app.partition_heights) = (Some(100), Some(100));
        config.derive.chunk_heights = 3_200;
        assert!(check(&config).is_ok());
    }
}
