//! Lists, queues and stacks: three ways to look at items in a row.

use super::{
    All, Append, Insert, Item, ListState, PopBack, PopFront, RemoveAt, SetAt, Value, counted, handle,
};
use crate::error::ObjectError;

handle! {
    /// Items in a row, by their places from 0 on. Appends do not conflict with each other; whoever reads conflicts with every
    /// change.
    List<T: Value>, ListState<T>
}

counted! { List<T: Value> }

impl<T: Value> List<T> {
    /// The item at a place.
    pub async fn get(&self, at: usize) -> Result<Option<T>, ObjectError> {
        Ok(self.handle.look(Item { at: at as u64, is_from_back: false }).await?.pop())
    }

    /// Puts an item at the end.
    pub async fn push(&self, item: T) -> Result<(), ObjectError> {
        self.handle.send(Append { item }).await.map(|_| ())
    }

    /// Puts an item before the one at a place, or at the end, and returns the place that it has then.
    pub async fn insert(&self, at: usize, item: T) -> Result<usize, ObjectError> {
        self.handle.call(Insert { at: at as u64, item }).await
    }

    /// Exchanges the item at a place and returns the one that was there; `None`, and nothing changes, if there is none.
    pub async fn set(&self, at: usize, item: T) -> Result<Option<T>, ObjectError> {
        self.handle.call(SetAt { at: at as u64, item }).await
    }

    /// Takes out the item at a place.
    pub async fn remove(&self, at: usize) -> Result<Option<T>, ObjectError> {
        self.handle.call(RemoveAt { at: at as u64 }).await
    }

    /// Every item, in order.
    pub async fn items(&self) -> Result<Vec<T>, ObjectError> {
        self.handle.look(All {}).await
    }
}

handle! {
    /// A queue: first in, first out. It has the state of a [`List`]. An item that is taken out is taken out once, whoever does it.
    Queue<T: Value>, ListState<T>
}

counted! { Queue<T: Value> }

impl<T: Value> Queue<T> {
    /// Puts an item at the end. Nothing is read, so producers do not conflict with each other.
    pub async fn push(&self, item: T) -> Result<(), ObjectError> {
        self.handle.send(Append { item }).await.map(|_| ())
    }

    /// Takes the first item out; `None` if there is none.
    pub async fn pop(&self) -> Result<Option<T>, ObjectError> {
        self.handle.call(PopFront {}).await
    }

    /// The first item.
    pub async fn peek(&self) -> Result<Option<T>, ObjectError> {
        Ok(self.handle.look(Item { at: 0, is_from_back: false }).await?.pop())
    }
}

handle! {
    /// A stack: last in, first out. It has the state of a [`List`].
    Stack<T: Value>, ListState<T>
}

counted! { Stack<T: Value> }

impl<T: Value> Stack<T> {
    /// Puts an item on top.
    pub async fn push(&self, item: T) -> Result<(), ObjectError> {
        self.handle.send(Append { item }).await.map(|_| ())
    }

    /// Takes the top item off; `None` if there is none.
    pub async fn pop(&self) -> Result<Option<T>, ObjectError> {
        self.handle.call(PopBack {}).await
    }

    /// The top item.
    pub async fn peek(&self) -> Result<Option<T>, ObjectError> {
        Ok(self.handle.look(Item { at: 0, is_from_back: true }).await?.pop())
    }
}
