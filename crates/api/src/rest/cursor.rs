//! Cursors: where a list goes on, and what it was read under.
//!
//! A cursor is opaque to callers: base64url of a version, the list and its filters (as a digest), the newest reorg that was known, the anchor, the
//! full place of the last row in the list's order (A01), and a MAC under a key of the store's own, so that a cursor of another
//! store, or one that somebody made up, is refused (A06). The place is compared, never looked up, so it survives deleted rows.
//!
//! The **anchor** is the newest block that anything on this page or an earlier one depends on, the place of a list by height among it: a page may have examined
//! blocks of which it shows nothing. Where it is no longer canonical, what was shown
//! before is no longer so, and the list says that instead of going on (A03).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_core::{BlockId, BlockRef, Height};
use cairn_store::derived::{Key, Value};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::problem::Problem;

const VERSION: u8 = 1;
const MAC_BYTES: usize = 12;
const BINDING_BYTES: usize = 8;
/// The longest cursor that is looked at, in characters.
pub(crate) const MAX_CURSOR_CHARS: usize = 1_024;

/// Which list, with which filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding([u8; BINDING_BYTES]);

impl Binding {
    /// Of a list's name and all that decides about its rows and their order, in a fixed order.
    pub(crate) fn new(list: &str, filters: &[&str]) -> Binding {
        let mut hash = Sha256::new();
        for part in std::iter::once(&list).chain(filters) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        let digest = hash.finalize();
        let mut binding = [0; BINDING_BYTES];
        binding.copy_from_slice(&digest[..BINDING_BYTES]);
        Binding(binding)
    }
}

/// A cursor, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The newest entry of the reorg log when the page was read.
    pub reorg_id: u64,
    /// The newest block that what was shown, or passed over, depends on; `None` while there is none.
    pub anchor: Option<BlockRef>,
    /// The place in the list after which it goes on; at least one value. Fewer than the order has: after all rows that begin so.
    pub place: Vec<Value>,
}

/// Seals and opens the cursors of one store.
pub(crate) struct CursorKey([u8; 32]);

impl CursorKey {
    /// The key of the raw store with this uuid.
    pub(crate) fn of_store(uuid: &[u8; 16]) -> CursorKey {
        CursorKey(Sha256::new().chain_update(b"cairn REST cursor 1").chain_update(uuid).finalize().into())
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        // Nested hashing as RFC 2104 has it; a key of 32 bytes always fits.
        match Hmac::<Sha256>::new_from_slice(&self.0) {
            Ok(mac) => mac.chain_update(bytes),
            Err(_) => unreachable!("a MAC takes keys of any length"),
        }
    }

    /// As text.
    pub(crate) fn seal(&self, binding: Binding, cursor: &Cursor) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&binding.0);
        bytes.extend_from_slice(&cursor.reorg_id.to_be_bytes());
        match cursor.anchor {
            None => bytes.push(0),
            Some(anchor) => {
                bytes.push(1);
                bytes.extend_from_slice(&anchor.height.get().to_be_bytes());
                bytes.extend_from_slice(anchor.id.as_bytes());
            }
        }
        bytes.extend_from_slice(&Key(cursor.place.clone()).encode());
        let mac = self.mac(&bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac[..MAC_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// From text; an error for anything that [`CursorKey::seal`] did not make for this list.
    pub(crate) fn open(&self, binding: Binding, text: &str) -> Result<Cursor, Problem> {
        let foreign = || Problem::cursor("the cursor is damaged, or is not of this server's data");
        if text.len() > MAX_CURSOR_CHARS {
            return Err(foreign());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| foreign())?;
        let at = bytes.len().checked_sub(MAC_BYTES).ok_or_else(foreign)?;
        let (bytes, mac) = bytes.split_at(at);
        self.mac(bytes).verify_truncated_left(mac).map_err(|_| foreign())?;
        let mut rest = bytes;
        if take(&mut rest, 1).ok_or_else(foreign)? != [VERSION] {
            return Err(Problem::cursor("the cursor is of another version of this server"));
        }
        if take(&mut rest, BINDING_BYTES).ok_or_else(foreign)? != binding.0 {
            return Err(Problem::cursor(
                "the cursor is of another list, or of other filters or another order",
            ));
        }
        let reorg_id = number(&mut rest).ok_or_else(foreign)?;
        let anchor = match take(&mut rest, 1).ok_or_else(foreign)? {
            [0] => None,
            [1] => {
                let height = Height(number(&mut rest).ok_or_else(foreign)?);
                let id = take(&mut rest, 32).and_then(|id| id.try_into().ok()).ok_or_else(foreign)?;
                Some(BlockRef { height, id: BlockId(id) })
            }
            _ => return Err(foreign()),
        };
        let place = Key::decode(rest).map_err(|_| foreign())?.0;
        if place.is_empty() {
            return Err(foreign());
        }
        Ok(Cursor { reorg_id, anchor, place })
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(take(rest, 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use cairn_store::derived::Value;
    use proptest::prelude::*;

    use super::super::problem::Code;
    use super::*;

    fn key() -> CursorKey {
        CursorKey::of_store(&[7; 16])
    }

    fn any_cursor() -> impl Strategy<Value = Cursor> {
        let value = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(|bytes| Value::bytes(&bytes)),
            any::<[u64; 4]>().prop_map(|limbs| Value::Amount(alloy_primitives::U256::from_limbs(limbs))),
        ];
        let anchor = proptest::option::of((any::<u64>(), any::<[u8; 32]>()));
        (any::<u64>(), anchor, proptest::collection::vec(value, 1..6)).prop_map(
            |(reorg_id, anchor, place)| {
                let anchor = anchor.map(|(height, id)| BlockRef { height: Height(height), id: BlockId(id) });
                Cursor { reorg_id, anchor, place }
            },
        )
    }

    proptest! {
        #[test]
        fn a06_cursors_come_back_and_only_where_they_belong(cursor in any_cursor()) {
            let binding = Binding::new("a list", &["a", "b"]);
            let text = key().seal(binding, &cursor);
            prop_assert_eq!(key().open(binding, &text).expect("ours"), cursor);
            for other in [Binding::new("a list", &["ab"]), Binding::new("a list", &["a", "c"]), Binding::new("other", &["a", "b"])] {
                prop_assert_eq!(key().open(other, &text).expect_err("foreign").code, Code::InvalidCursor);
            }
            prop_assert!(CursorKey::of_store(&[8; 16]).open(binding, &text).is_err());
        }

        #[test]
        fn a06_changed_and_cut_cursors_are_refused(cursor in any_cursor(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let binding = Binding::new("a list", &[]);
            let text = key().seal(binding, &cursor);
            let cut = &text[..at.index(text.len())];
            prop_assert!(key().open(binding, cut).is_err());
            let mut bytes = URL_SAFE_NO_PAD.decode(&text).expect("base64");
            let n = at.index(bytes.len());
            prop_assume!(bytes[n] != with);
            bytes[n] = with;
            prop_assert!(key().open(binding, &URL_SAFE_NO_PAD.encode(bytes)).is_err());
        }

        #[test]
        fn a06_any_text_is_refused_without_a_panic(text in any::<String>(), bytes in any::<Vec<u8>>()) {
            let binding = Binding::new("a list", &[]);
            prop_assert!(key().open(binding, &text).is_err());
            prop_assert!(key().open(binding, &URL_SAFE_NO_PAD.encode(&bytes)).is_err());
        }
    }
}
