//! What consensus bytes can't carry: the fields in which a node's JSON differs from the view that is derived from the bytes.
//!
//! Kept as JSON in a block's extras, by place, and laid over the derived view when it is served:
//!
//! ```json
//! {"block": {"set": {"totalDifficulty": "0x1"}, "unset": ["mixHash"]},
//!  "txs": {"3": {"json": {"type": "0x7e"}}, "4": {"unset": ["type"]}},
//!  "receipts": {"3": {"set": {"l1Fee": "0x9"}}}, "logs": {"17": {"set": {"x": 1}}}, "ommers": {"0": {"set": {}}},
//!  "injected": 1}
//! ```
//!
//! Logs are counted across the block. `json` is the whole object of a transaction that this version can't decode. `injected` says how many of
//! the body's last transactions the chain added itself, outside the header's roots.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_core::Height;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::EvmError;

pub(crate) mod diff;

/// The differences of one object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Patch {
    /// The whole object, of a transaction that can't be decoded; the other two are empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json: Option<Map<String, Value>>,
    /// Fields to set.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
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
    /// How many of the body's last transactions the chain injected.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub injected: usize,
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
        serde_json::from_slice(extras)
            .map_err(|error| EvmError::malformed(format!("block {height}: extras"), error))
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
