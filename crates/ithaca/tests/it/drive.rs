//! `ithaca drive`: drives that come and go while a cluster serves, and what the starts after that do.

use std::path::{Path, PathBuf};

use crate::harness::{Dev, Ran, dev_command, ithaca, number_field, run, signal, string_field, temp_dir};

/// Segments are of 64 MiB: so many bytes are on more than one.
const ENTRY_BYTES: usize = 1 << 20;

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().expect("text").to_owned()
}

fn dev(dir: &Path, more: &[&str]) -> Dev {
    Dev::start(&dir.join("data"), more)
}

/// The drives of all nodes, one JSON object each.
fn listed(dev: &Dev) -> Vec<String> {
    dev.run("drive ls --json").expect(0).text().lines().map(str::to_owned).collect()
}

fn paths(dev: &Dev) -> Vec<String> {
    listed(dev).iter().map(|line| string_field(line, "drive")).collect()
}

/// Appends entries of a MiB, each with its number at the beginning.
fn fill(dev: &Dev, numbers: std::ops::Range<u64>) {
    let mut input = Vec::new();
    for number in numbers.clone() {
        let line = format!("entry {number} ");
        input.extend(line.as_bytes());
        input.resize(input.len() + ENTRY_BYTES - line.len() - 1, b'.');
        input.push(b'\n');
    }
    let appended = dev.feed("log append --lines --timeout 120s", &input).expect(0).positions();
    assert_eq!(appended, numbers.collect::<Vec<_>>());
}

fn check(dev: &Dev, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let entry = dev.run(&format!("log read {number}")).expect(0).stdout;
        assert_eq!(entry.len(), ENTRY_BYTES - 1, "entry {number}");
        assert!(entry.starts_with(format!("entry {number} ").as_bytes()), "entry {number}");
    }
}

#[test]
fn a_drive_is_added_filled_and_removed_and_the_same_directory_resumes_without_flags() {
    let dir = temp_dir();
    let (first, added) = (path(dir.path(), "data/unit-1.chain"), path(dir.path(), "added"));
    let served = dev(dir.path(), &["--placement", "round-robin"]);
    let told = served.run(&format!("drive add {added} --json")).expect(0).text();
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!((number_field(&told, "node"), string_field(&told, "drive")), (1, added.clone()));
    // Again: nothing changes.
    served.run(&format!("drive add {added}")).expect(0);
    fill(&served, 0..150);
    let drives = listed(&served);
    assert_eq!(drives.len(), 2);
    for (drive, path) in drives.iter().zip([&first, &added]) {
        for key in ["node", "link", "segments", "free", "live", "bytes", "size_bytes"] {
            number_field(drive, key);
        }
        assert_eq!(&string_field(drive, "drive"), path);
        assert!(number_field(drive, "live") > 0 && number_field(drive, "bytes") > 0, "{drive}");
        assert!(["tail", "body"].contains(&string_field(drive, "state").as_str()), "{drive}");
    }
    assert_eq!(served.stop().0, Some(0));
    let served = dev(dir.path(), &[]);
    assert_eq!(paths(&served), [first.clone(), added.clone()]);
    let told = served.run(&format!("drive remove {first} --timeout 120s --json")).expect(0).text();
    assert_eq!(
        (string_field(&told, "state"), string_field(&told, "drive")),
        ("removed".into(), first.clone())
    );
    check(&served, 0..150);
    let gone = served.run(&format!("drive remove {first}")).expect(1).stderr;
    assert!(
        gone.contains(&first) && gone.contains("node 1") && gone.contains("no drive of the unit"),
        "{gone}"
    );
    signal(&served.child, "KILL");
    drop(served);
    let served = dev(dir.path(), &[]);
    assert_eq!(paths(&served), [added]);
    check(&served, 0..150);
}

#[test]
fn a_start_with_the_flags_from_before_a_change_goes_on_with_what_the_unit_has_now() {
    let dir = temp_dir();
    let [a, b, c] = ["a", "b", "c"].map(|name| path(dir.path(), name));
    let flags = ["--drive", a.as_str(), "--drive", b.as_str()];
    let served = dev(dir.path(), &flags);
    served.feed("log append", b"kept").expect(0);
    served.run(&format!("drive add {c}")).expect(0);
    served.run(&format!("drive remove {b}")).expect(0);
    assert_eq!(served.stop().0, Some(0));
    for more in [&flags[..], &[]] {
        let served = dev(dir.path(), more);
        assert_eq!(paths(&served), [a.clone(), c.clone()]);
        assert_eq!(served.run("log read 0").expect(0).text(), "kept");
        assert_eq!(served.stop().0, Some(0));
    }
    // Others than those are meant as they are: all that the unit has, or one line that says what is left out.
    let command = dev_command(&dir.path().join("data"), &["--drive", &a]);
    let told = run(command, b"").expect(2).stderr;
    assert!(told.contains(&format!("unit 1 had {c} too")) && told.contains("or none"), "{told}");
    let served = dev(dir.path(), &["--drive", &c, "--drive", &a, "--drive", &b]);
    assert_eq!(paths(&served), [a, c, b]);
}

#[test]
fn a_mirrored_drive_that_was_lost_is_made_anew_by_the_same_flags_or_by_an_order() {
    let dir = temp_dir();
    let [a, b, c] = ["a", "b", "c"].map(|name| path(dir.path(), name));
    let both = format!("{a}+{b}");
    let flags = ["--drive", both.as_str()];
    let served = dev(dir.path(), &flags);
    served.feed("log append", b"on both sides").expect(0);
    assert_eq!(served.stop().0, Some(0));
    std::fs::remove_file(&b).expect("it is there");
    let is_whole = |served: &Dev| (0..1000).any(|_| !listed(served).concat().contains("\"stale\""));
    let served = dev(dir.path(), &flags);
    assert_eq!(paths(&served), [a.clone(), b.clone()]);
    assert!(is_whole(&served), "it is rebuilt");
    assert_eq!(served.stop().0, Some(0));
    std::fs::remove_file(&b).expect("it is there");
    // Without flags nothing is made; what is missing is shown, and another one takes its place.
    let served = dev(dir.path(), &[]);
    let drives = listed(&served);
    assert!(drives[1].contains("\"drive\":null,\"state\":\"stale\""), "{drives:?}");
    served.run(&format!("drive add {c} --mirror-of {a}")).expect(0);
    assert!(is_whole(&served), "it is rebuilt");
    assert_eq!(paths(&served), [a.clone(), c.clone()]);
    let half = served.run(&format!("drive remove {c}")).expect(2).stderr;
    assert!(half.contains(&format!("{c}: is mirrored by {a}")), "{half}");
    assert_eq!(served.stop().0, Some(0));
    let served = dev(dir.path(), &flags);
    assert_eq!(paths(&served), [a, c]);
    assert_eq!(served.run("log read 0").expect(0).text(), "on both sides");
}

#[test]
fn a_removal_is_not_lost_when_its_client_gives_up_or_the_node_is_killed_in_the_middle() {
    let dir = temp_dir();
    let (first, added) = (path(dir.path(), "data/unit-1.chain"), path(dir.path(), "added"));
    let served = dev(dir.path(), &["--placement", "round-robin"]);
    served.run(&format!("drive add {added}")).expect(0);
    fill(&served, 0..300);
    // Too little time for so much, as a rule. A busy machine may not even give the order in it.
    let give_up_after = |millis: u32| {
        let removed = served.run(&format!("drive remove {first} --timeout {millis}ms"));
        if removed.code == Some(0) {
            return Some(false);
        }
        let told = removed.expect(3).stderr;
        let is_taken = told.contains(&format!("node 1 is not done after {millis}ms: it goes on by itself"));
        assert!(is_taken || told.contains("timed out"), "{told}");
        is_taken.then_some(true)
    };
    let is_leaving =
        [60, 120, 250, 500, 1000].into_iter().find_map(give_up_after).expect("it takes the order");
    if is_leaving {
        let drives = listed(&served);
        assert!(drives.len() == 1 || string_field(&drives[0], "state") == "leaving", "{drives:?}");
    }
    signal(&served.child, "KILL");
    drop(served);
    // It goes on by itself, and whoever asks again waits for it.
    let served = dev(dir.path(), &[]);
    let again = served.run(&format!("drive remove {first} --timeout 120s"));
    assert!([Some(0), Some(1)].contains(&again.code), "{again:?}");
    assert_eq!(paths(&served), [added]);
    check(&served, 0..300);
}

/// Runs `ithaca drive` in a directory.
fn run_in(dir: &Path, served: &Dev, arguments: &[&str]) -> Ran {
    let mut command = ithaca(&["--endpoint", &served.log, "--timeout", "30s", "drive"]);
    command.args(arguments).current_dir(dir);
    run(command, b"")
}

#[test]
fn relative_paths_are_below_the_directory_that_the_command_runs_in_and_nodes_are_named_where_there_are_several()
 {
    let dir = temp_dir();
    let served = dev(dir.path(), &["--units", "2"]);
    let told = run_in(dir.path(), &served, &["add", "here"]).expect(2).stderr;
    assert!(told.contains("1 2") && told.contains("--node"), "{told}");
    run_in(dir.path(), &served, &["add", "here+there", "--node", "2", "--size", "192M"]).expect(0);
    for name in ["here", "there"] {
        let file = std::fs::metadata(dir.path().join(name)).expect("it was made");
        assert_eq!(file.len(), 192 << 20, "it does not grow before the log comes to it");
    }
    let real: PathBuf = dir.path().to_owned();
    let listed = served.run("drive ls --node 2").expect(0).text();
    assert!(listed.contains(&path(&real, "here")) && listed.contains(&path(&real, "there")), "{listed}");
    assert_eq!(served.run("drive ls").expect(0).text().lines().count(), 4);
    run_in(dir.path(), &served, &["remove", "there+here", "--node", "2"]).expect(0);
    assert_eq!(served.run("drive ls").expect(0).text().lines().count(), 2);
    let told = run_in(dir.path(), &served, &["ls", "--node", "7"]).expect(1).stderr;
    assert!(told.contains("no node 7"), "{told}");
    run_in(dir.path(), &served, &["add", "here", "--node", "7"]).expect(1);
    let last = path(&real, "data/unit-2.chain");
    let told = run_in(dir.path(), &served, &["remove", &last, "--node", "2"]).expect(2).stderr;
    assert!(told.contains(&last) && told.contains("node 2") && told.contains("the only drive"), "{told}");
    std::fs::write(dir.path().join("notes"), b"somebody's").expect("written");
    let told = run_in(dir.path(), &served, &["add", "notes", "--node", "2"]).expect(2).stderr;
    assert!(told.contains("notes") && told.contains("no drive"), "{told}");
    assert_eq!(std::fs::read(dir.path().join("notes")).expect("it is there"), b"somebody's");
    let told = run_in(dir.path(), &served, &["add", "x", "--node", "2", "--size", "1000"]).expect(2).stderr;
    assert!(told.contains("--size") && told.contains("4096 bytes at least"), "{told}");
}
