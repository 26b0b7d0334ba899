//! The names of streams: entries of a stream of their own, each told by whoever appends to a stream first.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::task::gather;

use super::error::{ClientError, StreamsError};
use super::{Client, limits};
use crate::pos::{LogPos, StreamId};

/// Names that are told again at a time.
const TOLD_TOGETHER_COUNT: usize = 1024;
/// How often a log that was full is asked whether a trim has made room.
const ROOM_WAIT: Duration = Duration::from_millis(50);

impl Client {
    /// The stream of this name, which is to be appended to: it is among [`Client::stream_names`] from now on, if it was not before.
    ///
    /// Errors: `Streams` (no bytes, or too many); those of [`Client::append`]. Doing it twice changes nothing.
    pub async fn stream(&self, name: &str) -> Result<StreamId, ClientError> {
        check(name)?;
        let stream = StreamId::of_name(name);
        if !self.is_begun(stream).await? {
            self.tell_name(name).await?;
        }
        Ok(stream)
    }

    /// Adds a name to [`Client::stream_names`], whatever there is of the stream. Errors: those of [`Client::stream`].
    pub async fn tell_name(&self, name: &str) -> Result<(), ClientError> {
        check(name)?;
        self.append_to(&[StreamId::NAMES], Bytes::copy_from_slice(name.as_bytes())).await?;
        Ok(())
    }

    /// Whether the stream has entries: whoever appended to it first has told its name before.
    async fn is_begun(&self, stream: StreamId) -> Result<bool, ClientError> {
        let tails = self.stream_tails(&[stream]).await?;
        match tails.streams.first().and_then(|tail| tail.last.map(|last| (tail.next, last))) {
            None => Ok(false),
            // A new sequencer that finds trimmed what it knows nothing of gives every stream as many positions as the log had.
            Some((next, last)) if next.0 > last.0 => Ok(self.newest(stream).await?.is_some()),
            Some(_) => Ok(true),
        }
    }

    /// The names of all streams that were named, in the order of the names.
    pub async fn stream_names(&self) -> Result<Vec<String>, ClientError> {
        let tail = self.stream_tails(&[]).await?.tail;
        let (mut names, mut next) = (BTreeSet::new(), LogPos(0));
        while next < tail {
            let upto = self.some_names(next..tail, &mut names).await?;
            if upto == next {
                // The epoch has ended, and what was granted in it from here on is taken back.
                break;
            }
            next = upto;
        }
        // What is no name was not written by this library.
        let text = |name: &Bytes| String::from_utf8(name.to_vec()).ok();
        Ok(names.iter().filter_map(text).collect())
    }

    /// Adds the names that were told in the first piece of a range, and gives where that ends.
    async fn some_names(
        &self,
        range: Range<LogPos>,
        names: &mut BTreeSet<Bytes>,
    ) -> Result<LogPos, ClientError> {
        let part = self.read_stream(StreamId::NAMES, range, limits::READ_MAX_BYTES).await?;
        names.extend(part.entries.into_iter().map(|entry| entry.data));
        Ok(part.upto)
    }

    /// Gives up every position below `pos`, for ever. Durable.
    ///
    /// The names of streams that were told there are appended once more first, since their streams may go on above; on a log without room
    /// after the trim, which makes some. Errors: `Unwritten` (the log does not go that far: nothing is done); those of [`Client::append`],
    /// before anything is given up, unless there is no room after it either: then the names are gone too.
    pub async fn trim_prefix(&self, pos: LogPos) -> Result<(), ClientError> {
        let tail = self.inner.cut_at_tail(pos, self.inner.deadline()).await?;
        if tail < pos {
            return Err(ClientError::Unwritten { pos: tail });
        }
        let names = self.names_below(pos).await?;
        let mut told = self.tell(&names, pos).await;
        if told.as_ref().is_err_and(|error| !error.is_full()) {
            return told;
        }
        self.inner.trim(LogPos(0)..pos).await?;
        let deadline = self.inner.deadline();
        while told.as_ref().is_err_and(ClientError::is_full) && self.inner.env.now() < deadline {
            self.inner.env.sleep(ROOM_WAIT).await;
            told = self.tell(&names, pos).await;
        }
        told
    }

    /// The names that were told below `pos`, all of which is to be trimmed: what is damaged is passed over. On a log without room for the
    /// junk of a hole what lies below that is trimmed now, which makes some; if it does not the rest is passed over.
    async fn names_below(&self, pos: LogPos) -> Result<Vec<Bytes>, ClientError> {
        let (mut names, mut next, mut trimmed) = (BTreeSet::new(), LogPos(0), LogPos(0));
        let mut deadline = self.inner.env.now();
        while next < pos {
            match self.some_names(next..pos, &mut names).await {
                Ok(upto) if upto == next => break,
                Ok(upto) => next = upto,
                Err(ClientError::Damaged { pos }) => next = LogPos(pos.0 + 1),
                Err(error) if !error.is_full() => return Err(error),
                Err(_) if trimmed < next => {
                    self.inner.trim(LogPos(0)..next).await?;
                    (trimmed, deadline) = (next, self.inner.deadline());
                }
                Err(_) if self.inner.env.now() < deadline => self.inner.env.sleep(ROOM_WAIT).await,
                Err(_) => break,
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Appends names, at or above `from`.
    async fn tell(&self, names: &[Bytes], from: LogPos) -> Result<(), ClientError> {
        for names in names.chunks(TOLD_TOGETHER_COUNT) {
            let appends = names.iter().map(|name| self.append_to(&[StreamId::NAMES], name.clone())).collect();
            let told = gather(appends, Result::is_err).await;
            for placed in told.into_iter().flatten() {
                // An epoch has begun below: the log does not go that far any more.
                let pos = placed?.pos;
                if pos < from {
                    return Err(ClientError::Unwritten { pos });
                }
            }
        }
        Ok(())
    }
}

/// Refuses names of no bytes, or of too many.
fn check(name: &str) -> Result<(), StreamsError> {
    let (len, limit) = (name.len(), limits::STREAM_NAME_MAX_BYTES);
    if len == 0 || len > limit { Err(StreamsError::Name { len, limit }) } else { Ok(()) }
}
