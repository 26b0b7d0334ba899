//! A connection to the kernel's FUSE: requests of programs on a file or folder that this process serves.
//!
//! A [`Channel`] carries whole messages. What they mean is the business of whoever serves; here nothing is looked into. A real
//! one is a mount ([`Env::mount_fuse`](crate::Env::mount_fuse)); tests make their own [`Kernel`].

use std::path::PathBuf;

use bytes::Bytes;
use thiserror::Error;

use crate::net::LocalFuture;

/// The longest message that the kernel may send: what it is told of the longest write must leave room for a head of 4 KiB.
pub const MESSAGE_MAX_BYTES: usize = (1 << 20) + 4096;

/// How something is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// A file, or a folder, which must be there.
    pub path: PathBuf,
    /// What lists of mounts show as its source.
    pub source: String,
    /// Whether others than the user who mounts may use it, as far as the modes of files let them.
    pub allow_other: bool,
    /// Whether the kernel refuses whatever would change it.
    pub read_only: bool,
}

/// Why something is not mounted, or not served any more.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FuseError {
    /// Simulations have no kernel.
    #[error("{}: nothing can be mounted in a simulation", path.display())]
    Simulated {
        /// What was to be mounted.
        path: PathBuf,
    },
    /// There is nothing to mount on.
    #[error("{}: no such file or folder to mount on", path.display())]
    NotFound {
        /// What was to be mounted.
        path: PathBuf,
    },
    /// The program that mounts for users is not there.
    #[error("{}: fusermount3 is not installed (package fuse3)", path.display())]
    NoFusermount {
        /// What was to be mounted.
        path: PathBuf,
    },
    /// It refuses, and says why.
    #[error("{}: fusermount3: {said}", path.display())]
    Refused {
        /// What was to be mounted.
        path: PathBuf,
        /// Its words.
        said: String,
    },
    /// Anything else that the system says.
    #[error("{}: {operation}: {message}", path.display())]
    Io {
        /// The mount.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the system says.
        message: String,
    },
}

/// The other side of a channel.
///
/// ```text
///   program ─► kernel ─► receive ─► whoever serves ─► send ─► kernel ─► program
/// ```
///
/// An implementation MUST give each message whole and once, in the order of the requests, and `None` once nothing is mounted any more.
/// It MUST NOT wait in `send`.
pub trait Kernel {
    /// The next message. Dropping the future loses none. Errors: the channel is of no use any more.
    fn receive(&self) -> LocalFuture<'_, Result<Option<Bytes>, FuseError>>;
    /// Answers. A message that nobody waits for any more is dropped. Errors: the channel is of no use any more.
    fn send(&self, message: &[&[u8]]) -> Result<(), FuseError>;
    /// When a thread of this machine was started, in ticks of the system; `None` if there is none of this number. Two threads
    /// that had the same number one after the other differ in it. Errors: the system does not say, as when it is short of descriptors.
    fn thread_started(&self, thread: u32) -> Result<Option<u64>, FuseError>;
}

/// See the module. What is mounted is unmounted when this is dropped.
pub struct Channel {
    kernel: Box<dyn Kernel>,
    is_folder: bool,
}

impl Channel {
    /// Over this kernel; what is mounted is a folder, or else a file.
    pub fn new(kernel: Box<dyn Kernel>, is_folder: bool) -> Self {
        Self { kernel, is_folder }
    }

    /// Whether what is mounted is a folder, and not a file.
    pub fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// See [`Kernel::receive`].
    pub async fn receive(&self) -> Result<Option<Bytes>, FuseError> {
        self.kernel.receive().await
    }

    /// See [`Kernel::send`].
    pub fn send(&self, message: &[&[u8]]) -> Result<(), FuseError> {
        self.kernel.send(message)
    }

    /// See [`Kernel::thread_started`].
    pub fn thread_started(&self, thread: u32) -> Result<Option<u64>, FuseError> {
        self.kernel.thread_started(thread)
    }
}
