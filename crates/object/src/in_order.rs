//! Values encoded in one order, also where they have none of their own.
//!
//! A `HashMap` or `HashSet` goes through its items in an order that is another one in each program, and in each copy that was decoded. So
//! their bytes say nothing of whether two are the same. Here their items come by the bytes of their names; everything else is encoded as it always
//! is. What serde is given tells the types apart: it gets the collection itself, or its iterator.

#[cfg(test)]
pub(crate) mod unordered;

use std::any::type_name;

use serde::ser::{
    Error, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant,
};
use serde::{Serialize, Serializer};

/// Where collections without an order are: those of the standard library, and those that they are made of.
const UNORDERED: [&str; 2] = ["std::collections::hash::", "hashbrown::"];

/// A value that is encoded in one order.
pub(crate) struct InOrder<T>(pub(crate) T);

impl<T: Serialize> Serialize for InOrder<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Ordering(serializer))
    }
}

/// Whether items come in no order of what they are collected from. A name of a type promises nothing; a test sees to it that these are as they
/// are here, and where one is not, its items come as they would without this.
fn is_unordered<I>() -> bool {
    let name = type_name::<I>().trim_start_matches('&');
    UNORDERED.iter().any(|path| name.starts_with(path))
}

/// Items by the bytes of what names them.
fn by_name<T, E: Error>(
    items: impl Iterator<Item = T>,
    name_of: impl Fn(&T) -> Result<Vec<u8>, rmp_serde::encode::Error>,
) -> Result<Vec<T>, E> {
    let named = items.map(|item| Ok((name_of(&item)?, item)));
    let mut named: Vec<(Vec<u8>, T)> =
        named.collect::<Result<_, rmp_serde::encode::Error>>().map_err(E::custom)?;
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(named.into_iter().map(|(_, item)| item).collect())
}

/// A serializer, or a part of one, whose values are encoded in one order.
struct Ordering<S>(S);

/// Passes on what has no parts.
macro_rules! plain {
    ($($method:ident($($name:ident: $of:ty),*);)*) => {$(
        fn $method(self, $($name: $of),*) -> Result<S::Ok, S::Error> {
            self.0.$method($($name),*)
        }
    )*};
}

/// Passes on what has parts, which come one by one.
macro_rules! parts {
    ($($method:ident($($name:ident: $of:ty),*) -> $parts:ident;)*) => {$(
        fn $method(self, $($name: $of),*) -> Result<Self::$parts, S::Error> {
            self.0.$method($($name),*).map(Ordering)
        }
    )*};
}

impl<S: Serializer> Serializer for Ordering<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Ordering<S::SerializeSeq>;
    type SerializeTuple = Ordering<S::SerializeTuple>;
    type SerializeTupleStruct = Ordering<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Ordering<S::SerializeTupleVariant>;
    type SerializeMap = Ordering<S::SerializeMap>;
    type SerializeStruct = Ordering<S::SerializeStruct>;
    type SerializeStructVariant = Ordering<S::SerializeStructVariant>;

    plain! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_f32(value: f32);
        serialize_f64(value: f64);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    parts! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeStructVariant;
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&InOrder(value))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &InOrder(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_variant(name, index, variant, &InOrder(value))
    }

    fn collect_seq<I>(self, items: I) -> Result<S::Ok, S::Error>
    where
        I: IntoIterator,
        I::Item: Serialize,
    {
        if !is_unordered::<I>() {
            return self.0.collect_seq(items.into_iter().map(InOrder));
        }
        let items = by_name(items.into_iter().map(InOrder), rmp_serde::to_vec_named)?;
        self.0.collect_seq(items)
    }

    fn collect_map<K, V, I>(self, entries: I) -> Result<S::Ok, S::Error>
    where
        K: Serialize,
        V: Serialize,
        I: IntoIterator<Item = (K, V)>,
    {
        let is_unordered = is_unordered::<I>();
        let entries = entries.into_iter().map(|(key, value)| (InOrder(key), InOrder(value)));
        if !is_unordered {
            return self.0.collect_map(entries);
        }
        self.0.collect_map(by_name(entries, |(key, _)| rmp_serde::to_vec_named(key))?)
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// Parts of one kind: items, or fields with their names.
macro_rules! of_parts {
    ($($kind:ident: $method:ident $(($name:ident))?;)*) => {$(
        impl<S: $kind> $kind for Ordering<S> {
            type Ok = S::Ok;
            type Error = S::Error;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<(), S::Error> {
                self.0.$method($($name,)? &InOrder(value))
            }

            fn end(self) -> Result<S::Ok, S::Error> {
                self.0.end()
            }
        }
    )*};
}

of_parts! {
    SerializeSeq: serialize_element;
    SerializeTuple: serialize_element;
    SerializeTupleStruct: serialize_field;
    SerializeTupleVariant: serialize_field;
    SerializeStruct: serialize_field(name);
    SerializeStructVariant: serialize_field(name);
}

impl<S: SerializeMap> SerializeMap for Ordering<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        self.0.serialize_key(&InOrder(key))
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_value(&InOrder(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, VecDeque};

    use super::unordered::{Map, Set};
    use super::*;
    use crate::collections::Blob;

    /// What serde has to say of types.
    #[derive(Clone, Serialize)]
    enum Kind {
        Plain,
        One(u8),
        Two(i64, Option<String>),
        With { name: String, next: Box<Kind> },
    }

    #[derive(Clone, Serialize)]
    struct Unit;

    #[derive(Clone, Serialize)]
    struct New(f32);

    #[derive(Clone, Serialize)]
    struct Pair(f64, char);

    /// Something with a field that is there at times.
    #[derive(Clone, Serialize)]
    struct Fields {
        #[serde(skip_serializing_if = "Option::is_none")]
        at_times: Option<u8>,
        kinds: Vec<Kind>,
    }

    /// The same with one that is in no place of its own.
    #[derive(Clone, Serialize)]
    struct Flat {
        #[serde(flatten)]
        rest: BTreeMap<String, u64>,
    }

    fn in_order(value: &impl Serialize) -> Vec<u8> {
        rmp_serde::to_vec_named(&InOrder(value)).expect("it encodes")
    }

    fn check(value: &impl Serialize) {
        assert_eq!(in_order(value), rmp_serde::to_vec_named(value).expect("it encodes"));
    }

    #[test]
    fn what_has_an_order_is_encoded_as_without_this() {
        // Other bytes would be another digest, which the program of yesterday has not.
        check(&(1u8, 300u16, 70_000u32, u64::MAX, 7u128, -1i8, -300i16, -70_000i32));
        check(&(i64::MIN, -7i128, true, 'x', "text", (), Unit, New(1.5), Pair(-0.0, 'y')));
        let with = Kind::With { name: "a".into(), next: Box::new(Kind::Two(-9, Some("b".into()))) };
        let kinds = vec![Kind::Plain, Kind::One(7), Kind::Two(1, None), with];
        check(&[Some(3), None].map(|at_times| Fields { at_times, kinds: kinds.clone() }));
        check(&Flat { rest: BTreeMap::from([("one".into(), 1), ("longer".into(), 2)]) });
        check(&(vec![7u8; 300], Blob(vec![7; 300].into()), VecDeque::from([3, 1, 2]), [9; 3]));
        check(&(BTreeSet::from([-1, 5, 300]), BTreeMap::from([("bb", vec![2, 1]), ("a", vec![])])));
    }

    /// A set and a map of the same items, by hashes of their own.
    type Unsorted = (Set<u64>, Map<String, Set<u64>>);

    fn unsorted(items: impl Iterator<Item = u64> + Clone) -> Unsorted {
        let named = items.clone().map(|item| (item.to_string(), Set::from([item, item + 1, item + 2])));
        (items.clone().collect(), named.collect())
    }

    #[test]
    fn what_has_no_order_is_the_same_wherever_it_came_from() {
        let (one, other) = (unsorted(0..99), unsorted((0..99).rev()));
        let plain = |value: &Unsorted| rmp_serde::to_vec_named(value).expect("it encodes");
        assert!(plain(&one) != plain(&other), "each has hashes of its own");
        assert_eq!(in_order(&one), in_order(&other));
        // In order means by their bytes, which for these numbers is as they count.
        let sorted: BTreeSet<u64> = (0..99).collect();
        assert_eq!(in_order(&one.0), in_order(&sorted));
        let back: Unsorted = rmp_serde::from_slice(&in_order(&one)).expect("it decodes");
        assert!(back == one);
        assert!(
            in_order(&one) != in_order(&unsorted(0..98)) && in_order(&vec![1, 2]) != in_order(&vec![2, 1])
        );
        // Whoever says how a field is encoded may give its iterator.
        let iterated = |set: &Set<u64>| {
            let mut bytes = Vec::new();
            let mut serializer = rmp_serde::Serializer::new(&mut bytes);
            Ordering(&mut serializer).collect_seq(set.iter()).expect("it encodes");
            bytes
        };
        assert_eq!(iterated(&one.0), iterated(&other.0));
    }
}
