//! Sides of a volume's mirror that are lost and replaced, or the first that it is given.

use std::path::Path;

use super::{Served, has, text, tool, until, volume};
use crate::harness::{string_field, temp_dir};

/// What becomes of each drive, as the server says.
fn states(dir: &str) -> Vec<String> {
    let told = volume(&["info", dir, "--json"]).expect(0).text();
    let state = |part: &str| part.split('"').next().expect("it ends").to_owned();
    told.split("\"state\":\"").skip(1).map(state).collect()
}

/// Serves these until all of them have everything.
fn rebuild(dirs: &str) {
    let served = Served::start(Path::new(dirs));
    until("a side is rebuilt", || states(dirs).iter().all(|state| state == "live"));
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn a_lost_side_is_replaced_while_the_volume_is_served_also_where_the_server_is_killed() {
    if !has(&["nbdcopy"]) {
        return;
    }
    let dir = temp_dir();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let [a, b, c] = ["a", "b", "c"].map(&path);
    let (old, new) = (format!("{a}+{b}"), format!("{a}+{c}"));
    volume(&["create", &old, "--size", "32M"]).expect(0);
    let image: Vec<u8> =
        (0..8_000_000_u32).flat_map(|word| (word / 1024).wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    std::fs::write(path("image"), &image).expect("writable");
    let served = Served::start(Path::new(&old));
    assert!(!served.ready.contains("rebuilding"), "{}", served.ready);
    // The first directory's, which stays when the other one is replaced.
    assert_eq!(string_field(&served.ready, "export"), "a");
    tool(&["nbdcopy", "--flush", &path("image"), &served.uri("")]);
    assert_eq!(served.stop(), Some(0));
    std::fs::remove_dir_all(&b).expect("it is there");
    // B may be away for this moment only: nothing comes in its place before it is left out once.
    std::fs::create_dir(&c).expect("a new directory");
    for missing in [&old, &new] {
        std::fs::create_dir_all(&b).expect("as a disk that is not mounted");
        let told = volume(&["serve", missing]).expect(2).stderr;
        assert!(told.contains("is missing") && told.contains("without it"), "{told}");
    }
    assert!(std::fs::read_dir(&b).expect("it is there").next().is_none(), "nothing is made");
    assert_eq!(Served::start(Path::new(&a)).stop(), Some(0));
    // What is there already is nobody's to be written over, and no directory is made.
    let text = b"not a volume's".repeat(1000);
    std::fs::write(path("other"), &text).expect("writable");
    let told = volume(&["serve", &format!("{a}+{}", path("other"))]).expect(2).stderr;
    assert!(told.contains("other is not blank"), "{told}");
    assert!(std::fs::read(path("other")).expect("it is there") == text);
    let told = volume(&["serve", &format!("{a}+{}", path("nowhere"))]).expect(2).stderr;
    assert!(told.contains("no such directory"), "{told}");
    assert_eq!(states(&a), ["live", "missing"]);

    let served = Served::start(Path::new(&new));
    assert!(served.ready.contains(&format!("\"rebuilding\":[\"{c}/volume.chain\"]")), "{}", served.ready);
    drop(served);
    rebuild(&new);
    std::fs::remove_dir_all(&a).expect("it is there");
    let served = Served::start(Path::new(&c));
    tool(&["nbdcopy", &served.uri(""), &path("out")]);
    assert!(std::fs::read(path("out")).expect("copied")[..image.len()] == image);
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn a_volume_that_was_no_mirror_becomes_one() {
    let dir = temp_dir();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let [one, two] = ["one", "two"].map(&path);
    volume(&["create", &one, "--size", "8M"]).expect(0);
    volume(&["snapshot", &one, "first"]).expect(0);
    std::fs::create_dir(&two).expect("a new directory");
    let both = format!("{one}+{two}");
    // Whoever only looks makes nothing.
    volume(&["info", &both]).expect(2);
    rebuild(&both);
    std::fs::remove_dir_all(&one).expect("it is there");
    assert_eq!(Served::start(Path::new(&two)).stop(), Some(0));
    assert!(volume(&["info", &two]).expect(0).text().contains("snapshot first"));
}

/// A volume of 8 MiB with two sides: their directories, and both as commands take them.
fn mirrored(dir: &Path) -> ([String; 2], String) {
    let sides = ["a", "b"].map(|name| text(&dir.join(name)).to_owned());
    let both = sides.join("+");
    volume(&["create", &both, "--size", "8M"]).expect(0);
    (sides, both)
}

#[test]
fn a_side_that_was_cut_short_is_told_by_a_scrub_and_left_out_at_a_start() {
    let dir = temp_dir();
    let ([a, b], both) = mirrored(dir.path());
    let served = Served::start(Path::new(&both));
    assert!(volume(&["scrub", &both]).expect(0).text().contains("0 places repaired"));
    let file = std::fs::OpenOptions::new().write(true).open(format!("{b}/volume.chain")).expect("writable");
    // Within its last segment, which nothing is written to so soon: a write behind the end would make it longer.
    file.set_len(70 << 20).expect("a file");
    for told in [volume(&["scrub", &both]).expect(4), volume(&["scrub", &both, "--json"]).expect(4)] {
        let told = told.text();
        assert!(
            told.contains("b/volume.chain has 73400320 bytes") && told.contains("once without it"),
            "{told}"
        );
    }
    assert_eq!(served.stop(), Some(0));
    for verb in ["serve", "info"] {
        let told = volume(&[verb, &both]).expect(4).stderr;
        assert!(told.contains("has 73400320 bytes") && told.contains("once without it"), "{told}");
    }
    assert_eq!(Served::start(Path::new(&a)).stop(), Some(0));
    std::fs::remove_file(format!("{b}/volume.chain")).expect("it is there");
    rebuild(&both);
    assert_eq!(states(&both), ["live", "live"]);
}

#[test]
fn a_side_that_has_lost_its_beginning_is_told_by_a_scrub_although_it_is_as_long_as_before() {
    // A file that was emptied is made long again by what is written and repaired, all but what says whose it is.
    let dir = temp_dir();
    let ([a, b], both) = mirrored(dir.path());
    let served = Served::start(Path::new(&both));
    let file = std::fs::OpenOptions::new().write(true).open(format!("{b}/volume.chain")).expect("writable");
    let len = file.metadata().expect("a file").len();
    file.set_len(0).expect("a file");
    file.set_len(len).expect("a file");
    let told = volume(&["scrub", &both]).expect(4).text();
    assert!(told.contains("b/volume.chain holds no volume: the next start refuses it"), "{told}");
    assert!(told.contains("once without it"), "{told}");
    assert_eq!(served.stop(), Some(0));
    let told = volume(&["serve", &both]).expect(2).stderr;
    assert!(told.contains("is missing") && told.contains("once without it"), "{told}");
    assert_eq!(Served::start(Path::new(&a)).stop(), Some(0));
    rebuild(&both);
    assert_eq!(states(&both), ["live", "live"]);
}
