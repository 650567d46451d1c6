//! A client of an access node that shares no code with cairn's source: one channel, one question, one answer.

use bytes::Bytes;
use cairn_flow::{FlowAddress, proto};
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::cdc::Cdc;
use crate::messages::{
    EventsForHeightRangeRequest, EventsResponse, SendTransactionRequest, SendTransactionResponse,
};
use crate::server::Plain;

/// Asks an access node. Clones share the connection.
#[derive(Clone)]
pub struct AccessClient(Channel);

impl AccessClient {
    /// Of the node at this URL.
    pub async fn connect(url: &str) -> Result<AccessClient, tonic::transport::Error> {
        Ok(AccessClient(Endpoint::from_shared(url.to_owned())?.connect().await?))
    }

    async fn call<A: Message + Default>(&self, call: &str, question: &impl Message) -> Result<A, Status> {
        let path = format!("/flow.access.AccessAPI/{call}");
        let path = path.parse().map_err(|_| Status::invalid_argument(format!("{path} is no path")))?;
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let question = Request::new(Bytes::from(question.encode_to_vec()));
        let answer = grpc.unary(question, path, Plain).await?.into_inner();
        A::decode(answer).map_err(|error| Status::internal(format!("{call} can't be read: {error}")))
    }

    /// `GetAccountAtBlockHeight`; `None` where the node knows no such account.
    pub async fn account(&self, address: FlowAddress, height: u64) -> Result<Option<proto::Account>, Status> {
        let question = proto::GetAccountAtBlockHeightRequest {
            address: address.0.to_vec().into(),
            block_height: height,
        };
        match self.call::<proto::AccountResponse>("GetAccountAtBlockHeight", &question).await {
            Ok(answer) => Ok(answer.account),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// `ExecuteScriptAtBlockHeight`: the value, as JSON-CDC.
    pub async fn script(&self, script: &str, arguments: &[Cdc], height: u64) -> Result<Bytes, Status> {
        let question = proto::ExecuteScriptAtBlockHeightRequest {
            block_height: height,
            script: script.as_bytes().to_vec().into(),
            arguments: arguments.iter().map(|argument| argument.0.clone().into()).collect(),
        };
        Ok(self.call::<proto::ExecuteScriptResponse>("ExecuteScriptAtBlockHeight", &question).await?.value)
    }
}

impl AccessClient {
    /// `GetLatestBlockHeader`, of sealed blocks.
    pub async fn latest(&self) -> Result<proto::BlockHeader, Status> {
        let question = proto::GetLatestBlockHeaderRequest { is_sealed: true };
        let answer: proto::BlockHeaderResponse = self.call("GetLatestBlockHeader", &question).await?;
        answer.block.ok_or_else(|| Status::internal("no header"))
    }

    /// `SendTransaction`: the id that the node gives it.
    pub async fn send(&self, transaction: proto::Transaction) -> Result<Bytes, Status> {
        let question = SendTransactionRequest { transaction: Some(transaction) };
        Ok(self.call::<SendTransactionResponse>("SendTransaction", &question).await?.id)
    }

    /// `GetTransaction`.
    pub async fn transaction(&self, id: &Bytes) -> Result<proto::Transaction, Status> {
        let question = proto::GetTransactionRequest { id: id.clone(), ..Default::default() };
        let answer: proto::TransactionResponse = self.call("GetTransaction", &question).await?;
        decoded("a transaction", &answer.transaction.ok_or_else(|| Status::internal("no transaction"))?)
    }

    /// `GetTransactionResult`; events as JSON-CDC.
    pub async fn result(&self, id: &Bytes) -> Result<proto::TransactionResult, Status> {
        let question = proto::GetTransactionRequest { id: id.clone(), ..Default::default() };
        self.call("GetTransactionResult", &question).await
    }

    /// `GetBlockByHeight`, with its guarantees.
    pub async fn block(&self, height: u64) -> Result<proto::Block, Status> {
        let question = proto::GetBlockByHeightRequest { height, full_block_response: true };
        let answer: proto::BlockResponse = self.call("GetBlockByHeight", &question).await?;
        decoded("a block", &answer.block.ok_or_else(|| Status::internal("no block"))?)
    }

    /// `GetCollectionByID`: the ids of its transactions, in order.
    pub async fn collection(&self, id: &Bytes) -> Result<Vec<Bytes>, Status> {
        let question = proto::ByIdRequest { id: id.clone() };
        let answer: proto::CollectionResponse = self.call("GetCollectionByID", &question).await?;
        Ok(answer.collection.ok_or_else(|| Status::internal("no collection"))?.transaction_ids)
    }

    /// `GetTransactionsByBlockID`, in order; none where the node has none of that block.
    pub async fn transactions_of(&self, block_id: &Bytes) -> Result<Vec<proto::Transaction>, Status> {
        let question = proto::GetTransactionsByBlockIdRequest { block_id: block_id.clone() };
        let answer: proto::TransactionsResponse = match self.call("GetTransactionsByBlockID", &question).await
        {
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(Vec::new()),
            answer => answer?,
        };
        answer.transactions.iter().map(|bytes| decoded("a transaction", bytes)).collect()
    }

    /// `GetTransactionResultsByBlockID`, in order; none where the node has none of that block. Events as JSON-CDC.
    pub async fn results_of(&self, block_id: &Bytes) -> Result<Vec<proto::TransactionResult>, Status> {
        let question = proto::GetTransactionsByBlockIdRequest { block_id: block_id.clone() };
        let call = "GetTransactionResultsByBlockID";
        let answer: proto::TransactionResultsResponse = match self.call(call, &question).await {
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(Vec::new()),
            answer => answer?,
        };
        answer.transaction_results.iter().map(|bytes| decoded("a result", bytes)).collect()
    }

    /// `GetEventsForHeightRange`: heights with their events, both ends counted.
    pub async fn events(
        &self,
        kind: &str,
        from: u64,
        to: u64,
    ) -> Result<Vec<(u64, Vec<proto::Event>)>, Status> {
        let question =
            EventsForHeightRangeRequest { r#type: kind.to_owned(), start_height: from, end_height: to };
        let answer: EventsResponse = self.call("GetEventsForHeightRange", &question).await?;
        Ok(answer.results.into_iter().map(|one| (one.block_height, one.events)).collect())
    }
}

/// An event as its message, in the order of its fields: as nodes write it.
pub fn event_bytes(event: &proto::Event) -> Bytes {
    event.encode_to_vec().into()
}

fn decoded<M: Message + Default>(what: &str, bytes: &[u8]) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::internal(format!("{what} can't be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::behaviour::Behaviour;
    use crate::cdc;
    use crate::generate::{Generator, GeneratorOptions};
    use crate::server::FlowNode;

    #[tokio::test]
    async fn accounts_and_scripts_are_answered_over_the_wire() {
        let generator = Generator::new(GeneratorOptions::new(3), Behaviour::default());
        generator.grow(20);
        let node = FlowNode::serve(generator.state()).await.expect("listens");
        let client = AccessClient::connect(&node.url).await.expect("connects");
        let (flow, owners) = {
            let state = node.state();
            let owners: Vec<_> = state.ledger.accounts.all_at(1_010).map(|(address, _)| *address).collect();
            (state.ledger.flow_token(), owners)
        };
        let script = "access(all) fun main() { borrow<&{FungibleToken.Balance}>(path) }";
        for owner in &owners {
            let account = client.account(*owner, 1_010).await.expect("answers").expect("is there");
            let arguments = [cdc::address(*owner), cdc::address(flow.address), cdc::string(&flow.name)];
            let balance = client.script(script, &arguments, 1_010).await.expect("answers");
            assert_eq!(balance, cdc::ufix64(account.balance).0);
        }
        assert!(owners.len() > 8);
        assert_eq!(client.account(FlowAddress([9; 8]), 1_010).await.expect("answers"), None);
        let refusal = client.script("access(all) fun main() {}", &[], 1_010).await.expect_err("is refused");
        assert_eq!(refusal.code(), tonic::Code::InvalidArgument);
    }

    #[tokio::test]
    async fn a_block_is_answered_with_its_transactions_and_results() {
        let generator = Generator::new(GeneratorOptions::new(3), Behaviour::default());
        generator.grow(20);
        let node = FlowNode::serve(generator.state()).await.expect("listens");
        let client = AccessClient::connect(&node.url).await.expect("connects");
        let mut collected = 0;
        for height in 1_001..1_010 {
            let block = client.block(height).await.expect("answers");
            assert_eq!(block.height, height);
            let transactions = client.transactions_of(&block.id).await.expect("answers");
            let results = client.results_of(&block.id).await.expect("answers");
            let ids: Vec<Bytes> = results.iter().map(|result| result.transaction_id.clone()).collect();
            assert_eq!(transactions.len(), results.len());
            assert!(results.iter().all(|result| result.block_height == height));
            for guarantee in &block.collection_guarantees {
                let of_collection = client.collection(&guarantee.collection_id).await.expect("answers");
                assert!(of_collection.iter().all(|id| ids.contains(id)), "{height}");
                collected += of_collection.len();
            }
        }
        assert!(collected > 5);
        let nothing = Bytes::from_static(&[7; 32]);
        assert!(client.transactions_of(&nothing).await.expect("answers").is_empty());
        assert!(client.results_of(&nothing).await.expect("answers").is_empty());
    }
}
