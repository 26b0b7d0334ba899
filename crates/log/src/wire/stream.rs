//! Reading what of a range of addresses belongs to a stream.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use super::read::{decode_ranges, encode_ranges};
use super::write::check_data;
use super::{Head, Kind, Message, ReceivedRuns, RunsBody, at_most, no_data, zero};
use crate::limits;
use crate::pos::{AddrRange, StreamId};

/// Which entries are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of this stream.
    Stream(StreamId),
    /// Those of any stream.
    EveryStream,
    /// All of them, of streams or not. Only heads are read so; [`super::Read`] has the data.
    Every,
}

/// Reads what of some addresses belongs to a stream. Epochs, leases and what is committed are as of [`super::Read`].
///
/// Body: `limit_bytes u32`, `flags u8` (1: committed, 2: heads only, 4: every stream, 8: the last entry only, 16: known
/// only, 32: every entry, which goes with 2, and 1 or not, alone), `reserved u8`, `wait_ms u16`, `stream u128` (0 with every
/// stream or entry), then ranges: `count u32`, and for each `start u64`, `end u64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadStream {
    /// Stop after this many bytes of body and data; at least one entry is returned if there is one. At most
    /// [`limits::READ_MAX_BYTES`].
    pub limit_bytes: u32,
    /// Whether only what is known to be on every replica is wanted; see [`super::Read::committed`].
    pub committed: bool,
    /// Whether the entries are wanted without their data.
    pub heads_only: bool,
    /// Whether only the last entry is wanted: the unit looks from the end of the range down. There is one range then.
    pub last_only: bool,
    /// Whether the unit only says what it knows of streams: its answer ends before the first address whose record it would have to look at.
    /// Not with the last entry only.
    pub known_only: bool,
    /// While the first address holds nothing the unit waits so many milliseconds, at most [`limits::STREAM_WAIT_MAX_MS`], before it answers;
    /// 0, and it answers at once.
    pub wait_ms: u16,
    /// Whose entries.
    pub wanted: Wanted,
    /// Where to look, no range empty; at most [`limits::RANGES_MAX_COUNT`].
    pub ranges: Vec<AddrRange>,
}

const COMMITTED: u8 = 1;
const HEADS_ONLY: u8 = 2;
const EVERY_STREAM: u8 = 4;
const LAST_ONLY: u8 = 8;
const KNOWN_ONLY: u8 = 16;
const EVERY: u8 = 32;

/// What addresses hold of a stream, in reply to [`ReadStream`]: runs as of [`super::Runs`], in order and without gaps. Data is of the
/// stream. Junk, here of epoch 0, says that the stream has nothing there and never will: it is junk, or, where not every entry
/// was asked for, an entry of others. The runs begin where the request does, and end where the unit looked no further. With the
/// last entry only they end where the request does, and begin where the unit looked no further.
///
/// Body: `count u32`, `flags u32` (1: heads only), then the runs. Data: that of all runs, one after the other; none with heads only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRuns {
    /// The runs.
    pub runs: ReceivedRuns,
}

const WITHOUT_DATA: u32 = 1;

impl StreamRuns {
    /// Whether the data is left out.
    pub fn is_heads_only(&self) -> bool {
        self.runs.flags() == WITHOUT_DATA
    }

    /// Appends a reply's header and body. The caller sends `data_len` bytes of data right after them.
    pub fn encode_head(out: &mut BytesMut, head: Head, runs: &RunsBody, data_len: usize, heads_only: bool) {
        let flags = if heads_only { WITHOUT_DATA } else { 0 };
        runs.encode_as(out, Self::KIND, flags, head, data_len);
    }
}

impl Message for StreamRuns {
    const KIND: Kind = Kind::StreamRuns;

    fn encode_body(&self, out: &mut BytesMut) {
        self.runs.encode_body(out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let (runs, listed_bytes) = ReceivedRuns::decode(body)?;
        match runs.flags() {
            0 => check_data(listed_bytes, data_len)?,
            WITHOUT_DATA => no_data(data_len)?,
            found => {
                let (field, found) = ("stream runs flags", found.into());
                return Err(DecodeError::Invalid { field, found, expected: "0 or 1" });
            }
        }
        Ok(Self { runs })
    }
}

impl Message for ReadStream {
    const KIND: Kind = Kind::ReadStream;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.limit_bytes as usize <= limits::READ_MAX_BYTES, "a read of {} bytes", self.limit_bytes);
        assert!(!self.last_only || self.ranges.len() == 1, "the last entry of one range");
        assert!(!self.last_only || !self.known_only, "the last entry is looked for");
        let is_heads = self.heads_only && !self.last_only && !self.known_only;
        assert!(self.wanted != Wanted::Every || is_heads, "the heads of every entry");
        let (stream, every) = match self.wanted {
            Wanted::Stream(stream) => (stream, 0),
            Wanted::EveryStream => (StreamId::default(), EVERY_STREAM),
            Wanted::Every => (StreamId::default(), EVERY),
        };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.put_u32_le(self.limit_bytes);
        out.put_u8(
            every
                | flag(self.committed, COMMITTED)
                | flag(self.heads_only, HEADS_ONLY)
                | flag(self.last_only, LAST_ONLY)
                | flag(self.known_only, KNOWN_ONLY),
        );
        out.put_u8(0);
        out.put_u16_le(self.wait_ms);
        out.put_u128_le(stream.0);
        encode_ranges(&self.ranges, out);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let limit_bytes = decoder.u32("stream read limit")?;
        at_most("stream read limit", limit_bytes as usize, limits::READ_MAX_BYTES, "at most 4 MiB")?;
        let flags = decoder.u8("stream read flags")?;
        // The last entry only and what is known only are more than that together.
        let is_every = flags & !COMMITTED == EVERY | HEADS_ONLY;
        if flags > COMMITTED | HEADS_ONLY | EVERY_STREAM | KNOWN_ONLY && !is_every {
            let (field, found) = ("stream read flags", flags.into());
            return Err(DecodeError::Invalid { field, found, expected: "at most 23, or 34 or 35" });
        }
        zero("stream read reserved", decoder.u8("stream read reserved")?.into())?;
        let wait_ms = decoder.u16("wait of a stream read")?;
        at_most("wait of a stream read", wait_ms.into(), limits::STREAM_WAIT_MAX_MS.into(), "at most 10000")?;
        let (low, high) = (decoder.u64("stream")?, decoder.u64("stream")?);
        let stream = StreamId(u128::from(high) << 64 | u128::from(low));
        let wanted = match flags & (EVERY_STREAM | EVERY) {
            0 => Wanted::Stream(stream),
            EVERY_STREAM if stream == StreamId::default() => Wanted::EveryStream,
            _ if stream == StreamId::default() => Wanted::Every,
            _ => {
                let field = "stream of a read of every one";
                return Err(DecodeError::Invalid { field, found: stream.0 as u64, expected: "0" });
            }
        };
        let ranges = decode_ranges(&mut decoder)?;
        decoder.finish()?;
        no_data(data_len)?;
        let last_only = flags & LAST_ONLY != 0;
        if last_only && ranges.len() != 1 {
            let found = ranges.len() as u64;
            return Err(DecodeError::Invalid {
                field: "range count",
                found,
                expected: "1 for the last entry",
            });
        }
        let (committed, heads_only) = (flags & COMMITTED != 0, flags & HEADS_ONLY != 0);
        let known_only = flags & KNOWN_ONLY != 0;
        Ok(Self { limit_bytes, committed, heads_only, last_only, known_only, wait_ms, wanted, ranges })
    }
}
