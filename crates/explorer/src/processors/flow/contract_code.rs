//! `contract_code_worker`: the code of accounts' contracts, by its SHA3-256, which is what events call its hash.
//!
//! It asks about contracts whose code was set. A contract is asked about once for each code that it was given: where the node tells of
//! another code by then, the row says so (`superseded`), and the code that it tells of is kept all the same.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_flow::FlowAddress;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};
use sha3::{Digest, Sha3_256};

use super::node::ScriptNode;
use crate::decode::clean;
use crate::names::{CONTRACT_CODE_WORKER, META_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::contracts::{CONTRACT_CODE, CONTRACT_CODE_HASHES};
use crate::tables::flow::contracts::{CONTRACT_VERSION_CODE, CONTRACT_VERSIONS, ContractVersion};
use crate::tables::opt;

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: CONTRACT_CODE_WORKER,
    version: 1,
    upstreams: &[META_WORKER],
    tables: &[&CONTRACT_CODE_HASHES, &CONTRACT_CODE, &CONTRACT_VERSION_CODE],
};

/// The most code that is kept of one contract. A transaction that sets it has at most 1.5 MB.
pub const MAX_CODE_BYTES: usize = 2 * 1024 * 1024;

static READS: &[&TableDef] = &[&CONTRACT_VERSIONS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    settings.network?;
    let node = Arc::clone(settings.scripts.as_ref()?);
    Some(Processor::Enricher(Arc::new(ContractCodeWorker { node })))
}

struct ContractCodeWorker {
    node: Arc<dyn ScriptNode>,
}

#[async_trait]
impl Enricher for ContractCodeWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        if let Ok(version) = ContractVersion::from_row(row)
            && version.change != "removed"
        {
            wanted.push(Key(vec![
                Value::Bytes(version.address),
                Value::text(version.contract_name),
                Value::Bytes(version.code_hash),
            ]));
        }
    }

    fn known_in(&self) -> &'static TableDef {
        &CONTRACT_VERSION_CODE
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some((address, name, hash)) = subject(key) else { return Ok(Asked::Nothing) };
        let account = self.node.account(address, at).await?;
        let Some(code) = account.and_then(|mut account| account.contracts.remove(name)) else {
            return Ok(Asked::Rows(rows(key, None, "empty", None, at)));
        };
        let found = Sha3_256::digest(&code);
        let status = match (code.len() <= MAX_CODE_BYTES, found[..] == *hash) {
            (false, _) => "too-large",
            (true, true) => "ok",
            (true, false) => "superseded",
        };
        let found = Value::bytes(&found);
        let mut rows = rows(key, Some((found.clone(), code.len() as u64)), status, None, at);
        if status != "too-large" {
            rows.push((CONTRACT_CODE.name, Row(vec![found, Value::Bytes(code.into())])));
        }
        Ok(Asked::Rows(rows))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        match subject(key) {
            Some(_) => rows(key, None, "failed", Some(message), at),
            None => Vec::new(),
        }
    }
}

fn subject(key: &Key) -> Option<(FlowAddress, &str, &[u8])> {
    let [address, name, hash] = &key.0[..] else { return None };
    Some((FlowAddress::from_slice(address.as_bytes()?)?, name.as_text()?, hash.as_bytes()?))
}

/// What is known of the version that was asked about, and of the contract.
fn rows(
    key: &Key,
    found: Option<(Value, u64)>,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> Vec<(&'static str, Row)> {
    let message = || opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT)));
    let mut version = key.0.clone();
    version.extend([Value::text(status), message(), Value::height(at.height)]);
    let (hash, length) = found.unzip();
    // Of the contract, what was found is what it has.
    let status = if status == "superseded" { "ok" } else { status };
    let mut contract = key.0[..2].to_vec();
    contract.extend([
        hash.unwrap_or_default(),
        opt(length, Value::uint),
        Value::text(status),
        message(),
        Value::height(at.height),
    ]);
    vec![(CONTRACT_VERSION_CODE.name, Row(version)), (CONTRACT_CODE_HASHES.name, Row(contract))]
}
