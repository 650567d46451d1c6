//! The databases behind a binary that is tested: SQLite's files in `archive`, or a database of its own on PostgreSQL.

use super::pg;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;

/// A database for raw and app together, and a runtime to talk to it.
pub struct Server {
    runtime: tokio::runtime::Runtime,
    db: pg::TestDb,
}

impl Server {
    /// `None` where there is no server.
    pub fn start() -> Option<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let db = runtime.block_on(pg::database())?;
        Some(Server { runtime, db })
    }

    /// Where it is.
    pub fn url(&self) -> String {
        self.db.url.clone()
    }

    pub fn sql(&self, statements: &str) {
        self.runtime.block_on(self.db.sql(statements));
    }

    pub fn number(&self, query: &str) -> i64 {
        self.runtime.block_on(async {
            let conn = self.db.pool().get().await.expect("connects");
            conn.query_one(query, &[]).await.expect("runs").get(0)
        })
    }
}

/// Lets a command work over the server's database, or over SQLite.
pub fn over<'c>(command: &'c mut Command, server: Option<&Server>) -> &'c mut Command {
    for name in ["DB_RAW_URL", "DB_APP_URL", "PAYLOAD_INLINE_MAX_BYTES"] {
        command.env_remove(name);
    }
    if let Some(server) = server {
        command.env("DB_RAW_URL", &server.db.url).env("DB_APP_URL", &server.db.url);
    }
    command
}

pub fn sqlite(dir: &Path, file: &str, statements: &str) {
    let conn = Connection::open(dir.join("archive").join(file)).expect("opens");
    conn.busy_timeout(Duration::from_secs(10)).expect("waits");
    conn.execute_batch(statements).expect("runs");
}

pub fn sqlite_number(dir: &Path, file: &str, query: &str) -> i64 {
    let conn = Connection::open(dir.join("archive").join(file)).expect("opens");
    conn.query_row(query, [], |row| row.get(0)).expect("runs")
}

/// A statement about the raw or the app database, whose schema is in its tables' names on PostgreSQL alone.
pub fn change(dir: &Path, server: Option<&Server>, schema: &str, statement: &str) {
    match server {
        Some(server) => server.sql(&statement.replace("@", &format!("{schema}."))),
        None => sqlite(dir, &format!("{schema}.sqlite"), &statement.replace("@", "")),
    }
}

/// A number from the app database.
pub fn count(dir: &Path, server: Option<&Server>, query: &str) -> i64 {
    match server {
        Some(server) => server.number(&query.replace("@", "app.")),
        None => sqlite_number(dir, "app.sqlite", &query.replace("@", "")),
    }
}
