//! A database of one's own for each test, on the server behind `CAIRN_TEST_PG_URL`.
#![allow(dead_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_backends::postgres::{PgOptions, PgPool};

/// A database that is dropped, whoever is connected, when this is.
pub struct TestDb {
    /// Where it is.
    pub url: String,
    admin_url: String,
    name: String,
}

/// The URL of a server on which databases may be made; `None`, with a word on where to get one, where there is none (a failure in CI).
pub fn server_url() -> Option<String> {
    if let Ok(url) = std::env::var("CAIRN_TEST_PG_URL")
        && !url.is_empty()
    {
        return Some(url);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "CAIRN_TEST_PG_URL is not set");
    println!("not run: CAIRN_TEST_PG_URL is not set. `./dev up postgres` starts a server and prints its URL");
    None
}

/// A new, empty database; `None` where there is no server.
pub async fn database() -> Option<TestDb> {
    database_of("").await
}

/// The same with these words of `CREATE DATABASE`.
pub async fn database_of(words: &str) -> Option<TestDb> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let admin_url = server_url()?;
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("cairn_test_{}_{nanos}_{number}", std::process::id());
    // Not the template that another connection may be using, and without waiting for a checkpoint.
    run(&admin_url, &format!("CREATE DATABASE {name} TEMPLATE template0 {words}")).await;
    let (before, query) = admin_url.split_once('?').unwrap_or((&admin_url, ""));
    let at = before.rfind('/').filter(|at| before[..*at].matches('/').count() >= 2).unwrap_or(before.len());
    let separator = if query.is_empty() { "" } else { "?" };
    let url = format!("{}/{name}{separator}{query}", &before[..at]);
    Some(TestDb { url, admin_url, name })
}

impl TestDb {
    /// Options with few connections: many tests run beside each other.
    pub fn options(&self) -> PgOptions {
        PgOptions { max_open_conns: 4, max_idle_conns: 4, pool_wait_ms: 60_000, ..PgOptions::new(&self.url) }
    }

    /// A pool of those.
    pub fn pool(&self) -> PgPool {
        PgPool::new(self.options()).expect("a URL")
    }

    /// Sets the server's clock, as new connections to this database see it, ahead of this process's own, or behind it by a negative interval: what a process
    /// meets whose own clock is wrong by as much the other way. What asks for the time by an unqualified name, as all of our statements do, gets it.
    pub async fn skew_clock(&self, interval: &str) {
        let name = &self.name;
        self.sql(&format!(
            "CREATE SCHEMA skew; \
             CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE \
               AS $$ SELECT pg_catalog.clock_timestamp() + interval '{interval}' $$; \
             CREATE FUNCTION skew.now() RETURNS timestamptz LANGUAGE sql STABLE \
               AS $$ SELECT pg_catalog.now() + interval '{interval}' $$; \
             ALTER DATABASE {name} SET search_path = skew, pg_catalog, public"
        ))
        .await;
    }

    /// Lets the server say to new connections to this database that it follows another one, or no longer so.
    pub async fn follows_another(&self, follows: bool) {
        let name = &self.name;
        self.sql(&match follows {
            true => format!(
                "CREATE SCHEMA follows; \
                 CREATE FUNCTION follows.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true'; \
                 ALTER DATABASE {name} SET search_path = follows, pg_catalog, public"
            ),
            false => format!("ALTER DATABASE {name} RESET search_path; DROP SCHEMA follows CASCADE"),
        })
        .await;
    }

    /// Ends the connections that show themselves to the server as `application_name`.
    pub async fn end_connections(&self, application_name: &str) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = '{application_name}'"
        );
        self.sql(&sql).await;
    }

    /// Runs statements beside whatever is tested.
    pub async fn sql(&self, statements: &str) {
        run(&self.url, statements).await;
    }
}

impl Drop for TestDb {
    fn drop(&mut self) {
        let (admin_url, name) = (self.admin_url.clone(), self.name.clone());
        // A test's runtime may be ending, so the drop has its own.
        let dropping = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(&admin_url, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")));
        });
        // PostgreSQL drops a database only when every backend has noticed, and one that waits for the rows of a COPY doesn't: whoever sends
        // those, on this runtime, has to go on meanwhile.
        let wait = || dropping.join();
        let dropped = match tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(tokio::runtime::RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        };
        if dropped.is_err() {
            println!("database {} was not dropped", self.name);
        }
    }
}

async fn run(url: &str, statements: &str) {
    let options = PgOptions {
        max_idle_conns: 0,
        // What a test sets up takes as long as it takes, on a busy machine too.
        statement_timeout_ms: 0,
        application_name: "cairn-test".into(),
        ..PgOptions::new(url)
    };
    let pool = PgPool::new(options).expect("a URL");
    pool.get().await.expect("connects").batch(statements).await.expect("runs");
}
