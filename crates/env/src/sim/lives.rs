//! Processes from the outside: started, ended, paused, their clocks and processors changed.

use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::Time;
use crate::env::Env;

use super::clock::Clock;
use super::driver::Sim;
use super::handle::Handle;
use super::limits::CLOCK_DRIFT_MAX_PPM;
use super::net;
use super::options::nanos;
use super::process::{Death, Dying, Life, Process, ProcessId};
use super::queue::Event;
use super::random::Domain;
use super::trace::Kind;

impl Sim {
    /// Adds a process, alive and with nothing to do, on the machine `machine`. Processes of one machine share its drives
    /// and its ports.
    pub fn process(&self, name: &str, machine: IpAddr) -> ProcessId {
        let mut processes = self.world.processes.borrow_mut();
        let id = ProcessId(u32::try_from(processes.len()).unwrap_or(u32::MAX));
        processes.push(Process {
            name: name.to_owned(),
            machine,
            user: 0,
            life: None,
            main: None,
            clock: Clock::new(Time::ZERO, 0, 0),
            draws: 0,
            paused: false,
            vanished: false,
            cpu_ns: nanos(self.world.options.cpu_per_wake),
            message_ns: nanos(self.world.options.cpu_per_message),
            busy_until: Time::ZERO,
            held: Vec::new(),
            run_scheduled: false,
            io_points: 0,
            connections: 0,
            die_at_io: None,
        });
        drop(processes);
        self.begin_life(id);
        id
    }

    /// The name that the process was given.
    pub fn name(&self, process: ProcessId) -> String {
        self.world.processes.borrow()[process.0 as usize].name.clone()
    }

    /// The process that was given this name first.
    pub fn find_process(&self, name: &str) -> Option<ProcessId> {
        let processes = self.world.processes.borrow();
        let index = processes.iter().position(|process| process.name == name)?;
        u32::try_from(index).ok().map(ProcessId)
    }

    /// The machine that it runs on.
    pub fn machine(&self, process: ProcessId) -> IpAddr {
        self.world.processes.borrow()[process.0 as usize].machine
    }

    /// Whom the process runs as from now on; 0 until then.
    pub fn set_user(&self, process: ProcessId, user: u32) {
        self.world.processes.borrow_mut()[process.0 as usize].user = user;
    }

    /// Whether it is alive; a paused process is.
    pub fn is_up(&self, process: ProcessId) -> bool {
        self.world.processes.borrow()[process.0 as usize].life.is_some()
    }

    /// The environment of the process's present life. Panics if it is down.
    pub fn env(&self, process: ProcessId) -> Env {
        let life = self.world.processes.borrow()[process.0 as usize].life;
        let Some(life) = life else { panic!("process {} is down", self.name(process)) };
        Handle { world: Rc::clone(&self.world), process, life }.into()
    }

    /// Runs `main` in the process, now and again after each [`restart`](Sim::restart). Panics if the process is down.
    pub fn start<F>(&self, process: ProcessId, main: impl Fn(Env) -> F + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let env = self.env(process);
        let first = main(env.clone());
        self.world.processes.borrow_mut()[process.0 as usize].main =
            Some(Rc::new(move |env| Box::pin(main(env))));
        env.spawn(first);
    }

    /// Ends the process as `death` says, at once. Nothing happens if it is down.
    pub fn end(&self, process: ProcessId, death: Death) {
        let Some(life) = self.world.processes.borrow()[process.0 as usize].life else { return };
        self.world.note(Kind::Crash, u64::from(process.0), death as u64);
        {
            let mut processes = self.world.processes.borrow_mut();
            let state = &mut processes[process.0 as usize];
            state.life = None;
            state.paused = false;
            state.held.clear();
            state.vanished = death == Death::Vanish;
        }
        if self.world.dying.get().is_some_and(|dying| dying.process == process) {
            self.world.dying.set(None);
        }
        net::bury(&self.world, process, life, death);
        self.world.drives.borrow_mut().bury(&self.world, process, life, death);
        self.world.executor.drop_group(life.group());
    }

    /// Cuts the power of the process's machine for a moment: [`Death::PowerCut`].
    pub fn crash(&self, process: ProcessId) {
        self.end(process, Death::PowerCut);
    }

    /// Kills the process and leaves its machine running: [`Death::Kill`].
    pub fn kill(&self, process: ProcessId) {
        self.end(process, Death::Kill);
    }

    /// Starts the process again, after its end if it is still alive (then as [`Death::PowerCut`]), with the `main` of
    /// [`start`](Sim::start) if it has one.
    pub fn restart(&self, process: ProcessId) {
        self.end(process, Death::PowerCut);
        self.begin_life(process);
        let main = self.world.processes.borrow()[process.0 as usize].main.clone();
        if let Some(main) = main {
            let env = self.env(process);
            env.spawn(main(env.clone()));
        }
    }

    /// Starts the process after `down`, unless it is up by then.
    pub fn restart_after(&self, process: ProcessId, down: Duration) {
        self.at(self.now() + down, move |sim| {
            if !sim.is_up(process) {
                sim.restart(process);
            }
        });
    }

    fn begin_life(&self, process: ProcessId) {
        self.next_life.set(self.next_life.get() + 1);
        let life = Life(self.next_life.get());
        self.world.note(Kind::Start, u64::from(process.0), u64::from(life.0));
        let draw = |what, span: u64| {
            let entity = u64::from(process.0) << 8 | what;
            let of_life = if what == 0 { 0 } else { u64::from(life.0) };
            let drawn = self.world.dice.below(Domain::Clock, entity, of_life, 2 * span + 1);
            drawn as i64 - span as i64
        };
        // The crystal is the machine's and stays; the date is set anew at each start.
        let rate_ppb = draw(0, u64::from(self.world.options.clock_drift_ppm) * 1000);
        let wall_offset_ms = draw(1, nanos(self.world.options.wall_clock_offset) / 1_000_000);
        let mut processes = self.world.processes.borrow_mut();
        let state = &mut processes[process.0 as usize];
        let returns = std::mem::take(&mut state.vanished);
        state.life = Some(life);
        state.clock = Clock::new(self.now(), rate_ppb, wall_offset_ms);
        state.busy_until = self.now();
        drop(processes);
        if returns {
            net::greet(&self.world, process);
        }
    }

    /// Stops the process where it stands; what comes for it waits. Its requests under way go on.
    pub fn pause(&self, process: ProcessId) {
        self.settle();
        self.world.note(Kind::Pause, u64::from(process.0), 0);
        let mut processes = self.world.processes.borrow_mut();
        let state = &mut processes[process.0 as usize];
        state.paused = state.life.is_some();
    }

    /// Lets a paused process go on, with a clock that ran on and with all that came meanwhile.
    pub fn resume(&self, process: ProcessId) {
        self.world.note(Kind::Resume, u64::from(process.0), 0);
        self.world.processes.borrow_mut()[process.0 as usize].paused = false;
        self.world.schedule(self.now(), Event::Run(process));
    }

    /// From now on every wake costs the process this much CPU time.
    pub fn set_cpu_per_wake(&self, process: ProcessId, cost: Duration) {
        self.world.processes.borrow_mut()[process.0 as usize].cpu_ns = nanos(cost);
    }

    /// From now on every message that the process sends costs it this much CPU time.
    pub fn set_cpu_per_message(&self, process: ProcessId, cost: Duration) {
        self.world.processes.borrow_mut()[process.0 as usize].message_ns = nanos(cost);
    }

    /// Lets its monotonic clock run this much fast (or slow). Panics past [`CLOCK_DRIFT_MAX_PPM`].
    pub fn set_clock_rate(&self, process: ProcessId, ppm: i32) {
        assert!(ppm.unsigned_abs() <= CLOCK_DRIFT_MAX_PPM, "{ppm} ppm: past the stated bound");
        self.world.note(Kind::Clock, u64::from(process.0), u64::from(ppm.unsigned_abs()));
        let mut processes = self.world.processes.borrow_mut();
        processes[process.0 as usize].clock.set_rate(self.now(), i64::from(ppm) * 1000);
    }

    /// Makes its wall clock jump. Its monotonic clock does not.
    pub fn jump_wall_clock(&self, process: ProcessId, by_ms: i64) {
        self.world.note(Kind::Clock, u64::from(process.0), by_ms as u64);
        self.world.processes.borrow_mut()[process.0 as usize].clock.jump_wall(by_ms);
    }

    /// I/O points that the process has passed: starts and completions of its drive requests, over all its lives.
    pub fn io_points(&self, process: ProcessId) -> u64 {
        self.world.processes.borrow()[process.0 as usize].io_points
    }

    /// Ends the process as `death` says when its count of [`io_points`](Sim::io_points) reaches `point`: at a start with
    /// the request under way, at a completion with its effect done and nobody told. At once if it is past that already
    /// at its next point. Replaces an earlier such order.
    pub fn end_at_io(&self, process: ProcessId, point: u64, death: Death) {
        self.end_at_io_for(process, point, death, None);
    }

    /// [`end_at_io`](Sim::end_at_io), and a start `down` after that end.
    pub(super) fn end_at_io_for(&self, process: ProcessId, point: u64, death: Death, down: Option<Duration>) {
        let dying = Dying { process, death, down };
        self.world.processes.borrow_mut()[process.0 as usize].die_at_io = Some((point, dying));
    }

    /// [`end_at_io`](Sim::end_at_io) by a power cut.
    pub fn crash_at_io(&self, process: ProcessId, point: u64) {
        self.end_at_io(process, point, Death::PowerCut);
    }

    /// Ends every fault that passes: paused and slow processes run, those that are down are started, links are whole and
    /// as usual, drives are quick and meet no more counted faults. What was harmed stays harmed.
    pub fn heal(&self) {
        self.mend_all();
        self.world.net.borrow_mut().forget_links();
        self.world.drives.borrow_mut().calm();
        let count = self.world.processes.borrow().len();
        for index in 0..count {
            let process = ProcessId(index as u32);
            let (is_up, paused) = {
                let state = &mut self.world.processes.borrow_mut()[index];
                state.cpu_ns = nanos(self.world.options.cpu_per_wake);
                state.message_ns = nanos(self.world.options.cpu_per_message);
                state.die_at_io = None;
                (state.life.is_some(), state.paused)
            };
            if paused {
                self.resume(process);
            } else if !is_up {
                self.restart(process);
            }
        }
    }
}
