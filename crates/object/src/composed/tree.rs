//! A map in the order of its keys, as a B-tree whose nodes are objects.
//!
//! A pointer from node to node is the name of an object, and what it leads to is that object as of the snapshot. So a change of a leaf
//! changes no other node, and every old state of the tree can be read (Wei 5.4, dynamic pointers). A node is split when it has grown too
//! large; none is joined with another, so that a leaf of which everything was removed stays.

use std::cell::Cell;
use std::ops::{Bound, RangeBounds};

use ithaca_log::pos::LogPos;

use super::node::{Find, Node, Parts, PutEntry, RemoveEntry, SetNode, Whole};
use super::{Composed, Moment};
use crate::collections::{Name, Value};
use crate::error::ObjectError;
use crate::key::Key;
use crate::limits;
use crate::{Handle, Isolation, Runtime, Tx};

/// The number of the root. The others are random.
const ROOT: u64 = 0;

/// A large map with an order. A key is looked up in as many nodes as the tree is high. A transaction that reads a range conflicts with changes
/// in the leaves that the range lies in, and with no others.
pub struct TreeMap<K: Name, V: Value> {
    nodes: Composed<Node<K, V>>,
}

impl<K: Name, V: Value> Clone for TreeMap<K, V> {
    fn clone(&self) -> Self {
        Self { nodes: self.nodes.clone() }
    }
}

/// Where a key is: the leaf and the inner nodes above it, the root first, each with which of its children leads on.
struct Path {
    above: Vec<(u64, usize)>,
    leaf: u64,
}

/// What one node says of a key.
enum Step<T> {
    Down(usize, u64),
    Here(T),
}

impl<K: Name, V: Value> TreeMap<K, V> {
    /// Opens the one of this name; it is empty if nobody has changed it. Nothing is read yet.
    pub fn open(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self { nodes: Composed::new(runtime, name) })
    }

    /// The same with its state at nodes of the cluster, each of its nodes at one of theirs, which answer all reads: for programs that read
    /// little of it. (docs/protocol/composed.md)
    pub fn open_remote(runtime: &Runtime, name: &str) -> Result<Self, ObjectError> {
        Ok(Self { nodes: Composed::remote(runtime, name) })
    }

    /// The same map in a transaction.
    pub fn within(&self, tx: &Tx) -> Self {
        Self { nodes: self.nodes.when(Moment::In(tx.clone())) }
    }

    /// The same map as it was when it reflected every position of the log below `snapshot`; it can be read only.
    pub fn at(&self, snapshot: LogPos) -> Self {
        Self { nodes: self.nodes.when(Moment::At(snapshot)) }
    }

    /// The value of `key`.
    pub async fn get(&self, key: &K) -> Result<Option<V>, ObjectError> {
        let get = async |moment: &Moment| {
            let look = |node: &Node<K, V>| node.entries.get(key).cloned();
            self.find(moment, key, look).await.map(|(_, value)| value)
        };
        self.nodes.read(get).await
    }

    /// Gives `key` a value and returns the one that it had.
    pub async fn put(&self, key: K, value: V) -> Result<Option<V>, ObjectError> {
        let put = async |moment: &Moment| {
            let path = self.find_to_change(moment, &key).await?;
            let call = PutEntry { key: key.clone(), value: value.clone() };
            Ok((path.leaf, self.node(moment, path.leaf)?.call(call).await?))
        };
        let (leaf, before) = self.nodes.change(put).await?;
        self.split_after(leaf, key).await;
        Ok(before)
    }

    /// Removes `key` and returns the value that it had.
    pub async fn remove(&self, key: K) -> Result<Option<V>, ObjectError> {
        let remove = async |moment: &Moment| {
            let path = self.find_to_change(moment, &key).await?;
            self.node(moment, path.leaf)?.call(RemoveEntry { key: key.clone() }).await
        };
        self.nodes.change(remove).await
    }

    /// Removes every key, at one position: the root becomes an empty leaf.
    pub async fn clear(&self) -> Result<(), ObjectError> {
        let clear = async |moment: &Moment| {
            let root = self.node(moment, ROOT)?;
            root.send(SetNode { node: Node::default() }).await.map(|_| ())
        };
        self.nodes.change(clear).await
    }

    /// The keys of a range and their values, in order, at most `limit` of them, as of one snapshot. A range whose start lies after its end
    /// is empty.
    pub async fn range(&self, range: impl RangeBounds<K>, limit: usize) -> Result<Vec<(K, V)>, ObjectError> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let read = async |moment: &Moment| {
            let mut found = Vec::new();
            let mut todo = vec![ROOT];
            while let Some(number) = todo.pop() {
                if found.len() >= limit {
                    break;
                }
                let see = |node: &Node<K, V>| within(node, &bounds, limit - found.len());
                let (children, entries) = self.see(moment, number, None, see).await?;
                // The first child is looked at first.
                todo.extend(children.into_iter().rev());
                found.extend(entries);
            }
            Ok(found)
        };
        self.nodes.read(read).await
    }

    /// Every key and its value, in order, as of one snapshot.
    pub async fn entries(&self) -> Result<Vec<(K, V)>, ObjectError> {
        self.range(.., usize::MAX).await
    }

    /// How many keys there are, as of one snapshot. Every node is read for it, one after the other.
    pub async fn len(&self) -> Result<usize, ObjectError> {
        let count = async |moment: &Moment| {
            let (mut count, mut todo) = (0, vec![ROOT]);
            while let Some(number) = todo.pop() {
                let look = |node: &Node<K, V>| (node.children.clone(), node.entries.len());
                let (children, entries) = self.see(moment, number, None, look).await?;
                todo.extend(children);
                count += entries;
            }
            Ok(count)
        };
        self.nodes.read(count).await
    }

    /// Whether there is no key.
    pub async fn is_empty(&self) -> Result<bool, ObjectError> {
        Ok(self.range(.., 1).await?.is_empty())
    }

    /// How many nodes lead to a key, the leaf included.
    pub async fn height_at(&self, key: &K) -> Result<usize, ObjectError> {
        let height = async |moment: &Moment| {
            let (path, ()) = self.find(moment, key, |_| ()).await?;
            Ok(path.above.len() + 1)
        };
        self.nodes.read(height).await
    }

    fn node(&self, moment: &Moment, number: u64) -> Result<Handle<Node<K, V>>, ObjectError> {
        Ok(moment.of(&self.child(number)?))
    }

    /// The node of a number, as of now.
    fn child(&self, number: u64) -> Result<Handle<Node<K, V>>, ObjectError> {
        self.nodes.child(&format!("node {number:x}"))
    }

    /// What `see` makes of a node. It depends on that of `key` alone, if there is one.
    async fn see<T>(
        &self,
        moment: &Moment,
        number: u64,
        key: Option<&K>,
        see: impl FnOnce(&Node<K, V>) -> T,
    ) -> Result<T, ObjectError> {
        let node = self.node(moment, number)?;
        if !node.is_remote() {
            return node.read(|| vec![key.map_or_else(Key::all, Key::of)], see).await;
        }
        let told = match key {
            Some(key) => node.look(Find { key: key.clone() }).await?,
            None => node.look(Whole {}).await?,
        };
        Ok(see(&told))
    }

    /// Goes down to the leaf of a key and looks at it. What is read conflicts with other changes of the same key, and with what changes
    /// a node on the way.
    async fn find<T>(
        &self,
        moment: &Moment,
        key: &K,
        look: impl Fn(&Node<K, V>) -> T,
    ) -> Result<(Path, T), ObjectError> {
        let mut path = Path { above: Vec::new(), leaf: ROOT };
        loop {
            let step = |node: &Node<K, V>| match node.child_of(key) {
                Some((at, child)) => Step::Down(at, child),
                None => Step::Here(look(node)),
            };
            match self.see(moment, path.leaf, Some(key), step).await? {
                Step::Here(found) => return Ok((path, found)),
                Step::Down(..) if path.above.len() == limits::TREE_HEIGHT_MAX => {
                    return Err(ObjectError::TooHigh { object: self.nodes.name.clone() });
                }
                Step::Down(at, child) => {
                    path.above.push((path.leaf, at));
                    path.leaf = child;
                }
            }
        }
    }

    /// The same for a change in the leaf, which takes place only if the same nodes lead there.
    async fn find_to_change(&self, moment: &Moment, key: &K) -> Result<Path, ObjectError> {
        let (path, ()) = self.find(moment, key, |_| ()).await?;
        for (number, _) in &path.above {
            moment.led_by(self.child(*number)?.stream(), &[Key::of(key)]);
        }
        Ok(path)
    }

    /// Splits the leaf of a key that was put, if it is large; in a transaction once that is committed.
    async fn split_after(&self, leaf: u64, key: K) {
        match &self.nodes.moment {
            Some(Moment::In(tx)) => {
                let Ok(node) = self.child(leaf) else { return };
                let map = Self { nodes: self.nodes.now() };
                tx.after_commit(node.stream(), false, async move { map.split_if_large(leaf, &key).await });
            }
            _ => self.split_if_large(leaf, &key).await,
        }
    }

    /// Splits the leaf of a key if it is large. A split that does not come about is for the next one who puts something; nothing depends on it.
    async fn split_if_large(&self, leaf: u64, key: &K) {
        let Ok(node) = self.child(leaf) else { return };
        let splits = &self.nodes.splits;
        let is_large =
            |node: &Node<K, V>| node.is_large(self.nodes.record_bytes(), |usual| splits.above(usual));
        let asked = async { node.look(Whole {}).await.map(|node| is_large(&node)) };
        if self.nodes.size(&node, is_large, asked).await != Some(true) {
            return;
        }
        let Some(under_way) = splits.begin() else { return };
        let is_dear = Cell::new(false);
        let split = async |moment: &Moment| self.split(moment, key, &is_dear).await;
        // It conflicts with whoever changes the leaf meanwhile.
        let split = self.nodes.split(Isolation::Strict, split).await;
        under_way.ended(&split, is_dear.get());
    }

    /// Splits the leaf of a key, and what gets too large by that above it, in one transaction. A leaf whose parts do not fit into its record
    /// is left for new ones that are written before.
    async fn split(&self, moment: &Moment, key: &K, is_dear: &Cell<bool>) -> Result<(), ObjectError> {
        let (mut path, ()) = self.find(moment, key, |_| ()).await?;
        let mut number = path.leaf;
        let record_bytes = self.nodes.record_bytes();
        let mut parts = self.whole(moment, number).await?.parts(record_bytes);
        while let Some(Parts { first, others, is_short }) = parts {
            let above = path.above.pop();
            let first = match (is_short, above) {
                (true, Some(_)) => {
                    self.node(moment, number)?.send(SetNode { node: first }).await?;
                    number
                }
                // The root stays where it is, and its parts are new nodes.
                (true, None) => self.added(Some(moment), first).await?,
                (false, _) => self.added(None, first).await?,
            };
            is_dear.set(is_dear.get() || !is_short);
            let mut added = Vec::new();
            for (key, node) in others {
                added.push((key, self.added(is_short.then_some(moment), node).await?));
            }
            let node = match above {
                Some((above, at)) => {
                    number = above;
                    self.whole(moment, above).await?.with_children(at, first, added)
                }
                None => {
                    number = ROOT;
                    Node { children: vec![first], ..Node::default() }.with_children(0, first, added)
                }
            };
            self.node(moment, number)?.send(SetNode { node: node.clone() }).await?;
            parts = if above.is_some() { node.parts(record_bytes) } else { None };
        }
        Ok(())
    }

    async fn whole(&self, moment: &Moment, number: u64) -> Result<Node<K, V>, ObjectError> {
        self.node(moment, number)?.look_to_move(Whole {}).await
    }

    /// A new node; without a moment it is there at once, and nothing leads to it yet.
    async fn added(&self, moment: Option<&Moment>, node: Node<K, V>) -> Result<u64, ObjectError> {
        let number = self.nodes.runtime.draw().max(ROOT + 1);
        let child = self.child(number)?;
        moment.map_or(child.clone(), |moment| moment.of(&child)).send(SetNode { node }).await?;
        Ok(number)
    }
}

/// A node's children that a range may lie in, and its entries that do.
fn within<K: Name, V: Value>(
    node: &Node<K, V>,
    bounds: &(Bound<K>, Bound<K>),
    limit: usize,
) -> (Vec<u64>, Vec<(K, V)>) {
    let is_before_end = |first: &K| match &bounds.1 {
        Bound::Included(end) => first <= end,
        Bound::Excluded(end) => first < end,
        Bound::Unbounded => true,
    };
    let is_after_start = |end: &K| match &bounds.0 {
        Bound::Included(start) | Bound::Excluded(start) => start < end,
        Bound::Unbounded => true,
    };
    let child = |(at, child): (usize, &u64)| {
        let begins = at.checked_sub(1).and_then(|at| node.between.get(at));
        let is_in = begins.is_none_or(is_before_end) && node.between.get(at).is_none_or(is_after_start);
        is_in.then_some(*child)
    };
    let children = node.children.iter().enumerate().filter_map(child).collect();
    let entries = node.entries.iter().filter(|(key, _)| bounds.contains(*key)).take(limit);
    (children, entries.map(|(key, value)| (key.clone(), value.clone())).collect())
}
