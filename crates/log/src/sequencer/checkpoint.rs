//! Checkpoints of what a sequencer knows of streams: entries of a stream of their own, [`StreamId::SEQUENCER`].
//!
//! A checkpoint is several entries, its *chunks*, each with some of the streams in the order of their ids. It need not be of one
//! moment: together with the entries of streams from the log position on at which it was begun, it says of each stream at
//! least where it ended. Only one of which every chunk is there counts. (docs/format/log.md)

use bytes::{BufMut, Bytes};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::record::{self, RecordError};

use super::known::KnownStreams;
use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;

const MAGIC: [u8; 4] = *b"ITsc";
const VERSION: u16 = 1;
/// Bytes of a chunk without streams.
const HEAD_BYTES: usize = record::ENVELOPE_BYTES + 32;
/// Bytes of a stream's id in a chunk; two numbers follow, each of as many bytes as the largest of the chunk needs.
const ID_BYTES: usize = 16;
/// Bytes of a number at the most.
const NUMBER_BYTES: usize = 8;
/// Bytes of a stream in a chunk at the most.
const STREAM_MAX_BYTES: usize = ID_BYTES + 2 * NUMBER_BYTES;

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
    pub streams: Vec<(StreamId, StreamTail)>,
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
        let chunk = Chunk { from, unseen, number: self.number, is_last, streams };
        self.number += 1;
        self.after = chunk.streams.last().map(|(stream, _)| *stream).or(self.after);
        chunk
    }
}

impl Chunk {
    /// Its entry.
    pub fn encode(&self) -> Bytes {
        let next_bytes = bytes_of(self.streams.iter().map(|(_, tail)| tail.next.0));
        let last_bytes = bytes_of(self.streams.iter().map(|(_, tail)| last_number(tail.last)));
        record::encode(MAGIC, VERSION, |out| {
            out.put_u64_le(self.from.0);
            out.put_u64_le(self.unseen.0);
            out.put_u32_le(self.number);
            out.put_u32_le(self.is_last.into());
            out.put_u32_le(self.streams.len() as u32);
            out.put_u8(next_bytes as u8);
            out.put_u8(last_bytes as u8);
            out.put_u16_le(0);
            out.reserve(self.streams.len() * (ID_BYTES + next_bytes + last_bytes));
            for (stream, tail) in &self.streams {
                out.put_u128_le(stream.0);
                out.put_slice(&tail.next.0.to_le_bytes()[..next_bytes]);
                out.put_slice(&last_number(tail.last).to_le_bytes()[..last_bytes]);
            }
        })
    }

    /// The chunk that an entry is.
    pub fn decode(entry: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let from = LogPos(decoder.u64("first position after a checkpoint")?);
        let unseen = LogPos(decoder.u64("end of what was trimmed unseen")?);
        let number = decoder.u32("chunk")?;
        let is_last = match decoder.u32("last chunk")? {
            0 => false,
            1 => true,
            other => return Err(invalid("last chunk", other.into(), "0 or 1").into()),
        };
        let count = decoder.u32("stream count")? as usize;
        let next_bytes = number_bytes(&mut decoder)?;
        let last_bytes = number_bytes(&mut decoder)?;
        let reserved = decoder.u16("chunk reserved")?;
        if reserved != 0 {
            return Err(invalid("chunk reserved", reserved.into(), "0").into());
        }
        let stream_bytes = ID_BYTES + next_bytes + last_bytes;
        let encoded = decoder.bytes("streams", count.saturating_mul(stream_bytes))?;
        decoder.finish()?;
        let stream = |encoded: &[u8]| {
            let (id, numbers) = encoded.split_at(ID_BYTES);
            let (next, last) = numbers.split_at(next_bytes);
            let id = StreamId(u128::from_le_bytes(id.try_into().expect("as many bytes as an id has")));
            let last = number_of(last).checked_sub(1).map(LogPos);
            (id, StreamTail { next: StreamPos(number_of(next)), last })
        };
        let streams = encoded.chunks_exact(stream_bytes).map(stream).collect();
        Ok(Self { from, unseen, number, is_last, streams })
    }
}

/// A last log position as a number: 0 if there is none, else one more than it.
fn last_number(last: Option<LogPos>) -> u64 {
    last.map_or(0, |last| last.0.saturating_add(1))
}

/// Bytes that the largest of these numbers needs.
fn bytes_of(numbers: impl Iterator<Item = u64>) -> usize {
    let zeros = numbers.map(u64::leading_zeros).min().unwrap_or(u64::BITS);
    NUMBER_BYTES - zeros as usize / 8
}

fn number_bytes(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    match decoder.u8("bytes of a number")? {
        count if usize::from(count) <= NUMBER_BYTES => Ok(count.into()),
        other => Err(invalid("bytes of a number", other.into(), "at most 8")),
    }
}

/// A number of at most 8 bytes.
fn number_of(encoded: &[u8]) -> u64 {
    encoded.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

fn invalid(field: &'static str, found: u64, expected: &'static str) -> DecodeError {
    DecodeError::Invalid { field, found, expected }
}

/// What a whole checkpoint says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complete {
    /// Where streams end, in the order of their ids, for [`KnownStreams::noted`].
    pub tails: Vec<(StreamId, StreamTail)>,
    /// For [`KnownStreams::note_unseen`].
    pub unseen: LogPos,
}

/// The checkpoint that was begun at `from`, if every chunk of it is among these; they come in the order of the log, perhaps with others.
pub fn complete(chunks: Vec<Chunk>, from: LogPos) -> Option<Complete> {
    let mut tails = Vec::with_capacity(chunks.iter().map(|chunk| chunk.streams.len()).sum());
    let (mut wanted, mut unseen) = (0, LogPos(0));
    for chunk in chunks.into_iter().filter(|chunk| chunk.from == from) {
        if chunk.number != wanted {
            continue;
        }
        tails.extend(chunk.streams);
        unseen = unseen.max(chunk.unseen);
        wanted += 1;
        if chunk.is_last {
            return Some(Complete { tails, unseen });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(count: u64) -> KnownStreams {
        let tail = |stream: u64| StreamTail {
            next: StreamPos(stream % 5),
            last: (!stream.is_multiple_of(5)).then_some(LogPos(stream)),
        };
        let mut known =
            KnownStreams::of((0..count).map(|stream| (StreamId(stream.into()), tail(stream))).collect());
        known.note_unseen(LogPos(7));
        known
    }

    /// What a checkpoint stands for.
    fn restored(complete: Complete) -> KnownStreams {
        let mut known = KnownStreams::noted(complete.tails);
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
            assert_eq!(complete(made, LogPos(70)).map(restored), Some(known));
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
    fn numbers_of_any_length_come_back() {
        for number in [0, 1, 255, 256, 65_535, 1 << 24, u64::MAX - 2] {
            let tail = StreamTail { next: StreamPos(number), last: number.checked_sub(1).map(LogPos) };
            let streams = vec![(StreamId(7), tail), (StreamId(u128::MAX), StreamTail::default())];
            let chunk =
                Chunk { from: LogPos(number), unseen: LogPos(number), number: 3, is_last: true, streams };
            assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk));
        }
    }

    #[test]
    fn every_truncation_of_a_chunk_is_refused() {
        let entry = chunks(&known(3), 3)[0].encode();
        assert!((0..entry.len()).all(|len| Chunk::decode(&entry[..len]).is_err()));
    }
}
