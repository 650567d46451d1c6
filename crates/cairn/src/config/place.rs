//! Where in a configuration file a key stands, and which key was probably meant.

use toml::de::{DeTable, DeValue};

/// How many letters may differ for a key to be a misspelt one.
const MAX_EDITS: usize = 3;

/// The line of a key in the text of a file, from 1; of the nearest section above it where the key itself isn't there. `None`: neither is.
pub(super) fn line(text: &str, path: &[&str]) -> Option<usize> {
    let file = DeTable::parse(text).ok()?;
    let mut table = file.get_ref();
    let mut at = None;
    for key in path {
        let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == key) else { break };
        at = Some(name.span().start);
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    at.map(|at| text[..at].lines().count().max(1) + usize::from(text[..at].ends_with('\n')))
}

/// Whether the file says this very key.
pub(super) fn has(text: &str, path: &[&str]) -> bool {
    let Ok(file) = DeTable::parse(text) else { return false };
    let mut table = Some(file.get_ref());
    for key in path {
        let found = table.and_then(|table| table.iter().find(|(name, _)| name.get_ref() == key));
        let Some((_, value)) = found else { return false };
        table = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        };
    }
    true
}

/// Of `known`, the key that is spelt most like `key`.
pub(super) fn nearest<'k>(key: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let all = known.into_iter().map(|name| (strsim::damerau_levenshtein(key, name), name));
    let (edits, name) = all.min()?;
    (edits <= MAX_EDITS && edits * 2 < key.len().max(name.len())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# a comment\n\n[raw]\nurl = \"x\"\n\n[chain.limits]\nmax = 3\n";

    #[test]
    fn a_key_has_a_line() {
        assert_eq!(line(FILE, &["raw", "url"]), Some(4));
        assert_eq!(line(FILE, &["raw"]), Some(3));
        assert_eq!(line(FILE, &["raw", "other"]), Some(3));
        assert_eq!(line(FILE, &["chain", "limits", "max"]), Some(7));
        assert_eq!(line(FILE, &["serve"]), None);
        assert_eq!(line("a = 1", &["a"]), Some(1));
        assert!(has(FILE, &["raw", "url"]) && !has(FILE, &["raw", "other"]) && !has(FILE, &["serve"]));
    }

    #[test]
    fn a_misspelt_key_is_recognised_and_another_word_is_not() {
        let known = ["poll_ms", "budget_mib", "from", "to"];
        assert_eq!(nearest("pol_ms", known), Some("poll_ms"));
        assert_eq!(nearest("budget_mb", known), Some("budget_mib"));
        assert_eq!(nearest("form", known), Some("from"));
        assert_eq!(nearest("colour", known), None);
    }
}
