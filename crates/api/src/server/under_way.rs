//! The requests under way on one connection.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;

/// Counts them, each until its answer is sent or dropped.
#[derive(Debug, Default)]
pub(super) struct UnderWay(watch::Sender<usize>);

impl UnderWay {
    /// Ends once none has been under way for so long.
    pub fn idle_for(&self, limit: Duration) -> impl Future<Output = ()> + use<> {
        let mut count = self.0.subscribe();
        async move {
            // An error says that the connection has ended.
            while count.wait_for(|count| *count == 0).await.is_ok() {
                if tokio::time::timeout(limit, count.wait_for(|count| *count > 0)).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        }
    }

    /// The answer of `call`, which counts as under way until its body ends.
    pub fn until_sent<E, F>(&self, call: F) -> impl Future<Output = Result<Response<Sent>, E>> + use<E, F>
    where
        F: Future<Output = Result<Response<Body>, E>>,
    {
        self.0.send_modify(|count| *count += 1);
        let one = One(self.0.clone());
        async move { Ok(call.await?.map(|body| Sent { body, _one: one })) }
    }
}

/// One request.
#[derive(Debug)]
struct One(watch::Sender<usize>);

impl Drop for One {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The body of its answer.
#[derive(Debug)]
pub(super) struct Sent {
    body: Body,
    _one: One,
}

impl hyper::body::Body for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
