//! What comes to an end: bytes, the news of room, connects and their answers.

use std::rc::Rc;

use crate::Time;
use crate::net::{NetError, Stream};
use crate::sim::limits::CONNECT_ATTEMPTS;
use crate::sim::options::nanos;
use crate::sim::queue::Event;
use crate::sim::trace::Kind;
use crate::sim::world::World;

use super::link;
use super::stream::{Packet, Phase, SimStream};

/// Packets come to `stream`, as far as they are due.
pub(in crate::sim) fn arrive(world: &Rc<World>, stream: &Rc<SimStream>) {
    if world.net.borrow().is_cut(stream.peer_addr.ip(), stream.local.ip()) {
        stream.state.borrow_mut().stalled = true;
        return;
    }
    if stream.is_closed() {
        turn_away(world, stream);
        return;
    }
    let now = world.now.get();
    let is_limited = world.options.receive_bytes_per_s.is_some();
    if is_limited && !receive(world, stream) {
        return;
    }
    let (mut bytes, mut reset) = (0, false);
    let mut state = stream.state.borrow_mut();
    while !is_limited || state.let_through > 0 {
        let Some((_, packet)) = state.under_way.pop_front_if(|(at, _)| *at <= now) else { break };
        state.let_through = state.let_through.saturating_sub(1);
        match packet {
            Packet::Data(piece) => {
                bytes += piece.len();
                state.inbox.push_back(piece);
            }
            Packet::Fin => state.ended = true,
            Packet::Reset => {
                // What was sent after the break must not close the gap.
                reset = true;
                state.under_way.clear();
                state.let_through = 0;
                state.under_way_bytes = bytes;
            }
        }
    }
    state.under_way_bytes -= bytes;
    state.inbox_bytes += bytes;
    if is_limited && state.under_way.front().is_some_and(|(at, _)| *at <= now) {
        // What came while the machine was receiving has its turn.
        world.schedule(now, Event::Arrive(Rc::clone(stream)));
    }
    let waker = state.waker.take();
    drop(state);
    if reset {
        world.note(Kind::Reset, stream.id, bytes as u64);
        stream.shut(stream.closed_error());
    } else {
        world.note(Kind::Arrive, stream.id, bytes as u64);
    }
    if let Some(waker) = waker {
        world.wake(stream.owner, waker);
    }
}

/// Whether the first packets that are due at `stream` are in its machine, which receives one thing after the other. If not, they
/// come again when they are.
fn receive(world: &Rc<World>, stream: &Rc<SimStream>) -> bool {
    let now = world.now.get();
    let (from, to) = (stream.peer_addr.ip(), stream.local.ip());
    let mut state = stream.state.borrow_mut();
    if state.let_through > 0 {
        return state.under_way.front().is_some_and(|(at, _)| *at <= now);
    }
    let (mut packets, mut bytes) = (0, 0);
    for (_, packet) in state.under_way.iter().take_while(|(at, _)| *at <= now) {
        packets += 1;
        bytes += if let Packet::Data(piece) = packet { piece.len() as u64 } else { 0 };
    }
    state.let_through = packets;
    let limit = world.options.receive_bytes_per_s.filter(|_| from != to && bytes > 0);
    let Some(bytes_per_s) = limit else { return packets > 0 };
    let span = |bytes_per_s: u64| (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s)) as u64;
    let (sending, receiving) = (link(world, from, to, |link| span(link.bytes_per_s)), span(bytes_per_s));
    let mut net = world.net.borrow_mut();
    let machine = net.machines.entry(to).or_default();
    // It comes in while it is sent: a machine that is idle, and as fast as the sender, has the last byte when it comes.
    let began = now.0.saturating_sub(sending);
    machine.ingress_free = Time(machine.ingress_free.0.max(began) + receiving);
    let done = machine.ingress_free;
    if done > now {
        state.under_way.iter_mut().take(packets).for_each(|(at, _)| *at = done);
        state.last_arrival = state.last_arrival.max(done);
        world.schedule(done, Event::Arrive(Rc::clone(stream)));
    }
    done <= now
}

/// Bytes for an end that is closed: answered by a reset, unless its machine answers nobody.
fn turn_away(world: &Rc<World>, stream: &Rc<SimStream>) {
    let mut state = stream.state.borrow_mut();
    state.let_through = 0;
    let had_data = state.under_way.drain(..).any(|(_, packet)| matches!(packet, Packet::Data(_)));
    state.under_way_bytes = 0;
    let peer = state.peer.upgrade();
    drop(state);
    let silent = world.processes.borrow()[stream.owner.0 as usize].vanished;
    if let Some(peer) = peer.filter(|peer| had_data && !silent && !peer.is_closed()) {
        peer.expect_reset();
    }
}

/// `stream` may send again, once the news gets through.
pub(in crate::sim) fn open_window(world: &Rc<World>, stream: &Rc<SimStream>) {
    if world.net.borrow().is_cut(stream.peer_addr.ip(), stream.local.ip()) {
        stream.state.borrow_mut().window_stalled = true;
    } else if !stream.is_closed() {
        Rc::clone(stream).mark_dirty();
    }
}

/// A connect of `stream` comes to where it calls.
pub(in crate::sim) fn syn(world: &Rc<World>, stream: &Rc<SimStream>) {
    let mut state = stream.state.borrow_mut();
    let Phase::Connecting { attempts } = &mut state.phase else { return };
    *attempts += 1;
    let attempts = *attempts;
    drop(state);
    let (from, to) = (stream.local.ip(), stream.peer_addr.ip());
    world.note(Kind::Connect, stream.id, u64::from(stream.peer_addr.port()));
    let net = world.net.borrow();
    let listener = net.listeners.get(&stream.peer_addr).cloned();
    let is_cut = net.is_cut(from, to) || net.is_cut(to, from);
    drop(net);
    let answers = {
        let processes = world.processes.borrow();
        let mut there = processes.iter().filter(|process| process.machine == to);
        listener.is_some() || there.any(|process| !process.vanished)
    };
    let answered = Time(world.now.get().0.saturating_add(link(world, to, from, |link| nanos(link.latency))));
    match listener {
        _ if is_cut || !answers => try_later(world, stream, attempts),
        None => {
            world.note(Kind::Refuse, stream.id, 0);
            stream.state.borrow_mut().phase = Phase::Closed(NetError::Refused { addr: stream.peer_addr });
            world.schedule(answered, Event::SynAnswer(Rc::clone(stream)));
        }
        Some(listener) if listener.is_full() => try_later(world, stream, attempts),
        Some(listener) => {
            // What the other end sends comes after the answer.
            stream.state.borrow_mut().last_arrival = answered;
            listener.take_in(world, stream);
            world.schedule(answered, Event::SynAnswer(Rc::clone(stream)));
        }
    }
}

fn try_later(world: &World, stream: &Rc<SimStream>, attempts: u32) {
    if attempts >= CONNECT_ATTEMPTS {
        let message = "connection timed out".to_owned();
        stream.shut(NetError::Io { addr: stream.peer_addr, operation: "connect", message });
        return;
    }
    let pause_ns = 1_000_000_000 << (attempts - 1);
    world.schedule(Time(world.now.get().0 + pause_ns), Event::Syn(Rc::clone(stream)));
}

/// The caller hears what became of its connect.
pub(in crate::sim) fn syn_answer(world: &World, stream: &Rc<SimStream>) {
    let mut state = stream.state.borrow_mut();
    if matches!(state.phase, Phase::Connecting { .. }) {
        state.phase = Phase::Open;
    }
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        world.wake(stream.owner, waker);
    }
}
