//! Commands that come to an end: help, configuration, import, verify, and what they refuse.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rusqlite::Connection;
use serde_json::json;
use support::*;

const COMMANDS: [&str; 15] = [
    "run", "leases", "workers", "errors", "reindex", "demo", "import", "serve", "status", "verify", "repair",
    "payloads", "migrate", "config", "backup",
];

#[test]
fn every_command_explains_itself() {
    let dir = tempfile::tempdir().expect("dir");
    let all = end_of(cairn(dir.path()).arg("--help")).well();
    for command in COMMANDS {
        assert!(all.contains(&format!("\n  {command} ")), "`{command}` is listed:\n{all}");
        let help = end_of(cairn(dir.path()).args([command, "--help"])).well();
        assert!(help.contains("Usage: cairn") && help.contains("--data <DIR>"), "{command}: {help}");
    }
    assert!(end_of(cairn(dir.path()).arg("--version")).well().starts_with("cairn "));
    let words = end_of(cairn(dir.path()).arg("rnu")).badly();
    assert!(words.contains("rnu"), "{words}");
    let left = fs::read_dir(dir.path()).expect("reads").count();
    assert_eq!(left, 0, "nothing was made");
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let dir = tempfile::tempdir().expect("dir");
    fs::write(dir.path().join("cairn.toml"), "[ingest]\npoll_ms = 100\nbudget_mib = 10\nfrom = 7\n")
        .expect("writes");
    let mut command = cairn(dir.path());
    command
        .env("CAIRN_INGEST__POLL_MS", "200")
        .env("CAIRN_INGEST__BUDGET_MIB", "20")
        .env("MAX_REORG_DEPTH", "77");
    let shown = end_of(command.args(["config", "--poll-ms", "300"])).well();
    for line in ["poll_ms = 300", "budget_mib = 20", "from = 7", "max_reorg_depth = 77"] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    // What it prints can be used as a file, and says the same.
    fs::write(dir.path().join("printed.toml"), &shown).expect("writes");
    let again = end_of(cairn(dir.path()).args(["--config", "printed.toml", "config"])).well();
    assert_eq!(again, shown);
}

#[test]
fn unknown_keys_and_contradictions_are_errors_that_name_them() {
    let dir = tempfile::tempdir().expect("dir");
    fs::write(dir.path().join("wrong.toml"), "[ingest]\nfrmo = 7\n").expect("writes");
    let words = end_of(cairn(dir.path()).args(["--config", "wrong.toml", "config"])).badly();
    assert!(words.contains("unknown key `frmo`, did you mean `from`?"), "{words}");
    assert!(words.contains("wrong.toml line 2"), "{words}");
    let words = end_of(cairn(dir.path()).env("CAIRN_SERVE__LISTNE", "127.0.0.1:1").arg("config")).badly();
    assert!(words.contains("listne") && words.contains("did you mean `listen`?"), "{words}");
    assert!(words.contains("CAIRN_SERVE"), "{words}");
    // A value of another type, one out of range, a key in the wrong section, and a file that isn't TOML.
    for (text, wanted, line) in [
        ("\n[ingest]\npoll_ms = \"soon\"\n", "ingest.poll_ms", 3),
        ("[ingest]\nfrom = 1\n\npoll_ms = 0\n", "ingest.poll_ms must be at least 1", 4),
        ("rpc = [\"http://127.0.0.1:1\"]\n", "did you mean `chain.rpc`?", 1),
        ("[serve]\nlisten = \"nowhere\"\n", "localhost:PORT", 2),
        ("[ingest]\nfrom == 1\n", "wrong.toml", 2),
    ] {
        fs::write(dir.path().join("wrong.toml"), text).expect("writes");
        let words = end_of(cairn(dir.path()).args(["--config", "wrong.toml", "config"])).badly();
        assert!(words.contains(wanted) && words.contains(&format!("line {line}")), "{text}: {words}");
    }
    for (flag, shown) in [("18545", "127.0.0.1:18545"), ("localhost:18545", "127.0.0.1:18545")] {
        let shown_by = end_of(cairn(dir.path()).args(["config", "--rpc-listen", flag])).well();
        assert!(shown_by.contains(&format!("rpc_listen = \"{shown}\"")), "{flag}: {shown_by}");
    }
    let shown = end_of(cairn(dir.path()).env("CAIRN_SERVE__RPC_LISTEN", "18545").arg("config")).well();
    assert!(shown.contains("rpc_listen = \"127.0.0.1:18545\""), "{shown}");
    let words = end_of(cairn(dir.path()).args(["config", "--rpc-listen", "node.example:1"])).badly();
    assert!(words.contains("localhost:PORT"), "{words}");
    // What the project's own scripts and tests read is no setting, and no typo either.
    let scripts = [("CAIRN_TEST_PG_URL", "postgres://x"), ("CAIRN_KILLS", "7"), ("CAIRN_CACHE", "/x")];
    end_of(cairn(dir.path()).envs(scripts).arg("config")).well();
    for (value, is_on) in [("1", true), ("true", true), ("0", false), ("false", false)] {
        let shown = end_of(cairn(dir.path()).env("DENORMALIZE_EVENTS", value).arg("config")).well();
        assert_eq!(shown.contains("denormalize_events = true"), is_on, "{value}: {shown}");
    }
    let words = end_of(cairn(dir.path()).env("DENORMALIZE_EVENTS", "2").arg("config")).badly();
    assert!(words.contains("raw.denormalize_events"), "{words}");
    let words = end_of(cairn(dir.path()).env("CAIRN_KILL", "7").arg("config")).badly();
    assert!(words.contains("kill"), "{words}");
    let words = end_of(cairn(dir.path()).args(["--config", "absent.toml", "config"])).badly();
    assert!(words.contains("absent.toml"), "{words}");
    for (flags, name) in [
        (["--finality", "depth:x"], "depth:x"),
        (["--relax", "everything"], "everything"),
        (["--poll-ms", "0"], "poll_ms"),
        (["--max-reorg-depth", "0"], "max_reorg_depth"),
        (["--rpc", "ftp://host"], "ftp://host"),
        (["--rpc-listen", "127.0.0.1:8080"], "8080"),
    ] {
        let words = end_of(cairn(dir.path()).arg("config").args(flags)).badly();
        assert!(words.contains(name), "{flags:?}: {words}");
    }
    let words = end_of(cairn(dir.path()).args(["config", "--from", "10", "--to", "9"])).badly();
    assert!(words.contains("--to 9"), "{words}");
    let words =
        end_of(cairn(dir.path()).env("CAIRN_DERIVE__RANGE_HEIGHTS_OF", "{token_worker=0}").arg("config"))
            .badly();
    assert!(words.contains("derive.range_heights_of.token_worker"), "{words}");
    for (name, value, wanted) in [
        ("CAIRN_APP__PARTITIONS", "{ft_transfers=0}", "app.partitions.ft_transfers must be at least 100"),
        ("CAIRN_APP__DENORMALIZE_EVENTS", "true", "app.denormalize_events does nothing"),
        ("CAIRN_RAW__PARTITIONS", "{block=7}", "no table `block`; there are blocks, transactions"),
        ("CAIRN_RAW__PARTITIONS", "{blocks=0}", "raw.partitions.blocks must be at least 100"),
        ("CAIRN_RAW__PARTITION_HEIGHTS", "64", "raw.partition_heights must be at least 100"),
        (
            "CAIRN_SERVE__LIMITS__MAX_HEAVY_REQUESTS",
            "0",
            "serve.limits.max_heavy_requests must be at least 1",
        ),
        ("CAIRN_SERVE__LIMITS__BATCH_TIMEOUT_MS", "0", "serve.limits.batch_timeout_ms must be at least 1"),
    ] {
        let words = end_of(cairn(dir.path()).env(name, value).arg("config")).badly();
        assert!(words.contains(wanted), "{name}={value}: {words}");
    }
    let words = end_of(cairn(dir.path()).arg("run")).badly();
    assert!(words.contains("--rpc"), "it says what to do: {words}");
    // Names, and limits of REST within which nothing works, before anything is made: by `config`, and by `run` whatever its role.
    for (name, value, wanted) in [
        ("CAIRN_DERIVE__DISABLED", "[\"tokn_worker\"]", "derive.disabled: there is no worker `tokn_worker`"),
        ("CAIRN_DERIVE__DISABLED", "[\"token_worker\"]", "needs token_worker, which is not enabled"),
        ("CAIRN_DERIVE__RANGE_HEIGHTS_OF", "{tokn_worker=5}", "derive.range_heights_of: there is no worker"),
        ("CAIRN_DERIVE__WRAPPED_TOKENS", "[\"0x12\"]", "derive.wrapped_tokens: `0x12` is no address"),
        ("CAIRN_APP__PARTITIONS", "{ft_transfer=500}", "app.partitions"),
        ("CAIRN_APP__STATEMENT_TIMEOUT_MS", "0", "app.statement_timeout_ms must be at least 1"),
        ("CAIRN_SERVE__REST__MAX_PAGE_ROWS", "10000", "serve.rest.max_page_rows is 10000; it may be 200"),
        ("CAIRN_SERVE__REST__DEFAULT_PAGE_ROWS", "0", "serve.rest.default_page_rows must be at least 1"),
        ("CAIRN_SERVE__REST__DEFAULT_PAGE_ROWS", "201", "serve.rest.default_page_rows is 201"),
        ("CAIRN_SERVE__REST__REQUEST_TIMEOUT_MS", "0", "serve.rest.request_timeout_ms must be at least 1"),
    ] {
        let words = end_of(cairn(dir.path()).env(name, value).arg("config")).badly();
        assert!(words.contains(wanted), "{name}={value}: {words}");
        let demo = ["demo", "--data", "made", "--blocks", "2", "--exit-after-head"];
        let words = end_of(cairn(dir.path()).env(name, value).args(demo)).badly();
        assert!(words.contains(wanted), "{name}={value}: {words}");
        assert!(!dir.path().join("made").exists(), "{name}={value}");
    }
    // Flow's names are right where nothing says that it is an EVM chain.
    let tables = [("CAIRN_APP__PARTITIONS", "{evm_executions=500}")];
    end_of(cairn(dir.path()).envs(tables).arg("config")).well();
    let words =
        end_of(cairn(dir.path()).envs(tables).args(["config", "--rpc", "http://127.0.0.1:9"])).badly();
    assert!(words.contains("evm_executions"), "{words}");
    // The flags of `run` can be given as they are.
    let flags = ["config", "--role", "work", "--exit-after-head", "--from", "7"];
    let shown = end_of(cairn(dir.path()).args(flags)).well();
    assert!(shown.contains("# --role work") && shown.contains("from = 7"), "{shown}");
    // A request may take longer than a lease: it is renewed meanwhile.
    let args = ["config", "--flow-access", "127.0.0.1:9"];
    end_of(cairn(dir.path()).env("CAIRN_CHAIN__FLOW__REQUEST_TIMEOUT_MS", "400000").args(args)).well();
}

/// `./dev` and its parts set these for a cairn that they start too.
#[test]
fn what_the_projects_scripts_read_is_no_unknown_setting() {
    // Where it is now: what was compiled may be used in a clone at another place.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&folder).join("../..");
    let mut files = vec![root.join("dev")];
    let mut folders = vec![root.join("dev.d")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("reads") {
            let path = entry.expect("reads").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("reads");
        let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
        names.extend(words.filter(|word| word.starts_with("CAIRN_") && word.len() > 6).map(str::to_owned));
    }
    // Set for a Python program alone.
    names.retain(|name| name != "CAIRN_REST_URL");
    assert!(names.len() > 10, "{names:?}");
    let dir = tempfile::tempdir().expect("dir");
    end_of(cairn(dir.path()).envs(names.iter().map(|name| (name, "1"))).arg("config")).well();
}

#[test]
fn secrets_are_never_shown() {
    let dir = tempfile::tempdir().expect("dir");
    let args = [
        "--rpc",
        "https://user:S3CRET@127.0.0.1:9/v2/S3CRET?key=S3CRET,ws://127.0.0.1:9/S3CRET",
        "--upstream",
        "http://127.0.0.1:9/S3CRET",
    ];
    let shown = end_of(cairn(dir.path()).arg("config").args(args)).well();
    assert!(shown.contains("https://127.0.0.1:9/…") && !shown.contains("S3CRET"), "{shown}");
    // Nor where the node can't be reached.
    let ended = end_of(cairn(dir.path()).args(["--log", "trace", "config"]).args(args));
    assert!(!ended.err.contains("S3CRET"), "{}", ended.err);
    let words = end_of(cairn(dir.path()).args(["config", "--rpc", "htp://127.0.0.1/S3CRET"])).badly();
    assert!(!words.contains("S3CRET"), "{words}");
    let header = [("CAIRN_CHAIN__HEADERS", "{authorization=\"Bearer S3CRET\"}")];
    let shown = end_of(cairn(dir.path()).envs(header).arg("config")).well();
    assert!(shown.contains("authorization") && !shown.contains("S3CRET"), "{shown}");
    // One text is a list too, as with the flag.
    let env = |name: &str, value: &str| end_of(cairn(dir.path()).env(name, value).arg("config"));
    let shown = env("CAIRN_CHAIN__RPC", "https://127.0.0.1:9/S3CRET, http://127.0.0.1:8/S3CRET").well();
    assert!(shown.contains("https://127.0.0.1:9/…") && shown.contains("http://127.0.0.1:8/…"), "{shown}");
    assert!(!shown.contains("S3CRET"), "{shown}");
    // Nor where a value is of another shape than it should be.
    for (name, value, key) in [
        ("CAIRN_CHAIN__RPC", "[[\"https://127.0.0.1:9/S3CRET\"]]", "chain.rpc"),
        ("CAIRN_CHAIN__HEADERS", "[\"S3CRET\"]", "chain.headers"),
        ("CAIRN_CHAIN__HEADERS_OF", "{node={x=[\"S3CRET\"]}}", "chain.headers_of"),
        ("CAIRN_CHAIN__ACCESS", "[{url=\"https://127.0.0.1:9/S3CRET\", from=\"S3CRET\"}]", "chain.access"),
        ("CAIRN_RAW", "postgres://user:S3CRET@127.0.0.1/db", "raw"),
        ("DB_RAW_URL", "[\"postgres://user:S3CRET@127.0.0.1/db\"]", "raw.url"),
        ("CAIRN_SERVE__UPSTREAM", "{S3CRET=\"S3CRET\"}", "serve.upstream"),
        ("CAIRN_RAW__BACKFILL", "postgres://user:S3CRET@127.0.0.1/db", "raw.backfill"),
    ] {
        let ended = env(name, value);
        let words = ended.badly();
        assert!(!words.contains("S3CRET") && words.contains(key), "{name}: {words}");
        assert!(!words.contains("cairn config"), "it doesn't send people round in a circle: {words}");
    }
    fs::write(dir.path().join("cut.toml"), "[raw]\nurl = \"postgres://user:S3CRET@127.0.0.1/db\n")
        .expect("writes");
    let words = end_of(cairn(dir.path()).args(["--config", "cut.toml", "config"])).badly();
    assert!(!words.contains("S3CRET") && words.contains("line 2"), "{words}");
    // What is no secret is shown.
    let words = env("CAIRN_INGEST__POLL_MS", "soon").badly();
    assert!(words.contains("soon") && words.contains("ingest.poll_ms"), "{words}");
}

#[test]
fn a_demo_takes_no_chain_out_of_a_file() {
    let dir = tempfile::tempdir().expect("dir");
    let of_another = "[chain]\nrpc = [\"http://127.0.0.1:9/\"]\nchain_id = 1\n[ingest]\nfrom = 100\nto = 200\n[serve]\nupstream = \"http://127.0.0.1:9/\"\n";
    fs::write(dir.path().join("cairn.toml"), of_another).expect("writes");
    let mut command = cairn(dir.path());
    command.args(["demo", "--data", "made", "--blocks", "3", "--exit-after-head"]);
    command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    end_of(&mut command).well();
    let said = status(dir.path(), "made");
    assert_eq!((&said["first"], &said["checkpoint"]["height"]), (&json!(0), &json!(3)), "{said}");
    let workers = end_of(cairn(dir.path()).args(["workers", "list", "--data", "made"])).well();
    assert!(workers.contains("token_worker") && workers.contains("token_metadata_worker"), "{workers}");
    // Nobody is asked where that is switched off.
    let mut command = cairn(dir.path());
    command.env("CAIRN_DERIVE__ASK_NODE", "false");
    command.args(["demo", "--data", "mute", "--blocks", "3", "--exit-after-head"]);
    command.args(["--rpc-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"]);
    end_of(&mut command).well();
    let workers = end_of(cairn(dir.path()).args(["workers", "list", "--data", "mute"])).well();
    assert!(workers.contains("token_worker") && !workers.contains("token_metadata_worker"), "{workers}");
}

#[test]
fn a_directory_without_an_archive_is_said_so_and_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    for command in ["status", "verify", "serve"] {
        let words = end_of(cairn(dir.path()).args([command, "--data", "nothing"])).badly();
        assert!(words.contains("no archive in nothing"), "{command}: {words}");
    }
    assert_eq!(fs::read_dir(dir.path()).expect("reads").count(), 0);
}

/// Imports the public suite's chain. `None` where the suite isn't there.
fn imported(dir: &Path) -> Option<String> {
    let suite = suite()?;
    let mut command = cairn(dir);
    command.args(["import", "--data", "archive"]);
    for (flag, file) in
        [("--chain", "chain.rlp"), ("--receipts", "receipts.json.gz"), ("--genesis", "genesis.json")]
    {
        command.arg(flag).arg(suite.join(file));
    }
    Some(end_of(&mut command).well())
}

fn sql<T>(dir: &Path, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> T {
    let conn = Connection::open(dir.join("archive/raw.sqlite")).expect("opens");
    work(&conn).expect("runs")
}

#[test]
fn i06_verify_is_clean_after_an_import_and_names_every_damaged_block() {
    let dir = tempfile::tempdir().expect("dir");
    let Some(said) = imported(dir.path()) else { return };
    assert!(said.contains("imported 55 blocks") || said.contains("imported 54 blocks"), "{said}");
    let clean = verify_clean(dir.path(), "archive");
    let before = status(dir.path(), "archive");
    assert_eq!(before["gaps"], json!([]));
    assert!(imported(dir.path()).expect("is there").contains("imported 0 blocks"), "again is a no-op");
    assert_eq!(status(dir.path(), "archive")["checkpoint"], before["checkpoint"]);

    // One byte of one block's receipts, the transactions of another, and the header of a third.
    let damaged = sql(dir.path(), |conn| {
        let mut found = conn.prepare(
            "SELECT receipts.height FROM receipts JOIN transactions USING (height) WHERE length(receipts.data) > 200 ORDER BY height",
        )?;
        let heights: Vec<i64> = found.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let (receipts, rows, header) = (heights[1], heights[3], heights[5]);
        let mut data: Vec<u8> =
            conn.query_row("SELECT data FROM receipts WHERE height = ?1", [receipts], |row| row.get(0))?;
        let middle = data.len() / 2;
        data[middle] ^= 1;
        conn.execute("UPDATE receipts SET data = ?1 WHERE height = ?2", (data, receipts))?;
        conn.execute("DELETE FROM transactions WHERE height = ?1", [rows])?;
        // A header that can be read and is another block's.
        conn.execute(
            "UPDATE blocks SET header = (SELECT header FROM blocks WHERE height = 1) WHERE height = ?1",
            [header],
        )?;
        Ok([receipts, rows, header])
    });
    let ended = end_of(cairn(dir.path()).args(["verify", "--data", "archive"]));
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let named: Vec<&str> = ended.out.lines().filter(|line| line.starts_with("height ")).collect();
    for height in damaged {
        let found = named.iter().any(|line| line.starts_with(&format!("height {height}: ")));
        assert!(found, "height {height} is named:\n{}", ended.out);
    }
    assert_eq!(named.len(), 3, "and no other:\n{}", ended.out);
    assert!(clean.contains(" blocks, ") && ended.out.contains("3 problems"), "{}", ended.out);

    // A range beside the damage is good; one that isn't stored is an error.
    let last = damaged.iter().max().expect("three") + 1;
    let text = end_of(cairn(dir.path()).args(["verify", "--data", "archive", &format!("{last}..")])).well();
    assert!(text.contains("all good"), "{text}");
    let words = end_of(cairn(dir.path()).args(["verify", "--data", "archive", "9000..9001"])).badly();
    assert!(words.contains("not all stored"), "{words}");

    // What is damaged is never served as an empty answer.
    let server = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
    let block = format!("{:#x}", damaged[0]);
    let error = server.call("eth_getBlockReceipts", json!([block])).expect_err("an error");
    assert!(error["code"].is_i64(), "{error}");
    let whole = format!("{last:#x}");
    assert!(server.call("eth_getBlockReceipts", json!([whole])).expect("answers").is_array());
    assert!(server.stop().0.success());
}

#[test]
fn i06_missing_blocks_are_named_by_verify_and_in_no_answer() {
    let dir = tempfile::tempdir().expect("dir");
    let demo = [
        "demo",
        "--data",
        "archive",
        "--blocks",
        "20",
        "--exit-after-head",
        "--rpc-listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ];
    end_of(cairn(dir.path()).args(demo)).well();
    verify_clean(dir.path(), "archive");
    sql(dir.path(), |conn| conn.execute("DELETE FROM blocks WHERE height IN (5, 6, 7)", []));

    let what = "no block is stored there, though the head row says so";
    let verify = |range: &str| end_of(cairn(dir.path()).args(["verify", "--data", "archive", range]));
    for (range, named) in [("0..", format!("heights 5..7: {what}")), ("8", format!("height 7: {what}"))] {
        let ended = verify(range);
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        assert!(ended.out.lines().any(|line| line == named), "{range}:\n{}", ended.out);
    }
    assert!(verify("9..").well().contains("all good"));

    let server = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
    for filter in [
        json!({"fromBlock": "0x0", "toBlock": "latest"}),
        json!({"fromBlock": "0x5", "toBlock": "0x5"}),
        json!({"fromBlock": "0x4", "toBlock": "0x8", "address": format!("0x{}", "ab".repeat(20))}),
    ] {
        let error = server.call("eth_getLogs", json!([filter])).expect_err("a hole");
        assert!(error["message"].as_str().expect("a message").contains("height 5:"), "{filter}: {error}");
    }
    assert!(server.call("eth_getLogs", json!([{"fromBlock": "0x8"}])).expect("answers").is_array());
    assert!(server.stop().0.success());
}

#[test]
fn x03_an_unknown_schema_is_refused_by_every_command_and_left_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let demo = [
        "demo",
        "--data",
        "archive",
        "--blocks",
        "20",
        "--exit-after-head",
        "--rpc-listen",
        "127.0.0.1:0",
        "--listen",
        "127.0.0.1:0",
    ];
    end_of(cairn(dir.path()).args(demo)).well();
    verify_clean(dir.path(), "archive");
    let mut version = 0;
    sql(dir.path(), |conn| {
        version = conn.pragma_query_value(None, "user_version", |row| row.get::<_, i64>(0))?;
        conn.pragma_update(None, "user_version", 99)
    });
    let bytes = fs::read(dir.path().join("archive/raw.sqlite")).expect("reads");
    for args in [
        &demo[..],
        &["serve", "--data", "archive"],
        &["status", "--data", "archive"],
        &["verify", "--data", "archive"],
    ] {
        let words = end_of(cairn(dir.path()).args(args)).badly();
        assert!(words.contains("schema is version 99") && words.contains("newer cairn"), "{args:?}: {words}");
    }
    assert!(fs::read(dir.path().join("archive/raw.sqlite")).expect("reads") == bytes, "nothing was changed");
    sql(dir.path(), |conn| conn.pragma_update(None, "user_version", version));
    verify_clean(dir.path(), "archive");
}

/// The names that begin with ours after each `mark` in a text.
fn names_after(text: &str, mark: char) -> BTreeSet<String> {
    let start = format!("{mark}cairn_");
    let pieces = text.split(&start).skip(1);
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    pieces
        .filter_map(|piece| {
            let end = piece.find(|letter| !is_of_name(letter))?;
            // A label may follow in the document.
            (piece[end..].starts_with([mark, '{'])).then(|| format!("cairn_{}", &piece[..end]))
        })
        .collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_one_is_there() {
    let root = Path::new("../..");
    let mut folders: Vec<_> = ["api", "backends", "cairn", "explorer", "pipeline", "source", "store"]
        .iter()
        .map(|name| root.join("crates").join(name).join("src"))
        .collect();
    let mut used = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("reads") {
            let path = entry.expect("reads").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                used.extend(names_after(&fs::read_to_string(path).expect("reads"), '"'));
            }
        }
    }
    // The seed of the synthetic chain, in a comment.
    used.remove("cairn_s1");
    let documented =
        names_after(&fs::read_to_string(root.join("docs/reference/metrics.md")).expect("reads"), '`');
    assert!(used.len() > 40, "{used:?}");
    assert_eq!(used, documented);
}
