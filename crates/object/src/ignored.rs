//! Whether a type ignores a part of what it is read from: a field that whoever wrote it has, and the type has not.
//!
//! serde has a type say so: it asks for such a field's value as one that it ignores. So a field that is read by a former name, or that is written
//! in another way, is none. What lies in a flattened, untagged or internally tagged part is read by serde itself first, and is not noticed here.

use serde::de::DeserializeOwned;
use serde_ignored::Path;

/// Whether a `T` ignores a part of these bytes of MessagePack. False if they are none.
pub(crate) fn ignores<T: DeserializeOwned>(bytes: &[u8]) -> bool {
    let mut ignored = false;
    // A closure's own type would be another for each `T`, and so would all that reads numbers and strings for it.
    let note: &mut dyn FnMut(Path<'_>) = &mut |_| ignored = true;
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    let read = serde_ignored::deserialize::<_, _, T>(&mut decoder, note);
    read.is_ok() && ignored
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::remote::any::Any;

    /// What a newer version writes.
    #[derive(Serialize, Deserialize)]
    struct New {
        name: String,
        age: u8,
    }

    /// What an older one reads.
    #[derive(Serialize, Deserialize)]
    struct Old {
        #[serde(alias = "name")]
        title: String,
    }

    /// Something that has such a value somewhere.
    #[derive(Serialize, Deserialize)]
    enum Has<T> {
        Plain,
        One(T),
        Two(u8, T),
        With { next: Option<Box<Has<T>>>, named: BTreeMap<String, (T, i128)> },
    }

    fn all<T>(of: impl Fn() -> T) -> [Has<T>; 4] {
        let named = BTreeMap::from([("a".to_owned(), (of(), -1))]);
        let next = Some(Box::new(Has::One(of())));
        [
            Has::One(of()),
            Has::Two(3, of()),
            Has::With { next, named: BTreeMap::new() },
            Has::With { next: Some(Box::new(Has::Plain)), named },
        ]
    }

    #[test]
    fn a_field_that_a_type_has_not_is_ignored_wherever_it_is_and_one_by_its_former_name_is_not() {
        let bytes = |value: &Has<New>| rmp_serde::to_vec_named(value).expect("it encodes");
        for value in all(|| New { name: "a".into(), age: 7 }) {
            let bytes = bytes(&value);
            assert!(ignores::<Has<Old>>(&bytes) && ignores::<Vec<Has<Old>>>(&[&[0x91], &bytes[..]].concat()));
            assert!(!ignores::<Has<New>>(&bytes) && !ignores::<Any>(&bytes));
            assert!(!ignores::<Has<Old>>(&bytes[1..]), "it is none");
        }
        let plain = rmp_serde::to_vec_named(&BTreeMap::from([("name", "b")])).expect("it encodes");
        assert!(!ignores::<Old>(&plain) && !ignores::<Option<Old>>(&plain));
    }
}
