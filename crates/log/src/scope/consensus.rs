//! Deciding a layout, exhaustively: acceptors and two proposers, in every order in which requests arrive or stay away,
//! answers are lost, writes become durable, and an acceptor crashes and starts again. Never are two layouts decided for one
//! epoch.
//!
//! A request that is lost is one that never arrives, and any state may be the last. An answer comes at once or never: a late
//! one would only make what the proposer sends next late, which is late anyway.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::search::{self, Outcome, search};
use crate::layout::acceptor::{self, Acceptor, Answer};
use crate::layout::proposer::{self, Proposer};
use crate::layout::{Layout, Node};
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Ballot, ClusterId, Epoch, LogPos, NodeId};
use crate::unit::ReplyTo;
use crate::wire::Roles;

/// What a scenario consists of.
struct Scenario {
    name: &'static str,
    acceptors: u64,
    /// How often each proposer may begin.
    begins: &'static [u8],
    /// How many answers may be lost.
    losses: u8,
    /// How often the first acceptor may crash.
    crashes: u8,
    /// Whether the first of them decides no more, and the last proposer believes that it alone does.
    removed: bool,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "a crash", acceptors: 3, begins: &[1, 1], losses: 0, crashes: 1, removed: false },
    Scenario { name: "a lost answer", acceptors: 3, begins: &[1, 1], losses: 1, crashes: 0, removed: false },
    Scenario { name: "a second attempt", acceptors: 3, begins: &[2], losses: 1, crashes: 0, removed: false },
    Scenario {
        name: "a lone acceptor crashes twice",
        acceptors: 1,
        begins: &[2, 2],
        losses: 1,
        crashes: 2,
        removed: false,
    },
    Scenario { name: "one was removed", acceptors: 2, begins: &[1, 1], losses: 1, crashes: 0, removed: true },
];

/// A request of a proposer that has not arrived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Prepare(Ballot),
    /// The layout is known by its tail.
    Accept(Ballot, LogPos),
}

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A proposer begins.
    Begin(usize),
    /// This request arrives. Whether its answer does, too.
    Arrive(usize, bool),
    /// The write of the first acceptor is durable.
    Durable,
    /// The first acceptor's process dies and starts again. Whether its write under way is durable.
    Crash(bool),
}

/// An acceptor and its drive.
#[derive(Clone, Hash)]
struct Member {
    acceptor: Acceptor,
    stored: Bytes,
    storing: Option<Bytes>,
}

/// Everything.
#[derive(Clone, Hash)]
struct World {
    planted: Planted,
    members: Vec<Member>,
    proposers: Vec<Proposer>,
    begins: Vec<u8>,
    losses: u8,
    crashes: u8,
    /// From which proposer, to which acceptor.
    requests: BTreeSet<(usize, usize, Request)>,
    /// What a proposer has ended with.
    decided: Option<LogPos>,
    removed: bool,
}

fn first(acceptors: u64, removed: bool) -> Layout {
    let roles = Roles::LAYOUT.with(Roles::SEQUENCER).with(Roles::UNIT);
    let node = |id| {
        let left = if removed && id == 1 { roles.without(Roles::LAYOUT) } else { roles };
        Node::new(NodeId(id), left, String::new())
    };
    Layout { nodes: (1..=acceptors).map(node).collect(), ..Layout::single(ClusterId(1), node(1)) }
}

/// Whom an answer goes to: the proposer, the round that it asked in, whether it asked to accept; nobody if it is lost.
fn route(proposer: usize, round: u64, accept: bool, answered: bool) -> ReplyTo {
    ReplyTo(if answered { round << 8 | (proposer as u64) << 1 | u64::from(accept) } else { 0 })
}

impl World {
    fn new(scenario: &Scenario, planted: Planted) -> Self {
        let ids: Vec<NodeId> = (1..=scenario.acceptors).map(NodeId).collect();
        let member = |&id: &NodeId| {
            let mut acceptor = Acceptor::new(id, planted);
            let mut effects = Vec::new();
            let learn = acceptor::Input::Learn {
                to: ReplyTo(0),
                layout: first(scenario.acceptors, scenario.removed),
            };
            acceptor.step(learn, &mut effects);
            let stored = effects.into_iter().find_map(|effect| match effect {
                acceptor::Effect::Persist { record } => Some(record),
                acceptor::Effect::Reply { .. } => None,
            });
            acceptor.step(acceptor::Input::Persisted, &mut Vec::new());
            Member { acceptor, stored: stored.expect("a record to store"), storing: None }
        };
        let proposers = 0..scenario.begins.len() as u64;
        let deciding = |at: u64| match (scenario.removed, at + 1 == proposers.end) {
            (true, true) => ids[..1].to_vec(),
            (true, false) => ids[1..].to_vec(),
            (false, _) => ids.clone(),
        };
        Self {
            planted,
            members: ids.iter().map(member).collect(),
            proposers: proposers
                .clone()
                .map(|at| Proposer::new(NodeId(at + 1), Epoch(2), deciding(at), planted))
                .collect(),
            removed: scenario.removed,
            begins: scenario.begins.to_vec(),
            crashes: scenario.crashes,
            losses: scenario.losses,
            requests: BTreeSet::new(),
            decided: None,
        }
    }

    fn layout(&self, tail: LogPos) -> Layout {
        first(self.members.len() as u64, self.removed).next_epoch(tail)
    }

    /// A request arrives at an acceptor.
    fn arrive(&mut self, at: usize, answered: bool) -> Result<(), String> {
        let (from, to, request) = self.requests.iter().nth(at).expect("it is under way").clone();
        self.requests.remove(&(from, to, request.clone()));
        let input = match request {
            Request::Prepare(ballot) => {
                let to = route(from, ballot.round, false, answered);
                acceptor::Input::Prepare { to, epoch: Epoch(2), ballot }
            }
            Request::Accept(ballot, tail) => {
                let to = route(from, ballot.round, true, answered);
                acceptor::Input::Accept { to, ballot, layout: self.layout(tail) }
            }
        };
        self.accept(to, input)
    }

    /// Gives an acceptor an input and carries out what it wants.
    fn accept(&mut self, at: usize, input: acceptor::Input) -> Result<(), String> {
        let mut effects = Vec::new();
        self.members[at].acceptor.step(input, &mut effects);
        for effect in effects {
            match effect {
                // When a write is durable makes no difference if there is no crash before.
                acceptor::Effect::Persist { record } if at > 0 || self.crashes == 0 => {
                    self.members[at].stored = record;
                    self.accept(at, acceptor::Input::Persisted)?;
                }
                acceptor::Effect::Persist { record } => self.members[at].storing = Some(record),
                acceptor::Effect::Reply { to: ReplyTo(0), .. } => {}
                acceptor::Effect::Reply { to, answer } => self.answer(at, to, answer)?,
            }
        }
        Ok(())
    }

    /// An acceptor's answer reaches the proposer.
    fn answer(&mut self, from: usize, to: ReplyTo, answer: Answer) -> Result<(), String> {
        let (round, at) = (to.0 >> 8, (to.0 >> 1 & 0x7f) as usize);
        let ballot = Ballot { round, proposer: NodeId(at as u64 + 1) };
        let from = NodeId(from as u64 + 1);
        let input = match answer {
            Answer::Promise(vote) => proposer::Input::Promise { from, ballot, vote: Some(vote) },
            Answer::Accepted(vote) => proposer::Input::Accepted { from, ballot, vote: Some(vote) },
            Answer::Refused(_) if to.0 & 1 == 0 => proposer::Input::Promise { from, ballot, vote: None },
            Answer::Refused(_) => proposer::Input::Accepted { from, ballot, vote: None },
            answer => return Err(format!("a proposer is answered {answer:?}")),
        };
        self.propose(at, input)
    }

    /// Gives a proposer an input and carries out what it wants.
    fn propose(&mut self, at: usize, input: proposer::Input) -> Result<(), String> {
        let mut effects = Vec::new();
        self.proposers[at].step(input, &mut effects);
        let all = 0..self.members.len();
        for effect in effects {
            match effect {
                proposer::Effect::Prepare { ballot } => {
                    self.requests.extend(all.clone().map(|to| (at, to, Request::Prepare(ballot))));
                }
                proposer::Effect::Prepared => {
                    // Whoever tries again may have found another tail.
                    let layout = self.layout(LogPos(5 + at as u64 + 10 * u64::from(self.begins[at])));
                    self.propose(at, proposer::Input::Propose { layout })?;
                }
                proposer::Effect::Accept { ballot, layout } => {
                    let request = Request::Accept(ballot, layout.tail());
                    self.requests.extend(all.clone().map(|to| (at, to, request.clone())));
                }
                proposer::Effect::Stuck => {}
                proposer::Effect::Decided { layout } => {
                    let decided = *self.decided.get_or_insert(layout.tail());
                    if decided != layout.tail() {
                        return Err(format!("decided are the tails {decided} and {}", layout.tail()));
                    }
                }
            }
        }
        Ok(())
    }
}

impl search::World for World {
    type Event = Event;

    fn possible(&self) -> Vec<Event> {
        let begin = (0..self.begins.len()).filter(|&at| self.begins[at] > 0).map(Event::Begin);
        let lost = if self.losses > 0 { &[true, false][..] } else { &[true] };
        let arrive =
            (0..self.requests.len()).flat_map(|at| lost.iter().map(move |&kept| Event::Arrive(at, kept)));
        let storing = self.members[0].storing.is_some();
        let durable = storing.then_some(Event::Durable);
        let written = if storing { &[false, true][..] } else { &[false] };
        let crash = written.iter().filter(|_| self.crashes > 0).map(|&written| Event::Crash(written));
        begin.chain(arrive).chain(durable).chain(crash).collect()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(at) => {
                self.begins[at] -= 1;
                self.propose(at, proposer::Input::Begin)
            }
            Event::Arrive(at, answered) => {
                self.losses -= u8::from(!answered);
                self.arrive(at, answered)
            }
            Event::Durable => {
                let member = &mut self.members[0];
                member.stored = member.storing.take().expect("a write is under way");
                self.accept(0, acceptor::Input::Persisted)
            }
            Event::Crash(written) => {
                self.crashes -= 1;
                let member = &mut self.members[0];
                if let Some(record) = member.storing.take().filter(|_| written) {
                    member.stored = record;
                }
                let recovered = Acceptor::recover(NodeId(1), &member.stored, self.planted);
                member.acceptor = recovered.map_err(|error| format!("what was stored is lost: {error}"))?;
                Ok(())
            }
        }
    }
}

#[test]
fn an_epoch_never_has_two_layouts() {
    for scenario in SCENARIOS {
        let Outcome { states, violation } = search(World::new(scenario, Planted::NONE));
        assert_eq!(violation, None, "{}", scenario.name);
        println!("{}: {states} states", scenario.name);
    }
}

#[test]
fn proposers_that_are_heard_have_a_layout_decided() {
    // Acceptors that never accept anything are safe and worthless.
    for scenario in SCENARIOS {
        let mut world = World::new(scenario, Planted::NONE);
        search::World::happen(&mut world, Event::Begin(0)).expect("it may begin");
        while let Some(event) = search::World::possible(&world)
            .into_iter()
            .find(|event| matches!(event, Event::Arrive(_, true) | Event::Durable))
        {
            search::World::happen(&mut world, event).expect("no rule is broken");
        }
        assert!(world.decided.is_some(), "{}", scenario.name);
    }
}

#[test]
fn each_planted_fault_gives_an_epoch_two_layouts() {
    for bug in [
        PlantedBug::TwoLayoutsAnEpoch,
        PlantedBug::AcceptorForgetsPromise,
        PlantedBug::AnswerBeforePersist,
        PlantedBug::ProposerIgnoresAccepted,
        PlantedBug::RemovedAcceptorVotes,
    ] {
        let violation =
            SCENARIOS.iter().find_map(|scenario| search(World::new(scenario, Planted::bug(bug))).violation);
        let violation = violation.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(violation.contains("decided are the tails"), "{bug:?}: {violation}");
    }
}
