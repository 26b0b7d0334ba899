//! Ends the loop's wait from another thread, with a system call only when it really waits.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub(super) struct Park {
    event: OwnedFd,
    parked: AtomicBool,
}

impl Park {
    pub(super) fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, parked: AtomicBool::new(false) })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Says that the thread is about to wait. Work that arrived before must be looked for after this call.
    pub(super) fn prepare(&self) {
        self.parked.store(true, Ordering::SeqCst);
    }

    /// Says that the thread is awake.
    pub(super) fn awake(&self) {
        self.parked.store(false, Ordering::SeqCst);
    }

    /// Empties the event descriptor after it became readable.
    pub(super) fn drain(&self) {
        let mut count = [0; 8];
        // Nothing to read means that somebody else emptied it: the loop is awake either way.
        let _ = rustix::io::read(&self.event, &mut count);
    }

    /// Wakes the thread if it waits. To be called after the work was made visible to it.
    pub(super) fn unpark(&self) {
        if self.parked.swap(false, Ordering::SeqCst) {
            // Fails only when the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}
