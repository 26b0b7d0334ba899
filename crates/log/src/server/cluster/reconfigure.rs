//! From one layout to the next: prepare, seal, decide the tail once, propose, tell everybody.
//!
//! Nothing here has to be believed for safety: the units refuse what is sealed, the acceptors decide one layout an epoch, and
//! what was decided counts, whoever proposed it (docs/protocol/reconfigure.md).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::task::gather;
use thiserror::Error;

use super::member::Member;
use super::rebuild;
use crate::client::{CallError, ClientError};
use crate::layout::{Change, ChangeError, Layout, Node as Listed, NodeState, TailError};
use crate::pos::NodeId;
use crate::server::decide::{Preparation, Prepared, Proposal, learn, prepare};
use crate::wire::{Refusal, Roles, Seal, Sealed};

/// How long acceptors may take in each phase.
const DECIDE_PATIENCE: Duration = Duration::from_millis(500);
/// How long units may take to be sealed. One that is not is left out of the next layout.
const SEAL_PATIENCE: Duration = Duration::from_millis(500);
/// The same for nodes that are taken to be gone, as long as they may hold a lease: should they be there after all, it saves the wait for
/// that.
const GONE_PATIENCE: Duration = Duration::from_millis(20);

/// Why no layout came of an attempt.
#[derive(Debug, Error)]
pub(super) enum ReconfigureError {
    /// The acceptors did not decide.
    #[error(transparent)]
    Decide(#[from] ClientError),
    /// Not enough units were sealed.
    #[error(transparent)]
    Tail(#[from] TailError),
    /// There is no such layout.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// A newer layout that was decided, and that this node knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// The one that was proposed; when that began nobody had been told of any of its epoch.
    Own,
    /// Maybe another's.
    Any,
}

/// Proposes the layout that follows `before` with `change`.
pub(super) async fn reconfigure(
    member: &Rc<Member>,
    before: &Layout,
    change: &Change,
) -> Result<Decided, ReconfigureError> {
    let (env, epoch) = (&member.env, before.epoch.next());
    // What cannot be is found out before anything is sealed. What others may have accepted is driven home all the same.
    before.change(before.tail(), change)?;
    if !member.keeper.is_touched() {
        before.check_sealable(&member.detector.borrow().suspects())?;
    }
    let proposal = Proposal {
        me: member.options.id,
        acceptors: member.acceptors(before),
        before: Some(before.clone()),
        planted: member.options.planted,
    };
    let prepared = match prepare(env, proposal, env.now() + DECIDE_PATIENCE).await? {
        Preparation::Open(prepared) => prepared,
        Preparation::Decided(layout) => {
            member.spread(before, layout);
            return Ok(Decided::Any);
        }
    };
    let found = prepared.found();
    let is_first = found.is_none();
    let next = match found {
        // It is driven home: its own proposer has sealed and waited for it.
        Some(found) => found,
        None => {
            let sealed = seal(member, before, change, &prepared).await;
            let tail = before.find_tail(&sealed)?;
            let mut change = change.clone();
            change.trimmed = member.trimmed.get();
            // A unit that may still accept writes of the old epoch has no place in the next. Nor has one that comes in and is not sure to have
            // sealed it: by that an older copy of it is known (outdated.rs).
            let units = change.joined.iter().filter(|node| node.roles.has(Roles::UNIT));
            let coming: Vec<NodeId> = units.map(|node| node.id).collect();
            let named = before.missed_if_lost().chain(coming);
            change.lost.extend(named.filter(|node| !sealed.contains_key(node)));
            change.lost.sort();
            change.lost.dedup();
            let mut completed = Vec::new();
            for copy in change.completed {
                // A copy that could not be made whole is looked at again, and listed another time.
                let is_sealed = |node| sealed.contains_key(&node);
                match rebuild::take_last_trims(member, before, epoch, &copy, is_sealed).await {
                    Ok(()) => completed.push(copy),
                    Err(why) => {
                        tracing::info!(node = member.options.id.0, %why, "a copy is not listed yet");
                        member.completed.borrow_mut().retain(|completed| *completed != copy);
                    }
                }
            }
            change.completed = completed;
            // Nodes that were out already serve nothing of the old epoch that could be asked for.
            let unsealed =
                before.serving().chain([before.sequencer]).filter(|node| !sealed.contains_key(node));
            if let Some(left) = unsealed.map(|node| prepared.leases_left(node)).max() {
                env.sleep(left).await;
            }
            before.change(tail, &change)?
        }
    };
    let decided = prepared.propose(&next, env.now() + DECIDE_PATIENCE).await?;
    let is_own = is_first && decided == next;
    member.spread(before, decided);
    Ok(if is_own { Decided::Own } else { Decided::Any })
}

/// Seals the epoch of `before` at every node that can be reached: what each unit said. One that does not know that layout is told it.
/// Nodes that are taken to be gone, or are out already and do not come in, are asked too, but hardly waited for: every reconfiguration would
/// stand still for one that is dead.
async fn seal(
    member: &Rc<Member>,
    before: &Layout,
    change: &Change,
    prepared: &Prepared,
) -> BTreeMap<NodeId, Sealed> {
    let now = member.env.now();
    let seal_one = async |Listed { id: node, state, .. }: &Listed| {
        let (node, is_out) = (*node, *state == NodeState::Out);
        let comes = change.joined.iter().any(|joined| joined.id == node);
        let patience = match (is_out && !comes) || change.lost.contains(&node) {
            true => GONE_PATIENCE.min(prepared.leases_left(node)),
            false => SEAL_PATIENCE,
        };
        let (peer, deadline) = (member.peer(before, node)?, now + patience);
        let seal = Seal { epoch: before.epoch, extents: before.active_extents(node) };
        let ask = || peer.call::<_, Sealed>(before.epoch, &seal, deadline);
        let answer = match ask().await {
            Err(CallError::Refused(Refusal::NoLayout { .. })) => {
                learn(std::slice::from_ref(&peer), before, deadline).await;
                ask().await
            }
            answer => answer,
        };
        answer.ok().map(|(sealed, _, _)| (node, sealed))
    };
    let nodes = before.nodes.iter().map(&seal_one);
    gather(nodes.collect(), |_| false).await.into_iter().flatten().flatten().collect()
}
