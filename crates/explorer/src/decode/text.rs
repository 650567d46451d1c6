//! Names and symbols that strangers chose, as text that tables, JSON and terminals can carry.
//!
//! What is shown is never what was sent byte for byte: NUL bytes (which PostgreSQL's `text` can't hold), broken UTF-8, control
//! characters, characters that turn the direction of text or can't be seen, and runs of blanks are taken out, and the length is
//! limited. Two names that look alike may still be different tokens: the address is what identifies one.

use bytes::Bytes;

/// The most that a cleaned text holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextLimit {
    /// In Unicode scalar values.
    pub chars: usize,
    /// In bytes of UTF-8.
    pub bytes: usize,
}

impl TextLimit {
    /// Of a token's name.
    pub const NAME: TextLimit = TextLimit { chars: 256, bytes: 1024 };
    /// Of a token's symbol.
    pub const SYMBOL: TextLimit = TextLimit { chars: 64, bytes: 256 };
    /// Of a token's URI.
    pub const URI: TextLimit = TextLimit { chars: 2048, bytes: 8192 };
}

/// What a stranger said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said<T> {
    /// What is made of it; `None` where nothing can be.
    pub value: Option<T>,
    /// The bytes that were said, bounded, where the value isn't all that they say: of a text that was cleaned or cut, and of what can't be read.
    pub bytes: Option<Bytes>,
}

impl<T> Default for Said<T> {
    fn default() -> Self {
        Said { value: None, bytes: None }
    }
}

impl<T> Said<T> {
    /// Bytes that can't be read; none are nothing.
    pub fn unreadable(bytes: &[u8], limit: TextLimit) -> Self {
        Said { value: None, bytes: Some(cut(bytes, limit)).filter(|bytes| !bytes.is_empty()) }
    }

    /// Whether anything was said, readable or not.
    pub fn is_something(&self) -> bool {
        self.value.is_some() || self.bytes.is_some()
    }
}

fn cut(bytes: &[u8], limit: TextLimit) -> Bytes {
    Bytes::copy_from_slice(&bytes[..bytes.len().min(limit.bytes)])
}

/// Bytes that should have been UTF-8, as text that is safe to store and to show. What isn't UTF-8 becomes U+FFFD. An empty text is none.
pub fn said(bytes: &[u8], limit: TextLimit) -> Said<String> {
    // One byte gives one character at most, and nothing that is cut off here could come back within the limit but for what is taken
    // out: bounded at sixteen times the limit, so that a megabyte of NULs costs nothing.
    let window = &bytes[..bytes.len().min(limit.bytes.saturating_mul(16))];
    let text = clean(&String::from_utf8_lossy(window), limit);
    let bytes = (text.as_bytes() != bytes).then(|| cut(bytes, limit));
    Said { value: Some(text).filter(|text| !text.is_empty()), bytes }
}

/// Cleans text: takes out what can't be seen or does harm, makes every run of blanks one space, trims, and cuts at the limit between two
/// characters.
pub fn clean(text: &str, limit: TextLimit) -> String {
    let mut out = String::with_capacity(text.len().min(limit.bytes));
    let (mut chars, mut blank) = (0, false);
    for c in text.trim().chars() {
        if c.is_whitespace() {
            blank = true;
            continue;
        }
        if is_harmful(c) {
            continue;
        }
        let pending = usize::from(blank && !out.is_empty());
        if chars + pending + 1 > limit.chars || out.len() + pending + c.len_utf8() > limit.bytes {
            break;
        }
        if pending == 1 {
            out.push(' ');
        }
        out.push(c);
        chars += pending + 1;
        blank = false;
    }
    out
}

/// Whether a character can't be shown or changes how others are shown: controls, the directional and invisible format characters
/// (Unicode `Cf` and its kin, joiners included, though some emoji fall apart without them), tags, variation selectors, private use and
/// noncharacters.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{17B4}' | '\u{17B5}'
            | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FEFF}' | '\u{FFA0}'
            | '\u{FE00}'..='\u{FE0F}' | '\u{FFF0}'..='\u{FFFB}' | '\u{FFFE}' | '\u{FFFF}'
            | '\u{E000}'..='\u{F8FF}' | '\u{FDD0}'..='\u{FDEF}'
            | '\u{1BCA0}'..='\u{1BCA3}' | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}' | '\u{F0000}'..='\u{10FFFF}')
        // The last two of every plane are noncharacters.
        || (c as u32) & 0xFFFE == 0xFFFE
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        clean(text, TextLimit::SYMBOL)
    }

    /// The bytes that are kept beside what is shown.
    fn kept(bytes: &[u8]) -> Option<Vec<u8>> {
        said(bytes, TextLimit::SYMBOL).bytes.map(|bytes| bytes.to_vec())
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in ["USD Coin", "₮ether", "猫", "Ξ", "🚀 Club", "ĀB"] {
            let said = said(name.as_bytes(), TextLimit::NAME);
            assert_eq!(said, Said { value: Some(name.into()), bytes: None });
        }
    }

    #[test]
    fn hostile_characters_are_taken_out() {
        assert_eq!(shown("US\0DC"), "USDC");
        assert_eq!(shown("\u{202E}CDSU\u{202C}"), "CDSU");
        assert_eq!(shown("U\u{200B}S\u{2060}D\u{FEFF}C"), "USDC");
        assert_eq!(shown("U\u{200D}S\u{FE0F}DC"), "USDC");
        assert_eq!(shown("a\r\n\t b"), "a b");
        assert_eq!(shown("\u{1b}[31mred"), "[31mred");
        assert_eq!(shown("\u{E0041}\u{E000}x"), "x");
        assert_eq!(shown(" \u{3000} x \u{a0}"), "x");
    }

    #[test]
    fn the_bytes_of_a_text_are_kept_where_another_is_shown() {
        assert_eq!(kept(b"USDC"), None);
        for altered in [&b"US\0DC"[..], b"USDC ", b"USD  C", b"\xff", "US\u{200b}DC".as_bytes(), b" "] {
            assert_eq!(kept(altered).as_deref(), Some(altered));
        }
        assert_eq!(said(b" \0", TextLimit::SYMBOL).value, None);
        assert_eq!(said(b"", TextLimit::SYMBOL), Said::default());
        assert_eq!(kept(&[b'x'; 10_000]), Some(vec![b'x'; TextLimit::SYMBOL.bytes]));
    }

    #[test]
    fn broken_utf8_is_marked_and_long_text_is_cut_between_characters() {
        let shown = |bytes: &[u8]| said(bytes, TextLimit::SYMBOL).value;
        assert_eq!(shown(b"A\xff\xfeB").as_deref(), Some("A\u{FFFD}\u{FFFD}B"));
        assert_eq!(shown("猫".repeat(10_000).as_bytes()), Some("猫".repeat(64)));
        assert_eq!(shown(&vec![0; 1 << 20]), None);
        assert_eq!(clean("ab", TextLimit { chars: 5, bytes: 1 }), "a");
    }

    proptest! {
        #[test]
        fn cleaned_text_is_within_its_limits_and_clean(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let limit = TextLimit { chars: 40, bytes: 90 };
            let said = said(&bytes, limit);
            let text = said.value.unwrap_or_default();
            prop_assert!(text.len() <= limit.bytes && text.chars().count() <= limit.chars);
            prop_assert!(said.bytes.is_none_or(|bytes| bytes.len() <= limit.bytes));
            prop_assert!(!text.chars().any(is_harmful));
            prop_assert_eq!(clean(&text, limit), text);
        }
    }
}
