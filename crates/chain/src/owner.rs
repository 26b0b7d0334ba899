//! Who a chain's records belong to, if their keys are written again and again: the owner knows which version of a key counts and
//! where it lies.
//!
//! ```text
//!   append ─► durable ─► placed(key, version, place) ─────────► the owner's map: key -> version, place
//!   open   ─► opening(state) ─► every record on the drives, in any order ─► placed    the highest version wins
//!   clean  ─► is_live(key, version, place)? ─► copy durable ─► moved(key, version, from, to)
//!   read_at(place) ─► the bytes, verified
//! ```

use std::fmt;

use bytes::Bytes;

use crate::run::RunKind;

/// How often a key may be written. Chosen when a chain is created, and kept on its drives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// Once. The chain finds records by their keys, and a release says which are not needed any more.
    #[default]
    Once,
    /// Any number of times, with versions. The chain tells its [`Owner`] where records lie and asks it which are needed.
    Versioned,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "written once",
            Self::Versioned => "versioned",
        })
    }
}

/// Where a record lies. It says enough to read and verify it without looking anything up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The segment.
    pub segment: u32,
    /// The use of the segment: it names no other, ever.
    pub lap: u64,
    /// Byte in the segment.
    pub offset: u32,
    /// Bytes of data; none for a record without data.
    pub len: u32,
    /// crc32c of the data.
    pub checksum: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}, lap {}, byte {}, {} bytes", self.segment, self.lap, self.offset, self.len)
    }
}

/// One version of a key, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The key.
    pub key: u64,
    /// The owner's version. Higher ones are newer. Records of equal key and version are copies of each other.
    pub version: u64,
    /// Data, or junk: the key is deleted as of this version.
    pub kind: RunKind,
    /// Where.
    pub place: Place,
}

/// What an owner is told before any record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The owner's state, as last made durable; of a chain that is being created, what [`Owner::first_state`] gave.
    pub state: Option<Bytes>,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The most segments that one link can have, as long as its drives and the options stay as they are.
    pub link_segments: u32,
}

/// The owner of a chain whose keys are versioned.
///
/// * It MUST let the highest version of a key win, in whatever order it is told of them; of equal versions either place serves.
/// * It MUST answer from memory and MUST NOT call the chain back: it is called while the chain works.
/// * It MUST NOT need a version again that it has once called not live.
/// * It MUST remember that a key is deleted, with the version, until it is told that the junk is gone: an older record may
///   still be on the drives.
///
/// Released keys are never used again, and it is told nothing of them at an open.
///
/// The chain calls it on its own thread: `placed_all` for records in the order in which they become durable, before their ticket is
/// reported durable; and at an open for every record that is on the drives, before the open returns. An open begins with what
/// was written last: an owner that keeps the first place of equal versions keeps the copies, and the cleaner need not make others.
pub trait Owner {
    /// The state that a chain which is being created has from the beginning: it is in the first group. A chain without it is one whose
    /// creation was interrupted, and holds nothing.
    fn first_state(&self) -> Option<Bytes> {
        None
    }

    /// How large each file may become, if the owner's state says so; it then counts instead of the option. Asked at an open, before anything else.
    fn capacity_bytes(&self, _state: &Bytes) -> Option<u64> {
        None
    }

    /// A chain is being created or opened: called once, before it tells of any record.
    fn opening(&self, _opening: &Opening) {}

    /// A record is durable. Returns the place that is garbage by that: the one the owner had for the key, or the new one if it is
    /// an older version or a copy that it does not use. The cleaner goes by it when it chooses a segment.
    fn placed(&self, record: Placed) -> Option<Place>;

    /// Several records are durable, as if [`Owner::placed`] were called for each in order; `garbage` is told what that would return. An
    /// open calls it for many at a time, mostly in the order of their keys: an owner that has very many keys saves the waits for its memory
    /// by looking all of them up before it changes any.
    fn placed_all(&self, records: &[Placed], garbage: &mut dyn FnMut(Place)) {
        for record in records {
            if let Some(place) = self.placed(*record) {
                garbage(place);
            }
        }
    }

    /// Whether this record, at this place, is needed: it is what the owner would read. Of a deleted key: whether the junk is the
    /// newest version of it. Also asked when a record leaves memory, to keep on a cache drive what will be read: there a "no" costs a
    /// miss at the most.
    fn is_live(&self, record: Placed) -> bool;

    /// Where the newest version of a key lies that the owner was told of, segment and byte, if it has data and the owner can say. Asked
    /// only while blocks are kept in memory ([`read_cache_bytes`](crate::ChainOptions::read_cache_bytes)), for what was written to stay
    /// there and what it has taken the place of to leave first. A hint: an owner that says nothing has nothing kept of what it writes.
    fn newest(&self, _key: u64) -> Option<(u32, u32)> {
        None
    }

    /// A copy of a record is durable at `to`. The owner takes it if the record is still live at `record.place`, and returns
    /// whether it did. If it neither takes it nor stops needing the old place, the segment is not freed.
    fn moved(&self, record: Placed, to: Place) -> bool;

    /// The junk of a deleted key is about to go, and nothing older of that key is on any drive: the owner may forget the key, if
    /// this version is still the newest. After a crash it may be told of the junk again. Returns whether it did; if not, the
    /// junk is moved like any record.
    fn dropped(&self, record: Placed) -> bool;
}
