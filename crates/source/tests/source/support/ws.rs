//! A mock WebSocket: says what it is told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{SinkExt, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;

/// A running WebSocket server. Dropping it stops it.
pub struct MockSocket {
    pub url: url::Url,
    say: broadcast::Sender<String>,
    connections: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl Drop for MockSocket {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl MockSocket {
    pub async fn start() -> MockSocket {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (say, _) = broadcast::channel::<String>(64);
        let connections = Arc::new(AtomicUsize::new(0));
        let open = Arc::new(AtomicUsize::new(0));
        let (sender, count, live) = (say.clone(), connections.clone(), open.clone());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut words = sender.subscribe();
                let (count, live) = (count.clone(), live.clone());
                tokio::spawn(async move {
                    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                    count.fetch_add(1, Ordering::SeqCst);
                    live.fetch_add(1, Ordering::SeqCst);
                    loop {
                        tokio::select! {
                            message = socket.next() => match message {
                                Some(Ok(Message::Text(text))) if text.as_str().contains("eth_subscribe") => {
                                    let answer = r#"{"jsonrpc":"2.0","id":1,"result":"0xcd0c3e8af590364c09d0fa6a1210faf5"}"#;
                                    socket.send(Message::text(answer)).await.unwrap();
                                }
                                Some(Ok(_)) => {}
                                _ => break,
                            },
                            word = words.recv() => {
                                let Ok(word) = word else { break };
                                if word == "close" || socket.send(Message::text(word)).await.is_err() {
                                    break;
                                }
                            }
                        }
                    }
                    live.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        MockSocket { url, say, connections, open, server }
    }

    /// Announces a head to all who are connected.
    pub fn head(&self, height: u64) {
        self.say(&format!(
            r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{{"subscription":"0x1","result":{{"number":"{height:#x}"}}}}}}"#
        ));
    }

    pub fn say(&self, text: &str) {
        let _ = self.say.send(text.to_owned());
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }
}
