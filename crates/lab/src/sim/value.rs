//! Entries that can be told apart: each says whose it is, and is wrong if a single byte is.

use bytes::{BufMut, Bytes, BytesMut};
use ithaca_env::sim::{Dice, Domain};

/// An entry of the workload. Its bytes follow from it and from its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value {
    /// Who appended it.
    pub client: u32,
    /// Its number among the client's entries.
    pub number: u32,
}

/// Bytes of the shortest entry.
pub const VALUE_MIN_BYTES: usize = 8;

impl Value {
    /// Its bytes, `len` of them (at least [`VALUE_MIN_BYTES`]).
    pub fn encode(self, len: usize) -> Bytes {
        let len = len.max(VALUE_MIN_BYTES);
        let mut bytes = BytesMut::with_capacity(len + 8);
        bytes.put_u32_le(self.client);
        bytes.put_u32_le(self.number);
        let dice = Dice::new(u64::from(self.client) << 32 | u64::from(self.number));
        let mut word = 0;
        while bytes.len() < len {
            bytes.put_u64_le(dice.draw(Domain::User(0), len as u64, word));
            word += 1;
        }
        bytes.truncate(len);
        bytes.freeze()
    }

    /// The value whose bytes these are; `None` if they are nobody's.
    pub fn decode(bytes: &[u8]) -> Option<Value> {
        let client = u32::from_le_bytes(*bytes.first_chunk()?);
        let number = u32::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
        let value = Value { client, number };
        (value.encode(bytes.len()) == bytes).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_and_any_changed_byte_makes_it_nobodys() {
        let value = Value { client: 3, number: 77 };
        for len in [8, 9, 100] {
            let bytes = value.encode(len);
            assert_eq!((bytes.len(), Value::decode(&bytes)), (len, Some(value)));
        }
        let mut bytes = value.encode(100).to_vec();
        for index in 8..100 {
            bytes[index] ^= 1;
            assert_eq!(Value::decode(&bytes), None);
            bytes[index] ^= 1;
        }
        assert_eq!(Value::decode(&bytes[..7]), None);
    }
}
