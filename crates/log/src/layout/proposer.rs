//! The proposer: has a layout decided by a majority of acceptors. A pure core.
//!
//! Phase 1 prepares a majority: from then on no lower ballot decides anything, and what a lower one may have decided is
//! known. Its owner then computes its layout, at leisure. Phase 2 proposes it, or in its stead what phase 1 found. Either
//! phase may be overtaken by another proposer; then the owner waits a little and begins again, with a higher ballot.

use std::collections::BTreeSet;

use super::Layout;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Ballot, Epoch, NodeId};
use crate::wire::Vote;

/// What happens to a proposer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Begin, or begin again, with a ballot above all that were seen.
    Begin,
    /// An acceptor answered a prepare with this ballot; `None` if no answer will come.
    Promise {
        /// Who.
        from: NodeId,
        /// The ballot that it was asked to promise.
        ballot: Ballot,
        /// What it answered.
        vote: Option<Vote<Layout>>,
    },
    /// Propose this layout, or what was found in its stead. A majority must be prepared.
    Propose {
        /// The layout, of the proposer's epoch.
        layout: Layout,
    },
    /// An acceptor answered an accept with this ballot; `None` if no answer will come.
    Accepted {
        /// Who.
        from: NodeId,
        /// The ballot that it was asked to accept at.
        ballot: Ballot,
        /// What it answered.
        vote: Option<Vote<Layout>>,
    },
}

/// What a proposer wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Ask every acceptor to promise this ballot for the proposer's epoch.
    Prepare {
        /// The ballot.
        ballot: Ballot,
    },
    /// A majority has promised: [`Input::Propose`] may come.
    Prepared,
    /// Ask every acceptor to accept.
    Accept {
        /// The ballot.
        ballot: Ballot,
        /// The layout.
        layout: Layout,
    },
    /// No majority will come together at this ballot. Wait a little and begin again.
    Stuck,
    /// This layout is decided, whoever proposed it. It may be one of a later epoch, if its own is forgotten.
    Decided {
        /// The layout.
        layout: Layout,
    },
}

/// Where a proposer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Preparing,
    Prepared,
    Accepting,
    Decided,
}

/// Has the layout of one epoch decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proposer {
    me: NodeId,
    epoch: Epoch,
    acceptors: Vec<NodeId>,
    phase: Phase,
    ballot: Ballot,
    /// The highest round that it has used or seen.
    round: u64,
    /// The highest round that an acceptor takes next which takes none so far ahead of its own as was asked; the lowest of them.
    climb: Option<u64>,
    /// Who has given its vote in this phase.
    given: BTreeSet<NodeId>,
    /// Who has not, and will not.
    withheld: BTreeSet<NodeId>,
    /// What phase 1 found at the highest ballot.
    found: Option<(Ballot, Layout)>,
    /// What is proposed in phase 2.
    proposed: Option<Layout>,
    planted: Planted,
}

impl Proposer {
    /// A proposer on the node `me` for `epoch`, which `acceptors` decide. Panics if there are none.
    pub fn new(me: NodeId, epoch: Epoch, acceptors: Vec<NodeId>, planted: Planted) -> Self {
        assert!(!acceptors.is_empty(), "somebody decides {epoch}");
        Self {
            me,
            epoch,
            acceptors,
            phase: Phase::Idle,
            ballot: Ballot::NONE,
            round: 0,
            climb: None,
            given: BTreeSet::new(),
            withheld: BTreeSet::new(),
            found: None,
            proposed: None,
            planted,
        }
    }

    /// What a lower ballot may have had decided, and must therefore be proposed: known once a majority is prepared.
    pub fn found(&self) -> Option<&Layout> {
        self.found.as_ref().map(|(_, layout)| layout)
    }

    /// Does what `input` asks for and adds to `effects` what that takes, in order. What comes too late is ignored.
    pub fn step(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Begin if self.phase != Phase::Decided => {
                // Acceptors that a wrong number has driven apart come together by steps; a ballot that was used is promised to nobody again.
                let round = self.climb.take().unwrap_or(self.round.saturating_add(1));
                self.round = self.round.max(round);
                self.ballot = Ballot { round, proposer: self.me };
                self.found = None;
                self.enter(Phase::Preparing);
                effects.push(Effect::Prepare { ballot: self.ballot });
            }
            Input::Propose { layout } => {
                assert_eq!(self.phase, Phase::Prepared, "a majority is prepared before anything is proposed");
                let found = self.found().cloned();
                let is_of_epoch = layout.epoch == self.epoch || found.as_ref() == Some(&layout);
                assert!(is_of_epoch, "a layout of the epoch that is prepared, or what was found");
                let found = found.filter(|_| !self.planted.is(PlantedBug::ProposerIgnoresAccepted));
                let layout = found.unwrap_or(layout);
                self.proposed = Some(layout.clone());
                self.enter(Phase::Accepting);
                effects.push(Effect::Accept { ballot: self.ballot, layout });
            }
            Input::Promise { from, ballot, vote } => self.vote(Phase::Preparing, from, ballot, vote, effects),
            Input::Accepted { from, ballot, vote } => {
                self.vote(Phase::Accepting, from, ballot, vote, effects)
            }
            Input::Begin => {}
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.given.clear();
        self.withheld.clear();
    }

    fn vote(
        &mut self,
        phase: Phase,
        from: NodeId,
        ballot: Ballot,
        vote: Option<Vote<Layout>>,
        effects: &mut Vec<Effect>,
    ) {
        if self.phase == Phase::Decided || !self.acceptors.contains(&from) {
            return;
        }
        if let Some(Vote::Decided { layout }) = vote {
            self.enter(Phase::Decided);
            return effects.push(Effect::Decided { layout });
        }
        if let Some(Vote::Overtaken { promised }) = vote {
            self.round = self.round.max(promised.round);
            if promised < ballot {
                let reached = promised.round.saturating_add(limits::ROUNDS_AHEAD_MAX);
                self.climb = Some(self.climb.map_or(reached, |other| other.min(reached)));
            }
        }
        if phase != self.phase || ballot != self.ballot {
            return;
        }
        let Some(Vote::Given { accepted }) = vote else {
            self.withheld.insert(from);
            if self.acceptors.len() - self.withheld.len() < self.majority() {
                self.enter(Phase::Idle);
                effects.push(Effect::Stuck);
            }
            return;
        };
        let at = |accepted: &Option<(Ballot, Layout)>| accepted.as_ref().map(|(ballot, _)| *ballot);
        if at(&accepted) > at(&self.found) {
            self.found = accepted;
        }
        self.given.insert(from);
        if self.given.len() >= self.majority() {
            match phase {
                Phase::Preparing => {
                    self.enter(Phase::Prepared);
                    effects.push(Effect::Prepared);
                }
                _ => {
                    self.enter(Phase::Decided);
                    let layout = self.proposed.clone().expect("what was accepted was proposed");
                    effects.push(Effect::Decided { layout });
                }
            }
        }
    }

    fn majority(&self) -> usize {
        self.acceptors.len() / 2 + 1
    }
}
