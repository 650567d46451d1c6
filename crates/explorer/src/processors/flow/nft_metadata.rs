//! `nft_metadata_worker`: where the picture of each NFT that moved is said to be, by a script over its owner's public collection. What the URI leads
//! to is not fetched.
//!
//! Only an item that lies in somebody's collection can be asked, and blocks far below the tip are asked about at the finalised block, where
//! the item may have gone on: so each owner that an item ever had is asked once (`nft_asks`), and what is found stays.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::evm_node::EvmContracts;
use super::node::ScriptNode;
use super::scripts::{self, TokenOf};
use crate::decode::{TextLimit, clean};
use crate::names::{NFT_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::evm::nft_metadata as of_evm;
use crate::processors::metadata::MESSAGE_LIMIT;
use crate::tables::flow::nfts::NFT_ASKS;
use crate::tables::metadata::{NFT_METADATA, NFT_URI_BYTES, nft_uri_bytes};
use crate::tables::opt;
use crate::tables::transfers::{NFT_TRANSFERS, NftTransfer};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: NFT_METADATA_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&NFT_METADATA, &NFT_ASKS, &NFT_URI_BYTES],
};

static READS: &[&TableDef] = &[&NFT_TRANSFERS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.scripts.as_ref()?);
    let network = settings.network?;
    let of_evm = of_evm::NftMetadataWorker::new(Arc::new(EvmContracts { node: node.clone(), network }));
    Some(Processor::Enricher(Arc::new(NftMetadataWorker { node, network, of_evm })))
}

struct NftMetadataWorker {
    node: Arc<dyn ScriptNode>,
    network: Network,
    of_evm: of_evm::NftMetadataWorker,
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
        let Ok(transfer) = NftTransfer::from_row(row) else { return };
        let parties = &transfer.parties;
        let owner = match parties.contract_address.len() == super::EVM_ADDRESS_BYTES {
            // A contract of the EVM side says it whoever has the item.
            true => of_evm::has_uri(&transfer).then(Bytes::new),
            false => parties.taker().cloned(),
        };
        if let Some(owner) = owner {
            wanted.push(Key(vec![
                Value::Bytes(parties.contract_address.clone()),
                Value::text(parties.contract_name.clone()),
                Value::Amount(transfer.token_id),
                Value::Bytes(owner),
            ]));
        }
    }

    fn known_in(&self) -> &'static TableDef {
        &NFT_ASKS
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        if key.0.first().and_then(Value::as_bytes).is_some_and(|of| of.len() == super::EVM_ADDRESS_BYTES) {
            return self.ask_evm(key, at).await;
        }
        let Some(subject) = Subject::of(key) else { return Ok(Asked::Nothing) };
        let of = TokenOf::new(subject.contract, subject.name);
        let arguments = of.arguments([scripts::number(subject.id), scripts::address(subject.owner)]);
        let script = scripts::item(self.network, &of);
        let found = scripts::run(&*self.node, self.network, &script, arguments, at).await?;
        let uri = found.text("uri", TextLimit::URI);
        let status = match (found.is("held"), uri.is_something()) {
            (true, true) => "ok",
            (true, false) => "silent",
            (false, _) => "not-held",
        };
        let mut rows = vec![asked(key, status, None, at)];
        if status == "not-held" {
            return Ok(Asked::Rows(rows));
        }
        let mut values = key.0[..3].to_vec();
        rows.extend(uri.bytes.map(|bytes| nft_uri_bytes(&values, bytes, at)));
        values.extend([
            opt(uri.value, Value::text),
            Value::text(status),
            Value::Null,
            Value::height(at.height),
        ]);
        rows.push((NFT_METADATA.name, Row(values)));
        Ok(Asked::Rows(rows))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        vec![asked(key, "failed", Some(message), at)]
    }
}

impl NftMetadataWorker {
    /// An item of the EVM side.
    async fn ask_evm(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let with_ask = |mut rows: Vec<(&'static str, Row)>| {
            let status = rows.iter().find(|(table, _)| *table == NFT_METADATA.name);
            let status = status.and_then(|(_, row)| row.0.get(4)?.as_text()).unwrap_or("failed").to_owned();
            rows.push(asked(key, &status, None, at));
            rows
        };
        Ok(match self.of_evm.ask(&Key(key.0[..3].to_vec()), at).await? {
            Asked::Rows(rows) => Asked::Rows(with_ask(rows)),
            Asked::Absent(rows) => Asked::Absent(with_ask(rows)),
            Asked::Nothing => Asked::Nothing,
        })
    }
}

struct Subject<'k> {
    contract: FlowAddress,
    name: &'k str,
    id: u64,
    owner: FlowAddress,
}

impl Subject<'_> {
    fn of(key: &Key) -> Option<Subject<'_>> {
        let [contract, name, id, owner] = &key.0[..] else { return None };
        let account = |value: &Value| FlowAddress::from_slice(value.as_bytes()?);
        Some(Subject {
            contract: account(contract)?,
            name: name.as_text()?,
            id: id.as_amount()?.try_into().ok()?,
            owner: account(owner)?,
        })
    }
}

fn asked(key: &Key, status: &str, message: Option<&str>, at: BlockRef) -> (&'static str, Row) {
    let mut values = key.0.clone();
    values.extend([
        Value::text(status),
        opt(message, |message| Value::text(clean(message, MESSAGE_LIMIT))),
        Value::height(at.height),
    ]);
    (NFT_ASKS.name, Row(values))
}
