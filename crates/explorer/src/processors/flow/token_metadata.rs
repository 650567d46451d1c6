//! `token_metadata_worker`: names, symbols and supply of the contracts whose tokens moved, by scripts, and the terms to find them by.
//!
//! A contract is asked about again as long as its tokens move, for their supply, but seldom. All fungible tokens of Cadence have eight decimals:
//! that is what `UFix64` is. Contracts of the EVM side are asked what those of EVM chains are.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::BlockRef;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef};

use super::evm_node::EvmContracts;
use super::node::ScriptNode;
use super::scripts::{self, TokenOf};
use crate::decode::flow::NFT_KIND;
use crate::decode::{Said, TextLimit};
use crate::names::{TOKEN_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::evm::token_metadata as of_evm;
use crate::processors::metadata::{self, Answered, Subject, asked, collection, further, status, token};
use crate::tables::metadata::{NFT_COLLECTIONS, SEARCH_INDEX, TOKEN_ANSWER_BYTES, TOKEN_CONTRACTS, TOKENS};
use crate::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TOKEN_METADATA_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TOKEN_CONTRACTS, &TOKENS, &NFT_COLLECTIONS, &SEARCH_INDEX, &TOKEN_ANSWER_BYTES],
};

static READS: &[&TableDef] = &[&FT_TRANSFERS, &NFT_TRANSFERS];

/// A token that moves is asked about again after so many heights, for its supply: about half a day.
const SUPPLY_HEIGHTS: u64 = 50_000;
/// How many digits stand behind the point of a `UFix64`.
const DECIMALS: u8 = 8;

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.scripts.as_ref()?);
    let network = settings.network?;
    let of_evm = of_evm::TokenMetadataWorker::new(Arc::new(EvmContracts { node: node.clone(), network }));
    Some(Processor::Enricher(Arc::new(TokenMetadataWorker { node, network, of_evm })))
}

struct TokenMetadataWorker {
    node: Arc<dyn ScriptNode>,
    network: Network,
    of_evm: of_evm::TokenMetadataWorker,
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

    fn asks_again_after(&self) -> Option<u64> {
        Some(SUPPLY_HEIGHTS)
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        self.node.finalized().await
    }

    async fn ask(&self, key: &Key, at: BlockRef) -> Result<Asked, AskError> {
        let Some(subject) = Subject::of(key) else { return Ok(Asked::Nothing) };
        if subject.contract.len() == super::EVM_ADDRESS_BYTES {
            return self.of_evm.ask(key, at).await;
        }
        let Some(contract) = FlowAddress::from_slice(&subject.contract) else { return Ok(Asked::Nothing) };
        let of = TokenOf::new(contract, &subject.name);
        let arguments = of.arguments([]);
        let script = match subject.is_nft {
            true => scripts::collection(self.network, &of),
            false => scripts::token(self.network, &of),
        };
        let found = scripts::run(&*self.node, self.network, &script, arguments, at).await?;
        let answered = Answered {
            name: found.text("name", TextLimit::NAME),
            symbol: found.text("symbol", TextLimit::SYMBOL),
            decimals: Said { value: Some(DECIMALS), bytes: None },
            supply: Said { value: found.units("supply"), bytes: None },
        };
        let has_name = answered.name.is_something();
        let (status, row) = if subject.is_nft {
            let standard = found.is("standard").then_some(NFT_KIND);
            let status = status(&[has_name, standard.is_some()]);
            (status, collection(&subject, &answered, standard, status, at))
        } else {
            let status = status(&[has_name, answered.symbol.is_something(), answered.supply.is_something()]);
            (status, token(&subject, &answered, status, at))
        };
        let mut rows = vec![asked(&subject, status, None, at), row];
        rows.extend(further(&subject, &answered, at));
        Ok(Asked::Rows(rows))
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        metadata::given_up(key, at, message)
    }
}
