//! Where streams end: one question to the sequencer for all who wait.
//!
//! A read is linearizable if the question is asked after the read began, as it is for [all who wait](super::together).
//!
//! The last position of a stream may be one that was granted and that nobody has written. If the epoch ends then, the next one may end below
//! it: whoever reads up to there and gets no further asks again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ithaca_log::client::{ClientError, Phase};
use ithaca_log::limits::CHECK_STREAMS_MAX_COUNT;
use ithaca_log::pos::{Epoch, LogPos, StreamId};
use ithaca_log::stream::StreamTail;

use super::Inner;
use super::together::Together;

/// How often whoever gets no further asks for the tail anew, each time in vain.
const ATTEMPTS_MAX: u32 = 16;
/// The wait between.
const ATTEMPT_WAIT: Duration = Duration::from_millis(2);

/// Where the log ends, and a stream below that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// The next position of the log.
    pub(super) tail: LogPos,
    /// Nothing of the stream stands between this and the tail: [`StreamTail::bound`] of `end`, or what of that is asked for.
    pub(super) bound: Option<LogPos>,
    /// Where the stream ends, as the sequencer knows.
    pub(super) end: StreamTail,
    /// What was known to be decided before the question was asked. An answer that comes late is of an epoch that may be over, and says
    /// nothing of what the next one has granted above this.
    pub(super) decided: LogPos,
    /// The epoch of the sequencer that was asked.
    pub(super) epoch: Epoch,
}

impl Tail {
    /// The position after all of the stream.
    pub(super) fn end(&self) -> LogPos {
        LogPos(self.bound.map_or(0, |bound| bound.0 + 1))
    }
}

/// Questions about streams, or about none.
pub(super) type Tails = Together<Option<StreamId>, Tail>;

/// Somebody who waits, and about which stream.
type Waiting = super::together::Waiting<Option<StreamId>, Tail>;

/// The first of those who wait, off the front, and the streams that they wait for: as many as one question may be about.
fn take_some(waiting: &mut Vec<Waiting>) -> (Vec<Waiting>, BTreeMap<StreamId, StreamTail>) {
    let mut asked = BTreeMap::new();
    let fits = |asked: &mut BTreeMap<StreamId, StreamTail>, stream: &Option<StreamId>| {
        let Some(stream) = stream else { return true };
        if asked.len() == CHECK_STREAMS_MAX_COUNT && !asked.contains_key(stream) {
            return false;
        }
        asked.insert(*stream, StreamTail::default());
        true
    };
    let count = waiting.iter().take_while(|(stream, _)| fits(&mut asked, stream)).count();
    (waiting.drain(..count).collect(), asked)
}

impl Inner {
    /// Where the log ends and `stream` in it, as of some moment of this call: above everything that was acknowledged before.
    pub(super) async fn tail_of(self: &Rc<Self>, stream: Option<StreamId>) -> Result<Tail, ClientError> {
        let inner = Rc::clone(self);
        let ask = move |mut waiting: Vec<Waiting>| {
            let inner = Rc::clone(&inner);
            async move {
                while !waiting.is_empty() {
                    let (served, asked) = take_some(&mut waiting);
                    inner.ask_tails(served, asked).await;
                }
            }
        };
        self.tails.join(&self.env, stream, ask).await
    }

    /// The same for whoever has read `stream` as far as there is something, and is not where an earlier answer says that it ends. `asked` is how
    /// often that was so.
    ///
    /// Errors: `Slow` if it is so again and again.
    pub(super) async fn tail_again(
        self: &Rc<Self>,
        stream: StreamId,
        asked: &mut u32,
    ) -> Result<Tail, ClientError> {
        if *asked == ATTEMPTS_MAX {
            return Err(ClientError::Slow { phase: Phase::Check, waited: ATTEMPT_WAIT * ATTEMPTS_MAX });
        }
        if *asked > 0 {
            self.env.sleep(ATTEMPT_WAIT).await;
        }
        *asked += 1;
        self.tail_of(Some(stream)).await
    }

    /// Asks one question for these.
    async fn ask_tails(&self, served: Vec<Waiting>, mut asked: BTreeMap<StreamId, StreamTail>) {
        let streams: Vec<StreamId> = asked.keys().copied().collect();
        let decided = self.decided.below();
        let tails = self.client.stream_tails(&streams).await;
        if let Ok(tails) = &tails {
            asked.extend(streams.iter().copied().zip(tails.streams.iter().copied()));
        }
        for (stream, sender) in served {
            let end = stream.and_then(|stream| asked.get(&stream).copied()).unwrap_or_default();
            let (bound, told) = (end.bound(), tails.as_ref());
            let tail = told.map(|tails| Tail { tail: tails.tail, bound, end, decided, epoch: tails.epoch });
            sender.send(tail.map_err(Clone::clone));
        }
    }
}
