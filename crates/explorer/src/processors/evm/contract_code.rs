//! `contract_code_worker`: the code of contracts, by content, and which code an address has.
//!
//! It asks about contracts that were created, and about those that logged: contracts that other contracts created are found by
//! their logs where no traces are archived. An address is asked about once: of one that was destroyed and created again the row says what
//! was there first.

use std::sync::Arc;

use alloy_primitives::{Address, keccak256};
use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::node::ContractNode;
use crate::decode::clean;
use crate::names::{CONTRACT_CODE_WORKER, META_WORKER, TX_CONTRACTS_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::contracts::{CONTRACT_CODE, CONTRACT_CODE_HASHES, SMART_CONTRACTS};
use crate::tables::opt;
use crate::tables::transactions::{TX_CONTRACTS, TxContract};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: CONTRACT_CODE_WORKER,
    version: 1,
    upstreams: &[META_WORKER, TX_CONTRACTS_WORKER],
    tables: &[&CONTRACT_CODE_HASHES, &CONTRACT_CODE],
};

/// The most code that is kept of one contract. Ethereum's own limit is 24 KiB (EIP-170); other chains have up to forty times as much.
pub const MAX_CODE_BYTES: usize = 1024 * 1024;

static READS: &[&TableDef] = &[&SMART_CONTRACTS, &TX_CONTRACTS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.node.as_ref()?);
    Some(Processor::Enricher(Arc::new(ContractCodeWorker { node })))
}

struct ContractCodeWorker {
    node: Arc<dyn ContractNode>,
}

#[async_trait]
impl Enricher for ContractCodeWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, table: usize, row: &Row, wanted: &mut Vec<Key>) {
        let key = match table {
            0 => row.0.get(1).zip(row.0.get(2)).map(|(address, name)| vec![address.clone(), name.clone()]),
            // Who was only called may have no code.
            _ => TxContract::from_row(row)
                .ok()
                .filter(|row| row.tags.split(',').any(|tag| tag == "log"))
                .map(|row| vec![Value::Bytes(row.contract_address), Value::text(row.contract_name)]),
        };
        wanted.extend(key.map(Key));
    }

    fn known_in(&self) -> &'static TableDef {
        &CONTRACT_CODE_HASHES
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some(address) = subject(key) else { return Ok(Asked::Nothing) };
        let code = self.node.code(address, at).await?;
        if code.is_empty() {
            return Ok(Asked::Absent(vec![row(key, None, Some(0), "empty", None, at)]));
        }
        let hash = Value::bytes(keccak256(&code).as_slice());
        let length = Some(code.len() as u64);
        if code.len() > MAX_CODE_BYTES {
            return Ok(Asked::Rows(vec![row(key, Some(hash), length, "too-large", None, at)]));
        }
        let content = Row(vec![hash.clone(), Value::Bytes(code)]);
        Ok(Asked::Rows(vec![row(key, Some(hash), length, "ok", None, at), (CONTRACT_CODE.name, content)]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        match subject(key) {
            Some(_) => vec![row(key, None, None, "failed", Some(message), at)],
            None => Vec::new(),
        }
    }
}

fn subject(key: &Key) -> Option<Address> {
    let [address, _] = &key.0[..] else { return None };
    Address::try_from(&address.as_bytes()?[..]).ok()
}

fn row(
    key: &Key,
    hash: Option<Value>,
    length: Option<u64>,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> (&'static str, Row) {
    let mut values = key.0.clone();
    values.extend([
        hash.unwrap_or_default(),
        opt(length, Value::uint),
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT))),
        Value::height(at.height),
    ]);
    (CONTRACT_CODE_HASHES.name, Row(values))
}
