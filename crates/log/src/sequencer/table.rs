//! Where many streams end, as a chunk of a checkpoint has it: encoded, in the order of the ids. A stream is looked up by halves, so that
//! whoever has read a million needs not take them apart.

use std::cmp::Ordering;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use crate::pos::{LogPos, StreamId, StreamPos};
use crate::stream::StreamTail;

/// Bytes of a stream's id; two numbers follow, each of as many bytes as the largest of the table needs.
const ID_BYTES: usize = 16;
/// Bytes of a number at the most.
const NUMBER_BYTES: usize = 8;
/// Bytes of a stream at the most.
pub(super) const STREAM_MAX_BYTES: usize = ID_BYTES + 2 * NUMBER_BYTES;
/// Bytes before the streams.
pub(super) const HEAD_BYTES: usize = 8;

/// Streams and where they end, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamTable {
    encoded: Bytes,
    next_bytes: usize,
    last_bytes: usize,
}

impl StreamTable {
    /// These, which ascend.
    pub fn of(streams: &[(StreamId, StreamTail)]) -> Self {
        assert!(streams.is_sorted_by(|(one, _), (other, _)| one < other), "streams ascend");
        let next_bytes = bytes_of(streams.iter().map(|(_, tail)| tail.next.0));
        let last_bytes = bytes_of(streams.iter().map(|(_, tail)| last_number(tail.last)));
        let mut encoded = BytesMut::with_capacity(streams.len() * (ID_BYTES + next_bytes + last_bytes));
        for (stream, tail) in streams {
            encoded.put_u128_le(stream.0);
            encoded.put_slice(&tail.next.0.to_le_bytes()[..next_bytes]);
            encoded.put_slice(&last_number(tail.last).to_le_bytes()[..last_bytes]);
        }
        Self { encoded: encoded.freeze(), next_bytes, last_bytes }
    }

    /// Appends `stream count u32`, `next bytes u8`, `last bytes u8`, `reserved u16` and the streams.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.count() as u32);
        out.put_u8(self.next_bytes as u8);
        out.put_u8(self.last_bytes as u8);
        out.put_u16_le(0);
        out.put_slice(&self.encoded);
    }

    /// Decodes what [`Self::encode`] has appended, without a copy of the streams: `decoder` reads from `entry`.
    pub(super) fn decode(decoder: &mut Decoder<'_>, entry: &Bytes) -> Result<Self, DecodeError> {
        let count = decoder.u32("stream count")? as usize;
        let next_bytes = number_bytes(decoder)?;
        let last_bytes = number_bytes(decoder)?;
        let reserved = decoder.u16("chunk reserved")?;
        if reserved != 0 {
            return Err(DecodeError::Invalid {
                field: "chunk reserved",
                found: reserved.into(),
                expected: "0",
            });
        }
        let encoded = decoder.bytes("streams", count.saturating_mul(ID_BYTES + next_bytes + last_bytes))?;
        let table = Self { encoded: entry.slice_ref(encoded), next_bytes, last_bytes };
        match (1..table.count()).find(|&nth| table.id(nth - 1) >= table.id(nth)) {
            // What is looked up by halves would be missed.
            Some(nth) => Err(DecodeError::Invalid {
                field: "stream",
                found: table.id(nth).0 as u64,
                expected: "streams that ascend",
            }),
            None => Ok(table),
        }
    }

    /// Bytes of the streams, encoded.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.encoded.len()
    }

    /// How many streams.
    pub fn count(&self) -> usize {
        self.encoded.len() / self.stream_bytes()
    }

    /// The first stream and the last one, if there is any.
    pub fn ends(&self) -> Option<(StreamId, StreamId)> {
        self.count().checked_sub(1).map(|last| (self.id(0), self.id(last)))
    }

    /// The `nth` stream and where it ends.
    pub fn get(&self, nth: usize) -> (StreamId, StreamTail) {
        let start = nth * self.stream_bytes() + ID_BYTES;
        let (next, last) =
            self.encoded[start..start + self.next_bytes + self.last_bytes].split_at(self.next_bytes);
        let last = number_of(last).checked_sub(1).map(LogPos);
        (self.id(nth), StreamTail { next: StreamPos(number_of(next)), last })
    }

    /// Which one a stream is, or which one would come behind it.
    pub fn find(&self, stream: StreamId) -> Result<usize, usize> {
        self.find_within(0..self.count(), stream)
    }

    /// The same of a stream that is none of the first `from`; soon found if it is not far behind those.
    pub fn find_from(&self, from: usize, stream: StreamId) -> Result<usize, usize> {
        let (mut first, mut step) = (from, 1);
        while first + step <= self.count() && self.id(first + step - 1) < stream {
            first += step;
            step *= 2;
        }
        self.find_within(first..self.count().min(first + step), stream)
    }

    fn find_within(&self, range: Range<usize>, stream: StreamId) -> Result<usize, usize> {
        let Range { start: mut first, mut end } = range;
        while first < end {
            let middle = first + (end - first) / 2;
            match self.id(middle).cmp(&stream) {
                Ordering::Less => first = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => end = middle,
            }
        }
        Err(first)
    }

    fn id(&self, nth: usize) -> StreamId {
        let id = self.encoded[nth * self.stream_bytes()..].first_chunk();
        StreamId(u128::from_le_bytes(*id.expect("a table is whole streams")))
    }

    fn stream_bytes(&self) -> usize {
        ID_BYTES + self.next_bytes + self.last_bytes
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
        other => Err(DecodeError::Invalid {
            field: "bytes of a number",
            found: other.into(),
            expected: "at most 8",
        }),
    }
}

/// A number of at most 8 bytes.
fn number_of(encoded: &[u8]) -> u64 {
    encoded.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_found_from_wherever_the_search_begins() {
        // One that is not found is granted positions that it has.
        for count in 0..40 {
            let streams: Vec<_> =
                (0..count).map(|nth| (StreamId(10 + 2 * nth as u128), StreamTail::default())).collect();
            let table = StreamTable::of(&streams);
            assert_eq!(table.count(), count);
            for (from, id) in (0..=count).flat_map(|from| (8..=10 + 2 * count).map(move |id| (from, id))) {
                let found = table.find_from(from, StreamId(id as u128));
                let expected = streams[from..].binary_search_by_key(&(id as u128), |(stream, _)| stream.0);
                let expected = expected.map(|nth| nth + from).map_err(|nth| nth + from);
                assert_eq!(found, expected, "{id} of {count} from {from}");
            }
        }
    }

    #[test]
    fn numbers_of_any_length_come_back() {
        for number in [0, 1, 255, 256, 65_535, 1 << 24, u64::MAX - 2] {
            let tail = StreamTail { next: StreamPos(number), last: number.checked_sub(1).map(LogPos) };
            let streams = [(StreamId(7), tail), (StreamId(u128::MAX), StreamTail::default())];
            let table = StreamTable::of(&streams);
            assert_eq!([table.get(0), table.get(1)], streams);
            assert_eq!(table.ends(), Some((StreamId(7), StreamId(u128::MAX))));
        }
    }

    #[test]
    fn streams_that_do_not_ascend_are_refused() {
        // What is looked up by halves would be missed.
        let encoded = |ids: [u128; 3]| {
            let mut out = BytesMut::new();
            out.put_u32_le(3);
            out.put_u32_le(0);
            ids.into_iter().for_each(|id| out.put_u128_le(id));
            out.freeze()
        };
        for (ids, is_table) in [([1, 2, 3], true), ([1, 3, 2], false), ([1, 1, 2], false)] {
            let entry = encoded(ids);
            assert_eq!(StreamTable::decode(&mut Decoder::new(&entry), &entry).is_ok(), is_table, "{ids:?}");
        }
    }
}
