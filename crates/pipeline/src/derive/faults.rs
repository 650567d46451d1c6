//! Bounds the labels under which faults are counted: contracts and topics are chosen by strangers, and each pair would be a series of its own for ever.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::processor::FaultLabels;

/// So many pairs of contract and topic are counted each by itself; all further ones together.
const MAX_SUBJECTS: usize = 100;
/// What those are called.
const OTHER: &str = "other";

/// The pairs that this process has met first.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<BTreeSet<(String, String)>>);

impl Faults {
    /// The labels that are counted for these.
    pub fn bounded(&self, labels: FaultLabels) -> FaultLabels {
        let FaultLabels { reason, contract, topic } = labels;
        if contract.is_empty() && topic.is_empty() {
            return FaultLabels::only(reason);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let subject = (contract, topic);
        if !known.contains(&subject) {
            if known.len() >= MAX_SUBJECTS {
                return FaultLabels { reason, contract: OTHER.to_owned(), topic: OTHER.to_owned() };
            }
            known.insert(subject.clone());
        }
        FaultLabels { reason, contract: subject.0, topic: subject.1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(contract: usize) -> FaultLabels {
        FaultLabels { reason: "topics", contract: format!("0x{contract}"), topic: "0xdd".into() }
    }

    #[test]
    fn e24_the_first_hundred_contracts_are_counted_by_themselves_and_all_others_together() {
        let faults = Faults::default();
        for contract in 0..MAX_SUBJECTS {
            assert_eq!(faults.bounded(labels(contract)), labels(contract));
        }
        let other = FaultLabels { reason: "topics", contract: OTHER.into(), topic: OTHER.into() };
        assert_eq!(faults.bounded(labels(MAX_SUBJECTS)), other);
        assert_eq!(faults.bounded(labels(7)), labels(7));
        // Whatever is about no contract takes up nothing.
        assert_eq!(faults.bounded(FaultLabels::only("block")), FaultLabels::only("block"));
    }
}
