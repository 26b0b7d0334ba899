//! Whose transaction is which: each thread has at most one, as in Isotope, and it ends with the thread.
//!
//! The system gives a thread's number to another one some time after it has ended. What tells them apart is when they were started:
//! so what a dead thread has left is never taken for a later one's.

use std::collections::BTreeMap;

use super::limits::THREADS_MAX;

/// What a thread has.
struct Entry<T> {
    started: u64,
    held: T,
}

/// Why a thread gets none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoEntry {
    /// There is no thread of this number.
    NoThread,
    /// It has one.
    Taken,
    /// So many have one that no more may.
    Full,
}

/// See the module.
pub(super) struct Threads<T> {
    entries: BTreeMap<u32, Entry<T>>,
}

impl<T> Default for Threads<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new() }
    }
}

impl<T> Threads<T> {
    /// What the thread has; `started` says when the one of this number was. What a dead one has left is dropped.
    pub(super) fn get(&mut self, thread: u32, started: impl FnOnce() -> Option<u64>) -> Option<&T> {
        let entry = self.entries.get(&thread)?;
        if started() != Some(entry.started) {
            self.entries.remove(&thread);
        }
        self.entries.get(&thread).map(|entry| &entry.held)
    }

    /// Whether a thread that was `started` then may have one now. What a dead one of the same number has left is given back and is
    /// to be ended.
    pub(super) fn admit(&mut self, thread: u32, started: Option<u64>) -> Result<Option<T>, NoEntry> {
        let started = started.ok_or(NoEntry::NoThread)?;
        let left = match self.entries.get(&thread) {
            Some(entry) if entry.started == started => return Err(NoEntry::Taken),
            Some(_) => self.remove(thread),
            None => None,
        };
        if self.entries.len() >= THREADS_MAX {
            return Err(NoEntry::Full);
        }
        Ok(left)
    }

    /// The thread has this from now on, which was [admitted](Self::admit).
    pub(super) fn insert(&mut self, thread: u32, started: u64, held: T) {
        let before = self.entries.insert(thread, Entry { started, held });
        assert!(before.is_none(), "a thread has one transaction");
    }

    /// Takes from a thread what it has.
    pub(super) fn remove(&mut self, thread: u32) -> Option<T> {
        self.entries.remove(&thread).map(|entry| entry.held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes from those that are not there any more what they had, with their numbers; `started` says when the thread of a number was.
    pub(super) fn take_dead(&mut self, started: impl Fn(u32) -> Option<u64>) -> Vec<(u32, T)> {
        let is_dead =
            |(thread, entry): (&u32, &Entry<T>)| (started(*thread) != Some(entry.started)).then_some(*thread);
        let dead: Vec<u32> = self.entries.iter().filter_map(is_dead).collect();
        dead.into_iter().filter_map(|thread| Some((thread, self.remove(thread)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_has_ends_with_it_and_is_not_another_ones_with_its_number() {
        let mut threads = Threads::default();
        assert_eq!(threads.admit(5, Some(100)), Ok(None));
        threads.insert(5, 100, "first");
        assert_eq!(threads.admit(5, Some(100)), Err(NoEntry::Taken));
        assert_eq!(threads.admit(5, Some(200)), Ok(Some("first")), "another thread, later");
        threads.insert(5, 200, "second");
        threads.insert(6, 150, "third");
        assert_eq!(threads.take_dead(|thread| (thread == 6).then_some(150)), [(5, "second")]);
        assert_eq!(threads.get(5, || Some(200)), None);
        assert_eq!(threads.get(6, || Some(150)), Some(&"third"));
        assert_eq!(threads.take_dead(|_| Some(151)), [(6, "third")], "its number was given again");
        threads.insert(6, 151, "fourth");
        assert_eq!(threads.get(6, || Some(152)), None, "another thread asks");
        assert!(threads.is_empty());
    }

    #[test]
    fn so_many_threads_have_one_and_no_more() {
        let mut threads = Threads::default();
        for thread in 1..=THREADS_MAX as u32 {
            assert_eq!(threads.admit(thread, Some(1)), Ok(None));
            threads.insert(thread, 1, ());
        }
        assert_eq!(threads.admit(u32::MAX, Some(1)), Err(NoEntry::Full));
        assert_eq!(threads.admit(u32::MAX, None), Err(NoEntry::NoThread));
    }
}
