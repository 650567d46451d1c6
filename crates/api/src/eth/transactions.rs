//! Transactions and their receipts.

use cairn_core::{Parts, StoredBlock, TxId};
use cairn_evm::{Arguments, BlockAt, parse_hash};
use serde_json::Value;

use super::blocks::{BLOCK_PARTS, RECEIPT_PARTS, block_hash, block_number, item_index};
use super::read::Reading;
use super::{EthApi, Response};
use crate::error::RpcError;

/// A transaction's block, and its place in it.
pub(super) struct Found {
    pub reading: Reading,
    pub block: StoredBlock,
    pub index: usize,
}

impl EthApi {
    /// The canonical block of the transaction that argument 0 names, with `parts`.
    pub(super) async fn find_transaction(&self, id: TxId, parts: Parts) -> Result<Option<Found>, RpcError> {
        let reading = self.read().await?;
        let Some(place) = reading.snapshot().find_tx(id).await? else { return Ok(None) };
        let block = reading.stored(place.height, parts).await?;
        Ok(Some(Found { reading, block, index: place.index as usize }))
    }

    pub(super) async fn transaction_by_hash(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let hash = Arguments::new(params, 1)?.required(0, parse_hash)?;
        let Some(found) = self.find_transaction(TxId(hash.0), BLOCK_PARTS).await? else {
            return Ok(Response::null());
        };
        self.transaction(found).await
    }

    async fn transaction(&self, Found { reading, block, index }: Found) -> Result<Response, RpcError> {
        let height = block.facts.height;
        let listed = self.view(&reading, block, move |view| match index < view.listed_tx_count()? {
            true => Response::of(&view.tx_json(index)?).map(Some),
            false => Ok(None),
        });
        if let Some(listed) = listed.await? {
            return Ok(listed);
        }
        // Injected by the chain: all that is known of it is its receipt.
        let block = reading.stored(height, RECEIPT_PARTS).await?;
        self.view(&reading, block, move |view| Response::of(&view.tx_json(index)?)).await
    }

    pub(super) async fn transaction_receipt(&self, params: Option<&Value>) -> Result<Response, RpcError> {
        let hash = Arguments::new(params, 1)?.required(0, parse_hash)?;
        let Some(found) = self.find_transaction(TxId(hash.0), RECEIPT_PARTS).await? else {
            return Ok(Response::null());
        };
        let index = found.index;
        self.view(&found.reading, found.block, move |view| Response::of(&view.receipt_json(index)?)).await
    }

    pub(super) async fn transaction_by_block_hash(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_hash(&arguments, 0)?;
        self.transaction_at(at, item_index(&arguments, 1)?).await
    }

    pub(super) async fn transaction_by_block_number(
        &self,
        params: Option<&Value>,
    ) -> Result<Response, RpcError> {
        let arguments = Arguments::new(params, 2)?;
        let at = block_number(&arguments, 0)?;
        self.transaction_at(at, item_index(&arguments, 1)?).await
    }

    async fn transaction_at(&self, at: BlockAt, index: usize) -> Result<Response, RpcError> {
        let reading = self.read().await?;
        match reading.block_at(at, BLOCK_PARTS).await? {
            Some(block) if index < block.facts.tx_count as usize => {
                self.transaction(Found { reading, block, index }).await
            }
            _ => Ok(Response::null()),
        }
    }
}
