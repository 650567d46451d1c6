//! The EVM transactions inside a Flow transaction, read from its own events.

use cairn_flow::evm::{DirectKind, EvmTransaction, Executed, decode_payload, executed_hash};
use cairn_flow::{CdcValue, DecodedEvent, DecodedTx, EventType, Network};
use serde::Serialize;
use utoipa::ToSchema;

use crate::rest::transactions::TransactionStatus;
use crate::rest::words::{Address, Amount, Hash, Num};

/// An EVM transaction inside a Flow transaction. What can't be read of it is null, and `problem` says why.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowEvmTransaction {
    pub hash: Hash,
    /// Whether this is the hash that was asked for.
    pub is_asked: bool,
    /// The place of its event in the Flow transaction.
    pub event_index: u32,
    /// The height of its EVM block.
    pub evm_block_height: Option<Num>,
    /// Its place in its EVM block.
    pub evm_transaction_index: Option<u32>,
    /// The EIP-2718 type; 255: a direct call, which no key signed.
    #[serde(rename = "type")]
    pub tx_type: Option<Num>,
    /// What kind of direct call it is; null where it is none.
    pub direct_call: Option<DirectCall>,
    /// Null where the signature gives no sender.
    pub from: Option<Address>,
    /// Null where it creates a contract.
    pub to: Option<Address>,
    pub nonce: Option<Num>,
    /// Attoflow: 10^-18 FLOW.
    pub value: Option<Amount>,
    pub gas_limit: Option<Num>,
    pub gas_used: Option<Num>,
    /// Attoflow per gas: the legacy price, or the most that it pays. 0 for direct calls.
    pub gas_price: Option<Amount>,
    pub status: TransactionStatus,
    /// 0: it succeeded. 306: it reverted.
    pub error_code: Option<u16>,
    /// The node's words; null where it succeeded.
    pub error_message: Option<String>,
    /// The contract that it created.
    pub contract_address: Option<Address>,
    /// How often it logged.
    pub log_count: Option<Num>,
    /// What can't be read of it; else null.
    pub problem: Option<String>,
}

/// What a direct call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DirectCall {
    /// FLOW comes in from Cadence.
    Deposit,
    /// FLOW leaves for Cadence.
    Withdraw,
    Transfer,
    /// A contract is created.
    Deploy,
    Call,
}

impl From<DirectKind> for DirectCall {
    fn from(kind: DirectKind) -> DirectCall {
        match kind {
            DirectKind::Deposit => DirectCall::Deposit,
            DirectKind::Withdraw => DirectCall::Withdraw,
            DirectKind::Transfer => DirectCall::Transfer,
            DirectKind::Deploy => DirectCall::Deploy,
            DirectKind::Call => DirectCall::Call,
        }
    }
}

/// The events of EVM transactions, with their hashes. One without a hash is no EVM transaction that anybody could name; it is among the events.
pub(crate) fn executions(
    network: Network,
    tx: &DecodedTx,
) -> impl Iterator<Item = (&DecodedEvent, alloy_primitives::B256)> {
    tx.events.iter().filter_map(move |event| {
        let name = EventType::parse(&event.event_type)?;
        let counts = name.is(network.accounts().service, "EVM", "TransactionExecuted");
        let hash = counts.then(|| executed_hash(&event.payload)).flatten()?;
        Some((event, hash))
    })
}

/// All of a Flow transaction, in their order.
pub(crate) fn transactions(network: Network, tx: &DecodedTx) -> Vec<FlowEvmTransaction> {
    executions(network, tx).map(|(event, hash)| FlowEvmTransaction::of(event, hash)).collect()
}

impl FlowEvmTransaction {
    fn of(event: &DecodedEvent, hash: alloy_primitives::B256) -> FlowEvmTransaction {
        let mut shown = FlowEvmTransaction {
            hash: Hash::of(hash.as_slice()),
            is_asked: false,
            event_index: event.index,
            evm_block_height: None,
            evm_transaction_index: None,
            tx_type: None,
            direct_call: None,
            from: None,
            to: None,
            nonce: None,
            value: None,
            gas_limit: None,
            gas_used: None,
            gas_price: None,
            status: TransactionStatus::Unknown,
            error_code: None,
            error_message: None,
            contract_address: None,
            log_count: None,
            problem: None,
        };
        let executed = CdcValue::parse_event(&event.payload).and_then(|fields| Executed::from_event(&fields));
        match executed {
            Ok(executed) => {
                match decode_payload(&executed.payload) {
                    Ok(inner) => shown.inner(&inner),
                    Err(error) => shown.problem = Some(error.to_string()),
                }
                shown.executed(executed);
            }
            Err(error) => shown.problem = Some(error.to_string()),
        }
        shown
    }

    fn executed(&mut self, executed: Executed) {
        self.evm_block_height = Some(Num(executed.block_height));
        self.evm_transaction_index = Some(executed.index.into());
        self.tx_type = Some(Num(executed.tx_type.into()));
        self.gas_used = Some(Num(executed.gas_used));
        self.status =
            if executed.error_code == 0 { TransactionStatus::Ok } else { TransactionStatus::Failed };
        self.error_code = Some(executed.error_code);
        self.error_message = Some(executed.error_message).filter(|message| !message.is_empty());
        // A creation that failed has no contract (E09).
        self.contract_address = executed
            .contract_address
            .filter(|_| executed.error_code == 0)
            .map(|address| Address::of(address.as_slice()));
        self.log_count = Some(Num(executed.logs.len() as u64));
    }

    fn inner(&mut self, inner: &EvmTransaction) {
        let address = |address: alloy_primitives::Address| Address::of(address.as_slice());
        self.direct_call = inner.direct.map(DirectCall::from);
        self.from = inner.from.map(address);
        self.to = inner.to.map(address);
        self.nonce = Some(Num(inner.nonce));
        self.value = Some(Amount(inner.value));
        self.gas_limit = Some(Num(inner.gas_limit));
        self.gas_price = Some(Amount::of(inner.gas_price));
    }
}
