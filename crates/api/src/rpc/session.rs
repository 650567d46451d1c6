//! One connection that stays: its outbox and its subscriptions.
//!
//! Order: a subscription's first notification comes after the response that gave its id.
//!
//! Back-pressure: a pump waits for room in the outbox and for memory. The listener cuts off a peer that takes too little. A subscription
//! that falls out of the head feed's window closes the connection with the reason. It never goes on with a gap.
//!
//! Memory: logs are written one by one, against the budget of notifications, and for one subscription of the connection at a time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cairn_evm::{Arguments, LogFilter, parse_filter};
use metrics::{counter, gauge};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::budget::{Account, Charge};
use super::gate::Gate;
use super::wire::Message;
use crate::error::{LIMIT_EXCEEDED, RpcError};
use crate::eth::EthApi;
use crate::eth::read::work;
use crate::feed::{Feed, FeedMessage, FeedSubscriber, HeadEvent, LogsOf, Wants};
use crate::metered::{SUBSCRIPTIONS, SUBSCRIPTIONS_ENDED};

/// Messages that wait for the peer.
const OUTBOX_MESSAGES: usize = 32;

/// What the connection's writer gets.
pub(crate) enum Outgoing {
    /// To be sent; the charge is dropped after that.
    Message(Message, Charge),
    /// To be sent last: why the connection ends.
    Close(Ending, String),
}

/// The kind of an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A subscription can't go on without a gap: connect again.
    Behind,
    /// The peer sent more than is allowed.
    TooLarge,
}

#[derive(Debug, Clone)]
enum Subject {
    NewHeads,
    Logs(LogFilter),
}

/// A subscription whose id has not been sent yet.
pub(crate) struct Pending {
    id: String,
    subject: Subject,
    feed: FeedSubscriber,
    cancel: CancellationToken,
}

impl Pending {
    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

/// The connection.
pub(crate) struct Session {
    feed: Arc<Feed>,
    gate: Arc<Gate>,
    account: Account,
    /// Held by the one subscription that sends logs.
    delivering: AsyncMutex<()>,
    outbox: mpsc::Sender<Outgoing>,
    subscriptions: Mutex<HashMap<String, CancellationToken>>,
    max_subscriptions: usize,
    /// How long logs wait for memory.
    patience: Duration,
    /// Cancelled when the connection ends.
    closed: CancellationToken,
    ids: RandomState,
}

impl Session {
    /// A session and the other end of its outbox.
    pub(crate) fn new(
        feed: Arc<Feed>,
        gate: Arc<Gate>,
        account: Account,
        api: &EthApi,
        closed: CancellationToken,
    ) -> (Arc<Self>, mpsc::Receiver<Outgoing>) {
        let (outbox, outgoing) = mpsc::channel(OUTBOX_MESSAGES);
        let session = Session {
            feed,
            gate,
            account,
            delivering: AsyncMutex::new(()),
            outbox,
            subscriptions: Mutex::default(),
            max_subscriptions: api.limits().max_subscriptions_per_connection,
            patience: Duration::from_millis(api.limits().write_stall_timeout_ms),
            closed,
            ids: RandomState::new(),
        };
        (Arc::new(session), outgoing)
    }

    /// Waits until the connection ends.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    fn subscriptions(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message; waits while the outbox is full. `false`: the connection ends.
    pub(crate) async fn send(&self, outgoing: Outgoing) -> bool {
        tokio::select! {
            () = self.closed.cancelled() => false,
            // Whether the peer still takes something is the listener's to judge.
            sent = self.outbox.send(outgoing) => sent.is_ok(),
        }
    }

    /// `eth_subscribe`: `["newHeads"]` or `["logs", {address, topics}]`. To be started with [`Session::start`].
    pub(crate) async fn subscribe(
        &self,
        api: &EthApi,
        params: Option<&RawValue>,
    ) -> Result<Pending, RpcError> {
        let subject = subject(api, params)?;
        let wants = match subject {
            Subject::NewHeads => Wants::Headers,
            Subject::Logs(_) => Wants::Logs,
        };
        let cancel = self.closed.child_token();
        let id = {
            let mut subscriptions = self.subscriptions();
            if subscriptions.len() >= self.max_subscriptions {
                let max = self.max_subscriptions;
                return Err(RpcError::new(
                    LIMIT_EXCEEDED,
                    format!(
                        "this connection already has {max} subscriptions, which is the limit; end one first"
                    ),
                ));
            }
            let id = format!("0x{:x}", self.ids.hash_one(RandomState::new().hash_one(subscriptions.len())));
            subscriptions.insert(id.clone(), cancel.clone());
            id
        };
        let mut kept = Kept { session: self, id: Some(id) };
        let feed = self.feed.subscribe(wants).await?;
        let id = kept.id.take().unwrap_or_default();
        Ok(Pending { id, subject, feed, cancel })
    }

    /// `eth_unsubscribe`: whether there was such a subscription.
    pub(crate) fn unsubscribe(&self, params: Option<&RawValue>) -> Result<bool, RpcError> {
        let params = parse(params)?;
        let id = Arguments::new(params.as_ref(), 1)?.required(0, |value| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| cairn_evm::ParamError::new("expected a subscription id"))
        })?;
        match self.subscriptions().remove(&id) {
            Some(cancel) => {
                cancel.cancel();
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Lets a subscription run, now that its id is on its way.
    pub(crate) fn start(self: &Arc<Self>, pending: Pending) {
        let session = Arc::clone(self);
        tokio::spawn(async move {
            gauge!(SUBSCRIPTIONS).increment(1.0);
            let cancel = pending.cancel.clone();
            tokio::select! {
                () = cancel.cancelled() => {}
                () = session.pump(pending) => {}
            }
            gauge!(SUBSCRIPTIONS).decrement(1.0);
        });
    }

    async fn pump(&self, mut pending: Pending) {
        loop {
            let ended = match pending.feed.receiver.recv().await {
                Ok(FeedMessage::Head(event)) => match self.deliver(&pending, &event).await {
                    Ok(true) => continue,
                    Ok(false) => return,
                    Err(error) => error,
                },
                Ok(FeedMessage::Broken(why)) => RpcError::server(format!("the subscription ended: {why}")),
                Err(RecvError::Lagged(blocks)) => behind(&format!("{blocks} blocks were missed")),
                Err(RecvError::Closed) => RpcError::server("the server stops"),
            };
            counter!(SUBSCRIPTIONS_ENDED).increment(1);
            self.subscriptions().remove(&pending.id);
            let reason = ended.message.clone();
            if self
                .send(Outgoing::Message(Message::subscription_ended(&pending.id, &ended), Charge::none()))
                .await
            {
                self.send(Outgoing::Close(Ending::Behind, reason)).await;
            }
            return;
        }
    }

    /// Sends what an event means for a subscription. `false`: the connection ends.
    async fn deliver(&self, pending: &Pending, event: &HeadEvent) -> Result<bool, RpcError> {
        match &pending.subject {
            Subject::NewHeads => {
                let Some(header) = &event.header else { return Ok(true) };
                let message = Message::notification(&pending.id, header.clone());
                Ok(self.send(Outgoing::Message(message, Charge::none())).await)
            }
            Subject::Logs(filter) => self.deliver_logs(pending, filter, event).await,
        }
    }

    async fn deliver_logs(
        &self,
        pending: &Pending,
        filter: &LogFilter,
        event: &HeadEvent,
    ) -> Result<bool, RpcError> {
        let _alone = self.delivering.lock().await;
        let (view, bytes) = match event.logs() {
            LogsOf::NotMine => return Ok(true),
            LogsOf::Here(view, bytes) => (view, bytes),
            LogsOf::Dropped => {
                return Err(behind(&format!("the logs of block {} are no longer held", event.block)));
            }
        };
        let (finding, filter) = (Arc::clone(&view), filter.clone());
        let mut places = work(bytes, move || Ok(finding.find_logs(&filter)?)).await?;
        if event.removed {
            // What came last goes first.
            places.reverse();
        }
        for place in places {
            let charge = self.gate.keep_notification(self.account, place.text_bytes());
            let Ok(charge) = timeout(self.patience, charge).await else {
                return Err(behind("memory for notifications is used up"));
            };
            let text = self.feed.log_text(event, &view, &place).await?;
            let message = Message::notification(&pending.id, text);
            if !self.send(Outgoing::Message(message, charge)).await {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Gives an id back unless it was taken over.
struct Kept<'a> {
    session: &'a Session,
    id: Option<String>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.session.subscriptions().remove(id);
        }
    }
}

fn behind(how: &str) -> RpcError {
    RpcError::new(
        LIMIT_EXCEEDED,
        format!(
            "the subscription fell behind ({how}); connect again, subscribe, and read the gap with eth_getLogs"
        ),
    )
}

fn parse(params: Option<&RawValue>) -> Result<Option<Value>, RpcError> {
    params
        .map(|raw| serde_json::from_str(raw.get()))
        .transpose()
        .map_err(|error| RpcError::invalid_params(format!("params can't be read: {error}")))
}

fn subject(api: &EthApi, params: Option<&RawValue>) -> Result<Subject, RpcError> {
    let params = parse(params)?;
    let arguments = Arguments::new(params.as_ref(), 2)?;
    let kind = arguments.required(0, |value| {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| cairn_evm::ParamError::new("expected the name of a subscription"))
    })?;
    match kind.as_str() {
        "newHeads" => Ok(Subject::NewHeads),
        "logs" => {
            let limits = api.filter_limits();
            // Blocks in the filter mean nothing here: a subscription is about what comes.
            let filter = arguments.optional(1, |value| parse_filter(value, &limits))?;
            Ok(Subject::Logs(filter.map(|(_, filter)| filter).unwrap_or_default()))
        }
        "newPendingTransactions" | "syncing" => Err(RpcError::invalid_params(format!(
            "the subscription {kind} is not served: this server has no mempool and no state; there are newHeads and logs"
        ))),
        _ => Err(RpcError::invalid_params("no such subscription; there are newHeads and logs")),
    }
}
