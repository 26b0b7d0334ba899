//! A small pool of threads for what blocks: drive requests, and opening files.
//!
//! Threads start on demand, up to [`IO_THREADS_MAX`], and take jobs in order. A finished job puts its outcome in a list
//! that the loop empties each turn; the loop is rung only when it waits.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use super::park::Park;
use crate::limits::{IO_QUEUE_MAX, IO_THREADS_MAX};
use crate::sync::oneshot;

/// A job's result, when it is there.
pub(crate) type Finished<T> = Pin<Box<dyn Future<Output = T>>>;
/// What a job gave, or what it panicked with.
type Outcome = std::thread::Result<Box<dyn Any + Send>>;
type Job = Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>;

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

/// Starts a thread of a pool.
type Start = fn(&Arc<Shared>) -> std::io::Result<()>;

/// The loop's side. Clones share the pool; its threads end when the last clone is dropped.
#[derive(Clone)]
pub(crate) struct IoPool {
    shared: Arc<Shared>,
    waiting: Rc<RefCell<Slab<oneshot::Sender<Outcome>>>>,
    start: Start,
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
        Self::started_by(park, |shared| {
            let shared = Arc::clone(shared);
            let thread = std::thread::Builder::new().name("ithaca-io".into());
            thread.spawn(move || work(&shared)).map(drop)
        })
    }

    fn started_by(park: Arc<Park>, start: Start) -> Self {
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            arrived: Condvar::new(),
            done: Mutex::default(),
            park,
        });
        let stop = Rc::new(StopOnDrop { shared: Arc::clone(&shared) });
        Self { shared, waiting: Rc::default(), start, _stop: stop }
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
        jobs.queue.push_back((key, Box::new(move || Box::new(job()) as Box<dyn Any + Send>)));
        let start = jobs.idle < jobs.queue.len() && jobs.threads < IO_THREADS_MAX;
        let wake = jobs.idle > 0;
        jobs.threads += usize::from(start);
        drop(jobs);
        if wake {
            self.shared.arrived.notify_one();
        }
        if start && (self.start)(&self.shared).is_err() {
            self.go_without_thread();
        }
        Box::pin(async move {
            let outcome = receiver.await.expect("the pool outlives its environment's tasks");
            let value = outcome.unwrap_or_else(|panic| resume_unwind(panic));
            *value.downcast().expect("a job's outcome has the job's type")
        })
    }

    /// A thread that was counted could not be started. If it was the only one, what waits is done here: slowly, and nothing is waited
    /// for without end.
    fn go_without_thread(&self) {
        let mut jobs = lock(&self.shared.jobs);
        jobs.threads -= 1;
        if jobs.threads == 0 {
            drop(do_jobs(&self.shared, jobs));
        }
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
        jobs = do_jobs(shared, jobs);
        if jobs.stop {
            return;
        }
        jobs.idle += 1;
        jobs = shared.arrived.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        jobs.idle -= 1;
    }
}

/// Does jobs until none waits. One that panics ends whoever waits for it, and nobody else.
fn do_jobs<'a>(shared: &'a Shared, mut jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
    while let Some((key, job)) = jobs.queue.pop_front() {
        drop(jobs);
        let outcome = catch_unwind(AssertUnwindSafe(job));
        lock(&shared.done).push((key, outcome));
        shared.park.unpark();
        jobs = lock(&shared.jobs);
    }
    jobs
}

/// No job runs while these are locked, and they are only pushed to and popped from: a panic leaves none half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn pool(start: Start) -> IoPool {
        IoPool::started_by(Arc::new(Park::new().expect("a descriptor")), start)
    }

    fn look<T>(finished: &mut Finished<T>) -> Poll<T> {
        finished.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn without_any_thread_jobs_are_done_by_who_asks_for_them() {
        // A system that has no thread to give when the first drive is opened would have it waited for without end.
        let pool = pool(|_| Err(std::io::ErrorKind::WouldBlock.into()));
        let mut finished = [pool.run(|| 7), pool.run(|| 8)];
        pool.complete();
        assert_eq!(finished.each_mut().map(look), [Poll::Ready(7), Poll::Ready(8)]);
    }

    #[test]
    fn a_job_that_panics_ends_who_waits_for_it_and_no_thread() {
        let pool = pool(|_| Ok(()));
        let mut panics: Finished<()> = pool.run(|| panic!("a fault of ours"));
        let mut next = pool.run(|| 7);
        lock(&pool.shared.jobs).stop = true;
        // As a thread of the pool does until it is to stop.
        work(&pool.shared);
        pool.complete();
        assert!(catch_unwind(AssertUnwindSafe(|| look(&mut panics))).is_err());
        assert_eq!(look(&mut next), Poll::Ready(7));
    }
}
