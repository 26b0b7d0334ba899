//! Simulated processes: alive, paused or down, each life with its own tasks and clock.

use std::net::IpAddr;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use crate::Time;
use crate::env::Env;
use crate::net::LocalFuture;
use crate::task::Group;

use super::clock::Clock;

/// A process of a simulation. It may die and come back; it keeps its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub(super) u32);

/// One life of a process, from its start to its end. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life(pub(super) u32);

impl Life {
    pub(super) fn group(self) -> Group {
        Group(self.0)
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process is killed and the machine runs on: drives keep what they have completed, of requests under way any
    /// part; peers get a reset.
    Kill,
    /// The machine loses power and is back at once: drives keep any part of what was not synced; peers get a reset.
    PowerCut,
    /// The machine loses power and answers nobody until the process is started again: connections stay half-open.
    Vanish,
}

/// A process about to end, and how.
#[derive(Clone, Copy)]
pub(super) struct Dying {
    pub(super) process: ProcessId,
    pub(super) death: Death,
    /// Started again after this.
    pub(super) down: Option<Duration>,
}

/// What a process does when it starts.
pub(super) type Main = Rc<dyn Fn(Env) -> LocalFuture<'static, ()>>;

pub(super) struct Process {
    pub(super) name: String,
    pub(super) machine: IpAddr,
    pub(super) user: u32,
    /// `None` while it is down.
    pub(super) life: Option<Life>,
    pub(super) main: Option<Main>,
    pub(super) clock: Clock,
    /// Random numbers drawn.
    pub(super) draws: u64,
    pub(super) paused: bool,
    /// It died without a word: packets to it vanish.
    pub(super) vanished: bool,
    pub(super) cpu_ns: u64,
    pub(super) message_ns: u64,
    pub(super) busy_until: Time,
    /// Wakes that wait for the pause to end or for CPU.
    pub(super) held: Vec<Waker>,
    pub(super) run_scheduled: bool,
    /// Starts and completions of drive requests so far, over all lives.
    pub(super) io_points: u64,
    /// Connections made and taken so far, over all lives.
    pub(super) connections: u64,
    pub(super) die_at_io: Option<(u64, Dying)>,
}

impl Process {
    pub(super) fn is(&self, life: Life) -> bool {
        self.life == Some(life)
    }
}
