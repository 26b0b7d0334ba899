//! Drive reads through io_uring: many are submitted by one system call, and complete without a thread.
//!
//! A drive may give all answers at once: one behind a virtual machine monitor does when it has nothing left to do. So
//! neither way waits for the whole turn: reads go out [`SUBMIT_COUNT`] at a time, and at most [`COMPLETE_COUNT`] answers
//! are handed over in a turn. Then the drive works on what the first readers asked next, while the rest are answered.
//!
//! Where the system has no io_uring that reads, or does not allow it, reads run on the pool instead. Writes always do: a durable write
//! ends on a kernel thread of ordinary priority, and the pool's threads run before those ([`super::run_at_once`]).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use io_uring::{IoUring, Probe, opcode, types};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use slab::Slab;

use super::drive_file::OpenFile;
use crate::drive::{DriveError, PageBuf};
use crate::limits::IO_QUEUE_MAX;
use crate::sync::oneshot;

/// Reads in the kernel at the same time; the rest wait here.
const DEPTH: u32 = 1024;
/// Reads that are queued before they are submitted without waiting for the end of the turn.
const SUBMIT_COUNT: usize = 16;
/// Answers that are handed over in one turn.
const COMPLETE_COUNT: usize = 16;

/// A read until it is whole.
struct InFlight {
    file: Arc<OpenFile>,
    /// Holds what was read so far. Not touched while the kernel writes into its spare room; dropped only after that.
    buf: PageBuf,
    offset: u64,
    len: usize,
    sender: oneshot::Sender<Result<Bytes, DriveError>>,
}

/// The loop's ring.
pub(super) struct Ring {
    ring: RefCell<IoUring>,
    reads: RefCell<Slab<InFlight>>,
    /// Reads that are not in the kernel, because it has enough of them.
    waiting: RefCell<VecDeque<usize>>,
    in_kernel: Cell<usize>,
    /// Something was queued since the last submission.
    queued: Cell<bool>,
}

impl Ring {
    /// A ring, or `None` where there is none to be had, or none that reads (before Linux 5.6).
    pub(super) fn new() -> Option<Rc<Self>> {
        let ring = IoUring::builder().setup_cqsize(2 * DEPTH).build(DEPTH).ok()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        if !probe.is_supported(opcode::Read::CODE) {
            return None;
        }
        Some(Rc::new(Self {
            ring: RefCell::new(ring),
            reads: RefCell::default(),
            waiting: RefCell::default(),
            in_kernel: Cell::new(0),
            queued: Cell::new(false),
        }))
    }

    /// Begins a read, with the next submission or by one of its own. `None` if too many wait.
    pub(super) fn read(
        &self,
        file: Arc<OpenFile>,
        offset: u64,
        len: usize,
    ) -> Option<oneshot::Receiver<Result<Bytes, DriveError>>> {
        if self.waiting.borrow().len() >= IO_QUEUE_MAX {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let read = InFlight { file, buf: PageBuf::with_capacity(len), offset, len, sender };
        let key = self.reads.borrow_mut().insert(read);
        let waiting = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.push_back(key);
            waiting.len()
        };
        self.queued.set(true);
        if waiting == SUBMIT_COUNT {
            self.submit();
        }
        Some(receiver)
    }

    /// Hands what was queued to the kernel, by one system call.
    pub(super) fn submit(&self) {
        if !self.queued.get() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        while self.in_kernel.get() < DEPTH as usize
            && let Some(key) = waiting.pop_front()
        {
            self.push(key);
        }
        let mut ring = self.ring.borrow_mut();
        if let Err(error) = ring.submit() {
            // Interrupted or short of memory: what stands in the ring goes with the next turn's submission.
            tracing::debug!(%error, "drive reads are submitted later");
        }
        self.queued.set(!ring.submission().is_empty());
    }

    #[expect(unsafe_code, reason = "the kernel writes into the buffer behind the compiler's back")]
    fn push(&self, key: usize) {
        let mut reads = self.reads.borrow_mut();
        let read = &mut reads[key];
        let done = read.buf.len();
        let rest = &mut read.buf.spare()[..read.len - done];
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let fd = types::Fd(read.file.file().as_raw_fd());
        let entry =
            opcode::Read::new(fd, rest.as_mut_ptr().cast(), len).offset(read.offset + done as u64).build();
        let entry = entry.user_data(key as u64);
        // SAFETY: buffer and descriptor belong to `read`, which stays in `reads`, unmoved on the heap and untouched, until
        // its completion has been taken; `drop` waits for every completion before they go.
        let pushed = unsafe { self.ring.borrow_mut().submission().push(&entry) };
        assert!(pushed.is_ok(), "the ring has room for as many as may be in the kernel");
        self.in_kernel.set(self.in_kernel.get() + 1);
    }

    /// Whether completions wait to be taken, or reads to be submitted: then the loop must not wait.
    pub(super) fn has_work(&self) -> bool {
        self.queued.get() || self.in_kernel.get() > 0 && !self.ring.borrow_mut().completion().is_empty()
    }

    /// The descriptor that is readable when completions wait.
    #[expect(unsafe_code, reason = "the library gives the descriptor as a number only")]
    pub(super) fn with_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        let ring = self.ring.borrow();
        // SAFETY: the ring owns the descriptor and is borrowed as long as `with` uses it.
        with(unsafe { BorrowedFd::borrow_raw(ring.as_raw_fd()) })
    }

    /// Takes a part of the completions and answers. Those left over keep the loop from waiting.
    pub(super) fn complete(&self) {
        if self.in_kernel.get() == 0 {
            return;
        }
        let done: Vec<(usize, i32)> = {
            let mut ring = self.ring.borrow_mut();
            let answers = ring.completion().take(COMPLETE_COUNT);
            answers.map(|entry| (entry.user_data() as usize, entry.result())).collect()
        };
        for (key, result) in done {
            self.in_kernel.set(self.in_kernel.get() - 1);
            self.settle(key, result);
        }
        if !self.waiting.borrow().is_empty() {
            self.queued.set(true);
        }
    }

    #[expect(unsafe_code, reason = "the kernel has filled the buffer behind the compiler's back")]
    fn settle(&self, key: usize, result: i32) {
        let mut reads = self.reads.borrow_mut();
        let read = &mut reads[key];
        let outcome = match usize::try_from(result) {
            // The file was cut after it was opened.
            Ok(0) => Err(Errno::IO),
            Ok(len) => {
                assert!(len <= read.len - read.buf.len(), "no more than was asked for");
                // SAFETY: the kernel has just written `len` bytes at the start of the spare room.
                unsafe { read.buf.advance(len) };
                Ok(read.buf.len() == read.len)
            }
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::INTR | Errno::AGAIN => Ok(false),
                error => Err(error),
            },
        };
        if let Ok(false) = outcome {
            // The rest of a short read.
            self.waiting.borrow_mut().push_back(key);
            return;
        }
        let InFlight { file, buf, offset, sender, .. } = reads.remove(key);
        drop(reads);
        sender.send(match outcome {
            Ok(_) => Ok(buf.freeze()),
            Err(error) => Err(file.error("read", offset, error)),
        });
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel may still write into the buffers of what is in flight.
        while self.in_kernel.get() > 0 {
            let waited = self.ring.borrow().submit_and_wait(1);
            if waited.is_err_and(|error| error.kind() != std::io::ErrorKind::Interrupted) {
                // Without a way to wait, the buffers are left to the kernel for ever.
                std::mem::forget(std::mem::take(&mut *self.reads.borrow_mut()));
                return;
            }
            self.complete();
        }
    }
}
