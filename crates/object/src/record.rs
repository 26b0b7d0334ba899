//! The record of a committed transaction: what one entry of the log says to the objects whose streams it is in.
//!
//! A record is a list of calls in the order in which they are applied. Only what was committed is in the log, so whoever
//! reads a record applies it without asking anybody. A call that stands by itself is a transaction of one call. Bytes:
//! docs/format/object.md.

use std::borrow::Cow;
use std::slice;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};
use ithaca_env::record::{self, RecordError};
use ithaca_log::pos::{LogPos, StreamId};

use crate::limits;

/// The first bytes of every record.
pub const MAGIC: [u8; 4] = *b"ITob";
/// The newest version that is read, and the one that is written.
pub const VERSION: u16 = 1;

/// Bytes of a record's body before its streams.
const HEAD_BYTES: usize = 28;
/// Bytes of a stream, of a check, and of a call around its name and arguments.
const STREAM_BYTES: usize = 16;
const CHECK_BYTES: usize = 17;
pub(crate) const CALL_BYTES: usize = 6;
/// Bytes of the checksum, the last of a record.
const CHECKSUM_BYTES: usize = 4;

/// A transaction, by its client and that client's own number for it. The same transaction has the same number each time it
/// is tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId {
    /// The client: a random number that it drew when it started.
    pub client: u64,
    /// The client's number for the transaction, from 0 on.
    pub request: u64,
}

impl std::fmt::Display for TxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}:{}", self.client, self.request)
    }
}

/// One call of a mutator of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The object's stream.
    pub stream: StreamId,
    /// The mutator's name: at most [`limits::METHOD_MAX_BYTES`] of UTF-8.
    pub method: Bytes,
    /// Its arguments: a map of MessagePack by field name.
    pub arguments: Bytes,
}

/// What an object's state was, as the record's client saw it before it wrote the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The object's stream.
    pub stream: StreamId,
    /// The log position of the last record that the state reflects.
    pub pos: LogPos,
    /// The state's digest.
    pub digest: u64,
}

/// A committed transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Which it is.
    pub id: TxId,
    /// The client does not try any request below this number again.
    pub settled: u64,
    /// Digests of states, at most one of each object, for views to compare with their own.
    pub checks: Vec<Check>,
    /// The calls, in the order in which they are applied; at least one.
    pub calls: Vec<Call>,
}

/// The streams of calls, each once, in the order of their first calls. Most records are of one object: its stream needs no memory of its own.
pub(crate) fn streams_of(calls: &[Call]) -> Cow<'_, [StreamId]> {
    if let Some((first, others)) = calls.split_first()
        && others.iter().all(|call| call.stream == first.stream)
    {
        return Cow::Borrowed(slice::from_ref(&first.stream));
    }
    let mut streams = Vec::new();
    for call in calls {
        if !streams.contains(&call.stream) {
            streams.push(call.stream);
        }
    }
    Cow::Owned(streams)
}

impl Record {
    /// The streams that its calls are of, each once, in the order of their first calls.
    pub fn streams(&self) -> Cow<'_, [StreamId]> {
        streams_of(&self.calls)
    }

    /// Its bytes. Panics if it is over a limit; whoever gathers calls keeps to them.
    pub fn encode(&self) -> Bytes {
        self.encode_with(|nth| &self.calls[nth].arguments)
    }

    /// Its bytes, whose memory names and arguments go on to share. Panics as [`Record::encode`].
    pub(crate) fn into_encoded(mut self) -> (Self, Bytes) {
        let entry = self.encode();
        let mut end = entry.len() - CHECKSUM_BYTES;
        for call in self.calls.iter_mut().rev() {
            let start = end - call.arguments.len();
            call.arguments = entry.slice(start..end);
            end = start - call.method.len() - CALL_BYTES;
        }
        (self, entry)
    }

    /// A record of one call, of arguments that lie somewhere else: they are copied once, to where they stay.
    pub(crate) fn of_call(
        id: TxId,
        settled: u64,
        check: Option<Check>,
        call: Call,
        arguments: &[u8],
    ) -> (Self, Bytes) {
        let mut record = Self { id, settled, checks: check.into_iter().collect(), calls: vec![call] };
        let entry = record.encode_with(|_| arguments);
        let end = entry.len() - CHECKSUM_BYTES;
        record.calls[0].arguments = entry.slice(end - arguments.len()..end);
        (record, entry)
    }

    /// Its bytes, with the arguments of each call taken from `arguments`.
    fn encode_with<'a>(&self, arguments: impl Fn(usize) -> &'a [u8]) -> Bytes {
        let streams = self.streams();
        assert!(streams.len() <= limits::OBJECTS_MAX_COUNT, "{} objects", streams.len());
        assert!(self.calls.len() <= limits::CALLS_MAX_COUNT, "{} calls", self.calls.len());
        let number = |stream: StreamId| streams.iter().position(|known| *known == stream);
        let checks: Vec<(usize, &Check)> =
            self.checks.iter().filter_map(|check| Some((number(check.stream)?, check))).collect();
        let of_call = |(nth, call): (usize, &Call)| CALL_BYTES + call.method.len() + arguments(nth).len();
        let bytes: usize = self.calls.iter().enumerate().map(of_call).sum();
        let body_bytes = HEAD_BYTES + STREAM_BYTES * streams.len() + CHECK_BYTES * checks.len() + bytes;
        record::encode_sized(MAGIC, VERSION, body_bytes, |out: &mut BytesMut| {
            out.put_u64_le(self.id.client);
            out.put_u64_le(self.id.request);
            out.put_u64_le(self.settled);
            out.put_u8(streams.len() as u8);
            out.put_u8(checks.len() as u8);
            out.put_u16_le(self.calls.len() as u16);
            streams.iter().for_each(|stream| out.put_u128_le(stream.0));
            for (of, check) in checks {
                out.put_u8(of as u8);
                out.put_u64_le(check.pos.0);
                out.put_u64_le(check.digest);
            }
            for (nth, call) in self.calls.iter().enumerate() {
                assert!(call.method.len() <= limits::METHOD_MAX_BYTES, "a name of {}", call.method.len());
                out.put_u8(number(call.stream).unwrap_or_default() as u8);
                out.put_u8(call.method.len() as u8);
                out.put_slice(&call.method);
                out.counted(arguments(nth));
            }
        })
    }

    /// Decodes all of `bytes`, whose memory names and arguments go on to share.
    pub fn decode(bytes: &Bytes) -> Result<Self, RecordError> {
        let (_, body) = record::decode(MAGIC, VERSION, bytes)?;
        let mut decoder = Decoder::new(body);
        let id = TxId { client: decoder.u64("client")?, request: decoder.u64("request")? };
        let settled = decoder.u64("settled")?;
        if settled > id.request || id.request - settled > limits::REQUESTS_AHEAD_MAX {
            let expected = "a number at or below the request's, by 65,536 at the most";
            return Err(DecodeError::Invalid { field: "settled", found: settled, expected }.into());
        }
        let stream_count = usize::from(decoder.u8("stream count")?);
        let check_count = usize::from(decoder.u8("check count")?);
        let call_count = usize::from(decoder.u16("call count")?);
        within("stream count", stream_count, limits::OBJECTS_MAX_COUNT, "1 to 16 streams")?;
        within("check count", check_count.max(1), stream_count, "at most one check for each stream")?;
        within("call count", call_count, limits::CALLS_MAX_COUNT, "1 to 4096 calls")?;
        let mut streams = Vec::with_capacity(stream_count);
        for _ in 0..stream_count {
            streams.push(StreamId(decoder.u128("stream")?));
        }
        let mut checks = Vec::with_capacity(check_count);
        for _ in 0..check_count {
            let stream = stream_of(&streams, decoder.u8("check's stream")?)?;
            checks.push(Check {
                stream,
                pos: LogPos(decoder.u64("check's position")?),
                digest: decoder.u64("digest")?,
            });
        }
        let mut calls = Vec::with_capacity(call_count);
        for _ in 0..call_count {
            let stream = stream_of(&streams, decoder.u8("call's stream")?)?;
            let len = usize::from(decoder.u8("name's length")?);
            within("name's length", len, limits::METHOD_MAX_BYTES, "1 to 64 bytes")?;
            let method = bytes.slice_ref(decoder.bytes("name", len)?);
            let arguments = bytes.slice_ref(decoder.counted("arguments", limits::RECORD_MAX_BYTES)?);
            calls.push(Call { stream, method, arguments });
        }
        decoder.finish()?;
        Ok(Self { id, settled, checks, calls })
    }
}

fn within(field: &'static str, count: usize, max: usize, expected: &'static str) -> Result<(), DecodeError> {
    match count {
        0 => Err(DecodeError::Invalid { field, found: 0, expected }),
        count if count > max => Err(DecodeError::Invalid { field, found: count as u64, expected }),
        _ => Ok(()),
    }
}

fn stream_of(streams: &[StreamId], number: u8) -> Result<StreamId, DecodeError> {
    let expected = "the number of a stream of the record";
    let invalid = DecodeError::Invalid { field: "stream number", found: number.into(), expected };
    streams.get(usize::from(number)).copied().ok_or(invalid)
}

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden;
    use ithaca_env::sim::Random;

    use super::*;

    fn sample() -> Record {
        let call = |stream: u128, method: &'static str, arguments: &'static [u8]| Call {
            stream: StreamId(stream),
            method: Bytes::from_static(method.as_bytes()),
            arguments: Bytes::from_static(arguments),
        };
        Record {
            id: TxId { client: 0xC0FF_EE00_1111_2222, request: 9 },
            settled: 7,
            checks: vec![Check { stream: StreamId(0xB0B), pos: LogPos(40), digest: 0x0123_4567_89AB_CDEF }],
            calls: vec![
                // {"key": "k", "value": 7}, {"amount": -1}, {}
                call(0xA11CE, "put", b"\x82\xA3key\xA1k\xA5value\x07"),
                call(0xB0B, "add", b"\x81\xA6amount\xFF"),
                call(0xA11CE, "clear", b"\x80"),
            ],
        }
    }

    /// What decodes goes back to bytes that decode to the same.
    fn check_bytes(bytes: &Bytes) {
        if let Ok(record) = Record::decode(bytes) {
            let again = Record::decode(&record.encode());
            let known = |check: &&Check| record.streams().contains(&check.stream);
            let checks = record.checks.iter().filter(known).copied().collect();
            assert_eq!(again, Ok(Record { checks, ..record.clone() }));
        }
    }

    #[test]
    fn a_record_has_the_bytes_that_it_has_always_had() {
        let bytes = sample().encode();
        assert_eq!(Record::decode(&bytes), Ok(sample()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/records.txt");
        let head = "A record of an object, in hexadecimal. docs/format/object.md explains it.\n\nrecord\n";
        golden::check(path, &format!("{head}{}", golden::hex(&bytes)));
    }

    #[test]
    fn calls_of_an_encoded_record_are_the_same_in_its_own_memory() {
        // Views take a record from memory that others read from the log.
        let (record, entry) = sample().into_encoded();
        assert_eq!((&record, Record::decode(&entry)), (&sample(), Ok(sample())));
        let lies_in = |call: &Call| entry.as_ptr_range().contains(&call.arguments.as_ptr());
        assert!(record.calls.iter().all(lies_in));
        let Record { id, settled, checks, calls } = sample();
        let call = calls[1].clone();
        let one = Record { id, settled, checks: checks.clone(), calls: vec![call.clone()] };
        let empty = Call { arguments: Bytes::new(), ..call.clone() };
        let (record, entry) = Record::of_call(id, settled, checks.first().copied(), empty, &call.arguments);
        assert_eq!((&record, &entry), (&one, &one.encode()));
    }

    #[test]
    fn no_cut_and_no_change_of_a_byte_makes_the_decoder_panic() {
        // The body is damaged under a checksum that fits, so that every field is met.
        let bytes = sample().encode();
        let body = bytes.slice(12..bytes.len() - 4);
        let wrapped = |body: &[u8]| record::encode(MAGIC, VERSION, |out: &mut BytesMut| out.put_slice(body));
        for len in 0..body.len() {
            assert!(Record::decode(&wrapped(&body[..len])).is_err(), "{len} bytes");
        }
        for at in 0..body.len() {
            for value in [0, 1, 2, 0x7F, 0x80, 0xFF] {
                let mut damaged = body.to_vec();
                damaged[at] = value;
                check_bytes(&wrapped(&damaged));
            }
        }
        assert!(Record::decode(&wrapped(&[&body[..], &[0]].concat())).is_err(), "nothing may follow");
        assert!(Record::decode(&Bytes::from_static(b"ITob")).is_err());
    }

    #[test]
    fn bytes_that_nobody_has_made_do_not_panic_either() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut next = || random.next_u64() as u8;
            let len = usize::from(next());
            let body: Vec<u8> =
                (0..len).map(|at| if at < 8 || next() > 128 { next() } else { at as u8 % 3 }).collect();
            check_bytes(&record::encode(MAGIC, VERSION, |out: &mut BytesMut| out.put_slice(&body)));
        }
    }
}
