//! Which package may use which, and how many packages come from outside.

use super::tree::{Finding, Tree};

/// Package folder and the packages of ours that it may use. A new arrow is a decision record, then a line here.
const ARROWS: &[(&str, &[&str])] = &[
    ("env", &[]),
    ("chain", &["ithaca-env"]),
    ("volume", &["ithaca-chain", "ithaca-env"]),
    ("log", &["ithaca-chain", "ithaca-env"]),
    ("object", &["ithaca-log", "ithaca-env", "ithaca-object-macros"]),
    ("object-macros", &[]),
    ("store", &["ithaca-volume", "ithaca-env"]),
    ("zk", &["ithaca-object", "ithaca-log", "ithaca-env"]),
    ("silver", &["ithaca-object", "ithaca-log", "ithaca-env"]),
    ("cmplat", &["ithaca-object", "ithaca-log", "ithaca-env"]),
];

/// Packages that may use all of ours; nobody may use them.
const TOPS: &[&str] = &["ithaca", "lab"];

/// Packages in Cargo.lock at the most, ours included.
const LOCKED_MAX: usize = 120;

/// Every dependency between our packages is an arrow of the architecture.
pub fn arrows(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        let Some(folder) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let is_top = TOPS.contains(&folder);
        let allowed = ARROWS.iter().find(|(name, _)| *name == folder).map(|(_, allowed)| *allowed);
        if allowed.is_none() && !is_top {
            let what = format!("package folder `{folder}` is not in the architecture's table");
            findings.push(Finding { path: path.clone(), line: 1, what });
            continue;
        }
        for (line, used) in our_dependencies(text) {
            let is_arrow = if is_top {
                used != "ithaca" && used != "ithaca-lab"
            } else {
                allowed.is_some_and(|allowed| allowed.contains(&used.as_str()))
            };
            if !is_arrow {
                let what = format!("`{folder}` may not use `{used}`");
                findings.push(Finding { path: path.clone(), line, what });
            }
        }
    }
    findings
}

/// The lock file stays small: what is in it is built by everyone who builds the system.
pub fn locked_packages(tree: &Tree) -> Vec<Finding> {
    let Some((path, text)) = tree.texts.iter().find(|(path, _)| path == "Cargo.lock") else {
        return vec![Finding { path: "Cargo.lock".into(), line: 1, what: "is not there".into() }];
    };
    let locked = text.lines().filter(|line| *line == "[[package]]").count();
    if locked <= LOCKED_MAX {
        return Vec::new();
    }
    vec![Finding { path: path.clone(), line: 1, what: format!("{locked} packages, at most {LOCKED_MAX}") }]
}

/// Line and name of each package of ours in any dependency table except `dev-dependencies`' use of the package itself.
fn our_dependencies(manifest: &str) -> Vec<(usize, String)> {
    let mut in_dependencies = false;
    let mut found = Vec::new();
    for (number, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if name == "ithaca" || name.starts_with("ithaca-") {
                found.push((number + 1, name.to_string()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let manifest = "[package]\nname = \"ithaca-env\"\n[dependencies]\nithaca-log.workspace = true\n";
        let findings = arrows(&Tree::of(&[("crates/env/Cargo.toml", manifest)]));
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4]);
        assert_eq!(arrows(&Tree::of(&[("crates/lab/Cargo.toml", manifest)])), []);
    }

    #[test]
    fn nobody_may_use_the_lab_and_unknown_folders_are_found() {
        let uses_lab = "[dev-dependencies]\nithaca-lab = { path = \"../lab\" }\n";
        assert_eq!(arrows(&Tree::of(&[("crates/ithaca/Cargo.toml", uses_lab)])).len(), 1);
        assert_eq!(arrows(&Tree::of(&[("crates/utils/Cargo.toml", "[dependencies]\n")])).len(), 1);
    }

    #[test]
    fn too_many_locked_packages_are_found() {
        let lock = "[[package]]\n".repeat(LOCKED_MAX + 1);
        assert_eq!(locked_packages(&Tree::of(&[("Cargo.lock", &lock)])).len(), 1);
        assert_eq!(locked_packages(&Tree::of(&[("Cargo.lock", "[[package]]\n")])), []);
    }
}
