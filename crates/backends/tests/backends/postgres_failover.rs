//! Another server takes a primary's place: whoever writes reads from a primary too, since a server that follows another one says what was true some time ago.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use cairn_backends::postgres::{
    Isolation, PgDerived, PgDerivedOptions, PgOptions, PgPool, PgRawOptions, PgRawStore,
};
use cairn_core::ChainId;
use cairn_store::derived::{
    BLOCK_HEIGHT, Catalog, ColumnType, DerivedReader, ReorgApplier, TableClass, TableDef, column,
};
use cairn_store::suite::blocks::chain;
use cairn_store::{AppendBatch, RawReader, RawWriter, ReorgMark, Result, StoreError, StoreInfo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::pg;

static TRANSFERS: TableDef = TableDef {
    name: "transfers",
    service: "mapper",
    class: TableClass::Events { partition_heights: 1_000 },
    columns: &[column(BLOCK_HEIGHT, ColumnType::Int)],
    key: &[BLOCK_HEIGHT],
    indexes: &[],
};

fn named(db: &pg::TestDb, application_name: &str) -> PgOptions {
    PgOptions { application_name: application_name.into(), ..db.options() }
}

/// It is refused, and never answered. That a connection has ended may be noticed by who uses it.
async fn waits<T>(what: &str, ask: impl AsyncFn() -> Result<T>) {
    for _ in 0..100 {
        match ask().await {
            Err(StoreError::Busy(why)) if why.contains("follows another one") => return,
            Err(StoreError::Busy(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what} is answered by a server that follows another one"),
        }
    }
    panic!("{what} is refused for another reason");
}

#[tokio::test]
async fn the_raw_store_is_read_from_no_server_that_follows_another() {
    let Some(db) = pg::database().await else { return };
    let options = |read_only| PgRawOptions { read_only, ..PgRawOptions::with(named(&db, "writes")) };
    let store = PgRawStore::open(options(false), None).await.expect("opens");
    let info = StoreInfo { uuid: [7; 16], chain_id: ChainId(7), chain_config: Default::default() };
    store.init(info).await.expect("init");
    let fence = store.acquire().await.expect("acquire").fence;
    let batch = AppendBatch { blocks: chain(0, 3, 0), ..AppendBatch::default() };
    store.append(fence, batch).await.expect("appends");
    let (readers, work) = (store.readers("reads").expect("a door"), store.beside("works").expect("a door"));
    // Each of them has a connection that it keeps.
    drop((readers.snapshot().await.expect("reads"), work.snapshot().await.expect("reads")));

    db.follows_another(true).await;
    db.end_connections("writes").await;
    waits("the writer's head", async || store.snapshot().await).await;
    waits("the writer's fence", async || store.acquire().await).await;
    // Their connections still live, and lead to the server that was the primary.
    waits("a reader", async || readers.snapshot().await).await;
    waits("a worker", async || work.snapshot().await).await;
    waits("opening it", async || PgRawStore::open(options(false), None).await).await;
    // Who only reads may read there.
    let reader = PgRawStore::open(options(true), None).await.expect("opens");
    assert!(reader.snapshot().await.expect("reads").head().tip.is_some());

    db.follows_another(false).await;
    for reader in [&store as &dyn RawReader, &readers, &work] {
        let tip = reader.snapshot().await.expect("reads").head().tip;
        assert_eq!(tip.map(|tip| tip.height.get()), Some(2));
    }
    store.acquire().await.expect("writes");
}

#[tokio::test]
async fn derived_tables_are_read_from_no_server_that_follows_another() {
    let Some(db) = pg::database().await else { return };
    let catalog = || Catalog::new([&TRANSFERS]).expect("works");
    let options = |read_only| PgDerivedOptions {
        write: named(&db, "writes"),
        read: named(&db, "reads"),
        read_only,
        ..PgDerivedOptions::new(&db.url)
    };
    let store = PgDerived::open(options(false), catalog(), None).await.expect("opens");
    store.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
    drop(store.snapshot().await.expect("reads"));

    db.follows_another(true).await;
    db.end_connections("writes").await;
    waits("a writer's read", async || store.forks().await).await;
    waits("a snapshot", async || store.snapshot().await).await;
    let reader = PgDerived::open(options(true), catalog(), None).await.expect("opens");
    reader.snapshot().await.expect("reads");

    db.follows_another(false).await;
    store.snapshot().await.expect("reads");
    store.forks().await.expect("reads");
}

#[tokio::test]
async fn a_connection_that_ends_takes_those_of_pools_beside_with_it() {
    let Some(db) = pg::database().await else { return };
    let primary = |name| PgOptions { is_primary: true, ..named(&db, name) };
    let write = PgPool::new(primary("writes")).expect("a URL");
    let read = write.beside(primary("reads")).expect("a URL");
    let pid = async |pool: &PgPool| {
        let conn = pool.get().await.expect("connects");
        conn.query_one("SELECT pg_backend_pid()", &[]).await.expect("asks").get::<_, i32>(0)
    };
    let (written_by, read_by) = (pid(&write).await, pid(&read).await);
    assert_eq!((pid(&write).await, pid(&read).await), (written_by, read_by), "they are kept");
    db.end_connections("writes").await;
    // It is noticed a moment later.
    let mut now = written_by;
    for _ in 0..100 {
        let conn = write.get().await.expect("connects");
        if let Ok(row) = conn.query_one("SELECT pg_backend_pid()", &[]).await {
            now = row.get(0);
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(now, written_by);
    assert_ne!(pid(&read).await, read_by, "the other pool's connection is used again");
}

/// A way to the server on which nothing comes back any more, once it is told so, and nobody hangs up.
#[derive(Default)]
struct Way {
    is_silent: AtomicBool,
    /// How many connections the client closed.
    closed: AtomicUsize,
}

impl Way {
    /// The URL of a database by this way.
    async fn open(self: &Arc<Self>, url: &str) -> String {
        let mut by_way = url::Url::parse(url).expect("a URL");
        let host = by_way.host_str().expect("a host").to_owned();
        let server = (host, by_way.port().unwrap_or(5_432));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        by_way.set_host(Some("127.0.0.1")).expect("a host");
        by_way.set_port(Some(listener.local_addr().expect("an address").port())).expect("a port");
        let way = self.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server.clone()).await.expect("the server");
                tokio::spawn(way.clone().carry(client, server));
            }
        });
        by_way.into()
    }

    async fn carry(self: Arc<Self>, client: TcpStream, server: TcpStream) {
        let ((mut asked, mut answered), (mut answers, mut asks)) = (client.into_split(), server.into_split());
        let back = tokio::spawn({
            let way = self.clone();
            async move {
                let mut buffer = vec![0; 8_192];
                while let Ok(length @ 1..) = answers.read(&mut buffer).await {
                    if !way.is_silent.load(SeqCst) && answered.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
                std::future::pending().await
            }
        });
        // Ends with the client's end, however that is told.
        drop(tokio::io::copy(&mut asked, &mut asks).await);
        self.closed.fetch_add(1, SeqCst);
        back.abort();
    }
}

#[tokio::test]
async fn a_statement_that_nobody_waits_for_is_cancelled_and_the_server_not_taken_for_lost() {
    let Some(db) = pg::database().await else { return };
    let primary = PgOptions { is_primary: true, ..db.options() };
    let slow = PgPool::new(PgOptions { connect_timeout_ms: 1_000, ..primary.clone() }).expect("a URL");
    let other = slow.beside(primary).expect("a URL");
    let pid = async |pool: &PgPool| {
        let conn = pool.get().await.expect("connects");
        conn.query_one("SELECT pg_backend_pid()", &[]).await.expect("asks").get::<_, i32>(0)
    };
    let (slow_by, other_by) = (pid(&slow).await, pid(&other).await);
    let conn = slow.begin(Isolation::ReadCommitted).await.expect("begins");
    let asked = conn.query_one("SELECT pg_sleep(30)", &[]);
    tokio::time::timeout(Duration::from_millis(200), asked).await.expect_err("it sleeps");
    drop(conn);
    let begun = std::time::Instant::now();
    let running = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state <> 'idle'";
    let watch = other.get().await.expect("connects");
    while watch.query_one(running, &[&slow_by]).await.expect("asks").get::<_, i64>(0) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it runs on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(watch);
    assert_eq!(pid(&other).await, other_by, "the others are kept");
    // Its own goes back to its pool, which may be some moments later.
    while pid(&slow).await != slow_by {
        assert!(begun.elapsed() < Duration::from_secs(25), "its connection was closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_rollback_that_is_not_answered_closes_its_connection_and_gives_up_the_others() {
    let Some(db) = pg::database().await else { return };
    let way = Arc::new(Way::default());
    let primary = |url: &str| PgOptions { is_primary: true, url: url.into(), ..db.options() };
    let by_way = way.open(&db.url).await;
    let write = PgPool::new(PgOptions { connect_timeout_ms: 1_500, ..primary(&by_way) }).expect("a URL");
    let read = write.beside(primary(&db.url)).expect("a URL");
    let pid = async |pool: &PgPool| {
        let conn = pool.get().await.expect("connects");
        conn.query_one("SELECT pg_backend_pid()", &[]).await.expect("asks").get::<_, i32>(0)
    };
    let read_by = pid(&read).await;
    let conn = write.begin(Isolation::ReadCommitted).await.expect("begins");
    assert_eq!((pid(&read).await, way.closed.load(SeqCst)), (read_by, 0), "it is kept");
    way.is_silent.store(true, SeqCst);
    drop(conn);
    // One is opened to cancel what it does; then it is closed itself, and then the others are given up.
    let begun = std::time::Instant::now();
    while way.closed.load(SeqCst) < 2 {
        assert!(begun.elapsed() < Duration::from_secs(15), "its connection waits for an answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while pid(&read).await == read_by {
        assert!(begun.elapsed() < Duration::from_secs(20), "the other pool's connection is used again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(way.closed.load(SeqCst), 2);
    way.is_silent.store(false, SeqCst);
    pid(&write).await;
}

#[tokio::test]
async fn p28_a_connection_on_which_nothing_comes_back_is_closed_in_time() {
    let Some(db) = pg::database().await else { return };
    let way = Arc::new(Way::default());
    let options = PgOptions {
        url: way.open(&db.url).await,
        statement_timeout_ms: 1_000,
        answer_grace_ms: 500,
        connect_timeout_ms: 1_000,
        ..db.options()
    };
    let pool = PgPool::new(options).expect("a URL");
    let conn = pool.get().await.expect("connects");
    let idle = pool.get().await.expect("connects");
    conn.execute("CREATE TABLE t (n bigint)", &[]).await.expect("makes a table");
    let begun = std::time::Instant::now();
    // Whatever takes long at the server is cut off there.
    let slow = conn.query_one("SELECT pg_sleep(30)", &[]).await.expect_err("too long");
    assert!(slow.to_string().contains("57014"), "{slow}");
    way.is_silent.store(true, SeqCst);
    let silent = conn.query_one("SELECT count(*) FROM t", &[]).await.expect_err("nothing comes back");
    assert!(matches!(&silent, StoreError::Busy(why) if why.contains("said nothing for 1500 ms")), "{silent}");
    assert!(conn.is_closed());
    drop(conn);
    // Nor is one that is new waited for without end, nor one that was idle, however it is used.
    let connecting = pool.get().await.expect_err("nothing comes back");
    assert!(matches!(connecting, StoreError::Busy(_)), "{connecting}");
    let mut idle = idle;
    let beginning = idle.begin(Isolation::ReadCommitted).await.expect_err("nothing comes back");
    assert!(matches!(beginning, StoreError::Busy(_)), "{beginning}");
    drop(idle);
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    way.is_silent.store(false, SeqCst);
    let conn = pool.begin(Isolation::ReadCommitted).await.expect("it is back");
    conn.execute("INSERT INTO t VALUES (1)", &[]).await.expect("writes");
    // Who turns the limit off waits for as long as it takes.
    conn.batch("SET LOCAL statement_timeout = 0").await.expect("sets it");
    conn.query_one("SELECT pg_sleep(2)", &[]).await.expect("it may take long");
}

#[tokio::test]
async fn p29_a_pooler_by_transactions_and_an_encoding_that_loses_texts_are_refused_by_name() {
    let refused = async |url: &str| {
        let raw = PgRawStore::open(PgRawOptions::with(PgOptions::new(url)), None).await;
        let raw = raw.expect_err("the raw store opens").to_string();
        let app = PgDerivedOptions::new(url);
        let app = PgDerived::open(app, Catalog::new([&TRANSFERS]).expect("works"), None).await;
        (raw, app.expect_err("the app store opens").to_string())
    };
    let Some(db) = pg::database().await else { return };
    // Two connections seem to have one session, as behind such a pooler.
    db.sql(
        "CREATE SCHEMA pooled; CREATE FUNCTION pooled.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 7'",
    )
    .await;
    let name = db.url.rsplit('/').next().and_then(|rest| rest.split('?').next()).expect("a name");
    db.sql(&format!("ALTER DATABASE {name} SET search_path = pooled, pg_catalog, public")).await;
    let (raw, app) = refused(&db.url).await;
    assert!(raw.contains("PgBouncer: pool_mode = transaction"), "{raw}");
    assert_eq!(raw, app);
    let Some(db) = pg::database_of("ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'").await else { return };
    let (raw, app) = refused(&db.url).await;
    assert!(raw.contains("LATIN1") && raw.contains("ENCODING 'UTF8'"), "{raw}");
    assert_eq!(raw, app);
}
