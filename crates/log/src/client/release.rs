//! Trimming streams: a release first, which is an entry of the log, then the positions that no stream needs any more.
//!
//! ```text
//!   log          a0  b0  ab  a2  b2  a3          trim_stream(a, 3)
//!   released a   ├────────────────┤              1. the release is appended: durable, and decided by its place in the log
//!   trimmed      a0          a2                  2. what all of its streams have released is trimmed
//! ```
//!
//! What crashes between the two leaves entries that could be trimmed; whoever trims one of their streams next trims them.

use std::rc::Rc;

use ithaca_env::task::gather;

use super::error::{ClientError, StreamsError};
use super::read::Entry;
use super::streams::{Asked, Shows};
use super::{Client, Inner};
use crate::limits;
use crate::planted::PlantedBug;
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::release::{Release, Releases};
use crate::wire::Wanted;

/// Bytes of heads that are looked at together.
const HEADS_BYTES: usize = 1 << 20;
/// Ranges that are trimmed at the same time.
const TRIMS_MAX: usize = 64;

impl Client {
    /// Up to where `stream` is released: its first retained entry stands at or above that. What is released may still be read in the log as
    /// long as another stream has it.
    pub async fn released(&self, stream: StreamId) -> Result<Release, ClientError> {
        Ok(self.releases().await?.0.get(stream))
    }

    /// Gives up the entries of `stream` below a position of it, for ever. On return that is durable, and what no other stream needs is trimmed.
    /// An entry of several streams is trimmed when all of them have released it. To release what is released changes nothing, and
    /// trims what an earlier call has left.
    ///
    /// Errors: `Streams` (`PastEnd`: the stream does not go that far; `System`: it is the system's own); those of appends and trims. After
    /// an error, and if the future is dropped, the release may have been done, and its trims in part.
    pub async fn trim_stream(&self, stream: StreamId, below: StreamPos) -> Result<(), ClientError> {
        if stream.is_system() {
            return Err(StreamsError::System { stream }.into());
        }
        let (mut releases, records) = self.releases().await?;
        let known = releases.get(stream);
        if below > known.below
            && let Some(last) = self.last_below(stream, below).await?
        {
            let log_below = known.log_below.max(LogPos(last.pos.0 + 1));
            let release = Releases::of(stream, Release { below, log_below });
            self.append_releases(&release).await?;
            releases.add(&release);
        }
        self.inner.trim_released(stream, &releases).await?;
        if records.len() >= limits::RELEASE_RECORDS_MAX_COUNT {
            self.append_releases(&releases).await?;
            self.inner.trim_positions(&records).await?;
        }
        Ok(())
    }

    /// What streams have released, and where the records of it stand.
    async fn releases(&self) -> Result<(Releases, Vec<LogPos>), ClientError> {
        let mut reader = self.stream_reader(StreamId::RELEASES, LogPos(0));
        let (mut releases, mut records) = (Releases::default(), Vec::new());
        let mut known = StreamPos(0);
        loop {
            let end = reader.sync().await?.next;
            let mut count = 0;
            while let Some(entry) = reader.read_next().await? {
                count += 1;
                // What cannot be read releases nothing, which is on the safe side.
                if let Ok(record) = Releases::decode(&entry.data) {
                    releases.add(&record);
                    records.push(entry.pos);
                }
            }
            // One that is missing may have been trimmed just now: then a record of them all stands behind, or among those that were read.
            if known.0 + count == end.0 {
                return Ok((releases, records));
            }
            known = end;
        }
    }

    async fn append_releases(&self, releases: &Releases) -> Result<(), ClientError> {
        for record in releases.encode() {
            self.append_to(&[StreamId::RELEASES], record).await?;
        }
        Ok(())
    }

    /// The last entry of the stream below a position of it; `None` if it has none there any more.
    async fn last_below(&self, stream: StreamId, below: StreamPos) -> Result<Option<Entry>, ClientError> {
        let tails = self.stream_tails(&[stream]).await?;
        let tail = tails.streams.first().copied().expect("as many as were asked about");
        if below > tail.next {
            return Err(StreamsError::PastEnd { stream, below, next: tail.next }.into());
        }
        let Some(bound) = tail.bound() else { return Ok(None) };
        let found = self.search_stream(stream, bound, |position| position < below).await?;
        Ok(found)
    }
}

impl Inner {
    /// Trims what is left of the released part of `stream` and that all of its streams have released.
    async fn trim_released(
        self: &Rc<Self>,
        stream: StreamId,
        releases: &Releases,
    ) -> Result<(), ClientError> {
        let asked = Asked { wanted: Wanted::Stream(stream), shows: Shows::Heads, limit_bytes: HEADS_BYTES };
        let end = releases.get(stream).log_below;
        let by_one = self.options.planted.is(PlantedBug::StreamReleasedByOne);
        let mut next = LogPos(0);
        while next < end {
            let part = self.stream_part(asked, next..end).await?;
            let is_free = |entry: &&Entry| {
                by_one || entry.streams.iter().all(|place| entry.pos < releases.get(place.stream).log_below)
            };
            let free: Vec<LogPos> = part.entries.iter().filter(is_free).map(|entry| entry.pos).collect();
            self.trim_positions(&free).await?;
            next = part.upto;
        }
        Ok(())
    }

    /// Trims positions, ascending, those that follow each other together.
    async fn trim_positions(self: &Rc<Self>, positions: &[LogPos]) -> Result<(), ClientError> {
        let ranges: Vec<_> = positions.chunk_by(|one, next| one.0 + 1 == next.0).collect();
        for some in ranges.chunks(TRIMS_MAX) {
            let trims = some.iter().map(|range| {
                let (first, last) = (range[0], range[range.len() - 1]);
                self.trim(first..LogPos(last.0 + 1))
            });
            let trimmed = gather(trims.collect(), Result::is_err).await;
            trimmed.into_iter().flatten().collect::<Result<(), _>>()?;
        }
        Ok(())
    }
}
