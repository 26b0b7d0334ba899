//! What can be asked of an object by name: accessors, and how results travel.
//!
//! A program that has an object's state reads it by any closure. One that has not sends a question to who has it: the name of an
//! accessor and its arguments, as a record holds the name of a mutator and its. Names and fields are sent and never change.

use std::any::Any;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::Parts;
use crate::object::{CallError, Object};

/// A method that reads the object. Its fields are its arguments. It MUST be a function of them and of the state.
pub trait Accessor<O: Object>: Serialize + DeserializeOwned + 'static {
    /// Its name in questions. It never changes.
    const NAME: &'static str;
    /// What it gives.
    type Output: Serialize + DeserializeOwned + 'static;

    /// The parts of the object that it depends on, for transactions.
    fn keys(&self) -> Parts;

    /// Reads.
    fn read(&self, object: &O) -> Self::Output;
}

type Run<O> = fn(&[u8], &O) -> Result<Vec<u8>, CallError>;

/// An accessor as hosts of views know it: by its name.
pub struct Access<O: Object> {
    name: &'static str,
    run: Run<O>,
}

impl<O: Object> Access<O> {
    /// That of the accessor `A`.
    pub const fn of<A: Accessor<O>>() -> Self {
        Self { name: A::NAME, run: run::<O, A> }
    }

    /// Runs the object's accessor of this name and gives the MessagePack of what it gives.
    pub(crate) fn run(name: &str, arguments: &[u8], object: &O) -> Result<Vec<u8>, CallError> {
        let access = O::ACCESSORS.iter().find(|access| access.name == name);
        let unknown = || CallError::UnknownMethod { object: O::TYPE, method: name.to_owned() };
        (access.ok_or_else(unknown)?.run)(arguments, object)
    }
}

fn run<O: Object, A: Accessor<O>>(arguments: &[u8], object: &O) -> Result<Vec<u8>, CallError> {
    let invalid = |error: String| CallError::Arguments { method: A::NAME, error };
    let accessor: A = rmp_serde::from_slice(arguments).map_err(|error| invalid(error.to_string()))?;
    rmp_serde::to_vec_named(&accessor.read(object)).map_err(|error| invalid(error.to_string()))
}

/// How the result of a mutator is sent: as MessagePack.
pub struct Portable<T: 'static> {
    pub(crate) encode: fn(&T) -> Option<Vec<u8>>,
    pub(crate) decode: fn(&[u8]) -> Option<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Portable<T> {
    /// That of `T`.
    pub const fn new() -> Self {
        Self {
            encode: |value| rmp_serde::to_vec_named(value).ok(),
            decode: |bytes| rmp_serde::from_slice(bytes).ok(),
        }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Portable<Option<T>> {
    /// That of what may be none: a list of one or of nothing. A value that is itself none, or has no parts, has the MessagePack of none.
    pub const fn maybe() -> Self {
        Self {
            encode: |value| rmp_serde::to_vec_named(&value.as_slice()).ok(),
            decode: |bytes| rmp_serde::from_slice::<Vec<T>>(bytes).ok().map(|mut value| value.pop()),
        }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Default for Portable<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The MessagePack of a result, if it can be sent.
pub(crate) fn encode_output<T: 'static>(portable: Option<Portable<T>>, output: &dyn Any) -> Option<Vec<u8>> {
    (portable?.encode)(output.downcast_ref::<T>()?)
}

/// How many bytes a value's MessagePack has, made without keeping them.
pub(crate) fn encoded_bytes(value: &impl Serialize) -> Result<usize, rmp_serde::encode::Error> {
    let mut counted = Counted(0);
    rmp_serde::encode::write_named(&mut counted, value)?;
    Ok(counted.0)
}

struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
