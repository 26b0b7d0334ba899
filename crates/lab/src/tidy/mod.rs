//! Tidy checks: what the architecture and the style promise and a compiler does not hold us to.
//!
//! Each check is a plain function over a [`Tree`] and has a test that it fails on a bad example. A finding is one line,
//! `path:line: what`. Exceptions are tables in the check that they soften, each with its reason; a reason is text that a
//! reviewer can disagree with.

#![expect(
    clippy::disallowed_methods,
    reason = "the checks read the source tree itself, which is no drive of the system"
)]

mod arrows;
mod documents;
mod environment;
mod sizes;
mod source;
mod tests_clean;
mod tree;
mod unfinished;

use std::io;
use std::path::Path;

pub use tree::{Finding, Tree};

/// A named check.
type Check = (&'static str, fn(&Tree) -> Vec<Finding>);

const CHECKS: &[Check] = &[
    ("only env's real side touches the outside world", environment::outside_world),
    ("no unordered collections", environment::unordered_collections),
    ("unsafe stays in env", environment::unsafe_code),
    ("dependencies point down", arrows::arrows),
    ("few packages are locked", arrows::locked_packages),
    ("files are short", sizes::files),
    ("functions fit a screen", sizes::functions),
    ("files say what they are", sizes::headers),
    ("no test is ignored", tests_clean::ignored),
    ("no test sleeps", tests_clean::sleeps),
    ("no test takes a fixed port", tests_clean::fixed_ports),
    ("nothing is left unfinished", unfinished::markers),
    ("links in documents lead somewhere", documents::links),
    ("every decision is listed", documents::decisions),
    ("every format has golden bytes", documents::golden_bytes),
];

/// Runs every check over the tree at `root` and prints one line for each, its findings below it. Ends with the counts
/// as `N passed, N failed`. Returns whether all passed.
pub fn run(root: &Path) -> io::Result<bool> {
    let tree = Tree::read(root)?;
    let mut failed = 0;
    for (name, check) in CHECKS {
        let findings = check(&tree);
        println!("{} {name}", if findings.is_empty() { "ok  " } else { "FAIL" });
        findings.iter().for_each(|finding| println!("{finding}"));
        failed += usize::from(!findings.is_empty());
    }
    println!("tidy: {} passed, {failed} failed", CHECKS.len() - failed);
    Ok(failed == 0)
}
