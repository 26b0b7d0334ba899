//! The drives of a node's unit: which there are, one more, one less.
//!
//! A node that has taken an order goes on with it whether it is waited for or not, so that a call that was interrupted, or ran out of
//! time, is simply made once more.

use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Time;
use thiserror::Error;

use super::error::{ClientError, Phase};
use super::view::View;
use super::{Client, Inner};
use crate::pos::NodeId;
use crate::wire::{ChangeDrives, DriveChange, DriveRefusal, Drives, DrivesChanged, GetDrives, UnitDrive};

/// How long one question for a change stands, in milliseconds.
const WAIT_MS: u32 = 1000;
/// So soon before the deadline the node is not asked again.
const LAST_LOOK: Duration = Duration::from_millis(50);

const _: () = assert!(WAIT_MS <= crate::limits::DRIVES_WAIT_MAX_MS);

/// Why a node's drives are not known, or not changed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum DrivesError {
    /// The cluster has no such node.
    #[error("the cluster has no node {} (it has {})", node.0, names(has))]
    NoNode {
        /// Which was meant.
        node: NodeId,
        /// Those that it has.
        has: Vec<NodeId>,
    },
    /// The node does not do so.
    #[error("node {}: {told}", node.0)]
    Refused {
        /// Which.
        node: NodeId,
        /// Why.
        why: DriveRefusal,
        /// The same with the drive's name.
        told: String,
    },
    /// The node has not finished in time. It goes on.
    #[error("node {} is not done after {waited:?}: {}", node.0, left_over(*left))]
    UnderWay {
        /// Which.
        node: NodeId,
        /// Segments that hold entries still.
        left: u64,
        /// The time that there was.
        waited: Duration,
    },
    /// The cluster or the node did not answer.
    #[error(transparent)]
    Cluster(#[from] ClientError),
}

fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(" ")
}

/// What is left to do of a change, in words.
fn left_over(segments: u64) -> String {
    match segments {
        0 => "it goes on by itself".to_owned(),
        1 => "it goes on by itself, with one segment that holds entries still".to_owned(),
        left => format!("it goes on by itself, with {left} segments that hold entries still"),
    }
}

impl Client {
    /// The drives of a node's unit, in the order of its chain.
    pub async fn drives(&self, node: NodeId) -> Result<Vec<UnitDrive>, DrivesError> {
        let deadline = self.inner.deadline();
        self.inner.drives(node, deadline).await
    }

    /// Adds a link to the chain of a node's unit, of the drives at these absolute paths of the node's machine: one, or the sides of a
    /// mirrored link. A path that is not there becomes a file of so many bytes, 0 for as many as the node is set to. On return they are
    /// the unit's, durably; sides are made equal in the background. What is so already is left alone.
    ///
    /// Errors: see [`DrivesError`]. Dropped or failed, it may be called again. Panics if there is no path, or more than a link has sides.
    pub async fn add_drives(
        &self,
        node: NodeId,
        paths: Vec<String>,
        create_bytes: u64,
    ) -> Result<(), DrivesError> {
        let change = DriveChange::Add { paths, create_bytes };
        self.inner.change_drives(node, change, self.inner.deadline()).await
    }

    /// Adds sides to the link that the drive at `of` is of; everything else as of [`add_drives`](Self::add_drives).
    pub async fn mirror_drive(
        &self,
        node: NodeId,
        of: String,
        paths: Vec<String>,
        create_bytes: u64,
    ) -> Result<(), DrivesError> {
        let change = DriveChange::Mirror { of, paths, create_bytes };
        self.inner.change_drives(node, change, self.inner.deadline()).await
    }

    /// Has a node's unit do without the link of the drives at these paths, all of its sides that are there. What is needed of it is moved to
    /// the others first. On return they are none of the unit's, durably, and blank.
    ///
    /// Errors: see [`DrivesError`]; a drive that the unit has not is refused with `NoSuchDrive`. Dropped or failed, it may be called again.
    /// Panics if there is no path, or more than a link has sides.
    pub async fn remove_drives(&self, node: NodeId, paths: Vec<String>) -> Result<(), DrivesError> {
        let (inner, deadline) = (&self.inner, self.inner.deadline());
        let before = inner.drives(node, deadline).await?;
        let was_there = before.iter().any(|drive| paths.contains(&drive.path));
        match inner.change_drives(node, DriveChange::Remove { paths }, deadline).await {
            // It left between two questions, or the answer was lost.
            Err(DrivesError::Refused { why: DriveRefusal::NoSuchDrive, .. }) if was_there => Ok(()),
            removed => removed,
        }
    }
}

impl Inner {
    async fn drives(self: &Rc<Self>, node: NodeId, deadline: Time) -> Result<Vec<UnitDrive>, DrivesError> {
        let ask = async |inner: &Rc<Inner>, view: &View| {
            inner.call::<_, Drives>(view, node, Phase::Drives, &GetDrives, deadline).await
        };
        let (listed, _, _) = self.ask_member(node, deadline, ask).await?;
        Ok(listed.drives)
    }

    /// Has a node change its drives, and waits until it has, or `deadline` is near.
    async fn change_drives(
        self: &Rc<Self>,
        node: NodeId,
        change: DriveChange,
        deadline: Time,
    ) -> Result<(), DrivesError> {
        loop {
            let left = deadline.since(self.env.now());
            let wait_ms = WAIT_MS.min((left / 2).as_millis() as u32);
            let asked = ChangeDrives { node, wait_ms, change: change.clone() };
            let ask =
                async |inner: &Rc<Inner>, view: &View| inner.ask_to_change(view, &asked, deadline).await;
            match self.ask_member(node, deadline, ask).await? {
                DrivesChanged::Done => return Ok(()),
                DrivesChanged::Refused { why, told } => return Err(DrivesError::Refused { node, why, told }),
                DrivesChanged::UnderWay { left } if self.env.now() + LAST_LOOK >= deadline => {
                    return Err(DrivesError::UnderWay { node, left, waited: self.options.timeout });
                }
                DrivesChanged::UnderWay { .. } => {}
            }
        }
    }

    /// Asks once. That the answer takes a while says nothing of the node.
    async fn ask_to_change(
        self: &Rc<Self>,
        view: &View,
        asked: &ChangeDrives,
        deadline: Time,
    ) -> Result<DrivesChanged, ClientError> {
        let connection = self.connection(view, asked.node, deadline).await?;
        let answer = connection.call_standing(&self.env, view.layout.epoch, asked, deadline).await;
        let answer = answer.map_err(|error| self.call_error(view, asked.node, Phase::Drives, error));
        answer.map(|(changed, _, _)| changed)
    }

    /// Asks a node until it answers, in views that name it.
    async fn ask_member<T>(
        self: &Rc<Self>,
        node: NodeId,
        deadline: Time,
        ask: impl AsyncFn(&Rc<Inner>, &View) -> Result<T, ClientError>,
    ) -> Result<T, DrivesError> {
        let attempt = async |inner: &Rc<Inner>, view: &View| match view.layout.node(node) {
            Some(_) => ask(inner, view).await.map(Ok),
            None => Ok(Err(view.layout.nodes.iter().map(|node| node.id).collect())),
        };
        let asked = self.retrying(Phase::Drives, deadline, attempt).await?;
        asked.map_err(|has| DrivesError::NoNode { node, has })
    }
}
