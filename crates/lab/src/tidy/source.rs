//! A Rust file split into its code and its comments, so that a check sees only what it is about.
//!
//! Both views have as many lines as the file and the same columns; what does not belong to a view is blanks. This is a
//! scanner for comments, strings and characters, not a parser: it needs no dependency and reads a megabyte in
//! milliseconds.

use std::ops::Range;

/// One Rust file.
pub struct Source {
    /// Path from the root of the tree, with `/`.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// Without comments and without what stands inside string and character literals.
    pub code: String,
    /// Comments only.
    pub comments: String,
    test_lines: Vec<Range<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

impl Source {
    /// Splits `text`.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let parts = classify(text.as_bytes());
        let view = |wanted: Part| {
            let bytes = text.bytes().zip(&parts);
            let kept = bytes.map(|(byte, part)| if *part == wanted || byte == b'\n' { byte } else { b' ' });
            String::from_utf8_lossy(&kept.collect::<Vec<u8>>()).into_owned()
        };
        let (code, comments) = (view(Part::Code), view(Part::Comment));
        let test_lines = if path.split('/').any(|part| part == "tests" || part == "tests.rs") {
            vec![1..usize::MAX; 1]
        } else {
            test_modules(&code)
        };
        Self { path, text, code, comments, test_lines }
    }

    /// Whether line `line` (from 1) is test code: in a `tests` folder or `tests.rs`, or inside `#[cfg(test)] mod`.
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.iter().any(|lines| lines.contains(&line))
    }
}

/// Whether `line` contains `word` with no letter, digit or `_` beside it (where `word` itself begins or ends with one).
pub fn contains_word(line: &str, word: &str) -> bool {
    let is_word = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let (bytes, sought) = (line.as_bytes(), word.as_bytes());
    line.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).map(|before| bytes[before]);
        let after = bytes.get(at + word.len()).copied();
        let joined_before = is_word(sought.first().copied()) && is_word(before);
        let joined_after = is_word(sought.last().copied()) && is_word(after);
        !joined_before && !joined_after
    })
}

/// The line, from 1, of byte `at`.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The end of the block that opens with the first `{` at or after `from` in `code`: the place after its `}`. `None` if
/// a `;` at the same depth comes first, or nothing closes it.
pub fn block_end(code: &str, from: usize) -> Option<usize> {
    let (mut braces, mut parens) = (0usize, 0usize);
    for (offset, byte) in code.as_bytes()[from..].iter().enumerate() {
        match byte {
            b'(' | b'[' => parens += 1,
            b')' | b']' => parens = parens.saturating_sub(1),
            b'{' => braces += 1,
            b'}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 {
                    return Some(from + offset + 1);
                }
            }
            b';' if braces == 0 && parens == 0 => return None,
            _ => {}
        }
    }
    None
}

fn test_modules(code: &str) -> Vec<Range<usize>> {
    let starts = code.match_indices("#[cfg(test)]").map(|(at, found)| (at, at + found.len()));
    let blocks =
        starts.filter_map(|(at, after)| Some(line_of(code, at)..line_of(code, block_end(code, after)?) + 1));
    blocks.collect()
}

fn classify(text: &[u8]) -> Vec<Part> {
    let mut parts = vec![Part::Code; text.len()];
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (len, part) = if rest.starts_with(b"//") {
            (rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), Part::Comment)
        } else if rest.starts_with(b"/*") {
            (block_comment_len(rest), Part::Comment)
        } else if let Some(len) = raw_string_len(rest, at.checked_sub(1).map(|before| text[before])) {
            (len, Part::Literal)
        } else if rest[0] == b'"' {
            (quoted_len(rest, b'"'), Part::Literal)
        } else if rest[0] == b'\'' {
            match char_len(rest) {
                1 => (1, Part::Code),
                len => (len, Part::Literal),
            }
        } else {
            (1, Part::Code)
        };
        parts[at..at + len].fill(part);
        at += len;
    }
    parts
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn raw_string_len(rest: &[u8], before: Option<u8>) -> Option<usize> {
    if before.is_some_and(|byte| byte.is_ascii_alphanumeric() && byte != b'b' && byte != b'c' || byte == b'_')
    {
        return None;
    }
    let hashes = rest.strip_prefix(b"r")?.iter().take_while(|byte| **byte == b'#').count();
    let body = rest.get(1 + hashes..)?.strip_prefix(b"\"")?;
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let closing = body.windows(end.len()).position(|window| window == end);
    Some(closing.map_or(rest.len(), |at| 2 + hashes + at + end.len()))
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A character literal's length, or 1 for a lifetime's or label's quote.
fn char_len(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return quoted_len(rest, b'\'');
    }
    let width = match rest.get(1) {
        Some(byte) if byte.is_ascii() => 1,
        Some(byte) => byte.leading_ones() as usize,
        None => return 1,
    };
    if rest.get(1 + width) == Some(&b'\'') { 2 + width } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let source = Source::new(
            "a.rs",
            "let a = \"// no\"; // yes\nlet r = r#\"un\"safe\"#; /* a /* b */ c */ let c = '\"';\n",
        );
        assert_eq!(source.code.trim_end().lines().count(), 2);
        assert!(!source.code.contains("no") && !source.code.contains("yes") && !source.code.contains("safe"));
        assert!(source.code.contains("let c ="));
        assert!(source.comments.contains("// yes") && source.comments.contains("/* a /* b */ c */"));
    }

    #[test]
    fn a_lifetime_does_not_open_a_literal() {
        let source = Source::new("a.rs", "fn f<'a>(x: &'a str) -> char { '\\'' } // end\n");
        assert!(source.code.contains("fn f<'a>(x: &'a str) -> char {"));
        assert!(source.code.contains('}') && !source.code.contains("end"));
    }

    #[test]
    fn words_end_at_their_borders() {
        assert!(contains_word("unsafe { }", "unsafe"));
        assert!(!contains_word("deny(unsafe_code)", "unsafe"));
        assert!(contains_word("use std::fs::File;", "std::fs"));
        assert!(!contains_word("use std::fsx;", "std::fs"));
    }

    #[test]
    fn test_modules_and_test_folders_are_told_from_the_rest() {
        let source =
            Source::new("src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        let lines: Vec<bool> = (1..=6).map(|line| source.is_test(line)).collect();
        assert_eq!(lines, [false, true, true, true, true, false]);
        assert!(Source::new("crates/x/tests/it/main.rs", "fn a() {}\n").is_test(1));
    }
}
