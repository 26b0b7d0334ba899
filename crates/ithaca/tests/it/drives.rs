//! Several drives for a unit: given at the start, added later, told of, and refused when one is missing.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::cluster::server_command;
use crate::harness::{Dev, dev_command, ithaca, run, run_refused, temp_dir};

/// `--drive` for each of these names in a directory.
fn drives(dir: &std::path::Path, names: &[&str]) -> Vec<String> {
    let path = |name: &&str| dir.join(name).to_str().expect("text").to_owned();
    names.iter().flat_map(|name| ["--drive".to_owned(), path(name)]).collect()
}

fn started(dir: &std::path::Path, names: &[&str]) -> Dev {
    let arguments = drives(dir, names);
    Dev::start(&dir.join("data"), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

fn refused(dir: &std::path::Path, names: &[&str], code: i32) -> String {
    let arguments = drives(dir, names);
    let command = dev_command(&dir.join("data"), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    run(command, b"").expect(code).stderr
}

#[test]
fn a_unit_has_one_log_on_several_drives_and_takes_one_more_at_a_start() {
    let dir = temp_dir();
    let dev = started(dir.path(), &["a", "b"]);
    dev.feed("log append", b"on two drives").expect(0);
    let status = dev.run("cluster status --json").expect(0).text();
    assert!(status.contains(r#""drives":[{"drive":1,"#) && status.contains(r#"{"drive":2,"#), "{status}");
    assert_eq!(status.matches(r#""tail":true"#).count(), 1, "{status}");
    assert_eq!(dev.stop().0, Some(0));
    // In another order, and with a third one that is not there yet.
    let dev = started(dir.path(), &["c", "b", "a"]);
    assert_eq!(dev.run("log read 0").expect(0).text(), "on two drives");
    let status = dev.run("cluster status").expect(0).text();
    assert!(status.contains("drive 3: "), "{status}");
    dev.feed("log append", b"on three").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let told = refused(dir.path(), &["a", "b"], 2);
    assert!(told.contains("drive 3 of 3") && told.contains("is missing"), "{told}");
    let told = refused(dir.path(), &["a", "d", "c"], 2);
    assert!(told.contains("/d: the drive of unit 1 is not there"), "{told}");
    assert!(!dir.path().join("d").exists(), "nothing was made");
    let dev = started(dir.path(), &["a", "b", "c"]);
    assert_eq!(dev.run("log read 1").expect(0).text(), "on three");
}

#[test]
fn a_start_that_does_not_know_where_its_drives_are_says_how_to_name_them() {
    let dir = temp_dir();
    let dev = started(dir.path(), &["a", "b"]);
    dev.feed("log append", b"elsewhere").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    std::fs::remove_file(dir.path().join("data/drives.register")).expect("it is there");
    let told = refused(dir.path(), &[], 2);
    assert!(told.contains("is not there") && told.contains("name all of them with --drive"), "{told}");
    let dev = started(dir.path(), &["a", "b"]);
    assert_eq!(dev.run("log read 0").expect(0).text(), "elsewhere");
}

#[test]
fn a_check_finds_the_drives_that_lie_elsewhere_and_says_what_is_on_each() {
    // To look at the directory alone, and to call that well, would be to look at nothing.
    let dir = temp_dir();
    let dev = started(dir.path(), &["a", "b"]);
    dev.feed("log append", b"on two drives").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let fsck = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| path(name)).collect();
        let mut arguments = vec!["fsck"];
        arguments.extend(paths.iter().map(|path| path.to_str().expect("text")));
        run(ithaca(&arguments), b"")
    };
    for names in [&["data"][..], &["data", "b"], &["b", "data", "a"], &["a", "b"]] {
        let told = fsck(names).expect(0).text();
        assert!(told.contains("1 records") && told.contains("the log goes on here"), "{names:?}: {told}");
        assert_eq!(told.matches(" segments, ").count(), 2, "{names:?}: {told}");
    }
    // By another path than is remembered it is the same drive.
    let mut beside = ithaca(&["fsck", "data", "b"]);
    beside.current_dir(dir.path());
    let told = run(beside, b"").expect(0).text();
    assert_eq!(told.matches(" segments, ").count(), 2, "{told}");
    let told = fsck(&["b"]).expect(2).stderr;
    assert!(told.contains("drive 1 of 2") && told.contains("is missing"), "{told}");
    let told = run(ithaca(&["dump", path("b").to_str().expect("text")]), b"").expect(0).text();
    assert!(told.contains("generation 1") && told.matches("  drive ").count() == 2, "{told}");
    for name in ["a", "b"] {
        std::fs::rename(path(name), path(&format!("{name} elsewhere"))).expect("it is there");
    }
    let told = fsck(&["data"]).expect(2).stderr;
    assert!(told.contains("no drive of unit 1 is at ") && told.contains("/a "), "{told}");
    let told = fsck(&["data", "b elsewhere", "a elsewhere"]).expect(0).text();
    assert_eq!(told.matches(" segments, ").count(), 2, "{told}");
}

#[test]
fn drives_that_cannot_be_shared_out_among_the_units_are_wrong_usage() {
    let dir = temp_dir();
    let mut arguments = drives(dir.path(), &["a", "b", "c"]);
    arguments.extend(["--units".to_owned(), "2".to_owned()]);
    let command =
        dev_command(&dir.path().join("data"), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let told = run(command, b"").expect(2).stderr;
    assert!(told.contains("3 drives for 2 units"), "{told}");
}

#[test]
fn a_mirrored_drive_serves_from_one_side_and_takes_a_new_one() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let start = |sides: &[&str]| {
        let sides: Vec<String> = sides.iter().map(|side| path(side)).collect();
        Dev::start(&dir.path().join("data"), &["--drive", &sides.join("+")])
    };
    let dev = start(&["a", "b"]);
    dev.feed("log append", b"on both sides").expect(0);
    let status = dev.run("cluster status --json").expect(0).text();
    assert_eq!(status.matches(r#""link":0,"stale":false"#).count(), 2, "{status}");
    assert_eq!(dev.stop().0, Some(0));
    let dev = start(&["b"]);
    assert_eq!(dev.run("log read 0").expect(0).text(), "on both sides");
    dev.feed("log append", b"on one side").expect(0);
    let status = dev.run("cluster status").expect(0).text();
    assert!(status.contains("drive 1: link 0") && status.contains("stale: missing"), "{status}");
    assert_eq!(dev.stop().0, Some(0));
    let dev = start(&["b", "c"]);
    let status = || dev.run("cluster status --json").expect(0).text();
    let is_rebuilt = (0..1000).any(|_| !status().contains(r#""stale":true"#));
    assert!(is_rebuilt, "{}", status());
    assert_eq!(dev.stop().0, Some(0));
    let dev = start(&["c"]);
    assert_eq!(dev.run("log read 1").expect(0).text(), "on one side");
}

#[test]
fn a_side_that_was_away_is_refused_without_the_one_that_went_on() {
    // What was acknowledged since would be gone without a word, and its positions would be given again.
    let dir = temp_dir();
    let (data, [a, b]) = (dir.path().join("data"), ["a", "b"].map(|name| dir.path().join(name)));
    let (away, sides) = (dir.path().join("away"), format!("{}+{}", a.display(), b.display()));
    let move_to = |from: &Path, to: &Path| std::fs::rename(from, to).expect("moved");
    let dev = Dev::start(&data, &["--drive", &sides]);
    dev.feed("log append", b"on both").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    move_to(&b, &away);
    let dev = Dev::start(&data, &[]);
    dev.feed("log append", b"on one").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let other = dir.path().join("other");
    move_to(&a, &other);
    move_to(&away, &b);
    let told = run(dev_command(&data, &[]), b"").expect(2).stderr;
    assert!(told.contains("/b is an old copy") && told.contains("drives.register is at 2"), "{told}");
    let told = run(ithaca(&["fsck", data.to_str().expect("text")]), b"").expect(2).stderr;
    assert!(told.contains("/b is an old copy") && told.contains("drives.register is at 2"), "{told}");
    move_to(&other, &a);
    let dev = Dev::start(&data, &[]);
    assert_eq!(dev.run("log read 1").expect(0).text(), "on one");
}

#[test]
fn a_cache_is_made_where_it_is_asked_for_and_is_never_needed() {
    let dir = temp_dir();
    let (data, cache) = (dir.path().join("data"), dir.path().join("cache"));
    let more = ["--cache", cache.to_str().expect("text"), "--cache-size", "8M", "--cache-keeps", "all"];
    let dev = Dev::start(&data, &more);
    dev.feed("log append", b"kept").expect(0);
    assert_eq!(dev.run("log read 0").expect(0).text(), "kept");
    assert_eq!(dev.stop().0, Some(0));
    assert_eq!(std::fs::metadata(&cache).expect("it was made").len(), 8 << 20);
    std::fs::remove_file(&cache).expect("it is there");
    assert_eq!(Dev::start(&data, &more).run("log read 0").expect(0).text(), "kept");
    // A drive of a unit is no cache.
    let chain = data.join("unit-1.chain");
    let other = dir.path().join("other");
    let more = ["--cache", chain.to_str().expect("text")];
    let told = run(dev_command(&other, &more), b"").expect(2).stderr;
    assert!(told.contains("unit-1.chain is neither blank nor a cache"), "{told}");
}

#[test]
fn a_metadata_drive_is_made_where_it_is_asked_for_and_is_never_needed() {
    let dir = temp_dir();
    let (data, metadata) = (dir.path().join("data"), dir.path().join("metadata"));
    let more = ["--metadata", metadata.to_str().expect("text")];
    let dev = Dev::start(&data, &more);
    dev.feed("log append", b"kept").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    assert!(metadata.exists());
    assert_eq!(Dev::start(&data, &more).run("log read 0").expect(0).text(), "kept");
    std::fs::remove_file(&metadata).expect("it is there");
    assert_eq!(Dev::start(&data, &more).run("log read 0").expect(0).text(), "kept");
    assert_eq!(Dev::start(&data, &[]).run("log read 0").expect(0).text(), "kept");
    // A drive of a unit is none.
    let chain = data.join("unit-1.chain");
    let other = dir.path().join("other");
    let more = ["--metadata", chain.to_str().expect("text")];
    let told = run(dev_command(&other, &more), b"").expect(2).stderr;
    assert!(told.contains("unit-1.chain is neither blank nor a metadata drive"), "{told}");
}

#[test]
fn a_drive_with_something_else_on_it_is_refused_by_name_and_left_as_it_is() {
    let dir = temp_dir();
    let notes = dir.path().join("notes");
    std::fs::write(&notes, vec![7; 1 << 20]).expect("writable");
    let disk = dir.path().join("disk");
    run(ithaca(&["volume", "create", disk.to_str().expect("text"), "--size", "4M"]), b"").expect(0);
    let refuse = |names: &[&str], name: &str, words: &str| {
        let told = refused(dir.path(), names, 2);
        assert!(told.contains(name) && told.contains(words), "{told}");
    };
    let notes_words = "neither blank nor a drive of a unit";
    refuse(&["notes"], "/notes", notes_words);
    refuse(&["disk/volume.chain"], "/disk/volume.chain", "volume");
    refuse(&["a", "notes"], "/notes", notes_words);
    // Registers of a cluster that there was not were left behind.
    let is_made = |name| dir.path().join(name).exists();
    assert!(!is_made("data") && !is_made("a"), "nothing was made");
    std::fs::create_dir_all(dir.path().join("data/lost+found")).expect("writable");
    refuse(&["notes"], "/notes", notes_words);
    assert_eq!(
        std::fs::read_dir(dir.path().join("data")).expect("it is there").count(),
        1,
        "nothing was made"
    );
    // The same where a unit has drives.
    started(dir.path(), &["a"]).feed("log append", b"kept").expect(0);
    refuse(&["a", "notes"], "/notes", notes_words);
    refuse(&["a", "disk/volume.chain"], "/disk/volume.chain", "volume");
    assert_eq!(std::fs::read(&notes).expect("it is there"), vec![7; 1 << 20]);
    assert_eq!(started(dir.path(), &["a"]).run("log read 0").expect(0).text(), "kept");
    // What was a unit's is one whose register is gone, and harm to it is harm.
    std::fs::remove_file(dir.path().join("data/layout.register")).expect("it is there");
    let told = refused(dir.path(), &["a"], 4);
    assert!(told.contains("the register of its cluster is lost"), "{told}");
    // Also where nothing on it says any more that it was one: the directory remembers that.
    let drive = std::fs::OpenOptions::new().write(true).open(dir.path().join("a")).expect("it is there");
    drive.write_all_at(&[7; 64 << 10], 0).expect("writable");
    let told = refused(dir.path(), &["a"], 4);
    assert!(told.contains("/a") && told.contains("the register of its cluster is lost"), "{told}");
}

#[test]
fn a_drive_that_is_named_twice_is_refused_and_nothing_is_made() {
    let dir = temp_dir();
    let told = refused(dir.path(), &["a", "./a"], 2);
    assert!(told.contains("/a is named twice"), "{told}");
    let told = refused(dir.path(), &["a+"], 2);
    assert!(told.contains("a side without a path"), "{told}");
    assert!(!dir.path().join("a").exists() && !dir.path().join("data").exists());
}

/// A file that is in use as long as it is not dropped.
fn held(path: &Path) -> std::fs::File {
    let held = std::fs::File::create(path).expect("writable");
    held.set_len(64 << 20).expect("writable");
    held.lock().expect("nobody else has it");
    held
}

#[test]
fn a_start_that_is_refused_one_of_its_drives_has_made_none_of_the_others() {
    // They were left behind, as large as they would have been.
    let dir = temp_dir();
    let _held = held(&dir.path().join("held"));
    std::fs::create_dir(dir.path().join("directory")).expect("writable");
    for (name, code, told) in [
        ("held", 3, "in use by another process"),
        ("no/such", 2, "no such file or drive"),
        ("directory", 2, "a directory is no drive"),
    ] {
        for units in ["1", "2"] {
            let mut arguments = drives(dir.path(), &["a", name]);
            arguments.extend(["--units".to_owned(), units.to_owned()]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let stderr = run(dev_command(&dir.path().join("data"), &arguments), b"").expect(code).stderr;
            assert!(stderr.contains(name) && stderr.contains(told), "{stderr}");
            let is_made = |name| dir.path().join(name).exists();
            assert!(!is_made("a") && !is_made("data"), "{name}");
        }
    }
    started(dir.path(), &["a", "b"]);
}

#[test]
fn a_drive_that_cannot_be_is_wrong_usage_and_one_in_use_is_not_whatever_it_is_for() {
    // A script starts again what ended with 3, and there was a 3 for what will never be.
    let dir = temp_dir();
    let _held = held(&dir.path().join("held"));
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let dev = Dev::start(&dir.path().join("served"), &[]);
    std::fs::write(dir.path().join("notes"), vec![7; 1 << 20]).expect("writable");
    // Root may not open this one for writing either.
    let forbidden = "/proc/sys/kernel/osrelease";
    for (name, code) in [("no/such", 2), ("held", 3), ("notes", 2), (forbidden, 2)] {
        let (path, data) = (path(name), dir.path().join("data"));
        for flag in ["--drive", "--cache", "--metadata"] {
            let told = run_refused(dev_command(&data, &[flag, &path])).expect(code).stderr;
            assert!(told.contains(&path) && !data.exists(), "{told}");
        }
        let told = dev.run(&format!("drive add {path}")).expect(code).stderr;
        assert!(told.contains(&path), "{told}");
    }
    // The same of a drive that is given besides those that the unit has.
    assert_eq!(dev.stop().0, Some(0));
    let (had, new) = (path("served/unit-1.chain"), path("no/such"));
    let command = dev_command(&dir.path().join("served"), &["--drive", &had, "--drive", &new]);
    let told = run_refused(command).expect(2).stderr;
    assert!(told.contains(&new), "{told}");
}

#[test]
fn a_wrong_cache_or_metadata_drive_is_refused_at_every_start_before_anything_is_made() {
    // A server looked at them when it became a member, and a new cache lay beside a metadata drive that was refused.
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let [new, notes] = ["new", "notes"].map(path);
    std::fs::write(&notes, vec![7; 1 << 20]).expect("writable");
    for more in [
        ["--cache", &new, "--metadata", &notes],
        ["--cache", &notes, "--metadata", &new],
        ["--cache", &new, "--drive", &new],
        ["--drive", &new, "--metadata", &new],
        ["--cache", &path("no/such"), "--metadata", &new],
        ["--cache", &new, "--metadata", &path("no/such")],
    ] {
        let mut server = server_command(&dir.path().join("data"), 1, "127.0.0.1:0");
        server.args(more);
        for command in [dev_command(&dir.path().join("data"), &more), server] {
            let told = run_refused(command).expect(2).stderr;
            assert!(more.iter().any(|path| told.contains(path)), "{told}");
            let is_made = |name| dir.path().join(name).exists();
            assert!(!is_made("new") && !is_made("data/1") && !is_made("data/layout.register"), "{more:?}");
        }
    }
    // Also where there is something already.
    assert_eq!(Dev::start(&dir.path().join("data"), &[]).stop().0, Some(0));
    let more = ["--cache", &new, "--metadata", &path("no/such")];
    let told = run_refused(dev_command(&dir.path().join("data"), &more)).expect(2).stderr;
    assert!(told.contains("/no/such") && !dir.path().join("new").exists(), "{told}");
}

#[test]
fn what_is_said_of_a_cache_where_there_is_none_is_refused() {
    // It had no effect, and nothing was said.
    let dir = temp_dir();
    let data = dir.path().join("data");
    let settings = dir.path().join("cache.toml");
    std::fs::write(&settings, "cache-keeps = \"all\"\n").expect("writable");
    let settings = settings.to_str().expect("text");
    let mut from_environment = dev_command(&data, &[]);
    from_environment.env("ITHACA_CACHE_SIZE", "1G");
    for command in [
        dev_command(&data, &["--cache-size", "8M"]),
        dev_command(&data, &["--cache-keeps", "all"]),
        dev_command(&data, &["--config", settings]),
        from_environment,
    ] {
        let told = run_refused(command).expect(2).stderr;
        assert!(told.contains("is of a cache, and none is named (--cache)"), "{told}");
    }
    assert!(!data.exists(), "nothing was made");
    // As by default it says nothing.
    Dev::start(&data, &["--cache-size", "4096M", "--cache-keeps", "tail"]);
}
