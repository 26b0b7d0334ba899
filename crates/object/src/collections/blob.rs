//! Bytes as a value.

use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Below so many bytes a copy takes less than what lies around them.
const SHARED_MIN_BYTES: usize = 256;

thread_local! {
    /// Bytes whose memory values may share that are decoded of them.
    static SOURCE: RefCell<Bytes> = const { RefCell::new(Bytes::new()) };
}

/// While it lives, blobs that are decoded of some bytes share the memory of these. One that is less than half of them does not, so that
/// what is kept takes at most twice as much memory as it has bytes.
pub(crate) struct Sharing(());

impl Sharing {
    /// Of `bytes`, behind which there is no other memory than theirs.
    pub(crate) fn of(bytes: &Bytes) -> Option<Self> {
        (bytes.len() >= SHARED_MIN_BYTES).then(|| {
            SOURCE.set(bytes.clone());
            Self(())
        })
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        SOURCE.set(Bytes::new());
    }
}

/// The same bytes, of the memory that is shared now if they lie in it.
fn kept(bytes: &[u8]) -> Bytes {
    if bytes.len() < SHARED_MIN_BYTES {
        return Bytes::copy_from_slice(bytes);
    }
    SOURCE.with_borrow(|source| {
        let (whole, part) = (source.as_ptr_range(), bytes.as_ptr_range());
        let is_within = whole.start <= part.start && part.end <= whole.end;
        match is_within && 2 * bytes.len() >= source.len() {
            true => source.slice_ref(bytes),
            false => Bytes::copy_from_slice(bytes),
        }
    })
}

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
                Ok(Blob(kept(bytes)))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
                Ok(Blob(bytes.into()))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &Bytes) -> Blob {
        rmp_serde::from_slice(bytes).expect("a blob")
    }

    #[test]
    fn a_blob_shares_the_memory_of_what_it_makes_up_the_most_of_and_of_nothing_else() {
        // One that shares what is much larger keeps all of that in memory, as long as it is a value.
        let blob = Blob(Bytes::from(vec![7; 300]));
        let bytes = Bytes::from(rmp_serde::to_vec_named(&blob).expect("it encodes"));
        let lies_in = |blob: &Blob, whole: &Bytes| whole.as_ptr_range().contains(&blob.0.as_ptr());
        assert!(!lies_in(&decoded(&bytes), &bytes), "nothing is shared");
        {
            let _sharing = Sharing::of(&bytes);
            assert_eq!(decoded(&bytes), blob);
            assert!(lies_in(&decoded(&bytes), &bytes));
            assert!(!lies_in(&decoded(&Bytes::copy_from_slice(&bytes)), &bytes), "of other bytes");
        }
        assert!(!lies_in(&decoded(&bytes), &bytes), "no more");
        let large = Bytes::from([&bytes[..], &[0; 400]].concat());
        let _sharing = Sharing::of(&large);
        let blob = decoded(&large.slice(..bytes.len()));
        assert!(!lies_in(&blob, &large), "less than half");
        assert!(Sharing::of(&large.slice(..SHARED_MIN_BYTES - 1)).is_none());
    }
}
