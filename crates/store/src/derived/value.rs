//! One field of a derived row.

use std::cmp::Ordering;
use std::fmt;

use bytes::Bytes;
use cairn_core::Height;
pub use ruint::aliases::U256;

/// The magnitude of a [`Sum`]: 2^64 amounts of 256 bits fit.
type Magnitude = ruint::Uint<320, 5>;

/// What a column holds. Each type sorts the same in every backend: numbers by value, bytes and text byte by byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// `false` before `true`.
    Bool,
    /// A signed 64-bit integer: heights, indexes, counts, times in milliseconds.
    Int,
    /// One unsigned value of at most 256 bits: `NUMERIC(78,0)` in SQL, 32 bytes big-endian in SQLite.
    Amount,
    /// A signed sum of amounts: unbounded `NUMERIC` in SQL, 41 sortable bytes in SQLite.
    Sum,
    /// Hashes, addresses, data.
    Bytes,
    /// Text without NUL bytes, compared byte by byte (`COLLATE "C"`).
    Text,
}

/// A field. `Null` sorts before everything, and indexes never order by columns that may be null.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Value {
    /// Nothing is known.
    #[default]
    Null,
    /// See [`ColumnType::Bool`].
    Bool(bool),
    /// See [`ColumnType::Int`].
    Int(i64),
    /// See [`ColumnType::Amount`].
    Amount(U256),
    /// See [`ColumnType::Sum`].
    Sum(Box<Sum>),
    /// See [`ColumnType::Bytes`].
    Bytes(Bytes),
    /// See [`ColumnType::Text`]. Make it with [`Value::text`], which keeps NUL bytes out.
    Text(String),
}

impl Value {
    /// A height. Heights above 2^63 don't exist on any chain; one is kept as the highest number, which no row can have.
    pub fn height(height: Height) -> Value {
        Value::Int(i64::try_from(height.get()).unwrap_or(i64::MAX))
    }

    /// In place of a number that doesn't fit: no count and no time is that. A block with one in its rows can't be processed, so it is never stored.
    pub const DOES_NOT_FIT: Value = Value::Int(i64::MIN);

    /// A count or a time. From 2^63 on it is [`Value::DOES_NOT_FIT`], never another number.
    pub fn uint(n: u64) -> Value {
        i64::try_from(n).map_or(Value::DOES_NOT_FIT, Value::Int)
    }

    /// Text with each NUL, which PostgreSQL can't store, replaced by U+FFFD.
    pub fn text(text: impl Into<String>) -> Value {
        let text = text.into();
        Value::Text(if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text })
    }

    /// Bytes, copied.
    pub fn bytes(bytes: &[u8]) -> Value {
        Value::Bytes(Bytes::copy_from_slice(bytes))
    }

    /// A sum of one amount.
    pub fn sum(amount: U256) -> Value {
        Value::Sum(Box::new(Sum::from(amount)))
    }

    /// The sum of one amount, negated.
    pub fn minus(amount: U256) -> Value {
        Value::Sum(Box::new(-Sum::from(amount)))
    }

    /// Whether nothing is known.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The integer.
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(n) = self { Some(*n) } else { None }
    }

    /// The integer as a height; `None` also where it is negative.
    pub fn as_height(&self) -> Option<Height> {
        self.as_int().and_then(|n| u64::try_from(n).ok()).map(Height)
    }

    /// The truth value.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(b) = self { Some(*b) } else { None }
    }

    /// The amount.
    pub fn as_amount(&self) -> Option<U256> {
        if let Value::Amount(amount) = self { Some(*amount) } else { None }
    }

    /// The sum.
    pub fn as_sum(&self) -> Option<&Sum> {
        if let Value::Sum(sum) = self { Some(sum) } else { None }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        if let Value::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The text.
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// Whether it may stand in a column of this type; `Null` may in any.
    pub fn is_of(&self, ty: ColumnType) -> bool {
        matches!(
            (self, ty),
            (Value::Null, _)
                | (Value::Bool(_), ColumnType::Bool)
                | (Value::Int(_), ColumnType::Int)
                | (Value::Amount(_), ColumnType::Amount)
                | (Value::Sum(_), ColumnType::Sum)
                | (Value::Bytes(_), ColumnType::Bytes)
                | (Value::Text(_), ColumnType::Text)
        )
    }

    /// The memory that it takes, in bytes, about.
    pub fn size_bytes(&self) -> usize {
        let apart = match self {
            Value::Sum(_) => std::mem::size_of::<Sum>(),
            Value::Bytes(bytes) => bytes.len(),
            Value::Text(text) => text.len(),
            _ => 0,
        };
        std::mem::size_of::<Value>() + apart
    }

    fn rank(&self) -> u8 {
        match self {
            Value::Null => 0,
            Value::Bool(_) => 1,
            Value::Int(_) => 2,
            Value::Amount(_) => 3,
            Value::Sum(_) => 4,
            Value::Bytes(_) => 5,
            Value::Text(_) => 6,
        }
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int(a), Value::Int(b)) => a.cmp(b),
            (Value::Amount(a), Value::Amount(b)) => a.cmp(b),
            (Value::Sum(a), Value::Sum(b)) => a.cmp(b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (Value::Text(a), Value::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Value {
    /// For dumps and messages: bytes as hex, text quoted, numbers in decimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(b) => write!(f, "{b}"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Amount(amount) => write!(f, "{amount}"),
            Value::Sum(sum) => write!(f, "{sum}"),
            Value::Bytes(bytes) => write!(f, "0x{}", hex::encode(bytes)),
            Value::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A signed sum of amounts; it can't overflow before 2^64 of the largest ones were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sum {
    /// Never set for zero.
    negative: bool,
    magnitude: Magnitude,
}

/// How many bytes [`Sum::to_sortable`] makes.
pub const SUM_BYTES: usize = 41;

impl Sum {
    /// Nothing.
    pub const ZERO: Sum = Sum { negative: false, magnitude: Magnitude::ZERO };

    /// Whether it is below zero.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// Whether it is zero.
    pub fn is_zero(&self) -> bool {
        self.magnitude.is_zero()
    }

    /// The amount that it is, where it fits one.
    pub fn to_amount(&self) -> Option<U256> {
        let limbs = self.magnitude.as_limbs();
        if self.negative || limbs[4] != 0 {
            return None;
        }
        Some(U256::from_limbs([limbs[0], limbs[1], limbs[2], limbs[3]]))
    }

    /// Bytes whose order is the order of the sums: one byte of sign (0 below zero, 1 otherwise), then the magnitude, big-endian,
    /// inverted below zero.
    pub fn to_sortable(&self) -> [u8; SUM_BYTES] {
        let mut bytes = [0; SUM_BYTES];
        bytes[0] = u8::from(!self.negative);
        bytes[1..].copy_from_slice(&self.magnitude.to_be_bytes::<40>());
        if self.negative {
            bytes[1..].iter_mut().for_each(|byte| *byte = !*byte);
        }
        bytes
    }

    /// The sum that [`Sum::to_sortable`] wrote; `None` for bytes that it never writes.
    pub fn from_sortable(bytes: &[u8]) -> Option<Sum> {
        let (sign, magnitude) = bytes.split_first()?;
        let mut magnitude: [u8; 40] = magnitude.try_into().ok()?;
        let negative = match sign {
            0 => true,
            1 => false,
            _ => return None,
        };
        if negative {
            magnitude.iter_mut().for_each(|byte| *byte = !*byte);
        }
        let magnitude = Magnitude::from_be_bytes(magnitude);
        (!(negative && magnitude.is_zero())).then_some(Sum { negative, magnitude })
    }

    /// The number that decimal digits with an optional minus say; `None` for other text, and beyond 320 bits.
    pub fn from_decimal(text: &str) -> Option<Sum> {
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text),
        };
        if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let magnitude = Magnitude::from_str_radix(digits, 10).ok()?;
        Some(Sum { negative: negative && !magnitude.is_zero(), magnitude })
    }

    fn of(negative: bool, magnitude: Magnitude) -> Sum {
        Sum { negative: negative && !magnitude.is_zero(), magnitude }
    }
}

impl From<U256> for Sum {
    fn from(amount: U256) -> Self {
        let limbs = amount.as_limbs();
        Sum { negative: false, magnitude: Magnitude::from_limbs([limbs[0], limbs[1], limbs[2], limbs[3], 0]) }
    }
}

impl std::ops::Neg for Sum {
    type Output = Sum;
    fn neg(self) -> Sum {
        Sum::of(!self.negative, self.magnitude)
    }
}

impl std::ops::Add for Sum {
    type Output = Sum;

    /// Stops at the largest magnitude rather than wrapping; no chain can get there (law 9).
    fn add(self, other: Sum) -> Sum {
        if self.negative == other.negative {
            return Sum::of(self.negative, self.magnitude.saturating_add(other.magnitude));
        }
        if self.magnitude >= other.magnitude {
            Sum::of(self.negative, self.magnitude - other.magnitude)
        } else {
            Sum::of(other.negative, other.magnitude - self.magnitude)
        }
    }
}

impl Ord for Sum {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self.magnitude.cmp(&other.magnitude),
            (true, true) => other.magnitude.cmp(&self.magnitude),
        }
    }
}

impl PartialOrd for Sum {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.negative { "-" } else { "" }, self.magnitude)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_sum() -> impl Strategy<Value = Sum> {
        (any::<bool>(), any::<[u64; 4]>(), 0..4usize).prop_map(|(negative, mut limbs, short)| {
            limbs[4 - short..].fill(0);
            let sum = Sum::from(U256::from_limbs(limbs));
            if negative { -sum } else { sum }
        })
    }

    proptest! {
        #[test]
        fn sortable_bytes_sort_as_the_sums_and_come_back(a in any_sum(), b in any_sum()) {
            prop_assert_eq!(a.cmp(&b), a.to_sortable().cmp(&b.to_sortable()));
            prop_assert_eq!(Sum::from_sortable(&a.to_sortable()), Some(a));
            prop_assert_eq!(Sum::from_decimal(&a.to_string()), Some(a));
        }

        #[test]
        fn addition_undoes_itself(a in any_sum(), b in any_sum()) {
            prop_assert_eq!(a + b + -b, a);
            prop_assert_eq!(a + b, b + a);
            prop_assert_eq!(a + -a, Sum::ZERO);
        }
    }

    #[test]
    fn sums_of_the_largest_amounts_stay_exact() {
        let most = Sum::from(U256::MAX);
        let sum = most + most + most;
        assert_eq!(
            sum.to_string(),
            "347376267711948586270712955026063723559809953996921692118372752023739388919805"
        );
        assert_eq!(sum.to_amount(), None);
        assert_eq!((sum + -most + -most).to_amount(), Some(U256::MAX));
        assert_eq!(Value::text("a\0b"), Value::Text("a\u{fffd}b".into()));
    }
}
