//! The same load on SQLite and LMDB: programs in C (`tools/stores`) that are built with the system's compiler and libraries.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// Where their source is, from the root of the tree.
const SOURCE: &str = "tools/stores";

/// A store that is not ours.
pub struct Store {
    /// Its name in results, and that of its source.
    pub name: &'static str,
    library: &'static str,
    package: &'static str,
    /// How many times its durable commits a second are asked of a volume.
    pub least: f64,
}

/// All of them.
pub static STORES: [Store; 2] = [
    Store { name: "sqlite", library: "sqlite3", package: "libsqlite3-dev", least: 10.0 },
    Store { name: "lmdb", library: "lmdb", package: "liblmdb-dev", least: 3.0 },
];

/// A store's program.
pub struct Built<'a> {
    /// Of which store.
    pub store: &'a Store,
    program: PathBuf,
}

/// What a program has counted.
pub struct Counted {
    pub commits_per_s: f64,
    pub cpu_us_per_commit: f64,
}

impl Store {
    /// Builds its program in a folder. Errors: no compiler, or not what the store needs.
    pub fn build(&self, folder: &Path) -> io::Result<Built<'_>> {
        let (source, program) = (format!("{SOURCE}/{}.c", self.name), folder.join(self.name));
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-pthread", &source, "-o"]).arg(&program);
        let output = compiler.arg(format!("-l{}", self.library)).output();
        let needs = format!("needs a C compiler and {}", self.package);
        let output = output.map_err(|error| io::Error::other(format!("{needs}: {error}")))?;
        said(&source, &output).map_err(|error| io::Error::other(format!("{needs}: {error}")))?;
        Ok(Built { store: self, program })
    }
}

impl Built<'_> {
    /// Runs the load for `span` on a new store in `folder`, which is removed afterwards.
    pub fn run(&self, folder: &Path, blocks: u64, threads: u64, span: Duration) -> io::Result<Counted> {
        std::fs::create_dir_all(folder)?;
        let mut command = Command::new(&self.program);
        command.arg(folder).args([blocks.to_string(), threads.to_string(), span.as_secs_f64().to_string()]);
        let text = said(self.store.name, &command.output()?)?;
        std::fs::remove_dir_all(folder)?;
        let figures: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [commits, seconds, cpu_us] = figures[..] else {
            return Err(io::Error::other(format!("{} has counted nothing: {text:?}", self.store.name)));
        };
        Ok(Counted { commits_per_s: commits / seconds, cpu_us_per_commit: cpu_us / commits.max(1.0) })
    }
}

/// What a program has printed, if it has succeeded.
fn said(name: &str, output: &Output) -> io::Result<String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let why = why.lines().find(|line| line.contains("error")).or(why.lines().next()).unwrap_or_default();
    Err(io::Error::other(format!("{name}: {}: {why}", output.status)))
}
