//! Strict parsing of JSON-RPC parameters.
//!
//! The rules are the execution API's: a quantity has a `0x`, at least one digit and no leading zero; hashes and addresses have their
//! full length, in any letter case and whatever their checksum (a wrong one is accepted, as geth does). Everything that breaks a rule is a
//! [`ParamError`], which is JSON-RPC error −32602. Every value is bounded by its type, so that nothing here allocates by what a
//! stranger sent; what is quoted back is cut.
//!
//! Sources: <https://ethereum.github.io/execution-apis/>, EIP-1474 (quantities and data), EIP-1898 (block objects).

use std::fmt;

use alloy_primitives::{Address, B256, Bytes, U256};
use cairn_core::ErrorKind;
use serde_json::Value;

/// The JSON-RPC code of a [`ParamError`]: "invalid params".
pub const INVALID_PARAMS: i32 = -32602;

/// The most percentiles that one `eth_feeHistory` may ask for.
pub const MAX_PERCENTILES: usize = 100;

/// How much of a wrong value is quoted back, in characters.
const MAX_QUOTE_CHARS: usize = 80;

/// A parameter that can't be used: JSON-RPC error [`INVALID_PARAMS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamError {
    argument: Option<usize>,
    message: String,
}

impl ParamError {
    /// An error that doesn't say which argument it is about.
    pub fn new(message: impl Into<String>) -> ParamError {
        ParamError { argument: None, message: message.into() }
    }

    /// The same error, said of argument `index` (counted from 0), unless it already names one.
    pub fn at(mut self, index: usize) -> ParamError {
        self.argument.get_or_insert(index);
        self
    }

    /// The same error, said of a field or a place inside the argument.
    pub fn within(mut self, place: impl fmt::Display) -> ParamError {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The JSON-RPC code.
    pub fn code(&self) -> i32 {
        INVALID_PARAMS
    }

    /// What the caller should do: ask otherwise.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::GiveUp
    }
}

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argument {
            Some(index) => write!(f, "invalid argument {index}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for ParamError {}

/// The positional arguments of one call.
#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    values: &'a [Value],
}

impl<'a> Arguments<'a> {
    /// Takes the `params` of a request that may have at most `at_most` of them. Absent and `null` params are no arguments.
    pub fn new(params: Option<&'a Value>, at_most: usize) -> Result<Arguments<'a>, ParamError> {
        let values: &[Value] = match params {
            None | Some(Value::Null) => &[],
            Some(Value::Array(values)) => values,
            Some(other) => {
                return Err(ParamError::new(format!("params must be an array, got {}", kind_of(other))));
            }
        };
        if values.len() > at_most {
            return Err(ParamError::new(format!("too many arguments, want at most {at_most}")));
        }
        Ok(Arguments { values })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Argument `index`, which must be there and not `null`.
    pub fn required<T>(
        &self,
        index: usize,
        parse: impl FnOnce(&Value) -> Result<T, ParamError>,
    ) -> Result<T, ParamError> {
        match self.values.get(index) {
            None | Some(Value::Null) => {
                Err(ParamError::new(format!("missing value for required argument {index}")))
            }
            Some(value) => parse(value).map_err(|error| error.at(index)),
        }
    }

    /// Argument `index`, or `None` where it is absent or `null`.
    pub fn optional<T>(
        &self,
        index: usize,
        parse: impl FnOnce(&Value) -> Result<T, ParamError>,
    ) -> Result<Option<T>, ParamError> {
        match self.values.get(index) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => parse(value).map(Some).map_err(|error| error.at(index)),
        }
    }
}

/// A block by number or by one of the names that nodes know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockTag {
    /// A number.
    Number(u64),
    /// The newest block.
    Latest,
    /// The newest `safe` block.
    Safe,
    /// The newest finalised block.
    Finalized,
    /// The oldest block.
    Earliest,
    /// The block being built. A server of finished blocks has none and takes it for `latest`.
    Pending,
}

impl BlockTag {
    /// The height that it stands for among `heights`; `None` where that is not known. A number stands for itself, also above the head.
    pub fn resolve(self, heights: &TagHeights) -> Option<u64> {
        match self {
            BlockTag::Number(number) => Some(number),
            BlockTag::Latest | BlockTag::Pending => Some(heights.latest),
            BlockTag::Safe => heights.safe,
            BlockTag::Finalized => heights.finalized,
            BlockTag::Earliest => Some(heights.earliest),
        }
    }
}

impl fmt::Display for BlockTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockTag::Number(number) => write!(f, "{number:#x}"),
            BlockTag::Latest => f.write_str("latest"),
            BlockTag::Safe => f.write_str("safe"),
            BlockTag::Finalized => f.write_str("finalized"),
            BlockTag::Earliest => f.write_str("earliest"),
            BlockTag::Pending => f.write_str("pending"),
        }
    }
}

/// What the names stand for in one snapshot. A request takes them once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagHeights {
    /// The oldest block that is served.
    pub earliest: u64,
    /// The newest one.
    pub latest: u64,
    /// The newest `safe` one, where it is known.
    pub safe: Option<u64>,
    /// The newest finalised one, where it is known.
    pub finalized: Option<u64>,
}

/// A block as EIP-1898 lets it be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockAt {
    /// By number or name.
    Tag(BlockTag),
    /// By hash.
    Hash {
        /// The hash.
        hash: B256,
        /// Whether a block that is no longer canonical must be refused.
        require_canonical: bool,
    },
}

/// A 64-bit quantity: `0x`, no leading zeros, `0x0` for zero.
pub fn parse_quantity(value: &Value) -> Result<u64, ParamError> {
    let digits = quantity_digits(value, 64)?;
    u64::from_str_radix(digits, 16).map_err(|_| invalid_hex(value))
}

/// A 256-bit quantity: `0x`, no leading zeros, `0x0` for zero.
pub fn parse_quantity_u256(value: &Value) -> Result<U256, ParamError> {
    let digits = quantity_digits(value, 256)?;
    U256::from_str_radix(digits, 16).map_err(|_| invalid_hex(value))
}

/// A count as `eth_feeHistory` takes it: a quantity, a decimal string or a JSON number (geth's way; clients of all three kinds exist).
pub fn parse_count(value: &Value) -> Result<u64, ParamError> {
    match value {
        Value::Number(number) => number
            .as_u64()
            .ok_or_else(|| ParamError::new(format!("invalid hex or decimal integer {}", quote(value)))),
        Value::String(text) if !has_prefix(text) => parse_decimal(text)
            .ok_or_else(|| ParamError::new(format!("invalid hex or decimal integer {}", quote(value)))),
        _ => parse_quantity(value),
    }
}

/// A 32-byte hash in any letter case.
pub fn parse_hash(value: &Value) -> Result<B256, ParamError> {
    fixed_bytes(value, "hash").map(B256::new)
}

/// A 20-byte address in any letter case; its checksum is not looked at.
pub fn parse_address(value: &Value) -> Result<Address, ParamError> {
    fixed_bytes(value, "address").map(Address::new)
}

/// Bytes of any length up to `max_bytes`.
pub fn parse_data(value: &Value, max_bytes: usize) -> Result<Bytes, ParamError> {
    let digits = hex_digits(value)?;
    if digits.len() / 2 > max_bytes {
        return Err(ParamError::new(format!(
            "hex string of {} bytes is over the limit of {max_bytes}",
            digits.len() / 2
        )));
    }
    alloy_primitives::hex::decode(digits).map(Bytes::from).map_err(|_| invalid_hex(value))
}

/// A JSON boolean.
pub fn parse_bool(value: &Value) -> Result<bool, ParamError> {
    value.as_bool().ok_or_else(|| ParamError::new(format!("expected a boolean, got {}", kind_of(value))))
}

/// A block number or one of `latest`, `safe`, `finalized`, `earliest`, `pending`.
pub fn parse_block_tag(value: &Value) -> Result<BlockTag, ParamError> {
    match value.as_str() {
        Some("latest") => Ok(BlockTag::Latest),
        Some("safe") => Ok(BlockTag::Safe),
        Some("finalized") => Ok(BlockTag::Finalized),
        Some("earliest") => Ok(BlockTag::Earliest),
        Some("pending") => Ok(BlockTag::Pending),
        _ => {
            let number = parse_quantity(value)?;
            if i64::try_from(number).is_err() {
                return Err(ParamError::new("block number larger than int64"));
            }
            Ok(BlockTag::Number(number))
        }
    }
}

/// A block as EIP-1898 lets it be named: a tag, a hash of 32 bytes, or `{blockNumber}` or `{blockHash, requireCanonical?}`. Other keys
/// of the object are ignored.
pub fn parse_block_at(value: &Value) -> Result<BlockAt, ParamError> {
    let Value::Object(object) = value else {
        return match value.as_str() {
            Some(text) if text.len() == 66 => {
                Ok(BlockAt::Hash { hash: parse_hash(value)?, require_canonical: false })
            }
            _ => parse_block_tag(value).map(BlockAt::Tag),
        };
    };
    let field = |name: &str| object.get(name).filter(|value| !value.is_null());
    let require_canonical = match field("requireCanonical") {
        Some(value) => parse_bool(value).map_err(|error| error.within("requireCanonical"))?,
        None => false,
    };
    match (field("blockNumber"), field("blockHash")) {
        (Some(_), Some(_)) => {
            Err(ParamError::new("cannot specify both blockHash and blockNumber, choose one or the other"))
        }
        (None, None) => Err(ParamError::new("must specify either blockHash or blockNumber")),
        (Some(number), None) => {
            parse_block_tag(number).map(BlockAt::Tag).map_err(|error| error.within("blockNumber"))
        }
        (None, Some(hash)) => {
            let hash = parse_hash(hash).map_err(|error| error.within("blockHash"))?;
            Ok(BlockAt::Hash { hash, require_canonical })
        }
    }
}

/// The reward percentiles of `eth_feeHistory`: at most [`MAX_PERCENTILES`], each from 0 to 100, strictly growing.
pub fn parse_percentiles(value: &Value) -> Result<Vec<f64>, ParamError> {
    let Value::Array(values) = value else {
        return Err(ParamError::new(format!("expected a list of percentiles, got {}", kind_of(value))));
    };
    if values.len() > MAX_PERCENTILES {
        return Err(ParamError::new(format!(
            "{} reward percentiles are over the limit of {MAX_PERCENTILES}",
            values.len()
        )));
    }
    let mut percentiles: Vec<f64> = Vec::with_capacity(values.len());
    for (i, value) in values.iter().enumerate() {
        let percentile = value
            .as_f64()
            .filter(|p| (0.0..=100.0).contains(p))
            .ok_or_else(|| ParamError::new(format!("invalid reward percentile {}", quote(value))))?;
        if percentiles.last().is_some_and(|&before| percentile <= before) {
            return Err(ParamError::new(format!(
                "invalid reward percentile: #{i} is not above the one before"
            )));
        }
        percentiles.push(percentile);
    }
    Ok(percentiles)
}

/// What a JSON value is, in words.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn has_prefix(text: &str) -> bool {
    text.starts_with("0x") || text.starts_with("0X")
}

fn parse_decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn hex_digits(value: &Value) -> Result<&str, ParamError> {
    let Value::String(text) = value else {
        return Err(ParamError::new(format!("expected a hex string, got {}", kind_of(value))));
    };
    if text.is_empty() {
        return Err(ParamError::new("empty hex string"));
    }
    if !has_prefix(text) {
        return Err(ParamError::new("hex string without 0x prefix"));
    }
    // Two ASCII bytes were seen there, so this is a character boundary.
    Ok(&text[2..])
}

/// The digits of a quantity that fits `bits`.
fn quantity_digits(value: &Value, bits: usize) -> Result<&str, ParamError> {
    let digits = hex_digits(value)?;
    if digits.is_empty() {
        return Err(ParamError::new("hex string \"0x\" has no digits; zero is \"0x0\""));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return Err(ParamError::new("hex number with leading zero digits"));
    }
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(invalid_hex(value));
    }
    if digits.len() > bits / 4 {
        return Err(ParamError::new(format!("hex number > {bits} bits")));
    }
    Ok(digits)
}

fn fixed_bytes<const N: usize>(value: &Value, what: &str) -> Result<[u8; N], ParamError> {
    let digits = hex_digits(value)?;
    if digits.len() != 2 * N {
        return Err(ParamError::new(format!(
            "hex string has {} digits, want {} for {what}",
            digits.len(),
            2 * N
        )));
    }
    let mut bytes = [0; N];
    alloy_primitives::hex::decode_to_slice(digits, &mut bytes).map_err(|_| invalid_hex(value))?;
    Ok(bytes)
}

fn invalid_hex(value: &Value) -> ParamError {
    ParamError::new(format!("invalid hex string {}", quote(value)))
}

/// A scalar as it came, cut to a length that is safe to send back.
fn quote(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("{:?}", text.chars().take(MAX_QUOTE_CHARS + 1).collect::<String>()),
        Value::Number(number) => number.to_string(),
        other => return kind_of(other).to_owned(),
    };
    if text.chars().count() > MAX_QUOTE_CHARS {
        text.chars().take(MAX_QUOTE_CHARS).chain("…".chars()).collect()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn g08_quantities_are_minimal_and_prefixed() {
        for (text, number) in
            [("0x0", 0), ("0x10f", 271), ("0x10F", 271), ("0X36", 54), ("0xffffffffffffffff", u64::MAX)]
        {
            assert_eq!(parse_quantity(&json!(text)), Ok(number), "{text}");
        }
        for wrong in [
            "2",
            "",
            "0x",
            "0x00",
            "0x010f",
            "0x07d6d1",
            "0xg",
            "0x-1",
            "0x+1",
            "0x 1",
            "0x1_0",
            " 0x1",
            "x1",
            "0x10000000000000000",
        ] {
            assert!(parse_quantity(&json!(wrong)).is_err(), "{wrong}");
        }
        for wrong in [json!(2), json!(null), json!(true), json!(["0x1"]), json!({"a": 1}), json!(1.5)] {
            assert!(parse_quantity(&wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_quantity_u256(&json!(format!("0x{}", "f".repeat(64)))), Ok(U256::MAX));
        assert!(parse_quantity_u256(&json!(format!("0x1{}", "0".repeat(64)))).is_err());
    }

    #[test]
    fn g08_hashes_and_addresses_keep_leading_zeros_and_take_any_case() {
        let hash = B256::with_last_byte(0xab);
        assert_eq!(parse_hash(&json!(format!("{hash}"))), Ok(hash));
        assert_eq!(parse_hash(&json!(format!("0X{}", alloy_primitives::hex::encode_upper(hash)))), Ok(hash));
        // A checksum that is wrong on purpose.
        let address = "0x7dcd17433742F4c0ca53122ab541d0ba67fc27df";
        assert_eq!(
            parse_address(&json!(address)).map(|a| format!("{a:?}")),
            Ok("0x7dcd17433742f4c0ca53122ab541d0ba67fc27df".to_owned())
        );
        for wrong in ["0x", "0x12", &"a".repeat(64), &format!("0x{}", "a".repeat(63)), "0xzz", ""] {
            assert!(parse_hash(&json!(wrong)).is_err(), "{wrong}");
            assert!(parse_address(&json!(wrong)).is_err(), "{wrong}");
        }
        assert!(parse_hash(&json!(format!("0x{}", "ж".repeat(32)))).is_err());
        assert!(parse_hash(&json!(1)).is_err());
    }

    #[test]
    fn block_tags_are_exact_words_or_numbers() {
        assert_eq!(parse_block_tag(&json!("latest")), Ok(BlockTag::Latest));
        assert_eq!(parse_block_tag(&json!("safe")), Ok(BlockTag::Safe));
        assert_eq!(parse_block_tag(&json!("finalized")), Ok(BlockTag::Finalized));
        assert_eq!(parse_block_tag(&json!("earliest")), Ok(BlockTag::Earliest));
        assert_eq!(parse_block_tag(&json!("pending")), Ok(BlockTag::Pending));
        assert_eq!(parse_block_tag(&json!("0x36")), Ok(BlockTag::Number(54)));
        for wrong in ["Latest", "newest", " latest", "0x8000000000000000", "54"] {
            assert!(parse_block_tag(&json!(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn block_objects_follow_eip_1898() {
        let hash = B256::repeat_byte(7);
        let by_hash = |require_canonical| Ok(BlockAt::Hash { hash, require_canonical });
        assert_eq!(parse_block_at(&json!(hash)), by_hash(false));
        assert_eq!(parse_block_at(&json!({"blockHash": hash})), by_hash(false));
        assert_eq!(
            parse_block_at(&json!({"blockHash": hash, "requireCanonical": true, "x": 1})),
            by_hash(true)
        );
        assert_eq!(
            parse_block_at(&json!({"blockNumber": "0x1", "blockHash": null})),
            Ok(BlockAt::Tag(BlockTag::Number(1)))
        );
        assert_eq!(parse_block_at(&json!({"blockNumber": "safe"})), Ok(BlockAt::Tag(BlockTag::Safe)));
        assert_eq!(parse_block_at(&json!("0x1")), Ok(BlockAt::Tag(BlockTag::Number(1))));
        for wrong in [
            json!({}),
            json!({"blockNumber": "0x1", "blockHash": hash}),
            json!({"blockNumber": 1}),
            json!({"blockHash": hash, "requireCanonical": "yes"}),
            json!(["0x1"]),
            json!(null),
        ] {
            assert!(parse_block_at(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn arguments_are_counted_and_named() {
        let params = json!(["0x1", null, true]);
        let arguments = Arguments::new(Some(&params), 3).expect("three");
        assert_eq!(arguments.required(0, parse_quantity), Ok(1));
        assert_eq!(arguments.optional(1, parse_quantity), Ok(None));
        assert_eq!(arguments.optional(7, parse_quantity), Ok(None));
        assert_eq!(
            arguments.required(2, parse_quantity).map_err(|e| e.to_string()),
            Err("invalid argument 2: expected a hex string, got a boolean".into())
        );
        assert_eq!(
            arguments.required(1, parse_bool).map_err(|e| e.to_string()),
            Err("missing value for required argument 1".into())
        );
        assert!(Arguments::new(Some(&params), 2).is_err());
        assert!(Arguments::new(Some(&json!({"a": 1})), 2).is_err());
        assert!(Arguments::new(None, 0).is_ok_and(|a| a.is_empty()));
        assert_eq!(ParamError::new("x").code(), -32602);
    }

    #[test]
    fn counts_and_percentiles() {
        for value in [json!("0x4"), json!("4"), json!(4)] {
            assert_eq!(parse_count(&value), Ok(4));
        }
        for wrong in [json!("-4"), json!(-4), json!(4.5), json!("+4"), json!("0x"), json!([])] {
            assert!(parse_count(&wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_percentiles(&json!([0, 12.5, 100])), Ok(vec![0.0, 12.5, 100.0]));
        for wrong in [json!([1, 1]), json!([2, 1]), json!([-1]), json!([101]), json!(["1"]), json!(5)] {
            assert!(parse_percentiles(&wrong).is_err(), "{wrong}");
        }
        assert!(parse_percentiles(&json!((0..101).collect::<Vec<_>>())).is_err());
    }

    #[test]
    fn what_is_quoted_back_is_cut() {
        let message =
            parse_quantity(&json!(format!("0x{}", "z".repeat(1_000_000)))).map_err(|e| e.to_string());
        assert!(message.is_err_and(|text| text.len() < 200));
        assert!(parse_data(&json!("0x0102"), 2).is_ok());
        assert!(parse_data(&json!("0x010203"), 2).is_err());
        assert!(parse_data(&json!("0x012"), 2).is_err());
    }
}
