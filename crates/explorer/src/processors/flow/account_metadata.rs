//! `account_metadata_worker`: what accounts were before the archive saw anything of them.
//!
//! Each account is asked about once, as it was behind the block before the first one that names it. A node that doesn't have that block's state any more
//! makes the row `failed`; `cairn reindex --worker account_metadata_worker` asks again. That it doesn't is believed where the question fails twice while the node
//! answers it at its finalised block, which is above; from there down one failure is enough.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_flow::FlowAddress;
use cairn_flow::proto::Account;
use cairn_pipeline::derive::processor::{AskError, AskFailure, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, U256, Value};
use sha3::{Digest, Sha3_256};

use super::node::ScriptNode;
use crate::decode::clean;
use crate::names::{ACCOUNT_METADATA_WORKER, ACCOUNTS_WORKER, META_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::accounts::ADDRESS_TRANSACTIONS;
use crate::tables::flow::account_bases::{ACCOUNT_BASE_CONTRACTS, ACCOUNT_BASE_KEYS, ACCOUNT_BASES};
use crate::tables::flow::accounts::ACCOUNT_KEY_EVENTS;
use crate::tables::flow::contracts::CONTRACT_VERSIONS;
use crate::tables::opt;

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: ACCOUNT_METADATA_WORKER,
    version: 1,
    upstreams: &[META_WORKER, ACCOUNTS_WORKER],
    tables: &[&ACCOUNT_BASES, &ACCOUNT_BASE_KEYS, &ACCOUNT_BASE_CONTRACTS],
};

/// All of them have the address as their second column.
static READS: &[&TableDef] = &[&ADDRESS_TRANSACTIONS, &ACCOUNT_KEY_EVENTS, &CONTRACT_VERSIONS];

/// The most keys, and the most contracts, that are kept of one account.
pub const MAX_KEPT: usize = 1_000;

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    settings.network?;
    let node = Arc::clone(settings.scripts.as_ref()?);
    Some(Processor::Enricher(Arc::new(AccountMetadataWorker { node, lost_height: AtomicU64::new(0) })))
}

struct AccountMetadataWorker {
    node: Arc<dyn ScriptNode>,
    /// The highest block of which the node was found to have no state any more.
    lost_height: AtomicU64,
}

impl AccountMetadataWorker {
    /// Whether the node, which just failed, has no state of this block any more.
    async fn has_lost(&self, address: FlowAddress, at: BlockRef) -> bool {
        let height = at.height.get();
        if height <= self.lost_height.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(Some(newer)) = self.node.finalized().await else { return false };
        let fails_again = || async {
            let again = self.node.account(address, at).await;
            again.is_err_and(|error| error.failure == AskFailure::Transient)
        };
        let has_lost = newer.height > at.height
            && self.node.account(address, newer).await.is_ok()
            && fails_again().await;
        if has_lost {
            self.lost_height.fetch_max(height, Ordering::Relaxed);
        }
        has_lost
    }
}

#[async_trait]
impl Enricher for AccountMetadataWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        // Others are of the EVM side.
        let is_flow = |address: &&Value| address.as_bytes().is_some_and(|bytes| bytes.len() == 8);
        wanted.extend(row.0.get(1).filter(is_flow).map(|address| Key(vec![address.clone()])));
    }

    fn known_in(&self) -> &'static TableDef {
        &ACCOUNT_BASES
    }

    fn asks_before(&self) -> bool {
        true
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some(address) = subject(key) else { return Ok(Asked::Nothing) };
        let error = match self.node.account(address, at).await {
            Ok(Some(account)) => return Ok(Asked::Rows(rows(key, &account, at))),
            Ok(None) => return Ok(Asked::Rows(vec![base(key, None, "absent", None, at)])),
            Err(error) => error,
        };
        if error.failure == AskFailure::Transient && self.has_lost(address, at).await {
            return Ok(Asked::Rows(self.given_up(key, at, &error.message)));
        }
        Err(error)
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        vec![base(key, None, "failed", Some(message), at)]
    }
}

fn subject(key: &Key) -> Option<FlowAddress> {
    FlowAddress::from_slice(key.0.first()?.as_bytes()?)
}

fn base(
    key: &Key,
    account: Option<&Account>,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> (&'static str, Row) {
    let mut row = key.0.clone();
    row.extend([
        opt(account, |account| Value::Amount(U256::from(account.balance))),
        opt(account, |account| Value::uint(account.keys.len() as u64)),
        opt(account, |account| Value::uint(account.contracts.len() as u64)),
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT))),
        Value::height(at.height),
    ]);
    (ACCOUNT_BASES.name, Row(row))
}

fn rows(key: &Key, account: &Account, at: BlockRef) -> Vec<(&'static str, Row)> {
    let is_kept = account.keys.len().max(account.contracts.len()) <= MAX_KEPT;
    let mut rows = vec![base(key, Some(account), if is_kept { "ok" } else { "too-large" }, None, at)];
    let amount = |number: u32| Value::Amount(U256::from(number));
    for one in account.keys.iter().take(MAX_KEPT) {
        // The Access API counts otherwise than Cadence: 1 is BLS, 2 ECDSA_P256, 3 ECDSA_secp256k1.
        let sign_algo = match one.sign_algo {
            1 => 3,
            2 | 3 => one.sign_algo - 1,
            unknown => unknown,
        };
        let mut row = key.0.clone();
        row.extend([
            amount(one.index),
            Value::Bytes(one.public_key.clone()),
            amount(sign_algo),
            amount(one.hash_algo),
            amount(one.weight),
            Value::Bool(one.revoked),
            Value::height(at.height),
        ]);
        rows.push((ACCOUNT_BASE_KEYS.name, Row(row)));
    }
    for (name, code) in account.contracts.iter().take(MAX_KEPT) {
        let mut row = key.0.clone();
        row.extend([
            Value::text(name.as_str()),
            Value::bytes(&Sha3_256::digest(code)),
            Value::height(at.height),
        ]);
        rows.push((ACCOUNT_BASE_CONTRACTS.name, Row(row)));
    }
    rows
}
