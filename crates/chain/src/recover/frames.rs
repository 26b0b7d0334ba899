//! Superblocks, and the first and last block of every segment.

use ithaca_env::drive::{Drive, DriveError};
use ithaca_env::limits::BLOCK_BYTES;

use super::{LenientRead, start_lenient};
use crate::error::OpenError;
use crate::format::{SegmentHeader, SegmentKind, Superblock, Trailer, is_newer, peek_group};
use crate::limits::{
    FORMAT_VERSION, OPEN_READS, SUPERBLOCK_COPIES, SUPERBLOCK_QUORUM, SUPERBLOCK_STRIDE_BYTES,
    SUPERBLOCK_ZONE_BYTES,
};
use crate::links::segment_of;
use crate::metadata::Known;
use crate::options::{ChainId, Geometry};

/// The superblock that a quorum of copies agrees on, and how many copies are it.
///
/// Errors: `NotAChain` if all copies are zeros, `SuperblockLost` if too few agree, `NewerFormat`, `TooSmall`.
pub(crate) async fn read_superblock(drive: &Drive) -> Result<(Superblock, usize), OpenError> {
    if drive.size_bytes() < SUPERBLOCK_ZONE_BYTES {
        return Err(OpenError::TooSmall {
            drive: drive.name(),
            found_bytes: drive.size_bytes(),
            needed_bytes: SUPERBLOCK_ZONE_BYTES,
        });
    }
    let reads: Vec<_> = (0..SUPERBLOCK_COPIES)
        .map(|copy| drive.read((copy * SUPERBLOCK_STRIDE_BYTES) as u64, BLOCK_BYTES))
        .collect();
    let mut good: Vec<Superblock> = Vec::new();
    let mut first_fault = None;
    let mut is_blank = true;
    let mut unread = None;
    for read in reads {
        let block = match read.await {
            Ok(block) => block,
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        is_blank &= block.iter().all(|&byte| byte == 0);
        match Superblock::decode(&block) {
            Ok(superblock) => good.push(superblock),
            Err(fault) => {
                if let Some(found) = is_newer(&fault) {
                    let drive = drive.name();
                    return Err(OpenError::NewerFormat { drive, found, known: FORMAT_VERSION });
                }
                first_fault.get_or_insert(fault);
            }
        }
    }
    good.sort_by_key(|superblock| std::cmp::Reverse(superblock.sequence));
    let votes = |one: &Superblock| good.iter().filter(|other| *other == one).count();
    if let Some(superblock) = good.iter().find(|one| votes(one) >= SUPERBLOCK_QUORUM) {
        return Ok((superblock.clone(), votes(superblock)));
    }
    if let Some(error) = unread {
        return Err(error.into());
    }
    match first_fault {
        Some(first_fault) if !is_blank => {
            Err(OpenError::SuperblockLost { drive: drive.name(), valid: good.len(), first_fault })
        }
        _ => Err(OpenError::NotAChain { drive: drive.name() }),
    }
}

/// What a segment's first and last block say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    /// Never used by this chain.
    Blank,
    /// Free: written over in advance, or wiped by a recovery or a cleaner. Laps up to this one have been used.
    Ready {
        lap: u64,
        /// It is free without its header too: there is no trailer, and the second copy of the header stands where the first group was, or
        /// all of it is zeros, which is what the lap 0 says. If not, the segment is to be wiped: what is left in it would be taken for its
        /// content if its header were lost.
        is_whole: bool,
    },
    /// It has groups, or may have. The lap is not known if its header is harmed.
    Open {
        lap: Option<u64>,
    },
    /// A cleaner was filling it with copies: nothing depends on it.
    Body {
        lap: u64,
    },
    Closed {
        trailer: Box<Trailer>,
        is_header_bad: bool,
    },
}

impl Frame {
    pub(crate) fn highest_lap(&self) -> u64 {
        match self {
            Self::Blank => 0,
            Self::Ready { lap, .. } | Self::Body { lap } => *lap,
            Self::Open { lap } => lap.unwrap_or(0),
            Self::Closed { trailer, .. } => trailer.lap,
        }
    }

    /// Of what two sides say of a segment, the higher one counts: every side had it if anything was acknowledged that
    /// depends on it. A free segment counts more than one in use of the same lap: what was in it was cut. One that is to be wiped counts
    /// most: it is on all sides then.
    pub(crate) fn rank(&self) -> (u64, u32) {
        let kind = match self {
            Self::Blank => 0,
            Self::Open { lap: None } => 1,
            Self::Open { lap: Some(_) } | Self::Body { .. } => 2,
            Self::Closed { is_header_bad: true, .. } => 3,
            Self::Closed { is_header_bad: false, .. } => 4,
            Self::Ready { is_whole: true, .. } => 5,
            Self::Ready { is_whole: false, .. } => 6,
        };
        (self.highest_lap(), kind)
    }
}

/// Reads the frames of the first `segments` segments of one side of a link, a bounded number at a time; with the number
/// of each. Of segments that a metadata drive knows as closed the header alone is read, if that says the same. What could not be read is
/// asked for again when all others have been read: the drive may have failed for a while only.
pub(crate) async fn read_frames(
    drive: &Drive,
    link: u32,
    segments: u32,
    geometry: Geometry,
    chain: ChainId,
    known: &Known,
) -> Result<Vec<(u32, Frame)>, DriveError> {
    let mut frames = Vec::with_capacity(segments as usize);
    let mut reads = std::collections::VecDeque::new();
    let mut unread = Vec::new();
    let mut next = 0;
    while frames.len() < segments as usize {
        while next < segments && reads.len() < OPEN_READS {
            let segment = segment_of(link, next);
            reads.push_back(if known.has(segment) {
                FrameRead::Header(start_lenient(drive, geometry.segment_start(segment), BLOCK_BYTES))
            } else {
                FrameRead::Whole(WholeFrame::start(drive, segment, geometry))
            });
            next += 1;
        }
        let Some(read) = reads.pop_front() else { break };
        let segment = segment_of(link, frames.len() as u32);
        let (frame, is_read) = match read {
            FrameRead::Header(header) => {
                let header = header.finish().await?;
                match known.trailer(segment, chain, &header) {
                    Some(trailer) => {
                        (Frame::Closed { trailer: Box::new(trailer), is_header_bad: false }, true)
                    }
                    // Another use of the segment, or harm.
                    None => WholeFrame::start(drive, segment, geometry).finish(segment, chain).await?,
                }
            }
            FrameRead::Whole(whole) => whole.finish(segment, chain).await?,
        };
        unread.extend((!is_read).then_some(frames.len()));
        frames.push((segment, frame));
    }
    for index in unread {
        let (segment, frame) = &mut frames[index];
        (*frame, _) = WholeFrame::start(drive, *segment, geometry).finish(*segment, chain).await?;
    }
    Ok(frames)
}

/// The frame of a segment that is being read.
enum FrameRead {
    /// A metadata drive knows it: only the header.
    Header(LenientRead),
    Whole(WholeFrame),
}

/// Header and first group, and the trailer.
struct WholeFrame(LenientRead, LenientRead);

impl WholeFrame {
    fn start(drive: &Drive, segment: u32, geometry: Geometry) -> Self {
        let start = geometry.segment_start(segment);
        let trailer_offset = start + geometry.segment_bytes - BLOCK_BYTES as u64;
        let read = |offset, len| start_lenient(drive, offset, len);
        Self(read(start, 2 * BLOCK_BYTES), read(trailer_offset, BLOCK_BYTES))
    }

    /// What these blocks say, and whether all of them could be read. Errors: others than failed reads.
    async fn finish(self, segment: u32, chain: ChainId) -> Result<(Frame, bool), DriveError> {
        let (begin, first_unread) = self.0.finish_in_blocks().await?;
        let (trailer, last_unread) = self.1.finish_in_blocks().await?;
        let (header, group) = begin.split_at(BLOCK_BYTES);
        let frame = classify(segment, chain, header, group, &trailer);
        Ok((frame, first_unread.is_none() && last_unread.is_none()))
    }
}

/// The lap of the group that a segment begins with, if that block says that it is one of this chain's.
fn first_group_lap(segment: u32, chain: ChainId, block: &[u8]) -> Option<u64> {
    let identity = peek_group(block).ok()?.identity;
    let is_here =
        identity.chain == chain && identity.segment == segment && identity.offset == BLOCK_BYTES as u32;
    is_here.then_some(identity.lap)
}

/// The lap in the second copy of a free segment's header, which stands where the first group would.
fn wiped_lap(segment: u32, chain: ChainId, block: &[u8]) -> Option<u64> {
    let header = SegmentHeader::decode(block).ok()?;
    let is_here = header.chain == chain && header.segment == segment && header.kind == SegmentKind::Ready;
    is_here.then_some(header.lap)
}

fn classify(segment: u32, chain: ChainId, header: &[u8], group: &[u8], trailer: &[u8]) -> Frame {
    let trailer = Trailer::decode(trailer).ok().filter(|it| it.chain == chain && it.segment == segment);
    let is_zero = header.iter().all(|&byte| byte == 0);
    let header = SegmentHeader::decode(header).ok().filter(|it| it.chain == chain && it.segment == segment);
    let group_lap = || first_group_lap(segment, chain, group);
    // The first group of a later use would stand there: without it nothing in the segment was acknowledged since.
    if let (None, Some(lap)) = (&header, wiped_lap(segment, chain, group)) {
        return Frame::Ready { lap, is_whole: false };
    }
    match (header, trailer) {
        (Some(SegmentHeader { kind: SegmentKind::Ready, lap, .. }), trailer) => {
            let is_wiped = wiped_lap(segment, chain, group) == Some(lap) || lap == 0 && group_lap().is_none();
            Frame::Ready { lap, is_whole: trailer.is_none() && is_wiped }
        }
        (Some(SegmentHeader { kind: SegmentKind::Body, lap, .. }), _) => Frame::Body { lap },
        (Some(header), Some(trailer)) if trailer.lap == header.lap => {
            Frame::Closed { trailer: Box::new(trailer), is_header_bad: false }
        }
        // A trailer of an earlier lap is what the segment was before it was recycled.
        (Some(header), _) => Frame::Open { lap: Some(header.lap) },
        // Harmed while in use again: the group is newer than the trailer.
        (None, Some(trailer)) if group_lap() > Some(trailer.lap) => Frame::Open { lap: None },
        // Harmed, or torn as the segment was about to be used again: then all its keys are released.
        (None, Some(trailer)) => Frame::Closed { trailer: Box::new(trailer), is_header_bad: true },
        (None, None) if is_zero && group_lap().is_none() => Frame::Blank,
        (None, None) => Frame::Open { lap: None },
    }
}
