//! The state of everything, and what can happen next.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use ithaca_chain::{Run, RunKind, Table};

use super::disk::{Batch, Disk};
use super::oracle::{Broken, Oracle};
use crate::layout::{Layout, Node};
use crate::planted::Planted;
use crate::pos::{Addr, AddrRange, ClusterId, Epoch, LogPos, NodeId};
use crate::sequencer::Sequencer;
use crate::unit::{Answer, Effect, Input, ReplyTo, Unit, UnitOptions};
use crate::wire::{Roles, Sealed};

/// The one unit.
const UNIT: NodeId = NodeId(1);

/// What a client does next. The first number is the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// Ask the sequencer of the epoch for so many positions.
    Token(u64, u32),
    /// Write at the positions of the last grant.
    Write,
    /// Write so many entries at an address, without asking for it.
    WriteAt(u64, u64, u64),
    /// Write one entry that does not match its checksum.
    WriteDamaged(u64, u64),
    /// Fill the addresses `[start, end)`.
    Fill(u64, u64, u64),
    /// Trim the addresses `[start, end)`.
    Trim(u64, u64, u64),
    /// Read an address.
    Read(u64, u64),
    /// Ask the sequencer for the tail.
    Check(u64),
    /// Seal an epoch.
    Seal(u64),
    /// Seal an epoch and ask about the addresses `[start, end)` alone.
    SealPart(u64, u64, u64),
    /// Decide the next layout from the answer to the last seal, and start its sequencer.
    Install,
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// The next request of this client arrives.
    Request(usize),
    /// The oldest batch under way becomes durable.
    Durable,
    /// The unit's process dies; so many batches under way are durable. It starts again.
    Crash(usize),
    /// The drive loses what is under way but for so many batches, and says so.
    Fail(usize),
}

/// A client.
#[derive(Clone, Debug)]
struct Client {
    script: &'static [Op],
    at: usize,
    waiting: bool,
    grant: Option<(u64, Range<u64>)>,
    sealed: Option<Sealed>,
}

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct World {
    planted: Planted,
    unit: Unit,
    disk: Disk,
    sequencers: BTreeMap<u64, Sequencer>,
    layout: Layout,
    clients: Vec<Client>,
    crashes: u8,
    failures: u8,
    oracle: Oracle,
}

impl World {
    pub(super) fn new(
        scripts: &'static [&'static [Op]],
        crashes: u8,
        failures: u8,
        planted: Planted,
    ) -> Self {
        let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
        let layout = Layout::single(ClusterId(1), Node::new(UNIT, roles, "unit:1".to_owned()));
        let client =
            |script: &&'static [Op]| Client { script, at: 0, waiting: false, grant: None, sealed: None };
        let first = Sequencer::start_planted(Epoch(1), layout.tail(), planted);
        Self {
            planted,
            unit: Unit::new(options(planted)),
            disk: Disk::default(),
            sequencers: BTreeMap::from([(1, first)]),
            layout,
            clients: scripts.iter().map(client).collect(),
            crashes,
            failures,
            oracle: Oracle::default(),
        }
    }

    /// What can happen now.
    pub(super) fn possible(&self) -> Vec<Event> {
        let ready = |client: &Client| {
            let op = client.script.get(client.at).filter(|_| !client.waiting);
            op.is_some_and(|op| match *op {
                Op::Token(epoch, _) | Op::Check(epoch) => self.sequencers.contains_key(&epoch),
                _ => true,
            })
        };
        let mut events: Vec<Event> =
            (0..self.clients.len()).filter(|&at| ready(&self.clients[at])).map(Event::Request).collect();
        let under_way = self.disk.under_way.len();
        if under_way > 0 {
            events.push(Event::Durable);
        }
        if self.crashes > 0 {
            events.extend((0..=under_way).map(Event::Crash));
        }
        if self.failures > 0 {
            events.extend((0..=under_way).map(Event::Fail));
        }
        events
    }

    /// Lets `event` happen; how many requests it answered with something else than a refusal.
    pub(super) fn happen(&mut self, event: Event) -> Result<usize, Broken> {
        let done = match event {
            Event::Request(client) => self.request(client)?,
            Event::Durable => match self.disk.complete() {
                Some(up_to) => self.step(Input::Persisted { up_to }, None)?,
                None => 0,
            },
            Event::Crash(survive) => {
                self.crashes -= 1;
                self.crash(survive);
                0
            }
            Event::Fail(survive) => {
                self.failures -= 1;
                self.disk.cut(survive);
                self.step(Input::Failed, None)?
            }
        };
        self.oracle.check_disk(&self.disk)?;
        Ok(done)
    }

    fn crash(&mut self, survive: usize) {
        self.disk.cut(survive);
        self.unit = Unit::recover(options(self.planted), self.disk.recovered());
        self.oracle.restarted(&self.disk);
        // Whoever waits for an answer asks again.
        self.clients.iter_mut().for_each(|client| client.waiting = false);
    }

    /// The next request of a client arrives.
    fn request(&mut self, at: usize) -> Result<usize, Broken> {
        let client = &mut self.clients[at];
        let op = client.script[client.at];
        client.waiting = true;
        let to = ReplyTo(at as u64);
        let range = |start, end| vec![AddrRange::new(Addr(start), Addr(end))];
        match op {
            Op::Token(epoch, count) => self.token(at, epoch, count),
            Op::Check(epoch) => self.check(at, epoch),
            Op::Read(epoch, addr) => self.read(at, epoch, addr),
            Op::Install => self.install(at),
            Op::Write => {
                let Some((epoch, positions)) = client.grant.clone() else { return self.finish(at, 0) };
                let run = entries(at, epoch, positions);
                self.step(Input::Write { to, run }, Some(epoch))
            }
            Op::WriteAt(epoch, addr, count) => {
                let run = entries(at, epoch, addr..addr + count);
                self.step(Input::Write { to, run }, Some(epoch))
            }
            Op::WriteDamaged(epoch, addr) => {
                let run = Run { data: Bytes::from_static(b"?"), ..entries(at, epoch, addr..addr + 1) };
                self.step(Input::Write { to, run }, Some(epoch))
            }
            Op::Fill(epoch, start, end) => {
                let input = Input::Fill { to, epoch: Epoch(epoch), ranges: range(start, end) };
                self.step(input, Some(epoch))
            }
            Op::Trim(epoch, start, end) => {
                let input = Input::Trim { to, epoch: Epoch(epoch), ranges: range(start, end) };
                self.step(input, Some(epoch))
            }
            Op::Seal(epoch) => {
                self.tell(epoch)?;
                let extents = self.layout.active_extents(UNIT);
                self.step(Input::Seal { to, epoch: Epoch(epoch), extents }, None)
            }
            Op::SealPart(epoch, start, end) => {
                self.tell(epoch)?;
                self.step(Input::Seal { to, epoch: Epoch(epoch), extents: range(start, end) }, None)
            }
        }
    }

    /// The unit is told that there is a layout of `epoch`. What is complete by it is looked at elsewhere.
    fn tell(&mut self, epoch: u64) -> Result<usize, Broken> {
        self.step(Input::Listed { epoch: Epoch(epoch), stripes: Vec::new() }, None)
    }

    fn finish(&mut self, client: usize, done: usize) -> Result<usize, Broken> {
        self.clients[client].waiting = false;
        self.clients[client].at += 1;
        Ok(done)
    }

    fn token(&mut self, at: usize, epoch: u64, count: u32) -> Result<usize, Broken> {
        let sequencer = self.sequencers.get_mut(&epoch).expect("it is ready");
        let Ok(grant) = sequencer.grant(Epoch(epoch), count) else { return self.finish(at, 0) };
        let positions = grant.first.0..grant.first.0 + u64::from(grant.count);
        self.oracle.granted(epoch, positions.clone(), &self.disk)?;
        self.clients[at].grant = Some((epoch, positions));
        self.finish(at, 1)
    }

    fn check(&mut self, at: usize, epoch: u64) -> Result<usize, Broken> {
        let tail = self.sequencers[&epoch].tail(Epoch(epoch)).expect("its own epoch");
        // A sequencer that is replaced may lag; the newest may not.
        if self.sequencers.last_key_value().is_some_and(|(&newest, _)| newest == epoch) {
            self.oracle.tail(tail)?;
        }
        self.finish(at, 1)
    }

    fn read(&mut self, at: usize, epoch: u64, addr: u64) -> Result<usize, Broken> {
        if self.unit.check_epoch(Epoch(epoch)).is_err() {
            return self.finish(at, 0);
        }
        let parts = self.unit.classify(AddrRange::new(Addr(addr), Addr(addr + 1)));
        for (range, holding) in parts {
            self.oracle.revealed(range, holding, &self.disk)?;
        }
        self.finish(at, 1)
    }

    /// The next layout is decided: once, by whoever comes first.
    fn install(&mut self, at: usize) -> Result<usize, Broken> {
        let sealed = self.clients[at].sealed.clone();
        let Some(sealed) = sealed.filter(|sealed| sealed.epoch == self.layout.epoch) else {
            return self.finish(at, 0);
        };
        let tail = self.layout.find_tail(&BTreeMap::from([(UNIT, sealed)])).expect("all are sealed");
        self.layout = self.layout.next_epoch(tail);
        let (epoch, tail): (Epoch, LogPos) = (self.layout.epoch, self.layout.tail());
        self.sequencers.insert(epoch.0, Sequencer::start_planted(epoch, tail, self.planted));
        self.finish(at, 1)
    }

    /// Gives the unit an input, caused by a request in `epoch`, and carries out what it wants.
    fn step(&mut self, input: Input, epoch: Option<u64>) -> Result<usize, Broken> {
        let mut effects = Vec::new();
        self.unit.step(input, &mut effects);
        let mut done = 0;
        for effect in effects {
            match effect {
                Effect::Persist { ticket, runs, release, state, .. } => {
                    let batch = Batch::new(ticket, &runs, release, state.as_deref());
                    if let Some(epoch) = epoch {
                        self.oracle.changes(epoch, &runs, &batch, &self.disk)?;
                    }
                    self.disk.under_way.push_back(batch);
                }
                Effect::Reply { to, answer } => done += self.answer(to.0 as usize, answer)?,
            }
        }
        Ok(done)
    }

    fn answer(&mut self, at: usize, answer: Answer) -> Result<usize, Broken> {
        let op = self.clients[at].script[self.clients[at].at];
        let grant = self.clients[at].grant.clone().unwrap_or_default();
        match (op, answer) {
            (_, Answer::Refused(_)) => return self.finish(at, 0),
            (Op::Write, Answer::Written { taken, .. }) => {
                self.oracle.written(at, grant.0, grant.1, &taken, &self.disk)?;
            }
            (Op::WriteAt(epoch, addr, count), Answer::Written { taken, .. }) => {
                self.oracle.written(at, epoch, addr..addr + count, &taken, &self.disk)?;
            }
            (Op::WriteDamaged(epoch, addr), Answer::Written { taken, .. }) => {
                self.oracle.written(at, epoch, addr..addr + 1, &taken, &self.disk)?;
            }
            (Op::Fill(_, start, end), Answer::Filled { taken }) => {
                self.oracle.filled(start..end, &taken, &self.disk)?;
            }
            (Op::Trim(_, start, end), Answer::Trimmed) => self.oracle.trimmed(start..end, &self.disk)?,
            (Op::Seal(_), Answer::Sealed(sealed)) => {
                self.oracle.sealed(&self.layout.active_extents(UNIT), &sealed, &self.disk)?;
                self.clients[at].sealed = Some(sealed);
            }
            (Op::SealPart(_, start, end), Answer::Sealed(sealed)) => {
                self.oracle.sealed(&[(start..end).into()], &sealed, &self.disk)?;
            }
            (op, answer) => panic!("{answer:?} does not answer {op:?}"),
        }
        self.finish(at, 1)
    }
}

pub(super) fn options(planted: Planted) -> UnitOptions {
    UnitOptions { planted, ..UnitOptions::default() }
}

/// The entries that a client writes: each holds the client's number.
pub(super) fn entries(client: usize, epoch: u64, positions: Range<u64>) -> Run {
    let payloads = positions.clone().map(|_| [client as u8]).collect::<Vec<_>>();
    Run {
        first_key: positions.start,
        version: epoch,
        kind: RunKind::Data,
        meta: Bytes::new(),
        table: Table::of_payloads(&payloads),
        data: payloads.concat().into(),
    }
}
