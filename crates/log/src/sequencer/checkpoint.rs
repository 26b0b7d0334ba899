//! Checkpoints of what a sequencer knows of streams: entries of a stream of their own, [`StreamId::SEQUENCER`].
//!
//! A checkpoint is several entries, its *chunks*, each with some of the streams in the order of their ids. It need not be of one
//! moment: together with the entries of streams from the log position on at which it was begun, it says of each stream at
//! least where it ended. Only one of which every chunk is there counts. (docs/format/log.md)

use bytes::{BufMut, Bytes};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::record::{self, RecordError};

use super::known::KnownStreams;
use super::table::{self, STREAM_MAX_BYTES, StreamTable};
use crate::pos::{LogPos, StreamId};

const MAGIC: [u8; 4] = *b"ITsc";
const VERSION: u16 = 1;
/// Bytes of a chunk without streams.
const HEAD_BYTES: usize = record::ENVELOPE_BYTES + 24 + table::HEAD_BYTES;

/// A chunk of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The log position at which the checkpoint was begun: with the entries from there on it is whole. It also tells one
    /// checkpoint from another.
    pub from: LogPos,
    /// Below this log position there may be entries of any stream that were trimmed without having been seen: a stream that is in no
    /// chunk goes on there.
    pub unseen: LogPos,
    /// Its number in the checkpoint, from 0 on.
    pub number: u32,
    /// Whether it is the last one.
    pub is_last: bool,
    /// Streams and where they end.
    pub streams: StreamTable,
}

/// Makes the chunks of one checkpoint, one after the other.
#[derive(Clone, Debug)]
pub struct Checkpointing {
    from: LogPos,
    number: u32,
    after: Option<StreamId>,
    streams_max: usize,
}

impl Checkpointing {
    /// A checkpoint that begins at `from`, the sequencer's next position, in chunks of at most `chunk_bytes`.
    pub(super) fn new(from: LogPos, chunk_bytes: usize) -> Self {
        let streams_max = (chunk_bytes.saturating_sub(HEAD_BYTES) / STREAM_MAX_BYTES).max(1);
        Self { from, number: 0, after: None, streams_max }
    }

    /// The next chunk of what is known by now.
    pub(super) fn next(&mut self, known: &KnownStreams) -> Chunk {
        let mut streams = known.some_after(self.after, self.streams_max + 1);
        let is_last = streams.len() <= self.streams_max;
        streams.truncate(self.streams_max);
        let (from, unseen) = (self.from, known.unseen());
        self.after = streams.last().map(|(stream, _)| *stream).or(self.after);
        let streams = StreamTable::of(&streams);
        let chunk = Chunk { from, unseen, number: self.number, is_last, streams };
        self.number += 1;
        chunk
    }
}

impl Chunk {
    /// Its entry.
    pub fn encode(&self) -> Bytes {
        record::encode_sized(MAGIC, VERSION, HEAD_BYTES + self.streams.encoded_bytes(), |out| {
            out.put_u64_le(self.from.0);
            out.put_u64_le(self.unseen.0);
            out.put_u32_le(self.number);
            out.put_u32_le(self.is_last.into());
            self.streams.encode(out);
        })
    }

    /// The chunk that an entry is. It keeps the entry's memory.
    pub fn decode(entry: &Bytes) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let from = LogPos(decoder.u64("first position after a checkpoint")?);
        let unseen = LogPos(decoder.u64("end of what was trimmed unseen")?);
        let number = decoder.u32("chunk")?;
        let is_last = match decoder.u32("last chunk")? {
            0 => false,
            1 => true,
            other => {
                let (field, expected) = ("last chunk", "0 or 1");
                return Err(DecodeError::Invalid { field, found: other.into(), expected }.into());
            }
        };
        let streams = StreamTable::decode(&mut decoder, entry)?;
        decoder.finish()?;
        Ok(Self { from, unseen, number, is_last, streams })
    }
}

/// What a whole checkpoint says, for [`KnownStreams::noted`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complete {
    /// Where streams end: each of these tables begins behind the one before.
    pub tables: Vec<StreamTable>,
    /// For [`KnownStreams::note_unseen`].
    pub unseen: LogPos,
}

/// The checkpoint that was begun at `from`, if every chunk of it is among these; they come in the order of the log, perhaps with others.
pub fn complete(chunks: Vec<Chunk>, from: LogPos) -> Option<Complete> {
    let (mut tables, mut wanted, mut unseen) = (Vec::new(), 0, LogPos(0));
    let mut before: Option<StreamId> = None;
    for chunk in chunks.into_iter().filter(|chunk| chunk.from == from) {
        if chunk.number != wanted {
            continue;
        }
        if let Some((first, last)) = chunk.streams.ends() {
            if before.is_some_and(|before| first <= before) {
                return None;
            }
            before = Some(last);
            tables.push(chunk.streams);
        }
        unseen = unseen.max(chunk.unseen);
        wanted += 1;
        if chunk.is_last {
            return Some(Complete { tables, unseen });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pos::StreamPos;
    use crate::stream::StreamTail;

    fn known(count: u64) -> KnownStreams {
        let tail = |stream: u64| StreamTail {
            next: StreamPos(stream % 5),
            last: (!stream.is_multiple_of(5)).then_some(LogPos(stream)),
        };
        let tails = (0..count).map(|stream| (StreamId(stream.into()), tail(stream)));
        let mut known = KnownStreams::of(tails.collect());
        known.note_unseen(LogPos(7));
        known
    }

    /// What a checkpoint stands for.
    fn restored(complete: Complete) -> KnownStreams {
        let mut known = KnownStreams::noted(complete.tables, Vec::new());
        known.note_unseen(complete.unseen);
        known
    }

    fn chunks(known: &KnownStreams, streams_max: usize) -> Vec<Chunk> {
        let mut making = Checkpointing::new(LogPos(70), HEAD_BYTES + streams_max * STREAM_MAX_BYTES);
        let mut chunks = vec![making.next(known)];
        while !chunks[chunks.len() - 1].is_last {
            chunks.push(making.next(known));
        }
        chunks
    }

    #[test]
    fn a_checkpoint_is_what_was_known_however_many_chunks_it_has() {
        for (count, streams_max) in [(0, 3), (1, 3), (3, 3), (4, 3), (9, 3), (100, 7)] {
            let known = known(count);
            let made = chunks(&known, streams_max);
            assert_eq!(made.len(), (count as usize).div_ceil(streams_max).max(1));
            let read: Result<Vec<Chunk>, _> =
                made.iter().map(|chunk| Chunk::decode(&chunk.encode())).collect();
            assert_eq!(read.as_ref(), Ok(&made));
            let restored = complete(made, LogPos(70)).map(restored).expect("it is whole");
            assert_eq!(restored.all(), known.all());
            assert_eq!((restored.len(), restored.unseen()), (known.len(), known.unseen()));
        }
    }

    #[test]
    fn a_checkpoint_of_which_a_chunk_is_missing_does_not_count() {
        // Its streams would be taken for empty.
        let made = chunks(&known(9), 3);
        for missing in 0..made.len() {
            let mut rest = made.clone();
            rest.remove(missing);
            assert_eq!(complete(rest, LogPos(70)), None, "without {missing}");
        }
        assert_eq!(complete(made, LogPos(71)), None);
    }

    #[test]
    fn chunks_that_do_not_ascend_are_no_checkpoint() {
        // What is looked up by halves would be missed.
        let mut made = chunks(&known(9), 3);
        made[2].streams = made[1].streams.clone();
        assert_eq!(complete(made, LogPos(70)), None);
    }

    #[test]
    fn every_truncation_of_a_chunk_is_refused() {
        let entry = chunks(&known(3), 3)[0].encode();
        assert!((0..entry.len()).all(|len| Chunk::decode(&entry.slice(..len)).is_err()));
    }
}
