//! `token_metadata_worker`: names, symbols, decimals and supply of the contracts whose tokens moved, and the terms to find them by.
//!
//! A contract is asked once. What it answers is a stranger's: texts are cleaned, and where what is shown isn't all that was answered, the bytes are kept, bounded. One without code at that block, though its tokens
//! moved, is asked about again before that counts.

use std::sync::Arc;

use alloy_primitives::Address;
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::BlockRef;
use cairn_pipeline::derive::processor::{AskError, Asked, Enricher, Processor, ServiceInfo};
use cairn_store::derived::{Key, Row, TableDef};

use super::node::{CallAnswer, ContractNode, NO_CODE, call_code};
use crate::decode::TextLimit;
use crate::decode::evm::calls;
use crate::names::{TOKEN_METADATA_WORKER, TOKEN_WORKER};
use crate::processors::Settings;
use crate::processors::metadata::{
    self, Answered, Subject, asked, collection, further, nothing_of, status, token,
};
use crate::tables::metadata::{NFT_COLLECTIONS, SEARCH_INDEX, TOKEN_ANSWER_BYTES, TOKEN_CONTRACTS, TOKENS};
use crate::tables::transfers::{FT_TRANSFERS, NFT_TRANSFERS};

pub use crate::processors::metadata::{search_term, search_terms};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: TOKEN_METADATA_WORKER,
    version: 3,
    upstreams: &[TOKEN_WORKER],
    tables: &[&TOKEN_CONTRACTS, &TOKENS, &NFT_COLLECTIONS, &SEARCH_INDEX, &TOKEN_ANSWER_BYTES],
};

static READS: &[&TableDef] = &[&FT_TRANSFERS, &NFT_TRANSFERS];

/// Makes it, where there is a node.
pub fn make(settings: &Settings) -> Option<Processor> {
    let node = Arc::clone(settings.node.as_ref()?);
    Some(Processor::Enricher(Arc::new(TokenMetadataWorker::new(node))))
}

/// The enricher itself.
pub(in crate::processors) struct TokenMetadataWorker {
    node: Arc<dyn ContractNode>,
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
        let Ok(contract) = Address::try_from(&subject.contract[..]) else { return Ok(Asked::Nothing) };
        if subject.is_nft {
            self.ask_collection(&subject, contract, at).await
        } else {
            self.ask_token(&subject, contract, at).await
        }
    }

    fn given_up(&self, key: &Key, at: BlockRef, message: &str) -> Vec<(&'static str, Row)> {
        metadata::given_up(key, at, message)
    }
}

impl TokenMetadataWorker {
    pub fn new(node: Arc<dyn ContractNode>) -> Self {
        TokenMetadataWorker { node }
    }

    async fn ask_token(&self, subject: &Subject, contract: Address, at: BlockRef) -> Result<Asked, AskError> {
        let (name, symbol, decimals, supply) = futures::try_join!(
            self.call(contract, calls::plain(calls::NAME), at),
            self.call(contract, calls::plain(calls::SYMBOL), at),
            self.call(contract, calls::plain(calls::DECIMALS), at),
            self.call(contract, calls::plain(calls::TOTAL_SUPPLY), at),
        )?;
        let (Some(name), Some(symbol), Some(decimals), Some(supply)) = (name, symbol, decimals, supply)
        else {
            return Ok(Asked::Absent(nothing_of(subject, NO_CODE, None, at)));
        };
        let answered = Answered {
            decimals: calls::decimals(&decimals),
            supply: calls::uint(&supply),
            ..named(&name, &symbol)
        };
        let status = status(&[
            answered.name.is_something(),
            answered.symbol.is_something(),
            answered.decimals.is_something(),
            answered.supply.is_something(),
        ]);
        let mut rows = vec![asked(subject, status, None, at), token(subject, &answered, status, at)];
        rows.extend(further(subject, &answered, at));
        Ok(Asked::Rows(rows))
    }

    async fn ask_collection(
        &self,
        subject: &Subject,
        contract: Address,
        at: BlockRef,
    ) -> Result<Asked, AskError> {
        let (name, symbol, erc721, erc1155) = futures::try_join!(
            self.call(contract, calls::plain(calls::NAME), at),
            self.call(contract, calls::plain(calls::SYMBOL), at),
            self.call(contract, calls::supports_interface(calls::INTERFACE_ERC721), at),
            self.call(contract, calls::supports_interface(calls::INTERFACE_ERC1155), at),
        )?;
        let (Some(name), Some(symbol), Some(erc721), Some(erc1155)) = (name, symbol, erc721, erc1155) else {
            return Ok(Asked::Absent(nothing_of(subject, NO_CODE, None, at)));
        };
        let answered = named(&name, &symbol);
        let supports = |answer: &[u8]| calls::boolean(answer) == Some(true);
        let standard = match (supports(&erc721), supports(&erc1155)) {
            (true, _) => Some("erc721"),
            (false, true) => Some("erc1155"),
            (false, false) => None,
        };
        // ERC-1155 has neither name nor symbol.
        let may_be_nameless = standard == Some("erc1155");
        let status = status(&[
            answered.name.is_something() || may_be_nameless,
            answered.symbol.is_something() || may_be_nameless,
            standard.is_some(),
        ]);
        let mut rows =
            vec![asked(subject, status, None, at), collection(subject, &answered, standard, status, at)];
        rows.extend(further(subject, &answered, at));
        Ok(Asked::Rows(rows))
    }

    /// What a call returns, as many bytes as anybody should answer; none where the contract refused; nothing where it has no code.
    async fn call(&self, to: Address, input: Vec<u8>, at: BlockRef) -> Result<Option<Bytes>, AskError> {
        Ok(call_code(&*self.node, to, input, at).await?.map(|answer| match answer {
            CallAnswer::Returned(answer) => answer.slice(..answer.len().min(calls::MAX_RETURN_BYTES)),
            CallAnswer::Reverted => Bytes::new(),
        }))
    }
}

fn named(name: &[u8], symbol: &[u8]) -> Answered {
    Answered {
        name: calls::text(name, TextLimit::NAME),
        symbol: calls::text(symbol, TextLimit::SYMBOL),
        ..Answered::default()
    }
}
