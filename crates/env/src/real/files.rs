//! Ordinary files, for configuration, reports and tools: blocking, whole, and not for the log's data.

use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Reads a whole file.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
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

/// Whether it is a directory.
pub fn is_dir(path: &Path) -> bool {
    path.is_dir()
}

/// Length of a file in bytes.
pub fn size_bytes(path: &Path) -> std::io::Result<u64> {
    Ok(std::fs::metadata(path)?.len())
}

/// Bytes that are free to an ordinary user on the file system of `path`.
pub fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
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
