//! What a Flow block says beside: collections, seals, and what executing it gave.

use bytes::Bytes;
use cairn_core::StoredBlock;
use cairn_flow::proto;
use prost::Message;
use serde::Serialize;
use utoipa::ToSchema;

use crate::rest::problem::Problem;
use crate::rest::words::{Data, Hash, Num};

/// What a Flow block says beside.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowBlock {
    /// The collections that it guarantees, in their order.
    pub collections: Vec<FlowCollection>,
    /// The seals that it has, of earlier blocks.
    pub seals: Vec<FlowSeal>,
    /// The round of consensus; null where the node gave no header.
    pub view: Option<Num>,
    /// The node that proposed it; null where the node gave no header.
    pub proposer_id: Option<Data>,
    /// What executing it gave. Null in lists, and where the node gave none.
    pub execution_result: Option<FlowExecution>,
    /// What could not be checked of it when it was stored.
    pub unverified: Vec<String>,
}

/// A collection: transactions that a cluster of nodes collected.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowCollection {
    pub id: Data,
    pub reference_block_id: Option<Data>,
}

/// That an earlier block's result is agreed on.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowSeal {
    pub block_id: Data,
    pub result_id: Option<Data>,
    pub final_state: Option<Data>,
}

/// What executing a block gave.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowExecution {
    pub previous_result_id: Option<Data>,
    pub execution_data_id: Option<Data>,
    /// One for each collection, and the system's own.
    pub chunk_count: u32,
    pub computation_used: Num,
}

/// Bytes that a node may leave out.
pub(super) fn given(bytes: &Bytes) -> Option<Data> {
    (!bytes.is_empty()).then(|| Data(bytes.clone()))
}

/// 32 bytes that a node may leave out, or that stand for none where they are zeros.
pub(super) fn hash(bytes: &Bytes) -> Option<Hash> {
    (bytes.len() == 32 && bytes.iter().any(|byte| *byte != 0)).then(|| Hash(bytes.clone()))
}

fn message<M: Message + Default>(what: &str, bytes: &[u8]) -> Result<M, Problem> {
    M::decode(bytes).map_err(|error| Problem::internal(format!("{what} can't be read: {error}")))
}

impl FlowBlock {
    /// Of a stored block with its header, and its extras where they were read.
    pub(crate) fn of(stored: &StoredBlock) -> Result<FlowBlock, Problem> {
        let what = format!("block {}", stored.facts.height);
        let block: proto::Block = message(&what, &stored.header)?;
        let execution_result = match stored.extras.is_empty() {
            true => None,
            false => {
                let result: proto::ExecutionResult = message(&what, &stored.extras)?;
                Some(FlowExecution {
                    previous_result_id: given(&result.previous_result_id),
                    execution_data_id: given(&result.execution_data_id),
                    chunk_count: result.chunks.len() as u32,
                    computation_used: Num(result
                        .chunks
                        .iter()
                        .fold(0, |sum, chunk| sum.saturating_add(chunk.total_computation_used))),
                })
            }
        };
        let header = block.block_header.as_ref();
        let checks = cairn_flow::Checks::from_bits_truncate(stored.facts.unverified);
        Ok(FlowBlock {
            collections: block
                .collection_guarantees
                .iter()
                .map(|guarantee| FlowCollection {
                    id: Data(guarantee.collection_id.clone()),
                    reference_block_id: given(&guarantee.reference_block_id),
                })
                .collect(),
            seals: block
                .block_seals
                .iter()
                .map(|seal| FlowSeal {
                    block_id: Data(seal.block_id.clone()),
                    result_id: given(&seal.result_id),
                    final_state: given(&seal.final_state),
                })
                .collect(),
            view: header.map(|header| Num(header.view)),
            proposer_id: header.and_then(|header| given(&header.proposer_id)),
            execution_result,
            unverified: checks.names().map(str::to_owned).collect(),
        })
    }
}
