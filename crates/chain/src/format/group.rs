//! A group: one atomic write. A head that lists everything in it, then the packed data, then the aligned data.
//!
//! ```text
//!   0        116                                       head_bytes            (padded to 4096)
//!   | fixed   | released | census | state | run heads | packed data | zeros | aligned data      |
//!   |<-------------- covered by the head's checksum --------------->|<- covered by the tables ->|
//! ```
//!
//! A run whose records are all non-empty multiples of 4096 bytes is aligned; the others are packed.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::codec::{DecodeError, Decoder};
use ithaca_env::drive::{PageBuf, Pieces, is_on_block_boundary};
use ithaca_env::limits::BLOCK_BYTES;

use super::run_head::{RunHead, encode_run_head, run_blob_bytes};
use super::{array, newer};
use crate::limits::FORMAT_VERSION;
use crate::options::ChainId;
use crate::run::Run;

const MAGIC: u32 = u32::from_le_bytes(*b"ITHG");
/// Bytes of the fixed part.
pub(crate) const GROUP_HEAD_BYTES: usize = 116;
/// Bytes of a range of segments in a census.
pub(crate) const CENSUS_RANGE_BYTES: usize = 8;
/// In place of the state's length: there is none.
const NO_STATE: u32 = u32::MAX;
/// In place of the number of a census' ranges: there is none.
const NO_CENSUS: u32 = u32::MAX;

/// What a group is besides a carrier of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFlags(pub(crate) u16);

impl GroupFlags {
    /// First group of its segment: its released ranges and state are complete, and replace what came before.
    pub(crate) const CHECKPOINT: Self = Self(1);
    /// First group after an open: it fences off what that open had cut.
    pub(crate) const OPENED: Self = Self(2);
    /// Last group before a clean close.
    pub(crate) const CLOSED: Self = Self(4);
    /// Of a segment of the cleaner's: holds copies alone, and its number counts in its segment.
    pub(crate) const BODY: Self = Self(8);

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Of a group that says what so many groups right before it said of released keys and state, too.
    pub(crate) fn repeating(self, groups: u8) -> Self {
        Self(self.0 | u16::from(groups) << 8)
    }

    /// Of how many groups right before it a group says what they said.
    pub(crate) fn repeats(self) -> u64 {
        u64::from(self.0 >> 8)
    }
}

/// Who a group is: repeated in its head, so that a misdirected or a stale write is never taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupIdentity {
    pub(crate) flags: GroupFlags,
    pub(crate) segment: u32,
    pub(crate) chain: ChainId,
    pub(crate) lap: u64,
    pub(crate) seq: u64,
    /// Every group up to this one was durable when this one was formed; 0 for none.
    pub(crate) durable_seq: u64,
    /// Counts the opens of the chain. A group of a lower incarnation than an earlier one was cut by a recovery.
    pub(crate) incarnation: u64,
    /// Lap of the segment that was filled before this one; 0 for none.
    pub(crate) prev_lap: u64,
    /// Where it lies, byte in the segment.
    pub(crate) offset: u32,
    /// Segments that the drive had: a drive with fewer was cut short.
    pub(crate) segments: u32,
    /// Every key of a record or a release in this group and in those before it is below. It bounds what a group that is
    /// lost can have held.
    pub(crate) key_end: u64,
}

/// Sizes of a group's parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) head_bytes: usize,
    pub(crate) packed_bytes: usize,
    pub(crate) aligned_bytes: usize,
}

impl Layout {
    pub(crate) fn aligned_start(&self) -> usize {
        (self.head_bytes + self.packed_bytes).next_multiple_of(BLOCK_BYTES)
    }

    pub(crate) fn total_bytes(&self) -> usize {
        self.aligned_start() + self.aligned_bytes
    }
}

/// The fixed part of a group's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHead {
    pub(crate) identity: GroupIdentity,
    pub(crate) layout: Layout,
    run_count: u32,
    release_count: u32,
    state_bytes: u32,
    census_count: u32,
    checksum: u32,
}

/// What goes into a group, in order.
pub(crate) struct GroupSource<'a> {
    pub(crate) identity: GroupIdentity,
    pub(crate) released: &'a [Range<u64>],
    pub(crate) state: Option<&'a Bytes>,
    pub(crate) runs: &'a [SourceRun<'a>],
}

/// A run on its way into a group.
#[derive(Clone, Copy)]
pub(crate) struct SourceRun<'a> {
    pub(crate) run: &'a Run,
    /// Its data may be written from where it lies in memory. The image then keeps all of the memory that it is a part of.
    pub(crate) in_place: bool,
}

impl<'a> SourceRun<'a> {
    /// These runs, all of which may be written from where they lie.
    pub(crate) fn all(runs: &'a [Run]) -> Vec<Self> {
        runs.iter().map(|run| Self { run, in_place: true }).collect()
    }
}

/// A group as it is written.
pub(crate) struct EncodedGroup {
    /// The whole write, in whole blocks.
    pub(crate) image: Pieces,
    pub(crate) layout: Layout,
    /// The run heads, for the index and the footer.
    pub(crate) blob: Bytes,
    /// Where in `blob` each run's head begins.
    pub(crate) starts: Vec<u32>,
}

/// Whether a run's data goes to the aligned part.
pub(crate) fn is_aligned(run: &Run) -> bool {
    let whole_blocks = !run.data.is_empty() && run.data.len().is_multiple_of(BLOCK_BYTES);
    whole_blocks
        && run.table.entries().all(|entry| entry.len != 0 && (entry.len as usize).is_multiple_of(BLOCK_BYTES))
}

/// Segments that hold something, in order.
pub(crate) type Census = Vec<Range<u32>>;

/// Makes the image of a group. Data of whole blocks that begins on a block boundary in memory is written from there, if it may be; all other is
/// copied once.
pub(crate) fn encode_group(source: &GroupSource<'_>) -> EncodedGroup {
    encode_group_with(source, None)
}

/// The same of a group with a census.
pub(crate) fn encode_group_with(source: &GroupSource<'_>, census: Option<&Census>) -> EncodedGroup {
    let aligned: Vec<bool> = source.runs.iter().map(|it| is_aligned(it.run)).collect();
    let mut layout = Layout {
        head_bytes: GROUP_HEAD_BYTES
            + source.released.len() * 16
            + census.map_or(0, |census| census.len() * CENSUS_RANGE_BYTES)
            + source.state.map_or(0, Bytes::len),
        ..Layout::default()
    };
    for (SourceRun { run, .. }, &aligned) in source.runs.iter().zip(&aligned) {
        layout.head_bytes += run_blob_bytes(run);
        if aligned {
            layout.aligned_bytes += run.data.len();
        } else {
            layout.packed_bytes += run.data.len();
        }
    }
    let (head, starts, blob_start) = encode_head(source, census, &layout, &aligned);
    let image = lay_out(&head, source.runs, &aligned, &layout);
    EncodedGroup { image, layout, blob: head.freeze().slice(blob_start..), starts }
}

/// The image of a group: what is written from where it lies is a piece of its own; the rest is copied, behind the head, into one buffer.
fn lay_out(head: &[u8], runs: &[SourceRun<'_>], aligned: &[bool], layout: &Layout) -> Pieces {
    let of_kind = |wanted| runs.iter().zip(aligned).filter(move |(_, is)| **is == wanted).map(|(it, _)| it);
    let is_copied = |it: &&SourceRun<'_>| !it.in_place || !is_on_block_boundary(&it.run.data);
    let copied_bytes: usize = of_kind(true).filter(is_copied).map(|it| it.run.data.len()).sum();
    let mut copied = PageBuf::with_capacity(layout.aligned_start() + copied_bytes);
    copied.extend(head);
    of_kind(false).for_each(|it| copied.extend(&it.run.data));
    copied.pad_to_page();
    let (mut start, mut end) = (0, copied.len());
    of_kind(true).filter(is_copied).for_each(|it| copied.extend(&it.run.data));
    let copied = copied.freeze();
    let mut pieces = Vec::new();
    for it in of_kind(true) {
        if is_copied(&it) {
            end += it.run.data.len();
            continue;
        }
        pieces.extend([copied.slice(start..end), it.run.data.clone()]);
        start = end;
    }
    pieces.push(copied.slice(start..end));
    let image = Pieces::from_iter(pieces);
    assert_eq!(image.len(), layout.total_bytes(), "the layout adds up");
    image
}

/// The head with its checksum, where in the blob each run begins, and where the blob begins.
fn encode_head(
    source: &GroupSource<'_>,
    census: Option<&Census>,
    layout: &Layout,
    aligned: &[bool],
) -> (BytesMut, Vec<u32>, usize) {
    let identity = &source.identity;
    let mut out = super::begin_record(layout.head_bytes, MAGIC, identity.flags.0);
    out.put_u32_le(identity.segment);
    out.put_slice(&identity.chain.0);
    out.put_u64_le(identity.lap);
    out.put_u64_le(identity.seq);
    out.put_u64_le(identity.durable_seq);
    out.put_u64_le(identity.incarnation);
    out.put_u64_le(identity.prev_lap);
    out.put_u32_le(identity.offset);
    out.put_u32_le(layout.head_bytes as u32);
    out.put_u32_le(layout.packed_bytes as u32);
    out.put_u32_le(layout.aligned_bytes as u32);
    out.put_u32_le(source.runs.len() as u32);
    out.put_u32_le(source.released.len() as u32);
    out.put_u32_le(source.state.map_or(NO_STATE, |state| state.len() as u32));
    out.put_u32_le(identity.segments);
    out.put_u64_le(identity.key_end);
    out.put_u32_le(census.map_or(NO_CENSUS, |census| census.len() as u32));
    debug_assert_eq!(out.len(), GROUP_HEAD_BYTES);
    for range in source.released {
        out.put_u64_le(range.start);
        out.put_u64_le(range.end);
    }
    for range in census.into_iter().flatten() {
        out.put_u32_le(range.start);
        out.put_u32_le(range.end);
    }
    out.extend_from_slice(source.state.map_or(&[], |state| state));
    let blob_start = out.len();
    let mut starts = Vec::with_capacity(source.runs.len());
    let mut packed_at = identity.offset as usize + layout.head_bytes;
    let mut aligned_at = identity.offset as usize + layout.aligned_start();
    for (SourceRun { run, .. }, &aligned) in source.runs.iter().zip(aligned) {
        let place = if aligned { &mut aligned_at } else { &mut packed_at };
        starts.push((out.len() - blob_start) as u32);
        encode_run_head(&mut out, run, aligned, *place as u32);
        *place += run.data.len();
    }
    assert_eq!(out.len(), layout.head_bytes, "the head adds up");
    super::seal_record(&mut out);
    (out, starts, blob_start)
}

/// A decoded head.
#[derive(Clone, Debug)]
pub(crate) struct GroupArea {
    pub(crate) released: Vec<Range<u64>>,
    /// The segments, besides its own, that hold something, if it says which.
    pub(crate) census: Option<Census>,
    pub(crate) state: Option<Bytes>,
    pub(crate) blob: Bytes,
    pub(crate) starts: Vec<u32>,
    pub(crate) runs: Vec<RunHead>,
}

/// The fixed part of a group's head, whose checksum is not looked at yet: it says how much to read.
pub(crate) fn peek_group(block: &[u8]) -> Result<GroupHead, DecodeError> {
    let mut decoder = Decoder::new(block);
    let magic = decoder.u32("group")?;
    if magic != MAGIC {
        return Err(DecodeError::Invalid {
            field: "group",
            found: u64::from(magic),
            expected: "its magic number",
        });
    }
    let checksum = decoder.u32("group")?;
    let version = decoder.u16("format version")?;
    if version != FORMAT_VERSION {
        return Err(newer(version));
    }
    let flags = GroupFlags(decoder.u16("group flags")?);
    let segment = decoder.u32("segment")?;
    let chain = ChainId(array(&mut decoder, "chain id")?);
    let mut identity = GroupIdentity {
        flags,
        segment,
        chain,
        lap: decoder.u64("lap")?,
        seq: decoder.u64("seq")?,
        durable_seq: decoder.u64("durable seq")?,
        incarnation: decoder.u64("incarnation")?,
        prev_lap: decoder.u64("previous lap")?,
        offset: decoder.u32("offset")?,
        segments: 0,
        key_end: 0,
    };
    let layout = Layout {
        head_bytes: decoder.u32("head bytes")? as usize,
        packed_bytes: decoder.u32("packed bytes")? as usize,
        aligned_bytes: decoder.u32("aligned bytes")? as usize,
    };
    let run_count = decoder.u32("run count")?;
    let release_count = decoder.u32("release count")?;
    let state_bytes = decoder.u32("state bytes")?;
    identity.segments = decoder.u32("segments")?;
    identity.key_end = decoder.u64("key end")?;
    let census_count = decoder.u32("census count")?;
    let head = GroupHead { identity, layout, run_count, release_count, state_bytes, census_count, checksum };
    if layout.head_bytes < GROUP_HEAD_BYTES || !layout.aligned_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(DecodeError::Invalid {
            field: "group layout",
            found: layout.head_bytes as u64,
            expected: "a head of 116 bytes or more, and whole blocks of aligned data",
        });
    }
    Ok(head)
}

/// Ranges of segments: sorted, disjoint, not empty.
fn decode_census(decoder: &mut Decoder<'_>, count: usize) -> Result<Census, DecodeError> {
    // The bytes are there before memory for them is taken.
    let mut ranges = Decoder::new(decoder.bytes("census", count.saturating_mul(CENSUS_RANGE_BYTES))?);
    let mut census: Census = Vec::with_capacity(count);
    for _ in 0..count {
        let range = ranges.u32("census")?..ranges.u32("census")?;
        if range.is_empty() || census.last().is_some_and(|last| last.end >= range.start) {
            let found = u64::from(range.start);
            return Err(DecodeError::Invalid { field: "census", found, expected: "ascending ranges" });
        }
        census.push(range);
    }
    Ok(census)
}

impl GroupHead {
    /// Decodes the head from the group's first bytes, `layout.head_bytes` of them or more.
    pub(crate) fn decode_area(&self, image: &Bytes) -> Result<GroupArea, DecodeError> {
        let needed = self.layout.head_bytes;
        if image.len() < needed {
            return Err(DecodeError::Short { field: "group head", needed, left: image.len() });
        }
        let computed = crc32c::crc32c(&image[8..needed]);
        if computed != self.checksum {
            return Err(DecodeError::Checksum { field: "group head", found: self.checksum, computed });
        }
        let mut decoder = Decoder::new(&image[GROUP_HEAD_BYTES..needed]);
        let released =
            super::segment::decode_ranges(&mut decoder, self.release_count as usize, "released range")?;
        let census = match self.census_count {
            NO_CENSUS => None,
            count => Some(decode_census(&mut decoder, count as usize)?),
        };
        let state_start = needed - decoder.left();
        let state = if self.state_bytes == NO_STATE {
            None
        } else {
            decoder.bytes("state", self.state_bytes as usize)?;
            Some(image.slice(state_start..state_start + self.state_bytes as usize))
        };
        let blob = image.slice(needed - decoder.left()..needed);
        let (starts, runs) = self.decode_runs(&blob)?;
        Ok(GroupArea { released, census, state, blob, starts, runs })
    }

    fn decode_runs(&self, blob: &Bytes) -> Result<(Vec<u32>, Vec<RunHead>), DecodeError> {
        let mut at = 0;
        let (mut starts, mut runs) = (Vec::new(), Vec::new());
        let mut packed_at = self.identity.offset as usize + self.layout.head_bytes;
        let mut aligned_at = self.identity.offset as usize + self.layout.aligned_start();
        let (packed_end, aligned_end) =
            (packed_at + self.layout.packed_bytes, aligned_at + self.layout.aligned_bytes);
        for _ in 0..self.run_count {
            let (run, len) = RunHead::decode(blob, at)?;
            run.view().check()?;
            let place = if run.aligned { &mut aligned_at } else { &mut packed_at };
            if run.data_offset as usize != *place {
                return Err(DecodeError::Invalid {
                    field: "data offset",
                    found: u64::from(run.data_offset),
                    expected: "data one after the other",
                });
            }
            *place += run.data_bytes as usize;
            starts.push(at as u32);
            runs.push(run);
            at += len;
        }
        if at != blob.len() {
            return Err(DecodeError::Trailing { left: blob.len() - at });
        }
        if packed_at != packed_end || aligned_at != aligned_end {
            return Err(DecodeError::Invalid {
                field: "group layout",
                found: self.layout.total_bytes() as u64,
                expected: "runs that add up to the group",
            });
        }
        Ok((starts, runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::testing;
    use crate::run::{RunKind, Table};

    fn identity() -> GroupIdentity {
        GroupIdentity {
            flags: GroupFlags::CHECKPOINT.with(GroupFlags::OPENED),
            segment: 3,
            chain: ChainId([7; 16]),
            lap: 9,
            seq: 41,
            durable_seq: 39,
            incarnation: 2,
            prev_lap: 8,
            offset: 8192,
            segments: 12,
            key_end: 90,
        }
    }

    fn runs() -> Vec<Run> {
        let run = |first_key, kind, payloads: &[&[u8]]| Run {
            first_key,
            version: 5,
            kind,
            meta: Bytes::from_static(b"who"),
            table: Table::of_payloads(payloads),
            data: Bytes::from(payloads.concat()),
        };
        vec![
            run(100, RunKind::Data, &[b"one", b"", b"three"]),
            run(103, RunKind::Data, &[&[1; 4096], &[2; 8192]]),
            run(105, RunKind::Junk, &[b"", b""]),
            run(90, RunKind::Data, &[b"late"]),
        ]
    }

    /// A run of one block, which begins so many bytes behind a block boundary in memory.
    fn block(key: u64, behind: usize) -> Run {
        let mut memory = PageBuf::zeroed(behind);
        memory.extend(&[key as u8; BLOCK_BYTES]);
        let data = memory.freeze().slice(behind..behind + BLOCK_BYTES);
        let table = Table::of_payloads([&data]);
        Run { first_key: key, version: 1, kind: RunKind::Data, meta: Bytes::new(), table, data }
    }

    #[test]
    fn blocks_on_a_boundary_in_memory_are_written_from_there_and_the_image_is_the_same() {
        let (all_copied, mixed): (Vec<Run>, Vec<Run>) = [0, 1, 0, 0, 9, 9, 0]
            .into_iter()
            .zip(0..)
            .map(|(behind, key)| (block(key, 1), block(key, behind)))
            .unzip();
        let encode = |blocks: &[Run]| {
            let small = runs();
            let runs = [SourceRun::all(&small), SourceRun::all(blocks)].concat();
            encode_group(&GroupSource { identity: identity(), released: &[], state: None, runs: &runs })
        };
        let (copied, mixed_image) = (encode(&all_copied).image, encode(&mixed).image);
        assert_eq!((copied.iter().count(), mixed_image.iter().count()), (1, 7));
        for (run, is_shared) in mixed.iter().zip([true, false, true, true, false, false, true]) {
            let found = mixed_image.iter().any(|piece| piece.as_ptr() == run.data.as_ptr());
            assert_eq!(found, is_shared, "block {}", run.first_key);
        }
        assert!(mixed_image.iter().all(|piece| is_on_block_boundary(piece)));
        assert_eq!(mixed_image.joined(), copied.joined());
    }

    fn decode(image: &[u8]) -> Option<(GroupHead, GroupArea)> {
        let head = peek_group(image).ok()?;
        let area = head.decode_area(&Bytes::copy_from_slice(image)).ok()?;
        Some((head, area))
    }

    #[test]
    fn a_group_comes_back_with_its_data_where_it_says() {
        let runs = runs();
        let state = Bytes::from_static(b"state");
        let source = GroupSource {
            identity: identity(),
            released: &[0..90, 95..100],
            state: Some(&state),
            runs: &SourceRun::all(&runs),
        };
        let census = vec![0..3, 7..8, 1 << 20..(1 << 20) + 5];
        let encoded = encode_group_with(&source, Some(&census));
        let (head, area) = decode(&encoded.image.joined()).expect("it decodes");
        assert_eq!((head.identity, head.layout), (identity(), encoded.layout));
        assert_eq!((&area.released[..], area.state.as_ref()), (&[0..90, 95..100][..], Some(&state)));
        assert_eq!(area.census, Some(census));
        assert_eq!((&area.blob, &area.starts), (&encoded.blob, &encoded.starts));
        for (found, run) in area.runs.iter().zip(&runs) {
            let start = (found.data_offset - identity().offset) as usize;
            let data = encoded.image.slice(start..start + found.data_bytes as usize);
            assert!(!found.aligned || start.is_multiple_of(BLOCK_BYTES));
            assert_eq!(&found.clone().into_run(data), run);
        }
    }

    #[test]
    fn no_flipped_bit_of_a_head_passes_and_noise_does_no_harm() {
        let runs = runs();
        let all = SourceRun::all(&runs);
        let small = [all[0], all[2]];
        let source = GroupSource {
            identity: identity(),
            released: std::slice::from_ref(&(0..90)),
            state: None,
            runs: &small,
        };
        let encoded = encode_group_with(&source, Some(&vec![2..5, 9..10]));
        let head = &encoded.image.slice(0..encoded.layout.head_bytes)[..];
        testing::every_bit_flip_is_refused(head, decode);
        testing::noise_does_not_panic(head, decode);
    }
}
