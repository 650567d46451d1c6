//! What the node says to each call.

use bytes::Bytes;
use cairn_flow::proto::{self, BlockStatus};
use prost::Message;
use tonic::Status;

use crate::behaviour::network_name;
use crate::chain::{ServedBlock, ServedTx};
use crate::messages::{
    BalanceResponse, BlockOfStream, EventsForBlockIdsRequest, EventsForHeightRangeRequest, EventsResponse,
    EventsResult, ExecuteScriptAtLatestRequest, HeaderOfStream,
};
use crate::scripts;
use crate::server::State;

/// Calls that nodes of old sporks don't have.
const BULK: [&str; 5] = [
    "GetTransactionsByBlockID",
    "GetTransactionResultsByBlockID",
    "GetTransactionResultByIndex",
    "GetSystemTransaction",
    "GetSystemTransactionResult",
];

pub(crate) fn encoded(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

pub(crate) fn read<M: Message + Default>(question: Bytes) -> Result<M, Status> {
    M::decode(question).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn missing(what: &str) -> Status {
    Status::not_found(format!("not found: {what}: key not found"))
}

/// The blocks of streams, by the name of the stream.
pub(crate) fn of_stream(call: &str, block: &ServedBlock) -> Bytes {
    match call {
        "SubscribeBlockDigestsFromStartHeight" => {
            encoded(&proto::BlockDigest { block_id: block.id.clone(), block_height: block.header.height })
        }
        "SubscribeBlockHeadersFromStartHeight" => {
            encoded(&HeaderOfStream { header: Some(block.header.clone()) })
        }
        _ => encoded(&BlockOfStream { block: block.block.clone() }),
    }
}

impl State {
    /// The block at a height, sealed or not.
    fn at(&self, height: u64) -> Result<&ServedBlock, Status> {
        let root = self.chain.root_height;
        if height < root {
            return Err(Status::not_found(format!(
                "block height {height} is less than the spork root block height {root}. Try to use a historic node"
            )));
        }
        self.chain.at(height).map(AsRef::as_ref).ok_or_else(|| missing("block"))
    }

    fn by_id(&self, id: &[u8]) -> Result<&ServedBlock, Status> {
        self.chain.by_id(id).map(AsRef::as_ref).ok_or_else(|| missing("block"))
    }

    /// One whose results there are.
    fn executed(&self, id: &[u8]) -> Result<&ServedBlock, Status> {
        let block = self.by_id(id)?;
        match self.chain.is_sealed(block.header.height) {
            true => Ok(block),
            false => Err(missing("execution result")),
        }
    }

    fn latest(&self, is_sealed: bool) -> Result<&ServedBlock, Status> {
        let latest = if is_sealed { self.chain.sealed() } else { self.chain.tip() };
        latest.map(AsRef::as_ref).ok_or_else(|| missing("block"))
    }

    fn status(&self, block: &ServedBlock) -> i32 {
        if self.behaviour.is_silent_on_seals {
            return BlockStatus::Unknown as i32;
        }
        match self.chain.is_sealed(block.header.height) {
            true => BlockStatus::Sealed as i32,
            false => BlockStatus::Finalized as i32,
        }
    }

    fn header(&self, block: &ServedBlock) -> Bytes {
        let block_status = self.status(block);
        encoded(&proto::BlockHeaderResponse { block: Some(block.header.clone()), block_status })
    }

    fn block(&self, block: &ServedBlock) -> Bytes {
        encoded(&proto::BlockResponse { block: Some(block.block.clone()), block_status: self.status(block) })
    }

    /// The transaction with this id; in the block that is named, else in the newest that has it. A system transaction is in all of them.
    fn transaction(&self, question: &proto::GetTransactionRequest) -> Result<&ServedTx, Status> {
        let is_it = |tx: &&ServedTx| tx.id == question.id;
        let found = match question.block_id.is_empty() {
            false => self.executed(&question.block_id)?.transactions.iter().find(is_it),
            true => self
                .chain
                .blocks()
                .rev()
                .filter(|block| self.chain.is_sealed(block.header.height))
                .find_map(|block| block.transactions.iter().find(is_it)),
        };
        found.ok_or_else(|| missing("transaction"))
    }

    /// The transaction with this id in the first block that has it.
    fn first_of(&self, id: &Bytes) -> Result<&ServedTx, Status> {
        let mut transactions = self.chain.blocks().flat_map(|block| &block.transactions);
        transactions.find(|tx| tx.id == *id).ok_or_else(|| missing("transaction"))
    }

    fn events_of(&self, block: &ServedBlock, event_type: &str) -> Result<EventsResult, Status> {
        let mut events = Vec::new();
        for tx in &block.transactions {
            let result = read::<proto::TransactionResult>(tx.result.clone())?;
            events.extend(result.events.into_iter().filter(|event| event.r#type == event_type));
        }
        Ok(EventsResult {
            block_id: block.id.clone(),
            block_height: block.header.height,
            events,
            block_timestamp: block.header.timestamp,
        })
    }

    fn events(&self, question: &EventsForHeightRangeRequest) -> Result<EventsResponse, Status> {
        let sealed = self.latest(true)?.header.height;
        let (start, end) = (question.start_height, question.end_height);
        if end < start {
            return Err(Status::invalid_argument("start height must not be larger than end height"));
        }
        self.check_heights(end - start + 1)?;
        if start > sealed {
            return Err(Status::out_of_range(format!(
                "start height {start} is greater than the last sealed block height {sealed}"
            )));
        }
        // An end above the sealed head is cut in silence.
        let results =
            (start..=end.min(sealed)).map(|height| self.events_of(self.at(height)?, &question.r#type));
        Ok(EventsResponse { results: results.collect::<Result<_, _>>()? })
    }

    fn check_heights(&self, heights: u64) -> Result<(), Status> {
        let most = self.behaviour.max_event_heights;
        if heights <= most {
            return Ok(());
        }
        Err(Status::invalid_argument(format!("requested block range ({heights}) exceeded maximum ({most})")))
    }

    /// Whether it has the state that a block left.
    fn has_state(&self, height: u64) -> Result<bool, Status> {
        let sealed = self.latest(true)?.header.height;
        Ok(self.behaviour.keeps_state_heights.is_none_or(|kept| sealed - height.min(sealed) < kept))
    }

    fn account(&self, address: &[u8], height: u64) -> Result<proto::Account, Status> {
        let block = self.executed(&self.at(height)?.id)?;
        if !self.has_state(height)? {
            let id = hex::encode(&block.id);
            return Err(Status::out_of_range(format!("state for block ID {id} not available")));
        }
        self.ledger.account(address, height).ok_or_else(|| Status::not_found("account not found"))
    }

    fn script(&self, script: &[u8], arguments: &[Bytes], height: u64) -> Result<Bytes, Status> {
        let block = self.executed(&self.at(height)?.id)?;
        // With the code and the words of flow-go.
        if !self.has_state(height)? {
            let id = hex::encode(&block.id);
            return Err(Status::invalid_argument(format!(
                "failed to execute script: failed to create storage snapshot: state not found in ledger for commit {id} (block {id}): execution state is pruned"
            )));
        }
        let value = scripts::answer(&self.ledger, height, script, arguments);
        let value = value
            .map_err(|message| Status::invalid_argument(format!("failed to execute script: {message}")))?;
        Ok(encoded(&proto::ExecuteScriptResponse { value }))
    }

    /// Fails the call that is to fail.
    pub(crate) fn may_fail(&self, call: &str) -> Result<(), Status> {
        match self.behaviour.failing.filter(|(failing, _)| *failing == call) {
            Some((_, code)) => Err(Status::new(code, format!("{call} fails"))),
            None => Ok(()),
        }
    }

    /// One answer. State is kept only of what was asked.
    pub(crate) fn found(&self, call: &str, question: Bytes) -> Result<Bytes, Status> {
        if (self.behaviour.is_old && BULK.contains(&call)) || self.behaviour.lacks.contains(&call) {
            return Err(Status::unimplemented(format!("unknown method {call}")));
        }
        self.may_fail(call)?;
        Ok(match call {
            "Ping" => Bytes::new(),
            "GetNetworkParameters" => encoded(&proto::GetNetworkParametersResponse {
                chain_id: network_name(&self.behaviour, self.chain.network),
            }),
            "GetNodeVersionInfo" => encoded(&proto::GetNodeVersionInfoResponse {
                info: Some(proto::NodeVersionInfo {
                    semver: "v0.0.0-cairn".into(),
                    spork_root_block_height: self.chain.root_height,
                    node_root_block_height: self.chain.root_height,
                    ..proto::NodeVersionInfo::default()
                }),
            }),
            "GetLatestBlockHeader" => {
                let is_sealed = read::<proto::GetLatestBlockHeaderRequest>(question)?.is_sealed;
                self.header(self.latest(is_sealed)?)
            }
            "GetLatestBlock" => {
                let is_sealed = read::<proto::GetLatestBlockHeaderRequest>(question)?.is_sealed;
                self.block(self.latest(is_sealed)?)
            }
            "GetBlockHeaderByHeight" => {
                self.header(self.at(read::<proto::GetBlockHeaderByHeightRequest>(question)?.height)?)
            }
            "GetBlockHeaderByID" => self.header(self.by_id(&read::<proto::ByIdRequest>(question)?.id)?),
            "GetBlockByHeight" => {
                self.block(self.at(read::<proto::GetBlockByHeightRequest>(question)?.height)?)
            }
            "GetBlockByID" => self.block(self.by_id(&read::<proto::ByIdRequest>(question)?.id)?),
            "GetTransactionsByBlockID" => {
                let id = read::<proto::GetTransactionsByBlockIdRequest>(question)?.block_id;
                let all = self.executed(&id)?.all_transactions.clone();
                match self.behaviour.bulk_lacks {
                    None => all,
                    Some(behind) => {
                        let mut short = read::<proto::TransactionsResponse>(all)?;
                        if let Some(place) = short.transactions.len().checked_sub(behind + 1) {
                            short.transactions.remove(place);
                        }
                        encoded(&short)
                    }
                }
            }
            "GetTransactionResultsByBlockID" => {
                let id = read::<proto::GetTransactionsByBlockIdRequest>(question)?.block_id;
                let block = self.executed(&id)?;
                if self.behaviour.is_bulk_broken {
                    return Err(Status::internal(
                        "transaction failed but error message is empty for tx ID: 0",
                    ));
                }
                block.all_results.clone()
            }
            "GetTransactionResultByIndex" => {
                let question = read::<proto::GetTransactionByIndexRequest>(question)?;
                let block = self.executed(&question.block_id)?;
                let tx =
                    block.transactions.get(question.index as usize).ok_or_else(|| missing("transaction"))?;
                if self.behaviour.is_system_refused_by_index && tx.is_system() {
                    return Err(missing("collection for transaction result"));
                }
                // As flow-go: it says neither whose the result is nor of which collection.
                encoded(&proto::TransactionResult {
                    transaction_id: Bytes::from_static(&[0; 32]),
                    collection_id: Bytes::from_static(&[0; 32]),
                    ..read::<proto::TransactionResult>(tx.result.clone())?
                })
            }
            "GetSystemTransaction" | "GetSystemTransactionResult" => {
                let id = read::<proto::GetTransactionsByBlockIdRequest>(question)?.block_id;
                let last = self.executed(&id)?.transactions.last().ok_or_else(|| missing("transaction"))?;
                match call {
                    "GetSystemTransaction" => {
                        encoded(&proto::TransactionResponse { transaction: Some(last.transaction.clone()) })
                    }
                    _ => last.result.clone(),
                }
            }
            "GetCollectionByID" => {
                let id = read::<proto::ByIdRequest>(question)?.id;
                // Made-up collections may have the same id in several blocks; the newest is meant.
                let is_in = |tx: &&ServedTx| tx.collection_id == id;
                let block =
                    self.chain.blocks().rev().find(|block| block.transactions.iter().any(|tx| is_in(&tx)));
                let block = block.ok_or_else(|| missing("collection"))?;
                let transaction_ids =
                    block.transactions.iter().filter(is_in).map(|tx| tx.id.clone()).collect();
                let collection = Some(proto::Collection { id: id.clone(), transaction_ids });
                encoded(&proto::CollectionResponse { collection })
            }
            "GetTransaction" => {
                let tx = self.transaction(&read::<proto::GetTransactionRequest>(question)?)?;
                if self.behaviour.is_system_unstored && tx.is_system() {
                    return Err(missing("transaction"));
                }
                encoded(&proto::TransactionResponse { transaction: Some(tx.transaction.clone()) })
            }
            "GetTransactionResult" => {
                let question = read::<proto::GetTransactionRequest>(question)?;
                let found = match self.behaviour.is_silent_on_blocks {
                    false => self.transaction(&question)?,
                    true => self.first_of(&question.id)?,
                };
                let mut result = read::<proto::TransactionResult>(found.result.clone())?;
                // Old nodes say less.
                if self.behaviour.is_old {
                    result.collection_id = Bytes::new();
                }
                if self.behaviour.is_silent_on_blocks {
                    (result.block_id, result.block_height) = (Bytes::new(), 0);
                }
                encoded(&result)
            }
            "GetExecutionResultForBlockID" => {
                let block = self.executed(&read::<proto::ByIdRequest>(question)?.id)?;
                encoded(&proto::ExecutionResultResponse { execution_result: block.execution_result.clone() })
            }
            "GetEventsForHeightRange" => encoded(&self.events(&read(question)?)?),
            "GetEventsForBlockIDs" => {
                let question = read::<EventsForBlockIdsRequest>(question)?;
                self.check_heights(question.block_ids.len() as u64)?;
                let of = |id: &Bytes| self.events_of(self.executed(id)?, &question.r#type);
                encoded(&EventsResponse {
                    results: question.block_ids.iter().map(of).collect::<Result<_, _>>()?,
                })
            }
            "GetAccountAtBlockHeight" => {
                let question = read::<proto::GetAccountAtBlockHeightRequest>(question)?;
                let account = Some(self.account(&question.address, question.block_height)?);
                encoded(&proto::AccountResponse { account })
            }
            "GetAccountAtLatestBlock" => {
                let question = read::<proto::GetAccountAtBlockHeightRequest>(question)?;
                let account = Some(self.account(&question.address, self.latest(true)?.header.height)?);
                encoded(&proto::AccountResponse { account })
            }
            "GetAccountBalanceAtBlockHeight" => {
                let question = read::<proto::GetAccountAtBlockHeightRequest>(question)?;
                let balance = self.account(&question.address, question.block_height)?.balance;
                encoded(&BalanceResponse { balance })
            }
            "ExecuteScriptAtBlockHeight" => {
                let question = read::<proto::ExecuteScriptAtBlockHeightRequest>(question)?;
                self.script(&question.script, &question.arguments, question.block_height)?
            }
            "ExecuteScriptAtLatestBlock" => {
                let question = read::<ExecuteScriptAtLatestRequest>(question)?;
                self.script(&question.script, &question.arguments, self.latest(true)?.header.height)?
            }
            "ExecuteScriptAtBlockID" => {
                let question = read::<proto::ExecuteScriptAtBlockIdRequest>(question)?;
                let height = self.by_id(&question.block_id)?.header.height;
                self.script(&question.script, &question.arguments, height)?
            }
            _ => return Err(Status::unimplemented(format!("unknown method {call}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::behaviour::Behaviour;
    use crate::generate::{Generator, GeneratorOptions};
    use crate::server::lock;
    use tonic::Code;

    /// 30 blocks from 1000 up, of which the last two aren't sealed.
    fn generator() -> Generator {
        // Fees are deducted from the first block on.
        let options = GeneratorOptions { unsealed_heights: 2, rlp_heights: 0, ..GeneratorOptions::new(5) };
        let generator = Generator::new(options, Behaviour { max_event_heights: 20, ..Behaviour::default() });
        generator.grow(30);
        generator
    }

    fn ask<A: Message + Default>(
        generator: &Generator,
        call: &str,
        question: &impl Message,
    ) -> Result<A, Status> {
        let state = generator.state();
        let answer = lock(&state).found(call, encoded(question))?;
        Ok(A::decode(answer).expect("is read"))
    }

    fn events(generator: &Generator, start_height: u64, end_height: u64) -> Result<EventsResponse, Status> {
        let fees =
            format!("A.{}.FlowFees.FeesDeducted", cairn_flow::Network::Emulator.accounts().flow_fees.bare());
        let question = EventsForHeightRangeRequest { r#type: fees, start_height, end_height };
        ask(generator, "GetEventsForHeightRange", &question)
    }

    #[test]
    fn events_come_by_height_within_limits_and_an_end_above_the_sealed_head_is_cut_in_silence() {
        let generator = generator();
        let answer = events(&generator, 1_010, 1_029).expect("answers");
        assert_eq!(
            answer.results.iter().map(|result| result.block_height).collect::<Vec<_>>(),
            (1_010..=1_027).collect::<Vec<_>>()
        );
        let state = generator.state();
        for result in &answer.results {
            let fees = lock(&state).ledger.transactions[&result.block_height]
                .iter()
                .filter(|tx| tx.is_fee_told)
                .count();
            assert_eq!(result.events.len(), fees);
        }
        let ids = answer.results.iter().map(|result| result.block_id.clone()).collect();
        let r#type = answer.results.iter().find_map(|result| Some(result.events.first()?.r#type.clone()));
        let question = EventsForBlockIdsRequest { r#type: r#type.expect("somebody paid"), block_ids: ids };
        assert_eq!(
            ask::<EventsResponse>(&generator, "GetEventsForBlockIDs", &question).expect("answers"),
            answer
        );
        let refusal = |from, to| events(&generator, from, to).expect_err("is refused").code();
        assert_eq!(refusal(1_000, 1_020), Code::InvalidArgument);
        assert_eq!(refusal(1_028, 1_029), Code::OutOfRange);
        assert_eq!(refusal(990, 1_001), Code::NotFound);
    }

    #[test]
    fn the_unsealed_head_has_blocks_and_no_results() {
        let generator = generator();
        let header = |is_sealed| {
            let question = proto::GetLatestBlockHeaderRequest { is_sealed };
            let answer: proto::BlockHeaderResponse =
                ask(&generator, "GetLatestBlockHeader", &question).expect("answers");
            (answer.block.expect("a header"), answer.block_status)
        };
        let (sealed, status) = header(true);
        assert_eq!((sealed.height, status), (1_027, BlockStatus::Sealed as i32));
        let (latest, status) = header(false);
        assert_eq!((latest.height, status), (1_029, BlockStatus::Finalized as i32));
        let results = |id: &Bytes| {
            let question = proto::GetTransactionsByBlockIdRequest { block_id: id.clone() };
            ask::<proto::TransactionResultsResponse>(&generator, "GetTransactionResultsByBlockID", &question)
        };
        assert!(!results(&sealed.id).expect("answers").transaction_results.is_empty());
        assert_eq!(results(&latest.id).expect_err("is refused").code(), Code::NotFound);
        let below = proto::GetBlockByHeightRequest { height: 999, full_block_response: true };
        let refusal =
            ask::<proto::BlockResponse>(&generator, "GetBlockByHeight", &below).expect_err("is refused");
        assert!(refusal.message().contains("less than the spork root block height 1000"), "{refusal}");
    }

    #[test]
    fn accounts_and_scripts_are_answered_at_any_height() {
        let generator = generator();
        let state = generator.state();
        let ledger = lock(&state).ledger.clone();
        for height in [1_000, 1_027] {
            for (address, truth) in ledger.accounts.all_at(height) {
                let question = proto::GetAccountAtBlockHeightRequest {
                    address: address.0.to_vec().into(),
                    block_height: height,
                };
                let answer: proto::AccountResponse =
                    ask(&generator, "GetAccountAtBlockHeight", &question).expect("answers");
                let account = answer.account.expect("an account");
                assert_eq!(
                    (account.keys.len(), account.contracts.len()),
                    (truth.keys.len(), truth.contracts.len())
                );
                let text = |kind: &str, value: &str| {
                    Bytes::from(format!(r#"{{"type":"{kind}","value":"{value}"}}"#))
                };
                let question = proto::ExecuteScriptAtBlockHeightRequest {
                    block_height: height,
                    script: "access(all) fun main() { borrow<&{FungibleToken.Balance}>(path) }".into(),
                    arguments: vec![
                        text("Address", &address.to_string()),
                        text("Address", &ledger.flow_token().address.to_string()),
                        text("String", &ledger.flow_token().name),
                    ],
                };
                let answer: proto::ExecuteScriptResponse =
                    ask(&generator, "ExecuteScriptAtBlockHeight", &question).expect("answers");
                assert_eq!(answer.value, crate::cdc::ufix64(account.balance).0);
            }
        }
        let state = generator.state();
        lock(&state).behaviour.keeps_state_heights = Some(28);
        assert!(lock(&state).has_state(1_000).expect("answers"));
        lock(&state).behaviour.keeps_state_heights = Some(27);
        assert!(!lock(&state).has_state(1_000).expect("answers"));
        lock(&state).behaviour.keeps_state_heights = None;
        let unknown = proto::ExecuteScriptAtBlockHeightRequest { block_height: 1_000, ..Default::default() };
        let refusal = ask::<proto::ExecuteScriptResponse>(&generator, "ExecuteScriptAtBlockHeight", &unknown);
        assert_eq!(refusal.expect_err("is refused").code(), Code::InvalidArgument);
    }
}
