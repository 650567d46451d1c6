//! Names and symbols that strangers chose, as text that tables, JSON and terminals can carry.
//!
//! What is shown is never what was sent byte for byte: NUL bytes (which PostgreSQL's `text` can't hold), broken UTF-8, control
//! characters, characters that turn the direction of text or can't be seen, and runs of blanks are taken out, and the length is
//! limited. Two names that look alike may still be different tokens: the address is what identifies one.

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

/// Text that is safe to store and to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CleanText {
    /// The text; may be empty.
    pub text: String,
    /// Whether anything but blanks at the ends was changed or cut off.
    pub changed: bool,
}

/// Cleans bytes that should have been UTF-8. What isn't becomes U+FFFD.
pub fn clean_bytes(bytes: &[u8], limit: TextLimit) -> CleanText {
    // One byte gives one character at most, and nothing that is cut off here could come back within the limit but for what is taken
    // out: bounded at sixteen times the limit, so that a megabyte of NULs costs nothing.
    let window = &bytes[..bytes.len().min(limit.bytes.saturating_mul(16))];
    let text = String::from_utf8_lossy(window);
    let mut cleaned = clean(&text, limit);
    cleaned.changed |= window.len() < bytes.len() || matches!(text, std::borrow::Cow::Owned(_));
    cleaned
}

/// Cleans text: takes out what can't be seen or does harm, makes every run of blanks one space, trims, and cuts at the limit between two
/// characters.
pub fn clean(text: &str, limit: TextLimit) -> CleanText {
    let mut out = String::with_capacity(text.len().min(limit.bytes));
    let (mut chars, mut changed, mut blank) = (0, false, false);
    for c in text.trim().chars() {
        if c.is_whitespace() {
            changed |= blank || c != ' ';
            blank = true;
            continue;
        }
        if is_harmful(c) {
            changed = true;
            continue;
        }
        let pending = usize::from(blank && !out.is_empty());
        if chars + pending + 1 > limit.chars || out.len() + pending + c.len_utf8() > limit.bytes {
            changed = true;
            break;
        }
        if pending == 1 {
            out.push(' ');
        }
        out.push(c);
        chars += pending + 1;
        blank = false;
    }
    CleanText { text: out, changed }
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
        clean(text, TextLimit::SYMBOL).text
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in ["USD Coin", "₮ether", "猫", "Ξ", "🚀 Club", "ĀB"] {
            assert_eq!(clean(name, TextLimit::NAME), CleanText { text: name.into(), changed: false });
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
        assert!(clean("US\0DC", TextLimit::SYMBOL).changed);
        assert!(!clean("  USDC  ", TextLimit::SYMBOL).changed);
    }

    #[test]
    fn broken_utf8_is_marked_and_long_text_is_cut_between_characters() {
        assert_eq!(clean_bytes(b"A\xff\xfeB", TextLimit::SYMBOL).text, "A\u{FFFD}\u{FFFD}B");
        let long = clean_bytes("猫".repeat(10_000).as_bytes(), TextLimit::SYMBOL);
        assert_eq!((long.text.chars().count(), long.changed), (64, true));
        assert_eq!(clean_bytes(&vec![0; 1 << 20], TextLimit::SYMBOL).text, "");
        assert_eq!(clean("ab", TextLimit { chars: 5, bytes: 1 }).text, "a");
    }

    proptest! {
        #[test]
        fn cleaned_text_is_within_its_limits_and_clean(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let limit = TextLimit { chars: 40, bytes: 90 };
            let cleaned = clean_bytes(&bytes, limit);
            prop_assert!(cleaned.text.len() <= limit.bytes && cleaned.text.chars().count() <= limit.chars);
            prop_assert!(!cleaned.text.chars().any(is_harmful));
            let again = clean(&cleaned.text, limit);
            prop_assert_eq!(again, CleanText { text: cleaned.text, changed: false });
        }
    }
}
