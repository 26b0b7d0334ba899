//! `ithaca fsck` and `ithaca dump`: they tell what is there and change nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::harness::{Dev, Ran, dev_command, ithaca, run, temp_dir};

fn offline(verb: &str, path: &Path) -> Ran {
    run(ithaca(&[verb, path.to_str().expect("text")]), b"")
}

/// Every file of a directory, whole.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir).expect("it is there").map(|file| file.expect("listed").path());
    files.map(|path| (path.clone(), std::fs::read(path).expect("a file"))).collect()
}

/// A stopped cluster with two entries that are easily found in its files.
fn stopped() -> tempfile::TempDir {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    dev.feed("log append --lines", b"needle in a haystack\nanother needle\n").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    dir
}

#[test]
fn what_a_cluster_left_is_well_and_stays_as_it_was() {
    let dir = stopped();
    let before = contents(dir.path());
    let told = offline("fsck", dir.path()).expect(0).text();
    // Two registers, two chains.
    assert_eq!(told.lines().filter(|line| line.contains(": ok: ")).count(), 4, "{told}");
    for file in before.keys() {
        assert!(!offline("dump", file).expect(0).stdout.is_empty(), "{}", file.display());
    }
    assert!(contents(dir.path()) == before, "nothing was changed");
}

#[test]
fn a_flipped_bit_in_an_entry_is_found_and_the_entry_not_served() {
    let dir = stopped();
    let path = dir.path().join("unit-1.chain");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let needle = b"needle in a haystack";
    let at = bytes.windows(needle.len()).position(|part| part == needle).expect("it is stored as it is");
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).expect("writable");
    let ran = offline("fsck", dir.path()).expect(4);
    assert!(ran.text().contains("unit-1.chain: damaged"), "{}", ran.text());
    let dev = Dev::start(dir.path(), &["--units", "2"]);
    assert!(dev.run("log read 0").expect(4).stdout.is_empty());
    assert_eq!(dev.run("log read 1").expect(0).text(), "another needle");
}

#[test]
fn a_directory_that_is_in_use_or_holds_nothing_is_refused() {
    let (dir, empty) = (temp_dir(), temp_dir());
    let _dev = Dev::start(dir.path(), &[]);
    assert!(offline("fsck", dir.path()).expect(3).stderr.contains("in use"));
    offline("fsck", empty.path()).expect(2);
    offline("dump", &empty.path().join("nothing")).expect(2);
    // Cut off, or somebody else's: named with the size that it has.
    let short = empty.path().join("unit-1.chain");
    std::fs::write(&short, b"ab").expect("writable");
    let told = offline("fsck", empty.path()).expect(4).text();
    assert!(told.contains("unit-1.chain: damaged: it has 2 bytes"), "{told}");
    let told = offline("dump", &short).expect(2).stderr;
    assert!(told.contains("a file of 2 bytes is no drive"), "{told}");
    let told = run(dev_command(empty.path(), &[]), b"").expect(2).stderr;
    assert!(told.contains("unit-1.chain: a file of 2 bytes is no drive"), "{told}");
    assert_eq!(contents(empty.path()).len(), 1, "nothing was made");
}

#[test]
fn a_drive_that_was_removed_is_blank_and_no_damage_and_the_only_one_of_a_unit_is() {
    let dir = temp_dir();
    let data = dir.path().join("data");
    let [own, added] = ["data/unit-1.chain", "added"].map(|name| dir.path().join(name));
    let dev = Dev::start(&data, &["--units", "2"]);
    dev.run(&format!("drive add {} --node 1", added.display())).expect(0);
    dev.run(&format!("drive remove {} --node 1", own.display())).expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let told = offline("fsck", &data).expect(0).text();
    assert!(told.contains(&format!("{}: blank, and a drive of no unit", own.display())), "{told}");
    assert_eq!(told.lines().filter(|line| line.contains(": ok: ")).count(), 4, "{told}");
    let told = run(ithaca(&["fsck", data.to_str().expect("text"), "--json"]), b"").expect(0).text();
    assert!(told.contains(r#"unit-1.chain","ok":true,"blank":true}"#), "{told}");
    // What is harmed there is told of all the same, and a unit that has no other drive has lost what was on a blank one.
    let other = std::fs::OpenOptions::new().write(true).open(data.join("unit-2.chain")).expect("writable");
    let bytes = other.metadata().expect("it is there").len();
    other.set_len(0).and_then(|()| other.set_len(bytes)).expect("writable");
    let told = offline("fsck", &data).expect(4).text();
    assert!(told.contains("unit-2.chain holds no chain"), "{told}");
}
