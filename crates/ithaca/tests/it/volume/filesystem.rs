//! A file system on a volume, over FUSE and a loop device.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{Served, has, leave_out, text, tool, until, volume};
use crate::harness::temp_dir;

/// The export as a file, and what is mounted of it; taken down when it is dropped, in whatever state it is.
struct Mounted {
    fuse: Child,
    dir: PathBuf,
}

impl Mounted {
    fn start(dir: &Path, uri: &str) -> Self {
        for name in ["export", "files"] {
            std::fs::create_dir_all(dir.join(name)).expect("writable");
        }
        let export = dir.join("export");
        let fuse = Command::new("nbdfuse").arg(&export).arg(uri).stderr(Stdio::null()).spawn();
        let mut mounted = Self { fuse: fuse.expect("it starts"), dir: dir.to_owned() };
        until("nbdfuse shows the volume", || {
            assert!(mounted.fuse.try_wait().expect("a child").is_none(), "nbdfuse has ended");
            mounted.device().exists()
        });
        mounted
    }

    fn device(&self) -> PathBuf {
        self.dir.join("export/nbd")
    }

    fn files(&self) -> PathBuf {
        self.dir.join("files")
    }

    fn mount(&self) {
        tool(&["mount", "-o", "loop", text(&self.device()), text(&self.files())]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Each may be down already, or its server gone.
        for line in [["umount", "files"], ["umount", "export"]] {
            let path = self.dir.join(line[1]);
            let _ = Command::new("timeout").args(["60", line[0]]).arg(path).stderr(Stdio::null()).status();
        }
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}

/// Whether loop devices and FUSE can be mounted here.
fn can_mount() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id is there").stdout;
    let is_able =
        id == b"0\n" && ["/dev/fuse", "/dev/loop-control"].iter().all(|path| Path::new(path).exists());
    let is_able = is_able || leave_out("only root mounts, and needs /dev/fuse and loop devices");
    is_able && has(&["nbdfuse", "mkfs.ext4", "e2fsck", "mount"])
}

#[test]
fn ext4_on_a_volume_is_whole_after_the_server_was_killed_under_it() {
    if !can_mount() {
        return;
    }
    let dir = temp_dir();
    let disk = dir.path().join("disk");
    volume(&["create", text(&disk), "--size", "64M"]).expect(0);
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let served = Served::start(&disk);
    let addr = served.addr.clone();
    let mounted = Mounted::start(dir.path(), &served.uri(""));
    tool(&["mkfs.ext4", "-q", "-F", text(&mounted.device())]);
    mounted.mount();
    tool(&["cp", "-r", text(&tree), text(&mounted.files().join("kept"))]);
    tool(&["sync", "-f", text(&mounted.files())]);
    // More comes, and the server is killed under it; what the file system then does about its disk is its own affair.
    let files = mounted.files();
    let copied = "for n in 1 2 3 4 5 6 7 8 9; do cp -r \"$0\" \"$1/$n\" && sync -f \"$1\"; done";
    let copy =
        Command::new("sh").args(["-c", copied, text(&tree), text(&files)]).stderr(Stdio::null()).spawn();
    let mut copy = copy.expect("it starts");
    until("the first copy is there", || files.join("2").exists());
    drop(served);
    copy.wait().expect("it ends");
    drop(mounted);

    let served = Served::at(&disk, &addr);
    let mounted = Mounted::start(dir.path(), &served.uri(""));
    // The journal is replayed; then nothing is left to repair.
    tool(&["e2fsck", "-p", text(&mounted.device())]);
    tool(&["e2fsck", "-f", "-n", text(&mounted.device())]);
    mounted.mount();
    for kept in ["kept", "1"] {
        tool(&["diff", "-r", text(&tree), text(&mounted.files().join(kept))]);
    }
    drop(mounted);
    assert_eq!(served.stop(), Some(0));
    volume(&["check", text(&disk)]).expect(0);
}
