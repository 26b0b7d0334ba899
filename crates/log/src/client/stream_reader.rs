//! A reader that goes through one stream.
//!
//! Its habits are those of a reader of the log's streams as the papers have it: `sync` finds out up to where the stream goes, and
//! `read_next` gives what was found, entry by entry, without asking the sequencer. (Wei 4.1; there the application must call `sync` before
//! `readnext` to be sure that it sees everything, and so it is here.)
//!
//! What came since the last `sync` is found in one of two ways:
//!
//! ```text
//!   few entries in much log:   … ◄──previous── e ◄────────previous──────── e ◄─ last      read one by one, from the end back, and kept
//!   else:                      [ stripes are asked for the stream in a range of log positions ]      read from the front on
//! ```

use std::collections::VecDeque;
use std::rc::Rc;

use ithaca_env::task::TaskHandle;

use super::error::ClientError;
use super::read::{Entry, EntryKind};
use super::stream_parts::StreamPart;
use super::streams::{Asked, Shows};
use super::watch::LOOK_MIN;
use super::{Client, Inner};
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;
use crate::wire::Wanted;

/// Entries that are looked for one by one, at the most.
const WALK_MAX_COUNT: u64 = 256;
/// Log positions per entry from which on that is less work.
const WALK_MIN_SPAN: u64 = 1024;
/// Bytes of such entries that are kept until they are given. What is longer together is read again, the oldest first.
const KEPT_MAX_BYTES: usize = 4 << 20;
/// Positions that are read again together.
const READ_MAX_COUNT: usize = 64;
/// Bytes of the stream that are read together unless told otherwise.
const READ_BYTES: usize = 1 << 20;

/// Goes through a stream in order. Dropping it ends nothing but itself.
pub struct StreamReader {
    inner: Rc<Inner>,
    stream: StreamId,
    read_bytes: usize,
    /// Below this position everything was given out or is in `ready`.
    next: LogPos,
    ready: VecDeque<Entry>,
    /// Up to here the stripes are asked from `next` on;
    scan_to: LogPos,
    /// the part that begins at `next` is read already while what comes before it is given out,
    coming: Option<TaskHandle<Option<StreamPart>>>,
    /// from there on the stream has these entries,
    found: VecDeque<Found>,
    /// up to here.
    synced: LogPos,
    /// The stream's next position, as of the last `sync`.
    known: StreamPos,
}

/// An entry that was found from the stream's end back.
enum Found {
    Kept(Entry),
    /// To be read again.
    At(LogPos),
}

impl Client {
    /// A reader of `stream` from a log position on. It has to [`sync`](StreamReader::sync) before it finds anything.
    pub fn stream_reader(&self, stream: StreamId, from: LogPos) -> StreamReader {
        StreamReader {
            inner: Rc::clone(&self.inner),
            stream,
            read_bytes: READ_BYTES,
            next: from,
            ready: VecDeque::new(),
            scan_to: from,
            coming: None,
            found: VecDeque::new(),
            synced: from,
            known: StreamPos(0),
        }
    }

    /// The entry at a position of a stream; `None` if there is none: it was not granted yet, became junk, or is trimmed. Looks for it in
    /// as many steps as the length of the log has binary digits, at the most.
    pub async fn read_stream_at(
        &self,
        stream: StreamId,
        position: StreamPos,
    ) -> Result<Option<Entry>, ClientError> {
        let tails = self.stream_tails(&[stream]).await?;
        let bound = tails.streams.first().filter(|tail| position < tail.next).and_then(StreamTail::bound);
        let Some(bound) = bound else { return Ok(None) };
        let found = self.search_stream(stream, bound, |at| at <= position).await?;
        let is_it = |entry: &Entry| data_place(entry, stream).is_some_and(|place| place.position == position);
        Ok(found.filter(is_it))
    }

    /// A log position that the entries of a stream at or above `position` stand at or above, and those before it below. The log's tail if
    /// the stream does not go that far.
    pub async fn stream_start(&self, stream: StreamId, position: StreamPos) -> Result<LogPos, ClientError> {
        let tails = self.stream_tails(&[stream]).await?;
        let tail = tails.streams.first().copied().expect("as many as were asked about");
        match tail.bound() {
            Some(bound) if position < tail.next => {
                let before = self.search_stream(stream, bound, |at| at < position).await?;
                Ok(before.map_or(LogPos(0), |entry| LogPos(entry.pos.0 + 1)))
            }
            _ => Ok(tails.tail),
        }
    }

    /// The last entry of the stream up to the log position `last` whose place in the stream is one of `is_in`, which the first ones are and
    /// the later ones are not.
    pub(super) async fn search_stream(
        &self,
        stream: StreamId,
        last: LogPos,
        is_in: impl Fn(StreamPos) -> bool,
    ) -> Result<Option<Entry>, ClientError> {
        // Everything below `low` was looked at, and `found` is the last of it that is in; from `below` on nothing is.
        let (mut low, mut below) = (LogPos(0), LogPos(last.0 + 1));
        let mut found = None;
        let mut look_at = below;
        while low < below {
            match self.last_before(stream, look_at).await? {
                Some(entry) if data_place(&entry, stream).is_some_and(|place| is_in(place.position)) => {
                    found = Some(entry);
                    low = look_at;
                }
                Some(entry) => below = entry.pos,
                None => low = look_at,
            }
            look_at = LogPos(low.0 + below.0.saturating_sub(low.0).div_ceil(2));
        }
        Ok(found)
    }
}

impl StreamReader {
    /// The same, reading about so many bytes of the stream together, instead of 1 MiB; as many are read ahead while they are given out.
    pub fn with_read_bytes(self, read_bytes: usize) -> Self {
        Self { read_bytes, ..self }
    }

    /// The log position from which on the stream was not given out yet.
    pub fn position(&self) -> LogPos {
        self.ready.front().map_or(self.next, |entry| entry.pos)
    }

    /// Finds out up to where the stream goes now: everything that was acknowledged before the call is given by
    /// [`read_next`](Self::read_next) from here on. Returns the stream's end.
    ///
    /// Errors: those of any call. Dropping the future loses nothing.
    pub async fn sync(&mut self) -> Result<StreamTail, ClientError> {
        let client = Client { inner: Rc::clone(&self.inner) };
        let tails = client.stream_tails(&[self.stream]).await?;
        let tail = tails.streams.first().copied().expect("as many as were asked about");
        self.find(tail).await?;
        Ok(tail)
    }

    /// The stream ends there: finds out where its entries up to there are.
    async fn find(&mut self, tail: StreamTail) -> Result<(), ClientError> {
        let from = self.synced;
        if let Some(last) = tail.bound().filter(|&last| last >= from) {
            // Not up to the log's tail: what was granted below it and is lost may be granted again, to this stream too.
            let to = LogPos(last.0 + 1);
            let count = tail.next.0.saturating_sub(self.known.0);
            let is_rare = count.saturating_mul(WALK_MIN_SPAN) <= to.0 - from.0;
            let walked = match count <= WALK_MAX_COUNT && is_rare {
                true => self.walk(last).await?,
                false => None,
            };
            match walked {
                Some(walked) => self.found.extend(walked),
                None => {
                    self.found.clear();
                    self.scan_to = to;
                }
            }
            self.synced = to;
        }
        self.known = tail.next;
        Ok(())
    }

    /// The next entry that is known of since the last [`sync`](Self::sync); `None` if all were given. What is trimmed is left out.
    ///
    /// Errors: `Damaged`, and those of any call. Dropping the future loses nothing.
    pub async fn read_next(&mut self) -> Result<Option<Entry>, ClientError> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Ok(Some(entry));
            }
            if self.next < self.scan_to {
                let part = self.next_part().await?;
                if part.upto == self.next {
                    // A new sequencer has taken the rest back, and grants it anew.
                    self.found.clear();
                    (self.scan_to, self.synced, self.known) = (self.next, self.next, StreamPos(0));
                    return Ok(None);
                }
                self.ready.extend(part.entries);
                self.next = part.upto;
                self.read_ahead().await;
            } else if let Some(Found::Kept(entry)) =
                self.found.pop_front_if(|found| matches!(found, Found::Kept(_)))
            {
                self.next = LogPos(entry.pos.0 + 1);
                return Ok(Some(entry));
            } else if !self.found.is_empty() {
                self.read_again().await?;
            } else {
                self.next = self.synced;
                return Ok(None);
            }
        }
    }

    /// The part of the stream from `next` on.
    async fn next_part(&mut self) -> Result<StreamPart, ClientError> {
        // What failed is asked for again, and so is what was not there: another sequencer may have granted it since.
        if let Some(coming) = self.coming.take()
            && let Some(Some(part)) = coming.join().await
            && part.upto > self.next
        {
            return Ok(part);
        }
        self.inner.stream_part(self.asked(), self.next..self.scan_to).await
    }

    /// Begins to read the part from `next` on, if there is one.
    async fn read_ahead(&mut self) {
        if self.next < self.scan_to {
            let (inner, asked, range) = (Rc::clone(&self.inner), self.asked(), self.next..self.scan_to);
            let read = async move { inner.stream_part(asked, range).await.ok() };
            self.coming = Some(self.inner.env.spawn(read));
            self.inner.env.yield_and_send().await;
        }
    }

    /// Reads those that come next and were not kept.
    async fn read_again(&mut self) -> Result<(), ClientError> {
        let at = |found: &Found| if let Found::At(pos) = found { Some(*pos) } else { None };
        let positions: Vec<LogPos> = self.found.iter().map_while(at).take(READ_MAX_COUNT).collect();
        let entries = self.inner.read_many(&positions).await?;
        self.found.drain(..positions.len());
        self.next = positions.last().map_or(self.next, |last| LogPos(last.0 + 1));
        // One that was trimmed since is none any more.
        let stream = self.stream;
        self.ready.extend(entries.into_iter().filter(|entry| data_place(entry, stream).is_some()));
        Ok(())
    }

    /// Waits for the next entry, for as long as there is none; see [`wait`](Self::wait).
    pub async fn next(&mut self) -> Result<Entry, ClientError> {
        loop {
            if let Some(entry) = self.read_next().await? {
                return Ok(entry);
            }
            self.wait().await?;
        }
    }

    /// Waits until there is more to read than was known. The sequencer is asked once a second, and answers as soon as it has granted a
    /// position in the stream; the entry is then asked for at its log unit, which answers as soon as it is there. So an entry is seen
    /// about a round trip after it is durable, and a stream that stands still costs next to nothing.
    ///
    /// Errors: those of [`sync`](Self::sync). Dropping the future loses nothing.
    pub async fn wait(&mut self) -> Result<(), ClientError> {
        let (mut pause, before) = (LOOK_MIN, self.synced);
        while self.found.is_empty() && self.scan_to <= before {
            let tail = self.inner.stream_moved(self.stream, self.known, &mut pause).await?;
            self.find(tail).await?;
        }
        Ok(())
    }

    fn asked(&self) -> Asked {
        Asked { wanted: Wanted::Stream(self.stream), shows: Shows::Entries, limit_bytes: self.read_bytes }
    }

    /// The stream's entries since the last `sync`, found from the last one back: the newest are kept, as far as there is room. `None` if that
    /// one was granted in an epoch that is over, and the log ends below by now.
    async fn walk(&self, last: LogPos) -> Result<Option<Vec<Found>>, ClientError> {
        let (mut walked, mut room) = (Vec::new(), KEPT_MAX_BYTES);
        let mut at = Some(last);
        while let Some(pos) = at.filter(|&pos| pos >= self.synced) {
            // One that was granted and is not there yet is waited for, and then filled.
            let mut part = self.inner.stream_part(self.asked(), pos..LogPos(pos.0 + 1)).await?;
            if part.upto == pos {
                return Ok(None);
            }
            let entry = match part.entries.pop() {
                Some(entry) => Some(entry),
                // Junk says nothing of what came before it; what is trimmed neither.
                None => self.inner.last_before(self.stream, self.synced..pos).await?,
            };
            let Some(entry) = entry.filter(|entry| entry.pos >= self.synced) else { break };
            let place = data_place(&entry, self.stream);
            at = place.and_then(|place| place.end_before().bound()).filter(|at| *at < entry.pos);
            // What is kept follows each other up to the end.
            room = room.saturating_sub(entry.data.len());
            walked.push(if room > 0 { Found::Kept(entry) } else { Found::At(entry.pos) });
        }
        walked.reverse();
        Ok(Some(walked))
    }
}

/// The place of an entry in a stream, if it is data and has one there.
fn data_place(entry: &Entry, stream: StreamId) -> Option<crate::entry::StreamPlace> {
    entry.place_in(stream).filter(|_| entry.kind == EntryKind::Data)
}
