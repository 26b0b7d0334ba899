//! What a checkpoint is in the log: parts, each an entry, and a directory of where they stand.
//!
//! Both are records with a head that says of which checkpoint they are, so that no part is taken for one of another. Bytes:
//! docs/format/object.md.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};
use ithaca_env::record::{self, RecordError};
use ithaca_log::pos::{LogPos, StreamId};
use thiserror::Error;

use crate::limits;

/// The first bytes of a part.
pub const PART_MAGIC: [u8; 4] = *b"ITvp";
/// The first bytes of a directory.
pub const DIRECTORY_MAGIC: [u8; 4] = *b"ITvd";
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
pub struct Part {
    /// Of which one.
    pub of: Of,
    /// Which piece, from 0 on.
    pub number: u32,
    /// The bytes.
    pub data: Bytes,
}

/// Where a checkpoint's parts stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Of which one.
    pub of: Of,
    /// Bytes of all parts together.
    pub len: u64,
    /// The positions of the parts in the log, in their order.
    pub parts: Vec<LogPos>,
}

/// Why a checkpoint that is in the catalog cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unusable {
    /// An entry of it is no record of its kind.
    #[error("the entry at position {pos} is no part of it ({error})")]
    Record {
        /// The entry's position.
        pos: LogPos,
        /// What is wrong.
        error: RecordError,
    },
    /// An entry is of another checkpoint, or another piece.
    #[error("the entry at position {pos} is another part than was looked for")]
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
    /// The state does not decode, or is not the one that it was.
    #[error("{0}")]
    State(String),
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

impl Part {
    /// Its entry. Panics if there are more bytes than a part may have.
    pub fn encode(&self) -> Bytes {
        assert!(self.data.len() <= limits::PART_MAX_BYTES, "a part of {} bytes", self.data.len());
        record::encode(PART_MAGIC, VERSION, |out| {
            self.of.encode(out);
            out.put_u32_le(self.number);
            out.counted(&self.data);
        })
    }

    /// The part that an entry is; its bytes share the entry's memory.
    pub fn decode(entry: &Bytes) -> Result<Self, RecordError> {
        let (_, body) = record::decode(PART_MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let of = Of::decode(&mut decoder)?;
        let number = decoder.u32("part")?;
        let data = entry.slice_ref(decoder.counted("bytes of the part", limits::PART_MAX_BYTES)?);
        decoder.finish()?;
        Ok(Self { of, number, data })
    }
}

impl Directory {
    /// Its entry. Panics if there are more parts than a checkpoint may have.
    pub fn encode(&self) -> Bytes {
        assert!(self.parts.len() <= limits::PARTS_MAX_COUNT, "{} parts", self.parts.len());
        record::encode(DIRECTORY_MAGIC, VERSION, |out| {
            self.of.encode(out);
            out.put_u64_le(self.len);
            out.put_u32_le(self.parts.len() as u32);
            self.parts.iter().for_each(|pos| out.put_u64_le(pos.0));
        })
    }

    /// The directory that an entry is.
    pub fn decode(entry: &[u8]) -> Result<Self, RecordError> {
        let (_, body) = record::decode(DIRECTORY_MAGIC, VERSION, entry)?;
        let mut decoder = Decoder::new(body);
        let of = Of::decode(&mut decoder)?;
        let len = decoder.u64("bytes of the checkpoint")?;
        let count = decoder.u32("part count")? as usize;
        let invalid = |field, found, expected| DecodeError::Invalid { field, found, expected };
        if len > limits::CHECKPOINT_MAX_BYTES {
            return Err(invalid("bytes of the checkpoint", len, "1 GiB at the most").into());
        }
        if count == 0 || count > limits::PARTS_MAX_COUNT {
            return Err(invalid("part count", count as u64, "1 to 65,536 parts").into());
        }
        let mut parts = Vec::with_capacity(count.min(decoder.left() / 8));
        for _ in 0..count {
            parts.push(LogPos(decoder.u64("position of a part")?));
        }
        decoder.finish()?;
        Ok(Self { of, len, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Of = Of { object: StreamId(0xA11CE), id: 0xC0FF_EE00_1111_2222, upto: LogPos(40) };

    fn part() -> Part {
        Part { of: OF, number: 1, data: Bytes::from_static(b"state") }
    }

    fn directory() -> Directory {
        Directory { of: OF, len: 13, parts: vec![LogPos(44), LogPos(47)] }
    }

    fn lines(bytes: &[u8]) -> String {
        let words: Vec<String> =
            bytes.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
        words.chunks(8).map(|line| format!("  {}\n", line.join(" "))).collect()
    }

    #[test]
    fn parts_and_directories_have_the_bytes_that_they_have_always_had() {
        let (part, directory) = (part(), directory());
        assert_eq!(Part::decode(&part.encode()), Ok(part.clone()));
        assert_eq!(Directory::decode(&directory.encode()), Ok(directory.clone()));
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/checkpoints.txt");
        let head = "What a checkpoint is in the log, in hexadecimal. docs/format/object.md explains it.\n";
        let text =
            format!("{head}\npart\n{}\ndirectory\n{}", lines(&part.encode()), lines(&directory.encode()));
        ithaca_env::real::golden::check(path, &text);
    }

    #[test]
    fn no_cut_and_no_change_of_a_byte_makes_a_decoder_panic() {
        let (part, directory) = (part().encode(), directory().encode());
        for (magic, bytes) in [(PART_MAGIC, part), (DIRECTORY_MAGIC, directory)] {
            let body = bytes.slice(12..bytes.len() - 4);
            let wrapped = |body: &[u8]| record::encode(magic, VERSION, |out| out.put_slice(body));
            for len in 0..body.len() {
                let cut = wrapped(&body[..len]);
                assert!(Part::decode(&cut).is_err() && Directory::decode(&cut).is_err(), "{len} bytes");
            }
            for at in 0..body.len() {
                for value in [0, 1, 0x7F, 0xFF] {
                    let mut damaged = body.to_vec();
                    damaged[at] = value;
                    let damaged = wrapped(&damaged);
                    if let Ok(part) = Part::decode(&damaged) {
                        assert_eq!(part.encode(), damaged);
                    }
                    if let Ok(directory) = Directory::decode(&damaged) {
                        assert_eq!(directory.encode(), damaged);
                    }
                }
            }
        }
    }
}
