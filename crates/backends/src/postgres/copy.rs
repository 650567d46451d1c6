//! Rows in the binary COPY format, and whole numbers as NUMERIC.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// The signature, no flags, no header extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Rows are sent in pieces of about this size.
const PIECE_BYTES: usize = 256 << 10;

/// Microseconds from 1970 to 2000, where PostgreSQL's time begins.
const PG_EPOCH_US: i64 = 946_684_800_000_000;

/// Collects rows in the binary COPY format: [`CopyBuf::row`], then one call a column in the order of the COPY statement.
///
/// Integers must have the column's own width: `i64` for BIGINT, `i32` for INTEGER, `i16` for SMALLINT.
#[derive(Debug)]
pub struct CopyBuf {
    full: VecDeque<Bytes>,
    now: BytesMut,
    rows: u64,
    bytes: u64,
    /// Instead of all that.
    whole: Option<Bytes>,
}

impl Default for CopyBuf {
    fn default() -> Self {
        CopyBuf::new()
    }
}

impl CopyBuf {
    /// No rows.
    pub fn new() -> Self {
        let mut now = BytesMut::with_capacity(4096);
        now.put_slice(HEADER);
        CopyBuf { full: VecDeque::new(), now, rows: 0, bytes: 0, whole: None }
    }

    /// Begins a row of `columns` columns.
    pub fn row(&mut self, columns: i16) -> &mut Self {
        if self.now.len() >= PIECE_BYTES {
            let full = std::mem::replace(&mut self.now, BytesMut::with_capacity(PIECE_BYTES + 4096));
            self.bytes += full.len() as u64;
            self.full.push_back(full.freeze());
        }
        self.now.put_i16(columns);
        self.rows += 1;
        self
    }

    /// How many rows were begun.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether there is no row: then nothing needs to be sent.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.now.len() as u64
    }

    /// NULL.
    pub fn null(&mut self) -> &mut Self {
        self.now.put_i32(-1);
        self
    }

    /// BIGINT.
    pub fn i64(&mut self, value: i64) -> &mut Self {
        self.now.put_i32(8);
        self.now.put_i64(value);
        self
    }

    /// INTEGER.
    pub fn i32(&mut self, value: i32) -> &mut Self {
        self.now.put_i32(4);
        self.now.put_i32(value);
        self
    }

    /// SMALLINT.
    pub fn i16(&mut self, value: i16) -> &mut Self {
        self.now.put_i32(2);
        self.now.put_i16(value);
        self
    }

    /// BOOLEAN.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.now.put_i32(1);
        self.now.put_u8(u8::from(value));
        self
    }

    /// BYTEA. Longer than 1 GiB is refused by the server.
    pub fn bytea(&mut self, value: &[u8]) -> &mut Self {
        self.now.put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.now.put_slice(value);
        self
    }

    /// BYTEA made of pieces.
    pub fn bytea_of(&mut self, pieces: &[&[u8]]) -> &mut Self {
        let length: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.now.put_i32(i32::try_from(length).unwrap_or(i32::MAX));
        for piece in pieces {
            self.now.put_slice(piece);
        }
        self
    }

    /// BYTEA[], without NULLs.
    pub fn bytea_array<T: AsRef<[u8]>>(&mut self, values: &[T]) -> &mut Self {
        /// The type BYTEA's number in every server.
        const BYTEA_OID: i32 = 17;
        let dimensions = i32::from(!values.is_empty());
        let bytes: usize = values.iter().map(|value| 4 + value.as_ref().len()).sum();
        let length = 12 + 8 * dimensions as usize + bytes;
        self.now.put_i32(i32::try_from(length).unwrap_or(i32::MAX));
        self.now.put_i32(dimensions);
        self.now.put_i32(0);
        self.now.put_i32(BYTEA_OID);
        if dimensions > 0 {
            self.now.put_i32(i32::try_from(values.len()).unwrap_or(i32::MAX));
            self.now.put_i32(1);
        }
        for value in values {
            self.bytea(value.as_ref());
        }
        self
    }

    /// BYTEA or NULL.
    pub fn bytea_opt(&mut self, value: Option<&[u8]>) -> &mut Self {
        match value {
            Some(value) => self.bytea(value),
            None => self.null(),
        }
    }

    /// BIGINT or NULL.
    pub fn i64_opt(&mut self, value: Option<i64>) -> &mut Self {
        match value {
            Some(value) => self.i64(value),
            None => self.null(),
        }
    }

    /// TEXT; the text must hold no NUL, see [`without_nul`].
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.bytea(value.as_bytes())
    }

    /// TEXT or NULL.
    pub fn text_opt(&mut self, value: Option<&str>) -> &mut Self {
        self.bytea_opt(value.map(str::as_bytes))
    }

    /// TIMESTAMPTZ, in milliseconds since 1970.
    pub fn timestamp_ms(&mut self, ms: u64) -> &mut Self {
        self.i64(pg_timestamp(ms))
    }

    /// NUMERIC: a whole number that is not negative, big-endian, of any length.
    pub fn numeric(&mut self, magnitude_be: &[u8]) -> &mut Self {
        self.numeric_signed(false, magnitude_be)
    }

    /// NUMERIC: a whole number.
    pub fn numeric_signed(&mut self, negative: bool, magnitude_be: &[u8]) -> &mut Self {
        let at = self.now.len();
        self.now.put_i32(0);
        put_numeric(negative, magnitude_be, &mut self.now);
        let length = (self.now.len() - at - 4) as i32;
        self.now[at..at + 4].copy_from_slice(&length.to_be_bytes());
        self
    }

    /// Rows that are encoded already, with header and trailer, as a binary COPY out of the server gives them.
    pub fn encoded(bytes: Bytes) -> Self {
        let mut rows = CopyBuf::new();
        rows.whole = Some(bytes);
        rows
    }

    /// The pieces to be sent.
    pub fn finish(mut self) -> Vec<Bytes> {
        if let Some(mut whole) = self.whole {
            let mut pieces = Vec::with_capacity(whole.len() / PIECE_BYTES + 1);
            while !whole.is_empty() {
                pieces.push(whole.split_to(whole.len().min(PIECE_BYTES)));
            }
            return pieces;
        }
        self.now.put_i16(-1);
        self.full.push_back(self.now.freeze());
        self.full.into()
    }

    /// A piece that is ready to be sent, if there is one: what was taken is no part of [`CopyBuf::finish`].
    pub fn take_full(&mut self) -> Option<Bytes> {
        self.full.pop_front()
    }
}

/// PostgreSQL's own form of a time: microseconds since 2000. The furthest that it can hold stands for anything later.
pub fn pg_timestamp(ms_since_1970: u64) -> i64 {
    /// 294276-12-31, PostgreSQL's last day.
    const LAST_US: i64 = 9_223_371_331_199_999_999;
    i64::try_from(ms_since_1970)
        .ok()
        .and_then(|ms| ms.checked_mul(1_000))
        .map_or(LAST_US, |us| (us - PG_EPOCH_US).min(LAST_US))
}

/// A text that PostgreSQL takes: NUL becomes U+FFFD.
pub fn without_nul(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// A time as a parameter or a column (TIMESTAMPTZ), in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PgTimestamp(pub u64);

impl ToSql for PgTimestamp {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        out.put_i64(pg_timestamp(self.0));
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for PgTimestamp {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        let us = i64::from_be_bytes(raw.try_into()?).saturating_add(PG_EPOCH_US);
        Ok(PgTimestamp(u64::try_from(us).unwrap_or(0) / 1_000))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A whole number as a NUMERIC parameter or column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PgNumeric {
    /// Below zero. Zero is never negative.
    pub negative: bool,
    /// Big-endian, without leading zeros; empty for zero.
    pub magnitude: Vec<u8>,
}

impl PgNumeric {
    /// A number that is not negative, big-endian.
    pub fn unsigned(magnitude_be: &[u8]) -> Self {
        PgNumeric { negative: false, magnitude: trimmed(magnitude_be).to_vec() }
    }

    /// The number in 32 bytes, big-endian; `None` where it is negative or doesn't fit.
    pub fn to_be_bytes32(&self) -> Option<[u8; 32]> {
        let mut bytes = [0; 32];
        let at = 32usize.checked_sub(self.magnitude.len())?;
        bytes[at..].copy_from_slice(&self.magnitude);
        (!self.negative).then_some(bytes)
    }
}

impl From<u64> for PgNumeric {
    fn from(n: u64) -> Self {
        PgNumeric::unsigned(&n.to_be_bytes())
    }
}

impl ToSql for PgNumeric {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        put_numeric(self.negative, &self.magnitude, out);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for PgNumeric {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        read_numeric(raw)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len())..]
}

/// PostgreSQL's binary NUMERIC: digit count, weight of the first digit, sign, scale, then digits of base 10,000.
pub(super) fn put_numeric(negative: bool, magnitude_be: &[u8], out: &mut BytesMut) {
    // Limbs of 32 bits, the highest first.
    let bytes = trimmed(magnitude_be);
    let mut limbs: Vec<u32> = bytes
        .rchunks(4)
        .rev()
        .map(|chunk| chunk.iter().fold(0u32, |limb, byte| limb << 8 | u32::from(*byte)))
        .collect();
    // Digits of base 10,000, the lowest first; two at a division.
    let mut digits: Vec<u16> = Vec::with_capacity(limbs.len() * 5 / 2 + 2);
    let mut from = 0;
    while from < limbs.len() {
        let mut rest = 0u64;
        for limb in &mut limbs[from..] {
            let part = rest << 32 | u64::from(*limb);
            *limb = (part / 100_000_000) as u32;
            rest = part % 100_000_000;
        }
        digits.push((rest % 10_000) as u16);
        digits.push((rest / 10_000) as u16);
        while from < limbs.len() && limbs[from] == 0 {
            from += 1;
        }
    }
    while digits.last() == Some(&0) {
        digits.pop();
    }
    let weight = digits.len() as i16 - 1;
    // Digits that are zero at the low end are left out.
    let low = digits.iter().position(|digit| *digit != 0).unwrap_or(0);
    let kept = &digits[low..];
    out.put_i16(kept.len() as i16);
    out.put_i16(if kept.is_empty() { 0 } else { weight });
    out.put_u16(if negative && !kept.is_empty() { 0x4000 } else { 0 });
    out.put_i16(0);
    for digit in kept.iter().rev() {
        out.put_u16(*digit);
    }
}

fn read_numeric(raw: &[u8]) -> Result<PgNumeric, BoxError> {
    let word = |at: usize| -> Result<u16, BoxError> {
        let bytes = raw.get(2 * at..2 * at + 2).ok_or("a NUMERIC that is too short")?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let (count, weight, sign) = (usize::from(word(0)?), word(1)? as i16, word(2)?);
    let negative = match sign {
        0 => false,
        0x4000 => true,
        _ => return Err("NaN and infinity are no whole numbers".into()),
    };
    if count == 0 {
        return Ok(PgNumeric::default());
    }
    // Limbs of 32 bits, the lowest first.
    let mut limbs: Vec<u32> = Vec::new();
    let whole = usize::try_from(i32::from(weight) + 1).map_err(|_| "a fraction is no whole number")?;
    for at in 0..whole.max(count) {
        let digit = if at < count { word(4 + at)? } else { 0 };
        if at >= whole {
            if digit != 0 {
                return Err("a fraction is no whole number".into());
            }
            continue;
        }
        let mut carry = u64::from(digit);
        for limb in &mut limbs {
            let part = u64::from(*limb) * 10_000 + carry;
            *limb = part as u32;
            carry = part >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    let bytes: Vec<u8> = limbs.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect();
    let magnitude = trimmed(&bytes).to_vec();
    Ok(PgNumeric { negative: negative && !magnitude.is_empty(), magnitude })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(negative: bool, bytes: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        put_numeric(negative, bytes, &mut out);
        out.to_vec()
    }

    #[test]
    fn numerics_are_as_the_server_writes_them() {
        // What `SELECT numeric_send(n)` answers.
        assert_eq!(hex::encode(encoded(false, &[])), "0000000000000000");
        assert_eq!(hex::encode(encoded(false, &[0, 1])), "00010000000000000001");
        assert_eq!(hex::encode(encoded(false, &10_000u64.to_be_bytes())), "00010001000000000001");
        assert_eq!(hex::encode(encoded(true, &1_234_567u64.to_be_bytes())), "0002000140000000007b11d7");
        let max = encoded(false, &[0xff; 32]);
        assert_eq!(hex::encode(&max[..8]), "0014001300000000");
        assert_eq!(hex::encode(&max[8..12]), "000b16a0");
    }

    #[test]
    fn fractions_and_nan_are_refused() {
        // 0.5, NaN and 1.5.
        for raw in ["0001ffff000000011388", "00000000c0000000", "000200000000000100011388"] {
            assert!(read_numeric(&hex::decode(raw).unwrap()).is_err(), "{raw}");
        }
        assert!(read_numeric(&[0, 1]).is_err());
    }

    #[test]
    fn times_are_bounded() {
        assert_eq!(pg_timestamp(0), -PG_EPOCH_US);
        assert_eq!(pg_timestamp(946_684_800_000), 0);
        assert_eq!(pg_timestamp(u64::MAX), pg_timestamp(u64::MAX / 2));
    }

    proptest! {
        #[test]
        fn numerics_of_any_length_come_back(bytes in prop::collection::vec(any::<u8>(), 0..80), negative: bool) {
            let back = read_numeric(&encoded(negative, &bytes)).unwrap();
            prop_assert_eq!(&back.magnitude[..], trimmed(&bytes));
            prop_assert_eq!(back.negative, negative && !back.magnitude.is_empty());
        }
    }
}
