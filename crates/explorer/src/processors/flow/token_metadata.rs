//! `token_metadata_worker`: names, symbols and supply of the contracts whose tokens moved, by scripts, and the terms to find them by.
//!
//! A contract is asked once. All fungible tokens of Cadence have eight decimals: that is what `UFix64` is.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef};

use super::node::ScriptNode;
use super::scripts::{self, TokenOf};
use crate::decode::TextLimit;
use crate::decode::flow::NFT_KIND;
use crate::names::{TOKEN_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::{self, Named, Subject, asked, collection, status, terms, token};
use crate::tables::metadata::{NFT_COLLECTIONS, SEARCH_INDEX, TOKEN_CONTRACTS, TOKENS};
use crate::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TOKEN_METADATA_WORKER,
    version: 2,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TOKEN_CONTRACTS, &TOKENS, &NFT_COLLECTIONS, &SEARCH_INDEX],
};

static READS: &[&TableDef] = &[&FT_TRANSFERS, &NFT_TRANSFERS];

/// How many digits stand behind the point of a `UFix64`.
const DECIMALS: u8 = 8;

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.scripts.as_ref()?);
    Some(Processor::Enricher(Arc::new(TokenMetadataWorker { node, network: settings.network? })))
}

struct TokenMetadataWorker {
    node: Arc<dyn ScriptNode>,
    network: Network,
}

#[async_trait]
impl Enricher for TokenMetadataWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn wanted(&self, table: usize, row: &Row, wanted: &mut Vec<Key>) {
        metadata::wanted(table, row, wanted);
    }

    fn known_in(&self) -> &'static TableDef {
        &TOKEN_CONTRACTS
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some(subject) = Subject::of(key) else { return Ok(Asked::Nothing) };
        let Some(contract) = FlowAddress::from_slice(&subject.contract) else { return Ok(Asked::Nothing) };
        let of = TokenOf::new(contract, &subject.name);
        let arguments = of.arguments([]);
        let script = match subject.is_nft {
            true => scripts::collection(self.network, &of),
            false => scripts::token(self.network, &of),
        };
        let found = scripts::run(&*self.node, self.network, &script, arguments, at).await?;
        let named = Named {
            name: found.text("name", TextLimit::NAME),
            symbol: found.text("symbol", TextLimit::SYMBOL),
        };
        let (status, row, kind) = if subject.is_nft {
            let standard = found.is("standard").then_some(NFT_KIND);
            let status = status(&[named.name.is_some(), standard.is_some()]);
            (status, collection(&subject, &named, standard, status, at), "collection")
        } else {
            let supply = found.units("supply");
            let status = status(&[named.name.is_some(), named.symbol.is_some(), supply.is_some()]);
            (status, token(&subject, &named, Some(DECIMALS), supply, status, at), "token")
        };
        let mut rows = vec![asked(&subject, status, None, at), row];
        rows.extend(terms(&subject, kind, &named, at));
        Ok(Asked::Rows(rows))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        metadata::given_up(key, at, message)
    }
}
