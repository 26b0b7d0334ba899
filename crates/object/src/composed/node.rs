//! A node of a tree map: keys with values, or keys between other nodes.

use std::collections::BTreeMap;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use crate::collections::{Name, Value};
use crate::key::{Key, Keys};
use crate::object::{Method, Mutator, Object};

/// The state. A node that was never changed is an empty leaf.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name, V: Value")]
pub(super) struct Node<K, V> {
    /// Of a leaf: what it holds.
    pub(super) entries: BTreeMap<K, V>,
    /// Of an inner node: the numbers of its children, in order; none of a leaf.
    pub(super) children: Vec<u64>,
    /// Keys between them: a child holds what is below its key, and not below the one before.
    pub(super) between: Vec<K>,
}

impl<K, V> Default for Node<K, V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), children: Vec::new(), between: Vec::new() }
    }
}

impl<K: Name, V: Value> Node<K, V> {
    /// Which child holds `key`, and its number; `None` of a leaf.
    pub(super) fn child_of(&self, key: &K) -> Option<(usize, u64)> {
        let at = self.between.partition_point(|between| between <= key);
        self.children.get(at).map(|child| (at, *child))
    }

    /// How many entries or children it has.
    pub(super) fn size(&self) -> usize {
        self.entries.len().max(self.children.len())
    }

    /// Its two halves and the key between them: the first one that belongs to the second half. `None` if it is too small to have two.
    pub(super) fn halves(mut self) -> Option<(Self, K, Self)> {
        if self.children.is_empty() {
            let middle =
                self.entries.keys().nth(self.entries.len() / 2).filter(|_| self.entries.len() > 1)?.clone();
            let upper = self.entries.split_off(&middle);
            return Some((self, middle, Self { entries: upper, ..Self::default() }));
        }
        let at = self.children.len() / 2;
        if at == 0 || self.children.len() < 4 {
            return None;
        }
        let children = self.children.split_off(at);
        let mut between = self.between.split_off(at - 1);
        let middle = between.remove(0);
        Some((self, middle, Self { entries: BTreeMap::new(), children, between }))
    }

    /// The same inner node with one child more: `child` holds what is not below `key` of what the one at `at` held.
    pub(super) fn with_child(mut self, at: usize, key: K, child: u64) -> Self {
        self.between.insert(at, key);
        self.children.insert(at + 1, child);
        self
    }
}

/// What a change has taken away.
pub(super) enum Before<K, V> {
    /// What an entry was.
    Entry(K, Option<V>),
    /// What the node was.
    Whole(Box<Node<K, V>>),
}

impl<K: Name, V: Value> Object for Node<K, V> {
    const TYPE: &'static str = "node of a tree map";
    const METHODS: &'static [Method<Self>] =
        &[Method::of::<PutEntry<K, V>>(), Method::of::<RemoveEntry<K>>(), Method::of::<SetNode<K, V>>()];
    type Undo = Before<K, V>;

    fn exchange(&mut self, undo: &mut Before<K, V>) {
        match undo {
            Before::Entry(key, value) => {
                let now = self.entries.remove(key);
                self.entries.extend(value.take().map(|value| (key.clone(), value)));
                *value = now;
            }
            Before::Whole(node) => std::mem::swap(self, node),
        }
    }
}

/// Puts a value into a leaf; gives the one that was there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PutEntry<K, V> {
    pub(super) key: K,
    pub(super) value: V,
}

impl<K: Name, V: Value> Mutator<Node<K, V>> for PutEntry<K, V> {
    const NAME: &'static str = "put_entry";
    type Output = Option<V>;

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, node: &mut Node<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) -> Option<V> {
        let before = node.entries.insert(self.key.clone(), self.value);
        undo.push(Before::Entry(self.key, before.clone()));
        before
    }
}

/// Takes an entry out of a leaf; gives its value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RemoveEntry<K> {
    pub(super) key: K,
}

impl<K: Name, V: Value> Mutator<Node<K, V>> for RemoveEntry<K> {
    const NAME: &'static str = "remove_entry";
    type Output = Option<V>;

    fn keys(&self) -> Keys {
        Keys::updates(Key::of(&self.key))
    }

    fn apply(self, node: &mut Node<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) -> Option<V> {
        let before = node.entries.remove(&self.key);
        undo.push(Before::Entry(self.key, before.clone()));
        before
    }
}

/// Makes a node what it is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name, V: Value")]
pub(super) struct SetNode<K, V> {
    pub(super) node: Node<K, V>,
}

impl<K: Name, V: Value> Mutator<Node<K, V>> for SetNode<K, V> {
    const NAME: &'static str = "set_node";
    type Output = ();

    fn keys(&self) -> Keys {
        Keys::writes(Key::all())
    }

    fn apply(self, node: &mut Node<K, V>, _: LogPos, undo: &mut Vec<Before<K, V>>) {
        undo.push(Before::Whole(Box::new(std::mem::replace(node, self.node))));
    }
}
