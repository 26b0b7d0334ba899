//! Where streams end, and conditions of appends to them: what must not have been written since it was read.

use std::fmt;

use smallvec::SmallVec;
use twox_hash::XxHash3_64;

use crate::pos::{LogPos, StreamId, StreamPos};

/// Where a stream ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTail {
    /// The position that its next entry gets. Positions below it may have been lost to junk.
    pub next: StreamPos,
    /// The log position that was granted for it last, as far as the sequencer knows; it may hold junk. `None` if it knows of none. What was trimmed
    /// before the sequencer saw it may have stood above: see [`StreamTail::bound`].
    pub last: Option<LogPos>,
}

impl StreamTail {
    /// Nothing of the stream stands above this log position, and none was granted for it. A new sequencer that finds trimmed what it knows nothing of
    /// leaves out as many positions of every stream as the log had there (docs/protocol/streams.md).
    pub fn bound(&self) -> Option<LogPos> {
        self.last.max(self.next.0.checked_sub(1).map(LogPos))
    }
}

/// A part of the structure that a stream holds, by a hash of its name: of the key of a map, say. Two parts with the same hash
/// count as one, which makes more conflicts and never fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The whole structure.
    pub const ALL: Self = Self(u64::MAX);

    /// The XXH3 of a part's name, of 64 bits and with the seed 0: never [`KeyHash::ALL`]. Names that are chosen to share a hash conflict with each other and
    /// nothing else.
    pub fn of(name: &[u8]) -> Self {
        Self(XxHash3_64::oneshot(name).min(Self::ALL.0 - 1))
    }
}

/// What a transaction reads or writes: a part of one stream's structure, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConflictKey {
    /// The stream.
    pub stream: StreamId,
    /// The part.
    pub key: KeyHash,
}

/// What a transaction reads, or writes: two parts are inline.
pub type ConflictKeys = SmallVec<[ConflictKey; 2]>;

impl fmt::Display for ConflictKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key {
            KeyHash::ALL => write!(f, "{}", self.stream),
            key => write!(f, "{:016x} of {}", key.0, self.stream),
        }
    }
}

/// On what an append to streams depends. It is refused if any of `reads` was written at or above `snapshot`.
///
/// Which isolation that gives is the caller's choice: with all that it read in `reads` its transactions are strictly
/// serializable; with what it writes they have snapshot isolation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// What was read reflects every position below.
    pub snapshot: LogPos,
    /// What was read. [`KeyHash::ALL`] of a stream conflicts with every append to it.
    pub reads: ConflictKeys,
    /// What the entry changes, of streams that it is appended to. An entry that names nothing of one of its streams changes
    /// all of that.
    pub writes: ConflictKeys,
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use ithaca_env::real::golden;

    use super::*;

    #[test]
    fn a_part_has_the_published_hash_of_its_name() {
        // Programs of different versions have to agree.
        let hashes = ["", "a", "abc"].map(|name| KeyHash::of(name.as_bytes()).0);
        assert_eq!(hashes, [0x2D06_8005_38D3_94C2, 0xE6C6_32B6_1E96_4E1F, 0x78AF_5F94_892F_3950]);
    }

    #[test]
    fn a_part_has_the_hash_that_it_has_always_had() {
        // The algorithm is another one for each of these lengths, or takes another turn.
        const LENGTHS: [usize; 26] = [
            0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 240, 241, 1023, 1024, 1025,
            2048, 4999,
        ];
        let data: Vec<u8> = (0..5000u64).map(|number| ((number * 2_654_435_761) >> 13) as u8).collect();
        let mut text = String::from(
            "The hash of the first bytes of a row, by how many they are: byte n is the lowest of n * 2654435761 >> 13. docs/protocol/streams.md\n\n",
        );
        for length in LENGTHS {
            let _ = write!(text, "{length}\n  {:016x}\n", KeyHash::of(&data[..length]).0);
        }
        golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/parts.txt"), &text);
    }
}
