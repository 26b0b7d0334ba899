//! The state that every part of a simulation shares.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::Time;
use crate::task::Executor;

use super::drive::{Atlas, Drives};
use super::net::Net;
use super::options::SimOptions;
use super::process::{Dying, Life, Process, ProcessId};
use super::queue::{Event, Queue};
use super::random::Dice;
use super::trace::{Kind, Trace};

pub(super) struct Timer {
    serial: u64,
    owner: ProcessId,
    waker: Waker,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) options: SimOptions,
    pub(super) executor: Rc<Executor>,
    pub(super) now: Cell<Time>,
    pub(super) queue: RefCell<Queue>,
    pub(super) trace: RefCell<Trace>,
    pub(super) processes: RefCell<Vec<Process>>,
    pub(super) drives: RefCell<Drives>,
    pub(super) atlas: RefCell<Atlas>,
    pub(super) net: RefCell<Net>,
    timers: RefCell<Slab<Timer>>,
    next_serial: Cell<u64>,
    /// A process that reached the I/O point at which it is to die. It does when its present poll returns; until then
    /// nothing that it does has an effect.
    pub(super) dying: Cell<Option<Dying>>,
    /// The simulation is being dropped: nothing more is scheduled.
    pub(super) over: Cell<bool>,
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions) -> Rc<Self> {
        options.check();
        Rc::new(Self {
            dice: Dice::new(seed),
            trace: RefCell::new(Trace::new(options.readable_trace)),
            options,
            executor: Executor::new(Box::new(|| ())),
            now: Cell::new(Time::ZERO),
            queue: RefCell::default(),
            processes: RefCell::default(),
            drives: RefCell::default(),
            atlas: RefCell::default(),
            net: RefCell::default(),
            timers: RefCell::default(),
            next_serial: Cell::new(0),
            dying: Cell::new(None),
            over: Cell::new(false),
        })
    }

    /// A number that was never given before.
    pub(super) fn serial(&self) -> u64 {
        self.next_serial.set(self.next_serial.get() + 1);
        self.next_serial.get()
    }

    pub(super) fn schedule(&self, at: Time, event: Event) {
        if !self.over.get() {
            self.queue.borrow_mut().push(at.max(self.now.get()), event);
        }
    }

    pub(super) fn note(&self, kind: Kind, entity: u64, detail: u64) {
        self.trace.borrow_mut().note(self.now.get(), kind, entity, detail);
    }

    /// Whether `life` of `owner` goes on, its effects counting.
    pub(super) fn is_alive(&self, owner: ProcessId, life: Life) -> bool {
        self.dying.get().is_none_or(|dying| dying.process != owner)
            && self.processes.borrow()[owner.0 as usize].is(life)
    }

    /// Wakes a task of `owner`: at once, or when it has CPU for it or its pause ends.
    pub(super) fn wake(&self, owner: ProcessId, waker: Waker) {
        let now = self.now.get();
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[owner.0 as usize];
        if process.paused || process.busy_until > now || !process.held.is_empty() {
            process.held.push(waker);
            if !process.paused && !process.run_scheduled {
                process.run_scheduled = true;
                self.schedule(process.busy_until, Event::Run(owner));
            }
            return;
        }
        if process.cpu_ns > 0 {
            process.busy_until = Time(now.0.saturating_add(process.cpu_ns));
        }
        drop(processes);
        waker.wake();
    }

    /// `owner` has made so many messages: when it is done with them, which is when the last of them leaves it.
    pub(super) fn charge(&self, owner: ProcessId, messages: u64) -> Time {
        let now = self.now.get();
        let process = &mut self.processes.borrow_mut()[owner.0 as usize];
        let cost = process.message_ns.saturating_mul(messages);
        if cost == 0 {
            return now;
        }
        process.busy_until = Time(process.busy_until.max(now).0.saturating_add(cost));
        process.busy_until
    }

    /// The next wake of those that were held, if the process may run.
    pub(super) fn run_held(&self, owner: ProcessId) {
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[owner.0 as usize];
        process.run_scheduled = false;
        if process.paused || process.held.is_empty() {
            return;
        }
        if process.message_ns > 0 && process.busy_until > self.now.get() {
            // What it sent meanwhile keeps it busy for longer.
            process.run_scheduled = true;
            self.schedule(process.busy_until, Event::Run(owner));
            return;
        }
        let free_of_cost = process.cpu_ns == 0;
        let count = if free_of_cost { process.held.len() } else { 1 };
        let wakers: Vec<Waker> = process.held.drain(..count).collect();
        process.busy_until = Time(self.now.get().0.saturating_add(process.cpu_ns));
        if !process.held.is_empty() {
            process.run_scheduled = true;
            self.schedule(process.busy_until, Event::Run(owner));
        }
        drop(processes);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Counts a start or completion of a drive request. True if the process dies here.
    pub(super) fn io_point(&self, owner: ProcessId) -> bool {
        let mut processes = self.processes.borrow_mut();
        let process = &mut processes[owner.0 as usize];
        process.io_points += 1;
        match process.die_at_io {
            Some((at, dying)) if process.io_points >= at => {
                process.die_at_io = None;
                self.dying.set(Some(dying));
                true
            }
            _ => false,
        }
    }

    pub(super) fn local_time(&self, owner: ProcessId) -> Time {
        self.processes.borrow()[owner.0 as usize].clock.local(self.now.get())
    }

    fn world_time(&self, owner: ProcessId, local: Time) -> Time {
        self.processes.borrow()[owner.0 as usize].clock.world(local)
    }

    /// Fires the timer, which [is there](World::is_timer).
    pub(super) fn fire(&self, slot: usize, serial: u64) {
        let timer = self.timers.borrow_mut().remove(slot);
        assert_eq!(timer.serial, serial, "the timer in the slot is another");
        self.note(Kind::Timer, u64::from(timer.owner.0), serial);
        self.wake(timer.owner, timer.waker);
    }

    pub(super) fn is_timer(&self, slot: usize, serial: u64) -> bool {
        self.timers.borrow().get(slot).is_some_and(|timer| timer.serial == serial)
    }
}

/// Waits until the clock of `owner` shows `deadline`.
pub(super) struct Sleep {
    world: Rc<World>,
    owner: ProcessId,
    deadline: Time,
    timer: Option<(usize, u64)>,
}

impl Sleep {
    pub(super) fn new(world: &Rc<World>, owner: ProcessId, deadline: Time) -> Self {
        Self { world: Rc::clone(world), owner, deadline, timer: None }
    }

    fn cancel(&mut self) {
        let Some((slot, serial)) = self.timer.take() else { return };
        let mut timers = self.world.timers.borrow_mut();
        if timers.get(slot).is_some_and(|timer| timer.serial == serial) {
            let timer = timers.remove(slot);
            drop(timers);
            drop(timer);
        }
    }
}

impl std::future::Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.world.local_time(self.owner) >= self.deadline {
            return Poll::Ready(());
        }
        let world = Rc::clone(&self.world);
        if let Some((slot, serial)) = self.timer {
            let mut timers = world.timers.borrow_mut();
            if let Some(timer) = timers.get_mut(slot).filter(|timer| timer.serial == serial) {
                timer.waker.clone_from(cx.waker());
                return Poll::Pending;
            }
        }
        // The world's clock is converted back, which may be a nanosecond short: never wait for no time at all.
        let due = world.world_time(self.owner, self.deadline).max(Time(world.now.get().0 + 1));
        let serial = world.serial();
        let timer = Timer { serial, owner: self.owner, waker: cx.waker().clone() };
        let slot = world.timers.borrow_mut().insert(timer);
        self.timer = Some((slot, serial));
        if due < Time::MAX {
            world.schedule(due, Event::Timer { slot, serial });
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
