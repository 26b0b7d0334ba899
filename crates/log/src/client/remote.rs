//! Asking the views of objects that nodes keep.

use std::cmp::Reverse;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::{Time, mix};

use super::connection::CallError;
use super::error::{ClientError, Phase};
use super::view::View;
use super::{Client, Inner};
use crate::layout::NodeState;
use crate::limits;
use crate::pos::{NodeId, StreamId};
use crate::wire::{self, AskView, DataSum, Head, Refusal, Roles, ViewAnswer};

/// A node that does not answer within this part of a call's time is asked no longer: another one is.
const NODE_SHARE: u32 = 2;

/// What a node says that keeps no views.
const NO_VIEWS: Refusal = Refusal::NotServing { roles: Roles::VIEWS };

impl Client {
    /// Asks a node of the cluster about the object of a stream, and gives its answer as it is. Any node may be asked: it is the same one for
    /// all who ask about this stream, as long as it answers and the cluster has the same nodes, so that it has the object in memory.
    ///
    /// A node whose answer is not what `is_final` takes is passed over; its answer is given if no other node has one.
    ///
    /// Asking changes nothing. Panics if the question is longer than [`limits::VIEW_QUESTION_MAX_BYTES`]. Errors: the last node's, when
    /// none has answered by the call's deadline; `NoViews` if no node keeps any.
    pub async fn ask_view(
        &self,
        stream: StreamId,
        question: Bytes,
        is_final: impl Fn(&Bytes) -> bool,
    ) -> Result<Bytes, ClientError> {
        assert!(question.len() <= limits::VIEW_QUESTION_MAX_BYTES, "a question of {} bytes", question.len());
        let deadline = self.inner.deadline();
        let ask = async |inner: &Rc<Inner>, view: &View| {
            inner.ask_nodes(view, stream, &question, (&is_final, deadline)).await
        };
        self.inner.retrying(Phase::View, deadline, ask).await
    }
}

impl Inner {
    /// Asks one node after the other until one gives an answer that is final, or the time is over.
    async fn ask_nodes(
        self: &Rc<Self>,
        view: &View,
        stream: StreamId,
        question: &Bytes,
        (is_final, deadline): (&impl Fn(&Bytes) -> bool, Time),
    ) -> Result<Bytes, ClientError> {
        let (mut passed, mut failed) = (None, None);
        for node in in_turn(view, stream) {
            match self.ask_node(view, node, stream, question, deadline).await {
                Ok(answer) if is_final(&answer) => return Ok(answer),
                Ok(answer) => passed = Some(answer),
                Err(ClientError::Node { error: CallError::Refused(NO_VIEWS), .. }) => {}
                Err(error) => failed = Some(error),
            }
        }
        passed.ok_or_else(|| failed.unwrap_or(ClientError::NoViews))
    }

    async fn ask_node(
        self: &Rc<Self>,
        view: &View,
        node: NodeId,
        stream: StreamId,
        question: &Bytes,
        deadline: Time,
    ) -> Result<Bytes, ClientError> {
        let deadline = deadline.min(self.env.now() + self.options.timeout / NODE_SHARE);
        let connection = self.connection(view, node, deadline).await?;
        let (epoch, asked) = (view.layout.epoch, AskView { stream, question: DataSum::of(question) });
        let encode = |request, out: &mut bytes::BytesMut| {
            wire::encode_head(out, Head::new(request, epoch), &asked, question.len());
        };
        let data = std::iter::once(question.clone());
        let answer = connection.call_with::<ViewAnswer>(&self.env, encode, data, deadline).await;
        let failed =
            |error: CallError| ClientError::Node { addr: view.addr(node), epoch, phase: Phase::View, error };
        let (told, answer, _) = answer.map_err(failed)?;
        if told.answer != DataSum::of(&answer) {
            return Err(failed(CallError::Damaged));
        }
        Ok(answer)
    }
}

/// The nodes of a layout in the order in which they are asked about a stream: by a hash of both, so that each stream has its own order,
/// and a node that comes or goes changes no more than it must. Those that the cluster does without come last.
fn in_turn(view: &View, stream: StreamId) -> Vec<NodeId> {
    let is_out = |node| view.layout.node(node).is_none_or(|node| node.state != NodeState::InUse);
    let mut nodes: Vec<NodeId> = view.nodes().map(|(node, _)| node).collect();
    nodes.sort_by_key(|&node| (is_out(node), Reverse(weight(node, stream)), node));
    nodes
}

fn weight(node: NodeId, stream: StreamId) -> u64 {
    let (low, high) = (stream.0 as u64, (stream.0 >> 64) as u64);
    mix(mix(low ^ high.rotate_left(32)) ^ mix(node.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_goes_moves_only_the_streams_that_it_had() {
        // Else every object would be made anew at another node whenever one fails.
        let first = |nodes: &[u64], stream: StreamId| {
            nodes.iter().copied().max_by_key(|node| weight(NodeId(*node as _), stream)).expect("a node")
        };
        let mut counts = [0; 4];
        for nth in 0..4_000 {
            let stream = StreamId::of_name(&format!("object {nth}"));
            let node = first(&[1, 2, 3, 4], stream);
            counts[node as usize - 1] += 1;
            if node != 4 {
                assert_eq!(first(&[1, 2, 3], stream), node);
            }
        }
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
    }
}
