//! Entries that say who appended them, and whose every byte follows from that: a reader knows whether it holds what was
//! appended without asking anybody.
//!
//! An entry of [`NAME_BYTES`] or more begins with its name (worker u32, length u32, number u64, little-endian), and goes
//! on with a pattern that the name decides. A shorter one is only pattern, and is known by its bytes alone.

use ithaca_env::sim::Random;

use bytes::Bytes;

/// Bytes of a name.
const NAME_BYTES: usize = 16;

/// Names an entry among all of one soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Who appended it: no two clients of a soak share a number.
    pub worker: u32,
    /// Its length in bytes.
    pub len: u32,
    /// Its number among its worker's entries.
    pub number: u64,
}

/// What an entry is recognised by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// An entry that carries its name.
    Named(Name),
    /// An entry too short for one, in full.
    Short(Bytes),
}

impl Name {
    /// The bytes of this entry.
    pub fn bytes(self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.len as usize + 8);
        if self.len as usize >= NAME_BYTES {
            bytes.extend_from_slice(&self.worker.to_le_bytes());
            bytes.extend_from_slice(&self.len.to_le_bytes());
            bytes.extend_from_slice(&self.number.to_le_bytes());
        }
        let mut pattern = Random::new(self.number ^ u64::from(self.worker).rotate_left(40));
        while bytes.len() < self.len as usize {
            bytes.extend_from_slice(&pattern.next_u64().to_le_bytes());
        }
        bytes.truncate(self.len as usize);
        bytes.into()
    }

    /// What this entry is recognised by.
    pub fn content(self) -> Content {
        if self.len as usize >= NAME_BYTES { Content::Named(self) } else { Content::Short(self.bytes()) }
    }
}

impl Content {
    /// What `data` is; `None` if no entry of any worker has these bytes.
    pub fn of(data: &[u8]) -> Option<Self> {
        if data.len() < NAME_BYTES {
            return Some(Self::Short(Bytes::copy_from_slice(data)));
        }
        let word = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let number = u64::from(word(8)) | u64::from(word(12)) << 32;
        let name = Name { worker: word(0), len: word(4), number };
        (name.len as usize == data.len() && name.bytes() == data).then_some(Self::Named(name))
    }
}

/// A length from 0 to 64 KiB: mostly small, some of whole pages, some large.
pub fn random_len(random: &mut Random) -> u32 {
    let len = match random.below(100) {
        0..2 => random.below(NAME_BYTES as u64),
        2..70 => 16 + random.below(500),
        70..85 => 500 + random.below(8000),
        85..93 => 4096 * (1 + random.below(4)),
        93..99 => random.below(32 << 10),
        _ => (64 << 10) - random.below(2),
    };
    len as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_recognised_and_a_flipped_bit_is_seen() {
        for len in [0, 1, 15, 16, 17, 100, 4096] {
            let name = Name { worker: 7, len, number: 99 };
            let bytes = name.bytes();
            assert_eq!(bytes.len(), len as usize);
            assert_eq!(Content::of(&bytes), Some(name.content()));
            for at in 0..bytes.len() {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 4;
                assert_ne!(Content::of(&flipped), Some(name.content()), "byte {at} of {len}");
            }
        }
    }
}
