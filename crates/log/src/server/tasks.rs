//! Tasks that end together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ithaca_env::Env;
use ithaca_env::task::TaskHandle;

/// Tasks that are under way: those of a listener's connections, or those of a connection that wait for something. All end when this is
/// dropped.
#[derive(Default)]
pub(super) struct Tasks {
    under_way: RefCell<BTreeMap<u64, TaskHandle<()>>>,
    next: Cell<u64>,
}

impl Tasks {
    /// Runs `task` until it is done, or this is dropped.
    pub(super) fn spawn(self: &Rc<Self>, env: &Env, task: impl Future<Output = ()> + 'static) {
        let number = self.next.get();
        self.next.set(number + 1);
        let tasks = Rc::downgrade(self);
        let handle = env.spawn(async move {
            task.await;
            if let Some(tasks) = tasks.upgrade() {
                tasks.under_way.borrow_mut().remove(&number);
            }
        });
        self.under_way.borrow_mut().insert(number, handle);
    }

    /// Ends the one that has been under way for longest.
    pub(super) fn end_first(&self) {
        let first = self.under_way.borrow_mut().pop_first();
        if let Some((_, task)) = first {
            task.abort();
        }
    }

    /// How many are under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.borrow().len()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.under_way.borrow().values().for_each(TaskHandle::abort);
    }
}
