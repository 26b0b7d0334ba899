//! The names of streams: entries of a stream of their own, each told by whoever appends to a stream first.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;

use super::error::{ClientError, StreamsError};
use super::{Client, limits};
use crate::pos::{LogPos, StreamId};

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
        match tails.streams.first().filter(|tail| tail.bound().is_some()) {
            None => Ok(false),
            Some(tail) => Ok(tail.last.is_some() || self.newest(stream).await?.is_some()),
        }
    }

    /// The names of all streams that were named, in the order of the names.
    pub async fn stream_names(&self) -> Result<Vec<String>, ClientError> {
        let tail = self.stream_tails(&[]).await?.tail;
        let mut names = BTreeSet::new();
        self.add_names(LogPos(0)..tail, &mut names).await?;
        // What is no name was not written by this library.
        let text = |name: &Bytes| String::from_utf8(name.to_vec()).ok();
        Ok(names.iter().filter_map(text).collect())
    }

    /// Adds the names that were told in a range.
    pub(super) async fn add_names(
        &self,
        range: Range<LogPos>,
        names: &mut BTreeSet<Bytes>,
    ) -> Result<(), ClientError> {
        let mut next = range.start;
        while next < range.end {
            let upto = self.some_names(next..range.end, names).await?;
            if upto == next {
                // The epoch has ended, and what was granted in it from here on is taken back.
                break;
            }
            next = upto;
        }
        Ok(())
    }

    /// Adds the names that were told in the first piece of a range, and gives where that ends.
    pub(super) async fn some_names(
        &self,
        range: Range<LogPos>,
        names: &mut BTreeSet<Bytes>,
    ) -> Result<LogPos, ClientError> {
        let part = self.read_stream(StreamId::NAMES, range, limits::READ_MAX_BYTES).await?;
        names.extend(part.entries.into_iter().map(|entry| entry.data));
        Ok(part.upto)
    }
}

/// Refuses names of no bytes, or of too many.
fn check(name: &str) -> Result<(), StreamsError> {
    let (len, limit) = (name.len(), limits::STREAM_NAME_MAX_BYTES);
    if len == 0 || len > limit { Err(StreamsError::Name { len, limit }) } else { Ok(()) }
}
