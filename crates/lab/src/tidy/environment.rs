//! The outside world is reached through `Env` alone; nothing iterates in an order that changes from run to run.

use super::source::contains_word;
use super::tree::{Finding, Tree};

/// Words that name the outside world.
const OUTSIDE: &[&str] = &[
    "std::fs",
    "std::thread",
    "std::process",
    "std::os",
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "rustix",
    "libc",
    "tokio",
    "rand",
];

/// Who may name it: path prefix, words (empty: all), reason.
const OUTSIDE_ALLOWED: &[(&str, &[&str], &str)] = &[
    ("crates/env/src/real/", &[], "it is the door"),
    ("crates/env/src/task/", &["std::thread"], "its tests wake a task from another thread"),
    ("crates/lab/", &[], "it judges the system from outside"),
    (
        "crates/ithaca/src/",
        &["std::fs", "std::process", "std::thread"],
        "the program: its arguments' files, its exit code, one thread a node",
    ),
    ("crates/ithaca/tests/", &[], "it starts the real program and kills it"),
    ("crates/env/tests/", &[], "it tests the door"),
    ("crates/volume/examples/", &["std::process"], "a program: its exit code"),
    ("crates/object/examples/", &["std::process"], "the same"),
];

/// Who may use unordered collections.
const UNORDERED_ALLOWED: &[(&str, &str)] = &[
    ("crates/env/src/real/", "nothing there is iterated, and nothing there is simulated"),
    ("crates/lab/src/bare/", "it is not simulated"),
    ("crates/lab/src/bench/memory.rs", "it is what is measured, and nothing iterates over it"),
    ("crates/object/src/in_order/unordered.rs", "for tests alone: users have them in their types"),
];

/// Who may use `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &["crates/env/src/real/", "crates/env/src/drive/page_buf.rs"];

/// Only env's real side names files, sockets, threads, clocks and randomness of the system.
pub fn outside_world(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let allowed = OUTSIDE_ALLOWED.iter().find(|(prefix, ..)| source.path.starts_with(prefix));
        for (number, line) in source.code.lines().enumerate() {
            for word in OUTSIDE.iter().filter(|word| contains_word(line, word)) {
                if allowed.is_some_and(|(_, words, _)| words.is_empty() || words.contains(word)) {
                    continue;
                }
                let what = format!("`{word}` outside env's real side: take an Env");
                findings.push(Finding { path: source.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

/// No `HashMap` or `HashSet` where their order could reach a decision or a trace.
pub fn unordered_collections(tree: &Tree) -> Vec<Finding> {
    let judged = tree.sources.iter();
    let judged =
        judged.filter(|source| !UNORDERED_ALLOWED.iter().any(|(prefix, _)| source.path.starts_with(prefix)));
    lines_with(judged, &["HashMap", "HashSet"], "has no stable order: use BTreeMap, BTreeSet or Vec")
}

/// `unsafe` only where the system is called and where pages are viewed as bytes.
pub fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let judged = tree.sources.iter();
    let judged = judged.filter(|source| !UNSAFE_ALLOWED.iter().any(|prefix| source.path.starts_with(prefix)));
    lines_with(judged, &["unsafe"], "outside env's real side")
}

fn lines_with<'a>(
    sources: impl Iterator<Item = &'a super::source::Source>,
    words: &[&str],
    what: &str,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for (number, line) in source.code.lines().enumerate() {
            for word in words.iter().filter(|word| contains_word(line, word)) {
                let what = format!("`{word}` {what}");
                findings.push(Finding { path: source.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_opened_outside_the_real_side_is_found() {
        let text = "//! A.\nuse std::net::SocketAddr;\nlet f = std::fs::read(path);\n// std::fs in words\n";
        let findings = outside_world(&Tree::of(&[("crates/chain/src/a.rs", text)]));
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("crates/chain/src/a.rs", 3));
        assert_eq!(outside_world(&Tree::of(&[("crates/env/src/real/a.rs", text)])), []);
    }

    #[test]
    fn the_program_may_read_a_file_but_not_a_clock() {
        let tree = Tree::of(&[("crates/ithaca/src/a.rs", "std::fs::read(path);\nInstant::now();\n")]);
        let findings = outside_world(&tree);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_hash_map_in_a_core_is_found() {
        let tree = Tree::of(&[("crates/log/src/unit.rs", "use std::collections::{BTreeMap, HashMap};\n")]);
        assert_eq!(unordered_collections(&tree).len(), 1);
    }

    #[test]
    fn unsafe_outside_env_is_found() {
        let tree = Tree::of(&[("crates/log/src/a.rs", "#![deny(unsafe_code)]\nunsafe { f() }\n")]);
        assert_eq!(unsafe_code(&tree).iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
        assert_eq!(unsafe_code(&Tree::of(&[("crates/env/src/drive/page_buf.rs", "unsafe { f() }\n")])), []);
    }
}
