//! How a volume is set up.

use std::fmt;
use std::time::Duration;

use ithaca_chain::ChainOptions;

use crate::limits::VOLUME_BLOCK_BYTES;
use crate::planted::Planted;

/// The place of a commit in the order of all commits: 1, 2, 3 and so on; 0 is the empty volume. It names what the volume holds
/// from the moment the commit is durable: a commit that a crash has taken leaves its number to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// When a plain write or a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before it is durable, as by a disk with a cache: a power cut may take it, and everything that was acknowledged after it. The next
    /// flush makes it durable.
    Acknowledged,
    /// When it is on stable storage.
    #[default]
    Stable,
}

/// What a transaction is held to that commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// As if transactions had run one after the other, each at a moment between its beginning and its end: nothing that it has read was
    /// written by others meanwhile.
    #[default]
    StrictSerializable,
    /// It reads from one snapshot, and nothing that it has written was written by others meanwhile. Two transactions that each
    /// read what the other one writes may both commit.
    Snapshot,
}

/// How long old versions can be read, besides those that a snapshot pins: as long as either says so. Room for new data comes
/// before both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The last so many commits.
    pub versions: u64,
    /// What was the newest so long ago, in milliseconds, while the volume has been open.
    pub age: Duration,
}

/// What a new volume is. All of it is kept with the volume.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Blocks of 4 KiB, from 1 to [`BLOCKS_MAX`](crate::limits::BLOCKS_MAX).
    pub blocks: u64,
    /// How long old versions are kept.
    pub retention: Retention,
    /// What transactions are held to unless they ask for something else.
    pub isolation: Isolation,
    /// Grain at which conflicts are found, in bytes: a power of two from 16 to 4096.
    pub fragment_bytes: u32,
    /// As of every open.
    pub settings: VolumeSettings,
}

impl VolumeOptions {
    /// A volume of so many blocks, everything else as by default.
    pub fn new(blocks: u64) -> Self {
        Self {
            blocks,
            retention: Retention::default(),
            isolation: Isolation::default(),
            fragment_bytes: 16,
            settings: VolumeSettings::for_blocks(blocks),
        }
    }
}

/// What may differ at each open.
#[derive(Clone, Debug)]
pub struct VolumeSettings {
    /// Sizes and knobs of the chain. Its `segment_bytes` and `capacity_bytes` count at the creation only: the volume keeps both. The latter is how
    /// large each file may become: without room for a quarter more than is written to the volume, cleaning becomes expensive.
    pub chain: ChainOptions,
    /// Versions of blocks that history has at the most; past it it begins anew, whatever the retention. Each takes some 60 bytes of memory. What
    /// snapshots and transactions keep besides is not counted: to give up history would free nothing of it.
    pub versions_max: usize,
    /// Bytes of blocks that are kept in memory because somebody asked for it.
    pub kept_max_bytes: usize,
    /// Bytes that transactions take at the most: what they have read and written, and the commits that they may be in conflict with. Past it
    /// those with the oldest snapshots are ended.
    pub tx_max_bytes: usize,
    /// How long a transaction that was released waits to be taken over; then it is aborted.
    pub released_max_age: Duration,
    /// A deliberate fault; none in ordinary builds.
    pub planted: Planted,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self {
            chain: ChainOptions::default(),
            versions_max: 4 << 20,
            kept_max_bytes: 16 << 20,
            tx_max_bytes: 256 << 20,
            released_max_age: Duration::from_secs(30),
            planted: Planted::default(),
        }
    }
}

impl VolumeSettings {
    /// With room for that many blocks on one drive, old versions and the chain's own needs: a quarter more and 16 segments.
    pub fn for_blocks(blocks: u64) -> Self {
        let chain = ChainOptions::default();
        let data_bytes = blocks.saturating_mul(VOLUME_BLOCK_BYTES as u64);
        let capacity_bytes = (data_bytes + data_bytes / 4).saturating_add(16 * chain.segment_bytes);
        Self { chain: ChainOptions { capacity_bytes, ..chain }, ..Self::default() }
    }
}
