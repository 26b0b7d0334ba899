//! Collections: objects with the habits of the structures that programs have in memory.
//!
//! ```text
//!   state              handles
//!   MapState           Map · SortedMap · Set
//!   ListState          List · Queue · Stack
//!   MultiMapState      MultiMap
//!   CounterState       Counter
//!   RegisterState      Register
//! ```
//!
//! A handle says what can be done; the state is what the log makes. Handles of one state may be open for the same object at the same
//! time: a list is a queue to one part of a program and a stack to another. Every method may be called outside of
//! transactions, within one (`within`), and reads as of a position (`at`) or of a state of late (`stale`).

mod asked;
mod blob;
mod counter;
mod entries;
mod list;
mod list_state;
mod map;
mod map_state;
mod multi_map;
mod register;
mod set;
mod sorted_map;

use std::hash::Hash;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use asked::{All, Get, Has, Item, Len, MultiGet, Now, Values};
pub use blob::Blob;
pub(crate) use blob::Sharing;
pub use counter::{Add, Counter, CounterState};
pub use entries::Entries;
pub(crate) use entries::within;
pub use list::{List, Queue, Stack};
pub use list_state::{Append, Change, Insert, ListState, PopBack, PopFront, RemoveAt, SetAt};
pub use map::{Map, Replaced};
pub use map_state::{Before, Clear, MapState, Placed, Put, Remove};
pub use multi_map::{AddValue, MultiMap, MultiMapState, RemoveKey, RemoveValue};
pub use register::{Register, RegisterState, Write};
pub use set::Set;
pub use sorted_map::SortedMap;

/// What can be a value: anything that goes to MessagePack and back.
pub trait Value: Clone + Serialize + DeserializeOwned + 'static {}

impl<T: Clone + Serialize + DeserializeOwned + 'static> Value for T {}

/// What can be a key: a value with an order and a hash. Keys that are equal MUST have the same MessagePack.
pub trait Name: Value + Ord + Hash {}

impl<T: Value + Ord + Hash> Name for T {}

/// What every handle of a collection has: how it is opened, and what its reads are of.
macro_rules! handle {
    ($(#[$docs:meta])* $name:ident<$($param:ident: $bound:ident),*>, $state:ty) => {
        $(#[$docs])*
        pub struct $name<$($param: $bound),*> {
            handle: $crate::Handle<$state>,
        }

        impl<$($param: $bound),*> Clone for $name<$($param),*> {
            fn clone(&self) -> Self {
                Self { handle: self.handle.clone() }
            }
        }

        impl<$($param: $bound),*> $name<$($param),*> {
            /// Opens the one of this name; it is empty if nobody has changed it. Nothing is read yet.
            ///
            /// Errors: `OtherType` if the name is open as something else.
            pub fn open(runtime: &$crate::Runtime, name: &str) -> Result<Self, $crate::ObjectError> {
                Ok(Self { handle: runtime.open(name)? })
            }

            /// The same with its state at a node of the cluster, which answers all reads: for programs that read little of it, or have little
            /// memory. (docs/protocol/remote-views.md)
            pub fn open_remote(runtime: &$crate::Runtime, name: &str) -> Result<Self, $crate::ObjectError> {
                Ok(Self { handle: runtime.open_remote(name)? })
            }

            /// The same object in a transaction.
            pub fn within(&self, tx: &$crate::Tx) -> Self {
                Self { handle: self.handle.within(tx) }
            }

            /// The same object as it was when it reflected every position of the log below `snapshot`; it can be read only.
            pub fn at(&self, snapshot: ithaca_log::pos::LogPos) -> Self {
                Self { handle: self.handle.at(snapshot) }
            }

            /// The same object for reads that may be as old as `bound`.
            pub fn stale(&self, bound: std::time::Duration) -> Self {
                Self { handle: self.handle.stale(bound) }
            }

            /// A copy of its state: see [`Handle::state`]($crate::Handle::state).
            pub async fn state(&self) -> Result<$state, $crate::ObjectError> {
                self.handle.state().await
            }

            /// The handle of its state, for calls that are not among its methods.
            pub fn handle(&self) -> &$crate::Handle<$state> {
                &self.handle
            }
        }
    };
}
use handle;

/// How much a collection holds, and how all of it goes.
macro_rules! counted {
    ($name:ident<$($param:ident: $bound:ident),*>) => {
        impl<$($param: $bound),*> $name<$($param),*> {
            /// Takes everything out. Nothing is read.
            pub async fn clear(&self) -> Result<(), $crate::ObjectError> {
                self.handle.send($crate::collections::Clear {}).await.map(|_| ())
            }

            /// How much there is: keys, values or items.
            pub async fn len(&self) -> Result<usize, $crate::ObjectError> {
                self.handle.look($crate::collections::Len {}).await
            }

            /// Whether there is nothing.
            pub async fn is_empty(&self) -> Result<bool, $crate::ObjectError> {
                Ok(self.len().await? == 0)
            }
        }
    };
}
use counted;

#[cfg(test)]
mod tests {
    use ithaca_env::real::golden;

    use super::map_state::SetIf;
    use super::*;
    use crate::object::{Mutator, Object};

    /// The name of a call and its arguments.
    fn call<O: Object, M: Mutator<O>>(call: &M) -> String {
        let arguments = rmp_serde::to_vec_named(call).expect("it encodes");
        format!("{} {}\n{}", O::TYPE, M::NAME, golden::hex(&arguments))
    }

    #[test]
    fn calls_have_the_bytes_that_they_have_always_had() {
        // A log that holds a call of another name, or with another field, cannot be read any more.
        type Map = MapState<String, u64>;
        type Many = MultiMapState<String, u64>;
        type List = ListState<u64>;
        let (key, value) = ("k".to_owned(), 300);
        let lines = [
            call::<Map, _>(&Put { key: key.clone(), value }),
            call::<Map, _>(&Remove { key: key.clone() }),
            call::<Map, _>(&SetIf { key: key.clone(), version: Some(70_000), value: vec![value] }),
            call::<Map, _>(&SetIf::<_, u64> { key: key.clone(), version: None, value: Vec::new() }),
            call::<Map, _>(&Clear {}),
            call::<List, _>(&Append { item: value }),
            call::<List, _>(&Insert { at: 3, item: value }),
            call::<List, _>(&SetAt { at: 3, item: value }),
            call::<List, _>(&RemoveAt { at: 3 }),
            call::<List, _>(&PopFront {}),
            call::<List, _>(&PopBack {}),
            call::<List, _>(&Clear {}),
            call::<Many, _>(&AddValue { key: key.clone(), value }),
            call::<Many, _>(&RemoveValue { key: key.clone(), value }),
            call::<Many, _>(&RemoveKey { key }),
            call::<Many, _>(&Clear {}),
            call::<CounterState, _>(&Add { amount: -5 }),
            call::<RegisterState<u64>, _>(&Write { value: Some(value) }),
        ];
        let head = "Calls of the built-in collections: type, name, and arguments in hexadecimal. docs/format/object.md explains them.\n\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/calls.txt");
        golden::check(path, &format!("{head}{}", lines.concat()));
    }
}
