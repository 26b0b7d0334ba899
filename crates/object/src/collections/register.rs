//! A register: one value.

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::{Now, Value, handle};
use crate::access::{Access, Portable};
use crate::error::ObjectError;
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object, digest_of_value};

/// The state of a register.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "T: Value")]
pub struct RegisterState<T> {
    value: Option<T>,
}

impl<T> Default for RegisterState<T> {
    fn default() -> Self {
        Self { value: None }
    }
}

impl<T: Value> RegisterState<T> {
    /// What it holds.
    pub fn value(&self) -> Option<&T> {
        self.value.as_ref()
    }
}

impl<T: Value> Object for RegisterState<T> {
    const ACCESSORS: &'static [Access<Self>] = &[Access::of::<Now>()];
    const TYPE: &'static str = "register";
    const METHODS: &'static [Method<Self>] = &[Method::of::<Write<T>>()];
    type Undo = Option<T>;
    const IS_TRIED: bool = false;

    fn exchange(&mut self, undo: &mut Option<T>) {
        std::mem::swap(&mut self.value, undo);
    }

    fn digest(&self) -> u64 {
        // Of the bytes as they came, as of every value: a node that does not know the type has no other.
        digest_of_value(self).unwrap_or(0)
    }
}

/// Writes a value; gives the one that was there before.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "T: Value")]
pub struct Write<T> {
    /// What; `None` makes the register empty.
    pub value: Option<T>,
}

impl<T: Value> Mutator<RegisterState<T>> for Write<T> {
    const NAME: &'static str = "write";
    type Output = Option<T>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&"value"))
    }

    fn apply(self, register: &mut RegisterState<T>, _: LogPos, undo: &mut Vec<Option<T>>) -> Option<T> {
        let before = std::mem::replace(&mut register.value, self.value);
        undo.push(before.clone());
        before
    }
}

handle! {
    /// A register: one value, or none.
    Register<T: Value>, RegisterState<T>
}

impl<T: Value> Register<T> {
    /// The value.
    pub async fn read(&self) -> Result<Option<T>, ObjectError> {
        self.handle.look(Now {}).await
    }

    /// Writes a value without a look at the one that is there.
    pub async fn write(&self, value: T) -> Result<(), ObjectError> {
        self.handle.send(Write { value: Some(value) }).await.map(|_| ())
    }

    /// Writes a value, or none, and returns the one that was there.
    pub async fn replace(&self, value: Option<T>) -> Result<Option<T>, ObjectError> {
        self.handle.call(Write { value }).await
    }
}
