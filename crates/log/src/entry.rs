//! Who appended an entry, and to which streams: the meta of a run.
//!
//! A run is a batch of appends of one client. Its meta states the request number of one address, the anchor, and how
//! the numbers go on from there, so that a part of a run can keep the meta of the whole.
//!
//! The encoding is little-endian: `version u8 (1)`, `stream count u8`, `stride u16`, `reserved u32 (0)`, `client u64`,
//! `anchor u64`, `request u64`, then for each stream `id u64`, `position u64`, `previous log position u64`.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use crate::limits;
use crate::pos::{Addr, ClientId, LogPos, RequestNo, StreamId, StreamPos};

/// Bytes of a meta without streams.
pub const META_HEAD_BYTES: usize = 32;

/// Bytes of each stream in a meta.
pub const STREAM_BYTES: usize = 24;

/// The version of the encoding.
const META_VERSION: u8 = 1;

/// The previous log position of a stream's first entry, encoded.
const NO_PREVIOUS: u64 = u64::MAX;

/// An entry's place in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// The stream.
    pub stream: StreamId,
    /// The position in the stream of the entry at the anchor. Each later entry of the run is `stride` further on.
    pub position: StreamPos,
    /// The log position of the stream's entry before the one at the anchor; `None` if that is its first. The entries
    /// of one grant belong to the same streams, so an entry after the anchor follows the log position before its own.
    pub previous: Option<LogPos>,
}

/// The meta of a run: whose entries these are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// Who appended them.
    pub client: ClientId,
    /// The address whose entry has the request number `request`.
    pub anchor: Addr,
    /// The request number of the entry at the anchor.
    pub request: RequestNo,
    /// By how much the request number grows from one address to the next: the number of stripes that the client's
    /// batch was spread over.
    pub stride: u16,
    /// The streams, at most [`limits::STREAMS_MAX_COUNT`].
    pub streams: Vec<StreamPlace>,
}

impl EntryMeta {
    /// Entries of `client` from `anchor` on, numbered from `request` in steps of one, in no stream.
    pub fn new(client: ClientId, anchor: Addr, request: RequestNo) -> Self {
        Self { client, anchor, request, stride: 1, streams: Vec::new() }
    }

    /// The request number of the entry at `addr`.
    pub fn request_at(&self, addr: Addr) -> RequestNo {
        let steps = addr.0.wrapping_sub(self.anchor.0);
        RequestNo(self.request.0.wrapping_add(steps.wrapping_mul(u64::from(self.stride))))
    }

    /// Bytes that it takes, encoded.
    pub fn encoded_bytes(&self) -> usize {
        META_HEAD_BYTES + self.streams.len() * STREAM_BYTES
    }

    /// Appends its encoding. Panics if there are more streams than [`limits::STREAMS_MAX_COUNT`].
    pub fn encode(&self, out: &mut BytesMut) {
        assert!(self.streams.len() <= limits::STREAMS_MAX_COUNT, "{} streams", self.streams.len());
        out.put_u8(META_VERSION);
        out.put_u8(self.streams.len() as u8);
        out.put_u16_le(self.stride);
        out.put_u32_le(0);
        out.put_u64_le(self.client.0);
        out.put_u64_le(self.anchor.0);
        out.put_u64_le(self.request.0);
        for place in &self.streams {
            out.put_u64_le(place.stream.0);
            out.put_u64_le(place.position.0);
            out.put_u64_le(place.previous.map_or(NO_PREVIOUS, |previous| previous.0));
        }
    }

    /// Its encoding.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_bytes());
        self.encode(&mut out);
        out.freeze()
    }

    /// Decodes all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(bytes);
        let version = decoder.u8("meta version")?;
        if version != META_VERSION {
            return Err(DecodeError::Invalid { field: "meta version", found: version.into(), expected: "1" });
        }
        let stream_count = usize::from(decoder.u8("stream count")?);
        if stream_count > limits::STREAMS_MAX_COUNT {
            return Err(DecodeError::Invalid {
                field: "stream count",
                found: stream_count as u64,
                expected: "at most 16 streams",
            });
        }
        let stride = decoder.u16("stride")?;
        let reserved = decoder.u32("meta reserved")?;
        if reserved != 0 {
            return Err(DecodeError::Invalid {
                field: "meta reserved",
                found: reserved.into(),
                expected: "0",
            });
        }
        let client = ClientId(decoder.u64("client")?);
        let anchor = Addr(decoder.u64("anchor")?);
        let request = RequestNo(decoder.u64("request")?);
        let mut streams = Vec::with_capacity(stream_count);
        for _ in 0..stream_count {
            let stream = StreamId(decoder.u64("stream")?);
            let position = StreamPos(decoder.u64("stream position")?);
            let previous = Some(decoder.u64("previous")?).filter(|&pos| pos != NO_PREVIOUS).map(LogPos);
            streams.push(StreamPlace { stream, position, previous });
        }
        decoder.finish()?;
        Ok(Self { client, anchor, request, stride, streams })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meta_survives_encoding_and_every_truncation_is_refused() {
        let meta = EntryMeta {
            stride: 3,
            streams: vec![
                StreamPlace { stream: StreamId(7), position: StreamPos(4), previous: Some(LogPos(99)) },
                StreamPlace { stream: StreamId(8), position: StreamPos(0), previous: None },
            ],
            ..EntryMeta::new(ClientId(0xC0FFEE), Addr(10), RequestNo(500))
        };
        let bytes = meta.to_bytes();
        assert_eq!(bytes.len(), meta.encoded_bytes());
        assert_eq!(EntryMeta::decode(&bytes), Ok(meta.clone()));
        assert!((0..bytes.len()).all(|len| EntryMeta::decode(&bytes[..len]).is_err()));
        assert_eq!(meta.request_at(Addr(12)), RequestNo(506));
        assert_eq!(meta.request_at(Addr(9)), RequestNo(497));
    }
}
