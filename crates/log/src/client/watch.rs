//! Waiting at the nodes for what is not there yet, so that nobody has to ask again and again.
//!
//! A question that waits is only an early end of a wait: whoever asked looks for itself afterwards, whatever came of it.

use std::rc::Rc;
use std::time::Duration;

use super::error::{ClientError, Phase};
use super::read::Origin;
use super::stream_parts::{Answer, Part, Share};
use super::streams::Asked;
use super::{Client, Inner};
use crate::limits;
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;
use crate::wire::{ReadStream, StreamRuns, Tail, WatchStream};

/// How long a question for a stream's next entry stands. A sequencer whose machine is gone is missed no later.
const WATCH_MS: u16 = 1000;

const _: () = assert!(WATCH_MS <= limits::STREAM_WAIT_MAX_MS);

/// How soon one looks again who may not wait at the sequencer, at first and at last.
pub(super) const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(50);

/// Tells when a stream goes on, without reading it. Dropping it ends nothing but itself.
pub struct StreamWatch {
    inner: Rc<Inner>,
    stream: StreamId,
    known: StreamTail,
}

impl Client {
    /// A watch of `stream`, which knows nothing of it yet.
    pub fn stream_watch(&self, stream: StreamId) -> StreamWatch {
        let known = StreamTail { next: StreamPos(0), last: None };
        StreamWatch { inner: Rc::clone(&self.inner), stream, known }
    }
}

impl StreamWatch {
    /// Waits until the stream ends elsewhere than this told the last time, at first than in nothing, and tells where. Positions up to there
    /// are granted; as a rule they are not readable yet, and may come to hold junk.
    ///
    /// Errors: those of any call, when the cluster does not answer; one may go on. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> Result<StreamTail, ClientError> {
        let mut pause = LOOK_MIN;
        loop {
            let tail = self.inner.stream_moved(self.stream, self.known.next, &mut pause).await?;
            if tail != self.known {
                self.known = tail;
                return Ok(tail);
            }
        }
    }
}

impl Inner {
    /// Where a stream ends, as soon as that is not `known`, or after a while all the same. `pause` grows where one may not wait for it at
    /// the sequencer; at first it is [`LOOK_MIN`].
    pub(super) async fn stream_moved(
        self: &Rc<Self>,
        stream: StreamId,
        known: StreamPos,
        pause: &mut Duration,
    ) -> Result<StreamTail, ClientError> {
        let began = self.env.now();
        match self.watch_stream(stream, known).await {
            // Also if it ends lower than was known: a new sequencer grants again what was lost.
            Some(tail) if tail.next != known || self.env.now().since(began) >= LOOK_MAX => Ok(tail),
            _ => {
                // Too many wait there, or nobody answers.
                self.env.sleep(*pause).await;
                *pause = (*pause * 2).min(LOOK_MAX);
                let tails = Client { inner: Rc::clone(self) }.stream_tails(&[stream]).await?;
                Ok(tails.streams.first().copied().expect("as many as were asked about"))
            }
        }
    }

    /// Asks the sequencer where a stream ends, as soon as that is past `next`, or after a second all the same. `None` if it does not say.
    async fn watch_stream(self: &Rc<Self>, stream: StreamId, next: StreamPos) -> Option<StreamTail> {
        let view = self.view()?;
        let epoch = view.layout.epoch;
        let deadline = self.env.now() + Duration::from_millis(WATCH_MS.into()) + self.patience();
        let sequencer = self.connection(&view, view.layout.sequencer, deadline).await.ok()?;
        let watch = WatchStream { stream, next, wait_ms: WATCH_MS };
        let answer = sequencer.call_standing::<_, Tail>(&self.env, epoch, &watch, deadline).await;
        let Ok((Tail { tail: Some(tail), streams, .. }, _, _)) = answer else { return None };
        self.note_tail(epoch, tail);
        streams.first().copied()
    }

    /// Waits `hole_wait` for the writer of `pos`, or until its last replica says what is there: then that, as of
    /// [`read_part`](Self::read_part).
    pub(super) async fn wait_for_writer<P: Part>(self: &Rc<Self>, asked: Asked, pos: LogPos) -> Option<P> {
        let end = self.env.now() + self.options.hole_wait;
        let answered = self.env.timeout_at(end + self.patience(), self.ask_writer(asked, pos)).await;
        let part = answered.ok().flatten();
        if part.is_none() {
            self.env.sleep_until(end).await;
        }
        part
    }

    async fn ask_writer<P: Part>(self: &Rc<Self>, asked: Asked, pos: LogPos) -> Option<P> {
        let wait_ms = self.options.hole_wait.as_millis().min(limits::STREAM_WAIT_MAX_MS.into()) as u16;
        let view = self.view().filter(|_| wait_ms > 0)?;
        let epoch = view.layout.epoch;
        let piece = view.layout.pieces(pos, LogPos(pos.0 + 1)).pop()?;
        let unit = *piece.replicas.last()?;
        let read = ReadStream { wait_ms, ..asked.read(false, 1, piece.addrs) };
        let deadline = self.env.now() + Duration::from_millis(wait_ms.into()) + self.patience();
        let connection = self.connection(&view, unit, deadline).await.ok()?;
        let answer = connection.call_standing::<_, StreamRuns>(&self.env, epoch, &read, deadline).await;
        let (runs, data, _) = answer.ok()?;
        let is_heads_only = runs.is_heads_only();
        let origin = Origin { addr: view.addr(unit), epoch, phase: Phase::Read };
        let mut share = Share::new(LogPos(pos.0 + 1));
        share.add((0, &piece), Answer { runs: runs.runs, is_heads_only, data, origin }).ok()?;
        let (part, _): (P, _) = share.put_together(std::slice::from_ref(&piece));
        (part.upto() > pos).then_some(part)
    }
}
