//! Something may have changed: wake everyone who waits.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A condition's bell. A waiter reads the condition, calls [`Notify::ticket`] before that, and waits for a newer ring,
/// so that a ring between the look and the wait is not lost.
#[derive(Default)]
pub struct Notify {
    rings: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Notify {
    /// Wakes everyone who waits.
    pub fn ring(&self) {
        self.rings.set(self.rings.get() + 1);
        // Taken out first: a waker may run code that waits again.
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Rings so far.
    pub fn ticket(&self) -> u64 {
        self.rings.get()
    }

    /// Waits until there was a ring after `ticket`. Dropping the future stops the wait.
    pub async fn after(&self, ticket: u64) {
        poll_fn(|cx| {
            if self.rings.get() != ticket {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Waits until `condition` gives a value; it is tried at once and after every ring.
    pub async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        loop {
            let ticket = self.ticket();
            if let Some(value) = condition() {
                return value;
            }
            self.after(ticket).await;
        }
    }
}
