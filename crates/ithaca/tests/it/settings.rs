//! Flags, environment, settings file; what is printed without a cluster.

use std::process::Command;

use crate::harness::{Dev, Ran, ithaca, run, run_refused, temp_dir};

fn show(dir: &std::path::Path, change: impl FnOnce(&mut Command)) -> Ran {
    let mut command = ithaca(&["config", "show", "--origin"]);
    command.current_dir(dir);
    change(&mut command);
    run(command, b"")
}

fn line(ran: &Ran, key: &str) -> Vec<String> {
    let text = ran.text();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(key)).expect(key);
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() {
    let dir = temp_dir();
    assert_eq!(line(&show(dir.path(), |_| ()), "timeout"), ["5s", "default"]);
    std::fs::write(dir.path().join("ithaca.toml"), "\ntimeout = \"3s\"\n").expect("writable");
    assert_eq!(line(&show(dir.path(), |_| ()), "timeout"), ["3s", "file", "ithaca.toml:2"]);
    let with_env = |command: &mut Command| {
        command.env("ITHACA_TIMEOUT", "2s");
    };
    assert_eq!(line(&show(dir.path(), with_env), "timeout"), ["2s", "environment", "ITHACA_TIMEOUT"]);
    let with_flag = |command: &mut Command| {
        command.env("ITHACA_TIMEOUT", "2s").args(["--timeout", "1s"]);
    };
    assert_eq!(line(&show(dir.path(), with_flag), "timeout"), ["1s", "flag", "--timeout"]);
}

#[test]
fn roles_are_a_list_in_every_spelling() {
    let dir = temp_dir();
    let all = "layout,sequencer,unit,views,http";
    assert_eq!(line(&show(dir.path(), |_| ()), "roles"), [all, "default"]);
    std::fs::write(dir.path().join("ithaca.toml"), "roles = [\"unit\", \"http\"]\n").expect("writable");
    assert_eq!(line(&show(dir.path(), |_| ()), "roles"), ["unit,http", "file", "ithaca.toml:1"]);
    let with_env = |command: &mut Command| {
        command.env("ITHACA_ROLES", "layout,unit");
    };
    assert_eq!(line(&show(dir.path(), with_env), "roles"), ["layout,unit", "environment", "ITHACA_ROLES"]);
}

#[test]
fn the_file_that_init_writes_changes_nothing_and_is_not_overwritten() {
    let dir = temp_dir();
    let before = show(dir.path(), |_| ()).expect(0).text();
    let init = || {
        let mut command = ithaca(&["config", "init"]);
        command.current_dir(dir.path());
        run(command, b"")
    };
    init().expect(0);
    assert_eq!(show(dir.path(), |_| ()).expect(0).text(), before);
    init().expect(2);
}

#[test]
fn a_setting_that_is_not_known_is_named_with_its_file_and_line() {
    let dir = temp_dir();
    std::fs::write(dir.path().join("ithaca.toml"), "units = 1\nunit = 2\n").expect("writable");
    let told = show(dir.path(), |_| ()).expect(2).stderr;
    assert!(told.contains("ithaca.toml:2: unknown setting `unit`, did you mean `units`?"), "{told}");
    let named = run(ithaca(&["version", "--config", "/no/such.toml"]), b"").expect(2).stderr;
    assert!(named.contains("/no/such.toml"), "{named}");
    let endless = run(ithaca(&["version", "--config", "/dev/zero"]), b"").expect(2).stderr;
    assert!(endless.contains("/dev/zero: a file of more than 1048576 bytes"), "{endless}");
}

#[test]
fn a_value_of_the_file_that_cannot_be_is_named_with_its_file_and_line() {
    let dir = temp_dir();
    for (line, told) in [
        ("endpoint = 5", "`endpoint`: expected HOST:PORT"),
        ("endpoint = [\"localhost:0\", \"nowhere\"]", "`endpoint`: expected HOST:PORT"),
        ("units = 0", "`units`: expected 1 to 64"),
        ("replicas = 9", "`replicas`: expected 1 to 8"),
        ("roles = [\"unit\", \"storage\"]", "`roles`: invalid variant: storage"),
        ("data = \"\"", "`data`: expected a directory, found nothing"),
    ] {
        std::fs::write(dir.path().join("ithaca.toml"), format!("\n{line}\n")).expect("writable");
        let mut command = ithaca(&["log", "check"]);
        command.current_dir(dir.path());
        let ran = run(command, b"").expect(2);
        assert!(ran.stderr.contains(&format!("ithaca.toml:2: {told}")), "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_name_that_is_lost_ends_only_what_asks_for_it_and_nothing_else() {
    // It was looked up with every command, also where another flag took its place.
    // RFC 6761: no such name is ever given to anybody.
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let with_lost = |arguments: &[&str]| {
        let mut command = ithaca(arguments);
        command.env("ITHACA_ENDPOINT", "nobody.invalid:1").env("ITHACA_TIMEOUT", "30s");
        run(command, b"")
    };
    with_lost(&["version"]).expect(0);
    with_lost(&["log", "check", "--endpoint", &dev.log]).expect(0);
    with_lost(&["log", "check", "--endpoint", &format!("nobody.invalid:1,{}", dev.log)]).expect(0);
    for line in ["log check", "top --once", "cluster status", "bench append"] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let told = with_lost(&arguments).expect(3).stderr;
        assert!(told.contains("nobody.invalid:1: no address is known for this name: "), "{told}");
    }
}

#[test]
fn a_variable_that_names_no_settings_file_is_as_if_it_were_not_there() {
    let mut command = ithaca(&["version"]);
    command.env("ITHACA_CONFIG", "");
    run(command, b"").expect(0);
    run(ithaca(&["version", "--config", ""]), b"").expect(2);
}

#[test]
fn wrong_usage_is_told_in_one_line() {
    for line in
        ["", "log", "log nonsense", "log read", "log fill x", "bench", "bench nonsense", "dev --units 0"]
    {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        run(ithaca(&arguments), b"").expect(2);
    }
}

#[test]
fn what_cannot_be_meant_is_wrong_usage_before_anything_is_reached() {
    for (line, said) in [
        ("log read --from 5 --to 3", "--from 5 lies behind --to 3"),
        ("stream read orders --from 5 --to 3", "--from 5 lies behind --to 3"),
        (
            "cluster init 1=127.0.0.1:0 2=127.0.0.1:0 1=127.0.0.1:0",
            "cluster init: no such cluster: node 1 is out of order or listed twice",
        ),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let refused = run(ithaca(&arguments), b"").expect(2).stderr;
        assert_eq!(refused.trim_end(), format!("ithaca: {said}"), "{line}");
    }
}

#[test]
fn help_version_completions_and_manual_need_no_cluster() {
    let dir = temp_dir();
    assert!(run(ithaca(&["log", "append", "--help"]), b"").expect(0).text().contains("Example:"));
    assert_eq!(run(ithaca(&["version", "--json"]), b"").expect(0).text(), "{\"version\":\"0.1.0\"}\n");
    assert!(run(ithaca(&["completions", "bash"]), b"").expect(0).text().contains("_ithaca"));
    run(ithaca(&["man", dir.path().to_str().expect("text")]), b"").expect(0);
    assert!(dir.path().join("ithaca-log-append.1").is_file());
}

#[test]
fn help_that_cannot_be_written_is_no_success() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
    for arguments in [&["--help"][..], &["log", "append", "--help"], &["--version"], &["version"]] {
        let mut child = ithaca(arguments);
        let told = child.stdout(full()).output().expect("it ends");
        let stderr = String::from_utf8_lossy(&told.stderr);
        assert_eq!(told.status.code(), Some(3), "{arguments:?}: {stderr}");
        assert!(stderr.contains("standard output: No space left"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_quota_that_leaves_no_room_for_entries_is_refused_with_what_is_allowed() {
    let dir = temp_dir();
    let data = dir.path().to_str().expect("text");
    let ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let mut command = ithaca(&["dev", "--data", data, "--quota", "1M"]);
    command.args(ports);
    let told = run(command, b"").expect(2).stderr;
    assert!(told.contains("--quota: a quota of 1048576 bytes is given, allowed are 268"), "{told}");
}

#[test]
fn how_a_node_of_several_servers_copies_is_no_setting_of_one_that_is_alone() {
    let dir = temp_dir();
    let data = dir.path().to_str().expect("text");
    for (flag, value, said) in [
        ("--rebuild-rate", "64M", "--rebuild-rate is of a node of several servers (--node)"),
        ("--rebuild-after", "1m", "--rebuild-after is of a node of several servers (--node)"),
        ("--rebuild-rate", "0", "more than 0 is needed"),
    ] {
        let mut command = ithaca(&["server", "--data", data, flag, value]);
        command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
        let told = run_refused(command).expect(2).stderr;
        assert!(told.contains(said), "{told}");
    }
}

#[test]
fn a_drive_that_would_begin_above_its_quota_is_refused_with_both_sizes() {
    // It began at the quota, and nothing was said.
    let dir = temp_dir();
    let data = dir.path().join("data");
    let quota = |more: &[&str]| {
        let mut command = ithaca(&["dev", "--json", "--data", data.to_str().expect("text")]);
        command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--quota", "512M"]).args(more);
        command
    };
    let told = run_refused(quota(&["--drive-size", "600M"])).expect(2).stderr;
    assert!(told.contains("--drive-size 629145600 is above --quota 536870912"), "{told}");
    assert!(!data.exists(), "nothing was made");
    // Where nobody asked for the larger one it is no contradiction.
    let mut child = quota(&[]).stderr(std::process::Stdio::inherit()).spawn().expect("the program starts");
    let mut ready = String::new();
    let stdout = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut ready).expect("open");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(ready.contains("\"ready\":true"), "{ready}");
}
