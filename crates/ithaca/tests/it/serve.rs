//! `ithaca dev`: starting, stopping, resuming, and what a start is refused for.

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};

use crate::harness::{Dev, dev_command, ithaca, run, signal, temp_dir};

#[test]
fn ready_is_one_line_and_stdout_is_silent_after_it() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let expected = format!(
        "{{\"ready\":true,\"log\":\"{0}\",\"http\":\"{1}\",\"nodes\":[\"{0}\"]}}\n",
        dev.log, dev.http
    );
    assert_eq!(dev.ready, expected);
    dev.feed("log append --lines", b"a\nb\n").expect(0);
    assert_eq!(dev.stop(), (Some(0), String::new()));
}

#[test]
fn the_same_directory_resumes() {
    let dir = temp_dir();
    for start in 0..3u64 {
        let dev = Dev::start(dir.path(), &["--units", "2"]);
        let line = format!("start {start}");
        assert_eq!(dev.feed("log append", line.as_bytes()).expect(0).positions(), [start]);
        assert_eq!(dev.run("log read 0").expect(0).text(), "start 0");
        assert_eq!(dev.stop().0, Some(0));
    }
}

#[test]
fn copies_are_kept_on_as_many_units_and_more_than_there_are_units_is_wrong_usage() {
    let dir = temp_dir();
    for start in 0..2u64 {
        let dev = Dev::start(dir.path(), &["--units", "4", "--replicas", "2"]);
        for round in 0..4 {
            let pos = dev.feed("log append", b"twice").expect(0).positions();
            assert_eq!(pos, [start * 4 + round]);
        }
        let status = dev.run("cluster status --json").expect(0).text();
        assert!(status.contains("{\"replicas\":[4,1],\"base\":"), "{status}");
        assert_eq!(dev.stop().0, Some(0));
    }
    let told =
        run(dev_command(temp_dir().path(), &["--units", "2", "--replicas", "3"]), b"").expect(2).stderr;
    assert!(told.contains("3 copies") && told.contains("2 units") && told.lines().count() == 1, "{told}");
    let told = run(dev_command(dir.path(), &["--units", "4"]), b"").expect(2).stderr;
    assert!(told.contains("keeps 2 copies"), "{told}");
}

#[test]
fn an_interrupt_stops_it_as_well() {
    let dir = temp_dir();
    let mut dev = Dev::start(dir.path(), &[]);
    signal(&dev.child, "INT");
    assert_eq!(dev.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_directory_that_is_in_use_is_refused_and_its_owner_not_harmed() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &[]);
    let told = run(dev_command(dir.path(), &[]), b"").expect(3).stderr;
    assert!(told.contains("in use"), "{told}");
    dev.feed("log append", b"still there").expect(0);
}

#[test]
fn a_port_that_is_in_use_is_named() {
    let (dir, other) = (temp_dir(), temp_dir());
    let dev = Dev::start(dir.path(), &[]);
    let told = run(dev_command(other.path(), &["--listen", &dev.log]), b"").expect(3).stderr;
    assert!(told.contains(&dev.log) && told.contains("in use"), "{told}");
}

#[test]
fn a_data_path_that_cannot_be_a_directory_is_wrong_usage() {
    let told = run(dev_command(std::path::Path::new("/dev/null/data"), &[]), b"").expect(2).stderr;
    assert!(told.contains("/dev/null/data"), "{told}");
}

#[test]
fn a_drive_is_made_where_it_is_asked_for_and_must_be_there_ever_after() {
    let dir = temp_dir();
    let drive = dir.path().join("elsewhere");
    let more = ["--drive", drive.to_str().expect("text")];
    let data = dir.path().join("data");
    Dev::start(&data, &more).feed("log append", b"kept").expect(0);
    assert!(drive.is_file());
    assert_eq!(Dev::start(&data, &more).run("log read 0").expect(0).text(), "kept");
    std::fs::rename(&drive, dir.path().join("moved")).expect("it is there");
    let told = run(dev_command(&data, &more), b"").expect(2).stderr;
    assert!(told.contains("elsewhere"), "{told}");
}

#[test]
fn another_number_of_units_than_the_cluster_has_is_refused() {
    let dir = temp_dir();
    Dev::start(dir.path(), &[]).feed("log append", b"one unit").expect(0);
    let told = run(dev_command(dir.path(), &["--units", "2"]), b"").expect(2).stderr;
    assert!(told.contains("units"), "{told}");
}

#[test]
fn data_of_a_newer_version_is_refused_by_its_number() {
    let dir = temp_dir();
    Dev::start(dir.path(), &[]).feed("log append", b"from the future").expect(0);
    let path = dir.path().join("layout.register");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let slot_bytes = bytes.len() / 2;
    for slot in [0, slot_bytes] {
        // As a newer program writes it: the version follows the magic number, and the checksum is of the header before it and of the value.
        let (header, value) = (slot..slot + 20, slot + 24);
        bytes[slot + 4] = 99;
        let length = u32::from_le_bytes(bytes[slot + 16..slot + 20].try_into().expect("four bytes")) as usize;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[header]), &bytes[value..value + length]);
        bytes[slot + 20..value].copy_from_slice(&checksum.to_le_bytes());
    }
    std::fs::write(&path, bytes).expect("writable");
    let told = run(dev_command(dir.path(), &[]), b"").expect(3).stderr;
    assert!(told.contains("layout.register: format version 99"), "{told}");
}

#[test]
fn a_server_is_one_durable_node_that_says_what_to_type_next() {
    let dir = temp_dir();
    let mut command =
        ithaca(&["server", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--drive-size", "64M"]);
    let mut child = command.current_dir(dir.path()).spawn().expect("it starts");
    let mut ready = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
    stdout.read_line(&mut ready).expect("it prints");
    let endpoint = ready.trim().rsplit(' ').next().expect("it ends with an endpoint").to_owned();
    assert!(ready.contains("next: echo hello | ithaca log append --endpoint "), "{ready}");
    run(ithaca(&["log", "append", "--endpoint", &endpoint]), b"hello").expect(0);
    assert!(dir.path().join("ithaca-data").is_dir());
    signal(&child, "TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_damaged_register_is_told_as_damage_and_nothing_is_lost_by_looking() {
    let dir = temp_dir();
    Dev::start(dir.path(), &[]).feed("log append", b"safe").expect(0);
    let path = dir.path().join("layout.register");
    let whole = std::fs::read(&path).expect("it is there");
    let mut file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
    file.write_all(&vec![0x55; whole.len()]).expect("writable");
    let told = run(dev_command(dir.path(), &[]), b"").expect(4).stderr;
    assert!(told.contains("layout.register"), "{told}");
    file.seek(SeekFrom::Start(0)).expect("a file");
    file.write_all(&whole).expect("writable");
    assert_eq!(Dev::start(dir.path(), &[]).run("log read 0").expect(0).text(), "safe");
}

#[test]
fn a_full_log_says_so_and_has_room_again_when_it_is_trimmed_however_small_it_is() {
    let dir = temp_dir();
    let dev = Dev::start(dir.path(), &["--quota", "300M"]);
    let entry = vec![7; 1_000_000];
    for round in 0..2 {
        let mut tail = 0;
        let refused = loop {
            let ran = dev.feed("log append", &entry);
            match ran.code {
                Some(0) => tail = ran.positions()[0] + 1,
                _ => break ran.expect(3).stderr,
            }
        };
        assert!(refused.contains("the drive is full"), "{refused}");
        let status = dev.run("cluster status --json").expect(0).text();
        assert!(status.contains("\"state\":\"full\"") && status.contains("\"appendable\":false"), "{status}");
        if round == 0 {
            // What is small finds a place still.
            dev.feed("log append", b"x").expect(0);
            let status = dev.run("cluster status").expect(0).text();
            let told = "\nentries are refused, the large ones first: fewer than 1 nodes have room";
            assert!(status.contains(told) && !status.contains("nothing is appended"), "{status}");
        }
        dev.run(&format!("log trim {} --prefix", tail - 1)).expect(0);
        // The trim is acknowledged before the room that it makes is free.
        assert!((0..1000).any(|_| dev.feed("log append", &entry).code == Some(0)), "it stays full");
        let status = dev.run("cluster status --json").expect(0).text();
        assert!(status.contains("\"state\":\"up\"") && status.contains("\"appendable\":true"), "{status}");
    }
}

#[test]
fn a_size_that_is_none_of_a_drive_is_refused_before_there_is_one() {
    let dir = temp_dir();
    for size in ["0", "1k", "4095"] {
        let data = dir.path().to_str().expect("text");
        let told = run(ithaca(&["dev", "--data", data, "--drive-size", size]), b"").expect(2).stderr;
        assert!(told.contains("--drive-size") && told.contains("4096 bytes at least"), "{told}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing was made");
}
