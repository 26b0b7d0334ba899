//! Changing who belongs to a cluster that is at work.
//!
//! ```text
//!   add      is the node free? ─► the cluster lists it ─► as replace
//!   remove   the cluster goes on without it ─► others copy what it holds ─► the cluster lists it no more
//!   replace  the cluster goes on without it ─► an empty node is told ─► it hears the others and joins
//! ```
//!
//! Each step may be done again, so that a call that was interrupted, or ran out of time, is simply made once more.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;
use ithaca_env::task::gather;
use thiserror::Error;

use super::Client;
use super::error::{ClientError, Phase};
use super::form::{FormError, known_to, offers_of, remind, tell};
use super::view::View;
use crate::layout::{Change, ChangeError, Layout, NodeState};
use crate::limits;
use crate::pos::{ClusterId, Epoch, NodeId};
use crate::wire::{ChangeCluster, ClusterChanged, GetLayout, LayoutRecord, Roles};

/// How often it is looked whether a change is complete.
const LOOK: Duration = Duration::from_millis(50);
/// What was seen so short a time before the end is told where the last look does not end in time.
const RECENT: Duration = Duration::from_secs(1);
/// How long a node may take to tell of an old layout.
const HISTORY_PATIENCE: Duration = Duration::from_millis(500);
/// How long a node may take to have a change decided before another one is asked.
const ATTEMPT: Duration = Duration::from_secs(3);

/// Why a cluster was not changed, or not wholly.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum MembersError {
    /// There is no such layout. Nothing was changed.
    #[error(transparent)]
    Change(ChangeError),
    /// There is no such layout as long as members are out, have no room, or are leaving. Nothing was changed.
    #[error("{0}; that may be otherwise when all members are in use, have room, or are gone")]
    NotNow(ChangeError),
    /// The cluster did not answer, or could not decide in time.
    #[error(transparent)]
    Cluster(#[from] ClientError),
    /// The node that is to be added belongs to another cluster, or did not do as it was asked.
    #[error(transparent)]
    Node(#[from] FormError),
    /// The node that is to be added was a member of this cluster before.
    #[error(
        "node {} at {addr} was removed from cluster {cluster}; start it with an empty data directory", node.0)]
    Removed {
        /// Which.
        node: NodeId,
        /// Where.
        addr: SocketAddr,
        /// The cluster.
        cluster: ClusterId,
    },
    /// The node that is to be replaced or removed is none of the cluster.
    #[error("node {} is none of the cluster {cluster}", node.0)]
    NoMember {
        /// Which.
        node: NodeId,
        /// The cluster.
        cluster: ClusterId,
    },
    /// Every replica of a stripe is gone, so that nobody can tell where the log ends: no layout is decided before one of them is there again
    /// with its data.
    #[error("nothing can be changed: {}", alone(nodes))]
    Lost {
        /// The replicas.
        nodes: Vec<NodeId>,
    },
    /// The node that is to be replaced is in use.
    #[error("node {} is in use: the cluster has not missed it in {waited:?}", node.0)]
    InUse {
        /// Which.
        node: NodeId,
        /// The time that there was.
        waited: Duration,
    },
    /// The node is a member, and was not in use in time. It joins by itself as soon as it hears the others and they hear it.
    #[error(
        "node {} is a member and not in use yet after {waited:?}; it joins by itself when it and the others hear each other", node.0)]
    Joining {
        /// Which.
        node: NodeId,
        /// The time that there was.
        waited: Duration,
    },
    /// The cluster goes on without the node, and not everything that it holds was copied in time. That goes on by itself.
    #[error(
        "node {} is leaving still after {waited:?}: others are copying {stripes} stripes that it holds", node.0)]
    Leaving {
        /// Which.
        node: NodeId,
        /// Stripes that name it.
        stripes: usize,
        /// The time that there was.
        waited: Duration,
    },
}

impl Client {
    /// Makes a server with an empty data directory, which listens at `addr`, a member of the cluster with the roles that it offers, and waits
    /// until it is in use: it takes part in what is appended from then on. Returns that layout. A node that is in use already is left alone.
    ///
    /// Errors: see [`MembersError`]. Dropped or failed, it may be called again.
    pub async fn add_node(&self, node: NodeId, addr: SocketAddr) -> Result<Rc<Layout>, MembersError> {
        self.unless_lost(self.add(node, addr)).await
    }

    async fn add(&self, node: NodeId, addr: SocketAddr) -> Result<Rc<Layout>, MembersError> {
        let (inner, deadline) = (&self.inner, self.inner.deadline());
        let add = |offers: Roles| ChangeCluster::Add { node, address: addr.to_string(), offers };
        let layout = self.layout().await?;
        // Whatever it offers.
        if let Some(change) = layout.change_for(&add(Roles::OFFERED)) {
            layout.change(layout.tail(), &change).map_err(|error| refused(&layout, &change, error))?;
        }
        let is_used = |layout: &Layout| layout.in_use().any(|used| used == node);
        if is_used(&layout) {
            return Ok(layout);
        }
        let known = known_to(&inner.env, (node, addr), deadline).await?;
        if let Some(known) = &known {
            let cluster = known.cluster;
            if cluster != layout.cluster {
                return Err(FormError::Formed { node, addr, cluster }.into());
            }
            // Whoever answered first may not have heard yet that it was added, by an earlier call say.
            let newest = if known.epoch > layout.epoch { known } else { &*layout };
            if newest.node(node).is_none() {
                return Err(MembersError::Removed { node, addr, cluster });
            }
        }
        let asked = add(offers_of(&inner.env, (node, addr), deadline).await?);
        let layout = self.change_cluster(&asked, layout.epoch, deadline).await?;
        match known {
            Some(_) => remind(&inner.env, (node, addr), &layout, deadline).await?,
            // It may have been a member before, and have decided more than this layout knows of. By one that is younger than its emptiness it
            // joins as who is replaced does.
            None => match self.change_cluster(&ChangeCluster::Replace { node }, layout.epoch, deadline).await
            {
                Ok(younger) => tell(&inner.env, (node, addr), &younger, deadline).await?,
                // What an earlier call has told it came late.
                Err(MembersError::NotNow(ChangeError::InUse { .. })) => {}
                Err(error) => return Err(error),
            },
        }
        let layout = self.wait_until(deadline, is_used).await?;
        layout.map_err(|_| MembersError::Joining { node, waited: inner.options.timeout })
    }

    /// Has a node leave the cluster for good, and waits until it is no member any more. What it holds is copied to others first,
    /// so that there are never fewer copies than before. Returns the layout without it. A node that is none of the cluster is
    /// left alone.
    ///
    /// Errors: see [`MembersError`]. Dropped or failed, it may be called again.
    pub async fn remove_node(&self, node: NodeId) -> Result<Rc<Layout>, MembersError> {
        self.unless_lost(self.remove(node)).await
    }

    async fn remove(&self, node: NodeId) -> Result<Rc<Layout>, MembersError> {
        let deadline = self.inner.deadline();
        let asked = ChangeCluster::Remove { node };
        let layout = self.layout().await?;
        if let Some(change) = layout.change_for(&asked) {
            layout.change(layout.tail(), &change).map_err(|error| refused(&layout, &change, error))?;
        }
        self.change_cluster(&asked, layout.epoch, deadline).await?;
        let layout = self.wait_until(deadline, |layout| layout.node(node).is_none()).await?;
        layout.map_err(|layout| {
            let stripes = layout.stripes_of(node);
            MembersError::Leaving { node, stripes, waited: self.inner.options.timeout }
        })
    }

    /// Has a server with an empty data directory take the place of a node that has lost its own, once the cluster has gone on without
    /// that node: in a layout that counts on its copies it would serve what it does not have. Those who decide layouts decide one first in
    /// which it is none of them: most of them must be there, without it. Returns the layout that it was told of; it is used as soon as the
    /// others hear it. A node that the cluster has missed, as far back as the nodes remember, and that is in use again and knows that, is left
    /// alone: the layout that is returned has it in use. A server that does not answer, or belongs to another cluster, costs the cluster nothing.
    ///
    /// Errors: see [`MembersError`]. Dropped or failed, it may be called again.
    pub async fn replace_node(&self, node: NodeId, addr: SocketAddr) -> Result<Rc<Layout>, MembersError> {
        self.unless_lost(self.replace(node, addr)).await
    }

    async fn replace(&self, node: NodeId, addr: SocketAddr) -> Result<Rc<Layout>, MembersError> {
        let (inner, deadline) = (&self.inner, self.inner.deadline());
        let layout = self.layout().await?;
        let cluster = layout.cluster;
        let known = layout.node(node).ok_or(MembersError::NoMember { node, cluster })?;
        let (known, address) = (known.address.clone(), addr.to_string());
        if known != address {
            return Err(MembersError::Change(ChangeError::OtherAddress { node, known, address }));
        }
        // Nothing is changed for a server that cannot take its place.
        let told = known_to(&inner.env, (node, addr), deadline).await?;
        if let Some(other) = told.as_ref().filter(|told| told.cluster != cluster) {
            return Err(FormError::Formed { node, addr, cluster: other.cluster }.into());
        }
        let is_missed = |layout: &Layout| layout.in_use().all(|used| used != node);
        // An empty one knows of no cluster.
        if !is_missed(&layout) && told.is_some() && self.was_missed(node, deadline).await {
            return Ok(layout);
        }
        let missed = self.wait_until(deadline, is_missed).await?;
        missed.map_err(|_| MembersError::InUse { node, waited: inner.options.timeout })?;
        // What it promised and accepted as one of those who decide is gone too. So it is told of a layout in which it decides nothing, and
        // which is younger than the loss: in an older one it may have decided more.
        let layout = self.change_cluster(&ChangeCluster::Replace { node }, layout.epoch, deadline).await?;
        tell(&inner.env, (node, addr), &layout, deadline).await?;
        Ok(layout)
    }

    /// Whether the cluster has missed a node before, as far back as the nodes remember.
    async fn was_missed(&self, node: NodeId, deadline: Time) -> bool {
        let left = deadline.since(self.inner.env.now());
        let before = self.inner.env.timeout(left, self.layouts()).await;
        let is_out = |layout: &Rc<Layout>| layout.node(node).is_some_and(|node| node.state == NodeState::Out);
        before.is_ok_and(|layouts| layouts.is_ok_and(|layouts| layouts.iter().any(is_out)))
    }

    /// Has an append need `count` replicas from now on: with fewer nodes in use nothing is appended. Returns a layout that
    /// says so.
    ///
    /// Errors: see [`MembersError`]; a count of 0, or above what is wanted, is no layout.
    pub async fn set_min_replicas(&self, count: u16) -> Result<Rc<Layout>, MembersError> {
        let asked = ChangeCluster::MinReplicas { count };
        self.unless_lost(self.change_cluster(&asked, Epoch(0), self.inner.deadline())).await
    }

    /// Has the cluster decide a layout that is as `asked`; returns the first such layout that is known, of the epoch `from` or a later one.
    async fn change_cluster(
        &self,
        asked: &ChangeCluster,
        from: Epoch,
        deadline: Time,
    ) -> Result<Rc<Layout>, MembersError> {
        let inner = &self.inner;
        let mut replaced_in = None;
        // The nodes in use one after the other: one may be cut off.
        for tried in 0.. {
            inner.forget_view(&inner.view());
            let view = inner.view_by(deadline).await?;
            if view.layout.epoch < from {
                // Whoever answered first has not heard of it yet.
                inner.pause(Phase::Layout, deadline, None).await?;
                continue;
            }
            let Some(change) = view.layout.change_for(asked) else { return Ok(view.layout) };
            if replaced_in.is_some_and(|epoch| view.layout.epoch >= epoch) {
                return Ok(view.layout);
            }
            let layout = &view.layout;
            layout.change(layout.tail(), &change).map_err(|error| refused(layout, &change, error))?;
            let units: Vec<NodeId> = view.layout.units().collect();
            let node = units.get(tried % units.len().max(1)).copied().unwrap_or(view.layout.sequencer);
            let until = deadline.min(inner.env.now() + ATTEMPT);
            let asked = inner.call::<_, ClusterChanged>(&view, node, Phase::Layout, asked, until).await;
            match asked {
                Ok((changed, _, _)) if !change.replaced.is_empty() => replaced_in = Some(changed.epoch),
                Ok(_) => {}
                Err(error) => inner.pause(Phase::Layout, deadline, Some(error)).await?,
            }
        }
        unreachable!("it is tried until the deadline")
    }

    /// The layouts that were decided, as far back as somebody who decides them remembers, the newest first.
    pub async fn layouts(&self) -> Result<Vec<Rc<Layout>>, ClientError> {
        let (inner, deadline) = (&self.inner, self.inner.deadline());
        inner.forget_view(&inner.view());
        let view = inner.view_by(deadline).await?;
        let mut layouts = vec![Rc::clone(&view.layout)];
        while layouts.len() < limits::LAYOUT_HISTORY_MAX_COUNT {
            let Epoch(next) = layouts[layouts.len() - 1].epoch;
            let mut found = self.layout_of(&view, next.checked_sub(1), deadline).await;
            if found.is_none() {
                // The one before may be that of a cluster that had more nodes.
                found = self.layout_of(&view, next.checked_sub(limits::LOSS_EPOCHS), deadline).await;
            }
            let Some(layout) = found else { break };
            layouts.push(Rc::new(layout));
        }
        Ok(layouts)
    }

    /// The layout of an epoch, if there is one and somebody who decides them remembers it.
    async fn layout_of(&self, view: &View, epoch: Option<u64>, deadline: Time) -> Option<Layout> {
        let inner = &self.inner;
        let epoch = epoch.filter(|&epoch| epoch > 0)?;
        let asked = GetLayout { epoch: Some(Epoch(epoch)) };
        let ask = async |node: NodeId| {
            let until = deadline.min(inner.env.now() + HISTORY_PATIENCE);
            let record = inner.call::<_, LayoutRecord>(view, node, Phase::Layout, &asked, until).await;
            record.ok().and_then(|(record, _, _)| Layout::decode(&record.record).ok())
        };
        let asking = view.layout.acceptors().into_iter().map(ask).collect();
        gather(asking, Option::is_some).await.into_iter().flatten().flatten().next()
    }

    /// Looks at the newest layout until it is as wanted; the latest one as an error if it is not by `deadline`.
    async fn wait_until(
        &self,
        deadline: Time,
        is_so: impl Fn(&Layout) -> bool,
    ) -> Result<Result<Rc<Layout>, Rc<Layout>>, ClientError> {
        let inner = &self.inner;
        let mut seen: Option<(Time, Rc<Layout>)> = None;
        loop {
            inner.forget_view(&inner.view());
            let layout = match inner.view_by(deadline).await {
                Ok(view) => view.layout,
                // The time was over in the middle of a look: what it was before says more.
                Err(error) => {
                    let is_recent = |(at, _): &(Time, _)| inner.env.now().since(*at) < RECENT;
                    return seen.filter(is_recent).map(|(_, layout)| Err(layout)).ok_or(error);
                }
            };
            if is_so(&layout) {
                return Ok(Ok(layout));
            }
            if inner.env.now() + LOOK >= deadline {
                return Ok(Err(layout));
            }
            seen = Some((inner.env.now(), layout));
            inner.env.sleep(LOOK).await;
        }
    }
}

/// Why a change that makes no layout, because of `error`, is refused.
fn refused(layout: &Layout, change: &Change, error: ChangeError) -> MembersError {
    match layout.may_change_later(change, &error) {
        true => MembersError::NotNow(error),
        false => MembersError::Change(error),
    }
}

/// That only these nodes may hold what was acknowledged last, in words.
fn alone(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    let Some((last, others @ [_, ..])) = names.split_last() else {
        let node = names.concat();
        return format!(
            "node {node} alone may hold entries that were acknowledged, and is not there with its data; start it with that"
        );
    };
    let others = others.join(", ");
    format!(
        "nodes {others} and {last} alone may hold entries that were acknowledged, and none is there with its data; start one of them with that"
    )
}

/// What a node of the cluster is doing, in a word: `up`, `joining`, `copying`, `full` or `leaving`, as far as `layout` tells.
pub fn standing(layout: &Layout, node: NodeId) -> &'static str {
    match layout.node(node).map(|node| node.state) {
        Some(NodeState::Leaving) => "leaving",
        Some(NodeState::Out) => "joining",
        Some(NodeState::Full) => "full",
        Some(NodeState::InUse) if layout.missing().iter().any(|copy| copy.node == node) => "copying",
        _ => "up",
    }
}
