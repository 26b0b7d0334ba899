//! Views of objects that a node keeps for programs elsewhere. What an object is, is none of the log's business: whoever starts the node
//! gives it a host of views, and questions and answers go through here as they are.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use ithaca_env::sync::Count;

use super::node::Node;
use super::reply::ReplyRoute;
use crate::limits;
use crate::pos::StreamId;
use crate::wire::{AskView, DataSum, Refusal, Roles, ViewAnswer};

/// An answer that is being made.
pub type Answering = Pin<Box<dyn Future<Output = Bytes>>>;

/// Keeps views of objects.
///
/// ```text
///   connection ── AskView ──► node ── ask(stream, question) ──► host ──► the log, as any client
///              ◄─ ViewAnswer ──────── bytes ────────────────────┘
/// ```
///
/// The host MUST answer whatever the question is: what it cannot understand or do is an answer too. It MUST bound what it keeps. An
/// answer that nobody waits for any more is dropped before it is made. What it keeps may be lost at any time.
pub trait ViewHost {
    /// The answer to a question about the object of a stream, at most [`limits::VIEW_ANSWER_MAX_BYTES`].
    fn ask(&self, stream: StreamId, question: Bytes) -> Answering;

    /// The cluster has gone on without nodes that are gone for good: what is kept may rest on what is lost. The host MUST forget all of it, and
    /// reach the log by another client.
    fn forget(&self);
}

/// A node's host, and the questions that it is working on.
#[derive(Default)]
pub(super) struct Views {
    host: RefCell<Option<Rc<dyn ViewHost>>>,
    under_way: Count,
}

impl Views {
    pub(super) fn host(&self, host: Rc<dyn ViewHost>) {
        self.host.replace(Some(host));
    }

    /// Has the host forget what it keeps.
    pub(super) fn forget(&self) {
        if let Some(host) = &*self.host.borrow() {
            host.forget();
        }
    }

    /// Whether there is a host.
    pub(super) fn is_hosting(&self) -> bool {
        self.host.borrow().is_some()
    }

    /// Questions that have no answer yet.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.get()
    }
}

/// Has the node's host answer.
pub(super) fn ask(node: &Rc<Node>, route: ReplyRoute, asked: AskView, question: Bytes) {
    let Some(host) = node.views.host.borrow().clone() else {
        return route.refuse(Refusal::NotServing { roles: Roles::VIEWS });
    };
    let (pending, limit) = (node.views.under_way.get(), limits::VIEW_QUESTIONS_MAX_COUNT);
    if pending >= limit {
        return route.refuse(Refusal::Overloaded { pending: pending as u64, limit: limit as u64 });
    }
    let under_way = node.views.under_way.one_more();
    let answers = Rc::clone(route.answers());
    answers.clone().spawn(&node.env, async move {
        let Ok(_making) = answers.begin(question.len()).await else { return };
        let answer = host.ask(asked.stream, question).await;
        route.send_with(&ViewAnswer { answer: DataSum::of(&answer) }, answer);
        drop(under_way);
    });
}
