//! The drives of a node's unit: which there are, and what an operator has the node change about them.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_chain::DriveId;
use ithaca_env::codec::{DecodeError, Decoder, Encoder};

use super::{Kind, Message, at_most, no_data, zero};
use crate::limits;
use crate::pos::NodeId;

/// Asks a node for the drives of its unit. Body: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetDrives;

/// A drive of a unit.
///
/// 56 bytes and its path: `id u64`, `link u32`, `flags u32` (1 the log is written there, 2 stale, 4 asleep, 8 leaving, 16 not
/// there, added), `segments u64`, `free u64`, `live u64`, `data u64` (bytes), `size u64` (bytes), `path` (`length u32` of at most
/// 1024, UTF-8; empty if it is not there).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDrive {
    /// Which drive it is.
    pub id: DriveId,
    /// The number of its link: sides of a mirrored one have the same.
    pub link: u32,
    /// Whether the log is being written to it.
    pub is_tail: bool,
    /// Whether it has not everything: nothing is read from it.
    pub is_stale: bool,
    /// Whether it is left alone, because another side of its link serves all reads.
    pub is_asleep: bool,
    /// Whether it is being emptied, to be none of the unit's then.
    pub is_leaving: bool,
    /// Whether the node has it open.
    pub is_there: bool,
    /// Segments it has.
    pub segments: u64,
    /// Segments that are free.
    pub free: u64,
    /// Segments that hold entries.
    pub live: u64,
    /// Bytes of those entries, given up ones among them until all of a segment are.
    pub data_bytes: u64,
    /// Bytes of all its segments.
    pub size_bytes: u64,
    /// Where the node found it.
    pub path: String,
}

/// The drives of a node's unit, in the order of its chain.
///
/// Body: `node u64`, `count u32` (at most 64), and each drive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drives {
    /// The node.
    pub node: NodeId,
    /// Its drives.
    pub drives: Vec<UnitDrive>,
}

/// What is to become of a unit's drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveChange {
    /// A link more, at the end of the chain, of the drives at these paths: the sides of a mirrored one, if there are several.
    Add {
        /// Where they are. One that is not there becomes a file.
        paths: Vec<String>,
        /// Bytes that such a file is created with, a multiple of 4096; 0 for what the node is set to.
        create_bytes: u64,
    },
    /// More sides of the link that the drive at a path is of.
    Mirror {
        /// That drive.
        of: String,
        /// Where the new sides are. One that is not there becomes a file.
        paths: Vec<String>,
        /// As of an addition.
        create_bytes: u64,
    },
    /// A link less: what is needed of it is moved to the others first.
    Remove {
        /// The drives of the link, all that are there.
        paths: Vec<String>,
    },
}

/// Has a node change the drives of its unit. The node goes on with it whether anybody waits or not, and to ask for what is under way
/// only waits for it.
///
/// Body: `what u32` (1 add, 2 mirror, 3 remove), `wait_ms u32` (at most 10,000), `node u64`, `create u64` (bytes; 0 for a removal),
/// `of` (a path; empty but for a mirror), `count u32` (1 to 4), and each path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeDrives {
    /// The node that is meant.
    pub node: NodeId,
    /// The answer comes after so long at the latest.
    pub wait_ms: u32,
    /// What is asked for.
    pub change: DriveChange,
}

/// Why a node does not change its drives as it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DriveRefusal {
    /// What was asked for can never be: a path that is none, the last drive, too many of them.
    Impossible = 1,
    /// The drive cannot be one of the unit's: something is on it, or it is too small.
    Unfit = 2,
    /// The unit has no drive there.
    NoSuchDrive = 3,
    /// The other drives have no room for what is on it.
    NoRoom = 4,
    /// What is on it is damaged, and is not given up for that.
    Damaged = 5,
    /// The drive cannot be opened or has failed, a read failed while entries were moved, or the unit has stopped: the same again
    /// may work.
    Failed = 6,
}

/// What has become of a change of drives.
///
/// Body: `outcome u32` (1 done, 2 under way, 3 refused), `why u32` (0 but for a refusal), `left u64` (segments that hold entries still,
/// of a removal under way), `told` (`length u32` of at most 8192, UTF-8: a line that says why; empty but for a refusal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrivesChanged {
    /// It is so.
    Done,
    /// The node works on it.
    UnderWay {
        /// Segments that hold entries still, of a removal.
        left: u64,
    },
    /// It is not so, and the node does not work on it any more.
    Refused {
        /// Why.
        why: DriveRefusal,
        /// The same with what it is about, in a line for people.
        told: String,
    },
}

const TAIL: u32 = 1;
const STALE: u32 = 2;
const ASLEEP: u32 = 4;
const LEAVING: u32 = 8;
const NOT_THERE: u32 = 16;
const FLAGS: u32 = 31;

impl UnitDrive {
    fn flags(&self) -> u32 {
        let flags = [
            (self.is_tail, TAIL),
            (self.is_stale, STALE),
            (self.is_asleep, ASLEEP),
            (self.is_leaving, LEAVING),
            (!self.is_there, NOT_THERE),
        ];
        flags.into_iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| flag).sum()
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_u64_le(self.id.0);
        out.put_u32_le(self.link);
        out.put_u32_le(self.flags());
        for number in [self.segments, self.free, self.live, self.data_bytes, self.size_bytes] {
            out.put_u64_le(number);
        }
        put_text(out, &self.path, limits::DRIVE_PATH_MAX_BYTES);
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (id, link) = (DriveId(decoder.u64("drive id")?), decoder.u32("link")?);
        let flags = decoder.u32("drive flags")?;
        zero("drive flags", u64::from(flags & !FLAGS))?;
        let is = |flag| flags & flag != 0;
        Ok(Self {
            id,
            link,
            is_tail: is(TAIL),
            is_stale: is(STALE),
            is_asleep: is(ASLEEP),
            is_leaving: is(LEAVING),
            is_there: !is(NOT_THERE),
            segments: decoder.u64("segments")?,
            free: decoder.u64("free segments")?,
            live: decoder.u64("live segments")?,
            data_bytes: decoder.u64("data bytes")?,
            size_bytes: decoder.u64("drive size")?,
            path: decoder.text("drive path", limits::DRIVE_PATH_MAX_BYTES)?.to_owned(),
        })
    }
}

impl DriveRefusal {
    fn from_u32(number: u32) -> Option<Self> {
        use DriveRefusal::{Damaged, Failed, Impossible, NoRoom, NoSuchDrive, Unfit};
        [Impossible, Unfit, NoSuchDrive, NoRoom, Damaged, Failed]
            .into_iter()
            .find(|why| *why as u32 == number)
    }
}

impl Message for GetDrives {
    const KIND: Kind = Kind::GetDrives;

    fn encode_body(&self, _out: &mut BytesMut) {}

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        Decoder::new(body).finish()?;
        no_data(data_len)?;
        Ok(Self)
    }
}

impl Message for Drives {
    const KIND: Kind = Kind::Drives;

    fn encode_body(&self, out: &mut BytesMut) {
        assert!(self.drives.len() <= ithaca_chain::limits::DRIVES_MAX, "{} drives", self.drives.len());
        out.put_u64_le(self.node.0);
        out.put_u32_le(self.drives.len() as u32);
        self.drives.iter().for_each(|drive| drive.encode(out));
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let node = NodeId(decoder.u64("node")?);
        let count = decoder.u32("drive count")? as usize;
        at_most("drive count", count, ithaca_chain::limits::DRIVES_MAX, "at most 64 drives")?;
        let drives = (0..count).map(|_| UnitDrive::decode(&mut decoder)).collect::<Result<_, _>>()?;
        decoder.finish()?;
        no_data(data_len)?;
        Ok(Self { node, drives })
    }
}

impl Message for ChangeDrives {
    const KIND: Kind = Kind::ChangeDrives;

    fn encode_body(&self, out: &mut BytesMut) {
        let (what, of, paths, create_bytes) = match &self.change {
            DriveChange::Add { paths, create_bytes } => (1, "", paths, *create_bytes),
            DriveChange::Mirror { of, paths, create_bytes } => (2, of.as_str(), paths, *create_bytes),
            DriveChange::Remove { paths } => (3, "", paths, 0),
        };
        let sides = 1..=ithaca_chain::limits::SIDES_MAX;
        assert!(sides.contains(&paths.len()), "{} drives of one link", paths.len());
        out.put_u32_le(what);
        out.put_u32_le(self.wait_ms);
        out.put_u64_le(self.node.0);
        out.put_u64_le(create_bytes);
        put_text(out, of, limits::DRIVE_PATH_MAX_BYTES);
        out.put_u32_le(paths.len() as u32);
        paths.iter().for_each(|path| put_text(out, path, limits::DRIVE_PATH_MAX_BYTES));
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let what = decoder.u32("what to change")?;
        let wait_ms = decoder.u32("wait")?;
        at_most("wait", wait_ms as usize, limits::DRIVES_WAIT_MAX_MS as usize, "at most 10,000 ms")?;
        let node = NodeId(decoder.u64("node")?);
        let create_bytes = decoder.u64("bytes to create")?;
        let of = decoder.text("drive path", limits::DRIVE_PATH_MAX_BYTES)?.to_owned();
        let count = decoder.u32("path count")? as usize;
        at_most("path count", count, ithaca_chain::limits::SIDES_MAX, "1 to 4 paths")?;
        let paths: Vec<String> = (0..count)
            .map(|_| decoder.text("drive path", limits::DRIVE_PATH_MAX_BYTES).map(str::to_owned))
            .collect::<Result<_, _>>()?;
        decoder.finish()?;
        no_data(data_len)?;
        let invalid = |field, found, expected| DecodeError::Invalid { field, found, expected };
        if paths.is_empty() || paths.iter().any(String::is_empty) {
            return Err(invalid("path count", count as u64, "1 to 4 paths, none of them empty"));
        }
        if (what == 2) == of.is_empty() {
            return Err(invalid("drive path", of.len() as u64, "one for a mirror and none else"));
        }
        if !create_bytes.is_multiple_of(ithaca_env::limits::BLOCK_BYTES as u64) {
            return Err(invalid("bytes to create", create_bytes, "a multiple of 4096"));
        }
        let change = match what {
            1 => DriveChange::Add { paths, create_bytes },
            2 => DriveChange::Mirror { of, paths, create_bytes },
            3 => DriveChange::Remove { paths },
            found => return Err(invalid("what to change", found.into(), "1, 2 or 3")),
        };
        zero("bytes to create", if what == 3 { create_bytes } else { 0 })?;
        Ok(Self { node, wait_ms, change })
    }
}

impl Message for DrivesChanged {
    const KIND: Kind = Kind::DrivesChanged;

    fn encode_body(&self, out: &mut BytesMut) {
        let (outcome, why, left, told) = match self {
            Self::Done => (1, 0, 0, ""),
            Self::UnderWay { left } => (2, 0, *left, ""),
            Self::Refused { why, told } => (3, *why as u32, 0, told.as_str()),
        };
        out.put_u32_le(outcome);
        out.put_u32_le(why);
        out.put_u64_le(left);
        put_text(out, told, limits::DRIVES_TOLD_MAX_BYTES);
    }

    fn decode_body(body: &Bytes, data_len: usize) -> Result<Self, DecodeError> {
        let mut decoder = Decoder::new(body);
        let (outcome, why) = (decoder.u32("outcome")?, decoder.u32("refusal of a change")?);
        let left = decoder.u64("segments left")?;
        let told = decoder.text("why", limits::DRIVES_TOLD_MAX_BYTES)?.to_owned();
        decoder.finish()?;
        no_data(data_len)?;
        let invalid =
            |field, found: u32, expected| DecodeError::Invalid { field, found: found.into(), expected };
        // What an outcome does not have must be 0 or empty.
        zero("segments left", if outcome == 2 { 0 } else { left })?;
        zero("why", if outcome == 3 { 0 } else { told.len() as u64 })?;
        match (outcome, DriveRefusal::from_u32(why)) {
            (1 | 2, _) if why != 0 => Err(invalid("refusal of a change", why, "0")),
            (1, _) => Ok(Self::Done),
            (2, _) => Ok(Self::UnderWay { left }),
            (3, Some(why)) => Ok(Self::Refused { why, told }),
            (3, None) => Err(invalid("refusal of a change", why, "1 to 6")),
            _ => Err(invalid("outcome", outcome, "1, 2 or 3")),
        }
    }
}

fn put_text(out: &mut BytesMut, text: &str, max_bytes: usize) {
    assert!(text.len() <= max_bytes, "{} bytes of text", text.len());
    out.counted(text.as_bytes());
}
