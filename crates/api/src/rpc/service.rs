//! Answers bodies: one request or a batch, each item charged for itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::{counter, histogram};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::gate::{Charge, Gate};
use super::session::{Pending, Session};
use super::wire::{self, BadCall, Call, Message, Payload};
use crate::error::RpcError;
use crate::eth::EthApi;
use crate::eth::methods::{self, Kind};
use crate::feed::Feed;
use crate::limits::RpcLimits;
use crate::metered::{REQUESTS, SECONDS};

/// What to send, and what to do once it is sent.
pub(crate) struct Answer {
    /// The text.
    pub message: Message,
    /// Its memory; to be dropped when it is sent.
    pub charge: Charge,
    /// Subscriptions that begin after the message.
    pub pending: Vec<Pending>,
}

impl Answer {
    /// An error for a body as a whole.
    pub(crate) fn error(error: &RpcError) -> Self {
        Answer { message: Message::error(None, error), charge: Charge::none(), pending: Vec::new() }
    }
}

/// The JSON-RPC service behind every transport.
pub(crate) struct RpcService {
    api: Arc<EthApi>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) gate: Gate,
}

struct Done {
    result: Bytes,
    charge: Charge,
    pending: Option<Pending>,
}

impl RpcService {
    pub(crate) fn new(api: Arc<EthApi>) -> Self {
        let gate = Gate::new(api.limits());
        RpcService { feed: Feed::new(Arc::clone(&api)), api, gate }
    }

    pub(crate) fn limits(&self) -> &RpcLimits {
        self.api.limits()
    }

    /// Answers a body. `None`: it held notifications only. `session` is the connection, where it stays.
    pub(crate) async fn answer(&self, body: &[u8], session: Option<&Arc<Session>>) -> Option<Answer> {
        let limits = self.limits();
        let items = match wire::parse(body, limits.max_batch_items) {
            Err(error) => return Some(Answer::error(&error)),
            Ok(Payload::Single(item)) => {
                let deadline = Instant::now() + Duration::from_millis(limits.request_timeout_ms);
                return self.item(item, session, deadline, &mut limits.max_response_bytes.clone()).await;
            }
            Ok(Payload::Batch(items)) => items,
        };
        let batch_deadline = Instant::now() + Duration::from_millis(limits.batch_timeout_ms);
        let mut bytes_left = limits.max_response_bytes;
        let (mut responses, mut charge, mut pending) =
            (Vec::with_capacity(items.len()), Charge::none(), Vec::new());
        for item in items {
            let deadline =
                batch_deadline.min(Instant::now() + Duration::from_millis(limits.request_timeout_ms));
            if let Some(answer) = self.item(item, session, deadline, &mut bytes_left).await {
                responses.push(answer.message);
                charge.add(answer.charge);
                pending.extend(answer.pending);
            }
        }
        Message::batch(responses).map(|message| Answer { message, charge, pending })
    }

    /// One item. `bytes_left` is what its batch may still hold.
    async fn item(
        &self,
        item: Result<Call<'_>, BadCall<'_>>,
        session: Option<&Arc<Session>>,
        deadline: Instant,
        bytes_left: &mut usize,
    ) -> Option<Answer> {
        let call = match item {
            Ok(call) => call,
            Err(bad) => {
                count("invalid", "error", None);
                let message = Message::error(bad.id, &bad.error);
                return Some(Answer { message, charge: Charge::none(), pending: Vec::new() });
            }
        };
        let began = Instant::now();
        let known = methods::find(&call.method);
        let limit_ms = self.limits().request_timeout_ms;
        let done = match timeout_at(deadline, self.call(&call, known, session, *bytes_left)).await {
            Ok(done) => done,
            Err(_) => Err(RpcError::timeout(limit_ms)),
        };
        let outcome = if done.is_ok() { "ok" } else { "error" };
        count(known.map_or("unknown", |(name, _)| name), outcome, Some(began.elapsed()));
        // A notification is carried out and gets no answer, and so no subscription either.
        let id = call.id?;
        Some(match done {
            Ok(done) => {
                *bytes_left = bytes_left.saturating_sub(done.result.len());
                let message = Message::result(id, done.result);
                Answer { message, charge: done.charge, pending: done.pending.into_iter().collect() }
            }
            Err(error) => {
                tracing::debug!(method = %call.method, %error, "refused");
                Answer {
                    message: Message::error(Some(id), &error),
                    charge: Charge::none(),
                    pending: Vec::new(),
                }
            }
        })
    }

    async fn call(
        &self,
        call: &Call<'_>,
        known: Option<(&'static str, Kind)>,
        session: Option<&Arc<Session>>,
        bytes_left: usize,
    ) -> Result<Done, RpcError> {
        let Some((name, kind)) = known else { return Err(RpcError::method_not_found(&call.method)) };
        let turn = self.gate.turn(kind).await;
        if let (Kind::Subscription, Some(session)) = (kind, session) {
            return self.subscription(name, call.params, session).await;
        }
        let result = self.api.call(name, call.params).await?.into_json();
        if result.len() > bytes_left {
            return Err(RpcError::response_too_large(self.limits().max_response_bytes));
        }
        // The turn is kept until there is room for the response: slow readers slow down new work instead of filling memory.
        let charge = self.gate.responses.take(result.len()).await;
        drop(turn);
        Ok(Done { result, charge, pending: None })
    }

    async fn subscription(
        &self,
        name: &str,
        params: Option<&RawValue>,
        session: &Arc<Session>,
    ) -> Result<Done, RpcError> {
        let (result, pending) = if name == "eth_subscribe" {
            let pending = session.subscribe(&self.api, params).await?;
            (serde_json::to_vec(pending.id())?, Some(pending))
        } else {
            (serde_json::to_vec(&session.unsubscribe(params)?)?, None)
        };
        Ok(Done { result: result.into(), charge: Charge::none(), pending })
    }
}

fn count(method: &'static str, outcome: &'static str, took: Option<Duration>) {
    counter!(REQUESTS, "method" => method, "outcome" => outcome).increment(1);
    if let Some(took) = took {
        histogram!(SECONDS, "method" => method).record(took.as_secs_f64());
    }
}
