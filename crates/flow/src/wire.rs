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
