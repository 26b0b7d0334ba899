//! What is in the tree is finished: no code that only says that it is missing, and no notes to oneself.

use super::source::contains_word;
use super::tree::{Finding, Tree};

/// No `todo!`, `unimplemented!` or `dbg!` in code; no FIXME, TODO or XXX in comments.
pub fn markers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for (number, (code, comment)) in source.code.lines().zip(source.comments.lines()).enumerate() {
            let macros =
                ["todo!", "unimplemented!", "dbg!"].into_iter().filter(|word| contains_word(code, word));
            let notes = ["FIXME", "TODO", "XXX"].into_iter().filter(|word| contains_word(comment, word));
            // The comment that names what is banned is no note.
            let notes = notes.filter(|_| !comment.contains("no FIXME"));
            for word in macros.chain(notes) {
                let what = format!("`{word}`: finish it or leave it out");
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
    fn unfinished_code_and_notes_are_found() {
        let text = "//! A.\nfn a() { todo!() }\n// FIXME later\nlet s = \"TODO\";\n";
        let lines: Vec<usize> =
            markers(&Tree::of(&[("crates/log/src/a.rs", text)])).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
