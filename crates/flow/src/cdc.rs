//! JSON-CDC: Cadence values as JSON (cadence `encoding/json`), leniently.
//!
//! Every kind that a node has ever written is read, those of old sporks included; a kind that isn't known stays JSON. Numbers are
//! strings of any size and stay exact: they are checked against their type's bounds and never rounded or cut. Depth and length are
//! bounded, since payloads are written by strangers.

use std::str::FromStr;

use alloy_primitives::{I256, U256};
use serde_json::Value as Json;

use crate::{FlowAddress, FlowError};

/// How deep values may stand in each other.
pub const MAX_DEPTH: usize = 64;
/// How many digits a number of unbounded type may have.
pub const MAX_DIGITS: usize = 512;

/// A value of Cadence.
#[derive(Debug, Clone, PartialEq)]
pub enum CdcValue {
    /// Nothing, as the result of what returns nothing.
    Void,
    /// A value or nil.
    Optional(Option<Box<CdcValue>>),
    /// A boolean.
    Bool(bool),
    /// Text.
    String(String),
    /// One grapheme cluster.
    Character(String),
    /// An account's address.
    Address(FlowAddress),
    /// An integer of any of the types from `Int8` to `UInt256`, `Word…`, `Int` and `UInt`.
    Integer(Number),
    /// A fixed-point number: `Fix64`, `UFix64`, `Fix128`, `UFix128`.
    Fixed(Number),
    /// A list.
    Array(Vec<CdcValue>),
    /// Keys and values, in the order in which they were written.
    Dictionary(Vec<(CdcValue, CdcValue)>),
    /// A struct, resource, event, contract or enum.
    Composite(Composite),
    /// A path, as `/domain/identifier`.
    Path(String),
    /// A type.
    Type(StaticType),
    /// A capability; old ones have a path instead of an id.
    Capability {
        /// Its id, of those since Cadence 1.0.
        id: Option<String>,
        /// Whose it is.
        address: Option<FlowAddress>,
        /// Its path, of those before.
        path: Option<String>,
        /// What may be borrowed.
        borrow_type: Option<StaticType>,
    },
    /// A range from one value to another.
    InclusiveRange {
        /// The first.
        start: Box<CdcValue>,
        /// The last.
        end: Box<CdcValue>,
        /// The distance of two neighbours.
        step: Box<CdcValue>,
    },
    /// A function's type.
    Function(StaticType),
    /// A kind that this version doesn't know: `Link` of old sporks, or one of a newer node.
    Unknown {
        /// Its name.
        kind: String,
        /// Its value, as it came.
        value: Json,
    },
}

/// A number as its digits, within the bounds of its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number {
    /// The type, such as `UInt64`.
    pub kind: &'static str,
    /// Its digits, with a sign where it is negative and a point where it is fixed: no leading zeros, no plus.
    pub text: String,
}

/// A composite's type and fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Composite {
    /// `Struct`, `Resource`, `Event`, `Contract`, `Enum`, or what an older node called it.
    pub kind: String,
    /// Its type's name, such as `A.1654653399040a61.FlowToken.TokensDeposited`.
    pub id: String,
    /// Names and values, in the order in which they were written.
    pub fields: Vec<(String, CdcValue)>,
}

/// A type as a value: its name where it has one, or can be given one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StaticType(pub String);

impl Composite {
    /// A field by its name.
    pub fn field(&self, name: &str) -> Option<&CdcValue> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }
}

impl Number {
    /// As an unsigned integer; `None` where it is negative, fixed or larger.
    pub fn to_u256(&self) -> Option<U256> {
        U256::from_str_radix(&self.text, 10).ok()
    }

    /// As a signed integer; `None` where it is fixed or larger.
    pub fn to_i256(&self) -> Option<I256> {
        I256::from_dec_str(&self.text).ok()
    }

    /// As an unsigned 64-bit integer.
    pub fn to_u64(&self) -> Option<u64> {
        self.text.parse().ok()
    }

    /// A fixed-point number times 10^`decimals`, exactly; `None` where it is negative, or has more decimals than that.
    pub fn to_scaled(&self, decimals: usize) -> Option<U256> {
        let (whole, part) = self.text.split_once('.').unwrap_or((&self.text, ""));
        let part = part.trim_end_matches('0');
        if part.len() > decimals {
            return None;
        }
        U256::from_str_radix(&format!("{whole}{part:0<decimals$}"), 10).ok()
    }
}

impl CdcValue {
    /// Decodes a payload.
    pub fn parse(payload: &[u8]) -> Result<CdcValue, FlowError> {
        let json: Json = serde_json::from_slice(payload).map_err(|error| malformed(&error))?;
        decode(&json, 0)
    }

    /// Decodes an event's payload.
    pub fn parse_event(payload: &[u8]) -> Result<Composite, FlowError> {
        match CdcValue::parse(payload)? {
            CdcValue::Composite(composite) if composite.kind == "Event" => Ok(composite),
            _ => Err(malformed("it is no event")),
        }
    }

    /// What an optional holds; other values are themselves. `None` is nil.
    pub fn unwrapped(&self) -> Option<&CdcValue> {
        match self {
            CdcValue::Optional(None) => None,
            CdcValue::Optional(Some(inner)) => inner.unwrapped(),
            other => Some(other),
        }
    }

    /// Text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            CdcValue::String(text) | CdcValue::Character(text) => Some(text),
            _ => None,
        }
    }

    /// An address.
    pub fn as_address(&self) -> Option<FlowAddress> {
        match self {
            CdcValue::Address(address) => Some(*address),
            _ => None,
        }
    }

    /// A number of any kind.
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            CdcValue::Integer(number) | CdcValue::Fixed(number) => Some(number),
            _ => None,
        }
    }

    /// A list of bytes (`[UInt8]`).
    pub fn as_bytes(&self) -> Option<Vec<u8>> {
        let CdcValue::Array(values) = self else { return None };
        values.iter().map(|value| value.as_number()?.text.parse().ok()).collect()
    }

    /// An enum's raw value.
    pub fn as_enum(&self) -> Option<u64> {
        match self {
            CdcValue::Composite(composite) => composite.field("rawValue")?.as_number()?.to_u64(),
            _ => None,
        }
    }

    /// JSON without the types: numbers as strings, addresses as 16 hex digits, nil as null, composites as objects. What explorers
    /// show and what most people expect of an event.
    pub fn to_flat(&self) -> Json {
        match self {
            CdcValue::Void | CdcValue::Optional(None) => Json::Null,
            CdcValue::Optional(Some(inner)) => inner.to_flat(),
            CdcValue::Bool(value) => Json::Bool(*value),
            CdcValue::String(text) | CdcValue::Character(text) | CdcValue::Path(text) => text.as_str().into(),
            CdcValue::Address(address) => address.bare().into(),
            CdcValue::Integer(number) | CdcValue::Fixed(number) => number.text.as_str().into(),
            CdcValue::Array(values) => values.iter().map(CdcValue::to_flat).collect(),
            CdcValue::Dictionary(entries) => {
                let entry = |(key, value): &(CdcValue, CdcValue)| {
                    let key = match key.to_flat() {
                        Json::String(text) => text,
                        other => other.to_string(),
                    };
                    (key, value.to_flat())
                };
                Json::Object(entries.iter().map(entry).collect())
            }
            CdcValue::Composite(composite) => Json::Object(
                composite.fields.iter().map(|(name, value)| (name.clone(), value.to_flat())).collect(),
            ),
            CdcValue::Type(StaticType(name)) | CdcValue::Function(StaticType(name)) => {
                format!("Type<{name}>()").into()
            }
            CdcValue::Capability { id, address, path, borrow_type } => serde_json::json!({
                "id": id,
                "address": address.map(|address| address.bare()),
                "path": path,
                "borrowType": borrow_type.as_ref().map(|borrow| borrow.0.as_str()),
            }),
            CdcValue::InclusiveRange { start, end, step } => {
                serde_json::json!({"start": start.to_flat(), "end": end.to_flat(), "step": step.to_flat()})
            }
            CdcValue::Unknown { value, .. } => value.clone(),
        }
    }
}

fn malformed(message: impl std::fmt::Display) -> FlowError {
    FlowError::malformed("a Cadence value", message)
}

fn decode(json: &Json, depth: usize) -> Result<CdcValue, FlowError> {
    if depth > MAX_DEPTH {
        return Err(malformed(format!("values stand in each other more than {MAX_DEPTH} deep")));
    }
    let kind = json
        .get("type")
        .and_then(Json::as_str)
        .ok_or_else(|| malformed("an object with a type was expected"))?;
    let value = json.get("value").unwrap_or(&Json::Null);
    let wrong = || malformed(format!("a {kind} has a value of another kind"));
    let text = || value.as_str().ok_or_else(wrong);
    let inner = |json: &Json| decode(json, depth + 1);
    let member = |name: &str| value.get(name).ok_or_else(|| malformed(format!("a {kind} has no {name}")));
    if let Some(bounds) = Bounds::of(kind) {
        let digits = match value {
            Json::String(text) => text.clone(),
            // Some recorders write small numbers as numbers.
            Json::Number(number) => number.to_string(),
            _ => return Err(wrong()),
        };
        let number = bounds.number(&digits)?;
        return Ok(if bounds.decimals > 0 { CdcValue::Fixed(number) } else { CdcValue::Integer(number) });
    }
    Ok(match kind {
        "Void" => CdcValue::Void,
        "Optional" if value.is_null() => CdcValue::Optional(None),
        "Optional" => CdcValue::Optional(Some(Box::new(inner(value)?))),
        "Bool" => CdcValue::Bool(value.as_bool().ok_or_else(wrong)?),
        "String" => CdcValue::String(text()?.to_owned()),
        "Character" => CdcValue::Character(text()?.to_owned()),
        "Address" => CdcValue::Address(text()?.parse().map_err(malformed)?),
        "Array" => {
            CdcValue::Array(value.as_array().ok_or_else(wrong)?.iter().map(inner).collect::<Result<_, _>>()?)
        }
        "Dictionary" => {
            let entry = |entry: &Json| match (entry.get("key"), entry.get("value")) {
                (Some(key), Some(value)) => Ok((inner(key)?, inner(value)?)),
                _ => Err(malformed("a dictionary's entry has no key or no value")),
            };
            CdcValue::Dictionary(
                value.as_array().ok_or_else(wrong)?.iter().map(entry).collect::<Result<_, _>>()?,
            )
        }
        "Struct" | "Resource" | "Event" | "Contract" | "Enum" | "Attachment" => {
            let field = |field: &Json| match (field.get("name").and_then(Json::as_str), field.get("value")) {
                (Some(name), Some(value)) => Ok((name.to_owned(), inner(value)?)),
                _ => Err(malformed(format!("a field of a {kind} has no name or no value"))),
            };
            let id = member("id")?.as_str().ok_or_else(wrong)?.to_owned();
            let fields = match value.get("fields") {
                None | Some(Json::Null) => Vec::new(),
                Some(fields) => {
                    fields.as_array().ok_or_else(wrong)?.iter().map(field).collect::<Result<_, _>>()?
                }
            };
            CdcValue::Composite(Composite { kind: kind.to_owned(), id, fields })
        }
        "Path" => {
            let part = |name| member(name).and_then(|part: &Json| part.as_str().ok_or_else(wrong));
            CdcValue::Path(format!("/{}/{}", part("domain")?, part("identifier")?))
        }
        "Type" => CdcValue::Type(static_type(value.get("staticType").unwrap_or(&Json::Null), depth)?),
        "Function" => {
            CdcValue::Function(static_type(value.get("functionType").unwrap_or(&Json::Null), depth)?)
        }
        "Capability" => {
            let borrow = value.get("borrowType").filter(|borrow| !borrow.is_null());
            let path = value.get("path").filter(|path| !path.is_null());
            let path = match path {
                // Written as a value, or, still earlier, as text.
                Some(Json::String(path)) => Some(path.clone()),
                Some(path) => match inner(path)? {
                    CdcValue::Path(path) => Some(path),
                    _ => return Err(wrong()),
                },
                None => None,
            };
            let address = value.get("address").and_then(Json::as_str);
            CdcValue::Capability {
                id: value.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned)),
                address: address.map(FlowAddress::from_str).transpose().map_err(malformed)?,
                path,
                borrow_type: borrow.map(|borrow| static_type(borrow, depth)).transpose()?,
            }
        }
        "InclusiveRange" => CdcValue::InclusiveRange {
            start: Box::new(inner(member("start")?)?),
            end: Box::new(inner(member("end")?)?),
            step: Box::new(inner(member("step")?)?),
        },
        _ => CdcValue::Unknown { kind: kind.to_owned(), value: value.clone() },
    })
}

/// The name of a type, written as text by old nodes and as an object by newer ones.
fn static_type(json: &Json, depth: usize) -> Result<StaticType, FlowError> {
    if depth > MAX_DEPTH {
        return Err(malformed(format!("types stand in each other more than {MAX_DEPTH} deep")));
    }
    let name = |json: Option<&Json>| -> Result<String, FlowError> {
        Ok(static_type(json.unwrap_or(&Json::Null), depth + 1)?.0)
    };
    let names = |json: Option<&Json>| -> Result<String, FlowError> {
        let types = json.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let names: Vec<String> = types.iter().map(|json| name(Some(json))).collect::<Result<_, _>>()?;
        Ok(names.join(", "))
    };
    if let Some(text) = json.as_str() {
        return Ok(StaticType(text.to_owned()));
    }
    let kind = json.get("kind").and_then(Json::as_str).unwrap_or_default();
    let id = json.get("typeID").and_then(Json::as_str).filter(|id| !id.is_empty());
    Ok(StaticType(match kind {
        "Optional" => format!("{}?", name(json.get("type"))?),
        "VariableSizedArray" => format!("[{}]", name(json.get("type"))?),
        "ConstantSizedArray" => {
            let size = json.get("size").map(Json::to_string).unwrap_or_default();
            format!("[{}; {}]", name(json.get("type"))?, size.trim_matches('"'))
        }
        "Dictionary" => format!("{{{}: {}}}", name(json.get("key"))?, name(json.get("value"))?),
        "Reference" => format!("&{}", name(json.get("type"))?),
        "Capability" => format!("Capability<{}>", name(json.get("type"))?),
        "InclusiveRange" => format!("InclusiveRange<{}>", name(json.get("element"))?),
        "Intersection" => id.map_or_else(
            || names(json.get("types")).map(|names| format!("{{{names}}}")),
            |id| Ok(id.to_owned()),
        )?,
        _ => id.unwrap_or(kind).to_owned(),
    }))
}

/// What a number's type allows.
struct Bounds {
    kind: &'static str,
    /// How many bits it has; `None` for `Int` and `UInt`.
    bits: Option<usize>,
    signed: bool,
    /// How many digits stand behind the point; 0 for integers.
    decimals: usize,
}

impl Bounds {
    fn of(kind: &str) -> Option<Bounds> {
        const KINDS: [(&str, Option<usize>, bool, usize); 25] = [
            ("Int", None, true, 0),
            ("Int8", Some(8), true, 0),
            ("Int16", Some(16), true, 0),
            ("Int32", Some(32), true, 0),
            ("Int64", Some(64), true, 0),
            ("Int128", Some(128), true, 0),
            ("Int256", Some(256), true, 0),
            ("UInt", None, false, 0),
            ("UInt8", Some(8), false, 0),
            ("UInt16", Some(16), false, 0),
            ("UInt32", Some(32), false, 0),
            ("UInt64", Some(64), false, 0),
            ("UInt128", Some(128), false, 0),
            ("UInt256", Some(256), false, 0),
            ("Word8", Some(8), false, 0),
            ("Word16", Some(16), false, 0),
            ("Word32", Some(32), false, 0),
            ("Word64", Some(64), false, 0),
            ("Word128", Some(128), false, 0),
            ("Word256", Some(256), false, 0),
            ("Fix64", Some(64), true, 8),
            ("UFix64", Some(64), false, 8),
            ("Fix128", Some(128), true, 24),
            ("UFix128", Some(128), false, 24),
            ("Word", Some(64), false, 0),
        ];
        let found = KINDS.iter().find(|(name, ..)| *name == kind)?;
        Some(Bounds { kind: found.0, bits: found.1, signed: found.2, decimals: found.3 })
    }

    fn number(&self, digits: &str) -> Result<Number, FlowError> {
        let kind = self.kind;
        let refuse = |why: &str| malformed(format!("a {kind} {why}"));
        if digits.len() > MAX_DIGITS {
            return Err(refuse(&format!("has more than {MAX_DIGITS} digits")));
        }
        let (negative, unsigned) = match digits.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, digits),
        };
        let (whole, part) = match unsigned.split_once('.') {
            Some((whole, part)) if self.decimals > 0 => (whole, part),
            Some(_) => return Err(refuse("is not whole")),
            None => (unsigned, ""),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(part) || part.len() > self.decimals {
            return Err(refuse("is not a number of its kind"));
        }
        let whole = whole.trim_start_matches('0');
        let scaled = format!("{whole}{part:0<width$}", width = self.decimals);
        let is_zero = scaled.bytes().all(|digit| digit == b'0');
        if negative && !self.signed && !is_zero {
            return Err(refuse("is negative"));
        }
        if let Some(bits) = self.bits {
            let magnitude = if is_zero { Ok(U256::ZERO) } else { U256::from_str_radix(&scaled, 10) };
            let magnitude = magnitude.map_err(|_| refuse("is out of its bounds"))?;
            let limit = match (self.signed, negative) {
                (true, true) => U256::from(1) << (bits - 1),
                (true, false) => (U256::from(1) << (bits - 1)) - U256::from(1),
                (false, _) => U256::MAX >> (256 - bits),
            };
            if magnitude > limit {
                return Err(refuse("is out of its bounds"));
            }
        }
        let sign = if negative && !is_zero { "-" } else { "" };
        let whole = if whole.is_empty() { "0" } else { whole };
        let text = match self.decimals {
            0 => format!("{sign}{whole}"),
            decimals => format!("{sign}{whole}.{part:0<decimals$}"),
        };
        Ok(Number { kind, text })
    }
}
