//! A counter.

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::Now;
use crate::access::{Access, Portable};
use crate::error::ObjectError;
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object};
use crate::{Handle, Runtime, Tx};

/// The state of a counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterState {
    /// What it stands at.
    pub value: i64,
}

impl Object for CounterState {
    const ACCESSORS: &'static [Access<Self>] = &[Access::of::<Now>()];
    const TYPE: &'static str = "counter";
    const METHODS: &'static [Method<Self>] = &[Method::of::<Add>()];
    type Undo = i64;
    const IS_TRIED: bool = false;

    fn exchange(&mut self, undo: &mut i64) {
        self.value = self.value.wrapping_sub(*undo);
        *undo = undo.wrapping_neg();
    }

    fn digest(&self) -> u64 {
        self.value as u64
    }
}

/// Adds a number, which may be negative; gives what the counter stands at then. It wraps around at the ends of its range.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Add {
    /// How much.
    pub amount: i64,
}

impl Mutator<CounterState> for Add {
    const NAME: &'static str = "add";
    type Output = i64;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&"value")).commuting()
    }

    fn apply(self, counter: &mut CounterState, _: LogPos, undo: &mut Vec<i64>) -> i64 {
        counter.value = counter.value.wrapping_add(self.amount);
        undo.push(self.amount);
        counter.value
    }
}

/// A number that is added to. Additions whose result nobody asks for do not conflict with each other.
#[derive(Clone)]
pub struct Counter {
    handle: Handle<CounterState>,
}

impl Counter {
    /// Opens the one of this name; it is 0 if nobody has changed it. Errors: `OtherType` if the name is open as something
    /// else.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self { handle: runtime.open(name)? })
    }

    /// The same with its state at a node of the cluster, which answers all reads.
    pub fn open_remote(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self { handle: runtime.open_remote(name)? })
    }

    /// The same object in a transaction.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { handle: self.handle.within(tx) }
    }

    /// The same object as it was when it reflected every position of the log below `snapshot`.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { handle: self.handle.at(snapshot) }
    }

    /// The handle of its state, for calls that are not among its methods.
    pub fn handle(&self) -> &Handle<CounterState> {
        &self.handle
    }

    /// What it stands at.
    pub async fn get(&self) -> Result<i64, ObjectError> {
        self.handle.look(Now {}).await
    }

    /// Adds `amount` and returns what it stands at then.
    pub async fn add_and_get(&self, amount: i64) -> Result<i64, ObjectError> {
        self.handle.call(Add { amount }).await
    }

    /// Adds `amount`.
    pub async fn add(&self, amount: i64) -> Result<(), ObjectError> {
        self.handle.send(Add { amount }).await.map(|_| ())
    }
}
