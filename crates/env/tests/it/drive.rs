//! Files as drives.

use std::path::Path;

use bytes::Bytes;
use ithaca_env::drive::{DriveError, Durability, OpenDrive, PageBuf};

use crate::everywhere;

fn page(fill: u8) -> Bytes {
    let mut buf = PageBuf::zeroed(0);
    buf.extend(&[fill; 4096]);
    buf.freeze()
}

fn open(dir: &Path, create_bytes: Option<u64>) -> OpenDrive {
    OpenDrive { path: dir.join("drive"), create_bytes, read_only: false }
}

#[test]
fn what_is_written_is_read_back_also_after_reopening() {
    everywhere(|env, dir| async move {
        let drive = env.open_drive(open(&dir, Some(1 << 20))).await.expect("created");
        drive.write(4096, page(1), Durability::Durable).await.expect("written");
        // An unaligned buffer is copied, not refused.
        drive
            .write(8192, Bytes::from(vec![2; 4097]).slice(1..), Durability::Volatile)
            .await
            .expect("written");
        drive.sync().await.expect("synced");
        drive.grow(2 << 20).await.expect("grown");
        assert_eq!(drive.size_bytes(), 2 << 20);
        assert!(drive.allocates());
        drop(drive);
        let drive = env.open_drive(open(&dir, None)).await.expect("still there");
        let read = drive.read(0, 12288).await.expect("read");
        assert_eq!((read[0], read[4096], read[8191], read[8192], read[12287]), (0, 1, 1, 2, 2));
        assert_eq!(drive.size_bytes(), 2 << 20);
    });
}

#[test]
fn a_second_opener_a_missing_file_and_a_place_past_the_end_are_typed_errors() {
    everywhere(|env, dir| async move {
        assert!(matches!(env.open_drive(open(&dir, None)).await.err(), Some(DriveError::NotFound { .. })));
        let drive = env.open_drive(open(&dir, Some(8192))).await.expect("created");
        assert!(matches!(env.open_drive(open(&dir, None)).await.err(), Some(DriveError::InUse { .. })));
        let past = drive.write(8192, page(1), Durability::Durable).await;
        assert!(matches!(past, Err(DriveError::PastEnd { offset: 8192, len: 4096, size: 8192, .. })));
        assert!(matches!(drive.read(4096, 8192).await, Err(DriveError::PastEnd { .. })));
    });
}

#[test]
fn a_file_that_there_is_no_room_for_is_not_left_behind() {
    // It took a name, and was found as a drive without a block by whoever came next.
    let dir = tempfile::tempdir().expect("a directory");
    ithaca_env::real::run(async |env| {
        let refused = env.open_drive(open(dir.path(), Some(1 << 60))).await.err();
        assert!(refused.is_some() && !dir.path().join("drive").exists(), "{refused:?}");
    });
}

#[test]
fn what_is_neither_a_file_nor_a_block_device_is_no_drive_and_not_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("drive")).status();
    assert!(made.expect("mkfifo runs").success());
    ithaca_env::real::run(async |env| {
        let found = [
            (dir.path().join("drive"), "a pipe"),
            ("/dev/null".into(), "a character device"),
            (dir.path().to_owned(), "a directory"),
        ];
        for ((path, what), read_only) in found.iter().flat_map(|it| [(it, false), (it, true)]) {
            let asked = OpenDrive { path: path.clone(), create_bytes: None, read_only };
            let refused = env.open_drive(asked).await.err().map(|error| error.to_string());
            assert_eq!(refused, Some(format!("{}: {what} is no drive", path.display())));
        }
    });
}

#[test]
fn a_file_that_is_shorter_than_a_block_is_no_drive() {
    // Rounded down it would be an empty one, and whatever is in it would be lost.
    let dir = tempfile::tempdir().expect("a directory");
    ithaca_env::real::files::write(&dir.path().join("drive"), b"somebody's notes").expect("written");
    ithaca_env::real::run(async |env| {
        for create_bytes in [None, Some(8192)] {
            let refused = env.open_drive(open(dir.path(), create_bytes)).await.err();
            assert!(matches!(&refused, Some(DriveError::TooShort { bytes: 16, .. })), "{refused:?}");
        }
    });
}

/// A file as a block device, with a file system that may be mounted; taken down when it is dropped.
struct Loop {
    device: String,
    mounted: std::path::PathBuf,
}

impl Loop {
    /// `None` where there is no root, loop device or tool.
    fn new(dir: &Path) -> Option<Self> {
        let (image, mounted) = (dir.join("image"), dir.join("mounted"));
        ithaca_env::real::files::write(&image, &vec![0; 16 << 20]).expect("written");
        ithaca_env::real::files::create_dir(&mounted).expect("writable");
        tool("mkfs.ext4", &[Path::new("-q"), Path::new("-F"), &image])?;
        let device = tool("losetup", &[Path::new("--find"), Path::new("--show"), &image])?;
        Some(Self { device: device.trim().to_owned(), mounted })
    }

    /// The same, mounted. `None` where that cannot be and may be left out.
    fn mounted(dir: &Path) -> Option<Self> {
        let disk = Self::new(dir).filter(|disk| disk.mount().is_some());
        if disk.is_none() {
            let may = std::env::var_os("ITHACA_TEST_LEAVE_OUT").is_some_and(|value| value == "1");
            let why = "only root mounts, and needs loop devices, mkfs.ext4 and mount";
            assert!(may, "{why}; ITHACA_TEST_LEAVE_OUT=1 leaves out what needs it");
            eprintln!("skip: {why}");
        }
        disk
    }

    fn mount(&self) -> Option<String> {
        tool("mount", &[Path::new(&self.device), &self.mounted])
    }

    fn umount(&self) -> Option<String> {
        tool("umount", &[&self.mounted])
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.umount();
        let _ = tool("losetup", &[Path::new("--detach"), Path::new(&self.device)]);
    }
}

/// What a tool says; `None` if it is not there or fails.
fn tool(name: &str, args: &[&Path]) -> Option<String> {
    let output = std::process::Command::new(name).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_block_device_that_is_mounted_is_in_use() {
    // A lock of ours says nothing to a file system: it and we would write over each other.
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = Loop::mounted(dir.path()) else { return };
    ithaca_env::real::run(async |env| {
        let open = |read_only| OpenDrive { path: disk.device.clone().into(), create_bytes: None, read_only };
        let refused = env.open_drive(open(false)).await.err();
        assert_eq!(refused, Some(DriveError::InUse { path: disk.device.clone() }));
        env.open_drive(open(true)).await.expect("it may be looked at");
        disk.umount().expect("nobody uses it");
        let drive = env.open_drive(open(false)).await.expect("nobody uses it");
        assert!(matches!(env.open_drive(open(false)).await.err(), Some(DriveError::InUse { .. })));
        assert!(!drive.allocates(), "its blocks are where they are");
        // It is as large as it is, which is no failure of what is on it.
        let grown = drive.grow(32 << 20).await;
        assert!(matches!(&grown, Err(DriveError::CannotGrow { .. })), "{grown:?}");
    });
}

#[test]
fn a_growth_for_which_there_is_no_room_keeps_none_of_it() {
    // ext4 takes what there is and then says that it is too little: nobody else could write any more, nor a smaller growth succeed.
    let dir = tempfile::tempdir().expect("a directory");
    let Some(disk) = Loop::mounted(dir.path()) else { return };
    ithaca_env::real::run(async |env| {
        let free_bytes = || ithaca_env::real::files::free_bytes(&disk.mounted).expect("it is there");
        let drive = env.open_drive(open(&disk.mounted, Some(4096))).await.expect("created");
        drive.write(0, page(7), Durability::Durable).await.expect("written");
        let before = free_bytes();
        let blocks = |bytes: u64| bytes / 4096 * 4096;
        let refused = drive.grow(blocks(before * 2)).await;
        assert!(matches!(&refused, Err(DriveError::NoSpace { operation: "grow", .. })), "{refused:?}");
        assert_eq!((free_bytes(), drive.size_bytes()), (before, 4096));
        let looking = OpenDrive { read_only: true, ..open(&disk.mounted, None) };
        assert_eq!(env.open_drive(looking).await.expect("it is there").size_bytes(), 4096);
        drive.grow(blocks(before / 2)).await.expect("there is room for so much");
        assert_eq!(drive.read(0, 4096).await.expect("readable"), page(7));
    });
}

#[test]
fn a_discarded_block_is_zeros_or_what_it_was_and_can_be_written_again() {
    everywhere(|env, dir| async move {
        let drive = env.open_drive(open(&dir, Some(4 * 4096))).await.expect("created");
        for n in 0..4 {
            drive.write(n * 4096, page(7), Durability::Durable).await.expect("written");
        }
        drive.discard(4096, 2 * 4096).await.expect("discarded");
        drive.write(8192, page(9), Durability::Durable).await.expect("written again");
        let read = drive.read(0, 4 * 4096).await.expect("read");
        assert_eq!((read[0], read[8192], read[12288], drive.size_bytes()), (7, 9, 7, 4 * 4096));
        assert!(read[4096] == 0 || read[4096] == 7, "{}", read[4096]);
        assert!(matches!(drive.discard(4 * 4096, 4096).await, Err(DriveError::PastEnd { .. })));
        drive.discard(0, 0).await.expect("nothing to do");
    });
}

#[test]
fn many_requests_run_at_once_and_each_gets_its_own_answer() {
    everywhere(|env, dir| async move {
        let drive = env.open_drive(open(&dir, Some(256 * 4096))).await.expect("created");
        let writes: Vec<_> =
            (0..=255).map(|n| drive.write(u64::from(n) * 4096, page(n), Durability::Volatile)).collect();
        for write in writes {
            write.await.expect("written");
        }
        let reads: Vec<_> = (0..=255u8).rev().map(|n| (n, drive.read(u64::from(n) * 4096, 4096))).collect();
        for (n, read) in reads {
            assert_eq!(read.await.expect("read"), page(n));
        }
    });
}
