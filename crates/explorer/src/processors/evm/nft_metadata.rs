//! `nft_metadata_worker`: the URI of each NFT that moved. What the URI leads to is not fetched.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::node::{CallAnswer, ContractNode, NO_CODE, call_code};
use crate::decode::evm::calls;
use crate::decode::{Said, TextLimit, clean};
use crate::names::{NFT_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::metadata::{NFT_METADATA, NFT_URI_BYTES, nft_uri_bytes};
use crate::tables::opt;
use crate::tables::transfers::{NFT_TRANSFERS, NftTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: NFT_METADATA_WORKER,
    version: 4,
    upstreams: &[TOKEN_WORKER],
    tables: &[&NFT_METADATA, &NFT_URI_BYTES],
};

static READS: &[&TableDef] = &[&NFT_TRANSFERS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.node.as_ref()?);
    Some(Processor::Enricher(Arc::new(NftMetadataWorker::new(node))))
}

/// The enricher itself.
pub(in crate::processors) struct NftMetadataWorker {
    node: Arc<dyn ContractNode>,
}

impl NftMetadataWorker {
    pub fn new(node: Arc<dyn ContractNode>) -> Self {
        NftMetadataWorker { node }
    }
}

#[async_trait]
impl Enricher for NftMetadataWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, _table: usize, row: &Row, wanted: &mut Vec<Key>) {
        if let Ok(transfer) = NftTransfer::from_row(row)
            && has_uri(&transfer)
        {
            wanted.push(Key(vec![
                Value::Bytes(transfer.parties.contract_address),
                Value::text(transfer.parties.contract_name),
                Value::Amount(transfer.token_id),
            ]));
        }
    }

    fn known_in(&self) -> &'static TableDef {
        &NFT_METADATA
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some((contract, id)) = subject(key) else { return Ok(Asked::Nothing) };
        // ERC-721 first; an ERC-1155 contract has the other function, whose answer is a template.
        for function in [calls::TOKEN_URI, calls::URI] {
            let input = calls::with_id(function, id);
            let Some(answer) = call_code(&*self.node, contract, input, at).await? else {
                return Ok(Asked::Absent(vec![row(key, None, NO_CODE, None, at)]));
            };
            let said = text_of(&answer);
            if !said.is_something() {
                continue;
            }
            let uri = said.value.map(|uri| match function == calls::URI {
                true => clean(&calls::uri_of_id(&uri, id), TextLimit::URI),
                false => uri,
            });
            let status = if uri.is_some() { "ok" } else { "partial" };
            let mut rows = vec![row(key, uri, status, None, at)];
            rows.extend(said.bytes.map(|bytes| nft_uri_bytes(&key.0, bytes, at)));
            return Ok(Asked::Rows(rows));
        }
        Ok(Asked::Rows(vec![row(key, None, "silent", None, at)]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        match subject(key) {
            Some(_) => vec![row(key, None, "failed", Some(message), at)],
            None => Vec::new(),
        }
    }
}

/// Whether a transfer names an item to ask about. What was burnt has no URI any more; and of which nothing moved need not be an item at all, since anybody
/// may send nothing of any id.
pub(in crate::processors) fn has_uri(transfer: &NftTransfer) -> bool {
    !transfer.parties.is_burn && !transfer.amount.is_zero()
}

/// The text that a call returned, cleaned.
fn text_of(answer: &CallAnswer) -> Said<String> {
    match answer {
        CallAnswer::Returned(answer) => {
            calls::text(&answer[..answer.len().min(calls::MAX_RETURN_BYTES)], TextLimit::URI)
        }
        CallAnswer::Reverted => Said::default(),
    }
}

fn subject(key: &Key) -> Option<(Address, U256)> {
    let [contract, _, id] = &key.0[..] else { return None };
    Some((Address::try_from(&contract.as_bytes()?[..]).ok()?, id.as_amount()?))
}

fn row(
    key: &Key,
    uri: Option<String>,
    status: &'static str,
    message: Option<&str>,
    at: BlockRef,
) -> (&'static str, Row) {
    let mut values = key.0.clone();
    values.extend([
        opt(uri, Value::text),
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT))),
        Value::height(at.height),
    ]);
    (NFT_METADATA.name, Row(values))
}
