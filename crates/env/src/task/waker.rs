//! Wakers: a task's key pushed to its executor's ready queue, without a lock when woken on the same thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

static NEXT_EXECUTOR: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The executor that runs on this thread now, 0 for none, and the tasks that are ready on it.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    static READY: RefCell<VecDeque<usize>> = const { RefCell::new(VecDeque::new()) };
}

/// What other threads reach of an executor.
pub(crate) struct Remote {
    executor: u64,
    woken: Mutex<Vec<usize>>,
    /// Ends the executor's wait; set once by the environment that parks it.
    unpark: Box<dyn Fn() + Send + Sync>,
}

impl Remote {
    pub(crate) fn new(unpark: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let executor = NEXT_EXECUTOR.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { executor, woken: Mutex::new(Vec::new()), unpark })
    }

    /// Makes this executor the thread's current one until [`Remote::leave`].
    pub(crate) fn enter(&self) {
        let before = CURRENT.replace(self.executor);
        assert!(before == 0 || before == self.executor, "one executor a thread");
    }

    /// Whether this executor is the thread's current one.
    pub(crate) fn is_current(&self) -> bool {
        CURRENT.get() == self.executor
    }

    pub(crate) fn leave(&self) {
        CURRENT.set(0);
        READY.with_borrow_mut(|ready| {
            self.woken.lock().unwrap_or_else(PoisonError::into_inner).extend(ready.drain(..));
        });
    }

    /// Moves what other threads woke to the ready queue.
    pub(crate) fn collect(&self) {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        READY.with_borrow_mut(|ready| ready.extend(woken.drain(..)));
    }

    /// Ends the wait of the executor's thread, if this is another one.
    pub(crate) fn unpark_if_elsewhere(&self) {
        if CURRENT.get() != self.executor {
            (self.unpark)();
        }
    }

    fn push_local(&self, key: usize) {
        READY.with_borrow_mut(|ready| ready.push_back(key));
    }

    pub(crate) fn pop_local(&self) -> Option<usize> {
        READY.with_borrow_mut(VecDeque::pop_front)
    }

    pub(crate) fn is_idle(&self) -> bool {
        READY.with_borrow(VecDeque::is_empty)
            && self.woken.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// One task's waker. `scheduled` keeps a task from standing in the queue twice.
pub(crate) struct TaskWaker {
    pub(crate) key: usize,
    pub(crate) scheduled: AtomicBool,
    pub(crate) remote: Arc<Remote>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.scheduled.swap(true, Ordering::AcqRel) {
            return;
        }
        if CURRENT.get() == self.remote.executor {
            self.remote.push_local(self.key);
        } else {
            self.remote.woken.lock().unwrap_or_else(PoisonError::into_inner).push(self.key);
            self.remote.unpark_if_elsewhere();
        }
    }
}
