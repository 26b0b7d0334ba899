//! A node of a tree map: keys with values, or keys between other nodes.

use std::collections::BTreeMap;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Accessor, Portable};
use crate::collections::{Name, Value};
use crate::key::{Key, Keys, Parts};
use crate::object::{Method, Mutator, Object, digest_of_values};

/// The state. A node that was never changed is an empty leaf.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "K: Name, V: Value")]
pub(crate) struct Node<K, V> {
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
pub(crate) enum Before<K, V> {
    /// What an entry was.
    Entry(K, Option<V>),
    /// What the node was.
    Whole(Box<Node<K, V>>),
}

impl<K: Name, V: Value> Object for Node<K, V> {
    const TYPE: &'static str = "node of a tree map";
    const METHODS: &'static [Method<Self>] =
        &[Method::of::<PutEntry<K, V>>(), Method::of::<RemoveEntry<K>>(), Method::of::<SetNode<K, V>>()];
    const ACCESSORS: &'static [Access<Self>] = &[Access::of::<Find<K>>(), Access::of::<Whole>()];
    type Undo = Before<K, V>;

    /// The order of entries does not matter: who does not know the type of the keys has them in another one.
    fn digest(&self) -> u64 {
        let entry = |(key, value)| digest_of_values(key, value).unwrap_or(0);
        let entries = self.entries.iter().map(entry).fold(0, std::ops::BitXor::bitxor);
        let inner = digest_of_values(&self.children, &(self.entries.len(), &self.between));
        entries ^ inner.unwrap_or(0)
    }

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
    const RESULT: Option<Portable<Option<V>>> = Some(Portable::maybe());

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
    const RESULT: Option<Portable<Option<V>>> = Some(Portable::maybe());

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

/// What a node says of a key: a leaf its entry alone, an inner node all of it. Which child is the key's is for who knows the order of keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Find<K> {
    pub(super) key: K,
}

impl<K: Name, V: Value> Accessor<Node<K, V>> for Find<K> {
    const NAME: &'static str = "find";
    type Output = Node<K, V>;

    fn keys(&self) -> Parts {
        Key::of(&self.key).into()
    }

    fn read(&self, node: &Node<K, V>) -> Node<K, V> {
        let entry = node.entries.get(&self.key).map(|value| (self.key.clone(), value.clone()));
        let (children, between) = (node.children.clone(), node.between.clone());
        Node { entries: entry.into_iter().collect(), children, between }
    }
}

/// All of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Whole {}

impl<K: Name, V: Value> Accessor<Node<K, V>> for Whole {
    const NAME: &'static str = "whole";
    type Output = Node<K, V>;

    fn keys(&self) -> Parts {
        Key::all().into()
    }

    fn read(&self, node: &Node<K, V>) -> Node<K, V> {
        node.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::any::Any;

    #[test]
    fn a_node_has_the_digest_of_what_it_holds_in_whatever_order() {
        // A node of the cluster that has it as values of any type would be stopped by the first digest in a record.
        type Keys = std::cmp::Reverse<i32>;
        let entries = [-70_000, -1, 0, 5, 70_000].map(|key| (std::cmp::Reverse(key), key.to_string()));
        let leaf = Node { entries: entries.into(), ..Node::default() };
        let between = vec![std::cmp::Reverse(5), std::cmp::Reverse(-1)];
        let inner = Node::<Keys, String> { children: vec![1, 2, 3], between, ..Node::default() };
        let digests = [&leaf, &inner, &Node::default()].map(|node| {
            let bytes = rmp_serde::to_vec_named(node).expect("it encodes");
            let any: Node<Any, Any> = rmp_serde::from_slice(&bytes).expect("it decodes");
            assert_eq!(any.digest(), node.digest());
            node.digest()
        });
        assert!(digests[0] != digests[1] && digests[1] != digests[2] && digests[0] != digests[2]);
    }
}
