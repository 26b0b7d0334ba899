//! A bounded queue between tasks of one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::Notify;

struct Shared<T> {
    items: RefCell<VecDeque<T>>,
    capacity: usize,
    senders: Cell<usize>,
    receiver_gone: Cell<bool>,
    /// Rings when an item came, went, or an end was dropped.
    changed: Notify,
}

/// Puts items in. Clones share the queue; when the last is dropped the receiver ends after what is queued.
pub struct Sender<T> {
    shared: Rc<Shared<T>>,
}

/// Takes items out.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
}

/// A queue of at most `capacity` items.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a queue of nothing");
    let shared = Rc::new(Shared {
        items: RefCell::new(VecDeque::new()),
        capacity,
        senders: Cell::new(1),
        receiver_gone: Cell::new(false),
        changed: Notify::default(),
    });
    (Sender { shared: Rc::clone(&shared) }, Receiver { shared })
}

impl<T> Sender<T> {
    /// Puts `item` in if there is room; gives it back if the queue is full or the receiver gone.
    pub fn try_send(&self, item: T) -> Result<(), T> {
        let mut items = self.shared.items.borrow_mut();
        if self.shared.receiver_gone.get() || items.len() >= self.shared.capacity {
            return Err(item);
        }
        items.push_back(item);
        drop(items);
        self.shared.changed.ring();
        Ok(())
    }

    /// Waits for room and puts `item` in; gives it back if the receiver is gone. Dropping the future drops the item.
    pub async fn send(&self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        self.shared
            .changed
            .until(|| {
                if self.shared.receiver_gone.get() {
                    return item.take().map(Err);
                }
                match self.try_send(item.take()?) {
                    Ok(()) => Some(Ok(())),
                    Err(back) => {
                        item = Some(back);
                        None
                    }
                }
            })
            .await
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.set(self.shared.senders.get() + 1);
        Self { shared: Rc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.senders.set(self.shared.senders.get() - 1);
        if self.shared.senders.get() == 0 {
            self.shared.changed.ring();
        }
    }
}

impl<T> Receiver<T> {
    /// The next item if one is queued.
    pub fn try_recv(&mut self) -> Option<T> {
        let item = self.shared.items.borrow_mut().pop_front()?;
        self.shared.changed.ring();
        Some(item)
    }

    /// Waits for the next item; `None` once every sender is gone and the queue empty.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            let ticket = self.shared.changed.ticket();
            if let Some(item) = self.try_recv() {
                return Some(item);
            }
            if self.shared.senders.get() == 0 {
                return None;
            }
            self.shared.changed.after(ticket).await;
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receiver_gone.set(true);
        self.shared.items.borrow_mut().clear();
        self.shared.changed.ring();
    }
}
