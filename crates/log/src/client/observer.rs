//! Looking at a cluster of which some nodes may be gone.
//!
//! An observer needs one node that knows the layout to begin with, and from then on none: each look asks every node of the
//! newest layout at the same time, and whoever does not answer in time is named with the reason. It changes nothing.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use ithaca_env::{Env, Time};

use super::error::{ClientError, Phase};
use super::view::View;
use super::{ClientOptions, Inner};
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
    /// Errors: `NoEndpoint`; if none answers within the options' timeout, the error of the last endpoint.
    pub async fn connect(env: &Env, options: ClientOptions) -> Result<Self, ClientError> {
        let inner = Inner::new(env, options)?;
        let deadline = inner.deadline();
        let learned = inner.learn_from_all(deadline, |answer| answer.is_ok()).await;
        match learned.into_iter().flatten().reduce(|one, other| one.or(other)) {
            Some(Err(error)) => Err(error),
            _ => Ok(Self { inner, is_outdated: false }),
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
                inner.learn_from_all(deadline, |_| false).await;
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

    /// Asks all endpoints for the layout at the same time, until each has answered or one's answer is `enough`. The newest
    /// is kept.
    async fn learn_from_all(
        self: &Rc<Self>,
        deadline: Time,
        enough: impl Fn(&Result<View, ClientError>) -> bool,
    ) -> Vec<Option<Result<View, ClientError>>> {
        let learn = async |addr: SocketAddr| self.learn_from(addr, deadline).await;
        gather(self.options.endpoints.iter().map(|&addr| learn(addr)).collect(), enough).await
    }
}

/// Runs all futures at the same time until each is done or one's result is `enough`. Results in the order of the futures;
/// `None` for those that were not done, which are dropped.
async fn gather<T>(futures: Vec<impl Future<Output = T>>, enough: impl Fn(&T) -> bool) -> Vec<Option<T>> {
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut results: Vec<Option<T>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (slot, result) in running.iter_mut().zip(&mut results) {
            if let Some(future) = slot
                && let Poll::Ready(value) = future.as_mut().poll(cx)
            {
                let is_enough = enough(&value);
                (*slot, *result) = (None, Some(value));
                if is_enough {
                    return Poll::Ready(());
                }
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    type Boxed = Pin<Box<dyn Future<Output = u32>>>;

    fn gathered(futures: Vec<Boxed>, enough: u32) -> Option<Vec<Option<u32>>> {
        let mut gathering = std::pin::pin!(gather(futures, move |value| *value == enough));
        match gathering.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(results) => Some(results),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_that_is_silent_is_waited_for_unless_another_is_enough() {
        let futures = || -> Vec<Boxed> { vec![Box::pin(pending()), Box::pin(ready(1)), Box::pin(ready(2))] };
        assert_eq!(gathered(futures(), 9), None);
        assert_eq!(gathered(futures(), 1), Some(vec![None, Some(1), None]));
        assert_eq!(gathered(futures().split_off(1), 9), Some(vec![Some(1), Some(2)]));
    }
}
