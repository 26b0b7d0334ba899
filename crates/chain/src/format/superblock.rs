//! The superblock: which chain a drive holds. Four copies; two that are equal are believed.

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::DecodeError;
use ithaca_env::limits::BLOCK_BYTES;

use super::{array, finish_zeros, open_record, seal_record};
use crate::limits::{FORMAT_VERSION, LABEL_MAX_BYTES, SEGMENT_MAX_BYTES, SEGMENT_MIN_BYTES};
use crate::options::{ChainId, Identity, Label};

const MAGIC: u32 = u32::from_le_bytes(*b"ITHS");

/// What a superblock says. All copies are the same, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) identity: Identity,
    /// Grows with every rewrite; the highest that has a quorum counts.
    pub(crate) sequence: u64,
    pub(crate) segment_bytes: u64,
}

impl Superblock {
    pub(crate) fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(BLOCK_BYTES);
        out.put_u32_le(MAGIC);
        out.put_u32_le(0);
        out.put_u16_le(FORMAT_VERSION);
        out.put_u16_le(0);
        out.put_slice(&self.identity.id.0);
        out.put_u64_le(self.sequence);
        out.put_u64_le(self.segment_bytes);
        let label = self.identity.label.as_str().as_bytes();
        out.put_u32_le(label.len() as u32);
        out.put_slice(label);
        out.resize(BLOCK_BYTES, 0);
        seal_record(&mut out);
        out
    }

    pub(crate) fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let mut decoder = open_record(block, "superblock", MAGIC)?;
        let flags = decoder.u16("superblock flags")?;
        if flags != 0 {
            return Err(DecodeError::Invalid {
                field: "superblock flags",
                found: u64::from(flags),
                expected: "no flags",
            });
        }
        let id = ChainId(array(&mut decoder, "chain id")?);
        let sequence = decoder.u64("superblock sequence")?;
        let segment_bytes = decoder.u64("segment bytes")?;
        let sizes = SEGMENT_MIN_BYTES..=SEGMENT_MAX_BYTES;
        if !sizes.contains(&segment_bytes) || !segment_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(DecodeError::Invalid {
                field: "segment bytes",
                found: segment_bytes,
                expected: "128 KiB to 1 GiB in blocks",
            });
        }
        let label = decoder.counted("label", LABEL_MAX_BYTES)?;
        let label = std::str::from_utf8(label).ok().and_then(Label::new).ok_or(DecodeError::Invalid {
            field: "label",
            found: label.len() as u64,
            expected: "UTF-8",
        })?;
        finish_zeros(decoder, "superblock")?;
        Ok(Self { identity: Identity { id, label }, sequence, segment_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;

    fn example() -> Superblock {
        let label = Label::new("unit-3").expect("short");
        Superblock {
            identity: Identity { id: ChainId([7; 16]), label },
            sequence: 1,
            segment_bytes: 64 << 20,
        }
    }

    #[test]
    fn it_comes_back_and_no_flipped_bit_passes() {
        let block = example().encode();
        assert_eq!(Superblock::decode(&block), Ok(example()));
        testing::every_bit_flip_is_refused(&block, |bytes| Superblock::decode(bytes).ok());
        testing::noise_does_not_panic(&block, |bytes| Superblock::decode(bytes).ok());
    }

    #[test]
    fn a_newer_version_is_told_by_its_number() {
        let mut block = example().encode();
        block[8] = 9;
        seal_record(&mut block);
        let error = Superblock::decode(&block).expect_err("version 9");
        assert_eq!(super::super::is_newer(&error), Some(9));
    }
}
