//! The client in Python, which was written from the pages of the protocol: its own tests, against this program.

use std::path::Path;
use std::process::Command;

#[test]
fn a_client_that_was_written_from_the_pages_works_with_this_program() {
    // A page could say something else than the program does, which no test in Rust would see: both sides would share the mistake.
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/test_ithaca.py");
    let mut python = Command::new("python3");
    python.arg("-B").arg(tests).env("ITHACA_PROGRAM", env!("CARGO_BIN_EXE_ithaca"));
    let ran = python.output().expect("python3 is there");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
