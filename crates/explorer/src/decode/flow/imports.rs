//! Which contracts a Cadence script imports.
//!
//! Imports stand before everything else: `import A, B as C from 0x1`, `import 0x1` (all of an account's), and, in a place that no chain
//! resolves, `import "A"` and `import Crypto`. Strangers write scripts: comments may hide anything, and nothing but the imports has to
//! make sense.

use std::collections::BTreeSet;

use cairn_flow::FlowAddress;

use super::MAX_NAME_BYTES;

/// The most imports of one script that are read.
pub const MAX_IMPORTS: usize = 1_000;

/// The contracts that a script imports, by account and name; the name is empty where it imports all of an account's.
pub fn imports(script: &[u8]) -> BTreeSet<(FlowAddress, String)> {
    let mut found = BTreeSet::new();
    let mut tokens = Tokens { rest: script }.peekable();
    while let Some(token) = tokens.next() {
        match token {
            Token::Word(b"import") => {}
            // Pragmas may stand among imports; anything else ends them.
            Token::Word(_) => break,
            Token::Other => continue,
        }
        let mut names: Vec<&[u8]> = Vec::new();
        while let Some(Token::Word(word)) = tokens.peek().copied() {
            if word == b"import" {
                break;
            }
            tokens.next();
            match word {
                b"from" => continue,
                b"as" => {
                    tokens.next();
                }
                word if word.starts_with(b"0x") || word.starts_with(b"0X") => {
                    let address = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
                    let Some(address) = address else { break };
                    if names.is_empty() {
                        found.insert((address, String::new()));
                    }
                    found.extend(
                        names.drain(..).map(|name| (address, String::from_utf8_lossy(name).into_owned())),
                    );
                    break;
                }
                word if names.len() < MAX_IMPORTS && word.len() <= MAX_NAME_BYTES => names.push(word),
                _ => {}
            }
            if let Some(Token::Other) = tokens.peek() {
                // A comma, or the end of what makes sense.
                tokens.next();
            }
        }
        if found.len() >= MAX_IMPORTS {
            break;
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'s> {
    /// Letters, digits and underscores.
    Word(&'s [u8]),
    /// Any other character, or a string.
    Other,
}

struct Tokens<'s> {
    rest: &'s [u8],
}

impl<'s> Tokens<'s> {
    /// Skips blanks and comments; block comments nest.
    fn skip(&mut self) {
        loop {
            match self.rest {
                [blank, rest @ ..] if blank.is_ascii_whitespace() => self.rest = rest,
                [b'/', b'/', rest @ ..] => {
                    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                    self.rest = &rest[end..];
                }
                [b'/', b'*', rest @ ..] => {
                    let mut depth = 1usize;
                    let mut rest = rest;
                    while depth > 0 {
                        rest = match rest {
                            [] => break,
                            [b'/', b'*', rest @ ..] => {
                                depth += 1;
                                rest
                            }
                            [b'*', b'/', rest @ ..] => {
                                depth -= 1;
                                rest
                            }
                            [_, rest @ ..] => rest,
                        };
                    }
                    self.rest = rest;
                }
                _ => return,
            }
        }
    }
}

impl<'s> Iterator for Tokens<'s> {
    type Item = Token<'s>;

    fn next(&mut self) -> Option<Token<'s>> {
        self.skip();
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let length = self.rest.iter().position(|byte| !is_word(byte)).unwrap_or(self.rest.len());
        if length > 0 {
            let (word, rest) = self.rest.split_at(length);
            self.rest = rest;
            return Some(Token::Word(word));
        }
        let (first, mut rest) = self.rest.split_first()?;
        if *first == b'"' {
            let mut escaped = false;
            let end = rest.iter().position(|byte| {
                let ends = *byte == b'"' && !escaped;
                escaped = *byte == b'\\' && !escaped;
                ends
            });
            rest = end.map_or(&[], |end| &rest[end + 1..]);
        }
        if *first == b'#' {
            // A pragma, to the end of its line.
            rest = rest.iter().position(|byte| *byte == b'\n').map_or(&[], |end| &rest[end..]);
        }
        self.rest = rest;
        Some(Token::Other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(script: &str) -> Vec<String> {
        imports(script.as_bytes()).into_iter().map(|(address, name)| format!("{address}.{name}")).collect()
    }

    #[test]
    fn imports_of_every_form_are_read() {
        let script = r#"
            #allowAccountLinking
            // import Hidden from 0x9
            /* import Hidden /* nested */ from 0x9 */
            import A, B from 0x01
            import C as D from 0xe467b9dd11fa00df
            import 0x2
            import "FungibleToken"
            import Crypto
            import E from /* here */ 0x3; import F
                from 0x4
            transaction { execute { log("import G from 0x5") } }
            import Late from 0x6
        "#;
        let zeros = "0x000000000000000";
        let want = [
            format!("{zeros}1.A"),
            format!("{zeros}1.B"),
            format!("{zeros}2."),
            format!("{zeros}3.E"),
            format!("{zeros}4.F"),
            "0xe467b9dd11fa00df.C".into(),
        ];
        assert_eq!(told(script), want);
    }

    #[test]
    fn what_makes_no_sense_imports_nothing() {
        for script in [
            "",
            "import",
            "import A from",
            "import from from 0x",
            "import A from 0xzz",
            "/*",
            "\"",
            "import ,",
        ] {
            assert_eq!(told(script), [""; 0], "{script}");
        }
        assert_eq!(imports(&[0xff, 0xfe, b'i']), BTreeSet::new());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(script in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = imports(&script);
            let _ = imports(&[b"import A from 0x1 ".as_slice(), &script].concat());
        }
    }
}
