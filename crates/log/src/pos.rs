//! Positions, epochs and identities. Each is its own type, because two of them that are confused lose data.

use std::fmt;

use smallvec::SmallVec;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number! {
    /// A configuration of the cluster. Epochs never decrease; a request from an older one changes nothing. 0 is before
    /// the first layout and serves nobody.
    Epoch, "e"
}
number! {
    /// A position of the shared log, counted over the whole cluster. Written once.
    LogPos, ""
}
number! {
    /// An address on one log unit. A layout maps a [`LogPos`] to units and addresses; nothing else may.
    Addr, "@"
}
number! {
    /// A node of a cluster; 0 means no node in particular.
    NodeId, ""
}
number! {
    /// One life of a node's process: it grows at each start.
    Incarnation, "i"
}
number! {
    /// A client, by a random number that it draws when it starts: two clients never share one.
    ClientId, "c"
}
number! {
    /// A client's own number for one append. With the [`ClientId`] it names the append for ever, so that a client that
    /// finds a position taken can tell its own entry from another's.
    RequestNo, "r"
}
number! {
    /// A client's own number for one batch of appends that it sends whole. With the [`ClientId`] it names the batch for
    /// ever, so that a sequencer that is sent it twice grants it positions once.
    BatchNo, "b"
}
impl RequestNo {
    /// The number of the append that comes `count` after this one.
    pub fn after(self, count: u64) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

number! {
    /// A position within one stream.
    StreamPos, ""
}
number! {
    /// Names one request of a connection, so that replies may come in any order. The requester chooses it.
    RequestId, "q"
}

/// A stream: a named sequence of entries of the log. Those below [`StreamId::NAMED_MIN`] are the system's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u128);

/// Streams of an append: the first is inline.
pub type StreamIds = SmallVec<[StreamId; 1]>;

impl StreamId {
    /// The names of streams, so that they can be listed.
    pub const NAMES: Self = Self(0);
    /// What streams have released.
    pub const RELEASES: Self = Self(1);
    /// Checkpoints of what the sequencer knows of streams.
    pub const SEQUENCER: Self = Self(2);
    /// The lowest id that a name may give.
    pub const NAMED_MIN: Self = Self(256);

    /// The stream of this name: the first 16 bytes of the name's BLAKE3 hash, the lowest first. Two names never share
    /// one, but for a chance of one in 2^128 for each pair.
    pub fn of_name(name: &str) -> Self {
        let hash = blake3::hash(name.as_bytes());
        let (id, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        // Such an id is never met in practice; it must not be one of the system's.
        Self(u128::from_le_bytes(*id)).max(Self::NAMED_MIN)
    }

    /// Whether it is one of the system's own.
    pub fn is_system(self) -> bool {
        self < Self::NAMED_MIN
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{:x}", self.0)
    }
}

/// The largest position and the largest address that may be used: one less than the largest number, so that the end of
/// a range that holds it is still a number.
pub const POSITION_MAX: u64 = u64::MAX - 1;

impl Epoch {
    /// The epoch after this one. Panics after 2^64 - 1 epochs, which at one a microsecond is 500,000 years away.
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("epochs do not run out"))
    }

    /// The epoch of a layout that goes on from this one's without nodes which are gone for good. Panics as [`Epoch::next`] does.
    pub fn after_loss(self) -> Self {
        Self(self.0.checked_add(crate::limits::LOSS_EPOCHS).expect("epochs do not run out"))
    }

    /// Whether there was such a layout since `known`. That may have been decided after the one it goes on from, by those who are gone.
    pub fn is_after_loss_since(self, known: Self) -> bool {
        self.0.saturating_sub(known.0) > crate::limits::LOSS_EPOCHS / 2
    }
}

impl Incarnation {
    /// The next life.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A numbered attempt to have a layout decided; a higher one overrides a lower one. Two proposers never share one, and a
/// proposer that was restarted finds its old ones refused by a majority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// The attempt, from 1 on.
    pub round: u64,
    /// Whose it is.
    pub proposer: NodeId,
}

impl Ballot {
    /// Below every ballot.
    pub const NONE: Self = Self { round: 0, proposer: NodeId(0) };
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.round, self.proposer)
    }
}

/// A cluster, by a random number drawn when it is formed. Zero means that the sender does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u128);

impl ClusterId {
    /// Not known.
    pub const UNKNOWN: Self = Self(0);
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The addresses `[start, end)` of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrRange {
    /// The first.
    pub start: Addr,
    /// The one after the last.
    pub end: Addr,
}

impl AddrRange {
    /// The addresses `[start, end)`.
    pub fn new(start: Addr, end: Addr) -> Self {
        Self { start, end }
    }

    /// How many; 0 if `end` lies before `start`.
    pub fn count(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether it holds none.
    pub fn is_empty(self) -> bool {
        self.count() == 0
    }

    /// The same range, as plain numbers.
    pub fn numbers(self) -> std::ops::Range<u64> {
        self.start.0..self.end.0
    }
}

impl From<std::ops::Range<u64>> for AddrRange {
    fn from(range: std::ops::Range<u64>) -> Self {
        Self { start: Addr(range.start), end: Addr(range.end) }
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}
