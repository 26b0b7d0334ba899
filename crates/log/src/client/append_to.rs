//! Appending to streams, and where they end.

use std::rc::Rc;

use bytes::Bytes;

use super::append::{self, Aim, AppendTo};
use super::error::{ClientError, StreamsError};
use super::{Client, limits};
use crate::pos::{Epoch, LogPos, StreamId};
use crate::stream::{Condition, StreamTail};

/// Where the log and some of its streams end, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTails {
    /// The epoch whose sequencer says so. What it has granted and nobody has written is granted again in the next one, which may
    /// begin below the tail.
    pub epoch: Epoch,
    /// The next position of the log.
    pub tail: LogPos,
    /// Where each stream ends, in the order in which they were asked about.
    pub streams: Vec<StreamTail>,
}

impl Client {
    /// Appends `entry` to the log and to each of `streams` (at most [`limits::STREAMS_MAX_COUNT`](crate::limits::STREAMS_MAX_COUNT),
    /// all different): it stands in all of them or in none. Otherwise as [`Client::append`], with which it shares the order
    /// of the calls.
    ///
    /// Errors: those of [`Client::append`], and `Streams`.
    pub fn append_to(&self, streams: &[StreamId], entry: Bytes) -> AppendTo {
        self.append_where(Aim::new(streams, None), entry)
    }

    /// The same, if nothing that `condition` reads was written at or above its snapshot, up to the position that the entry
    /// gets. An append that has to take another position is held to its condition again; what it was to write at the old one
    /// may be in its way then, so that a conflict is possible where nobody else has written anything.
    ///
    /// Errors: those of [`Client::append_to`]; `Conflict`; `TooOld`.
    pub fn append_if(&self, streams: &[StreamId], condition: Condition, entry: Bytes) -> AppendTo {
        self.append_where(Aim::new(streams, Some(condition)), entry)
    }

    /// The same by an aim that the caller keeps, to try again by: nothing of it is copied.
    ///
    /// Errors: those of [`Client::append_if`] but for `Streams`.
    pub fn append_aimed(&self, aim: &Rc<Aim>, entry: Bytes) -> AppendTo {
        append::append_to(&self.inner, Some(Rc::clone(aim)), entry)
    }

    fn append_where(&self, aim: Result<Aim, StreamsError>, entry: Bytes) -> AppendTo {
        match aim {
            Err(error) => append::refused(error.into()),
            Ok(aim) if aim.streams.is_empty() && aim.condition.is_none() => {
                append::append_to(&self.inner, None, entry)
            }
            Ok(aim) => append::append_to(&self.inner, Some(Rc::new(aim)), entry),
        }
    }

    /// Where the log and `streams` end, at most [`limits::CHECK_STREAMS_MAX_COUNT`](crate::limits::CHECK_STREAMS_MAX_COUNT) of
    /// them: above everything that was acknowledged before the call. Nothing of a stream lies between its `last` and the
    /// tail.
    pub async fn stream_tails(&self, streams: &[StreamId]) -> Result<StreamTails, ClientError> {
        let (found, limit) = (streams.len(), limits::CHECK_STREAMS_MAX_COUNT);
        if found > limit {
            return Err(StreamsError::TooMany { found, limit }.into());
        }
        self.inner.tails(streams).await
    }
}

impl Aim {
    /// These streams (at most [`limits::STREAMS_MAX_COUNT`](crate::limits::STREAMS_MAX_COUNT), all different), on this condition.
    pub fn new(streams: &[StreamId], condition: Option<Condition>) -> Result<Self, StreamsError> {
        let aim = Self { streams: streams.into(), condition };
        check(&aim).map(|()| aim)
    }

    /// The streams.
    pub fn streams(&self) -> &[StreamId] {
        &self.streams
    }

    /// The snapshot of the condition; 0 if there is none.
    pub fn snapshot(&self) -> LogPos {
        self.condition.as_ref().map_or(LogPos(0), |condition| condition.snapshot)
    }

    /// The same streams and the same condition at another snapshot.
    pub fn at(&self, snapshot: LogPos) -> Self {
        let condition = self.condition.clone().map(|condition| Condition { snapshot, ..condition });
        Self { streams: self.streams.clone(), condition }
    }
}

/// What is wrong with the streams of an append, or with its condition.
fn check(aim: &Aim) -> Result<(), StreamsError> {
    let (found, limit) = (aim.streams.len(), limits::STREAMS_MAX_COUNT);
    if found > limit {
        return Err(StreamsError::TooMany { found, limit });
    }
    let twice = |(nth, stream): (usize, &StreamId)| aim.streams[..nth].contains(stream);
    if let Some((_, &stream)) = aim.streams.iter().enumerate().find(|&named| twice(named)) {
        return Err(StreamsError::Twice { stream });
    }
    let Some(condition) = &aim.condition else { return Ok(()) };
    let (found, limit) =
        (condition.reads.len().max(condition.writes.len()), limits::CONDITION_KEYS_MAX_COUNT);
    if found > limit {
        return Err(StreamsError::TooManyParts { found, limit });
    }
    match condition.writes.iter().find(|key| !aim.streams.contains(&key.stream)) {
        Some(&key) => Err(StreamsError::NotItsStream { key }),
        None => Ok(()),
    }
}
