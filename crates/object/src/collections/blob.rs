//! Bytes as a value.

use std::fmt;

use bytes::Bytes;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes, stored as they are; a `Vec<u8>` would be stored as a list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Bytes);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken;
        impl Visitor<'_> for Taken {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(Bytes::copy_from_slice(bytes)))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(bytes.into()))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}
