//! The files that the checks look at, read once.

use std::io;
use std::path::Path;

use super::source::Source;

/// A tree of files: Rust sources, and every other text file that a check reads.
#[derive(Default)]
pub struct Tree {
    /// Rust sources, by path.
    pub sources: Vec<Source>,
    /// Manifests, the lock file and documents, by path.
    pub texts: Vec<(String, String)>,
    /// Every path, of any kind.
    pub paths: Vec<String>,
}

/// What a check has to say.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, from the root of the tree.
    pub path: String,
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong and what to do instead.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl Tree {
    /// Reads every file below `root` that belongs to the project.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                if relative == "target" || relative == ".git" || relative == "ithaca-data" {
                    continue;
                }
                if path.is_dir() {
                    tree.paths.push(relative);
                    folders.push(path);
                } else if is_text(&relative) {
                    tree.add(&relative, &std::fs::read_to_string(&path)?);
                } else {
                    tree.paths.push(relative);
                }
            }
        }
        tree.sources.sort_by(|a, b| a.path.cmp(&b.path));
        tree.texts.sort();
        tree.paths.sort();
        Ok(tree)
    }

    /// Adds one file.
    pub fn add(&mut self, path: &str, text: &str) {
        self.paths.push(path.to_string());
        if path.ends_with(".rs") {
            self.sources.push(Source::new(path, text));
        } else {
            self.texts.push((path.to_string(), text.to_string()));
        }
    }

    /// A tree of these files.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        files.iter().for_each(|(path, text)| tree.add(path, text));
        tree
    }

    /// Whether a file or folder is there.
    pub fn has(&self, path: &str) -> bool {
        self.paths
            .iter()
            .any(|known| known == path || known.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    }
}

fn is_text(path: &str) -> bool {
    [".rs", ".toml", ".md", ".lock"].iter().any(|ending| path.ends_with(ending))
}
