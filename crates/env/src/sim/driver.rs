//! The world's owner: runs it and does things to it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use thiserror::Error;

use crate::{Time, sync};

use super::limits::POLLS_PER_INSTANT_MAX;
use super::options::SimOptions;
use super::process::ProcessId;
use super::queue::Event;
use super::random::Dice;
use super::trace::Kind;
use super::world::World;
use super::{drive, net};

/// Why a simulation stopped before what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stopped {
    /// The process that ran it ended first, or the task was aborted.
    #[error("the process ended at {at}")]
    Ended {
        /// When the wait ended.
        at: Time,
    },
    /// Nothing is going to happen any more.
    #[error("nothing happens after {at}")]
    Idle {
        /// When the last thing happened.
        at: Time,
    },
    /// The deadline passed.
    #[error("not done by {at}")]
    Deadline {
        /// The deadline.
        at: Time,
    },
}

/// A simulated world. See the [module](crate::sim) for an example.
pub struct Sim {
    pub(super) world: Rc<World>,
    pub(super) next_life: Cell<u32>,
}

/// The thread runs this world's tasks until it is dropped, also by a panic.
struct Entered<'a> {
    world: &'a World,
    /// An action that runs the world itself leaves it entered for whoever runs the action.
    within_another: bool,
}

impl<'a> Entered<'a> {
    fn new(world: &'a World) -> Self {
        let within_another = world.executor.remote().is_current();
        world.executor.remote().enter();
        Self { world, within_another }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if !self.within_another {
            self.world.executor.remote().leave();
        }
    }
}

impl Sim {
    /// A world of `seed` with default options.
    pub fn new(seed: u64) -> Self {
        Self::with_options(seed, SimOptions::default())
    }

    /// A world of `seed`. Panics if the options contradict each other.
    pub fn with_options(seed: u64, options: SimOptions) -> Self {
        Self { world: World::new(seed, options), next_life: Cell::new(0) }
    }

    /// The seed's decisions, for workloads of the caller ([`Domain::User`]).
    pub fn dice(&self) -> Dice {
        self.world.dice
    }

    /// The world's time. Processes see their own clocks.
    pub fn now(&self) -> Time {
        self.world.now.get()
    }

    /// A hash of everything that happened so far: equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.world.trace.borrow().hash()
    }

    /// Events that happened so far.
    pub fn events(&self) -> u64 {
        self.world.trace.borrow().events()
    }

    /// Everything that happened, a line each, if [`SimOptions::readable_trace`] is set.
    pub fn trace_lines(&self) -> Vec<String> {
        self.world.trace.borrow().lines().to_vec()
    }

    /// Puts a note into the trace: its text into the lines, `number` into the hash.
    pub fn note(&self, number: u64, text: &dyn std::fmt::Display) {
        self.world.note(Kind::User, 0, number);
        self.world.trace.borrow_mut().say(self.now(), text);
    }

    /// Does something to the world at a time (now, if that is past).
    pub fn at(&self, time: Time, action: impl FnOnce(&Sim) + 'static) {
        self.world.schedule(time, Event::Act(Box::new(action)));
    }

    /// Runs `future` in the process until it is done. Panics, naming the seed, if the process ends first or nothing
    /// happens any more.
    pub fn block_on<T: 'static>(&self, process: ProcessId, future: impl Future<Output = T> + 'static) -> T {
        match self.try_block_on(process, Time::MAX, future) {
            Ok(value) => value,
            Err(stopped) => panic!("seed {}: {stopped}", self.world.dice.seed()),
        }
    }

    /// Runs `future` in the process until it is done or `deadline` comes. Past an error of the deadline it runs on
    /// whenever the world does.
    pub fn try_block_on<T: 'static>(
        &self,
        process: ProcessId,
        deadline: Time,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stopped> {
        let (done, result) = sync::oneshot::channel();
        let result = Rc::new(RefCell::new(Some(result)));
        let arrived: Rc<RefCell<Option<Result<T, sync::oneshot::Closed>>>> = Rc::default();
        self.env(process).spawn(async move { done.send(future.await) });
        let (slot, seen) = (Rc::clone(&result), Rc::clone(&arrived));
        let stopped = self.run_while(deadline, move |_| {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let mut slot = slot.borrow_mut();
            let Some(receiver) = slot.as_mut() else { return false };
            match std::pin::Pin::new(receiver).poll(&mut context) {
                std::task::Poll::Pending => true,
                std::task::Poll::Ready(value) => {
                    *slot = None;
                    *seen.borrow_mut() = Some(value);
                    false
                }
            }
        });
        match arrived.take() {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(Stopped::Ended { at: self.now() }),
            None => Err(stopped.err().unwrap_or(Stopped::Idle { at: self.now() })),
        }
    }

    /// Runs the world until `deadline`, whether or not anything happens.
    pub fn run_until(&self, deadline: Time) {
        let _entered = Entered::new(&self.world);
        while self.step(deadline) {}
        self.world.now.set(self.now().max(deadline));
    }

    /// Runs the world for `span`.
    pub fn run_for(&self, span: Duration) {
        self.run_until(self.now() + span);
    }

    /// Runs the world while `condition` holds, which is asked after every event; an error if that does not end by
    /// `deadline` or nothing happens any more.
    pub fn run_while(&self, deadline: Time, mut condition: impl FnMut(&Sim) -> bool) -> Result<(), Stopped> {
        let _entered = Entered::new(&self.world);
        self.settle_entered();
        while condition(self) {
            if !self.step(deadline) {
                let is_idle = deadline == Time::MAX || self.world.queue.borrow().is_empty();
                return Err(match is_idle {
                    true => Stopped::Idle { at: self.now() },
                    false => Stopped::Deadline { at: deadline },
                });
            }
        }
        Ok(())
    }

    /// Lets every task run that is ready now.
    pub fn settle(&self) {
        let _entered = Entered::new(&self.world);
        self.settle_entered();
    }

    fn settle_entered(&self) {
        let mut polls = 0;
        loop {
            while self.world.executor.run_ready(1) > 0 {
                polls += 1;
                assert!(
                    polls < POLLS_PER_INSTANT_MAX,
                    "seed {}: tasks wake each other without end at {}",
                    self.world.dice.seed(),
                    self.now()
                );
                self.bury_the_dying();
            }
            if !net::flush_dirty(&self.world) {
                return;
            }
        }
    }

    fn bury_the_dying(&self) {
        if let Some(dying) = self.world.dying.get() {
            self.end(dying.process, dying.death);
            if let Some(down) = dying.down {
                self.restart_after(dying.process, down);
            }
        }
    }

    /// Lets everything ready run, then delivers the next event due by `limit`. False if there is none.
    fn step(&self, limit: Time) -> bool {
        self.settle_entered();
        loop {
            let Some((at, event)) = self.world.queue.borrow_mut().pop(limit) else { return false };
            // A timer dropped before it was due is nothing that happens.
            if let Event::Timer { slot, serial } = event
                && !self.world.is_timer(slot, serial)
            {
                continue;
            }
            self.world.now.set(at);
            self.deliver(event);
            self.bury_the_dying();
            self.settle_entered();
            return true;
        }
    }

    fn deliver(&self, event: Event) {
        let world = &self.world;
        match event {
            Event::Timer { slot, serial } => world.fire(slot, serial),
            Event::Io { drive, slot, serial } => drive::complete(world, drive, slot, serial),
            Event::DriveWake { drive } => drive::wake(world, drive),
            Event::Arrive(stream) => net::arrive(world, &stream),
            Event::Window(stream) => net::open_window(world, &stream),
            Event::Syn(stream) => net::syn(world, &stream),
            Event::SynAnswer(stream) => net::syn_answer(world, &stream),
            Event::Run(process) => world.run_held(process),
            Event::Act(action) => action(self),
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Tasks and events hold the world, and the world holds them.
        self.world.over.set(true);
        self.world.executor.clear();
        let queue = self.world.queue.borrow_mut().take();
        drop(queue);
        self.world.processes.borrow_mut().iter_mut().for_each(|process| process.main = None);
        let dirty = self.world.net.borrow_mut().take_dirty();
        drop(dirty);
    }
}
