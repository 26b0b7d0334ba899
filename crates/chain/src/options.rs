//! How a chain is set up: its identity, its sizes, and the knobs that make rare paths common in tests.

use std::fmt;
use std::time::Duration;

use ithaca_env::limits::{BLOCK_BYTES, DRIVE_IO_MAX_BYTES};
use thiserror::Error;

use crate::format::CENSUS_RANGE_BYTES;
use crate::limits;
use crate::links::index_of;
use crate::placement::Placement;
use crate::planted::Planted;
use crate::victims::{Cleaning, Victims};

/// A chain's identity: random, written in every record on its drive, so that another chain's bytes are never taken for
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainId(pub [u8; 16]);

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A name that the owner gives to the chain (for a log unit, its unit id), so that a drive of the wrong one is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label(String);

impl Label {
    /// `None` if it is longer than [`limits::LABEL_MAX_BYTES`].
    pub fn new(label: &str) -> Option<Self> {
        (label.len() <= limits::LABEL_MAX_BYTES).then(|| Self(label.to_owned()))
    }

    /// The label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who a chain is: given at its creation, and expected when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The chain.
    pub id: ChainId,
    /// Its owner's name for it.
    pub label: Label,
}

/// Sizes and knobs of a chain. `segment_bytes` is fixed at creation and kept on the drive; the rest may differ at each
/// open.
#[derive(Clone, Debug)]
pub struct ChainOptions {
    /// Bytes of a segment, a multiple of 4096. Used at creation; an existing chain keeps its own.
    pub segment_bytes: u64,
    /// Groups in flight together.
    pub flights: usize,
    /// Batches share a group up to this many bytes.
    pub group_max_bytes: usize,
    /// Bytes of appends that wait for a group at the most; past it an append fails with `Overloaded`.
    pub queue_max_bytes: usize,
    /// Bytes of recent groups kept in memory for reads.
    pub tail_cache_bytes: usize,
    /// Bytes of blocks kept in memory that were read by their places from drives, whichever; the one that was used longest ago goes
    /// first. 0: none.
    pub read_cache_bytes: usize,
    /// Whether they take also what was written, when it leaves the memory of recent groups and its [`Owner`](crate::Owner) says that it is
    /// the newest of its key.
    pub read_cache_takes_writes: bool,
    /// Bytes of footer pages kept in memory.
    pub index_cache_bytes: usize,
    /// With a cache drive ([`Chain::use_cache`](crate::Chain::use_cache), whose size is the drive's own): whether it also
    /// takes what is read from the drives that the log is not being written to.
    pub body_cache: bool,
    /// Cold records closer to each other than this many bytes are read by one request, as long as at most half of what is
    /// read was not asked for. It pays where an arm has to move; with 0 a request reads neighbours only.
    pub read_gap_bytes: u64,
    /// Free segments of a file kept written ahead, so that flushes do not wait for the file system to allocate. One more for each that was begun since
    /// the open, up to [`SEGMENTS_READY_MAX`](crate::limits::SEGMENTS_READY_MAX), when nothing was written for a moment; a part of those
    /// while the log is busy. 0: none.
    pub segments_ready: usize,
    /// Segments that data leaves free. Junk, and data that [may](crate::Batch::may_use_reserve), use half of them; the rest is for
    /// releases and states, so that a full drive can always be trimmed.
    pub reserve_segments: usize,
    /// Each file may grow to this many bytes. A drive that is larger from the start is used whole.
    pub capacity_bytes: u64,
    /// Bytes by which a file grows at a time.
    pub grow_bytes: u64,
    /// Which drive the log goes on on when a segment is full.
    pub placement: Placement,
    /// A side of a mirrored link that has not answered a request for so long while another has is given up.
    pub side_patience: Duration,
    /// A side of a mirrored link is given up if its writes take so many times as long as another's, over 2 s and more than
    /// 20 ms each; 0: however slow it is.
    pub slow_side_factor: u32,
    /// When a mirrored link was not written to for so long, and one side can serve its reads, the others are left alone until
    /// they are needed, so that they can rest; 0: never.
    pub sleep_after: Duration,
    /// Closed segments are read and checked at so many bytes a second, of each side; 0: never by itself.
    pub scrub_bytes_per_second: u64,
    /// The rest between two such passes. The first one begins after it, or 10 min after the open if that is sooner.
    pub scrub_every: Duration,
    /// How room is made of segments that hold both released records and others.
    pub cleaning: Cleaning,
    /// Which of them comes first.
    pub victims: Victims,
    /// Cleaning begins when fewer segments are free than so many of a hundred; those that a file can still grow by count as
    /// free. It begins in any case when few more than the reserve are left.
    pub clean_start_free_percent: u32,
    /// It ends when so many of a hundred are free, or nothing is left that gives room.
    pub clean_stop_free_percent: u32,
    /// Bytes of copies that the cleaner has on their way to the tail at the most; fewer while the log has little under way
    /// itself, more where room is needed most. More is faster, and holds appends up for longer.
    pub clean_batch_bytes: u64,
    /// Whether an open fails, with `ControlLost`, rather than go on with an older state of its owner's, or without all releases. Else it says
    /// so; see [`Recovered`](crate::Recovered).
    pub needs_control: bool,
    /// Whether an open fails, with `GroupsLost` and before it writes anything, rather than go on without what lost groups held, of which it
    /// does not know which records that was. Else it names them; see [`Recovered`](crate::Recovered).
    pub needs_groups: bool,
    /// Whether an open fails, with `DriveMissing` or `StaleDrive` and before it writes anything, rather than go on without a side of a mirror
    /// that counts, which would be stale from then on.
    pub needs_sides: bool,
    /// Whether the chain is only read, as it was right before the first group that is lost, or as it is if none is. Nothing is written to
    /// its drives, by the open or later, and appends fail with `ReadOnly`. The open fails with `NoRescue` unless all is certain to be there that
    /// the chain held then. No metadata drive is asked. See [`Recovered::left_out`](crate::Recovered).
    pub rescue: bool,
    /// A deliberate fault.
    pub planted: Planted,
}

impl Default for ChainOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            flights: 2,
            group_max_bytes: 1 << 20,
            queue_max_bytes: 64 << 20,
            tail_cache_bytes: 64 << 20,
            read_cache_bytes: 0,
            read_cache_takes_writes: true,
            index_cache_bytes: 32 << 20,
            body_cache: false,
            read_gap_bytes: limits::READ_COALESCE_BYTES,
            segments_ready: 2,
            reserve_segments: 2,
            capacity_bytes: 16 << 30,
            grow_bytes: 1 << 30,
            placement: Placement::Fill,
            side_patience: Duration::from_secs(5),
            slow_side_factor: 10,
            sleep_after: Duration::ZERO,
            scrub_bytes_per_second: 4 << 20,
            scrub_every: Duration::from_secs(24 * 3600),
            cleaning: Cleaning::MoveToTail,
            victims: Victims::CostBenefit,
            clean_start_free_percent: 10,
            clean_stop_free_percent: 15,
            clean_batch_bytes: limits::CLEAN_BATCH_MAX_BYTES,
            needs_control: false,
            needs_groups: false,
            needs_sides: false,
            rescue: false,
            planted: Planted::NONE,
        }
    }
}

/// An option outside its limits.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// The value is out of range.
    #[error("{name} is {found}, must be from {min} to {max}")]
    OutOfRange {
        /// The option.
        name: &'static str,
        /// What it holds.
        found: u64,
        /// The least it may hold.
        min: u64,
        /// The most it may hold.
        max: u64,
    },
    /// The value must be a multiple of the block.
    #[error("{name} is {found}, must be a multiple of 4096")]
    Unaligned {
        /// The option.
        name: &'static str,
        /// What it holds.
        found: u64,
    },
}

impl ChainOptions {
    /// Checks every option against its limits.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let within = |name, found: u64, min: u64, max: u64| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(OptionsError::OutOfRange { name, found, min, max })
            }
        };
        within("segment_bytes", self.segment_bytes, limits::SEGMENT_MIN_BYTES, limits::SEGMENT_MAX_BYTES)?;
        if !self.segment_bytes.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(OptionsError::Unaligned { name: "segment_bytes", found: self.segment_bytes });
        }
        within("flights", self.flights as u64, 1, limits::FLIGHTS_MAX as u64)?;
        within("group_max_bytes", self.group_max_bytes as u64, 1, limits::GROUP_MAX_BYTES as u64)?;
        within("queue_max_bytes", self.queue_max_bytes as u64, 4096, 1 << 32)?;
        within("read_cache_bytes", self.read_cache_bytes as u64, 0, limits::READ_CACHE_MAX_BYTES)?;
        within("clean_batch_bytes", self.clean_batch_bytes, 4096, limits::CLEAN_BATCH_MAX_BYTES)?;
        within("read_gap_bytes", self.read_gap_bytes, 0, limits::SCAN_IO_BYTES as u64)?;
        let least = limits::SUPERBLOCK_ZONE_BYTES
            + (self.reserve_segments as u64 + MIN_DATA_SEGMENTS) * self.segment_bytes;
        let most = limits::SUPERBLOCK_ZONE_BYTES + limits::SEGMENTS_MAX * self.segment_bytes;
        within("capacity_bytes", self.capacity_bytes, least, most)?;
        within("side_patience in milliseconds", self.side_patience.as_millis() as u64, 1, 600_000)?;
        within("reserve_segments", self.reserve_segments as u64, 1, 64)?;
        within("grow_bytes", self.grow_bytes, self.segment_bytes, most)?;
        within("clean_start_free_percent", u64::from(self.clean_start_free_percent), 0, 100)?;
        let (start, stop) = (self.clean_start_free_percent, self.clean_stop_free_percent);
        within("clean_stop_free_percent", u64::from(stop), u64::from(start), 100)
    }
}

/// Segments that a chain needs besides its reserve: one being filled, one to go on in.
const MIN_DATA_SEGMENTS: u64 = 2;

const _: () = assert!(DRIVE_IO_MAX_BYTES as u64 >= limits::SEGMENT_MAX_BYTES / 16);

/// What fits where, derived from the size of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) segment_bytes: u64,
    /// Space in a segment for groups and the footer's growing part.
    pub(crate) usable_bytes: u64,
    /// The most that one batch may cost (see `writer::cost`).
    pub(crate) batch_max_bytes: u64,
    /// What a checkpoint has room for: ranges of released keys, bytes of the state.
    pub(crate) released_max_ranges: usize,
    pub(crate) state_max_bytes: usize,
    /// Ranges of segments in a census.
    pub(crate) census_max_ranges: usize,
}

impl Geometry {
    pub(crate) fn new(segment_bytes: u64) -> Self {
        // Header, trailer, and the least footer: one page and the directory.
        let usable_bytes = segment_bytes - 4 * BLOCK_BYTES as u64;
        let quarter = usable_bytes / 4;
        let half_checkpoint = quarter / 2;
        let census_max_ranges =
            limits::CENSUS_RANGES_MAX.min(half_checkpoint as usize / 8 / CENSUS_RANGE_BYTES);
        let state_room = half_checkpoint as usize - census_max_ranges * CENSUS_RANGE_BYTES;
        Self {
            segment_bytes,
            usable_bytes,
            batch_max_bytes: quarter.min(DRIVE_IO_MAX_BYTES as u64 / 2),
            released_max_ranges: limits::RELEASED_RANGES_MAX.min(half_checkpoint as usize / 16),
            state_max_bytes: limits::STATE_MAX_BYTES.min(state_room),
            census_max_ranges,
        }
    }

    /// Where a segment begins on its link.
    pub(crate) fn segment_start(&self, segment: u32) -> u64 {
        self.bytes_for(index_of(segment))
    }

    /// The size of a drive of so many segments.
    pub(crate) fn bytes_for(&self, segments: u32) -> u64 {
        limits::SUPERBLOCK_ZONE_BYTES + u64::from(segments) * self.segment_bytes
    }

    /// Whole segments on a drive of this size.
    pub(crate) fn segments_in(&self, drive_bytes: u64) -> u32 {
        let segments = drive_bytes.saturating_sub(limits::SUPERBLOCK_ZONE_BYTES) / self.segment_bytes;
        segments.min(limits::SEGMENTS_MAX) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_bad_option_is_named() {
        assert_eq!(ChainOptions::default().validate(), Ok(()));
        let odd = ChainOptions { segment_bytes: (64 << 20) + 1, ..ChainOptions::default() };
        assert_eq!(
            odd.validate(),
            Err(OptionsError::Unaligned { name: "segment_bytes", found: (64 << 20) + 1 })
        );
        let none = ChainOptions { flights: 0, ..ChainOptions::default() };
        assert!(matches!(none.validate(), Err(OptionsError::OutOfRange { name: "flights", .. })));
    }

    #[test]
    fn a_batch_and_a_checkpoint_leave_half_of_the_smallest_segment() {
        let geometry = Geometry::new(limits::SEGMENT_MIN_BYTES);
        let census = geometry.census_max_ranges * CENSUS_RANGE_BYTES;
        let checkpoint = geometry.released_max_ranges * 16 + geometry.state_max_bytes + census;
        assert!(geometry.batch_max_bytes + checkpoint as u64 <= geometry.usable_bytes / 2);
    }
}
