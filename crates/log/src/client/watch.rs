//! Waiting at the nodes for what is not there yet, so that nobody has to ask again and again.
//!
//! A question that waits is only an early end of a wait: whoever asked looks for itself afterwards, whatever came of it.

use std::rc::Rc;
use std::time::Duration;

use super::Inner;
use super::error::Phase;
use super::read::Origin;
use super::stream_parts::{Answer, Part, Share};
use super::streams::Asked;
use crate::limits;
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;
use crate::wire::{ReadStream, StreamRuns, Tail, WatchStream};

/// How long a question for a stream's next entry stands. A sequencer whose machine is gone is missed no later.
const WATCH_MS: u16 = 1000;

const _: () = assert!(WATCH_MS <= limits::STREAM_WAIT_MAX_MS);

impl Inner {
    /// Asks the sequencer where a stream ends, as soon as that is past `next`, or after a second all the same. `None` if it does not say.
    pub(super) async fn watch_stream(
        self: &Rc<Self>,
        stream: StreamId,
        next: StreamPos,
    ) -> Option<StreamTail> {
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
