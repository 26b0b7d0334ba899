//! Connections within one machine, by the path of a socket in its file system.

use std::path::PathBuf;

use thiserror::Error;

use super::NetError;

/// Who is at the other end of a local connection, as the system saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credentials {
    /// The user that the process runs as.
    pub user: u32,
    /// The process.
    pub process: u32,
}

/// Why nobody listens at a path, or why it was not reached.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LocalError {
    /// A socket's path is longer than the system allows.
    #[error("{}: a path of {} bytes, a socket's may have {max}", path.display(), path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// The most bytes that it may have.
        max: usize,
    },
    /// Somebody listens there already.
    #[error("{}: somebody listens there", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something else is there, which is left alone.
    #[error("{}: there is something that is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Nothing is there, or nobody listens: whoever did has ended.
    #[error("{}: nobody listens there", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
    },
    /// The connection ended while it was made.
    #[error(transparent)]
    Net(#[from] NetError),
    /// Anything else that the system says.
    #[error("{}: {operation}: {message}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// What the system says.
        message: String,
    },
}
