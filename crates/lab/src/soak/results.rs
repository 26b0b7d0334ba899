//! `results/NAME.csv`: how it was made, then one row for each thing measured.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::measure::said_by;

/// Rows under one header.
pub struct Results {
    text: String,
}

impl Results {
    /// None yet: what they are in words, and the names of their columns.
    pub fn new(what: &str, columns: &str) -> Self {
        let mut text = String::new();
        let command: Vec<String> = std::env::args().skip(1).collect();
        let lines = [
            what.to_string(),
            format!("command: cargo lab {}", command.join(" ")),
            format!("commit: {}", said_by("git", &["describe", "--always", "--dirty", "--abbrev=12"])),
            format!("machine: {} on {} processors", said_by("uname", &["-srm"]), said_by("nproc", &[])),
            format!("date: {}", said_by("date", &["--utc", "+%Y-%m-%dT%H:%M:%SZ"])),
            "durability: fsync (an acknowledged append is on stable storage)".to_string(),
        ];
        for line in lines {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "{columns}");
        Self { text }
    }

    /// Adds a row, its columns separated by commas.
    pub fn row(&mut self, row: &str) {
        let _ = writeln!(self.text, "{row}");
    }

    /// Adds a remark.
    pub fn remark(&mut self, remark: &str) {
        let _ = writeln!(self.text, "# {remark}");
    }

    /// Writes `folder/name.csv` in place of an earlier one.
    pub fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join(format!("{name}.csv")), &self.text)
    }
}
