//! Simulated network: connections between machines that deliver in order, late, in pieces, or never.
//!
//! A connection behaves as TCP does to a program: loss and reordering below it show as delay, a crash of the peer as a
//! reset or as silence. Bytes that a partition holds up arrive after it heals, as retransmissions would bring them.
//!
//! What is not modelled: packets, congestion control, and TCP's own give-up time; a program that never hears from its
//! peer needs a deadline of its own.

mod control;
mod deliver;
mod listen;
mod send;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use crate::Time;

use super::limits::FIRST_FREE_PORT;
use super::options::LinkOptions;
use super::process::{Death, Life, ProcessId};
use super::world::World;

pub(super) use deliver::{arrive, open_window, syn, syn_answer};
pub(super) use listen::{connect, connect_local, listen, listen_local};
pub(super) use send::flush_dirty;
pub(super) use stream::SimStream;

use listen::ListenerState;

struct MachineNet {
    /// When what it has sent so far has left it.
    egress_free: Time,
    /// When what has come to it so far is in it; moves only if what a machine receives is limited.
    ingress_free: Time,
    next_port: u16,
}

impl Default for MachineNet {
    fn default() -> Self {
        Self { egress_free: Time::ZERO, ingress_free: Time::ZERO, next_port: FIRST_FREE_PORT }
    }
}

/// Every connection, listener and link of the world.
#[derive(Default)]
pub(super) struct Net {
    listeners: BTreeMap<SocketAddr, Rc<ListenerState>>,
    /// Where who listened last at a path of a machine does so.
    names: BTreeMap<(IpAddr, PathBuf), SocketAddr>,
    streams: BTreeMap<u64, Weak<SimStream>>,
    /// Connections with something to send, in the order in which they got it.
    dirty: Vec<Rc<SimStream>>,
    machines: BTreeMap<IpAddr, MachineNet>,
    /// Nothing gets from the first to the second.
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    /// Links that are not as the options say.
    links: BTreeMap<(IpAddr, IpAddr), LinkOptions>,
}

impl Net {
    fn is_cut(&self, from: IpAddr, to: IpAddr) -> bool {
        !self.cuts.is_empty() && self.cuts.contains(&(from, to))
    }

    fn free_port(&mut self, machine: IpAddr) -> u16 {
        loop {
            let port = &mut self.machines.entry(machine).or_default().next_port;
            let found = *port;
            *port = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            if !self.listeners.contains_key(&SocketAddr::new(machine, found)) {
                return found;
            }
        }
    }

    /// Every link as the options say.
    pub(super) fn forget_links(&mut self) {
        self.links.clear();
    }

    /// What is still to be sent, to be dropped without a borrow of the network.
    pub(super) fn take_dirty(&mut self) -> Vec<Rc<SimStream>> {
        std::mem::take(&mut self.dirty)
    }

    /// Every living connection, in the order of their making.
    fn all(&self) -> Vec<Rc<SimStream>> {
        self.streams.values().filter_map(Weak::upgrade).collect()
    }
}

/// What a process's end does to its connections.
pub(super) fn bury(world: &Rc<World>, process: ProcessId, life: Life, death: Death) {
    // Dropped at the end, without a borrow: an end that goes leaves the list of all.
    let (streams, listeners, dirty) = {
        let mut net = world.net.borrow_mut();
        let listeners: Vec<_> =
            net.listeners.extract_if(.., |_, state| state.owner == process && state.life == life).collect();
        let of_life = |stream: &mut Rc<SimStream>| stream.owner == process && stream.life == life;
        let dirty: Vec<_> = net.dirty.extract_if(.., of_life).collect();
        (net.all(), listeners, dirty)
    };
    for stream in streams.iter().filter(|stream| stream.owner == process && stream.life == life) {
        stream.die(death != Death::Vanish);
    }
    drop((listeners, dirty));
}

/// A process that had vanished is back: whoever sent it something hears that the connection is no more.
pub(super) fn greet(world: &Rc<World>, process: ProcessId) {
    let streams = world.net.borrow().all();
    for stream in streams.iter().filter(|stream| stream.peer_owner.get() == Some(process)) {
        stream.hear_of_return();
    }
}

/// How the link from one machine to another behaves.
fn link<T>(world: &World, from: IpAddr, to: IpAddr, ask: impl FnOnce(&LinkOptions) -> T) -> T {
    if from == to {
        return ask(&world.options.loopback);
    }
    ask(world.net.borrow().links.get(&(from, to)).unwrap_or(&world.options.link))
}
