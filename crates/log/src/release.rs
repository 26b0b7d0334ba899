//! What streams have released: entries that each of them needs no more.
//!
//! A log position may belong to several streams and is trimmed when all of them have released it. What a stream has released is an entry
//! of the stream [`StreamId::RELEASES`]: a record with the lowest position that it needs, and with the log position below which all that
//! it released stands. A release only grows, so whoever folds the records takes the highest of each stream, in whatever order: a record
//! of all of them may be appended at any time, and those before it be trimmed.
//!
//! Body of the record (magic `ITrl`, version 1): `count u32` (1 to [`limits::RELEASES_MAX_COUNT`]), then for each `stream u128`,
//! `below u64`, `log below u64`.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::record::{self, RecordError};

use crate::limits;
use crate::pos::{LogPos, StreamId, StreamPos};

const MAGIC: [u8; 4] = *b"ITrl";
const VERSION: u16 = 1;

/// Up to where a stream is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// Its entries below this position of the stream are released.
    pub below: StreamPos,
    /// They all stand below this position of the log, and no others of the stream do.
    pub log_below: LogPos,
}

/// Releases of several streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Releases {
    by_stream: BTreeMap<StreamId, Release>,
}

impl Releases {
    /// The release of one stream.
    pub fn of(stream: StreamId, release: Release) -> Self {
        Self { by_stream: BTreeMap::from([(stream, release)]) }
    }

    /// Up to where `stream` is released; from its beginning on if it has released nothing.
    pub fn get(&self, stream: StreamId) -> Release {
        self.by_stream.get(&stream).copied().unwrap_or_default()
    }

    /// How many streams have released something.
    pub fn len(&self) -> usize {
        self.by_stream.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// Adds what another record says.
    pub fn add(&mut self, other: &Self) {
        for (&stream, release) in &other.by_stream {
            let known = self.by_stream.entry(stream).or_default();
            *known = (*known).max(*release);
        }
    }

    /// As records, each of which is an entry.
    pub fn encode(&self) -> impl Iterator<Item = Bytes> + use<> {
        let all: Vec<_> = self.by_stream.iter().collect();
        let pieces: Vec<_> = all.chunks(limits::RELEASES_MAX_COUNT).map(encode_some).collect();
        pieces.into_iter()
    }

    /// The record that `bytes` is.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new(body);
        let count = decoder.u32("release count")? as usize;
        if count == 0 || count > limits::RELEASES_MAX_COUNT {
            let (field, found) = ("release count", count as u64);
            return Err(DecodeError::Invalid { field, found, expected: "1 to 32,000" }.into());
        }
        let mut releases = Self::default();
        for _ in 0..count {
            let stream = StreamId(decoder.u128("stream")?);
            let below = StreamPos(decoder.u64("released below")?);
            let log_below = LogPos(decoder.u64("released log below")?);
            releases.add(&Self::of(stream, Release { below, log_below }));
        }
        decoder.finish()?;
        Ok(releases)
    }
}

fn encode_some(some: &[(&StreamId, &Release)]) -> Bytes {
    record::encode(MAGIC, VERSION, |out| {
        out.put_u32_le(some.len() as u32);
        for (stream, release) in some {
            out.put_u128_le(stream.0);
            out.put_u64_le(release.below.0);
            out.put_u64_le(release.log_below.0);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(below: u64) -> Release {
        Release { below: StreamPos(below), log_below: LogPos(below * 10) }
    }

    #[test]
    fn the_order_of_records_does_not_matter_and_a_release_never_shrinks() {
        let (stream, other) = (StreamId(300), StreamId(301));
        let records = [
            Releases::of(stream, release(5)),
            Releases::of(other, release(1)),
            Releases::of(stream, release(2)),
        ];
        let fold = |order: &[usize]| {
            let mut all = Releases::default();
            order.iter().for_each(|&at| all.add(&records[at]));
            all
        };
        let all = fold(&[0, 1, 2]);
        assert_eq!(all, fold(&[2, 1, 0]));
        assert_eq!((all.get(stream), all.get(StreamId(302))), (release(5), Release::default()));
        let mut again = Releases::default();
        all.encode().for_each(|bytes| again.add(&Releases::decode(&bytes).expect("a record")));
        assert_eq!(again, all);
    }

    #[test]
    fn many_releases_take_several_entries_each_of_which_is_small_enough() {
        let mut all = Releases::default();
        for id in 0..(2 * limits::RELEASES_MAX_COUNT as u128 + 5) {
            all.add(&Releases::of(StreamId(300 + id), release(1)));
        }
        let records: Vec<Bytes> = all.encode().collect();
        assert_eq!(records.len(), 3);
        assert!(records.iter().all(|record| record.len() <= limits::ENTRY_MAX_BYTES));
        let cut = &records[2][..records[2].len() - 1];
        assert!(Releases::decode(cut).is_err() && Releases::decode(b"").is_err());
    }
}
