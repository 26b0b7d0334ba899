//! The records on the drive, one file each. Everything is little-endian and starts with a magic number and a checksum.
//!
//! docs/format/chain.md, docs/format/cache.md for cache drives and docs/format/metadata.md for metadata drives describe every byte. Decoders never panic, never trust a length, and reject trailing bytes.

mod cache;
mod footer;
#[cfg(test)]
mod golden;
mod group;
mod metadata;
mod page;
mod run_head;
mod segment;
mod superblock;

pub(crate) use cache::{CacheHeader, CachedBlock, LineHead, line_start};
pub(crate) use footer::{Directory, Footer, FooterRun, Hole, PageEntry, footer_bound_bytes};
pub(crate) use group::{
    CENSUS_RANGE_BYTES, Census, GROUP_HEAD_BYTES, GroupArea, GroupFlags, GroupHead, GroupIdentity,
    GroupSource, SourceRun, encode_group, encode_group_with, is_aligned, peek_group,
};
pub(crate) use metadata::{ENTRY_HEAD_BYTES, EntryHead, MetadataHeader, slot_start, slots_for, slots_in};
pub(crate) use page::{PageView, add_records};
#[cfg(test)]
pub(crate) use run_head::encode_run_head;
pub(crate) use run_head::{HeadView, RUN_HEAD_BYTES, RunHead, run_blob_bytes};
pub(crate) use segment::{SegmentHeader, SegmentKind, Trailer};
pub(crate) use superblock::Superblock;

use bytes::{BufMut, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};

use crate::limits::FORMAT_VERSION;

/// Checks magic and checksum of a record whose checksum is at byte 4 and covers what follows; returns a decoder that
/// stands after the version.
fn open_record<'a>(bytes: &'a [u8], name: &'static str, magic: u32) -> Result<Decoder<'a>, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let found = decoder.u32(name)?;
    if found != magic {
        return Err(DecodeError::Invalid {
            field: name,
            found: u64::from(found),
            expected: "its magic number",
        });
    }
    let checksum = decoder.u32(name)?;
    let computed = crc32c::crc32c(&bytes[8..]);
    if checksum != computed {
        return Err(DecodeError::Checksum { field: name, found: checksum, computed });
    }
    let version = decoder.u16("format version")?;
    if version != FORMAT_VERSION {
        return Err(newer(version));
    }
    Ok(decoder)
}

/// The error for a record of a format version that is not known; [`is_newer`] recognises it.
fn newer(version: u16) -> DecodeError {
    DecodeError::Invalid {
        field: "format version",
        found: u64::from(version),
        expected: "the version known here",
    }
}

/// The format version, if that is what the error is about.
pub(crate) fn is_newer(error: &DecodeError) -> Option<u16> {
    match error {
        DecodeError::Invalid { field: "format version", found, .. } => u16::try_from(*found).ok(),
        _ => None,
    }
}

/// Whether a block begins one of the records of this module, whole or torn, of whatever version.
pub(crate) fn is_ours(block: &[u8]) -> bool {
    block.starts_with(MAGICS_BEGIN)
}

/// Every magic number begins so.
const MAGICS_BEGIN: &[u8] = b"ITH";

/// Begins a record of `capacity` bytes: magic, room for the checksum, version, flags.
fn begin_record(capacity: usize, magic: u32, flags: u16) -> BytesMut {
    assert!(is_ours(&magic.to_le_bytes()), "a magic number like the others");
    let mut out = BytesMut::with_capacity(capacity);
    out.put_u32_le(magic);
    out.put_u32_le(0);
    out.put_u16_le(FORMAT_VERSION);
    out.put_u16_le(flags);
    out
}

/// Ends a record of `bytes`: zeros to its end, and the checksum.
fn finish_record(mut out: BytesMut, bytes: usize) -> BytesMut {
    out.resize(bytes, 0);
    seal_record(&mut out);
    out
}

/// Fills in the checksum at byte 4.
fn seal_record(bytes: &mut [u8]) {
    let checksum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Ends a record whose remaining bytes must be zero.
fn finish_zeros(mut decoder: Decoder<'_>, name: &'static str) -> Result<(), DecodeError> {
    let rest = decoder.bytes(name, decoder.left())?;
    match rest.iter().find(|&&byte| byte != 0) {
        None => Ok(()),
        Some(&byte) => {
            Err(DecodeError::Invalid { field: name, found: u64::from(byte), expected: "zeros to the end" })
        }
    }
}

/// An array field.
fn array<const N: usize>(decoder: &mut Decoder<'_>, field: &'static str) -> Result<[u8; N], DecodeError> {
    let mut array = [0; N];
    array.copy_from_slice(decoder.bytes(field, N)?);
    Ok(array)
}

#[cfg(test)]
pub(crate) mod testing {
    /// Flips every bit of `bytes`, one at a time, and expects `decode` to refuse each.
    pub(crate) fn every_bit_flip_is_refused<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>) {
        assert!(decode(bytes).is_some(), "the original decodes");
        let mut harmed = bytes.to_vec();
        for bit in 0..bytes.len() * 8 {
            harmed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&harmed).is_none(), "bit {bit} flipped");
            harmed[bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Gives `decode` noise with a valid-looking beginning; it must only not panic.
    pub(crate) fn noise_does_not_panic<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Option<T>) {
        let mut random = ithaca_env::sim::Random::new(1);
        for round in 0..2000 {
            let mut noise = bytes.to_vec();
            for byte in noise.iter_mut().skip(round % 128) {
                *byte = random.next_u64() as u8;
            }
            // With a good checksum, so that the checks behind it are reached.
            if noise.len() > 8 {
                super::seal_record(&mut noise);
            }
            let _ = decode(&noise);
            noise.truncate(random.below(bytes.len() as u64 + 1) as usize);
            let _ = decode(&noise);
        }
    }
}
