//! TLS to a server that speaks it: whose certificates are taken, which are refused and with which words, and that nothing goes around it.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cairn_backends::postgres::{Isolation, PgOptions, PgPool, PgRawOptions, PgRawStore};
use cairn_core::ChainId;
use cairn_store::suite::blocks::chain;
use cairn_store::{AppendBatch, RawReader, RawWriter, StoreError, StoreInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::pg_tls;

use pg_tls::{TlsServer, certificate};

/// All that ask for TLS, by the words of libpq.
const MODES: [&str; 4] = ["prefer", "require", "verify-ca", "verify-full"];

/// Runs this test in a process of its own, for which `authorities` are those of the system: they are read from the environment, which
/// is one for all tests of a process.
fn with_authorities(test: &str, authorities: &Path, body: impl AsyncFnOnce()) {
    const INSIDE: &str = "CAIRN_TEST_TLS_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        return runtime.block_on(body());
    }
    let ran = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("postgres_tls::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .env("SSL_CERT_FILE", authorities)
        .env_remove("SSL_CERT_DIR")
        .output()
        .expect("runs");
    let (said, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    print!("{told}");
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

fn pool(url: String) -> PgPool {
    PgPool::new(PgOptions { connect_timeout_ms: 20_000, ..PgOptions::new(url) }).expect("a URL")
}

/// Whether the server says that a connection has TLS.
async fn has_tls(pool: &PgPool) -> Result<bool, StoreError> {
    let conn = pool.get().await?;
    let row = conn.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await?;
    Ok(row.get(0))
}

/// It is refused for now, in words that have this in them.
async fn is_refused(url: String, words: &str) {
    let error = has_tls(&pool(url.clone())).await.expect_err(&url);
    assert!(matches!(&error, StoreError::Busy(why) if why.contains(words)), "{url}: {error}");
}

#[test]
fn a_server_of_a_known_authority_is_spoken_to_by_tls_and_under_its_own_name_alone() {
    let test = "a_server_of_a_known_authority_is_spoken_to_by_tls_and_under_its_own_name_alone";
    with_authorities(test, &certificate("ca.crt"), async || {
        let Some(server) = TlsServer::start().await else { return };
        for mode in MODES {
            for host in ["localhost", "127.0.0.1"] {
                let url = server.url(host, &format!("sslmode={mode}"));
                assert!(has_tls(&pool(url)).await.expect("connects"), "{mode} by {host} is without TLS");
            }
            let other = server.url("db.example", &format!("hostaddr=127.0.0.1&sslmode={mode}"));
            is_refused(other, "name the server in the URL as its certificate does").await;
        }
        for without in ["", "sslmode=disable"] {
            assert!(!has_tls(&pool(server.url("127.0.0.1", without))).await.expect("connects"));
        }
        // Blocks go by it as they go without.
        let options = PgRawOptions::with(PgOptions::new(server.url("localhost", "sslmode=verify-full")));
        let store = PgRawStore::open(options, None).await.expect("opens");
        let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
        store.init(info).await.expect("init");
        let fence = store.acquire().await.expect("acquire").fence;
        let blocks = chain(0, 20, 0);
        let last = blocks[19].block_ref();
        store.append(fence, AppendBatch { blocks, ..AppendBatch::default() }).await.expect("appends");
        assert_eq!(store.snapshot().await.expect("reads").head().tip, Some(last));
        assert!(has_tls(store.pool()).await.expect("connects"));
    });
}

#[test]
fn a_server_of_an_unknown_authority_is_refused_whatever_the_mode() {
    let test = "a_server_of_an_unknown_authority_is_refused_whatever_the_mode";
    with_authorities(test, &certificate("other-ca.crt"), async || {
        let Some(server) = TlsServer::start().await else { return };
        for mode in MODES {
            let url = server.url("127.0.0.1", &format!("sslmode={mode}"));
            is_refused(
                url,
                "its authority isn't known here: add that to the system's certificates, or name a file",
            )
            .await;
        }
        assert!(!has_tls(&pool(server.url("127.0.0.1", ""))).await.expect("connects"));
    });
}

#[test]
fn without_a_certificate_of_an_authority_nothing_is_asked() {
    let test = "without_a_certificate_of_an_authority_nothing_is_asked";
    with_authorities(test, &certificate("no-such-file.crt"), async || {
        let url = |mode| format!("postgres://postgres@127.0.0.1:1/postgres?sslmode={mode}");
        for mode in MODES {
            let error = PgPool::new(PgOptions::new(url(mode))).expect_err("there is none");
            let words = error.to_string();
            assert!(matches!(error, StoreError::Invalid(_)), "{words}");
            assert!(words.contains("SSL_CERT_FILE") && words.contains("no-such-file.crt"), "{words}");
        }
        PgPool::new(PgOptions::new(url("disable"))).expect("needs none");
    });
}

#[test]
fn a_server_without_tls_is_refused_where_it_is_required() {
    let test = "a_server_without_tls_is_refused_where_it_is_required";
    with_authorities(test, &certificate("ca.crt"), async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("an address").port();
        let answering = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut asked = [0; 8];
                client.read_exact(&mut asked).await.expect("asks");
                assert_eq!(asked, SSL_REQUEST);
                client.write_all(b"N").await.expect("answers");
            }
        });
        for mode in ["require", "verify-ca", "verify-full"] {
            let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode={mode}");
            is_refused(url, "do without it by sslmode=disable").await;
        }
        answering.abort();
    });
}

/// With what a connection begins that asks for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A way to a server on which the beginnings of connections are seen; its port.
async fn open_way(server: u16, beginnings: Arc<Mutex<Vec<[u8; 8]>>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let beginnings = beginnings.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
                let mut begun = [0; 8];
                client.read_exact(&mut begun).await.expect("begins");
                beginnings.lock().expect("not poisoned").push(begun);
                server.write_all(&begun).await.expect("goes on");
                // However either of them ends.
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    port
}

#[test]
fn a_statement_that_nobody_waits_for_is_cancelled_by_tls() {
    let test = "a_statement_that_nobody_waits_for_is_cancelled_by_tls";
    with_authorities(test, &certificate("ca.crt"), async || {
        let Some(server) = TlsServer::start().await else { return };
        let beginnings = Arc::new(Mutex::new(Vec::new()));
        let port = open_way(server.port, beginnings.clone()).await;
        let url = format!("postgres://postgres@localhost:{port}/postgres?sslmode=verify-full");
        let options = PgOptions { connect_timeout_ms: 3_000, max_open_conns: 1, ..PgOptions::new(url) };
        let slow = PgPool::new(PgOptions { pool_wait_ms: 60_000, ..options }).expect("a URL");
        let pid = async |pool: &PgPool| {
            let conn = pool.get().await.expect("connects");
            conn.query_one("SELECT pg_backend_pid()", &[]).await.expect("asks").get::<_, i32>(0)
        };
        let slow_by = pid(&slow).await;
        let conn = slow.begin(Isolation::ReadCommitted).await.expect("begins");
        let asked = conn.query_one("SELECT pg_sleep(600)", &[]);
        tokio::time::timeout(Duration::from_millis(200), asked).await.expect_err("it sleeps");
        drop(conn);
        let watch = pool(server.url("127.0.0.1", ""));
        let watch = watch.get().await.expect("connects");
        let running = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle'";
        let begun = Instant::now();
        while watch.query_one(running, &[&slow_by]).await.expect("asks").get::<_, i64>(0) > 0 {
            assert!(begun.elapsed() < Duration::from_secs(40), "it runs on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(pid(&slow).await, slow_by, "its connection was closed");
        let beginnings = beginnings.lock().expect("not poisoned").clone();
        assert_eq!(beginnings, [SSL_REQUEST; 2], "one that asks, one that cancels");
    });
}
