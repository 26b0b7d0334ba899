//! libnbd's and QEMU's programs.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Served, has, text, tool, volume};
use crate::harness::{number_field, temp_dir};

const SIZE: usize = 32 << 20;

/// An image that is like no other: some of its blocks are zeros.
fn image(path: &Path, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = vec![0; SIZE];
    for (nth, block) in bytes.chunks_mut(4096).enumerate() {
        if nth % 7 == 3 {
            continue;
        }
        for word in block.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_le_bytes());
        }
    }
    std::fs::write(path, &bytes).expect("writable");
    bytes
}

#[test]
fn libnbd_and_qemu_copy_a_disk_in_and_out() {
    if !has(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"]) {
        return;
    }
    let dir = temp_dir();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    volume(&["create", &path("disk"), "--size", "32M", "--keep-versions", "100000"]).expect(0);
    let first = image(&dir.path().join("first"), 1);
    let served = Served::start(&dir.path().join("disk"));
    let (now, named) = (served.uri(""), served.uri("disk"));
    let info = tool(&["nbdinfo", "--json", &now]);
    assert!(info.replace(' ', "").contains("\"export-size\":33554432"), "{info}");
    assert!(info.contains("base:allocation"), "{info}");
    assert!(tool(&["nbdinfo", "--list", &now]).contains("export=\"disk\""));
    tool(&["nbdcopy", "--flush", &path("first"), &now]);
    tool(&["nbdcopy", &named, &path("out")]);
    assert!(std::fs::read(path("out")).expect("copied") == first);
    // Zeros were not stored, and are told apart from data.
    let map = tool(&["nbdinfo", "--map", &now]);
    assert!(map.contains("hole,zero") && map.lines().count() > 1000, "{map}");
    tool(&["qemu-img", "convert", "-O", "qcow2", &now, &path("copy.qcow2")]);
    tool(&["qemu-img", "compare", "-f", "qcow2", "-F", "raw", &path("copy.qcow2"), &now]);
    // The past stays as it is while the present is written over.
    let version = served.version();
    let write = "write -P 7 1000 300000";
    tool(&["qemu-io", "-f", "raw", "-c", write, "-c", "read -P 7 1000 300000", "-c", "flush", &now]);
    let past = served.uri(&format!("disk@v={version}"));
    tool(&["qemu-img", "compare", "-f", "raw", "-F", "raw", &path("first"), &past]);
    let mut differs = Command::new("qemu-img");
    differs.args(["compare", "-f", "raw", "-F", "raw", &path("first"), &now]).stdout(Stdio::null());
    assert_eq!(differs.status().expect("it runs").code(), Some(1));
    assert_eq!(served.stop(), Some(0));
    volume(&["check", &path("disk")]).expect(0);
}

impl Served {
    /// The newest version, as the export of the present says.
    fn version(&self) -> u64 {
        let info = tool(&["nbdinfo", "--json", &self.uri("@now")]);
        let at = info.find(", version ").expect("a description") + ", version ".len();
        info[at..].split('"').next().expect("it ends").parse().expect("a number")
    }
}

#[test]
fn a_server_that_is_killed_under_load_loses_nothing_that_was_flushed() {
    if !has(&["nbdcopy"]) {
        return;
    }
    let dir = temp_dir();
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    volume(&["create", &path("disk"), "--size", "32M"]).expect(0);
    let mut flushed = image(&dir.path().join("image"), 1);
    let mut served = Served::start(&dir.path().join("disk"));
    let addr = served.addr.clone();
    tool(&["nbdcopy", "--flush", &path("image"), &served.uri("")]);
    for kill in 2..6 {
        let next = image(&dir.path().join("image"), kill);
        let mut copy =
            Command::new("nbdcopy").args([&path("image"), &served.uri("")]).stderr(Stdio::null()).spawn();
        let copy = copy.as_mut().expect("it starts");
        // Some way into the copy: when the server has had so much processor time for it as the turn says.
        let spent = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
            let fields = stat.rsplit(')').next().expect("a name").split_whitespace();
            fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum::<u64>()
        };
        let until = spent(served.child.id()) + kill % 3;
        while spent(served.child.id()) < until && copy.try_wait().expect("a child").is_none() {
            std::thread::yield_now();
        }
        drop(served);
        copy.wait().expect("it ends");
        served = Served::at(&dir.path().join("disk"), &addr);
        tool(&["nbdcopy", &served.uri(""), &path("out")]);
        let found = std::fs::read(path("out")).expect("copied");
        for (nth, block) in found.chunks(4096).enumerate() {
            let at = nth * 4096..(nth + 1) * 4096;
            assert!(
                block == &flushed[at.clone()] || block == &next[at],
                "kill {kill}: block {nth} is neither"
            );
        }
        // What is there now is all there was: flushed by the next copy.
        tool(&["nbdcopy", "--flush", &path("out"), &served.uri("")]);
        flushed = found;
    }
    assert_eq!(served.stop(), Some(0));
    volume(&["check", &path("disk")]).expect(0);
    let shown = volume(&["info", &path("disk"), "--json"]).expect(0).text();
    assert!(number_field(&shown, "data_blocks") > 6000, "{shown}");
}
