//! Drives on files and block devices, past the page cache (`O_DIRECT`).

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::io::IoSlice;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::io_pool::IoPool;
use super::ring::Ring;
use crate::drive::{
    Device, DriveError, DriveFuture, Durability, OpenDrive, PageBuf, Pieces, is_on_block_boundary,
};
use crate::limits::BLOCK_BYTES;

/// How long a drive that is locked is waited for, and how often it is tried.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(2);
/// Pieces that the system takes in one call.
const IOV_MAX: usize = 1024;

/// An open file, sent between the loop and the pool.
pub(super) struct OpenFile {
    file: File,
    path: String,
    size_bytes: u64,
    is_block_device: bool,
    /// Held while it grows.
    growing: Mutex<()>,
}

/// Opens (and creates) the file and locks it. Blocks.
pub(super) fn open(open: &OpenDrive) -> Result<OpenFile, DriveError> {
    let path = open.path.display().to_string();
    let failed = |error: Errno| match error {
        Errno::ACCESS
        | Errno::PERM
        | Errno::ROFS
        | Errno::NOTDIR
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::FBIG => DriveError::CannotOpen { path: path.clone(), message: error.to_string() },
        error => error_at(&path, "open", 0, error),
    };
    let in_use = |busy: Errno, error: Errno| {
        if error == busy { DriveError::InUse { path: path.clone() } } else { failed(error) }
    };
    let access = if open.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let found = rustix::fs::stat(&open.path).ok().map(|found| FileType::from_raw_mode(found.st_mode));
    let exists = found.is_some();
    // Not opened to see: a pipe would be waited for, until somebody opens its other end.
    if let Some(found) = found.and_then(other_than_drive) {
        return Err(DriveError::NotADrive { path, found });
    }
    // Of a device that says that it is nobody else's: not mounted, no member of an array. A lock says nothing to those.
    let is_block_device = found == Some(FileType::BlockDevice);
    let is_exclusive = is_block_device && !open.read_only;
    let access = if is_exclusive { access | OFlags::EXCL } else { access };
    let fd = match open.create_bytes {
        Some(_) if !exists && !open.read_only => {
            let create = access | OFlags::CREATE | OFlags::EXCL;
            open_direct(&open.path, create, Mode::RUSR | Mode::WUSR | Mode::RGRP).map_err(failed)?
        }
        _ => patiently(Errno::BUSY, || open_direct(&open.path, access, Mode::empty()))
            .map_err(|error| in_use(Errno::BUSY, error))?,
    };
    if !open.read_only {
        let lock = || rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive);
        patiently(Errno::WOULDBLOCK, lock).map_err(|error| in_use(Errno::WOULDBLOCK, error))?;
    }
    let file = File::from(fd);
    if let Some(size) = open.create_bytes.filter(|_| !exists && !open.read_only) {
        if let Err(error) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
            // It holds nothing, and the next one who opens it would find an empty drive.
            _ = rustix::fs::unlink(&open.path);
            return Err(failed(error));
        }
        rustix::fs::fsync(&file).map_err(failed)?;
        super::files::sync_parent(&open.path).map_err(failed)?;
    }
    // Seeking to the end gives the size of a block device as well as of a file.
    let size_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
    if (1..BLOCK_BYTES as u64).contains(&size_bytes) {
        return Err(DriveError::TooShort { path, bytes: size_bytes });
    }
    let size_bytes = size_bytes - size_bytes % BLOCK_BYTES as u64;
    Ok(OpenFile { file, path, size_bytes, is_block_device, growing: Mutex::new(()) })
}

/// What is there, if that is nothing that could be a drive.
fn other_than_drive(found: FileType) -> Option<&'static str> {
    match found {
        FileType::RegularFile | FileType::BlockDevice => None,
        FileType::Directory => Some("a directory"),
        FileType::Fifo => Some("a pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice => Some("a character device"),
        _ => Some("what is there"),
    }
}

/// Asks for what somebody else has for a while. A process that was killed while its ring had reads in the kernel is gone before its
/// files are: the kernel lets go of them, and of their locks, a little later.
fn patiently<T>(busy: Errno, ask: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match ask() {
            Err(error) if error == busy && Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            answered => return answered,
        }
    }
}

/// Some file systems refuse `O_DIRECT`; durability does not depend on it, speed does.
fn open_direct(path: &Path, flags: OFlags, mode: Mode) -> Result<rustix::fd::OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        Err(Errno::INVAL) => {
            tracing::warn!(path = %path.display(), "the file system has no direct I/O; reads and writes are copied");
            // The file was made all the same.
            let flags = if flags.contains(OFlags::CREATE) { flags - OFlags::EXCL } else { flags };
            rustix::fs::open(path, flags, mode)
        }
        opened => opened,
    }
}

fn error_at(path: &str, operation: &'static str, offset: u64, error: Errno) -> DriveError {
    let path = path.to_owned();
    match error {
        Errno::NOENT => DriveError::NotFound { path },
        Errno::NOSPC | Errno::DQUOT => DriveError::NoSpace { path, operation, offset },
        error => DriveError::Io { path, operation, offset, message: error.to_string() },
    }
}

impl OpenFile {
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Why the drive is as large as it was.
    fn refusal(&self, offset: u64, error: Errno) -> DriveError {
        match error {
            Errno::IO | Errno::NOSPC | Errno::DQUOT => self.error("grow", offset, error),
            other => DriveError::CannotGrow { path: self.path.clone(), message: other.to_string() },
        }
    }

    /// Why what was written may be gone.
    fn lost(&self, offset: u64, error: Errno) -> DriveError {
        let (path, message) = (self.path.clone(), error.to_string());
        DriveError::Io { path, operation: "grow", offset, message }
    }

    /// What the system said, as an error of this drive.
    pub(super) fn error(&self, operation: &'static str, offset: u64, error: Errno) -> DriveError {
        error_at(&self.path, operation, offset, error)
    }
}

/// A drive whose writes run on the pool, and its reads on the ring where there is one.
pub(super) struct FileDrive {
    open: Arc<OpenFile>,
    size_bytes: std::rc::Rc<Cell<u64>>,
    pool: IoPool,
    ring: Option<std::rc::Rc<Ring>>,
}

impl FileDrive {
    pub(super) fn new(open: OpenFile, pool: IoPool, ring: Option<std::rc::Rc<Ring>>) -> Self {
        let size_bytes = std::rc::Rc::new(Cell::new(open.size_bytes));
        Self { open: Arc::new(open), size_bytes, pool, ring }
    }

    /// Has the pool do what may be asked for by whoever likes, and is refused where too many wait.
    fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        offset: u64,
        job: impl FnOnce(&File) -> Result<T, Errno> + Send + 'static,
    ) -> DriveFuture<T> {
        match self.pool.submit(self.job(operation, offset, job)) {
            Ok(outcome) => outcome,
            Err(_) => self.busy(),
        }
    }

    /// Has the pool do what the drive's owner needs, who asks for few at a time, and for whom a write that fails is a drive that has.
    fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        offset: u64,
        job: impl FnOnce(&File) -> Result<T, Errno> + Send + 'static,
    ) -> DriveFuture<T> {
        self.pool.run(self.job(operation, offset, job))
    }

    fn job<T: Send + 'static>(
        &self,
        operation: &'static str,
        offset: u64,
        job: impl FnOnce(&File) -> Result<T, Errno> + Send + 'static,
    ) -> impl FnOnce() -> Result<T, DriveError> + Send + 'static {
        let open = Arc::clone(&self.open);
        move || job(&open.file).map_err(|error| open.error(operation, offset, error))
    }

    fn busy<T: 'static>(&self) -> DriveFuture<T> {
        let path = self.name();
        Box::pin(async move { Err(DriveError::Busy { path }) })
    }

    fn past_end<T: 'static>(&self, offset: u64, len: usize) -> Option<DriveFuture<T>> {
        let size = self.size_bytes();
        if offset.checked_add(len as u64).is_some_and(|end| end <= size) {
            return None;
        }
        let path = self.name();
        Some(Box::pin(async move { Err(DriveError::PastEnd { path, offset, len, size }) }))
    }
}

impl Device for FileDrive {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.get()
    }

    fn name(&self) -> String {
        self.open.path.clone()
    }

    fn allocates(&self) -> bool {
        !self.open.is_block_device
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        if let Some(error) = self.past_end(offset, len) {
            return error;
        }
        if let Some(ring) = &self.ring {
            return match ring.read(Arc::clone(&self.open), offset, len) {
                Some(reading) => {
                    Box::pin(async { reading.await.expect("the ring outlives its environment's tasks") })
                }
                None => self.busy(),
            };
        }
        self.ask("read", offset, move |file| {
            let mut buf = PageBuf::zeroed(len);
            let mut done = 0;
            while done < len {
                match rustix::io::pread(file, &mut buf.as_mut_slice()[done..], offset + done as u64) {
                    // The file was cut after it was opened.
                    Ok(0) => return Err(Errno::IO),
                    Ok(read) => done += read,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(buf.freeze())
        })
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        if let Some(error) = self.past_end(offset, data.len()) {
            return error;
        }
        let data = aligned(data);
        let flags = match durability {
            Durability::Volatile => ReadWriteFlags::empty(),
            Durability::Durable => ReadWriteFlags::DSYNC,
        };
        // The last reference goes on the loop's thread, which made the buffer: memory that each I/O thread freed would
        // stay with that thread's allocator.
        let kept = data.clone();
        let written = self.run("write", offset, move |file| {
            let mut pieces: Vec<IoSlice<'_>> = data.iter().map(|piece| IoSlice::new(piece)).collect();
            let (mut rest, mut at) = (&mut pieces[..], offset);
            while !rest.is_empty() {
                match rustix::io::pwritev2(file, &rest[..rest.len().min(IOV_MAX)], at, flags) {
                    Ok(0) => return Err(Errno::IO),
                    Ok(written) => {
                        IoSlice::advance_slices(&mut rest, written);
                        at += written as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        Box::pin(async move {
            let written = written.await;
            drop(kept);
            written
        })
    }

    fn sync(&self) -> DriveFuture<()> {
        self.run("sync", 0, |file| rustix::fs::fdatasync(file))
    }

    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        let known_size = std::rc::Rc::clone(&self.size_bytes);
        let before = known_size.get();
        if size_bytes <= before {
            return Box::pin(async { Ok(()) });
        }
        let open = Arc::clone(&self.open);
        let grown = self.pool.run(move || {
            // Of two at once the one that is refused would cut off what the other has got.
            let _growing = open.growing.lock().unwrap_or_else(PoisonError::into_inner);
            let flags = FallocateFlags::empty();
            let length = rustix::fs::fstat(open.file()).map(|stat| stat.st_size as u64);
            if let Err(error) = rustix::fs::fallocate(open.file(), flags, before, size_bytes - before) {
                // ext4 keeps what it got before there was too little.
                if let (Ok(length), false) = (length, open.is_block_device) {
                    _ = rustix::fs::ftruncate(open.file(), length);
                }
                return Err(open.refusal(before, error));
            }
            // One that fails has lost what was written before: it is no refusal.
            rustix::fs::fsync(open.file()).map_err(|error| open.lost(before, error))
        });
        Box::pin(async move {
            grown.await?;
            known_size.set(size_bytes.max(known_size.get()));
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        if let Some(error) = self.past_end(offset, len) {
            return error;
        }
        if len == 0 {
            return Box::pin(async { Ok(()) });
        }
        self.ask("discard", offset, move |file| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(file, flags, offset, len as u64) {
                // Advice that a file system or device cannot take is no failure.
                Err(Errno::OPNOTSUPP) => Ok(()),
                done => done,
            }
        })
    }
}

/// The same bytes in whole blocks on block boundaries in memory, copied if they are not.
fn aligned(data: Pieces) -> Pieces {
    let is_aligned = |piece: &Bytes| piece.len().is_multiple_of(BLOCK_BYTES) && is_on_block_boundary(piece);
    if data.iter().all(is_aligned) {
        return data;
    }
    let mut copy = PageBuf::with_capacity(data.len());
    data.iter().for_each(|piece| copy.extend(piece));
    copy.freeze().into()
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<OpenFile>();
    const fn is_future<T: Future>() {}
    is_future::<DriveFuture<()>>();
};

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::super::park::Park;
    use super::*;

    #[test]
    fn a_write_has_a_place_however_many_reads_wait() {
        // An owner of a drive takes a write that fails for a drive that has.
        let (_dir, drive, pool) = new_drive(1 << 20);
        let gate = Arc::new(Mutex::new(()));
        let shut = gate.lock().expect("no panic");
        for _ in 0..crate::limits::IO_THREADS_MAX {
            let gate = Arc::clone(&gate);
            let job = pool.submit(move || drop(gate.lock().expect("no panic")));
            drop(job.expect("there is room"));
        }
        let mut cx = Context::from_waker(Waker::noop());
        let is_refused = |mut asked: DriveFuture<Bytes>| {
            matches!(
                asked.as_mut().poll(&mut Context::from_waker(Waker::noop())),
                Poll::Ready(Err(DriveError::Busy { .. }))
            )
        };
        while !is_refused(drive.read(0, BLOCK_BYTES)) {}
        let mut written = drive.write(0, PageBuf::zeroed(BLOCK_BYTES).freeze().into(), Durability::Durable);
        assert_eq!(written.as_mut().poll(&mut cx), Poll::Pending);
        drop(shut);
        assert_eq!(answer(written, &pool), Ok(()));
    }

    #[test]
    fn pieces_are_written_one_behind_the_other_however_many_there_are_and_wherever_they_lie() {
        let (_dir, drive, pool) = new_drive(8 << 20);
        let blocks = IOV_MAX + 10;
        let mut memory = PageBuf::with_capacity((blocks + 1) * BLOCK_BYTES);
        (0..blocks).for_each(|block| memory.extend(&[block as u8; BLOCK_BYTES]));
        let memory = memory.freeze();
        let block = |number: usize| memory.slice(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES);
        let apart: Pieces = (0..blocks).rev().map(block).collect();
        let unaligned: Pieces =
            [memory.slice(1..BLOCK_BYTES), memory.slice(10..BLOCK_BYTES + 11)].into_iter().collect();
        for (offset, data) in [(0, apart), (BLOCK_BYTES as u64, unaligned)] {
            let wanted = data.joined();
            assert_eq!(answer(drive.write(offset, data, Durability::Durable), &pool), Ok(()));
            assert_eq!(answer(drive.read(offset, wanted.len()), &pool), Ok(wanted));
        }
    }

    fn new_drive(bytes: u64) -> (tempfile::TempDir, FileDrive, IoPool) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("drive");
        let opened = open(&OpenDrive { path, create_bytes: Some(bytes), read_only: false }).expect("a file");
        let pool = IoPool::new(Arc::new(Park::new().expect("a descriptor")));
        (dir, FileDrive::new(opened, pool.clone(), None), pool)
    }

    fn answer<T>(mut asked: DriveFuture<T>, pool: &IoPool) -> Result<T, DriveError> {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            pool.complete();
            match asked.as_mut().poll(&mut cx) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => std::thread::yield_now(),
            }
        }
    }
}
