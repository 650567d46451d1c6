//! Accounts of the test, and what they send: each transaction is signed, sent, and its result looked at.

use alloy_primitives::hex;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cairn_flow::{FlowAddress, Network, proto};
use cairn_flow_node::cdc::Cdc;
use cairn_flow_node::{AccessClient, Key, Order, Signer};
use serde_json::Value;

/// What the emulator allows a transaction.
const COMPUTE_LIMIT: u64 = 9_999;

/// Whether a transaction is meant to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    Succeed,
    Fail,
}

/// An account that the test made, and since when it is there.
#[derive(Clone)]
pub struct Holder {
    pub signer: Signer,
    pub since_height: u64,
}

/// Everybody who sends.
pub struct Wallet {
    pub client: AccessClient,
    pub service: Signer,
    pub holders: Vec<Holder>,
    /// Ids of transactions that are on the chain, with their heights.
    pub sent: Vec<(u64, Bytes)>,
}

impl Wallet {
    /// Of the service account alone.
    pub fn new(client: AccessClient, service: Key) -> Wallet {
        let service = Signer { address: Network::Emulator.accounts().service, key: service };
        Wallet { client, service, holders: Vec::new(), sent: Vec::new() }
    }

    /// One of the accounts, in the order in which they were made.
    pub fn holder(&self, at: usize) -> &Signer {
        &self.holders[at % self.holders.len()].signer
    }

    /// Sends one that a signer proposes, pays for and authorises alone.
    pub async fn send(
        &mut self,
        by: &Signer,
        script: &str,
        arguments: &[Cdc],
        meant: Meant,
    ) -> Result<proto::TransactionResult> {
        self.send_for(by, by, &[by], script, arguments, meant).await
    }

    /// Sends one with roles. Its result; fails where it didn't end as it was meant to.
    pub async fn send_for(
        &mut self,
        proposer: &Signer,
        payer: &Signer,
        authorizers: &[&Signer],
        script: &str,
        arguments: &[Cdc],
        meant: Meant,
    ) -> Result<proto::TransactionResult> {
        let head = self.client.latest().await?;
        let account = self.client.account(proposer.address, head.height).await?;
        let account = account.with_context(|| format!("there is no account {}", proposer.address))?;
        let key = account.keys.first().with_context(|| format!("{} has no key", proposer.address))?;
        let order = Order {
            script,
            arguments,
            reference_block_id: head.id,
            compute_limit: COMPUTE_LIMIT,
            proposer,
            sequence_number: u64::from(key.sequence_number),
            payer,
            authorizers,
        };
        let transaction = order.signed();
        let computed = cairn_flow::id::transaction_id(&transaction);
        let id = self.client.send(transaction).await.with_context(|| format!("not taken: {script}"))?;
        ensure!(computed.as_bytes() == &id[..], "the node's id is {}, ours {computed}", hex::encode(&id));
        let result = self.client.result(&id).await?;
        let is_failed = result.status_code != 0;
        ensure!(
            is_failed == (meant == Meant::Fail),
            "meant to {meant:?}: {} (code {}) of {script}",
            result.error_message,
            result.status_code
        );
        self.sent.push((result.block_height, id));
        Ok(result)
    }

    /// What a script answers at the head.
    pub async fn ask(&self, script: &str, arguments: &[Cdc]) -> Result<Value> {
        let height = self.client.latest().await?.height;
        let answer = self.client.script(script, arguments, height).await?;
        Ok(serde_json::from_slice::<Value>(&answer)?["value"].take())
    }

    /// Forgets what came after a height.
    pub fn roll_back(&mut self, height: u64) {
        self.holders.retain(|holder| holder.since_height <= height);
        self.sent.retain(|(at, _)| *at <= height);
    }
}

/// A field of the first event of a kind, as JSON-CDC has it.
pub fn field(result: &proto::TransactionResult, kind: &str, name: &str) -> Result<Value> {
    let event = result.events.iter().find(|event| event.r#type == kind);
    let event = event.with_context(|| format!("there is no event {kind}"))?;
    let payload: Value = serde_json::from_slice(&event.payload)?;
    let fields = payload["value"]["fields"].as_array().context("an event without fields")?;
    let found = fields.iter().find(|field| field["name"] == name);
    Ok(found.with_context(|| format!("{kind} has no field {name}"))?["value"]["value"].clone())
}

/// The account that a transaction made.
pub fn created(result: &proto::TransactionResult) -> Result<FlowAddress> {
    let address = field(result, "flow.AccountCreated", "address")?;
    address.as_str().context("no address")?.parse().context("no account's address")
}
