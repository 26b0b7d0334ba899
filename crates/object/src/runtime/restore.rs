//! Where a view begins: at a checkpoint, or where its stream does; and what it does about entries that are gone.
//!
//! A piece of the stream in which nothing was trimmed is whole. Where something was, entries tell by their places whether one
//! of this stream is missing: each names the position that was granted to the stream before it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use ithaca_env::task::{TaskHandle, gather};
use ithaca_log::client::{ClientError, Entry, EntryKind, StreamPart};
use ithaca_log::pos::{LogPos, StreamId};
use ithaca_log::stream::StreamTail;

use super::backing::{Backing, Candidates};
use super::slot::{Later, Slot};
use crate::checkpoint::Stored;
use crate::checkpoint::chunk::{Chunk, Directory, Of, Unusable};
use crate::error::ObjectError;
use crate::limits;
use crate::object::Object;
use crate::planted::PlantedBug;
use crate::view::View;

/// What stands where the catalog says that a checkpoint is.
pub(super) enum Named {
    Directory(Directory),
    /// All of it.
    Only(Chunk),
}

/// What a stream lacks that was granted to it.
enum Missing {
    None,
    /// What stood at this position.
    One(LogPos),
    /// Perhaps something: its sequencer has found trimmed what it had not seen.
    Unknown,
}

/// Bytes of a stream that are read before it is known where it ends, or to see what comes next: those of a dozen calls or more.
const PEEK_BYTES: usize = 4 << 10;

/// A piece of a stream that is asked for: from where on, and the task that does it.
pub(super) struct Coming {
    from: LogPos,
    /// `None` if it failed: whoever needs it reads it then.
    reading: TaskHandle<Option<StreamPart>>,
}

impl Coming {
    /// What has come of the piece from `from` to `to`; `None` if another one was asked for, or if it has to be read again.
    async fn part(self, from: LogPos, to: LogPos) -> Option<StreamPart> {
        if self.from != from {
            return None;
        }
        let part = cut(self.reading.join().await??, to)?;
        (part.upto > from).then_some(part)
    }
}

/// What a part says of positions below `to`; `None` if it cannot tell what is trimmed there.
fn cut(mut part: StreamPart, to: LogPos) -> Option<StreamPart> {
    if part.upto <= to {
        return Some(part);
    }
    part.entries.retain(|entry| entry.pos < to);
    part.upto = to;
    if part.trimmed.is_some_and(|trimmed| trimmed >= to) {
        // Others below may be, but not where an entry stands: as a rule that is the last position that is wanted.
        let last = part.entries.last()?.pos.0;
        if last + 1 != to.0 {
            return None;
        }
        part.trimmed = last.checked_sub(1).map(LogPos);
    }
    Some(part)
}

impl<O: Object> Slot<O> {
    /// A view that reflects nothing at or above `limit`, as far as the newest usable checkpoint goes; an empty one if there is none. What lies
    /// between the newest one and `target`, where there is one, is read at the same time as the checkpoint.
    ///
    /// Errors: `Forgotten`; `Unusable` if calls are forgotten below a checkpoint that cannot be read.
    pub(super) async fn begin_view(
        &self,
        limit: LogPos,
        target: Option<LogPos>,
    ) -> Result<View<O>, ObjectError> {
        let empty = || View::new(self.stream, self.runtime.options.planted);
        if Self::is_alone() {
            return self.begin_alone(limit);
        }
        // As a rule the catalog was asked for together with where the stream ends.
        let (mut seen, mut lately) = (None, true);
        loop {
            let Candidates { forgotten, stored } = self.backing.candidates(limit, lately).await?;
            lately = false;
            if limit < forgotten {
                return Err(self.forgotten(limit, forgotten));
            }
            if let (Some((upto, _)), Some(target)) = (stored.first(), target) {
                self.backing.read_ahead(*upto..target);
            }
            let mut unusable = None;
            for (upto, stored) in stored {
                match self.load(upto, &stored).await? {
                    Ok(view) => return Ok(view),
                    Err(reason) => unusable = Some((upto, reason)),
                }
            }
            match unusable {
                _ if forgotten == LogPos(0) || self.is_of_what_is_left => return Ok(empty()),
                // Somebody has forgotten more while they were looked at.
                _ if seen != Some(forgotten) => seen = Some(forgotten),
                unusable => {
                    let missing = || (forgotten, Unusable::State("it is not in the catalog".to_owned()));
                    let (upto, reason) = unusable.unwrap_or_else(missing);
                    return Err(ObjectError::Unusable { object: self.backing.name.clone(), upto, reason });
                }
            }
        }
    }

    pub(super) fn forgotten(&self, snapshot: LogPos, earliest: LogPos) -> ObjectError {
        ObjectError::Forgotten { object: self.backing.name.clone(), snapshot, earliest }
    }

    /// The view that a checkpoint is.
    pub(super) async fn load(
        &self,
        upto: LogPos,
        stored: &Stored,
    ) -> Result<Result<View<O>, Unusable>, ObjectError> {
        let bytes = self.backing.bytes_of(upto, stored).await?;
        let restored = bytes.and_then(|bytes| {
            let view = View::<O>::restore(self.stream, &bytes, self.runtime.options.planted);
            view.map_err(|error| Unusable::OtherType(error.to_string()))
        });
        Ok(restored.and_then(|view| match view.upto() == upto && view.may_be(stored.digest) {
            true => Ok(view),
            false => Err(Unusable::State("its state is not the one that the catalog names".to_owned())),
        }))
    }

    /// Whether the newest checkpoint of an object of which no entry is left is one of this type. One that cannot be read tells nothing.
    ///
    /// Errors: `OtherEntries`, and those of the log.
    pub(super) async fn check_checkpoint(&self) -> Result<(), ObjectError> {
        if Self::is_alone() {
            return Ok(());
        }
        let Some((upto, stored)) = self.backing.newest().await?.stored else { return Ok(()) };
        let Err(Unusable::OtherType(reason)) = self.load(upto, &stored).await? else { return Ok(()) };
        let (object, pos) = (self.backing.name.clone(), LogPos(stored.directory));
        let found = format!("is of a checkpoint of another type ({reason})");
        Err(ObjectError::OtherEntries { object, wanted: O::TYPE, pos, found })
    }

    /// Whether the object can be read, as far as what comes first after its newest checkpoint tells, or first of all if it has none.
    ///
    /// Errors: `Trimmed` if that is gone, and those of the log.
    pub(super) async fn check_beginning(&self) -> Result<(), ObjectError> {
        let (backing, client) = (&self.backing, &self.runtime.client);
        let tails = client.stream_tails(&[backing.stream]).await?;
        let Some(bound) = tails.streams.first().and_then(StreamTail::bound) else { return Ok(()) };
        let end = LogPos(bound.0 + 1);
        let (mut at, mut gap) = (self.beginning().await?, None);
        while at < end {
            let part = client.read_stream(backing.stream, at..end, PEEK_BYTES).await?;
            backing.check_breaks(&part)?;
            let (since, upto) = (gap.unwrap_or(at), part.upto);
            if backing.is_whole(&part, since) {
                break;
            }
            let judged = backing.judge(part, since..end, LogPos(u64::MAX), &mut gap).await;
            if matches!(judged, Err(ObjectError::Trimmed { .. })) && backing.doubt.take().is_some() {
                // All of it has to be read to know.
                return self.sync().await;
            }
            if judged?.is_none() || gap.is_none() {
                break;
            }
            at = upto;
        }
        Ok(())
    }

    /// Where whoever reads the object begins: behind its newest checkpoint, if that is there.
    ///
    /// Errors: `Unusable` if it is not, and calls are forgotten that it reflects.
    async fn beginning(&self) -> Result<LogPos, ObjectError> {
        let backing = &self.backing;
        loop {
            let stored = if Self::is_alone() { None } else { backing.newest().await?.stored };
            let Some((upto, stored)) = stored else { return Ok(LogPos(0)) };
            let Err(reason) = backing.named(LogPos(stored.directory)).await? else { return Ok(upto) };
            if !backing.is_stored(upto, &stored).await? {
                continue;
            }
            return match backing.forgotten().await? {
                LogPos(0) => Ok(LogPos(0)),
                _ => Err(ObjectError::Unusable { object: backing.name.clone(), upto, reason }),
            };
        }
    }

    /// A piece of the stream; `None` if some of it from `from` on is forgotten, so that a checkpoint is to be taken instead.
    /// `gap` is what it could not tell about the piece before.
    ///
    /// Errors: `Trimmed` if some of it is gone, or may be and there is a checkpoint of at most `limit` that knows: the doubt is noted.
    pub(super) fn piece<'p>(
        &'p self,
        from: LogPos,
        to: LogPos,
        limit: LogPos,
        gap: &'p mut Option<LogPos>,
    ) -> Later<'p, Result<Option<StreamPart>, ObjectError>> {
        Box::pin(self.piece_of(from..to, limit, gap))
    }

    async fn piece_of(
        &self,
        Range { start: from, end: to }: Range<LogPos>,
        limit: LogPos,
        gap: &mut Option<LogPos>,
    ) -> Result<Option<StreamPart>, ObjectError> {
        let part = self.backing.read(from, to).await?;
        if !self.is_of_what_is_left {
            self.backing.check_breaks(&part)?;
        }
        let since = gap.unwrap_or(from);
        let is_off = from > LogPos(0) && self.runtime.options.planted.is(PlantedBug::GapNotSeen);
        if (part.trimmed.is_none() && gap.is_none()) || self.backing.is_whole(&part, since) || is_off {
            *gap = None;
            return Ok(Some(part));
        }
        if Self::is_alone() && self.find_alone(&part, since).await? {
            *gap = None;
            return Ok(None);
        }
        if self.is_of_what_is_left {
            return Ok(Some(part));
        }
        self.backing.judge(part, since..to, limit, gap).await
    }
}

impl Backing {
    /// The bytes of a checkpoint of which the catalog says `stored`.
    pub(super) fn bytes_of<'s>(
        &'s self,
        upto: LogPos,
        stored: &'s Stored,
    ) -> Later<'s, Result<Result<Bytes, Unusable>, ObjectError>> {
        let of = Of { object: self.stream, id: stored.id, upto };
        Box::pin(async move {
            Ok(match self.named(LogPos(stored.directory)).await? {
                Ok(Named::Only(chunk)) if chunk.of == of && chunk.number == 0 => Ok(chunk.data),
                Ok(Named::Directory(directory)) if directory.of == of => self.gathered(&directory).await?,
                Ok(_) => Err(Unusable::Other { pos: LogPos(stored.directory) }),
                Err(reason) => Err(reason),
            })
        })
    }

    /// The bytes of all chunks.
    async fn gathered(&self, directory: &Directory) -> Result<Result<Bytes, Unusable>, ObjectError> {
        let most = directory.chunks.len().saturating_mul(limits::CHUNK_MAX_BYTES) as u64;
        let mut bytes = BytesMut::with_capacity(directory.len.min(most) as usize);
        let mut number = 0;
        for some in directory.chunks.chunks(limits::CHUNKS_AT_ONCE) {
            for entry in self.runtime.client.read_many(some).await? {
                match chunk_of(&entry, directory.of, number) {
                    Ok(chunk) => bytes.extend_from_slice(&chunk.data),
                    Err(reason) => return Ok(Err(reason)),
                }
                number += 1;
            }
            if bytes.len() as u64 > directory.len {
                return Ok(Err(Unusable::State("its chunks are longer than it is".to_owned())));
            }
        }
        Ok(Ok(bytes.freeze()))
    }

    /// What stands at the position that a catalog names.
    pub(super) async fn named(&self, pos: LogPos) -> Result<Result<Named, Unusable>, ObjectError> {
        let entry = self.runtime.client.read(pos).await?;
        if entry.kind != EntryKind::Data {
            return Ok(Err(Unusable::Missing { pos }));
        }
        let only = Chunk::decode(&entry.data).map(Named::Only);
        let named = only.or_else(|_| Directory::decode(&entry.data).map(Named::Directory));
        Ok(named.map_err(|error| Unusable::Record { pos, error }))
    }

    /// Begins to read a piece of the stream that is asked for next.
    pub(super) fn read_ahead(&self, piece: Range<LogPos>) {
        if piece.is_empty() {
            return;
        }
        let (client, stream, bytes) =
            (self.runtime.client.clone(), self.stream, self.runtime.options.read_bytes);
        let from = piece.start;
        let read = async move { client.read_stream(stream, piece, bytes).await.ok() };
        let reading = self.runtime.env.spawn(read);
        self.coming.replace(Some(Coming { from, reading }));
    }

    /// Begins to read a short stream, of which it is not known yet where it ends.
    pub(super) fn peek(&self, from: LogPos) {
        let (client, stream) = (self.runtime.client.clone(), self.stream);
        let read = async move { client.peek_stream(stream, from, PEEK_BYTES).await.ok().flatten() };
        let reading = self.runtime.env.spawn(read);
        self.coming.replace(Some(Coming { from, reading }));
    }

    /// A piece of the stream, which may have been read ahead.
    fn read(&self, from: LogPos, to: LogPos) -> Later<'_, Result<StreamPart, ObjectError>> {
        Box::pin(async move {
            let coming = match self.coming.take() {
                Some(coming) => coming.part(from, to).await,
                None => None,
            };
            Ok(match coming {
                Some(part) => part,
                None => {
                    let bytes = self.runtime.options.read_bytes;
                    self.runtime.client.read_stream(self.stream, from..to, bytes).await?
                }
            })
        })
    }

    /// Errors: `Trimmed` if the object begins anew within a piece: by what comes before that nobody goes on.
    fn check_breaks(&self, part: &StreamPart) -> Result<(), ObjectError> {
        let is_break = |entry: &&Entry| !self.is_alone && Chunk::is_break(&entry.data, self.stream);
        let last = part.entries.iter().rfind(is_break);
        last.map_or(Ok(()), |last| Err(self.trimmed(LogPos(last.pos.0 + 1))))
    }

    fn trimmed(&self, below: LogPos) -> ObjectError {
        ObjectError::Trimmed { object: self.name.clone(), below }
    }

    /// What of a piece is of use that is not whole from where it begins: see [`Slot::piece`].
    fn judge<'p>(
        &'p self,
        part: StreamPart,
        piece: Range<LogPos>,
        limit: LogPos,
        gap: &'p mut Option<LogPos>,
    ) -> Later<'p, Result<Option<StreamPart>, ObjectError>> {
        Box::pin(self.judged(part, piece, limit, gap))
    }

    async fn judged(
        &self,
        part: StreamPart,
        piece: Range<LogPos>,
        limit: LogPos,
        gap: &mut Option<LogPos>,
    ) -> Result<Option<StreamPart>, ObjectError> {
        let since = piece.start;
        // The catalog is told of what is forgotten before that is released and trimmed: so it is asked last.
        let missing = self.missing(&part, piece, gap).await;
        let released = self.runtime.client.released(self.stream).await?.log_below;
        if !self.is_alone && self.forgotten().await? > since {
            *gap = None;
            return Ok(None);
        }
        let below = match missing {
            _ if released > since => Some(released),
            Ok(Missing::One(pos)) => Some(LogPos(pos.0 + 1)),
            Ok(Missing::Unknown) if !self.is_alone => {
                let stored = self.candidates(limit, false).await?.stored.into_iter().next();
                let knows = stored.filter(|(upto, _)| *upto > since);
                self.doubt.set(knows.as_ref().map(|(upto, stored)| (*upto, stored.count)));
                knows.map(|(upto, _)| upto)
            }
            missing => missing.map(|_| None)?,
        };
        match below {
            Some(below) => Err(self.trimmed(below)),
            None => Ok(Some(part)),
        }
    }

    /// Whether something of a piece was granted to the stream and trimmed, by what the entries tell. Whoever trims positions of the log says
    /// nothing to its streams, but each entry names what was granted before it.
    async fn missing(
        &self,
        part: &StreamPart,
        piece: Range<LogPos>,
        gap: &mut Option<LogPos>,
    ) -> Result<Missing, ObjectError> {
        let (mut known, mut found) = (piece.start, Missing::None);
        for entry in &part.entries {
            match self.missing_at(end_before(entry, self.stream), known).await? {
                Missing::None => {}
                Missing::Unknown => found = Missing::Unknown,
                missing => return Ok(missing),
            }
            known = LogPos(entry.pos.0 + 1);
        }
        let is_open = gap.is_some() && part.entries.is_empty();
        *gap = (is_open || part.trimmed >= Some(known)).then_some(known);
        if gap.is_none() || part.upto < piece.end {
            return Ok(found);
        }
        *gap = None;
        match self.missing_at(self.end_from(piece.end).await?, known).await? {
            Missing::None => Ok(found),
            missing => Ok(missing),
        }
    }

    /// Whether something is missing from `known` on up to where the stream ended so.
    async fn missing_at(&self, end: Option<StreamTail>, known: LogPos) -> Result<Missing, ObjectError> {
        let Some(end) = end.filter(|end| end.bound() >= Some(known)) else {
            return Ok(Missing::None);
        };
        let Some(last) = end.last.filter(|last| *last >= known) else { return Ok(Missing::Unknown) };
        match self.runtime.client.read(last).await {
            Ok(entry) if entry.kind == EntryKind::Trimmed => Ok(Missing::One(last)),
            Ok(_) | Err(ClientError::Unwritten { .. }) => Ok(Missing::None),
            Err(error) => Err(error.into()),
        }
    }

    /// Where the stream ended before its next entry from `to` on; where it ends, if there is none.
    async fn end_from(&self, to: LogPos) -> Result<Option<StreamTail>, ObjectError> {
        let client = &self.runtime.client;
        let tails = client.stream_tails(&[self.stream]).await?;
        let Some(&tail) = tails.streams.first() else { return Ok(None) };
        let (mut next, end) = (to, tail.bound().map_or(to, |bound| LogPos(bound.0 + 1)));
        while next < end {
            let part = client.read_stream(self.stream, next..end, PEEK_BYTES).await?;
            if let Some(entry) = part.entries.first() {
                return Ok(end_before(entry, self.stream));
            }
            if part.upto <= next {
                break;
            }
            next = part.upto;
        }
        Ok(Some(tail))
    }

    /// Whether its entries follow each other from `since` on, and nothing was trimmed behind them.
    fn is_whole(&self, part: &StreamPart, since: LogPos) -> bool {
        let mut before = None;
        for entry in &part.entries {
            let Some(place) = entry.place_in(self.stream) else { return false };
            let follows = match before {
                None => place.end_before().bound().is_none_or(|bound| bound < since),
                Some(_) => place.end_before().bound() == before,
            };
            if !follows {
                return false;
            }
            before = Some(entry.pos);
        }
        before.is_some_and(|last| part.trimmed.is_none_or(|trimmed| trimmed < last))
    }

    /// Trims positions of the log that belong to the object's checkpoints alone.
    pub(super) async fn trim_all(&self, positions: &[LogPos]) -> Result<(), ObjectError> {
        for some in positions.chunks(limits::CHUNKS_AT_ONCE) {
            let trims = some.iter().map(|pos| self.runtime.client.trim(*pos)).collect();
            let trimmed = gather(trims, Result::is_err).await;
            trimmed.into_iter().flatten().collect::<Result<(), _>>()?;
        }
        Ok(())
    }
}

/// Where the stream ended before an entry.
fn end_before(entry: &Entry, stream: StreamId) -> Option<StreamTail> {
    Some(entry.place_in(stream)?.end_before())
}

/// The chunk that an entry should be.
fn chunk_of(entry: &Entry, of: Of, number: u32) -> Result<Chunk, Unusable> {
    let pos = entry.pos;
    if entry.kind != EntryKind::Data {
        return Err(Unusable::Missing { pos });
    }
    match Chunk::decode(&entry.data) {
        Ok(chunk) if chunk.of == of && chunk.number == number => Ok(chunk),
        Ok(_) => Err(Unusable::Other { pos }),
        Err(error) => Err(Unusable::Record { pos, error }),
    }
}

#[cfg(test)]
mod tests {
    use ithaca_log::pos::Epoch;

    use super::*;

    fn part(entries: &[u64], upto: u64, trimmed: Option<u64>) -> StreamPart {
        let entry = |pos: &u64| Entry {
            pos: LogPos(*pos),
            kind: EntryKind::Data,
            epoch: Epoch(1),
            streams: Default::default(),
            data: Bytes::from(vec![*pos as u8]),
        };
        let entries = entries.iter().map(entry).collect();
        StreamPart { entries, upto: LogPos(upto), trimmed: trimmed.map(LogPos) }
    }

    #[test]
    fn a_part_is_cut_to_what_is_wanted_and_never_hides_what_is_trimmed() {
        let whole = || part(&[3, 7, 20], 30, Some(9));
        assert_eq!(cut(whole(), LogPos(40)), Some(whole()), "it ends before that");
        assert_eq!(cut(whole(), LogPos(30)), Some(whole()));
        assert_eq!(cut(whole(), LogPos(21)), Some(part(&[3, 7, 20], 21, Some(9))));
        assert_eq!(cut(whole(), LogPos(10)), Some(part(&[3, 7], 10, Some(9))));
        // Of position 7 and below it is not known what is trimmed; an entry stands at 7.
        assert_eq!(cut(whole(), LogPos(8)), Some(part(&[3, 7], 8, Some(6))));
        assert_eq!(cut(whole(), LogPos(9)), None, "8 may be trimmed");
        assert_eq!(cut(whole(), LogPos(2)), None);
        assert_eq!(cut(part(&[0, 7], 9, Some(8)), LogPos(1)), Some(part(&[0], 1, None)));
        assert_eq!(cut(part(&[3, 7], 9, None), LogPos(5)), Some(part(&[3], 5, None)));
    }
}
