//! The acceptor: one of the nodes that decide the layout of each epoch. A pure core.
//!
//! One layout is decided an epoch, by the acceptors that the layout before names; the first by those that it names itself.
//! It is decided when a majority has accepted it at one ballot (Paxos, one value an epoch; docs/protocol/reconfigure.md).
//! What is promised and accepted is durable before it is answered, and so is what was decided elsewhere.
//!
//! An acceptor that decides alone needs no durable promise: what it accepts is decided at once. But for its promise it also
//! stops granting leases; so that a restart does not undo that, it grants none in the epoch that it finds then.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{Layout, acceptor_record};
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{AddrRange, Ballot, ClusterId, Epoch, NodeId};
use crate::unit::ReplyTo;
use crate::wire::{Kind, Refusal, Roles, Vote};
use ithaca_env::record::RecordError;

/// What happens to an acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Somebody wants to have a layout decided for `epoch`: the next one, or, of nodes that do not decide it, the one in which the cluster goes on
    /// without those who do.
    Prepare {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch.
        epoch: Epoch,
        /// At which ballot.
        ballot: Ballot,
    },
    /// Somebody whom a majority has promised so proposes a layout for the epoch that it names; or, in the place of the next one, one that goes on
    /// without nodes which are gone for good.
    Accept {
        /// Who is answered.
        to: ReplyTo,
        /// At which ballot.
        ballot: Ballot,
        /// The layout.
        layout: Layout,
    },
    /// A layout was decided.
    Learn {
        /// Who is answered.
        to: ReplyTo,
        /// The layout.
        layout: Layout,
    },
    /// Somebody asks for the layout of an epoch, or for the latest.
    Get {
        /// Who is answered.
        to: ReplyTo,
        /// Which.
        epoch: Option<Epoch>,
    },
    /// Somebody asks whether `epoch` is still the latest.
    Lease {
        /// Who is answered.
        to: ReplyTo,
        /// The epoch.
        epoch: Epoch,
    },
    /// The latest [`Effect::Persist`] is durable.
    Persisted,
    /// It could not be stored. Whether it is there after a restart is not known.
    Failed,
}

/// What an acceptor wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Store this record in place of the one before. Never two at a time.
    Persist {
        /// The record.
        record: Bytes,
    },
    /// Answer.
    Reply {
        /// Whom.
        to: ReplyTo,
        /// What.
        answer: Answer,
    },
}

/// What an acceptor answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// To [`Input::Prepare`].
    Promise(Vote<Layout>),
    /// To [`Input::Accept`].
    Accepted(Vote<Layout>),
    /// To [`Input::Learn`]: the latest epoch whose layout it knows.
    Learned(Epoch),
    /// To [`Input::Lease`]: whether it is granted.
    Leased(bool),
    /// To [`Input::Get`].
    Layout(Layout),
    /// To anything.
    Refused(Refusal),
}

/// Decides layouts, together with others or alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acceptor {
    pub(super) me: NodeId,
    /// The cluster that its node belongs to; unknown for as long as it does to none.
    pub(super) cluster: ClusterId,
    /// Layouts that were decided, the latest ones, in the order of their epochs.
    pub(super) decided: VecDeque<Layout>,
    /// For the epoch after the latest: nothing below this is accepted any more.
    pub(super) promised: Ballot,
    /// For the epoch after the latest: what was accepted last.
    pub(super) accepted: Option<(Ballot, Layout)>,
    /// The latest decided epoch that is durable.
    pub(super) durable: Epoch,
    /// The first epoch that leases are granted for.
    pub(super) leases_from: Epoch,
    /// The write that is under way.
    storing: Option<Storing>,
    /// Answers to what has changed since it began. The next write releases them.
    waiting: Vec<(ReplyTo, Answer)>,
    failed: bool,
    pub(super) planted: Planted,
}

/// A write under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Storing {
    /// The latest decided epoch in it.
    latest: Epoch,
    /// Answers that it releases.
    answers: Vec<(ReplyTo, Answer)>,
}

impl Acceptor {
    /// An acceptor that knows nothing, on the node `me`.
    pub fn new(me: NodeId, planted: Planted) -> Self {
        Self {
            me,
            cluster: ClusterId::UNKNOWN,
            decided: VecDeque::new(),
            promised: Ballot::NONE,
            accepted: None,
            durable: Epoch(0),
            leases_from: Epoch(0),
            storing: None,
            waiting: Vec::new(),
            failed: false,
            planted,
        }
    }

    /// The cluster that its node belongs to; unknown for as long as it does to none.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// From here on its node belongs to `cluster`: what it stores says so, and layouts of others are refused.
    pub fn belong_to(&mut self, cluster: ClusterId) {
        assert!([ClusterId::UNKNOWN, cluster].contains(&self.cluster), "a node stays in its cluster");
        self.cluster = cluster;
    }

    /// An acceptor with what it had stored.
    pub fn recover(me: NodeId, record: &[u8], planted: Planted) -> Result<Self, RecordError> {
        let mut acceptor = Self::new(me, planted);
        acceptor_record::decode(&mut acceptor, record)?;
        acceptor.durable = acceptor.latest_epoch();
        if acceptor.decides_alone(None) && !planted.is(PlantedBug::LeaseAfterRestart) {
            acceptor.leases_from = acceptor.durable.next();
        }
        Ok(acceptor)
    }

    /// The latest decided layout that is durable.
    pub fn latest(&self) -> Option<&Layout> {
        self.durable().next_back()
    }

    /// The newest epoch that `node` is sure to have sealed, on stable storage, by the durable layouts; see [`Layout::sealed_by`].
    pub fn sealed_by(&self, node: NodeId) -> Option<Epoch> {
        self.durable().filter_map(|layout| layout.sealed_by(node)).max()
    }

    /// What `node` has to hold nothing of, by the durable layouts that go on from the one before without nodes.
    pub fn lost_at(&self, node: NodeId) -> Vec<AddrRange> {
        let layouts: Vec<&Layout> = self.durable().collect();
        let lost = layouts.windows(2).flat_map(|pair| pair[0].lost_by(pair[1]));
        lost.filter(|part| part.replicas.contains(&node)).map(|part| part.addresses).collect()
    }

    /// Does what `input` asks for and adds to `effects` what that takes, in order.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Prepare { to, .. } | Input::Accept { to, .. } | Input::Learn { to, .. } if self.failed => {
                effects.push(Effect::Reply { to, answer: Answer::Refused(Refusal::Failed) });
            }
            Input::Prepare { to, epoch, ballot } => self.prepare(to, epoch, ballot, effects),
            Input::Accept { to, ballot, layout } => self.accept(to, ballot, layout, effects),
            Input::Learn { to, layout } => self.learn(to, layout, effects),
            Input::Get { to, epoch } => {
                let answer = self.get(epoch);
                effects.push(Effect::Reply { to, answer });
            }
            Input::Lease { to, epoch } => {
                let answer = Answer::Leased(self.grants_lease(epoch));
                effects.push(Effect::Reply { to, answer });
            }
            Input::Persisted => {
                let Storing { latest, answers } = self.storing.take().expect("a record was being stored");
                self.durable = latest;
                effects.extend(answers.into_iter().map(|(to, answer)| Effect::Reply { to, answer }));
                if !self.waiting.is_empty() {
                    self.store(effects);
                }
            }
            Input::Failed => {
                self.failed = true;
                let answers = self.storing.take().map(|storing| storing.answers).unwrap_or_default();
                let unanswered = answers.into_iter().chain(std::mem::take(&mut self.waiting));
                let refused = Answer::Refused(Refusal::Failed);
                effects.extend(unanswered.map(|(to, _)| Effect::Reply { to, answer: refused.clone() }));
            }
        }
        let below = |(ballot, _): &(Ballot, Layout)| *ballot <= self.promised;
        let forgets = self.planted.is(PlantedBug::AcceptorForgetsPromise)
            || self.planted.is(PlantedBug::TwoLayoutsAnEpoch);
        assert!(forgets || self.accepted.iter().all(below), "what is accepted was promised");
    }

    fn prepare(&mut self, to: ReplyTo, epoch: Epoch, ballot: Ballot, effects: &mut Vec<Effect>) {
        if let Some(not_open) = self.not_open(epoch, None) {
            return self.answer(to, not_open.map_or_else(Answer::Refused, Answer::Promise), effects);
        }
        if ballot <= self.promised || self.is_far_ahead(ballot) {
            // Also if it is the same ballot: a proposer that was restarted must not use an old one for another layout.
            let vote = Vote::Overtaken { promised: self.promised };
            return self.answer(to, Answer::Promise(vote), effects);
        }
        let answer = Answer::Promise(Vote::Given { accepted: self.accepted.clone() });
        if self.planted.is(PlantedBug::AcceptorForgetsPromise) {
            return self.answer(to, answer, effects);
        }
        self.promised = ballot;
        match self.decides_alone(None) {
            true => self.answer(to, answer, effects),
            false => self.change(to, answer, effects),
        }
    }

    fn accept(&mut self, to: ReplyTo, ballot: Ballot, layout: Layout, effects: &mut Vec<Effect>) {
        if let Some(refusal) = self.malformed(&layout, Kind::Accept) {
            return effects.push(Effect::Reply { to, answer: Answer::Refused(refusal) });
        }
        let twice = self.planted.is(PlantedBug::TwoLayoutsAnEpoch);
        if twice && layout.epoch == self.latest_epoch() {
            self.decided.pop_back();
        } else if let Some(not_open) = self.not_open(layout.epoch, Some(&layout)) {
            return self.answer(to, not_open.map_or_else(Answer::Refused, Answer::Accepted), effects);
        }
        if (ballot < self.promised || self.is_far_ahead(ballot)) && !twice {
            let vote = Vote::Overtaken { promised: self.promised };
            return self.answer(to, Answer::Accepted(vote), effects);
        }
        let malformed = Refusal::Malformed { kind: Kind::Accept as u16 };
        if ballot == Ballot::NONE || self.decided.back().is_some_and(|last| !last.may_be_followed_by(&layout))
        {
            return effects.push(Effect::Reply { to, answer: Answer::Refused(malformed) });
        }
        let given = Answer::Accepted(Vote::Given { accepted: None });
        match &self.accepted {
            // The same once more: nothing changes.
            Some((at, before)) if *at == ballot && *before == layout => self.answer(to, given, effects),
            Some((at, _)) if *at == ballot => {
                effects.push(Effect::Reply { to, answer: Answer::Refused(malformed) });
            }
            _ if self.decides_alone(Some(&layout)) => {
                self.decide(layout);
                self.change(to, given, effects);
            }
            _ => {
                self.promised = self.promised.max(ballot);
                self.accepted = Some((ballot, layout));
                self.change(to, given, effects);
            }
        }
    }

    fn learn(&mut self, to: ReplyTo, layout: Layout, effects: &mut Vec<Effect>) {
        let other = self.decided.iter().any(|decided| decided.epoch == layout.epoch && *decided != layout);
        let malformed = other.then_some(Refusal::Malformed { kind: Kind::Learn as u16 });
        if let Some(refusal) = self.malformed(&layout, Kind::Learn).or(malformed) {
            return effects.push(Effect::Reply { to, answer: Answer::Refused(refusal) });
        }
        if layout.epoch <= self.latest_epoch() {
            return self.answer(to, Answer::Learned(self.latest_epoch()), effects);
        }
        let epoch = layout.epoch;
        self.decide(layout);
        self.change(to, Answer::Learned(epoch), effects);
    }

    fn get(&self, epoch: Option<Epoch>) -> Answer {
        let found = match epoch {
            Some(epoch) => self.durable().find(|layout| layout.epoch == epoch),
            None => self.latest(),
        };
        let epoch = epoch.unwrap_or_default();
        found.map_or(Answer::Refused(Refusal::NoLayout { epoch }), |layout| Answer::Layout(layout.clone()))
    }

    /// Whether somebody proposes, or has proposed, a layout for the epoch after the latest.
    pub fn is_touched(&self) -> bool {
        self.promised != Ballot::NONE || self.accepted.is_some()
    }

    /// Whether a lease on `epoch` would be granted now. A promise counts from when it is made, not from when it is durable: the proposer
    /// knows of it only then, and every lease that is granted after that would last too long for it.
    pub fn grants_lease(&self, epoch: Epoch) -> bool {
        epoch == self.latest_epoch()
            && epoch == self.durable
            && epoch >= self.leases_from
            && self.decided.back().is_some_and(|layout| layout.acceptors().contains(&self.me))
            && (!self.is_touched() || self.planted.is(PlantedBug::LeaseAfterPromise))
            && !self.failed
    }

    /// Whether no proposer has come to `ballot`: it is a mistake, and the last rounds there are would be used up by it, so that nothing could be
    /// decided any more.
    fn is_far_ahead(&self, ballot: Ballot) -> bool {
        ballot.round.saturating_sub(self.promised.round) > limits::ROUNDS_AHEAD_MAX
    }

    /// The answer to whoever asks for `epoch` to be decided, or for `layout` as the first, if nothing can be decided here.
    fn not_open(&self, epoch: Epoch, layout: Option<&Layout>) -> Option<Result<Vote<Layout>, Refusal>> {
        let latest = self.latest_epoch();
        // It takes the place of the next epoch's, and may have to be decided by nodes that decide nothing else.
        if self.decided.back().is_some_and(|last| last.is_after_loss(epoch)) {
            return None;
        }
        if epoch <= latest {
            let layout = self.decided.iter().find(|layout| layout.epoch == epoch).or(self.decided.back());
            let vote = Vote::Decided { layout: layout.expect("an epoch is decided").clone() };
            return Some(Ok(vote));
        }
        if epoch != latest.next() {
            return Some(Err(Refusal::WrongEpoch { serving: latest, asked: epoch }));
        }
        let outside = self.decided.back().or(layout).is_some_and(|by| !by.acceptors().contains(&self.me));
        let outside = outside && !self.planted.is(PlantedBug::RemovedAcceptorVotes);
        outside.then_some(Err(Refusal::NotServing { roles: Roles::LAYOUT }))
    }

    /// Why `layout` cannot come from a node of this cluster that works as it should.
    fn malformed(&self, layout: &Layout, kind: Kind) -> Option<Refusal> {
        if ![ClusterId::UNKNOWN, layout.cluster].contains(&self.cluster) {
            return Some(Refusal::WrongCluster { cluster: self.cluster });
        }
        layout.validate().is_err().then_some(Refusal::Malformed { kind: kind as u16 })
    }

    /// Whether nobody else decides the next epoch, or, if it is the first, nobody else that `first` names.
    fn decides_alone(&self, first: Option<&Layout>) -> bool {
        self.decided.back().or(first).is_some_and(|layout| layout.acceptors() == [self.me])
    }

    fn decide(&mut self, layout: Layout) {
        self.cluster = layout.cluster;
        self.decided.push_back(layout);
        self.promised = Ballot::NONE;
        self.accepted = None;
        self.forget_old();
    }

    /// Forgets the oldest layouts, so that the record keeps to its limits.
    fn forget_old(&mut self) {
        // Room for one that is accepted later.
        let room = limits::ACCEPTOR_MAX_BYTES - limits::LAYOUT_MAX_BYTES;
        while self.decided.len() > 1
            && (self.decided.len() > limits::LAYOUT_HISTORY_MAX_COUNT
                || acceptor_record::encode(self).len() > room)
        {
            self.decided.pop_front();
        }
    }

    /// Answers when all that was changed so far is durable.
    fn answer(&mut self, to: ReplyTo, answer: Answer, effects: &mut Vec<Effect>) {
        match &mut self.storing {
            _ if self.planted.is(PlantedBug::AnswerBeforePersist) => {
                effects.push(Effect::Reply { to, answer });
            }
            _ if !self.waiting.is_empty() => self.waiting.push((to, answer)),
            Some(storing) => storing.answers.push((to, answer)),
            None => effects.push(Effect::Reply { to, answer }),
        }
    }

    /// Stores what was changed, and answers when that is durable.
    fn change(&mut self, to: ReplyTo, answer: Answer, effects: &mut Vec<Effect>) {
        if self.planted.is(PlantedBug::AnswerBeforePersist) {
            effects.push(Effect::Reply { to, answer: answer.clone() });
        }
        self.waiting.push((to, answer));
        if self.storing.is_none() {
            self.store(effects);
        }
    }

    fn store(&mut self, effects: &mut Vec<Effect>) {
        let mut answers = std::mem::take(&mut self.waiting);
        if self.planted.is(PlantedBug::AnswerBeforePersist) {
            answers.clear();
        }
        self.storing = Some(Storing { latest: self.latest_epoch(), answers });
        effects.push(Effect::Persist { record: acceptor_record::encode(self) });
    }

    /// The layouts that are durable, in order.
    fn durable(&self) -> impl DoubleEndedIterator<Item = &Layout> {
        self.decided.iter().filter(|layout| layout.epoch <= self.durable)
    }

    /// The epoch of the latest layout, durable or not.
    fn latest_epoch(&self) -> Epoch {
        self.decided.back().map_or(Epoch(0), |layout| layout.epoch)
    }
}
