//! Names of event types: `A.<address>.<contract>.<event>`, and `flow.<event>` of the chain itself.

use crate::FlowAddress;

/// A type's name, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventType<'t> {
    /// Whose contract it is; `None` for the chain's own events.
    pub address: Option<FlowAddress>,
    /// The contract; `flow` for the chain's own events.
    pub contract: &'t str,
    /// The event.
    pub event: &'t str,
}

impl<'t> EventType<'t> {
    /// Takes a name apart; `None` where it has neither form.
    pub fn parse(name: &'t str) -> Option<EventType<'t>> {
        if let Some(event) = name.strip_prefix("flow.") {
            let plain = !event.is_empty() && !event.contains('.');
            return plain.then_some(EventType { address: None, contract: "flow", event });
        }
        let mut parts = name.strip_prefix("A.")?.splitn(3, '.');
        let (address, contract, event) = (parts.next()?, parts.next()?, parts.next()?);
        if contract.is_empty() || event.is_empty() {
            return None;
        }
        Some(EventType { address: Some(address.parse().ok()?), contract, event })
    }

    /// Whether it has the name of an event by which the chain's contracts tell the protocol something (flow-go `systemcontracts`). Whose contract it is
    /// isn't looked at: the execution result says how many there are.
    pub fn is_service_event(&self) -> bool {
        matches!(
            (self.contract, self.event),
            ("FlowEpoch", "EpochSetup" | "EpochCommit" | "EpochRecover")
                | ("NodeVersionBeacon", "VersionBeacon" | "ProtocolStateVersionUpgrade")
        )
    }

    /// Whether it is this event of this contract of this account.
    pub fn is(&self, address: FlowAddress, contract: &str, event: &str) -> bool {
        self.address == Some(address) && self.contract == contract && self.event == event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let parsed = EventType::parse("A.1654653399040a61.FlowToken.TokensWithdrawn").expect("is one");
        assert!(parsed.is("1654653399040a61".parse().expect("an address"), "FlowToken", "TokensWithdrawn"));
        let core = EventType::parse("flow.AccountCreated").expect("is one");
        assert_eq!((core.address, core.contract, core.event), (None, "flow", "AccountCreated"));
        for name in ["", "A.", "A.x.y.z", "A.1.FlowToken", "A.1..E", "flow.", "flow.A.B", "B.1.C.D"] {
            assert_eq!(EventType::parse(name), None, "{name}");
        }
    }
}
