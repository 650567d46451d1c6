//! Blocks, their counts, their ommers and their receipts.

use cairn_core::{Parts, StoredBlock};
use cairn_evm::{
    Arguments, BlockAt, parse_block_at, parse_block_tag, parse_bool, parse_hash, parse_quantity,
};
use serde_json::Value;

use super::read::Reading;
use super::{EthApi, Response};
use crate::error::RpcError;

/// What a whole block is made of.
pub(super) const BLOCK_PARTS: Parts =
    Parts::HEADER.union(Parts::BODY).union(Parts::TRANSACTIONS).union(Parts::EXTRAS);
/// What receipts are made of: gas prices need the transactions and the header's base fee.
pub(super) const RECEIPT_PARTS: Parts = BLOCK_PARTS.union(Parts::RECEIPTS);

/// Argument `index` as a block's hash.
pub(super) fn block_hash(arguments: &Arguments<'_>, index: usize) -> Result<BlockAt, RpcError> {
    let hash = arguments.required(index, parse_hash)?;
    Ok(BlockAt::Hash { hash, require_canonical: false })
}

/// Argument `index` as a block's number or tag.
pub(super) fn block_number(arguments: &Arguments<'_>, index: usize) -> Result<BlockAt, RpcError> {
    Ok(BlockAt::Tag(arguments.required(index, parse_block_tag)?))
}

/// Argument `index` as an index; one that no block can have is like one that this block doesn't have.
pub(super) fn item_index(arguments: &Arguments<'_>, index: usize) -> Result<usize, RpcError> {
    Ok(usize::try_from(arguments.required(index, parse_quantity)?).unwrap_or(usize::MAX))
}

fn quantity(n: usize) -> Result<Response, RpcError> {
    Response::of(&format!("0x{n:x}"))
}

impl EthApi {
    pub(super) async fn block_by_hash(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_hash(&arguments, 0)?;
        self.block(at, arguments.required(1, parse_bool)?).await
    }

    pub(super) async fn block_by_number(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_number(&arguments, 0)?;
        self.block(at, arguments.required(1, parse_bool)?).await
    }

    async fn block(&self, at: BlockAt, full_transactions: bool) -> Result<Response, RpcError> {
        let reading = self.read().await?;
        let Some(block) = reading.block_at(at, BLOCK_PARTS).await? else { return Ok(Response::null()) };
        self.view(&reading, block, move |view| Response::of(&view.block_json(full_transactions)?)).await
    }

    pub(super) async fn header_by_hash(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        self.header(block_hash(&Arguments::new(params, 1)?, 0)?).await
    }

    pub(super) async fn header_by_number(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        self.header(block_number(&Arguments::new(params, 1)?, 0)?).await
    }

    async fn header(&self, at: BlockAt) -> Result<Response, RpcError> {
        let reading = self.read().await?;
        let parts = Parts::HEADER | Parts::EXTRAS;
        let Some(block) = reading.block_at(at, parts).await? else { return Ok(Response::null()) };
        self.view(&reading, block, |view| Response::of(&view.header_json()?)).await
    }

    pub(super) async fn block_receipts(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let at = Arguments::new(params, 1)?.required(0, parse_block_at)?;
        let reading = self.read().await?;
        let Some(block) = reading.block_at(at, RECEIPT_PARTS).await? else { return Ok(Response::null()) };
        self.view(&reading, block, |view| Response::of(&view.receipts_json()?)).await
    }

    pub(super) async fn transaction_count_by_hash(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        self.transaction_count(block_hash(&Arguments::new(params, 1)?, 0)?).await
    }

    pub(super) async fn transaction_count_by_number(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        self.transaction_count(block_number(&Arguments::new(params, 1)?, 0)?).await
    }

    async fn transaction_count(&self, at: BlockAt) -> Result<Response, RpcError> {
        // The body's list decides: a chain may have injected transactions that are not in it.
        let reading = self.read().await?;
        let Some(block) = reading.block_at(at, Parts::BODY).await? else { return Ok(Response::null()) };
        self.view(&reading, block, |view| quantity(view.listed_tx_count()?)).await
    }

    pub(super) async fn uncle_count_by_hash(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        self.uncle_count(block_hash(&Arguments::new(params, 1)?, 0)?).await
    }

    pub(super) async fn uncle_count_by_number(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        self.uncle_count(block_number(&Arguments::new(params, 1)?, 0)?).await
    }

    async fn uncle_count(&self, at: BlockAt) -> Result<Response, RpcError> {
        let Some((reading, block)) = self.with_body(at).await? else { return Ok(Response::null()) };
        self.view(&reading, block, |view| quantity(view.ommer_count()?)).await
    }

    pub(super) async fn uncle_by_hash(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_hash(&arguments, 0)?;
        self.uncle(at, item_index(&arguments, 1)?).await
    }

    pub(super) async fn uncle_by_number(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_number(&arguments, 0)?;
        self.uncle(at, item_index(&arguments, 1)?).await
    }

    async fn uncle(&self, at: BlockAt, index: usize) -> Result<Response, RpcError> {
        let Some((reading, block)) = self.with_body(at).await? else { return Ok(Response::null()) };
        self.view(&reading, block, move |view| Response::of(&view.ommer_json(index)?)).await
    }

    async fn with_body(&self, at: BlockAt) -> Result<Option<(Reading, StoredBlock)>, RpcError> {
        let reading = self.read().await?;
        Ok(reading.block_at(at, BLOCK_PARTS).await?.map(|block| (reading, block)))
    }
}
