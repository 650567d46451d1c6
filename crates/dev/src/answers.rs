//! What nodes said, as two app databases on PostgreSQL have it. The dump of derived tables leaves it out, since it depends on when a node was asked. Of a chain whose contracts
//! say the same of themselves at every block that has them, all of it is compared here but for
//!
//! - the block that was asked at ([`ASKED_AT_HEIGHT`]): the one that names the thing, or the one that was final at that moment where that is higher. Who is killed asks later;
//! - code that no contract has any more: code is kept by its hash, and stays when a reorg takes the contract that had it.

use anyhow::{Context, Result, ensure};
use cairn_backends::postgres::{PgOptions, PgPool};
use cairn_explorer::tables::metadata::{NFT_URI_BYTES, TOKEN_ANSWER_BYTES};
use cairn_store::derived::{TableClass, TableDef};

/// The block at which a node was asked.
const ASKED_AT_HEIGHT: &str = "asked_at_height";
/// Code by its hash.
const CONTENT: &str = "contract_code";
const HAS_CODE: &str = "code_hash IN (SELECT code_hash FROM app.contract_code_hashes)";

/// A row's text, and for people who look for what went wrong, when it was asked.
type Line = (String, Option<i64>);

/// Compares all tables of answers of two databases by their URLs; how many rows they have. A table without any would show nothing, and is an error.
/// Those of names that were altered to be shown have none here.
pub async fn compare(ours: &str, theirs: &str) -> Result<usize> {
    let catalog = cairn_explorer::processors::evm_catalog()?;
    let pools = (PgPool::new(PgOptions::new(ours))?, PgPool::new(PgOptions::new(theirs))?);
    let mut rows = 0;
    for table in catalog.tables() {
        let select = match table.def().class {
            TableClass::Answers => select(table.def(), None),
            TableClass::Content => {
                ensure!(table.name() == CONTENT, "nothing is known of the table {}", table.name());
                select(table.def(), Some(HAS_CODE))
            }
            TableClass::Events { .. } | TableClass::State => continue,
        };
        let name = table.name();
        let (ours, theirs) = (lines(&pools.0, &select).await?, lines(&pools.1, &select).await?);
        let differs = ours.iter().zip(&theirs).find(|(ours, theirs)| ours.0 != theirs.0);
        ensure!(differs.is_none(), "{name} differs: {differs:?}");
        ensure!(ours.len() == theirs.len(), "{name} has {} rows, and {}", ours.len(), theirs.len());
        let may_be_empty = [TOKEN_ANSWER_BYTES.name, NFT_URI_BYTES.name].contains(&name);
        ensure!(may_be_empty || !ours.is_empty(), "{name} has no row");
        rows += ours.len();
    }
    Ok(rows)
}

/// A text for each row, in the order of the texts.
fn select(table: &TableDef, which: Option<&str>) -> String {
    let (of_the_moment, compared): (Vec<&str>, Vec<&str>) =
        table.columns.iter().map(|column| column.name).partition(|name| *name == ASKED_AT_HEIGHT);
    let height = of_the_moment.first().copied().unwrap_or("NULL::bigint");
    let compared: Vec<_> = compared.iter().map(|name| format!("\"{name}\"")).collect();
    let which = which.map(|which| format!(" WHERE {which}")).unwrap_or_default();
    format!("SELECT ROW({})::text, {height} FROM app.{}{which} ORDER BY 1", compared.join(", "), table.name)
}

async fn lines(pool: &PgPool, select: &str) -> Result<Vec<Line>> {
    let rows = pool.get().await?.query(select, &[]).await.with_context(|| select.to_owned())?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_the_moment_is_left_out_by_name() {
        let catalog = cairn_explorer::processors::evm_catalog().expect("tables");
        let table = |name: &str| catalog.table(name).expect("a table").def();
        assert_eq!(
            select(table("tokens"), None),
            "SELECT ROW(\"contract_address\", \"contract_name\", \"name\", \"symbol\", \"decimals\", \
             \"total_supply\", \"status\")::text, asked_at_height FROM app.tokens ORDER BY 1"
        );
        assert_eq!(
            select(table(CONTENT), Some(HAS_CODE)),
            "SELECT ROW(\"code_hash\", \"code\")::text, NULL::bigint FROM app.contract_code \
             WHERE code_hash IN (SELECT code_hash FROM app.contract_code_hashes) ORDER BY 1"
        );
    }
}
