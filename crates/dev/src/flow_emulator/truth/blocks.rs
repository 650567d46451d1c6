//! The chain block by block, as the node answers: `GetBlockByHeight`, and by the block's id its collections, transactions and results.

use std::collections::BTreeMap;

use alloy_primitives::hex;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use cairn_flow::proto;
use cairn_flow_node::AccessClient;
use futures::{StreamExt, TryStreamExt};

/// Questions that are on their way at once.
const AT_ONCE: usize = 8;

/// A transaction with its result, events in order.
pub struct Tx {
    pub id: Bytes,
    pub transaction: proto::Transaction,
    pub result: proto::TransactionResult,
    /// Whether it is in no collection: nobody sent it.
    pub is_system: bool,
}

/// A block.
pub struct Block {
    pub height: u64,
    pub id: Bytes,
    pub parent_id: Bytes,
    pub time_ms: u64,
    /// With the number of its transactions.
    pub collections: Vec<(Bytes, usize)>,
    pub transactions: Vec<Tx>,
}

/// The blocks of a chain by height.
#[derive(Default)]
pub struct Blocks(BTreeMap<u64, Block>);

impl Blocks {
    /// In the chain's order.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.0.values()
    }

    /// Asks for what changed since it was last asked: from the head down to the first block that is still the chain's.
    pub async fn update(&mut self, client: &AccessClient, first: u64, head: u64) -> Result<()> {
        self.0.split_off(&(head + 1));
        let mut wanted = Vec::new();
        for height in (first..=head).rev() {
            let block = client.block(height).await?;
            if self.0.get(&height).is_some_and(|known| known.id == block.id) {
                break;
            }
            wanted.push(block);
        }
        let asked = wanted.into_iter().map(|block| whole(client, block));
        let mut asked = futures::stream::iter(asked).buffer_unordered(AT_ONCE);
        while let Some(block) = asked.try_next().await? {
            self.0.insert(block.height, block);
        }
        let mut before: Option<&Block> = None;
        for (expected, block) in (first..).zip(self.iter()) {
            let follows = before.is_none_or(|before| before.id == block.parent_id);
            ensure!(
                block.height == expected && follows,
                "the node's block {} follows no other",
                block.height
            );
            before = Some(block);
        }
        ensure!(before.map(|last| last.height) == Some(head), "the node's blocks don't reach {head}");
        Ok(())
    }
}

async fn whole(client: &AccessClient, block: proto::Block) -> Result<Block> {
    let (mut collections, mut collected) = (Vec::new(), Vec::new());
    for guarantee in &block.collection_guarantees {
        let ids = client.collection(&guarantee.collection_id).await?;
        collections.push((guarantee.collection_id.clone(), ids.len()));
        collected.extend(ids);
    }
    let height = block.height;
    // Nothing is executed in the chain's first block, and the emulator has no answer about that.
    let is_first = block.parent_id.iter().all(|byte| *byte == 0);
    let (transactions, results) = match is_first {
        true => (Vec::new(), Vec::new()),
        false => (client.transactions_of(&block.id).await?, client.results_of(&block.id).await?),
    };
    ensure!(
        transactions.len() == results.len() && results.len() >= collected.len(),
        "the node has {} transactions, {} results and {} in collections of block {height}",
        transactions.len(),
        results.len(),
        collected.len()
    );
    let mut all = Vec::with_capacity(results.len());
    for (at, (transaction, mut result)) in transactions.into_iter().zip(results).enumerate() {
        let id = Bytes::copy_from_slice(cairn_flow::id::transaction_id(&transaction).as_bytes());
        let is_its = result.transaction_id.is_empty() || result.transaction_id == id;
        ensure!(is_its, "result {at} of block {height} is another transaction's than {}", hex::encode(&id));
        let in_collection = collected.get(at);
        ensure!(
            in_collection.is_none_or(|collected| *collected == id),
            "transaction {at} of block {height} is another one in its collection"
        );
        result.events.sort_by_key(|event| event.event_index);
        all.push(Tx { id, transaction, result, is_system: in_collection.is_none() });
    }
    let time = block.timestamp.with_context(|| format!("block {height} has no time"))?;
    let millis = time.seconds * 1_000 + i64::from(time.nanos) / 1_000_000;
    let time_ms = u64::try_from(millis).with_context(|| format!("block {height} is of {millis} ms"))?;
    let (id, parent_id) = (block.id, block.parent_id);
    Ok(Block { height, id, parent_id, time_ms, collections, transactions: all })
}
