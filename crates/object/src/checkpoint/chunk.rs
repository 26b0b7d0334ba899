//! What a checkpoint is in the log: chunks, each an entry, and a directory of where they stand.
//!
//! Both are records with a head that says of which checkpoint they are, so that no chunk is taken for one of another. Bytes:
//! docs/format/object.md.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};
use ithaca_env::record::{self, RecordError};
use ithaca_log::pos::{LogPos, StreamId};
use thiserror::Error;

use crate::limits;

/// The first bytes of a chunk.
pub const CHUNK_MAGIC: [u8; 4] = *b"ITvc";
/// The first bytes of a directory.
pub const DIRECTORY_MAGIC: [u8; 4] = *b"ITvd";
/// Bytes of a chunk's body before its data.
const CHUNK_HEAD_BYTES: usize = 40;
/// The newest version that is read, and the one that is written.
pub const VERSION: u16 = 1;

/// Which checkpoint something is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Of {
    /// The object's stream.
    pub object: StreamId,
    /// A random number that the checkpoint's maker drew.
    pub id: u64,
    /// The state reflects every position below.
    pub upto: LogPos,
}

/// A piece of a checkpoint's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Of which one.
    pub of: Of,
    /// Which piece, from 0 on.
    pub number: u32,
    /// The bytes.
    pub data: Bytes,
}

impl Chunk {
    /// A break: what stands in an object's own stream where the object begins anew, at a checkpoint behind it. It belongs to none, and holds
    /// nothing.
    pub(crate) fn break_of(object: StreamId) -> Self {
        Self { of: Of { object, id: 0, upto: LogPos(0) }, number: 0, data: Bytes::new() }
    }

    /// Whether an entry of an object's stream is a break.
    pub fn is_break(entry: &Bytes, object: StreamId) -> bool {
        entry.starts_with(&CHUNK_MAGIC) && Self::decode(entry) == Ok(Self::break_of(object))
    }
}

/// Where a checkpoint's chunks stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Of which one.
    pub of: Of,
    /// Bytes of all chunks together.
    pub len: u64,
    /// The positions of the chunks in the log, in their order.
    pub chunks: Vec<LogPos>,
}

/// Why a checkpoint that is in the catalog cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// An entry of it is no record of its kind.
    #[error("the entry at position {pos} is no chunk of it ({error})")]
    Record {
        /// The entry's position.
        pos: LogPos,
        /// What is wrong.
        error: RecordError,
    },
    /// An entry is of another checkpoint, or another piece.
    #[error("the entry at position {pos} is another chunk than was looked for")]
    Other {
        /// The entry's position.
        pos: LogPos,
    },
    /// An entry is trimmed or junk.
    #[error("there is no entry at position {pos}")]
    Missing {
        /// The position.
        pos: LogPos,
    },
    /// The state is not the one that it was.
    #[error("{0}")]
    State(String),
    /// The bytes are those that were stored, and no state of this type of object.
    #[error("{0}")]
    OtherType(String),
}

impl Of {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u128_le(self.object.0);
        out.put_u64_le(self.id);
        out.put_u64_le(self.upto.0);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            object: StreamId(decoder.u128("object")?),
            id: decoder.u64("checkpoint")?,
            upto: LogPos(decoder.u64("position after the state")?),
        })
    }
}

impl Chunk {
    /// Its entry. Panics if there are more bytes than a chunk may have.
    pub fn encode(&self) -> Bytes {
        assert!(self.data.len() <= limits::CHUNK_MAX_BYTES, "a chunk of {} bytes", self.data.len());
        record::encode_sized(CHUNK_MAGIC, VERSION, CHUNK_HEAD_BYTES + self.data.len(), |out| {
            self.of.encode(out);
            out.put_u32_le(self.number);
            out.counted(&self.data);
        })
    }

    /// The chunk that an entry is; its bytes share the entry's memory.
    pub fn decode(entry: &Bytes) -> Result<Self, RecordError> {
        let (_, body) = record::decode(CHUNK_MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let of = Of::decode(&mut decoder)?;
        let number = decoder.u32("chunk")?;
        let data = entry.slice_ref(decoder.counted("bytes of the chunk", limits::CHUNK_MAX_BYTES)?);
        decoder.finish()?;
        Ok(Self { of, number, data })
    }
}

impl Directory {
    /// Its entry. Panics if there are more chunks than a checkpoint may have.
    pub fn encode(&self) -> Bytes {
        assert!(self.chunks.len() <= limits::CHUNKS_MAX_COUNT, "{} chunks", self.chunks.len());
        record::encode(DIRECTORY_MAGIC, VERSION, |out| {
            self.of.encode(out);
            out.put_u64_le(self.len);
            out.put_u32_le(self.chunks.len() as u32);
            self.chunks.iter().for_each(|pos| out.put_u64_le(pos.0));
        })
    }

    /// The directory that an entry is.
    pub fn decode(entry: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(DIRECTORY_MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let of = Of::decode(&mut decoder)?;
        let len = decoder.u64("bytes of the checkpoint")?;
        let count = decoder.u32("chunk count")? as usize;
        let invalid = |field, found, expected| DecodeError::Invalid { field, found, expected };
        if len > limits::CHECKPOINT_MAX_BYTES {
            return Err(invalid("bytes of the checkpoint", len, "1 GiB at the most").into());
        }
        if count == 0 || count > limits::CHUNKS_MAX_COUNT {
            return Err(invalid("chunk count", count as u64, "1 to 65,536 chunks").into());
        }
        let mut chunks = Vec::with_capacity(count.min(decoder.left() / 8));
        for _ in 0..count {
            chunks.push(LogPos(decoder.u64("position of a chunk")?));
        }
        decoder.finish()?;
        Ok(Self { of, len, chunks })
    }
}

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden::{self, hex};

    use super::*;

    const OF: Of = Of { object: StreamId(0xA11CE), id: 0xC0FF_EE00_1111_2222, upto: LogPos(40) };

    fn chunk() -> Chunk {
        Chunk { of: OF, number: 1, data: Bytes::from_static(b"state") }
    }

    fn directory() -> Directory {
        Directory { of: OF, len: 13, chunks: vec![LogPos(44), LogPos(47)] }
    }

    #[test]
    fn chunks_and_directories_have_the_bytes_that_they_have_always_had() {
        let (chunk, directory) = (chunk(), directory());
        assert_eq!(Chunk::decode(&chunk.encode()), Ok(chunk.clone()));
        assert_eq!(Directory::decode(&directory.encode()), Ok(directory.clone()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/checkpoints.txt");
        let head = "What a checkpoint is in the log, in hexadecimal. docs/format/object.md explains it.\n";
        let (chunk, directory) = (hex(&chunk.encode()), hex(&directory.encode()));
        let entry = Chunk::break_of(OF.object).encode();
        assert!(Chunk::is_break(&entry, OF.object) && !Chunk::is_break(&entry, StreamId(7)));
        let text = format!("{head}\nchunk\n{chunk}\ndirectory\n{directory}\nbreak\n{}", hex(&entry));
        golden::check(path, &text);
    }

    #[test]
    fn no_cut_and_no_change_of_a_byte_makes_a_decoder_panic() {
        let (chunk, directory) = (chunk().encode(), directory().encode());
        for (magic, bytes) in [(CHUNK_MAGIC, chunk), (DIRECTORY_MAGIC, directory)] {
            let body = bytes.slice(12..bytes.len() - 4);
            let wrapped = |body: &[u8]| record::encode(magic, VERSION, |out| out.put_slice(body));
            for len in 0..body.len() {
                let cut = wrapped(&body[..len]);
                assert!(Chunk::decode(&cut).is_err() && Directory::decode(&cut).is_err(), "{len} bytes");
            }
            for at in 0..body.len() {
                for value in [0, 1, 0x7F, 0xFF] {
                    let mut damaged = body.to_vec();
                    damaged[at] = value;
                    let damaged = wrapped(&damaged);
                    if let Ok(chunk) = Chunk::decode(&damaged) {
                        assert_eq!(chunk.encode(), damaged);
                    }
                    if let Ok(directory) = Directory::decode(&damaged) {
                        assert_eq!(directory.encode(), damaged);
                    }
                }
            }
        }
    }
}
