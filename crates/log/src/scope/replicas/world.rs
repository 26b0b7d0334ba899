//! The state of everything, what can happen next, and what must hold.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::layout::{Change, Layout, Node};
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Addr, AddrRange, ClusterId, Epoch, LogPos, NodeId};
use crate::scope::disk::{Batch, Disk, Held};
use crate::scope::oracle::{Broken, check};
use crate::scope::search::{self, hash_described};
use crate::scope::world::{entries, options};
use crate::sequencer::Sequencer;
use crate::unit::{Answer, Effect, Holding, Input, ReplyTo, Unit};
use crate::wire::{Roles, Sealed};

/// Units, and copies of each position.
const UNITS: u64 = 3;
const COPIES: u16 = 2;
/// Whoever is told what a planted fault has told already.
const NOBODY: ReplyTo = ReplyTo(u64::MAX);

/// What a client does next. The first number is the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Take a position and write there, to one replica after the other.
    Append(u64),
    /// Take a position and write there, relayed from the first replica on.
    Relayed(u64),
    /// Decide a position.
    Fill(u64, u64),
    /// Read a position at its last replica.
    Read(u64, u64),
    /// Seal the epoch at a unit.
    Seal(u64, u64),
    /// Decide the next layout, without a unit, from the answers to the seals, and start its sequencer.
    GoOnWithout(u64),
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The next request of this client arrives.
    Request(usize),
    /// What the relay has of this client's arrives at the next replica.
    Relay(usize),
    /// The oldest batch under way to this unit's drive becomes durable.
    Durable(usize),
    /// The process of this unit dies; so many batches under way are durable. It starts again.
    Crash(usize, usize),
}

/// Making the replicas of a position hold the same, one after the other.
#[derive(Clone, Debug)]
struct Errand {
    epoch: u64,
    pos: u64,
    /// What they shall hold; a fill learns it from the first.
    held: Option<Held>,
    /// The next replica.
    next: usize,
    /// Whether the last replica has it resolved, so that no other needs to be asked but the first; a fill asks before it does anything.
    settled: Option<bool>,
}

/// A client.
#[derive(Clone, Debug)]
struct Client {
    script: &'static [Op],
    at: usize,
    /// The unit that it waits for.
    waits_for: Option<usize>,
    errand: Option<Errand>,
    /// What the relay has of its append.
    relayed: Option<Errand>,
    sealed: BTreeMap<NodeId, Sealed>,
    /// Whether everything so far was done as it was meant.
    done: bool,
}

/// A unit and its drive.
#[derive(Clone, Debug)]
struct Server {
    unit: Unit,
    disk: Disk,
}

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct World {
    planted: Planted,
    must_not_be_done: bool,
    servers: Vec<Server>,
    layouts: BTreeMap<u64, Layout>,
    sequencers: BTreeMap<u64, Sequencer>,
    clients: Vec<Client>,
    crashes: u8,
    /// What positions were shown to hold.
    known: BTreeMap<u64, Held>,
}

impl World {
    pub(super) fn new(scripts: &'static [&'static [Op]], crashes: u8, planted: Planted) -> Self {
        let roles = Roles::SEQUENCER.with(Roles::UNIT);
        let node = |id| {
            let roles = if id == 1 { roles.with(Roles::LAYOUT) } else { roles };
            Node::new(NodeId(id), roles, format!("unit:{id}"))
        };
        let nodes = (1..=UNITS).map(node).collect();
        let layout = Layout::first(ClusterId(1), nodes, COPIES, COPIES).expect("a layout");
        let client = |script: &&'static [Op]| Client {
            script,
            at: 0,
            waits_for: None,
            errand: None,
            relayed: None,
            sealed: BTreeMap::new(),
            done: true,
        };
        let server = |_| Server { unit: Unit::new(options(planted)), disk: Disk::default() };
        Self {
            planted,
            must_not_be_done: false,
            servers: (0..UNITS).map(server).collect(),
            sequencers: BTreeMap::from([(1, Sequencer::start_planted(Epoch(1), layout.tail(), planted))]),
            layouts: BTreeMap::from([(1, layout)]),
            clients: scripts.iter().map(client).collect(),
            crashes,
            known: BTreeMap::new(),
        }
    }

    /// A world in which it is a violation that every script comes to its end as it was meant.
    pub(super) fn that_must_not_be_done(scripts: &'static [&'static [Op]]) -> Self {
        Self { must_not_be_done: true, ..Self::new(scripts, 0, Planted::NONE) }
    }

    fn newest(&self) -> (u64, &Layout) {
        let (&epoch, layout) = self.layouts.last_key_value().expect("there is a first one");
        (epoch, layout)
    }

    /// Where a position lies in an epoch: the address, and which servers, in chain order.
    fn place(&self, epoch: u64, pos: u64) -> Option<(Addr, Vec<usize>)> {
        let location = self.layouts[&epoch].locate(LogPos(pos))?;
        Some((location.addr, location.replicas.iter().map(|node| (node.0 - 1) as usize).collect()))
    }

    /// The next request of a client arrives.
    fn request(&mut self, at: usize) -> Result<(), Broken> {
        if self.clients[at].errand.is_some() {
            return self.go_on(at);
        }
        let op = self.clients[at].script[self.clients[at].at];
        match op {
            Op::Append(epoch) | Op::Relayed(epoch) => {
                let sequencer = self.sequencers.get_mut(&epoch).expect("it is ready");
                let Ok(grant) = sequencer.grant(Epoch(epoch), 1) else { return self.end(at, false) };
                let held = Some(Held::Data(at));
                self.clients[at].errand =
                    Some(Errand { epoch, pos: grant.first.0, held, next: 0, settled: Some(false) });
                Ok(())
            }
            Op::Fill(epoch, pos) => {
                self.clients[at].errand = Some(Errand { epoch, pos, held: None, next: 0, settled: None });
                self.settle(at)
            }
            Op::Read(epoch, pos) => self.read(at, epoch, pos),
            Op::Seal(epoch, node) => {
                let extents = self.layouts[&epoch].active_extents(NodeId(node));
                let server = (node - 1) as usize;
                self.clients[at].waits_for = Some(server);
                // Whoever seals has that layout, and tells it. What is complete by it is looked at elsewhere.
                self.step(server, Input::Listed { epoch: Epoch(epoch), stripes: Vec::new() })?;
                self.step(server, Input::Seal { to: ReplyTo(at as u64), epoch: Epoch(epoch), extents })
            }
            Op::GoOnWithout(node) => self.go_on_without(at, node),
        }
    }

    /// A fill asks the last replica how far it is resolved.
    fn settle(&mut self, at: usize) -> Result<(), Broken> {
        let errand = self.clients[at].errand.clone().expect("it fills");
        let Some((addr, replicas)) = self.place(errand.epoch, errand.pos) else { return self.end(at, false) };
        let extent = AddrRange::new(addr, Addr(addr.0 + 1));
        let last = &self.servers[*replicas.last().expect("a stripe has replicas")].unit;
        let Ok(bounds) = last.bounds(Epoch(errand.epoch), extent) else { return self.end(at, false) };
        self.clients[at].errand = Some(Errand { settled: Some(bounds.watermark > addr), ..errand });
        Ok(())
    }

    /// The errand of a client comes to its next replica.
    fn go_on(&mut self, at: usize) -> Result<(), Broken> {
        let errand = self.clients[at].errand.clone().expect("it has one");
        let Some((_, replicas)) = self.place(errand.epoch, errand.pos) else { return self.end(at, false) };
        let next = self.turn(errand.next, replicas.len(), errand.held.is_none());
        let is_last = next + 1 == replicas.len();
        if self.planted.is(PlantedBug::RelayBeforeDurable) && self.is_relayed(at) && !is_last {
            self.clients[at].relayed = Some(Errand { next: next + 1, ..errand.clone() });
            return self.store(replicas[next], NOBODY, &errand);
        }
        self.clients[at].waits_for = Some(replicas[next]);
        self.store(replicas[next], ReplyTo(at as u64), &errand)
    }

    fn is_relayed(&self, at: usize) -> bool {
        let client = &self.clients[at];
        matches!(client.script[client.at], Op::Relayed(_))
    }

    /// Which replica comes `nth`; a planted fault has fills begin with the last.
    fn turn(&self, nth: usize, replicas: usize, is_fill: bool) -> usize {
        let backwards = is_fill && self.planted.is(PlantedBug::FilledFromLast);
        if backwards { replicas - 1 - nth } else { nth }
    }

    /// What the relay has of a client's arrives at the next replica.
    fn relay(&mut self, at: usize) -> Result<(), Broken> {
        let errand = self.clients[at].relayed.clone().expect("it is possible");
        let (_, replicas) = self.place(errand.epoch, errand.pos).expect("it was placed before");
        self.clients[at].relayed = None;
        self.clients[at].errand = Some(errand.clone());
        self.clients[at].waits_for = Some(replicas[errand.next]);
        self.store(replicas[errand.next], ReplyTo(at as u64), &errand)
    }

    /// Asks a server for what an errand wants of it.
    fn store(&mut self, server: usize, to: ReplyTo, errand: &Errand) -> Result<(), Broken> {
        let (addr, _) = self.place(errand.epoch, errand.pos).expect("it was placed before");
        let range = addr.0..addr.0 + 1;
        let input = match errand.held {
            Some(Held::Data(client)) => Input::Write { to, run: entries(client, errand.epoch, range) },
            _ => Input::Fill { to, epoch: Epoch(errand.epoch), ranges: vec![range.into()] },
        };
        self.step(server, input)
    }

    fn read(&mut self, at: usize, epoch: u64, pos: u64) -> Result<(), Broken> {
        let Some((addr, replicas)) = self.place(epoch, pos) else { return self.end(at, false) };
        let server = &self.servers[*replicas.last().expect("a stripe has replicas")];
        if server.unit.check_epoch(Epoch(epoch)).is_err() {
            return self.end(at, false);
        }
        let shown = match holding(server, addr) {
            // Said with a lease only, which nobody has when a newer epoch is decided: see `lease`.
            None if self.newest().0 > epoch => return self.end(at, false),
            None => {
                let known = self.known.get(&pos);
                check(known.is_none(), 18, || format!("{pos} held {known:?}, and is said to be unwritten"))?;
                return self.end(at, true);
            }
            Some(held) => held,
        };
        self.show(pos, shown)?;
        self.end(at, true)
    }

    /// The next layout is decided: once, by whoever comes first.
    fn go_on_without(&mut self, at: usize, node: u64) -> Result<(), Broken> {
        let (epoch, layout) = self.newest();
        let sealed = self.clients[at].sealed.clone();
        let change = Change { lost: vec![NodeId(node)], ..Change::default() };
        let Ok(next) =
            layout.find_tail(&sealed).map(|tail| layout.change(tail, &change).expect("it is valid"))
        else {
            return self.end(at, false);
        };
        let sequencer = Sequencer::start_planted(next.epoch, next.tail(), self.planted);
        self.sequencers.insert(epoch + 1, sequencer);
        self.layouts.insert(epoch + 1, next);
        self.end(at, true)
    }

    /// Gives a unit an input and carries out what it wants.
    fn step(&mut self, server: usize, input: Input) -> Result<(), Broken> {
        let mut effects = Vec::new();
        self.servers[server].unit.step(input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist { ticket, runs, release, state, .. } => {
                    let batch = Batch::new(ticket, &runs, release, state.as_deref());
                    self.servers[server].disk.under_way.push_back(batch);
                }
                Effect::Reply { to: NOBODY, .. } => {}
                Effect::Reply { to, answer } => self.answer(to.0 as usize, server, answer)?,
            }
        }
        Ok(())
    }

    fn answer(&mut self, at: usize, server: usize, answer: Answer) -> Result<(), Broken> {
        self.clients[at].waits_for = None;
        let taken = match answer {
            Answer::Written { taken, .. } | Answer::Filled { taken } => taken,
            Answer::Sealed(sealed) => {
                let Op::Seal(_, node) = self.clients[at].script[self.clients[at].at] else {
                    panic!("{at} did not seal")
                };
                self.clients[at].sealed.insert(NodeId(node), sealed);
                return self.end(at, true);
            }
            Answer::Refused(_) => return self.end(at, false),
            other => panic!("{other:?} answers nothing that was asked"),
        };
        let mut errand = self.clients[at].errand.clone().expect("it wrote or filled");
        let (addr, replicas) = self.place(errand.epoch, errand.pos).expect("it was placed before");
        let found = match taken.is_empty() {
            true => errand.held.unwrap_or(Held::Junk),
            false => holding(&self.servers[server], addr).expect("nothing is trimmed here"),
        };
        let is_first = errand.next == 0;
        if errand.held.is_none() && !self.planted.is(PlantedBug::FillSkipsCopy) {
            errand.held = Some(found);
        }
        if errand.held.is_some_and(|held| held != found) {
            // Another's, or junk: whoever came first has the position. A later replica cannot differ from the first.
            let pos = errand.pos;
            check(is_first, 21, || format!("{pos} is {found:?} at a replica and {:?} before", errand.held))?;
            return self.end(at, false);
        }
        errand.next += 1;
        let short = match self.clients[at].script[self.clients[at].at] {
            Op::Append(_) => self.planted.is(PlantedBug::AckAfterFirstReplica),
            Op::Relayed(_) => self.planted.is(PlantedBug::RelayStopsShort),
            _ => false,
        };
        if errand.next == replicas.len() || errand.settled == Some(true) || short {
            self.show(errand.pos, found)?;
            return self.end(at, true);
        }
        match self.is_relayed(at) {
            true => self.clients[at].relayed = Some(errand),
            false => self.clients[at].errand = Some(errand),
        }
        Ok(())
    }

    /// Somebody was told what a position holds.
    fn show(&mut self, pos: u64, held: Held) -> Result<(), Broken> {
        let first = *self.known.entry(pos).or_insert(held);
        check(first == held, 15, || format!("{pos} held {first:?}, and now {held:?}"))
    }

    /// A client is through with what it was doing.
    fn end(&mut self, at: usize, done: bool) -> Result<(), Broken> {
        let client = &mut self.clients[at];
        (client.errand, client.relayed, client.waits_for) = (None, None, None);
        client.at += 1;
        client.done &= done;
        let is_done = |client: &Client| client.done && client.at == client.script.len();
        if self.must_not_be_done && self.clients.iter().all(is_done) {
            return Err("all is done".to_owned());
        }
        Ok(())
    }

    fn crash(&mut self, at: usize, survive: usize) -> Result<(), Broken> {
        let server = &mut self.servers[at];
        server.disk.cut(survive);
        server.unit = Unit::recover(options(self.planted), server.disk.recovered());
        // Whoever waits for an answer does not learn what became of it.
        let waiting: Vec<usize> =
            (0..self.clients.len()).filter(|&client| self.clients[client].waits_for == Some(at)).collect();
        waiting.into_iter().try_for_each(|client| self.end(client, false))
    }

    /// What must hold at every moment: the drives may be all that is left of it.
    fn check_drives(&self) -> Result<(), Broken> {
        let (epoch, _) = self.newest();
        self.check_order(epoch)?;
        for (&pos, &held) in &self.known {
            let Some((addr, replicas)) = self.place(epoch, pos) else {
                return check(false, 16, || format!("{pos} is known and lies nowhere"));
            };
            for at in replicas {
                let stored = self.servers[at].disk.cells.get(&addr.0).map(|&(_, stored)| stored);
                check(stored == Some(held), 16, || {
                    format!("{pos} was known to hold {held:?}, unit {} holds {stored:?}", at + 1)
                })?;
            }
        }
        Ok(())
    }

    /// What a replica holds, every one before it holds.
    fn check_order(&self, epoch: u64) -> Result<(), Broken> {
        for pos in 0..4 {
            let Some((addr, replicas)) = self.place(epoch, pos) else { continue };
            let held = |at: usize| self.servers[at].disk.cells.get(&addr.0).map(|&(_, held)| held);
            for pair in replicas.windows(2) {
                let (before, after) = (held(pair[0]), held(pair[1]));
                let Some(after) = after else { continue };
                check(before.is_some(), 20, || format!("unit {} has {pos} alone", pair[1] + 1))?;
                check(before == Some(after), 21, || format!("{pos} is {before:?}, and {after:?} after it"))?;
            }
        }
        Ok(())
    }
}

/// What a server shows of an address, by its drive.
fn holding(server: &Server, addr: Addr) -> Option<Held> {
    let parts = server.unit.classify(AddrRange::new(addr, Addr(addr.0 + 1)));
    match parts.as_slice() {
        [(_, Holding::Stored)] => server.disk.cells.get(&addr.0).map(|&(_, held)| held),
        _ => None,
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_described(self, state);
    }
}

impl search::World for World {
    type Event = Event;

    fn possible(&self) -> Vec<Event> {
        let ready = |client: &Client| {
            client.waits_for.is_none()
                && client.relayed.is_none()
                && client.script.get(client.at).is_some_and(|op| match *op {
                    Op::Append(epoch) | Op::Relayed(epoch) | Op::Fill(epoch, _) | Op::Read(epoch, _) => {
                        self.layouts.contains_key(&epoch)
                    }
                    Op::Seal(..) | Op::GoOnWithout(_) => true,
                })
        };
        let clients = 0..self.clients.len();
        let mut events: Vec<Event> =
            clients.clone().filter(|&at| ready(&self.clients[at])).map(Event::Request).collect();
        events.extend(clients.filter(|&at| self.clients[at].relayed.is_some()).map(Event::Relay));
        for (at, server) in self.servers.iter().enumerate() {
            let under_way = server.disk.under_way.len();
            if under_way > 0 {
                events.push(Event::Durable(at));
            }
            if self.crashes > 0 && under_way > 0 {
                events.extend((0..=under_way).map(|survive| Event::Crash(at, survive)));
            }
        }
        events
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        match event {
            Event::Request(client) => self.request(client)?,
            Event::Relay(client) => self.relay(client)?,
            Event::Durable(at) => {
                if let Some(up_to) = self.servers[at].disk.complete() {
                    self.step(at, Input::Persisted { up_to })?;
                }
            }
            Event::Crash(at, survive) => {
                self.crashes -= 1;
                self.crash(at, survive)?;
            }
        }
        self.check_drives()
    }
}
