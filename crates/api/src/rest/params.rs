//! What a request says, read strictly: unknown and repeated parameters are errors, and nothing is clamped.

use std::str::FromStr;

use alloy_primitives::U256;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use bytes::Bytes;
use cairn_core::{BlockId, Height, TxId};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::{IntoParams, ToSchema};

use super::limits::RestLimits;
use super::problem::{Code, Problem};

/// The bytes of an address.
const ADDRESS_BYTES: usize = 20;

/// A query string.
pub(crate) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(error) => Err(refused_query(&error.body_text())),
        }
    }
}

/// What serde says of a query string, with the parameter by itself: `limit: invalid digit found in string`, or one in backticks.
fn refused_query(text: &str) -> Problem {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text);
    let quoted = || text.split_once("field `")?.1.split_once('`').map(|(name, _)| name);
    let leading = || text.split_once(": ").map(|(name, _)| name).filter(|name| !name.contains(' '));
    match quoted().or_else(leading) {
        Some(name) => {
            let what = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text);
            Problem::parameter(name, what)
        }
        None => Problem::new(Code::InvalidParameter, text),
    }
}

/// The parts of a path.
pub(crate) struct Place<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Place<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(place)) => Ok(Place(place)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => Err(match error.kind() {
                ErrorKind::ParseErrorAtKey { key, .. }
                | ErrorKind::InvalidUtf8InPathParam { key }
                | ErrorKind::DeserializeError { key, .. } => Problem::parameter(key, error.body_text()),
                _ => Problem::new(Code::InvalidParameter, error.body_text()),
            }),
            Err(error) => Err(Problem::new(Code::InvalidParameter, error.body_text())),
        }
    }
}

/// For paths that take no parameter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

/// From which end a list begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Oldest or lowest first.
    Asc,
    /// Newest or highest first.
    Desc,
}

/// Of lists that can be read from both ends.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
    /// From which end.
    #[param(inline)]
    pub order: Option<Order>,
}

/// Of lists with one order.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
}

/// Which page of a list.
#[derive(Debug, Clone)]
pub(crate) struct Paging {
    pub limit: u32,
    pub cursor: Option<String>,
    pub descending: bool,
}

impl Paging {
    pub(crate) fn new(
        limits: &RestLimits,
        limit: Option<u32>,
        cursor: Option<String>,
        order: Order,
    ) -> Result<Paging, Problem> {
        let limit = limit.unwrap_or(limits.default_page_rows);
        if limit == 0 || limit > limits.max_page_rows {
            return Err(Problem::parameter(
                "limit",
                format!("{limit} is not between 1 and {}", limits.max_page_rows),
            ));
        }
        Ok(Paging { limit, cursor, descending: order == Order::Desc })
    }

    /// For the binding of cursors.
    pub(crate) fn order_word(&self) -> &'static str {
        if self.descending { "desc" } else { "asc" }
    }
}

impl ListQuery {
    pub(crate) fn paging(self, limits: &RestLimits, usual: Order) -> Result<Paging, Problem> {
        Paging::new(limits, self.limit, self.cursor, self.order.unwrap_or(usual))
    }
}

impl PageQuery {
    pub(crate) fn paging(self, limits: &RestLimits, order: Order) -> Result<Paging, Problem> {
        Paging::new(limits, self.limit, self.cursor, order)
    }
}

fn digits_of(text: &str) -> &str {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text)
}

fn hex_of(name: &str, text: &str, bytes: usize, what: &str) -> Result<Vec<u8>, Problem> {
    let digits = digits_of(text);
    if digits.len() == bytes * 2
        && let Ok(value) = hex::decode(digits)
    {
        return Ok(value);
    }
    Err(Problem::parameter(
        name,
        format!("expected {what}: {} hex digits in any case, with or without 0x", bytes * 2),
    ))
}

/// An address in any case, with or without prefix; a checksum in its case is not looked at (P09).
pub(crate) fn address(name: &str, text: &str) -> Result<Bytes, Problem> {
    hex_of(name, text, ADDRESS_BYTES, "an address").map(Bytes::from)
}

/// 32 bytes.
pub(crate) fn hash(name: &str, text: &str) -> Result<[u8; 32], Problem> {
    let bytes = hex_of(name, text, 32, "a hash")?;
    bytes.try_into().map_err(|_| Problem::parameter(name, "expected a hash"))
}

/// A transaction's id.
pub(crate) fn tx_id(text: &str) -> Result<TxId, Problem> {
    hash("id", text).map(TxId)
}

/// The most digits of a height: all numbers of so many digits fit.
pub(crate) const MAX_HEIGHT_DIGITS: usize = 19;
/// The digits of the largest number of 256 bits.
const MAX_U256_DIGITS: usize = 78;

/// A number in plain decimal digits.
pub(crate) fn decimal<T: FromStr>(name: &str, text: &str, max_digits: usize) -> Result<T, Problem> {
    let wrong = || Problem::parameter(name, "expected a number in decimal digits that is not too large");
    if text.is_empty() || text.len() > max_digits || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

/// The id of an NFT. No item has one beyond 256 bits.
pub(crate) fn item(text: &str) -> Result<U256, Problem> {
    let is_number = text.len() <= MAX_U256_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    match decimal("item", text, MAX_U256_DIGITS) {
        Err(_) if is_number && !text.is_empty() => Err(Problem::not_found(format!("the item {text}"))),
        item => item,
    }
}

/// What a path calls a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockName {
    Height(Height),
    Id(BlockId),
}

impl FromStr for BlockName {
    type Err = Problem;

    fn from_str(text: &str) -> Result<BlockName, Problem> {
        if digits_of(text).len() == 64 {
            return hash("id", text).map(|id| BlockName::Id(BlockId(id)));
        }
        decimal("id", text, MAX_HEIGHT_DIGITS).map(|height| BlockName::Height(Height(height))).map_err(|_| {
            Problem::parameter("id", "expected a height in decimal digits, or a block's id of 64 hex digits")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p09_an_address_is_read_in_any_spelling() {
        let lower = address("address", "0x52908400098527886e0f7030069857d2e4169ee7").expect("lower");
        for text in [
            "0x52908400098527886E0F7030069857D2E4169EE7",
            "0X52908400098527886E0F7030069857D2E4169EE7",
            "52908400098527886e0f7030069857d2e4169ee7",
            // A checksum that is wrong.
            "0x52908400098527886E0f7030069857D2E4169EE7",
        ] {
            assert_eq!(address("address", text).expect("read"), lower, "{text}");
        }
        for text in ["", "0x", "0x12", "0x52908400098527886e0f7030069857d2e4169eeg", "é"] {
            assert_eq!(address("address", text).expect_err("refused").code, Code::InvalidParameter, "{text}");
        }
    }

    #[test]
    fn an_item_beyond_256_bits_is_one_that_does_not_exist() {
        let most = U256::MAX.to_string();
        assert_eq!(item(&most).expect("an id"), U256::MAX);
        assert_eq!(item(&"9".repeat(78)).expect_err("too large").code, Code::NotFound);
        for text in ["", "-1", "0x1", &"1".repeat(79)] {
            assert_eq!(item(text).expect_err("refused").code, Code::InvalidParameter, "{text}");
        }
    }

    #[test]
    fn blocks_are_named_by_height_or_id() {
        assert_eq!("17".parse::<BlockName>().expect("height"), BlockName::Height(Height(17)));
        let id = "Ab".repeat(32);
        assert_eq!(id.parse::<BlockName>().expect("id"), BlockName::Id(BlockId([0xab; 32])));
        for text in ["", "-1", "+1", "0x10", "18446744073709551615", "latest", "1 "] {
            assert!(text.parse::<BlockName>().is_err(), "{text}");
        }
    }
}
