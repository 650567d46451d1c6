//! Answers bodies: one request or a batch, each item charged for itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::{counter, histogram};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::budget::{Account, Charge};
use super::gate::{Gate, Room};
use super::session::{Pending, Session};
use super::wire::{self, BadCall, Call, Message, Payload};
use crate::error::RpcError;
use crate::eth::methods::{self, Kind};
use crate::eth::{Answered, EthApi, Refusal};
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
    /// Where all of it was refused because too much is going on: when to try again, in seconds.
    pub retry_after_s: Option<u64>,
}

impl Answer {
    /// An error for a body as a whole.
    pub(crate) fn error(error: &RpcError) -> Self {
        Answer::refused(None, error)
    }

    fn refused(id: Option<&RawValue>, error: &RpcError) -> Self {
        let message = Message::error(id, error);
        Answer { message, charge: Charge::none(), pending: Vec::new(), retry_after_s: error.retry_after_s() }
    }
}

/// The JSON-RPC service behind every transport.
pub(crate) struct RpcService {
    api: Arc<EthApi>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) gate: Arc<Gate>,
}

/// Who asks.
#[derive(Clone, Copy, Default)]
pub(crate) struct Caller<'a> {
    /// The connection, where it stays.
    pub session: Option<&'a Arc<Session>>,
    /// The address that it comes from.
    pub address: Option<IpAddr>,
    /// The number of its connection.
    pub connection: u64,
}

struct Done {
    result: Bytes,
    charge: Charge,
    pending: Option<Pending>,
}

impl RpcService {
    pub(crate) fn new(api: Arc<EthApi>) -> Self {
        let gate = Arc::new(Gate::new(api.limits()));
        RpcService { feed: Feed::new(Arc::clone(&api)), api, gate }
    }

    pub(crate) fn limits(&self) -> &RpcLimits {
        self.api.limits()
    }

    /// Answers a body. `None`: it held notifications only.
    pub(crate) async fn answer(&self, body: &[u8], caller: Caller<'_>) -> Option<Answer> {
        let limits = self.limits();
        let account = Account::of(caller.address, caller.connection);
        let mut room = self.gate.room(account, limits.max_response_bytes);
        let items = match wire::parse(body, limits.max_batch_items) {
            Err(error) => return Some(Answer::error(&error)),
            Ok(Payload::Single(item)) => {
                let deadline = Instant::now() + Duration::from_millis(limits.request_timeout_ms);
                return self.item(item, caller, deadline, &mut room).await;
            }
            Ok(Payload::Batch(items)) => items,
        };
        let batch_deadline = Instant::now() + Duration::from_millis(limits.batch_timeout_ms);
        let (mut responses, mut charge, mut pending) =
            (Vec::with_capacity(items.len()), Charge::none(), Vec::new());
        let mut retry_after_s = None;
        let mut all_refused = true;
        for item in items {
            let deadline =
                batch_deadline.min(Instant::now() + Duration::from_millis(limits.request_timeout_ms));
            if let Some(answer) = self.item(item, caller, deadline, &mut room).await {
                responses.push(answer.message);
                charge.add(answer.charge);
                all_refused &= answer.retry_after_s.is_some();
                retry_after_s = retry_after_s.max(answer.retry_after_s);
                pending.extend(answer.pending);
            }
        }
        let retry_after_s = retry_after_s.filter(|_| all_refused);
        Message::batch(responses).map(|message| Answer { message, charge, pending, retry_after_s })
    }

    /// One item. `room` is what its batch may still hold.
    async fn item(
        &self,
        item: Result<Call<'_>, BadCall<'_>>,
        caller: Caller<'_>,
        deadline: Instant,
        room: &mut Room,
    ) -> Option<Answer> {
        let call = match item {
            Ok(call) => call,
            Err(bad) => {
                count("invalid", "error", None);
                return Some(Answer::refused(bad.id, &bad.error));
            }
        };
        let began = Instant::now();
        let known = methods::find(&call.method);
        let limit_ms = self.limits().request_timeout_ms;
        let done = match timeout_at(deadline, self.call(&call, known, caller, room)).await {
            Ok(done) => done,
            Err(_) => Err(RpcError::timeout(limit_ms)),
        };
        let outcome = match &done {
            Ok(_) => "ok",
            Err(error) if error.retry_after_s().is_some() => "refused",
            Err(_) => "error",
        };
        count(known.map_or("unknown", |(name, _)| name), outcome, Some(began.elapsed()));
        // A notification is carried out and gets no answer, and so no subscription either.
        let id = call.id?;
        Some(match done {
            Ok(done) => {
                let message = Message::result(id, done.result);
                let pending = done.pending.into_iter().collect();
                Answer { message, charge: done.charge, pending, retry_after_s: None }
            }
            Err(error) => {
                tracing::debug!(method = %call.method, %error, "refused");
                Answer::refused(Some(id), &error)
            }
        })
    }

    async fn call(
        &self,
        call: &Call<'_>,
        known: Option<(&'static str, Kind)>,
        caller: Caller<'_>,
        room: &mut Room,
    ) -> Result<Done, RpcError> {
        let Some((name, kind)) = known else { return Err(RpcError::method_not_found(&call.method)) };
        room.demand(kind)?;
        let turn = self.gate.turn(kind).await?;
        if let (Kind::Subscription, Some(session)) = (kind, caller.session) {
            return self.subscription(name, call.params, session).await;
        }
        let (response, moved, turn) = match self.api.answer(name, call.params, caller.address).await {
            Ok(Answered { response, moved }) => (response, moved, Some(turn)),
            Err(Refusal::Error(error)) => return Err(error),
            Err(Refusal::Elsewhere(refusal)) => {
                // An upstream that doesn't answer keeps nobody from the archive.
                drop(turn);
                (self.api.forward(name, call.params, refusal).await?, None, None)
            }
        };
        let result = response.into_json();
        if result.len() > room.bytes_left() {
            return Err(RpcError::response_too_large(self.limits().max_response_bytes));
        }
        // The turn is kept until there is room for the response: slow readers slow down new work instead of filling memory.
        let charge = self.gate.keep(room, result.len(), turn.as_ref()).await?;
        drop(turn);
        if let Some(moved) = moved {
            moved.settle();
        }
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
