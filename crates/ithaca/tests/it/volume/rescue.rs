//! A volume of which one block has gone bad, in the log that it is: what is older can be had, and nothing is changed by that.

use std::path::Path;

use super::mount::{Mounted, can_mount};
use super::{Served, has, text, tool, volume};
use crate::harness::{number_field, temp_dir};

/// Flips a bit in the head of the group whose data begins with this byte, over and over.
fn harm_group_of(file: &Path, pattern: u8) {
    let mut image = std::fs::read(file).expect("readable");
    let number =
        |image: &[u8], at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("4 bytes")) as usize;
    let is_it = |at: &usize| {
        let data = at + (number(&image, at + 76) + number(&image, at + 80)).next_multiple_of(4096);
        image[*at..].starts_with(b"ITHG")
            && image.get(data..data + 4096).is_some_and(|block| block.iter().all(|&byte| byte == pattern))
    };
    let at = (0..image.len()).step_by(4096).find(is_it).expect("it was written");
    image[at + 50] ^= 4;
    std::fs::write(file, image).expect("writable");
}

/// A volume that had 1, then 2 and then 3 in its first 64 KiB, and has lost the last of that.
fn harmed(disk: &Path) {
    volume(&["create", text(disk), "--size", "8M"]).expect(0);
    let served = Served::start(disk);
    for pattern in 1..=3 {
        let write = format!("write -P {pattern} 0 64k");
        tool(&["qemu-io", "-f", "raw", "-c", &write, "-c", "flush", &served.uri("disk")]);
    }
    assert_eq!(served.stop(), Some(0));
    harm_group_of(&disk.join("volume.chain"), 3);
}

#[test]
fn what_is_older_than_a_lost_group_is_mounted_too_and_cannot_be_written() {
    if !can_mount() || !has(&["qemu-io"]) {
        return;
    }
    let dir = temp_dir();
    let (disk, at) = (dir.path().join("disk"), dir.path().join("disk.img"));
    harmed(&disk);
    std::fs::write(&at, b"").expect("writable");
    let before = std::fs::read(disk.join("volume.chain")).expect("readable");
    volume(&["mount", text(&disk), text(&at)]).expect(4);
    let mounted = Mounted::with(&disk, &at, &["--rescue"]);
    assert!(mounted.ready.contains("\"read_only\":true"), "{}", mounted.ready);
    let shown = std::fs::read(&at).expect("readable");
    assert!(shown.len() == 8 << 20 && shown[..64 << 10].iter().all(|&byte| byte == 2), "version 2");
    let refused = std::fs::OpenOptions::new().write(true).open(&at).expect_err("it is read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(mounted.stop(), Some(0));
    assert!(before == std::fs::read(disk.join("volume.chain")).expect("readable"), "the file has changed");
}

#[test]
fn what_is_older_than_a_lost_group_is_served_and_nothing_is_written() {
    if !has(&["qemu-io", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let dir = temp_dir();
    let (disk, copy) = (dir.path().join("disk"), dir.path().join("copy"));
    harmed(&disk);
    let file = disk.join("volume.chain");
    let before = std::fs::read(&file).expect("readable");
    for verb in [&["info"] as &[&str], &["serve", "--nbd", "127.0.0.1:0"], &["snapshot", "now"]] {
        let told = volume(&[&[verb[0], text(&disk)], &verb[1..]].concat()).expect(4).stderr;
        assert!(told.contains("records are lost") && told.contains("--rescue"), "{told}");
    }
    let shown = volume(&["info", text(&disk), "--rescue", "--json"]).expect(0).text();
    assert_eq!(
        (number_field(&shown, "version"), number_field(&shown, "last_group") > 1),
        (2, true),
        "{shown}"
    );
    let shown = volume(&["info", text(&disk), "--rescue"]).expect(0).text();
    assert!(shown.contains("read-only as of version 2: group "), "{shown}");
    volume(&["info", text(&disk), "--rescue", "--socket", "x"]).expect(2);
    let served = Served::with(&disk, &["--rescue"]);
    assert!(tool(&["nbdinfo", &served.uri("disk")]).contains("is_read_only: true"));
    tool(&["nbdcopy", &served.uri("disk"), text(&copy)]);
    let copied = std::fs::read(&copy).expect("readable");
    assert!(copied.len() == 8 << 20 && copied[..64 << 10].iter().all(|&byte| byte == 2), "version 2");
    assert!(copied[64 << 10..].iter().all(|&byte| byte == 0), "nothing else was written");
    assert_eq!(served.stop(), Some(0));
    assert!(before == std::fs::read(&file).expect("readable"), "the file has changed");
}
