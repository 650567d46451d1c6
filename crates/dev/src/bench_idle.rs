//! What a cairn at rest costs its database: SQL statements a second while an anvil mines one empty block every 12 s.
//!
//! A proxy between cairn and the server counts what the clients send: `Query` and `Execute` messages of the PostgreSQL protocol, version 3
//! (<https://www.postgresql.org/docs/current/protocol-message-formats.html>). It counts every role of the process and both databases.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::anvil::Anvil;
use crate::args::{KeepArgs, ServerArgs};
use crate::cairn::Cairn;
use crate::databases::Databases;
use crate::report::figure;

const PATIENCE: Duration = Duration::from_secs(180);
/// More at rest is a fault.
const LIMIT_PER_S: f64 = 20.0;
/// Blocks of the history.
const HISTORY_BLOCKS: usize = 60;
/// A text in the list of the most frequent is cut here.
const SHOWN_CHARS: usize = 110;
/// The code of an `SSLRequest`.
const SSL_REQUEST: u32 = 80_877_103;

/// Where things are, and how long.
#[derive(Parser)]
pub struct Options {
    /// The anvil binary.
    #[arg(long)]
    anvil: PathBuf,
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
    /// Blocks that are mined while statements are counted.
    #[arg(long, default_value_t = 6)]
    blocks: u32,
    /// Seconds between two of them.
    #[arg(long, default_value_t = 12)]
    block_time_s: u64,
    /// List so many of the most frequent statements.
    #[arg(long, default_value_t = 10)]
    top: usize,
    #[command(flatten)]
    keep: KeepArgs,
}

/// `./dev bench idle`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let node = Anvil::start(&options.anvil, &folder.join("anvil.log")).await?;
    for _ in 0..HISTORY_BLOCKS {
        node.mine().await?;
    }
    let databases = Databases::make(&options.server.postgres, "cairn_idle").await?;
    let counter = Arc::new(Counter::default());
    let server = reqwest::Url::parse(&options.server.postgres).context("the server's URL")?;
    let upstream = format!(
        "{}:{}",
        server.host_str().context("the server's URL has no host")?,
        server.port().unwrap_or(5432)
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let proxy = tokio::spawn(serve(listener, upstream, counter.clone()));
    let through = |url: &String| -> Result<String> {
        let mut url = reqwest::Url::parse(url)?;
        url.set_host(Some("127.0.0.1"))?;
        url.set_port(Some(port)).ok().context("a URL without a port")?;
        Ok(url.into())
    };
    let cairn = Cairn::new(&options.cairn, folder)?
        .with("DB_RAW_URL", &through(&databases.urls[0])?)
        .with("DB_APP_URL", &through(&databases.urls[1])?);
    let mut process = cairn.run(&node.url, &[]).await?;
    databases.settle(&node.rpc, PATIENCE).await?;
    // What follows the last block of the history is not rest.
    tokio::time::sleep(Duration::from_secs(10)).await;

    let (begun, before) = (Instant::now(), counter.counts());
    for block in 1..=options.blocks {
        node.mine().await?;
        tokio::time::sleep_until(begun + Duration::from_secs(options.block_time_s) * block).await;
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), counter.counts());
    process.check_alive()?;
    databases.settle(&node.rpc, PATIENCE).await?;
    process.kill().await?;
    proxy.abort();
    if !options.keep.keeps() {
        databases.drop().await?;
    }

    let mut counts: Vec<(u64, &String)> =
        after.iter().map(|(text, count)| (count - before.get(text).unwrap_or(&0), text)).collect();
    counts.sort_by(|a, b| b.cmp(a));
    let statements: u64 = counts.iter().map(|(count, _)| count).sum();
    for (count, text) in counts.iter().take(options.top) {
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
        println!("{:8.2}/s  {}", *count as f64 / seconds, text.chars().take(SHOWN_CHARS).collect::<String>());
    }
    let per_s = statements as f64 / seconds;
    figure("idle_blocks", options.blocks, "blocks");
    figure("idle_statements", statements, "statements");
    figure("idle_statements_per_s", format!("{per_s:.1}"), "1/s");
    figure("idle_statements_ratio", format!("{:.2}", per_s / LIMIT_PER_S), "measured / limit");
    Ok(if per_s <= LIMIT_PER_S { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often each text was executed.
#[derive(Default)]
struct Counter {
    counts: Mutex<HashMap<String, u64>>,
}

impl Counter {
    fn counts(&self) -> HashMap<String, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, text: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        // A `Query` may hold several.
        for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            *counts.entry(statement.to_owned()).or_default() += 1;
        }
    }
}

async fn serve(listener: TcpListener, upstream: String, counter: Arc<Counter>) -> Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let (upstream, counter) = (upstream.clone(), counter.clone());
        tokio::spawn(async move {
            if let Err(error) = forward(client, &upstream, &counter).await {
                eprintln!("a proxied connection ended: {error:#}");
            }
        });
    }
}

async fn forward(client: TcpStream, upstream: &str, counter: &Counter) -> Result<()> {
    let server = TcpStream::connect(upstream).await.context("the server")?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, mut client_write) = client.into_split();
    let (mut server_read, server_write) = server.into_split();
    tokio::select! {
        done = tokio::io::copy(&mut server_read, &mut client_write) => { done?; }
        done = count(client_read, server_write, counter) => done?,
    }
    Ok(())
}

/// Forwards a client's messages and counts those that execute something.
async fn count(
    client: impl tokio::io::AsyncRead + Unpin,
    mut server: impl tokio::io::AsyncWrite + Unpin,
    counter: &Counter,
) -> Result<()> {
    let mut client = BufReader::new(client);
    let mut statements: HashMap<Vec<u8>, String> = HashMap::new();
    let mut portals: HashMap<Vec<u8>, String> = HashMap::new();
    let mut has_begun = false;
    loop {
        // The first message has no type.
        let kind = match has_begun {
            false => None,
            true => match client.read_u8().await {
                Ok(kind) => Some(kind),
                Err(_) => return Ok(()),
            },
        };
        let Ok(length) = client.read_u32().await else { return Ok(()) };
        let mut body = vec![0; (length as usize).saturating_sub(4)];
        client.read_exact(&mut body).await?;
        let mut parts = body.split(|byte| *byte == 0);
        let mut part = || parts.next().unwrap_or_default();
        match kind {
            // A request for TLS comes before the start itself, and is refused by a server without it.
            None => has_begun = !body.starts_with(&SSL_REQUEST.to_be_bytes()),
            Some(b'Q') => counter.add(&String::from_utf8_lossy(part())),
            Some(b'P') => {
                let name = part().to_vec();
                statements.insert(name, String::from_utf8_lossy(part()).into_owned());
            }
            Some(b'B') => {
                let portal = part().to_vec();
                portals.insert(portal, statements.get(part()).cloned().unwrap_or_default());
            }
            Some(b'E') => counter.add(portals.get(part()).map_or("", String::as_str)),
            Some(_) => {}
        }
        if let Some(kind) = kind {
            server.write_u8(kind).await?;
        }
        server.write_u32(length).await?;
        server.write_all(&body).await?;
        if client.buffer().is_empty() {
            server.flush().await?;
        }
    }
}
