//! Clients that a load is made of: honest ones, greedy ones, slow ones, silent ones, each from an address of its own.
//!
//! Linux has all of 127.0.0.0/8 on its loopback, so that one machine can be many callers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{SinkExt, StreamExt};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{WebSocketStream, client_async};

/// How long an answer may take that isn't measured.
const PATIENCE: Duration = Duration::from_secs(60);
/// What a drip reader takes every tenth of a second.
const DRIP_BYTES: usize = 13_000;

/// The address of a caller.
pub fn caller(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number)
}

/// An HTTP client at `from` that takes answers as they are, so that it costs little itself.
pub fn client(from: Ipv4Addr, patience: Duration, kept_connections: usize) -> Result<Client> {
    let client = Client::builder().local_address(IpAddr::V4(from)).timeout(patience).no_proxy().no_gzip();
    Ok(client.pool_max_idle_per_host(kept_connections).build()?)
}

/// A connection from an address of this machine. With `receive_bytes` the system keeps no more for it than about that.
pub async fn connect(from: Ipv4Addr, to: SocketAddr, receive_bytes: Option<u32>) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0))).with_context(|| format!("can't call from {from}"))?;
    if let Some(bytes) = receive_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(timeout(PATIENCE, socket.connect(to)).await.context("no connection in time")??)
}

/// A request for logs of blocks 1 to `last`.
pub fn get_logs(id: u64, last: u64) -> Value {
    let filter = json!([{"fromBlock": "0x1", "toBlock": format!("{last:#x}")}]);
    json!({"jsonrpc": "2.0", "id": id, "method": "eth_getLogs", "params": filter})
}

/// `items` of them in one batch.
pub fn batch(items: u64, last: u64) -> String {
    Value::from_iter((0..items).map(|id| get_logs(id, last))).to_string()
}

/// Sends a JSON-RPC body.
pub async fn post(client: &Client, to: SocketAddr, body: String) -> Result<Response> {
    let request = client.post(format!("http://{to}/")).header("content-type", "application/json");
    Ok(request.body(body).send().await?)
}

/// Reads an answer to its end, and says how long it was.
pub async fn drain(mut answer: Response) -> Result<usize> {
    let mut bytes = 0;
    while let Some(piece) = answer.chunk().await.context("an answer broke off")? {
        bytes += piece.len();
    }
    Ok(bytes)
}

/// What a well-behaved client saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// How often it asked.
    pub asked: u64,
    /// How long the slowest answer took.
    pub slowest: Duration,
}

/// Asks for the head ten times a second, each time over a new connection. Ends at once where an answer fails, or takes longer than `limit`.
pub async fn ask_heads(rpc: SocketAddr, during: Duration, limit: Duration) -> Result<Seen> {
    let client = client(caller(250), limit, 0)?;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}).to_string();
    watch(during, async || {
        let answer: Value = serde_json::from_slice(&post(&client, rpc, body.clone()).await?.bytes().await?)?;
        ensure!(answer["result"].is_string(), "eth_blockNumber: {answer}");
        Ok(())
    })
    .await
}

/// Asks for pages in turn, likewise.
pub async fn ask_pages(pages: &[String], during: Duration, limit: Duration) -> Result<Seen> {
    let client = client(caller(251), limit, 0)?;
    let mut turn = pages.iter().cycle();
    watch(during, async || {
        let page = turn.next().context("no page to ask for")?;
        let answer = client.get(page).send().await.with_context(|| page.clone())?;
        let status = answer.status();
        ensure!(status == 200, "{page}: {status} {}", answer.text().await?);
        drain(answer).await.map(drop)
    })
    .await
}

async fn watch(during: Duration, mut ask: impl AsyncFnMut() -> Result<()>) -> Result<Seen> {
    let begun = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut seen = Seen::default();
    while begun.elapsed() < during {
        ticks.tick().await;
        let asked = Instant::now();
        let answer = ask().await;
        let took = asked.elapsed();
        answer.with_context(|| {
            format!(
                "request {} ended after {} ms, {:.1} s after the load began",
                seen.asked + 1,
                took.as_millis(),
                begun.elapsed().as_secs_f64()
            )
        })?;
        seen = Seen { asked: seen.asked + 1, slowest: seen.slowest.max(took) };
    }
    Ok(seen)
}

/// What a client got that sends batches.
#[derive(Debug, Default)]
pub struct Batches {
    /// Answers with every item.
    pub whole: u64,
    /// Answers of which some or all items were refused.
    pub cut: u64,
    /// All of them together.
    pub bytes: usize,
}

/// Sends one batch after the other, and reads each answer as fast as it comes. `whole_bytes` is what all of its items take.
pub async fn send_batches(
    from: Ipv4Addr,
    to: SocketAddr,
    batch: String,
    whole_bytes: usize,
    until: Instant,
) -> Result<Batches> {
    let client = client(from, PATIENCE, 1)?;
    let mut got = Batches::default();
    while Instant::now() < until {
        let answer = post(&client, to, batch.clone()).await?;
        let status = answer.status().as_u16();
        let bytes = drain(answer).await?;
        match status {
            200 if bytes >= whole_bytes => got.whole += 1,
            200 => got.cut += 1,
            429 => {
                got.cut += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            status => bail!("a batch was answered with {status}"),
        }
        got.bytes += bytes;
    }
    Ok(got)
}

/// Asks for `body` and takes 130 KB a second of the answer; asks again when it has it, or was cut off.
pub async fn drip(from: Ipv4Addr, to: SocketAddr, body: String, until: Instant) -> Result<()> {
    let mut piece = vec![0; DRIP_BYTES];
    while Instant::now() < until {
        let mut stream = ask_over(from, to, &body).await?;
        // A server may end this connection as it likes.
        while let Ok(Ok(1..)) = timeout_at(until, stream.read(&mut piece)).await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

/// Asks for `body` over a connection of its own, whose answer nobody reads as long as it is held.
pub async fn ask_over(from: Ipv4Addr, to: SocketAddr, body: &str) -> Result<TcpStream> {
    let mut stream = connect(from, to, Some(16 << 10)).await?;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(stream)
}

/// Holds a connection that says nothing, and opens another one when the server closes it.
pub async fn idle(from: Ipv4Addr, to: SocketAddr, until: Instant) -> Result<()> {
    while Instant::now() < until {
        let mut stream = connect(from, to, None).await?;
        // Closed or reset, the next one takes its place.
        let _ = timeout_at(until, stream.read(&mut [0])).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A connection that subscribes.
pub struct Subscriber(WebSocketStream<TcpStream>);

impl Subscriber {
    /// Connects. The system keeps little for it, so that one that doesn't read soon holds up the server.
    pub async fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<Subscriber> {
        let stream = connect(from, to, Some(16 << 10)).await?;
        let opened = timeout(PATIENCE, client_async(format!("ws://{to}/"), stream)).await;
        Ok(Subscriber(opened.context("no WebSocket in time")??.0))
    }

    /// Subscribes `count` times to the same.
    pub async fn subscribe(&mut self, to: &str, count: u64) -> Result<()> {
        for id in 1..=count {
            let body = json!({"jsonrpc": "2.0", "id": id, "method": "eth_subscribe", "params": [to]});
            self.0.send(Message::text(body.to_string())).await?;
        }
        let mut confirmed = 0;
        while confirmed < count {
            let answer = self.next().await?;
            if answer["id"].is_u64() {
                ensure!(answer["result"].is_string(), "eth_subscribe {to}: {answer}");
                confirmed += 1;
            }
        }
        Ok(())
    }

    /// The next message.
    pub async fn next(&mut self) -> Result<Value> {
        loop {
            match timeout(PATIENCE, self.0.next()).await.context("no message in time")? {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text)?),
                Some(Ok(Message::Close(why))) => bail!("the WebSocket was closed: {why:?}"),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("the WebSocket failed"),
                None => bail!("the WebSocket ended"),
            }
        }
    }

    /// Reads notifications of new heads; how many came, and the longest time without one.
    pub async fn read_heads(&mut self, during: Duration) -> Result<Seen> {
        let begun = Instant::now();
        let (mut seen, mut last) = (Seen::default(), begun);
        while begun.elapsed() < during {
            let notification = self.next().await?;
            ensure!(notification["method"] == "eth_subscription", "not a notification: {notification}");
            seen = Seen { asked: seen.asked + 1, slowest: seen.slowest.max(last.elapsed()) };
            last = Instant::now();
        }
        Ok(seen)
    }
}

/// How one request of an open loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered after this time.
    Answered(Duration),
    /// Refused in a way that a client can act on.
    Refused,
}

/// Sends one request for logs, and looks at how it ends. Anything but an answer or a proper refusal is an error.
pub async fn ask_logs(client: &Client, to: SocketAddr, last: u64) -> Result<Outcome> {
    let asked = Instant::now();
    let answer = post(client, to, get_logs(1, last).to_string()).await?;
    if answer.status() == 200 {
        drain(answer).await?;
        return Ok(Outcome::Answered(asked.elapsed()));
    }
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    let body: Value = serde_json::from_slice(&answer.bytes().await?)?;
    ensure!((status, &body["error"]["code"]) == (429, &json!(-32005)), "{status}: {body}");
    let after = headers.get("retry-after").context("a refusal without Retry-After")?.to_str()?;
    ensure!(after.parse::<u64>().is_ok_and(|s| (1..=60).contains(&s)), "Retry-After: {after}");
    Ok(Outcome::Refused)
}
