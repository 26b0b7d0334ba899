//! What such transactions put into the log.
//!
//! ```text
//!   commit     0 u8 │ shared u8 │ reads u16 │ writes u16 │ reads × (stream u128, version u64) │ writes × (stream u128, key u64, value u64)
//!   decision   1 u8 │ committed u8 │ position u64
//! ```
//!
//! All numbers are little-endian.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use ithaca_log::pos::{LogPos, StreamId};

/// Reads of one commit at the most, and writes.
pub const PARTS_MAX: usize = 1024;
const READ_BYTES: usize = 24;
const WRITE_BYTES: usize = 32;

/// One change: a key of an object gets a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    pub stream: StreamId,
    pub key: u64,
    pub value: u64,
}

/// A transaction that may or may not be committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Objects that were read, and the version of each: one past the position that changed it last.
    pub reads: Vec<(StreamId, LogPos)>,
    pub writes: Vec<Write>,
    /// Whether a decision follows.
    pub is_shared: bool,
}

/// An entry of an object's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    Commit(Commit),
    /// What became of the commit at a position.
    Decision {
        pos: LogPos,
        is_committed: bool,
    },
}

impl Record {
    /// Its bytes. Panics if a commit has too many parts.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Commit(Commit { reads, writes, is_shared }) => {
                assert!(reads.len() <= PARTS_MAX && writes.len() <= PARTS_MAX, "a commit of too many parts");
                out.put_u8(0);
                out.put_u8((*is_shared).into());
                out.put_u16_le(reads.len() as u16);
                out.put_u16_le(writes.len() as u16);
                for (stream, version) in reads {
                    out.put_u128_le(stream.0);
                    out.put_u64_le(version.0);
                }
                for write in writes {
                    out.put_u128_le(write.stream.0);
                    out.put_u64_le(write.key);
                    out.put_u64_le(write.value);
                }
            }
            Self::Decision { pos, is_committed } => {
                out.put_u8(1);
                out.put_u8((*is_committed).into());
                out.put_u64_le(pos.0);
            }
        }
        out.freeze()
    }

    /// The record of these bytes; `None` if they are none.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let kind = bytes.try_get_u8().ok()?;
        let flag = match bytes.try_get_u8().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        match kind {
            0 => {
                let counts = [bytes.try_get_u16_le().ok()?, bytes.try_get_u16_le().ok()?].map(usize::from);
                let [reads, writes] = counts;
                let needed = reads * READ_BYTES + writes * WRITE_BYTES;
                if reads > PARTS_MAX || writes > PARTS_MAX || bytes.len() != needed {
                    return None;
                }
                let read = |_| (StreamId(bytes.get_u128_le()), LogPos(bytes.get_u64_le()));
                let reads = (0..reads).map(read).collect();
                let write = |_| {
                    let stream = StreamId(bytes.get_u128_le());
                    Write { stream, key: bytes.get_u64_le(), value: bytes.get_u64_le() }
                };
                let writes = (0..writes).map(write).collect();
                Some(Self::Commit(Commit { reads, writes, is_shared: flag }))
            }
            1 if bytes.len() == 8 => {
                Some(Self::Decision { pos: LogPos(bytes.get_u64_le()), is_committed: flag })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_the_bytes_that_the_head_of_this_file_says() {
        // Programs of two builds that read one log must decide the same.
        let write = Write { stream: StreamId(2), key: 3, value: 4 };
        let commit = Commit { reads: vec![(StreamId(1), LogPos(9))], writes: vec![write], is_shared: true };
        let record = Record::Commit(commit);
        let mut golden = vec![0, 1, 1, 0, 1, 0];
        for (number, width) in [(1u64, 16), (9, 8), (2, 16), (3, 8), (4, 8)] {
            golden.extend([&number.to_le_bytes()[..], &vec![0; width - 8]].concat());
        }
        assert_eq!(record.encode(), golden);
        assert_eq!(Record::decode(&golden), Some(record));
        let decision = Record::Decision { pos: LogPos(7), is_committed: false };
        assert_eq!(decision.encode()[..], [1, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Record::decode(&decision.encode()), Some(decision));
    }

    #[test]
    fn what_is_cut_or_left_over_is_no_record() {
        // A length that is trusted reads past the end.
        let commit = Commit { reads: vec![(StreamId(1), LogPos(9))], ..Commit::default() };
        let whole = Record::Commit(commit).encode();
        (0..whole.len()).for_each(|len| assert_eq!(Record::decode(&whole[..len]), None, "{len} bytes"));
        assert_eq!(Record::decode(&[&whole[..], &[0]].concat()), None);
        assert_eq!(Record::decode(&[0, 0, 255, 255, 255, 255]), None);
        assert_eq!(Record::decode(&[2, 0]), None);
        assert_eq!(Record::decode(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
