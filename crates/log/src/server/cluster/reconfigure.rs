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
use crate::layout::{Change, ChangeError, Layout, TailError, lease_wait};
use crate::pos::NodeId;
use crate::server::decide::{self, DecideError};
use crate::wire::{Seal, Sealed};

/// How long acceptors may take in each phase.
const DECIDE_PATIENCE: Duration = Duration::from_millis(500);
/// How long units may take to be sealed. One that is not is left out of the next layout.
const SEAL_PATIENCE: Duration = Duration::from_millis(500);
/// The same for nodes that are taken to be gone: should they be there after all, it saves the wait for their leases.
const GONE_PATIENCE: Duration = Duration::from_millis(20);

/// Why no layout came of an attempt.
#[derive(Debug, Error)]
pub(super) enum ReconfigureError {
    /// The acceptors did not decide.
    #[error(transparent)]
    Decide(#[from] DecideError),
    /// Not enough units were sealed.
    #[error(transparent)]
    Tail(#[from] TailError),
    /// There is no such layout.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// Proposes the layout that follows `before` with `change`. On success a newer layout than `before` is decided and this node
/// knows it; it may be another's.
pub(super) async fn reconfigure(
    member: &Rc<Member>,
    before: &Layout,
    change: &Change,
) -> Result<(), ReconfigureError> {
    let env = &member.env;
    let epoch = before.epoch.next();
    let acceptors = member.acceptors(before);
    let prepared = decide::prepare(env, member.options.id, acceptors, epoch, env.now() + DECIDE_PATIENCE).await?;
    // From here on no acceptor of a majority grants a lease on the old epoch.
    let promised = env.now();
    let sealed = seal(member, before, &change.lost).await;
    let tail = before.find_tail(&sealed)?;
    let mut change = change.clone();
    // A unit that may still accept writes of the old epoch has no place in the next.
    change.lost.extend(before.in_use().into_iter().filter(|node| !sealed.contains_key(node)));
    change.lost.sort();
    change.lost.dedup();
    if before.nodes.iter().any(|node| !sealed.contains_key(&node.id)) {
        env.sleep_until(promised + lease_wait()).await;
    }
    let next = before.change(tail, &change)?;
    let decided = prepared.propose(next, env.now() + DECIDE_PATIENCE).await?;
    member.keeper.learn(decided.clone());
    member.tell(&decided);
    Ok(())
}

/// Seals the epoch of `before` at every node that can be reached: what each unit said. Nodes that are taken to be `gone` are
/// asked too, but hardly waited for.
async fn seal(member: &Rc<Member>, before: &Layout, gone: &[NodeId]) -> BTreeMap<NodeId, Sealed> {
    let now = member.env.now();
    let seal_one = async |node: NodeId| {
        let patience = if gone.contains(&node) { GONE_PATIENCE } else { SEAL_PATIENCE };
        let seal = Seal { epoch: before.epoch, extents: before.active_extents(node) };
        let answer = member.peer(node)?.call::<_, Sealed>(before.epoch, &seal, now + patience).await;
        answer.ok().map(|(sealed, _)| (node, sealed))
    };
    let nodes = before.nodes.iter().map(|node| seal_one(node.id));
    gather(nodes.collect(), |_| false).await.into_iter().flatten().flatten().collect()
}
