//! What a volume is and holds, as its server tells it.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use ithaca_chain::{ChainId, LinkStats, SideState};
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use crate::{Isolation, Retention, Version, Volume};

/// Bytes of a drive's path at the most.
const PATH_MAX_BYTES: usize = 4096;

/// What a volume is and holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its identity.
    pub id: ChainId,
    /// Blocks of 4 KiB.
    pub blocks: u64,
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// What transactions are held to unless they ask for something else.
    pub isolation: Isolation,
    /// How long old versions are kept.
    pub retention: Retention,
    /// The newest durable version.
    pub version: Version,
    /// Where history begins.
    pub floor: Version,
    /// Blocks that hold data.
    pub data_blocks: u64,
    /// Versions of blocks that are kept besides one for each block.
    pub versions: u64,
    /// Transactions that are under way.
    pub transactions: u64,
    /// Bytes of a segment of the chain.
    pub segment_bytes: u64,
    /// Bytes of the chain that are free.
    pub free_bytes: u64,
    /// Its drives.
    pub drives: Vec<DriveSummary>,
}

/// A drive of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveSummary {
    /// Its path; of one that is not there, its id.
    pub drive: String,
    /// Whether it has everything.
    pub state: DriveState,
    /// Segments of its link.
    pub segments: u64,
    /// Those that are free.
    pub segments_free: u64,
}

/// Whether a drive of a volume has everything: one that is no side of a mirror always has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveState {
    /// It has.
    Live,
    /// It missed a write, and nobody rebuilds it now.
    Stale,
    /// It is being made equal to the others of its mirror: so many of its segments are gone through.
    Rebuilding {
        /// Segments.
        segments: u64,
    },
    /// It was not given, or is lost.
    Missing,
}

impl DriveState {
    fn of(link: &LinkStats) -> Self {
        match (link.is_there, link.state, link.rebuilt) {
            (false, _, _) => Self::Missing,
            (true, SideState::Live, _) => Self::Live,
            (true, SideState::Stale, Some(segments)) => Self::Rebuilding { segments },
            (true, SideState::Stale, None) => Self::Stale,
        }
    }

    /// As on the wire: a number, and how many segments are rebuilt.
    fn to_wire(self) -> (u8, u64) {
        match self {
            Self::Live => (1, 0),
            Self::Stale => (2, 0),
            Self::Rebuilding { segments } => (3, segments),
            Self::Missing => (4, 0),
        }
    }

    fn of_wire(found: u8, segments: u64) -> Result<Self, DecodeError> {
        match (found, segments) {
            (1, 0) => Ok(Self::Live),
            (2, 0) => Ok(Self::Stale),
            (3, segments) => Ok(Self::Rebuilding { segments }),
            (4, 0) => Ok(Self::Missing),
            _ => {
                let expected = "1 to 4, and segments with 3 only";
                Err(DecodeError::Invalid { field: "state of a drive", found: u64::from(found), expected })
            }
        }
    }
}

impl Summary {
    /// That of a volume, as it is now.
    pub fn of(volume: &Volume) -> Self {
        let info = volume.info();
        let drive = |link: &LinkStats| DriveSummary {
            drive: link.drive.clone(),
            state: DriveState::of(link),
            segments: link.segments,
            segments_free: link.segments_free,
        };
        Self {
            id: info.id,
            blocks: info.blocks,
            fragment_bytes: info.fragment_bytes,
            isolation: info.isolation,
            retention: info.retention,
            version: info.version,
            floor: info.floor,
            data_blocks: info.data_blocks,
            versions: info.versions,
            transactions: info.transactions,
            segment_bytes: info.chain.segment_bytes,
            free_bytes: info.chain.free_bytes,
            drives: info.chain.links.iter().map(drive).collect(),
        }
    }

    /// Appends its body.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        out.put_slice(&self.id.0);
        out.put_u64_le(self.blocks);
        out.put_u32_le(self.fragment_bytes);
        out.put_u8(match self.isolation {
            Isolation::StrictSerializable => 1,
            Isolation::Snapshot => 2,
        });
        out.put_u64_le(self.retention.versions);
        out.put_u64_le(u64::try_from(self.retention.age.as_millis()).unwrap_or(u64::MAX));
        out.put_u64_le(self.version.0);
        out.put_u64_le(self.floor.0);
        out.put_u64_le(self.data_blocks);
        out.put_u64_le(self.versions);
        out.put_u64_le(self.transactions);
        out.put_u64_le(self.segment_bytes);
        out.put_u64_le(self.free_bytes);
        out.put_u16_le(u16::try_from(self.drives.len()).unwrap_or(u16::MAX));
        for drive in self.drives.iter().take(usize::from(u16::MAX)) {
            out.put_u64_le(drive.segments);
            out.put_u64_le(drive.segments_free);
            let (state, rebuilt) = drive.state.to_wire();
            out.put_u8(state);
            out.put_u64_le(rebuilt);
            let path = drive.drive.as_bytes();
            out.counted(&path[..path.len().min(PATH_MAX_BYTES)]);
        }
    }

    /// The summary that a body is.
    pub(super) fn decode(body: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Decoder::new(body);
        let mut id = [0; 16];
        id.copy_from_slice(fields.bytes("id", 16)?);
        let (blocks, fragment_bytes) = (fields.u64("blocks")?, fields.u32("fragment bytes")?);
        let isolation = match fields.u8("isolation")? {
            1 => Isolation::StrictSerializable,
            2 => Isolation::Snapshot,
            found => {
                let expected = "1 or 2";
                return Err(DecodeError::Invalid { field: "isolation", found: u64::from(found), expected });
            }
        };
        let versions = fields.u64("retained versions")?;
        let age = Duration::from_millis(fields.u64("retained milliseconds")?);
        let mut summary = Self {
            id: ChainId(id),
            blocks,
            fragment_bytes,
            isolation,
            retention: Retention { versions, age },
            version: Version(fields.u64("version")?),
            floor: Version(fields.u64("floor")?),
            data_blocks: fields.u64("blocks of data")?,
            versions: fields.u64("versions")?,
            transactions: fields.u64("transactions")?,
            segment_bytes: fields.u64("segment bytes")?,
            free_bytes: fields.u64("free bytes")?,
            drives: Vec::new(),
        };
        for _ in 0..fields.u16("drives")? {
            let (segments, segments_free) = (fields.u64("segments")?, fields.u64("free segments")?);
            let (state, rebuilt) = (fields.u8("state of a drive")?, fields.u64("rebuilt segments")?);
            let state = DriveState::of_wire(state, rebuilt)?;
            let drive = String::from_utf8_lossy(fields.counted("path", PATH_MAX_BYTES)?).into_owned();
            summary.drives.push(DriveSummary { drive, state, segments, segments_free });
        }
        fields.finish()?;
        Ok(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_told_as_what_it_is_and_one_that_is_nothing_is_refused() {
        let states = [
            DriveState::Live,
            DriveState::Stale,
            DriveState::Rebuilding { segments: 31 },
            DriveState::Missing,
        ];
        for (nth, state) in states.into_iter().enumerate() {
            let (found, segments) = state.to_wire();
            assert_eq!((usize::from(found), DriveState::of_wire(found, segments)), (nth + 1, Ok(state)));
        }
        for (found, segments) in [(0, 0), (1, 31), (4, 1), (5, 0)] {
            assert!(DriveState::of_wire(found, segments).is_err(), "{found}, {segments}");
        }
    }
}
