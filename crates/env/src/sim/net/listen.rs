//! Listening and connecting.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::Time;
use crate::limits::LISTEN_BACKLOG;
use crate::net::{Accept, Conn, Listener, LocalError, LocalFuture, NetError, Stream};
use crate::sim::options::nanos;
use crate::sim::process::{Life, ProcessId};
use crate::sim::queue::Event;
use crate::sim::trace::Kind;
use crate::sim::world::World;

use super::link;
use super::stream::{Phase, SimStream};

pub(super) struct ListenerState {
    addr: SocketAddr,
    pub(super) owner: ProcessId,
    pub(super) life: Life,
    backlog: RefCell<VecDeque<Rc<SimStream>>>,
    wakers: RefCell<Vec<Waker>>,
}

impl ListenerState {
    pub(super) fn is_full(&self) -> bool {
        self.backlog.borrow().len() >= LISTEN_BACKLOG as usize
    }

    /// Makes the other end of a connect and leaves it to be accepted.
    pub(super) fn take_in(&self, world: &Rc<World>, caller: &Rc<SimStream>) {
        let end = SimStream::new(world, (self.owner, self.life), self.addr, caller.local, Phase::Open);
        end.state.borrow_mut().peer = Rc::downgrade(caller);
        end.peer_owner.set(Some(caller.owner));
        end.local_only.set(caller.local_only.get());
        caller.state.borrow_mut().peer = Rc::downgrade(&end);
        caller.peer_owner.set(Some(self.owner));
        world.note(Kind::Accept, caller.id, end.id);
        self.backlog.borrow_mut().push_back(end);
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(|waker| world.wake(self.owner, waker));
    }
}

struct SimListener {
    world: Rc<World>,
    state: Rc<ListenerState>,
}

impl Accept for SimListener {
    fn local_addr(&self) -> SocketAddr {
        self.state.addr
    }

    fn accept(&self) -> LocalFuture<'_, Result<Conn, NetError>> {
        Box::pin(std::future::poll_fn(|cx| {
            if let Some(end) = self.state.backlog.borrow_mut().pop_front() {
                return Poll::Ready(Ok(Conn::new(end)));
            }
            self.state.wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        }))
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut net = self.world.net.borrow_mut();
        if net.listeners.get(&self.state.addr).is_some_and(|state| Rc::ptr_eq(state, &self.state)) {
            net.listeners.remove(&self.state.addr);
        }
        drop(net);
        let backlog = std::mem::take(&mut *self.state.backlog.borrow_mut());
        backlog.iter().for_each(|end| end.close());
    }
}

/// This machine's own address for one that means it.
fn resolve(machine: IpAddr, addr: SocketAddr) -> SocketAddr {
    let own = addr.ip().is_unspecified() || addr.ip().is_loopback();
    SocketAddr::new(if own { machine } else { addr.ip() }, addr.port())
}

/// Listens on the machine of `owner`.
pub(in crate::sim) fn listen(
    world: &Rc<World>,
    (owner, life): (ProcessId, Life),
    addr: SocketAddr,
) -> Result<Listener, NetError> {
    let machine = world.processes.borrow()[owner.0 as usize].machine;
    let mut at = resolve(machine, addr);
    if at.ip() != machine {
        let message = "cannot assign requested address".to_owned();
        return Err(NetError::Io { addr, operation: "listen", message });
    }
    let mut net = world.net.borrow_mut();
    if at.port() == 0 {
        at.set_port(net.free_port(machine));
    }
    if net.listeners.contains_key(&at) {
        return Err(NetError::AddressInUse { addr });
    }
    let (backlog, wakers) = (RefCell::default(), RefCell::default());
    let state = Rc::new(ListenerState { addr: at, owner, life, backlog, wakers });
    if world.is_alive(owner, life) {
        net.listeners.insert(at, Rc::clone(&state));
    }
    drop(net);
    Ok(Listener::new(Box::new(SimListener { world: Rc::clone(world), state })))
}

/// Listens at a name of the machine of `owner`.
pub(in crate::sim) fn listen_local(
    world: &Rc<World>,
    owner: (ProcessId, Life),
    path: &Path,
) -> Result<Listener, LocalError> {
    let machine = world.processes.borrow()[owner.0.0 as usize].machine;
    let name = (machine, path.to_owned());
    {
        let net = world.net.borrow();
        let is_live = |addr: &SocketAddr| net.listeners.contains_key(addr);
        if net.names.get(&name).is_some_and(is_live) {
            return Err(LocalError::InUse { path: path.to_owned() });
        }
    }
    let listener = listen(world, owner, SocketAddr::new(machine, 0))?;
    world.net.borrow_mut().names.insert(name, listener.local_addr());
    Ok(listener)
}

/// Connects to whoever listens at a name of the machine of `owner`.
pub(in crate::sim) async fn connect_local(
    world: &Rc<World>,
    owner: (ProcessId, Life),
    path: &Path,
) -> Result<Conn, LocalError> {
    let machine = world.processes.borrow()[owner.0.0 as usize].machine;
    let found = world.net.borrow().names.get(&(machine, path.to_owned())).copied();
    let refused = || LocalError::Refused { path: path.to_owned() };
    match connect(world, owner, found.ok_or_else(refused)?, true).await {
        Err(NetError::Refused { .. }) => Err(refused()),
        other => Ok(other?),
    }
}

/// Closes a connection whose maker went away before it stood.
struct Unclaimed(Option<Rc<SimStream>>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            stream.close();
        }
    }
}

/// Connects from the machine of `owner`.
pub(in crate::sim) async fn connect(
    world: &Rc<World>,
    (owner, life): (ProcessId, Life),
    addr: SocketAddr,
    is_local: bool,
) -> Result<Conn, NetError> {
    if !world.is_alive(owner, life) {
        return std::future::pending().await;
    }
    let machine = world.processes.borrow()[owner.0 as usize].machine;
    let to = resolve(machine, addr);
    let from = SocketAddr::new(machine, world.net.borrow_mut().free_port(machine));
    let stream = SimStream::new(world, (owner, life), from, to, Phase::Connecting { attempts: 0 });
    stream.local_only.set(is_local);
    let there = link(world, from.ip(), to.ip(), |link| nanos(link.latency));
    world.schedule(Time(world.now.get().0.saturating_add(there)), Event::Syn(Rc::clone(&stream)));
    let mut unclaimed = Unclaimed(Some(stream));
    std::future::poll_fn(|cx| {
        let Some(stream) = &unclaimed.0 else { unreachable!("polled after its end") };
        let mut state = stream.state.borrow_mut();
        match &state.phase {
            Phase::Connecting { .. } => {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            // A connection that stood and was reset before anybody looked is given out; its reader hears of it.
            Phase::Closed(why @ (NetError::Refused { .. } | NetError::Io { .. })) => {
                return Poll::Ready(Err(why.clone()));
            }
            Phase::Closed(_) | Phase::Open => {}
        }
        drop(state);
        match unclaimed.0.take() {
            Some(stream) => Poll::Ready(Ok(Conn::new(stream))),
            None => Poll::Pending,
        }
    })
    .await
}
