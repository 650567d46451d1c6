//! Finding the differences: the fields of the derived view, put beside a node's object.

use serde_json::{Map, Value};

use super::Patch;
use crate::views::sink::{Field, Sink};

/// What is compared how, for one kind of object.
#[derive(Debug)]
pub(crate) struct Rules {
    /// They say which object it is. A node may leave them out or give null, but what it gives has to be ours.
    pub identity: &'static [&'static str],
    /// Where it stands, as we count, and under which name a node's other number is kept.
    pub positions: &'static [(&'static str, &'static str)],
    /// Always served as derived where the node has none: what old or terse nodes leave out. Identity is as well.
    pub always: &'static [&'static str],
    /// What a node may say without it being kept.
    pub ignored: fn(&str, &Value) -> bool,
}

/// Of blocks and ommers.
pub(crate) const BLOCK: Rules = Rules {
    identity: &["hash", "number", "parentHash", "timestamp"],
    positions: &[],
    always: &[],
    ignored: |_, _| false,
};

/// The name under which the position of a transaction is kept that its node gives otherwise.
pub(crate) const NODE_TRANSACTION_INDEX: &str = "nodeTransactionIndex";
/// The same of a log.
pub(crate) const NODE_LOG_INDEX: &str = "nodeLogIndex";

const TRANSACTION_INDEX: (&str, &str) = ("transactionIndex", NODE_TRANSACTION_INDEX);
const LOG_INDEX: (&str, &str) = ("logIndex", NODE_LOG_INDEX);

/// Of transactions. Creations are served with `to: null` (cases E09), transactions before EIP-155 without `chainId`.
pub(crate) const TRANSACTION: Rules = Rules {
    identity: &["blockHash", "blockNumber", "hash", "from"],
    positions: &[TRANSACTION_INDEX],
    always: &["blockTimestamp", "to", "v", "yParity"],
    ignored: |name, value| match name {
        "to" => is_no_address(value),
        "chainId" => value.is_null(),
        "blockTimestamp" => true,
        _ => false,
    },
};

/// Of receipts. Receipts with `root` are served without `status` (E08); a price that the node didn't give is filled in (E07).
pub(crate) const RECEIPT: Rules = Rules {
    identity: &["blockHash", "blockNumber", "transactionHash", "from"],
    positions: &[TRANSACTION_INDEX],
    always: &["to", "effectiveGasPrice"],
    ignored: |name, value| match name {
        "to" => is_no_address(value),
        "effectiveGasPrice" | "status" => value.is_null(),
        _ => false,
    },
};

/// Of logs. Stored logs are never `removed`: that is said of a subscription.
pub(crate) const LOG: Rules = Rules {
    identity: &["blockHash", "blockNumber", "transactionHash"],
    positions: &[TRANSACTION_INDEX, LOG_INDEX],
    always: &["blockTimestamp", "removed"],
    ignored: |name, _| matches!(name, "blockTimestamp" | "removed"),
};

fn is_no_address(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.is_empty() || text == "0x")
}

/// An identity field in which the node's object is not ours.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub name: &'static str,
    pub ours: Value,
    pub theirs: Value,
}

/// Collects the differences of one object.
#[derive(Debug)]
pub(crate) struct Diff<'a> {
    node: &'a Map<String, Value>,
    rules: &'static Rules,
    derived: Vec<&'static str>,
    /// How many of the node's fields have been seen.
    present: usize,
    patch: Patch,
    conflict: Option<Conflict>,
}

impl<'a> Diff<'a> {
    pub fn new(node: &'a Map<String, Value>, rules: &'static Rules) -> Self {
        Diff {
            node,
            rules,
            derived: Vec::with_capacity(32),
            present: 0,
            patch: Patch::default(),
            conflict: None,
        }
    }

    /// The differences, the node's further fields among them but for those named in `apart`.
    pub fn finish(mut self, apart: &[&str]) -> Result<Patch, Box<Conflict>> {
        if let Some(conflict) = self.conflict {
            return Err(Box::new(conflict));
        }
        if self.present < self.node.len() {
            for (name, value) in self.node {
                let known = self.derived.contains(&name.as_str()) || apart.contains(&name.as_str());
                if !known && !(self.rules.ignored)(name, value) {
                    self.patch.set.insert(name.clone(), value.clone());
                }
            }
        }
        Ok(self.patch)
    }
}

impl Sink for Diff<'_> {
    fn put(&mut self, name: &'static str, field: Field<'_>) {
        self.derived.push(name);
        let kept_as = self.rules.positions.iter().find(|(position, _)| *position == name);
        let is_identity = self.rules.identity.contains(&name);
        let is_place = is_identity || kept_as.is_some();
        let Some(theirs) = self.node.get(name) else {
            if !is_place && !self.rules.always.contains(&name) {
                self.patch.unset.push(name.to_owned());
            }
            return;
        };
        self.present += 1;
        if field.is_same_as(theirs) || (is_place && theirs.is_null()) || (self.rules.ignored)(name, theirs) {
            return;
        }
        if let Some((_, kept_as)) = kept_as {
            self.patch.set.insert((*kept_as).to_owned(), theirs.clone());
        } else if is_identity && !field.is_as_large_as(theirs) {
            let conflict = || Conflict { name, ours: field.into_value(), theirs: theirs.clone() };
            self.conflict.get_or_insert_with(conflict);
        } else {
            self.patch.set.insert(name.to_owned(), theirs.clone());
        }
    }
}
