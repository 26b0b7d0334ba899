//! A stranger understands a file in one sitting: it is short, its functions fit a screen, and it says what it is.

use super::source::{block_end, line_of};
use super::tree::{Finding, Tree};

/// Lines of a file without a reason for more.
const FILE_LINES_MAX: usize = 800;
/// Lines of a file with a reason.
const FILE_LINES_HARD_MAX: usize = 1000;
/// Lines of a function, its signature included.
const FUNCTION_LINES_MAX: usize = 70;

/// Files between the two limits, each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// No file is longer than it may be.
pub fn files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let lines = source.text.lines().count();
        let has_reason = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        let limit = if has_reason { FILE_LINES_HARD_MAX } else { FILE_LINES_MAX };
        if lines > limit {
            let what = format!("{lines} lines, at most {limit}: one noun or one verb a file");
            findings.push(Finding { path: source.path.clone(), line: 1, what });
        }
    }
    findings
}

/// No function is longer than a screen.
pub fn functions(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for (at, _) in source.code.match_indices("fn ") {
            let before = source.code[..at].bytes().next_back();
            if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                continue;
            }
            let name: String =
                source.code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(end) = block_end(&source.code, at).filter(|_| !name.is_empty()) else {
                continue;
            };
            let first = line_of(&source.code, at);
            let lines = line_of(&source.code, end) - first + 1;
            if lines > FUNCTION_LINES_MAX {
                let what = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
                findings.push(Finding { path: source.path.clone(), line: first, what });
            }
        }
    }
    findings
}

/// Every file opens with `//!`.
pub fn headers(tree: &Tree) -> Vec<Finding> {
    let bare = tree.sources.iter().filter(|source| !source.text.starts_with("//!"));
    let finding = |path: &String| Finding {
        path: path.clone(),
        line: 1,
        what: "does not open with `//!`: what it is, what it promises, what it does not do".into(),
    };
    bare.map(|source| finding(&source.path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        let text = "// line\n".repeat(FILE_LINES_MAX + 1);
        assert_eq!(files(&Tree::of(&[("crates/log/src/a.rs", &text)])).len(), 1);
        assert_eq!(files(&Tree::of(&[("crates/log/src/a.rs", "//! Short.\n")])), []);
    }

    #[test]
    fn a_long_function_is_found_at_its_first_line() {
        let text =
            format!("//! A.\nfn short() {{}}\nfn long(f: fn (u8)) {{\n{}}}\n", "    f(1);\n".repeat(70));
        let findings = functions(&Tree::of(&[("crates/log/src/a.rs", &text)]));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);
        assert!(findings[0].what.starts_with("fn long has 72 lines"));
    }

    #[test]
    fn a_declaration_without_a_body_does_not_swallow_what_follows() {
        let text = format!("trait T {{\n    fn a(&self) -> [u8; 4];\n{}}}\n", "    // words\n".repeat(100));
        assert_eq!(functions(&Tree::of(&[("crates/log/src/a.rs", &text)])), []);
    }

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(headers(&Tree::of(&[("crates/log/src/a.rs", "use a;\n")])).len(), 1);
    }
}
