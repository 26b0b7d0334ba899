//! Drives: block-aligned reads and writes on a file or a block device, real or simulated.

use std::cell::Cell;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use thiserror::Error;

use crate::limits::BLOCK_BYTES;

mod page_buf;
mod pieces;

pub use page_buf::PageBuf;
pub use pieces::{Pieces, is_on_block_boundary};

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The drive has it; a power cut may lose it until a later durable write or [`Drive::sync`].
    Volatile,
    /// It is on stable storage, together with this write's own metadata. Says nothing of earlier volatile writes.
    Durable,
}

/// Why a drive did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DriveError {
    /// The path names nothing and creating it was not asked for.
    #[error("{path}: no such file or drive")]
    NotFound {
        /// What was opened.
        path: String,
    },
    /// The file is shorter than a block, and not empty: rounded down it would be an empty drive, and what is in it be lost.
    #[error("{path}: a file of {bytes} bytes is no drive: a block has {BLOCK_BYTES}")]
    TooShort {
        /// What was opened.
        path: String,
        /// Its length.
        bytes: u64,
    },
    /// What is there is neither a file nor a block device.
    #[error("{path}: {found} is no drive")]
    NotADrive {
        /// What was opened.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// The path may not be opened, can name nothing, or no file be of that size. To try again changes nothing.
    #[error("{path}: it cannot be opened: {message}")]
    CannotOpen {
        /// What was opened.
        path: String,
        /// What the system says.
        message: String,
    },
    /// Another process has the drive, or somebody else in this one: see [`Drive::try_lock`].
    #[error("{path}: in use by another process, or by somebody else in this one")]
    InUse {
        /// What was opened.
        path: String,
    },
    /// No space is left on the file system below.
    #[error("{path}: no space left ({operation} at byte {offset})")]
    NoSpace {
        /// The drive.
        path: String,
        /// `open`, `read`, `write`, `sync`, `grow` or `discard`.
        operation: &'static str,
        /// Where on the drive.
        offset: u64,
    },
    /// The drive cannot be made larger, and is as it was: a block device, or a file as large as its file system lets it be.
    #[error("{path}: it cannot be made larger: {message}")]
    CannotGrow {
        /// The drive.
        path: String,
        /// What the system says.
        message: String,
    },
    /// The read goes past the end of the drive.
    #[error("{path}: {len} bytes at {offset} reach past the end, {size} bytes")]
    PastEnd {
        /// The drive.
        path: String,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: usize,
        /// Size of the drive.
        size: u64,
    },
    /// Too many requests wait for the drive, which takes no more reads and discards; try again later.
    #[error("{path}: too many requests wait for it")]
    Busy {
        /// The drive.
        path: String,
    },
    /// The drive or the system failed. A write or sync that ended so may be there, in part or not at all, and MUST NOT
    /// be tried again on the same drive: the dirty data may be gone although a second attempt succeeds.
    #[error("{path}: {operation} at byte {offset} failed: {message}")]
    Io {
        /// The drive.
        path: String,
        /// `open`, `read`, `write`, `sync`, `grow` or `discard`.
        operation: &'static str,
        /// Where on the drive.
        offset: u64,
        /// What the system says.
        message: String,
    },
}

impl DriveError {
    /// Whether a path is named that can be no drive, as opposed to a drive that fails or that somebody else has.
    pub fn is_unfit(&self) -> bool {
        matches!(
            self,
            Self::NotFound { .. } | Self::TooShort { .. } | Self::NotADrive { .. } | Self::CannotOpen { .. }
        )
    }
}

/// How to open a drive.
#[derive(Clone, Debug)]
pub struct OpenDrive {
    /// The file or block device. In a simulation a name on the node's machine.
    pub path: PathBuf,
    /// Create a file that is not there, of this size in bytes (preallocated). `None`: it must be there.
    pub create_bytes: Option<u64>,
    /// Open for reading only: nothing is locked, created or changed.
    pub read_only: bool,
}

/// The answer to a drive request, not before the drive has answered.
pub type DriveFuture<T> = Pin<Box<dyn Future<Output = Result<T, DriveError>>>>;

/// What a kind of drive implements. Users call [`Drive`].
///
/// ```text
///   write(offset, bytes, Durable) ──► started at once, in call order ──► future: on stable storage
///   write(offset, bytes, Volatile) ─► future: the drive has it        ─► sync(): all of those on stable storage
/// ```
///
/// * A request MUST start when it is called, not when its future is first polled; dropping the future abandons the
///   answer, never the request.
/// * Requests MAY complete in any order; overlapping requests in flight together have no defined result.
/// * `offset` and lengths are multiples of [`BLOCK_BYTES`](crate::limits::BLOCK_BYTES); the caller asserts it.
/// * A write past [`size_bytes`](Device::size_bytes) MUST fail with `PastEnd`.
pub trait Device {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// The name to show in errors.
    fn name(&self) -> String;
    /// Whether the first write to a place takes longer than those after it, because a file system records where it lies: of a file, not
    /// of a block device.
    fn allocates(&self) -> bool;
    /// Reads exactly `len` bytes.
    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes>;
    /// Writes all of `data`, whose pieces should be whole blocks on a block boundary in memory (see [`PageBuf`]); else it is copied.
    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()>;
    /// Puts every completed write on stable storage.
    fn sync(&self) -> DriveFuture<()>;
    /// Makes a file at least this long, preallocated and reading as zeros; durable on return. A block device fails. A file for which there
    /// is no room is as long as it was, and takes no more room than before.
    fn grow(&self, size_bytes: u64) -> DriveFuture<()>;
    /// Says that these bytes are not needed: until they are written again each block of them reads as zeros or as
    /// something that it held before.
    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()>;
}

/// A device that passes requests on to a drive, but for those that it does in a way of its own.
pub trait Wrapper {
    /// That drive.
    fn drive(&self) -> &Drive;
    /// See [`Device::allocates`].
    fn allocates(&self) -> bool {
        self.drive().allocates()
    }
    /// See [`Device::read`].
    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        self.drive().read(offset, len)
    }
    /// See [`Device::write`].
    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        self.drive().write(offset, data, durability)
    }
    /// See [`Device::sync`].
    fn sync(&self) -> DriveFuture<()> {
        self.drive().sync()
    }
    /// See [`Device::grow`].
    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        self.drive().grow(size_bytes)
    }
    /// See [`Device::discard`].
    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        self.drive().discard(offset, len)
    }
}

impl<W: Wrapper> Device for W {
    fn size_bytes(&self) -> u64 {
        self.drive().size_bytes()
    }

    fn name(&self) -> String {
        self.drive().name()
    }

    fn allocates(&self) -> bool {
        Wrapper::allocates(self)
    }

    fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        Wrapper::read(self, offset, len)
    }

    fn write(&self, offset: u64, data: Pieces, durability: Durability) -> DriveFuture<()> {
        Wrapper::write(self, offset, data, durability)
    }

    fn sync(&self) -> DriveFuture<()> {
        Wrapper::sync(self)
    }

    fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        Wrapper::grow(self, size_bytes)
    }

    fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        Wrapper::discard(self, offset, len)
    }
}

/// A drive. Cheap to clone; the last clone closes it.
#[derive(Clone)]
pub struct Drive {
    device: Rc<dyn Device>,
    is_locked: Rc<Cell<bool>>,
}

/// The drive is locked until this is dropped. See [`Drive::try_lock`].
pub struct DriveLock {
    is_locked: Rc<Cell<bool>>,
}

impl Drop for DriveLock {
    fn drop(&mut self) {
        self.is_locked.set(false);
    }
}

impl Drive {
    /// A drive that is made of `device`.
    pub fn new(device: Rc<dyn Device>) -> Self {
        Self { device, is_locked: Rc::default() }
    }

    /// Locks the drive for one of those who share this handle and its clones: a request that is under way is carried out although its
    /// future is gone, so that one who has given the drive up may still be writing to it. Who does not ask is not kept from anything.
    /// (Other processes are, from when the drive is opened on.) Errors: `InUse`, at once.
    pub fn try_lock(&self) -> Result<DriveLock, DriveError> {
        if self.is_locked.replace(true) {
            return Err(DriveError::InUse { path: self.name() });
        }
        Ok(DriveLock { is_locked: Rc::clone(&self.is_locked) })
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// The path or name to show in errors.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// Whether the first write to a place takes longer than those after it, because a file system records where it lies: of a file, not
    /// of a block device. Simulated drives count as files.
    pub fn allocates(&self) -> bool {
        self.device.allocates()
    }

    /// Reads exactly `len` bytes at `offset`, both multiples of the block size. Starts at once; dropping the future
    /// abandons the answer only. Errors: `PastEnd`, `Io`, `Busy`.
    pub fn read(&self, offset: u64, len: usize) -> DriveFuture<Bytes> {
        assert_aligned(offset, len);
        self.device.read(offset, len)
    }

    /// Writes `data` at `offset`, both block multiples: [`Bytes`], or [`Pieces`] that lie apart in memory. Pieces of whole blocks that begin on
    /// a block boundary in memory are not copied. Starts at once; dropping the future abandons the answer, not the write. With
    /// [`Durability::Durable`] it is on stable storage when the future is ready.
    pub fn write(&self, offset: u64, data: impl Into<Pieces>, durability: Durability) -> DriveFuture<()> {
        let data = data.into();
        assert_aligned(offset, data.len());
        self.device.write(offset, data, durability)
    }

    /// Puts every write that has completed on stable storage.
    pub fn sync(&self) -> DriveFuture<()> {
        self.device.sync()
    }

    /// Makes the file behind the drive at least `size_bytes` long; the new part reads as zeros. Durable on return.
    pub fn grow(&self, size_bytes: u64) -> DriveFuture<()> {
        assert_aligned(size_bytes, 0);
        self.device.grow(size_bytes)
    }

    /// Says that `len` bytes at `offset`, both block multiples, are not needed any more, so that an SSD need not move
    /// them when it cleans (trim). Until a block is written again it reads as zeros or as something that it held
    /// before; nothing about that is durable. The file stays as long as it is, but loses the space, so that a later
    /// durable write there must allocate it again and can fail with `NoSpace`. Starts at once; dropping the future
    /// abandons the answer only. Errors: `PastEnd`, `Io`, `Busy`.
    pub fn discard(&self, offset: u64, len: usize) -> DriveFuture<()> {
        assert_aligned(offset, len);
        self.device.discard(offset, len)
    }
}

fn assert_aligned(offset: u64, len: usize) {
    let block = crate::limits::BLOCK_BYTES;
    assert!(
        offset.is_multiple_of(block as u64) && len.is_multiple_of(block),
        "{len} bytes at {offset}: not aligned"
    );
    assert!(len <= crate::limits::DRIVE_IO_MAX_BYTES, "one request of {len} bytes");
}
