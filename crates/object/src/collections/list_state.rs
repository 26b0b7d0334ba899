//! The state of lists, queues and stacks.

use std::collections::VecDeque;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use super::{All, Clear, Item, Len, Value};
use crate::access::{Access, Portable};
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object};

/// The state of a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "T: Value")]
pub struct ListState<T> {
    items: VecDeque<T>,
}

impl<T> Default for ListState<T> {
    fn default() -> Self {
        Self { items: VecDeque::new() }
    }
}

/// How a change of a list is taken back, and made again after that.
pub enum Change<T> {
    /// An item is to be taken out.
    Out {
        /// From where.
        at: usize,
    },
    /// An item is to be put in.
    In {
        /// Before which one.
        at: usize,
        /// The item.
        item: T,
    },
    /// An item is to be exchanged.
    Swap {
        /// Which one.
        at: usize,
        /// The other one.
        item: T,
    },
    /// All items are to be exchanged.
    All {
        /// The others.
        items: VecDeque<T>,
    },
}

impl<T: Value> ListState<T> {
    /// What the list holds, from the front.
    pub fn items(&self) -> &VecDeque<T> {
        &self.items
    }

    fn put_in(&mut self, at: usize, item: T, undo: &mut Vec<Change<T>>) {
        self.items.insert(at, item);
        undo.push(Change::Out { at });
    }

    fn take_out(&mut self, at: usize, undo: &mut Vec<Change<T>>) -> Option<T> {
        let item = self.items.remove(at)?;
        undo.push(Change::In { at, item: item.clone() });
        Some(item)
    }
}

impl<T: Value> Object for ListState<T> {
    const TYPE: &'static str = "list";
    const METHODS: &'static [Method<Self>] = &[
        Method::of::<Append<T>>(),
        Method::of::<Insert<T>>(),
        Method::of::<SetAt<T>>(),
        Method::of::<RemoveAt>(),
        Method::of::<PopFront>(),
        Method::of::<PopBack>(),
        Method::of::<Clear>(),
    ];
    const ACCESSORS: &'static [Access<Self>] =
        &[Access::of::<Item>(), Access::of::<Len>(), Access::of::<All>()];
    type Undo = Change<T>;
    const IS_TRIED: bool = false;

    fn exchange(&mut self, undo: &mut Change<T>) {
        match undo {
            Change::Out { at } => {
                let at = *at;
                if let Some(item) = self.items.remove(at) {
                    *undo = Change::In { at, item };
                }
            }
            Change::In { at, .. } => {
                let out = Change::Out { at: *at };
                if let Change::In { at, item } = std::mem::replace(undo, out) {
                    self.items.insert(at, item);
                }
            }
            Change::Swap { at, item } => {
                if let Some(there) = self.items.get_mut(*at) {
                    std::mem::swap(there, item);
                }
            }
            Change::All { items } => std::mem::swap(&mut self.items, items),
        }
    }

    /// Of the length and both ends: a list that differs in the middle only is found when that comes to an end.
    fn digest(&self) -> u64 {
        let bytes = |item: Option<&T>| rmp_serde::to_vec_named(&item).unwrap_or_default();
        let (front, back) = (bytes(self.items.front()), bytes(self.items.back()));
        crate::object::digest_of(&[&(self.items.len() as u64).to_le_bytes(), &front, &back])
    }
}

/// Puts an item at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Append<T> {
    /// The item.
    pub item: T,
}

impl<T: Value> Mutator<ListState<T>> for Append<T> {
    const NAME: &'static str = "append";
    type Output = ();
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    /// It reads nothing, so appends of several transactions do not conflict.
    fn keys(&self) -> Keys {
        Keys::writes(Key::all()).commuting()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) {
        list.put_in(list.items.len(), self.item, undo);
    }
}

/// Puts an item before another one; at the end if there are not so many. Gives the place that it has then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Insert<T> {
    /// Before which one, from 0 on.
    pub at: u64,
    /// The item.
    pub item: T,
}

impl<T: Value> Mutator<ListState<T>> for Insert<T> {
    const NAME: &'static str = "insert";
    type Output = usize;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) -> usize {
        let at = usize::try_from(self.at).map_or(list.items.len(), |at| at.min(list.items.len()));
        list.put_in(at, self.item, undo);
        at
    }
}

/// Exchanges an item for another; gives the one that was there. Nothing happens if there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetAt<T> {
    /// Which one, from 0 on.
    pub at: u64,
    /// The new one.
    pub item: T,
}

impl<T: Value> Mutator<ListState<T>> for SetAt<T> {
    const NAME: &'static str = "set";
    type Output = Option<T>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) -> Option<T> {
        let at = usize::try_from(self.at).ok()?;
        let before = std::mem::replace(list.items.get_mut(at)?, self.item);
        undo.push(Change::Swap { at, item: before.clone() });
        Some(before)
    }
}

/// Takes an item out and gives it; `None` if there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RemoveAt {
    /// Which one, from 0 on.
    pub at: u64,
}

impl<T: Value> Mutator<ListState<T>> for RemoveAt {
    const NAME: &'static str = "remove";
    type Output = Option<T>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) -> Option<T> {
        list.take_out(usize::try_from(self.at).ok()?, undo)
    }
}

/// Takes the first item out and gives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PopFront {}

impl<T: Value> Mutator<ListState<T>> for PopFront {
    const NAME: &'static str = "pop_front";
    type Output = Option<T>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) -> Option<T> {
        list.take_out(0, undo)
    }
}

/// Takes the last item out and gives it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PopBack {}

impl<T: Value> Mutator<ListState<T>> for PopBack {
    const NAME: &'static str = "pop_back";
    type Output = Option<T>;
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::maybe());

    fn keys(&self) -> Keys {
        Keys::whole()
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) -> Option<T> {
        list.take_out(list.items.len().checked_sub(1)?, undo)
    }
}

impl<T: Value> Mutator<ListState<T>> for Clear {
    const NAME: &'static str = "clear";
    type Output = ();
    const RESULT: Option<Portable<Self::Output>> = Some(Portable::new());

    fn keys(&self) -> Keys {
        Keys::writes(Key::all())
    }

    fn apply(self, list: &mut ListState<T>, _: LogPos, undo: &mut Vec<Change<T>>) {
        undo.push(Change::All { items: std::mem::take(&mut list.items) });
    }
}
