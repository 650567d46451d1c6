//! What consensus bytes can't carry: the fields in which a node's JSON differs from the view that is derived from the bytes.
//!
//! Kept as JSON in a block's extras, by place, and laid over the derived view when it is served:
//!
//! ```json
//! {"block": {"set": {"totalDifficulty": "0x1"}, "unset": ["mixHash"]},
//!  "txs": {"3": {"json": {"type": "0x7e"}}, "4": {"unset": ["type"]}},
//!  "receipts": {"3": {"set": {"l1Fee": "0x9"}}}, "logs": {"17": {"set": {"x": 1}}}, "ommers": {"0": {"set": {}}},
//!  "injected": 1, "outside": [0], "covered": [5]}
//! ```
//!
//! Logs are counted across the block. `json` is the whole object of a transaction that this version can't decode. `injected` says how many of
//! the body's last transactions, whose bytes are not known, the chain added itself, outside the header's roots; `outside` names others. `covered` names
//! receipts that the receipts root covers, though the transactions root covers no transaction of theirs.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_core::Height;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{EvmError, json};
use diff::{NODE_LOG_INDEX, NODE_TRANSACTION_INDEX};

pub(crate) mod diff;

/// The differences of one object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Patch {
    /// The whole object, of a transaction that can't be decoded; the other two are empty then.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "write_json")]
    pub json: Option<Map<String, Value>>,
    /// Fields to set.
    #[serde(default, skip_serializing_if = "Map::is_empty", serialize_with = "json::write_object")]
    pub set: Map<String, Value>,
    /// Fields that the node didn't give.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
}

impl Patch {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.json.is_none() && self.set.is_empty() && self.unset.is_empty()
    }

    /// Lays the differences over a derived object.
    pub fn apply(&self, object: &mut Map<String, Value>) {
        for name in &self.unset {
            object.shift_remove(name);
        }
        for (name, value) in &self.set {
            object.insert(name.clone(), value.clone());
        }
    }
}

type Patches = BTreeMap<u32, Patch>;

/// The differences of a block, by place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Overlay {
    /// Of the block's own fields.
    #[serde(default, skip_serializing_if = "Patch::is_empty")]
    pub block: Patch,
    /// By transaction index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub txs: Patches,
    /// By transaction index; without the receipts' logs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub receipts: Patches,
    /// By log index in the block.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub logs: Patches,
    /// By the ommer's position.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ommers: Patches,
    /// How many of the body's last transactions, without bytes, the chain injected.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub injected: usize,
    /// Further transactions of the body that are outside the roots, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<u32>,
    /// Receipts in the receipts root whose transactions are outside the transactions root or in no body, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub covered: Vec<u32>,
}

fn write_json<S: Serializer>(json: &Option<Map<String, Value>>, to: S) -> Result<S::Ok, S::Error> {
    match json {
        Some(object) => json::write_object(object, to),
        None => to.serialize_none(),
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Overlay {
    /// From a block's extras; empty bytes are an empty overlay.
    pub fn decode(height: Height, extras: &[u8]) -> Result<Self, EvmError> {
        if extras.is_empty() {
            return Ok(Overlay::default());
        }
        json::parse(extras)
            .and_then(serde_json::from_value)
            .map_err(|error| EvmError::malformed(format!("block {height}: extras"), error))
    }

    /// Whether the node gave a transaction or a log another position than ours.
    pub fn has_other_positions(&self) -> bool {
        let patches = self.txs.values().chain(self.receipts.values()).chain(self.logs.values());
        patches
            .flat_map(|patch| [Some(&patch.set), patch.json.as_ref()])
            .flatten()
            .any(|fields| fields.contains_key(NODE_TRANSACTION_INDEX) || fields.contains_key(NODE_LOG_INDEX))
    }

    /// As a block's extras.
    pub fn encode(&self, height: Height) -> Result<Bytes, EvmError> {
        if *self == Overlay::default() {
            return Ok(Bytes::new());
        }
        let bytes = serde_json::to_vec(self)
            .map_err(|error| EvmError::malformed(format!("block {height}: extras"), error))?;
        Ok(bytes.into())
    }
}
