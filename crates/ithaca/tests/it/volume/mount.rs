//! A volume as a file: C programs whose threads have transactions, ordinary tools, and how it ends.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{has, leave_out, text, tool, until, volume};
use crate::harness::{ithaca, signal, string_field, temp_dir};

/// A mounted volume; its server is killed when this is dropped.
pub struct Mounted {
    child: Child,
    file: PathBuf,
    /// What it said when it was ready.
    pub ready: String,
}

impl Mounted {
    fn start(dir: &Path, at: &Path) -> Self {
        Self::with(dir, at, &[])
    }

    /// Mounts it with more arguments.
    pub fn with(dir: &Path, at: &Path, more: &[&str]) -> Self {
        let mut command = ithaca(&["volume", "mount", text(dir), text(at), "--json"]);
        let mut child = command.args(more).stderr(Stdio::inherit()).spawn().expect("the program starts");
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        stdout.read_line(&mut ready).expect("its output is open");
        Self { child, file: string_field(&ready, "file").into(), ready }
    }

    fn open(&self) -> std::fs::File {
        let open = std::fs::OpenOptions::new().read(true).write(true).open(&self.file);
        open.expect("it is mounted")
    }

    /// Asks it to stop, and returns its exit code.
    pub fn stop(mut self) -> Option<i32> {
        signal(&self.child, "TERM");
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether FUSE can be mounted here.
pub fn can_mount() -> bool {
    let is_able = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    (is_able || leave_out("/dev/fuse cannot be opened")) && has(&["fusermount3"])
}

fn disk(dir: &Path) -> PathBuf {
    let disk = dir.join("disk");
    volume(&["create", text(&disk), "--size", "64M"]).expect(0);
    disk
}

#[test]
fn threads_of_a_c_program_have_transactions_of_their_own() {
    if !can_mount() || !has(&["gcc"]) {
        return;
    }
    let dir = temp_dir();
    let (disk, at, program) = (disk(dir.path()), dir.path().join("disk.img"), dir.path().join("threads"));
    std::fs::write(&at, b"").expect("writable");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../c/tests/threads.c");
    tool(&[
        "gcc",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        text(&source),
        "-o",
        text(&program),
    ]);
    let mounted = Mounted::start(&disk, &at);
    let said = tool(&[text(&program), text(&mounted.file)]);
    assert!(said.starts_with("counted to 100"), "{said}");

    // A process that is killed takes its transaction along.
    let mut dying = Command::new(&program);
    let dying = dying.arg(&mounted.file).arg("die").stdout(Stdio::piped()).spawn();
    let mut dying = dying.expect("it starts");
    let mut said = String::new();
    BufReader::new(dying.stdout.take().expect("piped")).read_line(&mut said).expect("it speaks");
    assert_eq!(said, "begun\n");
    let live = || volume(&["info", text(&disk), "--json"]).expect(0).text();
    // Those of threads that have ended go within a tenth of a second.
    until("only one thread has a transaction", || live().contains("\"transactions\":1"));
    dying.kill().expect("it lives");
    dying.wait().expect("it ends");
    until("nobody has a transaction", || live().contains("\"transactions\":0"));
    let mut bytes = [0; 6];
    mounted.open().read_exact_at(&mut bytes, 8192).expect("readable");
    assert_eq!(&bytes, b"handed");
    assert_eq!(mounted.stop(), Some(0));
    volume(&["check", text(&disk)]).expect(0);
}

#[test]
fn the_file_has_the_volumes_size_and_bytes_and_keeps_what_was_synced_when_its_server_is_killed() {
    if !can_mount() {
        return;
    }
    let dir = temp_dir();
    let (disk, folder) = (disk(dir.path()), dir.path().join("folder"));
    std::fs::create_dir(&folder).expect("writable");
    let mounted = Mounted::start(&disk, &folder);
    assert_eq!(mounted.file, folder.join("disk"));
    let file = mounted.open();
    assert_eq!(file.metadata().expect("there").len(), 64 << 20);
    let data: Vec<u8> = (0..3_000_000_u32).map(|nth| (nth / 7) as u8).collect();
    file.write_all_at(&data, 12_345).expect("room");
    file.sync_all().expect("durable");
    assert!(file.write_all_at(&data, (64 << 20) - 5).is_err(), "past the end");
    assert!(file.set_len(1).is_ok(), "which changes nothing");
    assert_eq!(file.metadata().expect("there").len(), 64 << 20);
    drop(file);
    drop(mounted);

    // What a killed server has left mounted is in nobody's way.
    let mounted = Mounted::start(&disk, &folder);
    let mut found = Vec::new();
    mounted.open().read_to_end(&mut found).expect("readable");
    assert_eq!(found.len(), 64 << 20);
    assert!(found[12_345..12_345 + data.len()] == data[..] && found[..12_345].iter().all(|byte| *byte == 0));
    // Whoever unmounts it ends the server.
    let mut mounted = mounted;
    tool(&["fusermount3", "-u", text(&folder)]);
    assert_eq!(mounted.child.wait().expect("it ends").code(), Some(0));
    volume(&["check", text(&disk)]).expect(0);
}

#[test]
fn what_cannot_be_mounted_is_said_in_one_line() {
    if !can_mount() {
        return;
    }
    let dir = temp_dir();
    let disk = disk(dir.path());
    let nowhere = dir.path().join("nowhere");
    let ran = volume(&["mount", text(&disk), text(&nowhere)]);
    let said = ran.expect(2).stderr;
    assert!(said.contains("nowhere: no such file or folder to mount on"), "{said}");
    // What hides the volume's own files leaves no way to them.
    for own in [disk.clone(), disk.join("volume.chain")] {
        let said = volume(&["mount", text(&disk), text(&own)]).expect(2).stderr;
        assert!(said.contains("is where the volume lies"), "{said}");
    }
}
