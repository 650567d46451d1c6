//! A TCP proxy before a dependency, which takes it away without owning it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a proxy does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Forwards.
    Open,
    /// Closes every connection, old and new.
    Closed,
    /// Takes connections and bytes, and forwards nothing.
    ///
    /// A connection of that time stays silent for good, as behind a router that has forgotten it. The server's side of it ends when the way is open
    /// again.
    Silent,
}

/// A proxy; ends when dropped, with all its connections.
pub struct Proxy {
    address: SocketAddr,
    way: watch::Sender<Way>,
    _carrying: JoinSet<()>,
}

impl Proxy {
    /// Forwards to `to`, a host and a port.
    pub async fn start(to: String) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("a proxy can't listen")?;
        let address = listener.local_addr()?;
        let (way, ways) = watch::channel(Way::Open);
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((client, _)) = listener.accept() => {
                        connections.spawn(carry(client, to.clone(), ways.clone()));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Proxy { address, way, _carrying: carrying })
    }

    /// Before the server of a URL: the proxy, and the URL through it.
    pub async fn before(url: &str, default_port: u16) -> Result<(Proxy, String)> {
        let mut url = reqwest::Url::parse(url).context("not a URL")?;
        let host = url.host_str().context("a URL without a host")?;
        let proxy = Proxy::start(format!("{host}:{}", url.port().unwrap_or(default_port))).await?;
        let through =
            url.set_ip_host(proxy.address.ip()).and_then(|()| url.set_port(Some(proxy.address.port())));
        through.ok().with_context(|| format!("{url} can't lead through a proxy"))?;
        Ok((proxy, url.to_string()))
    }

    /// From now on.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

/// One connection to its end.
async fn carry(mut client: TcpStream, to: String, mut ways: watch::Receiver<Way>) {
    let now = *ways.borrow_and_update();
    let mut server = None;
    if now == Way::Open {
        let Ok(mut connected) = TcpStream::connect(&to).await else { return };
        tokio::select! {
            // Either side may end it as it likes.
            _ = copy_bidirectional(&mut client, &mut connected) => return,
            changed = ways.changed() => if changed.is_err() { return },
        }
        server = Some(connected);
    }
    if *ways.borrow_and_update() != Way::Silent {
        return;
    }
    let mut lost = [0; 4096];
    let mut held = true;
    loop {
        tokio::select! {
            read = client.read(&mut lost), if held => held = read.is_ok_and(|bytes| bytes > 0),
            changed = ways.changed() => match changed {
                Ok(()) if *ways.borrow_and_update() == Way::Open => server = None,
                Ok(()) => {}
                Err(_) => return,
            },
        }
        if !held && server.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::*;

    async fn echo(client: &mut TcpStream) -> std::io::Result<u8> {
        client.write_all(b"x").await?;
        client.read_u8().await
    }

    #[tokio::test]
    async fn a_dependency_goes_away_and_comes_back() {
        let server = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", server.local_addr().expect("an address"));
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        let (proxy, through) = Proxy::before(&url, 80).await.expect("a proxy");
        assert_eq!(through, format!("http://{}/", proxy.address));
        let connect = async || TcpStream::connect(proxy.address).await.expect("connected");

        let mut first = connect().await;
        assert_eq!(echo(&mut first).await.expect("open"), b'x');
        proxy.set(Way::Closed);
        assert!(echo(&mut first).await.is_err() && echo(&mut connect().await).await.is_err());
        proxy.set(Way::Open);
        let mut second = connect().await;
        assert_eq!(echo(&mut second).await.expect("open again"), b'x');

        proxy.set(Way::Silent);
        let mut third = connect().await;
        let short = Duration::from_millis(200);
        assert!(timeout(short, echo(&mut second)).await.is_err(), "an old connection is silent");
        assert!(timeout(short, echo(&mut third)).await.is_err(), "a new connection is silent");
        proxy.set(Way::Open);
        assert_eq!(echo(&mut connect().await).await.expect("open again"), b'x');
        assert!(timeout(short, echo(&mut second)).await.is_err(), "it stays silent");
    }
}
