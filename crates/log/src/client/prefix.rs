//! Trimming the beginning of the log: what its streams must not forget is said once more first.
//!
//! ```text
//!   log      n(a) a0 n(b) b0 a1 r(c) │ b1            trim_prefix(│)
//!   said     n(a) n(b) r(a,c)                        1. names, releases, and a release of what is given up whole
//!   trimmed  ─────────────────────────               2. all below
//! ```
//!
//! Each entry that is left names the one before it, so that whoever reads its stream sees that something is missing. Where none is left
//! the release says so, whatever sequencers forget.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ithaca_env::task::gather;

use super::error::ClientError;
use super::{Client, limits};
use crate::pos::{LogPos, StreamId};
use crate::release::{Release, Releases};
use crate::stream::StreamTail;

/// Entries that are said again at a time.
const TOLD_TOGETHER_COUNT: usize = 1024;
/// Streams whose newest entries are looked for at a time.
const LOOKS_MAX: usize = 64;
/// How often a log that was full is asked whether a trim has made room.
const ROOM_WAIT: Duration = Duration::from_millis(50);

/// What is said again above what is trimmed.
#[derive(Default)]
struct Kept {
    names: BTreeSet<Bytes>,
    releases: Releases,
}

impl Client {
    /// Gives up every position below `pos`, for ever. Durable.
    ///
    /// What was said there of streams is appended once more first, since they may go on above: their names, and what they have released. Those
    /// of which nothing is left are released up to there. On a log without room that is done after the trim, which makes some. Errors:
    /// `Unwritten` (the log does not go that far: nothing is done); those of [`Client::append`], before anything is given up, unless there is no
    /// room after it either: then names and releases are gone too.
    pub async fn trim_prefix(&self, pos: LogPos) -> Result<(), ClientError> {
        let tail = self.inner.cut_at_tail(pos, self.inner.deadline()).await?;
        if tail < pos {
            return Err(ClientError::Unwritten { pos: tail });
        }
        let mut kept = self.kept_below(pos).await?;
        match self.ended_below(pos, &kept).await {
            Ok(ended) => kept.releases.add(&ended),
            Err(error) if error.is_full() => {}
            Err(error) => return Err(error),
        }
        let mut told = self.tell(&kept, pos).await;
        if told.as_ref().is_err_and(|error| !error.is_full()) {
            return told;
        }
        self.inner.trim(LogPos(0)..pos).await?;
        let deadline = self.inner.deadline();
        while told.as_ref().is_err_and(ClientError::is_full) && self.inner.env.now() < deadline {
            self.inner.env.sleep(ROOM_WAIT).await;
            told = self.tell(&kept, pos).await;
        }
        told
    }

    /// What was said below `pos`, all of which is to be trimmed: what is damaged is passed over. On a log without room for the junk of a hole
    /// what lies below that is trimmed now, which makes some; if it does not the rest is passed over.
    async fn kept_below(&self, pos: LogPos) -> Result<Kept, ClientError> {
        let (mut kept, mut next, mut trimmed) = (Kept::default(), LogPos(0), LogPos(0));
        let mut deadline = self.inner.env.now();
        while next < pos {
            match self.some_kept(next, pos, &mut kept).await {
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
        Ok(kept)
    }

    /// Adds what was said in the first piece of a range, and gives where that ends.
    async fn some_kept(&self, from: LogPos, to: LogPos, kept: &mut Kept) -> Result<LogPos, ClientError> {
        let upto = self.some_names(from..to, &mut kept.names).await?;
        let mut next = from;
        while next < upto {
            let part = self.read_stream(StreamId::RELEASES, next..upto, limits::READ_MAX_BYTES).await?;
            let records = part.entries.iter().filter_map(|entry| Releases::decode(&entry.data).ok());
            records.for_each(|record| kept.releases.add(&record));
            if part.upto == next {
                return Ok(next);
            }
            next = part.upto;
        }
        Ok(upto)
    }

    /// Releases of the named streams that have entries below `pos` and none above.
    async fn ended_below(&self, pos: LogPos, kept: &Kept) -> Result<Releases, ClientError> {
        // An object's name may stand far above its first change.
        let mut names = kept.names.clone();
        let tail = self.stream_tails(&[]).await?.tail;
        self.add_names(pos..tail, &mut names).await?;
        let streams: Vec<StreamId> = names.iter().filter_map(named).collect();
        let mut ended = Releases::default();
        for streams in streams.chunks(limits::CHECK_STREAMS_MAX_COUNT) {
            let tails = self.stream_tails(streams).await?.streams;
            let few: Vec<_> =
                streams.iter().zip(tails).filter(|(_, tail)| may_end_below(tail, pos)).collect();
            for few in few.chunks(LOOKS_MAX) {
                let looks = few.iter().map(|(stream, tail)| self.end_below(**stream, *tail, pos)).collect();
                for found in gather(looks, Result::is_err).await.into_iter().flatten() {
                    ended.add(&found?);
                }
            }
        }
        Ok(ended)
    }

    /// The release of all of a stream that ends at `tail`, if its newest entry stands below `pos`; of nothing else.
    async fn end_below(
        &self,
        stream: StreamId,
        tail: StreamTail,
        pos: LogPos,
    ) -> Result<Releases, ClientError> {
        let Some(bound) = tail.bound() else { return Ok(Releases::default()) };
        let newest = match self.last_before(stream, LogPos(bound.0 + 1)).await {
            Ok(found) => found.map(|entry| entry.pos),
            Err(ClientError::Damaged { pos }) => Some(pos),
            Err(error) => return Err(error),
        };
        let release =
            |at: LogPos| Releases::of(stream, Release { below: tail.next, log_below: LogPos(at.0 + 1) });
        Ok(newest.filter(|at| *at < pos).map(release).unwrap_or_default())
    }

    /// Appends what is kept, at or above `from`.
    async fn tell(&self, kept: &Kept, from: LogPos) -> Result<(), ClientError> {
        let names = kept.names.iter().map(|name| (StreamId::NAMES, name.clone()));
        let releases = kept.releases.encode().map(|record| (StreamId::RELEASES, record));
        let entries: Vec<_> = names.chain(releases).collect();
        for some in entries.chunks(TOLD_TOGETHER_COUNT) {
            let appends = some
                .iter()
                .map(|(stream, entry)| self.append_to(std::slice::from_ref(stream), entry.clone()));
            let told = gather(appends.collect(), Result::is_err).await;
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

/// The stream of a name; `None` for what no library has written.
fn named(name: &Bytes) -> Option<StreamId> {
    Some(StreamId::of_name(std::str::from_utf8(name).ok()?))
}

/// Whether a stream that ends there may have entries below `pos` alone.
fn may_end_below(tail: &StreamTail, pos: LogPos) -> bool {
    tail.bound().is_some() && tail.last < Some(pos)
}
