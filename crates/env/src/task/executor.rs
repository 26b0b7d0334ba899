//! Runs tasks on one thread.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::waker::{Remote, TaskWaker};
use crate::sync::oneshot;

/// Whose task it is. A simulated process is a group, so that a crash drops its tasks together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group(pub(crate) u32);

type BoxFuture = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    /// Taken out while it is polled.
    future: Option<BoxFuture>,
    waker: Arc<TaskWaker>,
    group: Group,
    /// Told apart from an earlier task under the same key.
    generation: u64,
    aborted: bool,
}

/// A single-threaded executor.
pub(crate) struct Executor {
    tasks: RefCell<Slab<Task>>,
    remote: Arc<Remote>,
    next_generation: Cell<u64>,
}

impl Executor {
    /// `unpark` ends a wait of the thread that runs it; it is called from other threads only.
    pub(crate) fn new(unpark: Box<dyn Fn() + Send + Sync>) -> Rc<Self> {
        Rc::new(Self {
            tasks: RefCell::new(Slab::new()),
            remote: Remote::new(unpark),
            next_generation: Cell::new(0),
        })
    }

    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.remote
    }

    /// Adds a task, ready to run. Call it between `enter` and `leave`, or from a task.
    pub(crate) fn spawn<T: 'static>(
        self: &Rc<Self>,
        group: Group,
        future: impl Future<Output = T> + 'static,
    ) -> TaskHandle<T> {
        let (done, result) = oneshot::channel();
        let (key, generation) = self.add(group, Box::pin(async move { done.send(future.await) }));
        TaskHandle { executor: Rc::downgrade(self), key, generation, result }
    }

    /// What of that is the same for every type of future. Gives the task's key and generation.
    fn add(&self, group: Group, future: BoxFuture) -> (usize, u64) {
        let generation = self.next_generation.get();
        self.next_generation.set(generation + 1);
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.vacant_entry();
        let key = slot.key();
        let waker =
            Arc::new(TaskWaker { key, scheduled: AtomicBool::new(false), remote: Arc::clone(&self.remote) });
        slot.insert(Task {
            future: Some(future),
            waker: Arc::clone(&waker),
            group,
            generation,
            aborted: false,
        });
        Waker::from(waker).wake();
        (key, generation)
    }

    /// Runs ready tasks, at most `limit` polls. Returns how many polls it made.
    pub(crate) fn run_ready(&self, limit: usize) -> usize {
        self.remote.collect();
        let mut polls = 0;
        while polls < limit {
            let Some(key) = self.remote.pop_local() else { break };
            self.poll(key);
            polls += 1;
        }
        polls
    }

    fn poll(&self, key: usize) {
        let (mut future, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            // A wake may outlive its task; the key may even belong to a new one, which a spurious poll does not harm.
            let Some(task) = tasks.get_mut(key) else { return };
            task.waker.scheduled.store(false, Ordering::Release);
            let Some(future) = task.future.take() else { return };
            (future, Arc::clone(&task.waker))
        };
        let waker = Waker::from(waker);
        let ended = matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(()));
        let mut tasks = self.tasks.borrow_mut();
        if ended || tasks[key].aborted {
            let task = tasks.remove(key);
            drop(tasks);
            drop((task, future));
        } else {
            tasks[key].future = Some(future);
        }
    }

    /// Drops every task of `group`. Not to be called from one of its own tasks, which would go on to its next await.
    pub(crate) fn drop_group(&self, group: Group) {
        let keys: Vec<usize> =
            self.tasks.borrow().iter().filter(|(_, task)| task.group == group).map(|(key, _)| key).collect();
        for key in keys {
            self.remove(key);
        }
    }

    fn abort(&self, key: usize, generation: u64) {
        if self.tasks.borrow().get(key).is_some_and(|task| task.generation == generation) {
            self.remove(key);
        }
    }

    fn remove(&self, key: usize) {
        let mut tasks = self.tasks.borrow_mut();
        let Some(task) = tasks.get_mut(key) else { return };
        if task.future.is_none() {
            // It is being polled, further up this very stack: its poll removes it.
            task.aborted = true;
            return;
        }
        let task = tasks.remove(key);
        // Dropped without the borrow: a destructor may spawn or wake.
        drop(tasks);
        drop(task);
    }

    /// Drops every task, so that no task's reference to its environment keeps it alive.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }
}

/// A spawned task. Dropping the handle lets the task run on; [`abort`](TaskHandle::abort) ends it.
pub struct TaskHandle<T> {
    executor: Weak<Executor>,
    key: usize,
    generation: u64,
    result: oneshot::Receiver<T>,
}

impl<T> TaskHandle<T> {
    /// Drops the task where it stands: at its present await.
    pub fn abort(&self) {
        if let Some(executor) = self.executor.upgrade() {
            executor.abort(self.key, self.generation);
        }
    }

    /// Waits for the task's result; `None` if it was aborted.
    pub async fn join(self) -> Option<T> {
        self.result.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor() -> Rc<Executor> {
        let executor = Executor::new(Box::new(|| ()));
        executor.remote().enter();
        executor
    }

    #[test]
    fn tasks_run_in_the_order_in_which_they_were_woken() {
        let executor = executor();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for name in ["a", "b", "c"] {
            let seen = Rc::clone(&seen);
            executor.spawn(Group(0), async move { seen.borrow_mut().push(name) });
        }
        executor.run_ready(100);
        executor.remote().leave();
        assert_eq!(*seen.borrow(), ["a", "b", "c"]);
    }

    #[test]
    fn a_dropped_group_takes_its_tasks_and_no_others() {
        let executor = executor();
        let alive = Rc::new(());
        for group in [1, 2, 1] {
            let alive = Rc::clone(&alive);
            executor.spawn(Group(group), async move {
                std::future::pending::<()>().await;
                drop(alive);
            });
        }
        executor.run_ready(100);
        executor.drop_group(Group(1));
        assert_eq!(Rc::strong_count(&alive), 2);
        executor.clear();
        executor.remote().leave();
        assert_eq!(Rc::strong_count(&alive), 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the wake must come from another thread")]
    fn a_wake_from_another_thread_reaches_the_task() {
        let executor = executor();
        let (waker_out, waker_in) = std::sync::mpsc::channel();
        let mut polls = 0;
        let task = executor.spawn(
            Group(0),
            std::future::poll_fn(move |cx| {
                polls += 1;
                waker_out.send(cx.waker().clone()).expect("the test waits for it");
                if polls == 2 { Poll::Ready(polls) } else { Poll::Pending }
            }),
        );
        executor.run_ready(100);
        let waker = waker_in.recv().expect("the task ran");
        std::thread::spawn(move || waker.wake()).join().expect("no panic");
        executor.run_ready(100);
        let mut joined = Box::pin(task.join());
        let ready = joined.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        executor.remote().leave();
        assert_eq!(ready, Poll::Ready(Some(2)));
    }
}
