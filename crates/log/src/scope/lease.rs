//! Leases, exhaustively: a node of the old epoch asks for leases again and again, a proposer prepares a majority, waits for as long as
//! leases of that node may be good by what the majority says that it has granted, and has the next layout decided. Nobody holds a lease on
//! the old epoch when the new one is. Time passes in steps of half a lease; answers take any time, and a lone acceptor crashes.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::Time;

use super::search::{self, search};
use crate::layout::acceptor::{self, Acceptor, Answer};
use crate::layout::{Layout, LeaseGrants, LeaseHolder, LeasesLeft, Node};
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Ballot, ClusterId, Epoch, NodeId};
use crate::unit::ReplyTo;
use crate::wire::{Roles, Vote};

/// Steps of time.
const STEPS: u64 = 6;
const STEP: Duration = Duration::from_millis(limits::LEASE_MS / 2);
/// Who asks for leases.
const HOLDER: NodeId = NodeId(8);

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    Tick,
    /// The holder asks every acceptor.
    Ask,
    /// A question arrives at an acceptor.
    Question(usize),
    /// A grant arrives at the holder.
    Grant(usize),
    /// A prepare arrives at an acceptor, and its promise, which is durable, at the proposer.
    Prepare(usize),
    /// The proposer, which has waited, has the next layout decided.
    Decide,
    /// An acceptor's process dies and starts again.
    Crash(usize),
}

#[derive(Clone, Hash)]
struct World {
    planted: Planted,
    now: Time,
    acceptors: Vec<(Acceptor, Bytes)>,
    /// What each acceptor has granted in this life of it.
    granted: Vec<LeaseGrants>,
    holder: LeaseHolder,
    asks: u8,
    crashes: u8,
    /// Questions under way, by when they were asked and whom they are for.
    questions: BTreeSet<(Time, usize)>,
    /// Grants under way, by when they were asked for and whose they are.
    grants: BTreeSet<(Time, usize)>,
    promised: BTreeSet<usize>,
    /// For how long leases may be good, as those say who have promised.
    leases: LeasesLeft,
    /// Until when leases may be good, by what the majority says that has promised.
    leases_end: Option<Time>,
    decided: bool,
}

/// When it begins: by then the acceptors have been there for so long that nothing of before counts.
fn began() -> Time {
    Time::ZERO + STEP * 3
}

impl World {
    fn new(count: u64, asks: u8, crashes: u8, planted: Planted) -> Self {
        let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
        let node = |id| Node::new(NodeId(id), roles, String::new());
        let layout =
            Layout { nodes: (1..=count).map(node).collect(), ..Layout::single(ClusterId(1), node(1)) };
        let acceptor = |id| {
            let mut acceptor = Acceptor::new(NodeId(id), planted);
            let learn = acceptor::Input::Learn { to: ReplyTo(0), layout: layout.clone() };
            let stored = step(&mut acceptor, learn).1.expect("a record to store");
            (acceptor, stored)
        };
        Self {
            planted,
            now: began(),
            acceptors: (1..=count).map(acceptor).collect(),
            granted: (0..count).map(|_| LeaseGrants::new(Time::ZERO, planted)).collect(),
            holder: LeaseHolder::new(&layout, planted),
            asks,
            crashes,
            questions: BTreeSet::new(),
            grants: BTreeSet::new(),
            promised: BTreeSet::new(),
            leases: LeasesLeft::default(),
            leases_end: None,
            decided: false,
        }
    }

    fn waited(&self) -> bool {
        self.leases_end.is_some_and(|end| self.now >= end)
    }
}

/// What an acceptor answers to `input` when all that it stores is durable, and what it stores.
fn step(acceptor: &mut Acceptor, input: acceptor::Input) -> (Option<Answer>, Option<Bytes>) {
    let mut effects = Vec::new();
    acceptor.step(input, &mut effects);
    let stored = effects.iter().find_map(|effect| match effect {
        acceptor::Effect::Persist { record } => Some(record.clone()),
        acceptor::Effect::Reply { .. } => None,
    });
    if stored.is_some() {
        acceptor.step(acceptor::Input::Persisted, &mut effects);
    }
    let answer = effects.into_iter().find_map(|effect| match effect {
        acceptor::Effect::Reply { answer, .. } => Some(answer),
        acceptor::Effect::Persist { .. } => None,
    });
    (answer, stored)
}

impl search::World for World {
    type Event = Event;

    fn possible(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.now < began() + STEP * STEPS as u32 {
            events.push(Event::Tick);
        }
        if self.asks > 0 {
            events.push(Event::Ask);
        }
        events.extend((0..self.questions.len()).map(Event::Question));
        events.extend((0..self.grants.len()).map(Event::Grant));
        events.extend((0..self.acceptors.len()).filter(|at| !self.promised.contains(at)).map(Event::Prepare));
        if self.waited() && !self.decided {
            events.push(Event::Decide);
        }
        if self.crashes > 0 {
            events.extend((0..self.acceptors.len()).map(Event::Crash));
        }
        events
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let (to, epoch) = (ReplyTo(0), Epoch(1));
        match event {
            Event::Tick => self.now = self.now + STEP,
            Event::Ask => {
                self.asks -= 1;
                self.questions.extend((0..self.acceptors.len()).map(|at| (self.now, at)));
            }
            Event::Question(question) => {
                let (asked_at, at) = *self.questions.iter().nth(question).expect("it is under way");
                self.questions.remove(&(asked_at, at));
                let (answer, _) = step(&mut self.acceptors[at].0, acceptor::Input::Lease { to, epoch });
                if answer == Some(Answer::Leased(true)) {
                    self.granted[at].granted(HOLDER, self.now);
                    self.grants.insert((asked_at, at));
                }
            }
            Event::Grant(grant) => {
                let (asked_at, at) = *self.grants.iter().nth(grant).expect("it is under way");
                self.grants.remove(&(asked_at, at));
                self.holder.granted(NodeId(at as u64 + 1), asked_at, self.now);
            }
            Event::Prepare(at) => {
                let ballot = Ballot { round: 1, proposer: NodeId(9) };
                let input = acceptor::Input::Prepare { to, epoch: epoch.next(), ballot };
                let (acceptor, stored) = &mut self.acceptors[at];
                let (answer, record) = step(acceptor, input);
                *stored = record.unwrap_or_else(|| stored.clone());
                if answer != Some(Answer::Promise(Vote::Given { accepted: None })) {
                    return Err(format!("a promise was expected, not {answer:?}"));
                }
                self.promised.insert(at);
                self.leases.add(&self.granted[at].left(self.now));
                if self.promised.len() > self.acceptors.len() / 2 {
                    self.leases_end.get_or_insert(self.now + self.leases.of(HOLDER));
                }
            }
            Event::Decide => self.decided = true,
            Event::Crash(at) => {
                self.crashes -= 1;
                let (acceptor, stored) = &mut self.acceptors[at];
                let recovered = Acceptor::recover(NodeId(at as u64 + 1), stored, self.planted);
                *acceptor = recovered.map_err(|error| error.to_string())?;
                self.granted[at] = LeaseGrants::new(self.now, self.planted);
            }
        }
        if self.decided && self.holder.valid(epoch, self.now) {
            return Err(format!(
                "the next layout is decided, and a lease is good until {:?}",
                self.holder.valid_until()
            ));
        }
        Ok(())
    }
}

/// What breaks the rule, with one acceptor that crashes or with three.
fn violation(planted: Planted) -> Option<String> {
    let worlds = [World::new(1, 2, 1, planted), World::new(3, 1, 0, planted)];
    worlds.into_iter().find_map(|world| {
        let outcome = search(world);
        println!("{} states", outcome.states);
        outcome.violation
    })
}

#[test]
fn no_lease_outlives_its_epoch() {
    assert_eq!(violation(Planted::NONE), None);
}

#[test]
fn each_planted_fault_of_leases_is_found() {
    for bug in [
        PlantedBug::LeaseFromAnswer,
        PlantedBug::LeaseAfterPromise,
        PlantedBug::LeaseAfterRestart,
        PlantedBug::GrantsForgotten,
    ] {
        let violation = violation(Planted::bug(bug)).unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(violation.contains("a lease is good"), "{bug:?}: {violation}");
    }
}

#[test]
fn a_node_that_was_granted_nothing_of_late_is_not_waited_for() {
    let ms = |ms: u64| Time::ZERO + Duration::from_millis(ms);
    let (dead, other, wait) = (NodeId(1), NodeId(2), limits::LEASE_WAIT_MS);
    let mut grants = LeaseGrants::new(ms(0), Planted::NONE);
    let left = |grants: &LeaseGrants, at, node| grants.left(ms(at)).of(node).as_millis() as u64;
    assert_eq!(
        left(&grants, 10, dead),
        wait - 10,
        "who knows what an earlier life of the acceptor has granted"
    );
    grants.granted(dead, ms(100));
    grants.granted(other, ms(300));
    assert_eq!((left(&grants, 300, dead), left(&grants, 300, other)), (wait - 200, wait));
    assert_eq!((left(&grants, 450, dead), left(&grants, 450, other)), (0, wait - 150));
    assert_eq!(left(&grants, 300, NodeId(3)), 0);
    // Whoever has it from a majority has it from one of those who have promised: the longest of their times counts.
    let mut all = grants.left(ms(450));
    let mut later = LeaseGrants::new(ms(0), Planted::NONE);
    later.granted(dead, ms(440));
    all.add(&later.left(ms(450)));
    assert_eq!(all.of(dead).as_millis() as u64, wait - 10);
    all.add(&LeaseGrants::new(ms(450), Planted::NONE).left(ms(450)));
    assert_eq!(all.of(NodeId(3)).as_millis() as u64, wait, "one has just been started");
}

#[test]
fn a_lease_is_good_from_when_a_majority_was_asked() {
    let layout = World::new(3, 1, 0, Planted::NONE).holder;
    let (mut holder, ms) = (layout, |ms: u64| Time::ZERO + Duration::from_millis(ms));
    holder.granted(NodeId(1), ms(50), ms(60));
    assert!(!holder.valid(Epoch(1), ms(60)), "one of three is no majority");
    holder.granted(NodeId(7), ms(50), ms(60));
    assert!(!holder.valid(Epoch(1), ms(60)), "node 7 is no acceptor");
    holder.granted(NodeId(3), ms(20), ms(90));
    assert!(holder.valid(Epoch(1), ms(219)) && !holder.valid(Epoch(1), ms(220)));
    assert!(!holder.valid(Epoch(2), ms(100)), "another epoch is not leased");
    holder.granted(NodeId(2), ms(100), ms(110));
    assert_eq!(holder.valid_until(), Some(ms(250)), "1 and 2 were asked by 50");
}
