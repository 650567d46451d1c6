//! Which servers are used, and what may stand before them.

use cairn_store::{Result, StoreError};
use tokio_postgres::SimpleQueryMessage;

use super::error::{corrupt, db};
use super::pool::{PgConn, PgOptions, PgPool};

/// The oldest server that is used: its number, and its name.
const MIN_SERVER: (i32, &str) = (150_000, "15");

/// Encodings of databases in which every text can be kept.
const ENCODINGS: [&str; 2] = ["UTF8", "SQL_ASCII"];

/// How often two sessions are compared. Others may use a pooler too, and take the server's session that this one would have met.
const COMPARISONS: usize = 3;

/// Refuses what doesn't do, before anything is changed in it: a pooler that shares sessions among transactions, a server that is too old, a database that can't keep every text.
pub async fn demand_server(pool: &PgPool, conn: &PgConn) -> Result<()> {
    // First, since such a pooler may fail at anything else.
    demand_own_session(pool, conn).await?;
    let row = conn
        .query_one(
            "SELECT current_setting('server_version_num')::int, version(), current_setting('server_encoding')",
            &[],
        )
        .await?;
    let (found, name): (i32, String) = (row.try_get(0).map_err(db)?, row.try_get(1).map_err(db)?);
    judge(found, &name)?;
    let encoding: String = row.try_get(2).map_err(db)?;
    judge_encoding(pool.database(), &encoding)
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

fn judge_encoding(database: &str, encoding: &str) -> Result<()> {
    if ENCODINGS.contains(&encoding) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "database {database} has the encoding {encoding}, which can't keep every name that a chain has. Make one with UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    )))
}

/// Two connections at once are two sessions of the server, and stay the ones that they are. A pooler by transactions gives the session of one that is idle to the other.
async fn demand_own_session(pool: &PgPool, conn: &PgConn) -> Result<()> {
    let options = PgOptions { max_open_conns: 1, max_idle_conns: 0, ..pool.options().clone() };
    let beside = pool.beside(options)?;
    let own = backend_of(conn, BACKEND).await?;
    for _ in 0..COMPARISONS {
        let mut other = beside.get().await?;
        other.keep_apart();
        let others = backend_of(&other, BEGUN_BACKEND).await?;
        judge_sessions(own, others, backend_of(conn, BACKEND).await?)?;
        other.batch("ROLLBACK").await?;
    }
    Ok(())
}

const BACKEND: &str = "SELECT pg_backend_pid()";
/// Holds the session of the server until its end.
const BEGUN_BACKEND: &str = "BEGIN; SELECT pg_backend_pid()";

/// The number of the server's session. Not by a prepared statement, which such a pooler may not know.
async fn backend_of(conn: &PgConn, sql: &str) -> Result<u32> {
    let said = conn.answer(conn.client()?.simple_query(sql)).await?.map_err(db)?;
    let number = said.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(0).ok().flatten()?.parse().ok(),
        _ => None,
    });
    number.ok_or_else(|| corrupt("pg_backend_pid()", "the server named no session"))
}

fn judge_sessions(own: u32, others: u32, own_again: u32) -> Result<()> {
    if own != others && own == own_again {
        return Ok(());
    }
    Err(StoreError::Invalid(
        "a pooler before PostgreSQL shares the server's sessions among transactions (PgBouncer: pool_mode = transaction or statement). cairn needs sessions of its own, for its prepared statements and \
         locks: use pool_mode = session, or the server's own address"
            .into(),
    ))
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

    #[test]
    fn sessions_that_are_shared_or_change_are_a_poolers() {
        judge_sessions(7, 8, 7).expect("two sessions");
        for (own, others, own_again) in [(7, 7, 9), (7, 8, 9), (7, 7, 7)] {
            let words = judge_sessions(own, others, own_again).expect_err("a pooler").to_string();
            assert!(words.contains("PgBouncer: pool_mode = transaction"), "{words}");
        }
    }
}
