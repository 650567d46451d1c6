//! `nft_metadata_worker`: the URI of each NFT that moved. What the URI leads to is not fetched.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::node::{CallAnswer, ContractNode};
use crate::decode::evm::calls;
use crate::decode::{TextLimit, clean};
use crate::names::{NFT_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::metadata::NFT_METADATA;
use crate::tables::opt;
use crate::tables::transfers::{NFT_TRANSFERS, NftTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: NFT_METADATA_WORKER,
    version: 1,
    upstreams: &[TOKEN_WORKER],
    tables: &[&NFT_METADATA],
};

static READS: &[&TableDef] = &[&NFT_TRANSFERS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.node.as_ref()?);
    Some(Processor::Enricher(Arc::new(NftMetadataWorker { node })))
}

struct NftMetadataWorker {
    node: Arc<dyn ContractNode>,
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
        // What was burnt has no URI any more.
        if let Ok(transfer) = NftTransfer::from_row(row)
            && !transfer.parties.is_burn
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

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some((contract, id)) = subject(key) else { return Ok(Asked::Nothing) };
        // ERC-721 first; an ERC-1155 contract has the other function, whose answer is a template.
        let uri = match self.uri(contract, calls::TOKEN_URI, id, at).await? {
            Some(uri) => Some(uri),
            None => self
                .uri(contract, calls::URI, id, at)
                .await?
                .map(|template| clean(&calls::uri_of_id(&template, id), TextLimit::URI).text),
        };
        let status = if uri.is_some() { "ok" } else { "silent" };
        Ok(Asked::Rows(vec![row(key, uri, status, None, at)]))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        match subject(key) {
            Some(_) => vec![row(key, None, "failed", Some(message), at)],
            None => Vec::new(),
        }
    }
}

impl NftMetadataWorker {
    async fn uri(
        &self,
        contract: Address,
        function: [u8; 4],
        id: U256,
        at: BlockRef,
    ) -> Result<Option<String>, AskError> {
        match self.node.call(contract, calls::with_id(function, id), at).await? {
            CallAnswer::Returned(answer) if answer.len() <= calls::MAX_RETURN_BYTES => {
                let text = calls::text(&answer, TextLimit::URI).ok().flatten().map(|text| text.text);
                Ok(text.filter(|text| !text.is_empty()))
            }
            CallAnswer::Returned(_) | CallAnswer::Reverted => Ok(None),
        }
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
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT).text)),
        Value::height(at.height),
    ]);
    (NFT_METADATA.name, Row(values))
}
