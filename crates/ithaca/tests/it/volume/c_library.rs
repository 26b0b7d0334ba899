//! The library in C and its example, compiled without a warning and run against a real server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Served, has, text, tool, volume};
use crate::harness::temp_dir;

/// Compiles a program of `c/` with the library, which some of them have within them. Panics with what the compiler says if it says anything.
fn compile(dir: &Path, source: &str, more: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c");
    let program = dir.join("program");
    let has_library = ["tests/memory.c", "tests/failures.c"].contains(&source);
    let output = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-o", text(&program)])
        .args(more)
        .arg(sources.join(source))
        .args((!has_library).then(|| sources.join("ithaca_volume.c")))
        .output()
        .expect("gcc is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    program
}

#[test]
fn the_library_keeps_what_its_header_promises() {
    if !has(&["gcc"]) {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    // With the checksums of the processor, and with those that any has; with all data in frames; and as one of too many.
    let ways = [
        (&[][..], &[][..]),
        (&[], &["crowd"]),
        (&["-DITHACA_PORTABLE"], &[]),
        (&["-DITHACA_PORTABLE"], &["without-memory"]),
    ];
    for (more, how) in ways {
        volume(&["create", text(&disk), "--size", "8M"]).expect(0);
        volume(&["region", "add", text(&disk), "part", "--size", "32k"]).expect(0);
        finds_all_as_it_should_be(&disk, &compile(dir.path(), "tests/client.c", more), how);
        std::fs::remove_dir_all(&disk).expect("it is there");
    }
}

/// Runs a program of checks beside the server of a volume, which is whole after it.
fn finds_all_as_it_should_be(disk: &Path, program: &Path, how: &[&str]) {
    let served = Served::start(disk);
    assert_eq!(tool(&[&[text(program), &served.socket], how].concat()), "ok\n");
    assert_eq!(served.stop(), Some(0));
    volume(&["check", text(disk)]).expect(0);
}

#[test]
fn memory_that_could_be_taken_away_is_refused_and_no_client_harms_the_server_with_its_own() {
    if !has(&["gcc"]) {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    finds_all_as_it_should_be(&disk, &compile(dir.path(), "tests/memory.c", &[]), &[]);
}

#[test]
fn a_program_may_have_both_headers() {
    if !has(&["gcc"]) {
        return;
    }
    let header = |name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c").join(name);
    let (library, calls) = (header("ithaca_volume.h"), header("ithaca_ioctl.h"));
    for [first, second] in [[&library, &calls], [&calls, &library]] {
        let checks = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"];
        let output = Command::new("gcc")
            .args(checks)
            .args(["-include", text(first), "-include", text(second), "-x", "c", "/dev/null"])
            .output()
            .expect("gcc is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
}

#[test]
fn a_call_ends_where_the_system_fails_it() {
    if !has(&["gcc"]) {
        return;
    }
    let dir = temp_dir();
    assert_eq!(tool(&[text(&compile(dir.path(), "tests/failures.c", &[]))]), "ok\n");
}

#[test]
fn processes_that_move_money_at_the_same_time_lose_none() {
    if !has(&["gcc"]) {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let served = Served::start(&disk);
    let program = compile(dir.path(), "examples/transfer.c", &[]);
    let refused = Command::new(&program).args(["/nowhere", "0", "1", "5"]).stderr(Stdio::null()).status();
    assert_eq!(refused.expect("it runs").code(), Some(3));
    let start = |nth: usize| {
        let (from, to) = ((nth % 3).to_string(), ((nth + 1) % 3).to_string());
        let mut command = Command::new(&program);
        command.args([&served.socket, &from, &to, "7"]).stdout(Stdio::null()).spawn().expect("it runs")
    };
    for mut child in (0..30).map(start).collect::<Vec<_>>() {
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
    // Each account gave as often as it got: only by a lost update would one not be as it was.
    let told = tool(&[text(&program), &served.socket, "0", "1", "1"]);
    assert_eq!(told, "version 31\n", "each transfer is one commit");
    assert_eq!(served.stop(), Some(0));
    let blocks = std::fs::read(disk.join("volume.chain")).expect("it is there");
    let mut last = [0; 48];
    last[..8].copy_from_slice(&(-1_i64).to_le_bytes());
    last[16..24].copy_from_slice(&1_i64.to_le_bytes());
    assert!(blocks.windows(48).any(|bytes| bytes == last), "-1, 1 and 0 are the balances");
}
