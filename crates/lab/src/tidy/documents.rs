//! Documents: their links lead somewhere, decisions are listed, formats have golden bytes.

use super::tree::{Finding, Tree};

/// Every relative link in a document at the root or below docs/ names a file or folder of the tree.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in documents(tree) {
        for (line, target) in links_of(text) {
            let resolved = resolve(path, &target);
            if !resolved.is_empty() && !tree.has(&resolved) {
                findings.push(Finding {
                    path: path.clone(),
                    line,
                    what: format!("link to `{target}`, which is not there"),
                });
            }
        }
    }
    findings
}

/// Every decision record is linked from docs/decisions/README.md.
pub fn decisions(tree: &Tree) -> Vec<Finding> {
    let folder = "docs/decisions/";
    let index =
        tree.texts.iter().find(|(path, _)| path == "docs/decisions/README.md").map_or("", |(_, text)| text);
    let records = tree.texts.iter().filter_map(|(path, _)| path.strip_prefix(folder));
    let unlisted = records.filter(|name| *name != "README.md" && !index.contains(*name));
    let what = "is not listed in docs/decisions/README.md";
    unlisted.map(|name| Finding { path: format!("{folder}{name}"), line: 1, what: what.into() }).collect()
}

/// Every page of docs/format links to golden bytes: a file below a `golden` folder, which a test compares.
pub fn golden_bytes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in documents(tree) {
        if !path.starts_with("docs/format/") || path.ends_with("/README.md") {
            continue;
        }
        let golden = |target: &String| target.contains("/golden/") && tree.has(&resolve(path, target));
        if !links_of(text).iter().any(|(_, target)| golden(target)) {
            let what = "describes a format and links to no golden bytes (a file below a `golden` folder)";
            findings.push(Finding { path: path.clone(), line: 1, what: what.into() });
        }
    }
    findings
}

fn documents(tree: &Tree) -> impl Iterator<Item = &(String, String)> {
    tree.texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/')))
}

/// Line and target of every relative link, without its anchor; code blocks are left out.
fn links_of(text: &str) -> Vec<(usize, String)> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for (at, opening) in line.match_indices("](") {
            let rest = &line[at + opening.len()..];
            let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                found.push((number + 1, target.to_string()));
            }
        }
    }
    found
}

/// `target` as a path from the root, seen from the document `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = if target.starts_with('/') { Vec::new() } else { from.split('/').collect() };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nowhere_is_found() {
        let text = "[a](../README.md) [b](gone.md#part)\n```\n[c](no.md)\n```\n[d](https://x.invalid/y)\n[e](#here)\n";
        let tree =
            Tree::of(&[("docs/ARCHITECTURE.md", text), ("README.md", "[docs](docs/) [f](docs/x.md)\n")]);
        let found: Vec<String> = links(&tree).iter().map(Finding::to_string).collect();
        assert_eq!(
            found,
            [
                "docs/ARCHITECTURE.md:1: link to `gone.md`, which is not there",
                "README.md:1: link to `docs/x.md`, which is not there"
            ]
        );
    }

    #[test]
    fn a_decision_that_is_not_listed_is_found() {
        let tree = Tree::of(&[
            ("docs/decisions/README.md", "- [1](0001-a.md)\n"),
            ("docs/decisions/0001-a.md", ""),
            ("docs/decisions/0002-b.md", ""),
        ]);
        let found: Vec<String> = decisions(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["docs/decisions/0002-b.md"]);
    }

    #[test]
    fn a_format_without_golden_bytes_is_found() {
        let tree = Tree::of(&[
            ("docs/format/frame.md", "[bytes](../../crates/log/testdata/golden/frame.hex)\n"),
            ("crates/log/testdata/golden/frame.hex", ""),
            ("docs/format/group.md", "[bytes](../../crates/chain/testdata/golden/group.hex)\n"),
        ]);
        let found: Vec<String> = golden_bytes(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["docs/format/group.md"]);
    }
}
