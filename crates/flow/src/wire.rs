//! Protobuf, field by field: messages are kept as they came, so they are cut and not decoded and encoded again.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

use crate::FlowError;

/// One field of a message, by its place in the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its number.
    pub number: u32,
    /// Key and value.
    pub whole: Range<usize>,
    /// What a length-delimited field holds; `None` for numbers.
    pub value: Option<Range<usize>>,
}

/// The fields of a message, in the order in which they stand.
pub(crate) fn fields(what: &str, message: &[u8]) -> Result<Vec<Field>, FlowError> {
    let refuse = |error: prost::DecodeError| FlowError::malformed(what, error);
    let mut rest = message;
    let mut found = Vec::new();
    while rest.has_remaining() {
        let start = message.len() - rest.len();
        let (number, wire) = decode_key(&mut rest).map_err(refuse)?;
        let value = if wire == WireType::LengthDelimited {
            let bytes = decode_varint(&mut rest).map_err(refuse)?;
            let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= rest.len());
            let Some(bytes) = bytes else {
                return Err(FlowError::malformed(what, format!("field {number} ends behind the message")));
            };
            let from = message.len() - rest.len();
            rest.advance(bytes);
            Some(from..from + bytes)
        } else {
            skip_field(wire, number, &mut rest, DecodeContext::default()).map_err(refuse)?;
            None
        };
        found.push(Field { number, whole: start..message.len() - rest.len(), value });
    }
    Ok(found)
}

/// A message without some of its fields.
pub(crate) fn without(what: &str, message: &Bytes, numbers: &[u32]) -> Result<Bytes, FlowError> {
    let fields = fields(what, message)?;
    if !fields.iter().any(|field| numbers.contains(&field.number)) {
        return Ok(message.clone());
    }
    let mut kept = BytesMut::with_capacity(message.len());
    for field in fields.iter().filter(|field| !numbers.contains(&field.number)) {
        kept.put_slice(&message[field.whole.clone()]);
    }
    Ok(kept.freeze())
}

/// A message with one length-delimited field set to `value`: where it stood, else before the first field of a larger number, as encoders write it.
pub(crate) fn with(what: &str, message: &Bytes, number: u32, value: &[u8]) -> Result<Bytes, FlowError> {
    let fields = fields(what, message)?;
    let mut whole = BytesMut::with_capacity(message.len() + value.len() + 8);
    let mut is_put = false;
    for field in &fields {
        if !is_put && field.number >= number {
            put(&mut whole, number, value);
            is_put = true;
        }
        if field.number != number {
            whole.put_slice(&message[field.whole.clone()]);
        }
    }
    if !is_put {
        put(&mut whole, number, value);
    }
    Ok(whole.freeze())
}

/// A message in which the fields of one number stand in another order: `order` says for each place which of them comes there.
pub(crate) fn in_order(
    what: &str,
    message: &Bytes,
    number: u32,
    order: &[usize],
) -> Result<Bytes, FlowError> {
    if order.is_sorted() {
        return Ok(message.clone());
    }
    let fields = fields(what, message)?;
    let of_number: Vec<&Field> = fields.iter().filter(|field| field.number == number).collect();
    let mut next = order.iter().filter_map(|place| of_number.get(*place));
    let mut whole = BytesMut::with_capacity(message.len());
    for field in &fields {
        let taken = if field.number == number { next.next().copied().unwrap_or(field) } else { field };
        whole.put_slice(&message[taken.whole.clone()]);
    }
    Ok(whole.freeze())
}

/// Appends a length-delimited field.
pub(crate) fn put(to: &mut BytesMut, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, to);
    encode_varint(value.len() as u64, to);
    to.put_slice(value);
}

/// The values of one repeated length-delimited field, as places in the bytes.
pub(crate) fn repeated(what: &str, message: &[u8], number: u32) -> Result<Vec<Range<usize>>, FlowError> {
    let fields = fields(what, message)?;
    Ok(fields.into_iter().filter(|field| field.number == number).filter_map(|field| field.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_cut_without_loss() {
        let mut message = BytesMut::new();
        put(&mut message, 1, b"one");
        encode_key(9, WireType::Varint, &mut message);
        encode_varint(300, &mut message);
        put(&mut message, 4, b"");
        put(&mut message, 77, b"from a newer node");
        let message = message.freeze();
        let found = fields("a message", &message).expect("is read");
        assert_eq!(found.iter().map(|field| field.number).collect::<Vec<_>>(), [1, 9, 4, 77]);
        assert_eq!(
            found.first().and_then(|field| field.value.clone()).map(|at| &message[at]),
            Some(&b"one"[..])
        );
        let kept = without("a message", &message, &[9]).expect("is cut");
        assert_eq!(fields("kept", &kept).expect("is read").len(), 3);
        assert!(kept.ends_with(b"from a newer node"));
        assert_eq!(without("a message", &message, &[5]).expect("is cut"), message);
    }

    #[test]
    fn a_field_is_set_where_it_belongs_and_fields_change_places() {
        let message = |fields: &[(u32, &[u8])]| {
            let mut message = BytesMut::new();
            fields.iter().for_each(|(number, value)| put(&mut message, *number, value));
            message.freeze()
        };
        let set = |before: &[(u32, &[u8])]| with("a message", &message(before), 6, b"id").expect("is read");
        let whole = message(&[(4, b"b"), (4, b"a"), (6, b"id"), (9, b"x")]);
        assert_eq!(set(&[(4, b"b"), (4, b"a"), (6, b"00"), (9, b"x")]), whole);
        assert_eq!(set(&[(4, b"b"), (4, b"a"), (9, b"x")]), whole);
        assert_eq!(set(&[(4, b"b")]), message(&[(4, b"b"), (6, b"id")]));
        let sorted = in_order("a message", &whole, 4, &[1, 0]).expect("is read");
        assert_eq!(sorted, message(&[(4, b"a"), (4, b"b"), (6, b"id"), (9, b"x")]));
        assert_eq!(in_order("a message", &whole, 4, &[0, 1]).expect("is read"), whole);
    }

    #[test]
    fn what_ends_too_early_is_refused() {
        for bytes in [
            &[0x0a, 0x05, 1][..],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x80],
            &[0x0b],
        ] {
            assert!(fields("bytes", bytes).is_err(), "{bytes:?}");
        }
    }
}
