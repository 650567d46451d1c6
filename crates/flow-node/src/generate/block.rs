//! One block: its transactions, then the chain's own, then header, seals and execution result.

use alloy_primitives::B256;
use bytes::Bytes;
use cairn_flow::FlowAddress;
use cairn_flow::id::{collection_id, transaction_id};
use cairn_flow::proto::{
    Block, BlockHeader, BlockSeal, Chunk, CollectionGuarantee, Event, ExecutionResult, ProposalKey,
    ServiceEvent, Timestamp, Transaction, TransactionResult, TransactionStatus,
};
use rand::RngExt;
use rand::rngs::SmallRng;
use sha3::{Digest, Sha3_256};

use super::accounts::ELDER_AGE;
use super::transaction::Tx;
use super::{Cast, GeneratorOptions, ROOT_TIME_MS};
use crate::cdc;
use crate::deeds::Deed;
use crate::draft::Draft;
use crate::ledger::{ContractId, Counters, FlowTx, Ledger};

/// The largest collection.
const MAX_COLLECTION: usize = 3;

/// SHA3-256 of some parts.
pub(super) fn hash(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha3_256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

pub(super) fn id(parts: &[&[u8]]) -> Bytes {
    Bytes::copy_from_slice(&hash(parts))
}

/// What there is of the EVM block so far.
#[derive(Default)]
pub(super) struct EvmBlock {
    pub hashes: Vec<B256>,
    /// Logs of this Flow block: cairn's index of them begins anew in each.
    pub logs: u32,
    pub gas_used: u64,
}

impl EvmBlock {
    /// What earlier Flow blocks have of one that none of them closed.
    fn open(ledger: &Ledger, height: u64, evm_height: u64) -> EvmBlock {
        let before = ledger.evm_transactions.range(..height).rev();
        let mut txs: Vec<_> = before
            .flat_map(|(_, txs)| txs.iter().rev())
            .take_while(|tx| tx.evm_height == evm_height)
            .collect();
        txs.reverse();
        EvmBlock {
            hashes: txs.iter().map(|tx| tx.hash).collect(),
            logs: 0,
            gas_used: txs.iter().map(|tx| tx.gas_used).sum(),
        }
    }
}

/// A block while it is made.
pub(super) struct BlockBuilder<'g> {
    pub options: &'g GeneratorOptions,
    pub ledger: &'g mut Ledger,
    pub rng: SmallRng,
    pub cast: Cast,
    pub height: u64,
    pub counters: Counters,
    pub evm: EvmBlock,
    /// Who can act: all accounts but those of the chain's own contracts.
    pub actors: Vec<FlowAddress>,
    fork: u64,
    parent_id: Bytes,
    /// The block whose result is agreed on in this one.
    sealed_id: Option<Bytes>,
    /// Transactions with what each did, and whether the chain itself made it.
    made: Vec<(Transaction, Tx)>,
}

impl<'g> BlockBuilder<'g> {
    pub fn new(
        options: &'g GeneratorOptions,
        fork: u64,
        ledger: &'g mut Ledger,
        rng: SmallRng,
        height: u64,
        (parent_id, sealed_id): (Bytes, Option<Bytes>),
    ) -> Self {
        let counters = *ledger.counters.last().expect("set when the chain was made");
        let of_chain = |address: &FlowAddress| {
            ledger.accounts.last(address).is_none_or(|account| account.created_height.is_none())
        };
        let evm = EvmBlock::open(ledger, height, counters.evm_height + 1);
        let actors = ledger.accounts.all().map(|(address, _)| *address);
        let actors: Vec<FlowAddress> = actors.filter(|address| !of_chain(address)).collect();
        BlockBuilder {
            options,
            ledger,
            rng,
            cast: Cast::of(options.network),
            height,
            counters,
            evm,
            actors,
            fork,
            parent_id,
            sealed_id,
            made: Vec::new(),
        }
    }

    /// Blocks since the root.
    pub fn age(&self) -> u64 {
        self.height - self.options.root_height
    }

    /// Whether it is before Cadence 1.0.
    pub fn is_old(&self) -> bool {
        self.age() < self.options.old_heights
    }

    pub fn service(&self) -> FlowAddress {
        self.options.network.accounts().service
    }

    pub fn chance(&mut self, of_a_hundred: u32) -> bool {
        self.rng.random_ratio(of_a_hundred, 100)
    }

    pub fn next_uuid(&mut self) -> u64 {
        self.counters.uuid += 1;
        self.counters.uuid
    }

    /// Makes the whole block; `before` is the first transaction of the block before it.
    pub fn build(mut self, before: Option<Transaction>) -> Draft {
        if self.age() == 0 {
            self.first_block();
        } else {
            let count = self.rng.random_range(self.options.transactions.clone());
            for _ in 0..count {
                self.user_transaction();
            }
            if self.options.crowd > 0 {
                self.crowd_transaction();
            }
            if self.options.has_elder && self.age() == ELDER_AGE {
                self.elder_transaction();
            }
            if self.options.is_odd {
                self.odd_transactions(before);
            }
        }
        let users = self.made.len();
        self.system_transactions();
        let collections = self.collections(users);
        self.ledger.counters.set(self.height, self.counters);
        self.assemble(collections)
    }

    /// Transactions that were included before, here or in the block before, and one of the service account with a service event.
    fn odd_transactions(&mut self, before: Option<Transaction>) {
        if self.chance(20)
            && let Some((transaction, tx)) = self.made.first()
        {
            let again = (transaction.clone(), tx.again());
            self.made.push(again);
        }
        let of_before = self.ledger.transactions.get(&(self.height - 1)).and_then(|txs| txs.first());
        if let (Some(transaction), Some(was)) = (before, of_before.cloned())
            && self.chance(20)
        {
            let mut tx = Tx::new(was.proposer, was.payer, was.authorizers);
            (tx.script, tx.arguments, tx.imports) =
                (transaction.script.clone(), transaction.arguments.clone(), was.imports);
            self.made.push((transaction, tx.again()));
        }
        if self.chance(20) {
            let service = self.service();
            let mut tx = Tx::new(service, service, vec![service]);
            let beacon = ContractId::new(service, "NodeVersionBeacon");
            tx.scripted(vec![beacon.clone()], "upgrade");
            tx.event(
                &format!("{beacon}.ProtocolStateVersionUpgrade"),
                &[("activeView", cdc::number("UInt64", 1))],
            );
            self.pay_fee(&mut tx);
            self.finish(tx);
        }
    }

    /// Gives a user's transaction its id and keeps it.
    pub fn finish(&mut self, mut tx: Tx) {
        self.counters.sequence += 1;
        tx.end();
        let address = |address: FlowAddress| Bytes::copy_from_slice(&address.0);
        let transaction = Transaction {
            script: tx.script.clone(),
            arguments: tx.arguments.clone(),
            reference_block_id: self.parent_id.clone(),
            gas_limit: 9_999,
            proposal_key: Some(ProposalKey {
                address: address(tx.proposer),
                key_id: 0,
                sequence_number: self.counters.sequence,
            }),
            payer: address(tx.payer),
            authorizers: tx.authorizers.iter().copied().map(address).collect(),
            payload_signatures: tx.signatures(tx.payer != tx.proposer, tx.proposer),
            envelope_signatures: tx.signatures(true, tx.payer),
        };
        self.made.push((transaction, tx));
    }

    /// The chain's own: the same in every block, but for scheduled ones.
    fn system_transactions(&mut self) {
        let nobody = FlowAddress::ZERO;
        let service = self.service();
        let own = |script: &str, arguments: Vec<Bytes>, imports: Vec<ContractId>| {
            let mut tx = Tx::new(nobody, nobody, vec![service]);
            tx.is_system = true;
            (tx.script, tx.arguments, tx.imports) = (script.to_owned().into(), arguments, imports);
            tx
        };
        let mut all = Vec::new();
        let scheduler = ContractId::new(service, "FlowTransactionScheduler");
        if !self.is_old() {
            let import = format!("import FlowTransactionScheduler from {service}\n");
            let process = format!("{import}transaction {{ /* process */ }}");
            all.push(own(&process, Vec::new(), vec![scheduler.clone()]));
            if self.chance(10) {
                let number = self.counters.scheduled;
                self.counters.scheduled += 1;
                let execute = format!("{import}transaction(id: UInt64) {{ /* execute */ }}");
                let argument = cdc::number("UInt64", number).0.into();
                let mut tx = own(&execute, vec![argument], vec![scheduler.clone()]);
                let name = format!("{scheduler}.Executed");
                tx.event(
                    &name,
                    &[("id", cdc::number("UInt64", number)), ("priority", cdc::number("UInt8", 1))],
                );
                tx.did(Deed::Scheduled);
                if self.options.is_odd && self.chance(50) {
                    tx.events.clear();
                    tx.error = Some("[Error Code: 1101] cadence runtime error: the call panicked".into());
                }
                all.push(tx);
            }
        }
        let chunk = format!("import FlowEpoch from {service}\ntransaction {{ /* system chunk */ }}");
        let mut last = own(&chunk, Vec::new(), vec![ContractId::new(service, "FlowEpoch")]);
        self.end_evm_block(&mut last);
        all.push(last);
        for tx in all {
            let transaction = Transaction {
                script: tx.script.clone(),
                arguments: tx.arguments.clone(),
                reference_block_id: vec![0; 32].into(),
                gas_limit: 100_000_000,
                proposal_key: Some(ProposalKey { address: vec![0; 8].into(), key_id: 0, sequence_number: 0 }),
                payer: vec![0; 8].into(),
                authorizers: vec![Bytes::copy_from_slice(&service.0)],
                ..Transaction::default()
            };
            self.made.push((transaction, tx));
        }
    }

    /// Which collection each transaction is in; zeros for the chain's own.
    fn collections(&mut self, users: usize) -> Vec<Bytes> {
        let mut of = Vec::with_capacity(self.made.len());
        while of.len() < users {
            let left = users - of.len();
            let size = match self.options.is_odd {
                false => self.rng.random_range(1..=MAX_COLLECTION).min(left),
                // No two collections are the same, though transactions are.
                true if of.is_empty() && left > 2 => left - 1,
                true => left,
            };
            let ids: Vec<_> = self.made[of.len()..of.len() + size]
                .iter()
                .map(|(transaction, _)| transaction_id(transaction))
                .collect();
            of.extend(std::iter::repeat_n(Bytes::copy_from_slice(&collection_id(&ids)), size));
        }
        of.resize(self.made.len(), Bytes::from(vec![0; 32]));
        of
    }

    fn assemble(self, collections: Vec<Bytes>) -> Draft {
        let BlockBuilder { options, ledger, height, fork, parent_id, sealed_id, made, mut rng, .. } = self;
        let block_id = id(&[
            b"block",
            &options.seed.to_be_bytes(),
            &fork.to_be_bytes(),
            &parent_id,
            &height.to_be_bytes(),
        ]);
        let at_ms = ROOT_TIME_MS + (height - options.root_height) * 900 + rng.random_range(0..400);
        let timestamp =
            Some(Timestamp { seconds: (at_ms / 1000) as i64, nanos: (at_ms % 1000) as i32 * 1_000_000 });
        let mut guaranteed: Vec<Bytes> =
            collections.iter().filter(|id| id.iter().any(|byte| *byte != 0)).cloned().collect();
        guaranteed.dedup();
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut service_events: Vec<ServiceEvent> = Vec::new();
        let mut transactions = Vec::with_capacity(made.len());
        let mut records = Vec::with_capacity(made.len());
        for ((index, (transaction, mut tx)), collection_id) in (0u32..).zip(made).zip(&collections) {
            let is_service = |name: &str| name.ends_with(".ProtocolStateVersionUpgrade");
            if let Some(place) = tx.events.iter().position(|(name, _)| is_service(name)) {
                let behind = tx.done.iter_mut().filter(|done| done.event_index as usize > place);
                behind.for_each(|done| done.event_index += 1);
            }
            let tx_id = *transaction_id(&transaction).as_bytes();
            let computation = if tx.is_system { 0 } else { rng.random_range(5..500) };
            let of_collection =
                guaranteed.iter().position(|id| id == collection_id).unwrap_or(guaranteed.len());
            if chunks.len() <= of_collection {
                chunks.push(Chunk {
                    collection_index: of_collection as u32,
                    index: of_collection as u64,
                    ..Chunk::default()
                });
            }
            if let Some(chunk) = chunks.last_mut() {
                chunk.number_of_transactions += 1;
                chunk.total_computation_used += computation;
            }
            records.push(FlowTx {
                id: tx_id,
                is_system: tx.is_system,
                is_failed: tx.error.is_some(),
                payer: tx.payer,
                proposer: tx.proposer,
                authorizers: tx.authorizers,
                imports: tx.imports,
                fee: tx.fee.unwrap_or(0),
                is_fee_told: tx.fee.is_some(),
                computation,
                computation_limit: transaction.gas_limit,
                efforts: tx.efforts,
                error: tx.error.clone().unwrap_or_default(),
                event_types: tx.events.iter().map(|(name, _)| name.clone()).collect(),
                done: tx.done,
            });
            // Execution nodes counted a service event twice.
            let mut skipped = 0;
            let mut event = |(place, (name, payload)): (u32, (String, Bytes))| {
                let event_index = place + skipped;
                if is_service(&name) {
                    skipped += 1;
                    service_events.push(ServiceEvent {
                        r#type: "protocol-state-version-upgrade".into(),
                        payload: Bytes::from_static(b"{}"),
                    });
                }
                Event {
                    r#type: name,
                    transaction_id: Bytes::copy_from_slice(&tx_id),
                    transaction_index: index,
                    event_index,
                    payload,
                }
            };
            let result = TransactionResult {
                status: TransactionStatus::Sealed as i32,
                status_code: u32::from(tx.error.is_some()),
                error_message: tx.error.unwrap_or_default(),
                events: (0..).zip(tx.events).map(&mut event).collect(),
                block_id: block_id.clone(),
                transaction_id: Bytes::copy_from_slice(&tx_id),
                collection_id: collection_id.clone(),
                block_height: height,
                computation_usage: computation,
            };
            transactions.push((transaction, result));
        }
        ledger.transactions.insert(height, records);
        ledger.times_ms.insert(height, at_ms);
        let result_of = |block_id: &Bytes| id(&[b"result", block_id]);
        let guarantee = |collection_id: Bytes| CollectionGuarantee {
            signature: id(&[b"guarantee", &collection_id]).repeat(2).into(),
            signer_indices: Bytes::from_static(&[0xff, 0x80]),
            reference_block_id: parent_id.clone(),
            cluster_chain_id: Bytes::from_static(b"cluster-0"),
            collection_id,
        };
        let block_seals = match sealed_id {
            None => Vec::new(),
            Some(sealed) => {
                vec![BlockSeal {
                    result_id: result_of(&sealed),
                    final_state: id(&[b"state", &sealed]),
                    block_id: sealed,
                }]
            }
        };
        let execution_result = ExecutionResult {
            previous_result_id: result_of(&parent_id),
            block_id: block_id.clone(),
            chunks,
            service_events,
            execution_data_id: id(&[b"data", &block_id]),
        };
        let block_header = Some(BlockHeader {
            id: block_id.clone(),
            parent_id: parent_id.clone(),
            height,
            timestamp,
            payload_hash: id(&[b"payload", &block_id]),
            view: height * 2 + fork,
            parent_voter_sig_data: id(&[b"voters", &parent_id]).repeat(3).into(),
            proposer_id: id(&[b"proposer", &(height % 7).to_be_bytes()]),
            proposer_sig_data: id(&[b"signed", &block_id]).repeat(2).into(),
            chain_id: options.network.chain_id().into(),
            parent_voter_indices: Bytes::from_static(&[0xf0, 0x0f]),
            parent_view: (height * 2 + fork).saturating_sub(2),
        });
        Draft {
            block: Block {
                id: block_id,
                parent_id: parent_id.clone(),
                height,
                timestamp,
                collection_guarantees: guaranteed.into_iter().map(guarantee).collect(),
                block_seals,
                block_header,
            },
            transactions,
            not_executed: Vec::new(),
            execution_result: Some(execution_result),
        }
    }

    /// The index of the transaction that is being made.
    pub fn tx_index(&self) -> usize {
        self.made.len()
    }
}
