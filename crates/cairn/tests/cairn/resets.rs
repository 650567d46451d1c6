//! `cairn reindex` that is killed in the middle, and processes that start meanwhile: nothing stays stuck, and readers are never shown a part as the whole.

use crate::support;

use crate::support::pg;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::Value;
use support::node::MockNode;
use support::*;

/// A database for raw and app together, and a runtime to talk to it.
struct Server {
    runtime: tokio::runtime::Runtime,
    db: pg::TestDb,
}

impl Server {
    /// `None` where there is no server.
    fn start() -> Option<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let db = runtime.block_on(pg::database())?;
        Some(Server { runtime, db })
    }
}

/// An archive of 60 blocks on SQLite or, where a server is given, on PostgreSQL.
struct Archive<'a> {
    dir: tempfile::TempDir,
    server: Option<&'a Server>,
    node: MockNode,
}

impl<'a> Archive<'a> {
    /// Everything up to height 40 is derived.
    fn new(server: Option<&'a Server>) -> Archive<'a> {
        let archive =
            Archive { dir: tempfile::tempdir().expect("dir"), server, node: MockNode::start(1337, 60) };
        archive.pass(&["--to", "40"]);
        archive
    }

    fn cairn(&self, args: &[&str]) -> Command {
        let mut command = cairn(self.dir.path());
        for name in ["DB_RAW_URL", "DB_APP_URL", "PAYLOAD_INLINE_MAX_BYTES"] {
            command.env_remove(name);
        }
        if let Some(server) = self.server {
            command.env("DB_RAW_URL", &server.db.url).env("DB_APP_URL", &server.db.url);
        }
        // The small node answers no calls.
        command.env("CAIRN_DERIVE__ASK_NODE", "false").env("CAIRN_DERIVE__POLL_MS", "50");
        command.args(args).args(["--data", "archive"]);
        command
    }

    fn run(&self) -> Command {
        self.cairn(&["run", "--rpc", &self.node.url, "--poll-ms", "50"])
    }

    /// Archives and derives until all is done.
    fn pass(&self, more: &[&str]) {
        let mut command = self.run();
        command.args(["--exit-after-head", "--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
        end_of(command.args(more)).well();
    }

    fn sql(&self, statements: &str) {
        match self.server {
            Some(server) => server.runtime.block_on(server.db.sql(&statements.replace('@', "app."))),
            None => self.sqlite().execute_batch(&statements.replace('@', "")).expect("runs"),
        }
    }

    fn number(&self, query: &str) -> i64 {
        let Some(server) = self.server else {
            return self.sqlite().query_row(&query.replace('@', ""), [], |row| row.get(0)).expect("runs");
        };
        server.runtime.block_on(async {
            let conn = server.db.pool().get().await.expect("connects");
            conn.query_one(&query.replace('@', "app."), &[]).await.expect("runs").get(0)
        })
    }

    fn sqlite(&self) -> Connection {
        let conn = Connection::open(self.dir.path().join("archive/app.sqlite")).expect("opens");
        conn.busy_timeout(Duration::from_secs(10)).expect("waits");
        conn
    }

    /// The rows of state, summed up.
    fn state(&self) -> i64 {
        self.number(
            "SELECT CAST(coalesce(sum(transaction_count), 0) + count(*) AS bigint) FROM @address_stats",
        )
    }

    /// The worker's checkpoint, or -2 where it has none.
    fn last_height(&self, worker: &str) -> i64 {
        self.number(&format!(
            "SELECT coalesce((SELECT last_height FROM @indexing_checkpoints WHERE service_name = '{worker}'), -2)"
        ))
    }

    /// Starts a command that deletes state, and kills it when it has begun and is at it.
    fn kill_in_the_middle(&self, args: &[&str]) {
        // Deleting a row takes for ever.
        self.sql(match self.server {
            Some(_) => {
                "CREATE FUNCTION app.slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(600); RETURN OLD; END'; \
                 CREATE TRIGGER slowly BEFORE DELETE ON app.address_stats FOR EACH ROW EXECUTE FUNCTION app.slowly()"
            }
            None => {
                "CREATE TRIGGER slowly BEFORE DELETE ON address_stats BEGIN \
                 SELECT count(*) FROM (WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 1000000000) SELECT x FROM n); END"
            }
        });
        let mut child: Child =
            self.cairn(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        let deadline = Instant::now() + Duration::from_secs(40);
        while self.last_height("stats_worker") != -2 {
            assert!(child.try_wait().expect("can be asked").is_none(), "it ended by itself");
            assert!(Instant::now() < deadline, "it does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(200));
        child.kill().expect("is killed");
        child.wait().expect("ends");
        match self.server {
            Some(_) => self.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
                   AND application_name LIKE 'cairn %'; \
                 DROP TRIGGER slowly ON app.address_stats; DROP FUNCTION app.slowly()",
            ),
            None => self.sql("DROP TRIGGER slowly"),
        }
        assert_eq!(self.last_height("stats_worker"), -2, "it came to its end");
    }
}

/// What `/v1/status` says of a worker.
fn worker(service: &Service, name: &str) -> Value {
    let (_, text) = service.get("/v1/status");
    let status: Value = serde_json::from_str(&text).expect("JSON");
    let workers = status["data"]["derived"]["workers"].as_array().cloned().unwrap_or_default();
    workers.into_iter().find(|worker| worker["name"] == name).unwrap_or_default()
}

fn a_killed_reindex(server: Option<&Server>) {
    let archive = Archive::new(server);
    let whole = archive.state();
    assert!(whole > 0);
    let reindex = ["reindex", "--worker", "stats_worker"];

    // Finished by the next call of the command.
    archive.kill_in_the_middle(&reindex);
    let told = end_of(&mut archive.cairn(&["workers", "list"])).well();
    assert!(told.contains("being reset"), "{told}");
    let words = end_of(&mut archive.cairn(&["workers", "pause", "stats_worker"])).badly();
    assert!(words.contains("stats_worker is being reset") && words.contains("at height 0"), "{words}");
    let told = end_of(&mut archive.cairn(&reindex)).well();
    assert!(told.contains("begun before is finished") && told.contains("begins anew at height 0"), "{told}");
    assert_eq!((archive.state(), archive.last_height("stats_worker")), (0, -1));
    let told = end_of(&mut archive.cairn(&["workers", "list"])).well();
    assert!(told.contains("anew, to 40"), "{told}");
    archive.pass(&["--to", "40"]);
    assert_eq!(archive.state(), whole);

    // Finished by whoever derives; nothing else waits for it.
    archive.kill_in_the_middle(&reindex);
    let mut service = Service::start(&mut archive.run());
    let path = "/v1/stats/daily";
    let mut refused = 0;
    service.until("it is rebuilt", |service| {
        let (status, text) = service.get(path);
        let problem: Value = serde_json::from_str(&text).expect("JSON");
        match status {
            200 => {
                assert!(archive.last_height("stats_worker") >= 40, "a part was shown: {text}");
                return worker(service, "stats_worker")["rebuild"].is_null();
            }
            503 if problem["code"] == "being-rebuilt" => {
                refused += 1;
                assert_eq!(problem["worker"], "stats_worker", "{text}");
            }
            // Before the app store is open.
            503 => {}
            _ => panic!("{status}: {text}"),
        }
        false
    });
    assert!(refused > 0, "nobody was told");
    service.until("everything is at the head", |_| archive.last_height("stats_worker") == 60);
    service.until("it is forgotten", |_| archive.number("SELECT count(*) FROM @rebuilds") == 0);
    assert!(service.stop().0.success());
    assert!(end_of(&mut archive.cairn(&["repair"])).well().contains("0 not what their events make"));
}

#[test]
fn a_killed_reindex_is_finished_by_the_next_call_or_by_whoever_derives_on_sqlite() {
    a_killed_reindex(None);
}

#[test]
fn a_killed_reindex_is_finished_by_the_next_call_or_by_whoever_derives_on_postgres() {
    let Some(server) = Server::start() else { return };
    a_killed_reindex(Some(&server));
}

fn a_killed_reindex_of_a_mapper(server: Option<&Server>) {
    let archive = Archive::new(server);
    let whole = archive.state();
    let reindex = ["reindex", "--worker", "accounts_worker"];
    archive.kill_in_the_middle(&reindex);
    let again = "SELECT count(*) FROM @worker_leases WHERE worker_type = 'accounts_worker' AND kind = 'reindex' \
                 AND status <> 'COMPLETED'";
    assert!(archive.number(again) > 0, "the mapper's ranges and the folder's rebuild begin together");
    // Asked once more, it finishes what was left, and says that the rest is under way.
    let words = end_of(&mut archive.cairn(&reindex)).badly();
    assert!(words.contains("stats_worker: a reset that was begun before is finished"), "{words}");
    assert_eq!((archive.state(), archive.last_height("stats_worker")), (0, -1));
    archive.pass(&[]);
    assert_eq!(archive.number(again), 0);
    assert!(archive.state() >= whole);
    assert!(end_of(&mut archive.cairn(&["repair"])).well().contains("0 not what their events make"));
}

#[test]
fn a_killed_reindex_of_a_mapper_is_whole_on_sqlite() {
    a_killed_reindex_of_a_mapper(None);
}

#[test]
fn a_killed_reindex_of_a_mapper_is_whole_on_postgres() {
    let Some(server) = Server::start() else { return };
    a_killed_reindex_of_a_mapper(Some(&server));
}

/// Rows were wrong, and so is what was folded from them: deriving ten heights again mends both, and nothing begins anew.
fn rows_that_are_derived_again_correct_state(server: Option<&Server>) {
    let archive = Archive::new(server);
    let rows = "SELECT CAST(coalesce(sum(transaction_count * 3 + sent_count * 5 + received_count * 7 + first_height * 11 \
                + last_height * 13), 0) AS bigint) FROM @address_stats";
    let whole = archive.number(rows);
    let blob = if server.is_some() {
        "'\\x0909090909090909090909090909090909090909'::bytea"
    } else {
        "x'0909090909090909090909090909090909090909'"
    };
    let no = if server.is_some() { "NOT is_recipient" } else { "1 - is_recipient" };
    archive.sql(&format!(
        "UPDATE @address_transactions SET is_recipient = {no} WHERE block_height BETWEEN 15 AND 20; \
         UPDATE @address_transactions SET address = {blob} WHERE block_height = 22 AND is_sender"
    ));
    // The state of those rows, as a bug in the mapper would have left it.
    end_of(&mut archive.cairn(&["reindex", "--worker", "stats_worker"])).well();
    archive.pass(&["--to", "40"]);
    assert_ne!(archive.number(rows), whole);
    let strange = format!("SELECT count(*) FROM @address_stats WHERE address = {blob}");
    assert_eq!(archive.number(&strange), 1);

    let corrections = "SELECT corrections FROM @indexing_checkpoints WHERE service_name = 'stats_worker'";
    let before = archive.number(corrections);
    let told =
        end_of(&mut archive.cairn(&["reindex", "--worker", "accounts_worker", "--from", "14", "--to", "23"]));
    let told = told.well();
    assert!(told.contains("stats_worker is folded from it, and its state is corrected"), "{told}");
    assert_eq!(archive.last_height("stats_worker"), 40, "it began anew");
    archive.pass(&["--to", "40"]);
    assert_eq!(archive.number(&strange), 0);
    assert_eq!(archive.number(rows), whole);
    let corrected = archive.number(corrections) - before;
    assert!((1..100).contains(&corrected), "{corrected} corrections");
    archive.pass(&[]);
    assert!(end_of(&mut archive.cairn(&["repair"])).well().contains("0 not what their events make"));

    // A range that is most of the archive is not worth it.
    let told =
        end_of(&mut archive.cairn(&["reindex", "--worker", "accounts_worker", "--from", "5", "--to", "50"]))
            .well();
    assert!(told.contains("stats_worker is folded from it and begins anew"), "{told}");
}

#[test]
fn rows_that_are_derived_again_correct_state_on_sqlite() {
    rows_that_are_derived_again_correct_state(None);
}

#[test]
fn rows_that_are_derived_again_correct_state_on_postgres() {
    let Some(server) = Server::start() else { return };
    rows_that_are_derived_again_correct_state(Some(&server));
}

/// A process that starts while somebody else deletes: it waits for that one worker, and works on the others.
fn a_process_starts_during_a_reset(server: Option<&Server>) {
    let archive = Archive::new(server);
    let begun = if server.is_some() { "now(), true" } else { "1, 1" };
    let (begun_at, clearing) = begun.split_once(", ").expect("two");
    let paused = if server.is_some() { "false" } else { "0" };
    archive.sql(&format!(
        "INSERT INTO @rebuilds (service_name, first_height, until_height, is_clearing, steps, paused, begun_at) \
           VALUES ('stats_worker', 0, 41, {clearing}, 0, {paused}, {begun_at}); \
         DELETE FROM @indexing_checkpoints WHERE service_name = 'stats_worker'"
    ));
    let mut service = Service::start(&mut archive.run());
    let began = Instant::now();
    service.until("the others are at the head", |_| {
        // Somebody is at it.
        archive.sql("UPDATE @rebuilds SET steps = steps + 1");
        archive.last_height("accounts_worker") == 60 && began.elapsed() > Duration::from_secs(8)
    });
    assert_eq!(archive.last_height("stats_worker"), -2, "it was left to whoever is at it");
    assert_eq!(worker(&service, "stats_worker")["rebuild"]["is_clearing"], true);
    service.until("it says so", |service| service.log().contains("this worker waits: it is being reset"));
    assert!(service.get("/metrics").1.contains("cairn_derived_halted 0"));
    // Nobody is any more.
    service.until("it is finished and derived", |_| archive.last_height("stats_worker") == 60);
    assert!(service.stop().0.success());
    assert!(end_of(&mut archive.cairn(&["repair"])).well().contains("0 not what their events make"));
}

#[test]
fn a_process_that_starts_during_a_reset_waits_for_that_worker_alone_on_sqlite() {
    a_process_starts_during_a_reset(None);
}

#[test]
fn a_process_that_starts_during_a_reset_waits_for_that_worker_alone_on_postgres() {
    let Some(server) = Server::start() else { return };
    a_process_starts_during_a_reset(Some(&server));
}

/// A reset that was left by a program that knew no rebuilds: leases, and no checkpoint.
fn an_older_reset(server: Option<&Server>) {
    let archive = Archive::new(server);
    let whole = archive.state();
    archive
        .sql("DELETE FROM @indexing_checkpoints WHERE service_name = 'stats_worker'; DROP TABLE @rebuilds");
    archive.sql("ALTER TABLE @worker_leases DROP COLUMN claimed_to_wait");
    archive.sql("ALTER TABLE @worker_leases DROP COLUMN corrects_state");
    archive.sql("ALTER TABLE @indexing_checkpoints DROP COLUMN corrections");
    archive.sql(match server {
        Some(_) => "DELETE FROM app.schema_migrations WHERE version >= 3",
        None => "PRAGMA user_version = 2",
    });
    archive.pass(&["--to", "40"]);
    assert_eq!((archive.state(), archive.last_height("stats_worker")), (whole, 40));
}

#[test]
fn a_reset_that_an_older_program_left_is_finished_on_sqlite() {
    an_older_reset(None);
}

#[test]
fn a_reset_that_an_older_program_left_is_finished_on_postgres() {
    let Some(server) = Server::start() else { return };
    an_older_reset(Some(&server));
}

#[test]
fn a_table_that_is_recreated_takes_what_is_folded_from_it_along() {
    let Some(server) = Server::start() else { return };
    let archive = Archive::new(Some(&server));
    let whole = archive.state();
    let rows = "SELECT count(*) FROM @address_transactions";
    let before = archive.number(rows);
    assert!(before > 0);
    let recreate = ["migrate", "--recreate", "app.address_transactions", "--export-dir", "exported"];
    // Not while anybody is connected.
    let service = Service::start(archive.cairn(&["serve"]).env("CAIRN_DERIVE__ASK_NODE", "false"));
    assert_eq!(service.get("/v1/stats/daily").0, 200);
    let words = end_of(&mut archive.cairn(&recreate)).badly();
    assert!(words.contains("stop them all"), "{words}");
    assert!(!archive.dir.path().join("exported/app.address_transactions.csv.gz").exists());
    assert_eq!((archive.number(rows), archive.state()), (before, whole));
    assert!(service.stop().0.success());

    let told = end_of(&mut archive.cairn(&recreate)).well();
    for part in ["accounts_worker begins anew at height 0", "stats_worker begins anew at height 0"] {
        assert!(told.contains(part), "{part}\n{told}");
    }
    assert_eq!((archive.number(rows), archive.state()), (0, 0));
    assert_eq!((archive.last_height("accounts_worker"), archive.last_height("stats_worker")), (-1, -1));
    // Another folder, of other rows, is not touched.
    assert_eq!(archive.last_height("ft_holdings_worker"), 40);
    let service = Service::start(&mut archive.cairn(&["serve"]));
    for path in ["/v1/stats/daily", "/v1/accounts/0x0000000000000000000000000000000000000001/transactions"] {
        let (status, text) = service.get(path);
        assert!(status == 503 && text.contains("being-rebuilt"), "{path}: {status}: {text}");
    }
    assert!(service.stop().0.success());
    archive.pass(&["--to", "40"]);
    assert_eq!((archive.number(rows), archive.state()), (before, whole));
    assert_eq!(archive.last_height("stats_worker"), 40);
}
