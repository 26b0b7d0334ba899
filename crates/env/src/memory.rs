//! Memory that two processes of a machine have, so that what one puts there the other takes without the system in between; and large
//! pages for tables of one process ([`in_large_pages`]).
//!
//! ```text
//!   share_memory ─► SharedMemory                       MemoryHandle::open ─► SharedMemory
//!        └─────────► MemoryHandle ─► Writer::pass ──────────► Reader::passed ─┘
//! ```
//!
//! The memory is no more than bytes that anybody who has it may change at any time: it is copied into and out of, never looked at where
//! it lies. Who is told what is there, and when, is said by other means, in messages on a connection.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use thiserror::Error;

use crate::drive::PageBuf;
use crate::real;

/// Why memory cannot be shared, or what was passed is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum MemoryError {
    /// A file of another kind, a pipe, memory of huge pages: nothing of which it is known that its pages stay.
    #[error("what was passed is no memory file of ordinary pages")]
    NotMemory,
    /// Its maker could make it shorter, and the next touch of what is gone would end this process.
    #[error("the memory is not sealed against shrinking and growing")]
    Unsealed,
    /// None, not whole pages, or more than is taken.
    #[error("the memory has {found} bytes, expected whole pages of {page}, at least one, and at most {max}")]
    Size {
        /// Its bytes.
        found: u64,
        /// Bytes of a page.
        page: usize,
        /// The most bytes that are taken.
        max: usize,
    },
    /// Pages that are not there yet: when they are needed there may be none.
    #[error("the memory has {found} of its {expected} bytes")]
    Holes {
        /// Bytes that are there.
        found: u64,
        /// Bytes that it has.
        expected: u64,
    },
    /// Anything else that the system says.
    #[error("{operation}: {message}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// What the system says.
        message: String,
    },
}

/// A table that is looked up all over, held in large pages where the system has them (`madvise`): it is there after fewer faults, and a lookup
/// waits less for the processor to find the page. To be asked for before much of the table is touched, and for one that is filled soon:
/// each touch takes as much memory as a large page has, 2 MiB as a rule. Values that are still to come lie so too, as far as the capacity
/// reaches; those that are there are the same.
pub fn in_large_pages<T>(values: Vec<T>) -> Vec<T> {
    real::prefer_large_pages(values.as_ptr().cast(), values.capacity() * size_of::<T>());
    values
}

/// Bytes that another process may have too.
pub struct SharedMemory {
    inner: Inner,
}

enum Inner {
    Real(real::Mapping),
    Sim(Rc<RefCell<Vec<u8>>>),
}

/// Memory on its way to another process: what [`Writer::pass`](crate::net::Writer::pass) sends and
/// [`Reader::passed`](crate::net::Reader::passed) gives. Nothing is known of one that came.
pub struct MemoryHandle {
    pub(crate) inner: HandleInner,
}

pub(crate) enum HandleInner {
    Real(real::Descriptor),
    Sim(Rc<RefCell<Vec<u8>>>),
}

/// Makes memory of so many bytes, all 0, in a simulation.
pub(crate) fn simulated(bytes: usize) -> (SharedMemory, MemoryHandle) {
    let memory = Rc::new(RefCell::new(vec![0; bytes]));
    let handle = MemoryHandle { inner: HandleInner::Sim(Rc::clone(&memory)) };
    (SharedMemory { inner: Inner::Sim(memory) }, handle)
}

/// The same of this system.
pub(crate) fn real(bytes: usize) -> Result<(SharedMemory, MemoryHandle), MemoryError> {
    let (mapping, fd) = real::Mapping::create(bytes)?;
    Ok((SharedMemory { inner: Inner::Real(mapping) }, MemoryHandle { inner: HandleInner::Real(fd) }))
}

impl MemoryHandle {
    /// Takes the memory, if it is some that no other process can take away: then it can be used for as long as the answer lives, whatever
    /// becomes of its maker. Errors: `NotMemory`, `Unsealed`, `Size`, `Holes`; `System` if its maker keeps others from writing to it.
    pub fn open(self, max_bytes: usize) -> Result<SharedMemory, MemoryError> {
        let inner = match self.inner {
            HandleInner::Real(fd) => Inner::Real(real::Mapping::open(fd, max_bytes)?),
            HandleInner::Sim(memory) => {
                let found = memory.borrow().len();
                check_size(found as u64, max_bytes)?;
                Inner::Sim(memory)
            }
        };
        Ok(SharedMemory { inner })
    }
}

/// Whether memory of so many bytes is taken.
pub(crate) fn check_size(found: u64, max: usize) -> Result<usize, MemoryError> {
    let page = crate::limits::BLOCK_BYTES;
    let len = usize::try_from(found).ok().filter(|len| *len > 0 && *len <= max && len.is_multiple_of(page));
    len.ok_or(MemoryError::Size { found, page, max })
}

impl SharedMemory {
    /// How many bytes there are.
    pub fn len_bytes(&self) -> usize {
        match &self.inner {
            Inner::Real(mapping) => mapping.len(),
            Inner::Sim(memory) => memory.borrow().len(),
        }
    }

    /// A copy of what is there at the moment, which begins on a block boundary in memory. If somebody changes it meanwhile, each byte is an old
    /// or a new one.
    ///
    /// Panics if there are fewer bytes.
    pub fn copy_out(&self, at: usize, len: usize) -> Bytes {
        match &self.inner {
            Inner::Real(mapping) => mapping.copy_out(at, len),
            Inner::Sim(memory) => PageBuf::copy_of(&memory.borrow()[at..at + len]),
        }
    }

    /// Puts these bytes there.
    ///
    /// Panics if there is no room for them.
    pub fn copy_in(&self, at: usize, data: &[u8]) {
        match &self.inner {
            Inner::Real(mapping) => mapping.copy_in(at, data),
            Inner::Sim(memory) => memory.borrow_mut()[at..at + data.len()].copy_from_slice(data),
        }
    }
}
