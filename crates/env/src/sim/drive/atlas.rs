//! The fault atlas: which copies of which blocks the simulator has harmed.
//!
//! An oracle that finds data lost or refused asks the atlas whether it had to be: while one good copy is left, data lost
//! must be 0; where no good copy is left the system must refuse and may not lie.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::Time;
use crate::limits::BLOCK_BYTES;

use super::DriveId;
use super::image::blocks;

/// What was done to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HarmKind {
    /// A write was acknowledged and not done: the block holds what it held before.
    LostWrite,
    /// A write meant for this block went elsewhere.
    MisdirectedFrom,
    /// A write meant for another block landed here.
    MisdirectedTo,
    /// A bit changed.
    BitRot,
    /// The block cannot be read.
    Unreadable,
    /// The whole drive is gone.
    Gone,
    /// A write or sync failed and said so; dirty data may be gone. The caller knows, so this harms no promise.
    FailedWrite,
}

impl HarmKind {
    /// Whether the drive reported the harm when it happened, so that nobody was led to rely on the block.
    pub fn is_reported(self) -> bool {
        self == HarmKind::FailedWrite
    }
}

/// One entry of the atlas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harm {
    /// The drive.
    pub drive: DriveId,
    /// First byte harmed; a block boundary.
    pub offset: u64,
    /// Bytes harmed; whole blocks. `u64::MAX` for a whole drive.
    pub len: u64,
    /// What was done.
    pub kind: HarmKind,
    /// When.
    pub at: Time,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} drive {} {:?} {}+{}", self.at, self.drive.0, self.kind, self.offset, self.len)
    }
}

/// Every harm done, and which blocks still bear it.
#[derive(Default)]
pub struct Atlas {
    history: Vec<Harm>,
    harmed: BTreeMap<(DriveId, u64), Vec<HarmKind>>,
    gone: Vec<DriveId>,
}

impl Atlas {
    /// Everything that was done, in order.
    pub fn history(&self) -> &[Harm] {
        &self.history
    }

    /// Whether any of these bytes was harmed since it was last durably written. `bytes` need not be aligned.
    pub fn is_harmed(&self, drive: DriveId, bytes: Range<u64>) -> bool {
        !self.harms(drive, bytes).is_empty()
    }

    /// What was done to these bytes since each was last durably written.
    pub fn harms(&self, drive: DriveId, bytes: Range<u64>) -> Vec<HarmKind> {
        if self.gone.contains(&drive) {
            return vec![HarmKind::Gone];
        }
        let block = BLOCK_BYTES as u64;
        let range = (drive, bytes.start / block)..(drive, bytes.end.div_ceil(block));
        if range.start >= range.end {
            return Vec::new();
        }
        self.harmed.range(range).flat_map(|(_, kinds)| kinds.iter().copied()).collect()
    }

    /// Blocks of the drive that bear harm, as byte offsets.
    pub fn harmed_blocks(&self, drive: DriveId) -> impl Iterator<Item = u64> {
        self.harmed.range((drive, 0)..=(drive, u64::MAX)).map(|(&(_, block), _)| block * BLOCK_BYTES as u64)
    }

    pub(super) fn record(&mut self, at: Time, drive: DriveId, offset: u64, len: usize, kind: HarmKind) {
        self.history.push(Harm { drive, offset, len: len as u64, kind, at });
        if kind.is_reported() {
            return;
        }
        for block in blocks(offset, len) {
            self.harmed.entry((drive, block)).or_default().push(kind);
        }
    }

    pub(super) fn record_gone(&mut self, at: Time, drive: DriveId) {
        self.history.push(Harm { drive, offset: 0, len: u64::MAX, kind: HarmKind::Gone, at });
        self.gone.push(drive);
    }

    /// The block was durably written: what was done to it before no longer counts.
    pub(super) fn heal(&mut self, drive: DriveId, block: u64) {
        if !self.harmed.is_empty() {
            self.harmed.remove(&(drive, block));
        }
    }

    pub(super) fn heal_drive(&mut self, drive: DriveId) {
        self.gone.retain(|&gone| gone != drive);
        self.harmed.retain(|&(harmed, _), _| harmed != drive);
    }
}
