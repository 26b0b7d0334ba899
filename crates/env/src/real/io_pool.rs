//! A small pool of threads for what blocks: drive requests, and opening files.
//!
//! Threads start on demand, up to [`IO_THREADS_MAX`], and take jobs in order. A finished job puts its outcome in a list
//! that the loop empties each turn; the loop is rung only when it waits.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use super::park::Park;
use crate::limits::{IO_QUEUE_MAX, IO_THREADS_MAX};
use crate::sync::oneshot;

/// A job's result, when it is there.
pub(crate) type Finished<T> = Pin<Box<dyn Future<Output = T>>>;
type Outcome = Box<dyn Any + Send>;
type Job = Box<dyn FnOnce() -> Outcome + Send>;

#[derive(Default)]
struct Jobs {
    queue: VecDeque<(usize, Job)>,
    threads: usize,
    idle: usize,
    stop: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
    done: Mutex<Vec<(usize, Outcome)>>,
    park: Arc<Park>,
}

/// The loop's side. Clones share the pool; its threads end when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct IoPool {
    shared: Arc<Shared>,
    waiting: Rc<RefCell<Slab<oneshot::Sender<Outcome>>>>,
    _stop: Rc<StopOnDrop>,
}

struct StopOnDrop {
    shared: Arc<Shared>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        lock(&self.shared.jobs).stop = true;
        self.shared.arrived.notify_all();
    }
}

/// Too many jobs wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Busy;

impl IoPool {
    pub(super) fn new(park: Arc<Park>) -> Self {
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            arrived: Condvar::new(),
            done: Mutex::default(),
            park,
        });
        let stop = Rc::new(StopOnDrop { shared: Arc::clone(&shared) });
        Self { shared, waiting: Rc::default(), _stop: stop }
    }

    /// Runs `job` on a thread of the pool; it starts even if the future is never polled. `Busy` if too many wait.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Finished<T>, Busy> {
        let waiting = lock(&self.shared.jobs).queue.len();
        if waiting < IO_QUEUE_MAX { Ok(self.run(job)) } else { Err(Busy) }
    }

    /// The same however many wait, for jobs that are few at a time.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Finished<T> {
        let (sender, receiver) = oneshot::channel();
        let mut jobs = lock(&self.shared.jobs);
        let key = self.waiting.borrow_mut().insert(sender);
        jobs.queue.push_back((key, Box::new(move || Box::new(job()) as Outcome)));
        let start = jobs.idle < jobs.queue.len() && jobs.threads < IO_THREADS_MAX;
        let wake = jobs.idle > 0;
        jobs.threads += usize::from(start);
        drop(jobs);
        if wake {
            self.shared.arrived.notify_one();
        }
        if start {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new().name("ithaca-io".into()).spawn(move || work(&shared));
            if spawned.is_err() {
                lock(&self.shared.jobs).threads -= 1;
            }
        }
        Box::pin(async move {
            let outcome = receiver.await.expect("the pool outlives its environment's tasks");
            *outcome.downcast().expect("a job's outcome has the job's type")
        })
    }

    /// Whether finished jobs wait to be handed over.
    pub(super) fn has_done(&self) -> bool {
        !lock(&self.shared.done).is_empty()
    }

    /// Hands finished jobs to those who wait.
    pub(super) fn complete(&self) {
        let done = std::mem::take(&mut *lock(&self.shared.done));
        for (key, outcome) in done {
            let sender = self.waiting.borrow_mut().remove(key);
            sender.send(outcome);
        }
    }
}

fn work(shared: &Shared) {
    super::priority::run_at_once();
    let mut jobs = lock(&shared.jobs);
    loop {
        if let Some((key, job)) = jobs.queue.pop_front() {
            drop(jobs);
            let outcome = job();
            lock(&shared.done).push((key, outcome));
            shared.park.unpark();
            jobs = lock(&shared.jobs);
        } else if jobs.stop {
            return;
        } else {
            jobs.idle += 1;
            jobs = shared.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.idle -= 1;
        }
    }
}

/// A panic in a job cannot leave these half-changed: they are only pushed to and popped from.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
