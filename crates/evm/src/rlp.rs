//! Walking RLP without building anything: every length is checked against the bytes that are there before it is used.

use alloy_rlp::{Error, Header, Result};

/// One item: a byte string, or a list whose payload is more items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    pub list: bool,
    pub payload: &'a [u8],
    /// With its RLP header.
    pub raw: &'a [u8],
}

impl<'a> Item<'a> {
    /// The payload of a byte string.
    pub fn string(self) -> Result<&'a [u8]> {
        if self.list { Err(Error::UnexpectedList) } else { Ok(self.payload) }
    }

    /// The items of a list.
    pub fn items(self) -> Result<Items<'a>> {
        if self.list { Ok(Items(self.payload)) } else { Err(Error::UnexpectedString) }
    }
}

/// Takes the next item off `buf`.
pub(crate) fn next<'a>(buf: &mut &'a [u8]) -> Result<Item<'a>> {
    let start = *buf;
    let mut rest = start;
    let header = Header::decode(&mut rest)?;
    let header_len = start.len() - rest.len();
    let payload = rest.get(..header.payload_length).ok_or(Error::InputTooShort)?;
    let end = header_len + header.payload_length;
    let raw = start.get(..end).ok_or(Error::InputTooShort)?;
    *buf = &start[end..];
    Ok(Item { list: header.list, payload, raw })
}

/// The one item that `bytes` are.
pub(crate) fn exactly(mut bytes: &[u8]) -> Result<Item<'_>> {
    let item = next(&mut bytes)?;
    if bytes.is_empty() { Ok(item) } else { Err(Error::Custom("bytes after the end of the item")) }
}

/// The items of the list that `bytes` are.
pub(crate) fn list(bytes: &[u8]) -> Result<Items<'_>> {
    exactly(bytes)?.items()
}

/// Items one after the other. Ends after the first error.
#[derive(Debug, Clone)]
pub(crate) struct Items<'a>(pub &'a [u8]);

impl<'a> Items<'a> {
    /// The next item, which has to be there.
    pub fn required(&mut self) -> Result<Item<'a>> {
        next(&mut self.0)
    }

    /// The bytes that are left.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let item = next(&mut self.0);
        if item.is_err() {
            self.0 = &[];
        }
        Some(item)
    }
}

/// Writes the header of a list.
pub(crate) fn list_header(payload_length: usize, out: &mut Vec<u8>) {
    Header { list: true, payload_length }.encode(out);
}

/// Writes a byte string.
pub(crate) fn string(bytes: &[u8], out: &mut Vec<u8>) {
    alloy_rlp::Encodable::encode(bytes, out);
}
