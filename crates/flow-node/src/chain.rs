//! Blocks as they are served: encoded once, found by height and id, sealed up to a height, rolled back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use cairn_flow::Network;
use cairn_flow::id::transaction_id;
use cairn_flow::proto::{self, BlockHeader};
use prost::Message;

use crate::draft::Draft;
use crate::left_out::LeftOut;

/// One transaction as it is served.
#[derive(Debug, Clone)]
pub struct ServedTx {
    /// Its id.
    pub id: Bytes,
    /// The collection that it came in; zeros: the chain's own.
    pub collection_id: Bytes,
    /// The `Transaction` message.
    pub transaction: Bytes,
    /// The `TransactionResultResponse` message.
    pub result: Bytes,
}

impl ServedTx {
    /// Whether the chain itself made it.
    pub fn is_system(&self) -> bool {
        self.collection_id.iter().all(|byte| *byte == 0)
    }
}

/// One block as it is served.
#[derive(Debug, Clone)]
pub struct ServedBlock {
    /// Its id.
    pub id: Bytes,
    /// Its header.
    pub header: BlockHeader,
    /// The `Block` message.
    pub block: Bytes,
    /// Its transactions that were executed, in order.
    pub transactions: Vec<ServedTx>,
    /// The answers to the bulk calls.
    pub all_transactions: Bytes,
    /// See [`ServedBlock::all_transactions`].
    pub all_results: Bytes,
    /// The `ExecutionResult` message.
    pub execution_result: Option<Bytes>,
}

impl ServedBlock {
    fn of(draft: &Draft) -> ServedBlock {
        let transactions: Vec<ServedTx> = draft
            .transactions
            .iter()
            .map(|(transaction, result)| ServedTx {
                id: Bytes::copy_from_slice(transaction_id(transaction).as_bytes()),
                collection_id: result.collection_id.clone(),
                transaction: transaction.encode_to_vec().into(),
                result: result.encode_to_vec().into(),
            })
            .collect();
        let block = &draft.block;
        let header = block.block_header.clone().unwrap_or_else(|| BlockHeader {
            id: block.id.clone(),
            parent_id: block.parent_id.clone(),
            height: block.height,
            timestamp: block.timestamp,
            ..BlockHeader::default()
        });
        let all_transactions = proto::TransactionsResponse {
            transactions: draft.all_transactions().map(|tx| tx.encode_to_vec().into()).collect(),
        };
        let all_results = proto::TransactionResultsResponse {
            transaction_results: transactions.iter().map(|tx| tx.result.clone()).collect(),
        };
        ServedBlock {
            id: block.id.clone(),
            header,
            block: block.encode_to_vec().into(),
            all_transactions: all_transactions.encode_to_vec().into(),
            all_results: all_results.encode_to_vec().into(),
            transactions,
            execution_result: draft.execution_result.as_ref().map(|result| result.encode_to_vec().into()),
        }
    }
}

/// The blocks of a node, from its root up.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Whose blocks these are.
    pub network: Network,
    /// The first height that is served.
    pub root_height: u64,
    /// How many of the newest blocks aren't sealed yet.
    pub unsealed_heights: u64,
    blocks: BTreeMap<u64, Arc<ServedBlock>>,
    by_id: HashMap<Bytes, u64>,
    /// Blocks that are served with less than there is.
    lessened: BTreeMap<u64, Arc<ServedBlock>>,
}

impl Chain {
    /// Of these blocks; the first is the root.
    pub fn new(blocks: BTreeMap<u64, Draft>) -> Chain {
        let root_height = blocks.keys().next().copied().unwrap_or(0);
        let mut chain = Chain::empty(Network::Emulator, root_height);
        blocks.values().for_each(|draft| chain.push(draft));
        chain
    }

    /// Without blocks yet.
    pub fn empty(network: Network, root_height: u64) -> Chain {
        Chain {
            network,
            root_height,
            unsealed_heights: 0,
            blocks: BTreeMap::new(),
            by_id: HashMap::new(),
            lessened: BTreeMap::new(),
        }
    }

    /// Adds a block, or puts another in its place.
    pub fn push(&mut self, draft: &Draft) {
        let block = ServedBlock::of(draft);
        self.by_id.insert(block.id.clone(), draft.block.height);
        self.lessened.remove(&draft.block.height);
        self.blocks.insert(draft.block.height, Arc::new(block));
    }

    /// Takes away the blocks above `height`.
    pub fn rollback(&mut self, height: u64) {
        let gone = self.blocks.split_off(&(height + 1));
        self.lessened.retain(|lessened, _| *lessened <= height);
        gone.values().for_each(|block| {
            self.by_id.remove(&block.id);
        });
    }

    /// From now on serves these blocks without some of their events, in silence.
    pub fn leave_out(
        &mut self,
        heights: impl IntoIterator<Item = u64>,
        what: LeftOut,
    ) -> Result<(), prost::DecodeError> {
        for height in heights {
            let Some(block) = self.blocks.get(&height) else { continue };
            self.lessened.insert(height, Arc::new(what.lessen(block)?));
        }
        Ok(())
    }

    /// Serves whole again what was left out.
    pub fn leave_nothing_out(&mut self) {
        self.lessened.clear();
    }

    /// The newest block.
    pub fn tip(&self) -> Option<&Arc<ServedBlock>> {
        self.blocks.values().next_back()
    }

    /// The newest sealed block.
    pub fn sealed(&self) -> Option<&Arc<ServedBlock>> {
        let height = self.tip()?.header.height.saturating_sub(self.unsealed_heights);
        self.blocks.range(..=height).next_back().map(|(_, block)| block)
    }

    /// Whether the block at `height` is sealed.
    pub fn is_sealed(&self, height: u64) -> bool {
        self.sealed().is_some_and(|sealed| height <= sealed.header.height)
    }

    /// The block at a height.
    pub fn at(&self, height: u64) -> Option<&Arc<ServedBlock>> {
        self.lessened.get(&height).or_else(|| self.blocks.get(&height))
    }

    /// The block with this id.
    pub fn by_id(&self, id: &[u8]) -> Option<&Arc<ServedBlock>> {
        self.at(*self.by_id.get(id)?)
    }

    /// All of them, by height.
    pub fn blocks(&self) -> impl DoubleEndedIterator<Item = &Arc<ServedBlock>> {
        self.blocks.iter().map(|(height, block)| self.lessened.get(height).unwrap_or(block))
    }
}
