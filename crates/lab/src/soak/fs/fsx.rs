//! The tester fsx: a program of others that works on one file in every way that a file system knows, and compares all that it reads with
//! what it has written.
//!
//! It is run, not linked, so that its licence (APSL) is its own affair. The one from crates.io is taken, whose seeds are followed by the same
//! operations at each run; it is installed below the target folder where it is not in the path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::disk::is_there;
use crate::soak::process::complete;

/// What is installed, and what is asked for it.
const PROGRAM: &str = "fsx";
const VERSION: &str = "=0.3.2";
/// It takes longer only if it hangs.
const RUN_SECONDS: &str = "300";
const INSTALL_SECONDS: &str = "900";
/// Every operation that it knows on Linux; those that cost most less often.
const CONFIG: &str = "flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 2
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 4
sendfile = 3
posix_fadvise = 2
copy_file_range = 4
";

/// The program, and where it keeps what it needs.
pub struct Fsx {
    program: PathBuf,
    config: PathBuf,
    /// Where it leaves a file as it should be, and what it did, when it finds something.
    findings: PathBuf,
}

/// One that works on a file until it is ended.
pub struct Running(Child);

impl Fsx {
    /// Finds the program, or installs it. Errors: it cannot be had here.
    pub fn find(folder: &Path) -> io::Result<Self> {
        let program = if is_there(PROGRAM) { PathBuf::from(PROGRAM) } else { installed()? };
        let findings = folder.join("fsx");
        fs::create_dir_all(&findings)?;
        let config = findings.join("fsx.toml");
        fs::write(&config, CONFIG)?;
        Ok(Self { program, config, findings })
    }

    /// Where more is said of what it finds.
    pub fn findings(&self) -> &Path {
        &self.findings
    }

    /// Removes what it has left.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_dir_all(&self.findings)
    }

    fn command(&self, file: &Path, seed: u64) -> Command {
        let mut command = Command::new("timeout");
        command.arg(RUN_SECONDS).arg(&self.program).arg("-f").arg(&self.config).arg("-P").arg(&self.findings);
        command.args(["-S", &seed.to_string()]).arg(file).env("NO_COLOR", "1");
        command
    }

    /// Works on a new file. Errors: the file does not hold what was written, or an operation failed; which one, and where more is said.
    pub fn run(&self, file: &Path, seed: u64, operations: u64) -> io::Result<()> {
        let mut command = self.command(file, seed);
        let ended = complete(command.args(["-N", &operations.to_string()]));
        ended.map_err(|error| io::Error::other(format!("{error}; see {}", self.findings.display())))
    }

    /// The same without an end. What it says stays with its findings.
    pub fn start(&self, file: &Path, seed: u64) -> io::Result<Running> {
        let mut command = self.command(file, seed);
        let said = fs::File::create(self.findings.join("said.txt"))?;
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        Ok(Running(command.spawn()?))
    }
}

impl Running {
    /// Whether it still works: it ends by itself only if it finds something.
    pub fn is_working(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended. One whose file system is gone ends at its next operation; `timeout` passes this on.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// The one below the target folder, installed if it is not there.
fn installed() -> io::Result<PathBuf> {
    let here = std::env::current_exe()?;
    let target = here.ancestors().nth(2).ok_or_else(|| io::Error::other("no target folder"))?;
    let (root, program) = (target.join("tools"), target.join("tools/bin").join(PROGRAM));
    if !program.is_file() {
        let mut install = Command::new("timeout");
        install.args([
            INSTALL_SECONDS,
            "cargo",
            "install",
            PROGRAM,
            "--version",
            VERSION,
            "--locked",
            "--quiet",
            "--root",
        ]);
        complete(install.arg(&root))?;
    }
    Ok(program)
}
