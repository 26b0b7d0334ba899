//! Ordinary files, for configuration, reports and tools: blocking, whole, and not for the log's data.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// Reads a whole file.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

/// The same of a file that may be anything, such as a device without an end: `FileTooLarge` for one of more than `max_bytes`.
pub fn read_at_most(path: &Path, max_bytes: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let line = format!("a file of more than {max_bytes} bytes");
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, line));
    }
    Ok(bytes)
}

/// Writes a whole file, replacing one that is there; not durable.
pub fn write(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    std::fs::write(path, contents)
}

/// Adds to the end of a file, which is created if it is not there; not durable.
pub fn append(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(contents)
}

/// Creates a directory and its parents; no error if it is there. Durable on return.
pub fn create_dir(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    Ok(sync_parent(path)?)
}

/// Names in a directory, sorted.
pub fn list(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths =
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Whether something is there.
pub fn exists(path: &Path) -> bool {
    path.exists()
}

/// Whether a process has it open as a drive to write to. It is locked for a moment to see, beside others who look.
pub fn is_locked(path: &Path) -> std::io::Result<bool> {
    let file = std::fs::File::open(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Whether it is a directory.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// Which file or device a path leads to: the same for two paths exactly if they lead to the same. Of what is not there yet it is where it
/// would be made.
pub fn place(path: &Path) -> std::io::Result<Place> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Place::Missing(resolved(path)?));
        }
        metadata => metadata?,
    };
    Ok(match metadata.file_type().is_block_device() {
        true => Place::Device(metadata.rdev()),
        false => Place::File { device: metadata.dev(), inode: metadata.ino() },
    })
}

/// See [`place`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A block device, by its number.
    Device(u64),
    /// A file, by its number on the device that it is on.
    File {
        /// The device.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// Nothing yet: the path without links, as far as it is there.
    Missing(PathBuf),
}

/// The path from the root on, without links and steps back as far as it is there.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
        if let Ok(real) = std::fs::canonicalize(&resolved) {
            resolved = real;
        }
    }
    Ok(resolved)
}

/// Bytes that are free to an ordinary user on the file system of `path`.
pub fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Removes a directory that holds nothing; an error if it holds something.
pub fn remove_empty_dir(path: &Path) -> std::io::Result<()> {
    std::fs::remove_dir(path)
}

/// Removes a directory and everything in it.
pub fn remove_dir(path: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(path)
}

/// Puts the directory entry of `path` on stable storage.
pub(super) fn sync_parent(path: &Path) -> Result<(), Errno> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::fsync(rustix::fs::open(parent, flags, rustix::fs::Mode::empty())?)
}

/// Ends the file system that holds `directory` as a power cut would: from now on nothing reaches its drive, its journal
/// included, until it is mounted again. Needs the right to administer the system. Errors: a file system that cannot be
/// ended so (ext4, XFS, F2FS can).
pub fn cut_power(directory: &Path) -> std::io::Result<()> {
    /// `FS_IOC_SHUTDOWN` of the kernel's headers; the name `read` says what its number encodes, not what it does.
    const SHUT_DOWN: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(b'X', 125);
    /// Without writing the journal out first.
    const NOT_FLUSHED: u32 = 2;
    let directory = std::fs::File::open(directory)?;
    #[expect(unsafe_code, reason = "the request takes a pointer to a u32, as the kernel's header says")]
    // SAFETY: the kernel reads four bytes behind the pointer, which is to a u32.
    unsafe {
        let request = rustix::ioctl::Setter::<SHUT_DOWN, u32>::new(NOT_FLUSHED);
        rustix::ioctl::ioctl(&directory, request)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::OpenDrive;

    #[test]
    fn a_file_without_an_end_is_not_read_to_its_end() {
        let read = |max_bytes| read_at_most(Path::new("/dev/zero"), max_bytes).map_err(|error| error.kind());
        assert_eq!(read(1 << 20), Err(ErrorKind::FileTooLarge));
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a");
        write(&path, b"four").expect("writable");
        assert_eq!(read_at_most(&path, 4).expect("it is short enough"), b"four");
        assert!(read_at_most(&path, 3).is_err_and(|error| error.kind() == ErrorKind::FileTooLarge));
    }

    #[test]
    fn who_only_looks_sees_that_a_drive_is_locked() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |read_only| OpenDrive { path: dir.path().join("a"), create_bytes: Some(4096), read_only };
        crate::real::run(async |env| {
            let is_locked = || is_locked(&dir.path().join("a")).expect("it is there");
            let drive = env.open_drive(open(false)).await.expect("created");
            assert!(is_locked());
            drop(drive);
            // Nor are those who look in each other's way, or in that of who writes next.
            let _looking = env.open_drive(open(true)).await.expect("it is there");
            assert!(!is_locked());
            env.open_drive(open(false)).await.expect("nobody has it");
        });
    }

    #[test]
    fn a_place_is_the_same_by_every_path_that_leads_to_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place(&dir.path().join(name)).expect("it can be looked at");
        assert_eq!(at("a"), at("./b/../a"));
        assert_ne!(at("a"), at("b"));
        create_dir(&dir.path().join("d")).expect("writable");
        std::os::unix::fs::symlink("d", dir.path().join("link")).expect("writable");
        assert_eq!(at("d/new"), at("link/new"));
        write(&dir.path().join("a"), b"x").expect("writable");
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).expect("writable");
        assert_eq!(at("a"), at("b"));
        assert_ne!(at("a"), at("d"));
    }
}
