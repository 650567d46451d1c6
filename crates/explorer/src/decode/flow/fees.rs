//! What a transaction paid: `FlowFees.FeesDeducted`. The oldest transactions paid a fixed fee, of which only the deposit of it tells
//! (`FlowFees.TokensDeposited`): the last one counts, where nothing was deducted.

use cairn_flow::cdc::CdcValue;
use cairn_flow::{DecodedEvent, EventType, Network};

/// A transaction's fee, all in units of 10^-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fees {
    /// What was paid, in FLOW.
    pub amount: u64,
    /// What including it cost.
    pub inclusion_effort: Option<u64>,
    /// What executing it cost.
    pub execution_effort: Option<u64>,
}

/// The fee of a transaction with these events; `None` where none was deducted, or where the event can't be read.
pub fn fees(events: &[DecodedEvent], network: Network) -> Option<Fees> {
    let contract = network.accounts().flow_fees;
    // The last event of a transaction, as a rule.
    let last = |wanted: &str| {
        let is_it = |name: EventType<'_>| name.is(contract, "FlowFees", wanted);
        events.iter().rev().find(|event| EventType::parse(&event.event_type).is_some_and(is_it))
    };
    let event = last("FeesDeducted").or_else(|| last("TokensDeposited"))?;
    let fields = CdcValue::parse_event(&event.payload).ok()?;
    let units = |name: &str| {
        let units = fields.field(name)?.as_number()?.to_scaled(8)?;
        u64::try_from(units).ok()
    };
    Some(Fees {
        amount: units("amount")?,
        inclusion_effort: units("inclusionEffort"),
        execution_effort: units("executionEffort"),
    })
}
