//! A value whose type nobody here knows: what MessagePack says of it.
//!
//! A host of views has the objects of programs whose keys and values are of types that it has not. It keeps them as MessagePack
//! has them. What is decoded and encoded again has the same bytes, so digests and checkpoints are the same as those of a program that
//! knows the types. Its order is one of its own: what depends on the order of keys is put in order by who knows them.

use std::cell::Cell;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits;

/// Items for which memory is taken before the first of them is there.
const AHEAD_MAX_COUNT: usize = 256;

/// Any value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Any {
    /// Nothing: `None`, or a value without parts.
    #[default]
    Nil,
    /// True or false.
    Bool(bool),
    /// A number below zero.
    Negative(i64),
    /// Any other whole number.
    Number(u64),
    /// A short fraction, by its bits.
    Single(u32),
    /// A fraction, by its bits.
    Double(u64),
    /// Text.
    Text(Box<str>),
    /// Bytes.
    Bytes(Box<[u8]>),
    /// Values in a row.
    List(Vec<Any>),
    /// Names and values, in the order in which they came.
    Map(Vec<(Any, Any)>),
}

impl Any {
    /// The same with the names of each map in one order, whichever they came in.
    pub(crate) fn in_order(self) -> Self {
        match self {
            Self::List(items) => Self::List(items.into_iter().map(Self::in_order).collect()),
            Self::Map(entries) => {
                let entries = entries.into_iter().map(|(name, value)| (name.in_order(), value.in_order()));
                let mut entries: Vec<_> = entries.collect();
                entries.sort_unstable();
                Self::Map(entries)
            }
            value => value,
        }
    }
}

impl Serialize for Any {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Nil => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Negative(value) => serializer.serialize_i64(*value),
            Self::Number(value) => serializer.serialize_u64(*value),
            Self::Single(bits) => serializer.serialize_f32(f32::from_bits(*bits)),
            Self::Double(bits) => serializer.serialize_f64(f64::from_bits(*bits)),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Self::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                items.iter().try_for_each(|item| list.serialize_element(item))?;
                list.end()
            }
            Self::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                entries.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(_level) = Level::enter() else {
            return Err(D::Error::custom(format!(
                "values are more than {} deep inside each other",
                limits::DEPTH_MAX_COUNT
            )));
        };
        deserializer.deserialize_any(Taken)
    }
}

thread_local! {
    /// How deep inside of other values the one is that is being decoded.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// One value being decoded, until this is dropped.
struct Level;

impl Level {
    /// One level down, unless that is too deep.
    fn enter() -> Option<Self> {
        DEPTH.set(DEPTH.get() + 1);
        let level = Self;
        (DEPTH.get() <= limits::DEPTH_MAX_COUNT).then_some(level)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

struct Taken;

impl<'de> Visitor<'de> for Taken {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Any, E> {
        Ok(Any::Nil)
    }

    fn visit_none<E: Error>(self) -> Result<Any, E> {
        Ok(Any::Nil)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Any, D::Error> {
        Any::deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Any, E> {
        Ok(Any::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Any, E> {
        Ok(u64::try_from(value).map_or(Any::Negative(value), Any::Number))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Any, E> {
        Ok(Any::Number(value))
    }

    fn visit_f32<E: Error>(self, value: f32) -> Result<Any, E> {
        Ok(Any::Single(value.to_bits()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Any, E> {
        Ok(Any::Double(value.to_bits()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Any, E> {
        Ok(Any::Text(text.into()))
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Any, E> {
        Ok(Any::Bytes(bytes.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Any, A::Error> {
        let mut items = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(AHEAD_MAX_COUNT));
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Any::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
        let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(0).min(AHEAD_MAX_COUNT));
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Any::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::collections::{Blob, MapState, Put, RegisterState, Write};
    use crate::in_order::unordered::Set;
    use crate::object::{CallError, Mutator, Object, encoded};
    use ithaca_log::pos::LogPos;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Hash)]
    enum Kind {
        Plain,
        Of(u8, i64),
        With { name: String, next: Option<Box<Kind>> },
    }

    fn check(value: &impl Serialize) {
        let bytes = rmp_serde::to_vec_named(value).expect("it encodes");
        let any: Any = rmp_serde::from_slice(&bytes).expect("it is a value");
        assert_eq!(rmp_serde::to_vec_named(&any).expect("it encodes"), bytes, "{any:?}");
    }

    #[test]
    fn what_is_encoded_again_has_the_same_bytes() {
        // Other bytes would be another digest, and the host would take every program for one that went astray.
        for number in [0, 1, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), u64::MAX] {
            check(&number);
            check(&(number as i64).wrapping_neg());
            check(&(number as i32));
        }
        for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_536] {
            check(&"x".repeat(length));
            check(&vec![7u8; length]);
            check(&Blob(vec![7; length].into()));
            check(&(0..length as u32).map(|nth| (nth, nth)).collect::<BTreeMap<_, _>>());
        }
        check(&(1.5f32, -0.0f64, f64::NAN, true, 'x', (), None::<u8>, Some(7u128), -7i128));
        let nested = Kind::With { name: "a".into(), next: Some(Box::new(Kind::Of(1, -9))) };
        check(&BTreeSet::from([Kind::Plain, nested]));
    }

    #[test]
    fn a_state_of_any_has_the_digest_and_checkpoint_of_the_state_itself() {
        let (mut known, mut any) = (MapState::<Kind, Vec<u16>>::default(), MapState::<Any, Any>::default());
        for nth in 0..50u8 {
            let put = Put { key: Kind::Of(nth % 9, -i64::from(nth)), value: vec![u16::from(nth) * 300] };
            let bytes = rmp_serde::to_vec_named(&put).expect("it encodes");
            put.apply(&mut known, LogPos(nth.into()), &mut Vec::new());
            let put: Put<Any, Any> = rmp_serde::from_slice(&bytes).expect("it is a put of something");
            put.apply(&mut any, LogPos(nth.into()), &mut Vec::new());
        }
        assert_eq!(known.digest(), any.digest());
        let bytes = rmp_serde::to_vec_named(&any).expect("it encodes");
        let again: MapState<Kind, Vec<u16>> = rmp_serde::from_slice(&bytes).expect("it is the map");
        assert_eq!(again.entries(), known.entries());
    }

    #[test]
    fn a_register_of_what_has_no_order_has_the_digest_of_the_bytes_that_it_came_of() {
        // Whoever decoded it in the same order compares with the host, which knows of no other.
        let value: Set<u64> = (0..99).collect();
        let mut known = RegisterState::default();
        Write { value: Some(value) }.apply(&mut known, LogPos(1), &mut Vec::new());
        let bytes = rmp_serde::to_vec_named(&known).expect("it encodes");
        let any: RegisterState<Any> = rmp_serde::from_slice(&bytes).expect("it decodes");
        assert_eq!(any.digest(), known.digest());
    }

    #[test]
    fn whatever_a_program_can_put_is_no_deeper_than_what_can_be_decoded() {
        // A host, and so every program that asks it, stopped for good at the first one that was.
        let (mut value, mut taken) = (Any::List(vec![Any::Negative(-7); 300]), 0);
        for _ in 0..2 * limits::DEPTH_MAX_COUNT {
            let put = Put { key: Any::Nil, value: value.clone() };
            let decode = |bytes: &[u8]| rmp_serde::from_slice::<Put<Any, Any>>(bytes).is_ok();
            match encoded::<MapState<Any, Any>, _, _>(&put, decode) {
                Ok(is_decoded) => {
                    assert!(is_decoded, "{taken}");
                    taken += 1;
                }
                Err(CallError::Arguments { method: "put", error }) => {
                    assert_eq!(error, "values are more than 128 deep inside each other");
                }
                Err(other) => panic!("{other}"),
            }
            value = Any::List(vec![value]);
        }
        assert_eq!(taken, limits::DEPTH_MAX_COUNT - 1, "the call is one level, and so is the first list");
    }

    #[test]
    fn values_inside_each_other_without_end_are_refused() {
        let mut deep = vec![0x91; 1 << 20];
        deep.push(0xc0);
        assert!(rmp_serde::from_slice::<Any>(&deep).is_err());
    }
}
