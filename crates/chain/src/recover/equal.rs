//! What the sides of a link say that a crash left different, or harm has come to: which of them counts.

use bytes::Bytes;
use ithaca_env::drive::{DriveError, PageBuf};
use ithaca_env::limits::BLOCK_BYTES;

use super::frames::{Frame, read_frames};
use crate::format::{GroupHead, RunHead, SegmentHeader, SegmentKind};
use crate::links::Link;
use crate::metadata::Known;
use crate::options::{ChainId, Geometry};
use crate::sides::Side;

/// A part of a segment that is not the same on all live sides.
pub(crate) struct Unequal {
    pub(crate) segment: u32,
    /// Byte in the segment.
    pub(crate) offset: u32,
    /// What it must be.
    pub(crate) right: Right,
}

/// What all sides must hold.
pub(crate) enum Right {
    /// These blocks.
    Bytes(Bytes),
    /// What these sides have together of a group, as far as each lacks it.
    Group(Vec<Side>, GroupHead, Vec<RunHead>),
}

/// The frames of all segments of a link, as they count; adds what the live sides do not agree on to `unequal`.
pub(crate) async fn agreed_frames(
    link: &Link,
    geometry: Geometry,
    chain: ChainId,
    unequal: &mut Vec<Unequal>,
    known: &Known,
) -> Result<Vec<(u32, Frame)>, DriveError> {
    let segments = geometry.segments_in(link.device.size_bytes());
    let mut agreed: Vec<(u32, Frame)> = Vec::new();
    let mut differ = vec![false; segments as usize];
    for drive in link.device.live_drives() {
        let frames = read_frames(&drive, link.number, segments, geometry, chain, known).await?;
        if agreed.is_empty() {
            agreed = frames;
            continue;
        }
        for (place, (_, frame)) in frames.into_iter().enumerate() {
            let best = &mut agreed[place].1;
            differ[place] |= *best != frame;
            if frame.rank() > best.rank() {
                *best = frame;
            }
        }
    }
    let different = agreed.iter().zip(differ).filter(|(_, differs)| *differs);
    different.for_each(|((segment, frame), _)| add_frame(*segment, frame, chain, geometry, unequal));
    Ok(agreed)
}

fn add_frame(segment: u32, frame: &Frame, chain: ChainId, geometry: Geometry, unequal: &mut Vec<Unequal>) {
    let mut add = |offset: u64, block: &[u8]| {
        let mut bytes = PageBuf::default();
        bytes.extend(block);
        unequal.push(Unequal { segment, offset: offset as u32, right: Right::Bytes(bytes.freeze()) });
    };
    let (kind, lap) = match frame {
        Frame::Blank | Frame::Open { lap: None } => return,
        Frame::Ready { lap, .. } => (SegmentKind::Ready, *lap),
        Frame::Body { lap } => (SegmentKind::Body, *lap),
        Frame::Open { lap: Some(lap) } => (SegmentKind::Open, *lap),
        Frame::Closed { trailer, .. } => {
            add(geometry.segment_bytes - BLOCK_BYTES as u64, &trailer.encode());
            (SegmentKind::Open, trailer.lap)
        }
    };
    add(0, &SegmentHeader { chain, segment, kind, lap }.encode());
}
