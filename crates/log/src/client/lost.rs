//! Telling a cluster that cannot be changed from one that is slow.
//!
//! No layout follows one of whose active range a stripe has lost every replica: what they held may have been acknowledged, so that nobody
//! can tell where the log ends (docs/protocol/reconfigure.md). The nodes that are left do not say so; whoever asks them for a change runs out of
//! time. So it is looked meanwhile who is there.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::task::{Ended, gather, race};

use super::error::ErrorClass;
use super::form::known_to;
use super::members::MembersError;
use super::{Client, Inner};
use crate::layout::TailError;
use crate::pos::NodeId;

/// The wait before each look: most changes are over sooner.
const LOOK: Duration = Duration::from_secs(1);
/// Who has not answered for so long is not there. Nodes that work miss each other sooner.
const PATIENCE: Duration = Duration::from_secs(1);

impl Client {
    /// Does `work`, which has the cluster changed. Where that ends because its time is over, and a stripe had lost every replica when it was
    /// looked last, the error says that.
    pub(super) async fn unless_lost<T>(
        &self,
        work: impl Future<Output = Result<T, MembersError>>,
    ) -> Result<T, MembersError> {
        let (inner, lost) = (&self.inner, RefCell::new(Vec::new()));
        let looking = async {
            loop {
                inner.env.sleep(LOOK).await;
                let found = inner.lost().await;
                lost.replace(found);
            }
        };
        let Ended::First(done) = race(work, looking).await;
        let nodes = lost.into_inner();
        match done {
            Err(error) if !nodes.is_empty() && is_of_time(&error) => Err(MembersError::Lost { nodes }),
            done => done,
        }
    }
}

/// Whether it may be that it took too long.
fn is_of_time(error: &MembersError) -> bool {
    match error {
        MembersError::Cluster(error) => error.class() == ErrorClass::Unavailable,
        MembersError::InUse { .. } | MembersError::Joining { .. } | MembersError::Leaving { .. } => true,
        _ => false,
    }
}

impl Inner {
    /// The replicas of a stripe of the active range of which none is there with what it holds; none if no stripe is so, or nobody tells the
    /// layout.
    async fn lost(self: &Rc<Self>) -> Vec<NodeId> {
        let Ok(view) = self.view_by(self.env.now() + PATIENCE).await else { return Vec::new() };
        let until = self.env.now() + PATIENCE;
        let layout = &view.layout;
        let Some(active) = layout.ranges.last() else { return Vec::new() };
        let replicas = active.stripes.iter().flat_map(|stripe| stripe.replicas.iter().copied());
        let nodes: BTreeSet<NodeId> = replicas.collect();
        // One that has become empty is there, and knows of no cluster.
        let is_there = async |&node: &NodeId| {
            let known = known_to(&self.env, (node, view.addr(node)), until).await;
            known.is_ok_and(|known| known.is_some_and(|known| known.cluster == layout.cluster))
        };
        let there = gather(nodes.iter().map(is_there).collect(), |_| false).await;
        let silent = nodes.iter().zip(there).filter(|(_, is_there)| *is_there != Some(true));
        let silent: Vec<NodeId> = silent.map(|(&node, _)| node).collect();
        match layout.check_sealable(&silent) {
            Err(TailError::NotSealed { stripe }) => active.stripes[stripe].replicas.to_vec(),
            _ => Vec::new(),
        }
    }
}
