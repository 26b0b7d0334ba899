//! Looking at a cluster of which some nodes may be gone.
//!
//! An observer needs one node that knows the layout to begin with, and from then on none: each look asks every node of the
//! newest layout at the same time, and whoever does not answer in time is named with the reason. It changes nothing.

use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

use ithaca_env::task::{TaskHandle, gather};
use ithaca_env::{Env, Time};

use super::error::{ClientError, Phase};
use super::view::View;
use super::{ClientOptions, Inner, Lookup};
use crate::layout::Layout;
use crate::pos::{Epoch, NodeId};
use crate::wire::{GetStatus, NodeStatus};

/// A node of the layout, its address, and what it says of itself or why it does not.
pub type NodeAnswer = (NodeId, SocketAddr, Result<NodeStatus, ClientError>);

/// What one look at a cluster shows.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The layout whose nodes were asked.
    pub layout: Rc<Layout>,
    /// Its nodes, in the order of their ids.
    pub nodes: Vec<NodeAnswer>,
}

/// Watches a cluster without using it.
pub struct Observer {
    inner: Rc<Inner>,
    /// Whether the last look gave reason to ask for a newer layout.
    is_outdated: bool,
}

impl Observer {
    /// Learns the layout from the first endpoint that answers; all are asked at the same time, once.
    ///
    /// Errors: `NoEndpoint`; `TwoClusters`, as for [`Client::connect`](super::Client::connect); if none answers within the options'
    /// timeout, the error of the last endpoint.
    pub async fn connect(env: &Env, options: ClientOptions) -> Result<Self, ClientError> {
        Self::connect_by(env, options, Vec::new()).await
    }

    /// The same with endpoints that are being looked up: each is asked as soon as it has been found, and lookups that have not ended when one
    /// answers go on, for later looks. Those that take longer than the options' timeout have found none.
    pub async fn connect_by(
        env: &Env,
        options: ClientOptions,
        lookups: Vec<Lookup>,
    ) -> Result<Self, ClientError> {
        let inner = Inner::new(env, ClientOptions { outlives_loss: true, ..options });
        let deadline = inner.deadline();
        let known = inner.endpoints();
        let mut endpoints = vec![env.spawn(async { known })];
        endpoints.extend(inner.await_lookups(lookups));
        let ask = async |found: TaskHandle<Vec<SocketAddr>>| {
            let found = env.timeout_at(deadline, found.join()).await.ok().flatten().unwrap_or_default();
            let learned = inner.learn_from_all(found, deadline, Result::is_ok).await;
            learned.into_iter().flatten().reduce(|one, other| one.or(other))
        };
        let asking = endpoints.into_iter().map(&ask).collect();
        let asked = gather(asking, |answer| matches!(answer, Some(Ok(_)))).await;
        inner.check_one_cluster()?;
        match asked.into_iter().flatten().flatten().reduce(|one, other| one.or(other)) {
            None => Err(ClientError::NoEndpoint),
            Some(Err(error)) => Err(error),
            Some(Ok(_)) => Ok(Self { inner, is_outdated: false }),
        }
    }

    /// Asks every node about itself, at most for the options' timeout. Never fails: a node that does not answer has its
    /// error in the place of its answer. After a look in which a node failed or was in a newer epoch the next one also asks
    /// the endpoints for a newer layout; the look after that one shows it.
    pub async fn look(&mut self) -> Sight {
        let inner = &self.inner;
        let deadline = inner.deadline();
        let view = inner.view().expect("an observer that connected has a layout");
        let asking = async {
            if self.is_outdated {
                // What an endpoint answers is kept if it is newer; that one does not answer shows in its own row.
                inner.learn_from_all(inner.endpoints(), deadline, |_| false).await;
            }
        };
        let mut answers = Vec::new();
        let asked = async { answers = inner.ask_all(&view, deadline).await };
        let both: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![Box::pin(asking), Box::pin(asked)];
        gather(both, |()| false).await;
        let is_newer = |epoch: &Epoch| *epoch > view.layout.epoch;
        self.is_outdated =
            answers.iter().any(|(_, _, answer)| answer.as_ref().map_or(true, |(_, epoch)| is_newer(epoch)));
        let nodes =
            answers.into_iter().map(|(node, addr, answer)| (node, addr, answer.map(|(status, _)| status)));
        Sight { nodes: nodes.collect(), layout: view.layout }
    }
}

/// A node's answer with the epoch that it gave it in.
type EpochAnswer = (NodeId, SocketAddr, Result<(NodeStatus, Epoch), ClientError>);

impl Inner {
    /// What each node of the newest layout says of itself.
    pub(super) async fn status(self: &Rc<Self>) -> Result<Vec<NodeAnswer>, ClientError> {
        let deadline = self.deadline();
        let view = self.view_by(deadline).await?;
        let answers = self.ask_all(&view, deadline).await.into_iter();
        Ok(answers.map(|(node, addr, answer)| (node, addr, answer.map(|(status, _)| status))).collect())
    }

    /// Asks all nodes at the same time: one that is silent does not take the others' time.
    async fn ask_all(self: &Rc<Self>, view: &View, deadline: Time) -> Vec<EpochAnswer> {
        let ask = async |node: NodeId| {
            let called = self.call::<_, NodeStatus>(view, node, Phase::Status, &GetStatus, deadline).await;
            called.map(|(status, _, epoch)| (status, epoch))
        };
        let answers = gather(view.nodes().map(|(node, _)| ask(node)).collect(), |_| false).await;
        let answered = view.nodes().zip(answers.into_iter().flatten());
        answered.map(|((node, addr), answer)| (node, addr, answer)).collect()
    }

    /// Asks `endpoints` for the layout at the same time, until each has answered or one's answer is `enough`. The newest
    /// is kept.
    async fn learn_from_all(
        self: &Rc<Self>,
        endpoints: Vec<SocketAddr>,
        deadline: Time,
        enough: impl Fn(&Result<View, ClientError>) -> bool,
    ) -> Vec<Option<Result<View, ClientError>>> {
        let learn = async |addr: SocketAddr| self.learn_from(addr, deadline).await;
        gather(endpoints.into_iter().map(learn).collect(), enough).await
    }
}
