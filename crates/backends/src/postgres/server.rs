//! Which servers are used.

use cairn_store::{Result, StoreError};

use super::error::db;
use super::pool::PgConn;

/// The oldest server that is used: its number, and its name.
const MIN_SERVER: (i32, &str) = (150_000, "15");

/// Refuses a server that is too old, before anything is changed in it.
pub async fn demand_server(conn: &PgConn) -> Result<()> {
    let row = conn.query_one("SELECT current_setting('server_version_num')::int, version()", &[]).await?;
    let (found, name): (i32, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
    judge(found, &name)
}

fn judge(found: i32, name: &str) -> Result<()> {
    if found < MIN_SERVER.0 {
        return Err(StoreError::Database(format!(
            "PostgreSQL {} or newer is needed, this is {name}",
            MIN_SERVER.1
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_older_than_15_are_refused_by_name() {
        let words = judge(140_011, "PostgreSQL 14.11").expect_err("too old").to_string();
        assert!(words.contains("PostgreSQL 15 or newer is needed, this is PostgreSQL 14.11"), "{words}");
        judge(150_000, "PostgreSQL 15.0").expect("new enough");
    }
}
