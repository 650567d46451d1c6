//! The genesis block of a geth-style `genesis.json`.
//!
//! A genesis file names the chain's rules (`config`), the fields of block 0, and every account that exists from the start (`alloc`).
//! [`genesis_block`] makes the block, state root included; [`chain_config_json`] keeps the file without its accounts, which is what a
//! store remembers of its chain and what [`crate::schedule::ForkSchedule`] is read from.
//!
//! The rules are those of go-ethereum's `core/genesis.go`.

use std::collections::BTreeMap;
use std::fmt;

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header};
use alloy_eips::eip1559::INITIAL_BASE_FEE;
use alloy_eips::eip7685::EMPTY_REQUESTS_HASH;
use alloy_genesis::GenesisAccount;
use alloy_primitives::{Address, B64, B256, U256};
use alloy_trie::root::state_root_unhashed;
use bytes::Bytes;
use cairn_core::ErrorKind;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::canonical::ConsensusBlock;
use crate::schedule::{Fork, ForkSchedule};

/// The largest genesis file that is read, in bytes. Mainnet's takes 700 KB; the largest in use take some tens of MB.
pub const MAX_GENESIS_BYTES: usize = 256 << 20;

/// The gas limit of a genesis file that says 0: go-ethereum's `GenesisGasLimit`.
const DEFAULT_GAS_LIMIT: u64 = 4_712_388;

/// A genesis file or chain configuration that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenesisError {
    /// Over [`MAX_GENESIS_BYTES`].
    #[error("the genesis file takes {found_bytes} bytes, over the limit of {MAX_GENESIS_BYTES}")]
    TooLarge {
        /// What it takes.
        found_bytes: usize,
    },
    /// Not JSON, or no object.
    #[error("the genesis file is not a JSON object: {0}")]
    Json(String),
    /// A field that has to be there.
    #[error("the genesis file has no `{0}`")]
    Missing(String),
    /// A field that can't be what it should be.
    #[error("genesis field `{field}`: {message}")]
    Field {
        /// Its path.
        field: String,
        /// What is wrong with it.
        message: String,
    },
}

impl GenesisError {
    pub(crate) fn field(field: impl Into<String>, message: impl fmt::Display) -> GenesisError {
        GenesisError::Field { field: field.into(), message: message.to_string() }
    }

    /// What the caller should do: give another file.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::GiveUp
    }
}

/// The block of a genesis file: header (its keccak is the chain's genesis hash), body, no receipts.
pub fn genesis_block(genesis: &[u8]) -> Result<ConsensusBlock, GenesisError> {
    let fields = Fields::parse(genesis)?;
    let schedule = ForkSchedule::from_genesis_json(genesis)?;
    if let Some(config) = fields.value("config")?
        && let Some(flag) = ["enableUBTAtGenesis", "enableVerkleAtGenesis"]
            .into_iter()
            .find(|flag| config.get(flag).is_some_and(|on| on == true))
    {
        return Err(GenesisError::field(
            format!("config.{flag}"),
            "a genesis state that is not a Merkle Patricia trie is not supported",
        ));
    }
    let alloc: BTreeMap<Address, GenesisAccount> =
        fields.typed("alloc")?.ok_or_else(|| GenesisError::Missing("alloc".into()))?;
    let number = fields.quantity("number")?.unwrap_or(0);
    let timestamp = fields.quantity("timestamp")?.unwrap_or(0);
    let active = |fork| schedule.is_active(fork, number, timestamp);
    let gas_limit = fields.quantity("gasLimit")?.ok_or_else(|| GenesisError::Missing("gasLimit".into()))?;
    let mut header = Header {
        parent_hash: fields.typed("parentHash")?.unwrap_or_default(),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: fields.typed("coinbase")?.unwrap_or_default(),
        state_root: state_root_unhashed(alloc),
        transactions_root: EMPTY_ROOT_HASH,
        receipts_root: EMPTY_ROOT_HASH,
        difficulty: fields
            .quantity_u256("difficulty")?
            .ok_or_else(|| GenesisError::Missing("difficulty".into()))?,
        number,
        gas_limit: if gas_limit == 0 { DEFAULT_GAS_LIMIT } else { gas_limit },
        gas_used: fields.quantity("gasUsed")?.unwrap_or(0),
        timestamp,
        extra_data: fields.typed("extraData")?.unwrap_or_default(),
        mix_hash: match fields.typed::<B256>("mixHash")? {
            Some(hash) => hash,
            None => fields.typed("mixhash")?.unwrap_or_default(),
        },
        nonce: B64::from(fields.quantity("nonce")?.unwrap_or(0)),
        base_fee_per_gas: fields.quantity("baseFeePerGas")?,
        ..Header::default()
    };
    if active(Fork::London) {
        header.base_fee_per_gas.get_or_insert(INITIAL_BASE_FEE);
    }
    let (excess_blob_gas, blob_gas_used) =
        (fields.quantity("excessBlobGas")?, fields.quantity("blobGasUsed")?);
    if active(Fork::Cancun) {
        header.excess_blob_gas = Some(excess_blob_gas.unwrap_or(0));
        header.blob_gas_used = Some(blob_gas_used.unwrap_or(0));
        // The genesis block has no parent on the beacon chain either (EIP-4788).
        header.parent_beacon_block_root = Some(B256::ZERO);
    } else if excess_blob_gas.is_some() || blob_gas_used.is_some() {
        return Err(GenesisError::field(
            "excessBlobGas",
            "blob gas is given, but cancunTime is not at genesis",
        ));
    }
    if active(Fork::Shanghai) {
        header.withdrawals_root = Some(EMPTY_ROOT_HASH);
    }
    if active(Fork::Prague) {
        header.requests_hash = Some(EMPTY_REQUESTS_HASH);
    }
    if active(Fork::Amsterdam) {
        header.slot_number = Some(fields.quantity("slotNumber")?.unwrap_or(0));
        // The keccak of an empty RLP list, as that of no ommers (EIP-7928).
        header.block_access_list_hash = Some(EMPTY_OMMER_ROOT_HASH);
    }
    // Lists of no transactions and no ommers, and of no withdrawals once blocks have them (EIP-4895).
    let body: &'static [u8] =
        if active(Fork::Shanghai) { &[0xc3, 0xc0, 0xc0, 0xc0] } else { &[0xc2, 0xc0, 0xc0] };
    Ok(ConsensusBlock {
        header: alloy_rlp::encode(&header).into(),
        body: Bytes::from_static(body),
        receipts: Vec::new(),
    })
}

/// The genesis file without `alloc`: what a store keeps of its chain's rules. Other fields stay as they were written, digit for digit.
pub fn chain_config_json(genesis: &[u8]) -> Result<Bytes, GenesisError> {
    let fields = Fields::parse(genesis)?;
    let mut out = Vec::new();
    for (name, value) in fields.0.iter().filter(|(name, _)| name != "alloc") {
        out.push(if out.is_empty() { b'{' } else { b',' });
        // Writing a string into memory can't fail.
        out.extend_from_slice(Value::from(name.as_str()).to_string().as_bytes());
        out.push(b':');
        out.extend_from_slice(value.get().as_bytes());
    }
    if out.is_empty() {
        out.push(b'{');
    }
    out.push(b'}');
    Ok(out.into())
}

/// The top level of a JSON object, each value still as text: `alloc` may be large, and a total difficulty has more digits than a
/// double.
pub(crate) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub(crate) fn parse(json: &'a [u8]) -> Result<Fields<'a>, GenesisError> {
        if json.len() > MAX_GENESIS_BYTES {
            return Err(GenesisError::TooLarge { found_bytes: json.len() });
        }
        serde_json::from_slice(json).map_err(|error| GenesisError::Json(error.to_string()))
    }

    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(field, _)| field == name).map(|(_, value)| *value)
    }

    /// A field; `None` where it is absent or `null`.
    pub(crate) fn typed<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, GenesisError> {
        match self.raw(name) {
            None => Ok(None),
            Some(raw) => serde_json::from_str(raw.get()).map_err(|error| GenesisError::field(name, error)),
        }
    }

    pub(crate) fn value(&self, name: &str) -> Result<Option<Value>, GenesisError> {
        self.typed(name)
    }

    /// A number in one of the forms of [`loose_quantity`].
    pub(crate) fn quantity(&self, name: &str) -> Result<Option<u64>, GenesisError> {
        let Some(quantity) = self.quantity_u256(name)? else { return Ok(None) };
        u64::try_from(quantity).map(Some).map_err(|_| GenesisError::field(name, "more than 64 bits"))
    }

    fn quantity_u256(&self, name: &str) -> Result<Option<U256>, GenesisError> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        loose_quantity(&value)
            .map(Some)
            .ok_or_else(|| GenesisError::field(name, format!("not a hex or decimal integer: {value}")))
    }
}

/// A number as genesis files write it: a JSON integer, or a string of decimal or `0x` hex digits, leading zeros allowed; the empty
/// string is 0.
pub(crate) fn loose_quantity(value: &Value) -> Option<U256> {
    match value {
        Value::Number(number) => number.as_u64().map(U256::from),
        Value::String(text) if text.is_empty() => Some(U256::ZERO),
        Value::String(text) => {
            let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
                Some(digits) => (digits, 16),
                None => (text.as_str(), 10),
            };
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
            plain.then(|| U256::from_str_radix(digits, radix).ok()).flatten()
        }
        _ => None,
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields: Self::Value = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if fields.iter().any(|(known, _)| *known == name) {
                        return Err(serde::de::Error::custom(format_args!("field `{name}` is given twice")));
                    }
                    fields.push((name, value));
                }
                Ok(fields)
            }
        }
        from.deserialize_map(FieldsVisitor).map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::{hex, keccak256};
    use serde_json::json;

    fn block(genesis: Value) -> Result<ConsensusBlock, GenesisError> {
        genesis_block(genesis.to_string().as_bytes())
    }

    fn header(genesis: Value) -> Header {
        alloy_rlp::decode_exact(block(genesis).expect("a good genesis").header).expect("a header")
    }

    fn minimal(config: Value) -> Value {
        json!({"config": config, "gasLimit": "0x0", "difficulty": 1, "alloc": {}})
    }

    #[test]
    fn the_suites_genesis_hashes_to_the_parent_of_block_1() {
        let Some(genesis) = crate::testdata::conformance("genesis.json") else { return };
        let block = genesis_block(&genesis).expect("a good genesis");
        assert_eq!(
            hex::encode(keccak256(&block.header)),
            "44fd89d504659cd58f48f4796b77a7e7012cf296a2409afa2f6c3cb99b5b3d99"
        );
        assert_eq!(block.body[..], [0xc2, 0xc0, 0xc0]);
    }

    #[test]
    fn fields_follow_the_forks_that_are_active_at_genesis() {
        let frontier = header(minimal(json!({"chainId": 1})));
        assert_eq!(frontier.gas_limit, DEFAULT_GAS_LIMIT);
        assert_eq!(frontier.base_fee_per_gas, None);
        assert_eq!(frontier.withdrawals_root, None);

        let prague = minimal(json!({"chainId": 1, "londonBlock": 0, "terminalTotalDifficulty": 0,
            "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0}));
        assert_eq!(block(prague.clone()).map(|b| b.body[..].to_vec()), Ok(vec![0xc3, 0xc0, 0xc0, 0xc0]));
        let prague = header(prague);
        assert_eq!(prague.base_fee_per_gas, Some(1_000_000_000));
        assert_eq!(prague.excess_blob_gas, Some(0));
        assert_eq!(prague.parent_beacon_block_root, Some(B256::ZERO));
        assert_eq!(prague.requests_hash, Some(EMPTY_REQUESTS_HASH));
        assert_eq!(prague.slot_number, None);
    }

    #[test]
    fn numbers_come_in_many_forms() {
        for (written, number) in [
            (json!("0x0000000000000042"), Some(66)),
            (json!("66"), Some(66)),
            (json!(66), Some(66)),
            (json!(""), Some(0)),
            (json!("0x"), None),
            (json!("6x"), None),
            (json!("1_0"), None),
            (json!(-1), None),
            (json!(1.5), None),
        ] {
            assert_eq!(loose_quantity(&written), number.map(U256::from), "{written}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let message = |genesis: &str| genesis_block(genesis.as_bytes()).map(|_| ()).unwrap_err().to_string();
        assert!(message("[]").contains("not a JSON object"));
        assert!(message("{").contains("not a JSON object"));
        assert!(message(r#"{"config":{"chainId":1},"config":{}}"#).contains("`config` is given twice"));
        assert!(message(r#"{"alloc":{}}"#).contains("config"));
        assert!(message(r#"{"config":{"chainId":1},"gasLimit":1,"difficulty":1}"#).contains("`alloc`"));
        assert!(message(r#"{"config":{"chainId":1},"alloc":{},"difficulty":1}"#).contains("`gasLimit`"));
        let wrong = r#"{"config":{"chainId":1},"alloc":{},"gasLimit":"zero","difficulty":1}"#;
        assert!(message(wrong).contains("`gasLimit`") && message(wrong).contains("zero"));
        let wrong = r#"{"config":{"chainId":1},"alloc":{"0x01":{}},"gasLimit":1,"difficulty":1}"#;
        assert!(message(wrong).contains("`alloc`"));
        let ubt =
            r#"{"config":{"chainId":1,"enableUBTAtGenesis":true},"alloc":{},"gasLimit":1,"difficulty":1}"#;
        assert!(message(ubt).contains("enableUBTAtGenesis"));
    }

    #[test]
    fn the_configuration_keeps_every_digit_and_drops_the_accounts() {
        let genesis = br#"{ "config": {"chainId":1, "terminalTotalDifficulty":58750000000000000000000},
            "alloc": {"0x00": {}}, "timestamp":"0x0" }"#;
        let config = chain_config_json(genesis).expect("JSON");
        assert_eq!(
            std::str::from_utf8(&config),
            Ok(
                r#"{"config":{"chainId":1, "terminalTotalDifficulty":58750000000000000000000},"timestamp":"0x0"}"#
            )
        );
        assert_eq!(chain_config_json(&config), Ok(config.clone()));
        assert_eq!(chain_config_json(b"{}"), Ok(Bytes::from_static(b"{}")));
        assert!(ForkSchedule::from_genesis_json(&config).is_ok());
    }
}
