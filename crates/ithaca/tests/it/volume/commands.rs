//! The commands: what they print, how they end, and what they refuse.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Served, has, text, volume};
use crate::harness::{ithaca, number_field, run, signal, string_field, temp_dir};

#[test]
fn a_volume_is_made_shown_checked_and_scrubbed() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    let create = ["create", text(&disk), "--size", "8M", "--keep-versions", "9", "--json"];
    let made = volume(&create).expect(0).text();
    assert_eq!((number_field(&made, "size_bytes"), number_field(&made, "blocks")), (8 << 20, 2048));
    let shown = volume(&["info", text(&disk), "--json"]).expect(0).text();
    for key in ["version", "floor", "data_blocks", "versions"] {
        assert_eq!(number_field(&shown, key), 0, "{key}");
    }
    assert_eq!(number_field(&shown, "keep_versions"), 9);
    assert_eq!(string_field(&shown, "volume"), string_field(&made, "volume"));
    assert!(volume(&["check", text(&disk)]).expect(0).text().contains("ok: volume"));
    assert!(run(ithaca(&["fsck", text(&disk)]), b"").expect(0).text().contains("ok: volume"));
    let scrubbed = volume(&["scrub", text(&disk), "--json"]).expect(0).text();
    assert_eq!(number_field(&scrubbed, "repaired"), 0);
    let named = volume(&["snapshot", text(&disk), "one", "--json"]).expect(0).text();
    assert_eq!(named, "{\"snapshot\":\"one\",\"version\":0}\n");
    assert!(volume(&["info", text(&disk), "--json"]).expect(0).text().contains("\"name\":\"one\""));
    volume(&["snapshot", text(&disk), "one", "--delete"]).expect(0);
    volume(&["snapshot", text(&disk), "one", "--delete"]).expect(1);
}

#[test]
fn a_volume_of_too_little_room_is_refused_before_there_is_a_file() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    let told = volume(&["create", text(&disk), "--size", "4M", "--room", "1M"]).expect(2).stderr;
    assert!(told.contains("--room 1048576: expected 1684") && told.contains("for --size 4194304"), "{told}");
    volume(&["create", text(&disk), "--size", "4M"]).expect(0);
}

#[test]
fn a_volume_that_cannot_be_is_told_by_what_was_asked_for() {
    let dir = temp_dir();
    for (line, told) in [
        // The side without a name was the working directory: a file was made there.
        ("volume create disk+ --size 64M", "a side without a path"),
        ("volume serve +disk", "a side without a path"),
        // It named an option that no user has.
        ("volume create disk --size 99T", "--size 108851651149824: it needs a log of "),
    ] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let mut command = ithaca(&arguments);
        command.current_dir(dir.path());
        let told_is = run(command, b"").expect(2).stderr;
        assert!(told_is.contains(told), "{line}: {told_is}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "{line}");
    }
}

#[test]
fn a_drive_that_is_named_twice_is_refused_and_nothing_is_made() {
    let dir = temp_dir();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    let refuse = |dirs: &[&str]| {
        let told = volume(&[&["create", "--size", "4M"], dirs].concat()).expect(2).stderr;
        assert!(told.contains("is named twice"), "{told}");
    };
    let (one, same) = (path("one"), path("./other/../one"));
    refuse(&[&format!("{one}+{one}")]);
    refuse(&[&one, &one]);
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing was made");
    // It seems to be in use by somebody else to who opens it twice.
    let disk = path("disk");
    volume(&["create", &disk, "--size", "4M"]).expect(0);
    for verb in [&["info"] as &[&str], &["info", "--rescue"], &["serve"], &["check"], &["scrub"]] {
        for dirs in
            [&[&disk, &disk][..], &[&format!("{disk}+{disk}")], &[&disk, &format!("{disk}/volume.chain")]]
        {
            let dirs: Vec<&str> = dirs.iter().map(|dir| dir.as_str()).collect();
            let told = volume(&[verb, &dirs].concat()).expect(2).stderr;
            assert!(told.contains("is named twice"), "{verb:?} {dirs:?}: {told}");
        }
    }
    // By other names, of what is there.
    std::fs::create_dir(dir.path().join("one")).expect("writable");
    std::fs::create_dir(dir.path().join("other")).expect("writable");
    std::os::unix::fs::symlink(&one, path("link")).expect("writable");
    refuse(&[&one, &same]);
    refuse(&[&format!("{one}+{}", path("link"))]);
    assert_eq!(std::fs::read_dir(&one).expect("it is there").count(), 0, "nothing was made");
    std::fs::write(path("file"), vec![0; 32 << 20]).expect("writable");
    std::fs::hard_link(path("file"), path("hard")).expect("writable");
    refuse(&[&path("file"), &path("hard")]);
    volume(&["create", "--size", "4M", &format!("{one}+{}", path("other"))]).expect(0);
}

#[test]
fn regions_are_made_listed_and_removed_also_while_the_volume_is_served() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    assert_eq!(volume(&["region", "ls", text(&disk)]).expect(0).text(), "no regions\n");
    volume(&["region", "add", text(&disk), "one", "--size", "1M"]).expect(0);
    let served = Served::start(&disk);
    let made = volume(&["region", "add", text(&disk), "two", "--size", "7M", "--json"]).expect(0).text();
    assert_eq!(made, "{\"regions\":[{\"name\":\"two\",\"first_block\":256,\"blocks\":1792}]}\n");
    let refused = volume(&["region", "add", text(&disk), "three", "--size", "4k"]).expect(2).stderr;
    assert!(refused.contains("no gap between regions has 1 blocks, the longest has 0"), "{refused}");
    volume(&["region", "add", text(&disk), "three", "--size", "5"]).expect(2);
    volume(&["region", "rm", text(&disk), "one"]).expect(0);
    volume(&["region", "rm", text(&disk), "one"]).expect(1);
    assert_eq!(served.stop(), Some(0));
    let listed = volume(&["region", "ls", text(&disk)]).expect(0).text();
    assert_eq!(listed, "region two: 7.0M, from block 256 on\n");
}

#[test]
fn a_volume_may_be_spread_over_directories_and_each_is_needed() {
    let dir = temp_dir();
    let [one, two, three] = ["one", "two", "three"].map(|name| text(&dir.path().join(name)).to_owned());
    let mirror = format!("{two}+{three}");
    volume(&["create", &one, &mirror, "--size", "8M"]).expect(0);
    let shown = volume(&["info", &one, &two, &three]).expect(0).text();
    assert_eq!(shown.lines().count(), 4, "{shown}");
    let refused = volume(&["info", &one]).expect(2).stderr;
    assert!(refused.contains("is missing"), "{refused}");
    volume(&["snapshot", &one, &mirror, "first"]).expect(0);
    volume(&["region", "add", &one, &mirror, "mail", "--size", "1M"]).expect(0);
    let listed = volume(&["region", "ls", &one, &mirror]).expect(0).text();
    assert_eq!(listed, "region mail: 1.0M, from block 0 on\n");
    volume(&["region", "rm", &one, &mirror, "mail"]).expect(0);
    volume(&["snapshot", &one, &mirror, "first", "--delete"]).expect(0);
}

#[test]
fn directories_that_make_no_volume_together_are_wrong_usage() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (left, right) = (path("left"), path("right"));
    for disk in [&left, &right] {
        volume(&["create", disk, "--size", "8M"]).expect(0);
    }
    let pair = format!("{}+{}", path("a"), path("b"));
    volume(&["create", &pair, "--size", "8M"]).expect(0);
    // Who only looks at one side makes nothing of the other stale.
    for verb in ["info", "scrub"] {
        let told = volume(&[verb, &path("a")]).expect(2).stderr;
        assert!(told.contains("is missing"), "{told}");
    }
    volume(&["info", &pair]).expect(0);
    // Each goes on without the other, and then nobody misses that.
    for side in ["a", "b"] {
        assert_eq!(Served::start(Path::new(&path(side))).stop(), Some(0));
        volume(&["info", &path(side)]).expect(0);
    }
    for (dirs, words) in
        [(&[left.as_str(), &right] as &[&str], "holds chain"), (&[pair.as_str()], "do not agree")]
    {
        for verb in ["info", "check", "serve"] {
            let told = volume(&[&[verb], dirs].concat()).expect(2).stderr;
            assert!(told.contains(words), "{verb} {dirs:?}: {told}");
        }
    }
    let sides: Vec<String> = (0..5).map(|side| path(&format!("side-{side}"))).collect();
    let told = volume(&["create", &sides.join("+"), "--size", "8M"]).expect(2).stderr;
    assert!(told.contains("a mirrored link of 5"), "{told}");
}

#[test]
fn what_cannot_be_done_is_refused_in_one_line() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let expect = |arguments: &[&str], code, words: &str| {
        let said = volume(arguments).expect(code).stderr;
        assert!(said.contains(words) && said.contains(arguments[0]), "{arguments:?}: {said}");
    };
    expect(&["create", text(&disk), "--size", "8M"], 2, "already");
    expect(&["create", text(&dir.path().join("other")), "--size", "5000"], 2, "multiple of 4096");
    expect(&["info", text(&dir.path().join("nowhere"))], 2, "no such file");
    std::fs::write(dir.path().join("zeros"), vec![0; 1 << 20]).expect("writable");
    expect(&["info", text(&dir.path().join("zeros"))], 2, "holds no volume");
    let noise = dir.path().join("noise");
    std::fs::write(&noise, vec![7; 32 << 20]).expect("writable");
    for verb in ["check", "scrub", "serve"] {
        expect(&[verb, text(&dir.path().join("zeros"))], 2, "holds no volume");
    }
    for verb in [&["info"] as &[&str], &["create", "--size", "8M"], &["check"], &["scrub"], &["serve"]] {
        expect(&[verb, &[text(&noise)]].concat(), 2, "neither blank nor a volume");
    }
    std::fs::write(&noise, b"notes").expect("writable");
    expect(&["info", text(&noise)], 2, "a file of 5 bytes is no drive");
    expect(&["check", text(&noise)], 2, "a file of 5 bytes is no drive");
    // By its name it was one.
    std::fs::create_dir(dir.path().join("harmed")).expect("writable");
    std::fs::write(dir.path().join("harmed/volume.chain"), vec![7; 32 << 20]).expect("writable");
    expect(&["info", text(&dir.path().join("harmed"))], 4, "0 of 4 superblock copies are good");
    expect(&["check", text(&dir.path().join("harmed"))], 4, "the volume is damaged");
    let named = volume(&["snapshot", text(&disk), "a@b"]).expect(2).stderr;
    assert!(named.contains("a@b") && named.contains("without `@`"), "{named}");
    let served = Served::start(&disk);
    expect(&["check", text(&disk)], 3, "in use");
    expect(&["info", text(&disk), "--socket", text(&dir.path().join("none"))], 3, "nobody listens");
    let other = dir.path().join("other");
    volume(&["create", text(&other), "--size", "8M"]).expect(0);
    expect(&["serve", text(&other), "--nbd", &served.addr], 3, "port is in use");
    assert_eq!(served.stop(), Some(0));
}

#[test]
fn a_volume_that_is_served_is_shown_named_and_scrubbed_by_its_server() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M", "--keep-versions", "9"]).expect(0);
    let before = volume(&["info", text(&disk), "--json"]).expect(0).text();
    let served = Served::start(&disk);
    let during = volume(&["info", text(&disk), "--json"]).expect(0).text();
    let fields = ["volume", "isolation"].map(|key| string_field(&during, key));
    assert_eq!(fields, ["volume", "isolation"].map(|key| string_field(&before, key)));
    for key in ["size_bytes", "keep_versions", "segment_bytes"] {
        assert_eq!(number_field(&during, key), number_field(&before, key), "{key}");
    }
    let named = volume(&["snapshot", text(&disk), "one", "--json"]).expect(0).text();
    assert_eq!(named, "{\"snapshot\":\"one\",\"version\":0}\n");
    assert!(volume(&["info", text(&disk)]).expect(0).text().contains("snapshot one: version 0"));
    let again = volume(&["snapshot", text(&disk), "one"]).expect(2).stderr;
    assert!(again.contains("there is a snapshot \"one\" already"), "{again}");
    volume(&["snapshot", text(&disk), "two", "--delete"]).expect(1);
    assert_eq!(number_field(&volume(&["scrub", text(&disk), "--json"]).expect(0).text(), "repaired"), 0);
    // At another path, where only those find it who are told.
    assert_eq!(served.stop(), Some(0));
    let path = text(&dir.path().join("elsewhere.sock")).to_owned();
    let served = Served::with(&disk, &["--socket", &path]);
    assert_eq!(served.socket, path);
    let refused = volume(&["serve", text(&disk), "--nbd", "127.0.0.1:0"]).expect(3).stderr;
    assert!(refused.contains("in use"), "{refused}");
    volume(&["info", text(&disk), "--socket", &path]).expect(0);
    // Not by whom something else is meant, or nothing.
    let other = dir.path().join("other");
    volume(&["create", text(&other), "--size", "8M"]).expect(0);
    for wrong in [&other, &dir.path().join("none")] {
        let told = volume(&["snapshot", text(wrong), "one", "--delete", "--socket", &path]).expect(2).stderr;
        assert!(told.contains(&path) && told.contains("another one"), "{told}");
    }
    volume(&["snapshot", text(&disk), "one", "--delete", "--socket", &path]).expect(0);
    // What a killed server leaves does not stop the next one, nor commands that open the volume themselves.
    drop(served);
    volume(&["info", text(&disk)]).expect(0);
    let served = Served::with(&disk, &["--socket", &path]);
    volume(&["info", text(&disk), "--socket", &path]).expect(0);
    assert_eq!(served.stop(), Some(0));
    assert!(!std::path::Path::new(&path).exists(), "a server that stops takes its socket along");
}

#[test]
fn a_command_waits_no_longer_for_a_server_than_it_is_told_to() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let served = Served::start(&disk);
    volume(&["region", "add", text(&disk), "mail", "--size", "1M"]).expect(0);
    signal(&served.child, "STOP");
    for command in [
        &["info", text(&disk)][..],
        &["snapshot", text(&disk), "one"],
        &["region", "rm", text(&disk), "mail"],
        &["scrub", text(&disk)],
    ] {
        let told = volume(&[command, &["--timeout", "300ms"]].concat()).expect(3).stderr;
        assert!(told.contains(&served.socket) && told.contains("no answer within 300ms"), "{told}");
    }
}

#[test]
fn a_chain_that_is_no_volume_is_refused_by_name() {
    let dir = temp_dir();
    let dev = crate::harness::Dev::start(dir.path(), &[]);
    dev.feed("log append", b"x").expect(0);
    assert_eq!(dev.stop().0, Some(0));
    let chain = dir.path().join("unit-1.chain");
    for verb in ["info", "check", "serve"] {
        let said = volume(&[verb, text(&chain)]).expect(2).stderr;
        assert!(said.contains("no volume"), "{said}");
    }
}

#[test]
fn a_server_that_is_stopped_or_killed_gives_its_port_back_at_once() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let first = Served::start(&disk);
    let addr = first.addr.clone();
    // A connection that the server closes leaves a socket behind, which must not keep the port taken.
    let client = std::net::TcpStream::connect(&addr).expect("it listens");
    assert_eq!(first.stop(), Some(0));
    let second = Served::at(&disk, &addr);
    drop((second, client));
    assert_eq!(Served::at(&disk, &addr).stop(), Some(0));
}

#[test]
fn a_volume_that_is_harmed_says_so_and_names_the_blocks() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let served = Served::start(&disk);
    // Raw NBD: flags, the export without a name, a write with FUA of block 3, a disconnect.
    let mut client = std::net::TcpStream::connect(&served.addr).expect("it listens");
    let needle = b"a needle in a block, of which there is one";
    let mut block = vec![7; 4096];
    block[..needle.len()].copy_from_slice(needle);
    let mut bytes = Vec::from(*b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0");
    bytes.extend_from_slice(b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x30\0\0\0\x10\0");
    bytes.extend_from_slice(&block);
    client.write_all(&bytes).expect("it listens");
    let mut answer = [0; 18 + 10 + 16];
    std::io::Read::read_exact(&mut client, &mut answer).expect("an answer");
    assert_eq!(answer[28..36], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "it was written");
    assert_eq!(served.stop(), Some(0));
    let path = disk.join("volume.chain");
    let stored = std::fs::read(&path).expect("it is there");
    let at = stored.windows(needle.len()).position(|part| part == needle).expect("it is stored as it is");
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("writable");
    file.seek(SeekFrom::Start(at as u64)).expect("a file");
    file.write_all(b"A").expect("writable");
    let checked = volume(&["check", text(&disk)]).expect(4).text();
    assert!(checked.contains("the data of blocks 3 to 3"), "{checked}");
    let told = volume(&["info", text(&disk)]).expect(0).text();
    assert!(told.contains("\n  damaged: ") && told.contains("the data of blocks 3 to 3"), "{told}");
    let told = volume(&["info", text(&disk), "--json"]).expect(0).text();
    assert!(told.contains("\"damaged\":1,\"damage\":[\"") && told.contains("blocks 3 to 3"), "{told}");
}

#[test]
fn a_socket_with_a_path_that_is_too_long_is_wrong_usage() {
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "4M"]).expect(0);
    let long = dir.path().join("x".repeat(125));
    for verb in [&["info"] as &[&str], &["scrub"], &["serve", "--nbd", "127.0.0.1:0"]] {
        let told = volume(&[verb, &[text(&disk), "--socket", text(&long)]].concat()).expect(2).stderr;
        assert!(told.contains("a socket's may have 107"), "{told}");
    }
}

/// The program for a user who has no more rights than a file's mode gives. `None` where root cannot give them up.
fn without_rights(is_root: bool, arguments: &[&str]) -> Option<Command> {
    let program = ithaca(arguments);
    if !is_root {
        return Some(program);
    }
    if !has(&["setpriv"]) {
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-dac_override"]).arg(program.get_program()).args(program.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

#[test]
fn a_check_needs_no_more_than_to_read_and_sees_who_has_the_volume_open() {
    // A file system that has turned read-only after an error, or a copy that is kept from changes, is to be looked at first of all.
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "8M"]).expect(0);
    let file = disk.join("volume.chain");
    let is_root = std::fs::metadata(&file).expect("it is there").uid() == 0;
    let read = |arguments: &[&str]| Some(run(without_rights(is_root, arguments)?, b""));
    let served = Served::start(&disk);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).expect("it is ours");
    let Some(refused) = read(&["volume", "check", text(&disk)]) else { return };
    assert!(refused.expect(3).stderr.contains("in use"));
    assert_eq!(served.stop(), Some(0));
    let before = std::fs::read(&file).expect("readable");
    for arguments in [&["volume", "check", text(&disk)][..], &["fsck", text(&disk)]] {
        let told = read(arguments).expect("as before").expect(0).text();
        assert!(told.contains("ok: volume"), "{told}");
    }
    let told = read(&["volume", "info", text(&disk)]).expect("as before").expect(2).stderr;
    assert!(told.contains("ermission denied") && told.contains("--rescue"), "{told}");
    let told = read(&["volume", "info", text(&disk), "--rescue"]).expect("as before").expect(0).text();
    assert!(told.contains("read-only, nothing is lost"), "{told}");
    assert!(std::fs::read(&file).expect("readable") == before, "nothing was changed");
}
