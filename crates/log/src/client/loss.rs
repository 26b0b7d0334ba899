//! Having a cluster go on without nodes that are gone for good, and with them half of its members, a majority of those who decide, or every replica
//! of a stripe.
//!
//! ```text
//!   the others tell their layout ─► none of those who are gone answers ─► who is left to decide promises ─► the units are sealed
//!     ─► a layout without those who are gone is accepted by all who are left to decide, and told
//! ```
//!
//! Whoever is left takes the place of a majority: an operator says that the others will never answer again (docs/protocol/loss.md). Each step may be
//! done again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::record::RecordError;
use ithaca_env::task::gather;
use ithaca_env::{Env, Time};
use thiserror::Error;

use super::connection::CallError;
use super::error::{ClientError, Phase};
use super::form::{FormError, ask, known_to, remind};
use crate::layout::{self, Layout};
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{Ballot, ClusterId, Epoch, NodeId};
use crate::wire::{
    Accept, Accepted, Account, Beat, Beaten, Message, Prepare, Promise, Refusal, Roles, Seal, Sealed, Vote,
};

/// How long nodes that are said to be gone, or endpoints, may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who has not answered the others for so long is silent: they may have begun to listen just now.
const SILENCE: Duration = Duration::from_secs(3);
/// The wait before it is begun again, because somebody else has changed something.
const AGAIN: Duration = Duration::from_millis(200);

/// Which nodes a cluster is to go on without.
#[derive(Clone, Debug)]
pub struct GivingUp {
    /// Where nodes of the cluster listen; one that is left is enough.
    pub endpoints: Vec<SocketAddr>,
    /// Those that are gone for good, all of them. What they alone held is lost.
    pub gone: Vec<NodeId>,
    /// How long all of it may take.
    pub timeout: Duration,
    /// A fault to put in force.
    pub planted: Planted,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The layout without those nodes, which all others know.
    pub layout: Layout,
    /// Positions below the end of what is left that nobody holds any more, those that were trimmed before among them; `None` if it was done before.
    /// With 0 nothing is lost that was ever acknowledged.
    pub lost: Option<u64>,
}

/// Why a cluster does not go on without nodes.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GiveUpError {
    /// The cluster has no such node. Nothing was changed.
    #[error("node {} is none of the cluster {cluster}", node.0)]
    NoMember {
        /// Which.
        node: NodeId,
        /// The cluster.
        cluster: ClusterId,
    },
    /// One that is said to be gone is there, with its data. Nothing was changed.
    #[error("node {} at {addr} is there", node.0)]
    There {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
    },
    /// One that is said to be gone is there for one that is not: it has answered it of late. Nothing was changed.
    #[error("node {} hears node {}", by.0, node.0)]
    Heard {
        /// Which.
        node: NodeId,
        /// Who hears it.
        by: NodeId,
    },
    /// One that is not said to be gone has lost what it held. Nothing was changed.
    #[error("node {} at {addr} is empty: name it too", node.0)]
    Empty {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
    },
    /// The others can go on by themselves. Nothing was changed.
    #[error("the others go on without them: nothing needs to be given up")]
    NotNeeded,
    /// All members are said to be gone. Nothing was changed.
    #[error("no node would be left")]
    NobodyLeft,
    /// No endpoint is of a cluster, or they are of two. Nothing was changed.
    #[error(transparent)]
    Unknown(ClientError),
    /// What is left makes no cluster. The epoch is over; nothing else was changed.
    #[error(transparent)]
    Layout(#[from] layout::LossError),
    /// A node that is left did not answer, or did not do as it was asked.
    #[error(transparent)]
    Node(#[from] FormError),
    /// Others were changing the cluster for all of the time.
    #[error("others are changing the cluster: not done after {waited:?}")]
    Busy {
        /// The time that there was.
        waited: Duration,
    },
}

/// Has the cluster go on without nodes that are gone for good, where it cannot by itself: from then on these are no members, whatever they alone held
/// is trimmed, and so are 65,536 positions above what is left. Never to be used while one of them may come back: what it holds is thrown away.
/// All other nodes must be there. On return they know the layout, on stable storage. Where it was done before, it only tells them.
///
/// Errors: see [`GiveUpError`]. Failed or dropped, it may be called again.
pub async fn give_up(env: &Env, giving: &GivingUp) -> Result<GivenUp, GiveUpError> {
    let deadline = env.now() + giving.timeout;
    let mut known = newest(env, &giving.endpoints, deadline).await?;
    loop {
        let step = Attempt { env, giving, before: &known, deadline };
        match step.run().await? {
            Step::Done(done) => return Ok(done),
            Step::Again(newer) => known = newer.unwrap_or(known),
        }
        if env.now() + AGAIN >= deadline {
            return Err(GiveUpError::Busy { waited: giving.timeout });
        }
        env.sleep(AGAIN).await;
    }
}

/// The newest layout that an endpoint tells.
async fn newest(env: &Env, endpoints: &[SocketAddr], deadline: Time) -> Result<Layout, GiveUpError> {
    let until = deadline.min(env.now() + PATIENCE);
    let ask = |&addr| known_to(env, (NodeId(0), addr), until);
    let told: Vec<_> = gather(endpoints.iter().map(ask).collect(), |_| false).await;
    let mut found: Result<(Layout, SocketAddr), GiveUpError> =
        Err(GiveUpError::Unknown(ClientError::NoEndpoint));
    for (told, &addr) in told.into_iter().flatten().zip(endpoints) {
        match (told, &found) {
            (Ok(Some(layout)), Ok((before, at))) if layout.cluster != before.cluster => {
                let clusters = Box::new([(before.cluster, *at), (layout.cluster, addr)]);
                return Err(GiveUpError::Unknown(ClientError::TwoClusters { clusters }));
            }
            (Ok(Some(layout)), Ok((before, _))) if layout.epoch <= before.epoch => {}
            (Ok(Some(layout)), _) => found = Ok((layout, addr)),
            (Ok(None), Err(_)) => found = Err(GiveUpError::Unknown(ClientError::NoCluster { addr })),
            (Err(error), Err(GiveUpError::Unknown(ClientError::NoEndpoint))) => {
                found = Err(match error {
                    FormError::Node { addr, error, .. } => {
                        let (epoch, phase) = (Epoch(0), Phase::Layout);
                        GiveUpError::Unknown(ClientError::Node { addr, epoch, phase, error })
                    }
                    error => error.into(),
                });
            }
            _ => {}
        }
    }
    found.map(|(layout, _)| layout)
}

/// A node, and where it listens.
type At = (NodeId, SocketAddr);

/// How far one attempt came.
enum Step {
    /// All know the layout.
    Done(GivenUp),
    /// Somebody else has changed something; the newer layout, if it is known.
    Again(Option<Layout>),
}

/// Who takes the place of a majority of those who decide: those of them who are left, who are asked for the next epoch, so that they tell what they
/// have accepted for it. Where nobody of them is, everybody who is left, for the epoch after the loss.
#[derive(Clone, Copy)]
struct Voters<'a> {
    nodes: &'a [At],
    epoch: Epoch,
}

/// One attempt, by one layout.
struct Attempt<'a> {
    env: &'a Env,
    giving: &'a GivingUp,
    before: &'a Layout,
    deadline: Time,
}

impl Attempt<'_> {
    async fn run(&self) -> Result<Step, GiveUpError> {
        let (before, gone) = (self.before, &self.giving.gone);
        let (members, rest): (Vec<At>, Vec<At>) = places(before).partition(|(node, _)| gone.contains(node));
        if members.is_empty() && before.epoch.is_after_loss_since(Epoch(0)) {
            self.tell(before, &rest).await?;
            return Ok(Step::Done(GivenUp { layout: before.clone(), lost: None }));
        }
        if let Some(&node) = gone.iter().find(|&&node| before.node(node).is_none()) {
            return Err(GiveUpError::NoMember { node, cluster: before.cluster });
        }
        if let Some(newer) = self.newer(&rest).await? {
            return Ok(Step::Again(Some(newer)));
        }
        self.check_gone(&members).await?;
        if rest.is_empty() {
            return Err(GiveUpError::NobodyLeft);
        }
        let acceptors = before.acceptors();
        let decides = |(node, _): &At| acceptors.contains(node);
        let deciding: Vec<At> = rest.iter().copied().filter(decides).collect();
        // Who does not hear most of the members proposes nothing.
        let are_heard = 2 * rest.len() > before.nodes.len();
        if are_heard && 2 * deciding.len() > acceptors.len() && before.check_sealable(gone).is_ok() {
            return Err(GiveUpError::NotNeeded);
        }
        self.tell(before, &rest).await?;
        if let Err(heard) = self.check_unheard(&rest).await {
            // By a later layout they are watched by nobody any more.
            return match self.newer(&rest).await? {
                Some(newer) => Ok(Step::Again(Some(newer))),
                None => Err(heard),
            };
        }
        let voters = match deciding.is_empty() {
            true => Voters { nodes: &rest, epoch: before.epoch.after_loss() },
            false => Voters { nodes: &deciding, epoch: before.epoch.next() },
        };
        let done = self.decide(voters, &rest).await;
        // Who was told of a later layout meanwhile refuses what is asked by this one.
        match done {
            Err(GiveUpError::Node(FormError::Node { error: CallError::Refused(refusal), .. }))
                if is_of_another_epoch(&refusal) =>
            {
                Ok(Step::Again(None))
            }
            done => done,
        }
    }

    /// A layout that one of the others knows and that is newer, if there is one. Every one of them must be there.
    async fn newer(&self, rest: &[At]) -> Result<Option<Layout>, GiveUpError> {
        let ask = |&at| known_to(self.env, at, self.deadline);
        let told = gather(rest.iter().map(ask).collect(), Result::is_err).await;
        let mut newest: Option<Layout> = None;
        for (&(node, addr), told) in rest.iter().zip(told) {
            // One that failed has ended the others.
            let Some(told) = told else { continue };
            let layout = told?.ok_or(GiveUpError::Empty { node, addr })?;
            if layout.cluster != self.before.cluster {
                return Err(FormError::Formed { node, addr, cluster: layout.cluster }.into());
            }
            let least = newest.as_ref().unwrap_or(self.before).epoch;
            newest = if layout.epoch > least { Some(layout) } else { newest };
        }
        Ok(newest)
    }

    /// Refuses to give up who answers as a member. An empty server may be there already, to take the place.
    async fn check_gone(&self, members: &[At]) -> Result<(), GiveUpError> {
        let until = self.deadline.min(self.env.now() + PATIENCE);
        let ask = |&at| known_to(self.env, at, until);
        let told = gather(members.iter().map(ask).collect(), |_| false).await;
        for (&(node, addr), told) in members.iter().zip(told) {
            if matches!(told, Some(Ok(Some(layout))) if layout.cluster == self.before.cluster) {
                return Err(GiveUpError::There { node, addr });
            }
        }
        Ok(())
    }

    /// Refuses to give up who is there for the others, if not for whoever asks: they go on together.
    async fn check_unheard(&self, rest: &[At]) -> Result<(), GiveUpError> {
        let until = self.deadline.min(self.env.now() + SILENCE);
        // It tells of nobody, and is nobody whom they watch.
        let beat = Beat(Account::default());
        loop {
            let told: Vec<Beaten> = self.ask_all(rest, |_| beat.clone()).await?;
            let heard = rest.iter().zip(told).find_map(|(&(by, _), Beaten(account))| {
                let is_heard = |node: &&NodeId| !account.suspects.contains(node);
                self.giving.gone.iter().find(is_heard).map(|&node| GiveUpError::Heard { node, by })
            });
            match heard {
                None => return Ok(()),
                Some(heard) if self.env.now() + AGAIN >= until => return Err(heard),
                Some(_) => self.env.sleep(AGAIN).await,
            }
        }
    }

    /// Has the layout without those who are gone decided by all `voters`, and tells `rest`. What was accepted before, and may have been
    /// decided, is completed instead.
    async fn decide(&self, voters: Voters<'_>, rest: &[At]) -> Result<Step, GiveUpError> {
        let mut own = None;
        loop {
            let (ballot, found) = match self.prepare(voters).await? {
                Ok(prepared) => prepared,
                Err(newer) => return Ok(Step::Again(newer)),
            };
            let found = found.filter(|_| !self.giving.planted.is(PlantedBug::LossIgnoresAccepted));
            let next = match (found, own.take()) {
                (Some(found), _) => found,
                // Promises are only replaced by higher ones: the seals and the end of the leases still hold.
                (None, Some(own)) => own,
                (None, None) => self.ended(rest).await?,
            };
            let accept = Accept { ballot, record: next.encode() };
            let accepted = self.ask_all::<_, Accepted>(voters.nodes, |_| accept.clone()).await?;
            if accepted.iter().all(|accepted| matches!(accepted.vote, Vote::Given { .. })) {
                self.tell(&next, rest).await?;
                let parts = self.before.lost_by(&next);
                let all: u64 = parts.iter().map(|part| part.addresses.count()).sum();
                let lost = all.saturating_sub(limits::FILL_AHEAD_MAX_COUNT);
                let is_without = self.giving.gone.iter().all(|&node| next.node(node).is_none());
                return Ok(match is_without {
                    true => Step::Done(GivenUp { layout: next, lost: Some(lost) }),
                    false => Step::Again(Some(next)),
                });
            }
            own = Some(next);
        }
    }

    /// Prepares every one of `voters`, so that nothing is decided there below the ballot, nor any lease granted: that ballot, and what was
    /// accepted at the highest one before. Else a newer layout, if one is known, that is decided.
    async fn prepare(
        &self,
        voters: Voters<'_>,
    ) -> Result<Result<(Ballot, Option<Layout>), Option<Layout>>, GiveUpError> {
        let Voters { nodes, epoch } = voters;
        let proposer = nodes.iter().map(|&(node, _)| node).min().unwrap_or_default();
        let mut round = 1;
        while self.env.now() < self.deadline {
            let ballot = Ballot { round, proposer };
            let prepare = Prepare { epoch, ballot };
            let (mut found, mut is_overtaken) = (None, false);
            for promise in self.ask_all::<_, Promise>(nodes, |_| prepare).await? {
                let vote = promise.vote.try_map(|record: Bytes| Layout::decode(&record));
                match vote.map_err(|error| self.bad_layout(nodes, error))? {
                    Vote::Decided { layout } => return Ok(Err(Some(layout))),
                    Vote::Overtaken { promised } => {
                        // Another one that tries the same does not meet it again and again.
                        round = round.max(promised.round.saturating_add(1 + self.env.random_u64() % 16));
                        is_overtaken = true;
                    }
                    Vote::Given { accepted } => {
                        let at = |accepted: &Option<(Ballot, Layout)>| accepted.as_ref().map(|(at, _)| *at);
                        found = if at(&accepted) > at(&found) { accepted } else { found };
                    }
                }
            }
            if !is_overtaken {
                return Ok(Ok((ballot, found.map(|(_, layout)| layout))));
            }
        }
        Ok(Err(None))
    }

    /// Ends the epoch at the units that are left, and waits until nobody has a lease on it: the layout that goes on with what they hold.
    async fn ended(&self, rest: &[At]) -> Result<Layout, GiveUpError> {
        let is_unit =
            |&(node, _): &At| self.before.node(node).is_some_and(|node| node.roles.has(Roles::UNIT));
        let units: Vec<At> = rest.iter().copied().filter(is_unit).collect();
        let seal = |node| Seal { epoch: self.before.epoch, extents: self.before.active_extents(node) };
        let sealed: Vec<Sealed> = self.ask_all(&units, seal).await?;
        self.env.sleep(Duration::from_millis(limits::LEASE_WAIT_MS)).await;
        let sealed: BTreeMap<NodeId, Sealed> = units.iter().map(|&(node, _)| node).zip(sealed).collect();
        Ok(self.before.without(&self.giving.gone, &sealed)?)
    }

    /// Tells nodes of a layout that was decided, until all have it on stable storage.
    async fn tell(&self, layout: &Layout, nodes: &[At]) -> Result<(), GiveUpError> {
        let told = nodes.iter().map(|&at| remind(self.env, at, layout, self.deadline));
        let told = gather(told.collect(), Result::is_err).await;
        told.into_iter().flatten().collect::<Result<(), _>>().map_err(GiveUpError::Node)
    }

    /// What every one of `nodes` answers, in their order.
    async fn ask_all<M: Message, R: Message>(
        &self,
        nodes: &[At],
        message: impl Fn(NodeId) -> M,
    ) -> Result<Vec<R>, GiveUpError> {
        let ask_one = async |at: At| ask::<M, R>(self.env, at, &message(at.0), self.deadline).await;
        let answers = gather(nodes.iter().map(|&at| ask_one(at)).collect(), Result::is_err).await;
        answers.into_iter().flatten().collect::<Result<Vec<R>, _>>().map_err(GiveUpError::Node)
    }

    fn bad_layout(&self, nodes: &[At], error: RecordError) -> GiveUpError {
        let (node, addr) = nodes[0];
        FormError::BadLayout { node, addr, error }.into()
    }
}

/// The nodes of a layout and where they listen. One whose address is none is never reached.
fn places(layout: &Layout) -> impl Iterator<Item = At> {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    layout.nodes.iter().map(move |node| (node.id, node.address.parse().unwrap_or(nowhere)))
}

/// Whether whoever refuses so knows of another epoch.
fn is_of_another_epoch(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::WrongEpoch { .. } | Refusal::Sealed { .. } | Refusal::NoLayout { .. })
}
