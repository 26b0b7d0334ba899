//! Having the layout of an epoch decided: runs a [`Proposer`] over connections to the acceptors.
//!
//! ```text
//!   prepare ──► Preparation::Open(Prepared) ── seal, find the tail, wait for leases ──► propose ──► Layout ──► learn
//!          └──► Preparation::Decided(Layout): somebody else was faster
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::task::gather;
use ithaca_env::{Env, Time};

use super::peers::Peer;
use crate::client::{CallError, ClientError, Phase};
use crate::layout::proposer::{Effect, Input, Proposer};
use crate::layout::{Layout, LeasesLeft};
use crate::planted::Planted;
use crate::pos::{Epoch, NodeId};
use crate::wire::{Accept, Accepted, Invitation, Learn, Learned, Message, Prepare, Promise, Refusal, Vote};

/// Time for a majority to answer in the first attempt, before it is asked again with a higher ballot. It doubles with each,
/// so that drives which are slow today are waited for.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait before the second attempt; it doubles with each up to the limit.
const BACK_OFF_FIRST_MS: u64 = 10;
/// The longest wait before any attempt.
const BACK_OFF_MAX_MS: u64 = 640;

/// Who proposes, to whom, and on what it builds.
pub(super) struct Proposal {
    /// The node that proposes.
    pub me: NodeId,
    /// The acceptors of the layout before, or for the first epoch those of the first layout.
    pub acceptors: Vec<Rc<Peer>>,
    /// The layout before; `None` for the first epoch. Acceptors that do not know it are told.
    pub before: Option<Layout>,
    /// A fault of the proposer to put in force.
    pub planted: Planted,
}

/// How far preparing came.
pub(super) enum Preparation {
    /// A majority is prepared.
    Open(Box<Prepared>),
    /// The layout is decided already.
    Decided(Layout),
}

/// A majority of the acceptors that accepts nothing older any more, and grants no lease on the epoch before.
pub(super) struct Prepared {
    driver: Driver,
    since: Time,
}

/// Prepares a majority of the acceptors to decide the epoch after that of the layout before; tries again, with higher
/// ballots, until `deadline`. A majority that refuses for good ends it at once. Dropping the future leaves the acceptors
/// prepared: they grant no leases until some proposer has a layout decided.
pub(super) async fn prepare(
    env: &Env,
    proposal: Proposal,
    deadline: Time,
) -> Result<Preparation, ClientError> {
    let mut driver = Driver::new(env, proposal);
    let prepared = driver.prepare(deadline).await?;
    Ok(match prepared {
        Some(layout) => Preparation::Decided(layout),
        None => Preparation::Open(Box::new(Prepared { driver, since: env.now() })),
    })
}

impl Prepared {
    /// What another proposer may have had decided. If there is such a layout, [`propose`](Self::propose) drives it home,
    /// whatever it is given; it rests on its own proposer's seals, which were answered before it was proposed, so that
    /// nobody else needs to seal or wait.
    pub fn found(&self) -> Option<Layout> {
        self.driver.proposer.borrow().found().cloned()
    }

    /// For how long a lease of `node` on the epoch before may be good yet, by what the majority has granted. Whoever has not sealed the
    /// node, and finds no layout, waits so long before it proposes.
    pub fn leases_left(&self, node: NodeId) -> Duration {
        let end = self.since + self.driver.leases.borrow().of(node);
        end.since(self.driver.env.now())
    }

    /// Proposes `layout` and returns what was decided, whoever proposed it; on return a majority has it on stable storage.
    /// If its epoch was decided and forgotten meanwhile it is the latest layout. If this fails or is dropped, the layout may
    /// yet be decided. Panics if `layout` is not of the epoch that is prepared.
    pub async fn propose(mut self, layout: &Layout, deadline: Time) -> Result<Layout, ClientError> {
        loop {
            let decided = self.driver.propose(layout, deadline).await?;
            if let Some(decided) = decided {
                return Ok(decided);
            }
            // The seals and the leases' end of the first majority still hold: promises are only replaced by higher ones.
            if let Some(decided) = self.driver.prepare(deadline).await? {
                return Ok(decided);
            }
        }
    }
}

/// Tells every node of a layout that was decided, as far as each can be reached by `deadline`; returns how many know it, or
/// a later one, now. Waits for every one of them.
pub(super) async fn learn(nodes: &[Rc<Peer>], layout: &Layout, deadline: Time) -> usize {
    let message = Learn { invitation: Invitation::None, record: layout.encode() };
    let tell = async |peer: &Rc<Peer>| {
        let told = call::<_, Learned>(peer, layout.epoch, &message, deadline).await;
        if let Err(error) = &told {
            tracing::debug!(%error, "a node could not be told of a layout");
        }
        told.is_ok_and(|learned| learned.epoch >= layout.epoch)
    };
    let told = gather(nodes.iter().map(&tell).collect(), |_| false).await;
    told.into_iter().flatten().filter(|&known| known).count()
}

/// One call to an acceptor.
async fn call<Q: Message, R: Message>(
    peer: &Peer,
    epoch: Epoch,
    request: &Q,
    deadline: Time,
) -> Result<R, ClientError> {
    let called = peer.call::<Q, R>(epoch, request, deadline).await;
    let failed = |error| ClientError::Node { addr: peer.addr(), epoch, phase: Phase::Layout, error };
    called.map(|(reply, _, _)| reply).map_err(failed)
}

/// What a round came to.
#[derive(Default)]
struct Round {
    effects: Vec<Effect>,
    /// Acceptors that will refuse again.
    lost: usize,
    last: Option<ClientError>,
}

impl Round {
    fn fail(&mut self, error: ClientError) {
        let again = match &error {
            ClientError::Node { error: CallError::Refused(refusal), .. } => {
                matches!(refusal, Refusal::Overloaded { .. } | Refusal::WrongEpoch { .. })
            }
            ClientError::Node { error: CallError::Lost(_) | CallError::TimedOut, .. } => true,
            _ => false,
        };
        self.lost += usize::from(!again);
        self.last = Some(error);
    }
}

/// A proposer and those that it talks to.
struct Driver {
    env: Env,
    proposal: Proposal,
    epoch: Epoch,
    proposer: RefCell<Proposer>,
    /// For how long leases may be good yet, as those say who have promised.
    leases: RefCell<LeasesLeft>,
    /// Attempts since the proposer was made.
    attempts: u32,
    began: Time,
}

impl Driver {
    fn new(env: &Env, proposal: Proposal) -> Self {
        let epoch = proposal.before.as_ref().map_or(Epoch(1), |before| before.epoch.next());
        let acceptors = proposal.acceptors.iter().map(|peer| peer.node()).collect();
        let proposer = Proposer::new(proposal.me, epoch, acceptors, proposal.planted);
        Self {
            env: env.clone(),
            proposal,
            epoch,
            proposer: RefCell::new(proposer),
            leases: RefCell::default(),
            attempts: 0,
            began: env.now(),
        }
    }

    /// Prepares a majority. The layout, if one is decided already.
    async fn prepare(&mut self, deadline: Time) -> Result<Option<Layout>, ClientError> {
        loop {
            if self.attempts > 0 {
                self.back_off(deadline).await;
            }
            self.attempts += 1;
            let mut effects = Vec::new();
            self.proposer.borrow_mut().step(Input::Begin, &mut effects);
            let Some(&Effect::Prepare { ballot }) = effects.first() else {
                unreachable!("a proposer begins by preparing: {effects:?}")
            };
            let message = Prepare { epoch: self.epoch, ballot };
            let input = |from, vote| Input::Promise { from, ballot, vote };
            let vote = |Promise { vote, leases }| {
                // What one says that does not promise can only make the wait longer.
                self.leases.borrow_mut().add(&leases);
                vote
            };
            let round = self.ask::<_, Promise>(&message, vote, input, deadline).await;
            match self.outcome(round, deadline)? {
                Effect::Prepared => return Ok(None),
                Effect::Decided { layout } => return Ok(Some(layout)),
                _ => {}
            }
        }
    }

    /// Proposes `layout` to those that are prepared. What was decided; `None` if a majority has to be prepared again.
    async fn propose(&mut self, layout: &Layout, deadline: Time) -> Result<Option<Layout>, ClientError> {
        let mut effects = Vec::new();
        self.proposer.borrow_mut().step(Input::Propose { layout: layout.clone() }, &mut effects);
        let Some(Effect::Accept { ballot, layout }) = effects.pop() else {
            unreachable!("a prepared proposer proposes: {effects:?}")
        };
        let message = Accept { ballot, record: layout.encode() };
        let input = |from, vote| Input::Accepted { from, ballot, vote };
        let round = self.ask::<_, Accepted>(&message, |accepted| accepted.vote, input, deadline).await;
        match self.outcome(round, deadline)? {
            Effect::Decided { layout } => Ok(Some(layout)),
            _ => Ok(None),
        }
    }

    /// Asks every acceptor at once, gives the proposer their answers as they come, and returns when it wants something.
    async fn ask<Q: Message, R: Message>(
        &self,
        message: &Q,
        vote: impl Fn(R) -> Vote,
        input: impl Fn(NodeId, Option<Vote<Layout>>) -> Input,
        deadline: Time,
    ) -> Round {
        let patience = ROUND_TIMEOUT * (1 << (self.attempts.clamp(1, 6) - 1));
        let deadline = deadline.min(self.env.now() + patience);
        let round = RefCell::new(Round::default());
        let ask = async |peer: &Rc<Peer>| {
            let answered = self.ask_one::<Q, R>(peer, message, deadline).await;
            let vote = answered.and_then(|answer| {
                let decode = |record: Bytes| Layout::decode(&record);
                let bad = |error| ClientError::BadLayout { addr: peer.addr(), error };
                vote(answer).try_map(decode).map_err(bad)
            });
            let mut round = round.borrow_mut();
            let vote = vote.map_err(|error| round.fail(error)).ok();
            self.proposer.borrow_mut().step(input(peer.node(), vote), &mut round.effects);
            !round.effects.is_empty()
        };
        gather(self.proposal.acceptors.iter().map(&ask).collect(), |&enough| enough).await;
        round.into_inner()
    }

    /// Asks one acceptor, which is told the layout before if it does not know it.
    async fn ask_one<Q: Message, R: Message>(
        &self,
        peer: &Peer,
        message: &Q,
        deadline: Time,
    ) -> Result<R, ClientError> {
        let answered = call(peer, self.epoch, message, deadline).await;
        let (Err(error), Some(before)) = (&answered, &self.proposal.before) else { return answered };
        let ClientError::Node { error: CallError::Refused(Refusal::WrongEpoch { serving, .. }), .. } = error
        else {
            return answered;
        };
        if *serving >= before.epoch {
            return answered;
        }
        let learn = Learn { invitation: Invitation::None, record: before.encode() };
        let _: Learned = call(peer, self.epoch, &learn, deadline).await?;
        call(peer, self.epoch, message, deadline).await
    }

    /// What the proposer wants after `round`: at the most one thing. The error if it wants to begin again and that cannot
    /// help, or not in time.
    fn outcome(&self, mut round: Round, deadline: Time) -> Result<Effect, ClientError> {
        let effect = round.effects.pop().expect("every acceptor answered or did not");
        if effect != Effect::Stuck {
            return Ok(effect);
        }
        let now = self.env.now();
        let (waited, asked) = (now.since(self.began), self.proposal.acceptors.len());
        match round.last {
            Some(error) if asked - round.lost < asked / 2 + 1 => Err(error),
            Some(last) if now >= deadline => {
                Err(ClientError::TimedOut { phase: Phase::Layout, waited, last: Box::new(last) })
            }
            None if now >= deadline => Err(ClientError::Slow { phase: Phase::Layout, waited }),
            _ => Ok(effect),
        }
    }

    /// Waits a little, longer after each attempt, and never as long as another who does the same.
    async fn back_off(&self, deadline: Time) {
        let longest_ms = (BACK_OFF_FIRST_MS << self.attempts.min(16)).min(BACK_OFF_MAX_MS);
        let wait = Duration::from_micros(self.env.random_u64() % (longest_ms * 1000));
        self.env.sleep_until(deadline.min(self.env.now() + wait)).await;
    }
}
