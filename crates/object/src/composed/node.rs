//! A node of a tree map: keys with values, or keys between other nodes.

use std::collections::BTreeMap;

use ithaca_log::pos::LogPos;
use serde::{Deserialize, Serialize};

use crate::access::{Access, Accessor, Portable, encoded_bytes};
use crate::collections::{Name, Value};
use crate::key::{self, Key, Keys};
use crate::limits;
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

    /// Whether it is to be split: by how many entries or children it has, or a leaf by its bytes. `above` says what that is of what it is as a rule.
    pub(super) fn is_large(&self, record_bytes: usize, above: impl Fn(usize) -> usize) -> bool {
        let count = self.entries.len().max(self.children.len());
        if count < 2 || count > above(limits::NODE_SPLIT_COUNT) {
            return count > 1;
        }
        let (mut bytes, most) = (0, above(limits::NODE_SPLIT_BYTES.min(record_bytes)));
        self.entries.iter().any(|entry| {
            bytes += encoded_bytes(&entry).unwrap_or(0);
            bytes > most
        })
    }

    /// What it is split into, if it is large: of an inner node two halves, of a leaf as many parts as it takes for them to be small.
    pub(super) fn parts(mut self, record_bytes: usize) -> Option<Parts<K, V>> {
        if !self.is_large(record_bytes, |usual| usual) {
            return None;
        }
        if self.children.is_empty() {
            return self.leaves(record_bytes);
        }
        let at = self.children.len() / 2;
        let children = self.children.split_off(at);
        let mut between = self.between.split_off(at - 1);
        let middle = between.remove(0);
        let upper = Self { entries: BTreeMap::new(), children, between };
        Some(Parts { first: self, others: vec![(middle, upper)], is_short: true })
    }

    /// The parts of a leaf. An entry that is larger than a part is one by itself.
    fn leaves(self, record_bytes: usize) -> Option<Parts<K, V>> {
        let size = |entry: &(&K, &V)| encoded_bytes(entry).unwrap_or(0);
        let (len, all) = (self.entries.len(), self.entries.iter().map(|entry| size(&entry)).sum::<usize>());
        // Some room is left in each.
        let count = len.div_ceil(limits::NODE_SPLIT_COUNT * 3 / 4).max(2);
        let (most, most_bytes) = (len.div_ceil(count), limits::NODE_SPLIT_BYTES.min(record_bytes) * 3 / 4);
        let (mut parts, mut bytes) = (Vec::<(K, Self)>::new(), 0);
        for (key, value) in self.entries {
            let entry_bytes = size(&(&key, &value));
            bytes += entry_bytes;
            match parts.last_mut() {
                Some((_, part)) if part.entries.len() < most && bytes <= most_bytes => {
                    part.entries.insert(key, value);
                }
                _ => {
                    bytes = entry_bytes;
                    let entries = BTreeMap::from([(key.clone(), value)]);
                    parts.push((key, Self { entries, ..Self::default() }));
                }
            }
        }
        let is_short = parts.len() == 2 && all <= record_bytes;
        let mut parts = parts.into_iter();
        let (_, first) = parts.next()?;
        Some(Parts { first, others: parts.collect(), is_short })
    }

    /// The same inner node with more children: after the one at `at`, each holds what is not below its key of what that one held. That one is
    /// `first` from now on.
    pub(super) fn with_children(mut self, at: usize, first: u64, others: Vec<(K, u64)>) -> Self {
        self.children[at] = first;
        for (nth, (key, child)) in others.into_iter().enumerate() {
            self.between.insert(at + nth, key);
            self.children.insert(at + nth + 1, child);
        }
        self
    }
}

/// What a node is split into.
pub(super) struct Parts<K, V> {
    /// What is lowest.
    pub(super) first: Node<K, V>,
    /// The others in order, each with the first key that belongs to it.
    pub(super) others: Vec<(K, Node<K, V>)>,
    /// Whether one record takes them all.
    pub(super) is_short: bool,
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

    fn keys(&self) -> key::Parts {
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

    fn keys(&self) -> key::Parts {
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

    /// Splits a leaf of values of these lengths.
    fn check_parts(lengths: &[usize], parts_max: usize, is_short: bool) {
        const RECORD_BYTES: usize = 500 << 10;
        let entries = lengths.iter().enumerate().map(|(key, len)| (key, "x".repeat(*len)));
        let leaf = Node { entries: entries.collect(), ..Node::default() };
        let parts = leaf.clone().parts(RECORD_BYTES).expect("it is large");
        assert_eq!(parts.is_short, is_short, "{} entries", lengths.len());
        assert!(parts.others.len() < parts_max, "{} parts", parts.others.len() + 1);
        let root = Node::<usize, String> { children: vec![100], ..Node::default() };
        let others = parts.others.iter().enumerate().map(|(nth, (key, _))| (*key, 101 + nth as u64));
        let root = root.with_children(0, 100, others.collect());
        let all: Vec<_> =
            std::iter::once(parts.first).chain(parts.others.into_iter().map(|(_, it)| it)).collect();
        for (nth, part) in all.iter().enumerate() {
            assert!(!part.is_large(RECORD_BYTES, |usual| usual), "{} entries", part.entries.len());
            assert!(part.entries.keys().all(|key| root.child_of(key) == Some((nth, 100 + nth as u64))));
        }
        let together: BTreeMap<usize, String> = all.into_iter().flat_map(|part| part.entries).collect();
        assert_eq!(together, leaf.entries);
    }

    #[test]
    fn the_parts_of_a_leaf_are_small_and_hold_together_what_it_held() {
        // A key in the wrong part is found no more; a part that is too large is split at once again, or never fits.
        check_parts(&[1; 129], 3, true);
        check_parts(&[1; 4000], 64, false);
        check_parts(&[150 << 10, 150 << 10], 2 + 1, true);
        check_parts(&[10, 900 << 10], 2 + 1, false);
        check_parts(&[900 << 10, 10, 10], 2 + 1, false);
        check_parts(&[80 << 10, 80 << 10, 400 << 10, 80 << 10], 4, false);
        check_parts(&(0..300).map(|nth| nth * 97 % 20_000).collect::<Vec<_>>(), 32, false);
        let one = Node { entries: BTreeMap::from([(1, "x".repeat(1 << 20))]), ..Node::default() };
        assert!(one.parts(1 << 10).is_none());
    }

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
