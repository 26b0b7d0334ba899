//! Conflict keys: which part of an object a call reads or writes.

use bytes::Bytes;
use ithaca_log::stream::KeyHash;
use serde::Serialize;

/// A part of an object, by its name, or the whole of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    hash: KeyHash,
    /// The name as MessagePack; empty for the whole.
    name: Bytes,
}

impl Key {
    /// The part that `name` names: the key of a map, say. Names with the same MessagePack are the same part.
    pub fn of(name: &impl Serialize) -> Self {
        match rmp_serde::to_vec_named(name) {
            Ok(name) => Self { hash: KeyHash::of(&name), name: name.into() },
            // What cannot be named is covered by the whole.
            Err(_) => Self::all(),
        }
    }

    /// The whole object: its structure. Whoever reads it conflicts with every change of the object.
    pub fn all() -> Self {
        Self { hash: KeyHash::ALL, name: Bytes::new() }
    }

    /// What the sequencer compares.
    pub fn hash(&self) -> KeyHash {
        self.hash
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return f.write_str("the whole object");
        }
        if let Ok(text) = rmp_serde::from_slice::<&str>(&self.name) {
            return write!(f, "key {text:?}");
        }
        if let Ok(number) = rmp_serde::from_slice::<u64>(&self.name) {
            return write!(f, "key {number}");
        }
        if let Ok(number) = rmp_serde::from_slice::<i64>(&self.name) {
            return write!(f, "key {number}");
        }
        write!(f, "key 0x")?;
        self.name.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a call of a mutator depends on and what it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// What its result depends on, or what it does. Nothing, if it does the same whatever the state is and gives no result.
    pub reads: Vec<Key>,
    /// What it changes. Nothing means: anything.
    pub writes: Vec<Key>,
    /// Whether it may come before or after another such change of the same parts with the same state in the end: an
    /// addition, say. Transactions of one snapshot each do not conflict by such changes alone.
    pub commutes: bool,
}

impl Keys {
    /// Of a call that reads and writes one part.
    pub fn updates(key: Key) -> Self {
        Self { reads: vec![key.clone()], writes: vec![key], commutes: false }
    }

    /// Of a call that writes one part without a look at it.
    pub fn writes(key: Key) -> Self {
        Self { reads: Vec::new(), writes: vec![key], commutes: false }
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
