//! Conflict keys: which part of an object a call reads or writes.

use std::cmp::Ordering;
use std::ops::Deref;

use bytes::Bytes;
use ithaca_log::stream::KeyHash;
use serde::Serialize;

/// Bytes of a name that is kept in its key, without memory of its own.
const SHORT_MAX_BYTES: usize = 22;

/// A part of an object, by its name, or the whole of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    hash: KeyHash,
    name: Name,
}

/// A name as MessagePack; empty for the whole.
#[derive(Clone)]
enum Name {
    Short(u8, [u8; SHORT_MAX_BYTES]),
    Long(Bytes),
}

impl Name {
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({self}, {:016x})", self.hash.0)
    }
}

impl Key {
    /// The part that `name` names: the key of a map, say. Names with the same MessagePack are the same part.
    pub fn of(name: &impl Serialize) -> Self {
        let mut short = [0; SHORT_MAX_BYTES];
        let mut rest = &mut short[..];
        if rmp_serde::encode::write_named(&mut rest, name).is_ok() {
            let len = SHORT_MAX_BYTES - rest.len();
            return Self { hash: KeyHash::of(&short[..len]), name: Name::Short(len as u8, short) };
        }
        match rmp_serde::to_vec_named(name) {
            Ok(name) => Self { hash: KeyHash::of(&name), name: Name::Long(name.into()) },
            // What cannot be named is covered by the whole.
            Err(_) => Self::all(),
        }
    }

    /// The whole object: its structure. Whoever reads it conflicts with every change of the object.
    pub fn all() -> Self {
        Self { hash: KeyHash::ALL, name: Name::Short(0, [0; SHORT_MAX_BYTES]) }
    }

    /// What the sequencer compares.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name.as_bytes();
        if name.is_empty() {
            return f.write_str("the whole object");
        }
        if let Ok(text) = rmp_serde::from_slice::<&str>(name) {
            return write!(f, "key {text:?}");
        }
        if let Ok(number) = rmp_serde::from_slice::<u64>(name) {
            return write!(f, "key {number}");
        }
        if let Ok(number) = rmp_serde::from_slice::<i64>(name) {
            return write!(f, "key {number}");
        }
        write!(f, "key 0x")?;
        name.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Some parts of an object. One, as most calls have, takes no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// None.
    #[default]
    None,
    /// One.
    One(Key),
    /// Any number.
    Many(Vec<Key>),
}

impl Parts {
    /// These.
    pub fn of(keys: impl Iterator<Item = Key>) -> Self {
        Self::Many(keys.collect())
    }
}

impl Deref for Parts {
    type Target = [Key];

    fn deref(&self) -> &[Key] {
        match self {
            Self::None => &[],
            Self::One(key) => std::slice::from_ref(key),
            Self::Many(keys) => keys,
        }
    }
}

impl From<Key> for Parts {
    fn from(key: Key) -> Self {
        Self::One(key)
    }
}

impl From<Vec<Key>> for Parts {
    fn from(keys: Vec<Key>) -> Self {
        Self::Many(keys)
    }
}

/// What a call of a mutator depends on and what it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What its result depends on, or what it does. Nothing, if it does the same whatever the state is and gives no result.
    pub reads: Parts,
    /// What it changes. Nothing means: anything.
    pub writes: Parts,
    /// Whether it may come before or after another such change of the same parts with the same state in the end: an
    /// addition, say. Transactions of one snapshot each do not conflict by such changes alone.
    pub commutes: bool,
}

impl Keys {
    /// Of a call that reads and writes one part.
    pub fn updates(key: Key) -> Self {
        Self { reads: key.clone().into(), writes: key.into(), commutes: false }
    }

    /// Of a call that writes one part without a look at it.
    pub fn writes(key: Key) -> Self {
        Self { reads: Parts::None, writes: key.into(), commutes: false }
    }

    /// Of a call that reads and changes the whole.
    pub fn whole() -> Self {
        Self::updates(Key::all())
    }

    /// The same keys, of changes that may come in any order.
    pub fn commuting(self) -> Self {
        Self { commutes: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_part_however_its_name_is_kept() {
        // Two programs that hash the same name otherwise would not see each other's conflicts.
        for name in ["", "a", &"b".repeat(21), &"c".repeat(22), &"d".repeat(500)] {
            let key = Key::of(&name);
            assert_eq!(
                key.hash(),
                KeyHash::of(&rmp_serde::to_vec_named(name).expect("it encodes")),
                "{name}"
            );
            assert_eq!((key.clone(), key.to_string()), (Key::of(&name), format!("key {name:?}")));
        }
        assert!(Key::of(&"b".repeat(30)) != Key::of(&"c".repeat(30)) && Key::of(&7u64) != Key::all());
    }
}
