//! Where streams end: one question to the sequencer for all who wait.
//!
//! A read is linearizable if the question is asked after the read began. So whoever comes while a question is under way waits for the
//! next one, and that serves all who came meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ithaca_env::sync::oneshot;
use ithaca_log::client::ClientError;
use ithaca_log::limits::CHECK_STREAMS_MAX_COUNT;
use ithaca_log::pos::{LogPos, StreamId};

use super::Inner;

/// Where the log ends, and the last position of a stream below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The next position of the log.
    pub(super) tail: LogPos,
    /// The highest that was granted for the stream; nothing of it lies between that and the tail.
    pub(super) last: Option<LogPos>,
    /// What was known to be decided before the question was asked. An answer that comes late is of an epoch that may be over, and says
    /// nothing of what the next one has granted above this.
    pub(super) decided: LogPos,
}

type Answer = Result<Tail, ClientError>;

/// Questions that wait to be asked.
#[derive(Default)]
pub(super) struct Tails {
    waiting: RefCell<Vec<Waiting>>,
    is_asking: Cell<bool>,
}

/// Somebody who waits, and about which stream.
type Waiting = (Option<StreamId>, oneshot::Sender<Answer>);

impl Tails {
    /// Those who are served by the next question, and the streams that it is about.
    fn take(&self) -> (Vec<Waiting>, BTreeMap<StreamId, Option<LogPos>>) {
        let mut asked = BTreeMap::new();
        let fits = |asked: &mut BTreeMap<StreamId, Option<LogPos>>, stream: &Option<StreamId>| {
            let Some(stream) = stream else { return true };
            if asked.len() == CHECK_STREAMS_MAX_COUNT && !asked.contains_key(stream) {
                return false;
            }
            asked.insert(*stream, None);
            true
        };
        let mut waiting = self.waiting.borrow_mut();
        let count = waiting.iter().take_while(|(stream, _)| fits(&mut asked, stream)).count();
        (waiting.drain(..count).collect(), asked)
    }
}

impl Inner {
    /// Where the log ends and `stream` in it, as of some moment of this call: above everything that was acknowledged before.
    pub(super) async fn tail_of(self: &Rc<Self>, stream: Option<StreamId>) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.tails.waiting.borrow_mut().push((stream, sender));
        if !self.tails.is_asking.replace(true) {
            let inner = Rc::clone(self);
            self.env.spawn(async move {
                // Whoever is about to ask may join.
                inner.env.yield_now().await;
                while inner.ask_tails().await {}
                inner.tails.is_asking.set(false);
            });
        }
        answer.await.unwrap_or(Err(ClientError::Closed))
    }

    /// Asks for all who wait, as many as one question may be about. False if nobody waits.
    async fn ask_tails(&self) -> bool {
        let (served, mut asked) = self.tails.take();
        if served.is_empty() {
            return false;
        }
        let streams: Vec<StreamId> = asked.keys().copied().collect();
        let decided = self.decided.below();
        let tails = self.client.stream_tails(&streams).await;
        if let Ok(tails) = &tails {
            asked.extend(streams.iter().zip(&tails.streams).map(|(stream, tail)| (*stream, tail.last)));
        }
        for (stream, sender) in served {
            let last = stream.and_then(|stream| asked.get(&stream).copied().flatten());
            sender.send(
                tails.as_ref().map(|tails| Tail { tail: tails.tail, last, decided }).map_err(Clone::clone),
            );
        }
        true
    }
}
