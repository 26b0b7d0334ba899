//! Volumes: the commands, and real clients of NBD against a real server.
//!
//! * [`commands`]: what is made, shown, checked and refused.
//! * [`c_library`]: transactions of C programs.
//! * [`mount`]: a volume as a file, with transactions of the threads of C programs.
//! * [`tools`]: libnbd's and QEMU's programs, and the server killed under their load.
//! * [`within`]: libnbd's and QEMU's programs within a transaction.
//! * [`rescue`]: what is left of a volume that has lost a part of its log.
//! * [`sides`]: sides of a mirror that are lost and replaced.
//! * [`filesystem`]: ext4 on a volume, and the server killed under it.
//!
//! What needs a program that is not installed says so and passes: `./test` installs them where it may.

mod c_library;
mod commands;
mod filesystem;
mod mount;
mod rescue;
mod sides;
mod tools;
mod within;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Ran, ithaca, run, signal, string_field};

/// Runs `ithaca volume ...`.
fn volume(arguments: &[&str]) -> Ran {
    run(ithaca(&[&["volume"], arguments].concat()), b"")
}

/// A directory as text.
fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Longer than anything takes that is to come.
const NEVER: Duration = Duration::from_secs(120);

/// Waits until it is so; what never is ends the test.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < NEVER, "{what}: not within {NEVER:?}");
        std::thread::yield_now();
    }
}

/// A volume that is served until this is dropped, which kills the server.
struct Served {
    child: Child,
    addr: String,
    /// Where transactions of other processes connect.
    socket: String,
    /// What it said when it was ready.
    ready: String,
}

impl Served {
    /// Serves the volume of `dir` at a free port.
    fn start(dir: &Path) -> Self {
        Self::at(dir, "127.0.0.1:0")
    }

    fn at(dir: &Path, addr: &str) -> Self {
        Self::with(dir, &["--nbd", addr])
    }

    /// Serves it with more arguments, at a free port unless they say otherwise.
    fn with(dir: &Path, more: &[&str]) -> Self {
        let mut command = ithaca(&["volume", "serve", text(dir), "--json"]);
        if !more.contains(&"--nbd") {
            command.args(["--nbd", "127.0.0.1:0"]);
        }
        let mut child = command.args(more).stderr(Stdio::inherit()).spawn().expect("the program starts");
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut ready).expect("its output is open");
        // There is none where nothing can be written.
        let has_socket = !more.contains(&"--rescue");
        let socket = if has_socket { string_field(&ready, "socket") } else { String::new() };
        Self { child, addr: string_field(&ready, "nbd"), socket, ready }
    }

    /// The URI of an export.
    fn uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.addr)
    }

    /// Asks it to stop, and returns its exit code.
    fn stop(mut self) -> Option<i32> {
        signal(&self.child, "TERM");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether these programs are there. Where one is not, the test fails, unless it may be left out.
fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| {
        let found =
            Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        !found.is_ok_and(|found| found.success())
    });
    missing.is_none_or(|program| leave_out(&format!("{program} is not installed")))
}

/// False, where tests may be left out that cannot run here; fails the test anywhere else.
fn leave_out(why: &str) -> bool {
    let may = std::env::var_os("ITHACA_TEST_LEAVE_OUT").is_some_and(|value| value == "1");
    assert!(may, "{why}; ITHACA_TEST_LEAVE_OUT=1 leaves out what needs it");
    eprintln!("skip: {why}");
    false
}

/// Runs a program to its end; panics with what it said if it fails. Returns its standard output.
fn tool(line: &[&str]) -> String {
    let output = Command::new("timeout").arg("60").args(line).output().expect("timeout is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line:?}: {}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
