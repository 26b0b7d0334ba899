//! The network from the outside: cuts, slow links, resets.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::Time;
use crate::sim::driver::Sim;
use crate::sim::options::{LinkOptions, nanos};
use crate::sim::queue::Event;
use crate::sim::random::{Domain, scale};
use crate::sim::trace::Kind;

impl Sim {
    /// From now on nothing gets from one machine to the other; the way back stays open. Bytes under way wait.
    pub fn cut(&self, from: IpAddr, to: IpAddr) {
        self.world.note(Kind::Link, 1, machine_number(from) << 20 ^ machine_number(to));
        self.world.net.borrow_mut().cuts.insert((from, to));
    }

    /// Cuts both ways between two machines.
    pub fn partition(&self, one: IpAddr, other: IpAddr) {
        self.cut(one, other);
        self.cut(other, one);
    }

    /// Opens the way from one machine to the other. What waited arrives within a retransmission time.
    pub fn mend(&self, from: IpAddr, to: IpAddr) {
        self.world.note(Kind::Link, 2, machine_number(from) << 20 ^ machine_number(to));
        self.world.net.borrow_mut().cuts.remove(&(from, to));
        let streams = self.world.net.borrow().all();
        let now = self.world.now.get();
        let on_way = |stream: &&Rc<_>| {
            let stream: &super::SimStream = stream;
            stream.peer_addr.ip() == from && stream.local.ip() == to
        };
        for stream in streams.iter().filter(on_way) {
            let retransmit = super::link(&self.world, from, to, |link| nanos(link.retransmit));
            let bits = self.world.dice.draw(Domain::LinkTime, stream.entity, now.0);
            let at = Time(now.0 + scale(bits, retransmit + 1));
            let mut state = stream.state.borrow_mut();
            if std::mem::take(&mut state.stalled) {
                self.world.schedule(at, Event::Arrive(Rc::clone(stream)));
            }
            if std::mem::take(&mut state.window_stalled) {
                self.world.schedule(at, Event::Window(Rc::clone(stream)));
            }
        }
    }

    /// Opens every way.
    pub fn mend_all(&self) {
        let cuts = self.world.net.borrow().cuts.clone();
        cuts.into_iter().for_each(|(from, to)| self.mend(from, to));
    }

    /// Cuts and mends both ways between two machines, `times` times, each state lasting `span`.
    pub fn flap(&self, one: IpAddr, other: IpAddr, span: Duration, times: u32) {
        for time in 0..times {
            let start = self.now() + span * (2 * time);
            self.at(start, move |sim| sim.partition(one, other));
            self.at(start + span, move |sim| {
                sim.mend(one, other);
                sim.mend(other, one);
            });
        }
    }

    /// Gives the link from one machine to another its own behaviour, for what is sent from now on.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, options: LinkOptions) {
        self.world.note(Kind::Link, 3, machine_number(from) << 20 ^ machine_number(to));
        self.world.net.borrow_mut().links.insert((from, to), options);
    }

    /// How the link from one machine to another behaves now.
    pub fn link(&self, from: IpAddr, to: IpAddr) -> LinkOptions {
        super::link(&self.world, from, to, LinkOptions::clone)
    }

    /// Lets the link behave as the world's options say again.
    pub fn unset_link(&self, from: IpAddr, to: IpAddr) {
        self.world.net.borrow_mut().links.remove(&(from, to));
    }

    /// Breaks every connection between two machines: both ends read an error after what has arrived. What is under way
    /// may be cut at any byte.
    pub fn reset_connections(&self, one: IpAddr, other: IpAddr) {
        self.world.note(Kind::Link, 4, machine_number(one) << 20 ^ machine_number(other));
        let streams = self.world.net.borrow().all();
        let between = |stream: &&Rc<super::SimStream>| {
            let ends = (stream.local.ip(), stream.peer_addr.ip());
            ends == (one, other) || ends == (other, one)
        };
        for stream in streams.iter().filter(between) {
            stream.cut_off();
        }
    }
}

impl super::SimStream {
    /// Keeps any part of what is under way to this end, then resets it.
    fn cut_off(self: &Rc<Self>) {
        if self.is_closed() {
            return;
        }
        let mut state = self.state.borrow_mut();
        let bits = self.world.dice.draw(Domain::LinkFault, self.entity, self.world.now.get().0);
        let mut kept = scale(bits, state.under_way_bytes as u64 + 1) as usize;
        state.under_way_bytes = kept;
        for (_, packet) in &mut state.under_way {
            if let super::stream::Packet::Data(piece) = packet {
                let len = piece.len().min(kept);
                piece.truncate(len);
                kept -= len;
            }
        }
        state.let_through = 0;
        // A clean end after a cut would pass for a whole stream.
        state.under_way.retain(|(_, packet)| !matches!(packet, super::stream::Packet::Fin));
        drop(state);
        self.expect_reset();
    }
}

/// A number for the trace.
fn machine_number(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() as u64,
    }
}
