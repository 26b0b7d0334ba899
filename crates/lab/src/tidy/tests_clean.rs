//! Tests that depend on luck are worse than none: no test is ignored, sleeps, or takes a port that another may hold. Nor is
//! one where nobody runs it.

use super::source::{Source, contains_word};
use super::tree::{Finding, Tree};

/// Files whose tests may name a real port, each with its reason: they only parse or print addresses.
const PORTS_ALLOWED: &[(&str, &str)] = &[
    ("crates/lab/src/tidy/tests_clean.rs", "its own bad examples"),
    ("crates/ithaca/src/cli.rs", "it parses addresses"),
    ("crates/ithaca/src/http/mod.rs", "an address that is shown, not used"),
];

/// No `#[ignore]`.
pub fn ignored(tree: &Tree) -> Vec<Finding> {
    test_lines(tree, |_, code, _| {
        code.contains("#[ignore").then(|| "an ignored test tests nothing".to_string())
    })
}

/// No test sleeps on the real clock; a simulated test waits in virtual time, a real one for an event.
pub fn sleeps(tree: &Tree) -> Vec<Finding> {
    test_lines(tree, |_, code, _| {
        let sleeps = contains_word(code, "thread::sleep") || code.contains("tokio::time::sleep");
        sleeps.then(|| "a test that sleeps: wait for what it waits for".to_string())
    })
}

/// No test listens at or connects to a port of its choice on this machine; port 0 picks a free one. Simulated addresses
/// are not loopback addresses, so that the two cannot be confused.
pub fn fixed_ports(tree: &Tree) -> Vec<Finding> {
    test_lines(tree, |source, _, text| {
        let is_allowed = PORTS_ALLOWED.iter().any(|(path, _)| *path == source.path);
        let hosts = ["127.0.0.1:", "localhost:", "0.0.0.0:", "[127, 0, 0, 1], ", "LOCALHOST, "];
        let has_port = |host: &str| {
            let ports = text.match_indices(host).map(|(at, _)| &text[at + host.len()..]);
            let mut digits =
                ports.map(|rest| rest.bytes().take_while(u8::is_ascii_digit).collect::<Vec<u8>>());
            digits.any(|digits| digits.iter().any(|digit| *digit != b'0'))
        };
        (!is_allowed && hosts.into_iter().any(has_port)).then(|| "a fixed port: ask for port 0".to_string())
    })
}

fn test_lines(tree: &Tree, check: impl Fn(&Source, &str, &str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for (number, (code, text)) in source.code.lines().zip(source.text.lines()).enumerate() {
            if !source.is_test(number + 1) {
                continue;
            }
            if let Some(what) = check(source, code, text) {
                findings.push(Finding { path: source.path.clone(), line: number + 1, what });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(check: fn(&Tree) -> Vec<Finding>, line: &str) -> usize {
        let text = format!("//! A.\n{line}\n#[cfg(test)]\nmod tests {{\n{line}\n}}\n");
        let findings = check(&Tree::of(&[("crates/log/src/a.rs", &text)]));
        assert!(findings.iter().all(|finding| finding.line == 5), "only in tests: {findings:?}");
        findings.len()
    }

    #[test]
    fn an_ignored_test_is_found() {
        assert_eq!(check(ignored, "#[ignore = \"slow\"]"), 1);
        assert_eq!(check(ignored, "// #[ignore]"), 0);
    }

    #[test]
    fn a_sleeping_test_is_found() {
        assert_eq!(check(sleeps, "std::thread::sleep(span);"), 1);
        assert_eq!(check(sleeps, "env.sleep(span).await;"), 0);
    }

    #[test]
    fn a_fixed_port_is_found_and_port_zero_is_not() {
        assert_eq!(check(fixed_ports, "listen(\"127.0.0.1:7420\");"), 1);
        assert_eq!(check(fixed_ports, "listen(([127, 0, 0, 1], 7420));"), 1);
        assert_eq!(check(fixed_ports, "listen(\"127.0.0.1:0\");"), 0);
        assert_eq!(check(fixed_ports, "connect(\"10.0.0.1:7420\");"), 0);
    }
}
