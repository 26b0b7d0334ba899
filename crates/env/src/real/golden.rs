//! Expected outputs of tests, kept in files beside them.

use std::fmt::Write;
use std::path::Path;

/// `bytes` in hexadecimal: words of four, lines of 32. A line that repeats is written once, with how often. For tests only.
pub fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    let mut lines = bytes.chunks(32).peekable();
    while let Some(line) = lines.next() {
        let times = 1 + std::iter::from_fn(|| lines.next_if_eq(&line)).count();
        out.push(' ');
        for word in line.chunks(4) {
            out.push(' ');
            word.iter().for_each(|byte| _ = write!(out, "{byte:02x}"));
        }
        if times > 1 {
            let _ = write!(out, " x{times}");
        }
        out.push('\n');
    }
    out
}

/// Compares `actual` with the file `path` of a crate's `testdata/`. With `REWRITE=1` in the environment the file becomes
/// `actual`; the change is then reviewed as a diff.
///
/// Panics if they differ, with the first line that does. For tests only.
#[track_caller]
pub fn check(path: impl AsRef<Path>, actual: &str) {
    let path = path.as_ref();
    if std::env::var_os("REWRITE").is_some_and(|value| value == "1") {
        std::fs::write(path, actual).expect("the expected output can be written");
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let differs = expected.lines().zip(actual.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or(expected.lines().count().min(actual.lines().count()));
    assert!(
        expected == actual,
        "{}:{}: expected {:?}, found {:?}; REWRITE=1 accepts the change; all that was found:\n{actual}",
        path.display(),
        line + 1,
        expected.lines().nth(line),
        actual.lines().nth(line),
    );
}
