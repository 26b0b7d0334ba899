//! From an outbox to the peer's end: when what is sent arrives, and what becomes of it.

use std::convert::Infallible;
use std::rc::Rc;

use bytes::Bytes;

use crate::Time;
use crate::limits::OUTBOX_MAX_BYTES;
use crate::net::NetError;
use crate::sim::options::{LinkOptions, nanos};
use crate::sim::queue::Event;
use crate::sim::random::{Domain, scale};
use crate::sim::trace::{Kind, sample};
use crate::sim::world::World;

use super::link;
use super::stream::{Packet, Phase, SimStream};

/// The other end as a sender finds it.
enum Peer {
    Open(Rc<SimStream>),
    /// It answers with a reset.
    Gone,
    /// It answers nothing.
    Silent,
}

/// Sends what the tasks of this turn have queued. Returns whether there was anything.
pub(in crate::sim) fn flush_dirty(world: &Rc<World>) -> bool {
    if world.net.borrow().dirty.is_empty() {
        return false;
    }
    let dirty = std::mem::take(&mut world.net.borrow_mut().dirty);
    let mut sent = false;
    for stream in dirty {
        if world.processes.borrow()[stream.owner.0 as usize].paused {
            // It sends when it runs again.
            world.net.borrow_mut().dirty.push(stream);
            continue;
        }
        stream.dirty.set(false);
        stream.flush();
        sent = true;
    }
    sent
}

impl SimStream {
    fn find_peer(&self) -> Peer {
        let peer = self.state.borrow().peer.upgrade();
        match peer {
            Some(peer) if !peer.is_closed() => Peer::Open(peer),
            _ => {
                let processes = self.world.processes.borrow();
                let vanished =
                    self.peer_owner.get().is_some_and(|owner| processes[owner.0 as usize].vanished);
                if vanished { Peer::Silent } else { Peer::Gone }
            }
        }
    }

    fn flush(self: &Rc<Self>) {
        if self.outbox.is_closed() || !self.world.is_alive(self.owner, self.life) {
            return;
        }
        if self.outbox.queued_bytes() > OUTBOX_MAX_BYTES {
            self.send_end();
            self.shut(NetError::Overflow { addr: self.peer_addr, limit: OUTBOX_MAX_BYTES });
            return;
        }
        let ready = self.world.charge(self.owner, self.outbox.take_messages());
        match self.find_peer() {
            Peer::Open(peer) => {
                let pieces = self.take_queued(self.room_at(&peer));
                self.state.borrow_mut().blocked = self.outbox.queued_bytes() > 0;
                if !pieces.is_empty() {
                    self.transmit(&peer, pieces, ready);
                }
            }
            Peer::Gone => {
                self.take_queued(usize::MAX);
                self.expect_reset();
            }
            Peer::Silent => {
                let window = self.ask_link(|link| link.window_bytes);
                let void_bytes = self.state.borrow().void_bytes;
                let room = window.saturating_sub(void_bytes).min(self.outbox.queued_bytes());
                self.take_queued(room);
                self.state.borrow_mut().void_bytes += room;
            }
        }
    }

    /// Bytes that the window still takes.
    fn room_at(&self, peer: &SimStream) -> usize {
        let theirs = peer.state.borrow();
        let used = theirs.under_way_bytes + theirs.inbox_bytes;
        self.ask_link(|link| link.window_bytes).saturating_sub(used)
    }

    /// Takes up to `room` bytes off the outbox.
    fn take_queued(&self, room: usize) -> Vec<Bytes> {
        let mut taken = Vec::new();
        let done: Result<usize, Infallible> = self.outbox.flush(|pieces| {
            let mut left = room;
            for piece in pieces {
                let len = piece.len().min(left);
                if len == 0 {
                    break;
                }
                taken.push(piece.slice(..len));
                left -= len;
            }
            Ok(room - left)
        });
        let Ok(_) = done;
        taken
    }

    /// What a closing end still sends: what the window takes of what is queued, then its end.
    pub(super) fn send_last(&self) {
        let Peer::Open(peer) = self.find_peer() else { return };
        let pieces = self.take_queued(self.room_at(&peer));
        if !pieces.is_empty() {
            self.transmit(&peer, pieces, self.world.now.get());
        }
        self.send_end();
    }

    fn send_end(&self) {
        if let Peer::Open(peer) = self.find_peer() {
            let at = self.arrival(&peer);
            peer.send_here(at, Packet::Fin);
        }
    }

    fn draw(&self, domain: Domain, what: u64) -> u64 {
        self.world.dice.draw(domain, self.entity, self.state.borrow().sends << 3 | what)
    }

    /// Sends pieces that its process is done with at `ready`.
    fn transmit(&self, peer: &Rc<SimStream>, mut pieces: Vec<Bytes>, ready: Time) {
        self.state.borrow_mut().sends += 1;
        let len: usize = pieces.iter().map(Bytes::len).sum();
        self.world.note(Kind::Send, self.id, pieces.first().map_or(0, |piece| sample(piece)) ^ len as u64);
        let (reset_ppm, split_ppm) =
            self.ask_link(|link| (u64::from(link.reset_ppm), u64::from(link.split_ppm)));
        let fault = scale(self.draw(Domain::LinkFault, 1), 1_000_000);
        if fault < reset_ppm {
            let kept = scale(self.draw(Domain::LinkFault, 2), len as u64 + 1) as usize;
            split_off(&mut pieces, kept);
            self.put(peer, pieces, (kept, 0), ready);
            self.reset_both(peer);
        } else if fault < reset_ppm + split_ppm && len > 1 {
            let cut = 1 + scale(self.draw(Domain::LinkFault, 2), len as u64 - 1) as usize;
            let rest = split_off(&mut pieces, cut);
            self.put(peer, pieces, (cut, 0), ready);
            self.put(peer, rest, (len - cut, 1), ready);
        } else {
            self.put(peer, pieces, (len, 0), ready);
        }
    }

    /// Puts pieces of `len` bytes together on their way at `ready`, decisions of `part` deciding.
    fn put(&self, peer: &Rc<SimStream>, pieces: Vec<Bytes>, (len, part): (usize, u64), ready: Time) {
        if pieces.is_empty() {
            return;
        }
        let at = self.arrival_of(peer, len, part, ready);
        let mut theirs = peer.state.borrow_mut();
        theirs.under_way_bytes += len;
        theirs.under_way.extend(pieces.into_iter().map(|piece| (at, Packet::Data(piece))));
        drop(theirs);
        self.world.schedule(at, Event::Arrive(Rc::clone(peer)));
    }

    fn ask_link<T>(&self, ask: impl FnOnce(&LinkOptions) -> T) -> T {
        link(&self.world, self.local.ip(), self.peer_addr.ip(), ask)
    }

    /// When the last of `len` bytes sent at `ready` arrives, decisions of `part` deciding.
    fn arrival_of(&self, peer: &SimStream, len: usize, part: u64, ready: Time) -> Time {
        let late = self.draw(Domain::LinkTime, part);
        let loss = scale(self.draw(Domain::LinkFault, 3 + part), 1_000_000);
        let (travel, sending) = self.ask_link(|link| {
            let lost = if loss < u64::from(link.loss_ppm) { nanos(link.retransmit) } else { 0 };
            let jitter = scale(late, nanos(link.jitter).saturating_add(1));
            let sending = (len as u128 * 1_000_000_000 / u128::from(link.bytes_per_s)) as u64;
            (nanos(link.latency).saturating_add(jitter).saturating_add(lost), sending)
        });
        let sent = if self.local.ip() == self.peer_addr.ip() {
            Time(ready.0 + sending)
        } else {
            let mut net = self.world.net.borrow_mut();
            let machine = net.machines.entry(self.local.ip()).or_default();
            machine.egress_free = Time(machine.egress_free.max(ready).0 + sending);
            machine.egress_free
        };
        let mut theirs = peer.state.borrow_mut();
        theirs.last_arrival = theirs.last_arrival.max(Time(sent.0.saturating_add(travel)));
        theirs.last_arrival
    }

    /// When something without data that is sent now arrives.
    fn arrival(&self, peer: &SimStream) -> Time {
        self.arrival_of(peer, 0, 2, self.world.now.get())
    }

    /// Puts one packet without data on its way to this end.
    pub(super) fn send_here(self: &Rc<Self>, at: Time, packet: Packet) {
        self.state.borrow_mut().under_way.push_back((at, packet));
        self.world.schedule(at, Event::Arrive(Rc::clone(self)));
    }

    /// A reset comes back from where this end sends to.
    pub(super) fn expect_reset(self: &Rc<Self>) {
        let back = self.ask_link(|link| nanos(link.latency).saturating_mul(2));
        let at = Time(self.world.now.get().0.saturating_add(back)).max(self.state.borrow().last_arrival);
        self.state.borrow_mut().last_arrival = at;
        self.send_here(at, Packet::Reset);
    }

    /// The connection breaks between the two ends.
    fn reset_both(&self, peer: &Rc<SimStream>) {
        let at = self.arrival(peer);
        peer.send_here(at, Packet::Reset);
        let own = peer.state.borrow().peer.upgrade();
        if let Some(own) = own {
            own.expect_reset();
        }
    }

    /// The process of this end is no more; `aloud`, its peer is sent a reset.
    pub(super) fn die(&self, aloud: bool) {
        if aloud && let Peer::Open(peer) = self.find_peer() {
            let at = self.arrival(&peer);
            peer.send_here(at, Packet::Reset);
        }
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Closed(self.closed_error());
        state.waker = None;
        drop(state);
        self.outbox.close();
    }

    /// The peer's machine is back and knows nothing of this connection; retransmissions are answered by a reset.
    pub(super) fn hear_of_return(self: &Rc<Self>) {
        let lost_peer = matches!(self.find_peer(), Peer::Gone);
        if lost_peer && !self.is_closed() && self.state.borrow().void_bytes > 0 {
            self.expect_reset();
        }
    }
}

/// Leaves the first `len` bytes in `pieces` and returns the rest.
fn split_off(pieces: &mut Vec<Bytes>, mut len: usize) -> Vec<Bytes> {
    let mut index = 0;
    while index < pieces.len() && pieces[index].len() <= len {
        len -= pieces[index].len();
        index += 1;
    }
    let mut rest = pieces.split_off(index);
    if len > 0 && !rest.is_empty() {
        pieces.push(rest[0].split_to(len));
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_split_at_any_byte() {
        for cut in 0..=7 {
            let mut head = vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defg")];
            let rest = split_off(&mut head, cut);
            let (head, rest) = (head.concat(), rest.concat());
            assert_eq!((head.len(), [head, rest].concat()), (cut, b"abcdefg".to_vec()));
        }
    }
}
